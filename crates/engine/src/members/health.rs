//! How a member does, as all shards see it: what was asked of it, whether it is slow or late, and its
//! flushes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_utils::CachePadded;
use pinstripe_runtime::{
    DeviceError, Signal,
    atomics::{AtomicBool, AtomicU64, Ordering},
};

use crate::{
    mutants::{Mutant, active},
    statistics::Counter,
};

macro_rules! member_counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// What one shard asked of a member.
        #[derive(Default)]
        pub(crate) struct MemberCounters {
            $(pub(crate) $name: Counter,)*
        }

        /// What was asked of a member, and what became of it, over all shards.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct MemberStatistics {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl MemberStatistics {
            fn add(&mut self, counters: &MemberCounters) {
                $(self.$name += counters.$name.value();)*
            }

            /// What each of [`Self::fields`] counts, by its name.
            pub const HELP: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc,)*)),)*];

            /// Names and values, in a fixed order.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

member_counters! {
    /// Reads.
    reads,
    /// Bytes read.
    read_bytes,
    /// Writes, zeroing and discards included.
    writes,
    /// Bytes written, without zeroing and discards.
    write_bytes,
    /// Flushes.
    flushes,
    /// Reads that failed.
    read_errors,
    /// Writes and flushes that failed.
    write_errors,
    /// Failed reads after which the sectors were written anew from the other members.
    corrected_reads,
    /// Requests that were tried again because the device had no resources for them.
    retries,
    /// Times that it was slow to answer.
    slow,
    /// Requests that were given up because the member did not answer.
    timed_out,
    /// Commands to a server that computes.
    commands,
    /// Bytes sent to a server that computes.
    sent_bytes,
    /// Bytes received from a server that computes.
    received_bytes,
}

/// How a member does. Part of [`Member`](super::Member); all shards see it.
#[derive(Default)]
pub struct Health {
    /// Requests that were given up and are not over.
    late: AtomicU64,
    /// It is out of the membership, for good.
    dropped: AtomicBool,
    /// Shards that wait for it longer than they should.
    slow: AtomicU64,
    /// Flushes of all shards.
    pub(crate) flushes: Flushes,
    /// Corrected reads that count, and when the last was.
    corrected: Mutex<(u32, u64)>,
    /// By shard's handle.
    counters: Mutex<Vec<Arc<CachePadded<MemberCounters>>>>,
}

impl Health {
    /// Whether nothing may be asked of it (C16).
    pub(crate) fn refuses(&self) -> bool {
        let is_refusing = self.dropped.load(Ordering::Relaxed) || self.late.load(Ordering::Relaxed) > 0;
        is_refusing && !active(Mutant::LateMemberAsked)
    }

    /// Requests that were given up and are not over: its device may still do what they asked for.
    pub fn late_requests(&self) -> u64 {
        self.late.load(Ordering::SeqCst)
    }

    /// Whether a request has been under way for longer than usual.
    pub fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed) > 0
    }

    /// So many requests were given up that are not over.
    pub(crate) fn add_late(&self, count: usize) {
        self.late.fetch_add(count as u64, Ordering::SeqCst);
    }

    /// One of them is over.
    pub(crate) fn end_late(&self) {
        self.late.fetch_sub(1, Ordering::SeqCst);
    }

    /// A shard waits for it longer than it should, or doesn't any more.
    pub(crate) fn set_slow(&self, slow: bool) {
        if slow {
            self.slow.fetch_add(1, Ordering::Relaxed);
        } else {
            self.slow.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// What was asked of it.
    pub fn statistics(&self) -> MemberStatistics {
        let mut sum = MemberStatistics::default();
        for counters in self.counters.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            sum.add(counters);
        }
        sum
    }

    /// Counts a corrected read as MD does: what was counted halves for every hour since the last one.
    pub(crate) fn count_corrected(&self, now_ns: u64) -> u32 {
        const HOUR_NS: u64 = 3_600_000_000_000;
        let mut corrected = self.corrected.lock().unwrap_or_else(PoisonError::into_inner);
        let hours = u32::try_from(now_ns.saturating_sub(corrected.1) / HOUR_NS).unwrap_or(u32::MAX);
        let before = corrected.0.checked_shr(hours).unwrap_or(0);
        *corrected = (before.saturating_add(1), now_ns);
        corrected.0
    }

    /// From now on it is out of the membership and refuses everything.
    pub(crate) fn set_dropped(&self) {
        self.dropped.store(true, Ordering::SeqCst);
    }

    pub(crate) fn enter_counters(&self) -> Arc<CachePadded<MemberCounters>> {
        let counters = Arc::<CachePadded<MemberCounters>>::default();
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&counters));
        counters
    }
}

