//! Members that are far larger than what is written of them: what lies beyond 4 GiB or 2 TiB, and far apart.
//!
//! A third of these lives is *far*: an array as small as any, with its data about 4 GiB or 2 TiB behind the
//! beginning of the members, while superblock, bitmap, list of bad blocks and log stay in front (or, with
//! metadata 1.0, the other way round). All that happens to others happens to it.
//!
//! The others are *vast*: members of 4 to 9 GiB, bitmaps of several pages, level 4 more often. Users work in
//! a few windows, which lie where a number of some kind would run over, and at both ends. A rebuild of
//! everything would take too long, so a member that goes comes back by bitmap, and a start without a log
//! needs a bitmap. What is looked at is what was ever touched: all else is zero, parity too.

use std::{collections::BTreeSet, ops::Range};

use pinstripe_engine::{
    geometry::ParityGeometry,
    maintenance::{CheckReport, ScrubAction, ScrubRequest},
};
use pinstripe_md::{
    level::{Layout, Level},
    superblock::MetadataVersion,
};

use super::{Consistency, Setup, Testbed, Verdict, atlas, client, draw::FRONT_SECTORS, owner, wide};
use crate::{Fault, Rng, SECTOR, SimDisk};

/// What a vast member has besides its data.
const ROOM_BYTES: u64 = 8 << 20;
/// What a window has of each member, about.
const WINDOW_BYTES: u64 = 128 << 10;
/// More than this of a member is not rebuilt.
const REBUILD_BYTES_MAX: u64 = 256 << 20;
const REBUILD_STRIPES_MAX: u64 = 8192;
/// The largest request.
const REQUEST_SECTORS_MAX: u64 = 2048;
/// Bits in the first page of a bitmap, and in each of the others.
const FIRST_PAGE_BITS: u64 = 30_720;
const PAGE_BITS: u64 = 32_768;

/// How much of what there is.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Of 16 events, how many are of these.
    liveliness: u64,
    /// The stripes that users of a vast array write. None if it is far.
    pub(super) windows: Vec<Range<u64>>,
}

impl Habits {
    /// Draws them, and makes the array one of this kind.
    pub(crate) fn drawn(rng: &mut Rng, setup: &mut Setup) -> Self {
        let liveliness = rng.pick(&[2, 4, 8]);
        let windows = if rng.chance(1, 3) {
            remove(rng, setup);
            Vec::new()
        } else {
            enlarge(rng, setup)
        };
        Self { liveliness, windows }
    }
}

/// Makes the array a far one.
fn remove(rng: &mut Rng, setup: &mut Setup) {
    if rng.chance(1, 2) {
        setup.atlas = Some(atlas::Habits::drawn(rng, &mut setup.options, &setup.disk));
    }
    if setup.consistency == Consistency::Ppl && rng.chance(1, 2) {
        setup.version = MetadataVersion::V1_0;
    }
    if setup.level.parity_count() == 0 {
        // Its data would take all that there is.
        setup.version = MetadataVersion::V1_2;
    }
    // A position is counted in bytes or in sectors.
    let edge = rng.pick(&[(1 << 32) / SECTOR, 1 << 32]);
    let bytes = setup.chunk * setup.stripes;
    let far = if rng.chance(1, 2) { edge - bytes / SECTOR / 2 } else { edge + rng.below(1 << 24) };
    setup.data_sector = far / 8 * 8;
    setup.disk.size += setup.data_sector * SECTOR;
}

/// Makes the array a vast one.
fn enlarge(rng: &mut Rng, setup: &mut Setup) -> Vec<Range<u64>> {
    if setup.level.parity_count() > 0 && rng.chance(1, 4) {
        (setup.level, setup.layout) = (Level::Raid4, Layout::None);
    }
    let logged = match setup.consistency {
        Consistency::Ppl => setup.level == Level::Raid5,
        Consistency::DoubleParityLog => setup.level == Level::Raid6,
        Consistency::Journal => true,
        Consistency::Resync | Consistency::Bitmap(_) => false,
    };
    setup.chunk = rng.pick(&[4096, 65536, 65536, 262_144, 524_288]);
    setup.stripes = ((4 << 30) + rng.below(5 << 30)) / setup.chunk;
    let largest = rng.chance(1, 16) && setup.chunk > 4096;
    let region = if largest { 64 << 20 } else { rng.pick(&[65536, 65536, 131_072, 1 << 20]) };
    if setup.level.parity_count() > 0 && !logged {
        setup.consistency = Consistency::Bitmap(region);
    }
    (setup.resync, setup.policy_changes, setup.failures) = (false, false, false);
    setup.lives = setup.lives.min(3);
    // A look at all regions takes a while.
    setup.options.sweep_ns = setup.options.sweep_ns.map(|sweep| sweep.max(20_000_000));
    // A log wants room in front.
    let near = if logged { 1 << 15 } else { FRONT_SECTORS };
    setup.data_sector = rng.pick(&[near, 1 << 15, (1 << 32) / SECTOR - 64]);
    setup.disk.size = setup.data_sector * SECTOR + setup.chunk * setup.stripes + ROOM_BYTES;
    windows(rng, setup, region.into())
}

