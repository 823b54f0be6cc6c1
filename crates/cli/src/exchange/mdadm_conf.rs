//! mdadm's configuration: that mdadm leaves an array alone, and that it does so no longer. Pure, on text.
//!
//! mdadm takes the first `ARRAY` line that fits an array. So lines that name the array become comments, and
//! one that says `<ignore>` is added. Undoing that gives the text as it was, with an end to its
//! last line.

use std::{fmt, ops::Range};

use pinstripe_md::identity::Uuid;

/// Begins a line of mdadm's that is out of force.
const SILENCED: &str = "#pinstripe# ";
/// Begins the line before ours.
const NOTE: &str = "# pinstripe serves this array; `pinstripe release` takes this line and the next away:";

/// Why a text is not changed.
#[derive(Debug, PartialEq, Eq)]
pub struct Ambiguous {
    /// Its number, from 1.
    line: usize,
    text: String,
}

impl fmt::Display for Ambiguous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, text } = self;
        write!(
            f,
            "line {line} (`{text}`) may mean this array and doesn't give a UUID: add UUID= to it, or take it away"
        )
    }
}

/// An `ARRAY` line with its continuations.
struct Entry {
    /// The lines, from 0.
    lines: Range<usize>,
    words: Vec<String>,
}

impl Entry {
    fn value(&self, tag: &str) -> Option<&str> {
        let tagged =
            |word: &String| word.get(..tag.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(tag));
        self.words.iter().skip(1).find(|word| tagged(word)).map(|word| &word[tag.len()..])
    }

    fn uuid(&self) -> Option<Uuid> {
        self.value("uuid=").and_then(uuid)
    }

    /// Where the array is to appear.
    fn place(&self) -> Option<&str> {
        self.words.get(1).map(String::as_str).filter(|word| !word.contains('='))
    }

    fn is_ignored(&self) -> bool {
        self.place() == Some("<ignore>")
    }
}

/// As mdadm reads it: 32 digits, with separators anywhere.
fn uuid(text: &str) -> Option<Uuid> {
    text.replace(['.', ' '], ":").parse().ok()
}

/// Of any text its lines, so that they can be joined again to what it was.
fn lines_of(text: &str) -> Vec<&str> {
    text.split_terminator('\n').collect()
}

/// A line's words: separated by white space, with quotes, until a word that begins with `#`.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        if quote == Some(c) {
            quote = None;
        } else if quote.is_none() && matches!(c, '\'' | '"') {
            quote = Some(c);
            word.get_or_insert_default();
        } else if quote.is_none() && c == '#' && word.is_none() {
            break;
        } else if quote.is_none() && c.is_ascii_whitespace() {
            words.extend(word.take());
        } else {
            word.get_or_insert_default().push(c);
        }
    }
    words.extend(word);
    words
}

/// Whether a word is the keyword ARRAY: in any case, and at least its first three letters.
fn is_array(word: &str) -> bool {
    word.len() >= 3 && "array".starts_with(&word.to_ascii_lowercase())
}

fn entries(lines: &[&str]) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut is_within = false;
    let mut is_first = true;
    for (index, line) in lines.iter().enumerate() {
        let found = words(line);
        // mdadm takes the first word of a file for a keyword, also where its line is indented.
        let continues = line.starts_with([' ', '\t']) && !is_first;
        is_first &= found.is_empty();
        if continues {
            if let Some(entry) = entries.last_mut().filter(|_| is_within && !found.is_empty()) {
                entry.lines.end = index + 1;
                entry.words.extend(found);
            }
            continue;
        }
        // Comments and empty lines end nothing: a continuation may still follow.
        let Some(first) = found.first() else { continue };
        is_within = is_array(first);
        if is_within {
            entries.push(Entry { lines: index..index + 1, words: found });
        }
    }
    entries
}

/// The text in which mdadm leaves the array alone, or nothing if it does so already. `names` are those of the
/// array, with the host and without. `adds`: whether the line is added, which one file is enough for.
pub fn ignore(text: &str, array: Uuid, names: &[String], adds: bool) -> Result<Option<String>, Ambiguous> {
    let borrowed = lines_of(text);
    let mut lines: Vec<String> = borrowed.iter().map(|line| (*line).to_owned()).collect();
    let (mut silenced, mut ignored) = (false, false);
    for entry in entries(&borrowed) {
        match entry.uuid() {
            Some(own) if own == array && entry.is_ignored() => ignored = true,
            Some(own) if own == array => {
                silenced = true;
                for line in &mut lines[entry.lines] {
                    *line = format!("{SILENCED}{line}");
                }
            }
            None if may_be(&entry, names) => {
                let line = entry.lines.start;
                return Err(Ambiguous { line: line + 1, text: borrowed[line].to_owned() });
            }
            _ => {}
        }
    }
    if adds && !ignored {
        // mdadm reads the last line without its end, too; ours must not be its continuation.
        lines.push(NOTE.to_owned());
        lines.push(format!("ARRAY <ignore> UUID={array}"));
    } else if !silenced {
        return Ok(None);
    }
    Ok(Some(lines.join("\n") + "\n"))
}

