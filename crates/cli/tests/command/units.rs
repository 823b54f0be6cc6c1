//! Arrays that units of systemd serve: on a machine of its own mounts and processes, with a script in
//! systemd's place.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use crate::world::World;

/// Has what `assemble` wants to see of a machine that systemd runs: the package's program and template, the
/// usual configuration, and root. `$1` is the world's folder, `$2` the program, `$3` what is run then.
const MACHINE: &str = r#"
set -e
mkdir "$1/bin" "$1/systemd"
mount --rbind /usr/bin "$1/bin"
PATH=$1/systemd:$1/bin:/usr/bin:/usr/sbin
for place in /usr/bin /usr/lib/systemd /run /etc; do mount -t tmpfs machine $place; done
ln -s "$1/bin/sh" /usr/bin/sh
touch /usr/bin/pinstripe
mount --bind "$2" /usr/bin/pinstripe
mkdir -p /usr/lib/systemd/system /run/systemd/system /etc/pinstripe
touch /usr/lib/systemd/system/pinstripe@.service
mv "$1/pinstripe.toml" /etc/pinstripe/
mv "$1/systemctl" "$1/systemd/"
chmod 755 "$1/systemd/systemctl"
cd "$1"
. ./run
"#;

/// Does what systemd would with the one unit, and writes down what it was asked.
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$3 $4" >>calls
case $3 in
start)
    [ -e started ] || { touch started; pinstripe assemble --foreground --name data >log 2>&1 & echo $! >pid; }
    [ "$4" != --no-block ] || exit 0
    until pinstripe detail data >/dev/null 2>&1; do sleep 0.05; done
    ;;
show) [ "$4" != --property=MainPID ] || exec cat pid
    pinstripe detail data >/dev/null 2>&1 && printf 'ActiveState=active\nSubState=running\n' ;;
esac
"#;

/// What the script `run` says on that machine; none where such a machine can't be made.
fn on_a_machine(world: &World, configuration: &str, run: &str) -> Option<String> {
    if !rustix::process::geteuid().is_root() || !fs::exists("/usr/lib/systemd").unwrap() {
        eprintln!("skipped: only root can mount, and systemd has no folder here otherwise");
        return None;
    }
    fs::write(world.path("pinstripe.toml"), configuration.replace("@/", world.path("").to_str().unwrap()))
        .unwrap();
    fs::write(world.path("systemctl"), SYSTEMCTL).unwrap();
    fs::write(world.path("run"), run).unwrap();
    let mut command = Command::new("timeout");
    command.args([
        "100",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        MACHINE,
    ]);
    command.arg("sh").arg(world.path("")).arg(env!("CARGO_BIN_EXE_pinstripe"));
    let done = command.env_remove("PINSTRIPE_RUNTIME_DIR").output().unwrap();
    let (said, complaint) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    if complaint.contains("unshare failed") || complaint.contains("mount: ") {
        eprintln!("skipped: {complaint}");
        return None;
    }
    assert!(done.status.success(), "{said}{complaint}");
    Some(said.into_owned())
}

const DATA: &str = "[scan]\ndevices = ['@/member*']\n[defaults]\nshards = 1\n[[array]]\nname = 'data'\n";

#[test]
fn a_device_that_completes_an_array_has_its_unit_started_as_the_configuration_is_now() {
    let world = World::new();
    world.raid5(3);
    let run = "pinstripe incremental ./member0; cat calls; pinstripe stop data";
    let Some(said) = on_a_machine(&world, DATA, run) else { return };
    assert!(said.contains("; unit pinstripe@data.service\n"), "{said}");
    assert_reloaded_first(&said);
}

/// A unit would be started with the rights that the configuration before gave it.
#[test]
fn a_reload_says_that_systemd_is_to_be_told_where_units_serve_and_something_counts_from_a_start_on() {
    let world = World::new();
    let run = "
        export PINSTRIPE_STATE_DIR=$PWD/state
        pinstripe daemon --no-start 2>daemon.log &
        until pinstripe status >/dev/null 2>&1; do sleep 0.05; done
        pinstripe reload 2>&1
        echo '[[array]]' >>/etc/pinstripe/pinstripe.toml
        echo \"name = 'other'\" >>/etc/pinstripe/pinstripe.toml
        pinstripe reload 2>&1
        kill $!";
    let Some(said) = on_a_machine(&world, DATA, run) else { return };
    let (first, second) = said.split_once("1 file\n").unwrap();
    assert!(!first.contains("daemon-reload") && second.contains("other: "), "{said}");
    assert_eq!(second.matches("systemd goes by the new configuration").count(), 1, "{said}");
}

/// systemd made its units anew before it was to start one.
fn assert_reloaded_first(said: &str) {
    let place = |what: &str| said.find(what).unwrap_or_else(|| panic!("no {what}: {said}"));
    assert!(place("daemon-reload") < place("start --"), "{said}");
}

#[test]
fn in_a_chroot_and_offline_the_server_is_a_process_of_its_own() {
    let world = World::new();
    world.raid5(3);
    let run = "
        SYSTEMD_OFFLINE=1 pinstripe assemble --scan
        pinstripe stop data
        pinstripe assemble --scan --dry-run
        mkdir /run/root
        for place in /*; do
            if [ -h $place ]; then
                cp -P $place /run/root
            elif [ -d $place ]; then
                mkdir /run/root$place
                mount --rbind $place /run/root$place
            fi
        done
        chroot /run/root pinstripe assemble --scan
        pinstripe stop data";
    let Some(said) = on_a_machine(&world, DATA, run) else { return };
    assert_eq!(said.matches("; log /run/pinstripe/data.log\n").count(), 2, "{said}");
    assert!(said.contains("data: would start: pinstripe@data.service: serve"), "{said}");
}

#[test]
fn a_unit_waits_for_late_members_while_assemble_does() {
    let world = World::new();
    world.raid5(3);
    let run = "mv member2 away; pinstripe assemble --scan; cat calls; pinstripe stop data";
    let begun = Instant::now();
    let Some(said) = on_a_machine(&world, &format!("{DATA}run-after = 20\n"), run) else { return };
    assert!(said.contains("data: started: ") && said.contains(", degraded, "), "{said}");
    assert!(said.contains("; unit pinstripe@data.service\n"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(40), "waited twice: {:?}", begun.elapsed());
    assert_reloaded_first(&said);
}

#[test]
fn an_array_that_a_late_member_completes_is_started_by_its_unit() {
    let world = World::new();
    world.raid5(3);
    let run = "mv member2 away; (sleep 2; mv away member2) & pinstripe assemble --scan; pinstripe stop data";
    let Some(said) = on_a_machine(&world, &format!("{DATA}run-after = 60\n"), run) else { return };
    assert!(said.contains("data: started: ") && !said.contains("degraded"), "{said}");
    assert!(said.contains("; unit pinstripe@data.service\n"), "{said}");
}
