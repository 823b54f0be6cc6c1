//! Connections that one server leaves and another one goes on with.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinstripe_export::nbd::{Left, Negotiated, Server, SessionEnd};
use pinstripe_runtime::{Signal, Stream, shard};
use proptest::prelude::*;

use crate::client::{choose, greet, reply, request};
use crate::session::Client;
use crate::world::{Array, Pipe, Random, pipe, run};

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const ZEROES: u16 = 6;
/// Bytes of a request's header.
const HEADER: usize = 28;
/// Bytes that a server receives at a time.
const FILL: usize = 64 << 10;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// The server of an array, which changes.
struct Post {
    array: Array,
    server: RefCell<Server<Array>>,
    changes: Cell<u64>,
    changed: Signal,
}

impl Post {
    fn new(array: &Array) -> Rc<Self> {
        let server = array.server().into();
        Rc::new(Self { array: array.clone(), server, changes: Cell::new(0), changed: Signal::default() })
    }

    /// The server leaves its connections, of which another one finds nothing under way.
    async fn change(&self) {
        let old = self.server.borrow().clone();
        old.leave(1000 * SECOND, 2000 * SECOND).await;
        assert_eq!((old.connections(), self.array.seen.borrow().running), (0, 0));
        self.server.replace(self.array.server());
        self.changes.set(self.changes.get() + 1);
        self.changed.notify();
    }

    /// Serves a connection by whatever server is there.
    async fn serve(&self, stream: Rc<Pipe>) -> SessionEnd {
        let mut left: Option<Left> = None;
        loop {
            let (server, changes) = (self.server.borrow().clone(), self.changes.get());
            let end = match left {
                None => server.serve(Rc::clone(&stream)).await,
                Some(left) => server.resume(Rc::clone(&stream), &left, || ()).await,
            };
            let SessionEnd::Left(next) = end else { return end };
            left = Some(next);
            self.changed.wait_until(|| self.changes.get() > changes).await;
        }
    }
}

fn conversation_with_changes(seed: u64) -> u64 {
    let random = Random::new(seed);
    let inner = Rc::clone(&random);
    let changes = Rc::new(Cell::new(0));
    let counted = Rc::clone(&changes);
    run(&random, move || async move {
        let random = inner;
        let (clients, part) = (1 + random.below(3), 1 << 20);
        let array = Array::new(&random, clients * part, [0, 1000, 100_000][random.below(3)]);
        let post = Post::new(&array);
        let model = Rc::new(RefCell::new(vec![0; clients * part]));
        let left = Rc::new(Cell::new(clients));
        let mut joins = Vec::new();
        for number in 0..clients {
            let (client, there) = pipe(&random, [100, 5000, 200_000][random.below(3)]);
            let server = Rc::clone(&post);
            let session = shard::spawn_joined(async move { server.serve(there).await });
            let structured = random.chance(2);
            let (talker, left) = (Client::new(&random, Rc::clone(&client), &model), Rc::clone(&left));
            let talk = shard::spawn_joined(async move {
                greet(&client).await;
                talker.talk(number * part, part, 40, structured).await;
                left.set(left.get() - 1);
            });
            joins.push((talk, session));
        }
        while left.get() > 0 {
            for _ in 0..random.below(20) {
                shard::yield_now().await;
            }
            shard::sleep([1, 1000, 20_000][random.below(3)]).await;
            post.change().await;
            assert!(post.changes.get() < 20_000, "clients don't come to their end");
        }
        for (talk, session) in joins {
            talk.join().await;
            assert_eq!(session.join().await, SessionEnd::Disconnected);
        }
        assert!(array.seen.borrow().data == *model.borrow(), "the array differs from the model");
        counted.set(post.changes.get());
    });
    changes.get()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn clients_see_nothing_of_a_change_of_servers(seed in any::<u64>()) {
        conversation_with_changes(seed);
    }
}

#[test]
fn servers_change_in_the_midst_of_conversations() {
    let changes: u64 = (0..40).map(conversation_with_changes).sum();
    assert!(changes > 100, "{changes}");
}

