//! What a batch of writes leaves in one stripe: every sector once (C11).

use std::collections::BTreeMap;

use pinstripe_runtime::{Buffer, Slice, shard};

use crate::{
    mutants::{Mutant, active},
    units::to_u32,
};

/// A write's part in one stripe.
#[derive(Clone)]
pub struct Piece {
    /// First byte within the stripe's data.
    pub start: u32,
    /// The bytes.
    pub data: Slice,
    /// Whether it must be durable when it is acknowledged.
    pub fua: bool,
}

impl Piece {
    /// Where in a chunk it begins and ends; behind the end of the chunk, if it goes on in the next.
    pub(crate) fn rows(&self, chunk: u32) -> (u32, u32) {
        rows_of(self.start, &self.data, chunk)
    }
}

/// Bytes to be written into one column, not touching the next extent of the column.
pub struct Extent {
    /// The data column.
    pub column: usize,
    /// First byte within the chunk.
    pub start: u32,
    /// The bytes.
    pub data: Slice,
}

impl Extent {
    /// The byte behind the last.
    pub fn end(&self) -> u32 {
        self.start + length(&self.data)
    }

    /// The bytes of the chunk range `from..to`, which must be inside.
    pub fn range(&self, from: u32, to: u32) -> &[u8] {
        &self.data[(from - self.start) as usize..(to - self.start) as usize]
    }
}

fn length(data: &Slice) -> u32 {
    to_u32(data.len())
}

fn rows_of(start: u32, data: &Slice, chunk: u32) -> (u32, u32) {
    (start % chunk, start % chunk + length(data))
}

/// What a part of an image covers: where it begins in the stripe's data, and its bytes. Sorted, not
/// overlapping.
pub type Parts = Vec<(u32, Slice)>;

/// Pieces merged in arrival order. Reusable.
#[derive(Default)]
pub struct Image {
    /// Sorted, not overlapping; each a part of one piece.
    parts: Vec<(u32, Slice)>,
    scratch: Vec<(u32, Slice)>,
    extents: Vec<Extent>,
    fua: bool,
    pieces: usize,
}

impl Image {
    /// An empty image with memory for `pieces`.
    pub fn with_room(pieces: usize) -> Self {
        Self {
            // One piece can cut another in two.
            parts: Vec::with_capacity(2 * pieces),
            scratch: Vec::with_capacity(2 * pieces),
            extents: Vec::with_capacity(2 * pieces),
            ..Self::default()
        }
    }

    /// Whether it has had far more pieces than it was made for.
    pub(crate) fn has_outgrown(&self, pieces: usize) -> bool {
        self.parts.capacity() > 32 * pieces
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.extents.clear();
        self.fua = false;
        self.pieces = 0;
    }

    /// What it has must be durable when it is acknowledged.
    pub(crate) fn force(&mut self) {
        self.fua = true;
    }

    /// Lays `piece` over what came before it.
    pub fn add(&mut self, piece: Piece) {
        self.fua |= piece.fua && !(active(Mutant::FuaOfFirstOnly) && self.pieces > 0);
        self.pieces += 1;
        let (start, end) = (piece.start, piece.start + length(&piece.data));
        if self.parts.last().is_none_or(|(at, data)| at + length(data) <= start) {
            self.parts.push((start, piece.data));
            return;
        }
        self.scratch.clear();
        for (at, data) in self.parts.drain(..) {
            let part_end = at + length(&data);
            if at < start {
                self.scratch.push((at, data.slice(0, (part_end.min(start) - at) as usize)));
            }
            if part_end > end && !(active(Mutant::OverlaidTailLost) && at < start) {
                let from = at.max(end);
                self.scratch.push((from, data.slice((from - at) as usize, (part_end - from) as usize)));
            }
        }
        let place = self.scratch.partition_point(|(at, _)| *at < start);
        self.scratch.insert(place, (start, piece.data));
        std::mem::swap(&mut self.parts, &mut self.scratch);
    }

