//! The page: what the paper shows, what was run, what came of it, what differs and why.

use std::fmt::Write as _;

use anyhow::Result;

use super::plan::{FileSystem, Point, WORKLOADS};
use super::table::{Column, Kept, Run};
use super::{RECORDS, db_bench};
use crate::bars::Bars;
use crate::bench::Spread;
use crate::net::network;
use crate::net::rounds::{ARMS, Rounds, Run as _};
use crate::net::ycsb::{Mix, State, of};

/// A picture of the page: all workloads on ext4, of which writes aren't durable at once.
pub struct Figure {
    pub name: &'static str,
    title: &'static str,
    /// The paper's, and what it shows.
    number: &'static str,
    paper: &'static str,
    state: State,
}

/// In the paper's order.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "figure-19a",
        title: "Figure 19a: RocksDB on a healthy RAID5",
        number: "19a",
        paper: "1.27 times SPDK's operations on A, 1.28 times on F. In most cases the instance uses less than 5 %\n\
                of the bandwidth.",
        state: State::Healthy,
    },
    Figure {
        name: "figure-19b",
        title: "Figure 19b: RocksDB on a degraded RAID5",
        number: "19b",
        paper: "more than that, on all workloads.",
        state: State::Degraded,
    },
];

impl Figure {
    /// Draws it.
    pub fn svg(&self, kept: &Kept) -> Result<String> {
        let of_arms = |workload| {
            let point = Point { file_system: FileSystem::Ext4, state: self.state, durable: false, workload };
            ARMS.map(|arm| kept.runs.spread(point, arm, Run::rate)).to_vec()
        };
        Bars {
            title: self.title,
            quantity: "operations per second",
            arms: ARMS.iter().map(|arm| format!("{} (real CPU, limited links)", arm.name())).collect(),
            groups: WORKLOADS.into_iter().map(|workload| (workload.short(), of_arms(workload))).collect(),
        }
        .svg()
    }
}

const HEAD: &str = "# dRAID on Pinstripe: RocksDB

Figure 19 of \"Disaggregated RAID Storage in Modern Datacenters\" (ASPLOS 2023), on ours. Written by
`cargo xtask net --rocksdb` (as root). The raw numbers, a line a run, are in
[rocksdb.csv](applications/rocksdb.csv). **Real CPU, members in memory, links limited by the kernel:** all of
it is on one machine, so only ratios within a round mean something. The paper's figures without an application
are on [a page of their own](disaggregated.md), as are [figures 20 and 21](draid.md), a store of objects.

";

/// What was run, with the setting's numbers.
fn setting(text: &mut String, kept: &Kept) {
    let busy = Spread::of(kept.runs.iter().map(|run| run.get(Column::Busy) * 100.0));
    let cpu =
        |run: &Run| (run.get(Column::ArrayCpu) + run.get(Column::ServersCpu)) / run.get(Column::Seconds);
    let ours = Spread::of(kept.runs.iter().map(|run| cpu(run) * 100.0));
    let sum = |column| -> f64 { kept.runs.iter().map(|run| run.get(column)).sum() };
    let (offloaded, fallbacks) = (sum(Column::OffloadedRuns), sum(Column::OffloadFallbacks));
    let setting = &kept.setting;
    let _ = writeln!(
        text,
        "## What we ran

The paper has eight servers with links of 100 Gbit/s, chunks of 512 KiB and RAID5, and on it one RocksDB on
BlobFS, a file system of SPDK's that bypasses the kernel. dRAID is beside SPDK's RAID, where the host
computes parity. Here it is

    pinstripe serve --shards 1 --cache 0 --offload on|off --fuse FILE (8 members on servers)
    losetup --direct-io=on FILE, mkfs.ext4 or mkfs.xfs, mount
    pinstripe-ycsb run FOLDER --records {RECORDS} --threads {} --workload A..F

over eight `pinstripe target`, each in a network namespace. All links, the client's too, have {} Mbit/s in
each direction ([how](../../lab.md)):
{}.

Host-centric is `--offload off` on both sides, offload is `--offload on`. `pinstripe-ycsb` (`apps/ycsb`) does
YCSB's core workloads on Debian's RocksDB 7.8: keys by Zipf's law with 0.99, popular ones scattered; D reads
the newest; E scans 1 to 100 records. A value has 1000 bytes, all of which come from its record's number and
version. RocksDB reads and writes past the page cache, has 1 MiB of block cache, 8 MiB of memtable and no
compression: the array is to be measured. *Buffered* writes are acknowledged when they are in the log, as
YCSB has it; *durable* ones (`--sync`) when the array has flushed it.

The database is loaded and compacted without limits, runs under them for 1 s of warm-up and {} s that count,
and is checked without. *Degraded* is with a member failed after loading, *rebuilding* while that one is
rebuilt onto a ninth server, at 1500 KiB/s of each member in both arms.

Every read of a run is checked. Afterwards the database is opened anew: every record must have its last
acknowledged version, or the one that was under way. Then `sst_dump --command=verify --verify_checksum` checks
RocksDB's checksums (until 2026-12-01 without the second option, and then Debian's compares none), the file
system is checked, the missing member is rebuilt, and all parity is scrubbed. **In all {} runs every record was
right, and all parity.**

Rates and gains are medians of the rounds, with the lowest and the highest in brackets. In each round the two
arms of a point come one right after the other; *gain* is offload by host-centric, of the same round.

Commit {}, {} UTC, {},
load average before {}. Of both CPUs together {} % were busy, mostly with other programs'
work. Ours ran at a higher priority (nice -10), but not the kernel's threads of loop devices. The array's
server and the targets took {} % of one CPU. Of {offloaded:.0} writes that went to the servers, the
array's server had to do {fallbacks:.0} itself.

*Array reads* and *writes* are the file system's, *sent* and *received* the client's link's, in MB/s; *link*
is how full its busier direction was, *busiest server* the same for the server with the link that moved most.
Latencies are in milliseconds; a scan counts as a read, and on F the write is a read with the update that
follows.
",
        setting.threads,
        setting.mbit,
        network::description(),
        setting.seconds,
        kept.runs.len(),
        setting.origin.commit,
        setting.origin.date,
        setting.origin.machine,
        setting.origin.load,
        of(busy, 0),
        of(ours, 0),
    );
}

