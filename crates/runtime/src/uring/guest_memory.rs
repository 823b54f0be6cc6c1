//! The memory of a virtual machine, which its monitor shares with us as files.
//!
//! The machine's processors read and write it at any moment, so nothing here gives out a reference: bytes are
//! copied in and out, and the words by which rings are run are loaded and stored atomically. Every access is
//! checked against the regions. If the file was made shorter meanwhile, the access fails as *lost* and the
//! process goes on (see [`super::bus_fault`]); what a lost access has read must not be used.

use std::{
    io,
    os::fd::OwnedFd,
    ptr::NonNull,
    sync::atomic::{AtomicU16, Ordering},
};

use rustix::{
    fs::{MemfdFlags, SealFlags},
    mm::{MapFlags, ProtFlags},
};

use super::{blocking::drop_elsewhere, bus_fault::Guard, sent_file::SentFile};

/// File systems whose pages come from memory. A fault in them waits for no program that has to answer, as one
/// in a file of FUSE would. It waits where the host has swapped a page out (`mlock` of the machine's memory
/// prevents that), and while the monitor punches a hole there.
const TMPFS_MAGIC: i64 = 0x0102_1994;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
/// Bytes of one region at most: more than any machine has, and far from where sums overflow.
const REGION_BYTES_MAX: u64 = 1 << 46;

/// Why an access to a machine's memory failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GuestFault {
    /// There is no such memory, or the address isn't aligned.
    #[error("an address outside of the guest's memory")]
    Outside,
    /// There was: its file has become shorter.
    #[error("the file of the guest's memory has become shorter")]
    Lost,
}

/// A region that is to be mapped.
#[derive(Debug)]
pub struct GuestRegion {
    /// Its first address in the machine.
    pub guest: u64,
    /// Its first address in the monitor.
    pub monitor: u64,
    /// Bytes.
    pub size: u64,
    /// Where it begins in the file.
    pub offset: u64,
    /// A file in memory: memfd, tmpfs or hugetlbfs.
    pub file: SentFile,
}

/// All regions of a machine. They are unmapped off the shards: when the machine has ended before, all of its
/// memory is freed with our mapping, which takes a second for some gigabytes.
pub struct GuestMemory {
    regions: Vec<Region>,
}

struct Region {
    guest: u64,
    monitor: u64,
    size: u64,
    offset: usize,
    mapping: Mapping,
}

impl GuestMemory {
    /// Maps regions, none of which may overlap another one in the machine. It blocks.
    pub fn map(regions: Vec<GuestRegion>) -> io::Result<Self> {
        let mut mapped: Vec<Region> = Vec::with_capacity(regions.len());
        for GuestRegion { guest, monitor, size, offset, file } in regions {
            let is_sane = size > 0
                && size <= REGION_BYTES_MAX
                && offset <= REGION_BYTES_MAX
                && guest.checked_add(size).is_some()
                && monitor.checked_add(size).is_some();
            let overlaps = |other: &Region| guest < other.guest + other.size && other.guest < guest + size;
            if !is_sane || mapped.iter().any(overlaps) {
                return Err(invalid("a region that is empty, too large, or overlaps another one"));
            }
            let mapping = Mapping::new(&file, offset + size)?;
            let offset = usize::try_from(offset).map_err(|_| invalid("an offset that is too large"))?;
            mapped.push(Region { guest, monitor, size, offset, mapping });
        }
        Ok(Self { regions: mapped })
    }

    /// The machine's address of what the monitor has at `address`.
    pub fn of_monitor(&self, address: u64) -> Option<u64> {
        self.regions.iter().find_map(|region| {
            let offset = address.checked_sub(region.monitor)?;
            (offset < region.size).then(|| region.guest + offset)
        })
    }

    /// Copies from `at` on.
    pub fn read(&self, mut at: u64, mut into: &mut [u8]) -> Result<(), GuestFault> {
        while !into.is_empty() {
            let (region, offset, length) = self.find(at, into.len())?;
            let (now, rest) = into.split_at_mut(length);
            region.mapping.read(offset, now)?;
            (at, into) = (at + length as u64, rest);
        }
        Ok(())
    }

    /// Copies to `at` and behind it.
    pub fn write(&self, mut at: u64, mut data: &[u8]) -> Result<(), GuestFault> {
        while !data.is_empty() {
            let (region, offset, length) = self.find(at, data.len())?;
            let (now, rest) = data.split_at(length);
            region.mapping.write(offset, now)?;
            (at, data) = (at + length as u64, rest);
        }
        Ok(())
    }

