//! `serve --vhost-user` with QEMU: the array on the host is a disk of the guest.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::machine::Machine;
use super::members::Geometry;
use super::server::{self, Server};
use super::{Lab, image};

const GEOMETRY: Geometry = Geometry::new("v5", 5, 5, 64, "left-symmetric").with_members_of(48 << 20);

/// Between the server's ends while the guest's fio runs, and before the first.
const LOAD: Duration = Duration::from_secs(1);
/// How long the guest may take until then.
const PATIENCE: Duration = Duration::from_mins(2);

fn machine(name: &str, script: &'static str, socket: &Path) -> Result<Machine> {
    let mut machine = Machine::new(name, script)
        .modules(&["virtio_blk", "ext4"])
        .program("blkdiscard", &image::which("blkdiscard")?)
        .program("fio", &image::which("fio")?);
    machine.vhost_user(socket);
    Ok(machine)
}

/// fio and ext4 in a guest whose server is killed, then told to end, and then upgraded, under load; then a
/// boot whose root is on the array.
pub fn guest(lab: &Lab) -> Result<()> {
    let devices = GEOMETRY.make_members(lab)?;
    server::create(lab, &GEOMETRY, &devices, &["--assume-clean", "--force"])?;
    let socket = lab.sockets.join("v5.vhost");
    let options = ["--vhost-user", &socket.to_string_lossy()];
    let start = || Server::start_with(lab, GEOMETRY.name, &devices, &options);
    let first = start()?;
    let results = lab.directory.join("disk.results");
    let uuid = first.detail()?["uuid"].to_string();
    let serial: String = uuid.chars().filter(char::is_ascii_hexdigit).take(20).collect();
    let used = machine("disk", include_str!("../../vm/vhost-user.sh"), &socket)?;
    let used = used.variable("SERIAL", &serial);
    // A server ends with the thread that started it, so the guest is the one that has a thread of its own.
    let server = std::thread::scope(|scope| {
        let booting = scope.spawn(|| lab.boot(used));
        let interrupted = interrupt(first, &start, &results);
        let outcome = booting.join().unwrap_or_else(|_| bail!("the boot panicked"))?;
        for proof in ["limits", "load", "discard", "filesystem"] {
            ensure!(outcome.all(proof).contains(&"yes"), "{proof}: {outcome:?}");
        }
        interrupted
    })?;
    server.wait_until_in_sync()?;
    server.check()?;
    let mut rooted = machine("root", include_str!("../../vm/vhost-user-root.sh"), &socket)?;
    rooted.file("root", b"/dev/vda".to_vec());
    let outcome = lab.boot(rooted)?;
    ensure!(outcome.all("root") == ["yes"], "root: {outcome:?}");
    server.check()?;
    server.stop()
}

/// Kills the server under the guest's fio, then tells the next one to end, and gives the third one, which is
/// upgraded. Its monitor connects again each time.
fn interrupt(first: Server, start: &impl Fn() -> Result<Server>, results: &Path) -> Result<Server> {
    wait_for(results, "@out load begins")?;
    std::thread::sleep(LOAD);
    let state = first.state()?;
    ensure!(state["clients"].to_string().contains("qemu"), "no client: {state}");
    first.kill()?;
    let second = start_again(start)?;
    std::thread::sleep(LOAD);
    second.terminate()?;
    let third = start_again(start)?;
    std::thread::sleep(LOAD);
    third.upgrade()?;
    let begun = Instant::now();
    while !third.state()?["clients"].to_string().contains("qemu") {
        ensure!(begun.elapsed() < PATIENCE / 4, "QEMU has not come back after the upgrade");
        std::thread::sleep(Duration::from_millis(50));
    }
    let said = std::fs::read_to_string(results)?;
    ensure!(
        !said.contains("@out load ends"),
        "fio was over before the server had ended twice and was upgraded"
    );
    Ok(third)
}

/// The members of a server that was killed just now are free a little later.
fn start_again(start: &impl Fn() -> Result<Server>) -> Result<Server> {
    let begun = Instant::now();
    loop {
        match start() {
            Err(_) if begun.elapsed() < PATIENCE / 4 => std::thread::sleep(Duration::from_millis(50)),
            started => return started,
        }
    }
}

fn wait_for(results: &Path, line: &str) -> Result<()> {
    let begun = Instant::now();
    while !std::fs::read_to_string(results).unwrap_or_default().contains(line) {
        ensure!(begun.elapsed() < PATIENCE, "the guest doesn't say {line:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
