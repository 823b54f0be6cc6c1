//! What seldom comes by itself, done on purpose at the end of every run: late and stale commands, hosts that
//! were fenced off, epochs after a restart.

use std::rc::Rc;
use std::sync::Arc;

use pinstripe_nvme::wire::offload::Outcome;
use pinstripe_runtime::DeviceErrorKind::{Fenced, Gone, Refused};
use pinstripe_runtime::{Attachment, DeviceSource, OperationId, Reducer, Ticket, shard};

use pinstripe_sim::Fault;

use super::array::{Member, slice};
use super::servers::Server;
use super::{Run, Sources, expect_error};

const LENGTH: usize = 4096;

/// What a Contribute was answered, when it was.
type Sent = Rc<std::cell::Cell<Option<Result<usize, pinstripe_runtime::DeviceError>>>>;

/// Two members that are there, on different servers: one that sends, one that sums up.
struct Pair {
    sender: usize,
    reducer: usize,
}

impl Run {
    pub(super) fn probes(&mut self) -> Result<(), String> {
        let sources = self.open(true)?;
        let Some(pair) = self.pair() else {
            self.drop_on_host(sources);
            return Ok(());
        };
        self.unprepared(&sources, &pair).map_err(|words| format!("unprepared: {words}"))?;
        self.late_peer(&sources, &pair).map_err(|words| format!("a late part: {words}"))?;
        self.sent_twice(&sources, &pair).map_err(|words| format!("a part that comes twice: {words}"))?;
        self.two_of_a_server(&sources).map_err(|words| format!("two members of a server: {words}"))?;
        self.stale(&sources, &pair).map_err(|words| format!("stale: {words}"))?;
        self.twice(&sources, &pair).map_err(|words| format!("commit twice: {words}"))?;
        let sources = self
            .part_of_an_earlier_epoch(sources, &pair)
            .map_err(|words| format!("a part of an earlier epoch: {words}"))?;
        let sources =
            self.comes_again(sources, &pair).map_err(|words| format!("a host comes again: {words}"))?;
        let sources = self.host_gone(sources, &pair).map_err(|words| format!("host gone: {words}"))?;
        self.fenced(sources, &pair).map_err(|words| format!("fenced: {words}"))
    }

    fn pair(&self) -> Option<Pair> {
        let there: Vec<usize> =
            (0..self.array.members()).filter(|member| !self.array.lost.contains(member)).collect();
        let sender = *there.first()?;
        let reducer = there.into_iter().find(|member| self.places[*member].0 != self.places[sender].0)?;
        Some(Pair { sender, reducer })
    }

    fn one(&self, sources: &Sources, member: usize) -> Member {
        let _entered = self.world.enter(self.host);
        let source = sources[member].as_ref().expect("it is there");
        source.attach().expect("it is there")
    }

    /// A write that has been prepared at the sender and at the reducer, or fails.
    fn prepare(
        &mut self,
        sources: &Sources,
        pair: &Pair,
        ticket: Ticket,
    ) -> Result<(Member, Member), String> {
        let (sender, reducer) = (self.one(sources, pair.sender), self.one(sources, pair.reducer));
        let place = u8::try_from(pair.reducer).unwrap();
        let (data, parity) = (Rc::clone(&sender), Rc::clone(&reducer));
        let prepared = self.ask(self.host, "prepare", async move {
            let reducers = [Some(Reducer { place, coefficient: 1 }), None];
            let offload = data.offload().unwrap();
            let first = offload.partial_write(ticket, 0, slice(&[0x77; LENGTH]), true, reducers);
            let length = u32::try_from(LENGTH).unwrap();
            let second = parity.offload().unwrap().parity(ticket, 0, length, true, 1, None);
            first.await.result.and(second.await.result)
        })?;
        prepared.map_err(|error| format!("the first phase fails: {error}"))?;
        Ok((sender, reducer))
    }

    /// An operation of both, dropped: the connection between the servers exists after it.
    fn connect(&mut self, sources: &Sources, pair: &Pair) -> Result<(Member, Member), String> {
        let ticket = self.array.ticket();
        let (sender, reducer) = self.prepare(sources, pair, ticket)?;
        self.resolve(&sender, ticket)?;
        self.resolve(&reducer, ticket)?;
        self.array.finished(ticket);
        Ok((sender, reducer))
    }

