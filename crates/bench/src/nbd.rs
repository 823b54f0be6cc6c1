//! A client of NBD with many requests under way: an export as a [`Device`], for `bench --through`.
//!
//! The handshake blocks and comes first. Then two tasks have the connection. One sends what is queued, with
//! headers and small payloads gathered. The other receives simple replies, by whose cookies it finds the
//! requests. An answer that isn't expected ends the connection, and all requests under way fail.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    os::{fd::OwnedFd, unix::net::UnixStream},
    rc::Rc,
    time::Duration,
};

use pinstripe_export::nbd::wire::{
    GREETING_MAGIC, Greeting, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader,
    PAYLOAD_BYTES_MAX, REQUEST_MAGIC, RequestHeader, SIMPLE_REPLY_MAGIC, SimpleReplyHeader, command,
    command_flag, handshake_flag, info, option, option_reply, transmission_flag,
};
use pinstripe_runtime::{
    Buffer, Completion, Device, DeviceError, DeviceErrorKind, DeviceInfo, DeviceSource, Signal, Slice,
    Stream, Submission, ZeroedReads,
    completion::Payload,
    shard,
    uring::{self, SocketStream},
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::export::NbdAddress;

/// How long a server may take for the handshake.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of replies to options that a client reads.
const OPTION_REPLY_BYTES_MAX: u32 = 8 << 10;
/// Bytes that are sent or received at once.
const STAGING_BYTES: usize = 128 << 10;
/// Payloads up to this size are copied behind their headers, so that one send takes several.
const GATHERED_BYTES_MAX: usize = 16 << 10;
const SECTOR: u32 = 512;

/// An export that was asked for; every shard connects by itself.
pub(crate) struct NbdSource {
    address: NbdAddress,
}

impl NbdSource {
    pub(crate) fn new(address: NbdAddress) -> Self {
        Self { address }
    }

    /// Connects, and asks for the export. Blocks.
    fn connect(&self) -> io::Result<(OwnedFd, Export)> {
        match &self.address {
            NbdAddress::Unix { socket, name } => {
                let mut stream = UnixStream::connect(socket)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                let export = negotiate(&mut stream, name)?;
                stream.set_read_timeout(None)?;
                Ok((stream.into(), export))
            }
            NbdAddress::Tcp { address, name } => {
                let mut stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                let export = negotiate(&mut stream, name)?;
                stream.set_read_timeout(None)?;
                Ok((stream.into(), export))
            }
        }
    }

    /// What it says of itself.
    pub(crate) fn look(&self) -> io::Result<Export> {
        self.connect().map(|(_, export)| export)
    }
}

impl DeviceSource for NbdSource {
    fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        let failed = |error: io::Error| DeviceError::from_errno(error.raw_os_error().unwrap_or(0));
        let (socket, export) = self.connect().map_err(failed)?;
        let stream = uring::Connection::new(socket).attach().map_err(failed)?;
        let connection = Rc::new(Connection {
            stream,
            requests: RefCell::default(),
            outgoing: RefCell::default(),
            queued: Signal::default(),
            ended: Cell::new(false),
        });
        shard::spawn(Rc::clone(&connection).send());
        shard::spawn(Rc::clone(&connection).receive());
        let info = DeviceInfo {
            name: self.name(),
            size: export.size,
            logical_block: SECTOR,
            volatile_cache: export.flags & transmission_flag::SEND_FLUSH != 0,
            forces_by_flush: export.flags & transmission_flag::SEND_FLUSH != 0,
            zeroes: ZeroedReads::Unsupported,
            discards: false,
            in_memory: false,
            moves_head: None,
        };
        Ok(Rc::new(NbdDevice { connection, info }))
    }

    fn name(&self) -> String {
        self.address.to_string()
    }
}

/// What a server says of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    /// In bytes.
    pub(crate) size: u64,
    flags: u16,
}

impl Export {
    pub(crate) fn is_read_only(self) -> bool {
        self.flags & transmission_flag::READ_ONLY != 0
    }
}

fn bad(words: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, words.into())
}

