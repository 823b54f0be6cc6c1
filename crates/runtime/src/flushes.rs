//! A device's flushes, by all shards.
//!
//! A device that has lost writes tells it once (C5); but they may be what other flushes wait for too, those
//! under way and those that come later. So a flush isn't answered before all are over that began before it
//! was, by ticket: a count of those that have ended is met by later ones (C33). Forced writes are flushes too
//! where they are made of them ([`DeviceInfo::forces_by_flush`](crate::DeviceInfo::forces_by_flush)).

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{
    DeviceError, Signal,
    mutants::{Mutant, active},
};

/// See the module.
#[derive(Default)]
pub struct Flushes {
    state: Mutex<FlushState>,
    changed: Signal,
}

#[derive(Default)]
struct FlushState {
    /// The latest ticket.
    begun: u64,
    /// The tickets of those that aren't over, in order.
    under_way: Vec<u64>,
    /// How the last failed that did.
    error: Option<DeviceError>,
}

impl FlushState {
    /// All flushes up to this ticket are over.
    fn over_to(&self) -> u64 {
        if active(Mutant::FlushesCounted) {
            self.begun - self.under_way.len() as u64
        } else {
            self.under_way.first().map_or(self.begun, |oldest| oldest - 1)
        }
    }
}

/// A flush that is under way.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlushTicket(u64);

impl Flushes {
    /// A flush is about to be asked for.
    pub fn begin(&self) -> FlushTicket {
        let mut state = self.state();
        state.begun += 1;
        let number = state.begun;
        state.under_way.push(number);
        FlushTicket(number)
    }

    /// It is over. Gives the latest that has begun, for [`Flushes::failure_to`]: a flush that begins later
    /// can't be told of what this one covers.
    pub fn end(&self, ticket: FlushTicket, error: Option<DeviceError>) -> FlushTicket {
        let mut state = self.state();
        state.under_way.retain(|&number| number != ticket.0);
        state.error = error.or(state.error);
        let (over_to, begun) = (state.over_to(), state.begun);
        drop(state);
        self.changed.notify_to(over_to);
        FlushTicket(begun)
    }

    /// Nothing waits any more for those that are under way.
    pub fn give_up(&self, error: DeviceError) {
        let mut state = self.state();
        if std::mem::take(&mut state.under_way).is_empty() {
            return;
        }
        state.error = Some(error);
        drop(state);
        self.changed.notify();
    }

    /// Waits for all that are under way now, and says how the last failed that ever did.
    pub async fn failure(&self) -> Option<DeviceError> {
        let begun = FlushTicket(self.state().begun);
        self.failure_to(begun).await
    }

    /// The same for all that had begun at a moment, by the latest of them.
    pub async fn failure_to(&self, FlushTicket(begun): FlushTicket) -> Option<DeviceError> {
        self.changed.wait_for_number(begun, || (self.state().over_to() >= begun).then_some(())).await;
        self.state().error
    }

    /// How the last failed that ever did.
    pub fn error(&self) -> Option<DeviceError> {
        self.state().error
    }

    fn state(&self) -> MutexGuard<'_, FlushState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        task::{Context, Wake, Waker},
    };

    use super::*;
    use crate::DeviceErrorKind;

    #[test]
    fn a_flush_is_answered_when_all_that_began_before_it_ended_are_over_whatever_ends_later() {
        let (flushes, error) = (Flushes::default(), DeviceError::of(DeviceErrorKind::Media));
        let mut cx = Context::from_waker(Waker::noop());
        let oldest = flushes.begin();
        let ours = flushes.begin();
        flushes.end(ours, None);
        let mut answer = pin!(flushes.failure());
        assert!(answer.as_mut().poll(&mut cx).is_pending(), "an older one is under way");
        for _ in 0..3 {
            let later = flushes.begin();
            flushes.end(later, None);
            assert!(answer.as_mut().poll(&mut cx).is_pending(), "it still is");
        }
        let latest = flushes.begin();
        flushes.end(oldest, Some(error));
        let told = answer.as_mut().poll(&mut cx);
        assert_eq!(told, std::task::Poll::Ready(Some(error)), "one that began later is not waited for");
        flushes.end(latest, None);
    }

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_end_of_a_flush_wakes_what_waits_for_no_older_one() {
        let flushes = Flushes::default();
        let begun: Vec<_> = (0..3).map(|_| flushes.begin()).collect();
        let wakes: Arc<Wakes> = Arc::default();
        let waker = Waker::from(Arc::clone(&wakes));
        let mut cx = Context::from_waker(&waker);
        let mut answer = pin!(flushes.failure());
        assert!(answer.as_mut().poll(&mut cx).is_pending());
        let later = flushes.begin();
        for over in [later, begun[1], begun[2]] {
            flushes.end(over, None);
            assert_eq!(wakes.0.load(Ordering::SeqCst), 0, "the oldest is under way");
        }
        flushes.end(begun[0], None);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        assert!(answer.as_mut().poll(&mut cx).is_ready());
    }

    #[test]
    fn what_is_given_up_has_failed_and_is_not_waited_for() {
        let (flushes, error) = (Flushes::default(), DeviceError::of(DeviceErrorKind::TimedOut));
        let mut cx = Context::from_waker(Waker::noop());
        flushes.give_up(error);
        assert_eq!(flushes.error(), None, "nothing was under way");
        let hangs = flushes.begin();
        let mut answer = pin!(flushes.failure());
        assert!(answer.as_mut().poll(&mut cx).is_pending());
        flushes.give_up(error);
        assert_eq!(answer.as_mut().poll(&mut cx), std::task::Poll::Ready(Some(error)));
        flushes.end(hangs, None);
        assert_eq!(flushes.error(), Some(error), "it is not known what was lost");
    }
}
