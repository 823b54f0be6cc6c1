//! The limits of the house style that a program can check.
//!
//! rustfmt has been over the code, so a line-wise scan is enough: an item ends at the first closing brace
//! that stands at the indentation of its first line. Every finding names file and line and says what to do.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{commits, defects, diagram, documents, imports};

/// Lines of a file, its tests not counted.
const FILE_LINES_MAX: usize = 800;
/// Lines of a function, signature and closing brace counted.
const FUNCTION_LINES_MAX: usize = 70;
/// Names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "helper", "helpers", "manager", "misc"];
/// Crates in which `unsafe` may stand: SIMD, the kernel's ABI, an export's ABI.
const UNSAFE_CRATES: &[&str] = &["apps/ycsb/", "crates/parity/", "crates/runtime/", "crates/tls/"];
/// Packages with workspaces of their own.
const ALONE: &[&str] = &["apps/", "fuzz/"];
/// Marks of unfinished work, cut in two so that this file doesn't find itself.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("#[ig", "nore"),
];

/// Columns of a comment. Tables and drawings may be wider.
const COMMENT_COLUMNS_MAX: usize = 110;
/// Words for people, cut in two as above. Devices, tasks and requests are things, and have names.
const PERSONS: &[&str] = &[
    concat!("w", "ho"),
    concat!("w", "hom"),
    concat!("w", "hoever"),
    concat!("no", "body"),
    concat!("some", "body"),
    concat!("every", "body"),
    concat!("any", "body"),
];

/// One breach of the style.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path from the root.
    pub file: String,
    /// Counted from 1.
    pub line: usize,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// Checks every file that git knows or would add under `root`; prints the findings.
pub fn run(root: &Path) -> Result<()> {
    let mut findings = Vec::new();
    let files = list_files(root, &["*.rs", "*.sh", "*Cargo.toml"])?;
    let documents = list_files(root, &["*.md"])?;
    let mut sources = Vec::new();
    for file in &files {
        let text = fs::read_to_string(root.join(file)).with_context(|| format!("read {file}"))?;
        findings.extend(check(file, &text));
        if file.starts_with("crates/") && is_rust(file) {
            sources.push((file.clone(), text));
        }
    }
    findings.extend(imports::check(&sources)?);
    findings.extend(defects::check(&sources)?);
    findings.extend(documents::check(root, &documents, &files)?);
    findings.extend(diagram::check(root)?);
    findings.extend(commits::check(root, &list_files(root, &["*.md", "*.json"])?)?);
    let count = files.len() + documents.len();
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} findings in {count} files", findings.len());
    }
    println!("tidy: {count} files, nothing to do");
    Ok(())
}

fn list_files(root: &Path, patterns: &[&str]) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "--"])
        .args(patterns)
        .current_dir(root)
        .output()
        .context("run git")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let listing = String::from_utf8(output.stdout)?;
    Ok(listing.lines().filter(|file| root.join(file).exists()).map(str::to_owned).collect())
}

/// Checks one file, `file` being its path from the root with forward slashes.
pub fn check(file: &str, text: &str) -> Vec<Finding> {
    let mut scan = Scan { file, lines: text.lines().collect(), findings: Vec::new() };
    scan.unfinished();
    if file.ends_with("Cargo.toml") {
        scan.manifest();
    } else if is_rust(file) {
        scan.name();
        scan.header();
        scan.comments();
        scan.code_words();
        scan.allowances();
        scan.unsafe_forbidden();
        if !is_test_file(file) {
            scan.file_length();
            scan.function_lengths();
        }
    }
    scan.findings
}

fn is_rust(file: &str) -> bool {
    Path::new(file).extension().is_some_and(|extension| extension == "rs")
}

fn is_test_file(file: &str) -> bool {
    file.contains("/tests/") || file.contains("/benches/") || file.ends_with("/tests.rs")
}

struct Scan<'a> {
    file: &'a str,
    lines: Vec<&'a str>,
    findings: Vec<Finding>,
}

