//! A server unlike ours, as the standard allows it: it takes little data at a time, asks for a write's data
//! in several parts, gives a read's in several, and answers out of order.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinstripe_nvme::framing::{BLANK, Encoding, Event, Framer, Pdu, Role};
use pinstripe_nvme::wire::command::{Command, Completion, admin, fabrics, nvm};
use pinstripe_nvme::wire::fabrics::NO_FLOW_CONTROL;
use pinstripe_nvme::wire::identify::{ControllerInfo, NamespaceInfo, cns};
use pinstripe_nvme::wire::pdu::{InitializeConnection, ResponseCapsule, Transfer, flag, kind};
use pinstripe_nvme::wire::status::Status;
use pinstripe_runtime::{Stream, shard};
use pinstripe_sim::{Rng, SECTOR, SimStream};
use zerocopy::{FromZeros, Immutable, IntoBytes};

use crate::users::SECTORS;

/// Most bytes that it takes in one PDU.
const TAKES: usize = 4096;
/// Bytes that it asks for at a time.
const ASKS: usize = 8192;
/// Most bytes that it gives in one PDU.
const GIVES: usize = 3072;

/// What it stores.
pub struct Store {
    data: RefCell<Vec<u8>>,
    /// Number of the association, of which there is one at a time: its beginning ends the one before.
    association: Cell<u64>,
}

impl Store {
    pub fn new() -> Rc<Self> {
        let data = RefCell::new(vec![0; usize::try_from(SECTORS * SECTOR).unwrap()]);
        Rc::new(Self { data, association: Cell::new(0) })
    }
}

/// A write that waits for its data.
struct Write {
    command: Command,
    data: Vec<u8>,
    length: usize,
    asked: usize,
}

struct Session {
    stream: Rc<SimStream>,
    store: Rc<Store>,
    association: Option<u64>,
    framer: Framer,
    encoding: Encoding,
    received: Vec<u8>,
    writes: Vec<Write>,
    /// Commands with all their data. They are carried out when nothing more comes at once.
    ready: Vec<(Command, Vec<u8>)>,
    rng: Rng,
    /// The host wants no flow control, and gets none: what a read gives may carry its success.
    unpaced: bool,
    broken: Cell<bool>,
}

/// Serves a connection to its end.
pub async fn serve(stream: Rc<SimStream>, store: Rc<Store>, rng: Rng) {
    let mut session = Session {
        stream: Rc::clone(&stream),
        store,
        association: None,
        framer: Framer::new(Role::Controller),
        encoding: Encoding::default(),
        received: Vec::new(),
        writes: Vec::new(),
        ready: Vec::new(),
        rng,
        unpaced: false,
        broken: Cell::new(false),
    };
    while session.step().await.is_some() && !session.broken.get() {}
    stream.shutdown();
}

impl Session {
    /// Takes one event. `None` at the end of the connection, or of its sense.
    async fn step(&mut self) -> Option<()> {
        if self.received.is_empty() {
            // While data is to come, commands may gather.
            if self.writes.is_empty() || self.rng.chance(1, 4) {
                self.carry_out().await;
            }
            self.more().await?;
        }
        let step = self.framer.receive(&self.received);
        self.received.drain(..step.consumed);
        let Some(event) = step.event else { return Some(()) };
        let Event::Pdu(pdu) = event else { return None };
        let data = self.data().await?;
        match pdu {
            Pdu::Initialize(request) => self.initialize(&request).await,
            Pdu::Command(command, _) => self.command(command, data).await,
            Pdu::Data(transfer, _) => self.host_data(&transfer, &data).await,
            _ => None,
        }
    }

