//! Which kernel this process uses.

use std::env;
use std::sync::OnceLock;

use crate::kernel::Kernel;

/// The environment variable that overrides the choice of kernel: `scalar`, `avx2`, `avx512`, `gfni` or
/// `neon`. Unset or empty means the best.
pub const KERNEL_VARIABLE: &str = "PINSTRIPE_PARITY";

/// Why a kernel could not be had by its name.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SelectError {
    /// No kernel of any processor has this name.
    #[error("there is no parity kernel named {name:?}; this processor has {}", supported_names())]
    Unknown {
        /// The name that was asked for.
        name: String,
    },
    /// The kernel exists, but not for this processor.
    #[error(
        "the parity kernel {name} needs {needs}, which this processor lacks; it has {}",
        supported_names()
    )]
    Unsupported {
        /// The name that was asked for.
        name: &'static str,
        /// What a processor must have to run it.
        needs: &'static str,
    },
}

/// The outcome of the choice that [`kernel`] rests on.
#[derive(Clone, Debug)]
pub struct Selection {
    /// The kernel in use.
    pub kernel: &'static Kernel,
    /// True if the environment asked for just this kernel.
    pub overridden: bool,
    /// Why what the environment asked for was not followed; the kernel is then the best one. Worth a warning.
    pub rejected: Option<SelectError>,
}

impl Selection {
    /// What to tell the user if what the environment asked for was not followed.
    pub fn warning(&self) -> Option<String> {
        let error = self.rejected.as_ref()?;
        Some(format!("{KERNEL_VARIABLE} is ignored: {error}; {} is used", self.kernel.name()))
    }
}

/// The kernel of this process: what the environment asks for if this processor has it, else the best.
#[inline]
pub fn kernel() -> &'static Kernel {
    selection().kernel
}

/// How [`kernel`] was chosen, so that a command can show it and warn of an override that was not followed.
/// The environment is read once, at the first call of either.
#[inline]
pub fn selection() -> &'static Selection {
    static SELECTION: OnceLock<Selection> = OnceLock::new();
    SELECTION.get_or_init(|| {
        let asked = env::var_os(KERNEL_VARIABLE).unwrap_or_default();
        choose(&asked.to_string_lossy())
    })
}

/// The kernel of this name.
pub fn select(name: &str) -> Result<&'static Kernel, SelectError> {
    if let Some(kernel) = Kernel::supported().iter().find(|kernel| kernel.name() == name) {
        return Ok(kernel);
    }
    match ELSEWHERE.iter().find(|(elsewhere, _)| *elsewhere == name) {
        Some(&(name, needs)) => Err(SelectError::Unsupported { name, needs }),
        None => Err(SelectError::Unknown { name: name.to_owned() }),
    }
}

/// The kernels that not every processor has, and what they need.
const ELSEWHERE: [(&str, &str); 4] = [
    ("avx2", "an x86-64 processor with AVX2"),
    ("avx512", "an x86-64 processor with AVX-512 F and BW"),
    ("gfni", "an x86-64 processor with AVX-512 F and BW and with GFNI"),
    ("neon", "a little-endian AArch64 processor with NEON"),
];

/// What the value of the environment variable leads to; empty stands for unset.
fn choose(asked: &str) -> Selection {
    let rejected = match select(asked) {
        Ok(kernel) => return Selection { kernel, overridden: true, rejected: None },
        Err(_) if asked.is_empty() => None,
        Err(error) => Some(error),
    };
    Selection { kernel: Kernel::best(), overridden: false, rejected }
}

fn supported_names() -> String {
    let names: Vec<_> = Kernel::supported().iter().map(Kernel::name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_supported_kernel_can_be_asked_for() {
        for kernel in Kernel::supported() {
            assert_eq!(select(kernel.name()).expect("supported").name(), kernel.name());
            let selection = choose(kernel.name());
            assert_eq!(selection.kernel.name(), kernel.name());
            assert!(selection.overridden && selection.rejected.is_none());
        }
    }

    #[test]
    fn an_unset_or_empty_variable_means_the_best_kernel() {
        let selection = choose("");
        assert_eq!(selection.kernel.name(), Kernel::best().name());
        assert!(!selection.overridden && selection.rejected.is_none());
    }

    #[test]
    fn an_unknown_name_is_reported_and_the_best_kernel_used() {
        let error = SelectError::Unknown { name: "AVX2 ".to_owned() };
        assert_eq!(select("AVX2 ").expect_err("unknown"), error);
        assert!(error.to_string().contains("\"AVX2 \""), "{error}");
        assert!(error.to_string().contains("scalar"), "{error}");
        let selection = choose("AVX2 ");
        assert_eq!(selection.kernel.name(), Kernel::best().name());
        assert_eq!(selection.rejected, Some(error));
        assert!(!selection.overridden);
    }

    #[test]
    fn a_kernel_this_processor_lacks_is_reported_as_such() {
        for (name, needs) in ELSEWHERE {
            if Kernel::supported().iter().all(|kernel| kernel.name() != name) {
                assert_eq!(select(name).expect_err("lacking"), SelectError::Unsupported { name, needs });
            }
        }
    }

    #[test]
    fn the_scalar_kernel_is_always_there_and_listed_first() {
        assert_eq!(Kernel::supported().first().expect("never empty").name(), "scalar");
    }
}
