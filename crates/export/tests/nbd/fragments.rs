//! Arbitrary bytes, cut anywhere: no panic, and the same outcome as in one piece.

use pinstripe_export::nbd::fuzz_nbd;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::client::{FLAGS, context_data, info_data, option, request};

fn name() -> impl Strategy<Value = String> {
    prop_oneof![Just("disk"), Just("locked"), Just("none"), Just(""), Just("other")].prop_map(str::to_owned)
}

/// An option as a client sends it, mostly well-formed.
fn some_option() -> impl Strategy<Value = Vec<u8>> {
    let data = vec(any::<u8>(), 0..40);
    prop_oneof![
        4 => (6_u32..8, name(), vec(0_u16..5, 0..4)).prop_map(|(o, name, facts)| option(o, &info_data(&name, &facts))),
        3 => (9_u32..11, name(), vec(prop_oneof![Just("base:allocation"), Just("base:"), Just("x:y")], 0..3))
            .prop_map(|(o, name, queries)| option(o, &context_data(&name, &queries))),
        2 => Just(option(8, &[])),
        1 => Just(option(3, &[])),
        1 => name().prop_map(|name| option(1, name.as_bytes())),
        2 => (0_u32..13, data).prop_map(|(o, data)| option(o, &data)),
        1 => (16_300_usize..16_500).prop_map(|length| option(6, &vec![0; length])),
    ]
}

/// A request as a client sends it, mostly legal, a write with its payload.
fn some_request() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![3 => Just(0_u16), 2 => 0_u16..32, 1 => any::<u16>()];
    let offset = prop_oneof![6 => (0_u64..2100).prop_map(|block| block * 512), 1 => any::<u64>()];
    let length = prop_oneof![6 => (0_u32..12).prop_map(|block| block * 512), 1 => 0_u32..5000];
    let command = prop_oneof![3 => Just(1_u16), 10 => prop_oneof![Just(0_u16), 3_u16..9], 1 => any::<u16>()];
    (flags, command, any::<u64>(), offset, length).prop_map(|(flags, command, cookie, offset, length)| {
        let mut bytes = request(flags, command, cookie, offset, length);
        if command == 1 {
            bytes.resize(bytes.len() + length as usize, 0x5a);
        }
        bytes
    })
}

fn conversation() -> impl Strategy<Value = Vec<u8>> {
    (any::<u8>(), vec(some_option(), 0..8), name(), vec(some_request(), 0..12)).prop_map(
        |(mode, options, export, requests)| {
            let mut bytes = vec![mode];
            if mode & 0x80 == 0 {
                bytes.extend(FLAGS);
                bytes.extend(options.concat());
                bytes.extend(option(7, &info_data(&export, &[3])));
            }
            bytes.extend(requests.concat());
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn arbitrary_bytes_do_not_panic_and_fragments_do_not_matter(data in vec(any::<u8>(), 0..400)) {
        fuzz_nbd(&data);
    }

    #[test]
    fn fragments_of_a_conversation_do_not_matter(data in conversation()) {
        fuzz_nbd(&data);
    }

    #[test]
    fn a_damaged_conversation_does_not_panic(
        data in conversation(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        end in any::<prop::sample::Index>(),
    ) {
        let mut data = data;
        for (place, byte) in damage {
            let place = place.index(data.len());
            data[place] ^= byte;
        }
        data.truncate(end.index(data.len()) + 1);
        fuzz_nbd(&data);
    }
}
