//! The page of the figures: what was asked for and what came of it, then every figure with its table and
//! where it comes from.

use std::fmt::Write;

use super::experiments::{Arm, Figure, Point, READ, WRITTEN};
use super::{network, paper};
use crate::bench::Spread;
use crate::figures::experiment::{At, Series};
use crate::figures::paper::{Claim, Kept, ROUNDS_MIN, compared, in_lines, two_runs};
use crate::figures::quantity::Quantity;

/// Of the page, its folder and its table.
pub const NAME: &str = "disaggregated";

const HEAD: &str = "# dRAID on Pinstripe: arrays over a network

Figures 9 to 18 and 22 to 30 of \"Disaggregated RAID Storage in Modern Datacenters\" (ASPLOS 2023), on ours.
Written by `cargo xtask net --figures` (as root; `--only NAME` measures single figures again). The raw
numbers, a line a run, are in [disaggregated.csv](disaggregated/disaggregated.csv). **Real CPU, members in
memory, links limited by the kernel:** all of it is on one machine, so only ratios within a round mean
something. The paper's figure 19, RocksDB, is on [a page of its own](applications.md), as are [figures 20 and
21](draid.md), a store of objects.

## What we ran

The paper has 19 servers with links of 100 Gbit/s and SSDs, of which eight are an array with chunks of 512
KiB. Requests are random, of 128 KiB. dRAID, in which servers compute parity, is beside SPDK's RAID, where
the host does, and Linux MD.

Here client and servers are on one machine, each in a network namespace of its own, with links that are
limited in each direction ([how](../../lab.md)). Each figure compares what was measured within minutes: its
*goodput* is what plain sequential requests of 1 MiB to one member moved over one link, just before the
points of the round. `host-centric` means that the client computes parity, `offload` that the servers do.
There is no parity cache. Every point ended with a scrub of all parity and with all written data read back,
after members that were missing had been rebuilt.

All arms run with the default policy, `cost`. The host-centric points of 2026-11-21 and -22 were measured with
`--policy min-reads`, which the commands below don't give ([why](../../lab.md)). Some points were measured by
programs with changes that are in no commit, or of a commit that was not kept: these programs can't be built
again, and where it says so the same command measures a later one.

";

const BESIDE: &str = "## Beside the paper

By SPDK's way, or by the host-centric one here, unless the line says otherwise. Behind a colon is the paper's
number.

";

const COLUMNS: &str = "\
| | | arm | MB/s | of goodput | of bound | sent | received | p50 ms | p99 ms | client CPU | servers' CPU | busy |
|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
";

const LEGEND: &str = "## The tables' columns

