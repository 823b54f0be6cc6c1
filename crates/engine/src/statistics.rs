//! Counters of what the array did. Each shard counts in its own cache line; reading adds them up.

use pinstripe_runtime::atomics::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// One shard's counters.
        #[derive(Default)]
        pub struct Counters {
            $($(#[doc = $doc])* pub $name: Counter,)*
        }

        /// The sum over all shards.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Statistics {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Statistics {
            /// Adds up the counters of all shards.
            pub fn sum<'a>(shards: impl Iterator<Item = &'a Counters>) -> Self {
                let mut sum = Self::default();
                for shard in shards {
                    $(sum.$name += shard.$name.value();)*
                }
                sum
            }

            /// What was counted after `earlier` was taken.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name.wrapping_sub(earlier.$name),)* }
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

counters! {
    /// User reads.
    reads,
    /// Bytes that users read.
    read_bytes,
    /// User writes.
    writes,
    /// Bytes that users wrote.
    write_bytes,
    /// User flushes.
    flushes,
    /// Reads from members, for whatever purpose.
    member_reads,
    /// Bytes read from members.
    member_read_bytes,
    /// Writes to members, for whatever purpose.
    member_writes,
    /// Bytes written to members.
    member_write_bytes,
    /// Superblocks written to logs on members; they count as writes to members too.
    log_writes,
    /// Bytes of those.
    log_write_bytes,
    /// Pages of 4 KiB of the bitmap written to members; they don't count as writes to members.
    bitmap_writes,
    /// Stripe writes: batches.
    batches,
    /// Writes that joined another's batch.
    joins,
    /// Batches in which something joined between the pre-read and the freeze.
    joined_late,
    /// Row ranges updated by read-modify-write.
    rmw_runs,
    /// Row ranges updated by reconstruct-write.
    rcw_runs,
    /// Row ranges written in full.
    full_runs,
    /// Bytes read from members before a stripe write.
    pre_read_bytes,
    /// Of those, bytes of columns that were not written (reconstruct-write).
    reconstruct_read_bytes,
    /// Parity rows of 4 KiB that the cache had.
    cache_hits,
    /// Parity rows of 4 KiB that had to be read.
    cache_misses,
    /// Reads that were answered from the other members.
    reconstructed_reads,
    /// Sectors' ranges rewritten after a read error.
    corrected_reads,
    /// Stripe writes planned anew because the membership changed or a member failed.
    replans,
    /// Row ranges that the members' servers updated.
    offloaded_runs,
    /// Operations sent to the members' servers.
    offload_operations,
    /// Stripe writes and reads that the servers could not do, so that the client did the work itself.
    offload_fallbacks,
    /// Reads of lost bytes that a server summed up.
    offloaded_reads,
    /// Offloaded stripe writes that waited for all parts before parity servers were told.
    offload_barriers,
}

/// One counter, written by one shard and read by any.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `amount`.
    pub fn add(&self, amount: u64) {
        // Only its own shard writes it: no locked instruction is needed.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// The value.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
