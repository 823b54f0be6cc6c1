//! Keys of NVMe/TCP's TLS: `NVMeTLSkey-1:hh:base64(key, CRC-32 of the key):`, as `nvme gen-tls-key` writes
//! them, and what TLS is given of them (version 1 of the identity; NVMe/TCP 1.1, "PSK Identity").
//!
//! A file has lines `PEER-NQN KEY`, as one of secrets has. A target's peers are hosts, an initiator's are
//! subsystems; `*` stands for all subsystems that have no line of their own.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::hash::Hash;
use super::keyring::{ANY, KeyFileError, in_lines};
use super::secret::{Fault, read};
use crate::wire::nqn_is_valid;

/// How every key begins.
const PREFIX: &str = "NVMeTLSkey-1:";
/// What the identity's digest is bound to, behind both NQNs.
const BOUND: &[u8] = b" NVMe-over-Fabrics";
/// How every label of TLS 1.3 begins.
const LABEL: &str = "tls13 ";

/// A key as a person has it.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsKey {
    /// Whether it is bound to its host.
    is_bound: bool,
    hash: Hash,
    key: Vec<u8>,
}

/// Why a text is no key. The text isn't repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadTlsKey {
    /// It looks otherwise.
    #[error("it must have the form NVMeTLSkey-1:HH:BASE64: as `nvme gen-tls-key` writes it")]
    Form,
    /// The number after the first colon.
    #[error("its hash must be 00, 01 or 02")]
    Hash,
    /// The key's length.
    #[error("its key must have 32 bytes (hash 01) or 48 (hash 02)")]
    Length,
    /// The sum behind the key.
    #[error("its checksum is wrong: it was changed or cut")]
    Checksum,
}

/// What TLS is given for a host and a subsystem.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsPsk {
    /// By which the key is named. It is sent in clear.
    pub identity: String,
    /// The key itself.
    pub secret: Vec<u8>,
    /// SHA-256 or SHA-384.
    pub hash: Hash,
}

impl TlsKey {
    /// Reads one.
    pub fn parse(text: &str) -> Result<Self, BadTlsKey> {
        let (hash, key) = read(text, PREFIX).map_err(|fault| match fault {
            Fault::Form => BadTlsKey::Form,
            Fault::Length => BadTlsKey::Length,
            Fault::Checksum => BadTlsKey::Checksum,
        })?;
        let fitting = match key.len() {
            32 => Hash::Sha256,
            48 => Hash::Sha384,
            _ => return Err(BadTlsKey::Length),
        };
        match (hash, fitting) {
            ("00", hash) => Ok(Self { is_bound: false, hash, key }),
            ("01", hash @ Hash::Sha256) | ("02", hash @ Hash::Sha384) => {
                Ok(Self { is_bound: true, hash, key })
            }
            ("01" | "02", _) => Err(BadTlsKey::Length),
            _ => Err(BadTlsKey::Hash),
        }
    }

    /// What both ends derive for this pair.
    pub fn derive(&self, host: &str, subsystem: &str) -> TlsPsk {
        let hash = self.hash;
        let retained = if self.is_bound {
            expand(hash, &extract(hash, &self.key), "HostNQN", host.as_bytes())
        } else {
            self.key.clone()
        };
        let pair = [host.as_bytes(), b" ", subsystem.as_bytes(), BOUND];
        let digest = STANDARD.encode(hash.hmac(&retained, &pair));
        let number = hash.id();
        let context = format!("{number:02} {digest}");
        TlsPsk {
            identity: format!("NVMe1R{number:02} {host} {subsystem} {digest}"),
            secret: expand(hash, &extract(hash, &retained), "nvme-tls-psk", context.as_bytes()),
            hash,
        }
    }
}

#[cfg(feature = "tls")]
impl From<Hash> for pinstripe_tls::Hash {
    /// Keys are of these two only.
    fn from(hash: Hash) -> Self {
        if hash == Hash::Sha256 { Self::Sha256 } else { Self::Sha384 }
    }
}

impl std::fmt::Debug for TlsKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsKey(..)")
    }
}

impl std::fmt::Debug for TlsPsk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TlsPsk({})", self.identity)
    }
}

/// HKDF-Extract without a salt (RFC 5869).
fn extract(hash: Hash, key: &[u8]) -> Vec<u8> {
    hash.hmac(&vec![0; hash.bytes()], &[key])
}

/// HKDF-Expand-Label to the length of a digest, which is a single block (RFC 8446, 7.1).
fn expand(hash: Hash, key: &[u8], label: &str, context: &[u8]) -> Vec<u8> {
    // Labels are ours, and NQNs and digests have less than 256 bytes.
    let byte = |length: usize| [u8::try_from(length).unwrap_or(u8::MAX)];
    let (length, label_length) = (byte(hash.bytes()), byte(LABEL.len() + label.len()));
    let context_length = byte(context.len());
    let parts: [&[u8]; 8] =
        [&[0], &length, &label_length, LABEL.as_bytes(), label.as_bytes(), &context_length, context, &[1]];
    hash.hmac(key, &parts)
}

