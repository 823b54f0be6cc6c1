//! The members of the array: opened and locked, or made of memory.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use pinstripe_control::size::ByteSize;
use pinstripe_engine::{
    array::Array,
    assembly::{contested, create::create_with, read_claims},
};
use pinstripe_md::{
    identity::Uuid,
    superblock::{Claims, MetadataVersion, Role},
    units::{SECTOR_BYTES, sector_range},
};
use pinstripe_nvme::initiator::NvmeSource;
use pinstripe_runtime::{
    DeviceInfo, DeviceSource, Memory, MemorySource, shard,
    uring::{OpenOptions, blocking, path_of},
};

use super::{names, nvme::namespace_uuid, reconnect::Away, succession::Inheritance};
use crate::{
    command_line::ServeArguments,
    create::Shape,
    failure::Failure,
    joined::{self, Joined},
    log,
    member::{self, Member},
    probe::{Contents, MdFinding},
    scan::{Candidate, FoundArray, group},
    supervisor,
};

/// How the path of a memory device begins.
const MEMORY: &str = "mem:";
/// How long servers that are away are waited for under a service manager, which would start this one again
/// and again, and give up. After a power cut a machine may be up before its storage servers are.
const MANAGED_NANOSECONDS: u64 = 60_000_000_000;
/// Pause before a member that is absent is looked for again.
const RETRY_NANOSECONDS: u64 = 500_000_000;
/// How long a member may take to show its superblock that another program has just written.
const SHOW_NANOSECONDS: u64 = 10_000_000_000;
/// How long a device may take to show its superblock when only the array's name is wanted.
const LOOK_NANOSECONDS: u64 = 30_000_000_000;

/// What will be assembled.
#[derive(Default)]
pub struct OpenedDevices {
    pub sources: Vec<Arc<dyn DeviceSource>>,
    /// Those of them that are namespaces of servers.
    pub namespaces: Vec<Arc<NvmeSource>>,
    /// Whether members were waited for in vain.
    pub left_out: bool,
    /// Those of them that are on servers, which may answer later.
    away: Vec<String>,
    /// The array's name without the host, and its uuid, as the first member with a superblock has them.
    pub name: String,
    pub uuid: String,
}

/// An open file as every shard attaches it.
impl OpenedDevices {
    /// Opens what the command line names; with `shape`, makes it of memory.
    /// Where another program was served by them until now, they must be readable; if there is none to go back
    /// to, those that aren't are left out, as that program would have dropped them.
    pub async fn open(
        arguments: &ServeArguments,
        shape: Option<&Shape>,
        inherited: Option<&Inheritance>,
    ) -> Result<Self, Failure> {
        if let Some(shape) = shape {
            return Self::of_memory(&arguments.devices, shape).await;
        }
        let options =
            OpenOptions { read_only: arguments.read_only, poll: arguments.poll, ..OpenOptions::default() };
        let mut members = Self::default();
        let patience = Patience::new(arguments, inherited);
        let mut absent = members.open_named(arguments, &options, &patience).await?;
        if arguments.joined {
            absent.extend(members.open_joined(arguments, &options).await);
            if !absent.is_empty() && members.have_what_they_had().await {
                absent.drain(..).for_each(|Absent { why, .. }| say_left_out(&why));
            }
        }
        members.open_absent(absent, arguments.uuid, &options, &patience).await?;
        if inherited.is_some() {
            members.check_readable(patience.goes_back).await?;
        }
        if members.sources.is_empty() {
            return Err(Failure::new("none of the members could be opened: name at least one that exists"));
        }
        members.find_name(arguments.uuid).await?;
        Ok(members)
    }

    /// Opens what is named and there. What is not, or, where a scan has named it, can't be opened.
    async fn open_named(
        &mut self,
        arguments: &ServeArguments,
        options: &OpenOptions,
        patience: &Patience,
    ) -> Result<Vec<Absent>, Failure> {
        let mut absent = Vec::new();
        for path in &arguments.devices {
            if is_memory(path) {
                return Err(Failure::usage(format!(
                    "{} is empty memory: it goes with --create only",
                    path.display()
                )));
            }
            match open_member(path.to_owned(), options.clone()).await {
                Ok(member) => self.take(&member),
                Err(why) if is_absent(path) => absent.push(Absent { path: path.to_owned(), why, of: None }),
                Err(why) if patience.goes_back => self.leave_out(&why),
                // A scan has found it: it may be a spare, which the others can do without.
                Err(why) if arguments.joined => absent.push(Absent { path: path.to_owned(), why, of: None }),
                Err(why) => return Err(why),
            }
        }
        Ok(absent)
    }

