//! Every event in every state of a small array, every crash in the order of writes that follows, every choice
//! of devices at the start behind it.
//!
//! The world is devices with superblocks, and perhaps an array that serves them. What is not here: contents
//! (of a device it is known whether it has every acknowledged write), the bitmap, logs, and dirty arrays.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
    sync::Arc,
};

use pinstripe_md::{
    bad_block_table::BadBlockTable,
    identity::{SetName, Timestamp, Uuid},
    level::{Layout, Level, ParityLayout},
    placement::{InitialSync, NewArray, NewBitmap, NewDevice, place_spare},
    superblock::{MetadataVersion, Role, Superblock},
    units::SectorCount,
};
use pinstripe_runtime::{Device, DeviceError, DeviceErrorKind, DeviceSource};

use super::*;
use crate::{
    assembly::{AssembleError, Assembled, Found, decide::decide},
    controller::superblocks::assembled,
    options::ArrayOptions,
    supervision::shard_members::Unattached,
};

/// Entries of the roles table that are looked at: fewer than on a disk, more than are ever used.
const ROLES: usize = 10;

#[derive(Clone)]
struct Disk {
    superblock: Option<Superblock>,
    /// It has every write that was acknowledged.
    has_all: bool,
}

/// The handle of a device is the number of its disk.
#[derive(Clone)]
struct World {
    disks: Vec<Disk>,
    serving: Option<Membership<usize>>,
}

struct NoSource;

impl DeviceSource for NoSource {
    fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        Err(DeviceError::of(DeviceErrorKind::Gone))
    }

    fn name(&self) -> String {
        String::new()
    }
}

fn device(number: usize) -> NewDevice {
    NewDevice { sectors: 1 << 14, uuid: Uuid([u8::try_from(number).unwrap() + 1; 16]) }
}

fn failed(slot: Option<usize>) -> MemberError {
    let (name, error) = (String::new(), DeviceError::of(DeviceErrorKind::Gone));
    MemberError { role: slot.into(), name, operation: Operation::Write, offset: 0, error }
}

impl World {
    /// A new array, and disks that are not in it.
    fn new(level: Level, members: usize, others: usize) -> Self {
        let array = NewArray {
            set_uuid: Uuid([9; 16]),
            name: SetName::from_bytes([b'a'; 32]),
            created: Timestamp::new(0, 0),
            level,
            layout: Layout::Parity(ParityLayout::LeftSymmetric),
            chunk: SectorCount(128),
            version: MetadataVersion::V1_2,
            bitmap: NewBitmap::None,
            initial: InitialSync::AssumeClean,
            size: None,
            data_offset: None,
            logical_block_bytes: 512,
            members: (0..members).map(device).collect(),
            spares: Vec::new(),
        };
        let mut disks: Vec<Disk> = Vec::new();
        for mut superblock in array.place().unwrap().superblocks {
            superblock.array.roles.truncate(ROLES);
            disks.push(Disk { superblock: Some(superblock), has_all: true });
        }
        disks.resize(members + others, Disk { superblock: None, has_all: false });
        Self { disks, serving: None }
    }

    fn serving(&self) -> &Membership<usize> {
        self.serving.as_ref().expect("an array that serves")
    }

    fn serving_mut(&mut self) -> &mut Membership<usize> {
        self.serving.as_mut().expect("an array that serves")
    }

    fn write(&mut self, record: &DeviceRecord<usize>) {
        self.disks[record.handle].superblock = Some(record.superblock.clone());
    }

    fn crashed(mut self) -> Self {
        self.serving = None;
        self
    }

