//! The same members on both sides: arrays of ours in the kernel, arrays of mdadm's with us.

use anyhow::{Context, Result, ensure};

use super::Lab;
use super::machine::Machine;
use super::members::{self, Geometry};
use super::server::{self, Server};
use crate::pattern::{self, BLOCK, Run};

/// Arrays that our command creates.
const OURS: &[Geometry] = &[
    Geometry::new("l0-c4", 0, 4, 4, ""),
    Geometry::new("l0-c64", 0, 3, 64, ""),
    Geometry::new("l4-c16", 4, 4, 16, ""),
    Geometry::new("l4-c64", 4, 5, 64, "").without_bitmap(),
    Geometry::new("l5-ls", 5, 4, 64, "left-symmetric"),
    Geometry::new("l5-ls-c1m", 5, 3, 1024, "left-symmetric"),
    Geometry::new("l5-ls-4kn", 5, 4, 64, "left-symmetric").with_4k_blocks(),
    Geometry::new("l5-la", 5, 4, 16, "left-asymmetric").without_bitmap(),
    Geometry::new("l5-ra", 5, 3, 4, "right-asymmetric"),
    Geometry::new("l5-rs", 5, 5, 128, "right-symmetric"),
    Geometry::new("l5-pf", 5, 4, 16, "parity-first"),
    Geometry::new("l5-pl", 5, 4, 16, "parity-last"),
    Geometry::new("l6-ls", 6, 5, 64, "left-symmetric"),
    Geometry::new("l6-la", 6, 4, 16, "left-asymmetric").without_bitmap(),
    Geometry::new("l6-ra", 6, 6, 4, "right-asymmetric"),
    Geometry::new("l6-rs", 6, 5, 256, "right-symmetric"),
    Geometry::new("l6-pf", 6, 5, 16, "parity-first"),
    Geometry::new("l6-pl", 6, 5, 16, "parity-last"),
    Geometry::new("l6-dzr", 6, 5, 16, "ddf-zero-restart"),
    Geometry::new("l6-dnr", 6, 5, 16, "ddf-N-restart"),
    Geometry::new("l6-dnc", 6, 5, 16, "ddf-N-continue"),
    Geometry::new("l6-la6", 6, 5, 16, "left-asymmetric-6"),
    Geometry::new("l6-ra6", 6, 5, 16, "right-asymmetric-6"),
    Geometry::new("l6-ls6", 6, 5, 16, "left-symmetric-6"),
    Geometry::new("l6-rs6", 6, 5, 16, "right-symmetric-6"),
    Geometry::new("l6-pf6", 6, 5, 16, "parity-first-6"),
];

/// Arrays of ours to which mdadm gives another shape, with their metadata's versions.
const GROWN: &[(Geometry, &str)] = &[
    (Geometry::new("g5", 5, 4, 64, "left-symmetric"), "1.2"),
    (Geometry::new("g5-at-end", 5, 4, 64, "left-symmetric").without_bitmap(), "1.0"),
    (Geometry::new("g6", 6, 5, 16, "left-symmetric"), "1.1"),
];

/// Arrays that mdadm creates, and of which it loses members.
const THEIRS: &[Geometry] = &[
    Geometry::new("m0", 0, 4, 64, ""),
    Geometry::new("m4", 4, 4, 16, ""),
    Geometry::new("m4-lost", 4, 4, 64, "").degraded(&[1]),
    Geometry::new("m5", 5, 4, 64, "left-symmetric"),
    Geometry::new("m5-plain", 5, 5, 16, "right-asymmetric").without_bitmap(),
    Geometry::new("m5-c512", 5, 3, 512, "left-symmetric"),
    Geometry::new("m5-lost", 5, 4, 64, "left-symmetric").degraded(&[2]),
    Geometry::new("m5-lost-plain", 5, 4, 16, "left-asymmetric").without_bitmap().degraded(&[0]),
    Geometry::new("m6", 6, 5, 64, "left-symmetric"),
    Geometry::new("m6-ddf", 6, 5, 16, "ddf-N-continue"),
    Geometry::new("m6-lost", 6, 5, 16, "left-symmetric").degraded(&[1]),
    Geometry::new("m6-lost-two", 6, 5, 64, "left-symmetric").degraded(&[0, 3]),
    Geometry::new("m6-lost-two-ls6", 6, 5, 16, "left-symmetric-6").degraded(&[2, 4]),
];

/// The arrays of [`THEIRS`] that we rebuild ourselves; the kernel rebuilds the others.
const REBUILT_BY_US: &[&str] = &["m4-lost", "m5-lost-plain", "m6-lost-two"];

