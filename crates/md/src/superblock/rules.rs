//! The rules that each superblock keeps (docs/formats.md section 2.2): what the kernel would refuse to read,
//! and what would make a region of the device belong to two things at once.
//!
//! They are asked at both ends. A superblock that breaks one isn't accepted, and one of ours that would break
//! one isn't written: an error here is a bug found before it is on disk.

use std::ops::Range;

use thiserror::Error;

use super::codec::ROLE_SLOT_END;
use super::{BadBlockLog, DEVICE_SECTORS_MIN, DEVICES_MAX, MetadataVersion, Role, Superblock};
use crate::bitmap::BitmapHeader;
use crate::level::{Layout, Level};
use crate::units::{SECTOR_BYTES, SectorCount, sector_range};

/// The most events that an array is believed to have had.
pub const EVENTS_MAX: u64 = u64::MAX >> 1;
/// The smallest `data_size` the kernel takes.
const DATA_SECTORS_MIN: u64 = 10;
/// The longest bad-block log, in sectors.
const BAD_BLOCK_LOG_SECTORS_MAX: u16 = 8;
/// The shortest chunk of a level with parity, in sectors: 4 KiB.
const PARITY_CHUNK_SECTORS_MIN: u64 = 8;
/// The shortest PPL area: a header and one page.
const PPL_SECTORS_MIN: u16 = 16;

/// A rule that a superblock breaks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    /// Unknown feature bits.
    #[error("unknown feature bits {0:#x}")]
    UnknownFeatures(u32),
    /// More events than there can have been.
    #[error("{0} events, more than any array comes to")]
    Events(u64),
    /// Too many entries in the roles table.
    #[error("{0} roles, more than the 1920 that MD allows")]
    TooManyRoles(usize),
    /// A slot that the number space of roles doesn't have.
    #[error("slot {0} is beyond what a roles table can say")]
    RoleOutOfRange(u16),
    /// A device number that no table has.
    #[error("device number {0} is beyond every roles table")]
    DeviceNumber(u32),
    /// The logical block isn't a power of two of at least a sector.
    #[error("a logical block of {0} bytes is no power of two from 512 to 4096")]
    LogicalBlock(u64),
    /// The device is too small, or the superblock isn't where its version puts it.
    #[error("a superblock of version {version} can't lie at sector {super_offset} of {device_sectors}")]
    SuperOffset {
        /// The metadata version.
        version: MetadataVersion,
        /// Where it says it lies.
        super_offset: u64,
        /// The device's size.
        device_sectors: u64,
    },
    /// Too little room for data.
    #[error("room for data of {0} sectors; the kernel needs at least 10")]
    DataTooSmall(u64),
    /// The data region leaves the device or runs into the superblock behind it.
    #[error("the data region {data:?} (sectors) leaves the {room} sectors that the device has for it")]
    DataBeyondDevice {
        /// The data region.
        data: Range<u64>,
        /// Where it must end.
        room: u64,
    },
    /// Two things on one place.
    #[error("the {first} and the {second} overlap on the device")]
    Overlap {
        /// The one.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// A region outside the device.
    #[error("the {0} lies outside the device")]
    OutsideDevice(&'static str),
    /// The member is smaller than the array needs.
    #[error("the array uses {size} sectors of each member, but this one has {data_size}")]
    MemberTooSmall {
        /// Used sectors per member.
        size: u64,
        /// What this one has.
        data_size: u64,
    },
    /// A layout of another level.
    #[error("layout '{layout}' doesn't belong to {level}")]
    LayoutOfOtherLevel {
        /// The level.
        level: Level,
        /// The layout.
        layout: Layout,
    },
    /// Feature 0x1000 on a level other than 0.
    #[error("{0} carries the flag of RAID0's layout")]
    Raid0LayoutElsewhere(Level),
    /// A chunk that the level can't have.
    #[error(
        "a chunk of {chunk} sectors on {level}: with parity a power of two of at least 8 is needed, else not 0"
    )]
    Chunk {
        /// The level.
        level: Level,
        /// The chunk in sectors.
        chunk: u64,
    },
    /// Too few or too many members.
    #[error("{raid_disks} members on {level}")]
    RaidDisks {
        /// The level.
        level: Level,
        /// How many members.
        raid_disks: u32,
    },
    /// PPL together with something it excludes.
    #[error("a partial parity log together with {0}")]
    PplWithOther(&'static str),
    /// Both PPL flags.
    #[error("both flags of the partial parity log are set")]
    BothPplFlags,
    /// PPL on a level other than 5, or in too small an area.
    #[error("a partial parity log of {size} sectors on {level}: it needs raid5 and 16 sectors")]
    Ppl {
        /// The level.
        level: Level,
        /// The area's size.
        size: u16,
    },
    /// A double-parity log where there can be none, or none where one is needed.
    #[error(
        "a double-parity log needs raid6 without bitmap and journal, and a place between superblock and data"
    )]
    DoubleParityLog,
    /// Journal and bitmap.
    #[error("a journal together with a bitmap")]
    JournalWithBitmap,
    /// A journal role, but no journal.
    #[error("a device has the journal's role, but the array has no journal")]
    JournalRoleAlone,
    /// Tail and recovery offset share one field.
    #[error("one device can't have both a journal tail and a recovery offset")]
    TailAndRecovery,
    /// A bad-block log that MD can't have.
    #[error("a bad-block log at offset {offset} with {size} sectors: it needs an offset and 1 to 8 sectors")]
    BadBlockLog {
        /// Its offset from the superblock.
        offset: i32,
        /// Its length.
        size: u16,
    },
    /// A bitmap at the superblock itself.
    #[error("a bitmap at offset 0 from the superblock")]
    BitmapOffset,
    /// The backward flag without a reshape.
    #[error("the flag for the reshape's direction is set, but there is no reshape")]
    ReshapeFlagAlone,
    /// A reshape from or to a geometry without members.
    #[error("a reshape of {raid_disks} members by {delta_disks}")]
    ReshapeMembers {
        /// Members now.
        raid_disks: u32,
        /// The change.
        delta_disks: i32,
    },
    /// The resync offset has the value that means clean.
    #[error("a dirty array from the last sector on can't be told from a clean one")]
    ResyncOffset,
}

