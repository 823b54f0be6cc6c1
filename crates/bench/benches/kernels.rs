//! `cargo bench -p pinstripe-bench --bench kernels`: XOR and P+Q of sources in the cache, by every kernel
//! that this processor has; with `--features isal` by ISA-L too.
//!
//! One is measured after the other, so on a machine that does other things as well only large differences
//! mean something. `beside_isal` has them take turns.
#![allow(missing_docs, reason = "criterion makes public functions")]

mod sets;

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pinstripe_parity::Kernel;

use sets::{COUNTS, Code, SIZES, Sets, memory};

fn kernels(criterion: &mut Criterion) {
    let mut memory = memory(0);
    for code in Code::ALL {
        let mut group = criterion.benchmark_group(code.name());
        group.sample_size(20).warm_up_time(Duration::from_millis(100));
        group.measurement_time(Duration::from_millis(400));
        for (size, count) in SIZES.iter().flat_map(|size| COUNTS.map(|count| (*size, count))) {
            let sets = Sets::new(code, size, count, &mut memory, 0);
            #[cfg(feature = "isal")]
            sets.check(pinstripe_parity::kernel());
            group.throughput(Throughput::Bytes((size * count) as u64));
            let shape = format!("{count}x{} KiB", size >> 10);
            // The oracle isn't meant to be fast.
            for kernel in Kernel::supported().iter().filter(|kernel| kernel.name() != "scalar") {
                group.bench_function(BenchmarkId::new(kernel.name(), &shape), |bencher| {
                    bencher.iter(|| sets.compute(kernel));
                });
            }
            #[cfg(feature = "isal")]
            group.bench_function(BenchmarkId::new("isal", &shape), |bencher| {
                bencher.iter(|| sets.compute_by_isal());
            });
        }
    }
}

criterion_group!(benches, kernels);
criterion_main!(benches);
