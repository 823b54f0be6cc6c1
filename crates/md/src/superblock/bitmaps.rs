//! Whether the bitmaps of an array's members can be used.
//!
//! A bitmap's header has no checksum, and what one says would be written to all members. So one that is used
//! must be of this array and fit its device, and all of those must say the same. What a damaged one would say
//! isn't known: all bits count as set then.

use thiserror::Error;

use super::{ArrayRecord, Superblock};
use crate::bitmap::{BitmapError, BitmapHeader};

/// What helps against a damaged header.
const ADVICE: &str = "Leave that device out, with --run, and add it again; if the bitmaps of all members are damaged, have the array assembled once by mdadm --assemble --update=no-bitmap";

/// The bitmap of a member, as it was read.
pub struct MemberBitmap<'a> {
    /// The device's name.
    pub name: String,
    /// The member's superblock, which announces the bitmap.
    pub superblock: &'a Superblock,
    /// What stands at that place.
    pub header: Result<BitmapHeader, BitmapError>,
    /// Bytes of the device's logical block.
    pub logical_block: u32,
}

/// Why a member's bitmap can't be used. An array that has no other isn't started.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BitmapProblem {
    /// There is none that can be read.
    #[error("the bitmap can't be read: {0}")]
    Unreadable(#[from] BitmapError),
    /// It says that it belongs to another array, or to members of another size.
    #[error("the bitmap is not this array's. {ADVICE}")]
    Foreign,
    /// By its own header it is longer than its place.
    #[error(
        "by its header the bitmap has {bytes} bytes, and would run into what lies behind it: the header is damaged. {ADVICE}"
    )]
    Length {
        /// What the header makes of it.
        bytes: u64,
    },
    /// A bit covers another length than in the bitmaps of other members; fewer agree with this one.
    #[error(
        "by its header a bit of the bitmap covers {bytes} bytes, but on {other} {other_bytes}: one of the headers is damaged. {ADVICE}"
    )]
    Differs {
        /// What a bit covers.
        bytes: u32,
        /// Another device.
        other: String,
        /// What a bit covers there.
        other_bytes: u32,
    },
}

