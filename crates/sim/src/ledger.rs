//! The oracle: which values may a sector of the user's address space hold now?
//!
//! It knows what clients asked for and what they were told, and nothing of the code under test. A sector is a
//! register with concurrent writers. Its *versions* are the operations that could have set it; times are the
//! order of calls to the ledger: issued before the request was made, finished after its answer was seen, so
//! that intervals are never shorter than the truth and every verdict is sound.
//!
//! **Order.** V *precedes* W if V had finished when W was issued (and W did happen: it was acknowledged, or
//! was seen), or if a read that began after V had finished saw W. The relation is transitive.
//!
//! **A read** that began at s may see V unless some W that V precedes had landed before s: was acknowledged,
//! or had been seen by a read that ended, before s. So once a write in flight was seen, nothing older may
//! come back, and of two concurrent writes, once one was seen after both had finished, the other is gone.
//!
//! **Durability.** A version is durable if it was acknowledged before a flush was issued that succeeded, or
//! was acknowledged and forced. After a power loss a sector may hold V unless V precedes a durable version.
//! The survivors are then all equal: finished, durable (the media hold one of them), in no order, until a
//! read shows which it is.
//!
//! **Doubt.** A write that failed may have happened or not, and until a later write succeeds reads need not
//! agree on it. A discard leaves each sector as it was or zero, for good. [`Ledger::doubt`] takes back all
//! promises for a range.

mod history;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
};

use crate::stamp::{self, Contents};
use history::{History, Kind, ORIGIN};

/// An operation that changes contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(u64);

/// A flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlushId(u64);

/// A read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadId(u64);

/// What is wrong with a sector that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It holds an older value than it may: a write was lost, or a stale copy was read.
    Stale,
    /// It holds the data of another sector.
    Misplaced,
    /// It holds what no write ever wrote, or parts of several.
    Damaged,
    /// It holds a write that never covered it, or one that was never issued.
    Foreign,
}

/// A sector that holds what it may not.
#[derive(Clone, Debug, thiserror::Error)]
#[error("sector {sector}: {wrong:?}: it holds {found:?}, but may hold only {legal:?}\n{history}")]
pub struct Violation {
    /// The sector.
    pub sector: u64,
    /// What kind of wrong it is.
    pub wrong: Wrong,
    /// What was read.
    pub found: Contents,
    /// What might have been read: numbers of writes, 0 being the zeroes of the beginning.
    pub legal: Vec<u64>,
    /// The sector's versions in words.
    pub history: String,
}

#[derive(Clone)]
struct Read {
    sectors: Range<u64>,
    started: u64,
}

/// The oracle. See the module.
#[derive(Clone)]
pub struct Ledger {
    sectors: u64,
    now: u64,
    ids: u64,
    history: History,
    reads: BTreeMap<ReadId, Read>,
    /// By the later of two ordered writes in flight: the earlier.
    orders: BTreeMap<WriteId, WriteId>,
    /// When each open flush was issued.
    flushes: BTreeMap<FlushId, u64>,
    /// Sectors of which nothing is promised until a write issued later succeeds.
    doubted: BTreeMap<u64, u64>,
}

