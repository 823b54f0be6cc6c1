//! The server's end of the control socket, on shard 0.

use std::{
    cell::{Cell, RefCell},
    io,
    path::PathBuf,
    rc::Rc,
    sync::Arc,
};

use pinstripe_block::rate::RateLimit;
use pinstripe_control::{
    AddParameters, AddResult, CallError, Command, Detail, DeviceResult, PROTOCOL, REQUEST_BYTES_MAX,
    ReplaceParameters, StopParameters, UpgradeParameters, Version, code,
    detail::{Client, Compared},
    limit::{Limit, LimitParameters},
    parse, response,
    text::printable,
};
use pinstripe_engine::{
    array::{Added, Array, CommandError},
    io::recorder::Recorder,
};
use pinstripe_runtime::{
    Signal, Stream, shard,
    uring::{Connection, SocketStream, blocking, inheritance},
};
use serde_json::Value;

use super::{
    Served, clients, devices,
    front::{FrontEnds, Leavers},
    grow,
    joining::Keeper,
    journal::ServerLog,
    limit,
    looks::Looks,
    maintenance, names,
    reconnect::Reconnector,
    record,
    refusal::{self, refused},
    report,
    stopping::Stopping,
    succession::{Caller, Candidate, Means, Wish, fitness},
};
use crate::{create::random_uuid, member, scan};

/// Connections at a time. Where there is no room for another one, the oldest without a call under way goes,
/// or one that its client has left.
const CONNECTIONS_MAX: usize = 64;
/// Calls under way, with those that have no connection any more.
const CALLS_MAX: usize = 4 * CONNECTIONS_MAX;
/// Time for the request of a client for which there is no room.
const REQUEST_NANOSECONDS: u64 = 1_000_000_000;
/// Time for the last answers when the server ends.
const LINGER_NANOSECONDS: u64 = 2_000_000_000;
/// Time that clients get to end connections that they have just let go of, before a stop is refused for them.
const CLIENTS_LEAVE_NANOSECONDS: u64 = 2_000_000_000;
/// Time that a client has to read an answer.
const ANSWER_NANOSECONDS: u64 = 30_000_000_000;
/// Time that looks at devices get to end before an upgrade is refused for them.
const LOOKS_NANOSECONDS: u64 = 5_000_000_000;
const LOOKS_PAUSE_NANOSECONDS: u64 = 20_000_000;
pub(super) const STOPPING: &str = "the array is stopping";
const RECEIVE_BYTES: usize = 4 << 10;

/// Does what control connections ask for. Cheap to clone.
#[derive(Clone)]
pub struct ControlServer(Rc<Inner>);

struct Inner {
    /// Absent once the array has stopped, so that its devices can be closed.
    array: RefCell<Option<Array>>,
    journal: ServerLog,
    front_ends: Rc<FrontEnds>,
    limit: Arc<RateLimit>,
    recorder: Arc<Recorder>,
    kinds: devices::Kinds,
    keeper: Rc<Keeper>,
    reconnector: Rc<Reconnector>,
    stopping: Rc<Stopping>,
    leavers: Rc<Leavers>,
    /// Names this run among others, for readers of its events.
    instance: String,
    /// The oldest first.
    connections: RefCell<Vec<Rc<Conversation>>>,
    /// Calls that are not answered yet.
    busy: Cell<usize>,
    answered: Signal,
    /// Newcomers come in one after the other, for each takes the first free slot.
    adding: Cell<bool>,
    added: Signal,
    looks: Rc<Looks>,
    /// What the latest check or repair of all parity left.
    compared: Cell<Option<Compared>>,
}

impl ControlServer {
    pub fn new(served: &Served, reconnector: Rc<Reconnector>) -> Self {
        Self(Rc::new(Inner {
            array: Some(served.array.clone()).into(),
            journal: served.journal.clone(),
            front_ends: Rc::clone(&served.front_ends),
            limit: Arc::clone(&served.limit),
            recorder: Arc::clone(&served.recorder),
            kinds: served.kinds,
            keeper: Rc::clone(&served.keeper),
            reconnector,
            stopping: Rc::clone(&served.stopping),
            leavers: Rc::clone(&served.leavers),
            instance: maintenance::instance(),
            connections: RefCell::default(),
            busy: Cell::new(0),
            answered: Signal::default(),
            adding: Cell::new(false),
            added: Signal::default(),
            looks: Looks::new(),
            compared: Cell::default(),
        }))
    }

