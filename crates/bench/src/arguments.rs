//! What the user asks for.

use std::{fmt, net::IpAddr, path::PathBuf, str::FromStr};

use clap::{Args, ValueEnum};
use pinstripe_control::size::{BadSize, ByteSize};
use pinstripe_engine::{
    options::{OffloadMode, ReducerChoice},
    plan::WritePolicy,
};
use pinstripe_md::level::Level;
use pinstripe_sim::{Model, drive};
use serde::Serialize;
use thiserror::Error;

use crate::{
    ablate::Ablate,
    export::Through,
    trace::{Synthetic, Workload},
};

/// Before anything is counted, unless the user says how long.
const WARM_UP_SECONDS: f64 = 0.2;

/// Requests under way, unless the user says how many.
pub(crate) const DEPTH: usize = 32;

/// Requests of a synthetic trace, unless the user says how many: seconds' worth.
const SYNTHETIC_REQUESTS: u32 = 100_000;

/// Measures reads and writes of an array that is made for it, and checks what was written.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct BenchArgs {
    /// RAID level: 0, 4, 5 or 6
    #[arg(long, default_value = "5")]
    pub level: Level,

    /// Members of the array (as many as devices, where files or block devices are given)
    #[arg(long, value_name = "N")]
    pub members: Option<usize>,

    /// Chunk size, in bytes
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = parse_size)]
    pub chunk: u64,

    /// Layout, by mdadm's name
    #[arg(long)]
    pub layout: Option<String>,

    /// What the members are: `mem:SIZE` for all, or the path of a file or block device, once for each
    /// member. Or `model:NAME:SIZE`, for all or once for each: virtual drives as fast as NAME, which is
    /// 7200rpm, x25-e, 860-pro, 970-pro, 980-pro or optane-pm (or 7200rpm-write-through, which has no write
    /// cache, or 7200rpm-in-order, which doesn't sort what waits either). Then time is virtual too, and
    /// nothing but the drives takes any: what the CPU takes, and what shards wait for each other, doesn't
    /// show. Or `model:NAME:PATH`, with a `/` in it: the file, device or namespace of that path, in real
    /// time, of which no request ends sooner than on such a drive
    #[arg(
        long = "device",
        value_name = "mem:SIZE|model:NAME:SIZE|PATH|model:NAME:PATH",
        default_value = "mem:1G"
    )]
    pub devices: Vec<DeviceSpec>,

    /// Models of flash begin as if they had been written for long, so that their spare area is used up
    #[arg(long)]
    pub used_up: bool,

    /// Poll reads and writes of NVMe devices that have poll queues: kernel option nvme.poll_queues=N
    #[arg(long)]
    pub poll: bool,

    /// Threads that serve the array
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub shards: usize,

    /// Which places of the array requests go to
    #[arg(long, value_enum, default_value_t = Pattern::Random)]
    pub pattern: Pattern,

    /// Size of a request, in bytes
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = parse_size)]
    pub size: u64,

    /// Percentage of requests that read
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub reads: u8,

    /// The number from which places and synthetic requests are drawn, and under virtual time the order of
    /// events and how far platters have turned. The same one draws the same
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..1 << 20))]
    pub seed: u64,

    /// Requests under way at a time, over all threads
    #[arg(long, value_name = "N", default_value_t = DEPTH)]
    pub depth: usize,

    /// Seconds to measure
    #[arg(long, value_name = "S", default_value_t = 4.0)]
    pub seconds: f64,

    /// Seconds of the same load before the measurement
    #[arg(long, value_name = "S", default_value_t = WARM_UP_SECONDS)]
    pub warm_up: f64,

    /// Bytes to request per second, at random times. A request's latency counts from the time when it was
    /// due, and any of the --depth clients sends it that is free. What is due and not sent at the end of
    /// --seconds is counted [default: as many as --depth allows]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub rate: Option<u64>,

    /// How parity updates are chosen
    #[arg(long, value_enum, default_value_t = PolicyChoice::Cost)]
    pub policy: PolicyChoice,
    /// Whether the members' servers compute parity, where they can. `barrier` waits for each stage
    #[arg(long, value_enum, value_name = "HOW", default_value_t = OffloadChoice::On)]
    pub offload: OffloadChoice,
    /// How to choose the server that reconstructs the data of a missing member
    #[arg(long, value_enum, value_name = "HOW", default_value_t = ReducerPolicy::Bandwidth)]
    pub reducer: ReducerPolicy,

    /// Memory for the cache of parity, in bytes. 0 turns it off
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_memory)]
    pub cache: u64,

    /// Write-intent bitmap
    #[arg(long, value_enum, default_value_t = BitmapChoice::Internal)]
    pub bitmap: BitmapChoice,

    /// Skip the initial resync. The devices must hold nothing but zeroes, so that parity is right already
    #[arg(long)]
    pub assume_clean: bool,

    /// Write the whole array before the measurement
    #[arg(long)]
    pub fill: bool,

    /// Measure without the members of these slots. Before the check, they are added again and rebuilt
    #[arg(long, value_name = "SLOT", value_delimiter = ',')]
    pub lost: Vec<usize>,

    /// Measure the rebuild of the member of this slot, instead of a load. With --rate, measure both, the load
    /// from the rebuild's begin to its end
    #[arg(long, value_name = "SLOT", conflicts_with = "lost")]
    pub rebuild: Option<usize>,

    /// Print a line of JSON before the warm-up, before the measurement and after it. Each time, wait for a
    /// line on standard input
    #[arg(long)]
    pub attended: bool,

    /// Compare with a simple loop that does the same work without the engine (memory members only). With
    /// --lost it reconstructs what one member held: for --reads 100
    #[arg(long)]
    pub limit: bool,

    /// File of secrets for NVMe/TCP servers. It has lines NQN HOST-SECRET [CONTROLLER-SECRET]
    #[arg(long, value_name = "FILE")]
    pub dhchap_secrets: Option<PathBuf>,

    /// File of TLS keys for NVMe/TCP servers. It has lines NQN KEY
    #[arg(long, value_name = "FILE")]
    pub nvme_tls_secrets: Option<PathBuf>,

    /// Connect to NVMe/TCP servers from this address of this host. Can be given several times: connections
    /// are spread evenly over the addresses
    #[arg(long, value_name = "ADDRESS")]
    pub client_address: Vec<IpAddr>,

    /// Put the load on an export of a server: `nbd`, `ublk`, `fuse` or `vhost-user` starts a server of such
    /// an array with this front end, and nbd+unix:///NAME?socket=PATH, nbd://HOST:PORT/NAME,
    /// vhost-user:PATH or the path of a block device or file is an export that is there, and is overwritten.
    /// --shards is the number of threads of the load, and of a server that is started
    #[arg(long, value_name = "nbd|ublk|fuse|vhost-user|EXPORT", conflicts_with_all = ["limit", "lost", "rebuild", "attended", "used_up", "poll", "offload", "reducer", "dhchap_secrets", "nvme_tls_secrets", "client_address"])]
    pub through: Option<Through>,

    /// Replay the requests of this file, or of standard input for -, instead of a pattern: MSR Cambridge's
    /// CSV, lines of R or W, offset and length with tabs between, an iolog of fio (a wait in its version 2
    /// lasts for so many microseconds, as fio's manual has it) or the text of blkparse. With --depth requests
    /// at a time. What lies beyond the array is folded into it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pattern", "size", "reads", "seconds", "warm_up", "rate", "fill", "rebuild", "attended", "limit"])]
    pub trace: Option<PathBuf>,

    /// Replay requests when they are due, and not as fast as --depth allows. A request's latency counts from
    /// the time when it was due
    #[arg(long, requires = "trace")]
    pub trace_time: bool,

    /// Put so many objects of --size bytes into a store on the array, and measure it with a mix of YCSB's.
    /// Keys are drawn by --pattern, random or zipf. At the end, the store is opened anew and every object is
    /// read
    #[arg(long, value_name = "N", conflicts_with_all = ["trace", "reads", "rate", "fill", "rebuild", "limit"])]
    pub objects: Option<usize>,

    /// Which of YCSB's core workloads: a updates half of the time and reads otherwise, b updates 5 times of
    /// 100, c reads only, d reads new objects and inserts 5 times of 100, f reads, and updates half of what
    /// it reads. And w, which is not YCSB's, updates only
    #[arg(long, value_enum, value_name = "WORKLOAD", default_value_t = Mix::A, requires = "objects")]
    pub mix: Mix,

    /// Put older designs' ways in place of Pinstripe's, and meter locks, waits and hand-offs. A preset
    /// (pinstripe, straid, scala-raid, hemi-raid or orig-raid), arms that change it, or both, with commas
    /// between: stripe=direct|hashed:N|global, intent=lanes|atomic|region-lock|d-blocks|lock,
    /// unit=stripe|page (how often locks are taken), worker=run-to-completion|pool, join=on|off,
    /// gather=on|off, cache=SIZE, policy=NAME and hold=NANOSECONDS (for which each lock is held besides).
    /// Over models of drives join, gather, cache and policy count, and nothing is metered: locks and
    /// workers take no virtual time
    #[arg(long, value_name = "ARMS", conflicts_with_all = ["through", "rebuild", "objects"])]
    pub ablate: Option<Ablate>,

    /// Replay a synthetic trace, made after what StRAID's authors published of one in Table 4: how many
    /// reads and writes, and their mean sizes. How sizes and places are distributed isn't published, and is
    /// chosen. The paper's setting has --chunk 8K and --depth 32
    #[arg(long, value_enum, value_name = "WORKLOAD", conflicts_with_all = ["trace", "objects", "pattern", "size", "reads", "seconds", "warm_up", "rate", "fill", "rebuild", "attended", "limit"])]
    pub synthetic: Option<Workload>,

    /// Requests of the synthetic trace
    #[arg(long, value_name = "N", default_value_t = SYNTHETIC_REQUESTS, requires = "synthetic", value_parser = clap::value_parser!(u32).range(1..0xFFFF_FFFF))]
    pub requests: u32,

    /// Write the latencies' distribution to this file, as HdrHistogram's percentiles in microseconds (.hgrm)
    #[arg(long, value_name = "FILE")]
    pub histogram: Option<PathBuf>,

    /// Measure this file or block device instead of an array, reading only: small requests at several depths
    /// and large ones, each for --seconds, from one thread. A device should have been written before: flash
    /// that is new answers reads at once. `plan --device FILE` takes what --json prints as a model
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["members", "devices", "pattern", "size", "reads", "rate", "trace", "synthetic", "objects", "ablate", "fill", "lost", "rebuild", "attended", "limit", "through", "histogram"])]
    pub probe: Option<PathBuf>,

    /// Measure writes and flushes of the device of --probe, too, and read what was written. What it holds is
    /// overwritten: --force must say so
    #[arg(long, requires = "probe")]
    pub probe_writes: bool,

    /// Overwrite the given files, block devices and exports
    #[arg(long)]
    pub force: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What takes time where members are models of drives.
