//! Requests and replies.

use pinstripe_export::nbd::wire::ErrorCode;
use pinstripe_export::nbd::{
    ExportInfo, Negotiated, Operation, Replies, Request, Transmission, TransmissionEvent, Violation,
};

use crate::client::request;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const CACHE: u16 = 5;
const ZEROES: u16 = 6;
const STATUS: u16 = 7;
const SIZE: u64 = 1 << 40;
const MAX: u32 = 32 << 20;

fn connection(structured: bool, allocation: bool, read_only: bool) -> Transmission {
    let info = ExportInfo::new("x", "", SIZE, 4096, 4096, read_only).unwrap();
    Transmission::new(&info, Negotiated { export: 0, structured, allocation })
}

/// What a header comes to, in a fresh connection with all options.
fn event(header: &[u8]) -> Option<TransmissionEvent> {
    event_of(&mut connection(true, true, false), header)
}

fn event_of(core: &mut Transmission, bytes: &[u8]) -> Option<TransmissionEvent> {
    let step = core.receive(bytes);
    assert_eq!(step.consumed, bytes.len());
    step.event
}

/// The error with which a request is refused, after its payload is skipped.
fn refusal(core: &mut Transmission, header: &[u8]) -> Option<ErrorCode> {
    let mut event = event_of(core, header);
    let length = u32::from_be_bytes(header[24..].try_into().unwrap());
    if event.is_none() {
        assert_eq!(header[7], 1, "only a write has payload");
        let payload = vec![0; length as usize];
        let (first, last) = payload.split_at(payload.len() / 2);
        assert_eq!(event_of(core, first), None, "the refusal comes after the payload");
        event = event_of(core, last);
    }
    let Some(TransmissionEvent::Reply(reply, error)) = event else { panic!("{event:?}") };
    // The cookie is told and the number is on the wire.
    assert_eq!(reply.bytes()[8..16], header[8..16]);
    let structured = reply.bytes()[..4] == 0x668e_33ef_u32.to_be_bytes();
    let at = if structured { 20 } else { 4 };
    if let Some(error) = error {
        assert_eq!(reply.bytes()[at..at + 4], error.number().to_be_bytes());
    }
    error
}

fn operation(header: &[u8]) -> Operation {
    match event(header) {
        Some(TransmissionEvent::Request(Request { cookie: 7, operation })) => operation,
        other => panic!("{other:?}"),
    }
}

