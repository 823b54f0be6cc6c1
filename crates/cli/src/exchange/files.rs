//! What changes in files: each is written whole, and comes back if a later step fails.

use std::{
    fs, io,
    io::Write,
    iter,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use pinstripe_config::Configuration;
use pinstripe_md::identity::Uuid;
use rustix::{
    fs::{XattrFlags, fsetxattr, getxattr, listxattr},
    io::Errno,
};

use super::mdadm_conf;
use crate::{assemble::lock, examine, failure::Failure, scan::FoundArray, serve::default_folder};

/// mdadm's configuration on Debian, and elsewhere.
const MDADM: [&str; 2] = ["/etc/mdadm/mdadm.conf", "/etc/mdadm.conf"];
/// The folder of its further files, beside it.
const MDADM_FOLDER: &str = "mdadm.conf.d";
/// A file that is read by all and written by root.
const MODE: u32 = 0o644;
/// The kernel's own limit of an attribute and of the list of their names.
const ATTRIBUTES_BYTES_MAX: usize = 64 << 10;

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
    /// Folders that are to be made for it, the innermost first.
    made: Vec<PathBuf>,
}

impl Edit {
    fn new(path: PathBuf, old: Option<String>, new: Option<String>) -> Self {
        let folders = path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
        let made = folders.take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
        Self { path, old, new, made }
    }

    fn undo(&self) -> Result<(), Failure> {
        self.expect(self.new.as_deref())?;
        let done = put(&self.path, self.old.as_deref(), sync_folder);
        done.or_else(|failure| if self.holds(self.old.as_deref()) { Ok(()) } else { Err(failure) })?;
        // Where something else has come meanwhile, they stay.
        let _ = self.made.iter().try_for_each(fs::remove_dir);
        Ok(())
    }

    /// Refuses if there is something else, such as what a person has written meanwhile. (What is written
    /// between this look and the change is lost: editors take no lock.)
    fn expect(&self, text: Option<&str>) -> Result<(), Failure> {
        if read(&self.path)?.as_deref() == text {
            return Ok(());
        }
        Err(Failure::new(format!(
            "{} was changed by something else meanwhile, and is left as it is",
            self.path.display()
        )))
    }

    fn holds(&self, text: Option<&str>) -> bool {
        read(&self.path).is_ok_and(|now| now.as_deref() == text)
    }

    /// What the file will hold.
    pub fn text(&self) -> &str {
        self.new.as_deref().unwrap_or_default()
    }

    /// Whether it is mdadm's configuration that changes.
    pub fn is_of_mdadm(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "conf")
    }
}

/// Carries all out, or none.
pub fn carry_out(edits: &[Edit]) -> Result<(), Failure> {
    carry_out_by(edits, sync_folder)
}

fn carry_out_by(edits: &[Edit], sync: Sync) -> Result<(), Failure> {
    for (index, edit) in edits.iter().enumerate() {
        edit.expect(edit.old.as_deref()).map_err(|failure| undo(&edits[..index], failure))?;
        put(&edit.path, edit.new.as_deref(), sync).map_err(|failure| {
            // It may have come after the change.
            let changed = index + usize::from(!edit.holds(edit.old.as_deref()));
            undo(&edits[..changed], failure)
        })?;
    }
    Ok(())
}

/// Takes all back because of a failure, the latest first. What is told then.
///
/// Each edit is safe behind those before it alone: none of them goes while a later one stays, or mdadm would
/// be left with its hands off an array that has no entry of ours.
pub fn undo(edits: &[Edit], failure: Failure) -> Failure {
    let undone = |(index, edit): (usize, &Edit)| edit.undo().map_err(|why| (index, why));
    let Err((index, why)) = edits.iter().enumerate().rev().try_for_each(undone) else { return failure };
    let stay: Vec<String> = edits[..index].iter().map(|edit| edit.path.display().to_string()).collect();
    let stay = match stay.as_slice() {
        [] => String::new(),
        paths => format!("; so these stay as they were changed, too: {}", paths.join(", ")),
    };
    let (failure, why) = (failure.sentence(), why.sentence());
    Failure::new(format!("{failure}; and what was changed before could not be taken back: {why}{stay}"))
}

