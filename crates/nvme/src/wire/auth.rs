//! Messages of in-band authentication: what Authentication Send and Receive carry.
//!
//! Base Specification 2.0, "NVMe In-band Authentication" and "DH-HMAC-CHAP Protocol". A message is a header
//! that says what it is and which transaction it belongs to, then fields of lengths that the header gives.
//! What follows a message is ignored: the receiver asks for more bytes than there will be.

use super::command::{Command, fabrics};

/// Most bytes that are exchanged at a time. The longest message, a Reply in the largest group, has 1168.
pub const MESSAGE_BYTES_MAX: u32 = 4096;

/// Most bytes of a command that is taken.
const COMMAND_BYTES_MAX: u32 = 16 << 10;
/// Dword 10 of both commands: security protocol 0xe9, both specific fields 1.
const SECURITY: u32 = 0xe9_01_01_00;
/// Of Connect's result: the queue must authenticate.
pub const CONNECT_AUTHENTICATE: u64 = 1 << 17;
/// Of Connect's result: the queue must authenticate and derive keys for a secure channel.
pub const CONNECT_SECURE_CHANNEL: u64 = 1 << 18;

/// The first byte: messages of any protocol.
const COMMON: u8 = 0x00;
/// The first byte: messages of DH-HMAC-CHAP.
const CHAP: u8 = 0x01;
/// The protocol's identifier in a descriptor.
const PROTOCOL_CHAP: u8 = 0x01;

/// The second byte.
mod id {
    pub const NEGOTIATE: u8 = 0x00;
    pub const CHALLENGE: u8 = 0x01;
    pub const REPLY: u8 = 0x02;
    pub const SUCCESS1: u8 = 0x03;
    pub const SUCCESS2: u8 = 0x04;
    pub const FAILURE2: u8 = 0xf0;
    pub const FAILURE1: u8 = 0xf1;
}

/// Bytes of a descriptor, and of the two lists in it.
const DESCRIPTOR_BYTES: usize = 64;
const LIST_MAX: usize = 30;
/// Bytes of most messages before their variable part.
const HEADER_BYTES: usize = 16;

/// Why an authentication failed, as the message says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed(pub u8);

impl Failed {
    /// The peer has not proved its identity.
    pub const AUTHENTICATION: Self = Self(0x01);
    /// No protocol that both have.
    pub const PROTOCOL: Self = Self(0x02);
    /// A secure channel is wanted that the other can't give.
    pub const SECURE_CHANNEL: Self = Self(0x03);
    /// No hash that both allow.
    pub const HASH: Self = Self(0x04);
    /// No group that both allow.
    pub const GROUP: Self = Self(0x05);
    /// A message that makes no sense.
    pub const PAYLOAD: Self = Self(0x06);
    /// A message that isn't due.
    pub const MESSAGE: Self = Self(0x07);

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::AUTHENTICATION => "authentication failed",
            Self::PROTOCOL => "no usable authentication protocol",
            Self::SECURE_CHANNEL => "secure channel concatenation mismatch",
            Self::HASH => "no usable hash function",
            Self::GROUP => "no usable Diffie-Hellman group",
            Self::PAYLOAD => "incorrect payload",
            Self::MESSAGE => "incorrect protocol message",
            _ => "a reason without a name",
        }
    }
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The host begins: what it can do.
    Negotiate {
        /// Keys for a secure channel are wanted (SC_C); 0 for none.
        secure_channel: u8,
        /// Hash functions, by their identifiers; at most 30.
        hashes: Vec<u8>,
        /// Groups, by their identifiers; at most 30.
        groups: Vec<u8>,
    },
    /// The controller challenges the host.
    Challenge {
        /// Identifier of the hash function.
        hash: u8,
        /// Identifier of the group.
        group: u8,
        /// S1.
        sequence: u32,
        /// C1, as long as the hash.
        challenge: Vec<u8>,
        /// g^x mod p, big-endian; empty in the NULL group.
        exponential: Vec<u8>,
    },
    /// The host's response.
    Reply {
        /// R1, as long as the hash.
        response: Vec<u8>,
        /// C2, as long as the hash, if the host challenges the controller.
        challenge: Option<Vec<u8>>,
        /// S2.
        sequence: u32,
        /// g^y mod p.
        exponential: Vec<u8>,
    },
    /// The host's response was right.
    Success1 {
        /// Bytes of the hash.
        hash_bytes: u8,
        /// R2, if it was asked for.
        response: Option<Vec<u8>>,
    },
    /// The controller's response was right.
    Success2,
    /// The controller ends it.
    Failure1(Failed),
    /// The host ends it.
    Failure2(Failed),
}

