//! Waiting for SIGTERM and SIGINT, and staying alive under signals that are no order to end.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{FromRawFd, OwnedFd},
};

use rustix::io::Errno;

use crate::uring::{
    RunError,
    event::readable,
    last_resort,
    operation::{Descriptor, File},
};

/// How the process was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    /// SIGTERM: by a service manager or `kill`.
    Terminate,
    /// SIGINT: by Ctrl-C.
    Interrupt,
}

/// Orders to end.
const ORDERS: [libc::c_int; 2] = [libc::SIGTERM, libc::SIGINT];
/// Signals that would kill the process on the spot and mean something else, or nothing, here: a terminal was
/// closed, or another daemon would read its configuration again. They are held back and never taken.
const STRAY: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM];

pub(super) fn set_of(signals: impl IntoIterator<Item = libc::c_int>) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set; the others take a valid set and valid signals.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Holds the signals back in this thread and those that it starts, until it goes.
pub(super) struct Masked {
    outer: libc::sigset_t,
}

impl Masked {
    pub(super) fn new() -> Result<Self, RunError> {
        // The alarm has to end a start that hangs.
        let stray = STRAY.into_iter().filter(|signal| *signal != libc::SIGALRM || !last_resort::is_due());
        let (set, mut outer) = (set_of(ORDERS.into_iter().chain(stray)), MaybeUninit::uninit());
        // SAFETY: both sets are valid; `outer` is initialised when the call succeeds.
        let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, outer.as_mut_ptr()) };
        if error != 0 {
            let source = io::Error::from_raw_os_error(error);
            return Err(RunError::Setup { what: "holding signals back", source });
        }
        // SAFETY: as above.
        Ok(Self { outer: unsafe { outer.assume_init() } })
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // What came and was not taken would kill the process now, after all has ended well.
        take_pending(&set_of(ORDERS.into_iter().chain(STRAY)));
        // SAFETY: a valid set, of an earlier call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.outer, std::ptr::null_mut()) };
    }
}

/// Takes signals of this set that came and were held back.
pub(super) fn take_pending(set: &libc::sigset_t) {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid set and time; the kernel's description isn't asked for.
    while unsafe { libc::sigtimedwait(set, std::ptr::null_mut(), &raw const now) } > 0 {}
}

/// Waits until the process is asked to end. Needs [`super::RuntimeConfig::termination_signals`], without
/// which the signals kill it as ever. The signal waits until this returns: given up, nothing is lost, and one
/// that comes while the process becomes another program (`execve`) goes over to that.
pub async fn termination() -> io::Result<Termination> {
    /// Bytes of the kernel's description of one signal, which begins with its number.
    const RECORD: usize = size_of::<libc::signalfd_siginfo>();
    let set = set_of(ORDERS);
    // SAFETY: a valid set and no descriptor to change.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nothing else has it.
    let descriptor = Descriptor::new(File::new(unsafe { OwnedFd::from_raw_fd(fd) }));
    let mut record = [0; RECORD];
    loop {
        readable(&descriptor).await?;
        match rustix::io::read(&descriptor.file().fd, &mut record) {
            Ok(RECORD) => break,
            // Something else has taken it.
            Err(Errno::AGAIN | Errno::INTR) => (),
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => return Err(error.into()),
        }
    }
    let number = record.first_chunk::<4>().copied().map(u32::from_ne_bytes);
    let is_interrupt = number == Some(libc::SIGINT.cast_unsigned());
    Ok(if is_interrupt { Termination::Interrupt } else { Termination::Terminate })
}
