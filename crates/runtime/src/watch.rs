//! Requests under supervision: an observer is told when a device takes too long for one, and all waits for
//! the device can be given up.
//!
//! A [`Watch`] stands for one device on one shard. Its requests under way form a list through the shard's
//! slots, oldest first; so only the oldest has a deadline, and a request costs a link and a look at the
//! clock, no timer and no memory. What a device answers before the call returns is never linked. Ages are
//! times that were really waited ([`crate::Shard::waited`]): a process that was stopped has not waited for
//! anything (C29).
//!
//! Giving up ends the waits, never the requests (C16): the memory stays in the slots until the completions
//! come, and the observer hears of each of these ([`Observer::settled`]). A read that was given up gets other
//! memory in the place of its own.

use std::{cell::RefCell, rc::Rc, task::Waker};

use crate::{
    Completion, DeviceError, DeviceErrorKind, Submission,
    completion::{NONE, Payload, PendingRequest, PendingRequests, Waiting},
    shard,
};

/// What a request is about, for its observer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// The observer's own word for the operation.
    pub kind: u8,
    /// A write that must be durable at its completion.
    pub fua: bool,
    /// Where, in bytes.
    pub offset: u64,
    /// Bytes of a read: its buffer must come back.
    pub read_bytes: usize,
}

/// What an observer wants to become of a request that takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverdueAction {
    /// Wait on, and tell again at this age; `u64::MAX` for never.
    WaitUntil(u64),
    /// Give up every request of the device, with an error of this kind.
    GiveUp(DeviceErrorKind),
}

/// Is told about the requests of a device. Called on the shard of the requests.
pub trait Observer {
    /// The oldest request has been under way for `age_ns`.
    fn overdue(&self, about: RequestInfo, age_ns: u64) -> OverdueAction;

    /// So many requests were given up, with an error of this kind, and are late from now on.
    fn given_up(&self, count: usize, kind: DeviceErrorKind);

    /// The request that was overdue is over. If others are overdue too, that is told next.
    fn caught_up(&self);

    /// A request has failed, for good.
    fn failed(&self, about: RequestInfo, error: DeviceError);

    /// A request that was given up is over: its device will do nothing more for it.
    fn settled(&self);

    /// The device had no resources for a read or write ([`DeviceErrorKind::Busy`]) and has not tried it. The
    /// observer asks the device again and finishes `completion`, which is passed here once per request.
    fn retry(&self, completion: Completion, about: RequestInfo, payload: Payload);
}

/// A slot's place in the list of its watch.
pub(crate) struct Link {
    watch: u32,
    previous: u32,
    next: u32,
    since: u64,
    /// It was given up.
    late: bool,
    retried: bool,
    pub(crate) about: RequestInfo,
}

struct WatchState {
    observer: Option<Rc<dyn Observer>>,
    head: u32,
    tail: u32,
    /// Requests in the list.
    count: u32,
    /// Age of the oldest request at which the observer is told first.
    first_look_ns: u64,
    /// Age at which it is told next.
    look_ns: u64,
    /// Its [`Watch`] was dropped; it goes when the requests under way are over.
    orphan: bool,
}

/// All watches of a shard.
#[derive(Default)]
pub(crate) struct Watches {
    states: Vec<WatchState>,
    free: Vec<u32>,
    /// By watch: when to tell its observer; `u64::MAX` while nothing is under way.
    due: Vec<u64>,
}

impl Watches {
    fn enter(&mut self, observer: Rc<dyn Observer>, first_look_ns: u64) -> u32 {
        let state = WatchState {
            observer: Some(observer),
            head: NONE,
            tail: NONE,
            count: 0,
            first_look_ns,
            look_ns: first_look_ns,
            orphan: false,
        };
        if let Some(index) = self.free.pop() {
            self.states[index as usize] = state;
            return index;
        }
        self.states.push(state);
        self.due.push(u64::MAX);
        u32::try_from(self.states.len() - 1).unwrap_or_else(|_| unreachable!("watches are few"))
    }

