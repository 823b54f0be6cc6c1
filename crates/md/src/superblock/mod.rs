//! The superblock of format 1.x: what every member says about the array and about itself.
//!
//! A superblock has two halves, because they change for different reasons. The [`ArrayRecord`] is what all
//! members say alike: which array it is, its geometry, how fresh the record is, which device plays which
//! role. The [`MemberRecord`] is what one device says about itself: where its data lies and how much of it is
//! valid. An update changes one `ArrayRecord`, puts it into every member's [`Superblock`] and encodes each.
//!
//! The feature map isn't a field. As in the kernel it is rebuilt from the state at each write. A field of a
//! feature that is off says nothing: it reads as `None`, and its old bytes stay on disk untouched. They are
//! the `residue` below, so that a superblock that was read and not changed encodes to the very same bytes.
//!
//! Three questions are kept apart. Are these bytes a superblock at all, and an undamaged one? [`decode`]
//! answers, by the kind of its error. May it be written? [`check`] answers with the kernel's own refusals
//! (docs/formats.md section 2.2), and [`encode`] asks it each time. May we serve it? [`support`] answers.
//!
//! [`decode`]: Superblock::decode
//! [`check`]: Superblock::check
//! [`encode`]: Superblock::encode
//! [`support`]: Superblock::support

mod bitmaps;
mod claims;
mod codec;
mod raw;
mod rules;
mod support;

pub use bitmaps::{BitmapProblem, MemberBitmap, check_bitmaps};
pub use claims::Claims;
use raw::RawSuperblock;
pub use rules::{EVENTS_MAX, Violation};
pub use support::{ReadOnlyReason, RefusedReason, Support};
use thiserror::Error;

use crate::identity::{SetName, Timestamp, Uuid};
use crate::level::{Layout, Level};
use crate::units::{DeviceNumber, MemberSlot, Sector, SectorCount};

/// The smallest device that can carry a superblock.
pub const DEVICE_SECTORS_MIN: u64 = 24;
/// The most entries of the roles table.
pub const DEVICES_MAX: usize = 1920;
/// Bytes to read at a candidate sector: the structure with its longest roles table, and what the kernel
/// reads.
pub const SUPERBLOCK_BYTES_MAX: usize = 4096;

/// Where the superblock lies on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MetadataVersion {
    /// 8 to 12 KiB before the end; the data begins at sector 0 where mdadm has made it.
    V1_0,
    /// At sector 0.
    V1_1,
    /// At sector 8 (byte 4096). mdadm's default.
    V1_2,
}

impl MetadataVersion {
    /// The superblock's sector on a device of this size, or `None` on a device that is too small.
    pub fn super_offset(self, device_sectors: u64) -> Option<Sector> {
        if device_sectors < DEVICE_SECTORS_MIN {
            return None;
        }
        Some(match self {
            Self::V1_0 => Sector((device_sectors - 16) & !7),
            Self::V1_1 => Sector(0),
            Self::V1_2 => Sector(8),
        })
    }

    /// The version that has its superblock at `sector` on a device of this size.
    pub fn at(sector: Sector, device_sectors: u64) -> Option<Self> {
        // On a device of 24 sectors 1.0 and 1.2 share sector 8, but 1.0 would have no room for data there.
        [Self::V1_2, Self::V1_1, Self::V1_0]
            .into_iter()
            .find(|v| v.super_offset(device_sectors) == Some(sector))
    }

    /// mdadm's name: `1.0`, `1.1` or `1.2`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1_0 => "1.0",
            Self::V1_1 => "1.1",
            Self::V1_2 => "1.2",
        }
    }
}

impl std::fmt::Display for MetadataVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The sectors where a superblock may lie, in the order of trying: 1.2, 1.1, 1.0. Empty on a device that is
/// too small. A superblock is accepted only where its own `super_offset` says it lies.
pub fn candidate_sectors(device_sectors: u64) -> impl Iterator<Item = Sector> {
    [MetadataVersion::V1_2, MetadataVersion::V1_1, MetadataVersion::V1_0]
        .into_iter()
        .filter_map(move |version| version.super_offset(device_sectors))
}

