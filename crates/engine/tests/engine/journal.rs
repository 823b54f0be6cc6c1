//! The journal: the kernel's on golden images, and ours in the simulated world.

use crate::arrays::{self, BLOCK, Golden, golden_array, options, read_only};
use pinstripe_engine::{
    array::{CommandError, Policy},
    assembly::{AssembleError, JournalProblem},
    geometry::{Geometry, ParityGeometry},
    options::ArrayOptions,
};
use pinstripe_md::{
    identity::Uuid,
    journal::{BLOCK_SECTORS, JournalEntry, JournalWalk, MetaBlock, Payload, Seed},
    superblock::Role,
    units::Sector,
};
use pinstripe_runtime::memory::Memory;

/// The journal device of the golden images.
const JOURNAL: usize = 4;

/// A golden array's journal, block by block.
struct Ring<'g> {
    golden: &'g Golden,
    start: u64,
    seed: Seed,
}

impl<'g> Ring<'g> {
    fn of(golden: &'g Golden) -> Self {
        let superblock = golden.superblock(JOURNAL);
        assert_eq!(superblock.own_role(), Role::Journal);
        let seed = Seed::new(superblock.array.set_uuid);
        Self { golden, start: superblock.member.data_offset.0 * 512, seed }
    }

    fn block(&self, at: Sector) -> Vec<u8> {
        let offset = self.start + at.0 * 512;
        self.golden.bytes(JOURNAL, offset..offset + BLOCK as u64)
    }

    fn put(&self, at: Sector, bytes: &[u8]) {
        self.golden.members[JOURNAL].copy_in(self.start + at.0 * 512, bytes).unwrap();
    }

    /// What a walk from `tail` finds.
    fn entries(&self, tail: Sector) -> Vec<JournalEntry> {
        let superblock = self.golden.superblock(JOURNAL);
        let mut walk =
            JournalWalk::new(superblock.array.set_uuid, superblock.member.data_size, tail).unwrap();
        std::iter::from_fn(|| walk.step(&self.block(walk.position()))).collect()
    }

    fn tail(&self) -> Sector {
        self.golden.superblock(JOURNAL).member.journal_tail.unwrap()
    }

    fn set_tail(&self, tail: Sector) {
        self.golden.change(JOURNAL, |superblock| superblock.member.journal_tail = Some(tail));
    }

    /// Writes a meta block and its pages. Returns where the next one goes.
    fn append(&self, at: Sector, seq: u64, payloads: Vec<(Payload, Vec<Vec<u8>>)>) -> Sector {
        let (payloads, pages): (Vec<_>, Vec<_>) = payloads.into_iter().unzip();
        let meta = MetaBlock { seq, position: at, payloads }.encode(self.seed).unwrap();
        let mut next = at;
        for block in std::iter::once(meta).chain(pages.into_iter().flatten()) {
            self.put(next, &block);
            next = Sector(next.0 + BLOCK_SECTORS);
        }
        next
    }

    fn data(&self, block: u64, page: &[u8]) -> (Payload, Vec<Vec<u8>>) {
        let checksums = vec![self.seed.checksum(page)];
        (Payload::Data { location: Sector(block * 8), checksums, discard: false }, vec![page.to_vec()])
    }
}

fn geometry(golden: &Golden) -> ParityGeometry {
    let served = golden.serve(&golden.all(), read_only()).unwrap();
    let Geometry::Parity(geometry) = &served.array.shared().geometry else { panic!("no parity") };
    *geometry
}

/// Overwrites what a log describes on the members, as if it had never got there.
fn forget(golden: &Golden, geometry: &ParityGeometry, entries: &[JournalEntry]) -> usize {
    let mut forgotten = 0;
    let mut spoil = |slot: usize, sector: u64| {
        let data = golden.superblock(slot).member.data_offset.0 * 512;
        golden.members[slot].copy_in(data + sector * 512, &[0xe5; BLOCK]).unwrap();
        forgotten += 1;
    };
    for payload in entries.iter().flat_map(|entry| &entry.meta.payloads) {
        match payload {
            Payload::Data { location, .. } => {
                let (stripe, within) = geometry.locate(location.0 * 512);
                let (column, start) = geometry.column_of(within);
                let slot = geometry.slots(stripe).data_slot(column).index();
                spoil(slot, (geometry.member_offset(stripe) + u64::from(start)) / 512);
            }
            Payload::Parity { location, .. } => {
                let (stripe, _) = geometry.stripe_of_member_offset(location.0 * 512);
                spoil(geometry.slots(stripe).p_slot().index(), location.0);
            }
            Payload::Flush { .. } => panic!("a write-through journal has none"),
        }
    }
    forgotten
}