    fn resolve(&mut self, member: &Member, ticket: Ticket) -> Result<(), String> {
        let member = Rc::clone(member);
        let outcome =
            self.ask(
                self.host,
                "resolve",
                async move { member.offload().unwrap().resolve(ticket).await.result },
            )?;
        match outcome {
            Ok(outcome) if outcome == Outcome::NotApplied as usize => Ok(()),
            other => Err(format!("a Resolve says {other:?}")),
        }
    }

    fn commit(
        &mut self,
        member: &Member,
        ticket: Ticket,
    ) -> Result<Result<usize, pinstripe_runtime::DeviceError>, String> {
        let member = Rc::clone(member);
        self.ask(
            self.host,
            "commit",
            async move { member.offload().unwrap().commit(ticket, false).await.result },
        )
    }

    fn unprepared(&mut self, sources: &Sources, pair: &Pair) -> Result<(), String> {
        let ticket = self.array.ticket();
        let member = self.one(sources, pair.sender);
        let committed = self.commit(&member, ticket)?;
        self.array.finished(ticket);
        self.drop_on_host(member);
        expect_error("a commit of nothing", committed, &[Refused])
    }

    /// A part comes when its operation was dropped.
    fn late_peer(&mut self, sources: &Sources, pair: &Pair) -> Result<(), String> {
        let (sender, reducer) = self.connect(sources, pair)?;
        let from = self.servers[self.places[pair.sender].0].shards.clone();
        let to = self.places[pair.reducer].0;
        for wire in self.network.live(|wire| from.contains(&wire.from) && wire.to == to) {
            wire.hold(true, false);
        }
        let ticket = self.array.ticket();
        let place = u8::try_from(pair.reducer).unwrap();
        let data = Rc::clone(&sender);
        let done = Rc::new(std::cell::RefCell::new(None));
        let there = Rc::clone(&done);
        self.world.spawn(self.host, "late", async move {
            let reducers = [Some(Reducer { place, coefficient: 1 }), None];
            let offload = data.offload().unwrap();
            let result =
                offload.partial_write(ticket, 0, slice(&[0x55; LENGTH]), true, reducers).await.result;
            drop(data);
            *there.borrow_mut() = Some(result);
        });
        self.pause(100_000_000)?;
        self.resolve(&reducer, ticket)?;
        self.network.release();
        self.run_until("the late part", || done.borrow().is_some())?;
        self.array.finished(ticket);
        let result = done.take().unwrap();
        self.drop_on_host((sender, reducer));
        expect_error("a write whose part comes too late", result, &[Refused])?;
        self.check_slots(sources)
    }

    /// A part arrives, its answer doesn't, and it is sent again on another connection.
    fn sent_twice(&mut self, sources: &Sources, pair: &Pair) -> Result<(), String> {
        // What comes late of the probe before this one may have cost the servers their connection.
        let (sender, reducer) = self.connect(sources, pair)?;
        let ticket = self.array.ticket();
        let from = self.servers[self.places[pair.sender].0].shards.clone();
        let to = self.places[pair.reducer].0;
        let wires = self.network.live(|wire| from.contains(&wire.from) && wire.to == to);
        for wire in &wires {
            wire.hold(false, true);
        }
        let received = |server: &Server| server.statistics().peers_received;
        let there = Rc::clone(&self.servers[to]);
        let before = received(&there);
        let sent = self.contribute(sources, pair, ticket, 0);
        // How long that takes is up to the sender's disk.
        self.run_until("the part the first time", || received(&there) > before)?;
        for wire in &wires {
            wire.near.reset();
        }
        self.run_until("the part", || sent.get().is_some())?;
        let before = self.places[pair.sender].2.peek(0, LENGTH);
        let sums = Rc::clone(&reducer);
        let (result, sum) = self.ask(self.host, "sum", async move {
            let buffer = shard::buffer(LENGTH);
            let outcome = sums.offload().unwrap().reduce(ticket, 0, buffer, 0, 1).await;
            (outcome.result, outcome.buffer.map(|buffer| buffer.to_vec()))
        })?;
        self.array.finished(ticket);
        self.drop_on_host((sender, reducer));
        if let Some(Err(error)) = sent.get() {
            return Err(format!("the part never arrives: {error}"));
        }
        result.map_err(|error| error.to_string())?;
        if sum.is_none_or(|sum| sum != before) {
            return Err("the sum is wrong".to_owned());
        }
        let again: u64 = self.servers.iter().map(|server| server.statistics().peers_repeated).sum();
        if again == 0 { Err("it didn't come twice".to_owned()) } else { self.check_slots(sources) }
    }

