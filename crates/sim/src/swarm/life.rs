//! The lives of an array: assembly, work, and an end in peace or by a crash.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use pinstripe_engine::{
    array::Array,
    assembly::{AssembleError, create::create_placed},
    geometry::{ParityGeometry, StripeId},
    io::volume::Volume,
    membership::snapshot::Snapshot,
    offload::fence::FenceError,
};
use pinstripe_runtime::{DeviceError, DeviceErrorKind, DeviceSource};

use super::{
    Consistency, Phase, Swarm, UserState, Verdict,
    client::{Habits, client, read_all},
    front::{Front, FrontEnd},
    marks,
    net::Reach,
    races::Races,
    vast, wide,
};
use crate::{
    Fault, SECTOR, SimDisk,
    checks::{Damage, check_parity, superblock, survey},
    rng::index,
    world::Stuck,
};

/// Steps after which a run that should have come to rest counts as stuck.
pub(crate) const STEPS_MAX: u64 = 1_000_000;

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Peace,
    Crash,
    Kill,
    /// While the array is being stopped.
    CrashInStop,
    /// After more disks have gone than the level bears; all come back.
    Outage,
    /// After the journal device has gone.
    JournalLoss,
    /// By another client, while this one goes on.
    Takeover,
}

impl Swarm {
    /// The whole run.
    pub(crate) fn run(&mut self) -> Result<(), Verdict> {
        match self.run_lives() {
            Err(Verdict::Abandoned) => Ok(()),
            result => result,
        }
    }

    fn run_lives(&mut self) -> Result<(), Verdict> {
        self.create()?;
        self.start_servers();
        for life in 0..self.setup.lives {
            if !self.assemble()? {
                return Ok(());
            }
            let last = life + 1 == self.setup.lives;
            let end = if !last && self.rng.chance(self.setup.crashes, 8) {
                self.rng.pick(&[End::Crash, End::Crash, End::Crash, End::Kill, End::CrashInStop, End::Outage])
            } else {
                End::Peace
            };
            let end = if !last && self.will_lose_journal() { End::JournalLoss } else { end };
            let takeovers = self.setup.net.as_ref().map_or(0, |net| net.takeovers);
            let end =
                if !last && takeovers > 0 && self.rng.chance(takeovers, 8) { End::Takeover } else { end };
            // What fails with more than the level bears may leave any row torn.
            let end = if self.setup.marks.is_some() && end == End::Outage { End::Crash } else { end };
            self.ends_in_peace = end == End::Peace;
            self.live(end)?;
        }
        Ok(())
    }

    fn create(&mut self) -> Result<(), Verdict> {
        let placed = self.setup.place(&mut self.rng);
        let placed = placed.map_err(|error| Verdict::Refused(format!("placement: {error}")))?;
        let disks = self.disks.clone();
        let placed = self.world.block_on(0, "create", STEPS_MAX, async move {
            let devices: Vec<_> = disks.iter().map(SimDisk::attach).collect();
            create_placed(placed, &devices).await
        })?;
        placed.map_err(|error| Verdict::Refused(format!("create: {error}")))?;
        if let Some(geometry) = self.shape() {
            self.shop = UserState::new(geometry.array_bytes() / SECTOR);
            if self.setup.resync {
                self.spoil_parity(&geometry);
            }
        }
        Ok(())
    }

    /// Parity that was never computed.
    fn spoil_parity(&mut self, geometry: &ParityGeometry) {
        let Ok(survey) = survey(self.disks.iter().enumerate()) else { return };
        let mut bytes = vec![0; geometry.chunk_bytes() as usize];
        for stripe in 0..geometry.stripes() {
            let map = geometry.slots(StripeId(stripe));
            for slot in [Some(map.p_slot()), map.q_slot()].into_iter().flatten() {
                if let Some((number, superblock)) = &survey.seats[slot.index()]
                    && self.rng.chance(3, 4)
                {
                    self.rng.fill(&mut bytes);
                    let at =
                        superblock.member.data_offset.0 * SECTOR + geometry.member_offset(StripeId(stripe));
                    self.disks[*number].poke(at, &bytes);
                }
            }
        }
    }

    /// Disks that are there and have ever been given a superblock, and their numbers.
    pub(crate) fn present(&self) -> Vec<(usize, SimDisk)> {
        let disks = self.disks.iter().cloned().enumerate();
        disks
            .filter(|(number, disk)| {
                !disk.is_gone()
                    && !self.is_down(*number)
                    && (self.initiated.contains(number) || superblock(disk).is_some())
            })
            .collect()
    }

