//! What the administrator says for good: `/etc/pinstripe/pinstripe.toml` and the files in `conf.d` beside it.
//!
//! [`Configuration::load`] reads all of it, and gives either a whole configuration or every error, each with
//! its file and line. Unknown keys are errors, for a key that is misspelt would be an order that is not
//! carried out. [`keys`] lists the keys.
//!
//! The values of options of `serve` are checked here by their type only. What they mean is for the command
//! line of `serve` to say: [`Array::words`] gives them as it takes them.
//!
//! What stands here decides which devices are written. So a file that other users could change or exchange
//! is refused.
#![forbid(unsafe_code)]

pub mod duties;
mod file;
pub mod keys;
mod members;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use pinstripe_md::identity::{Uuid, short_name};

pub use members::{Expanded, expand, is_server};

use duties::Duties;
pub use file::is_instance;
use file::{Owner, RawTls, RawWeb, Section};

/// Where the configuration is, unless it is said.
pub const MAIN: &str = "/etc/pinstripe/pinstripe.toml";
/// Names another main file.
pub const VARIABLE: &str = "PINSTRIPE_CONFIG";
/// The folder of further files, beside the main file.
const FOLDER: &str = "conf.d";

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; none for the whole file.
    pub line: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file.display()),
            None => write!(f, "{}", self.file.display()),
        }
    }
}

/// What is wrong at a place, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{place}: {what}")]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// A sentence.
    pub what: String,
}

/// All that is wrong; not empty. A line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// The value of an option of `serve`, of its key's [`keys::Kind`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `true` or `false`.
    Flag(bool),
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
    /// Several.
    List(Vec<String>),
}

/// A value, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// What.
    pub value: Value,
    /// Where.
    pub place: Place,
}

impl Setting {
    /// The words of the command line of `serve` that say this of the option `name`.
    pub fn words(&self, name: &str) -> Vec<String> {
        match &self.value {
            Value::Flag(true) => vec![format!("--{name}")],
            Value::Flag(false) => Vec::new(),
            Value::Number(number) => vec![format!("--{name}={number}")],
            Value::Text(text) => vec![format!("--{name}={text}")],
            Value::List(texts) => texts.iter().map(|text| format!("--{name}={text}")).collect(),
        }
    }
}

/// Options of `serve`, by name.
pub type Settings = BTreeMap<&'static str, Setting>;

/// An `[[array]]`, with what `[defaults]` says where it says nothing itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Where it stands.
    pub place: Place,
    /// Its identity. This or the name is there.
    pub uuid: Option<Uuid>,
    /// Its name.
    pub name: Option<String>,
    /// Where its members are, see [`expand`]; empty if scan is to find them.
    pub members: Vec<String>,
    /// Whether it is started without being asked for.
    pub auto: bool,
    /// The file for its server's log.
    pub log: Option<PathBuf>,
    /// What its unit gets beside others, as systemd counts it.
    pub weight: Option<u64>,
    /// The options of its server.
    pub settings: Settings,
    /// What the daemon does for it.
    pub duties: Duties,
}

impl Array {
    /// For a sentence.
    pub fn label(&self) -> String {
        match (&self.name, self.uuid) {
            (Some(name), _) => name.clone(),
            (None, Some(uuid)) => uuid.to_string(),
            (None, None) => self.place.to_string(),
        }
    }

    /// What it is known by when the configuration has changed.
    pub fn identity(&self) -> String {
        let uuid = self.uuid.map(|uuid| uuid.to_string()).unwrap_or_default();
        format!("{uuid} {}", self.name.as_deref().unwrap_or_default())
    }

    /// Whether this is the array `uuid`, called `name`, which may have its host before it.
    pub fn is(&self, uuid: Uuid, name: &str) -> bool {
        let short = short_name(name);
        self.uuid.is_none_or(|own| own == uuid)
            && self.name.as_ref().is_none_or(|own| own == name || own == short)
    }

