//! A host that speaks in bytes: it says what it likes.

use std::rc::Rc;

use pinstripe_nvme::controller::Target;
use pinstripe_nvme::framing::{BLANK, Encoding, Event, Framer, Pdu, Role};
use pinstripe_nvme::wire::command::{Command, Completion, Sgl, admin, fabrics};
use pinstripe_nvme::wire::fabrics::{CONTROLLER_ANY, ConnectData, property};
use pinstripe_nvme::wire::pdu::{CommandCapsule, InitializeConnection, Transfer, flag, kind};
use pinstripe_nvme::wire::status::Status;
use pinstripe_runtime::shard;
use zerocopy::{FromZeros, Immutable, IntoBytes};

use crate::world::{Array, Pipe, Random};
use crate::{NQN, dial};

/// Longest time that a host waits for the target.
const PEER_TIMEOUT_NANOSECONDS: u64 = 1_000_000_000_000;

/// One queue of a host.
pub struct Host {
    pub pipe: Rc<Pipe>,
    pub encoding: Encoding,
    framer: Framer,
    /// Of Connect.
    pub subsystem: &'static str,
    pub controller: u16,
    /// Of Connect.
    pub attributes: u8,
    /// Of the queue.
    pub entries: u32,
    /// Of the last data PDU.
    pub flags: u8,
    next_id: u16,
}

/// What came from the target.
#[derive(Debug)]
pub enum Heard {
    Completed(Completion),
    Data(Vec<u8>),
    Ready(Transfer),
    Terminated(u16),
    Closed,
}

impl Host {
    /// Connects the stream and agrees on digests.
    pub async fn initialize(random: &Rc<Random>, target: &Target<Array>, digests: u8) -> Self {
        Self::initialize_on(dial(random, target), digests).await
    }

    /// The same on this connection.
    pub async fn initialize_on(pipe: Rc<Pipe>, digests: u8) -> Self {
        let mut host = Self {
            pipe,
            encoding: Encoding::default(),
            framer: Framer::new(Role::Host),
            subsystem: NQN,
            controller: CONTROLLER_ANY,
            attributes: 0,
            entries: 32,
            flags: 0,
            next_id: 0,
        };
        let mut request = InitializeConnection::new_zeroed();
        request.digests = digests;
        host.send(Encoding::default().header(kind::IC_REQ, 0, &request, 0).bytes()).await;
        let Some(Pdu::Initialize(response)) = host.pdu().await else { panic!("no ICResp") };
        assert_eq!(response.digests, digests);
        host.framer.set_digests(digests & 1 != 0, digests & 2 != 0);
        host.encoding =
            Encoding { header_digests: digests & 1 != 0, data_digests: digests & 2 != 0, alignment: 4 };
        host
    }

    pub async fn send(&self, bytes: &[u8]) -> bool {
        self.pipe.send_all(bytes).await
    }

