//! Requests from bytes, and sessions whose kernel is a script.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    sync::Arc,
};

use pinstripe_block::{BlockService, ServiceError, budget::Budget, locks::Locks};
use pinstripe_runtime::{
    Buffer, Signal, Slice, shard,
    uring::{RuntimeConfig, run},
};
use proptest::prelude::*;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{
    Channel, Description, Ended, Fill, Message, OpenFiles, PAYLOAD_BYTES_MAX, Request, Session, fuzz_fuse,
    wire::{
        Allocate, AttributesReply, HEAD_BYTES, Init, InitReply, Open, OpenReply, ReplyHeader, RequestHeader,
        Seek, SeekReply, SetAttributes, SpaceReply, Transfer, WriteReply, opcode,
    },
};

const BLOCK: usize = 512;
const MIB: usize = 1 << 20;

/// A request's bytes.
fn bytes(opcode: u32, unique: u64, body: &[u8], data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(size_of::<RequestHeader>() + body.len() + data.len()).unwrap();
    let header = RequestHeader { length, opcode, unique, node: 1, process: 7, ..RequestHeader::default() };
    [header.as_bytes(), body, data].concat()
}

fn parse(bytes: &[u8]) -> Option<Message> {
    let mut head = [0xee; HEAD_BYTES];
    let count = bytes.len().min(HEAD_BYTES);
    head[..count].copy_from_slice(&bytes[..count]);
    Message::parse(&head, bytes.len())
}

fn parsed(opcode: u32, body: &[u8], data: &[u8]) -> Result<Request, i32> {
    let message = parse(&bytes(opcode, 99, body, data)).unwrap();
    assert_eq!(message.unique, 99);
    message.request
}

fn transfer(offset: u64, length: usize, flags: u32) -> Transfer {
    Transfer { offset, length: u32::try_from(length).unwrap(), flags, ..Transfer::default() }
}

fn read(unique: u64, offset: u64, length: usize) -> Vec<u8> {
    bytes(opcode::READ, unique, transfer(offset, length, 0).as_bytes(), &[])
}

fn write(unique: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    bytes(opcode::WRITE, unique, transfer(offset, data.len(), 0).as_bytes(), data)
}

fn zero(unique: u64, offset: u64, length: u64, mode: u32) -> Vec<u8> {
    let body = Allocate { offset, length, mode, ..Allocate::default() };
    bytes(opcode::FALLOCATE, unique, body.as_bytes(), &[])
}

