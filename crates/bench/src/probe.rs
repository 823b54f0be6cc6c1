//! `pinstripe bench --probe`: what a device is able to do, in the figures that a model of a drive has.
//!
//! Closed loops over the device, each for some seconds: small requests at random places at several depths,
//! and large ones in order. Of them come the latency of a request alone, requests per second at most, and
//! bandwidth, as far as one thread can ask for them. Reading only, unless writes are asked for, which
//! overwrite what the device holds; then flushes are timed, too.
//!
//! Writes come first. Flash that is new or was trimmed answers reads of what was never written without
//! looking: what is read is what was written just before. A disk reads everywhere: it has no such places, and
//! its head shall move as far as it does in use.

use std::{
    cell::{Cell, RefCell},
    fmt, fs,
    path::Path,
    rc::Rc,
};

use pinstripe_control::size::ByteSize;
use pinstripe_runtime::{
    Buffer, Device, DeviceError, DeviceInfo, shard,
    uring::{self, OpenFile, OpenOptions, RuntimeConfig, blocking},
};
use pinstripe_sim::{Model, drive::Speed};
use serde::{Deserialize, Serialize};

use crate::{
    arguments::BenchArgs,
    report::{by, row},
    rng::Rng,
    run::{BenchError, check_numbers, nanoseconds},
    worker::{end_all, histogram},
};

/// Bytes of a small request, of which data sheets give counts too.
const SMALL: u64 = 4096;
/// Bytes of a large one.
const LARGE: u64 = 1 << 20;
/// Small requests at a time.
const DEPTHS: [usize; 4] = [1, 4, 16, DEPTH_MAX];
const DEPTH_MAX: usize = 64;
/// Large requests at a time.
const LARGE_DEPTHS: [usize; 2] = [1, 16];
/// So many small places that were written are kept in mind, to read them.
const PLACES_MAX: usize = 1 << 20;
/// A device must have room for this.
const SIZE_MIN: u64 = 64 << 20;

/// What a device did, and by which a plan has a model of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Its name.
    pub device: String,
    /// Its size.
    pub size_bytes: u64,
    /// Whether it has a cache that a flush empties.
    pub volatile_cache: bool,
    /// How it reads.
    pub reads: Direction,
    /// How it writes, if that was measured.
    pub writes: Option<Direction>,
    /// Small requests of which half write, at the largest depth, if writes were measured.
    pub mixed: Option<Point>,
    /// What a flush after a small write takes, if that was measured.
    pub flush_ns: Option<u64>,
}

/// One direction of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Direction {
    /// Small requests at random places, by depth.
    pub small: Vec<Point>,
    /// Large requests in order, by depth.
    pub large: Vec<Point>,
}

/// One load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Bytes of a request.
    pub request_bytes: u64,
    /// Requests at a time.
    pub depth: usize,
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Average latency.
    pub latency_ns_mean: f64,
    /// Of 99 of 100.
    pub latency_ns_p99: u64,
}

/// Measures the device of `--probe`.
pub fn probe(arguments: &BenchArgs, path: &Path) -> Result<Probe, BenchError> {
    check_numbers(arguments)?;
    if arguments.probe_writes && !arguments.force {
        return Err(BenchError::Force);
    }
    let (path, arguments) = (path.to_owned(), arguments.clone());
    uring::run(&RuntimeConfig::unpinned(1), move |_| async move {
        let writes = arguments.probe_writes;
        let options = OpenOptions {
            read_only: !writes,
            exclusive: writes,
            size_min: SIZE_MIN,
            ..OpenOptions::default()
        };
        let file = blocking(move || OpenFile::open(&path, &options)).await?;
        let device = file.source().attach().map_err(BenchError::Attach)?;
        measure(&arguments, device).await.map_err(|error| BenchError::Io(error.into()))
    })?
}

