//! Models of drives: when a request ends.
//!
//! A [`Drive`] is a value without clock and without contents. It is told each request in the order of
//! submission, and says when the request will end. Where other requests may overtake it, that is not known
//! yet: then the drive wants a turn at a time that it says ([`Drive::next_turn`]), and by that turn more is
//! known ([`Drive::turn`]). Two mechanisms are enough for the models that there are ([`Model::named`]):
//!
//! - [`Head`]: one head over a spinning platter. A request costs a seek by its distance, the wait for its
//!   angle, and its transfer; one that goes on where the last one of its direction ended costs its transfer
//!   only. Of the requests that wait, the one goes next that the head reaches soonest, by seek and angle (of
//!   so many as the drive's queue has); what comes while the head is under way doesn't turn it round. Writes
//!   may end in a cache, from which the head takes them when nothing else waits, or when the cache is full.
//! - [`Channels`]: so many requests at a time, which share one bandwidth and one rate of commands. Flash that
//!   is written for long has used up its spare area, and then writes are slower until it had time to collect
//!   garbage ([`Spare`]).
//!
//! The platter's angle is the only thing that differs between two drives of one model ([`Drive::new`]).
//!
//! All times are nanoseconds, all arithmetic is of integers: the same on every machine.

mod channels;
mod head;
mod models;
#[cfg(test)]
mod tests;

pub use channels::{Channels, Spare};
pub use head::{Head, Seek, WriteCache};
use models::MEASURED;
pub use models::NAMES;

use crate::trace::Operation;

const SECOND_NS: u64 = 1_000_000_000;
/// The size of the requests of which data sheets give counts.
const PAGE: u64 = 4096;

/// What drives of one kind have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// As a user calls it.
    pub name: &'static str,
    /// How reads go.
    pub read: Speed,
    /// How writes go.
    pub write: Speed,
    /// What a flush takes, after the requests that are under way. `None`: there is no volatile cache.
    pub flush_ns: Option<u64>,
    /// What serves the requests.
    pub mechanism: Mechanism,
}

impl Model {
    /// Whether it moves a head; `None` of a drive that was only measured.
    pub fn moves_head(&self) -> Option<bool> {
        (self.name != MEASURED).then_some(matches!(self.mechanism, Mechanism::Head(_)))
    }
}

/// What serves the requests of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// One at a time, each at its place.
    Head(Head),
    /// Several at a time, everywhere alike.
    Channels(Channels),
}

/// What requests of one direction take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// What passes for every request and holds up no other.
    pub access_ns: u64,
    /// From the begin of a request to the begin of the next at least.
    pub interval_ns: u64,
    /// Of all requests together.
    pub bytes_per_second: u64,
}

impl Speed {
    /// As a drive was measured: what one small request of `small_bytes` takes alone, how many of them there
    /// are in a second at most, and bytes per second of large ones. Rates are at least 1.
    pub fn measured(small_bytes: u64, latency_ns: u64, per_second: u64, bytes_per_second: u64) -> Self {
        let mut speed = Self {
            access_ns: 0,
            interval_ns: SECOND_NS / per_second.max(1),
            bytes_per_second: bytes_per_second.max(1),
        };
        speed.access_ns = latency_ns.saturating_sub(speed.occupied_ns(small_bytes));
        speed
    }

    /// As data sheets say it: requests of 4 KiB per second one by one, and at most; megabytes per second.
    const fn of(one_by_one: u64, at_most: u64, megabytes: u64) -> Self {
        let mut speed =
            Self { access_ns: 0, interval_ns: SECOND_NS / at_most, bytes_per_second: megabytes * 1_000_000 };
        speed.access_ns = (SECOND_NS / one_by_one).saturating_sub(speed.occupied_ns(PAGE));
        speed
    }

    /// For how long a request keeps the next one from beginning.
    const fn occupied_ns(&self, length: u64) -> u64 {
        let transfer = self.transfer_ns(length);
        if transfer > self.interval_ns { transfer } else { self.interval_ns }
    }

    const fn transfer_ns(&self, length: u64) -> u64 {
        // No request is so long that this is too large: 18 GB.
        length * SECOND_NS / self.bytes_per_second
    }
}

/// A request, as a drive sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The host's name for it, of all that are under way.
    pub number: u64,
    /// What is wanted.
    pub operation: Operation,
    /// Where on the drive.
    pub offset: u64,
    /// How much; nothing of a flush.
    pub length: u64,
}

/// That a request of this number ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The host's name for it.
    pub number: u64,
    /// When.
    pub at: u64,
}

/// One drive.
#[derive(Clone, Debug)]
pub struct Drive {
    model: Model,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Head(head::State),
    Channels(channels::State),
}

impl Drive {
    /// An idle, fresh drive. `phase_ns` says how far its platter has turned at time 0.
    pub fn new(model: Model, phase_ns: u64) -> Self {
        let state = match model.mechanism {
            Mechanism::Head(_) => State::Head(head::State::new(phase_ns)),
            Mechanism::Channels(channels) => State::Channels(channels::State::new(&channels)),
        };
        Self { model, state }
    }

    /// The same after it was written for long: what is spare of flash is used up.
    #[must_use]
    pub fn used_up(mut self) -> Self {
        if let (Mechanism::Channels(channels), State::Channels(state)) =
            (&self.model.mechanism, &mut self.state)
        {
            state.use_up(channels);
        }
        self
    }

    /// What it is one of.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Takes a request that is submitted at `now`, which is not before any that was submitted earlier, nor
    /// after [`Drive::next_turn`]. Returns when it ends, if that is known: else a turn says so.
    pub fn submit(&mut self, now: u64, request: Request) -> Option<u64> {
        let length = if request.operation == Operation::Discard { 0 } else { request.length };
        let request = Request { length, ..request };
        match (&self.model.mechanism, &mut self.state) {
            (Mechanism::Head(head), State::Head(state)) => {
                state.submit(head::Disk { head, model: &self.model }, now, request)
            }
            (Mechanism::Channels(channels), State::Channels(state)) => {
                Some(channel_end(&self.model, channels, state, now, request))
            }
            _ => unreachable!("the state was made for the mechanism"),
        }
    }

    /// When it takes up the next of its work, if it has any.
    pub fn next_turn(&self) -> Option<u64> {
        match &self.state {
            State::Head(state) => state.next_turn(),
            State::Channels(_) => None,
        }
    }

    /// Takes up the next of its work, at [`Drive::next_turn`]. Returns what is known now of requests of which
    /// the end was not known before.
    pub fn turn(&mut self) -> Vec<Ending> {
        match (&self.model.mechanism, &mut self.state) {
            (Mechanism::Head(head), State::Head(state)) => {
                state.turn(head::Disk { head, model: &self.model })
            }
            _ => Vec::new(),
        }
    }
}

/// When a request of a drive of several channels ends.
fn channel_end(
    model: &Model,
    channels: &Channels,
    state: &mut channels::State,
    now: u64,
    request: Request,
) -> u64 {
    let Request { operation, offset, length, .. } = request;
    let flush_ns = model.flush_ns;
    match operation {
        // What is written through needs no flush.
        Operation::Flush => flush_ns.map_or(now, |flush| state.busy_until().max(now) + flush),
        Operation::Read => state.transfer(channels, model.read, now, false, offset, length),
        Operation::Write | Operation::WriteZeroes | Operation::Discard => {
            state.transfer(channels, model.write, now, true, offset, length)
        }
        Operation::WriteFua => {
            state.transfer(channels, model.write, now, true, offset, length) + flush_ns.unwrap_or(0)
        }
    }
}
