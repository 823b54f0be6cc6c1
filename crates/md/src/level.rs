//! Levels and layouts: MD's numbers, mdadm's names, and which of them belong together.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A RAID level that MD knows. Not all of them are served; see [`Support`](crate::superblock::Support).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Members one after the other, without striping (-1).
    Linear,
    /// Several paths to one device (-4).
    Multipath,
    /// Striping without redundancy.
    Raid0,
    /// Mirrors.
    Raid1,
    /// Striping with all parity on the last member.
    Raid4,
    /// Striping with one rotating parity chunk per stripe.
    Raid5,
    /// Striping with two rotating parity chunks per stripe.
    Raid6,
    /// Striped mirrors.
    Raid10,
}

/// Every level, with MD's number and mdadm's name.
const LEVELS: [(Level, i32, &str); 8] = [
    (Level::Linear, -1, "linear"),
    (Level::Multipath, -4, "multipath"),
    (Level::Raid0, 0, "raid0"),
    (Level::Raid1, 1, "raid1"),
    (Level::Raid4, 4, "raid4"),
    (Level::Raid5, 5, "raid5"),
    (Level::Raid6, 6, "raid6"),
    (Level::Raid10, 10, "raid10"),
];

impl Level {
    /// The level with this number in the superblock.
    pub fn from_number(number: i32) -> Option<Self> {
        LEVELS.iter().find(|l| l.1 == number).map(|l| l.0)
    }

    /// The number in the superblock.
    pub fn number(self) -> i32 {
        self.entry().1
    }

    /// mdadm's name.
    pub fn name(self) -> &'static str {
        self.entry().2
    }

    /// Whether the level keeps parity, so that a [`ParityLayout`] or a parity member places it.
    pub fn has_parity(self) -> bool {
        self.parity_count() > 0
    }

    /// Parity chunks per stripe: 0, 1 or 2.
    pub fn parity_count(self) -> u16 {
        match self {
            Self::Raid4 | Self::Raid5 => 1,
            Self::Raid6 => 2,
            _ => 0,
        }
    }

    /// The fewest members the level can have in MD.
    pub fn members_min(self) -> u32 {
        match self {
            Self::Raid4 | Self::Raid5 => 2,
            Self::Raid6 => 4,
            _ => 1,
        }
    }

    fn entry(self) -> &'static (Self, i32, &'static str) {
        // Each level stands in the table; the tests hold it to that.
        LEVELS.iter().find(|l| l.0 == self).unwrap_or(&LEVELS[0])
    }
}

/// A level's name or number that MD doesn't know.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("'{0}' is no level: one of linear, 0, 1, 4, 5, 6, 10 is needed")]
pub struct BadLevel(pub String);

/// Reads `5` and `raid5` alike.
impl FromStr for Level {
    type Err = BadLevel;

    fn from_str(text: &str) -> Result<Self, BadLevel> {
        LEVELS
            .iter()
            .find(|(_, number, name)| *name == text || (*number >= 0 && number.to_string() == text))
            .map(|l| l.0)
            .ok_or_else(|| BadLevel(text.to_owned()))
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where parity and data lie in a stripe of RAID5 or RAID6; docs/formats.md section 10 has the address maps.
/// The first six belong to both levels, the others to RAID6 only.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ParityLayout {
    /// 0: parity rotates from the last member down, data in member order.
    LeftAsymmetric,
    /// 1: parity rotates from the first member up, data in member order.
    RightAsymmetric,
    /// 2: parity rotates from the last member down, data begins after it. The default.
    #[default]
    LeftSymmetric,
    /// 3: parity rotates from the first member up, data begins after it.
    RightSymmetric,
    /// 4: parity always first.
    ParityFirst,
    /// 5: parity always last.
    ParityLast,
    /// 8: DDF's RAID6, rotating from the first member up.
    DdfZeroRestart,
    /// 9: DDF's RAID6, rotating from the last member down.
    DdfNRestart,
    /// 10: DDF's RAID6, Q before P, data begins after P.
    DdfNContinue,
    /// 16: RAID5's layout 0 on all but the last member, which holds Q.
    LeftAsymmetric6,
    /// 17: RAID5's layout 1 on all but the last member, which holds Q.
    RightAsymmetric6,
    /// 18: RAID5's layout 2 on all but the last member, which holds Q.
    LeftSymmetric6,
    /// 19: RAID5's layout 3 on all but the last member, which holds Q.
    RightSymmetric6,
    /// 20: P always first, Q always last.
    ParityFirst6,
}

/// Every parity layout, with MD's number and mdadm's names: the full one first, then the short one if any.
const PARITY_LAYOUTS: [(ParityLayout, u32, &str, &str); 14] = [
    (ParityLayout::LeftAsymmetric, 0, "left-asymmetric", "la"),
    (ParityLayout::RightAsymmetric, 1, "right-asymmetric", "ra"),
    (ParityLayout::LeftSymmetric, 2, "left-symmetric", "ls"),
    (ParityLayout::RightSymmetric, 3, "right-symmetric", "rs"),
    (ParityLayout::ParityFirst, 4, "parity-first", ""),
    (ParityLayout::ParityLast, 5, "parity-last", ""),
    (ParityLayout::DdfZeroRestart, 8, "ddf-zero-restart", ""),
    (ParityLayout::DdfNRestart, 9, "ddf-N-restart", ""),
    (ParityLayout::DdfNContinue, 10, "ddf-N-continue", ""),
    (ParityLayout::LeftAsymmetric6, 16, "left-asymmetric-6", ""),
    (ParityLayout::RightAsymmetric6, 17, "right-asymmetric-6", ""),
    (ParityLayout::LeftSymmetric6, 18, "left-symmetric-6", ""),
    (ParityLayout::RightSymmetric6, 19, "right-symmetric-6", ""),
    (ParityLayout::ParityFirst6, 20, "parity-first-6", ""),
];

/// A layout that the level doesn't have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{level} has no layout '{layout}'; it has: {known}")]
pub struct BadLayout {
    level: Level,
    layout: String,
    known: String,
}

impl ParityLayout {
    /// Every layout that `level` has, in the order of MD's numbers; none for levels without rotating parity.
    pub fn all_of(level: Level) -> impl Iterator<Item = Self> {
        PARITY_LAYOUTS.iter().map(|l| l.0).filter(move |l| l.belongs_to(level))
    }

