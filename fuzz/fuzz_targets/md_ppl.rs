//! A partial parity log from any bytes: the walk ends, and every header reads back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pinstripe_md::checksum::crc32c;
use pinstripe_md::identity::Uuid;
use pinstripe_md::ppl::{HEADER_BYTES, PplHeader, records, signature};

fuzz_target!(|data: &[u8]| {
    let uuid = Uuid::default();
    // Short inputs are stretched: the interesting bytes of a header are few.
    let mut area = vec![0; data.len().max(3 * HEADER_BYTES)];
    area[512..][..data.len().min(3 * HEADER_BYTES - 512)]
        .copy_from_slice(&data[..data.len().min(3 * HEADER_BYTES - 512)]);
    for header in area.chunks_exact_mut(HEADER_BYTES).take(2) {
        header[512..516].copy_from_slice(&signature(uuid).to_le_bytes());
        header[532..536].fill(0);
        let sum = crc32c(header);
        header[532..536].copy_from_slice(&sum.to_le_bytes());
    }
    for multiple in [false, true] {
        for record in records(&area, uuid, multiple) {
            assert_eq!(record.parts(&area).count(), record.header.entries.len());
            let again = record.header.encode().unwrap();
            assert_eq!(PplHeader::decode(&again, signature(uuid)).as_ref(), Ok(&record.header));
        }
    }
});
