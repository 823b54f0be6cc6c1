//! The seam to storage that computes: members on servers that work out parity together
//! (`docs/offload-protocol.md`).
//!
//! A write has two phases. In the first, every participant gets what it needs and works out its part; nothing
//! stored changes. In the second each is told to write ([`Offload::commit`]). Lost bytes are summed up by one
//! of the servers ([`Offload::reduce`]).
//!
//! Coefficients are elements of GF(2^8) with polynomial 0x11d; parity P has 1 for every column, Q has 2^i for
//! column i.

use crate::{Buffer, Slice, Submission};

/// Names an operation of one array. Ascending, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub u64);

/// What every command of an operation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The operation.
    pub operation: OperationId,
    /// The oldest one that isn't over.
    pub oldest: OperationId,
}

/// Where a part goes: a place in the table of peers (see [`Offload::attach`]), and what it is multiplied by
/// before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reducer {
    /// The place.
    pub place: u8,
    /// The coefficient; not 0.
    pub coefficient: u8,
}

/// Up to two.
pub type Reducers = [Option<Reducer>; 2];

/// Highest epoch and highest number of an operation: what is higher is refused, so that what follows can
/// always be counted.
pub const NUMBER_MAX: u64 = (1 << 63) - 1;
/// By how much an attachment may raise a member's epoch: one forged number must not use them all up.
pub const EPOCH_STEP_MAX: u64 = 1 << 32;

/// An array as its members' servers know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The array.
    pub array: [u8; 16],
    /// Older ones are fenced.
    pub epoch: u64,
    /// Of the table; ascends.
    pub generation: u64,
    /// By place: the member's [`Offload::address`], `None` where there is none.
    pub peers: Vec<Option<String>>,
    /// Raises the epoch although another host is attached.
    pub takeover: bool,
    /// Ends what this host has under way at the member over other connections, and those connections' right
    /// to change it. What this one has under way is finished first.
    pub alone: bool,
}

/// What a server can do at once, constant while the device is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadLimits {
    /// Operations that may be outstanding at this member, in all roles.
    pub operations: u32,
    /// Most bytes of a range.
    pub range_bytes: u32,
}

/// A member on a server that computes. Offsets and lengths are as for [`Device`](crate::Device), memory and
/// completions too.
///
/// Errors: [`Gone`](crate::DeviceErrorKind::Gone) if the server or the network is lost;
/// [`Busy`](crate::DeviceErrorKind::Busy) never; [`Refused`](crate::DeviceErrorKind::Refused) if the
/// operation can't be done so (it was dropped, a peer can't be reached, the host is not attached): take
/// another way. A failed first phase has changed nothing.
///
/// [`Fenced`](crate::DeviceErrorKind::Fenced) comes from `attach` if the server knows a higher epoch, and
/// from `commit` and every plain write, flush or discard of the device if another host has taken the member
/// over since. First-phase commands say `Refused` then: the plain way shows what is the matter. `attach` is
/// refused while another host is attached (unless `takeover`), and says `Gone` if the server has been started
/// anew since the device was opened.
pub trait Offload {
    /// What the server can do at once.
    fn limits(&self) -> OffloadLimits;
    /// The member as other servers reach it: `nvme-tcp://HOST:PORT/NQN?nsid=N`.
    fn address(&self) -> String;
    /// The highest epoch that the member was ever attached under, in the bytes of the outcome; 0 for none.
    /// [`Fenced`](crate::DeviceErrorKind::Fenced) if this device was attached, and another host has ended
    /// that.
    fn epoch(&self) -> Submission;
    /// Bytes per second that the server's link can take for parts of sums, by its own reckoning, in the bytes
    /// of the outcome; 0 if it was never seen full.
    fn free_to_receive(&self) -> Submission;
    /// Makes the array known; once before the first operation, and whenever a member comes or goes. Durable.
    fn attach(&self, attachment: &Attachment) -> Submission;
    /// Ends it. With `give_up` plain writes need no attachment any more, and the next `attach` needs no
    /// takeover, but still a higher epoch.
    fn detach(&self, give_up: bool) -> Submission;
    /// First phase: takes new data, sends its parts to `reducers`: coefficient * (old + new) if `modify`,
    /// else coefficient * new.
    fn partial_write(
        &self,
        ticket: Ticket,
        offset: u64,
        data: Slice,
        modify: bool,
        reducers: Reducers,
    ) -> Submission;
    /// Sends coefficient * old to `reducers`.
    fn contribute(&self, ticket: Ticket, offset: u64, length: u32, reducers: Reducers) -> Submission;
    /// The same, and reads the bytes themselves.
    fn read_contribute(&self, ticket: Ticket, offset: u64, buffer: Buffer, reducers: Reducers) -> Submission;
    /// First phase: sums up the parts of `wait` others, the old bytes if `modify`, and `supplied`.
    fn parity(
        &self,
        ticket: Ticket,
        offset: u64,
        length: u32,
        modify: bool,
        wait: u16,
        supplied: Option<Slice>,
    ) -> Submission;
    /// Reads the sum of the parts of `wait` others and of its own bytes times `coefficient`.
    fn reduce(&self, ticket: Ticket, offset: u64, buffer: Buffer, coefficient: u8, wait: u16) -> Submission;
    /// Second phase: writes what it holds; with `fua` durable at completion. May be repeated.
    fn commit(&self, ticket: Ticket, fua: bool) -> Submission;
    /// Drops the operation if it isn't committed. Bytes of the outcome: 0 not applied and never will be, 1
    /// applied, 2 in doubt.
    fn resolve(&self, ticket: Ticket) -> Submission;
}
