//! The maps against a direct transcription of docs/formats.md section 10, and against their own inverses.

use proptest::prelude::*;

use pinstripe_md::level::{Level, ParityLayout as Algorithm};

use super::*;

const KIB: u64 = 1024;
const STRIPES: u64 = 40;

/// Section 10's tables, written as the document has them: lists instead of arithmetic.
struct Table {
    p: usize,
    q: Option<usize>,
    data: Vec<usize>,
    exponents: Vec<usize>,
}

fn skip(members: usize, parities: &[usize]) -> Vec<usize> {
    (0..members).filter(|member| !parities.contains(member)).collect()
}

fn rotate(start: usize, count: usize, modulus: usize) -> Vec<usize> {
    (0..count).map(|i| (start + i) % modulus).collect()
}

fn table(level: i32, algorithm: u32, n: usize, stripe: u64) -> Table {
    let s = usize::try_from(stripe).unwrap();
    if level == 6 {
        return table6(algorithm, n, s);
    }
    let (p, data) = match (level, algorithm) {
        (4, _) => (n - 1, skip(n, &[n - 1])),
        (5, 0) => (n - 1 - s % n, skip(n, &[n - 1 - s % n])),
        (5, 1) => (s % n, skip(n, &[s % n])),
        (5, 2) => (n - 1 - s % n, rotate(n - 1 - s % n + 1, n - 1, n)),
        (5, 3) => (s % n, rotate(s % n + 1, n - 1, n)),
        (5, 4) => (0, (1..n).collect()),
        (5, 5) => (n - 1, (0..n - 1).collect()),
        _ => panic!("no such layout"),
    };
    Table { p, q: None, data, exponents: Vec::new() }
}

fn table6(algorithm: u32, n: usize, s: usize) -> Table {
    let p = match algorithm {
        0 | 2 | 10 => n - 1 - s % n,
        1 | 3 | 8 => s % n,
        4 | 20 => 0,
        5 => n - 2,
        9 => n - 1 - (s + 1) % n,
        16 | 18 => n - 2 - s % (n - 1),
        17 | 19 => s % (n - 1),
        _ => panic!("no such layout"),
    };
    let q = match algorithm {
        0..=3 | 8 | 9 => (p + 1) % n,
        4 => 1,
        10 => (p + n - 1) % n,
        _ => n - 1,
    };
    let data = match algorithm {
        0 | 1 | 8 | 9 | 16 | 17 => skip(n, &[p, q]),
        2 | 3 => rotate(p + 2, n - 2, n),
        4 => (2..n).collect(),
        5 => (0..n - 2).collect(),
        10 => rotate(p + 1, n - 2, n),
        18 | 19 => rotate(p + 1, n - 2, n - 1),
        20 => (1..n - 1).collect(),
        _ => panic!("no such layout"),
    };
    let exponents = if (8..=10).contains(&algorithm) {
        data.clone()
    } else {
        let walk: Vec<usize> =
            rotate((q + 1) % n, n, n).into_iter().filter(|member| ![p, q].contains(member)).collect();
        data.iter().map(|slot| walk.iter().position(|member| member == slot).unwrap()).collect()
    };
    Table { p, q: Some(q), data, exponents }
}

fn every_geometry() -> impl Iterator<Item = ParityGeometry> {
    ParityLayout::all().flat_map(|layout| {
        (layout.members_min()..=10)
            .map(move |n| ParityGeometry::new(layout, n, 4096, STRIPES * 4096, 512).unwrap())
    })
}