impl Ledger {
    /// A ledger of `sectors` sectors of zeroes.
    pub fn new(sectors: u64) -> Self {
        Self {
            sectors,
            now: 0,
            ids: 0,
            history: History::new(sectors),
            reads: BTreeMap::new(),
            orders: BTreeMap::new(),
            flushes: BTreeMap::new(),
            doubted: BTreeMap::new(),
        }
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn take_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    fn begin(&mut self, kind: Kind, sectors: Range<u64>, forced: bool) -> WriteId {
        assert!(sectors.end <= self.sectors, "sectors {sectors:?} of {}", self.sectors);
        let (id, issued) = (WriteId(self.take_id()), self.tick());
        self.history.begin(id, kind, sectors, forced, issued);
        id
    }

    /// A write from `sector` on is about to be submitted. Fills `data` (whole sectors) with what it shall
    /// write.
    pub fn begin_write(&mut self, sector: u64, data: &mut [u8], forced: bool) -> WriteId {
        let sectors = sector..sector + (data.len() / stamp::BYTES) as u64;
        let id = self.begin(Kind::Write, sectors.clone(), forced);
        for (sector, bytes) in sectors.zip(data.chunks_exact_mut(stamp::BYTES)) {
            stamp::stamp(bytes, id.0, sector);
        }
        id
    }

    /// Of these two writes, both in flight, the volume promises that `later` wins wherever both cover a
    /// sector. It counts once `later` is acknowledged: a crash may leave the earlier one alone.
    pub fn order(&mut self, earlier: WriteId, later: WriteId) {
        self.orders.insert(later, earlier);
    }

    /// Zeroing is about to be asked for.
    pub fn begin_zeroes(&mut self, sectors: Range<u64>, forced: bool) -> WriteId {
        self.begin(Kind::Zeroes, sectors, forced)
    }

    /// A discard is about to be asked for, of a volume that leaves each discarded sector as it was or zero.
    pub fn begin_discard(&mut self, sectors: Range<u64>, forced: bool) -> WriteId {
        self.begin(Kind::Discard, sectors, forced)
    }

    /// The answer to a write, zeroing or discard was seen.
    pub fn complete_write(&mut self, id: WriteId, succeeded: bool) {
        let now = self.tick();
        if let Some(earlier) = self.orders.remove(&id).filter(|_| succeeded) {
            self.history.order(earlier, id);
        }
        let durable = self.history.finish(id, succeeded, now);
        self.prune(durable);
    }

    /// A zeroing was refused untried: it never was.
    pub fn revoke(&mut self, id: WriteId) {
        self.tick();
        self.history.revoke(id);
    }

    /// A flush is about to be submitted.
    pub fn begin_flush(&mut self) -> FlushId {
        let (id, issued) = (FlushId(self.take_id()), self.tick());
        self.flushes.insert(id, issued);
        id
    }

    /// The answer to a flush was seen.
    pub fn complete_flush(&mut self, id: FlushId, succeeded: bool) {
        self.tick();
        let Some(issued) = self.flushes.remove(&id).filter(|_| succeeded) else { return };
        let durable = self.history.flush(issued);
        self.prune(durable);
    }

    /// A read is about to be submitted.
    pub fn begin_read(&mut self, sectors: Range<u64>) -> ReadId {
        let (id, started) = (ReadId(self.take_id()), self.tick());
        self.reads.insert(id, Read { sectors, started });
        id
    }

    /// The read failed, or no task waits for it any more.
    pub fn abandon_read(&mut self, id: ReadId) {
        self.reads.remove(&id);
    }

    /// The read has answered `bytes`: checks every sector and remembers what was seen.
    pub fn check_read(&mut self, id: ReadId, bytes: &[u8]) -> Result<(), Violation> {
        let now = self.tick();
        let Some(read) = self.reads.remove(&id) else { return Ok(()) };
        for (sector, bytes) in read.sectors.clone().zip(bytes.chunks_exact(stamp::BYTES)) {
            self.check_sector(sector, stamp::decode(bytes), read.started, now)?;
        }
        Ok(())
    }

    /// Power loss: everything in flight is cut off, and what was not durable may be gone.
    pub fn crash(&mut self) {
        let now = self.tick();
        self.reads.clear();
        self.orders.clear();
        self.flushes.clear();
        for (sector, since) in std::mem::take(&mut self.doubted) {
            // A doubt outlives a crash unless what cured it was durable.
            if !self.history.is_rewritten_durably(sector, since) {
                self.doubted.insert(sector, now);
            }
        }
        self.history.lose_power(now);
    }

    /// Whether `sector` may hold `found` after a power loss now. Nothing is changed.
    pub fn survives(&self, sector: u64, found: Contents) -> bool {
        let doubted = self.doubted.get(&sector);
        doubted.is_some_and(|&since| !self.history.is_rewritten_durably(sector, since))
            || self.history.survives(sector, found)
    }

    /// The process died, the machine did not: everything in flight is cut off, nothing that was acknowledged
    /// is lost.
    pub fn kill(&mut self) {
        let now = self.tick();
        self.reads.clear();
        self.orders.clear();
        self.flushes.clear();
        self.history.cut_off(now);
    }

    /// Nothing is promised of these sectors any more until a write that is issued later succeeds.
    pub fn doubt(&mut self, sectors: Range<u64>) {
        let now = self.tick();
        self.doubted.extend(sectors.map(|sector| (sector, now)));
    }

    /// Sectors in rows that a crash now may leave half written: with `power` those of every write that isn't
    /// known to be durable, without it (the process alone dies) those of writes in flight or failed.
    pub fn unsettled(&self, power: bool) -> BTreeSet<u64> {
        self.history.unsettled(power)
    }

    /// Nothing is promised any more of sectors that may still hold the zeroes of the beginning.
    pub fn doubt_unwritten(&mut self) {
        let unwritten: Vec<u64> = (0..self.sectors).filter(|&s| self.legal(s).contains(&ORIGIN.0)).collect();
        for sector in unwritten {
            self.doubt(sector..sector + 1);
        }
    }

    /// The writes, by number, that a read of `sector` may return if it starts now; 0 is the first zeroes.
    pub fn legal(&self, sector: u64) -> Vec<u64> {
        self.history.legal(sector, self.now + 1).map(|write| write.0).collect()
    }

    /// Sectors that were ever written, in order: what a final check must read.
    pub fn written(&self) -> impl Iterator<Item = u64> {
        self.history.written()
    }

    fn check_sector(
        &mut self,
        sector: u64,
        found: Contents,
        started: u64,
        now: u64,
    ) -> Result<(), Violation> {
        if self.is_doubted(sector, started) {
            return Ok(());
        }
        match self.history.legal_as(sector, found, started)[..] {
            [] => Err(self.violation(sector, found, started)),
            [seen] => {
                self.history.settle(sector, seen, started, now);
                Ok(())
            }
            // Several operations left the same zeroes: which one was seen is unknown, so nothing follows.
            _ => Ok(()),
        }
    }

    fn violation(&self, sector: u64, found: Contents, started: u64) -> Violation {
        let wrong = match found {
            Contents::Damaged { .. } => Wrong::Damaged,
            Contents::Stamped { sector: at, .. } if at != sector => Wrong::Misplaced,
            Contents::Stamped { write, .. } if write > self.ids => Wrong::Foreign,
            Contents::Stamped { .. } | Contents::Zero => Wrong::Stale,
        };
        let legal = self.history.legal(sector, started).map(|write| write.0).collect();
        let history = format!("read started at {started}\n{}", self.history.describe(sector));
        Violation { sector, wrong, found, legal, history }
    }

    fn is_doubted(&self, sector: u64, started: u64) -> bool {
        let doubted = self.doubted.get(&sector);
        doubted.is_some_and(|&since| !self.history.is_rewritten(sector, since, started))
    }

    /// Forgets versions that no open or later read may return, whatever crashes.
    fn prune(&mut self, sectors: impl IntoIterator<Item = u64>) {
        let first_read = self.reads.values().map(|read| read.started).min().unwrap_or(self.now + 1);
        for sector in sectors {
            self.history.prune(sector, first_read);
        }
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ledger of {} sectors, {} writes known", self.sectors, self.history.len())
    }
}
