//! From devices to an array: read every member's superblock, decide which are current, refuse to lose data.
//!
//! The freshest superblock decides (highest events, of no spare); members at most one event behind are
//! current, and their roles come from the freshest one's table, never from their own (docs/formats.md section
//! 4). Everything is checked before anything is written.

mod claims;
pub mod create;
pub(crate) mod decide;
mod disowned;
mod error;
mod majority;
pub(crate) mod newly_degraded;
mod unfit;

pub use claims::{contested, read_claims, read_superblock};
pub(crate) use claims::{read_member, read_place};
pub use error::{AssembleError, JournalProblem, StaleMember};

use std::{collections::BTreeSet, rc::Rc, sync::Arc};

use pinstripe_md::{
    bad_block_table::BadBlockTable,
    bitmap::{BitmapError, BitmapHeader, BitmapImage},
    identity::Uuid,
    superblock::{
        BitmapProblem, MemberBitmap, ReadOnlyReason, Role, Superblock, Support, check_bitmaps,
        event_is_current,
    },
    units::{SECTOR_BYTES, Sector},
};
use pinstripe_runtime::{Device, DeviceErrorKind, DeviceSource, shard};

use self::unfit::Unfit;
use crate::{
    consistency::{Log, journal::check_blocks},
    geometry::{Geometry, GeometryError, ParityGeometry, ParityLayout, Raid0Geometry, Raid0Layout},
    members::LogArea,
    mutants::{Mutant, active},
    offload::fence::{self, FenceError},
    options::ArrayOptions,
    supervision::bounded::Bounded,
    units::to_usize,
};

/// A member as it was found.
#[derive(Clone)]
pub(crate) struct Found {
    pub(crate) source: Arc<dyn DeviceSource>,
    pub(crate) device: Rc<dyn Device>,
    pub(crate) superblock: Superblock,
    pub(crate) bad_blocks: BadBlockTable,
}

/// The devices by what they are to the array.
pub(crate) struct FoundMembers {
    /// By slot: in sync, or being recovered (then `superblock.member.recovery_offset` is set).
    pub(crate) seats: Vec<Option<Found>>,
    /// Devices that are being copied to, each with its slot. The member there has everything.
    pub(crate) replacements: Vec<(usize, Found)>,
    /// Devices that wait for a slot.
    pub(crate) spares: Vec<Found>,
    /// Devices that were left out as out of date.
    pub(crate) stale: Vec<StaleMember>,
    /// Why replacements don't go on, in words.
    pub(crate) given_up: Vec<String>,
}

/// What came of a log from before the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OldLog {
    /// There is none, or it says nothing.
    Silent,
    /// It was replayed: parity matches, and the superblocks are to say so.
    Replayed,
    /// It says something, and that doesn't make the array good.
    InUse,
}

