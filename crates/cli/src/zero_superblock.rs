//! `pinstripe zero-superblock`: devices that are to be members no more.
//!
//! All devices are opened, locked and looked at before any is written. What is in use can't be opened; what
//! may still be needed is refused, unless that is forced.
//!
//! Whether an array can do without its devices, their own superblocks say, of all devices of the call
//! together. That another member is being rebuilt only its own superblock says, so members are looked for on
//! this machine. What isn't found counts as whole: it may be on a server, or away.

use std::{collections::BTreeMap, path::PathBuf};

use pinstripe_config::Configuration;
use pinstripe_control::text::printable;
use pinstripe_engine::offload::fence::{self, FenceError};
use pinstripe_md::{
    identity::Uuid,
    level::Level,
    superblock::{Role, SUPERBLOCK_BYTES_MAX, Superblock},
    units::{MemberSlot, SECTOR_BYTES, Sector},
};
use pinstripe_runtime::{
    Device, shard,
    uring::{self, OpenOptions, RuntimeConfig},
};
use serde_json::json;

use crate::{
    command_line::ZeroSuperblockArguments,
    create::random_uuid,
    failure::Failure,
    joined,
    member::{self, Member},
    output,
    probe::Contents,
    scan::{LIMIT, Served, look},
};

/// What this machine knows of arrays beside what the devices of the call say.
struct Known {
    served: Vec<Served>,
    /// The slots of members that are being rebuilt.
    unfinished: Vec<(Uuid, MemberSlot)>,
}

pub fn run(arguments: &ZeroSuperblockArguments) -> Result<(), Failure> {
    member::know(&arguments.remote)?;
    let (paths, force) = (arguments.devices.clone(), arguments.force);
    // Before they are locked: to look at a device would give a lock of it back.
    let unfinished = if force { Vec::new() } else { unfinished(&paths) };
    let known = Known { served: Served::all().0, unfinished };
    let erased = uring::run(&RuntimeConfig::unpinned(1), move |_| erase_all(paths, known, force))??;
    if arguments.json {
        let all: Vec<_> =
            erased.iter().map(|(device, sectors)| json!({ "device": device, "sectors": sectors })).collect();
        return output::print_json(&all);
    }
    let lines: Vec<String> = erased
        .iter()
        .map(|(device, _)| format!("{}: the superblock is erased\n", printable(device)))
        .collect();
    output::print(&lines.concat())
}

/// The slots of members on this machine that are being rebuilt, of all arrays.
fn unfinished(paths: &[PathBuf]) -> Vec<(Uuid, MemberSlot)> {
    let local: Vec<PathBuf> = paths.iter().filter(|path| member::address(path).is_none()).cloned().collect();
    let own = look(&local, LIMIT).candidates;
    let superblocks = own.iter().flat_map(|device| device.superblock.iter().chain(&device.rivals));
    let arrays: Vec<Uuid> = superblocks.map(|superblock| superblock.array.set_uuid).collect();
    let configuration = Configuration::known(None);
    let mut found = joined::scan_within(configuration.scan.devices.as_deref(), LIMIT, &arrays).arrays;
    let named: Vec<String> = configuration.arrays.into_iter().flat_map(|entry| entry.members).collect();
    if !named.is_empty() {
        found.extend(joined::scan_within(Some(&named), LIMIT, &[]).arrays);
    }
    // One device may be found twice.
    let mut all = BTreeMap::new();
    for array in found {
        for member in array.members.into_iter().filter(|member| !member.whole) {
            if let Role::Slot(slot) = member.role {
                all.insert(member.path.canonicalize().unwrap_or(member.path), (array.uuid, slot));
            }
        }
    }
    all.into_values().collect()
}

