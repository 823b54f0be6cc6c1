//! No kernel reads or writes a byte outside its slices: they end at, or begin after, a page that may not be
//! touched.
#![cfg(unix)]

use std::{ptr, slice};

use pinstripe_parity::Kernel;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const PAGE: usize = 65536;

/// One accessible stretch of memory between two that are not. (64 KiB is a multiple of every page size in
/// use.)
struct Guarded {
    base: *mut u8,
}

impl Guarded {
    fn new() -> Self {
        // SAFETY: a new private mapping at an address of the kernel's choice; its middle is made accessible.
        unsafe {
            let base = mmap_anonymous(ptr::null_mut(), 3 * PAGE, ProtFlags::empty(), MapFlags::PRIVATE)
                .expect("address space");
            mprotect(base.byte_add(PAGE), PAGE, MprotectFlags::READ | MprotectFlags::WRITE)
                .expect("own mapping");
            Self { base: base.cast() }
        }
    }

    /// The last, or the first, `length` bytes.
    fn edge(&mut self, length: usize, last: bool) -> &mut [u8] {
        assert!(length <= PAGE);
        let offset = if last { 2 * PAGE - length } else { PAGE };
        // SAFETY: these bytes are accessible, zero-initialised, and borrowed from `self`.
        unsafe { slice::from_raw_parts_mut(self.base.add(offset), length) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no slice of it outlives the value.
        unsafe { munmap(self.base.cast(), 3 * PAGE).expect("own mapping") }
    }
}

#[test]
fn no_kernel_touches_a_byte_outside_its_slices() {
    let mut memory: [Guarded; 5] = std::array::from_fn(|_| Guarded::new());
    for kernel in Kernel::supported() {
        for length in (0..300).chain([511, 512, 513, 1023, 4095, 4096, 4097]) {
            for last in [true, false] {
                let [p, q, a, b, c] = memory.each_mut().map(|guarded| guarded.edge(length, last));
                a.fill(1);
                b.fill(2);
                c.fill(3);
                let (a, b, c) = (&*a, &*b, &*c);
                let columns = [Some(a), Some(b), None, Some(c)];
                kernel.xor(p, &[a, b, c]);
                kernel.xor_into(q, &[a, b, c]);
                kernel.update_p(p, a, b);
                kernel.update_q(q, a, b, 3);
                kernel.update_pq(p, q, a, b, 4);
                kernel.accumulate_q(q, a, 5);
                kernel.accumulate_pq(p, q, a, 6);
                kernel.scaled_sum(p, &[a, b], 7);
                kernel.reconstruct_from_q(q, 7);
                kernel.reconstruct_two(p, q, 8, 9);
                kernel.pq(p, q, &columns);
                assert!(kernel.cancels(&[a, b, c]), "{}", kernel.name());
            }
        }
    }
}