type Result<T = ()> = std::result::Result<T, Violation>;

impl Superblock {
    /// Whether this superblock may be written, padded to logical blocks of `logical_block_bytes`: all that
    /// Linux 6.12 refuses is refused here, and regions that overlap too.
    pub fn check(&self, logical_block_bytes: u64) -> Result {
        if self.array.unknown_features != 0 {
            return Err(Violation::UnknownFeatures(self.array.unknown_features));
        }
        if !logical_block_bytes.is_power_of_two() || !(512..=4096).contains(&logical_block_bytes) {
            return Err(Violation::LogicalBlock(logical_block_bytes));
        }
        self.rules(logical_block_bytes)
    }

    /// The rules that a superblock from elsewhere keeps too.
    pub(super) fn rules(&self, logical_block_bytes: u64) -> Result {
        self.roles_are_possible()?;
        // One is added with every update (C35).
        if self.array.events > EVENTS_MAX {
            return Err(Violation::Events(self.array.events));
        }
        self.geometry_is_possible()?;
        self.features_go_together()?;
        self.data_is_in_place(logical_block_bytes)?;
        self.side_regions_are_free(logical_block_bytes)
    }

    fn roles_are_possible(&self) -> Result {
        let array = &self.array;
        if array.roles.len() > DEVICES_MAX {
            return Err(Violation::TooManyRoles(array.roles.len()));
        }
        for role in &array.roles {
            match role {
                Role::Slot(slot) if slot.0 >= ROLE_SLOT_END => return Err(Violation::RoleOutOfRange(slot.0)),
                Role::Journal if !array.journal => return Err(Violation::JournalRoleAlone),
                _ => {}
            }
        }
        Ok(())
    }

