//! Where a run is, for a terminal.

use std::sync::Arc;

/// What a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Makes the array.
    Preparing,
    /// Writes it from end to end.
    Filling,
    /// Puts the load, and counts nothing yet.
    WarmingUp,
    /// Counts; or rebuilds a member, with `--rebuild`.
    Measuring,
    /// Replays a trace: so many requests of so many are done, or under way.
    Replaying {
        /// Of these.
        done: usize,
        /// All of the trace.
        requests: usize,
    },
    /// Reads back what was written, and scrubs.
    Checking,
}

/// Is told of each phase when it begins.
pub type Tell = Arc<dyn Fn(Phase) + Send + Sync>;