    /// Loads the little-endian word at `at`, with everything that was stored before it (acquire).
    pub fn load(&self, at: u64) -> Result<u16, GuestFault> {
        let (region, offset, length) = self.find(at, 2)?;
        if length < 2 { Err(GuestFault::Outside) } else { region.mapping.load(offset) }
    }

    /// Stores a little-endian word at `at`, after everything that was stored before (release).
    pub fn store(&self, at: u64, value: u16) -> Result<(), GuestFault> {
        let (region, offset, length) = self.find(at, 2)?;
        if length < 2 { Err(GuestFault::Outside) } else { region.mapping.store(offset, value) }
    }

    /// Where `at` is: a region, the offset in its mapping, and how many of `length` bytes are in it.
    fn find(&self, at: u64, length: usize) -> Result<(&Region, usize, usize), GuestFault> {
        let found = self.regions.iter().find_map(|region| {
            let offset = at.checked_sub(region.guest).filter(|offset| *offset < region.size)?;
            let left = usize::try_from(region.size - offset).unwrap_or(usize::MAX);
            Some((region, region.offset + usize::try_from(offset).ok()?, length.min(left)))
        });
        found.ok_or(GuestFault::Outside)
    }
}

impl Drop for GuestMemory {
    fn drop(&mut self) {
        drop_elsewhere(std::mem::take(&mut self.regions));
    }
}

/// Memory of `bytes` zeroes as a file that a peer can map and can't make shorter.
pub fn shared_file(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, bytes)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// A file from its beginning, readable and writable, shared with whatever else has it.
struct Mapping {
    base: NonNull<u8>,
    mapped: usize,
    /// Bytes of it that may be touched.
    size: usize,
    guard: Option<Guard>,
}

