//! `pinstripe record`: what clients of a served array ask for, as a trace.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    control::Line,
    nbd::{Client, header, pattern},
    world::{PATIENCE, Ran, Server, World},
};

/// Requests that the server keeps for a reader that is behind.
const ROOM: u64 = 1 << 16;

/// A recording that has begun.
struct Recording {
    child: Child,
    error: BufReader<std::process::ChildStderr>,
}

impl Recording {
    fn begin(world: &World, options: &[&str]) -> Self {
        let mut command = world.command(&[&["record", "data"], options].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut error = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        error.read_line(&mut line).unwrap();
        assert!(line.contains("recording what is asked of data"), "{line}");
        Self { child, error }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    fn ended(mut self) -> Ran {
        let mut error = String::new();
        self.error.read_to_string(&mut error).unwrap();
        Ran { error, ..Ran::of(&self.child.wait_with_output().unwrap()) }
    }

    fn end(self) -> Ran {
        self.signal("INT");
        self.ended()
    }
}

impl Client {
    /// Sends a request without data, with NBD's flags of the command.
    fn ask(&mut self, (kind, flags): (u16, u16), offset: u64, length: usize) {
        let mut header = header(kind, offset, length);
        header[4..6].copy_from_slice(&flags.to_be_bytes());
        self.say(&header);
        assert_eq!(self.answer(), 0);
    }
}

/// The lines of a trace without their times, which must be in order.
fn lines(world: &World, name: &str) -> Vec<String> {
    let (text, mut last) = (fs::read_to_string(world.path(name)).unwrap(), 0);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("fio version 3 iolog"));
    let untimed = |line: &str| {
        let (time, rest) = line.split_once(' ').unwrap();
        let time = time.parse::<u64>().unwrap();
        assert!(time >= last, "{text}");
        last = time;
        rest.to_owned()
    };
    lines.map(untimed).collect()
}

#[test]
fn a_recording_has_exactly_what_was_asked_for_and_is_replayed() {
    let world = World::new();
    let members = world.raid5(4);
    let server = world.serve(&["--shards", "2"], &members);
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(1, 4096)), 0);
    let recording = Recording::begin(&world, &["trace"]);
    let begun = Instant::now();
    let mut expected = vec!["data add".to_owned(), "data open".to_owned()];
    for number in 0..300u64 {
        let (offset, length) = (number * 1536, 512 + usize::try_from(number % 9).unwrap() * 512);
        assert_eq!(client.write(offset, &pattern(number, length)), 0);
        expected.push(format!("data write {offset} {length}"));
        if number % 3 == 0 {
            client.read(offset, 512);
            expected.push(format!("data read {offset} 512"));
        }
    }
    thread::sleep(Duration::from_millis(300));
    client.flush();
    expected.push("data sync 0 0".to_owned());
    client.say(&header(1, 8192, 512));
    client.say(&[7; 512]);
    assert_eq!(client.answer(), 0);
    expected.push("data write 8192 512".to_owned());
    client.ask((4, 0), 1 << 20, 1 << 20);
    expected.push(format!("data trim {} {}", 1 << 20, 1 << 20));
    client.ask((6, 1), 0, 4096);
    let took = begun.elapsed();
    let said = recording.end().ok().out;
    for words in ["100 reads (50 KiB), 301 writes (", "1 flushes, 1 discards", "1 writes of zeroes"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("lost") && !said.contains("FUA"), "{said}");
    expected.push("data close".to_owned());
    assert_eq!(lines(&world, "trace"), expected);
    assert_eq!(client.write(0, &pattern(2, 4096)), 0);

    for pace in [&[][..], &["--trace-time"]] {
        let words = ["bench", "--trace", "trace", "--device", "mem:24M", "--chunk", "16K", "--json"];
        let replayed = world.run(&[&words, pace].concat()).ok().json();
        let counted = ["reads", "writes", "flushes", "skipped", "folded"].map(|name| replayed[name].as_u64());
        assert_eq!(counted, [100, 301, 1, 1, 0].map(Some), "{replayed}");
        assert_eq!((&replayed["format"], &replayed["read_bytes"]), (&"iolog3".into(), &51200.into()));
        if !pace.is_empty() {
            let seconds = replayed["seconds"].as_f64().unwrap();
            let most = (took + PATIENCE).as_secs_f64();
            assert!((0.3..most).contains(&seconds), "{seconds} s for {took:?}");
        }
    }
}

