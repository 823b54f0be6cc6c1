//! By what names udev has the file systems on arrays. Most lines of /etc/fstab name a file system and not its
//! device, and when a machine boots, nothing tells what array that is on before the array is served. So udev
//! has it written down whenever it looks at a device of ours.

use std::{collections::BTreeMap, env, fs, io, path::Path};

use super::mounts::DEVICES;
use crate::{failure::Failure, state};

/// In the folder of what outlives a boot: a file for each device, with its names in /dev/disk.
const FOLDER: &str = "file-systems";
/// Where udev has the names of file systems.
const NAMES: &str = "/dev/disk/by-";
/// What starts a word of /etc/fstab that is no path, and where its name is in [`NAMES`].
const TAGS: [(&str, &str); 4] =
    [("UUID=", "uuid"), ("LABEL=", "label"), ("PARTUUID=", "partuuid"), ("PARTLABEL=", "partlabel")];

/// `pinstripe ublk note`.
pub fn note() -> Result<(), Failure> {
    let links = env::var("DEVLINKS").unwrap_or_default();
    let folder = state::folder();
    write(&folder, &links).map_err(|error| {
        Failure::new(format!("can't write down the names of file systems in {}: {error}", folder.display()))
    })
}

/// Writes down the names in /dev/disk of a device that has these names.
fn write(state: &Path, links: &str) -> io::Result<()> {
    let links = || links.split_whitespace();
    let Some(device) = links().find_map(|link| link.strip_prefix(DEVICES)) else { return Ok(()) };
    let mut names: Vec<&str> = links().filter(|link| link.starts_with(NAMES)).collect();
    names.sort_unstable();
    let (folder, text) = (state.join(FOLDER), names.join("\n"));
    let known = fs::read_to_string(folder.join(device)).unwrap_or_default();
    match (text == known, text.is_empty()) {
        (true, _) => Ok(()),
        (false, true) => fs::remove_file(folder.join(device)),
        (false, false) => state::replace(&folder, device, text.as_bytes()),
    }
}

/// Writes down the names that udev has for an array as the kernel's `kernel`: it is about to be ours, called
/// `device`.
pub fn note_of_kernel(kernel: &str, device: &str) -> io::Result<()> {
    let mut links: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (_, kind) in TAGS {
        for entry in fs::read_dir(format!("{NAMES}{kind}")).into_iter().flatten().flatten() {
            let real = fs::canonicalize(entry.path()).ok();
            let part = real.and_then(|real| part_of(real.to_str()?, kernel));
            if let (Some(part), Some(link)) = (part, entry.path().to_str()) {
                links.entry(format!("{DEVICES}{device}{part}")).or_default().push(link.to_owned());
            }
        }
    }
    links
        .into_iter()
        .try_for_each(|(ours, links)| write(&state::folder(), &format!("{ours} {}", links.join(" "))))
}

/// What our device's name has behind it for the kernel's device (nothing), or for a partition of it.
pub fn part_of(path: &str, kernel: &str) -> Option<String> {
    match path.strip_prefix("/dev/")?.strip_prefix(kernel)? {
        "" => Some(String::new()),
        part => part.strip_prefix('p')?.parse::<u32>().ok().map(|number| format!("-part{number}")),
    }
}

/// The names in /dev/disk that are known, each with the name in [`DEVICES`] of its device.
pub fn known() -> Vec<(String, String)> {
    read(&state::folder())
}

fn read(state: &Path) -> Vec<(String, String)> {
    let files = fs::read_dir(state.join(FOLDER)).into_iter().flatten().flatten();
    let names = |file: fs::DirEntry| {
        // One that begins with a dot is what a write that was cut off has left.
        let device = file.file_name().into_string().ok().filter(|name| !name.starts_with('.'))?;
        let text = fs::read_to_string(file.path()).ok()?;
        Some(text.lines().map(|name| (name.to_owned(), format!("{DEVICES}{device}"))).collect::<Vec<_>>())
    };
    files.filter_map(names).flatten().collect()
}

