//! What is taken of one report of `pinstripe bench`, of a pattern or of a trace, and what is counted besides
//! where members are behind links.

use serde_json::Value;

/// One number of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    Throughput,
    Mean,
    P99,
    P999,
    Cpu,
    PreRead,
    Written,
    Waiting,
    Inside,
    HandOff,
    Hits,
    P50,
    ServersCpu,
    Sent,
    Received,
    OfBound,
    Busy,
    Seconds,
    Link,
}

/// In the order of a table's columns.
pub const ALL: [Quantity; 11] = [
    Quantity::Throughput,
    Quantity::Mean,
    Quantity::P99,
    Quantity::P999,
    Quantity::Cpu,
    Quantity::PreRead,
    Quantity::Written,
    Quantity::Waiting,
    Quantity::Inside,
    Quantity::HandOff,
    Quantity::Hits,
];

/// The same of arrays behind links; CPU is the client's.
pub const OF_LINKS: [Quantity; 11] = [
    Quantity::Throughput,
    Quantity::P50,
    Quantity::P99,
    Quantity::Cpu,
    Quantity::ServersCpu,
    Quantity::Sent,
    Quantity::Received,
    Quantity::OfBound,
    Quantity::Busy,
    Quantity::Seconds,
    Quantity::Link,
];