    /// Gives up the array, before its devices are closed.
    pub fn release(&self) {
        self.0.stopping.release();
        let array = self.0.array.take();
        drop(array);
    }

    /// Answers the calls that asked for the end, and waits until all answers are sent.
    pub async fn finish(&self, outcome: Result<(), String>) {
        self.0.stopping.finish(outcome);
        let answered = self.0.answered.wait_until(|| self.0.busy.get() == 0);
        // A client that doesn't read its answer doesn't keep the server.
        let _ = shard::timeout(LINGER_NANOSECONDS, answered).await;
    }

    /// Waits until no call but the one for a change of the program is under way, not for long.
    pub async fn answer_others(&self) {
        self.0.stopping.release();
        let answered = self.0.answered.wait_until(|| self.0.busy.get() <= 1);
        let _ = shard::timeout(LINGER_NANOSECONDS, answered).await;
    }

    /// Answers the call that the program before got, and serves its connection.
    pub fn resume(&self, caller: Caller, outcome: Result<Value, CallError>) {
        let Caller { socket, call, received } = caller;
        self.begin(Connection::new(socket), Some(response(call, outcome)), received);
    }

    /// Serves a connection in a task of its own.
    pub fn spawn(&self, connection: Connection) {
        self.begin(connection, None, Vec::new());
    }

    /// Says something, if that is due, and serves a connection on which something has come already.
    fn begin(&self, connection: Connection, due: Option<String>, received: Vec<u8>) {
        let Ok(stream) = connection.attach() else { return };
        let inner = Rc::clone(&self.0);
        if inner.connections.borrow().len() >= CONNECTIONS_MAX && !inner.make_room() {
            shard::spawn(turn_away(stream));
            return;
        }
        let conversation =
            Rc::new(Conversation { stream, received: received.into(), calling: Cell::new(false) });
        inner.connections.borrow_mut().push(Rc::clone(&conversation));
        shard::spawn(async move {
            let said = match due {
                Some(line) => send(&conversation.stream, &line).await,
                None => true,
            };
            if said {
                inner.converse(&conversation).await;
            }
            inner.connections.borrow_mut().retain(|other| !Rc::ptr_eq(other, &conversation));
        });
    }
}

/// A control connection.
struct Conversation {
    stream: Rc<SocketStream>,
    /// What has come and isn't answered yet.
    received: RefCell<Vec<u8>>,
    /// A call of it is under way, other than waiting for events.
    calling: Cell<bool>,
}

impl Inner {
    /// Ends the oldest connection without a call under way; if there is none, the oldest that its client has
    /// left. Its call goes on, and counts as one under way. False if there is neither.
    fn make_room(&self) -> bool {
        let mut connections = self.connections.borrow_mut();
        let idle = connections.iter().position(|connection| !connection.calling.get());
        let is_gone = |connection: &Rc<Conversation>| connection.stream.is_abandoned();
        let gone = || connections.iter().position(is_gone).filter(|_| self.busy.get() < CALLS_MAX);
        let Some(goes) = idle.or_else(gone) else { return false };
        connections.remove(goes).stream.shutdown();
        true
    }

    async fn converse(&self, conversation: &Conversation) {
        let Conversation { stream, received, .. } = conversation;
        loop {
            loop {
                let line = next_line(&mut received.borrow_mut());
                let Some(line) = line else { break };
                if !self.answer(conversation, &line).await {
                    return;
                }
            }
            if received.borrow().len() >= REQUEST_BYTES_MAX {
                let message = format!("a request has at most {REQUEST_BYTES_MAX} bytes");
                let line = response(Value::Null, Err(CallError::new(code::INVALID, &message)));
                send(stream, &line).await;
                return;
            }
            if !receive(stream, received).await {
                return;
            }
        }
    }

