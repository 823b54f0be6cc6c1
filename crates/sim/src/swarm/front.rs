//! By which front end users come to the array: straight to its volume, or over NBD.
//!
//! With NBD every shard has a server, and there are a few connections between clients' shards and servers'
//! shards, each with some spare lines: when one is cut, its users dial anew. What a cut leaves unanswered may
//! still be at work in the server; only when the session has ended is it known that nothing more will come of
//! it, and only then is the ledger told that those writes are over.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
    sync::Arc,
};

use pinstripe_engine::io::service::VolumeService;
use pinstripe_engine::{error::IoError, io::volume::Volume, shared::Shared};
use pinstripe_export::nbd::{Export, Server};
use pinstripe_runtime::{Buffer, Signal, shard};

use super::{
    client::UserState,
    nbd::{self, Command, FAST_ZERO, FORCED, Line, NO_HOLE},
};
use crate::{Rng, SimStream, SimStreamConfig, World, WriteId};

/// Dialled anew so often, a connection is given up.
const LINES: usize = 4;
/// How long a server that stops waits for its clients.
const GRACE_NS: u64 = 1_000_000_000;

/// NBD's ENOTSUP, which says of a request for fast zeroes alone that it is none.
const NOT_SUPPORTED: u32 = 95;

/// Users over NBD.
#[derive(Clone, Debug)]
pub struct NbdSetup {
    /// Connections; users share them.
    pub connections: usize,
    /// Whether replies come in chunks.
    pub structured: bool,
    /// What the links are like.
    pub link: SimStreamConfig,
    /// Of 64 requests, how many cut the line instead.
    pub cuts: u64,
}

impl NbdSetup {
    /// A setup of its own habits.
    pub fn drawn(rng: &mut Rng) -> Self {
        Self {
            connections: 1 + rng.index(3),
            structured: rng.chance(1, 2),
            link: SimStreamConfig {
                window: rng.pick(&[8192, 65536, 4 << 20]),
                fragment_max: rng.pick(&[1400, 16384, 1 << 20]),
                delay_ns_max: rng.pick(&[0, 20_000, 500_000]),
            },
            cuts: rng.pick(&[0, 1, 4]),
        }
    }
}

/// Why there is no answer.
pub(crate) enum Trouble {
    /// The array or its server says no.
    Refused(String),
    /// The server says that the range can't be zeroed faster than written.
    NotFast,
    /// The line is dead. The request may be at work until the session is over; without one it was never sent.
    Cut(Option<Rc<Session>>),
}

/// How a range is zeroed.
#[derive(Clone, Copy)]
pub(crate) struct Zeroing {
    /// It is durable when it is answered.
    pub(crate) forced: bool,
    /// What is allocated stays so.
    pub(crate) keeps: bool,
    /// It is to be refused if writing would be as fast.
    pub(crate) fast: bool,
}

/// A user's way in.
#[derive(Clone)]
pub(crate) enum FrontEnd {
    Direct(Volume),
    Nbd(Rc<Connection>),
}

impl FrontEnd {
    /// Reads `length` bytes.
    pub(crate) async fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, Trouble> {
        match self {
            Self::Direct(volume) => {
                let (result, buffer) = volume.read(offset, shard::buffer(length)).await;
                refused(result).map(|()| buffer.to_vec())
            }
            Self::Nbd(connection) => connection.call(Command::Read, 0, offset, length, None).await,
        }
    }

    pub(crate) async fn write(&self, offset: u64, data: Buffer, forced: bool) -> Result<(), Trouble> {
        match self {
            Self::Direct(volume) => refused(volume.write(offset, data.freeze(), forced).await),
            Self::Nbd(connection) => {
                let flags = u16::from(forced) * FORCED;
                let call = connection.call(Command::Write, flags, offset, data.len(), Some(&data));
                call.await.map(|_| ())
            }
        }
    }

