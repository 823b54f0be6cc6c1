//! Aligned, pooled memory that moves.
//!
//! A [`Buffer`] is the only way to a range of bytes: it can be written. [`Buffer::freeze`] turns it into a
//! [`Slice`], which is shared, read-only and cheap to clone and cut. Both keep the *block* below them alive;
//! when the last of them goes, on whatever shard, the block returns to the pool that it came from: at once on
//! the pool's own shard, through a lock-free list from others. So a request that was submitted can keep its
//! memory for as long as the kernel needs, even if no task waits for it any more (C15, C16).
//!
//! Blocks have sizes of powers of two from 4 KiB. The first ones are cut from one arena, which a driver can
//! register with the kernel; what does not fit there comes from the system and is reused in the same way, up
//! to a limit: beyond that, what comes back is given back to the system, so that memory that was needed once
//! doesn't stay.

use std::{
    alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error},
    cell::{Cell, RefCell},
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence},
    },
};

use crate::shard;

/// Alignment of every block, in bytes: a page, which satisfies direct I/O on every device.
pub const ALIGNMENT: usize = 4096;
/// log2 of the smallest block.
const CLASS_MIN: u32 = 12;
/// Smaller arenas, in tests and simulations, don't ask for huge pages.
const HUGE_PAGE: usize = 2 << 20;
/// Blocks from here on are mapped one by one, so that giving one back makes the process smaller.
const MAPPED_BYTES_MIN: usize = 128 << 10;
/// Bytes of blocks outside of the arena that a pool keeps for reuse, unless told.
const SPARE_BYTES_MAX: usize = 64 << 20;
/// Number of block sizes: 4 KiB to 128 MiB.
const CLASSES: usize = 16;

/// One pooled piece of memory. Reached through raw pointers by the handles that count in `references`. Those
/// of the arena lie in `PoolCore::headers`, by the page that they begin with, so that cutting one off
/// allocates nothing; others on the heap.
struct Block {
    memory: NonNull<u8>,
    class: usize,
    /// Offset in the arena, if the memory lies there.
    arena_offset: Option<usize>,
    references: AtomicU32,
    next: AtomicPtr<Block>,
    home: Arc<PoolCore>,
}

impl Block {
    fn bytes(&self) -> usize {
        1 << (self.class + CLASS_MIN as usize)
    }
}

/// What is left of a pool for the blocks that are out: where to return, and the arena.
struct PoolCore {
    returned: [AtomicPtr<Block>; CLASSES],
    closed: AtomicBool,
    /// Blocks that came back by way of `returned`, in all.
    returned_count: AtomicU32,
    /// Bytes of blocks outside of the arena that wait to be used again, here or in the pool's own lists.
    spare_bytes: AtomicUsize,
    /// Most of these.
    spare_bytes_max: AtomicUsize,
    /// Bytes of all blocks outside of the arena.
    system_bytes: AtomicUsize,
    arena: NonNull<u8>,
    arena_bytes: usize,
    /// Room for a block for each page of the arena; written when the block is cut off.
    headers: NonNull<Block>,
}

// SAFETY: `arena` and `headers` are allocations that `PoolCore` owns and frees once; all mutation goes
// through atomics.
unsafe impl Send for PoolCore {}
// SAFETY: as above.
unsafe impl Sync for PoolCore {}

impl PoolCore {
    /// Takes every block that came back in `class` as a linked list.
    fn take(&self, class: usize) -> *mut Block {
        self.returned[class].swap(std::ptr::null_mut(), Ordering::Acquire)
    }

