//! Speed of every kernel on hot data: 8 data columns of 64 KiB (in the second-level cache) and of 4 KiB (in
//! the first).
//!
//! `cargo run --release -p pinstripe-parity --example kernels` prints GiB of data columns per second, the
//! best of several rounds. The data of an operation are the columns that it reads (old and new count as one);
//! for a recovery, one lost column.

use std::hint::black_box;
use std::time::{Duration, Instant};

use pinstripe_parity::Kernel;

const COLUMNS: usize = 8;
/// Many short rounds, so that some are undisturbed on a busy machine.
const ROUNDS: usize = 60;
const ROUND: Duration = Duration::from_millis(1);

type Operation = fn(&Kernel, &mut Row);

/// The buffers of one row, aligned to pages.
struct Row {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Row {
    fn new(length: usize) -> Self {
        let memory: Vec<u8> =
            (0..(COLUMNS + 2) * length + 4096).map(|i| ((i * i) >> 7).to_le_bytes()[0]).collect();
        let start = memory.as_ptr().align_offset(4096);
        Self { memory, start, length }
    }

    /// P, Q and the columns.
    fn parts(&mut self) -> (&mut [u8], &mut [u8], [&[u8]; COLUMNS]) {
        let (p, rest) = self.memory[self.start..].split_at_mut(self.length);
        let (q, data) = rest.split_at_mut(self.length);
        let data: &[u8] = data;
        (p, q, std::array::from_fn(|i| &data[i * self.length..(i + 1) * self.length]))
    }
}

/// Name, columns of data per call, call.
const OPERATIONS: [(&str, usize, Operation); 13] = [
    ("xor", COLUMNS, |kernel, row| {
        let (p, _, columns) = row.parts();
        kernel.xor(p, &columns);
    }),
    ("xor_into", COLUMNS, |kernel, row| {
        let (p, _, columns) = row.parts();
        kernel.xor_into(p, &columns);
    }),
    ("xor_stream", COLUMNS, |kernel, row| {
        let (p, _, columns) = row.parts();
        kernel.xor_stream(p, &columns);
    }),
    ("pq", COLUMNS, |kernel, row| {
        let (p, q, columns) = row.parts();
        kernel.pq(p, q, &columns.map(Some));
    }),
    ("pq_stream", COLUMNS, |kernel, row| {
        let (p, q, columns) = row.parts();
        kernel.pq_stream(p, q, &columns.map(Some));
    }),
    ("update_p", 1, |kernel, row| {
        let (p, _, columns) = row.parts();
        kernel.update_p(p, columns[0], columns[1]);
    }),
    ("update_q", 1, |kernel, row| {
        let (_, q, columns) = row.parts();
        kernel.update_q(q, columns[0], columns[1], 5);
    }),
    ("update_pq", 1, |kernel, row| {
        let (p, q, columns) = row.parts();
        kernel.update_pq(p, q, columns[0], columns[1], 5);
    }),
    ("accumulate_pq", 1, |kernel, row| {
        let (p, q, columns) = row.parts();
        kernel.accumulate_pq(p, q, columns[0], 5);
    }),
    ("reconstruct_from_q", 1, |kernel, row| {
        let (_, q, _) = row.parts();
        kernel.reconstruct_from_q(q, 5);
    }),
    ("reconstruct_two", 2, |kernel, row| {
        let (p, q, _) = row.parts();
        kernel.reconstruct_two(p, q, 3, 5);
    }),
    ("cancels", COLUMNS, |kernel, row| {
        let (p, _, [a, b, c, d, e, f, g, h]) = row.parts();
        black_box(kernel.cancels(&[p, a, b, c, d, e, f, g, h]));
    }),
    ("pq_matches", COLUMNS, |kernel, row| {
        let (p, q, columns) = row.parts();
        black_box(kernel.pq_matches(p, q, &columns.map(Some)));
    }),
];

fn main() {
    for length in [64 << 10, 4 << 10] {
        println!("\n{COLUMNS} columns of {} KiB, GiB/s of data", length >> 10);
        print!("{:<16}", "");
        for kernel in Kernel::supported() {
            print!("{:>10}", kernel.name());
        }
        println!();
        for (name, columns, operation) in OPERATIONS {
            print!("{name:<16}");
            for kernel in Kernel::supported() {
                print!("{:>10.1}", speed(kernel, length, columns, operation));
            }
            println!();
        }
    }
}

/// GiB/s of the best round.
fn speed(kernel: &Kernel, length: usize, columns: usize, operation: Operation) -> f64 {
    let mut row = Row::new(length);
    let (p, q, data) = row.parts();
    // So that comparisons run to the end.
    kernel.pq(p, q, &data.map(Some));
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let (start, mut calls) = (Instant::now(), 0_u32);
        while start.elapsed() < ROUND {
            for _ in 0..16 {
                operation(black_box(kernel), black_box(&mut row));
            }
            calls += 16;
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(calls));
    }
    let kibibytes = u32::try_from((columns * length) >> 10).expect("small");
    f64::from(kibibytes) / best / 1_048_576.0
}
