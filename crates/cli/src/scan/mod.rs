//! Which arrays are there: superblocks of all devices, put together by the array's UUID.
//!
//! ```text
//!   devices    what block devices there are, and what lies on top of each
//!   look       reads superblocks, from all devices at a time
//!   group      arrays of superblocks. Pure
//! ```
//!
//! This only looks. Devices are read without a lock, and may be members of an array that runs. What comes of
//! it is a proposal: `serve` opens and locks the members, reads them again, and decides whether they are an
//! array.

mod devices;
mod group;
mod look;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use pinstripe_control::{Detail, text::printable};
use pinstripe_md::{
    identity::{Uuid, short_name},
    superblock::{Role, Superblock, Support},
};
use serde_json::{Value, json};

pub use devices::{block_device_generations, block_devices, holders};
pub use group::group;
pub use look::{Candidate, LIMIT, LIMIT_AGAIN, Looked, awaited, look, look_at};

/// What a scan has found.
#[derive(Default)]
pub struct Seen {
    pub arrays: Vec<FoundArray>,
    /// Devices that could not be read, or hold a superblock that can't be; in words.
    pub remarks: Vec<String>,
    /// How many those are. Each may be a member.
    pub unread: usize,
    /// Some of these have not answered, and may at a later look.
    pub is_silent: bool,
}

/// An array of which a device at least was found.
#[derive(Clone)]
pub struct FoundArray {
    pub uuid: Uuid,
    /// As it stands on disk, with the host.
    pub name: String,
    /// The superblock with the most events.
    pub freshest: Superblock,
    /// Its devices: those with a slot first, by slot.
    pub members: Vec<FoundMember>,
    /// Pairs of devices that both say that they are one member, and are two.
    pub doubled: Vec<(PathBuf, PathBuf)>,
    /// Pairs of devices on one storage with superblocks that are not one; one of them is of this array.
    pub overlaps: Vec<(PathBuf, PathBuf)>,
    /// Devices that may be another array's as well.
    pub contested: Vec<Contested>,
    /// Why a start of it refuses its geometry, its journal or its bitmaps, in words.
    pub start_fault: Option<String>,
}

/// A device with superblocks of several arrays, of which a client may have written one.
#[derive(Clone)]
pub struct Contested {
    pub path: PathBuf,
    /// The other array.
    pub other: Uuid,
    other_name: String,
}

impl Contested {
    fn new(path: &Path, other: &Superblock) -> Self {
        let other_name = other.array.name.short();
        Self { path: path.to_owned(), other: other.array.set_uuid, other_name }
    }
}

/// A device of an array.
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub struct FoundMember {
    pub path: PathBuf,
    /// Other paths to it.
    pub also: Vec<PathBuf>,
    /// What the freshest superblock says that it is.
    pub role: Role,
    pub events: u64,
    /// It missed writes.
    pub stale: bool,
    /// It was a member, and all that are current say that it is none. It has nothing that the array needs.
    pub left_behind: bool,
    /// It has everything that a member of its slot has.
    pub whole: bool,
    /// Its bad-block log can't be used, so that the others are served without it, if they can be. Its
    /// superblock counts: it may say that what is left is out of date (C9).
    pub unfit: bool,
    /// The kernel's devices on top of it.
    pub holders: Vec<String>,
}

impl FoundArray {
    /// Its name without the host.
    pub fn short_name(&self) -> String {
        self.freshest.array.name.short()
    }

    /// How many slots it has.
    pub fn wanted(&self) -> usize {
        usize::try_from(self.freshest.array.raid_disks).unwrap_or(usize::MAX)
    }

    fn holds(&self, slot: usize) -> bool {
        let is_here = |member: &FoundMember| match member.role {
            Role::Slot(own) => usize::from(own.0) == slot && member.whole && !member.stale && !member.unfit,
            _ => false,
        };
        self.members.iter().any(is_here)
    }

    /// Slots without a member that has everything.
    pub fn missing(&self) -> Vec<usize> {
        (0..self.wanted()).filter(|slot| !self.holds(*slot)).collect()
    }

    /// Those of them that had one when the array was used last, by whose absence it would lose redundancy.
    pub fn awaited(&self) -> Vec<usize> {
        let array = &self.freshest.array;
        let numbers_here = |slot: usize| {
            let slot = pinstripe_md::units::MemberSlot(u16::try_from(slot).unwrap_or(u16::MAX));
            array.devices_in(slot).next().is_some()
        };
        // A member that is here and being rebuilt isn't waited for.
        let is_here = |slot: usize| {
            self.members.iter().any(|member| {
                let is_its = matches!(member.role, Role::Slot(own) if usize::from(own.0) == slot);
                is_its && !member.stale && !member.unfit
            })
        };
        self.missing().into_iter().filter(|slot| numbers_here(*slot) && !is_here(*slot)).collect()
    }

