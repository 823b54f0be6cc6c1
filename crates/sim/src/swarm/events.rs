//! What happens to an array in service: members fail, sectors rot, the owner changes things.

use std::{cell::RefCell, rc::Rc};

use pinstripe_engine::{
    array::{Array, CommandError, Policy},
    error::IoError,
    maintenance::{ScrubAction, SyncError},
};
use pinstripe_md::level::Level;

use super::{Consistency, Swarm, Verdict, draw::uuid, net::Reach};
use crate::{Event, Fault, SECTOR, Trigger, rng::index};

impl Swarm {
    /// One event, or none.
    pub(crate) fn event(&mut self) {
        if self.setup.level.parity_count() == 0 {
            if self.rng.chance(1, 8) {
                self.hold_up();
            }
            return;
        }
        match self.rng.below(24) {
            0..=2 if self.setup.failures => self.fail_member(),
            3 if self.setup.failures => self.fail_by_hand(),
            4 | 5 if self.setup.failures => self.rot(),
            6 | 7 => self.spawn_add_if_wanted(),
            8 => self.spawn_scrub(),
            9 if self.may_change_bitmap() => self.change_bitmap(),
            11 if self.setup.policy_changes => self.change_policy(),
            10 => self.hold_up(),
            _ => {}
        }
    }

    /// The number of the disk in a slot.
    pub(crate) fn disk_in(&self, slot: usize) -> Option<usize> {
        let snapshot = self.array().shared().snapshot();
        let name = &snapshot.seats[slot].member()?.name;
        self.disks.iter().position(|disk| disk.info().name == *name)
    }

    /// Slots that can't be relied on: empty, being rebuilt, or held by a disk with a lethal fault.
    pub(crate) fn broken(&self) -> usize {
        let snapshot = self.array().shared().snapshot();
        // The target of a replacement may take the slot over at any moment.
        let is_doomed = |name: &str| self.doomed.iter().any(|&disk| self.disks[disk].info().name == name);
        let is_broken = |slot: &usize| {
            let seat = &snapshot.seats[*slot];
            let held_by = seat.member().into_iter().chain(seat.target());
            !seat.is_whole() || held_by.into_iter().any(|member| is_doomed(&member.name))
        };
        (0..snapshot.seats.len()).filter(is_broken).count()
    }

    /// Whether parity may be wrong in rows that were written: then nothing may be lost.
    pub(crate) fn is_torn(&self) -> bool {
        let snapshot = self.array().shared().snapshot();
        snapshot.intent.is_torn(0..=snapshot.intent.len() - 1)
    }

    /// A slot with a member that may be lost now, and its disk.
    pub(crate) fn victim(&mut self) -> Option<(usize, usize)> {
        let snapshot = self.array().shared().snapshot();
        let slot = self.rng.index(snapshot.seats.len());
        let disk = self.disk_in(slot).filter(|disk| !self.afflicted.is_joining(*disk))?;
        let whole = snapshot.seats[slot].is_whole() && !self.doomed.contains(&disk);
        // A member that has just become whole may not be so yet in the superblocks, which a crash would go
        // by.
        let recorded = self.array().shared().is_recorded();
        if whole
            && (!recorded || self.is_torn() || self.broken() >= usize::from(self.setup.level.parity_count()))
        {
            return None;
        }
        if whole && self.unsynced {
            self.doubt_unwritten();
        }
        Some((slot, disk))
    }

    fn fail_member(&mut self) {
        let Some((_, disk)) = self.victim() else { return };
        self.summary.failures += 1;
        self.doomed.insert(disk);
        let size = self.setup.disk.size;
        let fault = match self.rng.below(6) {
            0..=2 => Fault::Gone,
            3 => Fault::FailFlushes(1 + u32::from(self.rng.chance(1, 2))),
            4 => Fault::RefuseRequests(1 + u32::from(self.rng.chance(1, 2))),
            _ => {
                // Nor can the range be listed as bad: the member must go.
                let superblock = crate::checks::superblock(&self.disks[disk]);
                if let Some(log) = superblock.and_then(|superblock| superblock.bad_block_log_sector()) {
                    let log = log.0 * SECTOR;
                    self.disks[disk].fault(&Fault::UnwritableRange(log..log + 4096));
                }
                let from = if self.is_far() {
                    let data = self.setup.data_byte();
                    data + self.rng.below(self.setup.chunk * self.setup.stripes / SECTOR) * SECTOR
                } else {
                    self.rng.below(size / SECTOR) * SECTOR
                };
                Fault::UnwritableRange(from..size.min(from + (1 << self.rng.range(12..20))))
            }
        };
        self.disks[disk].fault(&fault);
    }

