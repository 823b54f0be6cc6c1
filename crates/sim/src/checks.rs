//! What must be true of the bytes on the members, looked at past the engine: superblocks, bitmap and parity
//! of rows.
//!
//! The arithmetic is this module's own (P by XOR, Q by Horner's rule over the field of Linux's RAID 6), so
//! that a mistake in the shipped kernels is not made twice. Where a row lies is asked of the engine's
//! geometry, which the golden images check.

use pinstripe_engine::geometry::{MemberSlot, ParityGeometry, StripeId, StripeMap};
use pinstripe_md::{
    bad_blocks::BadBlocks,
    bitmap::{BitmapHeader, BitmapImage},
    superblock::{ResyncOffset, Role, SUPERBLOCK_BYTES_MAX, Superblock, candidate_sectors},
};

use crate::{Contents, CrashImage, SECTOR, SimDisk, rng::index};

/// What lies on a disk: as it is now, or as a crash would leave it.
pub trait Platter {
    /// Bytes.
    fn size(&self) -> u64;
    /// `length` bytes from `offset`.
    fn peek(&self, offset: u64, length: usize) -> Vec<u8>;
}

impl Platter for SimDisk {
    fn size(&self) -> u64 {
        self.info().size
    }

    fn peek(&self, offset: u64, length: usize) -> Vec<u8> {
        self.peek(offset, length)
    }
}

impl Platter for CrashImage<'_> {
    fn size(&self) -> u64 {
        self.disk().info().size
    }

    fn peek(&self, offset: u64, length: usize) -> Vec<u8> {
        self.peek(offset, length)
    }
}

/// The members of an array as their superblocks tell it, by our own reading.
pub struct Survey {
    /// The superblock with the most events.
    pub freshest: Superblock,
    /// By slot: the disk's number and its superblock, for members that are current.
    pub seats: Vec<Option<(usize, Superblock)>>,
}

/// A whole member as its superblock tells it.
pub struct WholeMember<'d, P> {
    /// Its disk.
    pub disk: &'d P,
    /// Where its data begins, in bytes.
    pub data: u64,
    /// Sectors that it lists as bad: what they hold says nothing.
    pub listed: BadBlocks,
}

impl<P> WholeMember<'_, P> {
    /// Whether it lists a sector of these bytes of its data.
    pub fn is_listed(&self, offset: u64, length: u64) -> bool {
        let sectors = (self.data + offset) / SECTOR..(self.data + offset + length).div_ceil(SECTOR);
        self.listed.first_overlap(sectors).is_some()
    }
}

/// What is wrong on the members.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A superblock that can't be read, or a set of them that makes no sense.
    #[error("superblocks: {0}")]
    Superblocks(String),
    /// Parity that should match does not.
    #[error("parity of stripe {stripe}, byte {row} of the chunk, does not match ({why})")]
    Parity {
        /// The stripe.
        stripe: u64,
        /// The first byte of the first sector that does not match, in the chunk.
        row: u64,
        /// Why it should.
        why: &'static str,
    },
    /// A row with parity that does not match is not covered by the bitmap.
    #[error("stripe {stripe}, byte {row} of the chunk, does not match, and no bit is set for it")]
    Uncovered {
        /// The stripe.
        stripe: u64,
        /// The first byte, in the chunk.
        row: u64,
    },
    /// A sector holds what no crash may leave.
    #[error("sector {sector} would hold {found:?}")]
    Lost {
        /// The array's sector.
        sector: u64,
        /// What it would hold.
        found: Contents,
    },
    /// Devices are missing past what may be.
    #[error("{0}")]
    Members(String),
}

/// The superblock of a disk, by its current contents.
pub fn superblock(disk: &impl Platter) -> Option<Superblock> {
    let sectors = disk.size() / SECTOR;
    candidate_sectors(sectors).find_map(|place| {
        let bytes = disk.peek(place.0 * SECTOR, SUPERBLOCK_BYTES_MAX);
        Superblock::decode(&bytes, place, sectors).ok()
    })
}

/// The sectors that a disk lists as bad.
fn listed(disk: &impl Platter, superblock: &Superblock) -> Result<BadBlocks, Damage> {
    let wrong = |error: &dyn ToString| Damage::Superblocks(format!("bad-block log: {}", error.to_string()));
    let log = superblock.member.bad_block_log.filter(|log| log.in_use);
    let Some((log, place)) = log.zip(superblock.bad_block_log_sector()) else {
        return BadBlocks::new(0).map_err(|error| wrong(&error));
    };
    let bytes = disk.peek(place.0 * SECTOR, index(u64::from(log.size) * SECTOR));
    BadBlocks::decode(&bytes, log.shift).map_err(|error| wrong(&error))
}