#[test]
fn every_operation_of_the_kernel_becomes_a_request() {
    let kinds = [
        (opcode::GETATTR, vec![0; 16], Request::Attributes),
        (opcode::RELEASE, vec![0; 24], Request::Release),
        (opcode::FLUSH, vec![0; 24], Request::Nothing),
        (opcode::DESTROY, vec![], Request::Nothing),
        (opcode::FSYNC, vec![0; 16], Request::Synchronise),
        (opcode::STATFS, vec![], Request::Space),
        (opcode::FORGET, vec![0; 8], Request::Silence),
        (opcode::BATCH_FORGET, vec![0; 40], Request::Silence),
    ];
    for (opcode, body, request) in kinds {
        assert_eq!(parsed(opcode, &body, &[]), Ok(request), "{opcode}");
    }
    let init = Init { major: 7, minor: 41, readahead_max: 1 << 17, abilities: 9 };
    let initialise = Request::Initialise { revision: (7, 41), abilities: 9 };
    assert_eq!(parsed(opcode::INIT, init.as_bytes(), &[0; 48]), Ok(initialise));
    for (flags, writes) in [(0, false), (1, true), (2, true), (0o100_000, false)] {
        let open = Open { flags, open_flags: 0 };
        assert_eq!(parsed(opcode::OPEN, open.as_bytes(), &[]), Ok(Request::Open { writes }));
    }
    let asked = |flags| parsed(opcode::READ, transfer(5, 70, flags).as_bytes(), &[]);
    assert_eq!(asked(0), Ok(Request::Read { offset: 5, length: 70 }));
    // O_DSYNC, O_SYNC, and one that says nothing of the kind.
    for (flags, fua) in [(0o10000, true), (0o4_010_000, true), (0o40000, false)] {
        let request = parsed(opcode::WRITE, transfer(5, 3, flags).as_bytes(), b"abc");
        assert_eq!(request, Ok(Request::Write { offset: 5, length: 3, fua }), "{flags:#o}");
    }
    for (whence, hole) in [(3, false), (4, true)] {
        let seek = Seek { offset: 8, whence, ..Seek::default() };
        assert_eq!(parsed(opcode::LSEEK, seek.as_bytes(), &[]), Ok(Request::Seek { offset: 8, hole }));
    }
    for (which, ownership, size) in
        [(1, true, None), (2, true, None), (4, true, None), (8, false, Some(6)), (0x1b0, false, None)]
    {
        let body = SetAttributes { which, size: 6, ..SetAttributes::default() };
        let request = Request::SetAttributes { ownership, size };
        assert_eq!(parsed(opcode::SETATTR, body.as_bytes(), &[0; 64]), Ok(request), "{which}");
    }
    let fills = [(3, true, true), (0x10, false, false), (0x11, false, true)];
    for (mode, may_punch, keeps_size) in fills {
        let request = Request::Zero { offset: 1, length: 2, fill: Fill { may_punch, keeps_size } };
        assert_eq!(parse(&zero(99, 1, 2, mode)).unwrap().request, Ok(request), "{mode}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_by_number() {
    const INVALID: Result<Request, i32> = Err(22);
    assert_eq!(parse(&[0; 39]), None, "there is nothing to answer");
    // The header's length isn't that of the request; a write has more or less data than it says.
    let mut long = read(99, 0, 512);
    long.push(0);
    assert_eq!(parse(&long).unwrap(), Message { unique: 99, request: INVALID });
    for data in [&b"ab"[..], b"abcd", b""] {
        assert_eq!(parsed(opcode::WRITE, transfer(0, 3, 0).as_bytes(), data), INVALID);
    }
    let bodies =
        [opcode::INIT, opcode::SETATTR, opcode::OPEN, opcode::READ, opcode::WRITE, opcode::FALLOCATE];
    for opcode in bodies.into_iter().chain([opcode::LSEEK]) {
        assert_eq!(parsed(opcode, &[0; 7], &[]), INVALID, "{opcode} is cut off");
    }
    let max = PAYLOAD_BYTES_MAX as usize;
    for (offset, length) in [(u64::MAX, 1), (i64::MAX as u64, 1), (u64::MAX, 0), (0, max + 1)] {
        assert_eq!(parse(&read(99, offset, length)).unwrap().request, INVALID, "{offset} {length}");
        assert_eq!(parse(&write(99, offset, &vec![0; length])).unwrap().request, INVALID);
    }
    assert!(parse(&read(99, 0, max)).unwrap().request.is_ok());
    for (offset, length) in [(u64::MAX, 1), (1, u64::MAX), (0, 0)] {
        assert_eq!(parse(&zero(99, offset, length, 3)).unwrap().request, INVALID);
    }
    // Space is not allocated, ranges are not collapsed, and a hole beyond the end doesn't move it.
    for mode in [0, 1, 2, 8, 0x12, 0x20, 0x40, 0x1000] {
        assert_eq!(parse(&zero(99, 0, 512, mode)).unwrap().request, Err(95), "{mode}");
    }
    let seek = Seek { whence: 0, ..Seek::default() };
    assert_eq!(parsed(opcode::LSEEK, seek.as_bytes(), &[]), INVALID);
    // LOOKUP, INTERRUPT, ACCESS, IOCTL and what is still to come.
    for opcode in [1, 36, 34, 39, 0, 4096, u32::MAX] {
        assert_eq!(parsed(opcode, &[0; 40], &[]), Err(38), "{opcode}");
    }
    let mut other = read(99, 0, 512);
    other[16] = 2;
    assert_eq!(parse(&other).unwrap().request, Err(116), "there is one file");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn arbitrary_bytes_do_not_panic(
        more in 0..3_u8,
        opcode in 0..60_u32,
        mut data in proptest::collection::vec(any::<u8>(), 0..160),
    ) {
        fuzz_fuse(&[&[more, 0], data.as_slice()].concat());
        // Likely ones.
        if data.len() >= 8 {
            let length = u32::try_from(data.len()).unwrap();
            data[..4].copy_from_slice(&length.to_ne_bytes());
            data[4..8].copy_from_slice(&opcode.to_ne_bytes());
            fuzz_fuse(&[&[0, 0], data.as_slice()].concat());
        }
    }
}

/// A service of plain bytes that takes its time, some other time for each request.
#[derive(Clone)]
struct Bytes {
    data: Rc<RefCell<Vec<u8>>>,
    read_only: bool,
    fails: Rc<Cell<Option<ServiceError>>>,
    asked: Rc<RefCell<Vec<String>>>,
    random: Rc<Cell<u64>>,
    /// Holds writes back.
    closed: Rc<Cell<bool>>,
    changed: Rc<Signal>,
}

impl Bytes {
    fn new(size: usize, seed: u64) -> Self {
        Self {
            data: Rc::new(RefCell::new(vec![0xcc; size])),
            read_only: false,
            fails: Rc::default(),
            asked: Rc::default(),
            random: Rc::new(Cell::new(seed * 2 + 1)),
            closed: Rc::default(),
            changed: Rc::default(),
        }
    }

    async fn dawdle(&self) {
        let next = self.random.get().wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) | 1;
        self.random.set(next);
        for _ in 0..next >> 61 {
            shard::yield_now().await;
        }
    }

    /// A request for a range; true if it shall be done.
    async fn begin(&self, what: &str, offset: u64, length: usize) -> Result<usize, ServiceError> {
        let at = usize::try_from(offset).unwrap();
        assert!(length > 0 && at.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK), "{offset} {length}");
        assert!(at + length <= self.data.borrow().len());
        self.asked.borrow_mut().push(format!("{what} {offset} {length}"));
        self.dawdle().await;
        self.fails.get().map_or(Ok(at), Err)
    }
}

