//! The ring on the journal device: places, reads and writes of blocks, and rows packed behind meta blocks.
//!
//! Places are sectors relative to the journal member's data, as the format counts them. A read or write that
//! reaches past the end of the ring is cut in two; no other module needs to know where the end is.

use crate::units::to_usize;
use std::rc::Rc;

use pinstripe_md::{
    identity::Uuid,
    journal::{BLOCK_BYTES, BLOCK_SECTORS, JournalWalk, MetaWriter, Seed, payload_bytes},
    superblock::Superblock,
    units::{SECTOR_BYTES, Sector, SectorCount},
};
use pinstripe_runtime::{Buffer, Device, DeviceError, Slice, shard};

/// Where a page belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageAddress {
    /// Data, by array sector.
    Data(Sector),
    /// P of a row, by member sector.
    P(Sector),
    /// Q, of the same row as the P right before it.
    Q,
}

/// A page to be logged.
#[derive(Clone)]
pub(crate) struct Page {
    pub(crate) place: PageAddress,
    /// 4 KiB.
    pub(crate) bytes: Slice,
    /// The last one of its row: a row is never cut in two by a meta block.
    pub(crate) ends_row: bool,
}

/// Where a ring lies on its device. The same on every shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub(crate) set_uuid: Uuid,
    pub(crate) seed: Seed,
    /// First byte on the device.
    start: u64,
    /// Length in blocks.
    blocks: u64,
}

/// A meta block, with the pages behind it, ready to be written.
pub(crate) struct Packed {
    pub(crate) bytes: Slice,
    pub(crate) blocks: u64,
}

impl Ring {
    /// The ring of a journal device.
    pub(crate) fn new(superblock: &Superblock) -> Self {
        let (set_uuid, member) = (superblock.array.set_uuid, &superblock.member);
        Self {
            set_uuid,
            seed: Seed::new(set_uuid),
            start: member.data_offset.0 * SECTOR_BYTES,
            blocks: member.data_size.0 / BLOCK_SECTORS,
        }
    }

    /// Length in blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// A walk from `tail`; `None` if that isn't a block of the ring.
    pub(crate) fn walk(&self, tail: Sector) -> Option<JournalWalk> {
        JournalWalk::new(self.set_uuid, SectorCount(self.blocks * BLOCK_SECTORS), tail)
    }

    /// The place `blocks` further on.
    pub(crate) fn after(&self, place: Sector, blocks: u64) -> Sector {
        Sector((place.0 / BLOCK_SECTORS + blocks) % self.blocks.max(1) * BLOCK_SECTORS)
    }

    /// The two parts, as device offset and length in bytes, of `blocks` from `place` on; the second may be
    /// empty.
    fn parts(&self, place: Sector, blocks: u64) -> [(u64, usize); 2] {
        let first = blocks.min(self.blocks.saturating_sub(place.0 / BLOCK_SECTORS));
        let bytes = |blocks: u64| to_usize(blocks * BLOCK_BYTES as u64);
        [(self.start + place.0 * SECTOR_BYTES, bytes(first)), (self.start, bytes(blocks - first))]
    }

    /// Reads `blocks` from `place` on.
    pub(crate) async fn read(
        &self,
        device: &dyn Device,
        place: Sector,
        blocks: u64,
    ) -> Result<Buffer, DeviceError> {
        let parts = self.parts(place, blocks);
        let mut rest = shard::buffer(parts[0].1 + parts[1].1);
        let mut whole: Option<Buffer> = None;
        for (offset, length) in parts.into_iter().filter(|part| part.1 > 0) {
            let outcome = device.read(offset, rest.split_to(length)).await;
            outcome.result?;
            let Some(part) = outcome.buffer else { unreachable!("a read gives its buffer back") };
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => whole.unsplit(part),
            }
        }
        Ok(whole.unwrap_or(rest))
    }

    /// Writes whole blocks at `place`; they are durable when this returns.
    pub(crate) async fn write(
        &self,
        device: &Rc<dyn Device>,
        place: Sector,
        bytes: &Slice,
    ) -> Result<(), DeviceError> {
        let [(offset, length), (wrapped, rest)] = self.parts(place, (bytes.len() / BLOCK_BYTES) as u64);
        // Both are under way at a time; the checksums tell whether both arrived.
        let first = device.write(offset, bytes.slice(0, length), true);
        let second = (rest > 0).then(|| device.write(wrapped, bytes.slice(length, rest), true));
        let first = first.await.result;
        if let Some(second) = second {
            second.await.result?;
        }
        first.map(|_| ())
    }

    /// Packs rows from the front of `pages` behind one meta block, at most `blocks_max` in all. Returns how
    /// many pages it took; none if not even the first row fits.
    pub(crate) fn pack(
        &self,
        pages: &[Page],
        seq: u64,
        position: Sector,
        blocks_max: u64,
    ) -> Option<(Packed, usize)> {
        let taken = fitting(pages, to_usize(blocks_max).saturating_sub(1));
        if taken == 0 && !pages.is_empty() {
            return None;
        }
        let mut buffer = shard::buffer((1 + taken) * BLOCK_BYTES);
        let (meta, rest) = buffer.split_at_mut(BLOCK_BYTES);
        let mut writer = MetaWriter::new(meta)?;
        let sum = |page: &Page| self.seed.checksum(&page.bytes);
        let mut fits = true;
        for (index, (page, to)) in pages[..taken].iter().zip(rest.chunks_exact_mut(BLOCK_BYTES)).enumerate() {
            to.copy_from_slice(&page.bytes);
            fits &= match page.place {
                PageAddress::Data(sector) => writer.data(sector, sum(page)),
                PageAddress::P(sector) => {
                    match pages[..taken].get(index + 1).filter(|q| q.place == PageAddress::Q) {
                        Some(q) => writer.parity(sector, &[sum(page), sum(q)]),
                        None => writer.parity(sector, &[sum(page)]),
                    }
                }
                PageAddress::Q => true,
            };
        }
        if !fits {
            return None;
        }
        writer.finish(self.seed, seq, position);
        Some((Packed { bytes: buffer.freeze(), blocks: 1 + taken as u64 }, taken))
    }
}