/// Complete, and with any member missing.
fn read_in_every_way(golden: &Golden) {
    golden.read_all(&golden.all(), read_only());
    for lost in 0..JOURNAL {
        let left: Vec<usize> = golden.all().into_iter().filter(|&m| m != lost).collect();
        golden.read_all(&left, read_only());
    }
}

#[test]
fn a_journal_stopped_cleanly_is_replayed_and_emptied() {
    for name in ["r5-journal-clean", "replay-journal-after"] {
        let golden = golden_array(name);
        let before = Ring::of(&golden).tail();
        let mut served = golden.read_all(&golden.all(), options());
        assert_eq!(served.check(), 0);
        served.stop();
        let ring = Ring::of(&golden);
        let entries = ring.entries(ring.tail());
        assert!(ring.tail() > before);
        assert!(entries.iter().all(|entry| entry.pages.is_empty()), "{name}: the journal is empty");
        read_in_every_way(&golden);
    }
}

#[test]
fn a_clean_journal_array_can_be_read_without_a_change() {
    for name in ["r5-journal-clean", "replay-journal-after"] {
        let golden = golden_array(name);
        read_in_every_way(&golden);
        golden.assert_untouched();
    }
}

/// The kernel's whole log is laid on members that have lost all that it describes.
#[test]
fn the_kernels_journal_is_replayed() {
    let golden = golden_array("r5-journal-clean");
    let geometry = geometry(&golden);
    let ring = Ring::of(&golden);
    let history = ring.entries(Sector(8));
    assert!(history.len() > 100);
    ring.set_tail(history[0].meta.position);
    assert!(forget(&golden, &geometry, &history) > 1000);
    // What is only in the journal can't be read without writing.
    let refused = golden.serve(&golden.all(), read_only()).err().unwrap();
    let AssembleError::Journal { problem: JournalProblem::NotOnMembers { .. }, .. } = refused else {
        panic!("{refused}")
    };
    let mut served = golden.read_all(&golden.all(), options());
    assert_eq!(served.check(), 0);
    served.stop();
    read_in_every_way(&golden);
}

#[test]
fn the_kernels_journal_is_replayed_with_a_member_missing() {
    for lost in 0..JOURNAL {
        let golden = golden_array("r5-journal-clean");
        let geometry = geometry(&golden);
        let ring = Ring::of(&golden);
        let history = ring.entries(Sector(8));
        ring.set_tail(history[0].meta.position);
        forget(&golden, &geometry, &history);
        let left: Vec<usize> = golden.all().into_iter().filter(|&m| m != lost).collect();
        golden.read_all(&left, options()).stop();
    }
}

#[test]
fn a_page_that_was_not_completely_logged_ends_the_log() {
    let golden = golden_array("r5-journal-clean");
    let ring = Ring::of(&golden);
    let last = ring.entries(ring.tail()).pop().unwrap();
    let at = Sector(last.pages.last().unwrap().0.0 + BLOCK_SECTORS);
    let seq = last.meta.seq + 1;
    // The page of this data never arrived; the meta block behind it did.
    let (payload, _) = ring.data(3, &[0x77; BLOCK]);
    let next = ring.append(at, seq, vec![(payload, vec![vec![0; BLOCK]])]);
    ring.append(next, seq + 1, vec![ring.data(4, &[0x78; BLOCK])]);
    let mut served = golden.read_all(&golden.all(), options());
    assert_eq!(served.check(), 0);
}

