//! Seeds on which the oracle finds each of the engine's deliberate defects.

use pinstripe_engine::mutants::Mutant;

/// A defect, and a seed that passes without it. `cargo xtask mutants --search 2000` prints it anew.
pub const KILLERS: &[(Mutant, u64)] = &[
    (Mutant::RmwOutOfSync, 20),
    (Mutant::WrongCoefficient, 2),
    (Mutant::StaleParityCache, 0),
    (Mutant::AcknowledgeBeforeSuperblocks, 209),
    (Mutant::BatchReversed, 0),
    (Mutant::FollowerLost, 0),
    (Mutant::DataBeforeIntent, 185),
    (Mutant::BitClearedEarly, 9),
    (Mutant::CleanWithoutFlush, 22),
    (Mutant::FlushSkipped, 9),
    (Mutant::FuaOnDataOnly, 70),
    (Mutant::WriteErrorIgnored, 130),
    (Mutant::RecoveryWithoutFlush, 263),
    (Mutant::RecoveringNotWritten, 4),
    (Mutant::ReadErrorIgnored, 6),
    (Mutant::ResyncMarkForgotten, 2),
    (Mutant::DegradedReadWithoutClaim, 4),
    (Mutant::NeverDirty, 9),
    (Mutant::DirtyDegradedStarted, 21),
    (Mutant::StaleMemberAccepted, 62),
    (Mutant::FlushSkipsMember, 0),
    (Mutant::SyncWithoutClaim, 7),
    (Mutant::RecoveringRead, 4),
    (Mutant::CleanWithWriters, 241),
    (Mutant::ZeroesLeaveParity, 7),
    (Mutant::TornParityTrusted, 18),
];
