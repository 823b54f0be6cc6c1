//! Members of files and devices that answer no sooner than a model of a drive would.
//!
//! Time is real, and so are the requests: each is over when the device has done it and the model says so. A
//! device that is slower than the model is as slow as it is. All shards share the drive of a member.

use std::{
    collections::HashMap,
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pinstripe_runtime::{
    Buffer, Device, DeviceError, DeviceInfo, DeviceSource, Slice, Submission, completion::Payload, shard,
};
use pinstripe_sim::{Drive, drive::Request, trace::Operation};

/// A member that is as slow as a drive.
pub(crate) struct PacedSource {
    source: Arc<dyn DeviceSource>,
    pace: Arc<Mutex<Pace>>,
}

impl PacedSource {
    pub(crate) fn new(source: Arc<dyn DeviceSource>, drive: Drive) -> Self {
        let pace = Pace { drive, time: 0, submitted: 0, ends: HashMap::new() };
        Self { source, pace: Arc::new(Mutex::new(pace)) }
    }
}

impl DeviceSource for PacedSource {
    fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        let device = self.source.attach()?;
        let model = *lock(&self.pace).drive.model();
        let info = DeviceInfo {
            volatile_cache: device.info().volatile_cache || model.flush_ns.is_some(),
            in_memory: false,
            moves_head: model.moves_head(),
            ..device.info().clone()
        };
        Ok(Rc::new(PacedDevice { device, info, pace: Arc::clone(&self.pace) }))
    }

    fn name(&self) -> String {
        format!("{} as {}", self.source.name(), lock(&self.pace).drive.model().name)
    }
}

struct PacedDevice {
    device: Rc<dyn Device>,
    info: DeviceInfo,
    pace: Arc<Mutex<Pace>>,
}

impl PacedDevice {
    /// A request that the device has got, and that ends when the drive has done it, too. `payload` is there
    /// to try it again if the device was busy; a read's buffer comes back from the device.
    fn pace(
        &self,
        submission: Submission,
        operation: Operation,
        [offset, length]: [u64; 2],
        payload: Payload,
    ) -> Submission {
        let number = lock(&self.pace).submit(shard::machine_now(), operation, offset, length);
        let (paced, completion) = Submission::pending(payload);
        let pace = Arc::clone(&self.pace);
        shard::spawn(async move {
            let outcome = submission.await;
            loop {
                let left = lock(&pace).left(shard::machine_now(), number);
                let Some(nanoseconds) = left else { break };
                shard::sleep(nanoseconds).await;
            }
            if let Some(buffer) = outcome.buffer {
                completion.with_payload(|payload| *payload = Payload::Buffer(buffer));
            }
            completion.finish(outcome.result);
        });
        paced
    }
}

impl Device for PacedDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, buffer: Buffer) -> Submission {
        let range = [offset, buffer.len() as u64];
        self.pace(self.device.read(offset, buffer), Operation::Read, range, Payload::None)
    }

    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        let operation = if fua { Operation::WriteFua } else { Operation::Write };
        let range = [offset, data.len() as u64];
        let again = Payload::Slice(data.clone());
        self.pace(self.device.write(offset, data, fua), operation, range, again)
    }

    fn flush(&self) -> Submission {
        self.pace(self.device.flush(), Operation::Flush, [0, 0], Payload::None)
    }

    fn discard(&self, offset: u64, length: u64) -> Submission {
        let submission = self.device.discard(offset, length);
        self.pace(submission, Operation::Discard, [offset, length], Payload::None)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Submission {
        let submission = self.device.write_zeroes(offset, length);
        self.pace(submission, Operation::WriteZeroes, [offset, length], Payload::None)
    }
}

/// A drive, and the requests that it has not done.
struct Pace {
    drive: Drive,
    /// The latest that was seen: shards look at the clock, and then one after the other come here.
    time: u64,
    submitted: u64,
    /// When requests end of which that is known, by their numbers.
    ends: HashMap<u64, u64>,
}

impl Pace {
    /// Takes a request and gives it a number.
    fn submit(&mut self, now: u64, operation: Operation, offset: u64, length: u64) -> u64 {
        self.go_on(now);
        let number = self.submitted;
        self.submitted += 1;
        let end = self.drive.submit(self.time, Request { number, operation, offset, length });
        self.ends.extend(end.map(|at| (number, at)));
        number
    }

    /// How many nanoseconds a request has yet to wait until it ends, or until more is known; `None` once it
    /// has ended.
    fn left(&mut self, now: u64, number: u64) -> Option<u64> {
        self.go_on(now);
        let next = self.ends.get(&number).copied().or_else(|| self.drive.next_turn())?;
        let left = next.checked_sub(now).filter(|&left| left > 0);
        if left.is_none() {
            self.ends.remove(&number);
        }
        left
    }

    /// Has the drive take up the work that it can by now.
    fn go_on(&mut self, now: u64) {
        self.time = self.time.max(now);
        while self.drive.next_turn().is_some_and(|turn| turn <= self.time) {
            for ending in self.drive.turn() {
                self.ends.entry(ending.number).or_insert(ending.at);
            }
        }
    }
}

fn lock(pace: &Mutex<Pace>) -> MutexGuard<'_, Pace> {
    pace.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use pinstripe_sim::Model;

    use super::*;

    /// When requests end that come at these times, each a 4 KiB read of its own place.
    fn ends(model: &str, times: &[u64]) -> Vec<u64> {
        let drive = Drive::new(Model::named(model).expect("a model"), 0);
        let mut pace = Pace { drive, time: 0, submitted: 0, ends: HashMap::new() };
        let numbers: Vec<u64> = times
            .iter()
            .zip(1..)
            .map(|(at, place)| pace.submit(*at, Operation::Read, place << 30, 4096))
            .collect();
        let end = |number: u64| {
            let mut now = times.last().copied().unwrap_or_default();
            while let Some(left) = pace.left(now, number) {
                now += left;
            }
            now
        };
        numbers.into_iter().map(end).collect()
    }

    #[test]
    fn a_request_ends_when_the_drive_says_so_and_the_next_begins_then() {
        let read = 1_000_000_000 / 22_000;
        let [first, second] = ends("980-pro", &[0, 100])[..] else { panic!("two requests") };
        // A million of them a second.
        assert!(first.abs_diff(read) <= 1 && second.abs_diff(read + 1000) <= 1, "{first} {second}");
        // A head serves one after the other, in its own order.
        let mut disk = ends("7200rpm", &[0, 0, 0, 0]);
        disk.sort_unstable();
        assert!(disk.windows(2).all(|pair| pair[0] + 1_000_000 < pair[1]), "{disk:?}");
    }

    #[test]
    fn a_clock_that_another_shard_read_earlier_does_no_harm() {
        let drive = Drive::new(Model::named("7200rpm").expect("a model"), 0);
        let mut pace = Pace { drive, time: 0, submitted: 0, ends: HashMap::new() };
        let late = pace.submit(50_000_000, Operation::Read, 0, 4096);
        let early = pace.submit(10, Operation::Read, 1 << 30, 4096);
        assert!(pace.left(10, early) > Some(49_000_000) && pace.left(10, late) > Some(49_000_000));
        assert!(pace.left(1_000_000_000, early).is_none() && pace.left(1_000_000_000, late).is_none());
        assert!(pace.ends.is_empty());
    }
}
