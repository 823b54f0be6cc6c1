//! What becomes of requests under way when the process dies that made them, or the power fails.

use super::{DiskState, Request};

impl DiskState {
    /// Requests in flight when their shards die: each may have happened or not, in part too, or is yet to
    /// come.
    pub(super) fn abort_requests(&mut self, now: u64, power: bool) {
        let mut requests: Vec<(u64, Request)> = std::mem::take(&mut self.requests).into_iter().collect();
        self.rng.shuffle(&mut requests);
        self.due_min = u64::MAX;
        for (number, mut request) in requests {
            if !request.changes_contents() || self.faults.gone {
                continue;
            }
            if !power && self.config.late_writes_ns > 0 && self.rng.chance(1, 2) {
                request.completion = None;
                request.end_at = now + self.rng.below(self.config.late_writes_ns);
                request.parts.iter_mut().for_each(|part| part.due = request.end_at);
                self.requests.insert(number, request);
                self.update_due_min();
                continue;
            }
            let whole = self.rng.chance(1, 2);
            for part in std::mem::take(&mut request.parts) {
                if !whole && self.rng.chance(1, 2) {
                    continue;
                }
                self.faults.written(request.lands + part.from, part.to - part.from);
                if power {
                    // As if cached, so that the power loss may tear it.
                    self.medium.land(number, request.lands, &request.data, part.from, part.to);
                } else {
                    self.land(number, &request, &part);
                }
            }
        }
    }
}