    /// The layout of `level` with this number in the superblock.
    pub fn from_number(level: Level, number: u32) -> Option<Self> {
        Self::all_of(level).find(|l| l.number() == number)
    }

    /// The layout of `level` with this name, as mdadm reads it: full names, short names, `default`, and for
    /// RAID5 the DDF names of layouts that RAID5 calls otherwise.
    pub fn from_name(level: Level, name: &str) -> Result<Self, BadLayout> {
        let named = match (level, name) {
            (_, "default") | (Level::Raid5, "ddf-N-continue") => Some(Self::LeftSymmetric),
            (Level::Raid5, "ddf-zero-restart") => Some(Self::RightAsymmetric),
            (Level::Raid5, "ddf-N-restart") => Some(Self::LeftAsymmetric),
            (_, "") => None,
            _ => PARITY_LAYOUTS.iter().find(|l| l.2 == name || l.3 == name).map(|l| l.0),
        };
        named.filter(|l| l.belongs_to(level)).ok_or_else(|| BadLayout {
            level,
            layout: name.to_owned(),
            known: Self::all_of(level).map(Self::name).collect::<Vec<_>>().join(", "),
        })
    }

    /// The number in the superblock.
    pub fn number(self) -> u32 {
        self.entry().1
    }

    /// mdadm's full name.
    pub fn name(self) -> &'static str {
        self.entry().2
    }

    /// Whether `level` has this layout.
    pub fn belongs_to(self, level: Level) -> bool {
        match level {
            Level::Raid5 => self.number() <= 5,
            Level::Raid6 => true,
            _ => false,
        }
    }

    fn entry(self) -> &'static (Self, u32, &'static str, &'static str) {
        // Each layout stands in the table; the tests hold it to that.
        PARITY_LAYOUTS.iter().find(|l| l.0 == self).unwrap_or(&PARITY_LAYOUTS[0])
    }
}

impl fmt::Display for ParityLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How RAID0 counts chunks in zones after the second, where members have different sizes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Raid0Layout {
    /// The superblock doesn't say (feature 0x1000 absent). Harmless where all members have one size; with
    /// several zones the right one can't be known, and the array must be refused.
    #[default]
    Unspecified,
    /// 1: by the array's chunk number (kernels before 3.14).
    Original,
    /// 2: by the zone's own chunk number (kernels from 3.14).
    Alternate,
}

impl Raid0Layout {
    /// mdadm's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::Original => "original",
            Self::Alternate => "alternate",
        }
    }
}

impl fmt::Display for Raid0Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// RAID10's layout word: near copies, far copies, the offset flag, and how far sets are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Raid10Layout(pub u32);

impl fmt::Display for Raid10Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (near, far) = (self.0 & 0xff, self.0 >> 8 & 0xff);
        let far_name = if self.0 >> 16 & 1 == 1 { "offset" } else { "far" };
        match (near, far) {
            (near, 1) => write!(f, "near={near}"),
            (1, far) => write!(f, "{far_name}={far}"),
            (near, far) => write!(f, "near={near}, {far_name}={far}"),
        }
    }
}

/// The layout of an array, as far as its level has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layout {
    /// The level has no layout (linear, multipath, 1, 4); the word on disk is ignored and kept.
    None,
    /// RAID0.
    Raid0(Raid0Layout),
    /// RAID5 and RAID6.
    Parity(ParityLayout),
    /// RAID10.
    Raid10(Raid10Layout),
}

