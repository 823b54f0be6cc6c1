//! Sessions over streams in memory.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use pinstripe_block::ServiceError;
use pinstripe_block::budget::Budget;
use pinstripe_export::nbd::{Export, Server, ServerError, SessionEnd, Violation};
use pinstripe_runtime::{Stream, shard};
use proptest::prelude::*;

use crate::client::{Wire, choose, choose_greeted, greet, reply, request};
use crate::world::{Array, Pipe, Random, pipe, run};

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZEROES: u16 = 6;
const SECOND: u64 = 1_000_000_000;

/// Connects a client; the session's end goes into the cell.
fn connect(
    random: &Rc<Random>,
    server: &Server<Array>,
    capacity: usize,
) -> (Rc<Pipe>, shard::JoinHandle<SessionEnd>) {
    let (client, there) = pipe(random, capacity);
    let server = server.clone();
    (client, shard::spawn_joined(async move { server.serve(there).await }))
}

/// A world with one array of `size` bytes and one client that has chosen it.
fn with_client<F: Future<Output = ()> + 'static>(
    seed: u64,
    size: usize,
    body: impl FnOnce(Rc<Pipe>, shard::JoinHandle<SessionEnd>, Array, Server<Array>) -> F + 'static,
) {
    let random = Random::new(seed);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let array = Array::new(&inner, size, 0);
        let server = array.server();
        let (client, session) = connect(&inner, &server, 256 << 10);
        choose(&client, true).await;
        body(client, session, array, server).await;
    });
}

/// Sends a write with its payload.
async fn write(client: &Pipe, cookie: u64, offset: u64, data: &[u8]) -> bool {
    let length = u32::try_from(data.len()).unwrap();
    client.send_all(&[request(0, WRITE, cookie, offset, length), data.to_vec()].concat()).await
}

fn nothing(_: u64) -> usize {
    0
}

/// A request that is under way: its range, whether it changes bytes, what a READ must give.
struct Pending {
    start: usize,
    end: usize,
    changes: bool,
    expected: Vec<u8>,
}

/// One client of the property test. Ranges of requests under way don't overlap, unless all read, so the model
/// knows what each READ gives.
pub struct Client<W> {
    random: Rc<Random>,
    pipe: Rc<W>,
    model: Rc<RefCell<Vec<u8>>>,
    pending: Rc<RefCell<HashMap<u64, Pending>>>,
    answered: Rc<pinstripe_runtime::Signal>,
}

impl<W: Wire + 'static> Client<W> {
    pub fn new(random: &Rc<Random>, pipe: Rc<W>, model: &Rc<RefCell<Vec<u8>>>) -> Self {
        let (random, model) = (Rc::clone(random), Rc::clone(model));
        Self { random, pipe, model, pending: Rc::default(), answered: Rc::default() }
    }

    /// Sends `count` random requests while another task checks the replies; then leaves.
    pub async fn talk(self, base: usize, size: usize, count: u64, structured: bool) {
        choose_greeted(&self.pipe, structured).await;
        let checker = shard::spawn_joined(check_replies(
            Rc::clone(&self.pipe),
            Rc::clone(&self.pending),
            Rc::clone(&self.answered),
        ));
        for cookie in 0..count {
            self.send_one(base, size, cookie).await;
        }
        assert!(self.pipe.send_all(&request(0, DISC, 0, 0, 0)).await);
        checker.join().await;
        assert!(self.pending.borrow().is_empty(), "requests without reply");
    }

    async fn send_one(&self, base: usize, size: usize, cookie: u64) {
        let command = [READ, READ, WRITE, WRITE, WRITE, FLUSH, TRIM, ZEROES][self.random.below(8)];
        let longest = [1, 8, 40, 300, 700][self.random.below(5)];
        let length = if command == FLUSH { 0 } else { 512 * (1 + self.random.below(longest)) };
        let start =
            if command == FLUSH { 0 } else { base + 512 * self.random.below((size - length) / 512 + 1) };
        let end = start + length;
        let changes = !matches!(command, READ | FLUSH);
        let overlaps = |other: &Pending| other.start < end && start < other.end && (other.changes || changes);
        self.answered.wait_until(|| !self.pending.borrow().values().any(overlaps)).await;

        let fua = u16::from(self.random.chance(4));
        let wire_length = u32::try_from(length).unwrap();
        let mut bytes = request(fua, command, cookie, start as u64, wire_length);
        let (expected, payload) = self.apply(command, start, end);
        bytes.extend(payload);
        self.pending.borrow_mut().insert(cookie, Pending { start, end, changes, expected });
        assert!(self.pipe.send_all(&bytes).await);
    }

    /// Does in the model what the command will do. Gives what a READ must bring and the payload of a WRITE.
    fn apply(&self, command: u16, start: usize, end: usize) -> (Vec<u8>, Vec<u8>) {
        let mut model = self.model.borrow_mut();
        let range = &mut model[start..end];
        match command {
            READ => return (range.to_vec(), Vec::new()),
            WRITE => {
                range.chunks_mut(8).for_each(|word| word.copy_from_slice(&self.random.next().to_le_bytes()));
                return (Vec::new(), range.to_vec());
            }
            _ => range.fill(0),
        }
        (Vec::new(), Vec::new())
    }
}

