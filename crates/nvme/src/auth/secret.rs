//! A secret as TP 8006 and nvme-cli write it: `DHHC-1:hh:base64(key, CRC-32 of the key):`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crc_fast::{CrcAlgorithm, checksum};

use super::hash::Hash;

/// How every secret begins.
const PREFIX: &str = "DHHC-1:";
/// What a key is bound to, behind the NQN.
const BOUND: &[u8] = b"NVMe-over-Fabrics";

/// A key, and the function by which it is to be bound to its owner's NQN.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// `None`: it is used as it is.
    transform: Option<Hash>,
    key: Vec<u8>,
}

/// Why a text is no secret. The text isn't repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    /// It looks otherwise.
    #[error("it must have the form DHHC-1:HH:BASE64: as `nvme gen-dhchap-key` writes it")]
    Form,
    /// The number after the first colon.
    #[error("its hash must be 00, 01, 02 or 03")]
    Hash,
    /// The key's length.
    #[error("its key must have 32, 48 or 64 bytes")]
    Length,
    /// The sum behind the key.
    #[error("its checksum is wrong: it was changed or cut")]
    Checksum,
}

impl Secret {
    /// Reads one.
    pub fn parse(text: &str) -> Result<Self, BadSecret> {
        let (hash, key) = read(text, PREFIX).map_err(|fault| match fault {
            Fault::Form => BadSecret::Form,
            Fault::Length => BadSecret::Length,
            Fault::Checksum => BadSecret::Checksum,
        })?;
        let transform = match hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(BadSecret::Hash),
        };
        Self::of_key(&key, transform)
    }

    /// Of a key of 32, 48 or 64 bytes.
    pub fn of_key(key: &[u8], transform: Option<Hash>) -> Result<Self, BadSecret> {
        if !matches!(key.len(), 32 | 48 | 64) {
            return Err(BadSecret::Length);
        }
        Ok(Self { transform, key: key.to_vec() })
    }

    /// As it is written. An attacker that sees it can pass for its owner.
    pub fn reveal(&self) -> String {
        let hash = self.transform.map_or(0, Hash::id);
        let bytes = [&self.key[..], &checksum_of(&self.key)].concat();
        format!("{PREFIX}{hash:02}:{}:", STANDARD.encode(bytes))
    }

    /// The key that its owner `nqn` uses ("DH-HMAC-CHAP Security Requirements").
    pub(super) fn key_of(&self, nqn: &str) -> Vec<u8> {
        match self.transform {
            None => self.key.clone(),
            Some(hash) => hash.hmac(&self.key, &[nqn.as_bytes(), BOUND]),
        }
    }

    /// Whether both are the same key.
    pub(super) fn is_same_key(&self, other: &Self) -> bool {
        super::hash::equal(&self.key, &other.key)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Why a text is none of `PREFIX hh:base64(key, CRC-32 of the key):`.
pub(super) enum Fault {
    Form,
    /// The key has not 32, 48 or 64 bytes.
    Length,
    Checksum,
}

/// What stands for the hash in such a text, and the key.
pub(super) fn read<'a>(text: &'a str, prefix: &str) -> Result<(&'a str, Vec<u8>), Fault> {
    let rest = text.strip_prefix(prefix).ok_or(Fault::Form)?;
    let (hash, rest) = rest.split_once(':').ok_or(Fault::Form)?;
    let coded = rest.strip_suffix(':').ok_or(Fault::Form)?;
    let mut key = STANDARD.decode(coded).map_err(|_| Fault::Form)?;
    if !matches!(key.len(), 36 | 52 | 68) {
        return Err(Fault::Length);
    }
    let sum = key.split_off(key.len() - 4);
    if sum == checksum_of(&key) { Ok((hash, key)) } else { Err(Fault::Checksum) }
}

#[expect(clippy::cast_possible_truncation, reason = "a 32-bit CRC in a 64-bit word")]
fn checksum_of(key: &[u8]) -> [u8; 4] {
    (checksum(CrcAlgorithm::Crc32IsoHdlc, key) as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By Python: base64.b64encode(key + zlib.crc32(key).to_bytes(4, "little")) with key = bytes(range(32))
    /// and so on.
    const VECTORS: &[(&str, usize)] = &[
        ("DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", 32),
        ("DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", 32),
        ("DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:", 48),
        (
            "DHHC-1:03:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P4zODhA=:",
            64,
        ),
    ];

    #[test]
    fn secrets_are_read_and_written_as_others_write_them() {
        for (text, length) in VECTORS {
            let secret = Secret::parse(text).unwrap();
            assert_eq!(secret.key, (0..).take(*length).collect::<Vec<u8>>());
            assert_eq!(secret.reveal(), *text);
        }
    }

    /// By Python: hmac.new(key, nqn + b"NVMe-over-Fabrics", hash).
    #[test]
    fn a_transformed_key_is_bound_to_its_owner() {
        let of = |text: &str| {
            let key = Secret::parse(text).unwrap().key_of("nqn.2026-01.com.example:host");
            crate::auth::hex(&key)
        };
        assert_eq!(of(VECTORS[0].0).len(), 64);
        assert_eq!(of(VECTORS[1].0), "2b9b96f4a6cb870b45db4a9fbb806f6d5201f9bb08b87179ca447e3fdde73ba3");
        assert_eq!(
            of(VECTORS[2].0),
            "67d60c541bc092edfa29dbf62a2d723b602b102fdcb8c02a758a9161c612fa99918793dc137371ba186e624aeff746e5"
        );
        assert_eq!(
            of(VECTORS[3].0),
            "5dd4d5fb77dd9a4df04eb486b44ca3dcf1621d1d4f27af193f55d220633ef6d92d7cad6d8f03278630ea2ab8c7bd535add7d21db66c8b254410ec3e4ef821bb1"
        );
    }

    #[test]
    fn what_is_no_secret_is_refused_and_not_repeated() {
        let good = VECTORS[0].0;
        let changed = good.replacen("AAEC", "AAED", 1);
        for (text, error) in [
            ("", BadSecret::Form),
            ("secret", BadSecret::Form),
            (good.trim_end_matches(':'), BadSecret::Form),
            (&good.replacen(":00:", ":04:", 1), BadSecret::Hash),
            (&good.replacen(":00:", ":0:", 1), BadSecret::Hash),
            ("DHHC-1:00:AAAA:", BadSecret::Length),
            ("DHHC-1:00:!!!!:", BadSecret::Form),
            (&changed, BadSecret::Checksum),
        ] {
            assert_eq!(Secret::parse(text), Err(error), "{text}");
        }
        assert_eq!(format!("{:?}", Secret::parse(good)), "Ok(Secret(..))");
    }
}
