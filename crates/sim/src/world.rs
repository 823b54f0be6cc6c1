//! The world: shards, disks and links under one clock, every step of them chosen by a seed.
//!
//! A step is one of: a shard polls one of its ready tasks, a shard takes its mail, a shard's due timers fire,
//! a request of a disk or link takes effect or ends. What may happen now competes; the [`Schedule`] says with
//! which weights. Time stands still while anything may happen, but for a drawn tick now and then (code takes
//! time) and for shards that are descheduled for a while; when nothing may happen it jumps to the next moment
//! at which something will.
//!
//! When nothing will ever happen again and the harness still waits, a wake was lost or a request was dropped:
//! the run ends with [`Stuck`] and names the tasks that are alive.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt::{self, Write},
    future::Future,
    ops::Range,
    rc::{Rc, Weak},
};

use pinstripe_runtime::{Shard, ShardConfig, shard::Entered};

use crate::{
    disk::{SimDisk, SimDiskConfig},
    rng::Rng,
    schedule::Schedule,
    source::EventSource,
    stream::{SimStream, SimStreamConfig},
    trace::{Event, Trace},
};

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Decides everything that is drawn.
    pub seed: u64,
    /// Number of shards.
    pub shards: usize,
    /// Bytes of each shard's buffer arena.
    pub arena_bytes: usize,
    /// How many of the last events are kept in words.
    pub log_events_max: usize,
    /// How steps are chosen; drawn from the seed if absent.
    pub schedule: Option<Schedule>,
    /// How shards are taken off their CPU in the middle of a poll; never if absent.
    pub interruptions: Option<Interruptions>,
}

/// How shards are taken off their CPU in the middle of a poll, where a task says that it matters
/// ([`interruption`](pinstripe_runtime::shard::interruption)): between two steps of a protocol with other
/// shards. A shard that is descheduled between two polls ([`Schedule::pauses`]) never shows what happens
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interruptions {
    /// Of 1024 such points, how many are one.
    pub chances: u64,
    /// The longest, in nanoseconds.
    pub ns_max: u64,
}

impl Interruptions {
    /// Some runs have hardly any, some have many, and some have long ones.
    pub fn drawn(rng: &mut Rng) -> Self {
        Self {
            chances: rng.pick(&[4, 32, 128, 512]),
            // Far below the time that a member has: a shard that is off its CPU sees no completion.
            ns_max: rng.pick(&[100_000, 5_000_000, 50_000_000, 100_000_000]),
        }
    }
}

/// Decides about interruptions.
struct Interrupter {
    habits: Option<Interruptions>,
    rng: RefCell<Rng>,
    /// By shard: how long its next interruption is to be, if a test wants one.
    wanted: RefCell<BTreeMap<usize, u64>>,
    /// How long the task that is being polled is to be interrupted for.
    now: Cell<Option<u64>>,
}

impl Interrupter {
    fn interrupts(&self, shard: usize) -> bool {
        if self.now.get().is_some() {
            return false;
        }
        let wanted = self.wanted.borrow_mut().remove(&shard);
        let drawn = self.habits.and_then(|habits| {
            let mut rng = self.rng.borrow_mut();
            rng.chance(habits.chances, 1024).then(|| 1 + rng.below(habits.ns_max))
        });
        self.now.set(wanted.or(drawn));
        self.now.get().is_some()
    }
}

impl WorldConfig {
    /// A world of `shards` shards with a drawn schedule.
    pub fn new(seed: u64, shards: usize) -> Self {
        Self { seed, shards, arena_bytes: 1 << 20, log_events_max: 0, schedule: None, interruptions: None }
    }
}

/// A run that can't go on, or went on for too long.
#[derive(Debug, thiserror::Error)]
pub enum Stuck {
    /// Nothing will ever happen again and the condition does not hold: a lost wake, a dropped request, a hung
    /// disk.
    #[error("deadlock: nothing will ever happen again\n{0}")]
    Deadlock(String),
    /// The condition did not come true in the steps that were allowed.
    #[error("not done after {steps} steps\n{report}")]
    StepsUsedUp {
        /// The limit.
        steps: u64,
        /// See [`World::report`].
        report: String,
    },
}

