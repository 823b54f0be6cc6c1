//! What a power loss at this moment could leave of a disk, without having it happen: one moment gives many
//! images.

use super::SimDisk;
use crate::{
    medium::{Cached, Doubt, Loss, SECTOR, cache},
    rng::{Rng, index},
};

/// How far a write has come that a power loss may undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Nothing of it has reached the disk.
    Submitted,
    /// A part of it has.
    Arriving,
    /// All of it has, and it is not completed yet.
    Arrived,
    /// It was completed, and not flushed.
    Completed,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Nothing of it is there.
    Lost,
    /// A part.
    Torn,
    /// All of it.
    Whole,
}

/// A write that a power loss may undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubtful {
    /// First byte on the disk.
    pub offset: u64,
    /// The byte behind the last.
    pub end: u64,
    /// How far it has come.
    pub stage: Stage,
    /// Sectors of it that are on the medium for good.
    kept: u64,
}

/// A disk at one moment, with all that a power loss could undo.
pub struct CrashPoint {
    disk: SimDisk,
    doubt: Doubt,
    /// By write of the doubt.
    writes: Vec<Doubtful>,
}

/// A disk after one of the power losses that could come at a [`CrashPoint`].
pub struct CrashImage<'p> {
    point: &'p CrashPoint,
    loss: Loss,
}

impl SimDisk {
    /// The disk at this moment. Valid until anything happens to it.
    pub fn crash_point(&self) -> CrashPoint {
        let state = self.shared.state.borrow();
        let mut cached: Cached = state.medium.cached().clone();
        let under_way = |request: &&super::Request| request.changes_contents() && !state.faults.gone;
        for (number, request) in state.requests.iter().filter(|(_, request)| under_way(request)) {
            for part in &request.parts {
                cache(&mut cached, *number, request.lands, &request.data, part.from, part.to);
            }
        }
        let doubt = Doubt::of(&cached, state.medium.tear());
        let mut writes: Vec<Doubtful> = doubt
            .writes()
            .map(|_| Doubtful { offset: u64::MAX, end: 0, stage: Stage::Completed, kept: 0 })
            .collect();
        for (sector, write) in doubt.places() {
            let known = &mut writes[write];
            known.offset = known.offset.min(sector * SECTOR);
            known.end = known.end.max((sector + 1) * SECTOR);
        }
        for (number, known) in doubt.writes().zip(&mut writes) {
            let Some(request) = state.requests.get(&number).filter(under_way) else { continue };
            let missing: u64 = request.parts.iter().map(|part| part.to - part.from).sum();
            known.stage = match missing {
                0 => Stage::Arrived,
                missing if missing == request.length => Stage::Submitted,
                _ => Stage::Arriving,
            };
            if !state.config.volatile_cache {
                known.kept = (request.length - missing) / SECTOR;
            }
            (known.offset, known.end) = (request.lands, request.lands + request.length);
        }
        drop(state);
        CrashPoint { disk: self.clone(), doubt, writes }
    }

    /// Makes the disk's contents those of `image`, durably, past all requests.
    pub fn load(&self, image: &CrashImage<'_>) {
        let from = image.point.disk.shared.state.borrow();
        let mut state = self.shared.state.borrow_mut();
        state.medium.load(from.medium.durable(), &image.point.doubt, &image.loss);
    }
}

impl CrashPoint {
    /// Draws a power loss.
    pub fn lose(&self, rng: &mut Rng) -> CrashImage<'_> {
        CrashImage { point: self, loss: self.doubt.lose(rng) }
    }

    /// Whether a power loss could change anything.
    pub fn is_settled(&self) -> bool {
        self.writes.is_empty()
    }

    /// The sectors that a power loss could change, ascending.
    pub fn sectors(&self) -> impl Iterator<Item = u64> {
        self.doubt.sectors()
    }

    /// The disk.
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }
}

impl CrashImage<'_> {
    /// What became of every write that could be undone.
    pub fn writes(&self) -> impl Iterator<Item = (Doubtful, Outcome)> {
        self.point.writes.iter().zip(self.point.doubt.tally(&self.loss)).map(|(write, (here, spared))| {
            let outcome = match write.kept + spared {
                0 => Outcome::Lost,
                all if all == write.kept + here => Outcome::Whole,
                _ => Outcome::Torn,
            };
            (*write, outcome)
        })
    }

    /// `length` bytes from `offset`, whole sectors.
    pub fn peek(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = self.point.disk.peek_durable(offset, length);
        for (at, sector) in (offset / SECTOR..).zip(bytes.chunks_mut(index(SECTOR))) {
            if let Some(version) = self.point.doubt.left(&self.loss, at) {
                let length = sector.len();
                sector.copy_from_slice(&version.bytes()[..length]);
            }
        }
        bytes
    }

    /// The disk of which it is an image.
    pub fn disk(&self) -> &SimDisk {
        &self.point.disk
    }
}