async fn measure(arguments: &BenchArgs, device: Rc<dyn Device>) -> Result<Probe, DeviceError> {
    let for_ns = nanoseconds(arguments.seconds);
    let info = device.info().clone();
    let places = Rc::new(Places::of(&info, arguments.seed));
    let (mut writes, mut mixed, mut flush_ns) = (None, None, None);
    if arguments.probe_writes {
        writes = Some(direction(&device, &places, Mix::Writes, for_ns).await?);
    }
    let reads = direction(&device, &places, Mix::Reads, for_ns).await?;
    if arguments.probe_writes {
        mixed = Some(point(&device, &places, (Mix::Half, SMALL, DEPTH_MAX), for_ns).await?);
        flush_ns = Some(flush(&device, for_ns).await?);
    }
    Ok(Probe {
        device: info.name,
        size_bytes: info.size,
        volatile_cache: info.volatile_cache,
        reads,
        writes,
        mixed,
        flush_ns,
    })
}

/// What requests do.
#[derive(Clone, Copy)]
enum Mix {
    Reads,
    Writes,
    Half,
}

/// Where requests go, and what has been written there.
struct Places {
    /// Bytes of the device.
    size: u64,
    /// Whether places that were never written are read like others.
    reads_all: bool,
    rng: RefCell<Rng>,
    /// Small units that were written, once for each time.
    small: RefCell<Vec<u64>>,
    /// Large units that were written, from the first one.
    large: Cell<u64>,
}

impl Places {
    fn of(info: &DeviceInfo, seed: u64) -> Self {
        Self {
            size: info.size,
            reads_all: info.moves_head == Some(true),
            rng: Rng::new(seed).into(),
            small: Vec::with_capacity(PLACES_MAX).into(),
            large: Cell::new(0),
        }
    }

    /// The unit of the next request, which is the `number`-th of its loop.
    fn next(&self, length: u64, number: u64, writes: bool) -> u64 {
        let (units, mut rng, mut small) =
            (self.size / length, self.rng.borrow_mut(), self.small.borrow_mut());
        let only_written = !writes && !self.reads_all;
        if length != SMALL {
            let written = self.large.get();
            return number % if only_written && written > 0 { written } else { units };
        }
        if only_written && !small.is_empty() {
            let written = rng.below(small.len() as u64);
            return small[usize::try_from(written).unwrap_or(0)];
        }
        let unit = rng.below(units);
        if writes && small.len() < PLACES_MAX {
            small.push(unit);
        }
        unit
    }

    /// Notes that a loop of large requests has written so many units in order.
    fn wrote_large(&self, requests: u64) {
        self.large.set(self.large.get().max(requests.min(self.size / LARGE)));
    }
}

async fn direction(
    device: &Rc<dyn Device>,
    places: &Rc<Places>,
    mix: Mix,
    for_ns: u64,
) -> Result<Direction, DeviceError> {
    let mut direction = Direction { small: Vec::new(), large: Vec::new() };
    for depth in DEPTHS {
        direction.small.push(point(device, places, (mix, SMALL, depth), for_ns).await?);
    }
    for depth in LARGE_DEPTHS {
        direction.large.push(point(device, places, (mix, LARGE, depth), for_ns).await?);
    }
    Ok(direction)
}

/// What the tasks of a closed loop share.
struct Loop {
    device: Rc<dyn Device>,
    places: Rc<Places>,
    mix: Mix,
    length: u64,
    deadline: u64,
    taken: Cell<u64>,
    done: Cell<u64>,
    latency: RefCell<hdrhistogram::Histogram<u64>>,
}

async fn point(
    device: &Rc<dyn Device>,
    places: &Rc<Places>,
    (mix, length, depth): (Mix, u64, usize),
    for_ns: u64,
) -> Result<Point, DeviceError> {
    // Made before the clock begins: the thread that asks is the only one.
    let buffers: Vec<Buffer> = (0..depth).map(|_| noise(places, length)).collect();
    let began = shard::now();
    let run = Rc::new(Loop {
        device: Rc::clone(device),
        places: Rc::clone(places),
        mix,
        length,
        deadline: began + for_ns,
        taken: Cell::new(0),
        done: Cell::new(0),
        latency: histogram().into(),
    });
    let tasks = buffers.into_iter().map(|buffer| shard::spawn_joined(requests(Rc::clone(&run), buffer)));
    end_all(tasks.collect()).await?;
    let seconds = by(shard::now() - began, 1) / 1e9;
    if length == LARGE && matches!(mix, Mix::Writes) {
        places.wrote_large(run.done.get());
    }
    let (iops, latency) = (by(run.done.get(), 1) / seconds, run.latency.borrow());
    Ok(Point {
        request_bytes: length,
        depth,
        iops,
        bytes_per_second: iops * by(length, 1),
        latency_ns_mean: latency.mean(),
        latency_ns_p99: latency.value_at_quantile(0.99),
    })
}

