//! `pinstripe daemon`: keeps the configured arrays served.
//!
//! ```text
//!   phase      what each array is in, and what is to be done next. Pure
//!   kept       an array that is to be served, and how it stands
//!   threads    what takes time: looking for members, starting a server, following one
//!   socket     calls: status, look, reload
//!   chores     what is done beside serving, each on a thread of its own: checks, groups, health
//!   checks     when an array is checked, and how far that is
//!   groups     spares that move between arrays
//!   health     what disks say of themselves
//!   alerts     what a person should see to, told once and cleared once. Pure
//!   metrics    what Prometheus reads. Pure
//!   http       metrics, and whether all is well, over HTTP
//!   web        the page: all arrays in a browser
//!   board      what is put up for the page
//!   listen     what `http` and `web` stand on
//!   tls        how their connections are secured
//!   secretary  keeps the history of events and the book of alerts, and sends alerts
//!   ways       programs, mail and webhooks, by which alerts are sent
//!   sender     what starts programs for a daemon that must not
//!   stopped    what a person has stopped, for the next daemon
//!   reload     what a new configuration changes
//!   orphans    ended processes that nothing else waits for, where this is process 1
//! ```
//!
//! Each server is a process of its own, in a session of its own. The daemon can die at any moment, and no
//! I/O stops; the next one finds the servers by their control sockets. One thread has all state and decides;
//! the others tell it what they found.

mod alerts;
mod board;
mod checks;
mod chores;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod grafana;
mod groups;
mod health;
mod http;
mod kept;
mod listen;
mod metrics;
mod orphans;
mod phase;
pub mod reload;
mod secretary;
mod sender;
mod socket;
mod stopped;
#[cfg(test)]
mod tests;
mod threads;
mod tls;
mod ways;
mod web;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::{Duration, Instant, UNIX_EPOCH},
};

use pinstripe_config::{Configuration, Metrics};
use pinstripe_control::{
    CallError, Detail, Version, code,
    daemon::{Command, Looks, Reloaded, Status},
    maintenance::Event,
    text::one_line,
};
use serde::Serialize;
use serde_json::Value;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use self::{
    alerts::AlertedArray,
    board::Board,
    checks::Round,
    chores::Chores,
    kept::Kept,
    phase::{Action, Course, Ending, Phase},
    secretary::{Errand, Secretary},
    stopped::Stopped,
    threads::{Heard, News},
    tls::Tls,
};
use crate::{
    assemble::{Outcome, State, Wanted},
    command_line::DaemonArguments,
    configuration::{self, Begun, count},
    failure::Failure,
    history::Told,
    log::{self, Entry},
    scan::block_device_generations,
    serve::{ServerLog, default_folder, severity},
    state, supervisor, systemd,
};

/// How often it is tried again to listen where that could not be.
const LISTEN_AGAIN: Duration = Duration::from_secs(3);
/// How often it is seen to what is due, and whether devices have come or gone.
const TICK: Duration = Duration::from_millis(500);
/// How often arrays that aren't served are looked for, if nothing tells of a change: members can be files,
/// and another process can hold them now and not later.
const LOOK: Duration = Duration::from_secs(10);
/// The same where they only could have been started by another process.
const LOOK_STOPPED: Duration = Duration::from_mins(1);
/// How long the end waits for what is still to be kept or sent.
const FINISH: Duration = Duration::from_secs(2);

/// What the other threads tell.
enum Message {
    /// A look for members is over, which went by this generation of the configuration. It has found nothing
    /// if it was only for servers that persons have started, and there is no new one.
    Looked { generation: u64, found: Option<(Vec<Wanted>, Vec<String>)> },
    /// What became of the start of a server.
    Started { run: u64, outcome: Box<Outcome> },
    /// Of a server.
    News { run: u64, news: News },
    /// What came of a check.
    Checked { uuid: String, outcome: Result<Round, String> },
    /// The disks were asked how they are.
    Visited(health::Visit),
    /// How things are, for the HTTP server.
    Snapshot(http::Answer),
    /// What the servers say of their arrays.
    Surveyed(Vec<(String, Detail)>),
    /// What came of something that was asked for by the page: the array, and a sentence.
    Acted { array: String, sentence: String },
    /// What came of the move of a spare.
    Moved(groups::Moved),
    /// A call, and where the answer goes.
    Call(Command, Sender<Result<Value, CallError>>),
    /// A signal.
    Signal(i32),
}