#[test]
fn every_layout_places_chunks_as_md_does() {
    for geometry in every_geometry() {
        let (n, layout) = (geometry.members(), geometry.layout());
        // More than three rotations of ten members.
        for stripe in 0..STRIPES {
            let expected = table(layout.level(), layout.algorithm().number(), n, stripe);
            let map = geometry.slots(StripeId(stripe));
            let context = format!("{layout:?}, {n} members, stripe {stripe}");
            assert_eq!(map.p_slot().index(), expected.p, "P: {context}");
            assert_eq!(map.q_slot().map(MemberSlot::index), expected.q, "Q: {context}");
            let data: Vec<usize> =
                (0..geometry.columns()).map(|column| map.data_slot(column).index()).collect();
            assert_eq!(data, expected.data, "data: {context}");
            if expected.q.is_some() {
                let exponents: Vec<usize> = (0..geometry.columns()).map(|i| map.q_exponent(i)).collect();
                assert_eq!(exponents, expected.exponents, "exponents: {context}");
            }
        }
    }
}

#[test]
fn roles_and_exponents_invert_their_maps() {
    for geometry in every_geometry() {
        for stripe in 0..STRIPES {
            let map = geometry.slots(StripeId(stripe));
            assert_eq!(map.role(map.p_slot()), Role::P);
            if let Some(q) = map.q_slot() {
                assert_eq!(map.role(q), Role::Q);
                let columns: Vec<usize> =
                    (0..map.q_exponents()).filter_map(|e| map.column_of_exponent(e)).collect();
                assert_eq!(columns.len(), geometry.columns());
            }
            for column in 0..geometry.columns() {
                assert_eq!(map.role(map.data_slot(column)), Role::Data(column));
                if map.q_slot().is_some() {
                    assert!(map.q_exponent(column) < map.q_exponents());
                    assert_eq!(map.column_of_exponent(map.q_exponent(column)), Some(column));
                }
            }
        }
    }
}

#[test]
fn layouts_are_those_that_md_has_and_no_others() {
    assert_eq!(ParityLayout::all().count(), 21);
    for layout in ParityLayout::all() {
        assert_eq!(ParityLayout::from_md(layout.level(), layout.algorithm().number()), Ok(layout));
        let level = Level::from_number(layout.level()).unwrap();
        assert_eq!(ParityLayout::new(level, layout.algorithm()), Ok(layout));
    }
    assert_eq!(ParityLayout::from_md(4, 77), Ok(ParityLayout::RAID4));
    assert_eq!(ParityLayout::from_md(5, 6), Err(GeometryError::Layout { level: 5, layout: 6 }));
    assert_eq!(ParityLayout::from_md(6, 7), Err(GeometryError::Layout { level: 6, layout: 7 }));
    assert_eq!(ParityLayout::from_md(10, 0), Err(GeometryError::Level { level: 10 }));
    let misplaced = ParityLayout::new(Level::Raid5, Algorithm::DdfNContinue);
    assert_eq!(misplaced, Err(GeometryError::Layout { level: 5, layout: 10 }));
    let no_parity = ParityLayout::new(Level::Raid1, Algorithm::LeftSymmetric);
    assert_eq!(no_parity, Err(GeometryError::Level { level: 1 }));
    assert_eq!(Raid0Layout::from_md(3), Err(GeometryError::Layout { level: 0, layout: 3 }));
}

