//! Deliberate defects, to show that the simulator's oracle finds them.

pinstripe_runtime::mutants! {
    /// Read-modify-write on a row that isn't in sync (C10).
    RmwOutOfSync,
    /// A change in place on a row that isn't in sync (C10).
    InPlaceOutOfSync,
    /// A change in place is made though a member is missing, recovering or being replaced, or has a log.
    InPlaceUnasked,
    /// Q updated with the coefficient of the next column.
    WrongCoefficient,
    /// The parity cache keeps what a write has made old (C13).
    StaleParityCache,
    /// A degraded write is acknowledged before the superblocks know (C2).
    AcknowledgeBeforeSuperblocks,
    /// The batch is laid over in reverse order of arrival (C11).
    BatchReversed,
    /// A write that joins is acknowledged, but not written.
    FollowerLost,
    /// Data is written before its intent bit is durable (C7).
    DataBeforeIntent,
    /// Bits are cleared without the second sweep and without a flush (C4).
    BitClearedEarly,
    /// The superblocks are marked clean without a flush (C4).
    CleanWithoutFlush,
    /// A flush request is answered without flushing the members (C5).
    FlushSkipped,
    /// FUA reaches the data but not the parity (C5).
    FuaOnDataOnly,
    /// A failed write is not taken as the member's failure.
    WriteErrorIgnored,
    /// Recovery marks its target whole without flushing it (C4).
    RecoveryWithoutFlush,
    /// A recovering member is left out of writes (C1).
    RecoveringNotWritten,
    /// A read error is answered with what the failed read left in the buffer.
    ReadErrorIgnored,
    /// The region's resync mark is dropped before the resync has run (C8).
    ResyncMarkForgotten,
    /// Degraded reads don't claim the stripe.
    DegradedReadWithoutClaim,
    /// The superblocks stay clean while data is written.
    NeverDirty,
    /// A dirty and degraded array is started (C19).
    DirtyDegradedStarted,
    /// A member that the others call faulty is taken back because it calls itself current.
    StaleMemberAccepted,
    /// A flush leaves out the first member (C4, C5).
    FlushSkipsMember,
    /// Resync and rebuild don't claim the stripe.
    SyncWithoutClaim,
    /// A member that is being rebuilt is read from.
    RecoveringRead,
    /// The superblocks are marked clean while writes are under way.
    CleanWithWriters,
    /// The superblocks are marked clean although a writer that has just left has reported that a member lacks
    /// its write (C2).
    CleanPastReports,
    /// Zeroing a stripe leaves its parity as it was (C6).
    ZeroesLeaveParity,
    /// Parity of rows that a crash may have torn stands in for data (C10).
    TornParityTrusted,
    /// A write of another stripe that shares the slot joins the batch.
    JoinsOtherStripe,
    /// The slot is freed although a waiter has just arrived (C12).
    ReleaseForgetsArrivals,
    /// Arrivals are served in the order of the stack, the latest first (C11).
    ArrivalsNotTurned,
    /// A claim that waits for a node doesn't see that its slot is free, and later ones take that (C11).
    LinePassed,
    /// A new membership doesn't wait for writers under the old one (C1).
    NotDrained,
    /// Writers are let in before the superblocks say dirty.
    GateOpenBeforeDirty,
    /// A new bitmap doesn't take over which regions need a resync (C8).
    IntentSwapForgetsMarks,
    /// Read repair rewrites after the claim under which it reconstructed (C14).
    RepairOutsideClaim,
    /// What joins at the freeze isn't planned: acknowledged, but not written.
    LateJoinerNotPlanned,
    /// A write to a missing member leaves parity as it was.
    DegradedParityNotWritten,
    /// Of a batch only the first write's FUA counts (C5).
    FuaOfFirstOnly,
    /// A write that is laid over the middle of another cuts its tail off (C11).
    OverlaidTailLost,
    /// Parity of a member that is being rebuilt is used (C1).
    RebuildingParityTrusted,
    /// Two lost columns are recovered into each other's place.
    RecoverTwoSwapped,
    /// A lost column is recovered from Q with the exponent of another.
    WrongExponentRecovered,
    /// Cached parity outlives a change of the membership (C13).
    CacheIgnoresGeneration,
    /// Zeroing a stripe leaves its parity in the cache (C13).
    ZeroesLeaveCache,
    /// A mark covers only the first region that the rows touch (C7).
    MarkCoversFirstRegion,
    /// A group commit answers requests that came after its snapshot (C7).
    CommitServesLatecomers,
    /// A group commit answers although no member has taken the bits (C7).
    BitOnNoMember,
    /// A writer goes on although its region's bit is being cleared (C7).
    ClearingIgnored,
    /// The sweeper clears bits without flushing the members (C4).
    SweepWithoutFlush,
    /// Resync says that parity matches before it was flushed (C4).
    ResyncWithoutFlush,
    /// An unclean start doesn't resync the dirty regions.
    UncleanNotResynced,
    /// Superblock updates don't count events.
    EventsStandStill,
    /// The failure past redundancy is written down (C3).
    BeyondRedundancyRecorded,
    /// A flush is answered before the member that failed it is out (C2).
    FailedFlushNotAwaited,
    /// A failed flush is tried again and then believed (C5).
    FlushTriedAgain,
    /// A flush is believed although another one has failed meanwhile, or before (C5).
    FailedFlushForgotten,
    /// The error of a forced write that is made of a write and a flush is taken for that of the write (C5).
    FailedForceForgotten,
    /// A forced write is believed although a flush has lost what was in the cache (C5).
    ForcedPastLoss,
    /// A command takes a member out that the array can't do without (C31).
    NeededTakenOut,
    /// A command takes the journal out while a member is missing (C31).
    NeededJournalTakenOut,
    /// What waits behind a stop is left without an answer.
    StopForgetsCommands,
    /// A recovery's progress is recorded without a flush (C4).
    CheckpointWithoutFlush,
    /// A spare's superblock says from the start that it has everything.
    SpareCalledInSync,
    /// A forced start believes how far a recovery had come.
    ForcedKeepsCheckpoint,
    /// A member that was absent at the start isn't called faulty (C2).
    AbsentNotDisowned,
    /// Members that a torn update left behind are left one more event behind.
    UnevenNotLevelled,
    /// A change of a stripe is not looked at again between its intent and its first write (C27).
    LookLeftOut,
    /// A recovery reads the intent bits while writers of the membership before are still under way (C27).
    BitsReadUndrained,
    /// Both: each alone is enough to keep the bytes right (C27).
    EarlierMembershipTrusted,
    /// A rebuild leaves out the last stripe.
    RebuildEndsEarly,
    /// Resync and check look at P only.
    ResyncIgnoresQ,
    /// Level 0 forgets FUA (C5).
    StripedFuaDropped,
    /// A stripe is zeroed before its intent bit is durable (C7).
    ZeroesBeforeIntent,
    /// A trim takes the stripes that it touches, not only those that it covers (C6).
    TrimRoundedOutward,
    /// A write over several stripes is answered before all of them are written.
    StripesNotAwaited,
    /// Reconstruction uses what a failed read left in the buffer.
    RowErrorIgnored,
    /// A flush that fails after a part of a resync or a rebuild is forgotten (C5).
    WalkForgetsFailedFlush,
    /// A partial parity log counts although not every member names it: a crash came in the middle of its
    /// coming or going.
    TornLogBelieved,
    /// What assembly has read isn't made durable before anything is built on it.
    AssembledUnflushed,
    /// An array is started while writes of a process that has died may still come (C16).
    AssembledTooEarly,
    /// The journal is replayed and emptied before the superblocks say which members are missing (C2).
    AbsentMissReplay,
    /// The journal's tail is moved before the members are flushed (C4).
    TailBeforeFlush,
    /// The journal is written after the members.
    JournalAfterMembers,
    /// The journal gets the data, but not the parity.
    JournalWithoutParity,
    /// The journal's replay leaves out the last meta block.
    ReplayStopsEarly,
    /// The journal's replay believes pages with a wrong checksum.
    JournalChecksumIgnored,
    /// Writes go on without the journal when it has failed, and the superblocks say nothing of it (C18).
    JournalLossIgnored,
    /// A write is acknowledged from the cache of a write-back journal before it is in the log.
    AcknowledgedFromMemory,
    /// A write that goes to the members leaves what is cached of its rows behind: its parity doesn't cover
    /// that.
    CachedLeftBehind,
    /// Readers don't look at what is cached.
    CacheNotRead,
    /// The log is given up although it has pages that the members lack (C4).
    TailPassesCached,
    /// A repair says nothing to the journal, which brings the wrong parity back.
    RepairPastJournal,
    /// Data and parity are written before the log is durable.
    LogAfterData,
    /// A log on the members is taken up while parity doesn't match everywhere yet (C17).
    LogBeforeSync,
    /// A device with larger blocks than the array's joins (C20).
    LargerBlocksJoin,
    /// A log's record follows another while writes of that one are still under way (C4).
    LogRecordForgotten,
    /// What a log forgets is still in the members' caches (C4).
    LogWithoutForcing,
    /// A log's entry names other rows than those that are written.
    LogWrongRange,
    /// The double-parity log's part for Q takes no heed of coefficients.
    LogWrongCoefficient,
    /// Replay leaves out the last entry of a record.
    ReplaySkipsEntry,
    /// A log begins while what was written without it may still be lost (C4).
    LogBeginsUnflushed,
    /// A log forgets a batch before it is recorded that a member missed it (C2).
    LogForgetsFailure,
    /// With a log, a row is written without a member that the superblocks still call current (C2).
    LogBeforeRecord,
    /// The target of a replacement is left out of writes (C1).
    ReplacementNotWritten,
    /// The target of a replacement is read before it is whole (C1).
    ReplacementRead,
    /// A device that was alone in an update is taken back although the others have gone on without it.
    RevenantAccepted,
    /// What a slot's member logs is not logged by the target of its replacement.
    ReplacementNotLogged,
    /// A replacement is switched in without a flush (C4).
    ReplacementWithoutFlush,
    /// After a crash the target of a replacement keeps what its member may have got and it not.
    ReplacementTrusted,
    /// A re-add leaves out the first region that was dirtied.
    ReaddSkipsRegion,
    /// A member is re-added by bitmap although bits were cleared since it went (C9).
    ReaddIgnoresEvents,
    /// A member that was served apart comes back by bitmap with what it wrote then.
    ReaddForgetsOwnBits,
    /// A member comes back by bitmap although bits were cleared on it where it was served apart (C9).
    ReaddIgnoresOwnClearing,
    /// A repair leaves parity in the cache as it was before (C13).
    RepairLeavesCache,
    /// One differing byte is enough to call a chunk wrong, whatever the others say.
    LocateGuesses,
    /// A chunk that was made from the others is taken for read when a wrong one is located.
    LocateDegraded,
    /// After a read error the whole chunk is made from the others, what could be read of it too.
    HealsWholeChunk,
    /// A repair doesn't force what it corrects to the medium (C4).
    RepairNotForced,
    /// A write that a member did not answer in time is acknowledged before the superblocks know (C2, C16).
    TimeOutAcknowledged,
    /// A member that was given up is asked again while it still has requests under way (C16).
    LateMemberAsked,
    /// A device may join although it still has requests of an earlier membership under way (C16).
    LateMemberAdded,
    /// A start that fails leaves its host attached at the members' servers.
    FailedStartStaysAttached,
    /// A device that holds no slot is written to without an end to the wait.
    SpareUnsupervised,
    /// A member that doesn't answer counts as one that does, when another is about to lose its place (C31).
    SilentMemberCounted,
    /// A member is kept however many of its reads had to be corrected.
    CorrectedReadsUnlimited,
    /// A bad block is heeded, but not written down.
    BadBlockForgotten,
    /// A bad block is taken off the list before what was written there is durable (C4).
    BadBlockFreedEarly,
    /// A bad block is freed although another flush has lost what was written there (C33).
    BadBlockFreedPastLoss,
    /// A stop deals with what writers report only when the last one has left.
    StopSettlesLate,
    /// What waits for a bad block to be listed is not told that it is.
    BadSettledSilently,
    /// While maintenance is held up, each request for a turn prolongs that.
    PaceNeverLetsGo,
    /// The bitmap's header does not say when bits could be cleared last (C9).
    ClearingNotCounted,
    /// When a replacement takes the slot, its former member is not called faulty.
    FormerNotFaulty,
    /// A spare that takes over is rebuilt only where bits are set.
    SpareTakenForFormer,
    /// When a member goes that is being replaced, what was copied of it passes for whole.
    TargetPromotedWhole,
    /// A member that was not whole when it went comes back by bitmap.
    HalfRecoveredReadded,
    /// A check or repair that made room for a rebuild forgets the stripes that it had begun.
    UndoneForgotten,
    /// A clean stop records stripes of a rebuild or resync as done that were just under way.
    PlaceIgnoresBegun,
    /// What can't be read of a log is taken for empty.
    UnreadableLogEmpty,
    /// A sector that can't be read keeps a log's replay from its whole page.
    ReplayByPages,
    /// The double-parity log is called by the superblocks' events only, which a crash may have left where
    /// they were.
    IncarnationFromEvents,
    /// A spare is removed although it has taken a slot since it was looked up.
    SeatedSpareRemoved,
    /// A member that is slow is dropped like one that doesn't answer.
    SlowMemberDropped,
    /// A request over several stripes is answered by whichever of them came last (C32).
    LastStripeAnswers,
    /// Writes that joined a batch are told that it succeeded, whatever became of it (C32).
    JoinersToldAll,
    /// Assembly goes by the first member's bitmap (C8).
    FirstBitmapBelieved,
    /// A member's bitmap that is damaged passes for one without a set bit (C8).
    DamagedBitmapEmpty,
    /// A bit that not all members' bitmaps have is set in memory only (C8).
    BitmapsLeftUnlike,
    /// When a member has everything again, bits are cleared before the superblocks say so (C9).
    BitsClearedBeforeRecorded,
    /// A sweep goes on though the superblocks don't say yet that every member is whole (C9).
    SweepBeforeRecorded,
    /// A member that the array can't do without is given up at the same limit as any other (C29).
    LastStrawDropped,
    /// That a member is lost is known when all requests that went out with the failed one are over (C29,
    /// C31).
    LossToldLate,
    /// The superblocks don't say that the journal is lost (C18).
    JournalLossUnrecorded,
    /// Servers are told to commit before all of them have done their part.
    OffloadCommitsEarly,
    /// A part of P is multiplied like one of Q.
    OffloadQForP,
    /// Parity stays in the cache although a server has written it anew (C13).
    OffloadKeepsParity,
    /// An operation that failed is left to the servers when the client takes another way.
    OffloadUnresolved,
    /// A server that did not carry out a commit is kept (C2).
    OffloadCommitErrorIgnored,
    /// Servers change parity of an array with a log, which must know the old bytes.
    OffloadPastLog,
    /// What is written to a missing member is not sent to the parity servers.
    OffloadSuppliedForgotten,
    /// Lost bytes are summed up with coefficients that are twice as large.
    OffloadWrongCoefficient,
    /// Assembly believes what it has read before the members' servers knew of it, while another host wrote
    /// (C23).
    ReadBeforeAttach,
    /// Where Q stands behind P, each gets the other's part.
    OffloadPartsCrossed,
    /// In an array that has failed, parity of rows that were being written stands in for a lost member's data
    /// (C10).
    FailedRowsTrusted,
    /// A host doesn't ask whether its array was taken over meanwhile (C28).
    TakeoverUnnoticed,
    /// Members are attached in the order in which they were given, which two hosts may not share (C23).
    AttachedAsGiven,
    /// A sector that is listed as bad makes the whole chunk one that can't be read (C10).
    ListedTakesChunk,
    /// A journal is given up, and what it had made durable stays in the members' caches (C4).
    JournalLeftUnflushed,
    /// Of a write that a medium has refused everything is listed as bad, and not the blocks alone that it
    /// refuses (C10).
    ListedByTransfer,
    /// One sector that the replaced member can't read has its whole chunk made from the others (C10).
    ReplacedByChunk,
    /// One sector that a write can't read has the whole chunk of its member made from the others (C10).
    AvoidedByChunk,
    /// What the target of a replacement refuses is listed, as of a member, and the replaced member goes.
    TargetListed,
    /// Where rows may be torn, a write is acknowledged that no member has, and that parity stands for (C10).
    TornRowsPromised,
    /// What is written where rows may be torn stays in members' caches (C10).
    TornRowsUnforced,
    /// Only the first page of a bitmap is written (C7).
    FirstPageOnly,
    /// Where a region lies that a rebuild needs is counted in 32 bits.
    RegionPlaceWraps,
    /// Where the data lies that a partial parity log protects is counted in 32 bits of bytes.
    LogPlaceWraps,
}

