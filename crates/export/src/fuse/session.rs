//! One shard's part of a mounted file: it takes requests, and answers each when it is done.
//!
//! ```text
//!   readable? ──> receive ──> Message ──> Description ──────────────> reply
//!       ^            │           └──────> a task for each ──> File ──> reply
//!       └── nothing ─┘
//! ```
//!
//! A request is received into one buffer of the session, its head apart, so that the data of a write is
//! aligned. A long write takes the buffer with it, a short one is copied out of it. Before either, memory is
//! acquired for what the write holds; until there is some, no further request is taken, and they wait in the
//! kernel.

use std::{
    cell::Cell,
    future::poll_fn,
    io,
    pin::pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
};

use pinstripe_block::{
    BlockService,
    budget::{Budget, Share},
    locks::Locks,
};
use pinstripe_runtime::{Buffer, Signal, block_bytes, shard, uring::fuse};
use zerocopy::{Immutable, IntoBytes};

use super::{
    description::Description,
    file::File,
    request::{Message, PAYLOAD_BYTES_MAX, Request},
    wire::{HEAD_BYTES, ReplyHeader, SeekReply, WriteReply},
};
use crate::errno::{self, error_number};

/// Requests that a shard has under way at most.
const DEPTH: usize = 256;
/// Bytes of the buffer that requests are received into.
const RECEIVE_BYTES: usize = PAYLOAD_BYTES_MAX as usize;
/// Data of a write up to this is copied, so that it doesn't hold the whole buffer.
const COPY_BYTES: usize = 128 << 10;

/// A connection to the kernel, or what stands for it in a test. Errors are numbers.
pub trait Channel: 'static {
    /// Waits until a request may be there.
    fn readable(&self) -> impl Future<Output = Result<(), i32>>;

    /// Takes a request: its first bytes fill `head`, the others go to `rest`. How many they are.
    fn receive(&self, head: &mut [u8; HEAD_BYTES], rest: &mut [u8]) -> Result<usize, i32>;

    /// Answers a request. False if the kernel doesn't want the answer any more.
    fn reply(&self, head: &[u8], data: &[u8]) -> bool;
}

impl Channel for fuse::Channel {
    async fn readable(&self) -> Result<(), i32> {
        fuse::Channel::readable(self).await.map_err(|error| number(&error))
    }

    fn receive(&self, head: &mut [u8; HEAD_BYTES], rest: &mut [u8]) -> Result<usize, i32> {
        fuse::Channel::receive(self, head, rest).map_err(|error| number(&error))
    }

    fn reply(&self, head: &[u8], data: &[u8]) -> bool {
        fuse::Channel::reply(self, head, data).is_ok()
    }
}

fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(errno::IO)
}

/// Why a session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The file isn't mounted any more.
    Unmounted,
    /// By [`Session::stop`].
    Stopped,
    /// The kernel gives no requests, with this error number.
    Refused(i32),
}

/// How often the file is open, for all shards.
#[derive(Debug, Default)]
pub struct OpenFiles(AtomicUsize);

impl OpenFiles {
    /// How often.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn opened(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// A kernel that closes what was never open changes nothing.
    fn closed(&self) {
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
    }
}

/// See the module.
pub struct Session<C, S> {
    channel: C,
    description: Description,
    file: File<S>,
    open: Arc<OpenFiles>,
    under_way: Cell<usize>,
    /// A request has ended.
    room: Signal,
    stopping: Cell<bool>,
    stop: Signal,
}

impl<C: Channel, S: BlockService> Session<C, S> {
    /// Of the file `description` with the bytes of `service`. All shards have `locks` and `open` in common.
    pub fn new(
        channel: C,
        service: S,
        description: Description,
        locks: Arc<Locks>,
        open: Arc<OpenFiles>,
        budget: Arc<Budget>,
    ) -> Rc<Self> {
        Rc::new(Self {
            channel,
            description,
            file: File { service, locks, share: Rc::new(Share::new(budget)) },
            open,
            under_way: Cell::new(0),
            room: Signal::default(),
            stopping: Cell::new(false),
            stop: Signal::default(),
        })
    }

    /// Takes no further requests: [`Session::serve`] ends after those that are under way.
    pub fn stop(&self) {
        self.stopping.set(true);
        self.stop.notify();
        self.room.notify();
    }

    /// Serves until the file isn't mounted any more, or until it is stopped. All that was taken is answered
    /// then.
    pub async fn serve(self: Rc<Self>) -> Ended {
        // The session's own as long as it lives, so it isn't counted with what requests hold.
        let mut rest = shard::buffer(RECEIVE_BYTES);
        let ended = self.receive(&mut rest).await;
        self.room.wait_until(|| self.under_way.get() == 0).await;
        ended
    }

    async fn receive(self: &Rc<Self>, rest: &mut Buffer) -> Ended {
        let mut head = [0; HEAD_BYTES];
        loop {
            self.room.wait_until(|| self.stopping.get() || self.under_way.get() < DEPTH).await;
            if self.stopping.get() {
                return Ended::Stopped;
            }
            match self.channel.receive(&mut head, rest) {
                Ok(length) => {
                    self.begin(&head, length, rest).await;
                    // Others of the shard have their turn, those that were just begun among them.
                    shard::yield_now().await;
                }
                Err(errno::AGAIN) => {
                    if let Err(errno) = self.readable().await {
                        return Ended::Refused(errno);
                    }
                }
                // The process that asked has gone.
                Err(errno::NO_ENTRY | errno::INTERRUPTED) => shard::yield_now().await,
                Err(errno::NO_DEVICE) => return Ended::Unmounted,
                Err(errno) => return Ended::Refused(errno),
            }
        }
    }