/// A message and the transaction that it belongs to, which the host numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// T_ID.
    pub transaction: u16,
    /// What it says.
    pub message: Message,
}

/// Bytes that are no message: what the peer is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub Failed);

const BAD: Malformed = Malformed(Failed::PAYLOAD);

/// Takes bytes from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (front, rest) = self.0.split_at_checked(count).ok_or(BAD)?;
        self.0 = rest;
        Ok(front)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| BAD)
    }

    fn vec(&mut self, count: u8) -> Result<Vec<u8>, Malformed> {
        self.take(count.into()).map(<[u8]>::to_vec)
    }
}

impl Envelope {
    /// Reads a message at the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let [kind, what, _, _, low, high] = reader.array()?;
        let message = match (kind, what) {
            (COMMON, id::NEGOTIATE) => negotiate(&mut reader)?,
            (CHAP, id::CHALLENGE) => challenge(&mut reader)?,
            (CHAP, id::REPLY) => reply(&mut reader)?,
            (CHAP, id::SUCCESS1) => success1(&mut reader)?,
            (CHAP, id::SUCCESS2) => {
                reader.take(HEADER_BYTES - 6)?;
                Message::Success2
            }
            (COMMON, id::FAILURE1 | id::FAILURE2) => {
                let [_, explanation] = reader.array()?;
                let failed = Failed(explanation);
                if what == id::FAILURE1 { Message::Failure1(failed) } else { Message::Failure2(failed) }
            }
            _ => return Err(Malformed(Failed::MESSAGE)),
        };
        Ok(Self { transaction: u16::from_le_bytes([low, high]), message })
    }

    /// As it travels. Fields that are longer than they can be are cut.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        let mut begin = |kind: u8, what: u8, rest: &[u8]| {
            bytes.extend_from_slice(&[kind, what, 0, 0]);
            bytes.extend_from_slice(&self.transaction.to_le_bytes());
            bytes.extend_from_slice(rest);
        };
        match &self.message {
            Message::Negotiate { secure_channel, hashes, groups } => {
                begin(COMMON, id::NEGOTIATE, &[*secure_channel, 1]);
                bytes.extend_from_slice(&descriptor(hashes, groups));
            }
            Message::Challenge { hash, group, sequence, challenge, exponential } => {
                begin(CHAP, id::CHALLENGE, &[byte(challenge), 0, *hash, *group]);
                bytes.extend_from_slice(&word(exponential));
                bytes.extend_from_slice(&sequence.to_le_bytes());
                bytes.extend_from_slice(challenge);
                bytes.extend_from_slice(exponential);
            }
            Message::Reply { response, challenge, sequence, exponential } => {
                begin(CHAP, id::REPLY, &[byte(response), 0, challenge.is_some().into(), 0]);
                bytes.extend_from_slice(&word(exponential));
                bytes.extend_from_slice(&sequence.to_le_bytes());
                bytes.extend_from_slice(response);
                match challenge {
                    Some(challenge) => bytes.extend_from_slice(challenge),
                    None => bytes.resize(bytes.len() + response.len(), 0),
                }
                bytes.extend_from_slice(exponential);
            }
            Message::Success1 { hash_bytes, response } => {
                begin(CHAP, id::SUCCESS1, &[*hash_bytes, 0, response.is_some().into(), 0, 0, 0, 0, 0, 0, 0]);
                match response {
                    Some(response) => bytes.extend_from_slice(response),
                    None => bytes.resize(bytes.len() + usize::from(*hash_bytes), 0),
                }
            }
            Message::Success2 => begin(CHAP, id::SUCCESS2, &[0; HEADER_BYTES - 6]),
            // The reason is always the same one: that authentication failed.
            Message::Failure1(failed) => begin(COMMON, id::FAILURE1, &[1, failed.0]),
            Message::Failure2(failed) => begin(COMMON, id::FAILURE2, &[1, failed.0]),
        }
        bytes
    }
}

