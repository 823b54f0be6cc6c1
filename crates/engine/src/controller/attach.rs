//! Making the servers know the array: its members, and its epoch.
//!
//! A task on the home shard attaches every member that offers the seam whenever the membership has changed.
//! Then it has the controller publish which members take part. It waits until the superblocks know the
//! membership first: then nothing writes under an earlier one, and no operation of it is under way.
//!
//! # Epoch
//!
//! It must be higher than any before, also after a crash before which nothing of the array's own was written:
//! so neither the superblocks' events nor a clock will do. The servers know: their epochs are durable. It is
//! one more than the highest that any of the members was ever attached under; a member that joins with a
//! higher one raises it for all. A member that has a higher one although it was attached under ours was taken
//! over by another host. What this host knows of the array is old then, whether or not the other host is
//! still there: the array stops, and nothing more is written (C28). That is asked before the superblocks are
//! written, and every few seconds, of the journal's server too.
//!
//! What is refused leaves a plain member, and is tried again later. A server that doesn't answer is a failed
//! member.

use std::{cell::Cell, rc::Rc, sync::Arc};

use pinstripe_runtime::{
    Attachment, Device, DeviceError, DeviceErrorKind, SubmissionSet,
    offload::{EPOCH_STEP_MAX, NUMBER_MAX},
    shard,
};

use crate::{
    controller::{ArrayController, control::Command, error::CommandError, update::failure},
    error::{DeviceRole, IoError, Operation},
    geometry::Set64,
    members::MemberId,
    membership::{
        attached::{Attached, Standing},
        snapshot::{Change, Snapshot, View},
    },
    mutants::{Mutant, active},
    offload::{MemberOffload, OffloadDetail},
    options::{OffloadMode, ReducerChoice},
    shared::Failure,
};

/// A server that refused is asked again after this.
const AGAIN_NS: u64 = 10_000_000_000;
/// A rebuild waits so long for the servers to be attached.
const ATTACHED_NS: u64 = 5_000_000_000;
/// An idle host asks its members' servers this often whether they still are its (C28).
const OWNED_NS: u64 = 5_000_000_000;
/// While bytes are summed up, servers are asked this often what their links can take.
const LINKS_NS: u64 = 200_000_000;

/// What the home shard knows of the attachments.
#[derive(Default)]
pub(crate) struct Attaching {
    /// The task runs.
    runs: Cell<bool>,
    /// So does the one that asks whether the array was taken over.
    watches: Cell<bool>,
    epoch: Cell<u64>,
    /// Of the table of peers.
    generation: Cell<u64>,
}

impl Attaching {
    /// The members' servers are attached under this epoch, without peers so far; 0 if none is.
    pub(crate) fn under(epoch: u64) -> Self {
        Self { epoch: Cell::new(epoch), ..Self::default() }
    }
}

/// What came of asking the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// All servers that offer it are attached, or the membership is another by now.
    Granted,
    /// Some would not.
    Refused,
    /// Some did not answer: the membership of this generation will not last.
    Lost(u64),
}

impl ArrayController {
    /// Whether a server offers to compute, and no task has taken that up yet.
    pub(crate) fn is_offered(&self) -> bool {
        let shared = self.shared();
        if self.attaching.runs.get()
            || shared.options.offload == OffloadMode::Off
            || self.is_static()
            || !shared.geometry.has_parity()
        {
            return false;
        }
        let view = self.volume.base().members.view();
        (0..view.snapshot.seats.len())
            .any(|slot| view.member(slot).is_some_and(|(_, device)| device.offload().is_some()))
    }

    /// The calling task is about to take the offer up.
    pub(crate) fn claim_offload(&self) {
        self.attaching.runs.set(true);
    }

    /// Waits until the servers know of the membership, if they are told: what a rebuild reads without them is
    /// in the way of that.
    pub(crate) async fn until_attached(&self) {
        let shared = self.shared();
        let is_settled = || {
            !self.attaching.runs.get()
                || self.stopped.get()
                || shared.has_failed()
                || shared.snapshot().offload.is_some()
        };
        shard::timeout(ATTACHED_NS, shared.offload.changed.wait_until(is_settled)).await;
    }