pub(crate) const VIRTUAL: &str = "virtual device";

/// Members in memory, unless the user says how many.
const MEMBERS: usize = 6;

impl BenchArgs {
    /// How many members there are in memory, if they are.
    pub fn memory_members(&self) -> usize {
        self.members.unwrap_or(MEMBERS)
    }

    /// Whether a trace is replayed, in place of a pattern.
    pub fn is_replay(&self) -> bool {
        self.trace.is_some() || self.synthetic.is_some()
    }

    /// The trace that is to be made, if one is.
    pub(crate) fn synthetic(&self) -> Option<Synthetic> {
        Some(Synthetic::new(self.synthetic?, self.requests, self.seed))
    }

    /// Whether members are models of drives.
    pub fn is_virtual(&self) -> bool {
        self.devices.iter().any(|device| matches!(device, DeviceSpec::Model { .. }))
    }

    /// Whether members are models, or are paced by models.
    pub(crate) fn has_models(&self) -> bool {
        self.is_virtual() || self.devices.iter().any(|device| matches!(device, DeviceSpec::Paced { .. }))
    }

    /// What takes time, as reports call it.
    pub(crate) fn series(&self) -> &'static str {
        if self.is_virtual() { VIRTUAL } else { "real CPU" }
    }

    /// Whether there is more than a load.
    pub(crate) fn is_staged(&self) -> bool {
        self.fill || self.rate.is_some() || self.rebuild.is_some() || self.attended
    }

    /// What a user gets without options.
    pub fn defaults() -> Self {
        Self {
            level: Level::Raid5,
            members: None,
            chunk: 64 << 10,
            layout: None,
            devices: vec![DeviceSpec::Memory(1 << 30)],
            used_up: false,
            poll: false,
            shards: 1,
            pattern: Pattern::Random,
            size: 4096,
            reads: 0,
            seed: 1,
            depth: DEPTH,
            seconds: 4.0,
            warm_up: WARM_UP_SECONDS,
            rate: None,
            policy: PolicyChoice::Cost,
            offload: OffloadChoice::On,
            reducer: ReducerPolicy::Bandwidth,
            cache: 64 << 20,
            bitmap: BitmapChoice::Internal,
            assume_clean: false,
            fill: false,
            lost: Vec::new(),
            rebuild: None,
            attended: false,
            limit: false,
            dhchap_secrets: None,
            nvme_tls_secrets: None,
            client_address: Vec::new(),
            through: None,
            trace: None,
            trace_time: false,
            objects: None,
            mix: Mix::A,
            ablate: None,
            synthetic: None,
            requests: SYNTHETIC_REQUESTS,
            histogram: None,
            probe: None,
            probe_writes: false,
            force: false,
            json: false,
        }
    }
}

