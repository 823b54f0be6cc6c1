//! What the double-parity log says after a crash, put to use.
//!
//! For each sector of a row the newest entry counts, whole or not. If a copy of it that should be there is
//! not whole, its stripe write had not begun, or was over long ago: nothing is done. Else, with `U` for what
//! the unwritten columns contribute to P or Q (the payload), and `D` for what a written column holds now:
//!
//! | lost | done |
//! |---|---|
//! | no written column | P := U(P) + sum of D; Q := U(Q) + sum of g^j D: whatever the written columns hold, two others can be made |
//! | one written column, P and Q are there | that column is what P says it is: D := P + U(P) + the other D; then Q as above |
//! | one written column, and P or Q | nothing: the other parity says what the column is, and all else is there |
//! | two written columns | nothing: P and Q say what they are |
//!
//! A written column that is lost was in flight and may read as neither old nor new (C19); an unwritten one
//! that is lost reads as it was. Where a member's log can't be read, nothing is done at all: any record there
//! may be the newest of its rows. A second crash meanwhile finds the same log, and P, Q old or new: the same
//! again.

use std::collections::BTreeMap;

use pinstripe_md::{
    double_parity_log::{ANCHOR_BYTES, Entry, Identity, Parity, find},
    units::SECTOR_BYTES,
};

use super::{area::AreaBytes, members::Members};
use crate::{
    assembly::AssembleError,
    consistency::double_parity_log::takes_chunks_of,
    geometry::{MEMBERS_MAX, MemberSlot, Set64, StripeId, StripeMap},
    members::LogArea,
    mutants::{Mutant, active},
    stripe::decode::exponent,
};

/// Two copies of what one batch says of a range of rows: for P and for Q, as far as they were found.
struct Group {
    entry: Entry,
    /// The payload, or `None` where it is torn or not found.
    copies: [Option<Vec<u8>>; 2],
}

/// Batch, stripe and first byte.
type Key = (u64, u64, u32);

/// Whether every member that is there has a log, with room for what a stripe write may need. Where a member's
/// anchor can't be read, the other members decide, or the superblocks (`needed`).
pub(super) async fn is_carried(members: &Members<'_>, needed: bool) -> Result<bool, AssembleError> {
    let chunk = members.geometry.chunk_bytes();
    let mut any = needed;
    for (_, found) in members.present() {
        let block = u64::from(members.geometry.logical_block());
        if found.superblock.member.double_parity_log.is_none() {
            return Ok(false);
        }
        let Some(area) =
            LogArea::of(&found.superblock).filter(|area| takes_chunks_of(chunk.into(), *area, block))
        else {
            return Ok(false);
        };
        let anchor = AreaBytes::read_range(found, area.offset, ANCHOR_BYTES as u64).await?;
        if !anchor.is_known() {
            continue;
        }
        if Identity::of_anchor(&anchor.bytes, found.superblock.array.set_uuid).is_none() {
            return Ok(false);
        }
        any = true;
    }
    Ok(any)
}

/// Makes parity of everything that was being written match what the members hold. The caller flushes. If a
/// member's log can't be read, its name, and nothing is done.
pub(super) async fn replay(members: &Members<'_>) -> Result<Option<String>, AssembleError> {
    let groups = match gather(members).await? {
        Ok(groups) => groups,
        Err(unreadable) => return Ok(Some(unreadable)),
    };
    // The newest group of every sector, by stripe and byte within the chunk.
    let mut newest: BTreeMap<(u64, u32), Key> = BTreeMap::new();
    for (key, group) in &groups {
        for at in (group.entry.start..group.entry.start + group.entry.length).step_by(512) {
            newest.insert((group.entry.stripe, at), *key);
        }
    }
    let mut ranges: Vec<(u32, u32, Key)> = Vec::new();
    for ((_, at), key) in newest {
        match ranges.last_mut() {
            Some((_, end, last)) if *last == key && *end == at => *end += 512,
            _ => ranges.push((at, at + 512, key)),
        }
    }
    let count = ranges.len().saturating_sub(active(Mutant::ReplaySkipsEntry).into());
    for (start, end, key) in ranges.into_iter().take(count) {
        // A member may have been rebuilt, or be unreadable, in a part of the range.
        for from in (start..end).step_by(4096) {
            let to = end.min(from + 4096);
            if replay_rows(members, &groups[&key], from, to).await? == Outcome::InParts {
                // A bad block must not leave the sectors beside it as they are.
                let block = members.geometry.logical_block();
                for part in (from..to).step_by(block as usize) {
                    replay_rows(members, &groups[&key], part, to.min(part + block)).await?;
                }
            }
        }
    }
    Ok(None)
}

/// Every entry that the members' logs hold, by age; or the name of a member with a log that can't be read.
async fn gather(members: &Members<'_>) -> Result<Result<BTreeMap<Key, Group>, String>, AssembleError> {
    let geometry = members.geometry;
    let mut found = Vec::new();
    for (slot, member) in members.present() {
        let Some(area) = LogArea::of(&member.superblock) else { continue };
        let log = AreaBytes::read(member, area).await?;
        if !log.is_known() {
            return Ok(Err(member.device.info().name.clone()));
        }
        let log = find(&log.bytes, member.superblock.array.set_uuid, geometry.logical_block().into());
        found.extend(log.map(|log| (slot, log)));
    }
    // A member that joined has the log's latest incarnation. A member with another one was not there.
    let incarnation = found.iter().map(|(_, log)| log.identity.incarnation).max();
    let mut groups: BTreeMap<Key, Group> = BTreeMap::new();
    for (slot, log) in found {
        if Some(log.identity.incarnation) != incarnation {
            continue;
        }
        for (entry, payload) in log.live.into_iter().flat_map(|record| record.entries) {
            if is_of(members, slot, &entry) {
                let group = groups
                    .entry((entry.batch, entry.stripe, entry.start))
                    .or_insert_with(|| Group { entry, copies: [None, None] });
                group.copies[usize::from(entry.parity == Parity::Q)] = payload;
            }
        }
    }
    Ok(Ok(groups))
}

