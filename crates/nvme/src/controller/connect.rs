//! The beginning of a connection: ICReq, then Connect, which makes it a queue of a controller.

use std::rc::Rc;
use std::sync::Arc;

use pinstripe_runtime::shard;
use zerocopy::{FromBytes, FromZeros};

use super::inner::Inner;
use super::limits::{COMMANDS_MAX, TRANSFER_BYTES_MAX};
use super::subsystem::Controller;
use crate::framing::{BLANK, Encoding, Pdu};
use crate::inbound::{Ended, Inbound};
use crate::link::Link;
use crate::mutants::{Mutant, active};
use crate::wire::auth::CONNECT_AUTHENTICATE;
use crate::wire::command::{Command, Completion, fabrics};
use crate::wire::fabrics::{CONTROLLER_ANY, ConnectData, NO_FLOW_CONTROL, connect_field};
use crate::wire::pdu::{FatalError, InitializeConnection, ResponseCapsule, digest, kind};
use crate::wire::status::Status;
use crate::wire::{DISCOVERY_NQN, nqn_is_valid, text};

/// Bytes of Connect's data.
const CONNECT_BYTES: u32 = 1024;
/// How long a new association waits for the end of the host's old ones, where they are too many.
const DRAIN_NANOSECONDS: u64 = 20_000_000_000;

/// A connection that has become a queue.
pub(super) struct Queue {
    pub controller: Arc<Controller>,
    pub number: u16,
    /// Commands that may be outstanding.
    pub entries: u16,
    pub flow_control: bool,
    pub encoding: Encoding,
}

/// ICReq and ICResp: what is agreed for this connection.
pub(super) async fn initialize(inbound: &mut Inbound, link: &Link) -> Result<Encoding, Ended> {
    let Pdu::Initialize(request) = inbound.next().await? else {
        return Err(Ended::Fatal(FatalError::Sequence, 0));
    };
    if request.version.get() != 0 {
        return Err(Ended::Fatal(FatalError::UnsupportedParameter, 8));
    }
    if request.data_alignment > 31 {
        return Err(Ended::Fatal(FatalError::InvalidHeader, 10));
    }
    let wanted = request.digests & (digest::HEADER | digest::DATA);
    let mut response = InitializeConnection::new_zeroed();
    response.digests = wanted;
    response.limit = TRANSFER_BYTES_MAX.into();
    link.send_copy(&[Encoding::default().header(kind::IC_RESP, 0, &response, 0).bytes()]);
    let encoding = Encoding {
        header_digests: wanted & digest::HEADER != 0,
        data_digests: wanted & digest::DATA != 0,
        alignment: (request.data_alignment + 1) * 4,
    };
    inbound.framer.set_digests(encoding.header_digests, encoding.data_digests);
    Ok(encoding)
}

/// Waits for a Connect that can be granted. Others are refused, and nothing else is taken.
pub(super) async fn connect<S>(
    inner: &Rc<Inner<S>>,
    inbound: &mut Inbound,
    link: &Link,
    encoding: Encoding,
) -> Result<Queue, Ended> {
    loop {
        // Answers hold nothing: what a stranger doesn't take must not pile up (C35).
        link.room().await;
        let Pdu::Command(command, length) = inbound.next().await? else {
            return Err(Ended::Fatal(FatalError::Sequence, 0));
        };
        let answer = if length == CONNECT_BYTES {
            let (data, intact) = inbound.data(shard::buffer(CONNECT_BYTES as usize), 0).await;
            let intact = intact?;
            let request = Request::parse(&command, data.as_deref().unwrap_or_default());
            drop(data);
            match request {
                _ if !intact => Err((Status::TRANSIENT_TRANSPORT, 0)),
                Err(refused) => Err(refused),
                Ok(request) if link.host().is_some_and(|host| host != request.host) => {
                    Err((Status::CONNECT_INVALID_HOST, 0))
                }
                Ok(request) => grant(inner, request).await,
            }
        } else if length <= CONNECT_BYTES {
            inbound.skip_data().await?;
            Err((Status::COMMAND_SEQUENCE, 0))
        } else {
            return Err(Ended::Fatal(FatalError::DataTransferLimit, 4));
        };
        let (status, result) = match &answer {
            Ok((controller, ..)) => {
                let asked = inner.subsystem.authentication().map_or(0, |_| CONNECT_AUTHENTICATE);
                (Status::SUCCESS, u64::from(controller.id) | asked)
            }
            Err((status, result)) => (*status, *result),
        };
        let mut completion = Completion::new(command.id.get(), status, result);
        let flow_control = answer.as_ref().map_or(true, |(_, request)| request.flow_control);
        // The Connect itself is the first entry that was taken.
        completion.queue_head = if flow_control { 1.into() } else { 0xffff.into() };
        let capsule = ResponseCapsule { common: BLANK, completion };
        link.send_copy(&[encoding.header(kind::CAPSULE_RESP, 0, &capsule, 0).bytes()]);
        if let Ok((controller, request)) = answer {
            let Request { queue: number, entries, flow_control, .. } = request;
            return Ok(Queue { controller, number, entries, flow_control, encoding });
        }
    }
}

