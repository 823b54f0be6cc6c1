//! The public operations: what they mean, and the checks before the unchecked code is entered.

use std::fmt;
use std::sync::OnceLock;

use crate::field::{EXPONENT_MAX, divide, power_of_two};
use crate::scalar;

/// One implementation of every operation.
///
/// Slices may have any length and any alignment; all slices of one call must have the same length, else the
/// call panics, and nothing is written. A reference to a kernel is proof that this processor can run it: the
/// only way to one is [`Kernel::supported`] and what builds on it.
pub struct Kernel {
    name: &'static str,
    operations: &'static Operations,
}

/// The unchecked entry points of a kernel.
///
/// All are `unsafe` to call for the same two reasons: the processor must have the kernel's features, and all
/// slices of a call must have the same length. Factors are elements of the field, no longer exponents.
#[allow(clippy::type_complexity, reason = "a signature is clearest in place")]
pub(crate) struct Operations {
    pub(crate) xor: unsafe fn(dst: &mut [u8], sources: &[&[u8]]),
    pub(crate) xor_into: unsafe fn(dst: &mut [u8], sources: &[&[u8]]),
    pub(crate) pq: unsafe fn(p: &mut [u8], q: &mut [u8], columns: &[Option<&[u8]>]),
    /// `p += old + new`.
    pub(crate) update_p: unsafe fn(p: &mut [u8], old: &[u8], new: &[u8]),
    /// `q += factor * data`.
    pub(crate) accumulate_q: unsafe fn(q: &mut [u8], data: &[u8], factor: u8),
    /// `p += data` and `q += factor * data`.
    pub(crate) accumulate_pq: unsafe fn(p: &mut [u8], q: &mut [u8], data: &[u8], factor: u8),
    /// `q += factor * (old + new)`.
    pub(crate) update_q: unsafe fn(q: &mut [u8], old: &[u8], new: &[u8], factor: u8),
    /// `p += old + new` and `q += factor * (old + new)`.
    pub(crate) update_pq: unsafe fn(p: &mut [u8], q: &mut [u8], old: &[u8], new: &[u8], factor: u8),
    /// `dst = factor * (sum of the sources)`.
    pub(crate) scaled_sum: unsafe fn(dst: &mut [u8], sources: &[&[u8]], factor: u8),
    /// `data *= factor`.
    pub(crate) scale: unsafe fn(data: &mut [u8], factor: u8),
    /// `(px, qx) = (a, px + a)` with `a = p_factor * px + q_factor * qx`.
    pub(crate) solve_two: unsafe fn(px: &mut [u8], qx: &mut [u8], p_factor: u8, q_factor: u8),
    /// True if the sources add up to zero everywhere.
    pub(crate) cancels: unsafe fn(sources: &[&[u8]]) -> bool,
}