    fn geometry_is_possible(&self) -> Result {
        let array = &self.array;
        let (level, chunk, raid_disks) = (array.level, array.chunk.0, array.raid_disks);
        if !array.layout.belongs_to(level) {
            return Err(Violation::LayoutOfOtherLevel { level, layout: array.layout });
        }
        let chunk_is_possible = match level {
            Level::Raid4 | Level::Raid5 | Level::Raid6 => {
                chunk.is_power_of_two() && chunk >= PARITY_CHUNK_SECTORS_MIN
            }
            Level::Raid10 => chunk.is_power_of_two(),
            Level::Raid0 => chunk != 0,
            Level::Raid1 | Level::Linear | Level::Multipath => true,
        };
        if !chunk_is_possible || u32::try_from(chunk).is_err() {
            return Err(Violation::Chunk { level, chunk });
        }
        if raid_disks < level.members_min() || raid_disks > u32::from(ROLE_SLOT_END) {
            return Err(Violation::RaidDisks { level, raid_disks });
        }
        if let Some(reshape) = array.reshape {
            let before = i64::from(raid_disks) - i64::from(reshape.delta_disks.max(0));
            let after = i64::from(raid_disks) + i64::from(reshape.delta_disks.min(0));
            if before < 1 || after < 1 || u32::try_from(reshape.new_chunk.0).is_err() {
                return Err(Violation::ReshapeMembers { raid_disks, delta_disks: reshape.delta_disks });
            }
        }
        if array.resync_offset == super::ResyncOffset::DirtyFrom(crate::units::Sector(u64::MAX)) {
            return Err(Violation::ResyncOffset);
        }
        Ok(())
    }

    fn features_go_together(&self) -> Result {
        let (array, member) = (&self.array, &self.member);
        if let Some(ppl) = member.ppl {
            if array.bitmap_offset.is_some() {
                return Err(Violation::PplWithOther("a bitmap"));
            }
            if array.journal {
                return Err(Violation::PplWithOther("a journal"));
            }
            if array.level != Level::Raid5 || ppl.size < PPL_SECTORS_MIN {
                return Err(Violation::Ppl { level: array.level, size: ppl.size });
            }
        }
        if let Some(log) = member.double_parity_log
            && (array.level != Level::Raid6
                || array.bitmap_offset.is_some()
                || array.journal
                || log.offset < 8)
        {
            return Err(Violation::DoubleParityLog);
        }
        if array.needs_double_parity_log && member.double_parity_log.is_none() {
            return Err(Violation::DoubleParityLog);
        }
        if array.journal && array.bitmap_offset.is_some() {
            return Err(Violation::JournalWithBitmap);
        }
        if member.journal_tail.is_some() && member.recovery_offset.is_some() {
            return Err(Violation::TailAndRecovery);
        }
        if array.bitmap_offset == Some(0) {
            return Err(Violation::BitmapOffset);
        }
        if let Some(BadBlockLog { offset, size, in_use, .. }) = member.bad_block_log
            && (size > BAD_BLOCK_LOG_SECTORS_MAX || (in_use && (offset == 0 || size == 0)))
        {
            return Err(Violation::BadBlockLog { offset, size });
        }
        Ok(())
    }

    fn data_is_in_place(&self, logical_block_bytes: u64) -> Result {
        let (array, member) = (&self.array, &self.member);
        let (version, super_offset) = (member.version, member.super_offset);
        if member.device_sectors < DEVICE_SECTORS_MIN
            || version.super_offset(member.device_sectors) != Some(super_offset)
        {
            let device_sectors = member.device_sectors;
            return Err(Violation::SuperOffset { version, super_offset: super_offset.0, device_sectors });
        }
        if member.data_size.0 < DATA_SECTORS_MIN {
            return Err(Violation::DataTooSmall(member.data_size.0));
        }
        let room = if version == MetadataVersion::V1_0 { super_offset.0 } else { member.device_sectors };
        let offsets = [Some(member.data_offset), self.data_offset_after_reshape()?];
        for data_offset in offsets.into_iter().flatten() {
            let data = sector_range(data_offset, member.data_size);
            let leaves = data_offset.checked_add(member.data_size).is_none_or(|end| end.0 > room);
            // During a reshape the new region may be promised before the old one has moved out of its way.
            if leaves && data_offset == member.data_offset {
                return Err(Violation::DataBeyondDevice { data, room });
            }
            if overlap(&data, &self.superblock_region(logical_block_bytes)) {
                return Err(Violation::Overlap { first: "superblock", second: "data region" });
            }
        }
        if version != MetadataVersion::V1_0 && member.data_offset < super_offset {
            return Err(Violation::Overlap { first: "superblock", second: "data region" });
        }
        if matches!(self.own_role(), Role::Slot(_)) && array.size > member.data_size {
            return Err(Violation::MemberTooSmall { size: array.size.0, data_size: member.data_size.0 });
        }
        Ok(())
    }

