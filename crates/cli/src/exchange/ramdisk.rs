//! `pinstripe config ramdisk`: what has mdadm leave our members alone in the initial ramdisk.
//!
//! mdadm is there, and our rule of udev is not, nor may the members of an array be there when a ramdisk is
//! made. So what is said depends on the configuration alone. mdadm's configuration has a line for each array:
//! one that has no UUID in ours is named. The devices of a target are members of arrays elsewhere, which
//! nothing here names: a rule of udev keeps mdadm off them, by the names that they have in /dev.
//!
//! What all ramdisks say is noted. Our hook takes the note away when it says something else in one of them,
//! and the next start of an array has all of them made anew.

use std::{
    collections::BTreeSet,
    env,
    fs::{self, File},
    io::ErrorKind,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use pinstripe_config::{Configuration, Problems};
use pinstripe_md::identity::{Uuid, short_name};
use rustix::{
    fs::{FlockOperation, fcntl_lock},
    io::retry_on_intr,
};

use super::{md_device, mdadm_conf};
use crate::{
    block_users::{self, disk_of},
    called::host,
    command_line::ConfigRamdiskArguments,
    failure::Failure,
    output,
    scan::look_at,
    state, systemd,
};

/// What all initial ramdisks say, in the folder of what outlives a boot.
const NOTE: &str = "ramdisk";
/// What those say that are being made.
const NEW: &str = "ramdisk.new";
/// Made by our hook with each of them.
const MADE: &str = "ramdisk.made";
const MADE_NONE: &str = "pinstripe: update-initramfs has made no initial ramdisk: there is none, \
    /etc/initramfs-tools/update-initramfs.conf says `update_initramfs=no`, or /boot is read-only";
/// How often they are made anew because the configuration has changed meanwhile.
const ROUNDS_MAX: usize = 8;
/// Where dpkg has its lock, and the variable by which it has it elsewhere.
const DPKG: &str = "/var/lib/dpkg";
const DPKG_VARIABLE: &str = "DPKG_ADMINDIR";
/// Begins a line by which mdadm leaves an array alone.
const IGNORED: &str = "ARRAY <ignore> ";
/// Ends a line by which udev knows a device of a target.
const MARK: &str = ", ENV{PINSTRIPE_TARGET}=\"1\"";
const RULES_BEGIN: &str = "SUBSYSTEM!=\"block\", GOTO=\"pinstripe_end\"\n\
    ENV{DEVTYPE}==\"partition\", IMPORT{parent}=\"PINSTRIPE_TARGET\"\n";
const RULES_END: &str = "ENV{PINSTRIPE_TARGET}==\"1\", ENV{ID_FS_TYPE}==\"linux_raid_member\", \
    ENV{ID_FS_TYPE}=\"pinstripe_member\"\nLABEL=\"pinstripe_end\"\n";

pub fn run(arguments: &ConfigRamdiskArguments) -> Result<(), Failure> {
    let main = arguments.configuration.config.as_deref();
    match &arguments.file {
        Some(path) => {
            let copied = fs::read_to_string(path)
                .map_err(|error| Failure::new(format!("can't read {}: {error}", path.display())))?;
            output::print(&Told::at_least(main).with(&copied, &host()))
        }
        None if arguments.update => update(main),
        None if arguments.rules => output::print(&Told::at_least(main).rules()),
        None => output::print(&Told::by(main)?.in_full(&host())),
    }
}

/// Has the initial ramdisks made anew, until they say what the configuration says.
fn update(main: Option<&Path>) -> Result<(), Failure> {
    let folder = state::folder();
    let (note, new) = (folder.join(NOTE), folder.join(NEW));
    let failed = |path: &Path, error: &std::io::Error| {
        Failure::new(format!("can't write {}: {error}", path.display()))
    };
    let mut lock = None;
    for _ in 0..ROUNDS_MAX {
        let told = Told::by(main)?.in_full(&host());
        if fs::read(&note).is_ok_and(|said| said == told.as_bytes()) {
            return Ok(());
        }
        if lock.is_none() {
            lock = Some(alone()?);
            // Another process may have made them meanwhile.
            continue;
        }
        systemd::mount_boot(main)?;
        state::replace(&folder, NEW, told.as_bytes()).map_err(|error| failed(&new, &error))?;
        // There may be none.
        let _ = fs::remove_file(folder.join(MADE));
        make()?;
        if !folder.join(MADE).exists() {
            // Where there is no initial ramdisk, it is right. It is tried again at the next start.
            output::remark(MADE_NONE);
            return Ok(());
        }
        // It is not there if our hook has said something else in one of them.
        if let Err(error) = fs::rename(&new, &note)
            && error.kind() != ErrorKind::NotFound
        {
            return Err(failed(&note, &error));
        }
    }
    Err(Failure::new("the configuration has changed each time that the initial ramdisks were made"))
}

/// Has all of them made.
fn make() -> Result<(), Failure> {
    match Command::new("update-initramfs").args(["-u", "-k", "all"]).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::new(format!("update-initramfs failed: {status}"))),
        Err(error) => Err(Failure::new(format!("can't run update-initramfs: {error}"))),
    }
}

