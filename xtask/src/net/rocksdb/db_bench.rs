//! RocksDB's own db_bench on the database, beside YCSB: `cargo xtask net --db-bench`.
//!
//! All benchmarks of a state and an arm run one after the other on one database, which the first of them
//! fills. Each is a process of its own, with all links limited while it runs.

use std::fmt;
use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::host::{Host, Measured, Place};
use super::plan::FileSystem;
use super::table::Kept;
use super::{RECORDS, Wish};
use crate::net::experiments::Arm;
use crate::net::rounds::{self, ARMS, Rounds, Run as _, whole};
use crate::net::ycsb::{State, of};
use crate::vm::server::said;

/// In the order in which they run.
const BENCHMARKS: [&str; 4] = ["fillrandom", "overwrite", "readrandom", "readwhilewriting"];
const FILL: &str = BENCHMARKS[0];
pub const STATES: [State; 2] = [State::Healthy, State::Degraded];

/// What is measured with every arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    state: State,
    /// An index of [`BENCHMARKS`].
    benchmark: usize,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} {}", self.state.name(), BENCHMARKS[self.benchmark]))
    }
}

/// The quantities of a run.
#[derive(Clone, Copy)]
enum Column {
    Operations,
    Seconds,
    /// Milliseconds, as all latencies here.
    P50,
    P99,
    P999,
    P9999,
    /// Of the whole process, which takes longer than what it measures.
    WindowSeconds,
    /// Of the client's link, in the window.
    ClientSent,
    ClientReceived,
    OffloadedRuns,
    OffloadFallbacks,
    Busy,
}

const COLUMNS: usize = Column::Busy as usize + 1;
const HEAD: &str = "state,benchmark,arm,round,operations,seconds,p50_ms,p99_ms,p999_ms,p9999_ms,window_seconds,client_sent,\
    client_received,offloaded_runs,offload_fallbacks,machine_busy";

/// One arm at one point.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    point: Point,
    arm: Arm,
    round: u32,
    values: [f64; COLUMNS],
}

/// One round of a state: both arms, with all benchmarks.
pub fn measure(host: &Host, state: State, kept: &mut Kept<Run>) -> Result<()> {
    let round = kept.next_round(Point { state, benchmark: 0 });
    for arm in ARMS {
        let all = |place: &Place| {
            place.fail_for(state)?;
            let one = |(benchmark, name): (usize, &&str)| {
                let point = Point { state, benchmark };
                let run = Run::new(point, arm, round, &run(place, name)?);
                println!("{round} {point:24} {:12} {run}", arm.name());
                Ok(run)
            };
            BENCHMARKS.iter().enumerate().map(one).collect::<Result<Vec<_>>>()
        };
        let measured = host.on(FileSystem::Ext4, state, arm, all);
        kept.runs.extend(measured.with_context(|| format!("{} by {}", state.name(), arm.name()))?);
    }
    Ok(())
}

/// What db_bench is told.
fn arguments(wish: &Wish, benchmark: &str) -> Vec<String> {
    let mut words = format!(
        "--benchmarks={benchmark} --num={RECORDS} --value_size=1000 --key_size=16 --histogram=1 --compression_type=none \
         --use_direct_reads=1 --use_direct_io_for_flush_and_compaction=1 --cache_size=1048576 \
         --write_buffer_size=8388608 --seed=1"
    );
    // A fill has one thread and ends with the last record; each other goes on where the one before ended. A
    // thread that looks at the clock after a thousand reads, as by default, is late by half a minute.
    if benchmark != FILL {
        let _ = write!(
            words,
            " --use_existing_db=1 --duration={:.0} --ops_between_duration_checks=10 --threads={}",
            wish.seconds, wish.threads
        );
    }
    words.split_whitespace().map(str::to_owned).collect()
}

fn run(place: &Place, benchmark: &str) -> Result<Measured> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "db_bench"]).args(arguments(place.host.wish, benchmark));
    command.arg(format!("--db={}", place.database.display()));
    let (before, output, after) = place.limited(|| {
        let before = place.now()?;
        let output = said(&mut command)?;
        Ok((before, output, place.now()?))
    })?;
    let words = String::from_utf8_lossy(&output.stdout);
    let report = parse(&words, benchmark).with_context(|| format!("db_bench said: {words}"))?;
    Ok(after.since(before, report))
}

