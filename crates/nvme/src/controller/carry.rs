//! Commands of operations, carried out (sections 4 to 6).
//!
//! In the first phase a command takes a slot, works out its part, and brings what it has to the table under
//! its key. The table may have dropped the operation meanwhile, because of a Resolve, a time-out, the end of
//! its controller or a higher epoch: then the answer is `Dropped`, and the task that holds the memory frees
//! it. Until then the task counts, for its operation counts no more (C35).

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use pinstripe_block::BlockService;
use pinstripe_runtime::{Buffer, Reducers, Ticket, shard};

use super::io::{admit, failed, namespace, not_durable, not_written, range};
use super::offload::counters::count;
use super::offload::peers::{At, Identity, PeerMember};
use super::offload::sum::Work;
use super::offload::table::{Beginning, Commit, Key, PREPARE_NANOSECONDS, Resolution, Taken};
use super::offload::{FIRST_PHASE_MAX, Guarded, Pipeline, RANGE_BYTES_MAX, Server, Turn};
use super::reservation::Access;
use super::session::Session;
use super::subsystem::Namespace;
use crate::{
    mutants::{Mutant, active, early},
    wire::{
        command::{Command, DataPlace},
        offload::{Blocks, Outcome, PEER_UNIT_BYTES, Request},
        status::Status,
    },
};

/// Time for a part to reach its reducer (section 8).
const PEER_NANOSECONDS: u64 = 5_000_000_000;

/// How a command ended that didn't fail.
enum Done {
    /// With this result.
    Result(u64),
    /// The data was the answer, or the connection has ended.
    Answered,
}

/// Why a command failed: the status, and dword 0.
struct Refusal(Status, u64);

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self(status, 0)
    }
}

/// A command and what it is about.
struct Carrier<'a, S> {
    session: &'a Session<S>,
    server: &'a Server,
    namespace: &'a Namespace,
    guarded: &'a Arc<Guarded>,
    service: &'a S,
    command: &'a Command,
    ticket: Ticket,
}

/// Bytes of the namespace.
#[derive(Clone, Copy)]
struct Span {
    offset: u64,
    length: u32,
}

/// A part's way.
struct Route {
    place: Arc<PeerMember>,
    number: u8,
    coefficient: u8,
}

/// Where the parts of an operation go, and as what.
struct Routes {
    key: Key,
    both: [Option<Route>; 2],
    identity: Identity,
    own: u8,
}

/// Carries out a command and answers it.
pub(crate) async fn execute<S: BlockService>(
    session: &Session<S>,
    server: &Server,
    command: &Command,
    capsule: Option<Buffer>,
) {
    let done = match Carrier::new(session, server, command) {
        Ok((carrier, request)) => carrier.carry_out(request, capsule).await,
        Err(status) => Err(status.into()),
    };
    match done {
        Ok(Done::Result(result)) => session.complete(command, Ok(result)),
        Ok(Done::Answered) => {}
        Err(Refusal(status, result)) => session.refuse(command, status, result),
    }
}

impl<'a, S: BlockService> Carrier<'a, S> {
    fn new(
        session: &'a Session<S>,
        server: &'a Server,
        command: &'a Command,
    ) -> Result<(Self, Request), Status> {
        let (request, ticket) = Request::parse(command)?;
        let (namespace, service) = namespace(session, command)?;
        let guarded = server.namespace(command.namespace.get()).ok_or(Status::INVALID_NAMESPACE)?;
        Ok((Self { session, server, namespace, guarded, service, command, ticket }, request))
    }

    async fn carry_out(&self, request: Request, capsule: Option<Buffer>) -> Result<Done, Refusal> {
        match request {
            Request::PartialWrite { blocks, modify, reducers } => {
                self.partial_write(self.span(blocks)?, modify, reducers, capsule).await
            }
            Request::Contribute { blocks, reducers } => {
                self.contribute(self.span(blocks)?, reducers, false).await
            }
            Request::ReadContribute { blocks, reducers } => {
                self.contribute(self.span(blocks)?, reducers, true).await
            }
            Request::Parity { blocks, modify, supplied, wait } => {
                self.parity(self.span(blocks)?, modify, supplied.then_some(capsule), wait).await
            }
            Request::Reduce { blocks, coefficient, wait } => {
                self.reduce(self.span(blocks)?, coefficient, wait).await
            }
            Request::Peer { units, place } => self.peer(units, place, capsule).await,
            Request::Commit { fua } => self.commit(fua).await,
            Request::Resolve => self.resolve().await,
        }
    }

