//! One connection's sending half, and the limits of what it may hold.
//!
//! Three kinds of tasks share a [`Link`]: the receiver (one), the requests (many), and the sender (one,
//! [`Link::run`]). Requests hand their replies over whole; see [`Outgoing`].
//!
//! **Limits.** A request is let in by [`Link::reserve`] only if there is room for its memory, its reply
//! included, beside all that the connection holds already, and in the server's [`Budget`]. The memory goes
//! back when the reply is sent. So a client that doesn't read its replies stops being read itself, and after
//! a while is cut off. Replies that belong to no request are few: see [`Link::room`].
//!
//! **End.** The sender closes the connection when nothing more can come: the receiver has ended (the client
//! left, or was cut off) or the server is stopping, no request is in flight, and all replies are sent. If
//! sending fails it closes at once; what is in flight then completes into nothing. Long requests without data
//! look at [`Link::over`] now and then.
//!
//! **Hung up.** A client that has waited too long for an answer hangs up and sends what is unanswered again,
//! by another connection. The changes that it has sent by this one and that were not begun must then never
//! be. The service asks, at each step of a change: see [`Client`](pinstripe_block::Client) and
//! [`Link::has_hung_up`].
//!
//! **Leaving.** A connection that another process will serve ends in the same way, between two requests, but
//! its stream stays open. TLS has state that can't be left, so such a stream is closed then: its client sends
//! what has no answer again, by a new connection. An error would be an answer.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use pinstripe_runtime::{Buffer, Outcome, Slice, Stream, shard};

use pinstripe_block::budget::{Budget, Share};
use pinstripe_block::first_of::{First, first_of};
use pinstripe_block::mutants::{Mutant, active};
use pinstripe_block::outgoing::{LOOSE_BYTES_MAX, Outgoing, send_parts};
use pinstripe_block::roster::FLOW_BYTES;
use pinstripe_block::wake::Wake;

use crate::tls::{Acceptor, Session};

/// Requests of one connection that may be in flight.
pub(super) const REQUESTS_MAX: usize = 128;
/// Bytes that one connection may hold in requests and unsent replies, as allocated. A single request may
/// exceed it when it is alone.
pub(super) const HELD_BYTES_MAX: usize = (64 << 20) + REQUESTS_MAX * REPLY_BYTES;
/// Of each request: what a reply without data takes.
pub(super) const REPLY_BYTES: usize = 128;
/// Time that a client has to take its last replies, after it or the server has ended the conversation.
const LINGER_NANOSECONDS: u64 = 10_000_000_000;

/// A connection, as its tasks and the server see it.
pub(super) struct Link<T: ?Sized> {
    pub stream: Rc<T>,
    /// Since TLS has begun.
    tls: OnceCell<Session>,
    outgoing: RefCell<Outgoing>,
    requests: Cell<usize>,
    /// The latest of them is still coming.
    pub is_coming: Cell<bool>,
    /// At the last look at whether it idles.
    was_idle: Cell<bool>,
    /// Bytes that have come or gone since then.
    moved: Cell<u64>,
    share: Share,
    /// Why the receiver has ended, once it has.
    ended: Cell<Option<Why>>,
    stopping: Cell<bool>,
    /// The connection is to be left to another process.
    leaving: Cell<bool>,
    /// The receiver has ended so that another process can go on.
    left: Cell<bool>,
    broken: Cell<bool>,
    closed: Cell<bool>,
    /// The sender waits here for replies or the end, the receiver for room or the end.
    sender: Wake,
    receiver: Wake,
    /// The receiver waits here, while nothing comes, for the order to leave.
    to_leave: Wake,
}

impl<T: Stream + ?Sized> Link<T> {
    pub fn new(stream: Rc<T>, budget: Arc<Budget>) -> Self {
        Self {
            stream,
            tls: OnceCell::new(),
            outgoing: RefCell::default(),
            requests: Cell::new(0),
            is_coming: Cell::new(false),
            was_idle: Cell::new(false),
            moved: Cell::new(0),
            share: Share::new(budget),
            ended: Cell::default(),
            stopping: Cell::new(false),
            leaving: Cell::new(false),
            left: Cell::new(false),
            broken: Cell::new(false),
            closed: Cell::new(false),
            sender: Wake::default(),
            receiver: Wake::default(),
            to_leave: Wake::default(),
        }
    }

    /// Begins TLS as soon as the sender has taken all replies, and shakes hands. All that comes then is
    /// in it, and so is what the sender takes later. Called once, when no request is in flight.
    pub async fn secure(&self, acceptor: &Acceptor) -> Result<(), String> {
        let taken = || self.outgoing.borrow().is_empty() || self.broken.get();
        self.receiver.wait_for(|| taken().then_some(())).await;
        let session = Session::new(acceptor).map_err(|error| error.to_string())?;
        let session = self.tls.get_or_init(|| session);
        session.shake_hands(&*self.stream, || self.sender.wake()).await
    }

