//! Replacements on arrays with a log, and at their switch: crashes at any step, members lost with them, and
//! the one device that a crash leaves ahead of all others.

use std::sync::Arc;

use crate::arrays::{
    STEPS, assemble, options,
    scene::{DATA_SECTOR, Scene, clients, drawn_disks, lay_out, spawn, superblock_on, wish, write},
};
use pinstripe_engine::{
    array::Policy,
    assembly::AssembleError,
    geometry::StripeId,
    options::{ArrayOptions, SyncSpeed},
};
use pinstripe_md::{
    identity::Uuid,
    level::Level,
    placement::{InitialSync, NewBitmap, NewDevice, NewLog, journal::add_journal},
    superblock::Role,
    units::MemberSlot,
};
use pinstripe_runtime::DeviceSource;
use pinstripe_sim::{Fault, Rng, SimDisk, World, WorldConfig, checks};

const CHUNK: u64 = 4096;
const MEMBER_SECTORS: u64 = 256 + 512;
const JOURNAL_SECTORS: u64 = 256 + 720;
/// The slot that is replaced.
const REPLACED: usize = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Bitmap,
    Ppl,
    DoubleParity,
    Journal,
}

impl Kind {
    fn level(self) -> Level {
        if self == Self::DoubleParity { Level::Raid6 } else { Level::Raid5 }
    }

    fn redundancy(self) -> u64 {
        u64::from(self.level().parity_count())
    }

    fn members(self) -> u8 {
        if self.level() == Level::Raid6 { 5 } else { 4 }
    }
}

/// A slow copy, with a checkpoint at every step.
fn in_small_steps() -> ArrayOptions {
    ArrayOptions { checkpoint_stripes: 8, checkpoint_ns: 0, maintenance_depth: 1, gather_ns: 0, ..options() }
}

/// An array, behind its members the journal, if it has one, and last the device that is to replace a member.
fn scene(seed: u64, kind: Kind) -> Scene {
    let mut world = World::new(WorldConfig::new(seed, 1 + usize::try_from(seed % 2).unwrap()));
    let bitmap = match kind {
        Kind::Bitmap => NewBitmap::Internal { chunk_bytes: Some(32 << 10) },
        _ => NewBitmap::None,
    };
    let mut wish = wish(kind.level(), kind.members(), CHUNK, bitmap, InitialSync::AssumeClean);
    wish.members.iter_mut().for_each(|member| member.sectors = MEMBER_SECTORS);
    let journal = (kind == Kind::Journal).then_some(JOURNAL_SECTORS);
    let sizes = wish.members.iter().map(|member| member.sectors).chain(journal).chain([MEMBER_SECTORS]);
    let disks = drawn_disks(&mut world, sizes);
    let target = disks.last().unwrap();
    target.poke(0, &vec![0xee; usize::try_from(MEMBER_SECTORS * 512).unwrap()]);
    let log = match kind {
        Kind::Ppl => NewLog::Ppl,
        Kind::DoubleParity => NewLog::DoubleParity,
        Kind::Bitmap | Kind::Journal => NewLog::None,
    };
    let mut placed = wish.place_with(log).unwrap();
    if kind == Kind::Journal {
        let device = NewDevice { sectors: JOURNAL_SECTORS, uuid: Uuid([0x4a; 16]) };
        add_journal(&mut placed, device, 512).unwrap();
    }
    let members = disks.len() - 1;
    lay_out(&mut world, placed, &disks[..members]).unwrap();
    Scene::over(world, disks, members, in_small_steps())
}

/// The device that replaces.
fn target(scene: &Scene) -> SimDisk {
    scene.disks.last().unwrap().clone()
}

fn begin(scene: &mut Scene) {
    let (array, source) = (scene.array.clone(), target(scene).source());
    scene.world.spawn(0, "replace", async move {
        let _ = array.replace(REPLACED, Some(source), Uuid([200; 16])).await;
    });
}

/// Whether the target's superblock says that it is the slot's member, and whole.
fn is_announced(target: &SimDisk) -> bool {
    checks::superblock(target).is_some_and(|superblock| {
        let member = &superblock.member;
        superblock.own_role() == Role::Slot(MemberSlot(1))
            && !member.replacement
            && member.recovery_offset.is_none()
    })
}

