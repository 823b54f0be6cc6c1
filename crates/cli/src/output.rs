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

/// Prints `value` as JSON for programs: indented, and a newline.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Text that came from a disk or a socket, without characters that would steer a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// `rows` of a name and a value, the values below each other.
pub fn table(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<String> = rows.iter().map(|(name, value)| format!("  {name:width$}  {value}\n")).collect();
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_a_disk_cannot_steer_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }
}
