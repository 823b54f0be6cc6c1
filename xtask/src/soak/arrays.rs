//! The arrays of the soaks, and what must be true of each after every death.

use anyhow::{Result, ensure};

use crate::pattern::{self, Run};
use crate::vm::members::Geometry;
use crate::vm::server::Server;
use crate::writer::Stretch;

/// An array and how it is served.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// Its members, and what gets it over a death under writes.
    pub geometry: Geometry,
    /// Shards of its server.
    pub shards: &'static str,
}

impl Subject {
    const fn new(geometry: Geometry, shards: &'static str) -> Self {
        Self { geometry, shards }
    }

    /// Whether a log closes its write hole, so that it starts dirty and degraded with everything that was
    /// acknowledged. Without one that is refused, and rightly.
    pub fn closes_hole(&self) -> bool {
        self.geometry.policy.is_some() || self.geometry.journal_bytes > 0
    }

    /// Members that may be missing.
    pub fn redundancy(&self) -> u64 {
        if self.geometry.level == 6 { 2 } else { 1 }
    }
}

/// Bytes of a journal.
const JOURNAL_BYTES: u64 = 16 << 20;

/// Levels, chunks, bitmaps, logs and shards.
pub const SUBJECTS: &[Subject] = &[
    Subject::new(Geometry::new("s4", 4, 4, 64, ""), "1"),
    Subject::new(Geometry::new("j5", 5, 4, 64, "left-symmetric").with_journal_of(JOURNAL_BYTES), "2"),
    Subject::new(Geometry::new("s6", 6, 5, 32, "left-symmetric"), "2"),
    Subject::new(Geometry::new("p5", 5, 4, 64, "left-symmetric").with_policy("ppl"), "2"),
    Subject::new(Geometry::new("q6", 6, 5, 16, "left-symmetric").with_policy("double-parity-log"), "2"),
    Subject::new(Geometry::new("s5", 5, 4, 64, "left-symmetric"), "2"),
    Subject::new(Geometry::new("s5-c16", 5, 5, 16, "left-asymmetric").without_bitmap(), "1"),
    Subject::new(Geometry::new("j6", 6, 5, 16, "left-symmetric").with_journal_of(JOURNAL_BYTES), "1"),
    Subject::new(Geometry::new("s5-c512", 5, 3, 512, "right-symmetric"), "1"),
    Subject::new(Geometry::new("p5-c16", 5, 3, 16, "right-asymmetric").with_policy("ppl"), "1"),
    Subject::new(Geometry::new("s6-c4", 6, 6, 4, "left-symmetric-6").without_bitmap(), "1"),
    Subject::new(Geometry::new("q6-ddf", 6, 4, 64, "ddf-N-continue").with_policy("double-parity-log"), "1"),
    Subject::new(Geometry::new("s6-ddf", 6, 4, 64, "ddf-N-continue"), "2"),
];

/// The subjects with `only` in their names.
pub fn chosen(only: Option<&str>) -> Result<Vec<Subject>> {
    let is_chosen = |subject: &&Subject| only.is_none_or(|part| subject.geometry.name.contains(part));
    let chosen: Vec<Subject> = SUBJECTS.iter().filter(is_chosen).copied().collect();
    ensure!(!chosen.is_empty(), "no array has {only:?} in its name");
    Ok(chosen)
}

/// The first `blocks` blocks of the array must hold what its writers left, and zeroes elsewhere.
pub fn verify(server: &Server, stretches: &[Stretch], blocks: u64) -> Result<()> {
    let runs: Vec<Run> = stretches.iter().flat_map(Stretch::runs).collect();
    pattern::verify(&mut server.client()?, blocks, &runs)
}

/// The array must come in sync, its parity must match, and then [`verify`]; what was undecided is decided
/// now.
pub fn verify_in_sync(server: &Server, stretches: &mut [Stretch], blocks: u64) -> Result<()> {
    server.wait_until_in_sync()?;
    server.check()?;
    verify(server, stretches, blocks)?;
    let mut client = server.client()?;
    stretches.iter_mut().try_for_each(|stretch| stretch.settle(&mut client))
}
