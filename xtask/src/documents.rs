//! The documents' own checks: links lead somewhere, the files, tests and defects that they name exist, and
//! every rule has some.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::tidy::Finding;

/// A page that names tests, and the headings around the part that does.
struct Shown {
    page: &'static str,
    from: &'static str,
    to: &'static str,
}

const FAULT_MODEL: Shown =
    Shown { page: "docs/fault-model.md", from: "## What shows it", to: "## Dirty and degraded" };
const RULES: Shown = Shown { page: "docs/correctness.md", from: "## What shows each rule", to: "" };

/// The walks of CONTRIBUTING.md each end with the tests that tell that it is right.
const WALKS: [Shown; 4] = [
    Shown { page: "CONTRIBUTING.md", from: "### Tests of a front end", to: "## To add a consistency policy" },
    Shown {
        page: "CONTRIBUTING.md",
        from: "### Tests of a consistency policy",
        to: "## To add a write policy",
    },
    Shown { page: "CONTRIBUTING.md", from: "### Tests of a write policy", to: "## To add a level" },
    Shown { page: "CONTRIBUTING.md", from: "### Tests of a level", to: "## License" },
];

/// The page with what to do about each alert, and where alerts are from.
const ALERTS: &str = "docs/operate.md";
const ALERT_RULES: &str = "dist/prometheus/pinstripe.rules.yml";
const ALERT_KINDS: &str = "crates/cli/src/daemon/alerts.rs";

/// Pages that lead through the code: what they name of it exists.
const GUIDES: [&str; 2] = ["CONTRIBUTING.md", "docs/architecture.md"];

/// Pages of their day: they may name files as they were.
const HISTORY: [&str; 2] = ["docs/decisions/", "docs/results/"];

/// Checks every document of `documents` (paths from the root); `sources` are where tests may be.
pub fn check(root: &Path, documents: &[String], sources: &[String]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in documents {
        let text = read(root, file)?;
        for (line, target) in links(&text) {
            if let Some(message) = broken(root, file, target)? {
                findings.push(Finding { file: file.clone(), line, message });
            }
        }
    }
    let (mut known, mut words, mut texts) = (HashSet::new(), HashSet::new(), Vec::new());
    for file in sources {
        let text = read(root, file)?;
        known.extend(definitions(&text));
        words.extend(text.split(|c| !is_part_of_word(c)).map(str::to_owned));
        if file.ends_with("/mutants.rs") {
            known.extend(defects(&text));
            if documents.iter().any(|file| file == RULES.page) {
                findings.extend(defects_not_shown(&read(root, RULES.page)?, &text));
            }
        }
        texts.push((without_src(file), text));
    }
    for file in documents.iter().filter(|file| !HISTORY.iter().any(|folder| file.starts_with(folder))) {
        let text = read(root, file)?;
        findings.extend(unknown_files(file, &text, sources));
        findings.extend(misplaced(file, &text, &texts));
    }
    for shown in [FAULT_MODEL, RULES].into_iter().chain(WALKS) {
        if documents.iter().any(|file| file == shown.page) {
            findings.extend(unknown_tests(&shown, &read(root, shown.page)?, &known));
        }
    }
    for page in GUIDES.into_iter().filter(|page| documents.iter().any(|file| file == page)) {
        findings.extend(unknown_words(page, &read(root, page)?, &words));
    }
    if documents.iter().any(|file| file == RULES.page) {
        findings.extend(rules_not_shown(&read(root, RULES.page)?));
    }
    if documents.iter().any(|file| file == ALERTS) {
        let (rules, kinds) = (read(root, ALERT_RULES)?, read(root, ALERT_KINDS)?);
        findings.extend(alerts_not_told(&read(root, ALERTS)?, &rules, &kinds));
    }
    Ok(findings)
}

fn read(root: &Path, file: &str) -> Result<String> {
    fs::read_to_string(root.join(file)).with_context(|| format!("read {file}"))
}

/// The targets of `[text](target)`, with their lines from 1.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).flat_map(|(number, line)| {
        line.split("](").skip(1).filter_map(move |rest| Some((number, rest.split_once(')')?.0)))
    })
}

/// Source files in backticks that are none: a name, or the end of a path, with or without `src`.
fn unknown_files(file: &str, text: &str, sources: &[String]) -> Vec<Finding> {
    let paths: Vec<String> = sources.iter().map(|path| without_src(path)).collect();
    let names = (1..)
        .zip(text.lines())
        .flat_map(|(number, line)| line.split('`').skip(1).step_by(2).map(move |name| (number, name)));
    let is_file = |name: &str| name.strip_suffix(".rs").is_some_and(|stem| stem.chars().all(is_part_of_path));
    let unknown = names.filter(|(_, name)| is_file(name)).filter(|(_, name)| {
        let end = without_src(name);
        !paths.iter().any(|path| path.ends_with(&end))
    });
    let finding = |(line, name): (usize, &str)| Finding {
        file: file.to_owned(),
        line,
        message: format!("no source file is called {name}"),
    };
    unknown.map(finding).collect()
}