    /// Two members of a server, where one has two, get parts over one connection. It is lost, and each gets
    /// its next part by the first try.
    fn two_of_a_server(&mut self, sources: &Sources) -> Result<(), String> {
        let last = self.array.members() - 1;
        let is_there = |member: usize| !self.array.lost.contains(&member);
        let server = |member: usize| self.places[member].0;
        let are_two = server(0) == server(last) && is_there(0) && is_there(last);
        let sender = (1..last).find(|member| are_two && is_there(*member));
        let Some(sender) = sender else { return Ok(()) };
        let (from, to) = (self.servers[server(sender)].shards.clone(), server(last));
        for is_lost in [false, true] {
            let wires = self.network.live(|wire| from.contains(&wire.from) && wire.to == to);
            wires.iter().filter(|_| is_lost).for_each(|wire| wire.near.reset());
            let ticket = self.array.ticket();
            let data = self.one(sources, sender);
            let sent = self.ask(self.host, "two parts", async move {
                let places = [0, last].map(|member| u8::try_from(member).unwrap());
                let reducers = places.map(|place| Some(Reducer { place, coefficient: 1 }));
                let length = u32::try_from(LENGTH).unwrap();
                data.offload().unwrap().contribute(ticket, 0, length, reducers).await.result
            })?;
            sent.map_err(|error| format!("the connection is lost: {is_lost}, and {error}"))?;
            for member in [0, last] {
                let member = self.one(sources, member);
                self.resolve(&member, ticket)?;
                self.drop_on_host(member);
            }
            self.array.finished(ticket);
        }
        self.check_slots(sources)
    }

    /// The host has finished with an operation, and then a command of it comes.
    fn stale(&mut self, sources: &Sources, pair: &Pair) -> Result<(), String> {
        let old = self.array.ticket();
        self.array.finished(old);
        let new = self.array.ticket();
        let member = self.one(sources, pair.reducer);
        self.resolve(&member, new)?;
        self.array.finished(new);
        let late =
            Ticket { operation: old.operation, oldest: OperationId(old.operation.0.min(old.oldest.0)) };
        let there = Rc::clone(&member);
        let result = self.ask(self.host, "stale", async move {
            there
                .offload()
                .unwrap()
                .partial_write(late, 0, slice(&[0x55; LENGTH]), false, [None, None])
                .await
                .result
        })?;
        self.drop_on_host(member);
        expect_error("a write that is over", result, &[Refused])
    }

    /// A commit is repeated, and the row is put right again.
    fn twice(&mut self, sources: &Sources, pair: &Pair) -> Result<(), String> {
        let ticket = self.array.ticket();
        let member = self.one(sources, pair.sender);
        let there = Rc::clone(&member);
        let before = self.places[pair.sender].2.peek(0, LENGTH);
        let again = before.clone();
        let prepared = self.ask(self.host, "prepare", async move {
            there.offload().unwrap().partial_write(ticket, 0, slice(&again), true, [None, None]).await.result
        })?;
        prepared.map_err(|error| format!("the first phase fails: {error}"))?;
        for _ in 0..2 {
            self.commit(&member, ticket)?.map_err(|error| error.to_string())?;
        }
        let there = Rc::clone(&member);
        let outcome =
            self.ask(
                self.host,
                "resolve",
                async move { there.offload().unwrap().resolve(ticket).await.result },
            )?;
        self.forced_when_repeated(&member, pair, ticket)?;
        self.array.finished(ticket);
        self.drop_on_host(member);
        if outcome != Ok(Outcome::Applied as usize) {
            return Err(format!("a Resolve says {outcome:?} of a commit"));
        }
        self.check_slots(sources)
    }