    /// Assembles the array. False if it was refused, legally, and the run ends here.
    pub(crate) fn assemble(&mut self) -> Result<bool, Verdict> {
        self.phase = Phase::Starting;
        self.lose_bits()?;
        self.leave_some_out()?;
        self.die_in_assemblies()?;
        let (mut force, mut has_rival) = (false, self.draw_rivals());
        // Which slots had a member when the start had to be forced.
        let mut forced: Option<Vec<bool>> = None;
        loop {
            let forbidden = self.is_journal_forbidden();
            self.note_lost()?;
            let outcome = self.start_assembly(force);
            let rival = std::mem::take(&mut has_rival).then(|| self.start_rival());
            let all = [Some(outcome), rival];
            self.wait_in_steps(|_| all.iter().flatten().all(|outcome| outcome.borrow().is_some()))?;
            let [Some(ours), theirs] = all.map(|outcome| outcome?.borrow_mut().take()) else {
                unreachable!("it is there")
            };
            let outcome = match theirs {
                Some(theirs) => self.settle_rivals(ours, theirs)?,
                None => ours,
            };
            match outcome {
                Ok(array) => {
                    self.doubt_cut_off();
                    self.begin_life(array);
                    if let Some(here) = forced.filter(|_| self.is_contended()) {
                        // Now that what the old client had under way is cut off: a start that is refused
                        // gives up what it has taken, so that one has gone on.
                        self.doubt_suspects(&here);
                    }
                    self.started_after_loss(forbidden, force)?;
                    return Ok(true);
                }
                Err(AssembleError::JournalMissing) if !force && self.may_miss_journal()? => {
                    self.summary.forced += 1;
                    force = true;
                }
                Err(AssembleError::Fence(FenceError::TooFew { .. })) if !force => {
                    // C23: a takeover may go on with all members; or by force, where a user knows that no
                    // other host takes over.
                    self.summary.refusals += 1;
                    forced = self.is_takeover_hopeless()?;
                    force = forced.is_some();
                }
                Err(AssembleError::DirtyDegraded { missing }) => {
                    forced = self.bear_dirty_and_degraded(missing)?;
                    force = forced.is_some();
                    if !force {
                        return Ok(false);
                    }
                }
                // All members that the level needs are there, and it is known which these are.
                Err(error) if self.net.is_some() => {
                    return Err(Verdict::Scene(format!("assembly is refused: {error}")));
                }
                Err(error) => return Err(Verdict::Refused(format!("assembly: {error}"))),
            }
        }
    }

    /// Assemblies that are cut off.
    fn die_in_assemblies(&mut self) -> Result<(), Verdict> {
        let more = if self.setup.atlas.is_some() { self.rng.pick(&[0, 0, 1, 2]) } else { 0 };
        for _ in 0..more + self.rng.pick(&[0, 0, 0, 1, 2]) {
            // The machine dies in the middle of the assembly, or just after it, when resync has begun.
            self.note_lost()?;
            self.start_assembly(false);
            // With a network there is more to be done.
            let longest = if self.net.is_some() { 14 } else { 11 };
            let steps = 1 << self.rng.below(longest);
            self.idle_on(steps)?;
            let power = self.net.is_none() || self.rng.chance(1, 2);
            self.crash(power)?;
        }
        Ok(())
    }

    /// An assembly was refused because the array is dirty and degraded. Which slots have a member, if it is
    /// to be forced.
    fn bear_dirty_and_degraded(&mut self, missing: usize) -> Result<Option<Vec<bool>>, Verdict> {
        self.suspect_stale();
        let present = self.present();
        let survey = survey(present.iter().map(|(number, disk)| (*number, disk)))?;
        if !survey.is_dirty() || survey.whole() == survey.seats.len() {
            if self.is_contended() {
                // The old client goes on, and has changed it since.
                return Ok(None);
            }
            let words = format!("refused as dirty with {missing} missing, which it is not");
            return Err(Verdict::Refused(words));
        }
        self.summary.refusals += 1;
        if self.rng.chance(1, 4) {
            return Ok(None);
        }
        self.summary.forced += 1;
        let here: Vec<bool> = survey.members(&self.disks)?.iter().map(Option::is_some).collect();
        self.doubt_suspects(&here);
        Ok(Some(here))
    }

