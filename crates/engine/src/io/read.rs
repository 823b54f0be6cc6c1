//! Reads: straight from the member where it can answer, from the others under the stripe's claim where it
//! can't.

use pinstripe_runtime::{Buffer, DeviceError, DeviceErrorKind, Submission, SubmissionSet, shard};

use crate::{
    error::{IoError, Operation},
    geometry::{Piece, Set64},
    io::{
        parity::ParityVolume,
        row::{RowRange, Want},
    },
    membership::snapshot::View,
    mutants::{Mutant, active, ignoring},
    stripe::parity_cache::PAGE_BYTES,
};

impl ParityVolume {
    /// Reads from a parity array: every chunk at once, and then one by one what could not be answered.
    pub(crate) async fn read_parity(&self, offset: u64, mut rest: Buffer) -> (Result<(), IoError>, Buffer) {
        let Ok(mut pieces) = self.geometry.pieces(offset, rest.len() as u64) else {
            unreachable!("the range was checked");
        };
        let Some(first) = pieces.next() else { return (Ok(()), rest) };
        if first.length as usize == rest.len() {
            return self.read_piece(&first, rest).await;
        }
        let view = self.members.view();
        if !view.snapshot.missing.is_empty() && self.may_reduce(&view) {
            return Box::pin(self.read_by_stripes(std::iter::once(first).chain(pieces), rest)).await;
        }
        let mut set = self.reads.take();
        for piece in std::iter::once(first).chain(pieces) {
            let buffer = rest.split_to(piece.length as usize);
            // Inline answers of a memory device make this a plain loop.
            set.push(piece, self.submit_piece(&view, &piece, buffer));
        }
        set.wait().await;
        let mut whole: Option<Buffer> = None;
        let mut result = Ok(());
        for (piece, outcome) in set.drain() {
            let Some(buffer) = outcome.buffer else { unreachable!("a read gives its buffer back") };
            let slot = self.geometry.slots(piece.stripe).data_slot(piece.column).index();
            let buffer = if outcome.result.is_ok() && self.still_holds(&view, slot) {
                buffer
            } else {
                let (again, buffer) = self.read_piece(&piece, buffer).await;
                result = result.and(again);
                buffer
            };
            match &mut whole {
                None => whole = Some(buffer),
                Some(whole) => whole.unsplit(buffer),
            }
        }
        self.reads.give(set);
        (result, whole.unwrap_or(rest))
    }

    /// Reads whole stripes at once, and those of which one piece is lost one by one, so that a server can sum
    /// that up while the others are on their way.
    async fn read_by_stripes(
        &self,
        pieces: impl Iterator<Item = Piece>,
        mut rest: Buffer,
    ) -> (Result<(), IoError>, Buffer) {
        let pieces: Vec<Piece> = pieces.collect();
        let mut buffers: Vec<Option<Buffer>> =
            pieces.iter().map(|piece| Some(rest.split_to(piece.length as usize))).collect();
        let (view, mut whole, mut from) = (self.members.view(), SubmissionSet::default(), 0);
        let mut is_read = vec![false; pieces.len()];
        let mut around = Vec::new();
        for stripe in pieces.chunk_by(|a, b| a.stripe == b.stripe) {
            let range = from..from + stripe.len();
            from = range.end;
            if stripe.iter().filter(|piece| !self.is_readable(&view, piece)).count() == 1 {
                around.push(range);
                continue;
            }
            for index in range {
                if let Some(buffer) = buffers[index].take() {
                    whole.push(index, self.submit_piece(&view, &pieces[index], buffer));
                }
            }
        }
        for range in around {
            let mut parts = buffers[range.clone()].iter_mut().filter_map(Option::take).collect();
            let read = self.read_around(&pieces[range.clone()], &mut parts).await;
            for ((number, index), part) in range.enumerate().zip(parts) {
                is_read[index] = read.contains(number);
                buffers[index] = Some(part);
            }
        }
        whole.wait().await;
        for (index, outcome) in whole.drain() {
            let slot = self.geometry.slots(pieces[index].stripe).data_slot(pieces[index].column).index();
            is_read[index] = outcome.result.is_ok() && self.still_holds(&view, slot);
            buffers[index] = outcome.buffer;
        }
        let (mut joined, mut result): (Option<Buffer>, _) = (None, Ok(()));
        for ((piece, buffer), is_read) in pieces.iter().zip(buffers).zip(is_read) {
            let Some(mut buffer) = buffer else { unreachable!("a read gives its buffer back") };
            if !is_read {
                let (again, back) = self.read_piece(piece, buffer).await;
                (result, buffer) = (result.and(again), back);
            }
            match &mut joined {
                None => joined = Some(buffer),
                Some(joined) => joined.unsplit(buffer),
            }
        }
        (result, joined.unwrap_or(rest))
    }

