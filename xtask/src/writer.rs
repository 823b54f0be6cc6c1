//! Random writes of the pattern to a stretch of blocks, and what may stand there after they were cut.
//!
//! A [`Stretch`] remembers over any number of crashes which generations each of its blocks may hold. Its
//! writes come in batches from a seed ([`Batches`]): the seed and the number of durable batches tell what may
//! stand, even if the writer died with its machine.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use crate::pattern::{self, ANYTHING, BLOCK, Run, Store};
use crate::random::Random;

/// Blocks of the longest write.
const RUN_BLOCKS_MAX: u64 = 24;
/// Writes of the longest batch.
const BATCH_MAX: u64 = 12;
/// The largest generation that the pattern can tell.
const GENERATIONS: u64 = 99;

/// Writes that become durable together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Blocks of the stretch, counted from its first, and the generation that goes there; in this order.
    pub writes: Vec<(Range<u64>, u8)>,
    /// Whether each write is durable by itself (FUA), rather than by a flush after the last.
    pub forced: bool,
}

/// The batches of a seed, without end.
#[derive(Clone, Debug)]
pub struct Batches {
    random: Random,
    blocks: u64,
    generation: u64,
}

impl Batches {
    /// For a stretch of so many blocks.
    pub fn new(seed: u64, blocks: u64) -> Self {
        let mut random = Random::new(seed);
        let generation = random.below(GENERATIONS);
        Self { random, blocks, generation }
    }

    fn draw(&mut self) -> (Range<u64>, u8) {
        self.generation = self.generation % GENERATIONS + 1;
        let start = self.random.below(self.blocks);
        // Most writes are small, for they cost parity updates; the others cover whole stripes.
        let most = if self.random.percent(70) { 4 } else { RUN_BLOCKS_MAX };
        let end = (start + 1 + self.random.below(most)).min(self.blocks);
        (start..end, u8::try_from(self.generation).unwrap_or(1))
    }
}

impl Iterator for Batches {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let count = self.random.within(1..BATCH_MAX + 1);
        let writes = (0..count).map(|_| self.draw()).collect();
        Some(Batch { writes, forced: self.random.percent(25) })
    }
}

/// Blocks that one writer alone writes, and what each may hold.
#[derive(Clone, Debug)]
pub struct Stretch {
    first: u64,
    generations: Vec<Vec<u8>>,
}

impl Stretch {
    /// `blocks` blocks from `first`, all zero.
    pub fn new(first: u64, blocks: u64) -> Self {
        Self { first, generations: vec![vec![0]; usize::try_from(blocks).unwrap_or(0)] }
    }

    /// How many blocks it has.
    pub fn blocks(&self) -> u64 {
        self.generations.len() as u64
    }

    /// These blocks hold just this generation.
    fn holds(&mut self, blocks: &Range<u64>, generation: u8) {
        for allowed in &mut self.generations[indices(blocks)] {
            allowed.clear();
            allowed.push(generation);
        }
    }

    /// These blocks hold in each sector what they held, or this generation.
    fn may_hold(&mut self, blocks: &Range<u64>, generation: u8) {
        for allowed in &mut self.generations[indices(blocks)] {
            if !allowed.contains(&generation) {
                allowed.push(generation);
            }
        }
    }

    /// Members were lost with a crash: of what was in flight to them nothing is promised (C19), so of what
    /// was in flight at all; a log promises the rest.
    pub fn lose_undecided(&mut self) {
        for allowed in &mut self.generations {
            if allowed.len() > 1 && !allowed.contains(&ANYTHING) {
                allowed.push(ANYTHING);
            }
        }
    }

    /// The seed's first `durable` batches are durable, and of the next one any part may be.
    pub fn cut(&mut self, seed: u64, durable: usize) {
        let mut batches = Batches::new(seed, self.blocks());
        for batch in batches.by_ref().take(durable) {
            for (blocks, generation) in &batch.writes {
                self.holds(blocks, *generation);
            }
        }
        for batch in batches.take(1) {
            for (blocks, generation) in &batch.writes {
                self.may_hold(blocks, *generation);
            }
        }
    }

    /// Writes the seed's batches until the store fails: whatever was acknowledged stands, for only the server
    /// dies. Adds the acknowledged writes to `done`.
    pub fn write_until_cut(&mut self, store: &mut impl Store, seed: u64, done: &AtomicU64) {
        for batch in Batches::new(seed, self.blocks()) {
            for (blocks, generation) in &batch.writes {
                if self.write(store, blocks, *generation, batch.forced).is_err() {
                    self.may_hold(blocks, *generation);
                    return;
                }
                self.holds(blocks, *generation);
                done.fetch_add(1, Ordering::Relaxed);
            }
            if !batch.forced && store.flush().is_err() {
                return;
            }
        }
    }

    /// Writes the seed's batches and tells of each when it is durable, with the count until then.
    pub fn write_batches(
        &self,
        store: &mut (impl Store + ?Sized),
        seed: u64,
        mut durable: impl FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        for (batch, number) in Batches::new(seed, self.blocks()).zip(1..) {
            for (blocks, generation) in &batch.writes {
                self.write(store, blocks, *generation, batch.forced)?;
            }
            if !batch.forced {
                store.flush()?;
            }
            durable(number)?;
        }
        Ok(())
    }