impl Scan<'_> {
    /// `index` counts from 0.
    fn report(&mut self, index: usize, message: String) {
        self.findings.push(Finding { file: self.file.to_owned(), line: index + 1, message });
    }

    fn unfinished(&mut self) {
        for index in 0..self.lines.len() {
            for mark in UNFINISHED {
                if contains_word(self.lines[index], mark) {
                    self.report(
                        index,
                        format!("{mark:?}: finish it, or open an issue and take the mark out"),
                    );
                }
            }
        }
    }

    fn name(&mut self) {
        let components = self.file.trim_end_matches(".rs").split('/');
        for component in components {
            if EMPTY_NAMES.contains(&component) {
                self.report(0, format!("{component:?} says nothing: name the file for what is in it"));
            }
        }
    }

    fn header(&mut self) {
        if self.lines.iter().find(|line| !line.is_empty()).is_none_or(|line| !line.starts_with("//!")) {
            self.report(0, "begin with `//!`: what this file is for, what always holds in it".to_owned());
        }
    }

    fn comments(&mut self) {
        let mut drawn = false;
        for index in 0..self.lines.len() {
            let line = self.lines[index];
            let Some(text) = line.trim_start().strip_prefix("//") else {
                drawn = false;
                continue;
            };
            let text = text.trim_start_matches(['/', '!']).trim_start();
            drawn ^= text.starts_with("```");
            if line.chars().count() > COMMENT_COLUMNS_MAX && !drawn && !text.starts_with('|') {
                self.report(
                    index,
                    format!("a comment has at most {COMMENT_COLUMNS_MAX} columns: break the line"),
                );
            }
            let words = text.to_lowercase();
            for person in PERSONS.iter().filter(|person| contains_word(&words, person)) {
                self.report_person(index, person);
            }
        }
    }

    /// Strings and names: a line that is no comment, with `_` between words as good as a space.
    fn code_words(&mut self) {
        for index in 0..self.lines.len() {
            let line = self.lines[index];
            if line.trim_start().starts_with("//") {
                continue;
            }
            let words = line.to_lowercase().replace('_', " ");
            for person in PERSONS.iter().filter(|person| contains_word(&words, person)) {
                self.report_person(index, person);
            }
        }
    }

    fn report_person(&mut self, index: usize, person: &str) {
        self.report(index, format!("{person:?} is said of people: name the device, task or request"));
    }

    fn manifest(&mut self) {
        let is_package = self.lines.contains(&"[package]");
        let takes_lints = self
            .lines
            .windows(2)
            .any(|pair| pair[0] == "[lints]" && pair[1].replace(' ', "") == "workspace=true");
        if is_package && !takes_lints && !ALONE.iter().any(|path| self.file.starts_with(path)) {
            self.report(0, "add `[lints]` with `workspace = true`".to_owned());
        }
    }

    /// An allowance names its reason: in the attribute, behind it, or in a comment above.
    fn allowances(&mut self) {
        for index in 0..self.lines.len() {
            let line = self.lines[index].trim_start();
            let opens = ["#[allow(", "#![allow(", "#[expect(", "#![expect("];
            if !opens.iter().any(|open| line.starts_with(open)) {
                continue;
            }
            let length = self.lines[index..].iter().position(|line| line.contains(")]")).unwrap_or(0);
            let attribute = &self.lines[index..=index + length];
            let has_reason = attribute.iter().any(|line| line.contains("reason = ") || line.contains("// "));
            let above = index > 0 && {
                let above = self.lines[index - 1].trim_start();
                above.starts_with("// ") || (opens.iter().any(|open| above.starts_with(open)))
            };
            if !has_reason && !above {
                self.report(index, "an `allow` has a reason: add `reason = \"...\"`".to_owned());
            }
        }
    }

    fn unsafe_forbidden(&mut self) {
        let is_root = self.file.ends_with("src/lib.rs") || self.file.ends_with("src/main.rs");
        let exempt = UNSAFE_CRATES.iter().any(|path| self.file.starts_with(path));
        if is_root && !exempt && !self.lines.contains(&"#![forbid(unsafe_code)]") {
            self.report(
                0,
                "add `#![forbid(unsafe_code)]`: only parity, runtime, tls and ycsb may do without".to_owned(),
            );
        }
    }

    /// The lines before the test module.
    fn product_lines(&self) -> usize {
        let is_test_module = |index: usize| {
            self.lines[index] == "#[cfg(test)]"
                && self.lines[index + 1..]
                    .iter()
                    .find(|line| !line.starts_with("#["))
                    .is_some_and(|line| line.starts_with("mod ") && line.ends_with('{'))
        };
        (0..self.lines.len()).find(|index| is_test_module(*index)).unwrap_or(self.lines.len())
    }

    fn file_length(&mut self) {
        let lines = self.product_lines();
        if lines > FILE_LINES_MAX {
            self.report(FILE_LINES_MAX, format!("{lines} lines without tests: cut the file by concept"));
        }
    }

    fn function_lengths(&mut self) {
        for index in 0..self.product_lines() {
            let Some(name) = function_name(self.lines[index]) else { continue };
            let length = item_length(&self.lines[index..]);
            if length > FUNCTION_LINES_MAX {
                self.report(index, format!("`{name}` has {length} lines: give its parts names of their own"));
            }
        }
    }
}