pub fn run(arguments: &DaemonArguments) -> Result<(), Failure> {
    if arguments.send_alert || arguments.test_alert {
        return sender::run(arguments);
    }
    let Begun { configuration, left_out, problems } =
        configuration::load_to_begin(arguments.configuration.config.as_deref())?;
    let folder = default_folder()?;
    let state = state::folder();
    let _alone = (socket::alone(&folder)?, socket::alone_with(&state)?);
    let (sender, messages) = channel();
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let of_signals = sender.clone();
    threads::spawn("signals", move || {
        for signal in signals.forever() {
            let _ = of_signals.send(Message::Signal(signal));
        }
    })?;
    let socket = socket::Socket::listen(&folder, sender.clone())?;
    orphans::reap_if_first()?;
    log::begin(arguments.log.or(configuration::log_options(&configuration)), "daemon")?;
    log::describe("daemon", &[]);
    let log = ServerLog::new(arguments.json, "daemon")?;
    for problem in problems.iter().flat_map(|problems| &problems.0) {
        log.warn(&format!("the configuration has an error: {problem}"));
    }
    let secretary = Secretary::new(&state, &configuration.alerts, arguments.alerts_by.as_deref(), &log)?;
    let daemon = Daemon {
        given: arguments.configuration.config.clone(),
        starts: !arguments.no_start,
        stops_arrays: arguments.stop_arrays,
        begun: Instant::now(),
        since: UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
        configuration,
        generation: 0,
        left_out,
        problem: problems.map(|problems| problems.to_string()),
        unserved: None,
        listen_again: Duration::ZERO,
        arrays: BTreeMap::new(),
        heard: BTreeMap::new(),
        stopped: Stopped::of(&folder),
        remarks: Vec::new(),
        http: None,
        look: Look::default(),
        chores: Chores::new(&state),
        board: Board::new(arguments.web, arguments.web_tls.as_deref(), &folder, &state),
        secretary,
        next_run: 0,
        stopping: false,
        sender,
        log,
    };
    daemon.run(&messages, socket)
}

/// Looks for members.
#[derive(Default)]
struct Look {
    /// One is under way since then.
    since: Option<Instant>,
    /// The last one began then.
    last: Option<Instant>,
    /// Another one is wanted.
    wanted: bool,
    /// What isn't found by the next one is known no more.
    forgets: bool,
    /// The block devices at the last look.
    devices: Vec<String>,
}

struct Daemon {
    /// The configuration's main file, as it was given.
    given: Option<PathBuf>,
    /// Whether it starts servers, and nothing else does.
    starts: bool,
    stops_arrays: bool,
    begun: Instant,
    /// Seconds since the epoch.
    since: u64,
    configuration: Configuration,
    /// Counts configurations.
    generation: u64,
    /// The arrays whose entries were wrong when the daemon began, and what is told of each.
    left_out: Vec<(String, String)>,
    /// Why a later configuration doesn't count, or what was wrong with the first one.
    problem: Option<String>,
    /// Why metrics or the page are not served as configured, and when that is tried again.
    unserved: Option<String>,
    listen_again: Duration,
    /// By [`Wanted::identity`].
    arrays: BTreeMap<String, Kept>,
    /// What is known of the last server with each control socket.
    heard: BTreeMap<PathBuf, Heard>,
    stopped: Stopped,
    remarks: Vec<String>,
    /// As it was configured when it began.
    http: Option<(Metrics, listen::Server)>,
    look: Look,
    chores: Chores,
    board: Board,
    secretary: Secretary,
    next_run: u64,
    /// The end is wanted, and servers are being ended first.
    stopping: bool,
    sender: Sender<Message>,
    log: ServerLog,
}

