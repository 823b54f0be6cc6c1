//! Members on servers that were lost.
//!
//! A lost server is a lost member (C24): its association has ended and never lives again. Each server with
//! lost members has a task that tries to reach it, with growing pauses. When the same namespace answers and
//! still holds the member of this array, it is added again. A server is found to be lost on an idle array
//! too, for its connections are kept alive. A member that failed while its server was there isn't waited for.
//!
//! One that was away when the array was started, and was left out, is waited for as well: had it been there,
//! the start would have taken it. What the others had gone on without before that isn't taken in.

use std::{collections::BTreeSet, rc::Rc, sync::Arc};

use pinstripe_block::first_of::{First, first_of};
use pinstripe_control::detail::Reconnecting;
use pinstripe_engine::{
    array::Array, assembly::read_superblock, events::EventKind, membership::MemberState,
    status::detail::FailedMember,
};
use pinstripe_md::{
    identity::Uuid,
    superblock::{ArrayRecord, Role, Superblock},
};
use pinstripe_nvme::initiator::{Address, InitiatorError, NvmeSource};
use pinstripe_runtime::{DeviceErrorKind, DeviceSource, shard};

use super::{PAUSE_NANOSECONDS_MIN, Reconnector, SUPERBLOCK_NANOSECONDS, Trouble, add};
use crate::{
    member::{self, Member},
    serve::{pool::let_go, stopping::Stopping},
};

/// The longest pause. Each is twice the one before.
const PAUSE_NANOSECONDS_MAX: u64 = 30_000_000_000;
/// A server that is lost again before so much time has passed begins with a longer pause.
const STEADY_NANOSECONDS: u64 = 60_000_000_000;

pub(super) struct Server {
    /// Whether its task is there.
    awaited: bool,
    pause: u64,
    /// When it was last seen to be back.
    back: Option<u64>,
}

impl Reconnector {
    /// Sees which members are lost, and has their servers tried.
    pub(super) async fn look_at_servers(self: &Rc<Self>, array: &Array, stopping: &Rc<Stopping>) {
        drop_gone(array).await;
        let lost = lost(array);
        self.members.borrow_mut().retain(|device, _| lost.iter().any(|(name, _)| name == device));
        for (name, address) in lost {
            self.members.borrow_mut().entry(name).or_insert_with(|| Reconnecting {
                tries: 0,
                trouble: String::new(),
                given_up: false,
            });
            if self.begin(&server(&address)) {
                let (own, array, stopping) = (Rc::clone(self), array.clone(), Rc::clone(stopping));
                shard::spawn(async move { own.wait_for(&server(&address), &array, &stopping).await });
            }
        }
    }

    /// Whether a server's task is to be started.
    fn begin(&self, name: &str) -> bool {
        let waits = self.members.borrow().iter().any(|(device, member)| {
            !member.given_up && device.parse().is_ok_and(|address: Address| server(&address) == name)
        });
        let mut servers = self.servers.borrow_mut();
        let state = servers.entry(name.to_owned()).or_insert(Server {
            awaited: false,
            pause: PAUSE_NANOSECONDS_MIN,
            back: None,
        });
        if state.awaited || !waits {
            return false;
        }
        let steady = state.back.is_none_or(|back| shard::now() - back >= STEADY_NANOSECONDS);
        state.pause = if steady { PAUSE_NANOSECONDS_MIN } else { longer(state.pause) };
        state.awaited = true;
        true
    }

    /// A server's task: until none of its members is lost any more.
    async fn wait_for(self: &Rc<Self>, name: &str, array: &Array, stopping: &Rc<Stopping>) {
        let mut pause = self.servers.borrow().get(name).map_or(PAUSE_NANOSECONDS_MIN, |server| server.pause);
        loop {
            if let First::One(()) = first_of(stopping.wanted(), shard::sleep(pause)).await {
                break;
            }
            pause = longer(pause);
            let given_up = |device: &String| self.members.borrow().get(device).is_some_and(|m| m.given_up);
            let ours = |(device, address): &(String, Address)| server(address) == name && !given_up(device);
            let lost: Vec<_> = lost(array).into_iter().filter(ours).collect();
            if lost.is_empty() {
                break;
            }
            for (device, address) in lost {
                let opened = match first_of(stopping.wanted(), self.reach(&device, &address, array)).await {
                    First::One(()) => break,
                    First::Other(opened) => opened,
                };
                match taken_in(opened, array).await {
                    Ok(()) => {
                        self.members.borrow_mut().remove(&device);
                        if let Some(server) = self.servers.borrow_mut().get_mut(name) {
                            server.back = Some(shard::now());
                        }
                    }
                    // Another member may be well: a disk is away or has failed, and the server is back.
                    Err(Trouble::Later(words)) => self.note(&device, words, false),
                    Err(Trouble::Server(words)) => {
                        self.note(&device, words, false);
                        break;
                    }
                    Err(Trouble::Never(words)) => {
                        array.tell(EventKind::NotTakenBack { device: device.clone(), reason: words.clone() });
                        self.note(&device, words, true);
                    }
                }
            }
        }
        if let Some(server) = self.servers.borrow_mut().get_mut(name) {
            (server.awaited, server.pause) = (false, pause);
        }
    }