    /// Whether the members here are enough to have all data.
    pub fn is_enough(&self) -> bool {
        self.missing().len() <= usize::from(self.freshest.array.level.parity_count())
    }

    /// Its members without those that the array has gone on without: the server leaves them out, and one that
    /// can't be opened or written would keep the others from being served. None is left out where too few
    /// members are here.
    pub fn needed(&self) -> impl Iterator<Item = &FoundMember> {
        let is_enough = self.is_enough();
        self.members.iter().filter(move |member| !(is_enough && member.left_behind))
    }

    /// The others.
    pub fn left_out(&self) -> impl Iterator<Item = &FoundMember> {
        let is_enough = self.is_enough();
        self.members.iter().filter(move |member| is_enough && member.left_behind)
    }

    /// Whether it has a journal that isn't here.
    pub fn lacks_journal(&self) -> bool {
        let is_it = |member: &FoundMember| member.role == Role::Journal && !member.stale && !member.unfit;
        self.freshest.array.journal && !self.members.iter().any(is_it)
    }

    /// The kernel's md devices that have members of it.
    pub fn kernel(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.members.iter().flat_map(|member| member.holders.iter()).cloned().collect();
        names.retain(|name| name.starts_with("md"));
        names.sort();
        names.dedup();
        names
    }

    /// Why it can't be served, whatever is still to come; none if it can.
    pub fn obstacle(&self) -> Option<String> {
        if let Some(name) = self.kernel().first() {
            return Some(format!(
                "the kernel's md has it as /dev/{name}: stop that first (mdadm --stop /dev/{name})"
            ));
        }
        self.fault()
    }

    /// Why it can't be served, though the kernel doesn't have it.
    pub fn fault(&self) -> Option<String> {
        // Copies of what the array has gone on without aren't looked at, whichever of them is meant.
        let needed: Vec<&PathBuf> = self.needed().map(|member| &member.path).collect();
        let counts = |(one, other): &&(PathBuf, PathBuf)| needed.contains(&one) || needed.contains(&other);
        if let Some((one, other)) = self.doubled.iter().find(counts) {
            return Some(format!(
                "{} and {} both say that they are the same member: take the copy away, or name the members in the configuration",
                one.display(),
                other.display()
            ));
        }
        if let Some((one, other)) = self.overlaps.first() {
            return Some(format!(
                "{} and {} are on one device and hold different superblocks: erase the one that is out of \
                    date (`pinstripe zero-superblock`), or name the members in the configuration",
                one.display(),
                other.display()
            ));
        }
        if let Some(Contested { path, other, other_name }) = self.contested.first() {
            return Some(format!(
                "{} holds superblocks of this array ({}) and of {other_name} ({other}), and nothing tells which one is its own: \
                    the data of the one array is where the superblock of the other is, so a client may have written \
                    that. Say which array is meant: `uuid` in its [[array]], or --uuid",
                path.display(),
                self.uuid
            ));
        }
        match self.freshest.support() {
            Support::Refused(reason) => Some(reason.to_string()),
            Support::Full | Support::ReadOnly(_) => self.start_fault.clone(),
        }
    }

    /// What it is, and how much of it is here.
    pub fn in_words(&self) -> String {
        let missing = self.missing();
        let array = &self.freshest.array;
        let here = self.wanted() - missing.len();
        let lacking =
            if missing.is_empty() { String::new() } else { format!(" ({})", slots(&missing, "missing")) };
        let mut words = format!("{}, {here} of {} members{lacking}", array.level, self.wanted());
        if array.journal {
            words += if self.lacks_journal() { ", its journal missing" } else { ", a journal" };
        }
        words
    }

    /// All that a program may want to know; `served` are the servers' answers.
    pub fn value(&self, served: &[Served]) -> Value {
        let array = &self.freshest.array;
        let members = self.members.iter().map(|member| {
            let (role, slot) = match member.role {
                Role::Slot(slot) => ("active", Some(slot.0)),
                Role::Spare => ("spare", None),
                Role::Faulty => ("faulty", None),
                Role::Journal => ("journal", None),
            };
            let also: Vec<String> = member.also.iter().map(|path| shown(path)).collect();
            json!({
                "device": shown(&member.path), "also": also, "role": role, "slot": slot,
                "events": member.events, "stale": member.stale, "whole": member.whole, "holders": member.holders,
            })
        });
        let server = served.iter().find(|served| served.is(self.uuid));
        json!({
            "uuid": self.uuid.to_string(), "name": self.name, "level": array.level.name(), "events": array.events,
            "members_wanted": self.wanted(), "missing_slots": self.missing(), "awaited_slots": self.awaited(),
            "journal": array.journal, "journal_missing": self.lacks_journal(),
            "members": members.collect::<Vec<_>>(), "kernel": self.kernel(), "obstacle": self.obstacle(),
            "control": server.map(|server| shown(&server.control)),
        })
    }
}

