//! Model checks of the shipped stripe table, intent lanes and admission gate: only the atomics are swapped.
//!
//! `cargo test -p pinstripe-models --features shuttle --test engine`
//!
//! Shuttle explores interleavings under sequential consistency; a lost wake-up leaves a thread blocked for
//! ever, which it reports as a deadlock.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use pinstripe_engine::{
    intent::IntentTable,
    membership::admission::Admission,
    stripe::table::{Entered, StripeTable},
};
use pinstripe_runtime::Signal;
use shuttle::{
    future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

/// Random and priority schedules: the first find common interleavings, the second rare ones of few switches.
fn check(test: fn()) {
    shuttle::check_random(test, 2000);
    for depth in [3, 5] {
        shuttle::check_pct(test, 3000, depth);
    }
}

fn join_all(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

/// A stripe table with the one thing that it guards.
struct Stripes {
    table: StripeTable<u64, u64>,
    /// Whether an owner is in the slot.
    taken: AtomicBool,
    /// What was written, in order, with the stripe.
    written: Mutex<Vec<(u64, u64)>>,
    batches: AtomicU64,
}

impl Stripes {
    /// All stripes share one slot.
    fn new() -> Arc<Self> {
        Arc::new(Self {
            table: StripeTable::new(1, 1, 8),
            taken: AtomicBool::new(false),
            written: Mutex::new(Vec::new()),
            batches: AtomicU64::new(0),
        })
    }

    fn enter(&self) {
        assert!(!self.taken.swap(true, Ordering::SeqCst), "two owners of one slot");
    }

    fn leave(&self) {
        assert!(self.taken.swap(false, Ordering::SeqCst));
    }

    /// A whole write, as `write_batch` does it: own piece, joiners before and after the pre-read, one answer
    /// for all.
    fn write(&self, stripe: u64, piece: u64) {
        match future::block_on(self.table.claim(0, stripe, Some(piece))) {
            Entered::Owner(mut claim, own) => {
                self.enter();
                let mut batch = vec![own.unwrap()];
                claim.join(8, |joined| batch.push(joined));
                thread::yield_now();
                claim.join(8, |joined| batch.push(joined));
                let batch_number = self.batches.fetch_add(1, Ordering::SeqCst);
                self.written.lock().unwrap().extend(batch.into_iter().map(|piece| (stripe, piece)));
                self.leave();
                claim.finish(&batch_number);
            }
            Entered::Joined(answer) => {
                let batch = answer.expect("no owner vanishes here");
                assert!(batch < self.batches.load(Ordering::SeqCst), "answered before it was written");
                assert!(self.written.lock().unwrap().contains(&(stripe, piece)), "acknowledged, not written");
            }
        }
    }

    fn assert_written(&self, mut pieces: Vec<(u64, u64)>) {
        let mut written = self.written.lock().unwrap().clone();
        written.sort_unstable();
        pieces.sort_unstable();
        assert_eq!(written, pieces, "each piece once");
        assert!(self.table.is_idle(), "a slot or node leaked");
    }
}

#[test]
fn every_write_of_a_stripe_is_written_once_and_by_one_owner_at_a_time() {
    check(|| {
        let stripes = Stripes::new();
        let threads = (0..4).map(|piece| {
            let stripes = Arc::clone(&stripes);
            thread::spawn(move || stripes.write(7, piece))
        });
        join_all(threads.collect());
        stripes.assert_written((0..4).map(|piece| (7, piece)).collect());
    });
}

#[test]
fn colliding_stripes_and_exclusive_claims_wait_for_each_other_and_never_join() {
    check(|| {
        let stripes = Stripes::new();
        let mut threads: Vec<_> = [(7, 0), (8, 1), (7, 2)]
            .map(|(stripe, piece)| {
                let stripes = Arc::clone(&stripes);
                thread::spawn(move || stripes.write(stripe, piece))
            })
            .into();
        let exclusive = Arc::clone(&stripes);
        threads.push(thread::spawn(move || {
            let Entered::Owner(claim, None) = future::block_on(exclusive.table.claim(0, 7, None)) else {
                panic!("an exclusive claim joined");
            };
            exclusive.enter();
            thread::yield_now();
            exclusive.leave();
            drop(claim);
        }));
        join_all(threads);
        stripes.assert_written(vec![(7, 0), (8, 1), (7, 2)]);
    });
}

#[test]
fn a_waiter_that_gives_up_loses_no_other() {
    check(|| {
        let stripes = Stripes::new();
        let mut threads: Vec<_> = (0..3)
            .map(|piece| {
                let stripes = Arc::clone(&stripes);
                thread::spawn(move || stripes.write(7, piece))
            })
            .collect();
        let quitter = Arc::clone(&stripes);
        threads.push(thread::spawn(move || {
            let mut claim = pin!(quitter.table.claim(0, 7, None));
            let mut cx = Context::from_waker(Waker::noop());
            if let Poll::Ready(Entered::Owner(claim, _)) = claim.as_mut().poll(&mut cx) {
                drop(claim);
            }
            thread::yield_now();
        }));
        join_all(threads);
        stripes.assert_written((0..3).map(|piece| (7, piece)).collect());
    });
}

#[test]
fn followers_of_an_owner_that_vanished_learn_it() {
    check(|| {
        let stripes = Stripes::new();
        let threads = (0..3).map(|piece| {
            let stripes = Arc::clone(&stripes);
            thread::spawn(move || match future::block_on(stripes.table.claim(0, 7, Some(piece))) {
                Entered::Owner(mut claim, _) => {
                    claim.join(8, |_| ());
                    drop(claim);
                }
                Entered::Joined(answer) => assert_eq!(answer, None),
            })
        });
        join_all(threads.collect());
        assert!(stripes.table.is_idle());
    });
}

/// With one node for two waiters, the second waits for the node before it waits for the slot.
#[test]
fn a_waiter_without_a_node_gets_one_when_it_is_returned() {
    check(|| {
        let stripes = Arc::new(Stripes {
            table: StripeTable::new(1, 1, 1),
            ..Arc::into_inner(Stripes::new()).unwrap()
        });
        let threads = (0..3).map(|piece| {
            let stripes = Arc::clone(&stripes);
            thread::spawn(move || stripes.write(7, piece))
        });
        join_all(threads.collect());
        stripes.assert_written((0..3).map(|piece| (7, piece)).collect());
    });
}

/// With one node, which a claim of another bucket has for all the time.
#[test]
fn a_waiter_without_a_node_gets_its_bucket_when_that_is_free() {
    check(|| {
        let stripes = Arc::new(Stripes {
            table: StripeTable::new(2, 1, 1),
            ..Arc::into_inner(Stripes::new()).unwrap()
        });
        let held = stripes.table.try_claim(1).unwrap();
        let placed = {
            let stripes = Arc::clone(&stripes);
            let mut claim = Box::pin(async move { drop(stripes.table.claim(0, 1, None).await) });
            assert!(claim.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            claim
        };
        let threads = (0..3).map(|_| {
            let stripes = Arc::clone(&stripes);
            thread::spawn(move || {
                let entered = future::block_on(stripes.table.claim(0, 0, None));
                let Entered::Owner(claim, None) = entered else { panic!("an exclusive claim joined") };
                stripes.enter();
                thread::yield_now();
                stripes.leave();
                drop(claim);
            })
        });
        join_all(threads.collect());
        drop(held);
        drop(placed);
        assert!(stripes.table.is_idle());
    });
}

/// Intent with its one bit "on disk". Only the holder of the lock changes the bit, as with the pages of the
/// bitmap.
struct Intent {
    table: IntentTable,
    bit: Mutex<bool>,
    writers: AtomicU64,
}

impl Intent {
    /// With the bit set from an earlier time, so that the first sweep may clear it.
    fn new(writers: u64) -> Arc<Self> {
        let table = IntentTable::new(1 << 20, 1 << 20, true);
        table.load_set(0);
        Arc::new(Self { table, bit: Mutex::new(true), writers: AtomicU64::new(writers) })
    }

    fn write(&self, shard: usize) {
        let mark = self.table.mark(0..=0, shard);
        future::block_on(self.table.durable(&mark));
        assert!(*self.bit.lock().unwrap(), "data is written, and the bit is not durable");
        thread::yield_now();
        assert!(*self.bit.lock().unwrap(), "the bit was cleared under a write");
        drop(mark);
    }

    fn finished(&self) {
        self.writers.fetch_sub(1, Ordering::SeqCst);
    }

    /// `commit`, until every writer is through.
    fn commit_all(&self) {
        while self.writers.load(Ordering::SeqCst) > 0 {
            if self.table.has_requests() {
                let mut bit = self.bit.lock().unwrap();
                let regions = self.table.take_requests();
                *bit |= !regions.is_empty();
                drop(bit);
                thread::yield_now();
                self.table.set(&regions);
            }
            thread::yield_now();
        }
    }

    /// `sweep_once`.
    fn sweep(&self) {
        let mut candidates = self.table.sweep_candidates();
        thread::yield_now();
        candidates.retain(|&region| self.table.try_clear(region));
        thread::yield_now();
        if !candidates.is_empty() {
            *self.bit.lock().unwrap() = false;
        }
        self.table.cleared(&candidates);
    }
}

/// C7: a writer that goes on because the bit is set is seen by the sweeper; a writer that sees it being
/// cleared has it set again.
#[test]
fn no_data_is_written_while_its_bit_is_not_durable() {
    check(|| {
        let intent = Intent::new(2);
        let mut threads: Vec<_> = (0..2)
            .map(|stripe| {
                let intent = Arc::clone(&intent);
                thread::spawn(move || {
                    intent.write(stripe);
                    intent.write(stripe);
                    intent.finished();
                })
            })
            .collect();
        let committer = Arc::clone(&intent);
        threads.push(thread::spawn(move || committer.commit_all()));
        let sweeper = Arc::clone(&intent);
        threads.push(thread::spawn(move || (0..4).for_each(|_| sweeper.sweep())));
        join_all(threads);
    });
}

/// The gate with what it guards: how many write under each generation, and whether "the superblocks" say
/// dirty.
struct Gate {
    admission: Admission,
    controller_wake: Signal,
    inside: [AtomicU64; 4],
    dirty: AtomicBool,
    writers: AtomicU64,
}

impl Gate {
    fn new(writers: u64) -> Arc<Self> {
        Arc::new(Self {
            admission: Admission::new(2, 0),
            controller_wake: Signal::default(),
            inside: std::array::from_fn(|_| AtomicU64::new(0)),
            dirty: AtomicBool::new(false),
            writers: AtomicU64::new(writers),
        })
    }

    /// One write; false if the array takes none any more.
    fn write(&self, shard: usize) -> bool {
        let Ok(pass) = future::block_on(self.admission.enter(shard, &self.controller_wake)) else {
            return false;
        };
        let generation = usize::try_from(pass.generation()).unwrap();
        self.inside[generation].fetch_add(1, Ordering::SeqCst);
        assert!(self.dirty.load(Ordering::SeqCst), "a write while the superblocks say clean");
        thread::yield_now();
        assert!(self.dirty.load(Ordering::SeqCst), "the superblocks became clean under a write");
        self.inside[generation].fetch_sub(1, Ordering::SeqCst);
        drop(pass);
        true
    }

    fn finished(&self) {
        self.writers.fetch_sub(1, Ordering::SeqCst);
        self.controller_wake.notify();
    }

    fn open(&self) {
        self.dirty.store(true, Ordering::SeqCst);
        self.admission.take_wanted();
        self.admission.open();
    }

    fn writer(gate: &Arc<Self>, shard: usize) -> thread::JoinHandle<()> {
        let gate = Arc::clone(gate);
        thread::spawn(move || {
            gate.write(shard);
            gate.write(shard);
            gate.finished();
        })
    }
}

#[test]
fn the_gate_closes_only_when_it_is_empty_and_opens_for_a_writer_that_wants_it() {
    check(|| {
        let gate = Gate::new(2);
        let mut threads: Vec<_> = (0..2).map(|shard| Gate::writer(&gate, shard)).collect();
        threads.push(thread::spawn(move || {
            // The controller: opens when asked, and tries to close as soon as it can.
            loop {
                let wants = || gate.admission.is_wanted() && !gate.admission.is_open();
                let done = || gate.writers.load(Ordering::SeqCst) == 0;
                future::block_on(gate.controller_wake.wait_until(|| wants() || done()));
                if done() {
                    return;
                }
                gate.open();
                thread::yield_now();
                if gate.admission.try_close() {
                    gate.dirty.store(false, Ordering::SeqCst);
                }
            }
        }));
        join_all(threads);
    });
}

/// C1: after a generation is published and drained, no writer is inside under the one before it.
#[test]
fn no_write_is_under_an_old_generation_once_it_is_drained() {
    check(|| {
        let gate = Gate::new(2);
        gate.open();
        let mut threads: Vec<_> = (0..2).map(|shard| Gate::writer(&gate, shard)).collect();
        threads.push(thread::spawn(move || {
            for generation in 1..=3 {
                gate.admission.publish(generation);
                future::block_on(gate.admission.drained());
                for old in 0..usize::try_from(generation).unwrap() {
                    assert_eq!(gate.inside[old].load(Ordering::SeqCst), 0, "planned under {old}");
                }
            }
        }));
        join_all(threads);
    });
}

#[test]
fn a_gate_closed_for_good_is_empty_and_no_writer_waits_at_it() {
    check(|| {
        let gate = Gate::new(2);
        gate.open();
        let mut threads: Vec<_> = (0..2).map(|shard| Gate::writer(&gate, shard)).collect();
        threads.push(thread::spawn(move || {
            future::block_on(gate.admission.close_for_good());
            gate.dirty.store(false, Ordering::SeqCst);
            assert_eq!(gate.inside[0].load(Ordering::SeqCst), 0);
            assert!(!gate.write(0));
        }));
        join_all(threads);
    });
}
