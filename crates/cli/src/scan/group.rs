//! From superblocks to arrays. Pure.
//!
//! What is one device by two paths counts once (C30): of a disk and a mapping over it, that on which nothing
//! lies. Two devices that say that they are one member are two: a disk and its copy. Which one is meant is
//! not to be guessed.
//!
//! A device may hold superblocks of several arrays, of which a client of one has written the other
//! ([`Claims`](pinstripe_md::superblock::Claims)). What the arrays' other members say tells which one counts,
//! in most cases. If not, the device is found with each array, and none of them is started unless a person
//! says which one is meant.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use pinstripe_engine::assembly::refusal;
use pinstripe_md::{
    identity::Uuid,
    superblock::{ArrayRecord, Role, Superblock, check_bitmaps, event_is_current},
};
use pinstripe_runtime::uring::Storage;

use super::{Candidate, Contested, FoundArray, FoundMember};

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
    let (plain, doubtful): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(|candidate| candidate.rivals.is_empty());
    let (settled, contested) = settle(&plain, doubtful);
    for candidate in plain.into_iter().chain(settled) {
        match &candidate.superblock {
            Ok(superblock) => {
                let superblock = superblock.clone();
                let all = devices.entry(superblock.array.set_uuid).or_default();
                add(all, Device { candidate, superblock, also: Vec::new() });
            }
            Err(error) => damaged.push((format!("{}: {error}", candidate.path.display()), candidate.storage)),
        }
    }
    let mut doubts = Vec::new();
    for candidate in contested {
        let claims: Vec<Superblock> = claims(&candidate).cloned().collect();
        for superblock in &claims {
            let others = claims.iter().filter(|other| other.kind() != superblock.kind());
            let path = candidate.path.clone();
            doubts.extend(others.map(|other| (superblock.array.set_uuid, Contested::new(&path, other))));
            let all = devices.entry(superblock.array.set_uuid).or_default();
            let candidate = candidate.clone();
            add(all, Device { candidate, superblock: superblock.clone(), also: Vec::new() });
        }
    }
    let is_member = |storage: &Storage| {
        devices.values().flatten().any(|device| overlap(device.candidate.storage.as_ref(), Some(storage)))
    };
    damaged.retain(|(_, storage)| !storage.as_ref().is_some_and(is_member));
    let remarks = damaged.into_iter().map(|(words, _)| words).collect();
    let overlaps = overlaps(&devices);
    let with_doubts = |found: FoundArray| {
        let own = doubts.iter().filter(|(uuid, _)| *uuid == found.uuid).map(|(_, doubt)| doubt.clone());
        FoundArray { contested: own.collect(), ..found }
    };
    let arrays = devices.into_iter().filter_map(|(uuid, devices)| array(uuid, devices, &overlaps));
    (arrays.map(with_doubts).collect(), remarks)
}

/// What may be the device's own superblock.
fn claims(candidate: &Candidate) -> impl Iterator<Item = &Superblock> {
    candidate.superblock.iter().chain(&candidate.rivals)
}

