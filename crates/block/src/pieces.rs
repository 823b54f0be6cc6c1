//! Long discards and zeroings are done piece by piece, so that what ends meanwhile ends soon.

/// Bytes of a discard or a zeroing, which may be 4 GiB, that are done at a time: as many as a WRITE of NBD
/// may have.
pub const PIECE_BYTES: u64 = 32 << 20;

/// Where the piece that begins at `at` ends: at a multiple of `granularity`, so that none is cut in two, or
/// at `stop`.
pub fn piece_end(at: u64, stop: u64, granularity: u64) -> u64 {
    let granularity = granularity.max(1);
    let end = at.saturating_add(PIECE_BYTES.max(granularity)) / granularity * granularity;
    if stop - at <= PIECE_BYTES { stop } else { end.min(stop) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_long_range_cut_no_stripe_in_two() {
        const MIB: u64 = 1 << 20;
        for granularity in [1, 512, 192 << 10, 3 * MIB, 31 * MIB, 33 * MIB, 100 * MIB, 1 << 33] {
            for (start, stop) in [(0, 4096 * MIB), (512, 4096 * MIB), (5 * MIB, 38 * MIB), (7, 8)] {
                let mut at = start;
                while at < stop {
                    let end = piece_end(at, stop, granularity);
                    assert!(at < end && end <= stop);
                    assert!(end - at <= PIECE_BYTES.max(granularity), "{} bytes at a time", end - at);
                    assert!(end == stop || end.is_multiple_of(granularity), "{granularity} is cut at {end}");
                    at = end;
                }
            }
        }
    }
}
