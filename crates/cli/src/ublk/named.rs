//! Which array a ublk device is, for udev's rules, which make `/dev/pinstripe/NAME`.
//!
//! The server writes the array's name down beside its sockets before the kernel announces the device. It can
//! be asked itself only later: the announcement is part of its start. A file that a dead server has left
//! says nothing of another program's device of the same number, so the device must have the mark in it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use pinstripe_control::place;

use super::Driver;
use crate::{command_line::UblkExportArguments, failure::Failure, output};

/// The file with a device's array. It goes with this.
pub struct Named(PathBuf);

impl Named {
    /// Of the device that this process is about to start. `words` is what udev's rules get to know. Without
    /// the file there is no name in /dev, which is a convenience.
    pub fn write(folder: &Path, device: u32, mark: u64, words: &str) -> Option<Self> {
        let path = path(folder, device);
        fs::write(&path, format!("{mark:016x}\n{words}")).ok().map(|()| Self(path))
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn path(folder: &Path, device: u32) -> PathBuf {
    folder.join(format!("ublkb{device}.name"))
}

/// What the file of a device says, if it is of the device with this mark.
fn read(folder: &Path, device: u32, mark: u64) -> Option<String> {
    let text = fs::read_to_string(path(folder, device)).ok()?;
    let (marked, words) = text.split_once('\n')?;
    (marked == format!("{mark:016x}")).then(|| words.to_owned())
}

/// Prints what udev's rules want to know of a device; nothing if it is not of a server that is known here.
pub fn export(arguments: &UblkExportArguments) -> Result<(), Failure> {
    let Some(info) = Driver::open()?.info(arguments.id)? else { return Ok(()) };
    let mut said = place::folders().into_iter().filter_map(|folder| read(&folder, arguments.id, info.mark));
    output::print(&said.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_counts_for_the_device_with_its_mark_and_goes_with_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let named = Named::write(folder.path(), 3, 7, "PINSTRIPE_NAME=data\n").unwrap();
        assert_eq!(read(folder.path(), 3, 7).as_deref(), Some("PINSTRIPE_NAME=data\n"));
        assert_eq!(read(folder.path(), 3, 8), None, "another program's device");
        assert_eq!(read(folder.path(), 4, 7), None);
        drop(named);
        assert_eq!(read(folder.path(), 3, 7), None);
    }
}
