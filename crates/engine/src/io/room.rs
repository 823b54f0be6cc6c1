//! Memory that the requests of a shard take beside what they bring and what they answer: contexts of stripe
//! writes, old bytes that parity is computed from, new parity, and what lost bytes are made of.
//!
//! A context is taken before the claim of a stripe, so no claim waits for one. What has taken some of the
//! bytes asks for no more, and waits for:
//!
//! - members;
//! - a membership's being recorded, which comes when writes of the one before are over: those give way,
//!   and wait for bytes no longer;
//! - room in a log. In a journal that caches it comes of writing out stripes, whose claims may wait for
//!   bytes: there, no stripe write waits for them.
//!
//! So all that is taken comes back.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    rc::{Rc, Weak},
    sync::Arc,
    task::{Poll, Waker},
};

use pinstripe_runtime::block_bytes;

use crate::{options::WorkMemory, shared::Shared};

/// More stripe writes of a shard at a time keep no device busier.
const CONTEXTS_MAX: usize = 1024;

thread_local! {
    /// Those of this thread's arrays and shards (in the simulator, a thread has several).
    static ROOMS: RefCell<Vec<(*const Shared, usize, Weak<Room>)>> = const { RefCell::new(Vec::new()) };
}

/// See the module.
pub(crate) struct Room {
    /// Contexts of stripe writes.
    contexts: Stock,
    /// Bytes.
    bytes: Stock,
}

impl Room {
    /// That of an array on a shard, whatever front ends use it there. The caller keeps the array as long as
    /// the room.
    pub(crate) fn of(array: &Arc<Shared>, shard: usize) -> Rc<Self> {
        ROOMS.with_borrow_mut(|rooms| {
            rooms.retain(|(.., room)| room.strong_count() > 0);
            let known = rooms.iter().find(|(of, on, _)| (*of, *on) == (Arc::as_ptr(array), shard));
            known.and_then(|(.., room)| room.upgrade()).unwrap_or_else(|| {
                let room = Rc::new(Self::new(array.options.memory, array.shards.len()));
                rooms.push((Arc::as_ptr(array), shard, Rc::downgrade(&room)));
                room
            })
        })
    }

    /// A shard's part.
    fn new(memory: WorkMemory, shards: usize) -> Self {
        let contexts = Stock::new((memory.writes / shards).clamp(1, CONTEXTS_MAX));
        Self { contexts, bytes: Stock::new(memory.bytes / shards) }
    }

    /// Lets a stripe write have a context, unless it has to wait for it.
    #[inline]
    pub(crate) fn context_now(&self) -> Option<Taken<'_>> {
        self.contexts.take_now(1).then(|| Taken { stock: &self.contexts, amount: 1 })
    }

    /// Waits until a stripe write may have a context.
    pub(crate) async fn context(&self) -> Taken<'_> {
        let mut taken = Taken { stock: &self.contexts, amount: 0 };
        taken.wait(1, false).await;
        taken
    }

    /// None of the bytes, for a beginning.
    #[inline]
    pub(crate) fn nothing(&self) -> Taken<'_> {
        Taken { stock: &self.bytes, amount: 0 }
    }

    /// Waits until a lost range of so many bytes can be made of what `columns` others have.
    pub(crate) async fn for_row(&self, columns: usize, length: u32, urgent: bool) -> Taken<'_> {
        let mut taken = self.nothing();
        taken.wait((columns + 2) * block_bytes(length as usize), urgent).await;
        taken
    }
}

/// What one request has taken.
pub(crate) struct Taken<'r> {
    stock: &'r Stock,
    amount: usize,
}

impl Taken<'_> {
    /// Takes so much, unless it has to wait for it. What is `urgent`, or has taken some already, needn't.
    #[inline]
    pub(crate) fn take_now(&mut self, amount: usize, urgent: bool) -> bool {
        if urgent || self.amount > 0 {
            self.stock.held.set(self.stock.held.get() + amount);
        } else if !self.stock.take_now(amount) {
            return false;
        }
        self.amount += amount;
        true
    }

    /// The same, and waits.
    pub(crate) async fn wait(&mut self, amount: usize, urgent: bool) {
        if !self.take_now(amount, urgent) {
            self.stock.wait(amount).await;
            self.amount += amount;
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.stock.give_back(self.amount);
    }
}

/// So much of something, given in the order of asking. What is alone may have more than there is.
struct Stock {
    limit: usize,
    held: Cell<usize>,
    line: RefCell<VecDeque<Rc<Place>>>,
}

