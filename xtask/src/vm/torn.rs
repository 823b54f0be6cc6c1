//! Rows torn as by a power loss, under a partial parity log (docs/formats.md section 8).
//!
//! A server or machine that is killed leaves nearly everything on its members, for the host's page cache has
//! it: few rows or none need the log, and a start that ignores it finds nothing wrong. So after the kill the
//! parity of each row that a live record names is set back to what it was before the write: the data is new,
//! the parity old. Where data has not arrived, the parity becomes that of data that never will. No resync may
//! be needed for that, as all these rows are in the log.
//!
//! An array with a name that ends in `-lost` loses a member too. Then only rows are torn in which data on
//! that member was *not* being written: it has to be made of parity, and only the log makes that right. Rows
//! in which it was being written are left as the kill left them, and nothing is promised of its sectors there
//! (C19).
//!
//! The log is decoded here once more, so that a mistake of ours about the format can't hide itself.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use crc_fast::CrcAlgorithm;

use super::Lab;
use super::machine;
use super::members::Geometry;
use crate::pattern::{self, ANYTHING, BLOCK, Run};

const SUPERBLOCK_AT: usize = 4096;
const HEADER_BYTES: usize = 4096;
const ENTRIES_AT: usize = 536;
const ENTRY_BYTES: usize = 24;
/// Areas from this size on hold several records, one behind the other.
const SEVERAL_RECORDS_BYTES: usize = 264 << 10;
/// What a write that did not arrive would have written.
const GENERATION_LOST: u8 = 99;
/// Lists of one slot, for [`Geometry::degraded`].
const SLOTS: [&[u32]; 5] = [&[0], &[1], &[2], &[3], &[4]];

/// An array with torn rows.
pub struct Torn {
    /// As it will be found: without the member that is lost, if one is.
    pub geometry: Geometry,
    /// What stood in flight to the lost member.
    pub excused: Vec<Run>,
    rows: Vec<Line>,
}

/// A row of 4 KiB that a live record names.
#[derive(Clone, Debug)]
struct Line {
    /// Bytes from the start of the members' data.
    offset: usize,
    parity: u32,
    /// The slots that were being written, and which block of the array each of them has there.
    written: Vec<(u32, u64)>,
}

impl Line {
    fn writes(&self, slot: u32) -> bool {
        self.written.iter().any(|(written, _)| *written == slot)
    }
}

/// Tears every row that a live record of a crashed array names. If its name ends in `-lost`, it loses the
/// member with the data that most of the rows are needed for. `old` gives what a page of a member held before
/// the last write: from its slot, its place in the member's file, and what it holds now.
pub fn tear(
    lab: &Lab,
    geometry: &Geometry,
    old: impl Fn(u32, usize, &[u8]) -> Result<Vec<u8>>,
) -> Result<Torn> {
    for file in geometry.present(lab) {
        machine::wait_until_free(&file)?;
    }
    let members = Members::read(lab, geometry)?;
    let mut rows = members.live_rows(geometry)?;
    let needs = |row: &Line, slot| row.parity != slot && !row.writes(slot);
    let needed_for = |slot: &u32| rows.iter().filter(|row| needs(row, *slot)).count();
    let lost =
        if geometry.name.ends_with("-lost") { (0..geometry.members).max_by_key(needed_for) } else { None };
    let mut torn = Torn { geometry: *geometry, excused: Vec::new(), rows: Vec::new() };
    if let Some(lost) = lost {
        torn.geometry = geometry.degraded(SLOTS[usize::try_from(lost)?]);
        let written = rows.iter().flat_map(|row| &row.written).filter(|(slot, _)| *slot == lost);
        torn.excused = written.map(|(_, block)| Run::new(*block..block + 1, ANYTHING)).collect();
        rows.retain(|row| needs(row, lost));
    }
    for row in &rows {
        let (mut before, mut now) = (vec![0; BLOCK], vec![0; BLOCK]);
        for slot in (0..geometry.members).filter(|slot| *slot != row.parity) {
            let (at, page) = members.page(slot, row)?;
            xor(&mut now, page);
            if row.writes(slot) { xor(&mut before, &old(slot, at, page)?) } else { xor(&mut before, page) }
        }
        if before == now {
            // The write has only been logged, or its changes cancel each other out: parity of data that did
            // not arrive.
            let (slot, block) = row.written[0];
            xor(&mut before, members.page(slot, row)?.1);
            xor(&mut before, &pattern::render(block..block + 1, GENERATION_LOST));
        }
        let (at, _) = members.page(row.parity, row)?;
        let file = File::options().write(true).open(geometry.file(lab, row.parity))?;
        file.write_all_at(&before, at as u64)?;
    }
    torn.rows = Members::read(lab, geometry)?.inconsistent(&rows)?;
    ensure!(!torn.rows.is_empty(), "{}: none of {} live rows could be torn", geometry.name, rows.len());
    println!("{}: {} of {} rows torn, lost: {lost:?}", geometry.name, torn.rows.len(), rows.len());
    Ok(torn)
}

