//! A superblock from any bytes: what is accepted must encode to the very bytes that it was read from.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pinstripe_md::superblock::{Superblock, candidate_sectors};

/// Where `data_size` stands.
const DATA_SIZE: std::ops::Range<usize> = 136..144;
/// Where `sb_csum` stands.
const CHECKSUM: std::ops::Range<usize> = 216..220;

fuzz_target!(|data: &[u8]| {
    let Some((size, bytes)) = data.split_first_chunk::<8>() else { return };
    let device_sectors = u64::from_le_bytes(*size);
    let mut bytes = bytes.to_vec();
    fix_checksum(&mut bytes);
    for sector in candidate_sectors(device_sectors) {
        let Ok(superblock) = Superblock::decode(&bytes, sector, device_sectors) else { continue };
        superblock.support();
        superblock.own_role();
        if superblock.member.data_size.0.to_le_bytes() != bytes[DATA_SIZE] {
            // Counted as mdadm does with version 1.0: what we write of it ends where the data ends.
            continue;
        }
        if let Ok(again) = superblock.encode(512) {
            let covered = 256 + 2 * superblock.array.roles.len();
            assert_eq!(again[..covered], bytes[..covered]);
            assert_eq!(Superblock::decode(&again, sector, device_sectors).as_ref(), Ok(&superblock));
        }
    }
});

/// A fuzzer doesn't guess checksums, so it gets the right one: the sum of all words, folded once.
fn fix_checksum(bytes: &mut [u8]) {
    let Some(max_dev) = bytes.get(220..224) else { return };
    let max_dev = u32::from_le_bytes([max_dev[0], max_dev[1], max_dev[2], max_dev[3]]);
    let covered = usize::try_from(max_dev).unwrap_or(usize::MAX).saturating_mul(2).saturating_add(256);
    if covered > bytes.len() {
        return;
    }
    bytes[CHECKSUM].fill(0);
    let sum: u64 = bytes[..covered]
        .chunks(4)
        .map(|word| word.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
        .sum();
    let folded = (sum as u32).wrapping_add((sum >> 32) as u32);
    bytes[CHECKSUM].copy_from_slice(&folded.to_le_bytes());
}
