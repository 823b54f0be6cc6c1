//! MD's layouts by name and number (`md-format.md` section 10).

use super::GeometryError;

/// Which of the two historical maps a RAID0 of unequal members uses; they differ from its second zone on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Raid0Layout {
    /// MD's layout 1: the member is picked by the chunk's number in the array.
    Original = 1,
    /// MD's layout 2: the member is picked by the chunk's number in its zone.
    Alternate = 2,
}

impl Raid0Layout {
    /// From MD's layout number. What number 0 (unspecified) means for the array at hand is the caller's to say.
    pub fn from_md(layout: u32) -> Result<Self, GeometryError> {
        match layout {
            1 => Ok(Self::Original),
            2 => Ok(Self::Alternate),
            _ => Err(GeometryError::Layout { level: 0, layout }),
        }
    }
}

/// MD's RAID5 algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[expect(
    missing_docs,
    reason = "each name is MD's own and its whole meaning is the table in md-format.md 10"
)]
pub enum Raid5Layout {
    LeftAsymmetric = 0,
    RightAsymmetric = 1,
    LeftSymmetric = 2,
    RightSymmetric = 3,
    ParityFirst = 4,
    ParityLast = 5,
}

impl Raid5Layout {
    /// All of them, in MD's order.
    pub const ALL: [Self; 6] = [
        Self::LeftAsymmetric,
        Self::RightAsymmetric,
        Self::LeftSymmetric,
        Self::RightSymmetric,
        Self::ParityFirst,
        Self::ParityLast,
    ];
}

/// MD's RAID6 algorithms. The `Ddf` ones weigh Q by the member's index; the ones that end in `6` are RAID5
/// layouts on all members but the last, which holds Q.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[expect(
    missing_docs,
    reason = "each name is MD's own and its whole meaning is the table in md-format.md 10"
)]
pub enum Raid6Layout {
    LeftAsymmetric = 0,
    RightAsymmetric = 1,
    LeftSymmetric = 2,
    RightSymmetric = 3,
    ParityFirst = 4,
    ParityLast = 5,
    DdfZeroRestart = 8,
    DdfNRestart = 9,
    DdfNContinue = 10,
    LeftAsymmetric6 = 16,
    RightAsymmetric6 = 17,
    LeftSymmetric6 = 18,
    RightSymmetric6 = 19,
    ParityFirst6 = 20,
}

impl Raid6Layout {
    /// All of them, in MD's order.
    pub const ALL: [Self; 14] = [
        Self::LeftAsymmetric,
        Self::RightAsymmetric,
        Self::LeftSymmetric,
        Self::RightSymmetric,
        Self::ParityFirst,
        Self::ParityLast,
        Self::DdfZeroRestart,
        Self::DdfNRestart,
        Self::DdfNContinue,
        Self::LeftAsymmetric6,
        Self::RightAsymmetric6,
        Self::LeftSymmetric6,
        Self::RightSymmetric6,
        Self::ParityFirst6,
    ];
}

/// The layout of a parity level, the level included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParityLayout {
    /// Level 4: P on the last member.
    Raid4,
    /// Level 5.
    Raid5(Raid5Layout),
    /// Level 6.
    Raid6(Raid6Layout),
}

impl ParityLayout {
    /// Every layout of every parity level.
    pub fn all() -> impl Iterator<Item = Self> {
        std::iter::once(Self::Raid4)
            .chain(Raid5Layout::ALL.into_iter().map(Self::Raid5))
            .chain(Raid6Layout::ALL.into_iter().map(Self::Raid6))
    }

    /// From MD's level and algorithm numbers. Level 4 has one layout and ignores the number, as MD does.
    pub fn from_md(level: i32, layout: u32) -> Result<Self, GeometryError> {
        match level {
            4 => Ok(Self::Raid4),
            5 | 6 => Self::all()
                .find(|each| each.level() == level && each.md_number() == layout)
                .ok_or(GeometryError::Layout { level, layout }),
            _ => Err(GeometryError::Level { level }),
        }
    }

    /// MD's level number.
    pub const fn level(self) -> i32 {
        match self {
            Self::Raid4 => 4,
            Self::Raid5(_) => 5,
            Self::Raid6(_) => 6,
        }
    }

    /// MD's algorithm number (0 on level 4).
    pub const fn md_number(self) -> u32 {
        match self {
            Self::Raid4 => 0,
            Self::Raid5(layout) => layout as u32,
            Self::Raid6(layout) => layout as u32,
        }
    }

    /// The name that mdadm uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raid4 => "parity-last",
            Self::Raid5(layout) => match layout {
                Raid5Layout::LeftAsymmetric => "left-asymmetric",
                Raid5Layout::RightAsymmetric => "right-asymmetric",
                Raid5Layout::LeftSymmetric => "left-symmetric",
                Raid5Layout::RightSymmetric => "right-symmetric",
                Raid5Layout::ParityFirst => "parity-first",
                Raid5Layout::ParityLast => "parity-last",
            },
            Self::Raid6(layout) => match layout {
                Raid6Layout::LeftAsymmetric => "left-asymmetric",
                Raid6Layout::RightAsymmetric => "right-asymmetric",
                Raid6Layout::LeftSymmetric => "left-symmetric",
                Raid6Layout::RightSymmetric => "right-symmetric",
                Raid6Layout::ParityFirst => "parity-first",
                Raid6Layout::ParityLast => "parity-last",
                Raid6Layout::DdfZeroRestart => "ddf-zero-restart",
                Raid6Layout::DdfNRestart => "ddf-N-restart",
                Raid6Layout::DdfNContinue => "ddf-N-continue",
                Raid6Layout::LeftAsymmetric6 => "left-asymmetric-6",
                Raid6Layout::RightAsymmetric6 => "right-asymmetric-6",
                Raid6Layout::LeftSymmetric6 => "left-symmetric-6",
                Raid6Layout::RightSymmetric6 => "right-symmetric-6",
                Raid6Layout::ParityFirst6 => "parity-first-6",
            },
        }
    }

    /// How many parity chunks a stripe has: 1, or 2 on level 6.
    pub const fn parities(self) -> usize {
        match self {
            Self::Raid6(_) => 2,
            _ => 1,
        }
    }

    /// The fewest members: MD takes a RAID4 or RAID5 of two and a RAID6 of four.
    pub const fn members_min(self) -> usize {
        match self {
            Self::Raid6(_) => 4,
            _ => 2,
        }
    }
}
