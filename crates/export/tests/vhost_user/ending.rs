//! A session ends soon, whatever is under way.

use std::{
    os::fd::OwnedFd,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use pinstripe_export::vhost_user::{Ended, request};

use super::{
    monitor::{DATA, DISCARD, FEATURES, GUEST, Monitor, OUT, memory, range},
    server::{Disk, with_server_to_stop},
};

/// Bytes of a discard, the longest that a range may have, and its pieces.
const LONG: u64 = 2 << 30;
const PIECES: usize = 64;
const SLOT: u16 = 1;

/// A machine with a long discard under way, of which no piece goes until it may, and the memory in which that
/// is noted.
fn with_long_discard(path: &Path, disk: &Disk) -> (Monitor, (Vec<u8>, OwnedFd)) {
    let mut monitor = Monitor::connect(path, memory());
    monitor.set_up(FEATURES, 1);
    let inflight = monitor.new_inflight();
    monitor.use_inflight(&inflight);
    begin_long(&mut monitor, disk);
    (monitor, inflight)
}

fn begin_long(monitor: &mut Monitor, disk: &Disk) {
    monitor.start(0, 0);
    disk.hold(true);
    monitor.put(DATA, &range(0, u32::try_from(LONG / 512).unwrap(), 0));
    monitor.offer(0, SLOT, DISCARD, 0, DATA, (16, 0));
    monitor.kick(0);
    while disk.log().is_empty() {
        std::thread::yield_now();
    }
}

/// Pieces go one by one while `work` is done.
fn while_pieces_go<T>(disk: &Disk, work: impl FnOnce() -> T) -> T {
    struct Over<'a>(&'a AtomicBool);

    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    let is_over = AtomicBool::new(false);
    let over = || is_over.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        // After a panic, too.
        let _over = Over(&is_over);
        scope.spawn(|| {
            while !over() {
                disk.let_pass(over);
            }
        });
        work()
    })
}

fn assert_cut_off(disk: &Disk) {
    let pieces = disk.log().len();
    assert!(pieces < PIECES / 2, "{pieces} pieces more were discarded");
}

#[test]
fn a_server_that_stops_fails_a_long_request_that_is_noted_nowhere() {
    let disk = Disk::that_seems_larger(LONG);
    let ((), ended) = with_server_to_stop(1, &disk, |path, stop| {
        let mut monitor = Monitor::connect(path, memory());
        monitor.set_up(FEATURES, 1);
        begin_long(&mut monitor, &disk);
        stop();
        while_pieces_go(&disk, || monitor.wait_for_end());
        assert_cut_off(&disk);
        assert_eq!((monitor.answer(0).0, monitor.status(0, SLOT)), (SLOT, 1));
    });
    assert_eq!(ended, [Ended::Stopped]);
}

#[test]
fn a_server_that_stops_leaves_a_long_request_that_is_noted_to_the_next_one() {
    let disk = Disk::that_seems_larger(LONG);
    let ((), ended) = with_server_to_stop(1, &disk, |path, stop| {
        let (mut monitor, (_, file)) = with_long_discard(path, &disk);
        stop();
        while_pieces_go(&disk, || monitor.wait_for_end());
        assert_cut_off(&disk);
        assert_eq!(monitor.answer_within(0, Duration::ZERO), None);
        let mut entry = [0; 1];
        rustix::io::pread(&file, &mut entry, 16 + 16 * 4 * u64::from(SLOT)).unwrap();
        assert_eq!(entry, [1], "it is noted as under way");
    });
    assert_eq!(ended, [Ended::Stopped]);
}

/// Offers a write of two pieces, behind what the disk keeps, with its status at [`DATA`]. It names one place
/// of the machine's memory many times.
fn offer_long_write(monitor: &mut Monitor) {
    const NEXT: u16 = 1;
    const PARTS: u16 = 8;
    monitor.put(DATA, &[0xff]);
    monitor.put(DATA + 16, &request::header(OUT, LONG / 2 / 512));
    monitor.descriptor(0, GUEST + DATA + 16, 16, NEXT, 1);
    for part in 1..=PARTS {
        monitor.descriptor(16 * u64::from(part), GUEST + DATA + 4096, 6 << 20, NEXT, part + 1);
    }
    monitor.descriptor(16 * u64::from(PARTS + 1), GUEST + DATA, 1, 2, 0);
    monitor.make_available(0, 0);
}

