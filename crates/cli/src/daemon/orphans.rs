//! Ended processes that nothing else waits for.
//!
//! In a container the daemon is process 1: a process whose parent has ended becomes its child, and stays as a
//! zombie until it is waited for. Servers that `assemble` started in the container are such.

use std::{collections::BTreeSet, fs, io, thread, time::Duration};

use rustix::process::{Pid, WaitOptions, getpid, waitpid};

use super::threads;

/// Longer than a thread that waits for its own child may be about another thing, such as servers that hang.
const PAUSE: Duration = Duration::from_mins(1);

/// Waits for them from now on, where this is process 1.
pub fn reap_if_first() -> io::Result<()> {
    if getpid() != Pid::INIT {
        return Ok(());
    }
    threads::spawn("reap", || {
        let mut before = BTreeSet::new();
        loop {
            thread::sleep(PAUSE);
            let now = zombies();
            // What this process has started a thread waits for: it is seen here once at most.
            for pid in now.intersection(&before).filter_map(|pid| Pid::from_raw(*pid)) {
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
            before = now;
        }
    })
}

/// The ended children of process 1.
fn zombies() -> BTreeSet<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeSet::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| is_zombie(&stat)))
        .collect()
}

/// Of `/proc/PID/stat`: number, name in brackets, state, the parent's number. A name can have any characters.
fn is_zombie(stat: &str) -> bool {
    let after_name = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let mut fields = after_name.split_ascii_whitespace();
    (fields.next(), fields.next()) == (Some("Z"), Some("1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zombie_of_process_1_is_told_by_its_state_and_parent() {
        assert!(is_zombie("7 (pinstripe) Z 1 7 7 0"));
        for other in ["7 (pinstripe) S 1 7", "7 (pinstripe) Z 2 7", "7 (x) Z 1) Z 3 7", ""] {
            assert!(!is_zombie(other), "{other}");
        }
    }
}
