//! What a target keeps of its devices: which namespace each one is.
//!
//! A namespace's identity is random, given once, and bound to what the device is known by for good
//! ([`Storage::lasting_name`]): a device has another path after the next boot, and its content is its hosts'
//! to change, so neither says which device it is (C30). The identity is what hosts know the namespace by
//! (NGUID), and what the files of its epochs are called.
//!
//! A file `UUID.device` in the state directory has two lines: what it is, and the lasting name. It is locked
//! while a target serves the device. Everything is looked at before anything is written; a target that writes
//! holds the file `lock` meanwhile.
//!
//! A copy of a disk has the PARTUUIDs, and the file systems, of that disk. In its place it would be the same
//! namespace to hosts, which would give it only what was written since the disk went. So a file `UUID.disks`
//! says which disks the device is on, where these say what they are.
//!
//! [`Storage::lasting_name`]: pinstripe_runtime::uring::Storage::lasting_name

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use pinstripe_nvme::controller::{uuid_of, uuid_text};
use pinstripe_runtime::uring::Storage;

use crate::{create::random_uuid, failure::Failure};

/// The first line of a file.
const FIRST_LINE: &str = "pinstripe device 1";
/// Where links to devices are, one for each of a device's names.
const LINKS: &str = "/dev/disk";
const MAPPINGS: &str = "/dev/mapper";

/// A device that is to be served.
pub struct Served {
    /// Absolute.
    pub path: PathBuf,
    pub storage: Storage,
}

/// What the devices are, and the locks on their files, which last as long as this.
pub struct Identities {
    pub uuids: Vec<[u8; 16]>,
    _locks: Vec<File>,
}

/// Refuses devices that are one, or that can't be told apart.
pub fn check_distinct(devices: &[Served]) -> Result<(), Failure> {
    for (index, device) in devices.iter().enumerate() {
        let same = |other: &&Served| device.name().is_some_and(|name| other.name() == Some(name));
        if let Some(other) = devices[..index].iter().find(same) {
            return Err(Failure::new(format!(
                "{} and {} are the same device: they have the same WWID, serial number or PARTUUID ({}). Give each device once, or \
                 give one of them another serial number",
                other.path.display(),
                device.path.display(),
                device.name().unwrap_or_default(),
            )));
        }
    }
    Ok(())
}

impl Served {
    fn name(&self) -> Option<&str> {
        self.storage.lasting_name()
    }
}

impl Identities {
    /// Without a state directory: what follows from name and device, so that it is the same after a restart.
    pub fn derived(nqn: &str, devices: &[Served]) -> Self {
        let uuid = |device: &Served| match device.name() {
            Some(name) => uuid_of(&[nqn.as_bytes(), b"device", name.as_bytes()]),
            None => by_path(nqn, &device.path),
        };
        Self { uuids: devices.iter().map(uuid).collect(), _locks: Vec::new() }
    }

    /// As the directory has them. With `create`, the directory and identities that aren't there are made.
    pub fn of(directory: &Path, create: bool, nqn: &str, devices: &[Served]) -> Result<Self, Failure> {
        let failed = |error: io::Error| unusable(directory, &error);
        let mut found = Found::in_directory(directory, create, nqn, devices)?;
        let mut alone = None;
        if !found.new.is_empty() {
            make(directory).map_err(failed)?;
            alone = Some(lock_directory(directory).map_err(failed)?);
            // Another target may have done the same since.
            found = Found::in_directory(directory, create, nqn, devices)?;
        }
        for (uuid, name) in found.new {
            bind(directory, &uuid, name).map_err(failed)?;
        }
        let locks = found.uuids.iter().zip(devices).map(|(uuid, device)| lock(directory, uuid, device));
        let locks = locks.collect::<Result<_, _>>()?;
        for (uuid, device) in found.uuids.iter().zip(devices) {
            check_disks(directory, uuid, &device.path, device.storage.fixed_disks())?;
        }
        drop(alone);
        Ok(Self { _locks: locks, uuids: found.uuids })
    }
}