fn answer(header: &[u8]) -> Vec<u8> {
    match event(header) {
        Some(TransmissionEvent::Reply(reply, None)) => reply.bytes().to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn commands_become_requests() {
    let (offset, length) = (8192, 4096);
    assert_eq!(operation(&request(0, READ, 7, offset, length)), Operation::Read { offset, length });
    assert_eq!(operation(&request(4, READ, 7, offset, MAX)), Operation::Read { offset, length: MAX });
    assert_eq!(operation(&request(0, FLUSH, 7, 0, 0)), Operation::Flush);
    for (flags, fua) in [(0, false), (1, true)] {
        assert_eq!(
            operation(&request(flags, WRITE, 7, offset, length)),
            Operation::Write { offset, length, fua }
        );
        let length = 0xffff_f000;
        assert_eq!(
            operation(&request(flags, TRIM, 7, offset, length)),
            Operation::Trim { offset, length, fua }
        );
    }
    for flags in [0, 1, 2, 16, 19] {
        let expected = Operation::WriteZeroes {
            offset,
            length,
            fua: flags & 1 != 0,
            may_punch: flags & 2 == 0,
            fast_only: flags & 16 != 0,
        };
        assert_eq!(operation(&request(flags, ZEROES, 7, offset, length)), expected);
    }
}

#[test]
fn fua_is_taken_with_every_command() {
    assert_eq!(operation(&request(1, READ, 7, 0, 4096)), Operation::Read { offset: 0, length: 4096 });
    assert_eq!(operation(&request(1, FLUSH, 7, 0, 0)), Operation::Flush);
    answer(&request(1, CACHE, 7, 0, 4096));
    answer(&request(1, STATUS, 7, 0, 4096));
}

#[test]
fn flags_of_other_commands_are_invalid() {
    let legal = |command| match command {
        READ => 0b0_0101,
        ZEROES => 0b1_0011,
        STATUS => 0b0_1001,
        _ => 1_u16,
    };
    for command in [READ, WRITE, FLUSH, TRIM, CACHE, ZEROES, STATUS] {
        let length = if command == FLUSH { 0 } else { 4096 };
        for bit in 0..16 {
            let flags = 1 << bit;
            let mut core = connection(true, true, false);
            let header = request(flags, command, 7, 0, length);
            if legal(command) & flags == 0 {
                assert_eq!(refusal(&mut core, &header), Some(ErrorCode::Invalid), "{command} {flags:#x}");
            } else {
                assert!(!matches!(event_of(&mut core, &header), Some(TransmissionEvent::Reply(_, Some(_)))));
            }
        }
    }
    // DF without structured replies.
    assert_eq!(
        refusal(&mut connection(false, false, false), &request(4, READ, 7, 0, 4096)),
        Some(ErrorCode::Invalid)
    );
}

#[test]
fn unknown_commands_are_invalid() {
    for command in [8, 9, 0xffff] {
        assert_eq!(
            refusal(&mut connection(true, true, false), &request(0, command, 7, 0, 0)),
            Some(ErrorCode::Invalid)
        );
    }
}

#[test]
fn unaligned_ranges_are_invalid() {
    for command in [READ, WRITE, TRIM, CACHE, ZEROES, STATUS] {
        for (offset, length) in [(512, 4096), (4096, 512), (1, 4095), (u64::MAX, 1)] {
            let mut core = connection(true, true, false);
            assert_eq!(refusal(&mut core, &request(0, command, 7, offset, length)), Some(ErrorCode::Invalid));
        }
    }
}

#[test]
fn ranges_past_the_end_are_refused_and_those_up_to_it_are_not() {
    for command in [READ, WRITE, TRIM, CACHE, ZEROES, STATUS] {
        let error = if matches!(command, WRITE | ZEROES) { ErrorCode::Space } else { ErrorCode::Invalid };
        for (offset, length) in [(SIZE, 4096), (SIZE - 4096, 8192), (u64::MAX - 4095, 4096), (1 << 63, 4096)]
        {
            let mut core = connection(true, true, false);
            assert_eq!(refusal(&mut core, &request(0, command, 7, offset, length)), Some(error), "{command}");
        }
        let last = event(&request(0, command, 7, SIZE - 4096, 4096));
        assert!(matches!(last, Some(TransmissionEvent::Request(_) | TransmissionEvent::Reply(_, None))));
    }
}

#[test]
fn a_read_only_export_refuses_every_change() {
    for structured in [false, true] {
        for command in [WRITE, TRIM, ZEROES] {
            let mut core = connection(structured, false, true);
            assert_eq!(refusal(&mut core, &request(0, command, 7, 0, 4096)), Some(ErrorCode::Permission));
            // And the stream is still in step.
            assert!(matches!(
                event_of(&mut core, &request(0, READ, 8, 0, 4096)),
                Some(TransmissionEvent::Request(Request { cookie: 8, .. }))
            ));
        }
    }
}

#[test]
fn a_request_longer_than_the_maximum_is_refused() {
    for command in [READ, WRITE, CACHE] {
        let mut core = connection(true, false, false);
        assert_eq!(refusal(&mut core, &request(0, command, 7, 0, MAX + 4096)), Some(ErrorCode::Invalid));
        assert!(matches!(
            event_of(&mut core, &request(0, READ, 8, 0, 4096)),
            Some(TransmissionEvent::Request(Request { cookie: 8, .. }))
        ));
    }
}

#[test]
fn a_payload_that_is_not_worth_skipping_ends_the_connection() {
    let mut core = connection(true, false, false);
    let end = event_of(&mut core, &request(0, WRITE, 7, 0, 0xffff_f000));
    assert_eq!(end, Some(TransmissionEvent::Violation(Violation::WriteLength(0xffff_f000))));
    assert_eq!(core.receive(&request(0, READ, 7, 0, 4096)).consumed, 0);
}

#[test]
fn wrong_magic_ends_the_connection() {
    let mut header = request(0, READ, 7, 0, 4096);
    header[3] ^= 1;
    assert_eq!(event(&header), Some(TransmissionEvent::Violation(Violation::RequestMagic(0x2560_9512))));
}

#[test]
fn disconnect_ends_the_connection_without_reply() {
    let mut core = connection(true, false, false);
    assert_eq!(event_of(&mut core, &request(0, DISC, 7, 0, 0)), Some(TransmissionEvent::Disconnect));
    assert_eq!(core.receive(b"more").consumed, 0);
}

#[test]
fn a_flush_has_no_range() {
    for (offset, length) in [(4096, 0), (0, 4096)] {
        let mut core = connection(true, false, false);
        assert_eq!(refusal(&mut core, &request(0, FLUSH, 7, offset, length)), Some(ErrorCode::Invalid));
    }
}

#[test]
fn empty_requests_succeed_and_reach_no_service() {
    let done = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
    for command in [WRITE, TRIM, CACHE, ZEROES] {
        assert_eq!(answer(&request(0, command, 7, 4096, 0)), done);
    }
    // A structured read without content: one chunk of type NONE.
    assert_eq!(
        answer(&request(0, READ, 7, SIZE, 0)),
        [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0]
    );
    let mut simple = connection(false, false, false);
    let Some(TransmissionEvent::Reply(reply, None)) = event_of(&mut simple, &request(0, READ, 7, 0, 0))
    else {
        panic!("no reply");
    };
    assert_eq!(reply.bytes(), done);
}

#[test]
fn block_status_says_allocated_for_the_range() {
    for flags in [0, 8] {
        let reply = answer(&request(flags, STATUS, 7, 4096, 0x0080_0000));
        assert_eq!(reply[..20], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 12]);
        assert_eq!(reply[20..], [0, 0, 0, 1, 0, 0x80, 0, 0, 0, 0, 0, 0]);
    }
    let mut core = connection(true, true, false);
    assert_eq!(refusal(&mut core, &request(0, STATUS, 7, 0, 0)), Some(ErrorCode::Invalid));
    let mut core = connection(true, false, false);
    assert_eq!(refusal(&mut core, &request(0, STATUS, 7, 0, 4096)), Some(ErrorCode::Invalid));
}

#[test]
fn payload_is_passed_through_or_received_elsewhere() {
    let mut core = connection(true, false, false);
    assert_eq!(core.payload_left(), 0);
    event_of(&mut core, &request(0, WRITE, 7, 0, 8192));
    assert_eq!(core.payload_left(), 8192);
    assert_eq!(event_of(&mut core, &[1; 100]), Some(TransmissionEvent::Payload));
    assert_eq!(core.payload_left(), 8092);
    assert!(core.payload_received(8000));
    // The rest of the payload and the next header in one piece: only the payload is taken.
    let mut bytes = vec![1; 92];
    bytes.extend(request(0, READ, 8, 0, 4096));
    let step = core.receive(&bytes);
    assert_eq!((step.consumed, step.event), (92, Some(TransmissionEvent::Payload)));
    assert!(matches!(event_of(&mut core, &bytes[92..]), Some(TransmissionEvent::Request(_))));
}

#[test]
fn payload_that_was_not_due_ends_the_core() {
    let mut core = connection(true, false, false);
    event_of(&mut core, &request(0, WRITE, 7, 0, 4096));
    assert!(!core.payload_received(4097));
    assert_eq!(core.receive(b"x").consumed, 0);
}

#[test]
fn a_stopping_server_answers_shutdown_and_stays_in_step() {
    for structured in [false, true] {
        let mut core = connection(structured, false, false);
        event_of(&mut core, &request(0, WRITE, 7, 0, 4096));
        core.stop();
        // The write that was let in before is still received.
        assert_eq!(event_of(&mut core, &[0; 4096]), Some(TransmissionEvent::Payload));
        for command in [READ, WRITE, TRIM, ZEROES, CACHE] {
            assert_eq!(refusal(&mut core, &request(0, command, 7, 0, 4096)), Some(ErrorCode::Shutdown));
        }
        assert_eq!(refusal(&mut core, &request(0, FLUSH, 7, 0, 0)), Some(ErrorCode::Shutdown));
        assert_eq!(event_of(&mut core, &request(0, DISC, 7, 0, 0)), Some(TransmissionEvent::Disconnect));
    }
}

#[test]
fn replies_are_simple_or_structured_as_negotiated() {
    let cookie = 0x0102_0304_0506_0708;
    let simple = Replies::new(false);
    let header = |error: u8| [0x67, 0x44, 0x66, 0x98, 0, 0, 0, error, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(Replies::done(cookie).bytes(), header(0));
    assert_eq!(simple.read(cookie, 4096, 512).bytes(), header(0));
    assert_eq!(simple.error(cookie, ErrorCode::Io, "sent without words").bytes(), header(5));

    let structured = Replies::new(true);
    let mut read = vec![0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 2, 8];
    read.extend(4096_u64.to_be_bytes());
    assert_eq!(structured.read(cookie, 4096, 512).bytes(), read);
    let mut error = vec![0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9];
    error.extend([0, 0, 0, 5, 0, 3, b'w', b'h', b'y']);
    assert_eq!(structured.error(cookie, ErrorCode::Io, "why").bytes(), error);
}

#[test]
fn error_numbers_are_the_protocols() {
    use ErrorCode::{Invalid, Io, Memory, Overflow, Permission, Shutdown, Space, Unsupported};
    let numbers =
        [Permission, Io, Memory, Invalid, Space, Overflow, Unsupported, Shutdown].map(ErrorCode::number);
    assert_eq!(numbers, [1, 5, 12, 22, 28, 75, 95, 108]);
}
