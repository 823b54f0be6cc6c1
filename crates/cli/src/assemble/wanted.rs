//! Which arrays are meant, and what is to become of each. Looks, and changes nothing.

use std::{
    ffi::OsStr,
    iter,
    path::{Path, PathBuf},
    time::Duration,
};

use pinstripe_config::{Array, Configuration, Settings, defaults_for, duties::Duties, expand, is_server};
use pinstripe_control::place::{self, stem};
use pinstripe_md::identity::{Uuid, short_name};

use crate::{
    called::{Claim, Entry, called, host, in_dev, is_foreign},
    command_line::Which,
    configuration::units,
    failure::Failure,
    joined::{self, Joined},
    member::{are_one, is_over},
    scan::{FoundArray, LIMIT, Seen, Served, slots},
};

/// How an array is started without a member that is late.
const WITHOUT: &str = "give `run-after` in its [[array]] to wait for late members and then start without them, \
    or start it without them once by `pinstripe assemble --run --name NAME`";
/// Bytes of an array's name.
const NAME_BYTES_MAX: usize = 32;

/// An array that is meant.
pub struct Wanted {
    /// What it is called in messages.
    pub label: String,
    /// Its entry in the configuration, if it has one.
    pub entry: Option<Array>,
    /// What was found of it on this machine's devices.
    pub found: Option<FoundArray>,
    /// Its members on servers, which `serve` looks at.
    pub servers: Vec<PathBuf>,
    /// Those on servers that have joined it while it was served. `serve` looks at them, too.
    joined: Vec<Joined>,
    /// The unit of the package that serves it, if one can.
    pub unit: Option<String>,
    /// Options of its server.
    words: Vec<String>,
    /// The server that it has already.
    served: Option<PathBuf>,
    /// Why it is not known which array is meant.
    unclear: Option<String>,
    /// Devices that could not be read: members may be among them.
    unread: usize,
    /// Some of these have not answered.
    is_silent: bool,
    /// The array's UUID, if only that tells that it is meant.
    by_uuid: Option<Uuid>,
    /// What it is called where another array has its name.
    called: Option<String>,
    /// What the daemon does for it.
    duties: Duties,
}

/// What is to become of it.
pub enum State {
    /// Nothing: this control socket's server has it.
    Served(PathBuf),
    /// All is here.
    Ready,
    /// All may be here: which slots the servers have, only `serve` sees. Why one may still be awaited.
    Perhaps(String),
    /// Members are missing that may still come. Whether it has all data without them.
    Late { why: String, enough: bool },
    /// It can't be served, whatever comes.
    Hopeless(String),
}

impl Wanted {
    pub fn uuid(&self) -> Option<Uuid> {
        self.found.as_ref().map(|found| found.uuid).or_else(|| self.entry.as_ref()?.uuid)
    }

    /// Its name without the host, where one is known.
    pub fn name(&self) -> Option<String> {
        let found = self.found.as_ref().map(FoundArray::short_name);
        found.or_else(|| self.entry.as_ref()?.name.as_ref().map(|name| short_name(name).to_owned()))
    }

    /// How its files beside sockets begin.
    pub fn stem(&self) -> String {
        let uuid = self.uuid().map(|uuid| uuid.to_string()).unwrap_or_default();
        self.called.clone().unwrap_or_else(|| stem(&self.name().unwrap_or_default(), &uuid))
    }

    /// Whether it is started without being asked for by a person.
    pub fn is_started(&self) -> bool {
        self.entry.as_ref().is_none_or(|entry| entry.auto)
    }

    /// The control socket of the server that it has already.
    pub fn served(&self) -> Option<&PathBuf> {
        self.served.as_ref()
    }

    /// The server of another array that has the control socket which its own would have.
    pub fn holder_of_its_name(&self) -> Option<Served> {
        let socket = place::folders().swap_remove(0).join(format!("{}.sock", self.stem()));
        let is_other = |served: &Served| self.uuid().is_some_and(|uuid| !served.is(uuid));
        Served::all().0.into_iter().find(|served| served.control == socket && is_other(served))
    }