fn receive<T: FromZeros + IntoBytes + FromBytes>(stream: &mut impl Read) -> io::Result<T> {
    let mut value = T::new_zeroed();
    stream.read_exact(value.as_mut_bytes())?;
    Ok(value)
}

/// The handshake: fixed newstyle, `NBD_OPT_GO`.
fn negotiate(stream: &mut (impl Read + Write), name: &str) -> io::Result<Export> {
    let greeting: Greeting = receive(stream)?;
    let is_newstyle = greeting.magic.get() == GREETING_MAGIC && greeting.option_magic.get() == OPTION_MAGIC;
    let wanted = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    if !is_newstyle || greeting.flags.get() & wanted != wanted {
        return Err(bad("it is no server of NBD (fixed newstyle)"));
    }
    let length = u32::try_from(name.len()).map_err(|_| bad("the export's name is too long"))?;
    stream.write_all(&u32::from(wanted).to_be_bytes())?;
    let header =
        OptionHeader { magic: OPTION_MAGIC.into(), option: option::GO.into(), length: (length + 6).into() };
    // The name with its length, and no list of what to tell.
    let body = [header.as_bytes(), &length.to_be_bytes(), name.as_bytes(), &[0, 0]].concat();
    stream.write_all(&body)?;
    let mut export = None;
    loop {
        let reply: OptionReplyHeader = receive(stream)?;
        let (kind, length) = (reply.kind.get(), reply.length.get());
        if reply.magic.get() != OPTION_REPLY_MAGIC || length > OPTION_REPLY_BYTES_MAX {
            return Err(bad("a reply to an option is malformed"));
        }
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload)?;
        match kind {
            option_reply::ACK => {
                return export.ok_or_else(|| bad("the server doesn't say how large its export is"));
            }
            option_reply::INFO => export = export.or(described(&payload)),
            _ => {
                return Err(bad(format!(
                    "the server refuses the export: {}",
                    String::from_utf8_lossy(&payload)
                )));
            }
        }
    }
}

/// The export, if the fact is that one.
fn described(fact: &[u8]) -> Option<Export> {
    let (kind, rest) = fact.split_first_chunk()?;
    let (size, flags) = rest.split_first_chunk()?;
    let is_export = u16::from_be_bytes(*kind) == info::EXPORT && flags.len() == 2;
    is_export
        .then(|| Export { size: u64::from_be_bytes(*size), flags: u16::from_be_bytes([flags[0], flags[1]]) })
}

/// An export on one shard. Its connection ends with it.
struct NbdDevice {
    connection: Rc<Connection>,
    info: DeviceInfo,
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        self.connection.end();
    }
}

impl NbdDevice {
    fn start(&self, command: u16, fua: bool, offset: u64, length: usize, payload: Payload) -> Submission {
        let Some(length) = u32::try_from(length).ok().filter(|length| *length <= PAYLOAD_BYTES_MAX) else {
            return Submission::done(Err(DeviceError::of(DeviceErrorKind::Invalid)), None);
        };
        let data = if let Payload::Slice(slice) = &payload { Some(slice.clone()) } else { None };
        let (submission, completion) = Submission::pending(payload);
        let flags = if fua { command_flag::FUA } else { 0 };
        self.connection.start(Request { command, flags, offset, length, data, completion });
        submission
    }
}

impl Device for NbdDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn read(&self, offset: u64, buffer: Buffer) -> Submission {
        self.start(command::READ, false, offset, buffer.len(), Payload::Buffer(buffer))
    }
    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        self.start(command::WRITE, fua, offset, data.len(), Payload::Slice(data))
    }
    fn flush(&self) -> Submission {
        self.start(command::FLUSH, false, 0, 0, Payload::None)
    }
    fn discard(&self, _: u64, _: u64) -> Submission {
        Submission::done(Err(DeviceError::of(DeviceErrorKind::Unsupported)), None)
    }
    fn write_zeroes(&self, _: u64, _: u64) -> Submission {
        Submission::done(Err(DeviceError::of(DeviceErrorKind::Unsupported)), None)
    }
}

