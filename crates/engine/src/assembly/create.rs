//! A new array on devices: bitmap first, superblocks last, so that a half-made array is none.

use std::{ops::Range, rc::Rc};

use pinstripe_md::{
    placement::{NewArray, NewLog, PlacedArray, PlacementError, journal::first_block},
    superblock::{Role, Superblock, Violation},
    units::SECTOR_BYTES,
};
use pinstripe_runtime::{Device, DeviceError, shard};
use thiserror::Error;

use crate::{
    consistency,
    offload::fence::{self, FenceError},
    units::to_usize,
};

/// Why an array could not be made.
#[derive(Debug, Error)]
pub enum CreateError {
    /// The wish can't be fulfilled; nothing was written.
    #[error("{0}")]
    Placement(#[from] PlacementError),
    /// What would be written breaks a rule of MD; nothing was written.
    #[error("{0}")]
    Violation(#[from] Violation),
    /// The servers of the devices don't let this host write; nothing was written.
    #[error("{0}")]
    Fence(#[from] FenceError),
    /// The journal device can't take one stripe; nothing was written.
    #[error(
        "the journal device has room for {blocks} blocks of 4 KiB, and one stripe may need {needed}: use a larger one"
    )]
    JournalTooSmall {
        /// Blocks that it has.
        blocks: u64,
        /// Blocks needed.
        needed: u64,
    },
    /// A device could not be written. Superblocks of this array may be on some devices.
    #[error("{name}: {error}")]
    Device {
        /// The device.
        name: String,
        /// Why.
        error: DeviceError,
    },
}

/// Makes the array that `wish` describes on `devices`, which are its members and then its spares, in order.
/// What they hold is lost.
pub async fn create(wish: &NewArray, devices: &[Rc<dyn Device>]) -> Result<PlacedArray, CreateError> {
    create_with(wish, NewLog::None, devices).await
}

/// The same, with a log on the members.
pub async fn create_with(
    wish: &NewArray,
    log: NewLog,
    devices: &[Rc<dyn Device>],
) -> Result<PlacedArray, CreateError> {
    create_placed(wish.place_with(log)?, devices).await
}

/// As [`create`], of an array that is laid out already: a device for each superblock, in order.
pub async fn create_placed(
    placed: PlacedArray,
    devices: &[Rc<dyn Device>],
) -> Result<PlacedArray, CreateError> {
    create_placed_after(placed, devices, async { Ok(()) }).await
}

/// The same; `before` is what shall be done to the devices first. It begins only when nothing can refuse the
/// array any more: until then the devices are as they were.
pub async fn create_placed_after<E: From<CreateError>>(
    placed: PlacedArray,
    devices: &[Rc<dyn Device>],
    before: impl Future<Output = Result<(), E>>,
) -> Result<PlacedArray, E> {
    let encoded = encode_all(&placed, devices)?;
    let array = placed.superblocks.first().map_or([0; 16], |superblock| superblock.array.set_uuid.0);
    fence::attach(devices.iter(), array, false).await.map_err(CreateError::from)?;
    fence::outlast(devices.iter(), |_| ()).await;
    let written = match before.await {
        Ok(()) => write_all(&placed, devices, &encoded).await.map_err(E::from),
        Err(error) => Err(error),
    };
    fence::give_up(devices.iter()).await;
    written.map(|()| placed)
}

/// Zeroes the blocks that hold marks of what was on a device, byte by byte given, so that no tool takes a
/// member for that. Marks in `kept` stay: they may be part of what the array has there.
pub async fn wipe_marks(
    device: &dyn Device,
    marks: impl IntoIterator<Item = Range<u64>>,
    kept: Range<u64>,
) -> Result<(), DeviceError> {
    let (block, size) = (u64::from(device.info().logical_block), device.info().size);
    for mark in marks {
        let blocks = mark.start / block * block..mark.end.next_multiple_of(block).min(size);
        if blocks.is_empty() || blocks.start < kept.end && kept.start < blocks.end {
            continue;
        }
        let zeroes = shard::zeroed(to_usize(blocks.end - blocks.start)).freeze();
        device.write(blocks.start, zeroes, true).await.result?;
    }
    Ok(())
}

/// The superblocks as they will be written, and the last checks.
fn encode_all(placed: &PlacedArray, devices: &[Rc<dyn Device>]) -> Result<Vec<Vec<u8>>, CreateError> {
    let mut encoded = Vec::new();
    for (superblock, device) in placed.superblocks.iter().zip(devices) {
        if superblock.own_role() == Role::Journal {
            check_journal(superblock)?;
        }
        encoded.push(superblock.encode(device.info().logical_block.into())?);
    }
    Ok(encoded)
}

/// Bitmaps and logs first, superblocks last.
async fn write_all(
    placed: &PlacedArray,
    devices: &[Rc<dyn Device>],
    encoded: &[Vec<u8>],
) -> Result<(), CreateError> {
    for (superblock, device) in placed.superblocks.iter().zip(devices) {
        if let (Some(bitmap), Some(sector)) = (&placed.bitmap, superblock.bitmap_sector()) {
            let length = to_usize(bitmap.header().sectors().0 * SECTOR_BYTES);
            let length =
                length.next_multiple_of(device.info().logical_block as usize).min(bitmap.as_bytes().len());
            write(&**device, sector.0 * SECTOR_BYTES, &bitmap.as_bytes()[..length]).await?;
        }
    }
    for (superblock, device) in placed.superblocks.iter().zip(devices) {
        if superblock.own_role() == Role::Journal {
            let block =
                first_block(superblock).map_err(|_| CreateError::JournalTooSmall { blocks: 0, needed: 1 })?;
            write(&**device, superblock.member.data_offset.0 * SECTOR_BYTES, &block).await?;
        } else {
            consistency::make_empty(superblock, &**device)
                .await
                .map_err(|error| CreateError::Device { name: device.info().name.clone(), error })?;
        }
    }
    for ((superblock, device), bytes) in placed.superblocks.iter().zip(devices).zip(encoded) {
        write(&**device, superblock.member.super_offset.0 * SECTOR_BYTES, bytes).await?;
    }
    for device in devices {
        device
            .flush()
            .await
            .result
            .map_err(|error| CreateError::Device { name: device.info().name.clone(), error })?;
    }
    Ok(())
}

fn check_journal(journal: &Superblock) -> Result<(), CreateError> {
    let (chunk, members) = (journal.array.chunk.0 * SECTOR_BYTES, u64::from(journal.array.raid_disks));
    crate::consistency::journal::check_blocks(chunk, members, journal)
        .map_err(|(blocks, needed)| CreateError::JournalTooSmall { blocks, needed })
}

async fn write(device: &dyn Device, offset: u64, bytes: &[u8]) -> Result<(), CreateError> {
    let mut buffer = shard::buffer(bytes.len());
    buffer.copy_from_slice(bytes);
    let written = device.write(offset, buffer.freeze(), true).await.result;
    written.map(|_| ()).map_err(|error| CreateError::Device { name: device.info().name.clone(), error })
}
