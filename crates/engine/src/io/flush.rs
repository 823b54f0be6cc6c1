//! Flush, and zeroing of whole stripes.

use pinstripe_runtime::{DeviceErrorKind, ZeroedReads};

use crate::{
    consistency::{Batches, Log, LogError},
    error::{IoError, Operation},
    geometry::{MemberSlot, Set64, StripeId},
    io::{
        entry::{Moved, Writing},
        striped::striped_error,
        volume::ShardVolume,
    },
    members::{MemberId, health::FlushTicket, missed::Missed},
    membership::snapshot::View,
    mutants::{Mutant, active},
    options::JournalMode,
    units::to_usize,
};

/// Why a stripe could not be zeroed.
enum NotZeroed {
    /// The membership has changed, and nothing was written.
    Moved,
    Failed(IoError),
}

impl From<Moved> for NotZeroed {
    fn from(Moved: Moved) -> Self {
        Self::Moved
    }
}

impl From<IoError> for NotZeroed {
    fn from(error: IoError) -> Self {
        Self::Failed(error)
    }
}

impl ShardVolume {
    /// Flushes every member, with requests that are submitted now (C5). A member that can't flush is dropped
    /// before this returns: the kernel reports lost writes once, so the flush is never tried again.
    pub(crate) async fn flush(&self) -> Result<(), IoError> {
        self.shared.check()?;
        let view = self.members.view();
        if let Log::Journal(journal) = &view.snapshot.log {
            if journal.mode() == JournalMode::WriteBack {
                // All that was acknowledged is durable in the log, or has left it after a flush.
                return self.shared.durable(view.snapshot.generation).await;
            }
            if journal.failure().is_some() && !self.shared.drained(journal).await {
                return Err(IoError::JournalLost);
            }
        }
        let failed = if active(Mutant::FlushSkipped) { Vec::new() } else { self.flush_members(&view).await };
        if !self.shared.geometry.has_parity() {
            return failed
                .into_iter()
                .next()
                .map_or(Ok(()), |slot| Err(striped_error(&view, slot.0, Operation::Flush, 0, slot.1)));
        }
        for (slot, error) in failed {
            if let Some(member) = self.members.report(&view, slot, Operation::Flush, 0, error)
                && !active(Mutant::FailedFlushNotAwaited)
            {
                self.shared.dropped(member).await?;
            }
        }
        // Writes that this flush covers may have been made without a member that the superblocks still call
        // current (C2).
        self.shared.durable(view.snapshot.generation).await
    }

    /// Flushes every member of `view`, targets of replacements too; the places that failed, and how. Not only
    /// this flush: one that failed elsewhere meanwhile has lost what this one was to make durable, and one
    /// that failed before is never tried again.
    pub(crate) async fn flush_members(&self, view: &View) -> Vec<(usize, pinstripe_runtime::DeviceError)> {
        let again = !self.shared.geometry.has_parity();
        let mut set = self.sets.take();
        // A slot may have two: its member and the target of its replacement.
        let mut asked = [(0, FlushTicket::default()); 2 * crate::geometry::MEMBERS_MAX];
        for place in usize::from(active(Mutant::FlushSkipsMember))..view.devices.len() {
            let Some((member, device)) = view.member(place) else { continue };
            let ticket = member.health.flushes.begin();
            asked[set.push(device.flush())] = (place, ticket);
        }
        set.wait().await;
        let asked = &asked[..set.len()];
        let mut failed = Vec::new();
        for (index, &(place, ticket)) in asked.iter().enumerate() {
            let Some((member, device)) = view.member(place) else { continue };
            let result = set.take(index).result;
            let repeats = result.is_err() && active(Mutant::FlushTriedAgain);
            // What is tried again is believed, whatever it says.
            let result = if repeats { device.flush().await.result.or(Ok(0)) } else { result };
            let error = result.err();
            member.health.flushes.end(ticket, error);
            failed.extend(error.map(|error| (place, error)));
        }
        for &(place, ticket) in asked {
            let before = if again { ticket.failed_before } else { 0 };
            let told = failed.iter().any(|(other, _)| *other == place);
            if let Some((member, _)) = view.member(place)
                && !told
                && !active(Mutant::FailedFlushForgotten)
            {
                failed.extend(member.health.flushes.failed_since(before).await.map(|error| (place, error)));
            }
        }
        set.clear();
        self.sets.give(set);
        failed
    }

    /// The same, and reports those that failed. Returns those members.
    pub(crate) async fn flush_or_report(&self, view: &View) -> Vec<MemberId> {
        let failed = self.flush_members(view).await.into_iter();
        failed
            .filter_map(|(place, error)| self.members.report(view, place, Operation::Flush, 0, error))
            .collect()
    }

