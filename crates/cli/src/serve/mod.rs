//! `pinstripe serve`: from devices to clients, until it is told to stop.
//!
//! ```text
//!   shard 0    signals, the control socket, the listeners, the array's home
//!   each shard a volume of the array and the front ends' servers; connections go to the shards in turn
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
mod closing;
mod control;
mod control_socket;
mod devices;
mod front;
mod fuse;
mod grow;
mod joining;
mod journal;
mod limit;
mod looks;
mod maintenance;
mod names;
mod nbd;
pub mod null;
mod nvme;
mod pool;
mod reconnect;
mod record;
mod refusal;
mod report;
mod service;
mod stopping;
mod succession;
mod tls;
mod ublk;
mod vhost_user;

pub use control_socket::default_folder;
pub use journal::{ServerLog, severity};
pub use tls::{Complaints, clients, try_certificates, unusable};

use std::{mem, path::PathBuf, rc::Rc, sync::Arc};

use pinstripe_block::{
    first_of::{First, first_of},
    rate::{RateLimit, Rates},
};
use pinstripe_control::{UpgradeResult, size::ByteSize, text::printable};
use pinstripe_engine::{
    array::Array,
    assembly::AssembleError,
    io::recorder::Recorder,
    offload::fence::FenceError,
    options::{ArrayOptions, SyncSpeed, WorkMemory},
};
use pinstripe_runtime::{
    ShardHandle,
    shard::{self, JoinHandle},
    uring::{self, Access, Connection, Context, Listener, RuntimeConfig, blocking, inheritance, last_resort},
};
use serde_json::json;

use self::{
    control::ControlServer,
    control_socket::ControlSocket,
    devices::OpenedDevices,
    front::{Accepting, FrontEnds, Identity, Leavers},
    joining::Keeper,
    pool::Pool,
    reconnect::{Away, Reconnector},
    stopping::Stopping,
    succession::{Connected, Estate, Inheritance, Settings, Taken, Wish, fitness},
    tls::Tls,
};
use crate::{
    accept::accept,
    command_line::{LimitOptions, Role, ServeArguments, SocketOptions},
    create::Shape,
    ending::{self, Order, until_ordered},
    failure::Failure,
    limits, log, member,
    memory::Division,
    nvme_hosts::Hosts,
    nvme_server, on_shards,
    supervisor::{self, Supervised},
};

/// Time that checks and repairs get to tell how far they came, before another program goes on.
const SCRUBS_NANOSECONDS: u64 = 2_000_000_000;
/// Time that the last holders of a device get to let it go.
const CLOSE_NANOSECONDS: u64 = 2_000_000_000;
/// The same for what is asked of devices beside the array.
const BESIDE_NANOSECONDS: u64 = 2_000_000_000;

pub fn run(arguments: ServeArguments) -> Result<(), Failure> {
    if arguments.own_session {
        // A process that leads its group has a session of its own already, or is asked for nothing.
        let _ = rustix::process::setsid();
    }
    let inherited = match arguments.succession.clone() {
        Some(Role::Asked) => {
            Plan::new(arguments)?.rehearse()?;
            return succession::answer();
        }
        Some(Role::Successor(number)) => {
            // The program before may have been called by its descriptor's path.
            let _ = rustix::thread::set_name(c"pinstripe");
            Some(Arc::new(Inheritance::read(number)?))
        }
        None => None,
    };
    let heir = inherited.clone();
    let outcome = Plan::new(arguments).and_then(|plan| {
        plan.memory.take_effect();
        limits::open_all_files();
        let config = plan.runtime.clone();
        uring::run(&config, move |context| serve(context, plan, heir)).map_err(Failure::from)
    });
    match (outcome, inherited) {
        (Ok(outcome), _) => outcome,
        (Err(failure), Some(inherited)) => Err(inherited.go_back(&failure)),
        (Err(failure), None) => Err(failure),
    }
}

/// Refuses arguments that can't be served by, whatever the members are.
pub fn check(arguments: ServeArguments) -> Result<(), Failure> {
    Plan::new(arguments).map(drop)
}

