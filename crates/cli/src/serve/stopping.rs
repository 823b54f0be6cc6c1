//! The wish to stop, and what became of it.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use pinstripe_runtime::Signal;

use super::succession::Wish;

/// See the module. Lives on shard 0.
pub struct Stopping {
    wanted: Cell<bool>,
    /// The array is about to be given up.
    released: Cell<bool>,
    outcome: RefCell<Option<Result<(), String>>>,
    /// Another program is to take this one's place.
    successor: RefCell<Option<Wish>>,
    succeeded: Cell<bool>,
    changed: Signal,
}

impl Stopping {
    pub fn new() -> Rc<Self> {
        let (wanted, released, outcome, successor, succeeded, changed) = Default::default();
        Rc::new(Self { wanted, released, outcome, successor, succeeded, changed })
    }

    /// Asks for the end, so that another program goes on.
    pub fn want_successor(&self, wish: Wish) {
        self.successor.replace(Some(wish));
        self.succeeded.set(true);
        self.want();
    }

    /// Whether another program is to go on.
    pub fn is_for_successor(&self) -> bool {
        self.succeeded.get()
    }

    /// The program that is to go on, if that is what was asked for.
    pub fn successor(&self) -> Option<Wish> {
        self.successor.take()
    }

    /// Asks for the end.
    pub fn want(&self) {
        self.wanted.set(true);
        self.changed.notify();
    }

    /// Whether the end was asked for.
    pub fn is_wanted(&self) -> bool {
        self.wanted.get()
    }

    /// Waits until the end is asked for.
    pub async fn wanted(&self) {
        self.changed.wait_until(|| self.wanted.get()).await;
    }

    /// Has all that still waits for something of the array end.
    pub fn release(&self) {
        self.released.set(true);
        self.changed.notify();
    }

    /// Waits for the next step towards the end: the order to stop, or after that the moment in which the
    /// array is given up. A call that waits is answered once for each, not all the time that a stop takes.
    pub async fn next_step(&self) {
        let is_wanted = self.wanted.get();
        self.changed.wait_until(|| if is_wanted { self.released.get() } else { self.wanted.get() }).await;
    }

    /// Tells how it ended.
    pub fn finish(&self, outcome: Result<(), String>) {
        *self.outcome.borrow_mut() = Some(outcome);
        self.changed.notify();
    }

    /// Waits until it has ended.
    pub async fn finished(&self) -> Result<(), String> {
        self.changed.wait_for(|| self.outcome.borrow().clone()).await
    }
}

#[cfg(test)]
mod tests {
    use pinstripe_runtime::{
        shard,
        uring::{self, RuntimeConfig},
    };

    use super::*;

    #[test]
    fn what_waits_for_events_while_the_array_stops_waits_until_that_is_given_up() {
        uring::run(&RuntimeConfig::unpinned(1), |_| async {
            let stopping = Stopping::new();
            let comes = async || shard::timeout(50_000_000, stopping.next_step()).await.is_some();
            assert!(!comes().await);
            let before = shard::spawn_joined({
                let stopping = Rc::clone(&stopping);
                async move { stopping.next_step().await }
            });
            shard::sleep(1_000_000).await;
            stopping.want();
            before.join().await;
            assert!(!comes().await, "those that ask again would never pause");
            stopping.release();
            assert!(comes().await);
        })
        .unwrap();
    }
}
