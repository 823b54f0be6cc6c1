//! Commands of the admin queue: identify, log pages, features, properties.

use std::sync::atomic::Ordering;

use pinstripe_block::BlockService;

use super::limits::{CAPSULE_BYTES_MAX, COMMANDS_MAX, EVENT_REQUESTS_MAX, TRANSFER_BYTES_MAX};
use super::session::Session;
use crate::wire::command::{Command, NAMESPACE_ALL, admin as opcode, nvm};
use crate::wire::fabrics::{VERSION, bits, property};
use crate::wire::identifiers;
use crate::wire::identify::{self, ControllerInfo, KEEP_ALIVE_UNITS, cns, optional};
use crate::wire::log::{self, page};
use crate::wire::status::Status;
use crate::wire::{DISCOVERY_NQN, feature};

/// Longest time that enabling a controller takes, in units of 500 ms.
const READY_UNITS: u64 = 30;
/// Pages of 4 KiB.
const PAGE_SHIFT: u32 = 12;

const ADMIN_COMMANDS: &[u8] = &[
    opcode::GET_LOG_PAGE,
    opcode::IDENTIFY,
    opcode::ABORT,
    opcode::SET_FEATURES,
    opcode::GET_FEATURES,
    opcode::ASYNC_EVENT,
    opcode::KEEP_ALIVE,
];
const NVM_COMMANDS: &[u8] = &[
    nvm::FLUSH,
    nvm::WRITE,
    nvm::READ,
    nvm::COMPARE,
    nvm::WRITE_ZEROES,
    nvm::DATASET_MANAGEMENT,
    nvm::RESERVATION_REGISTER,
    nvm::RESERVATION_REPORT,
    nvm::RESERVATION_ACQUIRE,
    nvm::RESERVATION_RELEASE,
];
const CHANGING_COMMANDS: &[u8] = &[nvm::WRITE, nvm::WRITE_ZEROES, nvm::DATASET_MANAGEMENT];

/// Carries out a command and answers it.
pub(super) async fn execute<S: BlockService>(session: &Session<S>, command: &Command) {
    match command.opcode {
        opcode::IDENTIFY => {
            let Some(held) = session.answer_memory(command, identify::BYTES).await else { return };
            let page = identify(session, command);
            session.answer(command, held, page.as_ref().map(|page| &page[..]).map_err(|status| *status));
        }
        opcode::GET_LOG_PAGE => {
            let Some((length, offset)) = log_range(command) else {
                return session.complete(command, Err(Status::INVALID_FIELD));
            };
            let Some(held) = session.answer_memory(command, length).await else { return };
            let page = log_page(session, command, length, offset);
            session.answer(command, held, page.as_deref().map_err(|status| *status));
        }
        opcode::GET_FEATURES if command.dword(10) & 0xff == u32::from(feature::HOST_ID) => {
            // Bit 0: the whole identifier of 16 bytes; there is no shorter one over fabrics.
            if command.dword(11) & 1 == 0 {
                return session.complete(command, Err(Status::INVALID_FIELD));
            }
            session.send_data(command, &session.controller.host_id);
        }
        opcode::GET_FEATURES => session.complete(command, get_feature(session, command)),
        opcode::SET_FEATURES => session.complete(command, set_feature(session, command)),
        // Bit 0: the command wasn't aborted. What is being carried out can't be.
        opcode::ABORT => session.complete(command, Ok(1)),
        opcode::KEEP_ALIVE => session.complete(command, Ok(0)),
        _ => session.complete(command, Err(Status::INVALID_OPCODE)),
    }
}

