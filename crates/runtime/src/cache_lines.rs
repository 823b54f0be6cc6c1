//! Cache lines: stores past the processor's caches, and lines written back from them to persistent memory.
//!
//! ```text
//!   store ──> cache ──(write back)──> memory controller       durable, once a fence has waited for it
//!   non-temporal store ─────────────> memory controller
//! ```
//!
//! What the memory controller has taken outlives a loss of power (ADR, which a platform with persistent
//! memory must have). So after a fence a non-temporal store is durable, and so is a line that was written
//! back. See the Intel 64 manual, volume 1, 10.4.6.2, and volume 2, CLWB. A fence is for the stores of its
//! own processor alone, so each request has its own, before it completes.

use std::ops::Range;

/// Bytes of a line.
const LINE: usize = 64;

/// Whether lines can be written back here.
pub(crate) const fn can_be_written_back() -> bool {
    cfg!(target_arch = "x86_64")
}

/// Copies with non-temporal stores wherever the target has whole lines. Says which parts of the range are in
/// the caches; a fence has to follow.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy_streaming(from: *const u8, to: *mut u8, length: usize) -> [Range<usize>; 2] {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const REGISTER: usize = size_of::<__m128i>();
    let head = to.align_offset(LINE).min(length);
    let tail = head + (length - head) / LINE * LINE;
    // SAFETY: the three parts make up the range. `to + head` is aligned to a line, and each store lies in a
    // whole line. SSE2 is part of x86-64.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for at in (head..tail).step_by(REGISTER) {
            _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(from.add(at).cast()));
        }
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), length - tail);
    }
    #[cfg(test)]
    record::durable(to as usize + head..to as usize + tail);
    [0..head, tail..length]
}

/// A plain copy: other processors have their own way.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy_streaming(from: *const u8, to: *mut u8, length: usize) -> [Range<usize>; 2] {
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(from, to, length) };
    [0..length, length..length]
}

/// Writes every line of a range back from the caches; a fence has to follow.
///
/// # Safety
/// The range must be mapped.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn write_back(start: *const u8, length: usize) {
    if length == 0 {
        return;
    }
    let (first, end) = (start as usize / LINE * LINE, start as usize + length);
    #[cfg(test)]
    record::durable(first..end.next_multiple_of(LINE));
    let way = Way::of_this_processor();
    for back in (0..end - first).step_by(LINE) {
        let line = start.wrapping_sub(start as usize - first).wrapping_add(back);
        // SAFETY: the line has a byte of the range, so it is mapped; the processor knows the instruction. It
        // changes no byte. As assembly without `nomem`, it isn't moved before the stores that it follows.
        unsafe {
            match way {
                Way::WriteBack => {
                    std::arch::asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags));
                }
                Way::Evict => {
                    std::arch::asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                }
                Way::EvictInOrder => {
                    std::arch::asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
                }
            }
        }
    }
}

/// There is no persistent memory (see [`can_be_written_back`]).
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn write_back(_: *const u8, _: usize) {}

/// Waits until the processor's earlier stores and written-back lines are with the memory controller, and
/// orders them before what any thread does later.
pub(crate) fn fence() {
    // SAFETY: SSE is part of x86-64; no memory is named.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(test)]
    record::fence();
}

/// The instructions that write a line back, the best first.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
enum Way {
    /// `clwb`: the line may stay in the cache.
    WriteBack,
    /// `clflushopt`.
    Evict,
    /// `clflush`, one after the other; part of x86-64.
    EvictInOrder,
}

#[cfg(target_arch = "x86_64")]
impl Way {
    fn of_this_processor() -> Self {
        use std::{
            arch::x86_64::{__cpuid, __cpuid_count},
            sync::OnceLock,
        };
        static WAY: OnceLock<Way> = OnceLock::new();
        *WAY.get_or_init(|| {
            let bits = if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).ebx };
            match (bits & 1 << 24 != 0, bits & 1 << 23 != 0) {
                (true, _) => Self::WriteBack,
                (_, true) => Self::Evict,
                _ => Self::EvictInOrder,
            }
        })
    }
}

/// What was made durable, for tests: no memory here loses what its caches have.
#[cfg(test)]
pub(crate) mod record {
    use std::{cell::RefCell, mem, ops::Range};

    thread_local! {
        static PENDING: RefCell<Vec<Range<usize>>> = const { RefCell::new(Vec::new()) };
        static DURABLE: RefCell<Vec<Range<usize>>> = const { RefCell::new(Vec::new()) };
    }

    /// These addresses are durable once a fence has come.
    pub fn durable(addresses: Range<usize>) {
        PENDING.with_borrow_mut(|pending| pending.push(addresses));
    }

    pub fn fence() {
        DURABLE.with_borrow_mut(|durable| durable.append(&mut PENDING.take()));
    }

    /// Which of these addresses have become durable since the last call.
    pub fn taken(addresses: Range<usize>) -> Vec<bool> {
        PENDING.take();
        let durable = DURABLE.with_borrow_mut(mem::take);
        addresses.map(|address| durable.iter().any(|range| range.contains(&address))).collect()
    }
}