/// A member's flushes, by all shards. A device that has lost writes tells it once (C5); but they may be what
/// other flushes wait for too, those under way and those that come before the member is out. So a flush isn't
/// answered before all are over that began before it was, by ticket: a count of those that have ended is met
/// by later ones (C33).
#[derive(Default)]
pub(crate) struct Flushes {
    state: Mutex<FlushState>,
    changed: Signal,
}

#[derive(Default)]
struct FlushState {
    /// The latest ticket.
    begun: u64,
    /// The tickets of those that aren't over.
    under_way: Vec<u64>,
    /// How many have failed, and how the last did.
    failed: u64,
    error: Option<DeviceError>,
}

impl FlushState {
    /// Whether every flush is over that had a ticket when `begun` was the latest one.
    fn are_over(&self, begun: u64) -> bool {
        if active(Mutant::FlushesCounted) {
            self.begun - self.under_way.len() as u64 >= begun
        } else {
            self.under_way.iter().all(|&ticket| ticket > begun)
        }
    }
}

/// A flush of a member that is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlushTicket {
    number: u64,
    /// How many had failed before.
    pub(crate) failed_before: u64,
}

impl Flushes {
    /// A flush is about to be asked for.
    pub(crate) fn begin(&self) -> FlushTicket {
        let mut state = self.state();
        state.begun += 1;
        let number = state.begun;
        state.under_way.push(number);
        FlushTicket { number, failed_before: state.failed }
    }

    /// It is over.
    pub(crate) fn end(&self, ticket: FlushTicket, error: Option<DeviceError>) {
        let mut state = self.state();
        state.under_way.retain(|&number| number != ticket.number);
        if error.is_some() {
            state.failed += 1;
            state.error = error;
        }
        drop(state);
        self.changed.notify();
    }

    /// Waits for all that are under way now, and says how one failed since so many had.
    pub(crate) async fn failed_since(&self, before: u64) -> Option<DeviceError> {
        let begun = self.state().begun;
        self.changed.wait_until(|| self.state().are_over(begun)).await;
        let state = self.state();
        if state.failed > before { state.error } else { None }
    }

    fn state(&self) -> MutexGuard<'_, FlushState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use pinstripe_runtime::DeviceErrorKind;

    use super::*;

    #[test]
    fn a_flush_is_answered_when_all_that_began_before_it_ended_are_over_whatever_ends_later() {
        let (flushes, error) = (Flushes::default(), DeviceError::of(DeviceErrorKind::Media));
        let mut cx = Context::from_waker(Waker::noop());
        let oldest = flushes.begin();
        let ours = flushes.begin();
        flushes.end(ours, None);
        let mut answer = pin!(flushes.failed_since(0));
        assert!(answer.as_mut().poll(&mut cx).is_pending(), "an older one is under way");
        for _ in 0..3 {
            let later = flushes.begin();
            flushes.end(later, None);
            assert!(answer.as_mut().poll(&mut cx).is_pending(), "it still is");
        }
        let latest = flushes.begin();
        flushes.end(oldest, Some(error));
        let told = answer.as_mut().poll(&mut cx);
        assert_eq!(told, std::task::Poll::Ready(Some(error)), "one that began later is not waited for");
        flushes.end(latest, None);
    }
}