    /// What is the same of two worlds in which the same can happen. Numbers of events count by their order
    /// and by whether they are neighbours.
    fn key(&self) -> Vec<u8> {
        let superblocks = || self.disks.iter().filter_map(|disk| disk.superblock.as_ref());
        let mut events: Vec<u64> = superblocks().map(|superblock| superblock.array.events).collect();
        events.extend(self.serving.iter().map(|serving| serving.array.events));
        events.sort_unstable();
        let (mut ranks, mut rank, mut before) = (BTreeMap::new(), 0u8, events.first().copied().unwrap_or(0));
        for event in events {
            rank += u8::try_from((event - before).min(2)).unwrap();
            ranks.insert(event, rank);
            before = event;
        }
        let mut key = Vec::new();
        let role = |role: &Role| match role {
            Role::Slot(slot) => u8::try_from(slot.0).unwrap(),
            Role::Spare => 100,
            Role::Faulty => 101,
            Role::Journal => 102,
        };
        let record = |superblock: &Superblock, key: &mut Vec<u8>| {
            let member = &superblock.member;
            key.push(u8::try_from(member.dev_number.0).unwrap());
            key.push(u8::from(member.recovery_offset.is_some()) << 1 | u8::from(member.replacement));
        };
        for disk in &self.disks {
            key.push(u8::from(disk.has_all));
            if let Some(superblock) = &disk.superblock {
                key.push(ranks[&superblock.array.events]);
                key.extend(superblock.array.roles.iter().map(role));
                record(superblock, &mut key);
            }
        }
        if let Some(serving) = &self.serving {
            key.push(ranks[&serving.array.events]);
            key.extend(serving.array.roles.iter().map(role));
            for known in serving.devices.iter().filter(|known| known.state != MemberState::Removed) {
                let state = match known.state {
                    MemberState::InSync => 0,
                    MemberState::Recovering => 1,
                    MemberState::Replacing => 2,
                    MemberState::Spare => 3,
                    MemberState::Failed(_) => 4,
                    MemberState::Removed => 5,
                };
                key.extend([
                    200 + state,
                    u8::try_from(known.handle).unwrap(),
                    known.slot.unwrap_or(255).to_le_bytes()[0],
                ]);
                record(&known.superblock, &mut key);
            }
        }
        key
    }

    /// What an update of the superblocks may end in: all written, a crash on the way, one device failing.
    fn update(mut self, ends: &mut Vec<Self>) {
        self.serving_mut().begin_update(0, None, false);
        let membership = self.serving().clone();
        let order = membership.update_order();
        let active: Vec<MemberId> = order.iter().flatten().copied().collect();
        let mut before = self.clone();
        for together in &order {
            for subset in 1u32..1 << together.len() {
                let mut crashed = before.clone();
                let landed = (0..together.len()).filter(|bit| subset >> bit & 1 == 1);
                landed.for_each(|bit| crashed.write(membership.device(together[bit])));
                ends.push(crashed.crashed());
            }
            for id in together {
                before.write(membership.device(*id));
            }
        }
        for id in &active {
            for landed in [false, true] {
                let mut world = self.clone();
                for other in active.iter().filter(|other| landed || *other != id) {
                    world.write(membership.device(*other));
                }
                world.serving_mut().end_update(false);
                world.drop_device(*id, ends);
            }
        }
        let mut all = before;
        if all.serving_mut().end_update(true) { ends.push(all.idle()) } else { all.update(ends) }
    }

    fn drop_device(mut self, id: MemberId, ends: &mut Vec<Self>) {
        let slot = self.serving().device(id).slot;
        match self.serving().after(Event::Fail(vec![(id, failed(slot))])) {
            Ok(transition) => {
                assert!(transition.first.is_none());
                self.serving = Some(transition.membership);
                self.update(ends);
            }
            Err(_) => ends.push(self.crashed()),
        }
    }

    /// The superblocks know the membership: writes are acknowledged that only its devices get.
    fn idle(mut self) -> Self {
        let serving = self.serving().clone();
        serving.check();
        for (number, disk) in self.disks.iter_mut().enumerate() {
            let seated = |record: &DeviceRecord<usize>| record.handle == number && record.is_seated();
            disk.has_all &= serving.devices.iter().any(seated);
        }
        for (_, record) in serving.active() {
            let is_whole = record.state == MemberState::InSync;
            assert!(!is_whole || self.disks[record.handle].has_all, "{}", self.words());
        }
        self
    }

