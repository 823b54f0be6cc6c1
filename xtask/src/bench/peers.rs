//! The servers of an array that are measured: Linux MD and ours. Both serve the same array on the same
//! devices, one after the other.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::cells::{Array, CHUNK_KIB};
use super::load::Door;
use crate::vm::server::said;

/// How long a change of state may take: a scrub of real devices takes longest.
const PATIENCE: Duration = Duration::from_hours(2);
/// How long a server may take to start, also in an emulated machine.
const START_PATIENCE: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(50);
/// The kernel's stripe cache, in pages of each member: its default of 256 is known to be too small.
const STRIPE_CACHE: &str = "16384";
/// No limit, in KiB per second.
const FULL_SPEED: u64 = 2_000_000;
/// Superblock and more, at a device's front.
const FRONT_BYTES: usize = 1 << 20;

/// What peers have in common.
#[derive(Clone, Debug)]
pub struct Bed {
    /// Our command.
    pub pinstripe: PathBuf,
    /// Members, in the order of their slots.
    pub devices: Vec<PathBuf>,
    /// Our shards, and the kernel's threads for writes.
    pub threads: u32,
    /// Bytes of each device that arrays use; all if not given.
    pub member_bytes: Option<u64>,
    /// For sockets and logs.
    pub folder: PathBuf,
    /// Our server's way in: the kernel's ublk driver, or NBD.
    pub ublk: bool,
}

impl Bed {
    /// Makes an array. Without `force`, not over anything that the devices hold.
    pub fn create(&self, array: Array, force: bool) -> Result<()> {
        let mut create = Command::new(&self.pinstripe);
        create.args(["create", "--name=bench", "--level", &array.level.to_string()]);
        create.arg(format!("--chunk={CHUNK_KIB}K"));
        create.args(["--bitmap", if array.bitmap { "internal" } else { "none" }]);
        create.args(self.member_bytes.map(|bytes| format!("--size={bytes}")));
        create.args(force.then_some("--force")).args(&self.devices);
        said(&mut create).map(|_| ())
    }

    /// Makes a device an empty one, so that nothing is left of which a rebuild could be made short.
    fn empty(&self, slot: usize) -> Result<()> {
        let path = &self.devices[slot];
        let file =
            File::options().write(true).open(path).with_context(|| format!("open {}", path.display()))?;
        file.write_all_at(&vec![0; FRONT_BYTES], 0)?;
        Ok(file.sync_all()?)
    }

    /// Stops arrays that the machine's hot-plugging has assembled of the devices meanwhile.
    fn release(&self) -> Result<()> {
        for device in &self.devices {
            let name = device.file_name().context("a device has a name")?;
            let holders = Path::new("/sys/class/block").join(name).join("holders");
            for holder in fs::read_dir(holders).into_iter().flatten().flatten() {
                let array = Path::new("/dev").join(holder.file_name());
                said(Command::new("mdadm").arg("--quiet").arg("--stop").arg(array))?;
            }
        }
        Ok(())
    }
}

/// A server of the array.
pub trait Peer {
    /// Its name in tables.
    fn name(&self) -> &'static str;
    /// Serves the array, and waits until it can be used.
    fn start(&mut self) -> Result<Door>;
    /// Takes a member out.
    fn fail(&self, slot: usize) -> Result<()>;
    /// Puts it in again, as an empty device that is rebuilt with so many KiB per second.
    fn rebuild(&self, slot: usize, speed: u64) -> Result<()>;
    /// Whether that goes on.
    fn is_rebuilding(&self) -> Result<bool>;
    /// Lifts the limit, and waits until all that is under way has come to its end.
    fn settle(&self) -> Result<()>;
    /// Compares all data with its parity; an error if anything differs.
    fn scrub(&self) -> Result<()>;
    /// Ends it.
    fn stop(&mut self) -> Result<()>;
}