    fn observer(&self, watch: u32) -> Option<Rc<dyn Observer>> {
        self.states[watch as usize].observer.clone()
    }

    fn set_due(&mut self, watch: u32, slots: &[PendingRequest]) {
        let state = &self.states[watch as usize];
        // What is late has no deadline any more, and nothing that came after it isn't.
        let since = link(slots, state.head).filter(|link| !link.late).map(|link| link.since);
        self.due[watch as usize] = since.map_or(u64::MAX, |since| since.saturating_add(state.look_ns));
    }
}

fn link(slots: &[PendingRequest], index: u32) -> Option<&Link> {
    match slots.get(index as usize) {
        Some(PendingRequest::Waiting(Waiting { link: Some(link), .. })) => Some(link),
        _ => None,
    }
}

fn link_mut(slots: &mut [PendingRequest], index: u32) -> Option<&mut Link> {
    match slots.get_mut(index as usize) {
        Some(PendingRequest::Waiting(Waiting { link: Some(link), .. })) => Some(link),
        _ => None,
    }
}

/// What the observer must be told after a request was taken out of its list.
pub(crate) struct Ended {
    observer: Option<Rc<dyn Observer>>,
    about: RequestInfo,
    late: bool,
    was_overdue: bool,
}

impl Ended {
    /// Tells the observer. Nothing of the shard may be borrowed.
    pub(crate) fn tell(self, error: Option<DeviceError>) {
        let Some(observer) = self.observer else { return };
        if self.was_overdue {
            observer.caught_up();
        }
        if let Some(error) = error.filter(|_| !self.late) {
            observer.failed(self.about, error);
        }
        if self.late {
            observer.settled();
        }
    }
}

/// What is to be done about a request that the device was too busy for.
pub(crate) struct Retry {
    observer: Rc<dyn Observer>,
    about: RequestInfo,
    payload: Payload,
}

impl Retry {
    pub(crate) fn ask(self, completion: Completion) {
        self.observer.retry(completion, self.about, self.payload);
    }
}

impl PendingRequests {
    /// When the next observer is to be told.
    pub(crate) fn next_look(&self) -> Option<u64> {
        self.watches.borrow().due.iter().copied().min().filter(|due| *due != u64::MAX)
    }

    /// Tells each observer if its oldest request takes too long.
    pub(crate) fn look(&self, now: u64) {
        let count = {
            let due = &self.watches.borrow().due;
            if due.iter().all(|due| *due > now) {
                return;
            }
            due.len()
        };
        for watch in 0..count {
            let Some((observer, about, age)) = self.overdue(watch, now) else { continue };
            let watch = u32::try_from(watch).unwrap_or(u32::MAX);
            match observer.overdue(about, age) {
                OverdueAction::GiveUp(kind) => {
                    self.give_up(watch, kind);
                }
                OverdueAction::WaitUntil(look_ns) => {
                    let mut watches = self.watches.borrow_mut();
                    watches.states[watch as usize].look_ns = look_ns.max(age + 1);
                    watches.set_due(watch, &self.slots.borrow());
                }
            }
        }
    }

    /// The oldest request of a watch with its age, if it is time to tell the observer.
    fn overdue(&self, watch: usize, now: u64) -> Option<(Rc<dyn Observer>, RequestInfo, u64)> {
        let watches = self.watches.borrow();
        if watches.due[watch] > now {
            return None;
        }
        let state = &watches.states[watch];
        let slots = self.slots.borrow();
        let oldest = link(&slots, state.head)?;
        Some((state.observer.clone()?, oldest.about, now.saturating_sub(oldest.since)))
    }

