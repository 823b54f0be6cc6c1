//! Lost bytes, summed up by a server.

use futures_util::future::join_all;
use pinstripe_runtime::{Buffer, Reducer, SubmissionSet, shard};

use crate::{
    geometry::{MemberSlot, Piece, Set64, StripeId, StripeMap},
    io::{
        parity::ParityVolume,
        remote::exchange::{Sent, Step},
    },
    membership::{attached::Attached, snapshot::View},
    offload::{coefficients::combination, reducer::Turn},
    units::to_u32,
};

/// A part of what a member holds in a stripe.
#[derive(Clone, Copy)]
pub(crate) struct Lost {
    pub(crate) stripe: StripeId,
    /// The member that holds it.
    pub(crate) slot: MemberSlot,
    /// Where it begins in the chunk.
    pub(crate) from: u32,
}

/// The server that sums up, and what each member is multiplied by.
struct Reduction<'r> {
    reducer: Turn<'r>,
    /// The reducer's own coefficient.
    own: u8,
    /// All others.
    others: Vec<(MemberSlot, u8)>,
}

/// What is lost of a chunk is summed up in pieces, by several servers at a time: of no more than so many
/// bytes,
const SUM_BYTES_MAX: u32 = 128 << 10;
/// of fewer where the reducer would receive more than so many,
const RECEIVED_BYTES: u32 = 1 << 20;
/// but not less than this.
const SUM_BYTES_MIN: u32 = 32 << 10;
/// So long a sum waits for room at the servers: what the client would do instead, it does with every byte on
/// its own link.
const ROOM_NS: u64 = 2_000_000_000;
/// The sum among what an operation brings.
const SUM: usize = usize::MAX;

/// What a user reads of a stripe besides a lost range: each piece in the part before that range, the part
/// beside it, if that is all of the range, and the part behind.
#[derive(Default)]
struct Around {
    pieces: Vec<Cut>,
}

struct Cut {
    column: usize,
    /// Read already, by where they begin.
    done: Vec<(u32, Buffer)>,
    failed: bool,
    middle: Option<Buffer>,
    rest: Vec<(u32, Buffer)>,
}

impl Around {
    /// Cuts the buffers of `pieces`, of which number `lost` is `range`.
    fn cut(range: &Piece, lost: usize, pieces: &[Piece], buffers: Vec<Buffer>) -> Self {
        let end = range.chunk_offset + range.length;
        let cut = |(index, (piece, mut buffer)): (usize, (&Piece, Buffer))| {
            let mut cut =
                Cut { column: piece.column, done: Vec::new(), failed: false, middle: None, rest: Vec::new() };
            let covers = piece.chunk_offset <= range.chunk_offset && end <= piece.chunk_offset + piece.length;
            if index == lost {
                cut.middle = Some(buffer);
            } else if covers {
                let before = buffer.split_to((range.chunk_offset - piece.chunk_offset) as usize);
                cut.middle = Some(buffer.split_to(range.length as usize));
                cut.rest.extend(Some((piece.chunk_offset, before)).filter(|(_, part)| !part.is_empty()));
                cut.rest.extend(Some((end, buffer)).filter(|(_, part)| !part.is_empty()));
            } else {
                cut.rest.push((piece.chunk_offset, buffer));
            }
            cut
        };
        Self { pieces: pieces.iter().zip(buffers).enumerate().map(cut).collect() }
    }

    /// The parts that the operation has nothing to do with.
    fn take_rest(&mut self) -> Vec<(usize, u32, Buffer)> {
        let parts = |(index, cut): (usize, &mut Cut)| {
            std::mem::take(&mut cut.rest).into_iter().map(move |(from, buffer)| (index, from, buffer))
        };
        self.pieces.iter_mut().enumerate().flat_map(parts).collect()
    }

    fn take_middle(&mut self, index: usize) -> Buffer {
        let middle = self.pieces[index].middle.take();
        middle.unwrap_or_else(|| unreachable!("it was cut and is not taken yet"))
    }

