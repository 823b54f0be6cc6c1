//! The free nodes of a shard, and the line of claims that wait because it has none left.
//!
//! Nodes go in the order of the line. What comes later doesn't pass: no claim takes a free bucket that
//! something in its shard's line came for before, nor a node while there is a line (C11). What is in the line
//! needs no node once its bucket is free. So it never waits for the writes of other buckets alone.

use std::{collections::VecDeque, task::Waker};

use pinstripe_runtime::atomics::{Mutex, MutexGuard};

/// A place in a line. Later ones have higher numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

struct Place {
    ticket: Ticket,
    bucket: usize,
    waker: Option<Waker>,
}

#[derive(Default)]
struct State {
    free: Vec<u32>,
    line: VecDeque<Place>,
    tickets: u64,
}

/// See the module.
pub(super) struct FreeNodes(Mutex<State>);

/// What a place in the line has come to.
pub(super) enum Turn<T> {
    /// The bucket was free.
    Bucket(T),
    Node(u32),
    Waiting,
}

impl State {
    fn find(&self, ticket: Ticket) -> Option<usize> {
        self.line.binary_search_by_key(&ticket, |place| place.ticket).ok()
    }

    /// What is to look again when a node is free.
    fn first(&self) -> Option<Waker> {
        if self.free.is_empty() { None } else { self.line.front()?.waker.clone() }
    }

    /// What is to look again when a bucket is free.
    fn first_for(&self, bucket: usize) -> Option<Waker> {
        self.line.iter().find(|place| place.bucket == bucket)?.waker.clone()
    }
}

impl FreeNodes {
    pub(super) fn new(free: Vec<u32>) -> Self {
        Self(Mutex::new(State { free, ..State::default() }))
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn count(&self) -> usize {
        self.locked().free.len()
    }

    /// A free node, unless something waits for one.
    pub(super) fn take(&self) -> Option<u32> {
        let mut state = self.locked();
        if state.line.is_empty() { state.free.pop() } else { None }
    }

    pub(super) fn give_back(&self, number: u32) {
        let mut state = self.locked();
        state.free.push(number);
        let first = state.first();
        drop(state);
        wake([first]);
    }

    /// Whether something in the line wants this bucket.
    pub(super) fn is_awaited(&self, bucket: usize) -> bool {
        self.locked().line.iter().any(|place| place.bucket == bucket)
    }

    /// The bucket is free.
    pub(super) fn bucket_freed(&self, bucket: usize) {
        let first = self.locked().first_for(bucket);
        wake([first]);
    }

    /// Goes to the end of the line.
    pub(super) fn join(&self, bucket: usize) -> Ticket {
        let mut state = self.locked();
        state.tickets += 1;
        let ticket = Ticket(state.tickets);
        state.line.push_back(Place { ticket, bucket, waker: None });
        ticket
    }

    /// Looks whether it is a place's turn, which ends it. `claim` claims its bucket if that is free.
    pub(super) fn poll<T>(
        &self,
        ticket: Ticket,
        waker: &Waker,
        claim: impl FnOnce() -> Option<T>,
    ) -> Turn<T> {
        let mut state = self.locked();
        let Some(at) = state.find(ticket) else { unreachable!("its turn has been") };
        let bucket = state.line[at].bucket;
        // Before the look at the bucket: what frees it later finds the waker.
        state.line[at].waker = Some(waker.clone());
        let is_first_for = !state.line.range(..at).any(|place| place.bucket == bucket);
        let turn = if is_first_for && let Some(claimed) = claim() {
            Turn::Bucket(claimed)
        } else if at == 0
            && let Some(number) = state.free.pop()
        {
            Turn::Node(number)
        } else {
            return Turn::Waiting;
        };
        state.line.remove(at);
        let first = state.first();
        drop(state);
        wake([first]);
        turn
    }

    /// Gives a place up.
    pub(super) fn leave(&self, ticket: Ticket) {
        let mut state = self.locked();
        let left = state.find(ticket).and_then(|at| state.line.remove(at));
        // It may have been woken for a node or for its bucket, and made use of neither.
        let next = [state.first(), left.and_then(|place| state.first_for(place.bucket))];
        drop(state);
        wake(next);
    }
}

/// Outside of the lock: a waker may come back here.
fn wake(wakers: impl IntoIterator<Item = Option<Waker>>) {
    wakers.into_iter().flatten().for_each(Waker::wake);
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        pin::{Pin, pin},
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        task::{Context, Poll, Wake, Waker},
    };

