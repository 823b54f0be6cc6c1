//! How a member does, as all shards see it: what was asked of it, whether it is slow or late, and its
//! flushes.

use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_utils::CachePadded;
use pinstripe_runtime::{
    Flushes,
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
    /// Flushes of all shards, and forced writes that are made of them.
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

    /// Whether a flush has failed: it is never known again what the device has lost (C5).
    pub(crate) fn has_lost_flush(&self) -> bool {
        self.flushes.error().is_some()
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