    /// Waits for what was away, as long as that is asked for; for what the others can't do without as long as
    /// a service manager should see one start.
    async fn open_absent(
        &mut self,
        absent: Vec<Absent>,
        wanted: Option<Uuid>,
        options: &OpenOptions,
        patience: &Patience,
    ) -> Result<(), Failure> {
        let mut late = Vec::new();
        for absent in absent {
            let last_try = patience.of(&absent.path);
            late.extend(self.open_until(absent, options, last_try).await);
        }
        // From when the others are enough, as where disks come one by one.
        let (mut were_too_few, mut until) = (false, None);
        for absent in late {
            let last_try = if patience.with_too_few.is_some() && !self.is_enough(wanted).await {
                were_too_few = true;
                patience.with_too_few
            } else {
                let again = patience.limit.filter(|_| were_too_few);
                again.map(|limit| *until.get_or_insert_with(|| shard::now() + limit))
            };
            if let Some(still) = self.open_until(absent, options, last_try).await {
                self.do_without(still, patience)?;
            }
        }
        Ok(())
    }

    /// Opens what was away. What still is at the last moment that `patience` gives it, or can't be opened.
    async fn open_until(
        &mut self,
        absent: Absent,
        options: &OpenOptions,
        last_try: Option<u64>,
    ) -> Option<Absent> {
        let Absent { path, why, of } = absent;
        let opened = match last_try {
            Some(last_try) => {
                supervisor::tell_status(&format!("waits: {}", why.sentence()));
                open_until(&path, options, last_try).await
            }
            None => Err(why),
        };
        match (opened, of) {
            (Ok(member), None) => self.take(&member),
            (Ok(member), Some(uuid)) => self.take_joined(&member, uuid).await,
            (Err(why), of) => return Some(Absent { path, why, of }),
        }
        None
    }

    /// Leaves out what was waited for in vain, or says why the array can't be started so.
    fn do_without(&mut self, absent: Absent, patience: &Patience) -> Result<(), Failure> {
        let Absent { path, why, of } = absent;
        if patience.limit.is_some() && (patience.goes_back || is_absent(&path)) {
            self.leave_out(&why);
            self.away.extend(member::address(&path).is_some().then(|| path.display().to_string()));
        } else if of.is_some() {
            say_left_out(&why);
        } else if member::address(&path).is_none() && is_absent(&path) {
            let words = "if the device is lost, leave it out, and the others are served degraded";
            return Err(Failure::new(format!("{}: {words}", why.sentence())));
        } else {
            return Err(why);
        }
        Ok(())
    }

    fn take(&mut self, member: &Member) {
        member.remember();
        self.sources.push(member.source());
        if let Member::Remote(source) = member {
            self.namespaces.push(Arc::clone(source));
        }
    }

    fn leave_out(&mut self, why: &Failure) {
        say_left_out(why);
        self.left_out = true;
    }

    /// Opens the devices that have joined the array under earlier servers. Those that had a slot and are
    /// away.
    async fn open_joined(&mut self, arguments: &ServeArguments, options: &OpenOptions) -> Vec<Absent> {
        // What is wrong will be said later.
        let _ = self.find_name(arguments.uuid).await;
        let Ok(uuid) = self.uuid.parse::<Uuid>() else { return Vec::new() };
        let named = arguments.devices.clone();
        let mut absent = Vec::new();
        // All at a time: one that has gone for good may be among them, and nothing tells that from one that
        // is away.
        let open = |(path, slot): (PathBuf, Option<usize>)| {
            let opening = shard::spawn_joined(open_member(path.clone(), options.clone()));
            (path, slot, opening)
        };
        let joined = blocking(move || joined_beside(uuid, &named)).await;
        let opening: Vec<_> = joined.into_iter().map(open).collect();
        for (path, slot, opening) in opening {
            match opening.join().await {
                Ok(member) => self.take_joined(&member, uuid).await,
                Err(why) if slot.is_some() && is_absent(&path) => {
                    absent.push(Absent { path, why, of: Some(uuid) });
                }
                Err(why) => say_left_out(&why),
            }
        }
        absent
    }

