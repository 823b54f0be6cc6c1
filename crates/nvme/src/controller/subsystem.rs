//! What the shards share: the subsystem, its namespaces, its controllers.
//!
//! A controller's queues are connections that may live on any shards. It dies as a whole: when its admin
//! connection ends, its keep-alive timer runs out, or the server stops, [`Controller::kill`] has every
//! queue's session end. It is forgotten when the last of them has finished its commands. On a namespace where
//! writes of it are still carried out, commands of the host's next controller wait, so that no old one can be
//! carried out after a new one; a disk that hangs holds up none of the others.
//!
//! The locks, of which a shard holds one at a time ([`lock`]): the controllers, each controller's state, each
//! namespace's reservations, and what is known of its attachments ([`Guarded`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pinstripe_block::budget::Budget;
use pinstripe_runtime::{Signal, shard};

use super::leave::{LeftController, LeftQueue, LeftSubsystem};
use super::offload::{Change, Guarded, OffloadConfig, OffloadStatistics, Server};
use super::reservation::{Access, HostId, Reservations};
use crate::auth::{Authentication, Keyring};
use crate::lock::lock;
use crate::mutants::{Mutant, active};
use crate::wire::fabrics::bits;
use crate::wire::feature;
use crate::wire::identify::NamespaceInfo;
use crate::wire::log::{DiscoveryEntry, Traffic};
use crate::wire::status::Status;

/// Controllers that a subsystem has at a time, those of discovery included. A controller doesn't count until
/// its host has proved its identity: until then the limit on connections bounds it.
const CONTROLLERS_MAX: usize = 256;
/// Ended controllers of a host with commands that aren't over, beside which it may have a new one.
const DRAINING_MAX: usize = 4;
/// Changed namespaces that are remembered one by one.
const CHANGED_MAX: usize = 1025;

/// A namespace as it is to be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceConfig {
    /// Its universally unique identifier; the same after a restart, or hosts refuse it.
    pub uuid: [u8; 16],
    /// Size in bytes; 0 if it isn't there, so that its number stays free.
    pub size_bytes: u64,
    /// Bytes of the logical block: a power of two from 512 to 64 KiB.
    pub block_size: u32,
    /// Bytes of a range that is written well when aligned to itself.
    pub preferred_block: u32,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// What a target serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubsystemConfig {
    /// Its NQN.
    pub nqn: String,
    /// Its serial number, at most 20 bytes; the same after a restart.
    pub serial: String,
    /// The namespaces, from number 1.
    pub namespaces: Vec<NamespaceConfig>,
    /// I/O queues of a controller.
    pub queues_max: u16,
    /// Where it can be reached, for the discovery log.
    pub addresses: Vec<SocketAddr>,
}

/// Why there can't be such a subsystem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubsystemError {
    /// The name.
    #[error("'{0}' is no NQN: it must begin with `nqn.` and have at most 223 printable characters")]
    Name(String),
    /// The namespaces.
    #[error("a target serves 1 to 256 namespaces, not {0}")]
    Count(usize),
    /// What was stored of a namespace's epochs.
    #[error("can't read the epochs: {0}")]
    Epochs(String),
    /// A block size.
    #[error(
        "namespace {namespace} has blocks of {block_size} bytes: a power of two from 512 to 64 KiB is needed"
    )]
    BlockSize {
        /// From 1.
        namespace: usize,
        /// Bytes.
        block_size: u32,
    },
}

/// Refuses what can't be a subsystem's NQN.
pub fn check_name(nqn: &str) -> Result<(), SubsystemError> {
    if crate::wire::nqn_is_valid(nqn) && nqn != crate::wire::DISCOVERY_NQN {
        return Ok(());
    }
    Err(SubsystemError::Name(nqn.to_owned()))
}

/// What was done on one shard.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub bytes_read: AtomicU64,
    pub bytes_written: AtomicU64,
}

/// A namespace, as all shards see it.
pub(super) struct Namespace {
    index: usize,
    pub info: NamespaceInfo,
    pub uuid: [u8; 16],
    present: AtomicBool,
    /// Whether a host holds a reservation. Looked at without the lock.
    reserved: AtomicBool,
    reservations: Mutex<Reservations>,
    offload: Option<Arc<Guarded>>,
}