    /// How long its members are waited for. Where a device has not answered, at least as long as one may be
    /// slow.
    pub fn patience(&self) -> Option<Duration> {
        let asked = self.entry.as_ref()?.run_after().map(Duration::from_secs)?;
        Some(if self.is_silent { asked.max(LIMIT) } else { asked })
    }

    /// What the daemon does for it.
    pub fn duties(&self) -> Duties {
        self.duties.clone()
    }

    /// Whether its server is told to write nothing.
    pub fn is_read_only(&self) -> bool {
        self.words.iter().any(|word| word == "--read-only")
    }

    /// The command line of its server. `run`: members were waited for in vain.
    pub fn serve_words(&self, run: bool) -> Vec<String> {
        let mut words = vec!["serve".to_owned()];
        words.extend(self.words.iter().cloned());
        words.push("--joined".to_owned());
        words.extend(run.then(|| "--run".to_owned()));
        let by_uuid = self.by_uuid.or_else(|| self.uuid().filter(|_| !self.only_on_servers().is_empty()));
        words.extend(by_uuid.map(|uuid| format!("--uuid={uuid}")));
        // The devices' names may be another array's by the time that they are opened, or at the next start.
        words.extend(self.uuid().filter(|_| by_uuid.is_none()).map(|uuid| format!("--expect-uuid={uuid}")));
        words.extend(self.called.iter().map(|called| format!("--called={called}")));
        words.push("--".to_owned());
        let found = self.found.iter().flat_map(FoundArray::needed).map(|member| &member.path);
        let only = self.only_on_servers();
        words.extend(found.chain(&self.servers).chain(&only).map(|path| path.display().to_string()));
        words
    }

    /// What has joined it on servers, where nothing on this machine leads to that.
    fn only_on_servers(&self) -> Vec<PathBuf> {
        let joined = self.joined.iter().filter(|joined| self.found.is_none() && joined.slot.is_some());
        let joined = joined.map(|joined| PathBuf::from(&joined.device));
        joined.filter(|path| !self.servers.iter().any(|named| are_one(named, path))).collect()
    }

    /// Devices that its server isn't given, in words.
    pub fn left_out(&self) -> Vec<String> {
        let left_out = self.found.iter().flat_map(FoundArray::left_out);
        let words = |path: &Path| {
            format!(
                "{} is left out: the array has gone on without it; `pinstripe add` rebuilds it",
                path.display()
            )
        };
        left_out.map(|member| words(&member.path)).collect()
    }

    /// Whether devices have not answered that may be members which it lacks.
    pub fn may_be_late(&self) -> bool {
        self.is_silent
    }

    pub fn state(&self) -> State {
        if let Some(why) = &self.unclear {
            return State::Hopeless(why.clone());
        }
        if let Some(control) = &self.served {
            return State::Served(control.clone());
        }
        let Some(found) = &self.found else {
            let why = "no member of it was found".to_owned();
            return match (self.servers.is_empty(), self.only_on_servers().is_empty()) {
                (false, _) => State::Ready,
                (true, false) => {
                    State::Perhaps(format!("{why} on this machine, and some have joined it on servers"))
                }
                (true, true) => State::Late { why, enough: false },
            };
        };
        if let Some(why) = found.obstacle() {
            return State::Hopeless(why);
        }
        if found.members.iter().any(|member| member.path.to_str().is_none()) {
            return State::Hopeless("a member's path is no UTF-8: name it by another one".to_owned());
        }
        let (mut missing, mut awaited) = (found.missing(), found.awaited());
        let may_be_on_server = |slot: usize| self.joined.iter().any(|joined| joined.slot == Some(slot));
        missing.retain(|slot| !may_be_on_server(*slot));
        awaited.retain(|slot| !may_be_on_server(*slot));
        let parity = usize::from(found.freshest.array.level.parity_count());
        if !self.servers.is_empty() {
            return beside_servers(missing.len(), awaited.len(), self.servers.len(), parity);
        }
        if missing.len() > parity {
            let words = format!("too few members are here: {}", slots(&missing, "missing"));
            return State::Late { why: words, enough: false };
        }
        if found.lacks_journal() {
            let why = "its journal is missing: `pinstripe serve --force` starts it without, and resyncs it"
                .to_owned();
            return State::Late { why, enough: false };
        }
        if awaited.is_empty() {
            return State::Ready;
        }
        if self.unread > 0 {
            // One that hangs, or that nothing reads, may do so for ever: `run-after` decides here, too.
            let words = slots(&awaited, "missing");
            let why = format!("{words}, and may be on a device that could not be read: see to that first");
            return State::Late { why, enough: true };
        }
        State::Late { why: format!("{}: {WITHOUT}", slots(&awaited, "missing")), enough: true }
    }
}

