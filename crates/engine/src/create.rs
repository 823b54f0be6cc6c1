//! A new array on devices: bitmap first, superblocks last, so that a half-made array is none.

use std::rc::Rc;

use pinstripe_md::{
    placement::{NewArray, NewLog, PlacedArray, PlacementError},
    superblock::Violation,
    units::SECTOR_BYTES,
};
use pinstripe_runtime::{Device, DeviceError, shard};
use thiserror::Error;

use crate::consistency;

/// Why an array could not be made.
#[derive(Debug, Error)]
pub enum CreateError {
    /// The wish can't be fulfilled; nothing was written.
    #[error("{0}")]
    Placement(#[from] PlacementError),
    /// What would be written breaks a rule of MD; nothing was written.
    #[error("{0}")]
    Violation(#[from] Violation),
    /// A device could not be written. Superblocks of this array may be on some devices.
    #[error("{name}: {error}")]
    Device {
        /// The device.
        name: String,
        /// Why.
        error: DeviceError,
    },
}

/// Makes the array that `wish` describes on `devices`, which are its members and then its spares, in order. What they hold is lost.
pub async fn create(wish: &NewArray, devices: &[Rc<dyn Device>]) -> Result<PlacedArray, CreateError> {
    create_with(wish, NewLog::None, devices).await
}

/// The same, with a log on the members.
pub async fn create_with(
    wish: &NewArray,
    log: NewLog,
    devices: &[Rc<dyn Device>],
) -> Result<PlacedArray, CreateError> {
    let placed = wish.place_with(log)?;
    let mut encoded = Vec::new();
    for (superblock, device) in placed.superblocks.iter().zip(devices) {
        encoded.push(superblock.encode(device.info().logical_block.into())?);
    }
    for (superblock, device) in placed.superblocks.iter().zip(devices) {
        if let (Some(bitmap), Some(sector)) = (&placed.bitmap, superblock.bitmap_sector()) {
            let length = usize::try_from(bitmap.header().sectors().0 * SECTOR_BYTES).unwrap_or(usize::MAX);
            let length =
                length.next_multiple_of(device.info().logical_block as usize).min(bitmap.as_bytes().len());
            write(&**device, sector.0 * SECTOR_BYTES, &bitmap.as_bytes()[..length]).await?;
        }
    }
    for (superblock, device) in placed.superblocks.iter().zip(devices) {
        consistency::make_empty(superblock, &**device)
            .await
            .map_err(|error| CreateError::Device { name: device.info().name.clone(), error })?;
    }
    for ((superblock, device), bytes) in placed.superblocks.iter().zip(devices).zip(&encoded) {
        write(&**device, superblock.member.super_offset.0 * SECTOR_BYTES, bytes).await?;
    }
    for device in devices {
        device
            .flush()
            .await
            .result
            .map_err(|error| CreateError::Device { name: device.info().name.clone(), error })?;
    }
    Ok(placed)
}

async fn write(device: &dyn Device, offset: u64, bytes: &[u8]) -> Result<(), CreateError> {
    let mut buffer = shard::buffer(bytes.len());
    buffer.copy_from_slice(bytes);
    let written = device.write(offset, buffer.freeze(), true).await.result;
    written.map(|_| ()).map_err(|error| CreateError::Device { name: device.info().name.clone(), error })
}