/// What the directory has of devices.
struct Found<'a> {
    uuids: Vec<[u8; 16]>,
    /// Of these, those that are to be written down, with their devices' lasting names.
    new: Vec<([u8; 16], &'a str)>,
}

impl<'a> Found<'a> {
    fn in_directory(
        directory: &Path,
        create: bool,
        nqn: &str,
        devices: &'a [Served],
    ) -> Result<Self, Failure> {
        let here = directory.display();
        let known = match known(directory) {
            Ok(known) => known,
            Err(Trouble::Missing) if create => BTreeMap::new(),
            Err(trouble) => return Err(trouble.of(directory)),
        };
        let mut found = Self { uuids: Vec::new(), new: Vec::new() };
        for device in devices {
            let name = device.name().ok_or_else(|| nameless(device))?;
            if let Some(uuid) = known.get(name) {
                found.uuids.push(*uuid);
                continue;
            }
            let taken_over = by_former_name(directory, nqn, device, &known)?;
            if taken_over.is_none() && !create {
                return Err(Failure::new(format!(
                    "{here} has no state of {} ({name}): check that the directory is the right one, and that its file system is \
                     mounted. If the device is new here, use --state-create",
                    device.path.display()
                )));
            }
            let uuid = taken_over.map_or_else(|| random_uuid().map(|uuid| uuid.0), Ok)?;
            found.new.push((uuid, name));
            found.uuids.push(uuid);
        }
        Ok(found)
    }
}

fn unusable(directory: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("can't use {} for the target's state: {error}", directory.display()))
}

fn nameless(device: &Served) -> Failure {
    let path = device.path.display();
    if device.path.is_file() {
        return Failure::new(format!(
            "{path} is on a file system without a lasting identity, so its state could be mistaken for another file's after a \
             restart: serve a file of a file system such as ext4 or btrfs, or one on a disk that has a serial number, a WWID or a \
             PARTUUID. Network and FUSE file systems have no such identity"
        ));
    }
    Failure::new(format!(
        "{path} has neither a WWID nor a serial number nor a PARTUUID, so its state could be mistaken for another device's \
         after a restart: give it a serial number (a virtual machine's disk), or serve a partition that has a PARTUUID, or a file of an \
         ext4 file system on it"
    ))
}

/// Why the directory can't be read.
enum Trouble {
    Missing,
    Damaged(PathBuf),
    /// These are of one device, of this name.
    Twice([PathBuf; 2], String),
    Failed(io::Error),
}

impl Trouble {
    fn of(self, directory: &Path) -> Failure {
        let here = directory.display();
        match self {
            Self::Missing => Failure::new(format!(
                "the state directory {here} does not exist: check that its file system is mounted. --state-create makes a new \
                 one, which has no record of hosts that were replaced"
            )),
            Self::Damaged(path) => Failure::new(format!(
                "{} is damaged: it records which device the namespace of the same name is. If no host uses that namespace, remove \
                 the file",
                path.display()
            )),
            Self::Twice([one, other], name) => Failure::new(format!(
                "{} and {} are both of one device ({name}): keep the one that has an .epoch file of the same name beside it, for \
                 that file records which hosts were replaced. Remove the other one",
                one.display(),
                other.display()
            )),
            Self::Failed(error) => unusable(directory, &error),
        }
    }
}

/// The identities in the directory, by lasting name.
fn known(directory: &Path) -> Result<BTreeMap<String, [u8; 16]>, Trouble> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Trouble::Missing),
        entries => entries.map_err(Trouble::Failed)?,
    };
    let mut known = BTreeMap::new();
    for entry in entries {
        let path = entry.map_err(Trouble::Failed)?.path();
        if path.extension().is_none_or(|extension| extension != "device") {
            continue;
        }
        let text = fs::read(&path).map_err(Trouble::Failed)?;
        let parsed = uuid_in(&path).zip(name_in(&text));
        let (uuid, name) = parsed.ok_or_else(|| Trouble::Damaged(path.clone()))?;
        if let Some(other) = known.get(&name) {
            return Err(Trouble::Twice([device_file(directory, other), path], name));
        }
        known.insert(name, uuid);
    }
    Ok(known)
}

