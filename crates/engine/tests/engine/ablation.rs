//! Ways of older designs in place of ours: the array is as right, and what they cost is counted.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use crate::arrays::{
    STEPS, options,
    scene::{Scene, clients, spawn, wish, write},
};
use pinstripe_engine::{
    ablation::{Ablation, IntentLocks, LockUnit, Metered, StripeLocks, Workers},
    error::IoError,
    options::ArrayOptions,
};
use pinstripe_md::{
    level::Level,
    placement::{InitialSync, NewBitmap},
};
use pinstripe_runtime::shard;
use pinstripe_sim::{Interruptions, Rng, Schedule, World, WorldConfig};

const BITMAP: NewBitmap = NewBitmap::Internal { chunk_bytes: Some(65536) };
const CHUNK: u64 = 16 << 10;

fn scene(level: Level, seed: u64, ablation: Ablation) -> Scene {
    scene_with(level, seed, ArrayOptions { ablation: Some(ablation), ..options() })
}

fn scene_with(level: Level, seed: u64, options: ArrayOptions) -> Scene {
    let members = if level == Level::Raid6 { 5 } else { 4 };
    Scene::with_options(seed, wish(level, members, CHUNK, BITMAP, InitialSync::AssumeClean), 3, options)
}

fn metered(scene: &Scene) -> Metered {
    scene.array.shared().metered().unwrap()
}

/// Each way on its own, and the oldest ones together.
fn arms() -> Vec<Ablation> {
    let ours = Ablation::default();
    let stripes = [StripeLocks::Hashed(1), StripeLocks::Hashed(128), StripeLocks::Global];
    let intents = [IntentLocks::Atomic, IntentLocks::RegionLock, IntentLocks::DBlocks, IntentLocks::Lock];
    let mut arms = vec![ours, Ablation { workers: Workers::Pool, ..ours }];
    arms.extend(stripes.map(|stripe| Ablation { stripe, ..ours }));
    arms.extend(intents.map(|intent| Ablation { intent, ..ours }));
    for (stripe, intent) in
        [(StripeLocks::Global, IntentLocks::Lock), (StripeLocks::Hashed(128), IntentLocks::DBlocks)]
    {
        let (unit, workers) = (LockUnit::Page, Workers::Pool);
        arms.push(Ablation { stripe, intent, unit, workers, hold_ns: 10 });
    }
    arms
}

#[test]
fn overlapping_writes_of_several_shards_are_right_in_every_arm() {
    for ablation in arms() {
        for (level, seed) in [(Level::Raid5, 1), (Level::Raid6, 2), (Level::Raid5, 3)] {
            let mut scene = scene(level, seed, ablation);
            clients(&mut scene, 12, 40, 150);
            let cost = metered(&scene);
            assert!(cost.stripe.entered > 0 && cost.intent.entered > 0, "{ablation:?}: {cost:?}");
            assert!(cost.stripe_waits.waits > 0, "{ablation:?}: no two writes met at a stripe");
            let pooled = ablation.workers == Workers::Pool;
            assert_eq!(cost.hand_off.handed > 0, pooled, "{ablation:?}");
            assert_eq!(cost.stripe.contended + cost.intent.contended, 0, "one thread waits for no lock");
            scene.is_right_and_stays_so();
        }
    }
}

#[test]
fn a_lost_member_and_its_rebuild_are_right_in_the_oldest_arm() {
    for seed in 1..4 {
        let mut scene = scene(Level::Raid5, seed, *arms().last().unwrap());
        clients(&mut scene, 6, 30, 100);
        let spare = scene.fail_and_add(1);
        clients(&mut scene, 6, 30, 100);
        let array = scene.array.clone();
        scene.run(async move {
            while array.detail().regions_to_resync > 0 || array.detail().sync.is_some() {
                shard::sleep(1_000_000).await;
            }
        });
        scene.read_all();
        assert_eq!(scene.check(), 0);
        drop(spare);
    }
}

/// Stripes that a stream goes round.
const ROUND: u64 = 4;
/// So often.
const ROUNDS: u64 = 20;
const STRIPE: u64 = 3 * CHUNK;
/// Twice as many as there are stripes: the stream laps them by itself, too.
const CLIENTS: u64 = 8;

/// The writes of a stream, by stripe and round: when each began and when it was acknowledged.
#[derive(Default)]
struct Stream {
    clock: u64,
    next: u64,
    writes: BTreeMap<(u64, u64), (u64, u64)>,
}

impl Stream {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Whether the write of a stripe in a round was acknowledged.
    fn is_over(&self, stripe: u64, round: u64) -> bool {
        self.writes.get(&(stripe, round)).is_some_and(|(_, acknowledged)| *acknowledged > 0)
    }
}

