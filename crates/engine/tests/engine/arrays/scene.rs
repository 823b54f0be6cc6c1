//! An array over simulated disks, with a ledger of what its sectors may hold.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use pinstripe_engine::{
    array::Array,
    assembly::create::{CreateError, create_placed},
    error::IoError,
    geometry::{Geometry, ParityGeometry},
    io::volume::Volume,
    options::ArrayOptions,
};
use pinstripe_md::{
    bad_blocks::BadBlocks,
    bitmap::BitmapImage,
    identity::{SetName, Timestamp, Uuid},
    level::{Layout, Level, ParityLayout},
    placement::{InitialSync, NewArray, NewBitmap, NewDevice, NewLog, PlacedArray},
    superblock::{MetadataVersion, Superblock},
    units::{Sector, SectorCount},
};
use pinstripe_runtime::shard;
use pinstripe_sim::{Fault, Ledger, Rng, SimDisk, SimDiskConfig, Trigger, World, WorldConfig};

use super::{STEPS, options};

/// Where the members' data begins, in sectors.
pub const DATA_SECTOR: u64 = 256;

pub fn wish(level: Level, members: u8, chunk: u64, bitmap: NewBitmap, initial: InitialSync) -> NewArray {
    let layout = if level == Level::Raid4 {
        Layout::None
    } else {
        Layout::Parity(ParityLayout::from_name(level, "left-symmetric").unwrap())
    };
    NewArray {
        set_uuid: Uuid([7; 16]),
        name: SetName::from_bytes([b'x'; 32]),
        created: Timestamp::new(1, 0),
        level,
        layout,
        chunk: SectorCount(chunk / 512),
        version: MetadataVersion::V1_2,
        bitmap,
        initial,
        size: None,
        data_offset: Some(Sector(DATA_SECTOR)),
        logical_block_bytes: 512,
        members: (0..members).map(|i| NewDevice { sectors: 2048, uuid: Uuid([i + 1; 16]) }).collect(),
        spares: vec![],
    }
}

pub struct Scene {
    pub world: World,
    pub disks: Vec<SimDisk>,
    pub array: Array,
    pub ledger: Rc<RefCell<Ledger>>,
    pub options: ArrayOptions,
}

impl Scene {
    pub fn new(seed: u64, wish: NewArray, shards: usize) -> Self {
        Self::with_options(seed, wish, shards, options())
    }

    #[allow(clippy::needless_pass_by_value, reason = "every caller has just made it")]
    pub fn with_options(seed: u64, wish: NewArray, shards: usize, options: ArrayOptions) -> Self {
        Self::in_world(World::new(WorldConfig::new(seed, shards)), &wish, options)
    }

    pub fn in_world(world: World, wish: &NewArray, options: ArrayOptions) -> Self {
        Self::with_log(world, wish, NewLog::None, options)
    }

    pub fn with_log(mut world: World, wish: &NewArray, log: NewLog, options: ArrayOptions) -> Self {
        let disks = plain_disks(&mut world, wish.members.iter().map(|member| member.sectors));
        lay_out(&mut world, wish.place_with(log).unwrap(), &disks).unwrap();
        let members = disks.len();
        Self::over(world, disks, members, options)
    }

    /// An array that is laid out already, on the first `members` disks.
    pub fn over(mut world: World, disks: Vec<SimDisk>, members: usize, options: ArrayOptions) -> Self {
        let sources = disks[..members].iter().map(SimDisk::source).collect();
        let array = super::assemble(&mut world, sources, options.clone()).unwrap();
        let ledger = Rc::new(RefCell::new(Ledger::new(array.volume().size() / 512)));
        Self { world, disks, array, ledger, options }
    }

    pub fn reassemble(&mut self) {
        let sources = self.disks.iter().map(SimDisk::source).collect();
        self.array = super::assemble(&mut self.world, sources, self.options.clone()).unwrap();
    }