/// What is left where nothing should be: see [`World::leak_report`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeakReport {
    /// Tasks that have not ended, per shard.
    pub tasks_alive: Vec<usize>,
    /// Requests that have not been completed, per shard.
    pub requests_in_flight: Vec<usize>,
    /// Blocks of memory that buffers and slices hold, per shard's pool.
    pub blocks_outstanding: Vec<u32>,
    /// Shards with mail that they have not taken.
    pub mailboxes_full: usize,
    /// Requests that disks and links hold.
    pub requests_pending: usize,
    /// Shards of earlier incarnations that something still refers to.
    pub shards_retained: usize,
}

impl LeakReport {
    /// Whether nothing is left.
    pub fn is_clean(&self) -> bool {
        self.tasks_alive.iter().all(|&count| count == 0)
            && self.requests_in_flight.iter().all(|&count| count == 0)
            && self.blocks_outstanding.iter().all(|&count| count == 0)
            && self.mailboxes_full == 0
            && self.requests_pending == 0
            && self.shards_retained == 0
    }
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "tasks {:?}, requests {:?}, blocks {:?} by shard; {} mailboxes, {} requests of disks and links, {} old shards",
            self.tasks_alive,
            self.requests_in_flight,
            self.blocks_outstanding,
            self.mailboxes_full,
            self.requests_pending,
            self.shards_retained
        )
    }
}

/// A task that the harness started, for reports.
struct TaskNote {
    name: String,
    shard: usize,
    polls: u64,
    polled_at: u64,
}

type TaskNotes = Rc<RefCell<BTreeMap<u64, TaskNote>>>;

/// Takes a task's note away when it ends or is dropped.
struct TaskGuard {
    notes: TaskNotes,
    number: u64,
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.notes.borrow_mut().remove(&self.number);
    }
}

#[derive(Clone, Copy)]
enum Choice {
    Task,
    Mail,
    Timers,
    Request,
}

/// Everything there is. See the module.
pub struct World {
    config: WorldConfig,
    schedule: Schedule,
    rng: Rng,
    clock: Rc<Cell<u64>>,
    trace: Rc<Trace>,
    shards: Vec<Rc<Shard>>,
    /// Until when each shard is descheduled.
    paused_until: Vec<u64>,
    /// By shard: where in its queue the task is that was interrupted. It goes on before anything else happens
    /// there.
    interrupted: Vec<Option<usize>>,
    interrupter: Rc<Interrupter>,
    /// Shards that have not turned since they were.
    standing: Vec<bool>,
    shards_past: Vec<Weak<Shard>>,
    sources: Vec<Rc<dyn EventSource>>,
    disks: usize,
    links: Rc<Cell<usize>>,
    /// Connections that were laid from inside, and that the scheduler doesn't know yet.
    laid: Sources,
    tasks: TaskNotes,
    tasks_started: u64,
    incarnation: u64,
    steps: u64,
}

type Sources = Rc<RefCell<Vec<Rc<dyn EventSource>>>>;

/// Lays connections from inside the world, where [`World::add_stream`] can't be called. Clones lay for the
/// same world.
#[derive(Clone)]
pub struct Wiring {
    rng: Rc<RefCell<Rng>>,
    clock: Rc<Cell<u64>>,
    trace: Rc<Trace>,
    links: Rc<Cell<usize>>,
    laid: Sources,
}

impl Wiring {
    /// Makes a connection between shards `ends.0` and `ends.1`. It dies with either of them.
    pub fn lay(&self, ends: (usize, usize), config: SimStreamConfig) -> (Rc<SimStream>, Rc<SimStream>) {
        let rng = self.rng.borrow_mut().fork(4);
        let number = self.links.replace(self.links.get() + 1);
        let (clock, trace) = (Rc::clone(&self.clock), Rc::clone(&self.trace));
        let (streams, source) = crate::stream::pair(number, ends, config, rng, clock, trace);
        self.laid.borrow_mut().push(source);
        streams
    }

    /// The moment of the virtual clock.
    pub fn now(&self) -> u64 {
        self.clock.get()
    }
}