/// What a device number is to the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A member of the geometry. Two numbers carry the same slot while one replaces the other.
    Slot(MemberSlot),
    /// A spare, or no device.
    Spare,
    /// Failed and not yet removed.
    Faulty,
    /// The journal device.
    Journal,
}

/// How far the array is known to be consistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResyncOffset {
    /// Everywhere: the array was stopped or idle.
    Clean,
    /// Up to this member-relative sector; from there on parity may not match data (but see the bitmap).
    DirtyFrom(Sector),
}

/// A change of geometry under way. `delta_disks` is new minus old; `raid_disks` of the array is the larger
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reshape {
    /// The array sector that divides the new geometry from the old.
    pub position: Sector,
    /// MD's number of the new level.
    pub new_level: i32,
    /// The new layout word.
    pub new_layout: u32,
    /// The new chunk.
    pub new_chunk: SectorCount,
    /// Members won (or lost, if negative).
    pub delta_disks: i32,
    /// With as many members as before: whether the reshape runs from the end down.
    pub backwards: bool,
}

/// What all members of an array say alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayRecord {
    /// The array's identity.
    pub set_uuid: Uuid,
    /// The array's name.
    pub name: SetName,
    /// When it was created.
    pub created: Timestamp,
    /// When this record was written.
    pub updated: Timestamp,
    /// The level.
    pub level: Level,
    /// The layout; it belongs to the level.
    pub layout: Layout,
    /// Used sectors per member; 0 for RAID0, where each member gives what it has.
    pub size: SectorCount,
    /// The chunk; 0 for RAID1.
    pub chunk: SectorCount,
    /// Members of the geometry.
    pub raid_disks: u32,
    /// How fresh the record is: higher is newer (but see [`event_is_current`]).
    pub events: u64,
    /// Clean, or dirty from where.
    pub resync_offset: ResyncOffset,
    /// The role of each device number; `max_dev` entries.
    pub roles: Vec<Role>,
    /// The internal bitmap, in sectors from each member's superblock.
    pub bitmap_offset: Option<i32>,
    /// Whether the array has a journal device. Not together with a bitmap or PPL.
    pub journal: bool,
    /// Whether the bitmap belongs to a cluster.
    pub clustered: bool,
    /// The reshape under way, if any.
    pub reshape: Option<Reshape>,
    /// The logical block size in bytes that kernels from 6.19 on record at byte 224; 0 is unknown, and older
    /// kernels accept nothing else. Never set by us, never lost either.
    pub logical_block_size: u32,
    /// The array is dirty, and only its double-parity log can make it clean: MD must not assemble it.
    pub needs_double_parity_log: bool,
    /// Feature bits that no specification known to us names. They make the array refused, and can't be
    /// written.
    pub unknown_features: u32,
}

/// The partial parity log's place, in sectors from the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PplArea {
    /// Where the area begins.
    pub offset: i16,
    /// How long it is.
    pub size: u16,
    /// Whether records follow each other around the area, rather than one overwriting the last.
    pub multiple: bool,
}

impl PplArea {
    /// Whether what one write to a stripe with chunks of `chunk` may have to log fits: a chunk and a header.
    pub fn takes_chunks_of(self, chunk: SectorCount) -> bool {
        chunk.0 + crate::ppl::HEADER_BYTES as u64 / crate::units::SECTOR_BYTES <= u64::from(self.size)
    }
}

/// The bad-block log's place, in sectors from the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BadBlockLog {
    /// Where the log begins.
    pub offset: i32,
    /// How long it is, at most 8 sectors.
    pub size: u16,
    /// The log counts in units of `1 << shift` sectors, while it lists something: what is listed first is
    /// listed in sectors, as MD has it.
    pub shift: u8,
    /// Whether the log lists anything (feature 0x8). If not, what stands there is ignored.
    pub in_use: bool,
}

