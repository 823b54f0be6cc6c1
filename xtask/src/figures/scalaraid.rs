//! ScalaRAID (Yi and others, HotStorage 2022): fine locks for stripes and for the bitmap's counters beside
//! MD's coarse ones; and what the bitmap costs at all.

mod text;

use super::experiment::{Arm, Experiment, Places, Series};
use super::paper::{Claim, Figure, Panel, Paper, Wanted};
use super::quantity::Quantity;

const ORIG: Arm = ("orig-raid", "--ablate orig-raid");
const HEMI: Arm = ("hemi-raid", "--ablate hemi-raid");
const SCALA: Arm = ("scala-raid", "--ablate scala-raid");
const OURS: Arm = ("pinstripe", "--ablate pinstripe");
const ALL: &[Arm] = &[ORIG, HEMI, SCALA, OURS];
const PAPERS: &[Arm] = &[ORIG, HEMI, SCALA];
/// The three designs with each lock held for 2 us longer, so that few threads meet as many do.
const HELD: &[Arm] = &[
    (ORIG.0, "--ablate orig-raid,hold=2000"),
    (HEMI.0, "--ablate hemi-raid,hold=2000"),
    (SCALA.0, "--ablate scala-raid,hold=2000"),
];
const BITMAP: &[Arm] = &[("no bitmap", "--bitmap none"), ("bitmap", "--bitmap internal")];

/// The paper's 2+1, 4+1 and 6+1, with full stripes of 128, 256 and 384 KiB.
const STRIPES: Places = Places::Named(&[
    ("2+1", "--members 3 --size 128K"),
    ("4+1", "--members 5 --size 256K"),
    ("6+1", "--members 7 --size 384K"),
]);
const SMALL: Places = Places::Named(&[
    ("2+1", "--members 3 --size 4K"),
    ("4+1", "--members 5 --size 4K"),
    ("6+1", "--members 7 --size 4K"),
]);
const LOADS: Places = Places::Named(&[
    ("random 4 KiB, depth 1", "--pattern random --size 4K --depth 1"),
    ("random 4 KiB", "--pattern random --size 4K --depth 32"),
    ("random 64 KiB", "--pattern random --size 64K --depth 32"),
    ("stream 4 KiB", "--pattern sequential --size 4K --depth 32"),
    ("stream of stripes", "--pattern sequential --size 128K --depth 32"),
]);

const fn experiment(
    name: &'static str,
    title: &'static str,
    places: Places,
    arms: &'static [Arm],
    options: &'static str,
) -> Experiment {
    Experiment { name, title, series: Series::Real, places, arms, options, is_short: false }
}

/// Members in memory.
macro_rules! real {
    ($rest:literal) => {
        concat!("--level 5 --device mem:64M --depth 32 --seconds 0.2 --warm-up 0.05 ", $rest)
    };
}

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        is_short: true,
        ..experiment(
            "threads",
            "2+1, a stream of full stripes",
            Places::Threads(&[1, 2, 3, 5, 9, 17, 33]),
            ALL,
            real!("--members 3 --pattern sequential --size 128K"),
        )
    },
    experiment(
        "threads-reads",
        "2+1, a stream of reads of 128 KiB",
        Places::Threads(&[1, 2, 3, 5, 9, 17, 33]),
        PAPERS,
        real!("--members 3 --pattern sequential --size 128K --reads 100"),
    ),
    experiment(
        "threads-4k",
        "2+1, random writes of 4 KiB",
        Places::Threads(&[1, 2, 3, 5, 9, 17, 33]),
        ALL,
        real!("--members 3 --pattern random --size 4K"),
    ),
    experiment("small", "Random writes of 4 KiB", SMALL, ALL, real!("--pattern random")),
    experiment("small-reads", "Random reads of 4 KiB", SMALL, PAPERS, real!("--pattern random --reads 100")),
    experiment("streams", "Streams of full stripes", STRIPES, ALL, real!("--pattern sequential")),
    experiment("stripes", "Random full stripes", STRIPES, ALL, real!("--pattern random")),
    experiment(
        "held",
        "Locks held for 2 us longer",
        Places::Named(&[
            ("stream of stripes, 2+1", "--members 3 --pattern sequential --size 128K"),
            ("random stripes, 2+1", "--members 3 --pattern random --size 128K"),
            ("random 4 KiB, 2+1", "--members 3 --pattern random --size 4K"),
        ]),
        HELD,
        real!(""),
    ),
    Experiment {
        series: Series::Virtual,
        is_short: true,
        ..experiment(
            "bitmap",
            "2+1 of 980 Pro, writes with and without a bitmap",
            LOADS,
            BITMAP,
            "--level 5 --members 3 --device model:980-pro:64M --seconds 0.03 --warm-up 0.02",
        )
    },
];

