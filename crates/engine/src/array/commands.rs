//! The commands that change the members of an array in service, or its bitmap.

use std::{ops::Range, pin::pin, rc::Rc, sync::Arc};

use pinstripe_md::{
    bad_block_table::BadBlockTable,
    bitmap::{BitmapHeader, BitmapImage, Fill},
    identity::Uuid,
    placement::{NewDevice, PlacementError, place_spare},
    superblock::{Role, SUPERBLOCK_BYTES_MAX, Superblock, candidate_sectors},
    units::{MemberSlot, SECTOR_BYTES, SectorCount},
};
use pinstripe_runtime::{Device, DeviceError, DeviceErrorKind, DeviceSource, shard};

use crate::{
    array::Array,
    assembly::{AssembleError, Found, create::wipe_marks, read_bytes, read_member, read_place},
    controller::{
        control::{Command, IntentChange},
        error::{Added, CommandError, Removed},
        policy::PolicyStep,
        seating::Former,
        superblocks::{Known, Newcomer},
        update::written_part,
    },
    error::{IoError, MemberError, Operation},
    intent::{IntentTable, REGION_BYTES_WITHOUT_BITMAP},
    io::parity::ParityVolume,
    members::MemberId,
    membership::{model::MemberState, snapshot::Seat},
    mutants::{Mutant, active},
    offload::fence,
    supervision::shard_members::give_up_everywhere,
};

/// How long a command waits for the controller before it looks whether that waits for the member that is to
/// go.
const LOOK_NS: u64 = 100_000_000;

impl Array {
    /// Whether its members may be changed at all. The volume of the level that can.
    pub(crate) fn check_change(&self) -> Result<&Rc<ParityVolume>, CommandError> {
        let volume = self.controller.volume.parity().ok_or(CommandError::NoRedundancy)?;
        if self.shared().options.read_only { Err(CommandError::ReadOnly) } else { Ok(volume) }
    }

    /// Drops the member of a slot, as if it had failed. Refused if the array can't do without it.
    pub async fn fail(&self, slot: usize) -> Result<(), CommandError> {
        self.check_change()?;
        let snapshot = self.shared().snapshot();
        let slots = snapshot.seats.len();
        let seat = snapshot.seats.get(slot).ok_or(CommandError::NoSuchSlot { slot, slots })?;
        let member = seat.member().ok_or(CommandError::SlotEmpty(slot))?;
        let mut answer =
            pin!(self.controller.command(|reply| Command::Fail { slot, member: member.id, reply }));
        loop {
            if let Some(answer) = shard::timeout(LOOK_NS, answer.as_mut()).await {
                return answer;
            }
            if !member.health.is_slow() {
                continue;
            }
            // The member hangs, and the controller perhaps with it: what waits for it ends, if the array can
            // do without it.
            let snapshot = self.shared().snapshot();
            if snapshot.slot_of(member.id).is_some() && !self.shared().can_give_up(member.id, &snapshot) {
                return Err(CommandError::SlotNeeded(slot));
            }
            give_up_everywhere(self.shared(), member.id, DeviceErrorKind::Removed);
        }
    }

    /// Drops the member on `device`, which the caller knows to be gone for good. Otherwise the next request
    /// to it would find that out, and on an idle array that may be the one that has just lost another member.
    /// A member that the array can't do without stays, and its state as it is (C3). Returns whether the
    /// member was dropped.
    pub async fn drop_gone(&self, device: &str) -> Result<bool, IoError> {
        if self.check_change().is_err() {
            return Ok(false);
        }
        let snapshot = self.shared().snapshot();
        let redundancy = self.shared().redundancy_left(&snapshot);
        let mut seats = snapshot.seats.iter().enumerate();
        let found = seats.find_map(|(slot, seat)| {
            let member = seat.member().filter(|member| member.name == device)?;
            (!seat.is_whole() || snapshot.missing.len() < redundancy).then_some((slot, member))
        });
        let Some((slot, member)) = found else { return Ok(false) };
        let error = DeviceError::of(DeviceErrorKind::Gone);
        let error = MemberError {
            role: slot.into(),
            name: device.to_owned(),
            operation: Operation::Presence,
            offset: 0,
            error,
        };
        self.shared().report(member.id, error);
        self.shared().dropped(member.id).await?;
        Ok(true)
    }

