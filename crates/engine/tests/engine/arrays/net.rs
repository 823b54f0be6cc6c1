//! An array of members with servers that compute, with a ledger.

use std::rc::Rc;

use pinstripe_engine::{
    assembly::{AssembleError, create::create},
    options::ArrayOptions,
    statistics::Statistics,
};
use pinstripe_md::{
    level::{Layout, Level, ParityLayout},
    placement::{InitialSync, NewArray, NewBitmap},
};
use pinstripe_runtime::Device;
use pinstripe_sim::{SimDisk, World, WorldConfig};

use super::{
    STEPS, options,
    scene::{Scene, plain_disks, wish},
    servers::{Script, Server, ServerSource, serve},
};

pub const CHUNK: u64 = 16 << 10;

pub struct Net {
    pub scene: Scene,
    pub script: Rc<Script>,
    pub servers: Vec<Rc<Server>>,
}

pub fn plan(level: Level, layout: &str, members: u8) -> NewArray {
    let bitmap = NewBitmap::Internal { chunk_bytes: Some(65536) };
    let mut wish = wish(level, members, CHUNK, bitmap, InitialSync::AssumeClean);
    if level != Level::Raid4 {
        wish.layout = Layout::Parity(ParityLayout::from_name(level, layout).unwrap());
    }
    for member in &mut wish.members {
        member.sectors = 768;
    }
    wish
}

impl Net {
    pub fn new(seed: u64, wish: NewArray, shards: usize, options: ArrayOptions) -> Self {
        Self::with_slots(seed, wish, shards, options, 64)
    }

    /// With servers that hold at most `slots` operations each.
    pub fn with_slots(seed: u64, wish: NewArray, shards: usize, options: ArrayOptions, slots: u32) -> Self {
        Self::made_by(seed, wish, shards, options, slots, |wish, devices| async move {
            create(&wish, &devices).await.unwrap();
        })
    }

    /// Of an array that is made in another way.
    pub fn made_by<F: Future<Output = ()> + 'static>(
        seed: u64,
        wish: NewArray,
        shards: usize,
        options: ArrayOptions,
        slots: u32,
        make: impl FnOnce(NewArray, Vec<Rc<dyn Device>>) -> F + 'static,
    ) -> Self {
        let mut world = World::new(WorldConfig::new(seed, shards));
        let disks = plain_disks(&mut world, wish.members.iter().map(|member| member.sectors));
        let devices = disks.clone();
        let create = async move { make(wish, devices.iter().map(SimDisk::attach).collect()).await };
        world.block_on(0, "create", STEPS, create).unwrap();
        Self::over(seed, world, disks, options, slots)
    }

    /// Over the disks of an array that is made already.
    pub fn over(seed: u64, mut world: World, disks: Vec<SimDisk>, options: ArrayOptions, slots: u32) -> Self {
        let range_bytes = if seed % 2 == 1 { 8 << 10 } else { 1 << 20 };
        let (script, servers) = serve(&disks, (slots, range_bytes), |label| world.rng(label));
        let sources = servers.iter().map(|server| ServerSource::of(server)).collect();
        let array = super::assemble(&mut world, sources, options.clone()).unwrap();
        let ledger =
            Rc::new(std::cell::RefCell::new(pinstripe_sim::Ledger::new(array.volume().size() / 512)));
        Self { scene: Scene { world, disks, array, ledger, options }, script, servers }
    }

    /// With the usual options, all offloaded.
    pub fn of(seed: u64, wish: NewArray) -> Self {
        Self::new(seed, wish, 2, options())
    }

    /// After a crash of the client, which the servers have noticed.
    pub fn restart(&mut self) {
        self.servers.iter().for_each(|server| server.host_gone());
        self.reassemble();
    }

    pub fn reassemble(&mut self) {
        self.try_reassemble().unwrap();
    }

    pub fn try_reassemble(&mut self) -> Result<(), AssembleError> {
        // Given in an order of its own.
        let servers = self.servers.iter().rev().filter(|server| server.is_alive());
        let sources = servers.map(|server| ServerSource::of(server)).collect();
        self.scene.array = super::assemble(&mut self.scene.world, sources, self.scene.options.clone())?;
        Ok(())
    }

    pub fn epoch(&self) -> u64 {
        self.scene.array.detail().offload.map_or(0, |offload| offload.epoch)
    }

    pub fn statistics(&self) -> Statistics {
        Statistics::sum(self.scene.array.shared().counters.iter().map(|counters| &**counters))
    }

    /// Waits until the members that are there take part again.
    pub fn attach(&mut self) {
        let shared = std::sync::Arc::clone(self.scene.array.shared());
        self.scene
            .world
            .run_until(STEPS, |_| shared.snapshot().offload.is_some() && shared.is_recorded())
            .unwrap();
    }

    /// A member is out, and the others know it.
    pub fn lose(&mut self, server: usize) {
        self.servers[server].die();
        let (array, name) = (self.scene.array.clone(), self.scene.disks[server].info().name.clone());
        self.scene.run(async move { array.drop_gone(&name).await }).unwrap();
        self.attach();
    }

    pub fn sleep(&mut self, milliseconds: u64) {
        self.scene.run(async move { pinstripe_runtime::shard::sleep(milliseconds * 1_000_000).await });
    }

    /// Nothing is left at the servers, and they have nothing to complain of.
    pub fn assert_settled(&mut self) {
        // Longer than any part can be on its way.
        self.sleep(6_000);
        for (number, server) in self.servers.iter().enumerate() {
            assert_eq!(server.open_operations(), [], "server {number}");
        }
        assert_eq!(*self.script.complaints.borrow(), [""; 0]);
    }

    /// Every member holds what its row says, by its own bytes; the members of `lost` slots are left out.
    pub fn assert_consistent(&mut self) {
        self.scene.read_all();
        if self.scene.array.detail().missing == 0 {
            assert_eq!(self.scene.check(), 0);
        }
    }
}
