//! One file: TOML, and each key of it checked. All errors are gathered, so that one look shows them all.

use std::{
    borrow::Cow,
    fs,
    net::SocketAddr,
    ops::Range,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use pinstripe_control::{place::stem, text::printable};
use pinstripe_md::identity::{Uuid, short_name};
use pinstripe_runtime::trust::check_place;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::{
    Alerts, Array, Place, Problem, Scan, Setting, Settings, Target, Tls, Value,
    duties::Duties,
    keys::{
        ALERTS, ARRAY, AUTO, DAEMON, DUTIES, Key, Kind, METRICS, OPTIONS, OptionKey, SCAN, TARGET,
        TARGET_OPTIONS, WEB, Where,
    },
    members, web_address,
};

/// Bytes of a file at most: what is longer is something else.
const BYTES_MAX: u64 = 1 << 20;
/// Writable by the group or by all.
const OTHERS_WRITE: u32 = 0o022;

/// Whether a name can be the instance of a unit.
pub fn is_instance(name: &str) -> bool {
    let stays = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '-' | '_' | '.');
    // Commands would take a dash at its begin for an option's.
    !name.is_empty() && !name.starts_with('-') && name.chars().all(stays)
}

/// A part of a file.
pub enum Section {
    /// `[defaults]`.
    Defaults(Defaults),
    /// `[scan]`.
    Scan(Scan),
    /// `[metrics]`.
    Metrics(Option<SocketAddr>, RawTls),
    /// `[daemon]`.
    Daemon(Settings),
    /// `[web]`.
    Web(RawWeb),
    /// `[alerts]`.
    Alerts(Alerts),
    /// `[[array]]`.
    Array(RawArray),
    /// `[[target]]`.
    Target(Target),
    /// A key of a section that isn't an array's, which can stand in one file only.
    Key(String, Place),
    /// What is wrong with an entry, and with nothing else: of an array, a target, or one of neither.
    Wrong(Owner, Vec<Problem>),
}

/// What an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The entry of an array or a target that begins here.
    Entry(Place),
    /// What serves no array: alerts, metrics, the page, the daemon.
    Daemon,
}

/// Sections that say how arrays are served; what is wrong with another one keeps none from being served.
const OF_ALL_ARRAYS: [&str; 2] = ["defaults", "scan"];

/// Whether a key, as [`Section::Key`] has it, is about how arrays are served.
pub fn is_of_arrays(key: &str) -> bool {
    OF_ALL_ARRAYS.iter().any(|section| key.starts_with(&format!("[{section}]")))
}

/// See [`Section`].
#[derive(Default)]
pub struct Defaults {
    pub settings: Settings,
    pub auto: Option<bool>,
    pub duties: Duties,
}

/// `[web]`, of one of several files.
#[derive(Default)]
pub struct RawWeb {
    /// With the place of the address.
    pub listen: Option<(SocketAddr, Place)>,
    pub token_file: Option<PathBuf>,
    pub tls: RawTls,
}

/// Keys of TLS, which may stand in several files.
#[derive(Default)]
pub struct RawTls {
    certificates: Option<PathBuf>,
    /// Whether clients need certificates, and where that stands.
    certified: Option<(bool, Place)>,
}

impl RawTls {
    /// Takes what this lacks.
    pub fn join(&mut self, other: Self) {
        self.certificates = self.certificates.take().or(other.certificates);
        self.certified = self.certified.take().or(other.certified);
    }

    /// All of it together.
    pub fn whole(self, problems: &mut Vec<Problem>) -> Option<Tls> {
        match (self.certificates, self.certified) {
            (Some(certificates), certified) => {
                Some(Tls { certificates, certified: certified.is_some_and(|(certified, _)| certified) })
            }
            (None, Some((_, place))) => {
                let what = "\"tls-clients\" counts only with \"tls-certificates\" in the same section";
                problems.push(Problem { place, what: what.to_owned() });
                None
            }
            (None, None) => None,
        }
    }
}

/// An array before the defaults are known.
pub struct RawArray {
    pub array: Array,
    pub auto: Option<bool>,
}

