//! What a task may ask of the shard that it runs on.

use std::{
    cell::RefCell,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use crate::{
    Buffer,
    executor::{self, Shard},
    signal::Signal,
    timers::TimerId,
};

thread_local! {
    static CURRENT: RefCell<Option<Rc<Shard>>> = const { RefCell::new(None) };
}

/// While it lives, a shard is the thread's current one.
#[must_use]
pub struct Entered {
    outer: Option<Rc<Shard>>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with(|current| std::mem::swap(&mut *current.borrow_mut(), &mut self.outer));
    }
}

pub(crate) fn enter(shard: Rc<Shard>) -> Entered {
    Entered { outer: CURRENT.with(|current| current.borrow_mut().replace(shard)) }
}

/// Runs `f` on the current shard.
///
/// # Panics
/// On a thread without one.
pub fn with_current<T>(f: impl FnOnce(&Shard) -> T) -> T {
    try_with_current(f).expect("this runs only on a shard")
}

pub(crate) fn try_with_current<T>(f: impl FnOnce(&Shard) -> T) -> Option<T> {
    CURRENT.try_with(|current| current.borrow().as_deref().map(f)).ok().flatten()
}

/// Starts a task on this shard.
pub fn spawn(future: impl Future<Output = ()> + 'static) {
    with_current(|shard| shard.spawn(future));
}

/// Starts a task on this shard, and gives its value to the task that awaits the handle.
pub fn spawn_joined<T: 'static>(future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    let state = Rc::new((RefCell::new(None), Signal::default()));
    let task = Rc::clone(&state);
    spawn(async move {
        let value = future.await;
        *task.0.borrow_mut() = Some(value);
        task.1.notify();
    });
    JoinHandle { state }
}

/// The end of a task, to await. Dropping it lets the task go on.
pub struct JoinHandle<T> {
    state: Rc<(RefCell<Option<T>>, Signal)>,
}

impl<T> JoinHandle<T> {
    /// Waits for the task's value.
    pub async fn join(self) -> T {
        self.state.1.wait_for(|| self.state.0.borrow_mut().take()).await
    }
}

/// Nanoseconds since some fixed moment.
pub fn now() -> u64 {
    with_current(Shard::now)
}

/// Nanoseconds by the machine's monotonic clock: for a moment of which another process is to know.
pub fn machine_now() -> u64 {
    with_current(Shard::machine_now)
}

/// Nanoseconds that this shard was there to wait: [`now`] without the time in which its loop stood still
/// (C29). For how long something takes that is waited for here; it means nothing on another shard.
pub fn waited() -> u64 {
    with_current(Shard::waited)
}

/// This shard's number among the shards of the process or world, from 0.
pub fn index() -> usize {
    with_current(Shard::index)
}

/// A buffer from this shard's pool. What it holds is unspecified.
pub fn buffer(length: usize) -> Buffer {
    with_current(|shard| shard.pool().buffer(length))
}

/// A buffer of zeroes from this shard's pool.
pub fn zeroed(length: usize) -> Buffer {
    with_current(|shard| shard.pool().zeroed(length))
}

/// What this task works on from now on has just come from outside: see
/// [`Stream::has_hung_up`](crate::Stream::has_hung_up).
pub fn note_arrival() {
    with_current(Shard::note_arrival);
}

/// Waits for `nanoseconds`, by [`waited`].
pub fn sleep(nanoseconds: u64) -> Sleep {
    Sleep { deadline: waited().saturating_add(nanoseconds), timer: None }
}

/// See [`sleep`]. Dropping it early takes its timer away.
pub struct Sleep {
    deadline: u64,
    timer: Option<TimerId>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        with_current(|shard| {
            if shard.waited() >= self.deadline {
                return Poll::Ready(());
            }
            let deadline = self.deadline;
            self.timer.get_or_insert_with(|| shard.set_timer(deadline));
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            // Without a shard there are no timers either.
            try_with_current(|shard| shard.cancel_timer(timer));
        }
    }
}

/// Lets every task run that is ready now.
pub fn yield_now() -> impl Future<Output = ()> {
    let mut yielded = false;
    std::future::poll_fn(move |cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

/// A point between two steps of a protocol with other shards, at which the machine may take this thread off
/// its CPU. Production doesn't wait here. A simulated world may ([`Shard::interrupt_by`]): to it a poll is
/// one step, and what another shard does in the middle of it would never be seen.
pub fn interruption() -> impl Future<Output = ()> {
    let mut is_over = false;
    std::future::poll_fn(move |cx| {
        if std::mem::replace(&mut is_over, true) || !executor::is_interrupted() {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

/// Waits for `future`, but no longer than `nanoseconds`: `None` then. The future is dropped, which ends a
/// wait and never a request.
pub async fn timeout<F: Future>(nanoseconds: u64, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut sleep = sleep(nanoseconds);
    std::future::poll_fn(move |cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        Pin::new(&mut sleep).poll(cx).map(|()| None)
    })
    .await
}
