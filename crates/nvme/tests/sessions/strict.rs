//! The initiator against a server that takes the standard by the letter: it grants the queues that it is
//! asked for and no more, gives as much as a command says and refuses one that says two lengths, and may come
//! up late, in error or never.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use pinstripe_nvme::controller::Target;
use pinstripe_nvme::framing::{BLANK, Encoding, Event, Framer, Pdu, Role};
use pinstripe_nvme::initiator::{Address, Connecting, Connector, Initiator, InitiatorError, Options};
use pinstripe_nvme::wire::command::{Command, Completion, DataPlace, admin, fabrics, nvm};
use pinstripe_nvme::wire::fabrics::{bits, property};
use pinstripe_nvme::wire::feature::EVENT_NAMESPACE_CHANGED;
use pinstripe_nvme::wire::identifiers::descriptors;
use pinstripe_nvme::wire::identify::{ControllerInfo, NamespaceInfo, cns};
use pinstripe_nvme::wire::log::{DiscoveryEntry, discovery};
use pinstripe_nvme::wire::offload::{
    self as extension, Announcement, Attach, Blocks, MINOR, PeerAddress, Request, feature,
};
use pinstripe_nvme::wire::pdu::{InitializeConnection, ResponseCapsule, Transfer, flag, kind};
use pinstripe_nvme::wire::status::Status;
use pinstripe_runtime::{DeviceErrorKind, DeviceSource, OperationId, Reducer, Stream, Ticket, shard};
use zerocopy::{FromZeros, Immutable, IntoBytes};

use crate::NQN;
use crate::both::address;
use crate::host::Host;
use crate::offload::{attached, computing_and_reaching};
use crate::seeds;
use crate::world::{Array, Pipe, Random, pipe};

/// How the server behaves, and what it saw.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is something that it does by itself")]
struct Server {
    /// Answers of the status property in their order; the last one stays.
    statuses: Vec<u32>,
    asked: Cell<usize>,
    enabled: Cell<bool>,
    /// Commands that it took before it was ready.
    early: Cell<usize>,
    entries: Vec<DiscoveryEntry>,
    /// Identifiers of its namespace.
    nguid: [u8; 16],
    uuid: Option<[u8; 16]>,
    /// Flushes that it was asked for, each of which fails on the way.
    flushes: Cell<usize>,
    /// A flush ends the connection.
    flush_cuts: bool,
    /// Granularity of its keep-alive timer, in units of 100 ms.
    keep_alive_units: u16,
    /// It announces our extension.
    computes: bool,
    /// It says that all commands are signs of life to it.
    traffic_keep_alive: bool,
    /// Time that it takes to answer Connect of an I/O queue.
    connect_nanoseconds: u64,
    /// It gives a part of what a read asks for, and stands still.
    reads_stall: bool,
    /// It takes parts of sums, and never answers.
    swallows_parts: bool,
    /// Most of those on one connection, and all.
    parts: Cell<(usize, usize)>,
    /// It tells of an error that it has met, and refuses the log of those.
    tells_of_error: bool,
    /// Requests for events that came.
    event_requests: Cell<usize>,
}

thread_local! {
    static SERVER: RefCell<Option<(Rc<Random>, Rc<Server>)>> = const { RefCell::new(None) };
}

struct ToServer;

impl Connector for ToServer {
    fn connect(&self, _: &Address) -> Connecting {
        Box::pin(async {
            let (random, server) = SERVER.with_borrow(|server| server.clone().unwrap());
            let (ours, theirs) = pipe(&random, 1 << 16);
            shard::spawn(async move { Session::new(theirs, server).run().await });
            let stream: Rc<dyn Stream> = ours;
            Ok(stream)
        })
    }
}

fn initiator(random: &Rc<Random>, server: &Rc<Server>, queues: u16) -> Arc<Initiator> {
    SERVER.set(Some((Rc::clone(random), Rc::clone(server))));
    let options = Options::new("nqn.2026-01.com.example:host5".to_owned(), [5; 16], queues);
    Initiator::new(options, Arc::new(ToServer))
}