    fn give_back(&self, block: NonNull<Block>) {
        // SAFETY: the caller held the last handle, so the block is alive and ours alone until it is pushed.
        let (class, next) = unsafe { (block.as_ref().class, &block.as_ref().next) };
        let mut head = self.returned[class].load(Ordering::Relaxed);
        loop {
            next.store(head, Ordering::Relaxed);
            match self.returned[class].compare_exchange_weak(
                head,
                block.as_ptr(),
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
    }

    /// Whether a block that came back is to be kept for reuse; its bytes are counted then.
    fn keeps(&self, block: &Block) -> bool {
        if block.arena_offset.is_some() {
            return true;
        }
        let bytes = block.bytes();
        let before = self.spare_bytes.fetch_add(bytes, Ordering::Relaxed);
        let keeps = before + bytes <= self.spare_bytes_max.load(Ordering::Relaxed);
        if !keeps {
            self.spare_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        keeps
    }

    /// Frees every block that lies in the return lists; for a pool that is gone.
    fn drain(&self) {
        for class in 0..CLASSES {
            let mut head = self.returned[class].swap(std::ptr::null_mut(), Ordering::SeqCst);
            while let Some(block) = NonNull::new(head) {
                // SAFETY: blocks in a return list have no handles, and the swap made this list ours.
                head = unsafe { block.as_ref().next.load(Ordering::Relaxed) };
                free_block(block);
            }
        }
    }
}

impl Drop for PoolCore {
    fn drop(&mut self) {
        if self.arena_bytes > 0 {
            // SAFETY: mapped in `map_arena` with this size; the last `Arc<PoolCore>` is gone, so no block
            // uses it.
            let _ = unsafe { rustix::mm::munmap(self.arena.as_ptr().cast(), self.arena_bytes) };
            // SAFETY: allocated in `Pool::new` with this layout; blocks are moved out before they are
            // dropped.
            unsafe { dealloc(self.headers.as_ptr().cast(), headers_layout(self.arena_bytes)) }
        }
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, ALIGNMENT)
        .unwrap_or_else(|_| panic!("a block of {bytes} bytes is too large"))
}

/// Zeroes from the kernel, on huge pages where it has them: what the parity cache keeps is touched rarely,
/// and would cost a miss of the address translation each time.
fn map_arena(bytes: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    // SAFETY: a fresh private mapping at an address of the kernel's choice touches nothing of ours.
    let base = unsafe {
        mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let base = base.ok()?;
    if bytes >= HUGE_PAGE {
        // SAFETY: the range was just mapped. The advice may be refused: it is only speed.
        let _ = unsafe { madvise(base, bytes, Advice::LinuxHugepage) };
    }
    NonNull::new(base.cast())
}

/// Frees a block that no handle and no list names any more.
fn free_block(block: NonNull<Block>) {
    // SAFETY: alive until now: nothing has dropped it.
    if unsafe { block.as_ref() }.arena_offset.is_some() {
        // SAFETY: as above, and nothing reads it there again. It may hold the last handle to the home, which
        // owns the place that it was read from: so it is moved out before it is dropped.
        drop(unsafe { block.read() });
        return;
    }
    // SAFETY: made by `Box::leak` in `Pool::carve`, and unreachable now.
    let block = unsafe { Box::from_raw(block.as_ptr()) };
    let bytes = block.bytes();
    block.home.system_bytes.fetch_sub(bytes, Ordering::Relaxed);
    if bytes >= MAPPED_BYTES_MIN {
        // SAFETY: mapped in `system_memory` with this size; no handle is left.
        let _ = unsafe { rustix::mm::munmap(block.memory.as_ptr().cast(), bytes) };
    } else {
        // SAFETY: allocated in `system_memory` with exactly this layout, owned by the block.
        unsafe { dealloc(block.memory.as_ptr(), layout(bytes)) }
    }
}

/// Zeroes for a block outside of the arena. See [`free_block`].
fn system_memory(bytes: usize) -> NonNull<u8> {
    let memory = if bytes >= MAPPED_BYTES_MIN {
        map_arena(bytes)
    } else {
        // SAFETY: the layout has a size that is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)) })
    };
    memory.unwrap_or_else(|| handle_alloc_error(layout(bytes)))
}

fn headers_layout(arena_bytes: usize) -> Layout {
    Layout::array::<Block>(arena_bytes / ALIGNMENT)
        .unwrap_or_else(|_| panic!("an arena of {arena_bytes} bytes is too large"))
}

fn release(block: NonNull<Block>) {
    // SAFETY: the handle that calls this counts in `references`, so the block is alive.
    let this = unsafe { block.as_ref() };
    // A count of one is this handle: there is no other one to clone. So no locked instruction is needed.
    if this.references.load(Ordering::Acquire) != 1 {
        if this.references.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
    }
    if shard::try_with_current(|shard| shard.pool().put_back(block)) == Some(true) {
        return;
    }
    // Keeps the home alive past the moment when another thread may free the block.
    let home = Arc::clone(&this.home);
    home.returned_count.fetch_add(1, Ordering::Relaxed);
    if !home.keeps(this) {
        return free_block(block);
    }
    home.give_back(block);
    if home.closed.load(Ordering::SeqCst) {
        home.drain();
    }
}

/// A shard's memory. Buffers of it may be dropped on any shard.
pub struct Pool {
    home: Arc<PoolCore>,
    free: RefCell<[*mut Block; CLASSES]>,
    /// Blocks that went out and did not come back on this shard, in all.
    taken: Cell<u32>,
    arena_used: Cell<usize>,
    heap_blocks: Cell<usize>,
}

impl Pool {
    /// A pool with its first `arena_bytes` from one allocation (rounded up to 4 KiB; 0 for none).
    pub fn new(arena_bytes: usize) -> Self {
        let arena_bytes = arena_bytes.next_multiple_of(ALIGNMENT);
        let (arena, headers) = if arena_bytes == 0 {
            (NonNull::dangling(), NonNull::dangling())
        } else {
            let arena = map_arena(arena_bytes).unwrap_or_else(|| handle_alloc_error(layout(arena_bytes)));
            // SAFETY: the arena has a page, so the layout has a size that is not zero.
            let headers = NonNull::new(unsafe { alloc(headers_layout(arena_bytes)) })
                .unwrap_or_else(|| handle_alloc_error(headers_layout(arena_bytes)));
            (arena, headers.cast())
        };
        Self {
            home: Arc::new(PoolCore {
                returned: Default::default(),
                closed: AtomicBool::new(false),
                returned_count: AtomicU32::new(0),
                spare_bytes: AtomicUsize::new(0),
                spare_bytes_max: AtomicUsize::new(SPARE_BYTES_MAX),
                system_bytes: AtomicUsize::new(0),
                arena,
                arena_bytes,
                headers,
            }),
            free: RefCell::new([std::ptr::null_mut(); CLASSES]),
            taken: Cell::new(0),
            arena_used: Cell::new(0),
            heap_blocks: Cell::new(0),
        }
    }

    /// Address and length of the arena, to be registered with the kernel.
    pub fn arena(&self) -> (*mut u8, usize) {
        (self.home.arena.as_ptr(), self.home.arena_bytes)
    }

    /// Blocks that are held by buffers and slices now, on any shard.
    pub fn outstanding(&self) -> u32 {
        self.taken.get().wrapping_sub(self.home.returned_count.load(Ordering::Relaxed))
    }

    /// Blocks that came from the heap because the arena was used up or the request was large.
    pub fn heap_blocks(&self) -> usize {
        self.heap_blocks.get()
    }

    /// Bytes of blocks outside of the arena that are kept for reuse.
    pub fn spare_bytes(&self) -> usize {
        self.home.spare_bytes.load(Ordering::Relaxed)
    }

    /// Keeps at most so many bytes from now on.
    pub fn keep_spare(&self, bytes: usize) {
        self.home.spare_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of all blocks outside of the arena, held or spare.
    pub fn system_bytes(&self) -> usize {
        self.home.system_bytes.load(Ordering::Relaxed)
    }

    /// A buffer of `length` bytes (at most 128 MiB), aligned to 4 KiB. What it holds is unspecified.
    pub fn buffer(&self, length: usize) -> Buffer {
        let class = class_of(length);
        let mut free = self.free.borrow_mut();
        if free[class].is_null() {
            free[class] = self.home.take(class);
        }
        let block = if let Some(block) = NonNull::new(free[class]) {
            // SAFETY: blocks in the free list have no handles; the list is this thread's.
            let this = unsafe { block.as_ref() };
            free[class] = this.next.load(Ordering::Relaxed);
            if this.arena_offset.is_none() {
                self.home.spare_bytes.fetch_sub(this.bytes(), Ordering::Relaxed);
            }
            block
        } else {
            drop(free);
            self.carve(class)
        };
        // SAFETY: alive, and nothing else has it.
        unsafe { block.as_ref().references.store(1, Ordering::Relaxed) };
        self.taken.set(self.taken.get().wrapping_add(1));
        Buffer { block, start: 0, length: narrow(length) }
    }

    /// A buffer of `length` zero bytes.
    pub fn zeroed(&self, length: usize) -> Buffer {
        let mut buffer = self.buffer(length);
        buffer.fill(0);
        buffer
    }

    /// Takes a block back that lost its last handle on this shard, if it is from here. It is the next to go
    /// out: what was used last is still in the core's cache.
    fn put_back(&self, block: NonNull<Block>) -> bool {
        // SAFETY: the caller held the last handle, so the block is alive and nothing else has it.
        let this = unsafe { block.as_ref() };
        if !std::ptr::eq(Arc::as_ptr(&this.home), Arc::as_ptr(&self.home)) {
            return false;
        }
        self.taken.set(self.taken.get().wrapping_sub(1));
        if !self.home.keeps(this) {
            free_block(block);
            return true;
        }
        let head = &mut self.free.borrow_mut()[this.class];
        this.next.store(*head, Ordering::Relaxed);
        *head = block.as_ptr();
        true
    }

    fn carve(&self, class: usize) -> NonNull<Block> {
        let bytes = 1_usize << (class + CLASS_MIN as usize);
        let used = self.arena_used.get();
        let in_arena = self.home.arena_bytes - used >= bytes;
        let memory = if in_arena {
            self.arena_used.set(used + bytes);
            // SAFETY: `used + bytes` does not exceed the arena.
            unsafe { self.home.arena.add(used) }
        } else {
            self.heap_blocks.set(self.heap_blocks.get() + 1);
            self.home.system_bytes.fetch_add(bytes, Ordering::Relaxed);
            system_memory(bytes)
        };
        let block = Block {
            memory,
            class,
            arena_offset: in_arena.then_some(used),
            references: AtomicU32::new(0),
            next: AtomicPtr::default(),
            home: Arc::clone(&self.home),
        };
        if !in_arena {
            return NonNull::from(Box::leak(Box::new(block)));
        }
        // SAFETY: one header for each page of the arena, and `used` is the start of a page in it that no
        // other block has.
        unsafe {
            let place = self.home.headers.add(used / ALIGNMENT);
            place.write(block);
            place
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.home.closed.store(true, Ordering::SeqCst);
        self.home.drain();
        for head in self.free.get_mut() {
            while let Some(block) = NonNull::new(*head) {
                // SAFETY: blocks in the free list have no handles.
                *head = unsafe { block.as_ref().next.load(Ordering::Relaxed) };
                free_block(block);
            }
        }
    }
}

fn class_of(length: usize) -> usize {
    let bits = length.max(1).next_power_of_two().trailing_zeros().max(CLASS_MIN);
    let class = (bits - CLASS_MIN) as usize;
    assert!(class < CLASSES, "a buffer of {length} bytes is larger than the pool's largest block");
    class
}

/// Bytes that a buffer of `length` bytes takes: those of its block.
pub const fn block_bytes(length: usize) -> usize {
    let least = if length < ALIGNMENT { ALIGNMENT } else { length };
    least.next_power_of_two()
}

fn narrow(length: usize) -> u32 {
    u32::try_from(length).unwrap_or_else(|_| unreachable!("blocks are at most 128 MiB"))
}

macro_rules! handle {
    ($name:ident) => {
        impl $name {
            /// Length in bytes.
            pub fn len(&self) -> usize {
                self.length as usize
            }

            /// Whether there are no bytes.
            pub fn is_empty(&self) -> bool {
                self.length == 0
            }

            fn block(&self) -> &Block {
                // SAFETY: this handle counts in `references`.
                unsafe { self.block.as_ref() }
            }

            /// Address of the first byte.
            pub fn as_ptr(&self) -> *const u8 {
                // SAFETY: `start + length` lies in the block.
                unsafe { self.block().memory.as_ptr().add(self.start as usize) }
            }

            /// Offset in the arena of the pool that made it, if it lies there.
            pub fn arena_offset(&self) -> Option<usize> {
                self.block().arena_offset.map(|at| at + self.start as usize)
            }

            /// Whether its memory belongs to `pool`: only then does a registered index of that pool's driver
            /// fit.
            pub fn is_from(&self, pool: &Pool) -> bool {
                Arc::ptr_eq(&self.block().home, &pool.home)
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                release(self.block);
            }
        }

        impl Deref for $name {
            type Target = [u8];

            fn deref(&self) -> &[u8] {
                // SAFETY: the range lies in the block and is initialised (blocks start zeroed); nothing
                // writes it: a `Buffer` is the only handle to its range, and `Slice`s are read-only.
                unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({} bytes)"), self.length)
            }
        }
    };
}

/// The only handle to a range of bytes.
pub struct Buffer {
    block: NonNull<Block>,
    start: u32,
    length: u32,
}

// SAFETY: a handle to memory that no other handle reaches; the block's count and return list are atomic.
unsafe impl Send for Buffer {}
// SAFETY: shared references only read.
unsafe impl Sync for Buffer {}

handle!(Buffer);

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and this is the only handle to the range.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().cast_mut(), self.len()) }
    }
}

impl Buffer {
    /// Cuts off the first `at` bytes; `self` keeps the rest.
    ///
    /// # Panics
    /// If `at` is past the end.
    pub fn split_to(&mut self, at: usize) -> Buffer {
        assert!(at <= self.len(), "split at {at} of {} bytes", self.length);
        self.block().references.fetch_add(1, Ordering::Relaxed);
        let head = Buffer { block: self.block, start: self.start, length: narrow(at) };
        self.start += narrow(at);
        self.length -= narrow(at);
        head
    }

    /// Appends `next`. Neighbouring parts of one buffer are joined; otherwise both are copied into other
    /// memory of the current shard: a read that was given up came back with memory that is not its own.
    #[expect(clippy::needless_pass_by_value, reason = "the handle to the range must end here")]
    pub fn unsplit(&mut self, next: Buffer) {
        if self.block == next.block && self.start + self.length == next.start {
            self.length += next.length;
            return;
        }
        let mut whole = crate::shard::buffer(self.len() + next.len());
        let (head, tail) = whole.split_at_mut(self.len());
        head.copy_from_slice(self);
        tail.copy_from_slice(&next);
        *self = whole;
    }

    /// Shortens to `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(narrow(length));
    }

    /// Gives up writing, for a handle that can be shared.
    pub fn freeze(self) -> Slice {
        let slice = Slice { block: self.block, start: self.start, length: self.length };
        std::mem::forget(self);
        slice
    }
}

/// A shared, read-only range of bytes.
pub struct Slice {
    block: NonNull<Block>,
    start: u32,
    length: u32,
}

// SAFETY: read-only; the block's count and return list are atomic. It is not `Sync`: see `clone`.
unsafe impl Send for Slice {}

handle!(Slice);

impl Clone for Slice {
    fn clone(&self) -> Self {
        // A locked instruction waits until all earlier stores are in the cache, which may be 4 KiB of cold
        // memory. If this is the only handle, nothing else can change the count: other threads have no
        // handle, and can't use this one (no `Sync`).
        //
        // The store ends the release sequences of handles that others have dropped: the drop of the last
        // handle doesn't synchronise with them any more. So this load does, and this handle's own drop passes
        // it on.
        let references = &self.block().references;
        if references.load(Ordering::Acquire) == 1 {
            references.store(2, Ordering::Relaxed);
        } else {
            references.fetch_add(1, Ordering::Relaxed);
        }
        Self { ..*self }
    }
}

impl Slice {
    /// The `length` bytes from `start`.
    ///
    /// # Panics
    /// If they are not all inside.
    pub fn slice(&self, start: usize, length: usize) -> Slice {
        assert!(
            start.checked_add(length).is_some_and(|end| end <= self.len()),
            "{length} bytes from {start} of {}",
            self.length
        );
        let mut part = self.clone();
        part.start += narrow(start);
        part.length = narrow(length);
        part
    }

