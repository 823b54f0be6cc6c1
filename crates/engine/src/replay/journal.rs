//! Replay: what the journal describes is brought to the members before anything else is done with them.
//!
//! The log is walked from its tail, as the kernel walks it, and what it says is gathered by row of 4 KiB, the
//! latest copy of each page counting. A row's data with the parity logged behind it is *whole*; data behind
//! which no parity came is *loose* (a write-back journal leaves such, and so does a write-through one where a
//! crash came in the middle of a row or where the parity's member was missing).
//!
//! 1. Whole rows are written to the members, and so are rows with no parity member present.
//! 2. If rows are loose, their parity is computed from what the members hold besides, and they are logged
//!    once more, now whole, behind the end of the log and with a jump in the sequence. When that is durable,
//!    and the members are flushed, the tail moves there, and 1 follows for them. If they were written to the
//!    members at once, a crash in the middle and then a lost member would leave rows with parity that matches
//!    neither old nor new data.
//!    Where too much of a row can't be read, there is no such parity. Then its parity is listed as bad, and
//!    the row is one of those of 1 that have none.
//! 3. All members are flushed, an empty meta block with a jump in the sequence is written behind the log, and
//!    the tail moves to it (C4).
//!
//! A page may have no place: its member is out or lists the place as bad, and parity doesn't make it good. Or
//! its row has no parity, as in 2, and not all members are there. Such pages stand behind the log instead of
//! the empty meta block, and are cached.
//!
//! Where members have listed blocks as bad, or have taken such blocks again, their lists say so before the
//! tail moves: until then only the log has what is in them.
//!
//! Loose data that is on the members already would be harmful where older parity of its row stands before it.
//! So a rebuild begins when the log is given up that is there by then (`Journal::give_up`).
//!
//! A crash at any point is harmless: until the tail moves, the log is as it was, and all of this only writes
//! what the log says, so it can be done again. The jump in the sequence makes sure that blocks of earlier
//! rounds, which lie behind the end of the log, are never taken for its continuation. (The kernel jumps by
//! 10000 too.)

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use pinstripe_md::{
    journal::{BLOCK_BYTES, BLOCK_SECTORS, JournalEntry, JournalWalk, Payload},
    units::{SECTOR_BYTES, Sector},
};
use pinstripe_runtime::{Buffer, DeviceError, DeviceErrorKind, Slice, SubmissionSet, shard};

use crate::{
    assembly::{AssembleError, Found, JournalProblem},
    consistency::journal::{
        Resume,
        ring::{Page, PageAddress, Ring, blocks_max},
    },
    error::{IoError, Operation},
    geometry::{MEMBERS_MAX, ParityGeometry, Set64, StripeId, StripeMap},
    io::{
        parity::ParityVolume,
        row::{RowRange, Want},
        volume::Volume,
    },
    members::Member,
    membership::snapshot::View,
    mutants::{Mutant, active},
    replay::members::{is_listed, write_but_for},
    stripe::decode::encode,
    units::to_u32,
};

/// How far the sequence jumps after a replay.
pub(crate) const SEQUENCE_JUMP: u64 = 10_000;
/// Rows that are written to the members at a time.
const ROWS_AT_A_TIME: usize = 64;

/// A page in the ring.
#[derive(Clone, Copy)]
struct Logged {
    at: Sector,
    checksum: u32,
}

/// What the log says of a row of 4 KiB.
#[derive(Default)]
struct LoggedPages {
    /// By column: data that the parity covers.
    data: BTreeMap<usize, Logged>,
    /// P and Q.
    parity: Vec<Logged>,
    /// By column: data that came later, without parity.
    loose: BTreeMap<usize, Logged>,
}

/// A log from its tail to its end.
struct Log {
    /// By member sector.
    rows: BTreeMap<u64, LoggedPages>,
    /// Where the next meta block would be.
    end: Sector,
    /// Of the last meta block.
    seq: u64,
    /// Blocks from the tail to the end.
    blocks: u64,
}

/// A page that is being written, at a byte of the device at a place.
struct Write {
    place: usize,
    at: u64,
    bytes: Slice,
}