/// A world with a client that has chosen, and its session.
fn with_client<F: Future<Output = ()> + 'static>(
    seed: u64,
    body: impl FnOnce(Rc<Pipe>, shard::JoinHandle<SessionEnd>, Array, Server<Array>) -> F + 'static,
) {
    let random = Random::new(seed);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let array = Array::new(&inner, 4 << 20, 0);
        let server = array.server();
        let (client, there) = pipe(&inner, 256 << 10);
        let one = server.clone();
        let session = shard::spawn_joined(async move { one.serve(there).await });
        choose(&client, true).await;
        body(client, session, array, server).await;
    });
}

#[test]
fn an_idle_connection_is_left_at_once_and_with_what_has_come_of_a_header() {
    for begun in [0, 1, 27] {
        with_client(begun as u64, move |client, session, _, server| async move {
            let header = request(0, READ, 7, 0, 512);
            if begun > 0 {
                assert!(client.send_all(&header[..begun]).await);
                shard::sleep(SECOND).await;
            }
            let before = shard::now();
            server.leave(1000 * SECOND, 2000 * SECOND).await;
            assert_eq!(shard::now(), before, "nothing had to be waited for");
            let SessionEnd::Left(left) = session.join().await else { panic!("it was ended") };
            assert_eq!(left.received, header[..begun]);
            assert!(left.negotiated.structured);
        });
    }
}

#[test]
fn requests_that_came_and_found_no_room_are_carried_out_by_the_next_server() {
    with_client(6, |client, session, array, server| async move {
        array.close();
        let requests = 140;
        let bytes: Vec<u8> = (0..requests).flat_map(|cookie| request(0, READ, cookie, 0, 512)).collect();
        assert!(client.send_all(&bytes).await);
        shard::sleep(SECOND).await;
        let leaving = shard::spawn_joined(async move { server.leave(1000 * SECOND, 2000 * SECOND).await });
        shard::sleep(SECOND).await;
        array.open();
        leaving.join().await;
        let SessionEnd::Left(left) = session.join().await else { panic!("it was ended") };
        let taken = array.seen.borrow().requests;
        assert!((128..140).contains(&taken), "{taken}");
        assert_eq!(left.received, bytes[28 * taken..]);
        let mut cookies = Vec::new();
        for _ in 0..taken {
            cookies.push(reply(&client, |_| 512).await.unwrap().cookie);
        }
        let (client, there) = pipe(&Random::new(7), 256 << 10);
        let next = array.server();
        shard::spawn(async move {
            next.resume(there, &left, || ()).await;
        });
        for _ in taken..140 {
            cookies.push(reply(&client, |_| 512).await.unwrap().cookie);
        }
        cookies.sort_unstable();
        assert!(cookies.into_iter().eq(0..requests));
        client.shutdown();
    });
}

#[test]
fn what_was_left_is_not_begun_when_its_client_has_hung_up_meanwhile() {
    let random = Random::new(8);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let array = Array::new(&inner, 4 << 20, 0);
        let (client, there) = pipe(&inner, 256 << 10);
        let received = [request(0, WRITE, 1, 4096, 512), vec![1; 512]].concat();
        let negotiated = Negotiated { export: 0, structured: true, allocation: false };
        client.shutdown();
        let end = array.server().resume(there, &Left { negotiated, received }, || ()).await;
        assert_eq!((end, array.seen.borrow().requests), (SessionEnd::Closed, 0));
    });
}

#[test]
fn what_comes_while_a_receive_is_interrupted_is_not_lost() {
    for seed in 0..60 {
        let random = Random::new(seed);
        let inner = Rc::clone(&random);
        run(&random, move || async move {
            let post = Post::new(&Array::new(&inner, 4 << 20, 0));
            let (client, there) = pipe(&inner, 256 << 10);
            let server = Rc::clone(&post);
            shard::spawn(async move {
                server.serve(there).await;
            });
            choose(&client, true).await;
            let changing = shard::spawn_joined(async move { post.change().await });
            for _ in 0..inner.below(6) {
                shard::yield_now().await;
            }
            assert!(client.send_all(&request(0, READ, 7, 0, 512)).await);
            assert_eq!(reply(&client, |_| 512).await.unwrap().cookie, 7);
            changing.join().await;
            client.shutdown();
        });
    }
}

