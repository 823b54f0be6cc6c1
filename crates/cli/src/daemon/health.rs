//! What members' disks say of their own health, by `smartctl` (smartmontools), which knows NVMe, ATA and
//! SCSI.

use std::{
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pinstripe_config::duties::Health;
use pinstripe_control::{
    Detail, DeviceResult, ReplaceParameters,
    client::{Client, ClientError},
    daemon::DiskHealth,
    detail::Member,
};
use serde_json::Value;

use super::groups::Note;
use crate::block_users::disk_below;

/// How long a server may take to answer.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a disk may take to tell.
const DISK_LIMIT: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(20);
/// What is read of an answer at most.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// Bits of smartctl's exit status: the command line was wrong, the device could not be opened.
const TOLD_NOTHING: i32 = 0b11;
/// Sectors that were replaced, wait for that, or can't be corrected: counts of ATA disks that foretell
/// failure.
const ATA_SECTORS: [(u64, &str); 3] = [
    (5, "reallocated sectors"),
    (197, "sectors that wait to be reallocated"),
    (198, "uncorrectable sectors"),
];
/// Reallocated sectors below this are a disk's age.
const ATA_SECTORS_MAX: u64 = 10;

/// An array that is looked at.
#[derive(Clone, Debug)]
pub struct Patient {
    pub key: String,
    pub label: String,
    pub control: PathBuf,
    pub health: Health,
}

/// What the disks of an array say.
#[derive(Debug)]
pub struct Said {
    pub key: String,
    /// All of its devices that could be asked,
    devices: Vec<String>,
    /// and what those say that say anything.
    disks: Vec<DiskHealth>,
}

impl Said {
    /// With what is known from before of disks that say nothing now: one that sleeps isn't well for that.
    pub fn over(self, before: Vec<DiskHealth>) -> Vec<DiskHealth> {
        let says = |device: &String| self.disks.iter().any(|disk| disk.device == *device);
        let is_kept = |disk: &DiskHealth| self.devices.contains(&disk.device) && !says(&disk.device);
        let mut all: Vec<DiskHealth> = before.into_iter().filter(is_kept).collect();
        all.extend(self.disks);
        all
    }
}

/// What the disks of those arrays say whose servers answer, and what was done about it.
pub type Visit = (Vec<Said>, Vec<Note>);

/// Asks the disks of all arrays.
pub fn visit(patients: Vec<Patient>) -> Visit {
    let (mut all, mut notes) = (Vec::new(), Vec::new());
    for patient in patients {
        // One that doesn't answer is asked the next time.
        let Ok((mut client, detail)) = detail(&patient.control) else { continue };
        let devices = devices(&detail);
        let disks: Vec<DiskHealth> = devices.iter().cloned().filter_map(ask).collect();
        if patient.health == Health::Replace
            && let Some(disk) = to_replace(&disks, &detail)
        {
            notes.push(replace(&mut client, disk, &patient.label));
        }
        all.push(Said { key: patient.key, devices, disks });
    }
    (all, notes)
}

fn detail(control: &Path) -> Result<(Client, Detail), ClientError> {
    let mut client = Client::connect(&control.to_string_lossy())?;
    client.set_timeout(Some(LIMIT))?;
    let detail = client.call("detail", Value::Null)?;
    Ok((client, detail))
}

/// The members and spares that are devices of this machine.
fn devices(detail: &Detail) -> Vec<String> {
    let members = detail.members.iter().filter_map(|member| member.device.clone());
    let unusable = detail.unusable_spares.iter().map(|spare| spare.device.clone());
    let all = members.chain(detail.spares.iter().cloned()).chain(unusable);
    all.filter(|device| device.starts_with("/dev/")).collect()
}

/// What the disk under a device says; none if it says nothing.
fn ask(device: String) -> Option<DiskHealth> {
    let disk = disk_below(Path::new(&device))?;
    let mut smartctl = Command::new("smartctl");
    // A disk that sleeps isn't woken: it tells nothing then.
    smartctl.args(["--json", "--nocheck=standby", "--health", "--attributes"]).arg(disk);
    let answer = output(&mut smartctl)?;
    let value: Value = serde_json::from_slice(&answer).ok()?;
    let status = value["smartctl"]["exit_status"].as_i64().unwrap_or(0);
    if status & i64::from(TOLD_NOTHING) != 0 {
        return None;
    }
    read(device, &value)
}

/// What a program says within the time; it is ended after that.
fn output(command: &mut Command) -> Option<Vec<u8>> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut out = child.stdout.take()?.take(ANSWER_BYTES_MAX);
    let reader = thread::spawn(move || {
        let mut answer = Vec::new();
        out.read_to_end(&mut answer).map(|_| answer)
    });
    let begun = Instant::now();
    while !reader.is_finished() && begun.elapsed() < DISK_LIMIT {
        thread::sleep(TICK);
    }
    if !reader.is_finished() {
        // One that waits for a disk can't be ended before the disk answers.
        let _ = child.kill();
        thread::spawn(move || child.wait());
        return None;
    }
    let _ = child.wait();
    reader.join().ok()?.ok()
}