/// A block that a member has refused in a replay, in bytes of its data.
pub(crate) struct Refused {
    pub(crate) slot: usize,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// What assembly decided, before anything is written.
pub(crate) struct Assembled {
    pub(crate) geometry: Geometry,
    pub(crate) seated: FoundMembers,
    pub(crate) freshest: Superblock,
    /// The journal device, if the array has one. What it describes may not be on the members.
    pub(crate) journal: Option<Found>,
    pub(crate) bitmap: Option<MergedBitmap>,
    /// Why nothing may be written, if so.
    pub(crate) read_only: Option<ReadOnlyReason>,
    /// The member sector from which parity can't be trusted, after an unclean stop or in a resync.
    pub(crate) dirty_from: Option<Sector>,
    /// The array's journal is not to be had, and it was assembled nevertheless.
    pub(crate) journal_left_out: bool,
    /// Devices that can't be used and that the others do without, and why, in words.
    pub(crate) left_out: Vec<String>,
    /// Started although dirty and degraded: parity stands in for data even in rows that may be torn.
    pub(crate) forced: bool,
    /// What [`replay`](crate::replay::replay) left for the array to use.
    pub(crate) log: Log,
    /// What came of the one that was there.
    pub(crate) old_log: OldLog,
    /// What members have refused of it. To be listed before anything is read.
    pub(crate) refused: Vec<Refused>,
    /// Under which the members' servers are attached; 0 if none is.
    pub(crate) epoch: u64,
    /// All devices with attached servers. A start that fails gives them up, at whatever step ([`give_up`]).
    pub(crate) attached: Vec<Rc<dyn Device>>,
}

impl Assembled {
    /// Whether the member of `slot` is there and has everything.
    pub(crate) fn is_whole(&self, slot: usize) -> bool {
        self.seated.seats[slot].as_ref().is_some_and(is_whole)
    }
}

/// Attaches servers that compute: they take no write, nor a flush, of a host that isn't attached while
/// another one was.
async fn attach(found: &[Found], options: &ArrayOptions) -> Result<u64, AssembleError> {
    let array = freshest(found)?.array;
    let devices = || found.iter().map(|member| &member.device);
    // No other host is kept from the members for a start that is refused.
    majority::check(found, options)?;
    if options.takeover && !options.force {
        fence::check_fences(devices())?;
    }
    Ok(fence::attach(devices(), array.set_uuid.0, options.takeover).await?)
}

/// The host that had the array before may have written on until the servers knew of this host: only what is
/// read from now on is final (C23). A member that the other host dropped meanwhile would pass for current,
/// and has missed what was written since.
async fn read_again(found: &mut [Found], wanted: Option<Uuid>) -> Result<(), AssembleError> {
    let superblocks = claims::read_superblocks(found.iter().map(|member| &member.device), wanted).await?;
    for (member, superblock) in found.iter_mut().zip(superblocks) {
        member.bad_blocks = read_bad_blocks(&*member.device, &superblock).await?;
        member.superblock = superblock;
    }
    Ok(())
}

/// Reads everything, decides, writes nothing.
pub(crate) async fn assemble(
    sources: Vec<Arc<dyn DeviceSource>>,
    options: &ArrayOptions,
) -> Result<Assembled, AssembleError> {
    let mut devices = Vec::new();
    for source in sources {
        let attached = source.attach();
        let device = attached.map_err(|error| AssembleError::Device { name: source.name(), error })?;
        devices.push((source, Bounded::around(device, options.member_timeout_ns)));
    }
    let attached = devices.iter().map(|(_, device)| device);
    let superblocks = claims::read_superblocks(attached, options.wanted).await?;
    let (mut found, mut unfit) = (Vec::new(), Unfit::default());
    for ((source, device), superblock) in devices.into_iter().zip(superblocks) {
        match read_bad_blocks(&*device, &superblock).await {
            Ok(bad_blocks) => found.push(Found { source, device, superblock, bad_blocks }),
            Err(error) => unfit.set_aside(&superblock, error)?,
        }
    }
    if !options.read_only && is_settled(&found) {
        // No other host is kept from the members for a start that is refused.
        unfit.judge(decide::decide(found.clone(), options))?;
    }
    let epoch = if options.read_only { 0 } else { attach(&found, options).await? };
    let servers = found.iter().filter(|member| epoch > 0 && member.device.offload().is_some());
    let attached: Vec<_> = servers.map(|member| Rc::clone(&member.device)).collect();
    match assemble_attached(found, unfit, epoch > 0, options).await {
        Ok(assembled) => Ok(Assembled { epoch, attached, ..assembled }),
        Err(error) => {
            give_up(&attached).await;
            Err(error)
        }
    }
}

/// The same, when the servers are attached.
async fn assemble_attached(
    mut found: Vec<Found>,
    mut unfit: Unfit,
    is_attached: bool,
    options: &ArrayOptions,
) -> Result<Assembled, AssembleError> {
    let has_waited = !options.read_only
        && !options.follows_stop
        && fence::outlast(found.iter().map(|member| &member.device), options.tell_wait).await;
    if (is_attached || has_waited) && !active(Mutant::ReadBeforeAttach) {
        read_again(&mut found, options.wanted).await?;
    }
    if is_attached && let Err(too_few) = majority::check(&found, options) {
        let servers = found.iter().map(|member| &member.device).filter(|device| device.offload().is_some());
        let attached = servers.map(|device| device.info().name.clone()).collect();
        return Err(FenceError::Partly { attached, cause: Box::new(too_few) }.into());
    }
    if !options.read_only && !active(Mutant::AssembledUnflushed) {
        unfit.flush(&mut found).await?;
    }
    let mut assembled = unfit.judge(decide::decide(found, options))?;
    assembled.bitmap = read_bitmap(&assembled.freshest, &assembled.seated).await?;
    Ok(assembled)
}

/// A start has failed, and no array will give up what it has attached: else other hosts would find a host
/// there that isn't. A device that may still do what it was asked for in vain isn't told: its epoch keeps
/// that out.
pub(crate) async fn give_up(attached: &[Rc<dyn Device>]) {
    fence::give_up(attached.iter().filter(|_| !active(Mutant::FailedStartStaysAttached))).await;
}

/// Whether all superblocks are of one update. If not, another host may be in the middle of one, and what they
/// say is worth nothing before the members are attached.
fn is_settled(found: &[Found]) -> bool {
    let mut events = found.iter().map(|member| member.superblock.array.events);
    let first = events.next();
    events.all(|others| Some(others) == first)
}

fn is_whole(member: &Found) -> bool {
    member.superblock.member.recovery_offset.is_none()
}

async fn read_bad_blocks(
    device: &dyn Device,
    superblock: &Superblock,
) -> Result<BadBlockTable, AssembleError> {
    let log = superblock.member.bad_block_log.filter(|log| log.in_use);
    let Some((log, sector)) = log.zip(superblock.bad_block_log_sector()) else {
        return Ok(BadBlockTable::default());
    };
    let bytes = read_bytes(device, sector.0 * SECTOR_BYTES, u64::from(log.size) * SECTOR_BYTES).await?;
    BadBlockTable::decode(&bytes, log.shift)
        .map_err(|error| AssembleError::BadBlocks { name: device.info().name.clone(), error })
}

pub(crate) async fn read_bytes(
    device: &dyn Device,
    offset: u64,
    length: u64,
) -> Result<Vec<u8>, AssembleError> {
    let block = u64::from(device.info().logical_block);
    let (start, end) = (offset - offset % block, (offset + length).next_multiple_of(block));
    let outcome = device.read(start, shard::buffer(to_usize(end - start))).await;
    outcome.result.map_err(|error| AssembleError::Device { name: device.info().name.clone(), error })?;
    let bytes = outcome.buffer.as_deref().unwrap_or_default();
    let skip = to_usize(offset - start);
    Ok(bytes[skip..skip + to_usize(length)].to_vec())
}

fn stale_member(member: &Found, current: u64) -> StaleMember {
    let events = member.superblock.array.events;
    StaleMember { name: member.device.info().name.clone(), events, current, spare: false }
}

/// The error if no member is left but those that were set aside: too few members, not no devices.
fn too_few_left(error: AssembleError, left_behind: &[Found]) -> AssembleError {
    let (AssembleError::NoDevices, Some(any)) = (&error, left_behind.first()) else { return error };
    let array = &any.superblock.array;
    AssembleError::TooFewMembers {
        present: 0,
        needed: to_usize(array.raid_disks),
        redundancy: usize::from(array.level.parity_count()),
        stale: left_behind.iter().map(|member| stale_member(member, array.events)).collect(),
    }
}

/// The superblock with the most events ([`Superblock::freshness`]); an error if the devices are not of one
/// array. A device that is out of date need not know what a reshape has made of the array since: it has no
/// say, and is left out.
fn freshest(found: &[Found]) -> Result<Superblock, AssembleError> {
    let newest = found.iter().max_by_key(|member| member.superblock.freshness());
    let newest = newest.ok_or(AssembleError::NoDevices)?;
    let name = |member: &Found| member.device.info().name.clone();
    for other in found {
        let (own, others) = (&newest.superblock, &other.superblock);
        let Err(disagreement) = own.same_array(others) else { continue };
        if own.array.set_uuid != others.array.set_uuid {
            return Err(AssembleError::DifferentArrays {
                first: name(newest),
                first_array: array_words(own),
                second: name(other),
                second_array: array_words(others),
            });
        }
        if event_is_current(own.array.events, others.array.events) {
            return Err(AssembleError::MembersDisagree {
                first: name(newest),
                second: name(other),
                disagreement,
            });
        }
    }
    Ok(newest.superblock.clone())
}

fn array_words(superblock: &Superblock) -> String {
    format!("{} ({})", superblock.array.name.short(), superblock.array.set_uuid)
}

/// Why a start refuses the array of these superblocks, as far as they tell without their devices: by its
/// geometry, or by a journal that is too small.
pub fn refusal(freshest: &Superblock, all: &[(String, &Superblock)]) -> Option<AssembleError> {
    let devices = all.iter().map(|(_, superblock)| (*superblock, 512)).collect();
    match geometry(freshest, devices, &ArrayOptions::default()) {
        // Others may be on their way.
        Ok(_) | Err(AssembleError::TooFewMembers { .. }) => {}
        Err(error) => return Some(error),
    }
    let is_journal = |superblock: &Superblock| {
        freshest.array.journal
            && superblock.role_in(&freshest.array) == Role::Journal
            && event_is_current(freshest.array.events, superblock.array.events)
    };
    let (name, journal) = all.iter().find(|(_, superblock)| is_journal(superblock))?;
    let (chunk, members) = (freshest.array.chunk.0 * SECTOR_BYTES, freshest.array.raid_disks.into());
    let (blocks, needed) = check_blocks(chunk, members, journal).err()?;
    Some(AssembleError::Journal { name: name.clone(), problem: JournalProblem::TooSmall { needed, blocks } })
}

/// The geometry of the array on these devices: their superblocks and logical blocks.
fn geometry(
    freshest: &Superblock,
    devices: Vec<(&Superblock, u32)>,
    options: &ArrayOptions,
) -> Result<Geometry, AssembleError> {
    let array = &freshest.array;
    // A spare with a larger block doesn't change the array's; it can't take a slot either (C20).
    let seated = |(member, _): &&(&Superblock, u32)| matches!(member.role_in(array), Role::Slot(_));
    let blocks = devices.iter().filter(seated).map(|(_, block)| *block);
    // The array may have one of its own: clients' partition tables count in it.
    let own = match array.logical_block_size {
        0 => 512,
        logical_block if logical_block.is_power_of_two() && logical_block >= 512 => logical_block,
        logical_block => return Err(GeometryError::LogicalBlock { logical_block }.into()),
    };
    let block = blocks.fold(own.max(options.logical_block_min), u32::max);
    // The geometry refuses one that is too large.
    let chunk = u32::try_from(array.chunk.0 * SECTOR_BYTES).unwrap_or(u32::MAX);
    let members = to_usize(array.raid_disks);
    if array.level.has_parity() {
        // Without any member nothing bounds it, but the geometry.
        let bytes = array.component_sectors().checked_bytes().unwrap_or(u64::MAX);
        let layout = ParityLayout::from_md(array.level.number(), array.layout.to_word().unwrap_or(0))?;
        return Ok(Geometry::Parity(ParityGeometry::new(layout, members, chunk, bytes, block)?));
    }
    // Every member gives what it has, so all must be here before the zones are known.
    let mut sizes = vec![None; members];
    // A device that is out of date may have the number that a member got since.
    let is_current = |member: &&Superblock| event_is_current(array.events, member.array.events);
    for superblock in devices.into_iter().map(|(superblock, _)| superblock).filter(is_current) {
        if let Role::Slot(slot) = superblock.role_in(array)
            && let Some(size) = sizes.get_mut(usize::from(slot.0))
        {
            *size = Some(superblock.member.data_size.0 * SECTOR_BYTES);
        }
    }
    let present = sizes.iter().flatten().count();
    let sizes: Option<Vec<u64>> = sizes.into_iter().collect();
    let sizes = sizes.ok_or(AssembleError::TooFewMembers {
        present,
        needed: members,
        redundancy: 0,
        stale: Vec::new(),
    })?;
    let word = array.layout.to_word().unwrap_or(0);
    let assumed = Raid0Layout::from_md(word).unwrap_or(Raid0Layout::Original);
    let geometry = Raid0Geometry::new(assumed, chunk, block, &sizes)?;
    if !geometry.is_layout_irrelevant() {
        // Members of different sizes, and the superblock doesn't say which of MD's two maps was used.
        Raid0Layout::from_md(word)?;
    }
    Ok(Geometry::Raid0(geometry))
}

/// What may be done with the array by all its current members: some features stand in one superblock only.
fn support(freshest: &Superblock, found: &[Found]) -> Result<Option<ReadOnlyReason>, AssembleError> {
    let mut read_only = None;
    let current = found.iter().filter(|member| {
        event_is_current(freshest.array.events, member.superblock.array.events)
            && member.superblock.role_in(&freshest.array) != Role::Faulty
    });
    for superblock in std::iter::once(freshest).chain(current.map(|member| &member.superblock)) {
        // Dirty or clean is the freshest's word.
        let mut superblock = superblock.clone();
        superblock.array.resync_offset = freshest.array.resync_offset;
        match superblock.support() {
            Support::Full => {}
            Support::ReadOnly(reason) => read_only = read_only.or(Some(reason)),
            Support::Refused(reason) => return Err(AssembleError::Refused(reason)),
        }
    }
    Ok(read_only)
}

/// Which device holds which slot, which is to take one over, and which waits for one.
fn seat(freshest: &Superblock, found: Vec<Found>, members: usize) -> Result<FoundMembers, AssembleError> {
    let current = freshest.array.events;
    let mut seats: Vec<Option<Found>> = (0..members).map(|_| None).collect();
    let mut targets: Vec<Option<Found>> = (0..members).map(|_| None).collect();
    let (mut spares, mut stale) = (Vec::new(), Vec::new());
    for mut member in found {
        let name = member.device.info().name.clone();
        let events = member.superblock.array.events;
        // The kernel notes the end of a rebuild by the last number that there is (C35).
        let end = Sector(freshest.array.component_sectors().0);
        let recovered = &mut member.superblock.member.recovery_offset;
        *recovered = recovered.map(|offset| offset.min(end));
        let believed = active(Mutant::StaleMemberAccepted);
        let role =
            if believed { member.superblock.own_role() } else { member.superblock.role_in(&freshest.array) };
        let own_role = member.superblock.own_role();
        let Role::Slot(slot) = role else {
            if matches!(own_role, Role::Slot(_)) {
                stale.push(StaleMember { name, events, current, spare: false });
            } else if (role, own_role) == (Role::Spare, Role::Spare) {
                // No table names spares: one that was late at a start isn't told from one that was removed.
                if event_is_current(current, events) {
                    spares.push(member);
                } else {
                    stale.push(StaleMember { name, events, current, spare: true });
                }
            }
            continue;
        };
        if !event_is_current(current, events) && !believed {
            stale.push(StaleMember { name, events, current, spare: false });
            continue;
        }
        if own_role == Role::Spare && !believed {
            // It took the slot in an update that its superblock missed: a spare has nothing of the array yet.
            let record = &mut member.superblock.member;
            (record.recovery_offset, record.recovery_by_bitmap) = (Some(Sector(0)), false);
        }
        let replaces = member.superblock.member.replacement;
        let place = if replaces { &mut targets } else { &mut seats };
        let seat = &mut place[usize::from(slot.0)];
        if let Some(other) = seat {
            let first = other.device.info().name.clone();
            return Err(AssembleError::Duplicate { first, second: name });
        }
        *seat = Some(member);
    }
    let mut given_up = Vec::new();
    let replacements = seat_replacements(&mut seats, targets, freshest, &mut given_up);
    Ok(FoundMembers { seats, replacements, spares, stale, given_up })
}

/// Whether a replacement can go on: what is logged for the member must fit the target, too.
fn can_replace(freshest: &Superblock, member: &Superblock, target: &Superblock) -> bool {
    let length = |superblock| LogArea::of(superblock).map_or(0, |area| area.length);
    freshest.array.level.has_parity() && length(target) >= length(member)
}

/// Which replacements go on. Where the member that was to be replaced is gone, its target is the member.
fn seat_replacements(
    seats: &mut [Option<Found>],
    targets: Vec<Option<Found>>,
    freshest: &Superblock,
    given_up: &mut Vec<String>,
) -> Vec<(usize, Found)> {
    let mut going_on = Vec::new();
    for (slot, target) in targets.into_iter().enumerate() {
        let Some(mut target) = target else { continue };
        match &seats[slot] {
            None => {
                target.superblock.member.replacement = false;
                seats[slot] = Some(target);
            }
            Some(member)
                if is_whole(member) && can_replace(freshest, &member.superblock, &target.superblock) =>
            {
                // Without an offset it is copied whole, and has only to be switched in.
                let whole = Sector(freshest.array.component_sectors().0);
                target.superblock.member.recovery_offset.get_or_insert(whole);
                going_on.push((slot, target));
            }
            // Left out: the member has as much as its replacement, or more.
            Some(member) => {
                let (name, why) = (&target.device.info().name, why_given_up(freshest, member));
                given_up
                    .push(format!("{name}: it was to replace the member in slot {slot}, and can't: {why}"));
            }
        }
    }
    going_on
}

fn why_given_up(freshest: &Superblock, member: &Found) -> &'static str {
    if !is_whole(member) {
        "that member isn't whole itself"
    } else if freshest.array.level.has_parity() {
        "it has less room for the array's log than that member"
    } else {
        "the level has no parity"
    }
}

