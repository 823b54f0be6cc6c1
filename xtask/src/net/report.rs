//! The page of the figures: what was asked for and what came of it, then every figure with its table and
//! where it comes from.

use std::fmt::Write;

use super::experiments::{Arm, Figure};
use super::results::{Line, Measured};
use super::{chart, network, paper};

const HEAD: &str = "# dRAID on Pinstripe: arrays over a network

Figures 9 to 18 and 22 to 30 of \"Disaggregated RAID Storage in Modern Datacenters\" (ASPLOS 2023), on ours.
Written by `cargo xtask net --figures` (as root; `--only NAME` measures single figures again). The raw numbers
lie beside the pictures, a JSON file a figure. **Real CPU, members in memory, links limited by the kernel:**
all of it is on one machine, so only ratios mean something. The paper's figure 19, RocksDB, is on [a page of
its own](papers/applications.md), as are [figures 20 and 21](papers/draid.md), a store of objects.

## What we ran

The paper has 19 servers with links of 100 Gbit/s and SSDs, of which eight are an array with chunks of 512
KiB. Requests are random, of 128 KiB. dRAID, in which servers compute parity, is beside SPDK's RAID, where
the host does, and Linux MD.

Here client and servers are on one machine, each in a network namespace of its own, with links that are
limited in each direction ([how](../lab.md)). Each figure compares what was measured within minutes: its
*goodput* is what plain sequential requests of 1 MiB to one member moved over one link, just before the
figure's points. `host-centric` means that the client computes parity, `offload` that the servers do. There
is no parity cache. Every point ended with a scrub of all parity and with all written data read back, after
members that were missing had been rebuilt.

All arms run with the default policy, `cost`. The host-centric points of 2026-11-21 and -22 were measured with
`--policy min-reads`, which the commands below don't give ([why](../lab.md)).

";

const COLUMNS: &str = "\
| | | arm | MB/s | of goodput | bound | of bound | sent | received | p50 ms | p99 ms | client CPU | servers' CPU | busy |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
";

const LEGEND: &str = "## The tables' columns

*Bound*: what the plan allows, for a duplex link: users' bytes by the bytes that the array moves in the busier direction. *Sent, \
received*: bytes on the client's link for each of the user's, by the counters of its network interface. These count the headers of a large packet \
once; where it is cut into frames (tbf does, as a network card would) there is one set of headers a frame, about 5 % more: in another lab tbf's \
counters said 1.05 for offloaded writes and 2.10 for host-centric ones. *CPU*: seconds per GiB of users' bytes, of the client's process and of all servers' processes together (what the kernel does in interrupts and for \
loop devices isn't in it). *Busy*: share of the machine's CPUs that was busy with anything \
but work of lower priority; near 100 % the CPU is the bound, and the figures say nothing about networks.

";

