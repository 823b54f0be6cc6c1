//! Memory that clients can make a server hold: one budget for all connections of all shards, whatever
//! protocol they speak.
//!
//! It is counted as it is allocated: in whole blocks of the pool, from before the memory is taken until what
//! is in it has been sent. Of a request that is larger than most of the budget only so much is counted: it
//! goes, one at a time, although others hold a little.
//!
//! A connection asks for memory *before* it makes an answer. A request that finds none waits in the order of
//! asking; connections that hold nothing get a little all the same, so that those that take no answers don't
//! stop the others until they are cut off.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
};

/// Bytes that all connections of a server may hold, unless told.
pub const BUDGET_BYTES: usize = 1 << 30;
/// Bytes up to which a connection that holds nothing needn't wait.
pub const FLOOR_BYTES: usize = 128 << 10;

/// See the module.
pub struct Budget {
    limit: usize,
    held: AtomicUsize,
    /// What waits, the oldest first. Only that one can go, so no other is woken: there may be thousands.
    queue: Mutex<Queue>,
    /// How many they are, to be looked at without the lock.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    /// By ticket.
    entries: VecDeque<(u64, Option<Waker>)>,
    next: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(BUDGET_BYTES)
    }
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, held: AtomicUsize::new(0), queue: Mutex::default(), waiting: AtomicUsize::new(0) }
    }

    /// Bytes that are held now.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    /// Most that is counted of a request: two that are larger don't fit.
    fn most(&self) -> usize {
        self.limit - self.limit / 4
    }

    fn try_take(&self, bytes: usize) -> bool {
        let with = |held: usize| held.checked_add(bytes).filter(|sum| held == 0 || *sum <= self.limit);
        self.held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, with).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let before = self.held.fetch_sub(bytes, Ordering::SeqCst);
        assert!(before >= bytes, "more memory was given back than taken");
        // What begins to wait now counts itself first, and looks at what is held then.
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let oldest = self.queue().entries.front_mut().and_then(|(_, waker)| waker.take());
            wake(oldest);
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// A place in the queue, until it goes.
struct Turn<'a> {
    budget: &'a Budget,
    ticket: u64,
}

impl<'a> Turn<'a> {
    fn new(budget: &'a Budget) -> Self {
        let mut queue = budget.queue();
        let ticket = queue.next;
        queue.next += 1;
        queue.entries.push_back((ticket, None));
        budget.waiting.store(queue.entries.len(), Ordering::SeqCst);
        Self { budget, ticket }
    }

    /// Takes so many bytes if the turn has come and they are there. Otherwise `waker` is woken when that may
    /// be so.
    fn try_take(&self, bytes: usize, waker: &Waker) -> bool {
        let mut queue = self.budget.queue();
        let place = queue.place(self.ticket);
        if let Some((_, own)) = place.and_then(|place| queue.entries.get_mut(place)) {
            *own = Some(waker.clone());
        }
        drop(queue);
        place == Some(0) && self.budget.try_take(bytes)
    }
}

impl Queue {
    /// Tickets are given in their order.
    fn place(&self, ticket: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.budget.queue();
        let Some(place) = queue.place(self.ticket) else { return };
        queue.entries.remove(place);
        self.budget.waiting.store(queue.entries.len(), Ordering::SeqCst);
        // The next one may find room as well.
        let next = queue.entries.front_mut().filter(|_| place == 0).and_then(|(_, waker)| waker.take());
        drop(queue);
        wake(next);
    }
}

/// What one connection holds of a budget. What is left goes back with it.
pub struct Share {
    budget: Arc<Budget>,
    held: Cell<usize>,
    /// What of it the budget doesn't count.
    beyond: Cell<usize>,
    /// Requests that go as soon as nothing is held, by ticket, the oldest first.
    little: RefCell<VecDeque<(u64, Waker)>>,
}

impl Share {
    /// Nothing, so far.
    pub fn new(budget: Arc<Budget>) -> Self {
        Self { budget, held: Cell::new(0), beyond: Cell::new(0), little: RefCell::default() }
    }

