//! What dRAID's paper shows of what is measured here, its ratios beside ours, and why they differ.

use super::experiments::{Arm, READ, WRITTEN};
use crate::figures::paper::Claim;
use crate::figures::paper::Wanted::{self, Alike, More, Within};
use crate::figures::quantity::Quantity;

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

const HOST: &str = Arm::HostCentric.name();
const OFFLOAD: &str = Arm::Offload.name();
const P5: &str = "RAID5, 128 KiB";
const P6: &str = "RAID6, 128 KiB";
const WIDE: &str = "RAID5, 18 servers";

const fn at_least(least: f64) -> Wanted {
    Within(least, f64::INFINITY)
}

/// Offload by host-centric.
const fn gain(words: &'static str, experiment: &'static str, place: &'static str, wanted: Wanted) -> Claim {
    let (quantity, base_at) = (Quantity::Throughput, ("", ""));
    Claim { words, experiment, place, arm: OFFLOAD, base: HOST, base_at, quantity, wanted, why: "" }
}

/// By what one link carries.
const fn by_link(link: &'static str, claim: Claim) -> Claim {
    Claim { base_at: ("", link), ..claim }
}

/// Why it isn't so, where it isn't.
const fn because(why: &'static str, claim: Claim) -> Claim {
    Claim { why, ..claim }
}

/// Host-centric by the bound.
const fn by_bound(words: &'static str, place: &'static str) -> Claim {
    let claim = gain(words, "partial-writes", place, at_least(0.95));
    Claim { arm: HOST, base: "", quantity: Quantity::OfBound, ..claim }
}

/// Servers' CPU, offload by plain targets.
const fn cpu(words: &'static str, experiment: &'static str, place: &'static str) -> Claim {
    let claim = gain(words, experiment, place, Within(f64::NEG_INFINITY, 1.5));
    Claim { quantity: Quantity::ServersCpu, ..claim }
}

const fn lost(words: &'static str, place: &'static str) -> Claim {
    by_link(READ, gain(words, "lost-chunks", place, at_least(0.9)))
}

/// Reducers by bandwidth, by uniform ones.
const fn reducers(words: &'static str, place: &'static str, wanted: Wanted) -> Claim {
    let claim = gain(words, "reducers", place, wanted);
    Claim { arm: Arm::Bandwidth.name(), base: Arm::Uniform.name(), ..claim }
}

/// More servers by fewer.
const fn growth(words: &'static str, place: &'static str, base: &'static str) -> Claim {
    let claim = gain(words, "servers", place, Within(1.43, 1.58));
    Claim { base: OFFLOAD, base_at: ("", base), ..claim }
}

/// Degraded reads by healthy ones.
const fn reads(arm: &'static str, words: &'static str, place: &'static str, wanted: Wanted) -> Claim {
    let claim = gain(words, "degraded-reads-by-size", place, wanted);
    Claim { arm, base: arm, base_at: ("reads-by-size", ""), ..claim }
}

/// The same of writes.
const fn writes(arm: &'static str, words: &'static str, place: &'static str, wanted: Wanted) -> Claim {
    let claim = gain(words, "degraded-writes", place, wanted);
    Claim { arm, base: arm, base_at: ("writes-by-size", ""), ..claim }
}

/// What the project set out to reach.
pub const TARGETS: &[Claim] = &[
    by_bound("RAID5: partial writes, host-centric, by their bound (half of the goodput)", P5),
    by_bound("RAID6: partial writes, host-centric, by their bound (a third of the goodput)", P6),
    by_link(WRITTEN, gain("RAID5: partial writes, offload, by goodput", "partial-writes", P5, at_least(0.9))),
    by_link(WRITTEN, gain("RAID6: partial writes, offload, by goodput", "partial-writes", P6, at_least(0.9))),
    cpu("RAID5: servers' CPU a MiB of partial writes, offload by plain targets", "partial-writes", P5),
    cpu("RAID6: servers' CPU a MiB of partial writes, offload by plain targets", "partial-writes", P6),
    cpu("RAID5: the same in chunks of 64 KiB", "writes-by-chunk", "RAID5, 64 KiB"),
    cpu("RAID6: the same in chunks of 64 KiB", "writes-by-chunk", "RAID6, 64 KiB"),
    lost("RAID5: reads of 64 KiB of lost chunks alone, offload, by goodput", "RAID5, 64 KiB"),
    lost("RAID6: reads of 64 KiB of lost chunks alone, offload, by goodput", "RAID6, 64 KiB"),
    reducers("RAID5: rebuild under unequal links, reducers by bandwidth", "RAID5, 8 servers", at_least(1.5)),
    reducers("RAID6: rebuild under unequal links, reducers by bandwidth", "RAID6, 8 servers", at_least(1.5)),
    growth("RAID5: 6 servers with slow links by 4, offload", "RAID5, 6 servers", "RAID5, 4 servers"),
    growth("RAID6: 6 servers with slow links by 4, offload", "RAID6, 6 servers", "RAID6, 4 servers"),
];

