//! What a machine may ask of its disk.

use std::{
    io::Read,
    os::{fd::AsFd, unix::net::UnixStream},
    time::Duration,
};

use pinstripe_export::vhost_user::{Ended, request};

use super::{
    monitor::{
        DATA, DISCARD, FEATURES, FLUSH, GUEST, MEMORY, Monitor, NAME, OUT, RING, ZEROES, memory, range,
    },
    server::{self, DISK_BYTES, Disk, with_server},
};

const SHORT: Duration = Duration::from_millis(50);

#[test]
fn data_goes_there_and_back_directly_and_by_tables_on_several_queues() {
    let disk = Disk::new();
    let ((), ended) = with_server(2, &disk, |path| {
        let mut monitor = Monitor::running(path, 3);
        for (queue, indirect) in [(0, false), (1, true), (2, true), (2, false)] {
            monitor.indirect = indirect;
            let data: Vec<u8> = (0..=255).cycle().skip(queue.into()).take(9 * 512).collect();
            let sector = 100 * u64::from(queue);
            assert_eq!(monitor.write(queue, sector, &data), 0);
            assert_eq!(disk.bytes(usize::from(queue) * 51_200, data.len()), data);
            assert_eq!(monitor.read(queue, sector, 9 * 512), data);
        }
        // More than once round the ring.
        for number in 0..200_u8 {
            assert_eq!(monitor.write(0, number.into(), &[number; 512]), 0);
        }
        assert_eq!(monitor.read(1, 199, 512), [199; 512]);
    });
    assert!(matches!(ended[..], [Ended::Closed | Ended::Stopped]), "{ended:?}");
}

#[test]
fn flush_discard_zeroes_and_name_are_carried_out_and_bad_requests_refused() {
    let disk = Disk::new();
    with_server(1, &disk, |path| {
        let mut monitor = Monitor::running(path, 1);
        assert_eq!(monitor.carry_out(0, FLUSH, 0, &[], 0), 0);
        assert_eq!(monitor.carry_out(0, NAME, 0, &[], 20), 0);
        assert_eq!(monitor.get(DATA, 20), server::NAME);
        assert_eq!(monitor.write(0, 8, &[7; 1024]), 0);
        assert_eq!(monitor.carry_out(0, ZEROES, 0, &range(9, 1, 1), 0), 0);
        assert_eq!(monitor.carry_out(0, DISCARD, 0, &[range(8, 8, 0), range(64, 8, 0)].concat(), 0), 0);
        let expected = [
            "flush",
            "write 4096 1024 false",
            "zeroes 4608 512 true false",
            "discard 4096 4096 false",
            "discard 32768 4096 false",
        ];
        assert_eq!(disk.log(), expected);
        let end = DISK_BYTES as u64 / 512;
        assert_eq!(monitor.write(0, 0, &[1; 100]), 1, "no whole block");
        assert_eq!(monitor.write(0, end, &[1; 512]), 1, "behind the end");
        assert_eq!(monitor.carry_out(0, DISCARD, 0, &[range(0, 8, 0), range(end, 1, 0)].concat(), 0), 1);
        assert_eq!(monitor.carry_out(0, DISCARD, 0, &range(0, 8, 1), 0), 2);
        assert_eq!(monitor.carry_out(0, 77, 0, &[], 0), 2);
        assert!(disk.log().is_empty(), "a refused request does nothing");
    });
}

#[test]
fn a_driver_that_does_not_flush_has_each_write_made_durable() {
    let disk = Disk::new();
    with_server(1, &disk, |path| {
        let mut monitor = Monitor::connect(path, memory());
        monitor.set_up(FEATURES & !(1 << 9), 1);
        monitor.start(0, 0);
        assert_eq!(monitor.write(0, 0, &[1; 512]), 0);
        assert_eq!(monitor.carry_out(0, ZEROES, 0, &range(9, 1, 0), 0), 0);
        assert_eq!(monitor.carry_out(0, DISCARD, 0, &range(8, 8, 0), 0), 0);
        let expected = ["write 0 512 true", "zeroes 4608 512 false true", "discard 4096 4096 true"];
        assert_eq!(disk.log(), expected);
    });
}

