//! The command line: what can be asked for, each value checked as it is read.

mod limit;
mod log;
mod maintenance;
mod record;
mod remote;
mod service;
mod show;
mod sockets;
mod stop;
mod tls;
mod ublk;
mod upgrade;
mod values;

use std::{ffi::OsString, net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use pinstripe_bench::{BitmapChoice, OffloadChoice, PolicyChoice, ReducerPolicy};
use pinstripe_control::{size::ByteSize, text::is_unseen};
use pinstripe_engine::options::JournalMode;
use pinstripe_md::{
    identity::{SetName, Uuid},
    level::Level,
    superblock::MetadataVersion,
};

pub use limit::{LimitArguments, LimitOptions};
pub use log::{LogFormat, LogLevel, LogOptions};
pub use maintenance::{
    CheckArguments, EventsArguments, MonitorArguments, RepairArguments, Since, SyncArguments,
};
pub use record::RecordArguments;
pub use remote::{DiscoverArguments, Offload, RemoteArguments, TargetArguments};
pub use service::{
    AssembleArguments, ConfigAction, ConfigArguments, ConfigCheckArguments, ConfigRamdiskArguments,
    ConfigUnitsArguments, ConfigurationArguments, DaemonArguments, ImportArguments, IncrementalArguments,
    ReleaseArguments, ReloadArguments, StartArguments, StatusArguments, Which,
};
pub use show::{DetailArguments, ListArguments, TopArguments};
pub use sockets::SocketOptions;
pub use stop::StopArguments;
pub use tls::{TlsChoice, TlsClients, TlsOptions};
pub use ublk::{
    UblkAction, UblkArguments, UblkDeleteArguments, UblkExportArguments, UblkNullArguments, UblkNumber,
};
pub use upgrade::{Role, UpgradeArguments};
pub use values::{CpuList, NbdAddress};

/// Parity RAID in user space, with the on-disk format of Linux MD.
///
/// Pinstripe can serve arrays that mdadm made. The kernel can assemble arrays that Pinstripe made.
#[derive(Debug, Parser)]
#[command(name = "pinstripe", version, propagate_version = true, subcommand_required = true)]
#[command(
    after_help = "Exit status: 0 success, 1 failure or mismatches found, 64 wrong usage. Of `detail --test`: 0 fine, 1 degraded, 2 failed, 4 not there."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// The words that we were started with. `cargo demo -- OPTION` is as good as `cargo demo OPTION`: elsewhere
/// cargo wants its `--`.
pub fn words(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<_> = arguments.into_iter().collect();
    if words.get(1..3).is_some_and(|first| first == ["demo", "--"]) {
        words.remove(2);
    }
    words
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a new array of devices or files.
    Create(CreateArguments),
    /// Show what devices hold: the array they belong to, their role in it, or other content.
    Examine(ExamineArguments),
    /// Start a server, in the background, for each array that is configured and isn't served.
    ///
    /// Waits until each server answers. An array with too few members isn't started, nor one whose members
    /// the kernel's md holds. With `run-after` in its configuration, members that are late are waited for.
    Assemble(AssembleArguments),
    /// Start the array that a device belongs to, if that has just completed it; udev calls this.
    ///
    /// Does nothing unless the array is configured, and not with auto = false. To an array that is served
    /// nothing is added.
    Incremental(IncrementalArguments),
    /// Keep the configured arrays served, until it is told to end.
    ///
    /// Starts a server for each array as its members appear, and again if it dies. An array that a person
    /// stops stays stopped until a person starts it. Servers run on when the daemon ends, however it ends,
    /// and the next one finds them; with --stop-arrays it stops them first. SIGHUP reads the configuration
    /// again. Runs in the foreground.
    Daemon(DaemonArguments),
    /// Show the arrays that the daemon keeps served, and why those are not served that are not.
    Status(StatusArguments),
    /// Have the daemon read the configuration again, and show what that changes.
    ///
    /// Servers run on. What a server can't take while it runs counts from its next start on. Where no daemon
    /// runs, servers are told what they can take.
    Reload(ReloadArguments),
    /// Take an array over from mdadm and the kernel: have mdadm leave it alone, stop it, and serve it.
    ///
    /// Everything is looked at first: an array that is in use, in the middle of a reshape, short of
    /// members or of a kind that can't be served is refused, and nothing is changed. What fails later takes
    /// the changes back. The data stays where it is.
    Import(ImportArguments),
    /// Give an array back to mdadm: stop its server, and take back what `import` configured.
    Release(ReleaseArguments),
    /// Check the configuration.
    Config(ConfigArguments),
    /// Erase the MD superblocks of devices that are no longer to be members.
    ///
    /// All devices are checked before any is written. A device in use is refused. Without --force, these are
    /// refused too: a damaged superblock, a journal, a member of an array that was not stopped cleanly, and
    /// one that its array can't do without.
    ZeroSuperblock(ZeroSuperblockArguments),
    /// Assemble an array and serve it over NBD until it is stopped.
    ///
    /// Runs in the foreground and prints one line when it is ready. SIGTERM or SIGINT ends it: requests under
    /// way are finished, and the superblocks are marked clean.
    Serve(Box<ServeArguments>),
    /// Serve block devices and files over NVMe/TCP, each as a namespace of its own, until it is stopped.
    ///
    /// Any NVMe/TCP host can use the namespaces. `serve` can use them as members of an array, by the name
    /// nvme-tcp://HOST:PORT/NQN?nsid=N. Runs in the foreground. SIGTERM or SIGINT ends it.
    Target(Box<TargetArguments>),
    /// Show the subsystems that an NVMe/TCP server offers.
    Discover(DiscoverArguments),
    /// Show the arrays that are served.
    List(ListArguments),
    /// Show what all served arrays do now: what their clients get, members, and syncs.
    ///
    /// Keys: arrows mark an array, Enter shows it alone, Esc shows all again, q ends.
    Top(TopArguments),
    /// Show the state of an array that is served.
    Detail(DetailArguments),
    /// Take a member out of an array that is served.
    Fail(FailArguments),
    /// Put a device into an array that is served: as a member that is rebuilt, or as a spare.
    ///
    /// A former member gets only what was written while it was missing, if the bitmap still records that. A
    /// device that isn't needed now waits as a spare. A spare takes the slot of a member that fails, without
    /// a command.
    Add(AddArguments),
    /// Take a failed device or a spare out of an array that is served.
    Remove(RemoveArguments),
    /// Replace a member that stays in use until its copy is whole.
    Replace(ReplaceArguments),
    /// Change the consistency policy of an array that is served: a bitmap, a log, or neither.
    Grow(GrowArguments),
    /// Read the whole array and compare data with parity.
    ///
    /// Counts mismatched sectors (512 bytes) as MD's mismatch_cnt does. The exit status is 1 if there are
    /// any.
    Check(CheckArguments),
    /// Read the whole array, compare data with parity, and correct what does not match.
    ///
    /// Without --locate, parity is made from data, as MD's repair does. With --locate, on level 6, both
    /// parities are compared with the data. If one wrong member explains the mismatch, that member is
    /// corrected, be it data or parity. All other mismatches are left as they are, and the exit status is 1.
    Repair(RepairArguments),
    /// Pause, resume or stop resync, recovery, check and repair, or set their speed.
    Sync(SyncArguments),
    /// Have another version of this program serve an array, without an end for its clients.
    ///
    /// The server finishes what is under way, and becomes the other program: the same process, with the same
    /// sockets, connections of NBD and NVMe/TCP, ublk device and locks on the members. Clients see a pause,
    /// as long as the slowest request under way. Those of vhost-user, and of NBD by TLS, connect again. If
    /// the other program can't serve the array, the one before goes on. FUSE mounts are refused.
    Upgrade(UpgradeArguments),
    /// Limit what an array's clients may ask for in a second, or show the limits.
    Limit(LimitArguments),
    /// Record what an array's clients ask for, as a trace that `bench --trace` and fio replay.
    ///
    /// Writes an iolog of fio, version 3: times, places and sizes, no data. Ends with Ctrl-C, after
    /// --seconds, or with the server. An array has one recording at a time, and clients never wait for it:
    /// requests that come faster than they are fetched are counted as lost. Writes of zeroes and FUA, which
    /// an iolog doesn't have, are counted, too.
    Record(RecordArguments),
    /// Report the events of arrays: as lines, to the system's log, or to a program.
    ///
    /// Runs until it is ended. The events are mdadm's (Fail, DegradedArray, RebuildStarted, Rebuild20 to
    /// Rebuild80, RebuildFinished, SpareActive, SparesMissing, DeviceDisappeared, NewArray), and
    /// MismatchFound, ArrayFailed, MemberBack, NotTakenBack, MoveSpare and ServerSilent.
    Monitor(MonitorArguments),
    /// Show what has happened to arrays, as the daemon has kept it.
    ///
    /// Events of the arrays' servers, starts and ends of servers, and alerts when they began and were over;
    /// the oldest first. What a person should have seen to has a `!`.
    Events(EventsArguments),
    /// Stop an array that is served, and wait until it has stopped.
    ///
    /// Refused while clients are connected; `detail` lists them. SIGTERM ends the server in any case.
    Stop(StopArguments),
    /// Show or delete block devices of the kernel's ublk driver (`serve --ublk`).
    Ublk(UblkArguments),
    /// Play the life of a RAID5 on six files: write, lose a member under load, rebuild, check, stop.
    ///
    /// With --disaggregated, the array is a RAID6 on four NVMe/TCP servers that compute its parity. That demo
    /// shows a partition, a lost server, spares from the pool, and the bytes on every link.
    Demo(DemoArguments),
    /// Measure the engine on memory, files or devices. Every run ends with a check of all that was written.
    Bench(Box<pinstripe_bench::BenchArgs>),
    /// Predict how fast an array of such drives would be, how long a rebuild takes and how likely a loss is.
    ///
    /// The engine runs over models of the drives under virtual time, which touches no device. The probability
    /// of loss is by published formulas; each assumption is printed.
    Plan(Box<pinstripe_bench::PlanArgs>),
    /// Print completions for a shell.
    Completions(CompletionsArguments),
    /// Print a manual page, or write one for every command.
    Man(ManArguments),
}

/// The shape of a new array, but for its level.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Shape of the new array")]
pub struct ShapeArguments {
    /// Chunk: consecutive bytes on one member, a power of two from 4K to 1M [default: 64K]
    #[arg(long, value_name = "SIZE", value_parser = chunk)]
    pub chunk: Option<ByteSize>,
    /// Layout: where parity lies, by mdadm's names [default: left-symmetric]
    #[arg(long, value_name = "NAME")]
    pub layout: Option<String>,
    /// What keeps the array consistent over a crash [default: bitmap, resync for level 0]
    #[arg(long, value_enum, value_name = "POLICY")]
    pub consistency_policy: Option<ConsistencyChoice>,
    /// Whether the members carry a write-intent bitmap; the same as --consistency-policy bitmap or resync
    #[arg(long, value_enum, value_name = "WHERE")]
    pub bitmap: Option<BitmapChoice>,
    /// Bytes that one bit of the bitmap covers [default: by the array's size]
    #[arg(long, value_name = "SIZE")]
    pub bitmap_chunk: Option<ByteSize>,
    /// The array's name, at most 32 bytes [default: a part of its uuid]
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub name: Option<SetName>,
    /// Skip the initial resync. Use it only if parity matches the data already
    #[arg(long)]
    pub assume_clean: bool,
    /// Bytes to use of each member [default: all of the smallest member]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<ByteSize>,
    /// Version of the metadata: 1.0, 1.1 or 1.2 [default: 1.2]
    #[arg(long, value_name = "VERSION", value_parser = metadata)]
    pub metadata: Option<MetadataVersion>,
}

impl ShapeArguments {
    /// The first option that was given, for a complaint.
    pub fn first_given(&self) -> Option<&'static str> {
        [
            (self.chunk.is_some(), "--chunk"),
            (self.layout.is_some(), "--layout"),
            (self.consistency_policy.is_some(), "--consistency-policy"),
            (self.bitmap.is_some(), "--bitmap"),
            (self.bitmap_chunk.is_some(), "--bitmap-chunk"),
            (self.name.is_some(), "--name"),
            (self.assume_clean, "--assume-clean"),
            (self.size.is_some(), "--size"),
            (self.metadata.is_some(), "--metadata"),
        ]
        .iter()
        .find_map(|(given, option)| given.then_some(*option))
    }
}