fn windows(rng: &mut Rng, setup: &Setup, region: u64) -> Vec<Range<u64>> {
    let columns = (setup.members - usize::from(setup.level.parity_count())) as u64;
    let (edge, data) = (1_u64 << 32, setup.data_byte());
    let mut places = [
        0,
        edge / setup.chunk,
        edge.saturating_sub(data) / setup.chunk,
        edge / (setup.chunk * columns),
        (edge / 2) / setup.chunk,
        region * FIRST_PAGE_BITS / setup.chunk,
        region * (FIRST_PAGE_BITS + PAGE_BITS) / setup.chunk,
        rng.below(setup.stripes),
        setup.stripes - 1,
    ];
    rng.shuffle(&mut places);
    let width = (WINDOW_BYTES / setup.chunk).clamp(2, 16);
    let mut windows: Vec<Range<u64>> = Vec::new();
    for place in &places[..rng.index(4) + 2] {
        let first = place.saturating_sub(width / 2).min(setup.stripes - width);
        let window = first..first + width;
        if windows.iter().all(|other| other.end <= window.start || window.end <= other.start) {
            windows.push(window);
        }
    }
    windows
}

/// Makes a user one of the window that its number says.
pub(crate) fn place(setup: &Setup, habits: &mut client::Habits, number: u64, sectors: u64) {
    let windows = setup.windows();
    if windows.is_empty() {
        return;
    }
    let window = &windows[crate::rng::index(number) % windows.len()];
    habits.range = in_sectors(window, habits.stripe, sectors);
    habits.unit = habits.unit.min(REQUEST_SECTORS_MAX / 8);
    habits.units_max = habits.units_max.min(REQUEST_SECTORS_MAX / habits.unit);
}

fn in_sectors(window: &Range<u64>, stripe: u64, sectors: u64) -> Range<u64> {
    let at = |number: u64| (number * stripe / 8 * 8).min(sectors);
    at(window.start)..at(window.end)
}

/// The stripes that may hold anything but zeroes.
pub(crate) fn stripes_in_use(setup: &Setup, disks: &[SimDisk], geometry: &ParityGeometry) -> Vec<u64> {
    if !setup.is_vast() {
        return (0..geometry.stripes()).collect();
    }
    let (data, chunk) = (setup.data_byte(), setup.chunk);
    let mut stripes = BTreeSet::new();
    for disk in &disks[..setup.members] {
        for page in disk.touched().iter().filter(|page| page.end > data) {
            let (first, last) = (page.start.max(data) - data, page.end - 1 - data);
            stripes.extend((first / chunk..=last / chunk).filter(|stripe| *stripe < geometry.stripes()));
        }
    }
    stripes.into_iter().collect()
}

/// Which of so many sectors of the array may hold anything but zeroes, and the windows.
pub(crate) fn sectors_in_use(setup: &Setup, disks: &[SimDisk], sectors: u64) -> Vec<Range<u64>> {
    if !setup.is_vast() {
        let all = 0..sectors;
        return vec![all];
    }
    let geometry = setup.geometry();
    let stripe = geometry
        .as_ref()
        .map_or(sectors / setup.stripes, |geometry| u64::from(geometry.stripe_bytes()) / SECTOR);
    let mut stripes: BTreeSet<u64> = setup.windows().iter().cloned().flatten().collect();
    stripes.extend(geometry.iter().flat_map(|geometry| stripes_in_use(setup, disks, geometry)));
    stripes.into_iter().map(|number| in_sectors(&(number..number + 1), stripe, sectors)).collect()
}

/// What to scrub: everything, or a window.
pub(crate) fn scrub_request(setup: &Setup, rng: &mut Rng, action: ScrubAction) -> ScrubRequest {
    let windows = setup.windows();
    if windows.is_empty() {
        return ScrubRequest { action, ..ScrubRequest::default() };
    }
    scrub_of(setup, action, &windows[rng.index(windows.len())])
}

