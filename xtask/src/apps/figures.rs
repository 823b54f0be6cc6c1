//! `cargo xtask apps --figures`: pgbench and SQLite on an array beside one disk like its members.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::postgres::{self, Postgres};
use super::{Disk, GEOMETRY, Load, pipeline, sqlite};
use crate::bench::Spread;
use crate::mounts::{Loop, Mount};
use crate::net::page_of as of;
use crate::origin::{self, Origin};
use crate::vm::Lab;
use crate::vm::server::said;

const FOLDER: &str = "docs/results";
const JSON: &str = "applications.json";
/// Seconds of pgbench in a run.
const SECONDS: u32 = 10;
/// Clients of pgbench.
const CLIENTS: u32 = 8;
/// pgbench's scale: 100,000 accounts each, 15 MB.
const SCALE: u32 = 4;
/// Transactions of SQLite in a run.
const ROWS: u32 = 2000;

/// What a database lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Below {
    OneDisk,
    Array,
    DegradedArray,
}

const ALL: [(Below, &str); 3] = [
    (Below::OneDisk, "one disk"),
    (Below::Array, "array"),
    (Below::DegradedArray, "array, a member missing"),
];

/// One run of both databases.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Run {
    below: Below,
    pgbench_per_second: f64,
    /// Percentiles of a transaction's latency: 50, 99, 99.9.
    pgbench_ms: [f64; 3],
    sqlite_per_second: f64,
}

/// All that was measured.
#[derive(Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    origin: Origin,
    runs: Vec<Run>,
}

/// Measures so many rounds, and writes the page. With none, the page is written again.
pub fn run(root: &Path, base: &Path, scratch: &Path, rounds: u32) -> Result<()> {
    let folder = root.join(FOLDER);
    let json = folder.join(JSON);
    let kept = if rounds == 0 {
        origin::load(&json)?.context("nothing was measured yet")?
    } else {
        let mut kept = Kept { origin: Origin::now(root)?, runs: Vec::new() };
        for round in 1..=rounds {
            for (below, name) in ALL {
                let run = measure(base, scratch, below).with_context(|| name.to_owned())?;
                println!(
                    "{round} {name:24} pgbench {:5.0}/s, p99 {:.1} ms; SQLite {:5.0}/s",
                    run.pgbench_per_second, run.pgbench_ms[1], run.sqlite_per_second
                );
                kept.runs.push(run);
            }
        }
        kept
    };
    origin::save(&kept, &json)?;
    let path = folder.join("applications.md");
    fs::write(&path, page(&kept)).with_context(|| format!("write {}", path.display()))
}

fn measure(base: &Path, scratch: &Path, below: Below) -> Result<Run> {
    let lab = Lab::new(base, "apps-figures")?;
    if below == Below::OneDisk {
        let file = GEOMETRY.make_members(&lab)?.swap_remove(0);
        return on(&file, scratch);
    }
    let disk = Disk::new(&lab)?;
    let server = disk.serve()?;
    if below == Below::DegradedArray {
        server.fail(0)?;
    }
    let run = on(&disk.file, scratch)?;
    if below == Below::DegradedArray {
        server.add(&disk.devices[0])?;
    }
    server.wait_until_in_sync()?;
    server.check()?;
    server.stop()?;
    Ok(Run { below, ..run })
}

/// Both databases on ext4 on this file.
fn on(file: &Path, scratch: &Path) -> Result<Run> {
    let device = Loop::over(file)?;
    said(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(device.path()))?;
    let folder = scratch.join("disk");
    fs::create_dir_all(&folder)?;
    let _mount = Mount::of(&device, &folder)?;
    let sqlite_per_second = sqlite(&folder)?;
    let (pgbench_per_second, pgbench_ms) = pgbench(&folder, scratch)?;
    Ok(Run { below: Below::OneDisk, pgbench_per_second, pgbench_ms, sqlite_per_second })
}

fn sqlite(folder: &Path) -> Result<f64> {
    let script = sqlite::script(ROWS);
    let start = Instant::now();
    said(pipeline(&script, &[&folder.join("rows.db")]).stdin(Stdio::null()))?;
    Ok(f64::from(ROWS) / start.elapsed().as_secs_f64())
}