#[derive(Debug, Args)]
pub struct CreateArguments {
    /// RAID level: 0, 4, 5 or 6
    #[arg(long, short, value_name = "LEVEL", value_parser = level)]
    pub level: Level,
    /// The device that holds all parity (level 4); it becomes the last member
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub parity: Option<PathBuf>,
    /// Journal device, instead of a bitmap (levels 4, 5 and 6). Every write goes to it first, so that no
    /// crash leaves a stripe half written. The device must keep its data over a power loss. Without it the
    /// array is read-only
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub write_journal: Option<PathBuf>,
    /// Overwrite what the devices hold
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub remote: RemoteArguments,
    /// Print the new array as JSON
    #[arg(long)]
    pub json: bool,
    /// Block devices or files, in the order of their slots. Names in /dev/disk/by-id are best: they don't
    /// change
    #[arg(required = true, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub devices: Vec<PathBuf>,
    // Last, for what follows would stand under its heading.
    #[command(flatten)]
    pub shape: ShapeArguments,
}

#[derive(Debug, Args)]
pub struct ExamineArguments {
    /// Search for arrays, where the configuration says or on all block devices, and print an entry of the
    /// configuration for each
    #[arg(long, conflicts_with = "devices")]
    pub scan: bool,
    #[command(flatten)]
    pub configuration: ConfigurationArguments,
    #[command(flatten)]
    pub remote: RemoteArguments,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Block devices or files
    #[arg(required_unless_present = "scan", value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub devices: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ZeroSuperblockArguments {
    /// Erase superblocks that are damaged or may still be needed, too
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub remote: RemoteArguments,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Block devices or files
    #[arg(required = true, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub devices: Vec<PathBuf>,
}