    /// Waits for a member that was away when the array was started, as long as the array lacks one.
    pub(super) async fn wait_for_away(
        self: &Rc<Self>,
        device: &str,
        before: &ArrayRecord,
        array: &Array,
        stopping: &Rc<Stopping>,
    ) {
        let Ok(address) = device.parse::<Address>() else { return };
        self.away.borrow_mut().insert(device.to_owned());
        let mut pause = PAUSE_NANOSECONDS_MIN;
        loop {
            if let First::One(()) = first_of(stopping.wanted(), shard::sleep(pause)).await {
                break;
            }
            pause = longer(pause);
            let taken = taken(array);
            if (0..usize::try_from(before.raid_disks).unwrap_or(usize::MAX)).all(|slot| taken.contains(&slot))
            {
                break;
            }
            let opened = match first_of(stopping.wanted(), self.reach_away(&address, before, array)).await {
                First::One(()) => break,
                First::Other(opened) => opened,
            };
            match taken_in(opened, array).await {
                Ok(()) => break,
                Err(Trouble::Later(_) | Trouble::Server(_)) => {}
                Err(Trouble::Never(reason)) => {
                    array.tell(EventKind::NotTakenBack { device: device.to_owned(), reason });
                    break;
                }
            }
        }
        self.away.borrow_mut().remove(device);
    }

    fn note(&self, device: &str, trouble: String, given_up: bool) {
        if let Some(member) = self.members.borrow_mut().get_mut(device) {
            *member = Reconnecting { tries: member.tries + 1, trouble, given_up };
        }
    }

    /// Connects, and sees whether it is the same namespace and still holds the array's member.
    async fn reach(
        self: &Rc<Self>,
        device: &str,
        address: &Address,
        array: &Array,
    ) -> Result<Arc<NvmeSource>, Trouble> {
        let source = open(address).await?;
        let before = member::known().get(device).map(|known| known.identity);
        let told = before.and_then(|identity| identity.is_one_with(&source.identity()));
        let own = if told == Some(false) { None } else { self.superblock_of(&source, array).await? };
        let failed = array.detail().failed.into_iter().filter(|failed| failed.device == device);
        let lost: Vec<Uuid> = failed.map(|failed| failed.identity).collect();
        match refusal(told, own.map(|superblock| superblock.member.device_uuid), &lost) {
            None => Ok(source),
            Some(words) => Err(Trouble::Never(words.to_owned())),
        }
    }

    /// Connects, and sees whether it is the member that was away when the array was started: that the start
    /// was told of it, and its superblock, are all that it is known by.
    async fn reach_away(
        self: &Rc<Self>,
        address: &Address,
        before: &ArrayRecord,
        array: &Array,
    ) -> Result<Arc<NvmeSource>, Trouble> {
        let source = open(address).await?;
        let own = self.superblock_of(&source, array).await?;
        match refusal_of_away(own.as_ref(), before, &taken(array)) {
            None => Ok(source),
            Some(words) => Err(Trouble::Never(words.to_owned())),
        }
    }

    /// The superblock of the array that a namespace has, if it may be written.
    async fn superblock_of(
        self: &Rc<Self>,
        source: &NvmeSource,
        array: &Array,
    ) -> Result<Option<Superblock>, Trouble> {
        if source.is_read_only() {
            return Err(Trouble::Never("its server refuses writes now".to_owned()));
        }
        let ours = array.detail().uuid;
        let superblock = self.read_once(source, ours.parse().ok()).await?;
        Ok(superblock.filter(|superblock| superblock.array.set_uuid.to_string() == ours))
    }

