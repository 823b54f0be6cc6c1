//! File systems of /etc/fstab that are on arrays, as units of systemd.
//!
//! When a service dies that is to be started again, systemd stops what requires it or has its stop passed
//! on (`Requires=`, `BindsTo=`, `PartOf=`, `StopPropagatedFrom=`). It would unmount the file system, which
//! needs the array, which waits for that. So a mount only wants its array and comes after it. What a person
//! stops is unmounted by the stop of the array's unit (`stop --unmount`).

use std::path::{Path, PathBuf};

use pinstripe_config::{Array, Configuration};
use pinstripe_md::identity::{Uuid, short_name};

use super::{file_systems, units};
use crate::called::{Claim, Entry, beside, in_dev, is_foreign};

/// Where udev has the names of arrays that are block devices.
pub const DEVICES: &str = "/dev/pinstripe/";

/// A mount on an array: its unit, and those of the device and of the array.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    pub unit: String,
    pub device: String,
    pub array: String,
    /// All at a boot waits for it, the network too.
    pub is_early: bool,
}

impl Mount {
    /// What the mount's unit says beside what systemd's own generator says.
    pub fn more(&self) -> String {
        let lines = ["Wants", "After"].map(|key| format!("{key}={}\n", self.array));
        format!("# Of /etc/fstab\n[Unit]\n{}", lines.concat())
    }

    /// What the device's unit says. systemd waits 90 seconds for a device, or as long as fstab says
    /// (x-systemd.device-timeout). With this it counts from when the array's unit has started, or has not:
    /// members that come late, and a log to replay, don't cost the mount.
    pub fn more_of_device(&self) -> String {
        format!("# Of /etc/fstab\n[Unit]\nAfter={}\n", self.array)
    }
}

/// The mounts of a file system table that are on configured arrays. `known`: names in /dev/disk, each with
/// its device's in [`DEVICES`]. `host`: this machine's name.
pub fn mounts(
    fstab: &str,
    known: &[(String, String)],
    configuration: &Configuration,
    host: &str,
) -> Vec<Mount> {
    let mount = |line: &str| {
        let mut fields = line.split_whitespace();
        let (device, place, kind) = (fields.next()?, fields.next()?, fields.next()?);
        // A swap has no place, and the root is there before any generator.
        let place = Some(decoded(place)).filter(|place| place.starts_with('/') && kind != "swap")?;
        let device = file_systems::path(&decoded(device));
        let options = fields.next().unwrap_or_default();
        let is_early = !options.split(',').any(|option| ["nofail", "_netdev", "noauto"].contains(&option));
        // What is known of an array that is none of ours any more hides no other.
        let known = known.iter().filter(|(name, _)| *name == device).map(|(_, ours)| ours);
        let array = known.chain([&device]).find_map(|ours| array(ours, configuration, host))?;
        let unit = unit_of(resolved(Path::new(&place)).to_str()?, "mount")?;
        Some(Mount { unit, device: unit_of(&device, "device")?, array, is_early })
    };
    fstab.lines().filter_map(mount).collect()
}

/// The unit of the array that this device, or partition of one, is.
fn array(device: &str, configuration: &Configuration, host: &str) -> Option<String> {
    let name = device.strip_prefix(DEVICES)?;
    let disk = name.rsplit_once("-part").filter(|(_, number)| number.parse::<u32>().is_ok());
    let named = |name: &str| {
        // As it is called alone, or beside another one of its name.
        let has_it = |entry: &&Array| {
            let own = entry.name.as_deref().map(short_name);
            let other = own.zip(entry.uuid).map(|(own, uuid)| beside(own, uuid));
            own.into_iter().chain(other.as_deref()).any(|own| in_dev(own) == in_dev(name))
        };
        // Of two that are called the same as `assemble` does, as far as entries tell.
        let claim = |entry: &&Array| Claim {
            is_new: true,
            entry: if entry.auto { Entry::Name } else { Entry::None },
            is_foreign: entry.name.as_deref().is_some_and(|name| is_foreign(name, host)),
            uuid: entry.uuid.unwrap_or(Uuid([0; 16])),
        };
        let entry = configuration.arrays.iter().filter(has_it).min_by_key(claim);
        entry.and_then(|entry| units::unit(configuration, entry))
    };
    named(name).or_else(|| named(disk?.0))
}

