//! The server's half of the call about limits.

use pinstripe_block::rate::{RateLimit, Rates};
use pinstripe_control::limit::{Limit, LimitParameters};

const SECOND: u64 = 1_000_000_000;

/// Limits of the user's words; 0 is none.
pub fn rates(iops: u64, bytes_per_second: u64, burst_seconds: u32) -> Rates {
    Rates { requests: iops, bytes: bytes_per_second, burst: u64::from(burst_seconds) * SECOND }
}

/// What holds now.
pub fn now(limit: &RateLimit) -> Limit {
    let Rates { requests, bytes, burst } = limit.rates();
    Limit {
        iops: requests,
        bytes_per_second: bytes,
        burst_seconds: u32::try_from(burst / SECOND).unwrap_or(u32::MAX),
        waiting: limit.waiting(),
    }
}

/// Changes what is asked for. True if that is anything.
pub fn change(limit: &RateLimit, parameters: LimitParameters) -> bool {
    let before = now(limit);
    let iops = parameters.iops.unwrap_or(before.iops);
    let bytes = parameters.bytes_per_second.unwrap_or(before.bytes_per_second);
    let burst = parameters.burst_seconds.unwrap_or(before.burst_seconds);
    let differs = (iops, bytes, burst) != (before.iops, before.bytes_per_second, before.burst_seconds);
    if differs {
        limit.set(rates(iops, bytes, burst));
    }
    differs
}