/// Waits until `is_so`.
fn wait(what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_so()? {
        ensure!(start.elapsed() < PATIENCE, "{what} does not come to an end");
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Linux MD.
pub struct Md {
    bed: Bed,
    /// As the kernel calls it.
    name: String,
}

impl Md {
    /// Under the first name that is free.
    pub fn new(bed: &Bed) -> Self {
        let free = |name: &String| !Path::new("/sys/block").join(name).exists();
        let name = (0..128).map(|number| format!("md{number}")).find(free).unwrap_or_default();
        Self { bed: bed.clone(), name }
    }

    /// Whether this kernel has it.
    pub fn is_there() -> bool {
        let has = || fs::read_to_string("/proc/mdstat").is_ok_and(|text| text.contains("[raid6]"));
        has() || (Command::new("modprobe").arg("raid456").output().is_ok() && has())
    }

    fn device(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    fn attribute(&self, name: &str) -> PathBuf {
        Path::new("/sys/block").join(&self.name).join("md").join(name)
    }

    fn read(&self, name: &str) -> Result<String> {
        let path = self.attribute(name);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(text.trim().to_owned())
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        let path = self.attribute(name);
        fs::write(&path, value).with_context(|| format!("write {value} to {}", path.display()))
    }

    fn set_speed(&self, speed: u64) -> Result<()> {
        // Neither may pass the other on the way.
        self.set("sync_speed_max", &FULL_SPEED.to_string())?;
        self.set("sync_speed_min", &speed.to_string())?;
        self.set("sync_speed_max", &speed.to_string())
    }

    fn manage(&self, action: &str, slot: usize) -> Result<()> {
        let mut mdadm = Command::new("mdadm");
        mdadm.arg("--quiet").arg(self.device()).arg(action).arg(&self.bed.devices[slot]);
        said(&mut mdadm).map(|_| ())
    }

    fn is_idle(&self) -> Result<bool> {
        Ok(self.read("sync_action")? == "idle")
    }
}

impl Peer for Md {
    fn name(&self) -> &'static str {
        "MD"
    }

    fn start(&mut self) -> Result<Door> {
        self.bed.release()?;
        let mut assemble = Command::new("mdadm");
        assemble.args(["--quiet", "--assemble", "--run"]).arg(self.device()).args(&self.bed.devices);
        said(&mut assemble)?;
        self.set("stripe_cache_size", STRIPE_CACHE)?;
        self.set("group_thread_cnt", &self.bed.threads.to_string())?;
        self.settle()?;
        ensure!(self.read("degraded")? == "0", "the kernel assembles the array without all of its members");
        Ok(Door::Device(self.device()))
    }

    fn fail(&self, slot: usize) -> Result<()> {
        self.manage("--fail", slot)?;
        // The kernel lets go of it when requests that were under way are over.
        wait("the removal of a member", || Ok(self.manage("--remove", slot).is_ok()))
    }

    fn rebuild(&self, slot: usize, speed: u64) -> Result<()> {
        self.set_speed(speed)?;
        self.bed.empty(slot)?;
        self.manage("--add", slot)?;
        wait("the begin of the rebuild", || Ok(!self.is_idle()? || self.read("degraded")? == "0"))
    }

    fn is_rebuilding(&self) -> Result<bool> {
        Ok(self.read("sync_action")? == "recover")
    }

    fn settle(&self) -> Result<()> {
        self.set_speed(FULL_SPEED)?;
        wait("the kernel's resync or rebuild", || self.is_idle())
    }

    fn scrub(&self) -> Result<()> {
        self.set("sync_action", "check")?;
        wait("the kernel's check", || self.is_idle())?;
        let mismatches = self.read("mismatch_cnt")?;
        ensure!(mismatches == "0", "the kernel's check of the parity counts {mismatches} sectors");
        ensure!(self.read("degraded")? == "0", "the kernel's array has lost a member");
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        // Whatever looked at the new device may still have it open.
        let stop = || said(Command::new("mdadm").arg("--quiet").arg("--stop").arg(self.device())).is_ok();
        wait("the end of the kernel's array", || Ok(stop()))
    }
}

impl Drop for Md {
    fn drop(&mut self) {
        if self.device().exists() {
            let _ = said(Command::new("mdadm").arg("--quiet").arg("--stop").arg(self.device()));
        }
    }
}

/// A command that serves until it gets a signal; it gets one when this goes out of scope.
pub struct Served {
    child: Child,
    log: PathBuf,
}

impl Served {
    /// Starts a command of ours and waits until it says that it is ready.
    pub fn start_ready(command: Command, log: PathBuf) -> Result<Self> {
        Self::start(command, log, |said| said.lines().any(|line| line.starts_with("ready: ")))
    }

    /// Starts a command and waits until it is ready, by what it says.
    pub fn start(mut command: Command, log: PathBuf, is_ready: impl Fn(&str) -> bool) -> Result<Self> {
        let output = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("start {command:?}"))?;
        let (mut served, begun) = (Self { child, log }, Instant::now());
        loop {
            let said = served.said()?;
            if is_ready(&said) {
                return Ok(served);
            }
            if let Some(status) = served.child.try_wait()? {
                bail!("{command:?} ended with {status}: {}", said.trim());
            }
            ensure!(begun.elapsed() < START_PATIENCE, "{command:?} is not ready: {}", said.trim());
            thread::sleep(LOOK);
        }
    }

    /// What it has said.
    pub fn said(&self) -> Result<String> {
        fs::read_to_string(&self.log).with_context(|| format!("read {}", self.log.display()))
    }

    /// Ends it; an error if it fails at that.
    pub fn stop(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            said(Command::new("kill").args(["-TERM", &self.child.id().to_string()]))?;
        }
        let status = self.child.wait()?;
        ensure!(status.success(), "a server ended with {status}: {}", self.said()?.trim());
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// `pinstripe serve`.
pub struct Ours {
    bed: Bed,
    served: Option<Served>,
}

impl Ours {
    /// Over the devices.
    pub fn new(bed: &Bed) -> Self {
        Self { bed: bed.clone(), served: None }
    }

    fn control(&self) -> PathBuf {
        self.bed.folder.join("control")
    }

    /// A command for the server.
    fn tell(&self, words: &[&str]) -> Result<Vec<u8>> {
        let (name, rest) = words.split_first().context("a command has a name")?;
        Ok(said(Command::new(&self.bed.pinstripe).arg(name).arg(self.control()).args(rest))?.stdout)
    }

    fn detail(&self) -> Result<Value> {
        serde_json::from_slice(&self.tell(&["detail", "--json"])?).context("detail --json")
    }

    fn set_speed(&self, speed: u64) -> Result<()> {
        self.tell(&["sync", "--speed-min", &speed.to_string(), "--speed-max", &speed.to_string()]).map(|_| ())
    }

    fn device(&self, slot: usize) -> Result<&str> {
        self.bed.devices[slot].to_str().context("a device's path is text")
    }
}

impl Peer for Ours {
    fn name(&self) -> &'static str {
        "Pinstripe"
    }

    fn start(&mut self) -> Result<Door> {
        self.bed.release()?;
        let socket = self.bed.folder.join("nbd");
        let mut serve = Command::new(&self.bed.pinstripe);
        serve.args(["serve", "--shards", &self.bed.threads.to_string(), "--control"]).arg(self.control());
        serve.args(["--nbd", &format!("unix:{}", socket.display())]);
        serve.args(self.bed.ublk.then_some("--ublk")).args(&self.bed.devices);
        self.served = Some(Served::start_ready(serve, self.bed.folder.join("serve.log"))?);
        if !self.bed.ublk {
            return Ok(Door::Nbd(format!("nbd+unix:///?socket={}", socket.display())));
        }
        let detail = self.detail()?;
        let mut addresses = detail["addresses"].as_array().into_iter().flatten();
        let ublk = addresses.find(|address| address["protocol"] == "ublk");
        let device = ublk.and_then(|address| address["uri"].as_str()).context("detail has no ublk device")?;
        Ok(Door::Device(device.into()))
    }

    fn fail(&self, slot: usize) -> Result<()> {
        self.tell(&["fail", &slot.to_string()])?;
        let removed = || Ok(self.tell(&["remove", self.device(slot)?]).is_ok());
        wait("the removal of a member", removed)
    }

    fn rebuild(&self, slot: usize, speed: u64) -> Result<()> {
        self.set_speed(speed)?;
        self.bed.empty(slot)?;
        self.tell(&["add", "--force", self.device(slot)?]).map(|_| ())
    }

    fn is_rebuilding(&self) -> Result<bool> {
        Ok(self.detail()?["sync"]["action"] == "rebuild")
    }

    fn settle(&self) -> Result<()> {
        self.set_speed(FULL_SPEED)?;
        wait("our resync or rebuild", || {
            let detail = self.detail()?;
            Ok(detail["sync"].is_null() && detail["regions_to_resync"] == 0 && detail["degraded"] == false)
        })
    }

    fn scrub(&self) -> Result<()> {
        self.tell(&["check"]).map(|_| ())
    }

    fn stop(&mut self) -> Result<()> {
        self.served.take().map_or(Ok(()), |mut served| served.stop())
    }
}

/// The ublk device that answers at once.
pub struct Null(Served);

impl Null {
    /// Serves one.
    pub fn start(bed: &Bed) -> Result<(Self, Door)> {
        let mut serve = Command::new(&bed.pinstripe);
        serve.args(["ublk", "null", "--size=512M", "--shards", &bed.threads.to_string()]);
        let served = Served::start_ready(serve, bed.folder.join("null.log"))?;
        let said = served.said()?;
        let path = said.trim().rsplit(' ').next().context("the null device has a path")?;
        Ok((Self(served), Door::Device(path.into())))
    }

    /// Ends it.
    pub fn stop(mut self) -> Result<()> {
        self.0.stop()
    }
}
