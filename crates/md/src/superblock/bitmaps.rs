//! Whether the bitmaps of an array's members can be used.
//!
//! A bitmap's header has no checksum, and what one says would be written to all members. So each must be of
//! this array and fit its device, and all must say the same.

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

/// Why a member's bitmap can't be used. An array with such a one isn't started.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BitmapProblem {
    /// There is none that can be read.
    #[error("the bitmap can't be read: {0}")]
    Unreadable(#[from] BitmapError),
    /// It says that it belongs to another array, or to members of another size.
    #[error("the bitmap is not this array's: remove it with mdadm --grow --bitmap=none and add it again")]
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

/// Looks at the bitmaps of an array's current members. The error is the first problem, with the device's
/// name.
pub fn check_bitmaps(
    array: &ArrayRecord,
    bitmaps: &[MemberBitmap<'_>],
) -> Result<(), (String, BitmapProblem)> {
    let mut sound = Vec::new();
    for bitmap in bitmaps {
        let header = bitmap.check(array).map_err(|problem| (bitmap.name.clone(), problem))?;
        sound.push((&bitmap.name, header.chunk_bytes));
    }
    let agreeing = |chunk: u32| sound.iter().filter(|(_, other)| *other == chunk).count();
    let Some((usual, chunk)) = sound.iter().max_by_key(|(_, chunk)| agreeing(*chunk)) else { return Ok(()) };
    match sound.iter().find(|(_, other)| other != chunk) {
        None => Ok(()),
        Some((odd, bytes)) => {
            let (other, other_bytes) = ((*usual).clone(), *chunk);
            Err(((*odd).clone(), BitmapProblem::Differs { bytes: *bytes, other, other_bytes }))
        }
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
