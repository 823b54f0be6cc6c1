//! After the run: is the array what the acknowledged writes left?

use std::sync::Arc;

use pinstripe_engine::array::Array;
use pinstripe_runtime::shard;

use crate::{
    arguments::BenchArgs,
    destination::{Destination, RequestError},
    ledger::{Bodies, Region, check},
    loss,
    report::Verified,
    run::BenchError,
    setup::Setup,
};

/// Bytes that are read back at a time, at least one unit.
const SPAN_BYTES: u64 = 1 << 20;

/// Reads every written unit back and scrubs the array. Wrong data is an error.
pub(crate) async fn verify(
    array: &Array,
    arguments: &BenchArgs,
    regions: &[Arc<Region>],
    zeroed: bool,
) -> Result<Verified, BenchError> {
    let read_back = read_back_all(&Destination::Engine(array.volume().clone()), regions, zeroed).await?;
    Ok(Verified { units: read_back.units, ..scrub(array, arguments, zeroed).await? })
}

/// Reads back what was written, again once members that were lost are back, compares it with its parity and
/// stops the array. Gives what was read last.
pub(crate) async fn check_and_stop<T>(
    setup: &Setup,
    arguments: &BenchArgs,
    zeroed: bool,
    read_back: impl AsyncFn() -> Result<T, BenchError>,
) -> Result<(T, Verified), BenchError> {
    // What the others say of the missing members' data, before those are made from it.
    let mut found = read_back().await?;
    if !arguments.lost.is_empty() {
        loss::bring_back(setup, &arguments.lost).await?;
        found = read_back().await?;
    }
    let scrubbed = scrub(&setup.array, arguments, zeroed).await?;
    setup.array.stop().await.map_err(RequestError::from)?;
    Ok((found, scrubbed))
}

/// Compares all data with its parity, if there is any. A mismatch is an error.
async fn scrub(array: &Array, arguments: &BenchArgs, zeroed: bool) -> Result<Verified, BenchError> {
    if !arguments.level.has_parity() {
        return Ok(Verified::default());
    }
    let report = array.check().await?;
    let (sectors, unreadable) = (report.mismatched_sectors, report.unreadable_stripes);
    if sectors > 0 && arguments.assume_clean && !zeroed {
        return Err(BenchError::NotClean { sectors });
    }
    if sectors > 0 || unreadable > 0 {
        return Err(BenchError::Mismatch { sectors, unreadable });
    }
    Ok(Verified { units: 0, stripes: report.stripes, mismatched_sectors: 0 })
}

/// Reads every written unit back; with `zeroed` the others too, which must still be zero.
pub(crate) async fn read_back_all(
    destination: &Destination,
    regions: &[Arc<Region>],
    zeroed: bool,
) -> Result<Verified, BenchError> {
    let (mut verified, mut bodies) = (Verified::default(), Bodies::default());
    for region in regions {
        read_back(destination, region, zeroed, &mut bodies, &mut verified).await?;
    }
    Ok(verified)
}

async fn read_back(
    destination: &Destination,
    region: &Region,
    zeroed: bool,
    bodies: &mut Bodies,
    verified: &mut Verified,
) -> Result<(), BenchError> {
    let unit_bytes = usize::try_from(region.unit_bytes).unwrap_or(usize::MAX);
    let step = usize::try_from(SPAN_BYTES / region.unit_bytes).unwrap_or(1).max(1);
    for first in (0..region.units()).step_by(step) {
        let units = first..region.units().min(first + step);
        if !zeroed && units.clone().all(|unit| region.version(unit) == 0) {
            continue;
        }
        let (result, bytes) =
            destination.read(region.offset(first), shard::buffer(units.len() * unit_bytes)).await;
        result?;
        for (unit, bytes) in units.zip(bytes.chunks_exact(unit_bytes)) {
            let version = region.version(unit);
            if version > 0 {
                check(bytes, region.offset(unit), &region.versions(unit), bodies)
                    .map_err(BenchError::WrongData)?;
                verified.units += 1;
            } else if zeroed && !pinstripe_parity::kernel().is_zero(bytes) {
                let at = region.offset(unit);
                return Err(BenchError::WrongData(format!(
                    "unit at byte {at} was never written and changed"
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pinstripe_runtime::{
        DeviceSource, Memory, MemorySource,
        uring::{self, RuntimeConfig},
    };

    use super::*;
    use crate::arguments::Pattern;

    #[test]
    fn what_was_never_written_must_still_be_zero_where_it_was() {
        let read_back = |byte: u8, zeroed| {
            uring::run(&RuntimeConfig::unpinned(1), move |_| async move {
                let memory = Memory::new(1 << 20).unwrap();
                memory.copy_in((1 << 19) + 700, &[byte]).unwrap();
                let source = MemorySource { name: "memory".into(), memory, logical_block: 512 };
                let destination = Destination::Export(source.attach().unwrap());
                let region = Arc::new(Region::new(0, 1 << 20, 4096, 1, Pattern::Random));
                read_back_all(&destination, &[region], zeroed).await.map(|verified| verified.units)
            })
            .unwrap()
        };
        assert!(matches!((read_back(0, true), read_back(7, false)), (Ok(0), Ok(0))));
        let error = read_back(7, true).unwrap_err().to_string();
        assert!(error.contains("unit at byte 524288 was never written and changed"), "{error}");
    }
}
