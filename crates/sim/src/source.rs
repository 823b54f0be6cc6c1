//! What the world schedules besides its shards: anything that has requests under way.

use std::{ops::Range, rc::Rc};

use pinstripe_runtime::Shard;

/// A disk or a link: something with events that have a time and wait for the scheduler to choose them.
pub(crate) trait EventSource {
    /// When its next event may happen, if it has one.
    fn next_due(&self) -> Option<u64>;
    /// Number of events that may happen at `now`, in any order.
    fn due(&self, now: u64) -> usize;
    /// Has the `nth` of those happen.
    fn happen(&self, nth: usize, now: u64, shards: &[Rc<Shard>]);
    /// Requests that are not completed, hung ones too.
    fn pending(&self) -> usize;
    /// The shards are dead: requests under way will never be completed. With `power` volatile caches are
    /// lost.
    fn crash(&self, power: bool);
    /// These shards are dead, the others aren't. What a disk has under way is a matter of
    /// [`EventSource::crash`].
    fn lose_shards(&self, _shards: &Range<usize>, _silent: bool) {}
    /// Whether nothing is under way and nothing will be: both ends of a link were let go of, or their shards
    /// are dead.
    fn is_abandoned(&self) -> bool {
        false
    }
    /// Whether nothing will ever come of it any more: a link between dead shards.
    fn is_over(&self) -> bool {
        false
    }
    /// Hash of what it holds.
    fn contents(&self) -> u64;
    /// Its state and its requests in words, for a report.
    fn describe(&self) -> String;
}