    fn write(
        &self,
        store: &mut (impl Store + ?Sized),
        blocks: &Range<u64>,
        generation: u8,
        forced: bool,
    ) -> Result<()> {
        let bytes = pattern::render(self.first + blocks.start..self.first + blocks.end, generation);
        let offset = (self.first + blocks.start) * BLOCK as u64;
        if forced { store.write_forced(offset, &bytes) } else { store.write(offset, &bytes) }
    }

    /// What may stand, with neighbours that are alike in one run.
    pub fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (block, generations) in (self.first..).zip(&self.generations) {
            match runs.last_mut() {
                Some(run) if run.generations == *generations => run.blocks.end = block + 1,
                _ => runs.push(Run { blocks: block..block + 1, generations: generations.clone() }),
            }
        }
        runs
    }

    /// Looks at the blocks of which several generations may stand: the one that is found stands from now on.
    /// Torn blocks stay undecided.
    pub fn settle(&mut self, store: &mut impl Store) -> Result<()> {
        let mut found = vec![0; BLOCK];
        let mut expected = vec![0; BLOCK];
        for (block, allowed) in (self.first..).zip(&mut self.generations) {
            if allowed.len() < 2 {
                continue;
            }
            store.read(block * BLOCK as u64, &mut found)?;
            let stands =
                allowed.iter().copied().filter(|generation| *generation != ANYTHING).find(|generation| {
                    pattern::fill(block, *generation, &mut expected);
                    found == expected
                });
            if let Some(generation) = stands {
                *allowed = vec![generation];
            }
        }
        Ok(())
    }
}

fn indices(blocks: &Range<u64>) -> Range<usize> {
    usize::try_from(blocks.start).unwrap_or(0)..usize::try_from(blocks.end).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    /// Memory that fails after so many calls.
    struct Dying(Vec<u8>, usize);

    impl Dying {
        fn call(&mut self) -> Result<()> {
            if self.1 == 0 {
                bail!("dead");
            }
            self.1 -= 1;
            Ok(())
        }
    }

    impl Store for Dying {
        fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
            let start = usize::try_from(offset)?;
            bytes.copy_from_slice(&self.0[start..start + bytes.len()]);
            Ok(())
        }

        fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
            self.call()?;
            let start = usize::try_from(offset)?;
            self.0[start..start + bytes.len()].copy_from_slice(bytes);
            Ok(())
        }

        fn flush(&mut self) -> Result<()> {
            self.call()
        }
    }

    #[test]
    fn what_was_acknowledged_must_stand_and_a_lost_write_is_found() {
        let mut stretch = Stretch::new(10, 50);
        let mut store = Dying(vec![0; 64 * BLOCK], 200);
        let done = AtomicU64::new(0);
        stretch.write_until_cut(&mut store, 7, &done);
        assert!(done.load(Ordering::Relaxed) > 100);
        pattern::verify(&mut store, 64, &stretch.runs()).unwrap();
        let written = stretch.runs().into_iter().find(|run| run.generations != [0]).unwrap();
        let byte = usize::try_from(written.blocks.start).unwrap() * BLOCK + 17;
        store.0[byte] ^= 1;
        assert!(pattern::verify(&mut store, 64, &stretch.runs()).is_err());
    }

    #[test]
    fn the_host_computes_from_the_seed_what_the_ended_guest_wrote() {
        for calls in 1..60 {
            let mut stretch = Stretch::new(3, 40);
            let mut store = Dying(vec![0; 64 * BLOCK], calls);
            let mut durable = 0;
            let outcome = stretch.write_batches(&mut store, 5, |count| {
                durable = count;
                Ok(())
            });
            assert!(outcome.is_err());
            stretch.cut(5, durable);
            pattern::verify(&mut store, 64, &stretch.runs()).unwrap();
            stretch.settle(&mut store).unwrap();
            assert!(stretch.runs().iter().all(|run| run.generations.len() == 1), "nothing was torn");
            pattern::verify(&mut store, 64, &stretch.runs()).unwrap();
        }
    }

    #[test]
    fn a_lost_member_excuses_only_what_was_in_flight() {
        let mut stretch = Stretch::new(0, 40);
        let mut store = Dying(vec![0; 64 * BLOCK], 50);
        stretch.write_until_cut(&mut store, 3, &AtomicU64::new(0));
        stretch.lose_undecided();
        let runs = stretch.runs();
        let (undecided, decided): (Vec<&Run>, Vec<&Run>) =
            runs.iter().partition(|run| run.generations.contains(&ANYTHING));
        let place = |run: &Run| usize::try_from(run.blocks.start).unwrap() * BLOCK;
        store.0[place(undecided[0])..][..BLOCK].fill(0xaa);
        pattern::verify(&mut store, 64, &runs).unwrap();
        store.0[place(decided[0])] ^= 1;
        assert!(pattern::verify(&mut store, 64, &runs).is_err());
    }

    #[test]
    fn batches_stay_in_their_stretch_and_repeat() {
        let batches: Vec<Batch> = Batches::new(9, 30).take(200).collect();
        assert!(batches.iter().flat_map(|batch| &batch.writes).all(|(blocks, generation)| {
            blocks.start < blocks.end && blocks.end <= 30 && (1..100).contains(generation)
        }));
        assert!(batches.iter().any(|batch| batch.forced) && batches.iter().any(|batch| !batch.forced));
        assert_eq!(batches, Batches::new(9, 30).take(200).collect::<Vec<_>>());
    }
}