/// What stands behind the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSpec {
    /// So many bytes of memory for each member.
    Memory(u64),
    /// A virtual drive of one member, or of each.
    Model {
        /// How fast it is.
        model: Model,
        /// Bytes of the member. It is the first part of the drive.
        bytes: u64,
    },
    /// One member's file or block device.
    Path(PathBuf),
    /// The same, which answers no sooner than such a drive.
    Paced {
        /// How slow it is at least.
        model: Model,
        /// The file or block device.
        path: PathBuf,
    },
}

/// What can't be a member.
#[derive(Debug, Error)]
pub enum BadDevice {
    /// Of memory or a model.
    #[error(transparent)]
    Size(#[from] BadSize),
    /// Not model:NAME:SIZE, nor model:NAME:PATH.
    #[error("a model is model:NAME:SIZE or model:NAME:PATH with one of these names: {}", drive::NAMES.join(", "))]
    Model,
}

impl FromStr for DeviceSpec {
    type Err = BadDevice;

    fn from_str(text: &str) -> Result<Self, BadDevice> {
        if let Some(size) = text.strip_prefix("mem:") {
            return Ok(Self::Memory(parse_size(size)?));
        }
        let Some(rest) = text.strip_prefix("model:") else { return Ok(Self::Path(text.into())) };
        let (name, rest) = rest.split_once(':').ok_or(BadDevice::Model)?;
        let model = Model::named(name).ok_or(BadDevice::Model)?;
        Ok(if rest.contains('/') {
            Self::Paced { model, path: rest.into() }
        } else {
            Self::Model { model, bytes: parse_size(rest)? }
        })
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(bytes) => write!(f, "mem:{bytes}"),
            Self::Model { model, bytes } => write!(f, "model:{}:{bytes}", model.name),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Paced { model, path } => write!(f, "model:{}:{}", model.name, path.display()),
        }
    }
}

