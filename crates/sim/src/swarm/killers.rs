//! Seeds on which the oracle finds each of the engine's deliberate defects.

use pinstripe_engine::mutants::Mutant;

/// A defect, and a seed that passes without it. `cargo xtask mutants --search 2000` prints it anew.
pub const KILLERS: &[(Mutant, u64)] = &[];
