//! Where things lie on the devices of a new array, chosen as mdadm chooses (docs/formats.md section 2.3).
//!
//! Between the superblock and the data (1.1, 1.2), or before the superblock (1.0), lie the bitmap and the
//! bad-block log. In front of the data some head-room is left, so that a later reshape has somewhere to move.
//!
//! One thing differs from mdadm on purpose. It enters the last member of a new RAID5 as a spare under
//! rebuild; we enter all members and mark the array dirty from sector 0, which is a resync as for RAID6.

use thiserror::Error;

use crate::bitmap::{BitmapError, BitmapHeader, BitmapImage, Fill};
use crate::identity::{SetName, Timestamp, Uuid};
use crate::level::{Layout, Level, Raid0Layout};
use crate::superblock::{
    ArrayRecord, BadBlockLog, DEVICES_MAX, DeviceFlags, MemberRecord, MetadataVersion, PplArea, ResyncOffset,
    Role, Superblock, Violation,
};
use crate::units::{DeviceNumber, MemberSlot, Sector, SectorCount};

/// Where the bitmap lies behind the superblock, and the room that the superblock has.
const BEHIND_SUPERBLOCK: u64 = 8;
const BAD_BLOCK_LOG_SECTORS: u16 = 8;
/// The most room an internal bitmap takes if no chunk was asked for: 128 KiB.
const BITMAP_SECTORS_MAX_DEFAULT: u64 = 256;
/// The most room a bitmap may take before a superblock of version 1.0: 1 MiB.
const BITMAP_SECTORS_MAX_V1_0: u64 = 2048;
const BITMAP_CHUNK_BYTES_DEFAULT: u32 = 64 << 20;
const BITMAP_CHUNK_BYTES_MIN: u32 = 4096;
const HEADROOM_SECTORS_MAX: u64 = 262_144;
const DATA_ALIGNMENT: u64 = 2048;
const LOG_SECTORS: u64 = 2048;
/// From here on MD lets the records of a partial parity log follow each other: twice 128 KiB and a header.
const SEVERAL_RECORDS_SECTORS: u64 = 528;

/// Whether a new array gets a bitmap.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NewBitmap {
    /// None.
    #[default]
    None,
    /// On the members, with this chunk in bytes; by default at least 64 MiB, more if the bits wouldn't fit.
    Internal {
        /// Bytes per bit, a power of two of at least 4096.
        chunk_bytes: Option<u32>,
    },
}

/// Whether the members of a new array carry a log. Not together with a bitmap.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NewLog {
    /// None.
    #[default]
    None,
    /// A partial parity log (RAID5).
    Ppl,
    /// A double-parity log (RAID6), which is ours.
    DoubleParity,
}

/// What is known about parity at the beginning.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InitialSync {
    /// Nothing: the array begins dirty and is resynced.
    #[default]
    Resync,
    /// The caller vouches that parity matches the data (all members zero, say).
    AssumeClean,
}

/// A device of a new array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NewDevice {
    /// Its size.
    pub sectors: u64,
    /// Its identity, new and random.
    pub uuid: Uuid,
}

/// A wish for an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewArray {
    /// The array's identity, new and random.
    pub set_uuid: Uuid,
    /// The array's name.
    pub name: SetName,
    /// Now.
    pub created: Timestamp,
    /// The level.
    pub level: Level,
    /// The layout. RAID0's may be unspecified: it is then recorded only if the sizes differ.
    pub layout: Layout,
    /// The chunk.
    pub chunk: SectorCount,
    /// The metadata version.
    pub version: MetadataVersion,
    /// The bitmap.
    pub bitmap: NewBitmap,
    /// What parity is worth.
    pub initial: InitialSync,
    /// Sectors to use per member; all that the smallest has by default.
    pub size: Option<SectorCount>,
    /// The first data sector; chosen by default.
    pub data_offset: Option<Sector>,
    /// The largest logical block among the devices, in bytes.
    pub logical_block_bytes: u64,
    /// The members, in the order of their slots.
    pub members: Vec<NewDevice>,
    /// Spares.
    pub spares: Vec<NewDevice>,
}

/// What to write to make a new array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedArray {
    /// A superblock per device: members first, then spares, in their given order.
    pub superblocks: Vec<Superblock>,
    /// The bitmap, the same for all, to be written at each superblock's
    /// [`bitmap_sector`](Superblock::bitmap_sector).
    pub bitmap: Option<BitmapImage>,
}