/// Tells which superblock counts of devices with several, by those about which there is no doubt. Those of
/// which that can't be told come second.
fn settle(plain: &[Candidate], doubtful: Vec<Candidate>) -> (Vec<Candidate>, Vec<Candidate>) {
    let known: Vec<&Superblock> =
        plain.iter().filter_map(|candidate| candidate.superblock.as_ref().ok()).collect();
    let possible = |candidate: Candidate| {
        let (may_be, not): (Vec<Superblock>, Vec<Superblock>) =
            claims(&candidate).cloned().partition(|claim| may_be_member(claim, &known));
        (candidate, if may_be.is_empty() { not } else { may_be })
    };
    let doubtful: Vec<(Candidate, Vec<Superblock>)> = doubtful.into_iter().map(possible).collect();
    let all_claims: Vec<_> = doubtful.iter().flat_map(|(_, all)| all.clone()).collect();
    let alike = |kind| all_claims.iter().filter(move |claim| claim.kind() == kind);
    // One disk may be found by several paths.
    let claims = |kind| alike(kind).map(|claim| claim.member.device_uuid).collect::<BTreeSet<_>>().len();
    // Of several devices that say that they are one member, one is it at most.
    let seats = |kind| alike(kind).map(|claim| claim.member.dev_number).collect::<BTreeSet<_>>().len();
    let (mut settled, mut contested) = (Vec::new(), Vec::new());
    for (mut candidate, all) in doubtful {
        let goes_with = |one: &&Superblock| known.iter().any(|other| other.kind() == one.kind());
        let mut of_known = all.iter().filter(goes_with);
        let own = match (&all[..], of_known.next(), of_known.next()) {
            ([only], ..) => Some(only.clone()),
            // A client that can write on all members of its array leaves none without doubt. But the seats
            // that it can claim in another array are seldom as many as its own has members.
            (_, Some(only), None) if all.iter().all(|one| claims(one.kind()) <= seats(only.kind())) => {
                Some(only.clone())
            }
            _ => None,
        };
        let is_told = own.is_some();
        let mut left = own.map_or(all, |own| vec![own]);
        candidate.superblock = Ok(left.remove(0));
        candidate.rivals = left;
        if is_told { settled.push(candidate) } else { contested.push(candidate) }
    }
    (settled, contested)
}

/// Whether a device with this superblock, and others, may be what it says: a member that its array knows, and
/// that isn't there already.
fn may_be_member(claim: &Superblock, known: &[&Superblock]) -> bool {
    let peers = || known.iter().filter(|other| other.array.set_uuid == claim.array.set_uuid);
    let Some(freshest) = peers().max_by_key(|superblock| superblock.freshness()) else { return true };
    let is_there = peers().any(|other| {
        let (own, other_own) = (&claim.member, &other.member);
        own.device_uuid == other_own.device_uuid
            || own.dev_number == other_own.dev_number
                && event_is_current(freshest.array.events, other.array.events)
    });
    !is_there && matches!(claim.role_in(&freshest.array), Role::Slot(_) | Role::Journal)
}

