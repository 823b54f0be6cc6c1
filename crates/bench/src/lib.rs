//! pinstripe-bench