    /// Bytes that the connection holds.
    pub fn held(&self) -> usize {
        self.held.get()
    }

    /// Waits for so many bytes.
    pub async fn acquire(&self, bytes: usize) {
        if self.is_little(bytes) {
            return self.force(bytes);
        }
        let counted = bytes.min(self.budget.most());
        let is_free = self.budget.waiting.load(Ordering::SeqCst) == 0;
        if is_free && self.budget.try_take(counted) || self.wait(bytes, counted).await {
            self.held.set(self.held.get() + bytes);
            self.beyond.set(self.beyond.get() + bytes - counted);
        } else {
            self.force(bytes);
        }
    }

    /// Whether a request needn't wait.
    fn is_little(&self, bytes: usize) -> bool {
        bytes == 0 || self.held.get() == 0 && bytes <= FLOOR_BYTES
    }

    /// Waits until a request has taken what is `counted` of it, or needn't wait any more: then false.
    async fn wait(&self, bytes: usize, counted: usize) -> bool {
        let turn = Turn::new(&self.budget);
        // What it holds goes back when its peer has taken it, which may be a moment after its next request.
        let little = (bytes <= FLOOR_BYTES).then(|| Little { share: self, ticket: turn.ticket });
        poll_fn(|cx| {
            if self.is_little(bytes) {
                return Poll::Ready(false);
            }
            if let Some(little) = &little {
                little.register(cx.waker());
            }
            if turn.try_take(counted, cx.waker()) { Poll::Ready(true) } else { Poll::Pending }
        })
        .await
    }

    /// Has the oldest request that only waits for what is held go, if nothing is.
    fn wake_little(&self) {
        if self.held.get() == 0 {
            let oldest = self.little.borrow().front().map(|(_, waker)| waker.clone());
            wake(oldest);
        }
    }

    /// Takes them at once, beyond the budget if need be: for what has come already and is bounded otherwise.
    pub fn force(&self, bytes: usize) {
        self.budget.held.fetch_add(bytes, Ordering::SeqCst);
        self.held.set(self.held.get() + bytes);
    }

    /// Whether more is held of the budget than there is.
    pub fn is_budget_exceeded(&self) -> bool {
        self.budget.held() > self.budget.limit
    }

    /// Gives bytes back.
    pub fn give_back(&self, bytes: usize) {
        assert!(self.held.get() >= bytes, "a connection gives back memory that it does not hold");
        self.held.set(self.held.get() - bytes);
        let beyond = bytes.min(self.beyond.get());
        self.beyond.set(self.beyond.get() - beyond);
        self.budget.give_back(bytes - beyond);
        if bytes > 0 {
            self.wake_little();
        }
    }
}

/// A request that goes at once when its share holds nothing, until it has gone.
struct Little<'a> {
    share: &'a Share,
    ticket: u64,
}

impl Little<'_> {
    fn register(&self, waker: &Waker) {
        let mut little = self.share.little.borrow_mut();
        match little.binary_search_by_key(&self.ticket, |(ticket, _)| *ticket) {
            Ok(place) => little[place].1.clone_from(waker),
            Err(place) => little.insert(place, (self.ticket, waker.clone())),
        }
    }
}

