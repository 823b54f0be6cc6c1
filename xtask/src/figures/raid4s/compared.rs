//! What the paper compares, beside ours: ratios of seeds, over the sizes of which it says so.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use super::super::paper::{Verdict, Wanted};
use super::{Array, Found, Point, powers, sizes, told, unaligned};
use crate::bench::Spread;

/// An array with a way of choosing.
type Arm = (Array, &'static str);

const RAID4S: Arm = (Array::Raid4s, "min-reads");
const MODTHRESH: Arm = (Array::Raid4s, "mod-threshold");
const MODIFIED: Arm = (Array::Raid4s, "always-rmw");
const RAID5: Arm = (Array::Raid5, "min-reads");
const RAID5S: Arm = (Array::Raid5s, "min-reads");

/// Which sizes.
#[derive(Clone, Copy)]
enum Sizes {
    Powers,
    Unaligned,
}

struct Comparison {
    /// Figure, and the comparison with the paper's number.
    words: &'static str,
    arm: Arm,
    base: Arm,
    sizes: Sizes,
    kib: RangeInclusive<u32>,
    wanted: Wanted,
    /// Why it isn't so here, where it isn't.
    why: &'static str,
}

const OLD_MD: &str =
    "a guess: MD of Linux 2.6.32 wasn't able to use five X25-Es; the model is bound by their data sheet";

const COMPARISONS: [Comparison; 11] = [
    Comparison {
        words: "3: RAID4S by RAID5, up to 64 KiB: 1.75 to 3.3",
        arm: RAID4S,
        base: RAID5,
        sizes: Sizes::Powers,
        kib: 4..=64,
        wanted: Wanted::More,
        why: "",
    },
    Comparison {
        words: "3: at 128 KiB alike: RAID4S by RAID5",
        arm: RAID4S,
        base: RAID5,
        sizes: Sizes::Powers,
        kib: 128..=128,
        wanted: Wanted::Alike(0.05),
        why: "",
    },
    Comparison {
        words: "3: at 128 KiB alike: RAID5S by RAID4S",
        arm: RAID5S,
        base: RAID4S,
        sizes: Sizes::Powers,
        kib: 128..=128,
        wanted: Wanted::Alike(0.05),
        why: OLD_MD,
    },
    Comparison {
        words: "11: RAID4S-modthresh by RAID4S, 132 to 144 KiB: above 1",
        arm: MODTHRESH,
        base: RAID4S,
        sizes: Sizes::Unaligned,
        kib: 132..=144,
        wanted: Wanted::More,
        why: "a guess: such a write visits as many disks either way, so seeds decide",
    },
    Comparison {
        words: "12: RAID4S-modthresh by RAID5, up to 128 KiB: above 1",
        arm: MODTHRESH,
        base: RAID5,
        sizes: Sizes::Unaligned,
        kib: 40..=128,
        wanted: Wanted::More,
        why: "",
    },
    Comparison {
        words: "12: RAID4S-modthresh by RAID5S, up to 128 KiB: above 1",
        arm: MODTHRESH,
        base: RAID5S,
        sizes: Sizes::Unaligned,
        kib: 40..=128,
        wanted: Wanted::More,
        why: OLD_MD,
    },
    Comparison {
        words: "12: RAID5S by RAID4S-modthresh, above 128 KiB: above 1",
        arm: RAID5S,
        base: MODTHRESH,
        sizes: Sizes::Unaligned,
        kib: 132..=256,
        wanted: Wanted::More,
        why: "",
    },
    Comparison {
        words: "13: RAID4S-modified by RAID4S-modthresh, 132 to 160 KiB: a little more",
        arm: MODIFIED,
        base: MODTHRESH,
        sizes: Sizes::Unaligned,
        kib: 132..=160,
        wanted: Wanted::More,
        why: "",
    },
    Comparison {
        words: "13: the same from 164 KiB on: less",
        arm: MODIFIED,
        base: MODTHRESH,
        sizes: Sizes::Unaligned,
        kib: 164..=256,
        wanted: Wanted::Less,
        why: "the crossover is at 192 KiB here; why it is higher wasn't found",
    },
    Comparison {
        words: "14: at 128 KiB RAID4S-modthresh by RAID4S: a little more",
        arm: MODTHRESH,
        base: RAID4S,
        sizes: Sizes::Powers,
        kib: 128..=128,
        wanted: Wanted::More,
        why: "",
    },
    Comparison {
        words: "15: at the other powers of two: alike",
        arm: MODTHRESH,
        base: RAID4S,
        sizes: Sizes::Powers,
        kib: 4..=64,
        wanted: Wanted::Alike(0.01),
        why: "",
    },
];

impl Comparison {
    /// At each size that both were measured at, the ratios of seeds, and what these tell.
    fn ratios(&self, found: &Found) -> Vec<(Spread, Verdict)> {
        let is_of = |kib: &u32| match self.sizes {
            Sizes::Powers => powers().any(|size| size == *kib),
            Sizes::Unaligned => unaligned().any(|size| size == *kib),
        };
        let point = |(array, policy): Arm, kib| Point { array, policy, kib };
        let at = |kib| {
            let seeds = super::ratios(found, point(self.arm, kib), point(self.base, kib))?;
            Some((Spread::of(seeds.iter().copied())?, told(self.wanted, &seeds)))
        };
        sizes().filter(|kib| self.kib.contains(kib) && is_of(kib)).filter_map(at).collect()
    }

    fn row(&self, found: &Found) -> String {
        let (ratios, wanted) = (self.ratios(found), self.wanted.words());
        let Some(Spread { median, low, high }) = Spread::of(ratios.iter().map(|(ratio, _)| ratio.median))
        else {
            return format!("| {} | {wanted} | not measured | |\n", self.words);
        };
        let count = |verdict| ratios.iter().filter(|(_, each)| *each == verdict).count();
        let all =
            [Verdict::Kept, Verdict::NotKept, Verdict::NotTold].map(|verdict| (verdict, count(verdict)));
        let words = if let Some((verdict, _)) = all.iter().find(|(_, count)| *count == ratios.len()) {
            verdict.words().to_owned()
        } else {
            let some = all.iter().filter(|(_, count)| *count > 0);
            let words = some.map(|(verdict, count)| format!("{} at {count}", verdict.words()));
            words.collect::<Vec<_>>().join(", ")
        };
        let why = match (all[0].1 == ratios.len(), self.why) {
            (true, _) | (_, "") => String::new(),
            (_, why) => format!(": {why}"),
        };
        let span = if ratios.len() > 1 { format!(" ({low:.2} to {high:.2})") } else { String::new() };
        format!("| {} | {wanted} | {median:.2}{span} | {words}{why} |\n", self.words)
    }
}

/// All of them. In brackets are the least and the most of the sizes.
pub fn table(found: &Found) -> String {
    let mut text = "## The paper's comparisons\n\nRatios of throughput, the median over the sizes that were measured, with the least and the \
                    most of them. At one size a\ncomparison is kept if every seed has it, and can't be told of fewer than three. \
                    Numbers behind a verdict are those of sizes.\n\n| published comparison | wanted | measured | kept |\n|---|---|---:|---|\n"
        .to_owned();
    for comparison in &COMPARISONS {
        let _ = write!(text, "{}", comparison.row(found));
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Always-rmw has twice as much as all others, at every size.
    #[test]
    fn every_comparison_is_measured_and_says_why_it_is_not_kept() {
        let found = super::super::tests::found();
        let text = table(&found);
        assert!(!text.contains("not measured"), "{text}");
        assert!(text.contains("132 to 160 KiB: a little more | > 1 | 2.00 (2.00 to 2.00) | yes |"), "{text}");
        assert!(text.contains("from 164 KiB on: less | < 1 | 2.00 (2.00 to 2.00) | **no**: the crossover"));
        assert!(text.contains("RAID5S by RAID4S | 1 ± 0.05 | 1.00 | yes |"), "{text}");
        assert!(table(&Found::new()).contains("| > 1 | not measured | |"));
    }

    #[test]
    fn a_comparison_that_is_kept_at_some_sizes_says_at_how_many() {
        let mut found = super::super::tests::found();
        let point = Point { array: Array::Raid4s, policy: "min-reads", kib: 4 };
        found.get_mut(&point).unwrap().iter_mut().for_each(|each| each.bytes_per_second = 2e7);
        let row = COMPARISONS[0].row(&found);
        assert!(row.contains("| 1.00 (1.00 to 2.00) | yes at 1, **no** at 4 |"), "{row}");
    }

    #[test]
    fn seeds_that_differ_or_are_few_tell_nothing() {
        let point = Point { array: Array::Raid4s, policy: "mod-threshold", kib: 128 };
        let comparison = COMPARISONS.iter().find(|each| each.words.starts_with("14: ")).unwrap();
        let row = |rates: &[f64]| {
            let mut found = super::super::tests::found();
            let measured = found.get_mut(&point).unwrap();
            measured.truncate(rates.len());
            measured.iter_mut().zip(rates).for_each(|(each, rate)| each.bytes_per_second = *rate);
            comparison.row(&found)
        };
        assert!(
            row(&[1.1e7, 1.2e7, 1.3e7]).ends_with("| > 1 | 1.20 | yes |\n"),
            "{}",
            row(&[1.1e7, 1.2e7, 1.3e7])
        );
        assert!(row(&[0.9e7, 1.2e7, 1.3e7]).ends_with("| > 1 | 1.20 | can't be told |\n"));
        assert!(row(&[1.1e7, 1.3e7]).ends_with("| > 1 | 1.20 | can't be told |\n"));
        assert!(row(&[0.9e7; 3]).contains("| > 1 | 0.90 | **no**"));
    }
}