const fn panel(experiment: &'static str, quantity: Quantity) -> Panel {
    Panel { experiment, quantity, base: ORIG.0 }
}

use Quantity::{Cpu, HandOff, Inside, Mean, P999, Throughput, Waiting};

const FIGURES: &[Figure] = &[
    Figure {
        title: "Figure 3: what MD makes of its SSDs",
        paper: text::FIGURE_3,
        panels: &[
            panel("threads", Waiting),
            panel("threads", Inside),
            panel("threads", HandOff),
            panel("streams", Waiting),
            panel("streams", HandOff),
        ],
    },
    Figure {
        title: "Figure 5: throughput and latency",
        paper: text::FIGURE_5,
        panels: &[
            panel("threads", Throughput),
            panel("threads-reads", Throughput),
            panel("threads-4k", Throughput),
            panel("small", P999),
            panel("small", Mean),
            panel("small-reads", P999),
        ],
    },
    Figure {
        title: "Figure 6: more SSDs, and the CPU",
        paper: text::FIGURE_6,
        panels: &[
            panel("streams", Throughput),
            panel("stripes", Throughput),
            panel("streams", Cpu),
            panel("small", Cpu),
            panel("small", Waiting),
            panel("small", Inside),
        ],
    },
    Figure {
        title: "With locks held for 2 us longer",
        paper: text::HELD,
        panels: &[panel("held", Throughput), panel("held", Waiting), panel("held", P999), panel("held", Cpu)],
    },
    Figure {
        title: "The bitmap",
        paper: text::BITMAP,
        panels: &[Panel { experiment: "bitmap", quantity: Throughput, base: "no bitmap" }],
    },
];

const fn claim(words: &'static str, experiment: &'static str, quantity: Quantity, wanted: Wanted) -> Claim {
    Claim {
        words,
        experiment,
        place: "",
        arm: SCALA.0,
        base: ORIG.0,
        base_at: ("", ""),
        quantity,
        wanted,
        why: "",
    }
}

use Wanted::{Alike, Less, More};

/// At one of [`STRIPES`].
const fn at(place: &'static str, claim: Claim) -> Claim {
    Claim { place, ..claim }
}

/// A gain that the paper's many threads have.
const fn with_threads(claim: Claim) -> Claim {
    Claim { why: text::FEW_THREADS, ..claim }
}

/// HemiRAID's.
const fn hemi(claim: Claim) -> Claim {
    Claim { arm: HEMI.0, ..claim }
}

