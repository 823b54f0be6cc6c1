//! Which modules of a crate use each other, and in which circles.
//!
//! An arrow goes from the file that names something to the file of the module that it names: in a `use`, or
//! in a path. Tests don't count. A circle of files is told when it leaves a folder: a change of one of its
//! files takes knowledge of all of them, and the folders say nothing about what rests on what. A module and
//! the modules below it are one folder.
//!
//! A `lib.rs` may list the crate's modules behind a line that begins with "From the bottom up". Then an arrow
//! to a module further down in that list is told too, and so is a module that isn't in it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod, ItemUse, UseTree};

use crate::tidy::Finding;

/// How the line begins behind which a `lib.rs` lists its modules, each one above those that it uses.
const ORDER: &str = "//! From the bottom up";

/// The modules of one crate: what each names.
#[derive(Default)]
struct Crate {
    /// By path of the module, `a::b` as `["a", "b"]`: its file.
    files: BTreeMap<Vec<String>, String>,
    arrows: BTreeMap<Vec<String>, BTreeSet<Vec<String>>>,
}

/// A finding for each circle that leaves a folder. `sources` are paths from the root, with their text.
pub fn check(sources: &[(String, String)]) -> Result<Vec<Finding>> {
    let mut crates: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for (file, text) in sources {
        if let Some((name, below)) = file.split_once("/src/")
            && !below.starts_with("bin/")
            && !below.ends_with("tests.rs")
            && !below.contains("tests/")
        {
            crates.entry(name).or_default().push((file, text));
        }
    }
    let mut findings = Vec::new();
    for files in crates.values() {
        let modules = Crate::read(files)?;
        for circle in modules.circles() {
            let file = circle.first().map_or_else(String::new, |&first| first.to_owned());
            let message = format!("these files use each other in a circle: {}", circle.join(", "));
            findings.push(Finding { file, line: 1, message });
        }
        if let Some((_, text)) = files.iter().find(|(file, _)| file.ends_with("/src/lib.rs")) {
            findings.extend(modules.against(&stated_order(text)));
        }
    }
    Ok(findings)
}

impl Crate {
    fn read(files: &[(&str, &str)]) -> Result<Self> {
        let mut this = Self::default();
        for (file, _) in files {
            this.files.insert(module(file), (*file).to_owned());
        }
        for (file, text) in files {
            let parsed = syn::parse_file(text).with_context(|| format!("{file} doesn't parse as Rust"))?;
            let mut names = Names { module: module(file), paths: Vec::new() };
            names.visit_file(&parsed);
            let Names { module, paths } = names;
            let targets = paths.iter().filter_map(|path| this.target(&module, path));
            let targets = targets.filter(|target| *target != module).collect();
            this.arrows.insert(module, targets);
        }
        Ok(this)
    }

    /// The module with a file of its own that `path`, named in `module`, leads to.
    fn target(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        let (mut at, rest) = match first.as_str() {
            "crate" => (Vec::new(), rest),
            "self" => (module.to_vec(), rest),
            "super" => {
                let ups = path.iter().take_while(|part| *part == "super").count();
                (module[..module.len().checked_sub(ups)?].to_vec(), &path[ups..])
            }
            // A module below, named without `self`.
            child => {
                let below: Vec<String> = module.iter().cloned().chain([child.to_owned()]).collect();
                if !self.files.contains_key(&below) {
                    return None;
                }
                (below, rest)
            }
        };
        for part in rest {
            at.push(part.clone());
            if !self.files.contains_key(&at) {
                at.pop();
                break;
            }
        }
        Some(at)
    }

    /// The files of each circle that leaves a folder.
    fn circles(&self) -> Vec<Vec<&str>> {
        let reach: BTreeMap<_, _> = self.arrows.keys().map(|module| (module, self.reach(module))).collect();
        let mut circles = BTreeSet::new();
        for (module, reached) in &reach {
            let circle: BTreeSet<&Vec<String>> =
                reached.iter().copied().filter(|other| reach[other].contains(module)).collect();
            let folders: BTreeSet<&[String]> = circle.iter().map(|module| self.folder(module)).collect();
            if folders.len() > 1 {
                circles.insert(circle);
            }
        }
        let file = |module: &&Vec<String>| self.files[*module].as_str();
        circles.iter().map(|circle| circle.iter().map(file).collect()).collect()
    }

    /// Findings where a module uses one that comes later in `order`, or is not in it. None without an order.
    fn against(&self, order: &[String]) -> Vec<Finding> {
        let floor = |module: &[String]| order.iter().position(|name| module.first() == Some(name));
        let mut findings = Vec::new();
        for (module, targets) in
            self.arrows.iter().filter(|(module, _)| !order.is_empty() && !module.is_empty())
        {
            let tell = |message| Finding { file: self.files[module].clone(), line: 1, message };
            let Some(own) = floor(module) else {
                findings
                    .push(tell("lib.rs lists the modules from the bottom up, without this one".to_owned()));
                continue;
            };
            let above = targets.iter().filter(|target| floor(target).is_some_and(|floor| floor > own));
            findings.extend(above.map(|target| {
                let (own, target) = (&order[own], target.join("::"));
                tell(format!(
                    "{own} uses {target}, which lib.rs lists further down: it may use what comes before it"
                ))
            }));
        }
        findings
    }

