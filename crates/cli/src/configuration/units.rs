//! `pinstripe config units`: what systemd should know of the configured arrays, written by its generator.
//!
//! The unit `pinstripe@.service` of the package serves any array. What depends on the array is a file beside
//! it: which devices and files its members are, what the server needs of the kernel, and its secrets. What
//! depends on the file systems on it is a file beside the units of their mounts (`mounts.rs`).
//!
//! A target has `pinstripe-target@.service`. Its whole command line is in the file beside it, because nothing
//! has to be looked for first.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use pinstripe_config::{
    Array, Configuration, Place, Setting, Settings, Target, Usable, Value, is_instance, is_server,
};
use pinstripe_md::identity::short_name;

use super::{
    file_systems, load, load_usable,
    mounts::{self, Mount, unit_of},
};
use crate::{
    called::{host, in_dev},
    command_line::ConfigUnitsArguments,
    failure::Failure,
    joined, output,
    systemd::{PROGRAM, TARGET_TEMPLATE, TEMPLATE, UNITS},
};

/// What starts arrays and targets at boot.
const AT_BOOT: &str = "pinstripe.target";
/// Options of `serve` that name a file of secrets. A credential of this name takes the file's place.
pub const SECRETS: &[&str] = &["dhchap-hosts", "dhchap-secrets", "nvme-tls-hosts", "nvme-tls-secrets"];
/// Those of them that count when they change. A credential would be the copy from the unit's start.
const LASTING: &[&str] = &["dhchap-hosts", "nvme-tls-hosts"];

/// What isn't needed if the array is no block device.
const WITHOUT_UBLK: &str = "\
# Neither ublk nor fuse: no capability, and no device but disks.
CapabilityBoundingSet=
DeviceAllow=
DeviceAllow=block-* rw
DeviceAllow=char-nvme-generic rw
DeviceAllow=char-dax rw";
/// What the server mounts must be seen outside of it, so it can have no name space of mounts of its own.
const WITH_FUSE: &str = "\
# The array's file is mounted for all.
PrivateMounts=no
ProtectSystem=no
ProtectKernelTunables=no
ProtectKernelModules=no
ProtectKernelLogs=no
ProtectControlGroups=no
ProtectProc=default
SystemCallFilter=@mount";

/// Socket files of clients are given away, which no unit may do otherwise.
const WITH_SOCKETS_OF_OTHERS: &str = "\
# The sockets of clients have another owner or group.
CapabilityBoundingSet=CAP_CHOWN
SystemCallFilter=@chown";

/// A file of systemd's.
#[derive(Debug, PartialEq, Eq)]
enum Generated {
    /// Has a unit started with another one.
    Link { path: PathBuf, target: PathBuf },
    /// Says more of a unit.
    Text { path: PathBuf, text: String },
}

/// `pinstripe config units`.
pub fn run(arguments: &ConfigUnitsArguments) -> Result<(), Failure> {
    let main = arguments.configuration.config.as_deref();
    let outcome = load(main).map(drop).map_err(Failure::from);
    // What is wrong keeps others from nothing: this is how a machine boots.
    let Ok(Usable { configuration, wrong, .. }) = load_usable(main) else { return outcome };
    let mounts = mounts::mounts(&mounts::table(), &file_systems::known(), &configuration, &host());
    let (files, remarks) = generated(&configuration, &wrong, &mounts);
    for remark in remarks {
        output::remark(&format!("pinstripe: {remark}"));
    }
    for file in files {
        let (path, written) = match &file {
            Generated::Link { path, target } => (path, symlinked(&arguments.folder.join(path), target)),
            Generated::Text { path, text } => (path, written(&arguments.folder.join(path), text)),
        };
        let path = arguments.folder.join(path);
        written.map_err(|error| Failure::new(format!("can't write {}: {error}", path.display())))?;
    }
    outcome
}

fn symlinked(path: &Path, target: &Path) -> std::io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let _ = fs::remove_file(path);
    symlink(target, path)
}

fn written(path: &Path, text: &str) -> std::io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, text)
}

