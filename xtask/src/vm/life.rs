//! The life cycle on both sides: what one side began, the other one goes on with.
//!
//! A member that comes back gets only what its absence dirtied; a copy or a rebuild that was cut goes on at
//! the recovery offset of the new device's superblock; a spare takes over, and listed bad blocks are not
//! read, whichever side made the spare or the list. What happens to an array is the start of its name, for
//! the guests' scripts too.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::Lab;
use super::crash::write_until_killed;
use super::machine::{Machine, Outcome};
use super::members::{self, Geometry};
use super::server::{self, Server};
use crate::golden::superblock::Superblock;
use crate::pattern::{self, BLOCK, Run};

/// Arrays of ours that the kernel takes over.
const OURS: &[Geometry] = &[
    Geometry::new("readd5", 5, 4, 64, "left-symmetric").degraded(&[1]),
    Geometry::new("readd6", 6, 5, 16, "left-symmetric").degraded(&[0, 3]),
    Geometry::new("replace5", 5, 4, 4, "left-symmetric"),
    Geometry::new("replace6-killed", 6, 5, 4, "left-symmetric"),
    Geometry::new("rebuild5", 5, 4, 4, "right-asymmetric").degraded(&[1]),
    Geometry::new("rebuild6-killed", 6, 5, 4, "left-symmetric").without_bitmap().degraded(&[1]),
    Geometry::new("spare5", 5, 4, 64, "left-symmetric"),
    Geometry::new("replace5-ppl", 5, 4, 4, "left-symmetric").with_policy("ppl").with_members_of(PPL_BYTES),
    Geometry::new("rebuild5-ppl", 5, 4, 4, "left-symmetric")
        .with_policy("ppl")
        .with_members_of(PPL_BYTES)
        .degraded(&[1]),
    Geometry::new("replace6-double", 6, 5, 4, "left-symmetric").with_policy("double-parity-log"),
    Geometry::new("replace5-journal", 5, 4, 4, "left-symmetric").with_journal_of(JOURNAL_BYTES),
];

/// Arrays of the kernel that we take over.
const KERNELS: &[Geometry] = &[
    Geometry::new("readd5", 5, 4, 64, "left-symmetric").degraded(&[1]),
    Geometry::new("readd6", 6, 5, 16, "left-symmetric").degraded(&[0, 3]),
    Geometry::new("replace5", 5, 4, 64, "left-symmetric"),
    Geometry::new("replace6-cut", 6, 5, 16, "left-symmetric"),
    Geometry::new("rebuild5", 5, 4, 16, "right-asymmetric").degraded(&[1]),
    Geometry::new("rebuild6-cut", 6, 5, 64, "left-symmetric").without_bitmap().degraded(&[1]),
    Geometry::new("spare5", 5, 4, 64, "left-symmetric"),
    Geometry::new("bad5", 5, 4, 64, "left-symmetric"),
    Geometry::new("replace5-ppl", 5, 4, 64, "left-symmetric").with_policy("ppl").with_members_of(PPL_BYTES),
    Geometry::new("rebuild5-ppl", 5, 4, 16, "left-symmetric")
        .with_policy("ppl")
        .with_members_of(PPL_BYTES)
        .degraded(&[1]),
    Geometry::new("replace5-journal", 5, 4, 64, "left-symmetric").with_journal_of(JOURNAL_BYTES),
];

/// Bytes of a member with room for a partial parity log, and of a journal.
const PPL_BYTES: u64 = 24 << 20;
const JOURNAL_BYTES: u64 = 48 << 20;

/// The slot that gets another device.
const SLOT: u32 = 1;
/// KiB per second: a checkpoint comes every ten seconds, and after it there must be something left.
const SLOWLY: &[&str] = &["--sync-speed-min", "100", "--sync-speed-max", "300"];
/// How long a checkpoint may take.
const PATIENCE: Duration = Duration::from_secs(90);
/// Sectors of superblocks, bitmap pages and logs at most, beside what is copied; a partial parity log is
/// zeroed whole.
const METADATA_SECTORS_MAX: u64 = 2048 + 1000;
/// Sectors that a member gets at most when it comes back: the writes touch some twenty regions of 64 KiB.
const READDED_SECTORS_MAX: u64 = 6000;
/// The bad blocks of the kernel's array, in rows that nothing else is written to; and their place in the data
/// of slot 1.
const BAD: std::ops::Range<u64> = 4048..4050;
const BAD_AT: u64 = 84 * (64 << 10);

