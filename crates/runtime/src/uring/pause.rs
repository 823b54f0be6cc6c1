//! How the loop of a shard goes on after a turn: it works, polls, or sleeps. Pure, so that a test can look at
//! each case.
//!
//! A shard sleeps on its main ring. Polled requests wake nothing, so while they are under way the loop comes
//! round and looks; everything else that can happen (mail, timers, the main ring's completions) is looked at
//! on the way, and no sleep is announced, so other shards needn't wake this one.
//!
//! When polled requests have not answered for long, such as a flush of a large cache or a device that hangs,
//! looks are rare and the shard sleeps on its main ring between them: that is announced, so that mail still
//! wakes it at once.

/// How long polled requests may be quiet before looks get rare.
pub(super) const QUIET_NS: u64 = 2_000_000;
/// How long a shard sleeps between two rare looks.
pub(super) const DOZE_NS: u64 = 200_000;

/// What a shard's loop does between two turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// There is work: submit and go on.
    Work,
    /// Nothing but polled requests: go on at once, for the next turn looks at them.
    Poll,
    /// They are quiet: sleep, at most for [`DOZE_NS`].
    Doze,
    /// Nothing to look at: sleep until something happens.
    Sleep,
}

/// `quiet_ns` is the time since the polled ring last got or completed a request.
pub(super) fn pause(tasks_ready: bool, polled_under_way: bool, quiet_ns: u64) -> Pause {
    match (tasks_ready, polled_under_way) {
        (true, _) => Pause::Work,
        (false, true) if quiet_ns < QUIET_NS => Pause::Poll,
        (false, true) => Pause::Doze,
        (false, false) => Pause::Sleep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_polls_only_while_polled_requests_are_under_way_and_answer() {
        assert_eq!(pause(false, false, 0), Pause::Sleep);
        assert_eq!(pause(false, false, u64::MAX), Pause::Sleep);
        assert_eq!(pause(false, true, 0), Pause::Poll);
        assert_eq!(pause(false, true, QUIET_NS - 1), Pause::Poll);
        assert_eq!(pause(false, true, QUIET_NS), Pause::Doze);
        for (polled, quiet_ns) in [(false, 0), (true, 0), (true, u64::MAX)] {
            assert_eq!(pause(true, polled, quiet_ns), Pause::Work, "tasks never wait for a sleep");
        }
    }
}