/// Random writes that never end.
fn writers(scene: &mut Scene, count: u64) {
    spawn(scene, count, move |_, volume, ledger, mut rng| async move {
        let sectors = volume.size() / 512;
        loop {
            // Most of them where others write too.
            let reach = if rng.chance(3, 4) { 96 } else { sectors };
            let longest = rng.pick(&[1, 8, 40]);
            let length = 1 + rng.below(longest);
            let at = rng.below(reach - length);
            if write(&volume, &ledger, at, length, rng.below(6) == 0).await.is_err() {
                return;
            }
        }
    });
}

fn power_loss(scene: &mut Scene) {
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
}

/// Nothing waits until it is there.
fn begin_to_assemble(scene: &mut Scene) {
    let sources = sources(scene, &[]);
    let shards = (0..scene.world.shards()).map(|i| scene.world.shard(i).handle()).collect();
    let options = scene.options.clone();
    scene.world.spawn(0, "assemble", async move {
        let array = pinstripe_engine::array::Array::assemble(sources, options, shards).await;
        std::future::pending::<()>().await;
        drop(array);
    });
}

fn sources(scene: &Scene, lost: &[usize]) -> Vec<Arc<dyn DeviceSource>> {
    let here = scene
        .disks
        .iter()
        .enumerate()
        .filter(|(i, disk)| !lost.contains(i) && checks::superblock(*disk).is_some());
    here.map(|(_, disk)| disk.source()).collect()
}

/// Disks that are lost, of at most as many slots as the level bears.
fn losses(rng: &mut Rng, kind: Kind, scene: &Scene) -> Vec<usize> {
    let mut slots: Vec<usize> = (0..usize::from(kind.members())).collect();
    rng.shuffle(&mut slots);
    slots.truncate(usize::try_from(rng.below(kind.redundancy() + 1)).unwrap());
    let target = scene.disks.len() - 1;
    let disks = |slot: usize| match slot {
        REPLACED => {
            [vec![slot], vec![target], vec![slot, target]][usize::try_from(rng.below(3)).unwrap()].clone()
        }
        _ => vec![slot],
    };
    slots.into_iter().flat_map(disks).collect()
}

/// C19: what was being written to a lost member may be anything.
fn doubt(scene: &Scene, in_flight: impl IntoIterator<Item = u64>, lost: &[usize]) {
    let geometry = scene.geometry();
    for sector in in_flight {
        let (stripe, within) = geometry.locate(sector * 512);
        let slot = geometry.slots(stripe).data_slot(geometry.column_of(within).0).index();
        let target = slot == REPLACED && lost.contains(&(scene.disks.len() - 1));
        if lost.contains(&slot) || target {
            scene.ledger.borrow_mut().doubt(sector..sector + 1);
        }
    }
}

fn settle(scene: &mut Scene) {
    let array = scene.array.clone();
    let settled = |_: &_| {
        let detail = array.detail();
        detail.missing == 0
            && detail.regions_to_resync == 0
            && detail.slots.iter().all(|slot| slot.replacement.is_none())
    };
    scene.world.run_until(STEPS, settled).unwrap();
}

/// A replacement under writers, a crash (at any step, or about when the target is switched in), perhaps
/// others while that is put right, and members lost with the last.
fn crashes(seed: u64, kind: Kind) {
    let mut scene = scene(seed, kind);
    let mut rng = scene.world.rng(5);
    clients(&mut scene, 2, 10, 32);
    begin(&mut scene);
    writers(&mut scene, 3);
    let target = target(&scene);
    let steps = if rng.chance(1, 2) {
        scene.world.run_until(STEPS, |_| is_announced(&target)).unwrap();
        rng.below(80)
    } else {
        let scale = rng.below(13);
        rng.below(1 << scale)
    };
    let _ = scene.world.run_until(steps, |_| false);
    // What was being written at the first crash may be so at the last: nothing says how far it was put right
    // between.
    let in_flight = scene.ledger.borrow().unsettled(false);
    while rng.chance(1, 3) {
        power_loss(&mut scene);
        begin_to_assemble(&mut scene);
        let _ = scene.world.run_until(1 << rng.below(11), |_| false);
    }
    let lost = if kind == Kind::Bitmap { Vec::new() } else { losses(&mut rng, kind, &scene) };
    power_loss(&mut scene);
    let sources = sources(&scene, &lost);
    let assembled = assemble(&mut scene.world, sources, scene.options.clone());
    scene.array =
        assembled.unwrap_or_else(|error| panic!("seed {seed}, {kind:?}, without {lost:?}: {error}"));
    doubt(&scene, in_flight, &lost);
    scene.read_all();
    clients(&mut scene, 2, 10, 32);
    scene.read_all();
    if lost.is_empty() {
        assert_eq!(scene.array.detail().missing, 0, "seed {seed}, {kind:?}");
        settle(&mut scene);
        assert_eq!(scene.check(), 0, "seed {seed}, {kind:?}");
        scene.stop();
        without_each(&mut scene, seed, kind);
    }
}