/// Of smartctl's JSON. None if the device knows nothing of health. Pure.
fn read(device: String, value: &Value) -> Option<DiskHealth> {
    let log = &value["nvme_smart_health_information_log"];
    let table = value["ata_smart_attributes"]["table"].as_array();
    let passed = value["smart_status"]["passed"].as_bool();
    if passed.is_none() && log.is_null() && table.is_none() {
        return None;
    }
    let mut failing = Vec::new();
    if passed == Some(false) {
        failing.push("its own judgement is that it fails".to_owned());
    }
    let number = |name: &str| log[name].as_u64();
    if let (Some(spare), Some(least)) = (number("available_spare"), number("available_spare_threshold"))
        && spare < least
    {
        failing.push(format!("{spare} % of its spare blocks are left, {least} % are the least"));
    }
    if number("critical_warning").is_some_and(|bits| bits & 0b1100 != 0) {
        failing.push("it is unreliable or takes no writes any more".to_owned());
    }
    for row in table.into_iter().flatten() {
        let known = ATA_SECTORS.iter().find(|(id, _)| row["id"].as_u64() == Some(*id));
        let count = row["raw"]["value"].as_u64().unwrap_or(0);
        if let Some((_, what)) = known.filter(|_| count >= ATA_SECTORS_MAX) {
            failing.push(format!("{count} {what}"));
        }
    }
    Some(DiskHealth {
        device,
        failing,
        temperature_celsius: value["temperature"]["current"].as_i64(),
        percentage_used: number("percentage_used"),
        media_errors: number("media_errors"),
    })
}

/// The disk of the member that a spare is to replace now. Pure.
fn to_replace<'a>(disks: &'a [DiskHealth], detail: &Detail) -> Option<&'a DiskHealth> {
    let failing = || disks.iter().filter(|disk| !disk.failing.is_empty());
    let is_busy = detail.members.iter().any(|member| member.replacement.is_some() || !member.is_whole());
    // A spare that is failing itself is for a person to take out first.
    let is_bad_spare = |disk: &DiskHealth| detail.spares.contains(&disk.device);
    if is_busy || detail.sync.is_some() || detail.spares.is_empty() || failing().any(is_bad_spare) {
        return None;
    }
    failing().find(|disk| {
        detail.members.iter().any(|member: &Member| member.device.as_deref() == Some(&disk.device))
    })
}

