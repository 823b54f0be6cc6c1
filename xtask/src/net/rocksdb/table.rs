//! What runs gave, as a table that is kept beside the page.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::host::Measured;
use super::plan::{FILE_SYSTEMS, Point, WORKLOADS};
use crate::net::experiments::Arm;
use crate::net::rounds::{self, Run as _, whole};
use crate::net::usage::LinkBytes;
use crate::net::ycsb::{Mix, State};
use crate::origin::{self, Origin};

/// The quantities of a run.
#[derive(Clone, Copy)]
pub enum Column {
    Operations,
    Seconds,
    /// Of the array's user, which is the file system.
    ReadBytes,
    WrittenBytes,
    /// Of the client's link.
    ClientSent,
    ClientReceived,
    /// Of the server's link that moved most.
    ServerSent,
    ServerReceived,
    /// Milliseconds, as all latencies here. Scans count as reads.
    ReadP50,
    ReadP99,
    ReadP999,
    /// Of updates, inserts, or reads with the update that follows.
    WriteP50,
    WriteP99,
    WriteP999,
    OffloadedRuns,
    OffloadFallbacks,
    ArrayCpu,
    ServersCpu,
    Busy,
}

const COLUMNS: usize = Column::Busy as usize + 1;
const HEAD: &str = "file_system,state,writes,workload,arm,round,operations,seconds,read_bytes,written_bytes,client_sent,\
    client_received,server_sent,server_received,read_p50_ms,read_p99_ms,read_p999_ms,write_p50_ms,write_p99_ms,\
    write_p999_ms,offloaded_runs,offload_fallbacks,array_cpu_seconds,servers_cpu_seconds,machine_busy";

/// One arm at one point.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub point: Point,
    pub arm: Arm,
    pub round: u32,
    values: [f64; COLUMNS],
}

impl Run {
    pub fn new(point: Point, arm: Arm, round: u32, measured: &Measured) -> Self {
        let (links, report) = (&measured.measurement, &measured.measurement.report);
        let number = |name: &str| report[name].as_f64().unwrap_or(f64::NAN);
        // Of the kinds that there were most.
        let latency = |kinds: &[&str], percentile: &str| {
            let most = kinds.iter().max_by_key(|kind| report[**kind]["samples"].as_u64());
            most.and_then(|kind| report[*kind][percentile].as_f64()).unwrap_or(0.0) / 1e6
        };
        let read = |percentile| latency(&["read_latency_ns", "scan_latency_ns"], percentile);
        let write = |percentile| {
            latency(&["update_latency_ns", "insert_latency_ns", "read_modify_write_latency_ns"], percentile)
        };
        let busiest = |of: fn(&LinkBytes) -> u64| whole(links.servers.iter().map(of).max().unwrap_or(0));
        let values = [
            number("operations"),
            number("seconds"),
            measured.counter("read_bytes"),
            measured.counter("write_bytes"),
            whole(links.client.sent),
            whole(links.client.received),
            busiest(|link| link.sent),
            busiest(|link| link.received),
            read("p50"),
            read("p99"),
            read("p999"),
            write("p50"),
            write("p99"),
            write("p999"),
            measured.counter("offloaded_runs"),
            measured.counter("offload_fallbacks"),
            links.client_cpu,
            links.servers_cpu.iter().sum(),
            links.busy,
        ];
        Self { point, arm, round, values }
    }

    pub fn get(&self, column: Column) -> f64 {
        self.values[column as usize]
    }

    /// Megabytes a second.
    pub fn megabytes(&self, column: Column) -> f64 {
        self.get(column) / self.get(Column::Seconds) / 1e6
    }

    /// How much of the busier direction of the client's link was used.
    pub fn link_share(&self, mbit: f64) -> f64 {
        let busier = self.megabytes(Column::ClientSent).max(self.megabytes(Column::ClientReceived));
        busier * 8.0 / mbit
    }

    /// The same of the busiest server's.
    pub fn server_share(&self, mbit: f64) -> f64 {
        let busier = self.megabytes(Column::ServerSent).max(self.megabytes(Column::ServerReceived));
        busier * 8.0 / mbit
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
        let Point { file_system, state, workload, .. } = self.point;
        let (file_system, state, writes) = (file_system.name(), state.name(), self.point.writes());
        let (workload, arm) = (workload.option(), self.arm.name());
        let mut line = format!("{file_system},{state},{writes},{workload},{arm},{}", self.round);
        rounds::put(&mut line, &self.values);
        line
    }

    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(',').collect();
        let [file_system, state, writes, workload, arm, round, numbers @ ..] = words.as_slice() else {
            return None;
        };
        let point = Point {
            file_system: FILE_SYSTEMS.into_iter().find(|each| each.name() == *file_system)?,
            state: State::called(state)?,
            durable: *writes == "durable",
            workload: Mix::called(workload, &WORKLOADS)?,
        };
        let (arm, round) = (rounds::arm(arm)?, round.parse().ok()?);
        Some(Self { point, arm, round, values: rounds::numbers(numbers)? })
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |column| self.get(column) / self.get(Column::Seconds) * 100.0;
        write!(
            f,
            "{:6.0} operations/s, array reads {:.1} and writes {:.1} MB/s, link sends {:.1} and receives {:.1}; {:.0} + {:.0} % CPU, \
             machine {:.0} % busy",
            self.rate(),
            self.megabytes(Column::ReadBytes),
            self.megabytes(Column::WrittenBytes),
            self.megabytes(Column::ClientSent),
            self.megabytes(Column::ClientReceived),
            percent(Column::ArrayCpu),
            percent(Column::ServersCpu),
            self.get(Column::Busy) * 100.0
        )
    }
}