/// Where requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Anywhere in the array, at multiples of the size.
    Random,
    /// As `random`, but some places far more often than others, by Zipf's law with the exponent 0.99.
    Zipf,
    /// In order over the array, as one stream of all clients.
    Sequential,
    /// Reads of chunks of the members in --lost, at multiples of the size.
    Lost,
}

impl Pattern {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Zipf => "zipf",
            Self::Sequential => "sequential",
            Self::Lost => "lost",
        }
    }
}

/// A core workload of YCSB (Cooper and others, 2010), or updates only. E scans, which a store by hash can't.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    /// Half reads, half updates.
    A,
    /// 95 of 100 reads, 5 updates.
    B,
    /// Reads only.
    C,
    /// 95 of 100 reads of the newest objects, 5 inserts.
    D,
    /// Half reads, half reads with an update of the same object.
    F,
    /// Updates only. YCSB has no such workload.
    W,
}

impl Mix {
    /// As YCSB calls it, if it does.
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::A => "YCSB A",
            Self::B => "YCSB B",
            Self::C => "YCSB C",
            Self::D => "YCSB D",
            Self::F => "YCSB F",
            Self::W => "updates only",
        }
    }
}

/// How parity updates are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyChoice {
    /// The way that costs less by the members' measured speed.
    Cost,
    /// The way that reads less, as MD does.
    MinReads,
    /// Read-modify-write unless it reads more than one chunk more.
    ModThreshold,
    /// Read-modify-write wherever that is right.
    AlwaysRmw,
}

/// Whether the members' servers compute parity, where they can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OffloadChoice {
    /// Wherever it is possible.
    On,
    /// Never.
    Off,
    /// In stages; each stage waits for the one before.
    Barrier,
}

impl From<OffloadChoice> for OffloadMode {
    fn from(choice: OffloadChoice) -> Self {
        match choice {
            OffloadChoice::On => Self::On,
            OffloadChoice::Off => Self::Off,
            OffloadChoice::Barrier => Self::Barrier,
        }
    }
}

/// Which server sums up lost bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReducerPolicy {
    /// Each server as often as the others.
    Uniform,
    /// By the free bandwidth of the servers' links, where that is known.
    Bandwidth,
}

impl From<ReducerPolicy> for ReducerChoice {
    fn from(policy: ReducerPolicy) -> Self {
        match policy {
            ReducerPolicy::Uniform => Self::Uniform,
            ReducerPolicy::Bandwidth => Self::Bandwidth,
        }
    }
}

