//! Contents that say what they are: every 512-byte sector of a test write names the write and the sector.
//!
//! ```text
//!   0  magic    8     16  sector  8     32  480 bytes that follow from the check
//!   8  write    8     24  check   8
//! ```
//!
//! So a sector that comes back tells which write it is of, whether it lies where it belongs, and whether all
//! of it is there. The body is a stream of random numbers, so no XOR of some sectors is another sector.

use crate::rng::mix;

/// Bytes of a sector.
pub const BYTES: usize = 512;
const MAGIC: u64 = u64::from_le_bytes(*b"pinstrip");

/// What a sector holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Zero bytes only.
    Zero,
    /// The undamaged data of `write` for `sector`.
    Stamped {
        /// The write's number.
        write: u64,
        /// The sector that it was written for.
        sector: u64,
    },
    /// Neither. If it begins like a stamp, what that claims.
    Damaged {
        /// Number of the write and sector that the first bytes name.
        claims: Option<(u64, u64)>,
    },
}

fn check(write: u64, sector: u64) -> u64 {
    mix(mix(write).wrapping_add(sector))
}

/// Fills `bytes` with the data of `write` for `sector`.
///
/// # Panics
/// If it is not 512 bytes long.
pub fn stamp(bytes: &mut [u8], write: u64, sector: u64) {
    assert_eq!(bytes.len(), BYTES, "a stamp fills a sector");
    let check = check(write, sector);
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = match at {
            0 => MAGIC,
            1 => write,
            2 => sector,
            3 => check,
            _ => mix(check.wrapping_add(at as u64)),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// Says what `bytes` hold.
///
/// # Panics
/// If they are not 512.
pub fn decode(bytes: &[u8]) -> Contents {
    assert_eq!(bytes.len(), BYTES, "a stamp fills a sector");
    if bytes.iter().all(|&byte| byte == 0) {
        return Contents::Zero;
    }
    let word = |at: usize| bytes[at * 8..][..8].try_into().map_or(0, u64::from_le_bytes);
    if word(0) != MAGIC {
        return Contents::Damaged { claims: None };
    }
    let (write, sector) = (word(1), word(2));
    let mut expected = [0; BYTES];
    stamp(&mut expected, write, sector);
    if bytes == expected {
        Contents::Stamped { write, sector }
    } else {
        Contents::Damaged { claims: Some((write, sector)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_recognised_and_any_flipped_byte_is_noticed() {
        let mut bytes = [0; BYTES];
        assert_eq!(decode(&bytes), Contents::Zero);
        stamp(&mut bytes, 7, 42);
        assert_eq!(decode(&bytes), Contents::Stamped { write: 7, sector: 42 });
        for at in 0..BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 0x10;
            assert!(matches!(decode(&damaged), Contents::Damaged { .. }), "byte {at}");
        }
    }

    #[test]
    fn half_of_one_write_and_half_of_another_is_damage() {
        let (mut a, mut b) = ([0; BYTES], [0; BYTES]);
        stamp(&mut a, 1, 5);
        stamp(&mut b, 2, 5);
        a[256..].copy_from_slice(&b[256..]);
        assert_eq!(decode(&a), Contents::Damaged { claims: Some((1, 5)) });
    }
}
