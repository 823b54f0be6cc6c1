//! The partial parity log: arrays of mdadm's served, dirty ones replayed, and what a batch looks like in the
//! log.

use std::collections::BTreeSet;

use crate::arrays::{Golden, golden_array, options, read_only};
use pinstripe_engine::{
    assembly::AssembleError,
    error::IoError,
    geometry::{Geometry, StripeId},
};
use pinstripe_md::{
    ppl::{FoundRecord, PplEntry, encode_record, newest_record},
    superblock::{ResyncOffset, Superblock},
    units::Sector,
};

const PARITY_ROW: usize = 4096;

/// The newest record of each member's log.
fn newest(golden: &Golden) -> Vec<FoundRecord> {
    (0..golden.members.len())
        .map(|member| {
            newest_record(&area(golden, member).1, golden.superblock(0).array.set_uuid, true).unwrap()
        })
        .collect()
}

fn area(golden: &Golden, member: usize) -> (u64, Vec<u8>) {
    let superblock = golden.superblock(member);
    let start = superblock.ppl_sector().unwrap().0 * 512;
    let length = u64::from(superblock.member.ppl.unwrap().size) * 512;
    (start, golden.bytes(member, start..start + length))
}

/// By member: the device bytes at which rows of parity lie that the newest record covers.
fn covered_parity(golden: &Golden) -> Vec<BTreeSet<u64>> {
    let chunk = golden.case.chunk_sectors;
    let data = golden.members.len() as u64 - 1;
    let rows = |record: &FoundRecord| {
        let mut rows = BTreeSet::new();
        for entry in &record.header.entries {
            let length = u64::from(if entry.parity_bytes > 0 {
                entry.parity_bytes
            } else {
                entry.data_bytes / u32::try_from(data).unwrap()
            });
            let (stripe, within) = (entry.data_sector.0 / chunk / data, entry.data_sector.0 % chunk);
            let start = (golden.superblock(0).member.data_offset.0 + stripe * chunk + within) * 512;
            rows.extend((start..start + length).step_by(PARITY_ROW));
        }
        rows
    };
    newest(golden).iter().map(rows).collect()
}

fn make_dirty(golden: &Golden) {
    golden.change_all(|superblock| superblock.array.resync_offset = ResyncOffset::DirtyFrom(Sector(0)));
}

/// Spoils all parity that the logs cover. How many rows.
fn spoil(golden: &Golden) -> usize {
    let covered = covered_parity(golden);
    for (member, rows) in golden.members.iter().zip(&covered) {
        for row in rows {
            member.copy_in(*row, &[0x5a; PARITY_ROW]).unwrap();
        }
    }
    covered.iter().map(BTreeSet::len).sum()
}

#[test]
fn mdadms_ppl_array_is_written_and_left_with_an_empty_log() {
    let golden = golden_array("r5-ppl-clean");
    let mut served = golden.read_all(&golden.all(), options());
    assert_eq!(served.array.read_only_reason(), None);
    assert_eq!(served.array.detail().consistency_policy, "ppl");
    let pattern: Vec<u8> = (0..200_000u32).map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1]).collect();
    for (offset, length) in [
        (0, 4096),
        (512, 512),
        (40_960 + 1536, 10_240),
        (16_384, 49_152),
        (98_304, 3 * 16_384),
        (150_016, 70_144),
    ] {
        served.write(offset, &pattern[..length]).unwrap();
        assert_eq!(served.read(offset, length).unwrap(), pattern[..length]);
    }
    let logged = served.array.detail().statistics;
    assert!(logged.log_writes >= 6, "{logged:?}");
    assert_eq!(served.check(), 0);
    served.stop();
    for member in golden.all() {
        let superblock = golden.superblock(member);
        assert_eq!(superblock.array.resync_offset, ResyncOffset::Clean);
        assert!(newest(&golden)[member].header.entries.is_empty());
    }
    let mut again = golden.serve(&golden.all(), options()).unwrap();
    assert_eq!(again.read(512, 512).unwrap(), pattern[..512]);
}