struct Replay<'a> {
    volume: &'a ParityVolume,
    geometry: &'a ParityGeometry,
    journal: &'a mut Found,
    ring: Ring,
    view: Rc<View>,
    /// By slot: from where on, in bytes, its member has yet to be rebuilt.
    unbuilt: &'a [Option<u64>],
}

/// What has become of a log.
pub(crate) enum Replayed {
    /// Everything that has a place is on the members, flushed. The log is to be [emptied](empty).
    Written(Written),
    /// The log is as it was. Parity of these rows, by member sector, can't be computed: more of their data
    /// can't be read than parity makes good. They can be written when their parity is listed as bad.
    Unmade(Vec<u64>),
}

/// A log of which everything is on the members that has a place there.
pub(crate) struct Written {
    log: Log,
    /// What has none, by stripe, and by where it begins in the stripe's data.
    kept: Kept,
}

/// Pages by stripe, and by where they begin in the stripe's data.
pub(crate) type Kept = BTreeMap<u64, Vec<(u32, Slice)>>;

/// The parity of a row of which some data is loose.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parity {
    /// Computed of what was read.
    OfRead,
    /// Computed of what was in part made of the old parity. Not to be done again when some of it is written.
    OfMade,
    /// Too much can't be read.
    Unmade,
}

/// What has become of loose rows.
enum Loose {
    /// There are none any more.
    Gone,
    /// They are logged anew, from here on.
    Logged(Sector),
    /// See [`Replayed::Unmade`].
    Unmade(Vec<u64>),
}

/// The volume that `journal` belongs to, if its level can have one.
pub(crate) fn volume_of<'a>(
    volume: &'a Volume,
    journal: &Found,
) -> Result<&'a Rc<ParityVolume>, AssembleError> {
    volume.parity().ok_or_else(|| problem(journal, JournalProblem::NoParity))
}

/// Brings everything that `journal` describes to the members. `unmade`: rows, by member sector, of which
/// the parity can be neither computed nor listed. `unbuilt`: by slot, from which byte on its member has yet
/// to be rebuilt. `settle` has the superblocks and the members' lists know what was reported of members, and
/// says whether the membership is another since.
pub(crate) async fn replay(
    volume: &ParityVolume,
    journal: &mut Found,
    unmade: &BTreeSet<u64>,
    unbuilt: &[Option<u64>],
    settle: impl AsyncFn(&mut Found) -> Result<bool, AssembleError>,
) -> Result<Replayed, AssembleError> {
    // Nor is it tried again whether a row can be made of which something was kept: what is kept is loose in
    // the next walk, and so two rows could take turns for ever.
    let mut left = unmade.clone();
    loop {
        let mut replay = Replay { unbuilt, ..Replay::new(volume, journal) };
        let log = replay.walk().await?;
        replay.write_whole_rows(&log).await?;
        replay.flush().await?;
        if replay.has_reports() && settle(replay.journal).await? {
            continue;
        }
        match replay.log_loose_rows(&log, &mut left).await? {
            // Some may just have been written, where the ring has no room for them.
            Loose::Gone if replay.has_reports() && settle(replay.journal).await? => {}
            Loose::Gone => {
                let kept = replay.without_a_place(&log, &left).await?;
                return Ok(Replayed::Written(Written { log, kept }));
            }
            Loose::Logged(tail) => replay.record_tail(tail).await?,
            Loose::Unmade(rows) => return Ok(Replayed::Unmade(rows)),
        }
    }
}

/// Empties a log, but for what is kept.
pub(crate) async fn empty(
    volume: &ParityVolume,
    journal: &mut Found,
    Written { log, kept }: Written,
) -> Result<(Resume, Kept), AssembleError> {
    let resume = Replay::new(volume, journal).empty(&log, &kept).await?;
    Ok((resume, kept))
}