impl Namespace {
    fn new(index: usize, config: &NamespaceConfig) -> Option<Self> {
        let shift = config.block_size.is_power_of_two().then(|| config.block_size.trailing_zeros())?;
        let block_shift = u8::try_from(shift).ok().filter(|shift| (9..=16).contains(shift))?;
        Some(Self {
            index,
            info: NamespaceInfo {
                blocks: config.size_bytes >> block_shift,
                block_shift,
                metadata_bytes: 0,
                reservations: true,
                read_only: config.read_only,
                preferred_blocks: u16::try_from(config.preferred_block >> block_shift).unwrap_or(0),
                nguid: config.uuid,
                eui64: [0; 8],
            },
            uuid: config.uuid,
            present: AtomicBool::new(config.size_bytes > 0),
            reserved: AtomicBool::new(false),
            reservations: Mutex::default(),
            offload: None,
        })
    }

    /// Whether an Attach or Detach waits until changes that were admitted are over.
    pub fn is_changing_hands(&self) -> bool {
        self.offload.as_ref().is_some_and(|guarded| guarded.with(|state| state.fence.changing))
    }

    /// Works on the reservations.
    pub fn reservations<T>(&self, work: impl FnOnce(&mut Reservations) -> T) -> T {
        let mut reservations = lock(&self.reservations);
        let value = work(&mut reservations);
        self.reserved.store(!reservations.is_free(), Ordering::SeqCst);
        value
    }
}

/// See the module.
pub struct Subsystem {
    config: SubsystemConfig,
    /// How hosts prove their identity; `None`: they don't.
    authentication: Option<Authentication>,
    namespaces: Vec<Namespace>,
    controllers: Mutex<Vec<Arc<Controller>>>,
    next_controller: AtomicU16,
    counters: Mutex<Vec<Arc<Counters>>>,
    offload: Option<Server>,
    /// Memory of all connections, unless the shards' targets are given another.
    pub(super) budget: Arc<Budget>,
    /// A controller has gone, or its last write has ended.
    pub(super) changed: Signal,
}

impl Subsystem {
    /// A subsystem without controllers, for any host.
    pub fn new(config: SubsystemConfig) -> Result<Arc<Self>, SubsystemError> {
        Self::with(config, None, None)
    }

    /// The same, with an authentication and the offload extension. With an authentication only hosts that it
    /// knows may connect, and each must prove its identity before it may do anything else. With the extension
    /// stored epochs are read, which may block.
    pub fn with(
        config: SubsystemConfig,
        authentication: Option<Authentication>,
        offload: Option<OffloadConfig>,
    ) -> Result<Arc<Self>, SubsystemError> {
        let mut subsystem = Self::bare(config, authentication)?;
        if let Some(offload) = offload {
            let uuids: Vec<[u8; 16]> = subsystem.namespaces.iter().map(|namespace| namespace.uuid).collect();
            let server = Server::new(&subsystem.config.nqn, &uuids, offload);
            let server = server.map_err(|error| SubsystemError::Epochs(error.to_string()))?;
            for (number, namespace) in (1..).zip(&mut subsystem.namespaces) {
                namespace.offload = server.namespace(number).cloned();
            }
            subsystem.offload = Some(server);
        }
        Ok(Arc::new(subsystem))
    }

    /// What was done for operations; `None` without the extension.
    pub fn offload_statistics(&self) -> Option<OffloadStatistics> {
        self.offload.as_ref().map(Server::statistics)
    }

    pub(super) fn offload(&self) -> Option<&Server> {
        self.offload.as_ref()
    }

    fn bare(config: SubsystemConfig, authentication: Option<Authentication>) -> Result<Self, SubsystemError> {
        check_name(&config.nqn)?;
        if !(1..=256).contains(&config.namespaces.len()) {
            return Err(SubsystemError::Count(config.namespaces.len()));
        }
        let namespaces = config.namespaces.iter().enumerate().map(|(index, namespace)| {
            let wrong = SubsystemError::BlockSize { namespace: index + 1, block_size: namespace.block_size };
            Namespace::new(index, namespace).ok_or(wrong)
        });
        let namespaces = namespaces.collect::<Result<_, _>>()?;
        Ok(Self {
            config,
            authentication,
            namespaces,
            controllers: Mutex::default(),
            next_controller: AtomicU16::new(1),
            counters: Mutex::default(),
            offload: None,
            budget: Arc::default(),
            changed: Signal::default(),
        })
    }