#[test]
fn impossible_arrays_are_refused_with_a_sentence() {
    let raid5 = ParityLayout::new(Level::Raid5, Algorithm::LeftSymmetric).unwrap();
    let raid6 = ParityLayout::new(Level::Raid6, Algorithm::LeftSymmetric).unwrap();
    let new =
        |layout, n, chunk, bytes, block| ParityGeometry::new(layout, n, chunk, bytes, block).unwrap_err();
    let mib = 1 << 20;
    assert_eq!(
        new(raid5, 1, 65536, mib, 512),
        GeometryError::TooFewMembers { level: 5, members: 1, least: 2 }
    );
    assert_eq!(
        new(raid6, 3, 65536, mib, 512),
        GeometryError::TooFewMembers { level: 6, members: 3, least: 4 }
    );
    assert_eq!(new(raid6, 65, 65536, mib, 512), GeometryError::TooManyMembers { members: 65 });
    assert_eq!(new(raid5, 4, 65536, mib, 8192), GeometryError::LogicalBlock { logical_block: 8192 });
    assert_eq!(new(raid5, 4, 65536, mib, 0), GeometryError::LogicalBlock { logical_block: 0 });
    for chunk_bytes in [0, 2048, 12288, 32 << 20] {
        assert_eq!(new(raid5, 4, chunk_bytes, mib, 512), GeometryError::ParityChunk { chunk_bytes });
    }
    assert_eq!(
        new(raid5, 4, 65536, 4096, 512),
        GeometryError::MemberTooSmall { slot: 0, member_bytes: 4096, chunk_bytes: 65536 }
    );
    assert_eq!(
        new(raid5, 4, 65536, 65536 + 4096, 512),
        GeometryError::MemberSize { member_bytes: 65536 + 4096, chunk_bytes: 65536 }
    );
    assert_eq!(new(raid5, 4, 65536, 1 << 62, 512), GeometryError::ArrayTooLarge);
    let raid0 = |chunk, block, sizes: &[u64]| {
        Raid0Geometry::new(Raid0Layout::Original, chunk, block, sizes).unwrap_err()
    };
    assert_eq!(raid0(4096, 512, &[]), GeometryError::TooFewMembers { level: 0, members: 0, least: 1 });
    assert_eq!(
        raid0(6144, 4096, &[mib]),
        GeometryError::Raid0Chunk { chunk_bytes: 6144, logical_block: 4096 }
    );
    assert_eq!(raid0(0, 512, &[mib]), GeometryError::Raid0Chunk { chunk_bytes: 0, logical_block: 512 });
    assert_eq!(
        raid0(65536, 512, &[mib, 512]),
        GeometryError::MemberTooSmall { slot: 1, member_bytes: 512, chunk_bytes: 65536 }
    );
    assert_eq!(raid0(65536, 512, &[u64::MAX, mib]), GeometryError::ArrayTooLarge);
    assert_eq!(raid0(4096, 512, &[mib; 65]), GeometryError::TooManyMembers { members: 65 });
}

#[test]
fn ranges_beyond_the_end_or_between_blocks_are_refused() {
    let geometry = ParityGeometry::new(ParityLayout::RAID4, 3, 4096, 8192, 512).unwrap();
    assert_eq!(geometry.array_bytes(), 16384);
    assert!(geometry.stripe_pieces(16384, 0).unwrap().next().is_none());
    assert!(matches!(geometry.stripe_pieces(16384, 512), Err(RangeError::BeyondEnd { .. })));
    assert!(matches!(geometry.pieces(512, u64::MAX), Err(RangeError::BeyondEnd { .. })));
    assert!(matches!(geometry.pieces(100, 512), Err(RangeError::Unaligned { .. })));
    assert!(matches!(geometry.pieces(512, 100), Err(RangeError::Unaligned { .. })));
}

#[test]
fn the_largest_array_still_divides_exactly() {
    // The multiplication that stands for a division is exact up to the largest chunk number there can be.
    for layout in ParityLayout::all() {
        for n in layout.members_min()..=64 {
            let k = n - layout.parities();
            let bytes = (i64::MAX.unsigned_abs() / k as u64) & !4095;
            let geometry = ParityGeometry::new(layout, n, 4096, bytes, 512).unwrap();
            let last = geometry.array_bytes() - 512;
            let probes =
                [last, last - 4096 * k as u64, (last / 2) & !511, (last / 3) & !511, (last / 7) & !511];
            for offset in probes {
                let chunk = offset / 4096;
                let (stripe, within) = geometry.locate(offset);
                assert_eq!(stripe.0, chunk / k as u64);
                assert_eq!(u64::from(within), chunk % k as u64 * 4096 + offset % 4096);
                let p = geometry.slots(stripe).p_slot().index();
                assert_eq!(p, table_p(layout, n, stripe.0), "{layout:?} {n}");
            }
        }
    }
}

