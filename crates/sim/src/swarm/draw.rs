//! What a run is made of: every choice that stands before the world begins, drawn from the seed.

use std::ops::Range;

use pinstripe_engine::{
    geometry::{self, ParityGeometry},
    options::{ArrayOptions, JournalMode, WorkMemory},
    plan::WritePolicy,
};
use pinstripe_md::{
    identity::{SetName, Timestamp, Uuid},
    level::{Layout, Level, ParityLayout, Raid0Layout},
    placement::{
        InitialSync, NewArray, NewBitmap, NewDevice, NewLog, PlacedArray, PlacementError,
        journal::add_journal,
    },
    superblock::MetadataVersion,
    units::{Sector, SectorCount},
};
use pinstripe_runtime::ZeroedReads;

use super::{front::NbdSetup, net::NetSetup, races::Races};
use crate::{Rng, SimDiskConfig, rng::mix};

/// Room in front of the data and behind it, for superblock, bitmap and logs.
pub(super) const FRONT_SECTORS: u64 = 256;
const BEHIND_SECTORS: u64 = 512;
/// What a journal has more than a member.
const JOURNAL_BYTES: u64 = 2 << 20;

/// What a start after a crash goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Everything is resynced.
    Resync,
    /// What the bitmap says, with regions of so many bytes.
    Bitmap(u32),
    /// MD's partial parity log on the members (level 5).
    Ppl,
    /// The double-parity log on the members (level 6).
    DoubleParityLog,
    /// A journal device, which is the disk behind the members.
    Journal,
}

impl Consistency {
    /// Whether parity (and bits that say where it may not match) is all that a start goes by: no log is
    /// replayed first.
    pub fn settles_by_parity(self) -> bool {
        match self {
            Self::Resync | Self::Bitmap(_) => true,
            Self::Ppl | Self::DoubleParityLog | Self::Journal => false,
        }
    }

    /// Whether a log on the members may let a dirty array start with members missing.
    pub fn bears_degraded_start(self) -> bool {
        matches!(self, Self::Ppl | Self::DoubleParityLog)
    }

    /// A number, for the count of states.
    pub fn number(self) -> u8 {
        match self {
            Self::Resync => 0,
            Self::Bitmap(_) => 1,
            Self::Ppl => 2,
            Self::Journal => 3,
            Self::DoubleParityLog => 4,
        }
    }
}

/// One run's shape.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is drawn by itself")]
pub struct Setup {
    /// The level.
    pub level: Level,
    /// Its layout.
    pub layout: Layout,
    /// Members.
    pub members: usize,
    /// Chunk in bytes.
    pub chunk: u64,
    /// Stripes.
    pub stripes: u64,
    /// Where the members' data begins, but for metadata 1.0.
    pub data_sector: u64,
    /// Logical block of the array in bytes.
    pub block: u32,
    /// Where the superblock lies.
    pub version: MetadataVersion,
    /// The consistency policy at the beginning.
    pub consistency: Consistency,
    /// Whether parity begins as garbage and is resynced.
    pub resync: bool,
    /// Shards.
    pub shards: usize,
    /// Lives: how often the array is assembled, at most.
    pub lives: u64,
    /// Clients per life.
    pub clients: u64,
    /// Requests per client.
    pub requests: u64,
    /// Of 8 lives, how many end with a crash rather than in peace.
    pub crashes: u64,
    /// Whether members fail.
    pub failures: bool,
    /// The engine's options.
    pub options: ArrayOptions,
    /// Disks behind the members that are, or were, journals: one or none.
    pub journals: usize,
    /// What the disks are like; sizes and blocks are set.
    pub disk: SimDiskConfig,
    /// Users come over NBD.
    pub nbd: Option<NbdSetup>,
    /// The owner changes the consistency policy while the array is served.
    pub policy_changes: bool,
    /// Members come back, are replaced, hang.
    pub atlas: Option<super::atlas::Habits>,
    /// Shards are interrupted, and users and owner meet in narrow places.
    pub races: Option<Races>,
    /// Members are reached over the network.
    pub net: Option<NetSetup>,
    /// More of everything.
    pub wide: Option<super::wide::Habits>,
    /// Members are far larger than what is written of them.
    pub vast: Option<super::vast::Habits>,
    /// Every flag of the front end, and lists of bad blocks across crashes.
    pub marks: Option<super::marks::Habits>,
    /// Faults meet that come one at a time elsewhere.
    pub rough: Option<super::rough::Habits>,
    /// Disks differ in what they can do and where data begins, each as this and its number say.
    pub motley: Option<u64>,
    /// Lives end with stops under load.
    pub stops: bool,
}

