//! `pinstripe serve`: from devices to NBD clients, until it is told to stop.
//!
//! ```text
//!   shard 0    signals, the control socket, the listeners, the array's home
//!   each shard a volume of the array and an NBD server; connections go to the shards in turn
//! ```
//!
//! SIGTERM ends the start too, at any moment: to the devices that is as if the process had been killed, and
//! by then it has acknowledged nothing.
//!
//! The start changes nothing until everything stands: devices are opened and locked, then the sockets are
//! bound, then the array is assembled. The end goes the other way: no more connections, what is in flight is
//! finished, the superblocks are marked clean, the devices are closed, and then the calls that asked for the
//! end are answered.

mod clients;
mod control;
mod devices;
mod grow;
mod journal;
mod names;
mod nvme;
mod pool;
mod reconnect;
mod report;
mod service;
mod shards;
mod sockets;
mod stopping;
mod upkeep;

use std::{path::PathBuf, pin::pin, rc::Rc, sync::Arc};

use pinstripe_engine::{
    array::Array, assembly::AssembleError, maintenance::SyncSpeed, offload::fence::FenceError,
    options::ArrayOptions,
};
use pinstripe_runtime::{
    ShardHandle,
    shard::{self, JoinHandle},
    uring::{self, Connection, Context, Listener, RuntimeConfig, blocking},
};
use serde_json::json;

use self::{
    clients::Clients, control::Controller, devices::Members, journal::Journal, pool::Pool,
    reconnect::Reconnector, sockets::Sockets, stopping::Stopping,
};
use crate::{
    accept::{accept, in_turn},
    command_line::{NbdAddress, ServeArguments},
    create::Shape,
    ending::{ordered, until_ordered},
    failure::Failure,
    first_of::{First, first_of},
    limits, member, nvme_server,
    output::printable,
};
use pinstripe_bench::size::ByteSize;

/// Time that connections get for their last replies when the server stops.
const GRACE_NANOSECONDS: u64 = 5_000_000_000;

pub fn run(arguments: ServeArguments) -> Result<(), Failure> {
    let plan = Plan::new(arguments)?;
    let config = plan.runtime();
    uring::run(&config, move |context| serve(context, plan))?
}

/// The arguments, checked against each other.
struct Plan {
    arguments: ServeArguments,
    /// With `--create`.
    shape: Option<Shape>,
}

impl Plan {
    fn new(arguments: ServeArguments) -> Result<Self, Failure> {
        for address in &arguments.nbd {
            if let NbdAddress::Tcp(address) = address
                && !address.ip().is_loopback()
                && !arguments.allow_remote
            {
                return Err(Failure::usage(format!(
                    "{address} can be reached from other machines, and there is no encryption and no password yet: \
                     use a loopback address, or --allow-remote on a network that you trust"
                )));
            }
        }
        if let Some(address) = arguments.nvme_tcp {
            nvme_server::check_address(address, arguments.dhchap_hosts.as_deref(), arguments.allow_remote)?;
        }
        if let Some(nqn) = &arguments.nqn {
            nvme_server::check_name(nqn)?;
        }
        member::check_distinct(&arguments.devices)?;
        let shape = match arguments.level.filter(|_| arguments.create) {
            Some(level) => Some(Shape::new(level, &arguments.shape, arguments.devices.len())?),
            None => None,
        };
        if shape.is_none()
            && let Some(option) = arguments.shape.first_given()
        {
            return Err(Failure::usage(format!("{option} shapes a new array: it goes with --create only")));
        }
        if shape.is_some() && arguments.read_only {
            return Err(Failure::usage("--create makes an empty array, which --read-only would keep so"));
        }
        let plan = Self { arguments, shape };
        let speed = plan.sync_speed();
        if speed.max_kib < speed.min_kib {
            return Err(Failure::usage(format!(
                "--sync-speed-max ({} KiB per second) is below --sync-speed-min ({})",
                speed.max_kib, speed.min_kib
            )));
        }
        Ok(plan)
    }