    /// Puts a request into the list of a watch, but not one that is over already: nothing would take it out
    /// again, and its slot's next request, of whatever device, would be taken for one of this watch. If that
    /// one failed: the observer and the error.
    fn link(
        &self,
        index: u32,
        watch: u32,
        about: RequestInfo,
        now: u64,
    ) -> Option<(Rc<dyn Observer>, DeviceError)> {
        let (mut watches, mut slots) = (self.watches.borrow_mut(), self.slots.borrow_mut());
        if let PendingRequest::Done(outcome) = &slots[index as usize] {
            return Some((watches.observer(watch)?, outcome.result.err()?));
        }
        let state = &mut watches.states[watch as usize];
        let previous = std::mem::replace(&mut state.tail, index);
        if let PendingRequest::Waiting(waiting) = &mut slots[index as usize] {
            let next = NONE;
            state.count += 1;
            waiting.link =
                Some(Link { watch, previous, next, since: now, late: false, retried: false, about });
        }
        if let Some(link) = link_mut(&mut slots, previous) {
            link.next = index;
            return None;
        }
        state.head = index;
        watches.due[watch as usize] = now.saturating_add(watches.states[watch as usize].look_ns);
        None
    }

    /// Takes the request of a slot that is about to end out of its list.
    pub(crate) fn unlink(&self, slots: &mut [PendingRequest], index: u32, failed: bool) -> Option<Ended> {
        let PendingRequest::Waiting(waiting) = &mut slots[index as usize] else { return None };
        let Link { watch, previous, next, late, about, .. } = waiting.link.take()?;
        let mut watches = self.watches.borrow_mut();
        watches.states[watch as usize].count -= 1;
        let was_head = previous == NONE;
        match link_mut(slots, previous) {
            Some(link) => link.next = next,
            None => watches.states[watch as usize].head = next,
        }
        match link_mut(slots, next) {
            Some(link) => link.previous = previous,
            None => watches.states[watch as usize].tail = previous,
        }
        let state = &mut watches.states[watch as usize];
        let was_overdue = was_head && !late && state.look_ns != state.first_look_ns;
        let is_told = was_overdue || late || failed;
        let observer = if is_told { state.observer.clone() } else { None };
        if was_head {
            state.look_ns = state.first_look_ns;
            watches.set_due(watch, slots);
            watches.release(watch);
        }
        Some(Ended { observer, about, late, was_overdue })
    }

    /// Takes the memory of a request that the device was too busy for, if it may be tried again: a read or
    /// write that a task waits for, and only once.
    pub(crate) fn take_again(&self, waiting: &mut Waiting) -> Option<Retry> {
        let link = waiting.link.as_mut()?;
        let has_memory = !matches!(waiting.payload, Payload::None);
        if link.late || waiting.abandoned || !has_memory || std::mem::replace(&mut link.retried, true) {
            return None;
        }
        let observer = self.watches.borrow().observer(link.watch)?;
        let payload = std::mem::replace(&mut waiting.payload, Payload::None);
        Some(Retry { observer, about: link.about, payload })
    }

    /// Ends every wait of a watch. Returns how many requests are late from now on.
    fn give_up(&self, watch: u32, kind: DeviceErrorKind) -> usize {
        let mut wakers: Vec<Waker> = Vec::new();
        let mut count = 0;
        {
            let (mut watches, mut slots) = (self.watches.borrow_mut(), self.slots.borrow_mut());
            let mut next = watches.states[watch as usize].head;
            while let Some(PendingRequest::Waiting(waiting)) = slots.get_mut(next as usize) {
                let Some(link) = &mut waiting.link else { break };
                if !std::mem::replace(&mut link.late, true) {
                    count += 1;
                    waiting.given_up = (!waiting.abandoned).then_some(kind);
                    wakers.extend(waiting.waker.take());
                }
                next = link.next;
            }
            watches.set_due(watch, &slots);
        }
        wakers.into_iter().for_each(Waker::wake);
        let observer = self.watches.borrow().observer(watch);
        if let Some(observer) = observer.filter(|_| count > 0) {
            observer.given_up(count, kind);
        }
        count
    }

    fn oldest(&self, watch: u32) -> Option<RequestInfo> {
        let head = self.watches.borrow().states[watch as usize].head;
        link(&self.slots.borrow(), head).map(|link| link.about)
    }

