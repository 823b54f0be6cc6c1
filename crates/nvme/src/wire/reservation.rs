//! Reservations: which hosts may write a namespace.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What others may do while a host holds the reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ReservationKind {
    /// Others read; only the holder writes.
    WriteExclusive = 1,
    /// Only the holder reads and writes.
    ExclusiveAccess = 2,
    /// Others read; registrants write.
    WriteExclusiveRegistrants = 3,
    /// Only registrants read and write.
    ExclusiveAccessRegistrants = 4,
    /// As 3, and each registrant is a holder.
    WriteExclusiveAll = 5,
    /// As 4, and each registrant is a holder.
    ExclusiveAccessAll = 6,
}

impl ReservationKind {
    /// The kind of this number.
    pub fn from_number(number: u32) -> Option<Self> {
        [
            Self::WriteExclusive,
            Self::ExclusiveAccess,
            Self::WriteExclusiveRegistrants,
            Self::ExclusiveAccessRegistrants,
            Self::WriteExclusiveAll,
            Self::ExclusiveAccessAll,
        ]
        .into_iter()
        .find(|kind| *kind as u32 == number)
    }

    /// Whether hosts without any part in it may read.
    pub fn others_read(self) -> bool {
        matches!(self, Self::WriteExclusive | Self::WriteExclusiveRegistrants | Self::WriteExclusiveAll)
    }

    /// Whether registrants may do what the holder may.
    pub fn registrants_write(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Whether each registrant is a holder.
    pub fn all_hold(self) -> bool {
        matches!(self, Self::WriteExclusiveAll | Self::ExclusiveAccessAll)
    }
}

/// Data of Register, Acquire (current and preempted key) and Release (the first 8 bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Keys {
    /// The key that the host is registered with.
    pub current: U64,
    /// Register: the new key. Acquire: the key to be preempted.
    pub other: U64,
}

/// Values of the action field (bits 0 to 2 of dword 10).
pub mod action {
    /// Register: a new key.
    pub const REGISTER: u32 = 0;
    /// Register: no longer.
    pub const UNREGISTER: u32 = 1;
    /// Register: another key.
    pub const REPLACE: u32 = 2;
    /// Acquire.
    pub const ACQUIRE: u32 = 0;
    /// Acquire: take it from another host.
    pub const PREEMPT: u32 = 1;
    /// Acquire: take it from another host. That host's commands are over when this is done.
    pub const PREEMPT_AND_ABORT: u32 = 2;
    /// Release.
    pub const RELEASE: u32 = 0;
    /// Release: forget all registrants.
    pub const CLEAR: u32 = 1;
}

/// Bit of dword 10: the current key isn't looked at.
pub const IGNORE_KEY: u32 = 1 << 3;

/// Head of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReportHeader {
    /// Changes so far.
    pub generation: U32,
    /// A [`ReservationKind`], 0 for none.
    pub kind: u8,
    /// Registrants.
    pub registrants: U16,
    /// Zero.
    pub reserved: [u8; 2],
    /// Whether reservations survive a loss of power.
    pub persistent: u8,
    /// Zero.
    pub reserved_end: [u8; 14],
}

/// A registrant with an extended (128-bit) host identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReportRegistrant {
    /// The controller; 0xffff if it has none now.
    pub controller: U16,
    /// Bit 0: holds the reservation.
    pub status: u8,
    /// Zero.
    pub reserved: [u8; 5],
    /// The key.
    pub key: U64,
    /// The host.
    pub host_id: [u8; 16],
    /// Zero.
    pub reserved_end: [u8; 32],
}

const _: () = assert!(size_of::<ReportHeader>() == 24);
const _: () = assert!(size_of::<ReportRegistrant>() == 64);