impl Setup {
    /// The shape of a run, but for its log.
    pub fn drawn(rng: &mut Rng) -> Self {
        let level = rng.pick(&[
            Level::Raid5,
            Level::Raid5,
            Level::Raid5,
            Level::Raid6,
            Level::Raid6,
            Level::Raid6,
            Level::Raid4,
            Level::Raid0,
        ]);
        let layout = match level {
            Level::Raid0 => Layout::Raid0(rng.pick(&[Raid0Layout::Original, Raid0Layout::Alternate])),
            Level::Raid4 => Layout::None,
            _ => {
                let all: Vec<ParityLayout> = ParityLayout::all_of(level).collect();
                Layout::Parity(rng.pick(&all))
            }
        };
        let members_min = if level == Level::Raid6 { 4 } else { 3 };
        let members = members_min + rng.index(8 - members_min);
        let chunk = rng.pick(&[4096, 4096, 8192, 16384, 16384, 65536]);
        // At most 384 KiB of each member, so that a run can look at everything often.
        let stripes = (8 + rng.below(33)).min(393_216 / chunk);
        let block = rng.pick(&[512, 512, 512, 4096]);
        let parity = level != Level::Raid0;
        let consistency = if parity && rng.chance(3, 4) {
            Consistency::Bitmap(rng.pick(&[4096, 8192, 32768, 65536]))
        } else {
            Consistency::Resync
        };
        let size = (FRONT_SECTORS + BEHIND_SECTORS) * 512 + chunk * stripes;
        let mut disk = SimDiskConfig::drawn(rng, "disk", size);
        disk.logical_block = block;
        disk.tear_bytes = if rng.chance(1, 4) { block } else { 512 };
        Self {
            level,
            layout,
            members,
            chunk,
            stripes,
            data_sector: FRONT_SECTORS,
            block,
            version: rng.pick(&[MetadataVersion::V1_0, MetadataVersion::V1_1, MetadataVersion::V1_2]),
            consistency,
            resync: parity && rng.chance(1, 3),
            shards: 1 + rng.index(3),
            lives: 1 + rng.below(4),
            clients: 1 + rng.below(9),
            requests: 8 + rng.below(40),
            crashes: rng.pick(&[0, 4, 6, 8]),
            failures: parity && rng.chance(2, 3),
            options: options(rng, disk.latency_ns_max),
            journals: 0,
            disk,
            nbd: None,
            policy_changes: false,
            atlas: None,
            races: None,
            net: None,
            wide: None,
            vast: None,
            marks: None,
            rough: None,
            motley: None,
            stops: false,
        }
        .with_tight_tables(rng)
        .with_front(rng)
    }

    /// The log, if it has one, and whether the policy changes: drawn from a stream of their own, so that the
    /// seeds that have neither are the runs that they were before there were logs.
    pub fn with_log(mut self, rng: &mut Rng) -> Self {
        let (drawn, changes) = (rng.below(16), rng.chance(1, 3));
        if self.level.parity_count() == 0 {
            return self;
        }
        self.policy_changes = changes;
        self.consistency = match (self.level, drawn) {
            (Level::Raid5, 0..=3) => Consistency::Ppl,
            (Level::Raid6, 0..=3) => Consistency::DoubleParityLog,
            (_, 4 | 5) | (Level::Raid4, 3) => Consistency::Journal,
            _ => return self,
        };
        self.journals = usize::from(self.consistency == Consistency::Journal);
        if self.journals > 0 && self.members.is_multiple_of(2) {
            // Not drawn: other arrays stay as their seeds have them.
            self.options.journal_mode = JournalMode::WriteBack;
            self.options.journal_cache_bytes = if self.shards == 1 { 32 << 10 } else { 1 << 20 };
        }
        if self.consistency.bears_degraded_start() && self.version == MetadataVersion::V1_0 {
            // There the log would have its full size, which is more than all the rest of the disk.
            self.version = MetadataVersion::V1_2;
        }
        self
    }

