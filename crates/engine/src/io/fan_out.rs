//! One request as several tasks on the same shard: done when all are, with the first error (C32).

use std::{cell::RefCell, rc::Rc, task::Poll, task::Waker};

use crate::{
    mutants::{Mutant, active},
    shared::Answer,
};

struct FanOutState {
    left: usize,
    answer: Answer,
    waker: Option<Waker>,
}

thread_local! {
    /// States that are used again, so that a large request doesn't allocate.
    static FREE: RefCell<Vec<Rc<RefCell<FanOutState>>>> = const { RefCell::new(Vec::new()) };
}

/// The waiting end.
pub(crate) struct FanOut(Rc<RefCell<FanOutState>>);

/// One task's end.
pub(crate) struct Branch(Rc<RefCell<FanOutState>>);

impl FanOut {
    pub(crate) fn new() -> Self {
        let free = FREE.with(|free| free.borrow_mut().pop());
        let state = free
            .unwrap_or_else(|| Rc::new(RefCell::new(FanOutState { left: 0, answer: Ok(()), waker: None })));
        *state.borrow_mut() = FanOutState { left: 0, answer: Ok(()), waker: None };
        Self(state)
    }

    pub(crate) fn branch(&self) -> Branch {
        self.0.borrow_mut().left += 1;
        Branch(Rc::clone(&self.0))
    }

    pub(crate) async fn wait(self) -> Answer {
        std::future::poll_fn(|cx| {
            let mut state = self.0.borrow_mut();
            if state.left == 0 {
                return Poll::Ready(());
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        let answer = std::mem::replace(&mut self.0.borrow_mut().answer, Ok(()));
        if Rc::strong_count(&self.0) == 1 {
            FREE.with(|free| free.borrow_mut().push(Rc::clone(&self.0)));
        }
        answer
    }
}

impl Branch {
    pub(crate) fn finish(self, answer: Answer) {
        let waker = {
            let mut state = self.0.borrow_mut();
            state.left -= 1;
            if state.answer.is_ok() || active(Mutant::LastStripeAnswers) {
                state.answer = answer;
            }
            if state.left == 0 { state.waker.take() } else { None }
        };
        drop(self.0);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;
    use crate::error::IoError;

    #[test]
    fn a_request_in_parts_is_answered_when_all_are_over_and_by_the_worst_of_them() {
        let failed = || Err(IoError::Failed);
        for answers in [[failed(), Ok(()), Ok(())], [Ok(()), failed(), Ok(())], [Ok(()), Ok(()), failed()]] {
            let all = FanOut::new();
            let branches = [(); 3].map(|()| all.branch());
            let mut wait = pin!(all.wait());
            for (branch, answer) in branches.into_iter().zip(answers) {
                assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
                branch.finish(answer);
            }
            let answer = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(answer, Poll::Ready(failed()));
        }
    }
}
