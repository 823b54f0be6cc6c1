//! The mutated copy of the workspace: made, woven, and built until what doesn't compile is out.
//!
//! A file of the copy is written only if it has changed, so a round builds what it must. A mutant that the
//! compiler complains of is left out and named in the result; the others keep their numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Mutant;
use super::schemata::{Numbered, Schemata, weave};

/// The crates that are mutated.
pub const CRATES: &[&str] = &["block", "engine", "export", "md", "nvme"];
/// What the copy has besides: what they need, and what runs them.
const OTHERS: &[&str] = &["parity", "runtime", "sim", "tls"];
/// Builds after which the rest is not going to compile either.
const ROUNDS: usize = 12;
/// A program that was built.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its crate.
    pub package: String,
    /// The target's name.
    pub name: String,
    /// Whether it is a library's own tests.
    pub of_library: bool,
    /// Whether it is a test.
    pub is_test: bool,
    /// Where it lies.
    pub path: PathBuf,
}

/// Where the copy is.
pub struct Copy {
    root: PathBuf,
    directory: PathBuf,
}

impl Copy {
    /// Makes it, unmutated, with these suites.
    pub fn new(root: &Path, suites: &[String]) -> Result<Self> {
        let copy = Self { root: root.to_owned(), directory: root.join("target/mutate/copy") };
        let list = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "crates", "Cargo.lock"])
            .current_dir(root)
            .output()
            .context("run git")?;
        let mut kept = BTreeSet::new();
        for path in String::from_utf8(list.stdout)?.split('\0').filter(|path| !path.is_empty()) {
            let of = path.split('/').nth(1).unwrap_or_default();
            let copied = path == "Cargo.lock" || CRATES.contains(&of) || OTHERS.contains(&of);
            let wanted = program_of(root, path).is_none_or(|program| {
                suites.iter().any(|suite| suite.split("::").next() == Some(program.as_str()))
            });
            if copied && wanted && root.join(path).is_file() {
                kept.insert(path.to_owned());
            }
        }
        for name in CRATES.iter().chain(OTHERS) {
            copy.forget_suites(&format!("crates/{name}/tests"), &kept)?;
        }
        for path in &kept {
            // The sources of the crates are woven, the manifests changed: below. Cargo shortens the lock
            // file.
            let changed = CRATES.iter().any(|name| path.starts_with(&format!("crates/{name}/src/")))
                || path.ends_with("Cargo.toml")
                || path == "Cargo.lock" && copy.at(path).exists();
            if !changed {
                write_if_new(&copy.at(path), &fs::read(root.join(path))?)?;
            }
        }
        copy.write_manifests(&kept)?;
        Ok(copy)
    }

    /// Takes away what an earlier copy had of suites that aren't wanted now.
    fn forget_suites(&self, folder: &str, kept: &BTreeSet<String>) -> Result<()> {
        let Ok(entries) = fs::read_dir(self.at(folder)) else { return Ok(()) };
        for entry in entries {
            let entry = entry?;
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if kept.iter().any(|file| file.starts_with(&path)) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn at(&self, path: &str) -> PathBuf {
        self.directory.join(path)
    }

    fn write_manifests(&self, kept: &BTreeSet<String>) -> Result<()> {
        let text = fs::read_to_string(self.root.join("Cargo.toml"))?;
        let mut manifest = String::new();
        for line in text.lines().filter(|line| !line.starts_with("default-members")) {
            if line.starts_with("members") {
                let names = CRATES.iter().chain(OTHERS).chain(&["mutation"]);
                let names: Vec<String> = names.map(|name| format!("\"crates/{name}\"")).collect();
                manifest += "members = [";
                manifest += &names.join(", ");
                manifest += "]\n";
            } else if !line.starts_with("exclude") && line != "panic = \"abort\"" {
                // A panic is a verdict on the mutant, and the lines of its backtrace aren't needed.
                manifest.push_str(&line.replace("\"line-tables-only\"", "false"));
                manifest.push('\n');
            }
        }
        write_if_new(&self.at("Cargo.toml"), manifest.as_bytes())?;
        for path in kept.iter().filter(|path| path.ends_with("Cargo.toml")) {
            let mut text = fs::read_to_string(self.root.join(path))?;
            if CRATES.iter().any(|name| *path == format!("crates/{name}/Cargo.toml")) {
                let dependency = "[dependencies]\nmutation = { path = \"../mutation\" }\n";
                text = text.replacen("[dependencies]\n", dependency, 1);
            }
            // The suites that are wanted are there, and the others aren't.
            while let Some(start) = text.find("[[test]]") {
                let end = text[start..].find("\n\n").map_or(text.len(), |length| start + length + 2);
                text.replace_range(start..end, "");
            }
            if path == "crates/sim/Cargo.toml" {
                text = text.replace("name = \"swarm\"", "name = \"swarm\"\ntest = false");
                text.push_str("\n[lib]\ntest = false\n");
            }
            write_if_new(&self.at(path), text.as_bytes())?;
        }
        let switch =
            "[package]\nname = \"mutation\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n";
        write_if_new(&self.at("crates/mutation/Cargo.toml"), switch.as_bytes())?;
        write_if_new(&self.at("crates/mutation/src/lib.rs"), include_bytes!("switch.rs"))
    }

    /// Weaves the mutants in and builds the tests of the crates that have some, and with the swarm those of
    /// all; gives the programs. What doesn't compile is marked so.
    pub fn build(&self, mutants: &mut [Mutant], swarm: bool) -> Result<Vec<Program>> {
        let of = |name: &&str| mutants.iter().any(|one| one.file.starts_with(&format!("crates/{name}/")));
        let crates: Vec<&str> = CRATES.iter().copied().filter(|name| swarm || of(name)).collect();
        for round in 1..=ROUNDS {
            let woven = self.weave(mutants)?;
            let (programs, errors) = self.compile(&crates, swarm)?;
            if errors.is_empty() {
                return Ok(programs);
            }
            let blamed = blame(&woven, &errors);
            if blamed.is_empty() {
                bail!("the copy doesn't build, and no mutant is near:\n{}", errors[0].words);
            }
            println!("build {round}: {} mutants don't compile", blamed.len());
            for mutant in mutants.iter_mut().filter(|mutant| blamed.contains(&mutant.number)) {
                mutant.compiles = false;
            }
        }
        bail!("the copy still doesn't build after {ROUNDS} rounds");
    }

    fn weave(&self, mutants: &[Mutant]) -> Result<BTreeMap<String, Schemata>> {
        let mut woven = BTreeMap::new();
        for path in sources(&self.root)? {
            let source = fs::read_to_string(self.root.join(&path))?;
            let of_file = mutants.iter().filter(|mutant| mutant.compiles && mutant.file == path);
            let of_file: Vec<Numbered> = of_file
                .map(|mutant| Numbered { number: mutant.number, candidate: mutant.candidate.clone() })
                .collect();
            let schemata = weave(&source, &of_file);
            write_if_new(&self.at(&path), schemata.text.as_bytes())?;
            woven.insert(path, schemata);
        }
        Ok(woven)
    }

    fn compile(&self, crates: &[&str], swarm: bool) -> Result<(Vec<Program>, Vec<Complaint>)> {
        // If this program ends, the build ends as well.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--"]).arg(crate::cargo::path());
        crate::cargo::forget_this_package(&mut command);
        command.args(["build", "--keep-going", "--message-format=json", "--tests"]);
        // Other people's crates are there already, as the tests have them.
        command.arg("--target-dir").arg(self.root.join("target"));
        if swarm {
            command.args(["-p", "pinstripe-sim", "--bin", "swarm", "--features", "pinstripe-sim/mutants"]);
        }
        for name in crates {
            command.args(["-p", &format!("pinstripe-{name}")]);
        }
        command.current_dir(&self.directory).env("CARGO_INCREMENTAL", "0");
        let output = command.stderr(Stdio::piped()).output().context("run setpriv (util-linux) and cargo")?;
        let mut programs = Vec::new();
        let mut errors = Vec::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
            programs.extend(program(&message));
            errors.extend(complaint(&message));
        }
        if !output.status.success() && errors.is_empty() {
            bail!("cargo build: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok((programs, errors))
    }
}

/// The sources that are mutated or copied, relative to the root.
pub fn sources(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders: Vec<String> = CRATES.iter().map(|name| format!("crates/{name}/src")).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if Path::new(&path).extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The program of tests that a file belongs to: `crates/C/tests/PROGRAM.rs` or `crates/C/tests/PROGRAM/...`.
/// What programs share belongs to none.
fn program_of(root: &Path, path: &str) -> Option<String> {
    let mut parts = path.split('/');
    let (_, of, tests, name) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_program = Path::new(name).extension().is_some()
        || root.join(format!("crates/{of}/tests/{name}/main.rs")).exists();
    (tests == "tests" && is_program).then(|| format!("{of}/{}", name.trim_end_matches(".rs")))
}

fn write_if_new(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, bytes).with_context(|| format!("write {}", path.display()))
}

fn program(message: &Value) -> Option<Program> {
    let path = message["executable"].as_str()?;
    // The folder of the crate: `path+file:///.../crates/engine#pinstripe-engine@0.1.0`.
    let package = message["manifest_path"].as_str()?.rsplit('/').nth(1)?.to_owned();
    Some(Program {
        package,
        name: message["target"]["name"].as_str()?.to_owned(),
        of_library: message["target"]["kind"][0] == "lib",
        is_test: message["profile"]["test"] == true,
        path: PathBuf::from(path),
    })
}

/// An error of the compiler: the bytes that it points at, first those it is about.
struct Complaint {
    spans: Vec<(String, Range<usize>)>,
    words: String,
}

fn complaint(message: &Value) -> Option<Complaint> {
    let message = &message["message"];
    if message["level"] != "error" {
        return None;
    }
    let mut spans: Vec<&Value> = message["spans"].as_array()?.iter().collect();
    spans.sort_by_key(|span| span["is_primary"] != true);
    let place = |span: &&Value| {
        let byte = |name: &str| usize::try_from(span[name].as_u64()?).ok();
        Some((span["file_name"].as_str()?.to_owned(), byte("byte_start")?..byte("byte_end")?))
    };
    let spans: Vec<_> = spans.iter().filter_map(place).collect();
    if spans.is_empty() {
        return None;
    }
    Some(Complaint { spans, words: message["rendered"].as_str()?.to_owned() })
}

/// Which mutants the errors are about: the innermost around what is pointed at, else those in it, else the
/// nearest.
fn blame(woven: &BTreeMap<String, Schemata>, errors: &[Complaint]) -> BTreeSet<u32> {
    let mut blamed = BTreeSet::new();
    for error in errors {
        let around = error.spans.iter().find_map(|(file, at)| {
            let places = woven.get(file)?.places.iter().filter(|(_, place)| place.contains(&at.start));
            places.min_by_key(|(_, place)| place.len()).map(|(number, _)| *number)
        });
        if around.is_some() {
            blamed.extend(around);
            continue;
        }
        let Some((file, first)) = error.spans.first() else { continue };
        let Some(schemata) = woven.get(file) else { continue };
        // All that is pointed at, from the first byte to the last: a borrow and what ends it.
        let of_file = error.spans.iter().filter(|(other, _)| other == file).map(|(_, at)| at);
        let whole = of_file.fold(first.clone(), |all, at| all.start.min(at.start)..all.end.max(at.end));
        let inside = |place: &Range<usize>| whole.start <= place.start && place.end <= whole.end;
        let inside: Vec<u32> =
            schemata.places.iter().filter(|(_, place)| inside(place)).map(|(number, _)| *number).collect();
        if inside.is_empty() {
            let nearest = schemata.places.iter().min_by_key(|(_, place)| place.start.abs_diff(first.start));
            blamed.extend(nearest.map(|(number, _)| *number));
        }
        blamed.extend(inside);
    }
    blamed
}

#[cfg(test)]
mod tests {
    use super::super::operators::candidates;
    use super::*;

    fn woven(source: &str, operator: &str) -> BTreeMap<String, Schemata> {
        let found = candidates(source).unwrap().into_iter().filter(|one| one.operator == operator);
        let numbered = (1..).zip(found).map(|(number, candidate)| Numbered { number, candidate });
        BTreeMap::from([("a.rs".to_owned(), weave(source, &numbered.collect::<Vec<_>>()))])
    }

    fn error(places: &[Range<usize>]) -> Vec<Complaint> {
        let span = |place: &Range<usize>| {
            serde_json::json!({
                "file_name": "a.rs", "byte_start": place.start, "byte_end": place.end, "is_primary": place == &places[0],
            })
        };
        let spans: Vec<Value> = places.iter().map(span).collect();
        let message =
            serde_json::json!({ "message": { "level": "error", "spans": spans, "rendered": "no" } });
        complaint(&message).into_iter().collect()
    }

    #[test]
    fn an_error_is_blamed_on_the_mutant_around_it_in_it_or_next_to_it() {
        let woven = woven("fn f() { let x; x = one(); two(); drop(x); }", "drop");
        let text = &woven["a.rs"].text;
        let at = |part: &str| {
            let start = text.find(part).unwrap();
            start..start + part.len()
        };
        assert_eq!(blame(&woven, &error(&[at("one()")])), BTreeSet::from([1]));
        assert_eq!(blame(&woven, &error(&[at("let x;")])), BTreeSet::from([1]), "the nearest");
        assert_eq!(
            blame(&woven, &error(std::slice::from_ref(&(0..text.len())))),
            BTreeSet::from([1, 2, 3]),
            "all in it"
        );
        assert!(complaint(&serde_json::json!({ "message": { "level": "warning", "spans": [] } })).is_none());
    }

    #[test]
    fn the_copy_has_what_its_crates_need() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let copied: Vec<&str> = CRATES.iter().chain(OTHERS).copied().collect();
        for name in &copied {
            let manifest = fs::read_to_string(root.join(format!("crates/{name}/Cargo.toml"))).unwrap();
            for needed in manifest.lines().filter_map(|line| line.strip_prefix("pinstripe-")) {
                let needed = needed.split(['.', ' ']).next().unwrap();
                assert!(copied.contains(&needed), "{name} needs {needed}");
            }
        }
    }

    #[test]
    fn programs_are_told_from_what_they_share() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        assert_eq!(program_of(root, "crates/md/tests/golden.rs").as_deref(), Some("md/golden"));
        assert_eq!(program_of(root, "crates/export/tests/nbd/world.rs").as_deref(), Some("export/nbd"));
        assert_eq!(
            program_of(root, "crates/engine/tests/engine/faults.rs").as_deref(),
            Some("engine/engine")
        );
        assert_eq!(program_of(root, "crates/md/tests/golden/manifest.json"), None);
        assert_eq!(program_of(root, "crates/engine/src/io/read.rs"), None);
    }
}