fn byte(field: &[u8]) -> u8 {
    u8::try_from(field.len()).unwrap_or(u8::MAX)
}

fn word(field: &[u8]) -> [u8; 2] {
    u16::try_from(field.len()).unwrap_or(u16::MAX).to_le_bytes()
}

fn descriptor(hashes: &[u8], groups: &[u8]) -> [u8; DESCRIPTOR_BYTES] {
    let mut descriptor = [0; DESCRIPTOR_BYTES];
    let (hashes, groups) = (&hashes[..hashes.len().min(LIST_MAX)], &groups[..groups.len().min(LIST_MAX)]);
    descriptor[..4].copy_from_slice(&[PROTOCOL_CHAP, 0, byte(hashes), byte(groups)]);
    descriptor[4..4 + hashes.len()].copy_from_slice(hashes);
    descriptor[4 + LIST_MAX..4 + LIST_MAX + groups.len()].copy_from_slice(groups);
    descriptor
}

/// Of the protocols only DH-HMAC-CHAP is known, and of its descriptors the first one counts.
fn negotiate(reader: &mut Reader) -> Result<Message, Malformed> {
    let [secure_channel, count] = reader.array()?;
    for _ in 0..count {
        let descriptor: [u8; DESCRIPTOR_BYTES] = reader.array()?;
        let [protocol, _, hashes, groups, ..] = descriptor;
        if protocol != PROTOCOL_CHAP {
            continue;
        }
        let list = |start: usize, count: u8| {
            let count = usize::from(count);
            (count <= LIST_MAX).then(|| descriptor[start..start + count].to_vec()).ok_or(BAD)
        };
        let (hashes, groups) = (list(4, hashes)?, list(4 + LIST_MAX, groups)?);
        return Ok(Message::Negotiate { secure_channel, hashes, groups });
    }
    Err(Malformed(if count == 0 { Failed::PAYLOAD } else { Failed::PROTOCOL }))
}

fn challenge(reader: &mut Reader) -> Result<Message, Malformed> {
    let [length, _, hash, group] = reader.array()?;
    let exponential = u16::from_le_bytes(reader.array()?);
    Ok(Message::Challenge {
        hash,
        group,
        sequence: u32::from_le_bytes(reader.array()?),
        challenge: reader.vec(length)?,
        exponential: reader.take(exponential.into())?.to_vec(),
    })
}

fn reply(reader: &mut Reader) -> Result<Message, Malformed> {
    let [length, _, challenges, _] = reader.array()?;
    let exponential = u16::from_le_bytes(reader.array()?);
    let sequence = u32::from_le_bytes(reader.array()?);
    let response = reader.vec(length)?;
    let challenge = reader.vec(length)?;
    Ok(Message::Reply {
        response,
        challenge: flag(challenges)?.then_some(challenge),
        sequence,
        exponential: reader.take(exponential.into())?.to_vec(),
    })
}

fn success1(reader: &mut Reader) -> Result<Message, Malformed> {
    let [hash_bytes, _, responds, ..]: [u8; HEADER_BYTES - 6] = reader.array()?;
    let response = flag(responds)?.then(|| reader.vec(hash_bytes)).transpose()?;
    Ok(Message::Success1 { hash_bytes, response })
}

fn flag(byte: u8) -> Result<bool, Malformed> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(BAD),
    }
}

/// Authentication Send of `bytes` bytes.
pub fn send_command(bytes: u32) -> Command {
    Command::fabrics(fabrics::AUTHENTICATION_SEND).with_dword(10, SECURITY).with_dword(11, bytes)
}

/// Authentication Receive of up to `bytes` bytes.
pub fn receive_command(bytes: u32) -> Command {
    Command::fabrics(fabrics::AUTHENTICATION_RECEIVE).with_dword(10, SECURITY).with_dword(11, bytes)
}