#[test]
fn a_dirty_ppl_array_is_replayed_and_needs_no_resync() {
    let golden = golden_array("r5-ppl-clean");
    make_dirty(&golden);
    assert!(spoil(&golden) >= 4);
    let mut served = golden.read_all(&golden.all(), options());
    assert_eq!(served.array.detail().regions_to_resync, 0);
    assert_eq!(served.check(), 0);
    let clean = |superblock: Superblock| superblock.array.resync_offset == ResyncOffset::Clean;
    assert!(
        golden.all().into_iter().all(|member| clean(golden.superblock(member))),
        "the superblocks say so"
    );
}

#[test]
fn a_dirty_ppl_array_starts_without_a_member() {
    for lost in 0..4 {
        let golden = golden_array("r5-ppl-clean");
        make_dirty(&golden);
        spoil(&golden);
        // What the lost member holds of rows that were being written may be anything; all else is there.
        let left: Vec<usize> = (0..4).filter(|member| *member != lost).collect();
        let mut served = golden.serve(&left, options()).unwrap();
        let chunk = golden.case.chunk_sectors * 512;
        let in_flight: BTreeSet<u64> = newest(&golden_array("r5-ppl-clean"))
            .iter()
            .flat_map(|record| record.header.entries.clone())
            .flat_map(|entry| {
                let columns = u64::from(entry.data_bytes / entry.parity_bytes.max(1)).clamp(1, 3);
                (0..columns).flat_map(move |column| {
                    let start = entry.data_sector.0 * 512 + column * chunk;
                    (start..start + u64::from(entry.data_bytes) / columns).step_by(4096)
                })
            })
            .collect();
        let mut expected = vec![0; 4096];
        for at in (0..golden.case.bytes()).step_by(4096).filter(|at| !in_flight.contains(at)) {
            golden.case.fill(at / 4096, &mut expected);
            assert_eq!(served.read(at, 4096).unwrap(), expected, "without {lost}, at {at}");
        }
    }
}

#[test]
fn a_dirty_ppl_array_whose_log_says_nothing_is_resynced_or_refused() {
    let golden = golden_array("r5-ppl-clean");
    make_dirty(&golden);
    for (member, memory) in golden.members.iter().enumerate() {
        let (start, bytes) = area(&golden, member);
        memory.copy_in(start, &vec![0; bytes.len()]).unwrap();
    }
    let error = golden.serve(&[0, 1, 2], options()).err().unwrap();
    assert!(matches!(error, AssembleError::DirtyDegraded { missing: 1 }), "{error}");
    let mut served = golden.serve(&golden.all(), options()).unwrap();
    assert!(served.array.detail().regions_to_resync > 0);
    served.settle();
    served.write(0, &[1; 4096]).unwrap();
    assert!(served.array.detail().statistics.log_writes > 0, "the log is taken up when parity matches");
    assert_eq!(served.check(), 0);
}

#[test]
fn a_dirty_ppl_array_is_not_replayed_for_readers() {
    let golden = golden_array("r5-ppl-clean");
    make_dirty(&golden);
    spoil(&golden);
    let mut served = golden.read_all(&golden.all(), read_only());
    assert_eq!(served.write(0, &[1; 4096]), Err(IoError::ReadOnly));
    let error = golden.serve(&[0, 1, 2], read_only()).err().unwrap();
    assert!(matches!(error, AssembleError::DirtyDegraded { .. }), "{error}");
}

/// What a clean stop in the middle of a resync leaves, as the kernel does it: the log is in use, and the
/// resync is not over.
#[test]
fn a_log_ends_no_resync_that_a_stop_cut_short() {
    let golden = golden_array("r5-ppl-clean");
    golden.change_all(|superblock| superblock.array.resync_offset = ResyncOffset::DirtyFrom(Sector(2048)));
    spoil(&golden);
    let error = golden.serve(&[0, 1, 2], options()).err().unwrap();
    assert!(matches!(error, AssembleError::DirtyDegraded { missing: 1 }), "{error}");
    let mut served = golden.read_all(&golden.all(), options());
    assert!(served.array.detail().regions_to_resync > 0);
    served.settle();
    assert_eq!(served.check(), 0);
}