/// Reads the superblocks of `disks` (number and disk) and seats the current members.
pub fn survey<'a, P: Platter + 'a>(disks: impl Iterator<Item = (usize, &'a P)>) -> Result<Survey, Damage> {
    let mut found = Vec::new();
    for (number, disk) in disks {
        let Some(superblock) = superblock(disk) else {
            return Err(Damage::Superblocks(format!("disk {number} has none that is whole")));
        };
        found.push((number, superblock));
    }
    let freshest = found.iter().max_by_key(|(_, superblock)| superblock.freshness());
    let freshest = freshest.map(|(_, superblock)| superblock.clone());
    let freshest = freshest.ok_or_else(|| Damage::Superblocks("no disk is left".to_owned()))?;
    let mut seats = vec![None; freshest.array.raid_disks as usize];
    for (number, superblock) in found {
        let role = freshest.array.roles.get(usize::from(superblock.member.dev_number.0));
        let current = superblock.array.events + 1 >= freshest.array.events;
        if let (Some(Role::Slot(slot)), true) = (role, current) {
            let seat: &mut Option<(usize, Superblock)> = &mut seats[usize::from(slot.0)];
            // A replacement in progress: the slot is its former member's as long as that is here.
            if superblock.member.replacement && seat.is_some() {
                continue;
            }
            if let Some((other, former)) = seat
                && !former.member.replacement
            {
                return Err(Damage::Superblocks(format!(
                    "disks {other} and {number} both hold slot {}",
                    slot.0
                )));
            }
            *seat = Some((number, superblock));
        }
    }
    Ok(Survey { freshest, seats })
}

impl Survey {
    /// Slots with a member that is here and whole.
    pub fn whole(&self) -> usize {
        let whole = |seat: &&Option<(usize, Superblock)>| {
            seat.as_ref().is_some_and(|(_, superblock)| superblock.member.recovery_offset.is_none())
        };
        self.seats.iter().filter(whole).count()
    }

    /// Whether the superblocks say that parity can't be trusted.
    pub fn is_dirty(&self) -> bool {
        self.freshest.array.resync_offset != ResyncOffset::Clean
    }

    /// Whether the array is dirty and has a log on the members, which is replayed first: each of them names
    /// it.
    pub fn is_logged(&self) -> bool {
        let has_ppl = |(_, superblock): &(usize, Superblock)| superblock.member.ppl.is_some();
        let is_named =
            self.freshest.array.needs_double_parity_log || self.seats.iter().flatten().all(has_ppl);
        is_named && self.is_dirty()
    }

    /// Checks that no member's bitmap is older than the superblocks: a start would take all its bits for set.
    pub fn check_headers(&self, disks: &[impl Platter]) -> Result<(), Damage> {
        for (number, superblock) in self.seats.iter().flatten() {
            let Some(sector) = superblock.bitmap_sector() else { continue };
            let header = BitmapHeader::decode(&disks[*number].peek(sector.0 * SECTOR, 512));
            let is_fresh =
                |header: &BitmapHeader| header.events >= self.freshest.array.events && !header.stale;
            if !header.as_ref().is_ok_and(is_fresh) {
                let events = self.freshest.array.events;
                return Err(Damage::Superblocks(format!(
                    "bitmap of disk {number} is older than the array's {events} events: {header:?}"
                )));
            }
        }
        Ok(())
    }

    /// The OR of the current members' bitmaps; `None` without one.
    pub fn bitmap(&self, disks: &[impl Platter]) -> Result<Option<BitmapImage>, Damage> {
        if self.freshest.array.bitmap_offset.is_none() {
            return Ok(None);
        }
        let mut merged: Option<BitmapImage> = None;
        for (number, superblock) in self.seats.iter().flatten() {
            let wrong = |what: String| Damage::Superblocks(format!("bitmap of disk {number}: {what}"));
            let Some(sector) = superblock.bitmap_sector() else { continue };
            let head = disks[*number].peek(sector.0 * SECTOR, 512);
            let header = BitmapHeader::decode(&head).map_err(|error| wrong(error.to_string()))?;
            let bytes = disks[*number].peek(sector.0 * SECTOR, index(header.sectors().0 * SECTOR));
            let mut image = BitmapImage::decode(&bytes).map_err(|error| wrong(error.to_string()))?;
            if header.events < self.freshest.array.events || header.stale {
                // Older than the superblocks: it says nothing, so everything may be dirty.
                image.set_range(0..header.bit_count());
            }
            match &mut merged {
                None => merged = Some(image),
                Some(merged) => {
                    if !merged.merge(&image) {
                        return Err(wrong("of another size than the others".to_owned()));
                    }
                }
            }
        }
        Ok(merged)
    }

    /// Checks that what the superblocks and the bitmap call in sync is: what a crash must leave at any
    /// moment.
    pub fn check_covered(&self, disks: &[impl Platter], geometry: &ParityGeometry) -> Result<(), Damage> {
        self.check_stripes_covered(disks, geometry, 0..geometry.stripes())
    }

    /// The same for some stripes.
    pub fn check_stripes_covered(
        &self,
        disks: &[impl Platter],
        geometry: &ParityGeometry,
        stripes: impl Iterator<Item = u64>,
    ) -> Result<(), Damage> {
        let bitmap = self.bitmap(disks)?;
        let dirty_from = match self.freshest.array.resync_offset {
            ResyncOffset::Clean => None,
            ResyncOffset::DirtyFrom(sector) => Some(sector.0 * SECTOR),
        };
        let members = self.members(disks)?;
        for_each_mismatch(geometry, &members, stripes, |stripe, row| {
            let at = geometry.member_offset(StripeId(stripe)) + row;
            let Some(from) = dirty_from else {
                return Err(Damage::Parity { stripe, row, why: "the superblocks are clean" });
            };
            if at < from {
                return Err(Damage::Parity { stripe, row, why: "the superblocks say that it is in sync" });
            }
            let covered = bitmap.as_ref().is_none_or(|bitmap| {
                bitmap.is_set(bitmap.header().bit_of(pinstripe_md::units::Sector(at / SECTOR)))
            });
            if covered { Ok(()) } else { Err(Damage::Uncovered { stripe, row }) }
        })
    }

    /// By slot: the members that are whole.
    pub fn members<'d, P: Platter>(&self, disks: &'d [P]) -> Result<Vec<Option<WholeMember<'d, P>>>, Damage> {
        let member = |seat: &Option<(usize, Superblock)>| {
            let whole = seat.as_ref().filter(|(_, superblock)| superblock.member.recovery_offset.is_none());
            let held = |(number, superblock): &(usize, Superblock)| {
                let disk = &disks[*number];
                let data = superblock.member.data_offset.0 * SECTOR;
                Ok(WholeMember { disk, data, listed: listed(disk, superblock)? })
            };
            whole.map(held).transpose()
        };
        self.seats.iter().map(member).collect()
    }
}