    /// Whether every member can make ranges read back zero (C6).
    pub(crate) fn can_zero(&self) -> bool {
        let view = self.members.view();
        // Zeroed past a log, a stripe would get its older content back from it.
        view.snapshot.log.traits().batches != Batches::WholePages
            && view.devices.iter().flatten().all(|device| device.info().zeroes == ZeroedReads::Zero)
    }

    /// Zeroes one whole stripe on all members, parity included: P and Q of zeroes are zero. False if a member
    /// can't after all; the stripe is then written by other means or left, but never half zeroed with parity
    /// that does not match.
    pub(crate) async fn zero_stripe(&self, stripe: StripeId) -> Result<bool, IoError> {
        let _claim = self.claim_alone(stripe).await;
        let zeroed = loop {
            match self.zero_claimed(stripe).await {
                Ok(zeroed) => break Ok(zeroed),
                Err(NotZeroed::Moved) => self.counters().replans.add(1),
                Err(NotZeroed::Failed(error)) => break Err(error),
            }
        };
        self.note_if_torn(stripe, zeroed.is_err());
        zeroed
    }

    async fn zero_claimed(&self, stripe: StripeId) -> Result<bool, NotZeroed> {
        let geometry = self.parity_geometry();
        let (offset, chunk) = (geometry.member_offset(stripe), u64::from(geometry.chunk_bytes()));
        let inside = self.enter().await?;
        let intended = inside.mark(stripe, (offset, chunk)).durable(Mutant::ZeroesBeforeIntent).await;
        let writing = inside.begin(intended, None).await?;
        let view = writing.view();
        let (intent, log) = (&view.snapshot.intent, &view.snapshot.log);
        let logged = match Box::pin(self.log_rows(view, stripe, &[(0, geometry.chunk_bytes())])).await {
            Ok(logged) => logged,
            Err(LogError::Fatal(error)) => return Err(error.into()),
            // The stripe is written by other means then.
            Err(LogError::Member(_) | LogError::Moved) => return Ok(false),
        };
        if !active(Mutant::ZeroesLeaveCache) {
            self.shared.cache.remove_rows(stripe.0, 0, geometry.chunk_bytes());
        }
        let (unsupported, mut missed) = self.zero_members(&writing, stripe).await;
        if !log.is_none() {
            missed.add_dropped(self.flush_or_report(view).await);
        }
        if !view.snapshot.absent().is_empty() {
            intent.set_missed(intent.regions(offset, chunk));
        }
        let generation = inside.generation();
        drop(writing);
        drop(inside);
        self.settle_missed(stripe, &mut missed).await?;
        // Only now it is recorded which members missed the zeroes. So the log may forget the stripe.
        drop(logged);
        self.shared.durable(generation).await?;
        Ok(!unsupported)
    }

    /// Zeroes a chunk on every member. Where one does not support it, its zeroes are written as bytes, so
    /// that the row stays consistent; then the answer is true. The members that failed, and sectors that
    /// could not be zeroed, come with it.
    async fn zero_members(&self, writing: &Writing<'_>, stripe: StripeId) -> (bool, Missed) {
        let view = writing.view();
        let geometry = self.parity_geometry();
        let (offset, chunk) = (geometry.member_offset(stripe), u64::from(geometry.chunk_bytes()));
        let map = geometry.slots(stripe);
        let parity: Set64 =
            [Some(map.p_slot()), map.q_slot()].into_iter().flatten().map(MemberSlot::index).collect();
        let (mut unsupported, mut missed) = (false, Missed::default());
        for place in 0..view.devices.len() {
            let is_left = active(Mutant::ZeroesLeaveParity) && parity.contains(place);
            let Some((member, device)) = view.member(place).filter(|_| !is_left) else { continue };
            let at = member.data_offset + offset;
            let mut result = device.write_zeroes(at, chunk).await.result;
            let kind = result.err().map(|error| error.kind);
            if matches!(kind, Some(DeviceErrorKind::Unsupported | DeviceErrorKind::Media)) {
                unsupported |= kind == Some(DeviceErrorKind::Unsupported);
                let zeroes = pinstripe_runtime::shard::zeroed(to_usize(chunk));
                result = device.write(at, zeroes.freeze(), false).await.result;
            }
            self.note_outcome(view, place, (offset, chunk), result, &mut missed);
        }
        if missed.drops() {
            view.snapshot.intent.set_missed(view.snapshot.intent.regions(offset, chunk));
        }
        (unsupported, missed)
    }
}
