//! Seeds on which the oracle finds each of the engine's deliberate defects.

use pinstripe_block::mutants::Mutant as ExportMutant;
use pinstripe_engine::mutants::Mutant;
use pinstripe_nvme::mutants::Mutant as NvmeMutant;
use pinstripe_runtime::mutants::Mutant as RuntimeMutant;

/// A defect, and a seed that passes without it. Where a change of the engine has made the seed another run,
/// `cargo xtask mutants` looks for one anew; `cargo xtask mutants --search 1000` prints the whole table.
pub const KILLERS: &[(Mutant, u64)] = &[
    (Mutant::RmwOutOfSync, 2_000_014),
    (Mutant::WrongCoefficient, 2),
    (Mutant::StaleParityCache, 2),
    (Mutant::BatchReversed, 0),
    (Mutant::FollowerLost, 0),
    (Mutant::CleanWithoutFlush, 12),
    (Mutant::FlushSkipped, 17),
    (Mutant::FuaOnDataOnly, 10),
    (Mutant::RecoveringNotWritten, 4),
    (Mutant::ReadErrorIgnored, 6),
    (Mutant::ResyncMarkForgotten, 2),
    (Mutant::DegradedReadWithoutClaim, 6),
    (Mutant::NeverDirty, 19),
    (Mutant::FlushSkipsMember, 0),
    (Mutant::SyncWithoutClaim, 4),
    (Mutant::RecoveringRead, 4),
    (Mutant::ZeroesLeaveParity, 12),
    (Mutant::TornParityTrusted, 2_000_198),
    (Mutant::JoinsOtherStripe, 1),
    (Mutant::ReleaseForgetsArrivals, 0),
    (Mutant::ArrivalsNotTurned, 0),
    (Mutant::LinePassed, 768),
    (Mutant::IntentSwapForgetsMarks, 51),
    (Mutant::LateJoinerNotPlanned, 0),
    (Mutant::DegradedParityNotWritten, 4),
    (Mutant::OverlaidTailLost, 0),
    (Mutant::RecoverTwoSwapped, 13),
    (Mutant::WrongExponentRecovered, 13),
    (Mutant::MarkCoversFirstRegion, 19),
    (Mutant::CommitServesLatecomers, 126),
    (Mutant::ResyncWithoutFlush, 9),
    (Mutant::UncleanNotResynced, 2),
    (Mutant::EventsStandStill, 6),
    (Mutant::BeyondRedundancyRecorded, 62),
    (Mutant::FlushTriedAgain, 2_000_025),
    (Mutant::RebuildEndsEarly, 6),
    (Mutant::ResyncIgnoresQ, 2),
    (Mutant::StripedFuaDropped, 17),
    (Mutant::TrimRoundedOutward, 3),
    (Mutant::StripesNotAwaited, 0),
    (Mutant::RowErrorIgnored, 6),
    (Mutant::SpareTakenForFormer, 6),
    (Mutant::TargetPromotedWhole, 2_000_015),
    (Mutant::LogWrongRange, 2),
    (Mutant::LogWrongCoefficient, 2),
    (Mutant::SlowMemberDropped, 2_000_009),
    (Mutant::AbsentMissReplay, 3083),
    (Mutant::WriteErrorIgnored, 2_000_226),
    (Mutant::RebuildingParityTrusted, 43),
    (Mutant::SpareCalledInSync, 21),
    (Mutant::JournalLossUnrecorded, 2_000_139),
    (Mutant::RegionPlaceWraps, 9_000_001),
    (Mutant::FirstPageOnly, 9_000_010),
    (Mutant::LogPlaceWraps, 9_000_038),
    (Mutant::BadBlockForgotten, 13_000_002),
    (Mutant::NotDrained, 2_000_497),
];

/// Defects that only a look at the crashes finds that could have happened in the run (see [`super::Depth`]).
pub const EXPLORERS: &[(Mutant, u64)] = &[
    (Mutant::ClearingIgnored, 6),
    (Mutant::RecoveryWithoutFlush, 2),
    (Mutant::GateOpenBeforeDirty, 4),
    (Mutant::UnevenNotLevelled, 28),
    (Mutant::CheckpointWithoutFlush, 7),
    (Mutant::ForcedKeepsCheckpoint, 6),
    (Mutant::LogAfterData, 1),
    (Mutant::DataBeforeIntent, 6),
    (Mutant::DirtyDegradedStarted, 4),
    (Mutant::StaleMemberAccepted, 1341),
    (Mutant::CleanWithWriters, 4),
    (Mutant::FuaOfFirstOnly, 0),
    (Mutant::AcknowledgeBeforeSuperblocks, 2_000_105),
    (Mutant::LogWithoutForcing, 2),
    (Mutant::ZeroesLeaveCache, 2),
    (Mutant::BitClearedEarly, 0),
];

/// Defects of what the engine asks of servers that compute, which lives over the network find.
pub const NET_KILLERS: &[(Mutant, u64)] = &[
    (Mutant::OffloadQForP, 4_000_001),
    (Mutant::OffloadCommitsEarly, 4_000_001),
    (Mutant::OffloadUnresolved, 4_000_005),
    (Mutant::OffloadPartsCrossed, 4_000_005),
    (Mutant::OffloadWrongCoefficient, 4_000_006),
    (Mutant::OffloadSuppliedForgotten, 4_000_002),
    (Mutant::ReadBeforeAttach, 12_000_195),
];

/// Defects of NVMe/TCP, which they find too.
pub const NVME_KILLERS: &[(NvmeMutant, u64)] = &[
    (NvmeMutant::LossCalledSuccess, 4_000_019),
    (NvmeMutant::OldHostKept, 4_000_002),
    (NvmeMutant::EarlyPeerNotAdded, 4_000_001),
    (NvmeMutant::AnsweredEarly, 4_000_002),
    (NvmeMutant::FuaDropped, 4_000_009),
    (NvmeMutant::PlainWritesUnfenced, 4_000_065),
    (NvmeMutant::FlushSkipped, 4_000_002),
    (NvmeMutant::PartsExchanged, 4_000_005),
    (NvmeMutant::OperationsOutliveController, 4_000_004),
    (NvmeMutant::WrittenBeforeCommit, 4_000_011),
];

/// Defects of the runtime, which wider lives find.
pub const RUNTIME_KILLERS: &[(RuntimeMutant, u64)] = &[(RuntimeMutant::StallCharged, 8_000_023)];

/// Defects of the exports, which are found by seeds with users over NBD.
pub const EXPORT_KILLERS: &[(ExportMutant, u64)] = &[
    (ExportMutant::ReplyBeforeWrite, 5),
    (ExportMutant::FuaDropped, 12),
    (ExportMutant::FlushOfIdleConnectionSkipped, 38),
    (ExportMutant::PayloadPiecesOverlap, 5),
    (ExportMutant::SlowZeroesDone, 13_000_000),
];