impl Torn {
    /// Fails if a row is still torn.
    pub fn ensure_mended(&self, lab: &Lab) -> Result<()> {
        let left = Members::read(lab, &self.geometry)?.inconsistent(&self.rows)?;
        let (left, all) = (left.len(), self.rows.len());
        ensure!(left == 0, "{}: {left} of {all} torn rows are torn still", self.geometry.name);
        Ok(())
    }
}

/// The bytes of all member files by slot, those of a lost one too.
struct Members(Vec<Vec<u8>>);

impl Members {
    fn read(lab: &Lab, geometry: &Geometry) -> Result<Self> {
        let read = |slot| fs::read(geometry.file(lab, slot)).context(geometry.name);
        Ok(Self((0..geometry.members).map(read).collect::<Result<_>>()?))
    }

    /// A member's page of a row, and where it is in the file.
    fn page(&self, slot: u32, row: &Line) -> Result<(usize, &[u8])> {
        let bytes = &self.0[usize::try_from(slot)?];
        let at = usize::try_from(u64_at(bytes, SUPERBLOCK_AT + 128)?)? * 512 + row.offset;
        Ok((at, bytes.get(at..at + BLOCK).context("a row behind the member's end")?))
    }

    /// Those of the rows that don't add up to zero.
    fn inconsistent(&self, rows: &[Line]) -> Result<Vec<Line>> {
        let mut found = Vec::new();
        for row in rows {
            let mut sum = vec![0; BLOCK];
            for slot in (0..).take(self.0.len()) {
                xor(&mut sum, self.page(slot, row)?.1);
            }
            if sum.iter().any(|byte| *byte != 0) {
                found.push(row.clone());
            }
        }
        Ok(found)
    }

    /// The rows of each member's newest record. Entries with torn partial parity are left out: their rows had
    /// not begun.
    fn live_rows(&self, geometry: &Geometry) -> Result<Vec<Line>> {
        let mut rows = Vec::new();
        for member in &self.0 {
            let superblock = &member[SUPERBLOCK_AT..];
            ensure!(u32_at(superblock, 8)? & 0xc00 != 0, "{}: no partial parity log", geometry.name);
            let place = u32_at(superblock, 96)?.to_le_bytes();
            let sector = 8 + i64::from(i16::from_le_bytes([place[0], place[1]]));
            let at = usize::try_from(sector)? * 512;
            let area = &member[at..at + usize::from(u16::from_le_bytes([place[2], place[3]])) * 512];
            let Some(record) = newest_record(area, crc32c(&superblock[16..32]))? else { continue };
            let mut at = record + HEADER_BYTES;
            for entry in entries(&area[record..])? {
                let partial = area.get(at..at + entry.parity_bytes);
                at += entry.parity_bytes;
                let is_whole =
                    partial.is_some_and(|bytes| bytes.is_empty() || crc32c(bytes) == entry.checksum);
                if is_whole && entry.data_bytes > 0 {
                    rows.extend(entry.rows(geometry)?);
                }
            }
        }
        Ok(rows)
    }
}

