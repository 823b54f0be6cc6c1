//! Whether a run makes sense, for what overwrites devices before the run begins.

use crate::{
    arguments::BenchArgs,
    objects, replay,
    run::{BenchError, check_numbers},
};

/// Whether `arguments` ask for a load that makes sense, whatever it goes to. A trace is read for that, unless
/// it comes from standard input, which can be read but once.
pub fn check(arguments: &BenchArgs) -> Result<(), BenchError> {
    if arguments.objects.is_some() {
        return objects::check(arguments);
    }
    check_numbers(arguments)?;
    match &arguments.trace {
        Some(trace) if trace.as_os_str() != "-" => replay::check(arguments),
        _ => Ok(()),
    }
}