async fn check_replies<W: Wire>(
    pipe: Rc<W>,
    pending: Rc<RefCell<HashMap<u64, Pending>>>,
    answered: Rc<pinstripe_runtime::Signal>,
) {
    loop {
        let length_of = |cookie| pending.borrow()[&cookie].expected.len();
        let Some(reply) = reply(&pipe, length_of).await else { return };
        let request = pending.borrow_mut().remove(&reply.cookie).expect("a reply to no request");
        assert_eq!(reply.error, 0);
        assert!(reply.data == request.expected, "bytes {}..{} are wrong", request.start, request.end);
        answered.notify();
    }
}

fn random_conversation(seed: u64) {
    let random = Random::new(seed);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let random = inner;
        let (clients, part) = (1 + random.below(3), 1 << 20);
        let array = Array::new(&random, clients * part, [0, 1000, 100_000][random.below(3)]);
        let server = array.server();
        let model = Rc::new(RefCell::new(vec![0; clients * part]));
        let mut joins = Vec::new();
        for number in 0..clients {
            let capacity = [100, 5000, 200_000][random.below(3)];
            let (pipe, session) = connect(&random, &server, capacity);
            let structured = random.chance(2);
            let client = Client::new(&random, Rc::clone(&pipe), &model);
            let talk = shard::spawn_joined(async move {
                greet(&pipe).await;
                client.talk(number * part, part, 40, structured).await;
            });
            joins.push((talk, session));
        }
        for (talk, session) in joins {
            talk.join().await;
            assert_eq!(session.join().await, SessionEnd::Disconnected);
        }
        assert!(array.seen.borrow().data == *model.borrow(), "the array differs from the model");
        assert_eq!(server.connections(), 0);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn random_requests_of_several_clients_do_what_a_plain_vector_does(seed in any::<u64>()) {
        random_conversation(seed);
    }
}