/// Looks at the bitmaps of an array's current members. Gives what is wrong with each, of those that are
/// damaged beside a sound one; the others agree. The error, if there is none that can be believed, is the
/// first problem, with the device's name.
pub fn check_bitmaps(
    array: &ArrayRecord,
    bitmaps: &[MemberBitmap<'_>],
) -> Result<Vec<Option<BitmapProblem>>, (String, BitmapProblem)> {
    let checked = || bitmaps.iter().map(|bitmap| (bitmap.name.clone(), bitmap.check(array)));
    let sound: Vec<(String, u32)> =
        checked().filter_map(|(name, header)| Some((name, header.ok()?.chunk_bytes))).collect();
    let agreeing = |chunk: u32| sound.iter().filter(|(_, other)| *other == chunk).count();
    let usual = sound.iter().max_by_key(|(_, chunk)| agreeing(*chunk));
    let is_unclear = |chunk: u32, usual: u32| chunk != usual && agreeing(chunk) == agreeing(usual);
    let mut problems = Vec::new();
    for (name, header) in checked() {
        let problem = match (header, usual) {
            (Err(problem), Some(_)) if !problem.is_of_another_kind() => Some(problem),
            (Err(problem), _) => return Err((name, problem)),
            (Ok(header), Some((other, usual))) if header.chunk_bytes != *usual => {
                let (bytes, other_bytes) = (header.chunk_bytes, *usual);
                let differs = BitmapProblem::Differs { bytes, other: other.clone(), other_bytes };
                if is_unclear(bytes, *usual) {
                    return Err((name, differs));
                }
                Some(differs)
            }
            (Ok(_), _) => None,
        };
        problems.push(problem);
    }
    Ok(problems)
}

impl BitmapProblem {
    /// Whether what wrote it may mean something else by its bits, or be another host.
    fn is_of_another_kind(&self) -> bool {
        matches!(self, Self::Unreadable(BitmapError::Unsupported(_)))
    }
}

impl MemberBitmap<'_> {
    fn check(&self, array: &ArrayRecord) -> Result<&BitmapHeader, BitmapProblem> {
        let header = self.header.as_ref().map_err(Clone::clone)?;
        if header.set_uuid != array.set_uuid
            || header.sync_size.round_down(array.chunk) != array.component_sectors()
        {
            // Bits of other regions: a write would look for its bit where there is none.
            return Err(BitmapProblem::Foreign);
        }
        if self.superblock.bitmap_bytes(header, self.logical_block.into()).is_none() {
            return Err(BitmapProblem::Length { bytes: header.byte_count() });
        }
        header.memory_bytes()?;
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        identity::{Timestamp, Uuid},
        level::{Layout, Level, ParityLayout},
        placement::{InitialSync, NewArray, NewBitmap, NewDevice, PlacedArray},
        superblock::MetadataVersion,
        units::{Sector, SectorCount},
    };

    fn placed(sectors: u64, chunk_bytes: u32) -> PlacedArray {
        let array = NewArray {
            set_uuid: Uuid([5; 16]),
            name: "host:new".parse().unwrap(),
            created: Timestamp::new(1_800_000_000, 5),
            level: Level::Raid5,
            layout: Layout::Parity(ParityLayout::LeftSymmetric),
            chunk: SectorCount(32),
            version: MetadataVersion::V1_2,
            bitmap: NewBitmap::Internal { chunk_bytes: Some(chunk_bytes) },
            initial: InitialSync::AssumeClean,
            size: None,
            data_offset: None,
            logical_block_bytes: 512,
            members: vec![NewDevice { sectors, uuid: Uuid([9; 16]) }; 3],
            spares: vec![],
        };
        array.place().unwrap()
    }

    type Found = Result<BitmapHeader, BitmapError>;

    /// What is said of the bitmaps where the headers of some members are changed.
    fn check_found(
        placed: &PlacedArray,
        change: impl Fn(usize, BitmapHeader) -> Found,
    ) -> Result<Vec<Option<BitmapProblem>>, (String, BitmapProblem)> {
        let of_member = |(number, superblock)| {
            let header = change(number, placed.bitmap.as_ref().unwrap().header().clone());
            MemberBitmap { name: format!("sd{number}"), superblock, header, logical_block: 512 }
        };
        let bitmaps: Vec<_> = placed.superblocks.iter().enumerate().map(of_member).collect();
        check_bitmaps(&placed.superblocks[0].array, &bitmaps)
    }

    /// The first problem, of an array that can be started or not.
    fn check(
        placed: &PlacedArray,
        change: impl Fn(usize, &mut BitmapHeader),
    ) -> Option<(String, BitmapProblem)> {
        let checked = check_found(placed, |number, mut header| {
            change(number, &mut header);
            Ok(header)
        });
        let first = |problems: Vec<Option<BitmapProblem>>| {
            let mut named = problems.into_iter().enumerate();
            named.find_map(|(number, problem)| Some((format!("sd{number}"), problem?)))
        };
        checked.map_or_else(Some, first)
    }

    #[test]
    fn bitmaps_that_agree_and_fit_are_used() {
        assert_eq!(check(&placed(24576, 65536), |_, _| {}), None);
    }

    #[test]
    fn the_bitmap_of_another_array_or_of_another_size_is_foreign() {
        let placed = placed(24576, 65536);
        let foreign = |number: usize| Some((format!("sd{number}"), BitmapProblem::Foreign));
        let of_another = check(&placed, |number, header| header.set_uuid.0[3] ^= u8::from(number == 2));
        assert_eq!(of_another, foreign(2));
        let longer = check(&placed, |number, header| header.sync_size.0 += 32 * u64::from(number == 1));
        assert_eq!(longer, foreign(1));
        // Less than a chunk of the array isn't used anyway.
        assert_eq!(check(&placed, |_, header| header.sync_size.0 += 31), None);
    }

    #[test]
    fn a_bitmap_that_would_run_into_what_lies_behind_it_is_told_of() {
        let placed = placed(1 << 22, 65536);
        let problem = check(&placed, |number, header| {
            if number == 1 {
                header.chunk_bytes = 512;
            }
        });
        assert!(matches!(problem, Some((name, BitmapProblem::Length { .. })) if name == "sd1"));
    }

    #[test]
    fn a_bitmap_that_is_too_large_to_be_kept_is_told_of_although_it_has_room() {
        let mut placed = placed(1 << 32, 64 << 20);
        let behind = (placed.superblocks[0].member.device_sectors - (1 << 31)) / 32 * 32;
        for superblock in &mut placed.superblocks {
            superblock.member.data_offset = Sector(behind);
            superblock.member.data_size = SectorCount(1 << 31);
            superblock.member.bad_block_log = None;
        }
        let problem = check(&placed, |_, header| header.chunk_bytes = 512);
        assert!(
            matches!(&problem, Some((_, BitmapProblem::Unreadable(BitmapError::TooLarge(_))))),
            "{problem:?}"
        );
    }

    #[test]
    fn of_bitmaps_that_differ_the_one_that_fewer_agree_with_is_named() {
        let placed = placed(24576, 65536);
        let problem = check(&placed, |number, header| {
            if number == 1 {
                header.chunk_bytes = 32768;
            }
        });
        let Some((name, BitmapProblem::Differs { bytes, other_bytes, .. })) = problem else {
            panic!("{problem:?}");
        };
        assert_eq!((&*name, bytes, other_bytes), ("sd1", 32768, 65536));
    }

    #[test]
    fn a_damaged_bitmap_is_told_of_and_refuses_nothing_while_another_is_sound() {
        let placed = placed(24576, 65536);
        let damaged = |number: usize, bad: &[usize], error: &BitmapError, header: BitmapHeader| {
            if bad.contains(&number) { Err(error.clone()) } else { Ok(header) }
        };
        let garbled = BitmapError::NoMagic;
        let of = |bad: &[usize], error: &BitmapError| {
            check_found(&placed, |number, header| damaged(number, bad, error, header))
        };
        let problem = Some(BitmapProblem::Unreadable(garbled.clone()));
        assert_eq!(of(&[0, 2], &garbled), Ok(vec![problem.clone(), None, problem]));
        assert!(matches!(of(&[0, 1, 2], &garbled), Err((name, _)) if name == "sd0"));
        // Not damaged: another host may be at work.
        let clustered = BitmapError::Unsupported(crate::bitmap::UnsupportedBitmap::Clustered);
        assert!(matches!(of(&[1], &clustered), Err((name, _)) if name == "sd1"));
    }

    #[test]
    fn of_two_kinds_that_as_many_have_none_is_believed() {
        let placed = placed(24576, 65536);
        let checked = check_found(&placed, |number, mut header| match number {
            0 => Err(BitmapError::NoMagic),
            1 => Ok(header),
            _ => {
                header.chunk_bytes = 32768;
                Ok(header)
            }
        });
        assert!(matches!(checked, Err((_, BitmapProblem::Differs { .. }))), "{checked:?}");
    }
}