#[test]
fn a_write_that_has_begun_to_come_is_finished_and_one_that_does_not_come_is_cut_off() {
    for comes in [true, false] {
        with_client(3, move |client, session, array, server| async move {
            let bytes = [request(0, WRITE, 1, 0, 256 << 10), vec![7; 256 << 10]].concat();
            let half = bytes.len() / 2;
            assert!(client.send_all(&bytes[..half]).await);
            shard::sleep(SECOND).await;
            let leaving = shard::spawn_joined(async move { server.leave(2 * SECOND, 2000 * SECOND).await });
            shard::sleep(SECOND).await;
            let before = shard::now();
            if comes {
                assert!(client.send_all(&bytes[half..]).await);
                assert_eq!(reply(&client, |_| 0).await.map(|reply| reply.error), Some(0));
            }
            leaving.join().await;
            let end = session.join().await;
            assert_eq!(matches!(end, SessionEnd::Left(_)), comes, "{end:?}");
            assert_eq!(array.seen.borrow().data[..256 << 10].iter().all(|&byte| byte == 7), comes);
            assert!(shard::now() - before <= SECOND + MILLISECOND);
        });
    }
}

#[test]
fn a_request_that_takes_long_is_waited_for_but_not_for_ever() {
    for (takes, is_left) in [(3, true), (30, true), (70, false)] {
        with_client(8, move |client, session, array, server| async move {
            array.close();
            assert!(client.send_all(&request(0, READ, 1, 0, 512)).await);
            shard::sleep(SECOND).await;
            let begun = shard::now();
            let leaving = shard::spawn_joined(async move { server.leave(SECOND, 60 * SECOND).await });
            shard::sleep(takes * SECOND).await;
            array.open();
            leaving.join().await;
            let end = session.join().await;
            assert_eq!(matches!(end, SessionEnd::Left(_)), is_left, "{takes} {end:?}");
            assert_eq!(reply(&client, |_| 512).await.is_some(), is_left);
            assert!(shard::now() - begun <= takes * SECOND + MILLISECOND);
            client.shutdown();
        });
    }
}

#[test]
fn a_request_that_waits_for_room_is_left_to_the_next_server() {
    const UNDER_WAY: u64 = 128;
    with_client(10, |client, session, array, server| async move {
        array.close();
        let requests: Vec<_> = (0..UNDER_WAY + 2).map(|cookie| request(0, READ, cookie, 0, 512)).collect();
        assert!(client.send_all(&requests.concat()).await);
        shard::sleep(SECOND).await;
        let leaving = shard::spawn_joined(async move { server.leave(SECOND, 60 * SECOND).await });
        shard::sleep(3 * SECOND).await;
        array.open();
        leaving.join().await;
        let SessionEnd::Left(left) = session.join().await else { panic!("it was ended") };
        let waiting = requests[128..].concat();
        // The rest is still in the stream.
        assert!(left.received.len() >= requests[128].len() && waiting.starts_with(&left.received));
        for _ in 0..UNDER_WAY {
            assert!(reply(&client, |_| 512).await.is_some_and(|reply| reply.cookie < UNDER_WAY));
        }
        client.shutdown();
    });
}

#[test]
fn the_data_of_a_write_that_is_refused_comes_whole_before_the_connection_is_left() {
    with_client(9, |client, session, _, server| async move {
        // Past the end.
        let bytes = [request(0, WRITE, 1, 64 << 20, 4096), vec![7; 4096]].concat();
        assert!(client.send_all(&bytes[..100]).await);
        shard::sleep(SECOND).await;
        let leaving = shard::spawn_joined(async move { server.leave(2 * SECOND, 60 * SECOND).await });
        shard::sleep(SECOND).await;
        assert!(client.send_all(&bytes[100..]).await);
        assert!(reply(&client, |_| 0).await.is_some_and(|reply| reply.error != 0));
        leaving.join().await;
        let SessionEnd::Left(left) = session.join().await else { panic!("it was ended") };
        assert!(left.received.is_empty());
        client.shutdown();
    });
}

#[test]
fn a_client_that_does_not_take_its_replies_is_cut_off_and_not_left() {
    with_client(4, |client, session, _, server| async move {
        for cookie in 0..4 {
            assert!(client.send_all(&request(0, READ, cookie, 0, 1 << 20)).await);
        }
        shard::sleep(SECOND).await;
        server.leave(2 * SECOND, 2000 * SECOND).await;
        assert_eq!(session.join().await, SessionEnd::Closed);
        assert_eq!(client.receive_exactly(8 << 20).await, None);
    });
}

