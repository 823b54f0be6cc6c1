//! Option haggling: from the greeting to a chosen export.
//!
//! Bytes go into [`Handshake::receive`], which looks at no more than one option per call; bytes to be sent
//! wait in [`Handshake::output`]. A session that sends them before the next call never holds more than one
//! option's data and one option's replies.

use zerocopy::{FromBytes, IntoBytes};

use super::Violation;
use super::info::ExportInfo;
use super::options::{ContextQuery, InfoQuery, OptionReplies, Refused};
use super::wire::{
    CONTEXT_ALLOCATION_ID, EXPORT_NAME_ZEROES, GREETING_MAGIC, Greeting, OPTION_MAGIC, OptionHeader,
    STRING_BYTES_MAX, handshake_flag, option,
};

/// Bytes of option data that the server keeps; a longer option is skipped and refused.
pub const OPTION_BYTES_MAX: u32 = 16 << 10;
/// Bytes of option data that the server is ready to skip; a client that announces more is cut off.
const OPTION_SKIP_MAX: u32 = 1 << 20;
/// Options after which a client is cut off: it would keep the server busy for ever.
const OPTION_COUNT_MAX: u32 = 256;

/// What the server offers; the client's flags have the same bits.
const SERVER_FLAGS: u16 = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;

/// What becomes of STARTTLS, and of what comes without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tls {
    /// The server has no TLS (`NOTLS`).
    #[default]
    Unavailable,
    /// The client may begin it (`SELECTIVETLS`).
    Offered,
    /// The client must begin it before it says anything else (`FORCEDTLS`).
    Required,
    /// It has begun.
    Active,
}

/// What both sides agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// Index of the chosen export in the slice given to [`Handshake::receive`].
    pub export: usize,
    /// READs are answered by structured replies, errors carry messages.
    pub structured: bool,
    /// `base:allocation` was selected for this export, so BLOCK_STATUS is allowed.
    pub allocation: bool,
}

/// How the handshake ended. What is in [`Handshake::output`] is still to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeEnd {
    /// The transmission phase begins with the next byte.
    Transmission(Negotiated),
    /// TLS begins with the next byte, once the output is sent. What the client says in it goes to
    /// [`Handshake::secured`].
    StartTls,
    /// The client left by ABORT.
    Aborted,
    /// The client must be cut off.
    Violation(Violation),
}

/// Result of [`Handshake::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct HandshakeStep {
    /// Bytes of the input that were taken. 0 only for empty input or after the end.
    pub consumed: usize,
    /// Set once, when the handshake is over.
    pub end: Option<HandshakeEnd>,
}

#[derive(Debug, Clone, Copy)]
enum HandshakeState {
    ClientFlags,
    Header,
    Data { option: u32, length: u32 },
    Skip { option: u32, left: u32, refused: Refused },
    Ended,
}

/// The handshake of one connection, seen from the server.
#[derive(Debug)]
pub struct Handshake {
    state: HandshakeState,
    /// Bytes of the piece that is being gathered: client flags, an option's header, or its data.
    gathered: Vec<u8>,
    output: Vec<u8>,
    options_left: u32,
    /// [`handshake_flag`] bits that the client sent back.
    client_flags: u16,
    structured: bool,
    /// The export for which `base:allocation` was selected last.
    context: Option<usize>,
    tls: Tls,
    stopping: bool,
}

impl Default for Handshake {
    fn default() -> Self {
        Self::new(Tls::default())
    }
}

impl Handshake {
    /// Begins; the greeting is in the output at once.
    pub fn new(tls: Tls) -> Self {
        let greeting = Greeting {
            magic: GREETING_MAGIC.into(),
            option_magic: OPTION_MAGIC.into(),
            flags: SERVER_FLAGS.into(),
        };
        Self {
            state: HandshakeState::ClientFlags,
            gathered: Vec::new(),
            output: greeting.as_bytes().to_vec(),
            options_left: OPTION_COUNT_MAX,
            client_flags: 0,
            structured: false,
            context: None,
            tls,
            stopping: false,
        }
    }