/// The journal device of an array that has one.
fn take_journal(
    freshest: &Superblock,
    found: &mut Vec<Found>,
    force: bool,
) -> Result<Option<Found>, AssembleError> {
    if !freshest.array.journal {
        return Ok(None);
    }
    let is_journal = |member: &Found| {
        member.superblock.role_in(&freshest.array) == Role::Journal
            && event_is_current(freshest.array.events, member.superblock.array.events)
    };
    match found.iter().position(is_journal) {
        Some(place) => Ok(Some(found.swap_remove(place))),
        None if force => Ok(None),
        None => Err(AssembleError::JournalMissing),
    }
}

/// The array has a journal no more.
fn disown_journal(superblock: &mut Superblock) {
    let array = &mut superblock.array;
    array.journal = false;
    array.roles.iter_mut().filter(|role| **role == Role::Journal).for_each(|role| *role = Role::Faulty);
}

/// A member's bitmap, of which the header has been read and checked.
struct FoundBitmap<'a> {
    member: &'a Found,
    sector: Sector,
    byte_count: u64,
}

/// The bitmaps of all current members.
#[derive(Default)]
struct FoundBitmaps<'a> {
    /// Those that can be used.
    sound: Vec<FoundBitmap<'a>>,
    /// The others: which device, and what is wrong.
    damaged: Vec<(String, BitmapProblem)>,
}

