//! One body for the fuzz target and for the property test: whatever a monitor sends and whatever stands in a
//! machine's memory, the core doesn't panic, ends, and touches nothing outside.

use std::cell::RefCell;

use super::{
    inflight::{Tracker, give_back},
    memory::Bytes,
    ring::{Chain, Layout, Ring},
    wire::{HEADER_BYTES, Header, Request},
};

/// Takes `data` as messages, or, if its first bit is set, as the memory of a machine with a ring at its
/// front.
///
/// # Panics
///
/// If the core breaks one of its promises.
#[doc(hidden)]
pub fn fuzz_vhost_user(data: &[u8]) {
    let Some((&mode, data)) = data.split_first() else { return };
    if mode & 1 == 0 { messages(data) } else { machine(data, mode) }
}

fn messages(mut data: &[u8]) {
    while let Some((header, rest)) = data.split_first_chunk::<HEADER_BYTES>() {
        let Ok(header) = Header::parse(header) else { return };
        let size = usize::try_from(header.size).unwrap_or(usize::MAX);
        let Some((payload, rest)) = rest.split_at_checked(size) else { return };
        for files in [0, 1, 2, 8] {
            match Request::parse(&header, payload, vec![(); files]) {
                Ok(Request::Memory(regions)) => assert_eq!(regions.len(), files, "a region without a file"),
                Ok(Request::BackendChannel(())) => {
                    assert!(payload.is_empty() && files == 1, "a channel that isn't just its socket");
                }
                _ => {}
            }
        }
        data = rest;
    }
}

/// A ring of eight: descriptors at 0, available at 128, used at 152, requests under way at 256.
fn machine(data: &[u8], mode: u8) {
    let layout = Layout { descriptors: 0, available: 128, used: 152, size: 8 };
    let memory = Bytes(RefCell::new(data.to_vec()));
    let Ok(mut ring) = Ring::new(layout, &memory, u16::from(mode >> 4), mode & 2 != 0, mode & 4 != 0) else {
        return;
    };
    let mut tracker = None;
    if let Ok((opened, left)) = Tracker::open(&memory, u16::from(mode >> 7), 16, ring.used()) {
        assert!(left.len() <= 16, "more requests than the ring has");
        tracker = Some(opened);
    }
    let mut chain = Chain::default();
    for _ in 0..16 {
        let Ok(true) = ring.next(&memory, &mut chain) else { break };
        let (readable, writable) = (chain.readable_bytes(), chain.writable_bytes());
        let mut bytes = [0; 64];
        let (skip, length) = (readable / 2, usize::try_from(readable.min(64)).unwrap_or(64));
        if chain.read(&memory, skip, &mut bytes[..length]).is_ok() {
            assert!(skip + length as u64 <= readable, "more was read than the machine gives");
        }
        if chain.write(&memory, writable / 2, &bytes).is_ok() {
            assert!(writable / 2 + 64 <= writable, "more was written than the machine takes");
        }
        if let Some(tracker) = &mut tracker {
            let _ = tracker.take(&memory, chain.head);
        }
        let noted = tracker.as_ref().map(|tracker| (&memory, tracker));
        if give_back(&mut ring, &memory, noted, chain.head, 1).is_err() {
            break;
        }
        let _ = ring.wants_call(&memory).and_then(|_| ring.ask_for_kick(&memory));
    }
    assert_eq!(memory.0.borrow().len(), data.len());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Of a length that some message has, mostly.
    fn payload() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![Just(0), Just(8), Just(24), Just(40), 0_usize..80]
            .prop_flat_map(|length| proptest::collection::vec(any::<u8>(), length))
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(data in proptest::collection::vec(any::<u8>(), 0..700)) {
            fuzz_vhost_user(&data);
        }

        /// Random bytes seldom make a message: here headers are those of some.
        #[test]
        fn arbitrary_messages_do_not_panic(
            messages in proptest::collection::vec((0_u32..40, any::<bool>(), payload()), 0..8),
        ) {
            let message = |(request, wants_reply, payload): (u32, bool, Vec<u8>)| {
                Header::request(request, wants_reply, &payload)
            };
            let data: Vec<u8> = std::iter::once(0).chain(messages.into_iter().flat_map(message)).collect();
            fuzz_vhost_user(&data);
        }

        /// Random bytes seldom make a ring: here indices and addresses are small.
        #[test]
        fn arbitrary_rings_end(
            mode in any::<u8>(),
            descriptors in proptest::collection::vec((0_u64..600, 0_u32..200, 0_u16..8, 0_u16..9), 24),
            available in proptest::collection::vec(0_u16..9, 12),
        ) {
            let mut data = vec![mode | 1];
            for (at, length, flags, next) in &descriptors[..8] {
                data.extend([&at.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat());
            }
            data.extend(available.iter().flat_map(|word| word.to_le_bytes()));
            data.resize(400, 0);
            for (at, length, flags, next) in &descriptors[8..] {
                data.extend([&at.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat());
            }
            fuzz_vhost_user(&data);
        }
    }
}
