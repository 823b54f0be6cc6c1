//! A shard under a virtual clock, connected pairs of streams, and an array of plain memory; all from one
//! seed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use pinstripe_block::{BlockService, Client, ServiceError};
use pinstripe_export::nbd::{Export, Server};
use pinstripe_runtime::completion::Payload;
use pinstripe_runtime::{
    Buffer, Completion, DeviceError, DeviceErrorKind, Shard, ShardConfig, Slice, Stream, Submission, shard,
};

/// Numbers from a seed (splitmix64).
pub struct Random(Cell<u64>);

impl Random {
    pub fn new(seed: u64) -> Rc<Self> {
        Rc::new(Self(Cell::new(seed)))
    }

    pub fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = self.0.get();
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub fn below(&self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    pub fn chance(&self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

thread_local! {
    static CLOCK: Rc<Cell<u64>> = Rc::default();
}

/// The shard stands still, as when its process is stopped: the clock goes on.
#[allow(dead_code, reason = "only tests of NVMe/TCP do it")]
pub fn stand_still(nanoseconds: u64) {
    CLOCK.with(|clock| clock.set(clock.get() + nanoseconds));
}

/// Runs `body` on a shard until it ends; the order of ready tasks is drawn. Then checks that nothing is left:
/// no task, no request, no buffer.
pub fn run<F: Future<Output = ()> + 'static>(random: &Rc<Random>, body: impl FnOnce() -> F) {
    let clock = CLOCK.with(Rc::clone);
    clock.set(0);
    let shard = Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: Some(Rc::clone(&clock)) });
    let entered = shard.enter();
    let done = Rc::new(Cell::new(false));
    let flag = Rc::clone(&done);
    let body = body();
    shard.spawn(async move {
        body.await;
        flag.set(true);
    });
    loop {
        shard.deliver_mail();
        shard.fire_timers();
        let ready = shard.ready_count();
        if ready > 0 {
            shard.poll_ready(random.below(ready.min(4)));
        } else if shard.tasks_alive() == 0 {
            break;
        } else {
            let timer = shard.next_timer();
            clock.set(timer.expect("every task waits and nothing will come: a deadlock"));
        }
    }
    assert!(done.get());
    assert_eq!(shard.requests_in_flight(), 0, "a request of a stream never ended");
    assert_eq!(shard.pool().outstanding(), 0, "a buffer leaked");
    drop(entered);
}

/// One direction of a connection.
#[derive(Default)]
struct Half {
    data: VecDeque<u8>,
    /// Nothing more will be written: after the data comes the end.
    writer_gone: bool,
    /// Nothing more will be read: writes fail.
    reader_gone: bool,
    reading: Option<Completion>,
    /// Receives that were begun.
    receives: usize,
    /// Whole messages that were handed over.
    messages: usize,
    writing: Option<(Slice, Completion)>,
}

/// One end of a connection.
pub struct Pipe {
    random: Rc<Random>,
    capacity: usize,
    input: Rc<RefCell<Half>>,
    output: Rc<RefCell<Half>>,
}

/// Two connected streams; each direction holds up to `capacity` bytes, and each transfer takes a random part.
pub fn pipe(random: &Rc<Random>, capacity: usize) -> (Rc<Pipe>, Rc<Pipe>) {
    let (a, b) = (Rc::<RefCell<Half>>::default(), Rc::<RefCell<Half>>::default());
    let end = |input: &Rc<RefCell<Half>>, output: &Rc<RefCell<Half>>| {
        Rc::new(Pipe {
            random: Rc::clone(random),
            capacity,
            input: Rc::clone(input),
            output: Rc::clone(output),
        })
    };
    (end(&a, &b), end(&b, &a))
}

const GONE: DeviceErrorKind = DeviceErrorKind::Gone;

impl Pipe {
    fn part(&self, available: usize) -> usize {
        match self.random.below(3) {
            0 => available,
            1 => 1 + self.random.below(available.min(64)),
            _ => 1 + self.random.below(available),
        }
    }

