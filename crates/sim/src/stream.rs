//! A simulated connection: bytes arrive in order, in fragments and after delays that the seed draws.
//!
//! Each direction is a window of bytes: sent ones travel in segments, arrive, and wait to be received. A send
//! takes as many bytes as the seed and the window allow; a receive gives as many as the seed likes of those
//! that arrived.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    ops::Range,
    rc::Rc,
};

use pinstripe_runtime::{
    Buffer, Completion, DeviceError, DeviceErrorKind, Shard, Slice, Stream, Submission, completion::Payload,
    shard,
};

use crate::{
    rng::{Rng, index, mix},
    source::EventSource,
    trace::{Event, Trace, hash_of},
};

/// What a simulated connection is made of.
#[derive(Clone, Debug)]
pub struct SimStreamConfig {
    /// Bytes that may travel or wait at the receiver, per direction.
    pub window: usize,
    /// Most bytes that one send takes or one receive gives.
    pub fragment_max: usize,
    /// Longest time that a segment travels, in nanoseconds.
    pub delay_ns_max: u64,
}

impl SimStreamConfig {
    /// A connection with habits that `rng` draws: from whole messages to single bytes.
    pub fn drawn(rng: &mut Rng) -> Self {
        Self {
            window: rng.pick(&[1, 512, 65536, 4 << 20]),
            fragment_max: rng.pick(&[1, 7, 4096, 1 << 20]),
            delay_ns_max: rng.pick(&[0, 20_000, 1_000_000]),
        }
    }
}

struct Segment {
    arrives: u64,
    bytes: Vec<u8>,
}

/// A call that waits, on the shard that made it.
struct Send {
    data: Slice,
    completion: Completion,
}

/// One direction.
#[derive(Default)]
struct Pipe {
    travelling: VecDeque<Segment>,
    arrived: VecDeque<u8>,
    send: Option<Send>,
    /// Length of the buffer that waits, and its completion.
    receive: Option<(usize, Completion)>,
    /// The sender is done: what arrived can still be received.
    closed: bool,
    /// The receiver is done: nothing is wanted any more.
    deaf: bool,
    /// What travels doesn't arrive.
    held: bool,
    /// Positions of bytes that will be damaged.
    damaged: Vec<u64>,
    bytes_sent: u64,
    sent: u64,
}

struct StreamState {
    config: SimStreamConfig,
    rng: Rng,
    /// Direction 0 leads from end 0 to end 1.
    pipes: [Pipe; 2],
    reset: bool,
    /// By end: whether it alone has lost the connection.
    lost: [bool; 2],
    /// Its shards are dead.
    orphaned: bool,
    /// By end: whether its shard has died alone.
    dead: [bool; 2],
    /// Bytes per second that each direction carries; 0 for any number.
    bytes_per_second: u64,
    /// Until when each direction is busy with what was sent.
    busy_until: [u64; 2],
}

struct Shared {
    number: usize,
    shards: [usize; 2],
    clock: Rc<Cell<u64>>,
    trace: Rc<Trace>,
    state: RefCell<StreamState>,
    /// Ends that are still in use.
    held: Cell<u8>,
}

/// One end of a simulated connection.
pub struct SimStream {
    shared: Rc<Shared>,
    end: usize,
}

pub(crate) type Pair = (Rc<SimStream>, Rc<SimStream>);

pub(crate) fn pair(
    number: usize,
    ends: (usize, usize),
    config: SimStreamConfig,
    rng: Rng,
    clock: Rc<Cell<u64>>,
    trace: Rc<Trace>,
) -> (Pair, Rc<dyn EventSource>) {
    assert!(config.window > 0 && config.fragment_max > 0, "a connection carries at least a byte at a time");
    let state = RefCell::new(StreamState {
        config,
        rng,
        pipes: Default::default(),
        reset: false,
        lost: [false; 2],
        orphaned: false,
        dead: [false; 2],
        bytes_per_second: 0,
        busy_until: [0; 2],
    });
    let shards = [ends.0, ends.1];
    let shared = Rc::new(Shared { number, shards, clock, trace, state, held: Cell::new(2) });
    let end = |end| Rc::new(SimStream { shared: Rc::clone(&shared), end });
    ((end(0), end(1)), shared.clone())
}

