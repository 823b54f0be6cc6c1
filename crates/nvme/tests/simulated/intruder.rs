//! An intruder: on the same wires, with the right names and without the right keys. It must not be let in.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use pinstripe_nvme::auth::exchange::{HostEnd, HostStep};
use pinstripe_nvme::auth::{
    Authentication, Calculator, Entry, Group, Keyring, Names, NoRandom, Random, Secret,
};
use pinstripe_nvme::framing::{BLANK, Encoding, Event, Framer, Pdu, Role};
use pinstripe_nvme::initiator::{Address, Connector, Initiator, Options};
use pinstripe_nvme::wire::auth::{Envelope, MESSAGE_BYTES_MAX, Message, receive_command, send_command};
use pinstripe_nvme::wire::command::{Command, Completion, Sgl, fabrics, nvm};
use pinstripe_nvme::wire::fabrics::{CONTROLLER_ANY, ConnectData};
use pinstripe_nvme::wire::pdu::{CommandCapsule, InitializeConnection, kind};
use pinstripe_runtime::{Stream, shard};
use pinstripe_sim::Rng;
use zerocopy::{FromZeros, IntoBytes};

use crate::network::Wires;

/// The host that the server knows.
pub const HOST: &str = "nqn.2026-01.com.example:host";
/// Its identifier.
pub const HOST_ID: [u8; 16] = [5; 16];
/// Another host's, by which the intruder doesn't disturb the first one.
const OTHER_ID: [u8; 16] = [6; 16];
/// Time after which an attempt is given up: its wire may be dead.
const PATIENCE: u64 = 60_000_000_000;
/// Controller numbers below this one are tried.
const CONTROLLERS: u16 = 60;

/// Random bytes of the world's seed.
struct Drawn(Mutex<Rng>);

impl Random for Drawn {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), NoRandom> {
        let mut rng = self.0.lock().unwrap();
        bytes.fill_with(|| rng.below(256).to_le_bytes()[0]);
        Ok(())
    }
}

/// What is computed is done at some later time, and others may go on before.
impl Calculator for Drawn {
    fn compute(&self, work: Box<dyn FnOnce() + Send>) -> Pin<Box<dyn Future<Output = ()>>> {
        let nanoseconds = {
            let mut rng = self.0.lock().unwrap();
            let most = rng.pick(&[1, 100_000, 50_000_000]);
            rng.below(most)
        };
        Box::pin(async move {
            shard::sleep(nanoseconds).await;
            work();
        })
    }
}

/// What is known of any peer with these two keys.
pub fn knows(rng: &mut Rng, host: u8, controller: u8) -> Authentication {
    let secret = |byte| Secret::of_key(&[byte; 32], None).unwrap();
    let entry =
        Entry { groups: vec![Group::Null], ..Entry::new("*", secret(host), Some(secret(controller))) };
    let drawn = |rng: &mut Rng| Box::new(Drawn(Mutex::new(rng.fork(7))));
    Authentication::with(Keyring::new(vec![entry]), drawn(rng), drawn(rng))
}

/// The right ones.
pub fn keys(rng: &mut Rng) -> Authentication {
    knows(rng, 1, 2)
}

/// Tries something. What it got, if it got anything that it must not.
pub async fn intrude(address: Address, mut rng: Rng) -> Option<String> {
    let attempt = async {
        match rng.below(4) {
            0 => wrong_key(&address, &mut rng).await,
            1 => queue_of_another(&address, &mut rng).await,
            2 => replay(&address, &mut rng).await,
            _ => impostor(&address, &mut rng).await,
        }
    };
    shard::timeout(PATIENCE, attempt).await.flatten().map(str::to_owned)
}

/// A host with another key.
async fn wrong_key(address: &Address, rng: &mut Rng) -> Option<&'static str> {
    let mut voice = Voice::connected(address, OTHER_ID).await?;
    let answer = voice.prove(&knows(rng, 3, 2), address).await?.0;
    matches!(answer, Message::Success1 { .. }).then_some("a host with a wrong key is let in")
}

/// A queue for the association of the host that is let in.
async fn queue_of_another(address: &Address, rng: &mut Rng) -> Option<&'static str> {
    shard::sleep(rng.below(2_000_000)).await;
    let mut voice = Voice::dial().await?;
    // One that the host has or will have, or none of its.
    let queue = rng.pick(&[1, 2, 4]);
    for controller in 1..CONTROLLERS {
        if voice.connect(address, HOST_ID, controller, queue).await? {
            let read = Command::new(nvm::READ, 1).with_blocks(0, 1);
            let (completion, _) = voice.ask(Command { sgl: Sgl::transport(512), ..read }, &[]).await?;
            return completion.status().is_success().then_some("a queue that proved nothing reads");
        }
    }
    None
}

/// What was overheard, once more.
async fn replay(address: &Address, rng: &mut Rng) -> Option<&'static str> {
    let mut first = Voice::connected(address, OTHER_ID).await?;
    let (answer, sent) = first.prove(&keys(rng), address).await?;
    if !matches!(answer, Message::Success1 { .. }) || sent.len() < 2 {
        return None;
    }
    let mut again = Voice::connected(address, OTHER_ID).await?;
    let mut last = Message::Success2;
    for message in &sent[..2] {
        again.tell(message).await?;
        last = again.fetch().await?.message;
    }
    matches!(last, Message::Success1 { .. }).then_some("a reply that was overheard is accepted")
}

