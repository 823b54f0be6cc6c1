//! How an array behaves; nothing of this is on disk.

use pinstripe_md::identity::Uuid;

use crate::{ablation::Ablation, plan::WritePolicy};

/// See the module. [`ArrayOptions::default`] is what a user gets.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct ArrayOptions {
    /// How to choose between the two parity updates.
    pub policy: WritePolicy,
    /// Bytes of parity kept; 0 turns the cache off.
    pub parity_cache_bytes: usize,
    /// What all requests under way may take beside what they bring and answer.
    pub memory: WorkMemory,
    /// The array that is meant. Without it, it is that of the members.
    pub wanted: Option<Uuid>,
    /// The array that it must be. Unlike `wanted`, it doesn't say which superblock of a device counts.
    pub expected: Option<Uuid>,
    /// Serve reads only; nothing on the members changes.
    pub read_only: bool,
    /// Assemble although dirty and degraded, or with stale members' superblocks: data may be lost. Also with
    /// so few members on servers that another host may have an array with the rest.
    pub force: bool,
    /// Assemble although members are missing that were there the last time; `force` and `read_only` include
    /// it.
    pub newly_degraded: bool,
    /// What the array's logical block is at least, in bytes, although no member that is there has one as
    /// large: clients have written in blocks of this.
    pub logical_block_min: u32,
    /// Idle time after which the superblocks are marked clean, in nanoseconds (MD: safe_mode_delay).
    pub safe_mode_delay_ns: u64,
    /// Time between two sweeps of the bitmap, in nanoseconds (MD: daemon_sleep); the bitmap's own value if
    /// `None`.
    pub sweep_ns: Option<u64>,
    /// How long a write of a sequential stream may wait for its neighbours, in nanoseconds; 0 for not at all.
    pub gather_ns: u64,
    /// Stripes that resync, rebuild and scrub have under way at a time.
    pub maintenance_depth: usize,
    /// How fast they may go, and how fast they go whatever users do;
    /// [`Array::set_sync_speed`](crate::array::Array::set_sync_speed) changes it later.
    pub sync_speed: SyncSpeed,
    /// How often a recovery's progress is recorded, in nanoseconds; what is recorded is not done again.
    pub checkpoint_ns: u64,
    /// Stripes that a recovery does between two looks at the clock.
    pub checkpoint_stripes: u64,
    /// How long a member may take for a request until it is called slow, in nanoseconds.
    pub slow_member_ns: u64,
    /// How long a member may take for a request until it is dropped, in nanoseconds; 0 for ever.
    pub member_timeout_ns: u64,
    /// Corrected reads after which a member is dropped, if the array can do without it; every hour halves
    /// what was counted (MD: max_read_errors).
    pub max_read_errors: u32,
    /// Where writes of an array with a journal are acknowledged from, if it is whole; the array's own word is
    /// [`Array::journal_mode`](crate::array::Array::journal_mode).
    pub journal_mode: JournalMode,
    /// Bytes of memory for what only the journal has; more is written through.
    pub journal_cache_bytes: usize,
    /// Takes the members over although another host has attached them: it can't write them any more then.
    /// Refused without `force` if one that is reached over a network has a server that can't see to that.
    pub takeover: bool,
    /// The server before has stopped the array, and all that it had asked the members for is over: no write
    /// of it is waited for that might come late.
    pub follows_stop: bool,
    /// Whether members' servers compute parity, where they can.
    pub offload: OffloadMode,
    /// How the server is chosen that sums up lost bytes.
    pub reducer: ReducerChoice,
    /// Most writes in one batch.
    pub batch_max: usize,
    /// Words of the stripe table, rounded up to a power of two: stripes that share one wait for each other.
    pub stripe_slots: usize,
    /// Writes of one shard that may wait in the stripe table; more wait for a place in it.
    pub waiters_per_shard: usize,
    /// Seconds since 1970, for the superblocks' time of update.
    pub wall_clock: fn() -> u64,
    /// Told before a start waits, or a device that is to join, and for how many nanoseconds, until the
    /// server has carried out what a process that died had asked for: else it would seem to hang.
    pub tell_wait: fn(u64),
    /// Ways of older designs, for measurement. `None` for users: what is ours, not metered.
    pub ablation: Option<Ablation>,
}

/// Memory that requests under way take, divided equally between shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkMemory {
    /// Stripe writes at a time; each shard has one at least.
    pub writes: usize,
    /// Bytes for what parity, or lost data, is computed from. A request that is alone on its shard may exceed
    /// it.
    pub bytes: usize,
}

impl WorkMemory {
    /// About what the context of a stripe write takes.
    const CONTEXT_BYTES: usize = 64 << 10;

    /// Of so many bytes, a quarter is for contexts of stripe writes.
    pub fn of(bytes: usize) -> Self {
        Self { writes: bytes / 4 / Self::CONTEXT_BYTES, bytes: bytes - bytes / 4 }
    }
}

impl Default for ArrayOptions {
    fn default() -> Self {
        Self {
            policy: WritePolicy::Cost,
            parity_cache_bytes: 64 << 20,
            memory: WorkMemory::of(1 << 30),
            wanted: None,
            expected: None,
            read_only: false,
            force: false,
            newly_degraded: true,
            logical_block_min: 512,
            safe_mode_delay_ns: 200_000_000,
            sweep_ns: None,
            gather_ns: 200_000,
            maintenance_depth: 8,
            sync_speed: SyncSpeed::default(),
            checkpoint_ns: 10_000_000_000,
            checkpoint_stripes: 256,
            slow_member_ns: 5_000_000_000,
            member_timeout_ns: 30_000_000_000,
            max_read_errors: 20,
            journal_mode: JournalMode::WriteThrough,
            journal_cache_bytes: 64 << 20,
            takeover: false,
            follows_stop: false,
            offload: OffloadMode::On,
            reducer: ReducerChoice::Bandwidth,
            batch_max: 256,
            stripe_slots: 1 << 14,
            waiters_per_shard: 4096,
            wall_clock: || std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
            tell_wait: |_| (),
            ablation: None,
        }
    }
}

/// Where a write is acknowledged from; MD's `journal_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalMode {
    /// From the members: the journal closes the write hole and no more.
    #[default]
    WriteThrough,
    /// From the journal: what only the journal has is lost with it.
    WriteBack,
}

impl JournalMode {
    /// MD's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::WriteThrough => "write-through",
            Self::WriteBack => "write-back",
        }
    }
}

/// Limits of resync, recovery, check and repair, in KiB of one member per second (MD: `sync_speed_min`,
/// `sync_speed_max`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncSpeed {
    /// What it gets whatever users do.
    pub min_kib: u64,
    /// What it never exceeds.
    pub max_kib: u64,
}

impl Default for SyncSpeed {
    /// Ten times MD's, for devices that are ten times as fast (docs/decisions/0015).
    fn default() -> Self {
        Self { min_kib: 10_000, max_kib: 2_000_000 }
    }
}

/// Whether the members' servers compute, where they can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffloadMode {
    /// Never: every member is a plain one.
    Off,
    /// Wherever it is possible.
    #[default]
    On,
    /// The same, but parity servers are told only when all parts are there: for measurement.
    Barrier,
}

/// How the reducer is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReducerChoice {
    /// In turns.
    Uniform,
    /// By what is under way to each, and what their links have free where that is known.
    #[default]
    Bandwidth,
}
