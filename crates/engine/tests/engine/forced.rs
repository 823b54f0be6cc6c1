//! Forced writes of disks that make a write and a flush of each: an error may be that of the flush, and what
//! other writes had left in the cache is lost then (C5).

use crate::arrays::{
    self, STEPS, options,
    scene::{DATA_SECTOR, Scene, lay_out, spawn, wish, write},
};
use pinstripe_engine::{
    assembly::AssembleError, error::IoError, geometry::StripeId, options::ArrayOptions, plan::WritePolicy,
};
use pinstripe_md::{
    identity::Uuid,
    level::{Layout, Level, Raid0Layout},
    placement::{InitialSync, NewArray, NewBitmap, NewDevice, NewLog, journal::add_journal},
};
use pinstripe_runtime::{DeviceErrorKind, shard};
use pinstripe_sim::{Fault, SimDisk, SimDiskConfig, World, WorldConfig};

const CHUNK: u64 = 16 << 10;
const BITMAP: NewBitmap = NewBitmap::Internal { chunk_bytes: Some(65536) };
/// The one of which a flush fails.
const VICTIM: usize = 1;

/// What an array is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Striped,
    Bitmap(Level),
    Ppl,
    DoubleParityLog,
    Journal,
}

const KINDS: [Kind; 6] = [
    Kind::Striped,
    Kind::Bitmap(Level::Raid5),
    Kind::Bitmap(Level::Raid6),
    Kind::Ppl,
    Kind::DoubleParityLog,
    Kind::Journal,
];

impl Kind {
    fn wish(self) -> NewArray {
        let level = match self {
            Self::Bitmap(level) => level,
            Self::DoubleParityLog => Level::Raid6,
            Self::Striped | Self::Ppl | Self::Journal => Level::Raid5,
        };
        let bitmap = if matches!(self, Self::Bitmap(_)) { BITMAP } else { NewBitmap::None };
        let members = if level == Level::Raid6 { 5 } else { 4 };
        let mut wish = wish(level, members, CHUNK, bitmap, InitialSync::AssumeClean);
        if self == Self::Striped {
            (wish.level, wish.layout) = (Level::Raid0, Layout::Raid0(Raid0Layout::Unspecified));
        }
        wish
    }

    /// Sectors of a stripe.
    fn stripe(self) -> u64 {
        let columns = if self == Self::Striped { 4 } else { 3 };
        columns * CHUNK / 512
    }
}

/// An array on disks of this kind. Something is written, and flushed.
fn scene(seed: u64, kind: Kind, shards: usize, forces_by_flush: bool) -> Scene {
    const JOURNAL_SECTORS: u64 = 4096;
    let mut world = World::new(WorldConfig::new(seed, shards));
    let wish = kind.wish();
    let mut add = |name: &str, sectors: u64| {
        let config = SimDiskConfig::new(name, sectors * 512);
        world.add_disk(SimDiskConfig { forces_by_flush, ..config })
    };
    let mut disks: Vec<SimDisk> =
        wish.members.iter().enumerate().map(|(i, member)| add(&format!("disk{i}"), member.sectors)).collect();
    let log = match kind {
        Kind::Ppl => NewLog::Ppl,
        Kind::DoubleParityLog => NewLog::DoubleParity,
        _ => NewLog::None,
    };
    let mut placed = wish.place_with(log).unwrap();
    if kind == Kind::Journal {
        disks.push(add("journal", JOURNAL_SECTORS));
        let device = NewDevice { sectors: JOURNAL_SECTORS, uuid: Uuid([0x4a; 16]) };
        add_journal(&mut placed, device, 512).unwrap();
    }
    lay_out(&mut world, placed, &disks).unwrap();
    let members = disks.len();
    let options = ArrayOptions { policy: WritePolicy::AlwaysRmw, ..options() };
    let mut scene = Scene::over(world, disks, members, options);
    scene.write(0, 8 * kind.stripe(), true).unwrap();
    scene.flush().unwrap();
    scene
}

/// Power fails, and the array starts again, if it does.
fn after_a_power_loss(scene: &mut Scene) -> Result<(), AssembleError> {
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
    scene.disks.iter().for_each(|disk| disk.fault(&Fault::Heal));
    let sources = scene.disks.iter().map(SimDisk::source).collect();
    scene.array = arrays::assemble(&mut scene.world, sources, scene.options.clone())?;
    Ok(())
}

/// One write is acknowledged, another one is forced, and its flush fails. Then a flush: what of the first one
/// is durable if that succeeds?
fn lost_beside_a_forced_write(seed: u64, kind: Kind) -> bool {
    let mut scene = scene(seed, kind, 1, true);
    scene.write(0, kind.stripe(), false).unwrap();
    scene.disks[VICTIM].fault(&Fault::FailFlushes(1));
    let _ = scene.write(4 * kind.stripe(), kind.stripe(), true);
    let _ = scene.flush();
    after_a_power_loss(&mut scene).is_err() || scene.is_right()
}

