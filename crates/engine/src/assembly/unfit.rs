//! Devices that can't be used, where the others can do without them.
//!
//! Of a member whose bad-block log makes no sense it isn't known what must not be read. A spare that can't be
//! flushed holds nothing that the array needs. The others are served without such a device, as if it weren't
//! there; if it is a member, that must be meant ([`newly_degraded`](super::newly_degraded)).

use pinstripe_md::superblock::{Role, Superblock, event_is_current};
use pinstripe_runtime::DeviceErrorKind;

use super::{AssembleError, Assembled, Found, freshest, give_up};

/// Devices that were set aside.
#[derive(Default)]
pub(super) struct Unfit {
    /// Why.
    whys: Vec<AssembleError>,
    /// The most recent one's events. Spares have no say ([`Superblock::freshness`]).
    events: u64,
}

impl Unfit {
    /// Sets a device aside of which the bad-block log could not be used: `error`. Other errors are those of
    /// the whole start.
    pub(super) fn set_aside(
        &mut self,
        superblock: &Superblock,
        error: AssembleError,
    ) -> Result<(), AssembleError> {
        match &error {
            AssembleError::Device { error: cause, .. } if cause.kind != DeviceErrorKind::Media => Err(error),
            _ => {
                self.whys.push(error);
                if let (true, events, ..) = superblock.freshness() {
                    self.events = self.events.max(events);
                }
                Ok(())
            }
        }
    }

    /// What was decided without the devices. An error says what they lack. Others that are all out of date
    /// beside one of them lack what was written since (C9).
    pub(super) fn judge(
        &mut self,
        decided: Result<Assembled, AssembleError>,
    ) -> Result<Assembled, AssembleError> {
        let decided = decided.and_then(|assembled| {
            let (events, newest) = (assembled.freshest.array.events, self.events);
            let is_current = event_is_current(newest, events);
            is_current.then_some(assembled).ok_or(AssembleError::OutOfDate { events, newest })
        });
        match decided {
            Ok(mut assembled) => {
                assembled.left_out.extend(self.whys.iter().map(ToString::to_string));
                Ok(assembled)
            }
            Err(without) if self.whys.is_empty() => Err(without),
            Err(without) => {
                Err(AssembleError::Needed { why: Box::new(self.whys.remove(0)), without: Box::new(without) })
            }
        }
    }

    /// What was read may be in the devices' caches only: superblocks, bits and log entries that a process was
    /// writing when it was killed. Whatever is built on them must not survive a power failure that they don't
    /// survive. Nothing is built on what a spare holds, or a device that is out of date.
    pub(super) async fn flush(&mut self, found: &mut Vec<Found>) -> Result<(), AssembleError> {
        let freshest = freshest(found)?;
        for index in (0..found.len()).rev() {
            let device = &found[index].device;
            let Err(error) = device.flush().await.result else { continue };
            let error = AssembleError::Flush { name: device.info().name.clone(), error };
            if is_needed(&found[index], &freshest) {
                return Err(error);
            }
            give_up(&[found.remove(index).device]).await;
            self.whys.push(error);
        }
        Ok(())
    }
}

fn is_needed(member: &Found, freshest: &Superblock) -> bool {
    matches!(member.superblock.role_in(&freshest.array), Role::Slot(_) | Role::Journal)
        && event_is_current(freshest.array.events, member.superblock.array.events)
}

#[cfg(test)]
mod tests {
    use pinstripe_md::{
        bad_blocks::BadBlocksError,
        identity::{SetName, Timestamp, Uuid},
        level::{Layout, Level, ParityLayout},
        placement::{InitialSync, NewArray, NewBitmap, NewDevice},
        superblock::MetadataVersion,
        units::SectorCount,
    };

    use super::*;

    #[test]
    fn of_several_devices_that_are_set_aside_the_most_recent_one_counts() {
        let array = NewArray {
            set_uuid: Uuid([9; 16]),
            name: SetName::from_bytes([b'a'; 32]),
            created: Timestamp::new(0, 0),
            level: Level::Raid5,
            layout: Layout::Parity(ParityLayout::LeftSymmetric),
            chunk: SectorCount(128),
            version: MetadataVersion::V1_2,
            bitmap: NewBitmap::None,
            initial: InitialSync::AssumeClean,
            size: None,
            data_offset: None,
            logical_block_bytes: 512,
            members: (1..4).map(|number| NewDevice { sectors: 1 << 14, uuid: Uuid([number; 16]) }).collect(),
            spares: Vec::new(),
        };
        let mut superblock = array.place().unwrap().superblocks.remove(0);
        let mut unfit = Unfit::default();
        for events in [7, 12, 8] {
            superblock.array.events = events;
            let error = AssembleError::BadBlocks { name: String::new(), error: BadBlocksError::Shift(20) };
            unfit.set_aside(&superblock, error).unwrap();
        }
        assert_eq!((unfit.events, unfit.whys.len()), (12, 3));
    }
}
