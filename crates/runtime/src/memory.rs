//! Devices whose bytes are in this process's address space: plain memory, which measures the engine, and
//! persistent memory. Requests complete inline.
//!
//! In persistent memory a request is durable when it completes: stores go past the processor's caches or
//! are written back from them, and a fence comes before the completion (see `cache_lines`). So there is
//! nothing to flush, and FUA costs nothing. A crash leaves each eight bytes of a store old or new, also
//! inside a sector.

use std::{marker::PhantomData, os::fd::AsFd, ptr::NonNull, rc::Rc, sync::Arc};

use crate::{
    Buffer, Device, DeviceError, DeviceErrorKind, DeviceInfo, DeviceSource, Slice, Submission, ZeroedReads,
    cache_lines,
};

/// The memory that every shard's [`MemoryDevice`] of one member shares.
pub struct Memory {
    base: NonNull<u8>,
    size: usize,
    /// What is stored has to outlive a loss of power.
    is_persistent: bool,
    /// The processor refuses stores, by a signal that ends the process: so none is tried.
    is_read_only: bool,
    /// What the bytes are of; open, and locked, for as long as they can be changed.
    _file: Option<Arc<dyn Send + Sync>>,
}

// SAFETY: the mapping lives as long as this; accesses are raw copies. Two requests for the same sectors at
// the same time race like they would on a disk: each byte has some old or new value, and the engine orders
// what must be ordered.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// `size` bytes of zeroes, on huge pages where the kernel has them.
    pub fn new(size: usize) -> Result<Arc<Self>, DeviceError> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let fail = |e: rustix::io::Errno| DeviceError::from_errno(e.raw_os_error());
        // SAFETY: a fresh private mapping at an address of the kernel's choice touches nothing of ours.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }
        .map_err(fail)?;
        // SAFETY: the range was just mapped. The advice may be refused: it is only speed.
        let _ = unsafe { madvise(base, size, Advice::LinuxHugepage) };
        let base = NonNull::new(base.cast()).ok_or(DeviceError::of(DeviceErrorKind::Other))?;
        Ok(Arc::new(Self { base, size, is_persistent: false, is_read_only: false, _file: None }))
    }

    /// The same, with every page there from the beginning: the first write to one that isn't takes as long as
    /// making it does, which in a virtual machine is milliseconds. Fails if there isn't so much memory.
    pub fn populated(size: usize) -> Result<Arc<Self>, DeviceError> {
        use rustix::{
            io::Errno,
            mm::{Advice, madvise},
        };
        let memory = Self::new(size)?;
        // SAFETY: the range is ours, and populating it changes no byte.
        match unsafe { madvise(memory.base.as_ptr().cast(), size, Advice::LinuxPopulateWrite) } {
            Err(error @ (Errno::NOMEM | Errno::AGAIN)) => Err(DeviceError::from_errno(error.raw_os_error())),
            // Linux before 5.14 doesn't know it. It is only speed.
            Ok(()) | Err(_) => Ok(memory),
        }
    }

    /// The first `size` bytes of a file that lies in persistent memory. It must not become shorter: to touch
    /// what isn't there any more ends the process (SIGBUS), and so does to read a part that has gone bad.
    ///
    /// Fails with [`DeviceErrorKind::Unsupported`] where the file system would only copy: stores are durable
    /// by what the processor does, without a system call, only if the mapping is synchronous (`MAP_SYNC`).
    pub fn persistent<F>(file: Arc<F>, size: usize) -> Result<Arc<Self>, DeviceError>
    where
        F: AsFd + Send + Sync + 'static,
    {
        use rustix::mm::{Advice, madvise};
        if !cache_lines::can_be_written_back() {
            return Err(DeviceError::of(DeviceErrorKind::Unsupported));
        }
        let memory = Self::map(file, size, false)?;
        // The file system gives each page its place now: a shard would stand still for it.
        // SAFETY: the range is ours, and populating it changes no byte.
        match unsafe { madvise(memory.base.as_ptr().cast(), size, Advice::LinuxPopulateWrite) } {
            // Linux before 5.14 doesn't know it. It is only speed.
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(memory),
            Err(error) => Err(DeviceError::from_errno(error.raw_os_error())),
        }
    }

    /// The same, to be looked at only: every write fails.
    pub fn readable<F>(file: Arc<F>, size: usize) -> Result<Arc<Self>, DeviceError>
    where
        F: AsFd + Send + Sync + 'static,
    {
        Self::map(file, size, true)
    }

    fn map<F>(file: Arc<F>, size: usize, is_read_only: bool) -> Result<Arc<Self>, DeviceError>
    where
        F: AsFd + Send + Sync + 'static,
    {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let fail = |e: rustix::io::Errno| DeviceError::from_errno(e.raw_os_error());
        let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
        let protection = if is_read_only { ProtFlags::READ } else { ProtFlags::READ | ProtFlags::WRITE };
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let base =
            unsafe { mmap(std::ptr::null_mut(), size, protection, flags, file.as_fd(), 0) }.map_err(fail)?;
        let base = NonNull::new(base.cast()).ok_or(DeviceError::of(DeviceErrorKind::Other))?;
        Ok(Arc::new(Self { base, size, is_persistent: true, is_read_only, _file: Some(file) }))
    }

    /// Size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What a device of it says of itself.
    pub fn info(&self, name: &str, logical_block: u32) -> DeviceInfo {
        DeviceInfo {
            name: name.to_owned(),
            size: self.size as u64,
            logical_block,
            volatile_cache: false,
            forces_by_flush: false,
            zeroes: ZeroedReads::Zero,
            discards: true,
            in_memory: true,
            moves_head: Some(false),
        }
    }

    fn at(&self, offset: u64, length: usize) -> Result<*mut u8, DeviceError> {
        let inside = usize::try_from(offset)
            .ok()
            .filter(|start| start.checked_add(length).is_some_and(|end| end <= self.size))
            .ok_or(DeviceError::of(DeviceErrorKind::Invalid))?;
        // SAFETY: `inside + length` lies in the mapping.
        Ok(unsafe { self.base.as_ptr().add(inside) })
    }

    /// The same, for what is to be written there.
    fn writable_at(&self, offset: u64, length: usize) -> Result<*mut u8, DeviceError> {
        if self.is_read_only {
            return Err(DeviceError::from_errno(libc::EROFS));
        }
        self.at(offset, length)
    }

    /// Copies `data` to `offset`.
    pub fn copy_in(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        if self.is_persistent {
            return self.copy_in_streaming(offset, data);
        }
        let to = self.writable_at(offset, data.len())?;
        // SAFETY: both ranges are valid for `data.len()` bytes; a buffer never lies in a device's mapping.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    /// As [`Memory::copy_in`], past the processor's caches: it saves reading what is overwritten, and costs
    /// more than a copy where that is cached already.
    pub fn copy_in_streaming(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let to = self.writable_at(offset, data.len())?;
        // SAFETY: as in `copy_in`.
        let cached = unsafe { cache_lines::copy_streaming(data.as_ptr(), to, data.len()) };
        if self.is_persistent {
            for part in cached {
                // SAFETY: a part of the range that was just written.
                unsafe { cache_lines::write_back(to.add(part.start), part.len()) };
            }
        }
        // Orders the stores before what any thread does later.
        cache_lines::fence();
        Ok(())
    }

    /// Makes a range zero.
    fn clear(&self, offset: u64, length: usize) -> Result<(), DeviceError> {
        let to = self.writable_at(offset, length)?;
        // SAFETY: `writable_at` checked the range.
        unsafe { std::ptr::write_bytes(to, 0, length) };
        if self.is_persistent {
            // SAFETY: as above.
            unsafe { cache_lines::write_back(to, length) };
            cache_lines::fence();
        }
        Ok(())
    }

    /// The bytes themselves, to be changed or looked at where they lie. `None` past the end, and of what must
    /// not be changed.
    pub fn in_place(&self, offset: u64, length: usize) -> Option<InPlace<'_>> {
        let start = self.writable_at(offset, length).ok()?;
        Some(InPlace { start, length, is_persistent: self.is_persistent, memory: PhantomData })
    }

    /// Copies from `offset` into `data`.
    pub fn copy_out(&self, offset: u64, data: &mut [u8]) -> Result<(), DeviceError> {
        let from = self.at(offset, data.len())?;
        // SAFETY: as in `copy_in`.
        unsafe { std::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), data.len()) };
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size; the last handle is gone.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size) };
    }
}