    /// Does what a line asks for. False if the connection is gone.
    async fn answer(&self, conversation: &Conversation, line: &[u8]) -> bool {
        if line.iter().all(u8::is_ascii_whitespace) {
            return true;
        }
        self.busy.set(self.busy.get() + 1);
        let answer = match parse(line) {
            Ok((id, command)) => {
                conversation.calling.set(!matches!(command, Command::Events(_)));
                let outcome = match command {
                    Command::Upgrade(parameters) => self.upgrade(conversation, id.as_ref(), parameters).await,
                    other => self.execute(other).await,
                };
                id.map(|id| response(id, outcome))
            }
            Err((id, error)) => Some(response(id, Err(error))),
        };
        // From here on it is for the client to go on. One that doesn't read must not keep others out.
        conversation.calling.set(false);
        let sent = match answer {
            Some(answer) => send(&conversation.stream, &answer).await,
            None => true,
        };
        self.busy.set(self.busy.get() - 1);
        self.answered.notify();
        sent
    }

    fn detail(&self, array: &Array) -> Detail {
        let mut detail = report::detail(array, self.front_ends.addresses());
        self.reconnector.annotate(&mut detail);
        detail.clients = clients::list(&self.front_ends);
        detail.limit = limit::now(&self.limit);
        detail.recorded = self.recorder.is_on(shard::now());
        detail.compared = self.compared.get();
        detail.warnings.extend(self.keeper.warning());
        detail
    }

    fn change_limit(&self, parameters: LimitParameters) -> Result<Limit, CallError> {
        // The end waits for what is under way, so nothing may be held back any more.
        if self.stopping.is_wanted() {
            return Err(CallError::new(code::STOPPING, STOPPING));
        }
        let changed = limit::change(&self.limit, parameters);
        let now = limit::now(&self.limit);
        if changed {
            self.journal.note(&format!("what clients may ask for was changed: {}", now.in_words()));
        }
        Ok(now)
    }

    /// Has another program take this one's place, which then answers.
    async fn upgrade(
        &self,
        conversation: &Conversation,
        call: Option<&Value>,
        parameters: UpgradeParameters,
    ) -> Result<Value, CallError> {
        let stopping = || CallError::new(code::STOPPING, STOPPING);
        self.refuse_for_successor()?;
        let array = self.array.borrow().clone().ok_or_else(stopping)?;
        self.front_ends.refuse_succession().map_err(refused)?;
        if self.kinds.memory {
            return Err(refused("the members are this process's memory, which another program doesn't get"));
        }
        let unfit = |why: String| refused(&format!("{why}; nothing was changed"));
        fitness::refuse(&array.detail()).map_err(unfit)?;
        let devices = fitness::devices(&array);
        let own = self.own_devices();
        drop(array);
        // Before a thread looks at what is open.
        self.refuse_while_looking().await?;
        let program = PathBuf::from(parameters.program);
        if !program.is_absolute() {
            return Err(CallError::new(code::PARAMETERS, "the program's path must be absolute"));
        }
        let asked = blocking(move || {
            fitness::check_names(&devices)?;
            fitness::check_program(&program, &own)?;
            Candidate::ask(&program)
        });
        let candidate = asked.await.map_err(|why| refused(&why))?;
        self.refuse_while_looking().await?;
        // Another call may have asked for the same meanwhile.
        self.refuse_for_successor()?;
        if self.stopping.is_wanted() {
            return Err(stopping());
        }
        // What was asked took time, in which a member may have gone.
        let array = self.array.borrow().clone().ok_or_else(stopping)?;
        fitness::refuse(&array.detail()).map_err(unfit)?;
        drop(array);
        let cannot = |error: io::Error| refused(&format!("descriptors can't be handed on: {error}"));
        let (means, locks) = (Means::new().map_err(cannot)?, inheritance::held().map_err(cannot)?);
        let caller = conversation.stream.leave().map_err(cannot)?.into();
        let listeners = self.leavers.leave();
        let listeners = listeners.inspect_err(|_| conversation.stream.stay()).map_err(cannot)?;
        // Now that nothing fails any more: what was refused goes on with the calls behind it.
        let (call, received) = (call.cloned(), conversation.received.take());
        let wish = Wish { candidate, means, caller, received, call, listeners, locks };
        self.stopping.want_successor(wish);
        std::future::pending().await
    }

