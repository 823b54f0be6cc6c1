//! The arrays that a person has stopped. Where the service manager starts servers they stay stopped when the
//! daemon is started anew, as an upgrade does. The file is in the folder of sockets, which a boot empties.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{kept::Kept, phase::Phase};
use crate::state;

const FILE: &str = "daemon.stopped";

/// By their UUIDs.
pub struct Stopped {
    folder: PathBuf,
    /// Those that the last daemon knew, and this one has not found yet.
    before: BTreeSet<String>,
    /// When this was read, and how long before that it was written.
    read: (Instant, Duration),
    /// What the file has.
    now: BTreeSet<String>,
}

impl Stopped {
    /// What the last daemon has left. A damaged file is none: the worst is an alert too many.
    pub fn of(folder: &Path) -> Self {
        let path = folder.join(FILE);
        let text = fs::read(&path).unwrap_or_default();
        let now: BTreeSet<String> = serde_json::from_slice(&text).unwrap_or_default();
        let written = path.metadata().and_then(|file| file.modified()).ok();
        let age = written.and_then(|written| written.elapsed().ok()).unwrap_or_default();
        Self { folder: folder.to_owned(), before: now.clone(), read: (Instant::now(), age), now }
    }

    /// How long ago it was stopped at least, if it was when the last daemon ended. It is asked once for each
    /// array, and then the daemon knows.
    pub fn was(&mut self, uuid: &str) -> Option<Duration> {
        let (read, age) = self.read;
        self.before.remove(uuid).then(|| age + read.elapsed())
    }

    /// Keeps which ones are stopped now.
    pub fn keep<'a>(&mut self, arrays: impl Iterator<Item = &'a Kept>) {
        let stopped = arrays.filter(|kept| matches!(kept.course.phase, Phase::Stopped { .. }));
        let mut all: BTreeSet<String> = stopped.filter_map(|kept| kept.uuid.clone()).collect();
        all.extend(self.before.iter().cloned());
        if all != self.now {
            let text = serde_json::to_vec(&all).unwrap_or_default();
            // One that can't be kept costs an alert after the next start.
            let _ = state::replace(&self.folder, FILE, &text);
            self.now = all;
        }
    }
}
