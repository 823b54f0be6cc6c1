//! What is measured: arrays, what state they are in, and what is asked of them.

use std::fmt;

use clap::Args;
use serde::{Deserialize, Serialize};

/// How much is measured, and how long.
#[derive(Args, Clone, Debug)]
pub struct Plan {
    /// How often each cell is measured, of the one and of the other in turns
    #[arg(long, global = true, default_value_t = 3)]
    pub pairs: u32,
    /// Seconds of each measurement
    #[arg(long, global = true, default_value_t = 1.0)]
    pub seconds: f64,
    /// Every size, pattern, state and array, instead of a choice that takes less than a quarter of an hour
    #[arg(long, global = true)]
    pub whole: bool,
    /// Only cells with these parts in their names, such as 'RAID6,degraded,4 KiB'
    #[arg(long, global = true, value_name = "PART,...", value_delimiter = ',')]
    pub only: Vec<String>,
}

impl Default for Plan {
    fn default() -> Self {
        Self { pairs: 3, seconds: 1.0, whole: false, only: Vec::new() }
    }
}

impl Plan {
    /// The arrays, with what is measured of each: nothing is left out of those that have anything.
    pub fn matrix(&self) -> Vec<(Array, Vec<Cell>)> {
        let of = |array: Array| {
            let cells = every_cell(array).filter(|cell| self.has(array, *cell)).collect::<Vec<_>>();
            (!cells.is_empty()).then_some((array, cells))
        };
        every_array().filter_map(of).collect()
    }

    fn has(&self, array: Array, cell: Cell) -> bool {
        (self.whole || is_usual(array, cell)) && self.names(&format!("{array}: {cell}"))
    }

    /// Whether a cell of this name is wanted.
    pub fn names(&self, name: &str) -> bool {
        // Not "64 KiB" by "4 KiB".
        let begins_word = |at: usize| !name[..at].ends_with(|letter: char| letter.is_ascii_alphanumeric());
        let has = |part: &str| name.match_indices(part).any(|(at, _)| begins_word(at));
        self.only.iter().all(|part| has(part.trim()))
    }

    /// The same for another process of this program.
    pub fn options(&self) -> Vec<String> {
        let mut options = vec![format!("--pairs={}", self.pairs), format!("--seconds={}", self.seconds)];
        options.extend(self.whole.then(|| "--whole".to_owned()));
        options.extend(self.only.iter().map(|part| format!("--only={part}")));
        options
    }
}

/// Members of an array.
pub const MEMBERS: usize = 6;
/// KiB of their chunks.
pub const CHUNK_KIB: usize = 64;

/// An array of [`MEMBERS`] members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// 5 or 6.
    pub level: usize,
    /// Whether it has a write-intent bitmap.
    pub bitmap: bool,
}

impl Array {
    /// KiB of data in a stripe.
    pub fn stripe_kib(self) -> u32 {
        let parity = self.level - 4;
        u32::try_from((MEMBERS - parity) * CHUNK_KIB).unwrap_or(u32::MAX)
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (level, parity) = (self.level, self.level - 4);
        let bitmap = if self.bitmap { "with" } else { "without" };
        write!(f, "RAID{level} {}+{parity} {bitmap} bitmap", MEMBERS - parity)
    }
}

fn every_array() -> impl Iterator<Item = Array> {
    [true, false].into_iter().flat_map(|bitmap| [5, 6].map(|level| Array { level, bitmap }))
}

/// What has become of the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// All members are there.
    Healthy,
    /// One is not.
    Degraded,
    /// One is being made anew, slowly enough to last as long as the cells.
    Rebuilding,
}

/// A load on an array in some state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Of the array.
    pub state: State,
    /// In order, or anywhere.
    pub sequential: bool,
    /// Or writes.
    pub reads: bool,
    /// KiB of a request.
    pub kib: u32,
    /// Requests under way, of all jobs together.
    pub depth: u32,
    /// Jobs of fio. The requests of several come by several CPUs.
    #[serde(default = "one")]
    pub jobs: u32,
}

