//! How a stripe write gets its parity: what to read, and what to compute.
//!
//! A pure function. [`plan_into`] takes facts (where the chunks lie, which members can be read and written,
//! which bytes are to be written) and fills a [`Plan`]. What is written follows from it: the image, and the
//! parity of each run, on the members that can be written. It does no I/O, and after its vectors have grown
//! to the shape of the load it doesn't allocate.
//!
//! # Runs
//!
//! Parity is computed byte by byte down a row, so rows don't have to share a fate. The chunk's rows are cut
//! into [`Run`]s: maximal ranges within which the *same set* `W` of data columns is written in full. Rows
//! without a write are in no run and are neither read nor written: two writes of 4 KiB into different rows of
//! a stripe cost two small updates, not one of the rows between them.
//!
//! # Methods
//!
//! With `k` data columns, `W` the written ones and `T` the parities that can be written, a run of `len` bytes
//! reads
//!
//! - [`Method::Full`], `W` is everything: nothing;
//! - [`Method::Rmw`] (read-modify-write): the old bytes of `W` and of `T`, that is `(|W| + |T|) * len` bytes
//!   (StRAID, ATC '22, equation 1). Needs all of them to be readable, and the row to be in sync;
//! - [`Method::Rcw`] (reconstruct-write): the columns that are not written, `(k - |W|) * len` bytes
//!   (equation 2). If one of those is lost, its old value is recovered first, which takes everything that
//!   survives: all other data columns (the old bytes of written ones too) and as many parities as there are
//!   lost data columns, `k * len` bytes;
//! - [`Method::DataOnly`], no parity can be written: nothing.
//!
//! On rows in sync no other set of reads has fewer bytes; a test compares with every subset of members that
//! has the new parity in its span over GF(2^8).
//!
//! # Choice
//!
//! Runs are decided one by one under a [`WritePolicy`], then reads that touch are joined per member. What was
//! already read for an earlier plan of the same stripe write ([`plan_into`]'s `held`) and what the parity
//! cache has ([`Facts::is_cached`]) costs nothing and is not read again.
//!
//! # What keeps bytes right
//!
//! - A member that is being rebuilt is in `unreadable` and not in `unwritable`: never read, always written
//!   (C1). If it holds parity, that parity is computed from data, since there is no old one to modify.
//! - A row that is not in sync is never read-modify-written, and cached parity is not believed there (C10).
//! - A lost column is recovered through P where P can be read, as reads do. On a row that is not in sync this
//!   matters: P and Q may tell different stories, and what a reader has seen must stay.
//! - No write, data or parity, goes to a member in `unwritable`; a write that would then be in no member and
//!   in no parity is refused ([`PlanError::BeyondRedundancy`]).

mod choose;
pub mod cost;
mod runs;
mod single;
mod weigh;

#[cfg(test)]
mod tests;

pub use crate::stripe::parity_cache::Parity;
use crate::{
    geometry::{MemberSlot, Set64, StripeMap},
    stripe::image::Image,
};
use choose::{Candidate, Chooser};
use pinstripe_runtime::block_bytes;
pub use weigh::COMPUTE_NS_PER_KIB;

/// How to choose between read-modify-write and reconstruct-write where both are possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WritePolicy {
    /// What reads fewer bytes; reconstruct-write if they are equal. As MD does with `rmw_level` 1.
    MinReads,
    /// Read-modify-write if it reads at most one chunk range more (`rmw <= rcw + 1`): RAID4S-modthresh.
    ModThreshold,
    /// Read-modify-write wherever that is correct.
    AlwaysRmw,
    /// What is cheaper by the members' measured prices. If they are equal, reconstruct-write on disks that
    /// move a head, and read-modify-write on all others, for it touches fewer members and less memory. Where
    /// members share a link, what reads fewer bytes first ([`Facts::shares_link`]).
    #[default]
    Cost,
}

/// What a read from a member costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// Nanoseconds for a request of no bytes.
    pub latency_ns: u32,
    /// Nanoseconds for each KiB.
    pub ns_per_kib: u32,
    /// Whether the member moves a head: it is busy then, where flash serves other requests meanwhile.
    pub moves_head: bool,
}

/// What a read finds at its member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    /// Requests that are under way there.
    pub requests: u32,
    /// Whether the last of them was a read that ends where this one begins.
    pub goes_on: bool,
}

/// What the planner asks its caller while it plans.
pub trait Facts {
    /// What a read from the member in `slot` costs. Asked only under [`WritePolicy::Cost`].
    fn price(&self, slot: MemberSlot) -> Price;

    /// What a read finds at the member in `slot` that begins at byte `start` of the chunk. Asked only under
    /// [`WritePolicy::Cost`].
    fn ahead(&self, slot: MemberSlot, start: u32) -> Ahead;

