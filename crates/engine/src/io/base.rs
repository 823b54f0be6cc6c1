//! What the volume of every level has on a shard.

use std::{
    cell::{Cell, OnceCell, RefCell},
    rc::Rc,
    sync::Arc,
};

use pinstripe_runtime::{Buffer, DeviceError, FlushTicket, Slice, Submission, SubmissionSet, shard};

use crate::{
    error::Operation,
    latency::LatencyCounters,
    members::MemberId,
    membership::snapshot::View,
    mutants::{Mutant, active},
    shared::Shared,
    statistics::Counters,
    supervision::shard_members::ShardMembers,
};

/// See the module.
pub(crate) struct VolumeBase {
    pub(crate) shared: Arc<Shared>,
    pub(crate) shard: usize,
    /// The members as this shard sees them.
    pub(crate) members: Rc<ShardMembers>,
    /// Flushes under way, each of a place. When one is over, with the ticket up to which it waits for others.
    flushes: Pooled<SubmissionSet<(usize, Cell<FlushTicket>)>>,
    /// Made when it is first needed, for all requests.
    zeroes: OnceCell<Slice>,
}

/// What a member gets.
pub(crate) struct Bytes {
    pub(crate) data: Slice,
    /// Forced to the medium.
    pub(crate) fua: bool,
    /// Not read soon, so that it needn't be in the processor's caches.
    pub(crate) streams: bool,
}

impl Bytes {
    pub(crate) fn new(data: Slice, fua: bool) -> Self {
        Self { data, fua, streams: false }
    }
}

/// Values that are used again. A context that is lost with its task (a crash in the simulator) is no loss.
pub(crate) struct Pooled<T> {
    values: RefCell<Vec<Box<T>>>,
    /// Of these, as many have not been needed since the last look.
    unneeded: Cell<usize>,
    /// How many were given back since then.
    given: Cell<u32>,
}

/// What is given back so often is looked at: what a burst needed, and nothing since, goes, half each time,
const GIVEN: u32 = 4096;
/// but for as many, which an ordinary load may need at any time: the way of a request allocates nothing.
const KEPT: usize = 64;

impl<T> Default for Pooled<T> {
    fn default() -> Self {
        Self { values: RefCell::default(), unneeded: Cell::new(0), given: Cell::new(0) }
    }
}

impl<T: Default> Pooled<T> {
    #[expect(clippy::unnecessary_box_returns, reason = "the box is what is used again")]
    pub(crate) fn take(&self) -> Box<T> {
        let mut values = self.values.borrow_mut();
        let value = values.pop();
        self.unneeded.set(self.unneeded.get().min(values.len()));
        value.unwrap_or_default()
    }

    pub(crate) fn give(&self, value: Box<T>) {
        let mut values = self.values.borrow_mut();
        values.push(value);
        self.given.set(self.given.get() + 1);
        if self.given.get() == GIVEN {
            // The first ones: the last are in the processor's caches.
            let surplus = self.unneeded.get().min(values.len().saturating_sub(KEPT));
            values.drain(..surplus.div_ceil(2));
            self.given.set(0);
            self.unneeded.set(values.len());
        }
    }
}

impl VolumeBase {
    pub(crate) const ZEROES_BYTES: usize = 1 << 20;

