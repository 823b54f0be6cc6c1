//! The control socket, spoken to by hand.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    nbd::Client,
    world::{MIB, PATIENCE, Server, World, wait_until},
};

/// A connection.
pub struct Line(BufReader<UnixStream>);

impl Line {
    pub fn connect(server: &Server) -> Self {
        let stream = UnixStream::connect(server.ready["control"].as_str().unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, text: &[u8]) {
        self.0.get_mut().write_all(text).unwrap();
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    pub fn call(&mut self, text: &str) -> Value {
        self.send(text.as_bytes());
        self.send(b"\n");
        self.receive()
    }
}

#[test]
fn the_control_socket_speaks_json_rpc_and_survives_nonsense() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--shards", "1"], &members);
    let mut line = Line::connect(&server);
    let answer = line.call(r#"{"jsonrpc":"2.0","id":"a","method":"detail"}"#);
    assert_eq!((&answer["id"], &answer["jsonrpc"]), (&json!("a"), &json!("2.0")));
    assert_eq!(answer["result"]["level"], "raid5");
    assert_eq!(line.call("nonsense")["error"]["code"], -32700);
    assert_eq!(line.call(r#"{"jsonrpc":"2.0","id":2,"method":"format"}"#)["error"]["code"], -32601);
    assert_eq!(line.call(r#"{"jsonrpc":"2.0","id":2,"method":"fail"}"#)["error"]["code"], -32602);
    let refused = line.call(r#"{"jsonrpc":"2.0","id":3,"method":"fail","params":{"slot":17}}"#);
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(3), &json!(-32002)));
    assert!(refused["error"]["message"].as_str().unwrap().contains("slot 17"));
    // Two at once, and one in pieces.
    line.send(b"{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"detail\"}\n\n{\"jsonrpc\":\"2.0\",\"id\":5,");
    assert_eq!(line.receive()["id"], 4);
    line.send(b"\"method\":\"detail\"}\n");
    assert_eq!(line.receive()["id"], 5);
}

/// One call each; what came back in place of a result.
#[test]
fn a_refusal_says_by_its_code_what_it_is() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--shards", "1"], &members);
    let mut line = Line::connect(&server);
    let mut code = |method: &str, params: Value| {
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        line.call(&call.to_string())["error"]["code"].clone()
    };
    let (member, foreign) = (&members[0], world.path("foreign"));
    std::fs::write(&foreign, [0; 4096]).unwrap();
    assert_eq!(code("fail", json!({ "device": foreign })), -32002);
    assert_eq!(code("remove", json!({ "device": member })), -32001, "it is in use");
    assert_eq!(code("add", json!({ "device": member })), -32001, "it is a member");
    assert_eq!(code("replace", json!({ "slot": 0 })), -32002, "there is no spare");
    assert_eq!(code("replace", json!({})), -32602);
    assert_eq!(code("repair", json!({ "locate": true })), -32001, "one parity");
    assert_eq!(code("check", json!({ "from": 9, "to": 3 })), -32602);
    assert_eq!(code("sync", json!({ "action": "stop" })), -32001, "nothing to stop");
    assert_eq!(code("bitmap", json!({ "internal": true })), -32001, "there is one");
    let client = Client::connect(&server.nbd());
    assert_eq!(code("stop", Value::Null), -32003);
    drop(client);
}

#[test]
fn a_server_says_which_version_it_is_and_which_run() {
    let world = World::new();
    let members = world.raid5(3);
    let mut instances = Vec::new();
    for _ in 0..2 {
        let server = world.serve(&["--shards", "1"], &members);
        let mut line = Line::connect(&server);
        let answer = line.call(r#"{"jsonrpc":"2.0","id":1,"method":"version"}"#);
        let version = &answer["result"];
        assert_eq!(
            (&version["protocol"], &version["pinstripe"]),
            (&json!(1), &json!(env!("CARGO_PKG_VERSION")))
        );
        assert_eq!(version["pid"], server.ready["pid"]);
        let events = line.call(r#"{"jsonrpc":"2.0","id":2,"method":"events"}"#);
        assert_eq!(version["instance"], events["result"]["instance"]);
        instances.push(version["instance"].clone());
        world.run(&["stop", "data"]).ok();
        assert_eq!(server.ended(), 0);
    }
    assert_ne!(instances[0], instances[1]);
}

#[test]
fn an_endless_request_ends_its_connection_only() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--shards", "1"], &members);
    let mut line = Line::connect(&server);
    // The server may close before all of it is sent.
    let _ = line.0.get_mut().write_all(&vec![b'['; 80_000]);
    let mut rest = String::new();
    let _ = line.0.read_to_string(&mut rest);
    assert!(rest.is_empty() || rest.contains("at most"), "{rest}");
    world.run(&["detail", "data"]).ok();
}

#[test]
fn both_sockets_are_for_their_user_only() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--shards", "1"], &members);
    for path in [server.ready["control"].as_str().unwrap().into(), server.nbd()] {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
    assert!(!world.path("pinstripe/data.sock").exists() && !world.path("pinstripe/data.nbd").exists());
}

#[test]
fn every_stop_request_is_answered_even_if_several_come() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--shards", "1"], &members);
    let mut lines: Vec<Line> = (0..3).map(|_| Line::connect(&server)).collect();
    for line in &mut lines {
        // Answered, so accepted: the end refuses connections that wait.
        line.call(r#"{"jsonrpc":"2.0","id":0,"method":"detail"}"#);
    }
    for line in &mut lines {
        line.send(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stop\"}\n");
    }
    for line in &mut lines {
        let answer = line.receive();
        assert!(answer.get("result").is_some_and(Value::is_null), "{answer}");
    }
    assert_eq!(server.ended(), 0);
}

#[test]
fn an_array_is_not_stopped_under_its_clients_unless_that_is_forced() {
    let world = World::new();
    let members = world.raid5(3);
    let server =
        world.serve(&["--shards", "2", "--nbd", "unix:data.nbd", "--nbd", "tcp:127.0.0.1:0"], &members);
    let detail = || world.run(&["detail", "data", "--json"]).ok().json()["clients"].clone();
    // Any user may connect and say nothing. It isn't a client yet.
    let _silent = UnixStream::connect(server.nbd()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(detail(), json!([]));
    let client = Client::connect(&server.nbd());
    let also = Client::connect(&server.nbd());
    let own = format!("process {}", std::process::id());
    let listed = detail();
    assert!(listed[0]["name"].as_str().unwrap().starts_with(&own), "{listed}");
    assert_eq!((&listed[0]["connections"], &listed[0]["protocol"]), (&json!(2), &json!("nbd")));
    let text = world.run(&["detail", "data"]).ok().out;
    assert!(text.contains(&own) && text.contains("2 connections"), "{text}");
    world.run(&["stop", "data"]).refused(1, &[&own, "2 connections", "nothing was stopped", "--force"]);
    drop((client, also));
    // The end of a connection is seen a moment later; a stop waits for that.
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &[7; 4096]), 0);
    world.run(&["stop", "data"]).refused(1, &[&own]);
    assert!(client.read(0, 4096) == [7; 4096], "it goes on");
    drop(client);
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);

    let server = world.serve(&["--shards", "1"], &members);
    let _client = Client::connect(&server.nbd());
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
}

#[test]
fn a_control_socket_in_the_current_folder_is_a_path_with_a_slash_or_its_ending() {
    let world = World::new();
    let members = world.raid5(3);
    let options = ["--shards", "1", "--control", "mine.sock", "--nbd", "unix:mine.nbd"];
    let server = world.serve(&options, &members);
    assert_eq!(world.run(&["detail", "mine.sock", "--json"]).ok().json()["name"], "data");
    world.run(&["stop", "./mine.sock"]).ok();
    assert_eq!(server.ended(), 0);
    // What else lies there is not the array of that name.
    let server = world.serve(&["--shards", "1"], &members);
    let _other = std::os::unix::net::UnixListener::bind(world.path("data")).unwrap();
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
}

/// What the server calls a disk that was pulled, a person need not know.
#[test]
fn what_has_failed_is_removed_without_its_name() {
    let world = World::new();
    let members = world.members(4);
    world.create(&["--level", "6", "--name", "data", "--assume-clean"], &members).ok();
    let server = world.serve(&["--shards", "1"], &members);
    assert_eq!(world.run(&["remove", "data", "failed"]).ok().out, "no device of the array is faulty\n");
    for slot in ["1", "3"] {
        world.run(&["fail", "data", slot]).ok();
    }
    let removed = world.run(&["remove", "data", "failed", "--json"]).ok().json();
    assert_eq!(removed.as_array().unwrap().len(), 2, "{removed}");
    let detail = world.run(&["detail", "data", "--json"]).ok().json();
    assert_eq!(detail["failed"], json!([]), "{detail}");
    world.run(&["add", "data", "member1", "--wait"]).ok();
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
}

#[test]
fn the_log_says_what_was_asked_for_when_and_of_which_array() {
    let world = World::new();
    let members = world.raid5(4);
    let server = world.serve(&["--shards", "1"], &members);
    world.run(&["fail", "data", "1"]).ok();
    world.run(&["remove", "data", "member1"]).ok();
    world.run(&["add", "data", "member1", "--wait"]).ok();
    world.run(&["grow", "data", "--bitmap", "none"]).ok();
    world.run(&["grow", "data", "--consistency-policy", "ppl"]).ok();
    let later = std::sync::Arc::clone(&server.later);
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
    let wanted = [
        "member1 was taken out",
        "member1 was removed",
        "was added in slot 1",
        "the bitmap was removed",
        "the consistency policy is ppl now",
        "stopping, as asked for over the control socket",
        "stopped: ",
    ];
    let said = |word: &str| {
        let told = later.lock().unwrap();
        let line = told.iter().find(|line| line["message"].as_str().is_some_and(|said| said.contains(word)));
        line.cloned()
    };
    for word in wanted {
        wait_until(&format!("said: {word}"), || said(word).is_some());
        let line = said(word).unwrap();
        assert!(line["array"] == "data" && line["time"].as_u64() > Some(1_600_000_000), "{line}");
    }
}

#[test]
fn idle_control_connections_do_not_shut_an_administrator_out() {
    const IDLE: usize = 200;
    let world = World::new();
    let server = world.serve(&["--shards", "1"], &world.raid5(3));
    let mut first = Line::connect(&server);
    let detail = r#"{"jsonrpc":"2.0","id":1,"method":"detail"}"#;
    assert_eq!(first.call(detail)["id"], 1);
    let idle: Vec<Line> = (0..IDLE).map(|_| Line::connect(&server)).collect();
    let mut late = Line::connect(&server);
    assert_eq!(late.call(detail)["id"], 1);
    // The oldest have made room, and the newest are there.
    assert_eq!(first.0.read(&mut [0]).unwrap_or(0), 0);
    let mut idle = idle.into_iter();
    assert_eq!(idle.next().unwrap().0.read(&mut [0]).unwrap_or(0), 0);
    assert_eq!(idle.next_back().unwrap().call(detail)["id"], 1);
}

#[test]
fn calls_under_way_have_a_newcomer_turned_away_in_words_until_their_clients_have_gone() {
    const CONNECTIONS: usize = 64;
    let world = World::new();
    let server = world.serve(&["--shards", "1"], &world.raid5(3));
    let _client = Client::connect(&server.nbd());
    let detail = r#"{"jsonrpc":"2.0","id":1,"method":"detail"}"#;
    let mut lines: Vec<Line> = std::iter::repeat_with(|| Line::connect(&server)).take(CONNECTIONS).collect();
    // It takes 2 s until a stop is refused for the client. Behind an answered call, it has come.
    let begun = std::time::Instant::now();
    for line in &mut lines {
        line.send(format!("{detail}\n{{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"stop\"}}\n").as_bytes());
    }
    for line in &mut lines {
        assert_eq!(line.receive()["id"], 1);
    }
    std::thread::sleep(Duration::from_millis(100));
    let refused = Line::connect(&server).call(detail);
    let took = begun.elapsed();
    drop(lines);
    wait_until("room", || Line::connect(&server).call(detail)["result"].is_object());
    if took < Duration::from_secs(2) {
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(1), &json!(-32001)), "{refused}");
    }
}

#[test]
fn control_connections_that_read_no_answers_do_not_shut_an_administrator_out() {
    const CONNECTIONS: usize = 64;
    // Of their answers no socket holds all.
    const CALLS: usize = 400;
    let world = World::new();
    let server = world.serve(&["--shards", "1"], &world.raid5(3));
    let detail = r#"{"jsonrpc":"2.0","id":1,"method":"detail"}"#;
    let silent: Vec<Line> = std::iter::repeat_with(|| Line::connect(&server)).take(CONNECTIONS).collect();
    for line in &silent {
        // The server takes no more of them once it waits to be read from.
        line.0.get_ref().set_nonblocking(true).unwrap();
        let _ = line.0.get_ref().write(format!("{detail}\n").repeat(CALLS).as_bytes());
    }
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(Line::connect(&server).call(detail)["id"], 1);
}

#[test]
fn all_arrays_are_stopped_together_or_none() {
    let world = World::new();
    world.run(&["stop", "--all"]).ok();
    world.run(&["stop"]).refused(64, &["<ARRAY>"]);
    world.run(&["stop", "data", "--all"]).refused(64, &["--all"]);
    let server = world.serve(&["--shards", "1"], &world.raid5(3));
    let others: Vec<String> = (0..3).map(|slot| world.file(&format!("other{slot}"), MIB * 8)).collect();
    world.create(&["--level", "5", "--name", "a\"b", "--assume-clean"], &others).ok();
    let other = world.serve(&["--shards", "1"], &others);
    let client = Client::connect(&server.nbd());
    let own = format!("process {}", std::process::id());
    world.run(&["stop", "--all"]).refused(1, &["data is in use", &own, "nothing was stopped"]);
    assert_eq!(world.run(&["list", "--json"]).ok().json().as_array().unwrap().len(), 2);
    drop(client);
    world.run(&["stop", "--all", "--wait", "20"]).ok();
    assert_eq!((server.ended(), other.ended()), (0, 0));
}

#[test]
fn a_device_that_another_array_lends_must_be_a_spare_of_it() {
    let world = World::new();
    let members = world.raid5(3);
    let others: Vec<String> = (3..7).map(|number| world.file(&format!("member{number}"), 16 * MIB)).collect();
    world.create(&["--level", "5", "--name", "other", "--assume-clean"], &others[..3]).ok();
    let other = world.serve(&["--shards", "1"], &others[..3]);
    world.run(&["add", "other", "member6"]).ok();
    let detail = world.run(&["detail", "other", "--json"]).ok().json();
    let lends = detail["uuid"].as_str().unwrap();
    world.run(&["remove", "other", "member6"]).ok();
    world.run(&["stop", "other"]).ok();
    assert_eq!(other.ended(), 0);

    let server = world.serve(&["--shards", "1"], &members);
    let mut line = Line::connect(&server);
    let mut add = |device: &str, spare_of: &str| {
        let device = world.path(device);
        let params = json!({ "device": device, "spare_of": spare_of });
        line.call(&json!({ "jsonrpc": "2.0", "id": 1, "method": "add", "params": params }).to_string())
    };
    let refused = [("member3", lends), ("member6", "01234567:01234567:01234567:01234567"), ("member6", "")];
    for (device, spare_of) in refused {
        let answer = add(device, spare_of);
        assert_eq!(answer["error"]["code"], -32001, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(device) && message.contains("nothing was changed"), "{message}");
    }
    assert_eq!(add("member6", lends)["result"], json!({ "slot": null, "recovery": "none" }));
}
