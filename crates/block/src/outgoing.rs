//! What a connection still has to send, in order. The links of all protocols use it.
//!
//! Messages are handed over whole, so that a header never loses its data to another message in between. Small
//! ones are gathered into batches, data travels in the buffer that it lies in. With each goes a number of
//! *held* bytes: memory that was acquired for it and that the connection answers for until the message is
//! sent or dropped. Small messages that hold nothing are *loose*: how many bytes of them wait is known, and
//! what lets further ones be made looks at it.

use std::collections::VecDeque;

use pinstripe_runtime::{Buffer, Slice, Stream, block_bytes, shard};

use crate::mutants::{Mutant, active};

/// Bytes of a batch of small messages.
const BATCH_BYTES: usize = 64 << 10;
/// Bytes up to which a closed batch is copied to memory of its size: the least that a block of the pool has.
const LITTLE_BYTES: usize = 4 << 10;
/// Bytes of loose messages with which a peer is not asked for more until it takes some.
pub const LOOSE_BYTES_MAX: usize = 64 << 10;
/// How long a peer may take nothing of a message, and say nothing while it is awaited, before it is given up.
pub const PEER_TIMEOUT_NANOSECONDS: u64 = 30_000_000_000;
/// With less than so many bytes a second, after that time, it is given up as well.
const PEER_BYTES_PER_SECOND: u64 = 256 << 10;

/// See the module.
#[derive(Default)]
pub struct Outgoing {
    /// To be sent, oldest first.
    ready: VecDeque<Ready>,
    batch: Option<Batch>,
    /// Loose bytes in all of it.
    loose: usize,
}

struct Ready {
    slice: Slice,
    held: usize,
    loose: usize,
}

/// It still takes small messages. Empty it is only kept to be used again.
struct Batch {
    buffer: Buffer,
    used: usize,
    held: usize,
    loose: usize,
}

impl Outgoing {
    /// A batch that `waits` behind others takes no more memory than its size needs; one that goes out now is
    /// copied only if it is little.
    fn close_batch(&mut self, waits: bool) {
        let Some(Batch { mut buffer, used, held, loose }) = self.batch.take_if(|batch| batch.used > 0) else {
            return;
        };
        if used > LITTLE_BYTES && (!waits || block_bytes(used) == BATCH_BYTES) {
            buffer.truncate(used);
            return self.ready.push_back(Ready { slice: buffer.freeze(), held, loose });
        }
        // A peer that doesn't read must not have every few bytes between large messages keep a whole batch's
        // memory.
        let mut little = shard::buffer(used);
        little.copy_from_slice(&buffer[..used]);
        self.ready.push_back(Ready { slice: little.freeze(), held, loose });
        self.batch = Some(Batch { buffer, used: 0, held: 0, loose: 0 });
    }

    /// Whether nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.batch.as_ref().is_none_or(|batch| batch.used == 0)
    }

    /// Bytes of messages that hold nothing.
    pub fn loose(&self) -> usize {
        self.loose
    }

    /// Takes `slice` as it is.
    pub fn push(&mut self, slice: Slice, held: usize) {
        self.close_batch(true);
        let loose = if held == 0 { slice.len() } else { 0 };
        self.loose += loose;
        self.ready.push_back(Ready { slice, held, loose });
    }

    /// Takes `parts` one after the other, copied; together they are not empty.
    pub fn push_copy(&mut self, parts: &[&[u8]], held: usize) {
        let length = parts.iter().map(|part| part.len()).sum();
        if length > BATCH_BYTES {
            let mut buffer = shard::buffer(length);
            fill(&mut buffer, parts);
            return self.push(buffer.freeze(), held);
        }
        if self.batch.as_ref().is_some_and(|batch| batch.buffer.len() - batch.used < length) {
            self.close_batch(true);
        }
        let new = || Batch { buffer: shard::buffer(BATCH_BYTES), used: 0, held: 0, loose: 0 };
        let batch = self.batch.get_or_insert_with(new);
        fill(&mut batch.buffer[batch.used..batch.used + length], parts);
        batch.used += length;
        batch.held += held;
        if held == 0 {
            batch.loose += length;
            self.loose += length;
        }
    }

    /// What to send next, and the bytes to give back afterwards.
    pub fn pop(&mut self) -> Option<(Slice, usize)> {
        if self.ready.is_empty() {
            self.close_batch(false);
        }
        let Ready { slice, held, loose } = self.ready.pop_front()?;
        self.loose -= loose;
        Some((slice, held))
    }

    /// Drops everything. Gives the bytes that were held.
    pub fn clear(&mut self) -> usize {
        self.loose = 0;
        let batch = self.batch.take().map(|batch| batch.held);
        batch.into_iter().chain(self.ready.drain(..).map(|ready| ready.held)).sum()
    }
}

