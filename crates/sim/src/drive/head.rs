//! One head over a platter, and what it does next.

use super::{Ending, Model, Request, SECOND_NS, Speed};
use crate::trace::Operation;

/// Seeks and rotation of a disk, and how it orders its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes of the whole disk: a member may be its first part.
    pub capacity: u64,
    /// Of the platter.
    pub revolution_ns: u64,
    /// To another track.
    pub seek: Seek,
    /// How much longer the head takes to settle before it writes.
    pub settle_ns: u64,
    /// Of so many requests that wait, the oldest, the one goes next where the head is soonest.
    pub queue: usize,
    /// Writes that end before they are on the platter.
    pub cache: Option<WriteCache>,
}

/// Memory of a disk in which writes wait for the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteCache {
    /// Writes in it at most, whatever their size.
    pub writes: usize,
    /// Of the way from the host to it.
    pub bytes_per_second: u64,
}

/// The time of a seek over the share `d` of the stroke: `track + root * sqrt(d) + linear * d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seek {
    track_ns: u64,
    root_ns: u64,
    linear_ns: u64,
}

/// The share of the stroke is counted in so many parts.
const PARTS_LOG2: u32 = 20;

impl Seek {
    /// The curve through what data sheets give: to the next track, on average, over the full stroke. Over two
    /// places drawn at random, `sqrt(d)` is 8/15 on average, and `d` 1/3.
    ///
    /// # Panics
    /// If no such curve rises everywhere.
    pub const fn through(track_ns: u64, average_ns: u64, full_ns: u64) -> Self {
        // root + linear = full - track, 8/15 root + 1/3 linear = average - track.
        let (full, average) = (full_ns - track_ns, average_ns - track_ns);
        assert!(3 * average >= full && 15 * average <= 8 * full, "a seek takes longer the farther it goes");
        let root_ns = (3 * average - full) * 5 / 3;
        Self { track_ns, root_ns, linear_ns: full - root_ns }
    }

    fn over(&self, distance: u64, capacity: u64) -> u64 {
        // At most the whole: no disk has 2^44 bytes.
        let share = (distance.min(capacity) << PARTS_LOG2) / capacity;
        let root = (share << PARTS_LOG2).isqrt();
        self.track_ns + ((self.root_ns * root + self.linear_ns * share) >> PARTS_LOG2)
    }
}

/// What disks of a model have in common.
#[derive(Clone, Copy)]
pub(super) struct Disk<'m> {
    pub(super) head: &'m Head,
    pub(super) model: &'m Model,
}

impl Disk<'_> {
    fn speed(&self, writes: bool) -> Speed {
        if writes { self.model.write } else { self.model.read }
    }

    fn flush_ns(&self) -> u64 {
        self.model.flush_ns.unwrap_or(0)
    }

    /// How long the way from or to the cache takes.
    fn cached_ns(&self, cache: WriteCache, work: &Work) -> u64 {
        self.speed(work.writes).access_ns + work.length * SECOND_NS / cache.bytes_per_second
    }
}

/// What the head is to do, or is at.
#[derive(Clone, Copy, Debug)]
struct Work {
    /// Of the request; `None` once the host was told that it is over.
    number: Option<u64>,
    offset: u64,
    length: u64,
    writes: bool,
}

impl Work {
    fn covers(&self, other: &Self) -> bool {
        self.offset <= other.offset && other.offset + other.length <= self.offset + self.length
    }
}

#[derive(Clone, Debug)]
pub(super) struct State {
    phase_ns: u64,
    /// Where the last work ended, and whether it wrote.
    last: Option<(u64, bool)>,
    /// What the head is at, and until when.
    under_way: Option<(Work, u64)>,
    /// What ends when the head has been there, in the order of arrival.
    waiting: Vec<Work>,
    /// What the cache holds besides the work that is under way, in the order of arrival.
    cached: Vec<Work>,
    /// Writes for which it has no room.
    blocked: Vec<Work>,
    /// Flushes, each with the writes before it that are not on the platter yet.
    flushes: Vec<(u64, usize)>,
}

impl State {
    pub(super) fn new(phase_ns: u64) -> Self {
        Self {
            phase_ns,
            last: None,
            under_way: None,
            waiting: Vec::new(),
            cached: Vec::new(),
            blocked: Vec::new(),
            flushes: Vec::new(),
        }
    }

    /// When the head is done with what it is at, and takes up the next work.
    pub(super) fn next_turn(&self) -> Option<u64> {
        self.under_way.map(|(_, until)| until)
    }