/// Keeps apt and dpkg, which make ramdisks too, from doing so at the same time, and waits until they have
/// ended: update-initramfs takes no lock, and two of them write one file. Nothing, where there is no dpkg.
fn alone() -> Result<Option<File>, Failure> {
    let folder = env::var_os(DPKG_VARIABLE).map_or_else(|| PathBuf::from(DPKG), PathBuf::from);
    let path = folder.join("lock-frontend");
    let failed = |error: std::io::Error| Failure::new(format!("can't lock {}: {error}", path.display()));
    let file = match File::options().write(true).create(true).truncate(false).mode(0o640).open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    retry_on_intr(|| fcntl_lock(&file, FlockOperation::LockExclusive))
        .map_err(|error| failed(error.into()))?;
    Ok(Some(file))
}

/// What an initial ramdisk is told.
#[derive(Default)]
struct Told {
    arrays: BTreeSet<Ours>,
    /// The paths in /dev that targets have.
    devices: BTreeSet<String>,
}

/// An array, by what its entry says of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ours {
    uuid: Option<Uuid>,
    name: Option<String>,
}

impl Told {
    /// By the configuration. An entry that is wrong is no less of an array of ours; where any entry may be
    /// missing, nothing can be said.
    fn by(main: Option<&Path>) -> Result<Self, Problems> {
        let usable = Configuration::load_usable(main)?;
        Ok(Self::of(&usable.configuration).without(&Used::now()))
    }

    /// The same for a ramdisk that is made in any case: where an entry may be missing, what all ramdisks have
    /// said until now is said again.
    fn at_least(main: Option<&Path>) -> Self {
        let problems = match Self::by(main) {
            Ok(told) => return told,
            Err(problems) => problems,
        };
        let why = Failure::from(problems);
        output::remark(&format!(
            "pinstripe: the initial ramdisk says what earlier ones did: the configuration is wrong: {}",
            why.sentence()
        ));
        let mut told = Self::of(&Configuration::known(main));
        let noted = Self::read(&fs::read_to_string(state::folder().join(NOTE)).unwrap_or_default());
        told.arrays.extend(noted.arrays);
        told.devices.extend(noted.devices);
        told.without(&Used::now())
    }

    fn of(configuration: &Configuration) -> Self {
        let arrays =
            configuration.arrays.iter().map(|entry| Ours { uuid: entry.uuid, name: entry.name.clone() });
        let devices = configuration.targets.iter().flat_map(|target| &target.devices);
        let devices = devices.filter(|device| device.starts_with("/dev/"));
        Self { arrays: arrays.collect(), devices: devices.cloned().collect() }
    }

    /// What was said by [`Self::in_full`].
    fn read(text: &str) -> Self {
        let mut told = Self::default();
        for line in text.lines() {
            if let Some(key) = line.strip_suffix(MARK) {
                told.devices.extend(key.split('"').nth(1).map(|name| format!("/dev/{name}")));
            } else if let Some(words) = line.strip_prefix(IGNORED) {
                let uuid = words.strip_prefix("UUID=").and_then(|uuid| uuid.parse().ok());
                let name = words.strip_prefix("name=").and_then(unquoted);
                if uuid.is_some() || name.is_some() {
                    told.arrays.insert(Ours { uuid, name });
                }
            }
        }
        told
    }

    /// Without what the kernel has in use. The root may be on it: a machine must boot whatever its
    /// configuration says.
    fn without(mut self, used: &Used) -> Self {
        self.arrays.retain(|ours| !used.arrays.iter().any(|(uuid, name)| ours.is(*uuid, name)));
        let is_used = |path: &PathBuf| used.devices.contains(path);
        self.devices.retain(|device| !fs::canonicalize(device).as_ref().is_ok_and(is_used));
        self
    }

    /// A line for each array, and one more for a name that mdadm writes with this host's.
    fn lines(&self, host: &str) -> String {
        let words = self.arrays.iter().flat_map(|array| array.words(host));
        let lines: BTreeSet<String> = words.map(|words| format!("{IGNORED}{words}\n")).collect();
        lines.into_iter().collect()
    }

