//! An NBD client over a simulated connection, by the protocol's numbers and none of the server's code.
//!
//! Several users may share a [`Line`]: requests go out one after the other, answers come back in any order. A
//! line dies when its stream does; then it is unknown what became of the requests that were not answered.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

use pinstripe_runtime::{Signal, Slice, Stream, shard};

use crate::SimStream;

const GREETING: &[u8; 18] = b"NBDMAGICIHAVEOPT\x00\x03";
/// Fixed newstyle, no zeroes.
const CLIENT_FLAGS: u32 = 3;
const OPTION_REPLY_BYTES: usize = 20;
const OPTION_ACK: u32 = 1;
const OPTION_GO: u32 = 7;
const OPTION_STRUCTURED: u32 = 8;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;
const CHUNK_OFFSET_DATA: u16 = 1;
const CHUNK_ERROR: u16 = 0x8001;

/// It is durable when it is answered.
pub(crate) const FORCED: u16 = 1;
/// Zeroes stay allocated.
pub(crate) const NO_HOLE: u16 = 2;
/// Zeroes that are no faster than a write are refused.
pub(crate) const FAST_ZERO: u16 = 1 << 4;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
    Trim = 4,
    WriteZeroes = 6,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The server says no: this error.
    Refused(u32),
    /// The line is dead: what became of the request is unknown.
    Cut,
}

struct Call {
    length: usize,
    answer: Option<Result<Vec<u8>, u32>>,
}

/// A client's end of a connection in its transmission phase.
pub(crate) struct Line {
    stream: Rc<SimStream>,
    outgoing: RefCell<VecDeque<Slice>>,
    calls: RefCell<BTreeMap<u64, Call>>,
    cookies: Cell<u64>,
    leaving: Cell<bool>,
    dead: Cell<bool>,
    changed: Signal,
}

impl Line {
    /// Greets the server and asks for its export. `None` if it hangs up.
    pub(crate) async fn dial(stream: Rc<SimStream>, structured: bool) -> Option<Rc<Self>> {
        let greeting = receive(&stream, GREETING.len()).await?;
        assert_eq!(greeting, GREETING, "the greeting of a server");
        let mut bytes = CLIENT_FLAGS.to_be_bytes().to_vec();
        if structured {
            bytes.extend(option(OPTION_STRUCTURED, &[]));
        }
        // The first export, whatever its name; no facts are asked for.
        bytes.extend(option(OPTION_GO, &[0; 6]));
        send(&stream, &bytes).await?;
        loop {
            let header = receive(&stream, OPTION_REPLY_BYTES).await?;
            let (to, kind, length) = (word(&header, 8), word(&header, 12), word(&header, 16));
            receive(&stream, length as usize).await?;
            if (to, kind) == (OPTION_GO, OPTION_ACK) {
                break;
            }
            assert!(kind < 1 << 31, "option {to} was refused: {kind:#x}");
        }
        let line = Rc::new(Self {
            stream,
            outgoing: RefCell::default(),
            calls: RefCell::default(),
            cookies: Cell::new(1),
            leaving: Cell::new(false),
            dead: Cell::new(false),
            changed: Signal::default(),
        });
        let (sender, receiver) = (Rc::clone(&line), Rc::clone(&line));
        shard::spawn(async move { sender.send_all().await });
        shard::spawn(async move { receiver.receive_all().await });
        Some(line)
    }

