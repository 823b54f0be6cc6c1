//! Fencing: servers that compute take writes of one host only (C22, C23). Of others a host can only wait
//! until they are done with what a dead process sent.
//!
//! They are attached before anything is written to them, a flush included, whether or not they are to
//! compute. The epoch is one more than the highest that any of them knows. A server that another host is
//! attached to refuses, unless the array is taken over.
//!
//! # Two hosts at once
//!
//! All hosts attach the servers in one order, by the names of the namespaces: so the first server decides
//! which of two hosts has the array, and the other one has changed nothing. A host that meets another one
//! later on (which had another order, or came between) gives back what it has attached, pauses for a time
//! that differs from host to host, asks for the epochs again and tries once more, a few times. It takes over
//! only from the host that was there when it began: a member with an epoch that has risen since is attached
//! only if no host is.

use std::rc::Rc;

use pinstripe_runtime::{
    Attachment, Device, DeviceError, DeviceErrorKind, Offload, Submission,
    offload::{EPOCH_STEP_MAX, NUMBER_MAX},
    shard,
};

use crate::mutants::{Mutant, active};

/// How long a process that was killed may take to be gone for the servers.
const LEAVING_NS: u64 = 3_000_000_000;
/// How often that is looked at.
const AGAIN_NS: u64 = 100_000_000;
/// How often all devices are attached before another host is left the array.
const TRIES: u32 = 5;
/// Half of what the pause before the second try is drawn from; the one before each later try is drawn from
/// twice as much.
const PAUSE_NS: u64 = 100_000_000;
/// Steps in which a device's epoch is brought up to the others'.
const STEPS_MAX: u64 = 64;

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
    /// Another host could have an array with the other members.
    #[error(
        "more than half of the array's {members} members are needed, and {present} are here: another host may be serving the rest, or be about to. Bring more of them, or use --force if that can't be"
    )]
    TooFew {
        /// Slots of which all devices are here: two while a member is being replaced.
        present: usize,
        /// Slots that have a device.
        members: usize,
    },
    /// No host can be kept from writing these devices.
    #[error(
        "a takeover keeps no other host from writing {}: a server without the offload protocol knows of no host that has the array. Stop the array there. If that host is gone for good, or cut off from these servers, --takeover is needed only where other servers still take it for attached: then with --force",
        names.join(" and ")
    )]
    Unfenced {
        /// The devices.
        names: Vec<String>,
    },
    /// The servers' epochs are too far apart, or there is no higher one.
    #[error(
        "{name}: its epoch is {epoch}, and the array's next one would be {next}, which its server would not take: a host has attached a device with a number that none comes to by counting. Leave out the devices whose epoch `discover` shows as too high, or have their servers forget it: stop the server, and remove the device's state"
    )]
    Numbers {
        /// The device.
        name: String,
        /// What it was attached under.
        epoch: u64,
        /// What it would have to be attached under.
        next: u64,
    },
    /// Devices had been attached before it failed.
    #[error(
        "{cause}. Nothing was written. {} had been attached to this host before that, and given back: if the array runs on another host, that host can't write there any more, and stops",
        attached.join(" and ")
    )]
    Partly {
        /// The devices.
        attached: Vec<String>,
        /// Why the next one could not be attached, or the array can't be had.
        cause: Box<FenceError>,
    },
}

/// Every device that is reached over a network must have a server that can keep the former host out: that one
/// would go on writing the others, over what this host has written. Devices of this machine aren't concerned.
pub(crate) fn check_fences<'a>(devices: impl Iterator<Item = &'a Rc<dyn Device>>) -> Result<(), FenceError> {
    let unfenced = devices.filter(|device| device.is_remote() && device.offload().is_none());
    let names: Vec<String> = unfenced.map(|device| device.info().name.clone()).collect();
    if names.is_empty() { Ok(()) } else { Err(FenceError::Unfenced { names }) }
}

/// Attaches to the array every device that has a server which offers it. Returns the epoch, 0 if there is no
/// such server.
pub(crate) async fn attach<'a>(
    devices: impl Iterator<Item = &'a Rc<dyn Device>>,
    array: [u8; 16],
    takeover: bool,
) -> Result<u64, FenceError> {
    let mut servers: Vec<_> = devices.filter(|device| device.offload().is_some()).collect();
    if servers.is_empty() {
        return Ok(0);
    }
    if !active(Mutant::AttachedAsGiven) {
        servers.sort_by_cached_key(|device| device.offload().map(|server| namespace(&server.address())));
    }
    let (mut first, mut tries) = (None, 0);
    let leaving_until = shard::now().saturating_add(LEAVING_NS);
    loop {
        let mut known = Vec::new();
        for device in &servers {
            known.push(asked(device, device.offload().map(Offload::epoch)).await? as u64);
        }
        let before = first.get_or_insert_with(|| known.clone());
        // From the hosts that were there at the beginning, not from one that was faster than this one.
        let takes = |index: usize| takeover && known[index] == before[index];
        let round = Round { array, leaving_until, known: &known };
        tries += 1;
        match round.attach(&servers, takes).await {
            Err((error, true)) if tries < TRIES => {
                let _ = error;
                shard::sleep(pause(tries)).await;
            }
            Err((error, _)) => return Err(error),
            Ok(epoch) => return Ok(epoch),
        }
    }
}