/// The unit that serves the array of this entry, unless neither its name nor its UUID can be part of a
/// unit's name. The name is the one without the host: the server's sockets and its device are called by it,
/// and a stop finds the server by what stands in the unit's name.
pub fn unit(configuration: &Configuration, entry: &Array) -> Option<String> {
    let short = |entry: &Array| entry.name.as_ref().map(|name| short_name(name).to_owned());
    let is_single = |name: &String| {
        let is_one = |other: &&Array| short(other).is_some_and(|other| in_dev(&other) == in_dev(name));
        configuration.arrays.iter().filter(is_one).count() == 1
    };
    let name = short(entry).filter(|name| is_instance(name) && is_single(name));
    let instance = name.or_else(|| entry.uuid.map(|uuid| uuid.to_string()))?;
    Some(format!("pinstripe@{instance}.service"))
}

/// The unit that runs the target of this name.
pub fn unit_of_target(name: &str) -> String {
    TARGET_TEMPLATE.replace('@', &format!("@{name}"))
}

/// All files but those of entries that are `wrong`, and what a person should know.
fn generated(
    configuration: &Configuration,
    wrong: &[Place],
    mounts: &[Mount],
) -> (Vec<Generated>, Vec<String>) {
    let (mut files, mut remarks) = (Vec::new(), Vec::new());
    for entry in configuration.arrays.iter().filter(|entry| !wrong.contains(&entry.place)) {
        let Some(unit) = unit(configuration, entry) else {
            remarks.push(format!(
                "{}: no unit can serve an array of this name: give its uuid beside it, or serve it by `pinstripe daemon`",
                entry.place
            ));
            continue;
        };
        if entry.auto {
            files.push(at_boot(&unit, TEMPLATE));
        }
        let early = mounts.iter().find(|mount| mount.array == unit && mount.is_early);
        let has_joined = entry.uuid.is_some_and(|uuid| !joined::on_servers(uuid).is_empty());
        if let Some(mount) = early.filter(|_| has_joined || is_on_servers(entry)) {
            remarks.push(format!(
                "{}: the array has or may get members on servers: give its line in /etc/fstab ({}) `_netdev`, or it may not be mounted at a boot",
                entry.place, mount.unit
            ));
        }
        files.push(beside(&unit, more(entry, needs_network(entry, has_joined, early.is_some()))));
    }
    for target in configuration.targets.iter().filter(|target| !wrong.contains(&target.place)) {
        let unit = unit_of_target(&target.name);
        if target.auto {
            files.push(at_boot(&unit, TARGET_TEMPLATE));
        }
        files.push(beside(&unit, more_of_target(target)));
    }
    files.extend(mounts.iter().map(|mount| beside(&mount.unit, mount.more())));
    files.extend(mounts.iter().map(|mount| beside(&mount.device, mount.more_of_device())));
    (files, remarks)
}

/// Has a unit started at boot.
fn at_boot(unit: &str, template: &str) -> Generated {
    let path = Path::new(&format!("{AT_BOOT}.wants")).join(unit);
    Generated::Link { path, target: Path::new(UNITS).join(template) }
}

/// A file that says more of a unit.
fn beside(unit: &str, text: String) -> Generated {
    Generated::Text { path: Path::new(&format!("{unit}.d")).join("50-pinstripe.conf"), text }
}

/// Whether the entry says that members are, or may come to be, on servers.
fn is_on_servers(entry: &Array) -> bool {
    entry.members.iter().any(|member| is_server(member)) || wants(entry, "spare-pool")
}

/// Whether an array's unit waits for the network. The network comes after the mounts that all at a boot waits
/// for: one of them on the array would wait for itself. For a member that has joined later that isn't risked.
fn needs_network(entry: &Array, has_joined: bool, has_early_mount: bool) -> bool {
    is_on_servers(entry) || (has_joined && !has_early_mount)
}

/// What an array's unit says beside what all say.
fn more(entry: &Array, needs_network: bool) -> String {
    let mut lines = vec![format!("# Of {}", entry.place), "[Unit]".to_owned()];
    if needs_network {
        lines.extend(["Wants", "After"].map(|key| format!("{key}=network-online.target")));
    }
    lines.extend(mounted(&entry.members));
    lines.push("\n[Service]".to_owned());
    if wants(entry, "fuse") {
        lines.push(WITH_FUSE.to_owned());
    } else if !wants(entry, "ublk") {
        lines.push(WITHOUT_UBLK.to_owned());
    }
    // After what takes all capabilities away: systemd adds up.
    if ["socket-owner", "socket-group"].iter().any(|key| wants(entry, key)) {
        lines.push(WITH_SOCKETS_OF_OTHERS.to_owned());
    }
    lines.extend(
        entry.weight.iter().flat_map(|weight| ["CPU", "IO"].map(|of| format!("{of}Weight={weight}"))),
    );
    lines.extend(secrets(&entry.settings));
    lines.join("\n") + "\n"
}