/// The devices, each with the sectors where superblocks were.
async fn erase_all(
    paths: Vec<PathBuf>,
    known: Known,
    force: bool,
) -> Result<Vec<(String, Vec<u64>)>, Failure> {
    let mut members = Vec::new();
    for path in paths {
        let member = member::open(path.clone(), OpenOptions::default()).await?;
        let contents = member.contents(path).await?;
        members.push((member, contents));
    }
    let going: Vec<&Superblock> = members.iter().flat_map(|(_, contents)| contents.superblocks()).collect();
    for (member, contents) in &members {
        refuse(member, contents, &going, &known, force).await?;
    }
    let devices = members.iter().map(|(member, _)| member.attach()).collect::<Result<Vec<_>, _>>()?;
    let array = going.first().map_or_else(random_uuid, |superblock| Ok(superblock.array.set_uuid))?;
    let erasing = async {
        let mut erased = Vec::new();
        for ((member, contents), device) in members.iter().zip(&devices) {
            let old = contents.old_md().map(|mark| Sector(mark.start / SECTOR_BYTES));
            let sectors = contents.metadata.iter().map(|found| found.sector).chain(old).collect();
            erased.push((member.info().name.clone(), erase(&**device, sectors).await?));
        }
        Ok(erased)
    };
    // All of them first: what can't be written is known before any is (C34).
    let alone = fence::alone(&devices, array.0, erasing).await;
    alone.map_err(|error: FenceError| Failure::new(error.to_string()))?
}

/// `going`: the superblocks of all devices of the call.
async fn refuse(
    member: &Member,
    contents: &Contents,
    going: &[&Superblock],
    known: &Known,
    force: bool,
) -> Result<(), Failure> {
    let name = printable(&member.info().name);
    let is_old = contents.old_md().next().is_some();
    if contents.metadata.is_empty() && !is_old {
        return Err(Failure::new(format!("{name} holds no MD superblock; nothing was changed")));
    }
    if let Member::Remote(source) = member
        && source.offload().is_some()
        && source.query().await?.attached
    {
        return Err(Failure::new(format!("{name} is in use: a host has attached it; nothing was changed")));
    }
    if force {
        return Ok(());
    }
    if is_old {
        return Err(Failure::new(format!(
            "{name} holds an MD superblock of version 0.90, and whether its array needs the device isn't known; \
             nothing was changed: use --force to erase it nevertheless"
        )));
    }
    // A local device that is in use is locked, and a server of ours says so. Of others nothing tells.
    let tells = !matches!(member, Member::Remote(source) if source.offload().is_none());
    let served = if tells { known.served.as_slice() } else { &[] };
    for found in &contents.metadata {
        let why = match &found.superblock {
            Err(error) => Some(format!("its superblock can't be understood ({error})")),
            Ok(metadata) => needed(&metadata.superblock, going, served, &known.unfinished),
        };
        if let Some(why) = why {
            return Err(Failure::new(format!(
                "{name}: {why}; nothing was changed: use --force to erase it nevertheless"
            )));
        }
    }
    Ok(())
}

/// Why an array may need the device. Clients may have been writing when it went, and its superblock says so
/// for ever, as it names the members of that time; but an array that is served without it and has all of its
/// members has gone on.
fn needed(
    superblock: &Superblock,
    going: &[&Superblock],
    served: &[Served],
    unfinished: &[(Uuid, MemberSlot)],
) -> Option<String> {
    let (array, name) = (&superblock.array, printable(&superblock.array.name.short()));
    if superblock.own_role() == Role::Journal {
        return Some(format!(
            "it is the journal of the array {name}, and the array is not assembled without its journal"
        ));
    }
    let is_whole = |served: &Served| served.is(array.set_uuid) && served.detail.has_all_members();
    if served.iter().any(is_whole) {
        return None;
    }
    if array.is_dirty() {
        return Some(format!(
            "its array {name} was not stopped cleanly, and may need this device to be made consistent"
        ));
    }
    let (left, wanted) = left_without(superblock, going, unfinished)?;
    (left < wanted).then(|| {
        format!(
            "its array {name} can't do without it: of {wanted} members that it needs, {left} would be left"
        )
    })
}