#[test]
fn a_recording_of_seconds_says_in_json_what_an_iolog_can_not() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&[], &members);
    let mut client = Client::connect(&server.nbd());
    let mut recording = Recording::begin(&world, &["trace", "--seconds", "2", "--json"]);
    let mut durable = header(1, 0, 512);
    durable[5] = 1;
    // Until its end, so that one falls into its time, however late this test gets on.
    while recording.child.try_wait().unwrap().is_none() {
        client.say(&[&durable[..], &[3; 512]].concat());
        assert_eq!(client.answer(), 0);
        thread::sleep(Duration::from_millis(20));
    }
    let told = recording.ended().ok().json();
    let writes = told["writes"].as_u64().unwrap();
    let counted = ["reads", "written_bytes", "fua_left_out", "write_zeroes_left_out", "lost"];
    let expected = [0, 512 * writes, writes, 0, 0].map(Some);
    assert!(writes > 0 && counted.map(|name| told[name].as_u64()) == expected, "{told}");
    assert!((2.0..60.0).contains(&told["seconds"].as_f64().unwrap()), "{told}");
    assert_eq!((&told["array"], &told["file"]), (&"data".into(), &"trace".into()));

    // What is there isn't overwritten, and what can't begin leaves nothing.
    let before = fs::read(world.path("trace")).unwrap();
    world.run(&["record", "data", "trace"]).refused(1, &["trace", "exists"]);
    assert_eq!(fs::read(world.path("trace")).unwrap(), before);
    world.run(&["record", "other", "new"]).refused(1, &["other", "not being served"]);
    assert!(!world.path("new").exists());
}

/// Whether users are told that what clients ask for is written down.
fn is_told(world: &World) -> bool {
    let recorded = || world.run(&["detail", "data", "--json"]).ok().json()["recorded"] == true;
    loop {
        let before = recorded();
        let said = world.run(&["detail", "data"]).ok().out;
        // A recording may begin between the two.
        if recorded() == before {
            assert_eq!(said.contains("what clients ask for is being recorded"), before, "{said}");
            return before;
        }
    }
}

#[test]
fn a_recording_goes_on_with_the_program_that_takes_the_servers_place() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&[], &members);
    let mut client = Client::connect(&server.nbd());
    assert!(!is_told(&world));
    let recording = Recording::begin(&world, &["trace", "--json"]);
    assert!(is_told(&world));
    let (begun, mut after) = (Instant::now(), 0);
    assert_eq!(client.write(0, &[1; 512]), 0);
    for block in 1..3 {
        world.run(&["upgrade", "data"]).ok();
        let waiting = Instant::now();
        while !is_told(&world) {
            assert!(waiting.elapsed() < PATIENCE, "it does not go on");
        }
        after = begun.elapsed().as_micros();
        assert_eq!(client.write(block * 4096, &[2; 512]), 0);
    }
    let told = recording.end().ok().json();
    assert_eq!((&told["interruptions"], &told["writes"]), (&2.into(), &3.into()), "{told}");
    let text = fs::read_to_string(world.path("trace")).unwrap();
    let last = text.lines().find(|line| line.contains("write 8192")).unwrap();
    let micros: u128 = last.split_once(' ').unwrap().0.parse().unwrap();
    assert!(micros >= after, "its time counts from when the whole began: {text}, {after}");
    let writes = [0, 4096, 8192].map(|offset| format!("data write {offset} 512"));
    assert_eq!(lines(&world, "trace")[2..5], writes, "nothing is lost");
    assert!(!is_told(&world));
}

#[test]
fn a_server_that_ends_ends_the_recording_and_the_file_is_whole() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&[], &members);
    let recording = Recording::begin(&world, &["trace"]);
    assert_eq!(Client::connect(&server.nbd()).write(4096, &[1; 512]), 0);
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
    let ran = recording.ended();
    assert!(ran.out.contains("1 writes"), "{}", ran.out);
    ran.refused(1, &[]);
    assert_eq!(lines(&world, "trace"), ["data add", "data open", "data write 4096 512", "data close"]);
}

