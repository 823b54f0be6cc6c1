//! What a log sees of the array and of a stripe write, and what it answers.

use std::sync::Arc;

use pinstripe_runtime::{Device, DeviceError, Slice};

use crate::{
    error::IoError,
    geometry::{MemberSlot, ParityGeometry, StripeId},
    members::{Member, MemberId},
    plan::Plan,
    statistics::Counters,
    stripe::image::Image,
};

/// What a log sees of the array: the devices of the membership under which it is asked, and how the array
/// does.
pub(crate) trait LogView {
    /// The shape of the array.
    fn geometry(&self) -> &ParityGeometry;
    /// What takes the writes of a slot: its member, and the target of its replacement.
    fn devices(&self, slot: MemberSlot) -> [Option<LogDevice<'_>>; 2];
    /// Has a device dropped whose log could not be written at `offset`.
    fn report(&self, device: &LogDevice<'_>, offset: u64, error: DeviceError);
    /// Of this shard.
    fn counters(&self) -> &Counters;
    /// Stripe writes that are under way on all shards.
    fn writers(&self) -> u32;
    /// Whether the membership is another by now.
    fn has_moved(&self) -> bool;
    /// What a request is answered where the array has failed.
    fn failure(&self) -> Option<IoError>;

    /// Whether what waits for the log gives way.
    fn is_over(&self) -> bool {
        self.has_moved() || self.failure().is_some()
    }
}

/// A device with a part of the log.
#[derive(Clone, Copy)]
pub(crate) struct LogDevice<'a> {
    /// Where it is in the view of the members.
    pub(crate) place: usize,
    pub(crate) member: &'a Arc<Member>,
    pub(crate) device: &'a dyn Device,
}

/// What a log is shown of a stripe write: all that is known before the first member changes.
pub(crate) struct Batch<'a> {
    pub(crate) view: &'a dyn LogView,
    pub(crate) stripe: StripeId,
    /// The slot of its claim.
    pub(crate) slot: u64,
    /// What is written. Final.
    pub(crate) image: &'a Image,
    /// Its runs: in each the same columns are written.
    pub(crate) plan: &'a Plan,
    /// New P and Q by run of the plan, as far as they will be written.
    pub(crate) parity: &'a [[Option<Slice>; 2]],
    pub(crate) precedence: Precedence,
}

/// What a batch goes before where room in a journal is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Precedence {
    /// Nothing.
    #[default]
    None,
    /// It has waited for room before, in vain. It goes before others that wait.
    Waited,
    /// It has been acknowledged from the journal, and is written out now. Room for it is set aside.
    WrittenOut,
}

/// Why a batch could not be logged. No member has changed.
pub(crate) enum LogError {
    /// This member failed, and is reported: plan anew when it is out.
    Member(MemberId),
    /// The membership changed meanwhile: plan anew.
    Moved,
    /// It can't be written at all.
    Fatal(IoError),
}