    /// Seconds to wait for members that are late.
    pub fn run_after(&self) -> Option<u64> {
        match self.settings.get("run-after")?.value {
            Value::Number(seconds) => Some(seconds),
            _ => None,
        }
    }

    /// The options of its server, as the command line of `serve` takes them.
    pub fn words(&self) -> Vec<String> {
        self.settings.iter().flat_map(|(name, setting)| setting.words(name)).collect()
    }
}

/// A `[[target]]`: devices of this machine that hosts use over NVMe/TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where it stands.
    pub place: Place,
    /// What its unit is called.
    pub name: String,
    /// Absolute paths; the first one becomes namespace 1.
    pub devices: Vec<String>,
    /// Whether it is started without being asked for.
    pub auto: bool,
    /// The options of `pinstripe target`.
    pub settings: Settings,
}

/// `[scan]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Paths and globs; none for all block devices.
    pub devices: Option<Vec<String>>,
    /// Whether arrays without an `[[array]]` are started, too.
    pub all: bool,
}

/// How clients of the daemon's HTTP are secured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The folder with the certificates.
    pub certificates: PathBuf,
    /// Whether clients need one, too.
    pub certified: bool,
}

/// `[metrics]`: what programs read of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Where the daemon listens for HTTP.
    pub listen: Option<SocketAddr>,
    /// None for plain HTTP.
    pub tls: Option<Tls>,
}

/// `[web]`: the daemon's page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Web {
    /// Where the daemon serves it, see [`check_web`].
    pub listen: Option<SocketAddr>,
    /// The file with its token.
    pub token_file: Option<PathBuf>,
    /// None for plain HTTP.
    pub tls: Option<Tls>,
}

/// An address on which the page is to be served.
pub fn web_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "ADDRESS:PORT is needed, such as 127.0.0.1:9661 or [::1]:9661".to_owned())
}

/// Whether the page may be served there: with TLS anywhere, else on loopback addresses.
pub fn check_web(address: SocketAddr, tls: bool) -> Result<(), String> {
    if tls || address.ip().is_loopback() {
        return Ok(());
    }
    Err(format!(
        "without TLS the page is served on loopback addresses only, and {} is none: its token would cross the \
        network in the clear. Give \"tls-certificates\" in [web], or use 127.0.0.1 or [::1], and `ssh -L` from \
        elsewhere",
        address.ip()
    ))
}

/// `[alerts]`: where the daemon sends alerts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alerts {
    /// A program that is run for each.
    pub program: Option<PathBuf>,
    /// A mail address.
    pub mail: Option<String>,
    /// A URL that gets each as JSON.
    pub webhook: Option<String>,
}

/// All that the files say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// What programs read of the daemon.
    pub metrics: Metrics,
    /// Options of the daemon.
    pub daemon: Settings,
    /// The daemon's page.
    pub web: Web,
    /// Where alerts are sent.
    pub alerts: Alerts,
    /// Where members are searched for.
    pub scan: Scan,
    /// The arrays, in the order of the files.
    pub arrays: Vec<Array>,
    /// What hosts use over NVMe/TCP, in the order of the files.
    pub targets: Vec<Target>,
    /// What `[defaults]` says: for arrays that have no `[[array]]`.
    pub defaults: Settings,
    /// What it says that the daemon does for them.
    pub duties: Duties,
    /// The files that were read, as they can be told of: a name that is no UTF-8 has other characters here.
    pub files: Vec<PathBuf>,
}

impl Configuration {
    /// Reads the main file and those in `conf.d` beside it, in the order of their names. The main file is
    /// `given`, or what the environment names, or [`MAIN`]; only the last may be missing.
    pub fn load(given: Option<&Path>) -> Result<Self, Problems> {
        Self::load_from(given, std::env::var_os(VARIABLE), None)
    }

    /// As [`Self::load`], as if the further file `path` were there and had this text.
    pub fn load_with(given: Option<&Path>, path: &Path, text: &str) -> Result<Self, Problems> {
        Self::load_from(given, std::env::var_os(VARIABLE), Some((path, text)))
    }