    /// Waits a moment for threads that look at devices, and for requests to devices that the array doesn't
    /// have. While one waits for a device that hangs, the process can't become another program.
    async fn refuse_while_looking(&self) -> Result<(), CallError> {
        let start = shard::now();
        let scanned = || Some(scan::awaited()?.display().to_string());
        let beside = || self.array.borrow().as_ref().and_then(fitness::beside);
        let awaited = || self.looks.awaited().or_else(scanned).or_else(beside);
        while let Some(device) = awaited() {
            if shard::now() - start > LOOKS_NANOSECONDS {
                return Err(refused(&format!(
                    "{} does not answer, and what waits for it would keep the process from becoming another program; \
                     nothing was changed",
                    printable(&device)
                )));
            }
            shard::sleep(LOOKS_PAUSE_NANOSECONDS).await;
        }
        Ok(())
    }

    async fn execute(&self, command: Command) -> Result<Value, CallError> {
        if let Command::Stop(StopParameters { force }) = command {
            self.refuse_for_successor()?;
            self.refuse_while_used(force).await?;
            // Clients may have gone because they are left to another program.
            self.refuse_for_successor()?;
            self.stopping.want();
            return self
                .stopping
                .finished()
                .await
                .map(|()| Value::Null)
                .map_err(|error| refusal::failed(&error));
        }
        let array = self.array.borrow().clone();
        let array = array.ok_or_else(|| CallError::new(code::STOPPING, STOPPING))?;
        let result = match command {
            Command::Version => serde_json::to_value(Version {
                protocol: PROTOCOL,
                pinstripe: env!("CARGO_PKG_VERSION").to_owned(),
                instance: self.instance.clone(),
                pid: std::process::id(),
            }),
            Command::Detail => serde_json::to_value(self.detail(&array)),
            Command::Fail(which) => {
                let done = names::fail(&array, &self.looks, which).await?;
                self.journal.note(&format!("{} was taken out, as asked for", done.device));
                serde_json::to_value(done)
            }
            Command::Add(parameters) => serde_json::to_value(self.add_in_turn(&array, parameters).await?),
            Command::Remove(which) => {
                let done = names::remove(&array, &self.looks, which).await?;
                self.journal.note(&format!("{} was removed", done.device));
                serde_json::to_value(done)
            }
            Command::Replace(parameters) => serde_json::to_value(self.replace(&array, parameters).await?),
            Command::Bitmap(parameters) => {
                grow::bitmap(&array, parameters, &self.journal).await?;
                Ok(Value::Null)
            }
            Command::Grow(parameters) => {
                serde_json::to_value(grow::policy(&array, parameters, &self.journal).await?)
            }
            Command::JournalMode(parameters) => {
                serde_json::to_value(grow::journal_mode(&array, parameters, &self.journal).await?)
            }
            Command::Check(parameters) => serde_json::to_value(
                maintenance::check(&array, parameters, &self.compared)
                    .await
                    .map_err(|error| refusal::sync(&error))?,
            ),
            Command::Repair(parameters) => serde_json::to_value(
                maintenance::repair(&array, parameters, &self.compared)
                    .await
                    .map_err(|error| refusal::sync(&error))?,
            ),
            Command::Sync(parameters) => serde_json::to_value(
                maintenance::sync(&array, parameters).map_err(|error| refusal::sync(&error))?,
            ),
            Command::Limit(parameters) => serde_json::to_value(self.change_limit(parameters)?),
            Command::Record(parameters) => serde_json::to_value(
                record::record(&self.recorder, parameters, &self.journal, &self.stopping).await?,
            ),
            Command::Events(parameters) => serde_json::to_value(
                maintenance::events(&array, parameters, &self.instance, &self.stopping).await,
            ),
            Command::Stop(_) | Command::Upgrade(_) => Ok(Value::Null),
        };
        result.map_err(|error| refusal::failed(&error))
    }

