//! What the page can do to an array: what was asked for, what it will do to which device, and doing it.
//!
//! What was confirmed is what is done: a member is named to the server by its device and not by its slot, and
//! the server must be that of the array's UUID. Nothing here overwrites what a device holds (`--force`).

use std::{path::Path, time::Duration};

use pinstripe_control::{
    AddParameters, AddResult, Detail, DeviceResult, MemberName, ReplaceParameters,
    client::{Client, ClientError},
    code,
    detail::Member,
    maintenance::{CheckParameters, CheckResult, SyncChange, SyncParameters, SyncResult},
    size::ByteSize,
    text::{printable, shell_word},
};
use serde_json::Value;

/// How long a server may take to answer.
const LIMIT: Duration = Duration::from_secs(30);
/// A check that is refused is so at once; one that isn't goes on without this connection.
const CHECK_LIMIT: Duration = Duration::from_secs(2);
/// Bytes of a device's name.
const DEVICE_BYTES_MAX: usize = 4096;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take a member out.
    Fail { slot: usize, device: String },
    /// Copy a member to another device; to a spare without one.
    Replace { slot: usize, device: String, with: Option<String> },
    /// Compare parity with the data.
    Check,
    /// End a check or a repair.
    Stop,
    /// Put a device in.
    Add { device: String },
    /// Forget a device that was dropped.
    Remove { device: String },
}

/// Why it was not done, or not known to be.
#[derive(Debug, PartialEq, Eq)]
pub enum Failed {
    /// Nothing was done.
    Nothing(String),
    /// It was begun: a server goes on with a call whose client has gone.
    Unknown(String),
}

/// Names and values of a query or a form.
pub type Fields = Vec<(String, String)>;

/// The value of a field that stands there once.
pub fn field<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    let mut values = fields.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_str());
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

impl Action {
    /// Reads what was asked for; none if that is nothing, or not all of it yet: a device is still to be
    /// named.
    pub fn read(fields: &Fields) -> Result<Self, String> {
        let need = |name: &str| {
            field(fields, name).ok_or_else(|| format!("the field \"{name}\" must stand there, and once"))
        };
        let slot = || need("slot")?.parse().map_err(|_| "a slot is a number".to_owned());
        match need("action")? {
            "fail" => Ok(Self::Fail { slot: slot()?, device: device(need("device")?)? }),
            "replace" => {
                let with = need("with")?.trim();
                let with = if with.is_empty() { None } else { Some(device(with)?) };
                Ok(Self::Replace { slot: slot()?, device: device(need("device")?)?, with })
            }
            "check" => Ok(Self::Check),
            "stop" => Ok(Self::Stop),
            "remove" => Ok(Self::Remove { device: device(need("device")?.trim())? }),
            "add" => Ok(Self::Add { device: device(need("device")?.trim())? }),
            other => Err(format!("there is no action \"{other}\"")),
        }
    }