    /// Takes a device that has joined the array `uuid`, if it is a member still, and none that is here
    /// already or that the array has gone on without.
    async fn take_joined(&mut self, member: &Member, uuid: Uuid) {
        let own = |claims: &Claims| {
            let own = claims.choose(Some(uuid), &[]).filter(|own| own.array.set_uuid == uuid);
            own.map(|own| own.member.device_uuid)
        };
        let claims = claims_of(member.source()).await;
        let Some((claims, found)) = claims.and_then(|claims| own(&claims).map(|found| (claims, found)))
        else {
            let name = &member.info().name;
            return log::warn(&format!(
                "{name} has joined the array once, and shows no superblock of it now"
            ));
        };
        let mut all = self.claims().await;
        if all.iter().any(|claims| own(claims) == Some(found)) {
            return;
        }
        all.push(claims);
        let last = number(all.len() - 1);
        if array_of(uuid, &all).is_some_and(|array| array.needed().any(|member| member.path == last)) {
            self.take(member);
        }
    }

    /// Whether every slot has its member but for those that the array has gone on without already, and the
    /// journal is there if there is one: so what is away isn't needed.
    async fn have_what_they_had(&self) -> bool {
        let Ok(uuid) = self.uuid.parse::<Uuid>() else { return false };
        let array = array_of(uuid, &self.claims().await);
        array.is_some_and(|array| array.is_enough() && array.awaited().is_empty() && !array.lacks_journal())
    }

    /// Whether the array has all its data without what is away.
    async fn is_enough(&mut self, wanted: Option<Uuid>) -> bool {
        // What is wrong will be said later.
        let _ = self.find_name(wanted).await;
        let Ok(uuid) = self.uuid.parse::<Uuid>() else { return false };
        array_of(uuid, &self.claims().await).is_some_and(|array| array.is_enough())
    }

    /// What was left out and may come back, before the others say that the array has gone on without.
    pub async fn away(&self) -> Option<Away> {
        let uuid = self.uuid.parse().ok().filter(|_| !self.away.is_empty())?;
        let before = array_of(uuid, &self.claims().await)?.freshest.array;
        Some(Away { devices: self.away.clone(), before })
    }

    /// What the superblocks of the devices say that show them soon.
    async fn claims(&self) -> Vec<Claims> {
        let look = |source: &Arc<dyn DeviceSource>| shard::spawn_joined(claims_of(Arc::clone(source)));
        let looking: Vec<_> = self.sources.iter().map(look).collect();
        let mut all = Vec::new();
        for looking in looking {
            all.extend(looking.join().await);
        }
        all
    }

    /// Refuses members that don't show their superblock, or leaves them out. All are looked at side by side:
    /// clients wait.
    async fn check_readable(&mut self, leaves_out: bool) -> Result<(), Failure> {
        let look = |source: Arc<dyn DeviceSource>| {
            shard::spawn_joined(async move { (is_readable(&source).await, source) })
        };
        let looking: Vec<_> = self.sources.drain(..).map(look).collect();
        for looking in looking {
            match looking.join().await {
                (Ok(()), source) => self.sources.push(source),
                (Err(failure), _) if leaves_out => self.leave_out(&failure),
                (Err(failure), _) => return Err(failure),
            }
        }
        Ok(())
    }

    /// The sockets are named for the array, so its name is wanted before it is assembled. What is wrong with
    /// the members will be said then.
    async fn find_name(&mut self, wanted: Option<Uuid>) -> Result<(), Failure> {
        let mut doubt = None;
        for source in &self.sources {
            let device =
                source.attach().map_err(|error| Failure::new(format!("{}: {error}", source.name())))?;
            let found = shard::timeout(LOOK_NANOSECONDS, read_claims(&*device)).await;
            let Some(Ok(Some(claims))) = found else { continue };
            if let Some(superblock) = claims.choose(wanted, &[]) {
                self.name = superblock.array.name.short();
                self.uuid = superblock.array.set_uuid.to_string();
                return Ok(());
            }
            doubt.get_or_insert_with(|| contested(&*device, &claims));
        }
        if let Some(doubt) = doubt {
            return Err(Failure::new(format!("{doubt}; nothing was changed")));
        }
        let names: Vec<String> = self.sources.iter().map(|source| source.name()).collect();
        Err(Failure::new(format!(
            "no superblock of an array is on {}: see `pinstripe examine`",
            names.join(", ")
        )))
    }

