//! `cargo bench -p pinstripe-bench --features isal --bench beside_isal`: our kernel and ISA-L's in turn,
//! some milliseconds each, as a table in Markdown. The ratio of two neighbours says more than either figure
//! on a machine that does other things as well.
#![allow(clippy::print_stdout, reason = "it is a program for developers")]

mod sets;

use std::time::{Duration, Instant};

use pinstripe_parity::kernel;

use sets::{COUNTS, Code, SIZES, Sets, memory};

/// Bytes of all sets that take turns when they shall be cold: more than this processor's caches.
const COLD_BYTES: usize = 768 << 20;
/// Measurements of each.
const TURNS: usize = 41;
/// How long one takes.
const TURN: Duration = Duration::from_millis(3);

fn main() {
    let ours = kernel().name();
    println!("| | sources | ISA-L, GB/s | ours ({ours}) by ISA-L |");
    println!("|---|---:|---:|---:|");
    let mut memory = memory(COLD_BYTES);
    for is_cold in [false, true] {
        for code in Code::ALL {
            for (size, count) in SIZES.iter().flat_map(|size| COUNTS.map(|count| (*size, count))) {
                row(code, size, count, is_cold, &mut memory);
            }
        }
    }
}

fn row(code: Code, size: usize, count: usize, is_cold: bool, memory: &mut [u8]) {
    Sets::new(code, size, count, memory, 0).check(kernel());
    let sets = Sets::new(code, size, count, memory, if is_cold { COLD_BYTES } else { 0 });
    let ours = || sets.compute(kernel());
    let isal = || sets.compute_by_isal();
    let calls = calibrate(&isal);
    let (mut ratios, mut rates) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        // Each is first as often as second.
        let first = (turn % 2 == 0).then(|| time(&ours, calls));
        let theirs = time(&isal, calls);
        ratios.push(theirs / first.unwrap_or_else(|| time(&ours, calls)));
        rates.push(f64::from(u32::try_from(size * count).expect("a shape is small")) / theirs / 1e9);
    }
    let place = if is_cold { "cold" } else { "hot" };
    println!(
        "| {}, {} KiB, {place} | {count} | {:.1} | {} |",
        code.name(),
        size >> 10,
        quartiles(rates)[1],
        spread(ratios)
    );
}

/// How many calls take a turn.
fn calibrate(compute: &dyn Fn()) -> u32 {
    let mut calls = 1;
    while time(compute, calls) * f64::from(calls) < TURN.as_secs_f64() / 2.0 {
        calls *= 2;
    }
    calls
}

/// Seconds of a call.
fn time(compute: &dyn Fn(), calls: u32) -> f64 {
    let begun = Instant::now();
    (0..calls).for_each(|_| compute());
    begun.elapsed().as_secs_f64() / f64::from(calls)
}

/// The lower quartile, the median, the upper quartile.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[values.len() * quarter / 4])
}

fn spread(ratios: Vec<f64>) -> String {
    let [low, median, high] = quartiles(ratios);
    format!("{median:.2} ({low:.2} to {high:.2})")
}
