//! `pinstripe target` in a server's namespace, over a loop device in memory.
//!
//! The memory is an anonymous file, the loop device is set to go with its last user before the target starts,
//! and the target ends with us: nothing stays.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use serde_json::Value;

use super::experiments::Arm;
use super::network::{Network, Node};

/// Attaches a loop device to the file and becomes the target over it. A signal must not come between the
/// making of the device and the moment from which it goes by itself.
const SCRIPT: &str = r#"
trap "" INT TERM HUP
device=$(losetup --find --show "$1") || exit 1
exec 3<>"$device" || exit 1
losetup --detach "$device"
trap - INT TERM HUP
shift
exec "$@" "$device"
"#;
/// The usual port.
const PORT: u16 = 4420;

/// A running target; it ends when this is dropped.
pub struct Server {
    child: Child,
    /// Its one namespace, as a member of an array is named.
    pub member: String,
    /// Kept open, for it may say more.
    said: BufReader<ChildStdout>,
    _memory: File,
}

impl Server {
    /// Starts a target with one namespace of so many bytes, all zero. [`Server::wait`] waits until it serves.
    pub fn start(network: &Network, pinstripe: &Path, number: usize, bytes: u64, arm: Arm) -> Result<Self> {
        let node = Node::Server(number);
        let memory = File::from(memfd_create(format!("pinstripe-net-{number}"), MemfdFlags::CLOEXEC)?);
        ftruncate(&memory, bytes)?;
        // Pages that are missing while something is measured would cost the servers time.
        fallocate(&memory, FallocateFlags::empty(), 0, bytes).context("memory for a member")?;
        let nqn = format!("nqn.2026-01.net.pinstripe.lab:s{number}");
        let mut child = network
            .command(node, "sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd()))
            .arg(pinstripe)
            .args(["target", "--json", "--allow-unauthenticated", "--shards", "1", "--nqn", &nqn])
            .args(arm.servers())
            .args(["--listen", &format!("{}:{PORT}", node.address())])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("start pinstripe target")?;
        let said = BufReader::new(child.stdout.take().context("the target's output")?);
        Ok(Self { child, member: String::new(), said, _memory: memory })
    }

    /// Waits until it serves.
    pub fn wait(&mut self) -> Result<()> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        if line.is_empty() {
            bail!("pinstripe target ended with {} before it served", self.child.wait()?);
        }
        let ready: Value =
            serde_json::from_str(&line).with_context(|| format!("the target printed {line:?}"))?;
        let name = ready["namespaces"][0].as_str().unwrap_or_default();
        ensure!(ready["event"] == "ready" && !name.is_empty(), "the target printed {line:?}");
        name.clone_into(&mut self.member);
        Ok(())
    }

    /// The target's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // What it holds is thrown away.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
