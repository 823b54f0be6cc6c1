//! The devices that have joined an array while it was served, kept over the end of its server.
//!
//! The array's entry may lead to none of them: to a spare of the pool, to one of another array of its group,
//! or to what a person has added. Without them the array would have lost what they hold at the next start,
//! and would not be started. So the server keeps where they are, and a start looks there, too.
//!
//! A name only says where to look. Whether a device is a member its superblock says, and those of the others.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use pinstripe_config::is_server;
use pinstripe_md::identity::Uuid;
use pinstripe_runtime::uring::{Storage, path_of};
use serde::{Deserialize, Serialize};

use crate::{
    member,
    scan::{Seen, block_devices, scan_further},
    state,
};

/// The folder, below that of all that outlives a boot.
const FOLDER: &str = "joined";

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// As the server calls it.
    pub device: String,
    /// By which a disk is found under another name.
    pub lasting_name: Option<String>,
    /// The slot that it has.
    pub slot: Option<usize>,
}

impl Joined {
    pub fn is_on_server(&self) -> bool {
        is_server(&self.device)
    }

    /// Where it is on this machine now, if it may be there. A disk may have another name since a boot.
    /// Blocks.
    pub fn path(&self) -> Option<PathBuf> {
        let path = PathBuf::from(&self.device);
        let is_it = |path: &PathBuf| {
            let storage = Storage::of(path).ok();
            storage.is_some_and(|storage| storage.lasting_name() == self.lasting_name.as_deref())
        };
        let is_there = path_of(&path).0.exists();
        if is_there && (self.lasting_name.is_none() || is_it(&path)) {
            return Some(path);
        }
        let known = self.lasting_name.is_some().then(|| block_devices().0.into_iter().find(is_it));
        known.flatten().or(is_there.then_some(path))
    }
}

fn folder() -> PathBuf {
    state::folder().join(FOLDER)
}

fn name(uuid: Uuid) -> String {
    format!("{}.json", uuid.to_string().replace(':', ""))
}

/// Where those of the array are kept, for messages.
pub fn place(uuid: Uuid) -> PathBuf {
    folder().join(name(uuid))
}

/// Those of the array; none if that can't be read. Blocks.
pub fn all(uuid: Uuid) -> Vec<Joined> {
    all_in(&folder(), uuid)
}

fn all_in(folder: &Path, uuid: Uuid) -> Vec<Joined> {
    let text = fs::read(folder.join(name(uuid))).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Keeps those of the array, durably. Blocks.
pub fn keep(uuid: Uuid, all: &[Joined]) -> io::Result<()> {
    keep_in(&folder(), uuid, all)
}

fn keep_in(folder: &Path, uuid: Uuid, all: &[Joined]) -> io::Result<()> {
    if !all.is_empty() {
        return state::replace(folder, &name(uuid), &serde_json::to_vec(all)?);
    }
    match fs::remove_file(folder.join(name(uuid))) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Searches where `names` says, or all block devices, and where devices have joined the arrays that are
/// found, or asked for.
pub fn scan_within(names: Option<&[String]>, limit: Duration, asked: &[Uuid]) -> Seen {
    scan_further(names, limit, asked, paths)
}

/// Where devices of this machine that have joined this array may be.
fn paths(uuid: Uuid) -> Vec<PathBuf> {
    all(uuid).iter().filter(|joined| !joined.is_on_server()).filter_map(Joined::path).collect()
}

/// Those of the array on servers.
pub fn on_servers(uuid: Uuid) -> Vec<Joined> {
    all(uuid).into_iter().filter(Joined::is_on_server).collect()
}

/// Whether a device has joined this array. Blocks.
pub fn has(uuid: Uuid, device: &Path) -> bool {
    member::is_over(device, &paths(uuid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_joined_is_kept_until_nothing_has() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("state/joined");
        let (one, other) = (Uuid([1; 16]), Uuid([2; 16]));
        assert_eq!(all_in(&folder, one), []);
        keep_in(&folder, one, &[]).unwrap();
        let joined = Joined { device: "/dev/x".to_owned(), lasting_name: None, slot: Some(1) };
        keep_in(&folder, one, std::slice::from_ref(&joined)).unwrap();
        assert_eq!(all_in(&folder, one), [joined]);
        assert_eq!(all_in(&folder, other), []);
        keep_in(&folder, one, &[]).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::write(folder.join(name(one)), "[{").unwrap();
        assert_eq!(all_in(&folder, one), [], "it is damaged");
    }

    #[test]
    fn a_device_is_looked_for_where_it_was_if_its_lasting_name_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let joined = |lasting_name: Option<&str>| Joined {
            device: path.display().to_string(),
            lasting_name: lasting_name.map(str::to_owned),
            slot: None,
        };
        assert_eq!(joined(None).path(), None);
        assert_eq!(joined(Some("wwid:none")).path(), None);
        fs::write(&path, "").unwrap();
        // Its superblock is still to be looked at.
        for lasting_name in [None, Some("wwid:none")] {
            assert_eq!(joined(lasting_name).path().as_ref(), Some(&path));
        }
    }
}
