//! Arrays as the scenarios describe them, and the files of their members.

use std::path::PathBuf;

use anyhow::Result;

use super::Lab;
use super::machine::Machine;
use crate::pattern::Run;

/// A geometry to be tried.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// Unique in its scenario; the array's name and the start of its members' names.
    pub name: &'static str,
    /// 0, 4, 5 or 6.
    pub level: u32,
    /// Members, parity included.
    pub members: u32,
    /// KiB.
    pub chunk: u32,
    /// MD's name of it; empty for levels 0 and 4.
    pub layout: &'static str,
    /// Whether the array has an internal bitmap.
    pub bitmap: bool,
    /// Bytes of a logical block of the members, 512 or 4096.
    pub logical_block: u32,
}

/// Bytes of every member: small, so that a resync under emulation takes a second.
pub const MEMBER_BYTES: u64 = 12 << 20;

impl Geometry {
    /// A geometry with 512-byte blocks and a bitmap.
    pub const fn new(name: &'static str, level: u32, members: u32, chunk: u32, layout: &'static str) -> Self {
        Self { name, level, members, chunk, layout, bitmap: true, logical_block: 512 }
    }

    /// The same without a bitmap.
    #[must_use]
    pub const fn without_bitmap(mut self) -> Self {
        self.bitmap = false;
        self
    }

    /// The same on members with 4096-byte blocks.
    #[must_use]
    pub const fn with_4k_blocks(mut self) -> Self {
        self.logical_block = 4096;
        self
    }

    /// Makes the member files, sparse.
    pub fn make_members(&self, lab: &Lab) -> Result<Vec<PathBuf>> {
        (0..self.members)
            .map(|slot| lab.sparse_file(&format!("{}-{slot}.img", self.name), MEMBER_BYTES))
            .collect()
    }

    /// Attaches the member files to a machine as `/dev/member/NAME-SLOT`.
    pub fn attach(&self, lab: &Lab, machine: &mut Machine) {
        for slot in 0..self.members {
            let name = format!("{}-{slot}", self.name);
            let file = lab.directory.join(format!("{name}.img"));
            machine.disk(&name, &file, self.logical_block);
        }
    }

    /// One line for the guest's scripts: name, level, members, chunk, layout (`-` if none), bitmap.
    pub fn line(&self) -> String {
        let layout = if self.layout.is_empty() { "-" } else { self.layout };
        let bitmap = if self.bitmap { "internal" } else { "none" };
        format!("{} {} {} {} {layout} {bitmap}", self.name, self.level, self.members, self.chunk)
    }
}

/// Lines of several geometries.
pub fn lines(geometries: &[Geometry]) -> String {
    geometries.iter().map(Geometry::line).collect::<Vec<_>>().join("\n")
}

/// What is written first: the start of the array over many stripes, and a stretch in the middle.
pub fn first_writes() -> Vec<Run> {
    vec![Run::new(0..640, 1), Run::new(4000..4100, 1)]
}