/// Whether a writer of this array could have put the entry there.
fn is_of(members: &Members<'_>, slot: MemberSlot, entry: &Entry) -> bool {
    let geometry = members.geometry;
    if entry.stripe >= geometry.stripes() || entry.start + entry.length > geometry.chunk_bytes() {
        return false;
    }
    let map = geometry.slots(StripeId(entry.stripe));
    let whole = Set64::below(map.columns());
    let holder = if entry.parity == Parity::P { Some(map.p_slot()) } else { map.q_slot() };
    let written = Set64(entry.written);
    holder == Some(slot) && written.without(whole).is_empty() && (entry.payload_bytes > 0 || written == whole)
}

/// What is known of a range of rows.
struct KnownRows<'g> {
    map: StripeMap,
    /// In bytes of the member.
    offset: u64,
    length: u32,
    /// What the unwritten columns contribute; `None` where there is no copy.
    unwritten: [Option<&'g [u8]>; 2],
    /// What written columns hold, as far as they are there.
    data: [Option<Vec<u8>>; MEMBERS_MAX],
}

/// What became of some rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// All has been done that can be.
    Done,
    /// A column can't be read, but parts of it may be.
    InParts,
}

async fn replay_rows(
    members: &Members<'_>,
    group: &Group,
    from: u32,
    to: u32,
) -> Result<Outcome, AssembleError> {
    let entry = &group.entry;
    let map = members.geometry.slots(StripeId(entry.stripe));
    let zeroes = vec![0; (to - from) as usize];
    let range = (from - entry.start) as usize..(to - entry.start) as usize;
    let offset = members.geometry.member_offset(StripeId(entry.stripe)) + u64::from(from);
    let mut unwritten = [None, None];
    for (index, (parity, slot)) in
        [(Parity::P, Some(map.p_slot())), (Parity::Q, map.q_slot())].into_iter().enumerate()
    {
        let Some(slot) = slot.filter(|_| entry.copies & parity.bit() != 0) else { continue };
        if !members.holds(slot, offset, (to - from).into()) {
            if members.may_hold_parts(slot, offset, to - from) {
                return Ok(Outcome::InParts);
            }
            // Of a member that is just being rebuilt there this parity is not needed, and its log may be
            // younger than the batch.
            continue;
        }
        let Some(payload) = &group.copies[index] else {
            // Not begun, or over.
            return Ok(Outcome::Done);
        };
        unwritten[index] = Some(payload.get(range.clone()).unwrap_or(&zeroes));
    }
    let mut rows =
        KnownRows { map, offset, length: to - from, unwritten, data: [const { None }; MEMBERS_MAX] };
    let mut lost = Set64::EMPTY;
    for column in Set64(entry.written) {
        let slot = map.data_slot(column);
        rows.data[column] = members.read(slot, offset, to - from).await?;
        if rows.data[column].is_none() {
            if members.may_hold_parts(slot, offset, to - from) {
                return Ok(Outcome::InParts);
            }
            lost.insert(column);
        }
    }
    if lost.is_empty() {
        rows.write_p(members).await?;
        rows.write_q(members).await?;
        return Ok(Outcome::Done);
    }
    let (Some(column), 1, Some(unwritten)) = (lost.iter().next(), lost.len(), rows.unwritten[0]) else {
        return Ok(Outcome::Done);
    };
    let Some(p) = members.read(map.p_slot(), offset, to - from).await? else {
        let in_parts = members.may_hold_parts(map.p_slot(), offset, to - from);
        return Ok(if in_parts { Outcome::InParts } else { Outcome::Done });
    };
    let mut column_bytes = rows.p_from(unwritten);
    pinstripe_parity::kernel().xor_into(&mut column_bytes, &[&p]);
    rows.data[column] = Some(column_bytes);
    rows.write_q(members).await?;
    Ok(Outcome::Done)
}

impl KnownRows<'_> {
    fn p_from(&self, unwritten: &[u8]) -> Vec<u8> {
        let mut p = unwritten.to_vec();
        for data in self.data.iter().flatten() {
            pinstripe_parity::kernel().xor_into(&mut p, &[data]);
        }
        p
    }

    async fn write_p(&self, members: &Members<'_>) -> Result<(), AssembleError> {
        let Some(unwritten) = self.unwritten[0] else { return Ok(()) };
        members.write(self.map.p_slot(), self.offset, &self.p_from(unwritten)).await
    }

    async fn write_q(&self, members: &Members<'_>) -> Result<(), AssembleError> {
        let (Some(unwritten), Some(slot)) = (self.unwritten[1], self.map.q_slot()) else { return Ok(()) };
        debug_assert_eq!(u64::from(self.length) % SECTOR_BYTES, 0);
        let mut q = unwritten.to_vec();
        for (column, data) in self.data.iter().enumerate() {
            if let Some(data) = data {
                pinstripe_parity::kernel().accumulate_q(&mut q, data, exponent(self.map, column));
            }
        }
        members.write(slot, self.offset, &q).await
    }
}
