//! The stripe write: one task from claim to release, in two phases.
//!
//! ```text
//!   claim ─> gather ─> plan ─> pre-read ┬─> freeze ─> (plan again if others joined) ─> parity ─> write members ─> release
//!                              intent ──┘     ^ same-stripe writes join until here
//! ```
//!
//! - *Plan* is made under a [`Pass`](crate::membership::admission::Pass): the membership can't change
//!   without this write being waited for. If it has changed by the freeze, everything but the batch is thrown
//!   away and planned anew (C1).
//! - *Freeze* is the last look at the writes that have arrived (C11); the image is final then, and each
//!   sector is written once.
//! - Nothing is written before the intent of every row is durable (C7), and intent is kept until every member
//!   has answered.
//! - A member that fails a write is dropped, durably, before the batch is acknowledged (C2). So is, before
//!   it, every member that the plan had to leave out.

mod back;
pub(crate) mod context;
mod encode;
mod gather;
mod in_place;
mod keep;
mod offload;
mod plan_facts;
mod pre_read;
mod within;
pub(crate) mod workers;

use std::pin::pin;

use futures_util::future::{Either, select};
use pinstripe_block::Client;
use pinstripe_runtime::{DeviceError, DeviceErrorKind, Slice, SubmissionSet, shard};

use self::{plan_facts::PlanFacts, pre_read::PreRead};

use crate::{
    consistency::{self, Batch, Batches, LogError, Logged, Precedence},
    error::{IoError, Operation},
    geometry::{MemberSlot, Set64, StripeId, StripeMap},
    io::{
        entry::{Inside, Intended, Moved, Writing},
        parity::ParityVolume,
        room::Taken,
        row::Want,
        write::{
            back::{Back, caching_journal},
            context::{Company, WriteContext},
        },
    },
    members::MemberId,
    membership::snapshot::{Snapshot, View},
    mutants::{Mutant, active, early},
    plan::{Method, PlanError, Reconstruction, Run, Stripe, Transfer, WritePolicy, Written, plan_into},
    shared::Answer,
    stripe::{
        image::Piece,
        parity_cache::PAGE_BYTES,
        table::{Claim, Entered},
    },
    units::to_u32,
};

/// Why a batch starts over.
enum Aborted {
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

impl ParityVolume {
    /// Writes a piece of one stripe: as the owner of the stripe, or in the owner's batch.
    pub(crate) async fn write_stripe(&self, stripe: StripeId, piece: Piece, client: &Client) -> Answer {
        self.shared.recent.note(stripe.0, piece.data.len() as u64);
        let _taken = match self.room.context_now() {
            Some(taken) => taken,
            // Boxed, so that writes that needn't wait carry no more than a pointer.
            None => Box::pin(self.room.context()).await,
        };
        let again = piece.clone();
        let mut company = Company::None;
        let claimed = match self.gates() {
            None => {
                let is_wanted = || !client.has_hung_up();
                self.shared.stripes.claim_if(self.shard, stripe.0, Some(piece), is_wanted).await
            }
            Some(gates) => Some(self.claim_within(gates, stripe, piece).await),
        };
        let Some(mut entered) = claimed else { return Err(IoError::Abandoned) };
        loop {
            let answer = match entered {
                // The owner vanished only if the array is being torn down.
                Entered::Joined(answer) => {
                    company = Company::Joined;
                    answer.unwrap_or(Err(IoError::Stopping))
                }
                Entered::Owner(claim, piece) => self.write_owned(stripe, claim, piece, &mut company).await,
            };
            if company != Company::Joined || !matches!(answer, Err(IoError::Unreadable { .. })) {
                return answer;
            }
            // A row can't be made that may be another write's in the batch: once more, alone.
            company = Company::Refused;
            let claim = Box::pin(self.claim_for(stripe, client)).await?;
            entered = Entered::Owner(claim, Some(again.clone()));
        }
    }

