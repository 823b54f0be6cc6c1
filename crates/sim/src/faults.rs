//! What can be wrong with a simulated disk, and when it goes wrong.

use std::{collections::BTreeSet, ops::Range};

use crate::medium::SECTOR;

/// A fault, or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Reads of these bytes fail until they are written: latent sector errors.
    UnreadableRange(Range<u64>),
    /// Writes to these bytes fail, until [`Fault::Heal`].
    UnwritableRange(Range<u64>),
    /// This many flushes fail, those among them that forced writes are made of. What they covered is never
    /// made durable by a later flush.
    FailFlushes(u32),
    /// This many requests are refused as busy, untried.
    RefuseRequests(u32),
    /// Nothing completes and nothing reaches the medium until [`Fault::Release`].
    Hang,
    /// Ends [`Fault::Hang`]: what is pending goes on, late writes included.
    Release,
    /// New requests take this many times as long.
    SlowBy(u64),
    /// The device is gone: pending requests fail, whatever they did, and so do all later ones, until
    /// [`Fault::Return`].
    Gone,
    /// The device is back with what it holds, which others may have outrun.
    Return,
    /// Ends unreadable and unwritable ranges, failing or refused requests, and misdirection.
    Heal,
    /// The next write that lies in these bytes lands so many bytes behind its place (and goes on at the
    /// beginning of the range). It is answered as if nothing had happened.
    Misdirect(Range<u64>, u64),
    /// Nothing that was planned happens any more.
    Calm,
}

impl Fault {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::UnreadableRange(_) => "unreadable range",
            Self::UnwritableRange(_) => "unwritable range",
            Self::FailFlushes(_) => "failing flushes",
            Self::RefuseRequests(_) => "refused requests",
            Self::Hang => "hang",
            Self::Release => "release",
            Self::SlowBy(_) => "slow",
            Self::Gone => "gone",
            Self::Return => "return",
            Self::Heal => "heal",
            Self::Misdirect(..) => "misdirected write",
            Self::Calm => "calm",
        }
    }
}

/// Bytes that were written to the wrong place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misplaced {
    /// Where they should be.
    pub wanted: u64,
    /// Where they are.
    pub got: u64,
    /// How many.
    pub length: u64,
}

/// When a planned fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Before the disk takes its request with this number, counted from 0 since it was made.
    AtRequest(u64),
    /// At this moment of the virtual clock.
    AtTime(u64),
}

/// The faults that a disk has now and those that are planned.
pub(crate) struct Faults {
    unreadable: BTreeSet<u64>,
    unwritable: BTreeSet<u64>,
    pub(crate) failing_flushes: u32,
    pub(crate) refusals: u32,
    pub(crate) hung: bool,
    pub(crate) gone: bool,
    pub(crate) slow: u64,
    misdirect: Option<(Range<u64>, u64)>,
    plan: Vec<(Trigger, Fault)>,
}

fn sectors(range: &Range<u64>) -> Range<u64> {
    range.start / SECTOR..range.end.div_ceil(SECTOR)
}

impl Faults {
    pub(crate) fn none() -> Self {
        Self {
            unreadable: BTreeSet::new(),
            unwritable: BTreeSet::new(),
            failing_flushes: 0,
            refusals: 0,
            hung: false,
            gone: false,
            slow: 1,
            misdirect: None,
            plan: Vec::new(),
        }
    }

    pub(crate) fn set(&mut self, fault: &Fault) {
        match fault {
            Fault::UnreadableRange(range) => self.unreadable.extend(sectors(range)),
            Fault::UnwritableRange(range) => self.unwritable.extend(sectors(range)),
            Fault::FailFlushes(count) => self.failing_flushes = *count,
            Fault::RefuseRequests(count) => self.refusals = *count,
            Fault::Hang => self.hung = true,
            Fault::Release => self.hung = false,
            Fault::SlowBy(factor) => self.slow = *factor,
            // A device that was hung and is then declared dead answers with errors.
            Fault::Gone => (self.gone, self.hung) = (true, false),
            Fault::Return => self.gone = false,
            Fault::Misdirect(range, by) => self.misdirect = Some((range.clone(), *by)),
            Fault::Calm => self.plan.clear(),
            Fault::Heal => {
                self.unreadable.clear();
                self.unwritable.clear();
                self.failing_flushes = 0;
                self.refusals = 0;
                self.misdirect = None;
            }
        }
    }

    /// Where a write lands that is now taken.
    pub(crate) fn landing(&mut self, offset: u64, length: u64) -> u64 {
        let Some((range, by)) = &self.misdirect else { return offset };
        if offset < range.start || offset + length > range.end {
            return offset;
        }
        let lands = offset + by;
        let lands = if lands + length <= range.end { lands } else { range.start };
        self.misdirect = None;
        lands
    }

    pub(crate) fn plan(&mut self, trigger: Trigger, fault: Fault) {
        self.plan.push((trigger, fault));
    }

    /// Takes the planned faults that are due, in the order in which they were planned.
    pub(crate) fn ripe(&mut self, now: u64, requests: u64) -> Vec<Fault> {
        if self.plan.is_empty() {
            return Vec::new();
        }
        let due = |trigger: &Trigger| match *trigger {
            Trigger::AtRequest(number) => requests >= number,
            Trigger::AtTime(time) => now >= time,
        };
        self.plan.extract_if(.., |(trigger, _)| due(trigger)).map(|(_, fault)| fault).collect()
    }

    /// When the next fault that has a time happens.
    pub(crate) fn next_time(&self) -> Option<u64> {
        let time = |trigger: &Trigger| if let Trigger::AtTime(time) = *trigger { Some(time) } else { None };
        self.plan.iter().filter_map(|(trigger, _)| time(trigger)).min()
    }

    pub(crate) fn unreadable(&self, offset: u64, length: u64) -> bool {
        self.unreadable.range(sectors(&(offset..offset + length))).next().is_some()
    }

    pub(crate) fn unwritable(&self, offset: u64, length: u64) -> bool {
        self.unwritable.range(sectors(&(offset..offset + length))).next().is_some()
    }

    /// A write reached these bytes: they can be read again.
    pub(crate) fn written(&mut self, offset: u64, length: u64) {
        if !self.unreadable.is_empty() {
            for sector in sectors(&(offset..offset + length)) {
                self.unreadable.remove(&sector);
            }
        }
    }
}