/// Bytes of a [`Memory`].
pub struct InPlace<'a> {
    start: *mut u8,
    length: usize,
    is_persistent: bool,
    memory: PhantomData<&'a Memory>,
}

/// Has `work` change several ranges at a time. What is in persistent memory is durable afterwards.
///
/// # Panics
/// If two of them overlap.
pub fn change_in_place<const N: usize, R>(
    ranges: [InPlace<'_>; N],
    work: impl FnOnce([&mut [u8]; N]) -> R,
) -> R {
    let spans = ranges.each_ref().map(|range| (range.start as usize, range.start as usize + range.length));
    for (index, (start, end)) in spans.iter().enumerate() {
        let overlaps = |(other_start, other_end): &(usize, usize)| other_start < end && start < other_end;
        assert!(!spans[..index].iter().any(overlaps), "two ranges that are changed together overlap");
    }
    // SAFETY: each range lies in a mapping that lives as long as `'_`, and none overlaps another. Another
    // thread that looks at the same bytes races as with a copy (see `Memory`).
    let slice = |range: &InPlace<'_>| unsafe { std::slice::from_raw_parts_mut(range.start, range.length) };
    let result = work(ranges.each_ref().map(slice));
    let mut written_back = false;
    for range in ranges.into_iter().filter(|range| range.is_persistent) {
        // SAFETY: the range lies in its mapping, and its slice is gone.
        unsafe { cache_lines::write_back(range.start, range.length) };
        written_back = true;
    }
    if written_back {
        cache_lines::fence();
    }
    result
}

/// Has `work` look at several ranges at a time, at most `MOST`. `None` if one of them isn't there.
///
/// # Panics
/// If there are more.
pub fn look_in_place<'a, const MOST: usize, R>(
    ranges: impl IntoIterator<Item = Option<InPlace<'a>>>,
    work: impl FnOnce(&[&[u8]]) -> R,
) -> Option<R> {
    let (mut slices, mut count): ([&[u8]; MOST], _) = ([&[]; MOST], 0);
    for range in ranges {
        let range = range?;
        // SAFETY: the range lies in a mapping that lives as long as `'a`. Another thread that changes these
        // bytes races as with a copy (see `Memory`).
        slices[count] = unsafe { std::slice::from_raw_parts(range.start, range.length) };
        count += 1;
    }
    Some(work(&slices[..count]))
}

