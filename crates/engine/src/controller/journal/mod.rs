//! What the home shard does with the journal besides writing it: begin after a replay, keep its superblock,
//! end, and lose it.

mod commit;
mod reclaim;
mod write_out;

use std::{
    collections::BTreeSet,
    rc::Rc,
    sync::{Arc, Mutex},
};

use futures_util::future::join;
use pinstripe_md::{bad_block_table::BadBlockTable, superblock::Role, units::SECTOR_BYTES};
use pinstripe_runtime::{Device, DeviceError, DeviceErrorKind, shard};

use crate::{
    assembly::{AssembleError, Found, JournalProblem},
    consistency::{
        Log,
        journal::{Journal, check_blocks, write_superblock},
    },
    controller::{ArrayController, error::CommandError, superblocks::JournalDevice},
    error::IoError,
    events::EventKind,
    geometry::{Geometry, StripeId},
    io::parity::ParityVolume,
    members::{Health, Member, MemberBadBlocks, MemberId},
    membership::snapshot::Seat,
    mutants::{Mutant, active},
    plan::cost::MemberCost,
    replay::journal::{Replayed, empty, members_hold_everything, replay, volume_of},
    supervision::Supervised,
};

/// The log of an array with this journal, which is yet to be replayed.
pub(crate) fn log_of(
    journal: &Found,
    geometry: &Geometry,
    cache_bytes_max: usize,
) -> Result<Log, AssembleError> {
    if let Some(geometry) = geometry.parity() {
        let (chunk, members) = (u64::from(geometry.chunk_bytes()), geometry.members() as u64);
        check_blocks(chunk, members, &journal.superblock).map_err(|(blocks, needed)| {
            let name = journal.device.info().name.clone();
            AssembleError::Journal { name, problem: JournalProblem::TooSmall { needed, blocks } }
        })?;
    }
    Ok(Log::Journal(Arc::new(Journal::new(
        &journal.superblock,
        journal.device.info().name.clone(),
        geometry,
        cache_bytes_max,
    ))))
}

pub(crate) const NO_JOURNAL: &str = "the array has no journal";

pub(crate) fn refused(why: &str) -> CommandError {
    CommandError::Policy(why.to_owned())
}

impl ArrayController {
    /// Takes the journal out, if the array can do without it. That is decided behind all failures that were
    /// reported and all commands that came before, as of a member (C31). The controller's.
    pub(crate) async fn drop_journal_by_command(&self) -> Result<(), CommandError> {
        self.drop_all_reported().await?;
        let Some(journal) = self.journal() else { return Err(refused(NO_JOURNAL)) };
        if journal.failure().is_some() {
            return Err(refused("the journal is out of the array already"));
        }
        if journal.caches() {
            return Err(refused(
                "the journal was set to write-back again meanwhile, and may have what the members lack; nothing was done",
            ));
        }
        let snapshot = self.shared().snapshot();
        let ails = |seat: &Seat| seat.member().is_some_and(|member| self.shared().is_ailing(member));
        let is_needed = !snapshot.is_complete() || snapshot.seats.iter().any(ails);
        if is_needed && !active(Mutant::NeededJournalTakenOut) {
            return Err(refused(
                "the journal is needed: a member is missing, doesn't answer or is being rebuilt, and after a crash the array could not do without it; nothing was done",
            ));
        }
        self.drop_journal(&journal, DeviceError::of(DeviceErrorKind::Removed));
        self.record_journal_loss().await;
        Ok(self.shared().check()?)
    }

