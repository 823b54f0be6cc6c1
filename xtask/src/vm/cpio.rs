//! Writes `newc` cpio archives, the form in which the Linux kernel takes its first root file system.
//!
//! The kernel unpacks several archives laid behind one another, each aligned to four bytes, so a boot's own
//! files (script, program under test) travel in a small archive behind the cached one. Format: Linux's
//! `Documentation/driver-api/early-userspace/buffer-format.rst`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

const FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;

/// An archive in memory. Parent directories are added by themselves, owner and times are always zero, so that
/// equal inputs give equal bytes.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    directories: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    /// Adds an empty directory. `path` is relative to the root, without a leading slash.
    pub fn directory(&mut self, path: &str) {
        self.parents(path);
        if self.directories.insert(path.to_owned()) {
            self.entry(path, DIRECTORY | 0o755, &[]);
        }
    }

    /// Adds a file with these contents and permission bits.
    pub fn file(&mut self, path: &str, mode: u32, contents: &[u8]) {
        self.parents(path);
        self.entry(path, FILE | mode, contents);
    }

    /// Adds a symbolic link at `path` that points to `target`.
    pub fn symlink(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.entry(path, SYMLINK | 0o777, target.as_bytes());
    }

    /// Adds a file of the host with its permission bits.
    pub fn host_file(&mut self, path: &str, source: &Path) -> Result<()> {
        let contents = fs::read(source).with_context(|| format!("read {}", source.display()))?;
        let mode = fs::metadata(source)?.permissions().mode() & 0o777;
        self.file(path, mode, &contents);
        Ok(())
    }

    /// Ends the archive and gives its bytes, a multiple of 512.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            let parent = path[..at].to_owned();
            if self.directories.insert(parent.clone()) {
                self.entry(&parent, DIRECTORY | 0o755, &[]);
            }
        }
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let links = if mode & DIRECTORY != 0 { 2 } else { 1 };
        let header = format!(
            "070701{:08x}{mode:08x}{:08x}{:08x}{links:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}",
            self.entries,
            0,
            0,
            0,
            contents.len(),
            0,
            0,
            0,
            0,
            name.len() + 1,
            0
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(contents);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn cpio_itself_lists_what_was_written() {
        let mut archive = Archive::default();
        archive.file("a/b/one", 0o755, b"#!/bin/sh\n");
        archive.file("a/b/two", 0o644, b"");
        archive.symlink("a/link", "b/one");
        archive.directory("empty");
        let bytes = archive.finish();

        let Ok(mut child) = Command::new("cpio")
            .args(["-itv", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        else {
            return; // a machine without cpio: the VM itself is the judge there
        };
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        let listing = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let names: Vec<&str> = listing.lines().map(|line| line.splitn(9, ' ').last().unwrap()).collect();
        assert_eq!(names.len(), 6, "{listing}");
        assert!(listing.contains("-rwxr-xr-x") && listing.contains("a/link -> b/one"), "{listing}");
    }

    #[test]
    fn equal_inputs_give_equal_bytes_of_whole_sectors() {
        let build = || {
            let mut archive = Archive::default();
            archive.file("init", 0o755, b"hello");
            archive.finish()
        };
        assert_eq!(build(), build());
        assert_eq!(build().len() % 512, 0);
    }
}