struct Session {
    pipe: Rc<Pipe>,
    server: Rc<Server>,
    framer: Framer,
    /// Connect was answered.
    connected: Rc<Cell<bool>>,
    /// Parts of sums that came.
    parts: Cell<usize>,
}

impl Session {
    fn new(pipe: Rc<Pipe>, server: Rc<Server>) -> Self {
        let framer = Framer::new(Role::Controller);
        Self { pipe, server, framer, connected: Rc::default(), parts: Cell::default() }
    }

    async fn run(&mut self) {
        while let Some(byte) = self.pipe.receive_exactly(1).await {
            match self.framer.receive(&byte).event {
                None => {}
                Some(Event::Pdu(Pdu::Initialize(_))) => {
                    let mut response = InitializeConnection::new_zeroed();
                    response.limit = 4096.into();
                    self.send(kind::IC_RESP, 0, &response, &[]).await;
                }
                Some(Event::Pdu(Pdu::Command(command, length))) => {
                    if length > 0 {
                        let data = self.pipe.receive_exactly(length as usize).await.unwrap();
                        assert_eq!(self.framer.data_received(&data), Some(false));
                    }
                    if command.opcode == nvm::FLUSH && self.server.flush_cuts {
                        break;
                    }
                    self.command(&command).await;
                }
                other => panic!("{other:?}"),
            }
        }
        self.pipe.shutdown();
    }

    fn status(&self) -> u32 {
        let statuses = &self.server.statuses;
        statuses.get(self.server.asked.get().saturating_sub(1)).or(statuses.last()).copied().unwrap_or(1)
    }

    async fn command(&self, command: &Command) {
        if command.opcode == fabrics::OPCODE {
            return self.fabrics(command).await;
        }
        let ready = self.status() == bits::CSTS_READY && self.server.enabled.get();
        if !ready || !self.connected.get() {
            self.server.early.update(|count| count + 1);
            if !self.server.reads_stall {
                return self.complete(command, Status::COMMAND_SEQUENCE, 0).await;
            }
        }
        match command.opcode {
            admin::IDENTIFY => match command.dword(10).to_le_bytes()[0] {
                cns::CONTROLLER => {
                    self.give(command, &controller(&self.server), 4096).await;
                }
                cns::NAMESPACE => self.give(command, &namespace(self.server.nguid), 4096).await,
                _ => match self.server.uuid {
                    Some(uuid) => self.give(command, &*descriptors(&self.server.nguid, &uuid), 4096).await,
                    None => self.complete(command, Status::INVALID_FIELD, 0).await,
                },
            },
            admin::SET_FEATURES => self.complete(command, Status::SUCCESS, command.dword(11).into()).await,
            // On an I/O queue; on the other one the same code asks for a log.
            nvm::READ if self.server.reads_stall => {
                let header = Transfer {
                    common: BLANK,
                    command_id: command.id,
                    tag: 0.into(),
                    offset: 0.into(),
                    length: 512.into(),
                    reserved: 0.into(),
                };
                let header = Encoding::default().header(kind::C2H_DATA, 0, &header, 512);
                self.pipe.send_all(&[header.bytes(), &[0; 100]].concat()).await;
            }
            admin::ASYNC_EVENT => {
                self.server.event_requests.update(|count| count + 1);
                if self.server.event_requests.get() == 1 {
                    self.complete(command, Status::SUCCESS, 0x01_0000).await;
                }
            }
            admin::GET_LOG_PAGE if self.server.tells_of_error => {
                self.complete(command, Status::INVALID_FIELD, 0).await;
            }
            admin::GET_LOG_PAGE => {
                let page = discovery(1, &self.server.entries);
                let length = 4 * (1 + (command.dword(10) >> 16) as usize);
                let from = page.get(command.dword(12) as usize..).unwrap_or_default();
                self.give(command, from, length).await;
            }
            nvm::FLUSH => {
                self.server.flushes.update(|count| count + 1);
                self.complete(command, Status::TRANSIENT_TRANSPORT, 0).await;
            }
            extension::admin::ATTACH if self.server.swallows_parts => {
                self.complete(command, Status::SUCCESS, 0).await;
            }
            extension::opcode::PEER if self.server.swallows_parts => {
                self.parts.update(|count| count + 1);
                self.server.parts.update(|(most, all)| (most.max(self.parts.get()), all + 1));
            }
            admin::KEEP_ALIVE | nvm::WRITE => self.complete(command, Status::SUCCESS, 0).await,
            _ => self.complete(command, Status::INVALID_OPCODE, 0).await,
        }
    }