    /// Where alerts are sent, as far as that can be read: an array's entry with an error is no reason to tell
    /// nothing of the others.
    pub fn alerts(given: Option<&Path>) -> Alerts {
        let mut all = Alerts::default();
        for section in Reader::of(named(given, std::env::var_os(VARIABLE)), None).sections {
            if let Section::Alerts(alerts) = section {
                all.join(alerts);
            }
        }
        all
    }

    /// The arrays of entries that could be read, whatever else is wrong: their members are none of another
    /// program's for that. Nothing is to be started by it.
    pub fn known(given: Option<&Path>) -> Self {
        Reader::of(named(given, std::env::var_os(VARIABLE)), None).gather().configuration
    }

    /// As [`Self::load`], as far as it is right: an error in the entry of an array or a target is no reason
    /// to serve none of the others at a boot. An error if more than that can be wrong: in a file that can't
    /// be read, and in what holds for all arrays.
    pub fn load_usable(given: Option<&Path>) -> Result<Usable, Problems> {
        let Gathered { configuration, general, wrong } =
            Reader::of(named(given, std::env::var_os(VARIABLE)), None).gather();
        if !general.is_empty() {
            return Err(Problems(general));
        }
        let mut usable =
            Usable { configuration, wrong: Vec::new(), is_daemon_wrong: false, problems: Vec::new() };
        for (owner, problems) in wrong {
            match owner {
                Owner::Entry(place) => usable.wrong.push(place),
                Owner::Daemon => usable.is_daemon_wrong |= !problems.is_empty(),
            }
            usable.problems.extend(problems);
        }
        Ok(usable)
    }

    /// Whether the main file is [`MAIN`]: neither `given` nor the environment name another one.
    pub fn is_usual(given: Option<&Path>) -> bool {
        named(given, std::env::var_os(VARIABLE)).is_none()
    }

    /// The folder of the further files, where it is or would be.
    pub fn folder(given: Option<&Path>) -> PathBuf {
        beside(named(given, std::env::var_os(VARIABLE)).as_deref().unwrap_or(Path::new(MAIN)))
    }

    fn load_from(
        given: Option<&Path>,
        variable: Option<OsString>,
        further: Option<(&Path, &str)>,
    ) -> Result<Self, Problems> {
        let Gathered { configuration, general, wrong } = Reader::of(named(given, variable), further).gather();
        let mut problems: Vec<Problem> =
            general.into_iter().chain(wrong.into_iter().flat_map(|(_, problems)| problems)).collect();
        problems.sort();
        if problems.is_empty() { Ok(configuration) } else { Err(Problems(problems)) }
    }
}

impl Alerts {
    /// By which mail is sent.
    pub const SENDMAIL: &str = "/usr/sbin/sendmail";
    /// By which a URL gets an alert, wherever `$PATH` has it.
    pub const CURL: &str = "curl";

    /// What was said first counts.
    fn join(&mut self, Self { program, mail, webhook }: Self) {
        self.program = self.program.take().or(program);
        self.mail = self.mail.take().or(mail);
        self.webhook = self.webhook.take().or(webhook);
    }
}

