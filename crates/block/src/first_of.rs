//! Waiting for the first of two.

use std::{future::poll_fn, pin::pin, task::Poll};

/// Which of two was first.
pub enum First<A, B> {
    /// The first one.
    One(A),
    /// The second one.
    Other(B),
}

/// Waits until one of two futures is done, and drops the other. The first has precedence.
pub async fn first_of<A: Future, B: Future>(one: A, other: B) -> First<A::Output, B::Output> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| {
        if let Poll::Ready(value) = one.as_mut().poll(cx) {
            return Poll::Ready(First::One(value));
        }
        other.as_mut().poll(cx).map(First::Other)
    })
    .await
}