    /// Whether nothing comes back any more.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.get() || self.leaving.get()
    }

    /// Breaks the connection, in the middle of whatever is under way.
    pub(crate) fn reset(&self) {
        self.stream.reset();
        self.die();
    }

    /// Closes it without a word, as the death of a client does.
    pub(crate) fn close(&self) {
        self.stream.shutdown();
        self.die();
    }

    /// Says good-bye, as a client does that has all its answers.
    pub(crate) fn leave(&self) {
        self.leaving.set(true);
        self.changed.notify();
    }

    fn die(&self) {
        self.dead.set(true);
        self.outgoing.borrow_mut().clear();
        self.changed.notify();
    }

    /// Asks for something and waits for the answer. `length` counts for all but flushes.
    pub(crate) async fn call(
        &self,
        command: Command,
        flags: u16,
        offset: u64,
        length: usize,
        payload: Option<&[u8]>,
    ) -> Result<Vec<u8>, Trouble> {
        if self.is_dead() {
            return Err(Trouble::Cut);
        }
        let cookie = self.cookies.replace(self.cookies.get() + 1);
        let expected = if command == Command::Read { length } else { 0 };
        self.calls.borrow_mut().insert(cookie, Call { length: expected, answer: None });
        let message = request(flags, command, cookie, offset, length, payload);
        self.outgoing.borrow_mut().push_back(message);
        self.changed.notify();
        let answer = self
            .changed
            .wait_for(|| {
                let answer = self.calls.borrow_mut().get_mut(&cookie).and_then(|call| call.answer.take());
                match answer {
                    Some(answer) => Some(answer.map_err(Trouble::Refused)),
                    None if self.dead.get() => Some(Err(Trouble::Cut)),
                    None => None,
                }
            })
            .await;
        self.calls.borrow_mut().remove(&cookie);
        answer
    }

    async fn send_all(&self) {
        loop {
            let next = || {
                let next = self.outgoing.borrow_mut().pop_front();
                (next.is_some() || self.dead.get() || self.leaving.get()).then_some(next)
            };
            let Some(slice) = self.changed.wait_for(next).await else { break };
            if send_slice(&self.stream, slice).await.is_none() {
                return self.die();
            }
        }
        if self.leaving.get() && !self.dead.get() {
            let farewell = request(0, Command::Disconnect, 0, 0, 0, None);
            // Whether it arrives or not, nothing comes after it.
            let _ = send_slice(&self.stream, farewell).await;
        }
    }

    async fn receive_all(&self) {
        while self.receive_answer().await.is_some() {
            self.changed.notify();
        }
        self.stream.shutdown();
        self.die();
    }

    async fn receive_answer(&self) -> Option<()> {
        let (cookie, answer) = match word(&receive(&self.stream, 4).await?, 0) {
            SIMPLE_REPLY_MAGIC => self.simple_reply().await?,
            CHUNK_MAGIC => self.chunk().await?,
            magic => unreachable!("a reply begins with {magic:#x}"),
        };
        if let Some(call) = self.calls.borrow_mut().get_mut(&cookie) {
            assert!(call.answer.is_none(), "a second answer to {cookie}");
            call.answer = Some(answer);
        }
        Some(())
    }

    async fn simple_reply(&self) -> Option<(u64, Result<Vec<u8>, u32>)> {
        let rest = receive(&self.stream, 12).await?;
        let (error, cookie) = (word(&rest, 0), long(&rest, 4));
        if error != 0 {
            return Some((cookie, Err(error)));
        }
        let length = self.calls.borrow().get(&cookie).map_or(0, |call| call.length);
        Some((cookie, Ok(receive(&self.stream, length).await?)))
    }

    /// This server answers with one chunk.
    async fn chunk(&self) -> Option<(u64, Result<Vec<u8>, u32>)> {
        let rest = receive(&self.stream, 16).await?;
        let kind = u16::from_be_bytes([rest[2], rest[3]]);
        let (cookie, length) = (long(&rest, 4), word(&rest, 12));
        let payload = receive(&self.stream, length as usize).await?;
        Some(match kind {
            CHUNK_OFFSET_DATA => (cookie, Ok(payload[8..].to_vec())),
            CHUNK_ERROR => (cookie, Err(word(&payload, 0))),
            _ => (cookie, Ok(Vec::new())),
        })
    }
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend(low(data.len()).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn request(
    flags: u16,
    command: Command,
    cookie: u64,
    offset: u64,
    length: usize,
    payload: Option<&[u8]>,
) -> Slice {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend((command as u16).to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(low(length).to_be_bytes());
    bytes.extend(payload.unwrap_or_default());
    copy(&bytes)
}

fn low(length: usize) -> u32 {
    u32::try_from(length).unwrap_or_else(|_| unreachable!("a request of the swarm is small"))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map_or(0, u32::from_be_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_be_bytes)
}

fn copy(bytes: &[u8]) -> Slice {
    let mut buffer = shard::buffer(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer.freeze()
}

async fn send(stream: &SimStream, bytes: &[u8]) -> Option<()> {
    send_slice(stream, copy(bytes)).await
}

/// Sends all of it, or gives `None` if the line is dead.
async fn send_slice(stream: &SimStream, mut rest: Slice) -> Option<()> {
    while !rest.is_empty() {
        let sent = stream.send(rest.clone()).await.result.ok().filter(|sent| *sent > 0)?;
        rest = rest.slice(sent, rest.len() - sent);
    }
    Some(())
}

/// Receives so many bytes, or gives `None` if they don't come.
async fn receive(stream: &SimStream, length: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let outcome = stream.receive(shard::buffer(length - bytes.len())).await;
        let count = outcome.result.ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&outcome.buffer.as_deref()?[..count]);
    }
    Some(bytes)
}
