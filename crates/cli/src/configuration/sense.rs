//! What of a configuration can't work though each key is right: two that want one address or one path. And
//! what is not there yet, which may still come.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use pinstripe_config::{
    Alerts, Array, Configuration, Place, Problem, Setting, Settings, Value, duties::Health,
};
use pinstripe_control::text::printable;
use pinstripe_export::tls::Clients;

use super::units::SECRETS;
use crate::{
    command_line::{Command, NbdAddress},
    serve,
};

/// The keys that name a folder of certificates.
const CERTIFICATES: &str = "tls-certificates";

/// What only one can have.
#[derive(PartialEq)]
enum Thing {
    Port(SocketAddr),
    Path(PathBuf),
}

/// What wants something.
struct Wish {
    key: String,
    place: Place,
    thing: Thing,
}

/// Two that want the same.
pub fn clashes(configuration: &Configuration) -> Vec<Problem> {
    let wishes = wishes(configuration);
    let clash = |(index, wish): (usize, &Wish)| {
        let first = wishes[..index].iter().find(|first| wish.thing.excludes(&first.thing))?;
        let thing = match &wish.thing {
            Thing::Port(address) => address.to_string(),
            Thing::Path(path) => printable(&path.display().to_string()),
        };
        let what =
            format!("{}: {thing} can't be had twice: {} in {} wants it", wish.key, first.key, first.place);
        Some(Problem { place: wish.place.clone(), what })
    };
    wishes.iter().enumerate().filter_map(clash).collect()
}

impl Thing {
    fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Port(one), Self::Port(other)) => {
                let (ip, others) = (one.ip(), other.ip());
                let any =
                    ip.is_ipv4() == others.is_ipv4() && (ip.is_unspecified() || others.is_unspecified());
                // 0 stands for a port that is free.
                one.port() == other.port() && one.port() != 0 && (ip == others || any)
            }
            _ => self == other,
        }
    }
}

fn wishes(configuration: &Configuration) -> Vec<Wish> {
    let mut all = Vec::new();
    for (section, listen) in
        [("[metrics]", configuration.metrics.listen), ("[web]", configuration.web.listen)]
    {
        let wish = |address| Wish {
            key: format!("\"listen\" of {section}"),
            place: whole(configuration),
            thing: Thing::Port(address),
        };
        all.extend(listen.map(wish));
    }
    let arrays = configuration.arrays.iter().map(|array| &array.settings);
    for settings in arrays.chain(configuration.targets.iter().map(|target| &target.settings)) {
        for (name, setting) in settings {
            let wish = |thing| Wish { key: format!("\"{name}\""), place: setting.place.clone(), thing };
            all.extend(things(name, &setting.value).into_iter().map(wish));
        }
    }
    all
}

/// What an option wants. What can't be read was refused before.
fn things(name: &str, value: &Value) -> Vec<Thing> {
    match (name, value) {
        ("nvme-tcp" | "listen", Value::Text(text)) => text.parse().map(Thing::Port).into_iter().collect(),
        ("vhost-user" | "fuse", Value::Text(text)) => vec![Thing::Path(text.into())],
        ("ublk", Value::Number(number)) => vec![Thing::Path(format!("/dev/ublkb{number}").into())],
        ("nbd", Value::List(texts)) => {
            let thing = |address| match address {
                NbdAddress::Unix(path) => Thing::Path(path),
                NbdAddress::Tcp(address) => Thing::Port(address),
            };
            texts.iter().filter_map(|text| text.parse().ok()).map(thing).collect()
        }
        _ => Vec::new(),
    }
}

/// An address that can't be listened on now, and why. One that no interface has yet can be.
pub fn taken(settings: &Settings) -> Option<String> {
    let things = settings.iter().flat_map(|(name, setting)| things(name, &setting.value));
    let mut ports = things.filter_map(|thing| match thing {
        Thing::Port(address) => Some(address),
        Thing::Path(_) => None,
    });
    ports.find_map(|address| {
        let is_to_come = |error: &io::Error| error.kind() == io::ErrorKind::AddrNotAvailable;
        let error = TcpListener::bind(address).err().filter(|error| !is_to_come(error))?;
        Some(format!("can't listen on {address}: {error}"))
    })
}

/// The place of what is in no array: the file is known, if there is one only.
fn whole(configuration: &Configuration) -> Place {
    Place { file: configuration.files.first().cloned().unwrap_or_default(), line: None }
}

