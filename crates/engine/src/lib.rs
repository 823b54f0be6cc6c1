//! pinstripe-engine
