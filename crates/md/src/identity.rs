//! What names an array or a device, and when something was written: UUIDs, set names, time stamps.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A 128-bit identity, in the order of its bytes on disk. Printed as mdadm prints it: four groups of eight
/// hexadecimal digits with colons between.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

/// A text that is no UUID.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("'{0}' is no UUID: 32 hexadecimal digits are needed, ':' and '-' between them are ignored")]
pub struct BadUuid(pub String);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if index > 0 && index % 4 == 0 {
                f.write_str(":")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for Uuid {
    type Err = BadUuid;

    fn from_str(text: &str) -> Result<Self, BadUuid> {
        let bad = || BadUuid(text.to_owned());
        let mut bytes = [0; 16];
        let mut digits = 0;
        for c in text.chars().filter(|c| !matches!(c, ':' | '-')) {
            let value = c.to_digit(16).and_then(|v| u8::try_from(v).ok()).ok_or_else(bad)?;
            let byte: &mut u8 = bytes.get_mut(digits / 2).ok_or_else(bad)?;
            *byte = *byte << 4 | value;
            digits += 1;
        }
        if digits == 32 { Ok(Self(bytes)) } else { Err(bad()) }
    }
}

/// An array's name: at most 32 bytes, usually `homehost:name`. The kernel ignores it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SetName([u8; 32]);

/// A name that doesn't fit the superblock.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the array name '{0}' must have at most 32 bytes and no NUL")]
pub struct BadSetName(pub String);

impl SetName {
    /// The name as it stands on disk, NUL padded.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes on disk.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The part after `homehost:`, or the whole name if it has no host part.
    pub fn short(&self) -> String {
        short_name(&self.to_string()).to_owned()
    }
}

/// The part of an array's name after `homehost:`, or the whole name if it has no host part.
pub fn short_name(full: &str) -> &str {
    full.split_once(':').map_or(full, |(_, name)| name)
}

impl FromStr for SetName {
    type Err = BadSetName;

    fn from_str(text: &str) -> Result<Self, BadSetName> {
        if text.len() > 32 || text.contains('\0') {
            return Err(BadSetName(text.to_owned()));
        }
        let mut bytes = [0; 32];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self(bytes))
    }
}

/// The name up to its first NUL; bytes that are no UTF-8 are shown as replacement characters.
impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().position(|&b| b == 0).unwrap_or(self.0.len());
        f.write_str(&String::from_utf8_lossy(&self.0[..end]))
    }
}

/// What our updates have for microseconds.
const OWN_MICROSECONDS: u32 = 1;

/// A point in time as the superblock keeps it: the low 40 bits count seconds since 1970, the high 24 bits
/// microseconds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    seconds: u64,
    microseconds: u32,
}

impl Timestamp {
    /// A time stamp; seconds are cut to 40 bits and microseconds to 24, which is what fits the disk.
    pub fn new(seconds: u64, microseconds: u32) -> Self {
        Self { seconds: seconds & 0xff_ffff_ffff, microseconds: microseconds & 0xff_ffff }
    }

    /// Of an update by this program. A kernel writes whole seconds, so its updates are told from these.
    pub fn of_own_update(seconds: u64) -> Self {
        Self::new(seconds, OWN_MICROSECONDS)
    }

    /// See [`Timestamp::of_own_update`].
    pub fn is_of_own_update(self) -> bool {
        self.microseconds == OWN_MICROSECONDS
    }

    /// Unpacks the word on disk.
    #[allow(clippy::cast_possible_truncation, reason = "24 bits remain after the shift")]
    pub fn from_word(word: u64) -> Self {
        Self { seconds: word & 0xff_ffff_ffff, microseconds: (word >> 40) as u32 }
    }

    /// The word on disk.
    pub fn to_word(self) -> u64 {
        u64::from(self.microseconds) << 40 | self.seconds
    }

    /// Seconds since 1970.
    pub fn seconds(self) -> u64 {
        self.seconds
    }

    /// Microseconds within the second.
    pub fn microseconds(self) -> u32 {
        self.microseconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_reads_back_what_it_prints() {
        let uuid: Uuid = "fd428ac4:6ce65f34:b8246bd2:6cc5d6a9".parse().unwrap();
        assert_eq!(uuid.0[..4], [0xfd, 0x42, 0x8a, 0xc4]);
        assert_eq!(uuid.to_string(), "fd428ac4:6ce65f34:b8246bd2:6cc5d6a9");
        for bad in
            ["", "fd42", "fd428ac4:6ce65f34:b8246bd2:6cc5d6a9a9", "gd428ac4:6ce65f34:b8246bd2:6cc5d6a9"]
        {
            assert!(bad.parse::<Uuid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_that_does_not_fit_is_refused() {
        let name: SetName = "host:data".parse().unwrap();
        assert_eq!((name.to_string(), name.short()), ("host:data".into(), "data".into()));
        assert!("x".repeat(33).parse::<SetName>().is_err());
        assert_eq!("x".repeat(32).parse::<SetName>().unwrap().to_string(), "x".repeat(32));
    }

    #[test]
    fn a_time_stamp_packs_seconds_and_microseconds() {
        let stamp = Timestamp::new(1_795_226_416, 999_999);
        assert_eq!(Timestamp::from_word(stamp.to_word()), stamp);
        assert_eq!(stamp.to_word() >> 40, 999_999);
    }
}
