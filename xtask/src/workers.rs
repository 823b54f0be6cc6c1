//! Threads that share work.

use std::panic::resume_unwind;
use std::thread;

use anyhow::Result;

/// So many threads do the work, which takes the next piece by itself until there is none. The first error is
/// the answer.
pub fn run(count: usize, work: impl Fn() -> Result<()> + Copy + Send) -> Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}
