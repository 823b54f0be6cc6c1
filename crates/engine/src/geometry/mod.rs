//! Where a byte of the array lies on the members: MD's address maps as pure arithmetic.
//!
//! Two families share nothing but their name, so they are two types, and what one of them can't do does not
//! exist on it: [`Raid0Geometry`] maps an array offset to a member offset. [`ParityGeometry`] (levels 4, 5
//! and 6) cuts the array into stripes of `k` data chunks, and a [`StripeMap`] says which member holds which
//! of them.
//! Both are validated once by their constructors; after that every in-range question has an answer.
//!
//! Units: everything is in **bytes**. Array offsets and member offsets are `u64` (member offsets are relative
//! to the member's data area, so the caller adds `data_offset`). Offsets within a chunk or within the data of
//! one stripe are `u32`: a chunk has at most [`CHUNK_BYTES_MAX`], a stripe at most 63 of them.
//!
//! Source: `docs/formats.md` section 10, which was checked against arrays made by the kernel.

mod layout;
mod parity;
mod raid0;

#[cfg(test)]
mod tests;

pub use layout::{ParityLayout, Raid0Layout};
pub use parity::{ParityGeometry, Piece, Pieces, Role, StripeMap, StripePiece, StripePieces};
pub use raid0::{Extent, Raid0Geometry};

/// The most members of an array that we serve: sets of members are one machine word.
pub const MEMBERS_MAX: usize = 64;
/// The largest chunk that we serve, in bytes (16 MiB), so that offsets within a stripe's data fit a `u32`.
pub const CHUNK_BYTES_MAX: u32 = 16 << 20;
/// The smallest chunk of a parity level, in bytes: MD's page.
pub const CHUNK_BYTES_MIN: u32 = 4096;

/// A member's place in the array, `0..members` (MD's role number, not its `dev_number`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberSlot(pub u8);

impl MemberSlot {
    /// The slot with an index.
    ///
    /// # Panics
    ///
    /// If no array has such a slot: an array has fewer than 256.
    pub fn at(index: usize) -> Self {
        Self(u8::try_from(index).expect("a slot of the array"))
    }

    /// The slot as an index into a list of members.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl std::fmt::Display for MemberSlot {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

/// The number of a stripe: stripe `s` occupies bytes `s * chunk .. (s + 1) * chunk` of every member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StripeId(pub u64);

/// A set of small numbers below 64: member slots or data columns, whichever the context says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Set64(pub u64);

impl Set64 {
    /// The set without members.
    pub const EMPTY: Self = Self(0);

    /// The numbers `0..count`; `count` is at most 64.
    pub const fn below(count: usize) -> Self {
        if count >= 64 { Self(u64::MAX) } else { Self((1 << count) - 1) }
    }

    /// The set of `index` alone.
    pub const fn only(index: usize) -> Self {
        Self(1 << index)
    }

    /// Whether `index` is in the set.
    pub const fn contains(self, index: usize) -> bool {
        index < 64 && self.0 >> index & 1 == 1
    }

    /// Puts `index` (below 64) into the set.
    pub const fn insert(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    /// How many numbers the set has.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set has none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What is in both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// What is in either set.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is in this set and not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The numbers, ascending.
    pub const fn iter(self) -> Set64Iter {
        Set64Iter(self.0)
    }
}

impl IntoIterator for Set64 {
    type Item = usize;
    type IntoIter = Set64Iter;

    fn into_iter(self) -> Set64Iter {
        self.iter()
    }
}

impl FromIterator<usize> for Set64 {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut set = Self::EMPTY;
        for number in numbers {
            set.insert(number);
        }
        set
    }
}

/// The numbers of a [`Set64`], ascending.
#[derive(Clone, Debug)]
pub struct Set64Iter(u64);

impl Iterator for Set64Iter {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let index = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(index)
    }
}

/// Why a set of parameters is no array that we can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The level is none of 0, 4, 5, 6.
    #[error("level {level} is not served; levels 0, 4, 5 and 6 are")]
    Level {
        /// MD's level number.
        level: i32,
    },
    /// MD has no such algorithm on this level.
    #[error("layout {layout} is unknown on level {level}")]
    Layout {
        /// MD's level number.
        level: i32,
        /// MD's algorithm number.
        layout: u32,
    },
    /// Fewer members than the level needs.
    #[error("{members} members are too few: level {level} needs at least {least}")]
    TooFewMembers {
        /// MD's level number.
        level: i32,
        /// Members given.
        members: usize,
        /// Members needed.
        least: usize,
    },
    /// More than [`MEMBERS_MAX`] members.
    #[error("{members} members are too many: MD allows more, but Pinstripe serves at most {MEMBERS_MAX}")]
    TooManyMembers {
        /// Members given.
        members: usize,
    },
    /// The logical block is none of 512, 1024, 2048, 4096.
    #[error("a logical block of {logical_block} bytes is not served; use 512 to 4096, a power of two")]
    LogicalBlock {
        /// Bytes.
        logical_block: u32,
    },
    /// A parity level's chunk must be a power of two from 4 KiB to [`CHUNK_BYTES_MAX`].
    #[error(
        "a chunk of {chunk_bytes} bytes is not served; a parity level needs a power of two from 4 KiB to 16 MiB"
    )]
    ParityChunk {
        /// Bytes.
        chunk_bytes: u32,
    },
    /// A RAID0 chunk must be a multiple of the logical block, at most [`CHUNK_BYTES_MAX`].
    #[error(
        "a RAID0 chunk of {chunk_bytes} bytes is not served; use a multiple of {logical_block} up to 16 MiB"
    )]
    Raid0Chunk {
        /// Bytes.
        chunk_bytes: u32,
        /// Bytes.
        logical_block: u32,
    },
    /// A member has no room for one chunk.
    #[error("member {slot} has {member_bytes} usable bytes, less than one chunk of {chunk_bytes}")]
    MemberTooSmall {
        /// The member; 0 for parity levels, where all members have the same size.
        slot: usize,
        /// Its usable bytes.
        member_bytes: u64,
        /// Bytes.
        chunk_bytes: u32,
    },
    /// On parity levels the used size of a member is a whole number of chunks.
    #[error("the member size of {member_bytes} bytes is no multiple of the chunk of {chunk_bytes}")]
    MemberSize {
        /// Its used bytes.
        member_bytes: u64,
        /// Bytes.
        chunk_bytes: u32,
    },
    /// The array would have more bytes than a file offset can say.
    #[error("the array would be larger than 2^63 - 1 bytes")]
    ArrayTooLarge,
}

