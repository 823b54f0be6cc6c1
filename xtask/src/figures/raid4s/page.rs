//! The page: what the paper shows, what was run, what came of it, what differs and why.

use std::fmt::Write as _;

use super::{
    ARRAYS, Arm, Array, Figure, Found, Kept, POLICIES, Point, compared, ratios, sizes, throughput, told,
    unaligned, variants,
};
use crate::bench::Spread;
use crate::figures::command;
use crate::figures::paper::{ROUNDS_MIN, Verdict, Wanted};

const RAID4S: Arm = Arm { name: "RAID4S", array: Array::Raid4s, policy: "min-reads" };
const MODTHRESH: Arm = Arm { name: "RAID4S-modthresh", array: Array::Raid4s, policy: "mod-threshold" };
const MODIFIED: Arm = Arm { name: "RAID4S-modified", array: Array::Raid4s, policy: "always-rmw" };
const COST: Arm = Arm { name: "RAID4S, cost", array: Array::Raid4s, policy: "cost" };
const RAID5: Arm = Arm { name: "RAID5", array: Array::Raid5, policy: "min-reads" };
const RAID5S: Arm = Arm { name: "RAID5S", array: Array::Raid5s, policy: "min-reads" };

const PLAIN: Figure = Figure {
    name: "",
    title: "",
    paper: "",
    kib: (0, 256),
    powers: false,
    arms: &[],
    normalized: false,
    logarithmic: false,
};

/// The paper's figures of measurements, in its order.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "figure-1",
        title: "Figure 1: RAID4S-modthresh beside RAID4S",
        paper: "Both are equal up to 64 KiB and above 128 KiB. Between, RAID4S-modthresh has 2 MB/s more.",
        kib: (40, 168),
        arms: &[RAID4S, MODTHRESH],
        ..PLAIN
    },
    Figure {
        name: "figure-3",
        title: "Figure 3: RAID4S beside RAID5 and RAID5S, powers of two",
        paper: "RAID4S has 1.75 times RAID5's throughput, and 3.3 times for random writes below 128 KiB. At 128 \
                KiB all are equal.",
        powers: true,
        logarithmic: true,
        arms: &[RAID4S, RAID5, RAID5S],
        ..PLAIN
    },
    Figure {
        name: "figure-4",
        title: "Figure 4: the same up to 128 KiB, not logarithmic",
        paper: "RAID4S has hardly more at 128 KiB than at 64 KiB.",
        powers: true,
        kib: (4, 128),
        arms: &[RAID4S, RAID5],
        ..PLAIN
    },
    Figure {
        name: "figure-11",
        title: "Figure 11: RAID4S-modthresh by RAID4S",
        paper: "Up to 1.42 between 64 and 128 KiB, and above 1 up to about 144 KiB.",
        normalized: true,
        arms: &[MODTHRESH],
        ..PLAIN
    },
    Figure {
        name: "figure-12",
        title: "Figure 12: RAID4S-modthresh beside RAID5 and RAID5S",
        paper: "RAID4S-modthresh is faster than both up to 128 KiB; above, RAID5S is.",
        arms: &[MODTHRESH, RAID5, RAID5S],
        ..PLAIN
    },
    Figure {
        name: "figure-13",
        title: "Figure 13: RAID4S-modthresh beside RAID4S-modified, and our cost policy",
        paper: "RAID4S-modified, which always modifies, has a little more just above 128 KiB, and less from about \
                164 KiB on.",
        arms: &[MODTHRESH, MODIFIED, COST],
        ..PLAIN
    },
    Figure {
        name: "figure-14",
        title: "Figure 14: powers of two up to 128 KiB",
        paper: "At 128 KiB RAID4S-modthresh has a little more than the other three, and less than its slope up \
                to 64 KiB promises.",
        powers: true,
        kib: (4, 128),
        arms: &[RAID4S, MODTHRESH, RAID5],
        ..PLAIN
    },
    Figure {
        name: "figure-15",
        title: "Figure 15: all powers of two",
        paper: "RAID4S-modthresh differs from RAID4S at 128 KiB alone.",
        powers: true,
        logarithmic: true,
        arms: &[RAID4S, MODTHRESH, RAID5, RAID5S],
        ..PLAIN
    },
];

/// Sizes of the table.
const SHOWN: [u32; 14] = [4, 16, 40, 52, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256];

const HEAD: &str = "# RAID4S-modthresh on Pinstripe