    /// What it serves.
    pub fn config(&self) -> &SubsystemConfig {
        &self.config
    }

    pub(super) fn authentication(&self) -> Option<&Authentication> {
        self.authentication.as_ref()
    }

    /// The namespace of this number, from 1, if it is there.
    pub(super) fn namespace(&self, number: u32) -> Option<&Namespace> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.namespaces.get(index).filter(|namespace| namespace.present.load(Ordering::SeqCst))
    }

    /// The highest number of a namespace.
    pub(super) fn namespaces_max(&self) -> u32 {
        u32::try_from(self.namespaces.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn active_namespaces(&self) -> impl Iterator<Item = u32> {
        (1..=self.namespaces_max()).filter(|number| self.namespace(*number).is_some())
    }

    /// Takes a namespace away from hosts or gives it back, and has them told. Its number counts from 1; false
    /// if there is none of this number.
    pub fn set_present(&self, number: u32, present: bool) -> bool {
        let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        let Some(namespace) = index.and_then(|index| self.namespaces.get(index)) else { return false };
        if namespace.present.swap(present, Ordering::SeqCst) != present {
            for controller in self.controllers() {
                controller.namespace_changed(number);
            }
        }
        true
    }

    pub(super) fn discovery(&self) -> Vec<DiscoveryEntry> {
        let entry =
            |address: &SocketAddr| DiscoveryEntry { subsystem: self.config.nqn.clone(), address: *address };
        self.config.addresses.iter().map(entry).collect()
    }

    /// Counters for one more shard.
    pub(super) fn count_in(&self) -> Arc<Counters> {
        let counters = Arc::<Counters>::default();
        lock(&self.counters).push(Arc::clone(&counters));
        counters
    }

    pub(super) fn traffic(&self) -> Traffic {
        let mut sum = Traffic::default();
        for counters in lock(&self.counters).iter() {
            sum.reads += counters.reads.load(Ordering::Relaxed);
            sum.writes += counters.writes.load(Ordering::Relaxed);
            sum.bytes_read += counters.bytes_read.load(Ordering::Relaxed);
            sum.bytes_written += counters.bytes_written.load(Ordering::Relaxed);
        }
        sum
    }

    /// Controllers that are alive or have commands that aren't over.
    pub fn controller_count(&self) -> usize {
        lock(&self.controllers).len()
    }

    /// The hosts that use it, by their NQNs, once for each of their controllers. Controllers for discovery
    /// don't count, nor those with a host that must still prove its identity.
    pub fn hosts(&self) -> Vec<String> {
        let uses = |each: &Arc<Controller>| !each.discovery && !each.is_dead() && each.is_proven();
        let users = self.controllers().into_iter().filter(uses);
        users.map(|controller| controller.host.clone()).collect()
    }

    fn controllers(&self) -> Vec<Arc<Controller>> {
        lock(&self.controllers).clone()
    }

    pub(super) fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        lock(&self.controllers)
            .iter()
            .find(|controller| controller.id == id && !controller.is_dead())
            .cloned()
    }

    /// What Reservation Report tells of a namespace.
    pub(super) fn report(&self, namespace: &Namespace) -> Vec<u8> {
        let is_told = |one: &Arc<Controller>| !one.discovery && one.is_proven();
        let told: Vec<_> = self.controllers().into_iter().filter(is_told).collect();
        let numbers_of = |host: &HostId| {
            let of_host = told.iter().filter(|one| one.host_id == *host);
            of_host.map(|one| one.id).collect()
        };
        namespace.reservations(|state| state.report(numbers_of))
    }

    /// Whether too many controllers of this host are dead and still have commands that aren't over. One that
    /// has never proved to be the host's has carried out nothing, and any stranger may have named the host.
    pub(super) fn drains_too_many(&self, host: &HostId) -> bool {
        let controllers = self.controllers();
        let of_host = controllers.iter().filter(|controller| controller.host_id == *host);
        of_host.filter(|controller| controller.is_dead() && controller.is_proven()).count() >= DRAINING_MAX
    }

    /// Waits until no write of these hosts is being carried out on a namespace. New ones must be refused
    /// already.
    pub(super) async fn drain(&self, hosts: &[HostId], namespace: &Namespace) {
        let quiet = || {
            let controllers = lock(&self.controllers);
            let mut theirs = controllers.iter().filter(|controller| hosts.contains(&controller.host_id));
            theirs.all(|controller| controller.writes.are_over(namespace))
        };
        self.changed.wait_until(quiet).await;
    }

    /// A new controller for a host; `None` if there are too many.
    pub(super) fn add_controller(
        self: &Arc<Self>,
        host_id: HostId,
        host: &str,
        discovery: bool,
        keep_alive_ms: u32,
        now: u64,
    ) -> Option<Arc<Controller>> {
        self.end_silent(host_id, now);
        let mut controllers = lock(&self.controllers);
        if controllers.iter().filter(|other| other.is_proven()).count() >= CONTROLLERS_MAX {
            return None;
        }
        let id = loop {
            let id = self.next_controller.fetch_add(1, Ordering::Relaxed);
            if (1..0xfff0).contains(&id) && !controllers.iter().any(|other| other.id == id) {
                break id;
            }
        };
        // Whatever they count later is refused: they are dead.
        let is_before = |other: &&Arc<Controller>| other.host_id == host_id && other.is_dead();
        let before = controllers.iter().filter(is_before).map(|other| Arc::clone(&other.writes));
        let before = before.filter(|writes| !writes.are_none()).collect();
        let controller = Arc::new(Controller {
            id,
            host_id,
            host: host.to_owned(),
            discovery,
            subsystem: Arc::clone(self),
            keep_alive_ms: AtomicU64::new(keep_alive_ms.into()),
            heard: AtomicU64::new(now),
            proven: AtomicBool::new(self.authentication.is_none()),
            dead: AtomicBool::new(false),
            writes: Writes::new(self),
            before,
            state: Mutex::default(),
            changed: Signal::default(),
        });
        controllers.push(Arc::clone(&controller));
        Some(controller)
    }

    /// Ends those controllers of a host that have been silent for too long. One that must still prove its
    /// identity may compute for longer, and has written nothing.
    fn end_silent(&self, host: HostId, now: u64) {
        let controllers = self.controllers();
        for controller in controllers.iter().filter(|one| one.host_id == host && one.is_proven()) {
            controller.ends_silent(now);
        }
    }

    /// What another process goes on with, if it gets these queues: the controllers whose admin queues are
    /// among them.
    pub fn left(&self, queues: &[LeftQueue]) -> LeftSubsystem {
        let has_admin = |id: u16| queues.iter().any(|queue| queue.is_admin() && queue.controller() == id);
        let controllers = self.controllers();
        let kept = controllers.iter().filter(|controller| !controller.is_dead() && has_admin(controller.id));
        LeftSubsystem {
            next_controller: self.next_controller.load(Ordering::Relaxed),
            controllers: kept.map(|controller| controller.left()).collect(),
            reservations: self.namespaces.iter().map(|one| one.reservations(|state| state.left())).collect(),
        }
    }

    /// Takes up what another process has left, before any connection. Controllers of hosts that have no line
    /// any more stay out.
    pub fn restore(self: &Arc<Self>, left: &LeftSubsystem) {
        self.next_controller.store(left.next_controller, Ordering::Relaxed);
        for (namespace, reservations) in self.namespaces.iter().zip(&left.reservations) {
            namespace.reservations(|state| *state = Reservations::restored(reservations));
        }
        let is_known = |host: &str| self.authentication.as_ref().is_none_or(|keys| keys.peer(host).is_some());
        let known = left.controllers.iter().filter(|controller| is_known(&controller.host));
        let restored: Vec<_> = known.map(|controller| Controller::restored(self, controller)).collect();
        lock(&self.controllers).extend(restored);
    }

    /// A controller's admin queue did not come: it ends.
    pub(super) fn abandon(&self, controller: u16) {
        if let Some(controller) = self.controller(controller) {
            controller.kill();
            controller.leave(None);
        }
    }

    /// Has hosts prove their identity by these keys from now on. Controllers of hosts that have no line any
    /// more, or another secret in it, end now; those hosts.
    pub fn replace_keys(&self, keys: Keyring) -> BTreeSet<String> {
        let Some(authentication) = &self.authentication else { return BTreeSet::new() };
        let before = authentication.replace(keys);
        let mut out = BTreeSet::new();
        // One that comes later has nothing but the new keys to prove itself by.
        for controller in self.controllers() {
            let (before, now) = (before.find(&controller.host), authentication.peer(&controller.host));
            if before.map(|entry| &entry.host) != now.as_ref().map(|entry| &entry.host) {
                controller.kill();
                out.insert(controller.host.clone());
            }
        }
        out
    }

    /// Ends all controllers.
    pub fn kill_all(&self) {
        for controller in self.controllers() {
            controller.kill();
        }
    }
}

