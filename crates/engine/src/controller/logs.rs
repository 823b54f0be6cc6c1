//! The members' logs over a session: taken up when parity matches, begun on every member, ended at a stop.

use pinstripe_md::{
    double_parity_log::{ANCHOR_BYTES, Identity},
    superblock::EVENTS_MAX,
};
use pinstripe_runtime::{Device, DeviceError};

use crate::{
    assembly::read_bytes,
    consistency::Log,
    controller::{ArrayController, superblocks::DeviceHandle},
    error::{MemberError, Operation},
    geometry::MemberSlot,
    members::LogArea,
    membership::snapshot::Change,
    mutants::{Mutant, active},
    shared::Failure,
};

impl ArrayController {
    /// Whether the array's log isn't in use yet.
    pub(crate) fn awaits_log(&self) -> bool {
        !self.wanted_log.borrow().is_none() && self.shared().snapshot().log.is_none()
    }

    /// Takes up the array's log once parity matches everywhere: before, a log that says so would be believed
    /// (C17).
    ///
    /// From then on a crash finds a log that says that parity matches but for what it has. So what was
    /// written before it is flushed, and every member that missed any of it is out, on disk too, before the
    /// log begins (C4).
    pub(crate) async fn adopt_log(&self) -> Vec<Failure> {
        let shared = self.shared();
        let old = shared.snapshot();
        let log = self.wanted_log.borrow().clone();
        let in_sync = old.intent.resync_count() == 0;
        if log.is_none() || !old.log.is_none() || !in_sync {
            return Vec::new();
        }
        // Writers under this snapshot wait for the log to open. It opens when no other writers are left.
        self.publish(Change::Log(log.clone())).await;
        while !active(Mutant::LogBeginsUnflushed) && !shared.has_failed() {
            if shared.has_failures() {
                self.drop_reported().await;
            } else if !shared.bad_reports.is_empty() {
                self.keep_bad_blocks().await;
            } else {
                let view = self.volume.base().members.view();
                if self.volume.base().flush_or_report(&view).await.is_empty() {
                    break;
                }
            }
        }
        // Past redundancy nothing is written any more: no log begins.
        if shared.has_failed() { Vec::new() } else { self.open_log(&log).await }
    }

    /// Begins the log on every member, unless that was done. No write is logged before. Returns the failures.
    pub(crate) async fn open_log(&self, log: &Log) -> Vec<Failure> {
        match log {
            Log::Ppl(log) if !log.gate().is_open() => {
                let work = async |device: &dyn Device, area, slot| log.begin(device, area, slot, true).await;
                let failures = self.on_every_member(work).await;
                log.gate().open();
                failures
            }
            Log::DoubleParity(log) if !log.gate().is_open() => {
                let events = self.superblocks.borrow().membership.array.events;
                let newest = self.newest_incarnation().await;
                let newest = if active(Mutant::IncarnationFromEvents) { 0 } else { newest };
                log.set_incarnation(newest.max(events) + 1);
                let work = async |device: &dyn Device, area, _| log.begin(device, area).await;
                let failures = self.on_every_member(work).await;
                log.gate().open();
                failures
            }
            // A journal is emptied by its replay.
            Log::None | Log::Ppl(_) | Log::DoubleParity(_) | Log::Journal(_) => Vec::new(),
        }
    }

    /// Empties the log at a stop. No write is under way, every member was flushed (C4), and the superblocks
    /// say clean.
    pub(crate) async fn empty_log(&self, log: &Log) {
        // With clean superblocks a double-parity log is not replayed, whatever it holds.
        if let Log::Ppl(log) = log {
            let _ = self.on_every_member(async |device, area, _| log.empty(device, area).await).await;
        }
    }

    /// The highest incarnation of a double-parity log that any member has: the next must be another, or
    /// records from before would be taken for its own. The superblocks' events alone don't tell, where a
    /// crash came before they were written.
    async fn newest_incarnation(&self) -> u64 {
        let set_uuid = self.superblocks.borrow().membership.array.set_uuid;
        let newest = std::cell::Cell::new(0);
        let look = async |device: &dyn Device, area: LogArea, _| {
            let anchor = read_bytes(device, area.offset, ANCHOR_BYTES as u64).await.ok();
            let found = anchor.and_then(|anchor| Identity::of_anchor(&anchor, set_uuid));
            // One that no counting comes to (C35) is written over.
            let found = found.map(|identity| identity.incarnation).filter(|found| *found <= EVENTS_MAX);
            newest.set(newest.get().max(found.unwrap_or(0)));
            // A member that can't be read is no failure here: the write that begins its log decides.
            Ok(())
        };
        self.on_every_member(look).await;
        newest.get()
    }

    /// Does something to the log on every member with a slot. Returns the failures.
    pub(crate) async fn on_every_member(
        &self,
        work: impl AsyncFn(&dyn Device, LogArea, MemberSlot) -> Result<(), DeviceError>,
    ) -> Vec<Failure> {
        let members: Vec<_> = {
            let superblocks = self.superblocks.borrow();
            let seated = superblocks.seated();
            seated.filter_map(|(_, record)| Some((record.slot?, record.handle.clone()))).collect()
        };
        let mut failures = Vec::new();
        for (slot, DeviceHandle { member, device, .. }) in members {
            let Some(area) = member.log_area() else { continue };
            let low = MemberSlot::at(slot);
            if let Err(error) = work(&*device, area, low).await {
                let (name, offset, operation) = (member.name.clone(), area.offset, Operation::Metadata);
                failures.push(Failure {
                    member: member.id,
                    error: MemberError { role: slot.into(), name, operation, offset, error },
                });
            }
        }
        failures
    }
}
