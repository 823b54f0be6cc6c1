//! A pool of spares: namespaces of NVMe/TCP servers that hold nothing.
//!
//! When a slot has been empty for a while and no spare of the array's own is there, the servers are asked
//! what they have, and the smallest namespace that fits and is blank is added, of whichever server has the
//! fewest members of the array. Several arrays may share a pool: a server that wants a blank namespace for
//! its array reserves it, looks whether it is still blank, and lets go of it when the array's superblock is
//! there; after that it isn't blank any more. A server that was killed in between leaves the reservation
//! behind, which would keep the next host from writing its member: it goes when the array is started next.

use std::{path::PathBuf, rc::Rc, sync::Arc};

use pinstripe_block::first_of::{First, first_of};
use pinstripe_engine::{array::Array, events::EventKind};
use pinstripe_nvme::{
    initiator::{Address, NvmeSource},
    wire::DISCOVERY_NQN,
};
use pinstripe_runtime::{DeviceSource, shard};

use super::{joining::Keeper, journal::ServerLog, nvme::namespace_uuid, stopping::Stopping};
use crate::{
    command_line::ServeArguments,
    create::random_uuid,
    failure::Failure,
    member::{self, Known, Member},
};

/// How often the array is looked at.
const LOOK_NANOSECONDS: u64 = 1_000_000_000;
/// Bytes at both ends of a namespace that must be zero.
const END_BYTES: u64 = 1 << 20;
/// Pause after the servers had nothing.
const PAUSE_NANOSECONDS: u64 = 30_000_000_000;

/// See the module.
pub struct Pool {
    servers: Vec<Address>,
    delay: u64,
}

impl Pool {
    /// What the command line asks for, if it does.
    pub fn new(arguments: &ServeArguments) -> Result<Option<Self>, Failure> {
        let address = |server: &String| {
            let has_port = server.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            let parsed = format!("nvme-tcp://{server}/{DISCOVERY_NQN}?nsid=1").parse::<Address>();
            let why = || Failure::usage(format!("--spare-pool {server}: HOST:PORT is needed"));
            parsed.ok().filter(|_| has_port).ok_or_else(why)
        };
        let servers = arguments.spare_pool.iter().map(address).collect::<Result<Vec<_>, Failure>>()?;
        let delay = u64::from(arguments.spare_pool_delay) * 1_000_000_000;
        Ok((!servers.is_empty()).then_some(Self { servers, delay }))
    }

    /// Watches `array` until the end is wanted.
    pub fn spawn(self, array: Array, journal: ServerLog, keeper: Rc<Keeper>, stopping: Rc<Stopping>) {
        shard::spawn(async move {
            let mut empty_since = None;
            let mut complained = String::new();
            let mut pause = LOOK_NANOSECONDS;
            while let First::Other(()) = first_of(stopping.wanted(), shard::sleep(pause)).await {
                pause = LOOK_NANOSECONDS;
                if !wants_spare(&array) {
                    empty_since = None;
                    continue;
                }
                let since = *empty_since.get_or_insert_with(shard::now);
                if shard::now() - since < self.delay {
                    continue;
                }
                let Some(words) = self.fill(&array, &keeper, &stopping).await else { return };
                if !words.is_empty() {
                    pause = PAUSE_NANOSECONDS;
                    if words != complained {
                        journal.warn(&format!("no spare could be taken from the pool: {words}"));
                    }
                }
                complained = words;
            }
        });
    }

    /// Adds a namespace. Why there is none, or nothing; `None` if the end is wanted.
    async fn fill(&self, array: &Array, keeper: &Rc<Keeper>, stopping: &Stopping) -> Option<String> {
        let (mut words, mut all) = (Vec::new(), Vec::new());
        for server in &self.servers {
            let candidates = match first_of(stopping.wanted(), candidates(server, array)).await {
                First::One(()) => return None,
                First::Other(Ok(candidates)) => candidates,
                First::Other(Err(failure)) => {
                    words.push(failure.sentence().to_owned());
                    continue;
                }
            };
            if candidates.is_empty() {
                words.push(format!("{} has no namespace that is not in use here", server.server()));
            }
            all.extend(candidates);
        }
        let members: Vec<String> =
            array.detail().slots.into_iter().filter_map(|slot| subsystem(&slot.device?)).collect();
        all.sort_by_cached_key(|source| members_at(&source.name(), &members));
        for source in all {
            match take(&source, array, keeper).await {
                Ok(()) => return Some(String::new()),
                Err(failure) => words.push(format!("{}: {}", source.name(), failure.sentence())),
            }
        }
        Some(words.join("; "))
    }
}

/// The server of a device, if it has one: by its subsystem, which is the same under all of its addresses.
fn subsystem(device: &str) -> Option<String> {
    Some(device.parse::<Address>().ok()?.nqn)
}