fn controller_info<S>(session: &Session<S>) -> ControllerInfo {
    let subsystem = &session.inner.subsystem;
    let discovery = session.controller.discovery;
    let all =
        optional::COMPARE | optional::DATASET_MANAGEMENT | optional::WRITE_ZEROES | optional::RESERVATIONS;
    ControllerInfo {
        serial: subsystem.config().serial.clone(),
        model: "Pinstripe".to_owned(),
        firmware: env!("CARGO_PKG_VERSION").to_owned(),
        controller: session.controller.id,
        discovery,
        transfer_shift: (TRANSFER_BYTES_MAX >> PAGE_SHIFT).trailing_zeros().to_le_bytes()[0],
        volatile_cache: !discovery,
        commands_max: COMMANDS_MAX,
        namespaces_max: if discovery { 0 } else { subsystem.namespaces_max() },
        optional_commands: if discovery { 0 } else { all },
        events: if discovery { 0 } else { feature::EVENT_NAMESPACE_CHANGED },
        capsule_data_bytes: if discovery { 0 } else { CAPSULE_BYTES_MAX },
        event_requests: EVENT_REQUESTS_MAX,
        // Every command does count, but to the moment: a silent host has its time once, not twice.
        traffic_keep_alive: false,
        keep_alive_units: KEEP_ALIVE_UNITS,
        subsystem: if discovery { DISCOVERY_NQN.to_owned() } else { subsystem.config().nqn.clone() },
    }
}

fn identify<S>(session: &Session<S>, command: &Command) -> Result<Box<[u8; identify::BYTES]>, Status> {
    let subsystem = &session.inner.subsystem;
    let number = command.namespace.get();
    let [what, ..] = command.dword(10).to_le_bytes();
    if what == cns::CONTROLLER {
        let mut page = controller_info(session).encode();
        if let Some(server) = subsystem.offload()
            && !session.controller.discovery
        {
            server.announcement().put(&mut page);
        }
        return Ok(page);
    }
    if session.controller.discovery {
        return Err(Status::INVALID_FIELD);
    }
    let in_range = (1..=subsystem.namespaces_max()).contains(&number);
    match what {
        cns::NAMESPACES if number >= NAMESPACE_ALL - 1 => Err(Status::INVALID_NAMESPACE),
        cns::NAMESPACES => Ok(identify::namespace_list(subsystem.active_namespaces(), number)),
        cns::NAMESPACE | cns::DESCRIPTORS if !in_range => Err(Status::INVALID_NAMESPACE),
        cns::NAMESPACE => Ok(match subsystem.namespace(number) {
            Some(namespace) => namespace.info.encode(),
            // A number without a namespace has a structure of zeroes.
            None => Box::new([0; identify::BYTES]),
        }),
        cns::DESCRIPTORS => match subsystem.namespace(number) {
            Some(namespace) => Ok(identifiers::descriptors(&namespace.info.nguid, &namespace.uuid)),
            None => Err(Status::INVALID_NAMESPACE),
        },
        _ => Err(Status::INVALID_FIELD),
    }
}

/// How much of a log page is asked for, and from where; `None` if it can't be.
fn log_range(command: &Command) -> Option<(usize, usize)> {
    let [_, _, count_low, count_high] = command.dword(10).to_le_bytes();
    let [upper_low, upper_high, ..] = command.dword(11).to_le_bytes();
    let dwords = u64::from(u32::from_le_bytes([count_low, count_high, upper_low, upper_high])) + 1;
    let offset = u64::from(command.dword(12)) | u64::from(command.dword(13)) << 32;
    let fits = dwords * 4 <= u64::from(TRANSFER_BYTES_MAX) && offset.is_multiple_of(4);
    fits.then_some((usize::try_from(dwords * 4).ok()?, usize::try_from(offset).unwrap_or(usize::MAX)))
}

fn log_page<S>(
    session: &Session<S>,
    command: &Command,
    length: usize,
    start: usize,
) -> Result<Vec<u8>, Status> {
    let [which, ..] = command.dword(10).to_le_bytes();
    let keep = command.dword(10) & 1 << 15 != 0;
    let discovery = session.controller.discovery;
    let subsystem = &session.inner.subsystem;
    let whole = match which {
        page::DISCOVERY if discovery => log::discovery(0, &subsystem.discovery()),
        page::ERRORS => log::errors(),
        page::HEALTH if !discovery => log::health(&subsystem.traffic()),
        page::FIRMWARE if !discovery => log::firmware(env!("CARGO_PKG_VERSION")),
        page::CHANGED_NAMESPACES if !discovery => {
            log::changed_namespaces(&session.controller.changed_namespaces(keep))
        }
        page::EFFECTS if !discovery => log::effects(ADMIN_COMMANDS, NVM_COMMANDS, CHANGING_COMMANDS),
        _ => return Err(Status::INVALID_LOG_PAGE),
    };
    if start > whole.len() {
        return Err(Status::INVALID_FIELD);
    }
    let mut part = whole[start..].to_vec();
    part.resize(length, 0);
    Ok(part)
}