impl World {
    /// A world at time 0.
    pub fn new(config: WorldConfig) -> Self {
        let mut rng = Rng::new(config.seed);
        let schedule = config.schedule.clone().unwrap_or_else(|| Schedule::drawn(&mut rng.fork(1)));
        let clock = Rc::new(Cell::new(0));
        let mut world = Self {
            rng: rng.fork(2),
            schedule,
            trace: Rc::new(Trace::new(Rc::clone(&clock), config.log_events_max)),
            clock,
            shards: Vec::new(),
            paused_until: vec![0; config.shards],
            interrupted: vec![None; config.shards],
            interrupter: Rc::new(Interrupter {
                habits: config.interruptions,
                rng: RefCell::new(Rng::new(config.seed).fork(5)),
                wanted: RefCell::default(),
                now: Cell::new(None),
            }),
            standing: vec![false; config.shards],
            shards_past: Vec::new(),
            sources: Vec::new(),
            disks: 0,
            links: Rc::default(),
            laid: Sources::default(),
            tasks: TaskNotes::default(),
            tasks_started: 0,
            incarnation: 0,
            steps: 0,
            config,
        };
        world.start_shards();
        world
    }

    fn new_shard(&self, index: usize) -> Rc<Shard> {
        let clock = Some(Rc::clone(&self.clock));
        let shard = Shard::new(&ShardConfig { index, arena_bytes: self.config.arena_bytes, clock });
        let interrupter = Rc::clone(&self.interrupter);
        shard.interrupt_by(move || interrupter.interrupts(index));
        shard
    }

    fn start_shards(&mut self) {
        self.shards = (0..self.config.shards).map(|index| self.new_shard(index)).collect();
        self.paused_until.fill(0);
        self.interrupted.fill(None);
        self.standing.fill(false);
    }

    /// Takes shard `index` off its CPU for so long, at the next point of a task where that matters.
    pub fn interrupt_next(&self, index: usize, nanoseconds: u64) {
        self.interrupter.wanted.borrow_mut().insert(index, nanoseconds);
    }

    /// The schedule of this run.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Nanoseconds since the world began.
    pub fn now(&self) -> u64 {
        self.clock.get()
    }

    /// Steps since the world began.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// How often the shards have died.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The record of the run.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// A stream of random numbers of the harness's own.
    pub fn rng(&mut self, label: u64) -> Rng {
        Rng::new(self.config.seed).fork(label.wrapping_add(1 << 32))
    }

    /// Shard `index` of this incarnation. Don't keep it past a crash.
    pub fn shard(&self, index: usize) -> &Rc<Shard> {
        &self.shards[index]
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Makes shard `index` the current one, to build things there.
    pub fn enter(&self, index: usize) -> Entered {
        self.shards[index].enter()
    }

    /// Makes a disk. It outlives crashes.
    pub fn add_disk(&mut self, config: SimDiskConfig) -> SimDisk {
        let rng = self.rng.fork(3);
        let disk = SimDisk::new(self.disks, config, rng, Rc::clone(&self.clock), Rc::clone(&self.trace));
        self.disks += 1;
        self.sources.push(disk.events());
        disk
    }

    /// Makes a connection between shards `ends.0` and `ends.1`. It dies with them.
    pub fn add_stream(
        &mut self,
        ends: (usize, usize),
        config: SimStreamConfig,
    ) -> (Rc<SimStream>, Rc<SimStream>) {
        let rng = self.rng.fork(4);
        let (streams, source) = crate::stream::pair(
            self.links.get(),
            ends,
            config,
            rng,
            Rc::clone(&self.clock),
            Rc::clone(&self.trace),
        );
        self.links.set(self.links.get() + 1);
        self.sources.push(source);
        streams
    }

    /// For tasks that are to connect while the world runs.
    pub fn wiring(&mut self, label: u64) -> Wiring {
        Wiring {
            rng: Rc::new(RefCell::new(self.rng(label))),
            clock: Rc::clone(&self.clock),
            trace: Rc::clone(&self.trace),
            links: Rc::clone(&self.links),
            laid: Rc::clone(&self.laid),
        }
    }

    /// Takes up connections that were laid from inside. If there are any, it first forgets abandoned ones.
    fn take_up_laid(&mut self) {
        let mut laid = self.laid.borrow_mut();
        if !laid.is_empty() {
            self.sources.retain(|source| !source.is_abandoned());
            self.sources.append(&mut laid);
        }
    }

    /// Starts a task on shard `index`. Its name appears in reports.
    pub fn spawn(&mut self, index: usize, name: &str, future: impl Future<Output = ()> + 'static) {
        self.tasks_started += 1;
        let number = self.tasks_started;
        let note = TaskNote { name: name.to_owned(), shard: index, polls: 0, polled_at: 0 };
        self.tasks.borrow_mut().insert(number, note);
        let guard = TaskGuard { notes: Rc::clone(&self.tasks), number };
        let clock = Rc::clone(&self.clock);
        let mut future = Box::pin(future);
        let noted = std::future::poll_fn(move |cx| {
            if let Some(note) = guard.notes.borrow_mut().get_mut(&guard.number) {
                note.polls += 1;
                note.polled_at = clock.get();
            }
            future.as_mut().poll(cx)
        });
        let _entered = self.enter(index);
        self.shards[index].spawn(noted);
    }

    /// Runs `future` on shard `index` until it gives its value.
    pub fn block_on<T: 'static>(
        &mut self,
        index: usize,
        name: &str,
        steps_max: u64,
        future: impl Future<Output = T> + 'static,
    ) -> Result<T, Stuck> {
        let value = Rc::new(RefCell::new(None));
        let there = Rc::clone(&value);
        self.spawn(index, name, async move {
            let given = future.await;
            *there.borrow_mut() = Some(given);
        });
        self.run_until(steps_max, |_| value.borrow().is_some())?;
        Ok(value.borrow_mut().take().unwrap_or_else(|| unreachable!("the condition found it")))
    }