    pub(super) fn start_assembly(
        &mut self,
        force: bool,
    ) -> Rc<RefCell<Option<Result<Array, AssembleError>>>> {
        let mut ways: Vec<Reach> = self.present().iter().map(|(number, _)| self.reach(*number)).collect();
        self.rng.shuffle(&mut ways);
        let options = self.options(force);
        let home = self.home();
        let shards = (home..home + self.setup.shards).map(|i| self.world.shard(i).handle()).collect();
        let slot = Rc::new(RefCell::new(None));
        let there = Rc::clone(&slot);
        self.world.spawn(home, "assemble", async move {
            let outcome = match sources_of(ways).await {
                Ok(sources) => Array::assemble(sources, options, shards).await,
                Err(error) => Err(error),
            };
            *there.borrow_mut() = Some(outcome);
        });
        slot
    }

    fn begin_life(&mut self, array: Array) {
        if self.summary.assemblies == 0 && self.shape().is_none() {
            self.shop = UserState::new(array.volume().size() / SECTOR);
        }
        self.shop.open.set(0);
        self.shop.adds.set(0);
        self.shop.closing.set(false);
        self.summary.assemblies += 1;
        self.phase = Phase::Serving;
        self.afflicted.begin_life();
        self.array = Some(array);
        self.begin_net_life();
    }

    /// The array of this life.
    pub(crate) fn array(&self) -> Array {
        self.array.clone().unwrap_or_else(|| unreachable!("a life has an array"))
    }

    fn live(&mut self, end: End) -> Result<(), Verdict> {
        if let Some(setup) = self.setup.nbd.clone() {
            self.front = Some(Front::open(self, &setup));
        }
        self.spawn_clients();
        if self.summary.assemblies > 1 && self.rng.chance(3, 4) {
            self.spawn_read_all();
        }
        let mut deadline = match end {
            End::Peace | End::CrashInStop => u64::MAX,
            End::Crash | End::Kill | End::Outage | End::JournalLoss | End::Takeover => {
                let most = if self.net.is_some() { 19 } else { 16 };
                self.world.steps() + (1 << self.rng.range(5..most)) + self.rng.below(500)
            }
        };

        if end == End::Crash && self.disks.iter().any(SimDisk::is_gone) && self.rng.chance(1, 2) {
            // A device that was left behind is dangerous while it is only just out of date.
            deadline = self.world.steps() + (1 << self.rng.range(6..11));
        }
        let mut events = 80;
        let limit = self.world.steps() + STEPS_MAX;
        while self.shop.open.get() > 0 && self.world.steps() < deadline {
            let gap = 1 << if self.net.is_some() { self.rng.range(6..13) } else { self.rng.range(3..11) };
            self.step_on(gap.min(deadline - self.world.steps()))?;
            if self.world.steps() > limit {
                return Err(self.stuck());
            }
            if events > 0 {
                events -= 1;
                let failures = self.summary.failures;
                self.take_stock();
                self.event();
                self.atlas_event();
                self.wide_event();
                self.vast_event();
                self.marks_event();
                self.race_event();
                self.net_event();
                self.take_stock();
                if self.summary.failures > failures && deadline < u64::MAX && self.rng.chance(1, 3) {
                    // The time in which a loss is being recorded.
                    deadline = deadline.min(self.world.steps() + (1 << self.rng.range(2..11)));
                }
            }
        }
        if end != End::Peace {
            self.settle_marks()?;
        }
        match end {
            End::Peace => self.rest(),
            End::Crash => self.crash(true),
            End::CrashInStop => {
                self.begin_stop()?;
                self.crash(true)
            }
            End::Outage => {
                self.outage()?;
                let power = self.rng.chance(1, 2);
                self.crash(power)
            }
            End::JournalLoss => {
                let stopped = self.lose_journal()?;
                let power = stopped || self.rng.chance(2, 3);
                self.crash(power)
            }
            End::Kill => self.crash(false),
            End::Takeover => self.hand_over(),
        }
    }

    /// A stop that may be cut off anywhere.
    fn begin_stop(&mut self) -> Result<(), Verdict> {
        self.shop.closing.set(true);
        self.phase = Phase::Stopping;
        let array = self.array();
        self.world.spawn(self.home(), "stop", async move {
            let _ = array.stop().await;
        });
        let steps = 1 << self.rng.below(12);
        self.idle_on(steps)
    }