    fn refuse_for_successor(&self) -> Result<(), CallError> {
        if !self.stopping.is_for_successor() {
            return Ok(());
        }
        let message = "another program takes this one's place just now: ask that one";
        Err(CallError::new(code::STOPPING, message))
    }

    /// An array that is used isn't stopped, unless that is forced; but what stops already is stopped.
    async fn refuse_while_used(&self, force: bool) -> Result<(), CallError> {
        if force || self.stopping.is_wanted() {
            return Ok(());
        }
        let left = clients::left_after(&self.front_ends, CLIENTS_LEAVE_NANOSECONDS).await;
        if left.is_empty() {
            return Ok(());
        }
        let words: Vec<String> = left.iter().map(Client::in_words).collect();
        let sentence = format!(
            "the array is in use by {}: nothing was stopped. Unmount and disconnect (umount, losetup -d, nbd-client -d, nvme disconnect), or \
             use --force, which ends the connections after the requests under way",
            words.join(", ")
        );
        Err(CallError::new(code::IN_USE, &sentence))
    }

    /// The block devices and files as which the array is served.
    fn own_devices(&self) -> Vec<PathBuf> {
        let addresses = self.front_ends.addresses().into_iter().map(|address| PathBuf::from(address.uri));
        addresses.filter(|path| path.is_absolute()).collect()
    }

    /// A device that is to join, which changes nothing on it.
    async fn newcomer(
        &self,
        array: &Array,
        device: String,
        holds: devices::Holds,
    ) -> Result<devices::Newcomer, CallError> {
        let (own, kinds, array, name) = (self.own_devices(), self.kinds, array.clone(), device.clone());
        let look = async move {
            refuse_part(&array, &name, own).await?;
            let newcomer = devices::newcomer(PathBuf::from(name), &array, holds, kinds).await;
            newcomer.map_err(|failure| refused(failure.sentence()))
        };
        self.looks.at(&device, look).await
    }

    async fn add_in_turn(&self, array: &Array, parameters: AddParameters) -> Result<AddResult, CallError> {
        self.added.wait_until(|| !self.adding.replace(true)).await;
        let added = self.add(array, parameters).await;
        self.adding.set(false);
        self.added.notify();
        added
    }

    async fn add(&self, array: &Array, parameters: AddParameters) -> Result<AddResult, CallError> {
        let AddParameters { device, force, spare_of } = parameters;
        let newcomer = self.newcomer(array, device, devices::Holds::new(force, spare_of)).await?;
        let identity = random_uuid().map_err(|failure| refused(failure.sentence()))?;
        let source = newcomer.source();
        let name = source.name();
        let adding = Box::pin(array.add_over(source, identity, newcomer.marks()));
        let added = newcomer.join(self.keeper.joins(&name, array, adding)).await;
        let added = added.map_err(|error| refusal::command(&error))?;
        let recovery = match added {
            Added::Spare => "none",
            Added::Full { .. } => "full",
            Added::Bitmap { .. } => "bitmap",
        };
        self.journal.note(&match added.slot() {
            Some(slot) => format!("{name} was added in slot {slot}"),
            None => format!("{name} was added as a spare"),
        });
        Ok(AddResult { slot: added.slot(), recovery: recovery.to_owned() })
    }

