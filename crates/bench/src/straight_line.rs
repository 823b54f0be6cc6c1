//! What the machine could do: the copies and the parity of every write in a plain loop over the members'
//! memory.
//!
//! It does for each request just what no engine can do without: change data and parity where they lie, or
//! compute a whole stripe's parity and write all of it past the caches, or make what a lost member held from
//! what the others hold. No tasks, no claims, no plan, no
//! intent, no errors. Its writes are as right as the engine's (other stripes, one thread for each): the
//! scrub and the data check cover both.

use std::sync::Arc;

use pinstripe_engine::{
    geometry::{Geometry, MEMBERS_MAX, MemberSlot, ParityGeometry, StripeId},
    stripe::decode::{encode, exponent},
};
use pinstripe_parity::Kernel;
use pinstripe_runtime::{
    Buffer, DeviceError, DeviceErrorKind, Memory,
    memory::{change_in_place, look_in_place},
    shard,
};

use crate::{
    ledger::{Acknowledged, Region, fill, stamp},
    rng::Rng,
    worker::{CLOCK_EVERY, SliceOutcome, Stopwatch},
};

/// One thread's loop.
pub(crate) struct StraightLine {
    geometry: Geometry,
    /// By slot: the memory, and where its data begins.
    members: Vec<(Arc<Memory>, u64)>,
    /// The slot of the member that isn't there.
    lost: Option<usize>,
    kernel: &'static Kernel,
    region: Arc<Region>,
    reads: u64,
    /// As many as the engine's clients on this thread, with the numbers of their writers.
    clients: Vec<(Buffer, u32)>,
    p: Buffer,
    q: Buffer,
    into: Buffer,
    rng: Rng,
    count: u32,
    next: usize,
    acknowledged: Acknowledged,
}

/// Why a shape has no straight line here.
pub(crate) fn is_possible(geometry: &Geometry, unit_bytes: u64) -> bool {
    !geometry.has_parity()
        || u64::from(geometry.chunk_bytes()).is_multiple_of(unit_bytes)
        || unit_bytes.is_multiple_of(geometry.stripe_bytes())
}

impl StraightLine {
    /// A loop over `region` with writers numbered from `first_writer`.
    pub(crate) fn new(
        geometry: Geometry,
        members: Vec<(Arc<Memory>, u64)>,
        lost: Option<usize>,
        region: Arc<Region>,
        reads: u8,
        (first_writer, clients): (u32, u32),
    ) -> Self {
        let length = usize::try_from(region.unit_bytes).unwrap_or(usize::MAX);
        let buffer = |writer| {
            let mut buffer = shard::buffer(length);
            fill(&mut buffer, writer);
            (buffer, writer)
        };
        let parity = length.min(geometry.chunk_bytes() as usize);
        Self {
            geometry,
            members,
            lost,
            kernel: pinstripe_parity::kernel(),
            reads: reads.into(),
            clients: (first_writer..first_writer + clients).map(buffer).collect(),
            p: shard::zeroed(parity),
            q: shard::zeroed(parity),
            into: shard::zeroed(length),
            rng: Rng::new(u64::from(first_writer)),
            region,
            count: 0,
            next: 0,
            acknowledged: Acknowledged::new(),
        }
    }

    /// Runs for `nanoseconds`.
    pub(crate) fn run(&mut self, nanoseconds: u64) -> Result<SliceOutcome, DeviceError> {
        let watch = Stopwatch::start();
        let deadline = shard::now() + nanoseconds;
        let mut operations = 0_u64;
        while !operations.is_multiple_of(CLOCK_EVERY) || shard::now() < deadline {
            if self.reads > 0 && self.rng.below(100) < self.reads {
                self.read()?;
            } else {
                self.write()?;
            }
            operations += 1;
        }
        self.region.enter(&mut self.acknowledged);
        Ok(watch.stop(operations))
    }

    fn read(&mut self) -> Result<(), DeviceError> {
        let offset = self.region.next_read(&mut self.rng);
        let (members, kernel) = (&self.members, self.kernel);
        each_part(&self.geometry, offset, self.region.unit_bytes, |slot, at, from, length| {
            let into = &mut self.into[from..from + length];
            match &self.geometry {
                Geometry::Parity(geometry) if self.lost == Some(slot) => {
                    reconstruct(geometry, members, kernel, slot, at, into)
                }
                _ => {
                    let (memory, start) = &members[slot];
                    memory.copy_out(start + at, into)
                }
            }
        })
    }