    fn span(&self, blocks: Blocks) -> Result<Span, Status> {
        let range = range(self.namespace, blocks.start, blocks.count.into())?;
        let length = u32::try_from(range.length).ok().filter(|length| *length <= RANGE_BYTES_MAX);
        Ok(Span { offset: range.offset, length: length.ok_or(Status::INVALID_FIELD)? })
    }

    fn is_serial(&self) -> bool {
        self.server.pipeline == Pipeline::Serial
    }

    /// With a serial pipeline, the turn.
    async fn turn(&self) -> Option<Turn<'_>> {
        if self.is_serial() { Some(self.server.turns.take().await) } else { None }
    }

    /// Takes a slot, and learns where parts go.
    fn begin(
        &self,
        length: u32,
        parts: Option<(u16, u8)>,
        reducers: Reducers,
    ) -> Result<(Key, Routes), Status> {
        if self.session.first_phase.get() >= FIRST_PHASE_MAX {
            return Err(Status::BUSY);
        }
        let controller = self.session.controller.id;
        let beginning = Beginning { ticket: self.ticket, controller, length, parts };
        self.guarded.with(|state| {
            state.fence.check_host(controller)?;
            let identity = state.fence.identity().ok_or(Status::NOT_ATTACHED)?;
            let members = state.fence.table();
            let way = |reducer: pinstripe_runtime::Reducer| {
                let place = members.places.get(usize::from(reducer.place)).cloned().flatten();
                // The sender must have a place of its own, and the reducer another one.
                let fits = members.own.is_some_and(|own| own != reducer.place);
                let place = place.filter(|_| fits).ok_or(Status::INVALID_FIELD)?;
                Ok(Route { place, number: reducer.place, coefficient: reducer.coefficient })
            };
            let [first, second] = reducers.map(|reducer| reducer.map(way).transpose());
            let (both, own) = ([first?, second?], members.own.unwrap_or(0));
            if state.under_way >= state.table.slots() {
                return Err(Status::BUSY);
            }
            let key = state.table.begin(&beginning, shard::now())?;
            state.under_way += 1;
            Ok((key, Routes { key, both, identity, own }))
        })
    }

    /// Runs what follows after [`Carrier::begin`]; a failure drops the operation. All memory that the command
    /// takes goes before this ends, or is the operation's.
    async fn under<T>(&self, key: Key, work: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
        let under_way = &self.session.first_phase;
        under_way.set(under_way.get() + 1);
        let result = work.await;
        under_way.set(under_way.get() - 1);
        self.guarded.with(|state| {
            state.under_way -= 1;
            if result.is_err() {
                state.table.failed(key);
            }
        });
        result
    }

    /// The namespace's bytes. They go to another server or to the host, so it must be one that may read them.
    async fn read(&self, span: Span) -> Result<Buffer, Status> {
        let _stage = self.server.counters.stage();
        let _admitted = admit(self.session, self.namespace, Access::Read).await?;
        let (result, buffer) = self.service.read(span.offset, shard::buffer(span.length as usize)).await;
        result.map(|()| buffer).map_err(|error| failed(error, Status::UNRECOVERED_READ))
    }

    /// The command's data. It counts as the operation's from now on, no longer as the connection's. `None` at
    /// the connection's end.
    async fn receive(&self, capsule: Option<Buffer>, length: u32) -> Result<Option<Buffer>, Status> {
        let _stage = self.server.counters.stage();
        let data = self.session.host_data(self.command, capsule, length).await?;
        Ok(data.map(|data| {
            self.session.link.release(data.held);
            data.buffer
        }))
    }

    /// Both, one beside the other unless the pipeline is serial.
    async fn receive_and_read(
        &self,
        capsule: Option<Buffer>,
        span: Span,
        reads: bool,
    ) -> Result<Option<(Buffer, Option<Buffer>)>, Status> {
        let receive = self.receive(capsule, span.length);
        let read = async { if reads { self.read(span).await.map(Some) } else { Ok(None) } };
        let (data, old) = if self.is_serial() {
            let data = receive.await;
            (data, read.await)
        } else {
            both(pin!(receive), pin!(read)).await
        };
        data?.map(|data| old.map(|old| (data, old))).transpose()
    }

    async fn partial_write(
        &self,
        span: Span,
        modify: bool,
        reducers: Reducers,
        capsule: Option<Buffer>,
    ) -> Result<Done, Refusal> {
        let (key, ways) = self.begin(span.length, None, reducers)?;
        let prepare = async {
            let _turn = self.turn().await;
            let Some((new, old)) = self.receive_and_read(capsule, span, modify).await? else {
                return Err(Refusal(Status::DROPPED, 0));
            };
            match &old {
                Some(old) => self.forward(&ways, &[old, &new]).await?,
                None => self.forward(&ways, &[&new]).await?,
            }
            let new = new.freeze();
            let write = async || self.service.write(span.offset, new.clone(), false).await.unwrap_or(());
            early(Mutant::WrittenBeforeCommit, write).await;
            Ok(self.guarded.with(|state| state.table.prepared(key, span.offset, new))?)
        };
        self.under(key, prepare).await?;
        self.server.counters.partial_writes.fetch_add(1, Ordering::Relaxed);
        Ok(Done::Result(0))
    }

    async fn contribute(&self, span: Span, reducers: Reducers, reads: bool) -> Result<Done, Refusal> {
        if reads && !matches!(self.command.data()?, DataPlace::Transport(room) if room == span.length) {
            return Err(Status::DATA_LENGTH_INVALID.into());
        }
        let (key, ways) = self.begin(span.length, None, reducers)?;
        let work = async {
            let _turn = self.turn().await;
            let old = self.read(span).await?.freeze();
            let sources = [&old[..]];
            let forward = self.forward(&ways, &sources);
            if !reads {
                return forward.await;
            }
            // The bytes go to the host beside the parts.
            let give = async { self.session.send_slice(self.command, old.clone()).await };
            if self.is_serial() {
                forward.await?;
                give.await;
                return Ok(());
            }
            both(pin!(forward), pin!(give)).await.0
        };
        self.under(key, work).await?;
        self.guarded.with(|state| state.table.over(key))?;
        self.server.counters.contributes.fetch_add(1, Ordering::Relaxed);
        Ok(Done::Result(0))
    }

    /// Works out the parts, coefficient * (sum of the sources), and sends each on its way.
    async fn forward(&self, ways: &Routes, sources: &[&[u8]]) -> Result<(), Refusal> {
        let [one, other] = &ways.both;
        let coefficient = |way: &Option<Route>| way.as_ref().map_or(1, |way| way.coefficient);
        let (one_by, other_by) = (coefficient(one), coefficient(other));
        let swapped = active(Mutant::PartsExchanged) && one.is_some() && other.is_some();
        let (one, other) = if swapped { (other, one) } else { (one, other) };
        let first = self.send(one.as_ref(), one_by, ways, sources);
        let second = self.send(other.as_ref(), other_by, ways, sources);
        if self.is_serial() {
            first.await?;
            return second.await;
        }
        let (first, second) = both(pin!(first), pin!(second)).await;
        first.and(second)
    }

    async fn send(
        &self,
        way: Option<&Route>,
        coefficient: u8,
        ways: &Routes,
        sources: &[&[u8]],
    ) -> Result<(), Refusal> {
        let Some(way) = way else { return Ok(()) };
        let length = sources.first().map_or(0, |source| source.len());
        let part = {
            let _stage = self.server.counters.stage();
            let mut part = shard::buffer(length);
            pinstripe_parity::kernel().scaled_sum(&mut part, sources, coefficient);
            part
        };
        let _stage = self.server.counters.stage();
        let counters = &self.server.counters;
        let sent = match &way.place.at {
            At::Here => {
                count(&counters.peers_local, 1);
                self.deliver(way.place.namespace, ways, part)
            }
            At::There(peer) => {
                let units = u32::try_from(length / PEER_UNIT_BYTES).unwrap_or(0);
                let request = Request::Peer { units, place: ways.own };
                let said = (self.ticket, request);
                let part = part.freeze();
                let send = self.server.peers.send(peer, way.place.namespace, ways.identity, said, part);
                let dropped =
                    poll_fn(|cx| self.guarded.with(|state| state.table.poll_dropped(ways.key, cx.waker())));
                let sent = shard::timeout(PEER_NANOSECONDS, unless(pin!(send), pin!(dropped))).await;
                sent.unwrap_or(Err(Status::PEER_UNREACHABLE))
            }
        };
        let counter = if sent.is_ok() { &counters.peers_sent } else { &counters.peers_failed };
        count(counter, 1);
        if sent.is_ok() {
            count(&counters.peer_bytes_sent, length as u64);
        }
        sent.map_err(|_| {
            if self.guarded.with(|state| state.table.is_open(ways.key)) {
                // Whatever the reducer said: from here it can't be reached for this operation.
                Refusal(Status::PEER_UNREACHABLE, way.number.into())
            } else {
                Status::DROPPED.into()
            }
        })
    }

    /// A part for a namespace of this server.
    fn deliver(&self, number: u32, ways: &Routes, part: Buffer) -> Result<(), Status> {
        let guarded = self.server.namespace(number).ok_or(Status::INVALID_NAMESPACE)?;
        let (array, epoch) = ways.identity;
        let taken = guarded.with(|state| {
            state.fence.check_own(array, epoch)?;
            state.table.peer(self.ticket, ways.own, part, shard::now())
        });
        self.take(guarded, taken?);
        Ok(())
    }

    fn take(&self, guarded: &Guarded, taken: Taken) {
        match taken {
            Taken::New(key, work) => self.add(guarded, key, work),
            Taken::Again => count(&self.server.counters.peers_repeated, 1),
        }
    }

    /// Adds, and what came meanwhile too.
    fn add(&self, guarded: &Guarded, key: Key, mut work: Option<Work>) {
        let _stage = self.server.counters.stage();
        while let Some(sum) = work.take().and_then(Work::add) {
            work = guarded.with(|state| state.table.added(key, sum));
        }
    }

    async fn peer(&self, units: u32, place: u8, capsule: Option<Buffer>) -> Result<Done, Refusal> {
        let controller = self.session.controller.id;
        self.guarded.with(|state| state.fence.check_peer(controller))?;
        let length = units as usize * PEER_UNIT_BYTES;
        let length = u32::try_from(length).ok().filter(|length| *length <= RANGE_BYTES_MAX);
        let Some(part) = self.receive(capsule, length.ok_or(Status::INVALID_FIELD)?).await? else {
            return Ok(Done::Answered);
        };
        let counters = &self.server.counters;
        count(&counters.peers_received, 1);
        count(&counters.peer_bytes_received, part.len() as u64);
        let taken = self.guarded.with(|state| {
            // The epoch may have risen while the data came.
            state.fence.check_peer(controller)?;
            state.table.peer(self.ticket, place, part, shard::now())
        });
        self.take(self.guarded, taken?);
        Ok(Done::Result(0))
    }

    /// Waits until all parts are there.
    async fn sum(&self, key: Key) -> Result<Buffer, Status> {
        let deadline = self.guarded.with(|state| state.table.deadline(key)).unwrap_or(0);
        let whole = poll_fn(|cx| self.guarded.with(|state| state.table.poll_sum(key, cx.waker())));
        let left = deadline.saturating_sub(shard::now()).min(PREPARE_NANOSECONDS);
        shard::timeout(left, whole).await.unwrap_or(Err(Status::DROPPED))
    }

    /// `supplied`, if there is to be data: what of it came in the capsule.
    #[expect(clippy::option_option, reason = "whether there is data, and whether it is here")]
    async fn parity(
        &self,
        span: Span,
        modify: bool,
        supplied: Option<Option<Buffer>>,
        wait: u16,
    ) -> Result<Done, Refusal> {
        let own = u8::from(modify) + u8::from(supplied.is_some());
        let (key, _) = self.begin(span.length, Some((wait, own)), [None, None])?;
        let prepare = async {
            let (data, old) = {
                let _turn = self.turn().await;
                match supplied {
                    None if modify => (None, Some(self.read(span).await?)),
                    None => (None, None),
                    Some(capsule) => match self.receive_and_read(capsule, span, modify).await? {
                        Some((data, old)) => (Some(data), old),
                        None => return Err(Refusal(Status::DROPPED, 0)),
                    },
                }
            };
            for part in [data, old].into_iter().flatten() {
                let work = self.guarded.with(|state| state.table.own(key, part));
                self.add(self.guarded, key, work);
            }
            let sum = self.sum(key).await?.freeze();
            Ok(self.guarded.with(|state| state.table.prepared(key, span.offset, sum))?)
        };
        self.under(key, prepare).await?;
        self.server.counters.parities.fetch_add(1, Ordering::Relaxed);
        Ok(Done::Result(0))
    }

    async fn reduce(&self, span: Span, coefficient: u8, wait: u16) -> Result<Done, Refusal> {
        if !matches!(self.command.data()?, DataPlace::Transport(room) if room == span.length) {
            return Err(Status::DATA_LENGTH_INVALID.into());
        }
        let own = u8::from(coefficient > 0);
        let (key, _) = self.begin(span.length, Some((wait, own)), [None, None])?;
        let reduce = async {
            if coefficient > 0 {
                let _turn = self.turn().await;
                let mut part = self.read(span).await?;
                if coefficient > 1 {
                    let bytes = std::mem::replace(&mut part, shard::buffer(span.length as usize));
                    pinstripe_parity::kernel().scaled_sum(&mut part, &[&bytes], coefficient);
                }
                let work = self.guarded.with(|state| state.table.own(key, part));
                self.add(self.guarded, key, work);
            }
            let sum = self.sum(key).await?;
            self.guarded.with(|state| state.table.over(key))?;
            self.server.counters.reduces.fetch_add(1, Ordering::Relaxed);
            Ok(self.session.send_slice(self.command, sum.freeze()).await)
        };
        let is_sent = self.under(key, reduce).await?;
        Ok(if is_sent { Done::Result(0) } else { Done::Answered })
    }

    async fn commit(&self, fua: bool) -> Result<Done, Refusal> {
        let _turn = self.turn().await;
        let controller = self.session.controller.id;
        self.guarded.with(|state| state.fence.check_settled(controller))?;
        // While a record is being stored it waits here, as a Write does. What changes the record from then on
        // waits for this.
        let _admitted = admit(self.session, self.namespace, Access::Write).await?;
        let step = self.guarded.with(|state| {
            state.fence.check_settled(controller)?;
            state.table.commit(self.ticket, shard::now())
        });
        match step? {
            Commit::Write(key, offset, data) => {
                let _stage = self.server.counters.stage();
                let written = self.service.write(offset, data, fua).await;
                self.guarded.with(|state| state.table.written(key, written.is_ok()));
                written.map_err(|error| not_written(error, fua))?;
                self.server.counters.commits.fetch_add(1, Ordering::Relaxed);
                Ok(Done::Result(0))
            }
            Commit::Wait(key) => {
                match poll_fn(|cx| self.guarded.with(|state| state.table.poll_written(key, cx.waker())))
                    .await?
                {
                    Outcome::Applied => self.repeated(fua).await,
                    Outcome::InDoubt | Outcome::NotApplied => Err(Status::WRITE_FAULT.into()),
                }
            }
            Commit::Done => self.repeated(fua).await,
        }
    }

    /// A Commit of what is written already, perhaps without FUA then.
    async fn repeated(&self, fua: bool) -> Result<Done, Refusal> {
        if fua {
            self.service.flush().await.map_err(not_durable)?;
        }
        Ok(Done::Result(0))
    }

    async fn resolve(&self) -> Result<Done, Refusal> {
        let controller = self.session.controller.id;
        let resolution = self.guarded.with(|state| {
            state.fence.check_settled(controller)?;
            state.table.resolve(self.ticket, controller, shard::now())
        });
        let outcome = match resolution? {
            Resolution::Known(outcome) => outcome,
            Resolution::Wait(key) => {
                poll_fn(|cx| self.guarded.with(|state| state.table.poll_written(key, cx.waker()))).await?
            }
        };
        Ok(Done::Result(outcome as u64))
    }
}

/// Waits for `work`, unless there is a reason not to.
async fn unless<T>(
    mut work: Pin<&mut impl Future<Output = Result<T, Status>>>,
    mut reason: Pin<&mut impl Future<Output = Status>>,
) -> Result<T, Status> {
    poll_fn(move |cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(done),
        Poll::Pending => reason.as_mut().poll(cx).map(Err),
    })
    .await
}

/// Waits for both.
async fn both<A, B>(
    mut first: Pin<&mut impl Future<Output = A>>,
    mut second: Pin<&mut impl Future<Output = B>>,
) -> (A, B) {
    let (mut one, mut other) = (None, None);
    poll_fn(move |cx| {
        if one.is_none()
            && let Poll::Ready(value) = first.as_mut().poll(cx)
        {
            one = Some(value);
        }
        if other.is_none()
            && let Poll::Ready(value) = second.as_mut().poll(cx)
        {
            other = Some(value);
        }
        match (one.take(), other.take()) {
            (Some(one), Some(other)) => Poll::Ready((one, other)),
            (first, second) => {
                (one, other) = (first, second);
                Poll::Pending
            }
        }
    })
    .await
}
