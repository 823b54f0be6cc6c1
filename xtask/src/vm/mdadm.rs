//! Scenarios in which the kernel's MD is alone with its arrays: they try the harness itself.

use anyhow::{Result, ensure};

use super::Lab;
use super::crash;
use super::machine::Machine;
use super::members::{self, Geometry};

const GEOMETRIES: &[Geometry] = &[
    Geometry::new("l0", 0, 4, 64, ""),
    Geometry::new("l4", 4, 4, 16, ""),
    Geometry::new("l5", 5, 4, 64, "left-symmetric"),
    Geometry::new("l5-degraded", 5, 4, 64, "left-symmetric").degraded(&[1]),
    Geometry::new("l6", 6, 5, 16, "left-symmetric").without_bitmap().with_4k_blocks(),
    Geometry::new("l6-degraded", 6, 5, 16, "left-symmetric").degraded(&[0, 3]),
];

/// mdadm creates, the pattern is written; a second boot assembles, verifies, rebuilds and scrubs.
pub fn alone(lab: &Lab) -> Result<()> {
    let mut create = Machine::new("create", include_str!("../../vm/mdadm-create.sh"));
    for geometry in GEOMETRIES {
        geometry.make_members(lab)?;
        geometry.attach(lab, &mut create, &members::first_writes());
    }
    let made = lab.boot(create.modules(super::LEVELS).variable("ARRAYS", &members::lines(GEOMETRIES)))?;
    ensure!(made.all("made").len() == GEOMETRIES.len(), "not every array was made: {made:?}");
    lab.kernel_verifies("verify", GEOMETRIES, |_| members::first_writes(), &[]).map(|_| ())
}

/// The power fails while the kernel writes; after the next boot's resync every block is old or new and the
/// scrub is clean.
pub fn cut(lab: &Lab) -> Result<()> {
    let left = crash::cut_the_kernel(lab, crash::KERNEL_ARRAYS)?;
    let outcome =
        lab.kernel_verifies("verify", crash::KERNEL_ARRAYS, |geometry| left[geometry.name].clone(), &[])?;
    for geometry in crash::KERNEL_ARRAYS {
        let synced = members::sectors_synced(&outcome, geometry)?;
        let is_partial = synced < geometry.member_bytes / 512 / 2;
        ensure!(is_partial == geometry.bitmap, "{}: {synced} sectors read for the resync", geometry.name);
    }
    Ok(())
}