    async fn fabrics(&self, command: &Command) {
        match (command.fabrics_kind(), command.dword(11)) {
            (fabrics::CONNECT, _) => {
                let late = command.dword(10) >> 16 > 0;
                let pause = if late { self.server.connect_nanoseconds } else { 0 };
                let (pipe, server) = (Rc::clone(&self.pipe), Rc::clone(&self.server));
                let answering = Self { connected: Rc::clone(&self.connected), ..Self::new(pipe, server) };
                let command = *command;
                shard::spawn(async move {
                    shard::sleep(pause).await;
                    answering.connected.set(true);
                    answering.complete(&command, Status::SUCCESS, 1).await;
                });
            }
            (fabrics::PROPERTY_SET, property::CC) => {
                self.server.enabled.set(command.dword(12) & bits::CC_ENABLE != 0);
                self.complete(command, Status::SUCCESS, 0).await;
            }
            (fabrics::PROPERTY_GET, property::CSTS) => {
                self.server.asked.update(|count| count + 1);
                self.complete(command, Status::SUCCESS, self.status().into()).await;
            }
            _ => self.complete(command, Status::INVALID_FIELD, 0).await,
        }
    }

    /// Gives so many bytes of `data`, with zeroes behind it, if the host has just the room for them.
    async fn give(&self, command: &Command, data: &[u8], length: usize) {
        if command.data() != Ok(DataPlace::Transport(u32::try_from(length).unwrap())) {
            return self.complete(command, Status::DATA_LENGTH_INVALID, 0).await;
        }
        let mut bytes = data[..data.len().min(length)].to_vec();
        bytes.resize(length, 0);
        let header = Transfer {
            common: BLANK,
            command_id: command.id,
            tag: 0.into(),
            offset: 0.into(),
            length: u32::try_from(length).unwrap().into(),
            reserved: 0.into(),
        };
        self.send(kind::C2H_DATA, flag::LAST, &header, &bytes).await;
        self.complete(command, Status::SUCCESS, 0).await;
    }

    async fn complete(&self, command: &Command, status: Status, result: u64) {
        let completion = Completion::new(command.id.get(), status, result);
        self.send(kind::CAPSULE_RESP, 0, &ResponseCapsule { common: BLANK, completion }, &[]).await;
    }

    async fn send<T: IntoBytes + Immutable>(&self, kind: u8, flags: u8, header: &T, data: &[u8]) {
        let header = Encoding::default().header(kind, flags, header, u32::try_from(data.len()).unwrap());
        self.pipe.send_all(&[header.bytes(), data].concat()).await;
    }
}

fn controller(server: &Server) -> Vec<u8> {
    let info = ControllerInfo {
        serial: "1".to_owned(),
        model: "Strict".to_owned(),
        firmware: "1".to_owned(),
        controller: 1,
        discovery: false,
        transfer_shift: 1,
        volatile_cache: false,
        commands_max: 8,
        namespaces_max: 1,
        optional_commands: 0,
        events: if server.tells_of_error { EVENT_NAMESPACE_CHANGED } else { 0 },
        capsule_data_bytes: 0,
        event_requests: 0,
        traffic_keep_alive: server.traffic_keep_alive,
        keep_alive_units: server.keep_alive_units,
        subsystem: NQN.to_owned(),
    };
    let mut bytes = info.encode();
    if server.computes {
        let features = feature::PARTIAL_WRITES | feature::RECONSTRUCTION;
        let announced =
            Announcement { minor: MINOR, features, slots: 1, range_bytes: 4096, incarnation: [1; 16] };
        announced.put(&mut bytes);
    }
    bytes.to_vec()
}

