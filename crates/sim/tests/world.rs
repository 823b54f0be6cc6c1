//! The scheduler: same seed, same run; nothing is lost; what hangs is reported.
#![allow(clippy::unwrap_used, reason = "a test may stop at whatever it did not expect")]

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    rc::Rc,
};

use pinstripe_runtime::{Signal, shard};
use pinstripe_sim::{SimDiskConfig, Stuck, World, WorldConfig};

/// Messages, timers, yields and disk requests on three shards; gives the trace and the order in which tasks
/// ended.
fn busy_run(seed: u64) -> (u64, String, Vec<u64>) {
    let mut world = World::new(WorldConfig { log_events_max: 10_000, ..WorldConfig::new(seed, 3) });
    let config = SimDiskConfig::drawn(&mut world.rng(0), "disk", 1 << 20);
    let disk = world.add_disk(config);
    let handles: Vec<_> = (0..3).map(|index| world.shard(index).handle()).collect();
    let ended = Rc::new(RefCell::new(Vec::new()));
    for number in 0..12_u64 {
        let index = usize::try_from(number % 3).unwrap();
        let (disk, ended, peer) = (disk.clone(), Rc::clone(&ended), handles[(index + 1) % 3].clone());
        world.spawn(index, "busy", async move {
            let device = disk.attach();
            for round in 0..4 {
                let mut data = shard::buffer(4096);
                data.fill(u8::try_from(number).unwrap());
                device.write(((number + round) % 7) * 4096, data.freeze(), round == 2).await.result.unwrap();
                shard::sleep(1000 * number).await;
                assert_eq!(peer.call(move || async move { number + round }).await, Ok(number + round));
                shard::yield_now().await;
                device.read(0, shard::buffer(8192)).await.result.unwrap();
            }
            ended.borrow_mut().push(number);
        });
    }
    world.run_until(1_000_000, |_| ended.borrow().len() == 12).unwrap();
    world.run_until_idle(1000).unwrap();
    assert!(world.leak_report().is_clean(), "seed {seed}: {}", world.leak_report());
    world.crash();
    let order = ended.take();
    (world.trace().hash(), world.trace().log(), order)
}

#[test]
fn a_seed_run_twice_gives_the_same_trace_byte_for_byte() {
    let (mut hashes, mut orders) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..40 {
        let (first, again) = (busy_run(seed), busy_run(seed));
        assert_eq!(first, again, "seed {seed}");
        hashes.insert(first.0);
        orders.insert(first.2);
    }
    assert_eq!(hashes.len(), 40, "seeds differ");
    assert!(orders.len() > 20, "and so do the orders of events: {}", orders.len());
}

#[test]
fn a_trace_does_not_depend_on_other_worlds_in_the_process() {
    let alone = busy_run(5);
    let _others: Vec<World> = (0..3).map(|seed| World::new(WorldConfig::new(seed, 2))).collect();
    assert_eq!(busy_run(5), alone);
    let elsewhere = std::thread::spawn(|| busy_run(5)).join().unwrap();
    assert_eq!(elsewhere, alone);
}

#[test]
fn a_lost_wake_is_reported_as_a_deadlock_with_the_task_that_waits() {
    let mut world = World::new(WorldConfig::new(1, 2));
    world.spawn(1, "waits for nothing", async {
        std::future::pending::<()>().await;
    });
    let stuck = world.run_until(1_000_000, |_| false).unwrap_err();
    assert!(matches!(stuck, Stuck::Deadlock(_)));
    let report = stuck.to_string();
    assert!(report.contains("\"waits for nothing\" on shard 1: polled 1 times"), "{report}");
    assert!(world.steps() < 1000, "it must not spin");
}

#[test]
fn a_request_that_is_never_completed_is_reported_as_a_deadlock() {
    let mut world = World::new(WorldConfig::new(1, 1));
    let disk = world.add_disk(SimDiskConfig::new("d", 1 << 16));
    disk.fault(&pinstripe_sim::Fault::Hang);
    world.spawn(0, "reader", async move {
        disk.attach().read(512, shard::buffer(1024)).await.result.unwrap();
    });
    let report = world.run_until(1_000_000, |_| false).unwrap_err().to_string();
    assert!(report.contains("disk 0 (d): 1 requests pending, hung"), "{report}");
    assert!(report.contains("Read 512+1024"), "{report}");
}

