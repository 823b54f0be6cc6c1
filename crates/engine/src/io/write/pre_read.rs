//! Old bytes that a stripe write has at hand.

use std::ops::Deref;

use pinstripe_runtime::{Buffer, Slice, shard};

use crate::{
    geometry::{MemberSlot, Set64, StripeMap},
    plan::{Run, Transfer},
    stripe::parity_cache::{PAGE_BYTES, Parity},
};

/// Old bytes that are at hand: read from members, or kept by the parity cache.
#[derive(Default)]
pub(super) struct PreRead {
    pub(super) transfers: Vec<Transfer>,
    pub(super) bytes: Vec<Slice>,
    pub(super) rows: Vec<(Parity, u32, Slice)>,
    /// What was recovered of columns that are not written: slot, start, and the bytes.
    pub(super) recovered: Vec<(MemberSlot, u32, Slice)>,
    /// The rows were out of sync when this was begun. What was read then isn't what a plan in sync, which the
    /// next one may be, would have asked the cache for (C13).
    pub(super) out_of_sync: bool,
    /// Room for a run's old bytes by column; empty.
    pub(super) columns: Vec<Option<Slice>>,
}

/// Old bytes, borrowed or put together.
pub(super) enum Old<'h> {
    Here(&'h [u8]),
    Gathered(Slice),
}

impl Deref for Old<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Here(bytes) => bytes,
            Self::Gathered(bytes) => bytes,
        }
    }
}

impl PreRead {
    pub(super) fn clear(&mut self) {
        self.transfers.clear();
        self.bytes.clear();
        self.rows.clear();
        self.recovered.clear();
        self.out_of_sync = false;
    }

    /// What was recovered of the members in these slots.
    pub(super) fn recovered_of(&self, slots: Set64) -> impl Iterator<Item = &(MemberSlot, u32, Slice)> {
        self.recovered.iter().filter(move |(slot, ..)| slots.contains(slot.index()))
    }

    /// The old bytes `start..end` of a member's chunk, which the plan had read: where they are, if they are
    /// in one piece.
    pub(super) fn old(&self, slot: MemberSlot, start: u32, end: u32) -> Old<'_> {
        let holds = |t: &Transfer| t.slot == slot && t.start <= start && end <= t.end;
        match self.transfers.iter().position(holds) {
            Some(index) => {
                let from = (start - self.transfers[index].start) as usize;
                Old::Here(&self.bytes[index][from..from + (end - start) as usize])
            }
            None => Old::Gathered(self.range(slot, start, end)),
        }
    }

    /// As [`PreRead::old`], to keep.
    pub(super) fn range(&self, slot: MemberSlot, start: u32, end: u32) -> Slice {
        let whole = self.transfers.iter().position(|t| t.slot == slot && t.start <= start && end <= t.end);
        if let Some(index) = whole {
            return self.bytes[index]
                .slice((start - self.transfers[index].start) as usize, (end - start) as usize);
        }
        let mut buffer = shard::buffer((end - start) as usize);
        let mut known = 0;
        for (transfer, bytes) in self.transfers.iter().zip(&self.bytes).filter(|(t, _)| t.slot == slot) {
            known += copy_overlap(&mut buffer, start, bytes, transfer.start);
        }
        assert_eq!(
            known,
            buffer.len(),
            "old bytes {start}..{end} of slot {slot} were not all read, or twice"
        );
        buffer.freeze()
    }

    /// Old parity of a run, from reads and cached rows.
    pub(super) fn parity(&self, map: StripeMap, parity: Parity, run: &Run) -> Slice {
        let slot = if parity == Parity::P { Some(map.p_slot()) } else { map.q_slot() };
        let reads = || self.transfers.iter().zip(&self.bytes).filter(|(t, _)| Some(t.slot) == slot);
        if let Some((transfer, bytes)) = reads().find(|(t, _)| t.start <= run.start && run.end <= t.end) {
            return bytes.slice((run.start - transfer.start) as usize, run.length() as usize);
        }
        let mut buffer = shard::buffer(run.length() as usize);
        let mut known = 0;
        for (transfer, bytes) in reads() {
            known += copy_overlap(&mut buffer, run.start, bytes, transfer.start);
        }
        for (_, row, bytes) in self.rows.iter().filter(|(p, ..)| *p == parity) {
            known += copy_overlap(&mut buffer, run.start, bytes, row * PAGE_BYTES);
        }
        assert!(known >= buffer.len(), "old parity of rows {}..{} is not all at hand", run.start, run.end);
        buffer.freeze()
    }

    /// Old parity of a run in memory of our own, to be updated in place.
    pub(super) fn take_parity(&mut self, map: StripeMap, parity: Parity, run: &Run) -> Buffer {
        let slot = if parity == Parity::P { Some(map.p_slot()) } else { map.q_slot() };
        let exact = |t: &Transfer| Some(t.slot) == slot && (t.start, t.end) == (run.start, run.end);
        let is_row = |(p, row, _): &(Parity, u32, Slice)| {
            *p == parity && row * PAGE_BYTES == run.start && run.end - run.start == PAGE_BYTES
        };
        let bytes = if let Some(index) = self.transfers.iter().position(exact) {
            self.transfers.swap_remove(index);
            self.bytes.swap_remove(index)
        } else if let Some(index) = self.rows.iter().position(is_row) {
            self.rows.swap_remove(index).2
        } else {
            self.parity(map, parity, run)
        };
        bytes.try_into_buffer().unwrap_or_else(|shared| {
            let mut own = shard::buffer(shared.len());
            own.copy_from_slice(&shared);
            own
        })
    }
}

/// Copies what `from`, which begins at `from_start`, has of the range that begins at `to_start`. Returns how
/// many bytes.
fn copy_overlap(to: &mut [u8], to_start: u32, from: &[u8], from_start: u32) -> usize {
    let (to_start, from_start) = (to_start as usize, from_start as usize);
    let (begin, end) = (to_start.max(from_start), (to_start + to.len()).min(from_start + from.len()));
    if begin >= end {
        return 0;
    }
    to[begin - to_start..end - to_start].copy_from_slice(&from[begin - from_start..end - from_start]);
    end - begin
}