    /// What an event may end in.
    fn enact(&self, event: Event<usize>, ends: &mut Vec<Self>) {
        let mut world = self.clone();
        if let Event::Rebuilt(id) = &event {
            let disk = self.serving().device(*id).handle;
            world.disks[disk].has_all = true;
        }
        let Ok(Transition { membership: mut next, first }) = self.serving().after(event) else { return };
        assert!(!self.serving().needs_equal_events(), "an update went before");
        let Some(first) = first else {
            world.serving = Some(next);
            return world.update(ends);
        };
        world.serving_mut().announce(0, None);
        next.announce(0, None);
        let mut landed = world.clone();
        landed.write(next.device(first));
        ends.push(landed.clone().crashed());
        world.drop_device(first, ends);
        landed.clone().drop_device(first, ends);
        landed.serving = Some(next);
        landed.update(ends);
    }

    /// All that may happen to an array that serves.
    fn events(&self) -> Vec<Event<usize>> {
        let serving = self.serving();
        let mut events = Vec::new();
        for (id, record) in serving.devices() {
            events.push(Event::Fail(vec![(id, failed(record.slot))]));
            events.push(Event::Rebuilt(id));
            events.push(Event::Remove(id));
            for slot in 0..serving.slots() {
                for how in [JoinKind::Full, JoinKind::Replacement] {
                    events.push(Event::Seat { spare: id, slot, how });
                }
            }
        }
        for number in 0..self.disks.len() {
            let is_it = |record: &DeviceRecord<usize>| record.handle == number;
            if serving.active().any(|(_, record)| is_it(record)) {
                continue;
            }
            let (_, template) = serving.active().next().expect("a member");
            let mut template = template.superblock.clone();
            template.array = serving.array.clone();
            let superblock = place_spare(&template, device(number), &serving.numbers_in_use(), 512);
            let Ok(superblock) = superblock else { continue };
            let has_failed = |record: &DeviceRecord<usize>| matches!(record.state, MemberState::Failed(_));
            let former = serving.devices().filter(|(_, record)| is_it(record) && has_failed(record));
            let formerly = former.map(|(id, _)| id).collect();
            let device = Box::new(known(superblock, None, MemberState::Spare));
            events.push(Event::Join { device, formerly });
        }
        events
    }

    /// What comes of a start with some of the disks: with the bits of `subset`.
    fn decide(&self, subset: usize) -> Result<Assembled, AssembleError> {
        let given = self.disks.iter().enumerate().filter(|(number, _)| subset >> number & 1 == 1);
        let found = given.filter_map(|(_, disk)| {
            let superblock = disk.superblock.clone()?;
            let device: Rc<dyn Device> = Rc::new(Unattached::new("", DeviceError::of(DeviceErrorKind::Gone)));
            let bad_blocks = BadBlockTable::default();
            Some(Found { source: Arc::new(NoSource), device, superblock, bad_blocks })
        });
        decide(found.collect(), &ArrayOptions { newly_degraded: true, ..ArrayOptions::default() })
    }

    /// Starts the array with some of the disks, if that is possible.
    fn start(&self, subset: usize, starts: Starts, ends: &mut Vec<Self>) {
        let current = |number: &usize| self.disks[*number].has_all && subset >> number & 1 == 1;
        if !(0..self.disks.len()).any(|number| current(&number)) {
            // No device is there that knows what has happened: that can't be told.
            return;
        }
        let decided = match self.decide(subset) {
            Ok(decided) => decided,
            Err(error) => {
                let present = (0..self.disks.len()).filter(current).count();
                let (slots, redundancy) = self.shape();
                assert!(
                    starts == Starts::WithAny || present < slots - redundancy,
                    "{present} have everything, and: {error}\n{}",
                    self.words()
                );
                return;
            }
        };
        let record = |found: Found, _, slot, state| known(found.superblock, slot, state);
        let membership = assembled(decided.freshest.array, decided.seated, record);
        for (_, record) in membership.active() {
            assert!(
                record.state != MemberState::InSync || self.disks[record.handle].has_all,
                "disk {} of {subset:b} lacks writes, and was taken for current\n{}",
                record.handle,
                self.words()
            );
        }
        Self { serving: Some(membership), ..self.clone() }.update(ends);
    }