    /// Takes a device in. A member that comes back is put into its slot again, and only what was dirtied
    /// since is rebuilt, if the bitmap still tells; of any other device all is rebuilt, and whatever it holds
    /// is lost. Without an empty slot it becomes a spare. `uuid` is its new identity unless it comes back.
    pub async fn add(&self, source: Arc<dyn DeviceSource>, uuid: Uuid) -> Result<Added, CommandError> {
        self.add_over(source, uuid, &[]).await
    }

    /// The same. Unless it comes back, `marks` of what the device was, in bytes, are wiped.
    pub async fn add_over(
        &self,
        source: Arc<dyn DeviceSource>,
        uuid: Uuid,
        marks: &[Range<u64>],
    ) -> Result<Added, CommandError> {
        self.check_change()?;
        let _changing = self.controller.changes.take().await;
        let (newcomer, comes_back) = self.newcomer(source, uuid, marks).await?;
        let identity = newcomer.superblock.member.device_uuid;
        let (newcomer, comes_back) = (Box::new(newcomer), comes_back.map(Box::new));
        let entered = self.controller.command(|reply| Command::Enter { newcomer, comes_back, reply }).await;
        self.check_entered(identity, entered)?;
        let superblocks = self.superblocks();
        let mut known = superblocks.membership.find(identity);
        let record = known.find(|record| record.is_active()).ok_or(IoError::MembershipChanged)?;
        Ok(match record.slot {
            None => Added::Spare,
            Some(slot) if record.superblock.member.recovery_by_bitmap => Added::Bitmap { slot },
            Some(slot) => Added::Full { slot },
        })
    }

    /// Has a device take the place of a slot's member, which stays in use until the copy is whole: `with`,
    /// which gets the identity `uuid`, or a spare. Returns the device's name when the copying has begun.
    pub async fn replace(
        &self,
        slot: usize,
        with: Option<Arc<dyn DeviceSource>>,
        uuid: Uuid,
    ) -> Result<String, CommandError> {
        self.replace_over((slot, None), with, uuid, &[]).await
    }

    /// The same of a slot's `member`, if that is known: another one may have come into the slot since.
    /// `marks` of what the device was, in bytes, are wiped.
    pub async fn replace_over(
        &self,
        (slot, member): (usize, Option<MemberId>),
        with: Option<Arc<dyn DeviceSource>>,
        uuid: Uuid,
        marks: &[Range<u64>],
    ) -> Result<String, CommandError> {
        self.check_change()?;
        let _changing = self.controller.changes.take().await;
        self.check_replaceable(slot, member)?;
        let spare = match with {
            None => {
                let superblocks = self.superblocks();
                let mut devices = superblocks.membership.devices();
                devices.find(|(_, record)| self.controller.fits(record)).ok_or(CommandError::NoSpare)?.0
            }
            Some(source) => {
                // As a spare it would fill that slot, whatever it was named for. Refused before anything is
                // written to it.
                let absent = self.shared().snapshot().absent();
                if let Some(empty) = absent.iter().next() {
                    return Err(CommandError::OtherSlotEmpty { slot, empty });
                }
                let former = self.former(&source).await?;
                let newcomer = Box::new(self.blank(source, former, uuid, marks).await?);
                let enter = |reply| Command::Enter { newcomer, comes_back: None, reply };
                let entered = self.controller.command(enter).await;
                self.check_entered(uuid, entered)?;
                self.check_replaceable(slot, member)?;
                let superblocks = self.superblocks();
                let is_it = |record: &Known| {
                    record.superblock.member.device_uuid == uuid && self.controller.fits(record)
                };
                let entered = superblocks.membership.devices().find(|(_, record)| is_it(record));
                entered.ok_or(IoError::MembershipChanged)?.0
            }
        };
        let replaced = self.controller.command(|reply| Command::Replace { slot, spare, reply }).await;
        let (name, identity) = {
            let superblocks = self.superblocks();
            let record = superblocks.membership.device(spare);
            (record.name.clone(), record.superblock.member.device_uuid)
        };
        self.check_entered(identity, replaced.map_err(CommandError::from))?;
        Ok(name)
    }

