//! Members with servers that compute, over simulated disks: a double of what `docs/offload-protocol.md` asks
//! of a server, with delays, refusals, lost peers and deaths wherever a test wants them.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
};

use pinstripe_parity::multiply;
use pinstripe_runtime::{
    Attachment, Buffer, Completion, Device, DeviceError, DeviceErrorKind, DeviceInfo, DeviceSource, Offload,
    OffloadLimits, Reducers, Signal, Slice, Submission, Ticket, completion::Payload, offload::EPOCH_STEP_MAX,
    shard,
};
use pinstripe_sim::{Rng, SimDisk};

type Answer = Result<usize, DeviceErrorKind>;

const PEER_NS: u64 = 5_000_000_000;
const COMPLETE_NS: u64 = 10_000_000_000;

/// What a server knows of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// A part came before the command.
    Expected,
    /// Its part of the work is under way.
    Preparing,
    Prepared,
    Committing,
    Applied,
    Dropped,
}

struct Operation {
    stage: Stage,
    /// The members with parts in the sum.
    from: BTreeSet<u8>,
    sum: Vec<u8>,
    offset: u64,
}

impl Operation {
    fn new(stage: Stage) -> Self {
        Self { stage, from: BTreeSet::new(), sum: Vec::new(), offset: 0 }
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), DeviceErrorKind> {
        if self.sum.is_empty() {
            self.sum = vec![0; bytes.len()];
        }
        if self.sum.len() != bytes.len() {
            self.stage = Stage::Dropped;
            return Err(DeviceErrorKind::Invalid);
        }
        self.sum.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum ^= byte);
        Ok(())
    }
}

#[derive(Default)]
struct Epoch {
    number: u64,
    generation: u64,
    peers: Vec<Option<String>>,
    attached: bool,
    /// The host that set it.
    owner: usize,
    given_up: bool,
    /// Its host has ended: another one may not take the same number.
    ended: bool,
}

pub struct Server {
    number: usize,
    name: String,
    disk: SimDisk,
    alive: Cell<bool>,
    hung: Cell<bool>,
    /// The host may have gone on without it.
    hung_once: Cell<bool>,
    epoch: RefCell<Epoch>,
    /// Another host has been there since, and the server says so.
    taken: Cell<bool>,
    oldest: Cell<u64>,
    operations: RefCell<BTreeMap<u64, Operation>>,
    changed: Signal,
    rng: RefCell<Rng>,
    /// Commands that are refused from now on, each once.
    pub refuses: Cell<u32>,
    pub refuses_attach: Cell<bool>,
    /// It is a stock one: it stores blocks, and knows nothing of hosts.
    pub is_plain: Cell<bool>,
    /// Bytes per second that its link can take, as it says.
    pub free_to_receive: Cell<usize>,
    /// So many operations are dropped when they are to be committed.
    pub refuses_commit: Cell<u32>,
    pub commands: RefCell<BTreeMap<&'static str, u64>>,
    /// Most operations that it held at a time.
    pub held_max: Cell<usize>,
    /// How often it was to end what its host has under way by other connections.
    pub attached_alone: Cell<u32>,
}

/// What happens where: one for all servers of a scene.
#[derive(Default)]
pub struct Script {
    /// Steps of servers that were taken.
    pub steps: Cell<u64>,
    /// The server that takes this step dies of it.
    pub dies_at: Cell<Option<u64>>,
    pub died: Cell<Option<usize>>,
    /// Pairs that can't reach each other.
    pub parted: RefCell<BTreeSet<(usize, usize)>>,
    /// What they did wrong: what the protocol doesn't allow.
    pub complaints: RefCell<Vec<String>>,
    /// Operations that each may hold.
    pub slots: Cell<u32>,
    /// Most bytes of a range.
    pub range_bytes: Cell<u32>,
    /// Commands that failed, for messages.
    pub failures: RefCell<Vec<String>>,
    /// Servers in the order in which they were attached.
    pub attached: RefCell<Vec<usize>>,
    /// Longest delay of a message, in nanoseconds.
    pub delay_ns: Cell<u64>,
}

