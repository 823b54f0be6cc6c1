//! What goes to standard output, and how values look there.

use std::io::{ErrorKind, Write};

use serde::Serialize;

use crate::failure::Failure;

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

/// Says something on standard error, as lines. What can't be said there, on a disk that is full, ends nothing:
/// `eprintln!` would panic.
pub fn remark(text: &str) {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    let _ = std::io::stderr().lock().write_all(format!("{text}{end}").as_bytes());
}

/// Prints `value` as JSON for programs: indented, and a newline.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}
