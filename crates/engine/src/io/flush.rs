//! Flush, and zeroing of whole stripes.

use pinstripe_block::Client;
use pinstripe_runtime::{
    DeviceErrorKind::{Busy, Media, Unsupported},
    ZeroedReads, shard,
};

use crate::{
    consistency::{Batches, Log, LogError},
    error::{IoError, Operation},
    geometry::{MemberSlot, Set64, StripeId},
    io::{
        entry::{Moved, Writing},
        parity::ParityVolume,
    },
    members::missed::Missed,
    membership::snapshot::Seat,
    mutants::{Mutant, active},
    options::JournalMode,
    units::to_usize,
};

/// Why a stripe could not be zeroed.
enum NotZeroed {
    /// The membership has changed: it is to be zeroed again.
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

impl ParityVolume {
    /// Flushes every member, with requests that are submitted now (C5). A member that can't flush is dropped
    /// before this returns: the kernel reports lost writes once, so the flush is never tried again.
    pub(crate) async fn flush(&self) -> Result<(), IoError> {
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
    pub(crate) async fn zero_stripe(&self, stripe: StripeId, client: &Client) -> Result<bool, IoError> {
        let _claim = self.claim_for(stripe, client).await?;
        let zeroed = loop {
            match self.zero_claimed(stripe).await {
                Ok(zeroed) => break Ok(zeroed),
                Err(NotZeroed::Moved) => self.counters().replans.add(1),
                Err(NotZeroed::Failed(error)) => break Err(error),
            }
        };
        self.note_if_torn(stripe, zeroed.is_err());
        if let Ok(true) = zeroed {
            let parts = (0..self.geometry.columns()).map(|column| (column, 0, self.geometry.chunk_bytes()));
            self.taken_off_lists(stripe, parts).await?;
        }
        zeroed
    }

    async fn zero_claimed(&self, stripe: StripeId) -> Result<bool, NotZeroed> {
        let geometry = &self.geometry;
        let (offset, chunk) = (geometry.member_offset(stripe), u64::from(geometry.chunk_bytes()));
        let inside = self.enter().await?;
        let lost = |slot| self.is_irreplaceable(inside.view(), stripe, slot);
        if inside.view().snapshot.missing.iter().any(lost) {
            return Err(IoError::Unreadable { stripe: stripe.0, missing: 1 }.into());
        }
        let intended = inside.mark(stripe, (offset, chunk)).durable(Mutant::ZeroesBeforeIntent).await?;
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
        if !log.is_none() || intent.forces_writes(intent.regions(offset, chunk)) {
            let failed = self.flush_or_report(view).await;
            // The zeroes were in its cache. Nothing stands in for them in a row that may be torn. Of the
            // target of a replacement the member that is replaced does.
            let seats = view.snapshot.seats.iter().enumerate();
            let has_failed = |seat: &Seat| seat.member().is_some_and(|member| failed.contains(&member.id));
            missed.is_lost |= seats.filter(|(_, seat)| has_failed(seat)).any(|(slot, _)| lost(slot));
            missed.add_dropped(failed);
        }
        if !view.snapshot.absent().is_empty() {
            intent.set_missed(intent.regions(offset, chunk));
        }
        let generation = inside.generation();
        drop(writing);
        drop(inside);
        if !self.settle_missed(stripe, &mut missed).await? {
            return Err(NotZeroed::Moved);
        }
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
        let geometry = &self.geometry;
        let (offset, chunk) = (geometry.member_offset(stripe), u64::from(geometry.chunk_bytes()));
        let map = geometry.slots(stripe);
        let parity: Set64 = map.parity_slots().map(MemberSlot::index).collect();
        let (mut unsupported, mut missed) = (false, Missed::default());
        for place in 0..view.devices.len() {
            let is_left = active(Mutant::ZeroesLeaveParity) && parity.contains(place);
            let Some((member, device)) = view.member(place).filter(|_| !is_left) else { continue };
            let at = member.data_offset + offset;
            let mut result = device.write_zeroes(at, chunk).await.result;
            let kind = result.err().map(|error| error.kind);
            // A write is tried again where the device is busy, and by parts.
            if matches!(kind, Some(Unsupported | Media | Busy)) {
                unsupported |= kind == Some(Unsupported);
                let zeroes = shard::zeroed(to_usize(chunk)).freeze();
                result = device.write(at, zeroes.clone(), false).await.result;
                if let Some(error) = self.note_outcome(view, place, (offset, chunk), result, &mut missed) {
                    self.write_in_parts(view, place, offset, (&zeroes, false), error, &mut missed).await;
                }
                continue;
            }
            let refused = self.note_outcome(view, place, (offset, chunk), result, &mut missed);
            debug_assert!(refused.is_none(), "that is written as bytes");
        }
        if missed.drops() {
            view.snapshot.intent.set_missed(view.snapshot.intent.regions(offset, chunk));
        }
        (unsupported, missed)
    }
}