    /// Zeroes a range.
    pub(crate) async fn zero(&self, offset: u64, length: u64, how: Zeroing) -> Result<(), Trouble> {
        match self {
            Self::Direct(volume) if how.keeps => {
                refused(volume.write_zero_bytes(offset, length, how.forced).await)
            }
            Self::Direct(volume) => refused(volume.write_zeroes(offset, length, how.forced).await),
            Self::Nbd(connection) => {
                let length = crate::rng::index(length);
                let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
                let flags = flag(how.forced, FORCED) | flag(how.keeps, NO_HOLE) | flag(how.fast, FAST_ZERO);
                connection.call(Command::WriteZeroes, flags, offset, length, None).await.map(|_| ())
            }
        }
    }

    pub(crate) async fn discard(&self, offset: u64, length: u64, forced: bool) -> Result<(), Trouble> {
        match self {
            Self::Direct(volume) => {
                refused(volume.discard(offset, length).await)?;
                if forced { refused(volume.flush().await) } else { Ok(()) }
            }
            Self::Nbd(connection) => {
                let length = crate::rng::index(length);
                let flags = u16::from(forced) * FORCED;
                connection.call(Command::Trim, flags, offset, length, None).await.map(|_| ())
            }
        }
    }

    pub(crate) async fn flush(&self) -> Result<(), Trouble> {
        match self {
            Self::Direct(volume) => refused(volume.flush().await),
            Self::Nbd(connection) => connection.call(Command::Flush, 0, 0, 0, None).await.map(|_| ()),
        }
    }

    /// Now and then the line is cut, for all of its users.
    pub(crate) fn cut(&self, rng: &mut Rng) {
        if let Self::Nbd(connection) = self
            && rng.chance(connection.cuts, 64)
            && let Some((line, _)) = connection.current.borrow().as_ref()
        {
            if rng.chance(1, 2) {
                line.reset();
            } else {
                line.close();
            }
        }
    }
}

fn refused<T>(result: Result<T, IoError>) -> Result<T, Trouble> {
    result.map_err(|error| Trouble::Refused(error.to_string()))
}

/// A stream's life at the server.
#[derive(Default)]
pub(crate) struct Session {
    dialled: Cell<bool>,
    over: Cell<bool>,
    /// Writes that the client gave up; they end with the session.
    orphans: RefCell<Vec<WriteId>>,
}

impl Session {
    /// `write` was given up by its client: it is over when the session is.
    pub(crate) fn give_up(&self, users: &UserState, write: WriteId) {
        if self.over.get() {
            users.ledger.borrow_mut().complete_write(write, false);
        } else {
            self.orphans.borrow_mut().push(write);
        }
    }
}

/// A connection as its users see it: one line at a time.
pub(crate) struct Connection {
    spare: RefCell<VecDeque<(Rc<SimStream>, Rc<Session>)>>,
    current: RefCell<Option<(Rc<Line>, Rc<Session>)>>,
    dialling: Cell<bool>,
    changed: Signal,
    exchange: Rc<Exchange>,
    structured: bool,
    cuts: u64,
}

impl Connection {
    async fn call(
        &self,
        command: Command,
        flags: u16,
        offset: u64,
        length: usize,
        payload: Option<&[u8]>,
    ) -> Result<Vec<u8>, Trouble> {
        let (line, session) = self.line().await.ok_or(Trouble::Cut(None))?;
        let answer = line.call(command, flags, offset, length, payload).await;
        answer.map_err(|trouble| match trouble {
            nbd::Trouble::Refused(NOT_SUPPORTED) => Trouble::NotFast,
            nbd::Trouble::Refused(code) => Trouble::Refused(format!("error {code}")),
            nbd::Trouble::Cut => Trouble::Cut(Some(session)),
        })
    }

    /// The line, dialled anew if it is dead. `None` when there is none left.
    async fn line(&self) -> Option<(Rc<Line>, Rc<Session>)> {
        loop {
            self.changed.wait_until(|| !self.dialling.get()).await;
            let current = self.current.borrow().clone().filter(|(line, _)| !line.is_dead());
            if current.is_some() {
                return current;
            }
            let (stream, session) = self.spare.borrow_mut().pop_front()?;
            self.dialling.set(true);
            session.dialled.set(true);
            self.exchange.changed.notify();
            let line = Line::dial(stream, self.structured).await;
            *self.current.borrow_mut() = line.map(|line| (line, session));
            self.dialling.set(false);
            self.changed.notify();
        }
    }
}

