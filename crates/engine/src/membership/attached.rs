//! Which members' servers compute, under a membership.

use pinstripe_runtime::DeviceError;

use crate::geometry::Set64;

/// Why a member is a plain one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It isn't: its server takes part.
    Offload,
    /// Its server doesn't offer it.
    NotOffered,
    /// A member of the array is being replaced.
    Replacement,
    /// Its server refused to be attached.
    Refused(DeviceError),
}

/// Which members take part under a membership. Part of the [`Snapshot`](super::snapshot::Snapshot).
#[derive(Clone, Debug)]
pub struct Attached {
    /// Slots of the members that take part.
    pub slots: Set64,
    /// The epoch under which they are attached.
    pub epoch: u64,
    /// Most bytes of a range.
    pub range_bytes: u32,
    /// By slot: operations that a member may have.
    pub limits: Vec<u32>,
    /// By slot.
    pub standing: Vec<Standing>,
}
