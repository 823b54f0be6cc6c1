//! The page: what the paper shows, what was run, what came of it, what differs and why.

use std::fmt::Write as _;

use anyhow::Result;

use super::OBJECTS;
use super::plan::{Keys, MIXES, Point};
use super::table::{Column, Kept, Run};
use crate::bars::Bars;
use crate::bench::Spread;
use crate::net::network;
use crate::net::rounds::{ARMS, Rounds, Run as _};
use crate::net::ycsb::{Mix, State, of};

/// A picture of the page.
pub struct Figure {
    pub name: &'static str,
    title: &'static str,
    /// The paper's, and what it shows; nothing where it has none.
    number: &'static str,
    paper: &'static str,
    level: u8,
    state: State,
    keys: Keys,
}

/// In the paper's order, then what it doesn't show.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "figure-20",
        title: "Figure 20: object store on a healthy RAID5",
        number: "20",
        paper: "1.7 times SPDK's operations on A, 1.5 times on F, hardly more on B, C and D.",
        level: 5,
        state: State::Healthy,
        keys: Keys::Uniform,
    },
    Figure {
        name: "figure-21",
        title: "Figure 21: object store on a degraded RAID5",
        number: "21",
        paper: "more than healthy, and about 2.35 times SPDK's operations on B, C and D.",
        level: 5,
        state: State::Degraded,
        keys: Keys::Uniform,
    },
    Figure {
        name: "zipf",
        title: "Figure 20 with keys by a Zipf law",
        number: "",
        paper: "",
        level: 5,
        state: State::Healthy,
        keys: Keys::Zipf,
    },
];

impl Figure {
    pub fn svg(&self, kept: &Kept) -> Result<String> {
        let point = |mix| Point { level: self.level, state: self.state, keys: self.keys, mix };
        let bars = |mix| ARMS.map(|arm| kept.runs.spread(point(mix), arm, Run::rate)).to_vec();
        Bars {
            title: self.title,
            quantity: "operations per second",
            arms: ARMS.iter().map(|arm| format!("{} (real CPU, limited links)", arm.name())).collect(),
            groups: MIXES.into_iter().map(|mix| (mix.short(), bars(mix))).collect(),
        }
        .svg()
    }
}

const HEAD: &str = "# dRAID on Pinstripe: a store of objects

Figures 20 and 21 of \"Disaggregated RAID Storage in Modern Datacenters\" (ASPLOS 2023), on ours. Written by
`cargo xtask net --objects` (as root). The raw numbers, a line a run, are in
[objects.csv](draid/objects.csv). **Real CPU, members in memory, links limited by the kernel:** all of it is
on one machine, so only ratios within a round mean something. The paper's figures without an application are
on [a page of their own](disaggregated.md), as is [figure 19](applications.md), RocksDB.

";

/// What was run, with the setting's numbers.
fn setting(text: &mut String, kept: &Kept) {
    let rounds = kept.runs.iter().map(|run| run.round).max().unwrap_or(0);
    let busy = Spread::of(kept.runs.iter().map(|run| run.get(Column::Busy) * 100.0));
    let cpu =
        |run: &Run| (run.get(Column::ClientCpu) + run.get(Column::ServersCpu)) / run.get(Column::Seconds);
    let ours = Spread::of(kept.runs.iter().map(|run| cpu(run) * 100.0));
    let sum = |column| -> f64 { kept.runs.iter().map(|run| run.get(column)).sum() };
    let (offloaded, fallbacks) = (sum(Column::OffloadedRuns), sum(Column::Fallbacks));
    let _ = writeln!(
        text,
        "## What we ran

The paper has eight servers with links of 100 Gbit/s, chunks of 512 KiB and RAID5. Its store finds objects by
hash, straight on the volume: 200,000 of 128 KiB, for 200,000 requests by uniform keys. dRAID is beside SPDK's
RAID, where the host computes it. Here it is

    pinstripe bench --objects {OBJECTS} --size 128K --mix MIX --pattern random|zipf --depth 32 --chunk 512K
    --cache 0

over eight `pinstripe target`, each in a network namespace. All links, the client's too, have {} Mbit/s in
each direction ([how](../../lab.md)):
{}.

Host-centric is `--offload off` on both sides, offload is `--offload on`. The store is loaded without
limits, runs under them for 1 s of warm-up and {} s that count, and is checked without. It is opened anew
from its headers, and every object is read and compared with the last put that was acknowledged. A missing
member is rebuilt, and every object is read again. Then all parity is scrubbed. **In all {} runs every
object was right, and all parity.**

{rounds} rounds; in each, the two arms of a point come one right after the other. Rates and gains are
medians of the rounds, with the lowest and the highest in brackets; *gain* is offload by host-centric, of
the same round.

Commit {}, {} UTC, {},
load average before {}. Of both CPUs together {} % were busy, mostly with
other programs' work. Client and servers took {} % of one CPU, so the links were the bound. Of
{offloaded:.0} writes that went to the servers, the client had to do {fallbacks:.0} itself.
",
        kept.mbit,
        network::description(),
        kept.seconds,
        kept.runs.len(),
        kept.origin.commit,
        kept.origin.date,
        kept.origin.machine,
        kept.origin.load,
        of(busy, 0),
        of(ours, 0),
    );
}