impl BlockService for Bytes {
    fn size_bytes(&self) -> u64 {
        self.data.borrow().len() as u64
    }
    fn block_size(&self) -> u32 {
        512
    }
    fn preferred_block(&self) -> u32 {
        64 << 10
    }
    fn read_only(&self) -> bool {
        self.read_only
    }
    async fn read(&self, offset: u64, mut buffer: Buffer) -> (Result<(), ServiceError>, Buffer) {
        let begun = self.begin("read", offset, buffer.len()).await;
        if let Ok(at) = begun {
            let length = buffer.len();
            buffer.copy_from_slice(&self.data.borrow()[at..][..length]);
        }
        self.dawdle().await;
        (begun.map(|_| ()), buffer)
    }
    async fn write(&self, offset: u64, data: Slice, fua: bool) -> Result<(), ServiceError> {
        assert!(data.as_ptr().addr().is_multiple_of(4096), "members want aligned memory");
        self.changed.wait_until(|| !self.closed.get()).await;
        let at = self.begin(if fua { "forced write" } else { "write" }, offset, data.len()).await?;
        self.data.borrow_mut()[at..][..data.len()].copy_from_slice(&data);
        self.dawdle().await;
        Ok(())
    }
    async fn flush(&self) -> Result<(), ServiceError> {
        self.asked.borrow_mut().push("flush".to_owned());
        self.fails.get().map_or(Ok(()), Err)
    }
    async fn discard(&self, _: u64, _: u64, _: bool) -> Result<(), ServiceError> {
        unreachable!("what is discarded may read as anything")
    }
    async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        _: bool,
        may_punch: bool,
    ) -> Result<(), ServiceError> {
        let (what, length) = (if may_punch { "punch" } else { "zero" }, usize::try_from(length).unwrap());
        let at = self.begin(what, offset, length).await?;
        self.data.borrow_mut()[at..][..length].fill(0);
        self.dawdle().await;
        Ok(())
    }
}

/// A kernel with requests, which then unmounts the file when told so.
#[derive(Clone, Default)]
struct Script(Rc<ScriptState>);

#[derive(Default)]
struct ScriptState {
    requests: RefCell<VecDeque<Vec<u8>>>,
    /// By the request's number: error and data.
    replies: RefCell<BTreeMap<u64, (i32, Vec<u8>)>>,
    /// What `receive` fails with when there is no request.
    end: Cell<Option<i32>>,
    deaf: Cell<bool>,
    changed: Signal,
}

impl Script {
    fn ask(&self, request: Vec<u8>) {
        self.0.requests.borrow_mut().push_back(request);
        self.0.changed.notify();
    }

    fn end(&self, errno: i32) {
        self.0.end.set(Some(errno));
        self.0.changed.notify();
    }

