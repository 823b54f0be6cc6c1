//! SIGTERM and SIGINT, which end a server at any moment of its life.

use std::{
    cell::Cell,
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use pinstripe_runtime::uring::termination;

use crate::log;

thread_local! {
    /// See [`finish_start`].
    static FINISHES_START: Cell<bool> = const { Cell::new(false) };
}

/// The order to end. It may be awaited again, and is there at once when it has come.
pub struct Order(Option<Pin<Box<dyn Future<Output = ()>>>>);

impl Order {
    /// None so far.
    pub fn new() -> Self {
        Self(Some(Box::pin(async {
            if let Err(error) = termination().await {
                // The control socket is still there.
                log::warn(&format!("can't wait for signals: {error}; use `pinstripe stop`"));
                std::future::pending::<()>().await;
            }
        })))
    }
}

impl Order {
    /// Whether it has come.
    pub fn is_given(&mut self) -> bool {
        Pin::new(self).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }
}

/// Gives the order to the program that takes this one's place: the signal waits until that asks for it.
pub fn pass_on() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
}

impl Future for Order {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(signal) = &mut self.0
            && signal.as_mut().poll(context).is_pending()
        {
            return Poll::Pending;
        }
        self.0 = None;
        Poll::Ready(())
    }
}

/// From now on an order to end waits until the server has started: what begins now would be left behind, or
/// keep the process from ending. To be called on the shard that starts it.
pub fn finish_start() {
    FINISHES_START.set(true);
}

/// Does the work of a server's start, unless the process is ordered to end meanwhile; then the work is
/// dropped where it stands, but for [`finish_start`].
pub async fn until_ordered<T>(order: &mut Order, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|context| {
        if Pin::new(&mut *order).poll(context).is_ready() && !FINISHES_START.get() {
            log::warn("ended by a signal before it was ready; nothing was served");
            return Poll::Ready(None);
        }
        work.as_mut().poll(context).map(Some)
    })
    .await
}

#[cfg(test)]
mod tests {
    use pinstripe_runtime::{
        shard,
        uring::{RuntimeConfig, run},
    };

    use super::*;

    /// Work of five turns, which says in the `at`th that it must be finished; the order comes in the third.
    /// What came of it, and whether the order is still there afterwards.
    fn started(at: usize) -> (Option<usize>, bool) {
        let made = run(&RuntimeConfig::unpinned(1), move |_| async move {
            let mut order = Order(Some(Box::pin(async {
                shard::yield_now().await;
                shard::yield_now().await;
            })));
            let work = async {
                for turn in 0..5 {
                    if turn == at {
                        finish_start();
                    }
                    shard::yield_now().await;
                }
                5
            };
            let outcome = until_ordered(&mut order, work).await;
            (
                outcome,
                Pin::new(&mut order).poll(&mut Context::from_waker(std::task::Waker::noop())).is_ready(),
            )
        });
        made.unwrap()
    }

    #[test]
    fn an_order_ends_a_start_unless_the_start_must_be_finished() {
        assert_eq!(started(9), (None, true));
        assert_eq!(started(4), (None, true), "the order came before");
        assert_eq!(started(1), (Some(5), true), "and is obeyed afterwards");
    }
}
