//! Which superblock on a device is its own: clients can write one where their array's data is (C30).

use std::{rc::Rc, sync::Arc};

use pinstripe_md::{
    identity::Uuid,
    superblock::{Claims, ErrorKind, SUPERBLOCK_BYTES_MAX, Superblock, SuperblockError, candidate_sectors},
    units::{SECTOR_BYTES, Sector},
};
use pinstripe_runtime::{Device, DeviceError, DeviceErrorKind, DeviceSource, shard};

use super::{AssembleError, Found, array_words, read_bad_blocks};

/// Reads the superblocks of a device: all whole ones of the places where one may lie. `None` if there is
/// none; an error if there is only a damaged one.
pub async fn read_claims(device: &dyn Device) -> Result<Option<Claims>, AssembleError> {
    let name = &device.info().name;
    let sectors = device.info().size / SECTOR_BYTES;
    let failed = |error| AssembleError::Device { name: name.clone(), error };
    let (mut whole, mut damaged, mut unreadable) = (Vec::<Superblock>::new(), None, None);
    for place in candidate_sectors(sectors) {
        match read_place(device, place, sectors).await {
            // It may lie in the data of a superblock that is found elsewhere.
            Err(error) if error.kind == DeviceErrorKind::Media => unreadable = unreadable.or(Some(error)),
            Err(error) => return Err(failed(error)),
            // On the smallest devices two places are one.
            Ok(Some(Ok(superblock))) if whole.iter().all(|one| one.member.super_offset != place) => {
                whole.push(superblock);
            }
            Ok(Some(Err(error))) => damaged = damaged.or(Some(error)),
            Ok(_) => {}
        }
    }
    if !whole.is_empty() {
        return Ok(Some(Claims::new(whole)));
    }
    if let Some(error) = unreadable {
        return Err(failed(error));
    }
    damaged.map_or(Ok(None), |error| Err(AssembleError::Superblock { name: name.clone(), error }))
}

/// What lies at a place where a superblock of a device of so many sectors may lie: nothing of MD's, a
/// superblock, or a damaged one.
pub(crate) async fn read_place(
    device: &dyn Device,
    place: Sector,
    sectors: u64,
) -> Result<Option<Result<Superblock, SuperblockError>>, DeviceError> {
    let outcome = device.read(place.0 * SECTOR_BYTES, shard::buffer(SUPERBLOCK_BYTES_MAX)).await;
    outcome.result?;
    match Superblock::decode(outcome.buffer.as_deref().unwrap_or_default(), place, sectors) {
        Err(error) if error.kind() == ErrorKind::NotMd => Ok(None),
        found => Ok(Some(found)),
    }
}

/// A device's own superblock, if it has one. If several may be it, the one of the array `wanted`.
pub async fn read_superblock(
    device: &dyn Device,
    wanted: Option<Uuid>,
) -> Result<Option<Superblock>, AssembleError> {
    let Some(claims) = read_claims(device).await? else { return Ok(None) };
    let own = claims.choose(wanted, &[]).cloned();
    own.map(Some).ok_or_else(|| contested(device, &claims))
}

/// What the superblock of `device` says, which is attached from `source` and [bounded](super::Bounded).
pub(crate) async fn read_member(
    source: Arc<dyn DeviceSource>,
    device: Rc<dyn Device>,
    wanted: Option<Uuid>,
) -> Result<Found, AssembleError> {
    let superblock = read_superblock(&*device, wanted).await?.ok_or_else(|| none(&*device))?;
    let bad_blocks = read_bad_blocks(&*device, &superblock).await?;
    Ok(Found { source, device, superblock, bad_blocks })
}

/// The own superblocks of devices that are given together. Where a device has several, those about which
/// there is no doubt tell which one is meant: no client can take the true one away.
pub(super) async fn read_superblocks(
    devices: impl Iterator<Item = &Rc<dyn Device>>,
    wanted: Option<Uuid>,
) -> Result<Vec<Superblock>, AssembleError> {
    let mut all = Vec::new();
    for device in devices {
        all.push((device, read_claims(&**device).await?.ok_or_else(|| none(&**device))?));
    }
    let others: Vec<_> = all.iter().filter_map(|(_, claims)| claims.only()).map(Superblock::kind).collect();
    let own = |(device, claims): &(&Rc<dyn Device>, Claims)| {
        let own = claims.choose(wanted, &others).ok_or_else(|| contested(&***device, claims))?;
        match wanted.filter(|uuid| own.array.set_uuid != *uuid) {
            None => Ok(own.clone()),
            Some(wanted) => Err(AssembleError::NotWanted {
                name: device.info().name.clone(),
                array: array_words(own),
                wanted,
            }),
        }
    };
    all.iter().map(own).collect()
}

fn none(device: &dyn Device) -> AssembleError {
    AssembleError::Superblock { name: device.info().name.clone(), error: SuperblockError::NoMagic }
}

/// The error if it can't be told which superblock of a device is its own.
pub fn contested(device: &dyn Device, claims: &Claims) -> AssembleError {
    let words = |superblock: &Superblock| {
        let member = &superblock.member;
        format!("{} at {} (metadata {})", array_words(superblock), member.super_offset, member.version)
    };
    let words: Vec<String> = claims.all().iter().map(words).collect();
    AssembleError::Contested { name: device.info().name.clone(), arrays: words.join(" and ") }
}
