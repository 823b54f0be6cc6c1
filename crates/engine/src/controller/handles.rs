//! The home shard's handles to the devices: supervised, and let go of when their member goes.

use std::rc::Rc;

use pinstripe_runtime::{Device, DeviceErrorKind};

use crate::{
    controller::{
        ArrayController,
        error::CommandError,
        superblocks::{Known, MemberState},
    },
    members::MemberId,
    mutants::{Mutant, active},
    supervision::shard_members::give_up_everywhere,
};

/// A stop waits for members that may take their time only so long.
const STOP_LIMIT_NS: u64 = 30_000_000_000;

impl ArrayController {
    /// Superblocks go through the home shard's supervised handles. To be called after every change of the
    /// membership, and when a device has joined: one that holds no slot gets superblocks, and must not hold
    /// the controller for ever either.
    pub(crate) fn supervise_members(&self) {
        let view = self.volume.base().members.view();
        let mut superblocks = self.superblocks.borrow_mut();
        for slot in 0..view.devices.len() {
            if let Some((member, device)) = view.member(slot) {
                let handle = &mut superblocks.membership.device_mut(member.id).handle;
                handle.device = Rc::clone(device);
                handle.waiting = None;
            }
        }
        let waits =
            |record: &&mut Known| record.state == MemberState::Spare && record.handle.waiting.is_none();
        for record in superblocks.membership.devices.iter_mut().filter(waits) {
            let handle = &mut record.handle;
            let device = self.volume.base().members.supervised(&handle.member);
            let plain = active(Mutant::SpareUnsupervised).then(|| handle.member.attach().ok()).flatten();
            handle.device = plain.unwrap_or_else(|| Rc::clone(&device) as Rc<dyn Device>);
            handle.waiting = Some(device);
        }
    }

    /// Nothing waits any more for a device that is about to leave the array.
    pub(crate) fn end_requests(&self, member: MemberId) {
        let waiting = {
            let superblocks = self.superblocks.borrow();
            let handle = superblocks.handle(member);
            handle.member.health.set_dropped();
            handle.waiting.clone()
        };
        if let Some(device) = waiting {
            device.give_up(DeviceErrorKind::Removed);
        }
        give_up_everywhere(self.shared(), member, DeviceErrorKind::Removed);
    }

    /// C16: a device that still has requests of an earlier membership may not join. It is known by the name
    /// under which it was a member, or by what its superblock says (`is_it`).
    pub(crate) fn refuse_late(
        &self,
        name: &str,
        is_it: impl Fn(&pinstripe_md::superblock::Superblock) -> bool,
    ) -> Result<(), CommandError> {
        let superblocks = self.superblocks.borrow();
        let devices = superblocks.membership.devices.iter();
        let same = devices.filter(|record| record.name == name || is_it(&record.superblock));
        let known: u64 = same.map(|record| record.handle.member.health.late_requests()).sum();
        let late = known + self.joining.late_requests(name);
        if late == 0 || active(Mutant::LateMemberAdded) {
            Ok(())
        } else {
            Err(CommandError::RequestsUnderWay { name: name.to_owned(), late })
        }
    }

    /// Whether a device of this name may still do what it was asked for in vain.
    pub(crate) fn is_late(&self, name: &str) -> bool {
        let superblocks = self.superblocks.borrow();
        let journal = superblocks.journal.iter().map(|journal| &journal.member);
        let devices = superblocks.membership.devices.iter();
        let mut members = devices.map(|record| &record.handle.member).chain(journal);
        members.any(|member| member.name == name && member.health.late_requests() > 0)
    }

    /// From now on no member may take for ever, for the array is to end.
    pub(crate) fn bound_waits(&self) {
        let shared = self.shared();
        if shared.member_limit_ns() == 0 {
            shared.set_member_limit_ns(STOP_LIMIT_NS);
            crate::supervision::shard_members::look_again_everywhere(shared);
            let superblocks = self.superblocks.borrow();
            let devices = superblocks.membership.devices.iter();
            let waiting = devices.filter_map(|record| record.handle.waiting.as_ref());
            for device in superblocks.journal.iter().map(|journal| &journal.device).chain(waiting) {
                device.look_again();
            }
        }
    }
}
