//! What kinds of logs there are, as values: what differs between them and doesn't depend on their state.

/// What a batch must be made of before it is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Batches {
    /// It may be anything that has room in the log.
    Any,
    /// Whole rows of 4 KiB, with the same consecutive columns in each.
    WholeRows,
    /// Whole pages of 4 KiB; and every stripe is written through the log.
    WholePages,
}

/// A kind of log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    /// MD's word for the consistency policy, or ours where MD has none. `None` if that is for the bitmap to
    /// say.
    pub(crate) policy: Option<&'static str>,
    pub(crate) batches: Batches,
    /// It may forget durable writes only: all writes of a batch are forced to the medium (C4).
    pub(crate) forces_writes: bool,
    /// No crash leaves a row that replay doesn't put right, so superblocks stay clean while writes are under
    /// way.
    pub(crate) keeps_clean: bool,
    /// MD doesn't know it, and must not assemble a dirty array that has it.
    pub(crate) keeps_md_out: bool,
}

impl Traits {
    /// Bitmap or resync.
    pub(crate) const NONE: Self = Self {
        policy: None,
        batches: Batches::Any,
        forces_writes: false,
        keeps_clean: false,
        keeps_md_out: false,
    };
    /// MD's partial parity log.
    pub(crate) const PPL: Self =
        Self { policy: Some("ppl"), batches: Batches::WholeRows, forces_writes: true, ..Self::NONE };
    /// A journal device.
    pub(crate) const JOURNAL: Self =
        Self { policy: Some("journal"), batches: Batches::WholePages, keeps_clean: true, ..Self::NONE };
    /// The double-parity log of RAID6.
    pub(crate) const DOUBLE_PARITY: Self =
        Self { policy: Some("double-parity-log"), forces_writes: true, keeps_md_out: true, ..Self::NONE };
}
