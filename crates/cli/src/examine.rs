//! `pinstripe examine`: what devices hold.

pub mod scan;

use std::{
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use pinstripe_control::{
    size::ByteSize,
    text::{printable, table},
};
use pinstripe_engine::assembly::refusal;
use pinstripe_md::{
    identity::Timestamp,
    level::Level,
    superblock::{ArrayRecord, BitmapProblem, ResyncOffset, Role, Support},
    units::SECTOR_BYTES,
};
use pinstripe_runtime::uring::{self, OpenOptions, RuntimeConfig};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    command_line::ExamineArguments,
    failure::Failure,
    member, output,
    probe::{BadBlockSummary, BitmapSummary, Contents, Metadata, Probed},
};

/// What is said of one device.
#[derive(Serialize)]
struct Report {
    device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// The superblock that counts, if there is a whole one.
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<Value>,
    /// Everything else it holds, in words.
    also: Vec<String>,
    /// Why something of it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip)]
    text: String,
}

pub fn run(arguments: &ExamineArguments) -> Result<(), Failure> {
    member::know(&arguments.remote)?;
    let reports: Vec<Report> = arguments.devices.iter().map(|device| report(device)).collect();
    if arguments.json {
        output::print_json(&reports)?;
    } else {
        let texts: Vec<&str> = reports.iter().map(|report| report.text.as_str()).collect();
        output::print(&texts.join("\n"))?;
    }
    for error in reports.iter().filter_map(|report| report.error.as_ref()) {
        output::remark(&format!("pinstripe: {error}"));
    }
    if reports.iter().any(|report| report.error.is_some()) { Err(Failure::said()) } else { Ok(()) }
}

fn report(path: &Path) -> Report {
    let device = printable(&path.display().to_string());
    match look(path) {
        Ok((size, contents)) => describe(device, size, &contents),
        Err(error) => Report {
            text: format!("{device}: can't be read\n"),
            device,
            size: None,
            member: None,
            also: Vec::new(),
            error: Some(error.sentence().to_owned()),
        },
    }
}

fn look(path: &Path) -> Result<(u64, Contents), Failure> {
    if member::address(path).is_some() {
        let path = path.to_owned();
        return uring::run(&RuntimeConfig::unpinned(1), |_| async {
            let options = OpenOptions { read_only: true, ..OpenOptions::default() };
            let member = member::open(path.clone(), options).await?;
            Ok((member.info().size, member.contents(path).await?))
        })?;
    }
    let device = Probed::open(path)?;
    Ok((device.size(), Contents::of(&device)?))
}

fn describe(device: String, size: u64, contents: &Contents) -> Report {
    let mut metadata = contents.metadata.iter();
    // The first place of MD's own order counts, unless it is damaged.
    let counts = metadata.clone().position(|found| found.superblock.is_ok());
    let member = counts.and_then(|at| contents.metadata[at].superblock.as_ref().ok());
    let damaged = metadata.find_map(|found| found.superblock.as_ref().err());
    let error = damaged.map(|error| format!("{device}: {error}"));
    let mut also = contents.in_words();
    if let Some(counts) = counts {
        also.remove(counts);
    }
    let mut text = match member {
        Some(metadata) => member_text(&device, metadata),
        None if also.is_empty() => format!("{device}: {}, nothing known\n", ByteSize(size)),
        None => format!("{device}: {}, no member of an array\n", ByteSize(size)),
    };
    if !also.is_empty() {
        text += &table(&[(if member.is_some() { "holds also" } else { "holds" }, also.join(", "))]);
    }
    Report { member: member.map(member_json), size: Some(size), device, also, error, text }
}

/// Sectors of the whole array, where one superblock can tell.
fn array_sectors(array: &ArrayRecord) -> Option<u64> {
    let data = u64::from(array.raid_disks).checked_sub(u64::from(array.level.parity_count()))?;
    if array.level.has_parity() { array.component_sectors().0.checked_mul(data) } else { None }
}