#[test]
fn large_payloads_arrive_whole_and_aligned() {
    with_client(1, 40 << 20, |client, session, array, _| async move {
        let data: Vec<u8> = (0..32 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        assert!(write(&client, 1, 4096, &data).await);
        assert_eq!(reply(&client, nothing).await.unwrap().error, 0);
        assert!(array.seen.borrow().data[4096..4096 + data.len()] == data);
        assert!(client.send_all(&request(0, READ, 2, 4096, 32 << 20)).await);
        assert!(reply(&client, nothing).await.unwrap().data == data);
        client.shutdown();
        assert_eq!(session.join().await, SessionEnd::Closed);
    });
}

#[test]
fn replies_come_as_requests_finish_not_in_their_order() {
    with_client(2, 1 << 20, |client, session, array, _| async move {
        array.close();
        assert!(write(&client, 1, 0, &[1; 512]).await);
        while array.seen.borrow().running == 0 {
            shard::yield_now().await;
        }
        // A refused request is answered while the write waits.
        assert!(client.send_all(&request(0, READ, 2, 1 << 20, 512)).await);
        let refused = reply(&client, nothing).await.unwrap();
        assert_eq!((refused.cookie, refused.error), (2, 22));
        array.open();
        assert_eq!(reply(&client, nothing).await.unwrap().cookie, 1);
        client.shutdown();
        session.join().await;
    });
}

#[test]
fn disconnect_waits_for_what_is_in_flight_and_then_closes() {
    with_client(3, 1 << 20, |client, session, array, _| async move {
        array.close();
        for cookie in 0..20 {
            assert!(write(&client, cookie, cookie * 4096, &[7; 4096]).await);
        }
        assert!(client.send_all(&request(0, DISC, 0, 0, 0)).await);
        shard::sleep(100 * SECOND).await;
        array.open();
        let mut cookies = Vec::new();
        while let Some(reply) = reply(&client, nothing).await {
            assert_eq!(reply.error, 0);
            cookies.push(reply.cookie);
        }
        cookies.sort_unstable();
        assert_eq!(cookies, (0..20).collect::<Vec<_>>());
        assert_eq!(session.join().await, SessionEnd::Disconnected);
        assert!(array.seen.borrow().data[..20 * 4096].iter().all(|byte| *byte == 7));
    });
}

#[test]
fn a_client_that_stops_sending_still_gets_its_replies() {
    with_client(4, 1 << 20, |client, session, array, _| async move {
        array.close();
        assert!(client.send_all(&request(0, READ, 1, 0, 65536)).await);
        client.finish_sending();
        shard::sleep(SECOND).await;
        array.open();
        assert_eq!(reply(&client, nothing).await.unwrap().data.len(), 65536);
        assert_eq!(session.join().await, SessionEnd::Closed);
    });
}

/// Linux and QEMU send what isn't answered in time again, by another connection, and go on with later writes
/// there.
#[test]
fn what_waits_for_room_is_not_begun_when_its_client_has_hung_up() {
    // Each limit: of a connection's requests, of its memory, of the server's, which another connection has.
    let limits = [(128, 512, 1 << 30), (16, 4 << 20, 1 << 30), (3, 2 << 20, 8 << 20)];
    for (seed, (count, length, budget)) in (0..60).zip(limits.into_iter().cycle()) {
        let random = Random::new(seed);
        let inner = Rc::clone(&random);
        run(&random, move || async move {
            let array = Array::new(&inner, 8 << 20, 0);
            let service = array.clone();
            let export = Export { name: "array".into(), description: String::new(), service };
            let server = Server::with_budget(vec![export], Arc::new(Budget::new(budget))).unwrap();
            let (client, session) = connect(&inner, &server, 256 << 10);
            choose(&client, true).await;
            let (other, other_session) = connect(&inner, &server, 256 << 10);
            choose(&other, true).await;
            array.close();
            let reads: Vec<u8> = (0..count).flat_map(|cookie| request(0, READ, cookie, 0, length)).collect();
            if budget == 8 << 20 {
                assert!(other.send_all(&reads).await);
                shard::sleep(SECOND).await;
                assert!(client.send_all(&request(0, READ, 0, 0, 4 << 20)).await);
            } else {
                assert!(client.send_all(&reads).await);
            }
            assert!(write(&client, 1000, 4096, &[1; 4096]).await);
            shard::sleep(40 * SECOND).await;
            if inner.chance(3) {
                client.finish_sending();
            } else {
                client.shutdown();
            }
            array.open();
            if budget == 8 << 20 {
                for _ in 0..count {
                    assert_eq!(reply(&other, |_| length as usize).await.unwrap().error, 0);
                }
            }
            session.join().await;
            other.shutdown();
            other_session.join().await;
            assert_eq!(array.seen.borrow().data[4096], 0, "it was begun late, seed {seed}");
        });
    }
}

/// The server may have stood still for longer than the client waits: then both lie in the socket.
#[test]
fn what_is_received_when_its_client_has_hung_up_is_not_begun() {
    for seed in 0..20 {
        with_client(seed, 1 << 20, move |client, session, array, _| async move {
            for cookie in 0..20 {
                assert!(write(&client, cookie, cookie * 4096, &[7; 4096]).await);
            }
            client.finish_sending();
            session.join().await;
            assert_eq!(array.seen.borrow().requests, 0);
        });
    }
}

#[test]
fn a_killed_client_leaves_nothing_behind() {
    for seed in 0..40 {
        with_client(seed, 4 << 20, move |client, session, array, server| async move {
            let random = Random::new(seed);
            array.close();
            for cookie in 0..random.below(60) as u64 {
                let length = 512 * (1 + random.below(300));
                if random.chance(2) {
                    let length = u32::try_from(length).unwrap();
                    assert!(client.send_all(&request(0, READ, cookie, 0, length)).await);
                } else {
                    assert!(write(&client, cookie, 0, &vec![1; length]).await);
                }
            }
            // In the middle of a header or of a payload.
            let mut last = request(0, WRITE, 99, 0, 100 << 10);
            last.resize(random.below(80 << 10), 0);
            if !last.is_empty() {
                assert!(client.send_all(&last).await);
            }
            if random.chance(2) {
                array.open();
            }
            client.shutdown();
            shard::sleep(100 * SECOND).await;
            array.open();
            assert_eq!(session.join().await, SessionEnd::Closed);
            assert_eq!(server.connections(), 0);
            assert_eq!(array.seen.borrow().running, 0);
            // `run` checks that no task, request or buffer is left.
        });
    }
}

#[test]
fn a_payload_that_never_comes_is_no_write() {
    with_client(5, 1 << 20, |client, session, array, _| async move {
        let mut bytes = request(0, WRITE, 1, 0, 65536);
        bytes.resize(28 + 65535, 9);
        assert!(client.send_all(&bytes).await);
        client.shutdown();
        assert_eq!(session.join().await, SessionEnd::Closed);
        assert_eq!(array.seen.borrow().requests, 0);
    });
}

#[test]
fn requests_run_concurrently_up_to_the_limit() {
    with_client(6, 1 << 20, |client, session, array, _| async move {
        array.close();
        let sender = Rc::clone(&client);
        let sent = shard::spawn_joined(async move {
            for cookie in 0..1000 {
                assert!(sender.send_all(&request(0, READ, cookie, 0, 512)).await);
            }
        });
        shard::sleep(SECOND).await;
        assert_eq!(array.seen.borrow().running, 128);
        array.open();
        for _ in 0..1000 {
            assert_eq!(reply(&client, nothing).await.unwrap().error, 0);
        }
        sent.join().await;
        assert_eq!(array.seen.borrow().running_max, 128);
        client.shutdown();
        session.join().await;
    });
}

#[test]
fn zeroes_take_no_memory_however_many_they_are() {
    with_client(22, 4 << 20, |client, session, array, _| async move {
        for length in [4 << 20, 512] {
            array.close();
            for cookie in 0..150 {
                assert!(client.send_all(&request(0, ZEROES, cookie, 0, length)).await);
            }
            shard::sleep(SECOND).await;
            assert_eq!(array.seen.borrow().running, 128, "zeroes of {length} bytes");
            array.open();
            for _ in 0..150 {
                assert_eq!(reply(&client, nothing).await.unwrap().error, 0);
            }
        }
        client.shutdown();
        session.join().await;
    });
}

#[test]
fn a_client_that_does_not_read_is_not_read_either_and_cut_off_at_last() {
    with_client(7, 32 << 20, |client, session, array, _| async move {
        let sent = Rc::new(Cell::new(0));
        let (sender, count) = (Rc::clone(&client), Rc::clone(&sent));
        let sending = shard::spawn_joined(async move {
            while sender.send_all(&request(0, READ, count.get(), 0, 4 << 20)).await {
                count.set(count.get() + 1);
            }
        });
        shard::sleep(20 * SECOND).await;
        let requests = array.seen.borrow().requests;
        assert!((8..=16).contains(&requests), "{requests} requests of 4 MiB were let in");
        let held: usize = array.seen.borrow().bytes_running_max;
        assert!(held <= 64 << 20);
        let ended = shard::timeout(20 * SECOND, session.join()).await;
        assert_eq!(ended, Some(SessionEnd::Closed), "it is waited for without end");
        sending.join().await;
    });
}

#[test]
fn a_payload_that_never_comes_holds_memory_for_a_while_only() {
    with_client(22, 32 << 20, |client, session, array, _| async move {
        assert!(client.send_all(&request(0, WRITE, 1, 0, 32 << 20)).await);
        assert!(client.send_all(&vec![1; 20 << 10]).await);
        let ended = shard::timeout(40 * SECOND, session.join()).await;
        assert_eq!(ended, Some(SessionEnd::Closed), "its memory is held without end");
        assert_eq!(array.seen.borrow().requests, 0);
    });
}

/// A client that keeps most of a server's budget moves as little as it may, and another one asks for memory.
fn trickles(moves: impl AsyncFn(&Pipe) + 'static) {
    let random = Random::new(29);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let array = Array::new(&inner, 8 << 20, 0);
        let export = Export { name: "array".into(), description: String::new(), service: array };
        let server = Server::with_budget(vec![export], Arc::new(Budget::new(8 << 20))).unwrap();
        let (slow, slow_session) = connect(&inner, &server, 4096);
        choose(&slow, true).await;
        let (client, session) = connect(&inner, &server, 64 << 10);
        choose(&client, true).await;
        let trickling = shard::spawn_joined(async move {
            moves(&slow).await;
            slow.shutdown();
        });
        shard::sleep(SECOND).await;
        assert!(client.send_all(&request(0, READ, 7, 0, 3 << 20)).await);
        let answer = shard::timeout(120 * SECOND, reply(&client, |_| 3 << 20)).await;
        assert_eq!(answer.expect("it waits for the slow one without end").unwrap().data.len(), 3 << 20);
        assert_eq!(slow_session.join().await, SessionEnd::Closed);
        client.shutdown();
        session.join().await;
        trickling.join().await;
    });
}