fn uuid_in(path: &Path) -> Option<[u8; 16]> {
    let stem = path.file_stem()?.to_str()?;
    let number = u128::from_str_radix(&stem.replace('-', ""), 16).ok()?;
    let uuid = number.to_be_bytes();
    (uuid_text(&uuid) == stem).then_some(uuid)
}

fn name_in(text: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?.strip_prefix(FIRST_LINE)?;
    let name = text.strip_prefix('\n')?.strip_suffix('\n')?;
    (!name.is_empty() && !name.contains('\n')).then(|| name.to_owned())
}

/// What a namespace was called when its path said which one it is.
fn by_path(nqn: &str, path: &Path) -> [u8; 16] {
    uuid_of(&[nqn.as_bytes(), path.as_os_str().as_encoded_bytes()])
}

/// The identity under which a target of before kept a device's epoch, which it knew by its path: one of the
/// device's paths.
fn by_former_name(
    directory: &Path,
    nqn: &str,
    device: &Served,
    known: &BTreeMap<String, [u8; 16]>,
) -> Result<Option<[u8; 16]>, Failure> {
    let mut found: Vec<([u8; 16], PathBuf)> = Vec::new();
    for path in paths_of(&device.path) {
        let uuid = by_path(nqn, &path);
        let file = epoch_file(directory, &uuid);
        let new =
            !known.values().any(|known| *known == uuid) && !found.iter().any(|(known, _)| *known == uuid);
        if new && file.exists() {
            found.push((uuid, file));
        }
    }
    match found.as_slice() {
        [] => Ok(None),
        [(uuid, _)] => Ok(Some(*uuid)),
        [(_, one), (_, other), ..] => Err(Failure::new(format!(
            "{} and {} are both of {}, by different names of it: remove the older one",
            one.display(),
            other.display(),
            device.path.display()
        ))),
    }
}

fn epoch_file(directory: &Path, uuid: &[u8; 16]) -> PathBuf {
    directory.join(format!("{}.epoch", uuid_text(uuid)))
}

/// A device's paths, as far as they can be found: the given one first.
fn paths_of(path: &Path) -> Vec<PathBuf> {
    let mut paths = vec![path.to_owned()];
    let Ok(node) = fs::canonicalize(path) else { return paths };
    paths.push(node.clone());
    if !node.starts_with("/dev") {
        return paths;
    }
    let folders = fs::read_dir(LINKS).into_iter().flatten().flatten().map(|entry| entry.path());
    for folder in folders.chain([PathBuf::from(MAPPINGS)]) {
        let links = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        paths.extend(links.filter(|link| fs::canonicalize(link).is_ok_and(|found| found == node)));
    }
    paths
}

/// Makes the directory and those above it, durably.
fn make(directory: &Path) -> io::Result<()> {
    let directory = std::path::absolute(directory)?;
    let missing: Vec<&Path> = directory.ancestors().take_while(|folder| !folder.exists()).collect();
    for folder in missing.into_iter().rev() {
        fs::DirBuilder::new().mode(0o700).create(folder)?;
        sync(folder.parent().unwrap_or(folder))?;
    }
    Ok(())
}

/// Writes down, durably, which device a namespace is.
fn bind(directory: &Path, uuid: &[u8; 16], name: &str) -> io::Result<()> {
    let path = device_file(directory, uuid);
    put(directory, &path, &path.with_extension("device-new"), &format!("{FIRST_LINE}\n{name}\n"))
}