Written by `cargo xtask figures`. Every series is of **virtual devices**: models of drives under virtual time, in which nothing else
takes any ([models](../../../crates/sim/src/drive/models.rs), with the source of each figure). So the numbers are the same on every
machine, and say nothing of CPUs and locks. Every point ended with a scrub of all parity and with all written data read back. Seeds draw
the places of writes, the order of events at one moment, and how far each platter has turned. All numbers are in
[raid4s.csv](raid4s/raid4s.csv).

The paper's arrays have five members, chunks of 64 KiB and ten requests at a time, at random multiples of their size: RAID4S is RAID4
with four disks of 7,200 rpm and an Intel X25-E for the parity, RAID5 has disks, RAID5S X25-Es. Its ways of choosing are ours: RAID4S is
`min-reads` (MD's), RAID4S-modthresh `mod-threshold`, RAID4S-modified `always-rmw`.

";

const DIFFERS: &str = "## What differs, and why

What is called a guess was not measured.

- **The paper's set-up**: MD of Linux 2.6.32, XDD with direct I/O and 10 requests at a time, 128 MB a pass, disks with a queue and a
  cache of 32 MB, partitions of 12.25 GB. Here the disks have a queue of 32, of which the nearest goes next, and a write cache
  ([the model](../../../crates/sim/src/drive/models.rs) says by which published figures). MD's own cache of stripes, its work by pages of
  4 KiB and the kernel's scheduler are not here.
- **The gain between 64 and 128 KiB is 1.299 at most, where the paper has 1.42.** Such a write mostly has one chunk and a part of another.
  MD's choice reconstructs the rows of the part by reading the two other disks, and modifies the rest: three disks are read and two
  written. RAID4S-modthresh reads two and writes two. If a write takes x times as long of a disk as a read, the gain is
  (3 + 2x) / (2 + 2x): 1.25 if both are alike, 1.3 for x = 0.67, and 1.42 for x = 0.19. The model's disks write from their cache in the
  order of the nearest, so x is below 1. A guess: the paper's disks, with 32 MB of cache for passes of 32 MB a disk, put off more of
  their writes.
- **What the order of work changes** is the table above. Without a cache, but sorted, the gain is smaller: RAID4S has more requests
  waiting at each disk, and a disk that has more to choose from wastes less time between them. One request at a time gains 1.1: it waits
  for its reads side by side, however many there are.
- **At 128 KiB RAID4S-modthresh has hardly more than RAID4S**, as the paper has it: both visit four disks.
- **Above 64 KiB throughput is lower at most sizes that aren't a multiple of 64 KiB.** Places are multiples of the size, as the paper's, so
  such writes straddle chunks and stripes: they visit more disks.
- **RAID5S has more than ten times RAID4S's throughput at 128 KiB**, where the paper has all equal. The model of the X25-E is bound by its
  data sheet. A guess: MD of Linux 2.6.32 wasn't able to use five of them, which virtual time can't show. So figures 3, 12 and 15 differ in
  that series, which flattens the others there; figures 4 and 14 have them without it.
- **The array is smaller**: 64 MiB of each drive and not 12.25 GB. The model's seeks are 0.3 ms shorter, of 5 ms and more that a visit
  costs.

";

const BEHIND: &str = "## The cost policy beside the others

";

const WHY_BEHIND: &str = "- **Disks with a write cache.** A disk that has answered all writes has up to 32 of them to bring to the platter. So
  the policy counts the whole time of a read there, and half of it again for each request under way, since the disk sorts them.
  Before, it took a disk without requests for one that has time: in four of a hundred writes of 4 KiB it read the three other disks, and
  not the one with a queue, and the least of RAID4S was 0.944, at 32 KiB (seed 1).
- **RAID4S from 68 to 128 KiB.** There it has 0.991 of `always-rmw`, the mean of 16 sizes and three seeds (standard error 0.2 %): in
  a hundred writes it has up to 5 reads more; a guess: to go around a disk with a queue. At 96 and 104 KiB, where it is 2 % behind
  in the median, the three seeds lie 2 % apart. From 132 KiB on it has 1.06 of the best.
- **RAID5 at 192 KiB** is a gap: 0.977 and 0.973 of `min-reads` with seeds 1 and 2. It reads 2.9 times a write there, `min-reads`
  2.5 times and `mod-threshold` 3.0 times. Why it prefers these wasn't found.
- **Seed 1 is of an older program** than the others. At 64, 96 and 128 KiB the program of 43c79d11 has 0.989 to 1.010 of it, in all three
  arrays. Of seed 2 it has the same, to the byte a second, at 23 of 24 points, and 0.992 at the other one. CI compares these points.
- **Where it has more than all others.** Each of these decides by counts alone. The policy counts what waits at a member, so of the ways
  to write it takes the one past the queues. And it sees where a head is.
- **RAID5S.** Under load an SSD's latency is that of its queue, and it serves other requests meanwhile. So of SSDs only the transfer
  counts as time that others wait for. At 156 KiB seed 1 once had 0.975, of members of 32 MiB; of 64 MiB it has 1.04.

";

/// All of it.
pub fn page(kept: &Kept) -> String {
    let Kept { found, variants, seeds, origin } = kept;
    let mut text = HEAD.to_owned();
    text.push_str(&bars(found, seeds));
    text.push_str(&reached(found));
    text.push_str(&compared::table(found));
    for figure in FIGURES {
        let _ = writeln!(
            text,
            "## {}\n\nThe paper: {}\n\n![{}](raid4s/{}.svg)\n",
            figure.title, figure.paper, figure.title, figure.name
        );
    }
    text.push_str(&table(found));
    text.push_str(&variants::table(variants));
    text.push_str(DIFFERS);
    text.push_str(BEHIND);
    text.push_str(&behind(found));
    text.push_str(WHY_BEHIND);
    let point = Point { array: Array::Raid4s, policy: "mod-threshold", kib: 96 };
    let _ = writeln!(
        text,
        "## Again\n\nAll: `cargo xtask figures`. One point, here of RAID4S-modthresh at 96 KiB:\n\n```sh\n{}\n```\n\nCommit {}, {} UTC, {}.",
        command(&point.arguments(1)),
        origin.commit,
        origin.date,
        origin.machine
    );
    text
}

/// How many seeds there are, and of what there are fewer.
fn bars(found: &Found, seeds: &[u64]) -> String {
    let mut text = match seeds {
        [only] => return format!("One seed ({only}) was run: no bar says how far seeds lie apart.\n\n"),
        _ => format!(
            "A point is the median over seeds {seeds:?}; its bar goes from the lowest to the highest."
        ),
    };
    for array in ARRAYS {
        let of_array = found.iter().filter(|(point, _)| point.array == array);
        let least = of_array.map(|(_, measured)| measured.len()).min().unwrap_or(0);
        if least < seeds.len() {
            let _ = write!(text, " {} has fewer: {:?}.", array.name(), &seeds[..least]);
        }
    }
    text + "\n\n"
}

/// What was to be reached.
fn reached(found: &Found) -> String {
    let mut text =
        "## What was to be reached\n\n| | wanted | measured | kept |\n|---|---|---|---|\n".to_owned();
    let medium = || unaligned().filter(|kib| (68..=128).contains(kib));
    let gains = |kib| {
        let of = |policy| Point { array: Array::Raid4s, policy, kib };
        ratios(found, of("mod-threshold"), of("min-reads")).unwrap_or_default()
    };
    let all: Vec<(u32, Spread)> =
        medium().filter_map(|kib| Some((kib, Spread::of(gains(kib).into_iter())?))).collect();
    if let Some((kib, most)) = all.iter().max_by(|a, b| a.1.median.total_cmp(&b.1.median)) {
        let _ = writeln!(
            text,
            "| RAID4S-modthresh by RAID4S, the most between 64 and 128 KiB (the paper: 1.42) | ≥ {GAIN} | {:.3} ({:.3} to \
             {:.3}) at {kib} KiB | {} |",
            down(most.median),
            most.low,
            most.high,
            match told(Wanted::Within(GAIN, f64::INFINITY), &gains(*kib)) {
                Verdict::Kept => "yes".to_owned(),
                verdict => format!("{}: see *the gain between 64 and 128 KiB*", verdict.words()),
            }
        );
    }
    if let Some(all) = Spread::of(all.iter().map(|(_, gain)| gain.median)) {
        let _ = writeln!(
            text,
            "| the same, the median over 68 to 128 KiB | | {:.2} ({:.2} to {:.2}) | |",
            all.median, all.low, all.high
        );
    }
    for array in ARRAYS {
        text.push_str(&cost(found, array));
    }
    text + "\n"
}

/// How near the cost policy comes to the best other one at the size where it has least.
fn cost(found: &Found, array: Array) -> String {
    let all: Vec<(u32, Spread, Verdict)> = sizes()
        .filter_map(|kib| by_best(found, array, kib).map(|(ratio, told)| (kib, ratio, told)))
        .collect();
    let Some((kib, worst, _)) = all.iter().min_by(|a, b| a.1.median.total_cmp(&b.1.median)) else {
        return String::new();
    };
    let count = |verdict| all.iter().filter(|(.., told)| *told == verdict).count();
    format!(
        "| {}: `cost` by the best other policy, the least of {} sizes | ≥ {WITHIN} | {:.3} at {kib} KiB | {} |\n",
        array.name(),
        all.len(),
        down(worst.median),
        match (count(Verdict::NotKept), count(Verdict::NotTold)) {
            (0, 0) => "yes".to_owned(),
            (0, few) => format!(
                "can't be told: at {few} of them seeds lie on both sides, or are fewer than {ROUNDS_MIN}; see below"
            ),
            (short, _) => format!("**no**: below {WITHIN} at {short} of them; see below"),
        }
    )
}

/// Where the cost policy has least, and how far seeds lie apart.
fn behind(found: &Found) -> String {
    let mut text = "The three sizes of each array at which it has least, by the best other policy there. In brackets are the \
                    ratios of single seeds:\n\n"
        .to_owned();
    for array in ARRAYS {
        let mut all: Vec<(u32, Spread)> =
            sizes().filter_map(|kib| Some((kib, by_best(found, array, kib)?.0))).collect();
        all.sort_by(|a, b| a.1.median.total_cmp(&b.1.median));
        let worst = all.iter().take(3).map(|(kib, Spread { median, low, high })| {
            format!("{:.3} at {kib} KiB ({low:.3} to {high:.3})", down(*median))
        });
        let _ = writeln!(text, "- {}: {}.", array.name(), worst.collect::<Vec<_>>().join(", "));
    }
    let large = sizes().filter(|kib| *kib >= LARGE);
    let gains = large.filter_map(|kib| by_best(found, Array::Raid4s, kib)).map(|(ratio, _)| ratio.median);
    if let Some(Spread { median, low, high }) = Spread::of(gains) {
        let _ = writeln!(
            text,
            "\nFrom {LARGE} KiB on `cost` has {median:.2} times the throughput of the best other policy on RAID4S in the median of sizes, {low:.2} \
             to\n{high:.2} times."
        );
    }
    // One seed has no width.
    let widths: Vec<f64> = found
        .iter()
        .filter(|(_, seeds)| seeds.len() > 1)
        .filter_map(|(point, _)| throughput(found, *point))
        .map(|Spread { median, low, high }| (high - low) / median * 100.0)
        .collect();
    if let Some(Spread { median, high, .. }) = Spread::of(widths.iter().copied()) {
        let mut sorted = widths.clone();
        sorted.sort_by(f64::total_cmp);
        let most = sorted[sorted.len() * 9 / 10];
        let _ = writeln!(
            text,
            "\nOf one policy at one size the highest seed is {median:.1} % above the lowest in the median of {} points,\n\
             {most:.1} % or less in nine of ten, and {high:.1} % at most.",
            widths.len()
        );
    }
    text + "\n"
}

/// What was to be reached by the cost policy, of the best other one.
const WITHIN: f64 = 0.98;
/// KiB from which on the cost policy has more than all others on RAID4S.
const LARGE: u32 = 152;
/// What was to be reached by RAID4S-modthresh, of RAID4S.
const GAIN: f64 = 1.3;

/// To three digits, so that what is short of a target doesn't look like it.
fn down(ratio: f64) -> f64 {
    (ratio * 1e3).floor() / 1e3
}

/// The cost policy's throughput by the best of the others: medians over seeds, and the ratios of single seeds
/// to that same policy, with what these tell.
fn by_best(found: &Found, array: Array, kib: u32) -> Option<(Spread, Verdict)> {
    let point = |policy| Point { array, policy, kib };
    let of = |policy| Some(throughput(found, point(policy))?.median);
    let others = POLICIES.into_iter().filter(|policy| *policy != "cost");
    let (best, most) =
        others.filter_map(|policy| Some((policy, of(policy)?))).max_by(|a, b| a.1.total_cmp(&b.1))?;
    let seeds = ratios(found, point("cost"), point(best))?;
    let told = told(Wanted::Within(WITHIN, f64::INFINITY), &seeds);
    Some((Spread { median: of("cost")? / most, ..Spread::of(seeds.into_iter())? }, told))
}

fn table(found: &Found) -> String {
    let mut text = "## Throughputs\n\nMB/s, virtual device; medians over the seeds.\n\n".to_owned();
    for array in ARRAYS {
        let _ = write!(text, "| {}, KiB |", array.name());
        for policy in POLICIES {
            let _ = write!(text, " {policy} |");
        }
        let _ = write!(text, "\n|---|{}\n", "---|".repeat(POLICIES.len()));
        for kib in SHOWN.into_iter().filter(|kib| sizes().any(|size| size == *kib)) {
            let _ = write!(text, "| {kib} |");
            for policy in POLICIES {
                match throughput(found, Point { array, policy, kib }) {
                    Some(spread) => {
                        let _ = write!(text, " {:.1} |", spread.median);
                    }
                    None => text.push_str(" |"),
                }
            }
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::Origin;

    #[test]
    fn an_array_of_fewer_seeds_is_named() {
        let mut found = super::super::tests::found();
        assert!(!bars(&found, &[1, 2]).contains("fewer"));
        found
            .iter_mut()
            .filter(|(point, _)| point.array == Array::Raid5)
            .for_each(|(_, all)| all.truncate(1));
        assert!(bars(&found, &[1, 2]).ends_with(" RAID5 has fewer: [1].\n\n"), "{}", bars(&found, &[1, 2]));
    }

    #[test]
    fn a_target_is_told_by_three_seeds_that_agree_and_one_seed_has_no_width() {
        let mut found = super::super::tests::found();
        let change = |found: &mut Found, policy, rates: &[f64]| {
            let seeds = found.get_mut(&Point { array: Array::Raid4s, policy, kib: 96 }).unwrap();
            seeds.truncate(rates.len());
            seeds.iter_mut().zip(rates).for_each(|(each, rate)| each.bytes_per_second = *rate);
        };
        let line = |found: &Found, words: &str| {
            let text = reached(found);
            text.lines().find(|line| line.starts_with(words)).unwrap_or_default().to_owned()
        };
        let gain = "| RAID4S-modthresh by RAID4S, the most";
        change(&mut found, "mod-threshold", &[1.28e7, 1.31e7, 1.32e7]);
        assert!(line(&found, gain).contains("| 1.310 (1.280 to 1.320) at 96 KiB | can't be told: see"));
        change(&mut found, "mod-threshold", &[1.3e7, 1.31e7, 1.32e7]);
        assert!(line(&found, gain).ends_with("at 96 KiB | yes |"));
        change(&mut found, "mod-threshold", &[1.28e7, 1.29e7, 1.29e7]);
        assert!(line(&found, gain).contains("| **no**: see"));
        // All have as much as the best at all sizes, but for one seed at one of them.
        found.values_mut().flatten().for_each(|each| each.bytes_per_second = 1e7);
        assert!(line(&found, "| RAID4S: `cost`").ends_with("| yes |"));
        change(&mut found, "cost", &[0.9e7, 1e7, 1e7]);
        assert!(line(&found, "| RAID4S: `cost`").contains("| can't be told: at 1 of them"));
        assert!(behind(&found).contains("in the median of 708 points"), "{}", behind(&found));
        change(&mut found, "cost", &[1e7]);
        assert!(behind(&found).contains("in the median of 707 points"), "{}", behind(&found));
    }

    #[test]
    fn the_page_says_what_was_reached_and_where_it_comes_from() {
        let origin = Origin {
            commit: "abc123".to_owned(),
            date: "2026-01-02".to_owned(),
            load: "0".to_owned(),
            machine: "2 CPUs".to_owned(),
        };
        let (found, variants) = (super::super::tests::found(), variants::tests::found());
        let text = page(&Kept { found, variants, seeds: vec![1, 2, 3], origin });
        // Always-rmw has twice as much as all others.
        assert!(
            text.contains("RAID5: `cost` by the best other policy, the least of 59 sizes | ≥ 0.98 | 0.500")
        );
        let wide = text.lines().find(|line| line.chars().count() > 140 && !line.starts_with('|'));
        assert_eq!(wide, None, "more than 140 columns");
        assert!(text.contains("| 0.500 at 4 KiB | **no**: below 0.98 at 59 of them; see below |"), "{text}");
        assert!((down(1.299_96) - 1.299).abs() < 1e-9 && (down(1.3) - 1.3).abs() < 1e-9);
        for word in ["abc123", "virtual device", "(raid4s/figure-11.svg)", "| 96 | 10.0 | 10.0 | 20.0 |"] {
            assert!(text.contains(word), "{word} is missing in {text}");
        }
    }
}
