//! Why devices can't be served as an array.

use pinstripe_md::{
    bad_blocks::BadBlocksError,
    identity::Uuid,
    superblock::{BitmapProblem, Disagreement, RefusedReason, SuperblockError},
    units::{Sector, SectorCount},
};
use pinstripe_runtime::{DeviceError, DeviceErrorKind};
use thiserror::Error;

use super::newly_degraded;
use crate::{geometry::GeometryError, offload::fence::FenceError};

/// Why devices can't be served as an array. Nothing has been changed on them.
#[derive(Debug, Error)]
pub enum AssembleError {
    /// No device was given.
    #[error("no device was given")]
    NoDevices,
    /// A device can't be read.
    #[error("{name}: can't be read: {error}")]
    Device {
        /// The device.
        name: String,
        /// Why.
        error: DeviceError,
    },
    /// A device can't make durable what it holds.
    #[error("{name}: can't be flushed: {error}. Assemble the array without this device")]
    Flush {
        /// The device.
        name: String,
        /// Why.
        error: DeviceError,
    },
    /// The servers of the devices don't let this host write.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// A device has no superblock, or a damaged or unknown one.
    #[error("{name}: {error}")]
    Superblock {
        /// The device.
        name: String,
        /// Why.
        error: SuperblockError,
    },
    /// Two devices belong to different arrays.
    #[error(
        "{first} belongs to array {first_array}, but {second} to {second_array}: give the members of one array only"
    )]
    DifferentArrays {
        /// A device.
        first: String,
        /// Its array's name or identity.
        first_array: String,
        /// Another.
        second: String,
        /// Its array's.
        second_array: String,
    },
    /// Two devices of one array, neither out of date, of different geometry.
    #[error("{first} and {second} are equally recent, and {disagreement}. Leave out the one that is wrong")]
    MembersDisagree {
        /// A device.
        first: String,
        /// Another.
        second: String,
        /// In what they differ.
        disagreement: Disagreement,
    },
    /// A device has superblocks of which one lies in the data of the other, where clients write (C30).
    #[error(
        "{name} holds superblocks of {arrays}, and nothing tells which one is its own: the data of the one array is where the superblock of the other is, so a client may have written that. Say which array is meant: `pinstripe serve` and `pinstripe assemble` with --uuid, or `uuid` in its [[array]]"
    )]
    Contested {
        /// The device.
        name: String,
        /// The arrays, and where the superblocks are.
        arrays: String,
    },
    /// A device of another array than the one that was asked for.
    #[error("{name} belongs to array {array}, and {wanted} was asked for: give the members of that array")]
    NotWanted {
        /// The device.
        name: String,
        /// Its array's name and identity.
        array: String,
        /// The identity that was asked for.
        wanted: Uuid,
    },
    /// The array is of a kind that isn't served.
    #[error("{0}")]
    Refused(RefusedReason),
    /// The geometry makes no sense.
    #[error("the array's geometry can't be served: {0}")]
    Geometry(#[from] GeometryError),
    /// The newest superblock says that the array uses more of each member than one has.
    #[error(
        "{name} has {sectors} for the array's data, and by the newest superblock the array uses {used} of each member: one of the superblocks is damaged"
    )]
    MemberTooSmall {
        /// The device.
        name: String,
        /// What it has.
        sectors: SectorCount,
        /// What the array uses.
        used: SectorCount,
    },
    /// Two devices are one member, one journal or one spare.
    #[error(
        "{first} and {second} both say that they are the same member: one is a copy of the other; give only the right one"
    )]
    Duplicate {
        /// A device.
        first: String,
        /// Another.
        second: String,
    },
    /// More members are missing than the level can bear.
    #[error(
        "{present} of {needed} members are here, and the level bears {redundancy} missing{}",
        stale_words(stale)
    )]
    TooFewMembers {
        /// Members that are here and current.
        present: usize,
        /// Members of the array.
        needed: usize,
        /// How many may be missing.
        redundancy: usize,
        /// Devices that were left out because their superblocks are old.
        stale: Vec<StaleMember>,
    },
    /// Dirty and degraded (C19).
    #[error(
        "the array was not stopped cleanly and {missing} of its members is missing: parity can't be trusted to stand in for it, and sectors that were being written may read wrong. Bring the missing member back, or use --force to accept that"
    )]
    DirtyDegraded {
        /// How many are missing.
        missing: usize,
    },
    /// Members are missing that were there the last time, and that isn't meant.
    #[error(
        "{} of the array is missing, and was there when it was used last{}: serve it with all of its members. With --run it is started without what is missing, which is out of date from then on",
        newly_degraded::words(slots),
        stale_words(stale)
    )]
    NewlyDegraded {
        /// Slots that would be left behind.
        slots: Vec<usize>,
        /// Devices that were left out because their superblocks are old.
        stale: Vec<StaleMember>,
    },
    /// Dirty and degraded, and what was being written stands in a log that can't be read.
    #[error(
        "{name}: its log can't be read, the array was not stopped cleanly, and {missing} of its members is missing: sectors that were being written may read wrong, and others of the same rows. Bring the missing member back{}, or use --force to accept that",
        if *bears { ", or leave this device out as well, whose log isn't needed then" } else { "" }
    )]
    LogUnreadable {
        /// The device with the log.
        name: String,
        /// How many are missing.
        missing: usize,
        /// Whether the array could be started without that one, too.
        bears: bool,
    },
    /// A member's bitmap can't be used.
    #[error("{name}: {problem}")]
    Bitmap {
        /// The device.
        name: String,
        /// Why.
        problem: BitmapProblem,
    },
    /// The array has a journal, and its device isn't among those given, or is out of date.
    #[error(
        "the array has a journal device, which is not among the devices: what is only in the journal would be lost. Give the journal device too; with --force the array is assembled without it and resynced, and writes that only the journal has are lost"
    )]
    JournalMissing,
    /// The journal can't be replayed. The members are as they were, but for what the journal says anyhow.
    #[error("{name}: the journal can't be replayed: {problem}")]
    Journal {
        /// The journal device.
        name: String,
        /// Why.
        problem: JournalProblem,
    },
    /// The superblocks could not be written before the replay of a journal to an incomplete array.
    #[error(
        "the missing members could not be recorded, and must be before the journal is emptied: too many devices fail. Nothing is lost: see to the devices, and assemble the array again"
    )]
    NoRecord,
    /// A device failed while the journal was replayed. Replay can be repeated.
    #[error(
        "{name}: a write failed while the journal was being replayed: {error}. Nothing is lost: assemble the array again, without this device if it keeps failing"
    )]
    Replay {
        /// The device.
        name: String,
        /// Why.
        error: DeviceError,
    },
    /// A bad-block log can't be used, so it isn't known what must not be read.
    #[error("{name}: the bad-block log can't be read: {error}")]
    BadBlocks {
        /// The device.
        name: String,
        /// Why.
        error: BadBlocksError,
    },
    /// All devices that can be used are out of date.
    #[error("what is left is out of date: its events are {events}, and the array's were {newest}")]
    OutOfDate {
        /// The most recent of what is left.
        events: u64,
        /// That of what can't be used.
        newest: u64,
    },
    /// A device can't be used, and the others can't be served without it.
    #[error("{why}. Without this device: {without}")]
    Needed {
        /// Why it can't be used.
        why: Box<AssembleError>,
        /// Why the others can't be served.
        without: Box<AssembleError>,
    },
}

