//! `assemble --foreground`: this process becomes the array's server, as a service manager wants it.
//!
//! It decides as `assemble` does, and waits for late members as the configuration says. As the first member
//! that appears may have had the manager start this, it also waits for too few members to become enough.
//!
//! An error in the entry of another array is none of this one. The words of the last start are kept until the
//! machine goes down: a server that died is started by them where its own entry is wrong, or all that is
//! configured can't be read. What is mounted would hang until a person mends that.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use pinstripe_config::{Configuration, Usable};
use pinstripe_control::{
    place::stem,
    text::{printable_lines, shell_word},
};
use pinstripe_md::identity::Uuid;

use super::{
    LOOK, State, Wanted,
    start::{Turn, program},
    wanted,
};
use crate::{
    command_line::Which,
    configuration::{
        load_usable,
        units::{SECRETS, unit},
    },
    credentials,
    failure::{Failure, SERVED},
    list, output, scan,
    serve::default_folder,
    supervisor,
};

/// Becomes the server of the array, or says why not. `limit`: how long to wait for enough members.
pub fn run(configuration: &Configuration, which: &Which, limit: Duration) -> Failure {
    let begun = Instant::now();
    let mut enough_since = None;
    let mut has_leave = false;
    // Without an entry it has to be found at the first look.
    let look = if configuration.scan.all { scan::LIMIT } else { scan::LIMIT_AGAIN };
    loop {
        let (wanted, remarks) = match wanted(configuration, which, look) {
            Ok((all, remarks)) => (all.into_iter().next(), remarks),
            Err(failure) => return failure,
        };
        let Some(wanted) = wanted else { return Failure::new("there is no such array") };
        // A unit may outlast its entry, and the array is mdadm's then.
        if wanted.entry.is_none() && !configuration.scan.all {
            return Failure::new(format!(
                "{} has no [[array]] in the configuration: write one, or start it by `pinstripe assemble`",
                wanted.label
            ));
        }
        let state = wanted.state();
        let is_enough = matches!(state, State::Late { enough: true, .. });
        enough_since = is_enough.then(|| enough_since.unwrap_or_else(Instant::now));
        let waited = Waited {
            in_all: begun.elapsed(),
            with_enough: enough_since.map(|since: Instant| since.elapsed()).unwrap_or_default(),
        };
        has_leave |= take_leave(which);
        // A disk that is slow to answer may be what is missing.
        let slow = if wanted.may_be_late() { scan::LIMIT } else { Duration::ZERO };
        let patience = if has_leave { Some(slow) } else { wanted.patience() };
        match course(state, patience, waited, limit) {
            Course::Wait(why) => {
                supervisor::tell_waiting(&format!("waits: {why}"));
                thread::sleep(LOOK);
            }
            Course::Start { without } => {
                if let Some(why) = &without {
                    output::remark(&format!(
                        "pinstripe: {} was waited for, and is started: {}",
                        wanted.label,
                        printable_lines(&[vec![why.clone()], remarks.clone()].concat().join("\n  "))
                    ));
                }
                return become_server(&wanted, which, has_leave || without.is_some());
            }
            Course::Served(control) => return served(&wanted.label, &control),
            Course::GiveUp(why) => {
                let why = [vec![why], remarks].concat().join("\n  ");
                return Failure::new(format!("{} was not started: {why}", wanted.label));
            }
        }
    }
}

/// Becomes the server of the array though the configuration has errors: `failure`.
pub fn run_despite(main: Option<&Path>, which: &Which, failure: Failure, limit: Duration) -> Failure {
    let Some(configuration) = around_errors(main, which) else { return run_as_last(which, failure) };
    output::remark(&format!(
        "pinstripe: the entry of this array is right, and others are not: {}",
        printable_lines(failure.sentence())
    ));
    run(&configuration, which, limit)
}

