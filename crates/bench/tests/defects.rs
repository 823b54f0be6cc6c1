//! Every run ends with a check that fails where data or parity is wrong: with a defect of the engine, it
//! does.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{fmt::Write as _, fs, sync::Arc};

use pinstripe_bench::{BenchArgs, BenchError, DeviceSpec, Tell, run, run_objects, run_trace};
use pinstripe_engine::mutants::{Mutant, activate};
use pinstripe_md::level::Level;

/// Under virtual time the engine runs on the thread for which a defect is turned on.
fn arguments() -> BenchArgs {
    let model: DeviceSpec = "model:980-pro:16M".parse().unwrap();
    BenchArgs {
        level: Level::Raid6,
        devices: vec![model],
        members: Some(6),
        chunk: 16 << 10,
        seconds: 0.02,
        warm_up: 0.0,
        ..BenchArgs::defaults()
    }
}

/// The three kinds of run, of the same array.
fn outcomes(mutant: Option<Mutant>) -> [Result<(), BenchError>; 3] {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    // Side by side, so that writes join; and here and there, so that they are read-modify-writes.
    let places = (0..2000_u64).chain((0..2000).map(|number| 2000 + number * 7919 % 2000));
    let text = places.fold(String::new(), |mut text, place| {
        let _ = writeln!(text, "W\t{}\t4096", place * 4096);
        text
    });
    fs::write(&trace, text).unwrap();
    let tell: Tell = Arc::new(|_| {});
    activate(mutant);
    let outcomes = [
        run(&arguments()).map(drop),
        run_trace(&BenchArgs { trace: Some(trace), ..arguments() }, &tell).map(drop),
        run_objects(&BenchArgs { objects: Some(200), size: 8192, ..arguments() }, &tell).map(drop),
    ];
    activate(None);
    outcomes
}

#[test]
fn without_a_defect_every_run_ends_well() {
    for outcome in outcomes(None) {
        outcome.unwrap();
    }
}

#[test]
fn a_rebuild_that_leaves_something_out_fails_the_run() {
    let rebuild = || run(&BenchArgs { rebuild: Some(1), fill: true, ..arguments() });
    let lost = || run(&BenchArgs { lost: vec![1], ..arguments() });
    rebuild().and(lost()).unwrap();
    activate(Some(Mutant::RebuildEndsEarly));
    let outcomes = [rebuild(), lost()];
    activate(None);
    for outcome in outcomes {
        assert!(
            matches!(outcome, Err(BenchError::WrongData(_) | BenchError::Mismatch { .. })),
            "{:?}",
            outcome.map(|report| report.to_string())
        );
    }
}

#[test]
fn a_scrub_that_finds_wrong_parity_fails_the_run() {
    for (index, outcome) in outcomes(Some(Mutant::WrongCoefficient)).into_iter().enumerate() {
        assert!(matches!(outcome, Err(BenchError::Mismatch { sectors: 1.., .. })), "{index}: {outcome:?}");
    }
}

#[test]
fn data_that_is_not_what_was_acknowledged_fails_the_run() {
    for (index, outcome) in outcomes(Some(Mutant::FollowerLost)).into_iter().enumerate() {
        assert!(matches!(outcome, Err(BenchError::WrongData(_))), "{index}: {outcome:?}");
    }
}