    /// Why a device that was to join is none of the array's, if so: its own failure rather than what came of
    /// it.
    fn check_entered(&self, identity: Uuid, entered: Result<(), CommandError>) -> Result<(), CommandError> {
        if !matches!(entered, Ok(()) | Err(CommandError::Io(IoError::MembershipChanged))) {
            return entered;
        }
        let superblocks = self.superblocks();
        match superblocks.membership.find(identity).last().map(|record| &record.state) {
            Some(MemberState::Failed(error)) => Err(CommandError::NotTakenIn(error.clone())),
            _ => entered,
        }
    }

    fn check_replaceable(&self, slot: usize, member: Option<MemberId>) -> Result<(), CommandError> {
        let snapshot = self.shared().snapshot();
        let slots = snapshot.seats.len();
        let state = match snapshot.seats.get(slot) {
            None => return Err(CommandError::NoSuchSlot { slot, slots }),
            Some(Seat::InSync(now)) if member.is_none_or(|member| member == now.id) => return Ok(()),
            Some(Seat::InSync(_)) => "another one by now",
            Some(Seat::Empty) => "missing",
            Some(Seat::Recovering(_)) => "being rebuilt",
            Some(Seat::Replacing { .. }) => "being replaced already",
        };
        Err(CommandError::NotReplaceable { slot, state })
    }

    /// Takes a failed device or a spare out of the array, so that nothing is known of it any more. Returns
    /// its name.
    pub async fn remove(&self, which: &Removed) -> Result<String, CommandError> {
        self.check_change()?;
        let _changing = self.controller.changes.take().await;
        let (member, name) = self.removable(which)?;
        self.controller.command(|reply| Command::Remove { member, reply }).await?;
        Ok(name)
    }

    /// Tells the server of a device that was removed that this host has done with it, so that others may
    /// write it. Not while it may still carry out what it was asked for (C16).
    pub async fn give_up(&self, removed: &Arc<dyn DeviceSource>) -> Result<(), CommandError> {
        let _changing = self.controller.changes.take().await;
        let name = removed.name();
        let is_back = |(_, record): (_, &Known)| record.name == name && record.is_active();
        if self.superblocks().membership.devices().any(is_back) {
            return Ok(());
        }
        self.controller.refuse_late(&name, |_| false)?;
        let device = self.attach(removed)?;
        let Some(server) = device.offload() else { return Ok(()) };
        let told = server.detach(true).await.result;
        told.map(|_| ()).map_err(|error| CommandError::Device { name, error })
    }

    fn removable(&self, which: &Removed) -> Result<(MemberId, String), CommandError> {
        let superblocks = self.superblocks();
        let is_meant = |name: &str, slot: Option<usize>| match which {
            Removed::Device(device) => device == name,
            Removed::Slot(number) => Some(*number) == slot,
        };
        let mut in_use = None;
        let devices = superblocks.membership.devices().rev();
        for (id, record) in devices.filter(|(_, record)| is_meant(&record.name, record.slot)) {
            let name = record.name.clone();
            match (&record.state, record.slot) {
                (MemberState::Spare | MemberState::Failed(_), _) => return Ok((id, name)),
                (MemberState::Removed, _) | (_, None) => {}
                (_, Some(slot)) => in_use = Some(CommandError::InUse { name, slot }),
            }
        }
        Err(in_use.unwrap_or_else(|| match which {
            Removed::Device(device) => CommandError::NoSuchDevice(device.clone()),
            Removed::Slot(slot) => CommandError::NoSuchDevice(format!("what was in slot {slot}")),
        }))
    }