    /// Goes on in TLS, which has begun. What the client negotiated without it is forgotten: something
    /// between the two may have said it.
    pub fn secured(self) -> Self {
        Self {
            state: HandshakeState::Header,
            gathered: Vec::new(),
            output: Vec::new(),
            options_left: self.options_left,
            client_flags: self.client_flags,
            structured: false,
            context: None,
            tls: Tls::Active,
            stopping: self.stopping,
        }
    }

    /// Takes bytes from the client, up to the end of the piece that is due; call again with the rest.
    ///
    /// `exports` must be the same on each call. The first one is what the empty name stands for, unless one
    /// of them has the empty name itself.
    pub fn receive(&mut self, exports: &[ExportInfo], input: &[u8]) -> HandshakeStep {
        let wanted = match self.state {
            HandshakeState::ClientFlags => 4,
            HandshakeState::Header => size_of::<OptionHeader>(),
            HandshakeState::Data { length, .. } => length as usize,
            HandshakeState::Skip { option, left, refused } => {
                return self.skip(option, left, refused, input.len());
            }
            HandshakeState::Ended => return HandshakeStep { consumed: 0, end: None },
        };
        let consumed = input.len().min(wanted - self.gathered.len());
        self.gathered.extend_from_slice(&input[..consumed]);
        if self.gathered.len() < wanted {
            return HandshakeStep { consumed, end: None };
        }
        let piece = core::mem::take(&mut self.gathered);
        let end = self.piece(exports, &piece);
        // The room is kept for the next piece.
        self.gathered = piece;
        self.gathered.clear();
        if end.is_some() {
            self.state = HandshakeState::Ended;
        }
        HandshakeStep { consumed, end }
    }

