//! The membership: which member holds which slot, as one immutable value with a generation (C1).

use std::{ops::Range, rc::Rc, sync::Arc};

use pinstripe_md::bad_block_table::BadBlockTable;
use pinstripe_runtime::Device;

pub use crate::members::MemberId;
use crate::{
    consistency::Log,
    geometry::{Set64, StripeMap},
    intent::IntentTable,
    members::Member,
    membership::attached::Attached,
    mutants::{Mutant, active},
    units::to_u32,
};

/// What holds a slot.
#[derive(Clone)]
pub enum Seat {
    /// Nothing.
    Empty,
    /// A member that has everything.
    InSync(Arc<Member>),
    /// A member that is being rebuilt: it gets every write, and no read.
    Recovering(Arc<Member>),
    /// A member that has everything, and the one that is to take its place: that gets every write too, and no
    /// read.
    Replacing {
        /// The member that has everything.
        member: Arc<Member>,
        /// The device that is being copied to.
        target: Arc<Member>,
    },
}

impl Seat {
    /// The member that holds the slot and takes its writes.
    pub fn member(&self) -> Option<&Arc<Member>> {
        match self {
            Self::Empty => None,
            Self::InSync(member) | Self::Recovering(member) | Self::Replacing { member, .. } => Some(member),
        }
    }

    /// The device that is to replace the member, and takes every write too.
    pub fn target(&self) -> Option<&Arc<Member>> {
        match self {
            Self::Replacing { target, .. } => Some(target),
            _ => None,
        }
    }

    /// Whether the slot's member has everything.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::InSync(_) | Self::Replacing { .. })
    }
}

/// What is new in a snapshot.
pub(crate) enum Change {
    /// Slots are held otherwise.
    Seats(Vec<Seat>),
    /// Writes are noted in another table.
    Intent(Arc<IntentTable>),
    /// There is another log, or none.
    Log(Log),
    /// The members' servers know this membership.
    Offload(Arc<Attached>),
    /// A member's log lists other sectors.
    BadBlocks,
}

/// See the module.
#[derive(Clone)]
pub struct Snapshot {
    /// Counts the changes.
    pub generation: u64,
    /// By slot.
    pub seats: Vec<Seat>,
    /// Slots that can't be read: empty or recovering.
    pub missing: Set64,
    /// Slots of members that are being rebuilt.
    pub recovering: Set64,
    /// Slots of members with known bad blocks.
    pub with_bad_blocks: Set64,
    /// By slot: what its member's log lists.
    bad_blocks: Vec<Option<Arc<BadBlockTable>>>,
    /// The generation of the last change that was more than one of the bad blocks.
    pub membership: u64,
    /// The targets of replacements, each with its slot.
    pub replacements: Vec<(usize, Arc<Member>)>,
    /// The write intent that goes with this membership.
    pub intent: Arc<IntentTable>,
    /// The log that goes with this membership.
    pub log: Log,
    /// The members with servers that compute; `None` until the servers know this membership.
    pub offload: Option<Arc<Attached>>,
}

impl Snapshot {
    /// A snapshot with the sets made from the seats.
    pub fn new(generation: u64, seats: Vec<Seat>, intent: Arc<IntentTable>, log: Log) -> Self {
        let slots = |wanted: fn(&Seat) -> bool| -> Set64 {
            (0..seats.len()).filter(|&slot| wanted(&seats[slot])).collect()
        };
        let missing = slots(|s| !s.is_whole());
        let recovering = slots(|s| matches!(s, Seat::Recovering(_)));
        let target = |(slot, seat): (usize, &Seat)| Some((slot, Arc::clone(seat.target()?)));
        let replacements = seats.iter().enumerate().filter_map(target).collect();
        let mut snapshot = Self {
            replacements,
            generation,
            missing,
            recovering,
            with_bad_blocks: Set64::EMPTY,
            bad_blocks: Vec::new(),
            membership: generation,
            intent,
            log,
            seats,
            offload: None,
        };
        snapshot.look_at_bad_blocks();
        snapshot
    }

    /// The members with servers that take part now; `None` if there are none.
    pub(crate) fn attached(&self) -> Option<&Arc<Attached>> {
        self.offload.as_ref().filter(|attached| !attached.slots.is_empty())
    }

