//! When requests take effect, and when they end: as the drive says, or as is drawn.

use super::{DiskState, Part, UNKNOWN};
use crate::{drive, medium::SECTOR, rng::Rng};

impl DiskState {
    /// What takes until `end` usually, by a disk that may be slow.
    pub(super) fn slowed(&self, now: u64, end: u64) -> u64 {
        now.saturating_add((end - now).saturating_mul(self.faults.slow))
    }

    /// Has the drive take up the work that it can by now.
    pub(super) fn take_turns(&mut self, now: u64) {
        while let Some(drive) = &mut self.config.drive
            && let Some(turn) = drive.next_turn().filter(|&turn| turn <= now)
        {
            for drive::Ending { number, at } in drive.turn() {
                let end_at = self.slowed(turn, at);
                if let Some(request) = self.requests.get_mut(&number)
                    && request.end_at == UNKNOWN
                {
                    request.end_at = end_at;
                    request.parts.iter_mut().for_each(|part| part.due = end_at);
                    self.due_min = self.due_min.min(end_at);
                }
            }
        }
    }

    pub(super) fn next_turn(&self) -> Option<u64> {
        self.config.drive.as_ref()?.next_turn()
    }

    pub(super) fn draw_latency(&mut self) -> u64 {
        let latency = self.rng.range(self.config.latency_ns_min..self.config.latency_ns_max + 1);
        if self.rng.chance(self.config.latency_tail, 1024) {
            return latency.saturating_mul(1 + self.rng.below(50));
        }
        latency
    }

    /// When the request takes effect: in one piece at its end, or earlier, or in two pieces.
    pub(super) fn parts(&mut self, now: u64, end_at: u64, length: u64) -> Vec<Part> {
        if self.config.drive.is_some() {
            return vec![Part { due: end_at, from: 0, to: length }];
        }
        let due = |rng: &mut Rng| if rng.chance(1, 2) { end_at } else { rng.range(now..end_at + 1) };
        let sectors = length / SECTOR;
        if sectors > 1 && self.rng.chance(1, 4) {
            let tear = u64::from(self.config.tear_bytes);
            let cut = self.rng.range(1..sectors) * SECTOR / tear * tear;
            return vec![
                Part { due: due(&mut self.rng), from: 0, to: cut },
                Part { due: due(&mut self.rng), from: cut, to: length },
            ];
        }
        vec![Part { due: due(&mut self.rng), from: 0, to: length }]
    }
}