    /// In one array of four, requests wait for memory: from a stream of its own, as above.
    pub fn draw_memory(&mut self, rng: &mut Rng) {
        if rng.chance(1, 4) {
            // More writes than there is memory for, and one at a time.
            let writes = rng.pick(&[1, 2, 3, 8]) * self.shards;
            self.options.memory = WorkMemory { writes, bytes: rng.pick(&[1, 16 << 10, 64 << 10]) };
        }
    }

    /// In one array of eight, writes of a process that was killed come late: from a stream of its own, as
    /// above.
    pub fn draw_late_writes(&mut self, rng: &mut Rng) {
        if rng.chance(1, 8) {
            self.disk.late_writes_ns = rng.pick(&[1_000_000, 10_000_000, 100_000_000]);
        }
    }

    /// Whether faults are planned for later, which a crash or the end must forget.
    pub fn plans_faults(&self) -> bool {
        self.atlas.is_some() || self.wide.is_some() || self.vast.is_some() || self.marks.is_some()
    }

    /// The geometry of levels 4, 5 and 6.
    pub fn geometry(&self) -> Option<ParityGeometry> {
        let word = match self.layout {
            Layout::Parity(layout) => layout.number(),
            Layout::None => 0,
            _ => return None,
        };
        let layout = geometry::ParityLayout::from_md(self.level.number(), word).ok()?;
        let (chunk, bytes) = (u32::try_from(self.chunk).ok()?, self.chunk * self.stripes);
        ParityGeometry::new(layout, self.members, chunk, bytes, self.block).ok()
    }

    /// The stripes that users of a vast array write; none if all of them are written.
    pub fn windows(&self) -> &[Range<u64>] {
        self.vast.as_ref().map_or(&[], |habits| &habits.windows)
    }

    /// Whether members are too large to be looked at, or to be rebuilt, as a whole.
    pub fn is_vast(&self) -> bool {
        !self.windows().is_empty()
    }

    /// Whether it is a small array on large members.
    pub fn is_far(&self) -> bool {
        self.vast.is_some() && !self.is_vast()
    }

    /// Whether the array can do without its bitmap for a while.
    pub fn may_change_bitmap(&self) -> bool {
        self.consistency.settles_by_parity() && !self.is_vast() && self.marks.is_none()
    }

    /// Whether the array has a log. In front of large chunks there is no room for a double-parity log in
    /// which a whole one fits, and then it isn't used.
    pub fn logs(&self) -> bool {
        let fits = self.chunk < 65536 || self.data_sector > FRONT_SECTORS;
        !self.consistency.settles_by_parity() && (fits || self.consistency != Consistency::DoubleParityLog)
    }

    /// Members that the level can do without.
    pub fn redundancy(&self) -> usize {
        usize::from(self.level.parity_count())
    }

    /// Where the members' data begins, in bytes.
    pub fn data_byte(&self) -> u64 {
        if self.version == MetadataVersion::V1_0 { 0 } else { self.data_sector * 512 }
    }

    /// Disks at the beginning: the members, and the journal if there is one.
    pub fn disks(&self) -> usize {
        self.members + self.journals
    }

    /// What to create, with the log on the members or beside them.
    pub fn place(&self, rng: &mut Rng) -> Result<PlacedArray, PlacementError> {
        let wish = self.wish(rng);
        let log = match self.consistency {
            Consistency::Ppl => NewLog::Ppl,
            Consistency::DoubleParityLog => NewLog::DoubleParity,
            _ => NewLog::None,
        };
        let mut placed = wish.place_with(log)?;
        if let Some(salt) = self.motley.filter(|_| self.version != MetadataVersion::V1_0) {
            for (number, superblock) in placed.superblocks.iter_mut().enumerate() {
                let by = 8 * (mix(salt ^ !(number as u64)) % 8);
                superblock.member.data_offset.0 += by;
                superblock.member.data_size.0 -= by;
            }
        }
        if self.consistency == Consistency::Journal {
            let device = NewDevice { sectors: self.disk(self.members).size / 512, uuid: uuid(rng) };
            add_journal(&mut placed, device, self.block.into())?;
        }
        Ok(placed)
    }

    fn with_front(mut self, rng: &mut Rng) -> Self {
        self.nbd = rng.chance(1, 4).then(|| NbdSetup::drawn(rng));
        self
    }

    /// Stripes that share a word of the table and too few places to wait, which a table of the usual size
    /// never shows.
    fn with_tight_tables(mut self, rng: &mut Rng) -> Self {
        self.options.stripe_slots = rng.pick(&[1, 2, 8, 1 << 10]);
        self.options.waiters_per_shard = rng.pick(&[1, 3, 256, 256]);
        self
    }

