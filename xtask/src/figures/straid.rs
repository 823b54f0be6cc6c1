//! StRAID (Wang and others, USENIX ATC 2022): a worker for each stripe write beside MD's workers for all.

mod claims;
mod text;

use super::experiment::{Arm, Experiment, Places, Series};
use super::paper::{Figure, Panel, Paper};
use super::quantity::Quantity;

const MD: Arm = ("orig-raid", "--ablate orig-raid");
const STRAID: Arm = ("straid", "--ablate straid");
const ALONE: Arm = ("straid, no joining", "--ablate straid,join=off");
const HELD: Arm = ("orig-raid, locks held 2 us longer", "--ablate orig-raid,hold=2000");
const OURS: Arm = ("pinstripe", "--ablate pinstripe");
const BARE: Arm = ("straid, no cache", "--ablate straid,cache=0");
const ALL: &[Arm] = &[MD, STRAID, OURS];
const PAIR: &[Arm] = &[MD, STRAID];

const THREADS: Places = Places::Threads(&[1, 2, 4, 8, 16, 32, 64]);
const DEPTHS: Places = Places::Depths(&[1, 4, 16, 64]);

/// Members in memory, and 64 requests under way for the paper's 64 user threads. While a parity cache fills,
/// each row takes memory that was never touched before: the warm-up is as long as the measurement.
macro_rules! real {
    ($rest:literal) => {
        concat!("--members 6 --device mem:64M --depth 64 --seconds 0.2 --warm-up 0.2 ", $rest)
    };
}

/// Models of the paper's SSDs.
macro_rules! modelled {
    ($rest:literal) => {
        concat!("--members 6 --seconds 0.015 --warm-up 0.01 ", $rest)
    };
}

/// A trace's requests, as the paper has them: chunks of 8 KiB, 32 at a time.
macro_rules! trace {
    ($rest:literal) => {
        concat!("--members 6 --device mem:256M --chunk 8K --depth 32 ", $rest)
    };
}

/// The same over models of the paper's SSDs, at the rates that they keep when they are written all the time.
macro_rules! modelled_trace {
    ($rest:literal) => {
        concat!("--members 6 --device model:980-pro:128M --used-up --chunk 8K --depth 32 ", $rest)
    };
}

const CACHES: &[Arm] = &[
    ("no cache", "--ablate straid,cache=0"),
    ("4 MiB", "--ablate straid,cache=4M"),
    ("16 MiB", "--ablate straid,cache=16M"),
    ("64 MiB", "--ablate straid,cache=64M"),
    ("256 MiB", "--ablate straid,cache=256M"),
    MD,
];

const fn real(
    name: &'static str,
    title: &'static str,
    arms: &'static [Arm],
    options: &'static str,
) -> Experiment {
    Experiment { name, title, series: Series::Real, places: THREADS, arms, options, is_short: false }
}

const fn modelled(
    name: &'static str,
    title: &'static str,
    arms: &'static [Arm],
    options: &'static str,
) -> Experiment {
    Experiment { name, title, series: Series::Virtual, places: DEPTHS, arms, options, is_short: false }
}

const WORKLOADS: Places = Places::Named(&[
    ("Pangu-A", "--synthetic pangu-a --requests 20000"),
    ("Pangu-B", "--synthetic pangu-b --requests 20000"),
    ("prxy_0", "--synthetic prxy_0 --requests 60000"),
    ("prn_0", "--synthetic prn_0 --requests 40000"),
    ("varmail", "--synthetic varmail --requests 40000"),
    ("fileserver", "--synthetic fileserver --requests 15000"),
]);

