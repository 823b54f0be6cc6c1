//! Seeds on which the oracle finds each of the engine's deliberate defects.

use pinstripe_engine::mutants::Mutant;

/// A defect, and a seed that passes without it. Where a change of the engine has made the seed another run, `cargo xtask
/// mutants` looks for one anew; `cargo xtask mutants --search 1000` prints the whole table.
pub const KILLERS: &[(Mutant, u64)] = &[
    (Mutant::RmwOutOfSync, 20),
    (Mutant::WrongCoefficient, 2),
    (Mutant::StaleParityCache, 0),
    (Mutant::AcknowledgeBeforeSuperblocks, 233),
    (Mutant::BatchReversed, 0),
    (Mutant::FollowerLost, 0),
    (Mutant::DataBeforeIntent, 62),
    (Mutant::BitClearedEarly, 9),
    (Mutant::CleanWithoutFlush, 10),
    (Mutant::FlushSkipped, 4),
    (Mutant::FuaOnDataOnly, 151),
    (Mutant::WriteErrorIgnored, 19),
    (Mutant::RecoveryWithoutFlush, 263),
    (Mutant::RecoveringNotWritten, 4),
    (Mutant::ReadErrorIgnored, 6),
    (Mutant::ResyncMarkForgotten, 2),
    (Mutant::DegradedReadWithoutClaim, 4),
    (Mutant::NeverDirty, 9),
    (Mutant::DirtyDegradedStarted, 4),
    (Mutant::StaleMemberAccepted, 50),
    (Mutant::FlushSkipsMember, 0),
    (Mutant::SyncWithoutClaim, 13),
    (Mutant::RecoveringRead, 4),
    (Mutant::CleanWithWriters, 125),
    (Mutant::ZeroesLeaveParity, 7),
    (Mutant::TornParityTrusted, 18),
];