#[test]
fn a_client_that_moves_a_byte_now_and_then_does_not_keep_memory_from_others() {
    trickles(async |slow: &Pipe| {
        assert!(slow.send_all(&request(0, WRITE, 1, 0, 6 << 20)).await);
        while slow.send_all(&[1]).await {
            shard::sleep(20 * SECOND).await;
        }
    });
    trickles(async |slow: &Pipe| {
        assert!(slow.send_all(&request(0, READ, 1, 0, 6 << 20)).await);
        while slow.receive_exactly(1).await.is_some() {
            shard::sleep(20 * SECOND).await;
        }
    });
}

#[test]
fn data_on_a_slow_line_is_waited_for() {
    with_client(30, 8 << 20, |client, session, _, _| async move {
        assert!(client.send_all(&request(0, WRITE, 1, 0, 8 << 20)).await);
        for _ in 0..32 {
            assert!(client.send_all(&vec![1; 256 << 10]).await);
            shard::sleep(SECOND).await;
        }
        assert_eq!(reply(&client, nothing).await.unwrap().cookie, 1);
        client.shutdown();
        session.join().await;
    });
}

/// Clients that take no replies, of a server with a budget: what the server's pool holds, and whether another
/// client is served.
fn non_readers(length: u32) {
    const CLIENTS: u64 = 24;
    const BUDGET: usize = 96 << 20;
    // In all several times the budget, and not more than this machine has, should nothing hold them back.
    let requests = u64::from((16 << 20) / length).max(2);
    let random = Random::new(23);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let array = Array::new(&inner, 32 << 20, 0);
        let budget = Arc::new(Budget::new(BUDGET));
        let export = Export { name: "array".into(), description: String::new(), service: array };
        let server = Server::with_budget(vec![export], Arc::clone(&budget)).unwrap();
        let mut greedy = Vec::new();
        for _ in 0..CLIENTS {
            let (client, session) = connect(&inner, &server, 4096);
            choose(&client, true).await;
            let sender = Rc::clone(&client);
            shard::spawn(async move {
                let mut cookie = 0;
                while cookie < requests && sender.send_all(&request(0, READ, cookie, 0, length)).await {
                    cookie += 1;
                }
            });
            greedy.push((client, session));
        }
        shard::sleep(SECOND).await;
        let (client, session) = connect(&inner, &server, 4096);
        choose(&client, true).await;
        assert!(client.send_all(&request(0, READ, 7, 0, 4096)).await);
        assert_eq!(reply(&client, |_| 4096).await.unwrap().data.len(), 4096);
        let held = budget.held();
        let blocks = shard::with_current(|shard| shard.pool().system_bytes() - shard.pool().spare_bytes());
        // Beside the budget: what comes in is staged, some replies are small, one batch is being filled.
        let beside = greedy.len() * (512 << 10);
        assert!(held <= BUDGET + greedy.len() * (128 << 10), "{held} bytes are counted");
        assert!(blocks <= held + beside, "{blocks} bytes are held and {held} counted");
        assert!(
            client.send_all(&request(0, READ, 8, 0, 32 << 20)).await,
            "it waits for the end of the others"
        );
        assert_eq!(reply(&client, |_| 32 << 20).await.unwrap().data.len(), 32 << 20);
        client.shutdown();
        session.join().await;
        for (client, session) in greedy {
            session.join().await;
            client.shutdown();
        }
        assert_eq!(budget.held(), 0);
    });
}

