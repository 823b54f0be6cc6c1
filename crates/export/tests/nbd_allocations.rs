//! After warm-up the transmission phase allocates nothing: neither the core nor the session.
#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail as the test itself")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use pinstripe_block::{BlockService, ServiceError};
use pinstripe_export::nbd::{Export, Server, SessionEnd};
use pinstripe_runtime::{Buffer, Shard, ShardConfig, Slice, Stream, Submission, shard};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const REQUESTS_WARM: u64 = 20_000;
const REQUESTS: u64 = 300_000;

/// A client that sends the same round of requests again and again, and throws replies away.
struct Script {
    hello: RefCell<Vec<u8>>,
    round: Vec<u8>,
    at: Cell<usize>,
    served: Rc<Cell<u64>>,
}

impl Stream for Script {
    fn receive(&self, mut buffer: Buffer) -> Submission {
        let mut hello = self.hello.borrow_mut();
        if !hello.is_empty() {
            let count = hello.len();
            buffer[..count].copy_from_slice(&hello);
            hello.clear();
            return Submission::done(Ok(count), Some(buffer));
        }
        if self.served.get() >= REQUESTS_WARM + REQUESTS {
            return Submission::done(Ok(0), Some(buffer));
        }
        let start = self.at.get();
        let count = buffer.len().min(self.round.len() - start);
        buffer[..count].copy_from_slice(&self.round[start..start + count]);
        self.at.set((start + count) % self.round.len());
        Submission::done(Ok(count), Some(buffer))
    }

    fn send(&self, data: Slice) -> Submission {
        Submission::done(Ok(data.len()), None)
    }

    fn shutdown(&self) {}
}

/// Does nothing, but not always at once.
#[derive(Clone)]
struct Null {
    served: Rc<Cell<u64>>,
    counted_from: Rc<Cell<u64>>,
}

impl Null {
    async fn serve(&self) -> Result<(), ServiceError> {
        if self.served.get().is_multiple_of(3) {
            shard::yield_now().await;
        }
        self.served.set(self.served.get() + 1);
        if self.served.get() == REQUESTS_WARM {
            self.counted_from.set(ALLOCATIONS.get());
        }
        Ok(())
    }
}

impl BlockService for Null {
    fn size_bytes(&self) -> u64 {
        1 << 40
    }
    fn block_size(&self) -> u32 {
        512
    }
    fn preferred_block(&self) -> u32 {
        4096
    }
    fn read_only(&self) -> bool {
        false
    }
    async fn read(&self, _: u64, buffer: Buffer) -> (Result<(), ServiceError>, Buffer) {
        (self.serve().await, buffer)
    }
    async fn write(&self, _: u64, _: Slice, _: bool) -> Result<(), ServiceError> {
        self.serve().await
    }
    async fn flush(&self) -> Result<(), ServiceError> {
        self.serve().await
    }
    async fn discard(&self, _: u64, _: u64, _: bool) -> Result<(), ServiceError> {
        self.serve().await
    }
    async fn write_zeroes(&self, _: u64, _: u64, _: bool, _: bool) -> Result<(), ServiceError> {
        self.serve().await
    }
}

fn request(command: u16, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(command.to_be_bytes());
    bytes.extend([0; 16]);
    bytes.extend(length.to_be_bytes());
    if command == 1 {
        bytes.resize(bytes.len() + length as usize, 0);
    }
    bytes
}

/// Client flags, STRUCTURED_REPLY, GO with the default export.
fn hello() -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 3];
    bytes.extend(b"IHAVEOPT\0\0\0\x08\0\0\0\0");
    bytes.extend(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
    bytes
}

/// Serves the round until enough requests were served; gives allocations and nanoseconds per request.
fn measure(round: Vec<u8>) -> (u64, u128) {
    let shard = Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: None });
    let entered = shard.enter();
    let served = Rc::new(Cell::new(0));
    let counted_from = Rc::new(Cell::new(0));
    let service = Null { served: Rc::clone(&served), counted_from: Rc::clone(&counted_from) };
    let export = Export { name: "null".into(), description: String::new(), service };
    let server = Server::new(vec![export]).unwrap();
    let script = Script { hello: RefCell::new(hello()), round, at: Cell::new(0), served };
    let result = Rc::new(Cell::new((0, 0)));
    let there = Rc::clone(&result);
    shard.spawn(async move {
        let start = Instant::now();
        assert_eq!(server.serve(Rc::new(script)).await, SessionEnd::Closed);
        let per_request = start.elapsed().as_nanos() / u128::from(REQUESTS + REQUESTS_WARM);
        there.set((ALLOCATIONS.get() - counted_from.get(), per_request));
    });
    while shard.poll_ready(0) {}
    assert_eq!((shard.tasks_alive(), shard.pool().outstanding()), (0, 0));
    drop(entered);
    result.get()
}

#[test]
fn the_transmission_phase_does_not_allocate() {
    let rounds = [
        ("4 KiB reads", request(0, 4096)),
        ("4 KiB writes", request(1, 4096)),
        ("64 KiB reads", request(0, 65536)),
        (
            "a mixture with refusals",
            [request(0, 512), request(1, 300 << 10), request(3, 0), request(99, 0), request(4, 512)].concat(),
        ),
    ];
    for (name, round) in rounds {
        let round = round.repeat(16);
        let (allocations, nanoseconds) = measure(round);
        println!("{name}: {nanoseconds} ns a request, {allocations} allocations in {REQUESTS}");
        // The end of the connection may cost a few.
        assert!(allocations <= 8, "{name}: {allocations} allocations");
    }
}
