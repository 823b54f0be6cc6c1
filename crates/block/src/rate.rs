//! Limits of what clients may ask for in a second: so many requests, so many bytes.
//!
//! Each limit is a schedule of one word: the moment up to which its time is used. A request takes the time
//! that it costs at the limit's rate, behind all that came before it, and goes when that time begins. So
//! requests go in the order of asking, a large one isn't overtaken for ever by small ones, and the rate holds
//! however large a request is. What wasn't used in the last moments, the *burst*, may be used later.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use pinstripe_runtime::shard;

use crate::service::Client;

const SECOND: u64 = 1_000_000_000;
/// The longest that a request sleeps before it looks whether it still has to wait.
const LOOK_NANOSECONDS: u64 = 50_000_000;

/// What clients may do together; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Requests in a second, flushes aside.
    pub requests: u64,
    /// Bytes in a second that are read, written and zeroed.
    pub bytes: u64,
    /// Nanoseconds of both that can be saved up.
    pub burst: u64,
}

/// See the module. One for all clients of an array, on all shards.
#[derive(Default)]
pub struct RateLimit {
    requests: Schedule,
    bytes: Schedule,
    burst: AtomicU64,
    /// Counts changes of the rates. What waits asks anew after one.
    changes: AtomicU64,
    waiting: AtomicU64,
}

impl RateLimit {
    /// Limits from the start.
    pub fn new(rates: Rates) -> Self {
        let limit = Self::default();
        limit.set(rates);
        limit
    }

    /// Other limits, for what waits too.
    pub fn set(&self, rates: Rates) {
        self.burst.store(rates.burst, SeqCst);
        self.requests.begin(rates.requests);
        self.bytes.begin(rates.bytes);
        self.changes.fetch_add(1, SeqCst);
    }

    /// What holds now.
    pub fn rates(&self) -> Rates {
        Rates {
            requests: self.requests.rate.load(SeqCst),
            bytes: self.bytes.rate.load(SeqCst),
            burst: self.burst.load(SeqCst),
        }
    }

    /// Requests that wait now.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Relaxed)
    }

    /// Whether there are limits.
    pub fn is_set(&self) -> bool {
        self.requests.is_limited() || self.bytes.is_limited()
    }

    /// Waits until a request that moves so many bytes may go. When the limits are changed meanwhile, what
    /// came later may go first. False if its client hangs up before: then nothing shall be done, and the
    /// requests that it has in flight take no further time from others.
    #[inline]
    pub async fn pass(&self, bytes: u64, client: &Client) -> bool {
        // Boxed, so that requests without limits carry no more than a pointer.
        !self.is_set() || Box::pin(self.wait(bytes, client)).await
    }

    async fn wait(&self, bytes: u64, client: &Client) -> bool {
        while !client.has_hung_up() {
            let changes = self.changes.load(SeqCst);
            let (now, burst) = (shard::now(), self.burst.load(SeqCst));
            let start = self.requests.take(1, now, burst).max(self.bytes.take(bytes, now, burst));
            if start <= now || self.sleep_until(start, changes, client).await {
                return true;
            }
        }
        false
    }

    /// False if the rates were changed before, or the client has hung up.
    async fn sleep_until(&self, start: u64, changes: u64, client: &Client) -> bool {
        let _waiting = Counted::new(&self.waiting);
        while let Some(left) = start.checked_sub(shard::now()).filter(|left| *left > 0) {
            shard::sleep(left.min(LOOK_NANOSECONDS)).await;
            if self.changes.load(SeqCst) != changes || client.has_hung_up() {
                return false;
            }
        }
        true
    }
}

/// A limit.
#[derive(Default)]
struct Schedule {
    /// In a second; 0: there is none.
    rate: AtomicU64,
    /// The moment up to which time is used.
    used: AtomicU64,
}

impl Schedule {
    fn is_limited(&self) -> bool {
        self.rate.load(Relaxed) > 0
    }

    fn begin(&self, rate: u64) {
        self.rate.store(rate, SeqCst);
        self.used.store(0, SeqCst);
    }

    /// Takes the time that `units` cost; gives when it begins.
    fn take(&self, units: u64, now: u64, burst: u64) -> u64 {
        let rate = self.rate.load(SeqCst);
        if rate == 0 {
            return now;
        }
        let cost =
            u64::try_from(u128::from(units) * u128::from(SECOND) / u128::from(rate)).unwrap_or(u64::MAX);
        let oldest = now.saturating_sub(burst);
        let begin = |used: u64| used.max(oldest);
        let end = |used: u64| Some(begin(used).saturating_add(cost));
        let (Ok(used) | Err(used)) = self.used.fetch_update(SeqCst, SeqCst, end);
        begin(used)
    }
}

/// One that waits, until this goes.
struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000 * SECOND;

    fn schedule(rate: u64) -> Schedule {
        let schedule = Schedule::default();
        schedule.begin(rate);
        schedule
    }

    #[test]
    fn requests_go_at_the_rate_in_the_order_of_asking() {
        let requests = schedule(100);
        let starts: Vec<u64> = (0..4).map(|_| requests.take(1, NOW, 0) - NOW).collect();
        assert_eq!(starts, [0, 10_000_000, 20_000_000, 30_000_000]);
        assert_eq!(requests.take(1, NOW + SECOND, 0), NOW + SECOND, "what isn't used is lost");
    }

    #[test]
    fn a_large_request_goes_in_its_turn_and_the_next_one_pays_for_it() {
        let bytes = schedule(1 << 20);
        assert_eq!(bytes.take(32 << 20, NOW, 0), NOW);
        assert_eq!(bytes.take(512, NOW, 0), NOW + 32 * SECOND);
    }

    #[test]
    fn what_was_saved_up_is_a_burst_and_no_more() {
        let requests = schedule(100);
        let at_once = (0..1000).take_while(|_| requests.take(1, NOW, SECOND) <= NOW).count();
        assert_eq!(at_once, 101, "a second's, and the one whose time begins now");
        let later = NOW + SECOND / 2;
        let at_once = (0..1000).take_while(|_| requests.take(1, later, SECOND) <= later).count();
        assert!((49..=50).contains(&at_once), "half a second later {at_once}");
    }

    #[test]
    fn numbers_beyond_all_reason_stay_in_range() {
        let bytes = schedule(1);
        assert_eq!(bytes.take(u64::MAX, NOW, 0), NOW);
        assert_eq!(bytes.take(u64::MAX, NOW, u64::MAX), u64::MAX);
        assert_eq!(schedule(u64::MAX).take(1, NOW, 0), NOW);
    }
}
