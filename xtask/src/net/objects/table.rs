//! What was measured, as CSV: a line a run.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::OBJECT_BYTES;
use super::plan::{Bytes, Keys, MIXES, Point};
use crate::net::client::Measurement;
use crate::net::experiments::Arm;
use crate::net::rounds::{self, Run as _, whole};
use crate::net::usage::LinkBytes;
use crate::net::ycsb::{Mix, State};
use crate::origin::{self, Origin};

/// What a run counted, in the table's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Operations,
    Seconds,
    ReadBytes,
    WrittenBytes,
    ClientSent,
    ClientReceived,
    /// Of the server that sent most.
    ServerSent,
    ServerReceived,
    ReadP50Ms,
    ReadP99Ms,
    WriteP50Ms,
    WriteP99Ms,
    OffloadedRuns,
    Fallbacks,
    ClientCpu,
    ServersCpu,
    /// Share of the machine, with whatever.
    Busy,
}

const COLUMNS: usize = Column::Busy as usize + 1;
const HEAD: &str = "level,state,keys,mix,arm,round,operations,seconds,read_bytes,written_bytes,client_sent_bytes,\
                    client_received_bytes,busiest_server_sent_bytes,busiest_server_received_bytes,read_p50_ms,\
                    read_p99_ms,write_p50_ms,write_p99_ms,offloaded_runs,offload_fallbacks,client_cpu_seconds,\
                    servers_cpu_seconds,machine_busy_share";

/// One of the arms at one point, once.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub point: Point,
    pub arm: Arm,
    pub round: u32,
    values: [f64; COLUMNS],
}

impl Run {
    pub fn new(point: Point, arm: Arm, round: u32, measured: &Measurement) -> Self {
        let report = &measured.report;
        let number = |name: &str| report[name].as_f64().unwrap_or(f64::NAN);
        // A read with the update of what was read has a latency of its own.
        let latency = |kinds: &[&str], percentile: &str| {
            let most = kinds.iter().max_by_key(|kind| report[**kind]["samples"].as_u64());
            let found = most.map(|kind| &report[*kind]);
            let found = found.filter(|found| found["samples"].as_u64().is_some_and(|samples| samples > 0));
            found.and_then(|found| found[percentile].as_f64()).unwrap_or(0.0) / 1e6
        };
        let busiest = |of: fn(&LinkBytes) -> u64| whole(measured.servers.iter().map(of).max().unwrap_or(0));
        let read = |percentile| latency(&["read_latency_ns"], percentile);
        let write = |percentile| latency(&["write_latency_ns", "read_modify_write_latency_ns"], percentile);
        let values = [
            number("operations"),
            number("seconds"),
            measured.counter("read_bytes"),
            measured.counter("write_bytes"),
            whole(measured.client.sent),
            whole(measured.client.received),
            busiest(|link| link.sent),
            busiest(|link| link.received),
            read("p50"),
            read("p99"),
            write("p50"),
            write("p99"),
            measured.counter("offloaded_runs"),
            measured.counter("offload_fallbacks"),
            measured.client_cpu,
            measured.servers_cpu.iter().sum(),
            measured.busy,
        ];
        Self { point, arm, round, values }
    }

    pub fn get(&self, column: Column) -> f64 {
        self.values[column as usize]
    }

    /// On the client's link for each operation, in objects.
    pub fn bytes(&self) -> Bytes {
        let by_operation = |column| self.get(column) / self.get(Column::Operations) / whole(OBJECT_BYTES);
        Bytes { sent: by_operation(Column::ClientSent), received: by_operation(Column::ClientReceived) }
    }

    /// How much of the busier direction of the client's link was used. Its rate counts headers too.
    pub fn link_share(&self, mbit: f64) -> f64 {
        self.share(Column::ClientSent, Column::ClientReceived, mbit)
    }

    /// The same of the busiest server's.
    pub fn server_share(&self, mbit: f64) -> f64 {
        self.share(Column::ServerSent, Column::ServerReceived, mbit)
    }

    fn share(&self, sent: Column, received: Column, mbit: f64) -> f64 {
        self.get(sent).max(self.get(received)) * 8e-6 / self.get(Column::Seconds) / mbit
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
        let Point { level, state, keys, mix } = self.point;
        let (state, keys, arm) = (state.name(), keys.name(), self.arm.name());
        let mut line = format!("{level},{state},{keys},{},{arm},{}", mix.option(), self.round);
        rounds::put(&mut line, &self.values);
        line
    }

    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(',').collect();
        let [level, state, keys, mix, arm, round, numbers @ ..] = words.as_slice() else { return None };
        let point = Point {
            level: level.parse().ok()?,
            state: State::called(state)?,
            keys: [Keys::Uniform, Keys::Zipf].into_iter().find(|each| each.name() == *keys)?,
            mix: Mix::called(mix, &MIXES)?,
        };
        let (arm, round) = (rounds::arm(arm)?, round.parse().ok()?);
        Some(Self { point, arm, round, values: rounds::numbers(numbers)? })
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, seconds) = (self.bytes(), self.get(Column::Seconds));
        write!(
            f,
            "{:6.1} operations/s, {:.1} MB/s, sent {:.3}, received {:.3} objects each, {:.0} offloaded; {:.0} + {:.0} % CPU, machine \
             {:.0} % busy",
            self.rate(),
            (self.get(Column::ReadBytes) + self.get(Column::WrittenBytes)) / seconds / 1e6,
            bytes.sent,
            bytes.received,
            self.get(Column::OffloadedRuns),
            self.get(Column::ClientCpu) / seconds * 100.0,
            self.get(Column::ServersCpu) / seconds * 100.0,
            self.get(Column::Busy) * 100.0
        )
    }
}

