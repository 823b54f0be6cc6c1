//! Controllers that one target leaves and another one goes on with.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use pinstripe_nvme::controller::{LeftQueue, SessionEnd, Subsystem, Target};
use pinstripe_nvme::initiator::{Address, Connecting, Connector, Initiator, Options};
use pinstripe_runtime::{DeviceSource, Signal, Stream, shard};

use crate::both::{address, filled};
use crate::world::{Array, Pipe, Random, pipe};
use crate::{seeds, target};

const SECOND: u64 = 1_000_000_000;
const SIZE: usize = 8 << 20;

/// The server of an array, which changes.
struct Post {
    array: Array,
    random: Rc<Random>,
    subsystem: RefCell<Arc<Subsystem>>,
    target: RefCell<Target<Array>>,
    /// Connections that are served.
    serving: Cell<usize>,
    left: RefCell<Vec<LeftQueue>>,
    /// Connections that wait for the next target.
    parked: Cell<usize>,
    changes: Cell<usize>,
    changing: Cell<bool>,
    changed: Signal,
    over: Cell<bool>,
}

thread_local! {
    static POST: RefCell<Option<Rc<Post>>> = const { RefCell::new(None) };
}

impl Post {
    fn new(random: &Rc<Random>, array: &Array) -> Rc<Self> {
        let (subsystem, target) = target(std::slice::from_ref(array));
        let post = Rc::new(Self {
            array: array.clone(),
            random: Rc::clone(random),
            subsystem: subsystem.into(),
            target: target.into(),
            serving: Cell::new(0),
            left: RefCell::default(),
            parked: Cell::new(0),
            changes: Cell::new(0),
            changing: Cell::new(false),
            changed: Signal::default(),
            over: Cell::new(false),
        });
        POST.set(Some(Rc::clone(&post)));
        post
    }

    /// Another target goes on.
    async fn change(&self) {
        while self.parked.get() > 0 {
            shard::yield_now().await;
        }
        self.changing.set(true);
        let old = self.target.borrow().clone();
        old.leave(1000 * SECOND, 2000 * SECOND).await;
        while self.serving.get() > 0 {
            shard::yield_now().await;
        }
        assert_eq!((old.connections(), self.array.seen.borrow().running), (0, 0));
        let left = self.subsystem.borrow().left(&self.left.take());
        assert!(left.controllers_left() <= 1);
        let (subsystem, next) = target(std::slice::from_ref(&self.array));
        subsystem.restore(&left);
        self.subsystem.replace(subsystem);
        self.target.replace(next);
        self.changes.set(self.changes.get() + 1);
        self.changing.set(false);
        self.changed.notify();
    }

    /// Serves a connection by whatever target is there.
    async fn serve(&self, stream: Rc<Pipe>) {
        let mut left: Option<LeftQueue> = None;
        // New ones wait in a listening socket.
        self.changed.wait_until(|| !self.changing.get()).await;
        loop {
            let (target, changes) = (self.target.borrow().clone(), self.changes.get());
            self.serving.set(self.serving.get() + 1);
            self.parked.set(self.parked.get() - usize::from(left.is_some()));
            let stream: Rc<dyn Stream> = Rc::clone(&stream) as Rc<dyn Stream>;
            let end = match &left {
                None => target.serve(stream).await,
                Some(left) => target.resume(stream, left).await,
            };
            self.serving.set(self.serving.get() - 1);
            let SessionEnd::Left(queue) = end else { return };
            self.parked.set(self.parked.get() + 1);
            self.left.borrow_mut().push(queue.clone());
            left = Some(queue);
            self.changed.wait_until(|| self.changes.get() > changes).await;
        }
    }
}

struct Posts;

impl Connector for Posts {
    fn connect(&self, _: &Address) -> Connecting {
        Box::pin(async {
            let post = POST.with_borrow(Clone::clone).unwrap();
            let (ours, theirs) = pipe(&post.random, 1 << 16);
            shard::spawn(async move { post.serve(theirs).await });
            Ok(ours as Rc<dyn Stream>)
        })
    }
}

#[test]
fn hosts_see_nothing_of_a_change_of_targets() {
    let changes = Rc::new(Cell::new(0));
    let counted = Rc::clone(&changes);
    seeds(20, move |random| {
        let counted = Rc::clone(&counted);
        async move {
            let array = Array::new(&random, SIZE, [0, 2000, 200_000][random.below(3)]);
            let post = Post::new(&random, &array);
            let nqn = "nqn.2026-01.com.example:host".to_owned();
            let initiator = Initiator::new(Options::new(nqn, [5; 16], 1), Arc::new(Posts));
            let options = ["", "&hdgst=1", "&ddgst=1", "&hdgst=1&ddgst=1"][random.below(4)];
            let source = initiator.open(&address(options)).await.unwrap();
            let device = source.attach().unwrap();
            // Its queue is connected by then: one that isn't is cut, and tries again.
            assert_eq!(device.flush().await.result, Ok(0));
            let changing = {
                let (post, random) = (Rc::clone(&post), Rc::clone(&random));
                shard::spawn_joined(async move {
                    while !post.over.get() {
                        if random.chance(4) {
                            shard::sleep(1 + random.below([10, 3000, 300_000][random.below(3)]) as u64).await;
                        }
                        // In the midst of what this moment brings.
                        for _ in 0..random.below(60) {
                            shard::yield_now().await;
                        }
                        post.change().await;
                    }
                })
            };
            // Each slot has a part of its own, so that all may be under way at once.
            let (slots, part) = (16, SIZE / 16);
            let mut model: Vec<Vec<u8>> = vec![vec![0; part]; slots];
            for _ in 0..8 {
                let mut writes = Vec::new();
                for (slot, kept) in model.iter_mut().enumerate() {
                    let length = [512, 4096, 16 << 10, 40 << 10, 300 << 10][random.below(5)];
                    let at = random.below((part - length) / 512) * 512;
                    let data = filled(length, &random);
                    kept[at..at + length].copy_from_slice(&data);
                    let offset = (slot * part + at) as u64;
                    writes.push((length, device.write(offset, data.freeze(), random.chance(3))));
                }
                for (length, write) in writes {
                    assert_eq!(write.await.result, Ok(length));
                }
                assert_eq!(device.flush().await.result, Ok(0));
                let reads: Vec<_> =
                    (0..slots).map(|slot| device.read((slot * part) as u64, shard::buffer(part))).collect();
                for (read, kept) in reads.into_iter().zip(&model) {
                    let outcome = read.await;
                    assert_eq!(outcome.result, Ok(part));
                    assert!(*outcome.buffer.unwrap() == **kept, "other bytes came back");
                }
            }
            assert!(!source.is_lost());
            post.over.set(true);
            changing.join().await;
            counted.set(counted.get() + post.changes.get());
            drop((device, source));
            POST.set(None);
            let target = post.target.borrow().clone();
            target.stop().await;
        }
    });
    assert!(changes.get() > 100, "only {} changes", changes.get());
}
