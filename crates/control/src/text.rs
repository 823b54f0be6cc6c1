//! Text that others wrote, and tables, for a terminal.

/// Text that came from a disk or a socket, without characters that would steer a terminal; what can't be
/// seen, or turns the text around, is shown by its number.
pub fn printable(text: &str) -> String {
    let shown = |c: char| match c {
        c if c.is_control() => "\u{fffd}".to_owned(),
        c if is_unseen(c) => c.escape_unicode().to_string(),
        c => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// The same for text of several lines.
pub fn printable_lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}

/// Text of several lines, such as what the end of a log is appended to, as one line.
pub fn one_line(text: &str) -> String {
    let mut lines = text.lines().map(|line| printable(line.trim())).filter(|line| !line.is_empty());
    let mut all = lines.next().unwrap_or_default();
    for (index, line) in lines.enumerate() {
        all += match (index, all.ends_with(':')) {
            (_, true) => " ",
            (0, false) => ": ",
            _ => "; ",
        };
        all += &line;
    }
    all
}

/// A word of a command that is printed to be copied, as a shell reads it.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", printable(word).replace('\'', "'\\''"))
}

/// Whether a character has no width, changes the direction of others, or separates lines: Unicode's default
/// ignorable characters and its format characters. A name with one looks like another name, or like something
/// else.
pub fn is_unseen(c: char) -> bool {
    matches!(u32::from(c),
        0xad | 0x34f | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890..=0x891 | 0x8e2 | 0x115f..=0x1160 | 0x17b4..=0x17b5
        | 0x180b..=0x180f | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0x2800 | 0x3164 | 0xfe00..=0xfe0f | 0xfeff
        | 0xffa0 | 0xfff0..=0xfffb | 0x110bd | 0x110cd | 0x13430..=0x1343f | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a
        | 0xe0000..=0xe0fff)
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
        assert_eq!(printable_lines("a\u{7}\nb"), "a\u{fffd}\nb");
    }

    #[test]
    fn lines_become_one_in_which_nothing_steers_the_terminal() {
        assert_eq!(one_line("its log ends with\n  a\u{7}\n\n  b\n"), "its log ends with: a\u{fffd}; b");
        assert_eq!(one_line("problems:\na\nb"), "problems: a; b");
        assert_eq!(one_line("one"), "one");
    }

    #[test]
    fn a_word_of_a_command_is_one_word_for_a_shell_and_nothing_else() {
        for plain in ["data", "/dev/md/data", "nvme-tcp://h:1/nqn.a"] {
            assert_eq!(shell_word(plain), plain);
        }
        for word in ["", "we ird", "x$(id)", "a'b", "a\"b`id`", "a;b", "*", "~", "a\\b", "#"] {
            let command = format!("printf %s {}", shell_word(word));
            let said = std::process::Command::new("sh").args(["-c", &command]).output().unwrap().stdout;
            assert_eq!(String::from_utf8(said).unwrap(), word, "{command}");
        }
        assert_eq!(shell_word("a\nb"), "'a\u{fffd}b'");
    }

    #[test]
    fn characters_of_a_name_that_cannot_be_seen_are_shown_by_number() {
        assert_eq!(printable("da\u{200b}ta\u{202e}"), "da\\u{200b}ta\\u{202e}");
        assert_eq!(printable("d\u{e4}ta \u{6570}"), "d\u{e4}ta \u{6570}");
    }
}
