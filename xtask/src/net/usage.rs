//! What the kernel counts: bytes on links, CPU time of processes and of the machine.

use std::fs;

use anyhow::{Context, Result};

use super::network::INTERFACE;

/// Bytes of a link, as its node sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkBytes {
    /// From the node.
    pub sent: u64,
    /// To the node.
    pub received: u64,
}

impl LinkBytes {
    /// Those of the namespace in which process `pid` is.
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/net/dev");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        parse_link(&text).with_context(|| format!("{path} has no {INTERFACE}"))
    }

    /// What came after `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            sent: self.sent.wrapping_sub(earlier.sent),
            received: self.received.wrapping_sub(earlier.received),
        }
    }
}

fn parse_link(text: &str) -> Option<LinkBytes> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(INTERFACE)?.strip_prefix(':'))?;
    let mut numbers = line.split_ascii_whitespace().map(str::parse);
    // 8 columns of receiving come before those of sending.
    Some(LinkBytes { received: numbers.next()?.ok()?, sent: numbers.nth(7)?.ok()? })
}

/// Seconds of CPU that a process has used, all its threads together. What the kernel does for it in
/// interrupts and in threads of its own isn't in it.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let ticks = parse_ticks(&text).with_context(|| format!("{path} is of another form"))?;
    #[expect(clippy::cast_precision_loss, reason = "ticks of 10 ms")]
    let seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    Ok(seconds)
}

/// User and system time. The process's name stands in parentheses and may hold anything.
fn parse_ticks(text: &str) -> Option<u64> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    Some(fields.next()?.ok()? + fields.next()?.ok()?)
}

/// Time of all CPUs of the machine, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    busy: u64,
    all: u64,
}

impl Machine {
    /// Until now.
    pub fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
        parse_machine(&text).context("/proc/stat is of another form")
    }

    /// The share that was busy since `earlier`, with whatever, others' work included, but for that of lower
    /// priority.
    pub fn busy_since(self, earlier: Self) -> f64 {
        let all = self.all.saturating_sub(earlier.all).max(1);
        #[expect(clippy::cast_precision_loss, reason = "ticks of 10 ms")]
        let share = self.busy.saturating_sub(earlier.busy) as f64 / all as f64;
        share
    }
}

fn parse_machine(text: &str) -> Option<Machine> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    // user, nice, system, idle, iowait, irq, softirq, steal; the guests' time is in user already.
    let numbers: Vec<u64> =
        line.split_ascii_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
    // Work of lower priority takes what would be idle.
    let free = numbers.get(1)? + numbers.get(3)? + numbers.get(4)?;
    let all = numbers.iter().sum::<u64>();
    Some(Machine { busy: all - free, all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_bytes_come_before_sent_ones() {
        let text = "Inter-|   Receive |  Transmit\n face |bytes packets\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  \
                    eth0: 100 2 3 4 5 6 7 8 900 10 11 12 13 14 15 16\n";
        assert_eq!(parse_link(text), Some(LinkBytes { sent: 900, received: 100 }));
        assert_eq!(parse_link("eth00: 1 2\n"), None);
    }

    #[test]
    fn a_process_may_be_called_anything() {
        let text = "7 (a) 1 (b) S 1 7 7 0 -1 4194304 100 0 0 0 30 12 0 0 20 0 1 0 5 6 7\n";
        assert_eq!(parse_ticks(text), Some(42));
    }

    #[test]
    fn waiting_for_a_disk_and_work_of_lower_priority_leave_the_cpu_free() {
        let earlier = parse_machine("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1\n").unwrap();
        let later = parse_machine("cpu  200 20 100 730 150 0 100 0 50 0\n").unwrap();
        assert!((later.busy_since(earlier) - 200.0 / 300.0).abs() < 1e-9);
    }
}
