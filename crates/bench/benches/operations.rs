//! `cargo bench -p pinstripe-bench --bench operations`: what `kernels` leaves out, by every kernel, on hot
//! data: 8 data columns of 64 KiB (in the second-level cache) and of 4 KiB (in the first).
//!
//! The bytes of an operation are the columns that it reads (old and new count as one); for a recovery, one
//! lost column.
#![allow(missing_docs, reason = "criterion makes public functions")]

use std::{hint::black_box, time::Duration};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pinstripe_parity::Kernel;

const COLUMNS: usize = 8;

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
const OPERATIONS: [(&str, usize, Operation); 8] = [
    ("xor_into", COLUMNS, |kernel, row| {
        let (p, _, columns) = row.parts();
        kernel.xor_into(p, &columns);
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
];

fn operations(criterion: &mut Criterion) {
    for length in [4 << 10, 64 << 10] {
        let mut row = Row::new(length);
        for (name, columns, operation) in OPERATIONS {
            let mut group = criterion.benchmark_group(format!("{name}, {} KiB", length >> 10));
            group.sample_size(20).warm_up_time(Duration::from_millis(100));
            group.measurement_time(Duration::from_millis(400));
            group.throughput(Throughput::Bytes((columns * length) as u64));
            for kernel in Kernel::supported() {
                let (p, q, data) = row.parts();
                // So that comparisons run to the end.
                kernel.pq(p, q, &data.map(Some));
                group.bench_function(BenchmarkId::from_parameter(kernel.name()), |bencher| {
                    bencher.iter(|| operation(black_box(kernel), black_box(&mut row)));
                });
            }
        }
    }
}

criterion_group!(benches, operations);
criterion_main!(benches);