/// A path for JSON, which has no others than UTF-8.
pub fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// `slots 1, 3 are missing`.
pub fn slots(slots: &[usize], what: &str) -> String {
    let numbers: Vec<String> = slots.iter().map(ToString::to_string).collect();
    let (noun, verb) = if slots.len() == 1 { ("slot", "is") } else { ("slots", "are") };
    format!("{noun} {} {verb} {what}", numbers.join(", "))
}

/// A server that answers.
pub struct Served {
    pub control: PathBuf,
    pub detail: Detail,
}

impl Served {
    /// All there are, as far as this user may see them; and those that should answer and don't, in words.
    pub fn all() -> (Vec<Self>, Vec<String>) {
        let (mut all, mut silent) = (Vec::new(), Vec::new());
        for (control, answer) in crate::list::servers() {
            match answer {
                Ok(detail) => all.push(Self { control, detail }),
                Err(error) => silent.push(printable(&format!("{}: {error}", control.display()))),
            }
        }
        (all, silent)
    }

    /// Whether it serves this array.
    pub fn is(&self, uuid: Uuid) -> bool {
        self.detail.uuid.parse() == Ok(uuid)
    }

    /// Whether its array may be the one of this name. Of two hosts' arrays of one name it is one.
    pub fn may_be(&self, name: &str) -> bool {
        let full = &self.detail.full_name;
        let is_other_hosts = name.contains(':') && full.contains(':') && name != full;
        self.detail.name == short_name(name) && !is_other_hosts
    }
}

/// Searches where `names` says (paths and globs), or all block devices.
pub fn scan(names: Option<&[String]>) -> Seen {
    scan_further(names, LIMIT, &[], |_| Vec::new())
}

/// The same, without what hasn't answered within `limit`; and `further` devices for members of each array
/// that is found, or asked for: of that one they may be the only ones. None of these keeps an array from
/// being started.
pub fn scan_further(
    names: Option<&[String]>,
    limit: Duration,
    asked: &[Uuid],
    further: impl Fn(Uuid) -> Vec<PathBuf>,
) -> Seen {
    let (paths, mut remarks) = match names {
        None => devices::block_devices(),
        Some(names) => {
            let expanded = pinstripe_config::expand(names);
            let empty = expanded.empty.iter().map(|glob| format!("{glob} matches nothing"));
            (expanded.paths, empty.chain(expanded.unreadable).collect())
        }
    };
    let paths: Vec<PathBuf> =
        paths.into_iter().filter(|path| !pinstripe_config::is_server(&path.to_string_lossy())).collect();
    // What only a glob means, such as /dev/loop-control by /dev/loop*, was not asked for.
    let is_named = |path: &Path| names.is_none_or(|names| names.iter().any(|name| Path::new(name) == path));
    let paths: Vec<PathBuf> =
        paths.into_iter().filter(|path| is_named(path) || devices::may_be_member(path)).collect();
    let Looked { mut candidates, mut unread, mut is_silent } = look(&paths, limit);
    let (mut arrays, mut damaged) = group(candidates.clone());
    let found = arrays.iter().map(|found| found.uuid);
    for uuid in found.chain(asked.iter().copied()).collect::<BTreeSet<_>>() {
        let mut further = further(uuid);
        further.retain(|path| !paths.contains(path));
        if further.is_empty() {
            continue;
        }
        let looked = look(&further, limit);
        unread.extend(looked.unread);
        is_silent |= looked.is_silent;
        for candidate in looked.candidates {
            candidates = with_member(candidates, candidate, uuid);
        }
        (arrays, damaged) = group(candidates.clone());
    }
    let count = unread.len() + damaged.len();
    remarks.extend(unread.into_iter().map(|(_, why)| why).chain(damaged));
    Seen { arrays, remarks, unread: count, is_silent }
}

/// With a further device, if it is a member of this array, and not one because of which an array can't be
/// started: a copy, or what may be another array's as well.
fn with_member(before: Vec<Candidate>, new: Candidate, uuid: Uuid) -> Vec<Candidate> {
    if new.superblock.as_ref().ok().is_none_or(|superblock| superblock.array.set_uuid != uuid) {
        return before;
    }
    let faulty = |candidates: &[Candidate]| -> BTreeSet<Uuid> {
        let (arrays, _) = group(candidates.to_vec());
        arrays.iter().filter(|found| found.fault().is_some()).map(|found| found.uuid).collect()
    };
    let with = [&before[..], &[new]].concat();
    if faulty(&with).is_subset(&faulty(&before)) { with } else { before }
}