    /// Whether TLS has begun.
    pub fn is_secure(&self) -> bool {
        self.tls.get().is_some()
    }

    /// Receives into the front of `buffer`. 0 bytes at the connection's end.
    pub async fn receive(&self, buffer: Buffer) -> (usize, Option<Buffer>) {
        let room = buffer.len();
        let Some(session) = self.tls.get() else {
            return self.taken(self.stream.receive(buffer).await, room);
        };
        let (received, buffer) = session.receive(&*self.stream, buffer, || self.sender.wake()).await;
        self.note_moved(received);
        (if self.alive() { received } else { 0 }, Some(buffer))
    }

    /// The same between two requests, but not for longer than the connection stays.
    pub async fn receive_request(&self, buffer: Buffer) -> (usize, Option<Buffer>) {
        let leaving = self.to_leave.wait_for(|| self.leaving.get().then_some(()));
        if self.is_secure() {
            // Nothing is made of what comes from now on: the receive ends with the stream.
            return match first_of(self.receive(buffer), leaving).await {
                First::One(received) => received,
                First::Other(()) => (0, None),
            };
        }
        let room = buffer.len();
        let mut receiving = self.stream.receive(buffer);
        let outcome = match first_of(&mut receiving, leaving).await {
            First::One(outcome) => outcome,
            First::Other(()) => {
                self.stream.interrupt(&receiving);
                receiving.await
            }
        };
        self.taken(outcome, room)
    }

    /// What was received where there was this room.
    fn taken(&self, outcome: Outcome, room: usize) -> (usize, Option<Buffer>) {
        shard::note_arrival();
        // A stream that claims more than there was room for is broken.
        let received = outcome.result.ok().filter(|count| *count <= room && self.alive()).unwrap_or(0);
        self.note_moved(received);
        (received, outcome.buffer)
    }

    fn note_moved(&self, bytes: usize) {
        self.moved.set(self.moved.get() + bytes as u64);
    }

    /// Sends a reply in TLS if that had begun when the sender took it.
    async fn transmit(&self, slice: Slice) -> bool {
        match self.tls.get() {
            Some(session) => session.send(&*self.stream, &slice, |bytes| self.note_moved(bytes)).await,
            None => send_parts(&*self.stream, slice, |bytes| self.note_moved(bytes)).await,
        }
    }

    /// Whether the server is stopping.
    pub fn stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Whether the connection, which has ended, is left, with all replies sent.
    pub fn is_left(&self) -> bool {
        self.left.get()
    }

    /// Whether the connection is to be left to another process, or to be ended where one would be.
    pub fn leaving(&self) -> bool {
        self.leaving.get()
    }

    /// Whether replies still reach the client, as far as we know.
    pub fn alive(&self) -> bool {
        !self.broken.get()
    }

