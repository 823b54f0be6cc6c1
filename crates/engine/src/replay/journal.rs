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
//! 3. All members are flushed, an empty meta block with a jump in the sequence is written behind the log, and
//!    the tail moves to it (C4).
//!
//! A crash at any point is harmless: until the tail moves, the log is as it was, and all of this only writes
//! what the log says, so it can be done again. The jump in the sequence makes sure that blocks of earlier
//! rounds, which lie behind the end of the log, are never taken for its continuation. (The kernel jumps by
//! 10000 too.)

use std::{collections::BTreeMap, rc::Rc};

use pinstripe_md::{
    journal::{BLOCK_BYTES, BLOCK_SECTORS, JournalEntry, JournalWalk, Payload},
    units::{SECTOR_BYTES, Sector},
};
use pinstripe_runtime::{Buffer, DeviceErrorKind, Slice, SubmissionSet, shard};

use crate::{
    assembly::{AssembleError, Found, JournalProblem},
    consistency::journal::{
        Resume,
        ring::{Page, PageAddress, Ring, meta_blocks_max},
    },
    geometry::{MEMBERS_MAX, ParityGeometry, Set64, StripeId, StripeMap},
    io::{
        parity::ParityVolume,
        row::{RowRange, Want},
        volume::Volume,
    },
    membership::snapshot::View,
    mutants::{Mutant, active},
    replay::members::write_but_for_listed,
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
}

/// The volume that `journal` belongs to, if its level can have one.
pub(crate) fn volume_of<'a>(
    volume: &'a Volume,
    journal: &Found,
) -> Result<&'a Rc<ParityVolume>, AssembleError> {
    volume.parity().ok_or_else(|| problem(journal, JournalProblem::NoParity))
}