/// What is written to an array that has changed: below and above where copies are cut.
fn later_writes() -> Vec<Run> {
    [members::second_writes(), vec![Run::new(7000..7040, 2)]].concat()
}

/// What an array holds in the end.
fn all_writes() -> Vec<Run> {
    [members::first_writes(), later_writes()].concat()
}

/// The kernel goes on with what we began.
pub fn ours_in_kernel(lab: &Lab) -> Result<()> {
    let mut slow = Vec::new();
    let mut held: BTreeMap<&str, Vec<Run>> = BTreeMap::new();
    for geometry in OURS {
        let begun = begin(lab, geometry).context(geometry.name)?;
        held.insert(geometry.name, all_writes());
        slow.extend(begun.map(|server| (geometry, server)));
    }
    let mut offsets = BTreeMap::new();
    for (geometry, server) in slow {
        wait_for_checkpoint(&newcomer(lab, geometry)).context(geometry.name)?;
        match geometry.name {
            "replace6-killed" => {
                let runs = write_until_killed(server).context(geometry.name)?;
                held.insert(geometry.name, runs);
            }
            "rebuild6-killed" => {
                server.wait_until_clean()?;
                server.kill()?;
            }
            _ => server.stop()?,
        }
        let head = head(&newcomer(lab, geometry))?;
        let offset = head.recovery_offset.with_context(|| format!("{} is done", geometry.name))?;
        offsets.insert(geometry.name, (offset, head.size));
    }
    let mut machine = Machine::new("take-over", include_str!("../../vm/life-ours.sh"))
        .modules(super::LEVELS)
        .variable("ARRAYS", &members::lines(OURS));
    for geometry in OURS {
        attach(lab, &mut machine, geometry, &held[geometry.name]);
    }
    let outcome = lab.boot(machine)?;
    ensure!(outcome.all("taken").len() == OURS.len(), "not every array was tried: {outcome:?}");
    ensure_little_was_written(&outcome, &offsets)?;
    for geometry in OURS {
        let whole = take_slot(lab, geometry)?;
        finish(lab, geometry, &whole, &held[geometry.name]).context(geometry.name)?;
    }
    Ok(())
}

/// Makes an array, fills it, and begins what its name says. A server that is to be stopped in the middle of
/// it stays.
fn begin(lab: &Lab, geometry: &Geometry) -> Result<Option<Server>> {
    let devices = geometry.make_members(lab)?;
    let new = make_newcomer(lab, geometry)?;
    let bits: &[&str] =
        if geometry.bitmap { &["--assume-clean", "--bitmap-chunk", "64K"] } else { &["--assume-clean"] };
    server::create(lab, geometry, &devices, bits)?;
    let devices: Vec<PathBuf> = devices.into_iter().chain(geometry.journal(lab)).collect();
    let server = Server::start_with(lab, geometry.name, &devices, SLOWLY)?;
    let mut client = server.client()?;
    // Writers until a kill begin on zeroes.
    let is_written = geometry.name != "replace6-killed";
    if is_written {
        pattern::write(&mut client, &members::first_writes())?;
    }
    for slot in geometry.missing {
        server.fail(*slot)?;
    }
    match part(geometry) {
        "replace" => server.replace(usize::try_from(SLOT)?, &new)?,
        "rebuild" => ensure!(server.add(&new)? == "full", "it is not rebuilt whole"),
        "spare" => ensure!(server.add(&new)? == "none", "it is no spare"),
        _ => {}
    }
    if is_written {
        pattern::write(&mut client, &later_writes())?;
    }
    drop(client);
    if ["replace", "rebuild"].contains(&part(geometry)) {
        return Ok(Some(server));
    }
    server.stop()?;
    Ok(None)
}

