//! Devices that can't be used, where the others can do without them.
//!
//! Of a member whose bad-block log makes no sense it isn't known what must not be read. A spare that can't be
//! flushed holds nothing that the array needs. The others are served without such a device, as if it weren't
//! there; if it is a member, that must be meant ([`newly_degraded`](super::newly_degraded)).

use pinstripe_md::superblock::{Role, Superblock, event_is_current};
use pinstripe_runtime::DeviceErrorKind;

use super::{AssembleError, Assembled, Found, freshest, give_up};

/// Why devices were set aside.
#[derive(Default)]
pub(super) struct Unfit(Vec<AssembleError>);

impl Unfit {
    /// Sets a device aside of which the bad-block log could not be used: `error`. Other errors are those of
    /// the whole start.
    pub(super) fn set_aside(&mut self, error: AssembleError) -> Result<(), AssembleError> {
        match &error {
            AssembleError::Device { error: cause, .. } if cause.kind != DeviceErrorKind::Media => Err(error),
            _ => {
                self.0.push(error);
                Ok(())
            }
        }
    }

    /// What was decided without the devices. An error says what they lack.
    pub(super) fn judge(
        &mut self,
        decided: Result<Assembled, AssembleError>,
    ) -> Result<Assembled, AssembleError> {
        match decided {
            Ok(assembled) => {
                let left_out = self.0.iter().map(ToString::to_string).collect();
                Ok(Assembled { left_out, ..assembled })
            }
            Err(without) if self.0.is_empty() => Err(without),
            Err(without) => {
                Err(AssembleError::Needed { why: Box::new(self.0.remove(0)), without: Box::new(without) })
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
            self.0.push(error);
        }
        Ok(())
    }
}

fn is_needed(member: &Found, freshest: &Superblock) -> bool {
    matches!(member.superblock.role_in(&freshest.array), Role::Slot(_) | Role::Journal)
        && event_is_current(freshest.array.events, member.superblock.array.events)
}