    fn shape(&self) -> (usize, usize) {
        let array = &self.disks.iter().find_map(|disk| disk.superblock.as_ref()).expect("a member").array;
        (array.raid_disks as usize, array.level.parity_count().into())
    }

    fn words(&self) -> String {
        use std::fmt::Write;
        let mut words = String::new();
        for (number, disk) in self.disks.iter().enumerate() {
            let Some(superblock) = &disk.superblock else { continue };
            let (array, member) = (&superblock.array, &superblock.member);
            writeln!(
                words,
                "disk {number}: has all {}, events {}, number {}, recovery {:?}, replacement {}, roles {:?}",
                disk.has_all,
                array.events,
                member.dev_number.0,
                member.recovery_offset,
                member.replacement,
                array.roles,
            )
            .unwrap();
        }
        words
    }
}

fn known(superblock: Superblock, slot: Option<usize>, state: MemberState) -> DeviceRecord<usize> {
    let handle = usize::from(superblock.member.device_uuid.0[0]) - 1;
    DeviceRecord { name: handle.to_string(), superblock, slot, state, valid_but_for_bits: 0, handle }
}

/// A start after a crash goes by the bits where a copy may be none.
#[test]
fn without_a_bitmap_nothing_of_a_copy_is_valid_but_for_bits() {
    let superblock = World::new(Level::Raid5, 3, 0).disks[0].superblock.clone().unwrap();
    let mut membership = Membership::new(superblock.array.clone());
    let mut record = known(superblock, Some(0), MemberState::Replacing);
    record.superblock.member.recovery_offset = Some(Sector(64));
    membership.devices.push(record);
    assert!(membership.distrust_copies(0, true));
    assert_eq!(membership.devices[0].valid_but_for_bits, 64 * 512);
    membership.forget_bits();
    assert_eq!(membership.devices[0].valid_but_for_bits, 0);
}

impl Membership<usize> {
    /// What holds of every membership.
    fn check(&self) {
        let holders = self.holders();
        let missing = holders.iter().filter(|slot| !slot.is_whole).count();
        assert!(missing <= usize::from(self.array.level.parity_count()), "C3");
        for slot in &holders {
            assert!(slot.target.is_none() || slot.is_whole, "what is copied has everything");
        }
        for (_, record) in self.active() {
            let member = &record.superblock.member;
            let says = (record.superblock.own_role(), member.recovery_offset.is_some(), member.replacement);
            let meant = match record.state {
                MemberState::Recovering => (in_slot(record.slot.unwrap()), true, false),
                MemberState::Replacing => (in_slot(record.slot.unwrap()), true, true),
                MemberState::Spare => (Role::Spare, false, false),
                _ => (in_slot(record.slot.unwrap()), false, false),
            };
            assert_eq!(says, meant, "disk {}: the superblock says what the device is", record.handle);
        }
        let seated = self.active().filter(|(_, record)| record.is_seated()).count();
        let held = holders.iter().flat_map(|slot| [slot.member, slot.target]).flatten().count();
        assert_eq!(seated, held, "no two devices hold one slot");
        let numbers: BTreeSet<u16> = self.numbers_in_use().iter().map(|number| number.0).collect();
        assert_eq!(numbers.len(), self.active().count(), "no two devices have one number");
    }
}

/// With which disks the array is started after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Starts {
    /// With all of them. Then it starts if it can.
    WithAll,
    /// With any of them. Two starts with different ones may leave superblocks that call each other faulty;
    /// such an array is refused.
    WithAny,
}

