//! The array written from end to end before it is measured, in writes of about the same size whatever a
//! request's is.

use std::{ops::Range, rc::Rc, sync::Arc};

use pinstripe_runtime::shard;

use crate::{
    destination::{Destination, RequestError},
    ledger::{self, Region},
    worker::end_all,
};

/// Bytes of a write, at least one unit. No other request is longer, if a unit isn't.
pub(crate) const SPAN_BYTES: u64 = 4 << 20;
/// Writes at a time.
const DEPTH: usize = 4;

/// Writes all units of `region`, as `writer`.
pub(crate) async fn fill(
    destination: &Destination,
    region: &Arc<Region>,
    writer: u32,
) -> Result<(), RequestError> {
    let step = usize::try_from(SPAN_BYTES / region.unit_bytes).unwrap_or(1).max(1);
    let units = region.units();
    let next = Rc::new(std::cell::Cell::new(0));
    let tasks: Vec<_> = (0..DEPTH)
        .map(|_| {
            let (destination, region, next) = (destination.clone(), Arc::clone(region), Rc::clone(&next));
            shard::spawn_joined(async move {
                loop {
                    let first = next.get();
                    if first >= units {
                        return Ok(());
                    }
                    next.set(first + step);
                    write(&destination, &region, first..units.min(first + step), writer).await?;
                }
            })
        })
        .collect();
    let result = end_all(tasks).await;
    region.enter_filled();
    result
}

async fn write(
    destination: &Destination,
    region: &Region,
    units: Range<usize>,
    writer: u32,
) -> Result<(), RequestError> {
    let unit_bytes = usize::try_from(region.unit_bytes).unwrap_or(usize::MAX);
    let offset = region.offset(units.start);
    let mut buffer = shard::buffer(units.len() * unit_bytes);
    buffer.chunks_exact_mut(unit_bytes).for_each(|unit| ledger::fill(unit, writer));
    region.fill(units, &mut buffer, writer);
    destination.write(offset, buffer.freeze()).await
}
