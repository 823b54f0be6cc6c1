//! All data of a row range of one stripe, whatever is missing: read what is needed, reconstruct the rest.
//!
//! This is the one place that decodes. Degraded reads, reconstruct-writes, read repair, resync, rebuild and
//! scrub all use it, each under the claim of the stripe.

use pinstripe_runtime::{DeviceErrorKind, Slice, SubmissionSet, shard};

use crate::{
    error::{IoError, Operation},
    geometry::{MEMBERS_MAX, MemberSlot, Set64, StripeId, StripeMap},
    io::parity::ParityVolume,
    membership::snapshot::View,
    mutants::{Mutant, ignoring},
    stripe::decode::Sources,
};

/// A row range of a stripe. Reusable.
#[derive(Default)]
pub(crate) struct RowRange {
    /// By data column: the bytes, as far as they were needed.
    pub(crate) data: Vec<Option<Slice>>,
    /// P as it is on the member, if it was read.
    pub(crate) p: Option<Slice>,
    /// Q as it is on the member, if it was read.
    pub(crate) q: Option<Slice>,
    /// Slots of members that are in sync and could not read their sectors.
    pub(crate) unreadable: Set64,
    /// The reads under way, each of a slot.
    set: SubmissionSet<usize>,
}

/// What of a row is wanted.
#[derive(Clone, Copy)]
pub(crate) struct Want {
    /// Data columns.
    pub(crate) columns: Set64,
    /// P and Q too, as far as their members can be read.
    pub(crate) parity: bool,
    /// Slots not to read from.
    pub(crate) avoid: Set64,
}

impl RowRange {
    pub(crate) fn clear(&mut self, columns: usize) {
        self.data.clear();
        self.data.resize(columns, None);
        self.p = None;
        self.q = None;
        self.unreadable = Set64::EMPTY;
    }

    fn has(&self, map: StripeMap, slot: usize) -> bool {
        self.part(map, slot).is_some()
    }

    fn part(&self, map: StripeMap, slot: usize) -> Option<&Slice> {
        match map.role(low(slot)) {
            crate::geometry::Role::Data(column) => self.data[column].as_ref(),
            crate::geometry::Role::P => self.p.as_ref(),
            crate::geometry::Role::Q => self.q.as_ref(),
        }
    }

    fn put(&mut self, map: StripeMap, slot: usize, bytes: Slice) {
        match map.role(low(slot)) {
            crate::geometry::Role::Data(column) => self.data[column] = Some(bytes),
            crate::geometry::Role::P => self.p = Some(bytes),
            crate::geometry::Role::Q => self.q = Some(bytes),
        }
    }
}

fn low(slot: usize) -> MemberSlot {
    MemberSlot::at(slot)
}

impl ParityVolume {
    /// Reads the chunk range `from..to` of `stripe` into `row` until every column of `want` is known. The
    /// caller holds the claim.
    pub(crate) async fn read_row(
        &self,
        view: &View,
        stripe: StripeId,
        (from, to): (u32, u32),
        want: Want,
        row: &mut RowRange,
    ) -> Result<(), IoError> {
        let map = self.geometry.slots(stripe);
        row.clear(map.columns());
        loop {
            let slots = self.slots_to_read(view, map, stripe, (from, to), want, row)?;
            if slots.is_empty() {
                break;
            }
            self.read_slots(view, stripe, (from, to), slots, map, row).await;
        }
        self.reconstruct(map, want.columns, (to - from) as usize, row)
            .map_err(|missing| IoError::Unreadable { stripe: stripe.0, missing })
    }

    /// The same, block by block where the whole can't be read: each block may be made of other members.
    pub(crate) async fn read_row_in_blocks(
        &self,
        view: &View,
        stripe: StripeId,
        (from, to): (u32, u32),
        want: Want,
        row: &mut RowRange,
    ) -> Result<(), IoError> {
        let read = self.read_row(view, stripe, (from, to), want, row).await;
        let block = self.geometry.logical_block();
        if !matches!(read, Err(IoError::Unreadable { .. })) || to - from <= block {
            return read;
        }
        let buffer = |column| (column, shard::buffer((to - from) as usize));
        let mut whole: Vec<_> = want.columns.iter().map(buffer).collect();
        let mut unreadable = row.unreadable;
        for start in (from..to).step_by(block as usize) {
            self.read_row(view, stripe, (start, start + block), want, row).await?;
            unreadable = unreadable.or(row.unreadable);
            for (column, bytes) in &mut whole {
                let part = row.data[*column].as_deref().unwrap_or_default();
                bytes[(start - from) as usize..][..part.len()].copy_from_slice(part);
            }
        }
        row.clear(row.data.len());
        row.unreadable = unreadable;
        for (column, bytes) in whole {
            row.data[column] = Some(bytes.freeze());
        }
        Ok(())
    }