#[test]
fn what_was_taken_before_the_end_is_carried_out_for_a_while_and_no_longer() {
    for is_slow in [false, true] {
        let disk = Disk::that_seems_larger(LONG);
        let ((), ended) = with_server_to_stop(1, &disk, |path, stop| {
            let mut monitor = Monitor::connect(path, memory());
            monitor.set_up(FEATURES, 1);
            monitor.start(0, 0);
            disk.hold(true);
            offer_long_write(&mut monitor);
            monitor.kick(0);
            while disk.log().is_empty() {
                std::thread::yield_now();
            }
            stop();
            if is_slow {
                std::thread::sleep(Duration::from_secs(3));
            }
            disk.hold(false);
            monitor.wait_for_end();
            assert_eq!(disk.log().len(), usize::from(!is_slow), "pieces that were begun at last");
            assert_eq!((monitor.answer(0).0, monitor.get(DATA, 1)[0]), (0, u8::from(is_slow)));
        });
        assert_eq!(ended, [Ended::Stopped]);
    }
}

/// It is left to the next server where it is noted, and fails where it isn't.
#[test]
fn what_waits_for_a_limit_at_the_end_is_given_up() {
    for is_noted in [false, true] {
        let disk = Disk::that_seems_larger(LONG);
        disk.limit();
        let ((), ended) = with_server_to_stop(1, &disk, |path, stop| {
            let mut monitor = Monitor::connect(path, memory());
            monitor.set_up(FEATURES, 1);
            // Its memory must stay.
            let _inflight = is_noted.then(|| {
                let inflight = monitor.new_inflight();
                monitor.use_inflight(&inflight);
                inflight
            });
            monitor.start(0, 0);
            offer_long_write(&mut monitor);
            monitor.kick(0);
            while disk.log().is_empty() {
                std::thread::yield_now();
            }
            stop();
            monitor.wait_for_end();
            assert_eq!(disk.log(), [""; 0], "pieces that were begun at last");
            if is_noted {
                assert_eq!(monitor.answer_within(0, Duration::ZERO), None);
            } else {
                assert_eq!((monitor.answer(0).0, monitor.get(DATA, 1)[0]), (0, 1));
            }
        });
        assert_eq!(ended, [Ended::Stopped]);
    }
}

/// With `asks` it goes while it waits for the queue, as a monitor does that is killed in a machine's reset.
fn goes_and_comes_back(asks: bool) {
    let disk = Disk::that_seems_larger(LONG);
    let ((), ended) = with_server_to_stop(1, &disk, |path, _| {
        let (monitor, inflight) = with_long_discard(path, &disk);
        let memory = monitor.memory.try_clone().unwrap();
        if asks {
            monitor.say(11, &[0; 8], &[]);
        }
        drop(monitor);
        while_pieces_go(&disk, || {
            let mut next = Monitor::connect(path, memory);
            // It is answered when the session before has ended.
            next.set_up(FEATURES, 1);
            assert_cut_off(&disk);
            next.use_inflight(&inflight);
            next.plug(0);
            next.start(0, 1);
            assert_eq!((next.answer(0).0, next.status(0, SLOT)), (SLOT, 0));
            assert_eq!(disk.log().len(), PIECES, "all of it is done again");
        });
    });
    assert_eq!(ended[0], Ended::Closed);
}

#[test]
fn what_a_monitor_that_has_gone_left_half_done_is_done_when_it_comes_back() {
    goes_and_comes_back(false);
}

#[test]
fn a_monitor_that_goes_while_it_waits_for_a_queue_keeps_no_other_one_waiting() {
    goes_and_comes_back(true);
}
