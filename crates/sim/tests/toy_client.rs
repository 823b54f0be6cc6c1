//! A client without any cleverness over one disk, through many crashes, judged by the ledger: what disk and
//! ledger say of writes, flushes, overlaps and power losses must agree under every schedule. Then disks with
//! a lie in them, which the ledger must find.
#![allow(clippy::unwrap_used, reason = "a test may stop at whatever it did not expect")]

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use pinstripe_runtime::{Device, DeviceErrorKind, ZeroedReads, shard};
use pinstripe_sim::{Fault, Ledger, Rng, SimDisk, SimDiskConfig, Violation, World, WorldConfig};

const SECTORS: u64 = 48;

/// What is wrong with the client or its disk, on purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    None,
    /// Flushes are answered and never reach the disk.
    FlushSkipped,
    /// Forced writes are submitted as plain ones.
    ForceDropped,
    /// One in twenty writes is answered and never submitted.
    WriteLost,
    /// One in twenty writes goes one sector too far.
    WriteMisplaced,
    /// One in twenty reads gives the durable contents, which may be older.
    ReadStale,
    /// A flush is submitted beside the last write rather than after it.
    FlushEarly,
}

struct Client {
    device: Rc<dyn Device>,
    disk: SimDisk,
    ledger: Rc<RefCell<Ledger>>,
    rng: Rng,
    lie: Lie,
}

impl Client {
    fn lies(&mut self, lie: Lie) -> bool {
        self.lie == lie && self.rng.chance(1, 20)
    }

    fn range(&mut self) -> (u64, usize) {
        let sector = self.rng.below(SECTORS);
        let count = 1 + self.rng.below((SECTORS - sector).min(12));
        (sector, usize::try_from(count).unwrap())
    }

    async fn write(&mut self) {
        let (sector, count) = self.range();
        let forced = self.rng.chance(1, 5);
        let mut data = shard::buffer(count * 512);
        let id = self.ledger.borrow_mut().begin_write(sector, &mut data, forced);
        let data = data.freeze();
        let succeeded = if self.lies(Lie::WriteLost) {
            true
        } else {
            let end = sector + count as u64;
            let off = u64::from(end < SECTORS && self.lies(Lie::WriteMisplaced));
            let fua = forced && self.lie != Lie::ForceDropped;
            let write = self.device.write((sector + off) * 512, data, fua);
            if self.lie == Lie::FlushEarly {
                // What should come after the answer is submitted before it, and taken for the real thing.
                let flush = self.device.flush();
                let succeeded = write.await.result.is_ok();
                self.ledger.borrow_mut().complete_write(id, succeeded);
                let promise = self.ledger.borrow_mut().begin_flush();
                let flushed = flush.await.result.is_ok();
                self.ledger.borrow_mut().complete_flush(promise, flushed);
                return;
            }
            write.await.result.is_ok()
        };
        self.ledger.borrow_mut().complete_write(id, succeeded);
    }

    async fn zero(&mut self) {
        let (sector, count) = self.range();
        let sectors = sector..sector + count as u64;
        let (offset, length) = (sector * 512, count as u64 * 512);
        let (id, result) = if self.rng.chance(1, 2) {
            let id = self.ledger.borrow_mut().begin_zeroes(sectors, false);
            (id, self.device.write_zeroes(offset, length).await.result)
        } else {
            let id = self.ledger.borrow_mut().begin_discard(sectors, false);
            (id, self.device.discard(offset, length).await.result)
        };
        self.ledger.borrow_mut().complete_write(id, result.is_ok());
    }

    async fn flush(&mut self) {
        let id = self.ledger.borrow_mut().begin_flush();
        let succeeded = self.lie == Lie::FlushSkipped || self.device.flush().await.result.is_ok();
        self.ledger.borrow_mut().complete_flush(id, succeeded);
    }

    async fn read(&mut self) -> Result<(), Violation> {
        let (sector, count) = self.range();
        self.read_range(sector, count).await
    }

    async fn read_range(&mut self, sector: u64, count: usize) -> Result<(), Violation> {
        let id = self.ledger.borrow_mut().begin_read(sector..sector + count as u64);
        if self.lies(Lie::ReadStale) {
            let bytes = self.disk.peek_durable(sector * 512, count * 512);
            return self.ledger.borrow_mut().check_read(id, &bytes);
        }
        let outcome = self.device.read(sector * 512, shard::buffer(count * 512)).await;
        match outcome.result {
            Ok(_) => self.ledger.borrow_mut().check_read(id, &outcome.buffer.unwrap()),
            Err(error) => {
                assert_eq!(error.kind, DeviceErrorKind::Media);
                self.ledger.borrow_mut().abandon_read(id);
                Ok(())
            }
        }
    }

