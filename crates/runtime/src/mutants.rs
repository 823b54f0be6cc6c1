//! Deliberate defects, which show that the tests would find them: one switch per crate.
//!
//! A crate names its defects with [`mutants!`](crate::mutants!) in a module of its own, and asks
//! `active(Mutant::Name)` where the rule is kept. Only with *its* feature `mutants`, which no product build
//! has, can one be turned on; otherwise every question is `false` at compile time.

/// Makes the invoking module a list of defects: `Mutant`, `activate` and `active`.
///
/// A defect adds an expression to the product and no branch of its own (`cargo xtask tidy` checks it): it
/// changes a condition or a value, or does something `early`.
#[macro_export]
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
        pub fn active(mutant: Mutant) -> bool {
            ACTIVE.with(|active| active.get() == Some(mutant))
        }

        /// With the defect, does what is to come later, or not at all.
        #[allow(dead_code, reason = "not every crate has such a defect")]
        pub async fn early(mutant: Mutant, act: impl AsyncFnOnce()) {
            if active(mutant) {
                Box::pin(act()).await;
            }
        }

        /// `result`, which is a success with the defect, whatever it says.
        #[allow(dead_code, reason = "not every crate has such a defect")]
        pub fn ignoring<E>(mutant: Mutant, result: Result<usize, E>) -> Result<usize, E> {
            result.or_else(|error| if active(mutant) { Ok(0) } else { Err(error) })
        }

        /// Never, in a product build.
        #[cfg(not(feature = "mutants"))]
        #[inline(always)]
        #[allow(clippy::inline_always, reason = "the question must vanish from the hot path")]
        pub const fn active(_: Mutant) -> bool {
            false
        }
    };
}

crate::mutants! {
    /// C29: time in which a shard stood still counts as time that its requests took.
    StallCharged,
    /// C29: timers fire before the kernel's completions are looked at.
    TimersBeforeCompletions,
    /// C33: a flush waits until as many have ended as had begun, whichever these are.
    FlushesCounted,
}