/// Fewer of them: models of drives are bound by themselves, whatever the time.
const MODELLED_WORKLOADS: Places = Places::Named(&[
    ("Pangu-A", "--synthetic pangu-a --requests 5000"),
    ("Pangu-B", "--synthetic pangu-b --requests 5000"),
    ("prxy_0", "--synthetic prxy_0 --requests 15000"),
    ("prn_0", "--synthetic prn_0 --requests 10000"),
    ("varmail", "--synthetic varmail --requests 10000"),
    ("fileserver", "--synthetic fileserver --requests 4000"),
]);

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        is_short: true,
        ..real(
            "random-4k",
            "RAID5, random writes of 4 KiB",
            &[MD, STRAID, BARE, OURS],
            real!("--level 5 --pattern random --size 4K"),
        )
    },
    real("random-64k", "RAID5, random writes of 64 KiB", ALL, real!("--level 5 --pattern random --size 64K")),
    real("random-stripe", "RAID5, random full stripes", ALL, real!("--level 5 --pattern random --size 320K")),
    real(
        "stream-64k",
        "RAID5, a stream of 64 KiB writes",
        &[MD, STRAID, ALONE, OURS],
        real!("--level 5 --pattern sequential --size 64K"),
    ),
    real(
        "stream-stripe",
        "RAID5, a stream of full stripes",
        &[MD, STRAID, ALONE, OURS],
        real!("--level 5 --pattern sequential --size 320K"),
    ),
    real(
        "raid6-4k",
        "RAID6, random writes of 4 KiB",
        &[MD, STRAID, BARE],
        real!("--level 6 --pattern random --size 4K"),
    ),
    real("raid6-64k", "RAID6, random writes of 64 KiB", PAIR, real!("--level 6 --pattern random --size 64K")),
    real("raid6-stripe", "RAID6, random full stripes", PAIR, real!("--level 6 --pattern random --size 256K")),
    real(
        "raid6-64k-chunk-8k",
        "RAID6, chunks of 8 KiB, 64 KiB writes",
        &[MD, STRAID, BARE],
        real!("--level 6 --pattern random --size 64K --chunk 8K"),
    ),
    real(
        "md-16-users",
        "RAID5, random 64 KiB, 16 requests under way",
        &[MD],
        "--members 6 --device mem:64M --depth 16 --seconds 0.2 --warm-up 0.05 --pattern random --size 64K",
    ),
    real(
        "meter",
        "RAID5, random writes of 4 KiB, locks held for longer",
        &[MD, HELD],
        real!("--level 5 --pattern random --size 4K"),
    ),
    Experiment {
        places: Places::Named(&[
            ("RAID5, 4 KiB", "--level 5 --size 4K"),
            ("RAID6, 64 KiB in chunks of 8 KiB", "--level 6 --size 64K --chunk 8K"),
        ]),
        ..real(
            "filled",
            "Random writes, after 4 seconds of them",
            &[MD, STRAID, BARE],
            "--members 6 --device mem:64M --depth 64 --seconds 0.5 --warm-up 4 --pattern random",
        )
    },
    real("reads-4k", "RAID5, random reads of 4 KiB", PAIR, real!("--reads 100 --size 4K")),
    real("reads-64k", "RAID5, random reads of 64 KiB", PAIR, real!("--reads 100 --size 64K")),
    Experiment {
        places: Places::Named(&[
            ("reads of 64 KiB", "--reads 100 --size 64K"),
            ("reads of a stripe", "--reads 100 --size 320K"),
            ("writes of 64 KiB", "--size 64K"),
            ("writes of a stripe", "--size 320K"),
        ]),
        ..real("degraded", "RAID5, a member missing, random", PAIR, real!("--lost 0"))
    },
    Experiment {
        places: WORKLOADS,
        ..real("traces", "Synthetic traces, RAID5", &[MD, STRAID, BARE, OURS], trace!("--level 5"))
    },
    Experiment {
        places: WORKLOADS,
        ..real("traces-raid6", "Synthetic traces, RAID6", &[STRAID], trace!("--level 6"))
    },
    Experiment {
        places: Places::Named(&[("prxy_0", "--synthetic prxy_0 --requests 100000")]),
        ..real("caches", "StRAID's parity cache, synthetic prxy_0", CACHES, trace!("--level 5"))
    },
    Experiment {
        is_short: true,
        ..modelled(
            "ssd-random-64k",
            "Six 980 Pro, random writes of 64 KiB",
            ALL,
            modelled!("--device model:980-pro:32M --pattern random --size 64K"),
        )
    },
    modelled(
        "ssd-random-4k",
        "Six 980 Pro, random writes of 4 KiB",
        &[MD, STRAID, BARE, OURS],
        modelled!("--device model:980-pro:32M --pattern random --size 4K"),
    ),
    modelled(
        "ssd-stream-64k",
        "Six 980 Pro, a stream of 64 KiB writes",
        &[MD, STRAID, ALONE, OURS],
        modelled!("--device model:980-pro:32M --pattern sequential --size 64K"),
    ),
    modelled(
        "ssd-stream-stripe",
        "Six 980 Pro, a stream of full stripes",
        &[MD, STRAID, ALONE, OURS],
        modelled!("--device model:980-pro:32M --pattern sequential --size 320K"),
    ),
    Experiment {
        places: Places::Named(&[
            ("860 Pro, 64 KiB", "--device model:860-pro:32M --size 64K"),
            ("970 Pro, 64 KiB", "--device model:970-pro:32M --size 64K"),
            ("980 Pro, 64 KiB", "--device model:980-pro:32M --size 64K"),
            ("Optane, 64 KiB", "--device model:optane-pm:32M --size 64K"),
            ("970 Pro, stripe", "--device model:970-pro:32M --size 320K"),
            ("980 Pro, stripe", "--device model:980-pro:32M --size 320K"),
            ("Optane, stripe", "--device model:optane-pm:32M --size 320K"),
        ]),
        ..modelled("devices", "RAID5 of six, random writes", ALL, modelled!("--depth 64"))
    },
    Experiment {
        places: Places::Named(&[
            ("970 Pro, 64 KiB", "--device model:970-pro:32M --size 64K"),
            ("980 Pro, 64 KiB", "--device model:980-pro:32M --size 64K"),
            ("Optane, 64 KiB", "--device model:optane-pm:32M --size 64K"),
            ("970 Pro, stripe", "--device model:970-pro:32M --size 320K"),
            ("980 Pro, stripe", "--device model:980-pro:32M --size 320K"),
        ]),
        ..modelled(
            "devices-used-up",
            "RAID5 of six that were written for long, random writes",
            PAIR,
            modelled!("--used-up --depth 64"),
        )
    },
    Experiment {
        places: MODELLED_WORKLOADS,
        ..modelled(
            "ssd-traces",
            "Synthetic traces, RAID5 of six 980 Pro that were written for long",
            &[MD, STRAID, BARE, OURS],
            modelled_trace!("--level 5"),
        )
    },
    Experiment {
        places: MODELLED_WORKLOADS,
        ..modelled(
            "ssd-traces-raid6",
            "Synthetic traces, RAID6 of six 980 Pro that were written for long",
            &[STRAID],
            modelled_trace!("--level 6"),
        )
    },
    Experiment {
        places: Places::Named(&[("prxy_0", "--synthetic prxy_0 --requests 30000")]),
        ..modelled(
            "ssd-caches",
            "StRAID's parity cache, synthetic prxy_0, six 980 Pro that were written for long",
            CACHES,
            modelled_trace!("--level 5"),
        )
    },
];