const PLAN: &str = "## What bytes allow

*Plan* is arithmetic, for keys that are uniform. An object is a part of one chunk, so a host-centric write
reads and writes it and each parity: 2 objects each way on level 5, 3 on level 6. An offloaded one sends it
once. With one of eight members missing, one of 8 reads is of seven chunks, or of six on level 6. Of 8
writes, one is of the missing member: host-centric it reads all other data, offloaded it goes to each
parity's server. And one for each parity does without it. The link is duplex, so the busier direction
counts.

*Sent* and *received* are in objects an operation, by the counters of the client's interface. *Link* is how
full the busier direction was by them; they count the headers of large packets once, and on the wire there
are up to 5 % more. *Busiest server* is the same for the server whose link moved most.

";

const COLUMNS: &str = "\
| | arm | operations/s | gain | gain by plan | sent | by plan | received | by plan | link, % | busiest server, % | read p50, ms | p99 | write p50, ms | p99 |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
";

/// The page of what was measured.
pub fn page(kept: &Kept) -> String {
    let mut text = HEAD.to_owned();
    setting(&mut text, kept);
    said(&mut text, kept);
    text.push_str(DIFFERS);
    text.push_str(PLAN);
    let mut shown = Vec::new();
    for point in kept.runs.points() {
        let heading = (point.level, point.keys, point.state);
        if !shown.contains(&heading) {
            shown.push(heading);
            section(&mut text, kept, point);
        }
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

fn section(text: &mut String, kept: &Kept, first: Point) {
    let (state, keys) = (first.state.name(), first.keys.name());
    let heading = format!("RAID{}, {state}, {keys} keys", first.level);
    let is_here = |figure: &&Figure| {
        (figure.level, figure.keys, figure.state) == (first.level, first.keys, first.state)
    };
    let figure = FIGURES.iter().find(is_here);
    let _ = match figure.filter(|figure| !figure.paper.is_empty()) {
        Some(Figure { number, paper, .. }) => {
            writeln!(text, "## Figure {number}: {heading}\n\nThe paper: {paper}\n")
        }
        None => writeln!(text, "## {heading}\n\nThe paper has none.\n"),
    };
    if let Some(Figure { title, name, .. }) = figure {
        let _ = writeln!(text, "![{title}](draid/{name}.svg)\n");
    }
    text.push_str(COLUMNS);
    for mix in MIXES {
        for (index, arm) in ARMS.into_iter().enumerate() {
            let point = Point { mix, ..first };
            let median =
                |quantity: &dyn Fn(&Run) -> f64| kept.runs.spread(point, arm, quantity).map(|s| s.median);
            let Some(rate) = kept.runs.spread(point, arm, Run::rate) else { continue };
            let number = |quantity: &dyn Fn(&Run) -> f64, digits: usize| {
                median(quantity).map_or(String::new(), |value| format!("{value:.digits$}"))
            };
            let latency = |column| median(&|run| run.get(column)).filter(|ms| *ms > 0.0);
            let in_ms = |column| latency(column).map_or(String::new(), |ms| format!("{ms:.0}"));
            let gain = if index == 0 { String::new() } else { of(kept.runs.gain(point), 2) };
            let by_plan = if index == 0 { String::new() } else { format!("{:.2}", point.gain()) };
            let plan = point.bytes(arm);
            let _ = writeln!(
                text,
                "| {} | {} | {} | {gain} | {by_plan} | {} | {:.3} | {} | {:.3} | {} | {} | {} | {} | {} | {} |",
                mix.name(),
                arm.name(),
                of(Some(rate), 0),
                number(&|run| run.bytes().sent, 3),
                plan.sent,
                number(&|run| run.bytes().received, 3),
                plan.received,
                number(&|run| run.link_share(kept.mbit) * 100.0, 0),
                number(&|run| run.server_share(kept.mbit) * 100.0, 0),
                in_ms(Column::ReadP50Ms),
                in_ms(Column::ReadP99Ms),
                in_ms(Column::WriteP50Ms),
                in_ms(Column::WriteP99Ms),
            );
        }
    }
    text.push('\n');
}

/// What the project set out for, and the paper's ratios beside ours.
fn said(text: &mut String, kept: &Kept) {
    let writes = Point { level: 5, state: State::Healthy, keys: Keys::Uniform, mix: Mix::W };
    let least = kept.runs.gain(writes).map_or("not measured".to_owned(), |gain| format!("{:.2}", gain.low));
    let _ = writeln!(
        text,
        "## What was to be reached\n\n| | wanted | measured |\n|---|---|---|\n\
         | writes, offload by host-centric, the lowest of all rounds | ≥ 1.6 | {least} |\n"
    );
    text.push_str("## Beside the paper\n\n| figure | paper, by SPDK | here, by host-centric | by plan |\n|---|---:|---:|---:|\n");
    for (state, mix, paper) in [
        (State::Healthy, Mix::A, "1.7"),
        (State::Healthy, Mix::B, "about 1"),
        (State::Healthy, Mix::C, "about 1"),
        (State::Healthy, Mix::D, "about 1"),
        (State::Healthy, Mix::F, "1.5"),
        (State::Degraded, Mix::B, "2.35"),
        (State::Degraded, Mix::C, "2.35"),
        (State::Degraded, Mix::D, "2.35"),
        (State::Healthy, Mix::W, "-"),
        (State::Degraded, Mix::W, "-"),
    ] {
        let figure = match (paper, state) {
            ("-", _) => "",
            (_, State::Healthy) => "20: ",
            _ => "21: ",
        };
        let point = Point { level: 5, state, keys: Keys::Uniform, mix };
        let _ = writeln!(
            text,
            "| {figure}{}, {} | {paper} | {} | {:.2} |",
            state.name(),
            mix.name(),
            of(kept.runs.gain(point), 2),
            point.gain()
        );
    }
    text.push('\n');
}

const DIFFERS: &str = "## What differs, and why

- **Updates gain more than in the paper** (A and F). Reads and writes go over a duplex link in different
  directions. Offloaded, A sends and receives half an object an operation; host-centric, it receives one and
  a half, because parity needs reads. Of its own mixed loads the paper says that with eight SSDs the drives
  were the bound. Here members are in memory, and the link is.
- **Degraded reads gain less than in the paper** (B, C, D). Bytes on the link allow 1.75 there as here, and
  the paper's figure 15 has about that: SPDK keeps 57 % of its healthy reads, dRAID 95 %. What SPDK loses
  besides under its store isn't bytes on the link.
- **Host-centric writes stay below what bytes allow,** at about 93 %, so that their gains lie above the
  plan. A run begins and ends with nothing under way, and such a write first receives and then sends: at
  both ends one direction idles, for some 0.3 s of 4 in all. In a run of 16 s they had 98 %, and the gain was
  2.04.
- **Zipf's law** draws few objects often. A put holds its object alone, so clients wait for each other, and
  A doesn't fill the link. Keys lie at the same places in every run, and of their operations more than one
  in eight is on the member that is missing, as bytes show. So the plan, which has uniform keys, is only
  near.
- **Bytes differ from the plan by some percent,** because a run is few operations: 5 updates in 100 of a
  thousand are 43 to 57 in two of three runs. The gain is of operations, so this noise is in it.
- **Smaller by far:** links of some hundred Mbit/s instead of 100 Gbit/s, so that two cores bear client,
  servers and links; seconds instead of 200,000 requests; a fiftieth of the objects, so that a run loads and
  checks them in seconds. Nothing is cached, so the number of objects changes only where they lie.
- **Other programs' compilers ran** on the machine meanwhile. Client and servers ran at a higher priority
  (nice -10), and needed less than half of one CPU.

";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::objects::table::tests::kept;

    #[test]
    fn the_page_has_every_mix_with_both_arms_and_its_gain() {
        let text = page(&kept());
        for mix in MIXES {
            let rows = text.lines().filter(|line| line.starts_with(&format!("| {} |", mix.name())));
            assert_eq!(rows.count(), 4, "{}: two states, two arms", mix.name());
        }
        assert!(text.contains("| 2.00 (2.00 to 2.00) | 3.00 |"), "{text}");
        assert!(text.contains("220 (200 to 240)"), "{text}");
    }

    #[test]
    fn every_picture_has_its_bars() {
        for figure in FIGURES {
            let svg = figure.svg(&kept()).unwrap();
            assert!(svg.contains(figure.title) && svg.contains("writes only"));
            let bars = if figure.keys == Keys::Uniform { 12 } else { 0 };
            assert!(svg.matches("<rect").count() >= bars + 2, "{svg}");
        }
    }
}