    /// Attaches the members for the first time, and from then on after every change.
    pub(crate) async fn begin_offload(self: &Rc<Self>) {
        let round = self.attach_members().await;
        self.keep_up(round);
    }

    /// The same, without waiting for it.
    pub(crate) fn take_up_offload(self: &Rc<Self>) {
        self.claim_offload();
        self.keep_up(Round::Granted);
    }

    fn keep_up(self: &Rc<Self>, round: Round) {
        shard::spawn(Rc::clone(self).keep_attached(round));
        if self.shared().options.reducer == ReducerChoice::Bandwidth {
            shard::spawn(Rc::clone(self).watch_links());
        }
    }

    /// Has a task ask now and then whether the members are still this host's, from the time when there is an
    /// epoch.
    pub(crate) fn watch_ownership(self: &Rc<Self>) {
        if self.attaching.epoch.get() == 0 || self.attaching.watches.replace(true) {
            return;
        }
        let controller = Rc::clone(self);
        shard::spawn(async move {
            let shared = Arc::clone(controller.shared());
            let is_over = || controller.stopped.get() || shared.has_failed();
            while shard::timeout(OWNED_NS, shared.offload.changed.wait_until(is_over)).await.is_none() {
                for failure in controller.overtaken().await {
                    shared.report(failure.member, failure.error);
                }
            }
        });
    }

    /// Members, or the journal, that another host has attached since this one has: then what this host knows
    /// of the array is old (C28). One is enough.
    pub(crate) async fn overtaken(&self) -> Vec<Failure> {
        if self.attaching.epoch.get() == 0 || active(Mutant::TakeoverUnnoticed) {
            return Vec::new();
        }
        let view = self.volume.base().members.view();
        let slots = offers(&view).slots;
        let journal = self.superblocks.borrow().journal.as_ref().map(|journal| Rc::clone(&journal.device));
        // At the same time: a device that doesn't answer holds up what the others say no longer.
        let asked = journal.and_then(|device| Some((device.info().name.clone(), device.offload()?.epoch())));
        let answers = ask(&view, slots, |server| server.epoch()).await;
        let own = self.attaching.epoch.get();
        let is_overtaken = |answer: &Result<usize, DeviceError>| match answer {
            Ok(epoch) => *epoch as u64 > own,
            Err(error) => error.kind == DeviceErrorKind::Fenced,
        };
        let found = slots.iter().zip(&answers).find(|(_, answer)| is_overtaken(answer));
        let overtaken = found.and_then(|(slot, _)| {
            let (member, _) = view.member(slot)?;
            let error = DeviceError::of(DeviceErrorKind::Fenced);
            Some(failure(slot, member.id, &member.name, Operation::Presence, 0, error))
        });
        let Some((name, asked)) = asked.filter(|_| overtaken.is_none()) else {
            return overtaken.into_iter().collect();
        };
        let answer = asked.await.result;
        let error = DeviceError::of(DeviceErrorKind::Fenced);
        let (role, journal) = (DeviceRole::Journal, MemberId::JOURNAL);
        let overtaken = failure(role, journal, &name, Operation::Presence, 0, error);
        is_overtaken(&answer).then_some(overtaken).into_iter().collect()
    }

    /// Asks the servers what their links can take, while that matters.
    async fn watch_links(self: Rc<Self>) {
        let shared = Arc::clone(self.shared());
        let (is_over, mut seen) = (|| self.stopped.get() || shared.has_failed(), 0);
        loop {
            let over = shared.offload.changed.wait_until(is_over);
            if shard::timeout(LINKS_NS, over).await.is_some() {
                return;
            }
            let turns = shared.offload.reducers.turns();
            if std::mem::replace(&mut seen, turns) == turns {
                continue;
            }
            let view = self.volume.base().members.view();
            let Some(attached) = view.snapshot.attached().cloned() else { continue };
            let answers = ask(&view, attached.slots, |server| server.free_to_receive()).await;
            for (slot, answer) in attached.slots.iter().zip(answers) {
                shared
                    .offload
                    .reducers
                    .set_free(slot, answer.ok().filter(|free| *free > 0).map(|free| free as u64));
            }
        }
    }

