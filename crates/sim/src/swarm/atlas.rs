//! The second half of the fault atlas: members come back, are replaced, hang for too long, vanish at bad
//! moments.
//!
//! Whether a run has it is a matter of its seed's million ([`super::FIRST_SEED_WITH_ATLAS`]). What a level
//! can bear is still the limit, so that whatever goes wrong is a bug; two more things are looked at:
//!
//! - A member that did nothing wrong is not dropped. A disk that is slow, or hangs for less than the limit,
//!   is still a member.
//! - With a spare waiting, an array that was left alone is whole again, without a command.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
};

use pinstripe_engine::{
    array::{Added, CommandError, Removed},
    error::{IoError, Operation},
    members::MemberId,
    membership::{MemberState, snapshot::Seat},
    options::ArrayOptions,
};
use pinstripe_runtime::shard;

use super::{Swarm, Verdict, draw::uuid, events::excused};
use crate::{Fault, Rng, SimDisk, SimDiskConfig, Trigger, checks::survey};

/// The longest that [`Fault::SlowBy`] stretches anything.
const SLOWEST: u64 = 16;
/// Longer than any disk is held up that is not to be dropped, and than the scheduler forgets a request.
const GRACE_NS: u64 = 1_000_000_000;

/// How much of what there is.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Of 8 events that are wanted, how many happen.
    liveliness: u64,
    /// Of 8 clean starts, how many are without some members.
    absences: u64,
    /// How long a member may take.
    timeout_ns: u64,
    /// Of 8 times at rest, at how many a disk writes to a wrong place.
    pub(crate) lies: u64,
}

impl Habits {
    /// Draws them, and sets the limits of the engine by the disks' habits.
    pub fn drawn(rng: &mut Rng, options: &mut ArrayOptions, disk: &SimDiskConfig) -> Self {
        let longest = disk.latency_ns_max * 50 * SLOWEST;
        options.slow_member_ns = rng.pick(&[longest / 8 + 1_000_000, longest + 5_000_000]);
        options.member_timeout_ns = GRACE_NS + 3 * longest;
        Self {
            liveliness: rng.pick(&[1, 2, 4, 8]),
            absences: rng.pick(&[0, 1, 4]),
            timeout_ns: options.member_timeout_ns,
            lies: rng.pick(&[0, 2, 6]),
        }
    }
}

/// What was done to which disk.
#[derive(Default)]
pub(crate) struct InjectedFaults {
    /// As which member a doomed disk was doomed: when it is another one, it is well.
    doomed_as: BTreeMap<usize, MemberId>,
    /// Disks that may be dropped in this life.
    blamed: BTreeSet<usize>,
    /// Disks that were given back as they were.
    sick: BTreeSet<usize>,
    /// Disks on the way in.
    joining: Rc<RefCell<BTreeSet<usize>>>,
    /// Sectors were made unwritable where users write.
    pub(crate) scratched: bool,
    /// Disks that were to be taken out, and are needed.
    pub(crate) spared: Rc<RefCell<BTreeSet<usize>>>,
}

impl InjectedFaults {
    /// A life begins: whatever was, was.
    pub(crate) fn begin_life(&mut self) {
        *self = Self::default();
    }

    /// These disks may be dropped in this life.
    pub(crate) fn excuse(&mut self, disks: impl IntoIterator<Item = usize>) {
        self.blamed.extend(disks);
    }

    /// Whether a disk is on its way in, or out and in.
    pub(crate) fn is_joining(&self, disk: usize) -> bool {
        self.joining.borrow().contains(&disk)
    }

    /// Says that a disk is on its way in.
    pub(crate) fn joining(&self, disk: usize) -> Joining {
        self.joining.borrow_mut().insert(disk);
        Joining { disk, all: Rc::clone(&self.joining) }
    }
}

/// A disk is on its way in as long as this is held.
pub(crate) struct Joining {
    disk: usize,
    all: Rc<RefCell<BTreeSet<usize>>>,
}