/// The servers and the connections of one life.
pub(crate) struct Exchange {
    stopping: Cell<bool>,
    servers: Cell<usize>,
    changed: Signal,
}

/// What the harness holds of it.
pub(crate) struct Front {
    exchange: Rc<Exchange>,
    /// With the shard of their clients.
    pub(crate) connections: Vec<(usize, Rc<Connection>)>,
}

impl Front {
    /// Starts the servers and lays the lines.
    pub(crate) fn open(
        setup: &NbdSetup,
        world: &mut World,
        rng: &mut Rng,
        shared: &Arc<Shared>,
        users: &Rc<UserState>,
    ) -> Self {
        let exchange = Rc::new(Exchange {
            stopping: Cell::new(false),
            servers: Cell::new(0),
            changed: Signal::default(),
        });
        let shards = world.shards();
        let mut sessions: Vec<Vec<(Rc<SimStream>, Rc<Session>)>> = vec![Vec::new(); shards];
        let mut connections = Vec::new();
        for _ in 0..setup.connections {
            let (client, server) = (rng.index(shards), rng.index(shards));
            let mut spare = VecDeque::new();
            for _ in 0..LINES {
                let (here, there) = world.add_stream((client, server), setup.link.clone());
                let session = Rc::new(Session::default());
                sessions[server].push((there, Rc::clone(&session)));
                spare.push_back((here, session));
            }
            let connection = Connection {
                spare: RefCell::new(spare),
                current: RefCell::default(),
                dialling: Cell::new(false),
                changed: Signal::default(),
                exchange: Rc::clone(&exchange),
                structured: setup.structured,
                cuts: setup.cuts,
            };
            connections.push((client, Rc::new(connection)));
        }
        for (shard, sessions) in sessions.into_iter().enumerate() {
            exchange.servers.set(exchange.servers.get() + 1);
            let (shared, users) = (Arc::clone(shared), Rc::clone(users));
            let exchange = Rc::clone(&exchange);
            world.spawn(shard, "nbd server", async move {
                serve(shared, &users, sessions, &exchange).await;
            });
        }
        Self { exchange, connections }
    }

    /// Users are done: some lines end politely, others don't; then the servers stop.
    pub(crate) fn begin_to_close(&self, rng: &mut Rng) {
        for (_, connection) in &self.connections {
            if let Some((line, _)) = connection.current.borrow().as_ref() {
                match rng.below(4) {
                    0 => line.reset(),
                    1 => line.close(),
                    2 => line.leave(),
                    // The server ends the conversation.
                    _ => {}
                }
            }
        }
        self.exchange.stopping.set(true);
        self.exchange.changed.notify();
    }

    /// Whether every server has stopped.
    pub(crate) fn is_closed(&self) -> bool {
        self.exchange.servers.get() == 0
    }
}

/// A shard's server, from its start to its stop.
async fn serve(
    shared: Arc<Shared>,
    users: &Rc<UserState>,
    sessions: Vec<(Rc<SimStream>, Rc<Session>)>,
    exchange: &Rc<Exchange>,
) {
    let service = VolumeService::new(Volume::new(shared), |_| ());
    let export = Export { name: "array".to_owned(), description: String::new(), service };
    let Ok(server) = Server::new(vec![export]) else { unreachable!("the array can be exported") };
    let open = Rc::new(Cell::new(sessions.len()));
    for (stream, session) in sessions {
        let (server, users) = (server.clone(), Rc::clone(users));
        let (exchange, open) = (Rc::clone(exchange), Rc::clone(&open));
        shard::spawn(async move {
            exchange.changed.wait_until(|| session.dialled.get() || exchange.stopping.get()).await;
            if session.dialled.get() {
                server.serve(stream).await;
            }
            session.over.set(true);
            for write in session.orphans.take() {
                users.ledger.borrow_mut().complete_write(write, false);
            }
            open.set(open.get() - 1);
            exchange.changed.notify();
        });
    }
    exchange.changed.wait_until(|| exchange.stopping.get()).await;
    server.stop(GRACE_NS).await;
    exchange.changed.wait_until(|| open.get() == 0).await;
    exchange.servers.set(exchange.servers.get() - 1);
}
