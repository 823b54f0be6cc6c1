//! An array in service: what its owner holds on the home shard.
//!
//! The home shard runs the controller (`control`), the intent writer and the sweeper (`intent_writer`), and
//! resync, rebuild and scrub (`maintenance`). All other shards only read and write, through their own
//! [`Volume`].

mod commands;
mod journal;
mod maintenance;
mod policy;

use std::{rc::Rc, sync::Arc};

use pinstripe_md::superblock::ReadOnlyReason;
use pinstripe_runtime::{DeviceSource, ShardHandle, shard};

pub use self::policy::Policy;
pub use crate::controller::error::{Added, CommandError, Removed};
use crate::{
    assembly::{AssembleError, Assembled, OldLog, StaleMember, assemble, give_up},
    controller::{
        ArrayController,
        control::Command,
        journal::log_of,
        superblocks::{MemberState, Superblocks},
    },
    error::{IoError, MemberError},
    events::{Event, EventKind},
    io::{volume::Volume, write},
    maintenance::Maintenance,
    members::MemberId,
    options::ArrayOptions,
    replay,
    shared::Shared,
};

/// An array in service. Lives on its home shard; cheap to clone.
#[derive(Clone)]
pub struct Array {
    pub(crate) controller: Rc<ArrayController>,
    /// Only of a level with parity.
    maintenance: Option<Rc<Maintenance>>,
}

impl Array {
    /// Reads the members, checks that the array can be served, and starts serving it on `shards`, of which
    /// the current one must be the first. Writes nothing until the first write; an unclean array is resynced
    /// in the background.
    pub async fn assemble(
        sources: Vec<Arc<dyn DeviceSource>>,
        options: ArrayOptions,
        shards: Vec<ShardHandle>,
    ) -> Result<Self, AssembleError> {
        match Self::assemble_with_log(sources.clone(), options.clone(), shards.clone()).await {
            // Forced, an array does without a journal that can't be replayed, as without one that isn't
            // there. Not without one that only doesn't answer just now: that isn't what was forced.
            Err(AssembleError::Journal { name, problem }) if options.force && problem.lasts() => {
                let others = sources.into_iter().filter(|source| source.name() != name).collect();
                Self::assemble_with_log(others, options, shards).await
            }
            outcome => outcome,
        }
    }

    async fn assemble_with_log(
        sources: Vec<Arc<dyn DeviceSource>>,
        mut options: ArrayOptions,
        shards: Vec<ShardHandle>,
    ) -> Result<Self, AssembleError> {
        let mut assembled = assemble(sources, &options).await?;
        let mut attached = std::mem::take(&mut assembled.attached);
        if let Err(error) = Self::take_logs(&mut assembled, &mut options).await {
            give_up(&attached).await;
            return Err(error);
        }
        // A journal that was left out isn't to be found again by the next start: what is done without it, it
        // doesn't know.
        let refreshes = assembled.old_log == OldLog::Replayed || assembled.journal_left_out;
        let journal = assembled.journal.take();
        let refused = std::mem::take(&mut assembled.refused);
        let sweep_ns = options.sweep_ns.unwrap_or_else(|| {
            let merged = assembled.bitmap.as_ref();
            let seconds = merged.map_or(5, |merged| merged.image.header().daemon_sleep_seconds);
            u64::from(seconds).max(1) * 1_000_000_000
        });
        let controller = ArrayController::start(assembled, options, shards);
        let array = Self { maintenance: Maintenance::new(Rc::clone(&controller)), controller };
        let begun = match journal {
            Some(journal) => array.controller.begin_journal(journal).await,
            None => array.controller.list_refused(refused).await,
        };
        if let Err(error) = begun {
            attached.retain(|device| !array.controller.is_late(&device.info().name));
            give_up(&attached).await;
            return Err(error);
        }
        drop(attached);
        let controller = &array.controller;
        let settles = controller.bits_frozen.get() && !controller.is_static();
        let offered = controller.is_offered();
        if offered {
            controller.claim_offload();
        }
        shard::spawn(Rc::clone(controller).control());
        if offered {
            // Awaited, so that the servers compute from the first write on.
            controller.begin_offload().await;
        }
        if settles {
            let controller = Rc::clone(controller);
            shard::spawn(async move {
                // If it fails, no bit is ever cleared.
                if controller.command(|reply| Command::Refresh { reply }).await.is_ok() {
                    controller.bits_frozen.set(false);
                }
            });
        }
        if !controller.is_static() {
            shard::spawn(Rc::clone(controller).write_intent());
            shard::spawn(Rc::clone(controller).sweep(sweep_ns));
        }
        write::workers::start(controller.shared());
        if let Some(maintenance) = &array.maintenance {
            shard::spawn(Rc::clone(maintenance).run());
        }
        if refreshes && !controller.is_static() {
            // Parity matches now, or the array is dirty and without its journal. If that can't be written
            // down, the array has failed, and takes no writes.
            let _ = controller.command(|reply| Command::Refresh { reply }).await;
        }
        Ok(array)
    }