#[test]
fn a_stopped_queue_finishes_what_is_under_way_and_says_how_far_it_came() {
    let disk = Disk::new();
    with_server(2, &disk, |path| {
        let mut monitor = Monitor::running(path, 2);
        disk.hold(true);
        for slot in 0..3 {
            monitor.put(DATA, &[5; 512]);
            monitor.offer(1, slot, OUT, slot.into(), DATA, (512, 0));
        }
        monitor.kick(1);
        // The server has taken all of them.
        let mut taken = 0;
        while taken < 3 {
            taken += disk.log().len();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(monitor.answer_within(1, SHORT), None);
        let other = disk.clone();
        let release = std::thread::spawn(move || {
            std::thread::sleep(SHORT);
            other.hold(false);
        });
        assert_eq!(monitor.stop(1), 3);
        assert_eq!(disk.bytes(0, 1536), [5; 1536]);
        release.join().unwrap();
        // What is offered to a stopped queue waits for its start.
        monitor.offer(1, 3, OUT, 3, DATA, (512, 0));
        monitor.kick(1);
        std::thread::sleep(SHORT);
        assert_eq!(disk.bytes(1536, 512), [0; 512]);
        assert_eq!([0, 1, 2].map(|_| monitor.answer(1).1), [1, 1, 1]);
        monitor.start(1, 3);
        assert_eq!(monitor.answer(1).0, 3);
        assert_eq!(monitor.stop(1), 4);
    });
}

#[test]
fn a_new_event_for_answers_is_told_at_once_of_what_may_have_been_missed() {
    let disk = Disk::new();
    with_server(1, &disk, |path| {
        let mut monitor = Monitor::running(path, 1);
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        monitor.say(13, &0_u64.to_ne_bytes(), &[event.as_fd()]);
        rustix::io::read(&event, &mut [0; 8]).unwrap();
        monitor.queues[0].call = event;
        assert_eq!(monitor.write(0, 0, &[1; 512]), 0);
    });
}

#[test]
fn memory_that_changes_under_running_queues_is_used_from_then_on() {
    let disk = Disk::new();
    with_server(1, &disk, |path| {
        let mut monitor = Monitor::running(path, 1);
        assert_eq!(monitor.write(0, 0, &[1; 512]), 0);
        let old = monitor.get(0, usize::try_from(MEMORY).unwrap());
        monitor.memory = memory();
        monitor.put(0, &old);
        monitor.use_memory();
        assert_eq!(monitor.write(0, 1, &[2; 512]), 0);
        assert_eq!(monitor.read(0, 0, 1024)[511..513], [1, 2]);
    });
}

/// What the server says by itself, of which nothing is to come yet.
fn is_silent(mut channel: &UnixStream) -> bool {
    channel.set_nonblocking(true).unwrap();
    let read = channel.read(&mut [0; 1]);
    channel.set_nonblocking(false).unwrap();
    read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn a_monitor_that_comes_again_is_told_once_to_read_how_large_the_disk_is_now() {
    let disk = Disk::new();
    with_server(2, &disk, |path| {
        let mut first = Monitor::connect(path, memory());
        first.set_up(FEATURES, 1);
        let inflight = first.new_inflight();
        assert_eq!(first.size(), DISK_BYTES as u64);
        drop(first);
        disk.resize(2 * DISK_BYTES as u64);
        let mut again = Monitor::connect(path, memory());
        again.set_up(FEATURES, 1);
        let mut channel = again.open_channel();
        again.use_inflight(&inflight);
        // An answer, behind all that was said.
        again.size();
        assert!(is_silent(&channel), "no queue runs");
        again.start(0, 0);
        let mut said = [0; 12];
        channel.read_exact(&mut said).unwrap();
        // VHOST_USER_BACKEND_CONFIG_CHANGE_MSG, version 1, no payload.
        assert_eq!(said, [2_u32, 1, 0].map(u32::to_ne_bytes).concat()[..]);
        assert_eq!(again.size(), 2 * DISK_BYTES as u64);
        // No more of it when the queue is started again.
        let stopped = again.stop(0);
        again.start(0, u16::try_from(stopped).unwrap());
        assert_eq!(again.write(0, 0, &[3; 512]), 0);
        assert!(is_silent(&channel), "it was told twice");
    });
}

#[test]
fn a_monitor_that_takes_no_messages_of_ours_is_served_all_the_same() {
    let disk = Disk::new();
    let ((), ended) = with_server(1, &disk, |path| {
        let mut monitor = Monitor::connect(path, memory());
        monitor.set_up(FEATURES, 1);
        drop(monitor.open_channel());
        monitor.start(0, 0);
        assert_eq!(monitor.write(0, 0, &[1; 512]), 0);
        // A full one, of which nothing is taken.
        let channel = monitor.open_full_channel();
        assert_eq!(monitor.write(0, 0, &[2; 512]), 0);
        drop(channel);
    });
    assert!(matches!(ended[..], [Ended::Closed | Ended::Stopped]), "{ended:?}");
}

#[test]
fn requests_that_were_begun_for_another_disk_are_not_carried_out() {
    let disk = Disk::new();
    let ((), ended) = with_server(1, &disk, |path| {
        let mut monitor = Monitor::connect(path, memory());
        monitor.set_up(FEATURES, 1);
        let inflight = monitor.new_inflight();
        let mut left = vec![0; rustix::fs::fstat(&inflight.1).unwrap().st_size.try_into().unwrap()];
        rustix::io::pread(&inflight.1, &mut left, 0).unwrap();
        // As a server of an array with another uuid has left it.
        let name = left.windows(20).position(|bytes| bytes == server::NAME).expect("the disk's name");
        rustix::io::pwrite(&inflight.1, b"f", name as u64).unwrap();
        monitor.use_inflight(&inflight);
        monitor.wait_for_end();
    });
    let [Ended::Failed(why)] = &ended[..] else { panic!("{ended:?}") };
    assert!(why.contains("another one when its requests were begun"), "{why}");
}

/// The memory for requests under way as a server leaves it that was killed: two requests taken in the order
/// 2, 0, a third one given back without its entry having been cleared.
#[test]
fn what_a_dead_server_left_is_carried_out_in_order_and_what_it_answered_is_not() {
    let disk = Disk::new();
    with_server(1, &disk, |path| {
        let mut monitor = Monitor::connect(path, memory());
        monitor.set_up(FEATURES, 1);
        let inflight = monitor.new_inflight();
        let file = &inflight.1;
        let put =
            |at: u64, bytes: &[u8]| assert_eq!(rustix::io::pwrite(file, bytes, at).unwrap(), bytes.len());
        let entry = |head: u64| 16 + 16 * head;
        put(8, &[1_u16, RING, 4, 0].map(u16::to_ne_bytes).concat());
        for (slot, counter) in [(0_u64, 12_u64), (1, 10), (2, 11)] {
            put(entry(4 * slot), &[1]);
            put(entry(4 * slot) + 8, &counter.to_ne_bytes());
        }
        monitor.use_inflight(&inflight);
        // Slot 1 was the last to be given back: the ring says so, and this memory doesn't yet. Nor was the
        // machine told, which waits for that.
        monitor.plug(0);
        monitor.put(0x2000 + 4, &4_u32.to_le_bytes());
        monitor.put(0x2000 + 2, &1_u16.to_le_bytes());
        for slot in [1, 2, 0] {
            let data = DATA + 512 * u64::from(slot);
            monitor.put(data, &[7; 512]);
            monitor.offer(0, slot, OUT, slot.into(), data, (512, 0));
        }
        monitor.start(0, 1);
        monitor.wait_for_call(0);
        let mut answered = [(); 3].map(|()| monitor.answer(0).0);
        answered[1..].sort_unstable();
        assert_eq!(answered, [1, 0, 2]);
        assert_eq!(disk.log(), ["write 1024 512 false", "write 0 512 false"]);
        monitor.offer(0, 3, FLUSH, 0, DATA, (0, 0));
        monitor.kick(0);
        assert_eq!(monitor.answer(0).0, 3);
        assert_eq!(disk.log(), ["flush"]);
        let mut left = vec![0; 16 * usize::from(RING)];
        rustix::io::pread(file, &mut left, 16).unwrap();
        assert!(left.iter().step_by(16).all(|is_under_way| *is_under_way == 0));
        assert_eq!(monitor.stop(0), 4);
    });
}

/// What has no memory for data is counted nowhere, so it is bounded by itself.
#[test]
fn of_requests_without_memory_for_data_no_more_than_so_many_are_begun() {
    const NEXT: u16 = 1;
    const BEGUN: u16 = 128;
    const OFFERED: u16 = 200;
    let disk = Disk::new();
    with_server(1, &disk, |path| {
        let mut monitor = Monitor::connect(path, memory());
        monitor.ring = 256;
        monitor.set_up(FEATURES, 1);
        monitor.start(0, 0);
        disk.hold(true);
        // Each has a descriptor of its own for its header, and shares the others.
        monitor.put(DATA, &request::header(DISCARD, 0));
        monitor.put(DATA + 16, &range(8, 8, 0));
        monitor.descriptor(16 * 254, GUEST + DATA + 16, 16, NEXT, 255);
        monitor.descriptor(16 * 255, GUEST + DATA + 32, 1, 2, 0);
        for head in 0..OFFERED {
            monitor.descriptor(16 * u64::from(head), GUEST + DATA, 16, NEXT, 254);
            monitor.make_available(0, head);
        }
        monitor.kick(0);
        let mut begun = 0;
        while begun < usize::from(BEGUN) {
            begun += disk.log().len();
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!((begun, disk.log().len()), (BEGUN.into(), 0));
        disk.let_pass(|| false);
        while disk.log().is_empty() {
            std::thread::yield_now();
        }
        disk.hold(false);
        for _ in 0..OFFERED {
            monitor.answer(0);
        }
    });
}
