//! What the array's owner asks of maintenance.

use std::rc::Rc;

use super::{
    Maintenance, SyncProgress,
    scrub::{CheckReport, Correction, SCRUBS_MAX, Scrub, ScrubRequest, SyncError},
};
use crate::{controller::error::CommandError, error::IoError, options::SyncSpeed};

impl Maintenance {
    /// What resync, rebuild or scrub is under way.
    pub(crate) fn progress(&self) -> Option<SyncProgress> {
        let mut progress = self.sync.borrow().clone();
        if let Some(progress) = &mut progress
            && self.frozen.get()
        {
            (progress.paused, progress.speed, progress.finish_seconds) = (true, 0, None);
        }
        progress
    }

    /// Whether maintenance is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.frozen.get()
    }

    /// Pauses resync, recovery, check and repair where they are, or lets them go on (MD: `sync_action`
    /// `frozen`). Not remembered when the array stops. While paused, no recovery and no resync begins either.
    pub(crate) fn pause(&self, paused: bool) {
        if self.frozen.replace(paused) != paused {
            if let Some(progress) = &mut *self.sync.borrow_mut() {
                progress.meter.restart();
            }
            self.controller.work.notify();
        }
    }

    /// The limits of resync, recovery, check and repair.
    pub(crate) fn speed(&self) -> SyncSpeed {
        self.pace.borrow().speed()
    }

    /// Refuses limits that can't be kept.
    pub(crate) fn check_speed(SyncSpeed { min_kib, max_kib }: SyncSpeed) -> Result<(), SyncError> {
        if min_kib == 0 || max_kib < min_kib { Err(SyncError::Speed { min_kib, max_kib }) } else { Ok(()) }
    }

    /// Sets the limits, at once and until the array stops.
    pub(crate) fn set_speed(&self, speed: SyncSpeed) -> Result<(), SyncError> {
        Self::check_speed(speed)?;
        self.pace.borrow_mut().set_speed(speed);
        self.paced.notify();
        Ok(())
    }

    /// Checks or repairs a range and waits for the result, after scrubs that were asked for before. What the
    /// walk does goes on if the future is dropped. A scrub that is stopped gives what it found until then.
    pub(crate) async fn request_scrub(&self, request: ScrubRequest) -> Result<CheckReport, SyncError> {
        let controller = &self.controller;
        let scrub = Rc::new(Scrub::new(request, &self.volume.geometry)?);
        if scrub.correction != Correction::Nothing && self.controller.shared().options.read_only {
            return Err(CommandError::ReadOnly.into());
        }
        {
            let mut scrubs = self.scrubs.borrow_mut();
            if scrubs.len() >= SCRUBS_MAX {
                return Err(SyncError::TooMany);
            }
            scrubs.push_back(Rc::clone(&scrub));
        }
        controller.work.notify();
        let over = || controller.stopped.get() || controller.shared().has_failed();
        controller.work.wait_until(|| scrub.outcome.borrow().is_some() || over()).await;
        let outcome = scrub.outcome.borrow_mut().take();
        Ok(match outcome {
            Some(outcome) => outcome?,
            None => {
                return Err(if controller.stopped.get() { IoError::Stopping } else { IoError::Failed }.into());
            }
        })
    }

    /// Ends check and repair, and waits until none is left.
    pub(crate) async fn end_scrubs(&self) {
        let _ = self.stop_scrubs();
        let controller = &self.controller;
        let over = || controller.stopped.get() || controller.shared().has_failed();
        controller.work.wait_until(|| self.scrubs.borrow().is_empty() || over()).await;
    }

    /// Ends check and repair, the one under way and those that wait (MD: `sync_action` `idle`).
    pub(crate) fn stop_scrubs(&self) -> Result<(), SyncError> {
        let controller = &self.controller;
        let scrubs: Vec<Rc<Scrub>> = self.scrubs.borrow().iter().cloned().collect();
        if scrubs.is_empty() {
            return Err(self
                .progress()
                .map_or(SyncError::NothingToStop, |now| SyncError::Needed(now.action)));
        }
        for scrub in scrubs {
            scrub.cancelled.set(true);
            if !scrub.running.get() {
                self.finish_scrub(&scrub, Ok(scrub.report()));
            }
        }
        controller.work.notify();
        Ok(())
    }
}