struct Request {
    command: u16,
    flags: u16,
    offset: u64,
    length: u32,
    /// Until it was sent.
    data: Option<Slice>,
    completion: Completion,
}

struct Connection {
    stream: Rc<SocketStream>,
    /// By cookie.
    requests: RefCell<Vec<Option<Request>>>,
    /// Cookies of requests that were not sent.
    outgoing: RefCell<VecDeque<usize>>,
    queued: Signal,
    ended: Cell<bool>,
}

impl Connection {
    fn start(&self, request: Request) {
        if self.ended.get() {
            return request.completion.finish(Err(DeviceError::of(DeviceErrorKind::Gone)));
        }
        let cookie = {
            let mut requests = self.requests.borrow_mut();
            let free = requests.iter().position(Option::is_none).unwrap_or(requests.len());
            if free == requests.len() {
                requests.push(None);
            }
            requests[free] = Some(request);
            free
        };
        self.outgoing.borrow_mut().push_back(cookie);
        self.queued.notify();
    }

    /// Fails all requests, and takes no more.
    fn end(&self) {
        self.ended.set(true);
        self.stream.shutdown();
        self.outgoing.borrow_mut().clear();
        let failed: Vec<Request> = self.requests.borrow_mut().drain(..).flatten().collect();
        for request in failed {
            request.completion.finish(Err(DeviceError::of(DeviceErrorKind::Gone)));
        }
        self.queued.notify();
    }

    async fn send(self: Rc<Self>) {
        loop {
            self.queued.wait_until(|| self.ended.get() || !self.outgoing.borrow().is_empty()).await;
            if self.ended.get() {
                return;
            }
            let (heads, large) = self.gather();
            if !self.send_whole(heads).await {
                return self.end();
            }
            if let Some(payload) = large
                && !self.send_whole(payload).await
            {
                return self.end();
            }
        }
    }

    /// Headers and small payloads of what is queued; the last one may have a large payload behind it.
    fn gather(&self) -> (Slice, Option<Slice>) {
        let (mut outgoing, mut requests) = (self.outgoing.borrow_mut(), self.requests.borrow_mut());
        let mut staging = shard::buffer(STAGING_BYTES);
        let (mut filled, mut large) = (0, None);
        let header_bytes = size_of::<RequestHeader>();
        while filled + header_bytes + GATHERED_BYTES_MAX <= STAGING_BYTES
            && large.is_none()
            && let Some(cookie) = outgoing.pop_front()
        {
            let Some(request) = requests.get_mut(cookie).and_then(Option::as_mut) else { continue };
            let header = RequestHeader {
                magic: REQUEST_MAGIC.into(),
                flags: request.flags.into(),
                command: request.command.into(),
                cookie: (cookie as u64).into(),
                offset: request.offset.into(),
                length: request.length.into(),
            };
            staging[filled..filled + header_bytes].copy_from_slice(header.as_bytes());
            filled += header_bytes;
            match request.data.take() {
                Some(data) if data.len() <= GATHERED_BYTES_MAX => {
                    staging[filled..filled + data.len()].copy_from_slice(&data);
                    filled += data.len();
                }
                data => large = data,
            }
        }
        staging.truncate(filled);
        (staging.freeze(), large)
    }

    async fn send_whole(&self, data: Slice) -> bool {
        let mut sent = 0;
        while sent < data.len() {
            match self.stream.send(data.slice(sent, data.len() - sent)).await.result {
                Ok(count) if count > 0 => sent += count,
                _ => return false,
            }
        }
        true
    }

    async fn receive(self: Rc<Self>) {
        let mut incoming = Incoming { stream: Rc::clone(&self.stream), buffer: None, from: 0, to: 0 };
        while self.receive_reply(&mut incoming).await.is_some() {}
        self.end();
    }