/// The arguments, checked against each other.
struct Plan {
    arguments: ServeArguments,
    /// With `--create`.
    shape: Option<Shape>,
    runtime: RuntimeConfig,
    memory: Division,
}

impl Plan {
    fn new(arguments: ServeArguments) -> Result<Self, Failure> {
        front::check(&arguments)?;
        member::check_distinct(&arguments.devices)?;
        Pool::new(&arguments)?;
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
        let runtime = on_shards::wanted(arguments.shards, arguments.cpus.as_ref());
        let tls = arguments.tls.tls_certificates.is_some() || arguments.nvme_tls_hosts.is_some();
        let memory = Division::new(arguments.memory_max, runtime.shards, arguments.cache, tls)?;
        let plan = Self { arguments, shape, runtime: memory.of_shards(runtime), memory };
        let speed = plan.sync_speed();
        if speed.max_kib < speed.min_kib {
            return Err(Failure::usage(format!(
                "--sync-speed-max ({} KiB per second) is below --sync-speed-min ({})",
                speed.max_kib, speed.min_kib
            )));
        }
        Ok(plan)
    }

    /// Tries what a start takes beside the array: the files that it reads, and a ring. Changes nothing.
    fn rehearse(self) -> Result<(), Failure> {
        uring::run(&RuntimeConfig::unpinned(1), move |_| async move {
            let ServeArguments { remote, tls, dhchap_hosts, nvme_tls_hosts, .. } = self.arguments;
            blocking(move || member::know(&remote)).await?;
            Tls::load(&tls).await?;
            // What is wrong with a key or a host doesn't depend on the subsystem.
            Hosts::read(dhchap_hosts, nvme_tls_hosts).await?.tls("")?;
            Ok(())
        })?
    }

    fn sync_speed(&self) -> SyncSpeed {
        let usual = SyncSpeed::default();
        SyncSpeed {
            min_kib: self.arguments.sync_speed_min.unwrap_or(usual.min_kib),
            max_kib: self.arguments.sync_speed_max.unwrap_or(usual.max_kib),
        }
    }

    fn rates(&self) -> Rates {
        let LimitOptions { limit_iops, limit_bandwidth, limit_burst } = self.arguments.limits;
        limit::rates(limit_iops.unwrap_or(0), limit_bandwidth.map_or(0, |size| size.0), limit_burst)
    }

    /// The plan of a program that takes another one's place: the array as it is there. Nothing is forced.
    fn inherit(mut self, inherited: &Inheritance) -> Self {
        let (arguments, settings) = (&mut self.arguments, inherited.settings());
        arguments.devices = inherited.devices();
        // But what is only read may be read on.
        arguments.force &= arguments.read_only;
        (arguments.takeover, arguments.joined) = (false, false);
        // As if a member had been lost there.
        (arguments.run, arguments.run_after) = (true, Some(0));
        arguments.sync_speed_min = Some(settings.sync_speed_min_kib);
        arguments.sync_speed_max = Some(settings.sync_speed_max_kib);
        arguments.journal_mode = settings.journal_mode().unwrap_or(arguments.journal_mode);
        let limit = settings.limit;
        arguments.limits = LimitOptions {
            limit_iops: Some(limit.iops),
            limit_bandwidth: Some(ByteSize(limit.bytes_per_second)),
            limit_burst: limit.burst_seconds,
        };
        self
    }

    /// `left_out`: members were waited for in vain.
    fn options(&self, left_out: bool) -> ArrayOptions {
        ArrayOptions {
            policy: self.arguments.policy.into(),
            parity_cache_bytes: usize::try_from(self.arguments.cache.0).unwrap_or(usize::MAX),
            memory: WorkMemory::of(self.memory.work()),
            wanted: self.arguments.uuid,
            expected: self.arguments.expect_uuid,
            read_only: self.arguments.read_only,
            force: self.arguments.force,
            newly_degraded: self.arguments.run || left_out,
            logical_block_min: self.arguments.logical_block,
            takeover: self.arguments.takeover,
            offload: self.arguments.offload.into(),
            reducer: self.arguments.reducer.into(),
            max_read_errors: self.arguments.max_read_errors,
            member_timeout_ns: u64::from(self.arguments.member_timeout) * 1_000_000_000,
            sync_speed: self.sync_speed(),
            journal_mode: self.arguments.journal_mode.into(),
            tell_wait,
            ..ArrayOptions::default()
        }
    }
}