/// Checks the parity of every row of some stripes by the disks' current contents.
pub fn check_parity(
    geometry: &ParityGeometry,
    members: &[Option<WholeMember<'_, impl Platter>>],
    stripes: impl Iterator<Item = u64>,
    why: &'static str,
) -> Result<(), Damage> {
    for_each_mismatch(geometry, members, stripes, |stripe, row| Err(Damage::Parity { stripe, row, why }))
}

/// Calls `found` for every sector row with chunks that contradict each other. Members that are not there are
/// worked out if that leaves something to compare; so is what a member lists as bad.
fn for_each_mismatch(
    geometry: &ParityGeometry,
    members: &[Option<WholeMember<'_, impl Platter>>],
    stripes: impl Iterator<Item = u64>,
    mut found: impl FnMut(u64, u64) -> Result<(), Damage>,
) -> Result<(), Damage> {
    let missing = members.iter().filter(|member| member.is_none()).count();
    if missing >= geometry.redundancy() {
        return Ok(());
    }
    let chunk = geometry.chunk_bytes() as usize;
    for stripe in stripes {
        let offset = geometry.member_offset(StripeId(stripe));
        let peek = |held: &WholeMember<'_, _>| Platter::peek(held.disk, held.data + offset, chunk);
        let chunks: Vec<Option<Vec<u8>>> = members.iter().map(|held| held.as_ref().map(peek)).collect();
        let map = geometry.slots(StripeId(stripe));
        let wrong = contradictions(map, &chunks, chunk);
        for (sector, _) in wrong.iter().enumerate().filter(|(_, wrong)| **wrong) {
            let row = sector as u64 * SECTOR;
            let is_listed = |slot: &usize| {
                members[*slot].as_ref().is_some_and(|held| held.is_listed(offset + row, SECTOR))
            };
            let listed: Vec<usize> = (0..members.len()).filter(is_listed).collect();
            if !listed.is_empty() {
                if missing + listed.len() >= geometry.redundancy() {
                    continue;
                }
                let rest =
                    (0..chunks.len()).map(|slot| chunks[slot].clone().filter(|_| !listed.contains(&slot)));
                if !contradictions(map, &rest.collect::<Vec<_>>(), chunk)[sector] {
                    continue;
                }
            }
            found(stripe, row)?;
        }
    }
    Ok(())
}

/// Which sector rows of a stripe contradict themselves. At most one chunk fewer than the redundancy may be
/// missing.
pub fn contradictions(map: StripeMap, chunks: &[Option<Vec<u8>>], chunk: usize) -> Vec<bool> {
    let mut p = vec![0_u64; chunk / 8];
    let mut q = vec![0_u64; chunk / 8];
    let mut lost_exponent = None;
    for exponent in (0..map.q_exponents()).rev() {
        double(&mut q);
        let Some(column) = map.column_of_exponent(exponent) else { continue };
        match &chunks[map.data_slot(column).index()] {
            Some(data) => {
                add(&mut p, data);
                add(&mut q, data);
            }
            None => lost_exponent = Some(exponent),
        }
    }
    let known = |slot: Option<MemberSlot>| slot.and_then(|slot| chunks[slot.index()].as_deref());
    let (on_p, on_q) = (known(Some(map.p_slot())), known(map.q_slot()));
    // With nothing lost both differences are zero; with one column lost, the difference of Q is that of P,
    // scaled.
    let mut wrong = vec![false; chunk / 512];
    if let Some(bytes) = on_p {
        add(&mut p, bytes);
    }
    if let Some(bytes) = on_q {
        add(&mut q, bytes);
    }
    match lost_exponent {
        None => {
            if on_p.is_some() {
                mark(&mut wrong, &p);
            }
            if on_q.is_some() {
                mark(&mut wrong, &q);
            }
        }
        Some(exponent) => {
            if on_p.is_some() && on_q.is_some() {
                (0..exponent).for_each(|_| double(&mut p));
                for (q, p) in q.iter_mut().zip(&p) {
                    *q ^= p;
                }
                mark(&mut wrong, &q);
            }
        }
    }
    wrong
}

fn mark(wrong: &mut [bool], difference: &[u64]) {
    for (wrong, words) in wrong.iter_mut().zip(difference.chunks(64)) {
        *wrong |= words.iter().any(|&word| word != 0);
    }
}

fn add(sum: &mut [u64], bytes: &[u8]) {
    for (sum, word) in sum.iter_mut().zip(bytes.chunks_exact(8)) {
        *sum ^= word.try_into().map_or(0, u64::from_le_bytes);
    }
}

/// Multiplies every byte by 2 in the field of x^8 + x^4 + x^3 + x^2 + 1.
fn double(words: &mut [u64]) {
    const TOP: u64 = 0x8080_8080_8080_8080;
    for word in words {
        let carry = (*word & TOP) >> 7;
        *word = (*word & !TOP) << 1 ^ carry.wrapping_mul(0x1d);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinstripe_engine::geometry::ParityLayout;

    fn stripe(members: usize) -> (StripeMap, Vec<Option<Vec<u8>>>) {
        let layout = ParityLayout::from_md(6, 2).unwrap();
        let geometry = ParityGeometry::new(layout, members, 4096, 16 * 4096, 512).unwrap();
        let map = geometry.slots(StripeId(3));
        let mut rng = crate::Rng::new(5);
        let mut chunks: Vec<Vec<u8>> = vec![vec![0; 4096]; members];
        let (mut p, mut q) = (vec![0; 4096], vec![0; 4096]);
        for column in 0..map.columns() {
            let data = &mut chunks[map.data_slot(column).index()];
            rng.fill(data);
            for at in 0..4096 {
                p[at] ^= data[at];
                q[at] ^= slow_multiply(data[at], map.q_exponent(column));
            }
        }
        chunks[map.p_slot().index()] = p;
        chunks[map.q_slot().unwrap().index()] = q;
        (map, chunks.into_iter().map(Some).collect())
    }

    /// By definition: shift, and reduce by 0x11d.
    fn slow_multiply(byte: u8, exponent: usize) -> u8 {
        (0..exponent).fold(byte, |b, _| (b << 1) ^ if b & 0x80 != 0 { 0x1d } else { 0 })
    }

    #[test]
    fn rows_that_match_are_passed_and_any_changed_sector_is_found_with_one_member_missing_too() {
        let (map, whole) = stripe(6);
        for missing in [None, Some(0), Some(1), Some(2), Some(3), Some(4), Some(5)] {
            let mut chunks = whole.clone();
            if let Some(slot) = missing {
                chunks[slot] = None;
            }
            assert!(!contradictions(map, &chunks, 4096).contains(&true), "{missing:?}");
            for slot in (0..6).filter(|slot| Some(*slot) != missing) {
                let mut damaged = chunks.clone();
                damaged[slot].as_mut().unwrap()[1030] ^= 4;
                let wrong = contradictions(map, &damaged, 4096);
                assert_eq!(wrong.iter().filter(|w| **w).count(), 1, "{missing:?} {slot}");
                assert!(wrong[2]);
            }
        }
    }
}
