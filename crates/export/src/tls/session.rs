//! A connection's records, between its stream and what speaks on it.
//!
//! Two tasks use a [`Session`], as they use the stream itself: one receives, one sends. What rustls wants to
//! say of its own (the handshake, alerts, new keys) waits among the records of the sending one, in order.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;

use pinstripe_block::outgoing::{Patience, send_within};
use pinstripe_runtime::{Buffer, Slice, Stream, shard};
use rustls::ServerConnection;

use super::Acceptor;

/// Bytes of records that are received or sent at a time.
const RECORDS_BYTES: usize = 64 << 10;
/// Of what is to be sent, bytes whose records fit there: four whole ones have 22 bytes more each.
const PLAIN_BYTES: usize = RECORDS_BYTES - (4 << 10);

/// See the module.
pub struct Session {
    connection: RefCell<ServerConnection>,
    received: RefCell<Received>,
    /// Why nothing more can be understood.
    failure: RefCell<Option<rustls::Error>>,
}

/// Records that rustls hasn't taken yet.
struct Received {
    /// Absent during a receive, and after one that was given up.
    buffer: Option<Buffer>,
    start: usize,
    end: usize,
}

impl Session {
    /// Begins; the client is to speak first.
    pub fn new(acceptor: &Acceptor) -> Result<Self, rustls::Error> {
        let mut connection = ServerConnection::new(Arc::clone(&acceptor.config))?;
        // More than is ever handed over at once.
        connection.set_buffer_limit(Some(RECORDS_BYTES));
        let received = Received { buffer: Some(shard::buffer(RECORDS_BYTES)), start: 0, end: 0 };
        Ok(Self {
            connection: RefCell::new(connection),
            received: RefCell::new(received),
            failure: RefCell::default(),
        })
    }

    /// Shakes hands with the client. `wake` has the sender look for records.
    pub async fn shake_hands<T: Stream + ?Sized>(&self, stream: &T, wake: impl Fn()) -> Result<(), String> {
        while self.connection.borrow().is_handshaking() {
            let fed = self.feed(&wake);
            if let Some(failure) = self.failure.borrow().as_ref() {
                return Err(failure.to_string());
            }
            if !fed && !self.more(stream).await {
                return Err("the client hung up".to_owned());
            }
        }
        Ok(())
    }

    /// Receives what the client said into the front of `buffer`. 0 bytes at the end.
    pub async fn receive<T: Stream + ?Sized>(
        &self,
        stream: &T,
        mut buffer: Buffer,
        wake: impl Fn(),
    ) -> (usize, Buffer) {
        let mut filled = 0;
        loop {
            match self.connection.borrow_mut().reader().read(&mut buffer[filled..]) {
                // Nothing comes after the client's last word.
                Ok(0) => return (filled, buffer),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return (filled, buffer),
            }
            if filled == buffer.len() {
                return (filled, buffer);
            }
            if self.feed(&wake) {
                continue;
            }
            let is_over = filled > 0 || self.failure.borrow().is_some();
            if is_over || !self.more(stream).await {
                return (filled, buffer);
            }
        }
    }

    /// Gives rustls some of the received records. False if there are none, or if it can't understand them.
    fn feed(&self, wake: impl Fn()) -> bool {
        let mut received = self.received.borrow_mut();
        let Received { buffer: Some(buffer), start, end } = &mut *received else { return false };
        if start == end || self.failure.borrow().is_some() {
            return false;
        }
        let mut connection = self.connection.borrow_mut();
        let taken = connection.read_tls(&mut &buffer[*start..*end]);
        let processed = match taken {
            Ok(taken) => {
                *start += taken;
                connection.process_new_packets().map(|_| ())
            }
            Err(error) => Err(rustls::Error::General(error.to_string())),
        };
        if connection.wants_write() {
            wake();
        }
        if let Err(error) = processed {
            self.failure.replace(Some(error));
            return false;
        }
        true
    }

    /// Receives records. False at the connection's end.
    async fn more<T: Stream + ?Sized>(&self, stream: &T) -> bool {
        let Some(buffer) = self.received.borrow_mut().buffer.take() else { return false };
        let room = buffer.len();
        let outcome = stream.receive(buffer).await;
        shard::note_arrival();
        let end = outcome.result.ok().filter(|count| *count <= room).unwrap_or(0);
        self.received.replace(Received { buffer: outcome.buffer, start: 0, end });
        end > 0
    }

    /// Whether rustls has something to say.
    pub fn wants_to_send(&self) -> bool {
        self.connection.borrow().wants_write()
    }

    /// Sends `plain`, and what rustls wants to say. False if the client can't be reached any more, or takes
    /// it too slowly. `taken` is told of each part that it takes how many bytes that are.
    pub async fn send<T: Stream + ?Sized>(&self, stream: &T, plain: &[u8], taken: impl Fn(usize)) -> bool {
        let mut rest = plain;
        let mut patience = Patience::new(plain.len());
        loop {
            // What waits goes first, so that there is room.
            while let Some(records) = self.records() {
                if !send_within(stream, records, &mut patience, &taken).await {
                    return false;
                }
            }
            if rest.is_empty() {
                return true;
            }
            let part = &rest[..rest.len().min(PLAIN_BYTES)];
            match self.connection.borrow_mut().writer().write(part) {
                Ok(taken) if taken > 0 => rest = &rest[taken..],
                _ => return false,
            }
        }
    }

    /// Says that nothing more will come.
    pub async fn close<T: Stream + ?Sized>(&self, stream: &T) {
        self.connection.borrow_mut().send_close_notify();
        self.send(stream, &[], |_| ()).await;
    }

    fn records(&self) -> Option<Slice> {
        let mut connection = self.connection.borrow_mut();
        if !connection.wants_write() {
            return None;
        }
        let mut buffer = shard::buffer(RECORDS_BYTES);
        let mut filled = 0;
        while connection.wants_write() && filled < buffer.len() {
            // Memory takes what there is room for.
            filled += connection.write_tls(&mut &mut buffer[filled..]).ok().filter(|count| *count > 0)?;
        }
        buffer.truncate(filled);
        Some(buffer.freeze())
    }
}