/// Clients on two shards write a stream of whole stripes, round after round, in the oldest arm; shards are
/// off their CPUs for as long as a round takes. Unless it `laps`, a write waits until that of the round
/// before is acknowledged. Counts the stripes that hold the write of an earlier round than the last.
fn stripes_with_an_earlier_round(seed: u64, laps: bool) -> u64 {
    let mut rng = Rng::new(seed);
    let schedule = Schedule { pauses: 600, pause_ns_max: 30_000_000, ..Schedule::drawn(&mut rng) };
    let interruptions = Some(Interruptions { chances: 64, ns_max: 30_000_000 });
    let config = WorldConfig { schedule: Some(schedule), interruptions, ..WorldConfig::new(seed, 2) };
    let array = wish(Level::Raid5, 4, CHUNK, BITMAP, InitialSync::AssumeClean);
    let oldest = ArrayOptions { ablation: arms().into_iter().rev().nth(1), ..options() };
    let mut scene = Scene::in_world(World::new(config), &array, oldest);
    let stream = Rc::new(RefCell::new(Stream::default()));
    let there = Rc::clone(&stream);
    let done = spawn(&mut scene, CLIENTS, move |_, volume, _, _| {
        let stream = Rc::clone(&there);
        async move {
            loop {
                let position = stream.borrow().next;
                if position == ROUND * ROUNDS {
                    return;
                }
                stream.borrow_mut().next += 1;
                let (stripe, round) = (position % ROUND, position / ROUND);
                while !laps && round > 0 && !stream.borrow().is_over(stripe, round - 1) {
                    shard::sleep(50_000).await;
                }
                let mut data = shard::buffer(usize::try_from(STRIPE).unwrap());
                data.fill(u8::try_from(round).unwrap());
                let began = stream.borrow_mut().tick();
                stream.borrow_mut().writes.insert((stripe, round), (began, 0));
                volume.write(stripe * STRIPE, data.freeze(), false).await.unwrap();
                let acknowledged = stream.borrow_mut().tick();
                stream.borrow_mut().writes.insert((stripe, round), (began, acknowledged));
            }
        }
    });
    scene.world.run_until(STEPS, |_| *done.borrow() == CLIENTS).unwrap();
    let mut earlier = 0;
    for stripe in 0..ROUND {
        let volume = scene.volume();
        let length = usize::try_from(STRIPE).unwrap();
        let (read, bytes) =
            scene.run(async move { volume.read(stripe * STRIPE, shard::buffer(length)).await });
        read.unwrap();
        let found = bytes[0];
        assert!(bytes.iter().all(|byte| *byte == found), "seed {seed}: stripe {stripe} is of two writes");
        let writes = &stream.borrow().writes;
        let (_, acknowledged) = writes[&(stripe, found.into())];
        let behind = (0..ROUNDS).filter(|round| writes[&(stripe, *round)].0 > acknowledged);
        assert_eq!(
            behind.collect::<Vec<_>>(),
            [0; 0],
            "seed {seed}: stripe {stripe} holds round {found}, and these began when that was acknowledged"
        );
        earlier += u64::from(u64::from(found) + 1 < ROUNDS);
    }
    assert_eq!(scene.check(), 0, "seed {seed}");
    earlier
}

/// What the ledger of `bench` has to allow for, and nothing else: a stripe holds an earlier round than the
/// last only where the stream has come round to it while that write was under way.
#[test]
fn a_stream_leaves_an_earlier_round_only_where_it_laps_a_write() {
    let lapped: u64 = (0..60).map(|seed| stripes_with_an_earlier_round(seed, true)).sum();
    assert!(lapped > 0, "no write was lapped, so nothing was shown");
    let others: u64 = (0..60).map(|seed| stripes_with_an_earlier_round(seed, false)).sum();
    assert_eq!(others, 0);
}

/// One write of two chunks and a page: nine pages of data, in rows of which there are four.
#[test]
fn locks_are_taken_for_each_page_or_once_for_a_stripe() {
    let passages = |unit| {
        let ablation =
            Ablation { stripe: StripeLocks::Global, intent: IntentLocks::Lock, unit, ..Ablation::default() };
        let mut scene = scene(Level::Raid5, 1, ablation);
        scene.write(0, (2 * CHUNK + 4096) / 512, false).unwrap();
        let cost = metered(&scene);
        (cost.stripe.entered, cost.intent.entered)
    };
    // Claim, two looks for what has arrived, release; mark and unmark.
    assert_eq!(passages(LockUnit::Stripe), (4, 2));
    assert_eq!(passages(LockUnit::Page), (9 + 3 * 4, 2 * 4));
}

#[test]
fn without_joining_every_write_is_a_batch_of_its_own() {
    let hot = |batch_max| {
        let mut scene = scene_with(Level::Raid5, 1, ArrayOptions { batch_max, gather_ns: 0, ..options() });
        let done = spawn(&mut scene, 16, |_, volume, ledger, mut rng| async move {
            for _ in 0..10 {
                write(&volume, &ledger, rng.below(90), 1 + rng.below(6), false).await.unwrap();
            }
        });
        scene.world.run_until(STEPS, |_| *done.borrow() == 16).unwrap();
        let counters = scene.array.shared().counters.iter();
        let (joins, batches) = counters.fold((0, 0), |(joins, batches), counters| {
            (joins + counters.joins.value(), batches + counters.batches.value())
        });
        scene.is_right_and_stays_so();
        (joins, batches)
    };
    assert!(hot(256).0 > 0);
    assert_eq!(hot(1), (0, 160));
}

#[test]
fn a_write_after_the_stop_is_refused_although_it_was_for_a_worker() {
    let mut scene = scene(Level::Raid5, 1, Ablation { workers: Workers::Pool, ..Ablation::default() });
    scene.write(0, 8, false).unwrap();
    scene.stop();
    assert_eq!(scene.write(0, 8, false), Err(IoError::Stopping));
    // Writes that were on their way when the array stopped are answered, too.
    scene.reassemble();
    let done = spawn(&mut scene, 12, move |_, volume, _, mut rng| async move {
        loop {
            let data = shard::zeroed(4096).freeze();
            if volume.write(rng.below(90) * 4096, data, false).await.is_err() {
                return;
            }
        }
    });
    scene.stop();
    scene.world.run_until(STEPS, |_| *done.borrow() == 12).unwrap();
}

/// A user's array has neither.
#[test]
fn without_an_ablation_nothing_is_metered() {
    let mut scene = scene_with(Level::Raid5, 1, options());
    scene.write(0, 8, false).unwrap();
    assert!(scene.array.shared().metered().is_none());
}