    /// The first commits of an operation had no FUA, and a repeated one has: it is answered when what they
    /// wrote is durable. The same of one that comes while the first is under way.
    fn forced_when_repeated(&mut self, member: &Member, pair: &Pair, done: Ticket) -> Result<(), String> {
        let ticket = self.array.ticket();
        let bytes = self.places[pair.sender].2.peek(0, LENGTH);
        let there = Rc::clone(member);
        let prepared = self.ask(self.host, "prepare", async move {
            there.offload().unwrap().partial_write(ticket, 0, slice(&bytes), true, [None, None]).await.result
        })?;
        prepared.map_err(|error| format!("the first phase fails: {error}"))?;
        for (what, ticket, first) in [("over", done, false), ("under way", ticket, true)] {
            let before = self.places[pair.sender].2.counters().flushes;
            let there = Rc::clone(member);
            let committed = self.ask(self.host, "commit", async move {
                let offload = there.offload().unwrap();
                let first = first.then(|| offload.commit(ticket, false));
                let forced = offload.commit(ticket, true).await.result;
                match first {
                    Some(first) => forced.and(first.await.result),
                    None => forced,
                }
            })?;
            committed.map_err(|error| error.to_string())?;
            // Of two under way the forced one may be carried out first: then it was a forced write.
            let disk = &self.places[pair.sender].2;
            if disk.counters().flushes == before && (!first || disk.unflushed_sectors() > 0) {
                return Err(format!("a forced commit of what is {what} is answered without a flush"));
            }
        }
        self.array.finished(ticket);
        Ok(())
    }

    /// A part is held up between two servers until the epoch is another one, in which its operation's number
    /// comes again.
    fn part_of_an_earlier_epoch(&mut self, sources: Sources, pair: &Pair) -> Result<Sources, String> {
        let (from, to) =
            (self.servers[self.places[pair.sender].0].shards.clone(), self.places[pair.reducer].0);
        // The first one is for admin commands, which go on.
        for wire in self.network.live(|wire| from.contains(&wire.from) && wire.to == to).iter().skip(1) {
            wire.hold(true, false);
        }
        let ticket = self.array.ticket();
        let late = self.contribute(&sources, pair, ticket, 0);
        self.pause(100_000_000)?;
        self.epoch += 1;
        let raised = self.open(true)?;
        let new = self.contribute(&raised, pair, ticket, LENGTH as u64);
        let reducer = self.one(&raised, pair.reducer);
        let sum = Rc::new(std::cell::RefCell::new(None));
        let there = Rc::clone(&sum);
        self.world.spawn(self.host, "sum", async move {
            let outcome = reducer.offload().unwrap().reduce(ticket, 0, shard::buffer(LENGTH), 0, 1).await;
            *there.borrow_mut() = Some(outcome.result.map(|_| outcome.buffer.map(|buffer| buffer.to_vec())));
        });
        self.pause(100_000_000)?;
        self.network.release();
        self.run_until("a sum beside a late part", || {
            late.get().is_some() && new.get().is_some() && sum.borrow().is_some()
        })?;
        self.array.finished(ticket);
        self.drop_on_host(sources);
        let wanted = self.places[pair.sender].2.peek(LENGTH as u64, LENGTH);
        match sum.take() {
            Some(Ok(Some(sum))) if sum == wanted => {}
            Some(Ok(_)) => return Err("it is in the sum".to_owned()),
            other => return Err(format!("the sum fails: {other:?}")),
        }
        self.check_slots(&raised)?;
        Ok(raised)
    }

    /// Begins a Contribute of the sender to the reducer, of the bytes at an offset.
    fn contribute(&mut self, sources: &Sources, pair: &Pair, ticket: Ticket, offset: u64) -> Sent {
        let (data, place) = (self.one(sources, pair.sender), u8::try_from(pair.reducer).unwrap());
        let sent = Sent::default();
        let there = Rc::clone(&sent);
        self.world.spawn(self.host, "part", async move {
            let reducers = [Some(Reducer { place, coefficient: 1 }), None];
            let length = u32::try_from(LENGTH).unwrap();
            let result = data.offload().unwrap().contribute(ticket, offset, length, reducers).await.result;
            drop(data);
            there.set(Some(result));
        });
        sent
    }