/// P alone, in 64-bit arithmetic on every platform.
fn table_p(layout: ParityLayout, n: usize, stripe: u64) -> usize {
    let period = (n * (n - 1)) as u64;
    table(layout.level(), layout.algorithm().number(), n, stripe % period).p
}

fn parity_geometry() -> impl Strategy<Value = ParityGeometry> {
    let layouts: Vec<ParityLayout> = ParityLayout::all().collect();
    (prop::sample::select(layouts), 0usize..12, 12u32..17, 1u64..200).prop_map(
        |(layout, extra, shift, stripes)| {
            let n = layout.members_min() + extra;
            ParityGeometry::new(layout, n, 1 << shift, stripes << shift, 512).unwrap()
        },
    )
}

/// A geometry and a range of whole blocks in it.
fn parity_range() -> impl Strategy<Value = (ParityGeometry, u64, u64)> {
    parity_geometry().prop_flat_map(|geometry| {
        let blocks = geometry.array_bytes() / 512;
        (0..blocks).prop_flat_map(move |first| {
            (
                Just(geometry),
                Just(first * 512),
                (0..=(blocks - first).min(4000)).prop_map(|count| count * 512),
            )
        })
    })
}

proptest! {
    #[test]
    fn array_and_member_offsets_are_in_bijection((geometry, offset, _) in parity_range()) {
        let (stripe, within) = geometry.locate(offset);
        prop_assert!(stripe.0 < geometry.stripes() && within < geometry.stripe_bytes());
        prop_assert_eq!(geometry.array_offset(stripe, within), offset);
        let (column, chunk_offset) = geometry.column_of(within);
        let map = geometry.slots(stripe);
        // There and back over the member.
        let slot = map.data_slot(column);
        let member_offset = geometry.member_offset(stripe) + u64::from(chunk_offset);
        prop_assert!(member_offset < geometry.member_bytes());
        prop_assert_eq!(geometry.stripe_of_member_offset(member_offset), (stripe, chunk_offset));
        prop_assert_eq!(map.role(slot), Role::Data(column));
    }

    #[test]
    fn pieces_cover_a_request_once_and_in_order((geometry, offset, length) in parity_range()) {
        let mut done = 0;
        for piece in geometry.pieces(offset, length).unwrap() {
            prop_assert_eq!(piece.request_offset, done);
            prop_assert!(piece.length > 0 && piece.chunk_offset + piece.length <= geometry.chunk_bytes());
            let within = u32::try_from(piece.column).unwrap() * geometry.chunk_bytes() + piece.chunk_offset;
            prop_assert_eq!(geometry.locate(offset + done), (piece.stripe, within));
            done += u64::from(piece.length);
        }
        prop_assert_eq!(done, length);
        let mut done = 0;
        for piece in geometry.stripe_pieces(offset, length).unwrap() {
            prop_assert_eq!(piece.request_offset, done);
            prop_assert!(piece.length > 0 && piece.start + piece.length <= geometry.stripe_bytes());
            prop_assert_eq!(geometry.locate(offset + done), (piece.stripe, piece.start));
            done += u64::from(piece.length);
        }
        prop_assert_eq!(done, length);
    }

    #[test]
    fn sets_hold_what_was_put_in(numbers in prop::collection::btree_set(0usize..64, 0..64)) {
        let set: Set64 = numbers.iter().copied().collect();
        prop_assert_eq!(set.iter().collect::<Vec<_>>(), numbers.iter().copied().collect::<Vec<_>>());
        prop_assert_eq!(set.len(), numbers.len());
    }
}

/// Section 10's RAID0 text, chunk by chunk, with no zones kept: (member, member chunk) of an array chunk.
fn raid0_by_the_book(layout: Raid0Layout, sizes: &[u64], array_chunk: u64) -> (usize, u64) {
    let (mut zone_begin, mut dev_start) = (0, 0);
    loop {
        let members: Vec<usize> = (0..sizes.len()).filter(|&m| sizes[m] > dev_start).collect();
        let smallest = members.iter().map(|&m| sizes[m]).min().unwrap();
        let k = members.len() as u64;
        let zone_chunks = (smallest - dev_start) * k;
        if array_chunk < zone_begin + zone_chunks {
            let relative = array_chunk - zone_begin;
            let picked = if layout == Raid0Layout::Original { array_chunk } else { relative } % k;
            return (members[usize::try_from(picked).unwrap()], dev_start + relative / k);
        }
        (zone_begin, dev_start) = (zone_begin + zone_chunks, smallest);
    }
}

