//! Scenes of failures that a test and a deliberate defect share. Each ends with an assertion.

use std::{future::poll_fn, ops::Range, pin::pin, rc::Rc, task::Poll};

use pinstripe_engine::{
    error::{IoError, MemberError, Operation},
    options::ArrayOptions,
};
use pinstripe_md::{
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
