//! Scenes of requests with FUA over a front end's seam: whatever kind they are of, they are durable when they
//! are answered (C32).

use pinstripe_block::{BlockService, mutants::Mutant};
use pinstripe_engine::io::service::VolumeService;
use pinstripe_md::{level::Level, placement::NewBitmap};
use pinstripe_runtime::shard;

use super::{Verdict, scenarios::Scenario};
use crate::scene::{STEPS, Scene};

/// A defect of the exports, and the scene that finds it and passes without it.
pub const EXPORT_SCENARIOS: &[(Mutant, Scenario)] = &[
    (Mutant::FuaDropped, a_forced_write_outlives_a_crash),
    (Mutant::TrimFuaDropped, a_forced_trim_outlives_a_crash),
    (Mutant::ZeroesFuaDropped, forced_zeroes_outlive_a_crash),
];

/// Of a RAID5 of four disks.
const STRIPE: u64 = 48 << 10;
const SEEDS: u64 = 8;

fn expect(what: &str, holds: bool) -> Result<(), Verdict> {
    if holds { Ok(()) } else { Err(Verdict::Scene(what.to_owned())) }
}

/// Writes two stripes, has them changed by `act`, and lets the power fail as soon as that is answered. The
/// bytes that are there then.
fn after_a_crash<F>(seed: u64, act: impl FnOnce(VolumeService) -> F) -> Result<[u8; 2], Verdict>
where
    F: Future<Output = Result<(), pinstripe_block::ServiceError>> + 'static,
{
    let refused = |error: &dyn ToString| Verdict::Refused(error.to_string());
    let mut scene = Scene::new(seed, Level::Raid5, NewBitmap::None)?;
    let array = scene.start(&[0, 1, 2, 3], false)?.map_err(|error| refused(&error))?;
    for at in (0..2 * STRIPE).step_by(4096) {
        scene.write(&array, at, 0x77)?;
    }
    let service = VolumeService::new(array.volume().clone(), |_| ());
    let answer = scene.world.block_on(0, "forced", STEPS, act(service))?;
    answer.map_err(|error| refused(&format!("{error:?}")))?;
    scene.crash(array);
    let array = scene.start(&[0, 1, 2, 3], false)?.map_err(|error| refused(&error))?;
    let bytes = [scene.read(&array, 4096)?, scene.read(&array, STRIPE + 4096)?];
    scene.crash(array);
    Ok(bytes)
}

fn a_forced_write_outlives_a_crash() -> Result<(), Verdict> {
    const TWO_STRIPES: usize = 96 << 10;
    for seed in 0..SEEDS {
        let write = |service: VolumeService| async move {
            let mut data = shard::buffer(TWO_STRIPES);
            data.fill(0x33);
            service.write(0, data.freeze(), true).await
        };
        let bytes = after_a_crash(seed, write)?;
        expect("a forced write is gone after a crash", bytes == [0x33, 0x33])?;
    }
    Ok(())
}

fn a_forced_trim_outlives_a_crash() -> Result<(), Verdict> {
    for seed in 0..SEEDS {
        let trim = |service: VolumeService| async move { service.discard(0, 2 * STRIPE, true).await };
        let bytes = after_a_crash(seed, trim)?;
        expect("what a forced trim made zero is back after a crash", bytes == [0, 0])?;
    }
    Ok(())
}

fn forced_zeroes_outlive_a_crash() -> Result<(), Verdict> {
    for seed in 0..SEEDS {
        let zero = move |service: VolumeService| async move {
            service.write_zeroes(0, 2 * STRIPE, true, seed % 2 == 0).await
        };
        let bytes = after_a_crash(seed, zero)?;
        expect("forced zeroes are gone after a crash", bytes == [0, 0])?;
    }
    Ok(())
}
