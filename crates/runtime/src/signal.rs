//! Waiting for a condition over shared state, on one shard or across shards.

use std::{future::Future, task::Poll, task::Waker};

use crate::{
    atomics::{AtomicU32, Mutex, Ordering, fence},
    mailbox::lock,
};

/// Tells waiters that some shared state may have changed. It holds no state itself: each waiter names its
/// condition.
///
/// A notifier changes the state and then calls [`Signal::notify`]; a waiter registers and then looks at the
/// state. The fences between make sure that one of the two sees the other.
#[derive(Default)]
pub struct Signal {
    waiters: Mutex<Waiters>,
    count: AtomicU32,
}

#[derive(Default)]
struct Waiters {
    wakers: Vec<Waker>,
    /// Empty; its memory serves the next round, so that waiting does not allocate after warm-up.
    spare: Vec<Waker>,
}

impl Signal {
    /// Has every waiter look again. Cheap when there is none.
    pub fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut wakers = {
            let mut waiters = lock(&self.waiters);
            self.count.store(0, Ordering::SeqCst);
            let spare = std::mem::take(&mut waiters.spare);
            std::mem::replace(&mut waiters.wakers, spare)
        };
        // Outside of the lock: a waker may come back here.
        for waker in wakers.drain(..) {
            waker.wake();
        }
        let mut waiters = lock(&self.waiters);
        if waiters.spare.capacity() < wakers.capacity() {
            waiters.spare = wakers;
        }
    }

    /// Waits until `condition` gives a value.
    pub fn wait_for<'a, T>(
        &'a self,
        mut condition: impl FnMut() -> Option<T> + 'a,
    ) -> impl Future<Output = T> + 'a {
        std::future::poll_fn(move |cx| {
            if let Some(value) = condition() {
                return Poll::Ready(value);
            }
            self.register(cx.waker());
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

    /// Has `waker` woken by the next [`Signal::notify`]; look at the state after this call, not before.
    pub fn register(&self, waker: &Waker) {
        let mut waiters = lock(&self.waiters);
        if !waiters.wakers.iter().any(|w| w.will_wake(waker)) {
            waiters.wakers.push(waker.clone());
        }
        self.count.store(1, Ordering::SeqCst);
        drop(waiters);
        fence(Ordering::SeqCst);
    }
}