/// What is named and isn't there.
pub fn missing(configuration: &Configuration) -> Vec<Problem> {
    let mut all = Vec::new();
    let mut look = |place: &Place, key: &str, path: &Path, what: &str| {
        let found = fs::metadata(path);
        // What this user may not see is not known.
        let is_absent = found.is_err_and(|error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        });
        if is_absent {
            let path = printable(&path.display().to_string());
            all.push(Problem { place: place.clone(), what: format!("{key}: there is no {what} {path} now") });
        }
    };
    let whole = whole(configuration);
    let alerts = &configuration.alerts;
    if let Some(program) = &alerts.program {
        look(&whole, "\"program\" of [alerts]", program, "program");
    }
    if alerts.mail.is_some() {
        look(&whole, "\"mail\" of [alerts]", Path::new(Alerts::SENDMAIL), "mail program");
    }
    for (section, tls) in [("[metrics]", &configuration.metrics.tls), ("[web]", &configuration.web.tls)] {
        if let Some(tls) = tls {
            look(&whole, &format!("\"{CERTIFICATES}\" of {section}"), &tls.certificates, "folder");
        }
    }
    for array in &configuration.arrays {
        if let Some(folder) = array.log.as_deref().and_then(Path::parent) {
            look(&array.place, "\"log\"", folder, "folder");
        }
    }
    let arrays = configuration.arrays.iter().map(|array| &array.settings);
    let targets = configuration.targets.iter().map(|target| &target.settings);
    for settings in arrays.chain(targets).chain([&configuration.defaults]) {
        for name in SECRETS {
            named(settings, name, |place, path| look(place, &format!("\"{name}\""), path, "file"));
        }
        named(settings, CERTIFICATES, |place, path| {
            look(place, &format!("\"{CERTIFICATES}\""), path, "folder");
        });
    }
    all.extend(missing_commands(configuration));
    all.extend(unusable_certificates(configuration));
    // A default is missing once, however many arrays have it.
    all.sort();
    all.dedup();
    all
}

/// Files of certificates that are missing, or can't be used, in folders that are there.
fn unusable_certificates(configuration: &Configuration) -> Vec<Problem> {
    let mut all = Vec::new();
    for array in &configuration.arrays {
        // What can't be read was refused before.
        let Ok(Command::Serve(arguments)) = super::read(super::OF_ARRAY, &array.settings) else { continue };
        let (Ok(clients), Some(folder)) = (serve::clients(&arguments.tls), &arguments.tls.tls_certificates)
        else {
            continue;
        };
        let place = array.settings.get(CERTIFICATES).map_or(&array.place, |setting| &setting.place);
        let problem = |why| Problem { place: place.clone(), what: format!("\"{CERTIFICATES}\": {why}") };
        all.extend(serve::unusable(folder, clients).map(problem));
    }
    for (section, tls) in [("[metrics]", &configuration.metrics.tls), ("[web]", &configuration.web.tls)] {
        let Some(tls) = tls else { continue };
        let clients = if tls.certified { Clients::Certified(Vec::new()) } else { Clients::Any };
        let problem = |why| Problem {
            place: whole(configuration),
            what: format!("\"{CERTIFICATES}\" of {section}: {why}"),
        };
        all.extend(serve::unusable(&tls.certificates, clients).map(problem));
    }
    all
}

/// Programs that the daemon would run for what is wished for, and that aren't installed. A `health` that is
/// only told of needs no word: where smartctl isn't there, that is known.
fn missing_commands(configuration: &Configuration) -> impl Iterator<Item = Problem> {
    let webhook = configuration.alerts.webhook.as_ref();
    let webhook = webhook.map(|_| (whole(configuration), "\"webhook\" of [alerts]", Alerts::CURL, "curl"));
    let replaces = |array: &&Array| array.duties.health == Some(Health::Replace);
    let health = configuration.arrays.iter().filter(replaces);
    let health = health.map(|array| (array.place.clone(), "\"health\"", "smartctl", "smartmontools"));
    let wanted = webhook.into_iter().chain(health).filter(|(_, _, program, _)| !is_installed(program));
    wanted.map(|(place, key, program, package)| {
        let what = format!("{key}: there is no {program} in $PATH now: install {package}");
        Problem { place, what }
    })
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn named(settings: &Settings, name: &str, look: impl FnOnce(&Place, &Path)) {
    if let Some(Setting { value: Value::Text(path), place }) = settings.get(name) {
        look(place, Path::new(path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_no_interface_has_yet_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pinstripe.toml");
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken_at = |address: &str| {
            let text = format!("[[array]]\nname = 'data'\nnbd = ['tcp:{address}']\n");
            fs::write(&path, text).unwrap();
            taken(&Configuration::load(Some(&path)).unwrap().arrays[0].settings)
        };
        // For documentation (RFC 5737).
        assert_eq!(taken_at("192.0.2.7:10809"), None);
        assert!(taken_at(&other.local_addr().unwrap().to_string()).is_some());
    }

    #[test]
    fn what_the_daemon_would_run_is_looked_for() {
        assert!(is_installed("sh") && !is_installed("no-such-program") && !is_installed(""));
    }
}
