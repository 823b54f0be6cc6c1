//! What commands on an array in service answer.

use pinstripe_md::placement::PlacementError;
use pinstripe_runtime::DeviceError;
use thiserror::Error;

use crate::error::{IoError, MemberError};

/// What became of a device that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It waits for a slot to become empty.
    Spare,
    /// It takes this slot, and all of it is rebuilt.
    Full {
        /// The slot.
        slot: usize,
    },
    /// It is back in its slot, and what was dirtied while it was away is rebuilt, by the bitmap.
    Bitmap {
        /// The slot.
        slot: usize,
    },
}

impl Added {
    /// The slot that it takes.
    pub fn slot(self) -> Option<usize> {
        match self {
            Self::Spare => None,
            Self::Full { slot } | Self::Bitmap { slot } => Some(slot),
        }
    }
}

/// Why a command on a running array failed. Nothing has changed.
#[derive(Debug, Error)]
pub enum CommandError {
    /// No such slot.
    #[error("there is no slot {slot}; the array has {slots}")]
    NoSuchSlot {
        /// The slot.
        slot: usize,
        /// How many there are.
        slots: usize,
    },
    /// No member holds it.
    #[error("slot {0} is empty already")]
    SlotEmpty(usize),
    /// The array can't do without it: no redundancy is left, or a crash may have torn rows.
    #[error(
        "slot {0} is needed: without it, and without members that have failed or don't answer, the array would lose data (until the resync after a crash is through it needs them all); nothing was done"
    )]
    SlotNeeded(usize),
    /// Its member can't be replaced: it isn't whole, is being replaced already, or isn't the one that was
    /// meant.
    #[error("slot {slot} can't be replaced: its member is {state}; nothing was done")]
    NotReplaceable {
        /// The slot.
        slot: usize,
        /// What it is.
        state: &'static str,
    },
    /// A device that joins takes the empty slot.
    #[error(
        "slot {empty} is empty: a device that joins goes there, and not to slot {slot}. Fill it first (`pinstripe add`), then replace; nothing was done"
    )]
    OtherSlotEmpty {
        /// The slot that was to get a replacement.
        slot: usize,
        /// The empty one.
        empty: usize,
    },
    /// No spare is there to replace a member with.
    #[error("there is no spare that could take the slot: name a device")]
    NoSpare,
    /// The server of a device knows an epoch that the others' would not take.
    #[error(
        "{name}: its epoch is {epoch}, too far from the array's: a host has attached it with a number that none comes to by counting. Have its server forget it (stop the server, and remove the device's state), then add it again"
    )]
    Epoch {
        /// The device.
        name: String,
        /// What it was attached under.
        epoch: u64,
    },
    /// The device failed, or did not answer, while it was taken in.
    #[error(
        "{0}. It was not taken in: see to the device, then add it again (`pinstripe detail` lists it as failed), or add another one"
    )]
    NotTakenIn(MemberError),
    /// The device is in use.
    #[error("{name} can't be removed: it is in use in slot {slot}; take it out with `pinstripe fail` first")]
    InUse {
        /// The device.
        name: String,
        /// Its slot.
        slot: usize,
    },
    /// No such device.
    #[error("{0} is neither a failed device nor a spare of this array; `pinstripe detail` shows them")]
    NoSuchDevice(String),
    /// The device knows more than the array.
    #[error(
        "{name} belongs to this array and is ahead of it (its events are {events}, the array's {current}): it may hold what the others lack. Nothing was done; erase its superblock if it is to be used nevertheless"
    )]
    Ahead {
        /// The device.
        name: String,
        /// Its events.
        events: u64,
        /// The array's.
        current: u64,
    },
    /// It has data that can't be made of the others, and can't come back: a spare would be emptied.
    #[error(
        "{0} was a member, and has blocks that can't be made of the others, for the array was stopped uncleanly and isn't resynced; but it can't come back now: another device has its slot, or what it has missed since isn't known. Nothing was done. Add it again when its slot is empty, and other members are back that are away. To go on without it, stop the array, and assemble it with --force"
    )]
    HoldsTorn(String),
    /// Level 0 has no redundancy.
    #[error("a level 0 array can't change its members")]
    NoRedundancy,
    /// The array isn't written.
    #[error("the array is read-only")]
    ReadOnly,
    /// A device can't be used.
    #[error("{name}: {error}")]
    Device {
        /// The device.
        name: String,
        /// Why.
        error: DeviceError,
    },
    /// A device doesn't fit.
    #[error("{name}: {error}")]
    Placement {
        /// The device.
        name: String,
        /// Why.
        error: PlacementError,
    },
    /// The device is in the array already.
    #[error("{0} is in this array already")]
    AlreadyMember(String),
    /// The device says that it is another one, which is in the array.
    #[error(
        "{name} has the superblock of {of}, which is in this array as {place}: it is a copy of it, or the same device by another path. Nothing was done. A copy can be added once its superblock is erased: `pinstripe zero-superblock` with its path"
    )]
    Copy {
        /// The device.
        name: String,
        /// The other one.
        of: String,
        /// What that is in the array.
        place: String,
    },
    /// C20.
    #[error(
        "{name}: its logical block of {block} bytes is larger than the array's {array} bytes. If the array had members like it before, start it with `serve --logical-block {block}`"
    )]
    LogicalBlock {
        /// The device.
        name: String,
        /// Its logical block.
        block: u32,
        /// The array's.
        array: u32,
    },
    /// There is a bitmap already, or none, or the array can't have one.
    #[error("{0}")]
    Bitmap(String),
    /// C16.
    #[error(
        "{name}: {late} requests to it that were given up are not over: it may still write what they ask for. Nothing was done; try again when the device answers or is gone"
    )]
    RequestsUnderWay {
        /// The device.
        name: String,
        /// How many.
        late: u64,
    },
    /// The policy can't be had.
    #[error("{0}")]
    Policy(String),
    /// The bitmap has no room on the members.
    #[error("there is no room for a bitmap with regions of {0} bytes: choose larger ones")]
    BitmapRoom(u32),
    /// The array failed meanwhile.
    #[error("{0}")]
    Io(#[from] IoError),
}

/// A device to be removed, as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// By its name.
    Device(String),
    /// The failed device of a slot.
    Slot(usize),
}
