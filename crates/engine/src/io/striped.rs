//! Level 0: no redundancy, no stripes to keep consistent, no state on disk that changes. A member's error is
//! the request's error.

use std::{ops::Deref, rc::Rc};

use pinstripe_runtime::{Buffer, DeviceError, DeviceErrorKind, Slice, Submission, SubmissionSet};

use crate::{
    error::{IoError, MemberError, Operation},
    geometry::Raid0Geometry,
    io::base::{Bytes, Pooled, VolumeBase},
    membership::snapshot::View,
    mutants::{Mutant, active},
    units::to_usize,
};

/// The volume of an array of level 0 on one shard.
pub(crate) struct StripedVolume {
    base: VolumeBase,
    geometry: Raid0Geometry,
    /// Requests under way, each of a slot and an offset in its member.
    sets: Pooled<SubmissionSet<(usize, u64)>>,
}

impl Deref for StripedVolume {
    type Target = VolumeBase;

    fn deref(&self) -> &VolumeBase {
        &self.base
    }
}

impl StripedVolume {
    pub(crate) fn new(base: VolumeBase, geometry: Raid0Geometry) -> Rc<Self> {
        Rc::new(Self { base, geometry, sets: Pooled::default() })
    }

    pub(crate) async fn read(&self, offset: u64, mut rest: Buffer) -> (Result<(), IoError>, Buffer) {
        let Ok(extents) = self.geometry.extents(offset, rest.len() as u64) else {
            unreachable!("the range was checked")
        };
        let view = self.members.view();
        let mut set = self.sets.take();
        for extent in extents {
            let buffer = rest.split_to(to_usize(extent.length));
            let slot = extent.slot.index();
            let submission = if view.snapshot.is_bad(slot, extent.member_offset, extent.length) {
                // Nothing stands in for what the log says must not be read.
                Some(Submission::done(Err(DeviceError::of(DeviceErrorKind::Media)), Some(buffer)))
            } else {
                self.submit_read(&view, slot, extent.member_offset, buffer)
            };
            if let Some(submission) = submission {
                set.push((slot, extent.member_offset), submission);
            }
        }
        set.wait().await;
        let (mut whole, mut result) = (None, Ok(()));
        for ((slot, at), outcome) in set.drain() {
            let answer =
                outcome.result.map(|_| ()).map_err(|e| striped_error(&view, slot, Operation::Read, at, e));
            result = result.and(answer);
            whole = join(whole, outcome.buffer);
        }
        self.sets.give(set);
        (result, whole.unwrap_or(rest))
    }

    pub(crate) async fn write(&self, offset: u64, data: Slice, fua: bool) -> Result<(), IoError> {
        let view = self.members.view();
        let mut set = self.sets.take();
        let mut done = 0;
        for extent in self.geometry.extents(offset, data.len() as u64)? {
            let length = to_usize(extent.length);
            let (slot, at) = (extent.slot.index(), extent.member_offset);
            let fua = fua && !active(Mutant::StripedFuaDropped);
            let part = Bytes::new(data.slice(done, length), fua);
            if let Some(write) = self.submit_write(&view, slot, at, part) {
                set.push((slot, at), write);
            }
            done += length;
        }
        set.wait().await;
        let mut result = Ok(());
        for ((slot, at), outcome) in set.drain() {
            let answer = outcome.result.map(|_| ());
            result = result.and(answer.map_err(|e| striped_error(&view, slot, Operation::Write, at, e)));
        }
        self.sets.give(set);
        result
    }

    /// Flushes every member. The first error is the request's.
    pub(crate) async fn flush(&self) -> Result<(), IoError> {
        let view = self.members.view();
        let failed = if active(Mutant::FlushSkipped) { Vec::new() } else { self.flush_members(&view).await };
        match failed.first() {
            None => Ok(()),
            Some(&(slot, error)) => Err(striped_error(&view, slot, Operation::Flush, 0, error)),
        }
    }
}

/// The error of a request that a member failed.
fn striped_error(view: &View, slot: usize, operation: Operation, at: u64, error: DeviceError) -> IoError {
    let Some((member, _)) = view.member(slot) else { return IoError::Failed };
    let offset = member.data_offset + at;
    IoError::Member(MemberError { role: slot.into(), name: member.name.clone(), operation, offset, error })
}

fn join(whole: Option<Buffer>, next: Option<Buffer>) -> Option<Buffer> {
    match (whole, next) {
        (Some(mut whole), Some(next)) => {
            whole.unsplit(next);
            Some(whole)
        }
        (whole, next) => whole.or(next),
    }
}
