//! Superblock bytes to value and back.

use zerocopy::{FromBytes, IntoBytes};

use super::raw::{self, RawSuperblock, feature};
use super::{
    ArrayRecord, BadBlockLog, DEVICES_MAX, DeviceFlags, MemberRecord, MetadataVersion, PplArea, Reshape,
    ResyncOffset, Role, Superblock, SuperblockError, Violation,
};
use crate::double_parity_log::AREA_BYTES_MIN;
use crate::identity::{SetName, Timestamp, Uuid};
use crate::level::{Layout, Level};
use crate::units::{DeviceNumber, MemberSlot, SECTOR_BYTES, Sector, SectorCount};

const ROLE_SPARE: u16 = 0xffff;
const ROLE_FAULTY: u16 = 0xfffe;
const ROLE_JOURNAL: u16 = 0xfffd;
/// The first value that is no slot.
pub(super) const ROLE_SLOT_END: u16 = 0xff00;

const RESYNC_CLEAN: u64 = u64::MAX;

impl Superblock {
    /// Reads the superblock in `bytes`, which begin at sector `found_at` of a device of `device_sectors`.
    /// [`SUPERBLOCK_BYTES_MAX`](super::SUPERBLOCK_BYTES_MAX) bytes are enough for any; less is fine if the
    /// superblock is shorter.
    ///
    /// The error's [`kind`](SuperblockError::kind) says whether there is none, a damaged one, or an unknown
    /// one. Success says that the bytes are whole and make sense, not that the array may be served.
    pub fn decode(bytes: &[u8], found_at: Sector, device_sectors: u64) -> Result<Self, SuperblockError> {
        let (raw, roles) = verify(bytes, found_at)?;
        let version = MetadataVersion::at(found_at, device_sectors)
            .ok_or(SuperblockError::Misplaced { found: found_at, claimed: Sector(raw.super_offset.get()) })?;
        let roles = (0..).zip(roles).map(decode_role).collect::<Result<Vec<_>, _>>()?;
        let array = decode_array(&raw, roles)?;
        let member = decode_member(&raw, &array, version, device_sectors)?;
        let superblock = Self { array, member, residue: raw };
        superblock.rules(SECTOR_BYTES)?;
        Ok(superblock)
    }

    /// The bytes to write at `super_offset`: the structure, padded to whole logical blocks of
    /// `logical_block_bytes` (a power of two, at least 512). Refuses what the kernel would refuse to read.
    pub fn encode(&self, logical_block_bytes: u64) -> Result<Vec<u8>, Violation> {
        self.check(logical_block_bytes)?;
        let mut raw = self.residue;
        self.encode_array(&mut raw);
        self.encode_member(&mut raw);
        raw.feature_map.set(self.feature_map());
        raw.sb_csum.set(0);
        let mut bytes = raw.as_bytes().to_vec();
        bytes.extend(self.array.roles.iter().flat_map(|role| encode_role(*role).to_le_bytes()));
        raw.sb_csum.set(raw::checksum(&bytes));
        bytes[..raw::FIXED_BYTES].copy_from_slice(raw.as_bytes());
        // `check` has made sure that a padded superblock is a few kilobytes.
        bytes.resize(usize::try_from(self.padded_bytes(logical_block_bytes)).unwrap_or(bytes.len()), 0);
        Ok(bytes)
    }

    /// Bytes of the superblock in whole logical blocks.
    pub(super) fn padded_bytes(&self, logical_block_bytes: u64) -> u64 {
        (raw::covered_bytes(self.array.roles.len()) as u64).next_multiple_of(logical_block_bytes)
    }

    /// The feature map that the state asks for.
    pub fn feature_map(&self) -> u32 {
        let (array, member) = (&self.array, &self.member);
        let ppl = |multiple| member.ppl.is_some_and(|ppl| ppl.multiple == multiple);
        [
            (array.bitmap_offset.is_some(), feature::BITMAP_OFFSET),
            (member.recovery_offset.is_some(), feature::RECOVERY_OFFSET),
            (array.reshape.is_some(), feature::RESHAPE_ACTIVE),
            (member.bad_block_log.is_some_and(|log| log.in_use), feature::BAD_BLOCKS),
            (member.replacement, feature::REPLACEMENT),
            (array.reshape.is_some_and(|r| r.backwards), feature::RESHAPE_BACKWARDS),
            (member.new_offset.is_some(), feature::NEW_OFFSET),
            (member.recovery_by_bitmap, feature::RECOVERY_BITMAP),
            (array.clustered, feature::CLUSTERED),
            (array.journal, feature::JOURNAL),
            (array.needs_double_parity_log, feature::DOUBLE_PARITY_LOG),
            (ppl(false), feature::PPL),
            (ppl(true), feature::MULTIPLE_PPLS),
            (
                matches!(array.layout, Layout::Raid0(_)) && array.layout.to_word().is_some(),
                feature::RAID0_LAYOUT,
            ),
        ]
        .into_iter()
        .filter(|(on, _)| *on)
        .fold(array.unknown_features, |map, (_, bit)| map | bit)
    }

