//! Whether a run makes sense, for what overwrites devices before the run begins.

use crate::{
    arguments::BenchArgs,
    objects, replay,
    run::{BenchError, check_numbers},
};

/// Whether `arguments` ask for a load that makes sense, whatever it goes to. A trace is read for that, if it
/// is a file: what comes from standard input or a pipe can be read but once.
pub fn check(arguments: &BenchArgs) -> Result<(), BenchError> {
    if arguments.objects.is_some() {
        return objects::check(arguments);
    }
    check_numbers(arguments)?;
    match &arguments.trace {
        Some(trace) if trace.is_file() || !trace.exists() && trace.as_os_str() != "-" => {
            replay::check(arguments)
        }
        _ => Ok(()),
    }
}