*Bound*: what the plan allows, for a duplex link: the goodput, times users' bytes by the bytes that the array
moves in the busier direction. *Sent, received*: bytes on the client's link for each of the user's, by the
counters of its network interface. These count the headers of a large packet once; where it is cut into frames
(tbf does, as a network card would) there is one set of headers a frame, about 5 % more: in another lab tbf's
counters said 1.05 for offloaded writes and 2.10 for host-centric ones. *CPU*: microseconds a MiB of users'
bytes, of the client's process and of all servers' processes together (what the kernel does in interrupts and
for loop devices isn't in it). *Busy*: share of the machine's CPUs that was busy with anything but work of
lower priority; near 100 % the CPU is the bound, and the figures say nothing about networks.

";

/// The page of the figures that were measured.
pub fn page(figures: &[Figure], kept: &Kept) -> String {
    let mut text = HEAD.to_owned();
    let _ = writeln!(text, "Links: {}.\n", network::description());
    text.push_str(&state(figures, kept));
    let real = |claims: &'static [Claim]| claims.iter().map(|claim| (claim, Series::Real));
    text.push_str("## What was to be reached\n\n");
    text.push_str(&compared("what the project set out for", real(paper::TARGETS), kept));
    text.push_str(BESIDE);
    text.push_str(&compared("published comparison", real(paper::CLAIMS), kept));
    text.push_str(paper::DIFFERS);
    text.push_str(&two_runs(NAME, kept));
    text.push_str(LEGEND);
    for figure in figures.iter().filter(|figure| kept.rows.rounds_of(figure.name) > 0) {
        section(&mut text, figure, kept);
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// Of how many rounds points are.
fn state(figures: &[Figure], kept: &Kept) -> String {
    let of = |is_it: fn(u32) -> bool| {
        let has = |figure: &&Figure| is_it(kept.rows.rounds_of(figure.name));
        let names = figures.iter().filter(has).map(|figure| format!("`{}`", figure.name));
        names.collect::<Vec<_>>()
    };
    let [missing, once, often] =
        [of(|rounds| rounds == 0), of(|rounds| rounds == 1), of(|rounds| rounds > 1)];
    let mut text = String::new();
    if !missing.is_empty() {
        let _ = write!(text, "Not measured yet: {}. ", missing.join(", "));
    }
    if !once.is_empty() {
        let of = if often.is_empty() { String::new() } else { format!(" of {}", once.join(", ")) };
        let _ = write!(
            text,
            "**Every point{of} is one run.** It has no interval, and no comparison can be told by it: that takes \
             {ROUNDS_MIN} rounds. Where the one run is against it, the last column says so, and why. "
        );
    }
    if !often.is_empty() {
        text += "Points of several rounds are their medians, with the interval in brackets. ";
    }
    in_lines(&text) + "\n\n"
}

fn section(text: &mut String, figure: &Figure, kept: &Kept) {
    let _ = match paper::of(figure.name) {
        Some(shown) => {
            let says = in_lines(&format!("The paper: {}", shown.says));
            writeln!(text, "## {}: {}\n\n{says}\n", shown.figures, lower(figure.title))
        }
        None => writeln!(text, "## {}\n\nThe paper has none.\n", figure.title),
    };
    if !figure.about.is_empty() {
        let _ = writeln!(text, "{}\n", in_lines(figure.about));
    }
    for quantity in figure.quantities {
        let (title, words, file) = (figure.title, quantity.words(), quantity.file(figure.name));
        let _ = writeln!(text, "![{title}: {words} (real CPU)]({NAME}/{file})\n");
    }
    text.push_str(COLUMNS);
    for point in &figure.points {
        for arm in figure.arms {
            table_row(text, (figure, point, arm.name()), kept);
        }
    }
    let link = |place, quantity| {
        let at = At { experiment: figure.name, place, arm: Arm::HostCentric.name() };
        kept.rows.spread(at, quantity).map_or(0.0, |spread| spread.median)
    };
    let [write, read] = [WRITTEN, READ].map(|place| link(place, Quantity::Throughput) * 8.0);
    let (mbit, seconds) = (link(WRITTEN, Quantity::Link), link(WRITTEN, Quantity::Seconds));
    let (origin, rounds) =
        (kept.later.get(figure.name).unwrap_or(&kept.origin), kept.rows.rounds_of(figure.name));
    let again = format!(
        "cargo xtask net --figures --only {} --mbit {mbit} --seconds {seconds} --rounds {rounds}",
        figure.name
    );
    let line = format!(
        "Commit {}, {} UTC, {}, load average before {}. The client's link: {mbit} Mbit/s; goodput {write:.0} written, {read:.0} \
         read. {seconds} s a point. Again: `{again}`.",
        origin.commit_in_words(),
        origin.date,
        origin.machine,
        origin.load
    );
    let _ = writeln!(text, "\n{}\n", in_lines(&line));
}

/// A title after a colon.
fn lower(title: &str) -> String {
    let mut letters = title.chars();
    letters.next().map_or(String::new(), |first| first.to_lowercase().chain(letters).collect())
}

/// One arm at one point, if it was measured.
fn table_row(text: &mut String, (figure, point, arm): (&Figure, &Point, &str), kept: &Kept) {
    let place = point.place();
    let at = At { experiment: figure.name, place: &place, arm };
    let goodput = At { place: point.goodput(), arm: Arm::HostCentric.name(), ..at };
    let of = |quantity| kept.rows.spread(at, quantity);
    let Some(rate) = of(Quantity::Throughput) else { return };
    let is_one = kept.rows.rounds_of(figure.name) == 1;
    let in_words = |Spread { median, low, high }: Spread, digits: usize| {
        let ends = if is_one { String::new() } else { format!(" ({low:.digits$} to {high:.digits$})") };
        format!("{median:.digits$}{ends}")
    };
    let number = |quantity, by: f64, digits: usize| {
        of(quantity).map_or(String::new(), |spread| format!("{:.digits$}", spread.median / by))
    };
    let of_goodput = kept.rows.ratio_to(at, goodput, Quantity::Throughput);
    let _ = writeln!(
        text,
        "| {} | {} | {arm} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} % |",
        point.series,
        point.label,
        in_words(rate, 1),
        of_goodput.map_or(String::new(), |share| in_words(share, 3)),
        number(Quantity::OfBound, 1.0, 3),
        number(Quantity::Sent, 1.0, 3),
        number(Quantity::Received, 1.0, 3),
        number(Quantity::P50, 1e3, 1),
        number(Quantity::P99, 1e3, 1),
        number(Quantity::Cpu, 1.0, 0),
        number(Quantity::ServersCpu, 1.0, 0),
        number(Quantity::Busy, 1.0, 0)
    );
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::figures::experiment::Row;
    use crate::figures::quantity::OF_LINKS;
    use crate::net::experiments::all;
    use crate::origin::Origin;

    /// A round of all figures: goodput has 100, the first arm 50, the others 90.
    pub fn kept() -> Kept {
        let row = |figure: &Figure, place: &str, arm: &str, value: f64| {
            let [series, experiment, place, arm] =
                [Series::Real.name(), figure.name, place, arm].map(str::to_owned);
            let values = OF_LINKS.map(|quantity| (quantity, value)).to_vec();
            Row { series, experiment, place, arm, round: 1, values }
        };
        let [commit, date, load, machine] =
            ["abc-dirty", "2026-01-02", "0.5, 0.5", "2 CPUs, Linux 6"].map(str::to_owned);
        let mut kept = Kept::new(Origin { commit, date, load, machine });
        for figure in all(1.0) {
            let mut rows = vec![
                row(&figure, WRITTEN, Arm::HostCentric.name(), 100.0),
                row(&figure, READ, Arm::HostCentric.name(), 100.0),
            ];
            for point in &figure.points {
                for (index, arm) in figure.arms.iter().enumerate() {
                    let value = if index == 0 { 50.0 } else { 90.0 };
                    rows.push(row(&figure, &point.place(), arm.name(), value));
                }
            }
            let origin = kept.origin.clone();
            kept.replace(&[figure.name.to_owned()], rows, &origin);
        }
        kept
    }

    #[test]
    fn every_comparison_is_of_what_is_measured() {
        let text = page(&all(1.0), &kept());
        assert!(!text.contains("| not measured |"), "{text}");
        for claim in paper::TARGETS.iter().chain(paper::CLAIMS) {
            assert!(text.contains(&format!("| {} | real CPU |", claim.words)), "{}", claim.words);
        }
    }

    #[test]
    fn points_of_one_run_are_told_from_those_of_several() {
        let figures = all(1.0);
        let mut kept = kept();
        let text = page(&figures, &kept);
        assert!(text.contains("**Every point is one run.**") && text.contains("can't be told: one run"));
        assert!(text.contains("| RAID5 | 128 KiB | offload | 90.0 | 0.900 | 90.000 | 90.000 |"), "{text}");
        assert!(text.contains("Commit abc with changes that are in no commit, 2026-01-02"), "{text}");
        let second = |row: &Row| Row { round: 2, ..row.clone() };
        let serial = kept.rows.0.iter().filter(|row| row.experiment == "serial");
        let more: Vec<Row> = serial.map(second).collect();
        kept.rows.0.extend(more);
        kept.rows.0.retain(|row| row.experiment != "barrier");
        let text = page(&figures, &kept).replace('\n', " ");
        assert!(text.contains("Not measured yet: `barrier`. **Every point of `partial-writes`,"), "{text}");
        assert!(text.contains("| offload, serial servers | 90.0 (90.0 to 90.0) | 0.900 (0.900"), "{text}");
    }
}