    /// The answer to a request, once.
    async fn answer(&self, unique: u64) -> (i32, Vec<u8>) {
        self.0.changed.wait_for(|| self.0.replies.borrow_mut().remove(&unique)).await
    }

    fn left(&self) -> usize {
        self.0.requests.borrow().len()
    }
}

impl Channel for Script {
    async fn readable(&self) -> Result<(), i32> {
        self.0.changed.wait_until(|| self.left() > 0 || self.0.end.get().is_some()).await;
        Ok(())
    }

    fn receive(&self, head: &mut [u8; HEAD_BYTES], rest: &mut [u8]) -> Result<usize, i32> {
        assert!(HEAD_BYTES + rest.len() >= HEAD_BYTES + PAYLOAD_BYTES_MAX as usize, "the kernel insists");
        let next = self.0.requests.borrow_mut().pop_front();
        let request = next.ok_or_else(|| self.0.end.get().unwrap_or(11))?;
        self.0.changed.notify();
        let (front, back) = request.split_at(request.len().min(HEAD_BYTES));
        head[..front.len()].copy_from_slice(front);
        rest[..back.len()].copy_from_slice(back);
        Ok(request.len())
    }

    fn reply(&self, head: &[u8], data: &[u8]) -> bool {
        let header = ReplyHeader::read_from_bytes(head).unwrap();
        assert_eq!(header.length as usize, head.len() + data.len());
        assert!(header.error == 0 || data.is_empty(), "an error has no data");
        let earlier = self.0.replies.borrow_mut().insert(header.unique, (header.error, data.to_vec()));
        assert!(earlier.is_none(), "request {} was answered twice", header.unique);
        self.0.changed.notify();
        !self.0.deaf.get()
    }
}

/// A session that is served, and what it is made of.
struct World {
    script: Script,
    service: Bytes,
    session: Rc<Session<Script, Bytes>>,
    open: Arc<OpenFiles>,
    budget: Arc<Budget>,
    task: shard::JoinHandle<Ended>,
}

impl World {
    fn new(service: Bytes, budget: usize) -> Self {
        let (script, open) = (Script::default(), Arc::<OpenFiles>::default());
        let budget = Arc::new(Budget::new(budget));
        let description = Description::new(&service, 1_700_000_000, (7, 8));
        let session = Session::new(
            script.clone(),
            service.clone(),
            description,
            Arc::<Locks>::default(),
            Arc::clone(&open),
            Arc::clone(&budget),
        );
        let task = shard::spawn_joined(Rc::clone(&session).serve());
        Self { script, service, session, open, budget, task }
    }

    async fn ask(&self, request: Vec<u8>) -> (i32, Vec<u8>) {
        let unique = u64::from_ne_bytes(*request[8..].first_chunk().unwrap());
        self.script.ask(request);
        self.script.answer(unique).await
    }

    /// Asks for something, and has an answer of this kind.
    async fn get<T: FromBytes + KnownLayout + Immutable>(&self, opcode: u32, body: &[u8]) -> Result<T, i32> {
        let (error, data) = self.ask(bytes(opcode, 1, body, &[])).await;
        if error == 0 { Ok(T::read_from_bytes(&data).unwrap()) } else { Err(error) }
    }

    /// Unmounts; all memory must be back then.
    async fn end(self) {
        self.script.end(19);
        assert_eq!(self.task.join().await, Ended::Unmounted);
        assert_eq!(self.budget.held(), 0, "memory is still counted");
    }

    fn asked(&self) -> Vec<String> {
        self.service.asked.take()
    }
}

fn on_shard<F: Future<Output = ()> + 'static>(work: impl FnOnce() -> F + Send + 'static) {
    run(&RuntimeConfig::unpinned(1), move |_| work()).unwrap();
}