    /// What a device has, unless an earlier look at it is still unanswered.
    async fn read_once(
        self: &Rc<Self>,
        source: &dyn DeviceSource,
        wanted: Option<Uuid>,
    ) -> Result<Option<Superblock>, Trouble> {
        let later = |error: &dyn std::fmt::Display| Trouble::Later(error.to_string());
        let name = source.name();
        if self.unanswered.borrow().contains(&name) {
            return Err(later(&"it has not answered an earlier look at its superblock"));
        }
        let handle = source.attach().map_err(|error| later(&error))?;
        self.unanswered.borrow_mut().insert(name.clone());
        let own = Rc::clone(self);
        let reading = shard::spawn_joined(async move {
            let read = read_superblock(&*handle, wanted).await;
            own.unanswered.borrow_mut().remove(&name);
            read
        });
        let read = shard::timeout(SUPERBLOCK_NANOSECONDS, reading.join()).await;
        let read = read.ok_or_else(|| later(&"its superblock was not read in time"))?;
        read.map_err(|error| later(&error))
    }
}

/// Drops members with an association that has ended, so that they are waited for before they are needed.
async fn drop_gone(array: &Array) {
    if array.shared().has_failed() {
        // A failed array drops no member any more (C3). Each try would be told, and what is told ends the
        // next wait.
        return;
    }
    for device in member::known().into_keys() {
        // Looked at anew: while another one was dropped, this one may have come back.
        if member::known().get(&device).is_some_and(|known| known.presence.is_lost()) {
            // It fails if the array does, which is told elsewhere.
            let _ = array.drop_gone(&device).await;
        }
    }
}

fn longer(pause: u64) -> u64 {
    (pause * 2).min(PAUSE_NANOSECONDS_MAX)
}

/// Members that failed because their server was gone. If a failed member's association lives, the member has
/// failed by itself, or another host has reserved its namespace (C22).
fn lost(array: &Array) -> Vec<(String, Address)> {
    let known = member::known();
    let by_server = |failed: &FailedMember| {
        matches!(failed.error.error.kind, DeviceErrorKind::Gone | DeviceErrorKind::TimedOut)
            && known.get(&failed.device).is_some_and(|known| known.presence.is_lost())
    };
    let failed = array.detail().failed.into_iter().filter(by_server);
    failed.filter_map(|failed| failed.device.parse().ok().map(|address| (failed.device, address))).collect()
}

/// What an association is with.
fn server(address: &Address) -> String {
    format!("{}/{}", address.server(), address.nqn)
}

async fn open(address: &Address) -> Result<Arc<NvmeSource>, Trouble> {
    let initiator = member::initiator().map_err(|failure| Trouble::Later(failure.sentence().to_owned()))?;
    initiator.open(address).await.map_err(|error| {
        let words = error.to_string();
        match error {
            InitiatorError::Connect { .. }
            | InitiatorError::Silent { .. }
            | InitiatorError::Lost { .. }
            | InitiatorError::Authentication { .. } => Trouble::Server(words),
            _ => Trouble::Later(words),
        }
    })
}

/// Takes a namespace in that was reached. It isn't left half done.
async fn taken_in(reached: Result<Arc<NvmeSource>, Trouble>, array: &Array) -> Result<(), Trouble> {
    let source = reached?;
    let adding = add(Arc::clone(&source) as Arc<dyn DeviceSource>, array);
    Member::Remote(Arc::clone(&source)).join(adding).await?;
    let_go(source, array);
    Ok(())
}

/// Slots that have a member.
fn taken(array: &Array) -> BTreeSet<usize> {
    let is_out = |state: &MemberState| matches!(state, MemberState::Failed(_) | MemberState::Removed);
    let members = array.members().into_iter().filter(|(_, _, _, state)| !is_out(state));
    members.filter_map(|(_, _, slot, _)| slot).collect()
}

/// Why what answers isn't taken in for a member that was away. `before`: what the others said when the array
/// was started without it. One that they called lost then may have been taken out by a person. `taken`: slots
/// that have a member.
fn refusal_of_away(
    own: Option<&Superblock>,
    before: &ArrayRecord,
    taken: &BTreeSet<usize>,
) -> Option<&'static str> {
    let Some(own) = own else {
        return Some("it has no superblock of this array; `pinstripe add` rebuilds it nevertheless");
    };
    match own.role_in(before) {
        Role::Slot(slot)
            if own.own_role() == Role::Slot(slot) && own.array.events.saturating_add(1) >= before.events =>
        {
            let is_taken = taken.contains(&usize::from(slot.0));
            is_taken.then_some("another device has its slot by now; `pinstripe add` makes it a spare")
        }
        _ => Some(
            "the array had gone on without it before it was started; `pinstripe add` takes it nevertheless",
        ),
    }
}

