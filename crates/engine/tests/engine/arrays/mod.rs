//! What the engine's tests share: the golden images, and arrays served from memory in a simulated world.

#[cfg(feature = "mutants")]
pub mod defects;
pub mod failures;
pub mod net;
pub mod scene;
pub mod servers;

use std::{fs, ops::Range, path::PathBuf, sync::Arc};

use pinstripe_engine::{array::Array, assembly::AssembleError, error::IoError, options::ArrayOptions};
use pinstripe_md::{
    superblock::{SUPERBLOCK_BYTES_MAX, Superblock, candidate_sectors},
    units::Sector,
};
use pinstripe_runtime::{
    DeviceSource,
    memory::{Memory, MemorySource},
    shard,
};
use pinstripe_sim::{World, WorldConfig};
use serde::Deserialize;

pub const STEPS: u64 = 20_000_000;
pub const BLOCK: usize = 4096;

/// What `manifest.json` says of an array.
#[derive(Deserialize)]
pub struct Case {
    pub name: String,
    file: String,
    member_bytes: Vec<usize>,
    pub level: i32,
    pub chunk_sectors: u64,
    pub raid_disks: u32,
    array_blocks4k: u64,
    pub kernel_mismatch_cnt: Option<u64>,
    expected: Expected,
}

#[derive(Deserialize)]
struct Expected {
    gen1: Vec<(u64, u64)>,
    gen2: Vec<u64>,
}

impl Case {
    /// Fills `bytes` with what the array holds from block `first` on.
    pub fn fill(&self, first: u64, bytes: &mut [u8]) {
        bytes.fill(0);
        for (block, bytes) in (first..).zip(bytes.chunks_exact_mut(BLOCK)) {
            let generation = if self.expected.gen2.contains(&block) {
                2
            } else if self.expected.gen1.iter().any(|(from, to)| (*from..*to).contains(&block)) {
                1
            } else {
                continue;
            };
            let mut record = *b"MDGOLD00________________________";
            record[7] += u8::try_from(generation).unwrap();
            record[8..16].copy_from_slice(&block.to_le_bytes());
            record[16..24].copy_from_slice(&(!block).to_le_bytes());
            let mixed = block.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(generation);
            record[24..].copy_from_slice(&mixed.to_le_bytes());
            bytes.chunks_exact_mut(32).for_each(|place| place.copy_from_slice(&record));
        }
    }

    pub fn bytes(&self) -> u64 {
        self.array_blocks4k * BLOCK as u64
    }
}

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../md/tests/golden")
}

/// All cases of both manifests.
pub fn cases() -> Vec<Case> {
    #[derive(Deserialize)]
    struct Manifest {
        cases: Vec<Case>,
    }
    let read =
        |name| -> Manifest { serde_json::from_slice(&fs::read(golden().join(name)).unwrap()).unwrap() };
    let mut cases = read("manifest.json").cases;
    cases.extend(read("manifest-extra.json").cases);
    assert!(cases.len() >= 58, "{} cases", cases.len());
    cases
}

/// A case with the images of its members in memory.
pub struct Golden {
    pub case: Case,
    pub members: Vec<Arc<Memory>>,
    /// The file as it was, for comparison.
    image: Vec<u8>,
}

pub fn golden_array(name: &str) -> Golden {
    Golden::unpack(cases().into_iter().find(|case| case.name == name).unwrap())
}

impl Golden {
    pub fn unpack(case: Case) -> Self {
        let packed = fs::read(golden().join(&case.file)).unwrap();
        let image = zstd::bulk::decompress(&packed, case.member_bytes.iter().sum()).unwrap();
        let mut rest = &image[..];
        let members = case.member_bytes.iter().map(|bytes| {
            let memory = Memory::new(*bytes).unwrap();
            memory.copy_in(0, rest.split_off(..*bytes).unwrap()).unwrap();
            memory
        });
        let members = members.collect();
        Self { case, members, image }
    }

    pub fn all(&self) -> Vec<usize> {
        (0..self.members.len()).collect()
    }

    pub fn superblock(&self, member: usize) -> Superblock {
        superblock_of(&self.members[member])
    }

    /// Rewrites a member's superblock.
    pub fn change(&self, member: usize, change: impl FnOnce(&mut Superblock)) {
        let mut superblock = self.superblock(member);
        change(&mut superblock);
        let place = superblock.member.super_offset.0 * 512;
        self.members[member].copy_in(place, &superblock.encode(512).unwrap()).unwrap();
    }

    /// Rewrites every member's superblock.
    pub fn change_all(&self, change: impl Fn(&mut Superblock)) {
        (0..self.members.len()).for_each(|member| self.change(member, &change));
    }

    /// The raw bytes of a member's superblock, which `change` may break; the checksum is made right again.
    pub fn forge(&self, member: usize, change: impl FnOnce(&mut [u8])) {
        let place = self.superblock(member).member.super_offset.0 * 512;
        let mut bytes = vec![0; 512];
        self.members[member].copy_out(place, &mut bytes).unwrap();
        change(&mut bytes);
        bytes[216..220].fill(0);
        let sum: u64 =
            bytes.chunks_exact(4).map(|word| u64::from(u32::from_le_bytes(word.try_into().unwrap()))).sum();
        let sum = u32::try_from(sum & 0xffff_ffff).unwrap().wrapping_add(u32::try_from(sum >> 32).unwrap());
        bytes[216..220].copy_from_slice(&sum.to_le_bytes());
        self.members[member].copy_in(place, &bytes).unwrap();
    }

