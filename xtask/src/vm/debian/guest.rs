//! The Debian guest: booted as often as it reboots, with disks that can be pulled.
//!
//! QEMU ends at each reboot, and is started anew with the kernel and the initial ramdisk that the root file
//! system has then in /boot: what the guest did to its ramdisk counts. The guest asks over its second serial
//! line for disks to be pulled (`@out pull NAME`) and put back, which QEMU's monitor does.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::NVME;
use crate::vm::image::run as output_of;
use crate::vm::machine::{self, Outcome};

/// More boots than any form has.
const BOOTS_MAX: usize = 5;
/// How long the monitor may take to answer.
const PATIENCE: Duration = Duration::from_mins(2);

/// What a guest is made of, and how far it is.
pub struct Guest {
    /// For its files and logs.
    directory: PathBuf,
    /// Its root file system, a copy of the image.
    root: PathBuf,
    /// The disk with what it runs.
    job: PathBuf,
    /// Disks that can be pulled, by their names, which are their serial numbers.
    disks: Vec<(&'static str, PathBuf)>,
    /// How many of its outputs were heeded.
    heeded: usize,
}

impl Guest {
    pub fn new(directory: &Path, image: &Path, job: &Path) -> Result<Self> {
        let root = directory.join("root.img");
        output_of(Command::new("cp").arg("--sparse=always").args([image, &root]))?;
        let (directory, job) = (directory.to_owned(), job.to_owned());
        Ok(Self { directory, root, job, disks: Vec::new(), heeded: 0 })
    }

    /// Attaches a disk.
    pub fn disk(&mut self, name: &'static str, file: PathBuf) {
        self.disks.push((name, file));
    }

    /// Boots until the guest gives its status; `step` is told of each `@out step NAME`.
    pub fn run(&mut self, limit: Duration, step: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        let end = Instant::now() + limit;
        for boot in 1..=BOOTS_MAX {
            let log = self.directory.join(format!("boot-{boot}.log"));
            let outcome = self.boot(boot, &log, end, step).with_context(|| machine::end_of(&log))?;
            match (outcome.exit, outcome.why) {
                (Some(0), _) => return Ok(()),
                (Some(status), why) => {
                    let why = why.unwrap_or_else(|| format!("status {status}"));
                    bail!("boot {boot}: {why}; see {}", log.display());
                }
                (None, Some(why)) => bail!("boot {boot}: {why}; {}", machine::end_of(&log)),
                (None, None) => check_shutdown(&log)?,
            }
        }
        bail!("it was booted {BOOTS_MAX} times and gave no status");
    }

