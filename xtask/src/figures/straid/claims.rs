//! What the paper compares, and which way.

use super::super::paper::{Claim, Wanted};
use super::super::quantity::Quantity::{
    self, Cpu, Hits, Inside, Mean, P99, PreRead, Throughput, Waiting, Written,
};
use super::{ALONE, BARE, HELD, MD, STRAID, text};

const fn claim(words: &'static str, experiment: &'static str, quantity: Quantity, wanted: Wanted) -> Claim {
    Claim {
        words,
        experiment,
        place: "",
        arm: STRAID.0,
        base: MD.0,
        base_at: ("", ""),
        quantity,
        wanted,
        why: "",
    }
}

use Wanted::{Alike, Less, More, Within};

/// Of StRAID without its cache.
const fn bare(claim: Claim) -> Claim {
    Claim { arm: BARE.0, ..claim }
}

const fn at(place: &'static str, claim: Claim) -> Claim {
    Claim { place, ..claim }
}

/// Of one arm at two places.
const fn by_place(arm: &'static str, place: &'static str, base: &'static str, claim: Claim) -> Claim {
    Claim { arm, base: arm, place, base_at: ("", base), ..claim }
}

/// Of one arm in two experiments.
const fn by_experiment(arm: &'static str, base: &'static str, claim: Claim) -> Claim {
    Claim { arm, base: arm, base_at: (base, ""), ..claim }
}

/// Why it isn't so, where it isn't.
const fn because(why: &'static str, claim: Claim) -> Claim {
    Claim { why, ..claim }
}

const MODELLED_17: &str = "17: the same, over models of drives";
const MODELLED_18: &str = "18: the same, over models of drives";

/// Figure 17 of one trace: with StRAID's cache, without it, and over models of drives.
const fn throughput(trace: &'static str, words: &'static str) -> [Claim; 3] {
    three(trace, [words, "17: the same without StRAID's cache", MODELLED_17], Throughput, More)
}

/// The same of figure 18's mean latency.
const fn mean(trace: &'static str, words: &'static str) -> [Claim; 3] {
    three(trace, [words, "18: the same without StRAID's cache", MODELLED_18], Mean, Less)
}