    /// Replays the journal that assembly found, or, where nothing may be written, sees that there is nothing
    /// to replay. Then starts what works on it.
    pub(crate) async fn begin_journal(self: &Rc<Self>, mut found: Found) -> Result<(), AssembleError> {
        let volume = volume_of(&self.volume, &found)?;
        let Some(journal) = self.journal() else {
            return members_hold_everything(volume, &mut found).await;
        };
        let (device, member) = self.supervise(&mut found)?;
        self.enter_journal(&found, &device, &member);
        let misses_a_member = self.superblocks.borrow().membership.misses_a_member();
        if (misses_a_member || !self.shared().snapshot().is_complete()) && !active(Mutant::AbsentMissReplay) {
            // A device that isn't here misses what is replayed, and replay empties the journal. So the
            // superblocks say first that the device is out: back after a crash, it must not be taken for
            // current (C2). The freshest may say so already; that all do is what counts.
            self.update_superblocks().await.map_err(|_| AssembleError::NoRecord)?;
            self.look_up_journal(&mut found);
        }
        let mut unmade = BTreeSet::new();
        let unbuilt = self.superblocks.borrow().membership.unbuilt();
        let settle = async |found: &mut Found| self.settle_lists(found).await;
        let (resume, kept) = loop {
            match replay(volume, &mut found, &unmade, &unbuilt, settle).await? {
                Replayed::Written(log) => break empty(volume, &mut found, log).await?,
                Replayed::Unmade(rows) => {
                    unmade.extend(self.list_parity_of(volume, rows, &mut found).await);
                }
            }
        };
        journal.resume(
            resume,
            kept.into_iter().map(|(stripe, pages)| (volume.cache_key(StripeId(stripe)), pages)),
        );
        self.enter_journal(&found, &device, &member);
        shard::spawn(Rc::clone(self).write_journal(Arc::clone(&journal)));
        if self.shared().snapshot().can_write_back() {
            journal.set_mode(self.shared().options.journal_mode);
        }
        shard::spawn(Rc::clone(self).reclaim_journal(Arc::clone(&journal)));
        shard::spawn(Rc::clone(self).write_out_journal(Rc::clone(volume), journal));
        Ok(())
    }

    /// Has the superblocks and the members' lists know what a replay has reported of members; says whether
    /// the membership is another since. Before the controller looks at reports by itself.
    async fn settle_lists(&self, found: &mut Found) -> Result<bool, AssembleError> {
        let before = self.shared().snapshot().generation;
        self.enter_tail(found);
        self.drop_all_reported().await.map_err(|_| AssembleError::NoRecord)?;
        self.keep_bad_blocks().await;
        self.shared().check().map_err(|_| AssembleError::NoRecord)?;
        self.look_up_journal(found);
        Ok(self.shared().snapshot().generation != before)
    }

    /// Has the parity of rows of the log listed as bad. Gives back those of which it can't be.
    async fn list_parity_of(&self, volume: &ParityVolume, rows: Vec<u64>, found: &mut Found) -> Vec<u64> {
        self.enter_tail(found);
        let snapshot = self.shared().snapshot();
        // A member that only doesn't answer just now, or is away, may be back.
        let is_whole = snapshot.is_complete() && snapshot.replacements.is_empty();
        let mut left = Vec::new();
        for row in rows {
            let (stripe, start) = volume.geometry.stripe_of_member_offset(row * SECTOR_BYTES);
            let may_list = is_whole && !self.shared().has_failures();
            if !may_list || !join(volume.list_parity(stripe, start), self.keep_bad_blocks()).await.0 {
                left.push(row);
            }
        }
        self.look_up_journal(found);
        left
    }

    /// Enters in the books where the log begins by now: they are written before the replay is over.
    fn enter_tail(&self, found: &Found) {
        if let Some(journal) = &mut self.superblocks.borrow_mut().journal {
            journal.superblock.member.journal_tail = found.superblock.member.journal_tail;
        }
    }

    /// The journal device's superblock as the books have it now.
    fn look_up_journal(&self, found: &mut Found) {
        if let Some(journal) = &self.superblocks.borrow().journal {
            found.superblock = journal.superblock.clone();
        }
    }

    /// Enters the journal device in the books, as its superblock is now. One that a crash has left an event
    /// behind is levelled like a member, or a second such crash would leave it two behind, which is stale.
    fn enter_journal(&self, found: &Found, device: &Rc<Supervised>, member: &Arc<Member>) {
        let (device, member) = (Rc::clone(device), Arc::clone(member));
        let (superblock, written) = (found.superblock.clone(), found.superblock.clone());
        let mut superblocks = self.superblocks.borrow_mut();
        let membership = &mut superblocks.membership;
        membership.events_differ |= superblock.array.events != membership.array.events;
        superblocks.journal = Some(JournalDevice { device, member, superblock, written });
    }

