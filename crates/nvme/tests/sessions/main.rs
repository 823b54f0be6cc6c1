//! Target and initiator against each other, and the target against a host that speaks in bytes.
#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail as the test itself")]

mod admin;
mod auth;
mod both;
mod host;
mod leaving;
mod leaving_hosts;
mod offload;
mod strict;
mod target;
#[path = "../../../export/tests/nbd/world.rs"]
#[allow(dead_code, reason = "the tests of NBD use more of it")]
mod world;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use pinstripe_nvme::auth::Authentication;
use pinstripe_nvme::controller::{
    LeftQueue, NamespaceConfig, SessionEnd, Subsystem, SubsystemConfig, Target,
};
use pinstripe_runtime::{Stream, shard};

const NQN: &str = "nqn.2026-01.com.example:test";

/// One for each array.
fn namespaces(arrays: &[world::Array]) -> Vec<NamespaceConfig> {
    let namespace = |(index, array): (usize, &world::Array)| NamespaceConfig {
        uuid: [u8::try_from(index).unwrap() + 1; 16],
        size_bytes: array.seen.borrow().data.len() as u64,
        block_size: 512,
        preferred_block: 4096,
        read_only: false,
    };
    arrays.iter().enumerate().map(namespace).collect()
}

/// A subsystem of one namespace for each array.
fn subsystem(arrays: &[world::Array], authentication: Option<Authentication>) -> Arc<Subsystem> {
    let config = SubsystemConfig {
        nqn: NQN.to_owned(),
        serial: "0123456789abcdef".to_owned(),
        namespaces: namespaces(arrays),
        queues_max: 4,
        addresses: vec!["127.0.0.1:4420".parse().unwrap()],
    };
    Subsystem::with(config, authentication, None).unwrap()
}

fn target(arrays: &[world::Array]) -> (Arc<Subsystem>, Target<world::Array>) {
    target_of(arrays, None)
}

fn target_of(
    arrays: &[world::Array],
    authentication: Option<Authentication>,
) -> (Arc<Subsystem>, Target<world::Array>) {
    let subsystem = subsystem(arrays, authentication);
    (Arc::clone(&subsystem), Target::new(subsystem, arrays.to_vec()))
}

thread_local! {
    /// Connections that targets have left.
    static LEFT: RefCell<Vec<(LeftQueue, Rc<world::Pipe>)>> = const { RefCell::new(Vec::new()) };
}

/// A connection that the target serves.
fn dial(random: &Rc<world::Random>, target: &Target<world::Array>) -> Rc<world::Pipe> {
    dial_of(random, target, None)
}

/// The same, which may have proved to be of a host.
fn dial_of(
    random: &Rc<world::Random>,
    target: &Target<world::Array>,
    host: Option<String>,
) -> Rc<world::Pipe> {
    let (ours, theirs) = world::pipe(random, 1 << 16);
    let target = target.clone();
    shard::spawn(async move {
        if let SessionEnd::Left(queue) = target.serve_of(Rc::clone(&theirs) as Rc<dyn Stream>, host).await {
            LEFT.with_borrow_mut(|left| left.push((queue, theirs)));
        }
    });
    ours
}

/// Runs `body` under some seeds.
fn seeds<F: Future<Output = ()> + 'static>(count: u64, body: impl Fn(Rc<world::Random>) -> F) {
    for seed in 0..count {
        let random = Rc::new(world::Random::new(seed));
        world::run(&random, || body(Rc::clone(&random)));
        LEFT.take();
    }
}