/// What a target's unit says beside what all say.
fn more_of_target(target: &Target) -> String {
    let mut lines = vec![format!("# Of {}", target.place), "[Unit]".to_owned()];
    // A mount that is missing would fail the unit.
    if target.settings.get("allow-missing").is_none_or(|setting| setting.value == Value::Flag(false)) {
        lines.extend(mounted(&target.devices));
    }
    if let Some(Setting { value: Value::Text(state), .. }) = target.settings.get("state")
        && is_plain(Path::new(state))
    {
        lines.push(format!("RequiresMountsFor={state}"));
    }
    for unit in target.devices.iter().filter_map(|path| device_of(path)) {
        // systemd waits for it a while, and starts the target in any case, which says what is missing.
        lines.extend(["Wants", "After"].map(|key| format!("{key}={unit}")));
    }
    lines.push("\n[Service]".to_owned());
    lines.extend(secrets(&target.settings));
    let mut command = vec![PROGRAM.to_owned(), "target".to_owned()];
    for (name, setting) in &target.settings {
        if is_credential(name) {
            command.push(format!("--{name}=%d/{name}"));
        } else {
            command.extend(setting.words(name).iter().map(|word| quoted(word)));
        }
    }
    command.extend(target.devices.iter().map(|device| quoted(device)));
    lines.push(format!("ExecStart={}", command.join(" ")));
    lines.join("\n") + "\n"
}

/// The unit of a device, which udev has systemd make. It does so for disks, and not for `/dev/ng0n1`.
fn device_of(path: &str) -> Option<String> {
    let name = path.strip_prefix("/dev/")?;
    if name.starts_with("ng") { None } else { unit_of(path, "device") }
}

/// A word of a command line as systemd reads it.
fn quoted(word: &str) -> String {
    let mut text = String::from("\"");
    for c in word.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '%' | '$' => text.extend([c, c]),
            c if c.is_control() => text.extend(c.to_string().bytes().map(|byte| format!("\\x{byte:02x}"))),
            c => text.push(c),
        }
    }
    text + "\""
}

/// Whether systemd reads the file of this option for the process.
fn is_credential(name: &str) -> bool {
    SECRETS.contains(&name) && !LASTING.contains(&name)
}

/// Files of secrets, which systemd reads for the process.
fn secrets(settings: &Settings) -> impl Iterator<Item = String> {
    SECRETS.iter().filter(|name| is_credential(name)).filter_map(|name| match settings.get(name) {
        Some(Setting { value: Value::Text(path), .. }) => {
            Some(format!("LoadCredential={name}:{}", path.replace('%', "%%")))
        }
        _ => None,
    })
}

/// Has the file systems of members that are files mounted.
fn mounted(members: &[String]) -> impl Iterator<Item = String> {
    folders(members).into_iter().map(|folder| format!("RequiresMountsFor={}", folder.display()))
}

/// Whether it has an option.
fn wants(entry: &Array, name: &str) -> bool {
    entry.settings.get(name).is_some_and(|setting| setting.value != Value::Flag(false))
}

/// Folders with members that are files.
fn folders(members: &[String]) -> BTreeSet<&Path> {
    let files = members.iter().map(|member| member.strip_prefix("pmem:").unwrap_or(member));
    let files = files.filter(|member| member.starts_with('/') && !member.starts_with("/dev/")).map(Path::new);
    files.filter_map(Path::parent).filter(|folder| is_plain(folder)).collect()
}