    /// What a member holds beside the lost range, if it is read.
    fn middle_of(&mut self, map: StripeMap, slot: usize) -> Option<(usize, Buffer)> {
        let of_slot = |cut: &Cut| map.data_slot(cut.column).index() == slot;
        let index = self.pieces.iter().position(of_slot)?;
        Some((index, self.pieces[index].middle.take()?))
    }

    /// The parts beside the lost range that are not read yet.
    fn take_middles(&mut self, lost: usize) -> Vec<(usize, Buffer)> {
        let middle =
            |(index, cut): (usize, &mut Cut)| Some((index, cut.middle.take().filter(|_| index != lost)?));
        self.pieces.iter_mut().enumerate().filter_map(middle).collect()
    }

    fn give_back(&mut self, index: usize, buffer: Buffer) {
        self.pieces[index].middle = Some(buffer);
    }

    fn put(&mut self, index: usize, from: u32, buffer: Buffer, is_read: bool) {
        let cut = &mut self.pieces[index];
        cut.failed |= !is_read;
        cut.done.push((from, buffer));
    }

    /// The buffers of the pieces, and whether all of each was read.
    fn join(self) -> Vec<(Buffer, bool)> {
        let join = |mut cut: Cut| {
            cut.done.sort_by_key(|(from, _)| *from);
            let parts = cut.done.into_iter().map(|(_, part)| part);
            let whole = parts.reduce(|mut whole, part| {
                whole.unsplit(part);
                whole
            });
            (whole.unwrap_or_else(|| unreachable!("a piece has a byte")), !cut.failed)
        };
        self.pieces.into_iter().map(join).collect()
    }
}

fn length_of(buffer: &Buffer) -> u32 {
    to_u32(buffer.len())
}

impl ParityVolume {
    /// Whether lost bytes may be had from the servers.
    pub(crate) fn may_reduce(&self, view: &View) -> bool {
        view.snapshot.attached().is_some() && !self.shared.offload.is_paused()
    }

    /// Fills `buffer` with what a lost piece holds, for a user. Else like [`ParityVolume::read_lost`].
    pub(crate) async fn read_reduced(&self, view: &View, piece: &Piece, buffer: Buffer) -> (bool, Buffer) {
        let (is_read, buffer) = self.read_lost(view, self.lost(piece), buffer).await;
        if is_read {
            self.counters().reconstructed_reads.add(1);
            self.counters().offloaded_reads.add(1);
        }
        (is_read, buffer)
    }

    fn lost(&self, piece: &Piece) -> Lost {
        let slot = self.geometry.slots(piece.stripe).data_slot(piece.column);
        Lost { stripe: piece.stripe, slot, from: piece.chunk_offset }
    }

    /// Fills `buffer` with what a member holds, or should. The caller holds the claim. False if the servers
    /// can't: then the buffer holds anything.
    pub(crate) async fn read_lost(&self, view: &View, mut lost: Lost, mut buffer: Buffer) -> (bool, Buffer) {
        let Some(attached) = view.snapshot.attached().cloned() else { return (false, buffer) };
        let members = to_u32(view.snapshot.seats.len());
        let piece = (RECEIVED_BYTES / members).clamp(SUM_BYTES_MIN, SUM_BYTES_MAX).min(attached.range_bytes);
        // Whole blocks.
        let piece = piece - piece % 4096;
        let mut sums = Vec::new();
        while !buffer.is_empty() {
            let length = piece.min(length_of(&buffer));
            let (part, attached, range) = (buffer.split_to(length as usize), &attached, lost);
            sums.push(async move { self.reduce(view, attached, range, part, &mut Around::default()).await });
            lost.from += length;
        }
        let mut is_read = true;
        let sums = join_all(sums).await.into_iter().map(|(is_summed, part)| {
            is_read &= is_summed;
            part
        });
        let whole = sums.reduce(|mut whole, part| {
            whole.unsplit(part);
            whole
        });
        (is_read, whole.unwrap_or(buffer))
    }