    /// Whether what is read from different members passes one link. Prices are those of members side by side,
    /// and on a full link every member's latency is that of the queue: there bytes count first, and prices
    /// only between plans that read as much.
    fn shares_link(&self) -> bool;

    /// Whether the cache has this 4 KiB row of old parity (row = chunk offset / 4096). Asked at most once per
    /// run and row, and only if the old parity may be used. What was answered yes must be at hand when the
    /// plan is executed: look it up here and keep it, because the cache may drop it meanwhile.
    fn is_cached(&mut self, parity: Parity, row: u32) -> bool;
}

/// The stripe that is written and the state of its members.
#[derive(Clone, Copy, Debug)]
pub struct Stripe {
    /// Which member holds what.
    pub map: StripeMap,
    /// The chunk, in bytes.
    pub chunk_bytes: u32,
    /// Slots that can't be read in this stripe: missing, being rebuilt, or with a known bad block here.
    pub unreadable: Set64,
    /// Slots that can't be written: missing. They can't be read either, whether they are in `unreadable` or
    /// not.
    pub unwritable: Set64,
    /// Whether parity is known to match data. If not, it is computed from data (C10).
    pub in_sync: bool,
}

/// A range of one data column that the stripe write changes, in bytes of the chunk. Ranges may overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The data column.
    pub column: usize,
    /// First byte.
    pub start: u32,
    /// The byte behind the last.
    pub end: u32,
}

/// A range of one member's chunk to be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The member.
    pub slot: MemberSlot,
    /// First byte within the chunk.
    pub start: u32,
    /// The byte behind the last.
    pub end: u32,
}

impl Transfer {
    /// Bytes.
    pub fn length(self) -> u32 {
        self.end - self.start
    }
}

/// Which old data columns a reconstruct-write recovers before it computes parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconstruction {
    /// None: every column that is not written was read.
    None,
    /// This one, from one parity and all other columns.
    One {
        /// The lost column.
        column: usize,
        /// The old parity that was read or cached.
        from: Parity,
    },
    /// These two (ascending), from P, Q and all other columns. One of them may be among the written ones:
    /// then its old value is a by-product.
    Two {
        /// The lost columns.
        columns: [usize; 2],
    },
}

/// How the parity of a run comes about; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// New parity from new data alone.
    Full,
    /// New parity = old parity + old data + new data of the written columns.
    Rmw,
    /// New parity from the new data of the written columns and the old data of the others.
    Rcw(Reconstruction),
    /// No parity is left to be written: the data is.
    DataOnly,
}

/// A maximal range of rows in which the same columns are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First byte within the chunk.
    pub start: u32,
    /// The byte behind the last.
    pub end: u32,
    /// The data columns that are written, all over the run.
    pub written: Set64,
    /// How their parity comes about.
    pub method: Method,
}

impl Run {
    /// What an image has of a column over the run's rows.
    pub(crate) fn new_bytes<'i>(&self, image: &'i Image, column: usize) -> &'i [u8] {
        image.find(column, self.start, self.end).map_or(&[], |extent| extent.range(self.start, self.end))
    }

    /// Bytes of each column.
    pub fn length(self) -> u32 {
        self.end - self.start
    }
}

/// What a plan amounts to, for counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Runs written in full.
    pub full_runs: u32,
    /// Runs that are read-modify-written.
    pub rmw_runs: u32,
    /// Runs that are reconstruct-written.
    pub rcw_runs: u32,
    /// Bytes to be read from members.
    pub read_bytes: u64,
    /// Of those, bytes of data columns that the run doesn't write.
    pub reconstruct_read_bytes: u64,
    /// Bytes of old parity that come from the cache.
    pub cached_bytes: u64,
}

/// Why a stripe write can't be planned. Nothing has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// More members can't be written than the level can bear.
    #[error("{missing} members of the stripe can't be written; the level bears {redundancy}")]
    BeyondRedundancy {
        /// How many.
        missing: usize,
        /// How many may.
        redundancy: usize,
    },
    /// Old bytes that every method needs can't be read or recovered.
    #[error("rows {start}..{end} of the chunk need old data of which too much can't be read")]
    Unreadable {
        /// First byte within the chunk.
        start: u32,
        /// The byte behind the last.
        end: u32,
    },
    /// The image doesn't fit the stripe: a bug of the caller.
    #[error("the write to column {column}, bytes {start}..{end}, isn't a part of the stripe")]
    NoSuchRange {
        /// The data column.
        column: usize,
        /// First byte.
        start: u32,
        /// The byte behind the last.
        end: u32,
    },
}