/// Writes a file durably, by way of a new one.
fn put(directory: &Path, path: &Path, new: &Path, text: &str) -> io::Result<()> {
    let write = || {
        let mut file = File::create(new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(new, path)
    };
    write().inspect_err(|_| {
        // On a disk that is full, each attempt would leave one.
        let _ = fs::remove_file(new);
    })?;
    sync(directory)
}

/// Refuses a device that is on other disks than before; keeps on which it is, if that isn't known yet.
fn check_disks(directory: &Path, uuid: &[u8; 16], device: &Path, disks: Option<&str>) -> Result<(), Failure> {
    let Some(disks) = disks else { return Ok(()) };
    let path = device_file(directory, uuid).with_extension("disks");
    match fs::read_to_string(&path) {
        Ok(before) if before.trim_end() == disks => Ok(()),
        Ok(before) => Err(Failure::new(format!(
            "{} is on another disk ({disks}) than the namespace of this identity ({}), so it may be a copy of it, which would be taken \
             for the same member. If it has everything, as after a move while no host wrote, remove {}. If not, remove the .device file \
             beside it, and use --state-create: it is a new device then",
            device.display(),
            before.trim_end(),
            path.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let written = put(directory, &path, &path.with_extension("disks-new"), &format!("{disks}\n"));
            written.map_err(|error| unusable(directory, &error))
        }
        Err(error) => Err(unusable(directory, &error)),
    }
}

/// Keeps other targets from giving identities until the file goes.
fn lock_directory(directory: &Path) -> io::Result<File> {
    let path = directory.join("lock");
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    file.lock()?;
    Ok(file)
}

fn device_file(directory: &Path, uuid: &[u8; 16]) -> PathBuf {
    directory.join(format!("{}.device", uuid_text(uuid)))
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Keeps other targets that share the directory from a device that says of itself that it is this one.
fn lock(directory: &Path, uuid: &[u8; 16], device: &Served) -> Result<File, Failure> {
    let path = device_file(directory, uuid);
    let failed = |error: io::Error| Failure::new(format!("can't lock {}: {error}", path.display()));
    // NFS gives such a lock only on a file that is open for writing.
    let file = File::options().read(true).write(true).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Failure::new(format!(
            "another target serves the same device as {}: it has the same WWID, serial number or PARTUUID ({})",
            device.path.display(),
            device.name().unwrap_or_default()
        ))),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(path: &Path) -> Served {
        Served { path: path.to_owned(), storage: Storage::of(path).unwrap() }
    }

    fn file(folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, [0; 512]).unwrap();
        path
    }

    const NQN: &str = "nqn.2026-01.com.example:x";

    #[test]
    fn an_identity_goes_with_the_device_and_not_with_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("a/b");
        let (one, two) = (file(folder.path(), "one"), file(folder.path(), "two"));
        let devices = [served(&one), served(&two)];
        let before = Identities::of(&state, true, NQN, &devices).unwrap().uuids;
        assert_ne!(before[0], before[1]);
        // As at the next boot: each has the other's name.
        fs::rename(&one, folder.path().join("three")).unwrap();
        fs::rename(&two, &one).unwrap();
        fs::rename(folder.path().join("three"), &two).unwrap();
        let after = Identities::of(&state, false, "nqn.2026-01.com.example:y", &[served(&one), served(&two)]);
        assert_eq!(after.unwrap().uuids, [before[1], before[0]]);
    }

    #[test]
    fn a_copy_on_another_disk_does_not_take_a_namespaces_place() {
        let folder = tempfile::tempdir().unwrap();
        let check = |disks| check_disks(folder.path(), &[7; 16], Path::new("/dev/x1"), disks);
        check(None).unwrap();
        check(Some("wwid:1")).unwrap();
        check(Some("wwid:1")).unwrap();
        // It isn't known now.
        check(None).unwrap();
        let refused = check(Some("wwid:2")).unwrap_err();
        for words in ["/dev/x1 is on another disk (wwid:2)", "(wwid:1)", ".disks"] {
            assert!(refused.sentence().contains(words), "{}", refused.sentence());
        }
    }

    #[test]
    fn an_identity_that_can_not_be_written_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let uuid = [7; 16];
        // It can't take the place of a folder.
        fs::create_dir(device_file(folder.path(), &uuid)).unwrap();
        assert!(bind(folder.path(), &uuid, "name").is_err());
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, [device_file(folder.path(), &uuid)]);
    }

    #[test]
    fn state_that_is_not_there_is_an_error_and_nothing_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let device = file(folder.path(), "device");
        let refused = |words: &str| {
            let error = Identities::of(&state, false, NQN, &[served(&device)]).err().unwrap();
            assert!(error.sentence().contains(words), "{}", error.sentence());
        };
        refused("does not exist");
        assert!(!state.exists());
        // As where a disk was to be mounted.
        fs::create_dir(&state).unwrap();
        refused("has no state of");
        assert_eq!(fs::read_dir(&state).unwrap().count(), 0);
        Identities::of(&state, true, NQN, &[served(&device)]).unwrap();
        Identities::of(&state, false, NQN, &[served(&device)]).unwrap();
        let (uuid, new) = (Identities::of(&state, true, NQN, &[served(&device)]).unwrap().uuids[0], "x\n");
        fs::write(device_file(&state, &uuid), new).unwrap();
        refused("is damaged");
    }

    #[test]
    fn targets_that_share_a_state_directory_serve_a_device_once() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let device = file(folder.path(), "device");
        fs::hard_link(&device, folder.path().join("link")).unwrap();
        let link = served(&folder.path().join("link"));
        let devices = [served(&device), link];
        assert!(check_distinct(&devices[..1]).is_ok());
        assert!(check_distinct(&devices).unwrap_err().sentence().contains("the same device"));
        let held = Identities::of(&state, true, NQN, &devices[..1]).unwrap();
        let refused = Identities::of(&state, true, NQN, &devices[1..]).err().unwrap();
        assert!(refused.sentence().contains("another target serves"), "{}", refused.sentence());
        drop(held);
        Identities::of(&state, true, NQN, &devices[1..]).unwrap();
    }

    #[test]
    fn targets_that_begin_at_once_give_a_device_one_identity() {
        let folder = tempfile::tempdir().unwrap();
        let device = file(folder.path(), "device");
        for round in 0..8 {
            let state = folder.path().join(format!("state{round}"));
            let begin = std::sync::Barrier::new(2);
            let starts = || {
                let devices = [served(&device)];
                begin.wait();
                Identities::of(&state, true, NQN, &devices).map(|found| found.uuids)
            };
            std::thread::scope(|scope| {
                let (one, other) = (scope.spawn(starts), scope.spawn(starts));
                assert!(one.join().unwrap().is_ok() || other.join().unwrap().is_ok());
            });
            assert!(Identities::of(&state, false, NQN, &[served(&device)]).is_ok());
        }
    }

    #[test]
    fn of_two_identities_of_one_device_both_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let device = file(folder.path(), "device");
        let uuid = Identities::of(&state, true, NQN, &[served(&device)]).unwrap().uuids[0];
        let (one, other) = (device_file(&state, &uuid), device_file(&state, &[7; 16]));
        fs::copy(&one, &other).unwrap();
        let refused = Identities::of(&state, false, NQN, &[served(&device)]).err().unwrap();
        let sentence = refused.sentence();
        for words in [one.to_str().unwrap(), other.to_str().unwrap(), ".epoch"] {
            assert!(sentence.contains(words), "{sentence}");
        }
    }

    #[test]
    fn state_that_was_kept_by_path_is_taken_over_under_any_path_of_the_device_once() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::create_dir(&state).unwrap();
        let (device, other) = (file(folder.path(), "device"), file(folder.path(), "other"));
        let former = by_path(NQN, &fs::canonicalize(&device).unwrap());
        fs::write(epoch_file(&state, &former), "epoch").unwrap();
        let link = folder.path().join("by-id");
        std::os::unix::fs::symlink(&device, &link).unwrap();
        assert_eq!(Identities::of(&state, false, NQN, &[served(&link)]).unwrap().uuids, [former]);
        // Another device takes the path, and not the state.
        fs::rename(&device, folder.path().join("away")).unwrap();
        fs::rename(&other, &device).unwrap();
        let refused = Identities::of(&state, false, NQN, &[served(&device)]).err().unwrap();
        assert!(refused.sentence().contains("has no state of"), "{}", refused.sentence());
        assert_ne!(Identities::of(&state, true, NQN, &[served(&device)]).unwrap().uuids, [former]);
    }
}