    async fn pdu(&mut self) -> Option<Pdu> {
        loop {
            let byte = self.pipe.receive_exactly(1).await?;
            match self.framer.receive(&byte).event {
                Some(Event::Pdu(pdu)) => return Some(pdu),
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }

    /// The next thing that the target says. A test in which it never says it fails.
    pub async fn hear(&mut self) -> Heard {
        let pdu = shard::timeout(PEER_TIMEOUT_NANOSECONDS, self.pdu()).await;
        match pdu.expect("the target says nothing") {
            None => Heard::Closed,
            Some(Pdu::Response(completion)) => Heard::Completed(completion),
            Some(Pdu::Ready(transfer)) => Heard::Ready(transfer),
            Some(Pdu::Terminated(status, _)) => Heard::Terminated(status),
            Some(Pdu::Data(transfer, flags)) => {
                self.flags = flags;
                let data = self.pipe.receive_exactly(transfer.length.get() as usize).await.unwrap();
                if self.framer.data_received(&data).unwrap() {
                    let digest = self.pipe.receive_exactly(4).await.unwrap();
                    assert_eq!(self.framer.receive(&digest).event, Some(Event::DataDigest(true)));
                }
                Heard::Data(data)
            }
            Some(other) => panic!("{other:?}"),
        }
    }

    pub async fn completion(&mut self) -> Completion {
        match self.hear().await {
            Heard::Completed(completion) => completion,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a command, with `data` in its capsule.
    pub async fn command(&mut self, mut command: Command, data: &[u8]) -> u16 {
        self.next_id += 1;
        command.id = self.next_id.into();
        let bytes = self.capsule(command, data);
        self.send(&bytes).await;
        self.next_id
    }

    /// The bytes of a command, with `data` in its capsule.
    pub fn capsule(&self, mut command: Command, data: &[u8]) -> Vec<u8> {
        if !data.is_empty() {
            command.sgl = Sgl::capsule(u32::try_from(data.len()).unwrap());
        }
        self.with_data(kind::CAPSULE_CMD, 0, &CommandCapsule { common: BLANK, command }, data)
    }

    fn with_data<T: IntoBytes + Immutable>(&self, kind: u8, flags: u8, header: &T, data: &[u8]) -> Vec<u8> {
        let header = self.encoding.header(kind, flags, header, u32::try_from(data.len()).unwrap());
        let trailer = self.encoding.trailer(data);
        [header.bytes(), data, trailer.as_ref().map_or(&[][..], |digest| &digest[..])].concat()
    }

    /// Sends a command and waits for its completion.
    pub async fn ask(&mut self, command: Command, data: &[u8]) -> Completion {
        self.command(command, data).await;
        self.completion().await
    }

    pub async fn status(&mut self, command: Command, data: &[u8]) -> Status {
        self.ask(command, data).await.status()
    }

    /// A command that reads `length` bytes.
    pub async fn read(&mut self, mut command: Command, length: u32) -> Result<Vec<u8>, Status> {
        command.sgl = Sgl::transport(length);
        self.command(command, &[]).await;
        match self.hear().await {
            Heard::Data(data) => {
                assert_eq!(self.completion().await.status(), Status::SUCCESS);
                Ok(data)
            }
            Heard::Completed(completion) => Err(completion.status()),
            other => panic!("{other:?}"),
        }
    }

    /// Answers an R2T with some data.
    pub async fn answer(&self, ready: &Transfer, offset: u32, data: &[u8], last: bool) -> bool {
        self.send(&self.data(ready, offset, data, last)).await
    }

    /// The bytes of that.
    pub fn data(&self, ready: &Transfer, offset: u32, data: &[u8], last: bool) -> Vec<u8> {
        let length = u32::try_from(data.len()).unwrap();
        let transfer = Transfer { common: BLANK, offset: offset.into(), length: length.into(), ..*ready };
        let flags = if last { flag::LAST } else { 0 };
        self.with_data(kind::H2C_DATA, flags, &transfer, data)
    }

    /// The name of this host.
    pub fn nqn(host: u8) -> String {
        format!("nqn.2026-01.com.example:host{host}")
    }

    /// Connect.
    pub async fn connect(&mut self, host: u8, queue: u16, controller: u16, keep_alive_ms: u32) -> Completion {
        let nqn = Self::nqn(host);
        let data = ConnectData::new([host; 16], controller, self.subsystem, &nqn);
        let command = Command::fabrics(fabrics::CONNECT)
            .with_dword(10, u32::from(queue) << 16)
            .with_dword(11, u32::from(self.attributes) << 16 | (self.entries - 1))
            .with_dword(12, keep_alive_ms);
        let completion = self.ask(command, data.as_bytes()).await;
        self.controller = u16::try_from(completion.result_dword() & 0xffff).unwrap();
        completion
    }

    /// An enabled controller's admin queue.
    pub async fn admin(random: &Rc<Random>, target: &Target<Array>, host: u8) -> Self {
        let mut admin = Self::initialize(random, target, 0).await;
        assert_eq!(admin.connect(host, 0, CONTROLLER_ANY, 0).await.status(), Status::SUCCESS);
        admin.enable().await;
        admin
    }

    pub async fn enable(&mut self) {
        let enable = Command::fabrics(fabrics::PROPERTY_SET)
            .with_dword(11, property::CC)
            .with_dword(12, 1 | 6 << 16 | 4 << 20);
        assert_eq!(self.status(enable, &[]).await, Status::SUCCESS);
    }

    /// An I/O queue of the same controller.
    pub async fn io(
        &self,
        random: &Rc<Random>,
        target: &Target<Array>,
        host: u8,
        queue: u16,
        digests: u8,
    ) -> Self {
        let mut io = Self::initialize(random, target, digests).await;
        let controller = self.controller;
        assert_eq!(io.connect(host, queue, controller, 0).await.status(), Status::SUCCESS);
        io
    }

    /// Closes the connection.
    pub fn close(&self) {
        pinstripe_runtime::Stream::shutdown(&*self.pipe);
    }
}

/// Identify, as a command.
pub fn identify(what: u32, namespace: u32) -> Command {
    Command::new(admin::IDENTIFY, namespace).with_dword(10, what)
}