#[test]
fn both_sides_agree_on_what_they_can_do() {
    on_shard(|| async {
        let world = World::new(Bytes::new(4 * MIB, 1), MIB * 64);
        let init = |major, minor, abilities| Init { major, minor, abilities, ..Init::default() };
        let all = world.get::<InitReply>(opcode::INIT, init(7, 45, u32::MAX).as_bytes()).await.unwrap();
        assert_eq!((all.major, all.minor), (7, 38));
        assert_eq!(all.abilities, 1 | 1 << 5 | 1 << 15 | 1 << 22);
        assert_eq!((all.write_max, all.pages_max), (1 << 20, 256));
        assert_eq!((all.abilities_2, all.map_alignment, all.unused), (0, 0, [0; 7]));
        let older = world.get::<InitReply>(opcode::INIT, init(7, 31, 1).as_bytes()).await.unwrap();
        assert_eq!((older.minor, older.abilities), (31, 1));
        // A later protocol is told ours, and asks once more.
        let later = world.get::<InitReply>(opcode::INIT, init(8, 0, 0).as_bytes()).await.unwrap();
        assert_eq!((later.major, later.minor), (7, 38));
        for (major, minor) in [(7, 30), (6, 99)] {
            let refused = world.get::<InitReply>(opcode::INIT, init(major, minor, 0).as_bytes()).await;
            assert_eq!(refused, Err(-71));
        }
        world.end().await;
    });
}

#[test]
fn the_file_is_as_large_as_the_array_and_stays_so() {
    on_shard(|| async {
        let world = World::new(Bytes::new(4 * MIB, 1), MIB * 64);
        let AttributesReply { attributes, .. } = world.get(opcode::GETATTR, &[0; 16]).await.unwrap();
        assert_eq!((attributes.size, attributes.blocks), (4 << 20, 8192));
        assert_eq!(
            (attributes.mode, attributes.user, attributes.group, attributes.links),
            (0o100_600, 7, 8, 1)
        );
        assert_eq!(attributes.times, [1_700_000_000; 3]);
        let set = |which, size| SetAttributes { which, size, ..SetAttributes::default() };
        for (which, size, expected) in
            [(8, 0, Err(-1)), (8, 8 << 20, Err(-1)), (1, 0, Err(-1)), (8, 4 << 20, Ok(())), (0x30, 0, Ok(()))]
        {
            let answer = world.get::<AttributesReply>(opcode::SETATTR, set(which, size).as_bytes()).await;
            assert_eq!(
                answer.map(|reply| assert_eq!(reply.attributes, attributes)),
                expected,
                "{which} {size}"
            );
        }
        let SpaceReply { blocks, unit, .. } = world.get(opcode::STATFS, &[]).await.unwrap();
        assert_eq!((blocks, unit), ([1024, 0, 0], 4096));
        let end = 4 << 20;
        for (offset, whence, expected) in
            [(5, 3, Ok(5)), (5, 4, Ok(end)), (end - 1, 3, Ok(end - 1)), (end, 3, Err(-6)), (end, 4, Err(-6))]
        {
            let seek = Seek { offset, whence, ..Seek::default() };
            let found = world.get::<SeekReply>(opcode::LSEEK, seek.as_bytes()).await;
            assert_eq!(found.map(|found| found.offset), expected, "{offset} {whence}");
        }
        assert_eq!(world.ask(bytes(1, 5, b"name\0", &[])).await, (-38, vec![]));
        assert_eq!(world.ask(bytes(opcode::FLUSH, 5, &[0; 24], &[])).await, (0, vec![]));
        assert!(world.asked().is_empty(), "none of this is the array's");
        world.end().await;
    });
}

#[test]
fn open_files_are_counted_until_they_are_closed() {
    on_shard(|| async {
        let world = World::new(Bytes::new(MIB, 1), MIB * 64);
        let open = Open { flags: 2, open_flags: 0 };
        for count in 1..=2 {
            let reply: OpenReply = world.get(opcode::OPEN, open.as_bytes()).await.unwrap();
            assert_eq!((reply.handle, reply.flags), (0, 1 | 1 << 5 | 1 << 6));
            assert_eq!(world.open.count(), count);
        }
        for count in [1, 0, 0] {
            assert_eq!(world.ask(bytes(opcode::RELEASE, 3, &[0; 24], &[])).await.0, 0);
            assert_eq!(world.open.count(), count);
        }
        world.script.0.deaf.set(true);
        assert!(world.get::<OpenReply>(opcode::OPEN, open.as_bytes()).await.is_ok());
        assert_eq!(world.open.count(), 0, "the process that opens it has gone: nothing will close it");
        world.end().await;

        let world = World::new(Bytes { read_only: true, ..Bytes::new(MIB, 1) }, MIB * 64);
        assert_eq!(world.get::<OpenReply>(opcode::OPEN, open.as_bytes()).await, Err(-30));
        assert_eq!(world.open.count(), 0);
        let reading = Open { flags: 0, open_flags: 0 };
        assert!(world.get::<OpenReply>(opcode::OPEN, reading.as_bytes()).await.is_ok());
        let AttributesReply { attributes, .. } = world.get(opcode::GETATTR, &[0; 16]).await.unwrap();
        assert_eq!(attributes.mode, 0o100_400);
        world.end().await;
    });
}