fn state(array: &ArrayRecord) -> String {
    match array.resync_offset {
        ResyncOffset::Clean => "clean".to_owned(),
        ResyncOffset::DirtyFrom(sector) => format!("dirty from {sector} of each member"),
    }
}

fn role_words(role: Role) -> String {
    match role {
        Role::Slot(slot) => slot.to_string(),
        Role::Spare => "spare".to_owned(),
        Role::Faulty => "faulty".to_owned(),
        Role::Journal => "journal".to_owned(),
    }
}

/// What may be done with the array, as far as this member tells: a word for programs, and why.
fn support(metadata: &Metadata) -> (&'static str, Option<String>) {
    let superblock = &metadata.superblock;
    // A start reads the bitmaps of members that have a slot.
    let is_seated = matches!(superblock.own_role(), Role::Slot(_));
    match (superblock.support(), &metadata.bitmap) {
        (Support::Refused(reason), _) => ("refused", Some(reason.to_string())),
        (_, Some(Err(problem))) if is_seated => ("refused", Some(problem.to_string())),
        (kind, _) => match (refusal(superblock, &[]), kind) {
            (Some(reason), _) => ("refused", Some(reason.to_string())),
            (None, Support::ReadOnly(reason)) => ("read-only", Some(reason.to_string())),
            (None, _) => ("full", None),
        },
    }
}

fn support_words(metadata: &Metadata) -> String {
    match support(metadata) {
        ("refused", Some(reason)) => format!("no: {reason}"),
        (kind, Some(reason)) => format!("{kind}: {reason}"),
        (_, None) => "yes".to_owned(),
    }
}

fn date(stamp: Timestamp) -> String {
    // 40 bits of seconds reach beyond the dates that can be written.
    const LAST: u64 = 253_402_300_799;
    let time = UNIX_EPOCH + Duration::from_secs(stamp.seconds().min(LAST));
    humantime::format_rfc3339_seconds(time).to_string()
}

/// Which slots have a member, as this superblock has it.
fn seats(array: &ArrayRecord) -> Vec<bool> {
    let slots = 0..u16::try_from(array.raid_disks).unwrap_or(u16::MAX);
    slots.map(|slot| array.devices_in(pinstripe_md::units::MemberSlot(slot)).next().is_some()).collect()
}

fn member_text(device: &str, metadata: &Metadata) -> String {
    let superblock = &metadata.superblock;
    let (array, member) = (&superblock.array, &superblock.member);
    let bytes = |sectors: u64| ByteSize(sectors.saturating_mul(SECTOR_BYTES)).to_string();
    let size = match array_sectors(array) {
        Some(sectors) => format!("{}, {} of each member", bytes(sectors), bytes(array.component_sectors().0)),
        None => "what the members have".to_owned(),
    };
    let seats = seats(array);
    let letters: String = seats.iter().map(|there| if *there { 'A' } else { '.' }).collect();
    let mut rows = vec![
        ("array", printable(&array.name.to_string())),
        ("array uuid", array.set_uuid.to_string()),
        ("level", level_words(array)),
        ("size", size),
        ("state", state(array)),
        ("members", format!("{} {letters} ('A' active, '.' missing)", array.raid_disks)),
        ("events", array.events.to_string()),
        ("created", date(array.created)),
        ("updated", date(array.updated)),
        ("device", format!("{} (number {})", role_words(superblock.own_role()), member.dev_number.0)),
        ("device uuid", member.device_uuid.to_string()),
        ("metadata", format!("{} at {}", member.version, member.super_offset)),
        ("data", format!("{} at {}", bytes(member.data_size.0), member.data_offset)),
    ];
    if let Some(sector) = member.recovery_offset {
        rows.push(("rebuilt", format!("up to {sector}")));
    }
    rows.push(("bitmap", bitmap_words(metadata.bitmap.as_ref())));
    rows.push(("bad blocks", bad_block_words(metadata.bad_blocks.as_ref())));
    rows.push(("can be served", support_words(metadata)));
    format!("{device}: member of the array {}\n{}", printable(&array.name.short()), table(&rows))
}

