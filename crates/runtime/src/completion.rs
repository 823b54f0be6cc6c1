//! Requests under way: a slot of the shard holds the memory until the driver completes it.
//!
//! A driver that can answer at once returns [`Submission::done`] and touches neither slot nor waker.
//! Otherwise it takes a slot with [`Submission::pending`], keeps the [`Completion`] and calls
//! [`Completion::finish`] later, on the same shard.

use std::{
    cell::RefCell,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use crate::{
    Buffer, DeviceError, DeviceErrorKind, Pool, Slice, shard,
    watch::{Link, WatchesCell},
};

/// What became of a request.
#[derive(Debug)]
pub struct Outcome {
    /// Bytes transferred, or why it failed.
    pub result: Result<usize, DeviceError>,
    /// The buffer of a read.
    pub buffer: Option<Buffer>,
}

/// The memory of a request while it is under way.
pub enum Payload {
    /// No memory: flush, discard.
    None,
    /// A read's.
    Buffer(Buffer),
    /// A write's.
    Slice(Slice),
}

pub(crate) enum PendingRequest {
    Free { next: u32 },
    Waiting(Waiting),
    Done(Outcome),
}

/// A request that its driver has not completed.
pub(crate) struct Waiting {
    pub(crate) payload: Payload,
    pub(crate) waker: Option<Waker>,
    /// No task wants the outcome.
    pub(crate) abandoned: bool,
    /// The task that waits shall be told this error instead of the outcome.
    pub(crate) given_up: Option<DeviceErrorKind>,
    /// Its place among the requests of its device, if that is watched.
    pub(crate) link: Option<Link>,
}

pub(crate) const NONE: u32 = u32::MAX;

/// A shard's requests under way.
pub(crate) struct PendingRequests {
    pub(crate) slots: RefCell<Vec<PendingRequest>>,
    pub(crate) watches: WatchesCell,
    free: std::cell::Cell<u32>,
    in_flight: std::cell::Cell<usize>,
}

impl PendingRequests {
    pub(crate) fn new() -> Self {
        Self {
            slots: RefCell::default(),
            watches: WatchesCell::default(),
            free: NONE.into(),
            in_flight: 0.into(),
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    fn take(&self, payload: Payload) -> u32 {
        let mut slots = self.slots.borrow_mut();
        let waiting = PendingRequest::Waiting(Waiting {
            payload,
            waker: None,
            abandoned: false,
            given_up: None,
            link: None,
        });
        self.in_flight.set(self.in_flight.get() + 1);
        let index = self.free.get();
        if index == NONE {
            slots.push(waiting);
            return u32::try_from(slots.len() - 1).unwrap_or_else(|_| unreachable!("slots are few"));
        }
        let slot = &mut slots[index as usize];
        if let PendingRequest::Free { next } = slot {
            self.free.set(*next);
        }
        *slot = waiting;
        index
    }

    fn release(&self, slots: &mut [PendingRequest], index: u32) -> PendingRequest {
        std::mem::replace(&mut slots[index as usize], PendingRequest::Free { next: self.free.replace(index) })
    }

    fn finish(&self, index: u32, result: Result<usize, DeviceError>) {
        let mut slots = self.slots.borrow_mut();
        let PendingRequest::Waiting(waiting) = &mut slots[index as usize] else {
            unreachable!("a request completes once");
        };
        if matches!(result, Err(error) if error.kind == DeviceErrorKind::Busy)
            && let Some(again) = self.take_again(waiting)
        {
            drop(slots);
            again.ask(Completion { slot: index });
            return;
        }
        self.in_flight.set(self.in_flight.get() - 1);
        let payload = std::mem::replace(&mut waiting.payload, Payload::None);
        let (waker, abandoned) = (waiting.waker.take(), waiting.abandoned);
        let ended = self.unlink(&mut slots, index, result.is_err());
        if abandoned {
            self.release(&mut slots, index);
            drop(slots);
            drop(payload);
        } else {
            let buffer = if let Payload::Buffer(buffer) = payload { Some(buffer) } else { None };
            // The slot stays with its submission until that has read the outcome.
            slots[index as usize] = PendingRequest::Done(Outcome { result, buffer });
            drop(slots);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        if let Some(ended) = ended {
            ended.tell(result.err());
        }
    }

    fn with_payload<T>(&self, index: u32, f: impl FnOnce(&mut Payload) -> T) -> T {
        let mut slots = self.slots.borrow_mut();
        let PendingRequest::Waiting(Waiting { payload, .. }) = &mut slots[index as usize] else {
            unreachable!("the driver holds the completion, so the request is under way");
        };
        f(payload)
    }

    fn poll(&self, index: u32, cx: &Context<'_>, pool: &Pool) -> Poll<Outcome> {
        let mut slots = self.slots.borrow_mut();
        if let PendingRequest::Waiting(waiting) = &mut slots[index as usize] {
            if let Some(kind) = waiting.given_up.take() {
                waiting.abandoned = true;
                let bytes = waiting.link.as_ref().map_or(0, |link| link.about.read_bytes);
                // The request's own memory is not ours before its completion.
                let buffer = (bytes > 0).then(|| pool.buffer(bytes));
                return Poll::Ready(Outcome { result: Err(DeviceError::of(kind)), buffer });
            }
            match &waiting.waker {
                Some(old) if old.will_wake(cx.waker()) => {}
                _ => waiting.waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        let PendingRequest::Done(outcome) = self.release(&mut slots, index) else {
            unreachable!("a submission is read once");
        };
        Poll::Ready(outcome)
    }

    fn abandon(&self, index: u32) {
        let mut slots = self.slots.borrow_mut();
        if let PendingRequest::Waiting(waiting) = &mut slots[index as usize] {
            waiting.abandoned = true;
            waiting.waker = None;
            return;
        }
        let outcome = self.release(&mut slots, index);
        drop(slots);
        drop(outcome);
    }
}

/// The driver's end of a request that is under way.
#[derive(Debug)]
#[must_use = "a request must be finished, or its submitter waits for ever"]
pub struct Completion {
    slot: u32,
}

impl Completion {
    /// Ends the request. Must be called on the shard that submitted it.
    pub fn finish(self, result: Result<usize, DeviceError>) {
        shard::with_current(|shard| shard.slots.finish(self.slot, result));
    }

    /// The memory of the request, for a driver that moves the bytes itself. Must be called on the shard that
    /// submitted it; `f` must not submit or complete requests.
    pub fn with_payload<T>(&self, f: impl FnOnce(&mut Payload) -> T) -> T {
        shard::with_current(|shard| shard.slots.with_payload(self.slot, f))
    }

    /// A number that names it, for the kernel's user data. See [`Completion::from_raw`].
    pub fn into_raw(self) -> u32 {
        self.slot
    }

    /// The completion of which [`Completion::into_raw`] gave `slot`, once.
    pub fn from_raw(slot: u32) -> Self {
        Self { slot }
    }
}

/// A request: a future of its [`Outcome`]. Dropping it ends the wait, not the request.
#[derive(Debug)]
pub struct Submission {
    state: SubmissionState,
}

#[derive(Debug)]
enum SubmissionState {
    Ready(Option<Outcome>),
    Waiting(u32),
}

impl Submission {
    /// A request that was answered at once.
    pub fn done(result: Result<usize, DeviceError>, buffer: Option<Buffer>) -> Self {
        Self { state: SubmissionState::Ready(Some(Outcome { result, buffer })) }
    }

    /// A request that a driver will complete; its memory waits in the shard's slot.
    pub fn pending(payload: Payload) -> (Self, Completion) {
        let slot = shard::with_current(|shard| shard.slots.take(payload));
        (Self { state: SubmissionState::Waiting(slot) }, Completion { slot })
    }

    /// The error of a request that was answered already.
    pub fn error(&self) -> Option<DeviceError> {
        if let SubmissionState::Ready(Some(outcome)) = &self.state { outcome.result.err() } else { None }
    }

    /// Whether a driver will complete it: it was not answered at once.
    pub fn is_pending(&self) -> bool {
        matches!(self.state, SubmissionState::Waiting(_))
    }

    /// The memory of a read that was answered already.
    pub fn take_buffer(&mut self) -> Option<Buffer> {
        if let SubmissionState::Ready(Some(outcome)) = &mut self.state { outcome.buffer.take() } else { None }
    }

    /// The slot, while the outcome has not been taken.
    pub(crate) fn slot(&self) -> Option<u32> {
        if let SubmissionState::Waiting(slot) = self.state { Some(slot) } else { None }
    }
}

impl Future for Submission {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        match &mut self.state {
            SubmissionState::Ready(outcome) => {
                Poll::Ready(outcome.take().expect("a submission is awaited once"))
            }
            SubmissionState::Waiting(slot) => {
                let polled = shard::with_current(|shard| shard.slots.poll(*slot, cx, shard.pool()));
                if polled.is_ready() {
                    self.state = SubmissionState::Ready(None);
                }
                polled
            }
        }
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        if let SubmissionState::Waiting(slot) = self.state {
            // On a thread without a shard the slots are gone too.
            shard::try_with_current(|shard| shard.slots.abandon(slot));
        }
    }
}

/// Several requests awaited together, each with what its owner wants to know of it. Reusable: it keeps its
/// memory when it is drained or cleared.
pub struct SubmissionSet<T = ()> {
    requests: Vec<Request<T>>,
    timed: bool,
}

struct Request<T> {
    tag: T,
    submission: Submission,
    /// A wait has seen that it has ended.
    is_answered: bool,
    /// When that was, if the wait was timed.
    answered_at: Option<u64>,
}

impl<T> Default for SubmissionSet<T> {
    fn default() -> Self {
        Self { requests: Vec::new(), timed: false }
    }
}

impl<T> SubmissionSet<T> {
    /// An empty set with memory for so many requests.
    pub fn with_room(requests: usize) -> Self {
        Self { requests: Vec::with_capacity(requests), timed: false }
    }

    /// Adds a request.
    pub fn push(&mut self, tag: T, submission: Submission) {
        self.requests.push(Request { tag, submission, is_answered: false, answered_at: None });
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Has waits note when each request completes, until the set is drained: for
    /// [`SubmissionSet::drain_timed`].
    pub fn time(&mut self) {
        self.timed = true;
    }

    /// Waits until every request has completed.
    pub fn wait(&mut self) -> impl Future<Output = ()> {
        self.wait_for_each(|_, _| {})
    }

    /// The same. Tells once how each request has ended, as soon as it has.
    pub fn wait_for_each(
        &mut self,
        mut ended: impl FnMut(&T, Result<usize, DeviceError>),
    ) -> impl Future<Output = ()> {
        std::future::poll_fn(
            move |cx| {
                if self.look(cx, &mut ended) { Poll::Ready(()) } else { Poll::Pending }
            },
        )
    }

    /// Waits until every request has completed, or another one has failed. True if one has.
    pub fn failure(&mut self) -> impl Future<Output = bool> {
        std::future::poll_fn(|cx| {
            let mut failed = false;
            let all = self.look(cx, &mut |_, result| failed |= result.is_err());
            if all || failed { Poll::Ready(failed) } else { Poll::Pending }
        })
    }

    /// Tells of the requests that have ended since the last look. True if all have. Every completion wakes
    /// the waiting task, so what has ended now did so not long ago.
    fn look(&mut self, cx: &mut Context<'_>, ended: &mut impl FnMut(&T, Result<usize, DeviceError>)) -> bool {
        let (mut all, mut now) = (true, None);
        for request in self.requests.iter_mut().filter(|request| !request.is_answered) {
            if let SubmissionState::Waiting(slot) = request.submission.state {
                // What was answered inline has its outcome where it is.
                match shard::with_current(|shard| shard.slots.poll(slot, cx, shard.pool())) {
                    Poll::Ready(done) => request.submission.state = SubmissionState::Ready(Some(done)),
                    Poll::Pending => {
                        all = false;
                        continue;
                    }
                }
            }
            request.is_answered = true;
            if self.timed {
                request.answered_at = Some(*now.get_or_insert_with(shard::now));
            }
            if let SubmissionState::Ready(Some(outcome)) = &request.submission.state {
                ended(&request.tag, outcome.result);
            }
        }
        all
    }

    /// What has ended so far, and how.
    pub fn answered(&self) -> impl Iterator<Item = (&T, Result<usize, DeviceError>)> {
        self.requests.iter().filter_map(|request| match &request.submission.state {
            SubmissionState::Ready(Some(outcome)) => Some((&request.tag, outcome.result)),
            _ => None,
        })
    }

    /// Takes every outcome, in order, after a wait for all.
    pub fn drain(&mut self) -> impl Iterator<Item = (T, Outcome)> {
        self.drain_timed().map(|(tag, outcome, _)| (tag, outcome))
    }

    /// The same, with when each request completed, by [`shard::now`], if the wait was timed.
    pub fn drain_timed(&mut self) -> impl Iterator<Item = (T, Outcome, Option<u64>)> {
        self.timed = false;
        self.requests.drain(..).map(|mut request| {
            let outcome = match &mut request.submission.state {
                SubmissionState::Ready(outcome) => outcome.take(),
                SubmissionState::Waiting(_) => None,
            };
            let outcome = outcome.expect("outcomes are taken after the wait");
            (request.tag, outcome, request.answered_at)
        })
    }

    /// Forgets everything, for the next use.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.timed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shard, ShardConfig};

    #[test]
    fn each_request_of_a_timed_set_has_its_own_time() {
        let clock = std::rc::Rc::new(std::cell::Cell::new(100));
        let config = ShardConfig { index: 0, arena_bytes: 0, clock: Some(std::rc::Rc::clone(&clock)) };
        let shard = Shard::new(&config);
        let _entered = shard.enter();
        let mut set = SubmissionSet::default();
        let (slow, slow_end) = Submission::pending(Payload::None);
        let (fast, fast_end) = Submission::pending(Payload::None);
        set.push("slow", slow);
        set.push("fast", fast);
        set.time();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(std::pin::pin!(set.wait()).poll(&mut cx).is_pending());
        clock.set(200);
        fast_end.finish(Ok(0));
        assert!(std::pin::pin!(set.wait()).poll(&mut cx).is_pending());
        clock.set(900);
        slow_end.finish(Ok(0));
        assert!(std::pin::pin!(set.wait()).poll(&mut cx).is_ready());
        let times: Vec<_> = set.drain_timed().map(|(tag, _, at)| (tag, at)).collect();
        assert_eq!(times, [("slow", Some(900)), ("fast", Some(200))]);
        set.push("again", Submission::done(Ok(0), None));
        assert!(std::pin::pin!(set.wait()).poll(&mut cx).is_ready());
        assert_eq!(set.drain_timed().map(|(_, _, at)| at).collect::<Vec<_>>(), [None]);
    }

    #[test]
    fn a_failure_is_told_once_and_before_the_rest_is_there() {
        let shard = Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: None });
        let _entered = shard.enter();
        let mut cx = Context::from_waker(Waker::noop());
        let mut set = SubmissionSet::default();
        let (slow, slow_end) = Submission::pending(Payload::None);
        set.push(0, slow);
        set.push(1, Submission::done(Err(DeviceError::of(DeviceErrorKind::Gone)), None));
        assert_eq!(std::pin::pin!(set.failure()).poll(&mut cx), Poll::Ready(true));
        assert_eq!(
            set.answered().map(|(&tag, result)| (tag, result.is_ok())).collect::<Vec<_>>(),
            [(1, false)]
        );
        assert!(std::pin::pin!(set.failure()).poll(&mut cx).is_pending());
        slow_end.finish(Ok(0));
        assert_eq!(std::pin::pin!(set.failure()).poll(&mut cx), Poll::Ready(false));
        assert_eq!(
            set.drain().map(|(tag, outcome)| (tag, outcome.result.is_ok())).collect::<Vec<_>>(),
            [(0, true), (1, false)]
        );
    }

    #[test]
    fn a_driver_can_fill_the_buffer_of_a_pending_read() {
        let shard = Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: None });
        let _entered = shard.enter();
        let (mut submission, completion) = Submission::pending(Payload::Buffer(shard::zeroed(8)));
        completion.with_payload(|payload| {
            let Payload::Buffer(buffer) = payload else { panic!("the payload is the read's buffer") };
            buffer.copy_from_slice(b"contents");
        });
        completion.finish(Ok(8));
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(outcome) = Pin::new(&mut submission).poll(&mut cx) else { panic!("it was finished") };
        assert_eq!(&outcome.buffer.unwrap()[..], b"contents");
    }
}