    /// What is to be entered for a device, and the slot that it comes back to, if it was a member and bits
    /// may tell what it missed.
    async fn newcomer(
        &self,
        source: Arc<dyn DeviceSource>,
        uuid: Uuid,
        marks: &[Range<u64>],
    ) -> Result<(Newcomer, Option<Former>), CommandError> {
        let found = self.former(&source).await?;
        let former = match &found {
            Some(found) => self.comes_back(found).await?,
            None => None,
        };
        match (found, former) {
            (Some(found), Some(former)) => {
                let mut newcomer = Newcomer::from(found);
                self.give_number(&mut newcomer.superblock)?;
                self.controller.admit_server(&*newcomer.device).await?;
                Ok((newcomer, Some(former)))
            }
            (found, _) => Ok((self.blank(source, found, uuid, marks).await?, None)),
        }
    }

    /// What a device was, if it says so, once writes of a process that has died are over. Refused if it is a
    /// member, or knows more than the array, or may still be written by requests that were given up (C16).
    async fn former(&self, source: &Arc<dyn DeviceSource>) -> Result<Option<Found>, CommandError> {
        self.controller.refuse_late(&source.name(), |_| false)?;
        let device = self.attach(source)?;
        fence::outlast([&device].into_iter(), self.shared().options.tell_wait).await;
        let ours = self.superblocks().membership.array.set_uuid;
        let found = match read_member(Arc::clone(source), device, Some(ours)).await {
            Ok(found) => found,
            Err(AssembleError::Device { name, error }) if error.kind == DeviceErrorKind::TimedOut => {
                return Err(CommandError::Device { name, error });
            }
            Err(_) => return Ok(None),
        };
        let device = found.superblock.member.device_uuid;
        self.controller.refuse_late(&source.name(), |superblock| superblock.member.device_uuid == device)?;
        self.check_former(&found)?;
        Ok(Some(found))
    }

    /// A handle to a device that is no member: what it is asked for has an end.
    fn attach(&self, source: &Arc<dyn DeviceSource>) -> Result<Rc<dyn Device>, CommandError> {
        let attached = self.controller.joining.attach(&**source, self.shared().options.member_timeout_ns);
        attached.map_err(|error| CommandError::Device { name: source.name(), error })
    }

    /// Refuses a device that is a member or the journal, or knows more than the array.
    fn check_former(&self, found: &Found) -> Result<(), CommandError> {
        let name = found.device.info().name.clone();
        let (array, member) = (&found.superblock.array, &found.superblock.member);
        let superblocks = self.superblocks();
        let membership = &superblocks.membership;
        if array.set_uuid != membership.array.set_uuid {
            return Ok(());
        }
        let journal = superblocks.journal.as_ref().filter(|journal| {
            journal.superblock.member.device_uuid == member.device_uuid
                && self.controller.journal().is_none_or(|journal| journal.failure().is_none())
        });
        let journal = journal.map(|journal| (journal.device.info().name.clone(), "its journal".to_owned()));
        let mut known = membership.find(member.device_uuid).filter(|record| record.is_active());
        let other = journal.or_else(|| {
            let record = known.next()?;
            let place = record.slot.map_or_else(|| "a spare".to_owned(), |slot| format!("slot {slot}"));
            Some((record.name.clone(), place))
        });
        if let Some((of, place)) = other {
            let is_it = of == name;
            return Err(if is_it {
                CommandError::AlreadyMember(name)
            } else {
                CommandError::Copy { name, of, place }
            });
        }
        let (events, current) = (array.events, membership.array.events);
        if events > current { Err(CommandError::Ahead { name, events, current }) } else { Ok(()) }
    }

    /// What a device was when it went, if it was whole then and bits tell of all that it has otherwise.
    async fn comes_back(&self, found: &Found) -> Result<Option<Former>, CommandError> {
        let Some(slot) = self.former_slot(found) else { return Ok(None) };
        let Some(bitmap) = self.own_bits(found).await? else { return Ok(None) };
        let array = &found.superblock.array;
        let has_device = |slot: &usize| {
            u16::try_from(*slot).is_ok_and(|slot| array.devices_in(MemberSlot(slot)).next().is_some())
        };
        let knew = (0..self.shared().snapshot().seats.len()).filter(has_device).collect();
        let was_recovering = found.superblock.member.recovery_offset.is_some();
        let former = Former { slot, events: array.events, knew, was_recovering, bitmap };
        Ok(Some(former).filter(|former| self.controller.can_come_back(former)))
    }

