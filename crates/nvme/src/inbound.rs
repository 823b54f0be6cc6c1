//! A connection's receiving half: bytes become PDUs, and data goes to its place. Both ends use it.
//!
//! Headers and small data come through a staging buffer, many at a time. Of large data only what came along
//! with its header is copied; the rest is received straight to where it belongs.

use std::rc::Rc;

use pinstripe_block::first_of::{First, first_of};
use pinstripe_runtime::{Buffer, Outcome, shard};

use crate::framing::{Event, Framer, Pdu, Role};
use crate::link::Link;
use crate::wire::pdu::FatalError;

const STAGING_BYTES: usize = 64 << 10;
/// Bytes received at a time while data is large: little more than a header, since what is staged is copied.
const STAGING_SMALL: usize = 4 << 10;
/// Data of a PDU from which on data counts as large.
const LARGE_DATA: u32 = 32 << 10;
/// Data that is still missing and worth a receive of its own.
const DIRECT_BYTES: usize = 16 << 10;

/// Why there is no further PDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The connection has closed.
    Closed,
    /// The peer broke the protocol: why, and which byte of the header.
    Fatal(FatalError, u32),
}

/// Whether the connection is to be left where it stands; `None` where it can't be.
pub(crate) type MayLeave<'a> = Option<&'a dyn Fn() -> bool>;

/// See the module.
pub(crate) struct Inbound {
    link: Rc<Link>,
    pub framer: Framer,
    /// Absent only during a receive.
    staging: Option<Buffer>,
    start: usize,
    end: usize,
    window: usize,
}

impl Inbound {
    pub fn new(link: Rc<Link>, role: Role) -> Self {
        Self::with(link, role, &[])
    }

    /// Begins between two PDUs, with bytes that were received before, and with what was agreed.
    pub fn resumed(link: Rc<Link>, role: Role, received: &[u8], digests: (bool, bool)) -> Self {
        let mut inbound = Self::with(link, role, received);
        inbound.framer.set_digests(digests.0, digests.1);
        inbound
    }

    /// Begins with all of these bytes, of which there may be more than are received at a time.
    fn with(link: Rc<Link>, role: Role, received: &[u8]) -> Self {
        let mut staging = shard::buffer(received.len().max(STAGING_BYTES));
        staging[..received.len()].copy_from_slice(received);
        Self {
            link,
            framer: Framer::new(role),
            staging: Some(staging),
            start: 0,
            end: received.len(),
            window: STAGING_BYTES,
        }
    }

    /// What was received of the next PDUs; `None` within one.
    pub fn begun(&self) -> Option<Vec<u8>> {
        Some([self.framer.begun()?, self.staged()].concat())
    }

    fn staged(&self) -> &[u8] {
        self.staging.as_ref().map_or(&[], |staging| &staging[self.start..self.end])
    }

    /// The next PDU. All data of the one before must have been taken.
    pub async fn next(&mut self) -> Result<Pdu, Ended> {
        self.next_or_leave(None).await?.ok_or(Ended::Closed)
    }

    /// The same. `None` if nothing more has come when the connection `may_leave`; that is looked at again
    /// when the link says so.
    pub async fn next_or_leave(&mut self, may_leave: MayLeave<'_>) -> Result<Option<Pdu>, Ended> {
        match self.event(may_leave).await? {
            Some(Event::Pdu(pdu)) => Ok(Some(pdu)),
            Some(Event::Fatal(error, at)) => Err(Ended::Fatal(error, at)),
            // It is asked for by `take` only.
            Some(Event::DataDigest(_)) => Err(Ended::Fatal(FatalError::Sequence, 0)),
            None => Ok(None),
        }
    }

    async fn event(&mut self, may_leave: MayLeave<'_>) -> Result<Option<Event>, Ended> {
        loop {
            if self.start == self.end && !self.more_or_leave(may_leave).await? {
                return Ok(None);
            }
            let staged = self.staging.as_ref().map_or(&[][..], |staging| &staging[self.start..self.end]);
            let step = self.framer.receive(staged);
            self.start += step.consumed;
            if step.event.is_some() {
                return Ok(step.event);
            }
            if step.consumed == 0 && self.start < self.end {
                return Err(Ended::Closed);
            }
        }
    }

    /// Receives more when all was taken.
    async fn more(&mut self) -> Result<(), Ended> {
        self.more_or_leave(None).await.map(drop)
    }