    /// All modules that `module` leads to; itself, if it is in a circle.
    fn reach(&self, module: &Vec<String>) -> BTreeSet<&Vec<String>> {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&Vec<String>> = self.arrows[module].iter().collect();
        while let Some(next) = open.pop() {
            if reached.insert(next) {
                open.extend(self.arrows.get(next).into_iter().flatten());
            }
        }
        reached
    }

    /// A module that has others below is a folder, any other lies in the one of its parent.
    fn folder<'a>(&self, module: &'a [String]) -> &'a [String] {
        let is_folder =
            self.files.keys().any(|other| other.len() > module.len() && other.starts_with(module));
        if is_folder { module } else { &module[..module.len().saturating_sub(1)] }
    }
}

/// The modules that a `lib.rs` lists from the bottom up.
fn stated_order(text: &str) -> Vec<String> {
    let list = text.lines().skip_while(|line| !line.starts_with(ORDER)).skip(1);
    let list = list.take_while(|line| line.starts_with("//!")).filter_map(|line| line.strip_prefix("//! - "));
    let names = list.flat_map(|line| {
        let names = line.split([':', '(']).next().unwrap_or_default();
        names.split('`').skip(1).step_by(2)
    });
    names.map(|name| name.trim_start_matches("mod@").to_owned()).collect()
}

/// The path of the module that a file of `src` holds.
fn module(file: &str) -> Vec<String> {
    let below = file.split_once("/src/").map_or(file, |(_, below)| below);
    let path = below.trim_end_matches(".rs");
    let mut parts: Vec<String> = path.split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

/// Collects the paths that a file names.
struct Names {
    module: Vec<String>,
    paths: Vec<Vec<String>>,
}

impl Names {
    fn tree(&mut self, before: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(before, &path.tree);
                before.pop();
            }
            UseTree::Name(name) => self.paths.push([before.as_slice(), &[name.ident.to_string()]].concat()),
            UseTree::Rename(name) => self.paths.push([before.as_slice(), &[name.ident.to_string()]].concat()),
            UseTree::Glob(_) => self.paths.push(before.clone()),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(before, tree)),
        }
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !item.attrs.iter().any(is_for_tests) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !item.attrs.iter().any(is_for_tests) {
            self.tree(&mut Vec::new(), &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if parts.len() > 1 {
            self.paths.push(parts);
        }
        visit::visit_path(self, path);
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let owned = |&(file, text): &(&str, &str)| (format!("crates/x/src/{file}"), text.to_owned());
        let sources: Vec<_> = files.iter().map(owned).collect();
        check(&sources).unwrap().into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn files_of_different_folders_that_use_each_other_are_found() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "mod c; fn f() { crate::b::g::<u8>() }"),
            ("a/c.rs", ""),
            ("b.rs", "use crate::{a::{c, f as other}, std::x}; fn g() {}"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("src/a.rs") && found[0].contains("src/b.rs"), "{found:?}");
    }

    #[test]
    fn a_module_that_uses_one_further_down_in_the_stated_order_is_found_and_so_is_one_that_is_not_in_it() {
        let order =
            "//! Crate.\n//!\n//! From the bottom up; told:\n//!\n//! - `a`, [`mod@b`]: two\n//! - [`c`]\n";
        let files = |a, d| {
            [
                ("lib.rs", order),
                ("a.rs", a),
                ("b.rs", "use crate::a;"),
                ("c.rs", "use crate::b;"),
                ("d.rs", d),
            ]
        };
        assert_eq!(circles(&files("", "")[..4]), Vec::<String>::new());
        let found = circles(&files("fn f() { crate::c::g() }", "")[..4]);
        assert!(found.iter().any(|message| message.starts_with("a uses c,")), "{found:?}");
        let found = circles(&files("", "mod e;"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("without this one"), "{found:?}");
    }

    #[test]
    fn a_circle_over_three_files_is_reported_once() {
        let found = circles(&[
            ("a/mod.rs", "use super::b::y::B;"),
            ("a/x.rs", ""),
            ("b/mod.rs", "mod y;"),
            ("b/y.rs", "use crate::c;"),
            ("c.rs", "use crate::a;"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn a_module_and_those_below_it_may_use_each_other_and_tests_may_use_all() {
        let found = circles(&[
            ("a.rs", "mod b; mod c; use b::B; use self::c::C;"),
            ("a/b.rs", "use super::{A, c::C};"),
            ("a/c.rs", "use crate::a::b;"),
            ("d.rs", "use crate::a; #[cfg(test)] mod tests { use super::*; }"),
            ("a/e.rs", "#[cfg(test)] use crate::d; #[cfg(test)] mod tests { use crate::d; }"),
            ("tests.rs", "use crate::a;"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
