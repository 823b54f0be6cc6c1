//! Secrets that a service manager hands over (systemd's `LoadCredential=`), each a file of a folder.

use std::path::{Path, PathBuf};

/// Names the folder.
const VARIABLE: &str = "CREDENTIALS_DIRECTORY";
/// Of the files of TLS, the one that there is always a reason to hand over.
const KEY: &str = "server-key.pem";

/// The folder, if something is handed over.
pub fn folder() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).map(PathBuf::from)
}

/// The folder, if the files of TLS are in it.
pub fn certificates() -> Option<PathBuf> {
    folder().filter(|folder| has_certificates(folder))
}

/// Whether the files of TLS are in the folder. Then all of them must be: they belong together.
pub fn has_certificates(folder: &Path) -> bool {
    folder.join(KEY).exists()
}
