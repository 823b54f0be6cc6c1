//! `pinstripe config units`: what systemd should know of the configured arrays, written by its generator.
//!
//! The unit `pinstripe@.service` of the package serves any array. What depends on the array is a file beside
//! it: which devices and files its members are, what the server needs of the kernel, and its secrets. What
//! depends on the file systems on it is a file beside the units of their mounts (`mounts.rs`).

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use pinstripe_config::{Array, Configuration, Setting, Value, is_server};
use pinstripe_md::identity::short_name;

use super::{
    load,
    mounts::{self, Mount},
};
use crate::{command_line::ConfigUnitsArguments, failure::Failure};

/// Where the package has its units.
const UNITS: &str = "/usr/lib/systemd/system";
/// What starts the arrays at boot.
const TARGET: &str = "pinstripe.target";
/// Options of `serve` that name a file of secrets. A credential of this name takes the file's place.
pub const SECRETS: &[&str] = &["dhchap-hosts", "dhchap-secrets"];

/// What isn't needed if the array is no block device.
const WITHOUT_UBLK: &str = "\
# Neither ublk nor fuse: no capability, and no device but disks.
CapabilityBoundingSet=
DeviceAllow=
DeviceAllow=block-* rw
DeviceAllow=char-nvme-generic rw";
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
    let configuration = load(arguments.configuration.config.as_deref())?;
    let (files, remarks) = generated(&configuration, &mounts::table());
    for remark in remarks {
        eprintln!("pinstripe: {remark}");
    }
    for file in files {
        let (path, written) = match &file {
            Generated::Link { path, target } => (path, symlinked(&arguments.folder.join(path), target)),
            Generated::Text { path, text } => (path, written(&arguments.folder.join(path), text)),
        };
        let path = arguments.folder.join(path);
        written.map_err(|error| Failure::new(format!("can't write {}: {error}", path.display())))?;
    }
    Ok(())
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
    let is_usable = |text: &str| {
        !text.is_empty()
            // Commands would take it for an option.
            && !text.starts_with('-')
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, ':' | '-' | '_' | '.'))
    };
    let short = |entry: &Array| entry.name.as_ref().map(|name| short_name(name).to_owned());
    let is_single = |name: &String| {
        configuration.arrays.iter().filter(|other| short(other).as_ref() == Some(name)).count() == 1
    };
    let name = short(entry).filter(|name| is_usable(name) && is_single(name));
    let instance = name.or_else(|| entry.uuid.map(|uuid| uuid.to_string()))?;
    Some(format!("pinstripe@{instance}.service"))
}

/// All files, and what a person should know.
fn generated(configuration: &Configuration, fstab: &str) -> (Vec<Generated>, Vec<String>) {
    let (mut files, mut remarks) = (Vec::new(), Vec::new());
    let mounts = mounts::mounts(fstab, configuration);
    for entry in &configuration.arrays {
        let Some(unit) = unit(configuration, entry) else {
            remarks.push(format!(
                "{}: no unit can serve an array of this name: give its uuid beside it, or serve it by `pinstripe daemon`",
                entry.place
            ));
            continue;
        };
        if entry.auto {
            let path = Path::new(&format!("{TARGET}.wants")).join(&unit);
            files.push(Generated::Link { path, target: Path::new(UNITS).join("pinstripe@.service") });
        }
        let own: Vec<&Mount> = mounts.iter().filter(|mount| mount.array == unit).collect();
        let stop = if own.is_empty() { String::new() } else { mounts::stop(&own) + "\n" };
        files.push(beside(&unit, more(entry) + &stop));
    }
    files.extend(mounts.iter().map(|mount| beside(&mount.unit, mount.more())));
    (files, remarks)
}

/// A file that says more of a unit.
fn beside(unit: &str, text: String) -> Generated {
    Generated::Text { path: Path::new(&format!("{unit}.d")).join("50-pinstripe.conf"), text }
}