    /// On the current shard, which must be one of `shared.shards`.
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let shard = shard::index();
        let position = shared.shards.iter().position(|s| s.index() == shard);
        let shard = position.expect("a volume is opened on a shard of its array");
        let members = ShardMembers::new(Arc::clone(&shared), shard);
        Self { shared, shard, members, flushes: Pooled::default(), zeroes: OnceCell::new() }
    }

    /// Zeroes to be written, [`Self::ZEROES_BYTES`] of them.
    pub(crate) fn zeroes(&self) -> &Slice {
        self.zeroes.get_or_init(|| shard::zeroed(Self::ZEROES_BYTES).freeze())
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters[self.shard]
    }

    pub(crate) fn latencies(&self) -> &LatencyCounters {
        &self.shared.latencies[self.shard]
    }

    /// Submits a read of a member, at an offset relative to its data.
    pub(crate) fn submit_read(
        &self,
        view: &View,
        slot: usize,
        offset: u64,
        buffer: Buffer,
    ) -> Option<Submission> {
        let (member, device) = view.member(slot)?;
        let counters = self.counters();
        counters.member_reads.add(1);
        counters.member_read_bytes.add(buffer.len() as u64);
        Some(device.read(member.data_offset + offset, buffer))
    }

    /// Submits a write to the member at a place, at an offset relative to its data.
    pub(crate) fn submit_write(
        &self,
        view: &View,
        place: usize,
        offset: u64,
        Bytes { data, fua, streams }: Bytes,
    ) -> Option<Submission> {
        let (member, device) = view.member(place)?;
        let counters = self.counters();
        counters.member_writes.add(1);
        counters.member_write_bytes.add(data.len() as u64);
        let at = member.data_offset + offset;
        Some(if streams { device.write_streaming(at, data, fua) } else { device.write(at, data, fua) })
    }

    /// Flushes every member of `view`, targets of replacements too; the places that failed, and how. Not only
    /// this flush: one that failed elsewhere meanwhile has lost what this one was to make durable, and one
    /// that failed before is never tried again.
    pub(crate) async fn flush_members(&self, view: &View) -> Vec<(usize, DeviceError)> {
        let mut set = self.flushes.take();
        // A slot may have two: its member and the target of its replacement.
        for place in usize::from(active(Mutant::FlushSkipsMember))..view.devices.len() {
            let Some((member, device)) = view.member(place) else { continue };
            let ticket = member.health.flushes.begin();
            set.push((place, Cell::new(ticket)), device.flush());
        }
        let repeats =
            |result: &Result<usize, DeviceError>| result.is_err() && active(Mutant::FlushTriedAgain);
        // A ticket ends with its own flush, and not with those of other members, which may hang: what else
        // waits for this member's flushes doesn't wait for those.
        let ended = |(place, ticket): &(usize, Cell<FlushTicket>), result: Result<usize, DeviceError>| {
            if let Some((member, _)) = view.member(*place).filter(|_| !repeats(&result)) {
                ticket.set(member.health.flushes.end(ticket.get(), result.err()));
            }
        };
        set.wait_for_each(ended).await;
        let mut failed = Vec::new();
        for ((place, ticket), outcome) in set.drain() {
            let Some((member, device)) = view.member(place) else { continue };
            let flushes = &member.health.flushes;
            let mut result = outcome.result;
            if repeats(&result) {
                // What is tried again is believed, whatever it says.
                result = device.flush().await.result.or(Ok(0));
                ticket.set(flushes.end(ticket.get(), None));
            }
            let error = if let Err(error) = result {
                Some(error)
            } else {
                // Not for those that begin while it waits for other members': there would always be some.
                let earlier = flushes.failure_to(ticket.get()).await;
                earlier.filter(|_| !active(Mutant::FailedFlushForgotten))
            };
            failed.extend(error.map(|error| (place, error)));
        }
        self.flushes.give(set);
        failed
    }

    /// The same, and reports those that failed. Returns those members.
    pub(crate) async fn flush_or_report(&self, view: &View) -> Vec<MemberId> {
        let failed = self.flush_members(view).await.into_iter();
        failed
            .filter_map(|(place, error)| self.members.report(view, place, Operation::Flush, 0, error))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_burst_needed_goes_when_it_is_over() {
        let pool = Pooled::<u64>::default();
        let burst: Vec<_> = (0..1000).map(|_| pool.take()).collect();
        for value in burst {
            pool.give(value);
        }
        let length = || pool.values.borrow().len();
        assert_eq!(length(), 1000);
        let at_a_time = |count: usize| {
            let taken: Vec<_> = (0..count).map(|_| pool.take()).collect();
            for value in taken {
                pool.give(value);
            }
        };
        for _ in 0..16 * GIVEN / 4 {
            at_a_time(4);
        }
        assert_eq!(length(), KEPT, "four are needed at a time");
        // What is needed now and then stays.
        for _ in 0..4 {
            at_a_time(200);
            (0..GIVEN / 4).for_each(|_| at_a_time(4));
        }
        assert!(length() >= 100, "{}", length());
    }
}
