//! What an owner asks of maintenance: how far it is, how fast it may go, checks and repairs.

use super::Array;
use crate::{
    controller::error::CommandError,
    maintenance::{CheckReport, Maintenance, ScrubRequest, SyncError, SyncProgress},
    options::SyncSpeed,
};

impl Array {
    fn maintenance(&self) -> Result<&Maintenance, SyncError> {
        Ok(self.maintenance.as_deref().ok_or(CommandError::NoRedundancy)?)
    }

    /// What resync, rebuild or scrub is under way.
    pub fn progress(&self) -> Option<SyncProgress> {
        self.maintenance.as_ref()?.progress()
    }

    /// Whether maintenance is paused.
    pub fn is_sync_paused(&self) -> bool {
        self.maintenance.as_ref().is_some_and(|maintenance| maintenance.is_paused())
    }

    /// Pauses resync, recovery, check and repair where they are, or lets them go on (MD: `sync_action`
    /// `frozen`). Not remembered when the array stops. While paused, no recovery and no resync begins either.
    pub fn pause_sync(&self, paused: bool) {
        if let Some(maintenance) = &self.maintenance {
            maintenance.pause(paused);
        }
    }

    /// The limits of resync, recovery, check and repair.
    pub fn sync_speed(&self) -> SyncSpeed {
        self.maintenance.as_ref().map_or(self.shared().options.sync_speed, |maintenance| maintenance.speed())
    }

    /// Sets the limits, at once and until the array stops.
    pub fn set_sync_speed(&self, speed: SyncSpeed) -> Result<(), SyncError> {
        self.maintenance()?.set_speed(speed)
    }

    /// Whether [`Array::set_sync_speed`] would take this. Nothing is changed.
    pub fn check_sync_speed(&self, speed: SyncSpeed) -> Result<(), SyncError> {
        self.maintenance().and(Maintenance::check_speed(speed))
    }

    /// Compares the parity of every stripe with its data and waits for the result. Progress shows in
    /// [`Array::progress`].
    pub async fn check(&self) -> Result<CheckReport, SyncError> {
        self.scrub(ScrubRequest::default()).await
    }

    /// Checks or repairs a range and waits for the result, after scrubs that were asked for before. What the
    /// walk does goes on if the future is dropped. A scrub that is stopped gives what it found until then.
    pub async fn scrub(&self, request: ScrubRequest) -> Result<CheckReport, SyncError> {
        self.maintenance()?.request_scrub(request).await
    }

    /// Ends check and repair, the one under way and those that wait (MD: `sync_action` `idle`).
    pub fn stop_scrubs(&self) -> Result<(), SyncError> {
        self.maintenance()?.stop_scrubs()
    }

    /// The same before the array stops; returns when all of them have told how far they came.
    pub async fn end_scrubs(&self) {
        if let Ok(maintenance) = self.maintenance() {
            maintenance.end_scrubs().await;
        }
    }
}