const REBUILT: &str =
    "a guess: a rebuild's begin and end are in it, and 64 MiB, a member's bytes, take 1.1 s at best";
const BY_BYTES: &str =
    "bytes have it so: 2.99 received for each, healthy 3.01; the paper doesn't say by what SPDK loses";

/// What the paper has, in the order of its figures.
pub const CLAIMS: &[Claim] = &[
    gain("9: reads of 128 KiB, RAID5: about 1", "reads-by-size", P5, Alike(0.05)),
    gain("10: writes of 128 KiB, RAID5: 1.7", "writes-by-size", P5, More),
    gain("10: whole stripes, RAID5: about 1", "writes-by-size", "RAID5, 3584 KiB", Alike(0.05)),
    gain("23: writes of 128 KiB, RAID6: 2.3", "writes-by-size", P6, More),
    gain("11: chunks of 128 KiB, RAID5: up to 1.7", "writes-by-chunk", P5, More),
    gain("11: chunks of 1 MiB, RAID5: up to 1.7", "writes-by-chunk", "RAID5, 1024 KiB", More),
    gain("24: chunks of 32 KiB, RAID6: up to 2.6", "writes-by-chunk", "RAID6, 32 KiB", More),
    gain("12: 18 servers, RAID5: 1.8 or more", "servers", WIDE, More),
    gain("13: 25 % reads, RAID5: 1.4 to 1.7", "read-share", "RAID5, 25 %", More),
    gain("13: 75 % reads, RAID5: 1.4 to 1.7", "read-share", "RAID5, 75 %", More),
    gain("13: reads alone, RAID5: 1", "read-share", "RAID5, 100 %", Alike(0.05)),
    gain("26: 25 % reads, RAID6: 1.6 to 2.3", "read-share", "RAID6, 25 %", More),
    gain("26: 75 % reads, RAID6: 1.6 to 2.3", "read-share", "RAID6, 75 %", More),
    gain("26: reads alone, RAID6: 1", "read-share", "RAID6, 100 %", Alike(0.05)),
    gain("14b: half reads, RAID5: up to 3 with 18 servers", "read-share", "RAID5, 50 %", More),
    reads(OFFLOAD, "15: degraded by healthy reads, RAID5, dRAID: 0.95", P5, at_least(0.95)),
    reads(HOST, "15: the same of SPDK: 0.57 (bytes allow 0.571)", P5, Within(0.52, 0.62)),
    reads(OFFLOAD, "28: degraded by healthy reads, RAID6, dRAID: 0.95", P6, at_least(0.95)),
    reads(HOST, "28: the same of SPDK: 0.61 (bytes allow 0.615)", P6, Within(0.56, 0.66)),
    gain("16: degraded reads, 18 servers, RAID5: up to 2.4", "degraded-reads-by-width", WIDE, More),
    gain("17a: rebuild, 18 servers, RAID5: more", "rebuild", WIDE, More),
    because(
        REBUILT,
        by_link(READ, gain("17a: the same by goodput: near the optimum", "rebuild", WIDE, at_least(0.9))),
    ),
    reducers("17b: reducers by bandwidth, by random ones: 1.53", "RAID5, 8 servers", More),
    gain("18: degraded writes, RAID5: up to 1.7", "degraded-writes", P5, More),
    writes(OFFLOAD, "18: degraded by healthy writes, RAID5, dRAID: 0.95", P5, at_least(0.95)),
    writes(HOST, "18: the same of SPDK: 0.95", P5, Within(0.9, 1.0)),
    gain("30: degraded writes, RAID6: 2.6", "degraded-writes", P6, More),
    writes(OFFLOAD, "30: degraded by healthy writes, RAID6, dRAID: 0.89", P6, Within(0.84, 0.94)),
    because(BY_BYTES, writes(HOST, "30: the same of SPDK: 0.77", P6, Within(0.72, 0.82))),
];

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
- **Degraded writes** of 128 KiB (figures 18 and 30) lose what bytes have them lose: host-centric ones 9 % on
  RAID5 (2.20 received for each, healthy 2.00), offloaded ones 11 % on RAID6 (1.13 sent). The paper's loss of
  SPDK on RAID6 is larger; it doesn't say by what. Ratios above 1 are of two figures measured at different
  times: other programs ran.
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
}