impl Layout {
    /// The layout that `word` means at `level`, or `None` where the level has no such layout.
    /// `raid0_flag` is feature 0x1000: without it RAID0's word says nothing.
    pub fn from_word(level: Level, word: u32, raid0_flag: bool) -> Option<Self> {
        match level {
            Level::Raid5 | Level::Raid6 => ParityLayout::from_number(level, word).map(Self::Parity),
            Level::Raid10 => Some(Self::Raid10(Raid10Layout(word))),
            Level::Raid0 => match (raid0_flag, word) {
                (false, _) => Some(Self::Raid0(Raid0Layout::Unspecified)),
                (true, 1) => Some(Self::Raid0(Raid0Layout::Original)),
                (true, 2) => Some(Self::Raid0(Raid0Layout::Alternate)),
                (true, _) => None,
            },
            _ => Some(Self::None),
        }
    }

    /// The word on disk, or `None` where the word says nothing and stays as it was.
    pub fn to_word(self) -> Option<u32> {
        match self {
            Self::None | Self::Raid0(Raid0Layout::Unspecified) => None,
            Self::Raid0(Raid0Layout::Original) => Some(1),
            Self::Raid0(Raid0Layout::Alternate) => Some(2),
            Self::Parity(layout) => Some(layout.number()),
            Self::Raid10(Raid10Layout(word)) => Some(word),
        }
    }

    /// Whether `level` can have this layout.
    pub fn belongs_to(self, level: Level) -> bool {
        match self {
            Self::Parity(layout) => layout.belongs_to(level),
            Self::Raid0(_) => level == Level::Raid0,
            Self::Raid10(_) => level == Level::Raid10,
            Self::None => !matches!(level, Level::Raid0 | Level::Raid5 | Level::Raid6 | Level::Raid10),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Raid0(layout) => layout.fmt(f),
            Self::Parity(layout) => layout.fmt(f),
            Self::Raid10(layout) => layout.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_of_levels_go_both_ways() {
        for (level, number, name) in LEVELS {
            assert_eq!(Level::from_number(number), Some(level));
            assert_eq!((level.number(), level.name()), (number, name));
            assert_eq!(name.parse(), Ok(level));
        }
        assert_eq!("5".parse(), Ok(Level::Raid5));
        assert!("-4".parse::<Level>().is_err());
        assert_eq!(Level::from_number(2), None);
    }

    #[test]
    fn raid5_has_six_layouts_and_raid6_fourteen_and_each_reads_back() {
        for (level, count) in [(Level::Raid5, 6), (Level::Raid6, 14), (Level::Raid4, 0), (Level::Raid0, 0)] {
            assert_eq!(ParityLayout::all_of(level).count(), count);
            for layout in ParityLayout::all_of(level) {
                assert_eq!(ParityLayout::from_number(level, layout.number()), Some(layout));
                assert_eq!(ParityLayout::from_name(level, layout.name()), Ok(layout));
            }
        }
        assert_eq!(ParityLayout::from_number(Level::Raid5, 8), None);
        assert_eq!(ParityLayout::from_number(Level::Raid6, 6), None);
    }

    #[test]
    fn ddf_names_mean_other_layouts_on_raid5_than_on_raid6() {
        let of = ParityLayout::from_name;
        assert_eq!(of(Level::Raid5, "ddf-zero-restart"), Ok(ParityLayout::RightAsymmetric));
        assert_eq!(of(Level::Raid5, "ddf-N-restart"), Ok(ParityLayout::LeftAsymmetric));
        assert_eq!(of(Level::Raid5, "ddf-N-continue"), Ok(ParityLayout::LeftSymmetric));
        assert_eq!(of(Level::Raid6, "ddf-N-restart"), Ok(ParityLayout::DdfNRestart));
        assert_eq!(of(Level::Raid6, "ls"), Ok(ParityLayout::LeftSymmetric));
        let refused = of(Level::Raid5, "left-symmetric-6").unwrap_err().to_string();
        assert!(
            refused.contains("raid5 has no layout 'left-symmetric-6'") && refused.contains("parity-last")
        );
        assert!(of(Level::Raid5, "").is_err());
    }

    #[test]
    fn the_raid0_word_means_nothing_without_its_flag() {
        let of = |word, flag| Layout::from_word(Level::Raid0, word, flag);
        assert_eq!(of(1, false), Some(Layout::Raid0(Raid0Layout::Unspecified)));
        assert_eq!(of(1, true), Some(Layout::Raid0(Raid0Layout::Original)));
        assert_eq!(of(2, true), Some(Layout::Raid0(Raid0Layout::Alternate)));
        assert_eq!(of(0, true), None);
    }
}