    /// Reads pieces of one stripe, of which exactly one is lost, into their buffers: what the user reads of
    /// the others anyway goes to the user and into the sum at once. Which pieces were read.
    pub(crate) async fn read_around(&self, pieces: &[Piece], parts: &mut Vec<Buffer>) -> Set64 {
        let Some(first) = pieces.first() else { return Set64::EMPTY };
        let claim = self.claim_alone(first.stripe).await;
        let view = self.members.view();
        let attached = view.snapshot.attached().filter(|_| self.may_reduce(&view)).cloned();
        let mut lost = (0..pieces.len()).filter(|&index| !self.is_readable(&view, &pieces[index]));
        let (Some(attached), Some(lost), None) = (attached, lost.next(), lost.next()) else {
            return Set64::EMPTY;
        };
        let range = pieces[lost];
        if range.length > attached.range_bytes || self.is_partly_there(&view, &range, false) {
            return Set64::EMPTY;
        }
        let mut around = Around::cut(&range, lost, pieces, std::mem::take(parts));
        let mut rest = SubmissionSet::default();
        for (index, from, buffer) in around.take_rest() {
            let part = Piece { chunk_offset: from, length: length_of(&buffer), ..pieces[index] };
            rest.push((index, from), self.submit_piece(&view, &part, buffer));
        }
        let buffer = around.take_middle(lost);
        let (is_read, buffer) = self.reduce(&view, &attached, self.lost(&range), buffer, &mut around).await;
        around.put(lost, range.chunk_offset, buffer, is_read);
        // What the servers didn't bring with the sum is read as ever.
        for (index, buffer) in around.take_middles(lost) {
            let part = Piece { chunk_offset: range.chunk_offset, length: range.length, ..pieces[index] };
            let read = self.submit_piece(&view, &part, buffer);
            rest.push((index, range.chunk_offset), read);
        }
        rest.wait().await;
        for ((index, from), outcome) in rest.drain() {
            let Some(buffer) = outcome.buffer else { unreachable!("a read gives its buffer back") };
            around.put(index, from, buffer, outcome.result.is_ok());
        }
        drop(claim);
        if is_read {
            self.counters().reconstructed_reads.add(1);
            self.counters().offloaded_reads.add(1);
        }
        let mut whole = Set64::EMPTY;
        for (index, (buffer, is_whole)) in around.join().into_iter().enumerate() {
            let slot = self.geometry.slots(first.stripe).data_slot(pieces[index].column).index();
            if is_whole && (index == lost || self.still_holds(&view, slot)) {
                whole.insert(index);
            }
            parts.push(buffer);
        }
        whole
    }

    /// Whether the member of a piece can be asked for it.
    pub(crate) fn is_readable(&self, view: &View, piece: &Piece) -> bool {
        let geometry = &self.geometry;
        let slot = geometry.slots(piece.stripe).data_slot(piece.column).index();
        let offset = geometry.member_offset(piece.stripe) + u64::from(piece.chunk_offset);
        view.readable(slot, offset, piece.length.into()).is_some()
    }