#[test]
fn raid0_zones_follow_both_layouts() {
    for sizes in [&[5u64, 5, 5][..], &[3, 7, 5, 7], &[9, 2, 2, 4, 9, 1], &[1, 10], &[4]] {
        // A chunk that is no power of two, and members with a tail that is not used.
        let bytes: Vec<u64> = sizes.iter().map(|chunks| chunks * 6 * KIB + 512).collect();
        for layout in [Raid0Layout::Original, Raid0Layout::Alternate] {
            let geometry = Raid0Geometry::new(layout, 6 << 10, 512, &bytes).unwrap();
            let chunks: u64 = sizes.iter().sum();
            assert_eq!(geometry.array_bytes(), chunks * 6 * KIB);
            for chunk in 0..chunks {
                let (member, member_chunk) = raid0_by_the_book(layout, sizes, chunk);
                for within in [0, 512, 6 * KIB - 512] {
                    let offset = chunk * 6 * KIB + within;
                    let extent = geometry.map(offset).unwrap();
                    assert_eq!(extent.slot.index(), member, "{sizes:?} {layout:?} chunk {chunk}");
                    assert_eq!(extent.member_offset, member_chunk * 6 * KIB + within);
                    assert_eq!(geometry.array_offset(extent.slot, extent.member_offset), Some(offset));
                    // What it calls contiguous is.
                    let last = geometry.map(offset + extent.length - 512).unwrap();
                    assert_eq!(last.slot, extent.slot);
                    assert_eq!(last.member_offset, extent.member_offset + extent.length - 512);
                    assert!(extent.length >= 6 * KIB - within);
                }
            }
            assert_eq!(geometry.map(geometry.array_bytes()), None);
            for (slot, &member_chunks) in (0u8..).zip(sizes) {
                assert_eq!(geometry.array_offset(MemberSlot(slot), member_chunks * 6 * KIB), None);
            }
        }
    }
}

#[test]
fn raid0_layouts_differ_only_where_they_must() {
    let make = |layout, sizes: &[u64]| Raid0Geometry::new(layout, 4096, 512, sizes).unwrap();
    for (sizes, same) in [
        (&[3 * 4096, 3 * 4096][..], true),
        (&[4096, 8192], true),
        (&[4096, 8192, 8192], false),
        (&[8192; 5], true),
    ] {
        let (original, alternate) = (make(Raid0Layout::Original, sizes), make(Raid0Layout::Alternate, sizes));
        let equal = (0..original.array_bytes()).step_by(4096).all(|at| original.map(at) == alternate.map(at));
        assert_eq!(equal, same, "{sizes:?}");
        assert_eq!(original.is_layout_irrelevant(), same);
    }
}

#[test]
fn raid0_extents_cover_a_request() {
    let geometry = Raid0Geometry::new(Raid0Layout::Original, 4096, 512, &[8192, 16384, 65536]).unwrap();
    let extents: Vec<Extent> = geometry.extents(3584, geometry.array_bytes() - 4096).unwrap().collect();
    assert_eq!(extents.iter().map(|extent| extent.length).sum::<u64>(), geometry.array_bytes() - 4096);
    assert_eq!(extents[0], Extent { slot: MemberSlot(0), member_offset: 3584, length: 512 });
    // The last zone is one member wide, hence one run.
    assert_eq!(extents.last().unwrap().length, 65536 - 16384 - 512);
    assert!(geometry.extents(0, geometry.array_bytes() + 512).is_err());
}
