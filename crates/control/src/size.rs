//! Sizes as people write them: `64K`, `1.5G` is not one of them, `4096` is.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// A text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{0}' is no size: a whole number is needed, with K, M, G or T behind it for KiB, MiB, GiB or TiB")]
pub struct BadSize(String);

const UNITS: [(&str, u32); 5] = [("", 0), ("K", 10), ("M", 20), ("G", 30), ("T", 40)];

impl FromStr for ByteSize {
    type Err = BadSize;

    /// Reads `65536`, `64K`, `64k`, `64KiB` and `64KB` alike.
    fn from_str(text: &str) -> Result<Self, BadSize> {
        let bad = || BadSize(text.to_owned());
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.to_ascii_uppercase();
        let unit = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
        let (_, shift) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
        let number: u64 = number.parse().map_err(|_| bad())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(bad)
    }
}

/// In the largest unit that leaves at most two digits behind the point.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, shift) = UNITS.iter().rev().find(|(_, shift)| self.0 >> shift > 0).unwrap_or(&UNITS[0]);
        if *shift == 0 {
            return write!(f, "{} bytes", self.0);
        }
        let hundredths = (u128::from(self.0) * 100) >> shift;
        let (whole, part) = (hundredths / 100, hundredths % 100);
        if part == 0 { write!(f, "{whole} {name}iB") } else { write!(f, "{whole}.{part:02} {name}iB") }
    }
}

/// A size of memory: not more than the machine has.
pub fn memory(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|error: BadSize| error.to_string())?;
    let machine = rustix::system::sysinfo();
    let bytes = u128::from(machine.totalram).saturating_mul(machine.mem_unit.into());
    let there = u64::try_from(bytes).unwrap_or(u64::MAX);
    if size.0 > there {
        return Err(format!("{size} of memory: this machine has {}", ByteSize(there)));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_a_unit() {
        for (text, bytes) in
            [("0", 0), ("512", 512), ("64K", 65536), ("64k", 65536), ("1MiB", 1 << 20), ("2TB", 2 << 40)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for bad in ["", "K", "1.5G", "-1", "64Q", "64 K", "99999999999T", "0x10"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn more_memory_than_there_is_can_not_be_asked_for() {
        assert_eq!(memory("64M"), Ok(ByteSize(64 << 20)));
        assert!(memory("9999T").unwrap_err().contains("this machine has"));
        assert!(memory("x").is_err());
    }

    #[test]
    fn sizes_are_shown_in_a_unit_that_suits_them() {
        let shown = |bytes| ByteSize(bytes).to_string();
        assert_eq!(shown(0), "0 bytes");
        assert_eq!(shown(65536), "64 KiB");
        assert_eq!(shown((3 << 30) / 2), "1.50 GiB");
        assert_eq!(shown(u64::MAX), "16777215.99 TiB");
    }
}
