//! Waiting for a condition over shared state, on one shard or across shards.

use std::{future::Future, task::Poll, task::Waker};

use crate::{
    atomics::{AtomicU64, Mutex, Ordering, fence},
    mailbox::lock,
};

/// Tells waiters that some shared state may have changed. It holds no state itself: each waiter names its
/// condition.
///
/// A notifier changes the state and then calls [`Signal::notify`]; a waiter registers and then looks at the
/// state. The fences between make sure that one of the two sees the other.
///
/// Where many tasks wait for their numbers, such as places in a queue, each names its number
/// ([`Signal::wait_for_number`]), and a notifier says which numbers may have come ([`Signal::notify_to`]).
/// The other tasks are left alone. It is for the user to know that a task with a higher number has nothing
/// to learn. What concerns all tasks, such as a failure, is told by [`Signal::notify`].
///
/// A signal with few waiters, or one that is seldom given, needs no numbers. The membership of an array
/// changes when a member fails or comes. A group commit of write intent takes all regions that were asked
/// for, so a task is woken in vain once at most, and a bit stays set for long. Batches of a journal are not
/// logged in the order of their numbers.
pub struct Signal {
    waiters: Mutex<Waiters>,
    /// The lowest number that is waited for; [`NONE`] if no task waits.
    lowest: AtomicU64,
}

/// Above all numbers.
const NONE: u64 = u64::MAX;

#[derive(Default)]
struct Waiters {
    /// With the number that each waits for, in the order of coming.
    wakers: Vec<(u64, Waker)>,
    /// Empty; its memory serves the next round, so that waiting does not allocate after warm-up.
    spare: Vec<Waker>,
}

impl Default for Signal {
    fn default() -> Self {
        Self { waiters: Mutex::default(), lowest: AtomicU64::new(NONE) }
    }
}

impl Signal {
    /// Has every waiter look again. Cheap when there is none.
    pub fn notify(&self) {
        self.notify_to(NONE - 1);
    }

    /// Has those look again that wait for `number` or a lower one, and those that wait for no number. Cheap
    /// when there is none.
    pub fn notify_to(&self, number: u64) {
        fence(Ordering::SeqCst);
        if self.lowest.load(Ordering::SeqCst) > number {
            return;
        }
        let mut due = {
            let mut waiters = lock(&self.waiters);
            let Waiters { wakers, spare } = &mut *waiters;
            let mut due = std::mem::take(spare);
            due.extend(wakers.extract_if(.., |(awaited, _)| *awaited <= number).map(|(_, waker)| waker));
            let lowest = wakers.iter().map(|(awaited, _)| *awaited).min();
            self.lowest.store(lowest.unwrap_or(NONE), Ordering::SeqCst);
            due
        };
        // Outside of the lock: a waker may come back here.
        for waker in due.drain(..) {
            waker.wake();
        }
        let mut waiters = lock(&self.waiters);
        if waiters.spare.capacity() < due.capacity() {
            waiters.spare = due;
        }
    }

