//! Conversions between sizes of integers: those that can't fail, and those that only a broken invariant lets
//! fail. What comes from a disk or a client is checked where it comes in, and is an error there.

const _: () = assert!(usize::BITS == 64, "addresses of members are u64, and must fit into usize");

/// A number of bytes or of things in memory.
pub(crate) fn to_usize<N: TryInto<usize, Error: std::fmt::Debug>>(number: N) -> usize {
    number.try_into().expect("usize has 64 bits")
}

/// A length or an offset within a stripe, or a number of columns.
///
/// # Panics
///
/// If it isn't below 2^32: a chunk is, and so is a stripe.
pub(crate) fn to_u32<N: TryInto<u32, Error: std::fmt::Debug>>(number: N) -> u32 {
    number.try_into().expect("what lies within a stripe is below 2^32")
}