/// Whether `word` stands in `line`, not as a part of a longer word.
fn contains_word(line: &str, word: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let ends_in_word = word.chars().next_back().is_some_and(is_part);
        !before.is_some_and(is_part) && (!ends_in_word || !after.is_some_and(is_part))
    })
}

/// The name of the function that this line begins, if it does.
fn function_name(line: &str) -> Option<&str> {
    let mut words = line.trim_start().split(' ');
    loop {
        let word = words.next()?;
        let is_qualifier = matches!(word, "const" | "async" | "unsafe" | "extern" | "default" | "\"C\"")
            || word.starts_with("pub");
        match word {
            "fn" => return words.next()?.split(['(', '<']).next(),
            _ if is_qualifier => {}
            _ => return None,
        }
    }
}

/// Lines of the item that begins with the first of these lines.
fn item_length(lines: &[&str]) -> usize {
    let indent = lines[0].len() - lines[0].trim_start().len();
    let ends_item = |line: &str| {
        let ends_here = line.len() - line.trim_start().len() == indent;
        ends_here && (line.trim_start().starts_with('}') || line.ends_with(';'))
    };
    if lines[0].ends_with(['}', ';']) {
        return 1;
    }
    lines[1..].iter().position(|line| ends_item(line)).map_or(lines.len(), |at| at + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(file: &str, text: &str) -> Vec<String> {
        check(file, text).iter().map(ToString::to_string).collect()
    }

    fn function_of(lines: usize) -> String {
        format!("//! Doc.\n\npub(crate) async fn long(a: u8) {{\n{}}}\n", "    work();\n".repeat(lines - 2))
    }

    #[test]
    fn a_clean_file_has_no_findings() {
        let text = "//! Doc.\n#![forbid(unsafe_code)]\n\nfn main() {}\n";
        assert_eq!(messages("crates/md/src/lib.rs", text), Vec::<String>::new());
    }

    #[test]
    fn a_function_may_have_70_lines_and_no_more() {
        assert!(messages("crates/md/src/a.rs", &function_of(70)).is_empty());
        let found = messages("crates/md/src/a.rs", &function_of(71));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/md/src/a.rs:3: `long` has 71 lines"), "{found:?}");
    }

    #[test]
    fn a_method_ends_at_its_own_indentation() {
        let body = "        if a {\n        }\n".repeat(40);
        let text = format!(
            "//! Doc.\nimpl A {{\n    fn short(&self);\n    fn long(\n        &self,\n    ) {{\n{body}    }}\n}}\n"
        );
        let found = messages("crates/md/src/a.rs", &text);
        assert!(found.len() == 1 && found[0].contains("`long` has 84 lines"), "{found:?}");
    }

    #[test]
    fn tests_do_not_count_towards_a_file() {
        let code = "//! Doc.\n".to_owned() + &"const A: u8 = 1;\n".repeat(799);
        let tests = "#[cfg(test)]\nmod tests {\n".to_owned() + &"    // check\n".repeat(500) + "}\n";
        assert!(messages("crates/md/src/a.rs", &(code.clone() + &tests)).is_empty());
        assert_eq!(messages("crates/md/src/a.rs", &(code + "const B: u8 = 1;\n" + &tests)).len(), 1);
    }

    #[test]
    fn a_test_module_in_a_file_of_its_own_does_not_end_the_count() {
        let text = "//! Doc.\n#[cfg(test)]\nmod tests;\n".to_owned() + &"const A: u8 = 1;\n".repeat(900);
        assert_eq!(messages("crates/md/src/a.rs", &text).len(), 1);
        assert!(messages("crates/md/src/tests.rs", &text).is_empty());
    }

    #[test]
    fn names_that_say_nothing_are_found() {
        assert_eq!(messages("crates/md/src/utils.rs", "//! Doc.\n").len(), 1);
        assert_eq!(messages("crates/md/src/helpers/bits.rs", "//! Doc.\n").len(), 1);
        assert!(messages("crates/md/src/utility.rs", "//! Doc.\n").is_empty());
    }

    #[test]
    fn a_crate_root_forbids_unsafe_code() {
        assert_eq!(messages("crates/engine/src/lib.rs", "//! Doc.\n").len(), 1);
        assert!(messages("crates/runtime/src/lib.rs", "//! Doc.\n").is_empty());
        assert!(messages("crates/engine/src/plan.rs", "//! Doc.\n").is_empty());
    }

    #[test]
    fn marks_of_unfinished_work_are_found_as_words() {
        for mark in UNFINISHED {
            let text = format!("//! Doc.\n// {mark} later\n");
            assert_eq!(messages("crates/md/src/a.rs", &text).len(), 1, "{mark}");
        }
        let inside = format!("//! Doc.\n// MAS{}S\n", UNFINISHED[0]);
        assert!(messages("crates/md/src/a.rs", &inside).is_empty());
    }

    #[test]
    fn an_allowance_without_a_reason_is_found() {
        let bare = "//! Doc.\n#[allow(dead_code)]\nfn a() {}\n";
        assert_eq!(messages("crates/md/src/a.rs", bare).len(), 1);
        for reason in [
            "//! Doc.\n#[allow(dead_code, reason = \"used by fuzzing\")]\nfn a() {}\n",
            "//! Doc.\n// Fuzzing uses it.\n#[allow(dead_code)]\nfn a() {}\n",
            "//! Doc.\n#[expect(\n    dead_code,\n    reason = \"fuzzing\"\n)]\nfn a() {}\n",
        ] {
            assert!(messages("crates/md/src/a.rs", reason).is_empty(), "{reason}");
        }
    }

    #[test]
    fn a_file_says_what_it_is_for() {
        assert_eq!(messages("crates/md/src/a.rs", "use std::fs;\n").len(), 1);
    }

    #[test]
    fn comments_are_short_lines_about_things() {
        let wide = format!("//! Doc.\n\n/// {}\nfn a() {{}}\n", "word ".repeat(25));
        assert_eq!(messages("crates/x/src/a.rs", &wide).len(), 1);
        let table = wide.replace("/// word", "/// | word");
        let drawing = wide.replace("/// word", "/// ```text\n/// word").replace("\nfn", "\n/// ```\nfn");
        for fine in [table, drawing, wide.replace("/// word", "const A: &str = \"")] {
            assert!(messages("crates/x/src/a.rs", &fine).is_empty(), "{fine}");
        }
        let person = concat!("//! Doc.\n\n// Some", "body waits, and w", "ho waits is woken.\nfn a() {}\n");
        assert_eq!(messages("crates/x/src/a.rs", person).len(), 2);
    }

    #[test]
    fn strings_and_names_are_about_things() {
        let name = concat!("//! Doc.\n\nfn no", "body_waits() {}\n");
        let text = concat!("//! Doc.\n\nconst A: &str = \"a task, w", "ho waits\";\n");
        let variable = concat!("//! Doc.\n\nfn a(w", "hom: u8) {}\n");
        for person in [name, text, variable] {
            let found = messages("crates/x/src/a.rs", person);
            assert!(found.len() == 1 && found[0].starts_with("crates/x/src/a.rs:3: "), "{found:?}");
        }
        let longer = "//! Doc.\n\nfn whole_wholesale() {}\nconst A: &str = \"the whole, whose\";\n";
        assert!(messages("crates/x/src/a.rs", longer).is_empty());
    }

    #[test]
    fn a_crate_takes_the_lints_of_the_workspace() {
        assert_eq!(messages("crates/md/Cargo.toml", "[package]\nname = \"a\"\n").len(), 1);
        assert!(messages("crates/md/Cargo.toml", "[package]\n[lints]\nworkspace = true\n").is_empty());
        assert!(messages("Cargo.toml", "[workspace]\n").is_empty());
    }
}
