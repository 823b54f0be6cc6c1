//! An array in service: what its owner holds on the home shard.
//!
//! The home shard runs the controller (`control`), the intent writer and the sweeper (`intent_writer`), and
//! resync, rebuild and scrub (`maintenance`). All other shards only read and write, through their own
//! [`Volume`].

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
    sync::Arc,
};

use pinstripe_md::{
    bitmap::BitmapImage,
    superblock::{ArrayRecord, ReadOnlyReason, ResyncOffset},
    units::{SECTOR_BYTES, Sector},
};
use pinstripe_runtime::{DeviceSource, ShardHandle, Signal, shard};

pub use crate::membership::commands::{Added, CommandError, Removed};
use crate::{
    assembly::{AssembleError, Assembled, OldLog, StaleMember, assemble, give_up},
    consistency::Log,
    controller::journal::log_of,
    error::{IoError, MemberError},
    events::{Event, EventKind, Events},
    geometry::{Geometry, ParityGeometry},
    intent::IntentTable,
    io::volume::Volume,
    maintenance::MaintenanceState,
    members::MemberId,
    membership::{
        control::{Command, Reply},
        snapshot::Snapshot,
        superblocks::{MemberState, Superblocks},
    },
    mutants::{Mutant, active},
    options::ArrayOptions,
    replay,
    shared::Shared,
    supervision::bounded::JoiningDevices,
    turn::Turn,
    units::to_usize,
};

/// Regions of an array without a bitmap: only marks in memory.
pub(crate) const REGION_BYTES_WITHOUT_BITMAP: u64 = 64 << 20;

/// An array in service. Lives on its home shard; cheap to clone.
#[derive(Clone)]
pub struct Array {
    pub(crate) controller: Rc<ArrayController>,
}

/// The home shard's state.
pub(crate) struct ArrayController {
    pub(crate) volume: Volume,
    pub(crate) superblocks: RefCell<Superblocks>,
    /// Writes may have happened since the superblocks were last marked clean.
    pub(crate) dirty: Cell<bool>,
    pub(crate) stopped: Cell<bool>,
    /// It is being stopped: no command is taken any more.
    stopping: Cell<bool>,
    /// For maintenance: something may be to do.
    pub(crate) work: Signal,
    pub(crate) maintenance_state: MaintenanceState,
    pub(crate) events: Events,
    /// The table that the intent writer serves. A new one takes over when the old one has no writer left.
    pub(crate) served: RefCell<Arc<IntentTable>>,
    /// The bitmap is going: no bit may be cleared.
    pub(crate) bits_frozen: Cell<bool>,
    /// The log that the array has, or shall have as soon as its parity matches.
    pub(crate) wanted_log: RefCell<Log>,
    /// It still has something from before the start, and must not have it when something is written without
    /// it.
    pub(crate) log_is_old: Cell<bool>,
    /// A rebuild failed for what the others can't deliver: no spare takes over before something has changed.
    pub(crate) spares_rest: Cell<bool>,
    /// The members' servers that compute.
    pub(crate) attaching: crate::controller::attach::Attaching,
    /// Devices that are no members yet.
    pub(crate) joining: JoiningDevices,
    commands: RefCell<VecDeque<Command>>,
    /// The right to write bitmap pages and superblocks: one write per page at a time (C7).
    pub(crate) pages: Turn,
    /// The right to prepare a change of the array's devices or bitmap: what one such command has looked up,
    /// no other may change before it is done (two spares for one slot, or with one device number).
    pub(crate) changes: Turn,
    read_only: Option<ReadOnlyReason>,
    stale: Vec<StaleMember>,
    journal_left_out: bool,
    last_errors: RefCell<VecDeque<MemberError>>,
}