    async fn of_memory(paths: &[PathBuf], shape: &Shape) -> Result<Self, Failure> {
        let mut sources = Vec::new();
        for (slot, path) in paths.iter().enumerate() {
            if !is_memory(path) {
                return Err(Failure::usage(format!(
                    "serve --create makes arrays of memory (mem:SIZE); for {} use `pinstripe create`",
                    path.display()
                )));
            }
            sources.push(memory(path, slot)?);
        }
        let attached = sources.iter().map(|source| source.attach()).collect::<Result<Vec<_>, _>>()?;
        let infos: Vec<DeviceInfo> = attached.iter().map(|device| device.info().clone()).collect();
        let wish = shape.on(&infos)?;
        create_with(&wish, shape.log(), &attached).await?;
        Ok(Self { sources, name: wish.name.short(), uuid: wish.set_uuid.to_string(), ..Self::default() })
    }
}

/// Until when members that are away are waited for.
struct Patience {
    last_try: Option<u64>,
    /// How long, if they are to be done without then.
    limit: Option<u64>,
    /// No other program can go on, so that what can't be opened is done without.
    goes_back: bool,
    /// Until when those are waited for that the others can't do without.
    with_too_few: Option<u64>,
}

impl Patience {
    fn new(arguments: &ServeArguments, inherited: Option<&Inheritance>) -> Self {
        let limit = arguments.run_after.map(|seconds| u64::from(seconds) * 1_000_000_000);
        let is_managed = inherited.is_none() && supervisor::is_there();
        Self {
            last_try: limit.map(|limit| shard::now() + limit),
            limit,
            goes_back: limit.is_some() && inherited.is_some_and(Inheritance::is_return),
            with_too_few: is_managed.then(|| shard::now() + MANAGED_NANOSECONDS),
        }
    }

    /// Until when this one is waited for.
    fn of(&self, path: &Path) -> Option<u64> {
        let is_on_server = member::address(path).is_some();
        self.last_try.or(self.with_too_few.filter(|_| is_on_server))
    }
}

/// A device that can't be opened now, in most cases because it isn't there.
struct Absent {
    path: PathBuf,
    why: Failure,
    /// The array that it has joined under an earlier server, if it isn't named.
    of: Option<Uuid>,
}

fn say_left_out(why: &Failure) {
    log::warn(&format!("{}; the array is started without it", why.sentence()));
}

/// The devices that have joined an array, where they are now, with the slots that they had; without those
/// that are named. Blocks.
fn joined_beside(uuid: Uuid, named: &[PathBuf]) -> Vec<(PathBuf, Option<usize>)> {
    let is_named = |path: &PathBuf| {
        named.contains(path)
            || named.iter().any(|other| member::are_one(path, other))
            || member::is_over(path, named)
    };
    let place = |joined: Joined| {
        let here = if joined.is_on_server() { None } else { joined.path() };
        (here.unwrap_or_else(|| PathBuf::from(joined.device)), joined.slot)
    };
    joined::all(uuid).into_iter().map(place).filter(|(path, _)| !is_named(path)).collect()
}

/// The array of the devices that say this; they are called by their numbers.
fn array_of(uuid: Uuid, all: &[Claims]) -> Option<FoundArray> {
    let candidate = |(index, claims): (usize, &Claims)| {
        let superblock = claims.choose(Some(uuid), &[]).filter(|own| own.array.set_uuid == uuid)?;
        Some(Candidate {
            path: number(index),
            storage: None,
            superblock: Ok(superblock.clone()),
            rivals: Vec::new(),
            bitmaps: BTreeMap::new(),
            unfit: None,
            holders: Vec::new(),
        })
    };
    group(all.iter().enumerate().filter_map(candidate).collect()).0.pop()
}

fn number(index: usize) -> PathBuf {
    PathBuf::from(index.to_string())
}