impl SimStream {
    /// Breaks the connection: what travels is lost, and every call of both ends fails.
    pub fn reset(&self) {
        self.shared.state.borrow_mut().reset();
    }

    /// This end loses the connection; the other one gets what was sent to it, and hears nothing of the loss
    /// before [`SimStream::reset`].
    pub fn lose(&self) {
        self.shared.state.borrow_mut().lost[self.end] = true;
    }

    /// From now on the connection carries so many bytes per second each way; 0 for any number.
    pub fn throttle(&self, bytes_per_second: u64) {
        self.shared.state.borrow_mut().bytes_per_second = bytes_per_second;
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.shared.held.set(self.shared.held.get() - 1);
    }
}

impl SimStream {
    /// What this end sends stops arriving, its good-bye too, or goes on to: one direction of a partition.
    pub fn hold(&self, held: bool) {
        self.shared.state.borrow_mut().pipes[self.end].held = held;
    }

    /// Turns a bit of the byte that this end will send at `position` of its stream.
    pub fn damage(&self, position: u64) {
        self.shared.state.borrow_mut().pipes[self.end].damaged.push(position);
    }

    /// Bytes that this end has sent.
    pub fn bytes_sent(&self) -> u64 {
        self.shared.state.borrow().pipes[self.end].bytes_sent
    }
}

impl Stream for SimStream {
    fn receive(&self, buffer: Buffer) -> Submission {
        let length = buffer.len();
        let (submission, completion) = Submission::pending(Payload::Buffer(buffer));
        let pipe = &mut self.shared.state.borrow_mut().pipes[1 - self.end];
        debug_assert_eq!(shard::index(), self.shared.shards[self.end], "an end belongs to one shard");
        assert!(pipe.receive.is_none(), "one receive may be under way");
        pipe.receive = Some((length, completion));
        submission
    }

    fn send(&self, data: Slice) -> Submission {
        let (submission, completion) = Submission::pending(Payload::Slice(data.clone()));
        let pipe = &mut self.shared.state.borrow_mut().pipes[self.end];
        debug_assert_eq!(shard::index(), self.shared.shards[self.end], "an end belongs to one shard");
        assert!(pipe.send.is_none(), "one send may be under way");
        pipe.send = Some(Send { data, completion });
        submission
    }

    fn shutdown(&self) {
        let state = &mut *self.shared.state.borrow_mut();
        state.pipes[self.end].closed = true;
        state.pipes[1 - self.end].deaf = true;
    }
}

/// What may happen in one direction.
#[derive(Clone, Copy)]
enum Step {
    Send,
    Arrive,
    Receive,
}

impl StreamState {
    fn reset(&mut self) {
        self.reset = true;
        for pipe in &mut self.pipes {
            pipe.travelling.clear();
            pipe.arrived.clear();
        }
    }

    /// The shard of an end has died: no task waits for the calls of that end any more.
    fn lose(&mut self, end: usize, silent: bool) {
        self.dead[end] = true;
        let calls = (self.pipes[end].send.take(), self.pipes[1 - end].receive.take());
        drop(calls);
        if silent && !self.reset {
            // What the other end sends goes nowhere, until it has had enough.
            self.pipes.iter_mut().for_each(|pipe| pipe.held = true);
        } else {
            self.reset();
        }
        self.orphaned |= self.dead == [true; 2];
    }

    /// Whether the sender of a direction learns that what it sends goes nowhere.
    fn is_over(&self, direction: usize) -> bool {
        let (pipe, back) = (&self.pipes[direction], &self.pipes[1 - direction]);
        self.reset
            || self.lost[direction]
            || pipe.closed
            || (pipe.deaf && !back.held && !self.lost[1 - direction])
    }