    /// Takes steps until `condition` holds, at most `steps_max`.
    pub fn run_until(
        &mut self,
        steps_max: u64,
        mut condition: impl FnMut(&World) -> bool,
    ) -> Result<(), Stuck> {
        for _ in 0..steps_max {
            if condition(self) {
                return Ok(());
            }
            if !self.step() {
                return Err(Stuck::Deadlock(self.report()));
            }
        }
        if condition(self) {
            return Ok(());
        }
        Err(Stuck::StepsUsedUp { steps: steps_max, report: self.report() })
    }

    /// Takes steps until nothing will ever happen again by itself, at most `steps_max`.
    pub fn run_until_idle(&mut self, steps_max: u64) -> Result<(), Stuck> {
        for _ in 0..steps_max {
            if !self.step() {
                return Ok(());
            }
        }
        Err(Stuck::StepsUsedUp { steps: steps_max, report: self.report() })
    }

    /// Has one thing happen. False if nothing can, now or later.
    pub fn step(&mut self) -> bool {
        self.steps += 1;
        self.take_up_laid();
        if self.rng.chance(self.schedule.ticks, 1024) {
            let tick = 1 + self.rng.below(self.schedule.tick_ns_max);
            self.clock.set(self.now() + tick);
        }
        let now = self.now();
        self.resume(now);
        let eligible = self.eligible(now);
        let total: u64 = eligible.iter().map(|(_, weight, _)| weight).sum();
        if total == 0 {
            return self.jump(now);
        }
        let mut draw = self.rng.below(total);
        for (choice, weight, count) in eligible {
            if draw < weight {
                self.happen(choice, count, now);
                break;
            }
            draw -= weight;
        }
        true
    }

    /// These shards get no steps for so long, as when their process is stopped, its group frozen or its
    /// machine suspended. Disks, links and all other shards go on.
    pub fn stall(&mut self, shards: Range<usize>, nanoseconds: u64) {
        let until = self.now() + nanoseconds;
        for index in shards {
            self.stand(index, until);
        }
    }

    fn stand(&mut self, index: usize, until: u64) {
        if !std::mem::replace(&mut self.standing[index], true) {
            self.shards[index].has_turned();
        }
        self.paused_until[index] = until.max(self.paused_until[index]);
        self.trace.record(Event::Paused { shard: index, until });
    }

    /// Shards that may go on look at the clock first, as a driver's loop does.
    fn resume(&mut self, now: u64) {
        for (index, standing) in self.standing.iter_mut().enumerate() {
            if *standing && self.paused_until[index] <= now {
                *standing = false;
                self.shards[index].turn();
            }
        }
    }