async fn serve(context: Context, plan: Plan, inherited: Option<Arc<Inheritance>>) -> Result<(), Failure> {
    let mut order = Order::new();
    let supervised = Supervised::begin(context.shards(), inherited.is_some());
    let Some(inherited) = inherited else {
        log::begin(plan.arguments.log, "serve")?;
        let mut standing = Standing::default();
        let started = Box::pin(start(context, plan, None, &mut standing));
        let started = until_ordered(&mut order, started).await;
        let Some(started) = started.transpose()? else { return Ok(()) };
        return started.run(order, supervised, None).await;
    };
    // Clients wait for it, and a device of the kernel's: an order to end is obeyed when they can be told.
    ending::finish_start();
    let plan = plan.inherit(&inherited);
    let (shards, mut standing) = (context.shards().to_vec(), Standing::default());
    let started = succession::in_time(async {
        log::begin(plan.arguments.log, "serve")?;
        start(context, plan, Some(&inherited), &mut standing).await
    });
    let started = Box::pin(started).await;
    match started {
        Err(failure) => {
            succession::stopped_in_time(standing.stop(&shards)).await;
            succession::closed(&shards, &format!("can't take over: {}", failure.sentence())).await?;
            Err(inherited.go_back(&failure))
        }
        Ok(started) => {
            last_resort::cancel();
            started.run(order, supervised, Some(inherited.take())).await
        }
    }
}

/// All that is there when the array can be served.
struct Started {
    served: Served,
    control: ControlSocket,
    away: Option<Away>,
}

/// What stands of a server while it starts. A start that is given up under way leaves it here.
#[derive(Default)]
struct Standing {
    front_ends: FrontEnds,
    array: Option<Array>,
}

impl Standing {
    /// Ends what is under way and marks the array clean. What waits for a server goes on waiting.
    async fn stop(self, shards: &[ShardHandle]) {
        self.front_ends.give_up(shards).await;
        if let Some(array) = &self.array {
            let _ = array.stop().await;
        }
        self.front_ends.close(shards).await;
    }
}

