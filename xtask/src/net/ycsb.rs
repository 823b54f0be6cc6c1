//! What the store of objects and RocksDB are measured with: YCSB's mixes, and states of the array.

use crate::bench::Spread;

/// A mix of operations: YCSB's core workloads, and one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mix {
    A,
    B,
    C,
    D,
    E,
    F,
    /// Updates only.
    W,
}

impl Mix {
    /// What the client is told.
    pub fn option(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
            Self::D => "d",
            Self::E => "e",
            Self::F => "f",
            Self::W => "w",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::A => "A, half updates",
            Self::B => "B, 5 % updates",
            Self::C => "C, reads",
            Self::D => "D, 5 % inserts",
            Self::E => "E, scans, 5 % inserts",
            Self::F => "F, half read-modify-writes",
            Self::W => "writes only",
        }
    }

    /// As pictures have room for it.
    pub fn short(self) -> &'static str {
        self.name().split(',').next().unwrap_or_default()
    }

    /// The one of this [`Self::option`], of those that are measured.
    pub fn called(option: &str, measured: &[Self]) -> Option<Self> {
        measured.iter().copied().find(|mix| mix.option() == option)
    }
}

/// What the array lacks, or is busy with besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Healthy,
    /// A member is missing.
    Degraded,
    /// It is being rebuilt onto another server.
    Rebuilding,
}

/// In the order of the tables.
pub const STATES: [State; 3] = [State::Healthy, State::Degraded, State::Rebuilding];

impl State {
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Rebuilding => "rebuilding",
        }
    }

    pub fn called(name: &str) -> Option<Self> {
        STATES.into_iter().find(|state| state.name() == name)
    }
}

/// A median with its span.
pub fn of(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or("-".to_owned(), |Spread { median, low, high }| {
        format!("{median:.digits$} ({low:.digits$} to {high:.digits$})")
    })
}