impl Drop for Joining {
    fn drop(&mut self) {
        self.all.borrow_mut().remove(&self.disk);
    }
}

/// A disk as the engine has it: as which member, and in which state.
type Standing = (MemberId, MemberState);

impl Swarm {
    /// One event of the second half, or none.
    pub(crate) fn atlas_event(&mut self) {
        let Some(habits) = self.setup.atlas.clone() else { return };
        if self.setup.level.parity_count() == 0 || !self.rng.chance(habits.liveliness, 8) {
            return;
        }
        match self.rng.below(16) {
            0 | 1 => self.begin_replacement(),
            2..=4 => self.give_back(),
            5 => self.remove_a_member(),
            6 => self.keep_a_spare(),
            7 | 8 => self.bounce(),
            9 if self.setup.failures => self.hang(habits.timeout_ns),
            10 if self.setup.failures => self.fail_target(habits.timeout_ns),
            11 if self.setup.failures => self.fail_soon(),
            12 | 13 => self.crawl(),
            _ => {}
        }
    }

    /// Looks at what the disks are by now. A disk that came back as another member has left its faults
    /// behind; a disk that was dropped without a reason is an error.
    pub(crate) fn take_stock(&mut self) {
        let unwatched = self.setup.net.is_none() && !self.setup.plans_faults();
        if unwatched || self.array.is_none() {
            return;
        }
        for disk in self.afflicted.spared.take() {
            self.doomed.remove(&disk);
            self.afflicted.doomed_as.remove(&disk);
        }
        let members = self.array().members();
        let standing = |disk: usize| -> Option<Standing> {
            let name = &self.disks[disk].info().name;
            let of = members.iter().rev().find(|(_, member, ..)| member == name);
            of.map(|(id, _, _, state)| (*id, state.clone()))
        };
        let mut well = Vec::new();
        for &disk in &self.doomed {
            self.afflicted.blamed.insert(disk);
            let Some((id, state)) = standing(disk) else { continue };
            let is_out = matches!(state, MemberState::Failed(_) | MemberState::Removed);
            let is_another = *self.afflicted.doomed_as.entry(disk).or_insert(id) != id;
            if is_another && !is_out && !self.afflicted.sick.contains(&disk) {
                well.push(disk);
            }
        }
        for disk in well {
            self.doomed.remove(&disk);
            self.afflicted.doomed_as.remove(&disk);
            if let Some(net) = &mut self.net {
                net.given_back(disk);
            }
        }
        for disk in 0..self.disks.len() {
            let Some((_, MemberState::Failed(error))) = standing(disk) else { continue };
            let excused = self.afflicted.blamed.contains(&disk) || self.outage.contains(&disk);
            if !excused && error.operation != Operation::Replacement {
                self.shop.accuse(Verdict::Dropped(format!("{error}, and nothing was done to it")));
            }
        }
    }

    fn standing(&self, disk: usize) -> Option<Standing> {
        let name = &self.disks[disk].info().name;
        let members = self.array().members();
        let of = members.into_iter().rev().find(|(_, member, ..)| member == name);
        of.map(|(id, _, _, state)| (id, state))
    }

    /// Disks that hold no slot, wait for none, and are not about to.
    fn idle_disks(&self) -> Vec<usize> {
        let is_idle = |disk: &usize| {
            let out = match self.standing(*disk) {
                None => true,
                Some((_, state)) => matches!(state, MemberState::Failed(_) | MemberState::Removed),
            };
            out && !self.afflicted.is_joining(*disk)
        };
        let journal = (self.setup.disks() > self.setup.members).then_some(self.setup.members);
        (0..self.disks.len()).filter(|disk| Some(*disk) != journal).filter(is_idle).collect()
    }

    /// Whether there is a disk to be given back.
    pub(crate) fn has_idle_disk(&self) -> bool {
        !self.idle_disks().is_empty()
    }

    fn some_idle_disk(&mut self) -> Option<usize> {
        let idle = self.idle_disks();
        (!idle.is_empty()).then(|| self.rng.pick(&idle))
    }

