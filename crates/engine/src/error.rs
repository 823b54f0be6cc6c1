//! What can go wrong with a request, and what the user can do about it.

use pinstripe_runtime::{DeviceError, DeviceErrorKind};
use thiserror::Error;

use crate::geometry::RangeError;

/// What was being done to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush of the member's cache.
    Flush,
    /// A write of metadata: superblock or bitmap.
    Metadata,
    /// Its replacement by another device, which has ended.
    Replacement,
    /// Its rebuild, of what other members hold.
    Rebuild,
    /// Nothing: it was found to be gone, or its server to be out of reach.
    Presence,
}

/// What a device is to its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceRole {
    /// It holds this slot, or is to take it.
    Slot(usize),
    /// It waits for a slot.
    Spare,
    /// It has the journal.
    Journal,
}

impl DeviceRole {
    /// The slot, if it is one.
    pub fn slot(self) -> Option<usize> {
        match self {
            Self::Slot(slot) => Some(slot),
            Self::Spare | Self::Journal => None,
        }
    }
}

impl From<usize> for DeviceRole {
    fn from(slot: usize) -> Self {
        Self::Slot(slot)
    }
}

impl From<Option<usize>> for DeviceRole {
    fn from(slot: Option<usize>) -> Self {
        slot.map_or(Self::Spare, Self::Slot)
    }
}

impl std::fmt::Display for DeviceRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Slot(slot) => write!(f, "slot {slot}"),
            Self::Spare => f.write_str("spare"),
            Self::Journal => f.write_str("the journal"),
        }
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Metadata => "metadata write",
            Self::Replacement => "replacement",
            Self::Rebuild => "rebuild",
            Self::Presence => "presence",
        })
    }
}

/// A request on a member that failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{role} ({name}) {}", self.words())]
pub struct MemberError {
    /// What the device is to the array.
    pub role: DeviceRole,
    /// The member's device.
    pub name: String,
    /// What was being done.
    pub operation: Operation,
    /// Where, in bytes from the start of the device.
    pub offset: u64,
    /// What the device said.
    pub error: DeviceError,
}

impl MemberError {
    fn words(&self) -> String {
        if self.error.kind == DeviceErrorKind::Removed {
            let replaced = self.operation == Operation::Replacement;
            return if replaced { "was replaced" } else { "was taken out by command" }.to_owned();
        }
        if self.operation == Operation::Rebuild {
            return "could not be rebuilt: blocks of other members can't be read, or wait for the resync after an \
                    unclean stop"
                .to_owned();
        }
        if self.operation == Operation::Presence {
            return format!("failed: {}", self.error);
        }
        format!("failed: {} at byte {} of the device: {}", self.operation, self.offset, self.error)
    }
}

/// Why a read, write, flush or discard of the array failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IoError {
    /// Outside the array or not aligned; nothing was done.
    #[error("{0}")]
    Range(#[from] RangeError),
    /// The array is served read-only; nothing was done.
    #[error("the array is read-only")]
    ReadOnly,
    /// The array is being stopped; nothing was done.
    #[error("the array is stopping")]
    Stopping,
    /// The client has hung up before all of it was begun.
    #[error("the client has hung up")]
    Abandoned,
    /// More members failed than the level can bear. What can still be read is read; nothing more is
    /// acknowledged.
    #[error(
        "more members have failed than the array can bear: `pinstripe detail` says which, and why; mend that, then stop the array and assemble it again"
    )]
    Failed,
    /// Another host has taken the array over.
    #[error(
        "another host has taken the array over: what is known of its members here is old, so nothing is read or written any more. Stop it here; it can be assembled anew when the other host has stopped it"
    )]
    TakenOver,
    /// The journal device failed.
    #[error(
        "the journal device failed: the array is read-only. Stop it, and assemble it with --force, which does without the journal and resyncs"
    )]
    JournalLost,
    /// A sector can't be read and can't be reconstructed.
    #[error("stripe {stripe} can't be read: {missing} of its chunks are missing or unreadable")]
    Unreadable {
        /// The stripe.
        stripe: u64,
        /// How many chunks of it can't be read.
        missing: usize,
    },
    /// A member failed or another command was faster.
    #[error("the array's members have changed meanwhile: look at `pinstripe detail`, and try again")]
    MembershipChanged,
    /// A member failed and there is nothing to take its place (level 0).
    #[error("{0}")]
    Member(MemberError),
}
