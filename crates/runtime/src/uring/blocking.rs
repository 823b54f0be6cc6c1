//! Work that blocks, on a thread of its own: for rare things such as opening a device.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use crate::Signal;

/// Runs `work` on a thread of its own and waits for its value. If the wait is dropped, the work goes on.
///
/// # Panics
/// With `work`'s panic, or if there is no thread to be had.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let answer = Arc::new((Mutex::new(None), Signal::default()));
    let there = Arc::clone(&answer);
    let run = move || {
        let value = catch_unwind(AssertUnwindSafe(work));
        *there.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        there.1.notify();
    };
    // The thread ends with the work; nobody needs to join it.
    let _detached =
        thread::Builder::new().name("blocking".into()).spawn(run).expect("a thread for work that blocks");
    let value = answer.1.wait_for(|| answer.0.lock().unwrap_or_else(PoisonError::into_inner).take()).await;
    value.unwrap_or_else(|panic| resume_unwind(panic))
}
