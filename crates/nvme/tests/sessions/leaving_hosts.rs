//! What a target leaves of hosts that speak in bytes, and when it doesn't wait for them.

use std::rc::Rc;
use std::sync::Arc;

use pinstripe_block::budget::{Budget, Share};
use pinstripe_nvme::auth::Authentication;
use pinstripe_nvme::controller::{LeftQueue, Subsystem, Target};
use pinstripe_nvme::wire::command::{Command, Sgl, admin, nvm};
use pinstripe_nvme::wire::fabrics::CONTROLLER_ANY;
use pinstripe_nvme::wire::feature;
use pinstripe_nvme::wire::reservation::{Keys, action};
use pinstripe_nvme::wire::status::Status;
use pinstripe_runtime::{Stream, shard};
use zerocopy::IntoBytes;

use crate::host::{Heard, Host};
use crate::world::{Array, Pipe, Random};
use crate::{LEFT, seeds, target, target_of};

const SECOND: u64 = 1_000_000_000;
const SIZE: usize = 1 << 20;

/// Has all connections left. How many nanoseconds that took, and which were.
pub async fn leave_all(target: &Target<Array>) -> (u64, Vec<(LeftQueue, Rc<Pipe>)>) {
    let begun = shard::now();
    target.leave(SECOND, 60 * SECOND).await;
    let took = shard::now() - begun;
    // Their tasks end in a moment.
    for _ in 0..20 {
        shard::yield_now().await;
    }
    (took, LEFT.take())
}

/// Another target of the array, with what the one before has left.
pub fn heir(
    array: &Array,
    authentication: Option<Authentication>,
    old: &Subsystem,
    left: &[(LeftQueue, Rc<Pipe>)],
) -> (Arc<Subsystem>, Target<Array>) {
    let queues: Vec<LeftQueue> = left.iter().map(|(queue, _)| queue.clone()).collect();
    let (subsystem, next) = target_of(std::slice::from_ref(array), authentication);
    subsystem.restore(&old.left(&queues));
    (subsystem, next)
}

/// Goes on with connections that were left.
pub fn go_on(target: &Target<Array>, left: Vec<(LeftQueue, Rc<Pipe>)>) {
    for (queue, stream) in left {
        let target = target.clone();
        shard::spawn(async move { drop(target.resume(stream, &queue).await) });
    }
}

fn write(start: u64, count: u32) -> Command {
    Command::new(nvm::WRITE, 1).with_blocks(start, count)
}

#[test]
fn what_a_silent_host_had_sent_is_not_carried_out_after_a_change() {
    for (pause, allowed) in [(2, true), (4, false)] {
        seeds(6, move |random| async move {
            let array = Array::new(&random, SIZE, 0);
            let (old_subsystem, old) = target(std::slice::from_ref(&array));
            let mut admin = Host::initialize(&random, &old, 0).await;
            assert_eq!(admin.connect(1, 0, CONTROLLER_ANY, 5000).await.status(), Status::SUCCESS);
            admin.enable().await;
            let mut io = admin.io(&random, &old, 1, 1, 0).await;
            shard::sleep(2 * SECOND).await;
            let (_, left) = leave_all(&old).await;
            assert_eq!(left.len(), 2);
            io.command(write(0, 1), &[1; 512]).await;
            shard::sleep(pause * SECOND).await;
            let (subsystem, next) = heir(&array, None, &old_subsystem, &left);
            go_on(&next, left);
            shard::sleep(SECOND / 10).await;
            assert_eq!(array.seen.borrow().requests, usize::from(allowed));
            assert_eq!(subsystem.controller_count(), usize::from(allowed));
            // The time counts from before the change, and not anew.
            shard::sleep(SECOND).await;
            assert_eq!(subsystem.controller_count(), 0);
            admin.close();
            next.stop().await;
        });
    }
}

#[test]
fn a_queue_that_comes_after_its_admin_queue_has_ended_ends() {
    seeds(4, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (old_subsystem, old) = target(std::slice::from_ref(&array));
        let admin = Host::admin(&random, &old, 1).await;
        let mut io = admin.io(&random, &old, 1, 1, 0).await;
        let (_, left) = leave_all(&old).await;
        io.command(write(0, 1), &[1; 512]).await;
        let (subsystem, next) = heir(&array, None, &old_subsystem, &left);
        // Its stream can't be used.
        let (admin_queues, others): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|(queue, _)| queue.is_admin());
        next.abandon(&admin_queues[0].0);
        assert_eq!(subsystem.controller_count(), 0);
        go_on(&next, others);
        assert!(matches!(io.hear().await, Heard::Closed));
        assert_eq!(array.seen.borrow().requests, 0);
        next.stop().await;
    });
}

