//! What clients did in the last hour, and how long they waited, from the counters that the daemon sees
//! anyway. Bounded. Pure.

use std::{collections::VecDeque, time::Duration};

use pinstripe_control::{Detail, latency::Histogram};

/// Seconds that are shown as one step.
pub const STEP_SECONDS: u64 = 30;
/// Steps of an hour.
pub const STEPS: u64 = 120;
/// What was counted over more time than this is of no use: it would be shown at its end.
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// What is shown of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Bytes per second.
    pub read: u64,
    pub written: u64,
    /// None where there was nothing to wait for.
    pub reads: Option<Waits>,
    pub writes: Option<Waits>,
}

/// How long operations took, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Half of them at most.
    pub median: u64,
    /// 99 of a hundred at most.
    pub most: u64,
}

/// What a server has counted of its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    read: u64,
    written: u64,
    /// Of the buckets of both.
    bounds_ns: Vec<u64>,
    reads: Histogram,
    writes: Histogram,
}

impl Counters {
    pub fn of(detail: &Detail) -> Self {
        let count = |name: &str| detail.statistics.get(name).copied().unwrap_or(0);
        let histogram = |name: &str| detail.latency.operations.get(name).cloned().unwrap_or_default();
        Self {
            read: count("read_bytes"),
            written: count("write_bytes"),
            bounds_ns: detail.latency.bounds_ns.clone(),
            reads: histogram("read"),
            writes: histogram("write"),
        }
    }

    /// What was counted after `earlier`; none if another server has counted.
    fn since(&self, earlier: &Self) -> Option<Self> {
        let goes_on = |now: &Histogram, then: &Histogram| {
            now.buckets.len() == then.buckets.len()
                && now.buckets.iter().zip(&then.buckets).all(|(now, then)| now >= then)
        };
        let is_one = self.bounds_ns == earlier.bounds_ns
            && goes_on(&self.reads, &earlier.reads)
            && goes_on(&self.writes, &earlier.writes);
        is_one.then_some(())?;
        Some(Self {
            read: self.read.checked_sub(earlier.read)?,
            written: self.written.checked_sub(earlier.written)?,
            bounds_ns: self.bounds_ns.clone(),
            reads: self.reads.since(&earlier.reads),
            writes: self.writes.since(&earlier.writes),
        })
    }

    fn add(&mut self, more: &Self) {
        self.read = self.read.saturating_add(more.read);
        self.written = self.written.saturating_add(more.written);
        if self.bounds_ns != more.bounds_ns {
            // Buckets of two versions can't be added.
            self.bounds_ns.clone_from(&more.bounds_ns);
            (self.reads, self.writes) = (more.reads.clone(), more.writes.clone());
            return;
        }
        for (own, more) in [(&mut self.reads, &more.reads), (&mut self.writes, &more.writes)] {
            own.buckets.resize(own.buckets.len().max(more.buckets.len()), 0);
            for (own, more) in own.buckets.iter_mut().zip(&more.buckets) {
                *own = own.saturating_add(*more);
            }
        }
    }

    fn waits(&self, of: &Histogram) -> Option<Waits> {
        let within = |of_thousand| of.quantile_ns(&self.bounds_ns, of_thousand);
        Some(Waits { median: within(500)?, most: within(990)? })
    }

    /// `covered`: the time in which this was counted.
    fn step(&self, covered: Duration) -> Option<Step> {
        let per_second = |bytes: u64| {
            let rate = (u128::from(bytes) * 1000).checked_div(covered.as_millis())?;
            Some(u64::try_from(rate).unwrap_or(u64::MAX))
        };
        Some(Step {
            read: per_second(self.read)?,
            written: per_second(self.written)?,
            reads: self.waits(&self.reads),
            writes: self.waits(&self.writes),
        })
    }
}

/// Of one array.
#[derive(Clone, Debug, Default)]
pub struct LastHour {
    /// By their begins, in steps: at most [`STEPS`], oldest first. The last one still grows.
    steps: VecDeque<(u64, Option<Step>)>,
    /// What was counted in the last one, and in how much time.
    growing: (Counters, Duration),
    /// The latest counters, and when they were seen.
    last: Option<(Duration, Counters)>,
}

impl LastHour {
    /// Takes the counters as they are now.
    pub fn sample(&mut self, now: Duration, counters: Counters) {
        let more = self.last.as_ref().and_then(|(then, before)| {
            let covered = now.checked_sub(*then).filter(|covered| *covered <= PAUSE_MAX)?;
            Some((counters.since(before)?, covered))
        });
        self.last = Some((now, counters));
        let Some((counted, covered)) = more else { return };
        let number = now.as_secs() / STEP_SECONDS;
        if self.steps.back().is_none_or(|(last, _)| *last != number) {
            self.steps.push_back((number, None));
            self.growing = (Counters::default(), Duration::ZERO);
        }
        self.growing.0.add(&counted);
        self.growing.1 += covered;
        if let Some((_, step)) = self.steps.back_mut() {
            *step = self.growing.0.step(self.growing.1);
        }
        while self.steps.front().is_some_and(|(first, _)| first + STEPS <= number) {
            self.steps.pop_front();
        }
    }