/// A configuration with errors that are no reason to serve nothing.
#[derive(Clone, Debug)]
pub struct Usable {
    /// All of it, entries that are wrong among the others.
    pub configuration: Configuration,
    /// Where the entries begin that are wrong: nothing is to be served by them.
    pub wrong: Vec<Place>,
    /// Whether something is wrong that no array is served by: of alerts, metrics, the page or the daemon.
    pub is_daemon_wrong: bool,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

/// All of a configuration, and what is wrong with it.
struct Gathered {
    configuration: Configuration,
    /// What may be about anything.
    general: Vec<Problem>,
    wrong: Vec<(Owner, Vec<Problem>)>,
}

/// The main file, if it isn't the usual one.
fn named(given: Option<&Path>, variable: Option<OsString>) -> Option<PathBuf> {
    given.map(Path::to_owned).or_else(|| variable.map(PathBuf::from))
}

/// Whether a file is there, as far as is known: one that can't be looked at may say anything, and isn't to be
/// taken for none.
fn may_be_there(path: &Path) -> bool {
    path.symlink_metadata().map_or_else(|error| error.kind() != std::io::ErrorKind::NotFound, |_| true)
}

/// The folder of further files beside a main file.
fn beside(main: &Path) -> PathBuf {
    main.parent().unwrap_or(Path::new("")).join(FOLDER)
}

/// What has been read so far.
#[derive(Default)]
struct Reader {
    files: Vec<PathBuf>,
    sections: Vec<Section>,
    problems: Vec<Problem>,
}

impl Reader {
    /// Reads the main file and those beside it. `named`: another main file than the usual one.
    fn of(named: Option<PathBuf>, further: Option<(&Path, &str)>) -> Self {
        let (is_named, main) = (named.is_some(), named.unwrap_or_else(|| PathBuf::from(MAIN)));
        let mut reader = Self::default();
        if is_named || may_be_there(&main) {
            reader.read(&main);
        }
        for file in reader.files_in(&beside(&main)) {
            if further.is_none_or(|(path, _)| path != file) {
                reader.read(&file);
            }
        }
        if let Some((path, text)) = further {
            reader.take(path, text);
        }
        reader
    }

    fn files_in(&mut self, folder: &Path) -> Vec<PathBuf> {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                let place = Place { file: folder.to_owned(), line: None };
                self.problems.push(Problem { place, what: format!("the folder can't be read: {error}") });
                return Vec::new();
            }
        };
        let mut paths = Vec::new();
        for entry in entries {
            match entry {
                Ok(entry) => paths.push(entry.path()),
                Err(error) => {
                    let place = Place { file: folder.to_owned(), line: None };
                    self.problems.push(Problem { place, what: format!("the folder can't be read: {error}") });
                    break;
                }
            }
        }
        // A name that begins with a dot is an editor's.
        let is_ours = |path: &PathBuf| {
            path.extension().is_some_and(|extension| extension == "toml")
                && path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with('.'))
        };
        let mut files: Vec<PathBuf> = paths.into_iter().filter(is_ours).collect();
        files.sort();
        files
    }

    fn take(&mut self, path: &Path, text: &str) {
        self.sections.extend(file::sections(path, text, &mut self.problems));
    }

    fn read(&mut self, path: &Path) {
        self.files.push(PathBuf::from(path.to_string_lossy().into_owned()));
        match file::read(path) {
            Ok(text) => self.take(path, &text),
            Err(what) => {
                let place = Place { file: path.to_owned(), line: None };
                self.problems.push(Problem { place, what });
            }
        }
    }

    fn gather(self) -> Gathered {
        let Self { files, sections, problems: mut general } = self;
        let mut wrong = Vec::new();
        let mut of_daemon = Vec::new();
        let mut configuration = Configuration { files, ..Configuration::default() };
        let mut auto = None;
        let mut places = BTreeMap::new();
        let (mut web_tls, mut metrics_tls, mut page) = (RawTls::default(), RawTls::default(), None);
        let mut arrays = Vec::new();
        for section in sections {
            match section {
                Section::Key(name, place) => {
                    if let Some(first) = places.insert(name.clone(), place.clone()) {
                        let about = if file::is_of_arrays(&name) { &mut general } else { &mut of_daemon };
                        about.push(twice(&name, place, &first));
                    }
                }
                Section::Defaults(defaults) => {
                    configuration.defaults.extend(defaults.settings);
                    auto = defaults.auto.or(auto);
                    configuration.duties = defaults.duties.or(&configuration.duties);
                }
                Section::Scan(scan) => {
                    configuration.scan.devices = configuration.scan.devices.take().or(scan.devices);
                    configuration.scan.all |= scan.all;
                }
                Section::Alerts(alerts) => configuration.alerts.join(alerts),
                Section::Web(RawWeb { listen, token_file, tls }) => {
                    let web = &mut configuration.web;
                    web.listen = web.listen.or(listen.as_ref().map(|(address, _)| *address));
                    web.token_file = web.token_file.take().or(token_file);
                    page = page.or(listen);
                    web_tls.join(tls);
                }
                Section::Daemon(settings) => configuration.daemon.extend(settings),
                Section::Metrics(listen, tls) => {
                    configuration.metrics.listen = configuration.metrics.listen.or(listen);
                    metrics_tls.join(tls);
                }
                Section::Target(target) => configuration.targets.push(target),
                Section::Array(array) => arrays.push(array),
                Section::Wrong(owner, problems) => wrong.push((owner, problems)),
            }
        }
        configuration.web.tls = web_tls.whole(&mut of_daemon);
        configuration.metrics.tls = metrics_tls.whole(&mut of_daemon);
        of_daemon.extend(page.and_then(|page| refused_page(page, configuration.web.tls.is_some())));
        wrong.push((Owner::Daemon, of_daemon));
        wrong.extend(targets_named_twice(&configuration.targets));
        for file::RawArray { mut array, auto: own } in arrays {
            array.auto = own.or(auto).unwrap_or(true);
            array.duties = array.duties.or(&configuration.duties);
            let defaults: Vec<_> = defaults_for(&configuration.defaults, &array.settings).collect();
            for (name, setting) in defaults {
                array.settings.entry(name).or_insert_with(|| setting.clone());
            }
            if let Some(other) = configuration.arrays.iter().find(|other| is_twice(other, &array)) {
                let what = format!("the array {}", array.label());
                wrong.extend(both(&what, &array.place, &other.place));
            }
            configuration.arrays.push(array);
        }
        Gathered { configuration, general, wrong }
    }
}

