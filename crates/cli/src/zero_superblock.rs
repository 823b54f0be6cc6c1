//! `pinstripe zero-superblock`: devices that are to be members no more.
//!
//! All devices are opened, locked and looked at before any is written. What is in use can't be opened; what
//! may still be needed is refused, unless that is forced.

use std::path::PathBuf;

use pinstripe_control::text::printable;
use pinstripe_engine::offload::fence::{self, FenceError};
use pinstripe_md::{
    superblock::{Role, SUPERBLOCK_BYTES_MAX, Superblock},
    units::SECTOR_BYTES,
};
use pinstripe_runtime::{
    Device, shard,
    uring::{self, OpenOptions, RuntimeConfig},
};
use serde_json::json;

use crate::{
    command_line::ZeroSuperblockArguments,
    create::random_uuid,
    failure::Failure,
    member::{self, Member},
    output,
    probe::{Contents, MdFinding},
    scan::Served,
};

pub fn run(arguments: &ZeroSuperblockArguments) -> Result<(), Failure> {
    member::know(&arguments.remote)?;
    let (paths, force) = (arguments.devices.clone(), arguments.force);
    let served = Served::all().0;
    let erased = uring::run(&RuntimeConfig::unpinned(1), move |_| erase_all(paths, served, force))??;
    if arguments.json {
        let all: Vec<_> =
            erased.iter().map(|(device, sectors)| json!({ "device": device, "sectors": sectors })).collect();
        return output::print_json(&all);
    }
    let lines: Vec<String> = erased
        .iter()
        .map(|(device, _)| format!("{}: the superblock is erased\n", printable(device)))
        .collect();
    output::print(&lines.concat())
}

/// The devices, each with the sectors where superblocks were.
async fn erase_all(
    paths: Vec<PathBuf>,
    served: Vec<Served>,
    force: bool,
) -> Result<Vec<(String, Vec<u64>)>, Failure> {
    let mut members = Vec::new();
    for path in paths {
        let member = member::open(path.clone(), OpenOptions::default()).await?;
        let contents = member.contents(path).await?;
        members.push((member, contents));
    }
    for (member, contents) in &members {
        refuse(member, contents, &served, force).await?;
    }
    let devices = members.iter().map(|(member, _)| member.attach()).collect::<Result<Vec<_>, _>>()?;
    let mut found = members.iter().flat_map(|(_, contents)| &contents.metadata);
    let array = found.find_map(|found| found.superblock.as_ref().ok());
    let array = array.map_or_else(random_uuid, |metadata| Ok(metadata.superblock.array.set_uuid))?;
    let erasing = async {
        let mut erased = Vec::new();
        for ((member, contents), device) in members.iter().zip(&devices) {
            for found in &contents.metadata {
                erase(&**device, found).await?;
            }
            let flushed = device.flush().await.result;
            flushed.map_err(|error| Failure::new(format!("{}: {error}", member.info().name)))?;
            let sectors = contents.metadata.iter().map(|found| found.sector.0).collect();
            erased.push((member.info().name.clone(), sectors));
        }
        Ok(erased)
    };
    // All of them first: what can't be written is known before any is (C34).
    let alone = fence::alone(&devices, array.0, erasing).await;
    alone.map_err(|error: FenceError| Failure::new(error.to_string()))?
}

async fn refuse(member: &Member, contents: &Contents, served: &[Served], force: bool) -> Result<(), Failure> {
    let name = printable(&member.info().name);
    if contents.metadata.is_empty() {
        return Err(Failure::new(format!("{name} holds no MD superblock; nothing was changed")));
    }
    if let Member::Remote(source) = member
        && source.offload().is_some()
        && source.query().await?.attached
    {
        return Err(Failure::new(format!("{name} is in use: a host has attached it; nothing was changed")));
    }
    if force {
        return Ok(());
    }
    // A local device that is in use is locked, and a server of ours says so. Of others nothing tells.
    let tells = !matches!(member, Member::Remote(source) if source.offload().is_none());
    let served = if tells { served } else { &[] };
    for found in &contents.metadata {
        let why = match &found.superblock {
            Err(error) => Some(format!("its superblock can't be understood ({error})")),
            Ok(metadata) => needed(&metadata.superblock, served),
        };
        if let Some(why) = why {
            return Err(Failure::new(format!(
                "{name}: {why}; nothing was changed: use --force to erase it nevertheless"
            )));
        }
    }
    Ok(())
}

/// Why an array may need the device to be made consistent. Clients may have been writing when it went, and
/// its superblock says so for ever; but an array that is served without it and has all of its members has
/// gone on.
fn needed(superblock: &Superblock, served: &[Served]) -> Option<String> {
    let (array, name) = (&superblock.array, printable(&superblock.array.name.short()));
    if superblock.own_role() == Role::Journal {
        return Some(format!(
            "it is the journal of the array {name}, and the array is not assembled without its journal"
        ));
    }
    let is_whole = |served: &Served| served.is(array.set_uuid) && served.detail.has_all_members();
    (array.is_dirty() && !served.iter().any(is_whole)).then(|| {
        format!("its array {name} was not stopped cleanly, and may need this device to be made consistent")
    })
}

/// Zeroes a superblock, roles and all.
async fn erase(device: &dyn Device, found: &MdFinding) -> Result<(), Failure> {
    let info = device.info();
    let failed = |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", info.name));
    let block = u64::from(info.logical_block);
    let start = found.sector.checked_bytes().unwrap_or(u64::MAX) / block * block;
    let end = start.saturating_add(SUPERBLOCK_BYTES_MAX as u64).min(info.size / SECTOR_BYTES * SECTOR_BYTES);
    let length = usize::try_from(end.saturating_sub(start)).map_err(|error| failed(&error))?;
    let written = device.write(start, shard::zeroed(length).freeze(), false).await.result;
    written.map(|_| ()).map_err(|error| failed(&error))
}