    /// Why what takes long should end before it is done, if it should.
    pub fn over(&self) -> Option<&'static str> {
        if self.stopping.get() {
            Some("the server is stopping")
        } else if self.has_hung_up() {
            Some("the client has hung up")
        } else {
            None
        }
    }

    /// Whether the client has gone without the word that it leaves, so that it may send by another connection
    /// what isn't answered. Asks the stream, since what has come before is received first. One that says that
    /// it leaves, and ends what it sends before we have read that, is taken for gone, too.
    pub fn has_hung_up(&self) -> bool {
        let ended = self.ended.get();
        self.broken.get()
            || ended == Some(Why::Abandoned)
            || (ended != Some(Why::Disconnected) && self.stream.has_hung_up())
    }

    /// Whether a single request is in flight.
    pub fn is_idle_but_for_one(&self) -> bool {
        self.requests.get() == 1
    }

    /// Lets a request of `bytes` in, when there is room. False if the connection has ended meanwhile, or if
    /// it is to be left. After a true, what isn't handed over with the reply must be given to
    /// [`Link::release`].
    pub async fn reserve(&self, bytes: usize) -> bool {
        let over = || self.broken.get() || self.leaving.get();
        let room = || {
            let held = self.share.held();
            self.requests.get() < REQUESTS_MAX && (held == 0 || held + bytes <= HELD_BYTES_MAX)
        };
        self.receiver.wait_for(|| (room() || over()).then_some(())).await;
        let mut acquired = pin!(self.share.acquire(bytes));
        let mut ended = pin!(self.receiver.wait_for(|| over().then_some(())));
        let alive = poll_fn(|cx| {
            if ended.as_mut().poll(cx).is_ready() {
                return Poll::Ready(false);
            }
            acquired.as_mut().poll(cx).map(|()| true)
        });
        let alive = alive.await;
        if alive {
            self.requests.set(self.requests.get() + 1);
        }
        alive
    }

    /// Waits until unsent replies leave room for more; for those that belong to no request in flight.
    pub async fn room(&self) {
        let is_there = || self.outgoing.borrow().loose() <= LOOSE_BYTES_MAX || self.broken.get();
        self.receiver.wait_for(|| is_there().then_some(())).await;
    }

    /// A request has ended; its reply, if any, was handed over before. Gives the `bytes` back that no reply
    /// carries.
    pub fn release(&self, bytes: usize) {
        self.requests.set(self.requests.get() - 1);
        self.share.give_back(bytes);
        self.receiver.wake();
        if self.requests.get() == 0 {
            self.sender.wake();
        }
    }

    /// Sends `parts` one after the other, copied; `held` reserved bytes are given back when they are sent.
    pub fn send_copy(&self, parts: &[&[u8]], held: usize) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if length > 0 {
            self.hand_over(held, |outgoing, held| outgoing.push_copy(parts, held));
        }
    }

    /// Sends `slice` as it is; `held` reserved bytes are given back when it is sent.
    pub fn send(&self, slice: Slice, held: usize) {
        self.hand_over(held, |outgoing, held| outgoing.push(slice, held));
    }

    fn hand_over(&self, mut held: usize, push: impl FnOnce(&mut Outgoing, usize)) {
        if self.broken.get() {
            return self.share.give_back(held);
        }
        active(Mutant::AnswersUncounted).then(|| self.share.give_back(std::mem::take(&mut held)));
        push(&mut self.outgoing.borrow_mut(), held);
        self.sender.wake();
    }

    /// The sender: sends replies until the connection ends, then closes it. See the module.
    pub async fn run(&self) {
        loop {
            let (sent, held) = match self.sender.wait_for(|| self.next()).await {
                Next::Reply(slice, held) => (self.transmit(slice).await, held),
                Next::Records(session) => (session.send(&*self.stream, &[], |_| ()).await, 0),
                Next::Over => break,
            };
            self.share.give_back(held);
            if !sent {
                self.give_up();
            }
            self.receiver.wake();
        }
        if let Some(session) = self.tls.get().filter(|_| !self.broken.get()) {
            session.close(&*self.stream).await;
        }
        // All replies are sent: if it is left, another process goes on here.
        self.left.set(self.left.get() && !self.broken.get());
        if !self.left.get() {
            self.stream.shutdown();
        }
        // A reply that was handed over at the last moment is dropped.
        self.give_up();
        self.closed.set(true);
        self.receiver.wake();
    }

    /// What to send next, if that is known.
    fn next(&self) -> Option<Next<'_>> {
        if self.broken.get() {
            return Some(Next::Over);
        }
        if let Some((slice, held)) = self.outgoing.borrow_mut().pop() {
            return Some(Next::Reply(slice, held));
        }
        if let Some(session) = self.tls.get().filter(|session| session.wants_to_send()) {
            return Some(Next::Records(session));
        }
        let ended = self.ended.get().is_some() || self.stopping.get();
        (ended && self.requests.get() == 0).then_some(Next::Over)
    }

    /// The client can't be reached: its replies are dropped, now and from now on.
    fn give_up(&self) {
        self.broken.set(true);
        let dropped = self.outgoing.borrow_mut().clear();
        self.share.give_back(dropped);
    }

    /// The receiver has ended. Waits until no request of the connection is in flight and it is closed, or
    /// left. A client that doesn't take its last replies is given up after a while.
    pub async fn end(&self, why: Why) {
        self.ended.set(Some(why));
        // Also where TLS has begun after the order to leave.
        self.left.set(why == Why::Left && !self.is_secure());
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

/// Why a receiver has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The client said that it leaves.
    Disconnected,
    /// Another process goes on, if it can.
    Left,
    /// Anything else.
    Abandoned,
}

/// What the sender does next.
enum Next<'a> {
    /// Sends a reply, and gives back bytes that are held for it.
    Reply(Slice, usize),
    /// Sends what TLS has to say of its own.
    Records(&'a Session),
    /// Closes the connection.
    Over,
}

/// A connection, as the server sees it when it stops.
pub(super) trait Stoppable {
    /// Comes to its end between two requests, without ending the connection unless that is in TLS.
    fn leave(&self);
    /// Refuses further requests, and closes when those in flight are answered.
    fn stop(&self);
    /// Closes now.
    fn cut(&self);
    /// Whether it waits for its client alone, and did so at the last look: it has no requests under way, and
    /// no data flows.
    fn idles(&self) -> bool;
}

impl<T: Stream + ?Sized> Stoppable for Link<T> {
    fn leave(&self) {
        self.leaving.set(true);
        self.to_leave.wake();
        self.receiver.wake();
    }

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

    fn idles(&self) -> bool {
        let is_idle = self.requests.get() <= usize::from(self.is_coming.get());
        let flows = self.moved.take() >= FLOW_BYTES;
        self.was_idle.replace(is_idle) && is_idle && !flows
    }
}