/// Whether the members hold all that `journal` describes: only then may the array be read without writing to
/// it. Data is compared as a reader of the array would see it, so a missing member's data is compared through
/// its reconstruction.
pub(crate) async fn members_hold_everything(
    volume: &ParityVolume,
    journal: &mut Found,
) -> Result<(), AssembleError> {
    let replay = Replay::new(volume, journal);
    let log = replay.walk().await?;
    for (&sector, row) in &log.rows {
        replay.compare_row(sector, row).await?;
    }
    Ok(())
}

impl<'a> Replay<'a> {
    fn new(volume: &'a ParityVolume, journal: &'a mut Found) -> Self {
        let ring = Ring::new(&journal.superblock);
        let view = volume.members.view();
        Self { volume, geometry: &volume.geometry, journal, ring, view, unbuilt: &[] }
    }

    fn refuse(&self, which: JournalProblem) -> AssembleError {
        problem(self.journal, which)
    }

    async fn read_ring(&self, at: Sector, blocks: u64) -> Result<Buffer, AssembleError> {
        let read = self.ring.read(&*self.journal.device, at, blocks).await;
        read.map_err(|error| self.refuse(JournalProblem::Read(error)))
    }

    /// Walks the log from its tail to its end.
    async fn walk(&self) -> Result<Log, AssembleError> {
        let tail = self.journal.superblock.member.journal_tail.unwrap_or(Sector(0));
        let mut walk: JournalWalk =
            self.ring.walk(tail).ok_or_else(|| self.refuse(JournalProblem::Tail(tail)))?;
        let mut log = Log { rows: BTreeMap::new(), end: tail, seq: 0, blocks: 0 };
        let mut last: Option<JournalEntry> = None;
        loop {
            let block = self.read_ring(walk.position(), 1).await?;
            let Some(entry) = walk.step(&block) else { break };
            if !self.is_whole(&entry).await? && !active(Mutant::JournalChecksumIgnored) {
                // It was being written when the host stopped: nothing of it had gone to the members.
                break;
            }
            (log.end, log.seq) = (walk.position(), entry.meta.seq);
            log.blocks += 1 + entry.pages.len() as u64;
            if let Some(before) = last.replace(entry) {
                self.gather(&mut log, &before)?;
            }
        }
        // There is always a meta block at the tail, if only an empty one.
        let last = last.ok_or_else(|| self.refuse(JournalProblem::Damaged(tail)))?;
        if !active(Mutant::ReplayStopsEarly) {
            self.gather(&mut log, &last)?;
        }
        Ok(log)
    }

    async fn is_whole(&self, entry: &JournalEntry) -> Result<bool, AssembleError> {
        let Some(&(first, _)) = entry.pages.first() else { return Ok(true) };
        let bytes = self.read_ring(first, entry.pages.len() as u64).await?;
        let mut pages = bytes.chunks_exact(BLOCK_BYTES).zip(&entry.pages);
        Ok(pages.all(|(page, (_, checksum))| self.ring.seed.checksum(page) == *checksum))
    }

    /// Enters what a meta block says.
    fn gather(&self, log: &mut Log, entry: &JournalEntry) -> Result<(), AssembleError> {
        let mut pages = entry.pages.iter().map(|&(at, checksum)| Logged { at, checksum });
        for payload in &entry.meta.payloads {
            match payload {
                Payload::Data { discard: true, location, .. }
                | Payload::Parity { discard: true, location, .. } => {
                    return Err(self.refuse(JournalProblem::Discard(*location)));
                }
                // One page each: `MetaBlock::decode` takes no other.
                Payload::Data { location, checksums, .. } => {
                    for page in pages.by_ref().take(checksums.len()) {
                        let (row, column) = self.place_of(*location)?;
                        log.rows.entry(row).or_default().loose.insert(column, page);
                    }
                }
                Payload::Parity { location, checksums, .. } => {
                    let is_in_array = location.0.is_multiple_of(BLOCK_SECTORS)
                        && location.0 < self.geometry.member_bytes() / SECTOR_BYTES;
                    if !is_in_array || checksums.len() != self.geometry.redundancy() {
                        return Err(self.refuse(JournalProblem::Outside(*location)));
                    }
                    let row = log.rows.entry(location.0).or_default();
                    row.data.append(&mut row.loose);
                    row.parity = pages.by_ref().take(checksums.len()).collect();
                }
                Payload::Flush { stripes } => {
                    for stripe in stripes {
                        log.rows.remove(&stripe.0);
                    }
                }
            }
        }
        Ok(())
    }

