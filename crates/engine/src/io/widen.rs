//! Pages in full: what a batch leaves alone of a page that it touches is read and becomes a part of the
//! batch.
//!
//! Logs know only whole pages of 4 KiB, but the array may be written in blocks of 512 bytes. The claim is
//! held, so what is read is what stands there until the batch is through, whatever becomes of the membership
//! meanwhile.

use crate::{
    error::IoError,
    geometry::{Set64, StripeId},
    io::{parity::ParityVolume, row::Want},
    membership::snapshot::View,
    stripe::{
        image::{Extent, Image, Piece},
        parity_cache::PAGE_BYTES,
    },
    units::to_u32,
};

/// A part of a chunk that is missing in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    column: usize,
    start: u32,
    end: u32,
}

impl ParityVolume {
    /// Fills `image` up to whole pages, without a look at the slots of `avoid`. Extents must be built anew
    /// afterwards.
    pub(crate) async fn widen(
        &self,
        view: &View,
        stripe: StripeId,
        image: &mut Image,
        avoid: Set64,
    ) -> Result<(), IoError> {
        let geometry = &self.geometry;
        if geometry.logical_block() >= PAGE_BYTES {
            return Ok(());
        }
        let chunk = geometry.chunk_bytes();
        image.build_extents(chunk);
        let gaps = gaps(image.extents());
        if gaps.is_empty() {
            return Ok(());
        }
        let mut row = self.rows.take();
        let mut result = Ok(());
        for gap in gaps {
            let range = (gap.start, gap.end);
            let want = Want { columns: Set64::only(gap.column), parity: false, avoid };
            result = self.read_row(view, stripe, range, want, &mut row).await;
            let Some(data) = row.data.get_mut(gap.column).and_then(Option::take).filter(|_| result.is_ok())
            else {
                break;
            };
            let column = to_u32(gap.column);
            image.add(Piece { start: column * chunk + gap.start, data, fua: false });
        }
        row.clear(0);
        self.rows.give(row);
        result
    }
}

/// What is missing in the pages that `extents`, sorted by column and start, touch.
fn gaps(extents: &[Extent]) -> Vec<Gap> {
    let mut gaps = Vec::new();
    for (index, extent) in extents.iter().enumerate() {
        let neighbour =
            |other: Option<&Extent>| other.filter(|o| o.column == extent.column).map(|o| (o.start, o.end()));
        let before = neighbour(index.checked_sub(1).and_then(|before| extents.get(before)));
        let page = extent.start / PAGE_BYTES * PAGE_BYTES;
        let from = before.map_or(page, |(_, end)| end.max(page));
        if from < extent.start {
            gaps.push(Gap { column: extent.column, start: from, end: extent.start });
        }
        let stop = extent.end().next_multiple_of(PAGE_BYTES);
        // A gap up to a neighbour in the same page is the neighbour's.
        let shared = neighbour(extents.get(index + 1)).is_some_and(|(start, _)| start < stop);
        if extent.end() < stop && !shared {
            gaps.push(Gap { column: extent.column, start: extent.end(), end: stop });
        }
    }
    gaps
}

#[cfg(test)]
mod tests {
    use pinstripe_runtime::{Shard, ShardConfig, shard};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn gaps_fill_every_touched_page_and_nothing_else(
            pieces in prop::collection::vec((0u32..64, 1u32..20), 1..8)
        ) {
            let world = Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: None });
            let _entered = world.enter();
            let (chunk, mut image) = (4 * PAGE_BYTES, Image::default());
            for (start, length) in pieces {
                let data = shard::buffer(length as usize * 512).freeze();
                image.add(Piece { start: start * 512, data, fua: false });
            }
            image.build_extents(chunk);
            let mut count = vec![0; 96];
            let mut note = |column: usize, start: u32, end: u32| {
                for sector in start / 512..end / 512 {
                    count[column * 32 + sector as usize] += 1;
                }
            };
            image.extents().iter().for_each(|e| note(e.column, e.start, e.end()));
            for gap in gaps(image.extents()) {
                note(gap.column, gap.start, gap.end);
            }
            for page in count.chunks_exact(8) {
                prop_assert!(page.iter().all(|c| *c == page[0]) && page[0] <= 1, "{page:?}");
            }
        }
    }
}