thread_local! {
    static SERVERS: RefCell<Vec<Rc<Server>>> = const { RefCell::new(Vec::new()) };
    static SCRIPT: RefCell<Rc<Script>> = RefCell::new(Rc::default());
}

/// Puts a server before each disk. Those of an earlier scene are gone.
pub fn serve(
    disks: &[SimDisk],
    (slots, range_bytes): (u32, u32),
    mut rng: impl FnMut(u64) -> Rng,
) -> (Rc<Script>, Vec<Rc<Server>>) {
    let script = Rc::new(Script::default());
    script.delay_ns.set(200_000);
    script.slots.set(slots);
    script.range_bytes.set(range_bytes);
    SCRIPT.replace(Rc::clone(&script));
    SERVERS.take();
    let servers = (1000..).zip(disks).map(|(label, disk)| serve_too(disk, rng(label))).collect();
    (script, servers)
}

/// Puts a server before a further disk.
pub fn serve_too(disk: &SimDisk, rng: Rng) -> Rc<Server> {
    let server = Rc::new(Server {
        number: SERVERS.with_borrow(Vec::len),
        name: disk.info().name.clone(),
        disk: disk.clone(),
        alive: Cell::new(true),
        hung: Cell::new(false),
        hung_once: Cell::new(false),
        epoch: RefCell::default(),
        taken: Cell::new(false),
        oldest: Cell::new(0),
        operations: RefCell::default(),
        changed: Signal::default(),
        rng: RefCell::new(rng),
        refuses: Cell::new(0),
        refuses_attach: Cell::new(false),
        is_plain: Cell::new(false),
        free_to_receive: Cell::new(0),
        refuses_commit: Cell::new(0),
        commands: RefCell::default(),
        held_max: Cell::new(0),
        attached_alone: Cell::new(0),
    });
    SERVERS.with_borrow_mut(|servers| servers.push(Rc::clone(&server)));
    server
}

/// What a [`Server`] is attached through.
pub struct ServerSource {
    number: usize,
    name: String,
    host: usize,
}

impl ServerSource {
    pub fn of(server: &Server) -> Arc<dyn DeviceSource> {
        Self::of_host(server, 0)
    }

    /// As another host reaches it.
    pub fn of_host(server: &Server, host: usize) -> Arc<dyn DeviceSource> {
        Arc::new(Self { number: server.number, name: server.name.clone(), host })
    }
}

