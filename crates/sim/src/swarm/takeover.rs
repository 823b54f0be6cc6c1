//! A second client takes the array over while the first one goes on.
//!
//! What the first one's users had begun before may have happened or not, like what a crash cuts off. What it
//! begins after the second one has the array must have no effect (C22): the ledger knows nothing of those
//! writes, so a single sector of one is found. And it must notice, and stop.
//!
//! Some old clients are idle then, and begin to write only when their successor has stopped cleanly and has
//! given the members up (C28): that must have no effect either.

use std::{cell::Cell, rc::Rc, sync::Arc};

use pinstripe_engine::{array::Array, io::volume::Volume};
use pinstripe_md::{
    superblock::Superblock,
    units::{DeviceNumber, MemberSlot},
};
use pinstripe_runtime::shard;

use super::{
    Swarm, Testbed, Verdict,
    client::UserState,
    hosts::{STEPS_MAX, server_node},
};
use crate::{Fault, checks::superblock};

/// What the stale client writes: no stamp of the ledger's.
const FOREIGN: u8 = 0xee;
/// For how long some servers don't hear the old client at most.
const DEAF_NS: u64 = 8_000_000_000;

/// A client that the array was taken from.
pub(crate) struct Stale {
    array: Option<Array>,
    users: Rc<UserState>,
    pub(super) client: usize,
    /// It does nothing before its successor has left.
    is_patient: bool,
    /// Its writers that aren't done.
    writers: Rc<Cell<usize>>,
    /// It has tried to write since.
    tried: Rc<Cell<bool>>,
}

impl Stale {
    /// A client that goes on as if it had the array.
    pub(super) fn of(array: Option<Array>, users: Rc<UserState>, client: usize) -> Self {
        let (writers, tried) = (Rc::default(), Rc::default());
        Self { array, users, client, is_patient: false, writers, tried }
    }
}

/// The other client is about to take over.
pub(super) fn hand_over(swarm: &mut Swarm) -> Result<(), Verdict> {
    let is_patient = swarm.bed.rng.chance(1, 3);
    if is_patient {
        // No request comes for a while, so that the superblocks may say clean.
        swarm.wait_for_users()?;
        let time = swarm.bed.rng.below(2_000_000_000);
        swarm.bed.hosts.block_on("idle", async move { shard::sleep(time).await })?;
    }
    begin(&mut swarm.bed, is_patient);
    Ok(())
}

fn begin(bed: &mut Testbed, is_patient: bool) {
    bed.bury_stale();
    bed.summary.takeovers += 1;
    let old = bed.hosts.client();
    let (array, users) = bed.service.hand_over();
    bed.stale = Some(Stale { is_patient, ..Stale::of(array, users, old) });
    bed.hosts.hand_over();
    bed.faults.heal();
    if bed.rng.chance(1, 2) {
        for server in 0..bed.hosts.disks.len() {
            if bed.rng.chance(1, 2) {
                let time = 1 + bed.rng.below(DEAF_NS);
                bed.hosts.part((old, server_node(server)), time);
            }
        }
    }
}

/// A start was refused for want of members (C23): they are brought. If so few are members still that it must
/// be forced: which slots have a member.
pub(super) fn is_hopeless(bed: &mut Testbed) -> Result<Option<Vec<bool>>, Verdict> {
    bed.hosts.start_servers();
    bed.hosts.disks.iter().for_each(|disk| disk.fault(&Fault::Return));
    let survey = bed.hosts.survey()?;
    let array = &survey.freshest.array;
    let current = |superblock: &Superblock| superblock.array.events + 1 >= array.events;
    let here: Vec<DeviceNumber> = bed
        .hosts
        .present()
        .filter_map(|(_, disk)| superblock(disk))
        .filter(current)
        .map(|superblock| superblock.member.dev_number)
        .collect();
    let slots = (0..u16::MAX).zip(&survey.seats).map(|(slot, _)| array.devices_in(MemberSlot(slot)));
    let named: Vec<Vec<DeviceNumber>> =
        slots.map(Iterator::collect).filter(|slot: &Vec<_>| !slot.is_empty()).collect();
    let whole = named.iter().filter(|devices| devices.iter().all(|device| here.contains(device)));
    if 2 * whole.count() > named.len() {
        return Ok(None);
    }
    suspect(bed);
    bed.forced_start(&survey).map(Some)
}