async fn start(
    context: Context,
    plan: Plan,
    inherited: Option<&Inheritance>,
    standing: &mut Standing,
) -> Result<Started, Failure> {
    let remote = plan.arguments.remote.clone();
    // A file with secrets may keep its readers waiting.
    blocking(move || member::know(&remote)).await?;
    member::prepare(context.shards().len())?;
    let pool = Pool::new(&plan.arguments)?;
    let members = OpenedDevices::open(&plan.arguments, plan.shape.as_ref(), inherited).await?;
    let away = members.away().await;
    let control = ControlSocket::listen(&plan.arguments, &members.name, &members.uuid, inherited)?;
    let (stem, folder) = (control.stem.as_str(), control.folder());
    let access = access(&plan.arguments.sockets);
    let identity = Identity { name: &members.name, uuid: &members.uuid, stem, folder, inherited, access };
    standing.front_ends = FrontEnds::bind(&plan.arguments, identity).await?;
    log::describe(&members.name, &[("array", &members.name), ("uuid", &members.uuid)]);
    let journal = ServerLog::new(plan.arguments.json, &members.name)?;
    let shards: Vec<ShardHandle> = context.shards().to_vec();
    // From here on members may be written: all that can be wrong with the command line was looked at before
    // (C34).
    let options = ArrayOptions {
        follows_stop: inherited.is_some_and(Inheritance::begins),
        ..plan.options(members.left_out)
    };
    let assembled = Array::assemble(members.sources, options, shards.clone()).await;
    let takeover = plan.arguments.takeover;
    let array = assembled.map_err(|error| Failure::new(not_assembled(&error, takeover)))?;
    standing.array = Some(array.clone());
    if !plan.arguments.read_only {
        members.namespaces.into_iter().for_each(|source| pool::let_go(source, &array));
    }
    if let Some(inherited) = inherited {
        array.pause_sync(inherited.settings().sync_paused);
    }
    let (limit, recorder) = (Arc::new(RateLimit::new(plan.rates())), Arc::default());
    let opened_for = standing.front_ends.open(array.shared(), &shards, &journal, &limit, &recorder).await;
    if let Err(error) = opened_for {
        // They have given up what they had opened.
        let front_ends = mem::take(&mut standing.front_ends);
        let _ = array.stop().await;
        front_ends.close(&shards).await;
        standing.array = None;
        return Err(error);
    }
    let is_kept = plan.shape.is_none() && !plan.arguments.read_only;
    let uuid = members.uuid.parse().ok().filter(|_| is_kept);
    let keeper = Keeper::new(uuid, journal.clone()).await;
    let Standing { front_ends, .. } = mem::take(standing);
    let served = Served {
        keeper,
        journal,
        stopping: Stopping::new(),
        warnings: warnings(&plan, &front_ends),
        control_path: control.absolute_path(),
        kinds: devices::Kinds { memory: plan.shape.is_some(), poll: plan.arguments.poll },
        array,
        shards,
        pool,
        front_ends: Rc::new(front_ends),
        leavers: Rc::default(),
        limit,
        recorder,
    };
    Ok(Started { served, control, away })
}

/// Says why a start, or a device that is to join, takes so long, and that nothing is to be done.
fn tell_wait(nanoseconds: u64) {
    let words = format!(
        "writes of an earlier server may still be on their way to members on other machines: these are used {} s later",
        nanoseconds.div_ceil(1_000_000_000)
    );
    supervisor::tell_status(&words);
    log::say(&log::Entry { message: &words, ..log::Entry::default() });
}

/// To which users the sockets of clients are open.
fn access(options: &SocketOptions) -> Access {
    let SocketOptions { socket_mode, socket_owner, socket_group } = *options;
    let mode = socket_mode.or(socket_group.map(|_| 0o660));
    Access { mode, owner: socket_owner, group: socket_group }
}

/// What the user should know of how the server was started: ports that are closed to other machines, and open
/// to every user of this one, and limits that are too low.
fn warnings(plan: &Plan, front_ends: &FrontEnds) -> Vec<String> {
    let arguments = &plan.arguments;
    let advice = "to prevent that, serve on a unix socket, or on NVMe/TCP with --dhchap-hosts or --nvme-tls-hosts; to accept it, use --allow-remote";
    let open = front_ends.loopback_ports().into_iter();
    let open = open.filter(|_| !arguments.read_only && !arguments.allow_remote);
    open.map(|address| nvme_server::open_to_users(address, advice))
        .chain(limits::locked_memory_warning(&plan.runtime))
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
    journal: ServerLog,
    stopping: Rc<Stopping>,
    pool: Option<Pool>,
    keeper: Rc<Keeper>,
    front_ends: Rc<FrontEnds>,
    leavers: Rc<Leavers>,
    /// Of all clients together.
    limit: Arc<RateLimit>,
    recorder: Arc<Recorder>,
    /// Of how it was started.
    warnings: Vec<String>,
    control_path: PathBuf,
    /// What may join it.
    kinds: devices::Kinds,
}