#[test]
fn clients_that_read_no_replies_share_one_budget_and_do_not_stop_others() {
    non_readers(32 << 20);
    non_readers(6 << 10);
}

#[cfg(feature = "mutants")]
#[test]
fn every_defect_in_what_a_client_may_hold_is_caught() {
    use pinstripe_block::mutants::{Mutant, activate};
    let scenes: [(Mutant, fn()); 3] = [
        (Mutant::PatienceWithoutEnd, a_client_that_does_not_read_is_not_read_either_and_cut_off_at_last),
        (Mutant::AnswersUncounted, || non_readers(6 << 10)),
        (Mutant::RequestsOfTheGoneBegun, what_waits_for_room_is_not_begun_when_its_client_has_hung_up),
    ];
    assert_eq!(scenes.map(|(mutant, _)| mutant), Mutant::OF_SESSIONS);
    for (mutant, scene) in scenes {
        // A thread of its own: a scene that fails leaves its shard behind.
        let tried = std::thread::spawn(move || {
            activate(Some(mutant));
            scene();
        });
        assert!(tried.join().is_err(), "{mutant:?} was not found");
    }
}

#[test]
fn refusals_that_are_not_read_are_bounded_too() {
    with_client(8, 1 << 20, |client, session, _, _| async move {
        let sent = Rc::new(Cell::new(0_u64));
        let (sender, count) = (Rc::clone(&client), Rc::clone(&sent));
        let block: Vec<u8> = (0..20_000).flat_map(|cookie| request(0, READ, cookie, 1 << 40, 512)).collect();
        let sending = shard::spawn_joined(async move {
            while sender.send_all(&block).await {
                count.set(count.get() + block.len() as u64);
            }
        });
        shard::sleep(SECOND).await;
        // 64 KiB of replies, each longer than its request, and what is on the way.
        assert!(sent.get() < 2 << 20, "{} bytes of requests were taken", sent.get());
        client.shutdown();
        session.join().await;
        sending.join().await;
    });
}