    /// The counters go on elsewhere, or nowhere.
    pub fn interrupt(&mut self) {
        self.last = None;
    }

    /// [`STEPS`] steps up to now, oldest first; none where nothing is known.
    pub fn steps(&self, now: Duration) -> Vec<Option<Step>> {
        let current = now.as_secs() / STEP_SECONDS;
        let mut steps = vec![None; usize::try_from(STEPS).unwrap_or(0)];
        for (number, step) in &self.steps {
            let place = (number + STEPS - 1).checked_sub(current);
            if let Some(shown) = place.and_then(|place| steps.get_mut(usize::try_from(place).ok()?)) {
                *shown = *step;
            }
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn bytes(read: u64, written: u64) -> Counters {
        Counters { read, written, ..Counters::default() }
    }

    fn step(read: u64, written: u64) -> Step {
        Step { read, written, ..Step::default() }
    }

    /// So many reads in each of the buckets that end at 1, 2 and 4 microseconds.
    fn reads(buckets: [u64; 4]) -> Counters {
        let reads = Histogram { buckets: buckets.to_vec(), sum_ns: 0 };
        Counters { bounds_ns: vec![1000, 2000, 4000], reads, ..Counters::default() }
    }

    #[test]
    fn counters_become_rates_at_their_times() {
        let mut hour = LastHour::default();
        for (second, read, written) in [(0, 1000, 0), (5, 6000, 50), (10, 6000, 100), (35, 31_000, 100)] {
            hour.sample(at(second), bytes(read, written));
        }
        let steps = hour.steps(at(40));
        assert_eq!(steps.len(), 120);
        assert_eq!((steps[118], steps[119]), (Some(step(500, 10)), Some(step(1000, 0))));
        assert!(steps[..118].iter().all(Option::is_none));
        let later = hour.steps(at(40 + 118 * 30));
        assert_eq!((later[0], later[1]), (steps[118], steps[119]));
        assert!(hour.steps(at(40 + 120 * 30)).iter().all(Option::is_none));
    }

    #[test]
    fn waits_are_those_of_the_operations_of_their_step() {
        let mut hour = LastHour::default();
        hour.sample(at(0), reads([1000, 0, 0, 0]));
        hour.sample(at(5), reads([1000, 98, 0, 0]));
        hour.sample(at(10), reads([1000, 98, 2, 0]));
        hour.sample(at(35), reads([1000, 98, 2, 0]));
        let steps = hour.steps(at(35));
        let waits = steps[118].unwrap().reads.unwrap();
        assert_eq!(waits, Waits { median: 1510, most: 3000 }, "what was before does not count");
        assert_eq!((steps[118].unwrap().writes, steps[119].unwrap().reads), (None, None));
    }

    #[test]
    fn another_server_and_a_pause_are_gaps() {
        let mut hour = LastHour::default();
        hour.sample(at(0), bytes(1000, 1000));
        hour.sample(at(5), bytes(10, 10));
        hour.sample(at(100), bytes(20, 20));
        hour.interrupt();
        hour.sample(at(105), bytes(30, 30));
        assert!(hour.steps(at(110)).iter().all(Option::is_none));
        hour.sample(at(110), bytes(530, 30));
        assert_eq!(hour.steps(at(110))[119], Some(step(100, 0)));
        // One that has read as much since, and others of its operations are over.
        hour.sample(at(115), Counters { read: 530, written: 30, ..reads([5, 0, 0, 0]) });
        hour.sample(at(119), Counters { read: 1000, written: 30, ..reads([0, 9, 0, 0]) });
        assert_eq!(hour.steps(at(119))[119], Some(step(100, 0)));
    }

    #[test]
    fn other_buckets_replace_those_before() {
        let mut hour = LastHour::default();
        hour.sample(at(0), reads([0; 4]));
        hour.sample(at(5), reads([8, 0, 0, 0]));
        let finer = |count| Counters { bounds_ns: vec![10, 20, 40], ..reads([0, count, 0, 0]) };
        hour.sample(at(10), finer(0));
        hour.sample(at(15), finer(10));
        let waits = hour.steps(at(15))[119].unwrap().reads.unwrap();
        assert_eq!(waits.median, 15);
    }

    #[test]
    fn an_hour_is_kept_however_often_it_is_looked() {
        let mut hour = LastHour::default();
        for second in 0..20_000 {
            hour.sample(at(second), bytes(second * 7, 0));
        }
        assert_eq!(hour.steps.len(), 120);
        assert!(hour.steps(at(19_999)).iter().all(|step| step.is_some_and(|step| step.read == 7)));
    }
}