    /// When the request ends, if that is known yet. The head begins at once if it has nothing else to do.
    pub(super) fn submit(&mut self, disk: Disk, now: u64, request: Request) -> Option<u64> {
        let Request { number, operation, offset, length } = request;
        if operation == Operation::Flush {
            let before = self.unwritten();
            if before == 0 {
                return Some(now + disk.flush_ns());
            }
            self.flushes.push((number, before));
            return None;
        }
        let work = Work { number: Some(number), offset, length, writes: operation != Operation::Read };
        match disk.head.cache.filter(|_| operation != Operation::WriteFua) {
            Some(cache) if work.writes => {
                if !self.has_room(cache) {
                    self.blocked.push(work);
                    return None;
                }
                self.keep(work);
                self.begin(disk, now);
                Some(now + disk.cached_ns(cache, &work))
            }
            Some(cache) if self.cached.iter().any(|write| write.covers(&work)) => {
                Some(now + disk.cached_ns(cache, &work))
            }
            _ => {
                self.waiting.push(work);
                self.begin(disk, now).map(|ending| ending.at)
            }
        }
    }

    /// The head is done with what it was at: what ends by that, or ends at a time that is known now.
    pub(super) fn turn(&mut self, disk: Disk) -> Vec<Ending> {
        let Some((done, now)) = self.under_way.take() else { return Vec::new() };
        let mut endings = Vec::new();
        if done.number.is_none() {
            for (_, before) in &mut self.flushes {
                *before -= 1;
            }
            let over = self.flushes.extract_if(.., |(_, before)| *before == 0);
            endings.extend(over.map(|(number, _)| Ending { number, at: now + disk.flush_ns() }));
        }
        if let Some(cache) = disk.head.cache {
            while !self.blocked.is_empty() && self.has_room(cache) {
                let work = self.blocked.remove(0);
                let at = now + disk.cached_ns(cache, &work);
                endings.extend(work.number.map(|number| Ending { number, at }));
                self.keep(work);
            }
        }
        endings.extend(self.begin(disk, now));
        endings
    }

    /// Writes that the host believes to be over, and which the platter doesn't have.
    fn unwritten(&self) -> usize {
        self.cached.len() + usize::from(self.under_way.is_some_and(|(work, _)| work.number.is_none()))
    }

    fn has_room(&self, cache: WriteCache) -> bool {
        self.unwritten() < cache.writes
    }

    /// A write goes into the cache, and the host is told so.
    fn keep(&mut self, work: Work) {
        self.cached.push(Work { number: None, ..work });
    }

    /// Takes up the next work, unless the head is at one. What was cached goes first if something waits for
    /// room or for a flush, and otherwise last: the host waits for all else.
    fn begin(&mut self, disk: Disk, now: u64) -> Option<Ending> {
        if self.under_way.is_some() {
            return None;
        }
        let is_urgent = !self.blocked.is_empty() || !self.flushes.is_empty();
        let from_cache = !self.cached.is_empty() && (is_urgent || self.waiting.is_empty());
        // A flush ends when all before it are written, so those after it don't go first.
        let before = self.flushes.first().map_or(usize::MAX, |&(_, before)| before);
        let (list, most) = if from_cache { (&self.cached, before) } else { (&self.waiting, disk.head.queue) };
        let soonest = list.iter().take(most).map(|work| self.there(disk, now, work)).enumerate();
        let (index, there) = soonest.min_by_key(|&(_, there)| there)?;
        let work = if from_cache { self.cached.remove(index) } else { self.waiting.remove(index) };
        let until = there + disk.speed(work.writes).transfer_ns(work.length);
        self.last = Some((work.offset + work.length, work.writes));
        self.under_way = Some((work, until));
        work.number.map(|number| Ending { number, at: until })
    }

    /// When the head is where the work begins. Of what was cached, the controller has done its part.
    fn there(&self, disk: Disk, now: u64, work: &Work) -> u64 {
        if self.last == Some((work.offset, work.writes)) {
            return now;
        }
        let Head { capacity, revolution_ns, seek, settle_ns, .. } = *disk.head;
        let speed = disk.speed(work.writes);
        let start = if work.number.is_some() { now + speed.access_ns } else { now };
        let track_bytes = u64::max(speed.bytes_per_second * revolution_ns / SECOND_NS, 1);
        let from = self.last.map_or(0, |(end, _)| end);
        let way = if from / track_bytes == work.offset / track_bytes {
            0
        } else {
            let settle = if work.writes { settle_ns } else { 0 };
            seek.over(from.abs_diff(work.offset), capacity) + settle
        };
        let angle = (start + way + self.phase_ns) % revolution_ns;
        let wanted = work.offset % track_bytes * SECOND_NS / speed.bytes_per_second % revolution_ns;
        start + way + (wanted + revolution_ns - angle) % revolution_ns
    }
}