    /// More disks go than the level bears, say with their controller. Nothing of that may be written down
    /// (C3).
    fn outage(&mut self) -> Result<(), Verdict> {
        self.summary.outages += 1;
        self.shop.closing.set(true);
        if self.is_vast() {
            // No other disk goes beside these.
            self.disks.iter().for_each(|disk| disk.fault(&Fault::Calm));
        }
        if self.unsynced {
            self.doubt_unwritten();
        }
        // A journal is elsewhere: its loss is another story (C18).
        let journal = (self.setup.consistency == Consistency::Journal).then_some(self.setup.members);
        let goes = |number: &usize| !self.disks[*number].is_gone() && Some(*number) != journal;
        let mut numbers: Vec<usize> = (0..self.disks.len()).filter(goes).collect();
        if self.setup.atlas.is_some() || self.is_vast() {
            // The superblocks may not know yet that a disk is gone: all disks that are gone come back, too.
            self.outage.extend((0..self.disks.len()).filter(|number| self.disks[*number].is_gone()));
        }
        self.rng.shuffle(&mut numbers);
        let count = if self.rng.chance(1, 2) { numbers.len() } else { 1 + self.rng.index(numbers.len()) };
        for &number in &numbers[..count] {
            self.disks[number].fault(&Fault::Gone);
            self.outage.insert(number);
            let steps = if self.rng.chance(3, 4) { 0 } else { 1 << self.rng.below(9) };
            self.step_on(steps)?;
        }
        let steps = 1 << self.rng.range(3..12);
        self.step_on(steps)?;
        if self.setup.atlas.is_some() && count.is_multiple_of(2) {
            // Whatever has gone, every request ends, and so does a stop; how, is the array's affair.
            self.wait(|swarm| swarm.shop.open.get() == 0)?;
            let array = self.array();
            let _ = self.world.block_on(self.home(), "stop", STEPS_MAX, async move { array.stop().await })?;
        }
        Ok(())
    }

    /// One step, and a look at the crashes that could come after it. False if nothing will ever happen again.
    pub(crate) fn step(&mut self) -> Result<bool, Verdict> {
        let going = self.world.step();
        self.revive();
        if self.explorer.is_some() {
            self.explore()?;
        }
        Ok(going)
    }

    /// Lets up to `steps` happen, or fewer if all clients and commands are done.
    fn step_on(&mut self, steps: u64) -> Result<(), Verdict> {
        for _ in 0..steps {
            if self.shop.is_over() || self.shop.open.get() == 0 {
                break;
            }
            if !self.step()? {
                return Err(Stuck::Deadlock(self.world.report()).into());
            }
        }
        self.verdict()
    }

    /// Lets up to `steps` happen, whether a client waits or not.
    pub(super) fn idle_on(&mut self, steps: u64) -> Result<(), Verdict> {
        for _ in 0..steps {
            if !self.step()? {
                break;
            }
        }
        Ok(())
    }

    /// Waits until `done`, which is asked after every step.
    fn wait_in_steps(&mut self, mut done: impl FnMut(&Self) -> bool) -> Result<(), Verdict> {
        for _ in 0..STEPS_MAX {
            if done(self) {
                return Ok(());
            }
            if !self.step()? {
                return Err(Stuck::Deadlock(self.world.report()).into());
            }
        }
        if done(self) { Ok(()) } else { Err(self.stuck()) }
    }

    fn verdict(&self) -> Result<(), Verdict> {
        if self.is_endless() {
            return Err(Verdict::Abandoned);
        }
        self.shop.verdict.borrow_mut().take().map_or(Ok(()), Err)
    }

    /// Waits until `done`, which is asked now and then, or until the oracle has seen enough.
    pub(crate) fn wait(&mut self, mut done: impl FnMut(&Self) -> bool) -> Result<(), Verdict> {
        let limit = self.world.steps() + STEPS_MAX;
        loop {
            self.verdict()?;
            if done(self) {
                return Ok(());
            }
            if self.world.steps() > limit {
                return Err(self.stuck());
            }
            for _ in 0..64 {
                if !self.step()? {
                    if done(self) {
                        return Ok(());
                    }
                    return Err(Stuck::Deadlock(self.world.report()).into());
                }
            }
        }
    }

