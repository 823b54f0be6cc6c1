//! A connection's sending half, and the limit of what the peer can make us hold. Both ends use it.
//!
//! Many tasks hand messages over whole (see [`Outgoing`]); one task, [`Link::run`], sends them in order.
//!
//! Memory for a request is acquired in the order of asking and given back when the request's last byte is sent. So a
//! peer that doesn't take its answers stops being served.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinstripe_export::outgoing::{Outgoing, send_whole};
use pinstripe_runtime::{Signal, Slice, Stream, shard};

/// Bytes of requests and unsent answers that a connection may hold. A single request may exceed it when it is alone.
const HELD_BYTES_MAX: usize = 32 << 20;
/// Bytes of answers without memory of their own that a connection may hold beside.
const ANSWERS_BYTES_MAX: usize = 1 << 20;
/// Time that the peer has to take the last messages of a connection that ends.
const LINGER_NANOSECONDS: u64 = 5_000_000_000;

/// See the module.
pub(crate) struct Link {
    pub stream: Rc<dyn Stream>,
    outgoing: RefCell<Outgoing>,
    held_bytes: Cell<usize>,
    next_ticket: Cell<u64>,
    served_ticket: Cell<u64>,
    finishing: Cell<bool>,
    broken: Cell<bool>,
    closed: Cell<bool>,
    /// The sender waits here.
    sender: Signal,
    /// Those who wait for memory or for the end.
    changed: Signal,
}

impl Link {
    pub fn new(stream: Rc<dyn Stream>) -> Rc<Self> {
        Rc::new(Self {
            stream,
            outgoing: RefCell::default(),
            held_bytes: Cell::new(0),
            next_ticket: Cell::new(0),
            served_ticket: Cell::new(0),
            finishing: Cell::new(false),
            broken: Cell::new(false),
            closed: Cell::new(false),
            sender: Signal::default(),
            changed: Signal::default(),
        })
    }

    /// Whether messages still reach the peer, as far as we know.
    pub fn alive(&self) -> bool {
        !self.broken.get()
    }

    /// Waits for memory. False if the connection has ended; otherwise [`Link::release`] or a sent message must give the
    /// bytes back.
    pub async fn acquire(&self, bytes: usize) -> bool {
        let ticket = self.next_ticket.replace(self.next_ticket.get() + 1);
        let alive = self
            .changed
            .wait_for(|| {
                let held = self.held_bytes.get();
                let turn = ticket == self.served_ticket.get();
                let room = turn && (held == 0 || held + bytes <= HELD_BYTES_MAX);
                (room || self.broken.get()).then(|| !self.broken.get())
            })
            .await;
        if alive {
            self.served_ticket.set(ticket + 1);
            self.held_bytes.set(self.held_bytes.get() + bytes);
            self.changed.notify();
        }
        alive
    }

    /// Gives memory back.
    pub fn release(&self, bytes: usize) {
        self.held_bytes.set(self.held_bytes.get() - bytes);
        self.changed.notify();
    }

    /// Sends `parts` one after the other, copied; together they are small.
    pub fn send_copy(&self, parts: &[&[u8]]) {
        let length = parts.iter().map(|part| part.len()).sum();
        if !self.broken.get() && length > 0 {
            self.outgoing.borrow_mut().push_copy(parts, length);
            self.held_bytes.set(self.held_bytes.get() + length);
            self.sender.notify();
        }
    }

    /// Waits until the peer has taken so many answers that there is room for those of further commands, or the connection has ended.
    pub async fn room(&self) {
        let is_there = || self.held_bytes.get() <= HELD_BYTES_MAX + ANSWERS_BYTES_MAX || self.broken.get();
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
            let sent = send_whole(&*self.stream, slice).await;
            self.held_bytes.set(self.held_bytes.get() - held);
            if !sent {
                self.give_up();
            }
            self.changed.notify();
        }
        self.stream.shutdown();
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
        self.held_bytes.set(self.held_bytes.get() - dropped);
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
