//! `pinstripe target`: block devices and files as namespaces of an NVMe/TCP subsystem, until it is told to
//! stop.
//!
//! A namespace's number is its device's place on the command line. With `--allow-missing` a device that can't
//! be opened leaves its number free: [`Files`] has nothing there, and the namespace has no bytes.

mod condition;
mod state;

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use pinstripe_block::first_of::first_of;
use pinstripe_nvme::{
    controller::{
        DeviceFlushes, DeviceService, EpochFiles, EpochRecord, EpochStore, NamespaceConfig, NotStored,
        OffloadConfig, Pipeline, Storing, Subsystem,
    },
    initiator::Options,
};
use pinstripe_runtime::{
    ShardHandle,
    uring::{self, Context, Listener, OpenFile, OpenOptions, blocking},
};
use serde_json::json;

use self::{
    condition::{Condition, Losses},
    state::{Identities, Served},
};
use crate::{
    accept::{accept, in_turn},
    command_line::{Offload, TargetArguments},
    create::random_uuid,
    ending::{Order, until_ordered},
    failure::Failure,
    limits, log, member,
    nvme_hosts::{Door, Hosts},
    nvme_server, on_shards,
    open::{listen, open},
    output,
    supervisor::Supervised,
};

/// Of a target that offloads without `--state`.
const FORGETS: &str = "without --state a restart of this target forgets which hosts others have replaced, and these could \
                       write again; to prevent that, use --state";

pub fn run(arguments: TargetArguments) -> Result<(), Failure> {
    check(&arguments)?;
    member::know(&arguments.remote)?;
    member::check_distinct(&arguments.devices)?;
    let config = on_shards::wanted(arguments.shards, arguments.cpus.as_ref());
    limits::open_all_files();
    let warning = limits::locked_memory_warning(&config);
    uring::run(&config, move |context| serve(context, arguments, warning))?
}

/// Refuses what can be seen to be wrong without a look at files and devices.
pub fn check(arguments: &TargetArguments) -> Result<(), Failure> {
    let hosts_are_known = arguments.dhchap_hosts.is_some() || arguments.nvme_tls_hosts.is_some();
    nvme_server::check_address(arguments.listen, hosts_are_known, arguments.allow_unauthenticated)?;
    nvme_server::check_name(&arguments.nqn)
}

async fn serve(context: Context, arguments: TargetArguments, warning: Option<String>) -> Result<(), Failure> {
    log::begin(arguments.log, "target")?;
    log::describe("target", &[("nqn", &arguments.nqn)]);
    let shards: Vec<ShardHandle> = context.shards().to_vec();
    let supervised = Supervised::begin(&shards, false);
    let mut order = Order::new();
    let Some(started) = until_ordered(&mut order, start(&shards, &arguments)).await else {
        return Ok(());
    };
    let Started { listener, hosts, door, condition, identities } = started?;
    let subsystem = Arc::clone(&door.subsystem);
    if let Some(warning) = warning {
        log::warn(&warning);
    }
    supervised.ready();
    let accepting = accept(&listener, order, in_turn(&shards, nvme_server::hand_over));
    first_of(accepting, first_of(hosts.watch(door), condition.tell(&subsystem))).await;
    supervised.stopping();
    drop(listener);
    nvme_server::stop(&shards).await;
    let done = report(&arguments, &subsystem);
    nvme_server::close(&shards).await;
    // Until here no other target serves one of the devices.
    drop(identities);
    done
}

/// A target that only has to take connections.
struct Started {
    listener: Listener,
    hosts: Hosts,
    door: Door,
    condition: Condition,
    identities: Identities,
}

