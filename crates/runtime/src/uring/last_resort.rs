//! An end by the kernel for a program that takes this one's place and hangs.
//!
//! The process that became another program can't watch itself, and the other program may be any. An alarm
//! outlives `execve`, and SIGALRM ends a program that has said nothing else. It is held back and ignored
//! nowhere while it is set: what is held back or ignored stays so through `execve`, too.

use std::{
    mem::MaybeUninit,
    sync::atomic::{AtomicBool, Ordering},
};

use super::termination::{set_of, take_pending};

/// Whether this process ends if nothing is done.
static IS_DUE: AtomicBool = AtomicBool::new(false);

/// Whether SIGALRM has to come through.
pub(super) fn is_due() -> bool {
    IS_DUE.load(Ordering::SeqCst)
}

/// Has the kernel end this process after `seconds`, whatever program it is by then, unless [`cancel`] or
/// another call of this comes before. To be called on the thread that becomes the other program, or before
/// any other thread is there.
pub fn end_after(seconds: u32) {
    IS_DUE.store(true, Ordering::SeqCst);
    let set = set_of([libc::SIGALRM]);
    // One that was sent before and held back is none of ours, and would end the process on the spot.
    take_pending(&set);
    react(libc::SIG_DFL);
    // SAFETY: neither call touches memory but the set, which is valid.
    unsafe {
        libc::alarm(seconds);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Lets the process live. SIGALRM does nothing from now on, whichever thread gets it.
pub fn cancel() {
    // Not ignored: the programs that this one starts would ignore it, too.
    let nothing: extern "C" fn(libc::c_int) = nothing;
    react(nothing as libc::sighandler_t);
    // SAFETY: no memory is touched.
    unsafe { libc::alarm(0) };
    IS_DUE.store(false, Ordering::SeqCst);
}

extern "C" fn nothing(_: libc::c_int) {}

fn react(how: libc::sighandler_t) {
    // SAFETY: all zeroes are a valid description, which is filled in; the set is a part of it.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = how;
        action.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        // It can't fail for a signal that may be caught.
        libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::{CommandExt, ExitStatusExt},
        process::Command,
        time::{Duration, Instant},
    };

    use super::*;

    /// What becomes of a program that sleeps for so many seconds and is started when this was done. SIGALRM
    /// was held back and ignored, and one waits, as in a server that was sent one.
    fn becomes(seconds: u64, before: fn()) -> (Option<i32>, Duration) {
        let begun = Instant::now();
        let mut command = Command::new("sleep");
        command.arg(seconds.to_string());
        // SAFETY: what is called between fork and exec is system calls only.
        unsafe {
            command.pre_exec(move || {
                react(libc::SIG_DFL);
                let set = set_of([libc::SIGALRM]);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
                libc::raise(libc::SIGALRM);
                before();
                Ok(())
            });
        }
        (command.status().unwrap().signal(), begun.elapsed())
    }

    #[test]
    fn a_program_that_hangs_is_ended_and_one_that_serves_is_not() {
        // The signal ends it before its own end, which a busy machine can't delay as much.
        let (signal, after) = becomes(100, || end_after(1));
        assert_eq!(signal, Some(libc::SIGALRM));
        assert!(after >= Duration::from_millis(900), "{after:?}");
        let (signal, after) = becomes(100, || {
            react(libc::SIG_IGN);
            end_after(1);
        });
        assert_eq!(signal, Some(libc::SIGALRM), "after {after:?}, where it was ignored before");
        let (signal, after) = becomes(5, || {
            end_after(1);
            cancel();
        });
        assert!(signal.is_none() && after >= Duration::from_secs(5), "{signal:?} after {after:?}");
    }
}