/// Why an array can't be laid out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// A device is too small.
    #[error("device {index} has {sectors} sectors; at least {needed} are needed")]
    DeviceTooSmall {
        /// Which device, counted over members and spares.
        index: usize,
        /// Its size.
        sectors: u64,
        /// The least it would need.
        needed: u64,
    },
    /// An array of no whole chunk.
    #[error(
        "{size} sectors of each member are less than a chunk, which has {chunk}: choose a larger size or a smaller chunk"
    )]
    SizeBelowChunk {
        /// Sectors that were asked for.
        size: u64,
        /// The chunk's.
        chunk: u64,
    },
    /// More devices than a superblock can list.
    #[error("{0} devices, more than a superblock can list")]
    TooManyDevices(usize),
    /// No devices.
    #[error("an array needs members")]
    NoMembers,
    /// The level has no redundancy to keep, so it has no bitmap and no spares.
    #[error("{0} has no redundancy, so it can't have {1}")]
    WithoutRedundancy(Level, &'static str),
    /// The log is another level's, or there is a bitmap too.
    #[error("the consistency policy {policy} is for {level} without a bitmap{}", if *policy == "ppl" { "" } else { ", with metadata 1.1 or 1.2" })]
    Log {
        /// The policy.
        policy: &'static str,
        /// The level that it is for.
        level: Level,
    },
    /// The bitmap needs more room than there is.
    #[error(
        "a bitmap with a chunk of {chunk_bytes} bytes needs {needed} sectors, but there is room for {room}: choose a larger bitmap chunk"
    )]
    BitmapRoom {
        /// The chunk.
        chunk_bytes: u32,
        /// Sectors needed.
        needed: u64,
        /// Sectors there are.
        room: u64,
    },
    /// A bitmap chunk that MD doesn't take.
    #[error("a bitmap chunk of {0} bytes: a power of two of at least 4096 is needed")]
    BitmapChunk(u32),
    /// No device number is left.
    #[error("the superblock has no free device number")]
    NoDeviceNumber,
    /// The bitmap's header would not be accepted.
    #[error(transparent)]
    Bitmap(#[from] BitmapError),
    /// The result would break a rule of the format.
    #[error("these devices and options make no valid array: {0}")]
    Rule(#[from] Violation),
}

/// Where things lie, for all devices of one array.
struct Places {
    data_offset: u64,
    /// 1.0: sectors between the end of the data and the superblock.
    gap: u64,
    bitmap: Option<(i32, BitmapHeader)>,
    bad_block_log: i32,
    log: Option<PplArea>,
    size: SectorCount,
}

impl NewArray {
    /// Lays the array out. Every superblock has been checked against the kernel's rules.
    pub fn place(&self) -> Result<PlacedArray, PlacementError> {
        self.place_with(NewLog::None)
    }

    /// The same, with a log on the members. The log's area must be made an empty one.
    pub fn place_with(&self, log: NewLog) -> Result<PlacedArray, PlacementError> {
        self.check_wish(log)?;
        let places = self.choose_places(log)?;
        let array = self.array_record(&places)?;
        let devices = self.members.iter().chain(&self.spares);
        let superblocks = (0u16..)
            .zip(devices)
            .map(|(number, device)| {
                let superblock = Superblock::new(array.clone(), self.member_record(&places, number, device)?);
                superblock.check(self.logical_block_bytes)?;
                Ok(superblock)
            })
            .collect::<Result<Vec<_>, PlacementError>>()?;
        let fill = if array.is_dirty() { Fill::Dirty } else { Fill::Clean };
        let bitmap = places.bitmap.map(|(_, header)| BitmapImage::new(header, fill)).transpose()?;
        Ok(PlacedArray { superblocks, bitmap })
    }

    fn check_wish(&self, log: NewLog) -> Result<(), PlacementError> {
        let (level, what) = match log {
            NewLog::None => (self.level, ""),
            NewLog::Ppl => (Level::Raid5, "ppl"),
            NewLog::DoubleParity => (Level::Raid6, "double-parity-log"),
        };
        let placeable = log != NewLog::DoubleParity || self.version != MetadataVersion::V1_0;
        if self.level != level || log != NewLog::None && self.bitmap != NewBitmap::None || !placeable {
            return Err(PlacementError::Log { policy: what, level });
        }
        let count = self.members.len() + self.spares.len();
        if self.members.is_empty() {
            return Err(PlacementError::NoMembers);
        }
        if count > DEVICES_MAX {
            return Err(PlacementError::TooManyDevices(count));
        }
        if let Some(size) = self.size.filter(|size| *size < self.chunk) {
            return Err(PlacementError::SizeBelowChunk { size: size.0, chunk: self.chunk.0 });
        }
        if matches!(self.level, Level::Raid0 | Level::Linear) {
            if self.bitmap != NewBitmap::None {
                return Err(PlacementError::WithoutRedundancy(self.level, "a bitmap"));
            }
            if !self.spares.is_empty() {
                return Err(PlacementError::WithoutRedundancy(self.level, "spares"));
            }
        }
        Ok(())
    }

    fn choose_places(&self, log: NewLog) -> Result<Places, PlacementError> {
        let smallest = self.members.iter().chain(&self.spares).map(|d| d.sectors).min().unwrap_or(0);
        let data_offset = match (self.version, self.data_offset) {
            (_, Some(offset)) => offset.0,
            // Anywhere else, `mdadm --grow --size=max` lets the data run into the superblock: kernel and
            // mdadm count it from sector 0 on.
            (MetadataVersion::V1_0, None) => 0,
            (_, None) if log == NewLog::None => default_data_offset(smallest, self.chunk),
            (_, None) => data_offset_behind(log_sectors(log, self.chunk), smallest, self.chunk),
        };
        // The bitmap is sized for the most that a member could have, and `sync_size` then is what it has.
        let most = SectorCount(self.size.map_or(smallest, |size| size.0));
        let bitmap_chunk = self.choose_bitmap_chunk(data_offset, most)?;
        let bitmap_sectors = match bitmap_chunk {
            Some(chunk) => BitmapHeader::new(self.set_uuid, most, chunk)?.sectors().0,
            None => 0,
        };
        let log_sectors = match log {
            NewLog::None => 0,
            NewLog::Ppl | NewLog::DoubleParity => self.room_for_log(log, data_offset, smallest),
        };
        let gap = bitmap_sectors.max(bitmap_reservation(smallest)).max(log_sectors)
            + u64::from(BAD_BLOCK_LOG_SECTORS);
        let size = self.choose_size(data_offset, gap)?;
        let (bitmap_offset, log_offset) = match self.version {
            MetadataVersion::V1_0 => {
                let log = -i64::from(BAD_BLOCK_LOG_SECTORS);
                (log.saturating_sub_unsigned(bitmap_sectors.max(log_sectors)), log)
            }
            MetadataVersion::V1_1 | MetadataVersion::V1_2 => {
                let side = if bitmap_chunk.is_some() { bitmap_sectors } else { bitmap_reservation(size.0) };
                let side = if log_sectors > 0 { log_sectors } else { side };
                (8, 8i64.saturating_add_unsigned(side))
            }
        };
        // Both are at most a few thousand sectors; `check` would refuse what doesn't fit the device.
        let narrow = |offset: i64| i32::try_from(offset).map_err(|_| Violation::OutsideDevice("bitmap"));
        let bitmap = match bitmap_chunk {
            Some(chunk) => Some((narrow(bitmap_offset)?, BitmapHeader::new(self.set_uuid, size, chunk)?)),
            None => None,
        };
        let area = match log {
            NewLog::None => None,
            NewLog::Ppl | NewLog::DoubleParity => Some(
                log_area(bitmap_offset, log_sectors).ok_or(Violation::Ppl { level: self.level, size: 0 })?,
            ),
        };
        Ok(Places { data_offset, gap, bitmap, bad_block_log: narrow(log_offset)?, log: area, size })
    }

    /// Sectors for a log: what it should have, or what there is before data that begins where the caller
    /// says.
    fn room_for_log(&self, log: NewLog, data_offset: u64, smallest: u64) -> u64 {
        let wanted = log_sectors(log, self.chunk);
        match self.version.super_offset(smallest) {
            Some(superblock) if self.version != MetadataVersion::V1_0 => {
                data_offset
                    .saturating_sub(superblock.0 + BEHIND_SUPERBLOCK + u64::from(BAD_BLOCK_LOG_SECTORS))
                    .min(wanted)
                    / 8
                    * 8
            }
            _ => wanted,
        }
    }

    /// Sectors per member: what the smallest has, or what was asked for, in whole chunks; 0 for RAID0.
    fn choose_size(&self, data_offset: u64, gap: u64) -> Result<SectorCount, PlacementError> {
        let mut size = self.size.unwrap_or(SectorCount(u64::MAX));
        let wanted = self.size.map_or(0, |size| size.0).max(self.chunk.0).max(16);
        for (index, device) in self.members.iter().chain(&self.spares).enumerate() {
            let room = self.data_size(data_offset, gap, device);
            if room < wanted {
                let needed = self.device_sectors(data_offset, gap, wanted);
                return Err(PlacementError::DeviceTooSmall { index, sectors: device.sectors, needed });
            }
            size = size.min(SectorCount(room));
        }
        Ok(if self.level == Level::Raid0 { SectorCount(0) } else { size.round_down(self.chunk) })
    }

    fn data_size(&self, data_offset: u64, gap: u64, device: &NewDevice) -> u64 {
        match self.version {
            MetadataVersion::V1_0 => {
                let end = self.version.super_offset(device.sectors).map_or(0, |s| s.0);
                end.saturating_sub(gap).saturating_sub(data_offset)
            }
            MetadataVersion::V1_1 | MetadataVersion::V1_2 => device.sectors.saturating_sub(data_offset),
        }
    }

    /// The sectors of the smallest device with room for so much data: the inverse of [`NewArray::data_size`].
    fn device_sectors(&self, data_offset: u64, gap: u64, data_size: u64) -> u64 {
        match self.version {
            MetadataVersion::V1_0 => data_size
                .saturating_add(gap)
                .saturating_add(data_offset)
                .checked_next_multiple_of(8)
                .map_or(u64::MAX, |s| s.saturating_add(16)),
            MetadataVersion::V1_1 | MetadataVersion::V1_2 => data_offset.saturating_add(data_size),
        }
    }

    /// The bitmap's chunk in bytes, if there is to be a bitmap.
    fn choose_bitmap_chunk(
        &self,
        data_offset: u64,
        most: SectorCount,
    ) -> Result<Option<u32>, PlacementError> {
        let NewBitmap::Internal { chunk_bytes } = self.bitmap else { return Ok(None) };
        let room = match self.version {
            MetadataVersion::V1_0 => BITMAP_SECTORS_MAX_V1_0,
            MetadataVersion::V1_1 | MetadataVersion::V1_2 => data_offset
                .saturating_sub(self.version.super_offset(u64::MAX).map_or(0, |s| s.0))
                .saturating_sub(BEHIND_SUPERBLOCK + u64::from(BAD_BLOCK_LOG_SECTORS)),
        };
        let needs = |chunk| BitmapHeader::new(self.set_uuid, most, chunk).map(|header| header.sectors().0);
        let chunk = match chunk_bytes {
            Some(chunk) if !chunk.is_power_of_two() || chunk < BITMAP_CHUNK_BYTES_MIN => {
                return Err(PlacementError::BitmapChunk(chunk));
            }
            Some(chunk) => chunk,
            None => {
                let mut chunk = BITMAP_CHUNK_BYTES_DEFAULT;
                while needs(chunk)? > room.min(BITMAP_SECTORS_MAX_DEFAULT) && chunk < 1 << 31 {
                    chunk *= 2;
                }
                chunk
            }
        };
        let needed = needs(chunk)?;
        if needed > room {
            return Err(PlacementError::BitmapRoom { chunk_bytes: chunk, needed, room });
        }
        Ok(Some(chunk))
    }

    fn array_record(&self, places: &Places) -> Result<ArrayRecord, PlacementError> {
        let count = self.members.len();
        let raid_disks = u16::try_from(count).map_err(|_| PlacementError::TooManyDevices(count))?;
        let mut roles = vec![Role::Spare; roles_table_length(count + self.spares.len())];
        for (slot, role) in (0..raid_disks).zip(&mut roles) {
            *role = Role::Slot(MemberSlot(slot));
        }
        let clean = self.initial == InitialSync::AssumeClean || !self.level.has_parity();
        Ok(ArrayRecord {
            set_uuid: self.set_uuid,
            name: self.name,
            created: self.created,
            updated: self.created,
            level: self.level,
            layout: self.recorded_layout(places),
            size: places.size,
            chunk: self.chunk,
            raid_disks: u32::from(raid_disks),
            events: 0,
            resync_offset: if clean { ResyncOffset::Clean } else { ResyncOffset::DirtyFrom(Sector(0)) },
            roles,
            bitmap_offset: places.bitmap.as_ref().map(|(offset, _)| *offset),
            journal: false,
            clustered: false,
            reshape: None,
            logical_block_size: 0,
            needs_double_parity_log: false,
            unknown_features: 0,
        })
    }

    /// RAID0 of unequal members must say how it counts, or it can't be read; of equal ones it says nothing,
    /// so that old kernels take it too.
    fn recorded_layout(&self, places: &Places) -> Layout {
        if self.layout != Layout::Raid0(Raid0Layout::Unspecified) {
            return self.layout;
        }
        let usable = |d: &NewDevice| {
            SectorCount(self.data_size(places.data_offset, places.gap, d)).round_down(self.chunk)
        };
        let equal = self.members.windows(2).all(|pair| usable(&pair[0]) == usable(&pair[1]));
        Layout::Raid0(if equal { Raid0Layout::Unspecified } else { Raid0Layout::Original })
    }

    fn member_record(
        &self,
        places: &Places,
        number: u16,
        device: &NewDevice,
    ) -> Result<MemberRecord, PlacementError> {
        let too_small = PlacementError::DeviceTooSmall {
            index: usize::from(number),
            sectors: device.sectors,
            needed: crate::superblock::DEVICE_SECTORS_MIN,
        };
        Ok(MemberRecord {
            version: self.version,
            super_offset: self.version.super_offset(device.sectors).ok_or(too_small)?,
            device_sectors: device.sectors,
            data_offset: Sector(places.data_offset),
            data_size: SectorCount(self.data_size(places.data_offset, places.gap, device)),
            dev_number: DeviceNumber(number),
            device_uuid: device.uuid,
            flags: DeviceFlags::default(),
            recovery_offset: None,
            recovery_by_bitmap: false,
            replacement: false,
            journal_tail: None,
            ppl: places.log.filter(|_| self.level == Level::Raid5),
            double_parity_log: places.log.filter(|_| self.level != Level::Raid5),
            bad_block_log: Some(BadBlockLog {
                offset: places.bad_block_log,
                size: BAD_BLOCK_LOG_SECTORS,
                shift: 0,
                in_use: false,
            }),
            new_offset: None,
            corrected_reads: 0,
        })
    }
}

/// A superblock for a device that joins an array as a spare, laid out as the member `template` is. The array
/// record is the template's: the caller gives it the freshest, and enters the device into the roles when it
/// takes a slot.
pub fn place_spare(
    template: &Superblock,
    device: NewDevice,
    in_use: &[DeviceNumber],
    logical_block_bytes: u64,
) -> Result<Superblock, PlacementError> {
    let like = &template.member;
    let size = template.array.size.0;
    let too_small = |needed| PlacementError::DeviceTooSmall { index: 0, sectors: device.sectors, needed };
    let super_offset =
        like.version.super_offset(device.sectors).ok_or_else(|| too_small(like.data_offset.0 + size))?;
    let end = match like.version {
        MetadataVersion::V1_0 => {
            let data_end = like.data_offset.0.saturating_add(like.data_size.0);
            super_offset.0.saturating_sub(like.super_offset.0.saturating_sub(data_end))
        }
        MetadataVersion::V1_1 | MetadataVersion::V1_2 => device.sectors,
    };
    let data_size = end.saturating_sub(like.data_offset.0);
    if data_size < size {
        return Err(too_small(device.sectors.saturating_sub(data_size).saturating_add(size)));
    }
    let member = MemberRecord {
        version: like.version,
        super_offset,
        device_sectors: device.sectors,
        data_offset: like.data_offset,
        data_size: SectorCount(data_size),
        dev_number: template.array.free_device_number(in_use).ok_or(PlacementError::NoDeviceNumber)?,
        device_uuid: device.uuid,
        flags: DeviceFlags::default(),
        recovery_offset: None,
        recovery_by_bitmap: false,
        replacement: false,
        journal_tail: None,
        ppl: like.ppl,
        double_parity_log: like.double_parity_log,
        bad_block_log: like.bad_block_log.map(|log| BadBlockLog { in_use: false, shift: 0, ..log }),
        new_offset: None,
        corrected_reads: 0,
    };
    let superblock = template.of_another(member);
    superblock.check(logical_block_bytes)?;
    Ok(superblock)
}

/// Where a bitmap of `sectors` can be put on a member that has none, in sectors from its superblock: right
/// behind the superblock of formats 1.1 and 1.2, right before the bad-block log or the superblock of 1.0.
/// `None` if there is no room.
pub fn bitmap_place(superblock: &Superblock, sectors: SectorCount) -> Option<i32> {
    let member = &superblock.member;
    let log = member.bad_block_log.map(|log| i64::from(log.offset));
    let needed = i64::try_from(sectors.0.next_multiple_of(8)).ok()?;
    let relative =
        |sector: u64| i64::try_from(sector).ok()?.checked_sub(i64::try_from(member.super_offset.0).ok()?);
    let (start, end) = match member.version {
        MetadataVersion::V1_0 => {
            let end = log.unwrap_or(0).min(0);
            let data_end = relative(member.data_offset.0.checked_add(member.data_size.0)?)?;
            (end - needed, if end - needed >= data_end { end } else { i64::MIN })
        }
        MetadataVersion::V1_1 | MetadataVersion::V1_2 => {
            let data = relative(member.data_offset.0)?;
            (8, log.filter(|log| *log > 0).map_or(data, |log| log.min(data)))
        }
    };
    (start + needed <= end).then(|| i32::try_from(start).ok()).flatten()
}

/// Where a log can be put on a member that has neither log nor bitmap: in the larger of the two places before
/// and behind the bad-block log, between superblock and data. `None` if there is too little room.
pub fn log_place(superblock: &Superblock, log: NewLog) -> Option<PplArea> {
    let member = &superblock.member;
    let relative =
        |sector: u64| i64::try_from(sector).ok()?.checked_sub(i64::try_from(member.super_offset.0).ok()?);
    let data = relative(member.data_offset.0)?;
    let bad_blocks = member.bad_block_log.filter(|log| log.offset > 0 && log.size > 0);
    let hole = bad_blocks.map_or((data, data), |log| {
        (i64::from(log.offset), i64::from(log.offset).saturating_add(log.size.into()))
    });
    let rooms = [(8, hole.0.min(data)), ((hole.1.max(8) + 7) & !7, data)];
    let (start, end) = rooms.into_iter().max_by_key(|(start, end)| end - start)?;
    let wanted = log_sectors(log, superblock.array.chunk);
    let sectors = u64::try_from(end - start).ok()?.min(wanted) / 8 * 8;
    let enough = log == NewLog::None || sectors >= 2 * BEHIND_SUPERBLOCK;
    (member.version != MetadataVersion::V1_0 && enough).then(|| log_area(start, sectors)).flatten()
}

/// Sectors that mdadm sets aside for a bitmap on a device (or component) of this size.
pub fn bitmap_reservation(sectors: u64) -> u64 {
    const GIB: u64 = 1 << 21;
    match sectors {
        0..128 => 0,
        s if s - 128 >= 200 * GIB => 256,
        s if s - 8 > 8 * GIB => 128,
        _ => 8,
    }
}

/// Sectors of a log: mdadm's megabyte, more for chunks that don't fit it.
pub fn log_sectors(log: NewLog, chunk: SectorCount) -> u64 {
    match log {
        NewLog::None => 0,
        NewLog::Ppl => (chunk.0 + 8).next_multiple_of(LOG_SECTORS),
        // Several batches are in it at a time, and a part is always kept free.
        NewLog::DoubleParity => (2 * chunk.0 + 8).next_multiple_of(LOG_SECTORS),
    }
}

/// A log at `offset` sectors from the superblock. `None` if it is too far or too long to be written down.
fn log_area(offset: i64, sectors: u64) -> Option<PplArea> {
    let (offset, size) = (i16::try_from(offset).ok()?, u16::try_from(sectors).ok()?);
    Some(PplArea { offset, size, multiple: sectors >= SEVERAL_RECORDS_SECTORS })
}

/// The first data sector that mdadm chooses for versions 1.1 and 1.2.
pub fn default_data_offset(device_sectors: u64, chunk: SectorCount) -> u64 {
    data_offset_behind(bitmap_reservation(device_sectors), device_sectors, chunk)
}

/// The same with `reserved` sectors between superblock and data.
fn data_offset_behind(reserved: u64, device_sectors: u64, chunk: SectorCount) -> u64 {
    let mut headroom = HEADROOM_SECTORS_MAX;
    // Four times the chunk in KiB is twice the chunk in sectors.
    while headroom * 1024 > device_sectors && headroom / 2 >= chunk.0.saturating_mul(2).max(2) {
        headroom /= 2;
    }
    (24 + reserved + headroom).next_multiple_of(DATA_ALIGNMENT)
}

/// Entries of a roles table for this many devices: as many as fill the last sector of the superblock.
pub fn roles_table_length(devices: usize) -> usize {
    (((256 + 2 * devices).next_multiple_of(512) - 256) / 2).min(DEVICES_MAX)
}

pub mod journal;
#[cfg(test)]
mod tests;
