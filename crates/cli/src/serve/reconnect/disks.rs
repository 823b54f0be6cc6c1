//! Members on local disks that were pulled.
//!
//! A disk that the kernel has no more is a lost member (C24), on an idle array too. If the kernel is given a
//! disk later, under whatever name, that has the lost member's superblock and is that disk by its serial
//! number, it is added again. Files don't go away like this, and of generic devices of NVMe the kernel
//! doesn't tell.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    rc::Rc,
};

use pinstripe_block::first_of::{First, first_of};
use pinstripe_engine::{
    array::Array, assembly::read_superblock, events::EventKind, status::detail::FailedMember,
};
use pinstripe_md::{identity::Uuid, superblock::Superblock};
use pinstripe_runtime::{
    DeviceErrorKind, shard,
    uring::{Generation, OpenOptions, blocking},
};

use super::{SUPERBLOCK_NANOSECONDS, Trouble, add, is_over};
use crate::{
    member::{self, Disk, Member},
    scan::{LIMIT, Looked, block_devices, look},
    serve::stopping::Stopping,
};

/// A member that failed so much earlier than its disk went has failed by itself. The kernel may fail requests
/// long before it gives a disk up: its error handling takes its time, and so does what the disk's cache
/// holds.
const BEFORE_NANOSECONDS: u64 = 60_000_000_000;
/// A disk that goes for the fourth time within this time has a fault that a person must find.
const RETURNS_NANOSECONDS: u64 = 3_600_000_000_000;
const RETURNS_MAX: usize = 3;
/// Tries in vain after which that is told: those that probe a new disk let go of it soon.
const TRIES: u32 = 3;
/// Looks at a new disk that can't be read after which it is left alone: some need a while to answer.
const LOOKS: u32 = 20;

/// See the module. Lives on shard 0.
pub struct Disks {
    array: Array,
    poll: bool,
    stopping: Rc<Stopping>,
    fates: Fates,
    /// What was looked at since a member was lost, and how often it was tried. 0: it is none of those.
    looked: BTreeMap<(PathBuf, Generation), u32>,
    /// How often what could not be read was looked at.
    unread: BTreeMap<(PathBuf, Generation), u32>,
    /// When members came back, by their identity.
    returns: BTreeMap<Uuid, Vec<u64>>,
}

impl Disks {
    pub fn new(array: Array, poll: bool, stopping: Rc<Stopping>) -> Self {
        let (fates, looked, unread, returns) = Default::default();
        Self { array, poll, stopping, fates, looked, unread, returns }
    }

    /// Waits for what is lost, until the end is wanted. `gone` gets the devices of what is waited for.
    pub async fn watch(mut self, gone: &RefCell<BTreeSet<String>>) {
        loop {
            let last_reported = self.array.last_event();
            let disks = member::disks();
            let is_gone = |(name, disk): (String, Disk)| disk.generation.is_gone().then_some(name);
            let away: BTreeSet<String> =
                blocking(move || disks.into_iter().filter_map(is_gone).collect()).await;
            self.drop_gone(&away).await;
            self.fates.follow(&self.array.detail().failed, &member::disks(), &away, shard::now());
            gone.replace(self.fates.lost().map(|lost| lost.device.clone()).collect());
            let stopping = Rc::clone(&self.stopping);
            let found = match first_of(stopping.wanted(), self.find()).await {
                First::One(()) => return,
                First::Other(found) => found,
            };
            for (path, generation, lost) in found {
                self.take_back(path, generation, &lost).await;
            }
            if is_over(&self.array, last_reported, &stopping).await {
                return;
            }
        }
    }

    /// Drops members without a disk, so that they are looked for before they are needed.
    async fn drop_gone(&self, away: &BTreeSet<String>) {
        for device in away {
            // While another one was dropped, a disk that is there may have come under this name.
            let known = member::disks().remove(device);
            let is_away = blocking(move || known.is_some_and(|disk| disk.generation.is_gone())).await;
            if !is_away {
                continue;
            }
            // A failed array drops no member any more (C3). If it fails here, that is told elsewhere.
            if !self.array.shared().has_failed() {
                let _ = self.array.drop_gone(device).await;
            }
        }
    }

