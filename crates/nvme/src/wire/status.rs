//! What a completion says of its command ("Status Field").

/// A status: code (bits 0 to 7), type of code (8 to 10), *do not retry* (14).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

const DO_NOT_RETRY: u16 = 1 << 14;
const MORE: u16 = 1 << 13;
const DELAY: u16 = 3 << 11;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:expr, $words:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// What it says, in words.
            pub fn words(self) -> &'static str {
                match self.code() {
                    $(code if code == Self::$name.code() => $words,)*
                    _ => "an error without a name",
                }
            }
        }
    };
}

statuses! {
    /// Done.
    SUCCESS = 0, "success";
    /// No such opcode.
    INVALID_OPCODE = 0x01 | DO_NOT_RETRY, "invalid opcode";
    /// A field has a value that isn't allowed.
    INVALID_FIELD = 0x02 | DO_NOT_RETRY, "invalid field in command";
    /// An error inside.
    INTERNAL = 0x06, "internal error";
    /// The command was aborted because it was asked for.
    ABORT_REQUESTED = 0x07, "abort requested";
    /// No such namespace.
    INVALID_NAMESPACE = 0x0b | DO_NOT_RETRY, "invalid namespace";
    /// Not in this state of the controller.
    COMMAND_SEQUENCE = 0x0c | DO_NOT_RETRY, "command sequence error";
    /// The length of the data doesn't fit the command.
    DATA_LENGTH_INVALID = 0x0f | DO_NOT_RETRY, "data SGL length invalid";
    /// A kind of descriptor that isn't taken.
    SGL_TYPE_INVALID = 0x11 | DO_NOT_RETRY, "SGL descriptor type invalid";
    /// Data in the capsule that doesn't begin where it must.
    SGL_OFFSET_INVALID = 0x16 | DO_NOT_RETRY, "SGL offset invalid";
    /// A host identifier of all zeroes, or another one than before.
    HOST_IDENTIFIER_INVALID = 0x18 | DO_NOT_RETRY, "host identifier inconsistent format";
    /// The keep-alive timer can't be set so.
    KEEP_ALIVE_INVALID = 0x1a | DO_NOT_RETRY, "keep alive timeout invalid";
    /// The namespace takes no writes.
    WRITE_PROTECTED = 0x20 | DO_NOT_RETRY, "namespace is write protected";
    /// It was broken off, and may be asked for again.
    INTERRUPTED = 0x21, "command interrupted";
    /// The data was damaged on its way.
    TRANSIENT_TRANSPORT = 0x22, "transient transport error";
    /// Past the namespace's end.
    LBA_OUT_OF_RANGE = 0x80 | DO_NOT_RETRY, "LBA out of range";
    /// No space is left behind the namespace.
    CAPACITY_EXCEEDED = 0x81 | DO_NOT_RETRY, "capacity exceeded";
    /// The namespace can't do anything now.
    NAMESPACE_NOT_READY = 0x82, "namespace not ready";
    /// Another host has reserved it.
    RESERVATION_CONFLICT = 0x83 | DO_NOT_RETRY, "reservation conflict";
    /// No such log page.
    INVALID_LOG_PAGE = 0x109 | DO_NOT_RETRY, "invalid log page";
    /// The feature can't be kept over a reset.
    FEATURE_NOT_SAVEABLE = 0x10d | DO_NOT_RETRY, "feature identifier not saveable";
    /// More event requests than the controller takes.
    ASYNC_EVENT_LIMIT = 0x105 | DO_NOT_RETRY, "asynchronous event request limit exceeded";
    /// Connect: a format that isn't spoken.
    CONNECT_INCOMPATIBLE_FORMAT = 0x180 | DO_NOT_RETRY, "connect: incompatible format";
    /// Connect: the controller is in use, or there are too many.
    CONNECT_CONTROLLER_BUSY = 0x181 | DO_NOT_RETRY, "connect: controller busy";
    /// Connect: a parameter is wrong.
    CONNECT_INVALID_PARAMETERS = 0x182 | DO_NOT_RETRY, "connect: invalid parameters";
    /// Connect: this host may not.
    CONNECT_INVALID_HOST = 0x184 | DO_NOT_RETRY, "connect: invalid host";
    /// The queue type can't be disconnected.
    INVALID_QUEUE_TYPE = 0x185 | DO_NOT_RETRY, "invalid queue type";
    /// The queue must authenticate first.
    AUTHENTICATION_REQUIRED = 0x191 | DO_NOT_RETRY, "authentication required";
    /// The data could not be written.
    WRITE_FAULT = 0x280, "write fault";
    /// The data could not be read.
    UNRECOVERED_READ = 0x281, "unrecovered read error";
    /// Compare: the data differs.
    COMPARE_FAILURE = 0x285 | DO_NOT_RETRY, "compare failure";
    /// Offload: the epoch is over.
    FENCED = 0x701 | DO_NOT_RETRY, "fenced: another host has a higher epoch";
    /// Offload: another host is attached.
    ATTACHED = 0x702 | DO_NOT_RETRY, "another host is attached";
    /// Offload: the operation is older than the oldest one.
    STALE = 0x703 | DO_NOT_RETRY, "operation is older than what is known";
    /// Offload: the operation was dropped.
    DROPPED = 0x704 | DO_NOT_RETRY, "operation was dropped";
    /// Offload: all slots are taken.
    BUSY = 0x705 | DO_NOT_RETRY, "all slots are taken";
    /// Offload: a reducer can't be reached.
    PEER_UNREACHABLE = 0x706 | DO_NOT_RETRY, "a peer can't be reached";
    /// Offload: this controller isn't attached.
    NOT_ATTACHED = 0x707 | DO_NOT_RETRY, "not attached";
    /// Offload: it isn't prepared, so it can't be committed.
    UNPREPARED = 0x708 | DO_NOT_RETRY, "operation is not prepared";
    /// Offload: the server has been started anew since the host has learnt its incarnation.
    RESTARTED = 0x709 | DO_NOT_RETRY, "the server has been started anew";
}

impl Status {
    /// Type and code, without the flags.
    pub fn code(self) -> u16 {
        self.0 & !(DO_NOT_RETRY | MORE | DELAY)
    }

    /// Whether the command was done.
    pub fn is_success(self) -> bool {
        self.code() == 0
    }

    /// The same, and another try makes no sense.
    #[must_use]
    pub fn as_final(self) -> Self {
        Self(self.0 | DO_NOT_RETRY)
    }

    /// Whether another try makes no sense.
    pub fn is_final(self) -> bool {
        self.0 & DO_NOT_RETRY != 0
    }

    /// Whether it is one of the offload extension's (type 7, vendor).
    pub fn is_offload(self) -> bool {
        self.code() >> 8 == 7
    }

    /// Whether it is about the medium (type 2).
    pub fn is_media(self) -> bool {
        self.code() >> 8 == 2
    }
}

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:#06x})", self.words(), self.0)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (status {:#05x})", self.words(), self.code())
    }
}
