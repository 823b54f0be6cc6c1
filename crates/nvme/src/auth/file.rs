//! A file of secrets on disk.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::keyring::{FORM, KeyFileError, Keyring};
use super::tls::TlsKeyring;

/// Most bytes of a file.
const BYTES_MAX: u64 = 16 << 20;

/// Why a file of secrets can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileProblem {
    /// It can't be read.
    #[error("can't read the secrets in {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Others may read it.
    #[error(
        "{path} can be read by other users (mode {mode:03o}): chmod 600 it, and make new secrets if others may have read them"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Others may exchange it.
    #[cfg(unix)]
    #[error("the secrets in {path} can't be trusted: {why}{}", instead(why))]
    Exchangeable {
        /// The file.
        path: PathBuf,
        /// How.
        why: pinstripe_runtime::trust::Distrust,
    },
    /// A line is wrong.
    #[error("{path}, {error}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Which and why.
        error: KeyFileError,
    },
    /// The file names no peer.
    #[error("{path} has no line for any peer: add lines {form}")]
    Empty {
        /// The file.
        path: PathBuf,
        /// How a line looks.
        form: &'static str,
    },
}

/// What else can be done where no file can be trusted.
#[cfg(unix)]
fn instead(why: &pinstripe_runtime::trust::Distrust) -> &'static str {
    let is_unmapped = matches!(why, pinstripe_runtime::trust::Distrust::Unmapped { .. });
    if is_unmapped { "; or name a pipe instead of the file, such as a shell's <(cat FILE)" } else { "" }
}

impl Keyring {
    /// Reads a file that root or this user owns, and that no other user can read or exchange.
    pub fn read(path: &Path) -> Result<Self, KeyFileProblem> {
        let keys = read(path, Self::parse)?;
        if keys.is_empty() {
            Err(KeyFileProblem::Empty { path: path.to_owned(), form: FORM })
        } else {
            Ok(keys)
        }
    }
}

impl TlsKeyring {
    /// Reads a file that root or this user owns, and that no other user can read or exchange.
    pub fn read(path: &Path) -> Result<Self, KeyFileProblem> {
        let keys = read(path, Self::parse)?;
        if keys.peers().len() == 0 {
            return Err(KeyFileProblem::Empty { path: path.to_owned(), form: "NQN KEY" });
        }
        Ok(keys)
    }
}

/// Reads and parses a file that other users can neither read nor exchange.
fn read<T>(path: &Path, parse: impl Fn(&str) -> Result<T, KeyFileError>) -> Result<T, KeyFileProblem> {
    let at = || path.to_owned();
    let failed = |error| KeyFileProblem::Read { path: at(), error };
    let file = std::fs::File::open(path).map_err(failed)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let metadata = file.metadata().map_err(failed)?;
        let mode = metadata.permissions().mode() & 0o777;
        if metadata.is_file() && mode & 0o077 != 0 {
            return Err(KeyFileProblem::Exposed { path: at(), mode });
        }
        let trusted = pinstripe_runtime::trust::check_owner(path, &metadata);
        // A pipe has no name that could be given to another one.
        let trusted = trusted.and_then(|()| {
            if metadata.is_file() { pinstripe_runtime::trust::check_place(path) } else { Ok(()) }
        });
        trusted.map_err(|why| KeyFileProblem::Exchangeable { path: at(), why })?;
    }
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    parse(&text).map_err(|error| KeyFileProblem::Line { path: at(), error })
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn secrets_that_others_can_read_or_exchange_are_refused() {
        let directory = std::env::temp_dir().join(format!("pinstripe-secrets-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("keys");
        let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        fs::write(&path, "* DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:\n").unwrap();
        mode(&directory, 0o755);
        mode(&path, 0o640);
        assert!(matches!(Keyring::read(&path), Err(KeyFileProblem::Exposed { mode: 0o640, .. })));
        mode(&path, 0o600);
        assert!(Keyring::read(&path).is_ok());
        mode(&directory, 0o777);
        assert!(matches!(Keyring::read(&path), Err(KeyFileProblem::Exchangeable { .. })));
        mode(&directory, 0o755);
        fs::write(&path, "# no line\n").unwrap();
        assert!(matches!(Keyring::read(&path), Err(KeyFileProblem::Empty { .. })));
        fs::write(&path, "one two three four five six\n").unwrap();
        assert!(matches!(Keyring::read(&path), Err(KeyFileProblem::Line { .. })));
        fs::remove_dir_all(&directory).unwrap();
        assert!(matches!(Keyring::read(&path), Err(KeyFileProblem::Read { .. })));
    }
}
