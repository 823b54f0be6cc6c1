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

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
};

use crate::stamp::{self, Contents};

/// An operation that changes contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(u64);

/// A flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlushId(u64);

/// A read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadId(u64);

/// The zeroes that every sector holds at first.
const ORIGIN: WriteId = WriteId(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Zeroes,
    Discard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// Not answered.
    Open,
    /// Acknowledged.
    Done,
    /// Answered with an error.
    Failed,
    /// The process died before the answer: it happened or it did not.
    Cut,
    /// It may be what a power loss left.
    Survived,
}

#[derive(Clone, Debug)]
struct Write {
    kind: Kind,
    sectors: Range<u64>,
    forced: bool,
    issued: u64,
    finished: Option<u64>,
    status: Status,
    durable: bool,
    /// Sectors that still list it.
    versions: u64,
}

impl Write {
    /// Whether it did happen, whole.
    fn is_certain(&self) -> bool {
        match self.status {
            Status::Done => self.kind != Kind::Discard,
            Status::Survived => true,
            Status::Open | Status::Failed | Status::Cut => false,
        }
    }

    fn finished_before(&self, time: u64) -> bool {
        self.finished.is_some_and(|finished| finished < time)
    }
}

/// A write as one sector sees it.
#[derive(Clone, Debug)]
struct Version {
    write: WriteId,
    /// End of the first read that saw it.
    seen: Option<u64>,
    /// Writes that a read showed to be newer.
    before: Vec<WriteId>,
}