/// All that was measured of one commit, with one link.
#[derive(Clone, Debug)]
pub struct Kept<R = Run> {
    pub setting: Setting,
    pub runs: Vec<R>,
}

/// Where it is kept: the runs, and the setting.
pub type Files = [&'static str; 2];

pub const YCSB: Files = ["rocksdb.csv", "origin.json"];
pub const DB_BENCH: Files = ["db_bench.csv", "db_bench.json"];

/// What isn't in the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setting {
    #[serde(flatten)]
    pub origin: Origin,
    pub mbit: f64,
    pub seconds: f64,
    /// Clients of the database.
    pub threads: u32,
}

impl<R: rounds::Run> Kept<R> {
    /// Whether rounds of the other join ours.
    pub fn is_of(&self, other: &Setting) -> bool {
        let same = |a: f64, b: f64| (a - b).abs() < 1e-9;
        let ours = &self.setting;
        ours.origin.commit == other.origin.commit
            && ours.origin.machine == other.origin.machine
            && same(ours.mbit, other.mbit)
            && same(ours.seconds, other.seconds)
            && ours.threads == other.threads
    }

    /// The number of the next round of a point.
    pub fn next_round(&self, point: R::Point) -> u32 {
        let places = self.runs.iter().map(R::place).filter(|(at, ..)| *at == point);
        places.map(|(_, _, round)| round).max().unwrap_or(0) + 1
    }
}

/// What is known, if it is of this setting, or nothing yet. A part that is measured would throw away the rest
/// of what is known of another setting.
pub fn join<R: rounds::Run>(known: Option<Kept<R>>, setting: Setting, only: Option<&str>) -> Result<Kept<R>> {
    match known {
        Some(known) if known.is_of(&setting) => Ok(known),
        Some(known) if only.is_some() && !known.runs.is_empty() => bail!(
            "{} runs are kept of commit {}, which is another one, or of other links, seconds, clients or another machine: --only \
             would throw them away; measure all, or into another folder (--out)",
            known.runs.len(),
            known.setting.origin.commit
        ),
        _ => Ok(Kept { setting, runs: Vec::new() }),
    }
}

/// Keeps it in this folder.
pub fn save<R: rounds::Run>(folder: &Path, [runs, setting]: Files, kept: &Kept<R>) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    rounds::save(&kept.runs, &folder.join(runs))?;
    origin::save(&kept.setting, &folder.join(setting))
}

/// What [`save`] has kept, if there is something.
pub fn load<R: rounds::Run>(folder: &Path, [runs, setting]: Files) -> Result<Option<Kept<R>>> {
    let Some(setting) = origin::load(&folder.join(setting))? else { return Ok(None) };
    Ok(Some(Kept { setting, runs: rounds::load(&folder.join(runs))? }))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::net::rocksdb::plan::points;
    use crate::net::rounds::{ARMS, Rounds};

    /// Two rounds, the host's way at 100 and 120 a second, the servers' at twice as much.
    pub fn kept() -> Kept {
        let mut runs = Vec::new();
        for (round, rate) in [(1, 100.0), (2, 120.0)] {
            for point in points() {
                for (arm, times) in ARMS.into_iter().zip([1.0, 2.0]) {
                    let mut values = [0.5; COLUMNS];
                    values[Column::Operations as usize] = 2.0 * rate * times;
                    values[Column::Seconds as usize] = 2.0;
                    runs.push(Run { point, arm, round, values });
                }
            }
        }
        let origin = Origin {
            commit: "abc123".to_owned(),
            date: "2026-01-02".to_owned(),
            load: "0".to_owned(),
            machine: "2 CPUs".to_owned(),
        };
        Kept { setting: Setting { origin, mbit: 300.0, seconds: 5.0, threads: 16 }, runs }
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let folder = std::env::temp_dir().join(format!("rocksdb-{}", std::process::id()));
        assert!(load::<Run>(&folder, YCSB).unwrap().is_none());
        let kept = kept();
        save(&folder, YCSB, &kept).unwrap();
        let loaded: Kept = load(&folder, YCSB).unwrap().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(loaded.is_of(&kept.setting) && loaded.runs == kept.runs);
        assert_eq!(HEAD.split(',').count(), 6 + COLUMNS);
        assert!(Run::parse("ext4,healthy,durable,a,offload,1,2").is_none(), "numbers are missing");
    }

    #[test]
    fn a_part_of_another_commit_does_not_throw_away_what_is_kept() {
        let here = kept().setting;
        let mut later = here.clone();
        "def456".clone_into(&mut later.origin.commit);
        let all = kept().runs.len();
        let joined = |setting: &Setting, only| join(Some(kept()), setting.clone(), only);
        assert_eq!(joined(&here, Some("xfs")).unwrap().runs.len(), all);
        let error = joined(&later, Some("xfs")).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{all} runs are kept of commit abc123")), "{error}");
        assert!(joined(&later, None).unwrap().runs.is_empty(), "all is measured anew");
        assert!(join::<Run>(None, later, Some("xfs")).unwrap().runs.is_empty());
    }

    #[test]
    fn a_gain_is_of_one_round() {
        let mut kept = kept();
        let point = points()[0];
        let gain = kept.runs.gain(point).unwrap();
        assert!((gain.low - 2.0).abs() < 1e-9 && (gain.high - 2.0).abs() < 1e-9, "not 1.67 to 2.4");
        assert_eq!(kept.next_round(point), 3);
        kept.runs.retain(|run| run.arm == Arm::HostCentric);
        assert!(kept.runs.gain(point).is_none());
    }
}
