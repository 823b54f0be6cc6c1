//! The journal device of a new array (md-format.md section 9).

use super::{NewDevice, PlacedArray, PlacementError};
use crate::{
    journal::{BLOCK_BYTES, BLOCK_SECTORS, JournalError, MetaBlock, Seed},
    superblock::{DeviceFlags, MemberRecord, MetadataVersion, Role, Superblock},
    units::{Sector, SectorCount},
};

/// Gives a placed array a journal on `device`: every superblock names it, and its own comes last in the list.
/// The array must have no bitmap.
pub fn add_journal(
    placed: &mut PlacedArray,
    device: NewDevice,
    logical_block_bytes: u64,
) -> Result<(), PlacementError> {
    let template = placed.superblocks.first().ok_or(PlacementError::NoMembers)?;
    let mut array = template.array.clone();
    if !array.level.has_parity() {
        return Err(PlacementError::WithoutRedundancy(array.level, "a journal"));
    }
    let like = &template.member;
    let number = array.free_device_number(&[]).ok_or(PlacementError::NoDeviceNumber)?;
    array.journal = true;
    let entry = array.roles.get_mut(usize::from(number.0)).ok_or(PlacementError::NoDeviceNumber)?;
    *entry = Role::Journal;
    let index = placed.superblocks.len();
    // The superblock of 1.0 leaves as much room before it as lies from it to the end.
    let needed = match like.version {
        MetadataVersion::V1_0 => like.data_offset.0.next_multiple_of(8) + 6 * BLOCK_SECTORS,
        MetadataVersion::V1_1 | MetadataVersion::V1_2 => like.data_offset.0 + 2 * BLOCK_SECTORS,
    };
    let too_small = PlacementError::DeviceTooSmall { index, sectors: device.sectors, needed };
    let Some(super_offset) = like.version.super_offset(device.sectors) else { return Err(too_small) };
    let end = match like.version {
        MetadataVersion::V1_0 => super_offset.0.saturating_sub(BLOCK_SECTORS * 2),
        MetadataVersion::V1_1 | MetadataVersion::V1_2 => device.sectors,
    };
    let data_size =
        SectorCount(end.saturating_sub(like.data_offset.0)).round_down(SectorCount(BLOCK_SECTORS));
    if data_size.0 < 2 * BLOCK_SECTORS {
        return Err(too_small);
    }
    let member = MemberRecord {
        double_parity_log: None,
        version: like.version,
        super_offset,
        device_sectors: device.sectors,
        data_offset: like.data_offset,
        data_size,
        dev_number: number,
        device_uuid: device.uuid,
        flags: DeviceFlags::default(),
        recovery_offset: None,
        recovery_by_bitmap: false,
        replacement: false,
        journal_tail: Some(Sector(0)),
        ppl: None,
        bad_block_log: None,
        new_offset: None,
        corrected_reads: 0,
    };
    for superblock in &mut placed.superblocks {
        superblock.array = array.clone();
        superblock.check(logical_block_bytes)?;
    }
    let journal = Superblock::new(array, member);
    journal.check(logical_block_bytes)?;
    placed.superblocks.push(journal);
    Ok(())
}

/// The first meta block of a new journal, which goes to the start of its data: a log that says nothing.
pub fn first_block(journal: &Superblock) -> Result<Vec<u8>, JournalError> {
    let uuid = journal.member.device_uuid.0;
    // Any number; but room is left above it.
    let seq = u64::from(u32::from_le_bytes([uuid[0], uuid[1], uuid[2], uuid[3]]));
    let block = MetaBlock { seq, position: Sector(0), payloads: Vec::new() };
    let bytes = block.encode(Seed::new(journal.array.set_uuid))?;
    debug_assert_eq!(bytes.len(), BLOCK_BYTES);
    Ok(bytes)
}