    /// Waits until `condition` gives a value.
    pub fn wait_for<'a, T>(
        &'a self,
        condition: impl FnMut() -> Option<T> + 'a,
    ) -> impl Future<Output = T> + 'a {
        self.wait_for_number(0, condition)
    }

    /// Waits until `condition` gives a value, which it doesn't before it is told of `number`
    /// ([`Signal::notify_to`]) or to all. The number is below `u64::MAX`.
    pub fn wait_for_number<'a, T>(
        &'a self,
        number: u64,
        mut condition: impl FnMut() -> Option<T> + 'a,
    ) -> impl Future<Output = T> + 'a {
        std::future::poll_fn(move |cx| {
            if let Some(value) = condition() {
                return Poll::Ready(value);
            }
            self.register_for(number, cx.waker());
            match condition() {
                Some(value) => Poll::Ready(value),
                None => Poll::Pending,
            }
        })
    }

    /// Waits until `condition` holds.
    pub async fn wait_until(&self, mut condition: impl FnMut() -> bool) {
        self.wait_for(|| condition().then_some(())).await;
    }

    /// Has `waker` woken by the next notification, whatever its number; look at the state after this call,
    /// not before.
    pub fn register(&self, waker: &Waker) {
        self.register_for(0, waker);
    }

    fn register_for(&self, number: u64, waker: &Waker) {
        let mut waiters = lock(&self.waiters);
        match waiters.wakers.iter_mut().find(|(_, own)| own.will_wake(waker)) {
            // A task that waits for several numbers looks at all its conditions when it is woken.
            Some((awaited, _)) => *awaited = number.min(*awaited),
            None => waiters.wakers.push((number, waker.clone())),
        }
        self.lowest.fetch_min(number, Ordering::SeqCst);
        drop(waiters);
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        pin::{Pin, pin},
        sync::{
            Arc,
            atomic::{self, AtomicU32},
        },
        task::{Context, Wake},
    };

    use super::*;

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, atomic::Ordering::SeqCst);
        }
    }

    impl Wakes {
        fn count(&self) -> u32 {
            self.0.load(atomic::Ordering::SeqCst)
        }
    }

    fn poll<F: Future>(task: Pin<&mut F>, wakes: &Arc<Wakes>) -> Poll<F::Output> {
        task.poll(&mut Context::from_waker(&Waker::from(Arc::clone(wakes))))
    }

    #[test]
    fn a_task_is_woken_when_its_number_may_have_come_and_not_before() {
        let (signal, come) = (Signal::default(), &Cell::new(0_u64));
        let has_come = |number: u64| move || (come.get() >= number).then_some(());
        let (of_early, of_late): (Arc<Wakes>, Arc<Wakes>) = Default::default();
        let mut early = pin!(signal.wait_for_number(3, has_come(3)));
        let mut late = pin!(signal.wait_for_number(7, has_come(7)));
        assert!(poll(early.as_mut(), &of_early).is_pending() && poll(late.as_mut(), &of_late).is_pending());
        signal.notify_to(2);
        assert_eq!((of_early.count(), of_late.count()), (0, 0), "neither number has come");
        come.set(6);
        signal.notify_to(6);
        assert_eq!((of_early.count(), of_late.count()), (1, 0), "the later one has not come");
        assert!(poll(early.as_mut(), &of_early).is_ready());
        come.set(7);
        signal.notify_to(7);
        assert_eq!((of_early.count(), of_late.count()), (1, 1));
        assert!(poll(late.as_mut(), &of_late).is_ready());
    }

    #[test]
    fn what_concerns_all_wakes_all_and_a_task_without_a_number_is_woken_by_each() {
        let signal = Signal::default();
        let (of_late, of_any): (Arc<Wakes>, Arc<Wakes>) = Default::default();
        let mut late = pin!(signal.wait_for_number(u64::MAX - 1, || None::<()>));
        let mut any = pin!(signal.wait_for(|| None::<()>));
        for round in 1..=2 {
            assert!(poll(late.as_mut(), &of_late).is_pending() && poll(any.as_mut(), &of_any).is_pending());
            signal.notify_to(0);
            assert_eq!((of_late.count(), of_any.count()), (round - 1, 2 * round - 1));
            assert!(poll(any.as_mut(), &of_any).is_pending());
            signal.notify();
            assert_eq!((of_late.count(), of_any.count()), (round, 2 * round));
        }
    }

    #[test]
    fn a_task_that_waits_for_two_numbers_is_woken_by_each() {
        let signal = Signal::default();
        let wakes: Arc<Wakes> = Arc::default();
        let mut one = pin!(signal.wait_for_number(5, || None::<()>));
        let mut other = pin!(signal.wait_for_number(2, || None::<()>));
        for told in [2, 5] {
            assert!(poll(one.as_mut(), &wakes).is_pending() && poll(other.as_mut(), &wakes).is_pending());
            let before = wakes.count();
            signal.notify_to(told);
            assert!(wakes.count() > before, "told of {told}");
        }
    }
}