    fn can(&self, direction: usize, step: Step, now: u64) -> bool {
        let pipe = &self.pipes[direction];
        let under_way = pipe.travelling.iter().map(|s| s.bytes.len()).sum::<usize>() + pipe.arrived.len();
        match step {
            Step::Send => pipe.send.is_some() && (self.is_over(direction) || under_way < self.config.window),
            Step::Arrive => {
                !pipe.held && pipe.travelling.front().is_some_and(|segment| segment.arrives <= now)
            }
            Step::Receive => {
                let parted = pipe.closed && pipe.travelling.is_empty() && !pipe.held;
                let parted = parted && !self.lost[direction];
                let end = self.reset || self.lost[1 - direction] || pipe.deaf || parted;
                pipe.receive.is_some() && (end || !pipe.arrived.is_empty())
            }
        }
    }

    fn steps(&self, now: u64) -> impl Iterator<Item = (usize, Step)> {
        let all = [0, 1].into_iter().flat_map(|d| [Step::Send, Step::Arrive, Step::Receive].map(|s| (d, s)));
        all.filter(move |&(direction, step)| self.can(direction, step, now))
    }

    /// How many of `most` bytes move at once.
    fn fragment(&mut self, most: usize) -> usize {
        let most = most.min(self.config.fragment_max);
        if self.rng.chance(1, 2) { most } else { 1 + self.rng.index(most) }
    }

    /// A waiting send goes on: its completion and result, and the bytes that it took.
    fn send(&mut self, direction: usize, now: u64) -> Option<(Completion, Result<usize, DeviceErrorKind>)> {
        let over = self.is_over(direction);
        let Send { data, completion } = self.pipes[direction].send.take()?;
        if over {
            return Some((completion, Err(DeviceErrorKind::Gone)));
        }
        if data.is_empty() {
            return Some((completion, Ok(0)));
        }
        let pipe = &self.pipes[direction];
        let under_way = pipe.travelling.iter().map(|s| s.bytes.len()).sum::<usize>() + pipe.arrived.len();
        let length = self.fragment(data.len().min(self.config.window - under_way));
        let delay = self.rng.below(self.config.delay_ns_max + 1);
        let mut leaves = now;
        if let Some(took) = (length as u64 * 1_000_000_000).checked_div(self.bytes_per_second) {
            leaves = now.max(self.busy_until[direction]) + took;
            self.busy_until[direction] = leaves;
        }
        let pipe = &mut self.pipes[direction];
        let behind = pipe.travelling.back().map_or(0, |segment| segment.arrives);
        let arrives = (leaves + delay).max(behind);
        let mut bytes = data[..length].to_vec();
        let end = pipe.bytes_sent + length as u64;
        for position in pipe.damaged.extract_if(.., |position| (pipe.bytes_sent..end).contains(position)) {
            bytes[index(position - pipe.bytes_sent)] ^= 1 << self.rng.below(8);
        }
        pipe.bytes_sent = end;
        pipe.travelling.push_back(Segment { arrives, bytes });
        pipe.sent = mix(pipe.sent ^ hash_of(&data[..length]));
        Some((completion, Ok(length)))
    }

    /// A waiting receive goes on: its completion, its result and its bytes.
    fn receive(&mut self, direction: usize) -> Option<(Completion, Result<usize, DeviceErrorKind>, Vec<u8>)> {
        let (length, completion) = self.pipes[direction].receive.take()?;
        if self.reset || self.lost[1 - direction] {
            return Some((completion, Err(DeviceErrorKind::Gone), Vec::new()));
        }
        let most = self.pipes[direction].arrived.len().min(length);
        if self.pipes[direction].deaf || most == 0 {
            return Some((completion, Ok(0), Vec::new()));
        }
        let count = self.fragment(most);
        let bytes = self.pipes[direction].arrived.drain(..count).collect();
        Some((completion, Ok(count), bytes))
    }
}