impl ArrayController {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.volume.shared()
    }

    /// Whether nothing on the members may change, or there is nothing that could (level 0).
    pub(crate) fn is_static(&self) -> bool {
        self.shared().options.read_only || !self.shared().geometry.has_parity()
    }

    pub(crate) fn take_command(&self) -> Option<Command> {
        self.commands.borrow_mut().pop_front()
    }

    pub(crate) fn has_commands(&self) -> bool {
        !self.commands.borrow().is_empty()
    }

    /// Has the controller do something, and waits for it.
    pub(crate) async fn command<E: From<IoError>>(
        &self,
        make: impl FnOnce(Reply<E>) -> Command,
    ) -> Result<(), E> {
        if self.stopping.get() {
            return Err(IoError::Stopping.into());
        }
        let (reply, answer) = Reply::expected();
        self.commands.borrow_mut().push_back(make(reply));
        self.shared().controller_wake.notify();
        answer.await
    }

    /// Takes no command any more. Those that wait are answered: the array is stopping.
    pub(crate) fn refuse_commands(&self) {
        self.stopping.set(true);
        let waiting = self.commands.take();
        drop(waiting);
    }

    /// Keeps an error for `detail`.
    pub(crate) fn note(&self, error: &MemberError) {
        let mut errors = self.last_errors.borrow_mut();
        errors.push_back(error.clone());
        if errors.len() > 16 {
            errors.pop_front();
        }
    }
}

impl Array {
    /// Reads the members, checks that the array can be served, and starts serving it on `shards`, of which
    /// the current one must be the first. Writes nothing until the first write; an unclean array is resynced
    /// in the background.
    pub async fn assemble(
        sources: Vec<Arc<dyn DeviceSource>>,
        options: ArrayOptions,
        shards: Vec<ShardHandle>,
    ) -> Result<Self, AssembleError> {
        match Self::assemble_with_log(sources.clone(), options.clone(), shards.clone()).await {
            // Forced, an array does without a journal that can't be replayed, as without one that isn't
            // there.
            Err(AssembleError::Journal { name, .. }) if options.force => {
                let others = sources.into_iter().filter(|source| source.name() != name).collect();
                Self::assemble_with_log(others, options, shards).await
            }
            outcome => outcome,
        }
    }

    async fn assemble_with_log(
        sources: Vec<Arc<dyn DeviceSource>>,
        mut options: ArrayOptions,
        shards: Vec<ShardHandle>,
    ) -> Result<Self, AssembleError> {
        let mut assembled = assemble(sources, &options).await?;
        let mut attached = std::mem::take(&mut assembled.attached);
        if let Err(error) = Self::take_logs(&mut assembled, &mut options).await {
            give_up(&attached).await;
            return Err(error);
        }
        // A journal that was left out isn't to be found again by the next start: what is done without it, it
        // doesn't know.
        let refreshes = assembled.old_log == OldLog::Replayed || assembled.journal_left_out;
        let journal = assembled.journal.take();
        let sweep_ns = options.sweep_ns.unwrap_or_else(|| {
            assembled.bitmap.as_ref().map_or(5, |b| u64::from(b.header().daemon_sleep_seconds)).max(1)
                * 1_000_000_000
        });
        let array = Self::start(assembled, options, shards);
        if let Some(journal) = journal
            && let Err(error) = array.controller.begin_journal(journal).await
        {
            attached.retain(|device| !array.controller.is_late(&device.info().name));
            give_up(&attached).await;
            return Err(error);
        }
        drop(attached);
        let controller = &array.controller;
        let settles = controller.bits_frozen.get() && !controller.is_static();
        let offered = controller.is_offered();
        if offered {
            controller.claim_offload();
        }
        shard::spawn(Rc::clone(controller).control());
        if offered {
            // Awaited, so that the servers compute from the first write on.
            controller.begin_offload().await;
        }
        if settles {
            let controller = Rc::clone(controller);
            shard::spawn(async move {
                // If it fails, no bit is ever cleared.
                if controller.command(|reply| Command::Refresh { reply }).await.is_ok() {
                    controller.bits_frozen.set(false);
                }
            });
        }
        if !controller.is_static() {
            shard::spawn(Rc::clone(controller).write_intent());
            shard::spawn(Rc::clone(controller).sweep(sweep_ns));
        }
        shard::spawn(Rc::clone(controller).maintain());
        if refreshes && !controller.is_static() {
            // Parity matches now, or the array is dirty and without its journal. If that can't be written
            // down, the array has failed, and takes no writes.
            let _ = controller.command(|reply| Command::Refresh { reply }).await;
        }
        Ok(array)
    }