/// As a write-back journal leaves it: data is only in the log, and no parity goes with it.
#[test]
fn data_without_parity_is_replayed_with_parity_of_our_own() {
    for lost in [None, Some(0), Some(1), Some(2), Some(3)] {
        let golden = golden_array("r5-journal-clean");
        let ring = Ring::of(&golden);
        let last = ring.entries(ring.tail()).pop().unwrap();
        let at = Sector(last.pages.last().unwrap().0.0 + BLOCK_SECTORS);
        let pages: Vec<(u64, [u8; BLOCK])> = [5, 6, 77, 200, 201, 8000, 8440]
            .map(|block| (block, [u8::try_from(block % 200).unwrap(); BLOCK]))
            .into();
        let data = pages.iter().map(|(block, page)| ring.data(*block, page)).collect();
        // Written twice: the later one counts.
        let next = ring.append(
            at,
            last.meta.seq + 1,
            vec![ring.data(77, &[0xdd; BLOCK]), ring.data(5, &[1; BLOCK])],
        );
        ring.append(next, last.meta.seq + 2, data);
        let left: Vec<usize> = golden.all().into_iter().filter(|&m| Some(m) != lost).collect();
        let mut served = golden.serve(&left, options()).unwrap();
        let expect = |served: &mut arrays::Served| {
            for (block, page) in &pages {
                assert!(
                    served.read(block * BLOCK as u64, BLOCK).unwrap() == *page,
                    "block {block} without {lost:?}"
                );
            }
            let mut neighbour = vec![0; BLOCK];
            golden.case.fill(7, &mut neighbour);
            assert!(served.read(7 * BLOCK as u64, BLOCK).unwrap() == neighbour);
        };
        expect(&mut served);
        if lost.is_none() {
            assert_eq!(served.check(), 0);
        }
        served.stop();
        drop(served);
        if lost.is_none() {
            for other in 0..JOURNAL {
                let left: Vec<usize> = golden.all().into_iter().filter(|&m| m != other).collect();
                expect(&mut golden.serve(&left, read_only()).unwrap());
            }
        }
    }
}

#[test]
fn a_flush_payload_makes_what_came_before_void() {
    let golden = golden_array("r5-journal-clean");
    let geometry = geometry(&golden);
    let ring = Ring::of(&golden);
    let last = ring.entries(ring.tail()).pop().unwrap();
    let at = Sector(last.pages.last().unwrap().0.0 + BLOCK_SECTORS);
    let (stripe, within) = geometry.locate(5 * BLOCK as u64);
    let (_, start) = geometry.column_of(within);
    let row = Sector((geometry.member_offset(stripe) + u64::from(start)) / 512);
    // Not what the members hold; but the log says that what they hold is newer.
    let next = ring.append(at, last.meta.seq + 1, vec![ring.data(5, &[1; BLOCK])]);
    ring.append(next, last.meta.seq + 2, vec![(Payload::Flush { stripes: vec![row] }, vec![])]);
    let mut served = golden.read_all(&golden.all(), options());
    assert_eq!(served.check(), 0);
}

#[test]
fn the_journal_is_no_newcomer_whatever_it_is_called() {
    let golden = golden_array("r5-journal-clean");
    let mut served = golden.serve(&golden.all(), options()).unwrap();
    let (array, journal) = (served.array.clone(), golden.source(JOURNAL));
    let added = served.run("add", async move { array.add(journal, Uuid([0x77; 16])).await });
    assert!(matches!(added, Err(CommandError::AlreadyMember(_))), "{added:?}");
    served.stop();
    assert_eq!(golden.superblock(JOURNAL).own_role(), Role::Journal);
}

#[test]
fn no_other_policy_takes_a_journals_place() {
    let golden = golden_array("r5-journal-clean");
    let mut served = golden.serve(&golden.all(), options()).unwrap();
    for policy in [Policy::Resync, Policy::Bitmap, Policy::Ppl, Policy::DoubleParityLog] {
        let array = served.array.clone();
        let refused = served.run("policy", async move { array.set_policy(policy).await });
        assert!(matches!(refused, Err(CommandError::Policy(_))), "{}: {refused:?}", policy.name());
        assert_eq!(served.array.detail().consistency_policy, "journal");
    }
}