/// What is to become of an array with members on so many servers' namespaces. Which slots these have, only
/// `serve` sees: any of those that this machine `lacks`, of which the superblocks say that so many had a
/// member when it was used last.
fn beside_servers(lacks: usize, awaited: usize, servers: usize, parity: usize) -> State {
    let words = |count: usize| format!("{count} more of its members on this machine must be here");
    if lacks <= servers {
        State::Ready
    } else if lacks > servers + parity {
        State::Late { why: words(lacks - servers), enough: false }
    } else if awaited > servers {
        State::Late { why: format!("{}: {WITHOUT}", words(awaited - servers)), enough: true }
    } else {
        let why = "a server's member may be among those that it has lost, and one of this machine's be late";
        State::Perhaps(why.to_owned())
    }
}

/// The arrays that are meant, and what a person should know. `limit`: how long a device may take to answer.
pub fn wanted(
    configuration: &Configuration,
    which: &Which,
    limit: Duration,
) -> Result<(Vec<Wanted>, Vec<String>), Failure> {
    let (of_entries, others, mut remarks) = look(configuration, !which.scan || configuration.scan.all, limit);
    let all = select(which, configuration.scan.all, of_entries, others)?;
    remarks.extend(all.iter().filter_map(Wanted::renamed));
    Ok((all, remarks))
}

/// Those that are to be kept served, and those with `auto = false` that are served by now.
pub fn watched(configuration: &Configuration, limit: Duration) -> (Vec<Wanted>, Vec<String>) {
    let (of_entries, others, mut remarks) = look(configuration, configuration.scan.all, limit);
    let is_watched = |wanted: &Wanted| wanted.is_started() || matches!(wanted.state(), State::Served(_));
    let all = to_start(configuration.scan.all, of_entries, others, is_watched);
    remarks.extend(all.iter().filter_map(Wanted::renamed));
    (all, remarks)
}

/// Those that have an entry, those that have none, and what a person should know. `all`: whether members are
/// searched for also where each entry says where its own are.
fn look(
    configuration: &Configuration,
    all: bool,
    limit: Duration,
) -> (Vec<Wanted>, Vec<Wanted>, Vec<String>) {
    let (served, mut remarks) = Served::all();
    let mut look = Look::at(configuration, &configuration.arrays.iter().collect::<Vec<_>>(), all, limit);
    remarks.append(&mut look.remarks);
    let entries = configuration.arrays.iter();
    let of_entry = |entry| of_entry(configuration, entry, look.of(entry), &look.arrays(), &served);
    let mut of_entries: Vec<Wanted> = entries.map(of_entry).collect();
    refuse_doubled(&mut of_entries);
    // What an entry is about is for that entry to say, also where it is unclear or its members are elsewhere.
    let has_entry =
        |found: &&FoundArray| configuration.arrays.iter().any(|entry| entry.is(found.uuid, &found.name));
    let others = look.everywhere.arrays.iter().filter(|found| !has_entry(found));
    let without = |found: &FoundArray| {
        without_entry(configuration, found.clone(), &look.everywhere, &look.arrays(), &served)
    };
    let others = others.map(without).collect();
    (of_entries, others, remarks)
}

