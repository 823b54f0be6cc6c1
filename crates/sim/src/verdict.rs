//! What the oracle may find wrong with a run or a scene.

use crate::{Violation, checks::Damage, world::Stuck};

/// What the oracle says.
#[derive(Debug, thiserror::Error)]
pub enum Verdict {
    /// A user read what was never there, or no longer or not yet.
    #[error("wrong value: {0}")]
    Value(Box<Violation>),
    /// Bytes on the members are wrong.
    #[error("on the members: {0}")]
    Damage(#[from] Damage),
    /// Something was left over.
    #[error("leak: {0}")]
    Leak(String),
    /// The engine's own scrub counts what it should not.
    #[error("scrub: {0}")]
    Scrub(String),
    /// A request failed that had to succeed.
    #[error("refused: {0}")]
    Refused(String),
    /// A scene did not go as it must.
    #[error("scene: {0}")]
    Scene(String),
    /// A member was dropped that had done nothing wrong.
    #[error("dropped: {0}")]
    Dropped(String),
    /// Nothing is wrong, but what is left to be done would take too long.
    #[error("abandoned")]
    Abandoned,
    /// The world came to a halt.
    #[error("stuck: {0}")]
    Stuck(#[from] Stuck),
    /// A crash that did not happen, but could have, would have left this.
    #[error("after a crash that could have come at step {step}: {verdict}")]
    AfterCrash {
        /// When.
        step: u64,
        /// What.
        verdict: Box<Verdict>,
    },
    /// The same seed went another way.
    #[error("the second run of the seed has trace {second:016x} instead of {first:016x}")]
    TraceDiffers {
        /// Hash of the first run.
        first: u64,
        /// Hash of the second.
        second: u64,
    },
}

impl Verdict {
    /// Whether the oracle has seen wrong bytes, a leak, or a request that never ends, rather than an engine
    /// that gave up.
    pub fn is_wrong(&self) -> bool {
        match self {
            Self::Value(_)
            | Self::Damage(_)
            | Self::Leak(_)
            | Self::Scrub(_)
            | Self::Scene(_)
            | Self::Dropped(_)
            | Self::Stuck(_) => true,
            Self::AfterCrash { verdict, .. } => verdict.is_wrong(),
            Self::Refused(_) | Self::Abandoned | Self::TraceDiffers { .. } => false,
        }
    }

    /// The kind in a word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Value(_) => "value",
            Self::Damage(_) => "damage",
            Self::Leak(_) => "leak",
            Self::Scrub(_) => "scrub",
            Self::Refused(_) => "refused",
            Self::Scene(_) => "scene",
            Self::Dropped(_) => "dropped",
            Self::Abandoned => "abandoned",
            Self::Stuck(_) => "stuck",
            Self::AfterCrash { .. } => "after a crash",
            Self::TraceDiffers { .. } => "trace",
        }
    }
}
