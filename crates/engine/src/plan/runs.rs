//! Cutting the chunk's rows into runs: a sweep over the starts and ends of what is written.

use super::{Method, PlanError, Run, Stripe, Written};
use crate::geometry::Set64;

/// Reusable lists of the sweep.
#[derive(Clone, Debug, Default)]
pub(super) struct Sweep {
    ranges: Vec<Written>,
    events: Vec<Event>,
}

/// Where a range begins or ends, ordered by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: u32,
    column: u8,
    begins: bool,
}

impl Sweep {
    /// Makes room for so many ranges.
    pub(super) fn reserve(&mut self, ranges: usize) {
        self.ranges.reserve(2 * ranges);
        self.events.reserve(4 * ranges);
    }

    /// Takes the image in and checks that it is a part of the stripe.
    pub(super) fn load(
        &mut self,
        image: impl IntoIterator<Item = Written>,
        stripe: &Stripe,
    ) -> Result<(), PlanError> {
        self.ranges.clear();
        for range in image {
            let Written { column, start, end } = range;
            if column >= stripe.map.columns() || start >= end || end > stripe.chunk_bytes {
                return Err(PlanError::NoSuchRange { column, start, end });
            }
            self.ranges.push(range);
        }
        Ok(())
    }

    /// Appends the runs, ascending. Their method is still to be chosen.
    pub(super) fn cut(&mut self, runs: &mut Vec<Run>) {
        // A small write is one range in one column; a full stripe is the same range in all of them.
        let Some(first) = self.ranges.first() else { return };
        if self.ranges.iter().all(|range| (range.start, range.end) == (first.start, first.end)) {
            let written = self.ranges.iter().map(|range| range.column).collect();
            push(runs, first.start, first.end, written);
            return;
        }
        self.events.clear();
        for range in &self.ranges {
            // The column was checked against the stripe's, of which there are fewer than 64.
            let column = range.column.to_le_bytes()[0];
            self.events.push(Event { at: range.start, column, begins: true });
            self.events.push(Event { at: range.end, column, begins: false });
        }
        self.events.sort_unstable();
        // Ranges of one column may overlap, so they are counted.
        let (mut open, mut written, mut from) = ([0i32; 64], Set64::EMPTY, 0);
        for event in &self.events {
            if event.at > from && !written.is_empty() {
                push(runs, from, event.at, written);
            }
            from = event.at;
            let column = usize::from(event.column);
            open[column] += if event.begins { 1 } else { -1 };
            written = if open[column] > 0 {
                written.or(Set64::only(column))
            } else {
                written.without(Set64::only(column))
            };
        }
    }
}

/// Adds a run, or makes the last one longer if nothing changes there.
fn push(runs: &mut Vec<Run>, start: u32, end: u32, written: Set64) {
    if let Some(last) = runs.last_mut()
        && last.end == start
        && last.written == written
    {
        last.end = end;
        return;
    }
    runs.push(Run { start, end, written, method: Method::DataOnly });
}