/// Transfers in the making: those of the same slot that touch become one.
#[derive(Clone, Debug)]
struct Transfers {
    list: Vec<Transfer>,
    /// The slots that have an entry, and where the latest is.
    present: Set64,
    latest: [u16; 64],
}

impl Default for Transfers {
    fn default() -> Self {
        Self { list: Vec::new(), present: Set64::EMPTY, latest: [0; 64] }
    }
}

impl Transfers {
    fn clear(&mut self) {
        self.list.clear();
        self.present = Set64::EMPTY;
    }

    /// Adds a range that begins no earlier than the slot's latest ends.
    fn add(&mut self, slot: MemberSlot, start: u32, end: u32) {
        if self.present.contains(slot.index()) {
            let latest = &mut self.list[usize::from(self.latest[slot.index()])];
            if latest.end == start {
                latest.end = end;
                return;
            }
        }
        // A list longer than 65536 would only fail to join what touches.
        if let Ok(index) = u16::try_from(self.list.len()) {
            self.present.insert(slot.index());
            self.latest[slot.index()] = index;
        }
        self.list.push(Transfer { slot, start, end });
    }
}

/// A reusable answer; see the module. Empty until [`plan_into`] fills it.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    runs: Vec<Run>,
    reads: Transfers,
    totals: Totals,
    sweep: runs::Sweep,
    old_parity: [choose::OldParity; 2],
    /// What the cache was found to have.
    hits: Vec<(Parity, u32)>,
}

impl Plan {
    /// An empty plan.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty plan with memory for images of `ranges`.
    pub fn with_room(ranges: usize) -> Self {
        let mut plan = Self::default();
        plan.runs.reserve(2 * ranges);
        plan.reads.list.reserve(4 * ranges);
        plan.sweep.reserve(ranges);
        plan.old_parity.iter_mut().for_each(|old| old.reserve(ranges));
        plan.hits.reserve(2 * ranges);
        plan
    }

    /// The runs, ascending, not overlapping.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// What must be read from members: never from one that is unreadable, nothing that is held or cached.
    pub fn reads(&self) -> &[Transfer] {
        &self.reads.list
    }

    /// Sums over the runs.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The rows from the first to the last that is written, `(start, end)` in bytes of the chunk; `(0, 0)` if
    /// none is.
    pub fn span(&self) -> (u32, u32) {
        match (self.runs.first(), self.runs.last()) {
            (Some(first), Some(last)) => (first.start, last.end),
            _ => (0, 0),
        }
    }

    /// Bytes of memory that it takes to carry it out, beside what is to be written.
    pub fn memory(&self) -> usize {
        let reads = self.reads.list.iter().map(|read| block_bytes(read.length() as usize));
        // Read-modify-write turns the old parity into the new one where it is.
        let others = self.runs.iter().filter(|run| !matches!(run.method, Method::Rmw | Method::DataOnly));
        reads.sum::<usize>() + others.map(|run| 2 * block_bytes(run.length() as usize)).sum::<usize>()
    }

    /// Whether it needs nothing from members before it can write.
    pub fn needs_no_reads(&self) -> bool {
        self.reads.list.is_empty()
    }

    fn clear(&mut self) {
        self.runs.clear();
        self.reads.clear();
        self.hits.clear();
        self.totals = Totals::default();
    }
}

/// Fills `plan` with how to write `image` into `stripe`.
///
/// `held` is what an earlier plan of the same stripe write has read from members that can still be read (in
/// any order); it is used and not read again. After an error the plan is unspecified.
pub fn plan_into(
    plan: &mut Plan,
    stripe: &Stripe,
    policy: WritePolicy,
    image: impl IntoIterator<Item = Written>,
    held: &[Transfer],
    facts: &mut impl Facts,
) -> Result<(), PlanError> {
    plan.clear();
    let mut image = image.into_iter();
    let (first, second) = (image.next(), image.next());
    if let (Some(range), None) = (first, second)
        && single::is_single(stripe, held, &range)
    {
        single::plan_single(plan, stripe, policy, range, facts);
        return Ok(());
    }
    plan_any(plan, stripe, policy, first.into_iter().chain(second).chain(image), held, facts)
}

/// What a whole plan leans to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lean {
    /// What is best for each run.
    None,
    /// Read-modify-write wherever that is right.
    Modify,
    /// Reconstruct-write wherever that is right.
    Reconstruct,
}

/// Facts that are asked for several plans of the same image: the cache only once.
struct Asked<'a, F> {
    facts: &'a mut F,
    hits: &'a mut Vec<(Parity, u32)>,
    /// Whether all was asked before.
    again: bool,
}

