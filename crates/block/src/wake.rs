//! Waiting on a condition within one shard, for one task at a time.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Wakes the one task that waits here. Unlike the runtime's `Signal` it never allocates and is of no use to
/// other shards.
#[derive(Default)]
pub struct Wake(Cell<Option<Waker>>);

impl Wake {
    /// Has the waiter, if there is one, look at its condition again.
    pub fn wake(&self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }

    /// Waits until `condition` gives a value; it is looked at on each [`Wake::wake`].
    pub fn wait_for<'a, T>(
        &'a self,
        mut condition: impl FnMut() -> Option<T> + 'a,
    ) -> impl Future<Output = T> + 'a {
        poll_fn(move |cx| {
            let value = condition();
            if value.is_none() {
                self.0.set(Some(cx.waker().clone()));
            }
            value.map_or(Poll::Pending, Poll::Ready)
        })
    }
}