/// fstab and the kernel write spaces and the like as `\040`.
pub fn decoded(field: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..b'8').contains(digit)));
        let octal = digits.filter(|_| first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = octal.and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            bytes.push(byte);
            rest = &after[3..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A place without links, as far as it is there; systemd's generator names its units so.
fn resolved(place: &Path) -> PathBuf {
    let real = place.ancestors().find_map(|known| Some((known, known.canonicalize().ok()?)));
    real.and_then(|(known, real)| Some(real.join(place.strip_prefix(known).ok()?)))
        .unwrap_or_else(|| place.to_owned())
}

/// systemd's name of the unit of this kind of a place. Nothing for the root.
pub fn unit_of(place: &str, kind: &str) -> Option<String> {
    let parts: Vec<String> =
        place.split('/').filter(|part| !part.is_empty() && *part != ".").map(escaped).collect();
    let path = parts.join("-");
    let path = path.strip_prefix('.').map_or(path.clone(), |rest| format!("\\x2e{rest}"));
    (!path.is_empty()).then(|| format!("{path}.{kind}"))
}

fn escaped(part: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b":_.".contains(&byte);
    part.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("\\x{byte:02x}") })
        .collect()
}

/// The table of this machine; empty if there is none.
pub fn table() -> String {
    let text = std::fs::read("/etc/fstab").unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::load;

    fn found(fstab: &str) -> Vec<(String, String)> {
        found_with(&[], fstab)
    }

    fn found_with(known: &[(String, String)], fstab: &str) -> Vec<(String, String)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pinstripe.toml");
        let text = "[[array]]\nname = 'data'\n[[array]]\nname = 'host:net-part1'\n\
            [[array]]\nname = 'a b'\nuuid = '6d41c174:a77e88e8:3d543c04:9a78354b'\n\
            [[array]]\nname = 'two'\nuuid = '20000000:a77e88e8:3d543c04:9a78354b'\n[[array]]\nname = 'two'\nuuid = '10000000:a77e88e8:3d543c04:9a78354b'\n\
            [[array]]\nname = 'away:both'\nuuid = '30000000:a77e88e8:3d543c04:9a78354b'\n\
            [[array]]\nname = 'here:both'\nuuid = '40000000:a77e88e8:3d543c04:9a78354b'\n";
        std::fs::write(&path, text).unwrap();
        let mounts = mounts(fstab, known, &load(Some(&path)).unwrap(), "here");
        mounts.into_iter().map(|mount| (mount.unit, mount.array)).collect()
    }

    #[track_caller]
    fn is(line: &str, unit: &str, array: &str) {
        assert_eq!(found(line), [(unit.to_owned(), format!("pinstripe@{array}.service"))], "{line}");
    }

    #[test]
    fn mounts_on_arrays_are_found_by_their_devices() {
        is("/dev/pinstripe/data /srv ext4 defaults 0 2", "srv.mount", "data");
        is("\t/dev/pinstripe/data\t/srv/data/\text4", "srv-data.mount", "data");
        is("/dev/pinstripe/data-part12 /srv ext4", "srv.mount", "data");
        is("/dev/pinstripe/net-part1 /srv ext4", "srv.mount", "net-part1");
        is("/dev/pinstripe/net-part1-part2 /srv ext4", "srv.mount", "net-part1");
        let uuid = "6d41c174:a77e88e8:3d543c04:9a78354b";
        is("/dev/pinstripe/a\\040b /srv ext4", "srv.mount", uuid);
        is("/dev/pinstripe/a_b /srv ext4", "srv.mount", uuid);
        let [low, high] = ["1", "2"].map(|first| format!("{first}0000000:a77e88e8:3d543c04:9a78354b"));
        is("/dev/pinstripe/two /srv ext4", "srv.mount", &low);
        is("/dev/pinstripe/two_20000000-part1 /srv ext4", "srv.mount", &high);
        // This host's has the name, as with `assemble`.
        let own = low.replacen('1', "4", 1);
        is("/dev/pinstripe/both /srv ext4", "srv.mount", &own);
        is("/dev/pinstripe/both_30000000 /srv ext4", "srv.mount", &low.replacen('1', "3", 1));
        assert_eq!(
            found("/dev/pinstripe/data /a xfs\n# /dev/pinstripe/data /b xfs\n/dev/pinstripe/data /c xfs\n")
                .len(),
            2
        );
        for other in [
            "",
            "/dev/pinstripe/data",
            "/dev/pinstripe/other /srv ext4",
            "/dev/pinstripe/data-partx /srv ext4",
            "/dev/md0 /srv ext4",
            "LABEL=data /srv ext4",
            "#/dev/pinstripe/data /srv ext4",
            "/dev/pinstripe/data none swap sw 0 0",
            "/dev/pinstripe/data /srv swap sw 0 0",
            "/dev/pinstripe/data / ext4",
        ] {
            assert_eq!(found(other), [], "{other}");
        }
    }

    #[test]
    fn mounts_are_found_by_names_of_file_systems_that_udev_has_seen_on_arrays() {
        let on = |name: &str, device: &str| (format!("/dev/disk/by-{name}"), format!("{DEVICES}{device}"));
        let known = [
            on("uuid/1-a", "data"),
            on("label/my\\x20data", "data"),
            on("uuid/2", "net-part1-part2"),
            on("uuid/3", "other"),
            on("uuid/4", "other"),
            on("uuid/4", "data"),
        ];
        for (line, array) in [
            ("UUID=1-a /srv ext4", "data"),
            ("/dev/disk/by-uuid/1-a /srv ext4", "data"),
            ("LABEL=my\\040data /srv ext4", "data"),
            ("UUID=2 /srv ext4", "net-part1"),
            ("UUID=4 /srv ext4", "data"),
        ] {
            let array = format!("pinstripe@{array}.service");
            assert_eq!(found_with(&known, line), [("srv.mount".to_owned(), array)], "{line}");
        }
        for other in ["UUID=1 /srv ext4", "LABEL=1-a /srv ext4", "UUID=3 /srv ext4", "UUID=1-a / ext4"] {
            assert_eq!(found_with(&known, other), [], "{other}");
        }
    }

    /// As `systemd-escape --path --suffix=mount` prints them.
    #[test]
    fn places_have_the_names_that_systemd_gives_them() {
        for (place, unit) in [
            ("/srv/my-data", "srv-my\\x2ddata.mount"),
            ("//srv//./x/", "srv-x.mount"),
            ("/srv/a b", "srv-a\\x20b.mount"),
            ("/srv/ä", "srv-\\xc3\\xa4.mount"),
            ("/.hidden/.x", "\\x2ehidden-.x.mount"),
            ("/a:b_c.d", "a:b_c.d.mount"),
        ] {
            assert_eq!(unit_of(place, "mount").as_deref(), Some(unit), "{place}");
        }
        assert_eq!(decoded("a\\040b\\011c\\\\04\\"), "a b\tc\\\\04\\");
    }

    #[test]
    fn a_mount_by_a_link_has_the_unit_of_the_place_itself() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let unit = unit_of(real.join("new/x").to_str().unwrap(), "mount").unwrap();
        is(&format!("/dev/pinstripe/data {} ext4", link.join("new/x").display()), &unit, "data");
    }

    #[test]
    fn a_mount_is_not_stopped_when_its_server_dies() {
        let mount = Mount {
            unit: "srv-my\\x2ddata.mount".to_owned(),
            device: String::new(),
            array: "pinstripe@data.service".to_owned(),
            is_early: true,
        };
        let more = mount.more();
        assert_eq!(
            more,
            "# Of /etc/fstab\n[Unit]\nWants=pinstripe@data.service\nAfter=pinstripe@data.service\n"
        );
        let unit = include_str!("../../../../packaging/systemd/pinstripe@.service");
        let stop = "\nExecStop=+-/usr/bin/pinstripe stop --unmount --wait 80 %i\n";
        assert!(unit.contains(stop), "by the array's unit, with the rights and the mounts of the system");
    }
}