/// Brings everything that `journal` describes to the members, and empties it.
pub(crate) async fn replay(volume: &ParityVolume, journal: &mut Found) -> Result<Resume, AssembleError> {
    let mut replay = Replay::new(volume, journal);
    loop {
        let log = replay.walk().await?;
        replay.write_whole_rows(&log).await?;
        replay.flush().await?;
        let Some(resume) = replay.log_loose_rows(&log).await? else {
            return replay.empty(&log).await;
        };
        replay.record_tail(resume.tail).await?;
    }
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
        Self { volume, geometry: &volume.geometry, journal, ring, view: volume.members.view() }
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

    /// Whether the members of a row's parity are all missing, and so those of its data all there. Such rows
    /// are logged without parity, and written so.
    fn is_bare(&self, sector: u64) -> bool {
        let (_, map, _) = self.stripe_of(sector);
        let mut parity = [Some(map.p_slot()), map.q_slot()].into_iter().flatten();
        parity.all(|slot| self.view.member(slot.index()).is_none())
    }

    /// Step 1.
    async fn write_whole_rows(&self, log: &Log) -> Result<(), AssembleError> {
        let (mut set, mut writes) = (SubmissionSet::default(), Vec::new());
        let begun = self.begin_whole_rows(log, &mut set, &mut writes).await;
        // Behind an error, too: what is under way must not land after a start that does without the journal
        // (C16).
        begun.and(self.finish(&mut set, &mut writes).await)
    }

    /// The writes of the last rows are still under way when this returns.
    async fn begin_whole_rows(
        &self,
        log: &Log,
        set: &mut SubmissionSet,
        writes: &mut Vec<Write>,
    ) -> Result<(), AssembleError> {
        let mut waiting = 0;
        for (&sector, row) in &log.rows {
            let is_bare = self.is_bare(sector);
            if row.parity.is_empty() && !is_bare {
                continue;
            }
            let (_, map, _) = self.stripe_of(sector);
            let parity = [Some(map.p_slot()), map.q_slot()].into_iter().flatten();
            let mut latest = row.data.clone();
            if is_bare {
                latest.extend(&row.loose);
            }
            let data = latest.iter().map(|(&column, page)| (map.data_slot(column), *page));
            for (slot, page) in data.chain(parity.zip(row.parity.iter().copied())) {
                for place in self.view.places(slot.index()) {
                    let bytes = self.page(page).await?;
                    self.submit(place, sector, bytes, set, writes);
                }
            }
            waiting += 1;
            if waiting == ROWS_AT_A_TIME {
                self.finish(set, writes).await?;
                waiting = 0;
            }
        }
        Ok(())
    }

    /// Begins to write a page of a row to the member at a place, if there is one.
    fn submit(
        &self,
        place: usize,
        sector: u64,
        bytes: Slice,
        set: &mut SubmissionSet,
        writes: &mut Vec<Write>,
    ) {
        if let Some((member, device)) = self.view.member(place) {
            let at = member.data_offset + sector * SECTOR_BYTES;
            set.push(device.write(at, bytes.clone(), false));
            writes.push(Write { place, at, bytes });
        }
    }

    /// Waits for writes; the first that failed is the answer. What a member has refused is written once more,
    /// but for blocks that it lists.
    async fn finish(&self, set: &mut SubmissionSet, writes: &mut Vec<Write>) -> Result<(), AssembleError> {
        set.wait().await;
        let mut result = Ok(());
        for (index, Write { place, at, bytes }) in writes.drain(..).enumerate() {
            let Some((member, device)) = self.view.member(place) else { continue };
            let mut written = set.take(index).result.map(|_| ());
            if written.is_err_and(|error| error.kind == DeviceErrorKind::Media) {
                let listed = member.bad_blocks.table();
                written = write_but_for_listed(&**device, &listed, at, &bytes, false).await;
            }
            let name = || member.name.clone();
            result = result.and(written.map_err(|error| AssembleError::Replay { name: name(), error }));
        }
        set.clear();
        result
    }

    /// Flushes every member.
    async fn flush(&self) -> Result<(), AssembleError> {
        let failed = self.volume.flush_members(&self.view).await;
        failed.into_iter().next().map_or(Ok(()), |(slot, error)| {
            let name = self.view.member(slot).map_or_else(String::new, |(member, _)| member.name.clone());
            Err(AssembleError::Replay { name, error })
        })
    }

    /// Step 2: logs loose rows anew, whole. `None` if there are none left to be written.
    async fn log_loose_rows(&mut self, log: &Log) -> Result<Option<Resume>, AssembleError> {
        let is_loose = |sector: &u64, row: &LoggedPages| !row.loose.is_empty() && !self.is_bare(*sector);
        let loose: Vec<(u64, &LoggedPages)> =
            log.rows.iter().filter(|(sector, row)| is_loose(sector, row)).map(|(&s, row)| (s, row)).collect();
        if loose.is_empty() {
            return Ok(None);
        }
        let needs = |rows: &[(u64, &LoggedPages)]| {
            let pages = rows.iter().map(|(_, row)| row.loose.len() + self.geometry.redundancy()).sum();
            pages as u64 + meta_blocks_max(pages)
        };
        // One block is left for the empty meta block that ends the replay.
        let needed = loose.chunks(ROWS_AT_A_TIME).map(needs).sum::<u64>() + 1;
        let free = self.ring.blocks().saturating_sub(log.blocks);
        if needed > free {
            return self.write_loose_rows(&loose, needed, free).await.map(|()| None);
        }
        let resume = Resume { tail: log.end, seq: log.seq.wrapping_add(SEQUENCE_JUMP) };
        let (mut at, mut seq) = (resume.tail, resume.seq);
        for rows in loose.chunks(ROWS_AT_A_TIME) {
            let mut pages = Vec::new();
            for &(sector, row) in rows {
                self.complete(sector, row, &mut pages).await?;
            }
            let mut rest = &pages[..];
            while !rest.is_empty() {
                let Some((packed, taken)) = self.ring.pack(rest, seq, at, u64::MAX) else {
                    return Err(self.refuse(JournalProblem::NoRoom { needed, free }));
                };
                self.write_ring(at, &packed.bytes).await?;
                (at, seq, rest) = (self.ring.after(at, packed.blocks), seq.wrapping_add(1), &rest[taken..]);
            }
        }
        Ok(Some(resume))
    }

    /// Where the ring has no room for loose rows once more, they go to the members at once. That is
    /// repeatable as long as nothing needs to be reconstructed.
    async fn write_loose_rows(
        &self,
        loose: &[(u64, &LoggedPages)],
        needed: u64,
        free: u64,
    ) -> Result<(), AssembleError> {
        if !self.view.snapshot.is_complete() {
            return Err(self.refuse(JournalProblem::NoRoom { needed, free }));
        }
        let (mut set, mut writes) = (SubmissionSet::default(), Vec::new());
        for &(sector, row) in loose {
            let mut pages = Vec::new();
            self.complete(sector, row, &mut pages).await?;
            let (_, map, _) = self.stripe_of(sector);
            for page in pages {
                let slot = match page.place {
                    PageAddress::Data(at) => Some(map.data_slot(self.place_of(at)?.1)),
                    PageAddress::P(_) => Some(map.p_slot()),
                    PageAddress::Q => map.q_slot(),
                };
                for place in slot.into_iter().flat_map(|slot| self.view.places(slot.index())) {
                    self.submit(place, sector, page.bytes.clone(), &mut set, &mut writes);
                }
            }
            self.finish(&mut set, &mut writes).await?;
        }
        self.flush().await
    }

    /// The loose data of a row and the parity that goes with it, computed from what the members hold besides.
    async fn complete(
        &self,
        sector: u64,
        row: &LoggedPages,
        pages: &mut Vec<Page>,
    ) -> Result<(), AssembleError> {
        let (stripe, map, start) = self.stripe_of(sector);
        let loose: Set64 = row.loose.keys().copied().collect();
        let others = Set64::below(map.columns()).without(loose);
        let want = Want { columns: others, parity: false, avoid: Set64::EMPTY };
        let mut held = RowRange::default();
        let range = (start, start + PAGE_BYTES);
        self.volume
            .read_row(&self.view, stripe, range, want, &mut held)
            .await
            .map_err(|_| self.refuse(JournalProblem::Unreadable(Sector(sector))))?;
        let mut columns: Vec<Slice> = Vec::new();
        for column in 0..map.columns() {
            let bytes = match (row.loose.get(&column), held.data[column].clone()) {
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
        Ok(())
    }

    async fn write_ring(&self, at: Sector, bytes: &Slice) -> Result<(), AssembleError> {
        let written = self.ring.write(&self.journal.device, at, bytes).await;
        written
            .map_err(|error| AssembleError::Replay { name: self.journal.device.info().name.clone(), error })
    }

    /// Step 3: everything is on the members and flushed.
    async fn empty(&mut self, log: &Log) -> Result<Resume, AssembleError> {
        let resume = Resume { tail: log.end, seq: log.seq.wrapping_add(SEQUENCE_JUMP) };
        let Some((packed, _)) = self.ring.pack(&[], resume.seq, resume.tail, 1) else {
            return Err(self.refuse(JournalProblem::NoRoom { needed: 1, free: 0 }));
        };
        self.write_ring(resume.tail, &packed.bytes).await?;
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
        let parity = [Some(map.p_slot()), map.q_slot()].into_iter().flatten().zip(&row.parity);
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

fn problem(journal: &Found, problem: JournalProblem) -> AssembleError {
    AssembleError::Journal { name: journal.device.info().name.clone(), problem }
}
