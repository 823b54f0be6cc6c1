//! By what a namespace is recognized, whatever its address is.
//!
//! A server may give a namespace an NGUID, an EUI-64 and a UUID, and need not give any: Linux's target has
//! only a UUID unless it is told otherwise. A field of zeroes says that there is none (NVMe Base
//! Specification 2.0, 4.5.1), so two of them have nothing in common.

use super::identify::{BYTES, NamespaceInfo};

/// Types of the list of descriptors.
mod kind {
    pub const EUI64: u8 = 1;
    pub const NGUID: u8 = 2;
    pub const UUID: u8 = 3;
    pub const COMMAND_SET: u8 = 4;
}
/// What stands before the value of a descriptor.
const HEAD_BYTES: usize = 4;

/// The identifiers of a namespace, as far as its server gives them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceIdentity {
    nguid: Option<[u8; 16]>,
    eui64: Option<[u8; 8]>,
    uuid: Option<[u8; 16]>,
}

fn given<const N: usize>(value: [u8; N]) -> Option<[u8; N]> {
    Some(value).filter(|value| *value != [0; N])
}

impl NamespaceIdentity {
    /// Of what stands in its own structure.
    pub fn new(info: &NamespaceInfo) -> Self {
        Self { nguid: given(info.nguid), eui64: given(info.eui64), uuid: None }
    }

    /// With what the list of its identifiers adds. What a damaged list has behind the damage is not known.
    #[must_use]
    pub fn with_descriptors(mut self, bytes: &[u8; BYTES]) -> Self {
        let mut rest = &bytes[..];
        while let [kind, length, _, _, values @ ..] = rest
            && *length > 0
            && let Some((value, behind)) = values.split_at_checked(usize::from(*length))
        {
            match *kind {
                kind::EUI64 => self.eui64 = self.eui64.or_else(|| given(value.try_into().ok()?)),
                kind::NGUID => self.nguid = self.nguid.or_else(|| given(value.try_into().ok()?)),
                kind::UUID => self.uuid = self.uuid.or_else(|| given(value.try_into().ok()?)),
                _ => {}
            }
            rest = behind;
        }
        self
    }

    /// The NGUID.
    pub fn nguid(&self) -> Option<[u8; 16]> {
        self.nguid
    }

    /// Whether both are of one namespace; `None` if nothing tells, for neither has an identifier. A server
    /// gives a namespace the same ones each time, so those of which none is of a kind are two.
    pub fn is_one_with(&self, other: &Self) -> Option<bool> {
        fn equal<T: PartialEq>(one: Option<T>, other: Option<T>) -> Option<bool> {
            Some(one? == other?)
        }
        if *self == Self::default() && *other == Self::default() {
            return None;
        }
        let compared =
            [equal(self.nguid, other.nguid), equal(self.eui64, other.eui64), equal(self.uuid, other.uuid)];
        let mut compared = compared.into_iter().flatten().peekable();
        Some(compared.peek().is_some() && compared.all(|is_equal| is_equal))
    }
}

/// The list of a namespace's identifiers: NGUID, UUID and the command set.
pub fn descriptors(nguid: &[u8; 16], uuid: &[u8; 16]) -> Box<[u8; BYTES]> {
    let mut bytes = Box::new([0; BYTES]);
    let mut at = 0;
    for (kind, value) in [(kind::NGUID, &nguid[..]), (kind::UUID, &uuid[..]), (kind::COMMAND_SET, &[0][..])] {
        bytes[at] = kind;
        bytes[at + 1] = value.len().to_le_bytes()[0];
        bytes[at + HEAD_BYTES..][..value.len()].copy_from_slice(value);
        at += HEAD_BYTES + value.len();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(nguid: u8, eui64: u8, uuid: u8) -> NamespaceIdentity {
        let (nguid, eui64, uuid) = (given([nguid; 16]), given([eui64; 8]), given([uuid; 16]));
        NamespaceIdentity { nguid, eui64, uuid }
    }

    #[test]
    fn identifiers_of_zeroes_are_none_and_two_without_any_have_nothing_in_common() {
        let is_one = |one: NamespaceIdentity, other: NamespaceIdentity| {
            let told = one.is_one_with(&other);
            assert_eq!(told, other.is_one_with(&one));
            told
        };
        assert_eq!(identity(0, 0, 0), NamespaceIdentity::default());
        assert_eq!(is_one(identity(0, 0, 0), identity(0, 0, 0)), None);
        assert_eq!(is_one(identity(1, 2, 3), identity(1, 2, 3)), Some(true));
        // One kind is enough, and a server may learn another one.
        assert_eq!(is_one(identity(0, 0, 3), identity(0, 0, 3)), Some(true));
        assert_eq!(is_one(identity(1, 0, 0), identity(1, 2, 3)), Some(true));
        // Something differs.
        for other in [identity(9, 2, 3), identity(1, 9, 3), identity(1, 2, 9), identity(0, 0, 9)] {
            assert_eq!(is_one(identity(1, 2, 3), other), Some(false), "{other:?}");
        }
        assert_eq!(is_one(identity(0, 0, 3), identity(0, 0, 0)), Some(false), "it had one before");
        assert_eq!(is_one(identity(1, 0, 0), identity(0, 0, 3)), Some(false), "none of one kind");
    }

    #[test]
    fn a_list_of_identifiers_is_read_as_it_was_written() {
        let read = |nguid, uuid| NamespaceIdentity::default().with_descriptors(&descriptors(nguid, uuid));
        assert_eq!(read(&[1; 16], &[3; 16]), identity(1, 0, 3));
        assert_eq!(read(&[0; 16], &[3; 16]), identity(0, 0, 3));
        let mut bytes = [0; BYTES];
        assert_eq!(NamespaceIdentity::default().with_descriptors(&bytes), identity(0, 0, 0));
        // An EUI-64, an unknown kind, a UUID of a wrong length and one that runs out of the list.
        bytes[..12].copy_from_slice(&[1, 8, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2]);
        bytes[12..18].copy_from_slice(&[99, 2, 0, 0, 5, 5]);
        bytes[18..26].copy_from_slice(&[3, 4, 0, 0, 7, 7, 7, 7]);
        assert_eq!(NamespaceIdentity::default().with_descriptors(&bytes), identity(0, 2, 0));
        bytes = [255; BYTES];
        assert_eq!(NamespaceIdentity::default().with_descriptors(&bytes), identity(0, 0, 0));
    }
}
