//! Scenes of failures that a test and a deliberate defect share. Each ends with an assertion.

use std::{future::poll_fn, ops::Range, pin::pin, rc::Rc, task::Poll};

use pinstripe_engine::{
    array::Added,
    error::{IoError, MemberError, Operation},
    geometry::StripeId,
    options::ArrayOptions,
};
use pinstripe_md::{
    bitmap::BitmapImage,
    identity::Uuid,
    level::Level,
    placement::{InitialSync, NewBitmap},
};
use pinstripe_runtime::{DeviceError, DeviceErrorKind, shard};
use pinstripe_sim::{Fault, SimDisk};

use super::{
    STEPS, assemble, options,
    scene::{DATA_SECTOR, Scene, wish, write},
};

const MILLISECOND: u64 = 1_000_000;
/// Of a chunk, and of a stripe of three.
const CHUNK_SECTORS: u64 = 32;
const STRIPE_SECTORS: u64 = 3 * CHUNK_SECTORS;

/// Four members on level 5, eight stripes of which are written.
fn raid5(seed: u64, options: ArrayOptions) -> Scene {
    let bitmap = NewBitmap::Internal { chunk_bytes: Some(65536) };
    let wish = wish(Level::Raid5, 4, CHUNK_SECTORS * 512, bitmap, InitialSync::AssumeClean);
    let mut scene = Scene::with_options(seed, wish, 1, options);
    for stripe in 0..8 {
        scene.write(stripe * STRIPE_SECTORS, STRIPE_SECTORS, false).unwrap();
    }
    scene.flush().unwrap();
    scene
}

/// The disk that holds a sector of the array, and the bytes there.
fn place(scene: &Scene, sector: u64) -> (usize, Range<u64>) {
    let geometry = scene.geometry();
    let piece = geometry.pieces(sector * 512, 512).unwrap().next().unwrap();
    let at = DATA_SECTOR * 512 + geometry.member_offset(piece.stripe) + u64::from(piece.chunk_offset);
    (geometry.slots(piece.stripe).data_slot(piece.column).index(), at..at + 512)
}

/// A member has one corrected read too many, while another one is slow to answer. It stays as long as that
/// may be lost.
pub fn worn_out_beside_a_silent_one(seed: u64) {
    // Soon slow, and far from being given up.
    let mut scene = raid5(seed, ArrayOptions { slow_member_ns: 10 * MILLISECOND, ..options() });
    let chunks: Vec<u64> = (0..40 * STRIPE_SECTORS).step_by(32).collect();
    let on = |disk: usize| -> Vec<u64> {
        chunks.iter().copied().filter(|&sector| place(&scene, sector).0 == disk).collect()
    };
    let (worn, silent) = (on(1), on(2)[0]);
    let read = |scene: &mut Scene, sector: u64| {
        scene.disks[1].fault(&Fault::UnreadableRange(place(scene, sector).1));
        let volume = scene.volume();
        scene.run(async move { volume.read(sector * 512, shard::buffer(512)).await.0 }).unwrap();
    };
    worn[..20].iter().for_each(|&sector| read(&mut scene, sector));
    scene.disks[2].fault(&Fault::SlowBy(2000));
    let (volume, array) = (scene.volume(), scene.array.clone());
    scene.world.spawn(0, "read", async move {
        volume.read(silent * 512, shard::buffer(512)).await.0.unwrap();
    });
    scene.world.run_until(STEPS, |_| array.detail().slots[2].slow).unwrap();
    scene.disks[2].fault(&Fault::SlowBy(1));
    read(&mut scene, worn[20]);
    let stays = |scene: &Scene| !array.detail().slots[2].slow || scene.array.detail().missing == 0;
    assert!(stays(&scene), "the other one may be lost");
    // Also where it is reported all the same: the controller decides.
    let (id, name, ..) = scene.array.members()[1].clone();
    let error = DeviceError::of(DeviceErrorKind::TooManyErrors);
    let error = MemberError { role: 1.into(), name, operation: Operation::Read, offset: 0, error };
    if array.detail().slots[2].slow {
        let array = array.clone();
        scene.run(async move {
            array.shared().report(id, error);
            shard::sleep(MILLISECOND).await;
        });
        assert!(stays(&scene), "the other one may be lost");
    }
    scene.world.run_until(STEPS, |_| !array.detail().slots[2].slow).unwrap();
    read(&mut scene, worn[21]);
    scene.world.run_until(STEPS, |_| array.detail().missing == 1).unwrap();
    scene.read_all();
}