#[test]
fn errors_of_the_array_are_sent_as_numbers() {
    let numbers = [
        (ServiceError::Io, 5),
        (ServiceError::NoSpace, 28),
        (ServiceError::ReadOnly, 1),
        (ServiceError::Resources, 12),
        (ServiceError::Stopping, 108),
    ];
    for (error, number) in numbers {
        with_client(9, 1 << 20, move |client, session, array, _| async move {
            array.seen.borrow_mut().fail = Some(error);
            for (command, length) in [(READ, 512), (READ, 65536), (FLUSH, 0), (TRIM, 512), (ZEROES, 512)] {
                assert!(client.send_all(&request(0, command, 1, 0, length)).await);
                let reply = reply(&client, nothing).await.unwrap();
                assert_eq!((reply.error, reply.data.len()), (number, 0));
            }
            assert!(write(&client, 2, 0, &[1; 512]).await);
            assert_eq!(reply(&client, nothing).await.unwrap().error, number);
            client.shutdown();
            session.join().await;
        });
    }
}

#[test]
fn fast_zero_is_refused_where_zeroes_are_slow_and_done_where_they_are_fast() {
    with_client(10, 1 << 20, |client, session, array, _| async move {
        array.seen.borrow_mut().data.fill(1);
        for (fast, error, byte) in [(false, 95, 1), (true, 0, 0)] {
            array.seen.borrow_mut().fast = fast;
            assert!(client.send_all(&request(16, ZEROES, 1, 0, 4096)).await);
            assert_eq!(reply(&client, nothing).await.unwrap().error, error);
            assert_eq!(array.seen.borrow().data[0], byte);
        }
        client.shutdown();
        session.join().await;
    });
}

#[test]
fn fua_reaches_the_array() {
    with_client(11, 1 << 20, |client, session, array, _| async move {
        let bytes = [request(1, WRITE, 1, 0, 512), vec![5; 512]].concat();
        assert!(client.send_all(&bytes).await);
        for command in [TRIM, ZEROES] {
            assert!(client.send_all(&request(1, command, 1, 0, 512)).await);
        }
        for _ in 0..3 {
            assert_eq!(reply(&client, nothing).await.unwrap().error, 0);
        }
        assert!(write(&client, 2, 0, &[1; 512]).await);
        reply(&client, nothing).await.unwrap();
        assert_eq!(array.seen.borrow().fua, 3);
        client.shutdown();
        session.join().await;
    });
}

#[test]
fn a_violation_closes_after_earlier_requests_are_answered() {
    with_client(12, 1 << 20, |client, session, array, _| async move {
        array.close();
        assert!(client.send_all(&request(0, READ, 1, 0, 512)).await);
        assert!(client.send_all(&[0x55; 28]).await);
        shard::sleep(SECOND).await;
        array.open();
        assert_eq!(reply(&client, nothing).await.unwrap().cookie, 1);
        assert_eq!(reply(&client, nothing).await, None);
        let violation = Violation::RequestMagic(0x5555_5555);
        assert_eq!(session.join().await, SessionEnd::Violation(violation));
    });
}

#[test]
fn stop_finishes_what_is_in_flight_refuses_the_rest_and_closes() {
    with_client(13, 1 << 20, |client, session, array, server| async move {
        array.close();
        assert!(write(&client, 1, 0, &[1; 4096]).await);
        while array.seen.borrow().running == 0 {
            shard::yield_now().await;
        }
        let stopped = Rc::new(Cell::new(false));
        let (flag, stopping) = (Rc::clone(&stopped), server.clone());
        shard::spawn(async move {
            stopping.stop(1000 * SECOND).await;
            flag.set(true);
        });
        shard::sleep(SECOND).await;
        for (command, length) in [(READ, 512), (FLUSH, 0)] {
            assert!(client.send_all(&request(0, command, 2, 0, length)).await);
            assert_eq!(reply(&client, nothing).await.unwrap().error, 108);
        }
        assert!(write(&client, 2, 0, &[2; 4096]).await);
        assert_eq!(reply(&client, nothing).await.unwrap().error, 108);
        assert!(!stopped.get());
        array.open();
        let last = reply(&client, nothing).await.unwrap();
        assert_eq!((last.cookie, last.error), (1, 0));
        assert_eq!(reply(&client, nothing).await, None, "the connection is closed");
        assert_eq!(session.join().await, SessionEnd::Closed);
        shard::sleep(SECOND).await;
        assert!(stopped.get());
        assert_eq!(array.seen.borrow().data[0], 1);
    });
}