    /// The text of mdadm's configuration without the arrays, and with the lines. `mdadm --assemble --scan`,
    /// which the ramdisk runs while it waits for the root, goes by each line that names an array, whatever
    /// another one says. The lines are at the end: the first one of the text counts although it is indented,
    /// and behind another it would be a part of that.
    fn with(&self, copied: &str, host: &str) -> String {
        let is_ours = |uuid: Option<Uuid>, name: Option<&str>| {
            self.arrays.iter().any(|own| match (own.uuid, uuid) {
                (Some(own), Some(uuid)) => own == uuid,
                _ => name.is_some_and(|name| own.is_called(name)),
            })
        };
        mdadm_conf::without(copied, is_ours) + &self.lines(host)
    }

    /// The rules of udev that keep mdadm off the devices of targets, and off their partitions. What a device
    /// is not known by yet when they run is made after them.
    fn rules(&self) -> String {
        if self.devices.is_empty() {
            return String::new();
        }
        let keys: BTreeSet<String> = self.devices.iter().map(|device| key(device)).collect();
        let lines: Vec<String> = keys.into_iter().map(|key| format!("{key}{MARK}\n")).collect();
        [RULES_BEGIN, &lines.concat(), RULES_END].concat()
    }

    /// All that is said.
    fn in_full(&self, host: &str) -> String {
        self.lines(host) + &self.rules()
    }
}

impl Ours {
    fn is(&self, uuid: Uuid, name: &str) -> bool {
        self.uuid.is_none_or(|own| own == uuid) && (self.name.is_none() || self.is_called(name))
    }

    /// With its host or without.
    fn is_called(&self, name: &str) -> bool {
        self.name.as_ref().is_some_and(|own| own == name || own == short_name(name))
    }

    /// By what mdadm finds it.
    fn words(&self, host: &str) -> Vec<String> {
        if let Some(uuid) = self.uuid {
            return vec![format!("UUID={uuid}")];
        }
        let Some(name) = &self.name else { return Vec::new() };
        // A quote within quotes can't be written.
        let Some(quote) = ['"', '\''].into_iter().find(|quote| !name.contains(*quote)) else {
            return Vec::new();
        };
        let of_host = (!name.contains(':')).then(|| format!("{host}:{name}"));
        let names = [name.clone()].into_iter().chain(of_host);
        names.map(|name| format!("name={quote}{name}{quote}")).collect()
    }
}

/// By what udev knows a device: as a link. What the kernel calls it, as `/dev/sda`, may be another disk at
/// the next boot, one of the root's perhaps, and names nothing here. In the place of a letter that may mean
/// something else in a rule any text fits.
fn key(device: &str) -> String {
    let name = device.strip_prefix("/dev/").unwrap_or(device);
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "#+-.:=@_/".contains(letter);
    let pattern: String = name.chars().map(|letter| if is_plain(letter) { letter } else { '*' }).collect();
    format!("SYMLINK==\"{pattern}\"")
}

/// What stands between quotes.
fn unquoted(word: &str) -> Option<String> {
    let mut letters = word.chars();
    letters.next()?;
    letters.next_back()?;
    Some(letters.as_str().to_owned())
}

/// What the kernel's arrays have that something uses, or may use.
struct Used {
    arrays: Vec<(Uuid, String)>,
    /// Their members, and the disks of these.
    devices: Vec<PathBuf>,
}