    /// Whether a device with this superblock may have what is missing of rows that a crash may have torn.
    fn holds_torn(&self, superblock: &Superblock) -> bool {
        let Superblock { array, member, .. } = superblock;
        let Role::Slot(slot) = superblock.own_role() else { return false };
        array.set_uuid == self.superblocks().membership.array.set_uuid
            && self.controller.holds_torn(slot.0.into(), member, array.events)
    }

    /// The bitmap on a device that was a member, if it has the array's regions and goes with its superblock.
    async fn own_bits(&self, found: &Found) -> Result<Option<BitmapImage>, CommandError> {
        let ours = self.superblocks().bitmap.as_ref().map(|bitmap| bitmap.header().clone());
        let (Some(ours), Some(sector)) = (ours, found.superblock.bitmap_sector()) else { return Ok(None) };
        let bytes = match read_bytes(&*found.device, sector.0 * SECTOR_BYTES, ours.byte_count()).await {
            Ok(bytes) => bytes,
            Err(AssembleError::Device { name, error }) if error.kind == DeviceErrorKind::TimedOut => {
                return Err(CommandError::Device { name, error });
            }
            // It can't be caught up by bits.
            Err(_) => return Ok(None),
        };
        let goes_with = |image: &BitmapImage| {
            let theirs = image.header();
            theirs.set_uuid == ours.set_uuid
                && theirs.chunk_bytes == ours.chunk_bytes
                && theirs.sync_size == ours.sync_size
                && theirs.is_valid_for(found.superblock.array.events)
        };
        Ok(BitmapImage::decode(&bytes).ok().filter(goes_with))
    }

    /// The slot that a device was in when it went, if it was whole then, or was being caught up by bitmap.
    fn former_slot(&self, found: &Found) -> Option<usize> {
        let superblock = &found.superblock;
        let array = self.superblocks().membership.array.clone();
        let mut now = superblock.clone();
        now.array = array.clone();
        let fits = superblock.array.set_uuid == array.set_uuid
            && superblock.same_array(&now).is_ok()
            && superblock.array.raid_disks == array.raid_disks
            && superblock.array.size == array.size
            && (superblock.member.recovery_offset.is_none()
                // Until it is whole no bit is cleared: what it lacked is under those that are set now.
                || superblock.member.recovery_by_bitmap
                || active(Mutant::HalfRecoveredReadded))
            && !superblock.member.replacement
            && superblock.member.data_size >= array.component_sectors()
            && found.device.info().logical_block <= self.shared().geometry.logical_block()
            && now.check(found.device.info().logical_block.into()).is_ok()
            && now.bitmap_sector() == superblock.bitmap_sector();
        let Role::Slot(slot) = superblock.own_role() else { return None };
        let slot = usize::from(slot.0);
        let is_empty = matches!(self.shared().snapshot().seats.get(slot), Some(Seat::Empty));
        let persistent = self.shared().snapshot().intent.is_persistent();
        (fits && is_empty && persistent).then_some(slot)
    }

    /// A member that comes back keeps its number, unless another device has it by now or the roles table ends
    /// before it.
    fn give_number(&self, superblock: &mut Superblock) -> Result<(), CommandError> {
        let superblocks = self.superblocks();
        let in_use = superblocks.membership.numbers_in_use();
        superblock.array = superblocks.membership.array.clone();
        let number = superblock.member.dev_number;
        if in_use.contains(&number) || usize::from(number.0) >= superblock.array.roles.len() {
            let free = superblock.array.free_device_number(&in_use);
            superblock.member.dev_number = free.ok_or_else(|| CommandError::Placement {
                name: String::from("the device"),
                error: PlacementError::NoDeviceNumber,
            })?;
        }
        Ok(())
    }

