//! Deliberate defects, to show that the sessions in the simulator find them (`tests/simulated`).

pinstripe_runtime::mutants! {
    /// Commands in flight on a connection that was lost are said to have succeeded (C25).
    LossCalledSuccess,
    /// Commands that wait to be sent when the association ends are never answered (C25).
    WaitingForgotten,
    /// A command that takes too long is given up alone, and its identifier used again: the late answer of the
    /// old one is believed (C25).
    IdentifierReused,
    /// After a loss the server is used again at once, while it may still carry out old commands (C16).
    ReturnsTooEarly,
    /// Every server is taken to count the keep-alive time to the moment (C16).
    OneLookAssumed,
    /// Every server is taken to count in milliseconds (C16).
    GranularityIgnored,
    /// A controller with a silent host lives on, and so do its old commands (C16).
    SilenceIgnored,
    /// After the target stood still, commands of hosts that have been silent for too long are carried out.
    StaleCarriedOut,
    /// A new association doesn't wait for the old one's commands (C16).
    DrainSkipped,
    /// The I/O queues of a controller outlive it.
    QueuesOutliveController,
    /// A discard goes on to its end, however long it is, when its host has gone.
    DiscardUncut,
    /// A header is believed whatever its digest.
    HeaderDigestIgnored,
    /// Data is believed whatever its digest.
    DataDigestIgnored,
    /// Whatever part of the data the server asks for, it gets the first one.
    ReadyOffsetIgnored,
    /// All parts of a read's data are put to its beginning.
    DataOffsetIgnored,
    /// A write is answered before it is carried out.
    AnsweredEarly,
    /// The initiator forgets FUA (C5).
    FuaDropped,
    /// The target answers a flush without one (C5).
    FlushSkipped,
    /// A part that comes twice is added twice (C26).
    PeerNotDeduplicated,
    /// A part for an operation that was dropped begins it anew (C26).
    LatePeerAdded,
    /// A Commit of what isn't prepared succeeds.
    UnpreparedCommitted,
    /// Plain writes don't look at the epoch (C22).
    PlainWritesUnfenced,
    /// Two processes of a host are one to a server (C22).
    ProcessesTakenForOne,
    /// Attach is answered although the epoch isn't stored (C22).
    EpochNotDurable,
    /// Servers bring each other parts of another epoch on the connections of the one before (C22, C26).
    PeersOutliveEpoch,
    /// P's reducer gets Q's part, and Q's gets P's.
    PartsExchanged,
    /// Operations with which the host has finished can begin again (C26).
    StaleAccepted,
    /// Parts that nothing waits for any more fill a connection to another server (C35).
    AbandonedKept,
    /// What a controller didn't commit stays when it ends.
    OperationsOutliveController,
    /// New bytes are written before the host commits.
    WrittenBeforeCommit,
    /// The target believes any response to its challenge.
    ResponseUnchecked,
    /// The target repeats its challenge, so that a reply that was overheard can be sent again.
    ChallengeRepeated,
    /// An I/O queue serves a host that hasn't authenticated on it.
    QueueUnauthenticated,
    /// The initiator believes any server although it knows its secret.
    ControllerUnchecked,
    /// The hosts that were attached under a lower epoch stay so (C22, C23).
    OldHostKept,
    /// A part that comes before Parity counts, and isn't added (C26).
    EarlyPeerNotAdded,
    /// A connection that proves nothing keeps its queue's number from one that does (C35).
    NumberHeldUnproven,
    /// Log pages are made before there is memory for them (C35).
    AnswersUncounted,
    /// A controller that was fenced is let in again when the epoch is given up (C28).
    FencedReadmitted,
    /// A host from which the namespace was taken may attach it again, if it names a higher epoch (C28).
    EndedOwnerAttaches,
    /// After an Attach that is to be alone the host's other controllers may go on (C28).
    AloneIgnored,
    /// An Attach that ends others is answered while what they began is still carried out (C22).
    AttachNotDrained,
}

impl Mutant {
    /// Those that lives of whole arrays over the network find (`pinstripe-sim`), rather than this crate's
    /// sessions.
    pub const OF_LIVES: &[Self] = &[Self::OldHostKept, Self::EarlyPeerNotAdded];
    /// Those that single sessions show (`tests/sessions`).
    pub const OF_SESSIONS: &[Self] = &[
        Self::NumberHeldUnproven,
        Self::ReturnsTooEarly,
        Self::QueuesOutliveController,
        Self::AnswersUncounted,
        Self::StaleCarriedOut,
        Self::OneLookAssumed,
        Self::GranularityIgnored,
        Self::DiscardUncut,
        Self::AbandonedKept,
    ];
}