/// Makes durable what has changed in a folder.
type Sync = fn(&Path) -> io::Result<()>;

/// Writes a file whole, or removes it. What leads to it stays a link.
fn put(path: &Path, text: Option<&str>, sync: Sync) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(format!("can't write {}: {error}", path.display()));
    let real = if path.is_symlink() { path.canonicalize() } else { std::path::absolute(path) };
    let path = &real.map_err(failed)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let Some(text) = text else {
        fs::remove_file(path).map_err(failed)?;
        return sync(folder).map_err(failed);
    };
    fs::create_dir_all(folder).map_err(failed)?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    match fs::metadata(path) {
        Ok(metadata) => dress(&file, path, &metadata),
        Err(_) => file.as_file().set_permissions(fs::Permissions::from_mode(MODE)),
    }
    .map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    sync(folder).map_err(failed)
}

/// Gives a new file the owner, the mode and the attributes of the one that it replaces. Access lists and
/// labels are attributes.
fn dress(file: &tempfile::NamedTempFile, old: &Path, metadata: &fs::Metadata) -> io::Result<()> {
    chown(file.path(), Some(metadata.uid()), Some(metadata.gid()))?;
    file.as_file().set_permissions(fs::Permissions::from_mode(metadata.mode()))?;
    let names = match sized(|room| listxattr(old, room)) {
        Err(Errno::NOTSUP) => return Ok(()),
        names => names?,
    };
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        // These are signatures of what the old file holds.
        if [&b"security.ima"[..], b"security.evm"].contains(&name) {
            continue;
        }
        let value = sized(|room| getxattr(old, name, room))?;
        fsetxattr(file.as_file(), name, &value, XattrFlags::empty())?;
    }
    Ok(())
}

/// What a call gives that has no more than [`ATTRIBUTES_BYTES_MAX`] bytes to say.
fn sized(call: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut room = vec![0; ATTRIBUTES_BYTES_MAX];
    let length = call(&mut room)?;
    room.truncate(length);
    Ok(room)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

/// mdadm's files: the main one, if this machine has one or a place for it, and the further ones.
fn mdadm_files(given: Option<&Path>) -> Result<(Option<PathBuf>, Vec<PathBuf>), Failure> {
    let has_place = |path: &Path| {
        path.exists() || path.is_symlink() || path == Path::new(MDADM[0]) && Path::new("/etc/mdadm").is_dir()
    };
    let usual = MDADM.iter().map(PathBuf::from).find(|path| has_place(path));
    if let Some(folder) = given.and_then(Path::parent)
        && !folder.as_os_str().is_empty()
        && !folder.is_dir()
    {
        return Err(Failure::new(format!(
            "{} is no folder: mdadm would not read what --mdadm-conf names there",
            folder.display()
        )));
    }
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
        // A file in its place would hide the one that is meant, which may be on what isn't mounted now.
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_symlink() => Err(Failure::new(
            format!("{} is a link that leads to no file: see to that first", path.display()),
        )),
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
        edits.extend(new.map(|new| Edit::new(path, old, Some(new))));
    }
    Ok(edits)
}

/// What takes that back. An array that we have made has no host in its name, so mdadm takes it for another
/// machine's, and calls it `NAME_0` from the next boot on, unless a line of its configuration names it.
pub fn hands_on(given: Option<&Path>, array: &FoundArray) -> Result<Vec<Edit>, Failure> {
    let (main, others) = mdadm_files(given)?;
    let mut texts = Vec::new();
    for path in main.iter().cloned().chain(others) {
        let Some(old) = read(&path)? else { continue };
        let new = mdadm_conf::release(&old, array.uuid).unwrap_or_else(|| old.clone());
        texts.push((path, old, new));
    }
    let is_named = texts.iter().any(|(.., new)| mdadm_conf::names(new, array.uuid));
    let name = array.short_name();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
    if !is_named && array.name == name && name.chars().all(is_plain) {
        for (_, _, new) in texts.iter_mut().filter(|(path, ..)| Some(path) == main.as_ref()) {
            *new = mdadm_conf::with_name(new, array.uuid, &name);
        }
    }
    let changed = texts.into_iter().filter(|(_, old, new)| old != new);
    Ok(changed.map(|(path, old, new)| Edit::new(path, Some(old), Some(new))).collect())
}

