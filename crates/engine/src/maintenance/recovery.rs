//! Rebuild: a member that is recovering gets what it is to hold, made from the others.

use std::rc::Rc;

use pinstripe_runtime::{DeviceError, DeviceErrorKind, shard};

use super::{SyncAction, Walk, in_single_rows};
use crate::{
    array::Home,
    control::Command,
    error::{IoError, Operation},
    geometry::{MemberSlot, Role, Set64, StripeId},
    mutants::{Mutant, active},
    parity_cache::ROW_BYTES,
    row::{Row, Want},
    snapshot::{MemberId, View},
    volume::VolumeInner,
};

impl Home {
    /// Rebuilds a member from where its superblock says. True if it is whole now.
    pub(super) async fn recover(self: &Rc<Self>, slot: usize, member: MemberId) -> bool {
        let geometry = self.volume.inner.parity_geometry();
        let valid = self.records.borrow().members[member.0]
            .superblock
            .member
            .recovery_offset
            .map_or(0, |s| s.0 * 512);
        let short = u64::from(active(Mutant::RebuildEndsEarly));
        let (mut next, end) = (valid / u64::from(geometry.chunk_bytes()), geometry.stripes() - short);
        self.begin(SyncAction::Recovery, next, end);
        let mut recorded = shard::now();
        while next < end {
            let leg = next..end.min(next + self.shared().options.leg_stripes.max(1));
            next = leg.end;
            let walk = self.walk(SyncAction::Recovery, Some((slot, member)), leg).await;
            if walk.aborted.get() || walk.errors.get() > 0 {
                return self.give_up(slot, member, &walk);
            }
            if next < end && shard::now() - recorded >= self.shared().options.checkpoint_ns {
                recorded = shard::now();
                if !self.record_recovery(member, next * u64::from(geometry.chunk_bytes())).await {
                    return false;
                }
            }
        }
        self.command(|reply| Command::Recovered { member, reply }).await.is_ok()
    }

    /// A rebuild that can't read its sources can't go on; the target must not be taken for whole. It is dropped.
    fn give_up(&self, slot: usize, member: MemberId, walk: &Walk) -> bool {
        if !walk.aborted.get() {
            let view = self.volume.inner.view();
            let unreadable = DeviceError::of(DeviceErrorKind::Media);
            if view.snapshot.slot_of(member) == Some(slot) {
                self.volume.inner.report(&view, slot, Operation::Read, 0, unreadable);
            }
        }
        false
    }

    /// Everything below `offset` is on the target: flushed, then recorded (C4).
    async fn record_recovery(&self, member: MemberId, offset: u64) -> bool {
        let view = self.volume.inner.view();
        let flushed =
            active(Mutant::CheckpointWithoutFlush) || self.volume.inner.flush_members(&view).await.is_empty();
        if !flushed {
            return false;
        }
        self.command(|reply| Command::Checkpoint { member, offset, reply }).await.is_ok()
    }
}

impl VolumeInner {
    /// Whether a row that could not be read is really lost: the membership under which it was tried is still the current one, and
    /// the row is not only one that parity can't vouch for (C10).
    fn is_lost(&self, view: &View, stripe: StripeId, from: u32) -> bool {
        let offset = self.parity_geometry().member_offset(stripe) + u64::from(from);
        let intent = &view.snapshot.intent;
        self.shared.admission.generation() == view.snapshot.generation
            && !intent.is_torn(intent.regions(offset, ROW_BYTES.into()))
    }

    /// Writes rows of the target's chunk of a stripe, made from all others.
    pub(super) async fn rebuild_rows(
        &self,
        view: &View,
        stripe: StripeId,
        (from, to): (u32, u32),
        slot: usize,
        row: &mut Row,
    ) -> Result<(), IoError> {
        let geometry = self.parity_geometry();
        let map = geometry.slots(stripe);
        let role = map.role(MemberSlot(u8::try_from(slot).unwrap_or(u8::MAX)));
        let columns = match role {
            Role::Data(column) => Set64::only(column),
            Role::P | Role::Q => Set64::below(map.columns()),
        };
        let want = Want { columns, parity: false, avoid: Set64::only(slot) };
        match self.read_row(view, stripe, (from, to), want, row).await {
            Err(IoError::Unreadable { .. }) if to - from == ROW_BYTES && self.is_lost(view, stripe, from) => {
                // The target can't get this row, and says so in its log, if it has one; all others are made.
                let offset = geometry.member_offset(stripe) + u64::from(from);
                let unreadable = DeviceError::of(DeviceErrorKind::Media);
                let listed = self.record_bad(view, slot, (offset, ROW_BYTES.into()), unreadable).await;
                return if listed { Ok(()) } else { Err(IoError::Stopping) };
            }
            read => read?,
        }
        in_single_rows(stripe, (from, to), row)?;
        self.heal(view, stripe, (from, to), row).await?;
        let bytes = match role {
            Role::Data(column) => row.data[column].take().ok_or(IoError::Failed)?,
            Role::P => self.parity_of(map, row, to - from, true, false).0.ok_or(IoError::Failed)?,
            Role::Q => self.parity_of(map, row, to - from, false, true).1.ok_or(IoError::Failed)?,
        };
        self.write_sync(view, slot, geometry.member_offset(stripe) + u64::from(from), bytes).await
    }
}
