//! The stripe write where members' servers compute; see [`offload`](crate::offload).

use std::sync::Arc;

use pinstripe_runtime::{Slice, SubmissionSet, shard};

use super::{
    context::{Job, Remote},
    stripe_write::{Aborted, StripeWrite},
};
use crate::{
    geometry::MemberSlot,
    io::{
        base::Bytes,
        entry::Writing,
        remote::exchange::{Sent, Step, resolve},
    },
    membership::{attached::Attached, snapshot::View},
    mutants::{Mutant, active},
    offload::{
        Reservation,
        assign::{Assigned, assign},
        coefficients::in_q,
    },
    options::OffloadMode,
    plan::{Plan, Run, Stripe},
    stripe::{decode::exponent, image::Image},
};

/// So long a batch waits for room at the servers before the client does the work itself.
const ROOM_NS: u64 = 200_000_000;

/// A write in the second phase: a commit, or what the client writes itself.
#[derive(Clone, Copy)]
struct Written {
    slot: usize,
    start: u32,
    length: u32,
}

impl Remote {
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Whether a run of the plan is done by the servers.
    pub(super) fn takes(&self, run: usize) -> bool {
        self.jobs.iter().any(|job| job.run == run)
    }

    /// Gives the servers what they can do of a plan, instead of what an earlier one gave them.
    pub(super) fn take_up(&mut self, servers: Option<&Attached>, facts: &Stripe, plan: &Plan) {
        self.jobs.clear();
        if let Some(servers) = servers
            && !add_jobs(servers, facts, plan, &mut self.jobs)
        {
            self.jobs.clear();
        }
    }

    pub(super) fn clear(&mut self) {
        self.jobs.clear();
        self.failed = false;
    }
}