impl Quantity {
    /// Its column.
    pub fn column(self) -> &'static str {
        match self {
            Self::Throughput => "mb_per_second",
            Self::Mean => "mean_us",
            Self::P99 => "p99_us",
            Self::P999 => "p999_us",
            Self::Cpu => "cpu_us_per_mib",
            Self::PreRead => "pre_read_by_written",
            Self::Written => "members_written_by_written",
            Self::Waiting => "lock_waiting_percent",
            Self::Inside => "lock_inside_percent",
            Self::HandOff => "hand_off_percent",
            Self::Hits => "cache_hit_percent",
            Self::P50 => "p50_us",
            Self::ServersCpu => "servers_cpu_us_per_mib",
            Self::Sent => "sent_by_users_bytes",
            Self::Received => "received_by_users_bytes",
            Self::OfBound => "share_of_bound",
            Self::Busy => "machine_busy_percent",
            Self::Seconds => "seconds",
            Self::Link => "link_mbit",
        }
    }

    /// The one of this [`Self::column`].
    pub fn called(column: &str) -> Option<Self> {
        ALL.into_iter().chain(OF_LINKS).find(|quantity| quantity.column() == column)
    }

    /// The picture of it.
    pub fn file(self, experiment: &str) -> String {
        format!("{experiment}-{}.svg", self.column().replace('_', "-"))
    }

    /// As axes and tables call it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Throughput => "MB/s",
            Self::Mean => "mean latency, us",
            Self::P99 => "99 % latency, us",
            Self::P999 => "99.9 % latency, us",
            Self::Cpu => "CPU us a MiB",
            Self::PreRead => "bytes read before writes, by written",
            Self::Written => "bytes written to members, by written",
            Self::Waiting => "waiting for locks, % of the threads' time",
            Self::Inside => "inside locks, % of the threads' time",
            Self::HandOff => "hand-off, % of a stripe write's time",
            Self::Hits => "parity cache hits, %",
            Self::P50 => "median latency, us",
            Self::ServersCpu => "servers' CPU us a MiB",
            Self::Sent => "bytes that the client sends, by users' bytes",
            Self::Received => "bytes that the client receives, by users' bytes",
            Self::OfBound => "share of the bound",
            Self::Busy => "busy, % of the machine's CPUs",
            Self::Seconds => "seconds",
            Self::Link => "link, Mbit/s",
        }
    }

    /// The same of a trace, of which latencies are those of writes.
    pub fn words_of_trace(self) -> String {
        self.words().replacen(" latency", " latency of writes", 1)
    }

    /// Of a report. None if it says nothing of it.
    pub fn of(self, report: &Value) -> Option<f64> {
        let number = |pointer: &str| report.pointer(pointer).and_then(Value::as_f64);
        // A trace's report has latencies of reads and writes apart, of which those of writes are taken, and
        // its array's counters elsewhere.
        let either = |one: &str, other: &str| number(one).or_else(|| number(other));
        let latency = |name: &str| {
            Some(either(&format!("/latency_ns/{name}"), &format!("/write_latency_ns/{name}"))? / 1e3)
        };
        let count = |name: &str| either(&format!("/counters/{name}"), &format!("/array/counters/{name}"));
        let by = |a: &str, b: f64| Some(count(a)? / b).filter(|_| b > 0.0);
        let percent = |pointer: &str| Some(number(pointer)? * 100.0);
        match self {
            Self::Throughput => Some(number("/bytes_per_second")? / 1e6),
            Self::Mean => latency("mean"),
            Self::P99 => latency("p99"),
            Self::P999 => latency("p999"),
            Self::Cpu => {
                let ns_per_byte =
                    number("/cpu_ns_per_operation")? * number("/iops")? / number("/bytes_per_second")?;
                Some(ns_per_byte * f64::from(1 << 20) / 1e3)
            }
            Self::PreRead => by("pre_read_bytes", count("write_bytes")?),
            Self::Written => by("member_write_bytes", count("write_bytes")?),
            Self::Waiting => percent("/ablation/lock_wait_share"),
            Self::Inside => percent("/ablation/lock_inside_share"),
            Self::HandOff => percent("/ablation/hand_off/share"),
            Self::Hits => {
                let hits = count("cache_hits")?;
                by("cache_hits", hits + count("cache_misses")?).map(|share| share * 100.0)
            }
            Self::P50 => latency("p50"),
            // Of links and of the machine no report says anything.
            Self::ServersCpu
            | Self::Sent
            | Self::Received
            | Self::OfBound
            | Self::Busy
            | Self::Seconds
            | Self::Link => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: Option<f64>, wanted: f64) {
        assert!(found.is_some_and(|found| (found - wanted).abs() < 1e-9), "{found:?} and not {wanted}");
    }

    #[test]
    fn columns_are_known_by_their_names() {
        for quantity in ALL.into_iter().chain(OF_LINKS) {
            assert_eq!(Quantity::called(quantity.column()), Some(quantity));
        }
        assert_eq!(Quantity::called("other"), None);
    }

    #[test]
    fn numbers_are_those_of_a_pattern_s_report() {
        let report = serde_json::json!({
            "bytes_per_second": 8e6, "iops": 2000.0, "cpu_ns_per_operation": 4000.0,
            "latency_ns": {"mean": 1500.0, "p99": 2500, "p999": 3500},
            "counters": {"pre_read_bytes": 30, "member_write_bytes": 40, "write_bytes": 20,
                         "cache_hits": 1, "cache_misses": 3},
            "ablation": {"lock_wait_share": 0.25, "lock_inside_share": 0.5, "hand_off": null},
        });
        let of = |quantity: Quantity| quantity.of(&report);
        near(of(Quantity::Throughput), 8.0);
        near(of(Quantity::P99), 2.5);
        // A thousand ns a thousand bytes.
        near(of(Quantity::Cpu), 1_048.576);
        near(of(Quantity::PreRead), 1.5);
        near(of(Quantity::Written), 2.0);
        near(of(Quantity::Waiting), 25.0);
        near(of(Quantity::Hits), 25.0);
        assert_eq!(of(Quantity::HandOff), None, "there are no workers");
    }

    #[test]
    fn a_trace_s_report_has_them_elsewhere() {
        let report = serde_json::json!({
            "bytes_per_second": 8e6,
            "read_latency_ns": {"mean": 1.0}, "write_latency_ns": {"mean": 1500.0},
            "array": {"counters": {"pre_read_bytes": 0, "write_bytes": 20}},
            "cpu_ns_per_operation": null,
        });
        near(Quantity::Mean.of(&report), 1.5);
        assert_eq!(Quantity::Mean.words_of_trace(), "mean latency of writes, us");
        assert_eq!(Quantity::Cpu.words_of_trace(), Quantity::Cpu.words());
        near(Quantity::PreRead.of(&report), 0.0);
        assert_eq!(Quantity::Cpu.of(&report), None, "under virtual time the CPU takes none");
        let reads = serde_json::json!({"counters": {"pre_read_bytes": 0, "write_bytes": 0}});
        assert_eq!(Quantity::PreRead.of(&reads), None);
    }
}
