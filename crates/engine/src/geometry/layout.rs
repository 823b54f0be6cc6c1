//! MD's layouts as the address maps need them: a level and an algorithm that belong together.

use pinstripe_md::level::{Level, ParityLayout as Algorithm};

use super::GeometryError;

/// Which of the two historical maps a RAID0 of unequal members uses; they differ from its second zone on.
/// Unlike the format's, it always says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Raid0Layout {
    /// MD's layout 1: the member is picked by the chunk's number in the array.
    Original,
    /// MD's layout 2: the member is picked by the chunk's number in its zone.
    Alternate,
}

impl Raid0Layout {
    /// From MD's layout number. What number 0 (unspecified) means for the array at hand is the caller's to
    /// say.
    pub fn from_md(layout: u32) -> Result<Self, GeometryError> {
        match layout {
            1 => Ok(Self::Original),
            2 => Ok(Self::Alternate),
            _ => Err(GeometryError::Layout { level: 0, layout }),
        }
    }
}

/// The layout of a parity level, the level included: one of the 21 that MD has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParityLayout {
    level: Level,
    algorithm: Algorithm,
}

impl ParityLayout {
    /// Level 4: P on the last member.
    pub const RAID4: Self = Self { level: Level::Raid4, algorithm: Algorithm::ParityLast };

    /// An algorithm of level 5 or 6. Level 4 has one layout and ignores the algorithm, as MD does.
    pub fn new(level: Level, algorithm: Algorithm) -> Result<Self, GeometryError> {
        match level {
            Level::Raid4 => Ok(Self::RAID4),
            Level::Raid5 | Level::Raid6 if algorithm.belongs_to(level) => Ok(Self { level, algorithm }),
            Level::Raid5 | Level::Raid6 => {
                Err(GeometryError::Layout { level: level.number(), layout: algorithm.number() })
            }
            _ => Err(GeometryError::Level { level: level.number() }),
        }
    }

    /// From MD's level and algorithm numbers.
    pub fn from_md(level: i32, layout: u32) -> Result<Self, GeometryError> {
        match Level::from_number(level) {
            Some(Level::Raid4) => Ok(Self::RAID4),
            Some(known @ (Level::Raid5 | Level::Raid6)) => Algorithm::from_number(known, layout)
                .map(|algorithm| Self { level: known, algorithm })
                .ok_or(GeometryError::Layout { level, layout }),
            _ => Err(GeometryError::Level { level }),
        }
    }

    /// Every layout of every parity level.
    pub fn all() -> impl Iterator<Item = Self> {
        let of = |level| Algorithm::all_of(level).map(move |algorithm| Self { level, algorithm });
        std::iter::once(Self::RAID4).chain(of(Level::Raid5)).chain(of(Level::Raid6))
    }

    /// MD's level number: 4, 5 or 6.
    pub fn level(self) -> i32 {
        self.level.number()
    }

    /// The algorithm; [`Algorithm::ParityLast`] on level 4, which is what it does.
    pub fn algorithm(self) -> Algorithm {
        self.algorithm
    }

    /// mdadm's name of the algorithm.
    pub fn name(self) -> &'static str {
        self.algorithm.name()
    }

    /// How many parity chunks a stripe has: 1, or 2 on level 6.
    pub fn parities(self) -> usize {
        if self.level == Level::Raid6 { 2 } else { 1 }
    }

    /// The fewest members: MD takes a RAID4 or RAID5 of two and a RAID6 of four.
    pub fn members_min(self) -> usize {
        if self.level == Level::Raid6 { 4 } else { 2 }
    }
}
