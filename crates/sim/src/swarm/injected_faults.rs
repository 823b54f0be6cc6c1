//! What was done to which disk: which of them may the array drop, and which must come back?

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use pinstripe_engine::{error::Operation, members::MemberId, membership::MemberState};

/// A disk as the engine has it: as which member, and in which state. `None` if it isn't known.
pub(crate) type Standing = Option<(MemberId, MemberState)>;

/// See the module. Disks go by their numbers.
#[derive(Default)]
pub(crate) struct InjectedFaults {
    /// Disks that were given a fault for which the engine shall drop them.
    doomed: BTreeSet<usize>,
    /// Disks that went in an outage and will be back.
    outage: BTreeSet<usize>,
    /// As which member a doomed disk was doomed: when it is another one, it is well.
    doomed_as: BTreeMap<usize, MemberId>,
    /// Disks that may be dropped in this life.
    blamed: BTreeSet<usize>,
    /// Disks that were given back as they were.
    sick: BTreeSet<usize>,
    /// Disks on the way in.
    joining: Rc<RefCell<BTreeSet<usize>>>,
    /// Disks that were to be taken out, and are needed.
    spared: Rc<RefCell<BTreeSet<usize>>>,
    /// Sectors were made unwritable where users write.
    scratched: bool,
}

impl InjectedFaults {
    /// A life begins: but for what disks still have, whatever was, was.
    pub(crate) fn begin_life(&mut self) {
        let (doomed, outage) = (std::mem::take(&mut self.doomed), std::mem::take(&mut self.outage));
        *self = Self { doomed, outage, ..Self::default() };
    }

    /// The engine shall drop this disk.
    pub(crate) fn doom(&mut self, disk: usize) {
        self.doomed.insert(disk);
    }

    pub(crate) fn is_doomed(&self, disk: usize) -> bool {
        self.doomed.contains(&disk)
    }

    /// The disks that the engine shall drop.
    pub(crate) fn doomed(&self) -> &BTreeSet<usize> {
        &self.doomed
    }

    /// Every disk has been healed.
    pub(crate) fn heal(&mut self) {
        self.doomed.clear();
    }

    /// These disks are out of reach in an outage, and will be back.
    pub(crate) fn lose_in_outage(&mut self, disks: impl IntoIterator<Item = usize>) {
        self.outage.extend(disks);
    }

    /// Whether a disk comes back at the end of the outage.
    pub(crate) fn is_in_outage(&self, disk: usize) -> bool {
        self.outage.contains(&disk)
    }

    /// The outage is over.
    pub(crate) fn end_outage(&mut self) {
        self.outage.clear();
    }

    /// These disks may be dropped in this life.
    pub(crate) fn excuse(&mut self, disks: impl IntoIterator<Item = usize>) {
        self.blamed.extend(disks);
    }

    /// A disk is given back as it is.
    pub(crate) fn give_back_sick(&mut self, disk: usize) {
        self.doom(disk);
        self.sick.insert(disk);
    }

    /// A disk is well before it is given back.
    pub(crate) fn mend(&mut self, disk: usize) {
        self.sick.remove(&disk);
    }

    /// Whether a disk was given back as it was.
    pub(crate) fn is_sick(&self, disk: usize) -> bool {
        self.sick.contains(&disk)
    }

    /// Whether a disk is on its way in, or out and in, or stays although a command was to take it out.
    pub(crate) fn is_joining(&self, disk: usize) -> bool {
        self.joining.borrow().contains(&disk) || self.spared.borrow().contains(&disk)
    }

    /// Says that a disk is on its way in.
    pub(crate) fn joining(&self, disk: usize) -> Joining {
        self.joining.borrow_mut().insert(disk);
        Joining { disk, all: Rc::clone(&self.joining) }
    }

    /// Where a command says that a disk is needed which it was to take out.
    pub(crate) fn spared(&self) -> Rc<RefCell<BTreeSet<usize>>> {
        Rc::clone(&self.spared)
    }

    /// Sectors are made unwritable where users write.
    pub(crate) fn scratch(&mut self) {
        self.scratched = true;
    }

    pub(crate) fn has_scratched(&self) -> bool {
        self.scratched
    }

    /// Looks at what the disks are by now. Those that are well: they came back as other members, which has
    /// left their faults behind.
    pub(crate) fn take_stock(&mut self, standings: &[Standing]) -> Vec<usize> {
        for disk in self.spared.take() {
            self.forget(disk);
        }
        let mut well = Vec::new();
        for &disk in &self.doomed {
            self.blamed.insert(disk);
            let Some((id, state)) = &standings[disk] else { continue };
            let is_out = matches!(state, MemberState::Failed(_) | MemberState::Removed);
            let is_another = *self.doomed_as.entry(disk).or_insert(*id) != *id;
            if is_another && !is_out && !self.sick.contains(&disk) {
                well.push(disk);
            }
        }
        for &disk in &well {
            self.forget(disk);
        }
        well
    }

    /// Whatever a disk was doomed for is over.
    pub(crate) fn forget(&mut self, disk: usize) {
        self.doomed.remove(&disk);
        self.doomed_as.remove(&disk);
    }

    /// The error of a disk that was dropped without a reason.
    pub(crate) fn unexcused(&self, standings: &[Standing]) -> Option<String> {
        standings.iter().enumerate().find_map(|(disk, standing)| match standing {
            Some((_, MemberState::Failed(error)))
                if !self.blamed.contains(&disk)
                    && !self.outage.contains(&disk)
                    && error.operation != Operation::Replacement =>
            {
                Some(error.to_string())
            }
            _ => None,
        })
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
