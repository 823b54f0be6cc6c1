//! Who may write: servers that compute take writes of one host only (C22, C23).
//!
//! They are attached before anything is written to them, a flush included, whether or not they are to compute. The epoch is one more
//! than the highest that any of them knows. A server that another host is attached to refuses, unless the array is taken over.

use std::rc::Rc;

use pinstripe_runtime::{Attachment, Device, DeviceError, DeviceErrorKind, Offload, Submission, shard};

/// So long somebody else may take to be gone.
const LEAVING_NS: u64 = 3_000_000_000;
/// How often that is looked at.
const AGAIN_NS: u64 = 100_000_000;

/// Why devices can't be attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FenceError {
    /// Another host has them, or another process of this one.
    #[error(
        "{name}: another host uses it, or another process of this one ({error}). Stop the array there first; if that one is gone, take the array over with `serve --takeover`: it can't write any more then"
    )]
    InUse {
        /// The device.
        name: String,
        /// What its server said.
        error: DeviceError,
    },
    /// A server doesn't answer.
    #[error("{name}: its server can't be attached: {error}")]
    Lost {
        /// The device.
        name: String,
        /// Why.
        error: DeviceError,
    },
    /// Somebody else could take over the others at the same time.
    #[error(
        "a takeover needs more than half of the {members} members, and {present} are here: elsewhere another host may be taking over the rest. Bring more of them, or use --force if that can't be"
    )]
    TooFew {
        /// Members that are here.
        present: usize,
        /// All members.
        members: usize,
    },
}

/// Whether so many of an array's members are enough to take it over.
pub(crate) fn check_majority(present: usize, members: usize) -> Result<(), FenceError> {
    if 2 * present > members { Ok(()) } else { Err(FenceError::TooFew { present, members }) }
}

/// Attaches every device whose server offers it to the array. Returns the epoch, 0 if there is no such server.
pub(crate) async fn attach<'a>(
    devices: impl Iterator<Item = &'a Rc<dyn Device>> + Clone,
    array: [u8; 16],
    takeover: bool,
) -> Result<u64, FenceError> {
    let servers = devices.filter(|device| device.offload().is_some());
    let mut known = None;
    for device in servers.clone() {
        let epoch = asked(device, device.offload().map(Offload::epoch)).await?;
        known = known.max(Some(epoch as u64));
    }
    let Some(known) = known else { return Ok(0) };
    let attachment = Attachment { array, epoch: known + 1, generation: 0, peers: Vec::new(), takeover };
    for device in servers {
        attached(device, &attachment).await?;
    }
    Ok(attachment.epoch)
}

/// Attaches a device. A process that was killed a moment ago is still there for its servers until they have seen its connections end, so
/// they are asked again for a while.
async fn attached(device: &Rc<dyn Device>, attachment: &Attachment) -> Result<(), FenceError> {
    let until = shard::now() + LEAVING_NS;
    loop {
        match asked(device, device.offload().map(|server| server.attach(attachment))).await {
            Err(FenceError::InUse { error, .. })
                if error.kind == DeviceErrorKind::Refused && shard::now() < until =>
            {
                shard::sleep(AGAIN_NS).await;
            }
            answer => return answer.map(|_| ()),
        }
    }
}

/// Gives the devices up: whoever comes next needs no takeover.
pub(crate) async fn give_up<'a>(devices: impl Iterator<Item = &'a Rc<dyn Device>>) {
    for device in devices {
        if let Some(server) = device.offload() {
            // Whoever doesn't answer keeps an epoch that the next one raises.
            let _ = server.detach(true).await;
        }
    }
}

async fn asked(device: &Rc<dyn Device>, request: Option<Submission>) -> Result<usize, FenceError> {
    let Some(request) = request else { return Ok(0) };
    request.await.result.map_err(|error| {
        let name = device.info().name.clone();
        match error.kind {
            DeviceErrorKind::Refused | DeviceErrorKind::Fenced => FenceError::InUse { name, error },
            _ => FenceError::Lost { name, error },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_takeover_needs_more_than_half_of_the_members() {
        assert_eq!(
            check_majority(2, 4),
            Err(FenceError::TooFew { present: 2, members: 4 }),
            "two hosts could"
        );
        assert_eq!(check_majority(3, 4), Ok(()));
        assert_eq!(check_majority(3, 5), Ok(()));
        assert!(check_majority(2, 5).is_err());
    }
}
