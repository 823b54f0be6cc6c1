//! One connection's sending half, and the limits of what it may hold.
//!
//! Three kinds of tasks share a [`Link`]: the receiver (one), the requests (many), and the sender (one, [`Link::run`]).
//! Requests hand their replies over whole; see [`Outgoing`].
//!
//! **Limits.** A request is let in by [`Link::reserve`] only if there is room for its memory beside all that is held
//! already, replies that aren't sent yet included. So a client that doesn't read its replies stops being read itself.
//!
//! **End.** The sender closes the connection when nothing more can come: the receiver has ended (the client left, or
//! was cut off) or the server is stopping, no request is in flight, and all replies are sent. If sending
//! fails it closes at once; what is in flight then completes into nothing. Long requests without data look at
//! [`Link::over`] now and then.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinstripe_runtime::{Slice, Stream, shard};

use crate::outgoing::{Outgoing, send_whole};
use crate::wake::Wake;

/// Requests of one connection that may be in flight.
pub(super) const REQUESTS_MAX: usize = 128;
/// Bytes that one connection may hold in requests and unsent replies. A single request may exceed it when it is alone.
pub(super) const HELD_BYTES_MAX: usize = 64 << 20;
/// Time that a client has to take its last replies, after it or the server has ended the conversation.
const LINGER_NANOSECONDS: u64 = 10_000_000_000;

/// A connection, as its tasks and the server see it.
pub(super) struct Link<T: ?Sized> {
    pub stream: Rc<T>,
    outgoing: RefCell<Outgoing>,
    requests: Cell<usize>,
    held_bytes: Cell<usize>,
    receiving: Cell<bool>,
    /// The receiver has ended, and the client hadn't said that it leaves.
    abandoned: Cell<bool>,
    stopping: Cell<bool>,
    broken: Cell<bool>,
    closed: Cell<bool>,
    /// The sender waits here for replies or the end, the receiver for room or the end.
    sender: Wake,
    receiver: Wake,
}

impl<T: Stream + ?Sized> Link<T> {
    pub fn new(stream: Rc<T>) -> Self {
        Self {
            stream,
            outgoing: RefCell::default(),
            requests: Cell::new(0),
            held_bytes: Cell::new(0),
            receiving: Cell::new(true),
            abandoned: Cell::new(false),
            stopping: Cell::new(false),
            broken: Cell::new(false),
            closed: Cell::new(false),
            sender: Wake::default(),
            receiver: Wake::default(),
        }
    }

    /// Whether the server is stopping.
    pub fn stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Whether replies still reach the client, as far as we know.
    pub fn alive(&self) -> bool {
        !self.broken.get()
    }