/// What the kernel wrote to devices that came back, and to those that it went on with: `offsets` says how far
/// they were, of how many sectors.
fn ensure_little_was_written(outcome: &Outcome, offsets: &BTreeMap<&str, (u64, u64)>) -> Result<()> {
    for line in outcome.all("readded") {
        let written: u64 = line.rsplit(' ').next().unwrap_or_default().parse()?;
        ensure!(written < READDED_SECTORS_MAX, "{line} sectors: more than the bitmap marks");
    }
    for line in outcome.all("resumed") {
        let words: Vec<&str> = line.split(' ').collect();
        let &[name, start, written] = words.as_slice() else { bail!("resumed {line:?}") };
        let (offset, size) = offsets[name];
        ensure!(start.parse() == Ok(offset), "{name}: the kernel goes on at {start}, not at {offset}");
        let written: u64 = written.parse()?;
        let is_right = (size - offset..size - offset + METADATA_SECTORS_MAX).contains(&written);
        // What was being written when we were killed is resynced afterwards.
        ensure!(is_right || name == "replace6-killed", "{name}: {written} sectors written from {offset} on");
    }
    ensure!(outcome.all("resumed").len() == offsets.len(), "not everything was resumed: {outcome:?}");
    Ok(())
}

/// We go on with what the kernel began.
pub fn kernels_with_us(lab: &Lab) -> Result<()> {
    let mut machine = Machine::new("leave", include_str!("../../vm/life-kernel.sh"))
        .modules(super::LEVELS)
        .variable("ARRAYS", &members::lines(KERNELS))
        .variable("WRITES", &pattern::list(&later_writes()))
        .variable("BAD", &(BAD_AT / 512).to_string());
    for geometry in KERNELS {
        geometry.make_members(lab)?;
        make_newcomer(lab, geometry)?;
        attach(lab, &mut machine, geometry, &members::first_writes());
    }
    let outcome = lab.boot(machine)?;
    ensure!(outcome.all("left").len() == KERNELS.len(), "not every array was made: {outcome:?}");
    for geometry in KERNELS {
        go_on(lab, geometry).context(geometry.name)?;
        take_slot(lab, geometry)?;
    }
    let whole: Vec<Geometry> = KERNELS.iter().map(|geometry| geometry.degraded(&[])).collect();
    let seen = lab.kernel_verifies("verify", &whole, held_by_kernels, &[])?;
    members::ensure_no_resync(&seen, &whole)
}

/// What an array of the kernel's holds.
fn held_by_kernels(geometry: &Geometry) -> Vec<Run> {
    match geometry.name {
        "rebuild6-cut" => members::first_writes(),
        "bad5" => [all_writes(), vec![Run::new(BAD, 3)]].concat(),
        _ => all_writes(),
    }
}

/// Serves what the kernel left, until it is whole.
fn go_on(lab: &Lab, geometry: &Geometry) -> Result<()> {
    let new = newcomer(lab, geometry);
    let offset = recovery_offset(&new)?;
    let mut devices = geometry.present(lab);
    if !["readd", "bad"].contains(&part(geometry)) {
        devices.push(new.clone());
    }
    if part(geometry) == "bad" {
        // A read of the bad blocks would get this.
        let member = File::options().write(true).open(geometry.file(lab, SLOT))?;
        let start = head(&geometry.file(lab, SLOT))?.data_offset * 512 + BAD_AT;
        member.write_all_at(&vec![0xbd; BLOCK * usize::try_from(BAD.end - BAD.start)?], start)?;
    }
    let server = Server::start(lab, geometry.name, &devices)?;
    let slot = usize::try_from(SLOT)?;
    let mut sectors_max = None;
    match part(geometry) {
        "readd" => {
            for slot in geometry.missing {
                let how = server.add(&geometry.file(lab, *slot))?;
                // The kernel may have cleared bits behind the rebuild of another device (C9).
                ensure!(how == "full", "slot {slot} is added {how}");
            }
        }
        "replace" | "rebuild" => {
            let offset = offset.context("the kernel has finished it")?;
            ensure!(offset > 0, "the kernel recorded nothing");
            sectors_max = Some(head(&new)?.size - offset + METADATA_SECTORS_MAX);
        }
        "spare" => server.fail(SLOT)?,
        _ => heed_bad_blocks(&server)?,
    }
    server.wait_until_in_sync()?;
    // What was being written when the power went is copied and resynced, too.
    if let Some(most) = sectors_max.filter(|_| geometry.name != "replace6-cut") {
        let written = server.bytes_written()? / 512;
        ensure!(written <= most, "{written} sectors written to members, and {most} would do");
    }
    if has_newcomer(geometry) {
        ensure!(server.device_in(slot)? == new, "the new device is not in slot {slot}: {}", server.state()?);
    }
    server.stop()?;
    let others = (0..geometry.members).filter(|slot| *slot != SLOT || !has_newcomer(geometry));
    let mut whole: Vec<PathBuf> =
        others.map(|slot| geometry.file(lab, slot)).chain(geometry.journal(lab)).collect();
    whole.extend(has_newcomer(geometry).then_some(new));
    finish(lab, geometry, &whole, &held_by_kernels(geometry))
}

