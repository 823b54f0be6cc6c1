//! What happened to the array, as mdadm's monitor tells it: numbered and bounded, so that a reader knows what
//! it has missed.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
};

use pinstripe_runtime::Signal;

use crate::error::MemberError;

/// Events that are kept.
const EVENTS_MAX: usize = 1024;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncAction {
    /// Parity is made to match data after an unclean stop.
    Resync,
    /// A member is rebuilt.
    Rebuild,
    /// Parity is compared with data.
    Check,
    /// Parity is compared with data, and what doesn't match is corrected.
    Repair,
}

impl SyncAction {
    /// MD's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resync => "resync",
            Self::Rebuild => "recover",
            Self::Check => "check",
            Self::Repair => "repair",
        }
    }

    /// Whether it is done on request, and not because the array needs it.
    pub fn is_scrub(self) -> bool {
        matches!(self, Self::Check | Self::Repair)
    }
}

/// Something that happened. Names are mdadm's where it has the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The array began without members in these slots.
    DegradedArray {
        /// The empty slots.
        slots: Vec<usize>,
    },
    /// A member was dropped.
    Fail(MemberError),
    /// More members failed than the array can bear: nothing is acknowledged any more.
    ArrayFailed(MemberError),
    /// Work over the whole array has begun.
    RebuildStarted {
        /// Which.
        action: SyncAction,
    },
    /// It is that far.
    RebuildProgress {
        /// Which.
        action: SyncAction,
        /// A multiple of 20.
        percent: u64,
    },
    /// It has ended.
    RebuildFinished {
        /// Which.
        action: SyncAction,
        /// False if it was interrupted, or met errors.
        whole: bool,
        /// Sectors that did not match, of a check or repair.
        mismatched: Option<u64>,
        /// Where a check or repair was stopped: the first sector of each member's data that was not compared.
        stopped_at: Option<u64>,
    },
    /// The first mismatch of a check or repair.
    MismatchFound {
        /// Which.
        action: SyncAction,
    },
    /// A member has everything: it was rebuilt.
    SpareActive {
        /// Its slot.
        slot: usize,
        /// Its device.
        device: String,
    },
    /// A member is back in the array after its server was lost.
    MemberBack {
        /// Its device.
        device: String,
        /// Whether only what it missed is rebuilt.
        by_bitmap: bool,
    },
    /// A device was taken from a pool of spares.
    MoveSpare {
        /// The device.
        device: String,
    },
    /// What answers in the place of a lost member is not taken back.
    NotTakenBack {
        /// Its device.
        device: String,
        /// Why.
        reason: String,
    },
}

impl EventKind {
    /// The event in a word.
    pub fn name(&self) -> String {
        match self {
            Self::DegradedArray { .. } => "DegradedArray".to_owned(),
            Self::Fail(_) => "Fail".to_owned(),
            Self::ArrayFailed(_) => "ArrayFailed".to_owned(),
            Self::RebuildStarted { .. } => "RebuildStarted".to_owned(),
            Self::RebuildProgress { percent, .. } => format!("Rebuild{percent:02}"),
            Self::RebuildFinished { .. } => "RebuildFinished".to_owned(),
            Self::MismatchFound { .. } => "MismatchFound".to_owned(),
            Self::SpareActive { .. } => "SpareActive".to_owned(),
            Self::MemberBack { .. } => "MemberBack".to_owned(),
            Self::NotTakenBack { .. } => "NotTakenBack".to_owned(),
            Self::MoveSpare { .. } => "MoveSpare".to_owned(),
        }
    }

    /// The device that it is about.
    pub fn device(&self) -> Option<&str> {
        match self {
            Self::Fail(error) | Self::ArrayFailed(error) => Some(&error.name),
            Self::SpareActive { device, .. }
            | Self::MemberBack { device, .. }
            | Self::MoveSpare { device }
            | Self::NotTakenBack { device, .. } => Some(device),
            _ => None,
        }
    }