    /// The row, as a member sector, and the column of an array sector.
    fn place_of(&self, sector: Sector) -> Result<(u64, usize), AssembleError> {
        let offset = sector
            .0
            .checked_mul(SECTOR_BYTES)
            .filter(|&offset| offset < self.geometry.array_bytes() && sector.0.is_multiple_of(BLOCK_SECTORS));
        let offset = offset.ok_or_else(|| self.refuse(JournalProblem::Outside(sector)))?;
        let (stripe, within) = self.geometry.locate(offset);
        let (column, start) = self.geometry.column_of(within);
        Ok(((self.geometry.member_offset(stripe) + u64::from(start)) / SECTOR_BYTES, column))
    }

    /// The stripe of a row, its map, and the row's place in the chunk.
    fn stripe_of(&self, row: u64) -> (StripeId, StripeMap, u32) {
        let (stripe, start) = self.geometry.stripe_of_member_offset(row * SECTOR_BYTES);
        (stripe, self.geometry.slots(stripe), start)
    }

    /// A page of the log, whole.
    async fn page(&self, page: Logged) -> Result<Slice, AssembleError> {
        let bytes = self.read_ring(page.at, 1).await?;
        if self.ring.seed.checksum(&bytes) != page.checksum && !active(Mutant::JournalChecksumIgnored) {
            return Err(self.refuse(JournalProblem::Damaged(page.at)));
        }
        Ok(bytes.freeze())
    }

    /// Whether a row's parity is on no member. Such rows are logged without parity, and written so. Where the
    /// member has yet to be rebuilt, the rebuild makes it of what is written.
    fn is_bare(&self, sector: u64) -> bool {
        let (_, map, _) = self.stripe_of(sector);
        let offset = sector * SECTOR_BYTES;
        let is_unbuilt =
            |slot: usize| self.unbuilt.get(slot).is_some_and(|from| from.is_some_and(|from| from <= offset));
        let has_none =
            |slot| is_unbuilt(slot) || self.view.snapshot.has_none_of(slot, offset, PAGE_BYTES.into());
        map.parity_slots().all(|slot| has_none(slot.index()))
    }

    /// Step 1.
    async fn write_whole_rows(&self, log: &Log) -> Result<(), AssembleError> {
        let mut writes = SubmissionSet::default();
        let begun = self.begin_whole_rows(log, &mut writes).await;
        // Behind an error, too: what is under way must not land after a start that does without the journal
        // (C16).
        // What fails late counts first: it is not to be taken for an error of the journal.
        self.finish(&mut writes).await.and(begun)
    }

    /// The writes of the last rows are still under way when this returns.
    async fn begin_whole_rows(
        &self,
        log: &Log,
        writes: &mut SubmissionSet<Write>,
    ) -> Result<(), AssembleError> {
        let mut waiting = 0;
        for (&sector, row) in &log.rows {
            let is_bare = self.is_bare(sector);
            if row.parity.is_empty() && !is_bare {
                continue;
            }
            let (_, map, _) = self.stripe_of(sector);
            // Parity before loose data is void.
            let parity = map.parity_slots().filter(|_| !is_bare || row.loose.is_empty());
            let mut latest = row.data.clone();
            if is_bare {
                latest.extend(&row.loose);
            }
            let data = latest.iter().map(|(&column, page)| (map.data_slot(column), *page));
            for (slot, page) in data.chain(parity.zip(row.parity.iter().copied())) {
                for place in self.view.places(slot.index()) {
                    let bytes = self.page(page).await?;
                    self.submit(place, sector, bytes, writes);
                }
            }
            waiting += 1;
            if waiting == ROWS_AT_A_TIME {
                self.finish(writes).await?;
                waiting = 0;
            }
        }
        Ok(())
    }