    /// Lets a waiting reader and a waiting writer of one direction go on, as far as they can.
    fn pump(&self, half: &RefCell<Half>) {
        loop {
            let mut half = half.borrow_mut();
            let half = &mut *half;
            if !half.data.is_empty()
                && let Some(completion) = half.reading.take()
            {
                let count = completion.with_payload(|payload| {
                    let Payload::Buffer(buffer) = payload else { panic!("a receive has a buffer") };
                    let count = self.part(half.data.len().min(buffer.len()));
                    for (target, byte) in buffer.iter_mut().zip(half.data.drain(..count)) {
                        *target = byte;
                    }
                    count
                });
                completion.finish(Ok(count));
            } else if (half.writer_gone || half.reader_gone) && half.reading.is_some() {
                half.reading.take().unwrap().finish(Ok(0));
            } else if (half.writer_gone || half.reader_gone) && half.writing.is_some() {
                half.writing.take().unwrap().1.finish(Err(DeviceError::of(GONE)));
            } else if half.data.len() < self.capacity && half.writing.is_some() {
                let (slice, completion) = half.writing.take().unwrap();
                let count = self.part(slice.len().min(self.capacity - half.data.len()));
                half.data.extend(&slice[..count]);
                half.messages += usize::from(count == slice.len());
                completion.finish(Ok(count));
            } else {
                return;
            }
        }
    }

    /// Has all of `bytes` sent. False if the other end is gone.
    pub async fn send_all(&self, bytes: &[u8]) -> bool {
        let mut buffer = shard::buffer(bytes.len());
        buffer.copy_from_slice(bytes);
        let slice = buffer.freeze();
        let mut sent = 0;
        while sent < bytes.len() {
            match self.send(slice.slice(sent, bytes.len() - sent)).await.result {
                Ok(count) => sent += count,
                Err(_) => return false,
            }
        }
        true
    }

    /// Receives exactly `length` bytes; `None` if the end comes before.
    pub async fn receive_exactly(&self, length: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let outcome = self.receive(shard::buffer(length - bytes.len())).await;
            let count = outcome.result.unwrap_or(0);
            if count == 0 {
                return None;
            }
            bytes.extend_from_slice(&outcome.buffer.unwrap()[..count]);
        }
        Some(bytes)
    }

    /// Whole messages that the peer has sent.
    #[allow(dead_code, reason = "only tests of NVMe/TCP look at it")]
    pub fn messages_of_peer(&self) -> usize {
        self.input.borrow().messages
    }

    /// No more bytes to the peer, which still can send.
    pub fn finish_sending(&self) {
        self.output.borrow_mut().writer_gone = true;
        self.pump(&self.output);
    }
}

impl Stream for Pipe {
    fn receive(&self, buffer: Buffer) -> Submission {
        assert!(!buffer.is_empty());
        let (submission, completion) = Submission::pending(Payload::Buffer(buffer));
        let waiting = self.input.borrow_mut().reading.replace(completion);
        assert!(waiting.is_none(), "two receives at a time");
        self.input.borrow_mut().receives += 1;
        self.pump(&self.input);
        submission
    }

    fn send(&self, data: Slice) -> Submission {
        assert!(!data.is_empty());
        let (submission, completion) = Submission::pending(Payload::Slice(data.clone()));
        let waiting = self.output.borrow_mut().writing.replace((data, completion));
        assert!(waiting.is_none(), "two sends at a time");
        self.pump(&self.output);
        submission
    }

    /// It takes a while, in which bytes may still come.
    fn interrupt(&self, _: &Submission) {
        let (input, turns) = (Rc::clone(&self.input), self.random.below(4));
        let receives = input.borrow().receives;
        shard::spawn(async move {
            for _ in 0..turns {
                shard::yield_now().await;
            }
            let is_the_same = input.borrow().receives == receives;
            let reading = is_the_same.then(|| input.borrow_mut().reading.take()).flatten();
            if let Some(completion) = reading {
                completion.finish(Err(DeviceError::of(GONE)));
            }
        });
    }

    fn has_hung_up(&self) -> bool {
        self.input.borrow().writer_gone
    }

    fn shutdown(&self) {
        self.output.borrow_mut().writer_gone = true;
        let mut input = self.input.borrow_mut();
        input.reader_gone = true;
        input.data.clear();
        drop(input);
        self.pump(&self.input);
        self.pump(&self.output);
    }
}

/// What an [`Array`] saw.
#[derive(Default)]
pub struct Seen {
    pub data: Vec<u8>,
    pub running: usize,
    pub running_max: usize,
    pub bytes_running: usize,
    pub bytes_running_max: usize,
    pub requests: usize,
    pub flushes: usize,
    pub fua: usize,
    /// Requests in these wait until it is emptied by [`Array::open`].
    pub gate: bool,
    pub fail: Option<ServiceError>,
    pub fast: bool,
}

