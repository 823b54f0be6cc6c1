//! The Diffie-Hellman groups of RFC 7919.
//!
//! The modulus of `b` bits is 2^b - 2^(b-64) + (floor(2^(b-130) e) + X) 2^64 - 1 (appendix A): 64 ones, the
//! digits of e, eight bytes in which X shows, 64 ones. So one run of digits serves all groups.

use std::sync::LazyLock;

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd, Resize};

use super::random::{NoRandom, Random};

/// Bits of an exponent: twice the strength of the largest group and more (RFC 7919, section 5.2, asks for 400
/// there). Longer ones would only take longer.
const EXPONENT_BITS: u32 = 512;

/// The digits of 2^8062 e, from the first on.
const E_DIGITS: &str = "\
ADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE249B3EF97D2FE363630C75D8\
F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3B557135E7F57C935984F0C70E0E68B77\
E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182B324FB61D108A94BB2C8E3FBB96ADAB760D7F468\
1D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2ECC03404CD28342F619172FE9CE98583FF\
8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA886B4238611FCFDC\
DE355B3B6519035BBC34F4DEF99C023861B46FC9D6E6C9077AD91D2691F7F7EE598CB0FAC186D91CAEFE130985139270\
B4130C93BC437944F4FD4452E2D74DD364F2E21E71F54BFF5CAE82AB9C9DF69EE86D2BC522363A0DABC521979B0DEADA\
1DBF9A42D5C4484E0ABCD06BFA53DDEF3C1B20EE3FD59D7C25E41D2B669E1EF16E6F52C3164DF4FB7930E9E4E58857B6\
AC7D5F42D69F6D187763CF1D5503400487F55BA57E31CC7A7135C886EFB4318AED6A1E012D9E6832A907600A918130C4\
6DC778F971AD0038092999A333CB8B7A1A1DB93D7140003C2A4ECEA9F98D0ACC0A8291CDCEC97DCF8EC9B55A7F88A46B\
4DB5A851F44182E1C68A007E5E0DD9020BFD64B645036C7A4E677D2C38532A3A23BA4442CAF53EA63BB454329B7624C8\
917BDD64B1C0FD4CB38E8C334C701C3ACDAD0657FCCFEC719B1F5C3E4E46041F388147FB4CFDB477A52471F7A9A96910\
B855322EDB6340D8A00EF092350511E30ABEC1FFF9E3A26E7FB29F8C183023C3587E38DA0077D9B4763E4E4B94B2BBC1\
94C6651E77CAF992EEAAC0232A281BF6B3A739C1226116820AE8DB5847A67CBEF9C9091B462D538CD72B03746AE77F5E\
62292C311562A846505DC82DB854338AE49F5235C95B91178CCF2DD5CACEF403EC9D1810C6272B045B3B71F9DC6B80D6\
3FDD4A8E9ADB1E6962A69526D43161C1A41D570D7938DAD4A40E329CCFF46AAA36AD004CF600C8381E425A31D951AE64\
FDB23FCEC9509D43687FEB69EDD1CC5E0B8CC3BDF64B10EF86B63142A3AB8829555B2F747C932665CB2C0F1CC01BD702\
29388839D2AF05E454504AC78B7582822846C0BA35C35F5C59160CC046FD8251541FC68C9C86B022BB7099876A460E74\
51A8A93109703FEE1C217E6C3826E52C51AA691E0E423CFC99E9E31650C1217B624816CDAD9A95F9D5B8019488D9C0A0\
A1FE3075A577E23183F81D4A3F2FA4571EFC8CE0BA8A4FE8B6855DFE72B0A66EDED2FBABFBE58A30FAFABE1C5D71A87E\
2F741EF8C1FE86FEA6BBFDE530677F0D97D11D49F7A8443D0822E506A9F4614E011E2A94838FF88C";

/// A group, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Group {
    /// No Diffie-Hellman: HMAC-CHAP alone.
    Null,
    /// 2048 bits.
    Ffdhe2048,
    /// 3072 bits.
    Ffdhe3072,
    /// 4096 bits.
    Ffdhe4096,
    /// 6144 bits.
    Ffdhe6144,
    /// 8192 bits.
    Ffdhe8192,
}

impl Group {
    /// All, the one that is preferred first: the cheapest that protects a secret that turns out to be weak,
    /// and none last.
    pub const ALL: &[Self] =
        &[Self::Ffdhe2048, Self::Ffdhe3072, Self::Ffdhe4096, Self::Ffdhe6144, Self::Ffdhe8192, Self::Null];

