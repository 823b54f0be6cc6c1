//! Which arrays are served, which only to readers, which not at all, each with a sentence that says why.

use thiserror::Error;

use super::Superblock;
use crate::level::Level;

/// What may be done with an array, as far as one superblock tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    /// Read and write.
    Full,
    /// Read only, because writing would need what isn't built yet.
    ReadOnly(ReadOnlyReason),
    /// Not even reading is safe.
    Refused(RefusedReason),
}

/// Why an array is served to readers only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ReadOnlyReason {
    /// A partial parity log that is too short.
    #[error(
        "the array's partial parity log (PPL) is shorter than a chunk, so that a write may not fit: it is served read-only. mdadm --grow --consistency-policy=resync takes the log away"
    )]
    Ppl,
}

/// Why an array isn't served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RefusedReason {
    /// Unknown feature bits.
    #[error(
        "the superblock has unknown feature bits {0:#x}: a newer MD wrote it, and what they change is not known here"
    )]
    UnknownFeatures(u32),
    /// A level that isn't served.
    #[error("{0} is not served yet; levels 0, 4, 5 and 6 are")]
    Level(Level),
    /// A reshape.
    #[error("a reshape is in progress: assemble the array with mdadm and let it finish first")]
    Reshape,
    /// A cluster's bitmap.
    #[error("the array has a clustered bitmap: other hosts may be writing to it")]
    Clustered,
}

impl Superblock {
    /// Whether the array that this superblock describes can be served.
    ///
    /// One superblock doesn't know all: the bitmap's version, whether a journal can be replayed, and whether
    /// a RAID0 without a recorded layout has members of different sizes is for the caller to find out.
    pub fn support(&self) -> Support {
        let array = &self.array;
        let refused = if array.unknown_features != 0 {
            Some(RefusedReason::UnknownFeatures(array.unknown_features))
        } else if matches!(array.level, Level::Raid1 | Level::Raid10 | Level::Linear | Level::Multipath) {
            Some(RefusedReason::Level(array.level))
        } else if array.reshape.is_some() || self.member.new_offset.is_some() {
            Some(RefusedReason::Reshape)
        } else if array.clustered {
            Some(RefusedReason::Clustered)
        } else {
            None
        };
        match refused {
            Some(reason) => Support::Refused(reason),
            None if self.member.ppl.is_some_and(|ppl| !ppl.takes_chunks_of(array.chunk)) => {
                Support::ReadOnly(ReadOnlyReason::Ppl)
            }
            None => Support::Full,
        }
    }
}
