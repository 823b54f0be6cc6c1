//! Each deliberate defect in what is asked of servers that compute is caught by a directed scene, which
//! passes without it.
//!
//! `cargo test -p pinstripe-engine --features mutants --test engine offload_mutants::`

use std::rc::Rc;

use crate::arrays::{
    net::{CHUNK, Net, plan},
    options,
};
use pinstripe_engine::{
    assembly::create::create_with,
    mutants::{Mutant, activate},
};
use pinstripe_md::{
    level::Level,
    placement::{NewBitmap, NewLog},
};
use pinstripe_runtime::shard;

const CHUNK_SECTORS: u64 = CHUNK / 512;
const SEEDS: u64 = 4;

/// Whether all went well with a seed.
type Scene = fn(u64) -> bool;

fn array(seed: u64, level: Level) -> Net {
    let members = if level == Level::Raid6 { 5 } else { 4 };
    let mut net = Net::of(seed, plan(level, "left-symmetric", members));
    net.scene.write(0, 9 * CHUNK_SECTORS, false).unwrap();
    net
}

/// Reads everything; says whether the ledger finds no wrong byte.
fn is_right(net: &mut Net) -> bool {
    let (volume, ledger) = (net.scene.volume(), Rc::clone(&net.scene.ledger));
    net.scene.run(async move {
        for at in (0..volume.size() / 512).step_by(32) {
            let id = ledger.borrow_mut().begin_read(at..at + 32);
            let (result, buffer) = volume.read(at * 512, shard::buffer(32 * 512)).await;
            if result.is_err() || ledger.borrow_mut().check_read(id, &buffer).is_err() {
                return false;
            }
        }
        true
    })
}

fn is_settled(net: &mut Net) -> bool {
    net.sleep(6_000);
    net.servers.iter().all(|server| server.open_operations().is_empty())
        && net.script.complaints.borrow().is_empty()
}

fn parity_matches(net: &mut Net) -> bool {
    let array = net.scene.array.clone();
    net.scene.run(async move { array.check().await }).is_ok_and(|report| report.mismatched_sectors == 0)
}

/// Partial writes of a healthy array: parity matches, no member is dropped.
fn healthy(seed: u64) -> bool {
    let mut net = array(seed, Level::Raid6);
    let writes = (0..9).all(|chunk| net.scene.write(chunk * CHUNK_SECTORS + 3, 20, false).is_ok());
    writes && net.scene.array.detail().missing == 0 && parity_matches(&mut net) && is_settled(&mut net)
}

/// A server refuses its part.
fn refused(seed: u64) -> bool {
    let mut net = array(seed, Level::Raid5);
    net.servers[usize::try_from(seed).unwrap() % 4].refuses.set(1);
    (0..3).all(|stripe| net.scene.write(stripe * 3 * CHUNK_SECTORS, 12, false).is_ok())
        && is_settled(&mut net)
}

/// A server has lost what it was to write, and lives on.
fn lost_commit(seed: u64) -> bool {
    let mut net = array(seed, Level::Raid5);
    net.servers[usize::try_from(seed).unwrap() % 4].refuses_commit.set(1);
    (0..9).all(|chunk| net.scene.write(chunk * CHUNK_SECTORS, 12, false).is_ok())
        && is_right(&mut net)
        && parity_matches(&mut net)
}

/// Columns of missing members are written.
fn missing_column(seed: u64) -> bool {
    let mut net = array(seed, Level::Raid6);
    net.lose(usize::try_from(seed).unwrap() % 5);
    net.lose((usize::try_from(seed).unwrap() + 2) % 5);
    (0..9).all(|chunk| net.scene.write(chunk * CHUNK_SECTORS, 12, false).is_ok()) && is_right(&mut net)
}