const COLUMNS: &str = "\
| | arm | rounds | operations/s | gain | array reads | writes | sent | received | link, % | busiest server, % | read p50 | p99 | p99.9 | write p50 | p99 | p99.9 |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
";

/// The page of what was measured, by YCSB's client and by db_bench.
pub fn page(kept: &Kept, db_bench: Option<&Kept<db_bench::Run>>) -> String {
    let mut text = HEAD.to_owned();
    setting(&mut text, kept);
    beside(&mut text, kept);
    text.push_str(DIFFERS);
    let mut shown = Vec::new();
    for point in kept.runs.points() {
        let heading = (point.file_system, point.state, point.durable);
        if !shown.contains(&heading) {
            shown.push(heading);
            section(&mut text, kept, point);
        }
    }
    if let Some(kept) = db_bench {
        db_bench::section(&mut text, kept);
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

fn section(text: &mut String, kept: &Kept, first: Point) {
    let (file_system, state, writes) = (first.file_system.name(), first.state.name(), first.writes());
    let heading = format!("{file_system}, {state}, {writes} writes");
    let is_drawn = first.file_system == FileSystem::Ext4 && !first.durable;
    let _ = match FIGURES.iter().find(|figure| is_drawn && figure.state == first.state) {
        Some(Figure { number, paper, title, name, .. }) => writeln!(
            text,
            "## Figure {number}: {heading}\n\nThe paper: {paper}\n\n![{title}](applications/{name}.svg)\n"
        ),
        None => writeln!(text, "## {heading}\n\nThe paper has none.\n"),
    };
    text.push_str(COLUMNS);
    for workload in WORKLOADS {
        for (index, arm) in ARMS.into_iter().enumerate() {
            let point = Point { workload, ..first };
            let Some(rate) = kept.runs.spread(point, arm, Run::rate) else { continue };
            let number = |quantity: &dyn Fn(&Run) -> f64, digits: usize| {
                let median = kept.runs.spread(point, arm, quantity).map(|spread| spread.median);
                median.map_or(String::new(), |value| format!("{value:.digits$}"))
            };
            let gain = if index == 0 { String::new() } else { of(kept.runs.gain(point), 2) };
            let rounds = kept.next_round(point) - 1;
            let _ = write!(
                text,
                "| {} | {} | {rounds} | {} | {gain} |",
                workload.name(),
                arm.name(),
                of(Some(rate), 0)
            );
            for column in
                [Column::ReadBytes, Column::WrittenBytes, Column::ClientSent, Column::ClientReceived]
            {
                let _ = write!(text, " {} |", number(&|run| run.megabytes(column), 1));
            }
            let _ = write!(text, " {} |", number(&|run| run.link_share(kept.setting.mbit) * 100.0, 0));
            let _ = write!(text, " {} |", number(&|run| run.server_share(kept.setting.mbit) * 100.0, 0));
            for column in LATENCIES {
                let _ = write!(text, " {} |", number(&|run| run.get(column), 2));
            }
            text.push('\n');
        }
    }
    text.push('\n');
}

const LATENCIES: [Column; 6] = [
    Column::ReadP50,
    Column::ReadP99,
    Column::ReadP999,
    Column::WriteP50,
    Column::WriteP99,
    Column::WriteP999,
];

/// What the project set out for, and the paper's ratios beside ours.
fn beside(text: &mut String, kept: &Kept) {
    let main = |state, workload| Point { file_system: FileSystem::Ext4, state, durable: false, workload };
    text.push_str("## What was to be reached\n\n| | wanted | measured |\n|---|---|---|\n");
    for mix in [Mix::A, Mix::F] {
        let gain = kept.runs.gain(main(State::Healthy, mix));
        let found = gain.map_or("not measured".to_owned(), |Spread { median, low, .. }| {
            format!("{median:.2} (lowest {low:.2})")
        });
        let words = "healthy, buffered, offload by host-centric, the median of the rounds";
        let _ = writeln!(text, "| {}: {words} | ≥ 1.25 | {found} |", mix.name());
    }
    text.push_str(
        "\n## Beside the paper\n\n| figure | paper, by SPDK | here, by host-centric |\n|---|---:|---:|\n",
    );
    for (figure, state, mix, paper) in [
        ("19a", State::Healthy, Mix::A, "1.27"),
        ("19a", State::Healthy, Mix::F, "1.28"),
        ("19b", State::Degraded, Mix::A, "more"),
        ("19b", State::Degraded, Mix::F, "more"),
    ] {
        let gain = of(kept.runs.gain(main(state, mix)), 2);
        let _ = writeln!(text, "| {figure}: {}, {} | {paper} | {gain} |", state.name(), mix.name());
    }
    text.push('\n');
}

const DIFFERS: &str = "## What differs, and why

- **A and F gain more than in the paper.** RocksDB's flushes and compactions write much more than its users
  do. Host-centric, what isn't a whole stripe reads old data and parity first, over the direction of the link
  that reads need too; offloaded, it is sent once. The paper's instance uses under 5 % of its links, so most
  of its time goes into RocksDB's locks and BlobFS; here the links are slow, and the array is what is waited
  for.
- **Durable writes gain nothing, and A loses.** They flush the log for each group of writes, a few KiB at a
  time, so what counts is how long one small write takes. Offloaded, it goes from server to server, and each
  needs a processor first, of which there are two for all of them and for other programs' compilers (load
  averages up to 18). An earlier run under less load (10; 80,000 records) had gains of 1.30 on A and 0.93 on
  F.
- **Rounds differ much,** because the processors were busy in all of them. In one round of A, offload had
  0.95: the link and a quarter of the processors' time idled, and the cause wasn't found. On XFS, F gained in
  one round of three. B to E have one round.
- **Reads on a healthy array** (C, and most of B, D and E) are the same in both arms. Where their numbers
  differ, the machine's other work is the reason: two cores run client, array, nine servers, and compilers.
- **The kernel is in the way:** FUSE, a loop device and a file system instead of BlobFS, with as many copies.
- **Smaller by far:** links of some hundred Mbit/s instead of 100 Gbit/s, and 50 MB of records, so that two
  cores bear all of it and a run loads and checks everything in seconds.

";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::rocksdb::plan::points;
    use crate::net::rocksdb::table::tests::kept;

    #[test]
    fn the_page_has_every_point_with_both_arms_and_its_gain() {
        let text = page(&kept(), Some(&db_bench::tests::kept()));
        let rows =
            text.lines().filter(|line| line.contains("| host-centric |") || line.contains("| offload |"));
        assert_eq!(rows.count(), points().len() * 2 + 16);
        assert!(text.contains("| 2.00 (2.00 to 2.00) |") && text.contains("220 (200 to 240)"), "{text}");
        assert!(text.contains("| A, half updates: healthy, buffered, offload by host-centric, the median of the rounds | ≥ 1.25 | 2.00 (lowest 2.00) |"), "{text}");
    }

    #[test]
    fn every_picture_has_its_bars() {
        for figure in FIGURES {
            let svg = figure.svg(&kept()).unwrap();
            assert!(svg.contains(figure.title) && svg.matches("<rect").count() >= 14, "{svg}");
        }
    }
}