/// How many of `members`, by their subsystems, are where a namespace is.
fn members_at(namespace: &str, members: &[String]) -> usize {
    let here = subsystem(namespace);
    members.iter().filter(|member| here.as_ref() == Some(member)).count()
}

/// Whether a slot is empty and no spare of the array's own will take it. An array that has failed or is
/// read-only wants none.
fn wants_spare(array: &Array) -> bool {
    let detail = array.detail();
    detail.spares.is_empty()
        && !array.shared().has_failed()
        && !array.shared().options.read_only
        && detail.slots.iter().any(|slot| slot.state == "missing")
}

/// Namespaces of a server that are no part of the array, the smallest first.
async fn candidates(server: &Address, array: &Array) -> Result<Vec<Arc<NvmeSource>>, Failure> {
    let initiator = member::initiator()?;
    let (known, detail) = (member::known(), array.detail());
    let own = namespace_uuid(&detail.uuid);
    let failed: Vec<String> = detail.failed.into_iter().map(|failed| failed.device).collect();
    let mut found = Vec::new();
    for entry in initiator.discover(server).await? {
        let address = Address {
            host: entry.address.ip().to_string(),
            port: entry.address.port(),
            nqn: entry.subsystem,
            ..server.clone()
        };
        // A subsystem that can't be reached doesn't hide the others.
        found.extend(initiator.open_all(&address).await.unwrap_or_default());
    }
    // By whatever address: a member is known by its identifiers. What has none may be one that has none.
    let is_ours = |source: &Arc<NvmeSource>| {
        let identity = source.identity();
        let may_be = |known: &Known| known.identity.is_one_with(&identity) != Some(false);
        identity.nguid() == Some(own) || failed.contains(&source.name()) || known.values().any(may_be)
    };
    found.retain(|source| !is_ours(source) && !source.is_read_only());
    found.sort_by_key(|source| source.info().size);
    Ok(found)
}

async fn check_blank(source: &Arc<NvmeSource>) -> Result<(), Failure> {
    let contents = Member::Remote(Arc::clone(source)).contents(PathBuf::from(source.name())).await?;
    if contents.metadata.is_empty() && contents.others.is_empty() && ends_are_zero(source).await? {
        return Ok(());
    }
    Err(Failure::new("it is not empty"))
}

/// Whether nothing but zeroes is where the headers of everything that we know and don't know are. A spare of
/// the pool is overwritten without a question, so the absence of known signatures isn't enough.
async fn ends_are_zero(source: &NvmeSource) -> Result<bool, Failure> {
    let device = source.attach()?;
    let size = source.info().size;
    let length = size.min(END_BYTES);
    for offset in [0, size - length] {
        let outcome = device.read(offset, shard::buffer(usize::try_from(length)?)).await;
        outcome.result?;
        if outcome.buffer.is_none_or(|buffer| buffer.iter().any(|byte| *byte != 0)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Adds a namespace if it is blank.
async fn take(source: &Arc<NvmeSource>, array: &Array, keeper: &Rc<Keeper>) -> Result<(), Failure> {
    let name = source.name();
    let key = key(array);
    // First without a claim, which would keep others from writing what is theirs.
    check_blank(source).await?;
    source.claim(key).await?;
    let added = async {
        check_blank(source).await?;
        let adding = Box::pin(array.add(Arc::clone(source) as Arc<dyn DeviceSource>, random_uuid()?));
        let joining = keeper.joins(&name, array, adding);
        Ok::<_, Failure>(Member::Remote(Arc::clone(source)).join(joining).await?)
    };
    let added = added.await;
    // If this isn't heard, the claim keeps others from writing a namespace that is ours: see `let_go`.
    let _ = source.disclaim(key).await;
    added?;
    array.tell(EventKind::MoveSpare { device: name });
    Ok(())
}

/// Of the array's claims: the same after a crash, so that one that was left behind is known.
fn key(array: &Array) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = namespace_uuid(&array.detail().uuid);
    u64::from_be_bytes([a, b, c, d, e, f, g, h]).max(1)
}

/// Gives up a claim of a namespace that has become a member, should one have been left behind. If there is
/// none the server refuses this, and nothing waits for its answer.
pub fn let_go(source: Arc<NvmeSource>, array: &Array) {
    let key = key(array);
    shard::spawn(async move {
        let _ = source.disclaim(key).await;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_told_apart_by_their_subsystems() {
        let at =
            |host: &str, name: &str| format!("nvme-tcp://{host}:4420/nqn.2026-01.com.example:{name}?nsid=1");
        let devices = [at("192.0.2.1", "a"), at("store-a", "a"), at("192.0.2.2", "b"), "/dev/sda".to_owned()];
        let members: Vec<String> = devices.iter().filter_map(|device| subsystem(device)).collect();
        assert_eq!(["a", "b", "c"].map(|name| members_at(&at("192.0.2.9", name), &members)), [2, 1, 0]);
    }
}
