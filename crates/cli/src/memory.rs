//! The memory that clients of this process may make it hold, whatever protocol they speak.

use std::sync::{Arc, LazyLock};

use pinstripe_block::budget::Budget;

static BUDGET: LazyLock<Arc<Budget>> = LazyLock::new(Arc::default);

/// One for all servers of all shards.
pub fn budget() -> Arc<Budget> {
    Arc::clone(&BUDGET)
}
