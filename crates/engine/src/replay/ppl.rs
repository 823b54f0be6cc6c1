//! What a partial parity log says after a crash, put to use. The cases are argued in
//! [`consistency::ppl`](crate::consistency::ppl).

use pinstripe_md::ppl::{FoundRecord, HEADER_BYTES, PplEntry, PplHeader, newest_record, signature};
use pinstripe_md::units::SECTOR_BYTES;

use super::{area::AreaBytes, members::Members};
use crate::{
    assembly::{AssembleError, Found},
    geometry::{MemberSlot, StripeId},
    members::LogArea,
    mutants::{Mutant, active},
    stripe::parity_cache::PAGE_BYTES,
    units::to_usize,
};

/// What came of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Replayed {
    /// The log covers whatever was being written: parity matches data everywhere now, as far as members are
    /// there.
    pub(super) covers: bool,
    /// Some member's log says something, or can't be read and may.
    pub(super) in_use: bool,
    /// Entries that were applied.
    pub(super) entries: u64,
    /// Entries that were not: torn, so that nothing of theirs had begun, or of a lost member.
    pub(super) skipped: u64,
    /// The name of a member with a log that can't be read: it isn't known what was being written in the rows
    /// with its parity.
    pub(super) unreadable: Option<String>,
}

/// Replays the newest record of every member. The caller flushes.
pub(super) async fn replay(members: &Members<'_>) -> Result<Replayed, AssembleError> {
    let mut replayed = Replayed::default();
    for (slot, found) in members.present() {
        let Some(area) = LogArea::of(&found.superblock) else { continue };
        let log = AreaBytes::read(found, area).await?;
        let bytes = &log.bytes;
        let record = newest_record(bytes, found.superblock.array.set_uuid, area.several);
        // That it is the newest, the header behind it says.
        let end = record.as_ref().map_or(0, end_of).saturating_add(HEADER_BYTES);
        if !log.is_known_to(end) {
            replayed.unreadable = Some(found.device.info().name.clone());
            replayed.in_use = true;
            continue;
        }
        replayed.in_use |= was_in_use(bytes, found);
        if let Some(record) = record {
            replay_record(members, slot, &record, bytes, &mut replayed).await?;
        }
    }
    replayed.covers = replayed.in_use && replayed.unreadable.is_none();
    Ok(replayed)
}

/// The byte behind a record.
fn end_of(record: &FoundRecord) -> usize {
    let length = |entry: &PplEntry| to_usize(entry.parity_bytes);
    let parity = record.header.entries.iter().map(length).fold(0, usize::saturating_add);
    record.offset.saturating_add(HEADER_BYTES).saturating_add(parity)
}

/// Whether the log was in use here. An area that was never used, or emptied and not begun again, says nothing
/// of what was being written. An area with a torn first header was in use: a record was just being written.
fn was_in_use(area: &[u8], found: &Found) -> bool {
    let Some(head) = area.get(..HEADER_BYTES) else { return false };
    match PplHeader::decode(head, signature(found.superblock.array.set_uuid)) {
        Ok(header) => !header.entries.is_empty(),
        Err(_) => head.iter().any(|byte| *byte != 0) && head[..8] == [0xff; 8],
    }
}

async fn replay_record(
    members: &Members<'_>,
    slot: MemberSlot,
    record: &FoundRecord,
    area: &[u8],
    replayed: &mut Replayed,
) -> Result<(), AssembleError> {
    let count = record.parts(area).count().saturating_sub(active(Mutant::ReplaySkipsEntry).into());
    for (entry, parity) in record.parts(area).take(count) {
        if entry.data_bytes == 0 {
            // Says that the log is in use, and no more.
            continue;
        }
        let applied = match (parity, Shape::of(members, slot, &entry)) {
            (Some(parity), Some(shape)) => replay_entry(members, &shape, parity).await?,
            _ => false,
        };
        replayed.entries += u64::from(applied);
        replayed.skipped += u64::from(!applied);
    }
    Ok(())
}

/// What an entry covers.
struct Shape {
    stripe: StripeId,
    /// First byte within the chunk.
    start: u32,
    length: u32,
    first_column: usize,
    columns: usize,
}

impl Shape {
    /// `None` for what no writer of this array makes.
    fn of(members: &Members<'_>, slot: MemberSlot, entry: &PplEntry) -> Option<Self> {
        let geometry = members.geometry;
        let columns = match entry.parity_bytes {
            0 => geometry.columns(),
            bytes => usize::try_from(entry.data_bytes.checked_div(bytes)?).ok()?,
        };
        let length = entry.data_bytes / u32::try_from(columns).ok().filter(|columns| *columns > 0)?;
        let offset = entry.data_sector.0.checked_mul(SECTOR_BYTES)?;
        geometry.check_range(offset, u64::from(length)).ok()?;
        let (stripe, within) = geometry.locate(offset);
        let (first_column, start) = geometry.column_of(within);
        let fits = length > 0
            && u64::from(length) * columns as u64 == u64::from(entry.data_bytes)
            && start.checked_add(length)? <= geometry.chunk_bytes()
            && first_column + columns <= geometry.columns();
        let p = geometry.slots(stripe).p_slot();
        (fits && p == slot && entry.parity_slot == u32::from(slot.0)).then_some(Self {
            stripe,
            start,
            length,
            first_column,
            columns,
        })
    }
}

/// New parity from partial parity and what the written columns hold, row by row. False if any row had to be
/// left.
async fn replay_entry(members: &Members<'_>, shape: &Shape, partial: &[u8]) -> Result<bool, AssembleError> {
    let mut whole = true;
    let mut at = 0;
    while at < shape.length {
        let length = PAGE_BYTES.min(shape.length - at);
        let mut outcome = replay_rows(members, shape, partial, (at, length)).await?;
        if outcome == Outcome::InParts {
            // A bad block must not leave the sectors beside it as they are.
            let block = members.geometry.logical_block();
            outcome = Outcome::Replayed;
            for part in (at..at + length).step_by(block as usize) {
                if replay_rows(members, shape, partial, (part, block.min(at + length - part))).await?
                    != Outcome::Replayed
                {
                    outcome = Outcome::Left;
                }
            }
        }
        whole &= outcome == Outcome::Replayed;
        at += length;
    }
    Ok(whole)
}

/// What became of some rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Replayed,
    /// A written column is lost.
    Left,
    /// A written column can't be read, but parts of it may be.
    InParts,
}

async fn replay_rows(
    members: &Members<'_>,
    shape: &Shape,
    partial: &[u8],
    (at, length): (u32, u32),
) -> Result<Outcome, AssembleError> {
    let map = members.geometry.slots(shape.stripe);
    let offset = members.geometry.member_offset(shape.stripe) + u64::from(shape.start) + u64::from(at);
    let range = at as usize..(at + length) as usize;
    let mut parity = partial.get(range).map_or_else(|| vec![0; length as usize], <[u8]>::to_vec);
    let mut outcome = Outcome::Replayed;
    for column in shape.first_column..shape.first_column + shape.columns {
        let slot = map.data_slot(column);
        match members.read(slot, offset, length).await? {
            Some(data) => pinstripe_parity::kernel().xor_into(&mut parity, &[&data]),
            None if members.may_hold_parts(slot, offset, length) => {
                return Ok(Outcome::InParts);
            }
            None => outcome = Outcome::Left,
        }
    }
    if outcome == Outcome::Replayed {
        members.write(map.p_slot(), offset, &parity).await?;
    }
    Ok(outcome)
}