/// A shard's view of a [`Memory`].
pub struct MemoryDevice {
    memory: Arc<Memory>,
    info: DeviceInfo,
}

impl MemoryDevice {
    /// A device called `name` with logical blocks of `logical_block` bytes.
    pub fn new(name: &str, memory: Arc<Memory>, logical_block: u32) -> Rc<Self> {
        let info = memory.info(name, logical_block);
        Self::described(memory, info)
    }

    /// A device that says this of itself.
    pub fn described(memory: Arc<Memory>, info: DeviceInfo) -> Rc<Self> {
        Rc::new(Self { memory, info })
    }
}

/// A [`Memory`] with a name, to be attached by every shard.
pub struct MemorySource {
    /// Name for messages.
    pub name: String,
    /// The shared bytes.
    pub memory: Arc<Memory>,
    /// Logical block in bytes.
    pub logical_block: u32,
}

impl DeviceSource for MemorySource {
    fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        Ok(MemoryDevice::new(&self.name, Arc::clone(&self.memory), self.logical_block))
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Device for MemoryDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buffer: Buffer) -> Submission {
        let result = self.memory.copy_out(offset, &mut buffer).map(|()| buffer.len());
        Submission::done(result, Some(buffer))
    }

    fn write(&self, offset: u64, data: Slice, _fua: bool) -> Submission {
        Submission::done(self.memory.copy_in(offset, &data).map(|()| data.len()), None)
    }

    fn write_streaming(&self, offset: u64, data: Slice, _fua: bool) -> Submission {
        Submission::done(self.memory.copy_in_streaming(offset, &data).map(|()| data.len()), None)
    }

    fn in_place(&self, offset: u64, length: usize) -> Option<InPlace<'_>> {
        self.memory.in_place(offset, length)
    }

    fn flush(&self) -> Submission {
        Submission::done(Ok(0), None)
    }

    fn discard(&self, offset: u64, length: u64) -> Submission {
        self.write_zeroes(offset, length)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Submission {
        let result = usize::try_from(length)
            .map_err(|_| DeviceError::of(DeviceErrorKind::Invalid))
            .and_then(|length| self.memory.clear(offset, length));
        Submission::done(result.map(|()| 0), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the pages are there.
    fn resident(memory: &Memory) -> usize {
        let mut pages = vec![0_u8; memory.size / 4096];
        // SAFETY: the range is mapped, and there is a byte for each of its pages.
        let asked = unsafe { libc::mincore(memory.base.as_ptr().cast(), memory.size, pages.as_mut_ptr()) };
        assert_eq!(asked, 0);
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn a_streaming_copy_writes_each_byte_of_its_range_and_no_other() {
        const SIZE: usize = 512;
        let source: Vec<u8> = (1..=251).cycle().take(SIZE).collect();
        for length in [0, 1, 15, 16, 63, 64, 65, 128, 200, 300] {
            for offset in (0..=64).chain([SIZE - length]) {
                for from in [0, 1, 16, 31] {
                    let memory = Memory::new(SIZE).unwrap();
                    let data = &source[from..from + length];
                    memory.copy_in_streaming(offset as u64, data).unwrap();
                    let mut found = [0; SIZE];
                    memory.copy_out(0, &mut found).unwrap();
                    let mut expected = [0; SIZE];
                    expected[offset..offset + length].copy_from_slice(data);
                    assert_eq!(found, expected, "{length} bytes of {from} to {offset}");
                }
            }
        }
        let memory = Memory::new(SIZE).unwrap();
        assert!(memory.copy_in_streaming(SIZE as u64 - 15, &source[..16]).is_err());
    }

    #[test]
    fn ranges_are_changed_where_they_lie() {
        let (one, other) = (Memory::new(64).unwrap(), Memory::new(64).unwrap());
        one.copy_in(0, &[3; 64]).unwrap();
        let ranges =
            [one.in_place(8, 8).unwrap(), other.in_place(0, 8).unwrap(), one.in_place(16, 8).unwrap()];
        change_in_place(ranges, |[a, b, c]| {
            b.copy_from_slice(a);
            c.fill(1);
            a[0] = 9;
        });
        let mut found = [0; 64];
        one.copy_out(0, &mut found).unwrap();
        assert_eq!(
            (&found[7..10], &found[14..26]),
            (&[3, 9, 3][..], &[3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3][..])
        );
        other.copy_out(0, &mut found).unwrap();
        assert_eq!((&found[..8], &found[8..10]), (&[3; 8][..], &[0, 0][..]));
        assert!(one.in_place(60, 8).is_none());
        let both = [one.in_place(7, 2), other.in_place(7, 3)];
        let seen = look_in_place::<2, _>(both, |seen| [seen[0], seen[1]].concat());
        assert_eq!(seen, Some(vec![3, 9, 3, 0, 0]));
        assert!(look_in_place::<2, _>([one.in_place(0, 8), one.in_place(60, 8)], |_| ()).is_none());
    }

    /// Memory of which each byte must have become durable when its request completes. Nothing here can lose
    /// power; what is asked of the processor is recorded.
    fn persistent(size: usize) -> Memory {
        let Ok(mut memory) = Arc::try_unwrap(Memory::new(size).unwrap()) else { unreachable!("one handle") };
        memory.is_persistent = true;
        memory
    }

    /// Checks that just these bytes, but for the rest of their lines, became durable.
    #[track_caller]
    fn check_durable(memory: &Memory, range: std::ops::Range<usize>) {
        let base = memory.base.as_ptr() as usize;
        let durable = cache_lines::record::taken(base..base + memory.size);
        assert!(durable[range.clone()].iter().all(|&byte| byte), "of {range:?}");
        let lines = range.start / 64 * 64..range.end.next_multiple_of(64);
        assert!((0..memory.size).all(|at| lines.contains(&at) || !durable[at]), "outside of {range:?}");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn in_persistent_memory_each_request_is_durable_when_it_completes() {
        let memory = persistent(4096);
        for (offset, length) in [(0, 4096), (512, 512), (10, 3), (60, 8), (63, 66), (64, 64), (4000, 96)] {
            let range = offset..offset + length;
            memory.copy_in(offset as u64, &vec![7; length]).unwrap();
            check_durable(&memory, range.clone());
            memory.copy_in_streaming(offset as u64, &vec![8; length]).unwrap();
            check_durable(&memory, range.clone());
            memory.clear(offset as u64, length).unwrap();
            check_durable(&memory, range.clone());
            change_in_place([memory.in_place(offset as u64, length).unwrap()], |[bytes]| bytes.fill(9));
            check_durable(&memory, range);
        }
        memory.copy_out(0, &mut [0; 4096]).unwrap();
        check_durable(&memory, 0..0);
        let other = Memory::new(4096).unwrap();
        let both = [other.in_place(0, 64).unwrap(), memory.in_place(100, 28).unwrap()];
        change_in_place(both, |[_, bytes]| bytes.fill(1));
        check_durable(&memory, 100..128);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_file_that_is_not_in_persistent_memory_is_refused() {
        let file = rustix::fs::memfd_create("plain", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let refused = Memory::persistent(Arc::new(file), 4096).err().map(|error| error.kind);
        assert_eq!(refused, Some(DeviceErrorKind::Unsupported));
    }

    #[test]
    fn memory_that_is_only_read_takes_no_write() {
        let Ok(mut memory) = Arc::try_unwrap(Memory::new(64).unwrap()) else { unreachable!("one handle") };
        memory.copy_in(0, &[7; 64]).unwrap();
        memory.is_read_only = true;
        for is_persistent in [false, true] {
            memory.is_persistent = is_persistent;
            let refused = Some(libc::EROFS);
            assert_eq!(memory.copy_in(0, &[1; 8]).err().map(|error| error.errno), refused);
            assert_eq!(memory.copy_in_streaming(0, &[1; 8]).err().map(|error| error.errno), refused);
            assert_eq!(memory.clear(0, 8).err().map(|error| error.errno), refused);
            assert!(memory.in_place(0, 8).is_none());
        }
        let mut found = [0; 64];
        memory.copy_out(0, &mut found).unwrap();
        assert_eq!(found, [7; 64]);
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn ranges_that_overlap_are_not_changed_together() {
        let memory = Memory::new(64).unwrap();
        change_in_place([memory.in_place(0, 9).unwrap(), memory.in_place(8, 8).unwrap()], |_| ());
    }

    #[test]
    fn populated_memory_is_there_before_it_is_written_and_other_memory_is_not() {
        const SIZE: usize = 4 << 20;
        assert_eq!(resident(&Memory::new(SIZE).unwrap()), 0);
        let populated = Memory::populated(SIZE).unwrap();
        assert_eq!(resident(&populated), SIZE / 4096);
        let mut bytes = [1; 512];
        populated.copy_out(SIZE as u64 - 512, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 512]);
    }
}