fn without_src(path: &str) -> String {
    format!("/{}", path.replace("/src/", "/"))
}

/// Names that a page says are in a source file, and aren't: "`name` in [file](path)" and "`file.rs` (`name`,
/// `name`)". The texts of the sources have their paths without `src`.
fn misplaced(page: &str, text: &str, sources: &[(String, String)]) -> Vec<Finding> {
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let quoted_before = |end: usize| flat[..end].rsplit('`').next().unwrap_or_default();
    let linked = flat.match_indices("` in [").filter_map(|(at, found)| {
        let (target, _) = flat[at + found.len()..].split_once("](")?.1.split_once(')')?;
        Some((target.rsplit("../").next()?, vec![quoted_before(at)]))
    });
    let bracketed = flat.match_indices(".rs` (`").filter_map(|(at, found)| {
        let (names, _) = flat[at + found.len()..].split_once(')')?;
        Some((quoted_before(at + ".rs".len()), names.split('`').step_by(2).collect::<Vec<_>>()))
    });
    let mut findings = Vec::new();
    for (file, names) in linked.chain(bracketed).filter(|(file, _)| file.strip_suffix(".rs").is_some()) {
        let end = without_src(file);
        let has = |word: &str| {
            let mut texts = sources.iter().filter(|(path, _)| path.ends_with(&end));
            texts.any(|(_, text)| text.split(|c| !is_part_of_word(c)).any(|each| each == word))
        };
        for name in names.into_iter().filter(|name| name.chars().all(|c| is_part_of_word(c) || c == ':')) {
            if !name.split("::").all(has) {
                let message = format!("{file} has nothing that is called {name}");
                findings.push(Finding { file: page.to_owned(), line: 1, message });
            }
        }
    }
    findings
}

/// Names of the code in backticks that no source has: of two words at least, for one is often prose. Names of
/// the kernel's are in capitals.
fn unknown_words(page: &str, text: &str, known: &HashSet<String>) -> Vec<Finding> {
    let names = (1..)
        .zip(text.lines())
        .flat_map(|(number, line)| line.split('`').skip(1).step_by(2).map(move |name| (number, name)));
    let is_of_code = |name: &str| name.chars().all(|c| is_part_of_word(c) || c == ':');
    let is_of_words = |word: &str| {
        let turns = word.chars().zip(word.chars().skip(1));
        let turns = turns.filter(|(one, next)| one.is_lowercase() && next.is_uppercase()).count();
        turns > 0 || word.contains('_') && word.chars().any(char::is_lowercase)
    };
    let words = names
        .filter(|(_, name)| is_of_code(name))
        .flat_map(|(number, name)| name.split("::").map(move |word| (number, word)));
    let unknown = words.filter(|(_, word)| is_of_words(word) && !known.contains(*word));
    let finding = |(line, word): (usize, &str)| Finding {
        file: page.to_owned(),
        line,
        message: format!("nothing in the sources is called {word}"),
    };
    unknown.map(finding).collect()
}

fn is_part_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn is_part_of_path(c: char) -> bool {
    is_part_of_name(c) || "./-".contains(c)
}

