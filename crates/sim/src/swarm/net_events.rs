//! What happens to clients, servers and the network while the array is served.

use super::{
    Testbed,
    hosts::server_node,
    net::{COMMAND_NS, Node},
    owner, wild,
};

/// A break too short for a node to have to notice.
const BLINK_NS: u64 = 300_000_000;
/// How late at most comes what an association carried that the client has lost: before the server gives it
/// up.
pub(super) const LATE_NS: u64 = 5_000_000_000;
/// Longer than a client bears.
const LONG_NS: u64 = 2 * COMMAND_NS;

/// One event, or none.
pub(super) fn event(bed: &mut Testbed) {
    let Some(setup) = bed.setup.net.clone() else { return };
    if !bed.rng.chance(setup.liveliness, 8) {
        return;
    }
    if setup.wild && bed.rng.chance(1, 2) {
        return wild::event(bed);
    }
    match bed.rng.below(16) {
        0 | 1 if bed.setup.failures => server_dies(bed),
        2 if bed.setup.failures => client_is_cut_off(bed),
        3 if bed.setup.failures => association_is_reset(bed),
        4 | 5 => peers_are_reset(bed),
        6..=8 => peers_are_parted(bed),
        9 => client_blinks(bed),
        10..=12 => owner::give_back(bed),
        13 => owner::replace(bed),
        _ => {}
    }
}

/// A server dies, with what its disk's cache holds.
fn server_dies(bed: &mut Testbed) {
    let Some((_, disk)) = bed.victim() else { return };
    if bed.hosts.is_down(disk) {
        return;
    }
    bed.summary.servers_lost += 1;
    bed.doom(disk);
    let silent = bed.rng.chance(1, 4);
    bed.hosts.note("server dies", disk);
    bed.hosts.kill_server(disk, silent);
    let after = bed.rng.pick(&[1_000_000, 50_000_000, 3_000_000_000]);
    let at = bed.hosts.world.now() + bed.rng.below(after);
    if bed.rng.chance(3, 4) {
        bed.hosts.revive_at(at, disk);
    }
}

/// A server loses the client, which is one member less.
fn association_is_reset(bed: &mut Testbed) {
    let Some((_, disk)) = bed.victim() else { return };
    bed.summary.links_cut += 1;
    lose_server(bed, disk);
    bed.hosts.note("association is reset", disk);
    let mut wires = bed.hosts.wires(bed.hosts.link_to(disk));
    if wires.is_empty() {
        return;
    }
    let reset = wires.remove(bed.rng.index(wires.len()));
    if bed.hosts.is_hasty() && bed.rng.chance(1, 2) {
        // What the other connections carry arrives when the client has long been there again over new
        // ones.
        let time = bed.rng.below(LATE_NS);
        bed.hosts.hold(wires, time, false);
    }
    reset.near.reset();
}

/// A member is to lose its server, or the client is to think so.
pub(super) fn lose_server(bed: &mut Testbed, disk: usize) {
    bed.doom(disk);
    bed.hosts.strike(disk);
}

/// Client and server don't hear each other for longer than they wait.
fn client_is_cut_off(bed: &mut Testbed) {
    let Some((_, disk)) = bed.victim() else { return };
    bed.summary.partitions += 1;
    lose_server(bed, disk);
    bed.hosts.note("client is cut off from", disk);
    bed.hosts.part(bed.hosts.link_to(disk), LONG_NS);
}

/// The same, too short for a node to have to notice.
fn client_blinks(bed: &mut Testbed) {
    let server = bed.some_disk();
    bed.summary.partitions += 1;
    let time = bed.rng.below(BLINK_NS);
    bed.hosts.part(bed.hosts.link_to(server), time);
}

fn two_servers(bed: &mut Testbed) -> Option<(Node, Node)> {
    let (one, other) = (bed.some_disk(), bed.some_disk());
    (one != other).then_some((server_node(one), server_node(other)))
}

fn peers_are_reset(bed: &mut Testbed) {
    let Some(pair) = two_servers(bed) else { return };
    bed.summary.links_cut += 1;
    bed.hosts.wires(pair).iter().for_each(|wire| wire.near.reset());
}

fn peers_are_parted(bed: &mut Testbed) {
    let Some(pair) = two_servers(bed) else { return };
    bed.summary.partitions += 1;
    let time = bed.rng.pick(&[1_000_000, 100_000_000, LONG_NS]);
    let time = 1 + bed.rng.below(time);
    bed.hosts.part(pair, time);
}
