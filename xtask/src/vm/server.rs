//! Our command on the host: creating arrays, serving them, asking the running server.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Lab;
use super::members::Geometry;
use crate::nbd::Client;

/// How long a server may take to answer its socket, or to end.
const PATIENCE: Duration = Duration::from_mins(2);

/// `pinstripe create` over these devices, with further options.
pub fn create(lab: &Lab, geometry: &Geometry, devices: &[PathBuf], options: &[&str]) -> Result<()> {
    let mut command = Command::new(&lab.pinstripe);
    command.args(["create", "--name", geometry.name, "--level", &geometry.level.to_string()]);
    command.args(["--chunk", &format!("{}K", geometry.chunk)]);
    if !geometry.layout.is_empty() {
        command.args(["--layout", geometry.layout]);
    }
    match geometry.policy {
        Some(policy) => command.args(["--consistency-policy", policy]),
        None => command.args(["--bitmap", if geometry.bitmap { "internal" } else { "none" }]),
    };
    if let Some(journal) = geometry.journal(lab) {
        command.arg("--write-journal").arg(journal);
    }
    command.args(options).args(devices);
    said(&mut command).map(|_| ())
}

/// Where a server's files lie.
#[derive(Clone, Copy)]
pub struct Home<'a> {
    /// The command.
    pub pinstripe: &'a Path,
    /// For sockets: a short path.
    pub sockets: &'a Path,
    /// For its log.
    pub directory: &'a Path,
}

/// A `pinstripe serve` of ours; ended without mercy when it goes out of scope.
pub struct Server {
    child: Child,
    pinstripe: PathBuf,
    log: PathBuf,
    /// Its NBD socket.
    pub socket: PathBuf,
    control: PathBuf,
    /// The port on the loopback address where it serves too.
    pub port: u16,
}

impl Server {
    /// Serves these devices, on a unix socket and on a TCP port, and waits until it answers.
    pub fn start(lab: &Lab, name: &str, devices: &[PathBuf]) -> Result<Self> {
        Self::start_with(lab, name, devices, &[])
    }

    /// The same with further options.
    pub fn start_with(lab: &Lab, name: &str, devices: &[PathBuf], options: &[&str]) -> Result<Self> {
        Self::spawn(lab, name, devices, options)?.ready(name)
    }

    /// Waits until it answers.
    pub fn ready(mut self, name: &str) -> Result<Self> {
        self.wait_until_ready().with_context(|| {
            let said = std::fs::read_to_string(&self.log).unwrap_or_default();
            format!("serve {name}: {:?}; see {}", said.lines().last().unwrap_or(""), self.log.display())
        })?;
        Ok(self)
    }

    /// The same without waiting for it. Two shards, unless the options say another number.
    pub fn spawn(lab: &Lab, name: &str, devices: &[PathBuf], options: &[&str]) -> Result<Self> {
        let Lab { pinstripe, sockets, directory, .. } = lab;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(pinstripe);
        Self::spawn_by(command, Home { pinstripe, sockets, directory }, name, devices, options)
    }

    /// The same by a command that runs ours, anywhere.
    pub fn spawn_by(
        mut command: Command,
        home: Home,
        name: &str,
        devices: &[PathBuf],
        options: &[&str],
    ) -> Result<Self> {
        let socket = home.sockets.join(format!("{name}.nbd"));
        let control = home.sockets.join(format!("{name}.control"));
        for stale in [&socket, &control] {
            match std::fs::remove_file(stale) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = home.directory.join(format!("{name}.server.log"));
        let output = File::options().create(true).append(true).open(&log)?;
        let child = command
            // Scenarios take members away on purpose.
            .args(["serve", "--run"])
            .args(if options.contains(&"--shards") { [].as_slice() } else { &["--shards", "2"] })
            .args(["--nbd", &format!("unix:{}", socket.display())])
            .args(["--nbd", &format!("tcp:127.0.0.1:{port}"), "--control"])
            .arg(&control)
            .args(options)
            .args(devices)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("start pinstripe serve")?;
        Ok(Self { child, pinstripe: home.pinstripe.to_owned(), log, socket, control, port })
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status}");
            }
            match Client::connect(&self.socket) {
                Ok(_) => return Ok(()),
                Err(error) if start.elapsed() > PATIENCE => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A new NBD connection.
    pub fn client(&self) -> Result<Client> {
        Client::connect(&self.socket)
    }

    /// The address of its export for libnbd's programs and fio.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// `pinstripe detail --json`.
    pub fn detail(&self) -> Result<Value> {
        let output = said(Command::new(&self.pinstripe).args(["detail", "--json"]).arg(&self.control))?;
        serde_json::from_slice(&output.stdout).context("detail --json")
    }

    /// The same straight from the control socket: asked often, the command would cost more than what is asked
    /// about.
    pub fn state(&self) -> Result<Value> {
        let mut stream = UnixStream::connect(&self.control).context("connect the control socket")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"detail\"}\n")?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        let mut answer: Value = serde_json::from_str(&answer).context("the answer to detail")?;
        Ok(answer["result"].take())
    }