/// A place in the line. What asked leaves it when it goes on, not when it is served: of two writes of a
/// stripe the earlier is to be the first to come for the claim (C11).
struct Place {
    amount: usize,
    is_served: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Stock {
    fn new(limit: usize) -> Self {
        Self { limit, held: Cell::new(0), line: RefCell::default() }
    }

    #[inline]
    fn take(&self, amount: usize) -> bool {
        let sum = self.held.get() + amount;
        let fits = self.held.get() == 0 || sum <= self.limit;
        if fits {
            self.held.set(sum);
        }
        fits
    }

    /// Whether it is there and nothing that asked before is still in line.
    #[inline]
    fn take_now(&self, amount: usize) -> bool {
        self.line.borrow().is_empty() && self.take(amount)
    }

    #[inline]
    fn give_back(&self, amount: usize) {
        self.held.set(self.held.get() - amount);
        if !self.line.borrow().is_empty() {
            self.serve();
        }
    }

    /// Gives what is there to those that have waited longest.
    fn serve(&self) {
        for place in self.line.borrow().iter().skip_while(|place| place.is_served.get()) {
            if !self.take(place.amount) {
                break;
            }
            place.is_served.set(true);
            place.wake();
        }
    }

    fn is_first(&self, place: &Rc<Place>) -> bool {
        self.line.borrow().front().is_some_and(|first| Rc::ptr_eq(first, place))
    }

    async fn wait(&self, amount: usize) {
        let place = Rc::new(Place { amount, is_served: Cell::new(false), waker: Cell::default() });
        self.line.borrow_mut().push_back(Rc::clone(&place));
        let waiting = Waiting { stock: self, place };
        poll_fn(|cx| {
            if waiting.place.is_served.get() && self.is_first(&waiting.place) {
                return Poll::Ready(());
            }
            waiting.place.waker.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
        // From here on the guard of the caller has it.
        waiting.place.is_served.set(false);
    }
}

impl Place {
    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// What has asked, until it has been served: it may be given up before.
struct Waiting<'s> {
    stock: &'s Stock,
    place: Rc<Place>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Self { stock, place } = self;
        if stock.is_first(place) {
            stock.line.borrow_mut().pop_front();
        } else {
            stock.line.borrow_mut().retain(|other| !Rc::ptr_eq(other, place));
        }
        if place.is_served.get() {
            stock.held.set(stock.held.get() - place.amount);
        }
        stock.serve();
        // It may have been served before what is in front of it had gone.
        if let Some(first) = stock.line.borrow().front().filter(|first| first.is_served.get()) {
            first.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::{Pin, pin},
        task::Context,
    };

    use super::*;

    fn is_ready<F: Future>(future: Pin<&mut F>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn bytes_go_in_the_order_of_asking_and_come_back() {
        let room = Room::new(WorkMemory { writes: 1, bytes: 600 }, 2);
        let (mut first, mut large, mut small) = (room.nothing(), room.nothing(), room.nothing());
        assert!(is_ready(pin!(first.wait(1000, false))), "what is alone may have more than there is");
        {
            let (mut large, mut small) = (Box::pin(large.wait(200, false)), Box::pin(small.wait(50, false)));
            assert!(!is_ready(large.as_mut()) && !is_ready(small.as_mut()));
            drop(first);
            assert!(is_ready(large.as_mut()) && is_ready(small.as_mut()));
        }
        assert!(is_ready(pin!(small.wait(900, false))), "what has some waits for more");
        assert!(is_ready(pin!(room.nothing().wait(900, true))), "it waits all the same");
        let mut next = room.nothing();
        let mut waits = Box::pin(next.wait(1, false));
        assert!(!is_ready(waits.as_mut()));
        drop(waits);
        drop((large, small));
        assert_eq!((room.bytes.held.get(), room.bytes.line.borrow().len()), (0, 0));
    }

    #[test]
    fn what_is_given_up_while_it_waits_keeps_nothing_and_stops_nothing() {
        let room = Room::new(WorkMemory { writes: 1, bytes: 600 }, 2);
        let (mut first, mut large, mut small) = (room.nothing(), room.nothing(), room.nothing());
        assert!(is_ready(pin!(first.wait(200, false))));
        {
            let (mut large, mut small) = (Box::pin(large.wait(250, false)), Box::pin(small.wait(100, false)));
            assert!(!is_ready(large.as_mut()) && !is_ready(small.as_mut()), "it passes what asked before");
            drop(large);
            assert!(is_ready(small.as_mut()), "it waits for what has gone");
        }
        let mut served = room.nothing();
        let mut waits = Box::pin(served.wait(300, false));
        assert!(!is_ready(waits.as_mut()));
        drop((first, small));
        // It has been served, and goes without having seen that.
        drop(waits);
        assert_eq!(room.bytes.held.get(), 0);
    }

    #[test]
    fn what_is_served_goes_before_what_asks_later_whichever_looks_first() {
        let room = Room::new(WorkMemory { writes: 4, bytes: 600 }, 2);
        let mut cx = Context::from_waker(Waker::noop());
        let (first, second) = (room.context_now().unwrap(), room.context_now().unwrap());
        let mut third = Box::pin(room.context());
        assert!(!is_ready(third.as_mut()));
        drop((first, second));
        assert!(room.context_now().is_none(), "it passes what has been served");
        let mut fourth = Box::pin(room.context());
        assert!(!is_ready(fourth.as_mut()), "it passes what has been served");
        let Poll::Ready(third) = third.as_mut().poll(&mut cx) else { panic!("it was served") };
        let Poll::Ready(fourth) = fourth.as_mut().poll(&mut cx) else { panic!("there is another") };

        let (mut fifth, mut sixth) = (Box::pin(room.context()), Box::pin(room.context()));
        assert!(!is_ready(fifth.as_mut()) && !is_ready(sixth.as_mut()));
        drop((third, fourth));
        assert!(!is_ready(sixth.as_mut()), "it passes what was served before");
        assert!(is_ready(fifth.as_mut()) && is_ready(sixth.as_mut()));
        drop((fifth, sixth));
        assert_eq!((room.contexts.held.get(), room.contexts.line.borrow().len()), (0, 0));
    }

    #[test]
    fn contexts_are_few_where_there_is_little_memory() {
        let room = Room::new(WorkMemory { writes: 5, bytes: 0 }, 2);
        let (mut first, mut third) = (Box::pin(room.context()), Box::pin(room.context()));
        let (mut second, mut least) = (Box::pin(room.context()), Box::pin(room.context()));
        let Poll::Ready(first) = first.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!()
        };
        let Poll::Ready(_second) = second.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!()
        };
        assert!(!is_ready(third.as_mut()) && !is_ready(least.as_mut()));
        drop(first);
        assert!(is_ready(third.as_mut()));
        assert!(is_ready(pin!(Room::new(WorkMemory::of(0), 1).context())), "one goes in any case");
        assert_eq!(Room::new(WorkMemory::of(1 << 40), 4).contexts.limit, CONTEXTS_MAX);
    }
}
