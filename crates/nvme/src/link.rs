//! A connection's sending half, and the limit of what the peer can make us hold. Both ends use it.
//!
//! Many tasks hand messages over whole (see [`Outgoing`]); one task, [`Link::run`], sends them in order.
//!
//! Memory for a request is acquired in the order of asking, from the server's budget too, and given back when
//! the request's last byte is sent. So a peer that doesn't take its answers stops being served, and after a
//! while it is cut off.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use pinstripe_block::budget::{Budget, Share};
use pinstripe_block::outgoing::{LOOSE_BYTES_MAX, Outgoing, send_parts};
use pinstripe_block::roster::FLOW_BYTES;
use pinstripe_block::wake::Wake;
use pinstripe_runtime::{Signal, Slice, Stream, shard};

/// Bytes of requests and unsent answers that a connection may hold, as allocated. A single request may exceed
/// it when it is alone.
const HELD_BYTES_MAX: usize = 32 << 20;
/// Time that the peer has to take the last messages of a connection that ends, and in which one that is to be
/// left isn't cut while data flows.
const LINGER_NANOSECONDS: u64 = 5_000_000_000;

/// See the module.
pub(crate) struct Link {
    pub stream: Rc<dyn Stream>,
    /// The host that the stream has proved to be of, as one of TLS has.
    host: OnceCell<String>,
    outgoing: RefCell<Outgoing>,
    share: Share,
    /// Bytes that came from the peer.
    received: Cell<u64>,
    /// Bytes of messages that the peer has taken.
    sent: Cell<u64>,
    /// Both together at the last look at whether it idles.
    moved: Cell<u64>,
    next_ticket: Cell<u64>,
    served_ticket: Cell<u64>,
    finishing: Cell<bool>,
    /// The connection is to be left to another process.
    leaving: Cell<bool>,
    /// Until when it may wait for its peer while data flows.
    patient_until: Cell<u64>,
    /// It is finished, and its stream stays open.
    left: Cell<bool>,
    busy: Cell<bool>,
    /// At the last look at whether it idles.
    was_idle: Cell<bool>,
    broken: Cell<bool>,
    closed: Cell<bool>,
    /// The sender waits here.
    sender: Signal,
    /// Tasks wait here for memory, by their tickets, or for the end.
    changed: Signal,
    /// The receiver waits here until it may leave, and isn't woken by all else that changes.
    to_leave: Wake,
}

impl Link {
    pub fn new(stream: Rc<dyn Stream>, budget: Arc<Budget>) -> Rc<Self> {
        Rc::new(Self {
            stream,
            host: OnceCell::new(),
            outgoing: RefCell::default(),
            share: Share::new(budget),
            received: Cell::new(0),
            sent: Cell::new(0),
            moved: Cell::new(0),
            next_ticket: Cell::new(0),
            served_ticket: Cell::new(0),
            finishing: Cell::new(false),
            leaving: Cell::new(false),
            patient_until: Cell::new(0),
            left: Cell::new(false),
            busy: Cell::new(false),
            was_idle: Cell::new(false),
            broken: Cell::new(false),
            closed: Cell::new(false),
            sender: Signal::default(),
            changed: Signal::default(),
            to_leave: Wake::default(),
        })
    }

    /// The stream has proved to be of this host: it connects no queue of another one.
    pub fn is_of(&self, host: String) {
        let _ = self.host.set(host);
    }

    /// The host that the stream has proved to be of.
    pub fn host(&self) -> Option<&str> {
        self.host.get().map(String::as_str)
    }

    /// Whether messages still reach the peer, as far as we know.
    pub fn alive(&self) -> bool {
        !self.broken.get()
    }