    fn runtime(&self) -> RuntimeConfig {
        let cpus = self.arguments.cpus.as_ref().map(|list| list.0.clone());
        let base = match (self.arguments.shards, &cpus) {
            (Some(shards), _) => RuntimeConfig::unpinned(shards.into()),
            (None, Some(cpus)) => RuntimeConfig::unpinned(cpus.len()),
            (None, None) => RuntimeConfig::default(),
        };
        RuntimeConfig { cpus: cpus.or(base.cpus.clone()), termination_signals: true, ..base }
    }

    fn sync_speed(&self) -> SyncSpeed {
        let usual = SyncSpeed::default();
        SyncSpeed {
            min_kib: self.arguments.sync_speed_min.unwrap_or(usual.min_kib),
            max_kib: self.arguments.sync_speed_max.unwrap_or(usual.max_kib),
        }
    }

    /// `left_out`: members were waited for in vain.
    fn options(&self, left_out: bool) -> ArrayOptions {
        ArrayOptions {
            policy: self.arguments.policy.into(),
            parity_cache_bytes: usize::try_from(self.arguments.cache.0).unwrap_or(usize::MAX),
            read_only: self.arguments.read_only,
            force: self.arguments.force,
            newly_degraded: self.arguments.run || left_out,
            takeover: self.arguments.takeover,
            offload: self.arguments.offload.into(),
            reducer: self.arguments.reducer.into(),
            max_read_errors: self.arguments.max_read_errors,
            member_timeout_ns: u64::from(self.arguments.member_timeout) * 1_000_000_000,
            sync_speed: self.sync_speed(),
            journal_mode: self.arguments.journal_mode.into(),
            ..ArrayOptions::default()
        }
    }
}

async fn serve(context: Context, plan: Plan) -> Result<(), Failure> {
    let mut order = pin!(ordered());
    match until_ordered(order.as_mut(), Box::pin(start(context, plan))).await {
        None => Ok(()),
        Some(started) => {
            let Started { served, sockets, nvme, opened } = started?;
            served.run(order, sockets, nvme, opened).await
        }
    }
}

/// All that is there when the array can be served.
struct Started {
    served: Served,
    sockets: Sockets,
    nvme: Option<Listener>,
    opened: devices::Opened,
}

async fn start(context: Context, plan: Plan) -> Result<Started, Failure> {
    let remote = plan.arguments.remote.clone();
    // A file with secrets may keep its readers waiting.
    blocking(move || member::know(&remote)).await?;
    member::prepare(context.shards().len())?;
    let pool = Pool::new(&plan.arguments)?;
    let members = Members::open(&plan.arguments, plan.shape.as_ref()).await?;
    let opened = members.opened();
    let sockets = Sockets::listen(&plan.arguments, &members.name, &members.uuid).await?;
    let nvme = nvme::Listening::new(&plan.arguments).await?;
    let journal = Journal::new(plan.arguments.json, &members.name)?;
    let shards: Vec<ShardHandle> = context.shards().to_vec();
    // From here on members may be written: all that can be wrong with the command line was looked at before
    // (C34).
    let assembled = Array::assemble(members.sources, plan.options(members.left_out), shards.clone()).await;
    let takeover = plan.arguments.takeover;
    let array = assembled.map_err(|error| Failure::new(not_assembled(&error, takeover)))?;
    let export = members.name;
    if let Err(error) = shards::open(&shards, array.shared(), &export, &journal).await {
        let _ = array.stop().await;
        return Err(error);
    }
    let nvme = match nvme {
        Some(listening) => match listening.open(&shards, array.shared(), &members.uuid, &journal).await {
            Ok(opened) => Some(opened),
            Err(error) => {
                let _ = array.stop().await;
                return Err(error);
            }
        },
        None => None,
    };
    let served = Served {
        journal,
        stopping: Stopping::new(),
        nbd: sockets.uris(&export),
        warnings: warnings(&plan.arguments, &sockets, context.shards().len()),
        control_path: sockets.control_path.clone(),
        memory: plan.shape.is_some(),
        array,
        shards,
        pool,
        clients: Clients::new(nvme.as_ref().map(|nvme| Arc::clone(&nvme.subsystem))),
        nvme: nvme.as_ref().map(|nvme| nvme.uri.clone()),
    };
    Ok(Started { served, sockets, nvme: nvme.map(|nvme| nvme.listener), opened })
}