impl BadBlockLog {
    /// Whether it counts in sectors, so that a sector is listed without its neighbours.
    pub fn counts_in_sectors(&self) -> bool {
        self.shift == 0 || !self.in_use
    }

    /// It lists something from now on, or nothing any more. Whether it lists the first.
    pub fn set_in_use(&mut self, in_use: bool) -> bool {
        if !self.in_use {
            self.shift = 0;
        }
        !std::mem::replace(&mut self.in_use, in_use) && in_use
    }
}

/// The byte of device flags.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceFlags(pub u8);

/// What one device says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberRecord {
    /// Where the superblock lies.
    pub version: MetadataVersion,
    /// The superblock's sector.
    pub super_offset: Sector,
    /// The device's size. It isn't on disk, but the rules need it.
    pub device_sectors: u64,
    /// The first data sector.
    pub data_offset: Sector,
    /// Usable sectors from there; at least the array's `size`.
    pub data_size: SectorCount,
    /// This device's index in the roles table. Not its slot.
    pub dev_number: DeviceNumber,
    /// The device's identity.
    pub device_uuid: Uuid,
    /// Device flags.
    pub flags: DeviceFlags,
    /// Member-relative: below it the member is valid, from there on it is still being rebuilt. `None`: valid.
    pub recovery_offset: Option<Sector>,
    /// Whether that recovery is limited to the set bits of the bitmap.
    pub recovery_by_bitmap: bool,
    /// Whether this device is to take the place of another, still live one with the same slot.
    pub replacement: bool,
    /// A journal device's tail, relative to `data_offset`.
    pub journal_tail: Option<Sector>,
    /// The partial parity log.
    pub ppl: Option<PplArea>,
    /// Where the double-parity log lies. Unless the array needs it (then it is certain), a value that only
    /// looks like one may stand here: ask the area itself.
    pub double_parity_log: Option<PplArea>,
    /// The bad-block log.
    pub bad_block_log: Option<BadBlockLog>,
    /// In a reshape: the new data offset minus the old one.
    pub new_offset: Option<i32>,
    /// Read errors that were corrected.
    pub corrected_reads: u32,
}

/// One member's superblock: a validated value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// What all members say.
    pub array: ArrayRecord,
    /// What this one says about itself.
    pub member: MemberRecord,
    /// The bytes it was read from, for the fields that currently say nothing.
    residue: RawSuperblock,
}

/// What kind of failure a [`SuperblockError`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// There is no superblock here; nothing is wrong with that.
    NotMd,
    /// There was one, and it is damaged.
    Corrupt,
    /// It is whole, and means something that we (and Linux 6.12) don't know.
    Unsupported,
}

/// Why bytes could not be read as a superblock.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SuperblockError {
    /// No magic number.
    #[error("no MD superblock here")]
    NoMagic,
    /// A superblock that says it lies elsewhere: another format's, or a device that changed its size.
    #[error("the superblock at {found} records {claimed} as its place: the device was resized or copied")]
    Misplaced {
        /// Where it was found.
        found: Sector,
        /// Where it says it lies.
        claimed: Sector,
    },
    /// The bytes end before the superblock does.
    #[error("the superblock needs {needed} bytes, but only {present} could be read")]
    Truncated {
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        present: usize,
    },
    /// The roles table is longer than MD allows.
    #[error("the superblock claims {0} roles, more than the 1920 that MD allows")]
    TooManyRoles(u32),
    /// The checksum doesn't match.
    #[error("the superblock's checksum is {stored:08x}, but its bytes give {computed:08x}: it is damaged")]
    Checksum {
        /// The checksum on disk.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// A major version other than 1.
    #[error("metadata of major version {0} is not supported, only 1.0, 1.1 and 1.2 are")]
    MajorVersion(u32),
    /// Bytes that must be zero are not: a newer format.
    #[error(
        "reserved byte {0} of the superblock is not zero: it was written by a newer MD than is known here"
    )]
    ReservedNotZero(usize),
    /// A level without a name.
    #[error("level {0} is not known")]
    UnknownLevel(i32),
    /// A layout that the level doesn't have.
    #[error("layout {word} of {level} is not known")]
    UnknownLayout {
        /// The level.
        level: Level,
        /// The layout word.
        word: u32,
    },
    /// A reserved role.
    #[error("{device} has the reserved role {role:#x}")]
    ReservedRole {
        /// The device with this role.
        device: DeviceNumber,
        /// The role on disk.
        role: u16,
    },
    /// Whole, but it breaks a rule that each superblock keeps.
    #[error("the superblock contradicts itself: {0}")]
    Rule(#[from] Violation),
}

