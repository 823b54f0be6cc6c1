//! A run over models of drives: the same run, in the simulator's world.
//!
//! All shards are on this thread, and time is virtual: it goes on only when every task waits for a drive or
//! for the clock. So a run says what drives allow, whatever machine it runs on; what the CPU takes and what
//! shards wait for each other is nothing here. The order of events is orderly (no shard is taken off its CPU,
//! no task overtakes another) and comes from the seed: the same seed gives the same numbers.

use std::{future::Future, sync::Arc};

use pinstripe_runtime::{DeviceSource, uring::Context};
use pinstripe_sim::{Drive, Rng, Schedule, SimDisk, SimDiskConfig, World, WorldConfig};

use crate::{
    arguments::{BenchArgs, DeviceSpec},
    fits::{self, Fits},
    progress::{Phase, Tell},
    report::Report,
    run::{BenchError, measure},
    setup::{Setup, set_up_on},
};

/// Of each shard, as in `RuntimeConfig`.
const ARENA_BYTES: usize = 64 << 20;
/// Platters have turned so far at most: more than a revolution of any.
pub(crate) const PHASE_NS_MAX: u64 = 1_000_000_000;

/// Makes the array, measures it, checks it.
pub(crate) fn run(arguments: &BenchArgs, tell: &Tell) -> Result<Report, BenchError> {
    let tell = Arc::clone(tell);
    tell(Phase::Preparing);
    on_array(arguments, fits::load, move |arguments, context, setup| async move {
        Box::pin(measure(&arguments, &context, &setup, &tell)).await
    })
}

/// Makes the array, if what is asked for `fits` it, and does `work` on it.
pub(crate) fn on_array<T: 'static, F: Future<Output = Result<T, BenchError>> + 'static>(
    arguments: &BenchArgs,
    fits: Fits,
    work: impl FnOnce(BenchArgs, Context, Setup) -> F + 'static,
) -> Result<T, BenchError> {
    let members = members(arguments)?;
    let mut world = World::new(WorldConfig {
        arena_bytes: ARENA_BYTES,
        schedule: Some(Schedule::orderly()),
        ..WorldConfig::new(arguments.seed, arguments.shards)
    });
    let disks: Vec<SimDisk> = members.into_iter().map(|member| world.add_disk(member)).collect();
    let sources: Vec<Arc<dyn DeviceSource>> = disks.iter().map(SimDisk::source).collect();
    let context = Context::of((0..world.shards()).map(|index| world.shard(index).handle()));
    let arguments = arguments.clone();
    let run = async move {
        let setup = set_up_on(&arguments, &context, fits, sources, Vec::new(), true).await?;
        work(arguments, context, setup).await
    };
    world.block_on(0, "bench", u64::MAX, run).map_err(|stuck| BenchError::Stuck(stuck.to_string()))?
}

/// The members, which hold nothing but zeroes.
fn members(arguments: &BenchArgs) -> Result<Vec<SimDiskConfig>, BenchError> {
    if arguments.attended {
        return Err(BenchError::NotVirtual("--attended"));
    }
    let model = |device: &DeviceSpec| match device {
        DeviceSpec::Model { model, bytes } => Ok((*model, *bytes)),
        DeviceSpec::Memory(_) | DeviceSpec::Path(_) | DeviceSpec::Paced { .. } => {
            Err(BenchError::MixedDevices)
        }
    };
    let mut models: Vec<_> = arguments.devices.iter().map(model).collect::<Result<_, _>>()?;
    let devices = models.len();
    if let [only] = models[..] {
        models = vec![only; arguments.memory_members()];
    } else if let Some(members) = arguments.members.filter(|&members| members != devices) {
        return Err(BenchError::MemberCount { members, devices });
    }
    let mut rng = Rng::new(arguments.seed);
    let member = |(slot, (model, bytes)): (usize, (pinstripe_sim::Model, u64))| {
        let fresh = Drive::new(model, rng.below(PHASE_NS_MAX));
        let drive = if arguments.used_up { fresh.used_up() } else { fresh };
        SimDiskConfig::modelled(&format!("{}/{slot}", model.name), bytes, drive)
    };
    Ok(models.into_iter().enumerate().map(member).collect())
}