/// Parity that the client has written and keeps, then a server writes it, then the client changes it.
fn cached_parity(seed: u64) -> bool {
    let mut net = array(seed, Level::Raid5);
    // Stripe 0 has its data on the members 0, 1, 2.
    net.lose(0);
    let pause = |net: &mut Net| {
        net.servers.iter().for_each(|server| server.refuses.set(1));
        net.scene.write(3 * CHUNK_SECTORS, 8, false).unwrap();
        net.servers.iter().for_each(|server| server.refuses.set(0));
    };
    pause(&mut net);
    for _ in 0..3 {
        net.scene.write(CHUNK_SECTORS, 8, false).unwrap();
    }
    net.sleep(11_000);
    net.scene.write(0, 8, false).unwrap();
    assert!(net.statistics().offloaded_runs > 0);
    pause(&mut net);
    net.scene.write(CHUNK_SECTORS, 8, false).unwrap();
    net.sleep(11_000);
    is_right(&mut net)
}

/// An array with a partial parity log: its servers change nothing that the log doesn't know.
fn with_log(seed: u64) -> bool {
    let mut wish = plan(Level::Raid5, "left-symmetric", 4);
    wish.bitmap = NewBitmap::None;
    wish.data_offset = Some(pinstripe_md::units::Sector(4096));
    wish.members.iter_mut().for_each(|member| member.sectors = 6 << 11);
    let mut net = Net::made_by(seed, wish, 2, options(), 64, |wish, devices| async move {
        create_with(&wish, NewLog::Ppl, &devices).await.unwrap();
    });
    let written = (0..9).all(|chunk| net.scene.write(chunk * CHUNK_SECTORS, 8, false).is_ok());
    assert_eq!(net.scene.array.detail().consistency_policy, "ppl");
    written && net.servers.iter().all(|server| server.count("partial_write") == 0)
}

/// Another host takes the array over and leaves: this one writes nothing more, although the servers would let
/// it.
fn taken_and_left(seed: u64) -> bool {
    let mut net = array(seed, Level::Raid5);
    net.sleep(2_000);
    net.servers[usize::try_from(seed).unwrap() % 4].taken_and_left(false);
    net.scene.write(0, 8, false).is_err()
}

/// An array that is assembled from devices in another order.
fn another_order(seed: u64) -> bool {
    let mut net = array(seed, Level::Raid5);
    net.scene.stop();
    net.script.attached.borrow_mut().clear();
    net.reassemble();
    net.script.attached.borrow().starts_with(&[0, 1, 2, 3])
}

/// A start that fails when the servers are attached already.
fn failed_start(seed: u64) -> bool {
    let mut net = array(seed, Level::Raid5);
    net.scene.stop();
    net.scene.disks[usize::try_from(seed).unwrap() % 4].fault(&pinstripe_sim::Fault::FailFlushes(1));
    assert!(net.try_reassemble().is_err());
    net.servers.iter().all(|server| server.is_given_up())
}

#[test]
fn every_defect_in_what_servers_are_asked_for_is_caught() {
    let scenes: [(Mutant, Scene); 11] = [
        (Mutant::OffloadCommitsEarly, healthy),
        (Mutant::OffloadQForP, healthy),
        (Mutant::OffloadKeepsParity, cached_parity),
        (Mutant::OffloadUnresolved, refused),
        (Mutant::OffloadCommitErrorIgnored, lost_commit),
        (Mutant::OffloadPastLog, with_log),
        (Mutant::OffloadSuppliedForgotten, missing_column),
        (Mutant::OffloadWrongCoefficient, missing_column),
        (Mutant::TakeoverUnnoticed, taken_and_left),
        (Mutant::AttachedAsGiven, another_order),
        (Mutant::FailedStartStaysAttached, failed_start),
    ];
    assert_eq!(scenes.map(|(mutant, _)| mutant).as_slice(), Mutant::OF_OFFLOAD);
    for (mutant, scene) in scenes {
        assert!((0..SEEDS).all(scene), "the scene of {mutant:?} fails without it");
        activate(Some(mutant));
        let caught = (0..SEEDS).any(|seed| !scene(seed));
        activate(None);
        assert!(caught, "{mutant:?} survives");
    }
}