fn namespace(nguid: [u8; 16]) -> Vec<u8> {
    let info = NamespaceInfo {
        blocks: 2048,
        block_shift: 9,
        metadata_bytes: 0,
        reservations: false,
        read_only: false,
        preferred_blocks: 0,
        nguid,
        eui64: [0; 8],
    };
    info.encode().to_vec()
}

#[test]
fn a_server_that_grants_what_it_is_asked_for_is_asked_for_a_queue_of_each_shard() {
    for queues in [1, 2, 7] {
        seeds(1, move |random| async move {
            let server = Rc::new(Server::default());
            let opened = initiator(&random, &server, queues).open(&address("")).await;
            assert!(opened.is_ok(), "{}", opened.err().unwrap());
            SERVER.set(None);
        });
    }
}

#[test]
fn a_notice_whose_page_is_refused_does_not_end_the_hearing_of_others() {
    seeds(1, |random| async move {
        let server = Rc::new(Server { tells_of_error: true, ..Server::default() });
        let source = initiator(&random, &server, 1).open(&address("")).await.unwrap();
        shard::sleep(10_000_000_000).await;
        assert_eq!(server.event_requests.get(), 2, "it waits for the next one");
        drop(source);
        SERVER.set(None);
    });
}

/// A server with a UUID for its namespace has a list of identifiers, one without has none.
#[test]
fn a_namespace_is_recognized_by_what_its_server_gives_and_zeroes_are_nothing() {
    seeds(1, |random| async move {
        let mut found = Vec::new();
        let given = [([9; 16], None), ([0; 16], Some([5; 16])), ([0; 16], Some([6; 16])), ([0; 16], None)];
        for (nguid, uuid) in given.into_iter().chain([([0; 16], Some([0; 16]))]) {
            let server = Rc::new(Server { nguid, uuid, ..Server::default() });
            let source = initiator(&random, &server, 1).open(&address("")).await.unwrap();
            let again = initiator(&random, &server, 1).open(&address("")).await.unwrap();
            let is_recognized = source.identity().is_one_with(&again.identity());
            assert_eq!(
                is_recognized,
                (nguid != [0; 16] || uuid.is_some_and(|it| it != [0; 16])).then_some(true)
            );
            found.push(source.identity());
            SERVER.set(None);
        }
        assert_eq!(found[0].nguid(), Some([9; 16]));
        assert_eq!(found[1].is_one_with(&found[2]), Some(false));
        assert_eq!(found[1].is_one_with(&found[3]), Some(false));
        assert_eq!(found[3].is_one_with(&found[4]), None);
    });
}

#[test]
fn a_flush_is_asked_for_once_whatever_it_fails_for() {
    seeds(2, |random| async move {
        let server = Rc::new(Server::default());
        let source = initiator(&random, &server, 1).open(&address("")).await.unwrap();
        let device = source.attach().unwrap();
        assert!(device.flush().await.result.is_err());
        assert_eq!(server.flushes.get(), 1);
        drop((device, source));
        SERVER.set(None);
    });
}

/// For how long a server that was lost is not used again, and what its device says of that, in seconds.
fn held_back(keep_alive_units: u16, traffic_keep_alive: bool, computes: bool) -> (u64, u64) {
    let times = Rc::new(Cell::new((0, 0)));
    let found = Rc::clone(&times);
    seeds(1, move |random| {
        let found = Rc::clone(&found);
        async move {
            let server = Server { keep_alive_units, computes, traffic_keep_alive, ..Server::default() };
            let server = Rc::new(Server { flush_cuts: true, ..server });
            let initiator = initiator(&random, &server, 1);
            let source = initiator.open(&address("")).await.unwrap();
            let device = source.attach().unwrap();
            let late_ns = device.late_writes_ns();
            assert!(device.flush().await.result.is_err());
            drop((device, source));
            let lost = shard::now();
            drop(initiator.open(&address("")).await.unwrap());
            found.set(((shard::now() - lost) / 1_000_000_000, late_ns / 1_000_000_000));
            SERVER.set(None);
        }
    });
    times.get()
}