/// Transactions a second, and percentiles of their latency.
fn pgbench(folder: &Path, scratch: &Path) -> Result<(f64, [f64; 3])> {
    let postgres = Postgres::new(scratch);
    let data = postgres.make(folder)?;
    let mut load = Load { clients: Vec::new(), server: Some(postgres.start(&data)?) };
    said(postgres.client("pgbench").args([
        "--initialize",
        "--quiet",
        "--scale",
        &SCALE.to_string(),
        "postgres",
    ]))?;
    let logs = scratch.join("sockets");
    let mut pgbench = postgres.client("pgbench");
    pgbench.args(["--client", &CLIENTS.to_string(), "--time", &SECONDS.to_string(), "--no-vacuum", "--log"]);
    said(pgbench.arg("--log-prefix").arg(logs.join("pgbench")).arg("postgres"))?;
    if let Some(server) = load.server.take() {
        postgres::stop(&data, server)?;
    }
    let mut latencies = Vec::new();
    for entry in fs::read_dir(&logs)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("pgbench.") {
            latencies.extend(latencies_in(&fs::read_to_string(entry.path())?));
            fs::remove_file(entry.path())?;
        }
    }
    ensure!(!latencies.is_empty(), "pgbench has logged no transaction");
    latencies.sort_by(f64::total_cmp);
    let at = |per_mille: usize| latencies[(latencies.len() * per_mille / 1000).min(latencies.len() - 1)];
    let count = f64::from(u32::try_from(latencies.len())?);
    Ok((count / f64::from(SECONDS), [500, 990, 999].map(at)))
}

/// Milliseconds, from the lines of pgbench's log: client, transaction, microseconds and so on.
fn latencies_in(log: &str) -> impl Iterator<Item = f64> {
    log.lines().filter_map(|line| Some(line.split(' ').nth(2)?.parse::<f64>().ok()? / 1000.0))
}

fn page(kept: &Kept) -> String {
    let Origin { commit, date, load, machine } = &kept.origin;
    let mut text = format!(
        "# Databases on one machine

PostgreSQL and SQLite on ext4, on an array beside one disk like its members. Written by `cargo xtask apps
--figures` (as root). The raw numbers are in [{JSON}]({JSON}). **Real CPU, real flushes:** the members are
files on this machine's one virtual disk, so an array's four members share what one disk has alone. Only
ratios mean something, and they are what this arrangement costs, not what separate drives would give. RocksDB
over servers is on [a page of its own](papers/applications.md).

The array is RAID5 of four members, chunks of 64 KiB, served as a file (`serve --fuse`), with a loop device
over it (`losetup --direct-io=on`). The one disk is a member's file with the same loop device. PostgreSQL 15
has data checksums and 16 MiB of shared buffers; pgbench does its TPC-B-like transactions with {CLIENTS}
clients at scale {SCALE} for {SECONDS} s. SQLite inserts {ROWS} rows of 700 bytes in a transaction each, with
a write-ahead log and `synchronous = FULL`. Every array's parity is scrubbed afterwards, and a missing member
rebuilt before.

Commit {commit}, {date} UTC, {machine},
load average before {load}. Medians of {} rounds, with the lowest and the highest.

| | pgbench, transactions/s | p50, ms | p99, ms | p99.9, ms | SQLite, transactions/s |
|---|---:|---:|---:|---:|---:|
",
        kept.runs.len() / ALL.len()
    );
    for (below, name) in ALL {
        let spread = |quantity: &dyn Fn(&Run) -> f64, digits| {
            of(Spread::of(kept.runs.iter().filter(|run| run.below == below).map(quantity)), digits)
        };
        let ms = |place: usize| spread(&|run| run.pgbench_ms[place], 1);
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {} |",
            spread(&|run| run.pgbench_per_second, 0),
            ms(0),
            ms(1),
            ms(2),
            spread(&|run| run.sqlite_per_second, 0)
        );
    }
    text + "
A transaction waits for a flush of its log. On the array that is a partial write: its parity needs reads
first, and then a flush of each member that was written, all on the same disk here.
Where the rounds of a line differ more than the lines do, the lines don't differ.

How the same databases take a `kill -9` of the server: `cargo xtask apps` ([how](../lab.md)).
"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_the_third_word() {
        let found: Vec<f64> = latencies_in("0 1 2500 0 17 3\n1 1 500 0 17 3\nx\n").collect();
        assert_eq!(found, [2.5, 0.5]);
    }

    #[test]
    fn the_page_has_all_that_a_database_lies_on() {
        let run = |below| Run {
            below,
            pgbench_per_second: 100.0,
            pgbench_ms: [1.0, 2.0, 3.0],
            sqlite_per_second: 7.0,
        };
        let runs: Vec<Run> = ALL.iter().cycle().take(6).map(|(below, _)| run(*below)).collect();
        let origin = Origin { commit: "abc".into(), date: "d".into(), load: "0".into(), machine: "m".into() };
        let text = page(&Kept { origin, runs });
        for (_, name) in ALL {
            assert!(text.contains(&format!("| {name} | 100 (100 to 100) | 1.0 (1.0 to 1.0) |")), "{text}");
        }
        assert!(text.contains("of 2 rounds"));
    }
}
