//! An array in service: what its owner holds on the home shard.
//!
//! The home shard runs the controller (`control`), the intent writer and the sweeper (`intent_writer`), and resync, rebuild
//! and scrub (`maintenance`). All other shards only read and write, through their own [`Volume`].

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
    sync::Arc,
};

use pinstripe_md::{
    bad_blocks::BadBlocks,
    bitmap::{BitmapHeader, BitmapImage, Fill},
    identity::Uuid,
    placement::{NewDevice, PlacementError, place_spare},
    superblock::{ReadOnlyReason, Superblock},
    units::{SECTOR_BYTES, Sector, SectorCount},
};
use pinstripe_runtime::{DeviceError, DeviceErrorKind, DeviceSource, ShardHandle, Signal, shard};
use thiserror::Error;

use crate::{
    assembly::{AssembleError, Assembled, StaleMember, assemble, read_superblock},
    consistency::{self, Log, journal::home::log_of},
    control::{Command, IntentChange, Reply, ReplyState},
    error::{IoError, MemberError, Operation},
    events::{EventKind, Events},
    geometry::Geometry,
    intent::IntentTable,
    maintenance::Upkeep,
    members::answered,
    mutants::{Mutant, active},
    options::ArrayOptions,
    records::{MemberState, Records},
    shared::Shared,
    snapshot::{MemberId, Seat, Snapshot},
    volume::{Volume, give_up_everywhere},
};

/// Regions of an array without a bitmap: only marks in memory.
const REGION_BYTES_WITHOUT_BITMAP: u64 = 64 << 20;

/// An array in service. Lives on its home shard; cheap to clone.
#[derive(Clone)]
pub struct Array {
    pub(crate) home: Rc<Home>,
}

/// The home shard's state.
pub(crate) struct Home {
    pub(crate) volume: Volume,
    pub(crate) records: RefCell<Records>,
    /// Writes may have happened since the superblocks were last marked clean.
    pub(crate) dirty: Cell<bool>,
    pub(crate) stopped: Cell<bool>,
    /// For maintenance: something may be to do.
    pub(crate) work: Signal,
    pub(crate) upkeep: Upkeep,
    pub(crate) events: Events,
    /// The table whose requests the intent writer serves: a new one takes over when nobody works under the old one any more.
    pub(crate) served: RefCell<Arc<IntentTable>>,
    /// The bitmap is going: no bit may be cleared.
    pub(crate) bits_frozen: Cell<bool>,
    /// The log that the array has, or shall have as soon as its parity matches.
    pub(crate) wanted_log: RefCell<Log>,
    commands: RefCell<VecDeque<Command>>,
    pages_locked: Cell<bool>,
    pages_unlocked: Signal,
    changing: Cell<bool>,
    changed: Signal,
    read_only: Option<ReadOnlyReason>,
    stale: Vec<StaleMember>,
    journal_left_out: bool,
    last_errors: RefCell<VecDeque<MemberError>>,
}

/// Why a command on a running array failed. Nothing has changed.
#[derive(Debug, Error)]
pub enum CommandError {
    /// No such slot.
    #[error("there is no slot {slot}; the array has {slots}")]
    NoSuchSlot {
        /// The slot.
        slot: usize,
        /// How many there are.
        slots: usize,
    },
    /// Nobody holds it.
    #[error("slot {0} is empty already")]
    SlotEmpty(usize),
    /// The array can't do without it.
    #[error("slot {0} is needed: without it the array would have lost data; nothing was done")]
    SlotNeeded(usize),
    /// There is nothing to rebuild.
    #[error("no slot is empty: a member must have failed before another can take its place")]
    NoEmptySlot,
    /// Level 0 has no redundancy.
    #[error("a level 0 array can't change its members")]
    NoRedundancy,
    /// The array isn't written.
    #[error("the array is read-only")]
    ReadOnly,
    /// A device can't be used.
    #[error("{name}: {error}")]
    Device {
        /// The device.
        name: String,
        /// Why.
        error: DeviceError,
    },
    /// A device doesn't fit.
    #[error("{name}: {error}")]
    Placement {
        /// The device.
        name: String,
        /// Why.
        error: PlacementError,
    },
    /// The device is in the array already.
    #[error("{0} is a member of this array already")]
    AlreadyMember(String),
    /// C20.
    #[error("{name}: its logical block of {block} bytes is larger than the array's {array} bytes")]
    LogicalBlock {
        /// The device.
        name: String,
        /// Its logical block.
        block: u32,
        /// The array's.
        array: u32,
    },
    /// C16.
    #[error(
        "{name}: {late} requests to it that were given up are not over: it may still write what they ask for. Nothing was done; try again when the device answers or is gone"
    )]
    RequestsUnderWay {
        /// The device.
        name: String,
        /// How many.
        late: u64,
    },
    /// The bitmap has no room or is there already.
    #[error("{0}")]
    Bitmap(String),
    /// The policy can't be had.
    #[error("{0}")]
    Policy(String),
    /// The array failed meanwhile.
    #[error("{0}")]
    Io(#[from] IoError),
}