/// What the user should know of how the server was started: ports that are closed to other machines, and open
/// to every user of this one, and limits that are too low.
fn warnings(arguments: &ServeArguments, sockets: &Sockets, shards: usize) -> Vec<String> {
    let nvme =
        arguments.nvme_tcp.filter(|address| address.ip().is_loopback() && arguments.dhchap_hosts.is_none());
    let advice = "to prevent that, serve on a unix socket, or on NVMe/TCP with --dhchap-hosts; to accept it, use --allow-remote";
    let open = sockets.loopback_ports().into_iter().chain(nvme);
    let open = open.filter(|_| !arguments.read_only && !arguments.allow_remote);
    open.map(|address| nvme_server::open_to_users(address, advice))
        .chain(limits::locked_memory_warning(shards))
        .collect()
}

/// Why the array could not be assembled, and what was changed all the same.
fn not_assembled(error: &AssembleError, takeover: bool) -> String {
    match error {
        AssembleError::Replay { .. } | AssembleError::Fence(FenceError::Partly { .. }) => error.to_string(),
        AssembleError::Fence(_) => format!("{error}; nothing was changed"),
        _ if takeover => {
            format!(
                "{error}; nothing was written, but a host that had the array may be kept from writing it now"
            )
        }
        _ => format!("{error}; nothing was changed"),
    }
}

/// An array that is being served.
struct Served {
    array: Array,
    shards: Vec<ShardHandle>,
    journal: Journal,
    stopping: Rc<Stopping>,
    pool: Option<Pool>,
    nbd: Vec<String>,
    clients: Clients,
    /// Of how it was started.
    warnings: Vec<String>,
    /// How a member of another array would name this one.
    nvme: Option<String>,
    control_path: PathBuf,
    /// Whether its members are memory, so that memory may join.
    memory: bool,
}

impl Served {
    /// Serves until the end is wanted or `order` tells of it, then ends.
    async fn run(
        mut self,
        order: impl Future<Output = ()>,
        sockets: Sockets,
        nvme: Option<Listener>,
        opened: devices::Opened,
    ) -> Result<(), Failure> {
        let reconnector = Reconnector::spawn(self.array.clone(), Rc::clone(&self.stopping));
        let controller = Controller::new(&self, reconnector);
        if let Some(pool) = self.pool.take() {
            pool.spawn(self.array.clone(), self.journal.clone(), Rc::clone(&self.stopping));
        }
        let mut accepting = Vec::new();
        for listener in sockets.nbd {
            let clients = self.clients.clone();
            accepting.push(self.hand_out(listener, move |shard, connection| {
                let client = clients.connected(&connection);
                shards::hand_over(shard, connection, client);
            }));
        }
        if let Some(listener) = nvme {
            accepting.push(self.hand_out(listener, nvme_server::hand_over));
        }
        let (control, stopping) = (controller.clone(), Rc::clone(&self.stopping));
        accepting.push(shard::spawn_joined(async move {
            accept(&sockets.control, stopping.wanted(), |connection| control.spawn(connection)).await;
        }));
        let told = self.journal.tell_events(&self.array, 0);
        self.journal.watch(self.array.clone(), told, Rc::clone(&self.stopping));
        self.announce();
        let why = match first_of(order, self.stopping.wanted()).await {
            First::One(()) => "by a signal",
            First::Other(()) => "as asked for over the control socket",
        };
        self.journal.note(&format!("stopping, {why}"));
        self.stopping.want();
        for task in accepting {
            task.join().await;
        }
        let journal = self.journal.clone();
        let outcome = self.end(&controller, opened).await;
        if outcome.is_ok() {
            journal.note("stopped: the superblocks are clean and the devices are closed");
        }
        journal.flush();
        let answer = match &outcome {
            Ok(()) => Ok(()),
            Err(failure) => Err(failure.sentence().to_owned()),
        };
        controller.finish(answer).await;
        outcome
    }

