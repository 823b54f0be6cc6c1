//! What systemd and udev are asked and told, where they run this machine.

use std::{
    ffi::OsStr,
    fs::File,
    io::{Read, Seek},
    os::unix::fs::MetadataExt,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use pinstripe_config::Configuration;
use pinstripe_control::{place, text::printable_lines};

use crate::{failure::Failure, output, state::in_memory};

/// There where systemd runs this machine: sd_booted(3).
const SYSTEMD: &str = "/run/systemd/system";
/// There where udev runs.
const UDEV: &str = "/run/udev/control";
/// The unit that runs a target.
pub const TARGET_TEMPLATE: &str = "pinstripe-target@.service";
/// Where the package has its units.
pub const UNITS: &str = "/usr/lib/systemd/system";
/// The unit that serves an array.
pub const TEMPLATE: &str = "pinstripe@.service";
/// The root of the process that starts units.
const FIRST_ROOT: &str = "/proc/1/root";
/// Has systemctl do nothing but what needs no running systemd.
const OFFLINE_VARIABLE: &str = "SYSTEMD_OFFLINE";
/// The unit by which /boot is mounted, if it is a file system of its own.
const BOOT: &str = "boot.mount";
/// What the units run.
pub const PROGRAM: &str = "/usr/bin/pinstripe";
/// How systemd is told and asked something.
const SYSTEMCTL: &[&str] = &["systemctl", "--system", "--no-ask-password"];
const JOURNALCTL: &[&str] = &["journalctl", "--output=cat", "--no-pager", "--quiet"];
/// How long systemd and the journal may take for an answer. A machine that is short of memory is slow.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// What is asked of a unit.
const SHOWN: &str = "--property=ActiveState,SubState,InactiveExitTimestampMonotonic";
/// How long it may take to make all units anew.
const RELOAD_LIMIT: Duration = Duration::from_mins(1);
/// How long udev may take; longer than `udevadm` waits.
const UDEV_LIMIT: Duration = Duration::from_secs(20);
/// How much later than systemd the daemon may know that a server has ended.
const NEWS_LIMIT: Duration = Duration::from_secs(10);
/// How often a program is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// What is read of what a program says.
const SAID_BYTES_MAX: u64 = 16 << 10;
/// What is shown of the log of a unit that wasn't started.
const LOG_LINES: &str = "8";

/// Whether a server that is started here should be a unit's: one in a login's session is ended at a shutdown
/// before file systems on its array are unmounted.
///
/// A unit goes by the usual configuration and folder of sockets, and runs the package's program: with others,
/// as in tests, the server is this process's own child. `given`: the configuration's file.
pub fn has_units(given: Option<&Path>) -> bool {
    let folder = place::folders().swap_remove(0);
    let is_usual = Configuration::is_usual(given)
        && folder == Path::new(place::SYSTEM_FOLDER)
        && std::env::current_exe().is_ok_and(|program| program == Path::new(PROGRAM));
    is_usual
        && rustix::process::geteuid().is_root()
        && Path::new(SYSTEMD).is_dir()
        && Path::new(UNITS).join(TEMPLATE).exists()
        && is_heard(
            identity(Path::new("/")),
            identity(Path::new(FIRST_ROOT)),
            std::env::var_os(OFFLINE_VARIABLE).as_deref(),
        )
}

/// Whether systemd starts what this process sees. In a chroot, as one mends a machine in, its units are of
/// another system, and `systemctl` does nothing and says that this was right; so it does if it is told to be
/// `offline`. `root`, `first`: of this process and of the first one, as far as they can be seen.
fn is_heard(root: Option<Identity>, first: Option<Identity>, offline: Option<&OsStr>) -> bool {
    let no = ["0", "no", "n", "false", "f", "off"].map(OsStr::new);
    let is_offline = offline.is_some_and(|value| !no.contains(&value.to_ascii_lowercase().as_os_str()));
    !is_offline && (first.is_none() || root == first)
}

/// By which a folder is known: its device and inode.
type Identity = (u64, u64);

fn identity(path: &Path) -> Option<Identity> {
    let found = path.metadata().ok()?;
    Some((found.dev(), found.ino()))
}

/// Has systemd make its units anew, after a change of the configuration of which `given` is the main file if
/// it isn't the usual one. Units are made of the usual one.
pub fn reload(given: Option<&Path>) {
    if !Configuration::is_usual(given) {
        return;
    }
    if let Err(error) = run_where(Path::new(SYSTEMD), &words(SYSTEMCTL, &["daemon-reload"]), RELOAD_LIMIT) {
        let why = error.in_words();
        output::remark(&format!(
            "pinstripe: systemd goes by the configuration from `systemctl daemon-reload` on: {why}"
        ));
    }
}

/// Waits, not for ever, until udev has looked at the devices that were closed.
pub fn settle() {
    // What it has not looked at in that time it looks at later.
    let _ = run_where(Path::new(UDEV), &["udevadm", "settle", "--timeout=10"], UDEV_LIMIT);
}

/// Starts a unit, and waits until it is ready.
pub fn start(unit: &str, limit: Duration) -> Result<(), Failure> {
    MANAGER.start(unit, limit)
}

/// Has /boot mounted, where that is for what needs it to do (`noauto`). `given`: the configuration's file.
pub fn mount_boot(given: Option<&Path>) -> Result<(), Failure> {
    let state = words(SYSTEMCTL, &["show", "--property=LoadState", "--value", BOOT]);
    let is_there = Configuration::is_usual(given)
        && Path::new(SYSTEMD).is_dir()
        && run(&state, ANSWER_LIMIT).is_ok_and(|state| state == "loaded");
    if is_there { start(BOOT, RELOAD_LIMIT) } else { Ok(()) }
}

/// Has a unit started, and doesn't wait for it: [`start`] does, and says what was wrong.
pub fn begin_start(unit: &str) {
    MANAGER.forget_failures(unit, ANSWER_LIMIT);
    let _ = run(&words(SYSTEMCTL, &["start", "--no-block", "--", unit]), ANSWER_LIMIT);
}

/// Has units stopped, and waits for that, however long: what is unmounted is written first.
pub fn stop(units: &[String]) {
    let [program, words @ ..] = SYSTEMCTL else { return };
    let done = Command::new(program).args(words).args(["stop", "--"]).args(units).status();
    if let Err(error) = done {
        output::remark(&format!("pinstripe: can't run {program}: {error}"));
    }
}

/// The process of a unit that runs.
pub fn main_process(unit: &str) -> Option<u32> {
    let said = run(&words(SYSTEMCTL, &["show", "--property=MainPID", "--value", unit]), ANSWER_LIMIT).ok()?;
    said.parse().ok().filter(|&process| process != 0)
}

/// Whether a unit was to be started since its array was stopped, so long ago, and isn't up: it has failed, or
/// is tried.
pub fn is_not_up(unit: &str, stopped: Duration) -> bool {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or_default());
    MANAGER.state(unit).is_some_and(|state| state.is_not_up(now.saturating_sub(stopped)))
}

