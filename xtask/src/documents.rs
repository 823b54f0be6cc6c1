//! The documents' own checks: links lead somewhere, and the fault model names tests that exist.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::tidy::Finding;

/// The page whose list of tests is checked, and the headings around the list.
const FAULT_MODEL: &str = "docs/fault-model.md";
const LIST: (&str, &str) = ("## What shows it", "## Dirty and degraded");

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
    if documents.iter().any(|file| file == FAULT_MODEL) {
        let mut known = HashSet::new();
        for file in sources {
            known.extend(definitions(&read(root, file)?));
        }
        findings.extend(unknown_tests(&read(root, FAULT_MODEL)?, &known));
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

fn is_part_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || "_-".contains(character)
}

fn unknown_tests(page: &str, known: &HashSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = (1..).zip(page.lines());
    let list = lines.skip_while(|(_, line)| *line != LIST.0).take_while(|(_, line)| *line != LIST.1);
    for (number, line) in list {
        for name in line.split('`').skip(1).step_by(2) {
            if name.chars().all(is_part_of_name) && !known.contains(name) {
                let message = format!("there is no test or scenario `{name}`");
                findings.push(Finding { file: FAULT_MODEL.to_owned(), line: number, message });
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
    fn a_test_that_does_not_exist_is_found() {
        let known = definitions("    fn here() {\n        name: \"in-vm\",\n").into_iter().collect();
        let page =
            format!("`outside`\n{}\n1. `here`, vm: `in-vm`, `gone`; `vm: NAME`\n{}\n`x`\n", LIST.0, LIST.1);
        let found = unknown_tests(&page, &known);
        assert!(found.len() == 1 && found[0].to_string().contains("`gone`"), "{found:?}");
    }
}