/// Of cells that were kept before there were others.
fn one() -> u32 {
    1
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kib {
            kib if kib % 1024 == 0 => write!(f, "{} MiB", kib / 1024)?,
            kib => write!(f, "{kib} KiB")?,
        }
        f.write_str(if self.sequential { " sequential" } else { " random" })?;
        f.write_str(if self.reads { " reads" } else { " writes" })?;
        if self.depth != DEPTH {
            write!(f, ", depth {}", self.depth)?;
        }
        if self.jobs > 1 {
            write!(f, ", {} jobs", self.jobs)?;
        }
        match self.state {
            State::Healthy => Ok(()),
            State::Degraded => f.write_str(", degraded"),
            State::Rebuilding => f.write_str(", rebuilding"),
        }
    }
}

/// Requests under way, unless a cell's name says another number.
pub const DEPTH: u32 = 32;
const SIZES_KIB: [u32; 3] = [4, 64, 1024];
const STATES: [State; 3] = [State::Healthy, State::Degraded, State::Rebuilding];

/// Every size, state and pattern; small writes of two jobs; and whole stripes, which need no reads.
fn every_cell(array: Array) -> impl Iterator<Item = Cell> {
    let cell = |state, kib, sequential, reads| Cell { state, sequential, reads, kib, depth: DEPTH, jobs: 1 };
    let patterns = [(false, true), (false, false), (true, true), (true, false)];
    let of_state = move |state| SIZES_KIB.into_iter().map(move |kib| (state, kib));
    STATES
        .into_iter()
        .flat_map(of_state)
        .flat_map(move |(state, kib)| patterns.map(|(sequential, reads)| cell(state, kib, sequential, reads)))
        .chain([
            Cell { jobs: 2, ..cell(State::Healthy, 4, false, false) },
            cell(State::Healthy, array.stripe_kib(), true, false),
        ])
}

/// Small requests come at random and large ones in order, as a rule. A bitmap is a matter of writes.
fn is_usual(array: Array, cell: Cell) -> bool {
    let is_plain = cell.sequential == (cell.kib > 64);
    match cell.state {
        State::Healthy if array.bitmap => is_plain || cell.kib == 64,
        State::Healthy => is_plain && !cell.reads && cell.jobs == 1,
        State::Degraded => array.bitmap && is_plain && cell.kib < 1024,
        State::Rebuilding => array.bitmap && is_plain && cell.kib == 4,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(plan: &Plan) -> Vec<String> {
        let of = |(array, cells): (Array, Vec<Cell>)| {
            cells.into_iter().map(move |cell| format!("{array}: {cell}")).collect::<Vec<_>>()
        };
        plan.matrix().into_iter().flat_map(of).collect()
    }

    #[test]
    fn the_whole_matrix_has_every_combination_once() {
        let all = names(&Plan { whole: true, ..Plan::default() });
        assert_eq!(all.len(), 2 * 2 * (3 * 3 * 2 * 2 + 2));
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }

    #[test]
    fn the_usual_choice_has_each_size_state_and_array() {
        let usual = names(&Plan::default());
        let whole = names(&Plan { whole: true, ..Plan::default() });
        assert!(usual.len() < 50 && usual.iter().all(|name| whole.contains(name)));
        for part in [
            "RAID5 5+1 with b",
            "RAID6 4+2 without b",
            "4 KiB",
            "64 KiB seq",
            "1 MiB",
            "4 KiB random writes, 2 jobs",
            "RAID5 5+1 with bitmap: 320 KiB sequential writes",
            "RAID6 4+2 without bitmap: 256 KiB sequential writes",
            "degraded",
            "rebuilding",
        ] {
            assert!(usual.iter().any(|name| name.contains(part)), "{part}");
        }
    }

    #[test]
    fn parts_of_names_choose_cells() {
        let plan =
            Plan { only: vec!["RAID6".into(), " with ".into(), "4 KiB random".into()], ..Plan::default() };
        let chosen = names(&plan);
        assert_eq!(chosen[0], "RAID6 4+2 with bitmap: 4 KiB random reads");
        assert!(
            chosen.iter().all(|name| name.contains("RAID6") && name.contains(": 4 KiB random")),
            "{chosen:?}"
        );
        assert_eq!(plan.options()[2..], ["--only=RAID6", "--only= with ", "--only=4 KiB random"]);
    }
}