impl SuperblockError {
    /// Whether there is nothing, something damaged, or something unknown.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoMagic | Self::Misplaced { .. } => ErrorKind::NotMd,
            Self::MajorVersion(_)
            | Self::ReservedNotZero(_)
            | Self::UnknownLevel(_)
            | Self::UnknownLayout { .. }
            | Self::ReservedRole { .. } => ErrorKind::Unsupported,
            Self::Truncated { .. } | Self::TooManyRoles(_) | Self::Checksum { .. } | Self::Rule(_) => {
                ErrorKind::Corrupt
            }
        }
    }
}

/// Whether a member with `mine` events is current where the freshest has `max`.
///
/// One event less is current: a stopping or idle array may have stepped the counter back by one, and spares
/// are sometimes skipped. Such a member's own roles table is old, so its role comes from the freshest
/// superblock ([`Superblock::role_in`]).
pub fn event_is_current(max: u64, mine: u64) -> bool {
    mine.saturating_add(1) >= max
}

impl ArrayRecord {
    /// The role of a device number. Numbers outside the table and slots outside the geometry are spares, as
    /// the kernel takes them.
    pub fn role_of(&self, device: DeviceNumber) -> Role {
        match self.roles.get(usize::from(device.0)) {
            Some(Role::Slot(slot)) if u32::from(slot.0) >= self.raid_disks => Role::Spare,
            Some(role) => *role,
            None => Role::Spare,
        }
    }

    /// The device numbers that have this slot: none while it is missing, two during a replacement.
    pub fn devices_in(&self, slot: MemberSlot) -> impl Iterator<Item = DeviceNumber> {
        (0..)
            .zip(&self.roles)
            .filter(move |(_, role)| **role == Role::Slot(slot))
            .map(|(n, _)| DeviceNumber(n))
    }

    /// A device number for a new device: free in the table, not below the members' own numbers, and not
    /// `in_use` by a device that is at hand (a stale member keeps its number, and would take the newcomer's
    /// role). `None` when the table is full.
    pub fn free_device_number(&self, in_use: &[DeviceNumber]) -> Option<DeviceNumber> {
        let first = usize::try_from(self.raid_disks).ok()?;
        (0u16..)
            .zip(&self.roles)
            .skip(first)
            .map(|(number, role)| (DeviceNumber(number), *role))
            .find(|(number, role)| *role == Role::Spare && !in_use.contains(number))
            .map(|(number, _)| number)
    }

    /// Sectors per member that the geometry uses: `size` in whole chunks.
    pub fn component_sectors(&self) -> SectorCount {
        self.size.round_down(self.chunk)
    }

    /// Whether the array was left dirty.
    pub fn is_dirty(&self) -> bool {
        self.resync_offset != ResyncOffset::Clean
    }
}

impl Superblock {
    /// A superblock that was never on disk.
    pub fn new(array: ArrayRecord, member: MemberRecord) -> Self {
        Self { array, member, residue: RawSuperblock::zeroed() }
    }