/// A folder that systemd takes as it stands, and no glob.
fn is_plain(folder: &Path) -> bool {
    let special = |c: char| c.is_whitespace() || c.is_control() || "*?[%\\\"'".contains(c);
    folder.to_str().is_some_and(|text| !text.contains(special))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(text: &str) -> Configuration {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pinstripe.toml");
        fs::write(&path, text).unwrap();
        load(Some(&path)).unwrap()
    }

    fn texts(text: &str) -> Vec<String> {
        let (files, _) = generated(&configuration(text), &[], &[]);
        let text = |file| match file {
            Generated::Text { text, .. } => Some(text),
            Generated::Link { .. } => None,
        };
        files.into_iter().filter_map(text).collect()
    }

    #[test]
    fn each_array_has_a_unit_of_its_name_and_those_that_start_by_themselves_are_wanted() {
        let text = "[[array]]\nname = 'data'\n[[array]]\nname = 'host:my-home'\nauto = false\n\
            [[array]]\nname = 'a b'\n[[array]]\nname = 'a c'\nuuid = '6d41c174:a77e88e8:3d543c04:9a78354b'\n";
        let (files, remarks) = generated(&configuration(text), &[], &[]);
        let paths: Vec<String> = files
            .iter()
            .map(|file| match file {
                Generated::Link { path, target } => {
                    assert_eq!(target, Path::new("/usr/lib/systemd/system/pinstripe@.service"));
                    path.display().to_string()
                }
                Generated::Text { path, .. } => path.display().to_string(),
            })
            .collect();
        assert_eq!(
            paths,
            [
                "pinstripe.target.wants/pinstripe@data.service",
                "pinstripe@data.service.d/50-pinstripe.conf",
                "pinstripe@my-home.service.d/50-pinstripe.conf",
                "pinstripe.target.wants/pinstripe@6d41c174:a77e88e8:3d543c04:9a78354b.service",
                "pinstripe@6d41c174:a77e88e8:3d543c04:9a78354b.service.d/50-pinstripe.conf",
            ]
        );
        assert!(remarks.len() == 1 && remarks[0].contains("give its uuid"), "{remarks:?}");
    }

    #[test]
    fn a_file_system_on_an_array_comes_after_its_unit() {
        let fstab = "/dev/pinstripe/data /a ext4\n/dev/pinstripe/data-part1 /b ext4\n";
        let text = "[[array]]\nname = 'data'\n[[array]]\nname = 'other'\n";
        let configuration = configuration(text);
        let mounts = mounts::mounts(fstab, &[], &configuration, &host());
        let (files, _) = generated(&configuration, &[], &mounts);
        let of = |name: &str| {
            let is_it =
                |file: &&Generated| matches!(file, Generated::Text { path, .. } if path.starts_with(name));
            let Some(Generated::Text { text, .. }) = files.iter().find(is_it) else {
                panic!("{name} is missing")
            };
            text.clone()
        };
        assert_eq!(of("a.mount.d"), of("b.mount.d"));
        for device in ["dev-pinstripe-data.device.d", "dev-pinstripe-data\\x2dpart1.device.d"] {
            assert!(of(device).ends_with("[Unit]\nAfter=pinstripe@data.service\n"), "{device}");
        }
    }

    #[test]
    fn a_member_that_has_joined_from_a_server_does_not_have_an_early_mount_wait_for_the_network() {
        let local = configuration("[[array]]\nname = 'data'\n");
        let remote = configuration(
            "[[array]]\nname = 'data'\nmembers = ['nvme-tcp://192.0.2.1:4420/nqn.2026-01.com.example:a?nsid=1']\n",
        );
        let needs = |of: &Configuration, joined, early| needs_network(&of.arrays[0], joined, early);
        assert!(!needs(&local, false, false) && needs(&local, true, false) && !needs(&local, true, true));
        assert!(needs(&remote, false, true));
        for (options, remarks) in [("defaults", 1), ("defaults,_netdev", 0), ("nofail", 0)] {
            let fstab = format!("/dev/pinstripe/data /srv ext4 {options} 0 2\n");
            for (of, expected) in [(&remote, remarks), (&local, 0)] {
                let mounts = mounts::mounts(&fstab, &[], of, &host());
                assert_eq!(generated(of, &[], &mounts).1.len(), expected, "{options}");
            }
        }
    }

    #[test]
    fn two_arrays_of_a_name_are_told_apart_by_their_uuids() {
        let text = "[[array]]\nname = 'data'\nuuid = '6d41c174:a77e88e8:3d543c04:9a78354b'\n\
            [[array]]\nname = 'data'\nuuid = '00000000:a77e88e8:3d543c04:9a78354b'\n";
        let configuration = configuration(text);
        let units: Vec<_> =
            configuration.arrays.iter().map(|entry| unit(&configuration, entry).unwrap()).collect();
        assert!(units.iter().all(|unit| unit.ends_with(":9a78354b.service")), "{units:?}");
    }

    #[test]
    fn arrays_that_differ_only_in_their_host_have_units_of_their_uuids_or_none() {
        let text = "[[array]]\nname = 'a:data'\nuuid = '6d41c174:a77e88e8:3d543c04:9a78354b'\n\
            [[array]]\nname = 'b:data'\n[[array]]\nname = '-x'\n";
        let configuration = configuration(text);
        let units: Vec<_> = configuration.arrays.iter().map(|entry| unit(&configuration, entry)).collect();
        let first = "pinstripe@6d41c174:a77e88e8:3d543c04:9a78354b.service".to_owned();
        assert_eq!(units, [Some(first), None, None]);
    }

    #[test]
    fn arrays_of_names_that_udev_makes_one_have_units_of_their_uuids() {
        let uuids = ["6d41c174:a77e88e8:3d543c04:9a78354b", "7d41c174:a77e88e8:3d543c04:9a78354b"];
        let text = format!(
            "[[array]]\nname = 'a b'\nuuid = '{}'\n[[array]]\nname = 'a_b'\nuuid = '{}'\n",
            uuids[0], uuids[1]
        );
        let configuration = configuration(&text);
        let units: Vec<_> = configuration.arrays.iter().map(|entry| unit(&configuration, entry)).collect();
        assert_eq!(units, uuids.map(|uuid| Some(format!("pinstripe@{uuid}.service"))));
    }

    #[test]
    fn a_target_has_its_command_line_and_waits_for_its_devices() {
        let text = "[[target]]\nname = 'store'\nlisten = '192.0.2.7:4420'\nnqn = 'nqn.2026-01.com.example:a'\n\
            devices = ['/dev/disk/by-id/x-1', '/srv/m/a $b\"%n']\ndhchap-hosts = '/etc/100%'\nstate = '/var/lib/x'\n";
        let (files, _) = generated(&configuration(text), &[], &[]);
        let [link, Generated::Text { path, text: more }] = &files[..] else { panic!("{files:?}") };
        assert_eq!(link, &at_boot("pinstripe-target@store.service", "pinstripe-target@.service"));
        assert_eq!(path, Path::new("pinstripe-target@store.service.d/50-pinstripe.conf"));
        let expected = [
            "Wants=dev-disk-by\\x2did-x\\x2d1.device\nAfter=dev-disk-by\\x2did-x\\x2d1.device\n",
            "RequiresMountsFor=/srv/m\nRequiresMountsFor=/var/lib/x\n",
            "ExecStart=/usr/bin/pinstripe target \"--dhchap-hosts=/etc/100%%\" \"--listen=192.0.2.7:4420\" \
                \"--nqn=nqn.2026-01.com.example:a\" \"--state=/var/lib/x\" \"/dev/disk/by-id/x-1\" \
                \"/srv/m/a $$b\\\"%%n\"\n",
        ];
        for words in expected {
            assert!(more.contains(words), "{more}");
        }
        assert!(!more.contains("After=srv"), "a file is no device");
        let passed = text.replace("/dev/disk/by-id/x-1", "/dev/ng0n1");
        let passed = texts(&passed).remove(0);
        assert!(passed.contains("\"/dev/ng0n1\"") && !passed.contains(".device"), "{passed}");
        let (files, _) =
            generated(&configuration(&(text.to_owned() + "auto = false\nallow-missing = true\n")), &[], &[]);
        let [Generated::Text { text: more, .. }] = &files[..] else { panic!("{files:?}") };
        assert!(!more.contains("/srv/m\n") && more.contains("RequiresMountsFor=/var/lib/x\n"), "{more}");
        assert!(more.contains("\"--allow-missing\""), "{more}");
    }

    #[test]
    fn a_word_stays_one_word_whatever_is_in_it() {
        assert_eq!(quoted("a b\\$x\"%i\n"), "\"a b\\\\$$x\\\"%%i\\x0a\"");
    }

    #[test]
    fn what_the_server_needs_depends_on_how_and_over_what_the_array_is_served() {
        let plain = texts("[[array]]\nname = 'a'\nmembers = ['/dev/disk/by-id/nvme-*']\n").remove(0);
        assert!(plain.contains("CapabilityBoundingSet=\n") && !plain.contains("network-online"), "{plain}");
        assert!(!plain.contains("RequiresMountsFor") && !plain.contains("Weight"), "{plain}");
        let heavy = texts("[[array]]\nname = 'a'\nweight = 400\n").remove(0);
        assert!(heavy.ends_with("\nCPUWeight=400\nIOWeight=400\n"), "{heavy}");
        let ublk = texts("[defaults]\nublk = true\n[[array]]\nname = 'a'\n").remove(0);
        assert!(!ublk.contains("CapabilityBoundingSet"), "{ublk}");
        let not = texts("[defaults]\nublk = true\n[[array]]\nname = 'a'\nublk = false\n").remove(0);
        assert!(not.contains("CapabilityBoundingSet=\n"), "{not}");
        let fuse = texts("[[array]]\nname = 'a'\nfuse = '/srv/a'\n").remove(0);
        assert!(fuse.contains("ProtectSystem=no") && !fuse.contains("CapabilityBoundingSet"), "{fuse}");
        let files =
            texts("[[array]]\nname = 'a'\nmembers = ['/srv/x/*', 'pmem:/mnt/p/a', '/s*/b']\n").remove(0);
        assert!(files.contains("RequiresMountsFor=/mnt/p\nRequiresMountsFor=/srv/x\n"), "{files}");
        for key in ["socket-owner = 'root'", "socket-group = 'disk'"] {
            let given = texts(&format!("[defaults]\n{key}\n[[array]]\nname = 'a'\n")).remove(0);
            let none = given.find("CapabilityBoundingSet=\n");
            assert!(none.is_some() && none < given.find("CapabilityBoundingSet=CAP_CHOWN\n"), "{given}");
            assert!(given.contains("\nSystemCallFilter=@chown\n"), "{given}");
        }
        let open = texts("[[array]]\nname = 'a'\nsocket-mode = '0666'\n").remove(0);
        assert!(!open.to_lowercase().contains("chown"), "{open}");
        let remote = texts(
            "[[array]]\nname = 'a'\ndhchap-secrets = '/etc/100%'\n\
            members = ['nvme-tcp://192.0.2.1:4420/nqn.2026-01.com.example:a?nsid=1']\n",
        );
        assert!(remote[0].contains("After=network-online.target"), "{remote:?}");
        assert!(remote[0].contains("LoadCredential=dhchap-secrets:/etc/100%%\n"), "{remote:?}");
    }

    #[test]
    fn files_of_secrets_reach_arrays_and_targets_as_credentials_and_those_of_hosts_as_they_are() {
        let files: Vec<String> = SECRETS.iter().map(|name| format!("{name} = '/etc/{name}'\n")).collect();
        let files = files.concat();
        let array = format!("[[array]]\nname = 'a'\nnvme-tcp = '127.0.0.1:4420'\n{files}");
        let target = format!(
            "[[target]]\nname = 'b'\nlisten = '127.0.0.1:4421'\nnqn = 'nqn.2026-01.com.example:b'\ndevices = ['/dev/x']\n{files}"
        );
        for text in [&array, &target] {
            let text = texts(text).remove(0);
            for name in SECRETS {
                // Of those of hosts the copy would keep a restart between a change and its effect.
                let is_copied = text.contains(&format!("LoadCredential={name}:/etc/{name}\n"));
                assert_eq!(is_copied, name.ends_with("secrets"), "{name}: {text}");
            }
        }
        let command = texts(&target).remove(0);
        for word in ["\"--dhchap-hosts=/etc/dhchap-hosts\"", "--dhchap-secrets=%d/dhchap-secrets"] {
            assert!(command.contains(word), "{command}");
        }
    }

    #[test]
    fn servers_may_read_files_of_hosts_wherever_root_can() {
        for unit in [
            include_str!("../../../../packaging/systemd/pinstripe@.service"),
            include_str!("../../../../packaging/systemd/pinstripe-target@.service"),
        ] {
            let hides = ["User=", "DynamicUser=", "InaccessiblePaths=", "TemporaryFileSystem="];
            for line in unit.lines() {
                assert!(!hides.iter().any(|key| line.starts_with(key)), "{line}");
                assert!(!line.starts_with("ProtectHome=") || line == "ProtectHome=read-only", "{line}");
            }
        }
    }

    #[test]
    fn servers_of_arrays_and_targets_may_open_disks_both_ways_and_have_work_stand_back() {
        for unit in [
            include_str!("../../../../packaging/systemd/pinstripe@.service"),
            include_str!("../../../../packaging/systemd/pinstripe-target@.service"),
        ] {
            for kind in ["block-*", "char-nvme-generic", "char-dax"] {
                let line = format!("DeviceAllow={kind} rw");
                assert!(unit.lines().any(|is| is == line), "{line}: {unit}");
            }
            let filters: Vec<&str> =
                unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")).collect();
            assert_eq!(filters.last(), Some(&"sched_setaffinity setpriority"), "after what takes it away");
        }
    }

    #[test]
    fn servers_that_hang_or_die_come_again_and_are_not_the_memory_that_the_kernel_takes_back() {
        let array = include_str!("../../../../packaging/systemd/pinstripe@.service");
        let target = include_str!("../../../../packaging/systemd/pinstripe-target@.service");
        let daemon = include_str!("../../../../packaging/systemd/pinstripe-daemon.service");
        let all: &[&str] = &["Type=notify", "Restart=on-failure", "WatchdogSec=60"];
        let servers: &[&str] = &[
            "OOMScoreAdjust=-900",
            "ManagedOOMPreference=omit",
            "LimitMEMLOCK=infinity",
            "LimitNOFILE=65536",
            "IgnoreOnIsolate=yes",
        ];
        // A process that a disk keeps from ending must not keep the next one from serving.
        for (unit, more) in [(array, &["KillMode=process"][..]), (target, &[]), (daemon, &[])] {
            let servers = if unit == daemon { &[] } else { servers };
            for line in all.iter().chain(servers).chain(more) {
                assert!(unit.lines().any(|is| is == *line), "{line}: {unit}");
            }
        }
    }

    #[test]
    fn the_initial_ramdisk_is_looked_at_when_an_array_or_a_target_is_started() {
        let array = include_str!("../../../../packaging/systemd/pinstripe@.service");
        let target = include_str!("../../../../packaging/systemd/pinstripe-target@.service");
        for unit in [array, target] {
            assert!(unit.lines().any(|line| line == "Wants=pinstripe-ramdisk.service"), "{unit}");
        }
        let ramdisk = include_str!("../../../../packaging/systemd/pinstripe-ramdisk.service");
        let mounts = ramdisk.lines().find_map(|line| line.strip_prefix("RequiresMountsFor="));
        assert_eq!(mounts, Some("/var/lib/pinstripe"), "/boot may be for what needs it to mount");
        assert!(ramdisk.contains("\nAfter=boot.mount "), "it isn't unmounted before this has ended");
    }

    #[test]
    fn virtual_machines_are_shut_down_before_their_disks_go() {
        let unit = include_str!("../../../../packaging/systemd/pinstripe@.service");
        assert!(unit.lines().any(|line| line == "Before=libvirt-guests.service"), "{unit}");
    }

    #[test]
    fn starts_that_wait_in_vain_for_members_do_not_use_up_those_that_systemd_allows() {
        let unit = include_str!("../../../../packaging/systemd/pinstripe@.service");
        let value = |key: &str| {
            let value = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            let value = value.unwrap_or_else(|| panic!("{key}: {unit}"));
            let (number, unit) = value.split_at(value.trim_end_matches(char::is_alphabetic).len());
            number.parse::<u64>().unwrap() * if unit == "min" { 60 } else { 1 }
        };
        // `assemble --foreground` waits 60 seconds for enough members, and `serve` for servers.
        let waits = value("StartLimitBurst") * (60 + value("RestartSec"));
        assert!(waits > value("StartLimitIntervalSec"), "{waits}");
        assert_eq!(value("RestartPreventExitStatus"), u64::from(crate::failure::SERVED));
    }

    #[test]
    fn the_folder_of_states_is_closed_to_others_whatever_makes_it() {
        let files = include_str!("../../../../packaging/systemd/pinstripe.tmpfile");
        assert!(files.contains("d /var/lib/pinstripe 0700 root root"), "{files}");
        let unit = include_str!("../../../../packaging/systemd/pinstripe-daemon.service");
        assert!(unit.contains("StateDirectory=pinstripe\nStateDirectoryMode=0700\n"), "{unit}");
    }
}
