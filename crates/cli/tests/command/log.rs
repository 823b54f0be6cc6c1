//! The log: its forms and fields, what a flood leaves in it, and readers that stop.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::{
        fd::OwnedFd,
        unix::{fs::MetadataExt, net::UnixDatagram},
    },
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::pipe::{fcntl_setpipe_size, pipe};
use serde_json::Value;

use crate::{
    configured::{Configured, DATA},
    daemon::Daemon,
    nbd::{Client, pattern},
    world::{PATIENCE, Server, World, wait_until},
};

/// A server. It is killed if the test ends without stopping it, and if it hangs, so that no command waits for
/// it without end.
struct Watched {
    child: Arc<Mutex<Child>>,
    _over: Sender<()>,
}

impl Watched {
    fn start(command: &mut Command) -> Self {
        let child = Arc::new(Mutex::new(command.spawn().unwrap()));
        let (over, wait) = channel();
        let watched = Arc::clone(&child);
        thread::spawn(move || {
            let _: Result<(), _> = wait.recv_timeout(PATIENCE);
            let mut child = watched.lock().unwrap();
            let _ = child.kill();
            let _ = child.wait();
        });
        Self { child, _over: over }
    }

    /// Its exit status, none if it must be killed.
    fn ended(self) -> Option<i32> {
        loop {
            if let Some(status) = self.child.lock().unwrap().try_wait().unwrap() {
                return status.code();
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Starts a server whose standard error is this, and waits until it answers.
fn serve(world: &World, options: &[&str], members: &[String], errors: OwnedFd) -> Watched {
    serve_by(world.command(&["serve", "--shards", "1"]), world, options, members, errors)
}

fn serve_by(
    mut command: Command,
    world: &World,
    options: &[&str],
    members: &[String],
    errors: OwnedFd,
) -> Watched {
    command.args(options).args(members).stdout(Stdio::null()).stderr(errors);
    let server = Watched::start(&mut command);
    wait_until("it answers", || world.run(&["detail", "data"]).status == 0);
    server
}

fn objects(said: &str) -> Vec<Value> {
    said.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

/// Clients that break the protocol, each in a connection of its own, from a port of its own.
fn break_protocol(server: &Server, count: usize) {
    let uri = server.ready["nbd"][0].as_str().unwrap();
    let address = uri.strip_prefix("nbd://").unwrap().split('/').next().unwrap();
    for _ in 0..count {
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(&[0xff; 64]);
        // Until it is cut off.
        let _ = stream.read_to_end(&mut Vec::new());
    }
}

#[test]
fn a_lost_member_is_an_object_with_fields() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--log-format", "json"], &members);
    let uuid = server.ready["uuid"].as_str().unwrap().to_owned();
    world.run(&["fail", "data", "1"]).ok();
    let (status, said) = server.end();
    assert_eq!(status, 0, "{said}");
    let objects = objects(&said);
    let lost = objects.iter().find(|object| object["event"] == "Fail").unwrap();
    assert_eq!((&lost["level"], &lost["array"]), (&"warning".into(), &"data".into()), "{lost}");
    assert_eq!((&lost["slot"], &lost["uuid"]), (&1.into(), &uuid.into()), "{lost}");
    assert!(lost["member"].as_str().unwrap().ends_with("member1"), "{lost}");
    // An event has the second of its own.
    assert!(lost["time"].as_str().unwrap().contains(".000Z") && lost["number"].is_u64(), "{lost}");
    assert_eq!(lost["target"], "pinstripe::serve::journal", "{lost}");
    let asked = objects.iter().find(|object| object["event"].is_null() && object["level"] == "info");
    assert_eq!(asked.unwrap()["target"], "pinstripe::serve::control", "{said}");
}

#[test]
fn what_is_less_severe_than_asked_for_is_not_logged() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--log-format", "json", "--log-level", "warning"], &members);
    world.run(&["fail", "data", "1"]).ok();
    let objects = objects(&server.end().1);
    assert!(objects.iter().any(|object| object["event"] == "Fail"), "{objects:?}");
    assert!(objects.iter().all(|object| object["level"] == "warning"), "{objects:?}");
}

#[test]
fn clients_that_break_the_protocol_again_and_again_do_not_fill_the_log() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--log-format", "text", "--nbd", "tcp:127.0.0.1:0"], &members);
    break_protocol(&server, 500);
    let (status, said) = server.end();
    let lines = |words: &str| said.lines().filter(|line| line.contains(words)).count();
    assert_eq!(status, 0);
    assert_eq!(lines("was cut off"), 21, "20, and one that tells of the others:\n{said}");
    assert_eq!(lines("left out within 60 s: 480 more like this: NBD: a connection of"), 1, "{said}");
    assert!(said.lines().all(|line| line.starts_with("pinstripe: 2")), "{said}");
}

#[test]
fn a_reader_of_standard_error_that_stops_stops_nothing_else() {
    let world = World::new();
    let members = world.raid5(3);
    let (_reader, writer) = pipe().unwrap();
    let size = fcntl_setpipe_size(&writer, 4096).unwrap();
    rustix::io::write(&writer, &vec![b'x'; size]).unwrap();
    let server = serve(&world, &[], &members, writer);
    goes_on_and_ends(&world, server);
}

#[test]
fn a_journal_that_hangs_stops_nothing_else() {
    let world = World::new();
    let members = world.raid5(3);
    let journal = journal(&world);
    let mut command = world.command(&["serve", "--shards", "1"]);
    command.env("PINSTRIPE_JOURNAL_SOCKET", world.path("journal"));
    let errors = fs::File::create(world.path("errors")).unwrap();
    let server = serve_by(command, &world, &["--log-format", "journald"], &members, errors.into());
    goes_on_and_ends(&world, server);
    // It was full, unless it holds all that there was.
    let room: usize =
        fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").unwrap().trim().parse().unwrap();
    let got = entries(&journal).len();
    assert!(room > 20 || (room..=room + 1).contains(&got), "{got} of {room}");
}

/// A member is lost, an order is given again and again, data is written and read, and the server is stopped.
fn goes_on_and_ends(world: &World, server: Watched) {
    let mut client = Client::connect(&world.path("pinstripe").join("data.nbd"));
    world.run(&["fail", "data", "1"]).ok();
    for _ in 0..30 {
        world.run(&["limit", "data", "--iops", "100000"]).ok();
        world.run(&["limit", "data", "--iops", "0"]).ok();
    }
    let data = pattern(1, 1 << 20);
    assert_eq!(client.write(0, &data), 0);
    assert!(client.read(0, data.len()) == data);
    drop(client);
    world.run(&["stop", "data"]).ok();
    // It would be killed.
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn a_command_that_fails_ends_although_nothing_reads_why() {
    let world = World::new();
    let members = world.members(3);
    let (_reader, writer) = pipe().unwrap();
    let size = fcntl_setpipe_size(&writer, 4096).unwrap();
    rustix::io::write(&writer, &vec![b'x'; size]).unwrap();
    let mut command = world.command(&["serve"]);
    let server = Watched::start(command.args(&members).stderr(writer).stdout(Stdio::null()));
    assert_eq!(server.ended(), Some(1));
}

/// What a journal has got: the fields of each entry.
fn entries(journal: &UnixDatagram) -> Vec<Vec<(String, String)>> {
    let mut buffer = vec![0; 1 << 18];
    let mut entries = Vec::new();
    while let Ok(length) = journal.recv(&mut buffer) {
        entries.push(fields(&buffer[..length]));
    }
    entries
}

/// As <https://systemd.io/JOURNAL_NATIVE_PROTOCOL> has it.
fn fields(mut entry: &[u8]) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    while !entry.is_empty() {
        let end = entry.iter().position(|byte| b"=\n".contains(byte)).unwrap();
        let name = String::from_utf8(entry[..end].to_vec()).unwrap();
        let (value, rest) = if entry[end] == b'=' {
            let rest = &entry[end + 1..];
            rest.split_at(rest.iter().position(|byte| *byte == b'\n').unwrap())
        } else {
            let (length, rest) = entry[end + 1..].split_first_chunk().unwrap();
            rest.split_at(usize::try_from(u64::from_le_bytes(*length)).unwrap())
        };
        fields.push((name, String::from_utf8(value.to_vec()).unwrap()));
        entry = rest.strip_prefix(b"\n").unwrap();
    }
    fields
}

fn value<'a>(entry: &'a [(String, String)], name: &str) -> &'a str {
    let mut values = entry.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_str());
    let value = values.next().unwrap_or_default();
    assert_eq!(values.next(), None, "{name} is there twice: {entry:?}");
    value
}