/// What `[defaults]` says of an array with these settings of its own. What only makes sense with another
/// option, which this array lacks, is for others.
pub fn defaults_for<'a>(
    defaults: &'a Settings,
    own: &Settings,
) -> impl Iterator<Item = (&'static str, &'a Setting)> {
    let goes_with = |name: &str| match name {
        "dhchap-hosts" | "nvme-tls-hosts" => Some("nvme-tcp"),
        "spare-pool-delay" => Some("spare-pool"),
        _ => None,
    };
    defaults.iter().filter_map(move |(name, setting)| {
        let has = |other: &str| own.contains_key(other) || defaults.contains_key(other);
        goes_with(name).is_none_or(has).then_some((*name, setting))
    })
}

/// What is wrong with the page's address.
fn refused_page((address, place): (SocketAddr, Place), by_tls: bool) -> Option<Problem> {
    let what = check_web(address, by_tls).err()?;
    Some(Problem { place, what: format!("\"listen\": {what}") })
}

fn targets_named_twice(targets: &[Target]) -> impl Iterator<Item = (Owner, Vec<Problem>)> {
    let twice = targets.iter().enumerate().filter_map(|(index, target)| {
        let first = targets[..index].iter().find(|other| other.name == target.name)?;
        Some(both(&format!("the target {}", target.name), &target.place, &first.place))
    });
    twice.flatten()
}

/// Two entries of one thing: which of them is meant is not to be guessed. The later one is named.
fn both(what: &str, later: &Place, first: &Place) -> [(Owner, Vec<Problem>); 2] {
    let problem = twice(what, later.clone(), first);
    [(Owner::Entry(later.clone()), vec![problem]), (Owner::Entry(first.clone()), Vec::new())]
}

fn is_twice(one: &Array, other: &Array) -> bool {
    match (one.uuid, other.uuid) {
        (Some(one), Some(other)) => one == other,
        _ => one.name.is_some() && one.name == other.name,
    }
}

fn twice(what: &str, place: Place, first: &Place) -> Problem {
    Problem { place, what: format!("{what} stands in {first} already: keep one of them") }
}

#[cfg(test)]
mod tests;
