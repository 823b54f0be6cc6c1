//! Which of several superblocks on one device is its own.
//!
//! MD looks for a superblock at three places. Where the data of an array covers another one of them, its
//! clients can write a superblock there: of an array of version 1.0, whose data begins at sector 0, at
//! sectors 0 and 8; of one of version 1.1 or 1.2 at the end.

use super::{MetadataVersion, Superblock};
use crate::{identity::Uuid, units::sector_range};

/// The whole superblocks of a device, one of which may be its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims(Vec<Superblock>);

impl Claims {
    /// Of all whole superblocks of a device, in the order of trying. One that lies in the data of another,
    /// which doesn't lie in its data, is what a client has written. But not if its array is younger: then the
    /// other one may be what was left of a former array.
    pub fn new(mut found: Vec<Superblock>) -> Self {
        let is_of = |by: &Superblock, one: &Superblock| {
            by.covers(one) && !one.covers(by) && one.array.created <= by.array.created
        };
        let is_written = |one: &Superblock| found.iter().any(|by| is_of(by, one));
        let believed: Vec<Superblock> = found.iter().filter(|one| !is_written(one)).cloned().collect();
        if !believed.is_empty() {
            found = believed;
        }
        Self(found)
    }

    /// All of them, in the order of trying.
    pub fn all(&self) -> &[Superblock] {
        &self.0
    }

    /// All of them, in the order of trying.
    pub fn into_all(self) -> Vec<Superblock> {
        self.0
    }

    /// The only one, about which there is no doubt.
    pub fn only(&self) -> Option<&Superblock> {
        if let [only] = &self.0[..] { Some(only) } else { None }
    }

    /// The device's own: the only one. Of several the one that goes with other devices, about which there is
    /// no doubt (members of one array are of one version), or that is of the array `wanted`. `None` if that
    /// doesn't tell.
    pub fn choose(&self, wanted: Option<Uuid>, others: &[(Uuid, MetadataVersion)]) -> Option<&Superblock> {
        let is_wanted = |one: &&Superblock| wanted.is_none_or(|uuid| one.array.set_uuid == uuid);
        let goes_with = |one: &&Superblock| others.contains(&one.kind());
        let of_others = || single(self.0.iter().filter(is_wanted).filter(goes_with));
        let of_wanted = || wanted.and_then(|_| single(self.0.iter().filter(is_wanted)));
        self.only().or_else(of_others).or_else(of_wanted)
    }
}

impl Superblock {
    /// What all members of an array have in common.
    pub fn kind(&self) -> (Uuid, MetadataVersion) {
        (self.array.set_uuid, self.member.version)
    }

    /// Whether another superblock of the same device lies in this one's data.
    fn covers(&self, other: &Self) -> bool {
        sector_range(self.member.data_offset, self.member.data_size).contains(&other.member.super_offset.0)
    }
}

fn single<T>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next()?;
    all.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        identity::{SetName, Timestamp},
        level::{Layout, Level, ParityLayout},
        placement::{InitialSync, NewArray, NewBitmap, NewDevice},
        units::{Sector, SectorCount},
    };

    fn superblock(array: u8, version: MetadataVersion, data_offset: Option<u64>) -> Superblock {
        let device = NewDevice { sectors: 24576, uuid: Uuid([array; 16]) };
        let wish = NewArray {
            set_uuid: Uuid([array; 16]),
            name: SetName::from_bytes([b'x'; 32]),
            created: Timestamp::new(1, 0),
            level: Level::Raid5,
            layout: Layout::Parity(ParityLayout::LeftSymmetric),
            chunk: SectorCount(128),
            version,
            bitmap: NewBitmap::None,
            initial: InitialSync::AssumeClean,
            size: None,
            data_offset: data_offset.map(Sector),
            logical_block_bytes: 512,
            members: vec![device; 3],
            spares: vec![],
        };
        wish.place().unwrap().superblocks.remove(0)
    }

    #[test]
    fn a_superblock_in_the_data_of_another_is_what_a_client_wrote_unless_both_are() {
        use MetadataVersion::{V1_0, V1_2};
        let mdadms = superblock(1, V1_0, Some(0));
        let mut written = superblock(2, V1_2, None);
        let both = Claims::new(vec![written.clone(), mdadms.clone()]);
        assert_eq!(both.all().len(), 2, "each lies in the data of the other");
        assert_eq!(both.choose(None, &[]), None);
        assert_eq!(both.choose(Some(Uuid([1; 16])), &[]), Some(&mdadms));
        assert_eq!(both.choose(Some(Uuid([2; 16])), &[]), Some(&written));
        assert_eq!(both.choose(Some(Uuid([3; 16])), &[]), None);
        assert_eq!(both.choose(None, &[mdadms.kind()]), Some(&mdadms));
        assert_eq!(both.choose(None, &[mdadms.kind(), written.kind()]), None);
        assert_eq!(both.choose(Some(Uuid([1; 16])), &[written.kind()]), Some(&mdadms));
        // Of the same array, but no member of it has its superblock there.
        written.array.set_uuid = mdadms.array.set_uuid;
        let both = Claims::new(vec![written.clone(), mdadms.clone()]);
        assert_eq!(both.choose(Some(Uuid([1; 16])), &[]), None);
        assert_eq!(both.choose(Some(Uuid([1; 16])), &[mdadms.kind()]), Some(&mdadms));
        // It ends before the other begins.
        written.member.data_size = SectorCount(1024);
        assert_eq!(Claims::new(vec![written.clone(), mdadms.clone()]).only(), Some(&mdadms));
        // What was left of a former array may be the one at the end.
        written.array.created = Timestamp::new(2, 0);
        assert_eq!(Claims::new(vec![written, mdadms]).only(), None);
    }
}
