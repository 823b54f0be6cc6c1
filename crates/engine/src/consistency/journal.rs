//! The journal of levels 4, 5 and 6 (docs/formats.md section 9): what is about to be written to the members stands, whole and
//! durable, on a device of its own before. After a crash it is replayed, and so no row is left half written: an
//! array with a journal needs no resync, and may be started dirty and degraded.

use std::rc::Rc;

use pinstripe_md::{superblock::Superblock, units::SECTOR_BYTES};
use pinstripe_runtime::{Device, DeviceError, DeviceErrorKind, shard};

pub(crate) mod replay;
pub(crate) mod ring;

/// Writes a journal device's superblock; it is durable when this returns.
pub(crate) async fn write_superblock(
    device: &Rc<dyn Device>,
    superblock: &Superblock,
) -> Result<(), DeviceError> {
    // Our own output breaks a rule: nothing is written.
    let bytes = superblock
        .encode(device.info().logical_block.into())
        .map_err(|_| DeviceError::of(DeviceErrorKind::Invalid))?;
    let mut buffer = shard::buffer(bytes.len());
    buffer.copy_from_slice(&bytes);
    let place = superblock.member.super_offset.0 * SECTOR_BYTES;
    device.write(place, buffer.freeze(), true).await.result.map(|_| ())
}