    fn look_from(&self, watch: u32, age_ns: u64) {
        let mut watches = self.watches.borrow_mut();
        let state = &mut watches.states[watch as usize];
        (state.first_look_ns, state.look_ns) = (age_ns, age_ns);
        watches.set_due(watch, &self.slots.borrow());
    }
}

impl Watches {
    /// Frees a watch if its [`Watch`] was dropped and nothing is under way.
    fn release(&mut self, watch: u32) {
        let state = &mut self.states[watch as usize];
        if state.orphan && state.head == NONE && state.observer.take().is_some() {
            self.free.push(watch);
        }
    }
}

/// One device's requests on one shard. See the module. Dropping it leaves the observer to the requests under
/// way.
pub struct Watch {
    index: u32,
    /// A watch belongs to its shard.
    _local: std::marker::PhantomData<Rc<()>>,
}

impl Watch {
    /// A watch on the current shard. Its observer is told when a request is as old as `first_look_ns`.
    pub fn new(observer: Rc<dyn Observer>, first_look_ns: u64) -> Self {
        let index =
            shard::with_current(|shard| shard.slots.watches.borrow_mut().enter(observer, first_look_ns));
        Self { index, _local: std::marker::PhantomData }
    }

    /// Watches a request that was submitted just now. What was answered already is left alone; if its driver
    /// has completed it meanwhile, with an error, the observer is told.
    pub fn add(&self, submission: &Submission, about: RequestInfo) {
        let Some(slot) = submission.slot() else { return };
        let failed = shard::with_current(|shard| shard.slots.link(slot, self.index, about, shard.waited()));
        if let Some((observer, error)) = failed {
            observer.failed(about, error);
        }
    }

    /// Ends the waits for all requests under way with an error of `kind`. Returns how many these are; each of
    /// them will be told as [`Observer::settled`].
    pub fn give_up(&self, kind: DeviceErrorKind) -> usize {
        shard::with_current(|shard| shard.slots.give_up(self.index, kind))
    }

    /// How many requests are under way, those that were given up among them.
    pub fn count(&self) -> u32 {
        shard::with_current(|shard| shard.slots.watches.borrow().states[self.index as usize].count)
    }

    /// The oldest request under way.
    pub fn oldest(&self) -> Option<RequestInfo> {
        shard::with_current(|shard| shard.slots.oldest(self.index))
    }

    /// Has the observer told, from now on, when a request is as old as `age_ns`; also of one that it was told
    /// of before.
    pub fn look_from(&self, age_ns: u64) {
        shard::with_current(|shard| shard.slots.look_from(self.index, age_ns));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let observer = shard::try_with_current(|shard| {
            let mut watches = shard.slots.watches.borrow_mut();
            let observer = watches.observer(self.index);
            watches.states[self.index as usize].orphan = true;
            watches.release(self.index);
            observer
        });
        // Dropped here, when nothing is borrowed.
        drop(observer);
    }
}

