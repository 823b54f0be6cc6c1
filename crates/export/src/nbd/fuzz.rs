//! One body for the fuzz target and for the property test: whatever the bytes and wherever they are cut, the
//! core doesn't panic, comes to the same events and sends the same bytes.

use super::{ExportInfo, Handshake, HandshakeEnd, Operation, Tls, Transmission, TransmissionEvent, wire};

/// What a connection came to. Payload is collected by write, so that its fragmentation doesn't show.
#[derive(Debug, Default, PartialEq, Eq)]
struct Trace {
    sent: Vec<u8>,
    handshake_end: Option<HandshakeEnd>,
    events: Vec<TransmissionEvent>,
    payloads: Vec<Vec<u8>>,
}

/// Runs one connection over `data` twice, in one piece and in fragments, and checks that both are equal and
/// that every request is legal.
///
/// The first byte chooses the fragments; if its top bit is set, the connection begins in the transmission
/// phase, else its lowest two choose what becomes of TLS. What comes in TLS follows as it is.
///
/// # Panics
///
/// If the core breaks one of its promises.
#[doc(hidden)]
pub fn fuzz_nbd(data: &[u8]) {
    let Some((&mode, data)) = data.split_first() else { return };
    let exports = exports();
    let tls = [Tls::Unavailable, Tls::Offered, Tls::Required, Tls::Active][usize::from(mode & 3)];
    let begin = (mode & 0x80 == 0).then_some(tls);
    let whole = run(&exports, data, data.len().max(1), begin);
    let pieces = run(&exports, data, usize::from(mode & 0x7f).max(1), begin);
    assert_eq!(whole, pieces, "fragmentation changed the outcome");
}

/// Three exports of different geometry; the constants are legal, so none is left out.
fn exports() -> Vec<ExportInfo> {
    [
        ExportInfo::new("disk", "an array", 1 << 20, 512, 65536, false),
        ExportInfo::new("locked", "", 1 << 32, 4096, 4096, true),
        ExportInfo::new("none", "no byte at all", 0, 512, 512, false),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn run(exports: &[ExportInfo], data: &[u8], piece: usize, begin: Option<Tls>) -> Trace {
    let mut trace = Trace::default();
    let mut rest = data;
    if let Some(tls) = begin {
        rest = handshake(exports, Handshake::new(tls), data, piece, &mut trace);
    } else {
        let negotiated = super::Negotiated { export: 0, structured: true, allocation: true };
        trace.handshake_end = Some(HandshakeEnd::Transmission(negotiated));
    }
    if let Some(HandshakeEnd::Transmission(negotiated)) = trace.handshake_end {
        let export = &exports[negotiated.export];
        transmission(export, Transmission::new(export, negotiated), rest, piece, &mut trace);
    }
    trace
}

fn handshake<'a>(
    exports: &[ExportInfo],
    mut handshake: Handshake,
    data: &'a [u8],
    piece: usize,
    trace: &mut Trace,
) -> &'a [u8] {
    let mut rest = data;
    while trace.handshake_end.is_none() && !rest.is_empty() {
        let step = handshake.receive(exports, &rest[..rest.len().min(piece)]);
        assert!(step.consumed > 0, "the handshake stands still");
        rest = &rest[step.consumed..];
        trace.handshake_end = step.end;
        trace.sent.append(handshake.output());
        if let Some(HandshakeEnd::StartTls) = step.end {
            trace.handshake_end = None;
            handshake = handshake.secured();
        }
    }
    rest
}

fn transmission(
    export: &ExportInfo,
    mut core: Transmission,
    mut rest: &[u8],
    piece: usize,
    trace: &mut Trace,
) {
    while !rest.is_empty() {
        let step = core.receive(&rest[..rest.len().min(piece)]);
        let (taken, after) = rest.split_at(step.consumed);
        rest = after;
        match step.event {
            Some(TransmissionEvent::Payload) => {
                let payload = trace.payloads.last_mut().expect("a write came before");
                payload.extend_from_slice(taken);
                continue;
            }
            Some(TransmissionEvent::Request(request)) => {
                assert_legal(export, request.operation);
                if let Operation::Write { length, .. } = request.operation {
                    assert_eq!(core.payload_left(), length);
                    trace.payloads.push(Vec::new());
                }
            }
            Some(TransmissionEvent::Reply(reply, _)) => trace.sent.extend_from_slice(reply.bytes()),
            Some(TransmissionEvent::Disconnect | TransmissionEvent::Violation(_)) | None => {}
        }
        trace.events.extend(step.event);
        if step.event.is_some_and(|event| ends(&event)) {
            assert_eq!(core.receive(rest).consumed, 0, "an ended connection takes bytes");
            return;
        }
        assert!(step.consumed > 0, "the transmission stands still");
    }
}

fn ends(event: &TransmissionEvent) -> bool {
    matches!(event, TransmissionEvent::Disconnect | TransmissionEvent::Violation(_))
}

fn assert_legal(export: &ExportInfo, operation: Operation) {
    let (offset, length, payload) = match operation {
        Operation::Flush => return,
        Operation::Read { offset, length } | Operation::Write { offset, length, .. } => {
            (offset, length, length)
        }
        Operation::Trim { offset, length, .. } | Operation::WriteZeroes { offset, length, .. } => {
            (offset, length, 0)
        }
    };
    assert!(length > 0 && payload <= wire::PAYLOAD_BYTES_MAX);
    assert!((offset | u64::from(length)).is_multiple_of(u64::from(export.block_size())));
    assert!(offset + u64::from(length) <= export.size_bytes());
    assert!(!export.read_only() || matches!(operation, Operation::Read { .. }));
}