    /// The fields that it is read from.
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Fail { slot, device } => {
                vec![("action", "fail".into()), ("slot", slot.to_string()), ("device", device.clone())]
            }
            Self::Replace { slot, device, with } => vec![
                ("action", "replace".into()),
                ("slot", slot.to_string()),
                ("device", device.clone()),
                ("with", with.clone().unwrap_or_default()),
            ],
            Self::Check => vec![("action", "check".into())],
            Self::Stop => vec![("action", "stop".into())],
            Self::Remove { device } => vec![("action", "remove".into()), ("device", device.clone())],
            Self::Add { device } => vec![("action", "add".into()), ("device", device.clone())],
        }
    }

    /// What a button says.
    pub fn in_words(&self) -> String {
        match self {
            Self::Fail { slot, .. } => format!("Fail the member in slot {slot}"),
            Self::Replace { slot, .. } => format!("Replace the member in slot {slot}"),
            Self::Check => "Check the parity".to_owned(),
            Self::Stop => "Stop the check".to_owned(),
            Self::Remove { .. } => "Remove the faulty device".to_owned(),
            Self::Add { .. } => "Add the device".to_owned(),
        }
    }

    /// What it will do, a sentence each; or why it can't be. Pure.
    pub fn effects(&self, detail: &Detail) -> Result<Vec<String>, String> {
        match self {
            Self::Fail { slot, device } => fail_effects(detail, member(detail, *slot, device)?),
            Self::Replace { slot, device, with } => {
                replace_effects(detail, member(detail, *slot, device)?, with.as_deref())
            }
            Self::Check => check_effects(detail),
            Self::Stop => stop_effects(detail),
            Self::Remove { device } => remove_effects(detail, device),
            Self::Add { device } => add_effects(detail, device),
        }
    }

    /// Does it; a sentence on what came of it. Blocks.
    pub fn carry_out(&self, control: &Path, uuid: &str) -> Result<String, Failed> {
        self.carry_out_within(LIMIT, control, uuid)
    }

    fn carry_out_within(&self, limit: Duration, control: &Path, uuid: &str) -> Result<String, Failed> {
        let words = |error: ClientError| printable(&error.to_string());
        let nothing = |error: ClientError| Failed::Nothing(words(error));
        let mut client = Client::connect(&control.to_string_lossy()).map_err(nothing)?;
        client.set_timeout(Some(limit)).map_err(nothing)?;
        let detail: Detail = client.call("detail", Value::Null).map_err(nothing)?;
        if detail.uuid != uuid {
            return Err(Failed::Nothing("another array is served now: nothing was done".to_owned()));
        }
        // Something may have changed since the confirmation.
        self.effects(&detail).map_err(Failed::Nothing)?;
        self.call(&mut client).map_err(|error| {
            let is_nothing = matches!(&error, ClientError::Call(call) if call.code != code::FAILED);
            if is_nothing { Failed::Nothing(words(error)) } else { Failed::Unknown(words(error)) }
        })
    }

    fn call(&self, client: &mut Client) -> Result<String, ClientError> {
        match self {
            Self::Fail { slot, device } => {
                let _: DeviceResult = client.call("fail", MemberName::Device(device.clone()))?;
                Ok(format!("the member in slot {slot} ({device}) was taken out"))
            }
            Self::Replace { slot, device, with } => {
                let (slot, device, with) = (*slot, Some(device.clone()), with.clone());
                let parameters = ReplaceParameters { slot: None, device, with, force: false };
                let result: DeviceResult = client.call("replace", parameters)?;
                Ok(format!("the member in slot {slot} is being copied to {}", result.device))
            }
            Self::Check => {
                client.set_timeout(Some(CHECK_LIMIT))?;
                match client.call::<CheckResult>("check", CheckParameters::default()) {
                    Ok(result) => Ok(checked(&result)),
                    Err(ClientError::Silent { .. }) => Ok("the check has begun".to_owned()),
                    Err(error) => Err(error),
                }
            }
            Self::Stop => {
                let stop = SyncParameters { action: Some(SyncChange::Stop), ..SyncParameters::default() };
                let _: SyncResult = client.call("sync", stop)?;
                Ok("the check was stopped".to_owned())
            }
            Self::Remove { device } => {
                let result: DeviceResult = client.call("remove", MemberName::Device(device.clone()))?;
                Ok(format!("{} is out of the array", result.device))
            }
            Self::Add { device } => {
                let parameters = AddParameters { device: device.clone(), force: false, spare_of: None };
                let result: AddResult = client.call("add", parameters)?;
                Ok(match result.slot {
                    Some(slot) => format!("{device} is in slot {slot} and is being rebuilt"),
                    None => format!("{device} is a spare"),
                })
            }
        }
    }
}

/// A device as a server takes it.
fn device(name: &str) -> Result<String, String> {
    let is_known = ["/", "nvme-tcp://", "pmem:/"].iter().any(|begin| name.starts_with(begin));
    if !is_known || name.len() > DEVICE_BYTES_MAX || name.contains(char::is_control) {
        return Err(
            "a device is an absolute path, such as /dev/disk/by-id/nvme-X, or begins with nvme-tcp:// or \
            pmem:/"
                .to_owned(),
        );
    }
    Ok(name.to_owned())
}

fn member<'a>(detail: &'a Detail, slot: usize, device: &str) -> Result<&'a Member, String> {
    let member = detail.members.iter().find(|member| member.slot == slot);
    let member = member.ok_or_else(|| format!("the array has no slot {slot}"))?;
    if member.device.as_deref() == Some(device) {
        return Ok(member);
    }
    let now = member.device.as_deref().map_or_else(|| "is empty".to_owned(), |now| format!("holds {now}"));
    Err(format!("slot {slot} {now} now, and not {device}: nothing was done"))
}