/// The path in /dev of what a word of /etc/fstab names, as systemd has it.
pub fn path(word: &str) -> String {
    let by_tag = |(tag, kind): (&str, &str)| {
        Some(format!("{NAMES}{kind}/{}", encoded(word.strip_prefix(tag)?.trim_matches(['"', '\'']))))
    };
    TAGS.into_iter().find_map(by_tag).unwrap_or_else(|| word.to_owned())
}

/// A name as udev has it in /dev.
fn encoded(name: &str) -> String {
    let plain =
        |letter: char| letter.is_ascii_alphanumeric() || !letter.is_ascii() || "#+-.:=@_".contains(letter);
    name.chars()
        .map(
            |letter| if plain(letter) { letter.to_string() } else { format!("\\x{:02x}", u32::from(letter)) },
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_down_by_device_and_go_with_their_file_system() {
        let folder = tempfile::tempdir().unwrap();
        let known = || {
            let mut known = read(folder.path());
            known.sort();
            known
        };
        write(folder.path(), "/dev/disk/by-uuid/a /dev/md/other").unwrap();
        assert_eq!(known(), [], "no device of ours");
        write(folder.path(), "/dev/pinstripe/data").unwrap();
        assert_eq!(known(), [], "nothing is on it");
        write(folder.path(), "/dev/disk/by-uuid/a /dev/pinstripe/data /dev/disk/by-label/x\\x20y").unwrap();
        write(folder.path(), "/dev/pinstripe/data-part1 /dev/disk/by-uuid/b").unwrap();
        let pair =
            |name: &str, device: &str| (format!("/dev/disk/by-{name}"), format!("/dev/pinstripe/{device}"));
        let (label, first) = (pair("label/x\\x20y", "data"), pair("uuid/a", "data"));
        assert_eq!(known(), [label, first, pair("uuid/b", "data-part1")]);
        write(folder.path(), "/dev/pinstripe/data /dev/disk/by-uuid/c").unwrap();
        assert_eq!(known(), [pair("uuid/b", "data-part1"), pair("uuid/c", "data")], "it was made anew");
        write(folder.path(), "/dev/pinstripe/data").unwrap();
        fs::write(folder.path().join(FOLDER).join(".tmpAbCdEf"), "/dev/disk/by-uuid/b").unwrap();
        assert_eq!(known(), [pair("uuid/b", "data-part1")], "it was erased");
    }

    #[test]
    fn words_of_fstab_are_paths_as_systemd_has_them() {
        for (word, path_of_it) in [
            ("UUID=0a-B", "/dev/disk/by-uuid/0a-B"),
            ("UUID=\"0a-B\"", "/dev/disk/by-uuid/0a-B"),
            ("LABEL=a b/c\\ä", "/dev/disk/by-label/a\\x20b\\x2fc\\x5cä"),
            ("UUID='0a-B'", "/dev/disk/by-uuid/0a-B"),
            ("PARTUUID=x", "/dev/disk/by-partuuid/x"),
            ("PARTLABEL=x", "/dev/disk/by-partlabel/x"),
            ("/dev/disk/by-uuid/x", "/dev/disk/by-uuid/x"),
            ("host:/srv", "host:/srv"),
        ] {
            assert_eq!(path(word), path_of_it, "{word}");
        }
    }

    #[test]
    fn partitions_of_the_kernels_device_are_told_from_other_devices() {
        for (path, part) in [
            ("/dev/md127", Some("")),
            ("/dev/md127p12", Some("-part12")),
            ("/dev/md127px", None),
            ("/dev/md1270", None),
            ("/dev/md12", None),
            ("/dev/md/md127", None),
        ] {
            assert_eq!(part_of(path, "md127").as_deref(), part, "{path}");
        }
    }
}
