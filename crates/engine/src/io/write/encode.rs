//! The parity of a stripe write.

use pinstripe_runtime::{Buffer, Slice, shard};

use super::{
    context::WriteContext,
    pre_read::PreRead,
    stripe_write::{StripeWrite, needs_parity_from_data},
};
use crate::{
    error::IoError,
    geometry::{MEMBERS_MAX, MemberSlot, Set64, StripeMap},
    io::parity::ParityVolume,
    membership::snapshot::Snapshot,
    mutants::{Mutant, active},
    plan::{Method, Reconstruction, Run},
    stripe::{
        decode::{Sources, encode, exponent},
        image::Image,
        parity_cache::{PAGE_BYTES, Parity},
    },
};

impl StripeWrite<'_> {
    /// Computes the new parity of every run. From here on the image doesn't change.
    pub(super) fn encode(&mut self, snapshot: &Snapshot) -> Result<(), IoError> {
        let (volume, map) = (self.volume, self.map);
        let WriteContext { plan, image, pre_read, parity, remote, .. } = &mut *self.context;
        let (totals, counters) = (plan.totals(), volume.counters());
        counters.full_runs.add(totals.full_runs.into());
        counters.rmw_runs.add(totals.rmw_runs.into());
        counters.rcw_runs.add(totals.rcw_runs.into());
        counters.cache_hits.add(totals.cached_bytes / u64::from(PAGE_BYTES));
        parity.clear();
        for (number, run) in plan.runs().iter().enumerate() {
            if remote.takes(number) {
                parity.push([None, None]);
                continue;
            }
            let writes =
                |slot: Option<MemberSlot>| slot.is_some_and(|s| !snapshot.absent().contains(s.index()));
            let mut targets = [writes(Some(map.p_slot())), writes(map.q_slot())];
            if needs_parity_from_data(snapshot, map) {
                targets = [true, true];
            }
            let bytes = match run.method {
                Method::DataOnly => [None, None],
                Method::Rmw => volume.encode_delta(map, run, targets, image, pre_read),
                Method::Full => {
                    volume.encode_whole(map, run, targets, Reconstruction::None, image, pre_read)?
                }
                Method::Rcw(recovery) => volume.encode_whole(map, run, targets, recovery, image, pre_read)?,
            };
            parity.push(bytes.map(|bytes| bytes.map(Buffer::freeze)));
        }
        Ok(())
    }
}

impl ParityVolume {
    /// Read-modify-write: new parity from old parity and the change of each written column.
    fn encode_delta(
        &self,
        map: StripeMap,
        run: &Run,
        targets: [bool; 2],
        image: &Image,
        pre_read: &mut PreRead,
    ) -> [Option<Buffer>; 2] {
        let [p, q] = targets;
        let mut p = p.then(|| pre_read.take_parity(map, Parity::P, run));
        let mut q = q.then(|| pre_read.take_parity(map, Parity::Q, run));
        for column in run.written {
            let old = pre_read.old(map.data_slot(column), run.start, run.end);
            let new = run.new_bytes(image, column);
            let exponent = || exponent(map, column).wrapping_add(u8::from(active(Mutant::WrongCoefficient)));
            match (&mut p, &mut q) {
                (Some(p), Some(q)) => self.kernel.update_pq(p, q, &old, new, exponent()),
                (Some(p), None) => self.kernel.update_p(p, &old, new),
                (None, Some(q)) => self.kernel.update_q(q, &old, new, exponent()),
                (None, None) => {}
            }
        }
        [p, q]
    }

    /// Full-stripe and reconstruct-write: new parity from all columns, of which lost ones are recovered
    /// first.
    fn encode_whole(
        &self,
        map: StripeMap,
        run: &Run,
        targets: [bool; 2],
        recovery: Reconstruction,
        image: &Image,
        pre_read: &mut PreRead,
    ) -> Result<[Option<Buffer>; 2], IoError> {
        let mut old = std::mem::take(&mut pre_read.columns);
        old.resize(map.columns(), None);
        let unwritten = Set64::below(map.columns()).without(run.written);
        let lost = match recovery {
            Reconstruction::None => Set64::EMPTY,
            Reconstruction::One { column, .. } => Set64::only(column),
            Reconstruction::Two { columns: [a, b] } => Set64::only(a).or(Set64::only(b)),
        };
        let needed = if lost.is_empty() { unwritten } else { Set64::below(map.columns()).without(lost) };
        for column in needed {
            old[column] = Some(pre_read.range(map.data_slot(column), run.start, run.end));
        }
        if !lost.is_empty() {
            self.recover(map, run, recovery, lost, &mut old, pre_read)?;
            for column in lost.without(run.written) {
                let bytes = old[column].clone();
                pre_read.recovered.extend(bytes.map(|bytes| (map.data_slot(column), run.start, bytes)));
            }
        }
        let mut data: [&[u8]; MEMBERS_MAX] = [&[]; MEMBERS_MAX];
        for (column, bytes) in data[..map.columns()].iter_mut().enumerate() {
            *bytes = if run.written.contains(column) {
                run.new_bytes(image, column)
            } else {
                old[column].as_deref().unwrap_or(&[])
            };
        }
        let mut parity = targets.map(|wanted| wanted.then(|| shard::buffer(run.length() as usize)));
        let [p, q] = &mut parity;
        encode(self.kernel, map, &data[..map.columns()], p.as_deref_mut(), q.as_deref_mut());
        old.clear();
        pre_read.columns = old;
        Ok(parity)
    }

    /// Recovers the old bytes of lost columns from the others and from old parity.
    fn recover(
        &self,
        map: StripeMap,
        run: &Run,
        recovery: Reconstruction,
        lost: Set64,
        old: &mut [Option<Slice>],
        pre_read: &mut PreRead,
    ) -> Result<(), IoError> {
        let uses = |parity| match recovery {
            Reconstruction::None => false,
            Reconstruction::One { from, .. } => from == parity,
            Reconstruction::Two { .. } => true,
        };
        let p = uses(Parity::P).then(|| pre_read.parity(map, Parity::P, run));
        let q = uses(Parity::Q).then(|| pre_read.parity(map, Parity::Q, run));
        let mut data: [Option<&[u8]>; MEMBERS_MAX] = [None; MEMBERS_MAX];
        for (bytes, known) in data.iter_mut().zip(old.iter()) {
            *bytes = known.as_deref();
        }
        let sources = Sources { data: &data[..map.columns()], p: p.as_deref(), q: q.as_deref() };
        let length = run.length() as usize;
        let (mut first, mut second) = (shard::buffer(length), shard::buffer(length));
        let mut out = [&mut first[..], &mut second[..]];
        sources.recover_data(self.kernel, map, &mut out[..lost.len()]).map_err(|_| IoError::Failed)?;
        for (column, bytes) in lost.iter().zip([first, second]) {
            old[column] = Some(bytes.freeze());
        }
        Ok(())
    }
}