const CLAIMS: &[Claim] = &[
    Claim {
        arm: ORIG.0,
        base_at: ("", "1"),
        ..claim("3: MD's waiting for locks, the most threads by 1: more", "threads", Waiting, More)
    },
    hemi(with_threads(claim(
        "5a: HemiRAID over MD, a stream of full stripes, 33 threads: 1.40",
        "threads",
        Throughput,
        More,
    ))),
    Claim {
        base: HEMI.0,
        ..with_threads(claim(
            "5a: ScalaRAID over HemiRAID, the same: 1.35 on average",
            "threads",
            Throughput,
            More,
        ))
    },
    with_threads(claim("5a: ScalaRAID over MD, the same: 1.89", "threads", Throughput, More)),
    claim("5b: reads: alike", "threads-reads", Throughput, Alike(0.05)),
    at("2+1", with_threads(claim("5c: tail of 4 KiB writes, 2+1: 0.45", "small", P999, Less))),
    at("4+1", with_threads(claim("5c: the same, 4+1: 0.15", "small", P999, Less))),
    at("6+1", with_threads(claim("5c: the same, 6+1: 0.16", "small", P999, Less))),
    at("2+1", claim("5d: tail of 4 KiB reads: alike", "small-reads", P999, Alike(0.25))),
    at("2+1", with_threads(claim("6a: streams of stripes, 2+1: 1.9", "streams", Throughput, More))),
    at("4+1", with_threads(claim("6a: the same, 4+1: 1.8", "streams", Throughput, More))),
    at("6+1", with_threads(claim("6a: the same, 6+1: 1.6", "streams", Throughput, More))),
    at(
        "2+1",
        with_threads(claim("6b: random full stripes: 1.67 on average; 2+1", "stripes", Throughput, More)),
    ),
    at("4+1", with_threads(claim("6b: the same, 4+1", "stripes", Throughput, More))),
    at("6+1", with_threads(claim("6b: the same, 6+1", "stripes", Throughput, More))),
    hemi(with_threads(claim("6c: CPU for as much, HemiRAID: 0.80", "threads", Cpu, Less))),
    with_threads(claim("6c: CPU for as much, ScalaRAID: 0.57", "threads", Cpu, Less)),
    claim("6d: waiting for locks, a stream by threads: less", "threads", Waiting, Less),
    at("2+1", claim("6d: the same, streams of stripes, 2+1", "streams", Waiting, Less)),
    at("4+1", claim("6d: the same, 4+1", "streams", Waiting, Less)),
    at("6+1", claim("6d: the same, 6+1", "streams", Waiting, Less)),
    at("2+1", claim("6d: the same, random full stripes, 2+1", "stripes", Waiting, Less)),
    at("4+1", claim("6d: the same, 4+1", "stripes", Waiting, Less)),
    at("6+1", claim("6d: the same, 6+1", "stripes", Waiting, Less)),
    at("2+1", claim("6d: the same, random writes of 4 KiB, 2+1", "small", Waiting, Less)),
    at("4+1", claim("6d: the same, 4+1", "small", Waiting, Less)),
    at("6+1", claim("6d: the same, 6+1", "small", Waiting, Less)),
    at(
        "stream of stripes, 2+1",
        hemi(claim("5a with locks held longer: HemiRAID over MD, a stream: 1.40", "held", Throughput, More)),
    ),
    at("stream of stripes, 2+1", claim("5a: the same, ScalaRAID over MD: 1.89", "held", Throughput, More)),
    at("random stripes, 2+1", claim("6b: the same, random full stripes: 1.67", "held", Throughput, More)),
    at("random 4 KiB, 2+1", claim("5c: the same, tail of 4 KiB writes: 0.45", "held", P999, Less)),
    at("stream of stripes, 2+1", claim("6c: the same, CPU for as much, a stream: 0.57", "held", Cpu, Less)),
];

/// The page of it.
pub const PAPER: Paper = Paper {
    name: "scalaraid",
    head: text::HEAD,
    experiments: EXPERIMENTS,
    claims: &[CLAIMS],
    figures: FIGURES,
    differs: text::DIFFERS,
    threads: 33,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_the_page_names_is_run_drawn_and_read_again() {
        super::super::paper::tests::check(&PAPER);
    }

    /// However it comes out.
    #[test]
    fn what_the_paper_says_of_several_arrays_has_a_row_for_each() {
        for (experiment, quantity) in [
            ("streams", Throughput),
            ("stripes", Throughput),
            ("small", P999),
            ("streams", Waiting),
            ("stripes", Waiting),
            ("small", Waiting),
        ] {
            for place in ["2+1", "4+1", "6+1"] {
                let is_it = |claim: &Claim| {
                    (claim.experiment, claim.place, claim.quantity, claim.arm, claim.base)
                        == (experiment, place, quantity, SCALA.0, ORIG.0)
                };
                assert!(CLAIMS.iter().any(is_it), "{experiment}, {place}: {quantity:?}");
            }
        }
    }
}
