//! Features, and asynchronous events.

/// Volatile Write Cache.
pub const WRITE_CACHE: u8 = 0x06;
/// Number of Queues.
pub const QUEUES: u8 = 0x07;
/// Asynchronous Event Configuration.
pub const ASYNC_EVENTS: u8 = 0x0b;
/// Keep Alive Timer.
pub const KEEP_ALIVE: u8 = 0x0f;
/// Host Identifier.
pub const HOST_ID: u8 = 0x81;
/// Reservation Notification Mask.
pub const RESERVATION_MASK: u8 = 0x82;
/// Reservation Persistence.
pub const RESERVATION_PERSISTENCE: u8 = 0x83;

/// Bit of the event configuration: notices of changed namespaces.
pub const EVENT_NAMESPACE_CHANGED: u32 = 1 << 8;
/// Result of an event request: notice (type 2), namespace attribute changed (0), log page 4.
pub const NOTICE_NAMESPACE_CHANGED: u64 = 0x0004_0002;
