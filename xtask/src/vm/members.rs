//! Arrays as the scenarios describe them, and the files of their members.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::Lab;
use super::machine::{Machine, Outcome};
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
    /// The consistency policy, if it is another.
    pub policy: Option<&'static str>,
    /// Bytes of a logical block of the members, 512 or 4096.
    pub logical_block: u32,
    /// Slots that lose their members before anything is written.
    pub missing: &'static [u32],
    /// Bytes of every member.
    pub member_bytes: u64,
    /// Bytes of the journal device, 0 for none.
    pub journal_bytes: u64,
}

/// Bytes of a member unless told: small, so that a resync under emulation takes a second.
pub const MEMBER_BYTES: u64 = 12 << 20;

/// What a clean assembly reads of a member at most: superblock, bitmap, bad-block log, and what the disk
/// layer peeks at.
const ASSEMBLY_SECTORS_MAX: u64 = 1000;

impl Geometry {
    /// A complete array with 512-byte blocks and, unless its level is 0, a bitmap.
    pub const fn new(name: &'static str, level: u32, members: u32, chunk: u32, layout: &'static str) -> Self {
        Self {
            name,
            level,
            members,
            chunk,
            layout,
            bitmap: level != 0,
            policy: None,
            logical_block: 512,
            missing: &[],
            member_bytes: MEMBER_BYTES,
            journal_bytes: 0,
        }
    }

    /// The same without a bitmap.
    #[must_use]
    pub const fn without_bitmap(mut self) -> Self {
        self.bitmap = false;
        self
    }

    /// The same with another consistency policy than a bitmap.
    #[must_use]
    pub const fn with_policy(mut self, policy: &'static str) -> Self {
        self.bitmap = false;
        self.policy = Some(policy);
        self
    }

    /// The same on members with 4096-byte blocks.
    #[must_use]
    pub const fn with_4k_blocks(mut self) -> Self {
        self.logical_block = 4096;
        self
    }

    /// The same without these slots' members.
    #[must_use]
    pub const fn degraded(mut self, missing: &'static [u32]) -> Self {
        self.missing = missing;
        self
    }

    /// The same with larger members.
    #[must_use]
    pub const fn with_members_of(mut self, bytes: u64) -> Self {
        self.member_bytes = bytes;
        self
    }

    /// The same with a journal device, and so without a bitmap.
    #[must_use]
    pub const fn with_journal_of(mut self, bytes: u64) -> Self {
        self.journal_bytes = bytes;
        self.bitmap = false;
        self
    }

    /// The file of the journal device, if there is one.
    pub fn journal(&self, lab: &Lab) -> Option<PathBuf> {
        (self.journal_bytes > 0).then(|| lab.directory.join(format!("{}-journal.img", self.name)))
    }

    /// Makes the member files, sparse, one for each slot, and the journal's.
    pub fn make_members(&self, lab: &Lab) -> Result<Vec<PathBuf>> {
        if self.journal_bytes > 0 {
            lab.sparse_file(&format!("{}-journal.img", self.name), self.journal_bytes)?;
        }
        (0..self.members).map(|slot| lab.sparse_file(&self.file_name(slot), self.member_bytes)).collect()
    }

    /// The member files that are not missing, and the journal's.
    pub fn present(&self, lab: &Lab) -> Vec<PathBuf> {
        (0..self.members)
            .filter(|slot| !self.missing.contains(slot))
            .map(|slot| self.file(lab, slot))
            .chain(self.journal(lab))
            .collect()
    }

    /// The member file of a slot.
    pub fn file(&self, lab: &Lab, slot: u32) -> PathBuf {
        lab.directory.join(self.file_name(slot))
    }

    /// The name of a slot's member file in the scenario's folder.
    pub fn file_name(&self, slot: u32) -> String {
        format!("{}-{slot}.img", self.name)
    }

    /// Attaches all member files to a machine as `/dev/member/NAME-SLOT`, and says what the array must hold.
    pub fn attach(&self, lab: &Lab, machine: &mut Machine, expected: &[Run]) {
        for slot in 0..self.members {
            machine.disk(&format!("{}-{slot}", self.name), &self.file(lab, slot), self.logical_block);
        }
        if let Some(journal) = self.journal(lab) {
            machine.disk(&format!("{}-journal", self.name), &journal, self.logical_block);
        }
        machine.file(&format!("expected/{}", self.name), crate::pattern::list(expected).into_bytes());
    }

    /// One line for the guest's scripts: name, level, members, chunk, layout, bitmap, missing slots (`-` for
    /// none).
    pub fn line(&self) -> String {
        let layout = if self.layout.is_empty() { "-" } else { self.layout };
        let bitmap = self.policy.unwrap_or(if self.bitmap { "internal" } else { "none" });
        let missing: Vec<String> = self.missing.iter().map(ToString::to_string).collect();
        let missing = if missing.is_empty() { "-".to_owned() } else { missing.join(",") };
        format!("{} {} {} {} {layout} {bitmap} {missing}", self.name, self.level, self.members, self.chunk)
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

/// What is written over it: single blocks and short runs, which cost partial stripe writes.
pub fn second_writes() -> Vec<Run> {
    [1..3, 7..8, 18..19, 33..36, 64..65, 100..102, 255..256, 300..301, 411..412, 500..501, 511..512, 639..641]
        .into_iter()
        .map(|blocks| Run::new(blocks, 2))
        .collect()
}

/// Sectors that the kernel read of an array's first member while it assembled and resynced.
pub fn sectors_synced(outcome: &Outcome, geometry: &Geometry) -> Result<u64> {
    outcome
        .all("synced")
        .iter()
        .find_map(|line| line.strip_prefix(geometry.name)?.strip_prefix(' ')?.parse().ok())
        .with_context(|| format!("{}: the guest counted no resync", geometry.name))
}

/// Fails if the kernel resynced an array at assembly: its scrub would then judge the kernel's parity, not
/// ours.
pub fn ensure_no_resync(outcome: &Outcome, geometries: &[Geometry]) -> Result<()> {
    for geometry in geometries.iter().filter(|geometry| geometry.level != 0) {
        let synced = sectors_synced(outcome, geometry)?;
        ensure!(synced < ASSEMBLY_SECTORS_MAX, "{}: {synced} sectors read at assembly", geometry.name);
    }
    Ok(())
}
