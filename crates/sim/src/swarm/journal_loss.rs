//! The journal device goes, for good or for a while (C18).
//!
//! That ends a life: what is under way is finished, the superblocks call the array dirty and its journal
//! lost, nothing more is written, everything can be read. Then the machine dies, or the array is stopped, and
//! the device is back or not. If the loss was written down, no start may take the journal for what it was: it
//! doesn't know what has been finished without it. So the array is refused, and then assembled by force,
//! without a journal from then on.
//!
//! The users of an array that writes back are let finish first, for what only the journal has is lost with it
//! if the machine dies before it is written out.

use pinstripe_engine::{error::IoError, options::JournalMode};
use pinstripe_md::superblock::{ResyncOffset, Role};
use pinstripe_runtime::shard;

use super::{Consistency, Swarm, Verdict, life::STEPS_MAX};
use crate::{Fault, checks::survey};

/// Writes that are tried until one must have been refused.
const TRIES: usize = 3;

impl Swarm {
    /// Whether this life ends with the loss of the journal.
    pub(crate) fn will_lose_journal(&mut self) -> bool {
        self.setup.atlas.is_some() && self.setup.consistency == Consistency::Journal && self.rng.chance(2, 3)
    }

    /// Takes the journal away, unless members have gone: then it would be one too many. True if the array was
    /// stopped.
    pub(crate) fn lose_journal(&mut self) -> Result<bool, Verdict> {
        let array = self.array();
        let snapshot = array.shared().snapshot();
        let is_whole = self.broken() == 0 && snapshot.targets.is_empty() && array.shared().is_recorded();
        if !is_whole || self.is_torn() {
            return Ok(false);
        }
        self.summary.journals_lost += 1;
        self.journal_lost = true;
        self.shop.closing.set(true);
        self.disks[self.setup.members].fault(&Fault::Gone);
        let writes_back = self.setup.options.journal_mode == JournalMode::WriteBack;
        if !writes_back && self.rng.chance(1, 2) {
            // The machine dies with it.
            let steps = 1 << self.rng.below(12);
            self.idle_on(steps)?;
            return Ok(false);
        }
        self.wait(|swarm| swarm.shop.open.get() == 0)?;
        self.write_in_vain()?;
        self.wait(Self::is_journal_disowned)?;
        self.shop.closing.set(false);
        self.spawn_read_all();
        self.wait(|swarm| swarm.shop.open.get() == 0)?;
        self.shop.closing.set(true);
        if self.rng.chance(1, 2) {
            return Ok(false);
        }
        let stopped = self.world.block_on(0, "stop", STEPS_MAX, async move { array.stop().await })?;
        stopped.map_err(|error| Verdict::Refused(format!("stop without the journal: {error}")))?;
        Ok(true)
    }

    /// No write is acknowledged any more, and what was is flushed.
    fn write_in_vain(&mut self) -> Result<(), Verdict> {
        for _ in 0..TRIES {
            let (volume, shop) = (self.array().volume().clone(), std::rc::Rc::clone(&self.shop));
            let block = self.setup.block as usize;
            let written = self.world.block_on(0, "write", STEPS_MAX, async move {
                let mut data = shard::buffer(block);
                let id = shop.ledger.borrow_mut().begin_write(0, &mut data, false);
                let written = volume.write(0, data.freeze(), false).await;
                shop.ledger.borrow_mut().complete_write(id, written.is_ok());
                written
            })?;
            match written {
                Ok(()) => continue,
                Err(IoError::JournalLost) => {}
                Err(error) => return Err(Verdict::Refused(format!("write without the journal: {error}"))),
            }
            let (volume, shop) = (self.array().volume().clone(), std::rc::Rc::clone(&self.shop));
            let flushed = self.world.block_on(0, "flush", STEPS_MAX, async move {
                let id = shop.ledger.borrow_mut().begin_flush();
                let flushed = volume.flush().await;
                shop.ledger.borrow_mut().complete_flush(id, flushed.is_ok());
                flushed
            })?;
            return flushed.map_err(|error| Verdict::Refused(format!("flush without the journal: {error}")));
        }
        Err(Verdict::Scene("writes are acknowledged although the journal is lost (C18)".to_owned()))
    }

    /// Whether the members say that the journal is lost, and that the array is dirty.
    fn is_journal_disowned(&self) -> bool {
        let present = self.present();
        survey(present.iter().map(|(number, disk)| (*number, disk))).is_ok_and(|survey| {
            survey.seats.iter().flatten().all(|(_, superblock)| {
                let array = &superblock.array;
                array.journal
                    && array.resync_offset != ResyncOffset::Clean
                    && !array.roles.contains(&Role::Journal)
            })
        })
    }

    /// The array was refused for want of its journal. Whether that is legal: then it is started without.
    pub(crate) fn may_miss_journal(&self) -> Result<bool, Verdict> {
        let present = self.present();
        let survey = survey(present.iter().map(|(number, disk)| (*number, disk)))?;
        let is_gone = self.disks[self.setup.members].is_gone();
        Ok(self.journal_lost && (is_gone || !survey.freshest.array.roles.contains(&Role::Journal)))
    }

    /// The array has started after it lost its journal: without it, or with it if the members don't say that
    /// it is lost.
    pub(crate) fn started_after_loss(&mut self, was_disowned: bool, forced: bool) -> Result<(), Verdict> {
        if !std::mem::take(&mut self.journal_lost) {
            return Ok(());
        }
        if forced {
            self.setup.consistency = Consistency::Resync;
        } else if was_disowned {
            return Err(Verdict::Scene("a journal that was lost is replayed (C18)".to_owned()));
        }
        Ok(())
    }

    /// Whether no start may use the journal any more.
    pub(crate) fn is_journal_forbidden(&self) -> bool {
        self.journal_lost && self.is_journal_disowned()
    }
}
