//! What requests of a device have in common: long ones are done piece by piece, and each waits for its
//! memory.

pub(crate) use pinstripe_block::pieces::{PIECE_BYTES, piece_end};
use pinstripe_block::{ServiceError, budget::Share};
use pinstripe_runtime::block_bytes;

/// Does a discard or a zeroing. Between two pieces it ends, as if the array were stopping, when it `is_over`:
/// what is left of it must not change what others write later, nor keep a server that stops.
pub(crate) async fn in_pieces(
    offset: u64,
    length: u64,
    granularity: u64,
    is_over: impl Fn() -> bool,
    act: impl AsyncFn(u64, u64) -> Result<(), ServiceError>,
) -> Result<(), ServiceError> {
    let (mut at, stop) = (offset, offset + length);
    while at < stop {
        if is_over() {
            return Err(ServiceError::Stopping);
        }
        let end = piece_end(at, stop, granularity);
        act(at, end - at).await?;
        at = end;
    }
    Ok(())
}

/// Does `work` when there is memory for it.
pub(crate) async fn with_memory<T>(share: &Share, length: usize, work: impl AsyncFnOnce() -> T) -> T {
    let held = block_bytes(length);
    share.acquire(held).await;
    let value = work().await;
    share.give_back(held);
    value
}
