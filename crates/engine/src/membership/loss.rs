//! A device that is known to be gone before any request to it fails.

use pinstripe_runtime::{DeviceError, DeviceErrorKind};

use crate::{
    array::Array,
    error::{IoError, MemberError, Operation},
};

impl Array {
    /// Drops the member on `device`, which the caller knows to be gone for good. Otherwise the next request
    /// to it would find that out, and on an idle array that may be the one that has just lost another member.
    /// A member that the array can't do without stays, and its state as it is (C3). Returns whether the
    /// member was dropped.
    pub async fn lose(&self, device: &str) -> Result<bool, IoError> {
        if self.check_change().is_err() {
            return Ok(false);
        }
        let snapshot = self.shared().snapshot();
        let redundancy = self.shared().geometry.redundancy();
        let mut seats = snapshot.seats.iter().enumerate();
        let found = seats.find_map(|(slot, seat)| {
            let member = seat.member().filter(|member| member.name == device)?;
            (!seat.is_whole() || snapshot.missing.len() < redundancy).then_some((slot, member))
        });
        let Some((slot, member)) = found else { return Ok(false) };
        let error = DeviceError::of(DeviceErrorKind::Gone);
        let error =
            MemberError { slot, name: device.to_owned(), operation: Operation::Metadata, offset: 0, error };
        self.shared().report(member.id, error);
        self.shared().dropped(member.id).await?;
        Ok(true)
    }
}
