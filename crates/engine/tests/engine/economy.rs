//! What writes cost the members: policies choose as their names say, and a sequential stream is not read
//! before it is written.

use std::{cell::Cell, rc::Rc};

use crate::arrays::{
    STEPS, options,
    scene::{Scene, spawn, wish, write},
};
use pinstripe_engine::{options::ArrayOptions, plan::WritePolicy, statistics::Statistics};
use pinstripe_md::{
    level::Level,
    placement::{InitialSync, NewBitmap},
};
use pinstripe_runtime::shard;
use pinstripe_sim::Fault;

const CHUNK: u64 = 64 << 10;
const COLUMNS: u64 = 5;
const STRIPE_SECTORS: u64 = COLUMNS * CHUNK / 512;
const SLOW: usize = 2;

/// RAID5 of 5+1 with `megabytes` for each member.
fn array(seed: u64, shards: usize, megabytes: u64, policy: WritePolicy) -> Scene {
    let mut wish = wish(Level::Raid5, 6, CHUNK, NewBitmap::None, InitialSync::AssumeClean);
    for member in &mut wish.members {
        member.sectors = megabytes << 11;
    }
    let options = ArrayOptions { policy, parity_cache_bytes: 0, ..options() };
    Scene::with_options(seed, wish, shards, options)
}

fn statistics(scene: &Scene) -> Statistics {
    Statistics::sum(scene.array.shared().counters.iter().map(|counters| &**counters))
}

/// Writes `columns` whole chunks of each of the first stripes, so that they are one run.
fn write_columns(scene: &mut Scene, columns: u64, rounds: u64) -> Statistics {
    let before = statistics(scene);
    for round in 0..rounds {
        for stripe in 0..12 {
            let sector = stripe * STRIPE_SECTORS + (stripe + round) % (COLUMNS - columns + 1) * CHUNK / 512;
            scene.write(sector, columns * CHUNK / 512, false).unwrap();
        }
    }
    statistics(scene).since(&before)
}

#[test]
fn min_reads_reconstructs_where_that_reads_no_more() {
    let mut scene = array(1, 1, 2, WritePolicy::MinReads);
    let one = write_columns(&mut scene, 1, 1);
    assert_eq!((one.rmw_runs, one.rcw_runs, one.reconstruct_read_bytes), (12, 0, 0));
    // Three reads either way.
    let two = write_columns(&mut scene, 2, 1);
    assert_eq!((two.rmw_runs, two.rcw_runs, two.reconstruct_read_bytes), (0, 12, 12 * 3 * CHUNK));
    let all = write_columns(&mut scene, 5, 1);
    assert_eq!((all.full_runs, all.pre_read_bytes), (12, 0));
    assert_eq!(scene.check(), 0);
    scene.read_all();
}

#[test]
fn mod_threshold_modifies_where_that_reads_one_chunk_more_at_most() {
    let mut scene = array(2, 1, 2, WritePolicy::ModThreshold);
    let two = write_columns(&mut scene, 2, 1);
    assert_eq!((two.rmw_runs, two.rcw_runs, two.reconstruct_read_bytes), (12, 0, 0));
    // Four reads against two.
    let three = write_columns(&mut scene, 3, 1);
    assert_eq!((three.rmw_runs, three.rcw_runs, three.reconstruct_read_bytes), (0, 12, 12 * 2 * CHUNK));
    assert_eq!(scene.check(), 0);
    scene.read_all();
}

#[test]
fn always_rmw_never_reads_to_reconstruct() {
    let mut scene = array(3, 1, 2, WritePolicy::AlwaysRmw);
    for columns in 1..COLUMNS {
        let some = write_columns(&mut scene, columns, 1);
        assert_eq!((some.rmw_runs, some.rcw_runs, some.reconstruct_read_bytes), (12, 0, 0), "{columns}");
        assert_eq!(some.pre_read_bytes, 12 * (columns + 1) * CHUNK);
    }
    assert_eq!(scene.check(), 0);
    scene.read_all();
}

/// Where both ways read three chunks, the price decides; it knows the slow member after some writes.
#[test]
fn cost_keeps_away_from_a_slow_member() {
    let reads_of_the_slow = |policy| {
        let mut scene = array(4, 1, 2, policy);
        scene.disks[SLOW].fault(&Fault::SlowBy(20));
        write_columns(&mut scene, 2, 40);
        let before = scene.disks[SLOW].counters().reads;
        let counted = write_columns(&mut scene, 2, 20);
        assert_eq!(scene.check(), 0);
        (scene.disks[SLOW].counters().reads - before, counted)
    };
    let (blind, by_reads) = reads_of_the_slow(WritePolicy::MinReads);
    let (seeing, by_cost) = reads_of_the_slow(WritePolicy::Cost);
    assert_eq!(by_reads.rmw_runs, 0);
    assert!(by_cost.rmw_runs > 0 && by_cost.rcw_runs > 0 && by_cost.reconstruct_read_bytes > 0);
    assert!(seeing * 2 < blind, "{seeing} reads of the slow member against {blind}");
}