/// What a device's superblocks say, if it shows them soon.
async fn claims_of(source: Arc<dyn DeviceSource>) -> Option<Claims> {
    let device = source.attach().ok()?;
    shard::timeout(SHOW_NANOSECONDS, read_claims(&*device)).await?.ok()?
}

/// Whether a member shows its superblock, soon.
async fn is_readable(source: &Arc<dyn DeviceSource>) -> Result<(), Failure> {
    let unreadable = |why: &str| Failure::new(format!("the member {} {why}", source.name()));
    let device = source.attach().map_err(|error| unreadable(&format!("can't be used: {error}")))?;
    match shard::timeout(SHOW_NANOSECONDS, read_claims(&*device)).await {
        Some(Ok(Some(_))) => Ok(()),
        Some(Ok(None)) => Err(unreadable("has no superblock any more")),
        Some(Err(error)) => Err(unreadable(&format!("shows no superblock: {error}"))),
        None => Err(unreadable(&format!("doesn't answer for {} s", SHOW_NANOSECONDS / 1_000_000_000))),
    }
}

/// Whether a device may be away only for now. One that is there and can't be opened is no matter of patience.
fn is_absent(path: &Path) -> bool {
    member::address(path).is_some_and(|address| address.is_ok()) || !path_of(path).0.exists()
}

/// Opens a member, and tries that again until `last_try` while it is absent.
async fn open_until(path: &Path, options: &OpenOptions, last_try: u64) -> Result<Member, Failure> {
    loop {
        match open_member(path.to_owned(), options.clone()).await {
            Err(_) if is_absent(path) && shard::now() < last_try => shard::sleep(RETRY_NANOSECONDS).await,
            opened => return opened,
        }
    }
}

fn is_memory(path: &Path) -> bool {
    path.to_string_lossy().starts_with(MEMORY)
}

/// The memory device that `mem:SIZE` asks for.
fn memory(path: &Path, slot: usize) -> Result<Arc<dyn DeviceSource>, Failure> {
    let text = path.to_string_lossy();
    let size: ByteSize = text.strip_prefix(MEMORY).unwrap_or_default().parse()?;
    let bytes = usize::try_from(size.0)?;
    let memory = Memory::populated(bytes).map_err(|error| Failure::new(format!("{text}: {error}")))?;
    Ok(Arc::new(MemorySource { name: format!("{text} #{slot}"), memory, logical_block: 512 }))
}

async fn open_member(path: PathBuf, options: OpenOptions) -> Result<Member, Failure> {
    // What is on a file system that hangs, or on this very array, keeps whatever looks at it waiting.
    let own = path_of(&path).0.to_owned();
    if member::address(&path).is_none() && !blocking(move || own.exists()).await {
        return Err(Failure::new(format!("{} does not exist", path.display())));
    }
    member::open(path, options).await
}

/// What devices may join an array.
#[derive(Clone, Copy)]
pub struct Kinds {
    /// Memory may.
    pub memory: bool,
    /// Only what can be polled may, of this machine's devices.
    pub poll: bool,
}

/// What a device that joins an array may hold. Superblocks of the array itself are no hindrance: so a former
/// member comes back.
pub enum Holds {
    /// Nothing else.
    Nothing,
    /// Or be a spare of the array with this UUID. What else is on a spare was there before, and is as free,
    /// unless the superblock lies at the end, where what was made later leaves it.
    SpareOf(String),
    /// Anything: it is overwritten.
    Anything,
}

impl Holds {
    /// As `add` and `replace` have it.
    pub fn new(force: bool, spare_of: Option<String>) -> Self {
        match spare_of {
            _ if force => Self::Anything,
            Some(uuid) => Self::SpareOf(uuid),
            None => Self::Nothing,
        }
    }