    /// The snapshot after this one.
    pub(crate) fn next(&self, change: Change) -> Self {
        let generation = self.generation + 1;
        let (seats, intent, log) = (self.seats.clone(), Arc::clone(&self.intent), self.log.clone());
        match change {
            Change::Seats(seats) => Self::new(generation, seats, intent, log),
            Change::Intent(intent) => Self::new(generation, seats, intent, log),
            Change::Log(log) => Self::new(generation, seats, intent, log),
            Change::Offload(attached) => Self { generation, offload: Some(attached), ..self.clone() },
            Change::BadBlocks => {
                let mut next = Self { generation, ..self.clone() };
                next.look_at_bad_blocks();
                next
            }
        }
    }

    /// Takes over what the members' logs list now.
    fn look_at_bad_blocks(&mut self) {
        let table = |seat: &Seat| seat.member().map(|member| member.bad_blocks.table());
        self.bad_blocks = self.seats.iter().map(table).collect();
        let lists =
            |slot: &usize| self.bad_blocks[*slot].as_ref().is_some_and(|table| !table.blocks().is_empty());
        self.with_bad_blocks = (0..self.seats.len()).filter(lists).collect();
    }

    /// Whether a range of a slot's member (in bytes, relative to its data) overlaps a known bad block.
    pub fn is_bad(&self, slot: usize, offset: u64, length: u64) -> bool {
        self.first_bad(slot, offset, length).is_some()
    }

    /// Where the first known bad block is in a range of a slot's member, in bytes from the range's beginning.
    fn first_bad(&self, slot: usize, offset: u64, length: u64) -> Option<Range<u64>> {
        let table = self.bad_blocks.get(slot).filter(|_| self.with_bad_blocks.contains(slot))?.as_ref()?;
        let start = self.seats[slot].member()?.data_offset + offset;
        let bad = table.blocks().first_overlap(start / 512..(start + length).div_ceil(512))?;
        Some((bad.start * 512).saturating_sub(start)..(bad.end * 512).saturating_sub(start).min(length))
    }

    /// Whether all of a range of a slot's member is known to be bad.
    fn is_all_bad(&self, slot: usize, offset: u64, length: u64) -> bool {
        let mut from = 0;
        while from < length {
            match self.first_bad(slot, offset + from, length - from) {
                Some(bad) if bad.start == 0 => from += bad.end,
                _ => return false,
            }
        }
        true
    }

    /// Whether no member has the parity of a range of member bytes: the members of P and Q are missing, or
    /// list it as bad. Its data is written without. The target of a replacement would have to list it too.
    pub(crate) fn is_bare(&self, map: StripeMap, offset: u64, length: u64) -> bool {
        map.parity_slots().all(|slot| self.has_none_of(slot.index(), offset, length))
    }

    /// Whether a slot's member has nothing of a range: there is none, or it lists all of it as bad, and
    /// neither has the target of a replacement.
    pub(crate) fn has_none_of(&self, slot: usize, offset: u64, length: u64) -> bool {
        let seat = &self.seats[slot];
        seat.target().is_none() && (seat.member().is_none() || self.is_all_bad(slot, offset, length))
    }

    /// Whether what a journal has acknowledged can always be brought to the members: each of them has
    /// everything, and can list what it can't take (`io/write/back.rs`).
    pub(crate) fn can_write_back(&self) -> bool {
        let lists = |seat: &Seat| seat.member().is_some_and(|member| member.bad_blocks.place().is_some());
        self.is_complete() && self.seats.iter().all(lists)
    }

    /// Slots that can't even be written.
    pub fn absent(&self) -> Set64 {
        self.missing.without(self.recovering)
    }

    /// Whether every slot is held by a member that has everything.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// Whether enough members that have everything stay when all go of which `goes` says so: whatever may
    /// cost a member its place asks this, and says which others it takes for lost.
    pub(crate) fn can_do_without(&self, redundancy: usize, goes: impl Fn(&Member) -> bool) -> bool {
        let stays = |seat: &&Seat| seat.is_whole() && seat.member().is_some_and(|member| !goes(member));
        self.seats.iter().filter(stays).count() + redundancy >= self.seats.len()
    }

    /// The slot that `member` holds, or is to take over.
    pub fn slot_of(&self, member: MemberId) -> Option<usize> {
        let is = |m: &Arc<Member>| m.id == member;
        self.seats.iter().position(|seat| seat.member().is_some_and(is) || seat.target().is_some_and(is))
    }
}