    /// Waits until no resync, rebuild or replacement is under way or due, and no member is missing.
    pub fn wait_until_in_sync(&self) -> Result<()> {
        self.wait_until(|detail| {
            let is_done = detail["sync"].is_null() && detail["regions_to_resync"] == 0;
            let mut members = detail["members"].as_array().into_iter().flatten();
            is_done && detail["degraded"] == false && members.all(|member| member["replacement"].is_null())
        })
    }

    /// Waits until its superblocks say that it is clean.
    pub fn wait_until_clean(&self) -> Result<()> {
        self.wait_until(|detail| detail["state"] == "clean")
    }

    /// Waits until a device that was added has been rebuilt onto; other members may still be missing.
    pub fn wait_until_rebuilt(&self, device: &Path) -> Result<()> {
        let name = device.to_string_lossy();
        self.wait_until(|detail| {
            let members = detail["members"].as_array().into_iter().flatten();
            let is_whole = |state: &serde_json::Value| state == "in-sync" || state == "resyncing";
            members.into_iter().any(|member| member["device"] == *name && is_whole(&member["state"]))
        })
    }

    /// Waits until `detail` says so.
    pub fn wait_until(&self, is_so: impl Fn(&Value) -> bool) -> Result<()> {
        let start = Instant::now();
        loop {
            let detail = self.state()?;
            if is_so(&detail) {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                bail!("it does not come to what is waited for: {detail}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// `pinstripe check`: an error if it counts mismatches.
    pub fn check(&self) -> Result<()> {
        said(Command::new(&self.pinstripe).arg("check").arg(&self.control)).map(|_| ())
    }

    /// `pinstripe repair --json` with further options: what it found.
    pub fn repair(&self, options: &[&str]) -> Result<Value> {
        let mut command = Command::new(&self.pinstripe);
        let output = said(command.args(["repair", "--json"]).args(options).arg(&self.control))?;
        serde_json::from_slice(&output.stdout).context("repair --json")
    }

    /// `pinstripe sync`: the speed of rebuilds, in KiB per second of each member.
    pub fn sync_speed(&self, min_kib: u32, max_kib: u32) -> Result<()> {
        let mut command = Command::new(&self.pinstripe);
        command.arg("sync").arg(&self.control);
        command.args(["--speed-min", &min_kib.to_string(), "--speed-max", &max_kib.to_string()]);
        said(&mut command).map(|_| ())
    }

    /// `pinstripe fail`.
    pub fn fail(&self, slot: u32) -> Result<()> {
        let mut command = Command::new(&self.pinstripe);
        said(command.arg("fail").arg(&self.control).arg(slot.to_string())).map(|_| ())
    }

    /// `pinstripe add --json`: puts a device in and lets it rebuild in the background. What became of it:
    /// `full`, `bitmap`, or `none` for a spare.
    pub fn add(&self, device: &Path) -> Result<String> {
        let mut command = Command::new(&self.pinstripe);
        let output = said(command.args(["add", "--json"]).arg(&self.control).arg(device))?;
        let added: Value = serde_json::from_slice(&output.stdout).context("add --json")?;
        Ok(added["recovery"].as_str().unwrap_or_default().to_owned())
    }

    /// `pinstripe replace`: begins to copy a member to a device that takes its slot at the end.
    pub fn replace(&self, slot: usize, device: &Path) -> Result<()> {
        let mut command = Command::new(&self.pinstripe);
        command.arg("replace").arg(&self.control).arg(slot.to_string()).arg("--with").arg(device);
        said(&mut command).map(|_| ())
    }

    /// `pinstripe remove`: a spare or a failed device is forgotten.
    pub fn remove(&self, device: &Path) -> Result<()> {
        said(Command::new(&self.pinstripe).arg("remove").arg(&self.control).arg(device)).map(|_| ())
    }

    /// The device in a slot.
    pub fn device_in(&self, slot: usize) -> Result<PathBuf> {
        let state = self.state()?;
        let device = state["members"][slot]["device"].as_str().context("the slot is empty")?;
        Ok(device.into())
    }

    /// `pinstripe upgrade --json`: the same program takes its own place.
    pub fn upgrade(&self) -> Result<Value> {
        let output = said(Command::new(&self.pinstripe).args(["upgrade", "--json"]).arg(&self.control))?;
        serde_json::from_slice(&output.stdout).context("upgrade --json")
    }

    /// Bytes that it has written to its members, users' and others.
    pub fn bytes_written(&self) -> Result<u64> {
        self.state()?["statistics"]["member_write_bytes"].as_u64().context("member_write_bytes")
    }

    /// `pinstripe stop`: the server must end with status 0.
    pub fn stop(mut self) -> Result<()> {
        // Scenarios keep their connections until the end.
        said(Command::new(&self.pinstripe).args(["stop", "--force"]).arg(&self.control))?;
        self.wait_for_end()
    }

    /// SIGTERM: the server must end with status 0.
    pub fn terminate(mut self) -> Result<()> {
        said(Command::new("kill").args(["-TERM", &self.child.id().to_string()]))?;
        self.wait_for_end()
    }

    /// SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn wait_for_end(&mut self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("serve ended with {status}; see {}", self.log.display()),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        bail!("serve does not end; see {}", self.log.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command; its own words come back in the error.
pub fn said(command: &mut Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        let words = [output.stdout.trim_ascii(), output.stderr.trim_ascii()].concat();
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&words));
    }
    Ok(output)
}
