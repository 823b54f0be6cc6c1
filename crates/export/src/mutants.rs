//! Deliberate defects, to show that the simulator's oracle finds them. Compiled only with the feature `mutants`, which no
//! product build has; without it every question is `false` at compile time.

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A write is answered before it is done.
    ReplyBeforeWrite,
    /// FUA is not passed on.
    FuaDropped,
    /// A flush does nothing on a connection that has no other request under way: it covers its own connection at best.
    FlushOfIdleConnectionSkipped,
    /// The pieces in which a payload arrives are put together with an overlap.
    PayloadPiecesOverlap,
}

impl Mutant {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::ReplyBeforeWrite,
        Self::FuaDropped,
        Self::FlushOfIdleConnectionSkipped,
        Self::PayloadPiecesOverlap,
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