impl Started {
    /// Serves until the end is wanted or `order` tells of it, then ends. `taken`: from the program before.
    async fn run(
        self,
        mut order: Order,
        supervised: Supervised,
        taken: Option<Taken>,
    ) -> Result<(), Failure> {
        let Self { mut served, control: socket, away } = self;
        let (array, poll) = (served.array.clone(), served.kinds.poll);
        let reconnector = Reconnector::spawn(array, poll, Rc::clone(&served.stopping), away);
        let controller = ControlServer::new(&served, reconnector);
        if let Some(pool) = served.pool.take() {
            let keeper = Rc::clone(&served.keeper);
            pool.spawn(served.array.clone(), served.journal.clone(), keeper, Rc::clone(&served.stopping));
        }
        served.keeper.watch(served.array.clone(), Rc::clone(&served.stopping));
        let accepting = served.accept(&controller, socket.listener);
        let last_reported = served.journal.tell_events(&served.array, 0);
        served.journal.watch(served.array.clone(), last_reported, Rc::clone(&served.stopping));
        served.announce();
        if let Some(taken) = taken {
            served.go_on(&controller, taken);
        }
        supervised.ready();
        let why = match first_of(&mut order, served.stopping.wanted()).await {
            First::One(()) => "by a signal",
            First::Other(()) => "as asked for over the control socket",
        };
        if let Some(wish) = served.stopping.successor() {
            return served.hand_over(&controller, accepting, wish, order).await;
        }
        served.journal.note(&format!("stopping, {why}"));
        supervised.stopping();
        served.stopping.want();
        // What waits for its turn goes at once, or the end would be long in coming. From now on no limit is
        // set any more. A task that takes clients may wait for their requests.
        served.limit.set(Rates::default());
        for task in accepting {
            task.join().await;
        }
        let journal = served.journal.clone();
        let outcome = served.end(&controller).await;
        match outcome.as_deref() {
            Ok([]) => journal.note("stopped: the superblocks are clean and the devices are closed"),
            Ok(open) => journal.warn(&format!(
                "stopped: the superblocks are clean, and the other devices are closed; requests to {} are not over, so this \
                 process stays until they are",
                open.join(", ")
            )),
            Err(_) => (),
        }
        let outcome = outcome.map(|_| ());
        journal.flush();
        let answer = match &outcome {
            Ok(()) => Ok(()),
            Err(failure) => Err(failure.sentence().to_owned()),
        };
        controller.finish(answer).await;
        outcome
    }
}

impl Served {
    /// Takes connections until the end is wanted.
    fn accept(&self, controller: &ControlServer, control: Listener) -> Vec<JoinHandle<()>> {
        self.leavers.note(control_socket::PROTOCOL, &control);
        let way = Accepting { shards: &self.shards, stopping: &self.stopping, leavers: &self.leavers };
        let mut accepting = self.front_ends.accept(way);
        let (controller, stopping) = (controller.clone(), Rc::clone(&self.stopping));
        accepting.push(shard::spawn_joined(async move {
            accept(&control, stopping.wanted(), |connection| controller.spawn(connection)).await;
        }));
        accepting
    }

    /// Goes on with what the program before has left.
    fn go_on(&self, controller: &ControlServer, taken: Taken) {
        let Taken { connections, caller, result, failed } = taken;
        let UpgradeResult { from, to, pause_ms, connections: count } = &result;
        let outcome = match failed {
            None => {
                self.journal.note(&format!(
                    "pinstripe {to} has taken the place of {from}, with {count} connections; requests waited {pause_ms} ms"
                ));
                serde_json::to_value(&result).map_err(|error| refusal::failed(&error))
            }
            Some(why) => {
                let words = format!("{why}; pinstripe {to} goes on, requests waited {pause_ms} ms");
                self.journal.warn(&format!("the other program could not take over: {words}"));
                Err(refusal::failed(&format!("the program could not take over: {words}")))
            }
        };
        let (own, others): (Vec<_>, Vec<_>) =
            connections.into_iter().partition(|(protocol, _)| protocol == control_socket::PROTOCOL);
        self.front_ends.resume(&self.shards, others);
        for (_, connection) in own {
            controller.spawn(Connection::new(connection.socket));
        }
        if let Some(caller) = caller {
            controller.resume(caller, outcome);
        }
    }

