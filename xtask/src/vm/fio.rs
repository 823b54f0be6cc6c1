//! fio with verification over NBD, on the host: every level, complete and degraded.

use std::process::Command;

use anyhow::{Context, Result};

use super::Lab;
use super::members::Geometry;
use super::server::{self, Server, said};

const GEOMETRIES: &[Geometry] = &[
    Geometry::new("v0", 0, 4, 64, "").with_members_of(32 << 20),
    Geometry::new("v4", 4, 4, 64, "").with_members_of(32 << 20),
    Geometry::new("v5", 5, 4, 64, "left-symmetric").with_members_of(32 << 20),
    Geometry::new("v6", 6, 6, 16, "left-symmetric").with_members_of(32 << 20),
];

/// Random writes of mixed sizes, verified; then the same with as many members failed as the level bears.
pub fn verify(lab: &Lab) -> Result<()> {
    for geometry in GEOMETRIES {
        let devices = geometry.make_members(lab)?;
        server::create(lab, geometry, &devices, &[])?;
        let server = Server::start(lab, geometry.name, &devices)?;
        write_and_verify(&server, 1).with_context(|| format!("{}, complete", geometry.name))?;
        let redundancy = match geometry.level {
            0 => 0,
            6 => 2,
            _ => 1,
        };
        for slot in 0..redundancy {
            server.fail(slot * 2)?;
            write_and_verify(&server, 2 + u64::from(slot))
                .with_context(|| format!("{}, {} members lost", geometry.name, slot + 1))?;
        }
        server.stop().context(geometry.name)?;
    }
    Ok(())
}

/// Random writes of mixed sizes, which are read back.
pub fn write_and_verify(server: &Server, seed: u64) -> Result<()> {
    let mut fio = Command::new("fio");
    fio.args(["--name=verify", "--ioengine=nbd", "--uri"]).arg(server.uri());
    fio.args(["--rw=randwrite", "--bsrange=512-192k", "--bs_unaligned=0", "--size=64m", "--iodepth=16"]);
    fio.args(["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--minimal"]);
    fio.arg(format!("--randseed={seed}"));
    said(&mut fio).map(|_| ())
}
