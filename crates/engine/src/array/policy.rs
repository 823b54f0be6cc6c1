//! Another consistency policy for an array in service.
//!
//! At every step a crash finds superblocks under which what is on the members is safe:
//!
//! - *A log comes*: it is made empty on every member; the superblocks name it (it says nothing yet: an
//!   unclean start resyncs, as before); writers under a new snapshot wait until every writer that doesn't log
//!   has ended; the log begins, and they go on.
//! - *A log goes*: the superblocks don't name it any more, so that an unclean start resyncs; then writers
//!   stop logging.
//! - *Bitmap*: as [`Array::add_bitmap`] and [`Array::remove_bitmap`] do it. From a bitmap to a log there is a
//!   moment with neither: a crash may find it, a stop or an upgrade can't.

use crate::{
    array::Array,
    consistency::{DoubleParityLog, Log, Ppl, double_parity_log::takes_chunks_of},
    controller::{
        control::Command,
        error::CommandError,
        policy::{LogChange, PolicyStep},
    },
    members::LogArea,
};
use pinstripe_md::{
    level::Level,
    placement::{NewLog, log_place},
};
use std::sync::Arc;

/// Bytes of a member per bit of a bitmap that comes by a change of policy.
const REGION_BYTES: u32 = 64 << 20;

/// What keeps an array consistent over a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Nothing: an unclean start resyncs everything.
    Resync,
    /// A write-intent bitmap: an unclean start resyncs what was being written.
    Bitmap,
    /// MD's partial parity log (level 5).
    Ppl,
    /// The double-parity log (level 6).
    DoubleParityLog,
}

impl Policy {
    /// Its name, MD's where MD has one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resync => "resync",
            Self::Bitmap => "bitmap",
            Self::Ppl => "ppl",
            Self::DoubleParityLog => "double-parity-log",
        }
    }
}

impl Array {
    /// MD's word for what keeps parity consistent over a crash. A log that waits for the initial sync counts.
    pub fn consistency_policy(&self) -> &'static str {
        let log = self.controller.wanted_log.borrow().traits().policy;
        if !self.shared().geometry.has_parity() {
            ""
        } else if self.shared().snapshot().intent.is_persistent() {
            "bitmap"
        } else {
            log.unwrap_or("resync")
        }
    }

    /// Changes what keeps the array consistent over a crash. It is written and read meanwhile.
    pub async fn set_policy(&self, policy: Policy) -> Result<(), CommandError> {
        // No device joins meanwhile, which might have no room for what is to come.
        let _changing = self.controller.changes.take().await;
        let now = self.consistency_policy();
        if now == policy.name() {
            return Ok(());
        }
        let wanted = match policy {
            Policy::Ppl => NewLog::Ppl,
            Policy::DoubleParityLog => NewLog::DoubleParity,
            Policy::Resync | Policy::Bitmap => NewLog::None,
        };
        // What can't be is refused before anything is given up for it.
        self.check_log(wanted)?;
        let goes = match now {
            "bitmap" => Some(self.bitmap_to_remove()?),
            "ppl" | "double-parity-log" => Some(PolicyStep::Log(LogChange::Remove)),
            _ => None,
        };
        let comes = match policy {
            Policy::Resync => None,
            Policy::Bitmap => Some(self.bitmap_to_add(REGION_BYTES)?),
            Policy::Ppl | Policy::DoubleParityLog => Some(PolicyStep::Log(self.log_to_add(wanted)?)),
        };
        self.change_policy(goes.into_iter().chain(comes).collect()).await
    }

    /// The caller has the turn to change things.
    pub(crate) async fn change_policy(&self, steps: Vec<PolicyStep>) -> Result<(), CommandError> {
        Ok(self.controller.command(|reply| Command::Policy { steps, reply }).await?)
    }

    fn check_log(&self, wanted: NewLog) -> Result<(), CommandError> {
        if self.shared().options.read_only {
            return Err(CommandError::ReadOnly);
        }
        if !self.shared().geometry.has_parity() {
            return Err(CommandError::NoRedundancy);
        }
        let (has_journal, level) = {
            let superblocks = self.controller.superblocks.borrow();
            (superblocks.membership.array.journal, superblocks.membership.array.level)
        };
        if has_journal {
            let why = "the array has a journal, and no other policy can take its place";
            return Err(CommandError::Policy(why.to_owned()));
        }
        let needed = match wanted {
            NewLog::None => return Ok(()),
            NewLog::Ppl => Level::Raid5,
            NewLog::DoubleParity => Level::Raid6,
        };
        if level != needed {
            return Err(CommandError::Policy(format!("this log is for {needed}, and the array is {level}")));
        }
        self.log_to_add(wanted).map(|_| ())
    }

    /// The log with its place on every member.
    fn log_to_add(&self, kind: NewLog) -> Result<LogChange, CommandError> {
        let superblocks = self.controller.superblocks.borrow();
        let geometry = &self.shared().geometry;
        let block = u64::from(geometry.logical_block());
        let mut places = Vec::new();
        for (id, record) in superblocks.membership.active() {
            let mut superblock = record.superblock.clone();
            superblock.array.bitmap_offset = None;
            let place = log_place(&superblock, kind).filter(|place| match kind {
                NewLog::DoubleParity => {
                    superblock.member.double_parity_log = Some(*place);
                    let area = LogArea::of(&superblock);
                    area.is_some_and(|area| takes_chunks_of(geometry.chunk_bytes().into(), area, block))
                }
                _ => place.takes_chunks_of(superblock.array.chunk),
            });
            let place = place.ok_or_else(|| {
                CommandError::Policy(format!("{}: there is no room for a log before the data", record.name))
            })?;
            places.push((id, place));
        }
        let set_uuid = superblocks.membership.array.set_uuid;
        let log = match kind {
            NewLog::None => Log::None,
            NewLog::Ppl => Log::Ppl(Arc::new(Ppl::new(set_uuid, 1))),
            NewLog::DoubleParity => Log::DoubleParity(Arc::new(DoubleParityLog::new(set_uuid, block))),
        };
        Ok(LogChange::Add { log, kind, places })
    }
}
