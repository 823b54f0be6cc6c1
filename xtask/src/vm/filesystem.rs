//! A file system on our arrays, over the kernel's own NBD client.

use anyhow::{Context, Result, ensure};

use super::Lab;
use super::machine::Machine;
use super::members::Geometry;
use super::server::{self, Server};

const GEOMETRIES: &[Geometry] = &[
    Geometry::new("e5", 5, 4, 64, "left-symmetric").with_members_of(64 << 20),
    Geometry::new("e6", 6, 5, 64, "left-symmetric").with_members_of(64 << 20),
];

/// ext4 over nbd-client: mkfs, copy, unmount, fsck clean, equal copies; complete and with a member lost
/// half-way.
pub fn ext4(lab: &Lab) -> Result<()> {
    let mut servers = Vec::new();
    let mut exports = Vec::new();
    for geometry in GEOMETRIES {
        let devices = geometry.make_members(lab)?;
        server::create(lab, geometry, &devices, &["--assume-clean"])?;
        let server = Server::start(lab, geometry.name, &devices)?;
        exports.push(format!("{} {}", geometry.name, server.port));
        servers.push(server);
    }
    let boot = |name: &str, fresh: &str| {
        let machine = Machine::new(name, include_str!("../../vm/ext4.sh"))
            .modules(&["nbd", "ext4"])
            .variable("EXPORTS", &exports.join("\n"))
            .variable("FRESH", fresh);
        lab.boot(machine)
    };
    let made = boot("complete", "yes")?;
    ensure!(made.all("clean").len() == GEOMETRIES.len(), "not every file system was tried: {made:?}");
    for server in &servers {
        server.fail(1)?;
    }
    let again = boot("degraded", "no")?;
    ensure!(again.all("clean").len() == GEOMETRIES.len(), "not every file system was tried: {again:?}");
    for (server, geometry) in servers.into_iter().zip(GEOMETRIES) {
        server.stop().context(geometry.name)?;
    }
    Ok(())
}