    /// Which slots must still be read. Every wanted column that is lost needs all other columns and as many
    /// parities as columns are lost in all.
    fn slots_to_read(
        &self,
        view: &View,
        map: StripeMap,
        stripe: StripeId,
        (from, to): (u32, u32),
        want: Want,
        row: &RowRange,
    ) -> Result<Set64, IoError> {
        let offset = self.geometry.member_offset(stripe) + u64::from(from);
        let readable = |slot: usize| {
            !want.avoid.contains(slot)
                && !row.unreadable.contains(slot)
                && view.readable(slot, offset, u64::from(to - from)).is_some()
        };
        let data_slot = |column| map.data_slot(column).index();
        let lost: Set64 =
            (0..map.columns()).filter(|&c| row.data[c].is_none() && !readable(data_slot(c))).collect();
        let mut slots: Set64 = want.columns.without(lost).iter().map(data_slot).collect();
        // P first: on a row that isn't in sync, all that recover a column have to see the same.
        let parities = || map.parity_slots().map(MemberSlot::index).filter(|&slot| readable(slot));
        if want.parity {
            slots = slots.or(parities().collect());
        }
        if !lost.and(want.columns).is_empty() {
            let unreadable = IoError::Unreadable { stripe: stripe.0, missing: lost.len() };
            // C10: parity of torn rows can't stand in for data.
            let intent = &view.snapshot.intent;
            if parities().count() < lost.len() || intent.is_torn(intent.regions(offset, u64::from(to - from)))
            {
                return Err(unreadable);
            }
            slots = slots.or((0..map.columns()).filter(|&c| !lost.contains(c)).map(data_slot).collect());
            slots = slots.or(parities().take(lost.len()).collect());
        }
        Ok(slots.iter().filter(|&slot| !row.has(map, slot)).collect())
    }

    async fn read_slots(
        &self,
        view: &View,
        stripe: StripeId,
        (from, to): (u32, u32),
        slots: Set64,
        map: StripeMap,
        row: &mut RowRange,
    ) {
        let offset = self.geometry.member_offset(stripe) + u64::from(from);
        let mut set = std::mem::take(&mut row.set);
        for slot in slots {
            if let Some(submission) =
                self.submit_read(view, slot, offset, shard::buffer((to - from) as usize))
            {
                set.push(slot, submission);
            }
        }
        set.wait().await;
        for (slot, outcome) in set.drain() {
            match (ignoring(Mutant::RowErrorIgnored, outcome.result), outcome.buffer) {
                (Ok(_), Some(buffer)) => row.put(map, slot, buffer.freeze()),
                (Err(error), _) => {
                    row.unreadable.insert(slot);
                    if error.kind != DeviceErrorKind::Media {
                        self.members.report_data(view, slot, Operation::Read, offset, error);
                    }
                }
                (Ok(_), None) => row.unreadable.insert(slot),
            }
        }
        row.set = set;
    }

    fn reconstruct(
        &self,
        map: StripeMap,
        wanted: Set64,
        length: usize,
        row: &mut RowRange,
    ) -> Result<(), usize> {
        let lost: Set64 = (0..map.columns()).filter(|&c| row.data[c].is_none()).collect();
        if lost.and(wanted).is_empty() {
            return Ok(());
        }
        let mut data = [None; MEMBERS_MAX];
        for (column, bytes) in row.data.iter().enumerate() {
            data[column] = bytes.as_deref();
        }
        let sources = Sources { data: &data[..map.columns()], p: row.p.as_deref(), q: row.q.as_deref() };
        let mut first = shard::buffer(length);
        let mut second = shard::buffer(if lost.len() > 1 { length } else { 0 });
        let mut both = [&mut first[..], &mut second[..]];
        sources.recover_data(self.kernel, map, &mut both[..lost.len().min(2)]).map_err(|_| lost.len())?;
        for (column, bytes) in lost.iter().zip([first, second]) {
            row.data[column] = Some(bytes.freeze());
        }
        Ok(())
    }
}
