//! One connection of a monitor, on one shard: its messages set queues up, start them on their shards, and
//! stop them. Queue `q` belongs to shard `q`, in turn.
//!
//! A queue runs when all is there: memory, size, place, kick, and leave to run. What changes any of that
//! stops it first, after what is under way, and starts it again. So a queue's own settings never change.
//!
//! A monitor that connects again goes on with the configuration that it has from the server before, and the
//! disk may have grown since. So a monitor that takes messages of ours is told to read the configuration
//! anew, once in each session.

use std::{io, os::fd::OwnedFd, os::unix::fs::FileExt, pin::pin, rc::Rc, sync::Arc};

use pinstripe_block::{
    BlockService,
    budget::Budget,
    first_of::{First, first_of},
};
use pinstripe_runtime::{
    ShardHandle, shard,
    uring::{
        Connection, EventFile, SentFile, SocketFile,
        event::MessageSocket,
        guest_memory::{GuestMemory, GuestRegion, shared_file},
        with_sent_files,
    },
};
use thiserror::Error;
use zerocopy::IntoBytes;

use super::{
    QUEUES_MAX, config,
    config::feature,
    inflight,
    queue::{self, Alarm, Control, Noted, Start},
    request::NAME_BYTES,
    ring::{Broken, Layout},
    wire::{
        HEADER_BYTES, Header, QueueNumber, Request, RingAddress, Violation, backend_message, protocol_feature,
    },
};

/// How long a monitor may take to read an answer, or to send the rest of a message, and its files to be
/// mapped.
const MONITOR_NANOSECONDS: u64 = 10_000_000_000;

/// What monitors are served with.
pub struct Backend<S> {
    /// Those that queues are divided over.
    pub shards: Vec<ShardHandle>,
    /// Gives a shard its handle on what is served.
    pub service: Arc<dyn Fn() -> S + Send + Sync>,
    /// For the memory of requests.
    pub budget: Arc<Budget>,
    /// By which the machine knows the disk.
    pub name: [u8; NAME_BYTES],
    /// How long a monitor may take to say that the device is its own. Meanwhile others wait for it.
    pub patience_nanoseconds: u64,
}

/// How a session ended. In each case nothing is under way any more. What is noted in flight and wasn't done
/// is left to the next session; of what isn't noted, discards and zeroings fail after a piece, reads and
/// writes after a while.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The monitor has closed its connection.
    Closed,
    /// It was to end.
    Stopped,
    /// The monitor or its machine did what it must not, or its memory is gone.
    Failed(String),
}

/// Why a session can't go on.
#[derive(Debug, Error)]
enum SessionError {
    #[error("its monitor sent {0}")]
    Violation(#[from] Violation),
    #[error("the connection: {0}")]
    Connection(io::Error),
    #[error("it didn't say in time that it wants the disk")]
    Silent,
    #[error("its memory can't be used: {0}")]
    Memory(io::Error),
    #[error("its monitor sent the ring of queue {0} to where there is no memory")]
    Place(u16),
    #[error("its monitor wants features that weren't offered: {0:#x}")]
    Features(u64),
    #[error("an event can't be used: {0}")]
    Event(io::Error),
    #[error("the socket for our messages can't be used: {0}")]
    Channel(io::Error),
    #[error("the memory for requests under way: {0}")]
    Inflight(#[from] Broken),
    #[error(
        "its machine's disk was another one when its requests were begun, or had another block, more bytes or another right to \
         write: serve that array by this path, or start the machine anew"
    )]
    OtherDisk,
}

/// Serves one monitor until its connection or `stop` ends. `settled` is called when it has said that the
/// device is its own.
pub async fn serve<S: BlockService>(
    connection: Connection,
    backend: &Backend<S>,
    stop: impl Future<Output = ()>,
    settled: impl FnOnce(),
) -> Ended {
    let mut session = Session::new(connection, backend);
    let mut settled = Some(settled);
    let mut stop = pin!(stop);
    let begun = shard::waited();
    let ended = loop {
        let alarm = Arc::clone(&session.alarm);
        let patience = settled.as_ref().map(|_| backend.patience_nanoseconds);
        let next = session.next_within(patience.map(|limit| limit.saturating_sub(shard::waited() - begun)));
        let (header, request) = match first_of(&mut stop, first_of(alarm.raised(), next)).await {
            First::One(()) => break Ended::Stopped,
            First::Other(First::One(why)) => break Ended::Failed(why),
            First::Other(First::Other(Ok(None))) => break Ended::Closed,
            First::Other(First::Other(Ok(Some(message)))) => message,
            First::Other(First::Other(Err(error))) => break Ended::Failed(error.to_string()),
        };
        if matches!(request, Request::Own)
            && let Some(settled) = settled.take()
        {
            settled();
        }
        // A queue that is to be stopped may have long requests under way.
        let socket = Rc::clone(&session.socket);
        let over = first_of(&mut stop, first_of(alarm.raised(), socket.hung_up()));
        match first_of(over, session.handle(&header, request)).await {
            First::One(First::One(())) => break Ended::Stopped,
            First::One(First::Other(First::One(why))) => break Ended::Failed(why),
            First::One(First::Other(First::Other(()))) => break Ended::Closed,
            First::Other(Ok(())) => {}
            First::Other(Err(error)) => break Ended::Failed(error.to_string()),
        }
    };
    session.running().for_each(Control::end);
    session.pause_all().await;
    ended
}

