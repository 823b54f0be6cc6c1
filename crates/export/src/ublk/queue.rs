//! One tag of one queue: fetch a request, carry it out, commit its result and fetch the next.
//!
//! A queue has one shard, which alone fetches and commits. What a request asks for may be done by another
//! shard meanwhile ([`Spread`]), which copies the request's data itself.

use std::{cell::Cell, rc::Rc};

use pinstripe_block::{
    BlockService,
    budget::Share,
    first_of::{First, first_of},
    wake::Wake,
};
use pinstripe_runtime::{
    shard,
    uring::ublk::{DESCRIPTOR_BYTES, Data, Queue},
};

use super::{
    request::{Limits, Operation, Range, Refused, Request},
    spread::Spread,
};
use crate::{
    errno::{self, error_number},
    pieces::{in_pieces, with_memory},
};

/// What a fetch ends with when the device is stopped.
const STOPPED: i32 = errno::NO_DEVICE;
/// What a request ends with of which no more shall be done here ([`ServiceError::Stopping`]).
const CUT_OFF: i32 = errno::NO_DEVICE;

/// A queue of the driver, or what stands for it in a test.
pub trait RequestQueue {
    /// See [`RequestQueue::data`].
    type Data: RequestData + Clone + Send + 'static;

    /// Ends the tag's request with `result`, if it has one, and waits for the next. The error number of the
    /// driver if there will be none.
    fn next(&self, tag: u16, result: Option<i32>) -> impl Future<Output = Result<(), i32>>;

    /// The descriptor of the request that has come.
    fn request(&self, tag: u16) -> [u8; DESCRIPTOR_BYTES];

    /// The data of the request that has come.
    fn data(&self, tag: u16) -> Self::Data;
}

/// The data of one request, which stays in the kernel.
pub trait RequestData {
    /// Copies the data of a write out of the kernel. False if that fails.
    fn take(&self, data: &mut [u8]) -> bool;

    /// Copies the data of a read into the kernel. False if that fails.
    fn give(&self, data: &[u8]) -> bool;
}

impl RequestData for Data {
    fn take(&self, data: &mut [u8]) -> bool {
        Data::take(self, data).is_ok()
    }

    fn give(&self, data: &[u8]) -> bool {
        Data::give(self, data).is_ok()
    }
}

impl RequestQueue for Queue {
    type Data = Data;

    async fn next(&self, tag: u16, result: Option<i32>) -> Result<(), i32> {
        let fetch = match result {
            None => self.fetch(tag),
            Some(result) => self.commit_and_fetch(tag, result),
        };
        fetch.await.result.map(|_| ()).map_err(|error| error.errno)
    }

    fn request(&self, tag: u16) -> [u8; DESCRIPTOR_BYTES] {
        Queue::request(self, tag)
    }

    fn data(&self, tag: u16) -> Data {
        Queue::data(self, tag)
    }
}

/// Why a tag is served no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The device was stopped.
    Stopped,
    /// The driver refuses the tag's commands with this error number.
    Refused(i32),
    /// The device is left to another process.
    Left,
}

/// The wish that a tag is left to another process.
#[derive(Default)]
pub struct Leave {
    wanted: Cell<bool>,
    /// What is long ends after a piece.
    is_short: Cell<bool>,
    wake: Wake,
    /// How many tags of the queue wait for a request.
    waiting: Rc<Cell<usize>>,
}

impl Leave {
    /// Of each tag of a queue.
    pub fn of_queue(depth: u16) -> Vec<Self> {
        let first = Self::default();
        (0..depth).map(|_| Self { waiting: Rc::clone(&first.waiting), ..Self::default() }).collect()
    }

    /// Ends the tag after the request that is under way, or after a piece of a long one. What wasn't done to
    /// its end, and what comes afterwards, is given to the next process.
    pub fn want(&self) {
        self.wanted.set(true);
        self.hurry();
        self.wake.wake();
    }

    /// Ends what is long after a piece: it fails, unless the tag is left.
    pub fn hurry(&self) {
        self.is_short.set(true);
    }

    /// Whether what is long ends here. Before Linux 6.16 the driver notices by a tag that waits for a request
    /// that the queue's server has gone: so one tag at least gives its result, as it waits then.
    fn cuts_off(&self) -> bool {
        self.is_short.get() && (!self.wanted.get() || self.waiting.get() > 0)
    }