async fn requests(run: Rc<Loop>, mut buffer: Buffer) -> Result<(), DeviceError> {
    while shard::now() < run.deadline {
        let writes = match run.mix {
            Mix::Reads => false,
            Mix::Writes => true,
            Mix::Half => run.places.rng.borrow_mut().below(2) == 1,
        };
        let number = run.taken.replace(run.taken.get() + 1);
        let offset = run.places.next(run.length, number, writes) * run.length;
        if writes {
            renew(&run.places, &mut buffer);
        }
        let started = shard::now();
        let returned = if writes {
            let data = buffer.freeze();
            run.device.write(offset, data.clone(), false).await.result?;
            data.try_into_buffer().ok()
        } else {
            let outcome = run.device.read(offset, buffer).await;
            outcome.result?;
            outcome.buffer
        };
        run.done.set(run.done.get() + 1);
        run.latency.borrow_mut().saturating_record(shard::now() - started);
        buffer = returned.unwrap_or_else(|| noise(&run.places, run.length));
    }
    Ok(())
}

/// Bytes that no device makes less of: each word once.
fn noise(places: &Places, length: u64) -> Buffer {
    let mut buffer = shard::buffer(usize::try_from(length).unwrap_or(usize::MAX));
    let (first, step) = {
        let mut rng = places.rng.borrow_mut();
        (rng.next(), rng.next() | 1)
    };
    let mut word = first;
    for eight in buffer.chunks_exact_mut(8) {
        eight.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(step);
    }
    buffer
}

/// Makes each block another one than all that were written, so that no device keeps two of them as one.
fn renew(places: &Places, buffer: &mut Buffer) {
    let mut rng = places.rng.borrow_mut();
    for block in buffer.chunks_exact_mut(usize::try_from(SMALL).unwrap_or(usize::MAX)) {
        block[..8].copy_from_slice(&rng.next().to_le_bytes());
    }
}

/// What a flush takes after a small write, on average.
async fn flush(device: &Rc<dyn Device>, for_ns: u64) -> Result<u64, DeviceError> {
    let (deadline, mut flushes, mut sum) = (shard::now() + for_ns, 0, 0);
    let length = usize::try_from(SMALL).unwrap_or(usize::MAX);
    loop {
        device.write(0, shard::zeroed(length).freeze(), false).await.result?;
        let started = shard::now();
        device.flush().await.result?;
        (sum, flushes) = (sum + shard::now() - started, flushes + 1);
        if shard::now() >= deadline {
            return Ok(sum / flushes);
        }
    }
}

fn most(points: &[Point], value: fn(&Point) -> f64) -> f64 {
    points.iter().map(value).fold(1.0, f64::max)
}

impl Direction {
    /// Small requests a second at most.
    fn small_most(&self) -> f64 {
        most(&self.small, |point| point.iops)
    }

    fn speed(&self) -> Speed {
        let alone = self.small.first();
        Speed::measured(
            alone.map_or(SMALL, |alone| alone.request_bytes),
            whole(alone.map_or(0.0, |alone| alone.latency_ns_mean)),
            whole(self.small_most()),
            whole(most(&self.large, |point| point.bytes_per_second)),
        )
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rates and times of a device")]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

impl Probe {
    /// Reads what `bench --probe --json` printed.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let failed = |error: &dyn fmt::Display| {
            format!(
                "{}: {error}: neither model:NAME:SIZE nor a file that `pinstripe bench --probe DEVICE --json` printed",
                path.display()
            )
        };
        let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
        let probe: Self = serde_json::from_str(&text).map_err(|error| failed(&error))?;
        if probe.reads.small.is_empty() || probe.reads.large.is_empty() {
            return Err(failed(&"it has no measurements"));
        }
        Ok(probe)
    }

