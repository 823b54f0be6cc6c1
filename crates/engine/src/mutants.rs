//! Deliberate defects, to show that the simulator's oracle finds them. Compiled only with the feature `mutants`, which no
//! product build has; without it every question is `false` at compile time.

macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A rule that is broken on purpose.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant {
            $($(#[$doc])* $name,)*
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

mutants! {
    /// Read-modify-write on a row that isn't in sync (C10).
    RmwOutOfSync,
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
    /// The superblocks are marked clean while somebody writes.
    CleanWithWriters,
    /// Zeroing a stripe leaves its parity as it was (C6).
    ZeroesLeaveParity,
    /// Parity of rows that a crash may have torn stands in for data (C10).
    TornParityTrusted,
    /// The journal's tail is moved before the members are flushed (C4).
    TailBeforeFlush,
    /// The journal is written after the members.
    JournalAfterMembers,
    /// The journal gets the data, but not the parity.
    JournalWithoutParity,
    /// The journal's replay leaves out the last meta block.
    ReplayStopsEarly,
    /// The journal's replay believes pages whose checksum doesn't match.
    JournalChecksumIgnored,
    /// Data and parity are written before the log is durable.
    LogAfterData,
    /// A log's record follows another whose writes are still under way (C4).
    LogRecordForgotten,
    /// What a log forgets is still in the members' caches (C4).
    LogWithoutForcing,
    /// A log's entry names other rows than those that are written.
    LogWrongRange,
    /// The double-parity log's part for Q takes no heed of coefficients.
    LogWrongCoefficient,
    /// Replay leaves out the last entry of a record.
    ReplaySkipsEntry,
    /// A repair leaves parity in the cache as it was before (C13).
    RepairLeavesCache,
    /// One differing byte is enough to call a chunk wrong, whatever the others say.
    LocateGuesses,
    /// A chunk that was made from the others is taken for read when a wrong one is located.
    LocateDegraded,
    /// After a read error the whole chunk is made from the others, what could be read of it too.
    HealsWholeChunk,
    /// A repair is reported before the members were flushed (C4).
    RepairWithoutFlush,
}

impl Mutant {
    /// Those that the engine's exhaustive test of the write hole finds, rather than the swarm.
    pub const OF_LOGS: &[Self] = &[
        Self::LogAfterData,
        Self::LogRecordForgotten,
        Self::LogWithoutForcing,
        Self::LogWrongRange,
        Self::LogWrongCoefficient,
        Self::ReplaySkipsEntry,
    ];
}

#[cfg(feature = "mutants")]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Turns one defect on for this thread, or all off.
#[cfg(feature = "mutants")]
pub fn activate(mutant: Option<Mutant>) {
    ACTIVE.with(|active| active.set(mutant));
}

/// Whether a defect is turned on.
#[cfg(feature = "mutants")]
pub(crate) fn active(mutant: Mutant) -> bool {
    ACTIVE.with(|active| active.get() == Some(mutant))
}

/// Never, in a product build.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
#[expect(clippy::inline_always, reason = "the question must vanish from the hot path")]
pub(crate) const fn active(_: Mutant) -> bool {
    false
}