/// Reads everything without each of the members in turn.
fn without_each(scene: &mut Scene, seed: u64, kind: Kind) {
    let devices = scene.array.detail().slots;
    for slot in devices {
        let name = slot.device.unwrap();
        let lost: Vec<usize> = (0..scene.disks.len()).filter(|i| name == format!("disk{i}")).collect();
        let sources = sources(scene, &lost);
        let options = ArrayOptions { read_only: true, ..scene.options.clone() };
        let assembled = assemble(&mut scene.world, sources, options);
        scene.array =
            assembled.unwrap_or_else(|error| panic!("seed {seed}, {kind:?}, without {name}: {error}"));
        scene.read_all();
    }
}

const SEEDS: std::ops::Range<u64> = 0..40;

#[test]
fn no_crash_of_a_replacement_loses_a_byte_with_a_partial_parity_log() {
    SEEDS.for_each(|seed| crashes(seed, Kind::Ppl));
}

#[test]
fn no_crash_of_a_replacement_loses_a_byte_with_a_double_parity_log() {
    SEEDS.for_each(|seed| crashes(seed, Kind::DoubleParity));
}

#[test]
fn no_crash_of_a_replacement_loses_a_byte_with_a_journal() {
    SEEDS.for_each(|seed| crashes(seed, Kind::Journal));
}

#[test]
fn no_crash_of_a_replacement_loses_a_byte_with_a_bitmap() {
    SEEDS.for_each(|seed| crashes(seed, Kind::Bitmap));
}

/// A member has failed. The device that replaces is being rebuilt in its place, and waits when that is
/// recorded beyond a sector.
fn rebuilt_beyond(scene: &mut Scene, sector: u64) {
    let (array, target) = (scene.array.clone(), target(scene));
    let source = target.source();
    scene
        .run(async move {
            array.fail(REPLACED).await?;
            array.add(source, Uuid([200; 16])).await
        })
        .unwrap();
    let recorded = || checks::superblock(&target).and_then(|superblock| superblock.member.recovery_offset);
    scene.world.run_until(STEPS, |_| recorded().is_some_and(|offset| offset.0 > sector)).unwrap();
    scene.array.pause_sync(true);
}

/// Those of the freshest superblock.
fn events(disks: &[SimDisk]) -> u64 {
    let superblocks = disks.iter().filter_map(checks::superblock);
    superblocks.map(|superblock| superblock.array.events).max().unwrap()
}

/// A crash under writers while a member is being rebuilt, and others as the superblocks say that the log is
/// replayed: none may be taken for clean as long as the device's says that some of it is rebuilt, for there
/// it has missed what was being written.
fn rebuild_crashes(seed: u64) {
    let mut scene = scene(seed, Kind::Ppl);
    let mut rng = scene.world.rng(5);
    clients(&mut scene, 2, 10, 32);
    rebuilt_beyond(&mut scene, 100);
    writers(&mut scene, 3);
    let _ = scene.world.run_until(100 + rng.below(400), |_| false);
    let in_flight = scene.ledger.borrow().unsettled(false);
    for _ in 0..3 {
        power_loss(&mut scene);
        begin_to_assemble(&mut scene);
        let (disks, from) = (scene.disks.clone(), events(&scene.disks));
        let to = from + 1 + rng.below(2);
        let _ = scene.world.run_until(4000, |_| events(&disks) >= to);
        let _ = scene.world.run_until(rng.below(8), |_| false);
    }
    power_loss(&mut scene);
    let all = sources(&scene, &[]);
    scene.array = assemble(&mut scene.world, all, scene.options.clone()).unwrap();
    doubt(&scene, in_flight, &[REPLACED]);
    scene.read_all();
    settle(&mut scene);
    assert_eq!(scene.check(), 0, "seed {seed}");
    scene.stop();
    without_each(&mut scene, seed, Kind::Ppl);
}

#[test]
fn no_crash_of_a_start_has_a_device_believed_that_was_being_rebuilt_under_writers() {
    SEEDS.for_each(rebuild_crashes);
}

