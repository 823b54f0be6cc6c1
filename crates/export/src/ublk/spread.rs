//! Which shard carries a request out.
//!
//! The kernel gives a queue what the CPUs of that queue ask for, so a single program has one queue, and its
//! shard alone would work while others sleep. So a shard that has some requests more than another one hands
//! the next over; the answer comes back, and the queue's shard commits it. A device's shards count in common
//! what each of them has. Where all of them have their share from their own queues, nothing changes hands.
//!
//! A shard that has little to do keeps it: handing over costs two messages. Short requests stay, for which
//! that is about what they cost. So does a write that goes on where the last one ended: the stripe's other
//! writes are here, and join it.

use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use pinstripe_runtime::ShardHandle;

use super::request::{Operation, Request};
use crate::errno;

/// How many requests more than another a shard has before that one is given some.
const MORE: usize = 4;
/// Requests of so many bytes and more are handed over.
const BYTES_MIN: usize = 64 << 10;

/// Requests that each shard has of a device.
pub struct Loads(Box<[Load]>);

/// In a cache line of its own: its shard changes it with every request.
#[derive(Default)]
#[repr(align(64))]
struct Load(AtomicUsize);

impl Loads {
    /// Of so many shards, all of which have nothing.
    pub fn new(shards: usize) -> Self {
        Self((0..shards).map(|_| Load::default()).collect())
    }

    fn of(&self, shard: usize) -> usize {
        self.0[shard].0.load(Ordering::Relaxed)
    }

    /// The first shard behind `here` that has enough less than it. Not the one that has least, so that few
    /// shards have much rather than many a little: what comes together shares system calls.
    fn helper(&self, here: usize) -> Option<usize> {
        let own = self.of(here);
        let behind = (here + 1..self.0.len()).chain(0..here);
        behind.into_iter().find(|&other| self.of(other) + MORE <= own)
    }

    fn count(&self, shard: usize) -> Counted<'_> {
        let load = &self.0[shard].0;
        load.fetch_add(1, Ordering::Relaxed);
        Counted(load)
    }
}

/// A request that a shard has, until it is answered or given up.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The answer to a request, bytes or an error number, when it is there.
pub type Helped = Pin<Box<dyn Future<Output = Result<i32, i32>>>>;

/// How one queue gives requests away.
pub struct Spread<D> {
    loads: Arc<Loads>,
    here: usize,
    /// Every shard that `loads` counts for.
    shards: Arc<[ShardHandle]>,
    help: fn(D, Request) -> Option<Helped>,
    /// Where the last write ended.
    written: Cell<u64>,
}