    pub(crate) fn stuck(&self) -> Verdict {
        let array = self.array.as_ref().map(|array| format!("{:?}", array.detail()));
        let report = format!("{}\n{}", array.unwrap_or_default(), self.world.report());
        Stuck::StepsUsedUp { steps: STEPS_MAX, report }.into()
    }

    pub(crate) fn spawn_clients(&mut self) {
        let array = self.array();
        let sectors = array.volume().size() / SECTOR;
        let stripe =
            self.shape().map_or(sectors / self.setup.stripes, |g| u64::from(g.stripe_bytes()) / SECTOR);
        let block = u64::from(self.setup.block) / SECTOR;
        let hot = self.rng.below(sectors / stripe) * stripe;
        for number in 0..self.setup.clients {
            let mut rng = self.rng.fork(number);
            let mut habits = Habits::drawn(&mut rng, sectors, stripe.max(8), block, hot, self.setup.requests);
            if self.setup.wide.is_some() {
                wide::widen(&mut habits, &mut rng, sectors);
            }
            vast::place(&self.setup, &mut habits, number, sectors);
            marks::shape(&self.setup, &mut habits, &mut rng, sectors);
            habits.ordered = self.shape().is_some();
            if self.setup.races.is_some() && habits.ordered {
                Races::shape(&mut rng, &mut habits, (stripe, sectors));
            }
            let (shared, shop) = (Arc::clone(array.shared()), Rc::clone(&self.shop));
            shop.open.set(shop.open.get() + 1);
            let mut shard = self.home() + self.rng.index(self.setup.shards);
            let line = self.front.as_ref().map(|front| {
                let (there, connection) = &front.connections[index(number) % front.connections.len()];
                // The protocol promises no order of what is under way together.
                (shard, habits.ordered) = (*there, false);
                Rc::clone(connection)
            });
            self.world.spawn(shard, "client", async move {
                let front_end = line.map_or_else(|| FrontEnd::Direct(Volume::new(shared)), FrontEnd::Nbd);
                client(front_end, shop, habits, rng).await;
            });
        }
    }

    pub(crate) fn spawn_read_all(&mut self) {
        // The array itself stays on its home shard.
        let (shared, shop) = (Arc::clone(self.array().shared()), Rc::clone(&self.shop));
        let ranges = self.sectors_in_use(self.array().volume().size() / SECTOR);
        shop.open.set(shop.open.get() + 1);
        let shard = self.home() + self.rng.index(self.setup.shards);
        self.world.spawn(shard, "read all", async move {
            let front_end = FrontEnd::Direct(Volume::new(shared));
            read_all(front_end, shop, ranges).await;
        });
    }

    /// The machine dies (or only the process), and what is on the disks is looked at.
    fn crash(&mut self, power: bool) -> Result<(), Verdict> {
        self.summary.crashes += 1;
        let loses = power || self.has_emptied_member();
        let unsettled = self.shop.ledger.borrow().unsettled(loses);
        let geometry = self.shape();
        self.suspects = self.suspects_after(&unsettled);
        self.cut_off.extend(unsettled);
        self.drop_array();
        match power {
            _ if self.net.is_some() => self.crash_net(power),
            true => self.world.crash(),
            false => self.world.kill(),
        }
        if loses {
            self.shop.ledger.borrow_mut().crash();
        } else {
            self.shop.ledger.borrow_mut().kill();
        }
        self.heal_after_crash();
        let present = self.present();
        let survey = survey(present.iter().map(|(number, disk)| (*number, disk)))?;
        let (whole, members) = (survey.whole(), survey.seats.len());
        if let Some(geometry) = geometry {
            if whole + geometry.redundancy() < members {
                let words = format!("{whole} of {members} members are current: that is data loss");
                return Err(Damage::Members(words).into());
            }
            if self.setup.consistency.settles_by_parity() {
                let stripes = self.stripes_in_use(&geometry);
                survey.check_stripes_covered(&self.disks, &geometry, stripes.into_iter())?;
            }
        }
        Ok(())
    }

    /// After a crash the disks are well, but some that were gone stay away.
    fn heal_after_crash(&mut self) {
        for number in 0..self.disks.len() {
            let disk = &self.disks[number];
            if self.setup.plans_faults() {
                disk.fault(&Fault::Calm);
            }
            disk.fault(&Fault::Heal);
            disk.fault(&Fault::Release);
            disk.fault(&Fault::SlowBy(1));
            if disk.is_gone() && (self.outage.contains(&number) || self.rng.chance(2, 3)) {
                disk.fault(&Fault::Return);
            }
        }
        self.doomed.clear();
        self.outage.clear();
    }

