//! What is asked of commands that go by the configuration.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use pinstripe_md::identity::Uuid;

use super::LogOptions;

/// Where the configuration is.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfigurationArguments {
    /// The configuration's main file; files in conf.d beside it are read, too [default: $PINSTRIPE_CONFIG, or
    /// /etc/pinstripe/pinstripe.toml]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ConfigArguments {
    #[command(subcommand)]
    pub action: ConfigAction,
}

#[derive(Debug, Subcommand)]
pub enum ConfigAction {
    /// Read the configuration, and say that it is OK, or all errors with file and line.
    Check(ConfigCheckArguments),
    /// Write for systemd which units serve the configured arrays; the package's generator runs this.
    ///
    /// Each array is served by the unit pinstripe@NAME.service. Those with auto = false are not started at
    /// boot. After a change of the configuration, `systemctl daemon-reload` has this run again.
    Units(ConfigUnitsArguments),
    /// Print what has mdadm in the initial ramdisk leave the configured arrays and the devices of targets
    /// alone; the package's hook of initramfs-tools runs this.
    ///
    /// These are lines for mdadm.conf, and rules of udev if there are targets. What of the configuration the
    /// kernel has, and something uses, is left out: the root file system may be on it.
    Ramdisk(ConfigRamdiskArguments),
}

#[derive(Debug, Args)]
pub struct ConfigCheckArguments {
    /// The main file; files in conf.d beside it are read, too [default: $PINSTRIPE_CONFIG, or
    /// /etc/pinstripe/pinstripe.toml]
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ConfigRamdiskArguments {
    #[command(flatten)]
    pub configuration: ConfigurationArguments,
    /// Have the initial ramdisks of all kernels made anew if they say something else, while neither apt nor
    /// dpkg may make them
    #[arg(long, conflicts_with_all = ["rules", "file"])]
    pub update: bool,
    /// Print the rules of udev alone
    #[arg(long, conflicts_with = "file")]
    pub rules: bool,
    /// mdadm's configuration: print it with the lines for it, and without those of these arrays
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ConfigUnitsArguments {
    #[command(flatten)]
    pub configuration: ConfigurationArguments,
    /// Where the generator is told to write
    #[arg(value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct DaemonArguments {
    #[command(flatten)]
    pub configuration: ConfigurationArguments,
    /// Start no server: something else does, such as units of systemd. Arrays that are served are checked,
    /// watched and told of
    #[arg(long, conflicts_with = "stop_arrays")]
    pub no_start: bool,
    /// When the daemon is told to end (SIGTERM, SIGINT), stop all arrays first, whatever clients they have,
    /// as a container must
    #[arg(long)]
    pub stop_arrays: bool,
    /// Serve the page, which shows all arrays to a browser, on this address with a port, such as
    /// 127.0.0.1:9661. Without TLS it must be a loopback one. Its token is in web.token beside the control
    /// sockets, unless [web] of the configuration names another file
    #[arg(long, value_name = "ADDRESS", value_parser = pinstripe_config::web_address)]
    pub web: Option<std::net::SocketAddr>,
    /// Serve the page over TLS (https), with the files server-cert.pem and server-key.pem of this folder. New
    /// files are used without a restart. Comes before tls-certificates in [web] of the configuration
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub web_tls: Option<PathBuf>,
    /// Have alerts that mail and a program get sent through this socket, by `pinstripe daemon --send-alert`
    /// that a service manager starts for each connection. The package's unit does: what the daemon starts
    /// itself has no more rights than the daemon, and mail programs need more
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    pub alerts_by: Option<PathBuf>,
    /// Send the one alert that a daemon gives on standard input, as the configuration says, and end. For the
    /// package's pinstripe-alert@.service
    #[arg(long, conflicts_with_all = ["no_start", "stop_arrays", "web", "web_tls", "alerts_by", "json"])]
    pub send_alert: bool,
    /// Send a test alert (`raised Test test`) by each way that [alerts] in the configuration gives, say what
    /// came of it, and end. With --alerts-by as the package's daemon does: /run/pinstripe-alert.sock
    #[arg(long, conflicts_with_all = ["no_start", "stop_arrays", "web", "web_tls", "send_alert", "json"])]
    pub test_alert: bool,
    #[command(flatten)]
    pub log: LogOptions,
    /// Print what happens as JSON lines on standard output. The log is then written only if --log-format is
    /// given
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct StatusArguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ReloadArguments {
    /// Only tell the servers of these arrays, by name or UUID as the configuration has them, what they take
    /// while they run; the daemon isn't asked
    #[arg(value_name = "ARRAY")]
    pub arrays: Vec<String>,
    #[command(flatten)]
    pub configuration: ConfigurationArguments,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How servers are started.
#[derive(Debug, Args)]
pub struct StartArguments {
    #[command(flatten)]
    pub configuration: ConfigurationArguments,
    /// Seconds that a server may take until it answers. It goes on starting after that
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub timeout: u32,
    /// Say what would be started, and start nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AssembleArguments {
    #[command(flatten)]
    pub which: Which,
    /// Become the server of one array, in the foreground, as a service manager wants it. The array must have
    /// an [[array]], unless [scan] says `assemble = "all"`. Waits --timeout seconds for enough members. The
    /// log goes to standard output and standard error
    #[arg(long, conflicts_with_all = ["scan", "dry_run", "json"])]
    pub foreground: bool,
    /// Start one array without members that are late, if it can do without them, this once
    #[arg(long, conflicts_with_all = ["scan", "foreground"])]
    pub run: bool,
    #[command(flatten)]
    pub start: StartArguments,
}

/// Which arrays are meant.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Which {
    /// All arrays of the configuration but those with auto = false, and with `assemble = "all"` in [scan]
    /// also all others that are found
    #[arg(long)]
    pub scan: bool,
    /// The array with this UUID, whether the configuration has it or not
    #[arg(long, value_name = "UUID")]
    pub uuid: Option<Uuid>,
    /// The array with this name or UUID, whether the configuration has it or not
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

#[derive(Debug, Args)]
pub struct ImportArguments {
    /// The array: its UUID or name, or the path, with a slash, of the kernel's device (/dev/md0) or a member
    pub array: String,
    #[command(flatten)]
    pub start: StartArguments,
    /// mdadm's configuration [default: /etc/mdadm/mdadm.conf, or /etc/mdadm.conf]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub mdadm_conf: Option<PathBuf>,
    /// Configure the array, and don't start a server for it
    #[arg(long)]
    pub no_start: bool,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct ReleaseArguments {
    /// The array: its UUID or name, or the path, with a slash, of a member
    pub array: String,
    #[command(flatten)]
    pub configuration: ConfigurationArguments,
    /// mdadm's configuration [default: /etc/mdadm/mdadm.conf, or /etc/mdadm.conf]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub mdadm_conf: Option<PathBuf>,
    /// Even if clients are connected, or the kernel will have to resync the array
    #[arg(long)]
    pub force: bool,
    /// Have mdadm assemble it then
    #[arg(long)]
    pub assemble: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct IncrementalArguments {
    #[command(flatten)]
    pub start: StartArguments,
    /// Start nothing, and print as lines KEY=VALUE what udev's rules want to know. PINSTRIPE_ARRAY is the
    /// UUID of the array that the device belongs to, if it is none for mdadm. PINSTRIPE_UNIT is its unit of
    /// systemd
    #[arg(long, conflicts_with_all = ["dry_run", "json"])]
    pub export: bool,
    /// The device that has appeared
    #[arg(value_hint = ValueHint::FilePath)]
    pub device: PathBuf,
}