/// The file with the entry of an imported array.
pub fn entry_path(given: Option<&Path>, array: Uuid) -> PathBuf {
    Configuration::folder(given).join(format!("imported-{}.toml", array.to_string().replace(':', "")))
}

/// What configures an array that was found.
pub fn entry(path: PathBuf, array: &FoundArray) -> Result<Edit, Failure> {
    let old = read(&path)?;
    if old.as_deref().is_some_and(|text| text != written(array)) {
        return Err(Failure::new(format!(
            "{} is there, does not configure the array, and holds more than `pinstripe import` writes: see what it says, and take it away",
            path.display()
        )));
    }
    Ok(Edit::new(path, old, Some(written(array))))
}

/// What takes the entry away, if it is there. What a person has added is kept beside it, under a name that is
/// no configuration's.
pub fn without_entry(path: PathBuf, written: &str) -> Result<Vec<Edit>, Failure> {
    let Some(text) = read(&path)? else { return Ok(Vec::new()) };
    if path.is_symlink() {
        return Err(Failure::new(format!(
            "{} is a link by now: take the entry away yourself",
            path.display()
        )));
    }
    let mut edits = Vec::new();
    if text != written {
        edits.push(Edit::new(free_beside(&path), None, Some(text.clone())));
    }
    edits.push(Edit::new(path, Some(text), None));
    Ok(edits)
}

/// A name for what is kept of an entry. What an earlier release has kept stays.
fn free_beside(path: &Path) -> PathBuf {
    let first = path.with_extension("toml.released");
    let further = (2..).map(|number: u32| path.with_extension(format!("toml.released.{number}")));
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    iter::once(first.clone()).chain(further).find(is_free).unwrap_or(first)
}