/// The configuration, if the entry of this array is right. The entry is the one whose unit asks like this.
fn around_errors(main: Option<&Path>, which: &Which) -> Option<Configuration> {
    let Usable { configuration, wrong, .. } = load_usable(main).ok()?;
    let own = format!("pinstripe@{}.service", asked(which));
    let entry =
        configuration.arrays.iter().find(|entry| unit(&configuration, entry).as_ref() == Some(&own))?;
    (!wrong.contains(&entry.place)).then(|| configuration.clone())
}

/// Becomes the server of the array as it was started last, for the configuration can't be read: `failure`.
/// The server refuses what is served or no array of these members any more.
fn run_as_last(which: &Which, failure: Failure) -> Failure {
    let Some(words) = last_words(which) else { return failure };
    let why = failure.sentence();
    output::remark(&format!(
        "pinstripe: the server is started as it was the last time: {}",
        printable_lines(why)
    ));
    let error = exec(&words, None);
    Failure::new(format!("{why}; can't become the server as it was the last time: {error}"))
}

/// What to do with an array that is in this state.
#[derive(Debug, PartialEq, Eq)]
enum Course {
    Wait(String),
    /// `without`: what was waited for in vain.
    Start {
        without: Option<String>,
    },
    Served(PathBuf),
    GiveUp(String),
}

/// How long members have been waited for.
#[derive(Clone, Copy)]
struct Waited {
    in_all: Duration,
    /// Since the others were enough.
    with_enough: Duration,
}

/// Late members that could be done without are waited for from when the others are there: where disks come
/// one by one, the last one isn't done without.
fn course(state: State, patience: Option<Duration>, waited: Waited, limit: Duration) -> Course {
    match (state, patience) {
        (State::Served(control), _) => Course::Served(control),
        (State::Hopeless(why), _) => Course::GiveUp(why),
        // What may still come is on this machine, and a server that is refused would be started again too
        // often.
        (State::Perhaps(why), patience) if waited.in_all < limit.min(patience.unwrap_or(limit)) => {
            Course::Wait(why)
        }
        (State::Ready | State::Perhaps(_), _) => Course::Start { without: None },
        (State::Late { enough: true, why }, Some(patience)) if waited.with_enough >= patience => {
            Course::Start { without: Some(why) }
        }
        (State::Late { enough: true, why }, Some(_)) => Course::Wait(why),
        (State::Late { why, .. }, patience) if waited.in_all >= limit.max(patience.unwrap_or_default()) => {
            Course::GiveUp(why)
        }
        (State::Late { why, .. }, _) => Course::Wait(why),
    }
}

fn served(label: &str, control: &Path) -> Failure {
    let process = list::process(control).map(|process| format!(" by process {process}")).unwrap_or_default();
    let word = shell_word(&control.display().to_string());
    let control = control.display();
    // The unit isn't started again for that: it would be eight times, and then not when a person wants it.
    Failure::new(format!(
        "{label} is served already{process}, on the control socket {control}: `pinstripe stop {word}` ends that server"
    ))
    .with_status(SERVED)
}

/// Returns only if that can't be. The turn ends with the exec: a process that starts the array in the moment
/// between that and the server's locks is refused by these, or this one is.
fn become_server(wanted: &Wanted, which: &Which, run: bool) -> Failure {
    let waits = || supervisor::tell_waiting("waits: another start of it is under way");
    let turn = match Turn::of(wanted, Duration::MAX, waits) {
        Ok(Ok(turn)) => turn,
        Ok(Err(control)) => return served(&wanted.label, &control),
        Err(failure) => return failure,
    };
    // Without `--run`: it was meant for the members that were missing now.
    if let Err(failure) = keep(which, &wanted.serve_words(false)) {
        output::remark(&format!(
            "pinstripe: can't keep how {} is started: {}",
            wanted.label,
            failure.sentence()
        ));
    }
    for words in wanted.left_out() {
        output::remark(&format!("pinstripe: {words}"));
    }
    let error = exec(&wanted.serve_words(run), Some(turn));
    Failure::new(format!("{} was not started: can't become its server: {error}", wanted.label))
}

