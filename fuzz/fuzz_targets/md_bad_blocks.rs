//! A bad-block log from any bytes: what is accepted reads back, and steps on it keep it sorted and merged.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pinstripe_md::bad_blocks::BadBlocks;
use pinstripe_md::units::SectorCount;

fuzz_target!(|data: &[u8]| {
    let Some((&[shift, start, length], data)) = data.split_first_chunk() else { return };
    let Ok(mut log) = BadBlocks::decode(data, shift) else { return };
    let check = |log: &BadBlocks| {
        assert!(log.ranges().windows(2).all(|pair| pair[0].end < pair[1].start));
        if let Ok(bytes) = log.encode(SectorCount(8)) {
            assert_eq!(&BadBlocks::decode(&bytes, shift).unwrap(), log);
        }
    };
    check(&log);
    let from = log.ranges().first().map_or(0, |range| range.start) + u64::from(start);
    let sectors = from..from + 1 + u64::from(length);
    if log.insert(sectors.clone()).is_ok() {
        assert_eq!(log.first_overlap(sectors.clone()), Some(sectors.clone()));
        check(&log);
    }
    log.remove(sectors.start..sectors.end + 512);
    check(&log);
});
