//! What outlives a boot: files in one folder.

use std::{
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{MemfdFlags, memfd_create};

/// Names another folder.
const VARIABLE: &str = "PINSTRIPE_STATE_DIR";
const FOLDER: &str = "/var/lib/pinstripe";

pub fn folder() -> PathBuf {
    let given = env::var_os(VARIABLE).map(PathBuf::from).filter(|path| path.is_absolute());
    given.unwrap_or_else(|| PathBuf::from(FOLDER))
}

/// A file that needs no disk: one that is full or takes no writes may be what is to be told of.
pub fn in_memory(name: &str) -> io::Result<fs::File> {
    Ok(fs::File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
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