/// What db_bench says of this benchmark: its line, and the percentiles in microseconds that follow.
fn parse(text: &str, benchmark: &str) -> Result<Value> {
    let mut lines = text.lines().skip_while(|line| line.split_whitespace().next() != Some(benchmark));
    let line: Vec<&str> = lines.next().context("no such benchmark")?.split_whitespace().collect();
    let before = |word: &str| {
        let at = line.iter().position(|each| each.trim_end_matches(';') == word)?;
        line.get(at.checked_sub(1)?)?.parse::<f64>().ok()
    };
    // Of the last thread: "(631 of 1000 found)".
    if let Some(at) = line.iter().position(|word| *word == "of") {
        ensure!(line[at - 1] != "(0", "it read nothing that is there");
    }
    let percentiles: Vec<&str> = lines
        .find_map(|line| line.strip_prefix("Percentiles: "))
        .context("no percentiles")?
        .split_whitespace()
        .collect();
    let after = |name: &str| {
        let at = percentiles.iter().position(|word| *word == name)?;
        percentiles.get(at + 1)?.parse::<f64>().ok()
    };
    let (operations, seconds) =
        (before("operations").context("no operations")?, before("seconds").context("no time")?);
    ensure!(operations > 0.0 && seconds > 0.0, "it did nothing");
    let [p50, p99, p999, p9999] = ["P50:", "P99:", "P99.9:", "P99.99:"].map(after);
    Ok(
        json!({"operations": operations, "seconds": seconds, "p50": p50, "p99": p99, "p999": p999, "p9999": p9999}),
    )
}

impl Run {
    fn new(point: Point, arm: Arm, round: u32, measured: &Measured) -> Self {
        let (links, report) = (&measured.measurement, &measured.measurement.report);
        let number = |name: &str| report[name].as_f64().unwrap_or(f64::NAN);
        let values = [
            number("operations"),
            number("seconds"),
            number("p50") / 1e3,
            number("p99") / 1e3,
            number("p999") / 1e3,
            number("p9999") / 1e3,
            links.seconds,
            whole(links.client.sent),
            whole(links.client.received),
            measured.counter("offloaded_runs"),
            measured.counter("offload_fallbacks"),
            links.busy,
        ];
        Self { point, arm, round, values }
    }

    fn get(&self, column: Column) -> f64 {
        self.values[column as usize]
    }

    /// Megabytes a second.
    fn megabytes(&self, column: Column) -> f64 {
        self.get(column) / self.get(Column::WindowSeconds) / 1e6
    }
}

impl rounds::Run for Run {
    type Point = Point;
    const HEAD: &'static str = HEAD;

    fn place(&self) -> (Point, Arm, u32) {
        (self.point, self.arm, self.round)
    }

    fn rate(&self) -> f64 {
        self.get(Column::Operations) / self.get(Column::Seconds)
    }

    fn line(&self) -> String {
        let Point { state, benchmark } = self.point;
        let (state, benchmark, arm) = (state.name(), BENCHMARKS[benchmark], self.arm.name());
        let mut line = format!("{state},{benchmark},{arm},{}", self.round);
        rounds::put(&mut line, &self.values);
        line
    }

    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(',').collect();
        let [state, benchmark, arm, round, numbers @ ..] = words.as_slice() else { return None };
        let benchmark = BENCHMARKS.iter().position(|each| each == benchmark)?;
        let point = Point { state: State::called(state)?, benchmark };
        let (arm, round) = (rounds::arm(arm)?, round.parse().ok()?);
        Some(Self { point, arm, round, values: rounds::numbers(numbers)? })
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:6.0} operations/s in {:.1} of {:.1} s, p99.9 {:.2} ms, link sends {:.1} and receives {:.1} MB/s, machine {:.0} % busy",
            self.rate(),
            self.get(Column::Seconds),
            self.get(Column::WindowSeconds),
            self.get(Column::P999),
            self.megabytes(Column::ClientSent),
            self.megabytes(Column::ClientReceived),
            self.get(Column::Busy) * 100.0
        )
    }
}

