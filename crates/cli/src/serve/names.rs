//! Members as people name them: by slot, by device, or as the journal.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

use pinstripe_control::{CallError, DeviceResult, MemberName};
use pinstripe_engine::{
    array::{Array, Removed},
    members::MemberId,
    membership::MemberState,
};
use pinstripe_nvme::wire::identifiers::NamespaceIdentity;
use pinstripe_runtime::{
    DeviceSource,
    uring::{blocking, path_of},
};

use super::{
    looks::Looks,
    refusal::{self, not_found, refused},
};
use crate::member::{self, Known};

/// Names that are of one device.
struct Names(BTreeSet<String>);

impl Names {
    /// Those of the array's devices that are of this one: the same, one as a path from the server's folder,
    /// links to one file, or addresses of one namespace. A file system may be slow to answer, so a shard must
    /// not ask it. What has the name now is looked up afterwards.
    async fn of(array: &Array, device: &str) -> Self {
        let names = Self::all(array);
        let device = device.to_owned();
        blocking(move || {
            let ways = |name: &str| {
                let (path, _) = path_of(Path::new(name));
                (std::path::absolute(path).ok(), fs::canonicalize(path).ok())
            };
            let is_one = |one: Option<PathBuf>, other: &Option<PathBuf>| one.is_some() && one == *other;
            let (absolute, real) = ways(&device);
            let is_same = |name: &String| {
                let other = ways(name);
                *name == device
                    || is_one(other.0, &absolute)
                    || is_one(other.1, &real)
                    || member::are_one(Path::new(name), Path::new(&device))
            };
            Self(names.into_iter().filter(is_same).collect())
        })
        .await
    }

    /// The same for a call, which waits not for ever for a file system that doesn't answer. What the array
    /// calls a device itself is that one, and nothing is looked at: one that hangs must be taken out.
    async fn asked(array: &Array, looks: &Rc<Looks>, device: &str) -> Result<Self, CallError> {
        if Self::all(array).iter().any(|name| name == device) {
            return Ok(Self([device.to_owned()].into()));
        }
        let (array, name) = (array.clone(), device.to_owned());
        looks.at(device, async move { Ok(Self::of(&array, &name).await) }).await
    }

    /// Those of the array's devices that share bytes with this one, by whatever path (C30).
    async fn over(array: &Array, device: &str) -> Self {
        let names = Self::all(array);
        let device = PathBuf::from(device);
        let is_it = move |name: &String| member::is_over(&device, &[name.into()]);
        blocking(move || Self(names.into_iter().filter(is_it).collect())).await
    }

    fn all(array: &Array) -> Vec<String> {
        let journal = array.detail().journal.map(|journal| journal.device);
        array.members().into_iter().map(|(_, name, ..)| name).chain(journal).collect()
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

/// What a device is in the array now, in words; nothing if it is no part of it.
pub async fn part_of(array: &Array, device: &str) -> Option<String> {
    part_named(array, &Names::of(array, device).await)
        .or(part_named(array, &Names::over(array, device).await))
}

/// The same of a namespace, by its identifiers. That of a server that gives none is not known.
pub fn part_of_namespace(array: &Array, identity: &NamespaceIdentity) -> Option<String> {
    let is_it = |known: &Known| known.identity.is_one_with(identity) == Some(true);
    let known = member::known().into_iter().filter(|(_, known)| is_it(known));
    part_named(array, &Names(known.map(|(name, _)| name).collect()))
}

fn part_named(array: &Array, names: &Names) -> Option<String> {
    let detail = array.detail();
    if detail.journal.is_some_and(|journal| !journal.failed && names.has(&journal.device)) {
        return Some("the array's journal".to_owned());
    }
    array.members().into_iter().find_map(|(_, name, slot, state)| {
        let words = match (state, slot) {
            (MemberState::InSync | MemberState::Recovering, Some(slot)) => {
                format!("the member in slot {slot}")
            }
            (MemberState::Replacing, Some(slot)) => format!("the replacement for slot {slot}"),
            (MemberState::Failed(_) | MemberState::Removed, _) => return None,
            _ => "a spare of the array".to_owned(),
        };
        names.has(&name).then_some(words)
    })
}

/// The slot of the member that a device is, and the member.
pub async fn seat_of(array: &Array, looks: &Rc<Looks>, device: &str) -> Result<(usize, MemberId), CallError> {
    let names = Names::asked(array, looks, device).await?;
    seated(array).find(|(_, _, name)| names.has(name)).map(|(slot, id, _)| (slot, id)).ok_or_else(|| {
        match part_named(array, &names) {
            Some(part) => refused(&format!("{device} is {part}, and holds no slot; nothing was done")),
            None => not_found(&format!("{device} is no member of this array; `pinstripe detail` shows them")),
        }
    })
}

/// The member of a slot.
pub fn member_in(array: &Array, slot: usize) -> Option<MemberId> {
    seated(array).find(|(own, ..)| *own == slot).map(|(_, id, _)| id)
}

/// The members that hold slots.
fn seated(array: &Array) -> impl Iterator<Item = (usize, MemberId, String)> {
    array.members().into_iter().filter_map(|(id, name, slot, state)| {
        let is_seated = matches!(state, MemberState::InSync | MemberState::Recovering);
        Some((slot.filter(|_| is_seated)?, id, name))
    })
}

/// Takes a member, or the journal, out as if it had failed.
pub async fn fail(array: &Array, looks: &Rc<Looks>, which: MemberName) -> Result<DeviceResult, CallError> {
    let slot = match which {
        MemberName::Slot(slot) => usize::from(slot),
        MemberName::Device(device) => seat_of(array, looks, &device).await?.0,
        MemberName::Journal(_) => {
            let device = array.fail_journal().await.map_err(|error| refusal::command(&error))?;
            return Ok(DeviceResult { slot: None, device });
        }
    };
    let device = array.detail().slots.get(slot).and_then(|member| member.device.clone());
    array.fail(slot).await.map_err(|error| refusal::command(&error))?;
    Ok(DeviceResult { slot: Some(slot), device: device.unwrap_or_default() })
}

/// Takes a failed device or a spare out.
pub async fn remove(array: &Array, looks: &Rc<Looks>, which: MemberName) -> Result<DeviceResult, CallError> {
    let (slot, which) = match which {
        MemberName::Slot(slot) => (Some(usize::from(slot)), Removed::Slot(slot.into())),
        MemberName::Device(device) => {
            let names = Names::asked(array, looks, &device).await?;
            let named = array.members().into_iter().map(|(_, name, ..)| name).find(|name| names.has(name));
            (None, Removed::Device(named.unwrap_or(device)))
        }
        MemberName::Journal(_) => return Err(refused(&keep_journal(array))),
    };
    let device = array.remove(&which).await.map_err(|error| refusal::command(&error))?;
    // It is removed whether its server hears of it or not. Where there is no association any more, nothing is
    // attached.
    if let Some(Ok(address)) = member::address(Path::new(&device))
        && let Ok(initiator) = member::initiator()
        && let Some(source) = initiator.open_known(&address).await
    {
        let source: Arc<dyn DeviceSource> = source;
        let _ = array.give_up(&source).await;
    }
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