/// The keys of the peers that this side knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsKeyring(Vec<(String, TlsKey)>);

impl TlsKeyring {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        Ok(Self(in_lines(text, "NQN KEY", |line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let &[peer, key] = &words[..] else {
                return Err("it has not two words".to_owned());
            };
            if peer != ANY && !nqn_is_valid(peer) {
                return Err("it doesn't begin with an NQN or *".to_owned());
            }
            let key = TlsKey::parse(key).map_err(|error| format!("the key can't be used: {error}"))?;
            Ok((peer.to_owned(), key))
        })?))
    }

    /// The key for a subsystem.
    pub fn find(&self, nqn: &str) -> Option<&TlsKey> {
        let of = |name: &str| self.0.iter().find(|(peer, _)| peer == name).map(|(_, key)| key);
        of(nqn).or_else(|| of(ANY))
    }

    /// All peers, each with its key.
    pub fn peers(&self) -> impl ExactSizeIterator<Item = (&str, &TlsKey)> {
        self.0.iter().map(|(peer, key)| (peer.as_str(), key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::hex;

    const HOST: &str = "nqn.psk-test-host";
    const SUBSYSTEM: &str = "nqn.psk-test-subsys";
    /// Key, digest of the identity and TLS's key. The digests of bound keys stand in the tests of libnvme for
    /// these keys and names; all was computed again by a few lines of Python from the two RFCs.
    const VECTORS: &[(&str, &str, &str)] = &[
        (
            "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
            "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys quJVUJjp/BImWR0UQay/MjSfEgyAr6TyBOWybS/B404=",
            "a45d08ee4639c7570729bb3e57e905e466a49a15ece5401af906830c4d3bdb0b",
        ),
        (
            "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
            "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
            "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca",
        ),
        (
            "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:",
            "NVMe1R02 nqn.psk-test-host nqn.psk-test-subsys QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
            "a2b2f943f479fc682555cec89857c80ed004ce92f32a973d5764155bb7e36b17a85368a0666d250afac9282dda2e62ca",
        ),
    ];

    #[test]
    fn identities_and_keys_are_those_of_others() {
        for (text, identity, secret) in VECTORS {
            let psk = TlsKey::parse(text).unwrap().derive(HOST, SUBSYSTEM);
            assert_eq!((psk.identity.as_str(), hex(&psk.secret).as_str()), (*identity, *secret), "{text}");
        }
        let key = TlsKey::parse(VECTORS[1].0).unwrap();
        let (one, other) = (key.derive(HOST, SUBSYSTEM), key.derive("nqn.other", SUBSYSTEM));
        assert_ne!(one.secret, other.secret, "of another host");
        assert_eq!(format!("{key:?}{one:?}"), format!("TlsKey(..)TlsPsk({})", one.identity));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let good = VECTORS[1].0;
        for (text, error) in [
            (good.replace("NVMeTLSkey", "DHHC"), BadTlsKey::Form),
            (good.replace(":01:", ":03:"), BadTlsKey::Hash),
            (good.replace(":01:", ":02:"), BadTlsKey::Length),
            (VECTORS[2].0.replace(":02:", ":01:"), BadTlsKey::Length),
            (good.replace("VRLb", "VRLc"), BadTlsKey::Checksum),
            (good[..40].to_owned(), BadTlsKey::Form),
        ] {
            assert_eq!(TlsKey::parse(&text), Err(error), "{text}");
        }
    }

    #[test]
    fn a_file_is_read_line_by_line() {
        let (one, other) = (VECTORS[1].0, VECTORS[2].0);
        let keys = TlsKeyring::parse(&format!("# keys\nnqn.a {one} # here\n\n* {other}\n")).unwrap();
        assert_eq!(keys.find("nqn.a"), TlsKey::parse(one).ok().as_ref());
        assert_eq!(keys.find("nqn.b"), TlsKey::parse(other).ok().as_ref());
        assert_eq!(keys.peers().map(|(peer, _)| peer).collect::<Vec<_>>(), ["nqn.a", "*"]);
        for (text, words) in [
            (format!("nqn.a {one}\nnqn.a {other}"), "line 2: nqn.a has a line already"),
            (format!("nqn.a {one} {other}"), "line 1: it has not two words"),
            (format!("iqn.a {one}"), "it doesn't begin with an NQN"),
            ("nqn.a NVMeTLSkey-1:01:AAEC:".to_owned(), "the form is NQN KEY"),
        ] {
            let error = TlsKeyring::parse(&text).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("VRLb"), "{error}");
        }
    }
}
