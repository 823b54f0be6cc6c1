//! `pinstripe import` and `pinstripe release`: an array from mdadm to Pinstripe, and back.
//!
//! ```text
//!   import       looks, makes mdadm leave the array alone, takes it from the kernel, serves it
//!   release      looks, stops the server, gives the array back to mdadm
//!   files        mdadm's configuration and ours: what is changed, written whole, and undone
//!   mdadm_conf   what changes in mdadm's text. Pure
//!   md_device    what the kernel does with an array
//!   ramdisk      what mdadm is told in the initial ramdisk
//!   remarks      what was done for an array of mdadm's, and is for a person to do
//! ```
//!
//! All that can be looked at is looked at before the first change. No byte of a member is written here. A
//! failure takes the changes of files back.

mod files;
mod import;
mod md_device;
mod mdadm_conf;
mod ramdisk;
mod release;
mod remarks;

use std::path::Path;

use pinstripe_config::Configuration;
use pinstripe_md::identity::Uuid;

pub use import::run as import;
pub use ramdisk::run as ramdisk;
pub use release::run as release;

use files::Edit;

use crate::{
    failure::Failure,
    joined,
    scan::{FoundArray, LIMIT, look_at},
    state,
};

/// What a person should do about the initial ramdisk, if it has a copy of mdadm's configuration that changes,
/// here or by our hook. `has_unit`: the array's unit is started, which sees to that.
fn of_ramdisk(edits: &[Edit], has_unit: bool) -> Option<&'static str> {
    let changes = edits.iter().any(Edit::is_of_mdadm) || state::folder().join("ramdisk").exists();
    let is_in_it = changes && Path::new("/usr/sbin/update-initramfs").exists();
    (is_in_it && !has_unit).then_some(
        "mdadm's configuration is in the initial ramdisk, too: `update-initramfs -u` writes it there",
    )
}

/// The array that a person means: by its UUID or name, or by the path of the kernel's device or a member. A
/// path has a `/`: what lies in the current folder must not be taken for the array of this name.
fn find(configuration: &Configuration, meant: &str) -> Result<FoundArray, Failure> {
    let scan = |names: Option<&[String]>| joined::scan_within(names, LIMIT, &[]);
    let mut arrays = scan(configuration.scan.devices.as_deref()).arrays;
    let named: Vec<String> = configuration.arrays.iter().flat_map(|array| array.members.clone()).collect();
    if !named.is_empty() {
        let known: Vec<Uuid> = arrays.iter().map(|array| array.uuid).collect();
        arrays.extend(scan(Some(&named)).arrays.into_iter().filter(|array| !known.contains(&array.uuid)));
    }
    let path = Path::new(meant);
    let (mut uuid, mut kernel) = (meant.parse::<Uuid>().ok(), None);
    if uuid.is_none() && meant.contains('/') && path.exists() {
        kernel = md_device::name_of(path);
        if kernel.is_none()
            && let Some(candidate) = look_at(path)?
        {
            let superblock =
                candidate.superblock.map_err(|error| Failure::new(format!("{meant}: {error}")))?;
            uuid = Some(superblock.array.set_uuid);
        }
    }
    let is_meant = |array: &FoundArray| match (&kernel, uuid) {
        (Some(name), _) => array.kernel().contains(name),
        (None, Some(uuid)) => array.uuid == uuid,
        (None, None) => array.name == meant || array.short_name() == meant,
    };
    let mut meant_ones = arrays.into_iter().filter(is_meant);
    match (meant_ones.next(), meant_ones.next()) {
        (Some(found), None) => Ok(found),
        (Some(one), Some(other)) => Err(Failure::new(format!(
            "{} and {} are both called {meant}: give the UUID",
            one.uuid, other.uuid
        ))),
        (None, _) => Err(Failure::new(format!(
            "no array was found by {meant}: give its UUID, its name, or the path (with a /) of its /dev/md device or of a member; `pinstripe examine --scan` shows what is found"
        ))),
    }
}