#[test]
fn a_task_that_spins_uses_up_its_steps() {
    let mut world = World::new(WorldConfig::new(1, 1));
    world.spawn(0, "spins", async {
        loop {
            shard::yield_now().await;
        }
    });
    assert!(matches!(world.run_until(1000, |_| false), Err(Stuck::StepsUsedUp { steps: 1000, .. })));
}

#[test]
fn time_jumps_to_the_next_timer_and_timers_fire_in_order() {
    for seed in 0..20 {
        let mut world = World::new(WorldConfig::new(seed, 2));
        let woken = Rc::new(RefCell::new(Vec::new()));
        for seconds in [3, 1, 2_u64] {
            let woken = Rc::clone(&woken);
            world.spawn(0, "sleeper", async move {
                shard::sleep(seconds * 1_000_000_000).await;
                assert!(shard::now() >= seconds * 1_000_000_000);
                woken.borrow_mut().push(seconds);
            });
        }
        world.run_until_idle(10_000).unwrap();
        assert_eq!(*woken.borrow(), [1, 2, 3], "seed {seed}");
    }
}

#[test]
fn shards_wake_each_other_under_every_schedule() {
    for seed in 0..100 {
        let mut world = World::new(WorldConfig::new(seed, 4));
        let baton = std::sync::Arc::new((Signal::default(), std::sync::atomic::AtomicU64::new(0)));
        let done = Rc::new(Cell::new(0));
        for index in 0..4_u64 {
            let (baton, done) = (std::sync::Arc::clone(&baton), Rc::clone(&done));
            world.spawn(usize::try_from(index).unwrap(), "relay", async move {
                use std::sync::atomic::Ordering::SeqCst;
                for round in 0..5 {
                    baton.0.wait_until(|| baton.1.load(SeqCst) == round * 4 + index).await;
                    baton.1.fetch_add(1, SeqCst);
                    baton.0.notify();
                }
                done.set(done.get() + 1);
            });
        }
        world.run_until(100_000, |_| done.get() == 4).unwrap();
    }
}

struct CountsDrops(Rc<Cell<u32>>);

impl Drop for CountsDrops {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn a_crash_drops_every_task_and_starts_new_shards() {
    let mut world = World::new(WorldConfig::new(3, 2));
    let disk = world.add_disk(SimDiskConfig::new("disk", 1 << 16));
    let drops = Rc::new(Cell::new(0));
    for index in 0..2 {
        let (disk, guard) = (disk.clone(), CountsDrops(Rc::clone(&drops)));
        world.spawn(index, "victim", async move {
            let _guard = guard;
            let device = disk.attach();
            loop {
                device.write(0, shard::zeroed(4096).freeze(), false).await.result.unwrap();
            }
        });
    }
    let peer = world.shard(1).handle();
    let guard = Rc::clone(&drops);
    world.spawn(0, "sends mail", async move {
        let _guard = CountsDrops(guard);
        peer.send(|| shard::spawn(std::future::pending()));
        std::future::pending::<()>().await;
    });
    let _ = world.run_until(500, |_| false);
    world.crash();
    assert_eq!(drops.get(), 3);
    assert!(world.leak_report().is_clean(), "{}", world.leak_report());
    let now = world.now();
    let later = world.block_on(1, "next life", 1000, async { shard::now() }).unwrap();
    assert!(later >= now, "time goes on");
}

#[test]
fn a_leak_is_reported() {
    let mut world = World::new(WorldConfig::new(3, 1));
    let kept = world.block_on(0, "keeps memory", 100, async { shard::zeroed(10) }).unwrap();
    world.spawn(0, "never ends", std::future::pending());
    world.run_until_idle(100).unwrap();
    let report = world.leak_report();
    assert_eq!((&report.tasks_alive[..], &report.blocks_outstanding[..]), (&[1][..], &[1][..]));
    assert!(!report.is_clean());
    drop(kept);
    let shard = Rc::clone(world.shard(0));
    world.crash();
    assert_eq!(world.leak_report().shards_retained, 1);
    drop(shard);
    assert!(world.leak_report().is_clean());
}
