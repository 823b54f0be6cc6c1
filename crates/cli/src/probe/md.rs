//! MD's metadata of version 1 on one device.

use std::{fmt, ops::Range};

use pinstripe_control::text::printable;
use pinstripe_md::{
    bad_blocks::BadBlocks,
    bitmap::{BitmapError, BitmapHeader, BitmapImage, HEADER_BYTES},
    superblock::{
        BitmapProblem, ErrorKind, MemberBitmap, SUPERBLOCK_BYTES_MAX, Superblock, SuperblockError,
        candidate_sectors, check_bitmaps,
    },
    units::{SECTOR_BYTES, Sector},
};
use serde::Serialize;

use super::{ProbeError, Probed};

/// MD metadata found at one of the three places.
pub struct MdFinding {
    /// Where.
    pub sector: Sector,
    /// What.
    pub superblock: Result<Metadata, SuperblockError>,
}

/// A whole superblock, and what it points to.
pub struct Metadata {
    /// The superblock.
    pub superblock: Superblock,
    /// The bitmap, where the superblock announces one, or why an array with it isn't started.
    pub bitmap: Option<Result<BitmapSummary, BitmapProblem>>,
    /// What stands where its header is to be.
    pub bitmap_head: Option<BitmapHead>,
    /// The bad-block log, where the superblock has room for one.
    pub bad_blocks: Option<Result<BadBlockSummary, String>>,
}

/// The head of a bitmap, which is compared with those of the array's other members.
#[derive(Clone)]
pub struct BitmapHead {
    /// The header.
    pub header: Result<BitmapHeader, BitmapError>,
    /// Bytes of the device's logical block.
    pub logical_block: u32,
}

impl BitmapHead {
    /// It belongs to the member with this superblock, on the device `name`.
    pub fn of_member<'a>(&self, superblock: &'a Superblock, name: String) -> MemberBitmap<'a> {
        let Self { header, logical_block } = self.clone();
        MemberBitmap { name, superblock, header, logical_block }
    }
}

/// A bitmap in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BitmapSummary {
    /// The sector of its header.
    pub sector: u64,
    /// Bytes that one bit covers.
    pub chunk_bytes: u32,
    /// Bits.
    pub bits: u64,
    /// Bits that are set: regions that may be out of sync.
    pub bits_set: u64,
    /// The events of the superblocks that it goes with.
    pub events: u64,
    /// Since when bits may have been cleared.
    pub events_cleared: u64,
    /// The bits can't be trusted: all count as set.
    pub stale: bool,
}

/// A bad-block log in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadBlockSummary {
    /// Absolute sectors of the device: first, and how many.
    pub ranges: Vec<(u64, u64)>,
}

impl MdFinding {
    /// The bytes of its magic number.
    pub fn mark(&self) -> Range<u64> {
        let start = self.sector.0 * SECTOR_BYTES;
        start..start + 4
    }
}

impl fmt::Display for MdFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.superblock {
            Ok(metadata) => {
                let array = &metadata.superblock.array;
                let (name, uuid) = (printable(&array.name.to_string()), array.set_uuid);
                write!(f, "an MD superblock of the {} array \"{name}\" (uuid {uuid})", array.level)
            }
            Err(error) => write!(f, "a damaged or unknown MD superblock ({error})"),
        }
    }
}

/// The superblocks of a device. A place without one is none. Where the medium fails at one, it may lie in the
/// data of a superblock that is found whole elsewhere; it is an error if there is none.
pub fn find(device: &Probed) -> Result<Vec<MdFinding>, ProbeError> {
    let sectors = device.size() / SECTOR_BYTES;
    let (mut found, mut unreadable) = (Vec::<MdFinding>::new(), None);
    for sector in candidate_sectors(sectors) {
        let bytes = match device.read(sector.0 * SECTOR_BYTES, SUPERBLOCK_BYTES_MAX) {
            Err(error) if error.is_of_medium() => {
                unreadable = unreadable.or(Some(error));
                continue;
            }
            read => read?,
        };
        let superblock = match Superblock::decode(&bytes, sector, sectors) {
            Ok(superblock) => Ok(follow(device, superblock)?),
            Err(error) if error.kind() == ErrorKind::NotMd => continue,
            Err(error) => Err(error),
        };
        // On the smallest devices two places are one.
        if found.iter().all(|other| other.sector != sector) {
            found.push(MdFinding { sector, superblock });
        }
    }
    let is_member = found.iter().any(|finding| finding.superblock.is_ok());
    unreadable.filter(|_| !is_member).map_or(Ok(found), Err)
}