    /// Those that are agreed to unless a line of the file of secrets says otherwise. The large ones cost a
    /// stranger nothing and this side much, and add nothing to what 4096 bits protect.
    pub const MODERATE: &[Self] = &[Self::Ffdhe2048, Self::Ffdhe3072, Self::Ffdhe4096, Self::Null];

    /// Its number in messages.
    pub fn id(self) -> u8 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 1,
            Self::Ffdhe3072 => 2,
            Self::Ffdhe4096 => 3,
            Self::Ffdhe6144 => 4,
            Self::Ffdhe8192 => 5,
        }
    }

    /// The group of this number.
    pub fn of_id(id: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|group| group.id() == id)
    }

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Ffdhe2048 => "ffdhe2048",
            Self::Ffdhe3072 => "ffdhe3072",
            Self::Ffdhe4096 => "ffdhe4096",
            Self::Ffdhe6144 => "ffdhe6144",
            Self::Ffdhe8192 => "ffdhe8192",
        }
    }

    /// Bytes of a value; 0 for none.
    pub fn bytes(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 384,
            Self::Ffdhe4096 => 512,
            Self::Ffdhe6144 => 768,
            Self::Ffdhe8192 => 1024,
        }
    }

    fn bits(self) -> u32 {
        u32::try_from(self.bytes() * 8).unwrap_or(0)
    }

    /// The eight bytes before the last ones.
    fn tail(self) -> u64 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 0x886b_4238_6128_5c97,
            Self::Ffdhe3072 => 0x25e4_1d2b_66c6_2e37,
            Self::Ffdhe4096 => 0xc68a_007e_5e65_5f6a,
            Self::Ffdhe6144 => 0xa40e_329c_d0e4_0e65,
            Self::Ffdhe8192 => 0xd68c_8bb7_c5c6_424c,
        }
    }

    /// The modulus, big-endian.
    fn modulus(self) -> Vec<u8> {
        let digit =
            |at: usize| u8::from_str_radix(E_DIGITS.get(2 * at..2 * at + 2).unwrap_or("0"), 16).unwrap_or(0);
        let mut modulus = vec![0xff; 8];
        modulus.extend((0..self.bytes().saturating_sub(24)).map(digit));
        modulus.extend_from_slice(&self.tail().to_be_bytes());
        modulus.extend_from_slice(&[0xff; 8]);
        modulus
    }

    fn parameters(self) -> Option<&'static BoxedMontyParams> {
        static PARAMETERS: LazyLock<Vec<Option<BoxedMontyParams>>> = LazyLock::new(|| {
            let of = |group: &Group| {
                let modulus = BoxedUint::from_be_slice(&group.modulus(), group.bits()).ok()?;
                Some(BoxedMontyParams::new_vartime(Odd::new(modulus).into_option()?))
            };
            Group::ALL.iter().map(|group| if *group == Group::Null { None } else { of(group) }).collect()
        });
        let index = Self::ALL.iter().position(|group| *group == self)?;
        PARAMETERS.get(index)?.as_ref()
    }

    /// `base` to the power of `exponent`, in constant time, as long as the modulus.
    fn power(self, base: &BoxedUint, exponent: &BoxedUint) -> Option<Vec<u8>> {
        let parameters = self.parameters()?;
        let base = BoxedMontyForm::new(base.resize(self.bits()), parameters);
        Some(base.pow(exponent).retrieve().to_be_bytes().into_vec())
    }
}

/// One side's part: an exponent that is used once.
pub struct KeyPair {
    group: Group,
    exponent: BoxedUint,
    /// g to its power, as the peer is to be sent it; empty in the NULL group.
    pub public: Vec<u8>,
}

impl KeyPair {
    /// A new one.
    pub fn new(group: Group, random: &dyn Random) -> Result<Self, NoRandom> {
        let mut bytes = [0; EXPONENT_BITS as usize / 8];
        if group != Group::Null {
            random.fill(&mut bytes)?;
            // Never 0 nor short.
            bytes[0] |= 0x80;
        }
        let exponent = BoxedUint::from_be_slice(&bytes, EXPONENT_BITS).map_err(|_| NoRandom)?;
        let public = group.power(&BoxedUint::from(2_u8), &exponent).unwrap_or_default();
        Ok(Self { group, exponent, public })
    }

