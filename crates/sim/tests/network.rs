//! Some lives of arrays with members over the network. `cargo xtask sim` runs more of them.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use pinstripe_sim::swarm::{self, FIRST_SEED_OF_NET, Summary};

#[test]
fn lives_over_the_network_keep_every_byte_leave_nothing_at_the_servers_and_repeat_themselves() {
    let mut all = Summary::default();
    for seed in FIRST_SEED_OF_NET..FIRST_SEED_OF_NET + 10 {
        match swarm::run_twice(seed) {
            Ok(summary) => all.add(&summary),
            Err(failure) => panic!("{failure}"),
        }
    }
    assert!(all.takeovers > 0 && all.servers_lost > 0 && all.partitions > 0 && all.links_cut > 0, "{all:?}");
    assert!(all.readds > 0 && all.rests > 5, "{all:?}");
}