/// How many of the first pages fit one meta block and `pages_max`, in whole rows.
fn fitting(pages: &[Page], pages_max: usize) -> usize {
    let (mut bytes, mut whole) = (0, 0);
    for (index, page) in pages.iter().enumerate().take(pages_max) {
        bytes += match page.place {
            PageAddress::Q => payload_bytes(2) - payload_bytes(1),
            _ => payload_bytes(1),
        };
        if bytes > META_ROOM {
            break;
        }
        if page.ends_row {
            whole = index + 1;
        }
    }
    whole
}

/// Bytes for payloads in a meta block.
const META_ROOM: usize = BLOCK_BYTES - 32;

/// The blocks that `pages` take at most, with their meta blocks: one, if there are none.
pub(crate) fn blocks_max(pages: usize) -> u64 {
    // A row of the most members there can be takes less than half of a meta block, so each is at least half
    // full.
    pages as u64 + (pages as u64 * payload_bytes(1) as u64).div_ceil(META_ROOM as u64 / 2).max(1)
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;
    use pinstripe_runtime::{Memory, MemoryDevice, Shard, ShardConfig};

    fn ring() -> Ring {
        let set_uuid = Uuid([3; 16]);
        Ring { set_uuid, seed: Seed::new(set_uuid), start: 1 << 20, blocks: 100 }
    }

    fn row(sector: u64, columns: u64, parities: usize) -> Vec<Page> {
        let page = |place, ends_row| {
            let mut bytes = shard::buffer(BLOCK_BYTES);
            bytes.fill(u8::try_from(sector % 251).unwrap());
            Page { place, bytes: bytes.freeze(), ends_row }
        };
        let mut pages: Vec<_> = (0..columns)
            .map(|c| page(PageAddress::Data(Sector(sector + 8 * c)), parities == 0 && c + 1 == columns))
            .collect();
        if parities > 0 {
            pages.push(page(PageAddress::P(Sector(sector)), parities == 1));
        }
        if parities > 1 {
            pages.push(page(PageAddress::Q, true));
        }
        pages
    }

    fn in_a_shard(test: impl FnOnce()) {
        let world = Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: None });
        let _entered = world.enter();
        test();
    }

    #[test]
    fn a_range_past_the_end_goes_on_at_the_start() {
        let ring = ring();
        assert_eq!(ring.parts(Sector(98 * 8), 5), [((1 << 20) + 98 * 4096, 2 * 4096), (1 << 20, 3 * 4096)]);
        assert_eq!(ring.parts(Sector(95 * 8), 5)[1].1, 0);
        assert_eq!(ring.after(Sector(98 * 8), 5), Sector(3 * 8));
    }

    #[test]
    fn a_write_past_the_end_has_failed_if_either_of_its_parts_has() {
        in_a_shard(|| {
            for (bytes, fails) in
                [((1 << 20) + 50 * BLOCK_BYTES, true), ((1 << 20) + 100 * BLOCK_BYTES, false)]
            {
                // A device that ends before the ring refuses the first part.
                let memory = Memory::new(bytes).unwrap();
                let device: Rc<dyn Device> = MemoryDevice::new("journal", memory, 512);
                let (ring, blocks) = (ring(), shard::zeroed(5 * BLOCK_BYTES).freeze());
                let write = pin!(ring.write(&device, Sector(98 * 8), &blocks));
                match write.poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(written) => assert_eq!(written.is_err(), fails),
                    Poll::Pending => panic!("memory answers at once"),
                }
            }
        });
    }

    #[test]
    fn rows_are_packed_whole_and_read_back() {
        in_a_shard(|| {
            for (columns, parities) in [(3, 1), (4, 2), (2, 0), (62, 2), (63, 1)] {
                let pages: Vec<Page> = (0..300).flat_map(|r| row(r * 4096, columns, parities)).collect();
                let mut rest = &pages[..];
                let mut blocks = 0;
                while !rest.is_empty() {
                    let (packed, taken) = ring().pack(rest, 7, Sector(80), u64::MAX).unwrap();
                    assert!(taken > 0 && rest[taken - 1].ends_row);
                    let meta = pinstripe_md::journal::MetaBlock::decode(&packed.bytes, ring().seed).unwrap();
                    assert_eq!((meta.page_count(), meta.seq, meta.position), (taken as u64, 7, Sector(80)));
                    let sums: Vec<u32> =
                        meta.payloads.iter().flat_map(|p| p.page_checksums().to_vec()).collect();
                    for (sum, page) in sums.iter().zip(packed.bytes[4096..].chunks_exact(4096)) {
                        assert_eq!(ring().seed.checksum(page), *sum);
                    }
                    rest = &rest[taken..];
                    blocks += packed.blocks;
                }
                assert!(blocks <= blocks_max(pages.len()), "{blocks} for {columns}+{parities}");
            }
            assert!(
                ring().pack(&row(0, 3, 1), 0, Sector(0), 4).is_none(),
                "four pages and a meta block need five"
            );
        });
    }
}