const fn three(
    trace: &'static str,
    [words, bare_words, modelled]: [&'static str; 3],
    quantity: Quantity,
    wanted: Wanted,
) -> [Claim; 3] {
    [
        at(trace, because(text::CACHE, claim(words, "traces", quantity, wanted))),
        at(trace, bare(claim(bare_words, "traces", quantity, wanted))),
        at(trace, because(text::MODELS, claim(modelled, "ssd-traces", quantity, wanted))),
    ]
}

/// The same of figure 18's 99 % latency.
const fn late(trace: &'static str, words: &'static str) -> [Claim; 3] {
    three(trace, [words, "18: the same without StRAID's cache", MODELLED_18], P99, Less)
}

/// Figure 17 of one trace, RAID5 by RAID6, and over models of drives.
const fn by_raid6(trace: &'static str, words: &'static str) -> [Claim; 2] {
    let [here, modelled] = [
        because(text::RAID6, claim(words, "traces", Throughput, More)),
        because(text::SIDE_BY_SIDE, claim(MODELLED_17, "ssd-traces", Throughput, More)),
    ];
    [
        at(trace, by_experiment(STRAID.0, "traces-raid6", here)),
        at(trace, by_experiment(STRAID.0, "ssd-traces-raid6", modelled)),
    ]
}

/// All of them, by the paper's figures.
pub const CLAIMS: &[&[Claim]] = &[
    &[
        by_place(
            MD.0,
            "",
            "1",
            claim("4: MD's workers, 16 users, the most by 1: up to 2.4", "md-16-users", Throughput, More),
        ),
        by_place(
            MD.0,
            "",
            "1",
            claim("4: MD's workers, 64 users, the most by 1: up to 3.6", "random-64k", Throughput, More),
        ),
        by_place(
            MD.0,
            "",
            "1",
            claim("5: MD's waiting for locks, the most workers by 1: more", "random-64k", Waiting, More),
        ),
        Claim {
            arm: HELD.0,
            base: "",
            why: text::HELD,
            ..claim(
                "the meter: % of their time that threads wait for locks that are held for longer",
                "meter",
                Waiting,
                Within(20.0, 100.0),
            )
        },
        claim("13: time inside locks, 64 KiB: 0.11 with waiting", "random-64k", Inside, Less),
        claim("13: the same, full stripes: 0.04", "random-stripe", Inside, Less),
        because(text::CACHE, claim("10: StRAID over MD, 4 KiB random: 2.1", "random-4k", Throughput, More)),
        bare(claim("10: the same without StRAID's cache", "random-4k", Throughput, More)),
        at(
            "1",
            because(text::CACHE, claim("10: 4 KiB random, one user: 2.1", "random-4k", Throughput, More)),
        ),
        at("1", bare(claim("10: the same without StRAID's cache", "random-4k", Throughput, More))),
        at(
            "RAID5, 4 KiB",
            claim("10: the same with a cache that was filled before", "filled", Throughput, More),
        ),
        claim("10: 4 KiB random, over models of drives", "ssd-random-4k", Throughput, More),
        claim("10: 64 KiB random: 2.9", "random-64k", Throughput, More),
        at("1", claim("10: the same, one user: 1.5", "random-64k", Throughput, More)),
        claim("10, 19: full stripes, random: 2.1 (in RAM up to 5.8)", "random-stripe", Throughput, More),
        at("1", claim("10: the same, one user: 4.6", "random-stripe", Throughput, More)),
        because(text::GATHERING, claim("10: a stream of 64 KiB: more", "stream-64k", Throughput, More)),
        at(
            "1",
            because(text::GATHERING, claim("10: the same, one user: more", "stream-64k", Throughput, More)),
        ),
        because(
            text::GATHERING_VIRTUAL,
            claim("10: a stream of 64 KiB, over models of drives", "ssd-stream-64k", Throughput, More),
        ),
        at(
            "16",
            because(
                text::GATHERING_VIRTUAL,
                claim("10: the same, 16 requests under way", "ssd-stream-64k", Throughput, More),
            ),
        ),
        claim("10: full stripes, a stream: 2.1", "stream-stripe", Throughput, More),
        at("1", claim("10: the same, one user: 5.2", "stream-stripe", Throughput, More)),
        claim("10: RAID6, 4 KiB random: more", "raid6-4k", Throughput, More),
        bare(claim("10: the same without StRAID's cache", "raid6-4k", Throughput, More)),
        claim("10: RAID6, 64 KiB random: more", "raid6-64k", Throughput, More),
        claim("10: RAID6, full stripes, random: 2.1", "raid6-stripe", Throughput, More),
        claim("11: reads of 4 KiB: within 5 %", "reads-4k", Throughput, Alike(0.05)),
        claim("11: reads of 64 KiB: within 5 %", "reads-64k", Throughput, Alike(0.05)),
        claim("12: mean latency, 4 KiB: 0.25", "random-4k", Mean, Less),
        bare(claim("12: the same without StRAID's cache", "random-4k", Mean, Less)),
        claim("12: mean latency, 64 KiB: 0.24", "random-64k", Mean, Less),
        claim("12: mean latency, full stripes: 0.31", "random-stripe", Mean, Less),
        because(text::CACHE, claim("12: 99 % latency, 4 KiB: 0.33 to 0.78", "random-4k", P99, Less)),
        bare(claim("12: the same without StRAID's cache", "random-4k", P99, Less)),
        claim("12: 99 % latency, 64 KiB: 0.33 to 0.78", "random-64k", P99, Less),
        claim("12: 99 % latency, full stripes: 0.33 to 0.78", "random-stripe", P99, Less),
        because(text::CACHE, claim("14: CPU for as much, 4 KiB: less", "random-4k", Cpu, Less)),
        bare(claim("14: the same without StRAID's cache", "random-4k", Cpu, Less)),
        claim("14: CPU for as much, 64 KiB: less", "random-64k", Cpu, Less),
        claim("14: CPU for as much, full stripes: less", "random-stripe", Cpu, Less),
        claim("15: bytes written, random: 1", "ssd-random-64k", Written, Alike(0.02)),
        claim("15: bytes read, random: 1", "ssd-random-64k", PreRead, Alike(0.02)),
        because(
            "as many neighbours come during StRAID's read as complete the stripe (64 under way; measured)",
            claim("15: bytes written, a stream: up to 1.12", "ssd-stream-64k", Written, More),
        ),
        claim("15: bytes read, a stream: up to 12", "ssd-stream-64k", PreRead, More),
        at(
            "1",
            because(
                text::ONE_USER,
                claim("15: bytes read, a stream of one user: 0.5", "ssd-stream-64k", PreRead, Less),
            ),
        ),
        because(
            text::CACHE,
            claim("16: chunks of 8 KiB, full stripes: 2.2", "raid6-64k-chunk-8k", Throughput, More),
        ),
        bare(claim("16: the same without StRAID's cache", "raid6-64k-chunk-8k", Throughput, More)),
        at(
            "RAID6, 64 KiB in chunks of 8 KiB",
            claim("16: the same with a cache that was filled before", "filled", Throughput, More),
        ),
        by_experiment(
            STRAID.0,
            "raid6-64k",
            claim("16: chunks of 8 KiB by 64 KiB, StRAID: 1.9", "raid6-64k-chunk-8k", Throughput, More),
        ),
        by_experiment(
            MD.0,
            "raid6-64k",
            claim("16: the same, MD: up to 3.1", "raid6-64k-chunk-8k", Throughput, More),
        ),
    ],
    &throughput("Pangu-A", "17: synthetic Pangu-A: 3.1"),
    &throughput("Pangu-B", "17: synthetic Pangu-B: 3"),
    &throughput("prxy_0", "17: synthetic prxy_0: 3"),
    &throughput("prn_0", "17: synthetic prn_0: more"),
    &throughput("varmail", "17: synthetic varmail: more"),
    &throughput("fileserver", "17: synthetic fileserver: 2.5"),
    &by_raid6("Pangu-A", "17: synthetic Pangu-A, StRAID, RAID5 by RAID6: 1.10 to 1.15"),
    &by_raid6("Pangu-B", "17: synthetic Pangu-B, StRAID, RAID5 by RAID6: 1.10 to 1.15"),
    &by_raid6("prxy_0", "17: synthetic prxy_0, StRAID, RAID5 by RAID6: 1.10 to 1.15"),
    &by_raid6("prn_0", "17: synthetic prn_0, StRAID, RAID5 by RAID6: 1.10 to 1.15"),
    &by_raid6("varmail", "17: synthetic varmail, StRAID, RAID5 by RAID6: 1.10 to 1.15"),
    &by_raid6("fileserver", "17: synthetic fileserver, StRAID, RAID5 by RAID6: 1.10 to 1.15"),
    &mean("Pangu-A", "18: mean latency of writes, synthetic Pangu-A: 0.2"),
    &mean("Pangu-B", "18: mean latency of writes, synthetic Pangu-B: less"),
    &mean("prxy_0", "18: mean latency of writes, synthetic prxy_0: at most 0.51"),
    &mean("prn_0", "18: mean latency of writes, synthetic prn_0: less"),
    &mean("varmail", "18: mean latency of writes, synthetic varmail: less"),
    &mean("fileserver", "18: mean latency of writes, synthetic fileserver: less"),
    &late("Pangu-A", "18: 99 % latency of writes, synthetic Pangu-A: 0.75 on average"),
    &late("Pangu-B", "18: 99 % latency of writes, synthetic Pangu-B: 0.75 on average"),
    &late("prxy_0", "18: 99 % latency of writes, synthetic prxy_0: 0.75 on average"),
    &late("prn_0", "18: 99 % latency of writes, synthetic prn_0: 0.75 on average"),
    &late("varmail", "18: 99 % latency of writes, synthetic varmail: 0.75 on average"),
    &late("fileserver", "18: 99 % latency of writes, synthetic fileserver: 0.75 on average"),
    &[
        at(
            "Optane, 64 KiB",
            because(text::SAME_WORK, claim("19: Optane, 64 KiB: up to 1.5", "devices", Throughput, More)),
        ),
        at(
            "Optane, stripe",
            because(text::SAME_WORK, claim("19: Optane, stripes: up to 1.35", "devices", Throughput, More)),
        ),
        by_place(
            STRAID.0,
            "980 Pro, 64 KiB",
            "970 Pro, 64 KiB",
            because(
                text::FRESH,
                claim("19: 980 Pro by 970 Pro, StRAID: up to 1.2", "devices", Throughput, Within(1.0, 1.2)),
            ),
        ),
        by_place(
            STRAID.0,
            "980 Pro, 64 KiB",
            "970 Pro, 64 KiB",
            because(
                text::USED_UP,
                claim(
                    "19: the same of drives that were written for long",
                    "devices-used-up",
                    Throughput,
                    Within(1.0, 1.2),
                ),
            ),
        ),
        by_place(
            STRAID.0,
            "980 Pro, stripe",
            "970 Pro, stripe",
            because(
                text::USED_UP,
                claim("19: the same, stripes", "devices-used-up", Throughput, Within(1.0, 1.2)),
            ),
        ),
        by_place(
            MD.0,
            "980 Pro, 64 KiB",
            "970 Pro, 64 KiB",
            because(
                text::FRESH,
                claim("19: 980 Pro by 970 Pro, MD: less than 1.05", "devices", Throughput, Within(1.0, 1.05)),
            ),
        ),
        by_place(
            MD.0,
            "980 Pro, 64 KiB",
            "970 Pro, 64 KiB",
            because(
                text::USED_UP_MD,
                claim(
                    "19: the same of drives that were written for long",
                    "devices-used-up",
                    Throughput,
                    Within(1.0, 1.05),
                ),
            ),
        ),
        by_place(
            STRAID.0,
            "Optane, 64 KiB",
            "980 Pro, 64 KiB",
            because(
                text::FRESH,
                claim("19: Optane by SSDs, StRAID, 64 KiB: up to 1.26", "devices", Throughput, More),
            ),
        ),
        by_place(
            STRAID.0,
            "Optane, 64 KiB",
            "980 Pro, 64 KiB",
            because(
                text::OPTANE,
                claim("19: the same, SSDs that were written for long", "devices-used-up", Throughput, More),
            ),
        ),
        Claim {
            base: ALONE.0,
            ..claim("20: two phases, a stream of 64 KiB: 3.5", "ssd-stream-64k", Throughput, More)
        },
        Claim {
            base: ALONE.0,
            ..claim("20: two phases, full stripes: within 4 %", "ssd-stream-stripe", Throughput, Alike(0.04))
        },
        cache(
            "4 MiB",
            "no cache",
            text::CACHE,
            claim("Table 5: 4 MiB of cache, throughput: 1.07", "caches", Throughput, More),
        ),
        cache("16 MiB", "no cache", text::CACHE, claim("Table 5: 16 MiB: 1.10", "caches", Throughput, More)),
        cache("64 MiB", "no cache", text::CACHE, claim("Table 5: 64 MiB: 1.15", "caches", Throughput, More)),
        cache(
            "4 MiB",
            "no cache",
            "",
            claim("Table 5: 4 MiB, over models of drives: 1.07", "ssd-caches", Throughput, More),
        ),
        cache(
            "64 MiB",
            "no cache",
            "",
            claim("Table 5: 64 MiB, over models of drives: 1.15", "ssd-caches", Throughput, More),
        ),
        cache("64 MiB", "4 MiB", "", claim("Table 5: hits, 64 MiB by 4 MiB: 1.41", "caches", Hits, More)),
        cache(
            "256 MiB",
            "64 MiB",
            "",
            claim("Table 5: 256 MiB by 64 MiB, throughput: 1.01", "caches", Throughput, Alike(0.05)),
        ),
        cache(
            "256 MiB",
            "64 MiB",
            "",
            claim("Table 5: the same, over models of drives", "ssd-caches", Throughput, Alike(0.05)),
        ),
        cache(
            MD.0,
            "no cache",
            "",
            claim("Table 5: MD by StRAID without cache: 0.45", "caches", Throughput, Less),
        ),
        cache(
            MD.0,
            "no cache",
            text::MODELS,
            claim("Table 5: the same, over models of drives", "ssd-caches", Throughput, Less),
        ),
        cache(
            MD.0,
            "no cache",
            text::STRIPE_CACHE,
            claim("Table 5: bytes that MD reads: half", "caches", PreRead, Less),
        ),
        at(
            "reads of 64 KiB",
            claim("21: degraded reads of 64 KiB: within 5 %", "degraded", Throughput, Alike(0.05)),
        ),
        at(
            "reads of a stripe",
            claim("21: degraded reads of stripes: within 5 %", "degraded", Throughput, Alike(0.05)),
        ),
        at(
            "writes of 64 KiB",
            claim("21: degraded writes of 64 KiB: 1.5 to 1.7", "degraded", Throughput, More),
        ),
        at(
            "writes of a stripe",
            claim("21: degraded writes of stripes: 1.5 to 1.7", "degraded", Throughput, More),
        ),
    ],
];

/// Of Table 5: one size of cache, or MD, by another.
const fn cache(arm: &'static str, base: &'static str, why: &'static str, claim: Claim) -> Claim {
    Claim { arm, base, why, ..claim }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether this is compared with MD there.
    fn has(experiment: &str, place: &str, quantity: Quantity) -> bool {
        let is_it = |claim: &&Claim| {
            (claim.experiment, claim.place, claim.quantity, claim.arm, claim.base)
                == (experiment, place, quantity, STRAID.0, MD.0)
        };
        CLAIMS.iter().copied().flatten().any(|claim| is_it(&claim))
    }

    /// However it comes out.
    #[test]
    fn what_the_paper_says_of_several_loads_has_a_row_for_each() {
        for experiment in ["random-4k", "random-64k", "random-stripe"] {
            for (place, quantity) in [("", Throughput), ("1", Throughput), ("", Mean), ("", P99)] {
                assert!(has(experiment, place, quantity), "{experiment}, {place}: {quantity:?}");
            }
        }
        // Of one user's streams the paper has those of full stripes.
        assert!(has("stream-stripe", "1", Throughput));
        for experiment in ["random-64k", "random-stripe"] {
            assert!(has(experiment, "", Inside), "{experiment}");
        }
        for reads in ["reads of 64 KiB", "reads of a stripe"] {
            assert!(has("degraded", reads, Throughput), "{reads}");
        }
        for trace in ["Pangu-A", "Pangu-B", "prxy_0", "prn_0", "varmail", "fileserver"] {
            for raid6 in ["traces-raid6", "ssd-traces-raid6"] {
                let is_it = |claim: &Claim| claim.place == trace && claim.base_at.0 == raid6;
                assert!(CLAIMS.iter().copied().flatten().any(is_it), "{trace} by {raid6}");
            }
        }
    }
}