/// It may look once in its keep-alive time whether a command came, and so find a silent host after twice
/// that. Linux' target and SPDK's do. Ours doesn't.
#[test]
fn a_server_of_others_is_used_again_after_twice_the_time() {
    assert_eq!(held_back(0, false, false), (11, 11));
    assert_eq!(held_back(10, true, false), (11, 11));
    assert_eq!(held_back(10, true, true), (11, 0));
    assert_eq!(held_back(10, false, true), (6, 0));
}

/// SPDK's counts in units of 10 s.
#[test]
fn the_time_is_rounded_up_to_what_a_servers_timer_counts() {
    assert_eq!(held_back(100, false, false), (21, 21));
    assert_eq!(held_back(30, false, false), (13, 13));
    assert_eq!(held_back(600, false, false), (121, 121));
}

#[test]
fn a_server_that_may_carry_out_late_writes_for_minutes_is_not_used() {
    seeds(1, |random| async move {
        let server = Rc::new(Server { keep_alive_units: 601, ..Server::default() });
        let refused = initiator(&random, &server, 1).open(&address("")).await.err().unwrap().to_string();
        assert!(refused.contains("in steps of more than a minute"), "{refused}");
        SERVER.set(None);
    });
}

#[cfg(feature = "mutants")]
#[test]
fn an_initiator_that_takes_all_servers_to_count_as_ours_is_noticed() {
    use pinstripe_nvme::mutants::{Mutant, activate};
    let with = |mutant| {
        activate(Some(mutant));
        let found = held_back(100, true, false);
        activate(None);
        found
    };
    assert_eq!(with(Mutant::OneLookAssumed), (11, 11));
    assert_eq!(with(Mutant::GranularityIgnored), (11, 11));
}

#[test]
fn a_queue_carries_nothing_but_connect_before_connect_is_answered() {
    seeds(4, |random| async move {
        let server = Rc::new(Server { connect_nanoseconds: 1_000_000_000, ..Server::default() });
        let source = initiator(&random, &server, 1).open(&address("")).await.unwrap();
        let device = source.attach().unwrap();
        let write = || device.write(0, shard::zeroed(512).freeze(), false);
        let first = write();
        // The connection is there, and its Connect under way.
        shard::sleep(500_000_000).await;
        for write in [first, write(), write()] {
            assert_eq!(write.await.result, Ok(512));
        }
        assert_eq!(server.early.get(), 0);
        drop((device, source));
        SERVER.set(None);
    });
}

#[test]
fn a_server_that_never_answers_connect_gets_no_read_and_every_read_its_buffer_back() {
    seeds(4, |random| async move {
        let stalls = Server { connect_nanoseconds: u64::MAX / 4, reads_stall: true, ..Server::default() };
        let server = Rc::new(stalls);
        let source = initiator(&random, &server, 1).open(&address("")).await.unwrap();
        let device = source.attach().unwrap();
        let first = device.read(0, shard::buffer(512));
        shard::sleep(500_000_000).await;
        for read in [first, device.read(0, shard::buffer(512))] {
            let outcome = read.await;
            assert_eq!(outcome.result.unwrap_err().kind, DeviceErrorKind::Gone);
            assert_eq!(outcome.buffer.map(|buffer| buffer.len()), Some(512));
        }
        assert_eq!(server.early.get(), 0);
        drop((device, source));
        SERVER.set(None);
    });
}