    /// Ends, so that another program goes on in this process. Returns only if none can.
    async fn hand_over(
        self,
        controller: &ControlServer,
        accepting: Vec<JoinHandle<()>>,
        wish: Wish,
        mut order: Order,
    ) -> Result<(), Failure> {
        self.journal.note(&format!("{} is to take over", wish.candidate.in_words()));
        let limit = limit::now(&self.limit);
        let mut estate = Estate::new(wish, Settings::of(&self.array, limit));
        // They tell how far they came. What else is under way goes on in the next program.
        shard::timeout(SCRUBS_NANOSECONDS, self.array.end_scrubs()).await;
        self.keeper.close().await;
        // As at an end. The next program sets it anew.
        self.limit.set(Rates::default());
        for task in accepting {
            task.join().await;
        }
        let left = self.front_ends.leave(&self.shards).await;
        // As it is now, with what was changed and what came until the end.
        let settings = Settings::of(&self.array, limit);
        let unclean = self.array.stop().await.err().map(|error| {
            let why = format!("the superblocks could not be marked clean: {error}");
            self.journal.warn(&why);
            why
        });
        // What was asked of a device beside the array a moment ago ends by itself.
        let stopped = shard::now();
        while fitness::beside(&self.array).is_some() && shard::now() - stopped < BESIDE_NANOSECONDS {
            shard::sleep(1_000_000).await;
        }
        if let Some(why) = fitness::ends_clients(&self.array).or(unclean) {
            self.journal.warn(&format!("{why}: no client goes over to the next program"));
            self.front_ends.disown(left).await;
        } else {
            for (protocol, connection) in left {
                estate.add(protocol, connection);
            }
            estate.add_subsystem(self.front_ends.left_subsystem());
            estate.note_that_all_is_over();
        }
        let locks = inheritance::held().unwrap_or_default();
        estate.settle(settings, fitness::devices(&self.array), locks);
        self.front_ends.close(&self.shards).await;
        controller.answer_others().await;
        controller.release();
        drop(self.array);
        succession::closed(&self.shards, "no other program can take over").await?;
        for (protocol, socket) in self.leavers.last_accepted() {
            estate.add(protocol, Connected { socket, name: String::new(), left: None });
        }
        if order.is_given() {
            ending::pass_on();
        }
        self.journal.flush();
        Err(estate.hand_over())
    }

    /// Ends what is in flight, marks the array clean and closes the devices. Gives those that requests keep
    /// open.
    async fn end(self, controller: &ControlServer) -> Result<Vec<String>, Failure> {
        self.front_ends.stop(&self.shards).await;
        let stopped = self.array.stop().await;
        self.front_ends.close(&self.shards).await;
        controller.release();
        drop(self.array);
        let open = closing::closed(&self.shards, CLOSE_NANOSECONDS).await;
        stopped.map(|()| open).map_err(|error| {
            Failure::new(format!("stopped, but the superblocks could not be marked clean: {error}"))
        })
    }

    /// Says that everything stands, in one line that scripts can wait for.
    fn announce(&self) {
        let detail = report::detail(&self.array, self.front_ends.addresses());
        for member in self.array.stale_members() {
            let (why, then) = if member.spare {
                ("it was a spare, and is none of the array's now", "takes")
            } else {
                ("it missed writes", "rebuilds")
            };
            self.journal.warn(&format!(
                "{} was left out: {why} (its events are {}, the array's {}); `pinstripe add` {then} it",
                member.name, member.events, member.current
            ));
        }
        for spare in &detail.unusable_spares {
            self.journal.warn(&format!("the spare {} can take no slot: {}", spare.device, spare.reason));
        }
        for why in self.array.left_out() {
            self.journal.warn(&format!("{why}; the array was started without this device"));
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
                "nbd": detail.nbd, "nvme": detail.uris("nvme-tcp").next(), "addresses": detail.addresses, "control": control, "shards": self.shards.len(), "pid": std::process::id(),
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
            detail.addresses.iter().map(|address| address.uri.clone()).collect::<Vec<_>>().join(" and "),
        ));
    }
}