    /// Writes a piece as the owner of its stripe, and what joins it.
    async fn write_owned(
        &self,
        stripe: StripeId,
        claim: Claim<'_, Piece, Answer>,
        piece: Option<Piece>,
        company: &mut Company,
    ) -> Answer {
        let gathers = *company != Company::Refused && self.gathers(stripe, piece.as_ref());
        if self.members.ask(|view| view.in_place)
            && let Some(piece) = piece.as_ref().filter(|_| !gathers)
            && let Some(generation) = self.write_in_place(&claim, stripe, piece).await
        {
            let answer = self.acknowledge(generation).await;
            self.finish(claim, &answer, || piece.rows(self.geometry.chunk_bytes()));
            return answer;
        }
        let mut context = self.write_contexts.take();
        context.company = *company;
        context.gathers = gathers;
        if let Some(piece) = piece {
            context.image.add(piece);
        }
        let answer = self.write_batch(stripe, claim, &mut context).await;
        *company = context.company;
        context.end();
        self.write_contexts.give(context);
        answer
    }

    async fn write_batch(
        &self,
        stripe: StripeId,
        mut claim: Claim<'_, Piece, Answer>,
        context: &mut WriteContext,
    ) -> Answer {
        self.counters().batches.add(1);
        if context.gathers {
            self.gather(&mut claim, context).await;
        }
        let journal = self.caching_journal();
        let back = match &journal {
            Some(journal) => Box::pin(self.write_back(journal, stripe, &mut claim, context)).await,
            None => Back::Through { is_alone: false },
        };
        let answer = match back {
            Back::Answered(answer) => answer,
            // One call: a second would keep it from being inlined in every write.
            Back::Through { is_alone } => {
                let joined = (!is_alone).then_some(&mut claim);
                self.write_members_until_done(stripe, joined, context).await
            }
        };
        self.note_if_torn(stripe, answer.is_err());
        let told = if active(Mutant::JoinersToldAll) { &Ok(()) } else { &answer };
        self.finish(claim, told, || context.image.rows(self.geometry.chunk_bytes()));
        answer
    }

    /// Answers what joined a batch of these rows of the chunk, and releases the stripe.
    fn finish(&self, claim: Claim<'_, Piece, Answer>, answer: &Answer, rows: impl FnOnce() -> (u32, u32)) {
        match self.gates() {
            None => claim.finish(answer),
            Some(gates) => self.finish_within(gates, claim, answer, rows()),
        }
    }

    /// Where the array has failed with a change of a stripe under way, its rows may be half written. Nothing
    /// of that was acknowledged. But a lost member's chunk in them, which no write was to change, can't be
    /// made of the others any more (C10). To be called under the claim.
    pub(crate) fn note_if_torn(&self, stripe: StripeId, is_error: bool) {
        if !is_error || !self.shared.has_failed() || active(Mutant::FailedRowsTrusted) {
            return;
        }
        let geometry = &self.geometry;
        let intent = &self.members.view().snapshot.intent;
        let regions = intent.regions(geometry.member_offset(stripe), geometry.chunk_bytes().into());
        regions.for_each(|region| intent.set_needs_resync(region, true));
    }