/// The text without the entries that are ours, by the UUID and the name that they give.
pub fn without(text: &str, is_ours: impl Fn(Option<Uuid>, Option<&str>) -> bool) -> String {
    let borrowed = lines_of(text);
    let mut lines: Vec<String> = borrowed.iter().map(|line| format!("{line}\n")).collect();
    for entry in entries(&borrowed) {
        let place = entry.place().and_then(|place| place.rsplit('/').next());
        if is_ours(entry.uuid(), entry.value("name=").or(place)) && !entry.is_ignored() {
            for line in &mut lines[entry.lines] {
                line.insert_str(0, SILENCED);
            }
        }
    }
    lines.concat()
}

/// Whether an entry without a UUID can fit an array of these names. A `super-minor=` fits none of version 1.
fn may_be(entry: &Entry, names: &[String]) -> bool {
    let base = |place: &str| place.rsplit('/').next().unwrap_or_default().to_owned();
    match (entry.value("name="), entry.value("devices="), entry.place()) {
        // `mdadm --incremental` finds a name in any case, `mdadm --assemble` only as it is written.
        (Some(name), ..) => names.iter().any(|own| own.eq_ignore_ascii_case(name)),
        // Its paths and patterns may be those of members, now or at the next boot.
        (None, Some(_), _) => true,
        // Where it is to appear is no identity, but mdadm writes it from the name.
        (None, None, Some(place)) => entry.words.len() == 2 && names.contains(&base(place)),
        (None, None, None) => false,
    }
}

/// The text as it was before [`ignore`], or nothing if that did nothing.
pub fn release(text: &str, array: Uuid) -> Option<String> {
    let lines = lines_of(text);
    let own = format!("ARRAY <ignore> UUID={array}");
    let mut kept: Vec<String> = Vec::new();
    let mut changed = false;
    let mut index = 0;
    while let Some(line) = lines.get(index) {
        if *line == NOTE && lines.get(index + 1) == Some(&own.as_str()) {
            (index, changed) = (index + 2, true);
            continue;
        }
        // The entry as it would be, with all of its lines that are out of force.
        let silent = lines[index..].iter().map_while(|line| line.strip_prefix(SILENCED));
        let silent: Vec<&str> = silent.collect();
        let first = entries(&silent).into_iter().next().filter(|entry| entry.lines.start == 0);
        match first {
            Some(entry) if entry.uuid() == Some(array) => {
                kept.extend(silent[entry.lines.clone()].iter().map(|line| (*line).to_owned()));
                (index, changed) = (index + entry.lines.len(), true);
            }
            _ => {
                kept.push((*line).to_owned());
                index += 1;
            }
        }
    }
    let end = if kept.is_empty() { "" } else { "\n" };
    changed.then(|| kept.join("\n") + end)
}

/// Whether an entry that is in force names the array by its UUID.
pub fn names(text: &str, array: Uuid) -> bool {
    entries(&lines_of(text)).iter().any(|entry| entry.uuid() == Some(array) && !entry.is_ignored())
}