/// Where both ways read three chunks, disks are spared the revolution that a write waits for after a read of
/// the same place: by timed writes too, which take members for alike. Whether the others find them alike is a
/// matter of what was measured, so it takes some worlds.
#[test]
fn where_disks_are_alike_no_write_is_modified_that_reads_as_much_as_a_reconstruction() {
    let modified = |seed| {
        let mut scene = array(seed, 1, 2, WritePolicy::Cost);
        scene.disks.iter().for_each(|disk| disk.fault(&Fault::SlowBy(200)));
        write_columns(&mut scene, 2, 40);
        let counted = write_columns(&mut scene, 2, 20);
        assert_eq!(counted.rmw_runs + counted.rcw_runs, 20 * 12);
        assert_eq!(scene.check(), 0);
        counted.rmw_runs
    };
    let modified: Vec<u64> = (10..18).map(modified).collect();
    assert!(modified.contains(&0), "{modified:?}");
}

#[test]
fn cost_changes_its_choice_when_a_member_slows_down_and_when_it_is_fast_again() {
    let reads_of_it = |scene: &mut Scene, rounds| {
        write_columns(scene, 2, rounds);
        let before = scene.disks[SLOW].counters().reads;
        write_columns(scene, 2, 20);
        scene.disks[SLOW].counters().reads - before
    };
    let (mut fast, mut slow, mut fast_again) = (0, 0, 0);
    // Among members that are alike chance decides, so several arrays are counted.
    for seed in 9..15 {
        let mut scene = array(seed, 1, 2, WritePolicy::Cost);
        fast += reads_of_it(&mut scene, 60);
        scene.disks[SLOW].fault(&Fault::SlowBy(20));
        slow += reads_of_it(&mut scene, 60);
        scene.disks[SLOW].fault(&Fault::SlowBy(1));
        // Only timed writes, one in 31, read a slow member: they take a while to find it fast.
        fast_again += reads_of_it(&mut scene, 160);
        assert_eq!(scene.check(), 0);
    }
    assert!(slow * 2 < fast && slow * 2 < fast_again, "reads of the member: {fast}, {slow}, {fast_again}");
}

/// 64 clients feed one stream with chunks. The bound is the issue's; MD itself pre-reads 1.1%, StRAID's
/// prototype 13.7%.
#[test]
fn a_sequential_stream_of_64_writers_is_hardly_read_before() {
    for (seed, shards) in [(5, 1), (6, 2), (7, 3)] {
        let mut scene = array(seed, shards, 8, WritePolicy::Cost);
        let sectors = CHUNK / 512;
        let units = scene.array.volume().size() / CHUNK;
        let next = Rc::new(Cell::new(0));
        let done = spawn(&mut scene, 64, move |_, volume, ledger, _| {
            let next = Rc::clone(&next);
            async move {
                loop {
                    let unit = next.replace(next.get() + 1);
                    if unit >= units {
                        return;
                    }
                    write(&volume, &ledger, unit * sectors, sectors, false).await.unwrap();
                }
            }
        });
        scene.world.run_until(STEPS, |_| *done.borrow() == 64).unwrap();
        let counted = statistics(&scene);
        assert_eq!(counted.write_bytes, units * CHUNK);
        let thousandths = counted.pre_read_bytes * 1000 / counted.write_bytes;
        println!(
            "seed {seed}: {thousandths}/1000 in {} batches of {} writes",
            counted.batches, counted.writes
        );
        assert!(thousandths <= 20, "seed {seed}: {thousandths}/1000 of what was written was read before");
        assert_eq!(scene.check(), 0);
        scene.read_all();
    }
}

/// Only writes of a sequential stream wait for neighbours; random ones don't.
#[test]
fn random_writes_do_not_wait_for_neighbours() {
    let options = ArrayOptions { gather_ns: 1_000_000_000, ..options() };
    let wish = wish(Level::Raid5, 6, CHUNK, NewBitmap::None, InitialSync::AssumeClean);
    let mut scene = Scene::with_options(8, wish, 1, options);
    let stripes = scene.array.volume().size() / 512 / STRIPE_SECTORS;
    let longest = Rc::new(Cell::new(0));
    let times = Rc::clone(&longest);
    let done = spawn(&mut scene, 8, move |number, volume, ledger, mut rng| {
        let longest = Rc::clone(&longest);
        async move {
            for _ in 0..50 {
                let at = rng.below(stripes) * STRIPE_SECTORS + number * 8;
                let started = shard::now();
                write(&volume, &ledger, at, 8, false).await.unwrap();
                longest.set(longest.get().max(shard::now() - started));
            }
        }
    });
    scene.world.run_until(STEPS, |_| *done.borrow() == 8).unwrap();
    assert!(times.get() < 500_000_000, "a write took {} ns", times.get());
}