    pub fn is_current(&self, member: usize) -> bool {
        let superblocks: Vec<_> = (0..self.members.len()).map(|m| self.superblock(m)).collect();
        let newest = superblocks.iter().map(|s| s.array.events).max().unwrap();
        let superblock = &superblocks[member];
        superblock.array.events + 1 >= newest
            && superblock.member.recovery_offset.is_none()
            && matches!(superblock.own_role(), pinstripe_md::superblock::Role::Slot(_))
    }

    /// Assembles the array of these members.
    pub fn serve(&self, members: &[usize], options: ArrayOptions) -> Result<Served, AssembleError> {
        let sources = members.iter().map(|&member| self.source(member)).collect();
        Served::new(sources, options)
    }

    pub fn source(&self, member: usize) -> Arc<dyn DeviceSource> {
        let memory = Arc::clone(&self.members[member]);
        Arc::new(MemorySource { name: format!("member{member}"), memory, logical_block: 512 })
    }

    /// Assembles it of these members, reads every block and compares it with the pattern.
    pub fn read_all(&self, members: &[usize], options: ArrayOptions) -> Served {
        let mut served = self.serve(members, options).unwrap_or_else(|e| panic!("{members:?}: {e}"));
        served.compare(&self.case);
        served
    }

    /// Nothing was written.
    pub fn assert_untouched(&self) {
        let mut rest = &self.image[..];
        for memory in &self.members {
            let mut now = vec![0; memory.size()];
            memory.copy_out(0, &mut now).unwrap();
            assert!(now == rest.split_off(..now.len()).unwrap(), "{}: a member has changed", self.case.name);
        }
    }

    pub fn bytes(&self, member: usize, range: Range<u64>) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
        self.members[member].copy_out(range.start, &mut bytes).unwrap();
        bytes
    }
}

/// The superblock on a memory.
pub fn superblock_of(memory: &Memory) -> Superblock {
    let sectors = memory.size() as u64 / 512;
    let read = |place: Sector| {
        let mut bytes = vec![0; SUPERBLOCK_BYTES_MAX];
        memory.copy_out(place.0 * 512, &mut bytes).ok()?;
        Superblock::decode(&bytes, place, sectors).ok()
    };
    candidate_sectors(sectors).find_map(read).unwrap()
}

pub fn read_only() -> ArrayOptions {
    ArrayOptions { read_only: true, ..options() }
}

pub fn options() -> ArrayOptions {
    ArrayOptions { wall_clock: || 1, parity_cache_bytes: 256 << 10, ..ArrayOptions::default() }
}

/// An array in service, alone in its world.
pub struct Served {
    pub world: World,
    pub array: Array,
}

impl Served {
    pub fn new(sources: Vec<Arc<dyn DeviceSource>>, options: ArrayOptions) -> Result<Self, AssembleError> {
        let mut world = World::new(WorldConfig { arena_bytes: 4 << 20, ..WorldConfig::new(1, 1) });
        let array = assemble(&mut world, sources, options)?;
        Ok(Self { world, array })
    }

    /// Every block is what the manifest says.
    pub fn compare(&mut self, case: &Case) {
        const STEP: usize = 256 << 10;
        let volume = self.array.volume().clone();
        if case.name == "r5-grown" {
            // The manifest has the size before the array grew; the space that it won was never written.
            assert_eq!(volume.size(), case.bytes() / 2 * 3);
        } else {
            assert_eq!(volume.size(), case.bytes(), "{}", case.name);
        }
        let mut expected = vec![0; STEP];
        for at in (0..case.bytes()).step_by(STEP) {
            let length = STEP.min(usize::try_from(case.bytes() - at).unwrap());
            let volume = volume.clone();
            let (result, buffer) = self
                .world
                .block_on(0, "read", STEPS, async move { volume.read(at, shard::buffer(length)).await })
                .unwrap();
            result.unwrap_or_else(|e| panic!("{}: {e}", case.name));
            case.fill(at / BLOCK as u64, &mut expected[..length]);
            assert!(buffer[..] == expected[..length], "{}: wrong bytes in {at}..+{length}", case.name);
        }
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        let volume = self.array.volume().clone();
        let bytes = bytes.to_vec();
        self.run("write", async move {
            let mut buffer = shard::buffer(bytes.len());
            buffer.copy_from_slice(&bytes);
            volume.write(offset, buffer.freeze(), false).await
        })
    }

    pub fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, IoError> {
        let volume = self.array.volume().clone();
        self.run("read", async move {
            let (result, buffer) = volume.read(offset, shard::buffer(length)).await;
            result.map(|()| buffer.to_vec())
        })
    }

    pub fn run<T: 'static>(&mut self, name: &str, future: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(0, name, STEPS, future).unwrap()
    }

    /// Waits for the background resync or rebuild.
    pub fn settle(&mut self) {
        let array = self.array.clone();
        let settled = |_: &World| {
            let detail = array.detail();
            detail.regions_to_resync == 0 && detail.slots.iter().all(|slot| slot.state != "recovering")
        };
        self.world.run_until(STEPS, settled).unwrap();
    }

    /// Mismatched sectors.
    pub fn check(&mut self) -> u64 {
        let array = self.array.clone();
        let report = self.run("check", async move { array.check().await }).unwrap();
        assert_eq!(report.unreadable_stripes, 0);
        report.mismatched_sectors
    }

    pub fn stop(&mut self) {
        let array = self.array.clone();
        self.run("stop", async move { array.stop().await }).unwrap();
    }
}

/// Assembles an array on all shards of a world.
pub fn assemble(
    world: &mut World,
    sources: Vec<Arc<dyn DeviceSource>>,
    options: ArrayOptions,
) -> Result<Array, AssembleError> {
    let shards = (0..world.shards()).map(|i| world.shard(i).handle()).collect();
    world
        .block_on(0, "assemble", STEPS, async move { Array::assemble(sources, options, shards).await })
        .unwrap()
}