/// The process dies when a device that is being rebuilt lacks what parity has of a write. The next one, which
/// is forced to start, dies when the first superblock says that the array is clean. (A log has made parity
/// match what the device holds by then, and nothing is to be seen.)
fn start_is_cut_off(seed: u64) {
    let mut scene = scene(seed, Kind::Bitmap);
    clients(&mut scene, 2, 10, 32);
    rebuilt_beyond(&mut scene, 200);
    let geometry = scene.geometry();
    let mut maps = (16..24).map(|number| (StripeId(number), geometry.slots(StripeId(number))));
    let (stripe, map) = maps.find(|(_, map)| map.p_slot().index() != REPLACED).unwrap();
    let column = (0..map.columns()).find(|column| map.data_slot(*column).index() == REPLACED).unwrap();
    let (target, parity) = (target(&scene), scene.disks[map.p_slot().index()].clone());
    let at = DATA_SECTOR * 512 + geometry.member_offset(stripe);
    // Superblocks and bitmaps say by now that the row is written to.
    scene.write(geometry.array_offset(stripe, 0) / 512, 1, false).unwrap();
    let [old, old_parity] = [&target, &parity].map(|disk| disk.peek(at, usize::try_from(CHUNK).unwrap()));
    target.fault(&Fault::Hang);
    let sector = geometry.array_offset(stripe, 0) / 512 + column as u64 * CHUNK / 512;
    spawn(&mut scene, 1, move |_, volume, ledger, _| async move {
        let _ = write(&volume, &ledger, sector, CHUNK / 512, false).await;
    });
    scene.world.run_until(STEPS, |_| parity.peek(at, old_parity.len()) != old_parity).unwrap();
    let in_flight = scene.ledger.borrow().unsettled(false);
    scene.world.kill();
    scene.ledger.borrow_mut().kill();
    target.fault(&Fault::Release);
    target.poke(at, &old);

    scene.options.force = true;
    // The rebuild doesn't come so far meanwhile.
    scene.options.sync_speed = SyncSpeed { min_kib: 1, max_kib: 1 };
    begin_to_assemble(&mut scene);
    let (disks, from) = (scene.disks.clone(), events(&scene.disks));
    scene.world.run_until(STEPS, |_| events(&disks) > from).unwrap();
    scene.world.kill();
    scene.options.sync_speed = SyncSpeed::default();
    let all = sources(&scene, &[]);
    scene.array = assemble(&mut scene.world, all, scene.options.clone()).unwrap();
    doubt(&scene, in_flight, &[REPLACED]);
    settle(&mut scene);
    scene.read_all();
    assert_eq!(scene.check(), 0, "seed {seed}");
}

#[test]
fn no_superblock_says_clean_before_that_of_a_device_that_is_rebuilt_says_that_it_has_nothing() {
    (0..8).for_each(start_is_cut_off);
}

/// The old member's log and the target's say the same of what is under way, and a replaced member is as good
/// as any other.
#[test]
fn a_log_comes_and_goes_while_a_member_is_being_replaced() {
    for (kind, policy) in [(Kind::Ppl, Policy::Ppl), (Kind::DoubleParity, Policy::DoubleParityLog)] {
        let mut scene = scene(9, kind);
        begin(&mut scene);
        writers(&mut scene, 3);
        let target = target(&scene);
        let copying = |_: &_| checks::superblock(&target).is_some_and(|s| s.member.replacement);
        scene.world.run_until(STEPS, copying).unwrap();
        for policy in [Policy::Resync, policy] {
            let array = scene.array.clone();
            scene.run(async move { array.set_policy(policy).await }).unwrap();
            assert_eq!(scene.array.detail().consistency_policy, policy.name());
        }
        scene.world.run_until(STEPS, |_| is_announced(&target)).unwrap();
        let in_flight = scene.ledger.borrow().unsettled(false);
        power_loss(&mut scene);
        let sources = sources(&scene, &[0]);
        scene.array = assemble(&mut scene.world, sources, scene.options.clone()).unwrap();
        doubt(&scene, in_flight, &[0]);
        scene.read_all();
    }
}

/// mdadm adds a device to an array with a double-parity log with its bad-block log inside that one's area.
#[test]
fn a_copy_that_can_not_go_on_for_want_of_room_is_told_of() {
    let mut scene = scene(11, Kind::DoubleParity);
    begin(&mut scene);
    let target = target(&scene);
    let copying = |_: &_| checks::superblock(&target).is_some_and(|s| s.member.replacement);
    scene.world.run_until(STEPS, copying).unwrap();
    scene.stop();
    let mut roomless = superblock_on(&target);
    assert!(roomless.member.replacement);
    roomless.member.double_parity_log = None;
    target.poke(4096, &roomless.encode(512).unwrap());
    scene.reassemble();
    let told = scene.array.left_out().to_vec();
    let words = format!("{}: it was to replace the member in slot 1", target.info().name);
    assert!(told.len() == 1 && told[0].starts_with(&words) && told[0].contains("less room"), "{told:?}");
    assert_eq!(scene.array.detail().missing, 0);
    scene.read_all();
}

