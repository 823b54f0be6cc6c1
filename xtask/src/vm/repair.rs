//! Damage that no device reports: our repair beside the kernel's, and `repair --locate`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Lab;
use super::machine::Machine;
use super::members::{self, Geometry};
use super::server::{self, Server};
use crate::pattern;

/// Arrays that both repair: each one of ours, and the copy for the kernel.
const PAIRS: &[(Geometry, Geometry)] = &[
    (Geometry::new("r4", 4, 4, 16, ""), Geometry::new("r4-kernel", 4, 4, 16, "")),
    (Geometry::new("r5", 5, 4, 64, "left-symmetric"), Geometry::new("r5-kernel", 5, 4, 64, "left-symmetric")),
    (Geometry::new("r6", 6, 5, 64, "left-symmetric"), Geometry::new("r6-kernel", 6, 5, 64, "left-symmetric")),
    (
        Geometry::new("r6-ddf", 6, 5, 16, "ddf-N-continue"),
        Geometry::new("r6-ddf-kernel", 6, 5, 16, "ddf-N-continue"),
    ),
];

/// Arrays of which one member lies in each row.
const LIARS: &[Geometry] = &[
    Geometry::new("one-liar", 6, 5, 64, "left-symmetric"),
    Geometry::new("one-liar-ddf", 6, 6, 16, "ddf-zero-restart"),
    Geometry::new("one-liar-ls6", 6, 4, 16, "left-symmetric-6"),
];

/// Rows of 4 KiB, from the start of the members' data, in which something is changed.
const ROWS: &[u64] = &[0, 3, 17, 40, 41, 100, 150, 151, 152, 153, 333, 1000];

/// Ours and the kernel's repair make the same bytes of the same damage, and count the same.
pub fn beside_the_kernel(lab: &Lab) -> Result<()> {
    let mut machine =
        Machine::new("repair", include_str!("../../vm/kernel-repair.sh")).modules(super::LEVELS);
    let mut ours = Vec::new();
    for (geometry, copy) in PAIRS {
        fill(lab, geometry)?;
        for (number, row) in (0..).zip(ROWS) {
            // Data and parity in turn, and in every third row two members.
            damage(lab, geometry, number % geometry.members, row * 4096 + 512 * (row % 8))?;
            if number % 3 == 0 {
                damage(lab, geometry, (number + 2) % geometry.members, row * 4096 + 100)?;
            }
        }
        for slot in 0..geometry.members {
            fs::copy(geometry.file(lab, slot), copy.file(lab, slot))?;
        }
        let server = Server::start(lab, geometry.name, &geometry.present(lab))?;
        let repaired = server.repair(&[]).context(geometry.name)?;
        server.check().with_context(|| format!("{}, repaired", geometry.name))?;
        server.stop()?;
        ours.push(format!("{} {}", copy.name, repaired["mismatched_sectors"]));
        copy.attach(lab, &mut machine, &[]);
    }
    let copies: Vec<Geometry> = PAIRS.iter().map(|(_, copy)| *copy).collect();
    let outcome = lab.boot(machine.variable("ARRAYS", &members::lines(&copies)))?;
    ensure!(
        outcome.all("mismatches") == ours,
        "the kernel counts {:?}, we {ours:?}",
        outcome.all("mismatches")
    );
    for (geometry, copy) in PAIRS {
        for slot in 0..geometry.members {
            ensure!(
                data(lab, geometry, slot)? == data(lab, copy, slot)?,
                "{}: the repaired bytes of slot {slot} are not the kernel's",
                geometry.name
            );
        }
    }
    Ok(())
}

/// One member of each row has wrong bytes: `repair --locate` puts them right, and the kernel finds what was
/// written, and nothing to complain about.
pub fn locate(lab: &Lab) -> Result<()> {
    for geometry in LIARS {
        fill(lab, geometry)?;
        let before: Vec<Vec<u8>> =
            (0..geometry.members).map(|slot| data(lab, geometry, slot)).collect::<Result<_>>()?;
        for (number, row) in (0..).zip(ROWS) {
            damage(lab, geometry, number % geometry.members, row * 4096 + 512 * (row % 8))?;
        }
        let server = Server::start(lab, geometry.name, &geometry.present(lab))?;
        let repaired = server.repair(&["--locate"]).context(geometry.name)?;
        server.stop()?;
        ensure!(repaired["corrected_sectors"] == ROWS.len(), "{}: {repaired}", geometry.name);
        for (slot, before) in (0..).zip(before) {
            let is_right = data(lab, geometry, slot)? == before;
            ensure!(is_right, "{}: slot {slot} does not hold what it held", geometry.name);
        }
    }
    let seen = lab.kernel_verifies("verify", LIARS, |_| members::first_writes(), &[])?;
    members::ensure_no_resync(&seen, LIARS)
}

/// Makes an array, in sync, with the first pattern in it.
fn fill(lab: &Lab, geometry: &Geometry) -> Result<()> {
    let devices = geometry.make_members(lab)?;
    server::create(lab, geometry, &devices, &["--assume-clean"]).context(geometry.name)?;
    let server = Server::start(lab, geometry.name, &devices)?;
    let mut client = server.client()?;
    pattern::write(&mut client, &members::first_writes()).context(geometry.name)?;
    drop(client);
    server.stop()
}

/// Where the data of a member begins, in bytes.
fn data_offset(lab: &Lab, geometry: &Geometry, slot: u32) -> Result<u64> {
    let file = geometry.file(lab, slot);
    let output = server::said(Command::new(&lab.pinstripe).args(["examine", "--json"]).arg(file))?;
    let examined: Value = serde_json::from_slice(&output.stdout)?;
    let sector = examined[0]["member"]["device"]["data_sector"].as_u64();
    Ok(sector.with_context(|| format!("examine printed {examined}"))? * 512)
}

/// Changes some bytes of a member's data, and no device will say so.
fn damage(lab: &Lab, geometry: &Geometry, slot: u32, at: u64) -> Result<()> {
    let at = data_offset(lab, geometry, slot)? + at;
    let file = File::options().read(true).write(true).open(geometry.file(lab, slot))?;
    let mut bytes = [0; 90];
    file.read_exact_at(&mut bytes, at)?;
    for (byte, change) in bytes.iter_mut().zip(1_u8..) {
        *byte ^= change;
    }
    file.write_all_at(&bytes, at)?;
    Ok(())
}

fn data(lab: &Lab, geometry: &Geometry, slot: u32) -> Result<Vec<u8>> {
    let start = usize::try_from(data_offset(lab, geometry, slot)?)?;
    Ok(fs::read(geometry.file(lab, slot))?.split_off(start))
}
