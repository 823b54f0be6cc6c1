//! The logs that close the write hole: ours replayed by the kernel, the kernel's by us, and one that no kernel knows.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use super::Lab;
use super::crash::{cut_the_kernel, is_dirty, write_until_killed};
use super::machine::Machine;
use super::members::{self, Geometry};
use super::server::{self, Server};
use crate::pattern::{self, BLOCK, Run};

/// RAID5 with MD's partial parity log.
const PPL: &[Geometry] = &[
    Geometry::new("p5", 5, 4, 16, "left-symmetric").with_policy("ppl").with_members_of(24 << 20),
    Geometry::new("p5-c64", 5, 3, 64, "right-asymmetric").with_policy("ppl").with_members_of(24 << 20),
    Geometry::new("p5-c512", 5, 5, 512, "left-symmetric").with_policy("ppl").with_members_of(24 << 20),
];

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

/// We serve what is expected, without a resync.
fn serve(lab: &Lab, geometry: &Geometry, expected: &[Run]) -> Result<()> {
    let server = Server::start(lab, geometry.name, &geometry.present(lab))?;
    let detail = server.detail()?;
    ensure!(detail["regions_to_resync"] == 0, "a resync is to be done: {detail}");
    let mut client = server.client()?;
    let blocks = client.size / BLOCK as u64;
    pattern::verify(&mut client, blocks, expected)?;
    server.check()?;
    drop(client);
    server.stop()
}

/// Our server is killed, and the kernel replays our log.
pub fn ours_in_kernel(lab: &Lab) -> Result<()> {
    for geometry in PPL {
        let devices = geometry.make_members(lab)?;
        server::create(lab, geometry, &devices, &["--assume-clean"])?;
    }
    let left = kill_ours(lab, PPL)?;
    let outcome = lab.kernel_verifies("verify", PPL, |geometry| left[geometry.name].clone(), &[])?;
    for geometry in PPL {
        let synced = members::sectors_synced(&outcome, geometry)?;
        ensure!(synced < REPLAY_SECTORS_MAX, "{}: the kernel read {synced} sectors: a resync", geometry.name);
        serve(lab, geometry, &left[geometry.name]).context(geometry.name)?;
    }
    Ok(())
}

/// The kernel's power is cut, and we replay its log.
pub fn kernels_with_us(lab: &Lab) -> Result<()> {
    let left = cut_the_kernel(lab, PPL)?;
    for geometry in PPL {
        serve(lab, geometry, &left[geometry.name]).context(geometry.name)?;
    }
    lab.kernel_verifies("verify", PPL, |geometry| left[geometry.name].clone(), &[]).map(|_| ())
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
