//! What a host may ask for at once.

/// Most bytes of data of one command.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Most bytes of data in the capsule of an I/O command.
pub const CAPSULE_BYTES_MAX: u32 = 32 << 10;
/// Most commands outstanding on a queue.
pub const COMMANDS_MAX: u16 = 128;
/// Event requests that may be outstanding.
pub(super) const EVENT_REQUESTS_MAX: u8 = 4;