impl<F: Facts> Facts for Asked<'_, F> {
    fn price(&self, slot: MemberSlot) -> Price {
        self.facts.price(slot)
    }

    fn ahead(&self, slot: MemberSlot, start: u32) -> Ahead {
        self.facts.ahead(slot, start)
    }

    fn shares_link(&self) -> bool {
        self.facts.shares_link()
    }

    fn is_cached(&mut self, parity: Parity, row: u32) -> bool {
        if self.again {
            return self.hits.contains(&(parity, row));
        }
        let found = self.facts.is_cached(parity, row);
        if found {
            self.hits.push((parity, row));
        }
        found
    }
}

/// The general way of [`plan_into`]. `plan` is empty.
fn plan_any(
    plan: &mut Plan,
    stripe: &Stripe,
    policy: WritePolicy,
    image: impl IntoIterator<Item = Written>,
    held: &[Transfer],
    facts: &mut impl Facts,
) -> Result<(), PlanError> {
    let chooser = Chooser::new(stripe, policy, held)?;
    plan.sweep.load(image, stripe)?;
    plan.sweep.cut(&mut plan.runs);
    let sources = plan.choose_all(&chooser, Lean::None, facts)?;
    if policy == WritePolicy::Cost && plan.runs.len() > 1 {
        plan.choose_together(&chooser, sources, facts)?;
    }
    plan.totals.read_bytes = plan.reads.list.iter().map(|read| u64::from(read.length())).sum();
    Ok(())
}

impl Plan {
    /// Chooses a method for each run, and adds what it reads. Returns what the kernels read.
    fn choose_all(
        &mut self,
        chooser: &Chooser,
        lean: Lean,
        facts: &mut impl Facts,
    ) -> Result<u64, PlanError> {
        self.reads.clear();
        self.totals = Totals::default();
        let mut sources = 0;
        for index in 0..self.runs.len() {
            let run = &mut self.runs[index];
            let mut asked = Asked { facts, hits: &mut self.hits, again: lean != Lean::None };
            let candidate = chooser.choose(run, lean, &mut self.old_parity, &mut asked)?;
            run.method = candidate.method;
            let run = *run;
            sources += chooser.kernel_sources(&run, &candidate) * u64::from(run.length());
            self.add_reads(chooser, run, &candidate);
            self.count(run);
        }
        Ok(sources)
    }

    /// What is best for each run alone may not be best for all: a member that one run reads anyway costs the
    /// next one little. So the plan that is best run by run (which is there, and has its kernels read
    /// `sources`) has to be cheaper than those that have one method wherever it is right.
    fn choose_together(
        &mut self,
        chooser: &Chooser,
        sources: u64,
        facts: &mut impl Facts,
    ) -> Result<(), PlanError> {
        let (mut best, mut lean, mut is_there) = (self.weight(chooser, sources, facts), Lean::None, true);
        for other in [Lean::Modify, Lean::Reconstruct] {
            let sources = self.choose_all(chooser, other, facts)?;
            let weight = self.weight(chooser, sources, facts);
            is_there = match other {
                Lean::Reconstruct => weight.replaces(&best),
                Lean::Modify | Lean::None => weight.compare(&best).is_lt(),
            };
            if is_there {
                (best, lean) = (weight, other);
            }
        }
        if !is_there {
            self.choose_all(chooser, lean, facts)?;
        }
        Ok(())
    }

    fn weight(&self, chooser: &Chooser, sources: u64, facts: &impl Facts) -> weigh::Weight {
        let reads = self.reads.list.iter().map(|read| (read.slot, read.start, u64::from(read.length())));
        weigh::Weight::of(WritePolicy::Cost, chooser.map.members(), reads, sources, facts)
    }

    fn add_reads(&mut self, chooser: &Chooser, run: Run, candidate: &Candidate) {
        for column in candidate.columns {
            let slot = chooser.map.data_slot(column);
            let mut bytes = 0;
            choose::uncovered(chooser.held, slot, run.start, run.end, |start, end| {
                self.reads.add(slot, start, end);
                bytes += u64::from(end - start);
            });
            if !run.written.contains(column) {
                self.totals.reconstruct_read_bytes += bytes;
            }
        }
        for (parity, needed) in [(Parity::P, candidate.p), (Parity::Q, candidate.q)] {
            let Some(slot) = chooser.parity_slot(parity).filter(|_| needed) else { continue };
            let old = &self.old_parity[parity as usize];
            for &(start, end) in &old.missing {
                self.reads.add(slot, start, end);
            }
            self.totals.cached_bytes += old.cached_bytes;
        }
    }

    fn count(&mut self, run: Run) {
        match run.method {
            Method::Full => self.totals.full_runs += 1,
            Method::Rmw => self.totals.rmw_runs += 1,
            Method::Rcw(_) => self.totals.rcw_runs += 1,
            Method::DataOnly => {}
        }
    }
}
