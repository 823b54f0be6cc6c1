//! What mdadm, its package and the system's tables have done for an array, and nothing will do when it is
//! imported.

use std::{fs, path::Path};

use pinstripe_config::{Array, Configuration, duties::Every};

use crate::{
    ask_daemon,
    called::in_dev,
    configuration::{file_systems, mounts::DEVICES},
    scan::{FoundArray, shown},
};

/// The system's tables, and which word of a line is a device.
const TABLES: [(&str, usize); 2] = [("/etc/fstab", 0), ("/etc/crypttab", 1)];

/// For an array that is served by this configuration. `kernel`: the kernel's device that goes.
pub fn remarks(configuration: &Configuration, array: &FoundArray, kernel: Option<&str>) -> Vec<String> {
    let short = array.short_name();
    let is_it = |device: &str| is_device(device, kernel, &short);
    let mut all: Vec<String> = TABLES
        .iter()
        .flat_map(|(path, word)| lines(path, &fs::read_to_string(path).unwrap_or_default(), *word, is_it))
        .map(|line| format!("{line}: served with `ublk`, the array is /dev/pinstripe/{}", in_dev(&short)))
        .collect();
    // An array without parity bears no loss, and has nothing to check.
    let has_parity = array.freshest.array.level.parity_count() > 0;
    let entry = configuration.arrays.iter().find(|entry| entry.is(array.uuid, &array.name));
    if let Some(entry) = entry.filter(|_| has_parity) {
        if entry.run_after().is_none() {
            all.push(
                "if a member is missing at a boot, mdadm starts the array after 30 seconds, and Pinstripe does only with `run-after` in its entry or in [defaults]"
                    .to_owned(),
            );
        }
        all.extend(unwatched(configuration, entry, ask_daemon::is_there()));
    }
    all
}

/// For an array that is given back: what names the device that it has had here.
pub fn of_release(short: &str) -> Vec<String> {
    let is_it = |device: &str| is_ours(device, short);
    let in_table = |(path, word): &(&str, usize)| {
        lines(path, &fs::read_to_string(path).unwrap_or_default(), *word, is_it)
    };
    let named = TABLES.iter().flat_map(in_table);
    named.map(|line| format!("{line}: with mdadm the array is /dev/md/{short}")).collect()
}

/// Whether it is the array's device here, or a partition of it.
fn is_ours(device: &str, short: &str) -> bool {
    let rest = device.strip_prefix(DEVICES).and_then(|name| name.strip_prefix(&in_dev(short)));
    rest.is_some_and(|rest| {
        let part = rest.strip_prefix("-part");
        rest.is_empty() || part.is_some_and(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// What is missing of that which mdadm's timers and its monitor do.
fn unwatched(configuration: &Configuration, entry: &Array, has_daemon: bool) -> Option<String> {
    let alerts = &configuration.alerts;
    let tells = alerts.program.is_some() || alerts.mail.is_some() || alerts.webhook.is_some();
    let is_checked = !matches!(entry.duties.check_every, None | Some(Every::Never));
    let lacks = [
        (has_daemon, "no daemon runs (`systemctl enable --now pinstripe-daemon`)"),
        (is_checked, "no `check-every` has its parity checked"),
        (tells, "[alerts] is empty"),
    ];
    let lacks: Vec<&str> =
        lacks.into_iter().filter(|(is_there, _)| !is_there).map(|(_, what)| what).collect();
    (!lacks.is_empty()).then(|| format!("it is not watched as mdadm's package does: {}", lacks.join(", ")))
}

/// The lines of a table of which this word is such a device.
fn lines(path: &str, text: &str, word: usize, is_it: impl Fn(&str) -> bool) -> Vec<String> {
    let named = |(index, line): (usize, &str)| {
        let line = line.trim_start();
        let device = line.split_whitespace().nth(word).filter(|_| !line.starts_with('#'))?;
        is_it(device).then(|| format!("{path}:{} names {device}", index + 1))
    };
    text.lines().enumerate().filter_map(named).collect()
}

/// Whether it is the kernel's device of the array, or a partition of it, by whatever link.
fn is_device(device: &str, kernel: Option<&str>, short: &str) -> bool {
    let path = file_systems::path(device);
    let real = Path::new(&path).canonicalize().map_or_else(|_| path.clone(), |real| shown(&real));
    let is_kernels = |kernel: &str| file_systems::part_of(&real, kernel).is_some();
    // The link of an array that isn't assembled leads nowhere.
    kernel.is_some_and(is_kernels) || device.strip_prefix("/dev/md/") == Some(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_name_the_device_that_goes_are_found() {
        let fstab = "# /dev/md9990 /a ext4\n/dev/md9990 /a ext4\n\t/dev/md9990p12 /b xfs\n/dev/md9990px /c xfs\n\
            /dev/md99900 /d ext4\nUUID=1 /dev/md9990 ext4\n\n/dev/md/home /e ext4\n/dev/md/home2 /f ext4\n";
        let is_it = |device: &str| is_device(device, Some("md9990"), "home");
        let found = lines("t", fstab, 0, is_it);
        assert_eq!(found, ["t:2 names /dev/md9990", "t:3 names /dev/md9990p12", "t:8 names /dev/md/home"]);
        assert_eq!(lines("t", "secret /dev/md9990 none luks\n", 1, is_it), ["t:1 names /dev/md9990"]);
        assert!(!is_device("/dev/md9990", None, "home"));
    }

    #[test]
    fn lines_that_name_the_device_that_the_array_has_had_here_are_found() {
        for (device, is_it) in [
            ("/dev/pinstripe/a_b", true),
            ("/dev/pinstripe/a_b-part12", true),
            ("/dev/pinstripe/a_b-partx", false),
            ("/dev/pinstripe/a_b2", false),
            ("/dev/md/a_b", false),
            ("UUID=a_b", false),
        ] {
            assert_eq!(is_ours(device, "a b"), is_it, "{device}");
        }
    }
}
