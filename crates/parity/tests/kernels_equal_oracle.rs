//! Every kernel gives the oracle's bytes, for every operation, on any length, offset and alignment, and
//! touches no byte outside its destinations. The oracle in turn agrees with the definition and with vectors
//! computed by hand.

use pinstripe_parity::{Kernel, double, multiply, power_of_two, select};
use proptest::prelude::*;

/// A destination or source at an odd place in a larger buffer, so that neighbours can be checked.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Window {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

const MARGIN: usize = 64;

impl Window {
    /// Pseudo-random bytes everywhere, the margins included. The start is `offset` bytes behind a 64-byte
    /// line.
    fn new(seed: &mut u64, offset: usize, length: usize) -> Self {
        let mut bytes = vec![0; 2 * MARGIN + offset + length + MARGIN];
        for byte in &mut bytes {
            // Marsaglia's xorshift64.
            *seed ^= *seed << 13;
            *seed ^= *seed >> 7;
            *seed ^= *seed << 17;
            *byte = (*seed >> 32).to_le_bytes()[0];
        }
        let start = MARGIN + bytes[MARGIN..].as_ptr().align_offset(64) + offset;
        Self { bytes, start, length }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }

    /// A copy with the same alignment.
    fn copy(&self) -> Self {
        let mut seed = 1;
        let mut copy = Self::new(&mut seed, self.get().as_ptr().addr() % 64, self.length);
        copy.get_mut().copy_from_slice(self.get());
        copy
    }
}

#[derive(Debug)]
struct Case {
    windows: Vec<Window>,
    absent: u32,
    exponents: (u8, u8),
}

impl Case {
    fn sources(&self) -> Vec<&[u8]> {
        self.windows.iter().map(Window::get).collect()
    }

    /// The sources as columns, with gaps where `absent` has a bit.
    fn columns(&self) -> Vec<Option<&[u8]>> {
        self.windows.iter().enumerate().map(|(i, w)| (self.absent >> i & 1 == 0).then_some(w.get())).collect()
    }
}

/// Lengths up to 9000, the short ones and those near a multiple of a block often.
fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![0..200_usize, 0..=9000_usize, (1..16_usize, 0..5_usize).prop_map(|(n, d)| n * 512 + d - 2)]
}

fn cases() -> impl Strategy<Value = Case> {
    let offsets = prop::collection::vec(prop_oneof![Just(0), 0..=64_usize], 0..=20);
    let exponents = (0..=254_u8, 0..=254_u8).prop_filter("two columns", |(a, b)| a != b);
    let absent = prop_oneof![Just(0), any::<u32>()];
    (lengths(), offsets, any::<u64>(), absent, exponents).prop_map(
        |(length, offsets, seed, absent, exponents)| {
            let mut seed = seed | 1;
            let windows = offsets.iter().map(|offset| Window::new(&mut seed, *offset, length)).collect();
            Case { windows, absent, exponents }
        },
    )
}

/// Two destinations, and what one kernel makes of them.
fn destinations(length: usize) -> impl Strategy<Value = (Window, Window)> {
    (0..=64_usize, prop_oneof![Just(None), (0..=64_usize).prop_map(Some)], any::<u64>()).prop_map(
        move |(p, q, seed)| {
            let mut seed = seed | 1;
            (Window::new(&mut seed, p, length), Window::new(&mut seed, q.unwrap_or(p), length))
        },
    )
}

fn cases_with_destinations() -> impl Strategy<Value = (Case, Window, Window)> {
    cases().prop_flat_map(|case| {
        let length = case.windows.first().map_or(777, |window| window.length);
        let windows = (case.windows, case.absent, case.exponents);
        (Just(windows), destinations(length))
            .prop_map(|((windows, absent, exponents), (p, q))| (Case { windows, absent, exponents }, p, q))
    })
}

