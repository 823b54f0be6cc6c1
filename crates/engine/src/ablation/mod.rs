//! Ways of older designs in place of ours, for measurement only (decision 41).
//!
//! An array that is assembled without an [`Ablation`], as every array of a user is, has none of this: a
//! stripe write finds no [`Gates`], and goes its way.
//!
//! A *gate* is a lock at a place where an older design takes one: around the look-up and claim of a stripe,
//! its freeze, its release, and around the marking and unmarking of intent. Behind the gate our own
//! structures do their work, so the array is as right as without. What a gate costs is therefore at most
//! what the lock costs: the older designs' own work under it was more than ours (`hold_ns` adds to it). A
//! gate is passed between two awaits and never held across one.
//!
//! Every arm is metered ([`Metered`]), also the one that has no locks: there the time inside is that of the
//! lock-free work itself. One passage in [`SAMPLE_EVERY`] is timed, for a clock costs more than some of
//! what is measured; a wait for a lock always is.

mod gate;
mod meter;
mod pool;

pub use self::meter::{HandOffCost, LockCost, Metered, StripeWaits};
pub(crate) use self::{
    gate::{Gates, Held, LANES},
    pool::Pool,
};

/// One passage in so many is timed.
pub const SAMPLE_EVERY: u64 = 16;

/// Which ways to go. The default is ours, metered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ablation {
    /// Around look-up, freeze and release of a stripe.
    pub stripe: StripeLocks,
    /// Around the counters of the write-intent bitmap.
    pub intent: IntentLocks,
    /// How often the locks are taken.
    pub unit: LockUnit,
    /// Where stripes are written.
    pub workers: Workers,
    /// For how long each lock is held besides the work under it, in nanoseconds.
    pub hold_ns: u64,
}

/// The locks of the stripe table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StripeLocks {
    /// None: a stripe is claimed by one atomic exchange.
    #[default]
    Direct,
    /// So many, by the low bits of the page's number (`HemiRAID` has 128); a power of two.
    Hashed(u32),
    /// One for all (MD's `device_lock`).
    Global,
}

/// How writes are counted into the regions of the bitmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IntentLocks {
    /// An atomic counter a region for each shard.
    #[default]
    Lanes,
    /// One atomic counter a region.
    Atomic,
    /// One counter a region, with a lock of its own.
    RegionLock,
    /// Several counters a region with a lock for each, neighbouring stripes in different ones, under a
    /// readers-writer lock (`ScalaRAID`'s D-Blocks).
    DBlocks,
    /// One counter a region, and one lock for all of them (MD's).
    Lock,
}

/// What locks are taken for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockUnit {
    /// A stripe write.
    #[default]
    Stripe,
    /// Each page of 4 KiB that is written: MD's stripe heads are one page high.
    Page,
}

/// What writes a stripe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// The task that got the request, from its beginning to its end.
    #[default]
    RunToCompletion,
    /// Workers on all shards, from one list of what is to be done.
    Pool,
}
