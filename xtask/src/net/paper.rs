//! What dRAID's paper shows of what is measured here, its ratios beside ours, and why they differ.

use std::fmt::Write;

use super::experiments::{Arm, Figure};
use super::results::{Line, Measured};

/// The paper's figures that a figure of ours is after, and what they show.
pub struct Shown {
    /// Ours.
    name: &'static str,
    /// Their numbers.
    pub figures: &'static str,
    /// What the paper says of them.
    pub says: &'static str,
}

const SHOWN: &[Shown] = &[
    Shown {
        name: "partial-writes",
        figures: "Figures 10 and 23, at 128 KiB",
        says: "1.7 times SPDK's throughput on RAID5, 2.3 times on RAID6.",
    },
    Shown {
        name: "writes-by-size",
        figures: "Figures 10 and 23",
        says: "1.7 times SPDK's throughput at 128 KiB on RAID5, and no more up to 1 MiB, because eight SSDs can do no more; 1.5 \
               times at 2 MiB, where both reconstruct; the same for whole stripes. 2.3 times at 128 KiB on RAID6.",
    },
    Shown {
        name: "writes-by-chunk",
        figures: "Figures 11 and 24",
        says: "up to 1.7 times from 128 KiB to 1 MiB on RAID5, where the drives are the bound; up to 2.6 times on RAID6, in small \
               chunks.",
    },
    Shown {
        name: "writes-by-width",
        figures: "Figures 12 and 25",
        says: "dRAID grows with every server, to 84 of 92 Gbit/s with 18; SPDK reaches half of the link at most. RAID6 is alike.",
    },
    Shown {
        name: "servers",
        figures: "Figures 12 and 25, with servers as the bound",
        says: "as above, where the servers' drives are the bound. Here their links are.",
    },
    Shown {
        name: "reads-by-size",
        figures: "Figures 9 and 22",
        says: "all systems fill the link from 64 KiB on; below, dRAID has more, because its reads take no lock.",
    },
    Shown {
        name: "read-share",
        figures: "Figures 13 and 26",
        says: "1.4 to 1.7 times at every share but reads alone on RAID5, 1.6 to 2.3 times on RAID6. With half writes and 18 servers \
               up to 3 times (figures 14b and 27b).",
    },
    Shown {
        name: "latency",
        figures: "Figures 14 and 27",
        says: "by 18 servers SPDK reaches half of the link with writes alone and a third with half reads, dRAID nearly all of it; \
               at the same throughput dRAID has the lower latency on RAID6. Load grows by requests under way.",
    },
    Shown {
        name: "degraded-reads-by-size",
        figures: "Figures 15 and 28",
        says: "dRAID keeps 95 % of healthy reads, SPDK 57 % on RAID5 and 61 % on RAID6.",
    },
    Shown {
        name: "degraded-reads-by-width",
        figures: "Figures 16 and 29",
        says: "up to 2.4 times SPDK's throughput on RAID5; SPDK has its most with 6 servers, and with 8 on RAID6.",
    },
    Shown {
        name: "degraded-writes",
        figures: "Figures 18 and 30",
        says: "5 % less than healthy on RAID5, and up to 1.7 times SPDK's throughput. On RAID6 SPDK loses 23 % and dRAID 11 %, and \
               2.6 times is left.",
    },
    Shown {
        name: "rebuild",
        figures: "Figure 17a",
        says: "dRAID is near the optimum at every width, where all reads are degraded.",
    },
    Shown { name: "lost-chunks", figures: "Figure 17a, as reads", says: "the same." },
    Shown {
        name: "reducers",
        figures: "Figure 17b",
        says: "with links of 25 and 100 Gbit/s mixed, reducers chosen by bandwidth read 53 % more than random ones.",
    },
    Shown {
        name: "serial",
        figures: "Figure 7",
        says: "how a server's work on a partial write is done in parallel; it isn't measured alone.",
    },
];

