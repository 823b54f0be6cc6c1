//! Replies of the transmission phase, encoded into fixed arrays.

use zerocopy::IntoBytes;

use super::wire::{
    CHUNK_MAGIC, CONTEXT_ALLOCATION_ID, ChunkHeader, ErrorCode, SIMPLE_REPLY_MAGIC, SimpleReplyHeader, chunk,
};

/// Bytes of the longest reply without a READ's data: a chunk header, an error, a message.
const REPLY_BYTES_MAX: usize = 96;
/// Longest message in an error reply.
const MESSAGE_BYTES_MAX: usize = REPLY_BYTES_MAX - size_of::<ChunkHeader>() - 6;

/// The bytes of a reply, without the data that follows a READ's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    bytes: [u8; REPLY_BYTES_MAX],
    length: u8,
}

impl Reply {
    /// The bytes to be sent.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    const fn empty() -> Self {
        Self { bytes: [0; REPLY_BYTES_MAX], length: 0 }
    }

    /// Appends `part`. All callers are in this module and stay below the array's size; what didn't fit would
    /// be cut rather than written past the end.
    fn push(mut self, part: &[u8]) -> Self {
        let start = usize::from(self.length);
        let taken = part.len().min(REPLY_BYTES_MAX - start);
        self.bytes[start..start + taken].copy_from_slice(&part[..taken]);
        self.length = u8::try_from(start + taken).unwrap_or(u8::MAX);
        self
    }
}

/// Encodes replies as this connection negotiated them.
///
/// Structured connections get structured replies for READs (the protocol demands it), for BLOCK_STATUS and
/// for errors (so that a message can go along), and simple ones for the success of all else, which are
/// shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replies {
    structured: bool,
}

impl Replies {
    /// An encoder for a connection with or without structured replies.
    pub const fn new(structured: bool) -> Self {
        Self { structured }
    }

    /// Success of a request that returns no data.
    pub fn done(cookie: u64) -> Reply {
        simple(cookie, 0)
    }

    /// Success of a READ: the caller sends `length` bytes of data right after these. All of them must already
    /// be at hand, since an error can't be reported any more. One chunk holds all, so DF is always honoured.
    pub fn read(self, cookie: u64, offset: u64, length: u32) -> Reply {
        if !self.structured {
            return simple(cookie, 0);
        }
        if length == 0 {
            // A content chunk must not be empty.
            return chunk_header(cookie, chunk::NONE, 0);
        }
        // A READ is at most PAYLOAD_BYTES_MAX long, far from the end of 32 bits.
        chunk_header(cookie, chunk::OFFSET_DATA, length.saturating_add(8)).push(&offset.to_be_bytes())
    }

    /// Success of BLOCK_STATUS: one extent of `length` bytes that is allocated and of which we don't know
    /// more.
    pub fn allocated(cookie: u64, length: u32) -> Reply {
        chunk_header(cookie, chunk::BLOCK_STATUS, 12)
            .push(&CONTEXT_ALLOCATION_ID.to_be_bytes())
            .push(&length.to_be_bytes())
            .push(&[0; 4])
    }

    /// Failure of any request. `message` is for people and goes along where the connection allows it.
    pub fn error(self, cookie: u64, error: ErrorCode, message: &str) -> Reply {
        if !self.structured {
            return simple(cookie, error.number());
        }
        let end = message.floor_char_boundary(MESSAGE_BYTES_MAX);
        let message = &message.as_bytes()[..end];
        let length = u16::try_from(message.len()).unwrap_or(0);
        chunk_header(cookie, chunk::ERROR, 6 + u32::from(length))
            .push(&error.number().to_be_bytes())
            .push(&length.to_be_bytes())
            .push(message)
    }
}

fn simple(cookie: u64, error: u32) -> Reply {
    let header =
        SimpleReplyHeader { magic: SIMPLE_REPLY_MAGIC.into(), error: error.into(), cookie: cookie.into() };
    Reply::empty().push(header.as_bytes())
}

/// Header of a reply's only chunk.
fn chunk_header(cookie: u64, kind: u16, length: u32) -> Reply {
    let header = ChunkHeader {
        magic: CHUNK_MAGIC.into(),
        flags: chunk::FLAG_DONE.into(),
        kind: kind.into(),
        cookie: cookie.into(),
        length: length.into(),
    };
    Reply::empty().push(header.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_too_long_is_cut_between_characters() {
        let message = "ä".repeat(200);
        let reply = Replies::new(true).error(7, ErrorCode::Io, &message);
        let length = u16::from_be_bytes([reply.bytes()[24], reply.bytes()[25]]);
        assert_eq!(reply.bytes().len(), 26 + usize::from(length));
        assert_eq!(&reply.bytes()[16..20], (6 + u32::from(length)).to_be_bytes());
        assert!(str::from_utf8(&reply.bytes()[26..]).is_ok());
    }
}