    /// Bytes to be sent to the client; empty it after sending.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// From now on every option but ABORT is refused: the server is stopping.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    fn skip(&mut self, option: u32, left: u32, refused: Refused, available: usize) -> HandshakeStep {
        let consumed = left.min(u32::try_from(available).unwrap_or(u32::MAX));
        self.state = HandshakeState::Skip { option, left: left - consumed, refused };
        if left == consumed {
            self.replies(option).refuse(refused);
            self.state = HandshakeState::Header;
        }
        HandshakeStep { consumed: consumed as usize, end: None }
    }

    /// A whole piece has come.
    fn piece(&mut self, exports: &[ExportInfo], piece: &[u8]) -> Option<HandshakeEnd> {
        let result = match self.state {
            HandshakeState::ClientFlags => self.client_flags(piece),
            HandshakeState::Header => self.header(exports, piece),
            HandshakeState::Data { option, .. } => {
                self.state = HandshakeState::Header;
                self.option(exports, option, piece)
            }
            HandshakeState::Skip { .. } | HandshakeState::Ended => Ok(None),
        };
        result.unwrap_or_else(|violation| Some(HandshakeEnd::Violation(violation)))
    }

    fn client_flags(&mut self, piece: &[u8]) -> Result<Option<HandshakeEnd>, Violation> {
        let flags = piece.first_chunk().map_or(u32::MAX, |bytes| u32::from_be_bytes(*bytes));
        let known = u16::try_from(flags).ok().filter(|flags| flags & !SERVER_FLAGS == 0);
        self.client_flags = known.ok_or(Violation::ClientFlags(flags))?;
        self.state = HandshakeState::Header;
        Ok(None)
    }

    /// Decides from an option's header whether its data is kept, skipped or not worth either.
    fn header(&mut self, exports: &[ExportInfo], piece: &[u8]) -> Result<Option<HandshakeEnd>, Violation> {
        let Ok(header) = OptionHeader::read_from_bytes(piece) else {
            return Err(Violation::OptionMagic(0));
        };
        let (option, length) = (header.option.get(), header.length.get());
        if header.magic.get() != OPTION_MAGIC {
            return Err(Violation::OptionMagic(header.magic.get()));
        }
        if self.client_flags & handshake_flag::FIXED_NEWSTYLE == 0 && option != option::EXPORT_NAME {
            return Err(Violation::OptionNotFixed(option));
        }
        self.options_left =
            self.options_left.checked_sub(1).ok_or(Violation::OptionCount(OPTION_COUNT_MAX))?;
        let too_long = match option {
            // It has no error reply, so a name that no export can have ends the connection.
            option::EXPORT_NAME => length as usize > STRING_BYTES_MAX,
            _ => length > OPTION_SKIP_MAX,
        };
        if too_long {
            return Err(Violation::OptionLength { option, length });
        }
        if length == 0 {
            return self.option(exports, option, &[]);
        }
        self.state = match option {
            option::EXPORT_NAME => HandshakeState::Data { option, length },
            option::ABORT
            | option::LIST
            | option::INFO
            | option::GO
            | option::STRUCTURED_REPLY
            | option::LIST_META_CONTEXT
            | option::SET_META_CONTEXT
            | option::STARTTLS
                if option != option::STARTTLS || self.tls != Tls::Unavailable =>
            {
                if length <= OPTION_BYTES_MAX {
                    HandshakeState::Data { option, length }
                } else {
                    self.forget_context(option);
                    HandshakeState::Skip { option, left: length, refused: self.refusal(Refused::TOO_BIG) }
                }
            }
            _ => HandshakeState::Skip { option, left: length, refused: self.refusal(Refused::UNSUPPORTED) },
        };
        Ok(None)
    }

    /// A whole option has come.
    fn option(
        &mut self,
        exports: &[ExportInfo],
        option: u32,
        data: &[u8],
    ) -> Result<Option<HandshakeEnd>, Violation> {
        if self.stopping && option != option::ABORT {
            if option == option::EXPORT_NAME {
                return Err(Violation::Stopping);
            }
            self.replies(option).refuse(Refused::SHUTDOWN);
            return Ok(None);
        }
        if self.tls == Tls::Required && !matches!(option, option::STARTTLS | option::ABORT) {
            if option == option::EXPORT_NAME {
                return Err(Violation::TlsRequired);
            }
            self.replies(option).refuse(Refused::TLS_REQUIRED);
            return Ok(None);
        }
        let answered = match option {
            option::EXPORT_NAME => return self.export_name(exports, data).map(Some),
            option::ABORT => {
                self.replies(option).acknowledge();
                return Ok(Some(HandshakeEnd::Aborted));
            }
            option::LIST => self.list(exports, data),
            option::INFO => self.info(exports, option, data).map(|_| ()),
            option::GO => match self.info(exports, option, data) {
                Ok(export) => return Ok(Some(self.transmission(export))),
                Err(refused) => Err(refused),
            },
            option::STRUCTURED_REPLY => self.structured_reply(data),
            option::LIST_META_CONTEXT => self.list_contexts(exports, data),
            option::SET_META_CONTEXT => self.set_context(exports, data),
            option::STARTTLS => match self.start_tls(data) {
                Ok(()) => return Ok(Some(HandshakeEnd::StartTls)),
                Err(refused) => Err(refused),
            },
            _ => Err(Refused::UNSUPPORTED),
        };
        if let Err(refused) = answered {
            self.replies(option).refuse(refused);
        }
        Ok(None)
    }

    fn export_name(&mut self, exports: &[ExportInfo], name: &[u8]) -> Result<HandshakeEnd, Violation> {
        let export = find(exports, name).ok_or(Violation::ExportUnknown)?;
        let info = &exports[export];
        self.output.extend_from_slice(&info.size_bytes().to_be_bytes());
        self.output.extend_from_slice(&info.transmission_flags(self.structured).to_be_bytes());
        if self.client_flags & handshake_flag::NO_ZEROES == 0 {
            self.output.resize(self.output.len() + EXPORT_NAME_ZEROES, 0);
        }
        Ok(self.transmission(export))
    }

    fn list(&mut self, exports: &[ExportInfo], data: &[u8]) -> Result<(), Refused> {
        if !data.is_empty() {
            return Err(Refused::DATA);
        }
        let mut replies = self.replies(option::LIST);
        for export in exports {
            replies.server(export);
        }
        replies.acknowledge();
        Ok(())
    }

    /// INFO and GO; gives the export that was meant.
    fn info(&mut self, exports: &[ExportInfo], option: u32, data: &[u8]) -> Result<usize, Refused> {
        let query = InfoQuery::parse(data)?;
        let export = find(exports, query.name).ok_or(Refused::UNKNOWN)?;
        let structured = self.structured;
        let mut replies = self.replies(option);
        replies.info(&exports[export], &query, structured);
        replies.acknowledge();
        Ok(export)
    }

    fn structured_reply(&mut self, data: &[u8]) -> Result<(), Refused> {
        if !data.is_empty() {
            return Err(Refused::DATA);
        }
        self.structured = true;
        self.replies(option::STRUCTURED_REPLY).acknowledge();
        Ok(())
    }

    fn start_tls(&mut self, data: &[u8]) -> Result<(), Refused> {
        match self.tls {
            Tls::Unavailable => return Err(Refused::UNSUPPORTED),
            Tls::Active => return Err(Refused::TLS_ACTIVE),
            Tls::Offered | Tls::Required if !data.is_empty() => return Err(Refused::DATA),
            Tls::Offered | Tls::Required => {}
        }
        self.replies(option::STARTTLS).acknowledge();
        Ok(())
    }

    fn list_contexts(&mut self, exports: &[ExportInfo], data: &[u8]) -> Result<(), Refused> {
        let (_, query) = self.context_query(exports, data)?;
        let mut replies = self.replies(option::LIST_META_CONTEXT);
        if query.empty || query.allocation || query.wildcard {
            replies.context(0);
        }
        replies.acknowledge();
        Ok(())
    }

    fn set_context(&mut self, exports: &[ExportInfo], data: &[u8]) -> Result<(), Refused> {
        // Even an option that fails replaces the earlier selection.
        self.forget_context(option::SET_META_CONTEXT);
        let (export, query) = self.context_query(exports, data)?;
        if query.allocation {
            self.context = Some(export);
        }
        let mut replies = self.replies(option::SET_META_CONTEXT);
        if query.allocation {
            replies.context(CONTEXT_ALLOCATION_ID);
        }
        replies.acknowledge();
        Ok(())
    }

    fn context_query<'a>(
        &self,
        exports: &[ExportInfo],
        data: &'a [u8],
    ) -> Result<(usize, ContextQuery<'a>), Refused> {
        if !self.structured {
            return Err(Refused::NOT_STRUCTURED);
        }
        let query = ContextQuery::parse(data)?;
        let export = find(exports, query.name).ok_or(Refused::UNKNOWN)?;
        Ok((export, query))
    }

    fn forget_context(&mut self, option: u32) {
        if option == option::SET_META_CONTEXT {
            self.context = None;
        }
    }

    fn transmission(&self, export: usize) -> HandshakeEnd {
        let allocation = self.context == Some(export);
        HandshakeEnd::Transmission(Negotiated { export, structured: self.structured, allocation })
    }

    fn refusal(&self, refused: Refused) -> Refused {
        if self.stopping {
            Refused::SHUTDOWN
        } else if self.tls == Tls::Required {
            Refused::TLS_REQUIRED
        } else {
            refused
        }
    }

    fn replies(&mut self, option: u32) -> OptionReplies<'_> {
        OptionReplies { output: &mut self.output, option }
    }
}

/// The export of that name. The empty name means the default export: the one that has it, else the first.
fn find(exports: &[ExportInfo], name: &[u8]) -> Option<usize> {
    let exact = exports.iter().position(|export| export.name().as_bytes() == name);
    if exact.is_none() && name.is_empty() && !exports.is_empty() { Some(0) } else { exact }
}