/// What is wrong with a link of `file`. Links to other hosts are not followed.
fn broken(root: &Path, file: &str, target: &str) -> Result<Option<String>> {
    if target.contains("://") {
        return Ok(None);
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let here = root.join(file);
    let there = if path.is_empty() { here } else { here.with_file_name("").join(path) };
    if !there.exists() {
        return Ok(Some(format!("the link to {target} leads nowhere")));
    }
    if !anchor.is_empty() && !anchors(&fs::read_to_string(&there)?).any(|each| each == anchor) {
        return Ok(Some(format!("{path} has no heading #{anchor}")));
    }
    Ok(None)
}

/// The anchors of a page's headings, as the usual renderers make them.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
    headings.map(|heading| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

/// Names that a source gives to functions, scenarios of the VM and fuzz targets.
fn definitions(text: &str) -> Vec<String> {
    let starts = ["fn ", "name: \"", "name = \""];
    let names = text.lines().filter_map(|line| {
        let line = line.trim_start().trim_start_matches("async ");
        starts.iter().find_map(|start| line.strip_prefix(start))
    });
    names.map(|rest| rest.chars().take_while(|c| is_part_of_name(*c)).collect()).collect()
}

/// The deliberate defects that a crate names.
fn defects(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().map(str::trim).filter_map(|line| line.strip_suffix(','));
    lines.filter(|name| name.chars().all(char::is_alphanumeric)).map(str::to_owned)
}

/// Alerts of Prometheus' rules and of the daemon without a row that says what they mean.
fn alerts_not_told(page: &str, rules: &str, kinds: &str) -> Vec<Finding> {
    let told: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    let is_told = |name: &str| {
        let name = format!("`{name}`");
        told.iter().filter_map(|row| row.split('|').nth(1)).any(|cell| cell.contains(&name))
    };
    let of_rules = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let quoted = |text| str::trim_start(text).strip_prefix('"').and_then(|text| text.split('"').next());
    let is_kind =
        |name: &&str| name.starts_with(char::is_uppercase) && name.chars().all(char::is_alphanumeric);
    // As they are raised, and those that have a name for themselves.
    let of_daemon = ["add(", ": &str ="].into_iter().flat_map(|before| kinds.split(before).skip(1));
    let of_daemon = of_daemon.filter_map(quoted).filter(is_kind);
    let missing = of_rules.chain(of_daemon).filter(|name| !is_told(name));
    let finding = |name: &str| Finding {
        file: ALERTS.to_owned(),
        line: 1,
        message: format!("no row says what the alert {name} means"),
    };
    missing.map(finding).collect()
}

/// Rules without a row in the table of what shows them, and those of which the sentence below it doesn't say
/// rightly whether they have a defect.
fn rules_not_shown(page: &str) -> Vec<Finding> {
    let rules = (1..).zip(page.lines()).filter_map(|(number, line)| {
        let (rule, _) = line.strip_prefix("- **")?.split_once(',')?;
        Some((number, rule))
    });
    let sentence = page.lines().find(|line| line.starts_with("Without a defect")).unwrap_or_default();
    let (sentence, _) = sentence.split_once('.').unwrap_or_default();
    let is_without = |rule: &str| sentence.split(|c| !is_part_of_word(c)).any(|word| word == rule);
    let wrong = rules.filter(|(_, rule)| {
        defects_of(page, rule).is_none_or(|defects| defects.trim().is_empty() != is_without(rule))
    });
    let finding = |(line, rule)| {
        let message = format!("the table has no row of {rule}, or not what is said below of its defects");
        Finding { file: RULES.page.to_owned(), line, message }
    };
    wrong.map(finding).collect()
}

/// Of the row of a rule, its first one, the defects.
fn defects_of<'a>(page: &'a str, rule: &str) -> Option<&'a str> {
    let start = format!("| {rule} |");
    page.lines().find(|line| line.starts_with(&start))?.split('|').nth(3)
}

/// Defects of a source that a rule's row lacks, although their comments name the rule.
fn defects_not_shown(page: &str, source: &str) -> Vec<Finding> {
    let is_rule = |word: &&str| {
        let number = word.strip_prefix('C').unwrap_or_default();
        !number.is_empty() && number.chars().all(|c| c.is_ascii_digit())
    };
    let (mut findings, mut comment) = (Vec::new(), String::new());
    for line in source.lines().map(str::trim) {
        if let Some(words) = line.strip_prefix("///") {
            comment.push_str(words);
            continue;
        }
        for name in defects(line) {
            let named = format!("`{name}`");
            let rules = comment.split(|c| !is_part_of_word(c)).filter(is_rule);
            let rules = rules.filter(|rule| defects_of(page, rule).is_none_or(|row| !row.contains(&named)));
            findings.extend(rules.map(|rule| Finding {
                file: RULES.page.to_owned(),
                line: 1,
                message: format!("the row of {rule} lacks the defect {name}"),
            }));
        }
        comment.clear();
    }
    findings
}

fn is_part_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || "_-".contains(character)
}