impl Daemon {
    fn run(mut self, messages: &Receiver<Message>, socket: socket::Socket) -> Result<(), Failure> {
        let files = self.configuration.files.len();
        if self.board.is_asked_for() {
            self.serve_web()?;
        }
        self.keep_listening();
        self.log.note(&format!(
            "ready: {}; socket {}",
            count(files, "configuration file"),
            socket.path.display()
        ));
        supervisor::tell_ready();
        loop {
            supervisor::tell_alive();
            self.look_if_due();
            self.do_chores();
            if self.unserved.is_some() && self.now() >= self.listen_again {
                self.keep_listening();
            }
            self.publish();
            self.stopped.keep(self.arrays.values());
            match messages.recv_timeout(TICK) {
                Ok(Message::Signal(SIGHUP)) => {
                    let _ = self.reload();
                }
                Ok(Message::Signal(_)) if self.stopping || !self.stops_arrays => break,
                Ok(Message::Signal(_)) => self.stop_arrays(),
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.stopping && self.busy().is_empty() {
                break;
            }
        }
        supervisor::tell_status("ends");
        self.finish_move(messages);
        drop(socket);
        let left = self.busy();
        let words = if left.is_empty() {
            "ends; no array is served".to_owned()
        } else {
            format!("ends; servers go on: {}", left.join(", "))
        };
        self.log.note(&words);
        self.secretary.finish(FINISH);
        self.log.flush();
        if self.stopping && !left.is_empty() {
            return Err(Failure::new(format!("ended before these arrays were stopped: {}", left.join(", "))));
        }
        Ok(())
    }

    /// Listens for HTTP, for metrics and the page. What can't be is told of and tried again: arrays and
    /// alerts don't wait for it.
    fn keep_listening(&mut self) {
        let outcomes = [self.serve_http(), self.serve_web()];
        let whys: Vec<String> =
            outcomes.into_iter().filter_map(|one| Some(one.err()?.sentence().to_owned())).collect();
        let unserved = (!whys.is_empty()).then(|| whys.join("; "));
        if let Some(why) = unserved.as_ref().filter(|why| Some(*why) != self.unserved.as_ref()) {
            self.log.warn(&format!("{why}; it is tried again every {} s", LISTEN_AGAIN.as_secs()));
        }
        self.unserved = unserved;
        self.listen_again = self.now() + LISTEN_AGAIN;
    }

    /// Listens where the configuration says, if that isn't how it does.
    fn serve_http(&mut self) -> Result<(), Failure> {
        let wanted = self.configuration.metrics.clone();
        if self.http.as_ref().is_some_and(|(own, _)| *own == wanted) {
            return Ok(());
        }
        let Some(address) = wanted.listen else {
            self.http = None;
            return Ok(());
        };
        // Before the other one ends: certificates that can't be used change nothing.
        let tls = wanted.tls.as_ref().map(|tls| Tls::load(tls, "metrics", &self.log)).transpose()?;
        let scheme = scheme(tls.is_some());
        // One at another address goes on until this one is there.
        let was_ours = self.http.take_if(|(own, _)| own.listen == wanted.listen).is_some();
        let failed = |error| Failure::new(format!("can't listen for HTTP on {address}: {error}"));
        let server = http::serve(address, was_ours, tls, self.sender.clone()).map_err(failed)?;
        self.log.note(&format!("metrics on {scheme}://{}/metrics", server.address));
        self.http = Some((wanted, server));
        Ok(())
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The arrays that have a server, or are about to.
    fn busy(&self) -> Vec<String> {
        self.arrays.values().filter(|kept| kept.is_busy()).map(|kept| kept.label.clone()).collect()
    }

    /// Begins to look for members, if there is a reason.
    fn look_if_due(&mut self) {
        if self.look.since.is_some() || self.stopping {
            return;
        }
        let now = self.now();
        let is_waiting = |kept: &Kept| matches!(kept.course.phase, Phase::Waiting { .. });
        // No look at devices tells that a person has started an array, and disks that sleep are woken by it.
        let is_for_persons = |kept: &Kept| !kept.is_started && is_waiting(kept);
        // Which arrays there are only a look tells where all are meant.
        let sought = self.configuration.scan.all
            || self.arrays.values().any(|kept| kept.course.is_sought(now) && !is_for_persons(kept));
        let by_persons = self.configuration.arrays.iter().filter(|entry| !entry.auto).count();
        let asks =
            self.arrays.values().filter(|kept| !kept.is_started && kept.is_busy()).count() < by_persons;
        let waits = self.arrays.values().any(|kept| is_waiting(kept) && !is_for_persons(kept));
        let due = |last: Instant| last.elapsed() >= if waits { LOOK } else { LOOK_STOPPED };
        let is_retry = |kept: &Kept| matches!(kept.course.phase, Phase::Failed { until, .. } if now >= until);
        let is_due = self.look.wanted
            || self.look.last.is_none_or(|last| sought && due(last))
            || self.arrays.values().any(is_retry)
            || sought && block_device_generations() != self.look.devices;
        let asks_servers = !is_due && asks && self.look.last.is_some_and(due);
        if !is_due && !asks_servers {
            return;
        }
        if is_due {
            self.look.wanted = false;
            self.look.devices = block_device_generations();
        }
        (self.look.since, self.look.last) = (Some(Instant::now()), Some(Instant::now()));
        let (configuration, sender) = (self.configuration.clone(), self.sender.clone());
        let followed = asks_servers.then(|| self.arrays.values().filter_map(Kept::control).collect());
        if let Err(error) = threads::look(configuration, self.generation, followed, sender) {
            self.look.since = None;
            self.log.warn(&format!("members can't be looked for: {error}"));
        }
    }

    fn take(&mut self, message: Message) {
        if !matches!(message, Message::Call(..) | Message::Snapshot(_)) {
            self.board.touch();
        }
        match message {
            Message::Looked { generation, found } => {
                self.look.since = None;
                // What an earlier configuration wanted counts no more, and nothing is started at the end.
                if let Some((wanted, remarks)) = found
                    && generation == self.generation
                    && !self.stopping
                {
                    self.looked(wanted, remarks);
                }
            }
            Message::Started { run, outcome } => self.started(run, *outcome),
            Message::News { run, news } => self.news(run, news),
            Message::Call(command, answer) => {
                let _ = answer.send(self.answer(command));
            }
            Message::Checked { uuid, outcome } => self.checked(&uuid, outcome),
            Message::Surveyed(details) => self.surveyed(details),
            Message::Moved(moved) => self.moved(moved),
            Message::Acted { array, sentence } => {
                self.record(&array, "Asked", &sentence, false);
                self.chores.survey_soon(self.board.is_up());
            }
            Message::Snapshot(answer) => {
                let details = self.arrays.values().map(|kept| kept.detail.clone()).collect();
                let _ = answer.send(metrics::Snapshot { status: self.status(), details });
            }
            Message::Visited(visit) => self.visited(visit),
            Message::Signal(_) => {}
        }
    }

    fn looked(&mut self, all: Vec<Wanted>, remarks: Vec<String>) {
        for remark in remarks.iter().filter(|remark| !self.remarks.contains(remark)) {
            self.log.warn(remark);
        }
        self.remarks = remarks;
        // systemd may take long to answer, and is asked for each of several arrays.
        let is_not_up = |unit: &str, stopped| {
            supervisor::tell_alive();
            systemd::is_not_up(unit, stopped)
        };
        let keys: Vec<String> = all.iter().map(Wanted::identity).collect();
        self.rekey(&all, &keys);
        let reloaded = std::mem::take(&mut self.look.forgets);
        self.forget_absent(&keys, reloaded);
        let others = self.arrays.iter().filter(|(key, _)| !keys.contains(key)).map(|(_, kept)| &kept.label);
        let others = others.chain(self.left_out.iter().map(|(label, _)| label));
        let labels =
            alerts::labels(&all.iter().map(Wanted::names).collect::<Vec<_>>(), &others.collect::<Vec<_>>());
        for ((mut wanted, key), label) in all.into_iter().zip(keys).zip(labels) {
            wanted.label = label;
            let now = self.now();
            let uuid = wanted.uuid().filter(|_| !self.starts);
            let stopped_before = uuid.and_then(|uuid| self.stopped.was(&uuid.to_string()));
            let kept = self.arrays.entry(key.clone()).or_insert_with(|| {
                let mut kept = Kept::new(wanted.label.clone(), now);
                if stopped_before.is_some() {
                    kept.course.ended(Ending::Ordered, now);
                }
                kept
            });
            // A restart ends a server as a person does. If it has failed, that is to be told.
            if let Some(stopped) = kept.stopped_for(now).map(|stopped| stopped_before.unwrap_or(stopped))
                && !self.starts
                && wanted.served().is_none()
                && wanted.unit.as_deref().is_some_and(|unit| is_not_up(unit, stopped))
            {
                kept.course = Course::new(now);
            }
            kept.label.clone_from(&wanted.label);
            (kept.duties, kept.read_only) = (wanted.duties(), wanted.is_read_only());
            kept.is_started = wanted.is_started();
            let known = wanted.uuid().map(|uuid| uuid.to_string()).or(kept.uuid.clone());
            if kept.uuid != known {
                kept.record = known.as_deref().map(|uuid| self.chores.records.of(uuid)).unwrap_or_default();
                kept.uuid = known;
            }
            let state = if self.starts { wanted.state() } else { left_to_others(wanted.state()) };
            let before = kept.course.phase.clone();
            match kept.course.looked(&state, wanted.patience(), now) {
                Action::Nothing => self.tell_of_waiting(&key, &before),
                Action::Start => self.start(&key, wanted, state),
                Action::Follow(control) => {
                    self.log.of(&wanted.label).note("is served already: its server is followed");
                    self.follow(&key, control, None);
                }
            }
        }
        self.forget_alerts(reloaded);
    }

    /// Has the alerts be over of arrays that the daemon doesn't see to any more. `reloaded`: what is not
    /// known now is that, see [`Self::forget_absent`]; else those are that only a person starts.
    fn forget_alerts(&mut self, reloaded: bool) {
        let left_out = self.left_out.iter().map(|(label, _)| AlertedArray { label, uuid: None });
        let known: Vec<AlertedArray<'_>> = self.arrays.values().map(Kept::alerted).chain(left_out).collect();
        let by_persons = self.configuration.arrays.iter().filter(|entry| !entry.auto);
        let by_persons = by_persons.map(|entry| (entry.label(), entry.uuid.map(|uuid| uuid.to_string())));
        let by_persons: Vec<(String, Option<String>)> = by_persons.collect();
        let by_persons = by_persons.iter().map(|(label, uuid)| AlertedArray { label, uuid: uuid.as_deref() });
        let by_persons: Vec<AlertedArray<'_>> = by_persons.collect();
        let forgets_all = reloaded || !self.configuration.scan.all;
        let told = self.chores.book.forget(&known, (!forgets_all).then_some(&by_persons));
        self.send_alerts(told);
    }

    /// Has each array under the key that it has now: with `assemble = "all"` an entry may have come for one
    /// that is kept without.
    fn rekey(&mut self, all: &[Wanted], keys: &[String]) {
        for (wanted, key) in all.iter().zip(keys) {
            let is_it = |(old, kept): &(&String, &Kept)| !keys.contains(old) && kept.is(wanted);
            let Some(old) = self.arrays.iter().find(is_it).map(|(old, _)| old.clone()) else { continue };
            let Some(mut moved) = self.arrays.remove(&old) else { continue };
            // What is being asked for it is told under the old key.
            moved.visited = false;
            if self.arrays.get(key).is_none_or(|other| !other.is_busy()) {
                self.arrays.insert(key.clone(), moved);
            }
        }
    }

    /// Forgets what isn't to be served any more.
    ///
    /// With `assemble = "all"` an array without an entry is known by its members alone, and one look may miss
    /// them: a disk is slow to answer, or the kernel has them for a while. So only the look after a `reload`
    /// forgets; and what a person has stopped not even that, for it would be started when it is found again.
    ///
    /// What only a person starts goes when a person has stopped it. Where its server has died it is told of
    /// until a person has seen to it.
    fn forget_absent(&mut self, keys: &[String], reloaded: bool) {
        let (all, now) = (self.configuration.scan.all, self.now());
        let stays = |kept: &Kept| {
            let is_stopped = matches!(kept.course.phase, Phase::Stopped { .. });
            if kept.is_started {
                all && (!reloaded || is_stopped)
            } else {
                !reloaded && kept.course.failures > 0
            }
        };
        self.arrays.retain(|key, kept| keys.contains(key) || kept.is_busy() || stays(kept));
        for (_, kept) in self.arrays.iter_mut().filter(|(key, _)| !keys.contains(key)) {
            let why = if kept.is_started {
                "no member of it was found that is free"
            } else {
                "its server has died, and only a person starts it: see `pinstripe events`, and `pinstripe assemble` it"
            };
            kept.course.looked(&State::Late { why: why.to_owned(), enough: false }, None, now);
        }
    }

    /// A reason for waiting is told when it is new.
    fn tell_of_waiting(&self, key: &str, before: &Phase) {
        let Some(kept) = self.arrays.get(key) else { return };
        let Phase::Waiting { why, .. } = &kept.course.phase else { return };
        if !matches!(before, Phase::Waiting { why: old, .. } if old == why) {
            self.log.of(&kept.label).note(&format!("waits: {}", one_line(why)));
        }
    }

    fn new_run(&mut self, key: &str) -> u64 {
        self.next_run += 1;
        if let Some(kept) = self.arrays.get_mut(key) {
            kept.run = self.next_run;
            kept.follower = None;
        }
        self.next_run
    }

    fn start(&mut self, key: &str, wanted: Wanted, state: State) {
        self.log.of(&wanted.label).note("is being started");
        let run = self.new_run(key);
        if let Err(error) = threads::start(run, wanted, state, self.sender.clone()) {
            let why = format!("no server can be started: {error}");
            self.started(run, Outcome::NotStarted(why));
        }
    }

    /// Tells of something that the daemon itself has found, and keeps it.
    fn record(&mut self, array: &str, event: &str, message: &str, alarming: bool) {
        // With the end of a server's log, perhaps.
        let message = one_line(message);
        let level = severity(event, alarming);
        let entry = Entry { level, event: Some(event), message: &message, ..Entry::default() };
        self.log.of(array).event(&entry);
        let time = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        let (array, event) = (array.to_owned(), event.to_owned());
        self.keep(Told { time, array, event, device: None, alarming, message });
    }

    /// Keeps an event.
    fn keep(&mut self, told: Told) {
        if let Some(kept) = self.arrays.values_mut().find(|kept| kept.label == told.array) {
            kept.count(&told.event);
        }
        self.board.remember(told.clone());
        self.secretary.ask(Errand::Keep(told));
    }

    /// The array with this server, and its key by now; none if the server is an earlier one.
    fn of_run(&mut self, run: u64) -> Option<(&String, &mut Kept)> {
        self.arrays.iter_mut().find(|(_, kept)| kept.run == run)
    }

    fn started(&mut self, run: u64, outcome: Outcome) {
        let now = self.now();
        let Some((key, kept)) = self.of_run(run) else {
            // It isn't wanted any more; its server is left alone, but for its end.
            if let Outcome::Started(started) = outcome
                && let Some(child) = started.into_child()
            {
                threads::reap(child);
            }
            return;
        };
        let (key, label) = (key.clone(), kept.label.clone());
        match outcome {
            Outcome::Started(started) => {
                self.record(&label, "Started", &format!("was started: {}", started.in_words()), false);
                let control = started.control().to_owned();
                self.follow(&key, control, started.into_child());
            }
            Outcome::Served(control) => {
                self.log.of(&label).note("was started by another process: its server is followed");
                self.follow(&key, control, None);
            }
            Outcome::WouldStart { .. } => {}
            Outcome::NotStarted(why) => {
                kept.course.not_started(why.clone(), now);
                let is_told = kept.course.failures.is_power_of_two();
                // One that never starts must not fill the history.
                if is_told {
                    self.record(&label, "NotStarted", &format!("was not started: {why}"), true);
                }
            }
        }
        if self.stopping {
            self.stop(&key);
        }
    }

    fn follow(&mut self, key: &str, control: PathBuf, child: Option<std::process::Child>) {
        let (now, run) = (self.now(), self.new_run(key));
        let Some(kept) = self.arrays.get_mut(key) else { return };
        kept.course.answers(control.clone(), now);
        self.chores.survey_soon(self.board.is_up());
        let known = (self.heard.get(&control).cloned(), self.since);
        let followed = (control, kept.uuid.clone());
        match threads::follow(run, followed, child, known, &self.sender) {
            Ok(follower) => kept.follower = Some(follower),
            Err(error) => self.log.of(&kept.label).warn(&format!("its server can't be followed: {error}")),
        }
    }

    fn news(&mut self, run: u64, news: News) {
        let now = self.now();
        let Some((_, kept)) = self.of_run(run) else { return };
        let label = kept.label.clone();
        match news {
            // Of two threads the other one has told of its end already.
            News::Answers(_) if kept.follower.is_none() => {}
            News::Answers(control) => kept.course.answers(control, now),
            News::Silent(why) => kept.course.is_silent(why),
            News::Events { control, heard, events } => {
                self.heard.insert(control, heard);
                for event in events {
                    self.happened(&label, event);
                }
            }
            News::Ended(ending) => {
                kept.follower = None;
                match &ending {
                    Ending::Ordered => self.record(&label, "Stopped", "was stopped", false),
                    Ending::Died(how) => self.record(&label, "ServerDied", how, true),
                }
                if let Some((_, kept)) = self.of_run(run) {
                    kept.course.ended(ending, now);
                }
            }
        }
    }

    /// A server has told of an event.
    fn happened(&mut self, label: &str, event: Event) {
        let Event { time, number, event, device, alarming, message } = event;
        self.log.of(label).event(&Entry {
            level: severity(&event, alarming),
            time: Some(time),
            event: Some(&event),
            number: Some(number),
            member: device.as_deref(),
            message: &message,
            ..Entry::default()
        });
        self.keep(Told { time, array: label.to_owned(), event, device, alarming, message });
        self.chores.survey_soon(self.board.is_up());
    }

    /// Ends all servers; the daemon ends when they have.
    fn stop_arrays(&mut self) {
        self.stopping = true;
        let keys: Vec<String> = self.arrays.keys().cloned().collect();
        for key in keys {
            self.stop(&key);
        }
    }

    fn stop(&self, key: &str) {
        let Some(kept) = self.arrays.get(key) else { return };
        if let Phase::Serving { control, .. } = &kept.course.phase {
            let log = self.log.of(&kept.label);
            log.note("is being stopped");
            if let Err(error) = threads::stop(control.clone(), log.clone()) {
                log.warn(&format!("can't be stopped: {error}"));
            }
        }
    }

    fn answer(&mut self, command: Command) -> Result<Value, CallError> {
        match command {
            Command::Version => said(Version {
                protocol: pinstripe_control::PROTOCOL,
                pinstripe: env!("CARGO_PKG_VERSION").to_owned(),
                instance: format!("{}-{:x}", std::process::id(), self.since),
                pid: std::process::id(),
            }),
            Command::Status => said(self.status()),
            Command::Look => {
                self.look.wanted = true;
                said(Looks { starts: self.starts })
            }
            Command::Reload => match self.reload() {
                Ok(reloaded) => said(reloaded),
                Err(why) => Err(CallError::new(code::REFUSED, &why)),
            },
        }
    }

    fn reload(&mut self) -> Result<Reloaded, String> {
        let new = match configuration::load(self.given.as_deref()) {
            Ok(new) => new,
            Err(problems) => {
                for problem in &problems.0 {
                    self.log.warn(&format!("the configuration was not changed: {problem}"));
                }
                self.problem = Some(problems.to_string());
                return Err(format!("the configuration was not changed:\n{problems}"));
            }
        };
        let control = |key: &str| self.arrays.get(key)?.answering();
        let planned = reload::changes(&self.configuration, &new, self.starts);
        let removed: Vec<String> = reload::removed(&planned);
        let changes = reload::carry_out(planned, control);
        self.arrays.retain(|key, _| !removed.contains(key));
        for change in &changes {
            self.log.of(&change.array).note(&format!("configuration: {}", change.what));
        }
        let files = new.files.clone();
        self.log.note(&format!("the configuration was read again: {}", count(files.len(), "file")));
        self.configuration = new;
        self.left_out.clear();
        self.secretary.ask(Errand::Ways(self.configuration.alerts.clone()));
        self.problem = None;
        // Whatever was told before is told again: a person waits for it.
        self.unserved = None;
        self.keep_listening();
        self.generation += 1;
        (self.look.wanted, self.look.forgets) = (true, true);
        Ok(Reloaded { files, changes, unserved: self.unserved.clone() })
    }

    fn status(&self) -> Status {
        Status {
            pid: std::process::id(),
            pinstripe: env!("CARGO_PKG_VERSION").to_owned(),
            since: self.since,
            files: self.configuration.files.clone(),
            configuration_error: self.problem.clone(),
            unserved: self.unserved.clone(),
            looking_seconds: self.look.since.map(|since| since.elapsed().as_secs()),
            remarks: self.remarks.iter().cloned().chain(self.secretary.unkept()).collect(),
            alerts: self.chores.book.status(),
            arrays: self.arrays.values().map(|kept| kept.status(self.now(), self.since)).collect(),
        }
    }
}

/// An answer. One that JSON can't have, such as a path that is no UTF-8, is no reason to end.
fn said(answer: impl Serialize) -> Result<Value, CallError> {
    serde_json::to_value(answer)
        .map_err(|error| CallError::new(code::FAILED, &format!("can't be said: {error}")))
}

/// Of a URL.
fn scheme(is_secured: bool) -> &'static str {
    if is_secured { "https" } else { "http" }
}

/// What is to become of an array that something else starts.
fn left_to_others(state: State) -> State {
    match state {
        State::Ready | State::Perhaps(_) => {
            State::Late { why: "is for the service manager to start".to_owned(), enough: false }
        }
        State::Late { why, .. } => State::Late { why, enough: false },
        state => state,
    }
}