/// Where the header of the newest record is.
fn newest_record(area: &[u8], signature: u32) -> Result<Option<usize>> {
    let (mut newest, mut generation, mut at) = (None, 0, 0);
    while let Some(header) = area.get(at..at + HEADER_BYTES) {
        let mut unsigned = header.to_vec();
        unsigned[532..536].fill(0);
        let is_whole = crc32c(&unsigned) == u32_at(header, 532)? && u32_at(header, 512)? == signature;
        if !is_whole || u64_at(header, 520)? < generation {
            break;
        }
        (newest, generation) = (Some(at), u64_at(header, 520)?);
        if area.len() < SEVERAL_RECORDS_BYTES {
            break;
        }
        at += HEADER_BYTES + entries(header)?.iter().map(|entry| entry.parity_bytes).sum::<usize>();
    }
    Ok(newest)
}

/// What a record says of consecutive rows of a stripe.
struct Entry {
    data_offset: u64,
    parity_bytes: usize,
    data_bytes: u64,
    parity: u32,
    checksum: u32,
}

fn entries(header: &[u8]) -> Result<Vec<Entry>> {
    let count = usize::try_from(u32_at(header, 528)?)?;
    let starts = (0..count).map(|index| ENTRIES_AT + index * ENTRY_BYTES);
    let entry = |at| {
        Ok(Entry {
            data_offset: u64_at(header, at)? * 512,
            parity_bytes: usize::try_from(u32_at(header, at + 8)?)?,
            data_bytes: u64::from(u32_at(header, at + 12)?),
            parity: u32_at(header, at + 16)?,
            checksum: u32_at(header, at + 20)?,
        })
    };
    starts.map(entry).collect()
}

impl Entry {
    fn rows(&self, geometry: &Geometry) -> Result<Vec<Line>> {
        let (chunk, columns) = (u64::from(geometry.chunk) << 10, u64::from(geometry.members) - 1);
        // Without partial parity, whole rows were written.
        let count = self.data_bytes.checked_div(self.parity_bytes as u64).unwrap_or(columns);
        let (stripe, within) = (self.data_offset / (columns * chunk), self.data_offset % (columns * chunk));
        let (first, start) = (within / chunk, within % chunk);
        ensure!(count > 0 && first + count <= columns, "{}: an entry of no stripe", geometry.name);
        let row = |at| {
            let block = |column| ((stripe * columns + column) * chunk + at) / BLOCK as u64;
            let written =
                (first..first + count).map(|column| Ok((self.slot(geometry, column)?, block(column))));
            let written = written.collect::<Result<_>>()?;
            Ok(Line { offset: usize::try_from(stripe * chunk + at)?, parity: self.parity, written })
        };
        (start..start + self.data_bytes / count).step_by(BLOCK).map(row).collect()
    }

    /// Which slot has a column of data.
    fn slot(&self, geometry: &Geometry, column: u64) -> Result<u32> {
        let column = u32::try_from(column)?;
        Ok(if geometry.layout.ends_with("-symmetric") {
            (self.parity + 1 + column) % geometry.members
        } else {
            column + u32::from(column >= self.parity)
        })
    }
}

fn xor(sum: &mut [u8], bytes: &[u8]) {
    for (sum, byte) in sum.iter_mut().zip(bytes) {
        *sum ^= byte;
    }
}

/// CRC-32C (Castagnoli).
#[expect(clippy::cast_possible_truncation, reason = "a CRC of 32 bits")]
fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_le_bytes(bytes.get(at..at + 4).context("too short")?.try_into()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from_le_bytes(bytes.get(at..at + 8).context("too short")?.try_into()?))
}
