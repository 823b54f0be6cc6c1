//! Loop devices and file systems, which go with what uses them.

use std::env;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::vm::server::said;

/// Says that this process has mounts of its own already.
const PRIVATE: &str = "PINSTRIPE_PRIVATE_MOUNTS";

/// Begins this program anew in a mount namespace of its own: what it mounts goes with it and its children,
/// however they end.
pub fn be_private() -> Result<()> {
    if env::var_os(PRIVATE).is_some() {
        return Ok(());
    }
    let error = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(env::current_exe()?)
        .args(env::args_os().skip(1))
        .env(PRIVATE, "yes")
        .exec();
    Err(error).context("run unshare (util-linux)")
}

/// A loop device, which the kernel takes away with its last user, however we end.
pub struct Loop {
    path: PathBuf,
    /// A user until this goes.
    _open: File,
}

impl Loop {
    /// Over a file, past the page cache.
    pub fn over(file: &Path) -> Result<Self> {
        let made = said(Command::new("losetup").args(["-f", "--show", "--direct-io=on"]).arg(file))?;
        let path = PathBuf::from(String::from_utf8(made.stdout)?.trim());
        let open = File::open(&path).with_context(|| format!("open {}", path.display()));
        // In use, it is only marked.
        said(Command::new("losetup").arg("-d").arg(&path))?;
        Ok(Self { path, _open: open? })
    }

    /// The device.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A mounted file system, until it goes.
pub struct Mount(PathBuf);

impl Mount {
    /// In this folder, which there is.
    pub fn of(disk: &Loop, folder: &Path) -> Result<Self> {
        said(Command::new("mount").arg(&disk.path).arg(folder))?;
        Ok(Self(folder.into()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Where something failed, processes that end just now may still use it.
        if said(Command::new("umount").arg(&self.0)).is_err() {
            let _ = said(Command::new("umount").arg("--lazy").arg(&self.0));
        }
    }
}
