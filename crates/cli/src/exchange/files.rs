//! What changes in files: each is written whole, and comes back if a later step fails.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::MetadataExt,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
};

use pinstripe_config::Configuration;
use pinstripe_md::identity::Uuid;

use super::mdadm_conf;
use crate::{assemble::lock, examine, failure::Failure, scan::FoundArray, serve::default_folder};

/// mdadm's configuration on Debian, and elsewhere.
const MDADM: [&str; 2] = ["/etc/mdadm/mdadm.conf", "/etc/mdadm.conf"];
/// The folder of its further files, beside it.
const MDADM_FOLDER: &str = "mdadm.conf.d";
/// A file that is read by all and written by root.
const MODE: u32 = 0o644;

/// How the file of an entry begins.
const HEAD: &str = "# Written by `pinstripe import`. `pinstripe release` takes it away.\n";

/// This process's turn to exchange arrays. Others wait until it is dropped: what they read before would not
/// count any more.
pub struct Turn {
    _lock: fs::File,
}

impl Turn {
    pub fn wait() -> Result<Self, Failure> {
        Ok(Self { _lock: lock(&default_folder()?, "exchange")? })
    }
}

/// A file before and after.
pub struct Edit {
    pub path: PathBuf,
    /// None: there was no file.
    old: Option<String>,
    /// None: the file goes.
    new: Option<String>,
}

impl Edit {
    pub fn carry_out(&self) -> Result<(), Failure> {
        self.change(self.old.as_deref(), self.new.as_deref())
    }

    /// Writes `new`, unless there is something else than `old`, such as what a person has written meanwhile.
    fn change(&self, old: Option<&str>, new: Option<&str>) -> Result<(), Failure> {
        if read(&self.path)?.as_deref() != old {
            return Err(Failure::new(format!(
                "{} was changed by something else meanwhile, and is left as it is",
                self.path.display()
            )));
        }
        put(&self.path, new)
    }

    /// Whether it is mdadm's configuration that changes.
    pub fn is_of_mdadm(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "conf")
    }

    pub fn undo(&self) -> Result<(), Failure> {
        self.change(self.new.as_deref(), self.old.as_deref())
    }
}

/// Carries all out, or none.
pub fn carry_out(edits: &[Edit]) -> Result<(), Failure> {
    for (index, edit) in edits.iter().enumerate() {
        if let Err(failure) = edit.carry_out() {
            return Err(undo(&edits[..index], failure));
        }
    }
    Ok(())
}

/// Takes all back because of a failure. What is told then.
pub fn undo(edits: &[Edit], failure: Failure) -> Failure {
    let left = edits.iter().filter_map(|edit| edit.undo().err());
    let left: Vec<String> = left.map(|failure| failure.sentence().to_owned()).collect();
    if left.is_empty() {
        return failure;
    }
    Failure::new(format!(
        "{}; and what was changed before could not be taken back: {}",
        failure.sentence(),
        left.join("; ")
    ))
}

fn put(path: &Path, text: Option<&str>) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(format!("can't write {}: {error}", path.display()));
    let folder = path.parent().unwrap_or(Path::new("/"));
    let Some(text) = text else {
        fs::remove_file(path).map_err(failed)?;
        return sync_folder(folder).map_err(failed);
    };
    // A link stays one.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().unwrap_or(folder);
    fs::create_dir_all(folder).map_err(failed)?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    let mode = match fs::metadata(path) {
        Ok(metadata) => {
            chown(file.path(), Some(metadata.uid()), Some(metadata.gid())).map_err(failed)?;
            metadata.mode()
        }
        Err(_) => MODE,
    };
    file.as_file().set_permissions(fs::Permissions::from_mode(mode)).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    sync_folder(folder).map_err(failed)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

/// mdadm's files: the main one, if this machine has one or a place for it, and the further ones.
fn mdadm_files(given: Option<&Path>) -> Result<(Option<PathBuf>, Vec<PathBuf>), Failure> {
    let has_place =
        |path: &Path| path.exists() || path == Path::new(MDADM[0]) && Path::new("/etc/mdadm").is_dir();
    let usual = MDADM.iter().map(PathBuf::from).find(|path| has_place(path));
    let main = given.map(Path::to_owned).or(usual);
    let folder = main.as_deref().and_then(Path::parent).unwrap_or(Path::new("/etc")).join(MDADM_FOLDER);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((main, Vec::new())),
        Err(error) => return Err(Failure::new(format!("can't read {}: {error}", folder.display()))),
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut others: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "conf")).collect();
    others.sort();
    Ok((main, others))
}

fn read(path: &Path) -> Result<Option<String>, Failure> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::new(format!("can't read {}: {error}", path.display()))),
    }
}

/// What has mdadm leave an array alone.
pub fn hands_off(given: Option<&Path>, array: &FoundArray) -> Result<Vec<Edit>, Failure> {
    let (main, others) = mdadm_files(given)?;
    let names = [array.name.clone(), array.short_name()];
    let mut edits = Vec::new();
    for (path, adds) in
        main.into_iter().map(|main| (main, true)).chain(others.into_iter().map(|path| (path, false)))
    {
        let old = read(&path)?;
        let new = mdadm_conf::ignore(old.as_deref().unwrap_or_default(), array.uuid, &names, adds)
            .map_err(|why| Failure::new(format!("{}: {why}", path.display())))?;
        edits.extend(new.map(|new| Edit { path, old, new: Some(new) }));
    }
    Ok(edits)
}

/// What takes that back.
pub fn hands_on(given: Option<&Path>, array: Uuid) -> Result<Vec<Edit>, Failure> {
    let (main, others) = mdadm_files(given)?;
    let mut edits = Vec::new();
    for path in main.into_iter().chain(others) {
        let Some(old) = read(&path)? else { continue };
        if let Some(new) = mdadm_conf::release(&old, array) {
            edits.push(Edit { path, old: Some(old), new: Some(new) });
        }
    }
    Ok(edits)
}

/// The file with the entry of an imported array.
pub fn entry_path(given: Option<&Path>, array: Uuid) -> PathBuf {
    Configuration::folder(given).join(format!("imported-{}.toml", array.to_string().replace(':', "")))
}

/// What configures an array that was found.
pub fn entry(path: PathBuf, array: &FoundArray) -> Result<Edit, Failure> {
    let old = read(&path)?;
    if old.as_deref().is_some_and(|text| !is_as_written(text)) {
        return Err(Failure::new(format!(
            "{} is there, does not configure the array, and holds more than `pinstripe import` writes: see what it says, and take it away",
            path.display()
        )));
    }
    Ok(Edit { path, old, new: Some(format!("{HEAD}{}", examine::scan::configured(array))) })
}

/// What takes the entry away, if it is there. What a person has added is kept beside it, under a name that is
/// no configuration's.
pub fn without_entry(path: PathBuf) -> Result<Vec<Edit>, Failure> {
    let Some(text) = read(&path)? else { return Ok(Vec::new()) };
    let mut edits = Vec::new();
    if !is_as_written(&text) {
        let kept = path.with_extension("toml.released");
        edits.push(Edit { old: read(&kept)?, path: kept, new: Some(text.clone()) });
    }
    edits.push(Edit { path, old: Some(text), new: None });
    Ok(edits)
}

/// Whether an entry's file holds nothing but what `import` writes.
fn is_as_written(text: &str) -> bool {
    let known = ["#", "[[array]]", "uuid = ", "name = "];
    text.lines().all(|line| line.is_empty() || known.iter().any(|known| line.starts_with(known)))
}
