//! The drawing of the crates in docs/architecture.md against what their Cargo.toml files say.
//!
//! Each arrow of the page's first Mermaid block is a dependency of one workspace member on another, and each
//! such dependency is an arrow. Dependencies of tests don't count. A crate is named by its folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::tidy::Finding;

const PAGE: &str = "docs/architecture.md";

/// Crate and crate that it depends on.
type Arrow = (String, String);

/// What `cargo metadata` says, as far as it is needed.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    manifest_path: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    /// None for an ordinary one; else `dev` or `build`.
    kind: Option<String>,
    /// The folder of a dependency in this repository.
    path: Option<String>,
}

/// Compares the page under `root` with the workspace there.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let output = crate::cargo::command()
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .context("run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let page = fs::read_to_string(root.join(PAGE)).with_context(|| format!("read {PAGE}"))?;
    Ok(compare(&page, &dependencies(&output.stdout)?))
}

/// The dependencies of workspace members on each other.
fn dependencies(metadata: &[u8]) -> Result<BTreeSet<Arrow>> {
    let metadata: Metadata = serde_json::from_slice(metadata).context("read what cargo metadata says")?;
    let mut arrows = BTreeSet::new();
    for package in &metadata.packages {
        let from = Path::new(&package.manifest_path).parent().context("a manifest lies in a folder")?;
        let ours = package.dependencies.iter().filter(|dependency| dependency.kind.as_deref() != Some("dev"));
        for path in ours.filter_map(|dependency| dependency.path.as_deref()) {
            arrows.insert((folder(from), folder(Path::new(path))));
        }
    }
    Ok(arrows)
}

fn folder(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn compare(page: &str, dependencies: &BTreeSet<Arrow>) -> Vec<Finding> {
    let finding = |line, message| Finding { file: PAGE.to_owned(), line, message };
    let Some(begin) = page.lines().position(|line| line == "```mermaid") else {
        return vec![finding(1, "there is no Mermaid block with the crates".to_owned())];
    };
    let drawn = arrows(page, begin);
    let unknown = drawn.iter().filter(|(arrow, _)| !dependencies.contains(*arrow));
    let missing = dependencies.iter().filter(|arrow| !drawn.contains_key(*arrow));
    unknown
        .map(|((from, to), line)| {
            finding(*line, format!("{from} doesn't depend on {to}: take the arrow out"))
        })
        .chain(missing.map(|(from, to)| finding(begin + 1, format!("{from} depends on {to}: draw an arrow"))))
        .collect()
}

/// The arrows of the block that begins with line `begin` (from 0), with their lines from 1.
fn arrows(page: &str, begin: usize) -> BTreeMap<Arrow, usize> {
    let block = (1..).zip(page.lines()).skip(begin + 1).take_while(|(_, line)| *line != "```");
    let mut arrows = BTreeMap::new();
    for (number, line) in block {
        let Some((from, to)) = line.split_once("-->") else { continue };
        for from in from.split('&') {
            for to in to.split('&') {
                arrows.insert((from.trim().to_owned(), to.trim().to_owned()), number);
            }
        }
    }
    arrows
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{"packages": [
        {"manifest_path": "/w/crates/a/Cargo.toml", "dependencies": [
            {"kind": null, "path": "/w/crates/b"}, {"kind": null, "path": "/w/crates/c"},
            {"kind": "dev", "path": "/w/crates/d"}, {"kind": null}]},
        {"manifest_path": "/w/crates/b/Cargo.toml", "dependencies": [{"kind": "build", "path": "/w/crates/c"}]}
    ]}"#;

    fn messages(drawing: &str) -> Vec<String> {
        let page = format!("# Page\n\n```mermaid\nflowchart TD\n{drawing}```\n\n```mermaid\nx --> y\n```\n");
        let dependencies = dependencies(METADATA.as_bytes()).unwrap();
        compare(&page, &dependencies).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_drawing_of_all_dependencies_but_those_of_tests_is_right() {
        assert_eq!(messages("    a --> b & c\n    b --> c\n"), Vec::<String>::new());
        assert_eq!(messages("    a & b --> c\n    a --> b\n"), Vec::<String>::new());
    }

    #[test]
    fn an_arrow_that_lacks_is_found() {
        assert_eq!(messages("    a --> b & c\n"), [format!("{PAGE}:3: b depends on c: draw an arrow")]);
    }

    #[test]
    fn an_arrow_without_a_dependency_is_found() {
        let found = messages("    a --> b & c & d\n    b --> c\n");
        assert_eq!(found, [format!("{PAGE}:5: a doesn't depend on d: take the arrow out")]);
    }

    #[test]
    fn a_page_without_a_drawing_is_found() {
        assert_eq!(compare("# Page\n", &BTreeSet::new()).len(), 1);
    }
}
