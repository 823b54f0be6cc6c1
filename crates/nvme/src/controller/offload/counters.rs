//! What a server has done for operations, and how much of it at the same time.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Numbers since the target began.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct OffloadStatistics {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub $name: AtomicU64,)*
            stages: AtomicU32,
        }

        impl Counters {
            pub fn read(&self) -> OffloadStatistics {
                OffloadStatistics { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl OffloadStatistics {
            /// Name and value of each.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// PartialWrite commands that have prepared.
    partial_writes,
    /// Contribute and ReadContribute commands that have succeeded.
    contributes,
    /// Parity commands that have prepared.
    parities,
    /// Reduce commands that have succeeded.
    reduces,
    /// Commits that were written.
    commits,
    /// Parts that other servers have taken.
    peers_sent,
    /// Bytes of them.
    peer_bytes_sent,
    /// Parts for another namespace of this server.
    peers_local,
    /// Parts that came from other servers.
    peers_received,
    /// Bytes of them.
    peer_bytes_received,
    /// Parts that came again.
    peers_repeated,
    /// Parts that no server took.
    peers_failed,
    /// Operations that were dropped.
    dropped,
    /// Operations that take a slot now.
    held,
    /// Stages of commands (receive, read, compute, forward, write) that ran while another one did.
    stages_overlapped,
    /// Stages that began while none ran. With the serial pipeline, all are such.
    stages_alone,
}

impl Counters {
    /// A stage begins; it ends with the guard.
    pub fn stage(&self) -> Running<'_> {
        let others = self.stages.fetch_add(1, Ordering::Relaxed);
        let counter = if others > 0 { &self.stages_overlapped } else { &self.stages_alone };
        counter.fetch_add(1, Ordering::Relaxed);
        Running(self)
    }
}

/// Counts.
pub(crate) fn count(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

pub(crate) struct Running<'a>(&'a Counters);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.stages.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_overlaps_only_what_has_not_ended() {
        let counters = Counters::default();
        for _ in 0..3 {
            drop(counters.stage());
        }
        let alone = OffloadStatistics { stages_alone: 3, ..OffloadStatistics::default() };
        assert_eq!(counters.read(), alone);
        let first = counters.stage();
        let second = counters.stage();
        drop(first);
        drop(counters.stage());
        drop(second);
        drop(counters.stage());
        assert_eq!(counters.read(), OffloadStatistics { stages_alone: 5, stages_overlapped: 2, ..alone });
    }
}