/// For [`PendingRequests`].
pub(crate) type WatchesCell = RefCell<Watches>;

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        future::Future,
        pin::pin,
        task::{Context, Poll},
    };

    use super::*;
    use crate::{Buffer, Outcome, Shard, ShardConfig, SubmissionSet};

    #[derive(Default)]
    struct RecordingObserver {
        words: RefCell<Vec<String>>,
        retries: RefCell<Vec<(Completion, Payload)>>,
    }

    impl RecordingObserver {
        fn take(&self) -> Vec<String> {
            self.words.take()
        }
        fn say(&self, word: impl Into<String>) {
            self.words.borrow_mut().push(word.into());
        }
    }

    impl Observer for RecordingObserver {
        fn overdue(&self, about: RequestInfo, age_ns: u64) -> OverdueAction {
            self.say(format!("overdue {} {age_ns}", about.offset));
            if age_ns < 3000 {
                OverdueAction::WaitUntil(2 * age_ns)
            } else {
                OverdueAction::GiveUp(DeviceErrorKind::TimedOut)
            }
        }
        fn given_up(&self, count: usize, _: DeviceErrorKind) {
            self.say(format!("given up {count}"));
        }
        fn caught_up(&self) {
            self.say("caught up");
        }
        fn failed(&self, about: RequestInfo, error: DeviceError) {
            self.say(format!("failed {} {:?}", about.offset, error.kind));
        }
        fn settled(&self) {
            self.say("settled");
        }
        fn retry(&self, completion: Completion, about: RequestInfo, payload: Payload) {
            self.say(format!("retry {}", about.offset));
            self.retries.borrow_mut().push((completion, payload));
        }
    }

    struct World {
        clock: Rc<Cell<u64>>,
        shard: Rc<Shard>,
        told: Rc<RecordingObserver>,
    }

    impl World {
        fn new() -> Self {
            let clock = Rc::new(Cell::new(100));
            let config = ShardConfig { index: 0, arena_bytes: 0, clock: Some(Rc::clone(&clock)) };
            Self { clock, shard: Shard::new(&config), told: Rc::default() }
        }

        fn watch(&self) -> Watch {
            Watch::new(Rc::clone(&self.told) as Rc<dyn Observer>, 1000)
        }

        fn at(&self, now: u64) -> Vec<String> {
            self.clock.set(now);
            self.shard.fire_timers();
            self.told.take()
        }
    }

    fn poll(submission: &mut Submission) -> Poll<Outcome> {
        pin!(submission).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn read_of(buffer: Buffer) -> (Submission, Completion) {
        Submission::pending(Payload::Buffer(buffer))
    }

    fn about(offset: u64) -> RequestInfo {
        RequestInfo { offset, read_bytes: 8, ..RequestInfo::default() }
    }

    #[test]
    fn only_the_oldest_request_has_a_deadline_and_the_next_takes_its_place() {
        let world = World::new();
        let _entered = world.shard.enter();
        let watch = world.watch();
        assert_eq!(world.shard.next_timer(), None);
        let (first, first_end) = read_of(shard::zeroed(8));
        watch.add(&first, about(1));
        world.clock.set(600);
        let (second, second_end) = read_of(shard::zeroed(8));
        watch.add(&second, about(2));
        assert_eq!(world.shard.next_timer(), Some(1100));
        assert_eq!(world.at(1099), [""; 0]);
        assert_eq!(world.at(1100), ["overdue 1 1000"]);
        assert_eq!(world.shard.next_timer(), Some(2100), "twice the age, as the observer wished");
        first_end.finish(Ok(8));
        assert_eq!(world.told.take(), ["caught up"]);
        assert_eq!(world.shard.next_timer(), Some(1600));
        second_end.finish(Err(DeviceError::of(DeviceErrorKind::Media)));
        assert_eq!(world.told.take(), ["failed 2 Media"]);
        assert_eq!(world.shard.next_timer(), None);
    }

    #[test]
    fn a_request_that_is_over_before_it_is_watched_does_not_put_anothers_into_the_list() {
        let world = World::new();
        let _entered = world.shard.enter();
        let (lost, well) = (world.watch(), world.watch());
        // As the driver of a lost server does: it completes what it is given before it returns.
        let (over, over_end) = read_of(shard::zeroed(8));
        over_end.finish(Err(DeviceError::of(DeviceErrorKind::Gone)));
        lost.add(&over, about(1));
        assert_eq!(world.told.take(), ["failed 1 Gone"]);
        assert_eq!(world.shard.next_timer(), None);
        drop(over);
        // Another device's request takes its slot.
        let (mut other, other_end) = read_of(shard::zeroed(8));
        well.add(&other, about(2));
        assert_eq!(lost.give_up(DeviceErrorKind::Removed), 0, "another device's request was given up");
        assert_eq!((lost.oldest(), lost.count(), well.count()), (None, 0, 1));
        other_end.finish(Ok(8));
        let Poll::Ready(outcome) = poll(&mut other) else { panic!("it was finished") };
        assert_eq!(outcome.result, Ok(8));
        assert_eq!(world.told.take(), [""; 0]);
    }

    #[test]
    fn giving_up_ends_the_wait_and_the_memory_stays_until_the_request_is_over() {
        let world = World::new();
        let _entered = world.shard.enter();
        let watch = world.watch();
        let outstanding = || world.shard.pool().outstanding();
        let (mut read, read_end) = read_of(shard::zeroed(8));
        watch.add(&read, about(1));
        let (dropped, dropped_end) = Submission::pending(Payload::Slice(shard::zeroed(8).freeze()));
        watch.add(&dropped, RequestInfo::default());
        drop(dropped);
        assert!(poll(&mut read).is_pending());
        assert_eq!(world.at(3100), ["overdue 1 3000", "given up 2"]);
        assert_eq!(watch.give_up(DeviceErrorKind::TimedOut), 0, "they are late already");
        assert_eq!(watch.count(), 2, "the device has them still");
        assert_eq!(world.shard.next_timer(), None);
        let Poll::Ready(outcome) = poll(&mut read) else { panic!("the wait is over") };
        assert_eq!(outcome.result, Err(DeviceError::of(DeviceErrorKind::TimedOut)));
        assert_eq!(outcome.buffer.unwrap().len(), 8, "other memory in the place of the read's own");
        assert_eq!((outstanding(), world.shard.requests_in_flight()), (2, 2));
        drop((read, watch));
        // What the device writes into it now disturbs nothing.
        read_end.with_payload(|payload| {
            let Payload::Buffer(buffer) = payload else { panic!("it is the read's") };
            buffer.fill(7);
        });
        read_end.finish(Ok(8));
        dropped_end.finish(Err(DeviceError::of(DeviceErrorKind::Gone)));
        assert_eq!(world.told.take(), ["settled", "settled"]);
        assert_eq!((outstanding(), world.shard.requests_in_flight()), (0, 0));
        assert_eq!(Rc::strong_count(&world.told), 1, "the watch has gone with its last request");
    }

    #[test]
    fn a_completion_that_comes_between_giving_up_and_the_next_poll_counts() {
        let world = World::new();
        let _entered = world.shard.enter();
        let watch = world.watch();
        let mut set = SubmissionSet::default();
        let (read, end) = read_of(shard::zeroed(8));
        watch.add(&read, about(1));
        set.push((), read);
        watch.give_up(DeviceErrorKind::TimedOut);
        end.finish(Ok(8));
        assert_eq!(world.told.take(), ["given up 1", "settled"]);
        assert!(pin!(set.wait()).poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert_eq!(set.drain().map(|((), outcome)| outcome.result).collect::<Vec<_>>(), [Ok(8)]);
    }

    #[test]
    fn a_request_that_found_the_device_busy_is_given_to_the_observer_once() {
        let world = World::new();
        let _entered = world.shard.enter();
        let watch = world.watch();
        let busy = Err(DeviceError::of(DeviceErrorKind::Busy));
        let (mut read, end) = read_of(shard::zeroed(8));
        watch.add(&read, about(5));
        end.finish(busy);
        assert!(poll(&mut read).is_pending());
        let (end, payload) = world.told.retries.borrow_mut().pop().unwrap();
        assert!(matches!(&payload, Payload::Buffer(buffer) if buffer.len() == 8));
        end.with_payload(|place| *place = payload);
        end.finish(busy);
        assert!(
            matches!(poll(&mut read), Poll::Ready(Outcome { result, buffer: Some(_) }) if result == busy)
        );
        assert_eq!(world.told.take(), ["retry 5", "failed 5 Busy"]);
        let (mut flush, end) = Submission::pending(Payload::None);
        watch.add(&flush, RequestInfo::default());
        end.finish(busy);
        assert!(poll(&mut flush).is_ready(), "a flush is never tried again");
    }

    #[test]
    fn what_was_answered_at_once_is_not_watched() {
        let world = World::new();
        let _entered = world.shard.enter();
        let watch = world.watch();
        watch.add(&Submission::done(Ok(8), None), about(1));
        assert_eq!((watch.oldest(), world.shard.next_timer()), (None, None));
    }
}