    /// None if the connection can't go on.
    async fn receive_reply(&self, incoming: &mut Incoming) -> Option<()> {
        let mut header = SimpleReplyHeader::new_zeroed();
        incoming
            .copy(header.as_mut_bytes().len(), |at, bytes| {
                header.as_mut_bytes()[at..at + bytes.len()].copy_from_slice(bytes);
            })
            .await?;
        if header.magic.get() != SIMPLE_REPLY_MAGIC {
            return None;
        }
        let cookie = usize::try_from(header.cookie.get()).ok()?;
        let request = self.requests.borrow_mut().get_mut(cookie)?.take()?;
        let Request { command, length, completion, .. } = request;
        let length = usize::try_from(length).ok()?;
        let error = header.error.get();
        let mut result =
            if error == 0 { Ok(length) } else { Err(DeviceError::from_errno(i32::try_from(error).ok()?)) };
        let mut whole = Some(());
        if error == 0 && command == command::READ {
            let place = |at: usize, bytes: &[u8]| {
                completion.with_payload(|payload| {
                    if let Payload::Buffer(buffer) = payload {
                        buffer[at..at + bytes.len()].copy_from_slice(bytes);
                    }
                });
            };
            whole = incoming.copy(length, place).await;
            if whole.is_none() {
                result = Err(DeviceError::of(DeviceErrorKind::Gone));
            }
        }
        completion.finish(result);
        whole
    }
}

/// Bytes that have come and were not taken.
struct Incoming {
    stream: Rc<SocketStream>,
    buffer: Option<Buffer>,
    from: usize,
    to: usize,
}