impl Shared {
    fn trace(&self, direction: usize, what: &'static str, bytes: usize, contents: u64) {
        self.trace.record(Event::Stream {
            link: self.number,
            direction,
            what,
            bytes: bytes as u64,
            contents,
        });
    }

    fn arrive(&self, direction: usize) {
        let pipe = &mut self.state.borrow_mut().pipes[direction];
        if let Some(segment) = pipe.travelling.pop_front() {
            self.trace(direction, "arrived", segment.bytes.len(), 0);
            pipe.arrived.extend(segment.bytes);
        }
    }

    fn sent(&self, direction: usize, now: u64, shards: &[Rc<Shard>]) {
        let sent = self.state.borrow_mut().send(direction, now);
        let Some((completion, result)) = sent else { return };
        self.trace(direction, "sent", result.unwrap_or(0), self.contents());
        let _entered = shards[self.shards[direction]].enter();
        completion.finish(result.map_err(DeviceError::of));
    }

    fn received(&self, direction: usize, shards: &[Rc<Shard>]) {
        let received = self.state.borrow_mut().receive(direction);
        let Some((completion, result, bytes)) = received else { return };
        self.trace(direction, "received", bytes.len(), hash_of(&bytes));
        let _entered = shards[self.shards[1 - direction]].enter();
        completion.with_payload(|payload| {
            if let Payload::Buffer(buffer) = payload {
                buffer[..bytes.len()].copy_from_slice(&bytes);
            }
        });
        completion.finish(result.map_err(DeviceError::of));
    }
}

impl EventSource for Shared {
    fn next_due(&self) -> Option<u64> {
        let state = self.state.borrow();
        let now = self.clock.get();
        let open = state.pipes.iter().filter(|pipe| !pipe.held);
        let arrivals = open.filter_map(|pipe| pipe.travelling.front().map(|s| s.arrives));
        let ready = state.steps(now).next().map(|_| now);
        arrivals.chain(ready).min()
    }

    fn due(&self, now: u64) -> usize {
        self.state.borrow().steps(now).count()
    }

    fn happen(&self, nth: usize, now: u64, shards: &[Rc<Shard>]) {
        let step = self.state.borrow().steps(now).nth(nth);
        match step {
            Some((direction, Step::Send)) => self.sent(direction, now, shards),
            Some((direction, Step::Arrive)) => self.arrive(direction),
            Some((direction, Step::Receive)) => self.received(direction, shards),
            None => {}
        }
    }

    fn pending(&self) -> usize {
        let state = self.state.borrow();
        let count = |pipe: &Pipe| usize::from(pipe.send.is_some()) + usize::from(pipe.receive.is_some());
        state.pipes.iter().map(count).sum()
    }

    fn crash(&self, _power: bool) {
        let state = &mut *self.state.borrow_mut();
        (state.reset, state.orphaned) = (true, true);
        state.pipes = Default::default();
    }

    fn is_over(&self) -> bool {
        self.state.borrow().orphaned
    }

    fn lose_shards(&self, shards: &Range<usize>, silent: bool) {
        for end in 0..2 {
            if shards.contains(&self.shards[end]) && !self.state.borrow().dead[end] {
                self.state.borrow_mut().lose(end, silent);
            }
        }
    }

    fn is_abandoned(&self) -> bool {
        let state = self.state.borrow();
        (self.held.get() == 0 || state.dead == [true; 2])
            && state.pipes.iter().all(|pipe| pipe.send.is_none() && pipe.receive.is_none())
    }

    fn contents(&self) -> u64 {
        self.state.borrow().pipes.iter().fold(0, |sum, pipe| mix(sum ^ pipe.sent))
    }