    /// A device, which was `former`, as a spare with the identity `uuid`: its content doesn't count. Refused
    /// if it may have what no other one has.
    async fn blank(
        &self,
        source: Arc<dyn DeviceSource>,
        former: Option<Found>,
        uuid: Uuid,
        marks: &[Range<u64>],
    ) -> Result<Newcomer, CommandError> {
        if let Some(found) = former.as_ref().filter(|found| self.holds_torn(&found.superblock)) {
            return Err(CommandError::HoldsTorn(found.device.info().name.clone()));
        }
        let device = self.attach(&source)?;
        let (name, info) = (device.info().name.clone(), device.info().clone());
        let block = self.shared().geometry.logical_block();
        if info.logical_block > block && !active(Mutant::LargerBlocksJoin) {
            return Err(CommandError::LogicalBlock { name, block: info.logical_block, array: block });
        }
        let superblock = self.spare_superblock(&name, &info, uuid)?;
        let ours = self.superblocks().membership.array.set_uuid;
        let former = former.filter(|found| found.superblock.array.set_uuid == ours);
        let formerly = former.map(|found| found.superblock.member.device_uuid);
        // Other hosts are kept from what joins, and from nothing else (C34).
        self.controller.admit_server(&*device).await?;
        let emptied = self.empty(&name, &*device, &superblock, marks).await;
        // What it may still do for this host, it must not do for another one (C16).
        if emptied.is_err() && self.controller.refuse_late(&name, |_| false).is_ok() {
            fence::give_up(std::iter::once(&device)).await;
        }
        emptied?;
        Ok(Newcomer { formerly, source, device, superblock, bad_blocks: BadBlockTable::default() })
    }

    /// Keeps nothing of a device's content, and has it hold the array's bitmap.
    async fn empty(
        &self,
        name: &str,
        device: &dyn Device,
        superblock: &Superblock,
        marks: &[Range<u64>],
    ) -> Result<(), CommandError> {
        let failed = |error| CommandError::Device { name: name.to_owned(), error };
        wipe_marks(device, marks.iter().cloned(), 0..0).await.map_err(failed)?;
        erase_others(name, device, superblock).await?;
        self.write_new_bitmap(name, device, superblock).await
    }

    fn spare_superblock(
        &self,
        name: &str,
        info: &pinstripe_runtime::DeviceInfo,
        uuid: Uuid,
    ) -> Result<Superblock, CommandError> {
        let superblocks = self.controller.superblocks.borrow();
        let Some((_, model)) = superblocks.seated().next() else {
            return Err(CommandError::Io(IoError::Failed));
        };
        let in_use = superblocks.membership.numbers_in_use();
        let mut template = model.superblock.clone();
        template.array = superblocks.membership.array.clone();
        let device = NewDevice { sectors: info.size / SECTOR_BYTES, uuid };
        let placed = place_spare(&template, device, &in_use, info.logical_block.into());
        placed.map_err(|error| CommandError::Placement { name: name.to_owned(), error })
    }

    /// The bitmap as it is, on a device that joins: its superblock will say that there is one.
    async fn write_new_bitmap(
        &self,
        name: &str,
        device: &dyn pinstripe_runtime::Device,
        superblock: &Superblock,
    ) -> Result<(), CommandError> {
        let bytes = self
            .controller
            .superblocks
            .borrow()
            .bitmap
            .as_ref()
            .map(|bitmap| written_part(bitmap, superblock, device).map(<[u8]>::to_vec));
        let (Some(bytes), Some(sector)) = (bytes, superblock.bitmap_sector()) else { return Ok(()) };
        let no_room = || CommandError::Bitmap(format!("{name} has no room for the array's bitmap"));
        let bytes = bytes.ok_or_else(no_room)?;
        let mut buffer = shard::buffer(bytes.len());
        buffer.copy_from_slice(&bytes);
        let written = device.write(sector.0 * SECTOR_BYTES, buffer.freeze(), true).await.result;
        written.map(|_| ()).map_err(|error| CommandError::Device { name: name.to_owned(), error })
    }

    /// Removes the bitmap from a live array.
    pub async fn remove_bitmap(&self) -> Result<(), CommandError> {
        self.check_change()?;
        let _changing = self.controller.changes.take().await;
        if !self.shared().snapshot().intent.is_persistent() {
            return Err(CommandError::Bitmap("the array has no bitmap".to_owned()));
        }
        self.change_policy(vec![self.bitmap_to_remove()?]).await
    }