impl Used {
    fn now() -> Self {
        let is_free =
            |name: &String| block_users::users(name).as_deref().is_ok_and(<[block_users::Use]>::is_empty);
        let mut used = Self { arrays: Vec::new(), devices: Vec::new() };
        for name in md_device::names().into_iter().filter(|name| !is_free(name)) {
            let members = md_device::members(&name);
            let mut candidates = members.iter().filter_map(|path| look_at(path).ok()?);
            if let Some(superblock) = candidates.find_map(|candidate| candidate.superblock.ok()) {
                used.arrays.push((superblock.array.set_uuid, superblock.array.name.to_string()));
            }
            used.devices.extend(members.iter().filter_map(|member| disk_of(member)));
            used.devices.extend(members);
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Told {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pinstripe.toml");
        fs::write(&path, text).unwrap();
        Told::of(&Configuration::known(Some(&path)))
    }

    fn told_of(text: &str, copied: &str) -> String {
        told(text).with(copied, "here")
    }

    fn target(devices: &str) -> String {
        format!(
            "[[target]]\nname = 'store'\nlisten = '127.0.0.1:4420'\nnqn = 'nqn.2026-01.com.example:store'\n\
            devices = [{devices}]\n"
        )
    }

    #[test]
    fn arrays_are_told_by_uuid_or_by_the_names_that_they_may_have() {
        let text = "[[array]]\nname = 'data'\n[[array]]\nname = 'away:b\"c'\nauto = false\n\
            [[array]]\nname = 'x'\nuuid = '6d41c174:a77e88e8:3d543c04:9a78354b'\n";
        let expected = "ARRAY <ignore> UUID=6d41c174:a77e88e8:3d543c04:9a78354b\n\
            ARRAY <ignore> name=\"data\"\nARRAY <ignore> name=\"here:data\"\nARRAY <ignore> name='away:b\"c'\n";
        assert_eq!(told_of(text, ""), expected);
        assert_eq!(told_of("", ""), "");
    }

    #[test]
    fn the_devices_of_targets_are_told_by_the_names_that_udev_has_for_them() {
        let lines = |devices: &str| {
            let rules = told(&target(devices)).rules();
            let lines = rules.strip_prefix(RULES_BEGIN).and_then(|rules| rules.strip_suffix(RULES_END));
            let lines = lines.unwrap_or_else(|| panic!("{rules}")).lines();
            lines.map(|line| line.strip_suffix(MARK).unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(lines("'/dev/disk/by-id/nvme-A', '/srv/file'"), ["SYMLINK==\"disk/by-id/nvme-A\""]);
        assert_eq!(lines("'/dev/sda'"), ["SYMLINK==\"sda\""], "it may be the root's at the next boot");
        assert_eq!(lines("'/dev/ng0n1'"), ["SYMLINK==\"ng0n1\""]);
        assert_eq!(lines("'/dev/disk/by-id/a\\x20\"b|c'"), ["SYMLINK==\"disk/by-id/a*x20*b*c\""]);
        assert_eq!(told("").rules(), "");
        assert_eq!(told(&target("'/srv/file'")).rules(), "");
    }

    #[test]
    fn what_was_said_can_be_said_again() {
        let text = "[[array]]\nname = 'data'\n[[array]]\nname = 'away:b\"c'\n\
            [[array]]\nname = 'x'\nuuid = '6d41c174:a77e88e8:3d543c04:9a78354b'\n";
        let target = target("'/dev/disk/by-id/nvme-A', '/dev/sda'");
        let said = told(&format!("{text}{target}")).in_full("here");
        assert_eq!(Told::read(&said).in_full("here"), said);
        assert_eq!(Told::read("").in_full("here"), "");
    }

    #[test]
    fn what_the_kernel_has_in_use_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().canonicalize().unwrap().join("disk");
        fs::write(&disk, "").unwrap();
        let device = |path: &Path| path.display().to_string();
        let away = "/dev/disk/by-id/away".to_owned();
        let ours = |name: &str| Ours { uuid: None, name: Some(name.to_owned()) };
        let told = Told {
            arrays: BTreeSet::from([ours("data"), ours("root")]),
            devices: BTreeSet::from([device(&disk), away.clone()]),
        };
        let used = Used { arrays: vec![(Uuid([1; 16]), "here:root".to_owned())], devices: vec![disk] };
        let left = told.without(&used);
        assert_eq!(left.arrays, BTreeSet::from([ours("data")]));
        assert_eq!(left.devices, BTreeSet::from([away]));
    }

    /// mdadm takes a first line for what it says although it is indented.
    #[test]
    fn an_indented_first_line_does_not_become_a_part_of_ours() {
        let first = "  ARRAY /dev/md0 UUID=00000000:a77e88e8:3d543c04:9a78354b\n";
        let told = told_of("[[array]]\nname = 'away:data'\n", first);
        assert_eq!(told, format!("{first}ARRAY <ignore> name=\"away:data\"\n"));
    }

    #[test]
    fn no_line_of_mdadms_names_an_array_of_ours() {
        let ours = "6d41c174:a77e88e8:3d543c04:9a78354b";
        let text = format!("[[array]]\nname = 'data'\n[[array]]\nname = 'x'\nuuid = '{ours}'\n");
        let others = "00000000:a77e88e8:3d543c04:9a78354b";
        let lines = [
            ("MAILADDR root".to_owned(), false),
            ("ARRAY /dev/md/md0 metadata=1.2".to_owned(), false),
            (format!(" UUID={others} name=here:md0"), false),
            (format!("ARRAY /dev/md/x metadata=1.2 UUID={ours} name=here:x"), true),
            (format!("ARRAY /dev/md/x UUID={others} name=here:x"), false),
            (format!("ARRAY /dev/md/data UUID={others}"), true),
            ("\tname=away:data".to_owned(), true),
            ("ARRAY /dev/md/data".to_owned(), true),
            (format!("ARRAY <ignore> UUID={ours}"), false),
        ];
        let copied = lines.each_ref().map(|(line, _)| format!("{line}\n")).concat();
        let silenced =
            lines.map(|(line, goes)| format!("{}{line}\n", if goes { "#pinstripe# " } else { "" }));
        let told = told_of(&text, &copied);
        assert!(told.starts_with(&silenced.concat()), "{told}");
    }
}