    #[allow(clippy::cast_possible_truncation, reason = "check() has bounded the chunk and the roles table")]
    fn encode_array(&self, raw: &mut RawSuperblock) {
        let array = &self.array;
        raw.magic.set(raw::MAGIC);
        raw.major_version.set(raw::MAJOR_VERSION);
        raw.set_uuid = array.set_uuid.0;
        raw.set_name = *array.name.as_bytes();
        raw.ctime.set(array.created.to_word());
        raw.utime.set(array.updated.to_word());
        raw.level.set(array.level.number());
        if let Some(word) = array.layout.to_word() {
            raw.layout.set(word);
        }
        raw.size.set(array.size.0);
        raw.chunksize.set(array.chunk.0 as u32);
        raw.raid_disks.set(array.raid_disks);
        raw.events.set(array.events);
        raw.resync_offset.set(match array.resync_offset {
            ResyncOffset::Clean => RESYNC_CLEAN,
            ResyncOffset::DirtyFrom(sector) => sector.0,
        });
        raw.max_dev.set(array.roles.len() as u32);
        if let Some(offset) = array.bitmap_offset {
            raw.bitmap_or_ppl = offset.to_le_bytes();
        }
        if let Some(reshape) = array.reshape {
            raw.reshape_position.set(reshape.position.0);
            raw.new_level.set(reshape.new_level);
            raw.new_layout.set(reshape.new_layout);
            raw.new_chunk.set(reshape.new_chunk.0 as u32);
            raw.delta_disks.set(reshape.delta_disks);
        }
        raw.logical_block_size.set(array.logical_block_size);
    }

    fn encode_member(&self, raw: &mut RawSuperblock) {
        let member = &self.member;
        raw.data_offset.set(member.data_offset.0);
        raw.data_size.set(member.data_size.0);
        raw.super_offset.set(member.super_offset.0);
        raw.dev_number.set(u32::from(member.dev_number.0));
        raw.device_uuid = member.device_uuid.0;
        raw.devflags = member.flags.0;
        if let Some(sector) = member.recovery_offset.or(member.journal_tail) {
            raw.recovery_or_tail.set(sector.0);
        }
        if let Some(ppl) = member.ppl.or(member.double_parity_log) {
            let ([a, b], [c, d]) = (ppl.offset.to_le_bytes(), ppl.size.to_le_bytes());
            raw.bitmap_or_ppl = [a, b, c, d];
        } else if self.array.bitmap_offset.is_none() && double_parity_log(raw, &self.array, member).is_some()
        {
            // Without a feature bit it would be found again.
            raw.bitmap_or_ppl = [0; 4];
        }
        if let Some(log) = member.bad_block_log {
            raw.bblog_offset.set(log.offset);
            raw.bblog_size.set(log.size);
            raw.bblog_shift = log.shift;
        } else {
            // Without the feature bit the kernel still takes a non-zero offset for an empty log.
            raw.bblog_offset.set(0);
            raw.bblog_size.set(0);
        }
        if let Some(offset) = member.new_offset {
            raw.new_offset.set(offset);
        }
        raw.cnt_corrected_read.set(member.corrected_reads);
    }
}

/// Checks what comes before meaning: presence, place, completeness, checksum, reserved bytes.
fn verify(bytes: &[u8], found_at: Sector) -> Result<(RawSuperblock, Vec<u16>), SuperblockError> {
    let truncated = |needed| SuperblockError::Truncated { needed, present: bytes.len() };
    if bytes.get(..4).is_some_and(|magic| magic != raw::MAGIC.to_le_bytes()) {
        return Err(SuperblockError::NoMagic);
    }
    let (raw, rest) = RawSuperblock::read_from_prefix(bytes).map_err(|_| truncated(raw::FIXED_BYTES))?;
    if raw.major_version.get() != raw::MAJOR_VERSION {
        return Err(SuperblockError::MajorVersion(raw.major_version.get()));
    }
    if raw.super_offset.get() != found_at.0 {
        let claimed = Sector(raw.super_offset.get());
        return Err(SuperblockError::Misplaced { found: found_at, claimed });
    }
    let role_count = usize::try_from(raw.max_dev.get()).unwrap_or(usize::MAX);
    if role_count > DEVICES_MAX {
        return Err(SuperblockError::TooManyRoles(raw.max_dev.get()));
    }
    let covered = raw::covered_bytes(role_count);
    let roles = rest.get(..2 * role_count).ok_or_else(|| truncated(covered))?;
    let (stored, computed) = (raw.sb_csum.get(), raw::checksum(&bytes[..covered]));
    if stored != computed {
        return Err(SuperblockError::Checksum { stored, computed });
    }
    if raw.pad0.get() != 0 {
        return Err(SuperblockError::ReservedNotZero(std::mem::offset_of!(RawSuperblock, pad0)));
    }
    if let Some(at) = raw.pad3.iter().position(|&b| b != 0) {
        return Err(SuperblockError::ReservedNotZero(std::mem::offset_of!(RawSuperblock, pad3) + at));
    }
    Ok((raw, roles.chunks_exact(2).map(|r| u16::from_le_bytes([r[0], r[1]])).collect()))
}