    fn data_offset_after_reshape(&self) -> Result<Option<crate::units::Sector>> {
        let Some(change) = self.member.new_offset else { return Ok(None) };
        let moved = self.member.data_offset.checked_offset(i64::from(change));
        moved.map(Some).ok_or(Violation::OutsideDevice("data region after the reshape"))
    }

    /// The bitmap, the logs and the superblock each have their own place, none of it in the data region.
    fn side_regions_are_free(&self, logical_block_bytes: u64) -> Result {
        let mut placed: Vec<(&'static str, Range<u64>)> = Vec::new();
        for (name, region) in self.regions(logical_block_bytes) {
            let region = region
                .filter(|r| r.end <= self.member.device_sectors)
                .ok_or(Violation::OutsideDevice(name))?;
            if let Some((first, _)) = placed.iter().find(|(_, other)| overlap(other, &region)) {
                return Err(Violation::Overlap { first, second: name });
            }
            placed.push((name, region));
        }
        Ok(())
    }

    /// How many bytes of a bitmap with this header are written to a device with logical blocks of so many:
    /// whole pages; where something lies closer behind it, whole blocks as far as there is room. `None` if
    /// it would run into that.
    ///
    /// A superblock only says where a bitmap begins. How long it is stands in its header, which has no
    /// checksum.
    pub fn bitmap_bytes(&self, header: &BitmapHeader, logical_block_bytes: u64) -> Option<u64> {
        let start = self.bitmap_sector()?.0;
        let begins = self.regions(SECTOR_BYTES).into_iter().filter_map(|(_, region)| Some(region?.start));
        let end = begins.filter(|begin| *begin > start).fold(self.member.device_sectors, u64::min);
        let room = end.saturating_sub(start).saturating_mul(SECTOR_BYTES);
        let room = room - room % logical_block_bytes;
        let pages = header.sectors().checked_bytes()?;
        (header.byte_count() <= room).then_some(pages.min(room))
    }

    /// All that has a place on the device; no place if it is outside of all that can be counted.
    fn regions(&self, logical_block_bytes: u64) -> Vec<(&'static str, Option<Range<u64>>)> {
        let member = &self.member;
        let mut regions = vec![
            ("superblock", Some(self.superblock_region(logical_block_bytes))),
            ("data region", Some(sector_range(member.data_offset, member.data_size))),
        ];
        if self.array.bitmap_offset.is_some() {
            // How long it is stands in its header: see `bitmap_bytes`.
            regions.push(("bitmap", self.bitmap_sector().map(|s| sector_range(s, SectorCount(1)))));
        }
        if let Some(ppl) = member.ppl {
            let length = SectorCount(u64::from(ppl.size));
            regions.push(("partial parity log", self.ppl_sector().map(|s| sector_range(s, length))));
        }
        if let Some(log) = member.double_parity_log {
            let length = SectorCount(u64::from(log.size));
            let place = self.double_parity_log_sector().map(|s| sector_range(s, length));
            regions.push(("double-parity log", place));
        }
        if let Some(log) = member.bad_block_log.filter(|log| log.offset != 0 && log.size != 0) {
            let length = SectorCount(u64::from(log.size));
            regions.push(("bad-block log", self.bad_block_log_sector().map(|s| sector_range(s, length))));
        }
        regions
    }

    fn superblock_region(&self, logical_block_bytes: u64) -> Range<u64> {
        let length = SectorCount(self.padded_bytes(logical_block_bytes) / SECTOR_BYTES);
        sector_range(self.member.super_offset, length)
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}