/// Holds the right to write bitmap pages: one write per page at a time (C7).
pub(crate) struct PagesLock<'h>(&'h Home);

impl Drop for PagesLock<'_> {
    fn drop(&mut self) {
        self.0.pages_locked.set(false);
        self.0.pages_unlocked.notify();
    }
}

/// Holds the right to prepare a change of the array's devices or bitmap: what one such command has looked up, no other
/// may change before it is done (two spares for one slot, or with one device number).
pub(crate) struct ChangeLock<'h>(&'h Home);

impl Drop for ChangeLock<'_> {
    fn drop(&mut self) {
        self.0.changing.set(false);
        self.0.changed.notify();
    }
}

impl Home {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.volume.shared()
    }

    /// Whether nothing on the members may change, or there is nothing that could (level 0).
    pub(crate) fn is_static(&self) -> bool {
        self.shared().options.read_only || matches!(self.shared().geometry, Geometry::Raid0(_))
    }

    pub(crate) async fn lock_pages(&self) -> PagesLock<'_> {
        self.pages_unlocked.wait_until(|| !self.pages_locked.replace(true)).await;
        PagesLock(self)
    }

    pub(crate) async fn lock_changes(&self) -> ChangeLock<'_> {
        self.changed.wait_until(|| !self.changing.replace(true)).await;
        ChangeLock(self)
    }

    pub(crate) fn take_command(&self) -> Option<Command> {
        self.commands.borrow_mut().pop_front()
    }

    pub(crate) fn has_commands(&self) -> bool {
        !self.commands.borrow().is_empty()
    }

    /// Has the controller do something, and waits for it.
    pub(crate) async fn command(&self, make: impl FnOnce(Reply) -> Command) -> Result<(), IoError> {
        if self.stopped.get() {
            return Err(IoError::Stopping);
        }
        let state = Rc::new(ReplyState::default());
        self.commands.borrow_mut().push_back(make(Reply(Rc::clone(&state))));
        self.shared().knock.notify();
        state.ready.wait_for(|| state.answer.take()).await
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
    /// Reads the members, checks that the array can be served, and starts serving it on `shards`, of which the current one must be the
    /// first. Writes nothing until the first write; an unclean array is resynced in the background.
    pub async fn assemble(
        sources: Vec<Arc<dyn DeviceSource>>,
        options: ArrayOptions,
        shards: Vec<ShardHandle>,
    ) -> Result<Self, AssembleError> {
        match Self::assemble_with_log(sources.clone(), options.clone(), shards.clone()).await {
            // Forced, an array does without a journal that can't be replayed, as without one that isn't there.
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
        consistency::replay(&mut assembled, &options).await?;
        let (journal, replayed) = (assembled.journal.take(), assembled.replayed);
        options.read_only |= assembled.read_only.is_some();
        if let Some(journal) = journal.as_ref().filter(|_| !options.read_only) {
            assembled.log = log_of(journal, &assembled.geometry)?;
        }
        let sweep_ns = options.sweep_ns.unwrap_or_else(|| {
            assembled.bitmap.as_ref().map_or(5, |b| u64::from(b.header().daemon_sleep_seconds)).max(1)
                * 1_000_000_000
        });
        let array = Self::start(assembled, options, shards);
        if let Some(journal) = journal {
            array.home.begin_journal(journal).await?;
        }
        let home = &array.home;
        shard::spawn(Rc::clone(home).control());
        if !home.is_static() {
            shard::spawn(Rc::clone(home).write_intent());
            shard::spawn(Rc::clone(home).sweep(sweep_ns));
        }
        shard::spawn(Rc::clone(home).maintain());
        if replayed {
            // Parity matches now. If that can't be written down, the array has failed, and says so to who uses it.
            let _ = home.command(|reply| Command::Refresh { reply }).await;
        }
        Ok(array)
    }

    fn start(assembled: Assembled, options: ArrayOptions, shards: Vec<ShardHandle>) -> Self {
        let Assembled {
            geometry,
            seats,
            freshest,
            bitmap,
            read_only,
            stale,
            dirty_from,
            journal_left_out,
            forced,
            log,
            ..
        } = assembled;
        // A resync that was interrupted by a clean stop, or has not begun, leaves no half-written rows.
        // With a journal there are none at all.
        let torn = dirty_from == Some(0) && freshest.array.events > 0 && !forced && !log.keeps_clean();
        let intent = Arc::new(initial_intent(&geometry, bitmap.as_ref(), dirty_from, torn));
        let mut records = Records::new(freshest.array, seats, bitmap);
        if forced && !active(Mutant::ForcedKeepsCheckpoint) {
            // Below what was recorded a recovering member may have missed what was being written.
            records.recover_anew();
        }
        let mut taken: Vec<Seat> = (0..geometry.members()).map(|_| Seat::Empty).collect();
        for book in &records.members {
            let member = Arc::clone(&book.member);
            taken[book.slot] = if book.state == MemberState::Recovering {
                Seat::Recovering(member)
            } else {
                Seat::InSync(member)
            };
        }
        // C17: a partial parity log is taken up when parity matches everywhere, a journal at once.
        let now = if intent.resync_count() == 0 || log.keeps_clean() { log.clone() } else { Log::None };
        let snapshot = Snapshot::new(1, taken, intent, now);
        if !snapshot.is_complete() {
            // What a missing member may have missed stays marked until it is rebuilt (C8).
            let all = (0..snapshot.intent.len()).filter(|&region| snapshot.intent.is_set(region));
            all.for_each(|region| snapshot.intent.set_missed(region..=region));
        }
        let (upkeep, events) = (Upkeep::new(options.sync_speed), Events::new(options.wall_clock));
        if !snapshot.absent().is_empty() {
            events.add(EventKind::DegradedArray { slots: snapshot.absent().iter().collect() });
        }
        let served = RefCell::new(Arc::clone(&snapshot.intent));
        let shared = Arc::new(Shared::new(geometry, options, snapshot, shards));
        let home = Home {
            served,
            bits_frozen: Cell::new(false),
            wanted_log: RefCell::new(log),
            volume: Volume::new(shared),
            records: RefCell::new(records),
            dirty: Cell::new(false),
            stopped: Cell::new(false),
            work: Signal::default(),
            upkeep,
            events,
            commands: RefCell::default(),
            pages_locked: Cell::new(false),
            pages_unlocked: Signal::default(),
            changing: Cell::new(false),
            changed: Signal::default(),
            read_only,
            stale,
            journal_left_out,
            last_errors: RefCell::default(),
        };
        home.supervise_books();
        Self { home: Rc::new(home) }
    }

    /// What every shard needs for its [`Volume`].
    pub fn shared(&self) -> &Arc<Shared> {
        self.home.shared()
    }

    /// The home shard's volume.
    pub fn volume(&self) -> &Volume {
        &self.home.volume
    }

    /// Why the array is served read-only although that was not asked for.
    pub fn read_only_reason(&self) -> Option<ReadOnlyReason> {
        self.home.read_only
    }

    /// Devices that were given but are out of date.
    pub fn stale_members(&self) -> &[StaleMember] {
        &self.home.stale
    }

    /// Whether the array was assembled without its journal, because that was forced: what only the journal had is lost.
    pub fn is_journal_left_out(&self) -> bool {
        self.home.journal_left_out
    }

    /// The latest errors for which members were dropped, oldest first.
    pub fn last_errors(&self) -> Vec<MemberError> {
        self.home.last_errors.borrow().iter().cloned().collect()
    }

    fn check_change(&self) -> Result<(), CommandError> {
        if matches!(self.shared().geometry, Geometry::Raid0(_)) {
            return Err(CommandError::NoRedundancy);
        }
        if self.shared().options.read_only { Err(CommandError::ReadOnly) } else { Ok(()) }
    }

    /// Drops the member of a slot, as if it had failed. Refused if the array can't do without it.
    pub async fn fail(&self, slot: usize) -> Result<(), CommandError> {
        self.check_change()?;
        let snapshot = self.shared().snapshot();
        let slots = snapshot.seats.len();
        let seat = snapshot.seats.get(slot).ok_or(CommandError::NoSuchSlot { slot, slots })?;
        let member = seat.member().ok_or(CommandError::SlotEmpty(slot))?;
        let whole = matches!(seat, Seat::InSync(_));
        if whole && snapshot.missing.len() >= self.shared().geometry.redundancy() {
            return Err(CommandError::SlotNeeded(slot));
        }
        let error = DeviceError::of(DeviceErrorKind::Removed);
        let error =
            MemberError { slot, name: member.name.clone(), operation: Operation::Metadata, offset: 0, error };
        self.shared().report(member.id, error);
        // It may hang, and the controller with it.
        give_up_everywhere(self.shared(), member.id, DeviceErrorKind::Removed);
        Ok(self.shared().dropped(member.id).await?)
    }

    /// Puts a device into the lowest empty slot and rebuilds onto it in the background. Whatever it holds is lost. `uuid` is its new
    /// identity. Returns the slot.
    pub async fn add(&self, source: Arc<dyn DeviceSource>, uuid: Uuid) -> Result<usize, CommandError> {
        self.check_change()?;
        let _changing = self.home.lock_changes().await;
        self.home.refuse_late(&source.name(), |_| false)?;
        let snapshot = self.shared().snapshot();
        let slot = snapshot
            .seats
            .iter()
            .position(|seat| seat.member().is_none())
            .ok_or(CommandError::NoEmptySlot)?;
        let device = source.attach().map_err(|error| CommandError::Device { name: source.name(), error })?;
        let (name, info) = (device.info().name.clone(), device.info().clone());
        let block = self.shared().geometry.logical_block();
        if info.logical_block > block {
            return Err(CommandError::LogicalBlock { name, block: info.logical_block, array: block });
        }
        let superblock = self.spare_superblock(&name, &info, uuid)?;
        let limit = self.shared().options.member_timeout_ns;
        let silent = |error| CommandError::Device { name: name.clone(), error };
        let old = answered(limit, read_superblock(&*device)).await.map_err(silent)?;
        if let Ok(Some(old)) = &old {
            let old = old.member.device_uuid;
            self.home.refuse_late(&name, |superblock| superblock.member.device_uuid == old)?;
        }
        if let Ok(Some(old)) = old
            && self
                .home
                .records
                .borrow()
                .active()
                .any(|book| book.superblock.member.device_uuid == old.member.device_uuid)
        {
            return Err(CommandError::AlreadyMember(name));
        }
        answered(limit, self.write_new_bitmap(&name, &*device, &superblock)).await.map_err(silent)??;
        let prepared = answered(limit, snapshot.log.prepare(&superblock, &*device)).await.map_err(silent)?;
        prepared.map_err(|error| CommandError::Device { name: name.clone(), error })?;
        let member = self.home.records.borrow_mut().enter(
            source,
            device,
            superblock,
            BadBlocks::default(),
            slot,
            MemberState::Recovering,
        );
        self.home.command(|reply| Command::Seat { member: member.id, reply }).await?;
        Ok(slot)
    }

    fn spare_superblock(
        &self,
        name: &str,
        info: &pinstripe_runtime::DeviceInfo,
        uuid: Uuid,
    ) -> Result<Superblock, CommandError> {
        let records = self.home.records.borrow();
        let Some(model) = records.active().next() else { return Err(CommandError::Io(IoError::Failed)) };
        let in_use: Vec<_> = records.active().map(|book| book.superblock.member.dev_number).collect();
        let mut template = model.superblock.clone();
        template.array = records.array.clone();
        let device = NewDevice { sectors: info.size / SECTOR_BYTES, uuid };
        let placed = place_spare(&template, device, &in_use, info.logical_block.into());
        let mut superblock =
            placed.map_err(|error| CommandError::Placement { name: name.to_owned(), error })?;
        superblock.member.recovery_offset = (!active(Mutant::SpareCalledInSync)).then_some(Sector(0));
        Ok(superblock)
    }

    /// The bitmap as it is, on a device that joins: its superblock will say that there is one.
    async fn write_new_bitmap(
        &self,
        name: &str,
        device: &dyn pinstripe_runtime::Device,
        superblock: &Superblock,
    ) -> Result<(), CommandError> {
        let bytes = self.home.records.borrow().bitmap.as_ref().map(|bitmap| {
            let length = usize::try_from(bitmap.header().sectors().0 * SECTOR_BYTES).unwrap_or(usize::MAX);
            let length =
                length.next_multiple_of(device.info().logical_block as usize).min(bitmap.as_bytes().len());
            bitmap.as_bytes()[..length].to_vec()
        });
        let (Some(bytes), Some(sector)) = (bytes, superblock.bitmap_sector()) else { return Ok(()) };
        let mut buffer = shard::buffer(bytes.len());
        buffer.copy_from_slice(&bytes);
        let written = device.write(sector.0 * SECTOR_BYTES, buffer.freeze(), true).await.result;
        written.map(|_| ()).map_err(|error| CommandError::Device { name: name.to_owned(), error })
    }

    /// Ends in-flight writes, marks the superblocks clean, and ends the array's tasks. New requests fail.
    pub async fn stop(&self) -> Result<(), IoError> {
        let result = self.home.command(|reply| Command::Stop { reply }).await;
        self.home.work.notify();
        self.home.served.borrow().wanted.notify();
        result
    }

    /// Removes the bitmap from a live array.
    pub async fn remove_bitmap(&self) -> Result<(), CommandError> {
        self.check_change()?;
        let _changing = self.home.lock_changes().await;
        let now = self.shared().snapshot();
        if !now.intent.is_persistent() {
            return Err(CommandError::Bitmap("the array has no bitmap".to_owned()));
        }
        let intent = Arc::new(self.other_table(REGION_BYTES_WITHOUT_BITMAP, false));
        Ok(self.home.command(|reply| Command::Intent { intent, change: IntentChange::Remove, reply }).await?)
    }

    /// Adds a bitmap with regions of `region_bytes` to a live array that has none.
    pub async fn add_bitmap(&self, region_bytes: u32) -> Result<(), CommandError> {
        self.check_change()?;
        let _changing = self.home.lock_changes().await;
        let now = self.shared().snapshot();
        if now.intent.is_persistent() {
            return Err(CommandError::Bitmap("the array has a bitmap already: remove it first".to_owned()));
        }
        if !self.home.wanted_log.borrow().is_none() {
            return Err(CommandError::Bitmap(
                "the array has a log: change the consistency policy".to_owned(),
            ));
        }
        let (offset, image) = self.new_bitmap(region_bytes)?;
        let intent = self.other_table(region_bytes.into(), true);
        // Everything is set until the sweeper has seen it idle: writers under the old table are not counted in this one.
        (0..intent.len()).for_each(|region| intent.load_set(region));
        let change = IntentChange::Add { offset, image: Box::new(image) };
        Ok(self.home.command(|reply| Command::Intent { intent: Arc::new(intent), change, reply }).await?)
    }

    /// A table with other regions; it inherits the marks of the old one when it takes over.
    fn other_table(&self, region_bytes: u64, persistent: bool) -> IntentTable {
        let Geometry::Parity(geometry) = &self.shared().geometry else {
            unreachable!("checked by the caller")
        };
        IntentTable::new(geometry.member_bytes(), region_bytes, persistent)
    }

    /// Where a new bitmap goes, and its first content.
    fn new_bitmap(&self, region_bytes: u32) -> Result<(i32, BitmapImage), CommandError> {
        let records = self.home.records.borrow();
        let wrong = |error: pinstripe_md::bitmap::BitmapError| CommandError::Bitmap(error.to_string());
        let size = SectorCount(records.array.size.0);
        let header = BitmapHeader::new(records.array.set_uuid, size, region_bytes).map_err(wrong)?;
        let offset = records
            .active()
            .map(|book| pinstripe_md::placement::bitmap_place(&book.superblock, header.sectors()))
            .reduce(|a, b| if a == b { a } else { None })
            .flatten();
        let offset = offset.ok_or_else(|| {
            CommandError::Bitmap(format!(
                "there is no room for a bitmap with regions of {region_bytes} bytes: choose larger ones"
            ))
        })?;
        Ok((offset, BitmapImage::new(header, Fill::Dirty).map_err(wrong)?))
    }

    /// The books, for `detail`.
    pub(crate) fn records(&self) -> std::cell::Ref<'_, Records> {
        self.home.records.borrow()
    }

    /// The devices that were ever attached: name, slot and state, by id.
    pub fn members(&self) -> Vec<(MemberId, String, usize, MemberState)> {
        let records = self.records();
        records
            .members
            .iter()
            .map(|b| (b.member.id, b.member.name.clone(), b.slot, b.state.clone()))
            .collect()
    }
}

/// The table that goes with what assembly found.
fn initial_intent(
    geometry: &Geometry,
    bitmap: Option<&BitmapImage>,
    dirty_from: Option<u64>,
    torn: bool,
) -> IntentTable {
    let member_bytes = match geometry {
        Geometry::Parity(geometry) => geometry.member_bytes(),
        Geometry::Raid0(_) => 1,
    };
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
    let first = usize::try_from(from * SECTOR_BYTES / region_bytes).unwrap_or(usize::MAX);
    for region in first.min(intent.len())..intent.len() {
        if bitmap.is_none() || intent.is_set(region) {
            intent.set_needs_resync(region, torn);
        }
    }
    intent
}