/// Has a spare take a failing member's place. By its device: asking all disks takes a while, in which another
/// member may have come into its slot.
fn replace(client: &mut Client, disk: &DiskHealth, label: &str) -> Note {
    let device = Some(disk.device.clone());
    let parameters = ReplaceParameters { slot: None, device, with: None, force: false };
    let what = match client.call::<DeviceResult>("replace", parameters) {
        Ok(DeviceResult { device: spare, .. }) => format!("is being replaced by {spare}"),
        Err(error) => format!("could not be replaced: {error}"),
    };
    let sentence = format!("{} is failing ({}), and {what}", disk.device, disk.failing.join("; "));
    Note { label: label.to_owned(), event: "DiskFailing", alarming: true, sentence }
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    fn failing(value: &Value) -> Vec<String> {
        read("/dev/x".to_owned(), value).unwrap().failing
    }

    #[test]
    fn a_disk_that_says_nothing_now_is_as_it_was_and_one_that_is_gone_is_none() {
        let disk = |device: &str, failing: bool| DiskHealth {
            device: device.to_owned(),
            failing: failing.then(|| "x".to_owned()).into_iter().collect(),
            temperature_celsius: None,
            percentage_used: None,
            media_errors: None,
        };
        let before = vec![disk("/dev/a", true), disk("/dev/b", true), disk("/dev/gone", true)];
        let devices = ["/dev/a", "/dev/b", "/dev/c"].map(str::to_owned).to_vec();
        let disks = vec![disk("/dev/b", false), disk("/dev/c", false)];
        let now = Said { key: String::new(), devices, disks }.over(before);
        assert_eq!(now, [disk("/dev/a", true), disk("/dev/b", false), disk("/dev/c", false)]);
    }

    #[test]
    fn a_disk_that_is_well_is_shown_and_nothing_is_said() {
        let nvme = json!({
            "smart_status": { "passed": true }, "temperature": { "current": 41 },
            "nvme_smart_health_information_log": { "critical_warning": 2, "available_spare": 100, "available_spare_threshold": 10,
                "percentage_used": 3, "media_errors": 0 },
        });
        let health = read("/dev/nvme0n1p2".to_owned(), &nvme).unwrap();
        assert_eq!(
            (health.temperature_celsius, health.percentage_used, health.media_errors),
            (Some(41), Some(3), Some(0))
        );
        assert!(health.failing.is_empty(), "warmth is no failure: {health:?}");
        let ata = json!({ "smart_status": { "passed": true }, "ata_smart_attributes": { "table": [
            { "id": 5, "raw": { "value": 3 } }, { "id": 9, "raw": { "value": 40000 } } ] } });
        assert!(failing(&ata).is_empty());
        assert_eq!(read("/dev/loop0".to_owned(), &json!({ "smartctl": {} })), None);
    }

    #[test]
    fn what_foretells_failure_is_said() {
        assert_eq!(failing(&json!({ "smart_status": { "passed": false } })).len(), 1);
        let worn = json!({ "nvme_smart_health_information_log": { "available_spare": 4, "available_spare_threshold": 10 } });
        assert_eq!(failing(&worn), ["4 % of its spare blocks are left, 10 % are the least"]);
        for (bits, fails) in [(0b0100, true), (0b1000, true), (0b0001, false), (0b0010, false)] {
            let value = json!({ "nvme_smart_health_information_log": { "critical_warning": bits } });
            assert_eq!(!failing(&value).is_empty(), fails, "{bits}");
        }
        for id in [5, 197, 198] {
            let value =
                json!({ "ata_smart_attributes": { "table": [{ "id": id, "raw": { "value": 10 } }] } });
            assert_eq!(failing(&value).len(), 1, "{id}");
        }
    }

    /// A disk with nothing to say but whether it fails.
    pub fn disk(device: &str, fails: bool) -> DiskHealth {
        let failing = if fails { vec!["x".to_owned()] } else { Vec::new() };
        DiskHealth {
            device: device.into(),
            failing,
            temperature_celsius: None,
            percentage_used: None,
            media_errors: None,
        }
    }

    /// A whole array of two members with a spare.
    pub fn array() -> Detail {
        let member = |slot: usize| {
            json!({ "slot": slot, "state": "in-sync", "device": format!("/dev/m{slot}"), "read_latency_ns": 0, "write_latency_ns": 0,
                "slow": false, "late_requests": 0, "bad_sectors": 0, "statistics": {} })
        };
        serde_json::from_value(json!({
            "name": "data", "uuid": "", "level": "raid5", "layout": "", "chunk_bytes": 65536, "logical_block_bytes": 512,
            "size_bytes": 0, "state": "active", "degraded": false, "events": 0, "members": [member(0), member(1)],
            "spares": ["/dev/s"], "failed": [], "bitmap": null, "consistency_policy": "bitmap", "regions_to_resync": 0, "sync": null,
            "sync_paused": false, "sync_speed_min_kib": 0, "sync_speed_max_kib": 0, "errors": [], "advice": null, "nbd": [],
            "shards": 1, "statistics": {},
        }))
        .unwrap()
    }

    #[test]
    fn a_failing_member_is_replaced_when_nothing_else_is_under_way_and_a_good_spare_is_there() {
        let disks = [disk("/dev/m0", false), disk("/dev/m1", true), disk("/dev/s", false)];
        let chosen = |detail: &Detail| to_replace(&disks, detail).map(|disk| disk.device.as_str());
        assert_eq!(chosen(&array()), Some("/dev/m1"));
        assert_eq!(to_replace(&disks[..1], &array()), None, "all is well");
        let changes: [fn(&mut Detail); 4] = [
            |detail| detail.spares.clear(),
            |detail| detail.members[0].state = "recovering".to_owned(),
            |detail| detail.members[0].replacement = Some("/dev/x".to_owned()),
            |detail| detail.members[1].device = Some("/dev/another".to_owned()),
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut detail = array();
            change(&mut detail);
            assert_eq!(chosen(&detail), None, "{index}");
        }
        let bad_spare = [disk("/dev/m1", true), disk("/dev/s", true)];
        assert_eq!(to_replace(&bad_spare, &array()), None);
    }

    #[test]
    fn a_failing_disk_is_replaced_wherever_it_is_by_then() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let (asked, calls) = std::sync::mpsc::channel();
        crate::daemon::fake::server(&path, move |call| {
            asked.send(call.clone()).unwrap();
            Some(json!({ "result": { "slot": 0, "device": "/dev/s" } }))
        });
        let mut client = Client::connect(&path.to_string_lossy()).unwrap();
        let note = replace(&mut client, &disk("/dev/m1", true), "data");
        assert!(note.sentence.ends_with("is being replaced by /dev/s"), "{}", note.sentence);
        let asked = calls.recv().unwrap();
        let parameters = (&asked["params"]["device"], &asked["params"]["slot"]);
        assert_eq!(parameters, (&json!("/dev/m1"), &Value::Null), "{asked}");
    }
}