#[derive(Clone, Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct ServeArguments {
    /// Serve NBD on unix:PATH or tcp:ADDRESS:PORT. Can be given several times [default: a unix socket beside
    /// the control socket]
    #[arg(long, value_name = "ADDRESS")]
    pub nbd: Vec<NbdAddress>,
    #[command(flatten)]
    pub sockets: SocketOptions,
    /// Path of the control socket [default: NAME.sock in /run/pinstripe; for users other than root in
    /// $XDG_RUNTIME_DIR/pinstripe, if that is set]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub control: Option<PathBuf>,
    /// What the sockets, the log and the names in /dev/pinstripe begin with, instead of the array's name:
    /// where several arrays have one name, all but one are started so
    #[arg(long, value_name = "NAME")]
    pub called: Option<String>,
    /// Threads that serve [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub shards: Option<u16>,
    /// CPUs to run the shards on, such as 0-3,8
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// The array that is meant. Members of another one are refused, and of a member with superblocks of
    /// several arrays the one of this array counts
    #[arg(long, value_name = "UUID", conflicts_with = "create")]
    pub uuid: Option<Uuid>,
    /// Refuse writes, and change nothing on the members
    #[arg(long)]
    pub read_only: bool,
    /// Assemble even if that may lose data: an array that is dirty and degraded, members that missed writes,
    /// or a takeover from a host that might still write to some of them
    #[arg(long)]
    pub force: bool,
    /// Start without members that were there at the last start. Those are out of date then, until `add`
    /// rebuilds them. Members that were missing already don't need this option
    #[arg(long)]
    pub run: bool,
    /// Seconds to wait for named members that don't exist yet. Then the array starts without them, as with
    /// --run
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub run_after: Option<u32>,
    /// Take members on NVMe/TCP servers over from another host that uses them. That host can't write to them
    /// any more, and its array stops. All of these servers must have our offload protocol
    #[arg(long)]
    pub takeover: bool,
    /// Whether the members' servers compute parity, where they can. `barrier` waits for each stage; it is for
    /// measurements
    #[arg(long, value_enum, value_name = "HOW", default_value_t = OffloadChoice::On)]
    pub offload: OffloadChoice,
    /// How to choose the server that reconstructs the data of a missing member
    #[arg(long, value_enum, value_name = "HOW", default_value_t = ReducerPolicy::Bandwidth)]
    pub reducer: ReducerPolicy,
    /// How a partial write of a stripe updates parity
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = PolicyChoice::Cost)]
    pub policy: PolicyChoice,
    /// Memory for the cache of parity, in bytes. 0 turns it off
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = pinstripe_control::size::memory)]
    pub cache: ByteSize,
    /// Memory that the server may take in all, at least 64 MiB beside the cache, the program and 40 MiB for
    /// each shard, 80 MiB with TLS. Clients wait where there is none [default: 1 GiB for what they ask and
    /// get, 1 GiB to compute parity]
    #[arg(long, value_name = "SIZE", value_parser = pinstripe_control::size::memory)]
    pub memory_max: Option<ByteSize>,
    /// Seconds that a member may take for a request. After that, it is dropped. 0 means no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub member_timeout: u32,
    /// What the array's logical block is at least, in bytes, also without the members because of which it was
    /// so large
    #[arg(long, value_name = "BYTES", default_value_t = 512, value_parser = values::logical_block)]
    pub logical_block: u32,
    /// When a write to an array with a journal is acknowledged
    #[arg(long, value_enum, value_name = "MODE", default_value_t = JournalModeChoice::WriteThrough)]
    pub journal_mode: JournalModeChoice,
    /// KiB per second of each member that resync, rebuild, check and repair get at least, under any load
    /// [default: 10000]
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u64).range(1..))]
    pub sync_speed_min: Option<u64>,
    /// KiB per second of each member that resync, rebuild, check and repair get at most [default: 2000000]
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u64).range(1..))]
    pub sync_speed_max: Option<u64>,
    /// Corrected read errors after which a member is dropped, if the array keeps its data without it. The
    /// count is halved every hour
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub max_read_errors: u32,
    #[command(flatten)]
    pub limits: LimitOptions,
    /// Server of spares, HOST:PORT. When a slot stays empty, an empty namespace of this NVMe/TCP server takes
    /// it. Can be given several times: servers are tried in this order
    #[arg(long, value_name = "HOST:PORT")]
    pub spare_pool: Vec<String>,
    /// Seconds that an empty slot waits for its own member before a spare of the pool takes it
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "spare_pool")]
    pub spare_pool_delay: u32,
    /// Serve the array over NVMe/TCP too, as namespace 1: ADDRESS:PORT
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub nvme_tcp: Option<SocketAddr>,
    /// Name of the NVMe subsystem [default: nqn.2014-08.org.nvmexpress:uuid: and the array's uuid]
    #[arg(long, value_name = "NQN", requires = "nvme_tcp")]
    pub nqn: Option<String>,
    /// Serve NVMe/TCP only to hosts that authenticate. The file has lines HOST-NQN HOST-SECRET
    /// [CONTROLLER-SECRET], and must be readable by its owner only. With this, --nvme-tcp can listen on any
    /// address
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "nvme_tcp")]
    pub dhchap_hosts: Option<PathBuf>,
    /// Serve NVMe/TCP only to hosts that speak TLS 1.3 with a key of this file. It has lines HOST-NQN KEY,
    /// with keys as `nvme gen-tls-key` writes them, and must be readable by its owner only. With this,
    /// --nvme-tcp can listen on any address
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "nvme_tcp")]
    pub nvme_tls_hosts: Option<PathBuf>,
    /// Serve the array as the block device /dev/ublkbID too, by the kernel's ublk driver. Without ID: the one
    /// that a dead server of the array has left, else the next free one
    #[arg(long, value_name = "ID", num_args = 0..=1, require_equals = true, default_missing_value = "any")]
    pub ublk: Option<UblkNumber>,
    /// Serve the array to a virtual machine too, as a vhost-user-blk device on this unix socket, which only
    /// this user may use unless --socket-mode, --socket-owner or --socket-group says otherwise. QEMU must
    /// share the machine's memory (share=on)
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub vhost_user: Option<PathBuf>,
    /// Serve the array as this file too, by the kernel's FUSE. It is mounted over an empty or a new file, for
    /// root
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub fuse: Option<PathBuf>,
    /// Poll reads and writes of members instead of waiting for interrupts. Members of this machine must be
    /// NVMe devices with poll queues: kernel option nvme.poll_queues=N. A shard uses its CPU whole while such
    /// requests are under way
    #[arg(long)]
    pub poll: bool,
    #[command(flatten)]
    pub remote: RemoteArguments,
    #[command(flatten)]
    pub tls: TlsOptions,
    /// Let --nbd tcp: without TLS for certified clients and --nvme-tcp without --dhchap-hosts or
    /// --nvme-tls-hosts listen on any address, and give no warning on loopback addresses. Every program that
    /// reaches the port can read and write everything
    #[arg(long, visible_alias = "allow-unauthenticated")]
    pub allow_remote: bool,
    /// Make a new array of memory devices (mem:SIZE) first. Its data is lost when the server ends
    #[arg(long, requires = "level")]
    pub create: bool,
    /// RAID level of the new array: 0, 4, 5 or 6
    #[arg(long, short, value_name = "LEVEL", value_parser = level, requires = "create")]
    pub level: Option<Level>,
    #[command(flatten)]
    pub log: LogOptions,
    /// Print what happens as JSON lines on standard output. The log is then written only if --log-format is
    /// given
    #[arg(long)]
    pub json: bool,
    /// Leave the session of the terminal; what `assemble` starts does
    #[arg(long, hide = true)]
    pub own_session: bool,
    /// Refuse devices of another array than this one; what `assemble` says, as devices may be called
    /// otherwise by the time that they are opened. Unlike --uuid, it decides nothing of a device with
    /// superblocks of several arrays
    #[arg(long, hide = true, value_name = "UUID", conflicts_with = "create")]
    pub expect_uuid: Option<Uuid>,
    /// Look for members also where devices have joined the array under earlier servers; what `assemble`
    /// starts does
    #[arg(long, hide = true)]
    pub joined: bool,
    /// Take the place of the server that is this process until now; `upgrade` has it so
    #[arg(long, hide = true, value_name = "ROLE")]
    pub succession: Option<Role>,
    /// Members, in any order: block devices, files, NVMe generic devices (/dev/ngXnY), pmem:PATH (a file or
    /// device DAX), and with --create mem:SIZE. Names in /dev/disk/by-id are best: they don't change
    #[arg(required = true, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub devices: Vec<PathBuf>,
    // Last, for what follows would stand under its heading.
    #[command(flatten)]
    pub shape: ShapeArguments,
}

