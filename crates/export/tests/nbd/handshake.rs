//! Option haggling.

use pinstripe_export::nbd::{
    ExportInfo, ExportInfoError, Handshake, HandshakeEnd, Negotiated, OPTION_BYTES_MAX, Violation,
};

use crate::client::{FLAGS, OptionReply, context_data, info_data, option, option_replies, string};

const ACK: u32 = 1;
const UNSUP: u32 = (1 << 31) + 1;
const INVALID: u32 = (1 << 31) + 3;
const UNKNOWN: u32 = (1 << 31) + 6;
const SHUTDOWN: u32 = (1 << 31) + 7;
const TOO_BIG: u32 = (1 << 31) + 9;

fn exports() -> Vec<ExportInfo> {
    vec![
        ExportInfo::new("array", "six files", 1 << 30, 512, 65536, false).unwrap(),
        ExportInfo::new("archive", "", 1 << 20, 4096, 4096, true).unwrap(),
    ]
}

/// A handshake after its greeting was read and the client's `flags` came.
fn greeted(flags: &[u8]) -> Handshake {
    let mut handshake = Handshake::default();
    assert_eq!(handshake.output().as_slice(), b"NBDMAGICIHAVEOPT\x00\x03");
    handshake.output().clear();
    assert_eq!(feed(&mut handshake, flags), None);
    handshake
}

fn feed(handshake: &mut Handshake, mut bytes: &[u8]) -> Option<HandshakeEnd> {
    let exports = exports();
    loop {
        let step = handshake.receive(&exports, bytes);
        bytes = &bytes[step.consumed..];
        if step.end.is_some() || bytes.is_empty() {
            assert!(bytes.is_empty(), "bytes were left behind");
            return step.end;
        }
    }
}

/// Sends one option, gives the replies.
fn ask(handshake: &mut Handshake, number: u32, data: &[u8]) -> Vec<OptionReply> {
    assert_eq!(feed(handshake, &option(number, data)), None);
    replies(handshake, number)
}

fn replies(handshake: &mut Handshake, number: u32) -> Vec<OptionReply> {
    let replies = option_replies(&core::mem::take(handshake.output()));
    assert!(replies.iter().all(|reply| reply.option == number));
    replies
}

fn kinds(replies: &[OptionReply]) -> Vec<u32> {
    replies.iter().map(|reply| reply.kind).collect()
}

#[allow(clippy::unnecessary_wraps, reason = "it is compared with what a step gives")]
fn negotiated(export: usize, structured: bool, allocation: bool) -> Option<HandshakeEnd> {
    Some(HandshakeEnd::Transmission(Negotiated { export, structured, allocation }))
}

#[test]
fn go_gives_size_flags_and_block_sizes_and_enters_transmission() {
    let mut handshake = greeted(&FLAGS);
    assert_eq!(
        feed(&mut handshake, &option(7, &info_data("array", &[1, 2, 3, 77]))),
        negotiated(0, false, false)
    );
    let replies = replies(&mut handshake, 7);
    assert_eq!(kinds(&replies), [3, 3, 3, 3, ACK]);
    // HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, MULTI_CONN, CACHE, FAST_ZERO
    assert_eq!(replies[0].data, [&[0, 0][..], &(1_u64 << 30).to_be_bytes(), &[0x0d, 0x6d]].concat());
    assert_eq!(replies[1].data, [0, 3, 0, 0, 2, 0, 0, 1, 0, 0, 2, 0, 0, 0]);
    assert_eq!(replies[2].data, b"\x00\x01array");
    assert_eq!(replies[3].data, b"\x00\x02six files");
}

#[test]
fn info_describes_without_entering_transmission_and_agrees_with_go() {
    let mut handshake = greeted(&FLAGS);
    let info = ask(&mut handshake, 6, &info_data("archive", &[3]));
    assert_eq!(kinds(&info), [3, 3, ACK]);
    // HAS_FLAGS, READ_ONLY, FLUSH, FUA, MULTI_CONN, CACHE
    assert_eq!(info[0].data[10..], [0x05, 0x0f]);
    assert_eq!(feed(&mut handshake, &option(7, &info_data("archive", &[3]))), negotiated(1, false, false));
    let go = replies(&mut handshake, 7);
    assert!(info.iter().zip(&go).all(|(info, go)| info.data == go.data));
}