/// The one of `entry`. `is_free`: as if the kernel had let it go.
pub fn of_one(configuration: &Configuration, entry: &Array, is_free: bool) -> Wanted {
    // Another one may be called the same, or it isn't known before a look.
    let own = entry.name.as_deref().map(short_name);
    let is_rival = |name: &str| own.is_none_or(|own| in_dev(own) == in_dev(short_name(name)));
    let entries = configuration.arrays.iter();
    let entries: Vec<&Array> = entries.filter(|other| other.name.as_deref().is_none_or(is_rival)).collect();
    let mut look = Look::at(configuration, &entries, false, LIMIT);
    for found in look.all_arrays_mut().filter(|found| is_free && entry.is(found.uuid, &found.name)) {
        for member in &mut found.members {
            member.holders.clear();
        }
    }
    of_entry(configuration, entry, look.of(entry), &look.arrays(), &Served::all().0)
}

/// What was found where members are searched for.
struct Look<'a> {
    /// Where those entries have their members that don't say where.
    everywhere: Seen,
    /// Where others say that they are.
    own: Vec<(&'a Array, Seen)>,
    remarks: Vec<String>,
}

impl<'a> Look<'a> {
    /// Looks where these entries say; everywhere in any case where `all` is true.
    fn at(configuration: &Configuration, entries: &[&'a Array], all: bool, limit: Duration) -> Self {
        let mut everywhere = Seen::default();
        // All that an entry names may have been replaced by now.
        let elsewhere = entries.iter().filter(|entry| entry.members.is_empty());
        if all || elsewhere.clone().next().is_some() {
            let asked: Vec<Uuid> = elsewhere.filter_map(|entry| entry.uuid).collect();
            everywhere = joined::scan_within(configuration.scan.devices.as_deref(), limit, &asked);
        }
        let own = entries.iter().filter(|entry| !entry.members.is_empty());
        let own: Vec<(&Array, Seen)> = own
            .map(|entry| (*entry, joined::scan_within(Some(&entry.members), limit, entry.uuid.as_slice())))
            .collect();
        let all = iter::once(&everywhere).chain(own.iter().map(|(_, seen)| seen));
        let remarks = all.flat_map(|seen| seen.remarks.clone()).collect();
        Self { everywhere, own, remarks }
    }

    /// What was found where an entry says.
    fn of(&self, entry: &Array) -> &Seen {
        let own = self.own.iter().find(|(own, _)| own.place == entry.place);
        own.map_or(&self.everywhere, |(_, seen)| seen)
    }

    /// All arrays, wherever they were found: which of them has a name is for all of them the same.
    fn arrays(&self) -> Vec<&FoundArray> {
        let all = iter::once(&self.everywhere).chain(self.own.iter().map(|(_, seen)| seen));
        all.flat_map(|seen| &seen.arrays).collect()
    }

    fn all_arrays_mut(&mut self) -> impl Iterator<Item = &mut FoundArray> {
        let all = iter::once(&mut self.everywhere).chain(self.own.iter_mut().map(|(_, seen)| seen));
        all.flat_map(|seen| &mut seen.arrays)
    }
}

/// The one of `entry`, of which `seen` has what is found, and `all` every array.
fn of_entry(
    configuration: &Configuration,
    entry: &Array,
    seen: &Seen,
    all: &[&FoundArray],
    served: &[Served],
) -> Wanted {
    let mut matching = seen.arrays.iter().filter(|found| entry.is(found.uuid, &found.name));
    let (found, second) = (matching.next(), matching.next());
    let unclear = found.zip(second).map(|(one, other)| {
        format!("{} and {} both have this name: give the uuid in {}", one.uuid, other.uuid, entry.place)
    });
    let names = expand(&entry.members).paths.into_iter();
    let unit = units::unit(configuration, entry);
    // A unit that is called by the name is stopped by it, and would stop another array.
    let goes_by_uuid =
        |found: &FoundArray| unit.as_ref().is_none_or(|unit| unit.contains(&found.uuid.to_string()));
    let beside = found.filter(|found| goes_by_uuid(found));
    let called = beside.and_then(|found| called_here(configuration, found, all, served));
    let mut wanted = Wanted {
        label: entry.label(),
        found: found.cloned(),
        servers: names.filter(|path| is_server(&path.to_string_lossy())).collect(),
        joined: found.map(|found| found.uuid).or(entry.uuid).map(joined::on_servers).unwrap_or_default(),
        unit,
        words: entry.words(),
        served: None,
        unclear,
        unread: seen.unread,
        is_silent: seen.is_silent,
        by_uuid: None,
        called,
        duties: entry.duties.clone(),
        entry: Some(entry.clone()),
    };
    if let Some(uuid) = entry.uuid {
        // What two of them ask for is as unclear as before.
        wanted.ask_for(uuid, |other| configuration.arrays.iter().all(|entry| entry.uuid != Some(other)));
    }
    wanted.served = wanted.server_in(served);
    wanted
}

fn without_entry(
    configuration: &Configuration,
    found: FoundArray,
    seen: &Seen,
    all: &[&FoundArray],
    served: &[Served],
) -> Wanted {
    let own = Settings::new();
    let defaults = defaults_for(&configuration.defaults, &own);
    let mut wanted = Wanted {
        label: found.short_name(),
        entry: None,
        called: called_here(configuration, &found, all, served),
        duties: configuration.duties.clone(),
        joined: joined::on_servers(found.uuid),
        found: Some(found),
        servers: Vec::new(),
        unit: None,
        words: defaults.flat_map(|(name, setting)| setting.words(name)).collect(),
        served: None,
        unclear: None,
        unread: seen.unread,
        is_silent: seen.is_silent,
        by_uuid: None,
    };
    wanted.served = wanted.server_in(served);
    wanted
}

/// What an array is called, if another one of its name keeps that.
fn called_here(
    configuration: &Configuration,
    found: &FoundArray,
    all: &[&FoundArray],
    served: &[Served],
) -> Option<String> {
    let name = found.short_name();
    let is_one = |other: &str| in_dev(other) == in_dev(&name);
    let folder = place::folders().swap_remove(0);
    let has_it = |served: &&Served| {
        let stem = served.control.file_stem().and_then(OsStr::to_str);
        served.control.parent() == Some(folder.as_path()) && stem.is_some_and(is_one)
    };
    let holder = served.iter().find(has_it);
    let host = host();
    let entry = |other: &FoundArray| {
        let entries = configuration.arrays.iter().filter(|entry| entry.auto);
        let own = entries.filter(|entry| entry.is(other.uuid, &other.name));
        let by = own.map(|entry| if entry.name.is_some() { Entry::Name } else { Entry::Uuid });
        by.min().unwrap_or(Entry::None)
    };
    let socket = |other: &FoundArray| folder.join(format!("{}.sock", other.short_name()));
    let claim = |other: &FoundArray| Claim {
        is_new: place::by_uuid(&other.uuid.to_string()) != Some(socket(other)),
        entry: entry(other),
        is_foreign: is_foreign(&other.name, &host),
        uuid: other.uuid,
    };
    let rivals = all.iter().copied().filter(|other| is_one(&other.short_name()));
    let claims: Vec<Claim> = rivals.filter(|other| other.obstacle().is_none()).map(claim).collect();
    called(&name, found.uuid, holder.and_then(|served| served.detail.uuid.parse().ok()), &claims)
}

/// Two entries can turn out to be of one array: one by its uuid, the other by its name.
fn refuse_doubled(wanted: &mut [Wanted]) {
    for index in 1..wanted.len() {
        let (before, rest) = wanted.split_at_mut(index);
        let is_same = |other: &&mut Wanted| other.uuid().is_some() && other.uuid() == rest[0].uuid();
        if let Some(other) = before.iter_mut().find(is_same) {
            let place = |wanted: &Wanted| {
                wanted.entry.as_ref().map(|entry| entry.place.to_string()).unwrap_or_default()
            };
            let (one, two) = (place(other), place(&rest[0]));
            let why = format!("the entries {one} and {two} are of one array: keep one of them");
            rest[0].unclear.get_or_insert_with(|| why.clone());
            other.unclear.get_or_insert(why);
        }
    }
}

/// What no person has named: of entries those that are meant, and what has none if the configuration says
/// `assemble = "all"`. That doesn't mean what the kernel has, or what we can't serve.
fn to_start(
    all: bool,
    of_entries: Vec<Wanted>,
    others: Vec<Wanted>,
    is_meant: impl Fn(&Wanted) -> bool,
) -> Vec<Wanted> {
    let is_free = |wanted: &Wanted| wanted.found.as_ref().is_some_and(|found| found.obstacle().is_none());
    let others = others.into_iter().filter(|wanted| all && is_free(wanted));
    of_entries.into_iter().filter(is_meant).chain(others).collect()
}

/// Those that are asked for. What has no entry is only started if a person names it, or the configuration
/// says `assemble = "all"`.
fn select(
    which: &Which,
    all: bool,
    of_entries: Vec<Wanted>,
    others: Vec<Wanted>,
) -> Result<Vec<Wanted>, Failure> {
    if which.scan {
        return Ok(to_start(all, of_entries, others, Wanted::is_started));
    }
    // A UUID as it is printed is longer than any name.
    let uuid =
        which.uuid.or_else(|| which.name.as_ref().filter(|name| name.len() > NAME_BYTES_MAX)?.parse().ok());
    let is_meant = |wanted: &Wanted| match (uuid, &which.name) {
        (Some(uuid), _) => wanted.uuid() == Some(uuid),
        (None, Some(name)) => wanted.is_called(name),
        (None, None) => false,
    };
    let mut configured: Vec<Wanted> = of_entries.into_iter().filter(is_meant).collect();
    if uuid.is_none() {
        // An entry that says the name is meant before one whose array turns out to have it: its unit asks so.
        let says_it = |wanted: &Wanted| {
            let own = wanted.entry.as_ref().and_then(|entry| entry.name.as_deref());
            own.map(short_name) == which.name.as_deref()
        };
        if configured.iter().filter(|wanted| says_it(wanted)).count() == 1 {
            configured.retain(says_it);
        }
    }
    let mut meant =
        if configured.is_empty() { others.into_iter().filter(is_meant).collect() } else { configured };
    let asked = match (&uuid, &which.name) {
        (Some(uuid), _) => format!("the UUID {uuid}"),
        (None, name) => format!("the name {}", name.as_deref().unwrap_or_default()),
    };
    // A person decides by `--uuid`. The unit of an entry asks by its name, which may be a UUID, and so does
    // that of another entry: what both ask for is as unclear as before.
    if let Some(uuid) = uuid {
        for wanted in meant.iter_mut().filter(|wanted| which.uuid.is_some() || wanted.entry.is_none()) {
            wanted.ask_for(uuid, |_| true);
        }
    }
    if meant.is_empty() {
        return Err(Failure::new(format!(
            "no array with {asked} is configured or was found: `pinstripe examine --scan` shows what is found"
        )));
    }
    if meant.len() > 1 {
        for wanted in &mut meant {
            wanted
                .unclear
                .get_or_insert_with(|| format!("several arrays have {asked}: start it by its --uuid"));
        }
    }
    Ok(meant)
}

impl Wanted {
    /// Says that another array has its name, where it is still to be served.
    fn renamed(&self) -> Option<String> {
        let called = self.called.as_ref().filter(|_| self.served.is_none() && self.unclear.is_none())?;
        let (label, uuid) = (&self.label, self.uuid()?);
        Some(format!("{label}: another array has this name, so the array {uuid} is served as {called}"))
    }