impl Kernel {
    /// The name by which [`select`](crate::select) finds this kernel.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The kernels that this processor can run, from the slowest, `scalar`, to the fastest.
    pub fn supported() -> &'static [Kernel] {
        static SUPPORTED: OnceLock<Vec<Kernel>> = OnceLock::new();
        SUPPORTED.get_or_init(detect)
    }

    /// The fastest kernel that this processor can run.
    pub(crate) fn best() -> &'static Kernel {
        Self::supported().last().expect("the scalar kernel needs nothing")
    }

    /// `dst` becomes the XOR of all sources; zero if there are none.
    pub fn xor(&self, dst: &mut [u8], sources: &[&[u8]]) {
        check_sources(dst.len(), sources);
        // SAFETY: `self` proves the features (see `detect`), the line above the lengths.
        unsafe { (self.operations.xor)(dst, sources) }
    }

    /// `dst ^= source` for each source.
    pub fn xor_into(&self, dst: &mut [u8], sources: &[&[u8]]) {
        check_sources(dst.len(), sources);
        // SAFETY: as in `xor`.
        unsafe { (self.operations.xor_into)(dst, sources) }
    }

    /// `p` and `q` become the parity of `columns`. A column's index is its exponent; `None` contributes
    /// nothing, but counts (DDF layouts count the positions of parity). At most 255 columns.
    pub fn pq(&self, p: &mut [u8], q: &mut [u8], columns: &[Option<&[u8]>]) {
        let columns = check_columns(p.len(), q.len(), columns);
        // SAFETY: `self` proves the features, the line above the lengths.
        unsafe { (self.operations.pq)(p, q, columns) }
    }

    /// `p ^= old ^ new`: a column changes from `old` to `new`.
    pub fn update_p(&self, p: &mut [u8], old: &[u8], new: &[u8]) {
        check_sources(p.len(), &[old, new]);
        // SAFETY: as in `xor`.
        unsafe { (self.operations.update_p)(p, old, new) }
    }

    /// `q ^= 2^exponent * (old ^ new)`: the column with this exponent changes from `old` to `new`.
    pub fn update_q(&self, q: &mut [u8], old: &[u8], new: &[u8], exponent: u8) {
        check_sources(q.len(), &[old, new]);
        // SAFETY: as in `xor`.
        unsafe { (self.operations.update_q)(q, old, new, power_of_two(exponent)) }
    }

    /// [`update_p`](Self::update_p) and [`update_q`](Self::update_q) in one pass.
    pub fn update_pq(&self, p: &mut [u8], q: &mut [u8], old: &[u8], new: &[u8], exponent: u8) {
        check_sources(p.len(), &[q, old, new]);
        // SAFETY: as in `xor`.
        unsafe { (self.operations.update_pq)(p, q, old, new, power_of_two(exponent)) }
    }

    /// `q ^= 2^exponent * data`: adds one column to a Q under construction (or takes it out of one).
    pub fn accumulate_q(&self, q: &mut [u8], data: &[u8], exponent: u8) {
        check_sources(q.len(), &[data]);
        // SAFETY: as in `xor`.
        unsafe { (self.operations.accumulate_q)(q, data, power_of_two(exponent)) }
    }

    /// `p ^= data` and [`accumulate_q`](Self::accumulate_q) in one pass.
    pub fn accumulate_pq(&self, p: &mut [u8], q: &mut [u8], data: &[u8], exponent: u8) {
        check_sources(p.len(), &[q, data]);
        // SAFETY: as in `xor`.
        unsafe { (self.operations.accumulate_pq)(p, q, data, power_of_two(exponent)) }
    }

    /// `dst` becomes the XOR of all sources times `factor`, any element of the field; zero if there are no
    /// sources. What a column contributes to a sum that is kept elsewhere: of a change, the sources are the
    /// old column and the new one.
    pub fn scaled_sum(&self, dst: &mut [u8], sources: &[&[u8]], factor: u8) {
        check_sources(dst.len(), sources);
        // SAFETY: as in `xor`.
        unsafe {
            match factor {
                1 => (self.operations.xor)(dst, sources),
                _ => (self.operations.scaled_sum)(dst, sources, factor),
            }
        }
    }

    /// Recovers a lost column from Q alone (P is lost too, or not wanted).
    ///
    /// `qx` holds the XOR of Q and of every surviving column's contribution to Q, and becomes the column that
    /// had this exponent: `qx / 2^exponent`.
    pub fn reconstruct_from_q(&self, qx: &mut [u8], exponent: u8) {
        let factor = divide(1, power_of_two(exponent));
        // SAFETY: `self` proves the features; there is one slice.
        unsafe { (self.operations.scale)(qx, factor) }
    }

    /// Recovers two lost columns from P and Q.
    ///
    /// `px` holds the XOR of P and of the surviving columns, and becomes the column with `exponent_a`; `qx`
    /// holds the XOR of Q and of the surviving columns' contributions to it, and becomes the column with
    /// `exponent_b`. The two exponents must differ.
    pub fn reconstruct_two(&self, px: &mut [u8], qx: &mut [u8], exponent_a: u8, exponent_b: u8) {
        check_sources(px.len(), &[qx]);
        assert_ne!(exponent_a, exponent_b, "two lost columns have two exponents");
        // With g = 2^a and h = 2^b: px = A + B, qx = gA + hB, so h px + qx = (g + h) A, and B = px + A.
        // The powers differ because the exponents do, so g + h is not zero.
        let (g, h) = (power_of_two(exponent_a), power_of_two(exponent_b));
        // SAFETY: `self` proves the features, the check above the lengths.
        unsafe { (self.operations.solve_two)(px, qx, divide(h, g ^ h), divide(1, g ^ h)) }
    }

    /// True if every byte is zero.
    pub fn is_zero(&self, data: &[u8]) -> bool {
        self.cancels(&[data])
    }

    /// True if the XOR of all sources is zero everywhere: the data columns of a row and their P do so. It
    /// writes nothing and stops at the first difference.
    pub fn cancels(&self, sources: &[&[u8]]) -> bool {
        check_sources(sources.first().map_or(0, |source| source.len()), sources);
        // SAFETY: as in `xor`.
        unsafe { (self.operations.cancels)(sources) }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Kernel").field(&self.name).finish()
    }
}

/// The kernels for this processor. Every `unsafe` call in this file rests on this function: a vector kernel
/// enters the list only where the features are present that its module enables.
fn detect() -> Vec<Kernel> {
    // Not pushed to on other processors.
    #[allow(unused_mut)]
    let mut kernels = vec![Kernel { name: "scalar", operations: &scalar::OPERATIONS }];
    #[cfg(target_arch = "x86_64")]
    {
        use crate::x86;
        if is_x86_feature_detected!("avx2") {
            kernels.push(Kernel { name: "avx2", operations: &x86::avx2::OPERATIONS });
        }
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            kernels.push(Kernel { name: "avx512", operations: &x86::avx512::OPERATIONS });
            if is_x86_feature_detected!("gfni") {
                kernels.push(Kernel { name: "gfni", operations: &x86::gfni::OPERATIONS });
            }
        }
    }
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    if std::arch::is_aarch64_feature_detected!("neon") {
        kernels.push(Kernel { name: "neon", operations: &crate::aarch64::neon::OPERATIONS });
    }
    kernels
}

#[inline]
fn check_sources(length: usize, sources: &[&[u8]]) {
    for source in sources {
        assert_eq!(source.len(), length, "slices of different lengths");
    }
}

/// Checks the lengths and the number of columns, and leaves out the absent columns at the end: they change
/// nothing.
#[inline]
fn check_columns<'a>(p: usize, q: usize, columns: &'a [Option<&'a [u8]>]) -> &'a [Option<&'a [u8]>] {
    assert_eq!(p, q, "P and Q of different lengths");
    assert!(columns.len() <= usize::from(EXPONENT_MAX) + 1, "more columns than exponents");
    for column in columns.iter().flatten() {
        assert_eq!(column.len(), p, "a column of another length than P");
    }
    let used = columns.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    &columns[..used]
}