/// All that was measured of one commit, with one link.
#[derive(Clone, Debug)]
pub struct Kept {
    pub origin: Origin,
    pub mbit: f64,
    pub seconds: f64,
    pub runs: Vec<Run>,
}

/// What isn't in the table.
#[derive(Serialize, Deserialize)]
struct Setting {
    #[serde(flatten)]
    origin: Origin,
    mbit: f64,
    seconds: f64,
}

impl Kept {
    /// Whether rounds of the other join ours.
    pub fn is_of(&self, other: &Self) -> bool {
        let same = |a: f64, b: f64| (a - b).abs() < 1e-9;
        self.origin.commit == other.origin.commit
            && self.origin.machine == other.origin.machine
            && same(self.mbit, other.mbit)
            && same(self.seconds, other.seconds)
    }
}

/// Keeps it below `folder`.
pub fn save(folder: &Path, kept: &Kept) -> Result<()> {
    let beside = folder.join("draid");
    rounds::save(&kept.runs, &beside.join("objects.csv"))?;
    let setting = Setting { origin: kept.origin.clone(), mbit: kept.mbit, seconds: kept.seconds };
    origin::save(&setting, &beside.join("origin.json"))
}

/// What [`save`] has kept, if there is something.
pub fn load(folder: &Path) -> Result<Option<Kept>> {
    let beside = folder.join("draid");
    let Some(setting) = origin::load::<Setting>(&beside.join("origin.json"))? else { return Ok(None) };
    let runs = rounds::load(&beside.join("objects.csv"))?;
    Ok(Some(Kept { origin: setting.origin, mbit: setting.mbit, seconds: setting.seconds, runs }))
}

#[cfg(test)]
pub mod tests {
    use std::fs;

    use super::*;
    use crate::net::rounds::{ARMS, Rounds};

    /// Two rounds of all mixes, the host's way at 100 and 120 a second, the servers' at twice as much.
    pub fn kept() -> Kept {
        let mut runs = Vec::new();
        for (round, rate) in [(1, 100.0), (2, 120.0)] {
            for state in [State::Healthy, State::Degraded] {
                for mix in MIXES {
                    for (arm, times) in ARMS.into_iter().zip([1.0, 2.0]) {
                        let mut values = [0.5; COLUMNS];
                        values[Column::Operations as usize] = 2.0 * rate * times;
                        values[Column::Seconds as usize] = 2.0;
                        let point = Point { level: 5, state, keys: Keys::Uniform, mix };
                        runs.push(Run { point, arm, round, values });
                    }
                }
            }
        }
        let origin = Origin {
            commit: "abc123".to_owned(),
            date: "2026-01-02".to_owned(),
            load: "0".to_owned(),
            machine: "2 CPUs".to_owned(),
        };
        Kept { origin, mbit: 300.0, seconds: 5.0, runs }
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let folder = std::env::temp_dir().join(format!("objects-{}", std::process::id()));
        assert!(load(&folder).unwrap().is_none());
        fs::create_dir_all(folder.join("draid")).unwrap();
        let kept = kept();
        save(&folder, &kept).unwrap();
        let loaded = load(&folder).unwrap().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(loaded.is_of(&kept) && loaded.runs == kept.runs);
        assert_eq!(HEAD.split(',').count(), 6 + COLUMNS);
        assert!(Run::parse("5,healthy,uniform,a,offload,1,2").is_none(), "numbers are missing");
    }

    #[test]
    fn a_gain_is_of_one_round() {
        let mut kept = kept();
        let point = Point { level: 5, state: State::Healthy, keys: Keys::Uniform, mix: Mix::W };
        let gain = kept.runs.gain(point).unwrap();
        assert!((gain.low - 2.0).abs() < 1e-9 && (gain.high - 2.0).abs() < 1e-9, "not 1.67 to 2.4");
        kept.runs.retain(|run| run.round == 1 || run.arm == Arm::HostCentric);
        assert!(kept.runs.gain(point).is_some());
        kept.runs.retain(|run| run.arm == Arm::HostCentric);
        assert!(kept.runs.gain(point).is_none());
    }
}