/// What is sent back.
enum Answer {
    /// Success, if the monitor wants to know.
    Done,
    Bytes(Vec<u8>),
    File(Vec<u8>, OwnedFd),
}

#[derive(Default)]
struct QueueState {
    size: Option<u16>,
    base: u16,
    place: Option<RingAddress>,
    kick: Option<EventFile>,
    call: Option<EventFile>,
    is_enabled: bool,
    running: Option<Arc<Control>>,
}

struct Session<'a, S> {
    socket: Rc<MessageSocket>,
    backend: &'a Backend<S>,
    service: S,
    offered: u64,
    features: u64,
    protocol_features: u64,
    memory: Option<Arc<GuestMemory>>,
    inflight: Option<Noted>,
    /// For messages of ours.
    channel: Option<SocketFile>,
    /// Whether its monitor was told to read the configuration.
    has_told: bool,
    queues: Vec<QueueState>,
    alarm: Arc<Alarm>,
}

impl<'a, S: BlockService> Session<'a, S> {
    fn new(connection: Connection, backend: &'a Backend<S>) -> Self {
        let service = (backend.service)();
        Self {
            socket: Rc::new(MessageSocket::attach(connection)),
            backend,
            offered: config::features(&service),
            service,
            features: 0,
            protocol_features: 0,
            memory: None,
            inflight: None,
            channel: None,
            has_told: false,
            queues: (0..QUEUES_MAX).map(|_| QueueState::default()).collect(),
            alarm: Arc::default(),
        }
    }

    /// The next message; `None` if there will be none. It must come within `nanoseconds`, if they are given.
    async fn next_within(
        &self,
        nanoseconds: Option<u64>,
    ) -> Result<Option<(Header, Request<SentFile>)>, SessionError> {
        let Some(nanoseconds) = nanoseconds else { return self.next().await };
        shard::timeout(nanoseconds, self.next()).await.unwrap_or(Err(SessionError::Silent))
    }

    /// The next message; `None` if there will be none.
    async fn next(&self) -> Result<Option<(Header, Request<SentFile>)>, SessionError> {
        let (mut bytes, mut files) = ([0; HEADER_BYTES], Vec::new());
        if !self.socket.receive(&mut bytes[..1], &mut files).await.map_err(SessionError::Connection)? {
            return Ok(None);
        }
        let message = async {
            self.receive(&mut bytes[1..], &mut files).await?;
            let header = Header::parse(&bytes)?;
            let mut payload = vec![0; usize::try_from(header.size).unwrap_or(0)];
            self.receive(&mut payload, &mut files).await?;
            Ok::<_, SessionError>(Some((header, Request::parse(&header, &payload, files)?)))
        };
        let late = || Err(SessionError::Connection(io::ErrorKind::TimedOut.into()));
        shard::timeout(MONITOR_NANOSECONDS, message).await.unwrap_or_else(late)
    }

