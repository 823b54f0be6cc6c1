//! pinstripe-md