/// It has no timer by which it would end otherwise, and would carry out what its host sends late.
#[test]
fn a_queue_that_comes_before_its_admin_queue_has_ended_ends() {
    seeds(4, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (old_subsystem, old) = target(std::slice::from_ref(&array));
        let admin = Host::admin(&random, &old, 1).await;
        let mut io = admin.io(&random, &old, 1, 1, 0).await;
        let (_, left) = leave_all(&old).await;
        let (subsystem, next) = heir(&array, None, &old_subsystem, &left);
        let (admin_queues, others): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|(queue, _)| queue.is_admin());
        go_on(&next, others);
        shard::sleep(SECOND).await;
        assert_eq!(next.connections(), 1);
        next.abandon(&admin_queues[0].0);
        let heard = shard::timeout(60 * SECOND, io.hear()).await;
        assert!(matches!(heard, Some(Heard::Closed)));
        shard::sleep(1_000_000).await;
        assert_eq!((next.connections(), subsystem.controller_count()), (0, 0));
        next.stop().await;
    });
}

#[test]
fn reservations_go_over() {
    seeds(4, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (old_subsystem, old) = target(std::slice::from_ref(&array));
        let admins = [Host::admin(&random, &old, 1).await, Host::admin(&random, &old, 2).await];
        let mut holder = admins[0].io(&random, &old, 1, 1, 0).await;
        let mut other = admins[1].io(&random, &old, 2, 1, 0).await;
        let keys = |current: u64, other: u64| {
            Keys { current: current.into(), other: other.into() }.as_bytes().to_vec()
        };
        let register = Command::new(nvm::RESERVATION_REGISTER, 1).with_dword(10, action::REGISTER);
        assert_eq!(holder.status(register, &keys(0, 7)).await, Status::SUCCESS);
        let acquire = Command::new(nvm::RESERVATION_ACQUIRE, 1).with_dword(10, 1 << 8 | action::ACQUIRE);
        assert_eq!(holder.status(acquire, &keys(7, 0)).await, Status::SUCCESS);
        let (_, left) = leave_all(&old).await;
        assert_eq!(left.len(), 4);
        let (_, next) = heir(&array, None, &old_subsystem, &left);
        go_on(&next, left);
        assert_eq!(other.status(write(0, 1), &[2; 512]).await, Status::RESERVATION_CONFLICT);
        assert_eq!(holder.status(write(0, 1), &[1; 512]).await, Status::SUCCESS);
        next.stop().await;
    });
}

/// A read or write of so many bytes, in data of its own.
fn large(opcode: u8, length: u32) -> Command {
    Command { sgl: Sgl::transport(length), ..Command::new(opcode, 1).with_blocks(0, length / 512) }
}

#[test]
fn commands_that_wait_for_memory_go_over_at_once() {
    seeds(6, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let arrays = std::slice::from_ref(&array);
        let budget = Arc::new(Budget::new(1 << 20));
        let old_subsystem = crate::subsystem(arrays, None);
        let old = Target::with_budget(Arc::clone(&old_subsystem), arrays.to_vec(), Arc::clone(&budget));
        let admin = Host::admin(&random, &old, 1).await;
        let mut writer = admin.io(&random, &old, 1, 1, 0).await;
        let mut reader = admin.io(&random, &old, 1, 2, 0).await;
        let mut reporter = admin.io(&random, &old, 1, 3, 0).await;
        // Connections of another protocol have all of it.
        let others = Share::new(budget);
        others.force(1 << 20);
        writer.command(large(nvm::WRITE, 256 << 10), &[]).await;
        reader.command(large(nvm::READ, 256 << 10), &[]).await;
        // This one doesn't wait, for its data has come.
        let compare = Command::new(nvm::COMPARE, 1).with_blocks(1000, 1);
        let compare = reader.command(compare, &[0; 512]).await;
        let report = Command::new(nvm::RESERVATION_REPORT, 1).with_dword(10, (256 << 10) / 4 - 1);
        let report = Command { sgl: Sgl::transport(256 << 10), ..report.with_dword(11, 1) };
        reporter.command(report, &[]).await;
        shard::sleep(SECOND).await;
        let (took, left) = leave_all(&old).await;
        assert_eq!((took, left.len()), (0, 4));
        let (_, next) = heir(&array, None, &old_subsystem, &left);
        go_on(&next, left);
        let Heard::Ready(ready) = writer.hear().await else { panic!("no R2T") };
        writer.answer(&ready, 0, &vec![7; 256 << 10], true).await;
        assert_eq!(writer.completion().await.status(), Status::SUCCESS);
        let compared = reader.completion().await;
        assert_eq!((compared.command_id.get(), compared.status()), (compare, Status::SUCCESS));
        let Heard::Data(data) = reader.hear().await else { panic!("no data") };
        assert_eq!(data.len(), 256 << 10);
        assert_eq!(reader.completion().await.status(), Status::SUCCESS);
        let Heard::Data(data) = reporter.hear().await else { panic!("no report") };
        assert_eq!(data.len(), 256 << 10);
        assert_eq!(reporter.completion().await.status(), Status::SUCCESS);
        next.stop().await;
    });
}

