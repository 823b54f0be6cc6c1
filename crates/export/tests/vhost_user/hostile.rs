//! What a machine and its monitor must not do ends their session, and nothing else.

use std::{
    io::Write,
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use pinstripe_export::vhost_user::Ended;

use super::{
    monitor::{DATA, FEATURES, GUEST, MEMORY, Monitor, OUT, RING, memory},
    server::{Disk, with_server},
};

const NEXT: u16 = 1;
const PATIENCE: Duration = Duration::from_mins(1);

/// Has `break_it` end the session of a machine whose queue runs, and then serves another one.
fn ends_the_session(break_it: impl FnOnce(&mut Monitor)) -> String {
    let disk = Disk::new();
    let ((), ended) = with_server(2, &disk, |path| {
        let mut monitor = Monitor::running(path, 2);
        assert_eq!(monitor.write(1, 0, &[1; 512]), 0);
        break_it(&mut monitor);
        monitor.wait_for_end();
        drop(monitor);
        let mut next = Monitor::running(path, 2);
        assert_eq!(next.read(1, 0, 512), [1; 512], "what was broken wrote nothing");
        assert_eq!(next.write(0, 1, &[2; 512]), 0);
    });
    // The last connection and the server end at the same time.
    let [Ended::Failed(why), Ended::Closed | Ended::Stopped] = &ended[..] else { panic!("{ended:?}") };
    why.clone()
}

#[test]
fn a_broken_ring_ends_the_session() {
    let offer = |monitor: &mut Monitor, head| {
        monitor.make_available(0, head);
        monitor.kick(0);
    };
    let why = ends_the_session(|monitor| {
        monitor.descriptor(0, GUEST, 16, NEXT, 0);
        offer(monitor, 0);
    });
    assert_eq!(why, "queue 0: a chain of descriptors that doesn't end, or has more than 256");
    let why = ends_the_session(|monitor| {
        monitor.descriptor(0, GUEST, 16, NEXT, 1);
        monitor.descriptor(16, GUEST + MEMORY, 1, 2, 0);
        offer(monitor, 0);
    });
    assert_eq!(why, "queue 0: an address outside of the guest's memory");
    let why = ends_the_session(|monitor| {
        monitor.descriptor(0, GUEST, 15, 0, 0);
        offer(monitor, 0);
    });
    assert_eq!(why, "queue 0: a request without header or status");
    let why = ends_the_session(|monitor| offer(monitor, 64));
    assert_eq!(why, "queue 0: a descriptor 64, which the table doesn't have");
    let why = ends_the_session(|monitor| {
        monitor.put(0x1002, &1000_u16.to_le_bytes());
        monitor.kick(0);
    });
    assert!(why.contains("says 1000 new requests"), "{why}");
}

#[test]
fn a_request_that_is_offered_twice_ends_the_session() {
    let disk = Disk::new();
    let (release, ended) = with_server(1, &disk, |path| {
        let mut monitor = Monitor::running(path, 1);
        disk.hold(true);
        monitor.offer(0, 0, OUT, 0, DATA, (512, 0));
        monitor.make_available(0, 0);
        monitor.kick(0);
        let disk = disk.clone();
        let release = std::thread::spawn(move || {
            // The server has it.
            while disk.log().is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(50));
            disk.hold(false);
        });
        monitor.wait_for_end();
        release
    });
    release.join().unwrap();
    assert_eq!(ended, [Ended::Failed("queue 0: request 0 is under way already".into())]);
}

#[test]
fn a_message_that_breaks_the_protocol_ends_the_session() {
    let why = ends_the_session(|monitor| monitor.say(8, &[[0; 4], 3_u32.to_ne_bytes()].concat(), &[]));
    assert!(why.contains("3 as the size of a ring"), "{why}");
    let why = ends_the_session(|monitor| monitor.say(77, &[], &[]));
    assert!(why.contains("a message 77"), "{why}");
    let why = ends_the_session(|monitor| monitor.say(2, &u64::MAX.to_ne_bytes(), &[]));
    assert!(why.contains("features that weren't offered"), "{why}");
    let why = ends_the_session(|monitor| {
        let null = std::fs::File::open("/dev/null").unwrap();
        monitor.say(12, &0_u64.to_ne_bytes(), &[null.as_fd()]);
    });
    assert!(why.contains("no eventfd"), "{why}");
    let why = ends_the_session(|monitor| {
        let null = std::fs::File::open("/dev/null").unwrap();
        monitor.say(21, &[], &[null.as_fd()]);
    });
    assert!(why.contains("no unix socket"), "{why}");
    let why = ends_the_session(|monitor| {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        monitor.say(21, &[], &[socket.as_fd()]);
    });
    assert!(why.contains("no unix socket"), "{why}");
    let why = ends_the_session(|monitor| {
        let table = [1_u64, GUEST, MEMORY + 1, 0, 0].map(u64::to_ne_bytes).concat();
        monitor.say(5, &table, &[monitor.memory.as_fd()]);
    });
    assert!(why.contains("beyond the end of its file"), "{why}");
    let why = ends_the_session(|monitor| {
        let place = [0_u64, 0, 0, 0, 0].map(u64::to_ne_bytes).concat();
        monitor.say(9, &place, &[]);
    });
    assert!(why.contains("to where there is no memory"), "{why}");
}