/// Rows that the old client may leave half written.
pub(super) fn suspect(bed: &mut Testbed) {
    if bed.is_contended() {
        let unsettled = bed.service.users.ledger.borrow().unsettled(false);
        bed.suspect(&unsettled);
    }
}

/// The new client has the array: what the old one's users have under way is cut off, and it goes on
/// without a right.
pub(super) fn retire(bed: &mut Testbed) {
    suspect(bed);
    let emptied = bed.hosts.has_emptied_member();
    let Some(stale) = &bed.stale else { return };
    stale.users.retired.set(true);
    let unsettled = bed.service.users.ledger.borrow().unsettled(emptied);
    bed.service.users.cut_off(emptied);
    if bed.setup.consistency.bears_degraded_start() {
        bed.doubts.cut_off(unsettled);
        let snapshot = bed.snapshot();
        bed.doubts.note_lost_in_takeover(snapshot.missing.iter());
        bed.settle_cut_off();
    }
    if bed.stale.as_ref().is_some_and(|stale| !stale.is_patient) {
        spawn_writers(bed);
    }
}

/// The old client's users write.
fn spawn_writers(bed: &mut Testbed) {
    let Some(Stale { array: Some(array), client, writers, tried, .. }) = &bed.stale else { return };
    let shards = bed.hosts.shards_of(*client);
    let (shared, block) = (Arc::clone(array.shared()), u64::from(bed.setup.block));
    let stripe = array.volume().size() / bed.setup.stripes;
    for number in 0..2 {
        let mut rng = bed.rng.fork(number);
        let (shared, users) = (Arc::clone(&shared), Rc::clone(&bed.service.users));
        let (writers, tried) = (Rc::clone(writers), Rc::clone(tried));
        writers.set(writers.get() + 1);
        let shard = shards.start + rng.index(shards.len());
        bed.hosts.world.spawn(shard, "stale client", async move {
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
                    users.accuse(Verdict::Scene(format!(
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
pub(super) fn provoke(swarm: &mut Swarm) -> Result<(), Verdict> {
    let Some(stale) = &mut swarm.bed.stale else { return Ok(()) };
    stale.is_patient = false;
    spawn_writers(&mut swarm.bed);
    await_end(swarm)
}

/// Waits until the old client has tried in vain. It must have noticed.
pub(super) fn await_end(swarm: &mut Swarm) -> Result<(), Verdict> {
    if swarm.bed.stale.as_ref().is_some_and(|stale| stale.is_patient) {
        return Ok(());
    }
    swarm.wait(|bed| bed.stale.as_ref().is_none_or(|stale| stale.writers.get() == 0))?;
    let bed = &mut swarm.bed;
    let Some(stale) = bed.stale.as_ref() else { return Ok(()) };
    let Some(array) = stale.array.as_ref().filter(|_| stale.tried.get()) else { return Ok(()) };
    if !array.shared().has_failed() {
        let words = "a client whose array was taken over goes on".to_owned();
        return Err(Verdict::Scene(words));
    }
    if bed.rng.chance(1, 2) {
        // It ends as any does, and gives up what it has; that is nothing.
        let (home, array) = (bed.hosts.shards_of(stale.client).start, array.clone());
        let stopped = bed.hosts.world.block_on(home, "stop", STEPS_MAX, async move { array.stop().await })?;
        if stopped.is_ok() {
            return Err(Verdict::Scene("a client without an array has stopped it".to_owned()));
        }
    }
    bed.bury_stale();
    Ok(())
}
