//! What a target leaves of hosts that speak in bytes, and when it doesn't wait for them.

use std::rc::Rc;
use std::sync::Arc;

use pinstripe_nvme::auth::Authentication;
use pinstripe_nvme::controller::{LeftQueue, Subsystem, Target};
use pinstripe_nvme::wire::command::{Command, admin, nvm};
use pinstripe_nvme::wire::fabrics::CONTROLLER_ANY;
use pinstripe_nvme::wire::feature;
use pinstripe_nvme::wire::status::Status;
use pinstripe_runtime::shard;

use crate::host::{Heard, Host};
use crate::world::{Array, Pipe};
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