    fn wanted(&self) -> impl Future<Output = ()> {
        self.wake.wait_for(|| self.wanted.get().then_some(()))
    }
}

/// What carries requests out on one shard.
pub struct Worker<S> {
    /// Which is asked.
    pub service: S,
    /// In which the memory of the requests is counted.
    pub share: Share,
}

/// Serves one tag until the device is stopped, or left. What the queue's shard has too much of goes by way of
/// `spread`.
pub async fn serve_tag<Q: RequestQueue>(
    queue: &Q,
    tag: u16,
    worker: &Worker<impl BlockService>,
    limits: &Limits,
    spread: &Spread<Q::Data>,
    leave: &Leave,
) -> Ended {
    let mut result = None;
    loop {
        leave.waiting.set(leave.waiting.get() + 1);
        // The result goes out in any case: the first look at this gives it to the kernel.
        let next = first_of(queue.next(tag, result), leave.wanted()).await;
        if let First::One(_) = next {
            leave.waiting.set(leave.waiting.get() - 1);
        }
        match next {
            First::One(Ok(())) if !leave.wanted.get() => {}
            First::One(Err(STOPPED)) => return Ended::Stopped,
            First::One(Err(errno)) => return Ended::Refused(errno),
            First::One(Ok(())) | First::Other(()) => return Ended::Left,
        }
        let answered = match limits.request(&queue.request(tag)) {
            Ok(request) => {
                let data = queue.data(tag);
                let here = async |data| worker.carry_out(&data, request, || leave.cuts_off()).await;
                spread.carry_out(data, request, here).await
            }
            Err(Refused(errno)) => Err(errno),
        };
        if leave.wanted.get() && answered == Err(CUT_OFF) {
            // It has no result yet: the kernel issues it again to the next process, which does all of it.
            return Ended::Left;
        }
        result = Some(answered.unwrap_or_else(|errno| -errno));
    }
}

impl<S: BlockService> Worker<S> {
    /// Bytes that were read or written, or an error number. A long discard or zeroing ends between two pieces
    /// when it `is_over`.
    pub async fn carry_out(
        &self,
        data: &impl RequestData,
        Request { operation, range, fua }: Request,
        is_over: impl Fn() -> bool,
    ) -> Result<i32, i32> {
        let Self { service, share } = self;
        let Range { offset, length: bytes } = range;
        let done = match operation {
            Operation::Read { length } => {
                return with_memory(share, length, async || {
                    let (read, buffer) = service.read(offset, shard::buffer(length)).await;
                    read.map_err(error_number)?;
                    transferred(data.give(&buffer), length)
                })
                .await;
            }
            Operation::Write { length } => {
                return with_memory(share, length, async || {
                    let mut buffer = shard::buffer(length);
                    let taken = transferred(data.take(&mut buffer), length)?;
                    service.write(offset, buffer.freeze(), fua).await.map_err(error_number)?;
                    Ok(taken)
                })
                .await;
            }
            Operation::Flush => service.flush().await,
            Operation::Discard => {
                let discard = async |at, length| service.discard(at, length, fua).await;
                in_pieces(offset, bytes, service.discard_granularity(), is_over, discard).await
            }
            Operation::WriteZeroes { may_punch } => {
                let zero = async |at, length| service.write_zeroes(at, length, fua, may_punch).await;
                in_pieces(offset, bytes, service.discard_granularity(), is_over, zero).await
            }
        };
        done.map(|()| 0).map_err(error_number)
    }
}