/// What is wrong with a bitmap of which not all can be read; other errors are the device's.
fn unread(error: AssembleError) -> Result<BitmapError, AssembleError> {
    match error {
        AssembleError::Device { error, .. } if error.kind == DeviceErrorKind::Media => {
            Ok(BitmapError::Medium)
        }
        error => Err(error),
    }
}

/// The headers of all current members' bitmaps: see [`check_bitmaps`] (C34, C35).
async fn read_bitmap_headers<'a>(
    freshest: &Superblock,
    seats: &'a [Option<Found>],
) -> Result<FoundBitmaps<'a>, AssembleError> {
    let (mut found, mut bitmaps) = (Vec::new(), Vec::new());
    for member in seats.iter().flatten() {
        let superblock = &member.superblock;
        let Some(sector) = superblock.bitmap_sector() else { continue };
        let header = match read_bytes(&*member.device, sector.0 * SECTOR_BYTES, 512).await {
            Ok(head) => BitmapHeader::decode(&head),
            Err(error) => Err(unread(error)?),
        };
        let info = member.device.info();
        let byte_count = header.as_ref().map_or(0, BitmapHeader::byte_count);
        found.push(FoundBitmap { member, sector, byte_count });
        let (name, logical_block) = (info.name.clone(), info.logical_block);
        bitmaps.push(MemberBitmap { name, superblock, header, logical_block });
    }
    let problems = check_bitmaps(&freshest.array, &bitmaps)
        .map_err(|(name, problem)| AssembleError::Bitmap { name, problem })?;
    let mut all = FoundBitmaps::default();
    for (bitmap, problem) in found.into_iter().zip(problems) {
        match problem {
            None => all.sound.push(bitmap),
            Some(problem) => all.damaged.push((bitmap.member.device.info().name.clone(), problem)),
        }
    }
    Ok(all)
}

