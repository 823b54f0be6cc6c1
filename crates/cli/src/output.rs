//! What goes to standard output, and how values look there.

use std::io::{ErrorKind, Write};

use serde::Serialize;

use crate::failure::Failure;
pub use crate::remark::remark;

/// Prints `text`. A reader that has gone away (`| head`) is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("can't write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints `value` as JSON for programs: indented, and a newline.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}