/// The text of a file, if only root and this user can have written it.
pub fn read(path: &Path) -> Result<String, String> {
    let failed = |error| format!("the configuration can't be read: {error}");
    let metadata = fs::metadata(path).map_err(failed)?;
    // Opening a fifo would wait for its other end.
    if !metadata.is_file() || metadata.len() > BYTES_MAX {
        return Err("this is no configuration: a file of at most 1 MiB is needed".to_owned());
    }
    check_place(path).map_err(|error| format!("the configuration can't be trusted: {error}"))?;
    let mode = metadata.mode() & 0o7777;
    if mode & OTHERS_WRITE != 0 {
        return Err(format!(
            "the configuration can be written by other users (mode {mode:04o}), and it decides which devices are written: chmod go-w it"
        ));
    }
    fs::read_to_string(path).map_err(failed)
}

/// The sections of a file's `text`.
pub fn sections(path: &Path, text: &str, problems: &mut Vec<Problem>) -> Vec<Section> {
    let mut file = File { path, text, problems };
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        // What stands in for a value that can't be read would be complained about again.
        for error in errors {
            file.problem(error.span().unwrap_or_default(), error.message().to_owned());
        }
        return Vec::new();
    }
    let mut sections = Vec::new();
    for (key, value) in table.get_ref() {
        let span = value.span();
        let name = key.get_ref();
        if let ("defaults" | "scan" | "alerts" | "metrics" | "daemon" | "web", DeValue::Table(table)) =
            (name.as_ref(), value.get_ref())
        {
            let of = |own: &Spanned<_>| (format!("[{name}] {}", own.get_ref()), file.place(&own.span()));
            sections.extend(table.keys().map(of).map(|(own, place)| Section::Key(own, place)));
        }
        let before = file.problems.len();
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("defaults", DeValue::Table(table)) => sections.push(Section::Defaults(file.defaults(table))),
            ("metrics", DeValue::Table(table)) => {
                let (listen, tls) = file.metrics(table);
                sections.push(Section::Metrics(listen, tls));
            }
            ("daemon", DeValue::Table(table)) => sections.push(Section::Daemon(file.daemon(table))),
            ("web", DeValue::Table(table)) => sections.push(Section::Web(file.web(table))),
            ("alerts", DeValue::Table(table)) => sections.push(Section::Alerts(file.alerts(table))),
            ("scan", DeValue::Table(table)) => sections.push(Section::Scan(file.scan(table))),
            ("target", DeValue::Array(all)) if all.iter().all(|target| target.get_ref().is_table()) => {
                for target in all {
                    let DeValue::Table(table) = target.get_ref() else { continue };
                    sections.extend(file.target(table, &target.span()).map(Section::Target));
                    sections.extend(file.wrong(before, Owner::Entry(file.place(&target.span()))));
                }
            }
            ("array", DeValue::Array(all)) if all.iter().all(|array| array.get_ref().is_table()) => {
                for array in all {
                    let DeValue::Table(table) = array.get_ref() else { continue };
                    sections.extend(file.array(table, &array.span()).map(Section::Array));
                    sections.extend(file.wrong(before, Owner::Entry(file.place(&array.span()))));
                }
            }
            ("defaults" | "scan" | "alerts" | "metrics" | "daemon" | "web", _) => {
                file.problem(span, format!("{} is a section: write [{}]", key.get_ref(), key.get_ref()));
            }
            (name @ ("array" | "target"), _) => {
                file.problem(span, format!("every {name} is a section of its own: write [[{name}]]"));
            }
            (name, _) => {
                let words = "there are [defaults], [scan], [metrics], [daemon], [web], [alerts], [[array]] and [[target]]";
                file.problem(key.span(), format!("unknown section or key \"{}\": {words}", printable(name)));
            }
        }
        if value.get_ref().is_table() && ["alerts", "metrics", "daemon", "web"].contains(&name.as_ref()) {
            sections.extend(file.wrong(before, Owner::Daemon));
        }
    }
    sections
}

struct File<'a> {
    path: &'a Path,
    text: &'a str,
    problems: &'a mut Vec<Problem>,
}