/// Of a figure of ours, if the paper has such a one.
pub fn of(name: &str) -> Option<&'static Shown> {
    SHOWN.iter().find(|shown| shown.name == name)
}

/// The paper's ratios beside ours.
pub fn beside(known: &[(&Figure, Measured)]) -> String {
    let find = |figure: &str| known.iter().find(|(other, _)| other.name == figure).map(|(_, found)| found);
    let row = |figure: &str, series: &str, arm: Arm, x: f64| find(figure)?.row(series, arm.name(), x);
    let gain = |figure: &str, series: &str, x: f64| {
        let rate = |arm| row(figure, series, arm, x).map(|row| row.bytes_per_second);
        Some(rate(Arm::Offload)? / rate(Arm::HostCentric)?)
    };
    let span = |figure: &str, series: &str| {
        let places = find(figure)?.rows.iter().filter(|row| row.series == series).map(|row| row.x);
        let gains: Vec<f64> = places.filter_map(|x| gain(figure, series, x)).collect();
        let (least, most) = (gains.iter().copied().reduce(f64::min)?, gains.into_iter().reduce(f64::max)?);
        Some(format!("{least:.2} to {most:.2}"))
    };
    let share = |part: Option<&Line>, whole: Option<&Line>| Some(part?.of_goodput / whole?.of_goodput);
    let kept = |part: &str, whole: &str, series: &str, arm| {
        share(row(part, series, arm, 128.0), row(whole, series, arm, 128.0)).map(two)
    };
    let reads = |series, arm| kept("degraded-reads-by-size", "reads-by-size", series, arm);
    let writes = |series, arm| kept("degraded-writes", "writes-by-size", series, arm);
    let reducers = |arm| row("reducers", "RAID5", arm, 8.0);
    let (host, offload) = (Arm::HostCentric, Arm::Offload);
    let rows = [
        ("9: reads of 128 KiB", "about 1", gain("reads-by-size", "RAID5", 128.0).map(two)),
        ("10: writes of 128 KiB, RAID5", "1.7", gain("writes-by-size", "RAID5", 128.0).map(two)),
        ("10: whole stripes, RAID5", "about 1", gain("writes-by-size", "RAID5", 3584.0).map(two)),
        ("23: writes of 128 KiB, RAID6", "2.3", gain("writes-by-size", "RAID6", 128.0).map(two)),
        ("11: by chunk, RAID5", "up to 1.7", span("writes-by-chunk", "RAID5")),
        ("24: by chunk, RAID6", "up to 2.6", span("writes-by-chunk", "RAID6")),
        ("12: 18 servers, RAID5", "1.8 or more", gain("servers", "RAID5", 18.0).map(two)),
        ("13: with reads, RAID5", "1.4 to 1.7, reads alone 1", span("read-share", "RAID5")),
        ("26: with reads, RAID6", "1.6 to 2.3, reads alone 1", span("read-share", "RAID6")),
        ("14b: half reads, 18 servers, RAID5", "up to 3", gain("read-share", "RAID5", 50.0).map(two)),
        ("15: degraded by healthy reads, RAID5, dRAID", "0.95", reads("RAID5", offload)),
        ("15: the same of SPDK", "0.57", reads("RAID5", host)),
        ("28: degraded by healthy reads, RAID6, dRAID", "0.95", reads("RAID6", offload)),
        ("28: the same of SPDK", "0.61", reads("RAID6", host)),
        ("16: degraded reads by width, RAID5", "up to 2.4", span("degraded-reads-by-width", "RAID5")),
        ("17a: rebuild by width, RAID5", "near the optimum", span("rebuild", "RAID5")),
        (
            "17b: reducers by bandwidth, by random ones",
            "1.53",
            share(reducers(Arm::Bandwidth), reducers(Arm::Uniform)).map(two),
        ),
        ("18: degraded writes, RAID5", "up to 1.7", span("degraded-writes", "RAID5")),
        ("18: degraded by healthy writes, RAID5, dRAID", "0.95", writes("RAID5", offload)),
        ("18: the same of SPDK", "0.95", writes("RAID5", host)),
        ("30: degraded writes, RAID6", "2.6", span("degraded-writes", "RAID6")),
        ("30: degraded by healthy writes, RAID6, dRAID", "0.89", writes("RAID6", offload)),
        ("30: the same of SPDK", "0.77", writes("RAID6", host)),
    ];
    let mut text = "## Beside the paper\n\nBy SPDK's way, or by the host-centric one here, unless the line says otherwise.\n\n\
                    | figure | paper | here |\n|---|---|---:|\n"
        .to_owned();
    for (what, paper, found) in rows {
        let _ =
            writeln!(text, "| {what} | {paper} | {} |", found.unwrap_or_else(|| "not measured".to_owned()));
    }
    text + "\n"
}