    /// Begins to write a page of a row to the member at a place, if there is one.
    fn submit(&self, place: usize, sector: u64, bytes: Slice, writes: &mut SubmissionSet<Write>) {
        if let Some((member, device)) = self.view.member(place) {
            let at = member.data_offset + sector * SECTOR_BYTES;
            let write = device.write(at, bytes.clone(), false);
            writes.push(Write { place, at, bytes }, write);
        }
    }

    /// Waits for writes; the first that failed is the answer. What a member has refused is written once more,
    /// but for blocks that it lists, or can list.
    async fn finish(&self, writes: &mut SubmissionSet<Write>) -> Result<(), AssembleError> {
        writes.wait().await;
        let mut result = Ok(());
        for (Write { place, at, bytes }, outcome) in writes.drain() {
            let Some((member, device)) = self.view.member(place) else { continue };
            let offset = at - member.data_offset;
            let mut written = outcome.result.map(|_| Vec::new());
            if let Err(error @ DeviceError { kind: DeviceErrorKind::Media, .. }) = written {
                let listed = member.bad_blocks.table();
                let is_spared = |at: u64, length: usize| {
                    let block = (at - member.data_offset, length as u64);
                    is_listed(&listed, at, length) || self.list(place, member, block, error)
                };
                written = write_but_for(&**device, at, &bytes, false, is_spared).await;
            }
            match written {
                // It may be off its member's list by then: with no parity nothing else has it.
                Ok(spared) if spared.is_empty() => {
                    self.volume.note_written(&self.view, place, offset, bytes.len() as u64);
                }
                Ok(spared) => {
                    let block = device.info().logical_block;
                    let starts = (at..at + bytes.len() as u64).step_by(block as usize);
                    for start in starts.filter(|start| !spared.contains(start)) {
                        self.volume.note_written(&self.view, place, start - member.data_offset, block.into());
                    }
                }
                Err(error) => {
                    let name = member.name.clone();
                    result = result.and(Err(AssembleError::Replay { name, error }));
                }
            }
        }
        result
    }

    /// Has a block listed that its member refuses, as a write of the array would. A member without a list is
    /// dropped for it, as is the target of a replacement. False if the array can't do without it.
    fn list(&self, place: usize, member: &Member, block: (u64, u64), error: DeviceError) -> bool {
        let snapshot = &self.view.snapshot;
        let is_target = place >= snapshot.seats.len();
        if self.volume.can_list(&self.view, place, error) {
            self.volume.list_bad(member, place, block, error);
        } else if is_target || snapshot.missing.len() < self.geometry.redundancy() {
            self.volume.members.report_data(&self.view, place, Operation::Write, block.0, error);
        } else {
            return false;
        }
        true
    }

    /// Whether something was reported of a member.
    fn has_reports(&self) -> bool {
        let shared = &self.volume.shared;
        !shared.bad_reports.is_empty() || shared.has_failures()
    }

    /// What has no place on the members. Everything else is there, flushed, and their lists know.
    async fn without_a_place(&self, log: &Log, left: &BTreeSet<u64>) -> Result<Kept, AssembleError> {
        let mut kept = Kept::new();
        for (&sector, row) in &log.rows {
            let (stripe, map, start) = self.stripe_of(sector);
            let lost = self.volume.lost_slots(&self.view, stripe, (start, start + PAGE_BYTES));
            let is_lost = |column: usize| lost.contains(map.data_slot(column).index());
            let latest: BTreeMap<usize, Logged> =
                row.data.iter().chain(&row.loose).map(|(&column, &page)| (column, page)).collect();
            for (column, page) in latest {
                if is_lost(column) || left.contains(&sector) && row.loose.contains_key(&column) {
                    let start = to_u32(column) * self.geometry.chunk_bytes() + start;
                    kept.entry(stripe.0).or_default().push((start, self.page(page).await?));
                }
            }
        }
        Ok(kept)
    }