    /// What may happen now, with its weight (0 if there is nothing of the kind) and how many there are of it.
    fn eligible(&self, now: u64) -> [(Choice, u64, usize); 4] {
        let [mut tasks, mut mail, mut timers] = [0; 3];
        for (shard, &paused_until) in self.shards.iter().zip(&self.paused_until) {
            if paused_until > now {
                continue;
            }
            tasks += usize::from(shard.ready_count() > 0);
            mail += usize::from(shard.mailbox().has_mail());
            timers += usize::from(shard.next_timer().is_some_and(|due| due <= now));
        }
        let requests = self.sources.iter().map(|source| source.due(now)).sum();
        let weighed = |choice, weight, count| (choice, if count > 0 { weight } else { 0 }, count);
        [
            weighed(Choice::Task, self.schedule.weight_tasks, tasks),
            weighed(Choice::Mail, self.schedule.weight_mail, mail),
            weighed(Choice::Timers, self.schedule.weight_timers, timers),
            weighed(Choice::Request, self.schedule.weight_requests, requests),
        ]
    }

    fn happen(&mut self, choice: Choice, count: usize, now: u64) {
        let mut nth = self.rng.index(count);
        if let Choice::Request = choice {
            for source in &self.sources {
                let due = source.due(now);
                if nth < due {
                    source.happen(nth, now, &self.shards);
                    return;
                }
                nth -= due;
            }
            return;
        }
        let fits = |index: &usize| {
            let shard = &self.shards[*index];
            self.paused_until[*index] <= now
                && match choice {
                    Choice::Task => shard.ready_count() > 0,
                    Choice::Mail => shard.mailbox().has_mail(),
                    Choice::Timers => shard.next_timer().is_some_and(|due| due <= now),
                    Choice::Request => false,
                }
        };
        let Some(index) = (0..self.shards.len()).filter(fits).nth(nth) else { return };
        if self.rng.chance(self.schedule.pauses, 65536) {
            let until = now + 1 + self.rng.below(self.schedule.pause_ns_max);
            self.stand(index, until);
            return;
        }
        self.run_shard(index, choice);
    }

    fn run_shard(&mut self, index: usize, choice: Choice) {
        let shard = Rc::clone(&self.shards[index]);
        let _entered = shard.enter();
        if let Some(position) = self.interrupted[index].take() {
            return self.poll(&shard, position.min(shard.ready_count().saturating_sub(1)));
        }
        match choice {
            Choice::Task => {
                let ready = shard.ready_count();
                let jump = ready > 1 && self.rng.chance(self.schedule.out_of_order, 1024);
                let position = if jump { self.rng.index(ready) } else { 0 };
                self.poll(&shard, position);
            }
            Choice::Mail => {
                self.trace.record(Event::Mail { shard: index });
                shard.deliver_mail();
            }
            Choice::Timers | Choice::Request => {
                self.trace.record(Event::Timers { shard: index });
                shard.fire_timers();
            }
        }
    }

    fn poll(&mut self, shard: &Shard, position: usize) {
        let (index, ready) = (shard.index(), shard.ready_count());
        self.trace.record(Event::Polled { shard: index, position, ready });
        shard.poll_ready(position);
        if let Some(nanoseconds) = self.interrupter.now.take() {
            self.interrupted[index] = shard.ready_count().checked_sub(1);
            self.stand(index, self.now() + nanoseconds);
        }
    }

    /// Nothing may happen at `now`: time goes on to the next moment at which something will, if there is one.
    fn jump(&mut self, now: u64) -> bool {
        // Of a shard that stands still no timer is due before it goes on; whether it is due then, is seen
        // then.
        let resumes = |(shard, &until): (&Rc<Shard>, &u64)| {
            let wants = shard.ready_count() > 0 || shard.mailbox().has_mail();
            let timer = shard.next_timer().map(|due| due.max(until));
            Some(until).filter(|&until| wants && until > now).into_iter().chain(timer).min()
        };
        let shards = self.shards.iter().zip(&self.paused_until).filter_map(resumes).min();
        let sources = self.sources.iter().filter_map(|source| source.next_due()).min();
        let Some(next) = shards.into_iter().chain(sources).min() else {
            return false;
        };
        self.clock.set(next.max(now));
        self.trace.record(Event::Clock { now: next });
        true
    }

    /// Power loss: every task of every shard is gone, disks keep what their caches let survive, and new
    /// shards start.
    pub fn crash(&mut self) {
        self.end_incarnation(true);
    }

    /// The process dies and starts again; the disks lose nothing that was completed.
    pub fn kill(&mut self) {
        self.end_incarnation(false);
    }