fn fill(target: &mut [u8], parts: &[&[u8]]) {
    let mut start = 0;
    for part in parts {
        target[start..start + part.len()].copy_from_slice(part);
        start += part.len();
    }
}

/// How long a message's peer is waited for: [`PEER_TIMEOUT_NANOSECONDS`] for each step, and for all of them
/// as long as a slow line takes. A peer that gives or takes a byte now and then must not keep the message's
/// memory, which others wait for.
pub struct Patience {
    bytes: u64,
    is_first: bool,
    /// Since the second step: most messages take one, and no look at the clock.
    deadline: Option<u64>,
}

impl Patience {
    /// With a message of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { bytes: bytes as u64, is_first: true, deadline: None }
    }

    /// Waits for a step. `None` if it takes too long.
    pub async fn step<F: Future>(&mut self, step: F) -> Option<F::Output> {
        shard::timeout(self.limit(), step).await
    }

    /// Whether no step is waited for any more.
    pub fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| shard::waited() >= deadline)
    }

    fn limit(&mut self) -> u64 {
        if std::mem::take(&mut self.is_first) {
            return PEER_TIMEOUT_NANOSECONDS;
        }
        let now = shard::waited();
        let all = PEER_TIMEOUT_NANOSECONDS + self.bytes.saturating_mul(1_000_000_000) / PEER_BYTES_PER_SECOND;
        let deadline = *self.deadline.get_or_insert(now + all);
        deadline.saturating_sub(now).min(PEER_TIMEOUT_NANOSECONDS)
    }
}

/// Sends all of `slice`. False if the peer can't be reached any more, or takes it too slowly.
pub async fn send_whole<T: Stream + ?Sized>(stream: &T, slice: Slice) -> bool {
    send_parts(stream, slice, |_| ()).await
}

/// The same. `taken` is told how many bytes of it the peer takes, when it does.
pub async fn send_parts<T: Stream + ?Sized>(stream: &T, slice: Slice, taken: impl Fn(usize)) -> bool {
    let mut patience = Patience::new(slice.len());
    send_within(stream, slice, &mut patience, taken).await
}

/// The same for a part of a message.
pub async fn send_within<T: Stream + ?Sized>(
    stream: &T,
    mut slice: Slice,
    patience: &mut Patience,
    taken: impl Fn(usize),
) -> bool {
    loop {
        let length = slice.len();
        let sending = stream.send(slice.clone());
        let sent = if active(Mutant::PatienceWithoutEnd) {
            Some(sending.await)
        } else {
            patience.step(sending).await
        };
        let Some(Ok(sent)) = sent.map(|outcome| outcome.result) else { return false };
        // A stream that claims more than there was is broken.
        if sent > length || sent == 0 && length > 0 {
            return false;
        }
        taken(sent);
        if sent == length {
            return true;
        }
        slice = slice.slice(sent, length - sent);
    }
}

#[cfg(test)]
mod tests {
    use pinstripe_runtime::{Shard, ShardConfig};

    use super::*;

    #[test]
    fn small_messages_between_large_ones_take_little_memory_and_keep_their_order() {
        const ROUNDS: u8 = 40;
        // Room for so many small blocks, and not for so many batches.
        let shard = Shard::new(&ShardConfig { index: 0, arena_bytes: 1 << 20, clock: None });
        let _entered = shard.enter();
        let large = shard::zeroed(16 << 10).freeze();
        let mut outgoing = Outgoing::default();
        for round in 0..ROUNDS {
            outgoing.push_copy(&[&[round], &[1; 15]], 16);
            outgoing.push(large.clone(), 1);
        }
        for round in 0..ROUNDS {
            let (small, held) = outgoing.pop().unwrap();
            assert!(small.arena_offset().is_some(), "the arena is used up after {round} messages");
            assert_eq!((small[0], &small[1..], held), (round, &[1; 15][..], 16));
            assert_eq!(outgoing.pop().map(|(slice, held)| (slice.len(), held)), Some((16 << 10, 1)));
        }
        assert!(outgoing.pop().is_none(), "an empty batch is no message");
        outgoing.push_copy(&[&[7; 5000]], 3);
        outgoing.push_copy(&[&[8; 100]], 4);
        assert_eq!(outgoing.pop().map(|(slice, held)| (slice.len(), held)), Some((5100, 7)));
        outgoing.push_copy(&[&[9]], 5);
        outgoing.push(large.clone(), 6);
        outgoing.push_copy(&[&[9]], 7);
        assert_eq!(outgoing.clear(), 18);
        assert!(outgoing.pop().is_none());
        drop((large, outgoing));
        assert_eq!(shard.pool().outstanding(), 0);
    }
}
