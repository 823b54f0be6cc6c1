//! What else may happen over the network: a client loses all that it has with a server while requests are on
//! their way, which arrive when it has long been there again; and a server's process stands still, and goes
//! on as if nothing had been.

use super::{
    Testbed,
    net::COMMAND_NS,
    net_events::{LATE_NS, lose_server},
    owner,
};

/// Shorter than anything that waits for a server bears.
const SHORT_NS: u64 = 500_000_000;

/// One event of this kind.
pub(super) fn event(bed: &mut Testbed) {
    match bed.rng.below(8) {
        0..=2 if bed.setup.failures => client_loses_server(bed),
        3..=5 if bed.setup.failures => server_stands_still(bed),
        6 => server_pauses(bed),
        7 => owner::give_back(bed),
        _ => {}
    }
}

/// A client loses every connection with a server, which hears nothing of that, and gets late what had
/// been sent.
fn client_loses_server(bed: &mut Testbed) {
    let Some((_, disk)) = bed.victim() else { return };
    bed.summary.links_cut += 1;
    lose_server(bed, disk);
    bed.hosts.note("client loses server", disk);
    let wires = bed.hosts.wires(bed.hosts.link_to(disk));
    for wire in &wires {
        wire.near.lose();
    }
    let time = bed.rng.below(LATE_NS);
    bed.hosts.hold(wires, time, true);
}

/// A server's process stands still for longer than the client waits, and goes on.
fn server_stands_still(bed: &mut Testbed) {
    let Some((_, disk)) = bed.victim() else { return };
    if bed.hosts.is_down(disk) {
        return;
    }
    lose_server(bed, disk);
    let time = COMMAND_NS / 2 + bed.rng.below(3 * COMMAND_NS);
    bed.summary.stalls += 1;
    bed.hosts.stall_server(disk, time);
}

/// The same, for less than anything waits.
fn server_pauses(bed: &mut Testbed) {
    let disk = bed.some_disk();
    let time = bed.rng.below(SHORT_NS);
    bed.summary.stalls += 1;
    bed.hosts.stall_server(disk, time);
}