/// A host that knows the server by another secret than it has.
async fn impostor(address: &Address, rng: &mut Rng) -> Option<&'static str> {
    let authentication = Some(Arc::new(knows(rng, 1, 9)));
    let options = Options { authentication, ..Options::new(HOST.to_owned(), OTHER_ID, 1) };
    let opened = Initiator::new(options, Arc::new(Wires)).open(address).await;
    opened.is_ok().then_some("a server that can't prove its identity is accepted")
}

/// One connection.
struct Voice {
    stream: Rc<dyn Stream>,
    framer: Framer,
    received: Vec<u8>,
}

impl Drop for Voice {
    fn drop(&mut self) {
        self.stream.shutdown();
    }
}

impl Voice {
    async fn dial() -> Option<Self> {
        let stream = Wires.connect(&"nvme-tcp://server/nqn.a?nsid=1".parse().ok()?).await.ok()?;
        let mut voice = Self { stream, framer: Framer::new(Role::Host), received: Vec::new() };
        let request = InitializeConnection::new_zeroed();
        voice.send(Encoding::default().header(kind::IC_REQ, 0, &request, 0).bytes()).await?;
        matches!(voice.pdu().await?, Pdu::Initialize(_)).then_some(voice)
    }

    /// An admin queue.
    async fn connected(address: &Address, host: [u8; 16]) -> Option<Self> {
        let mut voice = Self::dial().await?;
        voice.connect(address, host, CONTROLLER_ANY, 0).await?.then_some(voice)
    }

    async fn connect(
        &mut self,
        address: &Address,
        host: [u8; 16],
        controller: u16,
        queue: u16,
    ) -> Option<bool> {
        let data = ConnectData::new(host, controller, &address.nqn, HOST);
        let command =
            Command::fabrics(fabrics::CONNECT).with_dword(10, u32::from(queue) << 16).with_dword(11, 31);
        Some(self.ask(command, data.as_bytes()).await?.0.status().is_success())
    }

    async fn send(&self, bytes: &[u8]) -> Option<()> {
        let mut buffer = shard::buffer(bytes.len());
        buffer.copy_from_slice(bytes);
        pinstripe_block::outgoing::send_whole(&*self.stream, buffer.freeze()).await.then_some(())
    }

    async fn more(&mut self) -> Option<()> {
        let outcome = self.stream.receive(shard::buffer(65536)).await;
        let count = outcome.result.ok().filter(|count| *count > 0)?;
        self.received.extend_from_slice(&outcome.buffer?[..count]);
        Some(())
    }

    async fn pdu(&mut self) -> Option<Pdu> {
        loop {
            let step = self.framer.receive(&self.received);
            self.received.drain(..step.consumed);
            match step.event {
                Some(Event::Pdu(pdu)) => return Some(pdu),
                Some(_) => return None,
                None if self.received.is_empty() => self.more().await?,
                None => {}
            }
        }
    }

    /// A command with data in its capsule: its completion and the data that came.
    async fn ask(&mut self, mut command: Command, data: &[u8]) -> Option<(Completion, Vec<u8>)> {
        if !data.is_empty() {
            command.sgl = Sgl::capsule(u32::try_from(data.len()).unwrap());
        }
        let capsule = CommandCapsule { common: BLANK, command };
        let length = u32::try_from(data.len()).unwrap();
        let header = Encoding::default().header(kind::CAPSULE_CMD, 0, &capsule, length);
        self.send(&[header.bytes(), data].concat()).await?;
        let mut answer = Vec::new();
        loop {
            match self.pdu().await? {
                Pdu::Response(completion) => return Some((completion, answer)),
                Pdu::Data(..) => {
                    while self.framer.data_left() > 0 {
                        let count = self.received.len().min(self.framer.data_left() as usize);
                        if count == 0 {
                            self.more().await?;
                            continue;
                        }
                        let part: Vec<u8> = self.received.drain(..count).collect();
                        self.framer.data_received(&part)?;
                        answer.extend(part);
                    }
                }
                _ => return None,
            }
        }
    }

    async fn tell(&mut self, message: &[u8]) -> Option<()> {
        let command = send_command(u32::try_from(message.len()).unwrap());
        self.ask(command, message).await?.0.status().is_success().then_some(())
    }

    async fn fetch(&mut self) -> Option<Envelope> {
        let command =
            Command { sgl: Sgl::transport(MESSAGE_BYTES_MAX), ..receive_command(MESSAGE_BYTES_MAX) };
        let (completion, data) = self.ask(command, &[]).await?;
        completion.status().is_success().then(|| Envelope::decode(&data).ok())?
    }

    /// Proves its identity: what the server said last, and what was sent.
    async fn prove(
        &mut self,
        authentication: &Authentication,
        address: &Address,
    ) -> Option<(Message, Vec<Vec<u8>>)> {
        let names = Names { host: HOST.to_owned(), subsystem: address.nqn.clone() };
        let entry = &authentication.peer(&address.nqn)?;
        let (mut end, mut message) = HostEnd::begin(authentication, entry, &names).ok()?;
        let mut sent = Vec::new();
        loop {
            self.tell(&message).await?;
            sent.push(message);
            let answer = self.fetch().await?;
            let said = answer.message.clone();
            match end.take(authentication, &answer.encode()) {
                Ok(HostStep::Reply(reply)) => message = reply,
                _ => return Some((said, sent)),
            }
        }
    }
}