    /// Replays the members' logs, and sees whether the journal can be used.
    async fn take_logs(assembled: &mut Assembled, options: &mut ArrayOptions) -> Result<(), AssembleError> {
        replay::replay(assembled, options).await?;
        options.read_only |= assembled.read_only.is_some();
        if let Some(journal) = assembled.journal.as_ref().filter(|_| !options.read_only) {
            assembled.log = log_of(journal, &assembled.geometry, options.journal_cache_bytes)?;
        }
        Ok(())
    }

    fn start(assembled: Assembled, options: ArrayOptions, shards: Vec<ShardHandle>) -> Self {
        let Assembled {
            geometry,
            mut seated,
            freshest,
            bitmap,
            read_only,
            dirty_from,
            journal_left_out,
            forced,
            log,
            old_log,
            epoch,
            ..
        } = assembled;
        let unclean = was_cut_off(&freshest.array, journal_left_out);
        let torn = dirty_from == Some(Sector(0)) && unclean && !forced && !log.keeps_clean();
        let intent = Arc::new(initial_intent(&geometry, bitmap.as_ref(), dirty_from, torn));
        let stale = std::mem::take(&mut seated.stale);
        let mut superblocks = Superblocks::new(freshest.array, seated, bitmap);
        if (unclean || forced) && !active(Mutant::ForcedKeepsCheckpoint) {
            // Below what was recorded a recovering member may have missed what was being written.
            superblocks.membership.recover_anew();
        }
        // C17: a partial parity log is taken up when parity matches everywhere, a journal at once.
        let in_sync = intent.resync_count() == 0 || active(Mutant::LogBeforeSync);
        let now = if in_sync || log.keeps_clean() { log.clone() } else { Log::None };
        let dirty = first_dirty(&intent);
        let distrusted = unclean && superblocks.distrust_copies(dirty);
        let snapshot = Snapshot::new(1, superblocks.seats(), intent, now);
        if distrusted || !snapshot.is_complete() {
            keep_all(&snapshot.intent);
        }
        let (maintenance_state, events) =
            (MaintenanceState::new(options.sync_speed), Events::new(options.wall_clock));
        if !snapshot.absent().is_empty() {
            events.add(EventKind::DegradedArray { slots: snapshot.absent().iter().collect() });
        }
        let served = RefCell::new(Arc::clone(&snapshot.intent));
        let shared = Arc::new(Shared::new(geometry, options, snapshot, shards));
        let controller = ArrayController {
            served,
            // No bit may go before the superblocks say what is to be copied again.
            bits_frozen: Cell::new(distrusted),
            spares_rest: Cell::new(false),
            wanted_log: RefCell::new(log),
            log_is_old: Cell::new(old_log == OldLog::InUse),
            volume: Volume::new(shared),
            superblocks: RefCell::new(superblocks),
            dirty: Cell::new(false),
            stopped: Cell::new(false),
            stopping: Cell::new(false),
            work: Signal::default(),
            maintenance_state,
            events,
            attaching: crate::controller::attach::Attaching::under(epoch),
            joining: JoiningDevices::default(),
            commands: RefCell::default(),
            pages: Turn::default(),
            changes: Turn::default(),
            read_only,
            stale,
            journal_left_out,
            last_errors: RefCell::default(),
        };
        controller.supervise_members();
        Self { controller: Rc::new(controller) }
    }

    /// What every shard needs for its [`Volume`].
    pub fn shared(&self) -> &Arc<Shared> {
        self.controller.shared()
    }

    /// The home shard's volume.
    pub fn volume(&self) -> &Volume {
        &self.controller.volume
    }

    /// Why the array is served read-only although that was not asked for.
    pub fn read_only_reason(&self) -> Option<ReadOnlyReason> {
        self.controller.read_only
    }

    /// Devices that were given but are out of date.
    pub fn stale_members(&self) -> &[StaleMember] {
        &self.controller.stale
    }

    /// Whether the array was assembled without its journal, because that was forced: what only the journal
    /// had is lost.
    pub fn is_journal_left_out(&self) -> bool {
        self.controller.journal_left_out
    }

    /// The latest errors for which members were dropped, oldest first.
    pub fn last_errors(&self) -> Vec<MemberError> {
        self.controller.last_errors.borrow().iter().cloned().collect()
    }

