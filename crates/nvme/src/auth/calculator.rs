//! Where proofs are computed: the seam by which they stay off the shards, and by which the simulator says
//! when they are done.
//!
//! A Diffie-Hellman power takes from one to some twenty milliseconds of a CPU, and a stranger can ask for one
//! with a few bytes. On a shard all others would wait for it.

use std::future::Future;
use std::pin::Pin;

use pinstripe_runtime::shard;

/// Something to be computed.
pub type Work = Box<dyn FnOnce() + Send>;

/// See the module.
pub trait Calculator: Send + Sync {
    /// Has `work` done. If the future is dropped, it needn't be done any more.
    fn compute(&self, work: Work) -> Pin<Box<dyn Future<Output = ()>>>;
}

/// A few threads, after the shards.
#[cfg(target_os = "linux")]
pub(super) struct Threads;

#[cfg(target_os = "linux")]
impl Calculator for Threads {
    fn compute(&self, work: Work) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(pinstripe_runtime::uring::computing(work))
    }
}

/// The shard itself, when others had their turn.
#[derive(Debug, Clone, Copy, Default)]
pub struct InTurn;

impl Calculator for InTurn {
    fn compute(&self, work: Work) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(async move {
            shard::yield_now().await;
            work();
        })
    }
}