fn scrub_of(setup: &Setup, action: ScrubAction, window: &Range<u64>) -> ScrubRequest {
    let at = |stripe: u64| stripe * setup.chunk / SECTOR;
    ScrubRequest { action, from: at(window.start), to: Some(at(window.end)) }
}

/// One event of these lives, or none.
pub(super) fn event(bed: &mut Testbed) {
    let Some(habits) = &bed.setup.vast else { return };
    if !bed.rng.chance(habits.liveliness, 16) || bed.setup.level.parity_count() == 0 {
        return;
    }
    if bed.setup.is_far() {
        if bed.setup.failures {
            wide::scratch(bed);
        }
        return;
    }
    if !matches!(bed.setup.consistency, Consistency::Bitmap(_)) {
        return;
    }
    match bed.rng.below(8) {
        0 => lose_for_a_while(bed),
        1 | 2 => owner::bounce(bed),
        3 | 4 => owner::give_back(bed),
        5 | 6 => damage_window(bed),
        _ => {}
    }
}

/// A member goes, and will come back with what it has.
fn lose_for_a_while(bed: &mut Testbed) {
    let Some((_, disk)) = bed.doom_victim() else { return };
    let soon = bed.drawn_request(disk, 24);
    match bed.rng.below(3) {
        0 => bed.hosts.disks[disk].fault(&Fault::Gone),
        1 => bed.hosts.disks[disk].fault(&Fault::FailFlushes(1)),
        _ => bed.hosts.disks[disk].plan(soon, Fault::Gone),
    }
}

/// Some sectors of a member in a window can't be read any more, or, where no crash will come, not be
/// written.
fn damage_window(bed: &mut Testbed) {
    let Some((_, disk)) = bed.victim() else { return };
    bed.faults.doom(disk);
    let windows = bed.setup.windows().to_vec();
    let window = &windows[bed.rng.index(windows.len())];
    let bytes = (window.end - window.start) * bed.setup.chunk;
    let unwritable = bed.ends_in_peace && bed.rng.chance(1, 2);
    if unwritable {
        bed.faults.scratch();
    }
    for _ in 0..=bed.rng.below(3) {
        let block = u64::from(bed.setup.block);
        let at = window.start * bed.setup.chunk + bed.rng.below(bytes / block) * block;
        let from = bed.setup.data_byte() + at;
        let range = from..from + block;
        let fault = if unwritable { Fault::UnwritableRange(range) } else { Fault::UnreadableRange(range) };
        bed.hosts.disks[disk].fault(&fault);
    }
}

/// Whether a member is being rebuilt as a whole.
pub(crate) fn is_endless(bed: &Testbed) -> bool {
    let Some(array) = bed.service.served().filter(|_| bed.setup.is_vast()) else { return false };
    let left = array.progress().map_or(0, |progress| progress.total - progress.done);
    left > REBUILD_STRIPES_MAX || left * bed.setup.chunk > REBUILD_BYTES_MAX
}

/// At rest a vast member that lists sectors is not rebuilt, and bears no other loss in their rows: the
/// run ends.
pub(crate) fn end_if_listed(bed: &Testbed) -> Result<(), Verdict> {
    if !bed.setup.is_vast() {
        return Ok(());
    }
    let survey = bed.hosts.survey()?;
    let listed = survey.members(&bed.hosts.disks)?.into_iter().flatten().any(|held| !held.listed.is_empty());
    if listed { Err(Verdict::Abandoned) } else { Ok(()) }
}

/// Checks everything that users work with.
pub(crate) fn check_in_use(bed: &mut Testbed) -> Result<CheckReport, Verdict> {
    let mut requests = vec![ScrubRequest { action: ScrubAction::Check, ..ScrubRequest::default() }];
    if bed.setup.is_vast() {
        let of = |window: &Range<u64>| scrub_of(&bed.setup, ScrubAction::Check, window);
        requests = bed.setup.windows().iter().map(of).collect();
    }
    let mut worst = CheckReport::default();
    for request in requests {
        let array = bed.service.array();
        let work = async move { array.scrub(request).await };
        let report = bed.hosts.block_on("check", work)?;
        let report = report.map_err(|error| Verdict::Refused(format!("check: {error}")))?;
        if report.mismatched_sectors > 0 || report.unreadable_stripes > 0 {
            return Ok(report);
        }
        worst = report;
    }
    Ok(worst)
}
