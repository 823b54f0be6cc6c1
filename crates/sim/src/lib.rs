//! The seeded world that replaces kernel, disks and network.
//!
//! One thread runs N shards under a virtual clock. Every choice (which task is polled, when mail arrives,
//! when and in which order requests take effect and complete, what survives a crash) comes from a seed, so a
//! run that failed can be run again, byte for byte. The code under test is the shipped code: it sees
//! [`pinstripe_runtime::Device`] and [`pinstripe_runtime::Stream`] and cannot tell.
//!
//! ```text
//!   World ── step ──> one of: poll a task │ mail │ timers │ effect or end of a request ──> Trace (rolling hash)
//!     │                          Shard 0..N                  SimDisk, SimStream
//!     └─ crash ──> tasks dropped, requests torn, caches lost ──> new shards over the same disks
//!
//!   Ledger: per sector, which values may be read now; fed by the client, knows nothing of the code under test
//! ```
//!
//! Begin with [`world`], then [`scene`]: a small array in a world, as most tests use it. [`swarm`] draws
//! whole lives of arrays; its module text says how a life goes. The parts of a world are [`disk`] (over
//! [`medium`], with [`faults`], and [`drive`] if it is to be as fast as a real one) and [`stream`]; what says
//! whether a run was right are [`ledger`], [`checks`], [`stamp`] and [`verdict`].
#![forbid(unsafe_code)]

pub mod checks;
pub mod disk;
pub mod drive;
pub mod faults;
pub mod ledger;
pub mod medium;
pub mod rng;
pub mod scene;
mod schedule;
mod source;
pub mod stamp;
pub mod stream;
pub mod swarm;
pub mod trace;
pub mod verdict;
pub mod world;

pub use disk::{
    CrashImage, CrashPoint, DiskCounters, Doubtful, Outcome, SimDevice, SimDisk, SimDiskConfig, Stage,
};
pub use drive::{Drive, Model};
pub use faults::{Fault, Misplaced, Trigger};
pub use ledger::{FlushId, Ledger, ReadId, Violation, WriteId, Wrong};
pub use medium::SECTOR;
pub use rng::Rng;
pub use schedule::Schedule;
pub use stamp::Contents;
pub use stream::{SimStream, SimStreamConfig};
pub use trace::{Ending, Event, Operation, Trace};
pub use world::{Interruptions, LeakReport, Stuck, Wiring, World, WorldConfig};
