//! The logs that close the write hole: ours replayed by the kernel, the kernel's by us, and one that no
//! kernel knows.
//!
//! Of the partial parity log, replay has something to do: rows are torn before it ([`super::torn`]).

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};

use super::Lab;
use super::crash::{cut_the_kernel, is_dirty, write_until_killed};
use super::machine::Machine;
use super::members::{self, Geometry};
use super::server::{self, Server};
use super::torn::{self, Torn};
use crate::pattern::{self, BLOCK, Run};

/// RAID5 with MD's partial parity log.
const PPL: &[Geometry] = &[
    Geometry::new("p5", 5, 4, 16, "left-symmetric").with_policy("ppl").with_members_of(24 << 20),
    Geometry::new("p5-c64", 5, 3, 64, "right-asymmetric").with_policy("ppl").with_members_of(24 << 20),
    Geometry::new("p5-c512", 5, 5, 512, "left-symmetric").with_policy("ppl").with_members_of(24 << 20),
];

/// Chunks of the array that loses a member with the crash: so that our writers' stretches have parity on
/// every member, and so that the newest writes of the kernel's leave columns unwritten.
const LOST_CHUNK_OURS: u32 = 64;
const LOST_CHUNK_KERNELS: u32 = 512;

/// RAID6 with the double-parity log.
const DOUBLE: &[Geometry] = &[
    Geometry::new("q6", 6, 5, 16, "left-symmetric").with_policy("double-parity-log"),
    Geometry::new("q6-ddf", 6, 5, 64, "ddf-N-continue").with_policy("double-parity-log"),
];

/// Sectors that a replay reads of a member at most; a resync would read all of its 24576.
const REPLAY_SECTORS_MAX: u64 = 8192;

/// Kills our server under writes to `geometries`. What each array may hold.
fn kill_ours(lab: &Lab, geometries: &[Geometry]) -> Result<BTreeMap<&'static str, Vec<Run>>> {
    let mut left = BTreeMap::new();
    for geometry in geometries {
        let server = Server::start(lab, geometry.name, &geometry.present(lab)).context(geometry.name)?;
        let runs = write_until_killed(server).context(geometry.name)?;
        ensure!(is_dirty(lab, geometry)?, "{} is clean: nothing was cut", geometry.name);
        left.insert(geometry.name, runs);
    }
    Ok(left)
}

/// All arrays with a partial parity log. One loses a member, as its name says.
fn ppl_arrays(lost_chunk: u32) -> Vec<Geometry> {
    let lost = Geometry::new("p5-lost", 5, 5, lost_chunk, "left-symmetric");
    [PPL, &[lost.with_policy("ppl").with_members_of(24 << 20)]].concat()
}

/// An array that crashed, and what it may hold.
struct Crashed {
    torn: Torn,
    left: Vec<Run>,
}

impl Crashed {
    fn new(torn: Torn, left: Vec<Run>) -> Self {
        Self { left: [left, torn.excused.clone()].concat(), torn }
    }
}

/// Kills our server under writes over a first pattern, and tears rows.
fn kill_and_tear(lab: &Lab, geometry: &Geometry) -> Result<Crashed> {
    let devices = geometry.make_members(lab)?;
    server::create(lab, geometry, &devices, &["--assume-clean"])?;
    let server = Server::start(lab, geometry.name, &devices)?;
    let mut client = server.client()?;
    // The writers stay in the first half.
    let first = Run::new(0..client.size / BLOCK as u64 / 2, 1);
    pattern::write(&mut client, std::slice::from_ref(&first))?;
    drop(client);
    let before: Vec<Vec<u8>> = devices.iter().map(fs::read).collect::<Result<_, _>>()?;
    let mut runs = write_until_killed(server)?;
    ensure!(is_dirty(lab, geometry)?, "it is clean: nothing was cut");
    for generation in runs.iter_mut().flat_map(|run| &mut run.generations).filter(|it| **it == 0) {
        // The writers think that they began on zeroes.
        *generation = 1;
    }
    let old = |slot: u32, at: usize, _: &[u8]| Ok(before[usize::try_from(slot)?][at..at + BLOCK].to_vec());
    Ok(Crashed::new(torn::tear(lab, geometry, old)?, [vec![first], runs].concat()))
}

/// What a page held one generation before: each generation of the kernel's writers goes to the same blocks.
fn generation_before(now: &[u8]) -> Result<Vec<u8>> {
    if !now.starts_with(b"MDGOLD") {
        return Ok(vec![0; BLOCK]);
    }
    let generation: u8 = std::str::from_utf8(&now[6..8])?.parse()?;
    let block = u64::from_le_bytes(now[8..16].try_into()?);
    Ok(pattern::render(block..block + 1, generation.saturating_sub(1)))
}