    /// Cuts the image into columns of `chunk` bytes and joins what touches. Call after the last
    /// [`Image::add`].
    pub fn build_extents(&mut self, chunk: u32) {
        self.extents.clear();
        // The commonest image: one part, in one column.
        if let [(at, data)] = &self.parts[..]
            && !data.is_empty()
            && at % chunk + length(data) <= chunk
        {
            let extent = Extent { column: (at / chunk) as usize, start: at % chunk, data: data.clone() };
            return self.extents.push(extent);
        }
        let mut index = 0;
        while index < self.parts.len() {
            let (start, _) = self.parts[index];
            let mut end = start;
            let first = index;
            while let Some((at, data)) = self.parts.get(index).filter(|(at, _)| *at == end) {
                end = at + length(data);
                index += 1;
            }
            self.add_run(first..index, start, end, chunk);
        }
    }

    /// Adds the extents of one unbroken run of parts.
    fn add_run(&mut self, parts: std::ops::Range<usize>, start: u32, end: u32, chunk: u32) {
        let mut at = start;
        while at < end {
            let stop = end.min((at / chunk + 1) * chunk);
            let data = self.bytes(parts.clone(), at, stop);
            self.extents.push(Extent { column: (at / chunk) as usize, start: at % chunk, data });
            at = stop;
        }
    }

    /// The bytes `from..to` of a run of parts: a view if one part has them all, else a copy.
    fn bytes(&self, parts: std::ops::Range<usize>, from: u32, to: u32) -> Slice {
        let parts = &self.parts[parts];
        let first = parts.partition_point(|(at, data)| at + length(data) <= from);
        let (at, data) = &parts[first];
        if at + length(data) >= to {
            return data.slice((from - at) as usize, (to - from) as usize);
        }
        let mut whole: Buffer = shard::buffer((to - from) as usize);
        for (at, data) in parts[first..].iter().take_while(|(at, _)| *at < to) {
            let (begin, stop) = (from.max(*at), to.min(at + length(data)));
            whole[(begin - from) as usize..(stop - from) as usize]
                .copy_from_slice(&data[(begin - at) as usize..(stop - at) as usize]);
        }
        whole.freeze()
    }

    /// The extents, by column and start.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The extent of `column` that holds the chunk range `from..to`.
    pub fn find(&self, column: usize, from: u32, to: u32) -> Option<&Extent> {
        self.extents.iter().find(|e| e.column == column && e.start <= from && to <= e.end())
    }

    /// Whether any piece must be durable when it is acknowledged.
    pub fn fua(&self) -> bool {
        self.fua
    }

    /// Puts `old`, which begins at `start` of the stripe's data, wherever nothing is written over it.
    pub fn fill(&mut self, start: u32, old: &Slice) {
        let end = start + length(old);
        let gap = |from: u32, to: u32| (from, old.slice((from - start) as usize, (to - from) as usize));
        self.scratch.clear();
        let mut at = start;
        for (from, data) in self.parts.drain(..) {
            if from > at && at < end && from + length(&data) > start {
                self.scratch.push(gap(at, from.min(end)));
            }
            if from + length(&data) > start {
                at = at.max(from + length(&data));
            }
            self.scratch.push((from, data));
        }
        if at < end {
            self.scratch.push(gap(at, end));
        }
        std::mem::swap(&mut self.parts, &mut self.scratch);
    }

    /// How many parts the image has. Some may touch.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Cuts the image into images of one column and at most `parts_max` parts each, and gives all but the
    /// first.
    pub fn split(&mut self, chunk: u32, parts_max: usize) -> Vec<Parts> {
        let mut images: Vec<Parts> = Vec::new();
        for (from, data) in self.parts.drain(..) {
            let (mut at, end) = (from, from + length(&data));
            while at < end {
                let stop = end.min((at / chunk + 1) * chunk);
                let piece = (at, data.slice((at - from) as usize, (stop - at) as usize));
                match images.last_mut() {
                    Some(image) if image.len() < parts_max && image[0].0 / chunk == at / chunk => {
                        image.push(piece);
                    }
                    _ => images.push(vec![piece]),
                }
                at = stop;
            }
        }
        images.reverse();
        self.parts = images.pop().unwrap_or_default();
        images
    }

    /// Cuts the image at rows where something changes, and gives all but the first part: `end_of` tells how
    /// far from a byte of a chunk on rows are alike.
    pub fn cut(&mut self, chunk: u32, end_of: impl Fn(u32) -> u32) -> Vec<Parts> {
        let mut images: BTreeMap<u32, Parts> = BTreeMap::new();
        for (from, data) in self.parts.drain(..) {
            let (mut at, end) = (from, from + length(&data));
            while at < end {
                let alike = end_of(at % chunk);
                let stop = end.min(at - at % chunk + alike);
                let piece = (at, data.slice((at - from) as usize, (stop - at) as usize));
                images.entry(alike).or_default().push(piece);
                at = stop;
            }
        }
        let mut images = images.into_values();
        self.parts = images.next().unwrap_or_default();
        images.collect()
    }