/// Becomes a server. Returns only if that can't be, and why.
fn exec(words: &[String], turn: Option<Turn>) -> String {
    let program = match program() {
        Ok(program) => program,
        Err(failure) => return failure.sentence().to_owned(),
    };
    let words = with_credentials(words.to_vec(), credentials::folder().as_deref());
    supervisor::tell_waiting("starting");
    let mut server = Command::new(program);
    server.args(words).current_dir("/");
    if scan::awaited().is_none() || !supervisor::is_there() {
        return server.exec().to_string();
    }
    // A thread waits for a disk that hangs. It would not end, and an exec waits for the end of all threads:
    // so the server is another process, which the manager takes for the service. This one's number isn't
    // its.
    match server.env_remove("WATCHDOG_PID").spawn() {
        Ok(child) => {
            supervisor::tell_main(child.id());
            // What that thread keeps of this process includes its files.
            drop(turn);
            std::process::exit(0)
        }
        Err(error) => error.to_string(),
    }
}

/// Where the words of the last start are kept of an array that is asked for like this, as its unit does. The
/// folder is this user's alone.
fn kept(asked: &str) -> Result<PathBuf, Failure> {
    match stem(asked, "").as_str() {
        // All such arrays would share a file.
        "" => Err(Failure::new("its name is none for a file")),
        stem => Ok(default_folder()?.join(format!("{stem}.last"))),
    }
}

fn asked(which: &Which) -> String {
    let uuid = || which.uuid.map(|uuid| uuid.to_string()).unwrap_or_default();
    which.name.clone().unwrap_or_else(uuid)
}

fn keep(which: &Which, words: &[String]) -> Result<(), Failure> {
    let path = kept(&asked(which))?;
    let new = path.with_extension("last-new");
    let written = fs::write(&new, serde_json::to_vec(words)?).and_then(|()| fs::rename(&new, path));
    Ok(written.inspect_err(|_| drop(fs::remove_file(&new)))?)
}