/// Has ZEROES and TRIM of 128 MiB begun, ends them early by `end`, and says how many pieces the array saw and
/// what was replied.
fn cut_short<F: Future<Output = ()> + 'static>(
    end: impl Fn(Rc<Pipe>, Server<Array>) -> F + 'static + Copy,
) -> Vec<(usize, Option<u32>)> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    for command in [ZEROES, TRIM] {
        let seen = Rc::clone(&seen);
        with_client(21, 129 << 20, move |client, session, array, server| async move {
            array.close();
            assert!(client.send_all(&request(0, command, 1, 512, 128 << 20)).await);
            shard::sleep(SECOND).await;
            end(Rc::clone(&client), server).await;
            shard::sleep(SECOND).await;
            array.open();
            let error = reply(&client, nothing).await.map(|reply| reply.error);
            session.join().await;
            seen.borrow_mut().push((array.seen.borrow().requests, error));
        });
    }
    seen.take()
}

#[test]
fn a_long_request_without_data_ends_with_its_connection() {
    let killed = |client: Rc<Pipe>, _| async move { client.shutdown() };
    assert_eq!(cut_short(killed), [(1, None); 2]);
    // A client that still listens is told that the request isn't done.
    let silent = |client: Rc<Pipe>, _| async move { client.finish_sending() };
    assert_eq!(cut_short(silent), [(1, Some(108)); 2]);
    // So it is where the receiver waits for room, and does not come to the connection's end.
    let crowded = |client: Rc<Pipe>, _| async move {
        let reads: Vec<u8> = (0..127).flat_map(|cookie| request(0, READ, 2 + cookie, 0, 512)).collect();
        assert!(client.send_all(&reads).await);
        assert!(write(&client, 200, 0, &[1; 512]).await);
        shard::sleep(SECOND).await;
        client.shutdown();
    };
    assert_eq!(cut_short(crowded), [(128, None); 2]);
    // A client that says that it leaves has its request carried out to the end.
    let left = |client: Rc<Pipe>, _| async move {
        assert!(client.send_all(&request(0, DISC, 0, 0, 0)).await);
    };
    assert_eq!(cut_short(left), [(5, Some(0)); 2]);
}

#[test]
fn a_long_request_ends_with_the_first_piece_that_fails() {
    for command in [ZEROES, TRIM] {
        with_client(21, 129 << 20, move |client, session, array, _| async move {
            array.seen.borrow_mut().fail = Some(ServiceError::Io);
            assert!(client.send_all(&request(0, command, 1, 512, 128 << 20)).await);
            assert_eq!(reply(&client, nothing).await.unwrap().error, 5);
            assert_eq!(array.seen.borrow().requests, 1);
            client.shutdown();
            session.join().await;
        });
    }
}

#[test]
fn stop_does_not_wait_for_the_whole_of_a_long_request() {
    let stop = |_, server: Server<Array>| async move {
        shard::spawn(async move { server.stop(1000 * SECOND).await });
    };
    assert_eq!(cut_short(stop), [(1, Some(108)); 2]);
}

#[test]
fn stop_closes_idle_clients_and_takes_no_new_ones() {
    let random = Random::new(14);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let array = Array::new(&inner, 1 << 20, 0);
        let server = array.server();
        let (idle, idle_session) = connect(&inner, &server, 4096);
        choose(&idle, true).await;
        let (haggling, haggling_session) = connect(&inner, &server, 4096);
        haggling.receive_exactly(18).await.unwrap();
        let before = shard::now();
        server.stop(1000 * SECOND).await;
        assert_eq!(shard::now(), before, "no session had to be waited for");
        assert_eq!(idle_session.join().await, SessionEnd::Closed);
        assert_eq!(haggling_session.join().await, SessionEnd::Closed);
        let (late, session) = connect(&inner, &server, 4096);
        assert_eq!(session.join().await, SessionEnd::Refused);
        assert_eq!(late.receive_exactly(1).await, None);
    });
}

