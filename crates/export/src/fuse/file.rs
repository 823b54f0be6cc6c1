//! Any bytes of the file, by a service that has whole blocks only.

use std::{rc::Rc, sync::Arc};

use pinstripe_block::{BlockService, budget::Share, locks::Locks};
use pinstripe_runtime::{Buffer, block_bytes, shard};

use super::request::Fill;
use crate::{
    errno::{self, error_number},
    pieces::in_pieces,
};

/// The file, on one shard.
pub(super) struct File<S> {
    pub service: S,
    /// Of all writers. `service` doesn't take them.
    pub locks: Arc<Locks>,
    /// What the requests of this shard hold in memory.
    pub share: Rc<Share>,
}

/// The whole blocks that bytes lie in.
struct Span {
    start: u64,
    length: usize,
    /// Bytes before those that are meant.
    skip: usize,
}

impl<S: BlockService> File<S> {
    /// Reads, and gives away what there is before the file's end.
    pub async fn read(&self, offset: u64, length: usize, give: impl FnOnce(&[u8])) -> Result<(), i32> {
        let length = self.before_end(offset, length);
        if length == 0 {
            give(&[]);
            return Ok(());
        }
        let span = self.span(offset, length);
        let memory = block_bytes(span.length);
        self.share.acquire(memory).await;
        let (read, buffer) = self.service.read(span.start, shard::buffer(span.length)).await;
        if read.is_ok() {
            give(&buffer[span.skip..][..length]);
        }
        drop(buffer);
        self.share.give_back(memory);
        read.map_err(error_number)
    }

    /// Memory that a write takes besides its data.
    pub fn memory_to_write(&self, offset: u64, length: usize) -> usize {
        let span = self.span(offset, length);
        if span.length == length { 0 } else { self.memory_to_merge(&span) }
    }

    /// Writes what fits before the file's end: so many bytes. The memory of it all is counted already.
    pub async fn write(&self, offset: u64, mut data: Buffer, fua: bool) -> Result<usize, i32> {
        let length = self.before_end(offset, data.len());
        if length == 0 {
            return if data.is_empty() { Ok(0) } else { Err(errno::NO_SPACE) };
        }
        data.truncate(length);
        let span = self.span(offset, length);
        if span.length == length {
            let _held = self.locks.shared(offset, length as u64).await;
            self.service.write(offset, data.freeze(), fua).await.map_err(error_number)?;
        } else {
            self.merge(&span, &data, fua).await?;
        }
        Ok(length)
    }

    /// Makes a range read as zero, as far as it lies in the file, until that `is_over`.
    pub async fn zero(
        &self,
        offset: u64,
        length: u64,
        fill: Fill,
        is_over: impl Fn() -> bool,
    ) -> Result<(), i32> {
        let (size, block) = (self.service.size_bytes(), self.service.block_size().into());
        let end = offset + length;
        if end > size && !fill.keeps_size {
            return Err(errno::NO_SPACE);
        }
        let end = end.min(size);
        if offset >= end {
            return Ok(());
        }
        let (first, last) = (offset.next_multiple_of(block), end / block * block);
        if first > last {
            return self.zero_part(offset, end).await;
        }
        self.zero_part(offset, first).await?;
        let zero = async |at, length| {
            let _held = self.locks.shared(at, length).await;
            self.service.write_zeroes(at, length, false, fill.may_punch).await
        };
        let granularity = self.service.discard_granularity();
        in_pieces(first, last - first, granularity, is_over, zero).await.map_err(error_number)?;
        self.zero_part(last, end).await
    }

    /// Zeroes less than a block, or nothing.
    async fn zero_part(&self, start: u64, end: u64) -> Result<(), i32> {
        let length = usize::try_from(end - start).unwrap_or(0);
        if length == 0 {
            return Ok(());
        }
        let span = self.span(start, length);
        let memory = self.memory_to_merge(&span);
        self.share.acquire(memory).await;
        let merged = self.merge(&span, &vec![0; length], false).await;
        self.share.give_back(memory);
        merged
    }

    fn memory_to_merge(&self, span: &Span) -> usize {
        block_bytes(span.length) + block_bytes(self.block())
    }

    /// Lays bytes over the blocks they lie in and don't fill, while nothing else writes there.
    async fn merge(&self, span: &Span, data: &[u8], fua: bool) -> Result<(), i32> {
        let _held = self.locks.alone(span.start, span.length as u64).await;
        let mut whole = shard::buffer(span.length);
        let last = span.length - self.block();
        if span.skip > 0 {
            self.read_block(span.start, &mut whole).await?;
        }
        // The last block may be the first one.
        if span.skip + data.len() < span.length && (last > 0 || span.skip == 0) {
            self.read_block(span.start + last as u64, &mut whole[last..]).await?;
        }
        whole[span.skip..][..data.len()].copy_from_slice(data);
        self.service.write(span.start, whole.freeze(), fua).await.map_err(error_number)
    }

    /// Reads one block to the front of `place`.
    async fn read_block(&self, at: u64, place: &mut [u8]) -> Result<(), i32> {
        let (read, buffer) = self.service.read(at, shard::buffer(self.block())).await;
        read.map_err(error_number)?;
        place[..buffer.len()].copy_from_slice(&buffer);
        Ok(())
    }

    fn block(&self) -> usize {
        self.service.block_size() as usize
    }

    /// How many of `length` bytes lie in the file.
    fn before_end(&self, offset: u64, length: usize) -> usize {
        let left = self.service.size_bytes().saturating_sub(offset);
        usize::try_from(left).map_or(length, |left| left.min(length))
    }

    /// Of bytes that lie in the file, whose size is a multiple of the block.
    fn span(&self, offset: u64, length: usize) -> Span {
        let block = self.block();
        let skip = usize::try_from(offset % block as u64).unwrap_or(0);
        Span { start: offset - skip as u64, length: (skip + length).next_multiple_of(block), skip }
    }
}