    /// One boot, to the end of QEMU.
    fn boot(
        &mut self,
        boot: usize,
        log: &Path,
        end: Instant,
        step: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Outcome> {
        let results = self.directory.join(format!("boot-{boot}.results"));
        let socket = std::env::temp_dir().join(format!("pinstripe-debian-{}.qmp", std::process::id()));
        let child = self.command(&results, &socket)?.spawn().context("start qemu-system-x86_64")?;
        let mut guest = machine::Guest { child };
        let console = guest.child.stdout.take().context("the console is a pipe")?;
        let logger = machine::stamp(console, File::create(log)?);
        self.heeded = 0;
        loop {
            let status = guest.child.try_wait()?;
            let outcome = machine::parse(&fs::read_to_string(&results).unwrap_or_default());
            for (name, value) in outcome.outputs.iter().skip(self.heeded) {
                match name.as_str() {
                    "step" => step(value)?,
                    "pull" => Monitor::connect(&socket)?.pull(value)?,
                    "put-back" => Monitor::connect(&socket)?.put_back(value, &self.options(value)?)?,
                    _ => bail!("the guest asks for {name:?}"),
                }
            }
            self.heeded = outcome.outputs.len();
            if let Some(status) = status {
                let _ = logger.join();
                let _ = fs::remove_file(&socket);
                ensure!(status.success(), "QEMU ended with {status}");
                return Ok(outcome);
            }
            ensure!(Instant::now() < end, "it was not done in time");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn command(&self, results: &Path, socket: &Path) -> Result<Command> {
        let mut command = machine::emulator("2G");
        let [kernel, ramdisk] = ["vmlinuz", "initrd.img"].map(|name| self.boot_file(name));
        command.arg("-kernel").arg(kernel?).arg("-initrd").arg(ramdisk?);
        command
            .args(["-append", "root=LABEL=root console=ttyS0 panic=-1 no_timer_check quiet mitigations=off"]);
        command.args(["-serial", "stdio", "-serial"]).arg(format!("file:{}", results.display()));
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", socket.display()));
        for (file, rest) in [(&self.root, "cache=unsafe"), (&self.job, "readonly=on")] {
            command.arg("-drive").arg(format!("if=virtio,format=raw,file={},{rest}", file.display()));
        }
        command.args(["-device", "virtio-scsi-pci,id=scsi0"]);
        for (name, file) in &self.disks {
            let node =
                json!({"driver": "raw", "node-name": name, "file": {"driver": "file", "filename": file}});
            command.arg("-blockdev").arg(node.to_string());
            command.arg("-device").arg(self.options(name)?.to_string());
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        Ok(command)
    }

    /// Of the device that a disk is to the guest: always in the same place.
    fn options(&self, name: &str) -> Result<Value> {
        let lun = self.disks.iter().position(|(disk, _)| *disk == name);
        let lun = lun.with_context(|| format!("there is no disk {name}"))?;
        if NVME.contains(&name) {
            return Ok(
                json!({"driver": "nvme", "id": format!("disk-{name}"), "drive": name, "serial": name}),
            );
        }
        Ok(json!({
            "driver": "scsi-hd", "id": format!("disk-{name}"), "drive": name, "serial": name,
            "bus": "scsi0.0", "scsi-id": 0, "lun": lun,
        }))
    }

    /// Copies what the root file system has in /boot under this name, with a version: where the copy is.
    fn boot_file(&self, name: &str) -> Result<PathBuf> {
        let debugfs =
            |request: &str| output_of(Command::new("debugfs").args(["-R", request]).arg(&self.root));
        let listing = String::from_utf8_lossy(&debugfs("ls -p /boot")?).into_owned();
        let file = listing.split(['/', '\n']).find(|file| file.starts_with(&format!("{name}-")));
        let file = file.with_context(|| format!("/boot of the image has no {name}"))?;
        let copy = self.directory.join(name);
        let _ = fs::remove_file(&copy);
        debugfs(&format!("dump /boot/{file} {}", copy.display()))?;
        ensure!(fs::metadata(&copy).is_ok_and(|copy| copy.len() > 0), "/boot/{file} can't be read");
        Ok(copy)
    }
}

/// A guest that goes down to come up again has no array of mdadm's but its own, md0.
///
/// udev looks at our members when their servers close them, and mdadm would take them then: as md127, md126.
fn check_shutdown(log: &Path) -> Result<()> {
    let text = String::from_utf8_lossy(&fs::read(log)?).into_owned();
    match text.lines().find(|line| line.contains("/dev/md12")) {
        Some(line) => bail!("mdadm takes members at the shutdown: {line}; see {}", log.display()),
        None => Ok(()),
    }
}

/// QEMU's monitor (QMP).
struct Monitor {
    lines: BufReader<UnixStream>,
}

impl Monitor {
    fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).context("connect to QEMU's monitor")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut monitor = Self { lines: BufReader::new(stream) };
        monitor.line()?;
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// The disk goes from the guest as if its cable were pulled, and its bytes stay.
    fn pull(&mut self, name: &str) -> Result<()> {
        self.execute("device_del", &json!({"id": format!("disk-{name}")}))
    }

    /// The same disk comes back in its place.
    fn put_back(&mut self, name: &str, options: &Value) -> Result<()> {
        self.execute("device_add", options).with_context(|| format!("put back {name}"))
    }

    /// Passes over events to the answer.
    fn execute(&mut self, command: &str, arguments: &Value) -> Result<()> {
        let request = json!({"execute": command, "arguments": arguments});
        writeln!(self.lines.get_mut(), "{request}")?;
        loop {
            let answer = self.line()?;
            if answer.get("return").is_some() {
                return Ok(());
            }
            ensure!(answer.get("error").is_none(), "{command}: {answer}");
        }
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        ensure!(self.lines.read_line(&mut line).context("read from QEMU's monitor")? > 0, "QEMU has ended");
        Ok(serde_json::from_str(&line)?)
    }
}
