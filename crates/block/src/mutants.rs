//! Deliberate defects of front ends, to show that the tests and the simulator's oracle find them.

pinstripe_runtime::mutants! {
    /// A write is answered before it is done.
    ReplyBeforeWrite,
    /// FUA of a write is not passed on.
    FuaDropped,
    /// FUA of a trim is not passed on.
    TrimFuaDropped,
    /// FUA of a zeroing is not passed on.
    ZeroesFuaDropped,
    /// A zeroing that can't be fast is refused when it is done.
    SlowZeroesDone,
    /// A flush does nothing on a connection that has no other request under way: it covers its own connection
    /// at best.
    FlushOfIdleConnectionSkipped,
    /// The pieces in which a payload arrives are put together with an overlap.
    PayloadPiecesOverlap,
    /// A peer that takes no answers is waited for without end (C35).
    PatienceWithoutEnd,
    /// A change is begun though its client has hung up, and may have sent it again (C16).
    RequestsOfTheGoneBegun,
    /// What answers take in memory is given back before they are sent (C35).
    AnswersUncounted,
}

impl Mutant {
    /// Those that tests of the sessions find (`tests/nbd`), rather than lives of arrays in the simulator.
    pub const OF_SESSIONS: &[Self] =
        &[Self::PatienceWithoutEnd, Self::AnswersUncounted, Self::RequestsOfTheGoneBegun];
}
