//! The commits that results and decisions name exist: what was measured can be looked up.
//!
//! Commits that were gathered into others are gone. A page then names the one that they are part of.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::tidy::Finding;

/// Where commits are named.
const FOLDERS: [&str; 2] = ["docs/results/", "docs/decisions/"];
/// Digits of a name in full, and of the shortest that git gives.
const DIGITS: std::ops::RangeInclusive<usize> = 7..=40;
/// Commits of other projects.
const FOREIGN: [&str; 2] = [
    // isa-l, in the SPDK that was measured.
    "c196241",
    // That SPDK itself.
    "d519b163cb",
];

/// A finding for each name that git knows no commit by, in documents and in the tables beside them.
pub fn check(root: &Path, files: &[String]) -> Result<Vec<Finding>> {
    if is_shallow(root)? {
        return Ok(Vec::new());
    }
    let mut named: BTreeMap<String, Vec<(String, usize)>> = BTreeMap::new();
    for file in files.iter().filter(|file| FOLDERS.iter().any(|folder| file.starts_with(folder))) {
        let text = std::fs::read_to_string(root.join(file)).with_context(|| format!("read {file}"))?;
        for (line, name) in names(&text, is_table(file)) {
            named.entry(name.to_owned()).or_default().push((file.clone(), line));
        }
    }
    let unknown = unknown(root, named.keys())?;
    let finding = |name: &str, (file, line): (String, usize)| Finding {
        file,
        line,
        message: format!("git knows no commit {name}: name the one that it went into"),
    };
    let gone = named.into_iter().filter(|(name, _)| unknown.contains(name));
    Ok(gone.flat_map(|(name, places)| places.into_iter().map(move |place| finding(&name, place))).collect())
}

/// A table has other numbers that look alike.
fn is_table(file: &str) -> bool {
    Path::new(file).extension().is_some_and(|extension| extension == "json")
}

/// What may be a commit's name, with its line from 1.
fn names(text: &str, is_table: bool) -> impl Iterator<Item = (usize, &str)> {
    (1..)
        .zip(text.lines())
        .filter(move |(_, line)| !is_table || line.contains("\"commit\""))
        .flat_map(|(number, line)| words(line).map(move |word| (number, word)))
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = line.char_indices().filter(move |&(at, c)| {
        // Not in a colour, a path or the middle of a UUID.
        is_of_word(c) && !line[..at].ends_with(|before| is_of_word(before) || "#-./".contains(before))
    });
    let word = move |(at, _)| line[at..].split(|c| !is_of_word(c)).next().unwrap_or_default();
    starts.map(word).filter(|word| is_name(word) && !FOREIGN.contains(word))
}

/// A number is none, nor is a word.
fn is_name(word: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    DIGITS.contains(&word.len())
        && word.bytes().all(is_digit)
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && word.bytes().any(|byte| byte.is_ascii_alphabetic())
}

fn is_shallow(root: &Path) -> Result<bool> {
    let output = Command::new("git")
        .args(["rev-parse", "--is-shallow-repository"])
        .current_dir(root)
        .output()
        .context("run git")?;
    ensure!(output.status.success(), "git rev-parse: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(output.stdout.starts_with(b"true"))
}

/// Those that are no commits.
fn unknown<'n>(root: &Path, names: impl Iterator<Item = &'n String>) -> Result<BTreeSet<String>> {
    let names: Vec<&String> = names.collect();
    let mut git = Command::new("git")
        .args(["cat-file", "--batch-check=%(objecttype)"])
        .current_dir(root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("run git")?;
    let asked: String = names.iter().flat_map(|name| [name.as_str(), "^{commit}\n"]).collect();
    // A pipe holds all answers: a line each.
    git.stdin.take().context("git takes no names")?.write_all(asked.as_bytes())?;
    let output = git.wait_with_output()?;
    ensure!(output.status.success(), "git cat-file failed");
    let answers = String::from_utf8(output.stdout)?;
    let pairs = names.iter().zip(answers.lines());
    Ok(pairs.filter(|(_, answer)| *answer != "commit").map(|(name, _)| (*name).clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_numbers_colours_and_ids() {
        let line =
            "Commit 145fff11, 1234567 of #1f77b4a, 9debdf7-dirty, defaced, 0abc123 (c196241), a/0abc124.";
        assert_eq!(words(line).collect::<Vec<_>>(), ["145fff11", "9debdf7", "0abc123"]);
        assert_eq!(words("6d41c17-a77e88e8, x0abc123, 0abc123x").count(), 1);
        let table = "{\n  \"commit\": \"0abc123\",\n  \"id\": \"1abc123\"\n}";
        assert_eq!(names(table, true).collect::<Vec<_>>(), [(2, "0abc123")]);
        assert_eq!(names(table, false).count(), 2);
    }

    #[test]
    fn a_commit_that_git_does_not_know_is_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let head = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root).output().unwrap();
        let head = String::from_utf8(head.stdout).unwrap().trim().to_owned();
        let names = [head.clone(), "0123456789abcdef0123456789abcdef01234567".to_owned()];
        let unknown = unknown(root, names.iter()).unwrap();
        assert_eq!(unknown.into_iter().collect::<Vec<_>>(), names[1..]);
    }
}