/// A listed sector is written anew, and of two flushes then, a user's and the one that goes before the sector
/// is taken off the list, one fails, as the disk tells it once. Power fails as soon as the sector is off the
/// list, or its member out of the array.
pub fn freed_beside_a_flush_that_fails(seed: u64) {
    const SECTOR: u64 = 40;
    let mut scene = raid5(seed, options());
    let (slot, bytes) = place(&scene, SECTOR);
    let disk = scene.disks[slot].clone();
    disk.fault(&Fault::UnwritableRange(bytes));
    scene.write(SECTOR, 1, false).unwrap();
    disk.fault(&Fault::Heal);
    assert!(scene.array.detail().slots[slot].bad_sectors > 0);
    scene.flush().unwrap();
    disk.fault(&Fault::FailFlushes(1));
    let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
    scene.world.spawn(0, "write and flush", async move {
        write(&volume, &ledger, SECTOR, 1, false).await.unwrap();
        disk.fault(&Fault::SlowBy(4));
        let mut flush = pin!(volume.flush());
        let _ = poll_fn(|cx| Poll::Ready(flush.as_mut().poll(cx))).await;
        disk.fault(&Fault::SlowBy(1));
        let _ = flush.await;
    });
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().slots[slot].bad_sectors == 0).unwrap();
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
    scene.disks.iter().for_each(|disk| disk.fault(&Fault::Heal));
    let sources = scene.disks.iter().map(SimDisk::source).collect();
    // It may be dirty and degraded by then, and is refused.
    let Ok(array) = assemble(&mut scene.world, sources, options()) else { return };
    scene.array = array;
    let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
    scene.run(async move {
        for sector in 0..STRIPE_SECTORS {
            let id = ledger.borrow_mut().begin_read(sector..sector + 1);
            // Of a listed sector in a row that may be half written nothing is known: an error, and never a
            // wrong byte.
            match volume.read(sector * 512, shard::buffer(512)).await {
                (Ok(()), buffer) => ledger.borrow_mut().check_read(id, &buffer).unwrap(),
                (Err(error), _) => assert!(matches!(error, IoError::Unreadable { .. }), "{error}"),
            }
        }
    });
}

/// Sectors of a region, of which the bits fill a page and a part of another one.
const REGION_SECTORS: u64 = 8;
const REGIONS: u64 = 31000;
/// A stripe of which the bits lie in the second page.
const FAR_STRIPE: u64 = 30800 * REGION_SECTORS / CHUNK_SECTORS;

/// An array with a bitmap of two pages. A stripe is written that has its bits in the second one, and no bit
/// is set any more.
pub fn two_pages(seed: u64) -> Scene {
    let bitmap = NewBitmap::Internal { chunk_bytes: Some(4096) };
    let mut wish = wish(Level::Raid5, 4, CHUNK_SECTORS * 512, bitmap, InitialSync::AssumeClean);
    wish.members.iter_mut().for_each(|member| member.sectors = DATA_SECTOR + REGIONS * REGION_SECTORS);
    let mut scene = Scene::with_options(seed, wish, 1, options());
    write_far(&mut scene);
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().bitmap.unwrap().bits_set == 0).unwrap();
    scene
}

fn write_far(scene: &mut Scene) {
    scene.write(FAR_STRIPE * STRIPE_SECTORS, STRIPE_SECTORS, true).unwrap();
}

fn bitmap_of(scene: &Scene, disk: usize) -> (u64, BitmapImage) {
    let at = scene.superblock(disk).bitmap_sector().unwrap().0 * 512;
    (at, BitmapImage::decode(&scene.disks[disk].peek(at, 8192)).unwrap())
}

/// Sets bits of one member's bitmap, as far as a power failure let them be written.
pub fn set_bits_on(scene: &Scene, disk: usize, bits: impl IntoIterator<Item = u64>) {
    let (at, mut image) = bitmap_of(scene, disk);
    bits.into_iter().for_each(|bit| assert!(image.set(bit)));
    scene.disks[disk].poke(at, image.as_bytes());
}

fn power_fails(scene: &mut Scene) {
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
}