    /// Why what takes long should end before it is done, if it should.
    pub fn over(&self) -> Option<&'static str> {
        if self.stopping.get() {
            Some("the server is stopping")
        } else if self.broken.get() || self.abandoned.get() {
            Some("the client has hung up")
        } else {
            None
        }
    }

    /// Whether a single request is in flight.
    pub fn is_idle_but_for_one(&self) -> bool {
        self.requests.get() == 1
    }

    /// Lets a request of `bytes` in, when there is room. False if the connection has ended meanwhile.
    /// [`Link::release`] must follow a true.
    pub async fn reserve(&self, bytes: usize) -> bool {
        let alive = self
            .receiver
            .wait_for(|| {
                let held = self.held_bytes.get();
                let room =
                    self.requests.get() < REQUESTS_MAX && (held == 0 || held + bytes <= HELD_BYTES_MAX);
                (room || self.broken.get()).then(|| !self.broken.get())
            })
            .await;
        if alive {
            self.requests.set(self.requests.get() + 1);
            self.held_bytes.set(self.held_bytes.get() + bytes);
        }
        alive
    }

    /// Waits until unsent replies leave room for more; for those that belong to no request in flight.
    pub async fn room(&self) {
        self.receiver
            .wait_for(|| (self.held_bytes.get() <= HELD_BYTES_MAX || self.broken.get()).then_some(()))
            .await;
    }

    /// A request of `bytes` has ended; its reply, if any, was handed over before.
    pub fn release(&self, bytes: usize) {
        self.requests.set(self.requests.get() - 1);
        self.held_bytes.set(self.held_bytes.get() - bytes);
        self.receiver.wake();
        if self.requests.get() == 0 {
            self.sender.wake();
        }
    }

    /// Sends `parts` one after the other, copied.
    pub fn send_copy(&self, parts: &[&[u8]]) {
        let length = parts.iter().map(|part| part.len()).sum();
        if length > 0 {
            self.hand_over(length, |outgoing| outgoing.push_copy(parts, length));
        }
    }

    /// Sends `slice` as it is.
    pub fn send(&self, slice: Slice) {
        let length = slice.len();
        self.hand_over(length, |outgoing| outgoing.push(slice, length));
    }

    fn hand_over(&self, length: usize, push: impl FnOnce(&mut Outgoing)) {
        if !self.broken.get() {
            push(&mut self.outgoing.borrow_mut());
            self.held_bytes.set(self.held_bytes.get() + length);
            self.sender.wake();
        }
    }

    /// The sender: sends replies until the connection ends, then closes it. See the module.
    pub async fn run(&self) {
        while let Some((slice, held)) = self.sender.wait_for(|| self.next()).await {
            let sent = send_whole(&*self.stream, slice).await;
            self.held_bytes.set(self.held_bytes.get() - held);
            if !sent {
                self.give_up();
            }
            self.receiver.wake();
        }
        self.stream.shutdown();
        // A request that got in at the last moment replies to nobody.
        self.give_up();
        self.closed.set(true);
        self.receiver.wake();
    }

    /// What to send next. `Some(None)` when the connection is over.
    #[expect(clippy::option_option, reason = "not yet, never again, and this one")]
    fn next(&self) -> Option<Option<(Slice, usize)>> {
        if self.broken.get() {
            return Some(None);
        }
        let next = self.outgoing.borrow_mut().pop();
        let ended = !self.receiving.get() || self.stopping.get();
        (next.is_some() || (ended && self.requests.get() == 0)).then_some(next)
    }

    /// The client can't be reached: its replies are dropped, now and from now on.
    fn give_up(&self) {
        self.broken.set(true);
        let dropped = self.outgoing.borrow_mut().clear();
        self.held_bytes.set(self.held_bytes.get() - dropped);
    }

    /// The receiver has ended, because the client said that it leaves, or else it is `abandoned`. Waits until no request of the
    /// connection is in flight and it is closed. A client that doesn't take its last replies is given up after a while.
    pub async fn end(&self, abandoned: bool) {
        self.receiving.set(false);
        self.abandoned.set(abandoned);
        self.sender.wake();
        self.receiver.wait_for(|| (self.requests.get() == 0).then_some(())).await;
        if shard::timeout(LINGER_NANOSECONDS, self.closed()).await.is_none() {
            self.cut();
            self.closed().await;
        }
    }

    fn closed(&self) -> impl Future<Output = ()> {
        self.receiver.wait_for(|| self.closed.get().then_some(()))
    }
}

/// A connection, as the server sees it when it stops.
pub(super) trait Stoppable {
    /// Refuses further requests, and closes when those in flight are answered.
    fn stop(&self);
    /// Closes now.
    fn cut(&self);
}

impl<T: Stream + ?Sized> Stoppable for Link<T> {
    fn stop(&self) {
        self.stopping.set(true);
        self.sender.wake();
    }

    fn cut(&self) {
        // What waits on the stream completes with an error; the sender then gives up, the receiver ends.
        self.stream.shutdown();
        self.give_up();
        self.sender.wake();
        self.receiver.wake();
    }
}
