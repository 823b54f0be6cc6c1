//! Whether what is asked for fits the array, found out before a byte of a device is overwritten.

use std::{fs, rc::Rc};

use pinstripe_control::size::ByteSize;
use pinstripe_engine::{
    array::CommandError,
    assembly::AssembleError,
    geometry::{Geometry, ParityGeometry, ParityLayout, Raid0Geometry, Raid0Layout},
};
use pinstripe_md::{placement::PlacedArray, units::SECTOR_BYTES};
use pinstripe_runtime::Device;

use crate::{
    arguments::{BenchArgs, DeviceSpec, Pattern},
    ledger::Region,
    run::{BenchError, UNITS_PER_CLIENT_MIN, parts},
    straight_line,
};

/// Says no of what can't be done on an array of this geometry.
pub(crate) type Fits = fn(&BenchArgs, &Geometry) -> Result<(), BenchError>;

/// The address map of an array that is laid out and not there yet, as its assembly will have it.
pub(crate) fn geometry(placed: &PlacedArray, devices: &[Rc<dyn Device>]) -> Result<Geometry, AssembleError> {
    let array = &placed.superblocks.first().ok_or(AssembleError::NoDevices)?.array;
    let block = devices.iter().map(|device| device.info().logical_block).max().unwrap_or(512);
    let chunk = u32::try_from(array.chunk.0 * SECTOR_BYTES).unwrap_or(u32::MAX);
    let layout = array.layout.to_word().unwrap_or(0);
    if array.level.has_parity() {
        let bytes = array.component_sectors().checked_bytes().unwrap_or(u64::MAX);
        let layout = ParityLayout::from_md(array.level.number(), layout)?;
        return Ok(Geometry::Parity(ParityGeometry::new(layout, devices.len(), chunk, bytes, block)?));
    }
    let members = placed.superblocks.iter().map(|superblock| superblock.member.data_size.0 * SECTOR_BYTES);
    let layout = Raid0Layout::from_md(layout).unwrap_or(Raid0Layout::Original);
    Ok(Geometry::Raid0(Raid0Geometry::new(layout, chunk, block, &members.collect::<Vec<_>>())?))
}

/// A load of requests of one size.
pub(crate) fn load(arguments: &BenchArgs, geometry: &Geometry) -> Result<(), BenchError> {
    members(arguments, geometry)?;
    let is_memory = matches!(arguments.devices[..], [DeviceSpec::Memory(_)]);
    if arguments.limit && !(is_memory && straight_line::is_possible(geometry, arguments.size)) {
        return Err(BenchError::LimitShape);
    }
    if arguments.pattern == Pattern::Lost && !arguments.lost.iter().any(|&slot| geometry.holds_data(slot)) {
        return Err(BenchError::Arguments("--pattern lost: the members of --lost hold no data, only parity"));
    }
    let mut units = 0;
    for (bytes, clients) in parts(arguments, geometry) {
        units += room(arguments, bytes.end - bytes.start, clients)?;
    }
    ledger(arguments, units, available_memory())
}

/// The same on an export of so many bytes.
pub(crate) fn export(arguments: &BenchArgs, bytes: u64) -> Result<(), BenchError> {
    let units = room(arguments, bytes, arguments.depth as u64)?;
    ledger(arguments, units, available_memory())
}

/// The slots of `--lost` and `--rebuild`.
pub(crate) fn members(arguments: &BenchArgs, geometry: &Geometry) -> Result<(), BenchError> {
    let slots = geometry.members();
    let mut lost = Vec::new();
    for &slot in arguments.lost.iter().chain(&arguments.rebuild) {
        if slot >= slots {
            return Err(CommandError::NoSuchSlot { slot, slots }.into());
        }
        if lost.contains(&slot) {
            return Err(CommandError::SlotEmpty(slot).into());
        }
        lost.push(slot);
        if lost.len() > geometry.redundancy() {
            return Err(CommandError::SlotNeeded(slot).into());
        }
    }
    Ok(())
}

/// How many units there are in so many bytes; enough for so many clients.
fn room(arguments: &BenchArgs, bytes: u64, clients: u64) -> Result<u64, BenchError> {
    let units = Region::units_of(bytes, arguments.size, clients);
    if units < (arguments.depth * UNITS_PER_CLIENT_MIN) as u64 {
        return Err(BenchError::TooSmall { depth: arguments.depth, size: arguments.size });
    }
    Ok(units)
}

/// The ledger of so many units, in so much memory.
fn ledger(arguments: &BenchArgs, units: u64, available: Option<u64>) -> Result<(), BenchError> {
    let needed = units.saturating_mul(Region::bytes_per_unit(arguments.pattern));
    match available {
        Some(available) if needed > available => {
            Err(BenchError::Ledger { needed: ByteSize(needed), available: ByteSize(available) })
        }
        _ => Ok(()),
    }
}

/// What this machine has for programs that ask, if it says so.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_that_has_no_room_in_memory_is_refused_with_the_sizes() {
        let arguments = BenchArgs::defaults();
        assert!(ledger(&arguments, 1 << 20, Some(4 << 20)).is_ok());
        let words = ledger(&arguments, 10 << 30, Some(8 << 30)).unwrap_err().to_string();
        assert!(words.contains("40 GiB") && words.contains("8 GiB") && words.contains("--size"), "{words}");
        let lost = BenchArgs { pattern: Pattern::Lost, ..arguments };
        assert!(ledger(&lost, 1 << 20, Some(4 << 20)).is_err(), "the units that are read are listed besides");
        assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