    /// What both sides come to, as long as the modulus; empty in the NULL group. `None` if the peer's value
    /// is none of the group, or one that gives the outcome away: 0, 1, p - 1.
    pub fn shared(&self, peer: &[u8]) -> Option<Vec<u8>> {
        if self.group == Group::Null {
            return peer.is_empty().then(Vec::new);
        }
        if peer.len() != self.group.bytes() {
            return None;
        }
        let value = BoxedUint::from_be_slice(peer, self.group.bits()).ok()?;
        let mut last = self.group.modulus();
        // p is odd: without its last bit it is p - 1.
        *last.last_mut()? &= 0xfe;
        let last = BoxedUint::from_be_slice(&last, self.group.bits()).ok()?;
        let one = BoxedUint::from(1_u8).resize(self.group.bits());
        if value <= one || value >= last {
            return None;
        }
        self.group.power(&value, &self.exponent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::hex;
    use crate::auth::random::SystemRandom;

    /// RFC 7919, appendix A.1: the first and the last words of the modulus.
    #[test]
    fn the_moduli_are_those_of_rfc_7919() {
        let modulus = hex(&Group::Ffdhe2048.modulus());
        assert!(modulus.starts_with("ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695"));
        assert!(modulus.ends_with("0b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b423861285c97ffffffffffffffff"));
        for group in Group::ALL.iter().filter(|group| **group != Group::Null) {
            assert_eq!(group.modulus().len(), group.bytes());
        }
    }

    /// By Python: `pow(2, 0x8000...01, p)` with an exponent of 512 bits, and the SHA-256 of it.
    #[test]
    fn powers_are_those_that_python_computes() {
        let mut exponent = [0; 64];
        (exponent[0], exponent[63]) = (0x80, 1);
        let exponent = BoxedUint::from_be_slice(&exponent, EXPONENT_BITS).unwrap();
        for (group, digest) in [
            (Group::Ffdhe2048, "a267060ea36eef2316e798245d9cda2e9534b497f5c74bd3c2dfb1c321219316"),
            (Group::Ffdhe3072, "9421eaa1e30f3e185669832a3453debddbfb1a9179207153af80769fcce7e32f"),
            (Group::Ffdhe4096, "8dd5177cb867177f98e516efca27b0e0371f28cc8deb6bdc1a22e9aef9f958e1"),
            (Group::Ffdhe6144, "a641ad99cb0b6fff49b044a49480a569b2f413a5cde69fe2908db4b0459a0261"),
            (Group::Ffdhe8192, "7f58c3fa86b16362f734613dcf58507e63069f7b42676bca4181013e8006d65c"),
        ] {
            let power = group.power(&BoxedUint::from(2_u8), &exponent).unwrap();
            assert_eq!(hex(&super::super::Hash::Sha256.digest(&power)), digest, "{group:?}");
        }
    }

    #[test]
    fn both_sides_come_to_the_same() {
        for group in Group::ALL {
            let (one, other) =
                (KeyPair::new(*group, &SystemRandom).unwrap(), KeyPair::new(*group, &SystemRandom).unwrap());
            let shared = one.shared(&other.public).unwrap();
            assert_eq!(shared.len(), group.bytes());
            assert_eq!(Some(shared), other.shared(&one.public));
            assert!(*group == Group::Null || one.public != other.public);
        }
    }

    #[test]
    fn values_that_give_the_outcome_away_are_refused() {
        let group = Group::Ffdhe2048;
        let pair = KeyPair::new(group, &SystemRandom).unwrap();
        let mut small = vec![0; group.bytes()];
        assert_eq!(pair.shared(&small), None, "0");
        small[255] = 1;
        assert_eq!(pair.shared(&small), None, "1");
        small[255] = 2;
        assert!(pair.shared(&small).is_some());
        let mut large = group.modulus();
        assert_eq!(pair.shared(&large), None, "p");
        large[255] -= 1;
        assert_eq!(pair.shared(&large), None, "p - 1");
        large[255] -= 1;
        assert!(pair.shared(&large).is_some());
        assert_eq!(pair.shared(&small[1..]), None, "short");
        assert_eq!(pair.shared(&[]), None);
        assert_eq!(KeyPair::new(Group::Null, &SystemRandom).unwrap().shared(&small), None);
    }
}