impl<D: Clone + Send + 'static> Spread<D> {
    /// Of a queue on `shards[here]`. `help` is called on the shard that shall carry a request out; without an
    /// answer from there it is carried out here.
    pub fn new(
        loads: Arc<Loads>,
        here: usize,
        shards: Arc<[ShardHandle]>,
        help: fn(D, Request) -> Option<Helped>,
    ) -> Self {
        assert!(here < shards.len() && shards.len() == loads.0.len(), "a load for each shard");
        Self { loads, here, shards, help, written: Cell::new(0) }
    }

    /// Of a queue whose shard is alone.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self {
            loads: Arc::new(Loads::new(1)),
            here: 0,
            shards: Arc::new([]),
            help: |_, _| None,
            written: Cell::new(0),
        }
    }

    /// Has the request carried out by another shard, or by `here`.
    pub(super) async fn carry_out(
        &self,
        data: D,
        request: Request,
        here: impl AsyncFnOnce(D) -> Result<i32, i32>,
    ) -> Result<i32, i32> {
        if self.is_worth_it(request)
            && let Some(helper) = self.loads.helper(self.here)
        {
            let _counted = self.loads.count(helper);
            let (data, help) = (data.clone(), self.help);
            let make = move || async move {
                match help(data, request) {
                    Some(helped) => Some(helped.await),
                    None => None,
                }
            };
            match self.shards[helper].call(make).await {
                Ok(Some(answer)) => return answer,
                Ok(None) => {}
                // It may have been half-way: the process is about to end, and no second try may cross it.
                Err(_) => return Err(errno::IO),
            }
        }
        let _counted = self.loads.count(self.here);
        here(data).await
    }

    fn is_worth_it(&self, Request { operation, range, .. }: Request) -> bool {
        match operation {
            Operation::Write { length } => {
                let last = self.written.replace(range.offset + range.length);
                length >= BYTES_MIN && last != range.offset
            }
            Operation::Read { length } => length >= BYTES_MIN,
            Operation::Flush | Operation::Discard | Operation::WriteZeroes { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use pinstripe_runtime::{
        Shard, ShardConfig, shard,
        uring::{RuntimeConfig, run},
    };

    use super::{super::request::Range, *};

    const WRITE: Operation = Operation::Write { length: BYTES_MIN };
    /// Where each request begins, behind the one before.
    const APART: u64 = 1 << 20;

    fn request(operation: Operation, offset: u64) -> Request {
        Request { operation, range: Range { offset, length: BYTES_MIN as u64 }, fua: false }
    }

    #[test]
    fn the_next_shard_that_has_enough_less_helps() {
        let loads = Loads::new(4);
        let held = |shard: usize, count: usize| (0..count).map(|_| loads.count(shard)).collect::<Vec<_>>();
        let mut own = held(2, MORE - 1);
        assert_eq!(loads.helper(2), None, "so few it keeps");
        own.push(loads.count(2));
        assert_eq!(loads.helper(2), Some(3));
        let others = (held(3, 1), held(0, 1));
        assert_eq!(loads.helper(2), Some(1));
        own.push(loads.count(2));
        assert_eq!(loads.helper(2), Some(3), "not the one that has least");
        assert_eq!(loads.helper(3), None);
        drop((own, others));
        assert!((0..4).all(|shard| loads.of(shard) == 0), "what was answered counts no more");
    }

    /// What the shard that helps does, by the number in the data: gives the shard's number, later; or can't.
    fn help(data: u8, _: Request) -> Option<Helped> {
        (data > 0).then(|| -> Helped {
            Box::pin(async {
                shard::sleep(1_000_000).await;
                Ok(i32::try_from(shard::with_current(|shard| shard.handle().index())).unwrap())
            })
        })
    }

    /// Which shard answers each of so many requests that are under way together.
    fn answered(count: usize, data: u8, operation: Operation, apart: u64) -> Vec<i32> {
        let made = run(&RuntimeConfig::unpinned(2), move |context| {
            let shards: Arc<[ShardHandle]> = context.shards().into();
            async move {
                let loads = Arc::new(Loads::new(2));
                let spread = Rc::new(Spread::new(Arc::clone(&loads), 0, shards, help));
                let begun = Rc::new(Cell::new(0));
                let one = |number| {
                    let (spread, begun) = (Rc::clone(&spread), Rc::clone(&begun));
                    shard::spawn_joined(async move {
                        let here = async |_| {
                            begun.set(begun.get() + 1);
                            shard::sleep(1_000_000).await;
                            Ok(0)
                        };
                        spread.carry_out(data, request(operation, (number + 1) * apart), here).await
                    })
                };
                let tasks: Vec<_> = (0..count as u64).map(one).collect();
                let mut answers = Vec::new();
                for task in tasks {
                    answers.push(task.join().await.unwrap());
                }
                assert_eq!(answers.iter().filter(|&&answer| answer == 0).count(), begun.get());
                assert_eq!((loads.of(0), loads.of(1)), (0, 0));
                answers
            }
        });
        made.unwrap()
    }

    #[test]
    fn a_shard_with_many_requests_is_helped_and_one_with_few_is_not() {
        let helped = |count, operation, apart| {
            answered(count, 1, operation, apart).into_iter().filter(|&shard| shard == 1).count()
        };
        assert_eq!(helped(MORE, WRITE, APART), 0);
        assert_eq!(helped(20, WRITE, APART), (20 - MORE) / 2);
        assert_eq!(helped(20, Operation::Read { length: BYTES_MIN }, APART), (20 - MORE) / 2);
        for short in [Operation::Read { length: 4096 }, Operation::Write { length: 4096 }, Operation::Flush] {
            assert_eq!(helped(20, short, APART), 0, "{short:?}");
        }
        assert_eq!(helped(20, WRITE, BYTES_MIN as u64), 0, "each goes on where the last one ended");
    }

    /// It may have been half-way there.
    #[test]
    fn what_a_shard_that_ends_was_doing_fails_and_is_not_done_here() {
        let [one, other] = [0, 1]
            .map(|index| Shard::new(&ShardConfig { index, arena_bytes: 0, clock: Some(Rc::default()) }));
        let (loads, shards) = (Arc::new(Loads::new(2)), [one.handle(), other.handle()].into());
        let spread =
            Spread::new(Arc::clone(&loads), 0, shards, |(), _| Some(Box::pin(std::future::pending())));
        let answer = Rc::new(Cell::new(None));
        let told = Rc::clone(&answer);
        {
            let _entered = one.enter();
            one.spawn(async move {
                let _busy: Vec<_> = (0..MORE).map(|_| loads.count(0)).collect();
                let here = async |()| -> Result<i32, i32> { unreachable!("it is done a second time") };
                told.set(Some(spread.carry_out((), request(WRITE, APART), here).await));
            });
            while one.poll_ready(0) {}
        }
        {
            let _entered = other.enter();
            other.deliver_mail();
            while other.poll_ready(0) {}
            assert_eq!((other.tasks_alive(), answer.get()), (1, None));
            other.drop_tasks();
        }
        let _entered = one.enter();
        one.deliver_mail();
        while one.poll_ready(0) {}
        assert_eq!(answer.get(), Some(Err(errno::IO)));
    }

    #[test]
    fn what_the_other_shard_cannot_do_is_done_here() {
        assert_eq!(answered(20, 0, WRITE, APART), [0; 20]);
    }
}
