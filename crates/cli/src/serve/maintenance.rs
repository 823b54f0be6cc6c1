//! The server's half of the calls about maintenance and events.

use std::{cell::Cell, rc::Rc, time::UNIX_EPOCH};

use pinstripe_control::{
    detail::Compared,
    maintenance::{
        CheckParameters, CheckResult, Event, EventsParameters, EventsResult, MemberSectors, RepairParameters,
        SyncChange, SyncParameters, SyncResult,
    },
};
use pinstripe_engine::{
    array::Array,
    maintenance::{CheckReport, ScrubAction, ScrubRequest, SyncError},
    options::SyncSpeed,
};
use pinstripe_runtime::shard;

use super::{report, stopping::Stopping};
use pinstripe_block::first_of::{First, first_of};

/// The longest that a call waits for an event.
const WAIT_MS_MAX: u64 = 60_000;

/// Compares data with parity.
pub async fn check(
    array: &Array,
    parameters: CheckParameters,
    compared: &Cell<Option<Compared>>,
) -> Result<CheckResult, SyncError> {
    let CheckParameters { from, to } = parameters;
    scrub(array, ScrubRequest { action: ScrubAction::Check, from, to }, compared).await
}

/// Compares, and corrects.
pub async fn repair(
    array: &Array,
    parameters: RepairParameters,
    compared: &Cell<Option<Compared>>,
) -> Result<CheckResult, SyncError> {
    let RepairParameters { from, to, locate } = parameters;
    let action = if locate { ScrubAction::Locate } else { ScrubAction::Repair };
    scrub(array, ScrubRequest { action, from, to }, compared).await
}

/// Does it. `compared` has what is known of all parity then, if all of it was compared.
async fn scrub(
    array: &Array,
    request: ScrubRequest,
    compared: &Cell<Option<Compared>>,
) -> Result<CheckResult, SyncError> {
    let ScrubRequest { action, from, to } = request;
    let report = array.scrub(request).await?;
    let is_whole = report.complete && from == 0 && to.is_none();
    if is_whole && report.unreadable_stripes == 0 && report.uncompared_stripes == 0 {
        let mismatched_sectors = match action {
            ScrubAction::Check => report.mismatched_sectors,
            ScrubAction::Repair => 0,
            ScrubAction::Locate => report.unexplained_sectors,
        };
        let time = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        compared.set(Some(Compared { time, mismatched_sectors }));
    }
    Ok(result(report))
}

fn result(report: CheckReport) -> CheckResult {
    let place = |place: pinstripe_engine::maintenance::Located| MemberSectors {
        slot: place.slot,
        device: place.device,
        sector: place.sector,
        sectors: place.sectors,
    };
    CheckResult {
        stripes: report.stripes,
        mismatched_sectors: report.mismatched_sectors,
        unreadable_stripes: report.unreadable_stripes,
        uncompared_stripes: report.uncompared_stripes,
        corrected_sectors: report.corrected_sectors,
        unexplained_sectors: report.unexplained_sectors,
        corrected: report.corrected.into_iter().map(place).collect(),
        complete: report.complete,
        next_sector: Some(report.next_sector),
    }
}

/// Steers what is under way.
pub fn sync(array: &Array, parameters: SyncParameters) -> Result<SyncResult, SyncError> {
    let SyncParameters { action, speed_min_kib, speed_max_kib } = parameters;
    let now = array.sync_speed();
    let speed = SyncSpeed {
        min_kib: speed_min_kib.unwrap_or(now.min_kib),
        max_kib: speed_max_kib.unwrap_or(now.max_kib),
    };
    let speed = Some(speed).filter(|_| speed_min_kib.is_some() || speed_max_kib.is_some());
    // What can be refused comes before anything is changed.
    if let Some(speed) = speed {
        array.check_sync_speed(speed)?;
    }
    if action == Some(SyncChange::Stop) {
        array.stop_scrubs()?;
    }
    if let Some(speed) = speed {
        array.set_sync_speed(speed)?;
    }
    match action {
        Some(SyncChange::Pause) => array.pause_sync(true),
        Some(SyncChange::Resume) => array.pause_sync(false),
        Some(SyncChange::Stop) | None => {}
    }
    let SyncSpeed { min_kib, max_kib } = array.sync_speed();
    Ok(SyncResult {
        paused: array.is_sync_paused(),
        speed_min_kib: min_kib,
        speed_max_kib: max_kib,
        sync: array.progress().as_ref().map(report::sync),
    })
}

/// The events after a number; waits for the first one if there is none, but not beyond the order to stop, and
/// if that is given already, not beyond the array.
pub async fn events(
    array: &Array,
    parameters: EventsParameters,
    instance: &str,
    stopping: &Rc<Stopping>,
) -> EventsResult {
    let EventsParameters { after, wait_ms } = parameters;
    let limit = wait_ms.min(WAIT_MS_MAX) * 1_000_000;
    let waiting = shard::timeout(limit, array.event_after(after));
    match first_of(stopping.next_step(), waiting).await {
        First::One(()) | First::Other(_) => {}
    }
    EventsResult {
        instance: instance.to_owned(),
        last: array.last_event(),
        events: array.events(after).iter().map(event).collect(),
    }
}

/// An event in the words of the protocol.
pub fn event(event: &pinstripe_engine::events::Event) -> Event {
    Event {
        number: event.number,
        time: event.time,
        event: event.kind.name(),
        device: event.kind.device().map(ToOwned::to_owned),
        alarming: event.kind.is_alarming(),
        message: event.kind.to_string(),
    }
}

/// A name of this run that no other run has.
pub fn instance() -> String {
    let began = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos());
    format!("{}-{began:x}", std::process::id())
}
