//! A small array, used step by step: for what a seed can't be trusted to meet again.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use pinstripe_engine::{
    array::Array,
    assembly::{AssembleError, create::create},
    geometry::ParityGeometry,
    options::ArrayOptions,
};
use pinstripe_md::{
    identity::{SetName, Timestamp, Uuid},
    level::{Layout, Level, ParityLayout},
    placement::{InitialSync, NewArray, NewBitmap, NewDevice},
    superblock::MetadataVersion,
    units::{Sector, SectorCount},
};
use pinstripe_runtime::{DeviceSource, shard};

use crate::{SimDisk, SimDiskConfig, World, WorldConfig, checks, verdict::Verdict, world::Stuck};

const MEMBER_BYTES: u64 = 1 << 20;
const CHUNK: u32 = 16 << 10;
/// Enough for anything that a scene does.
pub const STEPS: u64 = 1_000_000;

/// Disks, and the world they are in.
pub struct Scene {
    /// The world, of one shard.
    pub world: World,
    /// The members, in the order of their slots, and then what was added.
    pub disks: Vec<SimDisk>,
    /// How arrays are started.
    pub options: ArrayOptions,
    level: Level,
}

impl Scene {
    /// A new array on four disks, chunks of 16 KiB, left-symmetric.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn new(seed: u64, level: Level, bitmap: NewBitmap) -> Result<Self, Verdict> {
        let mut world = World::new(WorldConfig::new(seed, 1));
        let disks: Vec<SimDisk> =
            (0..4).map(|i| world.add_disk(SimDiskConfig::new(&format!("disk{i}"), MEMBER_BYTES))).collect();
        let member = |i: u8| NewDevice { sectors: MEMBER_BYTES / 512, uuid: Uuid([i + 1; 16]) };
        let layout = ParityLayout::from_name(level, "left-symmetric");
        let wish = NewArray {
            set_uuid: Uuid([7; 16]),
            name: SetName::from_bytes([b'x'; 32]),
            created: Timestamp::new(1, 0),
            level,
            layout: layout.map_or(Layout::None, Layout::Parity),
            chunk: SectorCount(u64::from(CHUNK) / 512),
            version: MetadataVersion::V1_2,
            bitmap,
            initial: InitialSync::AssumeClean,
            size: None,
            data_offset: Some(Sector(256)),
            logical_block_bytes: 512,
            members: (0..4).map(member).collect(),
            spares: vec![],
        };
        let attached = disks.clone();
        let made = world.block_on(0, "create", STEPS, async move {
            let devices: Vec<_> = attached.iter().map(SimDisk::attach).collect();
            create(&wish, &devices).await
        })?;
        made.map_err(|error| Verdict::Refused(format!("create: {error}")))?;
        let options = ArrayOptions {
            wall_clock: || 1,
            // The superblocks are left alone between events of the scene.
            safe_mode_delay_ns: 3_600_000_000_000,
            sweep_ns: Some(1_000_000),
            ..ArrayOptions::default()
        };
        Ok(Self { world, disks, options, level })
    }

    /// Assembles some of the disks.
    ///
    /// # Errors
    /// When the world comes to a halt.
    pub fn start(&mut self, disks: &[usize], force: bool) -> Result<Result<Array, AssembleError>, Stuck> {
        let sources: Vec<Arc<dyn DeviceSource>> = disks.iter().map(|&i| self.disks[i].source()).collect();
        let shards = vec![self.world.shard(0).handle()];
        let options = ArrayOptions { force, ..self.options.clone() };
        let assembly = async move { Array::assemble(sources, options, shards).await };
        self.world.block_on(0, "assemble", STEPS, assembly)
    }

    /// Writes 4 KiB of `byte`, forced.
    ///
    /// # Errors
    /// When the write fails or never ends.
    pub fn write(&mut self, array: &Array, offset: u64, byte: u8) -> Result<(), Verdict> {
        let volume = array.volume().clone();
        let written = self.world.block_on(0, "write", STEPS, async move {
            let mut data = shard::buffer(4096);
            data.fill(byte);
            volume.write(offset, data.freeze(), true).await
        })?;
        written.map_err(|error| Verdict::Refused(format!("write at {offset}: {error}")))
    }

    /// Reads 4 KiB, which must be all the same byte.
    ///
    /// # Errors
    /// When they aren't, or the read fails or never ends.
    pub fn read(&mut self, array: &Array, offset: u64) -> Result<u8, Verdict> {
        let volume = array.volume().clone();
        let read = async move { volume.read(offset, shard::buffer(4096)).await };
        let (result, buffer) = self.world.block_on(0, "read", STEPS, read)?;
        result.map_err(|error| Verdict::Refused(format!("read at {offset}: {error}")))?;
        if buffer.iter().any(|byte| *byte != buffer[0]) {
            return Err(Verdict::Scene(format!("4 KiB at {offset} are of several writes")));
        }
        Ok(buffer[0])
    }

    /// Power loss.
    pub fn crash(&mut self, array: Array) {
        {
            let _entered = self.world.enter(0);
            drop(array);
        }
        self.world.crash();
    }

    /// Stops the array.
    ///
    /// # Errors
    /// When it can't be marked clean.
    pub fn stop(&mut self, array: Array) -> Result<(), Verdict> {
        let owner = array.clone();
        let stopped = self.world.block_on(0, "stop", STEPS, async move { owner.stop().await })?;
        stopped.map_err(|error| Verdict::Refused(format!("stop: {error}")))?;
        let _entered = self.world.enter(0);
        drop(array);
        Ok(())
    }

    /// Puts a new disk in and waits until it has everything.
    ///
    /// # Errors
    /// When it isn't taken.
    pub fn add(&mut self, array: &Array) -> Result<(), Verdict> {
        let number = self.disks.len();
        let disk = self.world.add_disk(SimDiskConfig::new(&format!("disk{number}"), MEMBER_BYTES));
        self.disks.push(disk.clone());
        let owner = array.clone();
        let uuid = Uuid([u8::try_from(number + 1).unwrap_or(u8::MAX); 16]);
        let added =
            self.world.block_on(0, "add", STEPS, async move { owner.add(disk.source(), uuid).await })?;
        added.map_err(|error| Verdict::Refused(format!("add: {error}")))?;
        let shared = Arc::clone(array.shared());
        Ok(self.world.run_until(STEPS, |_| shared.snapshot().is_complete())?)
    }

    /// Drops the member of a slot.
    ///
    /// # Errors
    /// When the array can't do without it.
    pub fn fail(&mut self, array: &Array, slot: usize) -> Result<(), Verdict> {
        let owner = array.clone();
        let failed = self.world.block_on(0, "fail", STEPS, async move { owner.fail(slot).await })?;
        failed.map_err(|error| Verdict::Refused(format!("fail: {error}")))
    }

    /// Checks the parity of everything, past the engine.
    ///
    /// # Errors
    /// When it does not match.
    pub fn check_parity(&self) -> Result<(), Verdict> {
        let survey = checks::survey(self.disks.iter().enumerate())?;
        let Some(geometry) = self.geometry(&survey) else { return Ok(()) };
        let (members, stripes) = (survey.members(&self.disks)?, 0..geometry.stripes());
        Ok(checks::check_parity(&geometry, &members, stripes, "the scene is over")?)
    }

    /// Checks that the bitmap covers every row that does not match, past the engine.
    ///
    /// # Errors
    /// When it does not.
    pub fn check_covered(&self) -> Result<(), Verdict> {
        let survey = checks::survey(self.disks.iter().enumerate())?;
        let Some(geometry) = self.geometry(&survey) else { return Ok(()) };
        Ok(survey.check_covered(&self.disks, &geometry)?)
    }

    /// Waits until no bit of the bitmap is set any more.
    ///
    /// # Errors
    /// When that never comes.
    pub fn clear_bits(&mut self, array: &Array) -> Result<(), Verdict> {
        let shared = Arc::clone(array.shared());
        Ok(self.world.run_until(STEPS, |_| shared.snapshot().intent.set_count() == 0)?)
    }

    fn geometry(&self, survey: &checks::Survey) -> Option<ParityGeometry> {
        use pinstripe_engine::geometry::ParityLayout as Shape;
        let layout = Shape::from_md(self.level.number(), 2).ok()?;
        let bytes = survey.freshest.array.component_sectors().0 * 512;
        ParityGeometry::new(layout, 4, CHUNK, bytes, 512).ok()
    }

    /// The events of every disk's superblock.
    pub fn events(&self) -> Vec<u64> {
        let events = |disk| checks::superblock(disk).map_or(0, |superblock| superblock.array.events);
        self.disks.iter().map(events).collect()
    }

    /// Has a write begin, and stops the world when one member alone has the next superblock.
    ///
    /// # Errors
    /// When that never comes.
    pub fn tear_superblocks(&mut self, array: &Array) -> Result<(), Verdict> {
        let before = self.events();
        let volume = array.volume().clone();
        self.world.spawn(0, "write", async move {
            let _ = volume.write(0, shard::zeroed(4096).freeze(), true).await;
        });
        let disks = self.disks.clone();
        let torn = move |_: &World| {
            let events = disks.iter().filter_map(|disk| checks::superblock(disk).map(|s| s.array.events));
            events.max() > before.iter().copied().max()
        };
        Ok(self.world.run_until(STEPS, torn)?)
    }

    /// Runs `act` beside everything else.
    pub fn spawn(&mut self, name: &str, act: impl Future<Output = ()> + 'static) -> Rc<RefCell<bool>> {
        let done = Rc::new(RefCell::new(false));
        let there = Rc::clone(&done);
        self.world.spawn(0, name, async move {
            act.await;
            *there.borrow_mut() = true;
        });
        done
    }
}
