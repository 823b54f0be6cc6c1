//! What this server's link can take, as far as that shows.
//!
//! A link shows what it can take while it is full: then data comes without a pause for most of the time, and at the link's
//! rate. So it is counted for how long data is being received, and only times in which that is most of the time say something; what
//! is received in the others would say what is asked for. A link that was never seen full has room, nobody knows how much. One that was, has
//! a little more every second since: it may have become faster, and that shows only when more is asked of it.

use std::sync::Mutex;

use super::super::subsystem::lock;

/// Length of a window.
const WINDOW_NS: u64 = 100_000_000;
/// The share of a window in which data comes, from which on the link counts as full.
const FULL: f64 = 0.6;
/// The weight of a new window.
const WEIGHT: f64 = 0.3;
/// What a link is believed to have gained in each second in which it wasn't full.
const GAIN: f64 = 1.03;

/// See the module.
#[derive(Default)]
pub(in super::super) struct Meter(Mutex<State>);

#[derive(Default)]
struct State {
    /// When the window began.
    window: u64,
    /// Transfers under way, and since when they are counted.
    active: u32,
    since: u64,
    /// Of this window: nanoseconds in which data came, bytes of it, and bytes that came as parts of sums.
    busy: u64,
    bytes: u64,
    parts: u64,
    /// Bytes per second of a full link, and when it was last full.
    capacity: Option<(f64, u64)>,
    /// Bytes per second of everything but parts.
    others: f64,
}

impl Meter {
    /// Data begins to come.
    pub fn begin(&self, now: u64) {
        let mut state = lock(&self.0);
        state.roll(now);
        state.pass(now);
        state.active += 1;
    }

    /// All of it has come, or the connection has ended.
    pub fn end(&self, now: u64, bytes: u64) {
        let mut state = lock(&self.0);
        state.pass(now);
        state.active -= 1;
        state.bytes += bytes;
        state.roll(now);
    }

    /// So many bytes were a part of a sum.
    pub fn part(&self, bytes: u64) {
        lock(&self.0).parts += bytes;
    }

    /// Bytes per second that the link can take for parts, all that come already included. 0: it was never seen full.
    pub fn free(&self, now: u64) -> u64 {
        let mut state = lock(&self.0);
        state.roll(now);
        let Some((capacity, at)) = state.capacity else { return 0 };
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let seconds = now.saturating_sub(at) as f64 / 1e9;
        let free = capacity * GAIN.powf(seconds) - state.others;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an estimate, and positive"
        )]
        let free = free.max(1.0) as u64;
        free
    }
}

impl State {
    /// Counts the time until now.
    fn pass(&mut self, now: u64) {
        if self.active > 0 {
            self.busy += now.saturating_sub(self.since.max(self.window));
        }
        self.since = now;
    }

    /// Closes the window if it is over.
    #[expect(clippy::cast_precision_loss, reason = "estimates")]
    fn roll(&mut self, now: u64) {
        let length = now.saturating_sub(self.window);
        if length < WINDOW_NS {
            return;
        }
        self.pass(now);
        let others = self.bytes.saturating_sub(self.parts) as f64 * 1e9 / length as f64;
        self.others += (others - self.others) * WEIGHT;
        if self.busy as f64 > FULL * length as f64 {
            let rate = self.bytes as f64 * 1e9 / self.busy as f64;
            let known = self.capacity.map_or(rate, |(known, _)| known);
            self.capacity = Some((known + (rate - known) * WEIGHT, now));
        }
        (self.window, self.busy, self.bytes, self.parts) = (now, 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Data of 100 kB each, one after the other, `busy_ms` of every `each_ms`.
    fn receive(meter: &Meter, from: u64, count: u64, (busy_ms, each_ms): (u64, u64)) -> u64 {
        for number in 0..count {
            let at = from + number * each_ms * MS;
            meter.begin(at);
            meter.end(at + busy_ms * MS, 100_000);
            meter.part(100_000);
        }
        from + count * each_ms * MS
    }

    #[test]
    fn a_link_that_was_never_full_is_not_known() {
        let meter = Meter::default();
        let end = receive(&meter, 0, 100, (1, 10));
        assert_eq!(meter.free(end), 0);
    }

    #[test]
    fn a_full_link_shows_its_rate_and_is_believed_to_gain_afterwards() {
        let meter = Meter::default();
        let end = receive(&meter, 0, 200, (10, 10));
        let free = meter.free(end);
        assert!((9_500_000..10_500_000).contains(&free), "{free}");
        let end = receive(&meter, end, 100, (1, 10));
        let gained = meter.free(end);
        assert!(gained > free && gained < free * 11 / 10, "{free} {gained}");
        // A quarter of the rate from here on.
        let end = receive(&meter, end, 100, (40, 40));
        let free = meter.free(end);
        assert!((2_400_000..2_700_000).contains(&free), "{free}");
    }

    #[test]
    fn what_is_no_part_takes_room_from_them() {
        let meter = Meter::default();
        for number in 0..200 {
            let at = number * 10 * MS;
            meter.begin(at);
            meter.end(at + 10 * MS, 100_000);
            meter.part(if number % 2 == 0 { 100_000 } else { 0 });
        }
        let free = meter.free(2_000 * MS);
        assert!((4_500_000..5_500_000).contains(&free), "{free}");
    }

    #[test]
    fn transfers_at_the_same_time_share_the_link() {
        let meter = Meter::default();
        for number in 0..100 {
            let at = number * 20 * MS;
            meter.begin(at);
            meter.begin(at);
            meter.end(at + 19 * MS, 100_000);
            meter.end(at + 20 * MS, 100_000);
            meter.part(200_000);
        }
        let free = meter.free(2_000 * MS);
        assert!((9_500_000..10_500_000).contains(&free), "{free}");
    }
}
