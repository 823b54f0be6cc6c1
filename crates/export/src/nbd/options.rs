//! The data of options, parsed with bounds, and the replies to options.

use zerocopy::IntoBytes;

use super::info::ExportInfo;
use super::wire::{
    self, OPTION_REPLY_MAGIC, OptionReplyHeader, PAYLOAD_BYTES_MAX, STRING_BYTES_MAX, option_reply,
};

/// Why an option's data is refused; becomes an error reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused {
    /// [`option_reply`]
    pub kind: u32,
    /// For the person before the client.
    pub message: &'static str,
}

impl Refused {
    /// The option isn't known here.
    pub const UNSUPPORTED: Self =
        Self::new(option_reply::ERR_UNSUP, "this server does not support the option");
    /// There is no such export.
    pub const UNKNOWN: Self = Self::new(option_reply::ERR_UNKNOWN, "there is no export of this name");
    /// The server is stopping.
    pub const SHUTDOWN: Self = Self::new(option_reply::ERR_SHUTDOWN, "the server is stopping");
    /// The data is longer than this server keeps.
    pub const TOO_BIG: Self = Self::new(option_reply::ERR_TOO_BIG, "the option's data is too long");
    /// The option takes no data.
    pub const DATA: Self = Self::new(option_reply::ERR_INVALID, "the option takes no data");
    /// Nothing else is said before TLS has begun.
    pub const TLS_REQUIRED: Self =
        Self::new(option_reply::ERR_TLS_REQD, "this server serves nothing without TLS");
    /// TLS has begun already.
    pub const TLS_ACTIVE: Self = Self::new(option_reply::ERR_INVALID, "the connection has TLS already");
    /// Metadata contexts need structured replies.
    pub const NOT_STRUCTURED: Self = Self::new(
        option_reply::ERR_INVALID,
        "metadata contexts need structured replies; negotiate those first",
    );
    const MALFORMED: Self = Self::new(option_reply::ERR_INVALID, "the option's data does not fit its length");
    const NAME: Self = Self::new(option_reply::ERR_TOO_BIG, "the name is longer than 4096 bytes");

    const fn new(kind: u32, message: &'static str) -> Self {
        Self { kind, message }
    }
}

/// Takes bytes off the front of an option's data, never past its end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, length: usize) -> Result<&'a [u8], Refused> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Refused::MALFORMED)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, Refused> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Refused::MALFORMED)?;
        self.0 = rest;
        Ok(u16::from_be_bytes(*taken))
    }

    fn u32(&mut self) -> Result<u32, Refused> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Refused::MALFORMED)?;
        self.0 = rest;
        Ok(u32::from_be_bytes(*taken))
    }

    /// A string with its length before it.
    fn string(&mut self) -> Result<&'a [u8], Refused> {
        let length = usize::try_from(self.u32()?).map_err(|_| Refused::MALFORMED)?;
        let text = self.bytes(length)?;
        if length > STRING_BYTES_MAX { Err(Refused::NAME) } else { Ok(text) }
    }

    fn end(self) -> Result<(), Refused> {
        if self.0.is_empty() { Ok(()) } else { Err(Refused::MALFORMED) }
    }
}

/// Data of INFO and GO.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InfoQuery<'a> {
    /// The export's name, as bytes: a name that isn't UTF-8 simply matches none.
    pub name: &'a [u8],
    /// [`wire::info::NAME`] was asked for.
    pub wants_name: bool,
    /// [`wire::info::DESCRIPTION`] was asked for.
    pub wants_description: bool,
}

impl<'a> InfoQuery<'a> {
    /// Reads the data of INFO or GO; requests for facts that we don't know are skipped, as the protocol wants
    /// it.
    pub fn parse(data: &'a [u8]) -> Result<Self, Refused> {
        let mut reader = Reader(data);
        let mut query = Self { name: reader.string()?, wants_name: false, wants_description: false };
        for _ in 0..reader.u16()? {
            match reader.u16()? {
                wire::info::NAME => query.wants_name = true,
                wire::info::DESCRIPTION => query.wants_description = true,
                _ => {}
            }
        }
        reader.end()?;
        Ok(query)
    }
}

