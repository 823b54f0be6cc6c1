//! A connection's sending half, and the limit of what the peer can make us hold. Both ends use it.
//!
//! Many tasks hand messages over whole, so a header never loses its data to another message in between; one task,
//! [`Link::run`], sends them in order. Small ones are gathered into batches, data travels in the buffer that it lies in.
//!
//! Memory for a request is acquired in the order of asking and given back when the request's last byte is sent. So a
//! peer that doesn't take its answers stops being served.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use pinstripe_runtime::{Buffer, Signal, Slice, Stream, shard};

/// Bytes of requests and unsent answers that a connection may hold. A single request may exceed it when it is alone.
const HELD_BYTES_MAX: usize = 32 << 20;
/// Bytes of a batch of small messages.
const BATCH_BYTES: usize = 64 << 10;
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

#[derive(Default)]
struct Outgoing {
    /// To be sent, oldest first, and the held bytes that go with each.
    ready: VecDeque<(Slice, usize)>,
    /// The batch that still takes small messages, and how much of it is used.
    batch: Option<(Buffer, usize)>,
}

impl Outgoing {
    fn close_batch(&mut self) {
        if let Some((mut batch, used)) = self.batch.take() {
            batch.truncate(used);
            self.ready.push_back((batch.freeze(), 0));
        }
    }

    fn next(&mut self) -> Option<(Slice, usize)> {
        if self.ready.is_empty() {
            self.close_batch();
        }
        self.ready.pop_front()
    }
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
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if self.broken.get() || length == 0 {
            return;
        }
        let outgoing = &mut *self.outgoing.borrow_mut();
        if length > BATCH_BYTES {
            outgoing.close_batch();
            let mut buffer = shard::buffer(length);
            fill(&mut buffer, parts);
            outgoing.ready.push_back((buffer.freeze(), 0));
        } else {
            if outgoing.batch.as_ref().is_some_and(|(batch, used)| batch.len() - used < length) {
                outgoing.close_batch();
            }
            let (batch, used) = outgoing.batch.get_or_insert_with(|| (shard::buffer(BATCH_BYTES), 0));
            fill(&mut batch[*used..*used + length], parts);
            *used += length;
        }
        self.sender.notify();
    }

    /// Sends `slice` as it is; `held` bytes are given back afterwards.
    pub fn send(&self, slice: Slice, held: usize) {
        if self.broken.get() {
            return self.release(held);
        }
        let outgoing = &mut *self.outgoing.borrow_mut();
        outgoing.close_batch();
        outgoing.ready.push_back((slice, held));
        self.sender.notify();
    }

    /// The sender: sends until the connection is finished and all is sent, or cut, or broken; then closes it.
    pub async fn run(&self) {
        while let Some((slice, held)) = self.sender.wait_for(|| self.next()).await {
            let sent = self.send_whole(slice).await;
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
        let next = self.outgoing.borrow_mut().next();
        (next.is_some() || self.finishing.get()).then_some(next)
    }

    async fn send_whole(&self, mut slice: Slice) -> bool {
        loop {
            let length = slice.len();
            match self.stream.send(slice.clone()).await.result {
                Ok(sent) if sent == length => return true,
                Ok(sent) if (1..length).contains(&sent) => slice = slice.slice(sent, length - sent),
                Ok(_) | Err(_) => return false,
            }
        }
    }

    fn give_up(&self) {
        self.broken.set(true);
        let dropped = std::mem::take(&mut *self.outgoing.borrow_mut());
        let held: usize = dropped.ready.iter().map(|(_, held)| held).sum();
        self.held_bytes.set(self.held_bytes.get() - held);
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

fn fill(target: &mut [u8], parts: &[&[u8]]) {
    let mut start = 0;
    for part in parts {
        target[start..start + part.len()].copy_from_slice(part);
        start += part.len();
    }
}
