//! A host's association with a subsystem: the admin queue, keep-alive, and the end of all queues together.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use pinstripe_runtime::{DeviceInfo, Shard, ShardHandle, Signal, ZeroedReads, shard};

use super::device::{Namespace, NvmeSource};
use super::queue::{DEPTH, Queue};
use super::request::Failure;
use super::{Address, Connecting, Connector, InitiatorError, Loss};
use crate::auth::Authentication;
use crate::mutants::{Mutant, active};
use crate::wire::command::{Command, admin as opcode, fabrics};
use crate::wire::fabrics::{CONTROLLER_ANY, bits, property};
use crate::wire::identifiers::NamespaceIdentity;
use crate::wire::identify::{self, ControllerInfo, NamespaceInfo, cns, optional};
use crate::wire::offload::Announcement;
use crate::wire::{feature, log};

/// How often a controller is asked whether it is ready.
const READY_LOOK_NANOSECONDS: u64 = 10_000_000;
/// Most bytes of one command where the server names no limit.
const TRANSFER_BYTES_MAX: usize = 1 << 20;
/// Longest step in which a server may count the keep-alive time, in milliseconds (Identify: KAS). For twice
/// so long it may carry out what it was sent, and for so long a start waits.
const KEEP_ALIVE_STEP_MS_MAX: u64 = 60_000;
/// Added to the keep-alive time before a server that was lost is used again.
const GRACE_MS: u64 = 1_000;

/// How the initiator behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// This host's NQN.
    pub host_nqn: String,
    /// This host's identifier; not zero.
    pub host_id: [u8; 16],
    /// Which process of the host this is, for servers that compute: of two processes one array has only one.
    /// Zero: whichever.
    pub instance: [u8; 16],
    /// I/O queues, one for each shard.
    pub queues: u16,
    /// The server gives up an association from which it hasn't heard for so long; it is heard of twice as
    /// often.
    pub keep_alive_ms: u32,
    /// Time for a connection to come up, and for each command of that.
    pub connect_nanoseconds: u64,
    /// Time for a command. When it runs out, the association ends.
    pub command_nanoseconds: u64,
    /// Whatever is sent may be carried out late or twice without harm, so a server that was lost is used
    /// again at once.
    pub repeats_harmlessly: bool,
    /// How this host and the servers prove their identity.
    pub authentication: Option<Arc<Authentication>>,
}

impl Options {
    /// With these identities and so many queues; keep-alive of 5 s, 10 s to connect, 30 s for a command.
    pub fn new(host_nqn: String, host_id: [u8; 16], queues: u16) -> Self {
        Self {
            host_nqn,
            host_id,
            instance: [0; 16],
            queues,
            keep_alive_ms: 5_000,
            connect_nanoseconds: 10_000_000_000,
            command_nanoseconds: 30_000_000_000,
            repeats_harmlessly: false,
            authentication: None,
        }
    }
}

/// The associations of a process.
pub struct Initiator {
    options: Options,
    connector: Arc<dyn Connector>,
    leases: Mutex<Vec<(Address, Weak<Lease>)>>,
    /// Servers with which an association was lost, and when they must have given it up.
    lost: Mutex<HashMap<String, u64>>,
}

impl Initiator {
    /// Without associations.
    pub fn new(options: Options, connector: Arc<dyn Connector>) -> Arc<Self> {
        Arc::new(Self { options, connector, leases: Mutex::default(), lost: Mutex::default() })
    }

    /// The namespace at `address`. Connects, unless there is an association with the server already. Call it
    /// on one and the same shard always.
    pub async fn open(self: &Arc<Self>, address: &Address) -> Result<Arc<NvmeSource>, InitiatorError> {
        let lease = self.lease(address).await?;
        let namespace = lease.association.identify(address).await?;
        Ok(Arc::new(NvmeSource::new(lease, namespace)))
    }

    /// The same if there is an association with the server already.
    pub async fn open_known(self: &Arc<Self>, address: &Address) -> Option<Arc<NvmeSource>> {
        self.existing(address)?;
        self.open(address).await.ok()
    }