fn two(value: f64) -> String {
    format!("{value:.2}")
}

pub const DIFFERS: &str = "## What differs, and why

What is called a guess was not measured.

- **Links are the bound here, and drives often are in the paper.** Its eight SSDs give 5,000 MB/s of small
  writes, so dRAID stops there (figures 10, 11, 13, 18). Members in memory don't, and offload fills the link:
  gains are those of bytes, 2 on RAID5 and 3 on RAID6, where the paper has 1.7 and 2.3.
- **Half reads** (figures 13 and 26): a duplex link carries reads and writes at once, so offload moves 1.8
  times a link's goodput. The paper's drives are congested there; with 18 servers, and so 18 drives, it has
  up to 3 times as well (figure 14b).
- **Writes of 256 KiB to 1 MiB**: host-centric writes stay below their bound, so gains are above 2 and 3. A
  guess: with eight requests under way, each of which first reads and then writes, either direction of the
  link idles at times.
- **Writes of 4 KiB**: the processors are the bound. Two cores run the client and all servers.
- **Small chunks** (figures 11 and 24): a write of 128 KiB covers most of a stripe in chunks of 32 KiB, so
  there is less to save. The paper's most of RAID6 is there; it gives no reason but the host's parity.
- **Width** (figures 12 and 25): with equal links four servers fill the client's. So growth with servers shows
  where their links have a fifth of its rate.
- **Degraded reads** are as in the paper, on both sides: host-centric 0.60 and 0.62 beside 0.57 and 0.61. By
  width (figure 16) host-centric stays at its bound here, where SPDK falls beyond 6 servers.
- **Degraded writes** of 128 KiB (figures 18 and 30) lose little on either side, as bytes have it. The paper's
  losses on RAID6 are larger; it doesn't say by what. Ratios above 1 are of figures with a goodput measured
  at different times: other programs ran.
- **Reducers** (figure 17b) gain more, because more servers are slow: 3 of 7 at a quarter of the rate. The
  paper doesn't say how many of its links have 25 Gbit/s.
- **Latency** (figures 14 and 27) is measured at a given rate of arrivals, not by requests under way.
- **Linux MD** isn't run over these servers; the paper has it far below both.
- **Smaller by far**: links of 500 Mbit/s instead of 100 Gbit/s, TCP instead of RDMA, all on one machine.
  Where *busy* is near 100 %, most of it is other programs' work.

";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::experiments;

    #[test]
    fn every_figure_of_the_paper_belongs_to_one_of_ours() {
        let ours = experiments::all(1.0);
        for shown in SHOWN {
            assert!(ours.iter().any(|figure| figure.name == shown.name), "{}", shown.name);
        }
        assert!(of("barrier").is_none(), "the paper has none");
    }

    #[test]
    fn what_was_not_measured_is_said_to_be() {
        let text = beside(&[]);
        assert!(
            text.contains("| 17b: reducers by bandwidth, by random ones | 1.53 | not measured |"),
            "{text}"
        );
    }
}
