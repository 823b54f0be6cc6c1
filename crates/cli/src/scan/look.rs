//! Reads the superblocks of devices.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use pinstripe_md::{
    superblock::{Claims, Superblock, SuperblockError},
    units::Sector,
};
use pinstripe_runtime::uring::Storage;

use super::holders;
use crate::probe::{BitmapHead, ProbeError, Probed, superblocks};

/// Time that devices get to answer: as long as the kernel gives a disk before it tries again.
pub const LIMIT: Duration = Duration::from_secs(30);
/// The same where it is looked again soon: a disk that hangs must not hold up arrays that it is none of. One
/// that is slow has answered by a later look.
pub const LIMIT_AGAIN: Duration = Duration::from_secs(5);

/// Devices that are looked at at a time: a glob may match any number.
const THREADS_MAX: usize = 64;

/// A device with a superblock.
#[derive(Clone)]
pub struct Candidate {
    pub path: PathBuf,
    /// What lies under the path; none if it could not be found out.
    pub storage: Option<Storage>,
    /// Its own; the first one of those that may be it.
    pub superblock: Result<Superblock, SuperblockError>,
    /// The others that may be it: see [`Claims`].
    pub rivals: Vec<Superblock>,
    /// The heads of their bitmaps, by the superblocks' places.
    pub bitmaps: BTreeMap<Sector, BitmapHead>,
    /// Why its bad-block log can't be used.
    pub unfit: Option<String>,
    /// The kernel's devices on top of it.
    pub holders: Vec<String>,
}

/// What came of a look at several.
#[derive(Default)]
pub struct Looked {
    /// In the order of the paths.
    pub candidates: Vec<Candidate>,
    /// What could not be read, and why, in words. A candidate that is unfit is among these, too.
    pub unread: Vec<(PathBuf, String)>,
    /// Some of these have not answered.
    pub is_silent: bool,
}

/// Looks at one device. The superblocks that count are those that are whole, if there are any.
pub fn look_at(path: &Path) -> Result<Option<Candidate>, ProbeError> {
    let (mut whole, mut damaged, mut bitmaps, mut unfit) = (Vec::new(), None, BTreeMap::new(), None);
    for found in superblocks(&Probed::open(path)?)? {
        match found.superblock {
            Ok(metadata) => {
                bitmaps.extend(metadata.bitmap_head.map(|head| (found.sector, head)));
                unfit = metadata.bad_blocks.and_then(Result::err);
                whole.push(metadata.superblock);
            }
            Err(error) => damaged = damaged.or(Some(error)),
        }
    }
    let mut rivals = Claims::new(whole).into_all();
    let is_alone = rivals.len() == 1;
    let superblock = if rivals.is_empty() { damaged.map(Err) } else { Some(Ok(rivals.remove(0))) };
    Ok(superblock.map(|superblock| Candidate {
        path: path.to_owned(),
        storage: Storage::of(path).ok(),
        superblock,
        rivals,
        bitmaps,
        // Of several superblocks it isn't known whose it is.
        unfit: unfit.filter(|_| is_alone),
        holders: holders(path),
    }))
}

/// What threads look at just now, of this look and of earlier ones whose time was over.
static UNDER_WAY: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn under_way() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device that a thread still waits for.
pub fn awaited() -> Option<PathBuf> {
    under_way().first().cloned()
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
            Some(Ok(candidate)) => {
                let unfit = candidate.as_ref().and_then(|candidate| candidate.unfit.as_ref());
                all.unread.extend(unfit.map(|why| {
                    (path.clone(), format!("{}: its bad-block log can't be used: {why}", path.display()))
                }));
                all.candidates.extend(candidate);
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon beside a disk that hangs would have a thread more with each look.
    #[test]
    fn no_second_thread_waits_for_a_device_that_does_not_answer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let looked = || look(std::slice::from_ref(&path), LIMIT);
        under_way().insert(path.clone());
        let Looked { unread, is_silent, .. } = looked();
        assert!(is_silent && unread.len() == 1 && unread[0].1.contains("does not answer"), "{unread:?}");
        under_way().remove(&path);
        let Looked { unread, is_silent, .. } = looked();
        assert!(!is_silent && unread.is_empty(), "{unread:?}");
    }
}
