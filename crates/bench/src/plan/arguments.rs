//! What a plan is made for.

use std::{fmt, path::PathBuf, str::FromStr};

use clap::Args;
use pinstripe_md::level::Level;

use super::durability::Assumptions;
use crate::{
    arguments::{BenchArgs, BitmapChoice, DeviceSpec, Pattern, PolicyChoice, parse_memory, parse_size},
    probe::Probe,
    run::BenchError,
    trace::{Synthetic, Workload},
};

/// Requests that are counted, for each seed.
const REQUESTS: u32 = 20_000;

/// Predicts throughput, latency, write amplification, rebuild time and the probability of loss.
#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    /// What the members are, for all or once for each: `model:NAME:SIZE`, of which NAME is 7200rpm,
    /// 7200rpm-write-through, 7200rpm-in-order, x25-e, 860-pro, 970-pro, 980-pro or optane-pm, or FILE or
    /// FILE:SIZE of what `bench --probe --json` printed
    #[arg(long = "device", value_name = "model:NAME:SIZE|FILE[:SIZE]", required = true)]
    pub devices: Vec<PlanDevice>,

    /// RAID level: 0, 4, 5 or 6
    #[arg(long, default_value = "5")]
    pub level: Level,

    /// Members of the array [default: as many as devices, 6 for one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=384))]
    pub members: Option<u16>,

    /// Chunk size, in bytes
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = parse_size)]
    pub chunk: u64,

    /// Layout, by mdadm's name
    #[arg(long)]
    pub layout: Option<String>,

    /// Which places of the array requests go to: random or sequential
    #[arg(long, value_enum, default_value_t = Pattern::Random)]
    pub pattern: Pattern,

    /// Size of a request, in bytes
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = parse_size)]
    pub size: u64,

    /// Percentage of requests that read
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub reads: u8,

    /// Requests under way at a time
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub depth: usize,

    /// Bytes to request per second, at random times, with --depth requests under way at most. A request's
    /// latency counts from the time when it was due [default: as many as --depth allows]
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["trace", "synthetic"], value_parser = parse_size)]
    pub rate: Option<u64>,

    /// The requests of this file instead, as `bench --trace` reads it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pattern", "size", "reads", "requests"])]
    pub trace: Option<PathBuf>,

    /// Requests of the trace come when they are due, and not as fast as --depth allows
    #[arg(long, requires = "trace")]
    pub trace_time: bool,

    /// The requests of a synthetic trace instead, as `bench --synthetic` makes it
    #[arg(long, value_enum, value_name = "WORKLOAD", conflicts_with_all = ["trace", "pattern", "size", "reads"])]
    pub synthetic: Option<Workload>,

    /// How parity updates are chosen
    #[arg(long, value_enum, default_value_t = PolicyChoice::Cost)]
    pub policy: PolicyChoice,

    /// Memory for the cache of parity, in bytes. 0 turns it off
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_memory)]
    pub cache: u64,

    /// Write-intent bitmap
    #[arg(long, value_enum, default_value_t = BitmapChoice::Internal)]
    pub bitmap: BitmapChoice,

    /// The load without the members of these slots
    #[arg(long, value_name = "SLOT", value_delimiter = ',')]
    pub lost: Vec<usize>,

    /// Requests that are counted, for each seed. Twice as many go before, but for no longer than 10 s
    #[arg(long, value_name = "N", default_value_t = REQUESTS, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    pub requests: u32,

    /// Repetitions, each with places, and turns of platters, of its own. Intervals span them
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,

    /// Begin with flash that was written for long, so that its spare area is used up
    #[arg(long)]
    pub used_up: bool,

    /// Drives that fail in a year, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = Assumptions::DEFAULT.afr_percent)]
    pub afr: f64,

    /// Unrecoverable errors for each bit that is read
    #[arg(long, value_name = "RATE", default_value_t = Assumptions::DEFAULT.uber)]
    pub uber: f64,

    /// Drives that come by a latent sector error in a year, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = Assumptions::DEFAULT.latent_errors_percent)]
    pub latent_errors: f64,

    /// Days from one scrub to the next
    #[arg(long, value_name = "DAYS", default_value_t = Assumptions::DEFAULT.scrub_days)]
    pub scrub_every: f64,

    /// Hours from a drive's failure to the begin of the rebuild
    #[arg(long, value_name = "HOURS", default_value_t = Assumptions::DEFAULT.replace_hours)]
    pub replace_after: f64,

    /// Years of service, over which latent errors gather where nothing scrubs
    #[arg(long, value_name = "YEARS", default_value_t = Assumptions::DEFAULT.service_years)]
    pub service_life: f64,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl PlanArgs {
    /// The same array and load as `bench` has them.
    pub(super) fn bench(&self, mut devices: Vec<DeviceSpec>) -> BenchArgs {
        let defaults = BenchArgs::defaults();
        if let [only] = &devices[..] {
            let members = self.members.map_or(defaults.memory_members(), usize::from);
            devices = vec![only.clone(); members];
        }
        BenchArgs {
            devices,
            level: self.level,
            chunk: self.chunk,
            layout: self.layout.clone(),
            pattern: self.pattern,
            size: self.size,
            reads: self.reads,
            depth: self.depth,
            policy: self.policy,
            cache: self.cache,
            bitmap: self.bitmap,
            lost: self.lost.clone(),
            used_up: self.used_up,
            rate: self.rate,
            ..defaults
        }
    }

    pub(super) fn synthetic(&self, seed: u64) -> Option<Synthetic> {
        // What is made comes with a warm-up of its own kind.
        Some(Synthetic::new(self.synthetic?, self.requests, seed))
    }

    pub(super) fn assumptions(&self) -> Assumptions {
        Assumptions {
            afr_percent: self.afr,
            uber: self.uber,
            latent_errors_percent: self.latent_errors,
            scrub_days: self.scrub_every,
            replace_hours: self.replace_after,
            service_years: self.service_life,
        }
    }
}