/// Reads what the superblock points to.
fn follow(device: &Probed, superblock: Superblock) -> Result<Metadata, ProbeError> {
    let (bitmap, bitmap_head) = match superblock.bitmap_sector() {
        Some(sector) => {
            let bytes = read_bitmap(device, sector, HEADER_BYTES)?;
            let header = bytes.and_then(|bytes| BitmapHeader::decode(&bytes));
            let head = BitmapHead { header, logical_block: device.logical_block() };
            (Some(bitmap(device, &superblock, sector, &head)?), Some(head))
        }
        None => (None, None),
    };
    let bad_blocks = match (superblock.bad_block_log_sector(), superblock.member.bad_block_log) {
        (Some(_), Some(log)) if !log.in_use => Some(Ok(BadBlockSummary { ranges: Vec::new() })),
        (Some(sector), Some(log)) => {
            let length = usize::from(log.size) * 512;
            let blocks = match read_sectors(device, sector, length) {
                Err(error) if error.is_of_medium() => Err(error.to_string()),
                read => BadBlocks::decode(&read?, log.shift).map_err(|error| error.to_string()),
            };
            Some(blocks.map(|blocks| BadBlockSummary {
                ranges: blocks.ranges().iter().map(|r| (r.start, r.end - r.start)).collect(),
            }))
        }
        _ => None,
    };
    Ok(Metadata { superblock, bitmap, bitmap_head, bad_blocks })
}

fn bitmap(
    device: &Probed,
    superblock: &Superblock,
    sector: Sector,
    head: &BitmapHead,
) -> Result<Result<BitmapSummary, BitmapProblem>, ProbeError> {
    let member = head.of_member(superblock, String::new());
    if let Err((_, problem)) = check_bitmaps(&superblock.array, &[member]) {
        return Ok(Err(problem));
    }
    let length = match head.header.as_ref().map_err(Clone::clone).and_then(BitmapHeader::memory_bytes) {
        Ok(length) => length,
        Err(error) => return Ok(Err(error.into())),
    };
    let image = read_bitmap(device, sector, length)?.and_then(|bytes| BitmapImage::decode(&bytes));
    Ok(image.map_err(BitmapProblem::from).map(|image| {
        let header = image.header();
        BitmapSummary {
            sector: sector.0,
            chunk_bytes: header.chunk_bytes,
            bits: header.bit_count(),
            bits_set: image.set_bits().count() as u64,
            events: header.events,
            events_cleared: header.events_cleared,
            stale: !header.is_valid_for(superblock.array.events),
        }
    }))
}

/// Where the medium fails, an array may be started by the bitmaps of its other members.
fn read_bitmap(
    device: &Probed,
    sector: Sector,
    length: usize,
) -> Result<Result<Vec<u8>, BitmapError>, ProbeError> {
    match read_sectors(device, sector, length) {
        Err(error) if error.is_of_medium() => Ok(Err(BitmapError::Medium)),
        read => read.map(Ok),
    }
}

fn read_sectors(device: &Probed, sector: Sector, length: usize) -> Result<Vec<u8>, ProbeError> {
    // A position beyond the number space is beyond the device.
    device.read(sector.checked_bytes().unwrap_or(u64::MAX), length)
}

#[cfg(test)]
mod tests {
    use std::{rc::Rc, sync::Arc};

    use pinstripe_md::{
        identity::{SetName, Timestamp, Uuid},
        level::{Layout, Level, ParityLayout},
        placement::{InitialSync, NewArray, NewBitmap, NewDevice, NewLog},
        superblock::MetadataVersion,
        units::SectorCount,
    };
    use pinstripe_runtime::{
        Buffer, Device, DeviceError, DeviceErrorKind, DeviceInfo, DeviceSource, Memory, MemoryDevice, Shard,
        Slice, Submission, shard,
        uring::{self, RuntimeConfig, blocking},
    };

    use super::*;
    use crate::probe::Contents;

    const SECTORS: u64 = 8192;

    /// A device with some bytes that can't be read.
    #[derive(Clone)]
    struct Ailing {
        memory: Arc<Memory>,
        unreadable: Range<u64>,
        why: DeviceErrorKind,
    }

    struct AilingDevice(Rc<MemoryDevice>, Ailing);

    impl DeviceSource for Ailing {
        fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
            let device = MemoryDevice::new("ailing", Arc::clone(&self.memory), 512);
            Ok(Rc::new(AilingDevice(device, self.clone())))
        }

