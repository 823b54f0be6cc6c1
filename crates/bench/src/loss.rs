//! Members that are missing while the array is measured, and their return.
//!
//! A member comes back blank: it is overwritten from end to end. So all of it is rebuilt and not only what
//! changed, and a rebuild that leaves something out leaves something wrong there.

use std::{fs::File, io::Read, rc::Rc, sync::Arc};

use pinstripe_engine::{
    array::Array,
    status::detail::{Detail, SlotDetail},
};
use pinstripe_md::identity::Uuid;
use pinstripe_runtime::{DeviceError, DeviceSource, shard};

use crate::{report::Rebuild, run::BenchError, setup::Setup, worker::end_all};

/// What a blank member is full of: no superblock, no parity and nothing that a client writes.
const BLANK: u8 = 0xE5;
/// Bytes that are overwritten at a time.
const BLANK_BYTES: usize = 1 << 20;
/// Writes under way while a member is overwritten.
const BLANK_DEPTH: u64 = 4;
/// How often to look whether the rebuild is done.
const LOOK_NS: u64 = 1_000_000;

/// Fails the members of these slots.
pub(crate) async fn lose(array: &Array, slots: &[usize]) -> Result<(), BenchError> {
    for &slot in slots {
        array.fail(slot).await?;
    }
    Ok(())
}

/// Puts the members of these slots in again, one after the other, and waits until they are whole.
pub(crate) async fn bring_back(setup: &Setup, slots: &[usize]) -> Result<(), BenchError> {
    for &slot in slots {
        erase(&setup.sources[slot]).await?;
        rebuild(setup, slot, slots).await?;
    }
    Ok(())
}

/// Overwrites a failed member.
pub(crate) async fn erase(source: &Arc<dyn DeviceSource>) -> Result<(), BenchError> {
    let device = source.attach().map_err(BenchError::Attach)?;
    let mut blank = shard::buffer(BLANK_BYTES);
    blank.fill(BLANK);
    let blank = blank.freeze();
    let task = |first: u64| {
        let (device, blank) = (Rc::clone(&device), blank.clone());
        shard::spawn_joined(async move {
            let (size, step) = (device.info().size, blank.len() as u64);
            for number in (first..size.div_ceil(step)).step_by(usize::try_from(BLANK_DEPTH).unwrap_or(1)) {
                let offset = number * step;
                let length = usize::try_from(step.min(size - offset)).unwrap_or(0);
                device.write(offset, blank.slice(0, length), false).await.result?;
            }
            Ok::<(), DeviceError>(())
        })
    };
    end_all((0..BLANK_DEPTH).map(task).collect()).await.map_err(BenchError::Attach)?;
    device.flush().await.result.map_err(BenchError::Attach)?;
    Ok(())
}

/// Adds the device of an empty slot, and waits until it is rebuilt. `lost` are all slots that may be empty.
pub(crate) async fn rebuild(setup: &Setup, slot: usize, lost: &[usize]) -> Result<Rebuild, BenchError> {
    let started = shard::now();
    setup.array.add(Arc::clone(&setup.sources[slot]), random_uuid()?).await?;
    loop {
        let detail = setup.array.detail();
        match detail.slots[slot].state {
            "in-sync" | "resyncing" => break,
            "missing" => return Err(BenchError::NotRebuilt(slot)),
            _ => goes_on(&detail, lost)?,
        }
        shard::sleep(LOOK_NS).await;
    }
    Ok(Rebuild::new(setup.member_bytes(), shard::now() - started))
}

/// Whether a resync or rebuild comes to an end: an array that has failed, or lacks a member of a slot that is
/// not in `lost`, doesn't get in sync however long it is waited for, nor does one with sectors that a resync
/// has not been able to read.
pub(crate) fn goes_on(detail: &Detail, lost: &[usize]) -> Result<(), BenchError> {
    let is_lost = |(slot, member): (usize, &SlotDetail)| member.state == "missing" && !lost.contains(&slot);
    if detail.state == "failed" || detail.slots.iter().enumerate().any(is_lost) {
        let latest = detail.last_errors.last();
        let error = latest.map_or_else(|| "a member is missing".to_owned(), ToString::to_string);
        return Err(BenchError::NotInSync(error));
    }
    let errors = |member: &&SlotDetail| member.statistics.read_errors + member.statistics.write_errors > 0;
    match detail.slots.iter().find(errors) {
        Some(member) if detail.regions_to_resync > 0 && detail.sync.is_none() => {
            let name = member.device.as_deref().unwrap_or("a member");
            Err(BenchError::NotInSync(format!("the resync has met sectors of {name} that can't be used")))
        }
        _ => Ok(()),
    }
}

/// A new identity.
pub(crate) fn random_uuid() -> Result<Uuid, BenchError> {
    random().map(Uuid)
}

pub(crate) fn random_u64() -> Result<u64, BenchError> {
    random().map(u64::from_le_bytes)
}

fn random<const LENGTH: usize>() -> Result<[u8; LENGTH], BenchError> {
    let mut bytes = [0; LENGTH];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(BenchError::Random)?;
    Ok(bytes)
}