/// Has the server get a file, with a message of `request`, as the last that has it. Closing it waits for
/// `PATIENCE`, for it is a connection with bytes that its other end, which is given back, doesn't take.
fn send_slow_to_close(monitor: &mut Monitor, disk: &Disk, request: u32) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut file = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    file.set_nonblocking(true).unwrap();
    while file.write(&[0; 4096]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&file, Some(PATIENCE)).unwrap();
    // The session waits for a request, and doesn't take the file before we have closed it.
    disk.hold(true);
    monitor.offer(0, 0, OUT, 0, DATA, (512, 0));
    monitor.kick(0);
    while disk.log().is_empty() {
        std::thread::yield_now();
    }
    monitor.say(8, &[0_u32, RING.into()].map(u32::to_ne_bytes).concat(), &[]);
    monitor.say(request, &0_u64.to_ne_bytes(), &[file.as_fd()]);
    drop(file);
    disk.hold(false);
    monitor.answer(0);
    other
}

#[test]
fn a_connection_that_does_not_want_the_disk_keeps_it_from_no_other_one() {
    let disk = Disk::new();
    let ((), ended) = with_server(1, &disk, |path| {
        let silent = Monitor::connect(path, memory());
        let mut other = Monitor::running(path, 1);
        assert_eq!(other.write(0, 0, &[1; 512]), 0);
        silent.wait_for_end();
    });
    assert_eq!(ended[0], Ended::Failed("it didn't say in time that it wants the disk".into()));
}

#[test]
fn a_file_that_is_slow_to_close_keeps_no_shard_waiting() {
    let disk = Disk::new();
    let ((), ended) = with_server(1, &disk, |path| {
        let begun = Instant::now();
        let mut monitor = Monitor::running(path, 1);
        let one = send_slow_to_close(&mut monitor, &disk, 14);
        assert_eq!(monitor.write(0, 0, &[1; 512]), 0);
        // One that ends the session.
        let other = send_slow_to_close(&mut monitor, &disk, 12);
        monitor.wait_for_end();
        let mut next = Monitor::running(path, 1);
        assert_eq!(next.write(0, 1, &[1; 512]), 0);
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        drop((one, other));
    });
    assert!(matches!(&ended[0], Ended::Failed(why) if why.contains("no eventfd")), "{ended:?}");
}

#[test]
fn memory_that_becomes_shorter_ends_the_session_and_no_byte_of_it_is_written() {
    let why = ends_the_session(|monitor| {
        monitor.put(DATA, &[9; 4096]);
        monitor.offer(0, 0, OUT, 0, DATA, (4096, 0));
        rustix::fs::ftruncate(&monitor.memory, DATA).unwrap();
        monitor.kick(0);
    });
    assert_eq!(why, "queue 0: the file of the guest's memory has become shorter");
    let why = ends_the_session(|monitor| {
        rustix::fs::ftruncate(&monitor.memory, 0).unwrap();
        monitor.kick(1);
    });
    // Queue 0 may have been plugged a moment ago, and its task have its first look now.
    assert!(why.ends_with(": the file of the guest's memory has become shorter"), "{why}");
}

#[test]
fn a_machine_that_takes_no_calls_keeps_its_session_from_nothing() {
    let disk = Disk::new();
    let ((), ended) = with_server(1, &disk, |path| {
        let mut monitor = Monitor::connect(path, memory());
        monitor.set_up(FEATURES, 1);
        monitor.plug(0);
        // Full, and not to be waited for.
        monitor.queues[0].call = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&monitor.queues[0].call, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        monitor.start(0, 0);
        monitor.offer(0, 0, OUT, 0, DATA, (512, 0));
        monitor.kick(0);
        while disk.log().is_empty() {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(monitor.stop(0), 1);
    });
    assert!(matches!(ended[..], [Ended::Closed | Ended::Stopped]), "{ended:?}");
}