/// How many bytes an Authentication Send or Receive moves, if it is one that we know.
pub fn command_bytes(command: &Command) -> Option<u32> {
    let bytes = command.dword(11);
    (command.dword(10) & 0xffff_ff00 == SECURITY && (1..=COMMAND_BYTES_MAX).contains(&bytes)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn message() -> impl Strategy<Value = Message> {
        let bytes = |most: usize| vec(any::<u8>(), 0..=most);
        let failed = any::<u8>().prop_map(Failed);
        prop_oneof![
            (any::<u8>(), bytes(30), bytes(30)).prop_map(|(secure_channel, hashes, groups)| {
                Message::Negotiate { secure_channel, hashes, groups }
            }),
            (any::<(u8, u8, u32)>(), bytes(64), bytes(1024)).prop_map(
                |((hash, group, sequence), challenge, exponential)| Message::Challenge {
                    hash,
                    group,
                    sequence,
                    challenge,
                    exponential
                }
            ),
            (vec(any::<(u8, u8)>(), 0..=64), any::<(bool, u32)>(), bytes(1024)).prop_map(
                |(both, (challenges, sequence), exponential)| {
                    let (response, challenge) = both.into_iter().unzip();
                    Message::Reply {
                        response,
                        challenge: challenges.then_some(challenge),
                        sequence,
                        exponential,
                    }
                }
            ),
            bytes(64).prop_map(|response| Message::Success1 {
                hash_bytes: byte(&response),
                response: Some(response)
            }),
            any::<u8>().prop_map(|hash_bytes| Message::Success1 { hash_bytes, response: None }),
            Just(Message::Success2),
            failed.clone().prop_map(Message::Failure1),
            failed.prop_map(Message::Failure2),
        ]
    }

    proptest! {
        #[test]
        fn a_message_is_read_as_it_was_written_and_no_shorter_one_is(
            message in message(), transaction in any::<u16>(), more in vec(any::<u8>(), 0..8),
        ) {
            let envelope = Envelope { transaction, message };
            let mut bytes = envelope.encode();
            prop_assert!(bytes.len() <= MESSAGE_BYTES_MAX as usize);
            let whole = bytes.len();
            bytes.extend(more);
            prop_assert_eq!(Envelope::decode(&bytes), Ok(envelope.clone()));
            let shortest = match &envelope.message {
                // The response that isn't there needn't be there.
                Message::Success1 { response: None, .. } => HEADER_BYTES,
                _ => whole,
            };
            prop_assert!(Envelope::decode(&bytes[..shortest - 1]).is_err());
        }
    }

    #[test]
    fn the_layouts_are_those_of_the_specification() {
        let message = Message::Challenge {
            hash: 1,
            group: 2,
            sequence: 0x0403_0201,
            challenge: vec![7; 32],
            exponential: vec![8; 384],
        };
        let bytes = Envelope { transaction: 0x1234, message }.encode();
        let header = [1, 1, 0, 0, 0x34, 0x12, 32, 0, 1, 2, 0x80, 1, 1, 2, 3, 4];
        assert_eq!(bytes[..16], header);
        assert_eq!((bytes.len(), bytes[16], bytes[48]), (16 + 32 + 384, 7, 8));
        let negotiate = Message::Negotiate { secure_channel: 0, hashes: vec![1, 3], groups: vec![0, 5] };
        let bytes = Envelope { transaction: 1, message: negotiate }.encode();
        assert_eq!(bytes[..14], [0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 2, 2, 1, 3]);
        assert_eq!((bytes.len(), &bytes[42..44]), (72, &[0, 5][..]));
    }

    #[test]
    fn another_protocol_is_told_from_nonsense() {
        let mut bytes = Envelope {
            transaction: 1,
            message: Message::Negotiate { secure_channel: 0, hashes: vec![1], groups: vec![0] },
        }
        .encode();
        bytes[8] = 2;
        assert_eq!(Envelope::decode(&bytes), Err(Malformed(Failed::PROTOCOL)));
        bytes[8] = 1;
        bytes[10] = 31;
        assert_eq!(Envelope::decode(&bytes), Err(BAD));
        assert_eq!(Envelope::decode(&[2, 0, 0, 0, 0, 0]), Err(Malformed(Failed::MESSAGE)));
    }
}