    use crate::stripe::table::{Entered, StripeTable};

    type Table = StripeTable<u64, u64>;

    #[derive(Default)]
    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A claim that has been asked for.
    struct Asked<'t> {
        claim: Pin<Box<dyn Future<Output = Entered<'t, u64, u64>> + 't>>,
        flag: Arc<Flag>,
    }

    impl<'t> Asked<'t> {
        fn new(table: &'t Table, stripe: u64, payload: u64) -> Self {
            let mut asked =
                Self { claim: Box::pin(table.claim(0, stripe, Some(payload))), flag: Arc::default() };
            assert!(asked.poll().is_none(), "{payload} waits for nothing");
            asked
        }

        fn poll(&mut self) -> Option<Entered<'t, u64, u64>> {
            let waker = Waker::from(Arc::clone(&self.flag));
            match self.claim.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(entered) => Some(entered),
                Poll::Pending => None,
            }
        }

        fn is_woken(&self) -> bool {
            self.flag.0.load(Ordering::Relaxed)
        }
    }

    /// Other shards, with nodes of their own, may have passed it.
    #[test]
    fn what_is_not_wanted_any_more_when_there_is_a_node_or_its_bucket_takes_no_place() {
        for by_node in [true, false] {
            let table = Table::new(2, 1, 1);
            let [first, second] = [0, 1].map(|stripe| table.try_claim(stripe).unwrap());
            let (mut placed, mut first, mut second) =
                (Some(Asked::new(&table, 1, 10)), Some(first), Some(second));
            let is_wanted = Cell::new(true);
            let mut claim = pin!(table.claim_if(0, 0, Some(20), || is_wanted.get()));
            let mut poll = || claim.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(poll().is_pending());
            is_wanted.set(false);
            if by_node {
                drop(second.take());
                placed = None;
            } else {
                first = None;
            }
            assert!(matches!(poll(), Poll::Ready(None)));
            drop((placed, first, second));
            assert!(table.is_idle(), "it keeps a node or a bucket");
        }
    }

    #[test]
    fn what_waits_for_a_node_is_passed_by_no_claim_of_its_bucket() {
        let table = Table::new(2, 1, 1);
        let [first, second] = [0, 1].map(|stripe| table.try_claim(stripe).unwrap());
        let mut placed = Asked::new(&table, 1, 10);
        let [mut earlier, mut later] = [20, 30].map(|payload| Asked::new(&table, 0, payload));
        drop(first);
        assert!(earlier.is_woken() && !later.is_woken());
        let mut last = Asked::new(&table, 0, 40);
        assert!(later.poll().is_none() && last.poll().is_none(), "they pass the earlier one");
        let Some(Entered::Owner(mut first, Some(20))) = earlier.poll() else { panic!("the bucket is free") };

        drop(second);
        let Some(Entered::Owner(second, Some(10))) = placed.poll() else { panic!("it is granted") };
        assert!(later.is_woken() && !last.is_woken(), "the node is for the first in line");
        assert!(last.poll().is_none() && later.poll().is_none());
        let mut joined = Vec::new();
        first.join(8, |payload| joined.push(payload));
        assert_eq!(joined, [30]);
        first.finish(&7);
        assert!(matches!(later.poll(), Some(Entered::Joined(Some(7)))));
        assert!(matches!(last.poll(), Some(Entered::Owner(_, Some(40)))));
        drop(second);
        assert!(table.is_idle());
    }

    #[test]
    fn a_place_in_line_that_is_given_up_is_taken_by_the_next() {
        for frees_bucket in [true, false] {
            let table = Table::new(2, 1, 1);
            let [first, second] = [0, 1].map(|stripe| table.try_claim(stripe).unwrap());
            let mut placed = Asked::new(&table, 1, 10);
            let [earlier, mut later] = [20, 30].map(|payload| Asked::new(&table, 0, payload));
            let mut held = Some(first);
            if frees_bucket {
                held = None;
            } else {
                drop(second);
                assert!(matches!(placed.poll(), Some(Entered::Owner(_, Some(10)))));
            }
            assert!(earlier.is_woken() && !later.is_woken());
            drop(earlier);
            assert!(later.is_woken(), "{frees_bucket}");
            let entered = later.poll();
            assert_eq!(entered.is_some(), frees_bucket);
            drop(entered);
            drop(held);
            assert!(frees_bucket || later.poll().is_some());
        }
    }
}
