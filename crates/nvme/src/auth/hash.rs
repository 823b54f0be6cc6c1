//! The hash functions of DH-HMAC-CHAP.

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq;

/// A hash function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// All, the one that is preferred first.
    pub const ALL: &[Self] = &[Self::Sha256, Self::Sha384, Self::Sha512];

    /// Its number in messages and in the representation of secrets.
    pub fn id(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha384 => 2,
            Self::Sha512 => 3,
        }
    }

    /// The function of this number.
    pub fn of_id(id: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|hash| hash.id() == id)
    }

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    /// Bytes of a digest.
    pub fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// The digest of `data`.
    pub(super) fn digest(self, data: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(data).to_vec(),
            Self::Sha384 => Sha384::digest(data).to_vec(),
            Self::Sha512 => Sha512::digest(data).to_vec(),
        }
    }

    /// The HMAC of the parts one after the other. A key may have any length.
    pub(super) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        match self {
            Self::Sha256 => of::<Hmac<Sha256>>(key, parts),
            Self::Sha384 => of::<Hmac<Sha384>>(key, parts),
            Self::Sha512 => of::<Hmac<Sha512>>(key, parts),
        }
    }
}

fn of<M: Mac + hmac::digest::KeyInit>(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    // An HMAC takes a key of any length: there is no error.
    let Ok(mut mac) = <M as Mac>::new_from_slice(key) else { return Vec::new() };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

/// Whether two values are equal, in a time that doesn't tell where they differ. Nothing is equal to nothing.
pub(super) fn equal(one: &[u8], other: &[u8]) -> bool {
    !one.is_empty() && bool::from(one.ct_eq(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::hex;

    /// RFC 4231, test case 2.
    #[test]
    fn hmacs_are_those_of_rfc_4231() {
        let of = |hash: Hash| hex(&hash.hmac(b"Jefe", &[b"what do ya want ", b"", b"for nothing?"]));
        assert_eq!(of(Hash::Sha256), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert_eq!(
            of(Hash::Sha384),
            "af45d2e376484031617f78d2b58a6b1b9c7ef464f5a01b47e42ec3736322445e8e2240ca5e69e2c78b3239ecfab21649"
        );
        assert!(
            of(Hash::Sha512).starts_with("164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea250554")
        );
    }

    #[test]
    fn values_are_equal_only_if_all_of_them_is() {
        assert!(equal(b"abc", b"abc"));
        assert!(!equal(b"abc", b"abd") && !equal(b"abc", b"ab") && !equal(b"ab", b"abc") && !equal(b"", b""));
    }
}