    /// Receives the rest of a message.
    async fn receive(&self, bytes: &mut [u8], files: &mut Vec<SentFile>) -> Result<(), SessionError> {
        match self.socket.receive(bytes, files).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(SessionError::Connection(io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(SessionError::Connection(error)),
        }
    }

    async fn handle(&mut self, header: &Header, request: Request<SentFile>) -> Result<(), SessionError> {
        let answer = self.carry_out(request).await?;
        self.start_ready()?;
        self.answer(header, answer).await?;
        self.tell_of_configuration();
        Ok(())
    }

    async fn answer(&self, header: &Header, answer: Answer) -> Result<(), SessionError> {
        let (bytes, file) = match answer {
            Answer::Bytes(bytes) => (bytes, None),
            Answer::File(bytes, file) => (bytes, Some(file)),
            Answer::Done => {
                let acknowledges = self.protocol_features & protocol_feature::REPLY_ACK != 0;
                if !(acknowledges && header.wants_reply()) {
                    return Ok(());
                }
                (number(0), None)
            }
        };
        let reply = header.reply(&bytes);
        let sent = shard::timeout(MONITOR_NANOSECONDS, self.socket.send(&reply, file.as_ref())).await;
        sent.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())).map_err(SessionError::Connection)
    }

    /// Has the monitor read the configuration. QEMU heeds this only while the device runs. And QEMU 7.2 heeds
    /// it while it waits for an answer: it asks for the configuration then, and takes that answer for it. So
    /// this comes after the answer to the message that starts the first queue, behind which no answer is
    /// waited for.
    fn tell_of_configuration(&mut self) {
        let reads = self.protocol_features & protocol_feature::CONFIG != 0;
        let Some(channel) = self.channel.as_ref().filter(|_| reads && !self.has_told) else { return };
        if self.running().next().is_some() {
            // A monitor that takes none any more, or has left no room for it, doesn't want to know.
            let _ = channel.send_now(&Header::request(backend_message::CONFIG_CHANGE, false, &[]));
            self.has_told = true;
        }
    }

    async fn carry_out(&mut self, request: Request<SentFile>) -> Result<Answer, SessionError> {
        match request {
            Request::Features => return Ok(Answer::Bytes(number(self.offered))),
            Request::ProtocolFeatures => return Ok(Answer::Bytes(number(protocol_feature::ALL))),
            Request::QueueCount => return Ok(Answer::Bytes(number(QUEUES_MAX.into()))),
            Request::Config(part) => return Ok(Answer::Bytes(config::answer(&self.service, part))),
            Request::StopQueue(queue) => return Ok(self.stop_queue(queue).await),
            Request::NewInflight(mut asked) => {
                let parts = inflight::bytes(asked.queues, asked.ring_size);
                asked.size = parts + inflight::DISK_BYTES as u64;
                asked.offset = 0;
                let file = shared_file("pinstripe-inflight", asked.size).map_err(SessionError::Memory)?;
                let file = std::fs::File::from(file);
                file.write_all_at(&self.disk().bytes(), parts).map_err(SessionError::Memory)?;
                return Ok(Answer::File(asked.as_bytes().to_vec(), file.into()));
            }
            Request::UseFeatures(features) => {
                within(features, self.offered)?;
                self.pause_all().await;
                self.features = features;
            }
            Request::UseProtocolFeatures(features) => {
                within(features, protocol_feature::ALL)?;
                self.protocol_features = features;
            }
            Request::Memory(regions) => self.use_memory(regions).await?,
            Request::UseInflight(place, file) => {
                inflight::check(&place)?;
                let region =
                    GuestRegion { guest: 0, monitor: 0, size: place.size, offset: place.offset, file };
                self.pause_all().await;
                let memory = map(vec![region]).await?;
                if !self.disk().is_that_of(&*memory, &place)? {
                    return Err(SessionError::OtherDisk);
                }
                self.inflight = Some(Noted { memory, queues: place.queues, ring_size: place.ring_size });
            }
            Request::BackendChannel(file) => {
                self.channel = Some(file.into_socket().map_err(SessionError::Channel)?);
                self.has_told = false;
            }
            Request::Call(queue, event) => self.use_call(queue, event.map(checked).transpose()?)?,
            Request::RingSize(queue, size) => self.paused(queue).await.size = Some(size),
            Request::RingAddress(queue, place) => self.paused(queue).await.place = Some(place),
            Request::RingBase(queue, base) => self.paused(queue).await.base = base,
            Request::Kick(queue, event) => self.paused(queue).await.kick = Some(checked(event)?),
            Request::Enable(queue, is_enabled) => self.paused(queue).await.is_enabled = is_enabled,
            // There is nothing in the configuration that a driver may change.
            Request::Own | Request::ErrorEvent(_) | Request::SetConfig => {}
        }
        Ok(Answer::Done)
    }

    fn disk(&self) -> inflight::Disk {
        inflight::Disk::new(self.backend.name, &self.service)
    }

    /// The monitor takes a queue back.
    async fn stop_queue(&mut self, queue: u16) -> Answer {
        let state = self.paused(queue).await;
        state.kick = None;
        let came_to = QueueNumber { queue: queue.into(), value: state.base.into() };
        Answer::Bytes(came_to.as_bytes().to_vec())
    }

    async fn use_memory(
        &mut self,
        regions: Vec<(super::wire::Region, SentFile)>,
    ) -> Result<(), SessionError> {
        self.pause_all().await;
        let region = |(region, file): (super::wire::Region, SentFile)| GuestRegion {
            guest: region.guest,
            monitor: region.monitor,
            size: region.size,
            offset: region.offset,
            file,
        };
        self.memory = Some(map(regions.into_iter().map(region).collect()).await?);
        Ok(())
    }

    /// A running queue changes its event without a stop: machines change it often.
    fn use_call(&mut self, queue: u16, event: Option<EventFile>) -> Result<(), SessionError> {
        let state = &mut self.queues[usize::from(queue)];
        if let Some(control) = &state.running {
            control.call(clone(event.as_ref())?);
        }
        state.call = event;
        Ok(())
    }

    /// The settings of a queue, which doesn't run.
    async fn paused(&mut self, queue: u16) -> &mut QueueState {
        let state = &mut self.queues[usize::from(queue)];
        if let Some(control) = &state.running {
            control.stop();
            state.base = control.stopped().await;
            // Not before: the session may end while this waits, and then waits again.
            state.running = None;
        }
        state
    }

    fn running(&self) -> impl Iterator<Item = &Control> {
        self.queues.iter().filter_map(|state| state.running.as_deref())
    }

    async fn pause_all(&mut self) {
        // All at once, and then each.
        self.running().for_each(Control::stop);
        for queue in 0..QUEUES_MAX {
            self.paused(queue).await;
        }
    }

    fn start_ready(&mut self) -> Result<(), SessionError> {
        (0..QUEUES_MAX).try_for_each(|queue| self.start_if_ready(queue))
    }

    fn start_if_ready(&mut self, number: u16) -> Result<(), SessionError> {
        let state = &mut self.queues[usize::from(number)];
        let may_run = state.is_enabled || self.features & feature::PROTOCOL == 0;
        let QueueState { size: Some(size), place: Some(place), kick: Some(kick), running: None, .. } = state
        else {
            return Ok(());
        };
        let Some(memory) = self.memory.as_ref().filter(|_| may_run) else { return Ok(()) };
        let layout = layout(memory, *size, place).ok_or(SessionError::Place(number))?;
        let control = Arc::new(Control::default());
        let start = Start {
            number,
            layout,
            base: state.base,
            features: self.features,
            memory: Arc::clone(memory),
            inflight: self.inflight.clone(),
            kick: kick.try_clone().map_err(SessionError::Event)?,
            call: clone(state.call.as_ref())?,
            control: Arc::clone(&control),
            alarm: Arc::clone(&self.alarm),
            service: Arc::clone(&self.backend.service),
            budget: Arc::clone(&self.backend.budget),
            name: self.backend.name,
        };
        state.running = Some(control);
        let shards = &self.backend.shards;
        shards[usize::from(number) % shards.len()].send(move || shard::spawn(queue::run(start)));
        Ok(())
    }
}