    /// Everything ends well: members come back, all is rebuilt, read, compared, stopped, and nothing is left.
    pub(crate) fn rest(&mut self) -> Result<(), Verdict> {
        self.wait(|swarm| swarm.shop.open.get() == 0)?;
        self.close_front()?;
        if self.rng.chance(1, 2) {
            self.spawn_read_all();
            self.wait(|swarm| swarm.shop.open.get() == 0)?;
        }
        for disk in &self.disks {
            if self.setup.plans_faults() {
                disk.fault(&Fault::Calm);
            }
            disk.fault(&Fault::Heal);
            disk.fault(&Fault::Release);
        }
        self.heal_net()?;
        let array = self.array();
        let shared = Arc::clone(array.shared());
        loop {
            self.make_whole()?;
            self.wait(|_| shared.admission.writers() == 0 && shared.stripes.is_idle())?;
            self.spawn_read_all();
            self.wait(|swarm| swarm.shop.open.get() == 0)?;
            // A request that failed before its disk was healed may have been the last to be noticed.
            if shared.snapshot().is_complete() && !shared.has_failures() {
                break;
            }
        }
        if let Some(geometry) = self.shape() {
            self.scrub()?;
            self.wait(|_| shared.stripes.is_idle())?;
            let present = self.present();
            let survey = survey(present.iter().map(|(number, disk)| (*number, disk)))?;
            let (members, stripes) = (survey.members(&self.disks)?, self.stripes_in_use(&geometry));
            check_parity(&geometry, &members, stripes.into_iter(), "the array is whole and at rest")?;
            self.lie(&geometry)?;
        }
        drop(shared);
        drop(array);
        self.settle_net()?;
        self.stop()
    }

    fn close_front(&mut self) -> Result<(), Verdict> {
        let Some(front) = &self.front else { return Ok(()) };
        front.begin_to_close(&mut self.rng);
        self.wait(|swarm| swarm.front.as_ref().is_none_or(Front::is_closed))?;
        self.drop_front();
        Ok(())
    }

    fn drop_front(&mut self) {
        let _entered = self.world.enter(self.home());
        self.front = None;
    }

    /// Rebuilds until every slot is held by a whole member and every region is in sync.
    fn make_whole(&mut self) -> Result<(), Verdict> {
        let limit = self.world.steps() + STEPS_MAX;
        loop {
            if self.world.steps() > limit {
                return Err(self.stuck());
            }
            let array = self.array();
            let snapshot = array.shared().snapshot();
            let gone = |slot: &usize| {
                let name = snapshot.seats[*slot].member().map(|member| member.name.clone());
                let is_gone = |number: usize| self.disks[number].is_gone() || self.is_lost(number);
                (0..self.disks.len())
                    .any(|number| is_gone(number) && name.as_ref() == Some(&self.disks[number].info().name))
            };
            let seats = 0..snapshot.seats.len();
            if let Some(slot) = seats.clone().find(gone) {
                let failed = self
                    .world
                    .block_on(self.home(), "fail", STEPS_MAX, async move { array.fail(slot).await })?;
                if let Err(error) = failed {
                    // It may have been noticed meanwhile.
                    let now = self.array().shared().snapshot();
                    if now.seats[slot].member().map(|m| m.id) == snapshot.seats[slot].member().map(|m| m.id) {
                        return Err(Verdict::Refused(format!("fail: {error}")));
                    }
                }
            } else if self.is_spare_coming() {
                // The array puts the spare in without a command.
                self.wait(|swarm| !swarm.is_spare_coming())?;
            } else if seats.clone().any(|slot| snapshot.seats[slot].member().is_none()) {
                self.spawn_add();
                self.wait(|swarm| swarm.shop.open.get() == 0)?;
                if self.net.is_some() || self.is_vast() {
                    self.idle_on(64)?;
                }
            } else {
                self.doomed.clear();
                let is_whole = |snapshot: &Snapshot| {
                    snapshot.is_complete()
                        && snapshot.targets.is_empty()
                        && snapshot.intent.resync_count() == 0
                };
                self.wait(|_| {
                    let snapshot = array.shared().snapshot();
                    // A member is lost only now if its server died unnoticed.
                    is_whole(&snapshot) || snapshot.seats.iter().any(|seat| seat.member().is_none())
                })?;
                if is_whole(&array.shared().snapshot()) {
                    let Some(slot) = self.listed_slot() else { return Ok(()) };
                    let failed = async move { array.fail(slot).await };
                    let failed = self.world.block_on(self.home(), "fail", STEPS_MAX, failed)?;
                    failed.map_err(|error| Verdict::Refused(format!("fail: {error}")))?;
                }
            }
        }
    }