    async fn keep_attached(self: Rc<Self>, mut round: Round) {
        let shared = Arc::clone(self.shared());
        loop {
            let is_over = || self.stopped.get() || shared.has_failed();
            let wanted = || match round {
                Round::Lost(generation) => shared.has_moved(generation),
                Round::Granted | Round::Refused => shared.snapshot().offload.is_none(),
            };
            let change = shared.offload.changed.wait_until(|| is_over() || wanted());
            if round == Round::Refused {
                // What was refused may be granted now.
                let _ = shard::timeout(AGAIN_NS, change).await;
            } else {
                change.await;
            }
            if is_over() {
                return;
            }
            round = self.attach_members().await;
        }
    }

    /// Attaches every member that offers it, and publishes which ones take part.
    async fn attach_members(&self) -> Round {
        let shared = self.shared();
        let snapshot = shared.snapshot();
        let lost = Round::Lost(snapshot.generation);
        if !shared.recorded(snapshot.generation).await {
            return lost;
        }
        let view = self.volume.base().members.view();
        if view.snapshot.generation != snapshot.generation {
            return lost;
        }
        let mut attached = offers(&view);
        if attached.slots.is_empty() {
            self.publish_attached(snapshot.generation, attached).await;
            return Round::Granted;
        }
        if self.attaching.epoch.get() == 0 && !self.begin_epoch(&view, &mut attached).await {
            return lost;
        }
        // While operations are under way the members keep their epoch: a spare may have raised the array's,
        // and with a higher one the servers drop what isn't committed.
        let published = snapshot.offload.as_ref().map(|attached| attached.epoch).filter(|epoch| *epoch > 0);
        let epoch = published.unwrap_or(self.attaching.epoch.get());
        let attachment = Attachment { epoch, ..self.next_attachment(&view, attached.slots, false) };
        let asked = attached.slots;
        self.attach_others(&view, &attachment).await;
        let answers = ask(&view, asked, |server| server.attach(&attachment)).await;
        let is_lost = self.note_answers(&view, &mut attached, asked, &answers);
        if is_lost {
            return lost;
        }
        attached.epoch = epoch;
        attached.leave_out(&view);
        let refused = attached.standing.iter().any(|standing| matches!(standing, Standing::Refused(_)));
        self.publish_attached(snapshot.generation, attached).await;
        if refused { Round::Refused } else { Round::Granted }
    }

    /// The epoch is higher than every one that a member knows. False if a member is lost.
    async fn begin_epoch(&self, view: &View, attached: &mut Attached) -> bool {
        let asked = attached.slots;
        let answers = ask(view, asked, |server| server.epoch()).await;
        if self.note_answers(view, attached, asked, &answers) {
            return false;
        }
        let known = answers.iter().filter_map(|answer| answer.ok()).max().unwrap_or(0) as u64;
        self.attaching.epoch.set(known.saturating_add(1).min(NUMBER_MAX));
        true
    }

    /// Takes members that answered with an error out of those that take part. Reports the ones that are gone,
    /// don't answer or are fenced. True if there are any of these: the membership will change.
    fn note_answers(
        &self,
        view: &View,
        attached: &mut Attached,
        asked: Set64,
        answers: &[Result<usize, DeviceError>],
    ) -> bool {
        use DeviceErrorKind::{Fenced, Gone, Removed, TimedOut};
        let mut is_lost = false;
        for (slot, answer) in asked.iter().zip(answers) {
            let Err(error) = *answer else { continue };
            attached.slots = attached.slots.without(Set64::only(slot));
            attached.standing[slot] = Standing::Refused(error);
            // A fenced member is reported like one that is gone: the array stops.
            if matches!(error.kind, Gone | TimedOut | Removed | Fenced) {
                is_lost = true;
                self.volume.base().members.report(view, slot, Operation::Presence, 0, error);
            }
        }
        is_lost
    }