    /// One process of several dies, which is these shards: its tasks are gone, its connections are reset, or,
    /// if it is `silent`, say nothing any more. `disks` are those of its machine: with `power` their caches
    /// are lost.
    pub fn end_shards(&mut self, shards: &Range<usize>, disks: &[SimDisk], power: bool, silent: bool) {
        self.take_up_laid();
        self.shards[shards.clone()].iter().for_each(end_tasks);
        for source in &self.sources {
            source.lose_shards(shards, silent);
        }
        let disks: Vec<_> = disks.iter().map(SimDisk::events).collect();
        for disk in &disks {
            disk.crash(power);
        }
        let contents = disks.iter().fold(0_u64, |sum, disk| sum.rotate_left(1) ^ disk.contents());
        self.trace.record(Event::Crash { incarnation: self.incarnation, power, contents });
        self.sources.retain(|source| !source.is_over());
        for index in shards.clone() {
            let shard = self.new_shard(index);
            self.shards_past.push(Rc::downgrade(&std::mem::replace(&mut self.shards[index], shard)));
            self.paused_until[index] = 0;
            self.interrupted[index] = None;
            self.standing[index] = false;
        }
        self.shards_past.retain(|shard| shard.strong_count() > 0);
    }

    fn end_incarnation(&mut self, power: bool) {
        self.take_up_laid();
        self.shards.iter().for_each(end_tasks);
        for source in &self.sources {
            source.crash(power);
        }
        let contents = self.sources.iter().fold(0_u64, |sum, source| sum.rotate_left(1) ^ source.contents());
        self.trace.record(Event::Crash { incarnation: self.incarnation, power, contents });
        self.sources.retain(|source| !source.is_over());
        self.shards_past.extend(self.shards.iter().map(Rc::downgrade));
        self.shards.clear();
        self.shards_past.retain(|shard| shard.strong_count() > 0);
        self.incarnation += 1;
        self.start_shards();
    }

    /// What is left now. After a clean end nothing may be.
    pub fn leak_report(&self) -> LeakReport {
        LeakReport {
            tasks_alive: self.shards.iter().map(|shard| shard.tasks_alive()).collect(),
            requests_in_flight: self.shards.iter().map(|shard| shard.requests_in_flight()).collect(),
            blocks_outstanding: self.shards.iter().map(|shard| shard.pool().outstanding()).collect(),
            mailboxes_full: self.shards.iter().filter(|shard| shard.mailbox().has_mail()).count(),
            requests_pending: self.sources.iter().map(|source| source.pending()).sum(),
            shards_retained: self.shards_past.iter().filter(|shard| shard.strong_count() > 0).count(),
        }
    }

    /// The tasks that are alive, what is pending, and the last events, in words.
    pub fn report(&self) -> String {
        let mut lines = format!(
            "seed {}, step {}, time {}, incarnation {}\n",
            self.config.seed,
            self.steps,
            self.now(),
            self.incarnation
        );
        for (index, shard) in self.shards.iter().enumerate() {
            // Writing to a string does not fail.
            let _ = writeln!(
                lines,
                "shard {index}: {} tasks, {} ready, {} requests, mail: {}, next timer {:?}, paused until {}",
                shard.tasks_alive(),
                shard.ready_count(),
                shard.requests_in_flight(),
                shard.mailbox().has_mail(),
                shard.next_timer(),
                self.paused_until[index]
            );
        }
        for (number, note) in self.tasks.borrow().iter() {
            let _ = writeln!(
                lines,
                "task {number} \"{}\" on shard {}: polled {} times, last at {}",
                note.name, note.shard, note.polls, note.polled_at
            );
        }
        for source in &self.sources {
            lines.push_str(&source.describe());
        }
        lines.push_str(&self.trace.log());
        lines
    }
}

fn end_tasks(shard: &Rc<Shard>) {
    let _entered = shard.enter();
    // Messages hold memory, and dropping them may start tasks.
    while let Some(message) = shard.mailbox().take_message() {
        drop(message);
    }
    shard.drop_tasks();
}

impl Drop for World {
    /// Tasks may hold shards' memory and submissions, which want to be dropped on their shard.
    fn drop(&mut self) {
        for shard in &self.shards {
            let _entered = shard.enter();
            shard.drop_tasks();
        }
    }
}