/// We serve what is expected, without a resync.
fn serve(lab: &Lab, geometry: &Geometry, expected: &[Run]) -> Result<()> {
    let server = Server::start(lab, geometry.name, &geometry.present(lab))?;
    let detail = server.detail()?;
    ensure!(detail["regions_to_resync"] == 0, "a resync is to be done: {detail}");
    let mut client = server.client()?;
    let blocks = client.size / BLOCK as u64;
    pattern::verify(&mut client, blocks, expected)?;
    if geometry.missing.is_empty() {
        server.check()?;
    }
    drop(client);
    server.stop()
}

/// Our server is killed, and the kernel replays our log.
pub fn ours_in_kernel(lab: &Lab) -> Result<()> {
    let geometries = ppl_arrays(LOST_CHUNK_OURS);
    let crashed: BTreeMap<&str, Crashed> = geometries
        .iter()
        .map(|geometry| Ok((geometry.name, kill_and_tear(lab, geometry).context(geometry.name)?)))
        .collect::<Result<_>>()?;
    let found: Vec<Geometry> = crashed.values().map(|crashed| crashed.torn.geometry).collect();
    let outcome =
        lab.kernel_verifies("verify", &found, |geometry| crashed[geometry.name].left.clone(), &[])?;
    for geometry in &geometries {
        let synced = members::sectors_synced(&outcome, geometry)?;
        ensure!(synced < REPLAY_SECTORS_MAX, "{}: the kernel read {synced} sectors: a resync", geometry.name);
        crashed[geometry.name].torn.ensure_mended(lab)?;
        serve(lab, geometry, &crashed[geometry.name].left).context(geometry.name)?;
    }
    Ok(())
}

/// The kernel's power is cut, and we replay its log.
pub fn kernels_with_us(lab: &Lab) -> Result<()> {
    let geometries = ppl_arrays(LOST_CHUNK_KERNELS);
    let mut left = cut_the_kernel(lab, &geometries)?;
    let mut found = Vec::new();
    for geometry in &geometries {
        let torn = torn::tear(lab, geometry, |_, _, now| generation_before(now))?;
        left.entry(geometry.name).or_default().extend(torn.excused.clone());
        serve(lab, &torn.geometry, &left[geometry.name]).context(geometry.name)?;
        if torn.geometry.missing.is_empty() {
            torn.ensure_mended(lab)?;
        }
        found.push(torn.geometry);
    }
    lab.kernel_verifies("verify", &found, |geometry| left[geometry.name].clone(), &[]).map(|_| ())
}

/// Clean, the kernel takes the array; dirty, it refuses, and we replay.
pub fn double_parity(lab: &Lab) -> Result<()> {
    for geometry in DOUBLE {
        let devices = geometry.make_members(lab)?;
        server::create(lab, geometry, &devices, &["--assume-clean"])?;
        let server = Server::start(lab, geometry.name, &devices)?;
        pattern::write(&mut server.client()?, &members::first_writes())?;
        server.stop()?;
    }
    let second = members::second_writes();
    let seen = lab.kernel_verifies("clean", DOUBLE, |_| members::first_writes(), &second)?;
    members::ensure_no_resync(&seen, DOUBLE)?;
    for geometry in DOUBLE {
        let server = Server::start(lab, geometry.name, &geometry.present(lab))?;
        let policy = server.detail()?["consistency_policy"].clone();
        ensure!(policy == "double-parity-log", "{}: {policy} after the kernel had it", geometry.name);
        let mut client = server.client()?;
        let blocks = client.size / BLOCK as u64;
        pattern::verify(&mut client, blocks, &[members::first_writes(), second.clone()].concat())?;
        drop(client);
        server.stop()?;
        // The writers begin on zeroes.
        server::create(lab, geometry, &geometry.make_members(lab)?, &["--assume-clean"])?;
    }
    let left = kill_ours(lab, DOUBLE)?;
    let mut refused = Machine::new("refused", include_str!("../../vm/kernel-refuses-log.sh"));
    for geometry in DOUBLE {
        geometry.attach(lab, &mut refused, &[]);
    }
    let seen = lab.boot(refused.modules(super::LEVELS).variable("ARRAYS", &members::lines(DOUBLE)))?;
    ensure!(seen.all("refused").len() == DOUBLE.len(), "not every array was tried: {seen:?}");
    for geometry in DOUBLE {
        serve(lab, geometry, &left[geometry.name]).context(geometry.name)?;
    }
    lab.kernel_verifies("verify", DOUBLE, |geometry| left[geometry.name].clone(), &[]).map(|_| ())
}