    pub fn run<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(0, "test", STEPS, future).unwrap()
    }

    pub fn geometry(&self) -> ParityGeometry {
        let Geometry::Parity(geometry) = &self.array.shared().geometry else { panic!("no parity") };
        *geometry
    }

    pub fn volume(&self) -> Volume {
        self.array.volume().clone()
    }

    pub fn read_all(&mut self) {
        let (volume, ledger) = (self.volume(), Rc::clone(&self.ledger));
        self.run(async move {
            let sectors = volume.size() / 512;
            for at in (0..sectors).step_by(64) {
                let length = 64.min(sectors - at);
                let id = ledger.borrow_mut().begin_read(at..at + length);
                let (result, buffer) =
                    volume.read(at * 512, shard::buffer(usize::try_from(length).unwrap() * 512)).await;
                result.unwrap();
                ledger.borrow_mut().check_read(id, &buffer).unwrap();
            }
        });
    }

    /// Whether everything that can be read is what it may be.
    pub fn is_right(&mut self) -> bool {
        let (volume, ledger) = (self.volume(), Rc::clone(&self.ledger));
        self.run(async move {
            let sectors = volume.size() / 512;
            for at in (0..sectors).step_by(8) {
                let id = ledger.borrow_mut().begin_read(at..at + 8);
                let (result, buffer) = volume.read(at * 512, shard::buffer(4096)).await;
                if result.is_ok() && ledger.borrow_mut().check_read(id, &buffer).is_err() {
                    return false;
                }
            }
            true
        })
    }

    pub fn write(&mut self, sector: u64, sectors: u64, fua: bool) -> Result<(), IoError> {
        let (volume, ledger) = (self.volume(), Rc::clone(&self.ledger));
        self.run(async move { write(&volume, &ledger, sector, sectors, fua).await })
    }

    pub fn flush(&mut self) -> Result<(), IoError> {
        let (volume, ledger) = (self.volume(), Rc::clone(&self.ledger));
        self.run(async move {
            let id = ledger.borrow_mut().begin_flush();
            let result = volume.flush().await;
            ledger.borrow_mut().complete_flush(id, result.is_ok());
            result
        })
    }

    pub fn check(&mut self) -> u64 {
        let array = self.array.clone();
        let report = self.run(async move { array.check().await }).unwrap();
        assert_eq!(report.unreadable_stripes, 0);
        report.mismatched_sectors
    }

    pub fn stop(&mut self) {
        let array = self.array.clone();
        self.run(async move { array.stop().await }).unwrap();
    }

    /// Everything can be read and parity matches, and so it is after a stop and another start.
    pub fn is_right_and_stays_so(&mut self) {
        self.read_all();
        assert_eq!(self.check(), 0);
        self.stop();
        self.reassemble();
        self.read_all();
    }

    /// Fails the member of a slot, and adds a new disk, which takes its place. That is not among `disks`.
    pub fn fail_and_add(&mut self, slot: usize) -> SimDisk {
        let spare = self.world.add_disk(SimDiskConfig::new("spare", self.disks[slot].info().size));
        let (array, source) = (self.array.clone(), spare.source());
        let work = async move {
            array.fail(slot).await?;
            array.add(source, Uuid([99; 16])).await
        };
        self.run(work).unwrap();
        spare
    }

    pub fn superblock(&self, disk: usize) -> Superblock {
        superblock_on(&self.disks[disk])
    }

    /// The bitmap on a disk, if its superblock says that there is one.
    pub fn bitmap(&self, disk: usize) -> Option<BitmapImage> {
        let sector = self.superblock(disk).bitmap_sector()?;
        Some(BitmapImage::decode(&self.disks[disk].peek(sector.0 * 512, 4096)).unwrap())
    }
}

/// Disks of so many sectors each.
pub fn plain_disks(world: &mut World, sectors: impl IntoIterator<Item = u64>) -> Vec<SimDisk> {
    let disk = |(i, sectors)| SimDiskConfig::new(&format!("disk{i}"), sectors * 512);
    (0..).zip(sectors).map(disk).map(|config: SimDiskConfig| world.add_disk(config)).collect()
}

/// The same, with habits that are drawn, and caches that forget.
pub fn drawn_disks(world: &mut World, sectors: impl IntoIterator<Item = u64>) -> Vec<SimDisk> {
    let mut rng = world.rng(77);
    let mut disk = |(i, sectors): (usize, u64)| {
        let config = SimDiskConfig::drawn(&mut rng, &format!("disk{i}"), sectors * 512);
        world.add_disk(SimDiskConfig { volatile_cache: true, ..config })
    };
    sectors.into_iter().enumerate().map(&mut disk).collect()
}

/// Makes an array on its disks, in order.
pub fn lay_out(world: &mut World, placed: PlacedArray, disks: &[SimDisk]) -> Result<(), CreateError> {
    let devices = disks.to_vec();
    let created = world.block_on(0, "create", STEPS, async move {
        let devices: Vec<_> = devices.iter().map(SimDisk::attach).collect();
        create_placed(placed, &devices).await
    });
    created.unwrap().map(|_| ())
}

/// What a disk's superblock says now.
pub fn superblock_on(disk: &SimDisk) -> Superblock {
    Superblock::decode(&disk.peek(4096, 4096), Sector(8), disk.info().size / 512).unwrap()
}

/// Lists single sectors of a disk as bad.
pub fn list_as_bad(disk: &SimDisk, sectors: impl IntoIterator<Item = u64>) {
    let mut superblock = superblock_on(disk);
    let log = superblock.member.bad_block_log.as_mut().unwrap();
    log.in_use = true;
    let (mut list, size) = (BadBlocks::new(log.shift).unwrap(), SectorCount(log.size.into()));
    for sector in sectors {
        list.insert(sector..sector + 1).unwrap();
    }
    disk.poke(superblock.bad_block_log_sector().unwrap().0 * 512, &list.encode(size).unwrap());
    disk.poke(4096, &superblock.encode(512).unwrap());
}