/// How the manager of units and its journal are asked.
#[derive(Clone, Copy)]
struct Manager<'a> {
    systemctl: &'a [&'a str],
    journalctl: &'a [&'a str],
    answer_limit: Duration,
}

const MANAGER: Manager<'static> =
    Manager { systemctl: SYSTEMCTL, journalctl: JOURNALCTL, answer_limit: ANSWER_LIMIT };

impl Manager<'_> {
    fn start(self, unit: &str, limit: Duration) -> Result<(), Failure> {
        let begun = Instant::now();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.forget_failures(unit, limit);
        // With `--quiet` it would not say why it could not: a unit that this one needs, or that it is masked.
        let done = run(&words(self.systemctl, &["start", "--", unit]), limit.saturating_sub(begun.elapsed()));
        let what = match (done, self.state(unit)) {
            // systemctl also says so where it has not asked systemd, and of a unit that has ended since.
            (Ok(_), Some(state)) if !state.is_active() => {
                format!("systemctl says that it has started {unit}, which is {}", state.active)
            }
            (Ok(_), _) => return Ok(()),
            // The job itself goes on.
            (Err(RunError::Late { .. }), state) => {
                let seconds = limit.as_secs();
                let then = match state {
                    Some(state) if state.active == "activating" => "goes on starting".to_owned(),
                    Some(state) => format!("is {}", state.active),
                    None => "systemd does not say what it is".to_owned(),
                };
                format!("{unit} is not ready after {seconds} seconds, and {then}")
            }
            (Err(RunError::Failed(why)), Some(state)) if state.is_tried_again() => {
                format!("{unit} was not started, and systemd tries again: {why}")
            }
            (Err(RunError::Failed(why)), _) => format!("{unit} was not started: {why}"),
        };
        Err(Failure::new(what + &self.log_end(unit, since)))
    }

    /// systemd refuses a unit that has failed too often.
    fn forget_failures(self, unit: &str, limit: Duration) {
        // It may not know it yet.
        let _ = run(&words(self.systemctl, &["reset-failed", unit]), limit.min(self.answer_limit));
    }

    fn state(self, unit: &str) -> Option<UnitState> {
        let show = words(self.systemctl, &["show", SHOWN, "--", unit]);
        let said = run(&show, self.answer_limit).ok()?;
        // In an order of its own.
        let value = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let begun = value("InactiveExitTimestampMonotonic=").and_then(|begun| begun.parse().ok());
        Some(UnitState {
            active: value("ActiveState=")?,
            sub: value("SubState=")?,
            begun: begun.map(Duration::from_micros),
        })
    }

    /// What is in the log since a time; nothing of earlier starts, of which the end may be wrong by now.
    fn log_end(self, unit: &str, since: u64) -> String {
        let since = format!("--since=@{since}");
        let words = words(self.journalctl, &["--unit", unit, "--lines", LOG_LINES, &since]);
        match run(&words, self.answer_limit) {
            Ok(text) if !text.is_empty() => {
                format!("; its log ends with\n  {}", text.replace('\n', "\n  "))
            }
            _ => String::new(),
        }
    }
}

