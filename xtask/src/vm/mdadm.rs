//! Scenarios in which the kernel's MD is alone with its arrays: they try the harness.

use anyhow::{Context, Result, ensure};

use super::Lab;
use super::machine::Machine;
use super::members::{self, Geometry};
use crate::pattern;

const GEOMETRIES: &[Geometry] = &[
    Geometry::new("l0", 0, 4, 64, ""),
    Geometry::new("l4", 4, 4, 16, ""),
    Geometry::new("l5", 5, 4, 64, "left-symmetric"),
    Geometry::new("l6", 6, 5, 16, "left-symmetric").without_bitmap().with_4k_blocks(),
];

/// mdadm creates, the pattern is written; a second boot assembles, verifies and scrubs.
pub fn alone(lab: &Lab) -> Result<()> {
    let mut create = Machine::new("create", include_str!("../../vm/mdadm-create.sh"));
    let mut verify = Machine::new("verify", include_str!("../../vm/kernel-verify.sh"));
    for geometry in GEOMETRIES {
        geometry.make_members(lab)?;
        geometry.attach(lab, &mut create);
        geometry.attach(lab, &mut verify);
    }
    let first = members::first_writes();
    let lines = members::lines(GEOMETRIES);
    let levels = ["raid0", "raid456"];
    let made = lab.boot(
        create.modules(&levels).variable("ARRAYS", &lines).variable("WRITES", &pattern::list(&first)),
    )?;
    ensure!(made.last("made")? == "l6", "not every array was made: {made:?}");
    let seen = lab.boot(
        verify
            .modules(&levels)
            .variable("ARRAYS", &lines)
            .variable("EXPECTED", &pattern::list(&first))
            .variable("WRITES", ""),
    )?;
    for geometry in GEOMETRIES {
        let verified = seen.all("verified").contains(&geometry.name);
        verified.then_some(()).with_context(|| format!("{} was not verified", geometry.name))?;
    }
    Ok(())
}