impl Version {
    fn new(write: WriteId) -> Self {
        Self { write, seen: None, before: Vec::new() }
    }
}

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
    writes: BTreeMap<WriteId, Write>,
    /// Versions of the sectors that were ever written; the others hold the origin.
    versions: BTreeMap<u64, Vec<Version>>,
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
        let origin = Write {
            kind: Kind::Zeroes,
            sectors: 0..sectors,
            forced: false,
            issued: 0,
            finished: Some(0),
            status: Status::Done,
            durable: true,
            versions: 1,
        };
        Self {
            sectors,
            now: 0,
            ids: 0,
            writes: BTreeMap::from([(ORIGIN, origin)]),
            versions: BTreeMap::new(),
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
        for sector in sectors.clone() {
            self.versions.entry(sector).or_insert_with(|| vec![Version::new(ORIGIN)]).push(Version::new(id));
        }
        let versions = sectors.end - sectors.start;
        let (finished, status) = (None, Status::Open);
        self.writes
            .insert(id, Write { kind, sectors, forced, issued, finished, status, durable: false, versions });
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

    fn apply_order(&mut self, later: WriteId) {
        let Some(earlier) = self.orders.remove(&later) else { return };
        let Some(sectors) = self.writes.get(&earlier).map(|write| write.sectors.clone()) else { return };
        for sector in sectors {
            let Some(versions) = self.versions.get_mut(&sector) else { continue };
            if versions.iter().any(|version| version.write == later)
                && let Some(version) = versions.iter_mut().find(|version| version.write == earlier)
            {
                version.before.push(later);
            }
        }
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
        if succeeded {
            self.apply_order(id);
        }
        let Some(write) = self.writes.get_mut(&id) else { return };
        write.finished = Some(now);
        write.status = if succeeded { Status::Done } else { Status::Failed };
        write.durable = succeeded && write.forced;
        let sectors = write.sectors.clone();
        if write.durable {
            self.prune(sectors);
        }
    }

    /// A zeroing was refused untried: it never was.
    pub fn revoke(&mut self, id: WriteId) {
        self.tick();
        let Some(write) = self.writes.remove(&id) else { return };
        for sector in write.sectors {
            if let Some(versions) = self.versions.get_mut(&sector) {
                versions.retain(|version| version.write != id);
                for version in versions {
                    version.before.retain(|after| *after != id);
                }
            }
        }
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
        let mut sectors = BTreeSet::new();
        for write in self.writes.values_mut() {
            let kept = matches!(write.status, Status::Done | Status::Cut);
            if kept && !write.durable && write.finished_before(issued) {
                write.durable = true;
                sectors.extend(write.sectors.clone());
            }
        }
        for sector in sectors {
            self.prune(sector..sector + 1);
        }
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
        let sectors: Vec<u64> = self.versions.keys().copied().collect();
        let mut survivors = BTreeSet::new();
        let doubted: Vec<u64> = self.doubted.keys().copied().collect();
        for sector in doubted {
            self.crash_doubt(sector, now);
        }
        for sector in sectors {
            self.retain(sector, |ledger, versions, version| {
                !ledger.durable_after(versions, version).any(|_| true)
            });
            for version in self.versions.get_mut(&sector).into_iter().flatten() {
                survivors.insert(version.write);
                *version = Version::new(version.write);
            }
        }
        for id in survivors {
            if let Some(write) = self.writes.get_mut(&id) {
                (write.status, write.durable) = (Status::Survived, true);
                (write.issued, write.finished) = (now, Some(now));
            }
        }
    }

    /// Whether `sector` may hold `found` after a power loss now. Nothing is changed.
    pub fn survives(&self, sector: u64, found: Contents) -> bool {
        if self.doubted.get(&sector).is_some_and(|&since| !self.is_cured_durably(sector, since)) {
            return true;
        }
        let origin = [Version::new(ORIGIN)];
        let versions = self.versions.get(&sector).map_or(&origin[..], |versions| &versions[..]);
        versions
            .iter()
            .any(|v| self.holds(v, found, sector) && !self.durable_after(versions, v).any(|_| true))
    }

    /// Whether a write that was issued after `since` is durable in `sector`.
    fn is_cured_durably(&self, sector: u64, since: u64) -> bool {
        let cures = |w: &Write| w.durable && w.is_certain() && w.issued > since;
        let cured = |v: &Version| self.writes.get(&v.write).is_some_and(cures);
        self.versions.get(&sector).into_iter().flatten().any(cured)
    }

    /// The process died, the machine did not: everything in flight is cut off, nothing that was acknowledged
    /// is lost.
    pub fn kill(&mut self) {
        let now = self.tick();
        self.reads.clear();
        self.orders.clear();
        self.flushes.clear();
        for write in self.writes.values_mut().filter(|write| write.status == Status::Open) {
            (write.status, write.finished) = (Status::Cut, Some(now));
        }
    }

    /// Nothing is promised of these sectors any more until a write that is issued later succeeds.
    pub fn doubt(&mut self, sectors: Range<u64>) {
        let now = self.tick();
        self.doubted.extend(sectors.map(|sector| (sector, now)));
    }

    /// Sectors in rows that a crash now may leave half written: with `power` those of every write that isn't
    /// known to be durable, without it (the process alone dies) those of writes in flight or failed.
    pub fn unsettled(&self, power: bool) -> BTreeSet<u64> {
        let unsettled =
            |w: &&Write| if power { !w.durable } else { matches!(w.status, Status::Open | Status::Failed) };
        self.writes.values().filter(unsettled).flat_map(|write| write.sectors.clone()).collect()
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
        let Some(versions) = self.versions.get(&sector) else { return vec![ORIGIN.0] };
        let legal = versions.iter().filter(|v| self.is_legal(versions, v, self.now + 1));
        legal.map(|version| version.write.0).collect()
    }

    /// Sectors that were ever written, in order: what a final check must read.
    pub fn written(&self) -> impl Iterator<Item = u64> {
        self.versions.keys().copied()
    }

    /// Whether V, a version of a sector, precedes `later`, another of its `versions`.
    fn precedes(&self, versions: &[Version], earlier: &Version, later: &Version) -> bool {
        let mut visited = vec![earlier.write];
        let mut open = vec![earlier];
        while let Some(version) = open.pop() {
            let Some(write) = self.writes.get(&version.write) else { continue };
            if version.write != later.write && self.follows_in_time(write, later) {
                return true;
            }
            for next in versions.iter().filter(|v| version.before.contains(&v.write)) {
                if next.write == later.write {
                    return true;
                }
                if !visited.contains(&next.write) {
                    visited.push(next.write);
                    open.push(next);
                }
            }
        }
        false
    }

    fn follows_in_time(&self, earlier: &Write, later: &Version) -> bool {
        self.writes
            .get(&later.write)
            .is_some_and(|w| (w.is_certain() || later.seen.is_some()) && earlier.finished_before(w.issued))
    }

    /// Whether the sector held `version` at some moment before `time`.
    fn landed_before(&self, version: &Version, time: u64) -> bool {
        let acknowledged = |w: &Write| w.is_certain() && w.finished_before(time);
        version.seen.is_some_and(|seen| seen < time)
            || self.writes.get(&version.write).is_some_and(acknowledged)
    }

    fn is_legal(&self, versions: &[Version], version: &Version, started: u64) -> bool {
        !versions.iter().any(|w| self.landed_before(w, started) && self.precedes(versions, version, w))
    }

    fn durable_after<'a>(
        &'a self,
        versions: &'a [Version],
        version: &'a Version,
    ) -> impl Iterator<Item = &'a Version> {
        let durable = |w: &&Version| self.writes.get(&w.write).is_some_and(|write| write.durable);
        versions.iter().filter(durable).filter(|w| self.precedes(versions, version, w))
    }

    fn holds(&self, version: &Version, found: Contents, sector: u64) -> bool {
        match found {
            Contents::Zero => self.writes.get(&version.write).is_some_and(|w| w.kind != Kind::Write),
            Contents::Stamped { write, sector: at } => write == version.write.0 && at == sector,
            Contents::Damaged { .. } => false,
        }
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
        let origin = [Version::new(ORIGIN)];
        let versions = self.versions.get(&sector).map_or(&origin[..], |versions| &versions[..]);
        let matches: Vec<usize> = (0..versions.len())
            .filter(|&at| self.holds(&versions[at], found, sector))
            .filter(|&at| self.is_legal(versions, &versions[at], started))
            .collect();
        match matches[..] {
            [] => Err(self.violation(sector, versions, found, started)),
            [at] => {
                let seen = versions[at].write;
                self.settle(sector, seen, started, now);
                Ok(())
            }
            // Several operations left the same zeroes: which one was seen is unknown, so nothing follows.
            _ => Ok(()),
        }
    }

    /// A read that started at `started` and ended `now` saw `seen` and nothing else.
    fn settle(&mut self, sector: u64, seen: WriteId, started: u64, now: u64) {
        let failed = |id: &WriteId| self.writes.get(id).is_none_or(|write| write.status == Status::Failed);
        if failed(&seen) {
            return;
        }
        let Some(versions) = self.versions.get(&sector) else { return };
        let over = |v: &Version| self.writes.get(&v.write).is_some_and(|w| w.finished_before(started));
        let older: Vec<usize> = (0..versions.len())
            .filter(|&at| versions[at].write != seen && over(&versions[at]) && !failed(&versions[at].write))
            .filter(|&at| !versions[at].before.contains(&seen))
            .collect();
        let Some(versions) = self.versions.get_mut(&sector) else { return };
        for at in older {
            versions[at].before.push(seen);
        }
        if let Some(version) = versions.iter_mut().find(|version| version.write == seen) {
            version.seen.get_or_insert(now);
        }
    }

    fn violation(&self, sector: u64, versions: &[Version], found: Contents, started: u64) -> Violation {
        let wrong = match found {
            Contents::Damaged { .. } => Wrong::Damaged,
            Contents::Stamped { sector: at, .. } if at != sector => Wrong::Misplaced,
            Contents::Stamped { write, .. } if write > self.ids => Wrong::Foreign,
            Contents::Stamped { .. } | Contents::Zero => Wrong::Stale,
        };
        let legal = versions.iter().filter(|v| self.is_legal(versions, v, started));
        let line = |v: &Version| format!("  {v:?}: {:?}\n", self.writes.get(&v.write));
        Violation {
            sector,
            wrong,
            found,
            legal: legal.map(|version| version.write.0).collect(),
            history: format!("read started at {started}\n{}", versions.iter().map(line).collect::<String>()),
        }
    }

    fn is_doubted(&self, sector: u64, started: u64) -> bool {
        self.doubted.get(&sector).is_some_and(|&since| {
            let cured = |v: &Version| {
                self.landed_before(v, started) && self.writes.get(&v.write).is_some_and(|w| w.issued > since)
            };
            !self.versions.get(&sector).into_iter().flatten().any(cured)
        })
    }

    /// A doubt outlives a crash unless what cured it was durable.
    fn crash_doubt(&mut self, sector: u64, now: u64) {
        let Some(&since) = self.doubted.get(&sector) else { return };
        if self.is_cured_durably(sector, since) {
            self.doubted.remove(&sector);
        } else {
            self.doubted.insert(sector, now);
        }
    }

    /// Forgets versions that no open or later read may return, whatever crashes.
    fn prune(&mut self, sectors: Range<u64>) {
        let first_read = self.reads.values().map(|read| read.started).min().unwrap_or(self.now + 1);
        for sector in sectors {
            self.retain(sector, |ledger, versions, version| {
                !ledger.durable_after(versions, version).any(|w| ledger.landed_before(w, first_read))
            });
        }
    }

    fn retain(&mut self, sector: u64, keep: impl Fn(&Self, &[Version], &Version) -> bool) {
        let Some(versions) = self.versions.get(&sector) else { return };
        let kept: Vec<bool> = versions.iter().map(|version| keep(self, versions, version)).collect();
        let mut dropped = Vec::new();
        if let Some(versions) = self.versions.get_mut(&sector) {
            let mut kept = kept.into_iter();
            versions.retain(|version| {
                let keep = kept.next().unwrap_or(true);
                if !keep {
                    dropped.push(version.write);
                }
                keep
            });
        }
        for id in dropped.into_iter().filter(|&id| id != ORIGIN) {
            let Some(write) = self.writes.get_mut(&id) else { continue };
            write.versions -= 1;
            if write.versions == 0 {
                self.writes.remove(&id);
            }
        }
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ledger of {} sectors, {} writes known", self.sectors, self.writes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ledger and its clients. Sector 3 of 8 is the one that most tests look at.
    struct Client {
        ledger: Ledger,
    }

    const AT: u64 = 3;

    impl Client {
        fn new() -> Self {
            Self { ledger: Ledger::new(8) }
        }

        fn begin(&mut self, forced: bool) -> WriteId {
            self.ledger.begin_write(AT, &mut [0; 512], forced)
        }

        fn write(&mut self) -> WriteId {
            let id = self.begin(false);
            self.ledger.complete_write(id, true);
            id
        }

        fn flush(&mut self) {
            let id = self.ledger.begin_flush();
            self.ledger.complete_flush(id, true);
        }

        fn sees(&mut self, id: WriteId) -> Result<(), Wrong> {
            let read = self.ledger.begin_read(AT..AT + 1);
            self.read_sees(read, id)
        }

        fn read_sees(&mut self, read: ReadId, id: WriteId) -> Result<(), Wrong> {
            let mut bytes = [0; 512];
            if id != ORIGIN {
                stamp::stamp(&mut bytes, id.0, AT);
            }
            self.ledger.check_read(read, &bytes).map_err(|violation| violation.wrong)
        }

        /// What may be read, as the ledger lists it.
        fn legal(&self, ids: &[WriteId]) {
            assert_eq!(self.ledger.legal(AT), ids.iter().map(|id| id.0).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_zeroing_that_was_refused_untried_never_was() {
        let mut client = Client::new();
        let written = client.write();
        let zeroed = client.ledger.begin_zeroes(AT..AT + 1, false);
        assert_eq!(client.sees(ORIGIN), Ok(()), "while it is under way");
        client.ledger.revoke(zeroed);
        assert_eq!(client.sees(ORIGIN), Err(Wrong::Stale));
        assert_eq!(client.sees(written), Ok(()));
        client.legal(&[written]);
    }

    #[test]
    fn a_sector_that_was_never_written_holds_zeroes() {
        let mut client = Client::new();
        assert_eq!(client.sees(ORIGIN), Ok(()));
        assert_eq!(client.sees(WriteId(9)), Err(Wrong::Foreign));
        let read = client.ledger.begin_read(0..1);
        assert_eq!(client.ledger.check_read(read, &[1; 512]).unwrap_err().wrong, Wrong::Damaged);
    }

    #[test]
    fn a_lost_write_is_caught() {
        let mut client = Client::new();
        let (old, new) = (client.write(), client.write());
        assert_eq!(client.sees(new), Ok(()));
        assert_eq!(client.sees(old), Err(Wrong::Stale));
        assert_eq!(client.sees(ORIGIN), Err(Wrong::Stale));
    }

    #[test]
    fn a_misplaced_and_a_torn_sector_are_caught() {
        let mut client = Client::new();
        let mut data = [0; 1024];
        let id = client.ledger.begin_write(2, &mut data, false);
        client.ledger.complete_write(id, true);
        let read = client.ledger.begin_read(2..4);
        assert!(client.ledger.check_read(read, &data).is_ok());
        let swapped = [&data[512..], &data[..512]].concat();
        let read = client.ledger.begin_read(2..4);
        let violation = client.ledger.check_read(read, &swapped).unwrap_err();
        assert_eq!((violation.wrong, violation.sector), (Wrong::Misplaced, 2));
        let mut torn = data;
        torn[700..].fill(0);
        let read = client.ledger.begin_read(2..4);
        let violation = client.ledger.check_read(read, &torn).unwrap_err();
        assert_eq!((violation.wrong, violation.sector), (Wrong::Damaged, 3));
    }

    #[test]
    fn while_a_write_is_in_flight_old_and_new_are_legal_but_once_seen_never_old_again() {
        let mut client = Client::new();
        let old = client.write();
        let new = client.begin(false);
        client.legal(&[old, new]);
        assert_eq!(client.sees(old), Ok(()));
        client.legal(&[old, new]);
        let early = client.ledger.begin_read(AT..AT + 1);
        assert_eq!(client.sees(new), Ok(()));
        client.legal(&[new]);
        assert_eq!(client.sees(old), Err(Wrong::Stale));
        assert_eq!(client.read_sees(early, old), Ok(()), "it began before any read saw the new value");
    }

    #[test]
    fn a_read_that_began_before_the_acknowledgement_may_return_the_old_value() {
        let mut client = Client::new();
        let old = client.write();
        let new = client.begin(false);
        let (first, second) = (client.ledger.begin_read(AT..AT + 1), client.ledger.begin_read(AT..AT + 1));
        client.ledger.complete_write(new, true);
        client.flush();
        assert_eq!(client.read_sees(first, old), Ok(()));
        assert_eq!(client.read_sees(second, new), Ok(()));
        client.legal(&[new]);
    }

    #[test]
    fn of_concurrent_writes_either_may_win_and_a_read_says_which() {
        for swap in [false, true] {
            let mut client = Client::new();
            let (mut a, mut b) = (client.begin(false), client.begin(false));
            client.ledger.complete_write(b, true);
            client.ledger.complete_write(a, true);
            client.legal(&[a, b]);
            if swap {
                (a, b) = (b, a);
            }
            assert_eq!(client.sees(a), Ok(()));
            assert_eq!(client.sees(b), Err(Wrong::Stale));
            // What won before the flush is what the flush kept.
            client.flush();
            client.ledger.crash();
            client.legal(&[a]);
        }
    }

    #[test]
    fn an_overlapping_write_that_is_still_in_flight_may_win_after_another_was_seen() {
        let mut client = Client::new();
        let (a, b) = (client.begin(false), client.begin(false));
        client.ledger.complete_write(a, true);
        assert_eq!(client.sees(a), Ok(()));
        client.legal(&[a, b]);
        client.ledger.complete_write(b, true);
        client.legal(&[a, b]);
        assert_eq!(client.sees(b), Ok(()));
        client.legal(&[b]);
    }

    #[test]
    fn after_a_crash_the_last_durable_value_or_any_later_one_is_legal() {
        let mut client = Client::new();
        let _lost = client.write();
        let durable = client.write();
        client.flush();
        let (second, third) = (client.write(), client.write());
        let cut = client.begin(false);
        client.legal(&[third, cut]);
        client.ledger.crash();
        client.legal(&[durable, second, third, cut]);
        assert_eq!(client.sees(ORIGIN), Err(Wrong::Stale));
    }

    #[test]
    fn after_a_crash_the_first_read_decides_even_past_another_crash() {
        let mut client = Client::new();
        let (old, new) = (client.write(), client.begin(false));
        client.ledger.crash();
        client.legal(&[ORIGIN, old, new]);
        assert_eq!(client.sees(old), Ok(()));
        client.legal(&[old]);
        client.ledger.crash();
        client.legal(&[old]);
        let next = client.write();
        client.legal(&[next]);
        client.ledger.crash();
        client.legal(&[old, next]);
    }

    #[test]
    fn a_flush_covers_only_what_was_acknowledged_before_it_was_issued() {
        let mut client = Client::new();
        let before = client.write();
        let during = client.begin(false);
        let flush = client.ledger.begin_flush();
        client.ledger.complete_write(during, true);
        client.ledger.complete_flush(flush, true);
        client.ledger.crash();
        client.legal(&[before, during]);
    }

    #[test]
    fn a_failed_flush_promises_nothing() {
        let mut client = Client::new();
        let write = client.write();
        let flush = client.ledger.begin_flush();
        client.ledger.complete_flush(flush, false);
        client.ledger.crash();
        client.legal(&[ORIGIN, write]);
    }

    #[test]
    fn of_two_ordered_writes_in_flight_the_later_one_wins() {
        let mut client = Client::new();
        let (first, second) = (client.begin(false), client.begin(false));
        client.ledger.order(first, second);
        client.legal(&[ORIGIN, first, second]);
        client.ledger.complete_write(second, true);
        client.ledger.complete_write(first, true);
        client.legal(&[second]);
    }

    #[test]
    fn a_forced_write_is_durable_when_it_is_acknowledged() {
        let mut client = Client::new();
        let forced = client.begin(true);
        client.ledger.complete_write(forced, true);
        let cut = client.begin(true);
        client.ledger.crash();
        client.legal(&[forced, cut]);
        assert_eq!(client.sees(ORIGIN), Err(Wrong::Stale));
    }

    #[test]
    fn a_seen_write_in_flight_is_not_durable() {
        let mut client = Client::new();
        let old = client.write();
        let new = client.begin(false);
        assert_eq!(client.sees(new), Ok(()));
        client.flush();
        client.ledger.crash();
        client.legal(&[old, new]);
    }

    #[test]
    fn zeroing_must_zero_and_a_discard_may_but_must_not_change_its_mind() {
        let mut client = Client::new();
        let write = client.write();
        let discard = client.ledger.begin_discard(0..8, false);
        client.ledger.complete_write(discard, true);
        client.flush();
        client.legal(&[write, discard]);
        let mut other = Client { ledger: Ledger { reads: BTreeMap::new(), ..clone(&client.ledger) } };
        assert_eq!(client.sees(write), Ok(()));
        assert_eq!(client.sees(ORIGIN), Err(Wrong::Stale), "it was not zeroed");
        assert_eq!(other.sees(ORIGIN), Ok(()));
        assert_eq!(other.sees(write), Err(Wrong::Stale), "it was zeroed");
        other.ledger.crash();
        assert_eq!(other.sees(write), Err(Wrong::Stale), "and that was flushed");
        let zeroes = client.ledger.begin_zeroes(0..8, true);
        client.ledger.complete_write(zeroes, true);
        assert_eq!(client.sees(write), Err(Wrong::Stale));
        assert_eq!(client.sees(ORIGIN), Ok(()), "zeroes are zeroes");
    }

    fn clone(ledger: &Ledger) -> Ledger {
        Ledger {
            writes: ledger.writes.clone(),
            versions: ledger.versions.clone(),
            reads: BTreeMap::new(),
            orders: BTreeMap::new(),
            flushes: ledger.flushes.clone(),
            doubted: ledger.doubted.clone(),
            ..*ledger
        }
    }

    #[test]
    fn a_failed_write_leaves_doubt_until_the_next_one_succeeds() {
        let mut client = Client::new();
        let old = client.write();
        let failed = client.begin(true);
        client.ledger.complete_write(failed, false);
        client.flush();
        for id in [old, failed, old, failed] {
            assert_eq!(client.sees(id), Ok(()));
        }
        client.ledger.crash();
        client.legal(&[old, failed]);
        let new = client.write();
        client.legal(&[new]);
    }

    #[test]
    fn the_death_of_the_process_loses_nothing_that_was_acknowledged() {
        let mut client = Client::new();
        let write = client.write();
        let cut = client.begin(false);
        client.ledger.kill();
        client.legal(&[write, cut]);
        assert_eq!(client.sees(ORIGIN), Err(Wrong::Stale));
        assert_eq!(client.sees(write), Ok(()));
        client.legal(&[write]);
        // The disks' caches are as volatile as before.
        client.ledger.crash();
        client.legal(&[ORIGIN, write, cut]);
    }

    #[test]
    fn doubt_ends_with_a_later_write_and_comes_back_with_a_crash_that_may_have_lost_it() {
        let mut client = Client::new();
        client.write();
        client.ledger.doubt(AT..AT + 1);
        assert_eq!(client.sees(WriteId(99)), Ok(()));
        let cure = client.write();
        assert_eq!(client.sees(WriteId(99)), Err(Wrong::Foreign));
        client.ledger.crash();
        assert_eq!(client.sees(WriteId(99)), Ok(()));
        let cure_again = client.write();
        client.flush();
        client.ledger.crash();
        assert_eq!(client.sees(cure), Err(Wrong::Stale));
        assert_eq!(client.sees(cure_again), Ok(()));
    }

    #[test]
    fn what_no_read_may_return_is_forgotten() {
        let mut client = Client::new();
        for _ in 0..100 {
            client.write();
            client.flush();
        }
        assert_eq!(client.ledger.writes.len(), 2, "the origin and the last");
        assert_eq!(client.sees(WriteId(1)), Err(Wrong::Stale));
    }
}