/// Devices of one storage with superblocks that are not one: a disk that was a member, and its partition that
/// is one now. Which of them counts is not to be guessed.
fn overlaps(devices: &BTreeMap<Uuid, Vec<Device>>) -> Vec<(PathBuf, PathBuf)> {
    let all: Vec<&Device> = devices.values().flatten().collect();
    let mut pairs = Vec::new();
    for (index, one) in all.iter().enumerate() {
        let on_it =
            |other: &&&Device| overlap(one.candidate.storage.as_ref(), other.candidate.storage.as_ref());
        // One path is one device, with superblocks of several arrays.
        let is_other = |other: &&&Device| other.candidate.path != one.candidate.path && on_it(other);
        let others = all[..index].iter().filter(is_other);
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
        devices.iter().map(|device| &device.superblock).max_by_key(|superblock| superblock.freshness())?;
    let freshest = freshest.clone();
    let current = freshest.array.events;
    let is_current = |device: &Device| event_is_current(current, device.superblock.array.events);
    let mut doubled = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        // What a start can't use is chosen between by none: a rescued copy of it may be here.
        let is_fit = |device: &Device| device.candidate.unfit.is_none();
        let is_copy = |other: &&Device| {
            let (one, two) = (&device.superblock.member, &other.superblock.member);
            // A copy that was used by itself may be ahead of what it was made of. The number of a device that
            // is out of date may be another one's by now.
            let is_one_number = one.dev_number == two.dev_number && is_seated(&freshest, device);
            let is_one = one.device_uuid == two.device_uuid
                || is_one_number && is_current(device) && is_current(other);
            is_one && is_fit(device) && is_fit(other)
        };
        let copies = devices[..index].iter().filter(is_copy);
        doubled.extend(copies.map(|other| (other.candidate.path.clone(), device.candidate.path.clone())));
    }
    let is_here = |path: &PathBuf| devices.iter().any(|device| device.candidate.path == *path);
    let overlaps = overlaps.iter().filter(|(one, other)| is_here(one) || is_here(other)).cloned().collect();
    let named: Vec<(String, &Superblock)> = devices
        .iter()
        .map(|device| (device.candidate.path.display().to_string(), &device.superblock))
        .collect();
    let refused = refusal(&freshest, &named).map(|why| why.to_string());
    let start_fault = refused.or_else(|| bitmap_fault(&freshest, &devices));
    let left_behind: Vec<bool> =
        devices.iter().map(|device| is_left_behind(&freshest, device, &devices)).collect();
    let mut members: Vec<FoundMember> = devices
        .into_iter()
        .zip(left_behind)
        .map(|(Device { candidate, superblock, also }, left_behind)| {
            let role = superblock.role_in(&freshest.array);
            let disowned = matches!(superblock.own_role(), Role::Slot(_)) && !matches!(role, Role::Slot(_));
            FoundMember {
                path: candidate.path,
                also,
                role,
                events: superblock.array.events,
                stale: disowned || !event_is_current(current, superblock.array.events),
                left_behind,
                whole: superblock.member.recovery_offset.is_none() && superblock.own_role() == role,
                unfit: candidate.unfit.is_some(),
                holders: candidate.holders,
            }
        })
        .collect();
    let place = |member: &FoundMember| match member.role {
        Role::Slot(slot) => slot.0,
        _ => u16::MAX,
    };
    members.sort_by(|one, other| place(one).cmp(&place(other)).then_with(|| one.path.cmp(&other.path)));
    let (name, contested) = (freshest.array.name.to_string(), Vec::new());
    Some(FoundArray { uuid, name, freshest, members, doubled, overlaps, contested, start_fault })
}

/// Why a start of the array refuses its bitmaps. It reads those of the members that it seats.
fn bitmap_fault(freshest: &Superblock, devices: &[Device]) -> Option<String> {
    freshest.array.bitmap_offset?;
    let slot_in = |array: &ArrayRecord, device: &Device| match device.superblock.role_in(array) {
        Role::Slot(slot) => Some(slot),
        _ => None,
    };
    let slot = |device: &Device| slot_in(&freshest.array, device);
    let is_current =
        |device: &&Device| event_is_current(freshest.array.events, device.superblock.array.events);
    let is_read = |device: &&Device| slot(device).is_some() && device.candidate.unfit.is_none();
    let current = || devices.iter().filter(is_current).filter(is_read);
    let is_seated = |device: &&Device| {
        // One that another calls none is set aside, in most cases.
        let is_known = current().all(|other| slot_in(&other.superblock.array, device).is_some());
        let is_target = |device: &Device| device.superblock.member.replacement;
        let replaces =
            is_target(device) && current().any(|other| !is_target(other) && slot(other) == slot(device));
        is_known && !replaces
    };
    let mut bitmaps = Vec::new();
    for Device { candidate, superblock, .. } in current().filter(is_seated) {
        let head = candidate.bitmaps.get(&superblock.member.super_offset);
        bitmaps.extend(head.map(|head| head.of_member(superblock, candidate.path.display().to_string())));
    }
    let problem = check_bitmaps(&freshest.array, &bitmaps).err();
    problem.map(|(name, problem)| format!("{name}: {problem}"))
}

