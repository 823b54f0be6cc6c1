//! What goes to standard output, and how values look there.

use std::io::{ErrorKind, Write};

use serde::Serialize;

use crate::failure::Failure;
pub use crate::remark::remark;

/// Prints `text`. A reader that has gone away (`| head`) is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    print_while_read(text).map(drop)
}

/// The same, of a command that goes on by itself: it ends with success where nothing reads it any more.
pub fn print_or_end(text: &str) -> Result<(), Failure> {
    if !print_while_read(text)? {
        std::process::exit(0);
    }
    Ok(())
}

/// Whether there is a reader.
fn print_while_read(text: &str) -> Result<bool, Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(format!("can't write to standard output: {error}"))),
    }
}

/// Prints `value` as JSON for programs: indented, and a newline.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}