#[test]
fn a_host_that_takes_no_answers_is_not_waited_for() {
    seeds(6, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (_, target) = target(std::slice::from_ref(&array));
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 0).await;
        // More than a connection may hold. The last one doesn't wait, for its data has come.
        for _ in 0..30 {
            io.command(large(nvm::READ, 1 << 20), &[]).await;
        }
        io.command(Command::new(nvm::COMPARE, 1).with_blocks(0, 1), &[0; 512]).await;
        shard::sleep(SECOND).await;
        if random.below(2) == 0 {
            let pipe = Rc::clone(&io.pipe);
            shard::spawn(async move {
                // Or one that takes a little.
                while pipe.receive_exactly(4096).await.is_some() {
                    shard::sleep(SECOND / 2).await;
                }
            });
        }
        let (took, left) = leave_all(&target).await;
        assert!(took <= 2 * SECOND, "{took}");
        assert!(left.len() == 1 && left[0].0.is_admin());
        admin.close();
    });
}

/// How long it takes to leave a queue whose host sends 64 KiB of data at a time, and whether it is left.
async fn leave_sending(random: &Rc<Random>, commands: usize, pause: u64) -> (u64, bool) {
    let array = Array::new(random, SIZE, 0);
    let (_, target) = target(std::slice::from_ref(&array));
    let admin = Host::admin(random, &target, 1).await;
    let mut io = admin.io(random, &target, 1, 1, 0).await;
    let mut asked = Vec::new();
    for _ in 0..commands {
        io.command(large(nvm::WRITE, 1 << 20), &[]).await;
        let Heard::Ready(ready) = io.hear().await else { panic!("no R2T") };
        asked.push(ready);
    }
    shard::spawn(async move {
        for ready in asked {
            for part in 0..16 {
                shard::sleep(pause).await;
                io.answer(&ready, part << 16, &vec![7; 64 << 10], part == 15).await;
            }
        }
    });
    let (took, left) = leave_all(&target).await;
    for (_, stream) in &left {
        stream.shutdown();
    }
    (took, left.iter().any(|(queue, _)| !queue.is_admin()))
}

#[test]
fn data_that_flows_is_waited_for_but_not_for_long() {
    seeds(4, |random| async move {
        let (took, is_left) = leave_sending(&random, 1, SECOND / 10).await;
        assert!(is_left && took >= SECOND, "{took}");
        // Too slow, and too long.
        assert_eq!(leave_sending(&random, 1, SECOND / 2).await, (SECOND, false));
        assert_eq!(leave_sending(&random, 2, SECOND / 5).await, (5 * SECOND, false));
    });
}

#[test]
fn answers_that_flow_are_waited_for() {
    // Whole answers between two looks, and parts of one.
    for (reads, bytes, pause) in [(10, 128 << 10, SECOND / 40), (2, 64 << 10, SECOND / 8)] {
        seeds(4, move |random| async move {
            let array = Array::new(&random, SIZE, 0);
            let (_, target) = target(std::slice::from_ref(&array));
            let admin = Host::admin(&random, &target, 1).await;
            let mut io = admin.io(&random, &target, 1, 1, 0).await;
            for _ in 0..reads {
                io.command(large(nvm::READ, 1 << 20), &[]).await;
            }
            shard::sleep(SECOND).await;
            let pipe = Rc::clone(&io.pipe);
            shard::spawn(async move {
                while pipe.receive_exactly(bytes).await.is_some() {
                    shard::sleep(pause).await;
                }
            });
            let (took, left) = leave_all(&target).await;
            assert!(left.len() == 2 && took > SECOND, "{took}");
            for (_, stream) in &left {
                stream.shutdown();
            }
        });
    }
}

#[test]
fn an_event_at_the_moment_of_leaving_is_told() {
    seeds(60, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (old_subsystem, old) = target(std::slice::from_ref(&array));
        let mut admin = Host::admin(&random, &old, 1).await;
        let enable = Command::new(admin::SET_FEATURES, 0)
            .with_dword(10, feature::ASYNC_EVENTS.into())
            .with_dword(11, feature::EVENT_NAMESPACE_CHANGED);
        assert_eq!(admin.status(enable, &[]).await, Status::SUCCESS);
        let id = admin.command(Command::new(admin::ASYNC_EVENT, 0), &[]).await;
        shard::sleep(SECOND).await;
        let (subsystem, turns) = (Arc::clone(&old_subsystem), random.below(12));
        shard::spawn(async move {
            for _ in 0..turns {
                shard::yield_now().await;
            }
            subsystem.set_present(1, false);
        });
        let (_, left) = leave_all(&old).await;
        let (_, next) = heir(&array, None, &old_subsystem, &left);
        go_on(&next, left);
        let told = admin.completion().await;
        assert_eq!((told.command_id.get(), told.status()), (id, Status::SUCCESS));
        next.stop().await;
    });
}
