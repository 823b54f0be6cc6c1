//! Keeps where the devices are that join the array while it is served: see [`crate::joined`].

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use pinstripe_block::first_of::{First, first_of};
use pinstripe_engine::{array::Array, membership::MemberState};
use pinstripe_md::identity::Uuid;
use pinstripe_runtime::{Signal, shard, uring::blocking};

use super::{journal::ServerLog, stopping::Stopping};
use crate::{
    joined::{self, Joined},
    member,
};

/// How often the array is looked at if it has nothing to tell.
const LOOK_NANOSECONDS: u64 = 5_000_000_000;
/// How long a device that joins waits for the disk on which its name is kept.
const DISK_NANOSECONDS: u64 = 10_000_000_000;

/// See the module. Lives on shard 0.
pub struct Keeper {
    /// The array; none if what joins it isn't kept.
    uuid: Option<Uuid>,
    journal: ServerLog,
    /// What has joined so far, by name, here or under earlier servers.
    joined: RefCell<BTreeMap<String, Joined>>,
    /// What is about to join.
    coming: RefCell<BTreeSet<String>>,
    /// What is kept now.
    kept: RefCell<Option<Vec<Joined>>>,
    /// Files are written one after the other.
    writing: Cell<bool>,
    written: Signal,
    /// Why it isn't.
    complaint: RefCell<Option<String>>,
    is_closed: Cell<bool>,
}

impl Keeper {
    /// Of the array `uuid`, unless that is none to be found again.
    pub async fn new(uuid: Option<Uuid>, journal: ServerLog) -> Rc<Self> {
        let before = match uuid {
            Some(uuid) => blocking(move || joined::all(uuid)).await,
            None => Vec::new(),
        };
        let joined = before.iter().map(|joined| (joined.device.clone(), joined.clone())).collect();
        Rc::new(Self {
            uuid,
            journal,
            joined: RefCell::new(joined),
            coming: RefCell::default(),
            kept: RefCell::new(Some(before)),
            writing: Cell::new(false),
            written: Signal::default(),
            complaint: RefCell::default(),
            is_closed: Cell::new(false),
        })
    }

    /// Keeps what becomes of the devices, until the end is wanted. What was away when the array was started
    /// has no slot any more, and may come back as a spare.
    pub fn watch(self: &Rc<Self>, array: Array, stopping: Rc<Stopping>) {
        if self.uuid.is_none() {
            return;
        }
        let own = Rc::clone(self);
        shard::spawn(async move {
            loop {
                let last_reported = array.last_event();
                own.keep(&array).await;
                let news = shard::timeout(LOOK_NANOSECONDS, array.event_after(last_reported));
                if let First::One(()) = first_of(stopping.wanted(), news).await {
                    return;
                }
            }
        });
    }

    /// Has a device join, of which its name's lasting one is known. It is kept before its superblock is
    /// written, so that a crash in between loses nothing.
    pub async fn joins<T, E>(
        self: &Rc<Self>,
        device: &str,
        array: &Array,
        joining: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let is_new = !self.joined.borrow().contains_key(device);
        let joined = Joined { device: device.to_owned(), lasting_name: lasting_name(device), slot: None };
        self.coming.borrow_mut().insert(device.to_owned());
        self.joined.borrow_mut().entry(device.to_owned()).or_insert(joined);
        self.keep(array).await;
        let outcome = joining.await;
        self.coming.borrow_mut().remove(device);
        if outcome.is_err() && is_new {
            self.joined.borrow_mut().remove(device);
        }
        self.keep(array).await;
        outcome
    }

    async fn keep(self: &Rc<Self>, array: &Array) {
        let Some(uuid) = self.uuid else { return };
        let kept = async {
            self.written.wait_until(|| !self.writing.replace(true)).await;
            let now = self.now(array);
            if self.is_closed.get() || self.kept.borrow().as_ref() == Some(&now) {
                self.ends_writing();
                return;
            }
            let own = Rc::clone(self);
            // It goes on where nothing waits for it any more.
            let writing = shard::spawn_joined(async move {
                let wish = now.clone();
                match blocking(move || joined::keep(uuid, &wish)).await {
                    Ok(()) => {
                        own.kept.replace(Some(now));
                        own.complaint.replace(None);
                    }
                    Err(error) => own.complain(uuid, &error.to_string()),
                }
                own.ends_writing();
            });
            writing.join().await;
        };
        if shard::timeout(DISK_NANOSECONDS, kept).await.is_none() {
            self.complain(uuid, "the disk does not answer");
        }
    }

    fn ends_writing(&self) {
        self.writing.set(false);
        self.written.notify();
    }

    /// Ends the writing, before this process becomes another program: a thread that writes to what lies on
    /// the array would wait for that.
    pub async fn close(&self) {
        self.is_closed.set(true);
        let rests = self.written.wait_until(|| !self.writing.get());
        let _ = shard::timeout(DISK_NANOSECONDS, rests).await;
    }

    fn complain(&self, uuid: Uuid, error: &str) {
        let words = format!(
            "which devices have joined the array can't be kept in {}: {error}; name them in its [[array]], or the next start lacks \
             them",
            joined::place(uuid).display()
        );
        if self.complaint.replace(Some(words.clone())).is_none() {
            self.journal.warn(&words);
        }
    }

    /// What a person should see to, as long as it is so.
    pub fn warning(&self) -> Option<String> {
        self.complaint.borrow().clone()
    }

    /// What has joined and isn't out again.
    fn now(&self, array: &Array) -> Vec<Joined> {
        let mut members = BTreeMap::new();
        let mut known = BTreeSet::new();
        for (_, name, slot, state) in array.members() {
            known.insert(name.clone());
            match state {
                MemberState::Removed => {}
                // A former member that failed may have come back since.
                MemberState::Failed(_) => _ = members.entry(name).or_insert(None),
                _ => _ = members.insert(name, slot),
            }
        }
        let mut joined = self.joined.borrow_mut();
        // A disk that was pulled may be back under another name.
        let lasting: BTreeSet<String> = joined.values().filter_map(|one| one.lasting_name.clone()).collect();
        for name in members.keys().filter(|name| !joined.contains_key(*name)).cloned().collect::<Vec<_>>() {
            let lasting_name = lasting_name(&name).filter(|own| lasting.contains(own));
            if lasting_name.is_some() {
                joined.insert(name.clone(), Joined { device: name, lasting_name, slot: None });
            }
        }
        let coming = self.coming.borrow();
        joined.retain(|name, _| members.contains_key(name) || coming.contains(name) || !known.contains(name));
        for (name, one) in joined.iter_mut() {
            one.slot = members.get(name).copied().flatten();
            one.lasting_name = lasting_name(name).or(one.lasting_name.take());
        }
        joined.values().cloned().collect()
    }
}

/// By which a disk is found under another name. That of one that joins is known by then.
fn lasting_name(device: &str) -> Option<String> {
    member::disks().remove(device)?.lasting_name
}