    /// The rows of what is kept, by member sector.
    fn rows_of(&self, kept: &Kept) -> impl Iterator<Item = u64> {
        let base = |stripe| self.geometry.member_offset(StripeId(stripe));
        let row = |(start, _): &(u32, Slice)| u64::from(*start % self.geometry.chunk_bytes());
        kept.iter().flat_map(move |(&stripe, pages)| {
            pages.iter().map(move |page| (base(stripe) + row(page)) / SECTOR_BYTES)
        })
    }

    /// What is kept, to be logged.
    fn pages_of(&self, kept: &Kept) -> Vec<Page> {
        let page = |stripe, (start, bytes): &(u32, Slice)| {
            let place = self.geometry.array_offset(StripeId(stripe), *start) / SECTOR_BYTES;
            Page { place: PageAddress::Data(Sector(place)), bytes: bytes.clone(), ends_row: true }
        };
        kept.iter().flat_map(|(&stripe, pages)| pages.iter().map(move |of| page(stripe, of))).collect()
    }

    /// Flushes every member.
    async fn flush(&self) -> Result<(), AssembleError> {
        let failed = self.volume.flush_members(&self.view).await;
        failed.into_iter().next().map_or(Ok(()), |(slot, error)| {
            let name = self.view.member(slot).map_or_else(String::new, |(member, _)| member.name.clone());
            Err(AssembleError::Replay { name, error })
        })
    }

    /// Step 2: logs loose rows anew, whole.
    async fn log_loose_rows(&mut self, log: &Log, left: &mut BTreeSet<u64>) -> Result<Loose, AssembleError> {
        let is_loose = |sector: &u64, row: &LoggedPages| {
            !row.loose.is_empty() && !self.is_bare(*sector) && !left.contains(sector)
        };
        let loose: Vec<(u64, &LoggedPages)> =
            log.rows.iter().filter(|(sector, row)| is_loose(sector, row)).map(|(&s, row)| (s, row)).collect();
        if loose.is_empty() {
            return Ok(Loose::Gone);
        }
        let needs = |rows: &[(u64, &LoggedPages)]| {
            let pages = rows.iter().map(|(_, row)| row.loose.len() + self.geometry.redundancy()).sum();
            blocks_max(pages)
        };
        // One block is left for the empty meta block that ends the replay.
        // Nothing else has what has no place, and the log that does is given up.
        let kept = self.without_a_place(log, left).await?;
        left.extend(self.rows_of(&kept));
        let kept = self.pages_of(&kept);
        let needed = loose.chunks(ROWS_AT_A_TIME).map(needs).sum::<u64>() + blocks_max(kept.len()) + 1;
        let free = self.ring.blocks().saturating_sub(log.blocks);
        if needed > free {
            return self.write_loose_rows(&loose, needed, free).await;
        }
        let (mut at, mut seq) = (log.end, log.seq.wrapping_add(SEQUENCE_JUMP));
        if !kept.is_empty() {
            let written = self.write_pages((at, seq), &kept).await?;
            (at, seq) = (self.ring.after(at, written.blocks), written.seq.wrapping_add(1));
        }
        let mut unmade = Vec::new();
        for rows in loose.chunks(ROWS_AT_A_TIME) {
            let mut pages = Vec::new();
            for &(sector, row) in rows {
                if self.complete(sector, row, &mut pages).await? == Parity::Unmade {
                    unmade.push(sector);
                }
            }
            let written = self.write_pages((at, seq), &pages).await?;
            (at, seq) = (self.ring.after(at, written.blocks), written.seq.wrapping_add(1));
        }
        Ok(if unmade.is_empty() { Loose::Logged(log.end) } else { Loose::Unmade(unmade) })
    }

