//! What outlives a boot: files in one folder.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Access, MemfdFlags, access, memfd_create},
    io::Errno,
};

/// Names another folder.
const VARIABLE: &str = "PINSTRIPE_STATE_DIR";
const FOLDER: &str = "/var/lib/pinstripe";

pub fn folder() -> PathBuf {
    let may_write = rustix::process::geteuid().is_root() || access(FOLDER, Access::WRITE_OK).is_ok();
    folder_of(may_write, |name| env::var_os(name))
}

/// Users that can't write the system's folder have one of their own (the XDG Base Directory Specification).
fn folder_of(may_write: bool, variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let folder = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(given) = folder(VARIABLE) {
        return given;
    }
    let own = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
    own.filter(|_| !may_write).map_or_else(|| PathBuf::from(FOLDER), |own| own.join("pinstripe"))
}

/// Where to read one of these files from: from the system's folder where this user's own has none of them,
/// and the system's has one, or doesn't tell.
pub fn folder_with(files: &[&str]) -> PathBuf {
    let is_given = env::var_os(VARIABLE).is_some_and(|given| Path::new(&given).is_absolute());
    if is_given { folder() } else { first_with(folder(), Path::new(FOLDER), files) }
}

fn first_with(own: PathBuf, system: &Path, files: &[&str]) -> PathBuf {
    let is_absent = |folder: &Path, file: &&str| {
        fs::metadata(folder.join(file)).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let lacks = |folder: &Path| files.iter().all(|file| is_absent(folder, file));
    if lacks(&own) && !lacks(system) { system.to_owned() } else { own }
}

/// A file that needs no disk: one that is full or takes no writes may be what is to be told of.
pub fn in_memory(name: &str) -> io::Result<fs::File> {
    // Where such files must not be programs, it has to be said; before Linux 6.3 it can't be.
    let file = match memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, MemfdFlags::CLOEXEC)?,
        made => made?,
    };
    Ok(fs::File::from(file))
}

/// A file of the folder, whole or not at all, and for this user only.
pub fn replace(folder: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text)?;
    file.as_file().sync_all()?;
    file.persist(folder.join(name)).map_err(|error| error.error)?;
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn every_user_has_a_folder_that_it_may_write() {
        let home = |name: &str| (name == "HOME").then(|| OsString::from("/home/a"));
        let all = |name: &str| (name != VARIABLE).then(|| OsString::from(format!("/of/{name}")));
        let given = |_: &str| Some(OsString::from("/given"));
        assert_eq!(folder_of(true, home), Path::new(FOLDER));
        assert_eq!(folder_of(true, given), Path::new("/given"));
        assert_eq!(folder_of(false, home), Path::new("/home/a/.local/state/pinstripe"));
        assert_eq!(folder_of(false, all), Path::new("/of/XDG_STATE_HOME/pinstripe"));
        assert_eq!(folder_of(false, given), Path::new("/given"));
        assert_eq!(folder_of(false, |_| None), Path::new(FOLDER));
    }

    #[test]
    fn what_a_user_has_not_itself_is_read_from_the_systems_folder() {
        let root = tempfile::tempdir().unwrap();
        let [own, system, hidden] = ["own", "system", "hidden"].map(|name| root.path().join(name));
        let from = |system: &Path| first_with(own.clone(), system, &["history", "history.old"]);
        assert_eq!(from(&system), own, "neither has one");
        fs::create_dir(&system).unwrap();
        fs::write(system.join("history.old"), "").unwrap();
        assert_eq!(from(&system), system);
        // What can't be looked into says so when it is opened. A folder that leads to itself is so for root.
        std::os::unix::fs::symlink(&hidden, &hidden).unwrap();
        assert_eq!(from(&hidden), hidden);
        fs::create_dir(&own).unwrap();
        fs::write(own.join("history"), "").unwrap();
        assert_eq!(from(&system), own);
        assert_eq!(from(&hidden), own);
    }

    #[test]
    fn a_file_is_on_the_disk_before_it_has_its_name_and_then_its_name_is_too() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-y", "-e", "trace=fsync,fdatasync,rename,renameat,renameat2", "-o"]).arg(&log);
        let replaces = ["--exact", "state::tests::replaces_a_file_for_another_test"];
        strace.arg(env::current_exe().unwrap()).args(replaces).env("PINSTRIPE_REPLACE", folder.path());
        if !strace.output().is_ok_and(|output| output.status.success()) {
            eprintln!("DID NOT RUN: there is no strace, or it may not trace");
            return;
        }
        let calls = fs::read_to_string(log).unwrap();
        let folder = folder.path().display();
        // Of the file under its first name, of both names, and of the folder.
        let wanted = [
            ("sync(", format!("<{folder}/.tmp")),
            ("rename", format!("\"{folder}/kept\"")),
            ("sync(", format!("<{folder}>")),
        ];
        let place = |(call, of): &(&str, String)| {
            calls.lines().position(|line| line.contains(call) && line.contains(of))
        };
        let places: Vec<usize> = wanted.iter().map(|one| place(one).expect(&calls)).collect();
        assert!(places.is_sorted(), "{calls}");
    }

    /// Does nothing unless the test above has started it.
    #[test]
    fn replaces_a_file_for_another_test() {
        let Some(folder) = env::var_os("PINSTRIPE_REPLACE").map(PathBuf::from) else { return };
        replace(&folder, "kept", b"text").unwrap();
    }
}