    /// Ends in-flight writes, marks the superblocks clean, and ends the array's tasks. New requests fail.
    pub async fn stop(&self) -> Result<(), IoError> {
        // At once: the controller may be waiting for a device that hangs, and comes to the stop after that.
        self.controller.bound_waits();
        self.controller.drain_journal().await;
        let result = self.controller.command(|reply| Command::Stop { reply }).await;
        if matches!(result, Err(IoError::Stopping)) {
            // The rest is for the stop that came first.
            return result;
        }
        self.controller.work.notify();
        self.controller.served.borrow().wanted.notify();
        self.controller.detach_members(result.is_ok()).await;
        result
    }

    /// Adds an event that the program that serves the array knows of, such as a spare taken from a pool.
    pub fn tell(&self, kind: EventKind) {
        self.controller.events.add(kind);
    }

    /// The events after number `after` (0 for all) that are still kept, oldest first. If the first one isn't
    /// `after + 1`, some are lost.
    pub fn events(&self, after: u64) -> Vec<Event> {
        self.controller.events.after(after)
    }

    /// The number of the latest event; 0 if nothing has happened.
    pub fn last_event(&self) -> u64 {
        self.controller.events.last()
    }

    /// Waits until there is an event after number `after`.
    pub async fn event_after(&self, after: u64) {
        self.controller.events.wait_after(after).await;
    }

    /// What the home shard has of the members, for `detail`.
    pub(crate) fn superblocks(&self) -> std::cell::Ref<'_, Superblocks> {
        self.controller.superblocks.borrow()
    }

    /// The devices that were ever attached: name, slot and state, by id.
    pub fn members(&self) -> Vec<(MemberId, String, usize, MemberState)> {
        let superblocks = self.superblocks();
        let devices = superblocks.membership.devices();
        devices.map(|(id, record)| (id, record.name.clone(), record.slot, record.state.clone())).collect()
    }
}

/// Whether there may be half-written rows, but for those that a journal puts right. A resync that was
/// interrupted by a clean stop, or has not begun, leaves none; of those that a journal leaves which is left
/// out, the superblocks know nothing.
fn was_cut_off(array: &ArrayRecord, journal_left_out: bool) -> bool {
    let dirty = array.resync_offset == ResyncOffset::DirtyFrom(Sector(0));
    (dirty || journal_left_out) && array.events > 0
}

/// The table that goes with what assembly found.
fn initial_intent(
    geometry: &Geometry,
    bitmap: Option<&BitmapImage>,
    dirty_from: Option<Sector>,
    torn: bool,
) -> IntentTable {
    let member_bytes = geometry.parity().map_or(1, ParityGeometry::member_bytes);
    let region_bytes = bitmap.map_or(REGION_BYTES_WITHOUT_BITMAP, |b| b.header().chunk().0 * SECTOR_BYTES);
    let intent = IntentTable::new(member_bytes, region_bytes, bitmap.is_some());
    if let Some(bitmap) = bitmap {
        for bit in bitmap.set_bits() {
            if let Some(region) = usize::try_from(bit).ok().filter(|region| *region < intent.len()) {
                intent.load_set(region);
            }
        }
    }
    let Some(from) = dirty_from.filter(|_| !active(Mutant::UncleanNotResynced)) else { return intent };
    // A disk may say any sector; one past the end is as good as the end.
    let from = from.0.saturating_mul(SECTOR_BYTES);
    let first = to_usize(from / region_bytes);
    for region in first.min(intent.len())..intent.len() {
        if bitmap.is_none() || intent.is_set(region) {
            intent.set_needs_resync(region, torn);
        }
    }
    if bitmap.is_none() && !torn {
        // Also in the middle of a region.
        intent.resynced_to(from);
    }
    intent
}

/// What a missing member may have missed stays marked until it is rebuilt (C8).
fn keep_all(intent: &IntentTable) {
    let set = (0..intent.len()).filter(|&region| intent.is_set(region));
    set.for_each(|region| intent.set_missed(region..=region));
}

/// The first member byte that may have been under write at a crash.
fn first_dirty(intent: &IntentTable) -> u64 {
    if !intent.is_persistent() {
        return 0;
    }
    let first = (0..intent.len()).find(|&region| intent.is_set(region));
    first.map_or(u64::MAX, |region| region as u64 * intent.region_bytes())
}