/// Whether the array has gone on without a former member. There must be no doubt: the superblock with the
/// most events may itself be that of a member which the others have gone on without. `serve` can tell only by
/// the superblocks that it is given. So all current members say that the device is none, each in a later
/// update than the device has. If that is the very next one, the device must call them all members, or it may
/// be the one that is right.
fn is_left_behind(freshest: &Superblock, device: &Device, all: &[Device]) -> bool {
    let (own, current) = (&device.superblock, freshest.array.events);
    let seated = |array: &ArrayRecord, superblock: &Superblock| {
        matches!(superblock.role_in(array), Role::Slot(_) | Role::Journal)
    };
    let has_gone_on = |other: &Superblock| {
        let ahead = other.array.events.saturating_sub(own.array.events);
        !seated(&other.array, own) && (ahead > 1 || ahead == 1 && seated(&own.array, other))
    };
    let others = all.iter().map(|other| &other.superblock);
    let mut members = others
        .filter(|other| seated(&freshest.array, other) && event_is_current(current, other.array.events));
    matches!(own.own_role(), Role::Slot(_)) && members.all(has_gone_on)
}

fn is_seated(freshest: &Superblock, device: &Device) -> bool {
    matches!(device.superblock.role_in(&freshest.array), Role::Slot(_) | Role::Journal)
}

#[cfg(test)]
mod tests {
    use pinstripe_md::{
        bitmap::UnsupportedBitmap,
        identity::Timestamp,
        level::{Layout, Level, ParityLayout},
        superblock::{DeviceFlags, MemberRecord, MetadataVersion, ResyncOffset},
        units::{DeviceNumber, MemberSlot, Sector, SectorCount},
    };

    use super::*;
    use crate::probe::BitmapHead;

    /// The superblock of device `number` of a RAID5 of three, in which these slots have a member.
    fn candidate(number: u32, events: u64, seated: &[u16]) -> Candidate {
        let role = |slot| if seated.contains(&slot) { Role::Slot(MemberSlot(slot)) } else { Role::Faulty };
        let array = ArrayRecord {
            set_uuid: Uuid([1; 16]),
            name: "host:data".parse().unwrap(),
            created: Timestamp::new(1, 0),
            updated: Timestamp::new(1, 0),
            level: Level::Raid5,
            layout: Layout::Parity(ParityLayout::LeftSymmetric),
            size: SectorCount(22528),
            chunk: SectorCount(32),
            raid_disks: 3,
            events,
            resync_offset: ResyncOffset::Clean,
            roles: (0..3).map(role).collect(),
            bitmap_offset: None,
            journal: false,
            clustered: false,
            reshape: None,
            logical_block_size: 0,
            needs_double_parity_log: false,
            unknown_features: 0,
        };
        let member = MemberRecord {
            version: MetadataVersion::V1_2,
            super_offset: Sector(8),
            device_sectors: 24576,
            data_offset: Sector(2048),
            data_size: SectorCount(22528),
            dev_number: DeviceNumber(u16::try_from(number).unwrap()),
            device_uuid: Uuid([u8::try_from(number + 2).unwrap(); 16]),
            flags: DeviceFlags(0),
            recovery_offset: None,
            recovery_by_bitmap: false,
            replacement: false,
            journal_tail: None,
            ppl: None,
            double_parity_log: None,
            bad_block_log: None,
            new_offset: None,
            corrected_reads: 0,
        };
        let (superblock, rivals, holders) = (Ok(Superblock::new(array, member)), Vec::new(), Vec::new());
        let path = format!("/dev/m{number}").into();
        Candidate { path, storage: None, superblock, rivals, bitmaps: BTreeMap::new(), unfit: None, holders }
    }

    /// The numbers of the devices that the server of these isn't given.
    fn left_out(candidates: &[Candidate]) -> Vec<String> {
        let (arrays, _) = group(candidates.to_vec());
        arrays[0].left_out().map(|member| member.path.display().to_string()).collect()
    }

    #[test]
    fn a_member_that_the_others_have_gone_on_without_is_not_needed() {
        let [all, two]: [&[u16]; 2] = [&[0, 1, 2], &[0, 1]];
        let failed = candidate(2, 9, all);
        assert_eq!(left_out(&[candidate(0, 10, two), candidate(1, 10, two), failed.clone()]), ["/dev/m2"]);
        assert_eq!(left_out(&[candidate(0, 20, two), candidate(1, 19, two), failed.clone()]), ["/dev/m2"]);
        assert_eq!(left_out(&[candidate(0, 9, all), candidate(1, 9, all), failed.clone()]), [""; 0]);
        // Too few are left, and what is to become of that is for the server to say.
        assert_eq!(left_out(&[candidate(0, 10, two), failed]), [""; 0]);
    }

