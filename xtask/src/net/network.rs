//! A network on this machine: one namespace for the client, one for each server, and one with the bridge that
//! joins them.
//!
//! ```text
//!   client            hub                        server K
//!   eth0 ──veth── port-0 ── bridge ── port-K ──veth── eth0        10.77.0.1, and 10.77.0.(K+1)
//!   tbf: sends    tbf: the client receives       tbf: server K sends
//! ```
//!
//! The namespaces have no names: each is held by a process that sleeps in it and that the kernel ends with
//! us. With the last process of a namespace go its links, so nothing stays behind however we end, and nothing
//! that we did not make can be touched. A look inside: `nsenter --net --target PID`, with the PID of a target
//! or of the bench.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// Bytes that a limited link lets through at once. TCP hands links up to 64 KiB in one piece, and two cores
/// with other work let a timer be late: at 500 Mbit/s these are 4 ms.
const BURST_BYTES: u64 = 256 << 10;
/// Bytes of queue in front of a limited link, however slow; more is dropped, as a switch does. What a figure
/// has under way fits, so that it measures links and not how TCP gets over losses. At 500 Mbit/s these are
/// 100 ms.
const QUEUE_BYTES: u64 = 6_250_000;
/// The same control on every machine, whatever it uses itself: the only one that every kernel lets a
/// namespace choose. On links as short as these the usual ones act like it.
const CONGESTION: &str = "reno";
/// How long a process may take to be in its namespace.
const PATIENCE: Duration = Duration::from_mins(1);
/// The interface of a namespace.
pub const INTERFACE: &str = "eth0";
/// Most servers: the numbers of a /24 network, and more than any figure needs.
const SERVERS_MAX: usize = 200;

/// A node of the network. Server 0 is the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// The host of the array.
    Client,
    /// A host with a member.
    Server(usize),
}

impl Node {
    /// Its place: the client first.
    fn index(self) -> usize {
        match self {
            Self::Client => 0,
            Self::Server(number) => number + 1,
        }
    }

    /// Its address.
    pub fn address(self) -> String {
        format!("10.77.0.{}", self.index() + 1)
    }
}

/// Rates of a link in Mbit/s, as its node sees it; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// From the node to the network.
    pub send: Option<f64>,
    /// From the network to the node.
    pub receive: Option<f64>,
}

impl Rates {
    /// The same in both directions.
    pub fn both(mbit: f64) -> Self {
        Self { send: Some(mbit), receive: Some(mbit) }
    }
}

/// A process in a namespace of its own, which ends with it.
struct Holder(Child);

impl Holder {
    fn spawn() -> Result<Self> {
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "unshare", "--net", "--", "sleep", "infinity"])
            .stdin(Stdio::null())
            .spawn()
            .context("run setpriv and unshare (util-linux)")?;
        let holder = Self(child);
        let (ours, start) = (fs::read_link("/proc/self/ns/net")?, Instant::now());
        loop {
            match fs::read_link(holder.namespace()) {
                Ok(theirs) if theirs != ours => return Ok(holder),
                _ if start.elapsed() > PATIENCE => bail!("no network namespace was made"),
                _ => thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    fn namespace(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    /// A command in the namespace, which the kernel ends with us.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "nsenter"]);
        command.arg(format!("--net={}", self.namespace())).arg("--").arg(program.as_ref());
        command
    }

    /// Has a program carry out lines of its own language.
    fn batch(&self, program: &str, lines: &str) -> Result<()> {
        let mut child = self
            .command(program)
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("run {program} (iproute2)"))?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(lines.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{program} refuses one of these lines: {}\n{lines}", said.trim());
        }
        Ok(())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It has nothing to lose, and may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// See the module.
pub struct Network {
    hub: Holder,
    /// The client's, then those of the servers.
    nodes: Vec<Holder>,
}

impl Network {
    /// A client and so many servers, joined by links without limits.
    pub fn new(servers: usize) -> Result<Self> {
        ensure!(servers <= SERVERS_MAX, "{servers} servers: at most {SERVERS_MAX} are possible");
        let hub = Holder::spawn()?;
        let nodes: Vec<Holder> = (0..=servers).map(|_| Holder::spawn()).collect::<Result<_>>()?;
        let network = Self { hub, nodes };
        network.join()?;
        Ok(network)
    }

    fn join(&self) -> Result<()> {
        let mut lines = String::from("link set lo up\nlink add bridge type bridge\nlink set bridge up\n");
        for (index, holder) in self.nodes.iter().enumerate() {
            let (port, pid) = (port(index), holder.0.id());
            let _ = writeln!(lines, "link add {port} type veth peer name {INTERFACE} netns {pid}");
            let _ = writeln!(lines, "link set {port} master bridge up");
        }
        quiet(&self.hub)?;
        self.hub.batch("ip", &lines)?;
        for (index, holder) in self.nodes.iter().enumerate() {
            quiet(holder)?;
            let address = format!("10.77.0.{}/24", index + 1);
            holder.batch(
                "ip",
                &format!("link set lo up\naddr add {address} dev {INTERFACE}\nlink set {INTERFACE} up\n"),
            )?;
        }
        Ok(())
    }

    /// A command on a node, which the kernel ends with us. It must be spawned by the main thread.
    pub fn command(&self, node: Node, program: impl AsRef<Path>) -> Command {
        self.nodes[node.index()].command(program)
    }

    /// A process that is in a node's namespace as long as there is one.
    pub fn witness(&self, node: Node) -> u32 {
        self.nodes[node.index()].0.id()
    }

    /// Sets the rates of these nodes' links at once for connections that there are, too.
    pub fn limit(&self, rates: &[(Node, Rates)]) -> Result<()> {
        let mut ports = String::new();
        for (node, rates) in rates {
            ports += &line(&port(node.index()), rates.receive);
            self.nodes[node.index()].batch("tc", &line(INTERFACE, rates.send))?;
        }
        self.hub.batch("tc", &ports)
    }
}

/// The hub's end of a node's link.
fn port(index: usize) -> String {
    format!("port-{index}")
}

/// Says what a device's queue is to be.
fn line(device: &str, mbit: Option<f64>) -> String {
    match mbit {
        // A queue that isn't tbf, so that replacing works both ways.
        None => format!("qdisc replace dev {device} root pfifo limit 10000\n"),
        Some(mbit) => {
            let kbit = (mbit * 1000.0).round();
            format!(
                "qdisc replace dev {device} root tbf rate {kbit}kbit burst {BURST_BYTES} limit {QUEUE_BYTES}\n"
            )
        }
    }
}

/// No traffic but ours, and TCP as everywhere. `/proc/sys/net` is that of the process that opens it.
fn quiet(holder: &Holder) -> Result<()> {
    let script = "for file in /proc/sys/net/ipv6/conf/default/disable_ipv6 /proc/sys/net/ipv6/conf/all/disable_ipv6; do \
                  if [ -e $file ]; then echo 1 > $file; fi; done; \
                  echo \"$0\" > /proc/sys/net/ipv4/tcp_congestion_control";
    let output = holder.command("sh").args(["-c", script, CONGESTION]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "this kernel has no {CONGESTION} congestion control: {}", said.trim());
    Ok(())
}

/// How the links are made, for readers of the figures.
pub fn description() -> String {
    format!(
        "veth and tbf (burst {} KiB, queue of {} KiB) on a bridge, MTU 1500, TCP {CONGESTION}",
        BURST_BYTES >> 10,
        QUEUE_BYTES >> 10
    )
}