/// The text with an entry by which the array appears as `/dev/md/NAME`.
pub fn with_name(text: &str, array: Uuid, name: &str) -> String {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{end}ARRAY /dev/md/{name} UUID={array}\n")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OURS: &str = "6d41c174:a77e88e8:3d543c04:9a78354b";

    fn ours() -> Uuid {
        OURS.parse().unwrap()
    }

    fn ignored(text: &str) -> Option<String> {
        ignore(text, ours(), &["host:data".to_owned(), "data".to_owned()], true).unwrap()
    }

    #[test]
    fn lines_of_the_array_are_silenced_and_one_is_added() {
        let text = "# mine\nDEVICE partitions\nARRAY /dev/md/data metadata=1.2\n   UUID=6d41c174:a77e88e8:3d543c04:9a78354b\n\
            \n\tname=host:data\nMAILADDR root\narr /dev/md1 uuid=6D41C174-A77E88E8-3D543C04-9A78354B\n";
        let now = ignored(text).unwrap();
        let expected = format!(
            "# mine\nDEVICE partitions\n{SILENCED}ARRAY /dev/md/data metadata=1.2\n{SILENCED}   UUID={OURS}\n{SILENCED}\n\
            {SILENCED}\tname=host:data\nMAILADDR root\n{SILENCED}arr /dev/md1 uuid=6D41C174-A77E88E8-3D543C04-9A78354B\n\
            {NOTE}\nARRAY <ignore> UUID={OURS}\n"
        );
        assert_eq!(now, expected);
        assert_eq!(ignored(&now), None, "once is enough");
        assert_eq!(release(&now, ours()).unwrap(), text);
    }

    #[test]
    fn other_arrays_stay_as_they_are() {
        let text = "ARRAY /dev/md/other UUID=00000000:a77e88e8:3d543c04:9a78354b name=data\n";
        let now = ignored(text).unwrap();
        assert!(now.starts_with(text), "{now}");
        assert_eq!(release(&now, "00000000:a77e88e8:3d543c04:9a78354b".parse().unwrap()), None);
        assert_eq!(release(&now, ours()).unwrap(), text);
        let of_a_person = format!("ARRAY <ignore> UUID={OURS}\n");
        assert_eq!(ignored(&of_a_person), None);
        assert_eq!(release(&of_a_person, ours()), None, "what a person wrote stays");
    }

    #[test]
    fn a_line_that_may_mean_the_array_is_for_a_person_to_say() {
        for line in [
            "ARRAY /dev/md0 name='host:data'",
            "array /dev/md/data",
            "ARRAY metadata=1.2 name=data",
            "ARRAY /dev/md0 name=Data",
            "ARRAY /dev/md0 devices=/dev/sd[bc]1",
            "ARRAY Devices=/dev/sda level=raid5",
        ] {
            let refused = ignore(&format!("#\n{line}\n"), ours(), &["host:data".into(), "data".into()], true);
            assert_eq!(refused.unwrap_err().to_string().split(' ').nth(1), Some("2"), "{line}");
        }
        for line in [
            "# ARRAY /dev/md/data",
            "ARRAY /dev/md/data name=other devices=/dev/sda",
            "ARRAY /dev/md0 super-minor=0",
            "ARRAYS /dev/md/data",
            "DEVICE data",
        ] {
            assert!(ignored(line).is_some(), "{line}");
        }
    }

    #[test]
    fn the_first_line_counts_although_it_is_indented() {
        let first = format!("  ARRAY /dev/md0\n    UUID={OURS}\n");
        for head in ["", "\n  \n\t# mine\n"] {
            let text = format!("{head}{first}");
            let silenced = format!("{SILENCED}  ARRAY /dev/md0\n{SILENCED}    UUID={OURS}\n");
            let now = ignored(&text).unwrap();
            assert!(now.starts_with(&format!("{head}{silenced}{NOTE}")), "{now}");
            assert_eq!(release(&now, ours()).unwrap(), text);
        }
        let continued = format!("DEVICE /dev/sda\n{first}");
        assert!(ignored(&continued).unwrap().starts_with(&continued), "a continuation of another line");
    }

    #[test]
    fn a_file_of_several_gets_no_line_of_its_own() {
        let names = ["data".to_owned()];
        assert_eq!(ignore("MAILADDR root\n", ours(), &names, false), Ok(None));
        let now = ignore(&format!("ARRAY /dev/md0 UUID={OURS}\n"), ours(), &names, false).unwrap();
        assert_eq!(now.unwrap(), format!("{SILENCED}ARRAY /dev/md0 UUID={OURS}\n"));
        assert_eq!(ignored(""), Some(format!("{NOTE}\nARRAY <ignore> UUID={OURS}\n")));
        assert_eq!(release(&ignored("").unwrap(), ours()), Some(String::new()));
    }

    proptest! {
        /// Whatever stands there, it comes back, and mdadm finds the array ignored first.
        #[test]
        fn what_was_done_is_undone(
            first in prop::option::of(Just("  ARRAY /dev/md4 UUID=6d41c174:a77e88e8:3d543c04:9a78354b")),
            lines in proptest::collection::vec(line(), 0..12),
        ) {
            let text: String = first.iter().chain(&lines).flat_map(|line| [line, "\n"]).collect();
            if let Some(now) = ignored(&text) {
                prop_assert_eq!(release(&now, ours()).unwrap(), text);
                let lines = lines_of(&now);
                let first = entries(&lines).into_iter().find(|entry| entry.uuid() == Some(ours())).unwrap();
                prop_assert!(first.is_ignored());
            }
        }
    }

    fn line() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "",
            "# comment",
            "\t# comment",
            "ARRAY /dev/md0",
            "   ",
            " level=5 # x",
            "DEVICE /dev/sd*",
            "AUTO -all",
            "ARRAY /dev/md1 UUID=00000000:a77e88e8:3d543c04:9a78354b",
            "\tUUID=6d41c174:a77e88e8:3d543c04:9a78354b",
            "ARRAY /dev/md2 UUID=6d41c174:a77e88e8:3d543c04:9a78354b",
            "#pinstripe# ARRAY /dev/md3",
        ])
    }
}