/// Why what answers isn't taken for the lost member (C30). `told`: what its identifiers tell. A server need
/// not give any: then the superblock must be that of the member, `own` of `lost`.
fn refusal(told: Option<bool>, own: Option<Uuid>, lost: &[Uuid]) -> Option<&'static str> {
    match (told, own) {
        (Some(false), _) => {
            Some("it is another namespace than before; `pinstripe add` takes it nevertheless")
        }
        (_, None) => {
            Some("it has no superblock of this array any more; `pinstripe add` rebuilds it nevertheless")
        }
        (None, Some(own)) if !lost.contains(&own) => Some(
            "its server gives it no identifier, and its superblock is another member's; `pinstripe add` takes it nevertheless",
        ),
        (_, Some(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use pinstripe_runtime::{
        Buffer, Completion, Device, DeviceError, DeviceInfo, Slice, Submission, ZeroedReads,
        completion::Payload,
        uring::{RuntimeConfig, run},
    };

    use super::*;

    thread_local! {
        static ASKED: RefCell<Vec<Completion>> = const { RefCell::new(Vec::new()) };
    }

    /// A namespace with a disk that hangs, and how often it was attached.
    #[derive(Default)]
    struct Hangs(AtomicUsize);

    struct Hanging(DeviceInfo);

    impl DeviceSource for Hangs {
        fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(Rc::new(Hanging(DeviceInfo {
                name: self.name(),
                size: 1 << 20,
                logical_block: 512,
                volatile_cache: false,
                forces_by_flush: false,
                zeroes: ZeroedReads::Unsupported,
                discards: false,
                in_memory: false,
                moves_head: None,
            })))
        }

        fn name(&self) -> String {
            "hangs".to_owned()
        }
    }

    impl Device for Hanging {
        fn info(&self) -> &DeviceInfo {
            &self.0
        }

        fn read(&self, _: u64, buffer: Buffer) -> Submission {
            let (submission, completion) = Submission::pending(Payload::Buffer(buffer));
            ASKED.with_borrow_mut(|asked| asked.push(completion));
            submission
        }

        fn write(&self, _: u64, _: Slice, _: bool) -> Submission {
            unreachable!("it is looked at")
        }

        fn flush(&self) -> Submission {
            unreachable!("it is looked at")
        }

        fn discard(&self, _: u64, _: u64) -> Submission {
            unreachable!("it is looked at")
        }

        fn write_zeroes(&self, _: u64, _: u64) -> Submission {
            unreachable!("it is looked at")
        }
    }

    #[test]
    fn a_disk_that_hangs_is_asked_once_until_it_answers() {
        run(&RuntimeConfig::unpinned(1), move |_| async move {
            let (own, source) = (Rc::<Reconnector>::default(), Hangs::default());
            let look = || shard::timeout(1_000_000, own.read_once(&source, None));
            assert!(look().await.is_none());
            for _ in 0..3 {
                let Some(Err(Trouble::Later(words))) = look().await else { panic!("it was asked again") };
                assert!(words.contains("an earlier look"), "{words}");
            }
            assert_eq!(source.0.load(Ordering::SeqCst), 1);
            while !own.unanswered.borrow().is_empty() {
                for completion in ASKED.take() {
                    completion.finish(Err(DeviceError::of(DeviceErrorKind::Media)));
                }
                shard::yield_now().await;
            }
            assert!(look().await.is_none());
            assert_eq!(source.0.load(Ordering::SeqCst), 2);
        })
        .unwrap();
    }

    #[test]
    fn what_answers_without_an_identifier_is_the_member_only_by_its_superblock() {
        let [member, other] = [1, 2].map(|byte| Uuid([byte; 16]));
        let words = |told, own| refusal(told, own, &[member]).unwrap_or_default();
        assert_eq!(words(None, Some(member)), "");
        assert!(words(None, Some(other)).contains("no identifier"));
        assert!(words(None, None).contains("no superblock"));
        // Its identifier is proof, whatever identity the superblock had got meanwhile.
        assert_eq!(words(Some(true), Some(other)), "");
        assert!(words(Some(true), None).contains("no superblock"));
        assert!(words(Some(false), Some(member)).contains("another namespace"));
        assert!(words(Some(false), None).contains("another namespace"));
    }
}
