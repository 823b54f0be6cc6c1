//! What members' servers are asked to compute, from a shard: see [`offload`](crate::offload).

pub(crate) mod exchange;
pub(crate) mod reduce;