/// The bitmaps of all current members as one.
pub(crate) struct MergedBitmap {
    /// Stale if one of them is, or is out of date.
    pub(crate) image: BitmapImage,
    /// The pages that are otherwise on some members.
    pub(crate) pages_unlike: BTreeSet<usize>,
    /// Devices of which the bitmap wasn't believed.
    pub(crate) outdated: Vec<String>,
}

impl MergedBitmap {
    fn new(image: BitmapImage) -> Self {
        Self { image, pages_unlike: BTreeSet::new(), outdated: Vec::new() }
    }

    fn add(&mut self, other: &BitmapImage) {
        self.pages_unlike.extend(self.image.pages_unlike(other));
        if !active(Mutant::FirstBitmapBelieved) && !self.image.merge(other) {
            self.distrust();
        }
        // A member that left before the latest clearing of bits can't come back by the bitmap. It is
        // enough that one header knows of that clearing.
        let (mine, theirs) = (self.image.header(), other.header());
        let events = mine.events.max(theirs.events);
        self.image.set_events(events, mine.events_cleared.max(theirs.events_cleared));
    }

    /// The bits of a device aren't known.
    fn distrust_of(&mut self, name: String) {
        self.outdated.push(name);
        self.distrust();
    }

    /// Some bits aren't known: all count as set. Until they are so on the members, none is believed.
    fn distrust(&mut self) {
        self.image.set_range(0..self.image.header().bit_count());
        self.image.set_stale(true);
        self.rewrite();
    }