/// Why a journal can't be replayed, or an array with one can't be served read-only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum JournalProblem {
    /// The superblock's tail is not a block of the journal.
    #[error("the superblock says that it begins at {0}, where no block of it can be")]
    Tail(Sector),
    /// What must be there isn't whole.
    #[error(
        "its block at sector {0} is damaged, and with it is lost what the members may lack. With --force the array is assembled without the journal and resynced"
    )]
    Damaged(Sector),
    /// It can't be read.
    #[error("it can't be read: {0}. {then}", then = read_words(.0.kind))]
    Read(DeviceError),
    /// A place that the array doesn't have.
    #[error("it describes sector {0}, which is none of the array's")]
    Outside(Sector),
    /// A discard. No program is known to log one.
    #[error("it describes a discard at {0}, which is not known here: assemble the array with mdadm once")]
    Discard(Sector),
    /// Data in the log without parity, and the rest of its row can't be read.
    #[error(
        "the row at member sector {0} can't be read, whose data is only in the journal: give the missing members too"
    )]
    Unreadable(Sector),
    /// No room for what must be logged once more while members are missing.
    #[error(
        "it has {free} blocks free, and {needed} are needed while members are missing: give the missing members too, or assemble the array with mdadm once"
    )]
    NoRoom {
        /// Blocks needed.
        needed: u64,
        /// Blocks free.
        free: u64,
    },
    /// Too small for one write.
    #[error(
        "it has {blocks} blocks of 4 KiB, and one stripe of the array may need {needed}: use a larger device"
    )]
    TooSmall {
        /// Blocks needed.
        needed: u64,
        /// Blocks it has.
        blocks: u64,
    },
    /// A level that has no parity.
    #[error("the array's level has no journal")]
    NoParity,
    /// The members don't hold a page that the journal describes, and nothing may be written to them.
    #[error("the {} at {sector} is only in the journal, not yet on the members, and a read-only array is not written to: serve it writable once", if *parity { "parity" } else { "data" })]
    NotOnMembers {
        /// Of the array for data, of the members for parity.
        sector: Sector,
        /// Whether it is parity.
        parity: bool,
    },
}

impl JournalProblem {
    /// Whether it is the log's, so that another start would find it again. What the device fails with for
    /// another reason than its medium may pass.
    pub(crate) fn lasts(&self) -> bool {
        !matches!(self, Self::Read(error) if error.kind != DeviceErrorKind::Media)
    }
}

fn read_words(kind: DeviceErrorKind) -> &'static str {
    if kind == DeviceErrorKind::Media {
        "With --force the array is assembled without the journal and resynced, and writes that only the journal has are lost"
    } else {
        "Nothing is lost: assemble the array again when the device answers. If it never will, leave it out: with --force the array is assembled without it and resynced, and writes that only the journal has are lost"
    }
}

/// A device that was left out because it missed something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleMember {
    /// The device.
    pub name: String,
    /// Its events.
    pub events: u64,
    /// The freshest's events.
    pub current: u64,
    /// It was a spare. It has nothing of the array.
    pub spare: bool,
}

fn stale_words(stale: &[StaleMember]) -> String {
    use std::fmt::Write;
    let mut words = String::new();
    // A spare is missed by none of those that are told.
    for StaleMember { name, events, current, .. } in stale.iter().filter(|stale| !stale.spare) {
        let _ = if events < current {
            write!(words, "; {name} is stale (events {events}, the array's are {current})")
        } else {
            write!(words, "; {name} is out of date (the array has gone on without it since events {current})")
        };
    }
    words
}