#[test]
fn the_empty_name_is_the_first_export_unless_one_is_called_so() {
    let mut handshake = greeted(&FLAGS);
    assert_eq!(feed(&mut handshake, &option(7, &info_data("", &[1]))), negotiated(0, false, false));
    assert_eq!(replies(&mut handshake, 7)[2].data, b"\x00\x01array", "the canonical name is told");

    let mut exports = exports();
    exports.push(ExportInfo::new("", "", 4096, 512, 512, false).unwrap());
    let mut handshake = greeted(&FLAGS);
    let go = option(7, &info_data("", &[]));
    let first = handshake.receive(&exports, &go);
    let second = handshake.receive(&exports, &go[first.consumed..]);
    assert_eq!(second.end, negotiated(2, false, false));
}

#[test]
fn an_unknown_export_is_refused_and_haggling_goes_on() {
    let mut handshake = greeted(&FLAGS);
    for number in [6, 7] {
        assert_eq!(kinds(&ask(&mut handshake, number, &info_data("nothing", &[]))), [UNKNOWN]);
    }
    assert_eq!(kinds(&ask(&mut handshake, 6, &info_data("array\u{e9}", &[]))), [UNKNOWN]);
    assert_eq!(feed(&mut handshake, &option(7, &info_data("array", &[]))), negotiated(0, false, false));
}

#[test]
fn list_names_every_export() {
    let mut handshake = greeted(&FLAGS);
    let replies = ask(&mut handshake, 3, &[]);
    assert_eq!(kinds(&replies), [2, 2, ACK]);
    assert_eq!(replies[0].data, [string("array"), b"six files".to_vec()].concat());
    assert_eq!(replies[1].data, string("archive"));
    assert_eq!(kinds(&ask(&mut handshake, 3, &[1])), [INVALID]);
}

#[test]
fn export_name_answers_with_zeroes_unless_both_left_them_out() {
    for (flags, zeroes) in [([0, 0, 0, 3], 0), ([0, 0, 0, 1], 124), ([0, 0, 0, 0], 124), ([0, 0, 0, 2], 0)] {
        let mut handshake = greeted(&flags);
        assert_eq!(feed(&mut handshake, &option(1, b"archive")), negotiated(1, false, false));
        let mut expected = (1_u64 << 20).to_be_bytes().to_vec();
        expected.extend([0x05, 0x0f]);
        expected.resize(10 + zeroes, 0);
        assert_eq!(*handshake.output(), expected);
    }
}

#[test]
fn export_name_of_nothing_ends_the_connection() {
    let mut handshake = greeted(&FLAGS);
    let end = feed(&mut handshake, &option(1, b"nothing"));
    assert_eq!(end, Some(HandshakeEnd::Violation(Violation::ExportUnknown)));
    assert!(handshake.output().is_empty());
}

#[test]
fn export_name_without_a_name_is_the_default_export() {
    let mut handshake = greeted(&FLAGS);
    assert_eq!(feed(&mut handshake, &option(1, b"")), negotiated(0, false, false));
}

#[test]
fn abort_is_acknowledged_even_with_data() {
    for data in [&b""[..], b"bye"] {
        let mut handshake = greeted(&FLAGS);
        assert_eq!(feed(&mut handshake, &option(2, data)), Some(HandshakeEnd::Aborted));
        assert_eq!(kinds(&replies(&mut handshake, 2)), [ACK]);
    }
}

#[test]
fn unknown_options_and_tls_are_unsupported_and_their_data_is_skipped() {
    let mut handshake = greeted(&FLAGS);
    for (number, length) in [(5, 0), (5, 3), (4, 10), (11, 0), (0xffff_ffff, 200_000)] {
        assert_eq!(kinds(&ask(&mut handshake, number, &vec![7; length])), [UNSUP], "option {number}");
    }
    assert_eq!(kinds(&ask(&mut handshake, 8, &[])), [ACK]);
}

#[test]
fn data_longer_than_the_server_keeps_is_too_big() {
    let mut handshake = greeted(&FLAGS);
    let length = OPTION_BYTES_MAX as usize;
    assert_eq!(kinds(&ask(&mut handshake, 6, &vec![0; length + 1])), [TOO_BIG]);
    assert_eq!(kinds(&ask(&mut handshake, 6, &vec![0; length])), [INVALID]);
    let name = "n".repeat(4097);
    assert_eq!(kinds(&ask(&mut handshake, 7, &info_data(&name, &[]))), [TOO_BIG]);
}

