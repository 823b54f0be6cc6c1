//! A second client takes the array over while the first one goes on.
//!
//! What the first one's users had begun before may have happened or not, like what a crash cuts off. What it
//! begins after the second one has the array must have no effect (C22): the ledger knows nothing of those
//! writes, so a single sector of one is found. And it must notice, and stop.
//!
//! Some old clients are idle then, and begin to write only when their successor has stopped cleanly and has
//! given the members up (C28): that must have no effect either.

use std::{cell::Cell, ops::Range, rc::Rc, sync::Arc};

use pinstripe_engine::{array::Array, io::volume::Volume};
use pinstripe_runtime::shard;

use super::{Swarm, Verdict, client::UserState, life::STEPS_MAX};
use crate::{Fault, checks::survey};

/// What the stale client writes: no stamp of the ledger's.
const FOREIGN: u8 = 0xee;
/// For how long some servers don't hear the old client at most.
const DEAF_NS: u64 = 8_000_000_000;

/// A client that the array was taken from.
pub(crate) struct Stale {
    array: Option<Array>,
    shop: Rc<UserState>,
    client: usize,
    /// It does nothing before its successor has left.
    is_patient: bool,
    /// Its writers that aren't done.
    writers: Rc<Cell<usize>>,
    /// It has tried to write since.
    tried: Rc<Cell<bool>>,
}

impl Stale {
    /// A client that goes on as if it had the array.
    pub(super) fn of(array: Array, shop: Rc<UserState>, client: usize) -> Self {
        let (writers, tried) = (Rc::default(), Rc::default());
        Self { array: Some(array), shop, client, is_patient: false, writers, tried }
    }
}

impl Swarm {
    /// No request comes for a while, so that the superblocks may say clean.
    fn idle_awhile(&mut self) -> Result<(), Verdict> {
        self.wait(|swarm| swarm.shop.open.get() == 0)?;
        let time = self.rng.below(2_000_000_000);
        let home = self.home();
        Ok(self.world.block_on(home, "idle", STEPS_MAX, async move { shard::sleep(time).await })?)
    }

    /// The other client is about to take over.
    pub(crate) fn hand_over(&mut self) -> Result<(), Verdict> {
        let is_patient = self.rng.chance(1, 3);
        if is_patient {
            self.idle_awhile()?;
        }
        self.begin_takeover(is_patient);
        Ok(())
    }

    fn begin_takeover(&mut self, is_patient: bool) {
        self.bury_stale();
        let Some(net) = &mut self.net else { return };
        self.summary.takeovers += 1;
        self.shop.closing.set(true);
        let successor = self.shop.succeed();
        let shop = std::mem::replace(&mut self.shop, successor);
        let old = net.client;
        let (array, writers, tried) = (self.array.take(), Rc::default(), Rc::default());
        self.stale = Some(Stale { array, shop, client: old, is_patient, writers, tried });
        (net.client, net.takes_over) = (1 - old, true);
        net.renew(1 - old, &self.world);
        for (server, disk) in self.disks.iter().enumerate() {
            // What the old client hasn't noticed yet isn't to meet the new one while rows are torn.
            disk.fault(&Fault::Heal);
            disk.fault(&Fault::Release);
            net.network.rejoin((1 - old, 2 + server));
        }
        self.doomed.clear();
        if self.rng.chance(1, 2) {
            for server in 0..self.disks.len() {
                if self.rng.chance(1, 2) {
                    let time = 1 + self.rng.below(DEAF_NS);
                    self.part((old, 2 + server), time);
                }
            }
        }
    }

    /// Whether another client goes on with an array that it hasn't any more.
    pub(crate) fn is_contended(&self) -> bool {
        self.stale.is_some()
    }

    /// A takeover was refused for want of members (C23): they are brought. If so few are members still that
    /// it must be forced: which slots have a member.
    pub(crate) fn is_takeover_hopeless(&mut self) -> Result<Option<Vec<bool>>, Verdict> {
        self.start_servers();
        self.disks.iter().for_each(|disk| disk.fault(&Fault::Return));
        let survey = survey(self.present().iter().map(|(number, disk)| (*number, disk)))?;
        if 2 * survey.seats.iter().flatten().count() > survey.seats.len() {
            return Ok(None);
        }
        self.summary.forced += 1;
        self.suspect_stale();
        let here: Vec<bool> = survey.members(&self.disks)?.iter().map(Option::is_some).collect();
        self.doubt_suspects(&here);
        Ok(Some(here))
    }

    /// Rows that the old client may leave half written.
    pub(crate) fn suspect_stale(&mut self) {
        if self.is_contended() {
            let unsettled = self.shop.ledger.borrow().unsettled(false);
            self.suspects = self.suspects_after(&unsettled);
        }
    }