/// Waits until no write of a process that has died can come to the devices any more: a server that knows of
/// no hosts carries out what it was sent (C16). Whether there was anything to wait for: what was read before
/// is not final. Superblocks that say clean are no reason not to wait: an array with a log is clean under
/// way, and what comes may be a superblock, which would put its member out of date. `tell` is told for how
/// many nanoseconds.
pub(crate) async fn outlast<'a>(devices: impl Iterator<Item = &'a Rc<dyn Device>>, tell: fn(u64)) -> bool {
    let late_ns = devices.map(|device| device.late_writes_ns()).max().unwrap_or(0);
    if late_ns > 0 && !active(Mutant::AssembledTooEarly) {
        tell(late_ns);
        shard::sleep(late_ns).await;
    }
    late_ns > 0
}

/// A namespace's name, by whatever address it is reached: `NQN?nsid=N` of `nvme-tcp://HOST:PORT/NQN?nsid=N`.
fn namespace(address: &str) -> String {
    let behind = address.split_once("://").map_or(address, |(_, rest)| rest);
    behind.split_once('/').map_or(behind, |(_, name)| name).to_owned()
}

/// How long this host waits before it tries once more. Hosts that collided see different times on their
/// clocks, so they pause differently, and a simulated run that is repeated pauses the same.
fn pause(tries: u32) -> u64 {
    // SplitMix64.
    let mut mixed = shard::now().wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let longest = PAUSE_NS << tries.min(TRIES);
    longest / 8 + (mixed ^ (mixed >> 31)) % longest
}

/// One try.
struct Round<'a> {
    array: [u8; 16],
    /// Until then a host that is still attached may be one that was killed a moment ago.
    leaving_until: u64,
    /// The devices' epochs.
    known: &'a [u64],
}

impl Round<'_> {
    /// Attaches all devices, or gives back those that it has attached. An error comes with whether another
    /// try makes sense.
    async fn attach(
        &self,
        servers: &[&Rc<dyn Device>],
        takes: impl Fn(usize) -> bool,
    ) -> Result<u64, (FenceError, bool)> {
        let epoch = self.next(servers).map_err(|error| (error, false))?;
        for (index, device) in servers.iter().enumerate() {
            let takeover = takes(index);
            // A device that knows only a much lower one is brought there in steps that its server takes.
            let mut step = self.known[index];
            let attached = loop {
                step = step.saturating_add(EPOCH_STEP_MAX).min(epoch);
                let attachment = Attachment {
                    array: self.array,
                    epoch: step,
                    generation: 0,
                    peers: Vec::new(),
                    takeover,
                    alone: true,
                };
                let attached = self.attached(device, &attachment).await;
                if attached.is_err() || step == epoch {
                    break attached;
                }
            };
            let Err(error) = attached else { continue };
            let collided = matches!(error, FenceError::InUse { error, .. }
                if error.kind == DeviceErrorKind::Fenced || (index > 0 && error.kind == DeviceErrorKind::Refused));
            give_up(servers[..index].iter().copied()).await;
            if index == 0 {
                return Err((error, collided));
            }
            let attached = servers[..index].iter().map(|device| device.info().name.clone()).collect();
            return Err((FenceError::Partly { attached, cause: Box::new(error) }, collided));
        }
        Ok(epoch)
    }

    /// One more than the highest epoch that a device knows.
    fn next(&self, servers: &[&Rc<dyn Device>]) -> Result<u64, FenceError> {
        let highest = self.known.iter().copied().max().unwrap_or(0);
        let next = highest.saturating_add(1);
        let is_far = |known: u64| next - known > STEPS_MAX.saturating_mul(EPOCH_STEP_MAX);
        let odd = self
            .known
            .iter()
            .position(|known| if next > NUMBER_MAX { *known == highest } else { is_far(*known) });
        odd.map_or(Ok(next), |index| {
            let name = servers[index].info().name.clone();
            Err(FenceError::Numbers { name, epoch: self.known[index], next })
        })
    }

    /// Attaches a device. A process that was killed a moment ago is still there for its servers until they
    /// have seen its connections end, so they are asked again for a while.
    async fn attached(&self, device: &Rc<dyn Device>, attachment: &Attachment) -> Result<(), FenceError> {
        loop {
            match asked(device, device.offload().map(|server| server.attach(attachment))).await {
                Err(FenceError::InUse { error, .. })
                    if error.kind == DeviceErrorKind::Refused && shard::now() < self.leaving_until =>
                {
                    shard::sleep(AGAIN_NS).await;
                }
                answer => return answer.map(|_| ()),
            }
        }
    }
}

/// Does `work` with devices of which no array runs, while no other host may write them. Without that, a
/// server that was attached and not given up, as after a crash, takes no write of any host.
pub async fn alone<T>(
    devices: &[Rc<dyn Device>],
    array: [u8; 16],
    work: impl Future<Output = T>,
) -> Result<T, FenceError> {
    attach(devices.iter(), array, false).await?;
    let done = work.await;
    give_up(devices.iter()).await;
    Ok(done)
}

/// Gives the devices up, so that the next host needs no takeover.
pub(crate) async fn give_up<'a>(devices: impl Iterator<Item = &'a Rc<dyn Device>>) {
    for device in devices {
        if let Some(server) = device.offload() {
            // A server that doesn't answer keeps its epoch, and the next host raises it.
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
    fn namespaces_have_one_order_for_all_hosts() {
        let name = |address: &str| namespace(address);
        assert_eq!(name("nvme-tcp://192.0.2.1:4420/nqn.a?nsid=2"), "nqn.a?nsid=2");
        assert_eq!(name("nvme-tcp://store-a:4421/nqn.a?nsid=2"), "nqn.a?nsid=2");
        assert_eq!(name("double://3"), "3");
    }
}
