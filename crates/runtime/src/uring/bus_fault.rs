//! Faults in memory that another program shares with us, and can take away: a file that it makes shorter has
//! no pages behind its end, and touching them is a SIGBUS, which would end the process.
//!
//! Mappings of such files are *guarded*: they stand in a table that the signal's handler reads. A fault in
//! one of them marks it as *lost* and puts zeroes in the place of the page; the access goes on. The mark is
//! set before the zeroes come, so whatever read a zero finds the mark, on another thread, too. A fault
//! anywhere else is what it was before: the handler gives the signal back to the one that was installed
//! before it.
//!
//! Only a page is replaced, for another program chose how long the mapping is. A kernel that counts what it
//! has promised (`vm.overcommit_memory=2`) may refuse so much private memory: the access would fault again
//! and end the process. By RLIMIT_DATA nothing else would get memory any more.

use std::{
    io,
    ptr::null_mut,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    },
};

use libc::{c_int, c_void};

/// Guarded mappings that a process can have.
const SLOTS: usize = 256;

static TABLE: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];
/// Changes of the table are one at a time. The handler doesn't take it.
static CHANGES: Mutex<()> = Mutex::new(());
static INSTALLED: OnceLock<Result<Before, i32>> = OnceLock::new();

/// What was done about the signal before.
struct Before(libc::sigaction);

/// An entry of the table, as a sequence lock: `version` is odd while the two addresses are changed.
struct Slot {
    version: AtomicUsize,
    start: AtomicUsize,
    /// The address behind it. Zero: the slot is free.
    end: AtomicUsize,
    /// Bytes of its pages.
    page: AtomicUsize,
    lost: AtomicBool,
}

impl Slot {
    const fn new() -> Self {
        Self {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            page: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
        }
    }

    /// With [`CHANGES`] held.
    fn set(&self, start: usize, end: usize, page: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Start and length of the page, if `address` lies in the mapping.
    fn page_around(&self, address: usize) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        let page = self.page.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // The slot of a mapping that is being used doesn't change.
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        if !is_whole || page == 0 || !(start..end).contains(&address) {
            return None;
        }
        Some((address - (address - start) % page, page))
    }
}

/// Keeps a mapping in the table until it goes, which must be before the mapping does.
pub(super) struct Guard {
    slot: &'static Slot,
}

impl Guard {
    /// Guards the `length` bytes at `start`: whole pages, of `page` bytes each, of a mapping of the caller's.
    pub(super) fn new(start: usize, length: usize, page: usize) -> io::Result<Self> {
        install()?;
        let _change = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        let free = TABLE.iter().find(|slot| slot.end.load(Ordering::Relaxed) == 0);
        let slot = free.ok_or_else(|| io::Error::other("too many files of other programs are mapped"))?;
        slot.lost.store(false, Ordering::Relaxed);
        slot.set(start, start + length, page);
        Ok(Self { slot })
    }

    /// Whether pages were missing. What was read before this call says `false` was really there.
    pub(super) fn is_lost(&self) -> bool {
        fence(Ordering::Acquire);
        self.slot.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _change = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        self.slot.set(0, 0, 0);
    }
}

fn install() -> io::Result<()> {
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: all-zero bytes are a valid `sigaction`: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle;
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: as above.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: both are valid for the call, and the handler does only what one may do (see there).
        let done = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) };
        if done == 0 {
            Ok(Before(before))
        } else {
            Err(io::Error::last_os_error().raw_os_error().unwrap_or(0))
        }
    });
    match installed {
        Ok(_) => Ok(()),
        Err(errno) => Err(io::Error::from_raw_os_error(*errno)),
    }
}

/// The handler. It reads and writes atomics and makes two system calls, so it may run at any moment; `errno`
/// is left as it was.
extern "C" fn handle(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid structure, which for SIGBUS has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    // SAFETY: the address of this thread's `errno`, which is always valid.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: as above. A signal that was sent (kill(2)) has no address.
    let is_sent = unsafe { (*info).si_code } <= 0;
    for slot in TABLE.iter().filter(|_| !is_sent) {
        let Some((start, length)) = slot.page_around(address) else { continue };
        slot.lost.store(true, Ordering::SeqCst);
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
        );
        let place: *mut c_void = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the page is of a mapping that is used at this moment, so its guard, and with it the
        // mapping, are alive; all of it is another program's memory, in which nothing of ours is.
        let mapped = unsafe { libc::mmap(place, length, protection, flags, -1, 0) };
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        if mapped != libc::MAP_FAILED {
            return;
        }
    }
    // Not one of ours. The instruction runs again and faults again, and then it is the former handler's. One
    // that was sent doesn't come again by itself.
    let before = INSTALLED.get().and_then(|installed| installed.as_ref().ok());
    // SAFETY: a fault before `install` returned can't be in a guarded mapping; the default action ends the
    // process then. Otherwise it is what the kernel gave us.
    unsafe {
        match before {
            Some(Before(before)) => libc::sigaction(libc::SIGBUS, before, null_mut()),
            None => c_int::from(libc::signal(libc::SIGBUS, libc::SIG_DFL) == libc::SIG_ERR),
        };
        if is_sent {
            libc::raise(libc::SIGBUS);
        }
    }
}
