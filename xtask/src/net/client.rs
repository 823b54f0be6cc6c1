//! `pinstripe bench` in the client's namespace, watched: the links are limited and everything is counted only
//! while it measures. Making the array, filling it, and its check afterwards go as fast as the machine can.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::experiments::Arm;
use super::network::{Network, Node, Rates};
use super::server::Server;
use super::usage::{LinkBytes, Machine, cpu_seconds};

/// Seconds of load before anything is counted: TCP has to find out what the links bear.
const WARM_UP_SECONDS: &str = "1";

/// What the bench is asked for.
#[derive(Clone, Debug)]
pub struct Load {
    /// RAID level.
    pub level: u8,
    /// Bytes.
    pub chunk: u64,
    /// Bytes of a request.
    pub size: u64,
    /// Percentage of requests that read.
    pub reads: u8,
    /// Requests at a time.
    pub depth: usize,
    /// Where requests go.
    pub pattern: &'static str,
    /// Bytes per second that are asked for, if not as many as possible.
    pub rate: Option<u64>,
    /// The array is written before.
    pub fill: bool,
    /// Slots without members.
    pub lost: Vec<usize>,
    /// What is rebuilt, instead of a load.
    pub rebuild: Option<Rebuild>,
    /// The store that is measured, instead of a load. `size` is that of its objects.
    pub store: Option<Store>,
    /// Seconds to measure.
    pub seconds: f64,
}

/// A store of objects.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    /// How many there are.
    pub objects: usize,
    /// Which of the bench's mixes.
    pub mix: &'static str,
}

/// All of a member, however long that takes.
#[derive(Clone, Copy, Debug)]
pub struct Rebuild {
    /// Which one.
    pub slot: usize,
    /// How many bytes a member has.
    pub bytes: u64,
}

impl Load {
    /// Random writes of 128 KiB in chunks of 512 KiB.
    pub fn new(level: u8, seconds: f64) -> Self {
        Self {
            level,
            chunk: 512 << 10,
            size: 128 << 10,
            reads: 0,
            depth: 32,
            pattern: "random",
            rate: None,
            fill: false,
            lost: Vec::new(),
            rebuild: None,
            store: None,
            seconds,
        }
    }

    fn arguments(&self) -> Vec<String> {
        // No cache of parity: it would hold all of a small array's, and those that are worth the work are not
        // small.
        let mut words = vec![
            "bench --json --force --attended --assume-clean --cache 0 --warm-up".to_owned(),
            WARM_UP_SECONDS.to_owned(),
            format!("--level {} --chunk {} --size {}", self.level, self.chunk, self.size),
            format!("--depth {} --seconds {}", self.depth, self.seconds),
        ];
        words.push(match self.store {
            Some(Store { objects, mix }) => format!("--objects {objects} --mix {mix}"),
            None => format!("--reads {}", self.reads),
        });
        words.push(format!("--pattern {}", self.pattern));
        words.extend(self.rate.map(|rate| format!("--rate {rate}")));
        words.extend(self.fill.then(|| "--fill".to_owned()));
        words.extend(self.lost.iter().map(|slot| format!("--lost {slot}")));
        words.extend(self.rebuild.map(|rebuild| format!("--rebuild {}", rebuild.slot)));
        words.iter().flat_map(|words| words.split(' ')).map(str::to_owned).collect()
    }
}

/// What was counted while the bench measured. It has checked its data and its parity.
pub struct Measurement {
    /// The bench's own report.
    pub report: Value,
    /// The client's link.
    pub client: LinkBytes,
    /// The servers' links.
    pub servers: Vec<LinkBytes>,
    /// Seconds of CPU of the client's process.
    pub client_cpu: f64,
    /// And of each server's.
    pub servers_cpu: Vec<f64>,
    /// Share of the machine's CPUs that was busy, with whatever.
    pub busy: f64,
    /// From the first to the last byte.
    pub seconds: f64,
}

impl Measurement {
    /// One of the array's counters.
    pub fn counter(&self, name: &str) -> f64 {
        // A store's report has them with the array.
        let array = &self.report["array"];
        let counters = if array.is_null() { &self.report["counters"] } else { &array["counters"] };
        counters[name].as_f64().unwrap_or(f64::NAN)
    }

    /// Bytes that users read and wrote; of a rebuild those of the member that was made.
    pub fn user_bytes(&self) -> f64 {
        let rebuilt = self.report["recovery"]["member_bytes"].as_f64();
        rebuilt.unwrap_or_else(|| self.counter("read_bytes") + self.counter("write_bytes"))
    }

    /// The same per second.
    pub fn bytes_per_second(&self) -> f64 {
        let rebuilt = self.report["recovery"]["bytes_per_second"].as_f64();
        rebuilt.unwrap_or_else(|| self.report["bytes_per_second"].as_f64().unwrap_or(f64::NAN))
    }

    /// Bytes that the array wrote to its members and read from them, by its own word.
    pub fn moved(&self) -> (f64, f64) {
        (self.counter("member_write_bytes"), self.counter("member_read_bytes"))
    }