    /// Attaches the server of a device that is about to join and is [bounded](crate::supervision::bounded):
    /// while it has an epoch of another time, it takes no write without that.
    pub(crate) async fn admit_server(&self, device: &dyn Device) -> Result<(), CommandError> {
        // Also where nothing is offloaded: no other host may write it from now on (C22).
        let Some(server) = device.offload() else { return Ok(()) };
        // If it was a member, what it had prepared when it was dropped will never be committed.
        let _ = server.detach(false).await;
        let name = || device.info().name.clone();
        let failed = |error| CommandError::Device { name: name(), error };
        let answer = server.epoch().await.result.map_err(failed)?;
        let (known, own) = (answer as u64, self.attaching.epoch.get());
        let view = self.volume.base().members.view();
        // What this host began over a connection that it has lost must not land on what it writes from now
        // on.
        let mut attachment = self.next_attachment(&view, offers(&view).slots, true);
        let attach = async |attachment: &Attachment| server.attach(attachment).await.result;
        let mut raises = own == 0 || known > own;
        if !raises {
            match attach(&attachment).await {
                // Another host had chosen the same number.
                Err(error) if error.kind == DeviceErrorKind::Fenced && known == own => raises = true,
                attached => attached.map(|_| ()).map_err(failed)?,
            }
        }
        if raises {
            // A host that was fenced must not raise the epoch of a device that joins, for the other host
            // would not get it.
            let overtaken = self.overtaken().await;
            if !overtaken.is_empty() {
                for failure in overtaken {
                    self.shared().report(failure.member, failure.error);
                }
                return Err(failed(DeviceError::of(DeviceErrorKind::Fenced)));
            }
            let next =
                known.checked_add(1).filter(|next| *next <= NUMBER_MAX && next - own <= EPOCH_STEP_MAX);
            attachment.epoch = next.ok_or_else(|| CommandError::Epoch { name: name(), epoch: known })?;
            attach(&attachment).await.map_err(failed)?;
        }
        // The others get it with the next membership.
        self.attaching.epoch.set(self.attaching.epoch.get().max(attachment.epoch));
        Ok(())
    }

    /// Devices that hold no slot take superblocks too: spares, and the targets of replacements. A refusal is
    /// noticed when the device is written to.
    async fn attach_others(&self, view: &View, attachment: &Attachment) {
        for device in self.others(view) {
            if let Some(server) = device.offload() {
                let _ = server.attach(attachment).await;
            }
        }
    }

    fn others(&self, view: &View) -> Vec<Rc<dyn Device>> {
        let slots = view.snapshot.seats.len();
        let targets = (slots..view.devices.len()).filter_map(|place| Some(Rc::clone(view.member(place)?.1)));
        let superblocks = self.superblocks.borrow();
        let spares = superblocks.membership.active().filter(|(_, record)| !record.is_seated());
        let spares = spares.map(|(_, record)| Rc::clone(&record.handle.device));
        targets.chain(spares).collect()
    }

    /// What the servers are told next.
    fn next_attachment(&self, view: &View, slots: Set64, alone: bool) -> Attachment {
        self.attaching.generation.set(self.attaching.generation.get() + 1);
        Attachment {
            array: self.superblocks.borrow().membership.array.set_uuid.0,
            epoch: self.attaching.epoch.get(),
            generation: self.attaching.generation.get(),
            peers: addresses(view, slots),
            takeover: false,
            alone,
        }
    }

    async fn publish_attached(&self, generation: u64, attached: Attached) {
        let attached = Arc::new(attached);
        // If the membership has changed meanwhile, it is attached anew.
        let _ = self.command(|reply| Command::Offload { generation, attached, reply }).await;
    }

    /// Makes known to every shard which members take part. Called by the controller.
    pub(crate) async fn adopt_attached(
        &self,
        generation: u64,
        attached: Arc<Attached>,
    ) -> Result<(), IoError> {
        let shared = self.shared();
        let now = shared.snapshot();
        if now.generation != generation || !shared.is_recorded() {
            return Err(IoError::MembershipChanged);
        }
        let attached = self.publish(Change::Offload(attached)).await;
        shared.offload.resume();
        // The superblocks know this membership: it is the one before.
        shared.set_durable(attached);
        Ok(())
    }

    /// The array has ended. With `give_up` it has ended well, and the next host needs no epoch to write.
    pub(crate) async fn detach_members(&self, give_up: bool) {
        self.shared().offload.changed.notify();
        if self.attaching.epoch.get() == 0 {
            return;
        }
        let view = self.volume.base().members.view();
        let slots = offers(&view).slots;
        // A server that doesn't answer keeps its epoch, and the next host raises it.
        ask(&view, slots, |server| server.detach(give_up)).await;
        let journal = self.superblocks.borrow().journal.as_ref().map(|journal| Rc::clone(&journal.device));
        let journal = journal.map(|device| device as Rc<dyn Device>);
        for device in self.others(&view).into_iter().chain(journal) {
            if let Some(server) = device.offload() {
                let _ = server.detach(give_up).await;
            }
        }
    }
}