    /// A host that has lost a connection attaches again under its epoch: what the old connection carries is
    /// over first, and what comes late on it is refused.
    fn comes_again(&mut self, sources: Sources, pair: &Pair) -> Result<Sources, String> {
        let old = self.one(&sources, pair.sender);
        let again = super::process(self.host, self.world.shards(), self.instances[self.host]);
        let own = std::mem::replace(&mut self.hosts[self.host], Arc::clone(&again));
        let address = self.address(pair.sender);
        let opened = self.ask(self.host, "again", async move {
            again.open(&address).await.map_err(|error| error.to_string())
        })??;
        let disk = self.places[pair.sender].2.clone();
        let before = disk.peek(0, LENGTH);
        disk.fault(&Fault::Hang);
        let writes = disk.counters().writes;
        let (written, attached) = (Sent::default(), Sent::default());
        let (there, writer, bytes) = (Rc::clone(&written), Rc::clone(&old), before.clone());
        self.world.spawn(self.host, "write", async move {
            let result = writer.write(0, slice(&bytes), false).await.result;
            drop(writer);
            there.set(Some(result));
        });
        self.run_until("the write", || disk.counters().writes > writes)?;
        self.generation += 1;
        let attachment = self.attachment(false);
        let (there, source) = (Rc::clone(&attached), opened);
        self.world.spawn(self.host, "attach", async move {
            let Ok(device) = source.attach() else { return };
            let result = device.offload().unwrap().attach(&attachment).await.result;
            drop(device);
            drop(source);
            there.set(Some(result));
        });
        self.pause(200_000_000)?;
        let is_early = attached.get().is_some();
        disk.fault(&Fault::Release);
        self.run_until("the Attach", || attached.get().is_some() && written.get().is_some())?;
        if is_early {
            return Err("the Attach is answered while an older write is carried out".to_owned());
        }
        written.take().unwrap().map_err(|error| format!("the write: {error}"))?;
        attached.take().unwrap().map_err(|error| format!("the Attach: {error}"))?;
        let late = Rc::clone(&old);
        let late = self.ask(self.host, "late", async move {
            let asked = late.offload().unwrap().epoch().await.result;
            (late.write(0, slice(&before), false).await.result, asked)
        })?;
        expect_error("a late write of the older connection", late.0, &[Fenced])?;
        expect_error("a question on the older connection", late.1, &[Fenced])?;
        self.drop_on_host(old);
        self.drop_on_host(sources);
        self.drop_on_host(own);
        self.open(false)
    }

    /// The successor leaves, and gives up. The host that has lost the member to it stays out, also with
    /// another epoch.
    fn after_give_up(
        &mut self,
        old: &Member,
        taken: Sources,
        new_host: usize,
        pair: &Pair,
    ) -> Result<Sources, String> {
        let old_host = std::mem::replace(&mut self.host, new_host);
        let member = self.one(&taken, pair.sender);
        let gave_up = self.ask(new_host, "give up", async move {
            // As before anything is written.
            let flushed = member.flush().await.result;
            flushed.and(member.offload().unwrap().detach(true).await.result)
        })?;
        gave_up.map_err(|error| format!("giving up: {error}"))?;
        let there = Rc::clone(old);
        let higher = Attachment { epoch: self.epoch + 5, takeover: true, ..self.attachment(true) };
        let result = self.ask(old_host, "stale", async move {
            let written = there.write(0, slice(&[0x44; LENGTH]), false).await.result;
            let asked = there.offload().unwrap().epoch().await.result;
            let attached = there.offload().unwrap().attach(&higher).await.result;
            (written, asked, attached, there.write(0, slice(&[0x44; LENGTH]), false).await.result)
        })?;
        expect_error("a plain write of a fenced host after its successor has left", result.0, &[Fenced])?;
        expect_error("a question of a fenced host", result.1, &[Fenced])?;
        expect_error("an Attach of a fenced host under a higher epoch", result.2, &[Fenced])?;
        expect_error("a plain write after that", result.3, &[Fenced])?;
        self.drop_on_host(taken);
        self.epoch += 1;
        let taken = self.open(false)?;
        self.host = old_host;
        Ok(taken)
    }

    /// A host goes with a write prepared; nothing of it stays.
    fn host_gone(&mut self, sources: Sources, pair: &Pair) -> Result<Sources, String> {
        let ticket = self.array.ticket();
        let members = self.prepare(&sources, pair, ticket)?;
        self.drop_on_host(members);
        self.drop_on_host(sources);
        self.array.finished(ticket);
        // Less than the time after which an operation is dropped in any case.
        self.pause(3_000_000_000)?;
        // Before a host attaches, which ends them, too.
        let held: u64 = self.servers.iter().map(|server| server.statistics().held).sum();
        if held > 0 {
            return Err(format!("{held} operations outlive their controllers"));
        }
        let sources = self.open(false)?;
        self.check_slots(&sources)?;
        self.check_disks()?;
        Ok(sources)
    }