/// A write that the ledger knows of.
pub async fn write(
    volume: &Volume,
    ledger: &RefCell<Ledger>,
    sector: u64,
    sectors: u64,
    fua: bool,
) -> Result<(), IoError> {
    let mut data = shard::buffer(usize::try_from(sectors).unwrap() * 512);
    let id = ledger.borrow_mut().begin_write(sector, &mut data, fua);
    let result = volume.write(sector * 512, data.freeze(), fua).await;
    ledger.borrow_mut().complete_write(id, result.is_ok());
    result
}

/// No disk does anything for so many seconds.
pub fn silence(scene: &mut Scene, seconds: u64) {
    let until = scene.world.now() + seconds * 1_000_000_000;
    for disk in &scene.disks {
        disk.fault(&Fault::Hang);
        disk.plan(Trigger::AtTime(until), Fault::Release);
    }
}

/// A member is gone, and another one does nothing for 40 s: longer than one may take, and not as long as the
/// last one may. Whether a write to both succeeds.
pub fn write_to_one_lost_and_one_silent(scene: &mut Scene) -> bool {
    scene.disks[0].fault(&Fault::Gone);
    scene.disks[1].fault(&Fault::Hang);
    scene.disks[1].plan(Trigger::AtTime(scene.world.now() + 40_000_000_000), Fault::Release);
    scene.write(0, 96, false).is_ok()
}

/// A write and a flush begin on each shard, and just then nothing of the process runs for so many seconds.
/// Whether all of them succeed.
pub fn write_in_a_stall(scene: &mut Scene, seconds: u64) -> bool {
    let fine = Rc::new(RefCell::new((0, true)));
    let shards = scene.world.shards();
    for shard in 0..shards {
        let (array, ledger, fine) = (scene.array.clone(), Rc::clone(&scene.ledger), Rc::clone(&fine));
        scene.world.spawn(shard, "write", async move {
            let volume = Volume::new(Arc::clone(array.shared()));
            let sector = 200 * u64::try_from(shard).unwrap();
            let wrote = write(&volume, &ledger, sector, 48, false).await.is_ok();
            let flushed = volume.flush().await.is_ok();
            fine.borrow_mut().0 += 1;
            fine.borrow_mut().1 &= wrote && flushed;
        });
    }
    let asked = |world: &World| (0..shards).all(|shard| world.shard(shard).requests_in_flight() > 0);
    scene.world.run_until(STEPS, asked).unwrap();
    scene.world.stall(0..shards, seconds * 1_000_000_000);
    scene.world.run_until(STEPS, |_| fine.borrow().0 == shards).unwrap();
    fine.borrow().1
}

/// Starts a task on every shard in turn; gives how many have ended.
pub fn spawn<F: Future<Output = ()> + 'static>(
    scene: &mut Scene,
    count: u64,
    make: impl Fn(u64, Volume, Rc<RefCell<Ledger>>, Rng) -> F + 'static + Clone,
) -> Rc<RefCell<u64>> {
    let done = Rc::new(RefCell::new(0));
    for number in 0..count {
        let (shared, ledger, done) =
            (Arc::clone(scene.array.shared()), Rc::clone(&scene.ledger), Rc::clone(&done));
        let rng = scene.world.rng(number);
        let shard = usize::try_from(number).unwrap() % scene.world.shards();
        let make = make.clone();
        scene.world.spawn(shard, "client", async move {
            make(number, Volume::new(shared), ledger, rng).await;
            *done.borrow_mut() += 1;
        });
    }
    done
}

/// Random reads, writes and flushes of at most `sectors_max`.
pub fn clients(scene: &mut Scene, count: u64, operations: u64, sectors_max: u64) {
    let done = spawn(scene, count, move |_, volume, ledger, rng| {
        client(volume, ledger, rng, operations, sectors_max)
    });
    scene.world.run_until(STEPS, |_| *done.borrow() == count).unwrap();
}

pub async fn client(
    volume: Volume,
    ledger: Rc<RefCell<Ledger>>,
    mut rng: Rng,
    operations: u64,
    sectors_max: u64,
) {
    let sectors = volume.size() / 512;
    for _ in 0..operations {
        let length = 1 + rng.below(sectors_max);
        let at = rng.below(sectors - length);
        match rng.below(10) {
            0 => {
                let id = ledger.borrow_mut().begin_flush();
                let result = volume.flush().await;
                ledger.borrow_mut().complete_flush(id, result.is_ok());
                result.unwrap();
            }
            1..=3 => {
                let id = ledger.borrow_mut().begin_read(at..at + length);
                let (result, buffer) =
                    volume.read(at * 512, shard::buffer(usize::try_from(length).unwrap() * 512)).await;
                result.unwrap();
                ledger.borrow_mut().check_read(id, &buffer).unwrap();
            }
            _ => write(&volume, &ledger, at, length, rng.below(8) == 0).await.unwrap(),
        }
    }
}