/// The page of the figures that were measured.
pub fn page(figures: &[Figure], known: &[(&Figure, Measured)]) -> String {
    let mut text = HEAD.to_owned();
    let _ = writeln!(text, "Links: {}.\n", network::description());
    let missing: Vec<&str> = figures
        .iter()
        .filter(|figure| known.iter().all(|(other, _)| other.name != figure.name))
        .map(|figure| figure.name)
        .collect();
    if !missing.is_empty() {
        let _ = writeln!(text, "Not measured yet: {}.\n", missing.join(", "));
    }
    text.push_str("## What was to be reached\n\n| | wanted | measured |\n|---|---|---|\n");
    for (what, wanted, found) in targets(known) {
        let _ = writeln!(
            text,
            "| {what} | {wanted} | {} |",
            found.unwrap_or_else(|| "not measured yet".to_owned())
        );
    }
    text.push('\n');
    text.push_str(&paper::beside(known));
    text.push_str(paper::DIFFERS);
    text.push_str(LEGEND);
    for (figure, measured) in known {
        section(&mut text, figure, measured);
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn section(text: &mut String, figure: &Figure, measured: &Measured) {
    match paper::of(figure.name) {
        Some(shown) => {
            let _ = writeln!(
                text,
                "## {}: {}\n\nThe paper: {}\n",
                shown.figures,
                lower(figure.title),
                shown.says
            );
        }
        None => {
            let _ = writeln!(text, "## {}\n", figure.title);
        }
    }
    if !figure.about.is_empty() {
        let _ = writeln!(text, "{}\n", figure.about);
    }
    for (file, quantity) in chart::files(figure, measured) {
        let _ =
            writeln!(text, "![{}: {} (real CPU)](disaggregated/{file})\n", figure.title, quantity.in_words());
    }
    text.push_str(COLUMNS);
    for row in &measured.rows {
        table_row(text, row);
    }
    let (write, read) = (measured.goodput_write * 8e-6, measured.goodput_read * 8e-6);
    let _ = writeln!(
        text,
        "\nCommit {}, {} UTC, {}, load average before {}. The client's link: {} Mbit/s; goodput {write:.0} written, {read:.0} \
         read. {} s a point. Again: `cargo xtask net --figures --only {} --mbit {} --seconds {}`.\n",
        measured.origin.commit,
        measured.origin.date,
        measured.origin.machine,
        measured.origin.load,
        measured.mbit,
        measured.seconds,
        figure.name,
        measured.mbit,
        measured.seconds
    );
}

/// A title after a colon.
fn lower(title: &str) -> String {
    let mut letters = title.chars();
    letters.next().map_or(String::new(), |first| first.to_lowercase().chain(letters).collect())
}

fn table_row(text: &mut String, row: &Line) {
    let or_nothing =
        |value: Option<f64>, digits: usize| value.map_or(String::new(), |value| format!("{value:.digits$}"));
    let _ = writeln!(
        text,
        "| {} | {} | {} | {:.1} | {:.3} | {} | {} | {:.3} | {:.3} | {} | {} | {:.2} | {:.2} | {:.0} % |",
        row.series,
        row.label,
        row.arm,
        row.bytes_per_second / 1e6,
        row.of_goodput,
        or_nothing(row.bound, 3),
        or_nothing(row.of_bound(), 3),
        row.sent,
        row.received,
        or_nothing(row.p50_ms, 1),
        or_nothing(row.p99_ms, 1),
        row.client_cpu,
        row.servers_cpu,
        row.busy * 100.0
    );
}

type Target = (String, &'static str, Option<String>);

/// Of 8 members one is missing. A read of its chunk receives 7 chunks on level 5, and 6 on level 6.
fn bound_of_degraded_reads(series: &str) -> &'static str {
    if series == "RAID5" {
        "its bound is 0.571, with 1.75 received"
    } else {
        "its bound is 0.615, with 1.625 received"
    }
}

/// Places are drawn: a run may have more or fewer reads of lost chunks than one in 8.
fn possible(row: &Line) -> String {
    format!("; {:.3} were received, so {:.3} was possible", row.received, row.received.recip())
}

/// What the project set out to reach, and what is known of it.
fn targets(known: &[(&Figure, Measured)]) -> Vec<Target> {
    let find = |figure: &str, series: &str, arm: Arm, x: f64| {
        let (_, measured) = known.iter().find(|(other, _)| other.name == figure)?;
        measured.row(series, arm.name(), x)
    };
    let mut targets = Vec::new();
    for (series, parts) in [("RAID5", 2.0), ("RAID6", 3.0)] {
        let row = |figure: &str, arm, x| find(figure, series, arm, x);
        let number = |value: f64| format!("{value:.3}");
        let ratio =
            |a: Option<&Line>, b: Option<&Line>, part: fn(&Line) -> f64| Some(number(part(a?) / part(b?)));
        let mut target =
            |what: &str, wanted, found| targets.push((format!("{series}: {what}"), wanted, found));
        let partial = |arm| row("partial-writes", arm, 128.0);
        target(
            "partial writes, host-centric, by its bound (a half of the goodput, or a third)",
            "≥ 0.95",
            partial(Arm::HostCentric).map(|row| number(row.of_goodput * parts)),
        );
        target(
            "partial writes, offload, by goodput",
            "≥ 0.90",
            partial(Arm::Offload).map(|r| number(r.of_goodput)),
        );
        target(
            "servers' CPU per GiB of partial writes, offload by plain targets",
            "≤ 1.5",
            ratio(partial(Arm::Offload), partial(Arm::HostCentric), |row| row.servers_cpu),
        );
        let small_chunks = |arm| row("writes-by-chunk", arm, 64.0);
        target(
            "the same in chunks of 64 KiB",
            "≤ 1.5",
            ratio(small_chunks(Arm::Offload), small_chunks(Arm::HostCentric), |row| row.servers_cpu),
        );
        for (arm, wanted) in [(Arm::Offload, "≥ 0.95"), (Arm::HostCentric, bound_of_degraded_reads(series))]
        {
            let what = format!("degraded reads by healthy ones, {}", arm.name());
            let degraded = row("degraded-reads-by-size", arm, 128.0);
            let found = ratio(degraded, row("reads-by-size", arm, 128.0), |row| row.of_goodput);
            let possible = degraded.filter(|_| arm == Arm::HostCentric).map_or_else(String::new, possible);
            target(&what, wanted, found.map(|found| found + &possible));
        }
        target(
            "reads of 64 KiB of lost chunks alone, offload, by goodput",
            "≥ 0.90",
            row("lost-chunks", Arm::Offload, 64.0).map(|row| number(row.of_goodput)),
        );
        let reducers = |arm| row("reducers", arm, 8.0);
        target(
            "rebuild under unequal links, bandwidth-aware by uniform reducers",
            "≥ 1.5",
            ratio(reducers(Arm::Bandwidth), reducers(Arm::Uniform), |row| row.of_goodput),
        );
        let servers = |arm, width| row("servers", arm, width);
        target(
            "6 servers with slow links by 4, offload",
            "1.43 to 1.58",
            ratio(servers(Arm::Offload, 6.0), servers(Arm::Offload, 4.0), |row| row.bytes_per_second),
        );
    }
    targets
}
