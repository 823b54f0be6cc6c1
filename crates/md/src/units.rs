//! The units of the format: small copyable types, so that a sector is never taken for a byte or a slot.

use std::fmt;
use std::ops::{Add, AddAssign, Range, Sub};

/// Bytes in one sector. Every address and length of the format counts sectors of this size, whatever the
/// logical block of the device.
pub const SECTOR_BYTES: u64 = 512;

/// A position in 512-byte sectors. Which space it belongs to (device, member data, array) is said by the
/// field that holds it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(pub u64);

/// A length in 512-byte sectors.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectorCount(pub u64);

/// A member's place in the geometry: 0 to `raid_disks` - 1.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberSlot(pub u16);

/// A device's index in the roles table (`dev_number`). It is *not* the slot: the roles table maps the one to
/// the other, and they differ as soon as a member was ever replaced.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber(pub u16);

impl Sector {
    /// The sector `offset` sectors away, or `None` below zero or past the end of the number space.
    pub fn checked_offset(self, offset: i64) -> Option<Self> {
        self.0.checked_add_signed(offset).map(Self)
    }

    /// The sector `count` sectors further, or `None` past the end of the number space.
    pub fn checked_add(self, count: SectorCount) -> Option<Self> {
        self.0.checked_add(count.0).map(Self)
    }

    /// The position in bytes, or `None` where it doesn't fit.
    pub fn checked_bytes(self) -> Option<u64> {
        self.0.checked_mul(SECTOR_BYTES)
    }
}

impl SectorCount {
    /// The length in bytes, or `None` where it doesn't fit.
    pub fn checked_bytes(self) -> Option<u64> {
        self.0.checked_mul(SECTOR_BYTES)
    }

    /// The whole sectors in `bytes`.
    pub fn from_bytes_floor(bytes: u64) -> Self {
        Self(bytes / SECTOR_BYTES)
    }

    /// The length rounded down to a multiple of `unit` (itself if `unit` is zero).
    #[must_use]
    pub fn round_down(self, unit: Self) -> Self {
        if unit.0 == 0 { self } else { Self(self.0 - self.0 % unit.0) }
    }
}

/// The `count` sectors from `start`, as a half-open range; saturates at the end of the number space.
pub fn sector_range(start: Sector, count: SectorCount) -> Range<u64> {
    start.0..start.0.saturating_add(count.0)
}

impl Add<SectorCount> for Sector {
    type Output = Self;
    fn add(self, count: SectorCount) -> Self {
        Self(self.0 + count.0)
    }
}

impl AddAssign<SectorCount> for Sector {
    fn add_assign(&mut self, count: SectorCount) {
        self.0 += count.0;
    }
}

impl Sub for Sector {
    type Output = SectorCount;
    fn sub(self, other: Self) -> SectorCount {
        SectorCount(self.0 - other.0)
    }
}

impl fmt::Display for Sector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sector {}", self.0)
    }
}

impl fmt::Display for SectorCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sectors", self.0)
    }
}

impl fmt::Display for MemberSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}", self.0)
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device number {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_that_leave_the_number_space_are_none() {
        assert_eq!(Sector(8).checked_offset(-16), None);
        assert_eq!(Sector(u64::MAX).checked_offset(1), None);
        assert_eq!(Sector(24560).checked_offset(-8), Some(Sector(24552)));
        assert_eq!(Sector(u64::MAX).checked_bytes(), None);
    }

    #[test]
    fn rounding_down_keeps_whole_units() {
        assert_eq!(SectorCount(24544).round_down(SectorCount(32)), SectorCount(24544));
        assert_eq!(SectorCount(24550).round_down(SectorCount(32)), SectorCount(24544));
        assert_eq!(SectorCount(7).round_down(SectorCount(0)), SectorCount(7));
    }
}