/// What `import` writes. A file that says anything else, such as an entry of another array, is a person's.
pub fn written(array: &FoundArray) -> String {
    format!("{HEAD}{}", examine::scan::configured(array))
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    fn edit(path: &Path, old: Option<&str>, new: Option<&str>) -> Edit {
        Edit::new(path.to_owned(), old.map(str::to_owned), new.map(str::to_owned))
    }

    #[test]
    fn a_failure_that_comes_after_the_change_takes_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mdadm.conf");
        fs::write(&path, "old").unwrap();
        let full: Sync = |_| Err(io::Error::other("no space"));
        for new in [Some("new"), None] {
            let failure = carry_out_by(&[edit(&path, Some("old"), new)], full).unwrap_err();
            assert!(failure.sentence().ends_with("mdadm.conf: no space"), "{}", failure.sentence());
            assert_eq!(fs::read_to_string(&path).unwrap(), "old", "{new:?}");
        }
        let other = folder.path().join("other.conf");
        carry_out_by(&[edit(&other, None, Some("new"))], full).unwrap_err();
        assert!(!other.exists());
        // What something else has written is not taken back.
        fs::write(&path, "new").unwrap();
        let failure = carry_out(&[edit(&path, Some("old"), Some("new"))]).unwrap_err();
        assert!(failure.sentence().contains("was changed by something else"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn an_edit_that_a_later_one_needs_stays_if_that_one_is_not_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let [own, other] = ["entry.toml", "mdadm.conf"].map(|name| folder.path().join(name));
        fs::write(&other, "old").unwrap();
        let edits = [edit(&own, None, Some("new")), edit(&other, Some("old"), Some("new"))];
        carry_out(&edits).unwrap();
        fs::write(&other, "another").unwrap();
        let failure = undo(&edits, Failure::new("the first failure"));
        let words = failure.sentence();
        assert!(words.starts_with("the first failure; and what") && words.contains("mdadm.conf"), "{words}");
        assert!(own.exists());
        fs::write(&other, "new").unwrap();
        assert_eq!(undo(&edits, Failure::new("the first failure")).sentence(), "the first failure");
        assert!(!own.exists() && fs::read_to_string(&other).unwrap() == "old");
    }

    /// A disk that is full after the change leaves no room for what takes it back.
    #[test]
    fn what_stays_of_several_edits_has_those_before_it_stay_and_all_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let [first, own, other] =
            ["first.toml", "entry.toml", "mdadm.conf"].map(|name| folder.path().join(name));
        fs::write(&other, "old").unwrap();
        let edits = [
            edit(&first, None, Some("new")),
            edit(&own, None, Some("new")),
            edit(&other, Some("old"), Some("new")),
        ];
        // Fails with the last one, and has it changed by something else, so that it can't be taken back.
        let full: Sync = |folder| {
            let other = folder.join("mdadm.conf");
            if fs::read_to_string(&other).is_ok_and(|text| text == "new") {
                fs::write(&other, "another")?;
                return Err(io::Error::other("no space"));
            }
            Ok(())
        };
        let failure = carry_out_by(&edits, full).unwrap_err();
        assert!(own.exists() && first.exists(), "nothing would start the array");
        let words = failure.sentence();
        assert!(words.contains("no space; and what") && words.contains("mdadm.conf was changed"), "{words}");
        assert!(words.contains("first.toml, ") && words.ends_with("entry.toml"), "{words}");
        // One that was not changed keeps none of those before it.
        for path in [&first, &own] {
            fs::remove_file(path).unwrap();
        }
        carry_out(&edits).unwrap_err();
        assert!(!own.exists() && !first.exists());
    }

    #[test]
    fn what_is_taken_back_leaves_no_folder_that_was_made_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("conf.d/inner/entry.toml");
        let made = edit(&path, None, Some("new"));
        carry_out(slice::from_ref(&made)).unwrap();
        assert!(path.exists());
        made.undo().unwrap();
        assert!(!folder.path().join("conf.d").exists() && folder.path().exists());
        // What something else has put there keeps it.
        let made = edit(&path, None, Some("new"));
        carry_out(slice::from_ref(&made)).unwrap();
        fs::write(folder.path().join("conf.d/other.toml"), "").unwrap();
        made.undo().unwrap();
        assert!(folder.path().join("conf.d/other.toml").exists() && !path.parent().unwrap().exists());
    }

    #[test]
    fn a_link_stays_one_and_must_lead_somewhere() {
        let folder = tempfile::tempdir().unwrap();
        let (link, target) = (folder.path().join("link.conf"), folder.path().join("target"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let refused = read(&link).unwrap_err();
        assert!(refused.sentence().contains("leads to no file"), "{}", refused.sentence());
        carry_out(&[edit(&link, None, Some("new"))]).unwrap_err();
        put(&link, Some("new"), sync_folder).unwrap_err();
        assert!(link.is_symlink() && !target.exists());
        fs::write(&target, "old").unwrap();
        carry_out(&[edit(&link, Some("old"), Some("new"))]).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(target).unwrap(), "new");
        let refused = without_entry(link, "").err().unwrap();
        assert!(refused.sentence().contains("is a link by now"), "{}", refused.sentence());
    }

    #[test]
    fn mode_and_attributes_of_a_file_outlast_its_edit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mdadm.conf");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        // Not every file system has them.
        let has =
            fsetxattr(fs::File::open(&path).unwrap(), "user.note", b"kept", XattrFlags::empty()).is_ok();
        carry_out(&[edit(&path, Some("old"), Some("new"))]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        if has {
            assert_eq!(sized(|room| getxattr(&path, "user.note", room)).unwrap(), b"kept");
        }
    }
}