    /// This array is asked for by its UUID: so devices are its own that may be another one's as well, if that
    /// one isn't asked for.
    fn ask_for(&mut self, uuid: Uuid, is_unasked: impl Fn(Uuid) -> bool) {
        let Some(found) = self.found.as_mut().filter(|found| found.uuid == uuid) else { return };
        let before = found.contested.len();
        found.contested.retain(|contested| contested.other == uuid || !is_unasked(contested.other));
        if found.contested.len() < before {
            self.by_uuid = Some(uuid);
        }
    }

    fn is_called(&self, name: &str) -> bool {
        let entry = self.entry.as_ref().and_then(|entry| entry.name.as_deref());
        let found = self.found.as_ref().map(|found| found.name.as_str());
        self.name().as_deref() == Some(name) || entry == Some(name) || found == Some(name)
    }

    /// The control socket of the server that has it.
    pub fn server_in(&self, served: &[Served]) -> Option<PathBuf> {
        let name = self.entry.as_ref().and_then(|entry| entry.name.as_deref());
        let is_it = |served: &&Served| match self.uuid() {
            Some(uuid) => served.is(uuid),
            None => name.is_some_and(|name| served.may_be(name)),
        };
        served.iter().find(is_it).map(|served| served.control.clone())
    }

    /// By which it is known again at another look, and when the configuration has changed.
    pub fn identity(&self) -> String {
        let own = self.entry.as_ref().map(Array::identity);
        own.or_else(|| self.uuid().map(|uuid| uuid.to_string())).unwrap_or_default()
    }