    /// Whether the administrator should do something about it.
    pub fn is_alarming(&self) -> bool {
        match self {
            Self::DegradedArray { .. }
            | Self::Fail(_)
            | Self::ArrayFailed(_)
            | Self::MismatchFound { .. }
            | Self::NotTakenBack { .. } => true,
            Self::RebuildFinished { whole, mismatched, .. } => {
                !whole || mismatched.is_some_and(|sectors| sectors > 0)
            }
            Self::RebuildStarted { .. }
            | Self::RebuildProgress { .. }
            | Self::SpareActive { .. }
            | Self::MemberBack { .. }
            | Self::MoveSpare { .. } => false,
        }
    }
}

impl std::fmt::Display for EventKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::DegradedArray { slots } => {
                let slots: Vec<String> = slots.iter().map(ToString::to_string).collect();
                write!(f, "the array is degraded: no member is in slot {}", slots.join(", "))
            }
            Self::Fail(error) => write!(f, "a member was dropped: {error}"),
            Self::ArrayFailed(error) => {
                write!(f, "the array has failed, nothing more is acknowledged: {error}")
            }
            Self::RebuildStarted { action } => write!(f, "{} has begun", action.name()),
            Self::RebuildProgress { action, percent } => write!(f, "{} is at {percent}%", action.name()),
            Self::RebuildFinished { action, whole, mismatched, stopped_at } => {
                let action = action.name();
                let ended = if *whole { "has ended" } else { "was interrupted" };
                match (mismatched, stopped_at) {
                    (Some(found), Some(sector)) => write!(
                        f,
                        "{action} was stopped before sector {sector} of each member's data, mismatches found until there: {found}"
                    ),
                    (Some(found), None) => write!(f, "{action} {ended}, mismatches found: {found}"),
                    (None, _) => write!(f, "{action} {ended}"),
                }
            }
            Self::MismatchFound { action } => {
                write!(f, "{} has found parity that does not match", action.name())
            }
            Self::SpareActive { slot, device } => write!(f, "{device} has everything and is in slot {slot}"),
            Self::MemberBack { device, by_bitmap } => {
                let what = if *by_bitmap { "what it missed" } else { "all of it" };
                write!(f, "{device} is back, and {what} is to be rebuilt")
            }
            Self::MoveSpare { device } => write!(f, "{device} was taken from the pool of spares"),
            Self::NotTakenBack { device, reason } => {
                write!(f, "{device} answers again, but is not taken back: {reason}")
            }
        }
    }
}

/// An event with its place in the sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// From 1 on, without gaps, since the array was assembled.
    pub number: u64,
    /// Seconds since 1970.
    pub time: u64,
    /// What happened.
    pub kind: EventKind,
}

/// See the module.
pub(crate) struct Events {
    kept: RefCell<VecDeque<Event>>,
    last: Cell<u64>,
    added: Signal,
    clock: fn() -> u64,
}

impl Events {
    pub(crate) fn new(clock: fn() -> u64) -> Self {
        Self { kept: RefCell::default(), last: Cell::new(0), added: Signal::default(), clock }
    }

    pub(crate) fn add(&self, kind: EventKind) {
        let number = self.last.get() + 1;
        self.last.set(number);
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= EVENTS_MAX {
            kept.pop_front();
        }
        kept.push_back(Event { number, time: (self.clock)(), kind });
        drop(kept);
        self.added.notify();
    }

    /// The events after number `after` that are still kept, oldest first.
    pub(crate) fn after(&self, after: u64) -> Vec<Event> {
        self.kept.borrow().iter().filter(|event| event.number > after).cloned().collect()
    }

    /// The number of the latest event; 0 if nothing has happened.
    pub(crate) fn last(&self) -> u64 {
        self.last.get()
    }

    /// Waits until there is an event after number `after`.
    pub(crate) async fn wait_after(&self, after: u64) {
        self.added.wait_until(|| self.last() > after).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_events_are_kept_and_their_numbers_tell_what_is_lost() {
        let events = Events::new(|| 7);
        for percent in 0..EVENTS_MAX as u64 + 10 {
            events.add(EventKind::RebuildProgress { action: SyncAction::Check, percent });
        }
        let kept = events.kept.borrow();
        assert_eq!((kept.len(), kept[0].number, kept[0].time), (EVENTS_MAX, 11, 7));
        assert_eq!(kept.back().map(|event| event.number), Some(events.last.get()));
    }
}