    pub(crate) fn submit_piece(&self, view: &View, piece: &Piece, buffer: Buffer) -> Submission {
        let slot = self.geometry.slots(piece.stripe).data_slot(piece.column).index();
        let offset = self.geometry.member_offset(piece.stripe) + u64::from(piece.chunk_offset);
        match view.readable(slot, offset, piece.length.into()) {
            Some((member, device)) => {
                self.count_read(piece);
                device.read(member.data_offset + offset, buffer)
            }
            None => Submission::done(Err(DeviceError::of(DeviceErrorKind::Media)), Some(buffer)),
        }
    }

    fn count_read(&self, piece: &Piece) {
        let counters = self.counters();
        counters.member_reads.add(1);
        counters.member_read_bytes.add(piece.length.into());
    }

    /// Whether the member that answered under `view` is still in sync in that slot (C1).
    pub(crate) fn still_holds(&self, view: &View, slot: usize) -> bool {
        if self.shared.admission.generation() == view.snapshot.generation {
            return true;
        }
        let now = self.members.view();
        !now.snapshot.missing.contains(slot)
            && now.snapshot.seats[slot].member().map(|m| m.id)
                == view.snapshot.seats[slot].member().map(|m| m.id)
    }

    /// Reads a part of one chunk.
    async fn read_piece(&self, piece: &Piece, mut buffer: Buffer) -> (Result<(), IoError>, Buffer) {
        let slot = self.geometry.slots(piece.stripe).data_slot(piece.column).index();
        let offset = self.geometry.member_offset(piece.stripe) + u64::from(piece.chunk_offset);
        loop {
            let view = self.members.view();
            let Some((member, device)) = view.readable(slot, offset, piece.length.into()) else {
                return self.read_reconstructed(piece, buffer, None).await;
            };
            let started = if self.members.sample() { Some(shard::now()) } else { None };
            self.count_read(piece);
            let outcome = device.read(member.data_offset + offset, buffer).await;
            let Some(back) = outcome.buffer else { unreachable!("a read gives its buffer back") };
            buffer = back;
            match ignoring(Mutant::ReadErrorIgnored, outcome.result) {
                Ok(_) if self.still_holds(&view, slot) => {
                    if let Some(started) = started {
                        member.cost.record_read(piece.length.into(), shard::now() - started);
                    }
                    return (Ok(()), buffer);
                }
                Ok(_) => {}
                Err(error) => {
                    if error.kind != DeviceErrorKind::Media {
                        self.members.report_data(&view, slot, Operation::Read, offset, error);
                    }
                    let repair = (error.kind == DeviceErrorKind::Media).then_some(slot);
                    return self.read_reconstructed(piece, buffer, repair).await;
                }
            }
        }
    }

