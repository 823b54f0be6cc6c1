//! pinstripe-parity
