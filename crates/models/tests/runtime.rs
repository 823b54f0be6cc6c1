//! Model checks of the shipped mailbox and signal: only the atomics are swapped.
//!
//! `cargo test -p pinstripe-models --features shuttle --test runtime`
//!
//! Shuttle explores interleavings under sequential consistency. So it finds steps in the wrong order; that
//! the orderings are `SeqCst`, without which the processor may swap them, is for the reader to see. A lost
//! wake leaves a thread blocked for ever, which shuttle reports as a deadlock.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::VecDeque, ops::ControlFlow};

use pinstripe_runtime::{Signal, mailbox::Mailbox};
use shuttle::{
    future,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

/// Where the driver blocks: a kick that comes early is kept, as an eventfd does.
#[derive(Default)]
struct Kernel {
    kicked: Mutex<bool>,
    changed: Condvar,
}

impl Kernel {
    fn kick(&self) {
        *self.kicked.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn block(&self) {
        let mut kicked = self.kicked.lock().unwrap();
        while !*kicked {
            kicked = self.changed.wait(kicked).unwrap();
        }
        *kicked = false;
    }
}

fn mailbox() -> (Arc<Mailbox>, Arc<Kernel>) {
    let (mailbox, kernel) = (Arc::new(Mailbox::default()), Arc::new(Kernel::default()));
    let kicked = Arc::clone(&kernel);
    mailbox.set_kick(move || kicked.kick());
    (mailbox, kernel)
}

/// The driver's loop, until `done` says that everything has come.
fn drive(mailbox: &Mailbox, kernel: &Kernel, mut turn: impl FnMut(), done: impl Fn() -> bool) {
    loop {
        turn();
        if done() {
            return;
        }
        if mailbox.fall_asleep() {
            kernel.block();
            mailbox.wake_up();
        }
    }
}

/// Random and priority schedules: the first find common interleavings, the second rare ones of few switches.
fn check(test: fn()) {
    shuttle::check_random(test, 4000);
    for depth in [3, 5] {
        shuttle::check_pct(test, 10_000, depth);
    }
}

#[test]
fn a_sleeping_shard_gets_every_wake() {
    check(|| {
        let (mailbox, kernel) = mailbox();
        // Two tasks in one word, one in another word, one under another summary.
        let tasks = [0, 1, 64, 4096 + 5];
        let threads: Vec<_> = tasks
            .map(|task| {
                let mailbox = Arc::clone(&mailbox);
                thread::spawn(move || mailbox.wake(task))
            })
            .into();
        let mut seen = Vec::new();
        let count = std::cell::Cell::new(0);
        drive(
            &mailbox,
            &kernel,
            || {
                mailbox.take_wakes(|task| seen.push(task));
                count.set(seen.len());
            },
            || count.get() >= tasks.len(),
        );
        for thread in threads {
            thread.join().unwrap();
        }
        seen.sort_unstable();
        assert_eq!(seen, tasks);
    });
}

/// What a task waits for changes before its wake: after the last wake is taken, the last change is seen.
#[test]
fn a_wake_that_joins_an_earlier_one_is_not_lost() {
    check(|| {
        let (mailbox, kernel) = mailbox();
        let value = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (mailbox, value) = (Arc::clone(&mailbox), Arc::clone(&value));
                thread::spawn(move || {
                    for _ in 0..2 {
                        value.fetch_add(1, Ordering::SeqCst);
                        mailbox.wake(7);
                    }
                })
            })
            .collect();
        let polled = std::cell::Cell::new(0);
        drive(
            &mailbox,
            &kernel,
            || mailbox.take_wakes(|_| polled.set(value.load(Ordering::SeqCst))),
            || polled.get() == 4,
        );
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_sleeping_shard_gets_every_message() {
    check(|| {
        let (mailbox, kernel) = mailbox();
        let ran = Arc::new(AtomicU64::new(0));
        let generation = mailbox.generation();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (mailbox, ran) = (Arc::clone(&mailbox), Arc::clone(&ran));
                thread::spawn(move || {
                    for _ in 0..2 {
                        let ran = Arc::clone(&ran);
                        let message = Box::new(move || {
                            ran.fetch_add(1, Ordering::SeqCst);
                        });
                        assert!(mailbox.send_to(generation, message));
                    }
                })
            })
            .collect();
        drive(
            &mailbox,
            &kernel,
            || {
                while let Some(message) = mailbox.take_message() {
                    message();
                }
            },
            || ran.load(Ordering::SeqCst) == 4,
        );
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(mailbox.take_message().is_none());
    });
}

#[test]
fn every_waiter_of_a_signal_sees_the_change() {
    check(|| {
        let table = Arc::new((AtomicU64::new(0), Signal::default()));
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let table = Arc::clone(&table);
                thread::spawn(move || {
                    future::block_on(table.1.wait_until(|| table.0.load(Ordering::SeqCst) == 2));
                })
            })
            .collect();
        let notifiers: Vec<_> = (0..2)
            .map(|_| {
                let table = Arc::clone(&table);
                thread::spawn(move || {
                    table.0.fetch_add(1, Ordering::SeqCst);
                    table.1.notify();
                })
            })
            .collect();
        for thread in waiters.into_iter().chain(notifiers) {
            thread.join().unwrap();
        }
    });
}

/// Each is told of its own number only, or of a higher one.
#[test]
fn every_waiter_of_a_number_sees_that_it_has_come() {
    check(|| {
        let table = Arc::new((AtomicU64::new(0), Signal::default()));
        let waiters: Vec<_> = (1..=2)
            .map(|number| {
                let table = Arc::clone(&table);
                thread::spawn(move || {
                    let has_come = || (table.0.load(Ordering::SeqCst) >= number).then_some(());
                    future::block_on(table.1.wait_for_number(number, has_come));
                })
            })
            .collect();
        let notifiers: Vec<_> = (0..2)
            .map(|_| {
                let table = Arc::clone(&table);
                thread::spawn(move || {
                    let number = table.0.fetch_add(1, Ordering::SeqCst) + 1;
                    table.1.notify_to(number);
                })
            })
            .collect();
        for thread in waiters.into_iter().chain(notifiers) {
            thread.join().unwrap();
        }
    });
}

/// What `consistency/queue.rs` of the engine does with numbers: a task that finds no record being written
/// writes the next, and then wakes those that are in it and the oldest that waits.
#[derive(Default)]
struct Group {
    next: u64,
    durable: u64,
    waiting: VecDeque<u64>,
    leads: bool,
}

fn log(group: &Mutex<Group>, changed: &Signal) {
    let ticket = {
        let mut group = group.lock().unwrap();
        let ticket = group.next;
        group.next += 1;
        group.waiting.push_back(ticket);
        ticket
    };
    loop {
        let turn = || {
            let mut group = group.lock().unwrap();
            if ticket < group.durable {
                return Some(ControlFlow::Break(()));
            }
            if group.leads {
                return None;
            }
            let written = group.waiting.pop_front()?;
            group.leads = true;
            Some(ControlFlow::Continue(written))
        };
        let ControlFlow::Continue(written) = future::block_on(changed.wait_for_number(ticket, turn)) else {
            return;
        };
        let oldest = {
            let mut group = group.lock().unwrap();
            (group.leads, group.durable) = (false, written + 1);
            group.waiting.front().copied().unwrap_or(u64::MAX)
        };
        changed.notify_to(oldest);
    }
}

#[test]
fn the_oldest_that_waits_is_never_forgotten() {
    check(|| {
        let shared = Arc::new((Mutex::new(Group::default()), Signal::default()));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || log(&shared.0, &shared.1))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}
