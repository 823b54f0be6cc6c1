//! The atomics of everything that shards share. The model checker swaps them for its own; nothing else
//! changes.

#[cfg(not(feature = "shuttle"))]
pub use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(feature = "shuttle")]
pub use shuttle::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
};