fn transferred(copied: bool, length: usize) -> Result<i32, i32> {
    if copied { i32::try_from(length).map_err(|_| errno::IO) } else { Err(errno::IO) }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        cell::{Cell, RefCell},
        collections::VecDeque,
        rc::Rc,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use pinstripe_block::{ServiceError, budget::Budget};
    use pinstripe_runtime::{
        Buffer, Slice,
        uring::{RuntimeConfig, run},
    };
    use zerocopy::IntoBytes;

    use super::*;
    use crate::ublk::wire::Descriptor;

    /// A service that remembers what it was asked for.
    #[derive(Clone)]
    pub(crate) struct Memory {
        pub size: u64,
        pub block: u32,
        pub chunk: u32,
        pub stripe: u64,
        pub read_only: bool,
        pub fails: Rc<Cell<Option<ServiceError>>>,
        pub asked: Rc<RefCell<Vec<String>>>,
        /// Done when it is asked for something.
        pub meanwhile: Option<Rc<dyn Fn()>>,
    }

    impl Memory {
        pub fn new(size: u64) -> Self {
            Self {
                size,
                block: 512,
                chunk: 64 << 10,
                stripe: 192 << 10,
                read_only: false,
                fails: Rc::default(),
                asked: Rc::default(),
                meanwhile: None,
            }
        }

        fn note(&self, what: String) -> Result<(), ServiceError> {
            self.asked.borrow_mut().push(what);
            if let Some(act) = &self.meanwhile {
                act();
            }
            self.fails.get().map_or(Ok(()), Err)
        }
    }

    impl BlockService for Memory {
        fn size_bytes(&self) -> u64 {
            self.size
        }
        fn block_size(&self) -> u32 {
            self.block
        }
        fn preferred_block(&self) -> u32 {
            self.chunk
        }
        fn discard_granularity(&self) -> u64 {
            self.stripe
        }
        fn chunk_bytes(&self) -> u32 {
            self.chunk
        }
        fn stripe_bytes(&self) -> u64 {
            self.stripe
        }
        fn read_only(&self) -> bool {
            self.read_only
        }
        async fn read(&self, offset: u64, mut buffer: Buffer) -> (Result<(), ServiceError>, Buffer) {
            buffer.fill(7);
            (self.note(format!("read {offset} {}", buffer.len())), buffer)
        }
        async fn write(&self, offset: u64, data: Slice, fua: bool) -> Result<(), ServiceError> {
            self.note(format!("write {offset} {} of {} fua {fua}", data.len(), data[0]))
        }
        async fn flush(&self) -> Result<(), ServiceError> {
            self.note("flush".into())
        }
        async fn discard(&self, offset: u64, length: u64, fua: bool) -> Result<(), ServiceError> {
            self.note(format!("discard {offset} {length} fua {fua}"))
        }
        async fn write_zeroes(
            &self,
            offset: u64,
            length: u64,
            fua: bool,
            may_punch: bool,
        ) -> Result<(), ServiceError> {
            self.note(format!("zeroes {offset} {length} fua {fua} punch {may_punch}"))
        }
    }

    /// A driver that has these requests, each after the answer to the one before, and then stops the device.
    #[derive(Default)]
    struct Script {
        requests: RefCell<VecDeque<Descriptor>>,
        current: Cell<Descriptor>,
        results: RefCell<Vec<i32>>,
        kernel: Kernel,
        end: Cell<i32>,
        /// It is wanted when there are so many answers.
        leave: Leave,
        leave_at: Option<usize>,
    }

    /// Where the data of its requests lies.
    #[derive(Clone, Default)]
    struct Kernel {
        given: Arc<AtomicUsize>,
        /// Whether data can be copied.
        copies: bool,
    }

    impl RequestData for Kernel {
        fn take(&self, data: &mut [u8]) -> bool {
            data.fill(9);
            self.copies
        }

        fn give(&self, data: &[u8]) -> bool {
            self.given.fetch_add(data.len(), Ordering::Relaxed);
            self.copies
        }
    }

    impl RequestQueue for Script {
        type Data = Kernel;

        async fn next(&self, _tag: u16, result: Option<i32>) -> Result<(), i32> {
            self.results.borrow_mut().extend(result);
            if self.leave_at == Some(self.results.borrow().len()) {
                self.leave.want();
            }
            let next = self.requests.borrow_mut().pop_front().ok_or(self.end.get())?;
            self.current.set(next);
            Ok(())
        }

        fn request(&self, _tag: u16) -> [u8; DESCRIPTOR_BYTES] {
            let mut bytes = [0; DESCRIPTOR_BYTES];
            bytes.copy_from_slice(self.current.get().as_bytes());
            bytes
        }

        fn data(&self, _tag: u16) -> Kernel {
            self.kernel.clone()
        }
    }

    /// What became of requests (operation, first sector, sectors): results, what the service was asked for,
    /// the bytes that were given, how it ended.
    fn served(
        requests: &[(u32, u64, u32)],
        fails: Option<ServiceError>,
        copies: bool,
        end: i32,
    ) -> (Vec<i32>, Vec<String>, usize, Ended) {
        served_and_left(requests, fails, copies, end, None)
    }

    /// The same, left after so many answers.
    fn served_and_left(
        requests: &[(u32, u64, u32)],
        fails: Option<ServiceError>,
        copies: bool,
        end: i32,
        leave_at: Option<usize>,
    ) -> (Vec<i32>, Vec<String>, usize, Ended) {
        let requests = requests
            .iter()
            .map(|&(operation, start, sectors)| Descriptor { operation, sectors, start, address: 0 })
            .collect();
        run(&RuntimeConfig::unpinned(1), move |_| async move {
            let kernel = Kernel { copies, ..Kernel::default() };
            let script = Script { requests: RefCell::new(requests), kernel, leave_at, ..Script::default() };
            script.end.set(end);
            let memory = Memory::new(1 << 30);
            memory.fails.set(fails);
            let budget = Arc::new(Budget::new(1 << 20));
            let worker = Worker { service: memory.clone(), share: Share::new(Arc::clone(&budget)) };
            let ended =
                serve_tag(&script, 3, &worker, &Limits::new(&memory), &Spread::none(), &script.leave).await;
            assert_eq!(budget.held(), 0, "memory was counted and not given back");
            (script.results.take(), memory.asked.take(), script.kernel.given.load(Ordering::Relaxed), ended)
        })
        .unwrap()
    }

    #[test]
    fn requests_are_carried_out_in_turn_and_answered_with_their_bytes() {
        let requests = [(0, 8, 8), (1, 16, 2), (1 | 1 << 13, 16, 1), (2, 0, 0), (5 | 1 << 15, 0, 8)];
        let (results, asked, given, ended) = served(&requests, None, true, STOPPED);
        assert_eq!(results, [4096, 1024, 512, 0, 0]);
        let expected = [
            "read 4096 4096",
            "write 8192 1024 of 9 fua false",
            "write 8192 512 of 9 fua true",
            "flush",
            "zeroes 0 4096 fua false punch false",
        ];
        assert_eq!(
            (asked.as_slice(), given, ended),
            (&expected.map(str::to_owned)[..], 4096, Ended::Stopped)
        );
    }

    /// C32.
    #[test]
    fn fua_of_a_discard_and_of_zeroes_reaches_the_service() {
        let (results, asked, ..) = served(&[(3 | 1 << 13, 0, 8), (5 | 1 << 13, 0, 8)], None, true, STOPPED);
        assert_eq!(results, [0, 0]);
        assert_eq!(asked, ["discard 0 4096 fua true", "zeroes 0 4096 fua true punch true"]);
    }

    #[test]
    fn a_long_discard_is_cut_at_stripes() {
        let (results, asked, ..) = served(&[(3, 0, 200 << 11)], None, true, STOPPED);
        assert_eq!(results, [0]);
        assert!(asked.len() > 5);
        for piece in &asked {
            let offset: u64 = piece.split(' ').nth(1).unwrap().parse().unwrap();
            assert!(offset.is_multiple_of(192 << 10), "{piece}");
        }
    }

    /// C32.
    #[test]
    fn each_piece_of_long_zeroes_with_fua_is_forced() {
        let (results, asked, ..) = served(&[(5 | 1 << 13, 0, 200 << 11)], None, true, STOPPED);
        assert_eq!(results, [0]);
        assert!(asked.len() > 5 && asked.iter().all(|piece| piece.contains("fua true")), "{asked:?}");
    }

    #[test]
    fn a_failed_request_is_answered_with_its_error_and_the_next_one_served() {
        let requests = [(0, 0, 8), (1, 0, 8), (3, 0, 8), (2, 0, 0), (9, 0, 8), (0, 1 << 30, 8)];
        let (results, _, given, _) = served(&requests, Some(ServiceError::NoSpace), true, STOPPED);
        assert_eq!(results, [-28, -28, -28, -28, -95, -22]);
        assert_eq!(given, 0, "a failed read gives nothing to the kernel");
    }

    #[test]
    fn data_that_cannot_be_copied_is_an_error_and_is_never_written() {
        let (results, asked, ..) = served(&[(1, 0, 8), (0, 0, 8)], None, false, STOPPED);
        assert_eq!(results, [-5, -5]);
        assert_eq!(asked, ["read 0 4096"]);
    }

    #[test]
    fn what_is_under_way_is_answered_when_a_tag_is_left_and_no_other_request_is_begun() {
        let requests = [(0, 8, 8), (1, 16, 2), (0, 0, 8)];
        for (answers, expected) in [(0, vec![]), (1, vec![4096]), (2, vec![4096, 1024])] {
            let (results, asked, _, ended) = served_and_left(&requests, None, true, STOPPED, Some(answers));
            assert_eq!((&results, asked.len(), ended), (&expected, answers, Ended::Left));
        }
    }

    #[test]
    fn a_long_request_ends_after_a_piece_when_its_device_ends_and_without_a_result_when_that_is_left() {
        let want: fn(&Leave) = Leave::want;
        let hurry: fn(&Leave) = Leave::hurry;
        // The last tag of a queue does the whole, and then this device stops.
        let ends = [
            (want, 1, Ended::Left, None),
            (want, 0, Ended::Stopped, Some(0)),
            (hurry, 0, Ended::Stopped, Some(-CUT_OFF)),
        ];
        for (operation, (end, waiting, ended, result)) in
            [3, 5, 5 | 1 << 15].into_iter().flat_map(|operation| ends.map(|end| (operation, end)))
        {
            run(&RuntimeConfig::unpinned(1), move |_| async move {
                let long = Descriptor { operation, sectors: 1 << 20, start: 0, address: 0 };
                let requests = RefCell::new([long].into());
                let script = Rc::new(Script { requests, end: Cell::new(STOPPED), ..Script::default() });
                script.leave.waiting.set(waiting);
                let wish = Rc::clone(&script);
                let memory =
                    Memory { meanwhile: Some(Rc::new(move || end(&wish.leave))), ..Memory::new(1 << 30) };
                let share = Share::new(Arc::new(Budget::new(1 << 20)));
                let worker = Worker { service: memory.clone(), share };
                let limits = Limits::new(&memory);
                let became = serve_tag(&*script, 3, &worker, &limits, &Spread::none(), &script.leave).await;
                let is_whole = result == Some(0);
                assert_eq!((became, memory.asked.borrow().len() > 1), (ended, is_whole), "{operation}");
                assert_eq!(script.results.borrow().first().copied(), result);
            })
            .unwrap();
        }
    }

    /// A tag without requests.
    struct Idle;

    impl RequestQueue for Idle {
        type Data = Kernel;

        async fn next(&self, _tag: u16, _result: Option<i32>) -> Result<(), i32> {
            std::future::pending().await
        }

        fn request(&self, _tag: u16) -> [u8; DESCRIPTOR_BYTES] {
            unreachable!("none comes")
        }

        fn data(&self, _tag: u16) -> Kernel {
            unreachable!("none comes")
        }
    }

    #[test]
    fn a_long_request_is_left_after_a_piece_where_another_tag_of_its_queue_waits() {
        run(&RuntimeConfig::unpinned(1), |_| async move {
            let tags: Vec<_> = Leave::of_queue(2).into_iter().map(Rc::new).collect();
            let wish = Rc::clone(&tags[1]);
            let memory = Memory { meanwhile: Some(Rc::new(move || wish.want())), ..Memory::new(1 << 30) };
            let share = Share::new(Arc::new(Budget::new(1 << 20)));
            let worker = Rc::new(Worker { service: memory.clone(), share });
            let limits = Limits::new(&memory);
            let (idle, beside) = (Rc::clone(&tags[0]), Rc::clone(&worker));
            let waiting = shard::spawn_joined(async move {
                serve_tag(&Idle, 0, &beside, &limits, &Spread::none(), &idle).await
            });
            shard::yield_now().await;
            let long = Descriptor { operation: 3, sectors: 1 << 20, start: 0, address: 0 };
            let requests = RefCell::new([long].into());
            let script = Script { requests, end: Cell::new(STOPPED), ..Script::default() };
            let became = serve_tag(&script, 1, &worker, &limits, &Spread::none(), &tags[1]).await;
            assert_eq!((became, memory.asked.borrow().len()), (Ended::Left, 1));
            assert!(script.results.borrow().is_empty(), "the next process does it");
            tags[0].want();
            assert_eq!(waiting.join().await, Ended::Left);
        })
        .unwrap();
    }

    #[test]
    fn a_refusal_of_the_driver_is_told_from_the_devices_end() {
        assert_eq!(served(&[], None, true, STOPPED).3, Ended::Stopped);
        assert_eq!(served(&[], None, true, 22).3, Ended::Refused(22));
    }
}
