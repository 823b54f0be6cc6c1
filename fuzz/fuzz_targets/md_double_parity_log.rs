//! A double-parity log from any bytes: the search ends, and every record reads back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pinstripe_md::{
    checksum::crc32c,
    double_parity_log::{ANCHOR_BYTES, ENTRY_BYTES, Entry, HEADER_BYTES, Identity, find},
    identity::Uuid,
};

fuzz_target!(|data: &[u8]| {
    let identity = Identity { set_uuid: Uuid::default(), incarnation: 1 };
    // A record's checksum is made right, or hardly any input would get past it.
    let mut area = identity.anchor().to_vec();
    area.extend_from_slice(data);
    area.resize(area.len().max(ANCHOR_BYTES + 1024).next_multiple_of(512), 0);
    let record = &mut area[ANCHOR_BYTES..];
    record[..8].copy_from_slice(b"PSTRIPDR");
    let count = usize::from(record[12]) % 4;
    record[12..16].copy_from_slice(&u32::try_from(count).unwrap().to_le_bytes());
    record[8..12].fill(0);
    let covered = [&[0; 16][..], &1u64.to_le_bytes(), &record[..HEADER_BYTES + count * ENTRY_BYTES]].concat();
    record[8..12].copy_from_slice(&crc32c(&covered).to_le_bytes());
    for block in [512, 4096] {
        let Some(found) = find(&area, identity.set_uuid, block) else { panic!("the anchor is whole") };
        for record in found.live {
            let entries: Vec<Entry> = record.entries.iter().map(|(entry, _)| *entry).collect();
            let bytes = identity.encode_header(record.sequence, &entries, record.end - record.offset, block).unwrap();
            let (at, whole) = (usize::try_from(record.offset).unwrap(), HEADER_BYTES + entries.len() * ENTRY_BYTES);
            assert_eq!(bytes[..whole], area[at..at + whole]);
        }
    }
});