/// The same of every kind of array.
pub fn forced_write_and_flush(seed: u64) -> bool {
    KINDS.into_iter().all(|kind| lost_beside_a_forced_write(seed, kind))
}

/// Several writes are forced at a time, and one of the flushes fails: of a write that has its own, which
/// succeeds, the bytes may have been in the cache then. Power fails as the first is acknowledged.
pub fn forced_writes_at_a_time(seed: u64) -> bool {
    (8 * seed..8 * seed + 8).all(are_forced_at_a_time)
}

fn are_forced_at_a_time(seed: u64) -> bool {
    const KIND: Kind = Kind::Bitmap(Level::Raid5);
    let mut scene = scene(seed, KIND, 3, true);
    scene.disks[VICTIM].fault(&Fault::FailFlushes(1));
    let answered = spawn(&mut scene, 6, move |number, volume, ledger, _| async move {
        let _ = write(&volume, &ledger, number * KIND.stripe(), KIND.stripe(), true).await;
    });
    scene.world.run_until(STEPS, |_| *answered.borrow() > 0).unwrap();
    after_a_power_loss(&mut scene).is_err() || scene.is_right()
}

#[test]
fn what_a_forced_write_loses_by_its_flush_is_not_called_durable() {
    for seed in 0..12 {
        assert!(forced_write_and_flush(seed), "seed {seed}");
        assert!(forced_writes_at_a_time(seed), "seed {seed}");
    }
}

#[test]
fn a_forced_write_that_fails_costs_a_member_its_place_where_it_may_have_been_the_flush() {
    for kind in KINDS.into_iter().filter(|kind| *kind != Kind::Striped) {
        let mut scene = scene(1, kind, 1, true);
        scene.disks[VICTIM].fault(&Fault::FailFlushes(1));
        scene.write(0, kind.stripe(), true).unwrap();
        scene.flush().unwrap();
        let detail = scene.array.detail();
        assert_eq!(detail.missing, 1, "{kind:?}");
        assert!(detail.slots.iter().all(|slot| slot.bad_sectors == 0), "{kind:?}");
        scene.read_all();
    }
}

/// A flush of all members waits for one that hangs.
#[test]
fn a_forced_write_does_not_wait_for_another_members_flush() {
    let kind = Kind::Bitmap(Level::Raid5);
    let mut scene = scene(1, kind, 1, true);
    scene.write(0, kind.stripe(), false).unwrap();
    scene.disks[VICTIM].fault(&Fault::Hang);
    let (volume, geometry, began) = (scene.volume(), scene.geometry(), scene.world.now());
    scene.world.spawn(0, "flush", async move {
        let _ = volume.flush().await;
    });
    scene.run(async { shard::sleep(1000).await });
    let is_elsewhere = |&(stripe, column): &(u64, usize)| {
        let map = geometry.slots(StripeId(stripe));
        map.data_slot(column).index() != VICTIM && map.p_slot().index() != VICTIM
    };
    let columns = (0..4).flat_map(|stripe| (0..3).map(move |column| (stripe, column)));
    for (stripe, column) in columns.filter(is_elsewhere) {
        let sector = stripe * kind.stripe() + column as u64 * CHUNK / 512;
        scene.write(sector, 8, true).unwrap();
    }
    assert!(scene.world.now() - began < 1_000_000_000);
}

#[test]
fn a_sector_that_a_forced_write_can_not_write_is_listed_where_that_is_what_has_failed() {
    let kind = Kind::Bitmap(Level::Raid5);
    let mut scene = scene(1, kind, 1, false);
    let data = DATA_SECTOR * 512;
    scene.disks[VICTIM].fault(&Fault::UnwritableRange(data..data + 512));
    scene.write(0, kind.stripe(), true).unwrap();
    scene.flush().unwrap();
    let detail = scene.array.detail();
    assert_eq!((detail.missing, detail.slots[VICTIM].bad_sectors), (0, 1));
    assert!(!detail.slots[VICTIM].lost_flush);
}

#[test]
fn level_0_has_nothing_called_durable_after_a_forced_write_that_may_have_failed_by_its_flush() {
    let mut scene = scene(1, Kind::Striped, 1, true);
    let is_media = |result: Result<(), IoError>| matches!(result, Err(IoError::Member(error)) if error.error.kind == DeviceErrorKind::Media);
    scene.disks[VICTIM].fault(&Fault::FailFlushes(1));
    assert!(is_media(scene.write(0, Kind::Striped.stripe(), true)));
    for _ in 0..2 {
        assert!(is_media(scene.flush()));
        assert!(is_media(scene.write(0, Kind::Striped.stripe(), true)));
        scene.write(0, Kind::Striped.stripe(), false).unwrap();
    }
    assert!(scene.array.detail().slots[VICTIM].lost_flush);
    scene.stop();
    scene.reassemble();
    scene.write(0, Kind::Striped.stripe(), true).unwrap();
    scene.flush().unwrap();
}
