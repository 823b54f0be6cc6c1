//! Whether a file is what its reader put there: no other user may be able to change or exchange it.
//!
//! In a user namespace (`unshare -r`, a container without root) the kernel shows every owner that the
//! namespace doesn't know as one and the same user, mostly 65534. That may be root of the machine or any
//! other user, and a process is shown as that user too if the namespace doesn't know its own. So what belongs
//! to such an owner is not trusted, whatever process asks.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Links that are followed; more go round in circles.
const LINKS_MAX: usize = 40;
/// Writable by the group or by all.
const OTHERS_WRITE: u32 = 0o022;
/// In such a folder everyone may add, and only an entry's owner may remove or exchange it.
const STICKY: u32 = 0o1000;

/// Why others could put something else there.
#[derive(Debug, thiserror::Error)]
pub enum Distrust {
    /// Its owner is neither root nor this user.
    #[error("{} belongs to the user {owner}, and must belong to root or to the user of this process: chown it", path.display())]
    Owner {
        /// The file, folder or link.
        path: PathBuf,
        /// The user's number.
        owner: u32,
    },
    /// Its owner can't be told from any other user that this user namespace doesn't know.
    #[error(
        "{} belongs to the user {owner}. This user namespace shows every user that it does not map as this one, so the real \
         owner is not known: run this outside of the namespace, or in one that maps the owner",
        path.display()
    )]
    Unmapped {
        /// The file, folder or link.
        path: PathBuf,
        /// What such users are shown as.
        owner: u32,
    },
    /// Others may write a folder.
    #[error(
        "the folder {} can be written by other users (mode {mode:04o}), and they could replace what is in it: chmod go-w it",
        path.display()
    )]
    Writable {
        /// The folder.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It can't be looked at.
    #[error("can't look at {}: {error}", path.display())]
    Unknown {
        /// What.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// Refuses an owner other than root and this user.
pub fn check_owner(path: &Path, metadata: &fs::Metadata) -> Result<(), Distrust> {
    check_known(path, metadata, strangers_here())
}

/// The same. `strangers` is the number of users that can't be told apart.
fn check_known(path: &Path, metadata: &fs::Metadata, strangers: Option<u32>) -> Result<(), Distrust> {
    let (owner, path) = (metadata.uid(), path.to_owned());
    if strangers == Some(owner) {
        return Err(Distrust::Unmapped { path, owner });
    }
    if owner == 0 || owner == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(Distrust::Owner { path, owner })
}

fn strangers_here() -> Option<u32> {
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    strangers(&text("/proc/self/uid_map"), &text("/proc/sys/kernel/overflowuid"))
}

/// What users are shown as that this process's user namespace doesn't know; `None` if it knows all, as the
/// machine's own does. `map` has a line for each range of known users: the first one, the first one outside,
/// how many.
fn strangers(map: &str, shown_as: &str) -> Option<u32> {
    const USUAL: u32 = 65534;
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    let known = counts.fold(0_u64, u64::saturating_add);
    // The highest number is no user's.
    if known >= u64::from(u32::MAX) { None } else { Some(shown_as.trim().parse().unwrap_or(USUAL)) }
}

/// Refuses a file or folder that others could exchange: it or a folder above belongs to another user,
/// or others may write to such a folder. Links are followed, and what they lie in is looked at too.
pub fn check_place(path: &Path) -> Result<(), Distrust> {
    check(path, strangers_here(), &mut 0)
}

fn check(path: &Path, strangers: Option<u32>, links: &mut usize) -> Result<(), Distrust> {
    let unknown = |path: &Path, error| Distrust::Unknown { path: path.to_owned(), error };
    let path = std::path::absolute(path).map_err(|error| unknown(path, error))?;
    let mut steps: Vec<&Path> = path.ancestors().collect();
    steps.reverse();
    for (index, step) in steps.iter().enumerate() {
        let metadata = fs::symlink_metadata(step).map_err(|error| unknown(step, error))?;
        check_known(step, &metadata, strangers)?;
        if metadata.is_symlink() {
            *links += 1;
            if *links > LINKS_MAX {
                return Err(unknown(step, io::ErrorKind::InvalidInput.into()));
            }
            let target = fs::read_link(step).map_err(|error| unknown(step, error))?;
            let parent = step.parent().unwrap_or(step);
            let rest = path.strip_prefix(step).unwrap_or(Path::new(""));
            let resolved = parent.join(target);
            let place = if index + 1 == steps.len() { resolved } else { resolved.join(rest) };
            return check(&place, strangers, links);
        }
        let mode = metadata.mode() & 0o7777;
        if metadata.is_dir() && mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
            return Err(Distrust::Writable { path: step.to_path_buf(), mode });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("pinstripe-trust-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("a/b")).unwrap();
            for folder in ["", "a", "a/b"] {
                mode(&path.join(folder), 0o755);
            }
            fs::write(path.join("a/b/file"), "x").unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_file_is_trusted_if_no_folder_above_it_can_be_written_by_others() {
        let folder = Folder::new("folders");
        let file = folder.0.join("a/b/file");
        check_place(&file).unwrap();
        for bad in [0o777, 0o775, 0o757] {
            mode(&folder.0.join("a"), bad);
            let refused = check_place(&file);
            assert!(
                matches!(&refused, Err(Distrust::Writable { path, .. }) if path.ends_with("a")),
                "{refused:?}"
            );
        }
        mode(&folder.0.join("a"), 0o1777);
        check_place(&file).unwrap();
    }

    #[test]
    fn what_a_link_lies_in_counts_and_where_it_leads() {
        let folder = Folder::new("links");
        let link = folder.0.join("a/link");
        symlink(folder.0.join("a/b"), &link).unwrap();
        check_place(&link.join("file")).unwrap();
        mode(&folder.0.join("a/b"), 0o777);
        assert!(matches!(check_place(&link.join("file")), Err(Distrust::Writable { .. })));
        mode(&folder.0.join("a/b"), 0o755);
        mode(&folder.0.join("a"), 0o777);
        assert!(matches!(check_place(&link.join("file")), Err(Distrust::Writable { .. })));
        mode(&folder.0.join("a"), 0o755);
        symlink("round", folder.0.join("round")).unwrap();
        assert!(matches!(check_place(&folder.0.join("round")), Err(Distrust::Unknown { .. })));
    }

    #[test]
    fn a_user_namespace_shows_users_that_it_does_not_know_as_one() {
        assert_eq!(strangers("         0          0 4294967295\n", "65534\n"), None);
        assert_eq!(strangers("         0       1000          1\n", "65534\n"), Some(65534));
        assert_eq!(strangers("0 1000 1\n1 100000 65536\n", "99\n"), Some(99));
        assert_eq!(strangers("", ""), Some(65534), "without a map no user is known");
        assert_eq!(strangers("0 0 2147483648\n2147483648 2147483648 2147483647\n", "65534\n"), None);
    }

    /// There the process's own user is shown as the owner of everything is.
    #[test]
    fn where_no_user_is_known_nothing_is_trusted() {
        let folder = Folder::new("namespace");
        let program = std::env::current_exe().unwrap();
        let judge = ["--exact", "trust::tests::judges_a_file_for_another_test", "--nocapture"];
        let mut command = std::process::Command::new("unshare");
        command.arg("-U").arg(program).args(judge).env("PINSTRIPE_JUDGE", folder.0.join("a/b/file"));
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        if !said.contains("JUDGED") {
            eprintln!("skipped: no user namespaces here");
            return;
        }
        assert!(said.contains("Err(Unmapped") && !said.contains("Ok"), "{said}");
    }

    /// Does nothing unless the test above has started it.
    #[test]
    fn judges_a_file_for_another_test() {
        let Some(path) = std::env::var_os("PINSTRIPE_JUDGE").map(PathBuf::from) else { return };
        let owner = check_owner(&path, &fs::metadata(&path).unwrap());
        println!("JUDGED {owner:?} {:?}", check_place(&path));
    }

    #[test]
    fn what_belongs_to_another_user_is_not_trusted() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give files away");
            return;
        }
        let folder = Folder::new("owner");
        let file = folder.0.join("a/b/file");
        std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
        assert!(matches!(check_place(&file), Err(Distrust::Owner { owner: 65534, .. })));
        std::os::unix::fs::chown(&file, Some(0), None).unwrap();
        std::os::unix::fs::chown(folder.0.join("a"), Some(65534), None).unwrap();
        assert!(matches!(check_place(&file), Err(Distrust::Owner { .. })));
    }
}
