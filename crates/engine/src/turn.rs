//! One task at a time, on the home shard.

use std::cell::Cell;

use pinstripe_runtime::Signal;

/// A right that one task has at a time. The others wait.
#[derive(Default)]
pub(crate) struct Turn {
    is_taken: Cell<bool>,
    given_back: Signal,
}

/// Has the right until it is dropped.
#[must_use = "dropped, it is given back"]
pub(crate) struct Taken<'t>(&'t Turn);

impl Turn {
    /// Waits for the right.
    pub(crate) async fn take(&self) -> Taken<'_> {
        self.given_back.wait_until(|| !self.is_taken.replace(true)).await;
        Taken(self)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.is_taken.set(false);
        self.0.given_back.notify();
    }
}