impl Incoming {
    /// Gives the next `length` bytes to `place` in pieces, each with where it belongs.
    async fn copy(&mut self, length: usize, mut place: impl FnMut(usize, &[u8])) -> Option<()> {
        let mut done = 0;
        while done < length {
            if self.from == self.to {
                let buffer = self.buffer.take().unwrap_or_else(|| shard::buffer(STAGING_BYTES));
                let outcome = self.stream.receive(buffer).await;
                self.buffer = outcome.buffer;
                (self.from, self.to) = (0, outcome.result.ok().filter(|count| *count > 0)?);
            }
            let count = (self.to - self.from).min(length - done);
            place(done, &self.buffer.as_ref()?[self.from..self.from + count]);
            (self.from, done) = (self.from + count, done + count);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, path::PathBuf, thread};

    use pinstripe_runtime::uring::RuntimeConfig;

    use super::*;

    const SIZE: u64 = 1 << 20;

    /// What a server says in the handshake, if it describes its export so.
    fn handshake(facts: &[(u32, &[u8])]) -> Vec<u8> {
        let mut said = [GREETING_MAGIC.to_be_bytes(), OPTION_MAGIC.to_be_bytes()].concat();
        said.extend(3_u16.to_be_bytes());
        for (kind, payload) in facts {
            let length = u32::try_from(payload.len()).unwrap();
            let header = OptionReplyHeader {
                magic: OPTION_REPLY_MAGIC.into(),
                option: option::GO.into(),
                kind: (*kind).into(),
                length: length.into(),
            };
            said.extend(header.as_bytes());
            said.extend(*payload);
        }
        said
    }

    fn size_fact() -> Vec<u8> {
        [&info::EXPORT.to_be_bytes()[..], &SIZE.to_be_bytes(), &transmission_flag::READ_ONLY.to_be_bytes()]
            .concat()
    }

    /// A peer that says this, whatever it hears.
    struct Script(io::Cursor<Vec<u8>>);

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Script {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            Ok(data.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn negotiated(said: Vec<u8>) -> Result<Export, String> {
        negotiate(&mut Script(io::Cursor::new(said)), "x").map_err(|error| error.to_string())
    }

    #[test]
    fn a_handshake_gives_size_and_flags_and_skips_other_facts() {
        let name = [&info::NAME.to_be_bytes()[..], b"x"].concat();
        let facts =
            [(option_reply::INFO, &name[..]), (option_reply::INFO, &size_fact()), (option_reply::ACK, &[])];
        let export = negotiated(handshake(&facts)).unwrap();
        assert!(export.size == SIZE && export.is_read_only());
    }

    #[test]
    fn a_server_that_refuses_or_says_nonsense_is_not_used() {
        let refusal = negotiated(handshake(&[(option_reply::ERR_UNKNOWN, b"no such export")]));
        assert!(refusal.unwrap_err().contains("no such export"));
        let silent = negotiated(handshake(&[(option_reply::ACK, &[])]));
        assert!(silent.unwrap_err().contains("how large"));
        assert!(negotiated(b"SSH-2.0-OpenSSH_9.2".to_vec()).unwrap_err().contains("no server of NBD"));
        let mut long = handshake(&[(option_reply::INFO, &[])]);
        let end = long.len();
        long[end - 4..].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(negotiated(long).unwrap_err().contains("malformed"), "a length that would take all memory");
    }

    /// A server that takes two requests, answers `replies` (whose cookie, the error, bytes of data), and then
    /// says what isn't a reply.
    fn serve_two(socket: PathBuf, replies: &'static [(u64, u32, usize)]) -> thread::JoinHandle<()> {
        let listener = UnixListener::bind(socket).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream
                .write_all(&handshake(&[(option_reply::INFO, &size_fact()), (option_reply::ACK, &[])]))
                .unwrap();
            // Flags, the option's header, the empty name, no list.
            stream.read_exact(&mut [0; 4 + 16 + 6]).unwrap();
            for _ in 0..2 {
                let header: RequestHeader = receive(&mut stream).unwrap();
                assert!(header.magic.get() == REQUEST_MAGIC && header.command.get() == command::READ);
            }
            for &(cookie, error, bytes) in replies {
                let magic = SIMPLE_REPLY_MAGIC.into();
                let header = SimpleReplyHeader { magic, error: error.into(), cookie: cookie.into() };
                stream.write_all(header.as_bytes()).unwrap();
                // A client hangs up as soon as it has read what isn't a reply to it.
                let _ = stream.write_all(&vec![u8::try_from(cookie).unwrap() + 1; bytes]);
            }
            let _ = stream.write_all(&[0xff; 64]);
        })
    }

    /// What became of two reads of `length` bytes, and of one that comes after the connection's end: the last
    /// byte, or why not.
    fn read_two(
        name: &str,
        length: usize,
        replies: &'static [(u64, u32, usize)],
    ) -> [Result<u8, DeviceErrorKind>; 3] {
        let socket = std::env::temp_dir().join(format!("pinstripe-nbd-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let server = serve_two(socket.clone(), replies);
        let address = NbdAddress::Unix { socket: socket.clone(), name: String::new() };
        let read = uring::run(&RuntimeConfig::unpinned(1), move |_| async move {
            let device = NbdSource::new(address).attach().unwrap();
            assert_eq!(device.info().size, SIZE);
            let outcome = |outcome: pinstripe_runtime::Outcome| {
                let (result, buffer) = (outcome.result, outcome.buffer);
                result.map(|_| buffer.map_or(0, |buffer| buffer[length - 1])).map_err(|error| error.kind)
            };
            let (first, second) =
                (device.read(0, shard::buffer(length)), device.read(4096, shard::buffer(length)));
            let both = [outcome(first.await), outcome(second.await)];
            let late = loop {
                let late = device.read(0, shard::buffer(length)).await;
                if late.result.is_err() {
                    break outcome(late);
                }
            };
            [both[0], both[1], late]
        });
        server.join().unwrap();
        std::fs::remove_file(socket).unwrap();
        read.unwrap()
    }

    #[test]
    fn replies_in_any_order_find_their_requests() {
        const LENGTH: usize = 300 << 10;
        let read = read_two("order", LENGTH, &[(1, 0, LENGTH), (0, 0, LENGTH)]);
        assert_eq!(read, [Ok(1), Ok(2), Err(DeviceErrorKind::Gone)]);
    }

    #[test]
    fn an_error_is_its_requests_alone_and_nonsense_ends_all() {
        let read = read_two("error", 512, &[(1, 5, 0)]);
        assert_eq!(
            read,
            [Err(DeviceErrorKind::Gone), Err(DeviceErrorKind::Media), Err(DeviceErrorKind::Gone)]
        );
        let unknown = read_two("cookie", 512, &[(7, 0, 512)]);
        assert_eq!(unknown, [Err(DeviceErrorKind::Gone); 3]);
    }
}