#[test]
fn what_one_record_can_say_is_written_in_one() {
    let golden = golden_array("r5-ppl-clean");
    let mut served = golden.read_all(&golden.all(), options());
    served.write(0, &[1; 512]).unwrap();
    let chunk = golden.case.chunk_sectors * 512;
    // A whole stripe; the end of a chunk and the beginning of the next one.
    for (offset, length) in [(0, 3 * chunk), (chunk - 1536, 3072)] {
        let before = served.array.detail().statistics;
        served.write(offset, &vec![7; usize::try_from(length).unwrap()]).unwrap();
        let written = served.array.detail().statistics.since(&before);
        assert_eq!((written.log_writes, written.batches), (1, 1), "{length} bytes at {offset}");
    }
}

/// No writer that we know makes one: rows are logged whole.
#[test]
fn an_entry_of_one_sector_says_what_that_sector_s_parity_is_and_no_other_s() {
    let golden = golden_array("r5-ppl-clean");
    let geometry = {
        let served = golden.serve(&golden.all(), read_only()).unwrap();
        let Geometry::Parity(geometry) = &served.array.shared().geometry else { panic!("no parity") };
        *geometry
    };
    make_dirty(&golden);
    let stripe = StripeId(5);
    let (map, p) = (geometry.slots(stripe), geometry.slots(stripe).p_slot().index());
    let place =
        |slot: usize| golden.superblock(slot).member.data_offset.0 * 512 + geometry.member_offset(stripe);
    let mut unwritten = vec![0; 512];
    for column in 1..map.columns() {
        let slot = map.data_slot(column).index();
        let data = golden.bytes(slot, place(slot)..place(slot) + 512);
        unwritten.iter_mut().zip(data).for_each(|(sum, byte)| *sum ^= byte);
    }
    let entry = PplEntry {
        data_sector: Sector(geometry.array_offset(stripe, 0) / 512),
        parity_bytes: 0,
        data_bytes: 512,
        parity_slot: u32::try_from(p).unwrap(),
        checksum: 0,
    };
    let record = encode_record(golden.superblock(p).array.set_uuid, 1, &[(entry, &unwritten)]).unwrap();
    let (start, bytes) = area(&golden, p);
    golden.members[p].copy_in(start, &vec![0; bytes.len()]).unwrap();
    golden.members[p].copy_in(start, &record).unwrap();
    golden.members[p].copy_in(place(p), &[0x5a; 512]).unwrap();
    let mut served = golden.read_all(&golden.all(), options());
    assert_eq!((served.array.detail().regions_to_resync, served.check()), (0, 0));
}

/// As mdadm makes it, before a kernel has said in the superblock that records follow each other.
#[test]
fn records_that_follow_each_other_are_found_whatever_the_superblock_says() {
    let golden = golden_array("r5-ppl-clean");
    make_dirty(&golden);
    spoil(&golden);
    golden.change_all(|superblock| superblock.member.ppl.as_mut().unwrap().multiple = false);
    let mut served = golden.read_all(&golden.all(), options());
    assert_eq!(served.array.detail().regions_to_resync, 0);
    assert_eq!(served.check(), 0);
}

/// Linux walks from header to header while another one has room before the area's end, and takes the last
/// place it came to for the newest record's.
#[test]
fn no_record_ends_where_linux_does_not_find_it() {
    let golden = golden_array("r5-ppl-clean");
    let mut served = golden.read_all(&golden.all(), options());
    let mut furthest = 0;
    for round in 0..150 {
        for stripe in 0..4u64 {
            let at = stripe * 3 * golden.case.chunk_sectors * 512;
            served.write(at, &vec![7; if round % 7 == 6 { 8192 } else { 4096 }]).unwrap();
        }
        for (member, record) in newest(&golden).iter().enumerate() {
            let end = record.offset as u64 + record.header.record_bytes();
            let length = u64::from(golden.superblock(member).member.ppl.unwrap().size) * 512;
            assert!(end + 4096 < length, "a record ends at {end} of {length}");
            furthest = furthest.max(end);
        }
    }
    assert!(furthest > 900 << 10, "the area was used up to {furthest} only");
}
