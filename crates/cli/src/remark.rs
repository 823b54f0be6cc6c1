//! What goes to standard error.

use std::io::Write;

/// Says something on standard error, as lines. What can't be said there, on a disk that is full, ends
/// nothing: `eprintln!` would panic.
pub fn remark(text: &str) {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    let _ = std::io::stderr().lock().write_all(format!("{text}{end}").as_bytes());
}
