//! Both phases of a stripe write: what a batch goes through between its claim and its answer.

use std::{ops::Deref, pin::pin};

use futures_util::future::{Either, select};
use pinstripe_runtime::{DeviceError, DeviceErrorKind, Slice, SubmissionSet, shard};

use super::{
    back::{Back, caching_journal},
    context::WriteContext,
    plan_facts::PlanFacts,
    pre_read::PreRead,
};
use crate::{
    consistency::{self, Batch, Batches, LogError, Logged, Precedence},
    error::{IoError, Operation},
    geometry::{MemberSlot, Set64, StripeId, StripeMap},
    io::{
        base::Bytes,
        entry::{Inside, Intended, Moved, Writing},
        parity::ParityVolume,
        room::Taken,
    },
    members::MemberId,
    membership::snapshot::{Snapshot, View},
    mutants::{Mutant, active, early},
    plan::{Method, PlanError, Reconstruction, Run, Stripe, Transfer, WritePolicy, Written, plan_into},
    shared::Answer,
    stripe::{image::Piece, parity_cache::PAGE_BYTES, table::Claim},
    units::to_u32,
};

/// Why a batch starts over.
pub(super) enum Aborted {
    /// The membership changed, or a source could not be read.
    Replan,
    /// A medium could not deliver sectors of a source.
    Unread,
    /// A member failed and is reported: once it is out, there is another way.
    Without(MemberId),
    Fatal(IoError),
}

impl From<Moved> for Aborted {
    fn from(Moved: Moved) -> Self {
        Self::Replan
    }
}

impl From<LogError> for Aborted {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Member(member) => Self::Without(member),
            LogError::Moved => Self::Replan,
            LogError::Fatal(error) => Self::Fatal(error),
        }
    }
}

impl From<IoError> for Aborted {
    fn from(error: IoError) -> Self {
        Self::Fatal(error)
    }
}

/// A batch of writes of one stripe, under its claim.
pub(super) struct StripeWrite<'a> {
    pub(super) volume: &'a ParityVolume,
    pub(super) stripe: StripeId,
    /// Where its columns and its parity are.
    pub(super) map: StripeMap,
    pub(super) context: &'a mut WriteContext,
}

impl Deref for StripeWrite<'_> {
    type Target = ParityVolume;

    fn deref(&self) -> &ParityVolume {
        self.volume
    }
}