/// Goes through all worlds that come of so many events, crashes and starts. Returns how many there are.
fn explore(level: Level, (members, others): (usize, usize), starts: Starts, depth: usize) -> usize {
    let first = World::new(level, members, others);
    let mut seen = BTreeSet::from([first.key()]);
    let mut todo = VecDeque::from([(first, 0)]);
    while let Some((world, at)) = todo.pop_front() {
        if at == depth {
            continue;
        }
        let mut ends = Vec::new();
        if world.serving.is_some() {
            world.events().into_iter().for_each(|event| world.enact(event, &mut ends));
            world.clone().update(&mut ends);
            ends.push(world.crashed());
        } else {
            let all = (1 << world.disks.len()) - 1;
            let subsets = if starts == Starts::WithAll { all..=all } else { 1..=all };
            subsets.for_each(|subset| world.start(subset, starts, &mut ends));
        }
        for end in ends {
            if seen.insert(end.key()) {
                todo.push_back((end, at + 1));
            }
        }
    }
    seen.len()
}

/// A level, members and other devices, starts, depth, worlds that are seen at least.
type Case = (Level, (usize, usize), Starts, usize, usize);

fn explore_all(cases: &[Case]) {
    for &(level, disks, starts, depth, worlds) in cases {
        let seen = explore(level, disks, starts, depth);
        assert!(seen > worlds, "{level} {disks:?} {starts:?}: {seen}");
    }
}

// Two tests, for they take long and run side by side.
#[test]
fn what_has_every_write_starts_with_all_and_nothing_else_is_taken_for_it() {
    explore_all(&[
        (Level::Raid5, (3, 1), Starts::WithAll, 5, 100_000),
        (Level::Raid6, (4, 1), Starts::WithAll, 3, 50_000),
    ]);
}

#[test]
fn what_has_every_write_starts_with_any_and_nothing_else_is_taken_for_it() {
    explore_all(&[
        (Level::Raid5, (3, 1), Starts::WithAny, 4, 10_000),
        (Level::Raid5, (3, 2), Starts::WithAny, 3, 1000),
        (Level::Raid6, (4, 0), Starts::WithAny, 4, 50),
    ]);
}

/// A step further, in minutes: `CARGO_PROFILE_TEST_OPT_LEVEL=2 cargo test -p pinstripe-engine --features
/// exhaustive --lib transition`.
#[cfg(feature = "exhaustive")]
#[test]
fn what_has_every_write_starts_also_a_step_later() {
    for (level, disks, starts, depth, worlds) in [
        (Level::Raid5, (3, 1), Starts::WithAll, 6, 500_000),
        (Level::Raid5, (3, 1), Starts::WithAny, 6, 500_000),
        (Level::Raid6, (4, 1), Starts::WithAll, 4, 1_000_000),
        (Level::Raid6, (4, 1), Starts::WithAny, 3, 50_000),
    ] {
        let seen = explore(level, disks, starts, depth);
        println!("{level} {disks:?} {starts:?}: {seen} worlds");
        assert!(seen > worlds);
    }
}

#[cfg(feature = "mutants")]
#[test]
fn every_defect_of_the_membership_is_found() {
    use crate::mutants::activate;

    for (mutant, starts, depth) in [
        (Mutant::AbsentNotDisowned, Starts::WithAny, 4),
        (Mutant::BeyondRedundancyRecorded, Starts::WithAll, 4),
        (Mutant::EventsStandStill, Starts::WithAll, 5),
        (Mutant::FormerNotFaulty, Starts::WithAll, 5),
        (Mutant::RevenantAccepted, Starts::WithAny, 4),
        (Mutant::SeatedSpareRemoved, Starts::WithAll, 4),
        (Mutant::SpareCalledInSync, Starts::WithAny, 4),
        (Mutant::TargetPromotedWhole, Starts::WithAny, 4),
        (Mutant::UnevenNotLevelled, Starts::WithAll, 5),
    ] {
        activate(Some(mutant));
        let found = std::panic::catch_unwind(|| explore(Level::Raid5, (3, 1), starts, depth));
        activate(None);
        assert!(found.is_err(), "{mutant:?} lives");
    }
}
