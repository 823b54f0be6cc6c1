//! What the paper compares, beside ours: ratios of medians, over the sizes of which it says so.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use super::{Array, Found, Point, powers, sizes, throughput, unaligned};
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

/// Which way it is to go.
#[derive(Clone, Copy)]
enum Wanted {
    More,
    Less,
    /// As much, to this share.
    Alike(f64),
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

impl Wanted {
    fn is_kept(self, ratio: f64) -> bool {
        match self {
            Self::More => ratio > 1.0,
            Self::Less => ratio < 1.0,
            Self::Alike(share) => (ratio - 1.0).abs() <= share,
        }
    }

    fn words(self) -> String {
        match self {
            Self::More => "> 1".to_owned(),
            Self::Less => "< 1".to_owned(),
            Self::Alike(share) => format!("1 ± {share}"),
        }
    }
}

impl Comparison {
    /// At each size that both were measured at.
    fn ratios(&self, found: &Found) -> Vec<f64> {
        let rate = |(array, policy): Arm, kib| {
            throughput(found, Point { array, policy, kib }).map(|spread| spread.median)
        };
        let is_of = |kib: &u32| match self.sizes {
            Sizes::Powers => powers().any(|size| size == *kib),
            Sizes::Unaligned => unaligned().any(|size| size == *kib),
        };
        let inside = sizes().filter(|kib| self.kib.contains(kib) && is_of(kib));
        inside.filter_map(|kib| Some(rate(self.arm, kib)? / rate(self.base, kib)?)).collect()
    }

    fn row(&self, found: &Found) -> String {
        let (ratios, wanted) = (self.ratios(found), self.wanted.words());
        let Some(Spread { median, low, high }) = Spread::of(ratios.iter().copied()) else {
            return format!("| {} | {wanted} | not measured | |\n", self.words);
        };
        let kept = ratios.iter().filter(|ratio| self.wanted.is_kept(**ratio)).count();
        let verdict = match (kept, ratios.len()) {
            (kept, all) if kept == all => "yes".to_owned(),
            (0, _) => format!("**no**: {}", self.why),
            (kept, all) => format!("at {kept} of {all} sizes: {}", self.why),
        };
        let span = if ratios.len() > 1 { format!(" ({low:.2} to {high:.2})") } else { String::new() };
        format!("| {} | {wanted} | {median:.2}{span} | {verdict} |\n", self.words)
    }
}

/// All of them. In brackets are the least and the most of the sizes.
pub fn table(found: &Found) -> String {
    let mut text = "## The paper's comparisons\n\nRatios of throughput, the median over the sizes that were measured, with the least and the \
                    most of them.\n\n| published comparison | wanted | measured | kept |\n|---|---|---:|---|\n"
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
        assert!(row.contains("| 1.00 (1.00 to 2.00) | at 1 of 5 sizes: "), "{row}");
    }
}