fn last_words(which: &Which) -> Option<Vec<String>> {
    let bytes = fs::read(kept(&asked(which)).ok()?).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// There while the next start of a unit, asked for like this, may do without members that are late.
fn leave(asked: &str) -> Result<PathBuf, Failure> {
    Ok(kept(asked)?.with_extension("run"))
}

/// Has a unit's start, which `start` waits for, do without members that are late.
pub fn once<T>(unit: &str, start: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let asked = unit.strip_prefix("pinstripe@").and_then(|unit| unit.strip_suffix(".service"));
    let path = leave(asked.unwrap_or(unit))?;
    fs::write(&path, "")?;
    let done = start();
    // A start that has not taken it must not leave it to a later one.
    let _ = fs::remove_file(path);
    done
}

/// Whether this start may.
fn take_leave(which: &Which) -> bool {
    leave(&asked(which)).is_ok_and(|path| fs::remove_file(path).is_ok())
}

/// Forgets how an array was started, whether its unit asks for it by its name or its UUID.
pub fn forget(name: &str, uuid: Uuid) {
    for path in [kept(name), kept(&uuid.to_string())].into_iter().flatten() {
        let _ = fs::remove_file(path);
    }
}

/// The words of `serve`, with secrets from the credentials that are there.
fn with_credentials(mut words: Vec<String>, folder: Option<&Path>) -> Vec<String> {
    let Some(folder) = folder else { return words };
    let of_file = |name: &&'static str| Some((*name, folder.join(name))).filter(|(_, path)| path.exists());
    let certificates = credentials::has_certificates(folder).then(|| ("tls-certificates", folder.to_owned()));
    for (name, path) in SECRETS.iter().filter_map(of_file).chain(certificates) {
        let option = format!("--{name}=");
        words.retain(|word| !word.starts_with(&option));
        // Before the members, which follow `--`.
        words.insert(1, format!("{option}{}", path.display()));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn late(enough: bool, patience: Option<Duration>, waited: Duration) -> Course {
        late_after(Duration::ZERO, enough, patience, waited)
    }

    /// The same where the others were enough only after a time.
    fn late_after(time: Duration, enough: bool, patience: Option<Duration>, in_all: Duration) -> Course {
        let waited = Waited { in_all, with_enough: in_all.saturating_sub(time) };
        course(State::Late { why: "late".to_owned(), enough }, patience, waited, 60 * SECOND)
    }

    #[test]
    fn late_members_are_waited_for_as_configured_and_too_few_as_long_as_the_limit_says() {
        let (wait, give_up) = (Course::Wait("late".to_owned()), Course::GiveUp("late".to_owned()));
        assert_eq!(late(true, Some(5 * SECOND), 4 * SECOND), wait);
        assert_eq!(
            late(true, Some(5 * SECOND), 5 * SECOND),
            Course::Start { without: Some("late".to_owned()) }
        );
        assert_eq!(late(true, None, 59 * SECOND), wait, "no leave to start without them");
        assert_eq!(late(true, None, 60 * SECOND), give_up);
        assert_eq!(late(false, Some(5 * SECOND), 59 * SECOND), wait);
        assert_eq!(late(false, Some(90 * SECOND), 89 * SECOND), wait);
        assert_eq!(late(false, Some(90 * SECOND), 90 * SECOND), give_up);
        let waited = Waited { in_all: SECOND, with_enough: SECOND };
        assert_eq!(course(State::Ready, None, waited, SECOND), Course::Start { without: None });
        // The disk before the last one has come after 59 seconds.
        let after = 59 * SECOND;
        assert_eq!(late_after(after, true, Some(5 * SECOND), 63 * SECOND), wait);
        assert_eq!(
            late_after(after, true, Some(5 * SECOND), 64 * SECOND),
            Course::Start { without: Some("late".to_owned()) }
        );
    }

    #[test]
    fn what_servers_may_have_is_left_to_them_after_the_same_time() {
        let perhaps = |patience: Option<Duration>, waited: Duration| {
            let waited = Waited { in_all: waited, with_enough: Duration::ZERO };
            course(State::Perhaps("late".to_owned()), patience, waited, 60 * SECOND)
        };
        let (wait, start) = (Course::Wait("late".to_owned()), Course::Start { without: None });
        assert_eq!((perhaps(None, 59 * SECOND), perhaps(None, 60 * SECOND)), (wait, start));
        let (wait, start) = (Course::Wait("late".to_owned()), Course::Start { without: None });
        assert_eq!((perhaps(Some(SECOND), SECOND / 2), perhaps(Some(SECOND), SECOND)), (wait, start));
        assert_eq!(perhaps(Some(90 * SECOND), 60 * SECOND), Course::Start { without: None });
    }

    #[test]
    fn a_credential_takes_the_place_of_the_file_that_the_configuration_names() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("dhchap-secrets"), "").unwrap();
        let words = ["serve", "--dhchap-secrets=/etc/x", "--dhchap-hosts=/etc/y", "--", "/dev/sda"];
        let words: Vec<String> = words.map(str::to_owned).into();
        assert_eq!(with_credentials(words.clone(), None), words);
        let with = with_credentials(words, Some(folder.path()));
        let own = format!("--dhchap-secrets={}", folder.path().join("dhchap-secrets").display());
        assert_eq!(with, ["serve", &own, "--dhchap-hosts=/etc/y", "--", "/dev/sda"]);
        // Those of TLS are a folder together, if the key is there.
        std::fs::remove_file(folder.path().join("dhchap-secrets")).unwrap();
        let words = ["serve", "--tls-certificates=/etc/z", "--", "/dev/sda"].map(str::to_owned);
        std::fs::write(folder.path().join("ca-cert.pem"), "").unwrap();
        assert_eq!(with_credentials(words.to_vec(), Some(folder.path())), words);
        std::fs::write(folder.path().join("server-key.pem"), "").unwrap();
        let own = format!("--tls-certificates={}", folder.path().display());
        assert_eq!(with_credentials(words.to_vec(), Some(folder.path())), ["serve", &own, "--", "/dev/sda"]);
    }
}