    /// Puts the journal device under supervision like a member, though it has no slot. The request that fails
    /// gets the error, and the controller gets no report.
    fn supervise(&self, found: &mut Found) -> Result<(Rc<Supervised>, Arc<Member>), AssembleError> {
        let device = found
            .source
            .attach()
            .map_err(|error| AssembleError::Device { name: found.source.name(), error })?;
        let member = Arc::new(Member {
            id: MemberId::JOURNAL,
            name: device.info().name.clone(),
            source: Mutex::default(),
            data_offset: 0,
            bad_blocks: MemberBadBlocks::new(BadBlockTable::default(), &found.superblock, &*device),
            cost: MemberCost::default(),
            log_area: Mutex::default(),
            health: Health::default(),
        });
        let device = Supervised::new(device, &member, self.shared());
        found.device = Rc::clone(&device) as Rc<dyn Device>;
        Ok((device, member))
    }

    /// Writes the journal device's superblock as the books have it. The caller holds the lock of the
    /// superblocks.
    pub(crate) async fn write_journal_superblock(&self) {
        let ready = {
            let superblocks = self.superblocks.borrow();
            let journal = superblocks.journal.as_ref();
            journal.map(|journal| (Rc::clone(&journal.device), journal.superblock.clone()))
        };
        let (Some(journal), Some((device, superblock))) = (self.journal(), ready) else { return };
        match write_superblock(&*device, &superblock).await {
            Ok(()) => {
                if let Some(journal) = &mut self.superblocks.borrow_mut().journal {
                    journal.written = superblock;
                }
            }
            Err(error) => self.drop_journal(&journal, error),
        }
    }

    /// The array stops, and every member was flushed: the log begins anew at its last meta block.
    pub(crate) async fn close_journal(&self, journal: &Arc<Journal>) {
        if journal.failure().is_none() {
            let last = journal.needed_from();
            // If that fails, the journal is lost, and the superblocks say so.
            let _ = self.move_tail(journal, last).await;
        }
        if self.has_lost_journal() {
            self.note_journal_loss(journal);
        }
        journal.wake();
    }

    /// Whether the journal failed and the superblocks don't say so yet.
    pub(crate) fn has_lost_journal(&self) -> bool {
        self.journal().is_some_and(|journal| journal.is_loss_unrecorded())
            && !active(Mutant::JournalLossIgnored)
    }

    /// The journal is lost (C18): the superblocks call its device faulty and the array dirty. Writes that are
    /// in the log already go on; no other is taken.
    pub(crate) async fn record_journal_loss(&self) {
        let Some(journal) = self.journal() else { return };
        // What the log has made durable may be in the members' caches, and no start replays it any more (C4).
        // The same superblocks say which members can't flush: the others have their bytes.
        if !active(Mutant::JournalLeftUnflushed) && self.flush_or_drop().await.is_err() {
            return;
        }
        // If that fails, the array has failed, and says so.
        if active(Mutant::JournalLossUnrecorded) || self.write_journal_loss(&journal).await.is_ok() {
            journal.set_loss_durable();
        }
    }

    async fn write_journal_loss(&self, journal: &Journal) -> Result<(), IoError> {
        self.note_journal_loss(journal);
        self.update_superblocks().await
    }

    /// Has the next superblocks say that the journal is lost.
    fn note_journal_loss(&self, journal: &Journal) {
        journal.set_loss_recorded();
        let error = journal.failure().unwrap_or(DeviceError::of(DeviceErrorKind::Other));
        let error = journal.lost(error);
        self.note(&error);
        self.events.add(EventKind::Fail(error));
        self.dirty.set(true);
        let mut superblocks = self.superblocks.borrow_mut();
        superblocks.journal = None;
        for role in &mut superblocks.membership.array.roles {
            if *role == Role::Journal {
                *role = Role::Faulty;
            }
        }
    }
}
