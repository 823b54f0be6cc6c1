//! The short form: a lab that counts or limits wrongly, and an array that moves more than its plan, fail
//! here.
//!
//! Ratios of bytes only, and limits that no machine exceeds: how busy this one is doesn't matter.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::client::{self, Load, Measurement, Rebuild, Store, equal_links};
use super::experiments::Arm;
use super::network::{Network, Node, Rates};
use super::start_servers;

const SERVERS: usize = 4;
const MEMBER_BYTES: u64 = 128 << 20;
const SECONDS: f64 = 2.5;
/// Of all links.
const MBIT: f64 = 400.0;
/// Of a link that is slower.
const SLOW_MBIT: f64 = 50.0;
/// Of a store: more than there are clients, and few to load.
const STORE_OBJECTS: usize = 500;
/// What headers of TCP, NVMe and Ethernet may add to data.
const HEADERS: f64 = 0.03;
/// What the writing of a bitmap, keep-alive and commands may add, in bytes.
const CHATTER: f64 = 400_000.0;

/// The share of what is sent that queues may drop.
const DROPPED: f64 = 0.1;

/// Something that is tried.
struct Check {
    name: &'static str,
    run: fn(&Lab) -> Result<String>,
}

const CHECKS: &[Check] = &[
    Check { name: "writes", run: writes },
    Check { name: "offloaded-writes", run: offloaded_writes },
    Check { name: "degraded-reads", run: degraded_reads },
    Check { name: "offloaded-reads", run: offloaded_reads },
    Check { name: "rebuild", run: rebuild },
    Check { name: "slow-link", run: slow_link },
    Check { name: "store", run: store },
];

struct Lab<'a> {
    network: Network,
    pinstripe: &'a Path,
}

impl Lab<'_> {
    /// An array over the servers, new ones, measured with links of these rates.
    fn measure(&self, arm: Arm, servers: usize, load: &Load, rates: &[(Node, Rates)]) -> Result<Measurement> {
        let servers = start_servers(&self.network, self.pinstripe, (servers, MEMBER_BYTES), arm)?;
        let measurement = client::run(&self.network, self.pinstripe, &servers, load, arm, rates)?;
        links_agree(&measurement)?;
        // What servers move for each other the client doesn't see.
        if arm == Arm::HostCentric {
            client_agrees(&measurement)?;
        }
        Ok(measurement)
    }
}

/// Runs all checks; ends with `N passed, N failed`.
pub fn run(pinstripe: &Path) -> Result<()> {
    let lab = Lab { network: Network::new(SERVERS)?, pinstripe };
    let mut failed = Vec::new();
    for check in CHECKS {
        let start = Instant::now();
        let result = (check.run)(&lab);
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(words) => println!("{:16} ok      {seconds:5.1} s  {words}", check.name),
            Err(error) => {
                println!("{:16} FAILED  {seconds:5.1} s  {error:#}", check.name);
                failed.push(check.name);
            }
        }
    }
    println!("{} passed, {} failed", CHECKS.len() - failed.len(), failed.len());
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// The client's link carries what the array says that it moved.
fn client_agrees(measured: &Measurement) -> Result<()> {
    let (written, read) = measured.moved();
    let about = |bytes: f64| bytes - CHATTER..bytes * (1.0 + HEADERS) + CHATTER;
    let [sent, received] = [measured.client.sent, measured.client.received].map(real);
    ensure!(about(written).contains(&sent), "{sent} bytes were sent, {written} written to members");
    ensure!(about(read).contains(&received), "{received} bytes were received, {read} read from members");
    Ok(())
}

/// What the nodes count as sent, nodes count as received.
fn links_agree(measured: &Measurement) -> Result<()> {
    let nodes = || std::iter::once(&measured.client).chain(&measured.servers);
    let sent: f64 = nodes().map(|link| real(link.sent)).sum();
    let received: f64 = nodes().map(|link| real(link.received)).sum();
    // A full queue drops what its sender has counted, and TCP sends it again.
    let dropped = -CHATTER..sent * DROPPED + CHATTER;
    ensure!(dropped.contains(&(sent - received)), "{sent} bytes were sent, {received} arrived");
    ensure!(measured.user_bytes() > 0.0, "nothing was moved");
    Ok(())
}

/// Partial writes by the client move each byte twice in each direction: data and parity, old and new. No link
/// is faster than it may be, and none so slow that the limit isn't the reason.
fn writes(lab: &Lab) -> Result<String> {
    let load = Load::new(5, SECONDS);
    let measured = lab.measure(Arm::HostCentric, SERVERS, &load, &equal_links(SERVERS, MBIT))?;
    let [sent, received] = per_byte(&measured);
    // Fewer, where two writes of a stripe became one.
    ensure!((1.8..2.1).contains(&sent), "{sent:.3} bytes were sent for each that was written");
    ensure!((1.8..2.1).contains(&received), "{received:.3} bytes were received for each that was written");
    let rate = real(measured.client.sent) * 8e-6 / measured.seconds;
    ensure!(rate < MBIT * 1.03, "{rate:.0} Mbit/s on a link of {MBIT}");
    Ok(format!("sent {sent:.3}, received {received:.3} bytes per byte; {rate:.0} of {MBIT} Mbit/s"))
}

