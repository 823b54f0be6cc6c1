//! pinstripe-export
