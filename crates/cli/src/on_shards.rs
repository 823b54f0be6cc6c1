//! The same on every shard: what `pinstripe serve` and `pinstripe target` begin and end with.

use pinstripe_runtime::{ShardHandle, shard, uring::RuntimeConfig};

use crate::command_line::CpuList;

/// The shards that a command line asks for.
pub fn wanted(shards: Option<u16>, cpus: Option<&CpuList>) -> RuntimeConfig {
    let cpus = cpus.map(|list| list.0.clone());
    let base = match (shards, &cpus) {
        (Some(shards), _) => RuntimeConfig::unpinned(shards.into()),
        (None, Some(cpus)) => RuntimeConfig::unpinned(cpus.len()),
        (None, None) => RuntimeConfig::default(),
    };
    RuntimeConfig { cpus: cpus.or(base.cpus.clone()), termination_signals: true, ..base }
}

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