    fn fail_by_hand(&mut self) {
        let Some((slot, disk)) = self.victim() else { return };
        self.summary.failures += 1;
        self.doomed.insert(disk);
        self.command("fail", move |array| async move {
            match array.fail(slot).await {
                // While others hang, it isn't known whether the array could do without it.
                Ok(()) | Err(CommandError::SlotEmpty(_) | CommandError::SlotNeeded(_)) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        });
    }

    /// A latent error, where the rest of the row is whole.
    fn rot(&mut self) {
        let Some(geometry) = self.shape() else { return };
        if self.is_torn() || self.broken() >= geometry.redundancy() {
            return;
        }
        let snapshot = self.array().shared().snapshot();
        let slot = self.rng.index(snapshot.seats.len());
        let Some(disk) = self.disk_in(slot) else { return };
        let Some(member) = snapshot.seats[slot].member() else { return };
        if self.afflicted.is_joining(disk) {
            return;
        }
        if self.unsynced {
            self.doubt_unwritten();
        }
        // A request that met an error may still be at work when the error is cured, so the disk stays on the
        // list.
        self.doomed.insert(disk);
        for _ in 0..=self.rng.below(4) {
            let from = self.rng.below(geometry.member_bytes() / SECTOR) * SECTOR;
            let most = self.rng.pick(&[1, 8, 64]);
            let length = (1 + self.rng.below(most)) * SECTOR;
            let end = geometry.member_bytes().min(from + length);
            self.disks[disk]
                .fault(&Fault::UnreadableRange(member.data_offset + from..member.data_offset + end));
        }
    }

    /// A disk hangs for a while, or is slow.
    fn hold_up(&mut self) {
        let number = self.rng.index(self.disks.len());
        let disk = &self.disks[number];
        if disk.is_gone() {
            return;
        }
        if self.rng.chance(1, 2) {
            disk.fault(&Fault::Hang);
            let until = self.world.now() + self.rng.below(20_000_000);
            disk.plan(Trigger::AtTime(until), Fault::Release);
        } else {
            disk.fault(&Fault::SlowBy(self.rng.pick(&[1, 4, 16])));
        }
    }

    /// Has the owner do something while the users go on.
    pub(crate) fn command<F>(&mut self, name: &'static str, act: impl FnOnce(Array) -> F)
    where
        F: Future<Output = Result<(), String>> + 'static,
    {
        let shop = Rc::clone(&self.shop);
        shop.open.set(shop.open.get() + 1);
        let act = act(self.array());
        self.world.trace().record(Event::Note { what: name, value: 0 });
        self.world.spawn(self.home(), name, async move {
            if let Err(error) = act.await
                && !shop.closing.get()
            {
                shop.accuse(Verdict::Refused(format!("{name}: {error}")));
            }
            shop.open.set(shop.open.get() - 1);
        });
    }

    fn spawn_add_if_wanted(&mut self) {
        let snapshot = self.array().shared().snapshot();
        // Two at once may want the same slot; more is no other case.
        let pending = self.shop.adds.get();
        if snapshot.seats.iter().any(|seat| seat.member().is_none()) && pending < 2 {
            self.spawn_add();
        }
    }

    /// A new disk, which may hold anything. Its number.
    pub(crate) fn new_disk(&mut self) -> usize {
        let number = self.disks.len();
        let disk = self.world.add_disk(self.setup.disk(number));
        if self.rng.chance(1, 2) {
            for range in self.setup.places() {
                let mut bytes = vec![0; index(range.end - range.start)];
                self.rng.fill(&mut bytes);
                disk.poke(range.start, &bytes);
            }
        }
        self.disks.push(disk);
        self.start_server(number);
        number
    }

    /// Puts a new disk in.
    pub(crate) fn spawn_add(&mut self) {
        if self.is_vast() || self.net.is_some() && !self.may_add_new() {
            return self.give_back();
        }
        let number = self.new_disk();
        let reach = self.reach(number);
        self.summary.spares += 1;
        let identity = uuid(&mut self.rng);
        let shop = Rc::clone(&self.shop);
        shop.adds.set(shop.adds.get() + 1);
        let joining = self.afflicted.joining(number);
        self.command("add", move |array| async move {
            let added = match reach.source().await {
                Ok(source) => Ok(array.add(source, identity).await),
                Err(error) => Err(error),
            };
            shop.adds.set(shop.adds.get() - 1);
            drop(joining);
            let added = match added {
                Ok(added) => added,
                Err(error) => return excused(&reach, error),
            };
            match added {
                // Another spare was faster, or this one failed on its way in.
                Ok(_) | Err(CommandError::Io(IoError::MembershipChanged) | CommandError::NotTakenIn(_)) => {
                    Ok(())
                }
                Err(_) if reach.is_troubled() => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        });
    }

    /// Whether a disk that was never a member is to come, rather than one that was.
    fn may_add_new(&mut self) -> bool {
        let has_room = self.net.as_ref().is_some_and(|net| net.has_room(self.disks.len()));
        has_room && (!self.has_idle_disk() || self.rng.chance(1, 4))
    }

    pub(crate) fn spawn_scrub(&mut self) {
        let shop = Rc::clone(&self.shop);
        let located = self.setup.level.parity_count() == 2;
        let action = match self.rng.below(4) {
            0 => ScrubAction::Repair,
            1 if located => ScrubAction::Locate,
            _ => ScrubAction::Check,
        };
        let request = self.scrub_request(action);
        self.command("scrub", move |array| async move {
            let before = array.shared().snapshot();
            let in_sync = before.intent.resync_count() == 0;
            let report = match array.scrub(request).await {
                Err(SyncError::TooMany) => return Ok(()),
                report => report.map_err(|error| error.to_string())?,
            };
            if in_sync && report.mismatched_sectors > 0 {
                shop.accuse(Verdict::Scrub(format!("{report:?} although nothing was to be resynced")));
            }
            Ok(())
        });
    }

    /// Whether the array can do without its bitmap for a while.
    fn may_change_bitmap(&self) -> bool {
        self.setup.consistency.settles_by_parity() && !self.is_vast() && self.setup.marks.is_none()
    }

    /// Another consistency policy on the live array.
    fn change_policy(&mut self) {
        if self.setup.consistency == Consistency::Journal {
            return;
        }
        let (log, consistency) = match self.setup.level {
            Level::Raid5 => (Policy::Ppl, Consistency::Ppl),
            Level::Raid6 => (Policy::DoubleParityLog, Consistency::DoubleParityLog),
            _ => return,
        };
        let policy = self.rng.pick(&[Policy::Resync, Policy::Bitmap, log, log]);
        if policy == log {
            // From now on a crash may find a log, whether the change is through or not.
            self.setup.consistency = consistency;
        }
        self.command("policy", move |array| async move {
            match array.set_policy(policy).await {
                // No room, or another change came first.
                Err(CommandError::Bitmap(_) | CommandError::BitmapRoom(_) | CommandError::Policy(_)) => {
                    Ok(())
                }
                other => other.map_err(|error| error.to_string()),
            }
        });
    }

    pub(crate) fn change_bitmap(&mut self) {
        let region = self.rng.pick(&[4096, 16384, 65536]);
        let refused: Rc<RefCell<Option<String>>> = Rc::default();
        self.command("bitmap", move |array| async move {
            let has_one = array.shared().snapshot().intent.is_persistent();
            let done = if has_one { array.remove_bitmap().await } else { array.add_bitmap(region).await };
            match done {
                // No room, or another change came first.
                Err(error @ (CommandError::Bitmap(_) | CommandError::BitmapRoom(_))) => {
                    *refused.borrow_mut() = Some(error.to_string());
                    Ok(())
                }
                other => other.map_err(|error| error.to_string()),
            }
        });
    }
}

/// Whether a server may have been out of reach.
pub(crate) fn excused(reach: &Reach, error: String) -> Result<(), String> {
    if reach.is_troubled() { Ok(()) } else { Err(error) }
}