    /// What it is called, and what no other array has.
    pub fn names(&self) -> (String, String) {
        let uuid = self.uuid().map(|uuid| uuid.to_string());
        (self.label.clone(), uuid.unwrap_or_else(|| self.identity().trim().to_owned()))
    }

    /// By which it is told from others in one look.
    pub fn key(&self) -> String {
        let place = self.entry.as_ref().map(|entry| entry.place.to_string());
        place.or_else(|| self.uuid().map(|uuid| uuid.to_string())).unwrap_or_default()
    }
}

/// Where members of this entry are searched for; everywhere without.
pub fn searched<'a>(configuration: &'a Configuration, entry: &'a Array) -> Option<&'a [String]> {
    if entry.members.is_empty() { configuration.scan.devices.as_deref() } else { Some(&entry.members) }
}

/// Whether the configuration has members of this entry searched for on a device.
pub fn allows(configuration: &Configuration, entry: &Array, device: &Path) -> bool {
    let Some(names) = searched(configuration, entry) else { return true };
    is_over(device, &expand(names).paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_for_good_is_not_awaited_beside_members_on_servers() {
        let of = |lacks, awaited, servers, parity| match beside_servers(lacks, awaited, servers, parity) {
            State::Ready => "ready",
            State::Perhaps(_) => "perhaps",
            State::Late { enough: true, .. } => "late",
            State::Late { enough: false, .. } => "too few",
            State::Served(_) | State::Hopeless(_) => "other",
        };
        // Of a level with one parity chunk, and one member on a server.
        assert_eq!(of(1, 1, 1, 1), "ready");
        assert_eq!(of(2, 2, 1, 1), "late", "run-after decides");
        assert_eq!(of(2, 1, 1, 1), "perhaps", "the lost one was on this machine, or on the server");
        assert_eq!(of(3, 1, 1, 1), "too few", "whatever the server has");
        assert_eq!(of(3, 2, 2, 2), "perhaps");
        assert_eq!(of(4, 3, 2, 2), "late");
        assert_eq!(of(0, 0, 3, 1), "ready");
    }
}