    /// Where the ring has no room for loose rows once more, they go to the members at once. That is
    /// repeatable as long as nothing needs to be reconstructed.
    async fn write_loose_rows(
        &self,
        loose: &[(u64, &LoggedPages)],
        needed: u64,
        free: u64,
    ) -> Result<Loose, AssembleError> {
        if !self.view.snapshot.is_complete() {
            return Err(self.refuse(JournalProblem::NoRoom { needed, free }));
        }
        let (mut writes, mut unmade) = (SubmissionSet::default(), Vec::new());
        for &(sector, row) in loose {
            let mut pages = Vec::new();
            match self.complete(sector, row, &mut pages).await? {
                Parity::OfRead => {}
                Parity::OfMade => return Err(self.refuse(JournalProblem::NoRoom { needed, free })),
                Parity::Unmade => unmade.push(sector),
            }
            let (_, map, _) = self.stripe_of(sector);
            for page in pages {
                let slot = match page.place {
                    PageAddress::Data(at) => Some(map.data_slot(self.place_of(at)?.1)),
                    PageAddress::P(_) => Some(map.p_slot()),
                    PageAddress::Q => map.q_slot(),
                };
                for place in slot.into_iter().flat_map(|slot| self.view.places(slot.index())) {
                    self.submit(place, sector, page.bytes.clone(), &mut writes);
                }
            }
            self.finish(&mut writes).await?;
        }
        self.flush().await?;
        Ok(if unmade.is_empty() { Loose::Gone } else { Loose::Unmade(unmade) })
    }

    /// The loose data of a row and the parity that goes with it, computed from what the members hold besides.
    async fn complete(
        &self,
        sector: u64,
        row: &LoggedPages,
        pages: &mut Vec<Page>,
    ) -> Result<Parity, AssembleError> {
        let (stripe, map, start) = self.stripe_of(sector);
        let loose: Set64 = row.loose.keys().copied().collect();
        let others = Set64::below(map.columns()).without(loose);
        let want = Want { columns: others, parity: false, avoid: Set64::EMPTY };
        let mut held = RowRange::default();
        let range = (start, start + PAGE_BYTES);
        match self.volume.read_row_in_blocks(&self.view, stripe, range, want, &mut held).await {
            Err(IoError::Unreadable { .. }) => return Ok(Parity::Unmade),
            read => read.map_err(|_| self.refuse(JournalProblem::Unreadable(Sector(sector))))?,
        }
        let missing = self.view.unreadable(sector * SECTOR_BYTES, PAGE_BYTES.into()).or(held.unreadable);
        let is_made = others.iter().any(|column| missing.contains(map.data_slot(column).index()));
        let mut columns: Vec<Slice> = Vec::new();
        for (column, held) in held.data.into_iter().enumerate() {
            let bytes = match (row.loose.get(&column), held) {
                (Some(page), _) => self.page(*page).await?,
                (None, Some(bytes)) => bytes,
                (None, None) => return Err(self.refuse(JournalProblem::Unreadable(Sector(sector)))),
            };
            columns.push(bytes);
        }
        let mut data: [&[u8]; MEMBERS_MAX] = [&[]; MEMBERS_MAX];
        data.iter_mut().zip(&columns).for_each(|(to, bytes)| *to = bytes);
        let (mut p, mut q) = (shard::buffer(BLOCK_BYTES), map.q_slot().map(|_| shard::buffer(BLOCK_BYTES)));
        encode(self.volume.kernel, map, &data[..map.columns()], Some(&mut p), q.as_deref_mut());
        for column in loose {
            let within = to_u32(column) * self.geometry.chunk_bytes() + start;
            let place = PageAddress::Data(Sector(self.geometry.array_offset(stripe, within) / SECTOR_BYTES));
            pages.push(Page { place, bytes: columns[column].clone(), ends_row: false });
        }
        pages.push(Page { place: PageAddress::P(Sector(sector)), bytes: p.freeze(), ends_row: q.is_none() });
        pages.extend(q.map(|q| Page { place: PageAddress::Q, bytes: q.freeze(), ends_row: true }));
        Ok(if is_made { Parity::OfMade } else { Parity::OfRead })
    }

