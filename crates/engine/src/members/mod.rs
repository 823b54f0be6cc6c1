//! The members: a device that holds a slot, waits for one, or has held one, as all shards know it.
//!
//! Begin with [`Member`]. Which member holds which slot is in [`membership`](crate::membership); how requests
//! to it are watched, in [`supervision`](crate::supervision).

pub(crate) mod bad_blocks;
pub(crate) mod health;
pub(crate) mod log_area;
pub(crate) mod missed;

use std::{
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
};

use pinstripe_runtime::{Device, DeviceError, DeviceErrorKind, DeviceSource};

pub use self::{
    bad_blocks::MemberBadBlocks,
    health::{Health, MemberStatistics},
    log_area::LogArea,
};
use crate::plan::cost::MemberCost;

/// A device that was attached to the array; never reused for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub usize);

impl MemberId {
    /// The journal device's. It holds no slot and is in no list of members.
    pub(crate) const JOURNAL: Self = Self(usize::MAX);
}

/// What all shards know of a member. Constant but for its measurements.
pub struct Member {
    /// Which device.
    pub id: MemberId,
    /// Name for messages.
    pub name: String,
    /// Where each shard gets its handle; nothing once it was dropped.
    pub(crate) source: Mutex<Option<Arc<dyn DeviceSource>>>,
    /// Where data begins on the device, in bytes.
    pub data_offset: u64,
    /// Its bad-block log; which ranges must not be read is in the snapshot.
    pub bad_blocks: MemberBadBlocks,
    /// What its requests cost, measured.
    pub cost: MemberCost,
    /// Where the array's log lies on it, if there is one.
    pub(crate) log_area: Mutex<Option<LogArea>>,
    /// How it does.
    pub health: Health,
}

impl Member {
    /// The current shard's handle to the device.
    pub(crate) fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner).clone();
        source.map_or(Err(DeviceError::of(DeviceErrorKind::Removed)), |source| source.attach())
    }

    /// Lets go of the device: once the requests under way are over, it can be opened anew (C16).
    pub(crate) fn release(&self) {
        *self.source.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Where the array's log lies on it, if there is one.
    pub(crate) fn log_area(&self) -> Option<LogArea> {
        *self.log_area.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
