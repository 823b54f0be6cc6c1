//! Both ends of NVMe/TCP in the simulated world: connections are cut at any step, packets are late, bytes are
//! damaged, the server's device hangs, power fails. A ledger knows which bytes a read may return.
//!
//! With the feature `mutants`, every deliberate defect of the crate must be found here.
#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail as the test itself")]

#[cfg(feature = "mutants")]
mod defects;
mod foreign;
mod intruder;
mod network;
mod offload;
mod run;
mod users;

use run::{Server, run};

fn all_pass(seeds: std::ops::Range<u64>, server: Server) {
    for seed in seeds {
        if let Err(words) = run(seed, server) {
            panic!("seed {seed}: {words}");
        }
    }
}

#[test]
fn whatever_is_cut_or_late_every_command_is_decided_and_every_byte_is_right() {
    all_pass(0..24, Server::Ours);
}

#[test]
fn rows_written_by_their_servers_are_right_whatever_is_cut_late_or_dead() {
    let seeds = std::env::var("PINSTRIPE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(16);
    for seed in 0..seeds {
        if let Err(words) = offload::run(seed) {
            panic!("seed {seed}: {words}");
        }
    }
}

#[test]
fn a_server_that_moves_data_in_pieces_and_answers_out_of_order_is_served_right() {
    all_pass(0..12, Server::Foreign);
}