/// How many slots of the device's array still have a member without all devices of the call, and how many the
/// array needs; by the freshest of their superblocks. `None` if the device is no member, or if it is one that
/// isn't whole: then its array has done without it.
fn left_without(
    superblock: &Superblock,
    going: &[&Superblock],
    unfinished: &[(Uuid, MemberSlot)],
) -> Option<(u32, u32)> {
    let of_array = || going.iter().filter(|other| other.array.set_uuid == superblock.array.set_uuid);
    let array = &of_array().max_by_key(|other| other.freshness())?.array;
    let slot_of = |one: &Superblock| match one.role_in(array) {
        Role::Slot(slot) if one.member.recovery_offset.is_none() && !one.member.replacement => Some(slot),
        _ => None,
    };
    slot_of(superblock)?;
    let lost: Vec<MemberSlot> = of_array().filter_map(|one| slot_of(one)).collect();
    let slots = (0..u16::MAX).map(MemberSlot).take_while(|slot| u32::from(slot.0) < array.raid_disks);
    // Another device in a slot that loses one may be a replacement that isn't whole yet.
    let rebuilt = |slot: MemberSlot| unfinished.iter().filter(move |one| **one == (array.set_uuid, slot));
    let has_member =
        |slot: &MemberSlot| !lost.contains(slot) && array.devices_in(*slot).count() > rebuilt(*slot).count();
    let left = u32::try_from(slots.filter(has_member).count()).unwrap_or(u32::MAX);
    let wanted = match array.level {
        // How many mirrors a RAID10 can lose depends on which, but all it can't.
        Level::Raid1 | Level::Multipath | Level::Raid10 => 1,
        level => array.raid_disks.saturating_sub(level.parity_count().into()),
    };
    Some((left, wanted))
}

