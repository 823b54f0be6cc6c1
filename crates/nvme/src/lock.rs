//! Locks that outlive a panic of their holder.
//!
//! **Order.** A thread holds at most one of them: what must be known or done under another one is asked for
//! before, or done afterwards. So shards can't wait for each other in a circle, whichever locks they take.
//! Debug builds look, whether or not another thread wants the lock just then. Those of an association and of
//! signals are below: under them nothing else of this crate is called.

#[cfg(debug_assertions)]
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(debug_assertions)]
thread_local! {
    static HOLDS_ONE: Cell<bool> = const { Cell::new(false) };
}

/// The value behind a lock, as long as it is held.
pub(crate) struct Held<'a, T>(MutexGuard<'a, T>);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Held<'_, T> {
    #[cfg(debug_assertions)]
    assert!(!HOLDS_ONE.replace(true), "a lock is taken while another one is held");
    Held(mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

#[cfg(debug_assertions)]
impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        HOLDS_ONE.set(false);
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn one_after_the_other_is_no_mistake() {
        let (first, second) = (Mutex::new(1), Mutex::new(2));
        let sum = *lock(&first);
        let sum = sum + *lock(&second);
        assert_eq!(sum, 3);
    }

    #[test]
    #[should_panic(expected = "while another one is held")]
    fn two_at_a_time_are_noticed_without_another_thread() {
        let (first, second) = (Mutex::new(()), Mutex::new(()));
        let _first = lock(&first);
        let _second = lock(&second);
    }
}