/// What changes in a controller, other than its life.
#[derive(Debug, Default)]
struct ControllerState {
    configuration: u32,
    status: u32,
    events: u32,
    queues: BTreeSet<u16>,
    /// Features that are stored and told again, by what they are.
    settings: BTreeMap<u8, u32>,
    changed_namespaces: BTreeSet<u32>,
    /// A notice has been sent and the log page not been read since.
    noticed: bool,
}

/// Admitted writes of a controller that aren't over, by namespace.
struct Writes(Box<[AtomicUsize]>);

impl Writes {
    fn new(subsystem: &Subsystem) -> Arc<Self> {
        Arc::new(Self(subsystem.namespaces.iter().map(|_| AtomicUsize::new(0)).collect()))
    }

    fn are_over(&self, namespace: &Namespace) -> bool {
        self.0[namespace.index].load(Ordering::SeqCst) == 0
    }

    fn are_none(&self) -> bool {
        self.0.iter().all(|count| count.load(Ordering::SeqCst) == 0)
    }
}

/// A host's association.
pub(super) struct Controller {
    pub id: u16,
    pub host_id: HostId,
    pub host: String,
    pub discovery: bool,
    pub subsystem: Arc<Subsystem>,
    /// 0 for none.
    pub keep_alive_ms: AtomicU64,
    /// When the host was heard of last. Below 0, as a number with a sign, if that was before this process.
    pub heard: AtomicU64,
    /// Its host has proved its identity, where it must.
    proven: AtomicBool,
    dead: AtomicBool,
    writes: Arc<Writes>,
    /// Those of ended controllers of its host that were not over when it began.
    before: Vec<Arc<Writes>>,
    state: Mutex<ControllerState>,
    /// It has died, or something is to be told to the host.
    pub changed: Signal,
}