/// What systemd says that a unit is.
struct UnitState {
    active: String,
    sub: String,
    /// When its latest start began, by the kernel's monotonic clock.
    begun: Option<Duration>,
}

impl UnitState {
    fn is_active(&self) -> bool {
        matches!(self.active.as_str(), "active" | "reloading" | "refreshing")
    }

    /// A start that began before its array was stopped has failed beside a server that a person had started,
    /// or by the stop itself.
    fn is_not_up(&self, stopped: Duration) -> bool {
        match self.active.as_str() {
            "activating" => true,
            "failed" => self.begun.is_none_or(|begun| begun + NEWS_LIMIT >= stopped),
            _ => false,
        }
    }

    /// Whether systemd waits to start it once more, after it failed.
    fn is_tried_again(&self) -> bool {
        self.active == "activating" && self.sub.starts_with("auto-restart")
    }
}

fn words<'a>(program: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [program, more].concat()
}

/// Why a program did not do what it was run for.
#[derive(Debug, PartialEq, Eq)]
enum RunError {
    /// It has not ended in time, and was killed.
    Late {
        program: String,
        limit: Duration,
    },
    Failed(String),
}

impl RunError {
    fn in_words(&self) -> String {
        match self {
            Self::Late { program, limit } => {
                format!("{program} has not ended in {} seconds", limit.as_secs())
            }
            Self::Failed(why) => why.clone(),
        }
    }
}

/// Runs a program if something has the place `there`; why that failed.
fn run_where(there: &Path, words: &[&str], limit: Duration) -> Result<(), RunError> {
    if there.exists() { run(words, limit).map(drop) } else { Ok(()) }
}

