//! One body for the fuzz target and for the property test: whatever the bytes and wherever they are cut, the
//! core doesn't panic and comes to the same PDUs; and what it accepts, it encodes to the same bytes.

use crate::auth::{Keyring, Secret};
use crate::framing::{DATA_MAX, Encoding, Event, Framer, Pdu, Role};
use crate::wire::auth::Envelope;
use crate::wire::command::{Command, DataPlace};
use crate::wire::identify::{self, ControllerInfo, NamespaceInfo};
use crate::wire::{log, offload};

/// What a stream came to.
#[derive(Debug, Default, PartialEq)]
struct Trace {
    events: Vec<Event>,
    data: Vec<u8>,
}

/// Runs a stream through a framer in one piece and in fragments. The first byte chooses the role (bit 0), the
/// digests (bits 1 and 2) and the fragments (the rest).
///
/// # Panics
///
/// If the core breaks one of its promises.
#[doc(hidden)]
pub fn fuzz_nvme(data: &[u8]) {
    let Some((&mode, data)) = data.split_first() else { return };
    let whole = run(mode, data, data.len().max(1));
    let pieces = run(mode, data, usize::from(mode >> 3) + 1);
    assert_eq!(whole, pieces, "fragmentation changed the outcome");
    structures(data);
}

fn run(mode: u8, data: &[u8], piece: usize) -> Trace {
    let role = if mode & 1 == 0 { Role::Controller } else { Role::Host };
    let mut framer = Framer::new(role);
    framer.set_digests(mode & 2 != 0, mode & 4 != 0);
    let mut trace = Trace::default();
    let mut rest = data;
    while !rest.is_empty() {
        let part = &rest[..rest.len().min(piece)];
        let left = framer.data_left() as usize;
        if left > 0 {
            let count = part.len().min(left);
            assert!(framer.data_received(&part[..count]).is_some(), "data that was due is refused");
            trace.data.extend_from_slice(&part[..count]);
            rest = &rest[count..];
            continue;
        }
        let step = framer.receive(part);
        rest = &rest[step.consumed..];
        if let Some(event) = step.event {
            trace.events.push(event);
            assert_legal(&framer, &event);
            if matches!(event, Event::Fatal(..)) {
                assert_eq!(framer.receive(rest).consumed, 0, "an ended stream takes bytes");
                return trace;
            }
        }
        assert!(step.consumed > 0, "the framer stands still");
    }
    trace
}

fn assert_legal(framer: &Framer, event: &Event) {
    assert!(framer.data_left() <= DATA_MAX);
    match event {
        Event::Pdu(Pdu::Command(command, length)) => {
            assert_eq!(framer.data_left(), *length);
            assert_described(command);
        }
        Event::Pdu(Pdu::Data(transfer, _)) => assert_eq!(framer.data_left(), transfer.length.get()),
        Event::Pdu(_) | Event::DataDigest(_) | Event::Fatal(..) => assert_eq!(framer.data_left(), 0),
    }
}

fn assert_described(command: &Command) {
    if let Ok(DataPlace::Capsule(length) | DataPlace::Transport(length)) = command.data() {
        assert_eq!(length, command.sgl.length.get());
    }
}

/// What a target says of itself is parsed without a panic, and what is accepted makes sense.
fn structures(data: &[u8]) {
    let mut bytes = [0; identify::BYTES];
    let count = data.len().min(bytes.len());
    bytes[..count].copy_from_slice(&data[..count]);
    if let Some(info) = NamespaceInfo::parse(&bytes) {
        assert!(info.blocks.checked_mul(1 << info.block_shift).is_some());
        assert_eq!(NamespaceInfo::parse(&info.encode()).map(|again| again.blocks), Some(info.blocks));
    }
    let _ = ControllerInfo::parse(&bytes);
    let _ = identify::parse_namespace_list(&bytes);
    let _ = log::parse_discovery(data);
    let _ = log::discovery_count(data);
    let _ = Encoding::default().trailer(data);
    offload::fuzz(data);
    authentication(data);
}

/// A message that is accepted is written and read again as the same one; a secret too.
fn authentication(data: &[u8]) {
    if let Ok(envelope) = Envelope::decode(data) {
        assert_eq!(Envelope::decode(&envelope.encode()), Ok(envelope));
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Keyring::parse(text);
        if let Ok(secret) = Secret::parse(text) {
            assert_eq!(Secret::parse(&secret.reveal()), Ok(secret));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::BLANK;
    use crate::wire::pdu::{CommandCapsule, kind};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_come_to_the_same(data in proptest::collection::vec(any::<u8>(), 0..600)) {
            fuzz_nvme(&data);
        }

        #[test]
        fn a_stream_of_capsules_with_one_byte_changed_comes_to_the_same_in_any_pieces(
            mode in any::<u8>(),
            at in any::<proptest::sample::Index>(),
            change in any::<u8>(),
            lengths in proptest::collection::vec(0_usize..100, 1..4),
        ) {
            let encoding = Encoding {
                header_digests: mode & 2 != 0,
                data_digests: mode & 4 != 0,
                alignment: 4 << (mode & 3),
            };
            let mut stream = vec![mode & !1];
            for length in lengths {
                let capsule = CommandCapsule { common: BLANK, command: Command::new(1, 1) };
                let data = vec![7; length];
                let header = encoding.header(kind::CAPSULE_CMD, 0, &capsule, u32::try_from(length).unwrap());
                stream.extend_from_slice(header.bytes());
                stream.extend_from_slice(&data);
                stream.extend(encoding.trailer(&data).iter().flatten());
            }
            let whole = run(mode & !1, &stream[1..], stream.len());
            prop_assert!(!whole.events.iter().any(|event| matches!(event, Event::Fatal(..) | Event::DataDigest(false))));
            let at = at.index(stream.len() - 1) + 1;
            stream[at] ^= change;
            fuzz_nvme(&stream);
        }
    }
}
