//! The versions of sectors, and in which order they came: as far as answers and reads have shown it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use super::WriteId;
use crate::stamp::Contents;

/// The zeroes that every sector holds at first.
pub(super) const ORIGIN: WriteId = WriteId(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
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
    const fn new(write: WriteId) -> Self {
        Self { write, seen: None, before: Vec::new() }
    }
}

/// What a sector that was never written has been.
static UNWRITTEN: [Version; 1] = [Version::new(ORIGIN)];

/// See the module. Times are the ledger's.
#[derive(Clone)]
pub(super) struct History {
    writes: BTreeMap<WriteId, Write>,
    /// Versions of the sectors that were ever written; the others hold the origin.
    versions: BTreeMap<u64, Vec<Version>>,
}

impl History {
    /// Of so many sectors of zeroes.
    pub(super) fn new(sectors: u64) -> Self {
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
        Self { writes: BTreeMap::from([(ORIGIN, origin)]), versions: BTreeMap::new() }
    }

    /// How many writes are known.
    pub(super) fn len(&self) -> usize {
        self.writes.len()
    }

    /// Sectors that were ever written, in order.
    pub(super) fn written(&self) -> impl Iterator<Item = u64> {
        self.versions.keys().copied()
    }

    fn versions_of(&self, sector: u64) -> &[Version] {
        self.versions.get(&sector).map_or(&UNWRITTEN, Vec::as_slice)
    }

    /// A write is issued.
    pub(super) fn begin(&mut self, id: WriteId, kind: Kind, sectors: Range<u64>, forced: bool, issued: u64) {
        for sector in sectors.clone() {
            self.versions.entry(sector).or_insert_with(|| UNWRITTEN.to_vec()).push(Version::new(id));
        }
        let versions = sectors.end - sectors.start;
        let (finished, status) = (None, Status::Open);
        self.writes
            .insert(id, Write { kind, sectors, forced, issued, finished, status, durable: false, versions });
    }

    /// A write never was.
    pub(super) fn revoke(&mut self, id: WriteId) {
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

    /// A write is answered. The sectors in which that makes it durable.
    pub(super) fn finish(&mut self, id: WriteId, succeeded: bool, now: u64) -> Range<u64> {
        let Some(write) = self.writes.get_mut(&id) else { return 0..0 };
        write.finished = Some(now);
        write.status = if succeeded { Status::Done } else { Status::Failed };
        write.durable = succeeded && write.forced;
        if write.durable { write.sectors.clone() } else { 0..0 }
    }

    /// Wherever both cover a sector, the later write came after the earlier one.
    pub(super) fn order(&mut self, earlier: WriteId, later: WriteId) {
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

    /// A flush that was issued at this time has succeeded. The sectors in which that makes a write durable.
    pub(super) fn flush(&mut self, issued: u64) -> BTreeSet<u64> {
        let mut sectors = BTreeSet::new();
        for write in self.writes.values_mut() {
            let kept = matches!(write.status, Status::Done | Status::Cut);
            if kept && !write.durable && write.finished_before(issued) {
                write.durable = true;
                sectors.extend(write.sectors.clone());
            }
        }
        sectors
    }

    /// Power is lost, and with it what no durable write precedes may be all that is left.
    pub(super) fn lose_power(&mut self, now: u64) {
        let sectors: Vec<u64> = self.written().collect();
        let mut survivors = BTreeSet::new();
        for sector in sectors {
            self.retain(sector, |history, versions, version| {
                !history.durable_after(versions, version).any(|_| true)
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

    /// The process dies: writes in flight happened or did not.
    pub(super) fn cut_off(&mut self, now: u64) {
        for write in self.writes.values_mut().filter(|write| write.status == Status::Open) {
            (write.status, write.finished) = (Status::Cut, Some(now));
        }
    }

    /// Sectors of writes that aren't known to be durable; without `power`, of those in flight or failed.
    pub(super) fn unsettled(&self, power: bool) -> BTreeSet<u64> {
        let unsettled =
            |w: &&Write| if power { !w.durable } else { matches!(w.status, Status::Open | Status::Failed) };
        self.writes.values().filter(unsettled).flat_map(|write| write.sectors.clone()).collect()
    }

    /// The writes that a read which started at this time may see in a sector.
    pub(super) fn legal(&self, sector: u64, started: u64) -> impl Iterator<Item = WriteId> {
        let versions = self.versions_of(sector);
        versions.iter().filter(move |v| self.is_legal(versions, v, started)).map(|version| version.write)
    }

    /// Which of them hold what was found.
    pub(super) fn legal_as(&self, sector: u64, found: Contents, started: u64) -> Vec<WriteId> {
        let versions = self.versions_of(sector);
        let holds = versions.iter().filter(|v| self.holds(v.write, found, sector));
        holds.filter(|v| self.is_legal(versions, v, started)).map(|version| version.write).collect()
    }

    /// Whether a sector may hold `found` after a power loss now.
    pub(super) fn survives(&self, sector: u64, found: Contents) -> bool {
        let versions = self.versions_of(sector);
        versions
            .iter()
            .any(|v| self.holds(v.write, found, sector) && !self.durable_after(versions, v).any(|_| true))
    }

    /// Whether a write of a sector that was issued after `since` is durable.
    pub(super) fn is_rewritten_durably(&self, sector: u64, since: u64) -> bool {
        let cures = |w: &Write| w.durable && w.is_certain() && w.issued > since;
        let cured = |v: &Version| self.writes.get(&v.write).is_some_and(cures);
        self.versions.get(&sector).into_iter().flatten().any(cured)
    }

    /// Whether a write of a sector that was issued after `since` had landed before `started`.
    pub(super) fn is_rewritten(&self, sector: u64, since: u64, started: u64) -> bool {
        let cured = |v: &Version| {
            self.landed_before(v, started) && self.writes.get(&v.write).is_some_and(|w| w.issued > since)
        };
        self.versions.get(&sector).into_iter().flatten().any(cured)
    }

    /// A sector's versions in words.
    pub(super) fn describe(&self, sector: u64) -> String {
        let line = |v: &Version| format!("  {v:?}: {:?}\n", self.writes.get(&v.write));
        self.versions_of(sector).iter().map(line).collect()
    }

    /// Forgets versions of a sector that no read which starts at `first_read` or later may return, whatever
    /// crashes.
    pub(super) fn prune(&mut self, sector: u64, first_read: u64) {
        self.retain(sector, |history, versions, version| {
            !history.durable_after(versions, version).any(|w| history.landed_before(w, first_read))
        });
    }

    /// A read that started at `started` and ended `now` saw `seen` and nothing else.
    pub(super) fn settle(&mut self, sector: u64, seen: WriteId, started: u64, now: u64) {
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

    fn holds(&self, write: WriteId, found: Contents, sector: u64) -> bool {
        match found {
            Contents::Zero => self.writes.get(&write).is_some_and(|w| w.kind != Kind::Write),
            Contents::Stamped { write: number, sector: at } => number == write.0 && at == sector,
            Contents::Damaged { .. } => false,
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