    /// Writes pages into the ring, from a place and a number on.
    async fn write_pages(&self, (tail, seq): (Sector, u64), pages: &[Page]) -> Result<Resume, AssembleError> {
        let mut written = Resume { tail, blocks: 0, last: 0, seq };
        let mut rest = pages;
        loop {
            let at = self.ring.after(tail, written.blocks);
            let Some((packed, taken)) = self.ring.pack(rest, written.seq, at, u64::MAX) else {
                return Err(self.refuse(JournalProblem::NoRoom { needed: 1, free: 0 }));
            };
            self.write_ring(at, &packed.bytes).await?;
            (written.last, rest) = (written.blocks, &rest[taken..]);
            written.blocks += packed.blocks;
            if rest.is_empty() {
                return Ok(written);
            }
            written.seq = written.seq.wrapping_add(1);
        }
    }

    async fn write_ring(&self, at: Sector, bytes: &Slice) -> Result<(), AssembleError> {
        let written = self.ring.write(&self.journal.device, at, bytes).await;
        written
            .map_err(|error| AssembleError::Replay { name: self.journal.device.info().name.clone(), error })
    }

    /// Step 3: everything is on the members and flushed, but for what is kept.
    async fn empty(&mut self, log: &Log, kept: &Kept) -> Result<Resume, AssembleError> {
        let pages = self.pages_of(kept);
        let needed = blocks_max(pages.len());
        let free = self.ring.blocks().saturating_sub(log.blocks);
        if needed > free {
            return Err(self.refuse(JournalProblem::NoRoom { needed, free }));
        }
        // Further than where a crash may have left loose rows that were being logged anew: they don't follow.
        let seq = log.seq.wrapping_add(2 * SEQUENCE_JUMP);
        let resume = self.write_pages((log.end, seq), &pages).await?;
        self.record_tail(resume.tail).await?;
        Ok(resume)
    }

    /// Records the tail in the journal device's superblock.
    async fn record_tail(&mut self, tail: Sector) -> Result<(), AssembleError> {
        self.journal.superblock.member.journal_tail = Some(tail);
        let device = &self.journal.device;
        let written =
            crate::consistency::journal::write_superblock(&**device, &self.journal.superblock).await;
        written.map_err(|error| AssembleError::Replay { name: device.info().name.clone(), error })
    }

    /// For an array that is only read: the row on the members must be what the log says.
    async fn compare_row(&self, sector: u64, row: &LoggedPages) -> Result<(), AssembleError> {
        let (stripe, map, start) = self.stripe_of(sector);
        let missing = self.view.snapshot.missing;
        let data: BTreeMap<usize, Logged> =
            row.data.iter().chain(&row.loose).map(|(&column, &page)| (column, page)).collect();
        for (column, page) in data {
            let within = to_u32(column) * self.geometry.chunk_bytes() + start;
            let offset = self.geometry.array_offset(stripe, within);
            let (result, held) = self.volume.read(offset, shard::buffer(BLOCK_BYTES)).await;
            if result.is_err() || self.ring.seed.checksum(&held) != page.checksum {
                let sector = Sector(offset / SECTOR_BYTES);
                return Err(self.refuse(JournalProblem::NotOnMembers { sector, parity: false }));
            }
        }
        let parity = map.parity_slots().zip(&row.parity);
        // Parity of a missing member is not compared: no read uses it. Parity before loose data is void.
        for (slot, page) in parity.filter(|(slot, _)| !missing.contains(slot.index()) && row.loose.is_empty())
        {
            let buffer = shard::buffer(BLOCK_BYTES);
            let Some(read) = self.volume.submit_read(&self.view, slot.index(), sector * SECTOR_BYTES, buffer)
            else {
                continue;
            };
            let held = read.await.buffer.unwrap_or_else(|| shard::buffer(0));
            if self.ring.seed.checksum(&held) != page.checksum {
                let sector = Sector(sector);
                return Err(self.refuse(JournalProblem::NotOnMembers { sector, parity: true }));
            }
        }
        Ok(())
    }
}

/// Bytes of a row.
const PAGE_BYTES: u32 = crate::stripe::parity_cache::PAGE_BYTES;
const _: () = assert!(PAGE_BYTES as usize == BLOCK_BYTES);

pub(crate) fn problem(journal: &Found, problem: JournalProblem) -> AssembleError {
    AssembleError::Journal { name: journal.device.info().name.clone(), problem }
}
