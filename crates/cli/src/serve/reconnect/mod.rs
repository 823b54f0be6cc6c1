//! Members that went away come back by themselves: by the bitmap, if that still tells what they missed.
//!
//! ```text
//!   servers    those of NVMe/TCP servers: each lost server is tried until it answers
//!   disks      local ones: a disk that was pulled is looked for among what the kernel has got since
//! ```
//!
//! A member that a user failed or removed isn't waited for, nor is one that failed while it was there.

mod disks;
mod servers;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
};

use pinstripe_block::first_of::{First, first_of};
use pinstripe_control::detail::{Detail, Failed, Reconnecting};
use pinstripe_engine::{
    array::{Added, Array, CommandError},
    events::EventKind,
};
use pinstripe_md::superblock::ArrayRecord;
use pinstripe_runtime::{DeviceSource, shard};

use self::{disks::Disks, servers::Server};
use super::stopping::Stopping;
use crate::create::random_uuid;

/// The first pause before what is lost is tried again.
const PAUSE_NANOSECONDS_MIN: u64 = 1_000_000_000;
/// How often the array is looked at if it has nothing to tell.
const LOOK_NANOSECONDS: u64 = 5_000_000_000;
/// Time that what is back has to show the member's superblock.
const SUPERBLOCK_NANOSECONDS: u64 = 30_000_000_000;

/// What is known of lost members. Lives on shard 0; the array is its tasks' alone, so that it ends with them.
#[derive(Default)]
pub struct Reconnector {
    /// Members of lost servers, by device.
    members: RefCell<BTreeMap<String, Reconnecting>>,
    /// By host, port and subsystem.
    servers: RefCell<BTreeMap<String, Server>>,
    /// Those that were away when the array was started.
    away: RefCell<BTreeSet<String>>,
    /// Namespaces that have not answered yet what superblock they have. A server that is there may have a
    /// disk that hangs, and each look would take some of its connection for ever.
    unanswered: RefCell<BTreeSet<String>>,
    /// Members whose disks the kernel has no more, by device.
    gone: RefCell<BTreeSet<String>>,
}

/// Members on servers that were away when the array was started.
pub struct Away {
    pub devices: Vec<String>,
    /// What the others said of the array then.
    pub before: ArrayRecord,
}

/// Why a member is not back.
enum Trouble {
    /// It may be next time.
    Later(String),
    /// The same, and its server's other members would meet the same.
    Server(String),
    /// A user must look at it.
    Never(String),
}

impl Reconnector {
    /// Waits for what is lost, until the end is wanted. `poll`: local members are polled.
    pub fn spawn(array: Array, poll: bool, stopping: Rc<Stopping>, away: Option<Away>) -> Rc<Self> {
        let own = Rc::<Self>::default();
        if let Some(Away { devices, before }) = away {
            let before = Rc::new(before);
            for device in devices {
                let (there, before) = (Rc::clone(&own), Rc::clone(&before));
                let (array, until) = (array.clone(), Rc::clone(&stopping));
                shard::spawn(async move { there.wait_for_away(&device, &before, &array, &until).await });
            }
        }
        let (there, of_disks, until) = (Rc::clone(&own), array.clone(), Rc::clone(&stopping));
        shard::spawn(async move { there.watch_servers(array, stopping).await });
        let there = Rc::clone(&own);
        shard::spawn(async move { Disks::new(of_disks, poll, until).watch(&there.gone).await });
        own
    }

    /// Adds to `detail` which members are waited for.
    pub fn annotate(&self, detail: &mut Detail) {
        let (members, gone) = (self.members.borrow(), self.gone.borrow());
        for failed in &mut detail.failed {
            failed.reconnecting = members.get(&failed.device).cloned();
            failed.gone = gone.contains(&failed.device);
        }
        let is_awaited = |failed: &Failed| failed.reconnecting.as_ref().is_some_and(|it| !it.given_up);
        let words = [
            (!self.away.borrow().is_empty()).then_some(
                "a member on a server that was away when the array was started needs no command: it comes back when the server answers",
            ),
            detail.failed.iter().any(is_awaited).then_some(
                "a member whose server is awaited needs no command: it comes back when the server answers",
            ),
            detail.failed.iter().any(|failed| failed.gone).then_some(
                "a member whose disk is gone comes back without a command when that disk is there again",
            ),
        ];
        let all: Vec<String> =
            detail.advice.take().into_iter().chain(words.into_iter().flatten().map(str::to_owned)).collect();
        detail.advice = (!all.is_empty()).then(|| all.join(". "));
    }

    async fn watch_servers(self: &Rc<Self>, array: Array, stopping: Rc<Stopping>) {
        loop {
            let last_reported = array.last_event();
            self.look_at_servers(&array, &stopping).await;
            if is_over(&array, last_reported, &stopping).await {
                return;
            }
        }
    }
}

/// Waits until something has happened since the event `last_reported`, not for long. Whether the end is
/// wanted.
async fn is_over(array: &Array, last_reported: u64, stopping: &Stopping) -> bool {
    let news = shard::timeout(LOOK_NANOSECONDS, array.event_after(last_reported));
    matches!(first_of(stopping.wanted(), news).await, First::One(()))
}

/// Adds a member that has come back.
async fn add(source: Arc<dyn DeviceSource>, array: &Array) -> Result<(), Trouble> {
    let device = source.name();
    let identity = random_uuid().map_err(|failure| Trouble::Later(failure.sentence().to_owned()))?;
    match array.add(source, identity).await {
        Ok(added) => {
            let by_bitmap = matches!(added, Added::Bitmap { .. });
            array.tell(EventKind::MemberBack { device, by_bitmap });
            Ok(())
        }
        Err(CommandError::AlreadyMember(_) | CommandError::Copy { .. }) => Ok(()),
        Err(
            error @ (CommandError::Ahead { .. }
            | CommandError::Placement { .. }
            | CommandError::LogicalBlock { .. }
            | CommandError::NoRedundancy
            | CommandError::ReadOnly),
        ) => Err(Trouble::Never(error.to_string())),
        Err(error) => Err(Trouble::Later(error.to_string())),
    }
}