#[derive(Debug, Args)]
pub struct ArrayArguments {
    /// The array's name or UUID, or the path of its control socket
    #[arg(value_name = "ARRAY", value_hint = ValueHint::FilePath)]
    pub array: String,
}

#[derive(Debug, Args)]
pub struct FailArguments {
    #[command(flatten)]
    pub array: ArrayArguments,
    /// The member: its slot or its device, as `detail` shows them, or `journal`
    #[arg(value_name = "SLOT|DEVICE|journal", value_hint = ValueHint::FilePath)]
    pub what: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AddArguments {
    #[command(flatten)]
    pub array: ArrayArguments,
    /// Block device or file
    #[arg(value_hint = ValueHint::FilePath)]
    pub device: PathBuf,
    /// Overwrite what the device holds
    #[arg(long)]
    pub force: bool,
    /// Wait until the rebuild has ended
    #[arg(long)]
    pub wait: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RemoveArguments {
    #[command(flatten)]
    pub array: ArrayArguments,
    /// The failed device or spare, the slot of a failed one, or `failed`: all that have failed
    #[arg(value_name = "SLOT|DEVICE|failed", value_hint = ValueHint::FilePath)]
    pub what: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ReplaceArguments {
    #[command(flatten)]
    pub array: ArrayArguments,
    /// The member: its slot or its device, as `detail` shows them
    #[arg(value_name = "SLOT|DEVICE", value_hint = ValueHint::FilePath)]
    pub what: PathBuf,
    /// Block device or file that takes the member's slot [default: a spare]
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub with: Option<PathBuf>,
    /// Overwrite what the device holds
    #[arg(long, requires = "with")]
    pub force: bool,
    /// Wait until the copy is whole and the device has taken the slot
    #[arg(long)]
    pub wait: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct GrowArguments {
    #[command(flatten)]
    pub array: ArrayArguments,
    /// The new consistency policy: what keeps the array consistent over a crash
    #[arg(
        long,
        value_enum,
        value_name = "POLICY",
        required_unless_present_any = ["bitmap", "journal_mode"],
        conflicts_with_all = ["bitmap", "journal_mode"]
    )]
    pub consistency_policy: Option<ConsistencyChoice>,
    /// When a write to an array with a journal is acknowledged. Holds until the array is stopped
    #[arg(long, value_enum, value_name = "MODE", conflicts_with = "bitmap")]
    pub journal_mode: Option<JournalModeChoice>,
    /// Whether the members carry a write-intent bitmap from now on
    #[arg(long, value_enum, value_name = "WHERE")]
    pub bitmap: Option<BitmapChoice>,
    /// Bytes that one bit of the bitmap covers [default: by the array's size]
    #[arg(long, value_name = "SIZE", requires = "bitmap")]
    pub bitmap_chunk: Option<ByteSize>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Where a write of an array with a journal is acknowledged from; MD's `journal_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum JournalModeChoice {
    /// When the members have it. The journal only closes the write hole
    WriteThrough,
    /// When the journal has it. If the journal is lost, so are writes that only it has. A degraded array uses
    /// write-through
    WriteBack,
}

impl From<JournalModeChoice> for JournalMode {
    fn from(choice: JournalModeChoice) -> Self {
        match choice {
            JournalModeChoice::WriteThrough => Self::WriteThrough,
            JournalModeChoice::WriteBack => Self::WriteBack,
        }
    }
}

/// What keeps an array consistent over a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConsistencyChoice {
    /// Nothing: a start after a crash resyncs the whole array
    Resync,
    /// A write-intent bitmap: a start after a crash resyncs only what was being written
    Bitmap,
    /// MD's partial parity log (level 5): a start after a crash replays it, even if a member is missing
    Ppl,
    /// A log for both parities (level 6). Linux has no such log: it assembles the array when it is clean, and
    /// refuses it when it is dirty
    DoubleParityLog,
}

#[derive(Debug, Args)]
pub struct DemoArguments {
    /// Four servers on loopback ports, two members on each, and a client
    #[arg(long)]
    pub disaggregated: bool,
    /// Bytes of each member [default: 64M, with --disaggregated 12M]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<ByteSize>,
    /// Folder for the demo's files [default: the system's folder for temporary files]
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub folder: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell
    pub shell: Shell,
}

#[derive(Debug, Args)]
pub struct ManArguments {
    /// Print the page of this command [default: the page of pinstripe itself]
    #[arg(conflicts_with = "folder")]
    pub command: Option<String>,
    /// Write pinstripe.1 and one page for every command into this folder, and print nothing
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub folder: Option<PathBuf>,
}

const CHUNK_MIN: u64 = 4 << 10;
const CHUNK_MAX: u64 = 1 << 20;

fn chunk(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|error: pinstripe_control::size::BadSize| error.to_string())?;
    if !size.0.is_power_of_two() || !(CHUNK_MIN..=CHUNK_MAX).contains(&size.0) {
        return Err(format!("a chunk of {size}: a power of two from 4K to 1M is needed"));
    }
    Ok(size)
}