/// What an array's unit says beside what all say.
fn more(entry: &Array) -> String {
    let mut lines = vec![format!("# Of {}", entry.place), "[Unit]".to_owned()];
    if entry.members.iter().any(|member| is_server(member)) || wants(entry, "spare-pool") {
        lines.extend(["Wants", "After"].map(|key| format!("{key}=network-online.target")));
    }
    lines.extend(folders(entry).into_iter().map(|folder| format!("RequiresMountsFor={}", folder.display())));
    lines.push("\n[Service]".to_owned());
    if wants(entry, "fuse") {
        lines.push(WITH_FUSE.to_owned());
    } else if !wants(entry, "ublk") {
        lines.push(WITHOUT_UBLK.to_owned());
    }
    for name in SECRETS {
        if let Some(Setting { value: Value::Text(path), .. }) = entry.settings.get(name) {
            lines.push(format!("LoadCredential={name}:{}", path.replace('%', "%%")));
        }
    }
    lines.join("\n") + "\n"
}

/// Whether it has an option.
fn wants(entry: &Array, name: &str) -> bool {
    entry.settings.get(name).is_some_and(|setting| setting.value != Value::Flag(false))
}

/// Folders with members that are files.
fn folders(entry: &Array) -> BTreeSet<&Path> {
    let files = entry.members.iter().map(|member| member.strip_prefix("pmem:").unwrap_or(member));
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
        let (files, _) = generated(&configuration(text), "");
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
        let (files, remarks) = generated(&configuration(text), "");
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
    fn an_array_with_a_file_system_is_unmounted_before_it_is_stopped() {
        let fstab = "/dev/pinstripe/data /a ext4\n/dev/pinstripe/data-part1 /b ext4\n";
        let text = "[[array]]\nname = 'data'\n[[array]]\nname = 'other'\n";
        let (files, _) = generated(&configuration(text), fstab);
        let of = |name: &str| {
            let is_it =
                |file: &&Generated| matches!(file, Generated::Text { path, .. } if path.starts_with(name));
            let Some(Generated::Text { text, .. }) = files.iter().find(is_it) else {
                panic!("{name} is missing")
            };
            text.clone()
        };
        let data = of("pinstripe@data.service.d");
        assert!(data.contains("[Service]\n") && data.contains(" sh a.mount b.mount\n"), "{data}");
        assert!(!of("pinstripe@other.service.d").contains("ExecStop"));
        assert_eq!(of("a.mount.d"), of("b.mount.d"));
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
    fn what_the_server_needs_depends_on_how_and_over_what_the_array_is_served() {
        let plain = texts("[[array]]\nname = 'a'\nmembers = ['/dev/disk/by-id/nvme-*']\n").remove(0);
        assert!(plain.contains("CapabilityBoundingSet=\n") && !plain.contains("network-online"), "{plain}");
        assert!(!plain.contains("RequiresMountsFor"), "{plain}");
        let ublk = texts("[defaults]\nublk = true\n[[array]]\nname = 'a'\n").remove(0);
        assert!(!ublk.contains("CapabilityBoundingSet"), "{ublk}");
        let not = texts("[defaults]\nublk = true\n[[array]]\nname = 'a'\nublk = false\n").remove(0);
        assert!(not.contains("CapabilityBoundingSet=\n"), "{not}");
        let fuse = texts("[[array]]\nname = 'a'\nfuse = '/srv/a'\n").remove(0);
        assert!(fuse.contains("ProtectSystem=no") && !fuse.contains("CapabilityBoundingSet"), "{fuse}");
        let files =
            texts("[[array]]\nname = 'a'\nmembers = ['/srv/x/*', 'pmem:/mnt/p/a', '/s*/b']\n").remove(0);
        assert!(files.contains("RequiresMountsFor=/mnt/p\nRequiresMountsFor=/srv/x\n"), "{files}");
        let remote = texts(
            "[[array]]\nname = 'a'\ndhchap-secrets = '/etc/100%'\n\
            members = ['nvme-tcp://192.0.2.1:4420/nqn.2026-01.com.example:a?nsid=1']\n",
        );
        assert!(remote[0].contains("After=network-online.target"), "{remote:?}");
        assert!(remote[0].contains("LoadCredential=dhchap-secrets:/etc/100%%\n"), "{remote:?}");
    }
}
