//! The controller's part in a change of the consistency policy; see `array/policy.rs`.

use std::sync::{Arc, PoisonError};

use pinstripe_md::{placement::NewLog, superblock::PplArea};
use pinstripe_runtime::Device;

use crate::{
    consistency::{Log, make_empty},
    controller::{ArrayController, control::IntentChange},
    error::{IoError, MemberError, Operation},
    intent::IntentTable,
    members::{LogArea, MemberId},
    membership::snapshot::Change,
    shared::Failure,
};

/// One step of a change.
pub(crate) enum PolicyStep {
    /// Replaces the write-intent table.
    Intent { intent: Arc<IntentTable>, change: IntentChange },
    /// Puts a log on the members, or takes it away.
    Log(LogChange),
}

/// What becomes of the log.
pub(crate) enum LogChange {
    /// Puts this log into these places.
    Add { log: Log, kind: NewLog, places: Vec<(MemberId, PplArea)> },
    /// Takes the log away.
    Remove,
}

impl ArrayController {
    /// The controller's part. A step fails only with the array.
    pub(crate) async fn change_policy(&self, steps: Vec<PolicyStep>) -> Result<(), IoError> {
        for step in steps {
            match step {
                PolicyStep::Intent { intent, change } => self.swap_intent(intent, change).await?,
                PolicyStep::Log(LogChange::Add { log, kind, places }) => {
                    self.add_log(log, kind, &places).await?;
                }
                PolicyStep::Log(LogChange::Remove) => self.remove_log().await?,
            }
        }
        Ok(())
    }

    async fn add_log(&self, log: Log, kind: NewLog, places: &[(MemberId, PplArea)]) -> Result<(), IoError> {
        let mut failures = Vec::new();
        for (id, place) in places {
            self.name_log(*id, kind, Some(*place));
            let record = self.superblocks.borrow().membership.device(*id).clone();
            if let Err(error) = make_empty(&record.superblock, &*record.handle.device).await {
                let (slot, name) = (record.slot, record.name);
                let error =
                    MemberError { role: slot.into(), name, operation: Operation::Metadata, offset: 0, error };
                failures.push(Failure { member: *id, error });
            }
        }
        self.drop_members_or_fail(failures).await?;
        self.update_superblocks().await?;
        *self.wanted_log.borrow_mut() = log;
        let failures = self.adopt_log().await;
        self.drop_members_or_fail(failures).await?;
        self.update_superblocks().await
    }

    async fn remove_log(&self) -> Result<(), IoError> {
        let members: Vec<MemberId> =
            self.superblocks.borrow().membership.active().map(|(id, _)| id).collect();
        for id in &members {
            self.name_log(*id, NewLog::None, None);
        }
        // From here on a dirty array is resynced.
        self.update_superblocks().await?;
        *self.wanted_log.borrow_mut() = Log::None;
        self.publish(Change::Log(Log::None)).await;
        self.update_superblocks().await
    }

    /// Empties the partial parity log of an array that doesn't log yet, if there is something in it from
    /// before the start. It knows nothing of what is written meanwhile, and the next start would believe it.
    ///
    /// It would, too, if a crash left it in use on some members and empty on others. So the superblocks name
    /// no log until it is empty everywhere: after a crash in between it is gone, and the array is dirty.
    pub(crate) async fn forget_old_log(&self) -> Result<(), IoError> {
        let wanted = self.wanted_log.borrow().clone();
        let Log::Ppl(log) = wanted else { return Ok(()) };
        if !self.log_is_old.get() || !self.awaits_log() {
            return Ok(());
        }
        let places: Vec<(MemberId, Option<PplArea>)> = {
            let superblocks = self.superblocks.borrow();
            let active = superblocks.membership.active();
            active.map(|(id, record)| (id, record.superblock.member.ppl)).collect()
        };
        for (id, _) in &places {
            self.name_log(*id, NewLog::None, None);
        }
        self.update_superblocks().await?;
        let work = async |device: &dyn Device, area, slot| log.begin(device, area, slot, false).await;
        let failures = self.on_every_member(work).await;
        self.drop_members_or_fail(failures).await?;
        for (id, place) in places {
            self.name_log(id, NewLog::Ppl, place);
        }
        self.log_is_old.set(false);
        Ok(())
    }

    /// What the next superblock of a member says of its log. Where writers log is left as it is until they
    /// are through.
    fn name_log(&self, id: MemberId, kind: NewLog, place: Option<PplArea>) {
        let mut superblocks = self.superblocks.borrow_mut();
        let record = superblocks.membership.device_mut(id);
        record.superblock.member.ppl = place.filter(|_| kind == NewLog::Ppl);
        record.superblock.member.double_parity_log = place.filter(|_| kind == NewLog::DoubleParity);
        if place.is_some() {
            *record.handle.member.log_area.lock().unwrap_or_else(PoisonError::into_inner) =
                LogArea::of(&record.superblock);
        }
    }

    async fn drop_members_or_fail(&self, failures: Vec<Failure>) -> Result<(), IoError> {
        // `drop_members` is false, too, where the members were dropped meanwhile.
        if failures.is_empty() || self.drop_members(failures).await || !self.shared().has_failed() {
            Ok(())
        } else {
            Err(IoError::Failed)
        }
    }
}