    /// Waits for memory. False if the connection has ended or is to be left; otherwise [`Link::release`] or a
    /// sent message must give the bytes back.
    pub async fn acquire(&self, bytes: usize) -> bool {
        let over = || self.broken.get() || self.leaving();
        let ticket = self.next_ticket.replace(self.next_ticket.get() + 1);
        let room = || {
            let held = self.share.held();
            let turn = ticket == self.served_ticket.get();
            (turn && (held == 0 || held + bytes <= HELD_BYTES_MAX)) || over()
        };
        self.changed.wait_for_number(ticket, || room().then_some(())).await;
        // Later requests wait behind this one, which waits behind other connections.
        let mut acquired = pin!(self.share.acquire(bytes));
        let mut ended = pin!(self.changed.wait_until(over));
        let alive = poll_fn(|cx| {
            if over() {
                return Poll::Ready(false);
            }
            if acquired.as_mut().poll(cx).is_ready() {
                return Poll::Ready(true);
            }
            ended.as_mut().poll(cx).map(|()| false)
        });
        let alive = alive.await;
        if alive {
            self.served_ticket.set(ticket + 1);
            self.tell_next();
        }
        alive
    }

    /// Has what waits look again, and of the tasks that wait for memory the one whose turn it is.
    fn tell_next(&self) {
        self.changed.notify_to(self.served_ticket.get());
    }

    /// Counts memory of what has come already, which is bounded otherwise; [`Link::release`] must give it
    /// back.
    pub fn force(&self, bytes: usize) {
        self.share.force(bytes);
    }

    /// Whether more is held than there should be.
    pub fn is_memory_short(&self) -> bool {
        self.share.is_budget_exceeded()
    }

    /// Gives memory back.
    pub fn release(&self, bytes: usize) {
        self.share.give_back(bytes);
        self.tell_next();
    }

    /// Bytes that the connection holds.
    pub fn held(&self) -> usize {
        self.share.held()
    }

    /// So many bytes came from the peer.
    pub fn count_received(&self, bytes: usize) {
        self.received.set(self.received.get() + bytes as u64);
    }

    /// Bytes that came from the peer so far.
    pub fn received(&self) -> u64 {
        self.received.get()
    }

    /// Sends `parts` one after the other, copied; together they are small.
    pub fn send_copy(&self, parts: &[&[u8]]) {
        self.send_copy_held(parts, 0);
    }