impl Mutant {
    /// Those that the engine's directed scenes of failures find (`tests/engine/fault_mutants.rs`), rather
    /// than the swarm.
    pub const OF_FAULTS: &[Self] = &[
        Self::FailedFlushForgotten,
        Self::FailedForceForgotten,
        Self::ForcedPastLoss,
        Self::TimeOutAcknowledged,
        Self::LateMemberAsked,
        Self::LateMemberAdded,
        Self::SpareUnsupervised,
        Self::SilentMemberCounted,
        Self::CorrectedReadsUnlimited,
        Self::BadBlockForgotten,
        Self::BadBlockFreedEarly,
        Self::BadBlockFreedPastLoss,
        Self::LogBeforeSync,
        Self::LargerBlocksJoin,
        Self::FailedRowsTrusted,
        Self::ListedTakesChunk,
        Self::ListedByTransfer,
        Self::TargetListed,
        Self::ReplacedByChunk,
        Self::AvoidedByChunk,
        Self::TornRowsPromised,
        Self::TornRowsUnforced,
        Self::LastStrawDropped,
        Self::LossToldLate,
        Self::FailedFlushNotAwaited,
        Self::LastStripeAnswers,
        Self::JoinersToldAll,
        Self::FirstBitmapBelieved,
        Self::DamagedBitmapEmpty,
        Self::BitmapsLeftUnlike,
        Self::BitOnNoMember,
    ];

