//! CRC-32C as the logs use it: the standard one, and its bare register.

use crc_fast::{CrcAlgorithm, Digest};

/// The standard CRC-32C (register all ones at the start, inverted at the end).
#[allow(clippy::cast_possible_truncation, reason = "a 32-bit CRC in a 64-bit word")]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The CRC-32C register after `bytes`, from `register`, with nothing inverted at either end.
#[allow(clippy::cast_possible_truncation, reason = "a 32-bit CRC in a 64-bit word")]
pub fn crc32c_register(register: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(register));
    digest.update(bytes);
    digest.get_state() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_is_that_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c_register(!0, b"123456789"), !0xe306_9283);
    }

    #[test]
    fn the_register_goes_on_where_it_stopped() {
        let bytes: Vec<u8> = (0..=255).cycle().take(5000).collect();
        for cut in [0, 1, 16, 333, 4096, 5000] {
            let half = crc32c_register(!0, &bytes[..cut]);
            assert_eq!(crc32c_register(half, &bytes[cut..]), !crc32c(&bytes), "{cut}");
        }
    }
}