fn decode_array(raw: &RawSuperblock, roles: Vec<Role>) -> Result<ArrayRecord, SuperblockError> {
    let map = raw.feature_map.get();
    let has = |bit| map & bit != 0;
    let level = Level::from_number(raw.level.get()).ok_or(SuperblockError::UnknownLevel(raw.level.get()))?;
    if has(feature::RAID0_LAYOUT) && level != Level::Raid0 {
        return Err(Violation::Raid0LayoutElsewhere(level).into());
    }
    let word = raw.layout.get();
    let layout = Layout::from_word(level, word, has(feature::RAID0_LAYOUT))
        .ok_or(SuperblockError::UnknownLayout { level, word })?;
    let log = has(feature::PPL) || has(feature::MULTIPLE_PPLS);
    if log && has(feature::BITMAP_OFFSET) {
        return Err(Violation::PplWithOther("a bitmap").into());
    }
    if has(feature::RESHAPE_BACKWARDS) && !has(feature::RESHAPE_ACTIVE) {
        return Err(Violation::ReshapeFlagAlone.into());
    }
    Ok(ArrayRecord {
        set_uuid: Uuid(raw.set_uuid),
        name: SetName::from_bytes(raw.set_name),
        created: Timestamp::from_word(raw.ctime.get()),
        updated: Timestamp::from_word(raw.utime.get()),
        level,
        layout,
        size: SectorCount(raw.size.get()),
        chunk: SectorCount(u64::from(raw.chunksize.get())),
        raid_disks: raw.raid_disks.get(),
        events: raw.events.get(),
        resync_offset: match raw.resync_offset.get() {
            RESYNC_CLEAN => ResyncOffset::Clean,
            sector => ResyncOffset::DirtyFrom(Sector(sector)),
        },
        roles,
        bitmap_offset: has(feature::BITMAP_OFFSET).then_some(i32::from_le_bytes(raw.bitmap_or_ppl)),
        journal: has(feature::JOURNAL),
        clustered: has(feature::CLUSTERED),
        reshape: has(feature::RESHAPE_ACTIVE).then(|| Reshape {
            position: Sector(raw.reshape_position.get()),
            new_level: raw.new_level.get(),
            new_layout: raw.new_layout.get(),
            new_chunk: SectorCount(u64::from(raw.new_chunk.get())),
            delta_disks: raw.delta_disks.get(),
            backwards: has(feature::RESHAPE_BACKWARDS),
        }),
        logical_block_size: raw.logical_block_size.get(),
        needs_double_parity_log: has(feature::DOUBLE_PARITY_LOG),
        unknown_features: map & !feature::KNOWN,
    })
}

