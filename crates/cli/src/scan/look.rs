//! Reads the superblocks of devices.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use pinstripe_md::superblock::{Superblock, SuperblockError};
use pinstripe_runtime::uring::Storage;

use super::holders;
use crate::probe::{ProbeError, Probed, superblocks};

/// Time that devices get to answer: as long as the kernel gives a disk before it tries again.
pub const LIMIT: Duration = Duration::from_secs(30);
/// The same where it is looked again soon: a disk that hangs must not hold up arrays that it is none of. One
/// that is slow has answered by a later look.
pub const LIMIT_AGAIN: Duration = Duration::from_secs(5);

/// Devices that are looked at at a time: a glob may match any number.
const THREADS_MAX: usize = 64;

/// A device with a superblock.
pub struct Candidate {
    pub path: PathBuf,
    /// What lies under the path; none if it could not be found out.
    pub storage: Option<Storage>,
    pub superblock: Result<Superblock, SuperblockError>,
    /// The kernel's devices on top of it.
    pub holders: Vec<String>,
}

/// What came of a look at several.
#[derive(Default)]
pub struct Looked {
    /// In the order of the paths.
    pub candidates: Vec<Candidate>,
    /// What could not be read, and why, in words.
    pub unread: Vec<(PathBuf, String)>,
    /// Some of these have not answered.
    pub is_silent: bool,
}

/// Looks at one device. The superblock that counts is the first one that is whole.
pub fn look_at(path: &Path) -> Result<Option<Candidate>, ProbeError> {
    let found = superblocks(&Probed::open(path)?)?;
    let (mut whole, damaged): (Vec<_>, Vec<_>) =
        found.into_iter().map(|found| found.superblock).partition(Result::is_ok);
    let counts = if whole.is_empty() { damaged.into_iter().next() } else { Some(whole.swap_remove(0)) };
    Ok(counts.map(|superblock| Candidate {
        path: path.to_owned(),
        storage: Storage::of(path).ok(),
        superblock: superblock.map(|metadata| metadata.superblock),
        holders: holders(path),
    }))
}

/// What threads look at just now, of this look and of earlier ones whose time was over.
static UNDER_WAY: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn under_way() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a thread still waits for a device.
pub fn is_looking() -> bool {
    !under_way().is_empty()
}

/// Looks at all of them at a time, for one that doesn't answer must not keep others from being found.
/// A look doesn't take longer than `limit`.
pub fn look(paths: &[PathBuf], limit: Duration) -> Looked {
    let (answers, answer) = mpsc::channel();
    // Owned: a thread that is stuck outlives this. What it is stuck at isn't given to another one.
    let mut owned: Vec<_> = paths.iter().cloned().enumerate().collect();
    owned.retain(|(_, path)| !under_way().contains(path));
    let left = Arc::new(Mutex::new(owned.into_iter()));
    for _ in 0..paths.len().min(THREADS_MAX) {
        let (answers, left) = (answers.clone(), Arc::clone(&left));
        thread::spawn(move || {
            let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some((index, path)) = next() {
                under_way().insert(path.clone());
                let looked = look_at(&path);
                under_way().remove(&path);
                if answers.send((index, looked)).is_err() {
                    // The time is over.
                    return;
                }
            }
        });
    }
    drop(answers);
    let begun = Instant::now();
    let mut found: Vec<Option<Result<Option<Candidate>, ProbeError>>> = paths.iter().map(|_| None).collect();
    while let Ok((index, looked)) = answer.recv_timeout(limit.saturating_sub(begun.elapsed())) {
        found[index] = Some(looked);
    }
    let mut all = Looked::default();
    for (path, looked) in paths.iter().zip(found) {
        match looked {
            Some(Ok(candidate)) => all.candidates.extend(candidate),
            // A device that went meanwhile is one that isn't there.
            Some(Err(error)) => all.unread.push((path.clone(), error.to_string())),
            None => {
                let why = format!("{} does not answer: it was left out", path.display());
                all.unread.push((path.clone(), why));
                all.is_silent = true;
            }
        }
    }
    all
}