/// Runs `operation` with the oracle and with every kernel on the same destinations; all bytes must be equal,
/// those around the destinations too.
fn same_for_all(
    p: &Window,
    q: &Window,
    operation: impl Fn(&Kernel, &mut [u8], &mut [u8]),
) -> Result<(), TestCaseError> {
    let oracle = select("scalar").expect("always there");
    let (mut p_expected, mut q_expected) = (p.clone(), q.clone());
    operation(oracle, p_expected.get_mut(), q_expected.get_mut());
    for kernel in Kernel::supported() {
        let (mut p_found, mut q_found) = (p.clone(), q.clone());
        operation(kernel, p_found.get_mut(), q_found.get_mut());
        prop_assert!(p_found == p_expected, "{} differs in p", kernel.name());
        prop_assert!(q_found == q_expected, "{} differs in q", kernel.name());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn xor_equals_the_oracle((case, p, q) in cases_with_destinations()) {
        let sources = case.sources();
        same_for_all(&p, &q, |kernel, p, q| {
            kernel.xor(p, &sources);
            kernel.xor_into(q, &sources);
        })?;
    }

    #[test]
    fn pq_equals_the_oracle((case, p, q) in cases_with_destinations()) {
        let columns = case.columns();
        same_for_all(&p, &q, |kernel, p, q| kernel.pq(p, q, &columns))?;
    }

    #[test]
    fn updates_equal_the_oracle((case, p, q) in cases_with_destinations()) {
        let sources = case.sources();
        prop_assume!(sources.len() >= 2);
        let (old, new, exponent) = (sources[0], sources[1], case.exponents.0);
        same_for_all(&p, &q, |kernel, p, q| kernel.update_pq(p, q, old, new, exponent))?;
        same_for_all(&p, &q, |kernel, p, q| {
            kernel.update_p(p, old, new);
            kernel.update_q(q, old, new, exponent);
        })?;
        same_for_all(&p, &q, |kernel, p, q| kernel.accumulate_pq(p, q, old, exponent))?;
        same_for_all(&p, &q, |kernel, _, q| kernel.accumulate_q(q, new, exponent))?;
    }

    #[test]
    fn scaled_sums_equal_the_oracle_and_the_definition((case, p, _) in cases_with_destinations(), factor in any::<u8>()) {
        let sources = case.sources();
        same_for_all(&p, &p, |kernel, p, _| kernel.scaled_sum(p, &sources, factor))?;
        let mut found = p.copy();
        select("scalar").expect("always there").scaled_sum(found.get_mut(), &sources, factor);
        for (at, byte) in found.get().iter().enumerate() {
            let sum = sources.iter().fold(0, |sum, source| sum ^ source[at]);
            prop_assert_eq!(*byte, multiply(sum, factor));
        }
    }

    #[test]
    fn recovery_equals_the_oracle((case, p, q) in cases_with_destinations()) {
        let (a, b) = case.exponents;
        same_for_all(&p, &q, |kernel, p, q| kernel.reconstruct_two(p, q, a, b))?;
        same_for_all(&p, &q, |kernel, _, q| kernel.reconstruct_from_q(q, b))?;
    }

    #[test]
    fn comparisons_see_every_single_changed_byte((case, mut p, mut q) in cases_with_destinations(), at in any::<prop::sample::Index>(), change in 1..=255_u8) {
        let oracle = select("scalar").expect("always there");
        let (sources, columns) = (case.sources(), case.columns());
        let mut sum = p.copy();
        oracle.xor(sum.get_mut(), &sources);
        oracle.pq(p.get_mut(), q.get_mut(), &columns);
        let mut zero = p.copy();
        zero.get_mut().fill(0);
        let length = p.length;
        for kernel in Kernel::supported() {
            let name = kernel.name();
            let mut all = sources.clone();
            all.push(sum.get());
            prop_assert!(kernel.cancels(&all), "{name}");
            prop_assert!(kernel.is_zero(zero.get()), "{name}");
            if length == 0 {
                continue;
            }
            let at = at.index(length);
            let flipped = |window: &Window| {
                let mut window = window.copy();
                window.get_mut()[at] ^= change;
                window
            };
            let wrong_sum = flipped(&sum);
            *all.last_mut().expect("not empty") = wrong_sum.get();
            prop_assert!(!kernel.cancels(&all), "{name} at {at}");
            prop_assert!(!kernel.is_zero(flipped(&zero).get()), "{name} at {at}");
        }
    }
}

/// The nibble tables and matrices hold 255 factors; each is tried on each byte.
#[test]
fn every_kernel_multiplies_every_byte_by_every_factor() {
    let bytes: Vec<u8> = (0..=255).collect();
    for kernel in Kernel::supported() {
        for exponent in 0..=254 {
            let mut q = vec![0; 256];
            kernel.accumulate_q(&mut q, &bytes, exponent);
            for (byte, product) in bytes.iter().zip(&q) {
                assert_eq!(
                    *product,
                    multiply(*byte, power_of_two(exponent)),
                    "{} 2^{exponent}",
                    kernel.name()
                );
            }
            kernel.reconstruct_from_q(&mut q, exponent);
            assert_eq!(q, bytes, "{} 2^{exponent}", kernel.name());
        }
    }
}

/// Worked by hand: D0 = 01 80 ff, D1 = 02 80 00, D2 = 04 80 10, D3 absent, D4 = 08 01 00.
/// 2 * 80 = 1d, 4 * 80 = 3a, 4 * 10 = 40, 16 * 08 = 80, 16 * 01 = 10.
#[test]
fn parity_of_a_small_row_is_what_it_is_on_paper() {
    let (d0, d1, d2, d4) = ([0x01, 0x80, 0xff], [0x02, 0x80, 0x00], [0x04, 0x80, 0x10], [0x08, 0x01, 0x00]);
    let columns = [Some(&d0[..]), Some(&d1), Some(&d2), None, Some(&d4), None];
    for kernel in Kernel::supported() {
        let (mut p, mut q) = ([0xaa; 3], [0x55; 3]);
        kernel.pq(&mut p, &mut q, &columns);
        assert_eq!(p, [0x0f, 0x81, 0xef], "{}", kernel.name());
        assert_eq!(
            q,
            [0x01 ^ 0x04 ^ 0x10 ^ 0x80, 0x80 ^ 0x1d ^ 0x3a ^ 0x10, 0xff ^ 0x40],
            "{}",
            kernel.name()
        );
    }
}

/// Q by its definition, a sum of products, where the oracle uses Horner's rule.
#[test]
fn the_oracle_agrees_with_the_sum_of_products_for_all_255_columns() {
    let oracle = select("scalar").expect("always there");
    let mut seed = 42;
    let windows: Vec<_> = (0..255).map(|_| Window::new(&mut seed, 0, 33)).collect();
    let columns: Vec<_> = windows.iter().map(|window| Some(window.get())).collect();
    let (mut p, mut q) = ([0; 33], [0; 33]);
    oracle.pq(&mut p, &mut q, &columns);
    for at in 0..33 {
        let (mut sum, mut products, mut coefficient) = (0, 0, 1);
        for window in &windows {
            sum ^= window.get()[at];
            products ^= multiply(window.get()[at], coefficient);
            coefficient = double(coefficient);
        }
        assert_eq!((p[at], q[at]), (sum, products));
    }
    for kernel in Kernel::supported() {
        let (mut own_p, mut own_q) = ([1; 33], [1; 33]);
        kernel.pq(&mut own_p, &mut own_q, &columns);
        assert_eq!((own_p, own_q), (p, q), "{}", kernel.name());
    }
}

/// A comparison gathers the differences of several registers: two that are alike must not hide each other.
#[test]
fn equal_differences_in_different_places_do_not_hide_each_other() {
    for kernel in Kernel::supported() {
        for (first, second) in [(0, 16), (0, 32), (5, 5 + 64), (64, 512 - 64), (100, 100 + 128), (1, 1000)] {
            let mut data = [0; 1024];

            data[first] = 0xa5;
            data[second] = 0xa5;
            let name = kernel.name();
            assert!(!kernel.is_zero(&data), "{name} {first} {second}");
        }
    }
}

#[test]
fn no_sources_and_no_columns_give_zero() {
    for kernel in Kernel::supported() {
        let (mut p, mut q) = ([1; 100], [2; 100]);
        kernel.xor_into(&mut p, &[]);
        assert_eq!(p, [1; 100]);
        kernel.xor(&mut p, &[]);
        assert_eq!(p, [0; 100]);
        kernel.pq(&mut p, &mut q, &[None, None]);
        assert_eq!((p, q), ([0; 100], [0; 100]));
        assert!(kernel.cancels(&[]));
    }
}

/// The checks that the `unsafe` code rests on, in every method that takes more than one slice.
mod misuse_panics_before_anything_is_read {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn slices_of_different_lengths() {
        let (a, short) = ([0_u8; 65], [0_u8; 64]);
        for kernel in Kernel::supported() {
            refuses(|| kernel.xor(&mut a.clone(), &[&a, &short]));
            refuses(|| kernel.xor_into(&mut short.clone(), &[&a]));
            for (p, q, column) in [(&a[..], &a[..], &short[..]), (&a, &short, &a), (&short, &a, &a)] {
                let column = [Some(column)];
                refuses(|| kernel.pq(&mut p.to_vec(), &mut q.to_vec(), &column));
            }
            for (p, q, data) in [(&a[..], &a[..], &short[..]), (&a, &short, &a), (&short, &a, &a)] {
                refuses(|| kernel.accumulate_pq(&mut p.to_vec(), &mut q.to_vec(), data, 1));
                refuses(|| kernel.update_pq(&mut p.to_vec(), &mut q.to_vec(), data, data, 1));
            }
            for (dst, old, new) in [(&a[..], &a[..], &short[..]), (&a, &short, &a), (&short, &a, &a)] {
                refuses(|| kernel.update_p(&mut dst.to_vec(), old, new));
                refuses(|| kernel.update_q(&mut dst.to_vec(), old, new, 1));
                refuses(|| kernel.update_pq(&mut dst.to_vec(), &mut dst.to_vec(), old, new, 1));
                refuses(|| kernel.scaled_sum(&mut dst.to_vec(), &[old, new], 3));
                refuses(|| assert!(kernel.cancels(&[dst, old, new])));
            }
            refuses(|| kernel.accumulate_q(&mut a.clone(), &short, 1));
            refuses(|| kernel.reconstruct_two(&mut a.clone(), &mut short.clone(), 1, 2));
        }
    }

    #[test]
    fn exponents_that_are_none() {
        let a = [0_u8; 8];
        for kernel in Kernel::supported() {
            refuses(|| kernel.accumulate_q(&mut a.clone(), &a, 255));
            refuses(|| kernel.accumulate_pq(&mut a.clone(), &mut a.clone(), &a, 255));
            refuses(|| kernel.update_q(&mut a.clone(), &a, &a, 255));
            refuses(|| kernel.update_pq(&mut a.clone(), &mut a.clone(), &a, &a, 255));
            refuses(|| kernel.reconstruct_from_q(&mut a.clone(), 255));
            refuses(|| kernel.reconstruct_two(&mut a.clone(), &mut a.clone(), 0, 255));
            refuses(|| kernel.reconstruct_two(&mut a.clone(), &mut a.clone(), 7, 7));
            refuses(|| kernel.pq(&mut a.clone(), &mut a.clone(), &[Some(&a[..]); 256]));
        }
    }

    /// Not `should_panic`, so that one test can hold many cases.
    fn refuses(call: impl FnOnce()) {
        assert!(catch_unwind(AssertUnwindSafe(call)).is_err(), "accepted");
    }
}

/// What the other tests compare is what is supported: without this, a broken detection would leave nothing to
/// compare.
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
#[test]
fn neon_is_among_the_kernels_that_are_compared() {
    assert!(pinstripe_parity::Kernel::supported().iter().any(|kernel| kernel.name() == "neon"));
}