    /// The data behind a header, if its digest fits.
    async fn data(&mut self) -> Option<Vec<u8>> {
        let mut data = Vec::new();
        let mut digested = false;
        while self.framer.data_left() > 0 {
            let count = self.received.len().min(self.framer.data_left() as usize);
            if count == 0 {
                self.more().await?;
                continue;
            }
            let part: Vec<u8> = self.received.drain(..count).collect();
            digested = self.framer.data_received(&part)?;
            data.extend(part);
        }
        while digested {
            let step = self.framer.receive(&self.received);
            self.received.drain(..step.consumed);
            match step.event {
                Some(Event::DataDigest(true)) => digested = false,
                Some(_) => return None,
                None => self.more().await?,
            }
        }
        Some(data)
    }

    async fn more(&mut self) -> Option<()> {
        let outcome = self.stream.receive(shard::buffer(65536)).await;
        let count = outcome.result.ok().filter(|count| *count > 0)?;
        let current = self.association.is_none_or(|own| own == self.store.association.get());
        if !current {
            return None;
        }
        self.received.extend_from_slice(&outcome.buffer?[..count]);
        Some(())
    }

    async fn initialize(&mut self, request: &InitializeConnection) -> Option<()> {
        let mut response = InitializeConnection::new_zeroed();
        response.digests = request.digests;
        response.limit = u32::try_from(TAKES).unwrap().into();
        self.send(kind::IC_RESP, 0, &response, &[]).await;
        let (header, data) = (request.digests & 1 != 0, request.digests & 2 != 0);
        self.framer.set_digests(header, data);
        self.encoding = Encoding { header_digests: header, data_digests: data, alignment: 4 };
        Some(())
    }

    async fn command(&mut self, command: Command, data: Vec<u8>) -> Option<()> {
        if command.opcode == fabrics::OPCODE && command.fabrics_kind() == fabrics::CONNECT {
            let is_admin = command.dword(10) >> 16 == 0;
            self.store.association.update(|number| number + u64::from(is_admin));
            self.association = Some(self.store.association.get());
            let wanted = command.dword(11) >> 16 & u32::from(NO_FLOW_CONTROL) != 0;
            self.unpaced = wanted && self.rng.chance(1, 2);
        }
        let length = usize::try_from(command.block_count() * SECTOR).unwrap();
        if command.opcode == nvm::WRITE && data.is_empty() {
            self.writes.push(Write { command, data, length, asked: 0 });
            return self.ask(self.writes.len() - 1).await;
        }
        self.ready.push((command, data));
        Some(())
    }

    /// Asks for the next part of a write's data.
    async fn ask(&mut self, which: usize) -> Option<()> {
        let write = &mut self.writes[which];
        let length = (write.length - write.asked).min(ASKS);
        let header = Transfer {
            common: BLANK,
            command_id: write.command.id,
            tag: write.command.id,
            offset: u32::try_from(write.asked).unwrap().into(),
            length: u32::try_from(length).unwrap().into(),
            reserved: 0.into(),
        };
        write.asked += length;
        self.send(kind::R2T, 0, &header, &[]).await;
        Some(())
    }

    async fn host_data(&mut self, transfer: &Transfer, data: &[u8]) -> Option<()> {
        let which = self.writes.iter().position(|write| write.command.id == transfer.tag)?;
        let write = &mut self.writes[which];
        if transfer.offset.get() as usize != write.data.len() || data.len() > TAKES {
            return None;
        }
        write.data.extend_from_slice(data);
        if write.data.len() == write.length {
            let write = self.writes.swap_remove(which);
            self.ready.push((write.command, write.data));
        } else if write.data.len() == write.asked {
            return self.ask(which).await;
        }
        Some(())
    }