/// What the kernel listed as bad is made from the others, and good again once it has been written.
fn heed_bad_blocks(server: &Server) -> Result<()> {
    let slot = usize::try_from(SLOT)?;
    let state = server.state()?;
    ensure!(state["members"][slot]["bad_sectors"] == 16, "the kernel listed 16 bad sectors: {state}");
    let mut client = server.client()?;
    let blocks = client.size / BLOCK as u64;
    pattern::verify(&mut client, blocks, &all_writes())?;
    pattern::write(&mut client, &[Run::new(BAD, 3)])?;
    server.wait_until(|detail| detail["members"][slot]["bad_sectors"] == 0)
}

/// Served by us, these devices are a whole array that holds what is expected and scrubs clean.
fn finish(lab: &Lab, geometry: &Geometry, devices: &[PathBuf], expected: &[Run]) -> Result<()> {
    let server = Server::start(lab, geometry.name, devices)?;
    let detail = server.state()?;
    ensure!(detail["degraded"] == false && detail["regions_to_resync"] == 0, "it is not whole: {detail}");
    let mut client = server.client()?;
    let blocks = client.size / BLOCK as u64;
    pattern::verify(&mut client, blocks, expected)?;
    drop(client);
    server.check()?;
    server.stop()
}

/// What happens to an array: its name without the level.
fn part(geometry: &Geometry) -> &'static str {
    geometry.name.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default()
}

/// Whether another device gets its slot 1.
fn has_newcomer(geometry: &Geometry) -> bool {
    ["replace", "rebuild", "spare"].contains(&part(geometry))
}

fn newcomer(lab: &Lab, geometry: &Geometry) -> PathBuf {
    lab.directory.join(format!("{}-new.img", geometry.name))
}

fn make_newcomer(lab: &Lab, geometry: &Geometry) -> Result<PathBuf> {
    lab.sparse_file(&format!("{}-new.img", geometry.name), geometry.member_bytes)
}

fn attach(lab: &Lab, machine: &mut Machine, geometry: &Geometry, expected: &[Run]) {
    geometry.attach(lab, machine, expected);
    if has_newcomer(geometry) {
        machine.disk(&format!("{}-new", geometry.name), &newcomer(lab, geometry), geometry.logical_block);
    }
}

/// The new device becomes the member file of its slot. All member files, and the journal's.
fn take_slot(lab: &Lab, geometry: &Geometry) -> Result<Vec<PathBuf>> {
    if has_newcomer(geometry) {
        fs::rename(newcomer(lab, geometry), geometry.file(lab, SLOT))?;
    }
    Ok((0..geometry.members).map(|slot| geometry.file(lab, slot)).chain(geometry.journal(lab)).collect())
}

fn head(device: &Path) -> Result<Superblock> {
    let mut bytes = vec![0; 64 << 10];
    File::open(device)?.read_exact(&mut bytes)?;
    Superblock::read(&bytes)
}

/// How far a device is, if it isn't whole.
fn recovery_offset(device: &Path) -> Result<Option<u64>> {
    head(device).map_or(Ok(None), |superblock| Ok(superblock.recovery_offset))
}

/// Waits until the device's superblock says that a part of it is valid.
fn wait_for_checkpoint(device: &Path) -> Result<()> {
    let start = Instant::now();
    while recovery_offset(device)?.is_none_or(|offset| offset == 0) {
        ensure!(start.elapsed() < PATIENCE, "no checkpoint after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
