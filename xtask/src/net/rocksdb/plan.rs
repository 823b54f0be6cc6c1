//! What is measured.

use std::fmt;

use crate::net::ycsb::{Mix, STATES, State};

/// YCSB's core workloads, in the order of the tables.
pub const WORKLOADS: [Mix; 6] = [Mix::A, Mix::B, Mix::C, Mix::D, Mix::E, Mix::F];

/// What RocksDB lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileSystem {
    Ext4,
    Xfs,
}

/// In the order of the tables.
pub const FILE_SYSTEMS: [FileSystem; 2] = [FileSystem::Ext4, FileSystem::Xfs];

impl FileSystem {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }
}

/// What is measured with every arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    pub file_system: FileSystem,
    pub state: State,
    /// Writes are acknowledged when they are durable.
    pub durable: bool,
    pub workload: Mix,
}

impl Point {
    /// Writes' name.
    pub fn writes(self) -> &'static str {
        if self.durable { "durable" } else { "buffered" }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file_system, state, writes) = (self.file_system.name(), self.state.name(), self.writes());
        f.pad(&format!("{file_system} {state} {writes}: {}", self.workload.name()))
    }
}

/// All points, in the order in which they are measured: those that the paper's figure 19 is about first.
pub fn points() -> Vec<Point> {
    let mut points = Vec::new();
    let mut add = |file_system, state, durable, workloads: &[Mix]| {
        points.extend(workloads.iter().map(|&workload| Point { file_system, state, durable, workload }));
    };
    let most = [Mix::A, Mix::F];
    for state in STATES {
        for durable in [false, true] {
            add(FileSystem::Ext4, state, durable, &most);
        }
    }
    add(FileSystem::Xfs, State::Healthy, false, &most);
    let others = [Mix::B, Mix::C, Mix::D, Mix::E];
    for state in [State::Healthy, State::Degraded] {
        add(FileSystem::Ext4, state, false, &others);
    }
    points
}