/// Runs a program, for `limit` at most. What it says, or why it failed.
fn run(words: &[&str], limit: Duration) -> Result<String, RunError> {
    let (begun, program) = (Instant::now(), words[0]);
    let cannot = |error: std::io::Error| RunError::Failed(format!("can't run {program}: {error}"));
    // Files in memory: no program waits until it is read, nor does this one for what it leaves behind.
    let start = || {
        let (said, complaint) = (in_memory("said")?, in_memory("said")?);
        let mut command = Command::new(program);
        command
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(complaint.try_clone()?);
        std::io::Result::Ok((command.spawn()?, said, complaint))
    };
    let (mut child, said, complaint) = start().map_err(cannot)?;
    loop {
        match child.try_wait().map_err(cannot)? {
            Some(status) if status.success() => return Ok(text(said)),
            Some(_) => {
                let why = text(complaint).replace('\n', "; ");
                return Err(RunError::Failed(format!("{program} failed: {why}")));
            }
            None if begun.elapsed() >= limit => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(RunError::Late { program: program.to_owned(), limit });
            }
            None => thread::sleep(LOOK),
        }
    }
}

/// What a program has written to a file.
fn text(mut file: File) -> String {
    let mut bytes = Vec::new();
    // What can't be read is not said.
    let _ = file.rewind().and_then(|()| file.take(SAID_BYTES_MAX).read_to_end(&mut bytes));
    printable_lines(String::from_utf8_lossy(&bytes).trim())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Scripts in the place of systemd's programs.
    struct Fake {
        folder: tempfile::TempDir,
    }

    impl Fake {
        /// `systemctl` gets the command's name as `$1`, and `$DIR` is the scripts' folder.
        fn new(systemctl: &str) -> Self {
            let fake = Self { folder: tempfile::tempdir().unwrap() };
            let folder = fake.folder.path().display();
            fs::write(fake.path("systemctl"), format!("DIR={folder}\n{systemctl}\n")).unwrap();
            fs::write(fake.path("journalctl"), format!("echo \"$@\" >{folder}/asked; cat {folder}/log"))
                .unwrap();
            fake
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn start(&self, limit: Duration) -> Result<(), String> {
            self.start_if_told(limit, 60 * SECOND)
        }

        fn start_if_told(&self, limit: Duration, answer_limit: Duration) -> Result<(), String> {
            let (systemctl, journalctl) = (self.path("systemctl"), self.path("journalctl"));
            let manager = Manager {
                systemctl: &["sh", systemctl.to_str().unwrap()],
                journalctl: &["sh", journalctl.to_str().unwrap()],
                answer_limit,
            };
            manager.start("a@b.service", limit).map_err(|failure| failure.sentence().to_owned())
        }
    }

    #[test]
    fn a_program_is_run_where_what_it_is_of_runs_and_its_failure_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let run_at = |there: &Path, words: &[&str]| run_where(there, words, 60 * SECOND);
        let why = |words: &[&str]| run_at(folder.path(), words).unwrap_err().in_words();
        let fails = ["sh", "-c", "echo no such unit >&2; exit 1"];
        assert_eq!(why(&fails), "sh failed: no such unit");
        assert_eq!(run_at(folder.path(), &["true"]), Ok(()));
        assert!(why(&["/nothing"]).starts_with("can't run /nothing"));
        assert_eq!(run_at(&folder.path().join("nothing"), &fails), Ok(()));
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_and_one_that_says_much_is_not_kept_waiting() {
        let late = RunError::Late { program: "sleep".to_owned(), limit: SECOND };
        assert_eq!(run(&["sleep", "600"], SECOND), Err(late));
        let much =
            run(&["sh", "-c", "yes | head -n 200000; yes no | head -n 200000 >&2"], 60 * SECOND).unwrap();
        assert_eq!(much.len() as u64, SAID_BYTES_MAX - 1, "without the last end of a line");
    }

    #[test]
    fn why_a_unit_was_not_started_is_what_systemd_says_and_the_log_is_of_this_start() {
        let script = |state: &str| {
            format!(
                "case $1 in start) echo 'Unit a@b.service is masked.' >&2; exit 1;; show) printf '{state}';; esac"
            )
        };
        let masked = Fake::new(&script("SubState=dead\\nActiveState=inactive\\n"));
        let why = masked.start(60 * SECOND).unwrap_err();
        assert_eq!(why, "a@b.service was not started: sh failed: Unit a@b.service is masked.");

        let again = Fake::new(&script("ActiveState=activating\\nSubState=auto-restart\\n"));
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        fs::write(again.path("log"), "no member\nof it is here\n").unwrap();
        let why = again.start(60 * SECOND).unwrap_err();
        assert!(
            why.starts_with("a@b.service was not started, and systemd tries again: sh failed: Unit"),
            "{why}"
        );
        assert!(why.ends_with("is masked.; its log ends with\n  no member\n  of it is here"), "{why}");
        let asked = fs::read_to_string(again.path("asked")).unwrap();
        let since = asked.trim().rsplit_once("--since=@").unwrap().1.parse::<u64>().unwrap();
        let ended = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert!((began..=ended).contains(&since), "{asked}");
    }

    #[test]
    fn a_unit_is_started_when_systemd_says_that_it_is_and_not_because_systemctl_went_well() {
        let does = Fake::new(
            "case $1 in start) touch $DIR/up;; show) [ ! -e $DIR/up ] || printf 'ActiveState=active\\nSubState=running';; esac",
        );
        assert_eq!(does.start(60 * SECOND), Ok(()));
        let does_not = Fake::new("case $1 in show) printf 'ActiveState=inactive\\nSubState=dead';; esac");
        let why = does_not.start(60 * SECOND).unwrap_err();
        assert_eq!(why, "systemctl says that it has started a@b.service, which is inactive");
    }

    #[test]
    fn a_unit_that_has_failed_or_is_tried_again_is_not_one_that_was_stopped() {
        for (active, is_not_up) in
            [("failed", true), ("activating", true), ("inactive", false), ("active", false)]
        {
            let state = UnitState { active: active.to_owned(), sub: String::new(), begun: None };
            assert_eq!(state.is_not_up(SECOND), is_not_up, "{active}");
        }
        // It had failed before.
        let begun = |begun| UnitState { active: "failed".to_owned(), sub: String::new(), begun: Some(begun) };
        let stopped = 1000 * SECOND;
        assert!(begun(1001 * SECOND).is_not_up(stopped) && begun(999 * SECOND).is_not_up(stopped));
        assert!(!begun(900 * SECOND).is_not_up(stopped) && !begun(Duration::ZERO).is_not_up(stopped));
    }

    #[test]
    fn units_are_for_what_has_the_root_of_the_first_process_and_is_not_told_to_be_offline() {
        let (own, other) = (Some((1, 2)), Some((1, 3)));
        assert!(is_heard(own, own, None));
        assert!(!is_heard(own, other, None), "a chroot");
        assert!(is_heard(own, None, None), "what can't be seen is for systemctl to say");
        for (value, is_offline) in [("1", true), ("yes", true), ("", true), ("0", false), ("False", false)] {
            assert_eq!(is_heard(own, own, Some(OsStr::new(value))), !is_offline, "{value}");
        }
        assert!(!is_heard(own, other, Some(OsStr::new("0"))));
        assert_eq!(identity(Path::new("/")), identity(Path::new("/proc/self/root")));
        assert_ne!(identity(Path::new("/")), identity(Path::new("/proc")));
    }

    #[test]
    fn a_unit_that_takes_longer_goes_on_starting_if_systemd_says_so() {
        let script = |state: &str| {
            format!(
                "case $1 in start) exec sleep 600;; show) printf 'ActiveState={state}\\nSubState=x';; esac"
            )
        };
        let why = |state: &str| Fake::new(&script(state)).start(SECOND).unwrap_err();
        assert_eq!(why("activating"), "a@b.service is not ready after 1 seconds, and goes on starting");
        assert_eq!(why("inactive"), "a@b.service is not ready after 1 seconds, and is inactive");
    }

    #[test]
    fn a_manager_that_does_not_answer_holds_a_start_up_as_long_as_it_may_take() {
        let begun = Instant::now();
        let why = Fake::new("exec sleep 600").start_if_told(2 * SECOND, SECOND).unwrap_err();
        assert!(begun.elapsed() < 60 * SECOND, "{:?}", begun.elapsed());
        assert!(why.contains("a@b.service is not ready after 2 seconds"), "{why}");
    }
}
