//! Journals: the kernel replays ours, and we the kernel's.
//!
//! A server that is killed leaves nearly everything on its members, for the host's page cache has it. So the
//! members are set back after the kill: each page is taken at random from before or after the writes. While
//! the journal's tail has not moved, no such mixture may lose anything, for everything since is in the
//! journal.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};

use super::Lab;
use super::crash::write_until_killed;
use super::machine::Machine;
use super::members::{self, Geometry};
use super::server::{self, Server};
use crate::pattern::{self, BLOCK, Run};

/// Arrays of ours; those with `-wb` in their names write back. Their journals are so large that no tail moves
/// within a scenario.
const OURS: &[Geometry] = &[
    Geometry::new("j4", 4, 4, 16, "").with_journal_of(256 << 20),
    Geometry::new("j5", 5, 4, 64, "left-symmetric").with_journal_of(256 << 20),
    Geometry::new("j6", 6, 5, 16, "left-symmetric").with_journal_of(256 << 20),
    Geometry::new("j5-wb", 5, 4, 16, "left-symmetric").with_journal_of(256 << 20),
    Geometry::new("j6-wb", 6, 5, 64, "left-symmetric").with_journal_of(256 << 20),
];

/// Arrays of the kernel; those with `-wb` in their names write back.
const KERNELS: &[Geometry] = &[
    Geometry::new("kj5", 5, 4, 64, "left-symmetric").with_journal_of(48 << 20),
    Geometry::new("kj5-wb", 5, 4, 16, "left-symmetric").with_journal_of(48 << 20),
    Geometry::new("kj6-wb", 6, 5, 16, "left-symmetric").with_journal_of(48 << 20),
];

/// Blocks that the kernel's writers write over and over: many in rows of which the rest isn't written.
const BLOCKS: &[std::ops::Range<u64>] = &[0..100, 2000..2064, 5003..5004, 8000..8030];

const DATA_OFFSET_AT: usize = 4096 + 128;
const JOURNAL_TAIL_AT: usize = 4096 + 152;

/// Our server is killed and its members are set back; the kernel replays, resyncs nothing, and finds all
/// consistent.
pub fn ours_in_kernel(lab: &Lab) -> Result<()> {
    let mut left = BTreeMap::new();
    for geometry in OURS {
        let devices = geometry.make_members(lab)?;
        server::create(lab, geometry, &devices, &["--assume-clean"])?;
        let server = serve(lab, geometry)?;
        let before: Vec<Vec<u8>> = devices.iter().map(fs::read).collect::<Result<_, _>>()?;
        let tail = number(&journal_head(lab, geometry)?, JOURNAL_TAIL_AT)?;
        let runs = write_until_killed(server).context(geometry.name)?;
        ensure!(
            number(&journal_head(lab, geometry)?, JOURNAL_TAIL_AT)? == tail,
            "{}: the tail has moved: the journal is too small for this scenario",
            geometry.name
        );
        let mut random = u64::from(geometry.level);
        for (device, before) in devices.iter().zip(&before) {
            let mut now = fs::read(device)?;
            let data = usize::try_from(number(&now, DATA_OFFSET_AT)? * 512)?;
            for (now, before) in now[data..].chunks_mut(BLOCK).zip(before[data..].chunks(BLOCK)) {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if random >> 62 != 0 {
                    now.copy_from_slice(before);
                }
            }
            fs::write(device, now)?;
        }
        left.insert(geometry.name, runs);
    }
    let seen = lab.kernel_verifies(
        "verify",
        OURS,
        |geometry| left[geometry.name].clone(),
        &members::second_writes(),
    )?;
    ensure_no_resync(&seen)?;
    for geometry in OURS {
        let expected = [left[geometry.name].clone(), members::second_writes()].concat();
        verify(lab, geometry, &expected)?;
    }
    Ok(())
}

/// The kernel is cut, we replay its journal, and the kernel looks once more.
pub fn kernels_with_us(lab: &Lab) -> Result<()> {
    let blocks: Vec<String> = BLOCKS.iter().map(|range| format!("{}:{}", range.start, range.end)).collect();
    let mut machine = Machine::new("cut", include_str!("../../vm/kernel-cut.sh"));
    for geometry in KERNELS {
        geometry.make_members(lab)?;
        geometry.attach(lab, &mut machine, &[]);
    }
    machine = machine.variable("ARRAYS", &members::lines(KERNELS)).variable("BLOCKS", &blocks.join(" "));
    let outcome = lab.boot(machine.modules(super::LEVELS))?;
    let mut held = BTreeMap::new();
    for geometry in KERNELS {
        let name = geometry.name;
        let acknowledged = outcome
            .all("acknowledged")
            .iter()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u8>().ok())
            .max()
            .with_context(|| format!("{name}: no write was acknowledged before the cut"))?;
        let generations = vec![acknowledged, acknowledged + 1, acknowledged + 2];
        let left: Vec<Run> = BLOCKS
            .iter()
            .map(|blocks| Run { blocks: blocks.clone(), generations: generations.clone() })
            .collect();
        verify(lab, geometry, &left)?;
        held.insert(name, left);
    }
    let seen = lab.kernel_verifies("verify", KERNELS, |geometry| held[geometry.name].clone(), &[])?;
    ensure_no_resync(&seen)
}

fn serve(lab: &Lab, geometry: &Geometry) -> Result<Server> {
    let mode = if geometry.name.ends_with("-wb") { "write-back" } else { "write-through" };
    Server::start_with(lab, geometry.name, &geometry.present(lab), &["--journal-mode", mode])
        .context(geometry.name)
}

/// Served by us, an array holds what is expected and scrubs clean.
fn verify(lab: &Lab, geometry: &Geometry, expected: &[Run]) -> Result<()> {
    let name = geometry.name;
    let server = serve(lab, geometry)?;
    let detail = server.detail()?;
    ensure!(detail["journal"]["failed"] == false, "{name}: {detail}");
    ensure!(detail["regions_to_resync"] == 0, "{name}: a resync is due: {detail}");
    let mut client = server.client()?;
    let blocks = client.size / BLOCK as u64;
    pattern::verify(&mut client, blocks, expected).context(name)?;
    drop(client);
    server.check().context(name)?;
    server.stop()
}

/// Replay reads some of each member, a resync all of it.
fn ensure_no_resync(seen: &super::machine::Outcome) -> Result<()> {
    for line in seen.all("synced") {
        let sectors = line.rsplit(' ').next().and_then(|word| word.parse::<u64>().ok());
        ensure!(sectors.is_some_and(|sectors| sectors < members::MEMBER_BYTES / 512 / 2), "a resync: {line}");
    }
    Ok(())
}

fn journal_head(lab: &Lab, geometry: &Geometry) -> Result<Vec<u8>> {
    let path = geometry.journal(lab).context("no journal")?;
    let mut head = vec![0; 8192];
    std::io::Read::read_exact(&mut fs::File::open(path)?, &mut head)?;
    Ok(head)
}

fn number(bytes: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from_le_bytes(bytes[at..at + 8].try_into()?))
}