impl DeviceSource for ServerSource {
    fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        let server = SERVERS.with_borrow(|servers| Rc::clone(&servers[self.number]));
        if !server.alive.get() {
            return Err(DeviceError::of(DeviceErrorKind::Gone));
        }
        let disk = server.disk.attach();
        Ok(Rc::new(Link { server, disk, host: self.host }))
    }
    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Server {
    pub fn die(&self) {
        self.alive.set(false);
        self.operations.borrow_mut().clear();
        self.epoch.borrow_mut().attached = false;
        self.changed.notify();
    }

    /// Its host is gone: it is detached, and the epoch stays.
    pub fn host_gone(&self) {
        self.operations.borrow_mut().clear();
        let mut epoch = self.epoch.borrow_mut();
        (epoch.attached, epoch.ended) = (false, true);
    }

    /// As if a host had attached it under any number, and given it up.
    pub fn forge_epoch(&self, number: u64) {
        let mut epoch = self.epoch.borrow_mut();
        (epoch.number, epoch.attached, epoch.given_up) = (number, false, true);
    }

    /// Another host has taken it over, and has left it again; `knows`: the server says so to the earlier
    /// host, as from version 1.3 on.
    pub fn taken_and_left(&self, knows: bool) {
        self.operations.borrow_mut().clear();
        let mut epoch = self.epoch.borrow_mut();
        epoch.number += 1;
        (epoch.attached, epoch.given_up, epoch.ended) = (false, true, true);
        self.taken.set(knows);
    }

    /// It is back, with what its disk holds.
    pub fn come_back(&self) {
        self.alive.set(true);
        self.hung.set(false);
    }

    /// Nothing is answered any more; what is told to it it does, when it is let go.
    pub fn hang(&self, hangs: bool) {
        self.hung.set(hangs);
        self.hung_once.set(true);
        self.changed.notify();
    }

    pub fn is_alive(&self) -> bool {
        self.alive.get()
    }

    pub fn epoch(&self) -> u64 {
        self.epoch.borrow().number
    }

    pub fn is_given_up(&self) -> bool {
        self.epoch.borrow().given_up
    }

    pub fn count(&self, command: &'static str) -> u64 {
        self.commands.borrow().get(command).copied().unwrap_or(0)
    }

    /// Operations that are neither applied nor dropped.
    pub fn open_operations(&self) -> Vec<(u64, Stage)> {
        let is_open = |stage| !matches!(stage, Stage::Applied | Stage::Dropped);
        let operations = self.operations.borrow();
        operations.iter().filter(|(_, o)| is_open(o.stage)).map(|(id, o)| (*id, o.stage)).collect()
    }

    fn complain(&self, what: &str) {
        SCRIPT.with_borrow(|script| script.complaints.borrow_mut().push(format!("{}: {what}", self.name)));
    }

    /// One step further, in which it may die; an error if it is dead.
    async fn step(&self, delays: bool) -> Result<(), DeviceErrorKind> {
        if delays {
            let longest = SCRIPT.with_borrow(|script| script.delay_ns.get());
            let delay = self.rng.borrow_mut().below(longest.max(1));
            shard::sleep(delay).await;
        }
        if self.hung.get() {
            self.changed.wait_until(|| !self.hung.get() || !self.alive.get()).await;
        }
        let script = SCRIPT.with_borrow(Rc::clone);
        let step = script.steps.get();
        script.steps.set(step + 1);
        if script.dies_at.get() == Some(step) {
            script.died.set(Some(self.number));
            self.die();
        }
        self.check_alive()
    }

    fn check_alive(&self) -> Result<(), DeviceErrorKind> {
        if self.alive.get() { Ok(()) } else { Err(DeviceErrorKind::Gone) }
    }

    fn forget(&self, oldest: u64) {
        if oldest <= self.oldest.get() {
            return;
        }
        self.oldest.set(oldest);
        let mut operations = self.operations.borrow_mut();
        let open: Vec<_> = operations
            .range(..oldest)
            .filter(|(_, o)| matches!(o.stage, Stage::Preparing | Stage::Prepared | Stage::Committing))
            .filter(|_| !self.hung_once.get())
            .map(|(id, o)| format!("operation {id} is {:?} and called over", o.stage))
            .collect();
        *operations = operations.split_off(&oldest);
        drop(operations);
        for what in open {
            self.complain(&what);
        }
    }

    /// Whether an operation may be begun or added to.
    fn admit(&self, id: u64, oldest: u64, stage: Stage) -> Result<(), DeviceErrorKind> {
        self.check_alive()?;
        if !self.epoch.borrow().attached {
            return Err(DeviceErrorKind::Refused);
        }
        self.forget(oldest);
        if id < self.oldest.get() {
            return Err(DeviceErrorKind::Refused);
        }
        let mut operations = self.operations.borrow_mut();
        let held =
            operations.values().filter(|o| !matches!(o.stage, Stage::Applied | Stage::Dropped)).count();
        let is_new = !operations.contains_key(&id);
        if is_new && held >= slots() as usize {
            drop(operations);
            self.complain(&format!("{held} operations are held and another comes"));
            return Err(DeviceErrorKind::Refused);
        }
        self.held_max.set(self.held_max.get().max(held + usize::from(is_new)));
        let operation = operations.entry(id).or_insert_with(|| Operation::new(Stage::Expected));
        match (operation.stage, stage) {
            (Stage::Dropped, _) => Err(DeviceErrorKind::Refused),
            (Stage::Expected, Stage::Preparing) => {
                operation.stage = Stage::Preparing;
                Ok(())
            }
            (_, Stage::Expected) => Ok(()),
            (other, _) => {
                drop(operations);
                self.complain(&format!("a second command for operation {id}, which is {other:?}"));
                Err(DeviceErrorKind::Refused)
            }
        }
    }

    fn drop_operation(&self, id: u64) {
        if let Some(operation) = self.operations.borrow_mut().get_mut(&id)
            && operation.stage < Stage::Committing
        {
            operation.stage = Stage::Dropped;
        }
        self.changed.notify();
    }

    /// A part from another server.
    fn peer(&self, id: u64, oldest: u64, from: u8, bytes: &[u8]) -> Result<(), DeviceErrorKind> {
        self.admit(id, oldest, Stage::Expected)?;
        let mut operations = self.operations.borrow_mut();
        let operation = operations.get_mut(&id).unwrap();
        let added = if operation.from.insert(from) { operation.add(bytes) } else { Ok(()) };
        drop(operations);
        self.changed.notify();
        added
    }

    async fn send(&self, ticket: Ticket, part: &[u8], reducers: Reducers) -> Result<(), DeviceErrorKind> {
        let own = self.place();
        for reducer in reducers.into_iter().flatten() {
            let part: Vec<u8> = part.iter().map(|byte| multiply(*byte, reducer.coefficient)).collect();
            self.step(true).await?;
            let address = self.epoch.borrow().peers.get(usize::from(reducer.place)).cloned().flatten();
            let Some(peer) = address.and_then(|address| server_at(&address)) else {
                return Err(DeviceErrorKind::Refused);
            };
            let parted =
                SCRIPT.with_borrow(|script| script.parted.borrow().contains(&(self.number, peer.number)));
            if parted || peer.hung.get() {
                shard::sleep(PEER_NS).await;
            }
            if parted || !peer.is_alive() || peer.hung.get() {
                self.check_alive()?;
                return Err(DeviceErrorKind::Refused);
            }
            let times = if self.rng.borrow_mut().below(4) == 0 { 2 } else { 1 };
            for _ in 0..times {
                peer.peer(ticket.operation.0, ticket.oldest.0, own, &part)
                    .map_err(|_| DeviceErrorKind::Refused)?;
            }
        }
        Ok(())
    }

    fn place(&self) -> u8 {
        let epoch = self.epoch.borrow();
        let own = Some(address(self.number));
        u8::try_from(epoch.peers.iter().position(|peer| *peer == own).unwrap_or(255)).unwrap()
    }

    async fn read(
        &self,
        disk: &Rc<dyn Device>,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, DeviceErrorKind> {
        let outcome = disk.read(offset, shard::buffer(length)).await;
        self.check_alive()?;
        outcome.result.map_err(|error| error.kind)?;
        Ok(outcome.buffer.unwrap().to_vec())
    }

    /// Ends the first phase of an operation with what it holds.
    fn prepared(&self, id: u64, outcome: Result<(u64, Vec<u8>), DeviceErrorKind>) -> Answer {
        let mut operations = self.operations.borrow_mut();
        let Some(operation) = operations.get_mut(&id) else { return Err(DeviceErrorKind::Refused) };
        match outcome {
            Ok((offset, bytes)) if operation.stage == Stage::Preparing => {
                (operation.offset, operation.sum, operation.stage) = (offset, bytes, Stage::Prepared);
                Ok(0)
            }
            Ok(_) => Err(DeviceErrorKind::Refused),
            Err(error) => {
                operation.stage = Stage::Dropped;
                Err(error)
            }
        }
    }

    /// The sum of `wait` parts, when they are there.
    async fn parts(&self, id: u64, wait: u16) -> Result<Vec<u8>, DeviceErrorKind> {
        let look = || {
            if !self.alive.get() {
                return Some(Err(DeviceErrorKind::Gone));
            }
            match self.operations.borrow().get(&id) {
                Some(o) if o.stage == Stage::Preparing && o.from.len() >= usize::from(wait) => {
                    Some(Ok(o.sum.clone()))
                }
                Some(o) if o.stage == Stage::Preparing => None,
                _ => Some(Err(DeviceErrorKind::Refused)),
            }
        };
        shard::timeout(COMPLETE_NS, self.changed.wait_for(look))
            .await
            .unwrap_or(Err(DeviceErrorKind::Refused))
    }
}

fn slots() -> u32 {
    SCRIPT.with_borrow(|script| script.slots.get())
}

fn address(number: usize) -> String {
    format!("double://{number}")
}

fn server_at(address: &str) -> Option<Rc<Server>> {
    let number: usize = address.strip_prefix("double://")?.parse().ok()?;
    SERVERS.with_borrow(|servers| servers.get(number).cloned())
}

/// A [`Server`] as a shard uses it.
struct Link {
    server: Rc<Server>,
    disk: Rc<dyn Device>,
    host: usize,
}

impl Link {
    fn refusal(&self, writes: bool) -> Option<DeviceError> {
        let epoch = self.server.epoch.borrow();
        if !self.server.alive.get() {
            Some(DeviceError::of(DeviceErrorKind::Gone))
        } else if writes && (self.server.taken.get() || (epoch.attached && epoch.owner != self.host)) {
            Some(DeviceError::of(DeviceErrorKind::Fenced))
        } else if writes && epoch.number > 0 && !epoch.given_up && !epoch.attached {
            drop(epoch);
            self.server.complain("it was written without being attached");
            Some(DeviceError::of(DeviceErrorKind::Fenced))
        } else {
            None
        }
    }

    /// Has the server do something; its answer may put bytes into the buffer.
    fn command<F>(
        &self,
        name: &'static str,
        payload: Payload,
        work: impl FnOnce(Rc<Server>, Rc<dyn Device>) -> F,
    ) -> Submission
    where
        F: Future<Output = Result<(usize, Option<Vec<u8>>), DeviceErrorKind>> + 'static,
    {
        let server = Rc::clone(&self.server);
        *server.commands.borrow_mut().entry(name).or_default() += 1;
        let (submission, completion) = Submission::pending(payload);
        let work = work(Rc::clone(&server), Rc::clone(&self.disk));
        shard::spawn(async move {
            let answer = match server.step(true).await {
                Ok(())
                    if server.refuses.get() > 0
                        && !matches!(name, "resolve" | "attach" | "epoch" | "detach") =>
                {
                    server.refuses.set(server.refuses.get() - 1);
                    Err(DeviceErrorKind::Refused)
                }
                Ok(()) => work.await,
                Err(error) => Err(error),
            };
            if let Err(error) = &answer {
                let script = SCRIPT.with_borrow(Rc::clone);
                script.failures.borrow_mut().push(format!("{}: {name} {error:?}", server.name));
            }
            let arrives = server.step(true).await;
            finish(completion, arrives.and(answer));
        });
        submission
    }
}

fn finish(completion: Completion, answer: Result<(usize, Option<Vec<u8>>), DeviceErrorKind>) {
    match answer {
        Ok((count, bytes)) => {
            completion.with_payload(|payload| {
                if let (Payload::Buffer(buffer), Some(bytes)) = (payload, &bytes) {
                    buffer.copy_from_slice(bytes);
                }
            });
            completion.finish(Ok(count));
        }
        Err(kind) => completion.finish(Err(DeviceError::of(kind))),
    }
}

impl Device for Link {
    fn info(&self) -> &DeviceInfo {
        self.disk.info()
    }
    fn read(&self, offset: u64, buffer: Buffer) -> Submission {
        match self.refusal(false) {
            Some(error) => Submission::done(Err(error), Some(buffer)),
            None => self.disk.read(offset, buffer),
        }
    }
    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        self.refusal(true)
            .map_or_else(|| self.disk.write(offset, data, fua), |e| Submission::done(Err(e), None))
    }
    fn flush(&self) -> Submission {
        self.refusal(false).map_or_else(|| self.disk.flush(), |error| Submission::done(Err(error), None))
    }
    fn discard(&self, offset: u64, length: u64) -> Submission {
        self.refusal(true)
            .map_or_else(|| self.disk.discard(offset, length), |e| Submission::done(Err(e), None))
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Submission {
        self.refusal(true)
            .map_or_else(|| self.disk.write_zeroes(offset, length), |e| Submission::done(Err(e), None))
    }
    fn offload(&self) -> Option<&dyn Offload> {
        if self.server.is_plain.get() { None } else { Some(self) }
    }
    fn is_remote(&self) -> bool {
        self.server.is_plain.get()
    }
}

impl Offload for Link {
    fn limits(&self) -> OffloadLimits {
        OffloadLimits {
            operations: slots(),
            range_bytes: SCRIPT.with_borrow(|script| script.range_bytes.get()),
        }
    }

    fn address(&self) -> String {
        address(self.server.number)
    }

    fn epoch(&self) -> Submission {
        self.command("epoch", Payload::None, |server, _| async move {
            let epoch = server.epoch.borrow();
            if server.taken.get() {
                return Err(DeviceErrorKind::Fenced);
            }
            Ok((usize::try_from(epoch.number).unwrap(), None))
        })
    }

    fn free_to_receive(&self) -> Submission {
        self.command("free_to_receive", Payload::None, |server, _| async move {
            Ok((server.free_to_receive.get(), None))
        })
    }

    fn attach(&self, attachment: &Attachment) -> Submission {
        let (wanted, host) = (attachment.clone(), self.host);
        self.command("attach", Payload::None, |server, _| async move {
            let mut epoch = server.epoch.borrow_mut();
            let is_same = wanted.epoch == epoch.number;
            if wanted.epoch < epoch.number || is_same && (epoch.ended || epoch.owner != host) {
                return Err(DeviceErrorKind::Fenced);
            }
            let is_older = is_same && wanted.generation < epoch.generation;
            let is_anothers = epoch.attached && epoch.owner != host && !wanted.takeover;
            if is_older || is_anothers || server.refuses_attach.get() {
                return Err(DeviceErrorKind::Refused);
            }
            if wanted.epoch - epoch.number > EPOCH_STEP_MAX {
                return Err(DeviceErrorKind::Unsupported);
            }
            if wanted.epoch > epoch.number {
                server.operations.borrow_mut().clear();
                server.oldest.set(0);
            }
            *epoch = Epoch {
                number: wanted.epoch,
                generation: wanted.generation,
                peers: wanted.peers,
                attached: true,
                owner: host,
                given_up: false,
                ended: false,
            };
            server.taken.set(false);
            server.attached_alone.set(server.attached_alone.get() + u32::from(wanted.alone));
            SCRIPT.with_borrow(|script| script.attached.borrow_mut().push(server.number));
            Ok((0, None))
        })
    }

    fn detach(&self, give_up: bool) -> Submission {
        let host = self.host;
        self.command("detach", Payload::None, move |server, _| async move {
            if server.epoch.borrow().owner != host {
                return Err(DeviceErrorKind::Fenced);
            }
            server.operations.borrow_mut().clear();
            let mut epoch = server.epoch.borrow_mut();
            (epoch.attached, epoch.given_up) = (false, give_up);
            // A host that doesn't give it up may come back.
            epoch.ended |= give_up;
            Ok((0, None))
        })
    }

    fn partial_write(
        &self,
        ticket: Ticket,
        offset: u64,
        data: Slice,
        modify: bool,
        reducers: Reducers,
    ) -> Submission {
        let new = data.to_vec();
        self.command("partial_write", Payload::Slice(data), move |server, disk| async move {
            let id = ticket.operation.0;
            server.admit(id, ticket.oldest.0, Stage::Preparing)?;
            let work = async {
                let mut part = new.clone();
                if modify {
                    let old = server.read(&disk, offset, new.len()).await?;
                    part.iter_mut().zip(old).for_each(|(new, old)| *new ^= old);
                }
                server.send(ticket, &part, reducers).await?;
                Ok((offset, new))
            };
            let outcome = work.await;
            server.prepared(id, outcome).map(|count| (count, None))
        })
    }

    fn contribute(&self, ticket: Ticket, offset: u64, length: u32, reducers: Reducers) -> Submission {
        self.command("contribute", Payload::None, move |server, disk| async move {
            let id = ticket.operation.0;
            server.admit(id, ticket.oldest.0, Stage::Preparing)?;
            let work = async {
                let old = server.read(&disk, offset, length as usize).await?;
                server.send(ticket, &old, reducers).await
            };
            let outcome = work.await;
            // It holds nothing, so that there is nothing to be committed.
            server.drop_operation(id);
            outcome.map(|()| (0, None))
        })
    }

    fn read_contribute(&self, ticket: Ticket, offset: u64, buffer: Buffer, reducers: Reducers) -> Submission {
        let length = buffer.len();
        self.command("read_contribute", Payload::Buffer(buffer), move |server, disk| async move {
            let id = ticket.operation.0;
            server.admit(id, ticket.oldest.0, Stage::Preparing)?;
            let work = async {
                let old = server.read(&disk, offset, length).await?;
                server.send(ticket, &old, reducers).await?;
                Ok(old)
            };
            let outcome = work.await;
            server.drop_operation(id);
            outcome.map(|old| (old.len(), Some(old)))
        })
    }

    fn parity(
        &self,
        ticket: Ticket,
        offset: u64,
        length: u32,
        modify: bool,
        wait: u16,
        supplied: Option<Slice>,
    ) -> Submission {
        let bytes = supplied.as_ref().map(|bytes| bytes.to_vec());
        let payload = supplied.map_or(Payload::None, Payload::Slice);
        self.command("parity", payload, move |server, disk| async move {
            let id = ticket.operation.0;
            server.admit(id, ticket.oldest.0, Stage::Preparing)?;
            let work = async {
                let mut sum = vec![0; length as usize];
                let mut add = |bytes: &[u8]| sum.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum ^= byte);
                if let Some(bytes) = &bytes {
                    add(bytes);
                }
                if modify {
                    add(&server.read(&disk, offset, length as usize).await?);
                }
                add(&server.parts(id, wait).await?);
                Ok((offset, sum))
            };
            let outcome = work.await;
            server.prepared(id, outcome).map(|count| (count, None))
        })
    }

    fn reduce(&self, ticket: Ticket, offset: u64, buffer: Buffer, coefficient: u8, wait: u16) -> Submission {
        let length = buffer.len();
        self.command("reduce", Payload::Buffer(buffer), move |server, disk| async move {
            let id = ticket.operation.0;
            server.admit(id, ticket.oldest.0, Stage::Preparing)?;
            let work = async {
                let mut sum = vec![0; length];
                if coefficient != 0 {
                    sum = server.read(&disk, offset, length).await?;
                    for byte in &mut sum {
                        *byte = multiply(*byte, coefficient);
                    }
                }
                let parts = server.parts(id, wait).await?;
                sum.iter_mut().zip(parts).for_each(|(sum, byte)| *sum ^= byte);
                Ok(sum)
            };
            let outcome = work.await;
            server.drop_operation(id);
            outcome.map(|sum| (sum.len(), Some(sum)))
        })
    }

    fn commit(&self, ticket: Ticket, fua: bool) -> Submission {
        self.command("commit", Payload::None, move |server, disk| async move {
            let id = ticket.operation.0;
            if server.refuses_commit.get() > 0 {
                server.refuses_commit.set(server.refuses_commit.get() - 1);
                server.drop_operation(id);
                return Err(DeviceErrorKind::Refused);
            }
            let held = {
                let mut operations = server.operations.borrow_mut();
                let operation = operations.get_mut(&id).ok_or(DeviceErrorKind::Refused)?;
                match operation.stage {
                    Stage::Applied => return Ok((0, None)),
                    Stage::Prepared => operation.stage = Stage::Committing,
                    _ => return Err(DeviceErrorKind::Refused),
                }
                (operation.offset, operation.sum.clone())
            };
            server.step(false).await?;
            let mut buffer = shard::buffer(held.1.len());
            buffer.copy_from_slice(&held.1);
            let outcome = disk.write(held.0, buffer.freeze(), fua).await;
            server.step(false).await?;
            outcome.result.map_err(|error| error.kind)?;
            if let Some(operation) = server.operations.borrow_mut().get_mut(&id) {
                operation.stage = Stage::Applied;
            }
            Ok((0, None))
        })
    }

    fn resolve(&self, ticket: Ticket) -> Submission {
        self.command("resolve", Payload::None, move |server, _| async move {
            let id = ticket.operation.0;
            server.operations.borrow_mut().entry(id).or_insert_with(|| Operation::new(Stage::Dropped));
            server.drop_operation(id);
            let stage = server.operations.borrow()[&id].stage;
            Ok((usize::from(stage == Stage::Applied), None))
        })
    }
}