    /// Devices that are there after a member was lost, and say that they are it.
    async fn find(&mut self) -> Vec<(PathBuf, Generation, Lost)> {
        let lost: Vec<Lost> = self.fates.lost().cloned().collect();
        if lost.is_empty() {
            self.looked.clear();
            self.unread.clear();
            return Vec::new();
        }
        let generations: Vec<Generation> = lost.iter().map(|lost| lost.disk.generation).collect();
        let new: Vec<(PathBuf, Generation)> = blocking(move || {
            let all = block_devices().0.into_iter();
            let all = all.filter_map(|path| Generation::at(&path).map(|generation| (path, generation)));
            all.filter(|(_, new)| generations.iter().any(|gone| new.can_follow(gone))).collect()
        })
        .await;
        self.looked.retain(|known, _| new.contains(known));
        self.unread.retain(|known, _| new.contains(known));
        let new: Vec<_> = new.into_iter().filter(|one| self.looked.get(one) != Some(&0)).collect();
        if new.is_empty() {
            return Vec::new();
        }
        let paths: Vec<PathBuf> = new.iter().map(|(path, _)| path.clone()).collect();
        let Looked { candidates, unread, .. } = blocking(move || look(&paths, LIMIT)).await;
        let ours = self.array.detail().uuid;
        let mut found = Vec::new();
        for (path, generation) in new {
            let candidate = candidates.iter().find(|candidate| candidate.path == path);
            let superblock = candidate.and_then(|candidate| candidate.superblock.as_ref().ok());
            if let Some((_, why)) = unread.iter().find(|(own, _)| *own == path) {
                self.could_not_read((path, generation), why);
                continue;
            }
            match superblock.and_then(|superblock| lost.iter().find(|lost| lost.is_in(superblock, &ours))) {
                Some(lost) => found.push((path, generation, lost.clone())),
                None => drop(self.looked.insert((path, generation), 0)),
            }
        }
        found
    }

    /// Has a new disk looked at again, for a while: it may be the one that is awaited.
    fn could_not_read(&mut self, disk: (PathBuf, Generation), why: &str) {
        let looks = self.unread.entry(disk.clone()).or_default();
        *looks += 1;
        if *looks >= LOOKS {
            let device = disk.0.display().to_string();
            self.unread.remove(&disk);
            self.looked.insert(disk, 0);
            self.array.tell(EventKind::NotTakenBack { device, reason: why.to_owned() });
        }
    }

    /// Puts a member into the array again, if the device is what it seems to be.
    async fn take_back(&mut self, path: PathBuf, generation: Generation, lost: &Lost) {
        let now = shard::now();
        let returns = self.returns.entry(lost.identity).or_default();
        returns.retain(|then| now - then < RETURNS_NANOSECONDS);
        let outcome = if returns.len() >= RETURNS_MAX {
            let often = format!(
                "it was away {RETURNS_MAX} times within the last hour: look at its cable and the kernel's log; `pinstripe add` takes it"
            );
            Err(Trouble::Never(often))
        } else {
            try_it(&self.array, &path, self.poll, lost).await
        };
        let (words, tried) = match outcome {
            Ok(()) => return self.returns.entry(lost.identity).or_default().push(now),
            Err(Trouble::Later(words) | Trouble::Server(words)) => (words, true),
            Err(Trouble::Never(words)) => (words, false),
        };
        let device = path.display().to_string();
        let tries = self.looked.entry((path, generation)).or_default();
        *tries = if tried { *tries + 1 } else { 0 };
        if *tries == TRIES || !tried {
            self.array.tell(EventKind::NotTakenBack { device, reason: words });
        }
    }
}