impl Drop for Little<'_> {
    fn drop(&mut self) {
        let mut little = self.share.little.borrow_mut();
        if let Ok(place) = little.binary_search_by_key(&self.ticket, |(ticket, _)| *ticket) {
            little.remove(place);
        }
        drop(little);
        // It may have been woken, and gone otherwise.
        self.share.wake_little();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.held.get());
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, task::Context};

    use super::*;

    /// Polls once.
    fn now<F: Future>(future: std::pin::Pin<&mut F>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        matches!(future.poll(&mut context), Poll::Ready(_))
    }

    #[test]
    fn memory_is_given_in_the_order_of_asking_and_none_of_it_is_lost() {
        const MIB: usize = 1 << 20;
        let budget = Arc::new(Budget::new(4 * MIB));
        let share = || Share::new(Arc::clone(&budget));
        let (first, second, third, fourth) = (share(), share(), share(), share());
        assert!(now(pin!(first.acquire(3 * MIB))));
        {
            let mut large = Box::pin(second.acquire(2 * MIB));
            let mut small = Box::pin(third.acquire(MIB));
            assert!(!now(large.as_mut()));
            assert!(!now(small.as_mut()), "it passes the one that asked before");
            assert!(now(pin!(fourth.acquire(FLOOR_BYTES))), "a connection that holds nothing gets a little");
            let mut more = Box::pin(fourth.acquire(FLOOR_BYTES));
            assert!(!now(more.as_mut()), "and no more than that");
            fourth.give_back(FLOOR_BYTES);
            assert!(now(more.as_mut()), "it holds nothing any more");
            first.give_back(MIB);
            assert!(!now(large.as_mut()), "the little is counted");
            // The one that waits longest has gone.
            drop(large);
            assert!(now(small.as_mut()));
        }
        assert_eq!(budget.held(), 3 * MIB + FLOOR_BYTES);
        drop((first, second, third, fourth));
        assert_eq!((budget.held(), budget.waiting.load(Ordering::SeqCst)), (0, 0));
        let (little, large, another) = (share(), share(), share());
        little.force(MIB);
        assert!(now(pin!(large.acquire(9 * MIB))), "a request that is too large goes beside a little");
        {
            let mut waits = Box::pin(another.acquire(9 * MIB));
            assert!(!now(waits.as_mut()), "one at a time");
            assert!(now(pin!(little.acquire(0))), "what takes nothing waits");
            large.give_back(5 * MIB);
            assert!(!now(waits.as_mut()));
            large.give_back(4 * MIB);
            assert!(now(waits.as_mut()));
        }
        drop((little, large, another));
        assert_eq!(budget.held(), 0);
    }

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn memory_that_comes_back_wakes_what_has_its_turn_and_nothing_else() {
        const WAITING: usize = 1000;
        const BYTES: usize = 1 << 20;
        let budget = Arc::new(Budget::new(BYTES));
        let share = || Share::new(Arc::clone(&budget));
        let first = share();
        assert!(now(pin!(first.acquire(BYTES))));
        let shares: Vec<Share> = (0..WAITING).map(|_| share()).collect();
        let wakes = Arc::<Wakes>::default();
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let mut waiting: VecDeque<_> = shares.iter().map(|share| Box::pin(share.acquire(BYTES))).collect();
        assert!(waiting.iter_mut().all(|one| one.as_mut().poll(&mut context).is_pending()));
        drop(first);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        for share in &shares {
            let mut oldest = waiting.pop_front().unwrap();
            assert!(oldest.as_mut().poll(&mut context).is_ready(), "it was woken");
            drop(oldest);
            share.give_back(BYTES);
        }
        let all = wakes.0.load(Ordering::SeqCst);
        assert!(all <= 3 * WAITING, "{all} times");
        assert_eq!((budget.held(), budget.waiting.load(Ordering::SeqCst)), (0, 0));
    }

    #[test]
    fn what_needs_little_is_woken_when_its_connection_holds_nothing() {
        let budget = Arc::new(Budget::new(FLOOR_BYTES));
        let (other, share) = (Share::new(Arc::clone(&budget)), Share::new(Arc::clone(&budget)));
        share.force(1);
        assert!(now(pin!(other.acquire(FLOOR_BYTES - 1))));
        let wakes: [Arc<Wakes>; 2] = Default::default();
        let mut waiting: Vec<_> = wakes
            .iter()
            .map(|wakes| {
                let mut one = Box::pin(share.acquire(FLOOR_BYTES));
                let waker = Waker::from(Arc::clone(wakes));
                assert!(one.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                one
            })
            .collect();
        let woken = || wakes.each_ref().map(|wakes| wakes.0.load(Ordering::SeqCst) > 0);
        share.give_back(1);
        assert!(woken()[0]);
        // It goes otherwise: the next one is not forgotten.
        drop(waiting.remove(0));
        assert!(woken()[1]);
        assert!(now(waiting[0].as_mut()));
    }
}
