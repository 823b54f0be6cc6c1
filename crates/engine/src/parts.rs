//! Where things lie, coarsely: a member's data in a few parts of the same length, for what is told of an
//! array.

use std::ops::Range;

/// There are at most so many.
const PARTS_MAX: u64 = 64;

/// `whole` units in parts, from the first one to the last. None is empty.
pub(crate) fn parts(whole: u64) -> impl Iterator<Item = Range<u64>> {
    let count = whole.min(PARTS_MAX);
    // `whole * part / count`, of which no product is too large.
    let begin = move |part: u64| whole / count * part + whole % count * part / count;
    (0..count).map(move |part| begin(part)..begin(part + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_whole_in_order_and_of_one_length() {
        for whole in [1, 2, 63, 64, 65, 127, 1000, 1 << 40, u64::MAX] {
            let parts: Vec<_> = parts(whole).collect();
            assert_eq!(parts.len() as u64, whole.min(64));
            assert_eq!((parts[0].start, parts[parts.len() - 1].end), (0, whole));
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{parts:?}");
            let lengths = || parts.iter().map(|part| part.end - part.start);
            let (least, most) = (lengths().min().unwrap(), lengths().max().unwrap());
            assert!(least > 0 && most - least <= 1, "{whole}: {least} to {most}");
        }
        assert_eq!(parts(0).count(), 0);
    }
}