    /// Hands a listener's connections to the shards in turn, until the end is wanted.
    fn hand_out(
        &self,
        listener: Listener,
        hand_over: impl Fn(&ShardHandle, Connection) + 'static,
    ) -> JoinHandle<()> {
        let (shards, stopping) = (self.shards.clone(), Rc::clone(&self.stopping));
        shard::spawn_joined(async move {
            accept(&listener, stopping.wanted(), in_turn(&shards, hand_over)).await;
        })
    }

    /// Ends what is in flight, marks the array clean and closes the devices.
    async fn end(self, controller: &Controller, opened: devices::Opened) -> Result<(), Failure> {
        nvme_server::stop(&self.shards).await;
        shards::stop(&self.shards, GRACE_NANOSECONDS).await;
        let stopped = self.array.stop().await;
        shards::close(&self.shards).await;
        nvme_server::close(&self.shards).await;
        controller.release();
        drop(self.array);
        opened.closed().await;
        stopped.map_err(|error| {
            Failure::new(format!("stopped, but the superblocks could not be marked clean: {error}"))
        })
    }

    /// Says that everything stands, in one line that scripts can wait for.
    fn announce(&self) {
        let detail = report::detail(&self.array, &self.nbd);
        for member in self.array.stale_members() {
            self.journal.warn(&format!(
                "{} was left out: it missed writes (its events are {}, the array's {}); `pinstripe add` rebuilds it",
                member.name, member.events, member.current
            ));
        }
        if self.array.is_journal_left_out() {
            self.journal.warn(
                "the array's journal was left out, as --force demands: writes that only the journal had are lost, and parity is resynced",
            );
        }
        let asked = self.array.shared().options.journal_mode;
        let now = self.array.journal_mode().unwrap_or_default();
        if now != asked {
            self.journal.warn(&format!(
                "the array has no journal or is degraded: its writes are acknowledged as in the mode {}, not {}; `pinstripe grow --journal-mode` changes it later",
                now.name(),
                asked.name()
            ));
        }
        if let Some(reason) = self.array.read_only_reason() {
            self.journal.warn(&reason.to_string());
        }
        if let Some(warning) = pinstripe_parity::selection().warning() {
            self.journal.warn(&warning);
        }
        for warning in &self.warnings {
            self.journal.warn(warning);
        }
        let control = self.control_path.display().to_string();
        if self.journal.json() {
            let line = json!({
                "event": "ready", "name": detail.name, "uuid": detail.uuid, "level": detail.level,
                "size_bytes": detail.size_bytes, "degraded": detail.degraded, "read_only": detail.state == "read-only",
                "nbd": detail.nbd, "nvme": self.nvme, "control": control, "shards": self.shards.len(), "pid": std::process::id(),
            });
            return self.journal.print(line.to_string());
        }
        self.journal.print(format!(
            "ready: {} array {}, {}, {} members{}, on {}; control socket {control}",
            detail.level,
            printable(&detail.name),
            ByteSize(detail.size_bytes),
            detail.members.len(),
            if detail.degraded { ", degraded" } else { "" },
            detail.nbd.iter().chain(&self.nvme).cloned().collect::<Vec<_>>().join(" and "),
        ));
    }
}