/// A snapshot with one shard's device handles.
///
/// They are counted by *place*: the slots, and behind them the targets of replacements. What is to reach
/// every device (a flush, say) goes over all places; what is written to a slot goes to [`View::places`].
pub struct View {
    /// The membership.
    pub snapshot: Arc<Snapshot>,
    /// The devices by place, `None` where the seat is empty.
    pub devices: Vec<Option<Rc<dyn Device>>>,
    /// Several of them are reached over the one link that this host has.
    pub shares_link: bool,
    /// Whether nothing is rebuilt, logged or listed, and all is in memory, so that a column that is there may
    /// be changed where it lies.
    pub in_place: bool,
}

impl View {
    /// The member and device of a place, if it is held.
    pub fn member(&self, place: usize) -> Option<(&Arc<Member>, &Rc<dyn Device>)> {
        let slots = self.snapshot.seats.len();
        let member = match place.checked_sub(slots) {
            None => self.snapshot.seats[place].member(),
            Some(number) => self.snapshot.replacements.get(number).map(|(_, target)| target),
        };
        member.zip(self.devices.get(place).and_then(Option::as_ref))
    }

    /// The slot that a place belongs to.
    pub fn slot_at(&self, place: usize) -> usize {
        let number = place.checked_sub(self.snapshot.seats.len());
        number.and_then(|number| self.snapshot.replacements.get(number)).map_or(place, |(slot, _)| *slot)
    }

    /// Where the target of a slot's replacement is, if there is one.
    pub fn replacement_place(&self, slot: usize) -> Option<usize> {
        let number = self.snapshot.replacements.iter().position(|(replaced, _)| *replaced == slot)?;
        Some(self.snapshot.seats.len() + number)
    }

    /// The places that take what is written to a slot: the slot itself, and the target of its replacement
    /// (C1).
    pub fn places(&self, slot: usize) -> impl Iterator<Item = usize> + use<> {
        let target = if active(Mutant::ReplacementNotWritten) { None } else { self.replacement_place(slot) };
        std::iter::once(slot).chain(target)
    }

    /// The member and device of a slot that has everything, if `length` bytes at member offset `offset` are
    /// not known to be bad there.
    pub fn readable(&self, slot: usize, offset: u64, length: u64) -> Option<(&Arc<Member>, &Rc<dyn Device>)> {
        let recovering = active(Mutant::RecoveringRead) && self.snapshot.recovering.contains(slot);
        if self.snapshot.missing.contains(slot) && !recovering {
            return None;
        }
        let place = self.replacement_place(slot).filter(|_| active(Mutant::ReplacementRead)).unwrap_or(slot);
        self.member(place).filter(|_| !self.snapshot.is_bad(slot, offset, length))
    }
}

impl View {
    /// How far of the range `from..to` of a chunk (at `base` of the members' data) each slot is either listed
    /// as bad or is not. At the next multiple of `grain` at the least: a grain that is listed in part is one
    /// by itself.
    ///
    /// What one sector's parity makes of a member must not stand in for sectors that the member has (C10).
    pub fn uniform(&self, base: u64, (from, to): (u32, u32), grain: u32) -> u32 {
        let mut end = to;
        let listed = self.snapshot.with_bad_blocks.without(self.snapshot.missing);
        let listed = if active(Mutant::ListedTakesChunk) { Set64::EMPTY } else { listed };
        for slot in listed {
            let bad = self.snapshot.first_bad(slot, base + u64::from(from), (end - from).into());
            let Some(bad) = bad else { continue };
            let change = if bad.start > 0 { bad.start } else { bad.end };
            let change = from + to_u32(change);
            if change < end {
                end = (change / grain * grain).max((from / grain + 1) * grain).min(end);
            }
        }
        end
    }

    /// The slots that can't be read in a range of member bytes: missing, being rebuilt, or with a known bad
    /// block there.
    pub fn unreadable(&self, offset: u64, length: u64) -> Set64 {
        let mut slots = self.snapshot.missing;
        for slot in self.snapshot.with_bad_blocks {
            if self.snapshot.is_bad(slot, offset, length) {
                slots.insert(slot);
            }
        }
        slots
    }
}