        fn name(&self) -> String {
            "ailing".to_owned()
        }
    }

    impl Device for AilingDevice {
        fn info(&self) -> &DeviceInfo {
            self.0.info()
        }

        fn read(&self, offset: u64, buffer: Buffer) -> Submission {
            let Ailing { unreadable, why, .. } = &self.1;
            if offset < unreadable.end && unreadable.start < offset + buffer.len() as u64 {
                return Submission::done(Err(DeviceError::of(*why)), Some(buffer));
            }
            self.0.read(offset, buffer)
        }

        fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
            self.0.write(offset, data, fua)
        }

        fn flush(&self) -> Submission {
            self.0.flush()
        }

        fn discard(&self, offset: u64, length: u64) -> Submission {
            self.0.discard(offset, length)
        }

        fn write_zeroes(&self, offset: u64, length: u64) -> Submission {
            self.0.write_zeroes(offset, length)
        }
    }

    /// A member of which the bad-block log lists something, or so it says.
    fn member() -> Superblock {
        let device = |number| NewDevice { sectors: SECTORS, uuid: Uuid([number; 16]) };
        let wish = NewArray {
            set_uuid: Uuid([7; 16]),
            name: SetName::from_bytes([b'x'; 32]),
            created: Timestamp::new(1, 0),
            level: Level::Raid5,
            layout: Layout::Parity(ParityLayout::LeftSymmetric),
            chunk: SectorCount(128),
            version: MetadataVersion::V1_2,
            bitmap: NewBitmap::None,
            initial: InitialSync::AssumeClean,
            size: None,
            data_offset: None,
            logical_block_bytes: 512,
            members: (1..4).map(device).collect(),
            spares: Vec::new(),
        };
        let mut superblock = wish.place_with(NewLog::None).unwrap().superblocks.swap_remove(0);
        superblock.member.bad_block_log.as_mut().unwrap().in_use = true;
        superblock
    }

    /// What is found on the member if these bytes can't be read: its metadata, and whether all else could be
    /// looked for.
    fn found(unreadable: Range<u64>) -> (Result<Vec<MdFinding>, ProbeError>, bool) {
        found_on(true, unreadable, DeviceErrorKind::Media)
    }

    fn found_on(
        is_member: bool,
        unreadable: Range<u64>,
        why: DeviceErrorKind,
    ) -> (Result<Vec<MdFinding>, ProbeError>, bool) {
        let memory = Memory::new(usize::try_from(SECTORS * SECTOR_BYTES).unwrap()).unwrap();
        if is_member {
            memory.copy_in(4096, &member().encode(512).unwrap()).unwrap();
        }
        let source = Ailing { memory, unreadable, why };
        let looking = uring::run(&RuntimeConfig::unpinned(1), move |_| async move {
            let info = source.attach().unwrap().info().clone();
            let here = shard::with_current(Shard::handle);
            let probed = Probed::remote("ailing".into(), Arc::new(source), &info, here);
            blocking(move || (find(&probed), Contents::of(&probed).is_ok())).await
        });
        looking.unwrap()
    }

    #[test]
    fn a_member_with_an_unreadable_sector_is_a_member_unless_its_superblock_is_there() {
        let end = SECTORS * SECTOR_BYTES;
        for unreadable in [end - 12288..end, end - 512..end, 0..512, 1024..1536] {
            let (metadata, is_looked_at) = found(unreadable.clone());
            let metadata = metadata.unwrap_or_else(|error| panic!("{unreadable:?}: {error}"));
            assert_eq!(metadata.len(), 1, "{unreadable:?}");
            assert!(metadata[0].superblock.is_ok() && is_looked_at, "{unreadable:?}");
        }
        assert!(matches!(found(4096..4608).0, Err(ProbeError::Read { .. })));
    }

    /// What can't be looked at may be a file system. Of a member it is the data, and what isn't there any
    /// more says nothing at all.
    #[test]
    fn marks_that_can_not_be_read_are_none_on_a_member_of_which_the_medium_fails_and_nowhere_else() {
        let marks = || 65536..66048;
        assert!(found_on(true, marks(), DeviceErrorKind::Media).1);
        assert!(!found_on(false, marks(), DeviceErrorKind::Media).1);
        for why in [DeviceErrorKind::Gone, DeviceErrorKind::Other, DeviceErrorKind::TimedOut] {
            assert!(!found_on(true, marks(), why).1, "{why:?}");
        }
    }

    #[test]
    fn a_bad_block_log_that_can_not_be_read_is_one_that_makes_no_sense() {
        let at = member().bad_block_log_sector().unwrap().0 * SECTOR_BYTES;
        let metadata = found(at..at + 512).0.unwrap().remove(0).superblock.unwrap();
        let why = metadata.bad_blocks.unwrap().unwrap_err();
        assert!(why.contains("can't read ailing"), "{why}");
    }
}
