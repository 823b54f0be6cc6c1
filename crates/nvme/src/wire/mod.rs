//! Numbers and layouts of NVMe over TCP: bytes to checked values and back. No I/O.
//!
//! The references are the NVM Express Base Specification 2.0, the NVM Command Set Specification 1.0 and the
//! TCP Transport Specification 1.0; section names in comments are their own. Everything on the wire is
//! little-endian.
//!
//! * [`pdu`]: the headers that TCP carries.
//! * [`command`]: submission and completion entries, opcodes, data descriptors.
//! * [`status`]: what a completion says.
//! * [`fabrics`]: Connect and the controller's properties.
//! * [`offload`]: our own extension.
//! * [`auth`]: messages of in-band authentication.
//! * [`identifiers`]: by what a namespace is recognized.
//! * [`identify`], [`log`], [`feature`], [`reservation`]: data structures of commands.

pub mod auth;
pub mod command;
pub mod fabrics;
pub mod feature;
pub mod identifiers;
pub mod identify;
pub mod log;
pub mod offload;
pub mod pdu;
pub mod reservation;
pub mod status;

use crc_fast::{CrcAlgorithm, Digest};

/// The well-known name of the discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Longest NQN in bytes, without the terminating zero.
pub const NQN_BYTES_MAX: usize = 223;

/// Whether `nqn` may name a subsystem or host ("NVMe Qualified Names"): it begins with `nqn.` and has no byte
/// that can't be printed.
pub fn nqn_is_valid(nqn: &str) -> bool {
    nqn.len() <= NQN_BYTES_MAX
        && nqn.strip_prefix("nqn.").is_some_and(|rest| !rest.is_empty())
        && nqn.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The text in a field that is filled up with zeroes or spaces; `None` if it isn't text.
pub fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..end]).ok().map(str::trim_end)
}

/// Puts `text` into a field, cut to its length, the rest filled with `fill`.
pub fn put_text(field: &mut [u8], text: &str, fill: u8) {
    field.fill(fill);
    let count = text.len().min(field.len());
    field[..count].copy_from_slice(&text.as_bytes()[..count]);
}

/// A CRC-32C that is computed in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crc(u32);

impl Default for Crc {
    fn default() -> Self {
        Self(!0)
    }
}

impl Crc {
    /// Takes more bytes.
    #[allow(clippy::cast_possible_truncation, reason = "a 32-bit CRC in a 64-bit word")]
    pub fn update(&mut self, bytes: &[u8]) {
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(self.0));
        digest.update(bytes);
        self.0 = digest.get_state() as u32;
    }

    /// The digest as it travels.
    pub fn bytes(self) -> [u8; 4] {
        (!self.0).to_le_bytes()
    }

    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> [u8; 4] {
        let mut crc = Self::default();
        crc.update(bytes);
        crc.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_in_parts_is_the_digest_of_the_whole() {
        assert_eq!(Crc::of(b"123456789"), 0xe306_9283_u32.to_le_bytes());
        let mut crc = Crc::default();
        crc.update(b"1234");
        crc.update(b"");
        crc.update(b"56789");
        assert_eq!(crc.bytes(), Crc::of(b"123456789"));
    }

    #[test]
    fn names_are_checked() {
        assert!(nqn_is_valid(DISCOVERY_NQN));
        assert!(!nqn_is_valid("nqn."));
        assert!(!nqn_is_valid("iqn.2014-08.org"));
        assert!(!nqn_is_valid("nqn.2014 08"));
        assert!(!nqn_is_valid(&format!("nqn.{}", "a".repeat(220))));
    }
}
