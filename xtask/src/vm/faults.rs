//! Real errors of the block layer under our server, which runs in the guest.

use anyhow::{Result, ensure};

use super::Lab;
use super::machine::Machine;
use super::members::{self, Geometry};

const GEOMETRIES: &[Geometry] =
    &[Geometry::new("f5", 5, 4, 64, "left-symmetric"), Geometry::new("f6", 6, 5, 64, "left-symmetric")];

/// dm-flakey refuses to read a chunk of a member: the read is served, the chunk is written anew.
pub fn read_error(lab: &Lab) -> Result<()> {
    in_the_guest(lab, include_str!("../../vm/read-error.sh"), "rewritten")
}

/// dm-error refuses all I/O of a part of a member: it is listed as bad, and the kernel heeds our list.
pub fn write_error(lab: &Lab) -> Result<()> {
    in_the_guest(lab, include_str!("../../vm/write-error.sh"), "listed")
}

/// A suspended device-mapper device hangs: the array goes on without it, and takes it back when its requests
/// are over.
pub fn hang(lab: &Lab) -> Result<()> {
    in_the_guest(lab, include_str!("../../vm/hang.sh"), "hung")
}

/// Disks that are pulled and put back are taken back, and others aren't.
pub fn replug(lab: &Lab) -> Result<()> {
    let geometry = Geometry::new("r6", 6, 5, 64, "left-symmetric");
    let mut machine = Machine::new("replug", include_str!("../../vm/replug.sh"));
    geometry.make_members(lab)?;
    geometry.attach(lab, &mut machine, &members::first_writes());
    machine.disk("copy", &lab.sparse_file("copy.img", geometry.member_bytes)?, geometry.logical_block);
    let machine = machine
        .modules(super::LEVELS)
        .modules(&["nbd"])
        .program("pinstripe", &lab.pinstripe)
        .variable("ARRAYS", &members::lines(&[geometry]));
    let outcome = lab.boot(machine)?;
    ensure!(outcome.all("replugged").len() == 4, "not everything was tried: {outcome:?}");
    Ok(())
}

fn in_the_guest(lab: &Lab, script: &'static str, proof: &str) -> Result<()> {
    let mut machine = Machine::new("fault", script);
    for geometry in GEOMETRIES {
        geometry.make_members(lab)?;
        geometry.attach(lab, &mut machine, &members::first_writes());
    }
    let machine = machine
        .modules(super::LEVELS)
        .modules(&["nbd", "dm-mod", "dm-flakey"])
        .program("pinstripe", &lab.pinstripe)
        .variable("ARRAYS", &members::lines(GEOMETRIES));
    let outcome = lab.boot(machine)?;
    ensure!(outcome.all(proof).len() == GEOMETRIES.len(), "not every array was tried: {outcome:?}");
    Ok(())
}
