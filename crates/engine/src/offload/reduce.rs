//! Lost bytes, summed up by a server.

use pinstripe_runtime::{Buffer, Reducer, shard};

use super::{Attached, Requests, Sent, Step, attached, coefficients::combination};
use crate::{
    geometry::{MemberSlot, Piece, Set64},
    snapshot::View,
    volume::VolumeInner,
};

/// Who sums up, and what each member is multiplied by.
struct Reduction {
    reducer: usize,
    /// The reducer's own coefficient.
    own: u8,
    /// All others.
    others: Vec<(MemberSlot, u8)>,
}

impl VolumeInner {
    /// Whether lost bytes may be had from the servers.
    pub(crate) fn may_reduce(&self, view: &View) -> bool {
        attached(&view.snapshot).is_some() && !self.shared.offload.is_paused()
    }

    /// Fills `buffer` with what a lost chunk holds. The caller holds the claim. False if the servers can't: then the buffer holds
    /// anything.
    pub(crate) async fn read_reduced(&self, view: &View, piece: &Piece, mut buffer: Buffer) -> (bool, Buffer) {
        let Some(attached) = attached(&view.snapshot).cloned() else { return (false, buffer) };
        let mut whole: Option<Buffer> = None;
        let mut from = piece.chunk_offset;
        while !buffer.is_empty() {
            let length = attached.range_bytes.min(u32::try_from(buffer.len()).unwrap_or(u32::MAX));
            let part = buffer.split_to(length as usize);
            let range = Piece { chunk_offset: from, length, ..*piece };
            let (is_read, part) = self.reduce(view, &attached, &range, part).await;
            from += length;
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => whole.unsplit(part),
            }
            if !is_read {
                let mut whole = whole.unwrap_or_else(|| unreachable!("it was put there just now"));
                whole.unsplit(buffer);
                return (false, whole);
            }
        }
        self.counters().reconstructed_reads.add(1);
        self.counters().offloaded_reads.add(1);
        (true, whole.unwrap_or(buffer))
    }

    /// One operation.
    async fn reduce(
        &self,
        view: &View,
        attached: &Attached,
        range: &Piece,
        buffer: Buffer,
    ) -> (bool, Buffer) {
        let Some(reduction) = self.plan_reduction(view, attached, range) else { return (false, buffer) };
        let others = reduction.others.iter().map(|(slot, _)| slot.index());
        let participants = others.chain([reduction.reducer]).collect::<Set64>();
        let reserved = self.shared.offload.reserve(view, attached, std::iter::once(participants)).await;
        let Some(reserved) = reserved else { return (false, buffer) };
        let ticket = reserved.ticket(0);
        self.counters().offload_operations.add(1);
        let (mut requests, mut spare) = (Requests::new(), Some(buffer));
        let offset = self.parity_geometry().member_offset(range.stripe) + u64::from(range.chunk_offset);
        let place = MemberSlot(reduction.reducer.to_le_bytes()[0]).0;
        for (slot, coefficient) in &reduction.others {
            let Some((member, server)) = view.member(slot.index()).and_then(|(m, d)| Some((m, d.offload()?))) else {
                continue;
            };
            let reducers = [Some(Reducer { place, coefficient: *coefficient }), None];
            let at = member.data_offset + offset;
            let sent = server.contribute(ticket, at, range.length, reducers);
            requests.push(Step::Prepare { slot: slot.index() }, sent);
        }
        if let Some((member, device)) = view.member(reduction.reducer)
            && let Some(server) = device.offload()
            && let Some(buffer) = spare.take()
        {
            let wait = u16::try_from(reduction.others.len()).unwrap_or(u16::MAX);
            let read = server.reduce(ticket, member.data_offset + offset, buffer, reduction.own, wait);
            requests.push(Step::Deliver { slot: reduction.reducer, number: 0 }, read);
        }
        let sent = [Sent { ticket, participants }];
        let is_read = self.prepared(view, &sent, &mut requests).await;
        let mut results = Vec::new();
        for (step, outcome) in requests.take() {
            results.push((step, outcome.result));
            if matches!(step, Step::Deliver { .. }) {
                spare = outcome.buffer;
            }
        }
        if !is_read {
            self.counters().offload_fallbacks.add(1);
            if self.judge(view, &results).refused {
                self.shared.offload.pause();
            }
        }
        let buffer = spare.unwrap_or_else(|| shard::buffer(range.length as usize));
        (is_read && buffer.len() == range.length as usize, buffer)
    }

    /// Who is to do what; `None` if it can't be done so.
    fn plan_reduction(&self, view: &View, attached: &Attached, range: &Piece) -> Option<Reduction> {
        let geometry = self.parity_geometry();
        let map = geometry.slots(range.stripe);
        let offset = geometry.member_offset(range.stripe) + u64::from(range.chunk_offset);
        let length = u64::from(range.length);
        let intent = &view.snapshot.intent;
        // C10: where P and Q may tell different stories, the client decides which counts.
        if intent.needs_resync(intent.regions(offset, length)) {
            return None;
        }
        let readable = Set64::below(map.members()).without(view.unreadable(offset, length));
        let sum = combination(map, map.data_slot(range.column), readable)?;
        let slots: Set64 = sum.iter().map(|(slot, _)| slot.index()).collect();
        if !slots.without(attached.slots).is_empty() {
            return None;
        }
        let received = length * (sum.len() as u64).saturating_sub(1);
        let choice = self.shared.options.reducer;
        let reducer = self.shared.offload.draw().choose(shard::now(), choice, slots, received)?;
        let own = sum.iter().find(|(slot, _)| slot.index() == reducer).map(|(_, coefficient)| *coefficient)?;
        let others = sum.into_iter().filter(|(slot, _)| slot.index() != reducer).collect();
        Some(Reduction { reducer, own, others })
    }
}
