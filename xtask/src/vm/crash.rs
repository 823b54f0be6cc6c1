//! One side dies in the middle of writes, the other one takes over.
//!
//! What must hold: a block holds its last acknowledged write; a write that was cut leaves each sector old or
//! new; after the resync from the dead side's bitmap the scrub counts nothing.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::Lab;
use super::machine::Machine;
use super::members::{self, Geometry};
use super::server::{self, Server};
use crate::golden::superblock::Superblock;
use crate::nbd::Client;
use crate::pattern::{self, BLOCK, Run};
use crate::writer::Stretch;

/// Arrays of the kernel that lose power.
pub const KERNEL_ARRAYS: &[Geometry] = &[
    Geometry::new("k5", 5, 4, 16, "left-symmetric"),
    Geometry::new("k5-plain", 5, 4, 64, "left-asymmetric").without_bitmap(),
    Geometry::new("k6", 6, 5, 16, "left-symmetric"),
];

/// Arrays of ours that lose their server. Members of 256 MiB have four bitmap regions of 64 MiB.
const OUR_ARRAYS: &[Geometry] = &[
    Geometry::new("o4", 4, 4, 64, ""),
    Geometry::new("o5", 5, 4, 64, "left-symmetric").with_members_of(256 << 20),
    Geometry::new("o5-plain", 5, 5, 16, "left-symmetric").without_bitmap(),
    Geometry::new("o6", 6, 5, 32, "left-symmetric").with_members_of(256 << 20),
];

/// Arrays of ours that lose their server while members are missing.
const DEGRADED_ARRAYS: &[Geometry] = &[
    Geometry::new("d5", 5, 4, 64, "left-symmetric").degraded(&[1]),
    Geometry::new("d6", 6, 5, 16, "left-symmetric").degraded(&[0]),
];

/// Blocks that the kernel's writers write over and over.
const KERNEL_BLOCKS: &[Range<u64>] = &[0..700, 2000..2064, 5003..5004, 8000..8300];
/// Writers on one array of ours, each with a connection of its own.
const WRITERS: u64 = 4;
/// Blocks of one of our writers.
const WRITER_BLOCKS: u64 = 500;
/// Acknowledged writes of each array before the server is killed, and how long that may take.
const WRITES_MIN: u64 = 400;
const PATIENCE: Duration = Duration::from_mins(2);

/// The kernel writes to `geometries` until its power is cut: what each array may hold now.
pub fn cut_the_kernel(lab: &Lab, geometries: &[Geometry]) -> Result<BTreeMap<&'static str, Vec<Run>>> {
    let blocks: Vec<String> =
        KERNEL_BLOCKS.iter().map(|range| format!("{}:{}", range.start, range.end)).collect();
    let mut machine = Machine::new("cut", include_str!("../../vm/kernel-cut.sh"));
    for geometry in geometries {
        geometry.make_members(lab)?;
        geometry.attach(lab, &mut machine, &[]);
    }
    machine = machine.variable("ARRAYS", &members::lines(geometries)).variable("BLOCKS", &blocks.join(" "));
    let outcome = lab.boot(machine.modules(super::LEVELS))?;
    geometries
        .iter()
        .map(|geometry| {
            let acknowledged = outcome
                .all("acknowledged")
                .iter()
                .filter_map(|line| line.strip_prefix(geometry.name)?.strip_prefix(' ')?.parse::<u8>().ok())
                .max()
                .with_context(|| format!("{}: no write was acknowledged before the cut", geometry.name))?;
            ensure!(acknowledged < 88, "{}: the writer was done before the cut", geometry.name);
            ensure!(is_dirty(lab, geometry)?, "{} is clean: nothing was cut", geometry.name);
            // The word of the next generation's end may have been lost with the power.
            let generations = vec![acknowledged, acknowledged + 1, acknowledged + 2];
            let runs = KERNEL_BLOCKS
                .iter()
                .map(|blocks| Run { blocks: blocks.clone(), generations: generations.clone() })
                .collect();
            Ok((geometry.name, runs))
        })
        .collect()
}

/// The kernel is cut, we serve and resync, then the kernel looks once more.
pub fn kernel_dies(lab: &Lab) -> Result<()> {
    let left = cut_the_kernel(lab, KERNEL_ARRAYS)?;
    let mut held = BTreeMap::new();
    for geometry in KERNEL_ARRAYS {
        let server = Server::start(lab, geometry.name, &geometry.present(lab))?;
        let mut client = server.client()?;
        let blocks = client.size / BLOCK as u64;
        let name = geometry.name;
        pattern::verify(&mut client, blocks, &left[name]).context(name)?;
        server.wait_until_in_sync().context(name)?;
        server.check().context(name)?;
        pattern::verify(&mut client, blocks, &left[name]).context(name)?;
        pattern::write(&mut client, &members::second_writes())?;
        drop(client);
        server.stop()?;
        held.insert(name, [left[name].clone(), members::second_writes()].concat());
    }
    lab.kernel_verifies("verify", KERNEL_ARRAYS, |geometry| held[geometry.name].clone(), &[]).map(|_| ())
}