/// Data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContextQuery<'a> {
    /// The export's name.
    pub name: &'a [u8],
    /// No query was sent at all.
    pub empty: bool,
    /// A query names `base:allocation`.
    pub allocation: bool,
    /// A query is `base:`, which means every context of that name space, in LIST only.
    pub wildcard: bool,
}

impl<'a> ContextQuery<'a> {
    /// Reads the data; queries for contexts that we don't have are skipped.
    pub fn parse(data: &'a [u8]) -> Result<Self, Refused> {
        let mut reader = Reader(data);
        let name = reader.string()?;
        let count = reader.u32()?;
        let mut query = Self { name, empty: count == 0, allocation: false, wildcard: false };
        // A false count ends at the data's end: each query takes at least four bytes.
        for _ in 0..count {
            let text = reader.string()?;
            query.allocation |= text == wire::CONTEXT_ALLOCATION.as_bytes();
            query.wildcard |= text == b"base:";
        }
        reader.end()?;
        Ok(query)
    }
}

/// Writes replies to one option.
pub(super) struct OptionReplies<'a> {
    /// Where the bytes go.
    pub output: &'a mut Vec<u8>,
    /// The option that is answered.
    pub option: u32,
}

impl OptionReplies<'_> {
    /// A reply with all of `parts` as its data. Their lengths were bounded when they were made (names,
    /// descriptions, fixed words), so the sum always fits.
    fn reply(&mut self, kind: u32, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let header = OptionReplyHeader {
            magic: OPTION_REPLY_MAGIC.into(),
            option: self.option.into(),
            kind: kind.into(),
            length: length_u32(length).into(),
        };
        self.output.extend_from_slice(header.as_bytes());
        for part in parts {
            self.output.extend_from_slice(part);
        }
    }

    /// Success, or the end of a list.
    pub fn acknowledge(&mut self) {
        self.reply(option_reply::ACK, &[]);
    }

    /// An error with its message.
    pub fn refuse(&mut self, refused: Refused) {
        self.reply(refused.kind, &[refused.message.as_bytes()]);
    }

    /// One entry of the list of exports.
    pub fn server(&mut self, export: &ExportInfo) {
        let name = export.name().as_bytes();
        let length = length_u32(name.len()).to_be_bytes();
        self.reply(option_reply::SERVER, &[&length, name, export.description().as_bytes()]);
    }

    /// What INFO and GO tell: size and flags always; block sizes always too, since they are enforced; the
    /// rest on demand.
    pub fn info(&mut self, export: &ExportInfo, query: &InfoQuery<'_>, structured: bool) {
        self.reply(
            option_reply::INFO,
            &[
                &wire::info::EXPORT.to_be_bytes(),
                &export.size_bytes().to_be_bytes(),
                &export.transmission_flags(structured).to_be_bytes(),
            ],
        );
        self.reply(
            option_reply::INFO,
            &[
                &wire::info::BLOCK_SIZE.to_be_bytes(),
                &export.block_size().to_be_bytes(),
                &export.preferred_block().to_be_bytes(),
                &PAYLOAD_BYTES_MAX.to_be_bytes(),
            ],
        );
        if query.wants_name {
            self.reply(option_reply::INFO, &[&wire::info::NAME.to_be_bytes(), export.name().as_bytes()]);
        }
        if query.wants_description && !export.description().is_empty() {
            let description = export.description().as_bytes();
            self.reply(option_reply::INFO, &[&wire::info::DESCRIPTION.to_be_bytes(), description]);
        }
    }

    /// The metadata context that we have. LIST's replies have no identifier.
    pub fn context(&mut self, identifier: u32) {
        self.reply(
            option_reply::META_CONTEXT,
            &[&identifier.to_be_bytes(), wire::CONTEXT_ALLOCATION.as_bytes()],
        );
    }
}

fn length_u32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