impl Controller {
    /// What another process has left.
    fn restored(subsystem: &Arc<Subsystem>, left: &LeftController) -> Arc<Self> {
        // That nothing listened is no reason to give the host more time: it counts by its own clock.
        let silent = shard::machine_now().saturating_sub(left.heard_ns);
        let state = ControllerState {
            configuration: left.configuration,
            status: left.status,
            events: left.events,
            queues: BTreeSet::new(),
            settings: left.settings.iter().copied().collect(),
            changed_namespaces: left.changed_namespaces.iter().copied().collect(),
            noticed: left.noticed,
        };
        Arc::new(Self {
            id: left.id,
            host_id: left.host_id,
            host: left.host.clone(),
            discovery: left.discovery,
            subsystem: Arc::clone(subsystem),
            keep_alive_ms: AtomicU64::new(left.keep_alive_ms),
            heard: AtomicU64::new(shard::now().wrapping_sub(silent)),
            proven: AtomicBool::new(true),
            dead: AtomicBool::new(false),
            writes: Writes::new(subsystem),
            before: Vec::new(),
            state: Mutex::new(state),
            changed: Signal::default(),
        })
    }

    /// What another process goes on with.
    fn left(&self) -> LeftController {
        let state = lock(&self.state);
        LeftController {
            id: self.id,
            host_id: self.host_id,
            host: self.host.clone(),
            discovery: self.discovery,
            keep_alive_ms: self.keep_alive_ms.load(Ordering::Relaxed),
            heard_ns: shard::machine_now().saturating_sub(self.silent(shard::now())),
            configuration: state.configuration,
            status: state.status,
            events: state.events,
            settings: state.settings.iter().map(|(feature, value)| (*feature, *value)).collect(),
            changed_namespaces: state.changed_namespaces.iter().copied().collect(),
            noticed: state.noticed,
        }
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Ends it: every queue's session ends soon.
    pub fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        if let Some(server) = &self.subsystem.offload {
            server.controller_ended(self.id);
        }
        self.changed.notify();
        self.subsystem.changed.notify();
    }

