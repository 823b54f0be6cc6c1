//! A journal from any bytes: the walk ends, and every meta block reads back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pinstripe_md::identity::Uuid;
use pinstripe_md::journal::{BLOCK_BYTES, JournalWalk, MetaBlock, Seed};
use pinstripe_md::units::{Sector, SectorCount};

const BLOCKS: usize = 8;

fuzz_target!(|data: &[u8]| {
    let seed = Seed::new(Uuid::default());
    let mut ring = vec![0; BLOCKS * BLOCK_BYTES];
    // Each block takes a slice of the input, so that a short input reaches several.
    let share = data.len().div_ceil(BLOCKS).clamp(1, BLOCK_BYTES);
    for (block, part) in ring.chunks_exact_mut(BLOCK_BYTES).zip(data.chunks(share)) {
        block[..part.len()].copy_from_slice(part);
        block[4..8].fill(0);
        let sum = seed.checksum(block);
        block[4..8].copy_from_slice(&sum.to_le_bytes());
        if let Ok(meta) = MetaBlock::decode(block, seed) {
            let again = meta.encode(seed).unwrap();
            assert_eq!(MetaBlock::decode(&again, seed), Ok(meta));
        }
    }
    let sectors = SectorCount((ring.len() / 512) as u64);
    let Some(mut walk) = JournalWalk::new(Uuid::default(), sectors, Sector(0)) else { unreachable!() };
    let mut steps = 0;
    while let Some(entry) = walk.step(&ring[walk.position().0 as usize * 512..]) {
        assert_eq!(entry.pages.len() as u64, entry.meta.page_count());
        steps += 1;
        assert!(steps <= BLOCKS);
    }
});