    fn scrub(&mut self) -> Result<(), Verdict> {
        let report = self.check_in_use()?;
        if report.mismatched_sectors == 0 && report.unreadable_stripes == 0 {
            return Ok(());
        }
        Err(Verdict::Scrub(format!("{report:?} on an array at rest")))
    }

    fn stop(&mut self) -> Result<(), Verdict> {
        let array = self.array();
        let geometry = self.shape();
        self.shop.closing.set(true);
        let stopped =
            self.world.block_on(self.home(), "stop", STEPS_MAX, async move { array.stop().await })?;
        stopped.map_err(|error| Verdict::Refused(format!("stop: {error}")))?;
        self.drop_array();
        self.provoke_stale()?;
        self.stop_servers()?;
        self.world.run_until_idle(STEPS_MAX)?;
        let report = self.world.leak_report();
        if !report.is_clean() {
            return Err(Verdict::Leak(report.to_string()));
        }
        self.start_servers();
        if let Some(geometry) = geometry {
            let present = self.present();
            let survey = survey(present.iter().map(|(number, disk)| (*number, disk)))?;
            let (whole, members) = (survey.whole(), survey.seats.len());
            if whole != members || survey.is_dirty() {
                let dirty = survey.freshest.array.resync_offset;
                let words =
                    format!("after a stop {whole} of {members} members are current, and it is {dirty:?}");
                return Err(Damage::Members(words).into());
            }
            let stripes = self.stripes_in_use(&geometry);
            survey.check_stripes_covered(&self.disks, &geometry, stripes.into_iter())?;
        }
        self.suspects.clear();
        self.cut_off.clear();
        self.unsynced = false;
        self.summary.rests += 1;
        self.end_if_listed()
    }

    fn drop_array(&mut self) {
        self.drop_front();
        let _entered = self.world.enter(self.home());
        self.array = None;
    }

    /// The shape of levels 4, 5 and 6.
    pub(crate) fn shape(&self) -> Option<ParityGeometry> {
        use pinstripe_engine::geometry::ParityLayout;
        let word = match self.setup.layout {
            pinstripe_md::level::Layout::Parity(layout) => layout.number(),
            pinstripe_md::level::Layout::None => 0,
            _ => return None,
        };
        let layout = ParityLayout::from_md(self.setup.level.number(), word).ok()?;
        let (chunk, bytes) = (u32::try_from(self.setup.chunk).ok()?, self.setup.chunk * self.setup.stripes);
        ParityGeometry::new(layout, self.setup.members, chunk, bytes, self.setup.block).ok()
    }

    /// Lets go of everything in the right order, whatever state the run is in.
    pub(crate) fn bury(mut self) {
        self.drop_array();
        self.bury_net();
    }
}

/// What the array is given; the first that can't be had says why.
async fn sources_of(ways: Vec<Reach>) -> Result<Vec<Arc<dyn DeviceSource>>, AssembleError> {
    let mut sources = Vec::with_capacity(ways.len());
    for way in ways {
        let source = way.source().await;
        sources.push(
            source.map_err(|name| AssembleError::Device {
                name,
                error: DeviceError::of(DeviceErrorKind::Gone),
            })?,
        );
    }
    Ok(sources)
}

/// The sector row of an array sector: stripe, and sector in the chunk.
pub(crate) fn row_of(geometry: &ParityGeometry, sector: u64) -> (u64, u64) {
    let (stripe, within) = geometry.locate(sector * SECTOR);
    let (_, offset) = geometry.column_of(within);
    (stripe.0, u64::from(offset) / SECTOR)
}

pub(crate) fn sector_of(geometry: &ParityGeometry, stripe: u64, column: usize, row: u64) -> u64 {
    let chunk = u64::from(geometry.chunk_bytes()) / SECTOR;
    geometry.array_offset(StripeId(stripe), 0) / SECTOR + column as u64 * chunk + row
}