    /// Waits for a request or for the end.
    async fn readable(&self) -> Result<(), i32> {
        let mut stop = pin!(self.stop.wait_until(|| self.stopping.get()));
        let mut readable = pin!(self.channel.readable());
        poll_fn(|context| match stop.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => readable.as_mut().poll(context),
        })
        .await
    }

    /// Answers a request, or has a task do so.
    async fn begin(self: &Rc<Self>, head: &[u8; HEAD_BYTES], length: usize, rest: &mut Buffer) {
        let Some(Message { unique, request }) = Message::parse(head, length) else { return };
        let request = match request {
            Ok(request) => request,
            Err(errno) => return self.answer::<[u8; 0]>(unique, Err(errno)),
        };
        match request {
            Request::Read { offset, length } => self.spawn(async move |session| {
                let give = |data: &[u8]| {
                    session.reply(unique, 0, data);
                };
                if let Err(errno) = session.file.read(offset, length, give).await {
                    session.reply(unique, errno, &[]);
                }
            }),
            Request::Write { offset, length, fua } => {
                let (data, memory) = self.take(rest, offset, length).await;
                self.spawn(async move |session| {
                    let written = session.file.write(offset, data, fua).await;
                    session.file.share.give_back(memory);
                    let length = |length| u32::try_from(length).unwrap_or(0);
                    session
                        .answer(unique, written.map(|bytes| WriteReply { length: length(bytes), unused: 0 }));
                });
            }
            Request::Synchronise => self.spawn(async move |session| {
                let flushed = session.file.service.flush().await;
                session.answer(unique, flushed.map(|()| [0; 0]).map_err(error_number));
            }),
            Request::Zero { offset, length, fill } => self.spawn(async move |session| {
                let zeroed = session.file.zero(offset, length, fill, || session.stopping.get()).await;
                session.answer(unique, zeroed.map(|()| [0; 0]));
            }),
            request => self.answer_at_once(unique, request),
        }
    }

    /// Does work in a task.
    fn spawn(self: &Rc<Self>, work: impl AsyncFnOnce(&Self) + 'static) {
        let session = Rc::clone(self);
        self.under_way.set(self.under_way.get() + 1);
        shard::spawn(async move {
            work(&session).await;
            session.under_way.set(session.under_way.get() - 1);
            session.room.notify();
        });
    }

    /// The data of a write, and the memory that is counted for all of the write. It is acquired at once: a
    /// write that holds some never waits for more.
    async fn take(&self, rest: &mut Buffer, offset: u64, length: usize) -> (Buffer, usize) {
        let moved = length > COPY_BYTES;
        // A buffer that goes with the write has another one in its place.
        let bytes = if moved { RECEIVE_BYTES } else { length };
        let memory = block_bytes(bytes) + self.file.memory_to_write(offset, length);
        self.file.share.acquire(memory).await;
        let mut data = shard::buffer(bytes);
        if moved {
            std::mem::swap(rest, &mut data);
            data.truncate(length);
        } else {
            data.copy_from_slice(&rest[..length]);
        }
        (data, memory)
    }

    /// Answers what needs no I/O.
    fn answer_at_once(&self, unique: u64, request: Request) {
        let description = &self.description;
        match request {
            Request::Initialise { revision, abilities } => {
                self.answer(unique, Description::initialise(revision, abilities));
            }
            Request::Attributes => self.answer(unique, Ok(description.attributes())),
            Request::SetAttributes { ownership, size } => {
                self.answer(unique, description.set_attributes(ownership, size));
            }
            Request::Open { writes } => self.open(unique, writes),
            Request::Release => {
                self.open.closed();
                self.answer(unique, Ok([0; 0]));
            }
            Request::Seek { offset, hole } => {
                self.answer(unique, description.seek(offset, hole).map(|offset| SeekReply { offset }));
            }
            Request::Space => self.answer(unique, Ok(description.space())),
            Request::Nothing => self.answer(unique, Ok([0; 0])),
            Request::Silence => {}
            Request::Read { .. } | Request::Write { .. } | Request::Synchronise | Request::Zero { .. } => {
                unreachable!("they have tasks")
            }
        }
    }

    /// An open file counts before its user knows that it has it. One whose user has gone meanwhile is never
    /// closed.
    fn open(&self, unique: u64, writes: bool) {
        match self.description.open(writes) {
            Ok(opened) => {
                self.open.opened();
                if !self.reply(unique, 0, opened.as_bytes()) {
                    self.open.closed();
                }
            }
            Err(errno) => self.answer::<[u8; 0]>(unique, Err(errno)),
        }
    }

    fn answer<T: IntoBytes + Immutable>(&self, unique: u64, result: Result<T, i32>) {
        match result {
            Ok(value) => self.reply(unique, 0, value.as_bytes()),
            Err(errno) => self.reply(unique, errno, &[]),
        };
    }

    /// Sends an answer. It fails if the process that asked, or the file system, has gone.
    fn reply(&self, unique: u64, errno: i32, data: &[u8]) -> bool {
        let length = u32::try_from(size_of::<ReplyHeader>() + data.len()).unwrap_or(u32::MAX);
        self.channel.reply(ReplyHeader { length, error: -errno, unique }.as_bytes(), data)
    }
}
