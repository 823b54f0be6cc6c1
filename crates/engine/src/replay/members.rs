//! The members as a replay sees them: devices that nothing else uses yet.

use std::cell::{Cell, RefCell};

use pinstripe_md::bad_block_table::BadBlockTable;
use pinstripe_runtime::{Device, DeviceError, DeviceErrorKind, Slice, shard};

use crate::{
    assembly::{AssembleError, Assembled, Found, Refused, read_bytes},
    geometry::{MemberSlot, ParityGeometry},
    mutants::{Mutant, active},
};
use pinstripe_md::units::SECTOR_BYTES;

/// What assembly found, for reading and writing member by member.
pub(super) struct Members<'a> {
    pub(super) geometry: &'a ParityGeometry,
    seats: &'a [Option<Found>],
    /// Blocks that were refused, and are to be listed.
    refused: RefCell<Vec<Refused>>,
    /// A block was refused that can't be listed.
    left: Cell<bool>,
}

impl<'a> Members<'a> {
    /// `None` for an array without parity.
    pub(super) fn of(assembled: &'a Assembled) -> Option<Self> {
        let geometry = assembled.geometry.parity()?;
        let seats = &assembled.seated.seats;
        Some(Self { geometry, seats, refused: RefCell::default(), left: Cell::new(false) })
    }

    /// The members that are there, those that are being rebuilt included, with their slots.
    pub(super) fn present(&self) -> impl Iterator<Item = (MemberSlot, &'a Found)> {
        (0..).zip(self.seats).filter_map(|(slot, seat)| Some((MemberSlot(slot), seat.as_ref()?)))
    }

    /// Whether a slot's member holds what it should in a range of member bytes: it is there, and rebuilt so
    /// far.
    pub(super) fn holds(&self, slot: MemberSlot, offset: u64, length: u64) -> bool {
        self.seats[slot.index()].as_ref().is_some_and(|found| {
            let valid = found.superblock.member.recovery_offset;
            let first = (found.superblock.member.data_offset.0 * SECTOR_BYTES + offset) / SECTOR_BYTES;
            let bad = found
                .bad_blocks
                .blocks()
                .first_overlap(first..first + length.div_ceil(SECTOR_BYTES))
                .is_some();
            !bad && valid.is_none_or(|sector| offset + length <= sector.0 * SECTOR_BYTES)
        })
    }

    /// Whether a part of the range may be to be had although [`read`](Self::read) gave nothing: bad blocks,
    /// listed or not.
    pub(super) fn may_hold_parts(&self, slot: MemberSlot, offset: u64, length: u32) -> bool {
        let is_recovered = |found: &Found| {
            let valid = found.superblock.member.recovery_offset;
            valid.is_none_or(|sector| offset < sector.0 * SECTOR_BYTES)
        };
        let is_part = length > self.geometry.logical_block() && !active(Mutant::ReplayByPages);
        is_part && self.seats[slot.index()].as_ref().is_some_and(is_recovered)
    }

    /// Bytes of a member; `None` if it doesn't hold them or can't read them.
    pub(super) async fn read(
        &self,
        slot: MemberSlot,
        offset: u64,
        length: u32,
    ) -> Result<Option<Vec<u8>>, AssembleError> {
        let Some(found) =
            self.seats[slot.index()].as_ref().filter(|_| self.holds(slot, offset, length.into()))
        else {
            return Ok(None);
        };
        let at = found.superblock.member.data_offset.0 * SECTOR_BYTES + offset;
        match read_bytes(&*found.device, at, length.into()).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(AssembleError::Device { error, .. }) if error.kind == DeviceErrorKind::Media => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What members have refused of what they should hold, and whether all of that can be listed.
    pub(super) fn refused(self) -> (Vec<Refused>, bool) {
        (self.refused.into_inner(), !self.left.get())
    }

    /// Writes a member's bytes, but for blocks that it refuses. If they were an error of the replay, the
    /// array could never be started.
    pub(super) async fn write(
        &self,
        slot: MemberSlot,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), AssembleError> {
        let Some(found) = &self.seats[slot.index()] else { return Ok(()) };
        let mut buffer = shard::buffer(bytes.len());
        buffer.copy_from_slice(bytes);
        let data = found.superblock.member.data_offset.0 * SECTOR_BYTES;
        let at = data + offset;
        let is_spared = |at: u64, length: usize| {
            let (offset, length) = (at - data, length as u64);
            if !self.holds(slot, offset, length) {
                // It is listed already, or will be rebuilt: no read uses it.
            } else if found.superblock.member.bad_block_log.is_some_and(|log| log.counts_in_sectors()) {
                self.refused.borrow_mut().push(Refused { slot: slot.index(), offset, length });
            } else {
                self.left.set(true);
            }
            true
        };
        let written = write_but_for(&*found.device, at, &buffer.freeze(), true, is_spared).await;
        written
            .map(|_| ())
            .map_err(|error| AssembleError::Device { name: found.device.info().name.clone(), error })
    }

    /// Flushes every member.
    pub(super) async fn flush(&self) -> Result<(), AssembleError> {
        for (_, found) in self.present() {
            found
                .device
                .flush()
                .await
                .result
                .map_err(|error| AssembleError::Device { name: found.device.info().name.clone(), error })?;
        }
        Ok(())
    }
}

/// Whether some of a device's bytes from `at` on are listed as bad.
pub(super) fn is_listed(listed: &BadBlockTable, at: u64, length: usize) -> bool {
    let sectors = at / SECTOR_BYTES..(at + length as u64).div_ceil(SECTOR_BYTES);
    listed.blocks().first_overlap(sectors).is_some()
}

/// Writes at a device's byte `at`. Where the medium refuses that, block by block: each block that it refuses
/// then, and that `is_spared` says need not be there, is left out. Says where these begin.
pub(super) async fn write_but_for(
    device: &dyn Device,
    at: u64,
    bytes: &Slice,
    durable: bool,
    mut is_spared: impl FnMut(u64, usize) -> bool,
) -> Result<Vec<u64>, DeviceError> {
    match device.write(at, bytes.clone(), durable).await.result {
        Err(error) if error.kind == DeviceErrorKind::Media => {}
        written => return written.map(|_| Vec::new()),
    }
    let block = device.info().logical_block as usize;
    let mut spared = Vec::new();
    for start in (0..bytes.len()).step_by(block) {
        let place = at + start as u64;
        match device.write(place, bytes.slice(start, block), durable).await.result {
            Ok(_) => {}
            Err(error) if error.kind == DeviceErrorKind::Media && is_spared(place, block) => {
                spared.push(place);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(spared)
}