    /// A superblock that was never on disk, of one more device of the same array. All devices say the same of
    /// the array, and MD compares the number of the layout even where the level has none.
    pub fn of_another(&self, member: MemberRecord) -> Self {
        let residue = RawSuperblock { layout: self.residue.layout, ..RawSuperblock::zeroed() };
        Self { array: self.array.clone(), member, residue }
    }

    /// This device's role as its own table has it. Valid only if this superblock is the freshest; otherwise
    /// ask [`role_in`](Self::role_in).
    pub fn own_role(&self) -> Role {
        self.array.role_of(self.member.dev_number)
    }

    /// This device's role as the freshest superblock of the array has it.
    pub fn role_in(&self, freshest: &ArrayRecord) -> Role {
        freshest.role_of(self.member.dev_number)
    }

    /// The freshest superblock of an array is the one of which this is largest. Those of spares come last:
    /// where an array has lost too many members, a kernel goes on to write a spare's superblock alone, with
    /// ever more events, and no member has missed anything. (Kernels from 5.5 on and mdadm do the same.) Of
    /// one update there is one table, but where mdadm has forced an array together: it gives the members that
    /// it takes back the others' events, and enters them in one of the others' superblocks alone. Theirs
    /// still say what they said when they fell out, and when that was.
    pub fn freshness(&self) -> (bool, u64, Timestamp, usize) {
        let has_role = matches!(self.own_role(), Role::Slot(_) | Role::Journal);
        let seats = self.array.roles.iter().filter(|role| matches!(role, Role::Slot(_))).count();
        (has_role, self.array.events, self.array.updated, seats)
    }

    /// Whether both belong to one array, by what may not differ among members: identity, level, layout
    /// and chunk.
    pub fn same_array(&self, other: &Self) -> Result<(), Disagreement> {
        let (a, b) = (&self.array, &other.array);
        if a.set_uuid != b.set_uuid {
            return Err(Disagreement::SetUuid { one: a.set_uuid, other: b.set_uuid });
        }
        if a.level != b.level {
            return Err(Disagreement::Level { one: a.level, other: b.level });
        }
        if a.layout != b.layout {
            return Err(Disagreement::Layout { one: a.layout, other: b.layout });
        }
        if a.chunk != b.chunk {
            return Err(Disagreement::Chunk { one: a.chunk, other: b.chunk });
        }
        Ok(())
    }

    /// The sector where the bitmap's header lies on this member.
    pub fn bitmap_sector(&self) -> Option<Sector> {
        self.member.super_offset.checked_offset(i64::from(self.array.bitmap_offset?))
    }

    /// The sector where the bad-block log lies on this member.
    pub fn bad_block_log_sector(&self) -> Option<Sector> {
        self.member.super_offset.checked_offset(i64::from(self.member.bad_block_log?.offset))
    }

    /// The sector where the double-parity log lies on this member.
    pub fn double_parity_log_sector(&self) -> Option<Sector> {
        self.member.super_offset.checked_offset(i64::from(self.member.double_parity_log?.offset))
    }

    /// The sector where the partial parity log lies on this member.
    pub fn ppl_sector(&self) -> Option<Sector> {
        self.member.super_offset.checked_offset(i64::from(self.member.ppl?.offset))
    }
}

/// In what two superblocks that should be one array's differ.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Disagreement {
    /// Different arrays.
    #[error("the devices belong to different arrays: {one} and {other}")]
    SetUuid {
        /// The one.
        one: Uuid,
        /// The other.
        other: Uuid,
    },
    /// Different levels.
    #[error("the members disagree about the level: {one} and {other}")]
    Level {
        /// The one.
        one: Level,
        /// The other.
        other: Level,
    },
    /// Different layouts.
    #[error("the members disagree about the layout: {one} and {other}")]
    Layout {
        /// The one.
        one: Layout,
        /// The other.
        other: Layout,
    },
    /// Different chunks.
    #[error("the members disagree about the chunk: {one} and {other}")]
    Chunk {
        /// The one.
        one: SectorCount,
        /// The other.
        other: SectorCount,
    },
}

#[cfg(test)]
mod tests;
