//! pinstripe-runtime