/// Opens the device, locks it, looks at it once more, and adds it.
async fn try_it(array: &Array, path: &Path, poll: bool, lost: &Lost) -> Result<(), Trouble> {
    let later = |error: &dyn std::fmt::Display| Trouble::Later(error.to_string());
    let options = OpenOptions { poll, ..OpenOptions::default() };
    let opened = member::open(path.to_owned(), options).await;
    let member = opened.map_err(|failure| later(&failure.sentence()))?;
    let Member::Local(file, _) = &member else { return Err(later(&"it is no device of this machine")) };
    let file = std::sync::Arc::clone(file);
    let storage = blocking(move || file.storage()).await.map_err(|error| later(&error))?;
    if let Some(why) = lost.doubts(storage.proof().as_deref()) {
        return Err(Trouble::Never(format!("{why}; `pinstripe add` takes it nevertheless")));
    }
    let handle = member.attach().map_err(|error| later(&error))?;
    let ours = array.detail().uuid.parse().ok();
    let read = shard::timeout(SUPERBLOCK_NANOSECONDS, read_superblock(&*handle, ours)).await;
    let read = read.ok_or_else(|| later(&"its superblock was not read in time"))?;
    match read.map_err(|error| later(&error))? {
        Some(superblock) if lost.is_in(&superblock, &array.detail().uuid) => {
            member.join(add(member.source(), array)).await
        }
        _ => Err(later(&"its superblock was changed")),
    }
}

/// A member whose disk has gone.
#[derive(Clone, Debug)]
struct Lost {
    identity: Uuid,
    /// The device's name when it was lost.
    device: String,
    disk: Disk,
}

impl Lost {
    fn is_in(&self, superblock: &Superblock, array: &str) -> bool {
        superblock.member.device_uuid == self.identity && superblock.array.set_uuid.to_string() == array
    }

    /// Why a device of this proof isn't believed to be the same disk. A superblock proves nothing: a clone
    /// has it too, and a partition's PARTUUID.
    fn doubts(&self, proof: Option<&str>) -> Option<&'static str> {
        match (self.disk.proof.as_deref(), proof) {
            (Some(before), Some(now)) if before == now => None,
            (None, _) => Some(
                "the disk that was lost had neither WWID nor serial number by which to know it again, so this may be a copy",
            ),
            _ => Some("it is another disk than before, with a copy of the member's superblock"),
        }
    }
}

/// What is known of a failed member.
#[derive(Debug)]
enum Fate {
    /// It failed a moment ago, and may turn out to have lost its disk.
    Fresh { since: u64 },
    /// It has lost its disk, and is waited for.
    Lost(Lost),
    /// It is out for another reason.
    Out,
}

/// Those of the failed members, by their identity. Pure.
#[derive(Debug, Default)]
struct Fates(BTreeMap<Uuid, Fate>);

impl Fates {
    fn lost(&self) -> impl Iterator<Item = &Lost> {
        self.0.values().filter_map(|fate| match fate {
            Fate::Lost(lost) => Some(lost),
            _ => None,
        })
    }

