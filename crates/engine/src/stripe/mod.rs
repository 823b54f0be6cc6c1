//! What shards keep of the stripes that they write: which task has the claim, what a batch leaves in a
//! stripe, and the parity that was written lately.

pub mod decode;
pub mod image;
mod line;
pub mod parity_cache;
pub mod table;