/// A crash that leaves only the target's superblock saying that it is the member. The array is started
/// without it, and written to. With `less` the members' superblocks end up with so many events less than the
/// target's.
fn revenant(kind: Kind, less: Option<i64>) -> Scene {
    let (mut scene, alone) = (0..200)
        .find_map(|seed| {
            let mut scene = scene(seed, kind);
            clients(&mut scene, 2, 20, 32);
            begin(&mut scene);
            let target = target(&scene);
            scene.world.run_until(STEPS, |_| is_announced(&target)).unwrap();
            power_loss(&mut scene);
            let alone = superblock_on(&target).array.events;
            let others = &scene.disks[..scene.disks.len() - 1];
            let behind = others.iter().all(|disk| superblock_on(disk).array.events + 1 == alone);
            (is_announced(&target) && behind).then_some((scene, alone))
        })
        .unwrap();
    let number = scene.disks.len() - 1;
    let without = sources(&scene, &[number]);
    scene.array = assemble(&mut scene.world, without, scene.options.clone()).unwrap();
    assert_eq!(scene.array.detail().missing, 0);
    for sector in (0..scene.volume().size() / 512 - 16).step_by(16) {
        scene.write(sector, 16, true).unwrap();
    }
    power_loss(&mut scene);
    if let Some(less) = less {
        // As if a system that doesn't go two events on, say a kernel, had written them.
        for disk in &scene.disks[..number] {
            let mut superblock = superblock_on(disk);
            superblock.array.events = alone.checked_add_signed(-less).unwrap();
            disk.poke(4096, &superblock.encode(512).unwrap());
        }
    }
    scene
}

fn is_never_taken_back(mut scene: Scene, target_first: bool) {
    let mut all = sources(&scene, &[]);
    if target_first {
        all.rotate_right(1);
    }
    scene.array = assemble(&mut scene.world, all, scene.options.clone()).unwrap();
    scene.read_all();
    let stale: Vec<String> = scene.array.stale_members().iter().map(|member| member.name.clone()).collect();
    assert_eq!(stale, [target(&scene).info().name.clone()]);
    settle(&mut scene);
    assert_eq!(scene.array.detail().slots[REPLACED].device.as_deref(), Some("disk1"));
    scene.read_all();
    // What it has is nothing to go on from, either.
    let (array, source) = (scene.array.clone(), target(&scene).source());
    scene
        .run(async move {
            array.fail(REPLACED).await?;
            array.add(source, Uuid([201; 16])).await
        })
        .unwrap();
    settle(&mut scene);
    assert_eq!(scene.check(), 0);
    scene.read_all();
}

#[test]
fn a_device_that_was_switched_in_alone_is_not_taken_back_after_the_array_went_on_without_it() {
    for kind in [Kind::Bitmap, Kind::Ppl, Kind::DoubleParity, Kind::Journal] {
        for less in [None, Some(0), Some(1)] {
            for target_first in [false, true] {
                is_never_taken_back(revenant(kind, less), target_first);
            }
        }
    }
}

#[test]
fn two_devices_that_disown_each_other_are_both_refused() {
    let mut scene = revenant(Kind::Bitmap, Some(0));
    let two = vec![scene.disks[REPLACED].source(), target(&scene).source()];
    let error = assemble(&mut scene.world, two, scene.options.clone()).err().unwrap();
    let AssembleError::TooFewMembers { present: 0, stale, .. } = &error else { panic!("{error}") };
    assert_eq!(stale.len(), 2);
    assert!(error.to_string().contains("gone on without it"), "{error}");
}

/// Each defect is seen by a scene that passes without it.
#[cfg(feature = "mutants")]
#[test]
fn every_defect_of_replacements_is_found() {
    use crate::arrays::defects::find;
    use pinstripe_engine::mutants::Mutant;
    for kind in [Kind::Ppl, Kind::DoubleParity] {
        let found = find(Mutant::ReplacementNotLogged, 400, |seed| crashes(seed, kind));
        println!(
            "ReplacementNotLogged, {kind:?}: seed {}",
            found.unwrap_or_else(|| panic!("with {kind:?} it survives"))
        );
    }
    let scene = |_| is_never_taken_back(revenant(Kind::Bitmap, None), false);
    assert!(find(Mutant::RevenantAccepted, 1, scene).is_some());
}
