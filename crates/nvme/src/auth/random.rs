//! Where random bytes come from: the seam by which the simulator stays deterministic.

/// There are none; nothing may be decided by other bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bytes")]
pub struct NoRandom;

/// A source of bytes that no attacker can guess.
pub trait Random: Send + Sync {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]) -> Result<(), NoRandom>;
}

/// The system's.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), NoRandom> {
        getrandom::fill(bytes).map_err(|_| NoRandom)
    }
}