    /// Another host takes over, the servers restart, and the old one wants to go on.
    fn fenced(&mut self, sources: Sources, pair: &Pair) -> Result<(), String> {
        let ticket = self.array.ticket();
        let (sender, reducer) = self.prepare(&sources, pair, ticket)?;
        let (old_host, old_epoch) = (self.host, self.epoch);
        self.beside_a_process()?;
        self.change_host();
        self.epoch = old_epoch + 1;
        // Not without meaning it.
        if self.try_open(false)?.is_ok() {
            return Err("an Attach beside another host's is granted".to_owned());
        }
        let taken = self.open(true)?;
        let new_host = std::mem::replace(&mut self.host, old_host);
        let late = self.commit(&sender, ticket)?;
        expect_error("a commit under an old epoch", late, &[Fenced])?;
        let there = Rc::clone(&reducer);
        let plain = self.ask(old_host, "plain", async move {
            let written = there.write(0, slice(&[0x99; LENGTH]), false).await.result;
            let zeroed = match there.info().zeroes {
                pinstripe_runtime::ZeroedReads::Zero => there.write_zeroes(0, 512).await.result,
                pinstripe_runtime::ZeroedReads::Unsupported => written,
            };
            (written, zeroed, there.read(0, shard::buffer(LENGTH)).await.result)
        })?;
        expect_error("a plain write under an old epoch", plain.0, &[Fenced])?;
        expect_error("zeroing under an old epoch", plain.1, &[Fenced])?;
        if plain.2.is_err() {
            return Err("a read under an old epoch is refused".to_owned());
        }
        let taken = self.after_give_up(&sender, taken, new_host, pair)?;
        self.drop_on_host((sender, reducer));
        self.drop_on_host(sources);
        self.check_disks()?;
        self.array.finished(ticket);
        self.host = new_host;
        self.drop_on_host(taken);
        self.after_restart(old_host, old_epoch, pair)
    }

    /// Another process of the host that is attached wants its members, under the same epoch and under a
    /// higher one.
    fn beside_a_process(&mut self) -> Result<(), String> {
        let queues = self.world.shards();
        let other = super::process(self.host, queues, u8::MAX);
        let own = std::mem::replace(&mut self.hosts[self.host], other);
        for epoch in [self.epoch, self.epoch + 1] {
            let before = std::mem::replace(&mut self.epoch, epoch);
            let opened = self.try_open(false)?;
            self.epoch = before;
            if let Ok(sources) = opened {
                self.drop_on_host(sources);
                return Err(format!("an Attach beside a process of the same host is granted, epoch {epoch}"));
            }
        }
        let other = std::mem::replace(&mut self.hosts[self.host], own);
        self.drop_on_host(other);
        Ok(())
    }

    /// All servers restart: the old host is refused even if it is the first one to come.
    fn after_restart(&mut self, old_host: usize, old_epoch: u64, pair: &Pair) -> Result<(), String> {
        let stops: Vec<_> = self.servers.iter().map(|server| server.stop(&mut self.world)).collect();
        self.run_until("stopping", || stops.iter().all(|over| over.get()))?;
        self.mend();
        self.pause(10_000_000_000)?;
        let address = self.address(pair.sender);
        let initiator = Arc::clone(&self.hosts[old_host]);
        let attachment = Attachment { epoch: old_epoch, ..self.attachment(false) };
        let result = self.ask(old_host, "old host", async move {
            let source = initiator.open(&address).await.map_err(|error| error.to_string())?;
            let device = source.attach().map_err(|error| error.to_string())?;
            let plain = device.write(0, slice(&[0x66; LENGTH]), false).await.result;
            let attached = device.offload().unwrap().attach(&attachment).await.result;
            let after = device.write(0, slice(&[0x66; LENGTH]), false).await.result;
            Ok::<_, String>((plain, attached, after))
        })??;
        expect_error("a plain write of the old host after a restart", result.0, &[Fenced])?;
        expect_error("an Attach of the old host after a restart", result.1, &[Fenced, Gone])?;
        expect_error("a plain write of the old host after its Attach", result.2, &[Fenced])?;
        self.check_disks()?;
        // The new one goes on under its epoch, and gives it up.
        let sources = self.open(false)?;
        let member = self.one(&sources, pair.sender);
        let there = Rc::clone(&member);
        let gave_up = self
            .ask(self.host, "give up", async move { there.offload().unwrap().detach(true).await.result })?;
        gave_up.map_err(|error| format!("giving up: {error}"))?;
        let before = self.places[pair.sender].2.peek(0, LENGTH);
        let there = Rc::clone(&member);
        let plain =
            self.ask(self.host, "plain", async move { there.write(0, slice(&before), false).await.result })?;
        plain.map_err(|error| format!("a plain write after the epoch was given up: {error}"))?;
        self.drop_on_host(member);
        self.drop_on_host(sources);
        Ok(())
    }
}