    /// Adds a bitmap with regions of `region_bytes` to a live array that has none.
    pub async fn add_bitmap(&self, region_bytes: u32) -> Result<(), CommandError> {
        self.check_change()?;
        let _changing = self.controller.changes.take().await;
        let now = self.shared().snapshot();
        if now.intent.is_persistent() {
            return Err(CommandError::Bitmap("the array has a bitmap already: remove it first".to_owned()));
        }
        if !self.controller.wanted_log.borrow().is_none() || self.superblocks().membership.array.journal {
            return Err(CommandError::Bitmap(
                "the array keeps a log (ppl or journal), which excludes a bitmap".to_owned(),
            ));
        }
        self.change_policy(vec![self.bitmap_to_add(region_bytes)?]).await
    }

    pub(crate) fn bitmap_to_remove(&self) -> Result<PolicyStep, CommandError> {
        let member_bytes = self.check_change()?.geometry.member_bytes();
        // A table with other regions inherits the marks of the old one when it takes over.
        let intent = Arc::new(IntentTable::new(member_bytes, REGION_BYTES_WITHOUT_BITMAP, false));
        Ok(PolicyStep::Intent { intent, change: IntentChange::Remove })
    }

    /// A new bitmap where there is none by then.
    pub(crate) fn bitmap_to_add(&self, region_bytes: u32) -> Result<PolicyStep, CommandError> {
        let member_bytes = self.check_change()?.geometry.member_bytes();
        let (offset, image) = self.new_bitmap(region_bytes)?;
        let intent = IntentTable::new(member_bytes, region_bytes.into(), true);
        // Everything is set until the sweeper has seen it idle: writers under the old table are not counted
        // in this one.
        (0..intent.len()).for_each(|region| intent.load_set(region));
        let change = IntentChange::Add { offset, image: Box::new(image) };
        Ok(PolicyStep::Intent { intent: Arc::new(intent), change })
    }

    /// Where a new bitmap goes, and its first content. The array has none; a log that it has is as good as
    /// gone.
    fn new_bitmap(&self, region_bytes: u32) -> Result<(i32, BitmapImage), CommandError> {
        let superblocks = self.controller.superblocks.borrow();
        let wrong = |error: pinstripe_md::bitmap::BitmapError| CommandError::Bitmap(error.to_string());
        let array = &superblocks.membership.array;
        let header = BitmapHeader::new(array.set_uuid, SectorCount(array.size.0), region_bytes);
        let header = header.map_err(wrong)?;
        let offset = superblocks
            .membership
            .active()
            .map(|(_, record)| pinstripe_md::placement::bitmap_place(&record.superblock, header.sectors()))
            .reduce(|a, b| if a == b { a } else { None })
            .flatten();
        let offset = offset.ok_or(CommandError::BitmapRoom(region_bytes))?;
        Ok((offset, BitmapImage::new(header, Fill::Dirty).map_err(wrong)?))
    }
}

/// Zeroes the superblocks that a device holds elsewhere than where its new one goes. With them it would be a
/// member of two arrays (C30), and a kernel may start the other one.
async fn erase_others(name: &str, device: &dyn Device, own: &Superblock) -> Result<(), CommandError> {
    let failed = |error| CommandError::Device { name: name.to_owned(), error };
    let sectors = own.member.device_sectors;
    let mut is_erased = false;
    for place in candidate_sectors(sectors).filter(|place| *place != own.member.super_offset) {
        match read_place(device, place, sectors).await {
            // Nothing is found where nothing can be read.
            Err(error) if error.kind == DeviceErrorKind::Media => continue,
            Err(error) => return Err(failed(error)),
            Ok(None) => continue,
            Ok(Some(_)) => {}
        }
        let zeroes = shard::zeroed(SUPERBLOCK_BYTES_MAX).freeze();
        device.write(place.0 * SECTOR_BYTES, zeroes, true).await.result.map_err(failed)?;
        is_erased = true;
    }
    if is_erased {
        device.flush().await.result.map_err(failed)?;
    }
    Ok(())
}