    async fn replace(&self, array: &Array, parameters: ReplaceParameters) -> Result<DeviceResult, CallError> {
        let ReplaceParameters { slot, device, with, force } = parameters;
        // A look at a device takes a while, in which another member may come into the slot.
        let (slot, member) = match (slot, device) {
            (Some(slot), None) => (slot.into(), names::member_in(array, slot.into())),
            (None, Some(device)) => {
                let (slot, member) = names::seat_of(array, &self.looks, &device).await?;
                (slot, Some(member))
            }
            _ => return Err(CallError::new(code::PARAMETERS, "either a slot or a device is needed")),
        };
        let with = match with {
            None => None,
            Some(device) => Some(self.newcomer(array, device, devices::Holds::new(force, None)).await?),
        };
        let identity = random_uuid().map_err(|failure| refused(failure.sentence()))?;
        let named = with.is_some();
        let said = |error: &CommandError| match error {
            // The member changed meanwhile, and the device that was named holds a superblock by then.
            CommandError::NotReplaceable { .. } if named => refusal::failed(error),
            _ => refusal::command(error),
        };
        let marks = with.as_ref().map(devices::Newcomer::marks).unwrap_or_default();
        let source = with.as_ref().map(devices::Newcomer::source);
        let replacing = Box::pin(array.replace_over((slot, member), source, identity, marks));
        let replaced = match &with {
            Some(newcomer) => {
                let name = newcomer.source().name();
                newcomer.join(self.keeper.joins(&name, array, replacing)).await
            }
            None => replacing.await,
        };
        let device = replaced.map_err(|error| said(&error))?;
        self.journal.note(&format!("slot {slot} is being copied to {device}"));
        Ok(DeviceResult { slot: Some(slot), device })
    }
}

/// Refuses what is in the array, which would otherwise be waited for, and the array itself as its clients
/// have it (`own`), whose requests would wait for themselves.
async fn refuse_part(array: &Array, device: &str, own: Vec<PathBuf>) -> Result<(), CallError> {
    if let Some(part) = names::part_of(array, device).await {
        return Err(refused(&format!("{device} is {part} already; nothing was done")));
    }
    let path = PathBuf::from(device);
    // Nothing answers the kernel if what is asked about is this array, and this shard waits.
    if blocking(move || member::is_over(&path, &own)).await {
        return Err(refused(&format!("{device} is this array itself, or lies on it; nothing was done")));
    }
    Ok(())
}

/// Says that there is no room. What is asked for has an answer then: an end of the connection without one
/// would say that the server is about to end.
async fn turn_away(stream: Rc<SocketStream>) {
    let received = RefCell::default();
    let request = async {
        loop {
            if let Some(line) = next_line(&mut received.borrow_mut()) {
                return Some(line);
            }
            if received.borrow().len() >= REQUEST_BYTES_MAX || !receive(&stream, &received).await {
                return None;
            }
        }
    };
    let request = shard::timeout(REQUEST_NANOSECONDS, request).await.flatten();
    let id = match request.map(|line| parse(&line)) {
        Some(Ok((id, _))) => id,
        Some(Err((id, _))) => Some(id),
        None => None,
    };
    let message = format!("{CONNECTIONS_MAX} calls are under way, and there is no room for more: try again");
    send(&stream, &response(id.unwrap_or_default(), Err(refused(&message)))).await;
}

/// Receives more. False if nothing comes any more.
async fn receive(stream: &SocketStream, received: &RefCell<Vec<u8>>) -> bool {
    let outcome = stream.receive(shard::buffer(RECEIVE_BYTES)).await;
    match (outcome.result, outcome.buffer) {
        (Ok(count), Some(buffer)) if (1..=buffer.len()).contains(&count) => {
            received.borrow_mut().extend_from_slice(&buffer[..count]);
            true
        }
        _ => false,
    }
}

/// Takes the next line that is there whole.
fn next_line(received: &mut Vec<u8>) -> Option<Vec<u8>> {
    let end = received.iter().position(|&byte| byte == b'\n')?;
    Some(received.drain(..=end).collect())
}

/// Sends all of `text`. False if the connection is gone, or nothing reads at its other end.
async fn send(stream: &SocketStream, text: &str) -> bool {
    shard::timeout(ANSWER_NANOSECONDS, send_all(stream, text)).await.unwrap_or(false)
}

async fn send_all(stream: &SocketStream, text: &str) -> bool {
    let mut buffer = shard::buffer(text.len());
    buffer.copy_from_slice(text.as_bytes());
    let whole = buffer.freeze();
    let mut sent = 0;
    while sent < whole.len() {
        match stream.send(whole.slice(sent, whole.len() - sent)).await.result {
            Ok(count) if count > 0 => sent += count,
            _ => return false,
        }
    }
    true
}