    /// Replays the members' logs, and sees whether the journal can be used.
    async fn take_logs(assembled: &mut Assembled, options: &mut ArrayOptions) -> Result<(), AssembleError> {
        replay::replay(assembled, options).await?;
        options.read_only |= assembled.read_only.is_some();
        if let Some(journal) = assembled.journal.as_ref().filter(|_| !options.read_only) {
            assembled.log = log_of(journal, &assembled.geometry, options.journal_cache_bytes)?;
        }
        Ok(())
    }

    /// What every shard needs for its [`Volume`].
    pub fn shared(&self) -> &Arc<Shared> {
        self.controller.shared()
    }

    /// The home shard's volume.
    pub fn volume(&self) -> &Volume {
        &self.controller.volume
    }

    /// Why the array is served read-only although that was not asked for.
    pub fn read_only_reason(&self) -> Option<ReadOnlyReason> {
        self.controller.read_only
    }

    /// Devices that were given but are out of date.
    pub fn stale_members(&self) -> &[StaleMember] {
        &self.controller.stale
    }

    /// Devices that were given and can't be used, and why, in words.
    pub fn left_out(&self) -> &[String] {
        &self.controller.left_out
    }

    /// Whether the array was assembled without its journal, because that was forced: what only the journal
    /// had is lost.
    pub fn is_journal_left_out(&self) -> bool {
        self.controller.journal_left_out
    }

    /// The latest errors for which members were dropped, oldest first.
    pub fn last_errors(&self) -> Vec<MemberError> {
        self.controller.last_errors()
    }

    /// Ends in-flight writes, marks the superblocks clean, and ends the array's tasks. New requests fail.
    pub async fn stop(&self) -> Result<(), IoError> {
        // At once: the controller may be waiting for a device that hangs, and comes to the stop after that.
        self.controller.bound_waits();
        self.controller.drain_journal().await;
        let maintenance = self.maintenance.clone();
        let keep_place =
            Box::new(move || maintenance.iter().for_each(|maintenance| maintenance.keep_place()));
        let result = self.controller.command(|reply| Command::Stop { keep_place, reply }).await;
        if matches!(result, Err(IoError::Stopping)) {
            // The rest is for the stop that came first.
            return result;
        }
        self.controller.work.notify();
        self.controller.served.borrow().wanted.notify();
        self.controller.detach_members(result.is_ok()).await;
        result
    }

    /// Adds an event that the program that serves the array knows of, such as a spare taken from a pool.
    pub fn tell(&self, kind: EventKind) {
        self.controller.events.add(kind);
    }

    /// The events after number `after` (0 for all) that are still kept, oldest first. If the first one isn't
    /// `after + 1`, some are lost.
    pub fn events(&self, after: u64) -> Vec<Event> {
        self.controller.events.after(after)
    }

    /// The number of the latest event; 0 if nothing has happened.
    pub fn last_event(&self) -> u64 {
        self.controller.events.last()
    }

    /// Waits until there is an event after number `after`.
    pub async fn event_after(&self, after: u64) {
        self.controller.events.wait_after(after).await;
    }

    /// What the home shard has of the members, for `detail`.
    pub(crate) fn superblocks(&self) -> std::cell::Ref<'_, Superblocks> {
        self.controller.superblocks.borrow()
    }

    /// The devices that were ever attached: name, slot and state, by id.
    pub fn members(&self) -> Vec<(MemberId, String, Option<usize>, MemberState)> {
        let superblocks = self.superblocks();
        let devices = superblocks.membership.devices();
        devices.map(|(id, record)| (id, record.name.clone(), record.slot, record.state.clone())).collect()
    }
}