    /// Answers from the other members, under the claim; with `repair`, rewrites the sectors of that slot in
    /// the same claim (C14).
    async fn read_reconstructed(
        &self,
        piece: &Piece,
        mut buffer: Buffer,
        repair: Option<usize>,
    ) -> (Result<(), IoError>, Buffer) {
        let mut claim = if active(Mutant::DegradedReadWithoutClaim) {
            None
        } else {
            Some(self.claim_alone(piece.stripe).await)
        };
        let view = self.members.view();
        if repair.is_none() && self.may_reduce(&view) && !self.is_partly_there(&view, piece, false) {
            let (is_read, back) = Box::pin(self.read_reduced(&view, piece, buffer)).await;
            if is_read {
                return (Ok(()), back);
            }
            buffer = back;
        }
        drop(view);
        let mut row = self.rows.take();
        let range = (piece.chunk_offset, piece.chunk_offset + piece.length);
        let avoid = repair.map_or(Set64::EMPTY, Set64::only);
        let want = Want { columns: Set64::only(piece.column), parity: false, avoid };
        let (view, by_rows, result) = loop {
            let view = self.members.view();
            let (mut by_rows, mut result) = (self.is_partly_there(&view, piece, repair.is_some()), Ok(()));
            if !by_rows {
                let columns = self.geometry.slots(piece.stripe).columns();
                let urgent = self.caching_journal().is_some();
                let taken = self.room.for_row(columns, piece.length, urgent).await;
                result = self.read_row(&view, piece.stripe, range, want, &mut row).await;
                drop(taken);
                by_rows =
                    matches!(result, Err(IoError::Unreadable { .. })) && self.is_divisible(&view, piece);
            }
            if by_rows {
                result = self.read_by_rows(&view, piece, &mut buffer, &mut row).await;
            }
            // With the members that there are by now it may be possible after all: one has just been rebuilt,
            // say (C1).
            if result.is_ok() || self.shared.admission.generation() == view.snapshot.generation {
                break (view, by_rows, result);
            }
        };
        if let (false, Ok(()), Some(bytes)) =
            (by_rows, &result, row.data.get(piece.column).cloned().flatten())
        {
            self.counters().reconstructed_reads.add(1);
            buffer.copy_from_slice(&bytes);
            drop(claim.take_if(|_| active(Mutant::RepairOutsideClaim)));
            if let Some(slot) = repair {
                self.rewrite(&view, slot, piece, bytes).await;
            }
        }
        row.clear(0);
        self.rows.give(row);
        drop(claim);
        (result, buffer)
    }

    /// Whether the member of a piece may have a part of it, although it lists the piece as bad or has just
    /// refused it. Only the rest is to be made from the others then, for they may be wrong where nothing has
    /// read them yet.
    pub(crate) fn is_partly_there(&self, view: &View, piece: &Piece, is_refused: bool) -> bool {
        let slot = self.geometry.slots(piece.stripe).data_slot(piece.column).index();
        let offset = self.geometry.member_offset(piece.stripe) + u64::from(piece.chunk_offset);
        let is_listed = view.snapshot.is_bad(slot, offset, piece.length.into());
        !view.snapshot.missing.contains(slot)
            && (is_refused || is_listed)
            && self.is_divisible(view, piece)
            && !active(Mutant::HealsWholeChunk)
    }

    /// Whether a part of a piece may be read where the whole of it can't be: it lies in several rows, or what
    /// members list as bad changes in it.
    fn is_divisible(&self, view: &View, piece: &Piece) -> bool {
        let (from, end) = (piece.chunk_offset, piece.chunk_offset + piece.length);
        let several = (from / PAGE_BYTES + 1) * PAGE_BYTES < end;
        let base = self.geometry.member_offset(piece.stripe);
        several || view.uniform(base, (from, end), self.geometry.logical_block()) < end
    }

    /// Reads a part of one chunk row by row: sectors that several members can't read are lost only where they
    /// are in one row. The caller holds the claim.
    async fn read_by_rows(
        &self,
        view: &View,
        piece: &Piece,
        buffer: &mut Buffer,
        row: &mut RowRange,
    ) -> Result<(), IoError> {
        let slot = self.geometry.slots(piece.stripe).data_slot(piece.column).index();
        let (base, block) = (self.geometry.member_offset(piece.stripe), self.geometry.logical_block());
        let end = piece.chunk_offset + piece.length;
        let mut from = piece.chunk_offset;
        while from < end {
            let to = view.uniform(base, (from, end.min((from / PAGE_BYTES + 1) * PAGE_BYTES)), block);
            let want = Want { columns: Set64::only(piece.column), parity: false, avoid: Set64::EMPTY };
            self.read_row(view, piece.stripe, (from, to), want, row).await?;
            let bytes = row.data[piece.column].take().unwrap_or_else(|| unreachable!("it was wanted"));
            let at = (from - piece.chunk_offset) as usize;
            buffer[at..at + bytes.len()].copy_from_slice(&bytes);
            let could_read = view.readable(slot, base + u64::from(from), (to - from).into()).is_some();
            if !could_read || row.unreadable.contains(slot) {
                self.counters().reconstructed_reads.add(1);
            }
            if row.unreadable.contains(slot) {
                let part = Piece { chunk_offset: from, length: to - from, ..*piece };
                self.rewrite(view, slot, &part, bytes).await;
            }
            from = to;
        }
        Ok(())
    }
}