fn journal(world: &World) -> UnixDatagram {
    let journal = UnixDatagram::bind(world.path("journal")).unwrap();
    journal.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    journal
}

/// Where standard error is the journal's stream, the log is in its fields, and a member's name, which may be
/// anything, is no field of its own.
#[test]
fn the_journal_gets_entries_with_fields_that_no_name_can_forge() {
    let world = World::new();
    let mut members = world.raid5(3);
    let forged = "x\nPRIORITY=0\nPINSTRIPE_ARRAY=other";
    fs::rename(world.path(&members[1]), world.path(forged)).unwrap();
    members[1] = forged.to_owned();
    let journal = journal(&world);
    let log = fs::File::create(world.path("errors")).unwrap();
    let metadata = log.metadata().unwrap();
    let mut command = world.command(&["serve", "--shards", "1"]);
    command.env("JOURNAL_STREAM", format!("{}:{}", metadata.dev(), metadata.ino()));
    command.env("PINSTRIPE_JOURNAL_SOCKET", world.path("journal"));
    let server = serve_by(command, &world, &[], &members, log.into());
    world.run(&["fail", "data", "1"]).ok();
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), Some(0));
    let entries = entries(&journal);
    let lost = entries.iter().find(|entry| value(entry, "PINSTRIPE_EVENT") == "Fail").unwrap();
    assert_eq!(value(lost, "PRIORITY"), "4", "{lost:?}");
    assert_eq!(value(lost, "PINSTRIPE_ARRAY"), "data", "{lost:?}");
    assert_eq!(value(lost, "PINSTRIPE_SLOT"), "1", "{lost:?}");
    assert_eq!(value(lost, "SYSLOG_IDENTIFIER"), "pinstripe", "{lost:?}");
    assert!(value(lost, "MESSAGE").contains("x\u{fffd}PRIORITY=0\u{fffd}PINSTRIPE_ARRAY=other"), "{lost:?}");
    let member = value(lost, "PINSTRIPE_MEMBER");
    assert!(member.ends_with("x\u{fffd}PRIORITY=0\u{fffd}PINSTRIPE_ARRAY=other"), "{lost:?}");
    assert!(entries.iter().any(|entry| value(entry, "MESSAGE").starts_with("stopped: ")), "{entries:?}");
    assert_eq!(fs::read_to_string(world.path("errors")).unwrap(), "");
}