#[test]
fn data_that_is_not_worth_skipping_ends_the_connection() {
    let mut handshake = greeted(&FLAGS);
    let mut header = option(99, &[]);
    header[12..].copy_from_slice(&0xffff_fff0_u32.to_be_bytes());
    let end = feed(&mut handshake, &header);
    assert!(matches!(end, Some(HandshakeEnd::Violation(Violation::OptionLength { option: 99, .. }))));
}

#[test]
fn structured_replies_bring_the_df_flag() {
    let mut handshake = greeted(&FLAGS);
    assert_eq!(kinds(&ask(&mut handshake, 8, &[0])), [INVALID]);
    assert_eq!(kinds(&ask(&mut handshake, 8, &[])), [ACK]);
    assert_eq!(feed(&mut handshake, &option(7, &info_data("array", &[]))), negotiated(0, true, false));
    assert_eq!(replies(&mut handshake, 7)[0].data[10..], [0x0d, 0xed]);
}

#[test]
fn contexts_need_structured_replies() {
    let mut handshake = greeted(&FLAGS);
    for number in [9, 10] {
        assert_eq!(
            kinds(&ask(&mut handshake, number, &context_data("array", &["base:allocation"]))),
            [INVALID]
        );
    }
}

#[test]
fn contexts_are_listed_by_name_wildcard_or_without_query() {
    let mut handshake = greeted(&FLAGS);
    ask(&mut handshake, 8, &[]);
    for queries in [&[][..], &["base:"], &["base:allocation"], &["x-other:thing", "base:allocation", "base:"]]
    {
        let replies = ask(&mut handshake, 9, &context_data("array", queries));
        assert_eq!(kinds(&replies), [4, ACK], "{queries:?}");
        assert_eq!(replies[0].data, b"\0\0\0\0base:allocation");
    }
    for queries in [&["qemu:"][..], &["base:other"], &["nonsense"], &[""]] {
        assert_eq!(kinds(&ask(&mut handshake, 9, &context_data("array", queries))), [ACK], "{queries:?}");
    }
    assert_eq!(kinds(&ask(&mut handshake, 9, &context_data("nothing", &[]))), [UNKNOWN]);
}

#[test]
fn a_context_holds_for_the_export_for_which_it_was_set_last() {
    let select = |steps: &[(&str, &[&str])], name: &str| {
        let mut handshake = greeted(&FLAGS);
        ask(&mut handshake, 8, &[]);
        for (export, queries) in steps {
            ask(&mut handshake, 10, &context_data(export, queries));
        }
        feed(&mut handshake, &option(7, &info_data(name, &[])))
    };
    let allocation: &[&str] = &["base:allocation"];
    assert_eq!(select(&[("array", allocation)], "array"), negotiated(0, true, true));
    assert_eq!(select(&[("", allocation)], "array"), negotiated(0, true, true));
    assert_eq!(select(&[("array", allocation)], "archive"), negotiated(1, true, false));
    assert_eq!(
        select(&[("array", allocation), ("archive", allocation)], "array"),
        negotiated(0, true, false)
    );
    // No query, a wildcard, and an option that fails all leave nothing selected.
    for (export, queries) in [("array", &[][..]), ("array", &["base:"]), ("nothing", allocation)] {
        assert_eq!(select(&[("array", allocation), (export, queries)], "array"), negotiated(0, true, false));
    }
}

#[test]
fn malformed_data_is_invalid() {
    let mut handshake = greeted(&FLAGS);
    ask(&mut handshake, 8, &[]);
    let good = info_data("array", &[3]);
    let mut long = good.clone();
    long.push(0);
    let mut lying = good.clone();
    lying[3] = 200;
    for data in [&[][..], &good[..3], &good[..good.len() - 1], &long, &lying] {
        assert_eq!(kinds(&ask(&mut handshake, 6, data)), [INVALID], "{data:?}");
    }
    let good = context_data("array", &["base:"]);
    let mut count = good.clone();
    count[9..13].copy_from_slice(&[0xff; 4]);
    let mut long = good.clone();
    long.push(0);
    for data in [&[][..], &good[..6], &good[..good.len() - 1], &count, &long] {
        assert_eq!(kinds(&ask(&mut handshake, 9, data)), [INVALID], "{data:?}");
        assert_eq!(kinds(&ask(&mut handshake, 10, data)), [INVALID], "{data:?}");
    }
}