    /// The drive that does the same. What wasn't measured is as what was: see [`Self::assumed`].
    pub(crate) fn model(&self) -> Model {
        let read = self.reads.speed();
        let write = self.writes.as_ref().map_or(read, Direction::speed);
        let flush_ns = self.volatile_cache.then(|| self.flush_ns.unwrap_or(0));
        Model::measured(read, write, flush_ns, DEPTH_MAX, self.is_duplex())
    }

    /// Whether reads and writes get in each other's way no more than if each had a device of its own: half of
    /// each are then twice as many as the slower ones, and otherwise take as long as both.
    fn is_duplex(&self) -> bool {
        let (Some(writes), Some(mixed)) = (&self.writes, self.mixed) else { return false };
        let (reads, writes) = (self.reads.small_most(), writes.small_most());
        let (alternating, apart) = (2.0 / (1.0 / reads + 1.0 / writes), 2.0 * reads.min(writes));
        mixed.iops > f64::midpoint(alternating, apart)
    }

    /// What of the model wasn't measured.
    pub(crate) fn assumed(&self) -> Option<&'static str> {
        self.writes.is_none().then_some(
            "writes are as fast as reads, and flushes take no time: the probe was not allowed to write \
             (--probe-writes). And what it read had been written before: flash that is new or was trimmed \
             answers reads of the rest at once, so that a plan has them too fast",
        )
    }

    /// As JSON, over several lines.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|_| unreachable!("keys are texts"))
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        row(f, "device", format_args!("{}, {}", self.device, ByteSize(self.size_bytes)))?;
        for (name, direction) in [("reads", Some(&self.reads)), ("writes", self.writes.as_ref())] {
            let Some(direction) = direction else {
                row(f, name, format_args!("not measured: --probe-writes overwrites the device"))?;
                continue;
            };
            for (number, point) in direction.small.iter().chain(&direction.large).enumerate() {
                row(
                    f,
                    if number == 0 { name } else { "" },
                    format_args!(
                        "{:>8} at depth {:>2}: {:>9.0} requests/s, {:>8.1} MiB/s, latency {:.1} us, 99% {:.1} us",
                        ByteSize(point.request_bytes).to_string(),
                        point.depth,
                        point.iops,
                        point.bytes_per_second / f64::from(1 << 20),
                        point.latency_ns_mean / 1e3,
                        by(point.latency_ns_p99, 1000)
                    ),
                )?;
            }
        }
        if let Some(mixed) = self.mixed {
            let apart = if self.is_duplex() { "apart" } else { "in turns" };
            row(
                f,
                "half of each",
                format_args!(
                    "{:.0} requests/s at depth {}: reads and writes go {apart}",
                    mixed.iops, mixed.depth
                ),
            )?;
        }
        match self.flush_ns {
            Some(flush) => row(f, "flush", format_args!("{:.1} us", by(flush, 1000))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use pinstripe_runtime::{DeviceSource, Memory, MemorySource, Slice, Submission};

    use super::*;

    fn point(request_bytes: u64, depth: usize, iops: f64, latency_ns_mean: f64) -> Point {
        let bytes_per_second = iops * by(request_bytes, 1);
        Point { request_bytes, depth, iops, bytes_per_second, latency_ns_mean, latency_ns_p99: 0 }
    }

    fn probed() -> Probe {
        let small = vec![point(SMALL, 1, 5e3, 2e5), point(SMALL, 16, 2e4, 8e5)];
        let large = vec![point(LARGE, 1, 100.0, 1e7), point(LARGE, 16, 400.0, 4e7)];
        let reads = Direction { small, large };
        Probe {
            device: "x".into(),
            size_bytes: 1 << 30,
            volatile_cache: true,
            reads,
            writes: None,
            mixed: None,
            flush_ns: None,
        }
    }

    #[test]
    fn a_model_has_the_latency_of_one_request_and_the_most_of_many() {
        let model = probed().model();
        assert_eq!((model.read.interval_ns, model.read.bytes_per_second), (50_000, 400 << 20));
        assert_eq!(model.read.access_ns, 150_000, "the interval is part of what one request takes");
        assert_eq!((model.write, model.flush_ns), (model.read, Some(0)));
        assert!(probed().assumed().is_some());
        let writes = Some(Direction { small: vec![point(SMALL, 1, 1e3, 1e6)], ..probed().reads });
        let written = Probe { writes, flush_ns: Some(7), ..probed() };
        assert_eq!((written.model().write.interval_ns, written.model().flush_ns), (1_000_000, Some(7)));
        assert!(written.assumed().is_none());
    }

    #[test]
    fn reads_and_writes_are_apart_where_a_mix_is_faster_than_one_after_the_other() {
        // 20,000 reads or 5,000 writes a second: 8,000 of both in turns, 10,000 apart.
        let of = |mixed: Option<f64>| {
            let writes = Some(Direction { small: vec![point(SMALL, 64, 5e3, 1e6)], ..probed().reads });
            let mixed = mixed.map(|iops| point(SMALL, 64, iops, 1e6));
            Probe { writes, mixed, ..probed() }.is_duplex()
        };
        assert!(of(Some(9.8e3)) && !of(Some(8.1e3)) && !of(None));
    }

    /// A drive without a head, in memory, of which each read of what was never written is counted.
    struct Watched {
        memory: Rc<dyn Device>,
        written: RefCell<Vec<bool>>,
        blind_reads: Rc<Cell<u64>>,
    }

    impl Watched {
        fn blocks(offset: u64, length: usize) -> std::ops::Range<usize> {
            let first = usize::try_from(offset / SMALL).unwrap();
            first..first + length / usize::try_from(SMALL).unwrap()
        }
    }

    impl Device for Watched {
        fn info(&self) -> &DeviceInfo {
            self.memory.info()
        }

        fn read(&self, offset: u64, buffer: Buffer) -> Submission {
            let blocks = Self::blocks(offset, buffer.len());
            let blind = self.written.borrow()[blocks].iter().filter(|written| !**written).count();
            self.blind_reads.set(self.blind_reads.get() + blind as u64);
            self.memory.read(offset, buffer)
        }

        fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
            self.written.borrow_mut()[Self::blocks(offset, data.len())].fill(true);
            self.memory.write(offset, data, fua)
        }

        fn flush(&self) -> Submission {
            self.memory.flush()
        }

        fn discard(&self, offset: u64, length: u64) -> Submission {
            self.memory.discard(offset, length)
        }

        fn write_zeroes(&self, offset: u64, length: u64) -> Submission {
            self.memory.write_zeroes(offset, length)
        }
    }

    /// Of memory of 256 MiB: what was measured, and the blocks that were read and never written.
    fn measured(probe_writes: bool) -> (Probe, u64) {
        let arguments = BenchArgs { probe_writes, seconds: 0.01, ..BenchArgs::defaults() };
        uring::run(&RuntimeConfig::unpinned(1), move |_| async move {
            let source = MemorySource {
                name: "memory".into(),
                memory: Memory::populated(256 << 20).unwrap(),
                logical_block: 512,
            };
            let (memory, blind_reads) = (source.attach().unwrap(), Rc::new(Cell::new(0)));
            let written = vec![false; 256 << 20 >> 12].into();
            let device = Rc::new(Watched { memory, written, blind_reads: Rc::clone(&blind_reads) });
            (measure(&arguments, device).await.unwrap(), blind_reads.get())
        })
        .unwrap()
    }

    #[test]
    fn where_writes_are_measured_nothing_is_read_that_was_not_written() {
        assert_eq!(measured(true).1, 0);
        assert!(measured(false).1 > 0, "nothing may be written");
    }

    #[test]
    fn a_write_takes_what_the_device_takes_and_not_what_its_data_take_to_make() {
        let of = |direction: &Direction| direction.large[0].latency_ns_mean;
        // One of them, for the thread may be taken off its CPU at any time.
        let is_right = |_| {
            let (probe, _) = measured(true);
            of(probe.writes.as_ref().unwrap()) < 5.0 * of(&probe.reads)
        };
        assert!((0..10).any(is_right), "a write of memory takes five times as long as a read");
    }

    #[test]
    fn what_was_printed_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("probe.json");
        fs::write(&path, probed().to_json()).unwrap();
        assert_eq!(Probe::read(&path).unwrap(), probed());
        fs::write(&path, "{}").unwrap();
        assert!(Probe::read(&path).unwrap_err().contains("bench --probe"));
        assert!(Probe::read(&folder.path().join("none")).is_err());
    }
}
