//! Whether the members hold all that a journal describes: only then may the array be read without it.
//!
//! A journal that was stopped cleanly is not empty: its tail usually still describes stripes that long are on the members.
//! So the log is walked from its tail as a replay would, and instead of writing its pages to the members, each page's
//! latest checksum is compared with what the members hold now. Data is compared as a reader of the array would see it, so
//! a missing member's data is compared through its reconstruction. Nothing is written (docs/formats.md section 9).

use std::collections::BTreeMap;

use pinstripe_md::{
    journal::{BLOCK_BYTES, BLOCK_SECTORS, JournalEntry, JournalWalk, Payload, Seed},
    units::{SECTOR_BYTES, Sector},
};
use pinstripe_runtime::shard;

use crate::{
    assembly::{AssembleError, Found, JournalProblem, read_bytes},
    geometry::{Geometry, ParityGeometry, StripeId},
    volume::Volume,
};

/// A page that the log describes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Page {
    /// By array sector.
    Data(u64),
    /// P (0) or Q (1) of a row, by member sector.
    Parity(u64, usize),
}

/// The checksum that each page must have: that of its latest copy in the log.
type Pages = BTreeMap<Page, u32>;

/// Refuses unless the members behind `volume` hold everything that `journal` describes.
pub(crate) async fn members_hold_everything(volume: &Volume, journal: &Found) -> Result<(), AssembleError> {
    let Geometry::Parity(geometry) = &volume.shared().geometry else { return Ok(()) };
    let name = &journal.device.info().name;
    let refuse = |problem| AssembleError::Journal { name: name.clone(), problem };
    let superblock = &journal.superblock;
    let tail = superblock.member.journal_tail.unwrap_or(Sector(0));
    let walk = JournalWalk::new(superblock.array.set_uuid, superblock.member.data_size, tail)
        .ok_or_else(|| refuse(JournalProblem::Tail(tail)))?;
    let seed = walk.seed();
    for (page, checksum) in described(journal, walk).await?.map_err(refuse)? {
        let held = match page {
            Page::Data(sector) => read_data(volume, sector).await,
            Page::Parity(sector, which) => match read_parity(volume, geometry, sector, which).await {
                // Parity that nobody can read stands in for nothing.
                Held::Absent => continue,
                Held::Bytes(bytes) => Some(bytes),
                Held::Nowhere => None,
            },
        };
        if held.is_none_or(|bytes| seed.checksum(&bytes) != checksum) {
            let (Page::Data(sector) | Page::Parity(sector, _)) = page;
            let parity = matches!(page, Page::Parity(..));
            return Err(refuse(JournalProblem::NotOnMembers { sector: Sector(sector), parity }));
        }
    }
    Ok(())
}

/// Walks the log to its end.
async fn described(
    journal: &Found,
    mut walk: JournalWalk,
) -> Result<Result<Pages, JournalProblem>, AssembleError> {
    let mut pages = Pages::new();
    let seed = walk.seed();
    while let Some(entry) = walk.step(&read_block(journal, walk.position()).await?) {
        if !is_whole(journal, &entry, seed).await? {
            // It was being written when the host stopped: nothing had gone to the members.
            break;
        }
        for payload in &entry.meta.payloads {
            match payload {
                Payload::Data { discard: true, location, .. }
                | Payload::Parity { discard: true, location, .. } => {
                    return Ok(Err(JournalProblem::Discard(*location)));
                }
                Payload::Data { location, checksums, .. } => {
                    for (sector, checksum) in (location.0..).step_by(8).zip(checksums) {
                        pages.insert(Page::Data(sector), *checksum);
                    }
                }
                Payload::Parity { location, checksums, .. } => {
                    for (which, checksum) in checksums.iter().enumerate() {
                        pages.insert(Page::Parity(location.0, which), *checksum);
                    }
                }
                // What it calls flushed is on the members, and is found there.
                Payload::Flush { .. } => {}
            }
        }
    }
    Ok(Ok(pages))
}

async fn read_block(journal: &Found, position: Sector) -> Result<Vec<u8>, AssembleError> {
    let sector = journal.superblock.member.data_offset.0 + position.0;
    read_bytes(&*journal.device, sector * SECTOR_BYTES, BLOCK_BYTES as u64).await
}

async fn is_whole(journal: &Found, entry: &JournalEntry, seed: Seed) -> Result<bool, AssembleError> {
    for &(position, checksum) in &entry.pages {
        if seed.checksum(&read_block(journal, position).await?) != checksum {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A page as a reader of the array sees it; `None` if it is outside or can't be read.
async fn read_data(volume: &Volume, sector: u64) -> Option<Vec<u8>> {
    let offset = sector.checked_mul(SECTOR_BYTES)?;
    let (result, buffer) = volume.read(offset, shard::buffer(BLOCK_BYTES)).await;
    result.ok().map(|()| buffer.to_vec())
}

enum Held {
    Bytes(Vec<u8>),
    /// The member isn't there.
    Absent,
    /// The place doesn't exist or can't be read.
    Nowhere,
}

async fn read_parity(volume: &Volume, geometry: &ParityGeometry, sector: u64, which: usize) -> Held {
    let chunk_sectors = u64::from(geometry.chunk_bytes()) / SECTOR_BYTES;
    let stripe = sector / chunk_sectors;
    if stripe >= geometry.stripes() || !sector.is_multiple_of(BLOCK_SECTORS) {
        return Held::Nowhere;
    }
    let map = geometry.slots(StripeId(stripe));
    let slot = match which {
        0 => map.p_slot(),
        1 => match map.q_slot() {
            Some(slot) => slot,
            None => return Held::Nowhere,
        },
        _ => return Held::Nowhere,
    };
    let view = volume.inner.view();
    if view.snapshot.missing.contains(slot.index()) {
        return Held::Absent;
    }
    let buffer = shard::buffer(BLOCK_BYTES);
    let Some(read) = volume.inner.submit_read(&view, slot.index(), sector * SECTOR_BYTES, buffer) else {
        return Held::Absent;
    };
    let outcome = read.await;
    match (outcome.result, outcome.buffer) {
        (Ok(_), Some(buffer)) => Held::Bytes(buffer.to_vec()),
        _ => Held::Nowhere,
    }
}