    /// Carries out what is ready, in any order.
    async fn carry_out(&mut self) {
        while !self.ready.is_empty() {
            let (command, data) = self.ready.swap_remove(self.rng.index(self.ready.len()));
            let fabric = command.opcode == fabrics::OPCODE;
            match command.opcode {
                // The identifier of every controller, and a status that is ready at once.
                _ if fabric => self.complete(&command, Status::SUCCESS, 1).await,
                admin::IDENTIFY if command.dword(10) & 0xff == u32::from(cns::CONTROLLER) => {
                    self.give(&command, &controller()).await;
                }
                admin::IDENTIFY if command.dword(10) & 0xff == u32::from(cns::NAMESPACE) => {
                    self.give(&command, &namespace()).await;
                }
                admin::IDENTIFY => self.complete(&command, Status::INVALID_FIELD, 0).await,
                admin::SET_FEATURES => self.complete(&command, Status::SUCCESS, 0x000f_000f).await,
                admin::KEEP_ALIVE | nvm::FLUSH => self.complete(&command, Status::SUCCESS, 0).await,
                nvm::READ => {
                    let data = self.store.data.borrow()[place(&command)].to_vec();
                    self.give(&command, &data).await;
                }
                nvm::WRITE => {
                    self.store.data.borrow_mut()[place(&command)].copy_from_slice(&data);
                    self.complete(&command, Status::SUCCESS, 0).await;
                }
                _ => self.complete(&command, Status::INVALID_OPCODE, 0).await,
            }
        }
    }

    async fn give(&mut self, command: &Command, data: &[u8]) {
        let carries_success = self.unpaced && self.rng.chance(2, 3);
        let flags = if carries_success { flag::LAST | flag::SUCCESS } else { flag::LAST };
        for (index, part) in data.chunks(GIVES).enumerate() {
            let header = Transfer {
                common: BLANK,
                command_id: command.id,
                tag: 0.into(),
                offset: u32::try_from(index * GIVES).unwrap().into(),
                length: u32::try_from(part.len()).unwrap().into(),
                reserved: 0.into(),
            };
            let last = index == data.len().div_ceil(GIVES) - 1;
            self.send(kind::C2H_DATA, if last { flags } else { 0 }, &header, part).await;
        }
        if !carries_success {
            self.complete(command, Status::SUCCESS, 0).await;
        }
    }

    async fn complete(&self, command: &Command, status: Status, result: u64) {
        let mut completion = Completion::new(command.id.get(), status, result);
        completion.queue_head = if self.unpaced { 0xffff.into() } else { 0.into() };
        self.send(kind::CAPSULE_RESP, 0, &ResponseCapsule { common: BLANK, completion }, &[]).await;
    }

    async fn send<T: IntoBytes + Immutable>(&self, kind: u8, flags: u8, header: &T, data: &[u8]) {
        let header = self.encoding.header(kind, flags, header, u32::try_from(data.len()).unwrap());
        let trailer = self.encoding.trailer(data);
        let bytes = [header.bytes(), data, trailer.as_ref().map_or(&[][..], |digest| &digest[..])].concat();
        let mut buffer = shard::buffer(bytes.len());
        buffer.copy_from_slice(&bytes);
        let slice = buffer.freeze();
        if !self.broken.get() && !pinstripe_block::outgoing::send_whole(&*self.stream, slice).await {
            self.broken.set(true);
        }
    }
}

fn place(command: &Command) -> std::ops::Range<usize> {
    let start = usize::try_from(command.start_block() * SECTOR).unwrap();
    start..start + usize::try_from(command.block_count() * SECTOR).unwrap()
}

fn controller() -> Vec<u8> {
    let info = ControllerInfo {
        serial: "1".to_owned(),
        model: "Foreign".to_owned(),
        firmware: "1".to_owned(),
        controller: 1,
        discovery: false,
        transfer_shift: 3,
        volatile_cache: false,
        commands_max: 8,
        namespaces_max: 1,
        optional_commands: 0,
        events: 0,
        capsule_data_bytes: 4096,
        event_requests: 0,
        traffic_keep_alive: false,
        keep_alive_units: 0,
        subsystem: "nqn.2026-01.com.example:foreign".to_owned(),
    };
    info.encode().to_vec()
}

fn namespace() -> Vec<u8> {
    let info = NamespaceInfo {
        blocks: SECTORS,
        block_shift: 9,
        metadata_bytes: 0,
        reservations: false,
        read_only: false,
        preferred_blocks: 0,
        nguid: [9; 16],
        eui64: [0; 8],
    };
    info.encode().to_vec()
}
