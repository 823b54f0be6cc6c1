//! The wish to stop, and what became of it.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use pinstripe_runtime::Signal;

/// See the module. Lives on shard 0.
pub struct Stopping {
    wanted: Cell<bool>,
    outcome: RefCell<Option<Result<(), String>>>,
    changed: Signal,
}

impl Stopping {
    pub fn new() -> Rc<Self> {
        Rc::new(Self { wanted: Cell::new(false), outcome: RefCell::default(), changed: Signal::default() })
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