/// The part of the page.
pub fn section(text: &mut String, kept: &Kept<Run>) {
    let (setting, runs) = (&kept.setting, kept.runs.as_slice());
    let sum = |column| -> f64 { runs.iter().map(|run| run.get(column)).sum() };
    let _ = write!(
        text,
        "## db_bench, ext4

The paper has none. `cargo xtask net --db-bench` measures RocksDB's own benchmarks on the same array, with links of {} Mbit/s; a
line a run is in [db_bench.csv](applications/db_bench.csv). `fillrandom` writes {RECORDS} records of 1000 bytes by one
thread. Each of the others goes on for {} s on what the one before has left: `overwrite` and `readrandom` by {} threads,
`readwhilewriting` by as many that read (of which operations and latencies are) and one that writes. Memory, direct I/O and the checks
afterwards are as for YCSB, but nothing is warmed up, and of what was read db_bench checks the checksums alone. *Degraded* lacks
a member from the begin. Of {:.0} writes that went to the servers, the array's server had to do {:.0} itself. *Sent* and *received* are
the client's link's, in MB/s, from the process's start to its end.

Commit {}, {} UTC, {}, load average before {}.

| | arm | rounds | operations/s | gain | sent | received | p50, ms | p99 | p99.9 | p99.99 |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|
",
        setting.mbit,
        setting.seconds,
        setting.threads,
        sum(Column::OffloadedRuns),
        sum(Column::OffloadFallbacks),
        setting.origin.commit,
        setting.origin.date,
        setting.origin.machine,
        setting.origin.load,
    );
    for point in runs.points() {
        for (index, arm) in ARMS.into_iter().enumerate() {
            let count = runs.iter().filter(|run| run.point == point && run.arm == arm).count();
            let gain = if index == 0 { String::new() } else { of(runs.gain(point), 2) };
            let rate = of(runs.spread(point, arm, Run::rate), 0);
            let _ = write!(text, "| {point} | {} | {count} | {rate} | {gain} |", arm.name());
            let mut number = |quantity: &dyn Fn(&Run) -> f64, digits: usize| {
                let median = runs.spread(point, arm, quantity).map_or(f64::NAN, |spread| spread.median);
                let _ = write!(text, " {median:.digits$} |");
            };
            number(&|run| run.megabytes(Column::ClientSent), 1);
            number(&|run| run.megabytes(Column::ClientReceived), 1);
            for column in [Column::P50, Column::P99, Column::P999, Column::P9999] {
                number(&|run| run.get(column), 2);
            }
            text.push('\n');
        }
    }
    text.push('\n');
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::net::rocksdb::table;

    const SAID: &str = "\
DB path: [/x/db]
overwrite    :   17.4 micros/op 57471 ops/sec 2.000 seconds 114942 operations;   55.7 MB/s

Microseconds per write:
Count: 114942 Average: 17.4  StdDev: 56.43
Min: 2  Median: 6.2546  Max: 92173
Percentiles: P50: 6.25 P75: 12.29 P99: 271.86 P99.9: 8002.00 P99.99: 92173.00
------------------------------------------------------
(       1,       2 ]        1   0.017%   0.017%
";

    /// Two rounds, the servers' way three times as fast as the host's.
    pub fn kept() -> Kept<Run> {
        let mut runs = Vec::new();
        for (round, state) in [(1, STATES[0]), (2, STATES[0]), (1, STATES[1])] {
            for benchmark in 0..BENCHMARKS.len() {
                for (arm, operations) in ARMS.into_iter().zip([100.0, 300.0]) {
                    let mut values = [2.0; COLUMNS];
                    values[Column::Operations as usize] = operations;
                    runs.push(Run { point: Point { state, benchmark }, arm, round, values });
                }
            }
        }
        Kept { setting: table::tests::kept().setting, runs }
    }

    #[test]
    fn what_db_bench_says_is_read() {
        let report = parse(SAID, "overwrite").unwrap();
        let wanted = json!({"operations": 114_942.0, "seconds": 2.0, "p50": 6.25, "p99": 271.86, "p999": 8002.0, "p9999": 92173.0});
        assert_eq!(report, wanted);
        assert!(parse(SAID, "fillrandom").is_err());
        let reads = |found: &str| SAID.replace("55.7 MB/s", &format!("55.7 MB/s ({found} of 999 found)"));
        assert!(parse(&reads("630"), "overwrite").is_ok() && parse(&reads("0"), "overwrite").is_err());
        assert!(parse(&SAID.replace("Percentiles", "x"), "overwrite").is_err());
    }

    #[test]
    fn only_the_fill_makes_a_new_database() {
        let wish = Wish {
            root: "/".as_ref(),
            pinstripe: "/".as_ref(),
            rounds: 1,
            only: None,
            seconds: 6.0,
            threads: 16,
            mbit: 300.0,
            papers: "/".into(),
        };
        for benchmark in BENCHMARKS {
            let words = arguments(&wish, benchmark).join(" ");
            assert_eq!(words.contains("--use_existing_db=1 --duration=6 "), benchmark != FILL, "{words}");
        }
    }

    #[test]
    fn the_table_is_kept_and_shown_with_both_arms() {
        let kept = kept();
        for run in &kept.runs {
            assert_eq!(Run::parse(&run.line()).as_ref(), Some(run));
        }
        assert_eq!(HEAD.split(',').count(), 4 + COLUMNS);
        let mut text = String::new();
        section(&mut text, &kept);
        assert!(
            text.contains("| healthy overwrite | offload | 2 | 150 (150 to 150) | 3.00 (3.00 to 3.00) |"),
            "{text}"
        );
        assert!(
            text.contains("| degraded readrandom | host-centric | 1 | 50 (50 to 50) |  | 0.0 |"),
            "{text}"
        );
    }
}