    /// The same; `held` bytes that were acquired are given back when all is sent.
    pub fn send_copy_held(&self, parts: &[&[u8]], held: usize) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if self.broken.get() || length == 0 {
            return self.release(held);
        }
        self.outgoing.borrow_mut().push_copy(parts, held);
        self.sender.notify();
    }

    /// Waits until the peer has taken so many of the answers that hold nothing that there is room for more of
    /// them, or the connection has ended.
    pub async fn room(&self) {
        let is_there = || self.outgoing.borrow().loose() <= LOOSE_BYTES_MAX || self.broken.get();
        self.changed.wait_until(is_there).await;
    }

    /// Sends `slice` as it is; `held` bytes are given back afterwards.
    pub fn send(&self, slice: Slice, held: usize) {
        if self.broken.get() {
            return self.release(held);
        }
        self.outgoing.borrow_mut().push(slice, held);
        self.sender.notify();
    }

    /// The sender: sends until the connection is finished and all is sent, or cut, or broken; then closes it.
    pub async fn run(&self) {
        while let Some((slice, held)) = self.sender.wait_for(|| self.next()).await {
            let taken = |bytes| self.sent.set(self.sent.get() + bytes as u64);
            let sent = send_parts(&*self.stream, slice, taken).await;
            self.share.give_back(held);
            if !sent {
                self.give_up();
            }
            self.tell_next();
        }
        // All is sent: if it is left, another process goes on here.
        self.left.set(self.left.get() && !self.broken.get());
        if !self.left.get() {
            self.stream.shutdown();
        }
        self.give_up();
        self.closed.set(true);
        self.changed.notify();
    }

    /// What to send next. `Some(None)` when the connection is over.
    #[expect(clippy::option_option, reason = "not yet, never again, and this one")]
    fn next(&self) -> Option<Option<(Slice, usize)>> {
        if self.broken.get() {
            return Some(None);
        }
        let next = self.outgoing.borrow_mut().pop();
        (next.is_some() || self.finishing.get()).then_some(next)
    }

    fn give_up(&self) {
        self.broken.set(true);
        let dropped = self.outgoing.borrow_mut().clear();
        self.share.give_back(dropped);
        self.changed.notify();
    }

    /// Ends the connection when all that was handed over is sent; after a while without.
    pub async fn finish(&self) {
        self.finishing.set(true);
        self.sender.notify();
        if shard::timeout(LINGER_NANOSECONDS, self.closed()).await.is_none() {
            self.cut();
            self.closed().await;
        }
    }

    /// Whether the connection is to be left to another process.
    pub fn leaving(&self) -> bool {
        self.leaving.get()
    }

    /// Whether it waits for its peer alone, and did so at the last look, and no data flows.
    pub fn idles(&self) -> bool {
        let moved = self.received.get() + self.sent.get();
        let flows = moved - self.moved.replace(moved) >= FLOW_BYTES;
        let is_idle = !self.busy.get();
        self.was_idle.replace(is_idle) && is_idle && !(flows && shard::now() < self.patient_until.get())
    }

    fn be_patient(&self) {
        self.patient_until.set(shard::now() + LINGER_NANOSECONDS);
    }

    /// Commands are under way that wait for no peer, or no more.
    pub fn set_busy(&self, busy: bool) {
        self.busy.set(busy);
        self.was_idle.set(false);
        self.be_patient();
    }

    /// Has it come to where it can be left.
    pub fn leave(&self) {
        self.leaving.set(true);
        self.be_patient();
        self.changed.notify();
        self.look_whether_to_leave();
    }

    /// What kept the connection from being left may be over.
    pub fn look_whether_to_leave(&self) {
        self.to_leave.wake();
    }

    /// The receiver waits here until the connection `may` be left, which it may not before the order.
    pub fn to_leave<'a>(&'a self, may: impl Fn() -> bool + 'a) -> impl Future<Output = ()> {
        self.to_leave.wait_for(move || may().then_some(()))
    }

    /// Ends it when all that was handed over is sent, with its stream open. False if that can't be.
    pub async fn finish_left(&self) -> bool {
        self.left.set(true);
        self.finish().await;
        self.left.get()
    }

    /// Waits until the sender has ended.
    pub async fn closed(&self) {
        self.changed.wait_until(|| self.closed.get()).await;
    }

    /// Ends the connection now. The sender and a receive under way end soon.
    pub fn cut(&self) {
        self.stream.shutdown();
        self.give_up();
        self.sender.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Wake as Waking, Waker};

    use pinstripe_runtime::{Buffer, Submission};

    use super::*;

    /// Nothing goes over it.
    struct Silent;

    impl Stream for Silent {
        fn receive(&self, _: Buffer) -> Submission {
            unreachable!("nothing is received")
        }

        fn send(&self, _: Slice) -> Submission {
            unreachable!("nothing is sent")
        }

        fn shutdown(&self) {}
    }

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Wakes(AtomicU32);

    impl Waking for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn memory_that_is_given_back_wakes_the_request_whose_turn_it_is() {
        let link = Link::new(Rc::new(Silent), Arc::new(Budget::default()));
        link.force(HELD_BYTES_MAX);
        let mut requests: Vec<_> = (0..3).map(|_| Box::pin(link.acquire(1))).collect();
        let tasks: Vec<Arc<Wakes>> = (0..3).map(|_| Arc::default()).collect();
        let mut poll = |number: usize| {
            let waker = Waker::from(Arc::clone(&tasks[number]));
            requests[number].as_mut().poll(&mut Context::from_waker(&waker))
        };
        let woken = || -> Vec<u32> { tasks.iter().map(|task| task.0.load(Ordering::SeqCst)).collect() };
        assert!((0..3).all(|number| poll(number).is_pending()), "all memory is held");
        link.release(HELD_BYTES_MAX);
        assert_eq!(woken(), [1, 0, 0]);
        assert_eq!(poll(0), Poll::Ready(true));
        assert_eq!(woken(), [1, 1, 0]);
        link.cut();
        assert_eq!(woken(), [1, 1, 1], "the end is told to all");
        assert_eq!((poll(1), poll(2)), (Poll::Ready(false), Poll::Ready(false)));
    }
}