fn queues<S>(session: &Session<S>) -> u64 {
    let count = u64::from(session.inner.subsystem.config().queues_max.saturating_sub(1));
    count << 16 | count
}

fn get_feature<S>(session: &Session<S>, command: &Command) -> Result<u64, Status> {
    let [which, ..] = command.dword(10).to_le_bytes();
    let controller = &session.controller;
    match which {
        feature::ASYNC_EVENTS => Ok(controller.events().into()),
        feature::KEEP_ALIVE => Ok(controller.keep_alive_ms.load(Ordering::Relaxed)),
        _ if controller.discovery => Err(Status::INVALID_FIELD),
        feature::ARBITRATION | feature::TEMPERATURE | feature::ERROR_RECOVERY => {
            Ok(controller.setting(which, command.dword(11)).into())
        }
        feature::WRITE_CACHE => Ok(1),
        feature::QUEUES => Ok(queues(session)),
        // No notification is ever sent, so all are masked; nothing persists.
        feature::RESERVATION_MASK => Ok(0b1110),
        // There is one power state, and no hint of the load.
        feature::RESERVATION_PERSISTENCE | feature::POWER => Ok(0),
        _ => Err(Status::INVALID_FIELD),
    }
}

fn set_feature<S>(session: &Session<S>, command: &Command) -> Result<u64, Status> {
    let [which, ..] = command.dword(10).to_le_bytes();
    let value = command.dword(11);
    let controller = &session.controller;
    if command.dword(10) & 1 << 31 != 0 {
        return Err(Status::FEATURE_NOT_SAVEABLE);
    }
    match which {
        feature::ASYNC_EVENTS => {
            controller.set_events(value);
            Ok(0)
        }
        feature::KEEP_ALIVE => {
            // It counts from this command on, of which the session has noted that it came.
            controller.keep_alive_ms.store(value.into(), Ordering::Relaxed);
            controller.changed.notify();
            Ok(0)
        }
        _ if controller.discovery => Err(Status::INVALID_FIELD),
        // Stored and told again. Queues take turns whatever the weights; there is no thermometer; a read is
        // tried until it is decided.
        feature::ARBITRATION | feature::TEMPERATURE => {
            controller.set(which, value);
            Ok(0)
        }
        // Bit 16 asks for errors of blocks that were deallocated: their zeroes can be read.
        feature::ERROR_RECOVERY if value >> 16 == 0 => {
            controller.set(which, value);
            Ok(0)
        }
        feature::POWER if value.trailing_zeros() >= 5 => Ok(0),
        // The cache can't be turned off.
        feature::WRITE_CACHE if value & 1 == 1 => Ok(0),
        feature::QUEUES if value & 0xffff == 0xffff || value >> 16 == 0xffff => Err(Status::INVALID_FIELD),
        feature::QUEUES => Ok(queues(session)),
        feature::HOST_ID => Err(Status::COMMAND_SEQUENCE),
        _ => Err(Status::INVALID_FIELD),
    }
}

fn capabilities() -> u64 {
    u64::from(COMMANDS_MAX - 1) | bits::CAP_CONTIGUOUS | READY_UNITS << 24 | bits::CAP_NVM
}

/// Property Get.
pub(super) fn property_get<S>(session: &Session<S>, command: &Command) -> Result<u64, Status> {
    match (command.dword(11), command.dword(10) & 7) {
        (property::CAP, 1) => Ok(capabilities()),
        (property::VS, 0) => Ok(VERSION.into()),
        (property::CC, 0) => Ok(session.controller.configuration().into()),
        (property::CSTS, 0) => Ok(session.controller.status().into()),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Property Set.
pub(super) fn property_set<S>(session: &Session<S>, command: &Command) -> Result<u64, Status> {
    match (command.dword(11), command.dword(10) & 7) {
        (property::CC, 0) => {
            session.controller.configure(command.dword(12));
            Ok(0)
        }
        _ => Err(Status::INVALID_FIELD),
    }
}