    /// Value of CC.
    pub fn configuration(&self) -> u32 {
        lock(&self.state).configuration
    }

    /// Value of CSTS.
    pub fn status(&self) -> u32 {
        lock(&self.state).status
    }

    /// Sets CC, with what follows from it.
    pub fn configure(&self, value: u32) {
        let mut state = lock(&self.state);
        let before = std::mem::replace(&mut state.configuration, value);
        if value & bits::CC_ENABLE != 0 && before & bits::CC_ENABLE == 0 {
            // Entries of other sizes, other pages than 4 KiB or other command sets aren't served.
            let sizes = value >> 16 & 0xff;
            let fits = (sizes == 0 || sizes == bits::CC_ENTRY_SIZES >> 16 || self.discovery)
                && (value >> 7).trailing_zeros() >= 4
                && (value >> 4).trailing_zeros() >= 3;
            state.status = if fits { bits::CSTS_READY } else { bits::CSTS_FATAL };
        } else if value & bits::CC_ENABLE == 0 {
            state.status &= !bits::CSTS_READY;
            state.events = 0;
            state.changed_namespaces.clear();
            state.noticed = false;
        }
        if value & bits::CC_SHUTDOWN != 0 {
            state.status |= bits::CSTS_SHUTDOWN_COMPLETE;
        } else {
            state.status &= !bits::CSTS_SHUTDOWN_COMPLETE;
        }
    }

    /// Whether commands other than Fabrics ones are taken.
    pub fn is_ready(&self) -> bool {
        self.status() & (bits::CSTS_READY | bits::CSTS_SHUTDOWN_COMPLETE) == bits::CSTS_READY
    }

    /// A connection becomes queue `number`. False if that is in use.
    pub fn add_queue(&self, number: u16) -> bool {
        lock(&self.state).queues.insert(number)
    }

    /// Whether a connection is queue `number`.
    pub fn has_queue(&self, number: u16) -> bool {
        lock(&self.state).queues.contains(&number)
    }

    /// Its host has proved its identity.
    pub fn proved(&self) {
        self.proven.store(true, Ordering::SeqCst);
    }

    fn is_proven(&self) -> bool {
        self.proven.load(Ordering::SeqCst)
    }

    /// Nanoseconds until the keep-alive timer runs out; `None` without one.
    pub fn silence_left(&self, now: u64) -> Option<u64> {
        let allowed = self.keep_alive_ms.load(Ordering::Relaxed) * 1_000_000;
        (allowed > 0 && !active(Mutant::SilenceIgnored)).then(|| allowed.saturating_sub(self.silent(now)))
    }

    /// Nanoseconds since the host was heard of.
    fn silent(&self, now: u64) -> u64 {
        since(self.heard.load(Ordering::Relaxed), now)
    }

    /// Ends it if the keep-alive timer has run out. Its host counts on that by its own clock, and carries on
    /// elsewhere. This process may have stood still: what the host had sent before would be carried out
    /// before the timer is looked at.
    pub fn ends_silent(&self, now: u64) -> bool {
        let ends = self.silence_left(now) == Some(0) && !active(Mutant::StaleCarriedOut);
        if ends {
            self.kill();
        }
        ends
    }

    /// Value of a feature that is only stored. `which` says which of its parts is meant.
    pub fn setting(&self, feature: u8, which: u32) -> u32 {
        let stored = lock(&self.state).settings.get(&feature).copied();
        match feature {
            feature::TEMPERATURE if which & feature::THRESHOLD_WHICH != 0 => 0,
            feature::TEMPERATURE => stored.unwrap_or(feature::THRESHOLD_NEVER),
            _ => stored.unwrap_or(0),
        }
    }