fn level(text: &str) -> Result<Level, String> {
    match text.parse() {
        Ok(level @ (Level::Raid0 | Level::Raid4 | Level::Raid5 | Level::Raid6)) => Ok(level),
        _ => Err("levels 0, 4, 5 and 6 can be made".to_owned()),
    }
}

fn metadata(text: &str) -> Result<MetadataVersion, String> {
    [MetadataVersion::V1_0, MetadataVersion::V1_1, MetadataVersion::V1_2]
        .into_iter()
        .find(|version| version.name() == text)
        .ok_or_else(|| "versions 1.0, 1.1 and 1.2 can be made".to_owned())
}

/// The name stands in paths of sockets and of /dev/md, so it must be one component of a path.
fn name(text: &str) -> Result<SetName, String> {
    let short = text.split_once(':').map_or(text, |(_, name)| name);
    if short.is_empty() || short.starts_with('.') || text.contains(|c: char| c == '/' || c.is_control()) {
        return Err("a name has no '/', no control characters, and doesn't begin with '.'".to_owned());
    }
    if let Some(unseen) = text.chars().find(|c| is_unseen(*c)) {
        return Err(format!("it has the character {}, which can't be seen", unseen.escape_unicode()));
    }
    text.parse().map_err(|error: pinstripe_md::identity::BadSetName| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use pinstripe_engine::plan::WritePolicy;

    use super::*;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Cli::command().debug_assert();
    }

    /// The documents with commands, but for records of what was run once: name and text. A drawing of
    /// docs/lab.md has words like a command's.
    fn documents() -> Vec<(String, String)> {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let of_folder = |folder: &str| -> Vec<String> {
            let entries = std::fs::read_dir(format!("{root}/{folder}")).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let is_document = |name: &String| name.rsplit_once('.').is_some_and(|(_, kind)| kind == "md");
            names.filter(is_document).map(|name| format!("{folder}/{name}")).collect()
        };
        let at_root = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(str::to_owned);
        let names = at_root.into_iter().chain(of_folder("docs")).chain(of_folder("docs/decisions"));
        let read = |name: String| {
            let text = std::fs::read_to_string(format!("{root}/{name}")).unwrap();
            (name, text)
        };
        names.filter(|name| name != "docs/lab.md").map(read).collect()
    }

    /// The command of a line, if it has one: behind a prompt or none, before a comment and what a shell does
    /// with it.
    fn command_of(line: &str) -> Option<String> {
        let line = line.trim_start();
        let line = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")).unwrap_or(line);
        let command = line.split(" #").next()?.split(['&', '|', '>']).next()?;
        let command = command.replace("cargo demo", "pinstripe demo").replace(['"', '\''], "");
        command.starts_with("pinstripe ").then(|| command.replace("...", "/dev/sda"))
    }

    #[test]
    fn the_documents_commands_are_ones_that_we_understand() {
        let mut seen = 0;
        for (document, text) in documents() {
            for line in text.replace("\\\n", " ").lines() {
                if let Some(command) = command_of(line) {
                    let parsed = Cli::try_parse_from(words(command.split_whitespace().map(OsString::from)));
                    assert!(parsed.is_ok(), "{document}: {line}: {}", parsed.unwrap_err());
                    seen += 1;
                }
            }
        }
        assert!(seen > 70, "only {seen} commands were found");
        for line in
            ["    pinstripe list", "# pinstripe list", "$ pinstripe list  # all", "pinstripe list | wc"]
        {
            assert_eq!(command_of(line).as_deref().map(str::trim), Some("pinstripe list"), "{line}");
        }
    }

    #[test]
    fn the_documents_name_options_that_there_are() {
        let mut cli = Cli::command();
        cli.build();
        let mut seen = 0;
        for (document, text) in documents() {
            // Outside of fences; a span may be cut by the end of a line.
            let prose: String = text.split("```").step_by(2).collect::<String>().replace('\n', " ");
            let spans = prose.split('`').skip(1).step_by(2);
            for span in spans.filter(|span| span.starts_with("pinstripe ")) {
                seen += 1;
                let mut words = span.split_whitespace().skip(1).peekable();
                let mut subcommand = cli.find_subcommand(words.next().unwrap());
                assert!(subcommand.is_some(), "{document}: {span}: no such command");
                // Of `ublk delete`, the latter has the options.
                while let Some(inner) = words.peek().and_then(|word| subcommand?.find_subcommand(word)) {
                    (subcommand, _) = (Some(inner), words.next());
                }
                for option in words.filter_map(|word| word.trim_start_matches('[').strip_prefix("--")) {
                    let option = option.split(['=', ']']).next();
                    let mut known = subcommand.unwrap().get_arguments();
                    assert!(known.any(|known| known.get_long() == option), "{document}: {span}");
                }
            }
        }
        assert!(seen > 150, "only {seen} commands were found");
    }

    #[test]
    fn a_policy_is_the_engines_of_the_same_name() {
        for choice in PolicyChoice::value_variants() {
            assert_eq!(format!("{choice:?}"), format!("{:?}", WritePolicy::from(*choice)));
        }
    }

    #[test]
    fn a_chunk_is_a_power_of_two_from_4k_to_1m() {
        assert_eq!(chunk("64K"), Ok(ByteSize(65536)));
        for bad in ["48K", "2K", "2M", "0", "x"] {
            assert!(chunk(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_is_one_component_of_a_path() {
        assert!(name("data").is_ok() && name("host:data").is_ok());
        for bad in [
            "",
            "a/b",
            "host:",
            "host:..",
            ".",
            "a\nb",
            "da\u{200b}ta",
            "\u{202e}atad",
            "x".repeat(33).as_str(),
        ] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_ublk_device_has_a_number_or_gets_one() {
        let serve = |option: &str| {
            let cli = Cli::try_parse_from(["pinstripe", "serve", option, "/dev/sda"]).ok()?;
            if let Command::Serve(arguments) = cli.command { arguments.ublk } else { None }
        };
        assert_eq!(serve("--ublk"), Some(UblkNumber::Any));
        assert_eq!(serve("--ublk=7"), Some(UblkNumber::Given(7)));
        for bad in ["--ublk=", "--ublk=-1", "--ublk=1048576", "--ublk=x", "--json"] {
            assert_eq!(serve(bad), None, "{bad}");
        }
    }

    #[test]
    fn addresses_and_cpus_are_read() {
        assert_eq!("unix:/run/a:b".parse(), Ok(NbdAddress::Unix("/run/a:b".into())));
        assert_eq!("tcp:127.0.0.1:10809".parse(), Ok(NbdAddress::Tcp(([127, 0, 0, 1], 10809).into())));
        assert!("tcp:[::1]:10809".parse::<NbdAddress>().is_ok());
        for bad in ["", "unix:", "tcp:10809", "tcp:127.0.0.1", "/run/x"] {
            assert!(bad.parse::<NbdAddress>().is_err(), "{bad}");
        }
        assert_eq!("0-2,8".parse(), Ok(CpuList(vec![0, 1, 2, 8])));
        for bad in ["", "3-1", "a", "0-99999999999", "1,,2"] {
            assert!(bad.parse::<CpuList>().is_err(), "{bad}");
        }
    }
}
