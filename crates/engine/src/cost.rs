//! What a member's requests cost, measured: a latency and a time per byte, for reads and for writes.
//!
//! Small requests move the latency, large ones the time per byte; each is a moving average (1/8 of every new sample).
//! Only one in [`SAMPLE_EVERY`] requests is timed, so that a memory device isn't slowed down by the clock.

use pinstripe_runtime::atomics::{AtomicU32, Ordering};

use crate::plan::Price;

/// One request in so many is timed. Odd, because reads and writes of a load often take turns.
pub const SAMPLE_EVERY: u32 = 31;
/// Requests up to this many bytes measure the latency.
const SMALL: u64 = 16 << 10;

/// Latency and bandwidth of one direction. Nanoseconds, and nanoseconds per KiB.
#[derive(Default)]
struct Direction {
    latency: AtomicU32,
    per_kib: AtomicU32,
}

/// What is assumed of a member that was not measured yet: a fast drive.
const UNKNOWN: Price = Price { latency_ns: 20_000, ns_per_kib: 400 };

/// Written by every shard without locks; a lost update is one sample lost.
#[derive(Default)]
pub struct MemberCost {
    reads: Direction,
    writes: Direction,
}

impl MemberCost {
    /// What a read costs.
    pub fn read(&self) -> Price {
        self.reads.price()
    }

    /// What a write costs.
    pub fn write(&self) -> Price {
        self.writes.price()
    }

    /// Adds a measured read.
    pub fn record_read(&self, bytes: u64, elapsed_ns: u64) {
        self.reads.record(bytes, elapsed_ns);
    }

    /// Adds a measured write.
    pub fn record_write(&self, bytes: u64, elapsed_ns: u64) {
        self.writes.record(bytes, elapsed_ns);
    }
}

impl Direction {
    fn price(&self) -> Price {
        let or = |value: u32, unknown| if value == 0 { unknown } else { value };
        Price {
            latency_ns: or(self.latency.load(Ordering::Relaxed), UNKNOWN.latency_ns),
            ns_per_kib: or(self.per_kib.load(Ordering::Relaxed), UNKNOWN.ns_per_kib),
        }
    }

    fn record(&self, bytes: u64, elapsed_ns: u64) {
        let (average, sample) = if bytes <= SMALL {
            (&self.latency, elapsed_ns)
        } else {
            let transfer = elapsed_ns.saturating_sub(self.latency.load(Ordering::Relaxed).into());
            (&self.per_kib, transfer * 1024 / bytes)
        };
        let sample = u32::try_from(sample).unwrap_or(u32::MAX).max(1);
        let old = average.load(Ordering::Relaxed);
        let new = if old == 0 { sample } else { old - old / 8 + sample / 8 };
        average.store(new.max(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_requests_move_the_latency_and_large_ones_the_bandwidth() {
        let cost = MemberCost::default();
        assert_eq!(cost.read(), UNKNOWN);
        cost.record_read(4096, 100_000);
        cost.record_read(1 << 20, 100_000 + 1024 * 500);
        assert_eq!(cost.read(), Price { latency_ns: 100_000, ns_per_kib: 500 });
        assert_eq!(cost.write(), UNKNOWN);
        for _ in 0..100 {
            cost.record_read(4096, 10_000);
        }
        assert!(cost.read().latency_ns < 11_000, "{:?}", cost.read());
    }
}
