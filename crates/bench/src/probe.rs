//! `pinstripe bench --probe`: what a device is able to do, in the figures that a model of a drive has.
//!
//! Closed loops over the device, each for some seconds: small requests at random places at several depths,
//! and large ones in order. Of them come the latency of a request alone, requests per second at most, and
//! bandwidth. Reading only, unless writes are asked for, which overwrite what the device holds; then flushes
//! are timed, too.

use std::{cell::Cell, fmt, fs, path::Path, rc::Rc};

use pinstripe_control::size::ByteSize;
use pinstripe_runtime::{
    Device, DeviceError, shard,
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
    let reads = direction(&device, Mix::Reads, for_ns, arguments.seed).await?;
    let (mut writes, mut mixed, mut flush_ns) = (None, None, None);
    if arguments.probe_writes {
        writes = Some(direction(&device, Mix::Writes, for_ns, arguments.seed).await?);
        mixed = Some(point(&device, (Mix::Half, SMALL, DEPTH_MAX), for_ns, arguments.seed).await?);
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

async fn direction(
    device: &Rc<dyn Device>,
    mix: Mix,
    for_ns: u64,
    seed: u64,
) -> Result<Direction, DeviceError> {
    let mut direction = Direction { small: Vec::new(), large: Vec::new() };
    for depth in DEPTHS {
        direction.small.push(point(device, (mix, SMALL, depth), for_ns, seed).await?);
    }
    for depth in LARGE_DEPTHS {
        direction.large.push(point(device, (mix, LARGE, depth), for_ns, seed).await?);
    }
    Ok(direction)
}

/// What the tasks of a closed loop share.
struct Loop {
    device: Rc<dyn Device>,
    mix: Mix,
    length: u64,
    deadline: u64,
    rng: std::cell::RefCell<Rng>,
    next: Cell<u64>,
    done: Cell<u64>,
    latency: std::cell::RefCell<hdrhistogram::Histogram<u64>>,
}

async fn point(
    device: &Rc<dyn Device>,
    (mix, length, depth): (Mix, u64, usize),
    for_ns: u64,
    seed: u64,
) -> Result<Point, DeviceError> {
    let began = shard::now();
    let run = Rc::new(Loop {
        device: Rc::clone(device),
        mix,
        length,
        deadline: began + for_ns,
        rng: Rng::new(seed).into(),
        next: Cell::new(0),
        done: Cell::new(0),
        latency: histogram().into(),
    });
    let tasks = (0..depth).map(|_| shard::spawn_joined(requests(Rc::clone(&run)))).collect();
    end_all(tasks).await?;
    let seconds = by(shard::now() - began, 1) / 1e9;
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

async fn requests(run: Rc<Loop>) -> Result<(), DeviceError> {
    let units = run.device.info().size / run.length;
    let length = usize::try_from(run.length).unwrap_or(usize::MAX);
    loop {
        let unit = match run.length {
            SMALL => run.rng.borrow_mut().below(units),
            _ => run.next.replace((run.next.get() + 1) % units),
        };
        let started = shard::now();
        if started >= run.deadline {
            return Ok(());
        }
        let offset = unit * run.length;
        let writes = match run.mix {
            Mix::Reads => false,
            Mix::Writes => true,
            Mix::Half => run.rng.borrow_mut().below(2) == 1,
        };
        if writes {
            run.device.write(offset, noise(&run, length).freeze(), false).await.result?;
        } else {
            run.device.read(offset, shard::buffer(length)).await.result?;
        }
        run.done.set(run.done.get() + 1);
        run.latency.borrow_mut().saturating_record(shard::now() - started);
    }
}

/// Bytes that no device makes less of: each word once.
fn noise(run: &Loop, length: usize) -> pinstripe_runtime::Buffer {
    let (mut buffer, mut rng) = (shard::buffer(length), run.rng.borrow_mut());
    let (first, step) = (rng.next(), rng.next() | 1);
    let mut word = first;
    for eight in buffer.chunks_exact_mut(8) {
        eight.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(step);
    }
    buffer
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
            "writes are as fast as reads, and flushes take no time: the probe was not allowed to write (--probe-writes)",
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