    /// Those that the engine's crashes of arrays with a journal find (`tests/engine/journal_crash.rs`),
    /// rather than the swarm.
    pub const OF_JOURNAL: &[Self] = &[
        Self::TailBeforeFlush,
        Self::JournalAfterMembers,
        Self::JournalWithoutParity,
        Self::ReplayStopsEarly,
        Self::JournalChecksumIgnored,
        Self::JournalLossIgnored,
        Self::RepairPastJournal,
        Self::AcknowledgedFromMemory,
        Self::CachedLeftBehind,
        Self::CacheNotRead,
        Self::TailPassesCached,
        Self::JournalLeftUnflushed,
    ];

    /// Those that the engine's exhaustive test of the write hole finds (`tests/write_hole`) and its crashes
    /// of arrays with a log (`tests/engine/log_crashes.rs`), rather than the swarm.
    pub const OF_LOGS: &[Self] = &[
        Self::LogRecordForgotten,
        Self::ReplaySkipsEntry,
        Self::LogBeginsUnflushed,
        Self::LogForgetsFailure,
        Self::LogBeforeRecord,
        Self::UnreadableLogEmpty,
        Self::ReplayByPages,
        Self::IncarnationFromEvents,
        Self::TornLogBelieved,
    ];

    /// Those that the engine's tests of membership, of checkpoints and of the way to the members find
    /// (`tests/engine/membership.rs`, `tests/engine/checkpoints.rs`, `tests/engine/races.rs`).
    pub const OF_LIFE: &[Self] = &[
        Self::PlaceIgnoresBegun,
        Self::SeatedSpareRemoved,
        Self::ReaddForgetsOwnBits,
        Self::ReaddIgnoresOwnClearing,
        Self::SweepBeforeRecorded,
        Self::LookLeftOut,
        Self::EarlierMembershipTrusted,
        Self::BitsReadUndrained,
        Self::NeededTakenOut,
        Self::NeededJournalTakenOut,
        Self::StopForgetsCommands,
        Self::AssembledUnflushed,
        Self::AssembledTooEarly,
        Self::CleanPastReports,
        Self::BadSettledSilently,
        Self::StopSettlesLate,
    ];