/// Members that the level can do without.
fn redundancy(detail: &Detail) -> usize {
    match detail.level.as_str() {
        "raid4" | "raid5" => 1,
        "raid6" => 2,
        _ => 0,
    }
}

fn fail_effects(detail: &Detail, member: &Member) -> Result<Vec<String>, String> {
    let (slot, device) = (member.slot, member.device.as_deref().unwrap_or_default());
    let lost = detail.members.iter().filter(|other| other.slot != slot && !other.is_whole()).count();
    let Some(left) = redundancy(detail).checked_sub(lost + 1) else {
        return Err(format!(
            "the array {} can't do without the member in slot {slot}: its data would be lost",
            detail.name
        ));
    };
    let mut all = vec![format!(
        "The array {} stops using {device}, at once. What it holds is out of date from then on.",
        detail.name
    )];
    all.push(match left {
        0 => "The array is degraded then, and can't do without any further member.".to_owned(),
        left => format!("The array is degraded then, and can do without {left} more."),
    });
    all.push(match detail.spares.first() {
        Some(spare) => format!(
            "The spare {spare} takes slot {slot}, is overwritten, and is rebuilt from the other members."
        ),
        None => format!("There is no spare: slot {slot} stays empty until a device is added."),
    });
    Ok(all)
}

fn replace_effects(detail: &Detail, member: &Member, with: Option<&str>) -> Result<Vec<String>, String> {
    let (slot, device) = (member.slot, member.device.as_deref().unwrap_or_default());
    if !member.is_whole() {
        return Err(format!("the member in slot {slot} is {}, and can't be copied yet", member.state));
    }
    if let Some(target) = &member.replacement {
        return Err(format!("the member in slot {slot} is being copied to {target} already"));
    }
    let target = match (with, detail.spares.as_slice()) {
        (Some(with), _) => with.to_owned(),
        (None, []) => return Err("the array has no spare: name the new device".to_owned()),
        (None, [spare]) => format!("the spare {spare}"),
        (None, [_, ..]) => format!("one of the spares {}", detail.spares.join(", ")),
    };
    Ok(vec![
        format!(
            "The array {} copies what {device} in slot {slot} holds to {target}, which is overwritten.",
            detail.name
        ),
        format!(
            "{device} stays in use until all is copied; the array is as redundant as before all the time."
        ),
        format!("Then {device} is no member any more, and can be taken out."),
    ])
}

fn check_effects(detail: &Detail) -> Result<Vec<String>, String> {
    if redundancy(detail) == 0 {
        return Err(format!("the array {} has no parity to check", detail.name));
    }
    if let Some(sync) = &detail.sync {
        return Err(format!("{} is under way", sync.action));
    }
    Ok(vec![
        format!(
            "Every stripe of the array {} ({}) is read, and its parity compared.",
            detail.name,
            ByteSize(detail.size_bytes)
        ),
        "Nothing is written. Clients come first, and can still be slower meanwhile.".to_owned(),
        format!("`pinstripe sync {} stop` ends it early, and so does this page.", shell_word(&detail.name)),
    ])
}

/// Whether it can be ended: a resync or a rebuild makes the array redundant, and can only be paused.
pub fn can_stop(detail: &Detail) -> bool {
    detail.sync.as_ref().is_some_and(|sync| ["check", "repair"].contains(&sync.action.as_str()))
}

fn stop_effects(detail: &Detail) -> Result<Vec<String>, String> {
    match &detail.sync {
        Some(sync) if can_stop(detail) => Ok(vec![
            format!("The {} of the array {} ends where it is now.", sync.action, detail.name),
            "The next one begins at the start, unless the daemon's schedule has it go on.".to_owned(),
        ]),
        Some(sync) => Err(format!("a {} can't be stopped: `pinstripe sync` can pause it", sync.action)),
        None => Err("no check is under way".to_owned()),
    }
}

fn remove_effects(detail: &Detail, device: &str) -> Result<Vec<String>, String> {
    if !detail.failed.iter().any(|failed| failed.device == device) {
        return Err(format!(
            "{device} is no faulty device of the array {} now: nothing was done",
            detail.name
        ));
    }
    Ok(vec![
        format!("The array {} forgets {device}, which it has stopped using.", detail.name),
        "Nothing is written to it. It doesn't come back by itself then, also where its disk or server does."
            .to_owned(),
    ])
}

