//! Each deliberate defect is found by a seed that passes without it.

use pinstripe_nvme::mutants::{Mutant, activate};

use crate::offload;
use crate::run::{Server, run};

/// Seeds that are tried for a defect.
const SEEDS: u64 = 400;
/// Where a defect was found that few seeds show. Where a change has made such a seed another run, the others
/// are tried.
const KNOWN: &[(Mutant, u64)] = &[
    (Mutant::SilenceIgnored, 152),
    (Mutant::DrainSkipped, 62),
    (Mutant::HeaderDigestIgnored, 30),
    (Mutant::FuaDropped, 22),
];

/// The server that shows it: what our target never does, such as asking for data in parts, a foreign server
/// does.
fn server(mutant: Mutant) -> Server {
    match mutant {
        Mutant::ReadyOffsetIgnored | Mutant::DataOffsetIgnored => Server::Foreign,
        _ => Server::Ours,
    }
}

/// Of the servers that compute.
fn is_offload(mutant: Mutant) -> bool {
    matches!(
        mutant,
        Mutant::PeerNotDeduplicated
            | Mutant::LatePeerAdded
            | Mutant::UnpreparedCommitted
            | Mutant::PlainWritesUnfenced
            | Mutant::ProcessesTakenForOne
            | Mutant::EpochNotDurable
            | Mutant::PeersOutliveEpoch
            | Mutant::PartsExchanged
            | Mutant::StaleAccepted
            | Mutant::OperationsOutliveController
            | Mutant::WrittenBeforeCommit
            | Mutant::FencedReadmitted
            | Mutant::EndedOwnerAttaches
            | Mutant::AloneIgnored
            | Mutant::AttachNotDrained
    )
}

/// Runs the seed of what shows it.
fn found(mutant: Mutant, seed: u64) -> Result<(), String> {
    if is_offload(mutant) { offload::run(seed) } else { run(seed, server(mutant)) }
}

#[test]
fn every_defect_is_found_by_a_seed_that_passes_without_it() {
    all_are_found(|mutant| !is_offload(mutant));
}

#[test]
fn every_defect_of_servers_that_compute_is_found_by_a_seed_that_passes_without_it() {
    all_are_found(is_offload);
}

fn all_are_found(which: impl Fn(Mutant) -> bool) {
    let mut survivors = Vec::new();
    let elsewhere =
        |mutant: &Mutant| Mutant::OF_LIVES.contains(mutant) || Mutant::OF_SESSIONS.contains(mutant);
    let of_sessions = |mutant: &&Mutant| which(**mutant) && !elsewhere(mutant);
    for &mutant in Mutant::ALL.iter().filter(of_sessions) {
        let dies = |seed: &u64| {
            activate(Some(mutant));
            let found = found(mutant, *seed);
            activate(None);
            found.is_err()
        };
        let known = KNOWN.iter().filter(|(name, _)| *name == mutant).map(|(_, seed)| *seed);
        match known.chain(0..SEEDS).find(dies) {
            Some(seed) => {
                println!("{mutant:?}: seed {seed}");
                assert_eq!(found(mutant, seed), Ok(()), "seed {seed} fails without {mutant:?}");
            }
            None => survivors.push(mutant),
        }
    }
    assert!(survivors.is_empty(), "not found: {survivors:?}");
}