    /// Writes a batch to the members. Writes that arrive at `claim` join.
    async fn write_members_until_done(
        &self,
        stripe: StripeId,
        mut claim: Option<&mut Claim<'_, Piece, Answer>>,
        context: &mut WriteContext,
    ) -> Answer {
        let mut healed = false;
        loop {
            let mut taken = self.room.nothing();
            let attempted = self.attempt(stripe, claim.as_deref_mut(), context, &mut taken).await;
            context.let_go();
            drop(taken);
            match attempted {
                Ok(generation) => {
                    if !context.missed.is_empty() && !self.settle(stripe, context).await? {
                        self.counters().replans.add(1);
                        continue;
                    }
                    if self.members.ask(|view| !view.snapshot.with_bad_blocks.is_empty()) {
                        let parts = context.image.extents().iter().map(|e| (e.column, e.start, e.end()));
                        Box::pin(self.taken_off_lists(stripe, parts)).await?;
                    }
                    if !context.carried.is_empty() {
                        self.let_carried_go(stripe, context);
                    }
                    let Some(parts) = context.rest.pop() else {
                        return self.acknowledge(generation).await;
                    };
                    context.image.load(parts);
                    // What could not be read was in other rows.
                    context.avoid = Set64::EMPTY;
                }
                Err(Aborted::Unread) if !healed && !active(Mutant::AvoidedByChunk) => {
                    // Row by row: each may have just one that can't be read, and what is right as it is isn't
                    // to be replaced by what damage elsewhere in the stripe makes of it. A plan would avoid
                    // whole chunks.
                    healed = true;
                    Box::pin(self.heal_stripe(stripe)).await;
                    context.avoid = Set64::EMPTY;
                    self.counters().replans.add(1);
                }
                Err(Aborted::Replan | Aborted::Unread) => {
                    self.counters().replans.add(1);
                    if let Some(journal) = self.caching_journal() {
                        Box::pin(self.log_stuck_again(&journal, stripe)).await;
                        if context.precedence == Precedence::None {
                            context.precedence = Precedence::Waited;
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
        &self,
        stripe: StripeId,
        mut claim: Option<&mut Claim<'_, Piece, Answer>>,
        context: &mut WriteContext,
        taken: &mut Taken<'_>,
    ) -> Result<u64, Aborted> {
        let inside = self.enter().await?;
        context.timed = self.members.sample();
        let map = self.geometry.slots(stripe);
        self.join_claim(claim.as_deref_mut(), context);
        // What this membership can't read, the one that has taken its place meanwhile may be able to (C1).
        let stale = |error: Aborted| if inside.has_moved() { Aborted::Replan } else { error };
        let intended = self.prepare(&inside, (stripe, map), context, taken).await.map_err(stale)?;

        // Freeze: what has arrived by now is the last to join. What it adds is read and marked like the rest.
        let late = if self.join_claim(claim, context) > 0 && !active(Mutant::LateJoinerNotPlanned) {
            self.counters().joined_late.add(1);
            Some(self.prepare(&inside, (stripe, map), context, taken).await.map_err(stale)?)
        } else {
            None
        };
        let writing = inside.begin(intended, late).await?;
        let view = writing.view();
        let logged = if context.remote.is_empty() {
            self.encode(map, &view.snapshot, context)?;
            let logged = if view.snapshot.log.is_none() {
                Logged::Nothing
            } else {
                let write = async || self.write_members(&writing, stripe, map, context).await;
                early(Mutant::LogAfterData, write).await;
                // A future of its own: inlined, it would make every write larger.
                Box::pin(self.write_ahead(&writing, stripe, context)).await?
            };
            self.write_members(&writing, stripe, map, context).await;
            logged
        } else {
            Box::pin(self.write_offloaded(&writing, stripe, context)).await?;
            Logged::Nothing
        };
        if !context.missed.is_empty() {
            context.logged = logged;
        }
        self.keep_parity(&view.snapshot, stripe, context);
        if context.missed.drops() || !view.snapshot.absent().is_empty() {
            let (offset, length) = self.rows(stripe, context);
            view.snapshot.intent.set_missed(view.snapshot.intent.regions(offset, length));
        }
        Ok(inside.generation())
    }

    /// Has the log know the batch before any member changes.
    async fn write_ahead(
        &self,
        writing: &Writing<'_>,
        stripe: StripeId,
        context: &WriteContext,
    ) -> Result<Logged, Aborted> {
        let log_view = self.log_view(writing.view());
        // Where the only parity is out, the row is logged without: back again, it would be of older data.
        log_view.recorded().await?;
        let WriteContext { image, plan, parity, .. } = context;
        let slot = self.shared.stripes.bucket_number(stripe.0);
        let precedence = context.precedence;
        let batch = Batch { view: &log_view, stripe, slot, image, plan, parity, precedence };
        Ok(writing.view().snapshot.log.write_ahead(&batch).await?)
    }

    /// Plans the image as it is, reads what the plan needs, and makes its intent durable meanwhile.
    async fn prepare<'i>(
        &self,
        inside: &'i Inside<'_>,
        (stripe, map): (StripeId, StripeMap),
        context: &mut WriteContext,
        taken: &mut Taken<'_>,
    ) -> Result<Intended<'i>, Aborted> {
        let view = inside.view();
        self.cut_at_bad_blocks(view, stripe, context);
        if !view.snapshot.log.is_none() {
            Box::pin(self.fit_to_log(view, stripe, context)).await?;
        }
        let facts = self.facts(view, stripe, map, context);
        context.pre_read.out_of_sync |= !facts.in_sync;
        if !facts.in_sync {
            let (offset, intent) = (self.geometry.member_offset(stripe), &view.snapshot.intent);
            if intent.forces_writes(intent.regions(offset, facts.chunk_bytes.into())) {
                context.image.force();
            }
        }
        let servers = self.servers_for(view, &facts, context);
        self.plan(view, stripe, &facts, context, servers.is_some())?;
        context.remote.take_up(servers, &facts, &context.plan);
        if context.remote.is_empty() {
            let (wanted, urgent) = (context.plan.memory(), caching_journal(view).is_some());
            if wanted > 0 && !taken.take_now(wanted, urgent) {
                Box::pin(self.wait_for_bytes(inside, taken, wanted)).await?;
            }
        }
        // Now, so that the bits are written while we read.
        let marked = inside.mark(stripe, self.rows(stripe, context));
        if context.remote.is_empty() {
            self.pre_read(view, stripe, context).await?;
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

    /// Makes the image one that the log can take.
    async fn fit_to_log(
        &self,
        view: &View,
        stripe: StripeId,
        context: &mut WriteContext,
    ) -> Result<(), Aborted> {
        let log = &view.snapshot.log;
        match log.traits().batches {
            Batches::WholeRows => self.cut_to_rows(view, stripe, context).await,
            Batches::WholePages => Ok(self.widen(view, stripe, &mut context.image).await?),
            Batches::Any => {
                if !log.has_room_for(&self.log_view(view), stripe, context.image.parts()) {
                    context.split(self.geometry.chunk_bytes());
                }
                Ok(())
            }
        }
    }

    /// Cuts the image, if it must be, and fills up rows that are written in part with what they have.
    async fn cut_to_rows(
        &self,
        view: &View,
        stripe: StripeId,
        context: &mut WriteContext,
    ) -> Result<(), Aborted> {
        let chunk = self.geometry.chunk_bytes();
        context.image.build_extents(chunk);
        if consistency::takes_several_entries(context.image.extents()) {
            context.split(chunk);
            context.image.build_extents(chunk);
        }
        let ragged: Vec<_> = consistency::ragged_rows(context.image.extents()).collect();
        if ragged.is_empty() {
            return Ok(());
        }
        let mut row = self.rows.take();
        let mut result = Ok(());
        for (column, from) in ragged {
            let want = Want { columns: Set64::only(column), parity: false, avoid: context.avoid };
            result = self.read_row(view, stripe, (from, from + PAGE_BYTES), want, &mut row).await;
            if result.is_err() {
                break;
            }
            let Some(old) = &row.data[column] else { unreachable!("it was wanted") };
            context.image.fill(to_u32(column) * chunk + from, old);
        }
        row.clear(0);
        self.rows.give(row);
        Ok(result?)
    }

    /// Where a member has bad blocks, rows are written by themselves: what parity makes of them there isn't
    /// what the member has elsewhere in its chunk.
    fn cut_at_bad_blocks(&self, view: &View, stripe: StripeId, context: &mut WriteContext) {
        let geometry = &self.geometry;
        let (base, chunk) = (geometry.member_offset(stripe), geometry.chunk_bytes());
        // A full-stripe write reads nothing.
        if view.snapshot.with_bad_blocks.is_empty()
            || context.image.bytes_covered() == geometry.stripe_bytes()
        {
            return;
        }
        let log = &view.snapshot.log;
        let by_rows = log.traits().batches != Batches::Any;
        let grain = if by_rows { PAGE_BYTES } else { geometry.logical_block() };
        let end_of = |from| view.uniform(base, (from, chunk), grain);
        if end_of(0) < chunk {
            let rest = context.image.cut(chunk, end_of);
            context.is_split |= !rest.is_empty();
            context.rest.extend(rest);
        }
    }

    /// The state of a stripe's members in the rows that a batch writes.
    fn facts(&self, view: &View, stripe: StripeId, map: StripeMap, context: &WriteContext) -> Stripe {
        let (geometry, snapshot) = (&self.geometry, &view.snapshot);
        let (offset, chunk) = (geometry.member_offset(stripe), geometry.chunk_bytes());
        let regions = snapshot.intent.regions(offset, chunk.into());
        let (from, to) = context.image.rows(chunk);
        Stripe {
            map,
            chunk_bytes: chunk,
            unreadable: context.avoid.or(view.unreadable(offset + u64::from(from), (to - from).into())),
            unwritable: snapshot.absent(),
            in_sync: !context.pre_read.out_of_sync
                && (!snapshot.intent.needs_resync(regions) || active(Mutant::RmwOutOfSync))
                && !needs_parity_from_data(snapshot, map),
        }
    }

    /// Plans the image for the client, or for the members' servers.
    fn plan(
        &self,
        view: &View,
        stripe: StripeId,
        facts: &Stripe,
        context: &mut WriteContext,
        by_servers: bool,
    ) -> Result<(), Aborted> {
        context.image.build_extents(facts.chunk_bytes);
        let image = context.image.extents().iter().map(|e| Written {
            column: e.column,
            start: e.start,
            end: e.end(),
        });
        let policy = match self.shared.options.policy {
            // With reconstruct-write every data server sends parity's a part, with read-modify-write only
            // those that are written: what crosses the network costs more than what a server reads.
            WritePolicy::Cost if by_servers => WritePolicy::AlwaysRmw,
            policy => policy,
        };
        let PreRead { transfers, rows, .. } = &mut context.pre_read;
        let mut sources = PlanFacts { volume: self, view, stripe, rows, explores: context.timed };
        plan_into(&mut context.plan, facts, policy, image, transfers, &mut sources).map_err(|error| {
            let missing = facts.unreadable.or(facts.unwritable).len();
            Aborted::Fatal(match error {
                PlanError::NoSuchRange { .. } => unreachable!("pieces are cut by the geometry"),
                PlanError::BeyondRedundancy { .. } => IoError::Failed,
                PlanError::Unreadable { .. } => IoError::Unreadable { stripe: stripe.0, missing },
            })
        })?;
        let recovers = |run: &Run| {
            matches!(run.method, Method::Rcw(Reconstruction::One { .. } | Reconstruction::Two { .. }))
        };
        let (offset, intent) = (self.geometry.member_offset(stripe), &view.snapshot.intent);
        let torn = !facts.in_sync && intent.is_torn(intent.regions(offset, facts.chunk_bytes.into()));
        // No member has it for reads, which would not make it of parity.
        let is_homeless = |column| view.snapshot.missing.contains(facts.map.data_slot(column).index());
        let is_lost = |run: &Run| {
            recovers(run) || run.written.iter().any(is_homeless) && !active(Mutant::TornRowsPromised)
        };
        if torn && context.plan.runs().iter().any(is_lost) {
            // C10: parity of torn rows can't stand in for data.
            return Err(IoError::Unreadable { stripe: stripe.0, missing: facts.unreadable.len() }.into());
        }
        Ok(())
    }

    /// The member range that the batch touches: offset and length.
    fn rows(&self, stripe: StripeId, context: &WriteContext) -> (u64, u64) {
        let (start, end) = context.plan.span();
        (self.geometry.member_offset(stripe) + u64::from(start), u64::from(end - start))
    }

    /// Reads what the plan needs and what is not there yet. A member that can't be read is avoided in the
    /// next plan.
    async fn pre_read(
        &self,
        view: &View,
        stripe: StripeId,
        context: &mut WriteContext,
    ) -> Result<(), Aborted> {
        let (totals, counters) = (context.plan.totals(), self.counters());
        counters.pre_read_bytes.add(totals.read_bytes);
        counters.reconstruct_read_bytes.add(totals.reconstruct_read_bytes);
        if context.plan.needs_no_reads() {
            return Ok(());
        }
        let offset = self.geometry.member_offset(stripe);
        let started = start_clock(context.timed, &mut context.set);
        for &transfer in context.plan.reads() {
            let buffer = shard::buffer(transfer.length() as usize);
            if let Some(submission) =
                self.submit_read(view, transfer.slot.index(), offset + u64::from(transfer.start), buffer)
            {
                context.set.push(submission);
                context.requests.push(transfer);
            }
        }
        context.set.wait().await;
        let mut failed = None;
        for (index, transfer) in context.requests.drain(..).enumerate() {
            let completed = context.set.completed_at(index);
            let outcome = context.set.take(index);
            let slot = transfer.slot.index();
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
                            self.members.report_data(view, slot, Operation::Read, at, error);
                            failed.get_or_insert(Aborted::Replan);
                        }
                        _ => failed = Some(Aborted::Unread),
                    }
                }
            }
        }
        context.set.clear();
        if context.timed {
            self.members.update_prices(&view.snapshot, &view.devices);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Writes data and parity to every member that is there, and waits for all. Members that fail are noted
    /// and reported.
    async fn write_members(
        &self,
        writing: &Writing<'_>,
        stripe: StripeId,
        map: StripeMap,
        context: &mut WriteContext,
    ) {
        let (view, geometry, counters) = (writing.view(), &self.geometry, self.counters());
        let (base, chunk) = (geometry.member_offset(stripe), geometry.chunk_bytes());
        // What a log forgets when the members have answered is durable by then (C4).
        let fua = context.image.fua() || view.snapshot.log.forces_writes();
        let WriteContext { image, plan, parity, set, requests, pre_read, avoid, timed, .. } = context;
        let started = start_clock(*timed, set);
        // Nothing was read of what is written.
        let streams = plan.totals().rmw_runs == 0;
        let mut submit = |slot: MemberSlot, start: u32, data: &Slice, fua: bool| {
            let skip =
                active(Mutant::RecoveringNotWritten) && view.snapshot.recovering.contains(slot.index());
            for place in view.places(slot.index()) {
                let Some((member, device)) = view.member(place).filter(|_| !skip) else { continue };
                counters.member_writes.add(1);
                counters.member_write_bytes.add(data.len() as u64);
                let end = start + to_u32(data.len());
                assert!(end <= chunk, "a stripe's write stays in its chunk: {start} to {end} of {chunk}");
                let at = member.data_offset + base + u64::from(start);
                set.push(if streams {
                    device.write_streaming(at, data.clone(), fua)
                } else {
                    device.write(at, data.clone(), fua)
                });
                requests.push(Transfer { slot: MemberSlot(place.to_le_bytes()[0]), start, end });
            }
        };
        for extent in image.extents() {
            submit(map.data_slot(extent.column), extent.start, &extent.data, fua);
        }
        // Sectors that could not be read get what the new parity takes them for (C14). Otherwise, in a row
        // that was never in sync, a read of smaller pieces would take them for something else.
        for (slot, start, bytes) in pre_read.recovered_of(*avoid) {
            self.corrected(view, slot.index(), base + u64::from(*start));
            submit(*slot, *start, bytes, fua);
        }
        for (run, parity) in plan.runs().iter().zip(parity.iter()) {
            self.forget_parity(stripe, run);
            let lost = |column| view.member(map.data_slot(column).index()).is_none();
            let is_left = active(Mutant::DegradedParityNotWritten) && run.written.iter().any(lost);
            for (bytes, slot) in parity.iter().zip([Some(map.p_slot()), map.q_slot()]) {
                if let (Some(bytes), Some(slot), false) = (bytes, slot, is_left) {
                    submit(slot, run.start, bytes, fua && !active(Mutant::FuaOnDataOnly));
                }
            }
        }
        set.wait().await;
        let refused = self.note_outcomes(view, base, started, context);
        if !refused.is_empty() {
            Box::pin(self.write_refused(view, map, base, &refused, fua, context)).await;
        }
    }

    /// Takes the answers of the members to what was written, and notes those that failed. What their media
    /// have refused, and may take in parts.
    fn note_outcomes(
        &self,
        view: &View,
        base: u64,
        started: u64,
        context: &mut WriteContext,
    ) -> Vec<(Transfer, DeviceError)> {
        let WriteContext { set, requests, missed, .. } = context;
        let mut refused = Vec::new();
        for (index, transfer) in requests.drain(..).enumerate() {
            let (place, completed) = (transfer.slot.index(), set.completed_at(index));
            let result = set.take(index).result;
            if let (Ok(bytes), Some(completed), Some((member, _))) = (result, completed, view.member(place)) {
                member.cost.record_write(bytes as u64, completed - started);
            }
            let is_ignored = |error: DeviceError| {
                active(Mutant::WriteErrorIgnored)
                    || active(Mutant::TimeOutAcknowledged) && error.kind == DeviceErrorKind::TimedOut
            };
            if !result.is_err_and(is_ignored) {
                let range = (base + u64::from(transfer.start), transfer.length().into());
                let error = self.note_outcome(view, place, range, result, missed);
                refused.extend(error.map(|error| (transfer, error)));
            }
        }
        set.clear();
        refused
    }

    /// What members have refused of a batch is written again, in parts.
    async fn write_refused(
        &self,
        view: &View,
        map: StripeMap,
        base: u64,
        refused: &[(Transfer, DeviceError)],
        fua: bool,
        context: &mut WriteContext,
    ) {
        let WriteContext { image, plan, parity, pre_read, avoid, missed, .. } = context;
        let extents = || image.extents().iter().map(|e| (map.data_slot(e.column), e.start, &e.data));
        let recovered = || pre_read.recovered_of(*avoid).map(|(slot, start, bytes)| (*slot, *start, bytes));
        let parities = || {
            plan.runs().iter().zip(parity.iter()).flat_map(|(run, parity)| {
                let slots = [Some(map.p_slot()), map.q_slot()];
                let both = parity.iter().zip(slots);
                both.filter_map(|(bytes, slot)| Some((slot?, run.start, bytes.as_ref()?)))
            })
        };
        for (transfer, error) in refused {
            let place = transfer.slot.index();
            let is_it = |(slot, start, bytes): &(MemberSlot, u32, &Slice)| {
                slot.index() == view.slot_at(place)
                    && (*start, bytes.len()) == (transfer.start, transfer.length() as usize)
            };
            let Some((_, start, bytes)) = extents().chain(recovered()).chain(parities()).find(is_it) else {
                unreachable!("it was written a moment ago")
            };
            self.write_in_parts(view, place, base + u64::from(start), (bytes, fua), *error, missed).await;
        }
    }

    /// Waits until it is recorded which members failed a write of the batch, and which sectors they refused.
    /// Only then may the log forget the batch: a crash before finds the member current, with rows that don't
    /// match. False if the batch has to be written again.
    async fn settle(&self, stripe: StripeId, context: &mut WriteContext) -> Result<bool, IoError> {
        active(Mutant::LogForgetsFailure).then(|| context.logged = Logged::Nothing);
        let waits = !active(Mutant::AcknowledgeBeforeSuperblocks);
        let is_over = !waits || self.settle_missed(stripe, &mut context.missed).await?;
        waits.then(|| context.logged = Logged::Nothing);
        Ok(is_over)
    }

    /// The batch is on the members. It may be acknowledged once the superblocks know which members missed it
    /// (C2).
    async fn acknowledge(&self, generation: u64) -> Answer {
        if active(Mutant::AcknowledgeBeforeSuperblocks) {
            Ok(())
        } else {
            self.shared.durable(generation).await
        }
    }
}

/// A log that takes both parities gets them even where the member of one is missing. Its old parity can't be
/// read, so both are computed from data then.
fn needs_parity_from_data(snapshot: &Snapshot, map: StripeMap) -> bool {
    let absent = |slot: MemberSlot| snapshot.absent().contains(slot.index());
    snapshot.log.traits().batches == Batches::WholePages
        && map.q_slot().is_some_and(|q| absent(q) != absent(map.p_slot()))
}

/// Has the set timed, if `timed`. Returns the time of the start, else 0.
fn start_clock(timed: bool, set: &mut SubmissionSet) -> u64 {
    if !timed {
        return 0;
    }
    set.time();
    shard::now()
}
