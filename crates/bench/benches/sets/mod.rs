//! What parity is computed of in the benches: sets of sources and outputs, one that stays in the cache, or
//! many that take turns. With the feature `isal` ISA-L computes the same.

use std::{cell::Cell, hint::black_box, slice};

use pinstripe_parity::Kernel;

/// Bytes of a source.
pub const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Sources.
pub const COUNTS: [usize; 3] = [4, 8, 16];

/// Of every buffer, as in the engine.
const ALIGNMENT: usize = 4096;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// P.
    Xor,
    /// P and Q.
    Pq,
}

impl Code {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Xor, Self::Pq];

    /// Its name.
    pub fn name(self) -> &'static str {
        if self == Self::Xor { "xor" } else { "P+Q" }
    }

    fn outputs(self) -> usize {
        if self == Self::Xor { 1 } else { 2 }
    }
}

/// Sets of one shape, which are used in turn.
pub struct Sets<'a> {
    code: Code,
    size: usize,
    sets: Vec<Set<'a>>,
    next: Cell<usize>,
}

struct Set<'a> {
    sources: Vec<&'a [u8]>,
    columns: Vec<Option<&'a [u8]>>,
    outputs: Vec<*mut u8>,
    #[cfg(feature = "isal")]
    all: Vec<*mut std::ffi::c_void>,
}

/// Memory of `bytes` at least, and of what one set takes, with no page like another one.
pub fn memory(bytes: usize) -> Vec<u8> {
    let one = (COUNTS[2] + 2) * SIZES[2];
    let byte = |at: usize| ((at ^ (at >> 12)).wrapping_mul(0x9e37_79b1) >> 13).to_le_bytes()[0];
    (0..bytes.max(one) + ALIGNMENT).map(byte).collect()
}

impl<'a> Sets<'a> {
    /// As many sets as the first `bytes` of `memory` have room for, at least one.
    pub fn new(code: Code, size: usize, count: usize, memory: &'a mut [u8], bytes: usize) -> Self {
        let set_bytes = (count + code.outputs()) * size;
        let number = (bytes / set_bytes).max(1);
        let from = memory.as_ptr().align_offset(ALIGNMENT);
        let sets = memory[from..][..number * set_bytes].chunks_exact_mut(set_bytes);
        let sets = sets.map(|set| Set::new(set, size, count)).collect();
        Self { code, size, sets, next: Cell::new(0) }
    }

    fn next(&self) -> &Set<'a> {
        let number = self.next.get();
        self.next.set(if number + 1 == self.sets.len() { 0 } else { number + 1 });
        &self.sets[number]
    }

    /// Computes the next set.
    pub fn compute(&self, kernel: &Kernel) {
        let set = self.next();
        // SAFETY: `size` bytes that were borrowed for `'a` and belong to this output only. `self` isn't
        // shared with another thread, and the one slice of them that there is ends with this call.
        let output = |number: usize| unsafe { slice::from_raw_parts_mut(set.outputs[number], self.size) };
        match self.code {
            Code::Xor => kernel.xor(output(0), &set.sources),
            Code::Pq => kernel.pq(output(0), output(1), &set.columns),
        }
        black_box(&set.outputs);
    }

    /// Has ISA-L compute the next set.
    #[cfg(feature = "isal")]
    pub fn compute_by_isal(&self) {
        let set = self.next();
        let (columns, size) = (set.all.len(), self.size);
        let number = |length: usize| i32::try_from(length).expect("a shape is small");
        let compute = if self.code == Code::Xor { isal::xor_gen } else { isal::pq_gen };
        // SAFETY: the array has pointers to `columns` buffers of `size` bytes each, aligned to 4096 bytes, of
        // which ISA-L writes to the outputs, the last one or two, only.
        let failed = unsafe { compute(number(columns), number(size), set.all.as_ptr().cast_mut()) };
        assert_eq!(failed, 0, "ISA-L refuses {columns} buffers of {size} bytes");
        black_box(&set.outputs);
    }

    /// Our kernel and ISA-L compute the same of this only set.
    #[cfg(feature = "isal")]
    pub fn check(&self, kernel: &Kernel) {
        // SAFETY: as in `compute`.
        let bytes = |&at: &*mut u8| unsafe { slice::from_raw_parts(at, self.size) }.to_vec();
        let outputs = || self.sets[0].outputs.iter().map(bytes).collect::<Vec<_>>();
        self.compute_by_isal();
        let theirs = outputs();
        // A kernel that leaves bytes out must not find the right ones there.
        for (&at, right) in self.sets[0].outputs.iter().zip(&theirs) {
            // SAFETY: as in `compute`.
            let output = unsafe { slice::from_raw_parts_mut(at, self.size) };
            output.iter_mut().zip(right).for_each(|(byte, right)| *byte = !right);
        }
        self.compute(kernel);
        assert_eq!(outputs(), theirs, "{:?} of {} bytes", self.code, self.size);
    }
}

impl<'a> Set<'a> {
    fn new(memory: &'a mut [u8], size: usize, count: usize) -> Self {
        let (sources, outputs) = memory.split_at_mut(count * size);
        let sources: Vec<&[u8]> = sources.chunks_exact(size).collect();
        let outputs: Vec<_> = outputs.chunks_exact_mut(size).map(<[u8]>::as_mut_ptr).collect();
        Self {
            columns: sources.iter().copied().map(Some).collect(),
            #[cfg(feature = "isal")]
            all: sources
                .iter()
                .map(|source| source.as_ptr().cast_mut())
                .chain(outputs.iter().copied())
                .map(<*mut u8>::cast)
                .collect(),
            sources,
            outputs,
        }
    }
}

/// `raid.h` of Intel's ISA-L.
#[cfg(feature = "isal")]
mod isal {
    use std::ffi::{c_int, c_void};

    #[link(name = "isal")]
    unsafe extern "C" {
        pub fn xor_gen(vectors: c_int, bytes: c_int, array: *mut *mut c_void) -> c_int;
        pub fn pq_gen(vectors: c_int, bytes: c_int, array: *mut *mut c_void) -> c_int;
    }
}
