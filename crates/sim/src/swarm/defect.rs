//! Rules that are broken on purpose: each of them the oracle must find.

use pinstripe_engine::mutants::Mutant;

/// A rule that is broken on purpose, and in which crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// In the engine.
    Engine(Mutant),
    /// In the exports.
    Export(pinstripe_block::mutants::Mutant),
    /// In NVMe/TCP.
    Nvme(pinstripe_nvme::mutants::Mutant),
    /// In the runtime.
    Runtime(pinstripe_runtime::mutants::Mutant),
}

impl Defect {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let exports = pinstripe_block::mutants::Mutant::ALL.iter().copied().map(Self::Export);
        let nvme = pinstripe_nvme::mutants::Mutant::ALL.iter().copied().map(Self::Nvme);
        // The other one is in the driver of real rings, which its crate's tests try.
        let runtime = [Self::Runtime(pinstripe_runtime::mutants::Mutant::StallCharged)];
        Mutant::ALL.iter().copied().map(Self::Engine).chain(exports).chain(nvme).chain(runtime)
    }

    /// Its name.
    pub fn name(self) -> String {
        match self {
            Self::Engine(mutant) => format!("{mutant:?}"),
            Self::Export(mutant) => format!("export {mutant:?}"),
            Self::Nvme(mutant) => format!("nvme {mutant:?}"),
            Self::Runtime(mutant) => format!("runtime {mutant:?}"),
        }
    }
}

/// Breaks this rule from now on, or none.
#[cfg(feature = "mutants")]
pub(super) fn activate(mutant: Option<Defect>) {
    pinstripe_engine::mutants::activate(None);
    pinstripe_block::mutants::activate(None);
    pinstripe_nvme::mutants::activate(None);
    pinstripe_runtime::mutants::activate(None);
    match mutant {
        Some(Defect::Engine(mutant)) => pinstripe_engine::mutants::activate(Some(mutant)),
        Some(Defect::Export(mutant)) => pinstripe_block::mutants::activate(Some(mutant)),
        Some(Defect::Nvme(mutant)) => pinstripe_nvme::mutants::activate(Some(mutant)),
        Some(Defect::Runtime(mutant)) => pinstripe_runtime::mutants::activate(Some(mutant)),
        None => {}
    }
}

/// Breaks no rule.
#[cfg(not(feature = "mutants"))]
pub(super) fn activate(mutant: Option<Defect>) {
    assert!(mutant.is_none(), "mutants are compiled in with the feature `mutants` only");
}
