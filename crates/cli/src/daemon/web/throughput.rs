//! What clients read and wrote in the last hour, from the counters that the daemon sees anyway. Bounded.
//! Pure.

use std::{collections::VecDeque, time::Duration};

/// Seconds that are shown as one value.
pub const SLOT_SECONDS: u64 = 30;
/// Values of an hour.
pub const SLOTS: u64 = 120;
/// What was counted over more time than this is of no use: it would be shown at its end.
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// Bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    pub read: u64,
    pub written: u64,
}

/// What was counted in a slot of time.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Its begin, in slots.
    number: u64,
    read: u64,
    written: u64,
    /// How much of it was looked at.
    covered: Duration,
}

/// Of one array.
#[derive(Clone, Debug, Default)]
pub struct Throughput {
    /// At most [`SLOTS`], oldest first.
    slots: VecDeque<Slot>,
    /// The latest counters, and when they were seen.
    last: Option<(Duration, u64, u64)>,
}

impl Throughput {
    /// Takes the counters of bytes that were read and written.
    pub fn sample(&mut self, now: Duration, read: u64, written: u64) {
        let before = self.last.replace((now, read, written));
        let Some((then, read_before, written_before)) = before else { return };
        let (Some(covered), Some(read), Some(written)) =
            (now.checked_sub(then), read.checked_sub(read_before), written.checked_sub(written_before))
        else {
            // Another server, with counters of its own.
            return;
        };
        if covered > PAUSE_MAX {
            return;
        }
        let number = now.as_secs() / SLOT_SECONDS;
        if self.slots.back().is_none_or(|slot| slot.number != number) {
            self.slots.push_back(Slot { number, read: 0, written: 0, covered: Duration::ZERO });
        }
        if let Some(slot) = self.slots.back_mut() {
            slot.read = slot.read.saturating_add(read);
            slot.written = slot.written.saturating_add(written);
            slot.covered += covered;
        }
        while self.slots.front().is_some_and(|slot| slot.number + SLOTS <= number) {
            self.slots.pop_front();
        }
    }

    /// The counters go on elsewhere, or nowhere.
    pub fn interrupt(&mut self) {
        self.last = None;
    }

    /// [`SLOTS`] values up to now, oldest first; none where nothing is known.
    pub fn rates(&self, now: Duration) -> Vec<Option<Rate>> {
        let current = now.as_secs() / SLOT_SECONDS;
        let mut rates = vec![None; usize::try_from(SLOTS).unwrap_or(0)];
        for slot in &self.slots {
            let place = (slot.number + SLOTS - 1).checked_sub(current);
            let value = place.and_then(|place| rates.get_mut(usize::try_from(place).ok()?));
            if let Some(value) = value {
                *value = slot.rate();
            }
        }
        rates
    }
}

impl Slot {
    fn rate(&self) -> Option<Rate> {
        let per_second = |bytes: u64| {
            let rate = (u128::from(bytes) * 1000).checked_div(self.covered.as_millis())?;
            Some(u64::try_from(rate).unwrap_or(u64::MAX))
        };
        Some(Rate { read: per_second(self.read)?, written: per_second(self.written)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn counters_become_rates_at_their_times() {
        let mut throughput = Throughput::default();
        for (second, read, written) in [(0, 1000, 0), (5, 6000, 50), (10, 6000, 100), (35, 31_000, 100)] {
            throughput.sample(at(second), read, written);
        }
        let rates = throughput.rates(at(40));
        assert_eq!(rates.len(), 120);
        assert_eq!(rates[118], Some(Rate { read: 500, written: 10 }));
        assert_eq!(rates[119], Some(Rate { read: 1000, written: 0 }));
        assert!(rates[..118].iter().all(Option::is_none));
        let later = throughput.rates(at(40 + 118 * 30));
        assert_eq!((later[0], later[1]), (rates[118], rates[119]));
        assert!(throughput.rates(at(40 + 120 * 30)).iter().all(Option::is_none));
    }

    #[test]
    fn another_server_and_a_pause_are_gaps() {
        let mut throughput = Throughput::default();
        throughput.sample(at(0), 1000, 1000);
        throughput.sample(at(5), 10, 10);
        throughput.sample(at(100), 20, 20);
        throughput.interrupt();
        throughput.sample(at(105), 30, 30);
        assert!(throughput.rates(at(110)).iter().all(Option::is_none));
        throughput.sample(at(110), 530, 30);
        assert_eq!(throughput.rates(at(110))[119], Some(Rate { read: 100, written: 0 }));
    }

    #[test]
    fn an_hour_is_kept_however_often_it_is_looked() {
        let mut throughput = Throughput::default();
        for second in 0..20_000 {
            throughput.sample(at(second), second * 7, 0);
        }
        assert_eq!(throughput.slots.len(), 120);
        assert!(throughput.rates(at(19_999)).iter().all(|rate| rate.is_some_and(|rate| rate.read == 7)));
    }
}