#[test]
fn whole_blocks_go_as_they_are_and_parts_are_laid_over_what_was_there() {
    on_shard(|| async {
        let world = World::new(Bytes::new(MIB, 1), MIB * 64);
        let written = async |offset, data: &[u8]| {
            let (error, reply) = world.ask(write(4, offset, data)).await;
            assert_eq!(error, 0);
            let reply = WriteReply::read_from_bytes(&reply).unwrap();
            assert_eq!(reply.length as usize, data.len());
            world.asked()
        };
        assert_eq!(written(1024, &[1; 1024]).await, ["write 1024 1024"]);
        let edges = ["read 1024 512", "read 2048 512", "write 1024 1536"];
        assert_eq!(written(1030, &[2; 1020]).await, edges);
        assert_eq!(written(2049, &[3; 5]).await, ["read 2048 512", "write 2048 512"], "one block");
        assert_eq!(written(4096, &[4; 513]).await, ["read 4608 512", "write 4096 1024"]);
        assert_eq!(written(5000, &[5; 120]).await, ["read 4608 512", "write 4608 512"], "to a block's end");
        let mut expected = vec![0xcc; 8192];
        let pieces = [(1024, 1024, 1), (1030, 1020, 2), (2049, 5, 3), (4096, 513, 4), (5000, 120, 5)];
        for (at, length, byte) in pieces {
            expected[at..at + length].fill(byte);
        }
        assert_eq!(world.ask(read(5, 0, 8192)).await, (0, expected.clone()));
        assert_eq!(world.asked(), ["read 0 8192"]);
        assert_eq!(world.ask(read(6, 1029, 3000)).await, (0, expected[1029..4029].to_vec()));
        assert_eq!(world.asked(), ["read 1024 3072"]);
        assert_eq!(world.ask(bytes(opcode::FSYNC, 7, &[0; 16], &[])).await, (0, vec![]));
        let forced = bytes(opcode::WRITE, 8, transfer(512, 512, 0o10000).as_bytes(), &[6; 512]);
        assert_eq!(world.ask(forced).await.0, 0);
        let forced = bytes(opcode::WRITE, 9, transfer(513, 2, 0o10000).as_bytes(), &[6; 2]);
        assert_eq!(world.ask(forced).await.0, 0);
        let asked = ["flush", "forced write 512 512", "read 512 512", "forced write 512 512"];
        assert_eq!(world.asked(), asked);
        // A long write takes the buffer that it came in.
        assert_eq!(written(0, &vec![7; MIB]).await, ["write 0 1048576"]);
        assert_eq!(written(512, &vec![8; 512 << 10]).await, ["write 512 524288"]);
        assert_eq!(world.ask(read(10, 0, 1024)).await.1, [[7; 512], [8; 512]].concat());
        world.end().await;
    });
}

#[test]
fn reads_and_writes_end_where_the_file_ends() {
    on_shard(|| async {
        let world = World::new(Bytes::new(MIB, 1), MIB * 64);
        let end = MIB as u64;
        assert_eq!(world.ask(read(1, end - 100, 4096)).await, (0, vec![0xcc; 100]));
        for offset in [end, end + 1, i64::MAX as u64 - 4096] {
            assert_eq!(world.ask(read(2, offset, 4096)).await, (0, vec![]));
            assert_eq!(world.ask(write(3, offset, &[1; 10])).await, (-28, vec![]));
        }
        let (error, reply) = world.ask(write(4, end - 10, &[1; 4096])).await;
        assert_eq!((error, WriteReply::read_from_bytes(&reply).unwrap().length), (0, 10));
        assert_eq!(world.ask(write(5, end + 3, &[])).await.0, 0);
        assert_eq!(world.service.data.borrow()[MIB - 11..], [&[0xcc][..], &[1; 10]].concat());
        world.end().await;
    });
}

