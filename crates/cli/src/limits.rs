//! Limits of the system that a server runs into, and what to raise.

use pinstripe_control::size::ByteSize;
use pinstripe_runtime::uring::RuntimeConfig;
use rustix::process::{Resource, getrlimit, setrlimit};

/// The bit of the capability with which a process may lock any amount of memory.
const CAP_IPC_LOCK: u32 = 14;

/// Has the process open as many files as it may at all: a shell's usual 1024 are fewer than a server's
/// connections.
pub fn open_all_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // It is no more than was allowed already.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// A warning if less memory may be locked than the shards' requests use at most.
pub fn locked_memory_warning(config: &RuntimeConfig) -> Option<String> {
    let wanted = config.arena_bytes.saturating_mul(config.shards);
    let allowed = if may_lock_all() { None } else { getrlimit(Resource::Memlock).current };
    warning(u64::try_from(wanted).unwrap_or(u64::MAX), allowed)
}

fn warning(wanted: u64, allowed: Option<u64>) -> Option<String> {
    let allowed = allowed.filter(|allowed| *allowed < wanted)?;
    Some(format!(
        "only {} of memory may be locked (RLIMIT_MEMLOCK), and requests use up to {}: without it each costs more CPU; raise it with \
         `ulimit -l`, or LimitMEMLOCK of a systemd unit",
        ByteSize(allowed),
        ByteSize(wanted)
    ))
}

fn may_lock_all() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
        .is_some_and(|all| all & 1 << CAP_IPC_LOCK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_too_low_is_reported_with_the_setting_to_raise() {
        assert_eq!(warning(128 << 20, None), None);
        assert_eq!(warning(128 << 20, Some(128 << 20)), None);
        let said = warning(128 << 20, Some(8 << 20)).unwrap();
        assert!(
            said.contains("8 MiB") && said.contains("128 MiB") && said.contains("LimitMEMLOCK"),
            "{said}"
        );
    }
}