/// A Connect with legal fields.
struct Request {
    queue: u16,
    entries: u16,
    flow_control: bool,
    keep_alive_ms: u32,
    host_id: [u8; 16],
    controller: u16,
    subsystem: String,
    host: String,
}

/// The status, and which field was wrong.
type Refused = (Status, u64);

fn wrong(field: u64) -> Refused {
    (Status::CONNECT_INVALID_PARAMETERS, field)
}

impl Request {
    fn parse(command: &Command, data: &[u8]) -> Result<Self, Refused> {
        if command.opcode != fabrics::OPCODE || command.fabrics_kind() != fabrics::CONNECT {
            return Err((Status::COMMAND_SEQUENCE, 0));
        }
        let place = command.data().map_err(|status| (status, 0))?;
        if place.length() != CONNECT_BYTES {
            return Err((Status::DATA_LENGTH_INVALID, 0));
        }
        let data = ConnectData::read_from_bytes(data).map_err(|_| (Status::DATA_LENGTH_INVALID, 0))?;
        let [_, _, queue_low, queue_high] = command.dword(10).to_le_bytes();
        let [size_low, size_high, attributes, _] = command.dword(11).to_le_bytes();
        if command.dword(10) & 0xffff != 0 {
            return Err((Status::CONNECT_INCOMPATIBLE_FORMAT, 0));
        }
        let queue = u16::from_le_bytes([queue_low, queue_high]);
        let size = u16::from_le_bytes([size_low, size_high]);
        let entries = size.checked_add(1).filter(|entries| (2..=COMMANDS_MAX).contains(entries));
        let name = |field: &[u8]| text(field).filter(|name| nqn_is_valid(name)).map(str::to_owned);
        if data.host_id == [0; 16] {
            return Err(wrong(connect_field::HOST_ID));
        }
        Ok(Self {
            queue,
            entries: entries.ok_or(wrong(connect_field::SIZE))?,
            flow_control: attributes & NO_FLOW_CONTROL == 0,
            keep_alive_ms: command.dword(12),
            host_id: data.host_id,
            controller: data.controller.get(),
            subsystem: name(&data.subsystem).ok_or(wrong(connect_field::SUBSYSTEM))?,
            host: name(&data.host).ok_or(wrong(connect_field::HOST))?,
        })
    }
}

async fn grant<S>(inner: &Rc<Inner<S>>, request: Request) -> Result<(Arc<Controller>, Request), Refused> {
    if inner.stopping.get() {
        return Err((Status(Status::CONNECT_CONTROLLER_BUSY.code()), 0));
    }
    let controller = if request.queue == 0 { admin(inner, &request).await? } else { io(inner, &request)? };
    // Where hosts authenticate, the first connection that proves its host's identity takes the number.
    let later = inner.subsystem.authentication().is_some() && !active(Mutant::NumberHeldUnproven);
    let free = if later { !controller.has_queue(request.queue) } else { controller.add_queue(request.queue) };
    if free { Ok((controller, request)) } else { Err(wrong(connect_field::QUEUE)) }
}

/// A new controller.
async fn admin<S>(inner: &Rc<Inner<S>>, request: &Request) -> Result<Arc<Controller>, Refused> {
    let subsystem = &inner.subsystem;
    let discovery = request.subsystem == DISCOVERY_NQN;
    if !discovery && request.subsystem != subsystem.config().nqn {
        return Err(wrong(connect_field::SUBSYSTEM));
    }
    if subsystem.authentication().is_some_and(|known| known.peer(&request.host).is_none()) {
        return Err((Status::CONNECT_INVALID_HOST, 0));
    }
    if request.controller != CONTROLLER_ANY {
        return Err(wrong(connect_field::CONTROLLER));
    }
    // What ended associations of the host write is waited for where it is written ([`Controller::admit`]). A
    // host must not fill the target with controllers by commands that never end.
    let over = subsystem.changed.wait_until(|| !subsystem.drains_too_many(&request.host_id));
    if !discovery && shard::timeout(DRAIN_NANOSECONDS, over).await.is_none() {
        return Err((Status(Status::CONNECT_CONTROLLER_BUSY.code()), 0));
    }
    let (host_id, keep_alive) = (request.host_id, request.keep_alive_ms);
    let made = subsystem.add_controller(host_id, &request.host, discovery, keep_alive, shard::now());
    made.ok_or((Status(Status::CONNECT_CONTROLLER_BUSY.code()), 0))
}

/// The controller that a further queue belongs to.
fn io<S>(inner: &Rc<Inner<S>>, request: &Request) -> Result<Arc<Controller>, Refused> {
    let controller = inner.subsystem.controller(request.controller);
    let controller = controller.filter(|controller| !controller.discovery);
    let controller = controller.ok_or(wrong(connect_field::CONTROLLER))?;
    if request.subsystem != inner.subsystem.config().nqn {
        return Err(wrong(connect_field::SUBSYSTEM));
    }
    if controller.host_id != request.host_id || controller.host != request.host {
        return Err((Status::CONNECT_INVALID_HOST, 0));
    }
    if request.queue > inner.subsystem.config().queues_max {
        return Err(wrong(connect_field::QUEUE));
    }
    if !controller.is_ready() {
        return Err((Status::COMMAND_SEQUENCE, 0));
    }
    Ok(controller)
}