#[test]
fn a_range_that_is_zeroed_reads_as_zero_and_its_neighbours_stay() {
    on_shard(|| async {
        for (seed, (offset, length)) in [
            (0, 512),
            (512, 4096),
            (1, 3),
            (1, 511),
            (100, 412),
            (100, 413),
            (511, 2),
            (511, 514),
            (1000, 100_000),
            (0, MIB as u64),
            (MIB as u64 - 1, 1),
            (7, MIB as u64 - 7),
        ]
        .into_iter()
        .enumerate()
        {
            let world = World::new(Bytes::new(MIB, seed as u64), MIB * 64);
            assert_eq!(world.ask(zero(1, offset, length, 3)).await, (0, vec![]));
            let mut expected = vec![0xcc; MIB];
            let at = usize::try_from(offset).unwrap();
            expected[at..at + usize::try_from(length).unwrap()].fill(0);
            assert!(*world.service.data.borrow() == expected, "{offset} {length}");
            world.end().await;
        }
        let world = World::new(Bytes::new(MIB, 1), MIB * 64);
        let end = MIB as u64;
        assert_eq!(world.ask(zero(1, 1024, 512, 0x10)).await.0, 0);
        assert_eq!(world.asked(), ["zero 1024 512"]);
        assert_eq!(world.ask(zero(1, end - 512, 5000, 3)).await.0, 0);
        assert_eq!(world.asked(), ["punch 1048064 512"], "what lies beyond the end reads as nothing");
        assert_eq!(world.ask(zero(1, end - 512, 513, 0x10)).await.0, -28, "the file does not grow");
        assert_eq!(world.ask(zero(1, end, 1 << 40, 0x11)).await.0, 0);
        assert!(world.asked().is_empty());
        world.end().await;
    });
}

#[test]
fn what_the_array_refuses_the_kernel_is_told() {
    on_shard(|| async {
        let world = World::new(Bytes::new(MIB, 1), MIB * 64);
        for (error, number) in
            [(ServiceError::Io, -5), (ServiceError::ReadOnly, -30), (ServiceError::NoSpace, -28)]
        {
            world.service.fails.set(Some(error));
            assert_eq!(world.ask(read(1, 0, 4096)).await, (number, vec![]));
            assert_eq!(world.ask(write(2, 0, &[1; 512])).await, (number, vec![]));
            assert_eq!(world.ask(write(3, 0, &[1; 5])).await, (number, vec![]), "a block can't be read");
            assert_eq!(world.ask(zero(4, 0, 512, 3)).await, (number, vec![]));
            assert_eq!(world.ask(zero(5, 0, 5, 3)).await, (number, vec![]));
            assert_eq!(world.ask(bytes(opcode::FSYNC, 6, &[0; 16], &[])).await, (number, vec![]));
        }
        world.service.fails.set(None);
        assert_eq!(world.ask(write(7, 0, &[1; 5])).await.0, 0, "no lock is left behind");
        world.end().await;
    });
}

/// Pieces that have no byte in common, and blocks only, are all there afterwards, in whatever order they are
/// carried out.
#[test]
fn writers_of_parts_of_one_block_lose_nothing_of_each_other() {
    on_shard(|| async {
        for seed in 0..60 {
            let world = World::new(Bytes::new(2 * MIB, seed), MIB * 64);
            let mut random = seed * 2 + 1;
            let mut next = |below: usize| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                usize::try_from(random >> 33).unwrap() % below
            };
            let mut expected = world.service.data.borrow().clone();
            let (mut at, mut requests) = (MIB - 4096, Vec::new());
            while at < MIB + 4096 {
                // Whole blocks now and then.
                let length = if at.is_multiple_of(BLOCK) && next(2) == 0 { BLOCK } else { 1 + next(700) };
                let unique = requests.len() as u64 + 1;
                if next(4) == 0 {
                    expected[at..at + length].fill(0);
                    requests.push(zero(unique, at as u64, length as u64, 3));
                } else {
                    let byte = u8::try_from(next(250)).unwrap() + 1;
                    expected[at..at + length].fill(byte);
                    requests.push(write(unique, at as u64, &vec![byte; length]));
                }
                at += length;
            }
            let count = requests.len() as u64;
            while !requests.is_empty() {
                let which = next(requests.len());
                world.script.ask(requests.swap_remove(which));
            }
            for unique in 1..=count {
                assert_eq!(world.script.answer(unique).await.0, 0);
            }
            assert!(*world.service.data.borrow() == expected, "seed {seed}: a neighbour's bytes were lost");
            world.end().await;
        }
    });
}