impl ArrayController {
    pub(crate) fn offload_detail(&self, snapshot: &Snapshot) -> Option<OffloadDetail> {
        let attaching = &self.attaching;
        let plain = if !attaching.runs.get() {
            return None;
        } else if !snapshot.log.is_none() {
            Some("the array's log has to see old bytes".to_owned())
        } else if !snapshot.replacements.is_empty() {
            Some("a member is being replaced".to_owned())
        } else if snapshot.attached().is_none() {
            Some("the servers are not attached".to_owned())
        } else {
            let refused = |slot| {
                format!(
                    "the server of slot {slot} refused its part a short time ago; perhaps it can't reach another server"
                )
            };
            self.shared().offload.paused_for().map(refused)
        };
        Some(OffloadDetail { epoch: attaching.epoch.get(), plain })
    }

    pub(crate) fn member_offload(&self, snapshot: &Snapshot, slot: usize) -> Option<MemberOffload> {
        let member = snapshot.seats[slot].member().filter(|_| self.attaching.runs.get())?;
        let (plain, operations_max) = match &snapshot.offload {
            None => (Some("its server is being attached".to_owned()), 0),
            Some(attached) => (attached.standing[slot].why(), attached.limits[slot]),
        };
        let shared = &self.shared().offload;
        let free_bandwidth = shared.reducers.free(slot);
        Some(MemberOffload {
            plain,
            outstanding: shared.outstanding(member.id),
            operations_max,
            free_bandwidth,
        })
    }
}

impl Standing {
    /// In words; `None` of a member that takes part.
    fn why(&self) -> Option<String> {
        Some(match self {
            Self::Offload => return None,
            Self::NotOffered => "its server doesn't compute".to_owned(),
            Self::Replacement => "a member is being replaced".to_owned(),
            Self::Refused(error) => format!("its server would not be attached: {error}"),
        })
    }
}

/// The members that offer to take part, and can.
fn offers(view: &View) -> Attached {
    let slots = view.snapshot.seats.len();
    let mut attached = Attached {
        slots: Set64::EMPTY,
        epoch: 0,
        range_bytes: u32::MAX,
        limits: vec![0; slots],
        standing: vec![Standing::NotOffered; slots],
    };
    for slot in 0..slots {
        let Some(server) = view.member(slot).and_then(|(_, device)| device.offload()) else { continue };
        let limits = server.limits();
        attached.slots.insert(slot);
        attached.limits[slot] = limits.operations;
        attached.range_bytes = attached.range_bytes.min(limits.range_bytes);
        attached.standing[slot] = Standing::Offload;
    }
    // Whole blocks.
    attached.range_bytes -= attached.range_bytes % 4096;
    attached
}

impl Attached {
    /// While a member is being replaced its rows have two places for one chunk, of which the servers know
    /// nothing.
    fn leave_out(&mut self, view: &View) {
        if !view.snapshot.replacements.is_empty() {
            for standing in self.standing.iter_mut().filter(|standing| **standing == Standing::Offload) {
                *standing = Standing::Replacement;
            }
            self.slots = Set64::EMPTY;
        }
        if self.range_bytes == 0 {
            self.slots = Set64::EMPTY;
        }
    }
}

fn addresses(view: &View, slots: Set64) -> Vec<Option<String>> {
    let address = |slot: usize| Some(view.member(slot)?.1.offload()?.address());
    (0..view.snapshot.seats.len()).map(|slot| address(slot).filter(|_| slots.contains(slot))).collect()
}

/// Asks all of `slots` at once; the answers by slot, ascending.
async fn ask(
    view: &View,
    slots: Set64,
    request: impl Fn(&dyn pinstripe_runtime::Offload) -> pinstripe_runtime::Submission,
) -> Vec<Result<usize, DeviceError>> {
    let mut set = SubmissionSet::default();
    for server in slots.iter().filter_map(|slot| view.member(slot)?.1.offload()) {
        set.push((), request(server));
    }
    set.wait().await;
    set.drain().map(|((), outcome)| outcome.result).collect()
}