#[test]
fn a_stream_of_the_journal_that_is_another_processs_is_none() {
    let world = World::new();
    let members = world.raid5(3);
    let journal = journal(&world);
    let log = fs::File::create(world.path("errors")).unwrap();
    let mut command = world.command(&["serve", "--shards", "1"]);
    command.env("JOURNAL_STREAM", "1:2").env("PINSTRIPE_JOURNAL_SOCKET", world.path("journal"));
    let server = serve_by(command, &world, &[], &members, log.into());
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), Some(0));
    assert!(entries(&journal).is_empty());
    let said = fs::read_to_string(world.path("errors")).unwrap();
    assert!(said.contains(" data: stopped: "), "{said}");
}

#[test]
fn without_a_journal_the_log_is_text() {
    let world = World::new();
    let members = world.raid5(3);
    let log = fs::File::create(world.path("errors")).unwrap();
    let mut command = world.command(&["serve", "--shards", "1"]);
    command.env("PINSTRIPE_JOURNAL_SOCKET", world.path("none"));
    let server = serve_by(command, &world, &["--log-format", "journald"], &members, log.into());
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), Some(0));
    let said = fs::read_to_string(world.path("errors")).unwrap();
    assert!(said.contains("there is no journal on ") && said.contains(" data: stopped: "), "{said}");
}

#[test]
fn the_daemon_logs_as_its_configuration_says_and_names_the_arrays() {
    let configured = Configured::new(&format!("[daemon]\nlog-format = 'json'\n{DATA}"));
    configured.world.raid5(3);
    let daemon = Daemon::start(&configured, &["--stop-arrays"]);
    daemon.wait_for("data", "serving");
    configured.world.run(&["fail", "data", "1"]).ok();
    let begun = Instant::now();
    let lost = loop {
        let lost = objects(&daemon.log()).into_iter().find(|object| object["event"] == "Fail");
        if let Some(lost) = lost {
            break lost;
        }
        assert!(begun.elapsed() < PATIENCE, "{}", daemon.log());
        thread::sleep(Duration::from_millis(50));
    };
    assert_eq!((&lost["array"], &lost["command"]), (&"data".into(), &"daemon".into()), "{lost}");
    assert_eq!(lost["level"], "warning", "{lost}");
    configured.write("pinstripe.toml", &format!("[daemon]\nlog-level = 'loud'\n{DATA}"));
    let words = ["pinstripe.toml:2", "\"log-level\"", "'loud'", "warning"];
    configured.run(&["config", "check"]).refused(1, &words);
}

#[test]
fn the_log_of_a_target_names_its_subsystem() {
    let world = World::new();
    let device = world.file("device", 1 << 20);
    let options = ["--listen", "127.0.0.1:0", "--nqn", "nqn.2026-01.com.example:a", "--log-format", "json"];
    let target = world.target(&options, &[device]);
    let objects = objects(&target.end().1);
    let warning = objects.iter().find(|object| object["level"] == "warning").unwrap();
    assert_eq!(warning["nqn"], "nqn.2026-01.com.example:a", "{warning}");
    assert!(warning["message"].as_str().unwrap().contains("every user"), "{warning}");
}