/// Whichever of the two is done first, what the whole block got beside the part stays.
#[test]
fn a_part_of_a_block_does_not_bring_back_what_the_whole_block_held_before() {
    on_shard(|| async {
        for seed in 0..200_u64 {
            let world = World::new(Bytes::new(MIB, seed), MIB * 64);
            let (whole, byte) =
                if seed & 2 == 0 { (write(1, 512, &[7; 512]), 7) } else { (zero(1, 512, 512, 3), 0) };
            let mut both = [whole, write(2, 700, &[9; 100])];
            both.rotate_left(usize::from(seed & 1 == 0));
            for request in both {
                world.script.ask(request);
            }
            assert_eq!((world.script.answer(1).await.0, world.script.answer(2).await.0), (0, 0));
            {
                let data = world.service.data.borrow();
                let beside = data[512..700].iter().chain(&data[800..1024]);
                assert!(beside.copied().all(|found| found == byte), "seed {seed}");
                assert!([9, byte].iter().any(|one| data[700..800] == [*one; 100]), "seed {seed}");
            }
            world.end().await;
        }
    });
}

#[test]
fn a_shard_has_so_many_requests_under_way_and_no_more() {
    on_shard(|| async {
        let world = World::new(Bytes::new(MIB, 1), MIB * 64);
        world.service.closed.set(true);
        for unique in 0..300 {
            world.script.ask(write(unique, 512 * unique, &[1; 512]));
        }
        world.script.0.changed.wait_until(|| world.script.left() <= 44).await;
        for _ in 0..1000 {
            shard::yield_now().await;
        }
        assert_eq!(world.script.left(), 44);
        world.service.closed.set(false);
        world.service.changed.notify();
        for unique in 0..300 {
            assert_eq!(world.script.answer(unique).await.0, 0);
        }
        world.end().await;
    });
}

#[test]
fn requests_wait_for_memory_and_all_are_served() {
    on_shard(|| async {
        // The session's own buffer, and one long write.
        let world = World::new(Bytes::new(4 * MIB, 1), 3 * MIB);
        for unique in 0..40_u64 {
            let offset = unique * 50_001;
            match unique % 4 {
                0 => world.script.ask(write(unique, offset, &vec![1; 300_000])),
                1 => world.script.ask(write(unique, offset, &[2; 1000])),
                2 => world.script.ask(read(unique, offset, MIB)),
                _ => world.script.ask(zero(unique, offset, 70_000, 3)),
            }
        }
        for unique in 0..40 {
            assert_eq!(world.script.answer(unique).await.0, 0);
            assert!(world.budget.held() <= 4 * MIB, "{} bytes", world.budget.held());
        }
        world.end().await;
    });
}

#[test]
fn stop_finishes_what_is_under_way_and_takes_nothing_more() {
    on_shard(|| async {
        let world = World::new(Bytes::new(MIB, 1), MIB * 64);
        world.service.closed.set(true);
        world.script.ask(write(1, 0, &[9; 512]));
        world.script.0.changed.wait_until(|| world.script.left() == 0).await;
        for _ in 0..100 {
            shard::yield_now().await;
        }
        world.session.stop();
        world.script.ask(write(2, 512, &[9; 512]));
        let mut task = std::pin::pin!(world.task.join());
        assert!(shard::timeout(20_000_000, task.as_mut()).await.is_none(), "a request is under way");
        world.service.closed.set(false);
        world.service.changed.notify();
        assert_eq!(task.await, Ended::Stopped);
        assert_eq!(world.script.answer(1).await.0, 0);
        assert_eq!((world.script.left(), world.budget.held()), (1, 0));
        assert_eq!(world.service.data.borrow()[511..513], [9, 0xcc]);
    });
}

#[test]
fn a_session_ends_with_the_mount_or_an_error_and_goes_on_after_a_request_that_is_gone() {
    on_shard(|| async {
        for (errno, ended) in [(19, Ended::Unmounted), (14, Ended::Refused(14))] {
            let world = World::new(Bytes::new(MIB, 1), MIB * 64);
            world.script.end(errno);
            assert_eq!(world.task.join().await, ended);
        }
        let world = World::new(Bytes::new(MIB, 1), MIB * 64);
        world.script.end(2);
        for _ in 0..20 {
            shard::yield_now().await;
        }
        assert_eq!(world.ask(read(1, 0, 512)).await.0, 0);
        world.end().await;
    });
}