    /// `disks`: by device, those of all local members. `away`: the devices that the kernel has no more.
    fn follow(
        &mut self,
        failed: &[FailedMember],
        disks: &BTreeMap<String, Disk>,
        away: &BTreeSet<String>,
        now: u64,
    ) {
        self.0.retain(|identity, _| failed.iter().any(|failed| failed.identity == *identity));
        for failed in failed {
            let fate = self.0.entry(failed.identity).or_insert(Fate::Fresh { since: now });
            let Fate::Fresh { since } = *fate else { continue };
            let disk = disks.get(&failed.device);
            let was_removed = failed.error.error.kind == DeviceErrorKind::Removed;
            *fate = match disk {
                Some(disk) if !was_removed && away.contains(&failed.device) => Fate::Lost(Lost {
                    identity: failed.identity,
                    device: failed.device.clone(),
                    disk: disk.clone(),
                }),
                Some(_) if !was_removed && now - since < BEFORE_NANOSECONDS => continue,
                _ => Fate::Out,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use pinstripe_engine::{
        error::{MemberError, Operation},
        members::MemberStatistics,
    };
    use pinstripe_runtime::DeviceError;

    use super::*;

    const DEVICE: &str = "/dev/x";

    fn failed(kind: DeviceErrorKind) -> FailedMember {
        FailedMember {
            identity: Uuid([7; 16]),
            device: DEVICE.to_owned(),
            slot: Some(0),
            error: MemberError {
                role: 0.into(),
                name: DEVICE.to_owned(),
                operation: Operation::Write,
                offset: 0,
                error: DeviceError::of(kind),
            },
            late_requests: 0,
            statistics: MemberStatistics::default(),
        }
    }

    /// Of any block device of the machine: none is opened.
    fn generation() -> Generation {
        let generation = block_devices().0.iter().find_map(|path| Generation::at(path));
        generation.unwrap_or_else(|| panic!("this machine has no block device"))
    }

    /// Whether the member is waited for that failed at 0 and whose disk was away at `away`, of these looks.
    fn is_lost(kind: DeviceErrorKind, looks: &[u64], away: impl Fn(u64) -> bool) -> bool {
        let disk = Disk { generation: generation(), lasting_name: None, proof: None };
        let disks = BTreeMap::from([(DEVICE.to_owned(), disk)]);
        let mut fates = Fates::default();
        for &now in looks {
            let gone = away(now).then(|| DEVICE.to_owned()).into_iter().collect();
            fates.follow(&[failed(kind)], &disks, &gone, now);
        }
        fates.lost().count() == 1
    }

    #[test]
    fn a_member_is_waited_for_if_its_disk_went_when_it_failed() {
        use DeviceErrorKind::{Gone, Media, NoSpace, Other, Removed};
        let late = BEFORE_NANOSECONDS + 1;
        for kind in [Gone, NoSpace, Other, Media] {
            assert!(is_lost(kind, &[0], |_| true));
            assert!(is_lost(kind, &[0, 5], |now| now == 5), "it was seen a moment later");
            assert!(is_lost(kind, &[0, late], |now| now == 0), "it is back, and not yet looked at");
            assert!(!is_lost(kind, &[0, late, late + 1], |now| now > late), "it went for another reason");
            assert!(!is_lost(kind, &[0, late], |_| false));
        }
        assert!(!is_lost(Removed, &[0, 1], |_| true), "a user took it out");
    }

    #[test]
    fn a_disk_without_a_name_of_its_own_is_not_believed_to_be_the_lost_one() {
        let doubts = |before: Option<&str>, now| {
            let lasting_name = Some("partuuid:1".to_owned());
            let disk = Disk { generation: generation(), lasting_name, proof: before.map(str::to_owned) };
            Lost { identity: Uuid([7; 16]), device: DEVICE.to_owned(), disk }.doubts(now)
        };
        assert_eq!(doubts(Some("serial:1"), Some("serial:1")), None);
        assert!(doubts(None, None).is_some_and(|why| why.contains("nor serial number")));
        assert!(doubts(None, Some("serial:1")).is_some_and(|why| why.contains("nor serial number")));
        for now in [None, Some("serial:2")] {
            assert!(doubts(Some("serial:1"), now).is_some_and(|why| why.contains("another disk")));
        }
    }

    #[test]
    fn what_is_no_failed_member_any_more_is_forgotten() {
        let mut fates = Fates::default();
        fates.follow(&[failed(DeviceErrorKind::Gone)], &BTreeMap::new(), &BTreeSet::new(), 0);
        assert_eq!(fates.0.len(), 1);
        fates.follow(&[], &BTreeMap::new(), &BTreeSet::new(), 1);
        assert!(fates.0.is_empty());
    }
}
