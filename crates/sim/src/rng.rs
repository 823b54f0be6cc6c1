//! The source of every decision of a run: xoshiro256** (Blackman and Vigna), its state filled by splitmix64.
//!
//! Written here rather than taken from a crate so that a seed names the same run for ever: a seed that once
//! found a bug is a test.

use std::ops::Range;

/// One step of splitmix64: also the mixer of the trace and of the contents of stamped sectors.
pub(crate) fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A stream of random numbers that is the same on every machine and in every version.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut word = seed;
        Self {
            state: std::array::from_fn(|_| {
                word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
                mix(word)
            }),
        }
    }

    /// A stream of its own for `label`: what one part of the world draws does not change what another draws.
    pub fn fork(&mut self, label: u64) -> Self {
        Self::new(self.draw() ^ mix(label))
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let drawn = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        drawn
    }

    /// A number below `end`.
    ///
    /// # Panics
    /// If `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "there is no number below 0");
        let wide = u128::from(self.draw()) * u128::from(end);
        // The high half of the product is below `end`.
        u64::try_from(wide >> 64).unwrap_or_else(|_| unreachable!("64 bits are left"))
    }

    /// An index below `end`.
    ///
    /// # Panics
    /// If `end` is 0.
    pub fn index(&mut self, end: usize) -> usize {
        index(self.below(end as u64))
    }

    /// A number in `range`.
    ///
    /// # Panics
    /// If it is empty.
    pub fn range(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// True `times` out of `of`, on average.
    pub fn chance(&mut self, times: u64, of: u64) -> bool {
        self.below(of) < times
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.index(i + 1));
        }
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.draw().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// A count of bytes or sectors of the simulated world as an index: it holds nothing that exceeds memory.
pub(crate) fn index(value: u64) -> usize {
    usize::try_from(value).unwrap_or_else(|_| unreachable!("simulated devices fit in memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_names_the_same_stream_for_ever() {
        let mut rng = Rng::new(1);
        let drawn: Vec<u64> = (0..3).map(|_| rng.draw()).collect();
        let mut fork = rng.fork(7);
        assert_eq!(drawn, STREAM_OF_1);
        assert_eq!(fork.draw(), FORK_OF_1);
    }

    /// Computed apart, by another implementation of the published algorithm. They may never change.
    const STREAM_OF_1: [u64; 3] = [0xf9d2_0113_ec80_c6d5, 0xd16e_236e_5cdc_6563, 0x68a4_0f27_8366_062a];
    const FORK_OF_1: u64 = 0xa5de_d98b_9520_6aa9;

    #[test]
    fn numbers_stay_below_their_end_and_reach_everything() {
        let mut rng = Rng::new(3);
        let mut seen = [false; 7];
        for _ in 0..500 {
            seen[rng.index(7)] = true;
        }
        assert_eq!(seen, [true; 7]);
        assert!((0..500).all(|_| (10..12).contains(&rng.range(10..12))));
    }
}
