//! What this server's link lets through of parts of sums.
//!
//! A part that has begun to come comes as fast as the link lets it beside everything else, and beside other
//! parts, however seldom that is. So the bytes of parts by the time in which any are coming is what is there
//! for them, whether the link is full or nearly idle. A part that waits in the socket while another one is
//! read comes at once when its turn is there, so a short pause between parts counts as time of coming too:
//! without it, links of 60 MB/s that were full of parts of 64 KiB seemed to take up to 600 MB/s. Only parts
//! count: they come from servers of which none sends much to one receiver, while a client that writes sends
//! all it can, and what trickles in then tells of the client's own link. What was measured long ago counts
//! for a little more every second: the link may have become faster, and that shows only when something is
//! asked of it.

use std::sync::Mutex;

use crate::lock::lock;

/// Bytes of a sample. Links let a few hundred KiB through at once after a pause, and a connection is slow at
/// its beginning.
const SAMPLE_BYTES: u64 = 2 << 20;
/// A pause between parts that is shorter belongs to the time in which they come.
const PAUSE_NS: u64 = 5_000_000;
/// The weight of a new sample.
const WEIGHT: f64 = 0.5;
/// How many times faster or slower than it was known to be a link is another one.
const OTHER: f64 = 2.0;
/// What a link is believed to have gained in each second since the last sample.
const GAIN: f64 = 1.03;

/// See the module.
#[derive(Default)]
pub(crate) struct Meter(Mutex<MeterState>);

#[derive(Default)]
struct MeterState {
    /// Parts that are coming, and since when they are counted.
    active: u32,
    since: u64,
    /// Of this sample: nanoseconds in which parts came, and bytes of them.
    busy: u64,
    bytes: u64,
    /// Bytes per second, and when that was measured.
    free: Option<(f64, u64)>,
}

impl Meter {
    /// A part begins to come.
    pub fn begin(&self, now: u64) {
        let mut state = lock(&self.0);
        state.pass(now);
        state.active += 1;
    }

    /// All of it has come, or the connection has ended.
    pub fn end(&self, now: u64, bytes: u64) {
        let mut state = lock(&self.0);
        state.pass(now);
        state.active -= 1;
        state.bytes += bytes;
        if state.bytes >= SAMPLE_BYTES {
            state.sample(now);
        }
    }

    /// Bytes per second that the link can take for parts, all that come already included. 0: not known yet.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it saturates, and is positive"
    )]
    pub fn free(&self, now: u64) -> u64 {
        let Some((free, at)) = lock(&self.0).free else { return 0 };
        let seconds = now.saturating_sub(at) as f64 / 1e9;
        (free * GAIN.powf(seconds)).max(1.0) as u64
    }
}

impl MeterState {
    /// Counts the time until now.
    fn pass(&mut self, now: u64) {
        let passed = now.saturating_sub(self.since);
        if self.active > 0 || passed < PAUSE_NS {
            self.busy += passed;
        }
        self.since = now;
    }

    #[expect(clippy::cast_precision_loss, reason = "estimates")]
    fn sample(&mut self, now: u64) {
        let rate = self.bytes as f64 * 1e9 / self.busy.max(1) as f64;
        // Where it is another link than it was, nothing of the old one counts.
        let like = |known: &f64| (known / OTHER..known * OTHER).contains(&rate);
        let known = self.free.map(|(known, _)| known).filter(like).unwrap_or(rate);
        self.free = Some((known + (rate - known) * WEIGHT, now));
        (self.busy, self.bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Parts of 100 kB, one after the other, `busy_ms` of every `each_ms`.
    fn receive(meter: &Meter, from: u64, count: u64, (busy_ms, each_ms): (u64, u64)) -> u64 {
        for number in 0..count {
            let at = from + number * each_ms * MS;
            meter.begin(at);
            meter.end(at + busy_ms * MS, 100_000);
        }
        from + count * each_ms * MS
    }

    #[test]
    fn nothing_is_known_before_there_is_a_sample() {
        let meter = Meter::default();
        let end = receive(&meter, 0, 20, (1, 10));
        assert_eq!(meter.free(end), 0);
    }

    #[test]
    fn a_link_shows_its_rate_however_little_it_is_used_and_is_estimated_to_gain_afterwards() {
        for each_ms in [10, 100] {
            let meter = Meter::default();
            let end = receive(&meter, 0, 200, (10, each_ms));
            let free = meter.free(end);
            assert!((9_900_000..10_500_000).contains(&free), "{free}");
            let gained = meter.free(end + 2_000 * MS);
            assert!(gained > free && gained < free * 11 / 10, "{free} {gained}");
            // A quarter of the rate from here on.
            let end = receive(&meter, end, 200, (40, 40));
            let free = meter.free(end);
            assert!((2_500_000..2_700_000).contains(&free), "{free}");
        }
    }

    #[test]
    fn parts_at_the_same_time_share_the_link() {
        let meter = Meter::default();
        for number in 0..100 {
            let at = number * 50 * MS;
            meter.begin(at);
            meter.begin(at);
            meter.end(at + 19 * MS, 100_000);
            meter.end(at + 20 * MS, 100_000);
        }
        let free = meter.free(5_000 * MS);
        assert!((9_900_000..10_500_000).contains(&free), "{free}");
    }

    #[test]
    fn parts_that_have_waited_in_the_socket_come_no_faster_than_the_link() {
        let meter = Meter::default();
        // A link of 50 MB/s: a part every 2 ms, read in a tenth of a millisecond.
        for number in 0..200 {
            let at = number * 2 * MS;
            meter.begin(at);
            meter.end(at + MS / 10, 100_000);
        }
        let free = meter.free(400 * MS);
        assert!((47_000_000..53_000_000).contains(&free), "{free}");
    }

    #[test]
    fn an_idle_link_gains_without_end_and_without_harm() {
        let meter = Meter::default();
        let end = receive(&meter, 0, 100, (10, 10));
        assert_eq!(meter.free(end + 1_000_000_000 * MS), u64::MAX);
    }
}