    fn write(&mut self) -> Result<(), DeviceError> {
        let target = self.region.next_write(0, &mut self.count, &mut self.rng);
        self.next = if self.next + 1 < self.clients.len() { self.next + 1 } else { 0 };
        let (buffer, writer) = &mut self.clients[self.next];
        stamp(buffer, target, *writer);
        match &self.geometry {
            Geometry::Raid0(_) => {
                let members = &self.members;
                each_part(&self.geometry, target.offset, buffer.len() as u64, |slot, at, from, length| {
                    let (memory, start) = &members[slot];
                    memory.copy_in(start + at, &buffer[from..from + length])
                })?;
            }
            Geometry::Parity(geometry) if buffer.len() <= geometry.chunk_bytes() as usize => {
                modify(geometry, &self.members, self.kernel, target.offset, buffer)?;
            }
            Geometry::Parity(geometry) => {
                let stripe_bytes = geometry.stripe_bytes();
                let (StripeId(first), _) = geometry.locate(target.offset);
                for (stripe, data) in (first..).map(StripeId).zip(buffer.chunks_exact(stripe_bytes as usize))
                {
                    let scratch = [&mut self.p[..], &mut self.q];
                    whole(geometry, &self.members, self.kernel, stripe, data, scratch)?;
                }
            }
        }
        self.acknowledged.note(&self.region, target);
        Ok(())
    }
}

/// Calls `each` with slot, member offset, offset in the request and length of every chunk's part.
fn each_part(
    geometry: &Geometry,
    offset: u64,
    length: u64,
    mut each: impl FnMut(usize, u64, usize, usize) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    let mut from = 0;
    match geometry {
        Geometry::Raid0(geometry) => {
            for extent in geometry.extents(offset, length).into_iter().flatten() {
                let length = usize::try_from(extent.length).unwrap_or(usize::MAX);
                each(extent.slot.index(), extent.member_offset, from, length)?;
                from += length;
            }
        }
        Geometry::Parity(geometry) => {
            for piece in geometry.pieces(offset, length).into_iter().flatten() {
                let slot = geometry.slots(piece.stripe).data_slot(piece.column);
                let at = geometry.member_offset(piece.stripe) + u64::from(piece.chunk_offset);
                each(slot.index(), at, from, piece.length as usize)?;
                from += piece.length as usize;
            }
        }
    }
    Ok(())
}

/// What a lost member holds of data, from the other data and P, where these lie.
fn reconstruct(
    geometry: &ParityGeometry,
    members: &[(Arc<Memory>, u64)],
    kernel: &Kernel,
    lost: usize,
    at: u64,
    into: &mut [u8],
) -> Result<(), DeviceError> {
    let map = geometry.slots(geometry.stripe_of_member_offset(at).0);
    let data = (0..map.columns()).map(|column| map.data_slot(column));
    let others = data.chain([map.p_slot()]).filter(|slot| slot.index() != lost);
    let length = into.len();
    let ranges = others.map(|slot| {
        let (memory, start) = &members[slot.index()];
        memory.in_place(start + at, length)
    });
    look_in_place::<MEMBERS_MAX, _>(ranges, |sources| kernel.xor(into, sources))
        .ok_or(DeviceError::of(DeviceErrorKind::Invalid))
}

/// Read-modify-write of a part of one chunk, where the old bytes lie.
fn modify(
    geometry: &ParityGeometry,
    members: &[(Arc<Memory>, u64)],
    kernel: &Kernel,
    offset: u64,
    new: &[u8],
) -> Result<(), DeviceError> {
    let (stripe, within) = geometry.locate(offset);
    let (column, at) = geometry.column_of(within);
    let map = geometry.slots(stripe);
    let at = geometry.member_offset(stripe) + u64::from(at);
    let range = |slot: MemberSlot| {
        let (memory, start) = &members[slot.index()];
        memory.in_place(start + at, new.len()).ok_or(DeviceError::of(DeviceErrorKind::Invalid))
    };
    let (data, p) = (range(map.data_slot(column))?, range(map.p_slot())?);
    if let Some(slot) = map.q_slot() {
        change_in_place([data, p, range(slot)?], |[data, p, q]| {
            kernel.update_pq(p, q, data, new, exponent(map, column));
            data.copy_from_slice(new);
        });
    } else {
        change_in_place([data, p], |[data, p]| {
            kernel.update_p(p, data, new);
            data.copy_from_slice(new);
        });
    }
    Ok(())
}

