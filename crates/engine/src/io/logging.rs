//! How a stripe write asks the array's log.

use pinstripe_runtime::DeviceError;

use crate::{
    consistency::{Batches, LogDevice, LogError, LogView, Logged},
    error::{IoError, Operation},
    geometry::{MemberSlot, ParityGeometry, StripeId},
    io::parity::ParityVolume,
    membership::snapshot::View,
    mutants::{Mutant, active},
    statistics::Counters,
};

/// What the log sees of a shard under a membership.
pub(crate) struct ShardLogView<'a> {
    volume: &'a ParityVolume,
    view: &'a View,
}

impl LogView for ShardLogView<'_> {
    fn geometry(&self) -> &ParityGeometry {
        &self.volume.geometry
    }

    fn devices(&self, slot: MemberSlot) -> [Option<LogDevice<'_>>; 2] {
        let mut places = self.view.places(slot.index());
        std::array::from_fn(|_| {
            let place = places.next()?;
            let (member, device) = self.view.member(place)?;
            Some(LogDevice { place, member, device: &**device })
        })
    }

    fn report(&self, device: &LogDevice<'_>, offset: u64, error: DeviceError) {
        self.volume.members.report(self.view, device.place, Operation::Metadata, offset, error);
    }

    fn counters(&self) -> &Counters {
        self.volume.counters()
    }

    fn writers(&self) -> u32 {
        self.volume.shared.admission.writers()
    }

    fn has_moved(&self) -> bool {
        self.volume.shared.admission.generation() != self.view.snapshot.generation
    }

    fn failure(&self) -> Option<IoError> {
        let shared = &self.volume.shared;
        shared.check().err().or_else(|| shared.has_ended().then_some(IoError::Stopping))
    }
}

impl ShardLogView<'_> {
    /// What is written without a member is not in that member's log, and a log on the others says nothing of
    /// its parity. So nothing is, before the superblocks know that it is out: a crash that leaves them
    /// calling it current would find rows that don't match, and a log that says that all do.
    pub(crate) async fn recorded(&self) -> Result<(), LogError> {
        let recorded = active(Mutant::LogBeforeRecord)
            || self.volume.shared.recorded(self.view.snapshot.generation).await;
        if recorded { Ok(()) } else { Err(LogError::Moved) }
    }
}

impl ParityVolume {
    /// What the log sees of this shard under a membership.
    pub(crate) fn log_view<'a>(&'a self, view: &'a View) -> ShardLogView<'a> {
        ShardLogView { volume: self, view }
    }

    /// Makes known that parity of these rows of a stripe is made from its data. Kept until that is done.
    pub(crate) async fn log_rows(
        &self,
        view: &View,
        stripe: StripeId,
        rows: &[(u32, u32)],
    ) -> Result<Logged, LogError> {
        let log = &view.snapshot.log;
        if log.is_none() || log.traits().batches == Batches::WholePages {
            return Ok(Logged::Nothing);
        }
        let view = self.log_view(view);
        view.recorded().await?;
        log.write_rows(&view, stripe, rows).await
    }

    /// The same for a walk over stripes. It doesn't have a log begin, as a user's write does, and needs none
    /// that hasn't: to wait for that under the stripe's claim would be to wait for a write that may wait for
    /// the claim (C12).
    pub(crate) async fn log_rows_of_walk(
        &self,
        view: &View,
        stripe: StripeId,
        rows: &[(u32, u32)],
    ) -> Result<Logged, IoError> {
        if !view.snapshot.log.has_begun() {
            return Ok(Logged::Nothing);
        }
        Box::pin(self.log_rows(view, stripe, rows)).await.map_err(LogError::for_walk)
    }
}

impl LogError {
    /// What a walk over stripes does about it. A member that failed is reported: the walk begins anew
    /// without it.
    pub(crate) fn for_walk(self) -> IoError {
        match self {
            Self::Fatal(error) => error,
            Self::Member(_) | Self::Moved => IoError::Stopping,
        }
    }
}
