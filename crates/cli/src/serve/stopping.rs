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
    outcome: RefCell<Option<Result<(), String>>>,
    /// Another program is to take this one's place.
    successor: RefCell<Option<Wish>>,
    succeeded: Cell<bool>,
    changed: Signal,
}

impl Stopping {
    pub fn new() -> Rc<Self> {
        let (wanted, outcome, successor, succeeded, changed) = Default::default();
        Rc::new(Self { wanted, outcome, successor, succeeded, changed })
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