    #[test]
    fn a_spare_with_more_events_than_the_members_makes_none_of_them_stale() {
        let all: &[u16] = &[0, 1, 2];
        let members = (0..3).map(|number| candidate(number, 20, all));
        let (arrays, _) = group(members.chain([candidate(3, 24, &[0])]).collect());
        let stale = arrays[0].members.iter().filter(|member| member.stale).count();
        assert_eq!((arrays[0].freshest.array.events, stale), (20, 0));
    }

    #[test]
    fn what_mdadm_has_forced_together_is_not_stale() {
        let all: &[u16] = &[0, 1, 2];
        let without = candidate(1, 20, &[0, 1]);
        let (arrays, _) = group(vec![candidate(0, 20, all), candidate(2, 20, all), without]);
        assert!(arrays[0].members.iter().all(|member| !member.stale));
    }

    /// Of arrays of which the data covers a place of a superblock.
    #[test]
    fn what_clients_write_on_all_members_gives_none_to_another_array() {
        let all: &[u16] = &[0, 1, 2];
        let of = |array: u8, number: u32| {
            let mut superblock = candidate(number, 9, all).superblock.unwrap();
            superblock.array.set_uuid = Uuid([array; 16]);
            superblock.member.device_uuid.0[0] = array;
            superblock
        };
        let with = |number: u32, own: u8, written: Option<(u8, u32)>| Candidate {
            path: format!("/dev/own{own}-{number}").into(),
            superblock: Ok(of(own, number)),
            rivals: written.into_iter().map(|(array, number)| of(array, number)).collect(),
            ..candidate(number, 9, all)
        };
        let contested = |candidates: Vec<Candidate>, array: u8| {
            let (arrays, _) = group(candidates);
            let found = arrays.iter().find(|found| found.uuid == Uuid([array; 16])).unwrap();
            (!found.contested.is_empty(), found.members.len())
        };
        // One member of the victim is late, and a client of the other array says that a member is that one.
        let victim = [with(0, 2, None), with(1, 2, None)];
        let own = [with(0, 1, Some((2, 2))), with(1, 1, Some((6, 1))), with(2, 1, Some((6, 2)))];
        let both = [&victim[..], &own].concat();
        assert_eq!(contested(both, 2), (true, 3));
        // It says so on all of them, in ways of which one only would be taken.
        let mut own = [0, 1, 2].map(|number| with(number, 1, Some((2, 2))));
        for other in &mut own[1..] {
            other.rivals[0].array.events = 1;
            other.rivals[0].member.device_uuid.0[1] ^= 1;
        }
        assert_eq!(contested([&victim[..], &own].concat(), 2), (true, 5));
        assert_eq!(contested([&victim[..], &own].concat(), 1), (true, 3));
        // A member on which it has not written tells, whatever stands on the others.
        let own = [with(0, 1, Some((6, 0))), with(1, 1, Some((6, 1))), with(2, 1, None)];
        assert_eq!(contested(own.to_vec(), 1), (false, 3));
        // Found by two paths, it is one device still.
        let disk = with(0, 1, Some((6, 0)));
        let by_id = Candidate { path: "/dev/disk/by-id/own".into(), ..disk.clone() };
        let own = [disk, by_id, with(1, 1, None), with(2, 1, None)];
        let (arrays, _) = group(own.to_vec());
        assert!(arrays.iter().all(|found| found.contested.is_empty()));
    }