/// Why a range is no range of this array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// It ends beyond the array.
    #[error("bytes {offset}+{length} end beyond the array's {array_bytes}")]
    BeyondEnd {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// The size of the array.
        array_bytes: u64,
    },
    /// It is not made of whole logical blocks.
    #[error("bytes {offset}+{length} are not whole logical blocks of {logical_block}")]
    Unaligned {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Bytes.
        logical_block: u32,
    },
}

/// The address map of an array of any level that we serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Geometry {
    /// Level 0: no redundancy, no stripes to keep consistent.
    Raid0(Raid0Geometry),
    /// Levels 4, 5, 6.
    Parity(ParityGeometry),
}

impl Geometry {
    /// The map of a level with parity; `None` of level 0.
    pub fn parity(&self) -> Option<&ParityGeometry> {
        match self {
            Self::Raid0(_) => None,
            Self::Parity(parity) => Some(parity),
        }
    }

    /// Whether there is parity: on every level but 0.
    pub fn has_parity(&self) -> bool {
        self.parity().is_some()
    }

    /// Whether the member of a slot holds data in any stripe: on level 4 one holds parity only.
    pub fn holds_data(&self, slot: usize) -> bool {
        self.parity().is_none_or(|parity| parity.holds_data(MemberSlot::at(slot)))
    }

    /// The layout's name as mdadm has it; empty on level 0.
    pub fn layout_name(&self) -> &'static str {
        self.parity().map_or("", |parity| parity.layout().name())
    }

    /// The user's bytes in one chunk of each member.
    pub fn stripe_bytes(&self) -> u64 {
        match self {
            Self::Raid0(raid0) => raid0.members() as u64 * u64::from(raid0.chunk_bytes()),
            Self::Parity(parity) => parity.stripe_bytes().into(),
        }
    }

    /// How many members the array has.
    pub fn members(&self) -> usize {
        match self {
            Self::Raid0(raid0) => raid0.members(),
            Self::Parity(parity) => parity.members(),
        }
    }

    /// MD's level number: 0, 4, 5 or 6.
    pub fn level(&self) -> i32 {
        match self {
            Self::Raid0(_) => 0,
            Self::Parity(parity) => parity.layout().level(),
        }
    }

    /// How many members may be missing with nothing lost: 0, 1 or 2.
    pub fn redundancy(&self) -> usize {
        match self {
            Self::Raid0(_) => 0,
            Self::Parity(parity) => parity.redundancy(),
        }
    }

    /// The bytes that the array's user sees.
    pub fn array_bytes(&self) -> u64 {
        match self {
            Self::Raid0(raid0) => raid0.array_bytes(),
            Self::Parity(parity) => parity.array_bytes(),
        }
    }

    /// The chunk, in bytes.
    pub fn chunk_bytes(&self) -> u32 {
        match self {
            Self::Raid0(raid0) => raid0.chunk_bytes(),
            Self::Parity(parity) => parity.chunk_bytes(),
        }
    }

    /// The smallest unit of I/O, in bytes: a power of two from 512 to 4096.
    pub fn logical_block(&self) -> u32 {
        match self {
            Self::Raid0(raid0) => raid0.logical_block(),
            Self::Parity(parity) => parity.logical_block(),
        }
    }

    /// Checks that a range lies in the array and is made of whole logical blocks.
    pub fn check_range(&self, offset: u64, length: u64) -> Result<(), RangeError> {
        check_range(offset, length, self.array_bytes(), self.logical_block())
    }
}

/// The same question for both families, asked at the edge of every address map.
fn check_range(offset: u64, length: u64, array_bytes: u64, logical_block: u32) -> Result<(), RangeError> {
    if offset.checked_add(length).is_none_or(|end| end > array_bytes) {
        return Err(RangeError::BeyondEnd { offset, length, array_bytes });
    }
    if (offset | length) & u64::from(logical_block - 1) != 0 {
        return Err(RangeError::Unaligned { offset, length, logical_block });
    }
    Ok(())
}

/// The size of an array is a file offset to everything that will ever address it.
fn check_array_bytes(array_bytes: u128) -> Result<u64, GeometryError> {
    match i64::try_from(array_bytes) {
        Ok(bytes) => Ok(bytes.unsigned_abs()),
        Err(_) => Err(GeometryError::ArrayTooLarge),
    }
}

/// What every level asks of members and logical block.
fn check_common(level: i32, members: usize, least: usize, logical_block: u32) -> Result<(), GeometryError> {
    if members < least {
        return Err(GeometryError::TooFewMembers { level, members, least });
    }
    if members > MEMBERS_MAX {
        return Err(GeometryError::TooManyMembers { members });
    }
    if !logical_block.is_power_of_two() || !(512..=4096).contains(&logical_block) {
        return Err(GeometryError::LogicalBlock { logical_block });
    }
    Ok(())
}