    /// The same. False if nothing more has come when the connection `may_leave`.
    async fn more_or_leave(&mut self, may_leave: MayLeave<'_>) -> Result<bool, Ended> {
        let mut staging = self.staging.take().ok_or(Ended::Closed)?;
        let part = staging.split_to(self.window.min(STAGING_BYTES));
        let mut receiving = self.link.stream.receive(part);
        let mut leaves = false;
        let outcome = if let Some(may_leave) = may_leave {
            match first_of(&mut receiving, self.link.to_leave(may_leave)).await {
                First::One(outcome) => outcome,
                First::Other(()) => {
                    leaves = true;
                    self.link.stream.interrupt(&receiving);
                    receiving.await
                }
            }
        } else {
            receiving.await
        };
        let (received, part) = self.taken(outcome, self.window.min(STAGING_BYTES));
        let mut part = part.ok_or(Ended::Closed)?;
        part.unsplit(staging);
        self.staging = Some(part);
        (self.start, self.end) = (0, received);
        match received {
            0 if leaves && self.link.alive() => Ok(false),
            0 => Err(Ended::Closed),
            _ => Ok(true),
        }
    }

    /// Receives into the front of `buffer`. 0 bytes at the connection's end.
    async fn receive(&self, buffer: Buffer) -> (usize, Option<Buffer>) {
        let room = buffer.len();
        self.taken(self.link.stream.receive(buffer).await, room)
    }

    /// What was received where there was this room.
    fn taken(&self, outcome: Outcome, room: usize) -> (usize, Option<Buffer>) {
        // A stream that claims more than there was room for is broken.
        let received = outcome.result.ok().filter(|count| *count <= room).unwrap_or(0);
        self.link.count_received(received);
        (if self.link.alive() { received } else { 0 }, outcome.buffer)
    }

    /// Puts the data of the last PDU into `buffer` from `start` on, where there must be room for it. Gives
    /// the buffer back, unless the stream has kept it, and says whether the data's digest, if there is one,
    /// fits.
    pub async fn data(&mut self, buffer: Buffer, start: usize) -> (Option<Buffer>, Result<bool, Ended>) {
        let mut buffer = Some(buffer);
        let filled = self.fill(&mut buffer, start).await;
        let intact = match filled {
            Ok(true) => self.digest().await,
            Ok(false) => Ok(true),
            Err(ended) => Err(ended),
        };
        (buffer, intact)
    }

    /// Says whether a digest follows.
    async fn fill(&mut self, buffer: &mut Option<Buffer>, start: usize) -> Result<bool, Ended> {
        let length = self.framer.data_left() as usize;
        let room = buffer.as_ref().map_or(0, Buffer::len);
        if start.checked_add(length).is_none_or(|end| end > room) {
            return Err(Ended::Fatal(FatalError::DataOutOfRange, 12));
        }
        self.window = if self.framer.data_left() >= LARGE_DATA { STAGING_SMALL } else { STAGING_BYTES };
        let mut filled = 0;
        let mut digest = false;
        while filled < length {
            let at = start + filled;
            let wanted = length - filled;
            let mut whole = buffer.take().ok_or(Ended::Closed)?;
            let staged = self.staged();
            let count = if staged.is_empty() && wanted < DIRECT_BYTES {
                *buffer = Some(whole);
                self.more().await?;
                continue;
            } else if staged.is_empty() {
                let mut head = whole.split_to(at);
                let middle = whole.split_to(wanted);
                let (count, middle) = self.receive(middle).await;
                head.unsplit(middle.ok_or(Ended::Closed)?);
                head.unsplit(whole);
                whole = head;
                count
            } else {
                let count = staged.len().min(wanted);
                whole[at..at + count].copy_from_slice(&staged[..count]);
                self.start += count;
                count
            };
            let received = if count == 0 { None } else { self.framer.data_received(&whole[at..at + count]) };
            *buffer = Some(whole);
            digest = received.ok_or(Ended::Closed)?;
            filled += count;
        }
        Ok(digest)
    }

    /// Throws the data of the last PDU away.
    pub async fn skip_data(&mut self) -> Result<(), Ended> {
        let mut digest = false;
        while self.framer.data_left() > 0 {
            if self.start == self.end {
                self.more().await?;
            }
            let count = (self.end - self.start).min(self.framer.data_left() as usize);
            let staged =
                self.staging.as_ref().map_or(&[][..], |staging| &staging[self.start..self.start + count]);
            digest = self.framer.data_received(staged).ok_or(Ended::Closed)?;
            self.start += count;
        }
        if digest {
            self.digest().await?;
        }
        Ok(())
    }

    async fn digest(&mut self) -> Result<bool, Ended> {
        match self.event(None).await? {
            Some(Event::DataDigest(intact)) => Ok(intact),
            _ => Err(Ended::Closed),
        }
    }
}