/// Our server is killed, the kernel resyncs from our bitmap, then we look once more.
pub fn our_server_dies(lab: &Lab) -> Result<()> {
    let mut left = BTreeMap::new();
    for geometry in OUR_ARRAYS {
        let devices = geometry.make_members(lab)?;
        server::create(lab, geometry, &devices, &["--assume-clean"])?;
        let server = Server::start(lab, geometry.name, &devices)?;
        let runs = write_until_killed(server).context(geometry.name)?;
        ensure!(is_dirty(lab, geometry)?, "{} is clean: nothing was cut", geometry.name);
        left.insert(geometry.name, runs);
    }
    let outcome = lab.kernel_verifies("verify", OUR_ARRAYS, |geometry| left[geometry.name].clone(), &[])?;
    for geometry in OUR_ARRAYS {
        let synced = members::sectors_synced(&outcome, geometry)?;
        let is_large = geometry.member_bytes > members::MEMBER_BYTES;
        ensure!(synced > 1000, "{}: the kernel read {synced} sectors: no resync", geometry.name);
        ensure!(
            !is_large || synced < geometry.member_bytes / 512 * 7 / 8,
            "{}: the kernel read {synced} sectors: the bitmap did not save it any",
            geometry.name
        );
    }
    for geometry in OUR_ARRAYS {
        let server = Server::start(lab, geometry.name, &geometry.present(lab))?;
        let mut client = server.client()?;
        let blocks = client.size / BLOCK as u64;
        pattern::verify(&mut client, blocks, &left[geometry.name]).context(geometry.name)?;
        server.check().context(geometry.name)?;
        drop(client);
        server.terminate()?;
    }
    Ok(())
}

/// Our server is killed while a member is missing: neither side starts what may hold wrong reconstructions,
/// unless it is forced to.
pub fn degraded_server_dies(lab: &Lab) -> Result<()> {
    let mut refused = Machine::new("refused", include_str!("../../vm/kernel-refuses.sh"));
    for geometry in DEGRADED_ARRAYS {
        let devices = geometry.make_members(lab)?;
        server::create(lab, geometry, &devices, &["--assume-clean"])?;
        let server = Server::start(lab, geometry.name, &devices)?;
        for slot in geometry.missing {
            server.fail(*slot)?;
        }
        write_until_killed(server).context(geometry.name)?;
        geometry.attach(lab, &mut refused, &[]);
    }
    let seen =
        lab.boot(refused.modules(super::LEVELS).variable("ARRAYS", &members::lines(DEGRADED_ARRAYS)))?;
    ensure!(seen.all("refused").len() == DEGRADED_ARRAYS.len(), "not every array was tried: {seen:?}");
    for geometry in DEGRADED_ARRAYS {
        let name = geometry.name;
        let present = geometry.present(lab);
        match Server::start(lab, name, &present) {
            Ok(_) => bail!("{name}: served, though dirty and degraded"),
            Err(error) => ensure!(format!("{error:#}").contains("ended with"), "{name}: {error:#}"),
        }
        let server = Server::start_with(lab, name, &present, &["--force"]).context("with --force")?;
        ensure!(server.client()?.size > 0, "{name}: an empty export");
        server.stop()?;
    }
    Ok(())
}

/// Whether the first member says that the array was being written.
pub fn is_dirty(lab: &Lab, geometry: &Geometry) -> Result<bool> {
    Ok(Superblock::read(&fs::read(geometry.file(lab, 0))?)?.resync_offset != u64::MAX)
}

/// Writes from all sides until enough is acknowledged, kills the server under the writers, and says what may
/// stand.
pub fn write_until_killed(server: Server) -> Result<Vec<Run>> {
    let size = server.client()?.size / BLOCK as u64;
    let done = AtomicU64::new(0);
    let mut writers = Vec::new();
    for number in 0..WRITERS {
        // All writers stay in the first half, so that the second half's bitmap regions stay clean.
        let stretch = Stretch::new(number * (size / 2 / WRITERS), WRITER_BLOCKS);
        writers.push((server.client()?, stretch, number + 1));
    }
    std::thread::scope(|scope| {
        let done = &done;
        let write = |(mut client, mut stretch, seed): (Client, Stretch, u64)| {
            stretch.write_until_cut(&mut client, seed, done);
            stretch.runs()
        };
        let threads: Vec<_> = writers.into_iter().map(|writer| scope.spawn(move || write(writer))).collect();
        let start = Instant::now();
        while done.load(Ordering::Relaxed) < WRITES_MIN && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        server.kill()?;
        let mut runs = Vec::new();
        for thread in threads {
            let Ok(left) = thread.join() else { bail!("a writer panicked") };
            runs.extend(left);
        }
        ensure!(done.load(Ordering::Relaxed) >= WRITES_MIN, "only {done:?} writes in {PATIENCE:?}");
        Ok(runs)
    })
}