fn level_words(array: &ArrayRecord) -> String {
    let layout = match array.level {
        Level::Raid4 => String::new(),
        _ => format!(", {}", array.layout),
    };
    let chunk = array.chunk.checked_bytes().unwrap_or(u64::MAX);
    format!("{}{layout}, chunk {}", array.level, ByteSize(chunk))
}

fn bitmap_words(bitmap: Option<&Result<BitmapSummary, BitmapProblem>>) -> String {
    match bitmap {
        None => "none".to_owned(),
        Some(Err(problem)) => format!("can't be used: {problem}"),
        Some(Ok(bitmap)) => {
            let stale = if bitmap.stale { ", stale: all count as set" } else { "" };
            let chunk = ByteSize(bitmap.chunk_bytes.into());
            format!(
                "{} of {} bits set, a bit covers {chunk}, events {} (cleared since {}){stale}",
                bitmap.bits_set, bitmap.bits, bitmap.events, bitmap.events_cleared
            )
        }
    }
}

fn bad_block_words(log: Option<&Result<BadBlockSummary, String>>) -> String {
    match log {
        None => "no log".to_owned(),
        Some(Err(error)) => format!("unreadable: {error}"),
        Some(Ok(log)) if log.ranges.is_empty() => "none".to_owned(),
        Some(Ok(log)) => {
            let sectors: u64 = log.ranges.iter().map(|(_, count)| count).sum();
            format!(
                "{sectors} sectors in {} ranges, the first at sector {}",
                log.ranges.len(),
                log.ranges[0].0
            )
        }
    }
}

fn member_json(metadata: &Metadata) -> Value {
    let superblock = &metadata.superblock;
    let (array, member) = (&superblock.array, &superblock.member);
    let or_error = |value: Option<Result<Value, String>>| match value {
        None => Value::Null,
        Some(Ok(value)) => value,
        Some(Err(error)) => json!({ "error": error }),
    };
    let bitmap = metadata.bitmap.as_ref().map(|b| b.as_ref().map(|b| json!(b)).map_err(ToString::to_string));
    let bad_blocks =
        metadata.bad_blocks.as_ref().map(|b| b.as_ref().map(|b| json!(b.ranges)).map_err(Clone::clone));
    let (support, reason) = support(metadata);
    json!({
        "array": {
            "name": array.name.to_string(),
            "uuid": array.set_uuid.to_string(),
            "level": array.level.name(),
            "layout": array.layout.to_string(),
            "chunk_bytes": array.chunk.checked_bytes(),
            "member_sectors": array.size.0,
            "size_bytes": array_sectors(array).and_then(|sectors| sectors.checked_mul(SECTOR_BYTES)),
            "members": array.raid_disks,
            "present": seats(array),
            "clean": !array.is_dirty(),
            "resync_from_sector": match array.resync_offset {
                ResyncOffset::Clean => None,
                ResyncOffset::DirtyFrom(sector) => Some(sector.0),
            },
            "events": array.events,
            "created_seconds": array.created.seconds(),
            "updated_seconds": array.updated.seconds(),
            "journal": array.journal,
            "reshape": array.reshape.is_some(),
        },
        "device": {
            "uuid": member.device_uuid.to_string(),
            "number": member.dev_number.0,
            "role": match superblock.own_role() { Role::Slot(_) => "active", Role::Spare => "spare",
                Role::Faulty => "faulty", Role::Journal => "journal" },
            "slot": match superblock.own_role() { Role::Slot(slot) => Some(slot.0), _ => None },
            "metadata": member.version.name(),
            "superblock_sector": member.super_offset.0,
            "data_sector": member.data_offset.0,
            "data_sectors": member.data_size.0,
            "rebuilt_up_to_sector": member.recovery_offset.map(|sector| sector.0),
            "corrected_reads": member.corrected_reads,
        },
        "bitmap": or_error(bitmap),
        "bad_blocks": or_error(bad_blocks),
        "feature_map": superblock.feature_map(),
        "support": support,
        "support_reason": reason,
    })
}