    /// Those that the engine's tests of members in memory find (`tests/engine/in_place.rs`): the swarm's are
    /// disks.
    pub const OF_PLACE: &[Self] = &[Self::InPlaceOutOfSync, Self::InPlaceUnasked];

    /// Those that the engine's scenes with servers that compute find (`tests/engine/offload_mutants.rs`),
    /// rather than the swarm.
    pub const OF_OFFLOAD: &[Self] = &[
        Self::OffloadCommitsEarly,
        Self::OffloadQForP,
        Self::OffloadKeepsParity,
        Self::OffloadUnresolved,
        Self::OffloadCommitErrorIgnored,
        Self::OffloadPastLog,
        Self::OffloadSuppliedForgotten,
        Self::OffloadWrongCoefficient,
        Self::TakeoverUnnoticed,
        Self::AttachedAsGiven,
        Self::FailedStartStaysAttached,
    ];

    /// Those that lives over the network find (`pinstripe-sim`).
    pub const OF_NETWORK: &[Self] = &[Self::ReadBeforeAttach, Self::OffloadPartsCrossed];

    /// Those that the engine's crashes of replacements find (`tests/engine/replacement.rs`), rather than the
    /// swarm.
    pub const OF_REPLACEMENT: &[Self] = &[Self::ReplacementNotLogged, Self::RevenantAccepted];
}

/// A number, with the defect only its lower half.
pub(crate) fn in_32_bits(mutant: Mutant, number: u64) -> u64 {
    number & if active(mutant) { u32::MAX.into() } else { u64::MAX }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn read(folder: &Path, text: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, text);
            } else {
                text.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }

    /// The swarm leaves these out, so it can't tell when no test tries one.
    #[test]
    fn the_directed_tests_try_every_defect_that_is_theirs() {
        let mut tests = String::new();
        read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"), &mut tests);
        let lists = [
            Mutant::OF_FAULTS,
            Mutant::OF_JOURNAL,
            Mutant::OF_LOGS,
            Mutant::OF_LIFE,
            Mutant::OF_OFFLOAD,
            Mutant::OF_PLACE,
            Mutant::OF_REPLACEMENT,
        ];
        for mutant in lists.concat() {
            assert!(tests.contains(&format!("Mutant::{mutant:?}")), "no test tries {mutant:?}");
        }
    }
}