    /// The chunk range that the image's bytes are in: from the first byte to behind the last, whatever their
    /// columns.
    pub fn rows(&self, chunk: u32) -> (u32, u32) {
        let mut rows = (chunk, 0);
        for (from, data) in &self.parts {
            let (start, end) = rows_of(*from, data, chunk);
            rows = if end > chunk { (0, chunk) } else { (rows.0.min(start), rows.1.max(end)) };
        }
        rows
    }

    /// Takes the next of what [`Image::split`] or [`Image::cut`] gave.
    pub fn load(&mut self, parts: Parts) {
        self.parts = parts;
        self.extents.clear();
    }

    /// How many pieces were merged.
    pub fn pieces(&self) -> usize {
        self.pieces
    }

    /// Bytes that are covered.
    pub fn bytes_covered(&self) -> u32 {
        self.parts.iter().map(|(_, data)| length(data)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use pinstripe_runtime::{Pool, Shard, ShardConfig};
    use proptest::prelude::*;

    fn shard() -> Rc<Shard> {
        Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: None })
    }

    #[test]
    fn what_a_part_covers_to_the_end_is_not_filled() {
        let pool = Pool::new(0);
        let shard = shard();
        let _entered = shard.enter();
        let mut image = Image::default();
        image.add(Piece { start: 2048, data: pool.zeroed(2048).freeze(), fua: false });
        image.build_extents(4096);
        image.fill(0, &pool.zeroed(4096).freeze());
        let parts: Vec<_> = image.parts.iter().map(|(from, data)| (*from, data.len())).collect();
        assert_eq!(parts, [(0, 2048), (2048, 2048)]);
        let mut image = Image::default();
        image.add(Piece { start: 0, data: pool.zeroed(4096).freeze(), fua: false });
        image.build_extents(4096);
        image.fill(0, &pool.zeroed(4096).freeze());
        assert_eq!(image.parts.len(), 1, "an empty part is none");
    }

    #[test]
    fn every_part_of_a_forced_image_is_forced() {
        let pool = Pool::new(0);
        let shard = shard();
        let _entered = shard.enter();
        let cuts: [fn(&mut Image) -> Vec<Parts>; 2] =
            [|image| image.split(4096, 1), |image| image.cut(4096, |at| if at < 1024 { 1024 } else { 4096 })];
        for cut in cuts {
            let mut image = Image::default();
            image.add(Piece { start: 512, data: pool.zeroed(8192).freeze(), fua: true });
            let rest = cut(&mut image);
            assert!(!rest.is_empty() && image.fua());
            for parts in rest {
                image.load(parts);
                assert!(image.fua());
            }
            image.clear();
            assert!(!image.fua());
        }
    }

    proptest! {
        #[test]
        fn pieces_merge_in_arrival_order_and_every_sector_is_there_once(
            pieces in proptest::collection::vec((0u32..40, 1u32..20), 1..12), chunk_log in 1u32..5
        ) {
            let pool = Pool::new(0);
            let shard = shard();
            let _entered = shard.enter();
            let chunk = 1 << chunk_log;
            let mut model = [None; 64];
            let mut image = Image::default();
            for (number, (start, length)) in pieces.into_iter().enumerate() {
                let mut data = pool.buffer(length as usize);
                for (i, byte) in data.iter_mut().enumerate() {
                    *byte = u8::try_from(number * 20 + i).unwrap();
                    model[start as usize + i] = Some(*byte);
                }
                image.add(Piece { start, data: data.freeze(), fua: false });
            }
            image.build_extents(chunk);
            let mut seen = [None; 64];
            let mut last = None;
            for extent in image.extents() {
                prop_assert!(extent.end() <= chunk);
                prop_assert!(last.is_none_or(|(column, end)| column < extent.column || end < extent.start));
                last = Some((extent.column, extent.end()));
                for (i, byte) in extent.data.iter().enumerate() {
                    let at = extent.column * chunk as usize + extent.start as usize + i;
                    prop_assert!(seen[at].replace(*byte).is_none());
                }
            }
            prop_assert_eq!(model, seen);
        }
    }
}
