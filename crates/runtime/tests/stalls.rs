//! C29: only time that was really waited counts. A shard's thread stands still, as when its process is
//! stopped or its machine suspended, and nothing that it waits for times out by that.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    future::poll_fn,
    io::Write,
    os::unix::net::UnixStream,
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use pinstripe_runtime::{
    Stream, shard,
    uring::{self, Connection, RuntimeConfig},
};

/// A message is awaited for at most `limit_ms`. Meanwhile the shard's thread stands still for `still_ms`, and
/// the message comes when the shard has turned for `later_ms` after that. Whether the limit ends the wait.
fn times_out(still_ms: u64, limit_ms: u64, later_ms: u64, prepare: fn()) -> bool {
    let (mut sender, receiver) = UnixStream::pair().unwrap();
    let got = uring::run(&RuntimeConfig::unpinned(1), move |_| async move {
        prepare();
        let stream = Connection::new(receiver).attach().unwrap();
        shard::spawn(async move {
            // By now the receive is the kernel's.
            shard::sleep(20_000_000).await;
            thread::sleep(Duration::from_millis(still_ms));
            // By the shard's own timer: on a busy machine, too, what is due before has ended before.
            shard::sleep(later_ms * 1_000_000).await;
            // The other end is gone where the wait was ended.
            let _ = sender.write_all(&[1]);
        });
        shard::timeout(limit_ms * 1_000_000, stream.receive(shard::buffer(1))).await
    });
    got.unwrap().is_none()
}

/// The message comes only after the gap, as an answer does if the stopped process had still to send the
/// request.
fn comes_afterwards(prepare: fn()) -> bool {
    times_out(1500, 900, 100, prepare)
}

#[test]
fn time_in_which_the_shard_stood_still_is_charged_to_no_wait() {
    assert!(!comes_afterwards(|| ()));
    assert!(times_out(1, 100, 400, || ()), "time in which it turned is");
}

/// The shard's thread stands still for 1.2 s while it polls a wait of at most 0.9 s, which is ready when it
/// is polled again. Whether the limit ends that wait, and how long one of 50 ms takes that begins before the
/// loop comes round.
fn stands_still_in_a_batch(prepare: fn()) -> (bool, Duration) {
    let outcome = uring::run(&RuntimeConfig::unpinned(1), move |_| async move {
        prepare();
        let mut stood = false;
        let stands = poll_fn(|cx| {
            if std::mem::replace(&mut stood, true) {
                return Poll::Ready(());
            }
            thread::sleep(Duration::from_millis(1200));
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        let timed_out = shard::timeout(900_000_000, stands).await.is_none();
        shard::yield_now().await;
        thread::sleep(Duration::from_millis(1200));
        let (began, waited) = (Instant::now(), shard::waited());
        shard::sleep(50_000_000).await;
        assert!(shard::waited() >= waited + 50_000_000, "it never steps back");
        (timed_out, began.elapsed())
    });
    outcome.unwrap()
}

#[test]
fn a_shard_that_stands_still_in_a_batch_charges_no_wait_then_or_later() {
    let (timed_out, slept) = stands_still_in_a_batch(|| ());
    assert!(!timed_out);
    assert!(slept < Duration::from_secs(1), "as if the time in which it stood still were to come: {slept:?}");
}

#[cfg(feature = "mutants")]
#[test]
fn a_shard_that_charges_the_time_is_found() {
    use pinstripe_runtime::mutants::{Mutant, activate};
    // On the shard's own thread, which ends with the run.
    assert!(comes_afterwards(|| activate(Some(Mutant::StallCharged))));
    assert!(stands_still_in_a_batch(|| activate(Some(Mutant::StallCharged))).0);
}