impl StripeWrite<'_> {
    /// The servers that may do the work of a stripe write; `None` if the client has to.
    pub(super) fn servers_for<'v>(&self, view: &'v View, facts: &Stripe) -> Option<&'v Attached> {
        let attached = view.snapshot.attached()?;
        // A log must see the old bytes, and the client those that it doesn't trust.
        let logged = !view.snapshot.log.is_none() && !active(Mutant::OffloadPastLog);
        let by_client = logged
            || self.context.remote.failed
            || !self.context.avoid.is_empty()
            || facts.unreadable != view.snapshot.missing
            || self.shared.offload.is_paused();
        (!by_client).then_some(attached)
    }

    /// Both phases, and what the client writes itself.
    pub(super) async fn write_offloaded(&mut self, writing: &Writing<'_>) -> Result<(), Aborted> {
        let view = writing.view();
        let Some(attached) = view.snapshot.attached().map(Arc::clone) else {
            return Err(Aborted::Replan);
        };
        let jobs = self.context.remote.jobs.iter();
        let slots: Vec<_> = jobs.map(|job| job.assignment.participants(self.map)).collect();
        let reserved =
            self.volume.shared.offload.reserve(view, &attached, slots.iter().copied(), ROOM_NS).await;
        let Some(reserved) = reserved else {
            self.counters().offload_fallbacks.add(1);
            self.context.remote.failed = true;
            return Err(Aborted::Replan);
        };
        let operations = slots.iter().enumerate();
        let sent: Vec<Sent> = operations
            .map(|(index, &participants)| Sent { ticket: reserved.ticket(index), participants })
            .collect();
        self.counters().offload_operations.add(sent.len() as u64);
        self.encode(&view.snapshot)?;
        self.first_phase(view, &reserved, &sent).await?;
        self.second_phase(view, &reserved, &sent).await;
        Ok(())
    }

    /// Every participant does its part. After an error nothing has changed, and nothing will.
    async fn first_phase(
        &mut self,
        view: &View,
        reserved: &Reservation<'_>,
        sent: &[Sent],
    ) -> Result<(), Aborted> {
        let mut requests = SubmissionSet::default();
        self.send_parts(view, reserved, &mut requests);
        let mut is_ready = true;
        if self.shared.options.offload == OffloadMode::Barrier {
            self.counters().offload_barriers.add(1);
            is_ready = self.prepared(view, sent, &mut requests).await;
        }
        if is_ready {
            self.send_parities(view, reserved, &mut requests);
            is_ready = self.prepared(view, sent, &mut requests).await;
        }
        let has_moved = self.shared.has_moved(view.snapshot.generation);
        if is_ready && !has_moved {
            return Ok(());
        }
        if is_ready {
            // The membership is another: the batch is planned anew under it.
            resolve(view, sent, &mut requests);
            requests.wait().await;
        }
        let outcomes: Vec<_> = requests.drain().map(|(step, outcome)| (step, outcome.result)).collect();
        let judged = self.judge(view, &outcomes);
        self.context.remote.failed |= !is_ready;
        if !is_ready {
            self.counters().offload_fallbacks.add(1);
        }
        if judged.refused {
            self.shared.offload.pause();
        }
        if self.shared.has_failed() {
            return Err(Aborted::Fatal(self.shared.failure()));
        }
        Err(judged.member.map_or(Aborted::Replan, Aborted::Without))
    }

    /// New bytes to those that keep them, and the question for old ones to the others.
    fn send_parts(&self, view: &View, reserved: &Reservation<'_>, requests: &mut SubmissionSet<Step>) {
        let geometry = &self.geometry;
        let (map, base) = (self.map, geometry.member_offset(self.stripe));
        for (index, job) in self.context.remote.jobs.iter().enumerate() {
            let (ticket, assignment) = (reserved.ticket(index), &job.assignment);
            for column in assignment.writes.or(assignment.contributes) {
                let slot = map.data_slot(column).index();
                let Some((member, device)) = view.member(slot) else { continue };
                let Some(server) = device.offload() else { continue };
                let at = member.data_offset + base + u64::from(job.start);
                let reducers = assignment.reducers(map, column);
                let submission = if assignment.writes.contains(column) {
                    let data = written_bytes(&self.context.image, column, job.start, job.end);
                    server.partial_write(ticket, at, data, assignment.modify, reducers)
                } else {
                    server.contribute(ticket, at, job.length(), reducers)
                };
                requests.push(Step::Prepare { slot }, submission);
            }
        }
    }

    /// What P and Q are to wait for.
    fn send_parities(&self, view: &View, reserved: &Reservation<'_>, requests: &mut SubmissionSet<Step>) {
        let base = self.geometry.member_offset(self.stripe);
        for (index, job) in self.context.remote.jobs.iter().enumerate() {
            let assignment = &job.assignment;
            for (number, slot) in assignment.parities.into_iter().enumerate() {
                let Some(slot) = slot.map(MemberSlot::index) else { continue };
                let Some((member, device)) = view.member(slot) else { continue };
                let Some(server) = device.offload() else { continue };
                let supplied = self.supplied(job, number == 1);
                let submission = server.parity(
                    reserved.ticket(index),
                    member.data_offset + base + u64::from(job.start),
                    job.length(),
                    assignment.modify,
                    assignment.parts(),
                    supplied,
                );
                requests.push(Step::Prepare { slot }, submission);
            }
        }
    }

    /// The parts of columns without a member, for P or for Q.
    fn supplied(&self, job: &Job, for_q: bool) -> Option<Slice> {
        let (image, lost) = (&self.context.image, job.assignment.supplied);
        let mut columns =
            lost.iter().map(|column| (column, written_bytes(image, column, job.start, job.end)));
        if !for_q && lost.len() == 1 {
            return columns.next().map(|(_, bytes)| bytes);
        }
        if lost.is_empty() {
            return None;
        }
        let mut sum = shard::zeroed(job.length() as usize);
        for (column, bytes) in columns {
            if for_q {
                debug_assert_ne!(in_q(self.map, column), 0);
                self.kernel.accumulate_q(&mut sum, &bytes, exponent(self.map, column));
            } else {
                self.kernel.xor_into(&mut sum, &[&bytes]);
            }
        }
        Some(sum.freeze())
    }

    /// Commits everywhere, and writes what the client writes itself. Members that fail are noted and
    /// reported.
    async fn second_phase(&mut self, view: &View, reserved: &Reservation<'_>, sent: &[Sent]) {
        let (volume, map) = (self.volume, self.map);
        let base = volume.geometry.member_offset(self.stripe);
        let fua = self.context.image.fua();
        let mut requests = SubmissionSet::default();
        if !active(Mutant::OffloadKeepsParity) {
            for job in &self.context.remote.jobs {
                self.shared.cache.remove_rows(self.stripe.0, job.start, job.end);
            }
        }
        debug_assert_eq!(sent.len(), self.context.remote.jobs.len());
        for (index, job) in self.context.remote.jobs.iter().enumerate() {
            for slot in job.assignment.keepers(map) {
                let Some(server) = view.member(slot).and_then(|(_, device)| device.offload()) else {
                    continue;
                };
                let written = Written { slot, start: job.start, length: job.length() };
                requests.push(written, server.commit(reserved.ticket(index), fua));
            }
        }
        self.write_own_runs(view, &mut requests);
        self.counters().offloaded_runs.add(self.context.remote.jobs.len() as u64);
        requests.wait().await;
        for (written, outcome) in requests.drain() {
            if outcome.result.is_ok() || !active(Mutant::OffloadCommitErrorIgnored) {
                let range = (base + u64::from(written.start), written.length.into());
                let missed = &mut self.context.missed;
                let refused = volume.note_outcome(view, written.slot, range, outcome.result, missed);
                // Only its server has the bytes, so all of it is listed.
                if let (Some(error), Some((member, _))) = (refused, view.member(written.slot)) {
                    missed.listings.push(volume.list_bad(member, written.slot, range, error));
                }
            }
        }
    }

    /// Writes the runs that need nothing from the servers.
    fn write_own_runs(&self, view: &View, requests: &mut SubmissionSet<Written>) {
        let geometry = &self.geometry;
        let (map, base) = (self.map, geometry.member_offset(self.stripe));
        let fua = self.context.image.fua();
        let mut submit = |slot: MemberSlot, run: &Run, data: Slice| {
            let written = Written { slot: slot.index(), start: run.start, length: run.length() };
            let at = base + u64::from(run.start);
            if let Some(write) = self.submit_write(view, slot.index(), at, Bytes::new(data, fua)) {
                requests.push(written, write);
            }
        };
        for (number, run) in self.context.plan.runs().iter().enumerate() {
            if self.context.remote.takes(number) {
                continue;
            }
            self.shared.cache.remove_rows(self.stripe.0, run.start, run.end);
            for column in run.written {
                let data = written_bytes(&self.context.image, column, run.start, run.end);
                submit(map.data_slot(column), run, data);
            }
            for (bytes, slot) in self.context.parity[number].iter().zip([Some(map.p_slot()), map.q_slot()]) {
                if let (Some(bytes), Some(slot)) = (bytes, slot) {
                    submit(slot, run, bytes.clone());
                }
            }
        }
    }
}

/// The operations of a plan. False if some of it must be done by the client that reads first, or nothing is
/// for the servers.
fn add_jobs(servers: &Attached, facts: &Stripe, plan: &Plan, jobs: &mut Vec<Job>) -> bool {
    for (number, run) in plan.runs().iter().enumerate() {
        let assignment = match assign(facts, servers.slots, run) {
            Assigned::Client => continue,
            Assigned::Plain => return false,
            Assigned::Servers(assignment) => assignment,
        };
        let mut start = run.start;
        while start < run.end {
            let end = run.end.min(start.saturating_add(servers.range_bytes));
            jobs.push(Job { run: number, start, end, assignment });
            start = end;
        }
    }
    true
}

/// What is written into a column, which is all of the range.
fn written_bytes(image: &Image, column: usize, from: u32, to: u32) -> Slice {
    let extent = image.find(column, from, to);
    let extent = extent.unwrap_or_else(|| unreachable!("a run is written whole"));
    extent.data.slice((from - extent.start) as usize, (to - from) as usize)
}
