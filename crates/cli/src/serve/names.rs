//! Members as people name them: by slot, by device, or as the journal.

use std::{fs, path::Path};

use pinstripe_engine::{
    array::{Array, Removed},
    records::MemberState,
};

use crate::control::{DeviceResult, MemberName};

/// Whether two names are of one device: the same, one as a path from the server's folder, or links to one
/// file.
fn is_same(name: &str, other: &str) -> bool {
    let absolute = |name: &str| std::path::absolute(name).ok();
    let real = |name: &str| fs::canonicalize(Path::new(name)).ok();
    name == other
        || absolute(name).is_some_and(|path| Some(path) == absolute(other))
        || real(name).is_some_and(|path| Some(path) == real(other))
}

/// What a device is in the array now, in words; nothing if it is no part of it.
pub fn part_of(array: &Array, device: &str) -> Option<String> {
    let detail = array.detail();
    if detail.journal.is_some_and(|journal| !journal.failed && is_same(&journal.device, device)) {
        return Some("the array's journal".to_owned());
    }
    array.members().into_iter().find_map(|(_, name, slot, state)| {
        let words = match state {
            MemberState::InSync | MemberState::Recovering => format!("the member in slot {slot}"),
            MemberState::Replacing => format!("the replacement for slot {slot}"),
            MemberState::Spare => "a spare of the array".to_owned(),
            MemberState::Failed(_) | MemberState::Removed => return None,
        };
        is_same(&name, device).then_some(words)
    })
}

/// The slot of the member that a device is.
pub fn slot_of(array: &Array, device: &str) -> Result<usize, String> {
    let seated = array.members().into_iter().find(|(_, name, _, state)| {
        matches!(state, MemberState::InSync | MemberState::Recovering) && is_same(name, device)
    });
    seated.map(|(_, _, slot, _)| slot).ok_or_else(|| match part_of(array, device) {
        Some(part) => format!("{device} is {part}, and holds no slot; nothing was done"),
        None => format!("{device} is no member of this array; `pinstripe detail` shows them"),
    })
}

/// Takes a member, or the journal, out as if it had failed.
pub async fn fail(array: &Array, which: MemberName) -> Result<DeviceResult, String> {
    let slot = match which {
        MemberName::Slot(slot) => usize::from(slot),
        MemberName::Device(device) => slot_of(array, &device)?,
        MemberName::Journal(_) => {
            let device = array.fail_journal().await.map_err(|error| error.to_string())?;
            return Ok(DeviceResult { slot: None, device });
        }
    };
    let device = array.detail().slots.get(slot).and_then(|member| member.device.clone());
    array.fail(slot).await.map_err(|error| error.to_string())?;
    Ok(DeviceResult { slot: Some(slot), device: device.unwrap_or_default() })
}

/// Takes a failed device or a spare out.
pub async fn remove(array: &Array, which: MemberName) -> Result<DeviceResult, String> {
    let (slot, which) = match which {
        MemberName::Slot(slot) => (Some(usize::from(slot)), Removed::Slot(slot.into())),
        MemberName::Device(device) => {
            let names = array.members().into_iter().map(|(_, name, ..)| name);
            (None, Removed::Device(names.into_iter().find(|name| is_same(name, &device)).unwrap_or(device)))
        }
        MemberName::Journal(_) => return Err(keep_journal(array)),
    };
    let device = array.remove(&which).await.map_err(|error| error.to_string())?;
    Ok(DeviceResult { slot, device })
}

/// Why there is nothing of a journal to remove.
fn keep_journal(array: &Array) -> String {
    match array.detail().journal {
        None => "the array has no journal".to_owned(),
        Some(journal) if journal.failed => {
            format!("{} is out of the array already; it is closed when the array is stopped", journal.device)
        }
        Some(journal) => format!(
            "{} is in use as the array's journal; take it out with `pinstripe fail ARRAY journal` first",
            journal.device
        ),
    }
}