/// A member of a plan, as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanDevice {
    /// One of the models that there are.
    Model(DeviceSpec),
    /// A file that tells of a probe, and another size than the probed device's.
    Probed(PathBuf, Option<u64>),
}

impl PlanDevice {
    /// Its drive, and what of that is assumed. Reads the probe's file.
    pub(super) fn member(&self) -> Result<(DeviceSpec, Option<&'static str>), BenchError> {
        match self {
            Self::Model(spec) => Ok((spec.clone(), None)),
            Self::Probed(path, size) => {
                let probe = Probe::read(path).map_err(BenchError::Probe)?;
                let bytes = size.unwrap_or(probe.size_bytes);
                Ok((DeviceSpec::Model { model: probe.model(), bytes }, probe.assumed()))
            }
        }
    }
}

impl FromStr for PlanDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse().map_err(|error: crate::arguments::BadDevice| error.to_string())? {
            spec @ DeviceSpec::Model { .. } => Ok(Self::Model(spec)),
            DeviceSpec::Memory(_) => {
                Err("memory is as fast as the CPU, of which a plan knows nothing".to_owned())
            }
            DeviceSpec::Paced { .. } => Err("a plan takes the model alone: model:NAME:SIZE".to_owned()),
            DeviceSpec::Path(path) => Ok(match text.rsplit_once(':') {
                Some((path, size)) if parse_size(size).is_ok() => {
                    Self::Probed(path.into(), parse_size(size).ok())
                }
                _ => Self::Probed(path, None),
            }),
        }
    }
}

impl fmt::Display for PlanDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model(spec) => spec.fmt(f),
            Self::Probed(path, None) => path.display().fmt(f),
            Self::Probed(path, Some(bytes)) => write!(f, "{}:{bytes}", path.display()),
        }
    }
}