/// Power fails while bits are written, and one member has them. When the array is in service again, that one
/// is lost, and misses a write there. It comes back after the next start, which sees the others' bitmaps.
pub fn a_member_back_by_bits_of_one(seed: u64) {
    let mut scene = two_pages(seed);
    power_fails(&mut scene);
    let first = FAR_STRIPE * CHUNK_SECTORS / REGION_SECTORS;
    set_bits_on(&scene, 0, first..first + CHUNK_SECTORS / REGION_SECTORS);
    scene.reassemble();
    scene.disks[0].fault(&Fault::Gone);
    write_far(&mut scene);
    scene.stop();
    scene.disks[0].fault(&Fault::Return);
    let others = scene.disks[1..].iter().map(SimDisk::source).collect();
    scene.array = assemble(&mut scene.world, others, options()).unwrap();
    let (array, source) = (scene.array.clone(), scene.disks[0].source());
    let added = scene.run(async move { array.add(source, Uuid([0x55; 16])).await }).unwrap();
    assert_eq!(added, Added::Bitmap { slot: 0 });
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().slots[0].state == "in-sync").unwrap();
    scene.read_all();
}

/// After a crash the bitmaps are older than the superblocks, so nothing of them counts. Something is written
/// when the array is in service again, and power fails before much is resynced.
pub fn crash_in_a_resync_of_outdated_bitmaps(seed: u64) {
    let mut scene = two_pages(seed);
    scene.write(0, 8, true).unwrap();
    power_fails(&mut scene);
    for disk in 0..scene.disks.len() {
        let (at, mut image) = bitmap_of(&scene, disk);
        let cleared = image.header().events_cleared;
        image.set_events(scene.superblock(disk).array.events - 1, cleared);
        scene.disks[disk].poke(at, image.as_bytes());
    }
    scene.reassemble();
    assert_eq!(scene.array.detail().regions_to_resync as u64, REGIONS);
    write_far(&mut scene);
    power_fails(&mut scene);
    scene.reassemble();
    assert_eq!(scene.array.detail().regions_to_resync as u64, REGIONS, "some rows are forgotten");
}

/// What is wrong with the bitmap of one member.
#[derive(Clone, Copy, Debug)]
pub enum Damage {
    /// Its header can't be read.
    Unread,
    /// Nothing of it is a bitmap.
    Garbled,
    /// By its header a bit covers another length.
    Differs,
}

impl Damage {
    /// Damages the bitmap of a disk.
    pub fn bring(self, scene: &Scene, disk: usize) {
        let (at, image) = bitmap_of(scene, disk);
        let mut header = image.as_bytes()[..512].to_vec();
        match self {
            Self::Unread => return scene.disks[disk].fault(&Fault::UnreadableRange(at..at + 512)),
            Self::Garbled => header[..256].fill(0xa5),
            Self::Differs => {
                header[52..56].copy_from_slice(&(image.header().chunk_bytes / 2).to_le_bytes());
            }
        }
        scene.disks[disk].poke(at, &header);
    }
}

/// Power fails in a write. One member alone has its bit, and that one's bitmap is damaged. Everything is
/// resynced, and the bitmap is written anew.
pub fn crash_with_a_damaged_bitmap(damage: Damage, seed: u64) {
    const REGION: u64 = 9;
    let mut scene = raid5(seed, options());
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().bitmap.unwrap().bits_set == 0).unwrap();
    drop(array);
    scene.write(0, 8, true).unwrap();
    power_fails(&mut scene);
    set_bits_on(&scene, 1, [REGION]);
    let stripe = StripeId(REGION * 65536 / (CHUNK_SECTORS * 512));
    let parity = scene.geometry().slots(stripe).p_slot().index();
    scene.disks[parity].poke(DATA_SECTOR * 512 + scene.geometry().member_offset(stripe), &[0x5a; 512]);
    damage.bring(&scene, 1);
    scene.reassemble();
    let outdated = |scene: &Scene| scene.array.detail().bitmap.unwrap().outdated;
    let named = outdated(&scene);
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().regions_to_resync == 0).unwrap();
    assert_eq!(scene.check(), 0, "{damage:?}");
    assert_eq!(named, ["disk1"], "{damage:?}");
    scene.is_right_and_stays_so();
    assert_eq!(outdated(&scene), [""; 0], "{damage:?}");
}
