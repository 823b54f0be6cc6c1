//! The memory of this process: what clients may make it hold, whatever protocol they speak, and how
//! `--memory-max` is divided.

use std::sync::{Arc, OnceLock};

use pinstripe_block::budget::{BUDGET_BYTES, Budget};
use pinstripe_control::size::ByteSize;
use pinstripe_runtime::uring::RuntimeConfig;

use crate::failure::Failure;

/// The program, its tables, and what a check or a rebuild has under way.
const PROGRAM_BYTES: u64 = 64 << 20;
/// What the connections of a shard have for themselves: staging and small answers.
const CONNECTIONS_BYTES: u64 = 40 << 20;
/// The same where they may be of TLS, which has a message of its own on the way in and on the way out.
const TLS_CONNECTIONS_BYTES: u64 = 2 * CONNECTIONS_BYTES;
/// Less than this is no use to clients.
const LEAST_BYTES: u64 = 64 << 20;

static BUDGET: OnceLock<Arc<Budget>> = OnceLock::new();

/// One for all servers of all shards.
pub fn budget() -> Arc<Budget> {
    Arc::clone(BUDGET.get_or_init(Arc::default))
}

/// What parts of the process may take, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Each shard's arena, and as much beside it that it keeps for reuse.
    arena: usize,
    /// Requests and answers of all clients.
    requests: usize,
    /// What parity, or lost data, is computed from.
    work: usize,
}

impl Division {
    /// Of `--memory-max` for so many shards, with `kept` bytes for caches; without it as it comes. `tls`:
    /// clients may come by it.
    pub fn new(max: Option<ByteSize>, shards: usize, kept: ByteSize, tls: bool) -> Result<Self, Failure> {
        let usual = RuntimeConfig::unpinned(shards).arena_bytes;
        let Some(max) = max else {
            return Ok(Self { arena: usual, requests: BUDGET_BYTES, work: BUDGET_BYTES });
        };
        let count = shards as u64;
        let connections = connections_bytes(tls);
        let fixed = kept.0.saturating_add(PROGRAM_BYTES + count * connections);
        let least = fixed.saturating_add(LEAST_BYTES);
        let Some(rest) = max.0.checked_sub(fixed).filter(|rest| *rest >= LEAST_BYTES) else {
            return Err(Failure::usage(format!(
                "--memory-max {max} is too little for {shards} shards{} and caches of {kept}: {} is needed; fewer --shards or a smaller \
                 --cache need less",
                if tls { ", with TLS," } else { "" },
                ByteSize(least)
            )));
        };
        // Blocks of one size in an arena are of no use to another one: at worst all of it is idle.
        let arena = (rest / (8 * count)).min(usual as u64) & !0xffff;
        let others = rest - 2 * arena * count;
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let requests = bytes(others / 2).min(BUDGET_BYTES);
        Ok(Self { arena: bytes(arena), requests, work: bytes(others / 2).min(BUDGET_BYTES) })
    }

    /// Has the clients' part count, before the first of them comes.
    pub fn take_effect(self) {
        BUDGET.get_or_init(|| Arc::new(Budget::new(self.requests)));
    }

    /// What parity, or lost data, may be computed from.
    pub fn work(self) -> usize {
        self.work
    }

    /// The shards' part.
    pub fn of_shards(self, config: RuntimeConfig) -> RuntimeConfig {
        RuntimeConfig { arena_bytes: self.arena, spare_bytes: self.arena, ..config }
    }
}

fn connections_bytes(tls: bool) -> u64 {
    if tls { TLS_CONNECTIONS_BYTES } else { CONNECTIONS_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_divided_is_no_more_than_there_is() {
        for (max, shards, cache, tls) in [
            (256, 1, 0, false),
            (512, 2, 64, false),
            (512, 2, 64, true),
            (1024, 4, 64, false),
            (4096, 16, 512, true),
            (65536, 8, 64, false),
        ] {
            let (all, kept) = (ByteSize(max * MIB), ByteSize(cache * MIB));
            let division = Division::new(Some(all), shards, kept, tls).unwrap();
            let of_shards = shards as u64 * (2 * division.arena as u64 + connections_bytes(tls));
            let parts = (division.requests + division.work) as u64;
            assert!(PROGRAM_BYTES + cache * MIB + of_shards + parts <= max * MIB, "{division:?}");
            assert!(division.requests <= BUDGET_BYTES && division.arena <= 64 << 20, "{division:?}");
            assert!(parts >= LEAST_BYTES * 3 / 4, "{division:?}");
        }
    }

    #[test]
    fn too_little_is_refused_with_what_is_needed() {
        let of = |mib: u64| Division::new(Some(ByteSize(mib * MIB)), 2, ByteSize(64 * MIB), false);
        let by_tls = |mib: u64| Division::new(Some(ByteSize(mib * MIB)), 2, ByteSize(64 * MIB), true);
        let refused = by_tls(351).unwrap_err().sentence().to_owned();
        assert!(refused.contains("352 MiB is needed") && refused.contains("TLS"), "{refused}");
        assert!(by_tls(352).is_ok());
        let refused = of(271).unwrap_err().sentence().to_owned();
        assert!(refused.contains("272 MiB is needed") && refused.contains("--shards"), "{refused}");
        assert!(of(272).is_ok());
        assert_eq!(Division::new(None, 2, ByteSize(0), false).unwrap().requests, BUDGET_BYTES);
    }
}