const fn panel(experiment: &'static str, quantity: Quantity) -> Panel {
    Panel { experiment, quantity, base: MD.0 }
}

use Quantity::{Cpu, HandOff, Hits, Inside, Mean, P99, PreRead, Throughput, Waiting, Written};

const FIGURES: &[Figure] = &[
    Figure {
        title: "Figure 4: MD's workers",
        paper: text::FIGURE_4,
        panels: &[
            Panel { experiment: "md-16-users", quantity: Throughput, base: "" },
            panel("random-64k", Throughput),
        ],
    },
    Figure {
        title: "Figures 5 and 13: where CPU cycles go",
        paper: text::FIGURE_5_13,
        panels: &[
            panel("random-64k", Waiting),
            panel("random-64k", Inside),
            panel("random-64k", HandOff),
            panel("random-stripe", Waiting),
            panel("random-4k", Inside),
            Panel { experiment: "meter", quantity: Waiting, base: "" },
        ],
    },
    Figure {
        title: "Figure 10: writes",
        paper: text::FIGURE_10,
        panels: &[
            panel("random-4k", Throughput),
            panel("random-stripe", Throughput),
            panel("stream-64k", Throughput),
            panel("stream-stripe", Throughput),
            panel("raid6-4k", Throughput),
            panel("raid6-64k", Throughput),
            panel("raid6-stripe", Throughput),
            panel("filled", Throughput),
            panel("ssd-random-4k", Throughput),
            panel("ssd-random-64k", Throughput),
        ],
    },
    Figure {
        title: "Figure 11: reads",
        paper: text::FIGURE_11,
        panels: &[panel("reads-4k", Throughput), panel("reads-64k", Throughput)],
    },
    Figure {
        title: "Figure 12: latency",
        paper: text::FIGURE_12,
        panels: &[
            panel("random-4k", Mean),
            panel("random-4k", P99),
            panel("random-64k", Mean),
            panel("random-64k", P99),
            panel("random-stripe", Mean),
            panel("ssd-random-64k", Mean),
            panel("ssd-random-64k", P99),
        ],
    },
    Figure {
        title: "Figure 14: CPU",
        paper: text::FIGURE_14,
        panels: &[panel("random-4k", Cpu), panel("random-64k", Cpu), panel("random-stripe", Cpu)],
    },
    Figure {
        title: "Figure 15: what is read and written",
        paper: text::FIGURE_15,
        panels: &[
            panel("ssd-random-64k", Written),
            panel("ssd-random-64k", PreRead),
            panel("ssd-stream-64k", Written),
            panel("ssd-stream-64k", PreRead),
        ],
    },
    Figure {
        title: "Figure 16: chunks",
        paper: text::FIGURE_16,
        panels: &[panel("raid6-64k-chunk-8k", Throughput)],
    },
    Figure {
        title: "Figures 17 and 18: synthetic traces",
        paper: text::FIGURE_17_18,
        panels: &[
            panel("traces", Throughput),
            panel("traces", Mean),
            panel("traces", P99),
            Panel { experiment: "traces-raid6", quantity: Throughput, base: "" },
            panel("ssd-traces", Throughput),
            panel("ssd-traces", Mean),
            panel("ssd-traces", P99),
            panel("ssd-traces", PreRead),
            Panel { experiment: "ssd-traces-raid6", quantity: Throughput, base: "" },
        ],
    },
    Figure {
        title: "Figure 19: devices",
        paper: text::FIGURE_19,
        panels: &[panel("devices", Throughput), panel("devices-used-up", Throughput)],
    },
    Figure {
        title: "Figure 20: two-phase submission",
        paper: text::FIGURE_20,
        panels: &[panel("ssd-stream-64k", Throughput), panel("ssd-stream-stripe", Throughput)],
    },
    Figure {
        title: "Table 5: the parity cache, synthetic prxy_0",
        paper: text::TABLE_5,
        panels: &[
            Panel { experiment: "caches", quantity: Throughput, base: "no cache" },
            Panel { experiment: "caches", quantity: Hits, base: "" },
            Panel { experiment: "caches", quantity: PreRead, base: "no cache" },
            Panel { experiment: "ssd-caches", quantity: Throughput, base: "no cache" },
            Panel { experiment: "ssd-caches", quantity: Hits, base: "" },
            Panel { experiment: "ssd-caches", quantity: PreRead, base: "no cache" },
        ],
    },
    Figure {
        title: "Figure 21: a member missing",
        paper: text::FIGURE_21,
        panels: &[panel("degraded", Throughput)],
    },
];

/// The page of it.
pub const PAPER: Paper = Paper {
    name: "straid",
    head: text::HEAD,
    experiments: EXPERIMENTS,
    claims: claims::CLAIMS,
    figures: FIGURES,
    differs: text::DIFFERS,
    threads: 64,
};

#[cfg(test)]
mod tests {
    #[test]
    fn all_that_the_page_names_is_run_drawn_and_read_again() {
        super::super::paper::tests::check(&super::PAPER);
    }
}