#[test]
fn a_reader_that_hangs_holds_up_no_request_and_its_recording_is_over_after_a_while() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&[], &members);
    let mut client = Client::connect(&server.nbd());
    let first = Recording::begin(&world, &["first"]);
    let begun = Instant::now();
    first.signal("STOP");
    world.run(&["record", "data", "second"]).refused(1, &["being recorded already", "10 s"]);
    assert!(!world.path("second").exists());
    let second = loop {
        assert_eq!(client.write(0, &[1; 512]), 0);
        let ran = world.run(&["record", "data", "second", "--seconds", "1", "--json"]);
        if ran.status == 0 {
            break ran.json();
        }
        assert!(begun.elapsed() < PATIENCE, "{}", ran.error);
        thread::sleep(Duration::from_millis(200));
    };
    assert!(begun.elapsed() > Duration::from_secs(9), "too early");
    assert_eq!(second["writes"], 0, "what the first one left isn't the second one's: {second}");
    first.signal("CONT");
    first.ended().refused(1, &["there is no recording 1"]);
    assert_eq!(lines(&world, "first").last().unwrap(), "data close");
}

fn record(line: &mut Line, parameters: &Value) -> Value {
    line.call(&json!({"jsonrpc": "2.0", "id": 1, "method": "record", "params": parameters}).to_string())
}

/// Reads until it is told to end.
fn read_on(server: &Server, asked: &AtomicU64, is_over: &AtomicBool) {
    const AT_ONCE: usize = 100;
    let mut client = Client::connect(&server.nbd());
    while !is_over.load(Ordering::SeqCst) {
        client.say(&header(0, 0, 512).repeat(AT_ONCE));
        for _ in 0..AT_ONCE {
            client.answer_of_read(512);
        }
        asked.fetch_add(AT_ONCE as u64, Ordering::SeqCst);
    }
}

#[test]
fn what_a_slow_reader_has_no_room_for_is_counted() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&[], &members);
    let mut line = Line::connect(&server);
    let error = |answer: &Value| answer["error"]["code"].as_i64();
    assert_eq!(error(&record(&mut line, &json!({"action": "next"}))), Some(-32602));
    assert_eq!(error(&record(&mut line, &json!({"action": "start", "recording": 1}))), Some(-32602));
    assert_eq!(error(&record(&mut line, &json!({"action": "next", "recording": 1}))), Some(-32002));
    let number = record(&mut line, &json!({"action": "start"}))["result"]["recording"].as_u64().unwrap();
    assert_eq!(error(&record(&mut line, &json!({"action": "start"}))), Some(-32001));
    let (asked, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (mut fetched, mut lost) = (0, 0);
    let mut fetch = |action| {
        let answer = record(&mut line, &json!({"action": action, "recording": number}));
        let result = &answer["result"];
        let requests = result["requests"].as_array().unwrap_or_else(|| panic!("{answer}"));
        let expected = [json!("read"), json!(0), json!(512), json!(false)];
        assert!(requests.iter().all(|request| request.as_array().unwrap()[1..] == expected));
        fetched += requests.len() as u64;
        lost += result["lost"].as_u64().unwrap();
        (lost, result["more"] == true)
    };
    thread::scope(|scope| {
        scope.spawn(|| read_on(&server, &asked, &is_over));
        let begun = Instant::now();
        while fetch("next").0 == 0 && begun.elapsed() < Duration::from_mins(10) {
            thread::sleep(Duration::from_secs(5));
        }
        is_over.store(true, Ordering::SeqCst);
    });
    while fetch("stop").1 {}
    assert!(lost > 0 && fetched >= ROOM, "{lost} lost of {asked:?}");
    assert_eq!(fetched + lost, asked.into_inner(), "each request is fetched or counted");
    assert_eq!(error(&record(&mut line, &json!({"action": "stop", "recording": number}))), Some(-32002));
}