    /// One operation. What of `around` its members are read anyway comes with it.
    async fn reduce(
        &self,
        view: &View,
        attached: &Attached,
        lost: Lost,
        buffer: Buffer,
        around: &mut Around,
    ) -> (bool, Buffer) {
        let length = length_of(&buffer);
        let Some(reduction) = self.plan_reduction(view, attached, lost, length) else {
            return (false, buffer);
        };
        let others = reduction.others.iter().map(|(slot, _)| slot.index());
        let participants = others.chain([reduction.reducer.slot]).collect::<Set64>();
        let alone = std::iter::once(participants);
        let reserved = self.shared.offload.reserve(view, attached, alone, ROOM_NS).await;
        let Some(reserved) = reserved else { return (false, buffer) };
        let ticket = reserved.ticket(0);
        self.counters().offload_operations.add(1);
        let (mut requests, mut spare) = (SubmissionSet::default(), Some(buffer));
        let offset = self.geometry.member_offset(lost.stripe) + u64::from(lost.from);
        let place = MemberSlot(reduction.reducer.slot.to_le_bytes()[0]).0;
        for (slot, coefficient) in &reduction.others {
            let Some((member, server)) = view.member(slot.index()).and_then(|(m, d)| Some((m, d.offload()?)))
            else {
                continue;
            };
            let reducers = [Some(Reducer { place, coefficient: *coefficient }), None];
            let at = member.data_offset + offset;
            let slot = slot.index();
            let wanted = around.middle_of(self.geometry.slots(lost.stripe), slot);
            if let Some((number, buffer)) = wanted {
                let sent = server.read_contribute(ticket, at, buffer, reducers);
                requests.push(Step::Deliver { slot, number }, sent);
            } else {
                let sent = server.contribute(ticket, at, length, reducers);
                requests.push(Step::Prepare { slot }, sent);
            }
        }
        if let Some((member, device)) = view.member(reduction.reducer.slot)
            && let Some(server) = device.offload()
            && let Some(buffer) = spare.take()
        {
            let wait = u16::try_from(reduction.others.len()).expect("fewer than there are members");
            let read = server.reduce(ticket, member.data_offset + offset, buffer, reduction.own, wait);
            requests.push(Step::Deliver { slot: reduction.reducer.slot, number: SUM }, read);
        }
        let sent = [Sent { ticket, participants }];
        let is_read = self.prepared(view, &sent, &mut requests).await;
        let mut results = Vec::new();
        for (step, outcome) in requests.drain() {
            results.push((step, outcome.result));
            match (step, outcome.buffer) {
                (Step::Deliver { number: SUM, .. }, buffer) => spare = buffer,
                (Step::Deliver { number, .. }, Some(buffer)) if outcome.result.is_ok() => {
                    around.put(number, lost.from, buffer, true);
                }
                (Step::Deliver { number, .. }, Some(buffer)) => around.give_back(number, buffer),
                _ => {}
            }
        }
        if !is_read {
            self.counters().offload_fallbacks.add(1);
            if self.judge(view, &results).refused {
                self.shared.offload.pause();
            }
        }
        let buffer = spare.unwrap_or_else(|| shard::buffer(length as usize));
        (is_read && buffer.len() == length as usize, buffer)
    }

    /// Chooses the reducer and the coefficients; `None` if the servers can't do it.
    fn plan_reduction(
        &self,
        view: &View,
        attached: &Attached,
        lost: Lost,
        length: u32,
    ) -> Option<Reduction<'_>> {
        let geometry = &self.geometry;
        let map = geometry.slots(lost.stripe);
        let offset = geometry.member_offset(lost.stripe) + u64::from(lost.from);
        let length = u64::from(length);
        let intent = &view.snapshot.intent;
        // C10: where P and Q may tell different stories, the client decides which counts.
        if intent.needs_resync(intent.regions(offset, length)) {
            return None;
        }
        let readable = Set64::below(map.members()).without(view.unreadable(offset, length));
        let sum = combination(map, lost.slot, readable)?;
        let slots: Set64 = sum.iter().map(|(slot, _)| slot.index()).collect();
        if !slots.without(attached.slots).is_empty() {
            return None;
        }
        let received = length * (sum.len() as u64).saturating_sub(1);
        let choice = self.shared.options.reducer;
        let reducer = self.shared.offload.reducers.choose(choice, slots, received)?;
        let own =
            sum.iter().find(|(slot, _)| slot.index() == reducer.slot).map(|(_, coefficient)| *coefficient)?;
        let others = sum.into_iter().filter(|(slot, _)| slot.index() != reducer.slot).collect();
        Some(Reduction { reducer, own, others })
    }
}