impl StripeWrite<'_> {
    /// Writes the batch, of which the image has what the owner writes, and what joins it.
    pub(super) async fn run(mut self, mut claim: Claim<'_, Piece, Answer>) -> Answer {
        self.counters().batches.add(1);
        if self.context.gathers {
            self.gather(&mut claim).await;
        }
        let journal = self.caching_journal();
        let back = match &journal {
            Some(journal) => Box::pin(self.write_back(journal, &mut claim)).await,
            None => Back::Through { is_alone: false },
        };
        let answer = match back {
            Back::Answered(answer) => answer,
            // One call: a second would keep it from being inlined in every write.
            Back::Through { is_alone } => self.write_through((!is_alone).then_some(&mut claim)).await,
        };
        self.note_if_torn(self.stripe, answer.is_err());
        let told = if active(Mutant::JoinersToldAll) { &Ok(()) } else { &answer };
        self.finish(claim, told, || self.context.image.rows(self.geometry.chunk_bytes()));
        answer
    }

    /// Writes a batch to the members. Writes that arrive at `claim` join.
    pub(super) async fn write_through(&mut self, mut claim: Option<&mut Claim<'_, Piece, Answer>>) -> Answer {
        let mut healed = false;
        loop {
            let mut taken = self.volume.room.nothing();
            let attempted = self.attempt(claim.as_deref_mut(), &mut taken).await;
            self.context.let_go();
            drop(taken);
            match attempted {
                Ok(generation) => {
                    if !self.context.missed.is_empty() && !self.settle().await? {
                        self.counters().replans.add(1);
                        continue;
                    }
                    if self.members.ask(|view| !view.snapshot.with_bad_blocks.is_empty()) {
                        let parts = self.context.image.extents().iter().map(|e| (e.column, e.start, e.end()));
                        Box::pin(self.taken_off_lists(self.stripe, parts)).await?;
                    }
                    if !self.context.carried.is_empty() {
                        self.let_carried_go();
                    }
                    let Some(parts) = self.context.rest.pop() else {
                        return self.acknowledge(generation).await;
                    };
                    self.context.image.load(parts);
                    // What could not be read was in other rows.
                    self.context.avoid = Set64::EMPTY;
                }
                Err(Aborted::Unread) if !healed && !active(Mutant::AvoidedByChunk) => {
                    // Row by row: each may have just one that can't be read, and what is right as it is isn't
                    // to be replaced by what damage elsewhere in the stripe makes of it. A plan would avoid
                    // whole chunks.
                    healed = true;
                    Box::pin(self.heal_stripe(self.stripe)).await;
                    self.context.avoid = Set64::EMPTY;
                    self.counters().replans.add(1);
                }
                Err(Aborted::Replan | Aborted::Unread) => {
                    self.counters().replans.add(1);
                    if let Some(journal) = self.caching_journal() {
                        Box::pin(self.log_stuck_again(&journal, self.stripe)).await;
                        if self.context.precedence == Precedence::None {
                            self.context.precedence = Precedence::Waited;
                        }
                    }
                }
                Err(Aborted::Without(member)) => {
                    self.counters().replans.add(1);
                    self.shared.dropped(member).await?;
                }
                Err(Aborted::Fatal(error)) => return Err(error),
            }
        }
    }

    /// One pass through both phases. Returns the generation under which the batch was written.
    async fn attempt(
        &mut self,
        mut claim: Option<&mut Claim<'_, Piece, Answer>>,
        taken: &mut Taken<'_>,
    ) -> Result<u64, Aborted> {
        let inside = self.volume.enter().await?;
        if std::mem::replace(&mut self.context.generation, inside.generation()) != inside.generation() {
            self.context.avoid = Set64::EMPTY;
        }
        self.context.timed = self.members.sample();
        self.join_claim(claim.as_deref_mut());
        // What this membership can't read, the one that has taken its place meanwhile may be able to (C1).
        let stale = |error: Aborted| if inside.has_moved() { Aborted::Replan } else { error };
        let intended = self.prepare(&inside, taken).await.map_err(stale)?;

        // Freeze: what has arrived by now is the last to join. What it adds is read and marked like the rest.
        let late = if self.join_claim(claim) > 0 && !active(Mutant::LateJoinerNotPlanned) {
            self.counters().joined_late.add(1);
            Some(self.prepare(&inside, taken).await.map_err(stale)?)
        } else {
            None
        };
        let writing = inside.begin(intended, late).await?;
        let view = writing.view();
        let logged = if self.context.remote.is_empty() {
            self.encode(&view.snapshot)?;
            let logged = if view.snapshot.log.is_none() {
                Logged::Nothing
            } else {
                let write = async || self.write_members(&writing).await;
                early(Mutant::LogAfterData, write).await;
                // A future of its own: inlined, it would make every write larger.
                Box::pin(self.write_ahead(&writing)).await?
            };
            self.write_members(&writing).await;
            logged
        } else {
            Box::pin(self.write_offloaded(&writing)).await?;
            Logged::Nothing
        };
        if !self.context.missed.is_empty() {
            self.context.logged = logged;
        }
        self.keep_parity(&view.snapshot);
        if self.context.missed.drops() || !view.snapshot.absent().is_empty() {
            let (offset, length) = self.rows();
            view.snapshot.intent.set_missed(view.snapshot.intent.regions(offset, length));
        }
        Ok(inside.generation())
    }

    /// Has the log know the batch before any member changes.
    async fn write_ahead(&self, writing: &Writing<'_>) -> Result<Logged, Aborted> {
        let log_view = self.log_view(writing.view());
        // Where the only parity is out, the row is logged without: back again, it would be of older data.
        log_view.recorded().await?;
        let WriteContext { image, plan, parity, .. } = &*self.context;
        let slot = self.shared.stripes.bucket_number(self.stripe.0);
        let precedence = self.context.precedence;
        let batch = Batch { view: &log_view, stripe: self.stripe, slot, image, plan, parity, precedence };
        Ok(writing.view().snapshot.log.write_ahead(&batch).await?)
    }

    /// Plans the image as it is, reads what the plan needs, and makes its intent durable meanwhile.
    async fn prepare<'i>(
        &mut self,
        inside: &'i Inside<'_>,
        taken: &mut Taken<'_>,
    ) -> Result<Intended<'i>, Aborted> {
        let view = inside.view();
        self.cut_at_bad_blocks(view);
        if !view.snapshot.log.is_none() {
            Box::pin(self.fit_to_log(view)).await?;
        }
        let facts = self.facts(view);
        self.context.pre_read.out_of_sync |= !facts.in_sync;
        if !facts.in_sync {
            let (offset, intent) = (self.geometry.member_offset(self.stripe), &view.snapshot.intent);
            if intent.forces_writes(intent.regions(offset, facts.chunk_bytes.into())) {
                self.context.image.force();
            }
        }
        let servers = self.servers_for(view, &facts);
        self.plan(view, &facts, servers.is_some())?;
        self.context.remote.take_up(servers, &facts, &self.context.plan);
        if self.context.remote.is_empty() {
            let (wanted, urgent) = (self.context.plan.memory(), caching_journal(view).is_some());
            if wanted > 0 && !taken.take_now(wanted, urgent) {
                Box::pin(self.wait_for_bytes(inside, taken, wanted)).await?;
            }
        }
        // Now, so that the bits are written while we read.
        let marked = inside.mark(self.stripe, self.rows());
        if self.context.remote.is_empty() {
            self.pre_read(view).await?;
        }
        Ok(marked.durable(Mutant::DataBeforeIntent).await?)
    }

    /// What has the bytes may be of a later membership, and wait until this one's writes are over: a write
    /// whose membership has gone gives way.
    async fn wait_for_bytes(
        &self,
        inside: &Inside<'_>,
        taken: &mut Taken<'_>,
        wanted: usize,
    ) -> Result<(), Aborted> {
        let moved = pin!(self.shared.moved(inside.generation()));
        match select(pin!(taken.wait(wanted, false)), moved).await {
            Either::Left(_) => Ok(()),
            Either::Right(_) => Err(Aborted::Replan),
        }
    }

    /// Makes the image one that the log can take: cuts it, or fills up what it writes in part.
    async fn fit_to_log(&mut self, view: &View) -> Result<(), Aborted> {
        let (volume, stripe, log) = (self.volume, self.stripe, &view.snapshot.log);
        let chunk = volume.geometry.chunk_bytes();
        match log.traits().batches {
            Batches::WholeRows => {
                self.context.image.build_extents(chunk);
                if consistency::takes_several_entries(self.context.image.extents()) {
                    self.context.split(chunk);
                }
                volume.widen(view, stripe, &mut self.context.image, self.context.avoid).await?;
            }
            Batches::WholePages => {
                volume.widen(view, stripe, &mut self.context.image, Set64::EMPTY).await?;
            }
            Batches::Any => {
                if !log.has_room_for(&volume.log_view(view), stripe, self.context.image.parts()) {
                    self.context.split(chunk);
                }
            }
        }
        Ok(())
    }

    /// Where a member has bad blocks, rows are written by themselves: what parity makes of them there isn't
    /// what the member has elsewhere in its chunk.
    fn cut_at_bad_blocks(&mut self, view: &View) {
        let geometry = &self.volume.geometry;
        let (base, chunk) = (geometry.member_offset(self.stripe), geometry.chunk_bytes());
        // A full-stripe write reads nothing.
        if view.snapshot.with_bad_blocks.is_empty()
            || self.context.image.bytes_covered() == geometry.stripe_bytes()
        {
            return;
        }
        let log = &view.snapshot.log;
        let by_rows = log.traits().batches != Batches::Any;
        let grain = if by_rows { PAGE_BYTES } else { geometry.logical_block() };
        let end_of = |from| view.uniform(base, (from, chunk), grain);
        if end_of(0) < chunk {
            let rest = self.context.image.cut(chunk, end_of);
            self.context.is_split |= !rest.is_empty();
            self.context.rest.extend(rest);
        }
    }

    /// The state of a stripe's members in the rows that a batch writes.
    fn facts(&self, view: &View) -> Stripe {
        let (geometry, snapshot) = (&self.geometry, &view.snapshot);
        let (offset, chunk) = (geometry.member_offset(self.stripe), geometry.chunk_bytes());
        let regions = snapshot.intent.regions(offset, chunk.into());
        let (from, to) = self.context.image.rows(chunk);
        Stripe {
            map: self.map,
            chunk_bytes: chunk,
            unreadable: self.context.avoid.or(view.unreadable(offset + u64::from(from), (to - from).into())),
            unwritable: snapshot.absent(),
            in_sync: !self.context.pre_read.out_of_sync
                && (!snapshot.intent.needs_resync(regions) || active(Mutant::RmwOutOfSync))
                && !needs_parity_from_data(snapshot, self.map),
        }
    }

    /// Plans the image for the client, or for the members' servers.
    fn plan(&mut self, view: &View, facts: &Stripe, by_servers: bool) -> Result<(), Aborted> {
        self.context.image.build_extents(facts.chunk_bytes);
        let policy = match self.shared.options.policy {
            // With reconstruct-write every data server sends parity's a part, with read-modify-write only
            // those that are written: what crosses the network costs more than what a server reads.
            WritePolicy::Cost if by_servers => WritePolicy::AlwaysRmw,
            policy => policy,
        };
        let (volume, timed) = (self.volume, self.context.timed);
        let WriteContext { plan, image, pre_read: PreRead { transfers, rows, .. }, .. } = &mut *self.context;
        let written =
            image.extents().iter().map(|e| Written { column: e.column, start: e.start, end: e.end() });
        let mut sources = PlanFacts { volume, view, stripe: self.stripe, rows, explores: timed };
        plan_into(plan, facts, policy, written, transfers, &mut sources).map_err(|error| {
            let missing = facts.unreadable.or(facts.unwritable).len();
            Aborted::Fatal(match error {
                PlanError::NoSuchRange { .. } => unreachable!("pieces are cut by the geometry"),
                PlanError::BeyondRedundancy { .. } => IoError::Failed,
                PlanError::Unreadable { .. } => IoError::Unreadable { stripe: self.stripe.0, missing },
            })
        })?;
        let recovers = |run: &Run| {
            matches!(run.method, Method::Rcw(Reconstruction::One { .. } | Reconstruction::Two { .. }))
        };
        let (offset, intent) = (self.geometry.member_offset(self.stripe), &view.snapshot.intent);
        let torn = !facts.in_sync && intent.is_torn(intent.regions(offset, facts.chunk_bytes.into()));
        // No member has it for reads, which would not make it of parity.
        let is_homeless = |column| view.snapshot.missing.contains(facts.map.data_slot(column).index());
        let is_lost = |run: &Run| {
            recovers(run) || run.written.iter().any(is_homeless) && !active(Mutant::TornRowsPromised)
        };
        if torn && self.context.plan.runs().iter().any(is_lost) {
            // C10: parity of torn rows can't stand in for data.
            return Err(IoError::Unreadable { stripe: self.stripe.0, missing: facts.unreadable.len() }.into());
        }
        Ok(())
    }

    /// The member range that the batch touches: offset and length.
    fn rows(&self) -> (u64, u64) {
        let (start, end) = self.context.plan.span();
        (self.geometry.member_offset(self.stripe) + u64::from(start), u64::from(end - start))
    }

    /// Reads what the plan needs and what is not there yet. A member that can't be read is avoided in the
    /// next plan.
    async fn pre_read(&mut self, view: &View) -> Result<(), Aborted> {
        let (volume, context) = (self.volume, &mut *self.context);
        let (totals, counters) = (context.plan.totals(), volume.counters());
        counters.pre_read_bytes.add(totals.read_bytes);
        counters.reconstruct_read_bytes.add(totals.reconstruct_read_bytes);
        if context.plan.needs_no_reads() {
            return Ok(());
        }
        let offset = volume.geometry.member_offset(self.stripe);
        let started = start_clock(context.timed, &mut context.set);
        for &transfer in context.plan.reads() {
            let buffer = shard::buffer(transfer.length() as usize);
            if let Some(submission) =
                volume.submit_read(view, transfer.slot.index(), offset + u64::from(transfer.start), buffer)
            {
                context.set.push((transfer.slot.index(), transfer), submission);
            }
        }
        context.set.wait().await;
        let mut failed = None;
        for ((slot, transfer), outcome, completed) in context.set.drain_timed() {
            match (outcome.result, outcome.buffer) {
                (Ok(bytes), Some(buffer)) => {
                    if let (Some(completed), Some((member, _))) = (completed, view.member(slot)) {
                        member.cost.record_read(bytes as u64, completed - started);
                    }
                    context.pre_read.transfers.push(transfer);
                    context.pre_read.bytes.push(buffer.freeze());
                }
                (result, _) => {
                    context.avoid.insert(slot);
                    match result {
                        Err(error) if error.kind != DeviceErrorKind::Media => {
                            let at = offset + u64::from(transfer.start);
                            volume.members.report_data(view, slot, Operation::Read, at, error);
                            failed.get_or_insert(Aborted::Replan);
                        }
                        _ => failed = Some(Aborted::Unread),
                    }
                }
            }
        }
        if context.timed {
            volume.members.update_prices(&view.snapshot, &view.devices);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Writes data and parity to every member that is there, and waits for all. Members that fail are noted
    /// and reported.
    async fn write_members(&mut self, writing: &Writing<'_>) {
        let (volume, stripe, map, view) = (self.volume, self.stripe, self.map, writing.view());
        let geometry = &volume.geometry;
        let (base, chunk) = (geometry.member_offset(stripe), geometry.chunk_bytes());
        // What a log forgets when the members have answered is durable by then (C4).
        let fua = self.context.image.fua() || view.snapshot.log.forces_writes();
        let WriteContext { image, plan, parity, set, pre_read, avoid, timed, .. } = &mut *self.context;
        let started = start_clock(*timed, set);
        // Nothing was read of what is written.
        let streams = plan.totals().rmw_runs == 0;
        let mut submit = |slot: MemberSlot, start: u32, data: &Slice, fua: bool| {
            let skip =
                active(Mutant::RecoveringNotWritten) && view.snapshot.recovering.contains(slot.index());
            let end = start + to_u32(data.len());
            assert!(end <= chunk, "a stripe's write stays in its chunk: {start} to {end} of {chunk}");
            for place in view.places(slot.index()).filter(|_| !skip) {
                let part = Bytes { data: data.clone(), fua, streams };
                if let Some(write) = volume.submit_write(view, place, base + u64::from(start), part) {
                    set.push((place, Transfer { slot, start, end }), write);
                }
            }
        };
        for extent in image.extents() {
            submit(map.data_slot(extent.column), extent.start, &extent.data, fua);
        }
        // Sectors that could not be read get what the new parity takes them for (C14). Otherwise, in a row
        // that was never in sync, a read of smaller pieces would take them for something else.
        for (slot, start, bytes) in pre_read.recovered_of(*avoid) {
            volume.corrected(view, slot.index(), base + u64::from(*start));
            submit(*slot, *start, bytes, fua);
        }
        for (run, parity) in plan.runs().iter().zip(parity.iter()) {
            volume.forget_parity(stripe, run);
            let lost = |column| view.member(map.data_slot(column).index()).is_none();
            let is_left = active(Mutant::DegradedParityNotWritten) && run.written.iter().any(lost);
            for (bytes, slot) in parity.iter().zip([Some(map.p_slot()), map.q_slot()]) {
                if let (Some(bytes), Some(slot), false) = (bytes, slot, is_left) {
                    submit(slot, run.start, bytes, fua && !active(Mutant::FuaOnDataOnly));
                }
            }
        }
        set.wait().await;
        let refused = self.note_outcomes(view, base, started);
        if !refused.is_empty() {
            Box::pin(self.write_refused(view, base, &refused, fua)).await;
        }
    }

    /// Takes the answers of the members to what was written, and notes those that failed. What their media
    /// have refused, and may take in parts.
    fn note_outcomes(&mut self, view: &View, base: u64, started: u64) -> Vec<Refused> {
        let volume = self.volume;
        let WriteContext { set, missed, .. } = &mut *self.context;
        let mut refused = Vec::new();
        for ((place, transfer), outcome, completed) in set.drain_timed() {
            let result = outcome.result;
            if let (Ok(bytes), Some(completed), Some((member, _))) = (result, completed, view.member(place)) {
                member.cost.record_write(bytes as u64, completed - started);
            }
            let is_ignored = |error: DeviceError| {
                active(Mutant::WriteErrorIgnored)
                    || active(Mutant::TimeOutAcknowledged) && error.kind == DeviceErrorKind::TimedOut
            };
            if !result.is_err_and(is_ignored) {
                let range = (base + u64::from(transfer.start), transfer.length().into());
                let error = volume.note_outcome(view, place, range, result, missed);
                refused.extend(error.map(|error| Refused { place, transfer, error }));
            }
        }
        refused
    }

    /// What members have refused of a batch is written again, in parts.
    async fn write_refused(&mut self, view: &View, base: u64, refused: &[Refused], fua: bool) {
        let (volume, map) = (self.volume, self.map);
        let WriteContext { image, plan, parity, pre_read, avoid, missed, .. } = &mut *self.context;
        let extents = || image.extents().iter().map(|e| (map.data_slot(e.column), e.start, &e.data));
        let recovered = || pre_read.recovered_of(*avoid).map(|(slot, start, bytes)| (*slot, *start, bytes));
        let parities = || {
            plan.runs().iter().zip(parity.iter()).flat_map(|(run, parity)| {
                let slots = [Some(map.p_slot()), map.q_slot()];
                let both = parity.iter().zip(slots);
                both.filter_map(|(bytes, slot)| Some((slot?, run.start, bytes.as_ref()?)))
            })
        };
        for &Refused { place, transfer, error } in refused {
            let is_it = |(slot, start, bytes): &(MemberSlot, u32, &Slice)| {
                (*slot, *start, bytes.len()) == (transfer.slot, transfer.start, transfer.length() as usize)
            };
            let Some((_, start, bytes)) = extents().chain(recovered()).chain(parities()).find(is_it) else {
                unreachable!("it was written a moment ago")
            };
            volume.write_in_parts(view, place, base + u64::from(start), (bytes, fua), error, missed).await;
        }
    }

    /// Waits until it is recorded which members failed a write of the batch, and which sectors they refused.
    /// Only then may the log forget the batch: a crash before finds the member current, with rows that don't
    /// match. False if the batch has to be written again.
    async fn settle(&mut self) -> Result<bool, IoError> {
        active(Mutant::LogForgetsFailure).then(|| self.context.logged = Logged::Nothing);
        let waits = !active(Mutant::AcknowledgeBeforeSuperblocks);
        let is_over = !waits || self.volume.settle_missed(self.stripe, &mut self.context.missed).await?;
        waits.then(|| self.context.logged = Logged::Nothing);
        Ok(is_over)
    }
}

/// What the medium at a place has refused of a batch.
struct Refused {
    place: usize,
    transfer: Transfer,
    error: DeviceError,
}

/// A log that takes both parities gets them even where the member of one is missing. Its old parity can't be
/// read, so both are computed from data then.
pub(super) fn needs_parity_from_data(snapshot: &Snapshot, map: StripeMap) -> bool {
    let absent = |slot: MemberSlot| snapshot.absent().contains(slot.index());
    snapshot.log.traits().batches == Batches::WholePages
        && map.q_slot().is_some_and(|q| absent(q) != absent(map.p_slot()))
}

/// Has the set timed, if `timed`. Returns the time of the start, else 0.
fn start_clock<T>(timed: bool, set: &mut SubmissionSet<T>) -> u64 {
    if !timed {
        return 0;
    }
    set.time();
    shard::now()
}