#[test]
fn unknown_client_flags_and_wrong_magic_end_the_connection() {
    let mut handshake = Handshake::default();
    let end = feed(&mut handshake, &[0, 0, 0, 4]);
    assert_eq!(end, Some(HandshakeEnd::Violation(Violation::ClientFlags(4))));
    let mut handshake = Handshake::default();
    let end = feed(&mut handshake, &[0, 1, 0, 3]);
    assert_eq!(end, Some(HandshakeEnd::Violation(Violation::ClientFlags(0x1_0003))));

    let mut handshake = greeted(&FLAGS);
    let mut header = option(3, &[]);
    header[0] = b'J';
    assert!(matches!(
        feed(&mut handshake, &header),
        Some(HandshakeEnd::Violation(Violation::OptionMagic(_)))
    ));
}

#[test]
fn a_client_without_fixed_newstyle_may_only_send_export_name() {
    let mut handshake = greeted(&[0, 0, 0, 0]);
    let end = feed(&mut handshake, &option(3, &[]));
    assert_eq!(end, Some(HandshakeEnd::Violation(Violation::OptionNotFixed(3))));
}

#[test]
fn endless_haggling_is_ended() {
    let mut handshake = greeted(&FLAGS);
    for _ in 0..256 {
        assert_eq!(kinds(&ask(&mut handshake, 5, &[])), [UNSUP]);
    }
    let end = feed(&mut handshake, &option(5, &[]));
    assert_eq!(end, Some(HandshakeEnd::Violation(Violation::OptionCount(256))));
}

#[test]
fn a_stopping_server_refuses_all_but_abort() {
    let mut handshake = greeted(&FLAGS);
    handshake.stop();
    for number in [3, 5, 6, 7, 8, 9, 10, 1234] {
        assert_eq!(kinds(&ask(&mut handshake, number, &[])), [SHUTDOWN]);
        assert_eq!(kinds(&ask(&mut handshake, number, &vec![0; 20_000])), [SHUTDOWN]);
    }
    assert_eq!(feed(&mut handshake, &option(2, &[])), Some(HandshakeEnd::Aborted));

    let mut handshake = greeted(&FLAGS);
    handshake.stop();
    assert_eq!(
        feed(&mut handshake, &option(1, b"array")),
        Some(HandshakeEnd::Violation(Violation::Stopping))
    );
}

#[test]
fn errors_carry_a_message() {
    let mut handshake = greeted(&FLAGS);
    let replies = ask(&mut handshake, 5, &[]);
    assert!(str::from_utf8(&replies[0].data).unwrap().contains("does not support"));
}

#[test]
fn block_sizes_are_what_the_protocol_allows() {
    let told = |block, preferred| {
        let info = ExportInfo::new("x", "", 1 << 20, block, preferred, false).unwrap();
        (info.block_size(), info.preferred_block())
    };
    assert_eq!(told(512, 327_680), (512, 262_144));
    assert_eq!(told(4096, 512), (4096, 4096));
    assert_eq!(told(1, 0), (1, 512));
    assert_eq!(told(65536, u32::MAX), (65536, 32 << 20));
    let error = |name: &str, size, block| ExportInfo::new(name, "", size, block, 4096, false).unwrap_err();
    assert_eq!(error("x", 1 << 20, 1 << 17), ExportInfoError::BlockSize(1 << 17));
    assert_eq!(error("x", 1 << 20, 0), ExportInfoError::BlockSize(0));
    assert_eq!(error("x", 1 << 20, 520), ExportInfoError::BlockSize(520));
    assert_eq!(error("x", 1000, 512), ExportInfoError::Size { size_bytes: 1000, block_size: 512 });
    assert!(matches!(error("a\0b", 512, 512), ExportInfoError::Text(_)));
    assert!(matches!(error(&"n".repeat(4097), 512, 512), ExportInfoError::Text(_)));
}