    fn describe(&self) -> String {
        let state = self.state.borrow();
        let line = |(direction, pipe): (usize, &Pipe)| {
            format!(
                "link {}.{direction}: {} segments travelling, {} bytes arrived, send waits: {}, receive waits: {}{}\n",
                self.number,
                pipe.travelling.len(),
                pipe.arrived.len(),
                pipe.send.is_some(),
                pipe.receive.is_some(),
                match pipe {
                    _ if pipe.closed || pipe.deaf || state.reset => ", closed",
                    _ if pipe.held => ", held",
                    _ => "",
                }
            )
        };
        state.pipes.iter().enumerate().map(line).collect()
    }
}

/// Bytes as indices, for tests of long streams.
#[cfg(test)]
fn numbered(length: u64) -> Vec<u8> {
    (0..length).map(|at| u8::try_from(mix(at) & 0xff).unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{World, WorldConfig};

    fn world(seed: u64) -> (World, Rc<SimStream>, Rc<SimStream>) {
        let mut world = World::new(WorldConfig { log_events_max: 20, ..WorldConfig::new(seed, 2) });
        let config = SimStreamConfig::drawn(&mut world.rng(0));
        let (a, b) = world.add_stream((0, 1), config);
        (world, a, b)
    }

    async fn send_all(stream: &SimStream, bytes: &[u8]) -> Result<(), DeviceError> {
        let mut buffer = shard::buffer(bytes.len());
        buffer.copy_from_slice(bytes);
        let mut rest = buffer.freeze();
        while !rest.is_empty() {
            let sent = stream.send(rest.clone()).await.result?;
            rest = rest.slice(sent, rest.len() - sent);
        }
        Ok(())
    }

    async fn receive_all(stream: &SimStream) -> Result<Vec<u8>, DeviceError> {
        let mut all = Vec::new();
        loop {
            let outcome = stream.receive(shard::buffer(3000)).await;
            let count = outcome.result?;
            if count == 0 {
                return Ok(all);
            }
            all.extend_from_slice(&outcome.buffer.unwrap()[..count]);
        }
    }

    #[test]
    fn bytes_arrive_once_and_in_order_both_ways_whatever_the_fragments() {
        for seed in 0..40 {
            let (mut world, a, b) = world(seed);
            let done = Rc::new(Cell::new(0));
            for (shard, stream) in [(0, a), (1, b)] {
                let (sender, receiver) = (Rc::clone(&stream), stream);
                let (length, peer_length) = if shard == 0 { (5000, 900) } else { (900, 5000) };
                world.spawn(shard, "send", async move {
                    send_all(&sender, &numbered(length)).await.unwrap();
                    // Only half: the other direction may still be under way.
                    sender.shared.state.borrow_mut().pipes[sender.end].closed = true;
                });
                let done = Rc::clone(&done);
                world.spawn(shard, "receive", async move {
                    assert_eq!(receive_all(&receiver).await.unwrap(), numbered(peer_length));
                    done.set(done.get() + 1);
                });
            }
            world.run_until(1_000_000, |_| done.get() == 2).unwrap();
            world.run_until_idle(1000).unwrap();
            assert!(world.leak_report().is_clean(), "{}", world.leak_report());
        }
    }

    #[test]
    fn what_is_held_arrives_when_it_is_released_and_so_does_the_end() {
        for seed in 0..10 {
            let (mut world, a, b) = world(seed);
            let (sender, told) = (Rc::clone(&a), Rc::new(Cell::new(false)));
            let there = Rc::clone(&told);
            a.hold(true);
            a.damage(2);
            world.spawn(0, "send", async move {
                send_all(&sender, &numbered(1)).await.unwrap();
                sender.shutdown();
            });
            world.spawn(1, "receive", async move {
                assert_eq!(receive_all(&b).await.unwrap(), numbered(1));
                there.set(true);
            });
            world.run_until_idle(10_000).unwrap();
            assert!(!told.get(), "the peer has heard of it");
            a.hold(false);
            world.run_until(10_000, |_| told.get()).unwrap();
        }
    }

    #[test]
    fn what_was_sent_arrives_although_its_sender_has_lost_the_connection() {
        for seed in 0..10 {
            let (mut world, a, b) = world(seed);
            let (sender, there) = (Rc::clone(&a), Rc::new(Cell::new((0, false))));
            world.spawn(0, "send", async move {
                send_all(&sender, &numbered(1)).await.unwrap();
                sender.lose();
                sender.shutdown();
                assert!(send_all(&sender, &numbered(1)).await.is_err());
                assert!(receive_all(&sender).await.is_err());
            });
            let seen = Rc::clone(&there);
            world.spawn(1, "receive", async move {
                let outcome = b.receive(shard::buffer(3)).await;
                seen.set((outcome.result.unwrap(), false));
                let end = receive_all(&b).await;
                seen.set((1, end.is_err()));
            });
            world.run_until_idle(10_000).unwrap();
            assert_eq!(there.get(), (1, false), "it gets the loss");
            a.reset();
            world.run_until(10_000, |_| there.get() == (1, true)).unwrap();
        }
    }

    #[test]
    fn a_damaged_byte_differs_in_one_bit() {
        for seed in 0..10 {
            let (mut world, a, b) = world(seed);
            a.damage(700);
            world.spawn(0, "send", async move {
                send_all(&a, &numbered(1000)).await.unwrap();
                a.shutdown();
            });
            let receive = async move { receive_all(&b).await.unwrap() };
            let got = world.block_on(1, "receive", 100_000, receive).unwrap();
            let differing: Vec<_> =
                got.iter().zip(numbered(1000)).enumerate().filter(|(_, (a, b))| *a != b).collect();
            assert_eq!(differing.len(), 1);
            assert_eq!((differing[0].0, (differing[0].1.0 ^ differing[0].1.1).count_ones()), (700, 1));
        }
    }

    #[test]
    fn shutdown_lets_the_peer_read_what_was_sent_and_then_see_the_end() {
        for seed in 0..20 {
            let (mut world, a, b) = world(seed);
            world.spawn(0, "send", async move {
                send_all(&a, &numbered(1000)).await.unwrap();
                a.shutdown();
                assert_eq!(a.receive(shard::buffer(10)).await.result, Ok(0));
                let data = shard::zeroed(10).freeze();
                assert_eq!(a.send(data).await.result.unwrap_err().kind, DeviceErrorKind::Gone);
            });
            let got = world.block_on(1, "receive", 100_000, async move {
                let got = receive_all(&b).await;
                let data = shard::zeroed(10).freeze();
                (got, b.send(data).await.result)
            });
            let (bytes, sent) = got.unwrap();
            assert_eq!(bytes.unwrap(), numbered(1000));
            assert_eq!(sent.unwrap_err().kind, DeviceErrorKind::Gone);
        }
    }

    #[test]
    fn a_reset_fails_calls_that_wait_and_later_ones() {
        let (mut world, a, b) = world(1);
        world.spawn(0, "reset", async move {
            shard::sleep(1000).await;
            a.reset();
        });
        let failed = world.block_on(1, "receive", 10_000, async move {
            let waited = b.receive(shard::buffer(10)).await.result;
            (waited, b.send(shard::zeroed(1).freeze()).await.result)
        });
        let (waited, later) = failed.unwrap();
        assert_eq!(waited.unwrap_err().kind, DeviceErrorKind::Gone);
        assert_eq!(later.unwrap_err().kind, DeviceErrorKind::Gone);
    }

    #[test]
    fn a_sender_waits_for_a_receiver_that_does_not_read() {
        let mut world = World::new(WorldConfig::new(5, 2));
        let config = SimStreamConfig { window: 100, fragment_max: 1000, delay_ns_max: 10 };
        let (a, _b) = world.add_stream((0, 1), config);
        world.spawn(0, "send", async move { send_all(&a, &numbered(101)).await.unwrap() });
        world.run_until_idle(10_000).unwrap();
        assert_eq!(world.leak_report().tasks_alive, [1, 0]);
        assert_eq!(world.leak_report().requests_pending, 1);
    }
}
