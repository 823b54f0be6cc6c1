//! The same on every shard: what `pinstripe serve` and `pinstripe target` begin and end with.

use pinstripe_runtime::{ShardHandle, shard};

/// Does `work` at the same time on all shards, and waits until it is done. A shard that is gone is left out:
/// it holds nothing and has no connections.
pub async fn on_shards<F: Future<Output = ()> + 'static>(
    shards: &[ShardHandle],
    work: impl Fn() -> F + Clone + Send + 'static,
) {
    let there = |handle: ShardHandle| {
        let work = work.clone();
        shard::spawn_joined(async move { handle.call(work).await.unwrap_or_default() })
    };
    let tasks: Vec<_> = shards.iter().cloned().map(there).collect();
    for task in tasks {
        task.join().await;
    }
}