fn add_effects(detail: &Detail, device: &str) -> Result<Vec<String>, String> {
    let mut held = detail.members.iter().flat_map(|member| [&member.device, &member.replacement]).flatten();
    if held.any(|own| own == device) || detail.has_spare(device) {
        return Err(format!("{device} is in the array {} already", detail.name));
    }
    let open = detail.members.iter().find(|member| member.state == "missing");
    Ok(vec![
        match open {
            Some(open) => format!(
                "{device} takes slot {} of the array {}, is overwritten, and is rebuilt from the other members.",
                open.slot, detail.name
            ),
            None => format!(
                "{device} becomes a spare of the array {}: it is overwritten when a member fails.",
                detail.name
            ),
        },
        "A device that holds something else is refused: `pinstripe add --force` would take it.".to_owned(),
    ])
}

/// What a check has come to.
fn checked(result: &CheckResult) -> String {
    let not_compared = result.unreadable_stripes + result.uncompared_stripes;
    let not_compared =
        (not_compared > 0).then(|| format!("{not_compared} stripes could not be read, or not compared"));
    let mismatched = match result.mismatched_sectors {
        0 if not_compared.is_some() => None,
        0 => Some("the parity matches the data".to_owned()),
        sectors => Some(format!("{sectors} sectors of parity don't match the data")),
    };
    mismatched.into_iter().chain(not_compared).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::web::sample;

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn all_is_said_that_a_check_has_found() {
        let said = |mismatched_sectors, unreadable_stripes, uncompared_stripes| {
            let result: CheckResult = serde_json::from_value(serde_json::json!({
                "stripes": 90, "mismatched_sectors": mismatched_sectors, "unreadable_stripes": unreadable_stripes,
                "uncompared_stripes": uncompared_stripes, "corrected_sectors": 0, "unexplained_sectors": 0,
                "corrected": [], "complete": true, "next_sector": null,
            }))
            .unwrap();
            checked(&result)
        };
        assert_eq!(said(0, 0, 0), "the parity matches the data");
        assert_eq!(said(0, 1, 2), "3 stripes could not be read, or not compared");
        let both = said(5000, 1, 0);
        assert!(both.contains("5000 sectors of parity don't match") && both.contains("1 stripes"), "{both}");
    }

    #[test]
    fn an_action_is_read_from_the_fields_that_it_gives() {
        let (slot, device) = (1, "/dev/b&c=d".to_owned());
        for action in [
            Action::Fail { slot, device: device.clone() },
            Action::Replace { slot, device: device.clone(), with: None },
            Action::Replace { slot, device: device.clone(), with: Some("nvme-tcp://x".into()) },
            Action::Check,
            Action::Stop,
            Action::Remove { device: device.clone() },
            Action::Add { device },
        ] {
            let own: Fields =
                action.fields().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            assert_eq!(Action::read(&own), Ok(action));
        }
    }

    #[test]
    fn what_a_server_may_have_done_is_not_told_to_be_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let outcome = |name: &str, answer: Option<Value>| {
            let control = folder.path().join(name);
            crate::daemon::fake::server(&control, move |call| {
                let detail = Some(serde_json::json!({ "result": sample::detail("data") }));
                if call["method"] == "detail" { detail } else { answer.clone() }
            });
            let action = Action::Add { device: "/dev/new".to_owned() };
            let uuid = sample::detail("data").uuid;
            action.carry_out_within(Duration::from_millis(300), &control, &uuid)
        };
        let error = |code: i64| Some(serde_json::json!({ "error": { "code": code, "message": "why" } }));
        assert!(matches!(outcome("refused", error(code::REFUSED)), Err(Failed::Nothing(_))));
        assert!(matches!(outcome("failed", error(code::FAILED)), Err(Failed::Unknown(_))));
        assert!(matches!(outcome("silent", None), Err(Failed::Unknown(_))));
    }

    #[test]
    fn what_is_no_action_is_refused() {
        for pairs in [
            &[][..],
            &[("action", "erase")],
            &[("action", "remove")],
            &[("action", "fail"), ("slot", "1")],
            &[("action", "fail"), ("slot", "-1"), ("device", "/a")],
            &[("action", "fail"), ("slot", "1"), ("slot", "2"), ("device", "/a")],
            &[("action", "fail"), ("slot", "1"), ("device", "")],
            &[("action", "add"), ("device", "relative")],
            &[("action", "add"), ("device", "javascript:alert(1)")],
            &[("action", "add"), ("device", "/a\nb")],
            &[("action", "replace"), ("slot", "1"), ("device", "/a")],
            &[("action", "check"), ("action", "check")],
        ] {
            assert!(Action::read(&fields(pairs)).is_err(), "{pairs:?}");
        }
    }

    #[test]
    fn the_loss_of_a_member_is_foretold() {
        let fail = Action::Fail { slot: 1, device: "/dev/m1".into() };
        let mut detail = sample::detail("data");
        let told = fail.effects(&detail).unwrap().join(" ");
        assert!(
            told.contains("stops using /dev/m1") && told.contains("The spare /dev/spare takes slot 1"),
            "{told}"
        );
        assert!(told.contains("can't do without any further"), "{told}");
        detail.spares.clear();
        assert!(fail.effects(&detail).unwrap()[2].contains("slot 1 stays empty"));
        detail.level = "raid6".into();
        assert!(fail.effects(&detail).unwrap()[1].contains("can do without 1 more"));
        detail.level = "raid5".into();
        detail.members[2].state = "missing".into();
        assert!(fail.effects(&detail).unwrap_err().contains("data would be lost"));
        detail.members[1].device = Some("/dev/other".into());
        let changed = fail.effects(&detail).unwrap_err();
        assert!(changed.contains("holds /dev/other now"), "{changed}");
    }

    #[test]
    fn a_replacement_needs_a_whole_member_and_a_target() {
        let replace = |with: Option<&str>| Action::Replace {
            slot: 1,
            device: "/dev/m1".into(),
            with: with.map(str::to_owned),
        };
        let mut detail = sample::detail("data");
        assert!(replace(None).effects(&detail).unwrap()[0].contains("to the spare /dev/spare"));
        assert!(
            replace(Some("/dev/n")).effects(&detail).unwrap()[0].contains("to /dev/n, which is overwritten")
        );
        detail.spares.clear();
        assert!(replace(None).effects(&detail).unwrap_err().contains("no spare"));
        detail.members[1].replacement = Some("/dev/n".into());
        assert!(replace(Some("/dev/n")).effects(&detail).is_err());
        detail.members[1].state = "recovering".into();
        assert!(replace(Some("/dev/n")).effects(&detail).unwrap_err().contains("recovering"));
    }

    #[test]
    fn a_check_can_be_stopped_and_a_rebuild_can_not() {
        let mut detail = sample::detail("data");
        assert!(Action::Stop.effects(&detail).unwrap_err().contains("no check"));
        detail.sync = Some(sample::sync("check", 1, 2));
        assert!(Action::Stop.effects(&detail).unwrap()[0].contains("The check of the array data ends"));
        detail.sync = Some(sample::sync("rebuild", 1, 2));
        assert!(Action::Stop.effects(&detail).unwrap_err().contains("can't be stopped"));
    }

    #[test]
    fn only_a_faulty_device_is_removed() {
        let detail = sample::view("/dev/old").arrays.remove(0).detail.unwrap();
        let remove = |device: &str| Action::Remove { device: device.into() }.effects(&detail);
        assert!(remove("/dev/old").unwrap()[0].contains("forgets /dev/old"));
        assert!(remove("/dev/m0").unwrap_err().contains("no faulty device"));
        assert!(remove("/dev/spare").unwrap_err().contains("no faulty device"));
    }

    #[test]
    fn a_check_and_a_new_device_say_what_they_are_for() {
        let mut detail = sample::detail("data");
        let add = Action::Add { device: "/dev/n".into() };
        assert!(add.effects(&detail).unwrap()[0].contains("becomes a spare"));
        assert!(Action::Add { device: "/dev/m0".into() }.effects(&detail).is_err());
        assert!(Action::Add { device: "/dev/spare".into() }.effects(&detail).is_err());
        detail.members[2].state = "missing".into();
        assert!(add.effects(&detail).unwrap()[0].contains("takes slot 2"));
        assert!(Action::Check.effects(&detail).unwrap()[0].contains("array data"));
        detail.level = "raid0".into();
        assert!(Action::Check.effects(&detail).is_err());
    }
}
