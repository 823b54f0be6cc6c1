//! pinstripe-sim