    /// All namespaces of the subsystem at `address` that can be used, whatever its own. Otherwise as
    /// [`Initiator::open`].
    pub async fn open_all(
        self: &Arc<Self>,
        address: &Address,
    ) -> Result<Vec<Arc<NvmeSource>>, InitiatorError> {
        let lease = self.lease(address).await?;
        let mut sources = Vec::new();
        for number in lease.association.namespaces().await? {
            let address = Address { namespace: number, ..address.clone() };
            if let Ok(namespace) = lease.association.identify(&address).await {
                sources.push(Arc::new(NvmeSource::new(Arc::clone(&lease), namespace)));
            }
        }
        Ok(sources)
    }

    pub(super) async fn lease(self: &Arc<Self>, address: &Address) -> Result<Arc<Lease>, InitiatorError> {
        match self.existing(address) {
            Some(lease) => Ok(lease),
            None => self.associate(address).await,
        }
    }

    /// What the discovery controller at `address` knows (its NQN and namespace don't matter).
    pub async fn discover(
        self: &Arc<Self>,
        address: &Address,
    ) -> Result<Vec<log::DiscoveryEntry>, InitiatorError> {
        let address = Address { nqn: crate::wire::DISCOVERY_NQN.to_owned(), ..address.clone() };
        let lease = Lease { association: Association::new(self, &address) };
        lease.association.discover().await
    }

    fn existing(&self, address: &Address) -> Option<Arc<Lease>> {
        let mut leases = lock(&self.leases);
        leases.retain(|(_, lease)| lease.upgrade().is_some_and(|lease| !lease.association.has_ended()));
        let same = |other: &Address| Address { namespace: address.namespace, ..other.clone() } == *address;
        leases.iter().find(|(other, _)| same(other)).and_then(|(_, lease)| lease.upgrade())
    }

    async fn associate(self: &Arc<Self>, address: &Address) -> Result<Arc<Lease>, InitiatorError> {
        // Old commands must not be carried out after new ones: the server has let go of them by then.
        let until = lock(&self.lost).get(&address.server()).copied().unwrap_or(0);
        shard::sleep(until.saturating_sub(shard::now())).await;
        // If the caller stops waiting, the lease is dropped, which ends what has begun.
        let lease = Arc::new(Lease { association: Association::new(self, address) });
        if let Err(error) = lease.association.start().await {
            lease.association.end(Loss::Closed);
            return Err(error);
        }
        lock(&self.leases).push((address.clone(), Arc::downgrade(&lease)));
        Ok(lease)
    }
}

/// Keeps an association alive: its sources and devices hold it.
pub(super) struct Lease {
    pub association: Arc<Association>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.association.end(Loss::Dropped);
    }
}

/// What the server allows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub commands_max: u16,
    pub capsule_bytes: usize,
    pub transfer_bytes: usize,
    pub queues: u16,
    pub volatile_cache: bool,
    pub optional_commands: u16,
    /// See [`ControllerInfo::traffic_keep_alive`].
    pub traffic_keep_alive: bool,
    /// See [`ControllerInfo::keep_alive_units`].
    pub keep_alive_units: u16,
    pub offload: Option<Announcement>,
}

/// See the module.
pub(super) struct Association {
    id: u64,
    initiator: Weak<Initiator>,
    options: Options,
    connector: Arc<dyn Connector>,
    /// Where its admin queue is.
    home: ShardHandle,
    address: Address,
    controller: AtomicU16,
    limits: OnceLock<Limits>,
    /// Those with sources or devices.
    pub(super) in_use: Mutex<Vec<Namespace>>,
    ended: AtomicBool,
    reason: Mutex<Option<Loss>>,
    changed: Signal,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// This shard's queues by association and number.
    static QUEUES: RefCell<Vec<(u64, u16, std::rc::Weak<Queue>)>> = const { RefCell::new(Vec::new()) };
}