    #[test]
    fn a_damaged_bitmap_is_a_fault_only_on_a_member_that_a_start_reads() {
        let fault = |changed: usize, change: &dyn Fn(&mut Superblock)| {
            let all: &[u16] = &[0, 1, 2];
            let mut candidates: Vec<Candidate> = (0..3).map(|number| candidate(number, 9, all)).collect();
            for candidate in &mut candidates {
                let array = &mut candidate.superblock.as_mut().unwrap().array;
                array.bitmap_offset = Some(8);
                array.roles.push(Role::Slot(MemberSlot(2)));
            }
            let odd = &mut candidates[changed];
            change(odd.superblock.as_mut().unwrap());
            let header = Err(UnsupportedBitmap::Lockless.into());
            odd.bitmaps.insert(Sector(8), BitmapHead { header, logical_block: 512 });
            let (mut arrays, _) = group(candidates);
            arrays.remove(0).fault()
        };
        let words = fault(1, &|_| {}).unwrap();
        assert!(words.starts_with("/dev/m1: the bitmap") && words.contains("lockless"), "{words}");
        assert!(fault(1, &|member| member.array.events = 8).is_some());
        // Out of date, no member, a replacement beside the member; and the newest superblock
        // knows of no bitmap.
        assert_eq!(fault(1, &|member| member.array.events = 7), None);
        assert_eq!(fault(1, &|member| member.member.dev_number = DeviceNumber(7)), None);
        let replaces = |member: &mut Superblock| {
            (member.member.dev_number, member.member.replacement) = (DeviceNumber(3), true);
        };
        assert_eq!(fault(1, &replaces), None);
        let without = |member: &mut Superblock| {
            member.array.events = 10;
            member.array.bitmap_offset = None;
        };
        assert_eq!(fault(1, &without), None);
    }

    #[test]
    fn copies_count_only_where_the_array_needs_one_of_them() {
        let [all, two]: [&[u16]; 2] = [&[0, 1, 2], &[0, 1]];
        let copy = |number, events, seated| Candidate {
            path: format!("/dev/copy{number}").into(),
            ..candidate(number, events, seated)
        };
        let fault = |candidates: &[Candidate]| {
            let (arrays, _) = group(candidates.to_vec());
            arrays[0].fault().is_some_and(|why| why.contains("the same member"))
        };
        let current = [candidate(0, 20, two), candidate(1, 20, two)];
        let failed = candidate(2, 9, all);
        let with = |others: &[Candidate]| [&current, others].concat();
        assert!(!fault(&with(&[failed.clone(), copy(2, 9, all)])), "a rescued copy of what was left out");
        assert!(!fault(&with(&[failed.clone(), copy(2, 7, all)])), "an older copy");
        assert!(fault(&with(&[copy(1, 20, two)])), "both current");
        assert!(fault(&with(&[copy(1, 10, all)])), "one of them current");
        assert!(fault(&[current[0].clone(), failed, copy(2, 9, all)]), "too few without them");
    }

    #[test]
    fn a_member_that_may_be_right_itself_is_needed() {
        let all: &[u16] = &[0, 1, 2];
        // Of one number of events, and of one more: these two were used without the others' knowledge.
        for (revenant, other) in [(10, 10), (11, 10)] {
            let one = candidate(0, revenant, &[0, 1]);
            assert_eq!(
                left_out(&[candidate(1, other, &[1, 2]), candidate(2, 10, &[1, 2]), one.clone()]),
                [""; 0]
            );
            assert_eq!(left_out(&[one, candidate(1, other, &[1, 2]), candidate(2, 10, &[1, 2])]), [""; 0]);
        }
        // One update behind, it calls one of the others none.
        let members = [candidate(0, 10, &[0, 1]), candidate(1, 10, &[0, 1])];
        assert_eq!(left_out(&[&members[..], &[candidate(2, 9, &[0, 2])]].concat()), [""; 0]);
        // A current member doesn't know yet that it is out.
        let members = [candidate(0, 10, &[0, 1]), candidate(1, 9, all)];
        assert_eq!(left_out(&[&members[..], &[candidate(2, 9, all)]].concat()), [""; 0]);
    }
}