    /// What of the contents of a device is in the way, in words.
    fn in_the_way(&self, contents: &Contents, uuid: &str) -> Vec<String> {
        if matches!(self, Self::Anything) {
            return Vec::new();
        }
        let is_of = |found: &MdFinding, uuid: &str| {
            found.superblock.as_ref().is_ok_and(|md| md.superblock.array.set_uuid.to_string() == uuid)
        };
        let is_spare = |found: &MdFinding| {
            found.superblock.as_ref().is_ok_and(|md| md.superblock.own_role() == Role::Spare)
        };
        let is_lent = |found: &MdFinding| match self {
            Self::SpareOf(other) => is_of(found, other) && is_spare(found),
            Self::Nothing | Self::Anything => false,
        };
        let metadata = &contents.metadata;
        let foreign = metadata.iter().filter(|found| !is_of(found, uuid) && !is_lent(found));
        let mut words: Vec<String> = foreign.map(ToString::to_string).collect();
        let is_at_end = |found: &MdFinding| {
            found.superblock.as_ref().is_ok_and(|md| md.superblock.member.version == MetadataVersion::V1_0)
        };
        if !metadata.iter().any(|found| is_lent(found) && !is_at_end(found)) {
            // What a former member has in its data is of the array's clients, such as the end of their GPT.
            let data = metadata.iter().filter(|found| is_of(found, uuid) && !is_at_end(found));
            let data: Vec<Range<u64>> = data.filter_map(data_bytes).collect();
            let is_content =
                |mark: &Range<u64>| data.iter().any(|data| data.start <= mark.start && mark.end <= data.end);
            let others = contents.others.iter().filter(|found| !is_content(&found.mark));
            words.extend(others.map(ToString::to_string));
        }
        words
    }
}

/// The bytes in which a former member has the array's data.
fn data_bytes(found: &MdFinding) -> Option<Range<u64>> {
    let superblock = &found.superblock.as_ref().ok()?.superblock;
    let (member, is_member) = (&superblock.member, matches!(superblock.own_role(), Role::Slot(_)));
    let sectors = sector_range(member.data_offset, member.data_size);
    is_member.then(|| sectors.start.saturating_mul(SECTOR_BYTES)..sectors.end.saturating_mul(SECTOR_BYTES))
}

/// A device that may join an array.
pub enum Newcomer {
    Memory(Arc<dyn DeviceSource>),
    /// With the bytes of the marks that show what it was.
    Member(Member, Vec<Range<u64>>),
}

impl Newcomer {
    /// What is to be wiped, so that no tool takes the device for what it was.
    pub fn marks(&self) -> &[Range<u64>] {
        match self {
            Self::Memory(_) => &[],
            Self::Member(_, marks) => marks,
        }
    }

    pub fn source(&self) -> Arc<dyn DeviceSource> {
        match self {
            Self::Memory(source) => Arc::clone(source),
            Self::Member(member, _) => member.source(),
        }
    }

    /// See [`Member::join`].
    pub async fn join<T, E>(&self, joining: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        match self {
            Self::Memory(_) => joining.await,
            Self::Member(member, _) => member.join(joining).await,
        }
    }
}

/// A device that shall join the array. One that holds something else than it may is refused, and so is a
/// namespace that is the array, or a part of it, by whatever address (C30).
pub async fn newcomer(path: PathBuf, array: &Array, holds: Holds, kinds: Kinds) -> Result<Newcomer, Failure> {
    if is_memory(&path) && kinds.memory {
        return Ok(Newcomer::Memory(memory(&path, usize::from(shard::now().to_le_bytes()[0]))?));
    }
    if member::address(&path).is_none() && !path_of(&path).0.is_absolute() {
        return Err(Failure::new(format!("{}: an absolute path is needed", path.display())));
    }
    let options = OpenOptions { poll: kinds.poll, ..OpenOptions::default() };
    let member = open_member(path.clone(), options).await?;
    let uuid = array.detail().uuid;
    if let Member::Remote(source) = &member {
        let name = source.name();
        if source.identity().nguid() == Some(namespace_uuid(&uuid)) {
            return Err(Failure::new(format!("{name} is this array itself; nothing was done")));
        }
        if let Some(part) = names::part_of_namespace(array, &source.identity()) {
            return Err(Failure::new(format!("{name} is {part} already; nothing was done")));
        }
    }
    let contents = member.contents(path).await?;
    let words = holds.in_the_way(&contents, &uuid);
    if !words.is_empty() {
        let (name, words) = (&member.info().name, words.join(" and "));
        return Err(Failure::new(format!(
            "{name} holds {words}; nothing was changed: use --force to overwrite that"
        )));
    }
    let marks = contents.marks().collect();
    Ok(Newcomer::Member(member, marks))
}