    /// A disk that was out is well again.
    fn mend(&mut self, number: usize) {
        self.afflicted.sick.remove(&number);
        let disk = &self.disks[number];
        disk.fault(&Fault::Calm);
        disk.fault(&Fault::Heal);
        disk.fault(&Fault::Return);
        disk.fault(&Fault::Release);
        self.start_server(number);
    }

    /// A device that was out is given back, mended or, now and then, as it is.
    pub(crate) fn give_back(&mut self) {
        let Some(disk) = self.some_idle_disk() else { return };
        if self.rng.chance(7, 8) {
            self.mend(disk);
        } else {
            self.doomed.insert(disk);
            self.afflicted.sick.insert(disk);
        }
        self.summary.returns += 1;
        let removes = self.rng.chance(1, 4);
        self.spawn_return(disk, None, removes);
    }

    /// A member is taken out and given back at once.
    pub(crate) fn bounce(&mut self) {
        let Some((slot, disk)) = self.victim() else { return };
        if self.disks[disk].is_gone() || self.doomed.contains(&disk) {
            return;
        }
        self.summary.failures += 1;
        self.summary.returns += 1;
        self.doomed.insert(disk);
        let removes = self.rng.chance(1, 2);
        self.spawn_return(disk, Some(slot), removes);
    }

    fn spawn_return(&mut self, number: usize, fails: Option<usize>, removes: bool) {
        let (disk, identity) = (self.disks[number].clone(), uuid(&mut self.rng));
        let reach = self.reach(number);
        // The client that the array was taken from may get hold of it first, and lets go of it when it
        // notices.
        let is_sick = self.afflicted.sick.contains(&number) || self.is_contended();
        let joining = self.afflicted.joining(number);
        let shop = Rc::clone(&self.shop);
        let patience = if self.setup.races.is_some() { 20 } else { 0 };
        self.command("return", move |array| async move {
            let name = disk.info().name.clone();
            let work = async {
                if let Some(slot) = fails {
                    match array.fail(slot).await {
                        Ok(()) | Err(CommandError::SlotEmpty(_)) => {}
                        // While others hang, it isn't known whether the array could do without it.
                        Err(CommandError::SlotNeeded(_)) => return Ok(()),
                        Err(error) => return Err(format!("fail: {error}")),
                    }
                }
                if removes {
                    match array.remove(&Removed::Device(name)).await {
                        Ok(_)
                        | Err(
                            CommandError::NoSuchDevice(_)
                            | CommandError::InUse { .. }
                            | CommandError::Io(IoError::MembershipChanged),
                        ) => {}
                        Err(error) => return Err(format!("remove: {error}")),
                    }
                }
                let source = match reach.source().await {
                    Ok(source) => source,
                    // It may have been given back as it was: down.
                    Err(_) if is_sick => return Ok(()),
                    Err(error) => return excused(&reach, error),
                };
                let mut added = array.add(Arc::clone(&source), identity).await;
                for _ in 0..patience {
                    // What it was asked for when it was taken out is soon over.
                    if matches!(added, Err(CommandError::RequestsUnderWay { .. })) {
                        shard::sleep(500_000).await;
                        added = array.add(Arc::clone(&source), identity).await;
                    }
                }
                match added {
                    Ok(Added::Bitmap { .. }) => shop.readds.set(shop.readds.get() + 1),
                    Ok(_) => {}
                    Err(error) => return joined(&disk, is_sick || reach.is_troubled(), error),
                }
                Ok(())
            };
            let result = work.await;
            drop(joining);
            result
        });
    }