/// An array of plain memory. Its requests take random time. It begins no change of a client that has hung up.
#[derive(Clone)]
pub struct Array {
    client: Client,
    pub seen: Rc<RefCell<Seen>>,
    pub gate: Rc<pinstripe_runtime::Signal>,
    random: Rc<Random>,
    delay: usize,
    read_only: bool,
}

impl Array {
    /// `size` bytes of zeroes; each request takes up to `delay` nanoseconds, in three steps.
    pub fn new(random: &Rc<Random>, size: usize, delay: usize) -> Self {
        let seen = Seen { data: vec![0; size], ..Seen::default() };
        Self {
            client: Client::default(),
            seen: Rc::new(RefCell::new(seen)),
            gate: Rc::default(),
            random: Rc::clone(random),
            delay,
            read_only: false,
        }
    }

    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// From now on requests wait for [`Array::open`].
    pub fn close(&self) {
        self.seen.borrow_mut().gate = true;
    }

    pub fn open(&self) {
        self.seen.borrow_mut().gate = false;
        self.gate.notify();
    }

    pub fn server(&self) -> Server<Array> {
        let export = Export { name: "array".into(), description: "memory".into(), service: self.clone() };
        Server::new(vec![export]).unwrap()
    }

    async fn change(&self, bytes: usize, act: impl FnOnce(&mut Seen)) -> Result<(), ServiceError> {
        if self.client.has_hung_up() { Err(ServiceError::Io) } else { self.work(bytes, act).await }
    }

    async fn work<T>(&self, bytes: usize, act: impl FnOnce(&mut Seen) -> T) -> Result<T, ServiceError> {
        {
            let mut seen = self.seen.borrow_mut();
            seen.requests += 1;
            seen.running += 1;
            seen.running_max = seen.running_max.max(seen.running);
            seen.bytes_running += bytes;
            seen.bytes_running_max = seen.bytes_running_max.max(seen.bytes_running);
        }
        self.pause().await;
        self.gate.wait_until(|| !self.seen.borrow().gate).await;
        let value = act(&mut self.seen.borrow_mut());
        self.pause().await;
        let mut seen = self.seen.borrow_mut();
        seen.running -= 1;
        seen.bytes_running -= bytes;
        seen.fail.map_or(Ok(value), Err)
    }

    async fn pause(&self) {
        if self.delay > 0 {
            match self.random.below(3) {
                0 => {}
                1 => shard::yield_now().await,
                _ => shard::sleep(self.random.below(self.delay) as u64).await,
            }
        }
    }
}

fn range(offset: u64, length: usize) -> std::ops::Range<usize> {
    let start = usize::try_from(offset).unwrap();
    start..start + length
}

impl BlockService for Array {
    fn for_client(self, client: Client) -> Self {
        Self { client, ..self }
    }
    fn size_bytes(&self) -> u64 {
        self.seen.borrow().data.len() as u64
    }
    fn block_size(&self) -> u32 {
        512
    }
    fn preferred_block(&self) -> u32 {
        65536
    }
    fn read_only(&self) -> bool {
        self.read_only
    }
    fn zeroes_fast(&self, _: u64, _: u64, _: bool) -> bool {
        self.seen.borrow().fast
    }

    async fn read(&self, offset: u64, mut buffer: Buffer) -> (Result<(), ServiceError>, Buffer) {
        assert_eq!(buffer.as_ptr().addr() % 4096, 0, "the buffer of a read is not aligned");
        let range = range(offset, buffer.len());
        let result = self.work(buffer.len(), |seen| buffer.copy_from_slice(&seen.data[range])).await;
        (result, buffer)
    }

    async fn write(&self, offset: u64, data: Slice, fua: bool) -> Result<(), ServiceError> {
        assert_eq!(data.as_ptr().addr() % 4096, 0, "the data of a write is not aligned");
        let range = range(offset, data.len());
        self.change(data.len(), |seen| {
            seen.data[range].copy_from_slice(&data);
            seen.fua += usize::from(fua);
        })
        .await
    }

    async fn flush(&self) -> Result<(), ServiceError> {
        self.work(0, |seen| seen.flushes += 1).await
    }

    async fn discard(&self, offset: u64, length: u64, fua: bool) -> Result<(), ServiceError> {
        self.write_zeroes(offset, length, fua, true).await
    }

    async fn write_zeroes(&self, offset: u64, length: u64, fua: bool, _: bool) -> Result<(), ServiceError> {
        let range = range(offset, usize::try_from(length).unwrap());
        self.change(0, |seen| {
            seen.data[range].fill(0);
            seen.fua += usize::from(fua);
        })
        .await
    }
}