/// As by a slow line: 10 MiB a second in answers, and 1 MiB in data of a write.
#[test]
fn a_client_whose_data_flows_is_not_cut_off() {
    const LENGTH: u32 = 2 << 20;
    const PART: usize = 512 << 10;
    with_client(11, |client, session, _, server| async move {
        for cookie in 0..15 {
            assert!(client.send_all(&request(0, READ, cookie, 0, LENGTH)).await);
        }
        shard::sleep(SECOND).await;
        let begun = shard::now();
        let leaving = shard::spawn_joined(async move { server.leave(SECOND, 60 * SECOND).await });
        for _ in 0..15 {
            shard::sleep(200 * MILLISECOND).await;
            let reply = reply(&client, |_| LENGTH as usize).await.expect("it was cut off");
            assert_eq!((reply.error, reply.data.len()), (0, LENGTH as usize));
        }
        leaving.join().await;
        assert!(shard::now() - begun > 2 * SECOND);
        assert!(matches!(session.join().await, SessionEnd::Left(_)));
        client.shutdown();
    });
    with_client(12, |client, session, array, server| async move {
        let bytes = [request(0, WRITE, 1, 0, 4 << 20), vec![7; 4 << 20]].concat();
        let (first, rest) = bytes.split_at(PART);
        assert!(client.send_all(first).await);
        let leaving = shard::spawn_joined(async move { server.leave(SECOND, 60 * SECOND).await });
        for part in rest.chunks(PART) {
            shard::sleep(500 * MILLISECOND).await;
            assert!(client.send_all(part).await, "it was cut off");
        }
        assert_eq!(reply(&client, |_| 0).await.map(|reply| reply.error), Some(0));
        leaving.join().await;
        assert!(matches!(session.join().await, SessionEnd::Left(_)));
        assert!(array.seen.borrow().data.iter().all(|&byte| byte == 7));
        client.shutdown();
    });
}

#[test]
fn a_connection_that_has_not_chosen_yet_may_still_do_so() {
    let random = Random::new(5);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let array = Array::new(&inner, 1 << 20, 0);
        let server = array.server();
        let (client, there) = pipe(&inner, 4096);
        let one = server.clone();
        let session = shard::spawn_joined(async move { one.serve(there).await });
        shard::spawn(async move { server.leave(5 * SECOND, 2000 * SECOND).await });
        shard::sleep(SECOND).await;
        choose(&client, false).await;
        let SessionEnd::Left(left) = session.join().await else { panic!("it was ended") };
        assert!(!left.negotiated.structured && left.received.is_empty());
        let (late, there) = pipe(&inner, 4096);
        let next = array.server();
        shard::spawn(async move {
            next.resume(there, &left, || ()).await;
        });
        assert!(late.send_all(&request(0, READ, 9, 512, 512)).await);
        assert_eq!(reply(&late, |_| 512).await.map(|reply| reply.data), Some(vec![0; 512]));
        late.shutdown();
    });
}