    /// Stores a feature.
    pub fn set(&self, feature: u8, value: u32) {
        if feature != feature::TEMPERATURE || value & feature::THRESHOLD_WHICH == 0 {
            lock(&self.state).settings.insert(feature, value);
        }
    }

    /// A connection has ended, and its commands are over; with it goes the queue that it was. The last one
    /// takes a dead controller along.
    pub fn leave(&self, queue: Option<u16>) {
        let is_last = {
            let mut state = lock(&self.state);
            if let Some(number) = queue {
                state.queues.remove(&number);
            }
            state.queues.is_empty()
        };
        if is_last && self.is_dead() {
            lock(&self.subsystem.controllers).retain(|other| !std::ptr::eq(&raw const **other, self));
            self.subsystem.changed.notify();
        }
    }

    /// Which events the host wants to be told.
    pub fn events(&self) -> u32 {
        lock(&self.state).events
    }

    pub fn set_events(&self, events: u32) {
        lock(&self.state).events = events;
        self.changed.notify();
    }

    fn namespace_changed(&self, number: u32) {
        if !self.discovery {
            let mut state = lock(&self.state);
            if state.changed_namespaces.len() < CHANGED_MAX {
                state.changed_namespaces.insert(number);
            }
        }
        self.changed.notify();
    }

    /// An event that the host is to be told now; the answer to an event request.
    pub fn take_event(&self) -> Option<u64> {
        let mut state = lock(&self.state);
        let wanted = state.events & feature::EVENT_NAMESPACE_CHANGED != 0;
        let news = wanted && !state.noticed && !state.changed_namespaces.is_empty();
        news.then(|| {
            state.noticed = true;
            feature::NOTICE_NAMESPACE_CHANGED
        })
    }

    /// The changed namespaces; `keep` leaves them to be told again.
    pub fn changed_namespaces(&self, keep: bool) -> Vec<u32> {
        let mut state = lock(&self.state);
        let changed = state.changed_namespaces.iter().copied().collect();
        if !keep {
            state.changed_namespaces.clear();
            state.noticed = false;
        }
        changed
    }

    /// Waits until what the host's ended controllers have written to a namespace is over (C16).
    async fn follow(&self, namespace: &Namespace) {
        if self.before.is_empty() || active(Mutant::DrainSkipped) {
            return;
        }
        let is_first = || self.is_dead() || self.before.iter().all(|writes| writes.are_over(namespace));
        self.subsystem.changed.wait_until(is_first).await;
    }

    /// Lets a command touch a namespace. A write is counted until the guard goes.
    ///
    /// It counts before it looks at the reservation, and a preempting command looks at the counts after
    /// changing it: so one of them sees the other (C22). The same holds of a controller that is killed, and
    /// the host's next one that looks at the counts of this one.
    pub async fn admit(self: &Arc<Self>, namespace: &Namespace, access: Access) -> Result<Admitted, Status> {
        self.follow(namespace).await;
        let is_write = access == Access::Write;
        let mut admitted =
            Admitted { writes: is_write.then(|| (Arc::clone(self), namespace.index)), change: None };
        if is_write {
            self.writes.0[namespace.index].fetch_add(1, Ordering::SeqCst);
            if let Some(guarded) = &namespace.offload {
                admitted.change = Some(guarded.admit(self.id).await.ok_or(Status::FENCED)?);
            }
        }
        if is_write && namespace.info.read_only {
            return Err(Status::WRITE_PROTECTED);
        }
        let reserved = namespace.reserved.load(Ordering::SeqCst);
        if reserved && !lock(&namespace.reservations).allows(&self.host_id, access) {
            return Err(Status::RESERVATION_CONFLICT);
        }
        // A controller that is over is no longer known to have been ended by a higher epoch, and its queues
        // may not know yet that it is over (C28).
        if self.is_dead() || self.ends_silent(shard::now()) {
            return Err(Status::NAMESPACE_NOT_READY);
        }
        Ok(admitted)
    }
}