#[test]
fn stop_cuts_a_client_that_does_not_take_its_replies() {
    with_client(15, 4 << 20, |client, session, array, server| async move {
        for cookie in 0..4 {
            assert!(client.send_all(&request(0, READ, cookie, 0, 1 << 20)).await);
        }
        shard::sleep(SECOND).await;
        assert_eq!(array.seen.borrow().running, 0);
        let before = shard::now();
        server.stop(5 * SECOND).await;
        assert_eq!(shard::now(), before + 5 * SECOND);
        assert_eq!(session.join().await, SessionEnd::Closed);
    });
}

#[test]
fn stop_waits_for_requests_even_after_their_client_is_cut() {
    with_client(16, 4 << 20, |client, session, array, server| async move {
        array.close();
        assert!(write(&client, 1, 0, &[1; 4096]).await);
        while array.seen.borrow().running == 0 {
            shard::yield_now().await;
        }
        let opener = array.clone();
        shard::spawn(async move {
            shard::sleep(60 * SECOND).await;
            opener.open();
        });
        server.stop(SECOND).await;
        assert_eq!(array.seen.borrow().running, 0);
        assert_eq!(array.seen.borrow().data[0], 1);
        session.join().await;
    });
}

#[test]
fn a_client_that_leaves_without_taking_its_replies_is_given_up() {
    with_client(17, 4 << 20, |client, session, _, _| async move {
        for cookie in 0..4 {
            assert!(client.send_all(&request(0, READ, cookie, 0, 1 << 20)).await);
        }
        client.finish_sending();
        let before = shard::now();
        assert_eq!(session.join().await, SessionEnd::Closed);
        assert!(shard::now() <= before + 10 * SECOND);
    });
}

#[test]
fn a_client_that_never_chooses_is_cut_off() {
    let random = Random::new(18);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let server = Array::new(&inner, 1 << 20, 0).server();
        let (client, session) = connect(&inner, &server, 4096);
        client.receive_exactly(18).await.unwrap();
        assert_eq!(session.join().await, SessionEnd::HandshakeTimeout);
        assert_eq!(client.receive_exactly(1).await, None);
    });
}

#[test]
fn of_too_many_connections_the_oldest_that_has_chosen_nothing_goes() {
    let random = Random::new(19);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let server = Array::new(&inner, 1 << 20, 0).server();
        let (settled, settled_session) = connect(&inner, &server, 4096);
        choose(&settled, true).await;
        let (oldest, oldest_session) = connect(&inner, &server, 64);
        shard::sleep(1).await;
        let mut idle: Vec<_> = (0..254).map(|_| connect(&inner, &server, 64)).collect();
        shard::sleep(1).await;
        assert_eq!(server.connections(), 256);
        let (client, session) = connect(&inner, &server, 4096);
        choose(&client, true).await;
        oldest_session.join().await;
        assert_eq!(oldest.receive_exactly(64).await, None, "it is closed");
        for client in [&settled, &client] {
            assert!(client.send_all(&request(0, READ, 1, 0, 512)).await);
            assert_eq!(reply(client, |_| 512).await.unwrap().data.len(), 512);
        }
        assert_eq!(server.connections(), 256);
        idle.extend([(settled, settled_session), (client, session)]);
        for (client, session) in idle {
            client.shutdown();
            session.join().await;
        }
        assert_eq!(server.connections(), 0);
    });
}

#[test]
fn a_read_only_array_refuses_writes_of_its_clients() {
    let random = Random::new(20);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let array = Array::new(&inner, 1 << 20, 0).read_only();
        let server = array.server();
        let (client, session) = connect(&inner, &server, 1 << 20);
        choose(&client, false).await;
        assert!(write(&client, 1, 0, &[1; 4096]).await);
        assert_eq!(reply(&client, nothing).await.unwrap().error, 1);
        assert!(client.send_all(&request(0, READ, 2, 0, 4096)).await);
        assert_eq!(reply(&client, |_| 4096).await.unwrap().data, vec![0; 4096]);
        client.shutdown();
        session.join().await;
    });
}

#[test]
fn a_server_needs_names_that_differ_and_arrays_that_fit() {
    let random = Random::new(21);
    let array = Array::new(&random, 1 << 20, 0);
    let export = |name: &str, service: &Array| pinstripe_export::nbd::Export {
        name: name.into(),
        description: String::new(),
        service: service.clone(),
    };
    let twice = Server::new(vec![export("a", &array), export("a", &array)]);
    assert_eq!(twice.err(), Some(ServerError::Duplicate("a".into())));
    let odd = Server::new(vec![export("odd", &Array::new(&random, 1000, 0))]);
    assert!(matches!(odd.err(), Some(ServerError::Info { .. })));
}