#[test]
fn a_journal_array_without_its_journal_is_refused() {
    let golden = golden_array("r5-journal-clean");
    let error = golden.serve(&[0, 1, 2, 3], options()).err().unwrap();
    assert!(matches!(error, AssembleError::JournalMissing), "{error}");
    golden.change(JOURNAL, |superblock| superblock.array.events -= 2);
    let error = golden.serve(&golden.all(), options()).err().unwrap();
    assert!(matches!(error, AssembleError::JournalMissing), "a stale one is as good as none: {error}");
    golden.change_all(|superblock| superblock.array.events = 90);
    golden.serve(&golden.all(), ArrayOptions { read_only: true, ..options() }).unwrap();
}

/// Under a load that ends in a crash the copy and the journal are of one update, and have another tail.
#[test]
fn a_journal_and_its_copy_are_not_chosen_between() {
    let mut golden = golden_array("r5-journal-clean");
    let copy = Memory::new(golden.members[JOURNAL].size()).unwrap();
    copy.copy_in(0, &golden.bytes(JOURNAL, 0..golden.members[JOURNAL].size() as u64)).unwrap();
    golden.members.push(copy);
    for order in [[0, 1, 2, 3, JOURNAL, 5], [0, 1, 2, 3, 5, JOURNAL]] {
        let refused = golden.serve(&order, options()).err().unwrap();
        assert!(matches!(refused, AssembleError::Duplicate { .. }), "{refused}");
    }
    golden.change(5, |superblock| superblock.array.events -= 2);
    golden.read_all(&[0, 1, 2, 3, 5, JOURNAL], options());
}

#[test]
fn a_journal_tail_that_is_no_meta_block_is_refused() {
    let golden = golden_array("r5-journal-clean");
    let ring = Ring::of(&golden);
    ring.set_tail(Sector(1 << 40));
    let error = golden.serve(&golden.all(), options()).err().unwrap();
    assert!(matches!(error, AssembleError::Journal { problem: JournalProblem::Tail(_), .. }), "{error}");
    let empty = Sector(22520);
    ring.put(empty, &[0; BLOCK]);
    ring.set_tail(empty);
    let error = golden.serve(&golden.all(), options()).err().unwrap();
    assert!(matches!(error, AssembleError::Journal { problem: JournalProblem::Damaged(_), .. }), "{error}");
}

#[test]
fn what_a_journal_says_of_other_places_than_the_array_has_is_refused() {
    for payload in [
        Payload::Data { location: Sector(1 << 50), checksums: vec![1], discard: false },
        Payload::Data { location: Sector(u64::MAX), checksums: vec![1], discard: false },
        Payload::Data { location: Sector(4), checksums: vec![1], discard: false },
        Payload::Parity { location: Sector(22528), checksums: vec![1], discard: false },
        Payload::Parity { location: Sector(8), checksums: vec![1, 2], discard: false },
    ]
    .into_iter()
    .flat_map(|payload| [(payload.clone(), false), (payload, true)])
    {
        let (payload, goes_on) = payload;
        let golden = golden_array("r5-journal-clean");
        let ring = Ring::of(&golden);
        let page = vec![9; BLOCK];
        let sum = ring.seed.checksum(&page);
        let payload = match payload {
            Payload::Data { location, .. } => {
                Payload::Data { location, checksums: vec![sum], discard: false }
            }
            Payload::Parity { location, checksums, .. } => {
                Payload::Parity { location, checksums: vec![sum; checksums.len()], discard: false }
            }
            flush @ Payload::Flush { .. } => flush,
        };
        let pages = vec![page; payload.page_checksums().len()];
        let next = ring.append(ring.tail(), 5, vec![(payload, pages)]);
        if goes_on {
            ring.append(next, 6, vec![ring.data(3, &[0x77; BLOCK])]);
        }
        let error = golden.serve(&golden.all(), options()).err().unwrap();
        assert!(
            matches!(error, AssembleError::Journal { problem: JournalProblem::Outside(_), .. }),
            "{error}"
        );
    }
}