    fn rewrite(&mut self) {
        self.pages_unlike = (0..self.image.page_count()).collect();
    }
}

/// The OR of all current members' bitmaps (C8). One that is older than the superblocks, or damaged beside a
/// sound one, counts as all ones.
async fn read_bitmap(
    freshest: &Superblock,
    seated: &FoundMembers,
) -> Result<Option<MergedBitmap>, AssembleError> {
    if freshest.array.bitmap_offset.is_none() {
        return Ok(None);
    }
    let mut merged: Option<MergedBitmap> = None;
    let FoundBitmaps { sound, mut damaged } = read_bitmap_headers(freshest, &seated.seats).await?;
    for bitmap in sound {
        let device = &*bitmap.member.device;
        let name = device.info().name.clone();
        let image = match read_bytes(device, bitmap.sector.0 * SECTOR_BYTES, bitmap.byte_count).await {
            Ok(bytes) => BitmapImage::decode(&bytes),
            Err(error) => Err(unread(error)?),
        };
        let image = match image {
            Ok(image) => image,
            Err(problem) => {
                damaged.push((name, problem.into()));
                continue;
            }
        };
        let is_believed = image.header().is_valid_for(freshest.array.events);
        match &mut merged {
            None => merged = Some(MergedBitmap::new(image)),
            Some(merged) => merged.add(&image),
        }
        if !is_believed && let Some(merged) = &mut merged {
            merged.distrust_of(name);
        }
    }
    for (name, problem) in damaged.into_iter().filter(|_| !active(Mutant::DamagedBitmapEmpty)) {
        // An update writes it anew before anything else is written.
        match &mut merged {
            Some(merged) => merged.distrust_of(name),
            None => return Err(AssembleError::Bitmap { name, problem }),
        }
    }
    if !seated.replacements.is_empty()
        && let Some(merged) = &mut merged
    {
        // What the targets have wasn't read.
        merged.rewrite();
    }
    Ok(merged)
}