impl File<'_> {
    fn place(&self, span: &Range<usize>) -> Place {
        let line = 1 + self
            .text
            .char_indices()
            .take_while(|(at, _)| *at < span.start)
            .filter(|(_, c)| *c == '\n')
            .count();
        Place { file: self.path.to_owned(), line: Some(line) }
    }

    fn problem(&mut self, span: Range<usize>, what: String) {
        let place = self.place(&span);
        self.problems.push(Problem { place, what });
    }

    /// The problems behind the first `before`, as those of one part.
    fn wrong(&mut self, before: usize, owner: Owner) -> Option<Section> {
        let own = self.problems.split_off(before);
        (!own.is_empty()).then_some(Section::Wrong(owner, own))
    }

    fn unknown<'n>(
        &mut self,
        span: Range<usize>,
        name: &str,
        section: &str,
        known: impl Iterator<Item = &'n str>,
    ) {
        let known: Vec<&str> = known.collect();
        let name = printable(name);
        let words = match known.iter().find(|known| **known == name.replace('_', "-")) {
            Some(near) => format!("the key is \"{near}\""),
            None => format!("{section} has {}", known.join(", ")),
        };
        self.problem(span, format!("unknown key \"{name}\": {words}"));
    }

    fn defaults(&mut self, table: &DeTable<'_>) -> Defaults {
        let mut defaults = Defaults::default();
        let names = || OPTIONS.iter().filter(|key| key.place == Where::Anywhere).map(|key| key.name);
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            if name == AUTO.name {
                defaults.auto = self.flag(name, value);
            } else if OPTIONS.iter().any(|option| option.name == name && option.place == Where::Array) {
                let what =
                    format!("\"{name}\" can't hold for every array: give it in the [[array]] that it is for");
                self.problem(key.span(), what);
            } else if !self.option(name, value, &mut defaults.settings)
                && !self.duty(name, value, &mut defaults.duties)
            {
                let duties = DUTIES.iter().map(|key| key.name);
                self.unknown(key.span(), name, "[defaults]", names().chain([AUTO.name]).chain(duties));
            }
        }
        if let Some(ublk) = defaults.settings.get("ublk")
            && let Value::Number(_) = ublk.value
        {
            let what =
                "two arrays can't have one ublk number: write true here, or the number in an [[array]]";
            self.problems.push(Problem { place: ublk.place.clone(), what: what.to_owned() });
        }
        defaults
    }

    fn scan(&mut self, table: &DeTable<'_>) -> Scan {
        let mut scan = Scan::default();
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "devices" => {
                    let devices = self.devices("devices", value);
                    if let Some(name) = devices.iter().flatten().find(|name| members::is_server(name)) {
                        let what = format!(
                            "{name:?} is on a server, which isn't searched: name it in the members of its [[array]]"
                        );
                        self.problem(value.span(), what);
                    }
                    scan.devices = devices;
                }
                "assemble" => match value.get_ref().as_str() {
                    Some("configured") => {}
                    Some("all") => scan.all = true,
                    _ => {
                        let what = "\"assemble\" is \"configured\" or \"all\"".to_owned();
                        self.problem(value.span(), what);
                    }
                },
                name => self.unknown(key.span(), name, "[scan]", SCAN.iter().map(|key| key.name)),
            }
        }
        scan
    }

    /// The name and the value of a key, if it is one of those that the section has.
    fn entry(
        &mut self,
        section: &str,
        keys: &'static [Key],
        key: &Spanned<Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<(&'static str, Value)> {
        let name = key.get_ref().as_ref();
        let Some(known) = keys.iter().find(|known| known.name == name) else {
            self.unknown(key.span(), name, section, keys.iter().map(|key| key.name));
            return None;
        };
        Some((known.name, self.value(name, known.kind, value)?))
    }

    fn metrics(&mut self, table: &DeTable<'_>) -> (Option<SocketAddr>, RawTls) {
        let (mut listen, mut tls) = (None, RawTls::default());
        for (key, value) in table {
            let Some((name, Value::Text(text))) = self.entry("[metrics]", &METRICS, key, value) else {
                continue;
            };
            if name != "listen" {
                self.tls(name, text, &value.span(), &mut tls);
                continue;
            }
            listen = text.parse().ok();
            if listen.is_none() {
                let what = "\"listen\" is ADDRESS:PORT, such as \"127.0.0.1:9660\" or \"[::1]:9660\"";
                self.problem(value.span(), what.to_owned());
            }
        }
        (listen, tls)
    }

    fn daemon(&mut self, table: &DeTable<'_>) -> Settings {
        let mut settings = Settings::new();
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            if !self.option_of(&DAEMON, name, value, &mut settings) {
                self.unknown(key.span(), name, "[daemon]", DAEMON.iter().map(|key| key.name));
            }
        }
        settings
    }

    /// Takes an option that is one of `keys`; false if there is none of this name.
    fn option_of(
        &mut self,
        keys: &'static [OptionKey],
        name: &str,
        value: &Spanned<DeValue<'_>>,
        into: &mut Settings,
    ) -> bool {
        let Some(known) = keys.iter().find(|known| known.name == name) else { return false };
        let place = self.place(&value.span());
        if let Some(value) = self.value(name, known.kind, value) {
            into.insert(known.name, Setting { value, place });
        }
        true
    }

    /// Nothing if it lacks what it needs, which is said.
    fn target(&mut self, table: &DeTable<'_>, span: &Range<usize>) -> Option<Target> {
        let (mut name, mut devices, mut auto) = (None, None, None);
        let mut settings = Settings::new();
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "name" => name = self.instance(value),
                "devices" => devices = self.served_devices(value),
                "auto" => auto = self.flag("auto", value),
                name if self.option_of(&TARGET_OPTIONS, name, value, &mut settings) => {}
                name => {
                    let known = TARGET.iter().map(|key| key.name);
                    let known = known.chain(TARGET_OPTIONS.iter().map(|key| key.name));
                    self.unknown(key.span(), name, "[[target]]", known);
                }
            }
        }
        let needed = ["name", "devices", "listen", "nqn"];
        let missing: Vec<&str> = needed.into_iter().filter(|key| !table.contains_key(*key)).collect();
        if !missing.is_empty() {
            self.problem(span.clone(), format!("this [[target]] lacks {}", missing.join(", ")));
        }
        let place = self.place(span);
        Some(Target { place, name: name?, devices: devices?, auto: auto.unwrap_or(true), settings })
    }

    /// A name that can be part of a unit's.
    fn instance(&mut self, value: &Spanned<DeValue<'_>>) -> Option<String> {
        let Value::Text(name) = self.value("name", Kind::Text, value)? else { return None };
        if is_instance(&name) {
            return Some(name);
        }
        let what = "the name of a target has letters, digits, ':', '-', '_' and '.' only, and doesn't begin with '-'";
        self.problem(value.span(), what.to_owned());
        None
    }

    fn served_devices(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Vec<String>> {
        let Value::List(devices) = self.value("devices", Kind::List, value)? else { return None };
        let wrong = |device: &&String| !device.starts_with('/') || device.contains(['*', '?', '[']);
        if let Some(device) = devices.iter().find(wrong) {
            let what = format!(
                "{} isn't the absolute path of one device: the order of \"devices\" says which namespace each one is",
                printable(device)
            );
            self.problem(value.span(), what);
        } else if devices.is_empty() {
            self.problem(value.span(), "\"devices\" names nothing".to_owned());
        }
        Some(devices)
    }

    fn web(&mut self, table: &DeTable<'_>) -> RawWeb {
        let mut web = RawWeb::default();
        for (key, value) in table {
            let Some((name, Value::Text(text))) = self.entry("[web]", &WEB, key, value) else { continue };
            match name {
                "token-file" => web.token_file = Some(text.into()),
                "listen" => match web_address(&text) {
                    Ok(address) => web.listen = Some((address, self.place(&value.span()))),
                    Err(what) => self.problem(value.span(), format!("\"listen\": {what}")),
                },
                _ => self.tls(name, text, &value.span(), &mut web.tls),
            }
        }
        web
    }

    fn tls(&mut self, name: &str, text: String, span: &Range<usize>, tls: &mut RawTls) {
        match (name, text.as_str()) {
            ("tls-certificates", _) => tls.certificates = Some(text.into()),
            (_, "any" | "certified") => tls.certified = Some((text == "certified", self.place(span))),
            _ => self.problem(span.clone(), "\"tls-clients\" is \"any\" or \"certified\"".to_owned()),
        }
    }

    fn alerts(&mut self, table: &DeTable<'_>) -> Alerts {
        let mut alerts = Alerts::default();
        for (key, value) in table {
            let Some((name, Value::Text(text))) = self.entry("[alerts]", &ALERTS, key, value) else {
                continue;
            };
            let is_web = text.starts_with("https://") || text.starts_with("http://");
            let wrong = match name {
                "mail" if text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control()) => {
                    "a mail address has no spaces"
                }
                "webhook" if !is_web => "a webhook is a URL that begins with https:// or http://",
                _ => "",
            };
            if !wrong.is_empty() {
                self.problem(value.span(), format!("\"{name}\": {wrong}"));
                continue;
            }
            match name {
                "program" => alerts.program = Some(text.into()),
                "mail" => alerts.mail = Some(text),
                _ => alerts.webhook = Some(text),
            }
        }
        alerts
    }

    fn array(&mut self, table: &DeTable<'_>, span: &Range<usize>) -> Option<RawArray> {
        let mut array = Array {
            place: self.place(span),
            uuid: None,
            name: None,
            members: Vec::new(),
            auto: true,
            log: None,
            weight: None,
            settings: Settings::new(),
            duties: Duties::default(),
        };
        let mut auto = None;
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "uuid" => array.uuid = self.uuid(value),
                "name" => array.name = self.name(value),
                "members" => {
                    array.members = self.devices("members", value).unwrap_or_default();
                }
                "auto" => auto = self.flag("auto", value),
                "log" => {
                    array.log = self.value("log", Kind::Path, value).and_then(|value| match value {
                        Value::Text(path) => Some(path.into()),
                        _ => None,
                    });
                }
                "weight" => array.weight = self.weight(value),
                name => {
                    if !self.option(name, value, &mut array.settings)
                        && !self.duty(name, value, &mut array.duties)
                    {
                        let own = ARRAY.iter().chain(&DUTIES).map(|key| key.name);
                        let known = own.chain(OPTIONS.iter().map(|key| key.name));
                        self.unknown(key.span(), name, "[[array]]", known);
                    }
                }
            }
        }
        if !table.contains_key("uuid") && !table.contains_key("name") {
            let what = "this [[array]] doesn't say which array it is: give its uuid or its name (`pinstripe examine --scan` prints them)";
            self.problem(span.clone(), what.to_owned());
        }
        // What has neither is wrong, and said to be so.
        (array.uuid.is_some() || array.name.is_some()).then_some(RawArray { array, auto })
    }

    /// As systemd takes it.
    fn weight(&mut self, value: &Spanned<DeValue<'_>>) -> Option<u64> {
        let Value::Number(weight) = self.value("weight", Kind::Number, value)? else { return None };
        if !(1..=10_000).contains(&weight) {
            self.problem(value.span(), "\"weight\" is 1 to 10000".to_owned());
        }
        Some(weight)
    }

    fn uuid(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Uuid> {
        let Value::Text(text) = self.value("uuid", Kind::Text, value)? else { return None };
        match text.parse() {
            Ok(uuid) => Some(uuid),
            Err(error) => {
                self.problem(value.span(), printable(&format!("{error}")));
                None
            }
        }
    }

    fn name(&mut self, value: &Spanned<DeValue<'_>>) -> Option<String> {
        let Value::Text(name) = self.value("name", Kind::Text, value)? else { return None };
        let short = short_name(&name);
        // Such a name is no file's, so it would be one of nothing that a person could ask for.
        if stem(short, "/") != short || stem(&name, "/") != name || name.len() > 32 {
            let what = "a name has 1 to 32 bytes, no '/', nothing that can't be seen, and doesn't begin \
                with '.': name the array by its uuid";
            self.problem(value.span(), what.to_owned());
            return None;
        }
        Some(name)
    }

    fn flag(&mut self, name: &str, value: &Spanned<DeValue<'_>>) -> Option<bool> {
        match self.value(name, Kind::Flag, value)? {
            Value::Flag(flag) => Some(flag),
            _ => None,
        }
    }

    fn devices(&mut self, key: &str, value: &Spanned<DeValue<'_>>) -> Option<Vec<String>> {
        let Value::List(names) = self.value(key, Kind::List, value)? else { return None };
        if names.is_empty() {
            self.problem(
                value.span(),
                format!("\"{key}\" names nothing: leave the key out, or name devices"),
            );
        }
        for what in names.iter().filter_map(|name| members::check(name).err()) {
            self.problem(value.span(), what);
        }
        Some(names)
    }

    /// Takes an option of `serve`; false if there is none of this name.
    fn option(&mut self, name: &str, value: &Spanned<DeValue<'_>>, into: &mut Settings) -> bool {
        let Some(key) = OPTIONS.iter().find(|key| key.name == name) else { return false };
        let place = self.place(&value.span());
        if let Some(checked) = self.value(name, key.kind, value) {
            if let ("nbd", Value::List(addresses)) = (name, &checked)
                && addresses
                    .iter()
                    .any(|address| address.strip_prefix("unix:").is_some_and(|p| !p.starts_with('/')))
            {
                self.problem(value.span(), "a socket's path must be absolute: unix:/PATH".to_owned());
            }
            into.insert(key.name, Setting { value: checked, place });
        }
        true
    }

    /// Takes a duty of the daemon; false if there is none of this name.
    fn duty(&mut self, name: &str, value: &Spanned<DeValue<'_>>, into: &mut Duties) -> bool {
        if !DUTIES.iter().any(|key| key.name == name) {
            return false;
        }
        let Some(Value::Text(text)) = self.value(name, Kind::Text, value) else { return true };
        let taken = match name {
            "check-every" => {
                text.parse().map(|every| into.check_every = Some(every)).map_err(|e| e.to_string())
            }
            "check-window" => {
                text.parse().map(|window| into.check_window = Some(window)).map_err(|e| e.to_string())
            }
            "health" => text.parse().map(|health| into.health = Some(health)).map_err(|e| e.to_string()),
            _ if text.is_empty() => Err("a group has a name".to_owned()),
            _ => {
                into.spare_group = Some(text);
                Ok(())
            }
        };
        if let Err(what) = taken {
            self.problem(value.span(), format!("\"{name}\": {what}"));
        }
        true
    }

    /// A value of the right kind, or a problem.
    fn value(&mut self, name: &str, kind: Kind, value: &Spanned<DeValue<'_>>) -> Option<Value> {
        let number = |value: &DeValue<'_>| {
            let number = value.as_integer()?;
            u64::from_str_radix(number.as_str(), number.radix()).ok()
        };
        let found = value.get_ref();
        let text =
            |value: &DeValue<'_>| value.as_str().filter(|text| !text.contains('\0')).map(str::to_owned);
        let checked = match kind {
            Kind::Flag => found.as_bool().map(Value::Flag),
            Kind::Number => number(found).map(Value::Number),
            Kind::Text => text(found).map(Value::Text),
            Kind::Path => text(found).filter(|path| path.starts_with('/')).map(Value::Text),
            Kind::Size => number(found).map(Value::Number).or_else(|| text(found).map(Value::Text)),
            Kind::FlagOrNumber => {
                found.as_bool().map(Value::Flag).or_else(|| number(found).map(Value::Number))
            }
            Kind::List => found.as_array().and_then(|list| {
                list.iter().map(|entry| text(entry.get_ref())).collect::<Option<Vec<_>>>().map(Value::List)
            }),
        };
        if checked.is_none() {
            let kind = kind.in_words();
            self.problem(value.span(), format!("\"{name}\" must be {kind}"));
        }
        checked
    }
}