fn unknown_tests(shown: &Shown, page: &str, known: &HashSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !page.lines().any(|line| line == shown.from) {
        let message = format!("there is no heading {:?}: its tests are not looked at", shown.from);
        findings.push(Finding { file: shown.page.to_owned(), line: 1, message });
    }
    let lines = (1..).zip(page.lines());
    let list = lines.skip_while(|(_, line)| *line != shown.from);
    let list = list.take_while(|(_, line)| shown.to.is_empty() || *line != shown.to);
    for (number, line) in list {
        for name in line.split('`').skip(1).step_by(2) {
            if name.chars().all(is_part_of_name) && !known.contains(name) {
                let message = format!("there is no test, scenario or defect `{name}`");
                findings.push(Finding { file: shown.page.to_owned(), line: number, message });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heading_is_found_by_its_anchor() {
        let page = "# A `b`: c\n\n### 11.1 Any update, of it\n";
        assert_eq!(anchors(page).collect::<Vec<_>>(), ["a-b-c", "111-any-update-of-it"]);
    }

    #[test]
    fn every_link_of_a_line_is_looked_at() {
        let found: Vec<_> = links("x\n[a](b.md) and [c](d.md#e), not (f)\n").collect();
        assert_eq!(found, [(2, "b.md"), (2, "d.md#e")]);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(broken(root, "Cargo.toml", "src/documents.rs").unwrap().is_none());
        assert!(broken(root, "src/main.rs", "documents.rs").unwrap().is_none());
        assert!(broken(root, "src/main.rs", "no-such-file.rs").unwrap().is_some());
        assert!(broken(root, "src/main.rs", "documents.rs#no-such-heading").unwrap().is_some());
        assert!(broken(root, "src/main.rs", "https://example.org/").unwrap().is_none());
    }

    #[test]
    fn a_file_that_is_no_more_is_found() {
        let sources = ["crates/engine/src/io/read.rs".to_owned(), "xtask/src/main.rs".to_owned()];
        let found = |text: &str| unknown_files("page.md", text, &sources).len();
        assert_eq!(found("`read.rs`, `io/read.rs`, `engine/io/read.rs` and `xtask/src/main.rs`"), 0);
        assert_eq!(found("`ead.rs`\nread.rs, `*_read.rs`, `a b.rs`"), 1);
    }

    #[test]
    fn a_name_that_is_in_another_file_is_found() {
        let sources = [("/crates/a/b.rs", "fn one() {}"), ("/crates/a/c.rs", "fn two() { T::U }")];
        let sources = sources.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let found = |text: &str| misplaced("page.md", text, &sources).len();
        assert_eq!(found("`one` in\n[b](../crates/a/src/b.rs), `b.rs` (`one`), `c.rs` (`two`,\n`T::U`)"), 0);
        assert_eq!(found("`one` in [c](crates/a/src/c.rs), `b.rs` (`two`, `a b`), `x` in [d](d.md)"), 2);
    }

    #[test]
    fn a_name_of_the_code_that_is_no_more_is_found() {
        let known = ["write_in_place", "StripeWrite"].map(str::to_owned).into();
        let found = |text: &str| unknown_words("page.md", text, &known).len();
        assert_eq!(found("`StripeWrite::write_in_place`, `write`, `O_DIRECT`, `a b_c`, no_such, `c-d_e`"), 0);
        assert_eq!(found("`StripeWriter`\n`StripeWrite::write_twice` and `read_in_place`"), 3);
    }

    #[test]
    fn an_alert_that_no_row_tells_of_is_found() {
        let page = "`Late`, | `x` |\n| `Silent`, `PinstripeSilent` | `Failed` | `Odd` |\n";
        let rules = "rules:\n  - alert: PinstripeSilent\n    expr: x\n  - alert: PinstripeLate\n";
        let kinds = "const A: &str = \"Odd\";\nadd(\"Silent\", x);\nadd(\n    \"Failed\",\n x.add(\"a b\")";
        let found: Vec<_> =
            alerts_not_told(page, rules, kinds).iter().map(|finding| finding.message.clone()).collect();
        assert_eq!(found.len(), 3, "{found:?}");
        for (message, name) in found.iter().zip(["PinstripeLate", "Failed", "Odd"]) {
            assert!(message.ends_with(&format!("the alert {name} means")), "{message}");
        }
    }

    #[test]
    fn a_rule_that_nothing_shows_is_found() {
        let page = "- **C1, a.** Text\n- **C2, b.**\n- **C3, c.**\n| C1 | `a` | `B` |\n| C3 | `c` | |\n";
        let found = rules_not_shown(&format!("{page}Without a defect is C3. It is C1.\n"));
        assert!(found.len() == 1 && found[0].to_string().contains("C2"), "{found:?}");
        assert_eq!(rules_not_shown(&format!("{page}Without a defect is C1.\n")).len(), 3);
        let found = defects_not_shown(page, "/// Of one (C1).\nB,\n/// Of three\n/// (C1, C3).\nD,\nE,\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(defects("    /// Doc.\n    Broken,\n    other(x),\n").collect::<Vec<_>>(), ["Broken"]);
    }

    #[test]
    fn a_test_that_does_not_exist_is_found() {
        let known = definitions("    fn here() {\n        name: \"in-vm\",\n").into_iter().collect();
        let page = format!(
            "`outside`\n{}\n1. `here`, vm: `in-vm`, `gone`; `vm: NAME`\n{}\n`x`\n",
            FAULT_MODEL.from, FAULT_MODEL.to
        );
        let found = unknown_tests(&FAULT_MODEL, &page, &known);
        assert!(found.len() == 1 && found[0].to_string().contains("`gone`"), "{found:?}");
        let found = unknown_tests(&FAULT_MODEL, "`gone`\n", &known);
        assert!(found.len() == 1 && found[0].to_string().contains(FAULT_MODEL.from), "{found:?}");
    }
}
