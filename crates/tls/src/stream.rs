//! A stream of what the peer says, over the stream of its records.

use std::{
    cell::{Cell, RefCell},
    fmt,
    net::IpAddr,
    rc::Rc,
};

use pinstripe_block::{
    first_of::{First, first_of},
    outgoing::send_whole,
    wake::Wake,
};
use pinstripe_runtime::{
    Buffer, Completion, DeviceError, DeviceErrorKind, Slice, Stream, Submission, completion::Payload, shard,
};

use crate::session::{Key, Keys, Read, Session, TlsError};

/// Bytes of records that are received at a time.
const RECORDS_BYTES: usize = 64 << 10;
/// Bytes that are made records at a time.
const PLAIN_BYTES: usize = 60 << 10;
/// Time for a handshake.
const HANDSHAKE_NANOSECONDS: u64 = 5_000_000_000;

/// A connection of TLS: nothing between its ends can read or change its bytes.
pub struct TlsStream(Rc<Inner>);

struct Inner {
    stream: Rc<dyn Stream>,
    session: RefCell<Session>,
    /// For records; absent during a receive.
    records: RefCell<Option<Buffer>>,
    /// The receive that is under way shall end.
    interrupted: Cell<bool>,
    interruption: Wake,
    /// Another process goes on.
    left: Cell<bool>,
}

/// What another process needs to go on with a connection, its keys among it.
#[derive(Clone, PartialEq, Eq)]
pub struct Left {
    /// What s2n-tls has agreed on, and how far it is.
    pub state: Vec<u8>,
    /// The beginning of what is to be received next.
    pub received: Vec<u8>,
}

impl fmt::Debug for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Left(..)")
    }
}

/// What came of a wait for records.
enum More {
    /// Some, or it is known that there will be none.
    Fed,
    /// Nothing, and it ended on purpose.
    Interrupted,
}

impl TlsStream {
    /// The end that connected, with this key. It has to shake hands.
    pub fn client(stream: Rc<dyn Stream>, key: &Key) -> Result<Self, TlsError> {
        Ok(Self::of(stream, Session::client(key)?))
    }

    /// The end that was connected to, with the one of these keys that the peer names. It has to shake hands.
    pub fn server(stream: Rc<dyn Stream>, keys: &Keys) -> Result<Self, TlsError> {
        Ok(Self::of(stream, Session::server(keys)?))
    }

    /// Goes on as the end that was connected to, where another process has left it.
    pub fn resumed(stream: Rc<dyn Stream>, keys: &Keys, left: &Left) -> Result<Self, TlsError> {
        Ok(Self::of(stream, Session::resumed(keys, &left.state, &left.received)?))
    }

    fn of(stream: Rc<dyn Stream>, session: Session) -> Self {
        Self(Rc::new(Inner {
            stream,
            session: RefCell::new(session),
            records: RefCell::default(),
            interrupted: Cell::default(),
            interruption: Wake::default(),
            left: Cell::default(),
        }))
    }

    /// Shakes hands: the name of the key that both ends have.
    pub async fn shake_hands(&self) -> Result<Vec<u8>, TlsError> {
        let shaken = shard::timeout(HANDSHAKE_NANOSECONDS, self.0.shake_hands()).await;
        shaken.unwrap_or(Err(TlsError::TimedOut))?;
        self.0.session.borrow().identity()
    }

    /// Leaves the connection to another process. Nothing is under way, and the last receive was interrupted.
    pub fn leave(&self) -> Result<Left, TlsError> {
        let (state, received) = self.0.session.borrow().leave()?;
        self.0.left.set(true);
        Ok(Left { state, received })
    }
}

impl Drop for TlsStream {
    /// A receive that is under way would hold the connection as long as the peer says nothing.
    fn drop(&mut self) {
        if !self.0.left.get() {
            self.0.stream.shutdown();
        }
    }
}

impl Inner {
    async fn shake_hands(&self) -> Result<(), TlsError> {
        loop {
            let result = self.session.borrow_mut().shake_hands();
            // The last records, or why there will be no more.
            let records = self.session.borrow_mut().take_records();
            let sent = records.is_empty() || send_whole(&*self.stream, slice(&records)).await;
            if result? {
                return Ok(());
            }
            if !sent {
                return Err(TlsError::Closed);
            }
            self.more().await;
        }
    }