fn decode_member(
    raw: &RawSuperblock,
    array: &ArrayRecord,
    version: MetadataVersion,
    device_sectors: u64,
) -> Result<MemberRecord, SuperblockError> {
    let map = raw.feature_map.get();
    let has = |bit| map & bit != 0;
    // A number that doesn't fit the largest table is outside of every table: its device is a spare.
    let dev_number = DeviceNumber(u16::try_from(raw.dev_number.get()).unwrap_or(u16::MAX));
    if u32::from(dev_number.0) != raw.dev_number.get() {
        return Err(Violation::DeviceNumber(raw.dev_number.get()).into());
    }
    if has(feature::PPL) && has(feature::MULTIPLE_PPLS) {
        return Err(Violation::BothPplFlags.into());
    }
    let [a, b, c, d] = raw.bitmap_or_ppl;
    let ppl = (has(feature::PPL) || has(feature::MULTIPLE_PPLS)).then(|| PplArea {
        offset: i16::from_le_bytes([a, b]),
        size: u16::from_le_bytes([c, d]),
        multiple: has(feature::MULTIPLE_PPLS),
    });
    let log = BadBlockLog {
        offset: raw.bblog_offset.get(),
        size: raw.bblog_size.get(),
        shift: raw.bblog_shift,
        in_use: has(feature::BAD_BLOCKS),
    };
    let recovery_or_tail = Sector(raw.recovery_or_tail.get());
    let is_journal = array.role_of(dev_number) == Role::Journal;
    let mut member = MemberRecord {
        version,
        super_offset: Sector(raw.super_offset.get()),
        device_sectors,
        data_offset: Sector(raw.data_offset.get()),
        data_size: SectorCount(raw.data_size.get()),
        dev_number,
        device_uuid: Uuid(raw.device_uuid),
        flags: DeviceFlags(raw.devflags),
        recovery_offset: has(feature::RECOVERY_OFFSET).then_some(recovery_or_tail),
        recovery_by_bitmap: has(feature::RECOVERY_BITMAP),
        replacement: has(feature::REPLACEMENT),
        journal_tail: is_journal.then_some(recovery_or_tail),
        ppl,
        double_parity_log: None,
        bad_block_log: (log.offset != 0 || log.size != 0 || log.in_use).then_some(log),
        new_offset: has(feature::NEW_OFFSET).then_some(raw.new_offset.get()),
        corrected_reads: raw.cnt_corrected_read.get(),
    };
    if array.bitmap_offset.is_none() && member.ppl.is_none() && !array.journal {
        member.double_parity_log = double_parity_log(raw, array, &member);
    }
    member.data_size = room_for_data(array, &member);
    Ok(member)
}

/// mdadm counts the data of a device that it adds to an array of version 1.0 from sector 0 on, wherever it
/// begins, and the kernel doesn't look at where it begins either. The array uses less of it. So it ends at
/// what lies before the superblock.
fn room_for_data(array: &ArrayRecord, member: &MemberRecord) -> SectorCount {
    let (start, size, superblock) = (member.data_offset, member.data_size, member.super_offset);
    let is_counted_so = member.version == MetadataVersion::V1_0
        && start > Sector(0)
        && size.0 <= superblock.0
        && array.level.has_parity()
        // A journal's ring is as long as it says.
        && array.role_of(member.dev_number) != Role::Journal;
    if !is_counted_so {
        return size;
    }
    let log = member.bad_block_log.filter(|log| log.offset != 0 && log.size != 0);
    let offsets =
        [array.bitmap_offset, member.ppl.map(|ppl| i32::from(ppl.offset)), log.map(|log| log.offset)];
    let places = offsets.into_iter().flatten().filter_map(|by| superblock.checked_offset(i64::from(by)));
    let end = places.filter(|place| *place > start).fold(superblock, Sector::min);
    size.min(SectorCount(end.0.saturating_sub(start.0)))
}

/// Where a double-parity log would lie, if the bytes look like it: in front of the data of a RAID6 with a
/// superblock at the beginning, long enough, not on anything else.
fn double_parity_log(raw: &RawSuperblock, array: &ArrayRecord, member: &MemberRecord) -> Option<PplArea> {
    let [a, b, c, d] = raw.bitmap_or_ppl;
    let (offset, size) = (i16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
    let start = member.super_offset.checked_offset(i64::from(offset))?;
    let end = start.0.checked_add(u64::from(size))?;
    let log = member.bad_block_log.filter(|log| log.offset != 0 && log.size != 0);
    let log = log.and_then(|log| member.super_offset.checked_offset(i64::from(log.offset)));
    let free = offset >= 8
        && u64::from(size) * SECTOR_BYTES >= AREA_BYTES_MIN
        && end <= member.data_offset.0
        && log.is_none_or(|log| log.0 >= end || log.0 + 8 <= start.0);
    (array.level == Level::Raid6 && member.version != MetadataVersion::V1_0 && free).then_some(PplArea {
        offset,
        size,
        multiple: true,
    })
}

fn decode_role((device, role): (u16, u16)) -> Result<Role, SuperblockError> {
    match role {
        ROLE_SPARE => Ok(Role::Spare),
        ROLE_FAULTY => Ok(Role::Faulty),
        ROLE_JOURNAL => Ok(Role::Journal),
        slot if slot < ROLE_SLOT_END => Ok(Role::Slot(MemberSlot(slot))),
        _ => Err(SuperblockError::ReservedRole { device: DeviceNumber(device), role }),
    }
}

fn encode_role(role: Role) -> u16 {
    match role {
        Role::Slot(slot) => slot.0,
        Role::Spare => ROLE_SPARE,
        Role::Faulty => ROLE_FAULTY,
        Role::Journal => ROLE_JOURNAL,
    }
}