    /// What to create.
    pub fn wish(&self, rng: &mut Rng) -> NewArray {
        let bitmap = match self.consistency {
            Consistency::Bitmap(bytes) => NewBitmap::Internal { chunk_bytes: Some(bytes) },
            _ => NewBitmap::None,
        };
        let v1_0 = self.version == MetadataVersion::V1_0;
        NewArray {
            set_uuid: uuid(rng),
            name: SetName::from_bytes([b's'; 32]),
            created: Timestamp::new(1, 0),
            level: self.level,
            layout: self.layout,
            chunk: SectorCount(self.chunk / 512),
            version: self.version,
            bitmap,
            initial: if self.resync { InitialSync::Resync } else { InitialSync::AssumeClean },
            size: (self.level != Level::Raid0).then_some(SectorCount(self.chunk * self.stripes / 512)),
            // As mdadm has it.
            data_offset: Some(Sector(if v1_0 { 0 } else { self.data_sector })),
            logical_block_bytes: self.block.into(),
            members: (0..self.members)
                .map(|_| NewDevice { sectors: self.disk.size / 512, uuid: uuid(rng) })
                .collect(),
            spares: vec![],
        }
    }

    /// Where a disk of the run may hold anything: all of it, or, of a large one, both ends and what the array
    /// uses.
    pub fn places(&self) -> Vec<Range<u64>> {
        const END_BYTES: u64 = 1 << 20;
        if self.vast.is_none() {
            let whole = 0..self.disk.size;
            return vec![whole];
        }
        let (data, bytes) = (self.data_byte(), self.chunk * self.stripes);
        let mut places = vec![0..END_BYTES, self.disk.size - END_BYTES..self.disk.size];
        if data >= END_BYTES {
            places.push(data..data + bytes);
        }
        places
    }

    /// One disk of the run.
    pub fn disk(&self, number: usize) -> SimDiskConfig {
        // A journal must take a stripe several times over.
        let is_journal = (self.members..self.disks()).contains(&number);
        let size = self.disk.size + if is_journal { JOURNAL_BYTES } else { 0 };
        let name = if self.net.is_some() { super::net::name(number) } else { format!("disk{number}") };
        let mut config = SimDiskConfig { name, size, ..self.disk.clone() };
        if let Some(salt) = self.motley {
            let own = mix(salt ^ number as u64);
            config.volatile_cache = own & 1 == 0;
            config.forces_by_flush = own & 16 == 0;
            config.zeroes = if own & 6 == 0 { ZeroedReads::Unsupported } else { ZeroedReads::Zero };
            config.discards = own & 8 == 0;
            // Not in their blocks: the array's is the largest of the members that are there, so one with
            // larger blocks can't come back to an array that was started without it (C20).
        }
        config
    }
}

/// An identity.
pub fn uuid(rng: &mut Rng) -> Uuid {
    let mut bytes = [0; 16];
    rng.fill(&mut bytes);
    Uuid(bytes)
}

/// The timers go with the disks: an idle array that looks at its watch costs steps and shows nothing.
fn options(rng: &mut Rng, latency_ns: u64) -> ArrayOptions {
    ArrayOptions {
        policy: rng.pick(&[
            WritePolicy::MinReads,
            WritePolicy::ModThreshold,
            WritePolicy::AlwaysRmw,
            WritePolicy::AlwaysRmw,
            WritePolicy::Cost,
            WritePolicy::Cost,
        ]),
        parity_cache_bytes: rng.pick(&[0, 32 << 10, 64 << 10, 1 << 20]),
        safe_mode_delay_ns: rng.pick(&[50_000, 1_000_000, 20_000_000]).max(latency_ns / 2),
        sweep_ns: Some(rng.pick(&[200_000, 2_000_000, 30_000_000]).max(latency_ns)),
        gather_ns: rng.pick(&[0, 20_000, 200_000]),
        maintenance_depth: 1 + rng.index(4),
        checkpoint_ns: rng.pick(&[0, 1_000_000, 10_000_000_000]),
        checkpoint_stripes: rng.pick(&[1, 3, 256]),
        batch_max: rng.pick(&[1, 2, 8, 256]),
        wall_clock: || 1,
        // The swarm alone says how many members may fail.
        max_read_errors: u32::MAX,
        ..ArrayOptions::default()
    }
}