/// Nanoseconds from `moment` to `now`. The moment may lie before 0, where the clock began with this process,
/// and a little after `now`, seen from another shard.
fn since(moment: u64, now: u64) -> u64 {
    now.wrapping_sub(moment).cast_signed().max(0).cast_unsigned()
}

/// See [`Controller::admit`].
pub(super) struct Admitted {
    writes: Option<(Arc<Controller>, usize)>,
    change: Option<Change>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if let Some((controller, namespace)) = &self.writes
            && controller.writes.0[*namespace].fetch_sub(1, Ordering::SeqCst) == 1
        {
            controller.subsystem.changed.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::initiator::{Address, Connecting, Connector};
    use pinstripe_runtime::{Shard, ShardConfig};
    use std::task::{Context, Poll, Waker};

    fn config(sizes: [u64; 3]) -> SubsystemConfig {
        let namespace = |size_bytes| NamespaceConfig {
            uuid: [0; 16],
            size_bytes,
            block_size: 512,
            preferred_block: 512,
            read_only: false,
        };
        SubsystemConfig {
            nqn: "nqn.2026-01.com.example:x".to_owned(),
            serial: "1".to_owned(),
            namespaces: sizes.map(namespace).to_vec(),
            queues_max: 1,
            addresses: Vec::new(),
        }
    }

    #[test]
    fn a_namespace_without_bytes_is_not_there_and_its_number_is_free() {
        let subsystem = Subsystem::new(config([4096, 0, 4096])).unwrap();
        assert_eq!(subsystem.active_namespaces().collect::<Vec<_>>(), [1, 3]);
        assert!(subsystem.namespace(2).is_none() && subsystem.namespaces_max() == 3);
    }

    struct Nowhere;

    impl Connector for Nowhere {
        fn connect(&self, _: &Address) -> Connecting {
            Box::pin(async { Err(std::io::ErrorKind::ConnectionRefused.into()) })
        }
    }

    /// See [`lock`]: what it ends has attachments, which are behind a lock of their own.
    #[test]
    fn a_connect_that_ends_a_silent_controller_holds_one_lock_at_a_time() {
        let shard = Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: None });
        let _entered = shard.enter();
        let offload = OffloadConfig {
            pipeline: super::super::offload::Pipeline::Overlapped,
            incarnation: [9; 16],
            epochs: None,
            connector: Arc::new(Nowhere),
            peers: OffloadConfig::peer_options("nqn.2026-01.com.example:x", 1),
        };
        let subsystem = Subsystem::with(config([4096; 3]), None, Some(offload)).unwrap();
        let add = |now| subsystem.add_controller([1; 16], "nqn.2026-01.com.example:h", false, 2000, now);
        let silent = add(0).unwrap();
        let next = add(2_000_000_000).unwrap();
        assert!(silent.is_dead() && !next.is_dead());
    }

    /// C28: it isn't known any more then whether a higher epoch had ended it.
    #[test]
    fn a_controller_that_is_over_changes_nothing_while_its_queues_do_not_know_yet() {
        let shard = Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: None });
        let _entered = shard.enter();
        let subsystem = Subsystem::new(config([4096; 3])).unwrap();
        let controller = subsystem.add_controller([1; 16], "nqn.2026-01.com.example:h", false, 0, 0).unwrap();
        let admitted = |access| {
            let namespace = subsystem.namespace(1).unwrap();
            let admitted = std::pin::pin!(controller.admit(namespace, access));
            match admitted.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(admitted) => admitted.map(|_| ()),
                Poll::Pending => panic!("it waits"),
            }
        };
        for access in [Access::Read, Access::Write] {
            assert_eq!(admitted(access), Ok(()));
        }
        controller.kill();
        for access in [Access::Read, Access::Write] {
            assert_eq!(admitted(access), Err(Status::NAMESPACE_NOT_READY));
        }
    }

    #[test]
    fn silence_counts_from_before_this_process_and_never_backwards() {
        assert_eq!(since(5, 12), 7);
        assert_eq!(since(12, 5), 0, "another shard has heard of the host meanwhile");
        assert_eq!(since(3_u64.wrapping_sub(10), 3), 10);
    }
}
