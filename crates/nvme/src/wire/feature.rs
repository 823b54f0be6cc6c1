//! Features, and asynchronous events.

/// Arbitration.
pub const ARBITRATION: u8 = 0x01;
/// Power Management.
pub const POWER: u8 = 0x02;
/// Temperature Threshold.
pub const TEMPERATURE: u8 = 0x04;
/// Error Recovery.
pub const ERROR_RECOVERY: u8 = 0x05;
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

/// Bits of a temperature threshold that say which one is meant: the sensor, and whether it is the upper one
/// (0) or the lower (1).
pub const THRESHOLD_WHICH: u32 = 0x003f_0000;
/// The upper threshold of the composite temperature, which no controller is without, as it is until set:
/// never reached.
pub const THRESHOLD_NEVER: u32 = 0xffff;