impl Association {
    fn new(initiator: &Arc<Initiator>, address: &Address) -> Arc<Self> {
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            initiator: Arc::downgrade(initiator),
            options: initiator.options.clone(),
            connector: Arc::clone(&initiator.connector),
            home: shard::with_current(Shard::handle),
            address: address.clone(),
            controller: AtomicU16::new(0),
            limits: OnceLock::new(),
            in_use: Mutex::default(),
            ended: AtomicBool::new(false),
            reason: Mutex::default(),
            changed: Signal::default(),
        })
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// For how long the server may carry out commands of this association once it was lost, in nanoseconds.
    ///
    /// It rounds the time that it was told up to what its timer can count. Only of our target it is known
    /// that it counts from the last command to the moment, unless it says otherwise. Others may look once in
    /// that time only whether one came (SPDK's and Linux' do), and so end a silent host after twice that
    /// time.
    pub fn patience_ns(&self) -> u64 {
        // Before it has said what it allows, it gets no command that could do harm.
        let Some(limits) = self.limits.get().filter(|_| !self.options.repeats_harmlessly) else { return 0 };
        let told_ms = u64::from(self.options.keep_alive_ms);
        let unit_ms = if active(Mutant::GranularityIgnored) { 0 } else { step_ms(limits.keep_alive_units) };
        let counts_exactly = limits.offload.is_some() && !limits.traffic_keep_alive;
        let times = if counts_exactly || active(Mutant::OneLookAssumed) { 1 } else { 2 };
        (times * told_ms.next_multiple_of(unit_ms.max(1)) + GRACE_MS) * 1_000_000
    }

    /// What the server allows; until it has said so, the least.
    pub fn limits(&self) -> Limits {
        self.limits.get().copied().unwrap_or(Limits {
            commands_max: 2,
            capsule_bytes: 0,
            transfer_bytes: 4096,
            queues: 0,
            volatile_cache: true,
            optional_commands: 0,
            traffic_keep_alive: false,
            keep_alive_units: 0,
            offload: None,
        })
    }

    pub fn stream(&self) -> Connecting {
        self.connector.connect(&self.address)
    }

    /// Told when it has ended.
    pub fn changed(&self) -> &Signal {
        &self.changed
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Ends it. The first reason counts.
    pub fn end(&self, loss: Loss) {
        let is_first = {
            let mut reason = lock(&self.reason);
            let is_first = reason.is_none();
            reason.get_or_insert(loss);
            is_first
        };
        if is_first && loss != Loss::Dropped && self.controller.load(Ordering::SeqCst) != 0 {
            self.hold_back();
        }
        self.ended.store(true, Ordering::SeqCst);
        self.changed.notify();
    }

    /// The server may still carry out commands of this association: no other one begins before it must have
    /// let go.
    pub fn hold_back(&self) {
        let patience = self.patience_ns();
        if active(Mutant::ReturnsTooEarly) || patience == 0 {
            return;
        }
        let until = shard::now() + patience;
        if let Some(initiator) = self.initiator.upgrade() {
            let mut lost = lock(&initiator.lost);
            let latest = lost.entry(self.address.server()).or_insert(until);
            // Another association with it may have had more time.
            *latest = until.max(*latest);
        }
    }

    /// The error for a caller that needed the connection when it ended.
    pub fn lost(&self, loss: Loss) -> InitiatorError {
        let reason = lock(&self.reason).unwrap_or(loss);
        InitiatorError::Lost { server: self.address.server(), reason: reason.to_string() }
    }

    /// The error of a command that failed.
    pub fn failed(&self, what: &'static str, failure: Failure) -> InitiatorError {
        match failure {
            Failure::Status(status) => {
                InitiatorError::Refused { server: self.address.server(), what, status }
            }
            Failure::Lost => self.lost(Loss::Closed),
        }
    }

    fn unusable(&self, reason: &'static str) -> InitiatorError {
        InitiatorError::Unusable { server: self.address.server(), reason }
    }

    /// Queue `number` of this shard, if there is one.
    fn local(&self, number: u16) -> Option<Rc<Queue>> {
        QUEUES.with(|queues| {
            let queues = queues.borrow();
            let found = queues.iter().find(|(id, other, _)| (*id, *other) == (self.id, number));
            found.and_then(|(_, _, queue)| queue.upgrade())
        })
    }

    /// Makes queue `number` of this shard known until the association ends.
    fn keep(self: &Arc<Self>, number: u16, queue: &Rc<Queue>) {
        let (association, queue) = (Arc::clone(self), Rc::clone(queue));
        QUEUES.with(|queues| {
            let mut queues = queues.borrow_mut();
            queues.retain(|(.., other)| other.strong_count() > 0);
            queues.push((self.id, number, Rc::downgrade(&queue)));
        });
        shard::spawn(async move {
            association.changed.wait_until(|| association.has_ended()).await;
            drop(queue);
        });
    }

    /// This shard's I/O queue. It comes up by itself; commands wait for it.
    pub fn queue(self: &Arc<Self>) -> Result<Rc<Queue>, pinstripe_runtime::DeviceError> {
        let kind = pinstripe_runtime::DeviceErrorKind::Gone;
        if self.has_ended() {
            return Err(pinstripe_runtime::DeviceError::of(kind));
        }
        let number = u16::try_from(shard::index() + 1).unwrap_or(u16::MAX);
        if let Some(queue) = self.local(number) {
            return Ok(queue);
        }
        if number > self.limits().queues {
            return Err(pinstripe_runtime::DeviceError::of(pinstripe_runtime::DeviceErrorKind::Unsupported));
        }
        let queue = Queue::new(self, number);
        self.keep(number, &queue);
        let (connecting, controller) = (Rc::clone(&queue), self.controller.load(Ordering::SeqCst));
        shard::spawn(async move {
            // A failure ends the association, which all commands are told.
            let _ = connecting.connect(controller).await;
        });
        Ok(queue)
    }

    async fn admin(self: &Arc<Self>) -> Result<Rc<Queue>, InitiatorError> {
        let queue = Queue::new(self, 0);
        self.keep(0, &queue);
        let controller = queue.connect(CONTROLLER_ANY).await?;
        self.controller.store(controller, Ordering::SeqCst);
        self.enable(&queue).await?;
        Ok(queue)
    }

    /// From Connect to a controller that takes I/O queues.
    async fn start(self: &Arc<Self>) -> Result<(), InitiatorError> {
        let queue = self.admin().await?;
        let (controller, offload) = self.controller_info(&queue).await?;
        if controller.discovery {
            return Err(self.unusable("it is a discovery subsystem"));
        }
        let step_ms = step_ms(controller.keep_alive_units);
        if step_ms > KEEP_ALIVE_STEP_MS_MAX && !self.options.repeats_harmlessly {
            return Err(self.unusable(
                "it counts the keep-alive time in steps of more than a minute, and for so long it may carry out what a host had asked for that it has lost",
            ));
        }
        let wanted = u32::from(self.options.queues.max(1) - 1);
        let command = Command::new(opcode::SET_FEATURES, 0)
            .with_dword(10, u32::from(feature::QUEUES))
            .with_dword(11, wanted << 16 | wanted);
        let (granted, _) =
            queue.ask(command, None).await.map_err(|failure| self.failed("I/O queues", failure))?;
        let [submission_low, submission_high, completion_low, completion_high, ..] = granted.to_le_bytes();
        let submission = u16::from_le_bytes([submission_low, submission_high]);
        let queues = submission.min(u16::from_le_bytes([completion_low, completion_high])).saturating_add(1);
        if queues < self.options.queues {
            return Err(
                self.unusable("it gives fewer queues than there are shards: serve with fewer --shards")
            );
        }
        let shift = u32::from(controller.transfer_shift);
        let limits = Limits {
            commands_max: if controller.commands_max == 0 { DEPTH } else { controller.commands_max.max(2) },
            capsule_bytes: usize::try_from(controller.capsule_data_bytes)
                .unwrap_or(0)
                .min(TRANSFER_BYTES_MAX),
            transfer_bytes: match shift {
                0 => TRANSFER_BYTES_MAX,
                _ => TRANSFER_BYTES_MAX.min(4096_usize.checked_shl(shift).unwrap_or(usize::MAX)),
            },
            queues,
            volatile_cache: controller.volatile_cache,
            optional_commands: controller.optional_commands,
            traffic_keep_alive: controller.traffic_keep_alive,
            keep_alive_units: controller.keep_alive_units,
            offload,
        };
        // It is set once.
        let _ = self.limits.set(limits);
        let (association, admin) = (Arc::clone(self), Rc::clone(&queue));
        shard::spawn(async move { association.keep_alive(&admin).await });
        self.hear_notices(&queue, controller.events).await;
        Ok(())
    }

    async fn enable(&self, queue: &Rc<Queue>) -> Result<(), InitiatorError> {
        let refused = |failure| self.failed("to be enabled", failure);
        let set = Command::fabrics(fabrics::PROPERTY_SET)
            .with_dword(11, property::CC)
            .with_dword(12, bits::CC_ENABLE | bits::CC_ENTRY_SIZES);
        queue.ask(set, None).await.map_err(refused)?;
        let get = Command::fabrics(fabrics::PROPERTY_GET).with_dword(11, property::CSTS);
        let begun = shard::now();
        loop {
            let (status, _) = queue.ask(get, None).await.map_err(refused)?;
            if status & u64::from(bits::CSTS_FATAL) != 0 {
                return Err(self.unusable("its controller reports a fatal error"));
            }
            if status & u64::from(bits::CSTS_READY) != 0 {
                return Ok(());
            }
            if shard::now() - begun > self.options.connect_nanoseconds {
                return Err(InitiatorError::Silent { server: self.address.server() });
            }
            shard::sleep(READY_LOOK_NANOSECONDS).await;
        }
    }

    async fn controller_info(
        &self,
        queue: &Rc<Queue>,
    ) -> Result<(ControllerInfo, Option<Announcement>), InitiatorError> {
        let bytes = self.identify_page(queue, cns::CONTROLLER, 0).await?;
        let info = ControllerInfo::parse(&bytes);
        let info = info.ok_or_else(|| self.unusable("its Identify data is not valid"))?;
        Ok((info, Announcement::parse(&bytes)))
    }

    /// Runs `ask` with the admin queue, on the shard where that is.
    pub async fn on_admin<F, T>(
        self: &Arc<Self>,
        ask: impl FnOnce(Rc<Queue>) -> F + Send + 'static,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>> + 'static,
        T: Send + 'static,
    {
        if let Some(queue) = self.local(0) {
            return ask(queue).await;
        }
        let there = Arc::clone(self);
        let answer = self.home.call(move || async move {
            match there.local(0) {
                Some(queue) => ask(queue).await,
                None => Err(Failure::Lost),
            }
        });
        answer.await.unwrap_or(Err(Failure::Lost))
    }

    async fn identify_page(
        &self,
        queue: &Rc<Queue>,
        what: u8,
        namespace: u32,
    ) -> Result<Box<[u8; identify::BYTES]>, InitiatorError> {
        let command = Command::new(opcode::IDENTIFY, namespace).with_dword(10, what.into());
        let answer = queue.ask(command, Some(shard::zeroed(identify::BYTES))).await;
        let (_, buffer) = answer.map_err(|failure| match failure {
            Failure::Status(_) if what == cns::NAMESPACE => {
                InitiatorError::NoNamespace { server: self.address.server(), namespace }
            }
            other => self.failed("Identify", other),
        })?;
        let bytes = buffer.and_then(|buffer| buffer.first_chunk::<{ identify::BYTES }>().copied());
        bytes.map(Box::new).ok_or_else(|| self.unusable("its Identify data is short"))
    }

    /// The numbers of the server's namespaces; of the first 1024, if there are more.
    async fn namespaces(self: &Arc<Self>) -> Result<Vec<u32>, InitiatorError> {
        let queue = self.local(0).ok_or_else(|| self.lost(Loss::Closed))?;
        Ok(identify::parse_namespace_list(&*self.identify_page(&queue, cns::NAMESPACES, 0).await?))
    }

    /// What stands at an address of this server.
    pub(super) async fn identify(self: &Arc<Self>, address: &Address) -> Result<Namespace, InitiatorError> {
        let queue = self.local(0).ok_or_else(|| self.lost(Loss::Closed))?;
        let bytes = self.identify_page(&queue, cns::NAMESPACE, address.namespace).await?;
        let none =
            || InitiatorError::NoNamespace { server: self.address.server(), namespace: address.namespace };
        let info = NamespaceInfo::parse(&bytes).ok_or_else(none)?;
        let mut identity = NamespaceIdentity::new(&info);
        if identity == NamespaceIdentity::default() {
            match self.identify_page(&queue, cns::DESCRIPTORS, address.namespace).await {
                Ok(list) => identity = identity.with_descriptors(&list),
                // A server from before revision 1.3 knows no such list.
                Err(InitiatorError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if info.metadata_bytes > 0 {
            return Err(self.unusable("its namespace has metadata in each block"));
        }
        let limits = self.limits();
        let has = |command: u16| limits.optional_commands & command != 0;
        Ok(Namespace {
            number: address.namespace,
            block_shift: info.block_shift,
            identity,
            read_only: info.read_only,
            gone: Arc::default(),
            info: DeviceInfo {
                name: address.to_string(),
                size: info.blocks << info.block_shift,
                logical_block: 1 << info.block_shift,
                volatile_cache: limits.volatile_cache,
                // The server may be one that makes forced writes of writes and flushes of what it serves.
                forces_by_flush: limits.volatile_cache,
                zeroes: if has(optional::WRITE_ZEROES) {
                    ZeroedReads::Zero
                } else {
                    ZeroedReads::Unsupported
                },
                discards: has(optional::DATASET_MANAGEMENT),
                in_memory: false,
                moves_head: None,
            },
        })
    }

    /// Has the server hear of us twice in its time.
    async fn keep_alive(&self, queue: &Rc<Queue>) {
        let pause = u64::from(self.options.keep_alive_ms) * 1_000_000 / 2;
        if pause == 0 {
            return;
        }
        loop {
            let over = self.changed.wait_until(|| self.has_ended());
            if shard::timeout(pause, over).await.is_some() {
                return;
            }
            // Unanswered, it runs into the queue's time-out; a server that is that slow has given us up
            // already.
            if shard::timeout(2 * pause, queue.ask(Command::new(opcode::KEEP_ALIVE, 0), None)).await.is_none()
            {
                self.end(Loss::Timeout);
            }
        }
    }

    async fn discover(self: &Arc<Self>) -> Result<Vec<log::DiscoveryEntry>, InitiatorError> {
        let queue = self.admin().await?;
        let header = self.log_page(&queue, log::page::DISCOVERY, log::discovery_bytes(0)).await?;
        let count = log::discovery_count(&header);
        let count = count.ok_or_else(|| self.unusable("its discovery log is not valid"))?;
        let page = self.log_page(&queue, log::page::DISCOVERY, log::discovery_bytes(count)).await?;
        Ok(log::parse_discovery(&page))
    }

    pub(super) async fn log_page(
        &self,
        queue: &Rc<Queue>,
        page: u8,
        length: usize,
    ) -> Result<Vec<u8>, InitiatorError> {
        /// Bytes of one Get Log Page: what every server gives.
        const PART: usize = 4096;
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let part = (length - bytes.len()).min(PART);
            let dwords = u32::try_from(part / 4).unwrap_or(1) - 1;
            let command = Command::new(opcode::GET_LOG_PAGE, 0)
                .with_dword(10, u32::from(page) | dwords << 16)
                .with_dword(12, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            let answer = queue.ask(command, Some(shard::zeroed(part))).await;
            let (_, buffer) = answer.map_err(|failure| self.failed("a log page", failure))?;
            let buffer = buffer.ok_or_else(|| self.unusable("its log page is short"))?;
            bytes.extend_from_slice(&buffer);
        }
        Ok(bytes)
    }
}

/// Of units of 100 ms (KAS).
fn step_ms(units: u16) -> u64 {
    u64::from(units) * 100
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
