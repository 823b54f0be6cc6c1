//! Which array a ublk device is, for udev's rules, which make `/dev/pinstripe/NAME`, and for `detail` of an
//! array that is not served.
//!
//! The server writes the array's name down beside its sockets before the kernel announces the device. It can
//! be asked itself only later: the announcement is part of its start. A file that a dead server has left
//! says nothing of another program's device of the same number, so the device must have the mark in it.
//!
//! The name comes a moment after the device. A script that starts an array uses the name next, so the server
//! waits for udev before it says that it is ready.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use pinstripe_control::place;
use pinstripe_export::ublk::wire::{DeviceInfo, state};

use super::{Driver, block_path};
use crate::{command_line::UblkExportArguments, failure::Failure, output};

/// How long udev may take for the names of a device. Without them the array is served all the same.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks whether it is done.
const LOOK: Duration = Duration::from_millis(10);

/// The file with a device's array. It goes with this, unless it is of another device by then, which has got
/// the number of this one.
pub struct Named {
    folder: PathBuf,
    device: u32,
    mark: u64,
}

impl Named {
    /// Of the device that this process is about to start. `words` is what udev's rules get to know. Without
    /// the file there is no name in /dev, which is a convenience.
    pub fn write(folder: &Path, device: u32, mark: u64, words: &str) -> Option<Self> {
        let path = path(folder, device);
        if fs::write(&path, format!("{mark:016x}\n{words}")).is_err() {
            // A part of it, which is all that a full file system takes, would be another name.
            let _ = fs::remove_file(&path);
            return None;
        }
        Some(Self { folder: folder.to_owned(), device, mark })
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if read(&self.folder, self.device, self.mark).is_some() {
            let _ = fs::remove_file(path(&self.folder, self.device));
        }
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

/// Waits, where udev runs, until it has made the names of a device.
pub fn wait_for_udev(device: u32) {
    let block = block_path(device);
    let number = Path::new("/sys/class/block").join(block.file_name().unwrap_or_default()).join("dev");
    if let Ok(number) = fs::read_to_string(number) {
        wait_for_database(Path::new("/run/udev"), number.trim(), PATIENCE);
    }
}

/// udev writes its database's file of a device after it has made the names.
fn wait_for_database(udev: &Path, number: &str, patience: Duration) {
    let (start, file) = (Instant::now(), udev.join(format!("data/b{number}")));
    while udev.join("control").exists() && !file.exists() && start.elapsed() < patience {
        thread::sleep(LOOK);
    }
}

/// Prints what udev's rules want to know of a device; nothing if it is not of a server that is known here.
pub fn export(arguments: &UblkExportArguments) -> Result<(), Failure> {
    let Some(info) = Driver::open()?.info(arguments.id)? else { return Ok(()) };
    let mut said = place::folders().into_iter().filter_map(|folder| read(&folder, arguments.id, info.mark));
    output::print(&said.next().unwrap_or_default())
}

/// The device that an array's server has left when it was killed, as far as that can be seen: its requests
/// wait for the next one. `array`: its name, its UUID or the path of its control socket.
pub fn left_by(array: &str) -> Option<u32> {
    let waits = |info: &DeviceInfo| {
        let mut said =
            place::folders().into_iter().filter_map(|folder| read(&folder, info.device, info.mark));
        info.state == state::QUIESCED && said.any(|words| is_of(&words, array))
    };
    Driver::open().ok()?.all().ok()?.iter().find(|info| waits(info)).map(|info| info.device)
}

/// Whether a file's words are of this array.
fn is_of(words: &str, array: &str) -> bool {
    let stem = Path::new(array).file_stem().filter(|_| array.contains('/'));
    let wanted = stem.map_or(array, |stem| stem.to_str().unwrap_or_default());
    words.lines().filter_map(|line| line.split_once('=')).any(|(key, value)| match key {
        "PINSTRIPE_NAME" => value == wanted,
        "PINSTRIPE_UUID" => place::digits(value) == place::digits(wanted),
        _ => false,
    })
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
        // Another server's device has got the number before this server has ended.
        let named = Named::write(folder.path(), 3, 7, "PINSTRIPE_NAME=data\n").unwrap();
        let other = Named::write(folder.path(), 3, 8, "PINSTRIPE_NAME=other\n").unwrap();
        drop(named);
        assert_eq!(read(folder.path(), 3, 8).as_deref(), Some("PINSTRIPE_NAME=other\n"));
        drop(other);
        // Where there is no room, a part of it would be the name of another array.
        std::os::unix::fs::symlink("/dev/full", path(folder.path(), 3)).unwrap();
        assert!(Named::write(folder.path(), 3, 7, "PINSTRIPE_NAME=data\n").is_none());
        assert!(path(folder.path(), 3).symlink_metadata().is_err(), "nothing is left of it");
    }

    #[test]
    fn a_name_is_found_however_its_array_is_called() {
        let words = "PINSTRIPE_NAME=data\nPINSTRIPE_UUID=0a0b0c0d:0a0b0c0d:0a0b0c0d:0a0b0c0d\n";
        for array in ["data", "/run/pinstripe/data.sock", "0A0B0C0D-0a0b0c0d-0a0b0c0d-0a0b0c0d"] {
            assert!(is_of(words, array), "{array}");
        }
        for array in ["", "dat", "/run/data/other.sock", "0a0b0c0d"] {
            assert!(!is_of(words, array), "{array}");
        }
    }

    #[test]
    fn names_are_waited_for_only_where_udev_runs() {
        let waits = |udev: &Path, patience| {
            let start = Instant::now();
            wait_for_database(udev, "259:3", patience);
            start.elapsed()
        };
        let (folder, long, short) = (tempfile::tempdir().unwrap(), Duration::from_mins(1), LOOK * 5);
        assert!(waits(folder.path(), long) < long, "no udev");
        fs::write(folder.path().join("control"), "").unwrap();
        assert!(waits(folder.path(), short) >= short, "no names");
        fs::create_dir(folder.path().join("data")).unwrap();
        fs::write(folder.path().join("data/b259:3"), "").unwrap();
        assert!(waits(folder.path(), long) < long, "names");
    }
}