impl From<PolicyChoice> for WritePolicy {
    fn from(choice: PolicyChoice) -> Self {
        match choice {
            PolicyChoice::Cost => Self::Cost,
            PolicyChoice::MinReads => Self::MinReads,
            PolicyChoice::ModThreshold => Self::ModThreshold,
            PolicyChoice::AlwaysRmw => Self::AlwaysRmw,
        }
    }
}

/// Whether the array has a write-intent bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BitmapChoice {
    /// On the members.
    Internal,
    /// No bitmap: an unclean start resyncs everything.
    None,
}

pub(crate) fn parse_memory(text: &str) -> Result<u64, String> {
    pinstripe_control::size::memory(text).map(|size| size.0)
}

/// Sizes as clap reads them.
pub(crate) fn parse_size(text: &str) -> Result<u64, BadSize> {
    text.parse().map(|ByteSize(bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn parse(line: &str) -> Result<BenchArgs, clap::Error> {
        Command::try_parse_from(std::iter::once("bench").chain(line.split_whitespace())).map(|c| c.bench)
    }

    #[test]
    fn no_options_give_the_defaults() {
        assert_eq!(format!("{:?}", parse("").unwrap()), format!("{:?}", BenchArgs::defaults()));
    }

    #[test]
    fn the_command_line_of_the_manual_is_understood() {
        let arguments = parse(
            "--level 5 --members 6 --chunk 64K --device mem:1G --shards 1 --pattern sequential --size 4K \
             --reads 0 --depth 32 --seconds 4 --policy always-rmw --cache 0 --bitmap none --limit --json",
        )
        .unwrap();
        assert_eq!((arguments.members, arguments.chunk, arguments.cache), (Some(6), 65536, 0));
        assert_eq!(arguments.devices, [DeviceSpec::Memory(1 << 30)]);
        assert!(arguments.limit && arguments.json && !arguments.force);
    }

    #[test]
    fn sizes_and_percentages_that_make_no_sense_are_refused() {
        for bad in [
            "--lost 1 --rebuild 1",
            "--lost x",
            "--size 4Q",
            "--size K",
            "--reads 101",
            "--device mem:x",
            "--device model:980-pro",
            "--device model:990-pro:1G",
            "--device model:980-pro:x",
            "--seed 0",
            "--level 7",
            "--seconds x",
            "--synthetic x",
            "--synthetic prxy_0 --trace file",
            "--synthetic prxy_0 --size 4K",
            "--synthetic prxy_0 --requests 0",
            "--requests 5",
            "--probe-writes",
            "--through nbd --poll",
            "--through nbd --offload off",
            "--through nbd --reducer uniform",
            "--through nbd --used-up",
            "--through nbd --dhchap-secrets x",
            "--through nbd --nvme-tls-secrets x",
            "--through nbd --client-address ::1",
            "--probe x --size 4K",
            "--probe x --device mem:1G",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn synthetic_traces_have_the_names_of_the_table() {
        for name in ["pangu-a", "pangu-b", "prxy_0", "prn_0", "varmail", "fileserver"] {
            let made = parse(&format!("--synthetic {name} --requests 7 --seed 3")).unwrap();
            let made = made.synthetic().unwrap();
            assert_eq!((made.requests, made.seed), (7, 3));
            let spelled = serde_json::to_value(made).unwrap();
            assert_eq!(spelled["workload"], name);
        }
        assert!(parse("").unwrap().synthetic().is_none());
    }

    #[test]
    fn several_slots_may_be_lost() {
        assert_eq!(parse("--lost 0,3").unwrap().lost, [0, 3]);
        assert_eq!(parse("--rebuild 2 --rate 20M").unwrap().rebuild, Some(2));
    }

    #[test]
    fn paths_are_devices_and_may_be_given_again_and_again() {
        let arguments = parse("--device /dev/a --device b --device mem:4M --device model:x25-e:1M").unwrap();
        let spelled: Vec<String> = arguments.devices.iter().map(ToString::to_string).collect();
        assert_eq!(spelled, ["/dev/a", "b", "mem:4194304", "model:x25-e:1048576"]);
        assert!(arguments.is_virtual() && !parse("").unwrap().is_virtual());
        let paced = parse("--device model:7200rpm:/dev/a --device model:x25-e:./b").unwrap();
        let spelled: Vec<String> = paced.devices.iter().map(ToString::to_string).collect();
        assert_eq!(spelled, ["model:7200rpm:/dev/a", "model:x25-e:./b"]);
        assert!(!paced.is_virtual());
    }
}