    /// The buffer again, if this is the only handle to the block.
    pub fn try_into_buffer(self) -> Result<Buffer, Slice> {
        if self.block().references.load(Ordering::Acquire) != 1 {
            return Err(self);
        }
        let buffer = Buffer { block: self.block, start: self.start, length: self.length };
        std::mem::forget(self);
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_reused() {
        let pool = Pool::new(64 << 10);
        let first = pool.buffer(5000);
        assert_eq!(first.as_ptr().addr() % ALIGNMENT, 0);
        assert_eq!(first.len(), 5000);
        let address = first.as_ptr();
        drop(first);
        assert_eq!(pool.buffer(8192).as_ptr(), address);
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn a_part_keeps_the_block_alive_and_parts_join_again() {
        let pool = Pool::new(0);
        let mut tail = pool.buffer(8192);
        tail.copy_from_slice(&[7; 8192]);
        let mut head = tail.split_to(4096);
        head.fill(1);
        assert!(tail.iter().all(|&b| b == 7));
        head.unsplit(tail);
        assert_eq!((head.len(), head[4095], head[4096]), (8192, 1, 7));
        let whole = head.freeze();
        let part = whole.slice(4096, 16);
        drop(whole);
        assert_eq!(pool.outstanding(), 1);
        assert_eq!(&part[..], &[7; 16]);
    }

    #[test]
    fn a_buffer_dropped_elsewhere_comes_home() {
        let pool = Pool::new(4096);
        let buffer = pool.buffer(4096);
        let address = buffer.as_ptr().addr();
        std::thread::spawn(move || drop(buffer)).join().unwrap();
        assert_eq!(pool.buffer(1).as_ptr().addr(), address);
    }

    #[test]
    fn on_its_own_shard_the_block_used_last_is_the_next_to_go_out() {
        let config = |index| crate::ShardConfig { index, arena_bytes: 64 << 10, clock: None };
        let (here, there) = (crate::Shard::new(&config(0)), crate::Shard::new(&config(1)));
        let _entered = here.enter();
        let (first, second, foreign) = (shard::buffer(4096), shard::buffer(4096), there.pool().buffer(4096));
        let (first_at, foreign_at) = (first.as_ptr(), foreign.as_ptr());
        drop(second);
        drop(first);
        drop(foreign);
        assert_eq!((here.pool().outstanding(), there.pool().outstanding()), (0, 0));
        assert_eq!(shard::buffer(4096).as_ptr(), first_at);
        assert_eq!(
            there.pool().buffer(4096).as_ptr(),
            foreign_at,
            "it went home, not to the shard that dropped it"
        );
    }

    #[test]
    fn parts_of_different_buffers_are_joined_by_copying() {
        let shard = crate::Shard::new(&crate::ShardConfig { index: 0, arena_bytes: 0, clock: None });
        let _entered = shard.enter();
        let mut first = shard.pool().zeroed(8192);
        let mut head = first.split_to(4096);
        head.fill(1);
        let mut other = shard.pool().zeroed(4096);
        other.fill(2);
        head.unsplit(other);
        assert_eq!(head.len(), 8192);
        assert!(head[..4096].iter().all(|byte| *byte == 1) && head[4096..].iter().all(|byte| *byte == 2));
    }

    #[test]
    fn memory_that_was_needed_once_does_not_stay() {
        const BYTES: usize = 8 << 20;
        for elsewhere in [false, true] {
            let config = crate::ShardConfig { index: 0, arena_bytes: 64 << 10, clock: None };
            let shard = crate::Shard::new(&config);
            let _entered = shard.enter();
            let pool = shard.pool();
            let small: Vec<_> = (0..16).map(|_| pool.buffer(4096)).collect();
            let large: Vec<_> = (0..40).map(|_| pool.buffer(BYTES)).collect();
            assert_eq!(pool.spare_bytes(), 0);
            if elsewhere {
                std::thread::spawn(move || drop((small, large))).join().unwrap();
            } else {
                drop((small, large));
            }
            assert_eq!((pool.outstanding(), pool.spare_bytes()), (0, SPARE_BYTES_MAX));
            let made = pool.heap_blocks();
            let again: Vec<_> = (0..SPARE_BYTES_MAX / BYTES).map(|_| pool.buffer(BYTES)).collect();
            assert_eq!((pool.heap_blocks(), pool.spare_bytes()), (made, 0), "what was kept is not used");
            drop(again);
            assert_eq!((pool.spare_bytes(), pool.system_bytes()), (SPARE_BYTES_MAX, SPARE_BYTES_MAX));
            pool.keep_spare(0);
            drop(pool.buffer(BYTES));
            assert_eq!(pool.system_bytes(), SPARE_BYTES_MAX - BYTES, "more is kept than was wanted");
        }
    }

    #[test]
    fn a_pool_may_go_before_its_buffers() {
        let pool = Pool::new(1 << 20);
        let (arena, heap) = (pool.buffer(4096).freeze(), pool.buffer(4 << 20));
        drop(pool);
        assert_eq!(arena.len() + heap.len(), 4096 + (4 << 20));
    }

    #[test]
    fn a_shared_slice_cannot_be_written() {
        let pool = Pool::new(0);
        let slice = pool.buffer(1).freeze();
        let other = slice.clone();
        let slice = slice.try_into_buffer().unwrap_err();
        drop(other);
        assert!(slice.try_into_buffer().is_ok());
    }
}