/// Opens the devices, listens, and says so. The devices are this target's as long as the identities are kept.
async fn start(shards: &[ShardHandle], arguments: &TargetArguments) -> Result<Started, Failure> {
    let hosts = Hosts::read(arguments.dhchap_hosts.clone(), arguments.nvme_tls_hosts.clone()).await?;
    let (tls, hosts_are_known) = (hosts.tls(&arguments.nqn)?, hosts.are_known());
    let files = open_all(arguments).await?;
    let listener = listen(arguments.listen).await?;
    let listens = listener.tcp_address().unwrap_or(arguments.listen);
    let address = arguments.announce.unwrap_or(listens);
    let identities = identify(arguments, &files).await?;
    let offload = offload(arguments, shards.len()).await?;
    let namespaces = namespaces(arguments, &files, &identities.uuids);
    let (nqn, keys) = (arguments.nqn.clone(), hosts.authentication());
    // It reads the epochs.
    let made = blocking(move || nvme_server::subsystem(&nqn, address, namespaces, keys, offload)).await;
    let subsystem = made?;
    let losses = Losses::default();
    let flushes = (1..).zip(&arguments.devices).map(|(number, path)| told_of_losses(number, path, &losses));
    let flushes: Vec<DeviceFlushes> = flushes.collect();
    for handle in shards {
        let (files, subsystem, tls) = (files.clone(), Arc::clone(&subsystem), tls.clone());
        let (read_only, flushes) = (arguments.read_only, flushes.clone());
        let opened = handle.call(move || async move {
            let service = |(file, flushes): (&Option<Arc<OpenFile>>, &DeviceFlushes)| {
                let file = file.as_ref()?;
                Some(DeviceService::new(file.attach(), read_only).sharing(flushes.clone()))
            };
            let services = files.iter().zip(&flushes).map(service).collect();
            nvme_server::open(subsystem, services, tls);
        });
        opened.await?;
    }
    if listens.ip().is_loopback()
        && !(arguments.read_only || arguments.allow_unauthenticated || hosts_are_known)
    {
        let advice = "to prevent that, use --dhchap-hosts or --nvme-tls-hosts; to accept it, use --allow-unauthenticated";
        log::warn(&nvme_server::open_to_users(listens, advice));
    }
    if arguments.state.is_none() && arguments.offload != Offload::Off && !arguments.read_only {
        log::warn(FORGETS);
    }
    announce(arguments, (listens, address), &files)?;
    let door = Door { subsystem, tls, shards: shards.to_vec() };
    let condition = Condition { present: files.iter().map(Option::is_some).collect(), losses };
    Ok(Started { listener, hosts, door, condition, identities })
}

/// What all shards know of the flushes of a namespace's device. That one has failed is said: hosts are
/// refused from then on.
fn told_of_losses(number: usize, path: &Path, losses: &Losses) -> DeviceFlushes {
    let (path, losses) = (path.display().to_string(), losses.clone());
    DeviceFlushes::new(move |error| {
        losses.note(number);
        log::warn(&format!(
            "namespace {number} ({path}) failed a flush or a forced write: {error}. What hosts wrote before may be lost. \
             Its flushes and forced writes fail from now on: check the disk and the kernel's log, and start the target again"
        ));
    })
}

/// How it offloads, if it does.
async fn offload(arguments: &TargetArguments, shards: usize) -> Result<Option<OffloadConfig>, Failure> {
    let pipeline = match arguments.offload {
        Offload::On => Pipeline::Overlapped,
        Offload::Serial => Pipeline::Serial,
        Offload::Off => return Ok(None),
    };
    let epochs: Option<Arc<dyn EpochStore>> = match arguments.state.clone() {
        Some(directory) => {
            let path = directory.display().to_string();
            let opened = blocking(move || EpochFiles::open(&directory)).await;
            let words = |error| Failure::new(format!("can't use {path} for the target's state: {error}"));
            Some(Arc::new(Epochs { files: opened.map_err(words)?, path }))
        }
        None => None,
    };
    let peers = OffloadConfig::peer_options(&arguments.nqn, u16::try_from(shards)?);
    Ok(Some(OffloadConfig {
        pipeline,
        incarnation: random_uuid()?.0,
        epochs,
        connector: member::connector(&peers.host_nqn),
        peers: Options { authentication: member::authentication(), ..peers },
    }))
}

/// Epochs in the state directory. That it can't take one is said: hosts learn only that they are refused.
struct Epochs {
    files: EpochFiles,
    path: String,
}

impl EpochStore for Epochs {
    fn load(&self, namespace: &[u8; 16]) -> io::Result<Option<EpochRecord>> {
        self.files.load(namespace)
    }

    fn store(&self, namespace: &[u8; 16], record: &EpochRecord) -> Storing {
        let (storing, path) = (self.files.store(namespace, record), self.path.clone());
        Box::pin(async move {
            let stored = storing.await;
            if let Err(NotStored { error, .. }) = &stored {
                log::warn(&format!(
                    "the state directory {path} can't take an epoch: {error}; hosts that attach, take over or leave are \
                     refused until it can"
                ));
            }
            stored
        })
    }
}

/// What was done for arrays, at the end.
fn report(arguments: &TargetArguments, subsystem: &Subsystem) -> Result<(), Failure> {
    let Some(statistics) = subsystem.offload_statistics() else { return Ok(()) };
    if arguments.json {
        let counters: serde_json::Map<_, _> =
            statistics.each().map(|(name, value)| (name.to_owned(), value.into())).collect();
        let line = json!({ "event": "stopped", "offload": counters });
        return output::print(&format!("{line}\n"));
    }
    let done: Vec<String> = statistics
        .each()
        .filter(|(_, value)| *value > 0)
        .map(|(name, value)| format!("{} {value}", name.replace('_', " ")))
        .collect();
    if done.is_empty() { Ok(()) } else { output::print(&format!("offload: {}\n", done.join(", "))) }
}

