//! The members as one shard sees them: its handles to their devices, kept to the current membership.

use std::{
    cell::{Cell, RefCell},
    rc::{Rc, Weak},
    sync::Arc,
};

use pinstripe_runtime::{
    Buffer, Device, DeviceError, DeviceErrorKind, DeviceInfo, Slice, Submission, ZeroedReads, shard,
};

use super::Supervised;
use crate::{
    error::{MemberError, Operation},
    geometry::MEMBERS_MAX,
    members::{Member, MemberId},
    membership::snapshot::{Snapshot, View},
    mutants::{Mutant, active},
    plan::{
        Ahead, Price, WritePolicy,
        cost::{Measured, SAMPLE_EVERY, read_prices},
    },
    shared::Shared,
};

/// What is read and written to be timed costs as much as several changes in place, and memory stays as fast
/// as it is: it is timed by this factor more seldom.
const CHANGES_BY_SAMPLES: u32 = 8;

/// See the module.
pub(crate) struct ShardMembers {
    shared: Arc<Shared>,
    shard: usize,
    view: RefCell<Rc<View>>,
    /// By [`MemberId`].
    devices: RefCell<Vec<Option<Rc<Supervised>>>>,
    requests: Cell<u32>,
    /// By slot: what reads cost, brought up to date with every measurement of this shard.
    pub(crate) read_prices: [Cell<Price>; MEMBERS_MAX],
    /// What a read from any member would cost if all were like the dearest.
    pub(crate) price_if_alike: Cell<Price>,
    /// Whether the parity cache is given what was written.
    pub(crate) keeps_parity: Cell<bool>,
}

thread_local! {
    /// This thread's shards of arrays, for [`adopt_everywhere`]. (A simulated world has all its shards on one
    /// thread.)
    static SHARDS: RefCell<Vec<Weak<ShardMembers>>> = const { RefCell::new(Vec::new()) };
}

/// Runs `act` on every shard of the array, soon.
fn everywhere(shared: &Arc<Shared>, act: impl Fn(&ShardMembers) + Clone + Send + 'static) {
    for shard in &shared.shards {
        let (shared, act) = (Arc::clone(shared), act.clone());
        shard.send(move || {
            let members = SHARDS.with_borrow(Clone::clone);
            for members in members.iter().filter_map(Weak::upgrade) {
                if Arc::ptr_eq(&members.shared, &shared)
                    && shared.shards[members.shard].index() == shard::index()
                {
                    act(&members);
                }
            }
        });
    }
}

/// Has every shard see the current membership soon, even an idle one, so that a device that was dropped is
/// let go of.
pub(crate) fn adopt_everywhere(shared: &Arc<Shared>) {
    everywhere(shared, |members| drop(members.view()));
}

/// Has every shard stop waiting for a member, soon.
pub(crate) fn give_up_everywhere(shared: &Arc<Shared>, member: MemberId, kind: DeviceErrorKind) {
    everywhere(shared, move |members| {
        let device = members.devices.borrow().get(member.0).cloned().flatten();
        if let Some(device) = device {
            device.give_up(kind);
        }
    });
}

/// Has every shard look at what it waits for, because the limit has changed.
pub(crate) fn look_again_everywhere(shared: &Arc<Shared>) {
    everywhere(shared, |members| {
        let devices = members.devices.borrow().clone();
        devices.iter().flatten().for_each(|device| device.look_again());
    });
}

impl ShardMembers {
    /// Of the array's shard number `shard`, which is the current one.
    pub(crate) fn new(shared: Arc<Shared>, shard: usize) -> Rc<Self> {
        let snapshot = shared.snapshot();
        let this = Rc::new(Self {
            view: RefCell::new(Rc::new(View {
                snapshot,
                devices: Vec::new(),
                shares_link: false,
                in_place: false,
            })),
            devices: RefCell::default(),
            requests: Cell::new(0),
            read_prices: std::array::from_fn(|_| Cell::default()),
            price_if_alike: Cell::default(),
            keeps_parity: Cell::default(),
            shard,
            shared,
        });
        this.adopt();
        SHARDS.with_borrow_mut(|shards| {
            shards.retain(|shard| shard.strong_count() > 0);
            shards.push(Rc::downgrade(&this));
        });
        this
    }

    /// The membership as this shard sees it, brought up to date.
    pub(crate) fn view(&self) -> Rc<View> {
        self.catch_up();
        Rc::clone(&self.view.borrow())
    }

    /// Asks that membership something.
    pub(crate) fn ask<R>(&self, question: impl FnOnce(&View) -> R) -> R {
        self.catch_up();
        question(&self.view.borrow())
    }

    fn catch_up(&self) {
        if self.view.borrow().snapshot.generation != self.shared.admission.generation() {
            self.adopt();
        }
    }