    async fn work(mut self, operations: u64, found: Rc<RefCell<Option<Violation>>>) {
        for _ in 0..operations {
            let result = match self.rng.below(16) {
                0 => {
                    self.flush().await;
                    Ok(())
                }
                1 => {
                    self.zero().await;
                    Ok(())
                }
                2..9 => {
                    self.write().await;
                    Ok(())
                }
                _ => self.read().await,
            };
            if let Err(violation) = result {
                found.borrow_mut().get_or_insert(violation);
            }
        }
    }
}

struct Run {
    found: Option<Violation>,
    trace: u64,
}

/// Six lives over one disk. Each starts with a read of everything and ends with power loss, death or peace.
fn run(seed: u64, lie: Lie) -> Run {
    let mut world = World::new(WorldConfig { arena_bytes: 1 << 16, ..WorldConfig::new(seed, 2) });
    let mut rng = world.rng(9);
    let config = SimDiskConfig {
        zeroes: ZeroedReads::Zero,
        discards: true,
        discard_zeroes: true,
        ..SimDiskConfig::drawn(&mut rng, "disk", SECTORS * 512)
    };
    let disk = world.add_disk(config);
    let ledger = Rc::new(RefCell::new(Ledger::new(SECTORS)));
    let found = Rc::new(RefCell::new(None));
    for _ in 0..6 {
        let all = client(&mut world, 0, &disk, &ledger, &mut rng, lie);
        let result = world.block_on(0, "read everything", 10_000, async move {
            let mut all = all;
            all.read_range(0, usize::try_from(SECTORS).unwrap()).await
        });
        if let Err(violation) = result.unwrap() {
            found.borrow_mut().get_or_insert(violation);
        }
        if rng.chance(1, 3) {
            let sector = rng.below(SECTORS);
            disk.fault(&Fault::UnreadableRange(sector * 512..(sector + 1) * 512));
        }
        let finished = Rc::new(Cell::new(0));
        for number in 0..4 {
            let client = client(&mut world, number % 2, &disk, &ledger, &mut rng, lie);
            let (found, finished) = (Rc::clone(&found), Rc::clone(&finished));
            world.spawn(number % 2, "client", async move {
                client.work(25, found).await;
                finished.set(finished.get() + 1);
            });
        }
        let steps = rng.below(1500);
        let all_done = world.run_until(steps, |_| finished.get() == 4).is_ok();
        if all_done {
            world.run_until_idle(1000).unwrap();
            assert!(world.leak_report().is_clean(), "seed {seed}: {}", world.leak_report());
        }
        if rng.chance(1, 4) {
            world.kill();
            ledger.borrow_mut().kill();
        } else {
            world.crash();
            ledger.borrow_mut().crash();
        }
        assert!(world.leak_report().is_clean(), "seed {seed}: {}", world.leak_report());
        disk.fault(&Fault::Heal);
    }
    let found = found.take();
    Run { found, trace: world.trace().hash() }
}

fn client(
    world: &mut World,
    shard: usize,
    disk: &SimDisk,
    ledger: &Rc<RefCell<Ledger>>,
    rng: &mut Rng,
    lie: Lie,
) -> Client {
    let _entered = world.enter(shard);
    Client { device: disk.attach(), disk: disk.clone(), ledger: Rc::clone(ledger), rng: rng.fork(0), lie }
}

#[test]
fn an_honest_disk_never_violates_the_ledger() {
    for seed in 0..300 {
        if let Some(violation) = run(seed, Lie::None).found {
            panic!("seed {seed}: {violation}");
        }
    }
}

#[test]
fn a_seed_run_twice_gives_the_same_trace() {
    for seed in 0..30 {
        assert_eq!(run(seed, Lie::None).trace, run(seed, Lie::None).trace, "seed {seed}");
    }
}

fn caught(lie: Lie) -> u64 {
    (0..60).filter(|&seed| run(seed, lie).found.is_some()).count() as u64
}

#[test]
fn a_skipped_flush_is_found() {
    assert!(caught(Lie::FlushSkipped) > 10, "{}", caught(Lie::FlushSkipped));
}

#[test]
fn a_dropped_force_is_found() {
    assert!(caught(Lie::ForceDropped) > 10, "{}", caught(Lie::ForceDropped));
}

#[test]
fn a_lost_write_is_found() {
    assert!(caught(Lie::WriteLost) > 30, "{}", caught(Lie::WriteLost));
}

#[test]
fn a_misplaced_write_is_found() {
    assert!(caught(Lie::WriteMisplaced) > 30, "{}", caught(Lie::WriteMisplaced));
}

#[test]
fn a_stale_read_is_found() {
    assert!(caught(Lie::ReadStale) > 10, "{}", caught(Lie::ReadStale));
}

#[test]
fn a_flush_that_began_too_early_is_found() {
    assert!(caught(Lie::FlushEarly) > 10, "{}", caught(Lie::FlushEarly));
}