/// Created by us and written over NBD; equal in the kernel, which scrubs them and writes; equal again with
/// us.
pub fn ours(lab: &Lab) -> Result<()> {
    for geometry in OURS {
        let devices = geometry.make_members(lab)?;
        server::create(lab, geometry, &devices, &[]).context(geometry.name)?;
        let server = Server::start(lab, geometry.name, &devices)?;
        let mut client = server.client()?;
        pattern::write(&mut client, &members::first_writes()).context(geometry.name)?;
        drop(client);
        server.wait_until_in_sync().context(geometry.name)?;
        server.stop()?;
    }
    let second = members::second_writes();
    let seen = lab.kernel_verifies("kernel", OURS, |_| members::first_writes(), &second)?;
    members::ensure_no_resync(&seen, OURS)?;
    let both = [members::first_writes(), second].concat();
    for geometry in OURS {
        serve_and_verify(lab, geometry, &both, &[])?;
    }
    grown(lab)
}

/// Created by us on a part of their members; mdadm removes bitmaps, takes all of the members, and one more;
/// equal with us.
fn grown(lab: &Lab) -> Result<()> {
    let first = members::first_writes();
    let mut machine = Machine::new("grow", include_str!("../../vm/mdadm-grow.sh"));
    let mut wider = Vec::new();
    for (geometry, version) in GROWN {
        let with_another = Geometry { members: geometry.members + 1, bitmap: false, ..*geometry };
        let devices = with_another.make_members(lab)?;
        let devices = &devices[..devices.len() - 1];
        server::create(lab, geometry, devices, &["--metadata", version, "--size", "8M"])
            .context(geometry.name)?;
        let server = Server::start(lab, geometry.name, devices)?;
        let mut client = server.client()?;
        pattern::write(&mut client, &first).context(geometry.name)?;
        drop(client);
        server.wait_until_in_sync().context(geometry.name)?;
        server.stop()?;
        with_another.attach(lab, &mut machine, &first);
        wider.push(with_another);
    }
    let arrays: Vec<Geometry> = GROWN.iter().map(|(geometry, _)| *geometry).collect();
    let outcome = lab.boot(machine.modules(super::LEVELS).variable("ARRAYS", &members::lines(&arrays)))?;
    ensure!(outcome.all("grown").len() == GROWN.len(), "not every array has grown: {outcome:?}");
    wider.iter().try_for_each(|geometry| serve_and_verify(lab, geometry, &first, &[]))
}

/// Created by mdadm, complete and degraded; equal with us, written and partly rebuilt by us; equal in the
/// kernel.
pub fn theirs(lab: &Lab) -> Result<()> {
    let first = members::first_writes();
    let mut create = Machine::new("create", include_str!("../../vm/mdadm-create.sh"));
    for geometry in THEIRS {
        geometry.make_members(lab)?;
        geometry.attach(lab, &mut create, &first);
    }
    let made = lab.boot(create.modules(super::LEVELS).variable("ARRAYS", &members::lines(THEIRS)))?;
    ensure!(made.all("made").len() == THEIRS.len(), "not every array was made: {made:?}");
    let second = members::second_writes();
    let both = [first.clone(), second.clone()].concat();
    let mut now = Vec::new();
    for geometry in THEIRS {
        serve_and_verify(lab, geometry, &first, &second)?;
        if REBUILT_BY_US.contains(&geometry.name) {
            rebuild(lab, geometry, &both).with_context(|| format!("{}, rebuilding", geometry.name))?;
            now.push(geometry.degraded(&[]));
        } else {
            now.push(*geometry);
        }
    }
    let seen = lab.kernel_verifies("kernel", &now, |_| both.clone(), &[])?;
    members::ensure_no_resync(&seen, &now)
}

/// The members that are there must hold `expected`; then `writes` go to them. A complete array must scrub
/// clean.
fn serve_and_verify(lab: &Lab, geometry: &Geometry, expected: &[Run], writes: &[Run]) -> Result<()> {
    let server = Server::start(lab, geometry.name, &geometry.present(lab))?;
    let mut client = server.client()?;
    let blocks = client.size / BLOCK as u64;
    pattern::verify(&mut client, blocks, expected).context(geometry.name)?;
    pattern::write(&mut client, writes).context(geometry.name)?;
    drop(client);
    if geometry.level != 0 && geometry.missing.is_empty() {
        server.wait_until_in_sync().context(geometry.name)?;
        server.check().context(geometry.name)?;
    }
    server.stop()
}

/// Puts fresh members in for the missing ones, one after the other, and scrubs.
fn rebuild(lab: &Lab, geometry: &Geometry, expected: &[Run]) -> Result<()> {
    let server = Server::start(lab, geometry.name, &geometry.present(lab))?;
    for slot in geometry.missing {
        let name = geometry.file_name(*slot);
        std::fs::remove_file(lab.directory.join(&name))?;
        let device = lab.sparse_file(&name, geometry.member_bytes)?;
        server.add(&device)?;
        server.wait_until_rebuilt(&device)?;
    }
    server.wait_until_in_sync()?;
    let mut client = server.client()?;
    let blocks = client.size / BLOCK as u64;
    pattern::verify(&mut client, blocks, expected)?;
    drop(client);
    server.check()?;
    server.stop()
}