    /// A device that holds no slot is taken out of the array for good, or is until it is given back.
    fn remove_a_member(&mut self) {
        let slots = self.array().shared().snapshot().seats.len();
        let which = if self.rng.chance(1, 2) {
            Removed::Slot(self.rng.index(slots))
        } else {
            let disk = self.rng.index(self.disks.len());
            Removed::Device(self.disks[disk].info().name.clone())
        };
        self.command("remove", move |array| async move {
            match array.remove(&which).await {
                Ok(_)
                | Err(
                    CommandError::NoSuchDevice(_)
                    | CommandError::InUse { .. }
                    | CommandError::Io(IoError::MembershipChanged),
                ) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        });
    }

    /// How many spares wait for a slot.
    fn spares(&self) -> usize {
        let members = self.array().members();
        members.iter().filter(|(.., state)| *state == MemberState::Spare).count()
    }

    fn keep_a_spare(&mut self) {
        if self.spares() + self.shop.adds.get() < 2 {
            self.spawn_add();
        }
    }

    /// A whole member is to be replaced: by a new disk, by one that was out, or by a spare.
    pub(crate) fn begin_replacement(&mut self) {
        let snapshot = self.array().shared().snapshot();
        if snapshot.targets.len() > 1 {
            return;
        }
        let slot = self.rng.index(snapshot.seats.len());
        let idle = self.some_idle_disk();
        let has_room = self.net.as_ref().is_none_or(|net| net.has_room(self.disks.len()));
        let with = match (self.rng.below(4), idle) {
            (1, Some(disk)) => {
                self.mend(disk);
                Some(disk)
            }
            (1.., _) if has_room => Some(self.new_disk()),
            _ => None,
        };
        self.summary.replacements += 1;
        let identity = uuid(&mut self.rng);
        let with =
            with.map(|disk| (self.disks[disk].clone(), self.reach(disk), self.afflicted.joining(disk)));
        // The client that the array was taken from may get hold of it first, and lets go of it when it
        // notices.
        let is_contended = self.is_contended();
        self.command("replace", move |array| async move {
            let source = match &with {
                None => None,
                Some((_, reach, _)) => match reach.source().await {
                    Ok(source) => Some(source),
                    Err(error) => return excused(reach, error),
                },
            };
            match (array.replace(slot, source, identity).await, with) {
                (
                    Ok(_)
                    | Err(
                        CommandError::NotReplaceable { .. }
                        | CommandError::OtherSlotEmpty { .. }
                        | CommandError::NoSpare
                        | CommandError::NotTakenIn(_)
                        | CommandError::Io(IoError::MembershipChanged),
                    ),
                    _,
                ) => Ok(()),
                (Err(error), Some((disk, reach, _))) => {
                    joined(&disk, is_contended || reach.is_troubled(), error)
                }
                (Err(error), None) => Err(error.to_string()),
            }
        });
    }

    /// A member hangs for longer than it may; what it was asked for may come late, or never.
    fn hang(&mut self, timeout_ns: u64) {
        let Some((_, disk)) = self.victim() else { return };
        self.summary.failures += 1;
        self.hang_disk(disk, timeout_ns);
    }

    /// Every request to a disk takes longer than any should, though none as long as it may: slow is not dead.
    fn crawl(&mut self) {
        let number = self.rng.index(self.disks.len());
        let disk = &self.disks[number];
        if disk.is_gone() || disk.is_hung() {
            return;
        }
        self.summary.slow += 1;
        disk.fault(&Fault::SlowBy(self.rng.range(SLOWEST..3 * SLOWEST)));
        let until = self.world.now() + self.rng.below(50_000_000);
        disk.plan(Trigger::AtTime(until), Fault::SlowBy(1));
    }

    fn hang_disk(&mut self, disk: usize, timeout_ns: u64) {
        self.summary.hangs += 1;
        self.doomed.insert(disk);
        let disk = &self.disks[disk];
        if disk.is_gone() {
            return;
        }
        disk.fault(&Fault::Hang);
        if self.rng.chance(2, 3) {
            let until = self.world.now() + timeout_ns + self.rng.below(2 * timeout_ns);
            disk.plan(Trigger::AtTime(until), Fault::Release);
        }
    }

    /// A disk that is to take a slot over fails. In the moment in which it takes the slot, the slot may go
    /// with it.
    fn fail_target(&mut self, timeout_ns: u64) {
        let snapshot = self.array().shared().snapshot();
        let is_near = |seat: &Seat| match seat {
            Seat::Replacing { target, .. } => Some(target.name.clone()),
            Seat::Recovering(member) => Some(member.name.clone()),
            _ => None,
        };
        let near: Vec<(bool, String)> = snapshot
            .seats
            .iter()
            .filter_map(|seat| is_near(seat).map(|name| (seat.is_whole(), name)))
            .collect();
        if near.is_empty() {
            return;
        }
        let (needed, name) = near[self.rng.index(near.len())].clone();
        if needed && (self.is_torn() || self.broken() >= usize::from(self.setup.level.parity_count())) {
            return;
        }
        let Some(disk) = self.disks.iter().position(|disk| disk.info().name == name) else { return };
        if self.afflicted.is_joining(disk) {
            return;
        }
        if needed && self.unsynced {
            self.doubt_unwritten();
        }
        self.summary.failures += 1;
        self.doomed.insert(disk);
        match self.rng.below(4) {
            0 | 1 => self.disks[disk].fault(&Fault::Gone),
            2 => self.disks[disk].fault(&Fault::FailFlushes(1)),
            _ => self.hang_disk(disk, timeout_ns),
        }
    }

    /// A member goes at some request of the near future: in the middle of whatever is begun now.
    fn fail_soon(&mut self) {
        let Some((_, disk)) = self.victim() else { return };
        self.summary.failures += 1;
        self.doomed.insert(disk);
        let taken = self.disks[disk].counters();
        let taken = taken.reads + taken.writes + taken.flushes;
        let soon = taken + self.rng.below(24);
        self.disks[disk].plan(Trigger::AtRequest(soon), Fault::Gone);
        match self.rng.below(4) {
            0 => self.begin_replacement(),
            1 => self.spawn_scrub(),
            2 => self.keep_a_spare(),
            _ if self.setup.consistency.settles_by_parity() => self.change_bitmap(),
            _ => {}
        }
    }

    /// Some members are not there when a clean array starts. They are given back later, in whatever order.
    pub(crate) fn leave_some_out(&mut self) -> Result<(), Verdict> {
        let Some(habits) = self.setup.atlas.clone() else { return Ok(()) };
        let most = usize::from(self.setup.level.parity_count());
        if most == 0 || !self.rng.chance(habits.absences, 8) {
            return Ok(());
        }
        let present = self.present();
        let survey = survey(present.iter().map(|(number, disk)| (*number, disk)))?;
        if survey.is_dirty() || survey.whole() < survey.seats.len() {
            return Ok(());
        }
        for _ in 0..=self.rng.index(most) {
            let slot = self.rng.index(survey.seats.len());
            if let Some((disk, _)) = survey.seats[slot] {
                self.summary.failures += 1;
                self.disks[disk].fault(&Fault::Gone);
            }
        }
        if self.unsynced {
            self.doubt_unwritten();
        }
        Ok(())
    }

    /// Whether a spare that works will take an empty slot.
    pub(crate) fn is_spare_coming(&self) -> bool {
        let Some(array) = self.array.as_ref().filter(|_| self.setup.atlas.is_some()) else { return false };
        let members = array.members();
        let works = |name: &str| self.disks.iter().any(|disk| disk.info().name == name && !disk.is_gone());
        let waits = members.iter().any(|(_, name, _, state)| *state == MemberState::Spare && works(name));
        waits && array.shared().snapshot().seats.iter().any(|seat| seat.member().is_none())
    }
}

/// Whether a device may be refused so: by itself, by a race, or because requests to it are late (C16).
fn joined(disk: &SimDisk, is_sick: bool, error: CommandError) -> Result<(), String> {
    match error {
        CommandError::Io(IoError::MembershipChanged)
        | CommandError::NotTakenIn(_)
        | CommandError::RequestsUnderWay { .. }
        | CommandError::AlreadyMember(_) => Ok(()),
        CommandError::Device { .. } if is_sick || disk.is_gone() || disk.is_hung() => Ok(()),
        error => Err(error.to_string()),
    }
}