/// Parts that a server swallows while its host begins operations and gives them up: most of them on one
/// connection, and all.
fn swallowed() -> (usize, usize) {
    let parts = Rc::new(Cell::new((0, 0)));
    let found = Rc::clone(&parts);
    seeds(1, move |random| {
        let found = Rc::clone(&found);
        async move {
            let server = Rc::new(Server { swallows_parts: true, ..Server::default() });
            SERVER.set(Some((Rc::clone(&random), Rc::clone(&server))));
            let arrays = [Array::new(&random, 1 << 20, 0)];
            let target =
                Target::new(computing_and_reaching(&arrays, None, Arc::new(ToServer)), arrays.to_vec());
            let mut first = Host::admin(&random, &target, 1).await;
            let member = |nqn: &str| {
                let (host, nqn) = ("server".to_owned(), nqn.to_owned());
                Some(PeerAddress { namespace: 1, port: 4420, host, nqn })
            };
            let attach = Attach {
                array: [7; 16],
                epoch: 1,
                generation: 0,
                peer: false,
                takeover: false,
                alone: false,
                incarnation: [9; 16],
                instance: [0; 16],
                peers: vec![member(NQN), member("nqn.2026-01.com.example:swallows")],
            };
            assert_eq!(attached(&mut first, &attach.encode()).await, Status::SUCCESS);
            let mut io = first.io(&random, &target, 1, 1, 0).await;
            for operation in (1..=40).map(OperationId) {
                let ticket = Ticket { operation, oldest: operation };
                let blocks = Blocks { start: 0, count: 1 };
                let reducers = [Some(Reducer { place: 1, coefficient: 1 }), None];
                let begin = Request::PartialWrite { blocks, modify: false, reducers };
                io.command(begin.command(1, ticket), &[1; 512]).await;
                shard::sleep(100_000_000).await;
                io.command(Request::Resolve.command(1, ticket), &[]).await;
                for _ in 0..2 {
                    io.completion().await;
                }
            }
            found.set(server.parts.get());
            target.stop().await;
            SERVER.set(None);
        }
    });
    parts.get()
}

#[test]
fn parts_that_nothing_waits_for_any_more_do_not_fill_a_connection_to_another_server() {
    let (most, all) = swallowed();
    assert!(most <= 8 && all >= 30, "{most} of {all}");
}

#[cfg(feature = "mutants")]
#[test]
fn parts_that_fill_a_connection_are_noticed() {
    use pinstripe_nvme::mutants::{Mutant, activate};
    activate(Some(Mutant::AbandonedKept));
    let (most, all) = swallowed();
    activate(None);
    // The others wait for a place among its commands.
    assert_eq!((most, all), (8, 8));
}

#[test]
fn a_controller_gets_its_time_to_become_ready_and_no_command_before() {
    seeds(2, |random| async move {
        let server = Rc::new(Server { statuses: vec![0, 0, 0, bits::CSTS_READY], ..Server::default() });
        let source = initiator(&random, &server, 1).open(&address("")).await.unwrap();
        assert_eq!((server.asked.get(), server.early.get()), (4, 0));
        drop(source);
        SERVER.set(None);
    });
}

#[test]
fn a_controller_that_fails_or_never_becomes_ready_is_not_used() {
    seeds(2, |random| async move {
        let failed = Rc::new(Server { statuses: vec![0, bits::CSTS_FATAL], ..Server::default() });
        let error = initiator(&random, &failed, 1).open(&address("")).await.err().unwrap();
        assert!(matches!(error, InitiatorError::Unusable { .. }), "{error}");
        let silent = Rc::new(Server { statuses: vec![0], ..Server::default() });
        let begun = shard::now();
        let error = initiator(&random, &silent, 1).open(&address("")).await.err().unwrap();
        assert!(matches!(error, InitiatorError::Silent { .. }), "{error}");
        assert!((10..12).contains(&((shard::now() - begun) / 1_000_000_000)));
        let error = initiator(&random, &failed, 1).discover(&address("")).await.err().unwrap();
        assert!(matches!(error, InitiatorError::Unusable { .. }), "{error}");
        assert_eq!((failed.early.get(), silent.early.get()), (0, 0));
        SERVER.set(None);
    });
}

#[test]
fn a_discovery_log_is_read_in_parts_each_as_long_as_its_command_says() {
    seeds(2, |random| async move {
        for count in [0, 1, 3, 4, 20] {
            let entry = |port| DiscoveryEntry {
                subsystem: format!("nqn.2026-01.com.example:{port}"),
                address: ([192, 0, 2, 7], port).into(),
            };
            let entries: Vec<DiscoveryEntry> = (1..=count).map(entry).collect();
            let server = Rc::new(Server { entries: entries.clone(), ..Server::default() });
            let found = initiator(&random, &server, 1).discover(&address("")).await.unwrap();
            assert_eq!(found, entries);
        }
        SERVER.set(None);
    });
}