/// The devices in their order; nothing for one that is missing.
type Files = Vec<Option<Arc<OpenFile>>>;

async fn open_all(arguments: &TargetArguments) -> Result<Files, Failure> {
    let mut files = Vec::new();
    for (number, path) in (1..).zip(&arguments.devices) {
        let options = OpenOptions { read_only: arguments.read_only, ..OpenOptions::default() };
        let opening = std::path::absolute(path)?;
        files.push(match blocking(move || open(&opening, &options)).await {
            Err(error) if arguments.allow_missing => {
                log::warn(&format!(
                    "namespace {number} is missing until the target is started again: {error}"
                ));
                None
            }
            opened => Some(opened?),
        });
    }
    if files.iter().all(Option::is_none) {
        return Err(Failure::new("no device can be served".to_owned()));
    }
    Ok(files)
}

/// Which namespaces the devices are that are there. They are open, so that no other target does the same
/// meanwhile.
async fn identify(arguments: &TargetArguments, files: &Files) -> Result<Identities, Failure> {
    let opened = |(path, file): (&PathBuf, &Option<Arc<OpenFile>>)| Some((path.clone(), file.clone()?));
    let opened: Vec<(PathBuf, Arc<OpenFile>)> =
        arguments.devices.iter().zip(files).filter_map(opened).collect();
    let nqn = arguments.nqn.clone();
    let (state, create) = (arguments.state.clone(), arguments.state_create);
    blocking(move || {
        let served = |(path, file): &(PathBuf, Arc<OpenFile>)| {
            Ok(Served { storage: file.storage()?, path: std::path::absolute(path)? })
        };
        let devices = opened.iter().map(served).collect::<Result<Vec<_>, Failure>>()?;
        state::check_distinct(&devices)?;
        match state {
            Some(directory) => Identities::of(&directory, create, &nqn, &devices),
            None => Ok(Identities::derived(&nqn, &devices)),
        }
    })
    .await
}

/// `uuids`: of the devices that are there, in their order. Of one that is missing nothing is ever told.
fn namespaces(arguments: &TargetArguments, files: &Files, uuids: &[[u8; 16]]) -> Vec<NamespaceConfig> {
    let mut uuids = uuids.iter();
    let missing = NamespaceConfig {
        uuid: [0; 16],
        size_bytes: 0,
        block_size: 512,
        preferred_block: 512,
        read_only: arguments.read_only,
    };
    let namespace = |file: &Option<Arc<OpenFile>>| {
        let Some((file, uuid)) = file.as_ref().and_then(|file| Some((file, uuids.next()?))) else {
            return missing.clone();
        };
        let block = file.info().logical_block;
        NamespaceConfig {
            uuid: *uuid,
            size_bytes: file.info().size,
            block_size: block,
            preferred_block: block,
            ..missing.clone()
        }
    };
    files.iter().map(namespace).collect()
}

/// Says where it listens and where hosts find it.
fn announce(
    arguments: &TargetArguments,
    (listens, address): (SocketAddr, SocketAddr),
    files: &Files,
) -> Result<(), Failure> {
    let nqn = &arguments.nqn;
    let uri = |number: usize| uri(address, nqn, number);
    if arguments.json {
        // Nothing where the device is missing.
        let uris: Vec<Option<String>> =
            (1..).zip(files).map(|(number, file)| file.is_some().then(|| uri(number))).collect();
        let line = json!({
            "event": "ready", "nqn": nqn, "address": listens.to_string(), "namespaces": uris,
            "pid": std::process::id(),
            "offload": arguments.offload != Offload::Off,
            "epochs_durable": arguments.state.is_some() && arguments.offload != Offload::Off,
        });
        return output::print(&format!("{line}\n"));
    }
    let words = |((number, path), file): ((usize, &PathBuf), &Option<_>)| match file {
        Some(_) => format!("  {} is {}\n", path.display(), uri(number)),
        None => format!("  {} is missing\n", path.display()),
    };
    let words: Vec<String> = (1..).zip(&arguments.devices).zip(files).map(words).collect();
    output::print(&format!("ready: {nqn} on {listens}\n{}", words.concat()))
}

/// How a member of an array names the namespace.
fn uri(address: SocketAddr, nqn: &str, namespace: usize) -> String {
    format!("nvme-tcp://{address}/{nqn}?nsid={namespace}")
}