/// Zeroes the superblocks at these sectors, roles and all, for good; the sectors.
async fn erase(device: &dyn Device, sectors: Vec<Sector>) -> Result<Vec<u64>, Failure> {
    let info = device.info();
    let failed = |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", info.name));
    let block = u64::from(info.logical_block);
    for sector in &sectors {
        let start = sector.checked_bytes().unwrap_or(u64::MAX) / block * block;
        let end =
            start.saturating_add(SUPERBLOCK_BYTES_MAX as u64).min(info.size / SECTOR_BYTES * SECTOR_BYTES);
        let length = usize::try_from(end.saturating_sub(start)).map_err(|error| failed(&error))?;
        let written = device.write(start, shard::zeroed(length).freeze(), false).await.result;
        written.map_err(|error| failed(&error))?;
    }
    device.flush().await.result.map_err(|error| failed(&error))?;
    Ok(sectors.into_iter().map(|sector| sector.0).collect())
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc, sync::Arc};

    use pinstripe_md::{
        identity::Timestamp,
        level::{Layout, Raid10Layout},
        superblock::{ArrayRecord, DeviceFlags, MemberRecord, MetadataVersion, ResyncOffset},
        units::{DeviceNumber, SectorCount},
    };
    use pinstripe_runtime::{
        Buffer, DeviceError, DeviceErrorKind, DeviceInfo, Memory, MemoryDevice, Slice, Submission,
    };

    use super::*;

    const BYTES: usize = 1 << 20;

    /// A device that remembers what it was asked for.
    struct Asked {
        inner: Rc<MemoryDevice>,
        /// The offsets of writes; none for a flush.
        asked: RefCell<Vec<Option<u64>>>,
        flushes: bool,
    }

    impl Device for Asked {
        fn info(&self) -> &DeviceInfo {
            self.inner.info()
        }

        fn read(&self, offset: u64, buffer: Buffer) -> Submission {
            self.inner.read(offset, buffer)
        }

        fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
            self.asked.borrow_mut().push(Some(offset));
            self.inner.write(offset, data, fua)
        }

        fn flush(&self) -> Submission {
            self.asked.borrow_mut().push(None);
            if self.flushes {
                self.inner.flush()
            } else {
                Submission::done(Err(DeviceError::of(DeviceErrorKind::Other)), None)
            }
        }

        fn discard(&self, offset: u64, length: u64) -> Submission {
            self.inner.discard(offset, length)
        }

        fn write_zeroes(&self, offset: u64, length: u64) -> Submission {
            self.inner.write_zeroes(offset, length)
        }
    }

    /// Erases superblocks at sectors 8 and 2032; what was asked for, and what came of it.
    fn erased(flushes: bool) -> (Vec<Option<u64>>, Result<Vec<u64>, String>) {
        let memory = Memory::new(BYTES).unwrap();
        memory.copy_in(4096, &[0xff; 4096]).unwrap();
        let erasing = uring::run(&RuntimeConfig::unpinned(1), move |_| async move {
            let inner = MemoryDevice::new("disk", Arc::clone(&memory), 512);
            let device = Asked { inner, asked: RefCell::default(), flushes };
            let erased = erase(&device, vec![Sector(8), Sector(2032)]).await;
            let read = device.read(4096, shard::buffer(4096)).await.buffer.unwrap();
            assert!(read.iter().all(|byte| *byte == 0));
            (device.asked.take(), erased.map_err(|error| error.sentence().to_owned()))
        });
        erasing.unwrap()
    }

    /// Device `number` of a RAID10 of two.
    fn mirror(number: u16) -> Superblock {
        let array = ArrayRecord {
            set_uuid: Uuid([1; 16]),
            name: "host:data".parse().unwrap(),
            created: Timestamp::new(1, 0),
            updated: Timestamp::new(1, 0),
            level: Level::Raid10,
            layout: Layout::Raid10(Raid10Layout(0x102)),
            size: SectorCount(22528),
            chunk: SectorCount(32),
            raid_disks: 2,
            events: 9,
            resync_offset: ResyncOffset::Clean,
            roles: (0..2).map(|slot| Role::Slot(MemberSlot(slot))).collect(),
            bitmap_offset: None,
            journal: false,
            clustered: false,
            reshape: None,
            logical_block_size: 0,
            needs_double_parity_log: false,
            unknown_features: 0,
        };
        let member = MemberRecord {
            version: MetadataVersion::V1_2,
            super_offset: Sector(8),
            device_sectors: 24576,
            data_offset: Sector(2048),
            data_size: SectorCount(22528),
            dev_number: DeviceNumber(number),
            device_uuid: Uuid([2; 16]),
            flags: DeviceFlags(0),
            recovery_offset: None,
            recovery_by_bitmap: false,
            replacement: false,
            journal_tail: None,
            ppl: None,
            double_parity_log: None,
            bad_block_log: None,
            new_offset: None,
            corrected_reads: 0,
        };
        Superblock::new(array, member)
    }

    #[test]
    fn an_array_of_mirrors_can_not_do_without_all_of_them() {
        let (one, other) = (mirror(0), mirror(1));
        let why =
            |going: &[&Superblock], unfinished: &[(Uuid, MemberSlot)]| needed(&one, going, &[], unfinished);
        assert_eq!(why(&[&one], &[]), None);
        assert!(why(&[&one, &other], &[]).is_some_and(|why| why.contains("0 would be left")));
        let rebuilt = |array: u8| [(Uuid([array; 16]), MemberSlot(1))];
        assert!(why(&[&one], &rebuilt(1)).is_some());
        assert_eq!(why(&[&one], &rebuilt(7)), None, "another array's");
    }

    #[test]
    fn erased_superblocks_are_flushed_and_a_flush_that_fails_is_an_error_of_the_device() {
        let asked = vec![Some(4096), Some(2032 * 512), None];
        assert_eq!(erased(true), (asked.clone(), Ok(vec![8, 2032])));
        let (told, outcome) = erased(false);
        assert_eq!(told, asked);
        assert!(outcome.unwrap_err().starts_with("disk: "));
    }
}
