//! From superblocks to arrays. Pure.
//!
//! What is one device by two paths counts once (C30): of a disk and a mapping over it, that on which nothing
//! lies. Two devices that say that they are one member are two: a disk and its copy. Which one is meant is
//! not to be guessed.

use std::{collections::BTreeMap, path::PathBuf};

use pinstripe_md::{
    identity::Uuid,
    superblock::{Role, Superblock, event_is_current},
};
use pinstripe_runtime::uring::Storage;

use super::{Candidate, FoundArray, FoundMember};

/// A device, whatever its paths are.
struct Device {
    candidate: Candidate,
    superblock: Superblock,
    also: Vec<PathBuf>,
}

/// Puts devices together by the array's UUID. Superblocks that can't be read are told of in words, but for
/// those of a device that is a member by another path: a superblock at the end of a partition can lie at the
/// end of its disk, too.
pub fn group(candidates: Vec<Candidate>) -> (Vec<FoundArray>, Vec<String>) {
    let mut devices: BTreeMap<Uuid, Vec<Device>> = BTreeMap::new();
    let mut damaged = Vec::new();
    for candidate in candidates {
        match &candidate.superblock {
            Ok(superblock) => {
                let superblock = superblock.clone();
                let all = devices.entry(superblock.array.set_uuid).or_default();
                add(all, Device { candidate, superblock, also: Vec::new() });
            }
            Err(error) => damaged.push((format!("{}: {error}", candidate.path.display()), candidate.storage)),
        }
    }
    let is_member = |storage: &Storage| {
        devices.values().flatten().any(|device| overlap(device.candidate.storage.as_ref(), Some(storage)))
    };
    damaged.retain(|(_, storage)| !storage.as_ref().is_some_and(is_member));
    let remarks = damaged.into_iter().map(|(words, _)| words).collect();
    let overlaps = overlaps(&devices);
    let arrays = devices.into_iter().filter_map(|(uuid, devices)| array(uuid, devices, &overlaps)).collect();
    (arrays, remarks)
}

/// Devices of one storage with superblocks that are not one: a disk that was a member, and its partition that
/// is one now. Which of them counts is not to be guessed.
fn overlaps(devices: &BTreeMap<Uuid, Vec<Device>>) -> Vec<(PathBuf, PathBuf)> {
    let all: Vec<&Device> = devices.values().flatten().collect();
    let mut pairs = Vec::new();
    for (index, one) in all.iter().enumerate() {
        let on_it =
            |other: &&&Device| overlap(one.candidate.storage.as_ref(), other.candidate.storage.as_ref());
        let others = all[..index].iter().filter(on_it);
        pairs.extend(others.map(|other| (other.candidate.path.clone(), one.candidate.path.clone())));
    }
    pairs
}

fn overlap(one: Option<&Storage>, other: Option<&Storage>) -> bool {
    one.is_some_and(|one| other.is_some_and(|other| one.overlaps(other)))
}

/// Adds a device, unless it is there by another path.
fn add(devices: &mut Vec<Device>, mut new: Device) {
    let is_same = |old: &&mut Device| {
        old.candidate.path == new.candidate.path
            || overlap(old.candidate.storage.as_ref(), new.candidate.storage.as_ref())
                && old.superblock.member.device_uuid == new.superblock.member.device_uuid
    };
    let Some(old) = devices.iter_mut().find(is_same) else {
        devices.push(new);
        return;
    };
    if old.candidate.path == new.candidate.path {
        return;
    }
    if !old.candidate.holders.is_empty() && new.candidate.holders.is_empty() {
        std::mem::swap(old, &mut new);
    }
    old.also.append(&mut new.also);
    old.also.push(new.candidate.path);
}

fn array(uuid: Uuid, devices: Vec<Device>, overlaps: &[(PathBuf, PathBuf)]) -> Option<FoundArray> {
    let freshest =
        devices.iter().map(|device| &device.superblock).max_by_key(|superblock| superblock.array.events)?;
    let freshest = freshest.clone();
    let current = freshest.array.events;
    let is_current = |device: &Device| event_is_current(current, device.superblock.array.events);
    let mut doubled = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        let is_copy = |other: &&Device| {
            let (one, two) = (&device.superblock.member, &other.superblock.member);
            // A copy that was used by itself may be ahead of what it was made of. The number of a device that
            // is out of date may be another one's by now.
            let is_one_number = one.dev_number == two.dev_number && is_seated(&freshest, device);
            one.device_uuid == two.device_uuid || is_one_number && is_current(device) && is_current(other)
        };
        let copies = devices[..index].iter().filter(is_copy);
        doubled.extend(copies.map(|other| (other.candidate.path.clone(), device.candidate.path.clone())));
    }
    let is_here = |path: &PathBuf| devices.iter().any(|device| device.candidate.path == *path);
    let overlaps = overlaps.iter().filter(|(one, other)| is_here(one) || is_here(other)).cloned().collect();
    let mut members: Vec<FoundMember> = devices
        .into_iter()
        .map(|Device { candidate, superblock, also }| {
            let role = superblock.role_in(&freshest.array);
            let disowned = matches!(superblock.own_role(), Role::Slot(_)) && !matches!(role, Role::Slot(_));
            FoundMember {
                path: candidate.path,
                also,
                role,
                events: superblock.array.events,
                stale: disowned || !event_is_current(current, superblock.array.events),
                whole: superblock.member.recovery_offset.is_none() && superblock.own_role() == role,
                holders: candidate.holders,
            }
        })
        .collect();
    let place = |member: &FoundMember| match member.role {
        Role::Slot(slot) => slot.0,
        _ => u16::MAX,
    };
    members.sort_by(|one, other| place(one).cmp(&place(other)).then_with(|| one.path.cmp(&other.path)));
    Some(FoundArray { uuid, name: freshest.array.name.to_string(), freshest, members, doubled, overlaps })
}

fn is_seated(freshest: &Superblock, device: &Device) -> bool {
    matches!(device.superblock.role_in(&freshest.array), Role::Slot(_) | Role::Journal)
}