    /// A percentile (`p50`, `p99`, ...) of the requests' latency in seconds.
    pub fn latency(&self, percentile: &str) -> f64 {
        self.report["latency_ns"][percentile].as_f64().unwrap_or(f64::NAN) / 1e9
    }
}

/// Counters at an instant.
pub struct Reading {
    at: Instant,
    links: Vec<LinkBytes>,
    cpu: Vec<f64>,
    machine: Machine,
}

impl Reading {
    /// Of all nodes, of the client's process `pid` and of those of the servers.
    pub fn now(network: &Network, pid: u32, servers: &[Server]) -> Result<Self> {
        let nodes = std::iter::once(Node::Client).chain((0..servers.len()).map(Node::Server));
        let pids = std::iter::once(pid).chain(servers.iter().map(Server::pid));
        Ok(Self {
            at: Instant::now(),
            links: nodes.map(|node| LinkBytes::of(network.witness(node))).collect::<Result<_>>()?,
            cpu: pids.map(cpu_seconds).collect::<Result<_>>()?,
            machine: Machine::now()?,
        })
    }

    /// What came after `before`, with the report of what was measured.
    pub fn since(&self, before: &Self, report: Value) -> Measurement {
        let links = self.links.iter().zip(&before.links).map(|(after, before)| after.since(*before));
        let cpu = self.cpu.iter().zip(&before.cpu).map(|(after, before)| after - before);
        let (links, cpu): (Vec<LinkBytes>, Vec<f64>) = (links.collect(), cpu.collect());
        Measurement {
            report,
            client: links[0],
            servers: links[1..].to_vec(),
            client_cpu: cpu[0],
            servers_cpu: cpu[1..].to_vec(),
            busy: self.machine.busy_since(before.machine),
            seconds: (self.at - before.at).as_secs_f64(),
        }
    }
}

/// A program with `--attended` that is under way; killed when this is dropped.
pub struct Attended {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Attended {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the bench over members on `servers`, with links of these rates while it measures. `arm` says which
/// side does the work.
pub fn run(
    network: &Network,
    pinstripe: &Path,
    servers: &[Server],
    load: &Load,
    arm: Arm,
    rates: &[(Node, Rates)],
) -> Result<Measurement> {
    let mut command = network.command(Node::Client, pinstripe);
    command.args(load.arguments()).args(arm.client());
    for server in servers {
        command.args(["--device", &server.member]);
    }
    let mut bench = Attended::start(&mut command)?;
    let free: Vec<(Node, Rates)> = rates.iter().map(|(node, _)| (*node, Rates::default())).collect();
    let outcome = measure(&mut bench, network, servers, rates, &free);
    if outcome.is_err() {
        network.limit(&free)?;
    }
    outcome.with_context(|| format!("pinstripe {} {}", load.arguments().join(" "), arm.client().join(" ")))
}

fn measure(
    bench: &mut Attended,
    network: &Network,
    servers: &[Server],
    rates: &[(Node, Rates)],
    free: &[(Node, Rates)],
) -> Result<Measurement> {
    bench.expect("ready")?;
    network.limit(rates)?;
    bench.go_on()?;
    bench.expect("begins")?;
    let before = Reading::now(network, bench.pid(), servers)?;
    bench.go_on()?;
    bench.expect("ended")?;
    let after = Reading::now(network, bench.pid(), servers)?;
    network.limit(free)?;
    bench.go_on()?;
    Ok(after.since(&before, bench.report()?))
}

impl Attended {
    /// Starts the program.
    pub fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        let input = child.stdin.take().context("the program's input")?;
        let output = BufReader::new(child.stdout.take().context("the program's output")?);
        Ok(Self { child, input, output })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it go on.
    pub fn go_on(&mut self) -> Result<()> {
        Ok(self.input.write_all(b"\n")?)
    }

    /// Waits for the line that says that it is there.
    pub fn expect(&mut self, event: &str) -> Result<()> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            return self.fail();
        }
        let said: Value = serde_json::from_str(&line).with_context(|| format!("it printed {line:?}"))?;
        ensure!(said["event"] == event, "it printed {line:?} instead of {event}");
        Ok(())
    }

    /// Waits for its end and its report.
    pub fn report(&mut self) -> Result<Value> {
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        if text.is_empty() {
            return self.fail();
        }
        serde_json::from_str(&text).context("the report")
    }

    /// It has closed its output: why.
    fn fail<T>(&mut self) -> Result<T> {
        let status = self.child.wait()?;
        let mut said = String::new();
        if let Some(errors) = &mut self.child.stderr {
            errors.read_to_string(&mut said)?;
        }
        bail!("it ended with {status}: {}", said.trim());
    }
}

/// Rates of the client's link and of those of so many servers, all the same.
pub fn equal_links(servers: usize, mbit: f64) -> Vec<(Node, Rates)> {
    let servers = (0..servers).map(Node::Server);
    std::iter::once(Node::Client).chain(servers).map(|node| (node, Rates::both(mbit))).collect()
}