    fn adopt(&self) {
        let snapshot = self.shared.snapshot();
        let device = |member: &Arc<Member>| self.device(member) as Rc<dyn Device>;
        let seated = snapshot.seats.iter().map(|seat| seat.member().map(device));
        let targets = snapshot.replacements.iter().map(|(_, target)| Some(device(target)));
        let devices: Vec<_> = seated.chain(targets).collect();
        let shares_link = devices.iter().flatten().filter(|device| device.is_remote()).count() > 1;
        // A device that left the array is let go of, and waits for it end; requests under way still hold it.
        for (index, device) in self.devices.borrow_mut().iter_mut().enumerate() {
            if snapshot.slot_of(MemberId(index)).is_none()
                && let Some(device) = device.take()
            {
                device.give_up(DeviceErrorKind::Removed);
            }
        }
        self.update_prices(&snapshot, &devices);
        // Parity of a member in memory is as near there as in the cache, and the cache costs the write a
        // second place to touch.
        let is_far = devices.iter().flatten().any(|device| !device.info().in_memory);
        let by_cost = self.shared.options.policy == WritePolicy::Cost;
        self.keeps_parity.set(self.shared.cache.is_enabled() && (is_far || !by_cost));
        let is_plain = snapshot.recovering.is_empty()
            && snapshot.replacements.is_empty()
            && snapshot.with_bad_blocks.is_empty()
            && snapshot.log.is_none();
        let in_place = by_cost && !is_far && (is_plain || active(Mutant::InPlaceUnasked));
        *self.view.borrow_mut() = Rc::new(View { snapshot, devices, shares_link, in_place });
    }

    /// After a measurement, or when the members have changed.
    pub(crate) fn update_prices(&self, snapshot: &Snapshot, devices: &[Option<Rc<dyn Device>>]) {
        let members = snapshot.seats.iter().zip(devices).map(|(seat, device)| {
            let (cost, info) = (&seat.member()?.cost, device.as_ref()?.info());
            Some(Measured { cost, moves_head: info.moves_head })
        });
        self.price_if_alike.set(read_prices(members, &self.read_prices));
    }

    /// What a read finds at a member, from `offset` of its device on.
    pub(crate) fn ahead(&self, member: &Member, offset: u64) -> Ahead {
        let MemberId(index) = member.id;
        let devices = self.devices.borrow();
        devices.get(index).and_then(Option::as_ref).map_or_else(Ahead::default, |device| device.ahead(offset))
    }

    /// This shard's handle to a member's device.
    pub(crate) fn device(&self, member: &Arc<Member>) -> Rc<Supervised> {
        let MemberId(index) = member.id;
        let mut devices = self.devices.borrow_mut();
        if devices.len() <= index {
            devices.resize(index + 1, None);
        }
        Rc::clone(devices[index].get_or_insert_with(|| self.supervised(member)))
    }

    /// A handle of its own to a device, which may hold no slot: those of [`ShardMembers::device`] go when the
    /// view has no place for them.
    pub(crate) fn supervised(&self, member: &Arc<Member>) -> Rc<Supervised> {
        let device = member.attach();
        let device = device.unwrap_or_else(|error| Rc::new(Unattached::new(&member.name, error)));
        Supervised::new(device, member, &self.shared)
    }

    /// Whether the next request shall be timed.
    pub(crate) fn sample(&self) -> bool {
        let count = self.requests.get().wrapping_add(1);
        self.requests.set(count);
        count.is_multiple_of(SAMPLE_EVERY)
    }

    /// Counts a change in place. False if the next request is to be timed, and this one is to be it.
    pub(crate) fn is_untimed(&self) -> bool {
        let count = self.requests.get().wrapping_add(1);
        let is_untimed = !count.is_multiple_of(SAMPLE_EVERY * CHANGES_BY_SAMPLES);
        if is_untimed {
            self.requests.set(count);
        }
        is_untimed
    }

    /// Drops the member of a place because a request to its data failed, at `offset` there. Returns which it
    /// is.
    pub(crate) fn report_data(
        &self,
        view: &View,
        place: usize,
        operation: Operation,
        offset: u64,
        error: DeviceError,
    ) -> Option<MemberId> {
        let (member, _) = view.member(place)?;
        self.report(view, place, operation, member.data_offset + offset, error)
    }

    /// Drops the member of a place because it failed, at `offset` of the device. Returns which it is.
    pub(crate) fn report(
        &self,
        view: &View,
        place: usize,
        operation: Operation,
        offset: u64,
        error: DeviceError,
    ) -> Option<MemberId> {
        let (member, _) = view.member(place)?;
        let slot = view.slot_at(place);
        let error = MemberError { role: slot.into(), name: member.name.clone(), operation, offset, error };
        self.shared.report(member.id, error);
        Some(member.id)
    }
}

/// Stands for a device that a shard could not attach: every request fails, so the member is dropped by the
/// usual way.
pub(crate) struct Unattached {
    info: DeviceInfo,
    error: DeviceError,
}

impl Unattached {
    pub(crate) fn new(name: &str, error: DeviceError) -> Self {
        let info = DeviceInfo {
            name: name.to_owned(),
            size: 0,
            logical_block: 512,
            volatile_cache: false,
            forces_by_flush: false,
            zeroes: ZeroedReads::Unsupported,
            discards: false,
            in_memory: false,
            moves_head: None,
        };
        // Whatever it was, retrying or correcting sectors won't help.
        Self { info, error: DeviceError { kind: DeviceErrorKind::Gone, ..error } }
    }
}

impl Device for Unattached {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn read(&self, _: u64, buffer: Buffer) -> Submission {
        Submission::done(Err(self.error), Some(buffer))
    }
    fn write(&self, _: u64, _: Slice, _: bool) -> Submission {
        Submission::done(Err(self.error), None)
    }
    fn flush(&self) -> Submission {
        Submission::done(Err(self.error), None)
    }
    fn discard(&self, _: u64, _: u64) -> Submission {
        Submission::done(Err(self.error), None)
    }
    fn write_zeroes(&self, _: u64, _: u64) -> Submission {
        Submission::done(Err(self.error), None)
    }
}