    /// The new client has the array: what the old one's users have under way is cut off, and it goes on
    /// without a right.
    pub(super) fn retire_stale(&mut self) {
        self.suspect_stale();
        let emptied = self.has_emptied_member();
        let Some(net) = &self.net else { return };
        let Some(stale) = &self.stale else { return };
        let shards = net.shards_of(stale.client);
        stale.shop.retired.set(true);
        let unsettled = self.shop.ledger.borrow().unsettled(emptied);
        if emptied {
            self.shop.ledger.borrow_mut().crash();
        } else {
            self.shop.ledger.borrow_mut().kill();
        }
        if self.setup.consistency.bears_degraded_start() {
            self.cut_off.extend(unsettled);
            self.lost_at_start
                .extend(self.array().shared().snapshot().missing.iter().map(|slot| (slot, true)));
            self.doubt_cut_off();
        }
        if self.stale.as_ref().is_some_and(|stale| !stale.is_patient) {
            self.spawn_stale_writers(&shards);
        }
    }

    /// The old client's users write.
    fn spawn_stale_writers(&mut self, shards: &Range<usize>) {
        let Some(Stale { array: Some(array), writers, tried, .. }) = &self.stale else { return };
        let (shared, block) = (Arc::clone(array.shared()), u64::from(self.setup.block));
        let stripe = array.volume().size() / self.setup.stripes;
        for number in 0..2 {
            let mut rng = self.rng.fork(number);
            let (shared, shop) = (Arc::clone(&shared), Rc::clone(&self.shop));
            let (writers, tried) = (Rc::clone(writers), Rc::clone(tried));
            writers.set(writers.get() + 1);
            let shard = shards.start + rng.index(shards.len());
            self.world.spawn(shard, "stale client", async move {
                let volume = Volume::new(shared);
                for _ in 0..4 {
                    let pause = rng.pick(&[0, 100_000, 10_000_000, 2_000_000_000]);
                    shard::sleep(rng.below(pause + 1)).await;
                    let length = rng.pick(&[block, stripe]).min(1 << 20);
                    let at = rng.below((volume.size() - length) / length + 1) * length;
                    let mut data = shard::buffer(crate::rng::index(length));
                    data.fill(FOREIGN);
                    let forced = rng.chance(1, 4);
                    let written = volume.write(at, data.freeze(), forced).await;
                    tried.set(true);
                    if written.is_ok() {
                        shop.accuse(Verdict::Scene(format!(
                            "a client whose array was taken over has written {length} bytes at {at}"
                        )));
                        break;
                    }
                }
                writers.set(writers.get() - 1);
            });
        }
    }

    /// The array was stopped, and its members were given up: an old client that was idle until now begins to
    /// write.
    pub(crate) fn provoke_stale(&mut self) -> Result<(), Verdict> {
        let Some(net) = &mut self.net else { return Ok(()) };
        let Some(stale) = &mut self.stale else { return Ok(()) };
        stale.is_patient = false;
        let client = stale.client;
        let shards = net.shards_of(client);
        self.spawn_stale_writers(&shards);
        self.await_stale()
    }

    /// Waits until the old client has tried in vain. It must have noticed.
    pub(super) fn await_stale(&mut self) -> Result<(), Verdict> {
        if self.stale.as_ref().is_some_and(|stale| stale.is_patient) {
            return Ok(());
        }
        let writers = |swarm: &Self| swarm.stale.as_ref().map_or(0, |stale| stale.writers.get());
        self.wait(|swarm| writers(swarm) == 0)?;
        let Some(stale) = self.stale.as_ref() else { return Ok(()) };
        let Some(array) = stale.array.as_ref().filter(|_| stale.tried.get()) else { return Ok(()) };
        if !array.shared().has_failed() {
            let words = "a client whose array was taken over goes on".to_owned();
            return Err(Verdict::Scene(words));
        }
        if self.rng.chance(1, 2) {
            // It ends as any does, and gives up what it has; that is nothing.
            let (home, array) =
                (self.net.as_ref().map_or(0, |net| net.shards_of(stale.client).start), array.clone());
            let stopped = self.world.block_on(home, "stop", STEPS_MAX, async move { array.stop().await })?;
            if stopped.is_ok() {
                return Err(Verdict::Scene("a client without an array has stopped it".to_owned()));
            }
        }
        self.bury_stale();
        Ok(())
    }

    /// The old client is gone.
    pub(crate) fn bury_stale(&mut self) {
        let Some(net) = &mut self.net else { return };
        let Some(stale) = self.stale.take() else { return };
        let shards = net.shards_of(stale.client);
        {
            let _entered = self.world.enter(shards.start);
            drop(stale);
        }
        self.world.end_shards(&shards, &[], false, false);
        net.renew(1 - net.client, &self.world);
    }
}