    /// Receives records, or notes that there will be no more.
    async fn more(&self) -> More {
        let buffer = self.records.borrow_mut().take().unwrap_or_else(|| shard::buffer(RECORDS_BYTES));
        let room = buffer.len();
        let mut receiving = self.stream.receive(buffer);
        let order = self.interruption.wait_for(|| self.interrupted.get().then_some(()));
        let (outcome, interrupted) = match first_of(&mut receiving, order).await {
            First::One(outcome) => (outcome, false),
            First::Other(()) => {
                self.stream.interrupt(&receiving);
                (receiving.await, true)
            }
        };
        if interrupted && outcome.result.is_err() {
            self.records.replace(outcome.buffer);
            return More::Interrupted;
        }
        let count = outcome.result.ok().filter(|count| *count <= room).unwrap_or(0);
        let mut session = self.session.borrow_mut();
        match &outcome.buffer {
            Some(buffer) if count > 0 => session.feed(&buffer[..count]),
            _ => session.close(),
        }
        self.records.replace(outcome.buffer);
        More::Fed
    }

    /// What the peer said, into the front of `buffer`: how much; `None` if more records are needed.
    fn read(&self, buffer: &mut [u8]) -> Option<Result<usize, DeviceError>> {
        let (mut session, mut filled) = (self.session.borrow_mut(), 0);
        while filled < buffer.len() {
            match session.read(&mut buffer[filled..]) {
                Ok(Read::Bytes(count)) => filled += count,
                Ok(Read::Nothing) => return (filled > 0).then_some(Ok(filled)),
                // It comes again, and alone.
                Err(_) if filled == 0 => return Some(Err(DeviceError::of(DeviceErrorKind::Other))),
                Ok(Read::End) | Err(_) => break,
            }
        }
        Some(Ok(filled))
    }

    async fn fill(&self, completion: Completion) {
        let result = loop {
            if matches!(self.more().await, More::Interrupted) {
                break Err(DeviceError::of(DeviceErrorKind::Other));
            }
            let read = completion.with_payload(|payload| match payload {
                Payload::Buffer(buffer) => self.read(buffer),
                _ => Some(Err(DeviceError::of(DeviceErrorKind::Invalid))),
            });
            if let Some(result) = read {
                break result;
            }
        };
        completion.finish(result);
    }
}

fn slice(bytes: &[u8]) -> Slice {
    let mut buffer = shard::buffer(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer.freeze()
}

impl Stream for TlsStream {
    fn receive(&self, mut buffer: Buffer) -> Submission {
        // An order was meant for the receive before.
        self.0.interrupted.set(false);
        if let Some(result) = self.0.read(&mut buffer) {
            return Submission::done(result, Some(buffer));
        }
        let (submission, completion) = Submission::pending(Payload::Buffer(buffer));
        let inner = Rc::clone(&self.0);
        shard::spawn(async move { inner.fill(completion).await });
        submission
    }

    fn send(&self, data: Slice) -> Submission {
        let taken = data.len().min(PLAIN_BYTES);
        let written = self.0.session.borrow_mut().write(&data[..taken]);
        if written.is_err() {
            return Submission::done(Err(DeviceError::of(DeviceErrorKind::Other)), None);
        }
        let records = slice(&self.0.session.borrow_mut().take_records());
        let (submission, completion) = Submission::pending(Payload::Slice(data));
        let inner = Rc::clone(&self.0);
        shard::spawn(async move {
            let sent = send_whole(&*inner.stream, records).await;
            completion.finish(if sent { Ok(taken) } else { Err(DeviceError::of(DeviceErrorKind::Gone)) });
        });
        submission
    }

    fn interrupt(&self, _: &Submission) {
        self.0.interrupted.set(true);
        self.0.interruption.wake();
    }

    /// Without a last word of TLS's: what NVMe says tells its peer what is complete.
    fn shutdown(&self) {
        self.0.stream.shutdown();
    }

    fn has_hung_up(&self) -> bool {
        self.0.stream.has_hung_up()
    }

    fn peer(&self) -> Option<IpAddr> {
        self.0.stream.peer()
    }
}
