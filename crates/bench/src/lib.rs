//! `pinstripe bench`: how fast the engine is, and how far from as fast as it could be.
//!
//! ```text
//!   arguments ─> setup ─> run: slices of ─┬─ client: `depth` tasks that write through a Volume
//!                                         └─ straight_line (with --limit): the same work in a plain loop, no engine
//!                          └> verify: scrub, and every written unit read back  ─> report
//! ```
//!
//! The array is made for the run. Each unit (a write's range) carries its writer, place and version in every
//! sector; [`ledger`] remembers the version of the last acknowledged write. So a run that was fast and wrong
//! fails.
//!
//! Members may be NVMe/TCP namespaces; what a network needs beyond that: members that are missing meanwhile
//! or are being rebuilt ([`loss`]), a load that is no more than asked for, and an observer outside that is
//! told when measuring begins and ends ([`attendance`]). Whatever was missing is put in again and rebuilt, so
//! that every run ends with the same check.
//!
//! With `--through` the same clients' requests go to an export instead ([`through`]): an NBD server's, by a
//! client of our own ([`nbd`]), a vhost-user back end's ([`vhost_user`]), or a block device or file.
//! [`destination`] is where the two ways part.
//!
//! Begin with `run`, which has the life of a measurement; `setup` makes the array, `client` is the load,
//! `verify` the check, `report` what is printed. What doesn't fit the array is refused by `fits`, before a
//! device is overwritten.
//!
//! With `--ablate` ways of older designs stand in place of ours ([`ablate`]).
//!
//! With `--trace` requests are those of a trace ([`trace`], [`replay`]), in place of `client`'s, and with
//! `--synthetic` those of a trace that is made. With `--objects` a store of objects is what clients ask
//! ([`objects`]).
//!
//! Over models of drives ([`DeviceSpec::Model`]) the same run goes on in the simulator's world, under virtual
//! time ([`virtual_time`]). Under such a model a file or device is a member that is as slow, in real time
//! ([`DeviceSpec::Paced`]).
//!
//! `pinstripe plan` ([`plan`]) runs the engine over such models to say what an array would do, and `--probe`
//! ([`probe`]) measures a device for a model of it.
//!
//! With `--limit` the engine writes the first half of the array and the loop the second, in slices that
//! alternate many times a second: on a machine that others use too, the ratio of neighbouring slices is worth
//! more than either number.
#![forbid(unsafe_code)]

mod ablate;
mod arguments;
mod attendance;
mod check;
mod client;
mod destination;
mod export;
mod fill;
mod fits;
mod histogram;
mod ledger;
mod loss;
mod nbd;
mod objects;
mod paced;
mod plan;
mod probe;
mod progress;
mod replay;
mod report;
mod rng;
mod run;
mod setup;
mod straight_line;
mod through;
mod trace;
mod verify;
mod vhost_user;
mod virtual_time;
mod worker;

pub use ablate::{Ablate, AblationReport, BadAblation, HandOff, LockShare};
pub use arguments::{
    BadDevice, BenchArgs, BitmapChoice, DeviceSpec, Mix, OffloadChoice, Pattern, PolicyChoice, ReducerPolicy,
};
pub use check::check;
pub use destination::RequestError;
pub use export::{BadExport, Export, FrontEnd, NbdAddress, Through};
pub use objects::{ObjectsReport, run_objects, run_objects_through};
pub use plan::{
    Assumptions, Durability, Interval, LoadForecast, PlanArgs, PlanDevice, PlanReport, PlanSettings,
    RebuildTime, plan,
};
pub use probe::{Direction, Point, Probe, probe};
pub use progress::{Phase, Tell};
pub use replay::{Checked, ReplayedOn, TraceReport, run_trace, run_trace_through};
pub use report::{Amplification, Latency, Limit, Rebuild, Report, Settings, Verified};
pub use run::{BenchError, run, run_and_tell};
pub use through::{ThroughReport, run_through};
pub use trace::{Format, Published, Synthetic, TraceError, Workload};
