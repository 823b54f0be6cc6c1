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
    cell::Cell,
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use pinstripe_runtime::Signal;

/// Bytes that all connections of a server may hold, unless told.
pub const BUDGET_BYTES: usize = 1 << 30;
/// Bytes up to which a connection that holds nothing needn't wait.
pub const FLOOR_BYTES: usize = 128 << 10;

/// See the module.
pub struct Budget {
    limit: usize,
    held: AtomicUsize,
    /// Tickets of what waits, the oldest first.
    queue: Mutex<VecDeque<u64>>,
    /// How many they are, to be looked at without the lock.
    waiting: AtomicUsize,
    tickets: AtomicU64,
    changed: Signal,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(BUDGET_BYTES)
    }
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            held: AtomicUsize::new(0),
            queue: Mutex::default(),
            waiting: AtomicUsize::new(0),
            tickets: AtomicU64::new(0),
            changed: Signal::default(),
        }
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
        if bytes > 0 {
            let before = self.held.fetch_sub(bytes, Ordering::SeqCst);
            assert!(before >= bytes, "more memory was given back than taken");
            self.changed.notify();
        }
    }

    /// Waits for so many bytes, unless none are needed any more. Whether it has taken them.
    async fn take(&self, bytes: usize, is_needless: impl Fn() -> bool) -> bool {
        if self.waiting.load(Ordering::SeqCst) == 0 && self.try_take(bytes) {
            return true;
        }
        let turn = Turn::new(self);
        let taken = Cell::new(false);
        let over = || {
            taken.set(!is_needless() && turn.has_come() && self.try_take(bytes));
            taken.get() || is_needless()
        };
        self.changed.wait_until(over).await;
        taken.get()
    }
}

/// A place in the queue, until it goes.
struct Turn<'a> {
    budget: &'a Budget,
    ticket: u64,
}

impl<'a> Turn<'a> {
    fn new(budget: &'a Budget) -> Self {
        let ticket = budget.tickets.fetch_add(1, Ordering::Relaxed);
        let turn = Self { budget, ticket };
        turn.change(|queue| queue.push_back(ticket));
        turn
    }

    fn change<T>(&self, work: impl FnOnce(&mut VecDeque<u64>) -> T) -> T {
        let mut queue = self.budget.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let value = work(&mut queue);
        self.budget.waiting.store(queue.len(), Ordering::SeqCst);
        value
    }

    fn has_come(&self) -> bool {
        self.change(|queue| queue.front() == Some(&self.ticket))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.change(|queue| queue.retain(|other| *other != self.ticket));
        self.budget.changed.notify();
    }
}

/// What one connection holds of a budget. What is left goes back with it.
pub struct Share {
    budget: Arc<Budget>,
    held: Cell<usize>,
    /// What of it the budget doesn't count.
    beyond: Cell<usize>,
}

impl Share {
    /// Nothing, so far.
    pub fn new(budget: Arc<Budget>) -> Self {
        Self { budget, held: Cell::new(0), beyond: Cell::new(0) }
    }

    /// Bytes that the connection holds.
    pub fn held(&self) -> usize {
        self.held.get()
    }

    /// Waits for so many bytes.
    pub async fn acquire(&self, bytes: usize) {
        // What it holds goes back when its peer has taken it, which may be a moment after its next request.
        let is_little = || bytes == 0 || self.held.get() == 0 && bytes <= FLOOR_BYTES;
        let counted = bytes.min(self.budget.most());
        if is_little() || !self.budget.take(counted, is_little).await {
            return self.force(bytes);
        }
        self.held.set(self.held.get() + bytes);
        self.beyond.set(self.beyond.get() + bytes - counted);
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
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.held.get());
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, task::Poll};

    use super::*;

    /// Polls once.
    fn now<F: Future>(future: std::pin::Pin<&mut F>) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
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
}