/// Partial writes by the servers move each byte once over the client's link, whatever becomes of it behind.
fn offloaded_writes(lab: &Lab) -> Result<String> {
    let mut words = Vec::new();
    for level in [5, 6] {
        let load = Load::new(level, SECONDS);
        let measured = lab.measure(Arm::Offload, SERVERS, &load, &equal_links(SERVERS, MBIT))?;
        let [sent, received] = per_byte(&measured);
        ensure!((0.98..1.05).contains(&sent), "{sent:.3} bytes were sent for each that was written");
        ensure!(received < 0.05, "{received:.3} bytes were received for each that was written");
        words.push(format!("RAID{level}: sent {sent:.3}, received {received:.3} bytes per byte"));
    }
    Ok(words.join("; "))
}

/// A member that is missing is read from a server that sums up.
fn offloaded_reads(lab: &Lab) -> Result<String> {
    let measured = lab.measure(Arm::Offload, SERVERS, &lost_reads(), &equal_links(SERVERS, MBIT))?;
    let [_, received] = per_byte(&measured);
    ensure!((0.99..1.05).contains(&received), "{received:.3} bytes were received for each that was read");
    Ok(format!("received {received:.3} bytes per byte"))
}

fn lost_reads() -> Load {
    Load { reads: 100, fill: true, lost: vec![1], ..Load::new(5, SECONDS) }
}

/// Of a member that is missing, every other one is read.
fn degraded_reads(lab: &Lab) -> Result<String> {
    let measured = lab.measure(Arm::HostCentric, SERVERS, &lost_reads(), &equal_links(SERVERS, MBIT))?;
    let [_, received] = per_byte(&measured);
    // A quarter of all is on the missing member, and costs three reads.
    ensure!((1.4..1.6).contains(&received), "{received:.3} bytes were received for each that was read");
    Ok(format!("received {received:.3} bytes per byte"))
}

/// A member is made from all others, or from what servers sum up.
fn rebuild(lab: &Lab) -> Result<String> {
    let load =
        Load { fill: true, rebuild: Some(Rebuild { slot: 2, bytes: MEMBER_BYTES }), ..Load::new(5, SECONDS) };
    let mut words = Vec::new();
    for (arm, reads) in [(Arm::HostCentric, 3.0), (Arm::Offload, 1.0)] {
        let measured = lab.measure(arm, SERVERS, &load, &equal_links(SERVERS, MBIT * 2.0))?;
        let [sent, received] = per_byte(&measured);
        ensure!((0.99..1.05).contains(&sent), "{sent:.3} bytes were sent for each of the member");
        let is_due = (reads * 0.99..reads * 1.05).contains(&received);
        ensure!(is_due, "{}: {received:.3} bytes were received for each of the member", arm.name());
        words.push(format!("{}: sent {sent:.3}, received {received:.3} bytes per byte", arm.name()));
    }
    Ok(words.join("; "))
}

/// One server's receiving side is slow: writes to it are, and reads from it are not.
fn slow_link(lab: &Lab) -> Result<String> {
    let mut rates = equal_links(1, MBIT);
    rates[1].1.receive = Some(SLOW_MBIT);
    let plain = Load { size: 1 << 20, depth: 4, pattern: "sequential", ..Load::new(0, SECONDS) };
    let reads = Load { reads: 100, fill: true, ..plain.clone() };
    let writes = lab.measure(Arm::HostCentric, 1, &plain, &rates)?.bytes_per_second() * 8e-6;
    let reads = lab.measure(Arm::HostCentric, 1, &reads, &rates)?.bytes_per_second() * 8e-6;
    ensure!(writes < SLOW_MBIT * 1.1, "{writes:.0} Mbit/s were written over a link of {SLOW_MBIT}");
    ensure!(reads > SLOW_MBIT * 1.5, "{reads:.0} Mbit/s were read, as if the other direction were slow too");
    ensure!(reads < MBIT * 1.03, "{reads:.0} Mbit/s were read over a link of {MBIT}");
    Ok(format!("written at {writes:.0} Mbit/s, read at {reads:.0}"))
}

/// A store's puts move each object twice in each direction, or once; `--attended` brackets them.
fn store(lab: &Lab) -> Result<String> {
    let store = Some(Store { objects: STORE_OBJECTS, mix: "w" });
    let load = Load { store, ..Load::new(5, SECONDS) };
    let mut words = Vec::new();
    for (arm, wanted) in [(Arm::HostCentric, 2.0), (Arm::Offload, 1.0)] {
        let measured = lab.measure(arm, SERVERS, &load, &equal_links(SERVERS, MBIT))?;
        let [sent, received] = per_byte(&measured);
        let is_due = (wanted * 0.9..wanted * 1.05).contains(&sent);
        ensure!(is_due, "{}: {sent:.3} bytes were sent for each of an object", arm.name());
        let checked = &measured.report["checked"];
        ensure!(checked["objects"] == STORE_OBJECTS, "not all objects were read back: {checked}");
        words.push(format!("{}: sent {sent:.3}, received {received:.3} bytes per byte", arm.name()));
    }
    Ok(words.join("; "))
}

/// Bytes that the client sent and received for each of the user's.
fn per_byte(measured: &Measurement) -> [f64; 2] {
    [measured.client.sent, measured.client.received].map(|bytes| real(bytes) / measured.user_bytes())
}

#[expect(clippy::cast_precision_loss, reason = "ratios need no 53 bits")]
fn real(bytes: u64) -> f64 {
    bytes as f64
}
