//! RAID0: members of unequal size make zones; each zone stripes over the members that reach into it.

use super::{
    CHUNK_BYTES_MAX, GeometryError, MemberSlot, Raid0Layout, RangeError, check_array_bytes, check_common,
    check_range,
};

/// A run of bytes that is contiguous both in the array and on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The member.
    pub slot: MemberSlot,
    /// First byte, relative to the member's data area.
    pub member_offset: u64,
    /// How many bytes go on in both from there.
    pub length: u64,
}

/// A stretch of the array over a fixed set of members.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Zone {
    /// First byte in the array.
    array_start: u64,
    /// One past the last byte in the array.
    array_end: u64,
    /// First byte on each of its members.
    member_start: u64,
    /// The members that are larger than `member_start`, ascending.
    slots: Vec<MemberSlot>,
}

/// The address map of a RAID0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raid0Geometry {
    layout: Raid0Layout,
    members: usize,
    chunk_bytes: u32,
    logical_block: u32,
    array_bytes: u64,
    zones: Vec<Zone>,
}

impl Raid0Geometry {
    /// Makes the zones from each member's usable bytes, in slot order. What a member has beyond its last
    /// whole chunk is not used.
    pub fn new(
        layout: Raid0Layout,
        chunk_bytes: u32,
        logical_block: u32,
        member_bytes: &[u64],
    ) -> Result<Self, GeometryError> {
        check_common(0, member_bytes.len(), 1, logical_block)?;
        if chunk_bytes == 0 || chunk_bytes > CHUNK_BYTES_MAX || !chunk_bytes.is_multiple_of(logical_block) {
            return Err(GeometryError::Raid0Chunk { chunk_bytes, logical_block });
        }
        let chunk = u64::from(chunk_bytes);
        if let Some((slot, &bytes)) = member_bytes.iter().enumerate().find(|(_, bytes)| **bytes < chunk) {
            return Err(GeometryError::MemberTooSmall { slot, member_bytes: bytes, chunk_bytes });
        }
        let used: Vec<u64> = member_bytes.iter().map(|bytes| bytes - bytes % chunk).collect();
        let array_bytes = check_array_bytes(used.iter().map(|&bytes| u128::from(bytes)).sum())?;
        let zones = zones(&used);
        Ok(Self { layout, members: used.len(), chunk_bytes, logical_block, array_bytes, zones })
    }

    /// Which of the two maps it uses.
    pub fn layout(&self) -> Raid0Layout {
        self.layout
    }

    /// How many members the array has.
    pub fn members(&self) -> usize {
        self.members
    }

    /// The chunk, in bytes.
    pub fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    /// The smallest unit of I/O, in bytes.
    pub fn logical_block(&self) -> u32 {
        self.logical_block
    }

    /// The bytes that the array's user sees.
    pub fn array_bytes(&self) -> u64 {
        self.array_bytes
    }

    /// Whether both layouts are the same map for these members, so that an array which does not say which it
    /// has can be served all the same.
    pub fn is_layout_irrelevant(&self) -> bool {
        let chunk = u64::from(self.chunk_bytes);
        self.zones.iter().all(|zone| (zone.array_start / chunk).is_multiple_of(zone.slots.len() as u64))
    }

    /// Where an array offset lies, and for how long; `None` from the end of the array on.
    pub fn map(&self, array_offset: u64) -> Option<Extent> {
        let index = self.zones.partition_point(|zone| zone.array_end <= array_offset);
        let zone = self.zones.get(index)?;
        let (chunk, width) = (u64::from(self.chunk_bytes), zone.slots.len() as u64);
        let relative = array_offset - zone.array_start;
        let within = relative % chunk;
        let picked = match self.layout {
            Raid0Layout::Original => array_offset / chunk % width,
            Raid0Layout::Alternate => relative / chunk % width,
        };
        // A zone of one member is one run to its end.
        let length = if width == 1 { zone.array_end - array_offset } else { chunk - within };
        Some(Extent {
            slot: zone.slots[usize::try_from(picked).unwrap_or(0)],
            member_offset: zone.member_start + relative / (chunk * width) * chunk + within,
            length,
        })
    }

    /// The extents of a range of the array, in order, each cut to the range.
    pub fn extents(&self, offset: u64, length: u64) -> Result<impl Iterator<Item = Extent> + '_, RangeError> {
        check_range(offset, length, self.array_bytes, self.logical_block)?;
        let (mut at, end) = (offset, offset + length);
        Ok(std::iter::from_fn(move || {
            if at == end {
                return None;
            }
            let mut extent = self.map(at)?;
            extent.length = extent.length.min(end - at);
            at += extent.length;
            Some(extent)
        }))
    }

    /// The array offset of a member's byte; `None` where the member holds no array data.
    pub fn array_offset(&self, slot: MemberSlot, member_offset: u64) -> Option<u64> {
        let index = self.zones.partition_point(|zone| zone.member_start <= member_offset).checked_sub(1)?;
        let zone = &self.zones[index];
        let (chunk, width) = (u64::from(self.chunk_bytes), zone.slots.len() as u64);
        let position = zone.slots.iter().position(|&each| each == slot)? as u64;
        // The original layout starts a zone at whichever member the array's chunk number picks.
        let first = match self.layout {
            Raid0Layout::Original => zone.array_start / chunk % width,
            Raid0Layout::Alternate => 0,
        };
        let column = (position + width - first) % width;
        let relative = member_offset - zone.member_start;
        let array = zone.array_start + (relative / chunk * width + column) * chunk + relative % chunk;
        (array < zone.array_end).then_some(array)
    }
}

/// One zone per distinct member size, over the members that are larger than the size before.
fn zones(used: &[u64]) -> Vec<Zone> {
    let mut sizes = used.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    let (mut zones, mut array_start, mut member_start) = (Vec::with_capacity(sizes.len()), 0, 0);
    for size in sizes {
        let reaching = (0..=u8::MAX).zip(used).filter(|(_, bytes)| **bytes > member_start);
        let slots: Vec<MemberSlot> = reaching.map(|(slot, _)| MemberSlot(slot)).collect();
        let array_end = array_start + (size - member_start) * slots.len() as u64;
        zones.push(Zone { array_start, array_end, member_start, slots });
        (array_start, member_start) = (array_end, size);
    }
    zones
}