/// What a whole stripe goes to: a member's memory, which takes it past the caches, or what a test has in its
/// place. There is no other way to write to it, for with any other the loop would be slower than it can be.
trait Stream {
    /// See [`Memory::copy_in_streaming`].
    fn stream(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;
}

impl Stream for Memory {
    fn stream(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.copy_in_streaming(offset, bytes)
    }
}

/// A whole stripe, past the caches.
fn whole(
    geometry: &ParityGeometry,
    members: &[(Arc<impl Stream>, u64)],
    kernel: &Kernel,
    stripe: StripeId,
    data: &[u8],
    [p, q]: [&mut [u8]; 2],
) -> Result<(), DeviceError> {
    let map = geometry.slots(stripe);
    let at = geometry.member_offset(stripe);
    let write = |slot: MemberSlot, from: &[u8]| {
        let (memory, start) = &members[slot.index()];
        memory.stream(start + at, from)
    };
    let mut columns: [&[u8]; MEMBERS_MAX] = [&[]; MEMBERS_MAX];
    for (column, bytes) in data.chunks_exact(geometry.chunk_bytes() as usize).enumerate() {
        columns[column] = bytes;
    }
    let columns = &columns[..map.columns()];
    encode(kernel, map, columns, Some(p), map.q_slot().is_some().then_some(&mut *q));
    for (column, bytes) in columns.iter().enumerate() {
        write(map.data_slot(column), bytes)?;
    }
    write(map.p_slot(), p)?;
    map.q_slot().map_or(Ok(()), |slot| write(slot, q))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use pinstripe_engine::geometry::ParityLayout;
    use pinstripe_md::level::Level;

    use super::*;

    /// What was streamed.
    #[derive(Default)]
    struct Watched(Mutex<Vec<(u64, usize)>>);

    impl Stream for Watched {
        fn stream(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
            self.0.lock().unwrap().push((offset, bytes.len()));
            Ok(())
        }
    }

    #[test]
    fn what_a_lost_member_held_is_made_from_the_others() {
        const CHUNK: usize = 4096;
        let start = 100 << 10;
        for level in [Level::Raid5, Level::Raid6] {
            let layout = ParityLayout::from_md(level.number(), 2).unwrap();
            let geometry = ParityGeometry::new(layout, 6, 4096, 1 << 20, 512).unwrap();
            let members: Vec<_> = (0..6).map(|_| (Memory::new(2 << 20).unwrap(), start)).collect();
            let kernel = pinstripe_parity::kernel();
            let mut rng = Rng::new(7);
            for stripe in (0..6).map(StripeId) {
                let data: Vec<u8> =
                    (0..geometry.stripe_bytes()).map(|_| rng.below(256).try_into().unwrap()).collect();
                let (mut p, mut q) = (vec![0; CHUNK], vec![0; CHUNK]);
                whole(&geometry, &members, kernel, stripe, &data, [&mut p, &mut q]).unwrap();
                for (column, wanted) in data.chunks_exact(CHUNK).enumerate() {
                    let lost = geometry.slots(stripe).data_slot(column).index();
                    let at = geometry.member_offset(stripe) + 512;
                    let mut found = vec![0; 1024];
                    // It isn't looked at.
                    let (memory, _) = &members[lost];
                    memory.copy_in(start + at, &[0; 1024]).unwrap();
                    reconstruct(&geometry, &members, kernel, lost, at, &mut found).unwrap();
                    assert!(found == wanted[512..1536], "{level}, column {column} of {stripe:?}");
                    memory.copy_in(start + at, &found).unwrap();
                }
            }
        }
    }

    #[test]
    fn whole_stripes_go_past_the_caches() {
        const CHUNK: usize = 4096;
        for level in [Level::Raid5, Level::Raid6] {
            let layout = ParityLayout::from_md(level.number(), 2).unwrap();
            let geometry = ParityGeometry::new(layout, 6, 4096, 1 << 20, 512).unwrap();
            let members: Vec<(Arc<Watched>, u64)> = (0..6).map(|_| (Arc::default(), 100 << 10)).collect();
            let (data, mut p, mut q) =
                (vec![7; geometry.stripe_bytes() as usize], vec![0; CHUNK], vec![0; CHUNK]);
            let kernel = pinstripe_parity::kernel();
            whole(&geometry, &members, kernel, StripeId(3), &data, [&mut p, &mut q]).unwrap();
            for (member, _) in members {
                assert_eq!(*member.0.lock().unwrap(), [((100 << 10) + 3 * 4096, CHUNK)], "{level}");
            }
        }
    }
}