/// Requests in a row that come to the same in any order: what is changed is changed once, and not read.
struct Row {
    bytes: Vec<u8>,
    /// Where they begin, each by its cookie.
    begins: Vec<usize>,
    /// What their replies bring.
    replies: Vec<Vec<u8>>,
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Row {
    /// At least so many bytes of requests.
    fn new(random: &Random, least: usize) -> Self {
        let changed = 2 * least;
        let mut before = vec![0; changed + (64 << 10)];
        before.chunks_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
        let after = before.clone();
        let mut row = Self { bytes: Vec::new(), begins: Vec::new(), replies: Vec::new(), before, after };
        let mut next = 0;
        while row.bytes.len() < least {
            let command = [READ, WRITE, WRITE, WRITE, FLUSH, ZEROES][random.below(6)];
            let length = 512 * (1 + random.below([1, 8, 40][random.below(3)]));
            let (start, length) = match command {
                READ => (changed + 512 * random.below(64), length),
                FLUSH => (0, 0),
                _ => (next, length),
            };
            let range = start..start + length;
            let payload: Vec<u8> = match command {
                WRITE => (0..length / 8).flat_map(|_| random.next().to_le_bytes()).collect(),
                _ => Vec::new(),
            };
            let reply = if command == READ { row.before[range.clone()].to_vec() } else { Vec::new() };
            match command {
                WRITE => row.after[range.clone()].copy_from_slice(&payload),
                ZEROES => row.after[range.clone()].fill(0),
                _ => {}
            }
            if matches!(command, WRITE | ZEROES) {
                next = range.end;
            }
            let (cookie, length) = (row.begins.len() as u64, u32::try_from(length).unwrap());
            row.begins.push(row.bytes.len());
            row.bytes.extend([request(0, command, cookie, start as u64, length), payload].concat());
            row.replies.push(reply);
        }
        row
    }

    fn array(&self, random: &Rc<Random>, delay: usize) -> Array {
        let array = Array::new(random, self.before.len(), delay);
        array.seen.borrow_mut().data.copy_from_slice(&self.before);
        array
    }
}

/// Takes the replies of a row: one to each request, with what it is to bring.
async fn take_replies(client: Rc<Pipe>, expected: Vec<Vec<u8>>) {
    let number = |cookie| usize::try_from(cookie).unwrap();
    let mut answered = vec![false; expected.len()];
    for _ in 0..expected.len() {
        let reply = reply(&client, |cookie| expected[number(cookie)].len()).await;
        let reply = reply.expect("the connection has ended before all was answered");
        assert_eq!(reply.error, 0, "request {}", reply.cookie);
        assert!(reply.data == expected[number(reply.cookie)], "request {}", reply.cookie);
        assert!(!std::mem::replace(&mut answered[number(reply.cookie)], true), "answered twice");
    }
}

/// Servers change when `begun` bytes of a header have come, while more than one fill follows.
fn cut_within_headers(seed: u64, begun: usize) {
    let random = Random::new(seed);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let random = inner;
        let row = Row::new(&random, 4 * FILL);
        let array = row.array(&random, [0, 1000][random.below(2)]);
        let post = Post::new(&array);
        let (client, there) = pipe(&random, 4 * FILL);
        let server = Rc::clone(&post);
        let session = shard::spawn_joined(async move { server.serve(there).await });
        choose(&client, random.chance(2)).await;
        let replies = shard::spawn_joined(take_replies(Rc::clone(&client), row.replies.clone()));
        let places = row.begins.len() / 2;
        let mut cuts: Vec<usize> = (0..3).map(|_| row.begins[1 + random.below(places)] + begun).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut sent = 0;
        let mut changing: Option<shard::JoinHandle<()>> = None;
        for cut in cuts.into_iter().chain([row.bytes.len()]) {
            assert!(client.send_all(&row.bytes[sent..cut]).await);
            sent = cut;
            if let Some(changing) = changing.take() {
                changing.join().await;
            }
            // All that has come is taken.
            shard::sleep(SECOND).await;
            if cut < row.bytes.len() {
                let post = Rc::clone(&post);
                changing = Some(shard::spawn_joined(async move { post.change().await }));
                for _ in 0..random.below(6) {
                    shard::yield_now().await;
                }
            }
        }
        replies.join().await;
        assert!(client.send_all(&request(0, DISC, 0, 0, 0)).await);
        assert_eq!(session.join().await, SessionEnd::Disconnected);
        assert!(array.seen.borrow().data == row.after, "foreign bytes were written");
    });
}

#[test]
fn no_byte_is_lost_where_servers_change_within_a_header_and_much_comes_behind_it() {
    for begun in 0..HEADER {
        for seed in 0..6 {
            cut_within_headers(seed * 1000 + begun as u64, begun);
        }
    }
}

#[test]
fn what_was_left_is_taken_whole_though_it_is_more_than_one_fill() {
    for more in [0, 1, HEADER - 1, HEADER, FILL] {
        let random = Random::new(more as u64);
        let inner = Rc::clone(&random);
        run(&random, move || async move {
            let row = Row::new(&inner, 4 * FILL);
            let array = row.array(&inner, 0);
            let (client, there) = pipe(&inner, 4 * FILL);
            let (server, (received, rest)) = (array.server(), row.bytes.split_at(FILL + more));
            let negotiated = Negotiated { export: 0, structured: true, allocation: false };
            let left = Left { negotiated, received: received.to_vec() };
            let session = shard::spawn_joined(async move { server.resume(there, &left, || ()).await });
            let replies = shard::spawn_joined(take_replies(Rc::clone(&client), row.replies.clone()));
            assert!(client.send_all(rest).await);
            replies.join().await;
            assert!(client.send_all(&request(0, DISC, 0, 0, 0)).await);
            assert_eq!(session.join().await, SessionEnd::Disconnected);
            assert!(array.seen.borrow().data == row.after, "foreign bytes were written");
        });
    }
}
