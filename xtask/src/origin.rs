//! Where figures come from, and how they are kept beside the documents that show them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Of what, when and where something was measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Origin {
    /// Commit of the sources, with `-dirty` if they were changed.
    pub commit: String,
    /// When, UTC.
    pub date: String,
    /// The machine's load average before.
    pub load: String,
    /// CPUs and kernel.
    pub machine: String,
}

impl Origin {
    /// Of what is measured now on this machine.
    pub fn now(root: &Path) -> Result<Self> {
        let load = fs::read_to_string("/proc/loadavg").context("read /proc/loadavg")?;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Self {
            commit: commit(root)?,
            date: said(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M"]))?,
            load: load.split(' ').take(2).collect::<Vec<_>>().join(", "),
            machine: format!("{cpus} CPUs, Linux {}", kernel.trim()),
        })
    }

    /// The commit, for a page.
    pub fn commit_in_words(&self) -> String {
        let changed = self.commit.strip_suffix("-dirty");
        changed
            .map_or_else(|| self.commit.clone(), |name| format!("{name} with changes that are in no commit"))
    }
}

/// The commit, and whether something is changed but for documents: they change while they are being made.
fn commit(root: &Path) -> Result<String> {
    let name = said(Command::new("git").args(["rev-parse", "--short=8", "HEAD"]).current_dir(root))?;
    let changes = ["status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"];
    let changes = said(Command::new("git").args(changes).current_dir(root))?;
    Ok(if changes.is_empty() { name } else { name + "-dirty" })
}

/// What was kept, if there is something.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let Ok(text) = fs::read_to_string(path) else { return Ok(None) };
    serde_json::from_str(&text).map(Some).with_context(|| format!("{} is of another form", path.display()))
}

/// Keeps it.
pub fn save<T: Serialize>(what: &T, path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(what)? + "\n";
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