// SAFETY: the mapping lives as long as this. Accesses are copies and atomics; another thread, here or in the
// machine, that touches the same bytes races as two processors of the machine do: each byte has some value
// that was stored, and all values of all bytes are valid.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &SentFile, size: u64) -> io::Result<Self> {
        let system = rustix::fs::fstatfs(file)?.f_type;
        if ![TMPFS_MAGIC, HUGETLBFS_MAGIC].contains(&system) {
            return Err(invalid("a file that isn't in memory (memfd, tmpfs or hugetlbfs is needed)"));
        }
        let stat = rustix::fs::fstat(file)?;
        if u64::try_from(stat.st_size).unwrap_or(0) < size {
            return Err(invalid("a region beyond the end of its file"));
        }
        // Huge pages are mapped as a whole, and from the beginning of a file, so that any offset will do.
        let page = usize::try_from(stat.st_blksize).unwrap_or(4096).max(4096);
        let size = usize::try_from(size).map_err(|_| invalid("a region that is too large"))?;
        let mapped = size.next_multiple_of(page);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), mapped, protection, flags, file, 0) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| invalid("a mapping at address 0"))?;
        let mut mapping = Self { base, mapped, size, guard: None };
        mapping.guard = Some(Guard::new(base.as_ptr().expose_provenance(), mapped, page)?);
        Ok(mapping)
    }

    /// Where to touch so many bytes. Nothing touches what is lost, where each page would fault anew.
    fn at(&self, offset: usize, length: usize) -> Result<*mut u8, GuestFault> {
        self.done(())?;
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= self.size);
        // SAFETY: it lies in the mapping, as was checked just now.
        if is_inside { Ok(unsafe { self.base.as_ptr().add(offset) }) } else { Err(GuestFault::Outside) }
    }

    /// What an access has come to, after it.
    fn done<T>(&self, value: T) -> Result<T, GuestFault> {
        let is_lost = self.guard.as_ref().is_none_or(Guard::is_lost);
        if is_lost { Err(GuestFault::Lost) } else { Ok(value) }
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), GuestFault> {
        let from = self.at(offset, into.len())?;
        // SAFETY: `at` checked the range; a slice of ours never lies in a mapping of another program's file.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        self.done(())
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), GuestFault> {
        let to = self.at(offset, data.len())?;
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        self.done(())
    }

    #[expect(clippy::cast_ptr_alignment, reason = "the alignment is checked below")]
    fn word(&self, offset: usize) -> Result<&AtomicU16, GuestFault> {
        let place = self.at(offset, 2)?.cast::<u16>();
        if !place.is_aligned() {
            return Err(GuestFault::Outside);
        }
        // SAFETY: two bytes of the mapping, which lives as long as the reference, and aligned.
        Ok(unsafe { AtomicU16::from_ptr(place) })
    }

    fn load(&self, offset: usize) -> Result<u16, GuestFault> {
        let value = self.word(offset)?.load(Ordering::Acquire);
        self.done(u16::from_le(value))
    }

    fn store(&self, offset: usize, value: u16) -> Result<(), GuestFault> {
        self.word(offset)?.store(value.to_le(), Ordering::Release);
        self.done(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: mapped in `new` with this length, and no reference into it has outlived this. If it fails,
        // the mapping stays.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

#[cfg(test)]
mod tests {
    use super::{super::blocking::SENT_FILE_THREADS, *};

    const PAGE: u64 = 4096;

    fn file(bytes: u64) -> OwnedFd {
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, bytes).unwrap();
        file
    }

    fn region(guest: u64, size: u64, offset: u64, file: &OwnedFd) -> GuestRegion {
        GuestRegion {
            guest,
            monitor: guest + (1 << 40),
            size,
            offset,
            file: SentFile::new(file.try_clone().unwrap()),
        }
    }

    #[test]
    fn bytes_go_to_the_file_at_the_regions_offset_and_across_regions() {
        let file = file(4 * PAGE);
        // In the machine the two are neighbours, in the file they have changed places.
        let memory =
            GuestMemory::map(vec![region(0x1000, PAGE, 2 * PAGE, &file), region(0x2000, PAGE, 512, &file)])
                .unwrap();
        memory.write(0x1ffe, &[1, 2, 3]).unwrap();
        let mut bytes = [0; 2];
        rustix::io::pread(&file, &mut bytes, 3 * PAGE - 2).unwrap();
        assert_eq!(bytes, [1, 2]);
        rustix::io::pread(&file, &mut bytes, 512).unwrap();
        assert_eq!(bytes, [3, 0]);
        let mut back = [0; 4];
        memory.read(0x1ffd, &mut back).unwrap();
        assert_eq!(back, [0, 1, 2, 3]);
        memory.store(0x2000, 0x0201).unwrap();
        assert_eq!(memory.load(0x2000), Ok(0x0201));
        memory.read(0x2000, &mut back[..2]).unwrap();
        assert_eq!(back[..2], [1, 2], "words are little-endian");
        assert_eq!(memory.of_monitor((1 << 40) + 0x2004), Some(0x2004));
        assert_eq!(memory.of_monitor((1 << 40) + 0x3000), None);
    }

    #[test]
    fn nothing_outside_of_a_region_is_touched() {
        let file = file(4 * PAGE);
        let memory = GuestMemory::map(vec![region(0x1000, 100, 0, &file)]).unwrap();
        for (at, length) in [(0xfff, 2), (0x1000, 101), (0x1064, 1), (u64::MAX, 1), (0, 1)] {
            assert_eq!(memory.read(at, &mut vec![0; length]), Err(GuestFault::Outside), "{at:#x}");
            assert_eq!(memory.write(at, &vec![7; length]), Err(GuestFault::Outside), "{at:#x}");
        }
        assert_eq!(memory.load(0x1001), Err(GuestFault::Outside), "not aligned");
        assert_eq!(memory.load(0x1064), Err(GuestFault::Outside));
        assert_eq!(memory.store(0x1063, 1), Err(GuestFault::Outside));
        assert!(memory.read(u64::MAX, &mut []).is_ok());
    }

    #[test]
    fn regions_that_cannot_be_are_refused() {
        let file = file(4 * PAGE);
        let map = |regions| GuestMemory::map(regions).map(|_| ()).map_err(|error| error.kind());
        let refused = Err(io::ErrorKind::InvalidInput);
        assert_eq!(map(vec![region(0, 5 * PAGE, 0, &file)]), refused, "beyond the file");
        assert_eq!(map(vec![region(0, PAGE, 4 * PAGE, &file)]), refused);
        assert_eq!(map(vec![region(0, 0, 0, &file)]), refused);
        assert_eq!(map(vec![region(0, PAGE, u64::MAX, &file)]), refused);
        assert_eq!(map(vec![region(0, 2 * PAGE, 0, &file), region(PAGE, PAGE, 0, &file)]), refused);
        let at_the_top = GuestRegion { guest: u64::MAX - 10, ..region(0, PAGE, 0, &file) };
        assert_eq!(map(vec![at_the_top]), refused);
        let null = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
        assert!(map(vec![region(0, PAGE, 0, &null.into())]).is_err());
        assert_eq!(map(Vec::new()), Ok(()));
    }

    #[test]
    fn a_file_that_becomes_shorter_fails_the_access_and_not_the_process() {
        let (shrunk, kept) = (file(64 * PAGE), file(PAGE));
        let regions = vec![region(0, 64 * PAGE, 0, &shrunk), region(1 << 30, PAGE, 0, &kept)];
        let memory = GuestMemory::map(regions).unwrap();
        memory.write(63 * PAGE, &[7; 512]).unwrap();
        rustix::fs::ftruncate(&shrunk, 32 * PAGE).unwrap();
        let mut bytes = vec![1; 4 * 4096];
        // Half of it is there.
        assert_eq!(memory.read(30 * PAGE, &mut bytes), Err(GuestFault::Lost));
        assert_eq!(memory.read(0, &mut bytes), Err(GuestFault::Lost), "from then on all of it is lost");
        assert_eq!(memory.write(63 * PAGE, &bytes[..9]), Err(GuestFault::Lost));
        assert_eq!(memory.load(0), Err(GuestFault::Lost));
        assert_eq!(memory.store(0, 1), Err(GuestFault::Lost));
        assert!(memory.read(1 << 30, &mut bytes[..512]).is_ok(), "another region is as it was");
        drop(memory);
        // The table's place is used again, and what was lost isn't remembered.
        let memory = GuestMemory::map(vec![region(0, 32 * PAGE, 0, &shrunk)]).unwrap();
        assert!(memory.read(0, &mut bytes).is_ok());
    }

    /// Tells the child that the next test starts that it is one.
    const IS_CHILD: &str = "PINSTRIPE_TEST_LITTLE_PRIVATE_MEMORY";

    /// The limit is one of a whole process.
    #[test]
    fn a_loss_takes_no_more_private_memory_than_a_page() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

        if std::env::var_os(IS_CHILD).is_none() {
            let name = "uring::guest_memory::tests::a_loss_takes_no_more_private_memory_than_a_page";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let output = child.args([name, "--exact"]).env(IS_CHILD, "1").output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            return;
        }
        let huge = file(1 << 30);
        let memory = GuestMemory::map(vec![region(0, 1 << 30, 0, &huge)]).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
        let used_kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        let limit = Rlimit { current: Some((used_kib << 10) + (16 << 20)), ..getrlimit(Resource::Data) };
        setrlimit(Resource::Data, limit).unwrap();
        rustix::fs::ftruncate(&huge, PAGE).unwrap();
        assert_eq!(memory.read(1 << 29, &mut [0; 512]), Err(GuestFault::Lost));
        if Vec::<u8>::new().try_reserve_exact(4 << 20).is_err() {
            // Without memory not even a panic comes to its end.
            std::process::exit(1);
        }
    }

    #[test]
    fn memory_is_unmapped_by_no_thread_that_has_something_else_to_do() {
        use std::sync::mpsc::{Receiver, Sender, channel};

        /// Keeps the thread that drops it.
        struct Keeps(Sender<()>, Receiver<()>);

        impl Drop for Keeps {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
                let _ = self.1.recv();
            }
        }

        let is_mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains("/memfd:dropped");
        let file = rustix::fs::memfd_create("dropped", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, PAGE).unwrap();
        let memory = GuestMemory::map(vec![region(0, PAGE, 0, &file)]).unwrap();
        // All threads on which it may be unmapped are kept.
        let (begin, begun) = channel();
        let release: Vec<_> = (0..SENT_FILE_THREADS)
            .map(|_| {
                let (release, released) = channel();
                drop_elsewhere(Keeps(begin.clone(), released));
                release
            })
            .collect();
        for _ in &release {
            begun.recv().unwrap();
        }
        drop(memory);
        assert!(is_mapped(), "this thread has unmapped it");
        drop(release);
        while is_mapped() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn many_threads_may_meet_the_loss_at_once() {
        let file = file(256 * PAGE);
        let memory = GuestMemory::map(vec![region(0, 256 * PAGE, 0, &file)]).unwrap();
        rustix::fs::ftruncate(&file, 0).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let memory = &memory;
                scope.spawn(move || {
                    for page in 0..256 {
                        let mut bytes = [1; 64];
                        let at = (page * 7 + thread * 31) % 256 * PAGE;
                        assert_eq!(memory.read(at, &mut bytes), Err(GuestFault::Lost));
                    }
                });
            }
        });
    }

    #[test]
    fn a_peer_cannot_make_our_file_shorter() {
        let file = shared_file("test", PAGE).unwrap();
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert!(GuestMemory::map(vec![region(0, PAGE, 0, &file)]).is_ok());
    }
}