/// Where a ring is in the machine. Its parts are aligned as VIRTIO 2.7 wants them.
fn layout(memory: &GuestMemory, size: u16, place: &RingAddress) -> Option<Layout> {
    let at = |address: u64, alignment: u64| {
        memory.of_monitor(address).filter(|address| address.is_multiple_of(alignment))
    };
    Some(Layout {
        descriptors: at(place.descriptors, 16)?,
        available: at(place.available, 2)?,
        used: at(place.used, 4)?,
        size,
    })
}

async fn map(regions: Vec<GuestRegion>) -> Result<Arc<GuestMemory>, SessionError> {
    let mapped =
        shard::timeout(MONITOR_NANOSECONDS, with_sent_files(move || GuestMemory::map(regions))).await;
    let mapped = mapped.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()));
    mapped.map(Arc::new).map_err(SessionError::Memory)
}

/// The file of an event.
fn checked(file: SentFile) -> Result<EventFile, SessionError> {
    file.into_event().map_err(SessionError::Event)
}

fn clone(event: Option<&EventFile>) -> Result<Option<EventFile>, SessionError> {
    event.map(EventFile::try_clone).transpose().map_err(SessionError::Event)
}

fn within(features: u64, offered: u64) -> Result<(), SessionError> {
    match features & !offered {
        0 => Ok(()),
        unknown => Err(SessionError::Features(unknown)),
    }
}

fn number(value: u64) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}
