//! Commands that talk to a running server: `detail`, `stop`. Those that change its members are in
//! `membership`.

use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use pinstripe_control::{
    Detail, StopParameters,
    client::{Client, ClientError},
    code,
    limit::{Limit, LimitParameters},
    text::printable,
};
use serde_json::Value;

use crate::{
    block_users::{self, Opener},
    command_line::{DetailArguments, LimitArguments, StopArguments},
    failure::Failure,
    list, output, patience, ublk, unmount,
};

/// The status of `detail --test` for an array that can't be asked.
const NOT_THERE: u8 = 4;
/// Time that each of all servers gets to stop.
const STOP_LIMIT: Duration = Duration::from_mins(3);
/// Between two attempts to stop an array that is in use.
const LOOK: Duration = Duration::from_millis(500);
/// How long a program may take to close an array's device that is about to. udev looks at one for a moment
/// when it was written.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);
const CLOSE_LOOK: Duration = Duration::from_millis(20);

pub fn detail(arguments: &DetailArguments) -> Result<(), Failure> {
    let fetched = Client::connect(&arguments.array.array).and_then(|mut client| fetch(&mut client));
    let detail = match fetched {
        Ok(detail) => detail,
        Err(error) => {
            let failure = not_served(error, &arguments.array.array);
            return Err(if arguments.test { failure.with_status(NOT_THERE) } else { failure });
        }
    };
    if arguments.json {
        output::print_json(&detail)?;
    } else {
        output::print(&detail.in_words())?;
    }
    match health(&detail) {
        status if arguments.test && status > 0 => Err(Failure::said().with_status(status)),
        _ => Ok(()),
    }
}

/// An array that can't be asked, and what waits for it.
fn not_served(error: ClientError, array: &str) -> Failure {
    let left = matches!(error, ClientError::NotServed { .. }).then(|| ublk::left_by(array)).flatten();
    match left {
        Some(device) => Failure::new(format!("{error}; {}", ublk::left_waiting(device))),
        None => error.into(),
    }
}

/// mdadm's statuses of `--detail --test`.
fn health(detail: &Detail) -> u8 {
    let lacks_journal = detail.journal.as_ref().is_some_and(|journal| journal.failed);
    match detail.state.as_str() {
        "failed" => 2,
        _ => u8::from(detail.degraded || lacks_journal),
    }
}

/// The state of the array.
pub fn fetch(client: &mut Client) -> Result<Detail, ClientError> {
    patience::ask(client, "detail", Value::Null)
}

pub fn stop(arguments: &StopArguments) -> Result<(), Failure> {
    // To unmount takes as long as to write all that is not written yet, which is no time of the clients'.
    let end = || Instant::now() + Duration::from_secs(arguments.wait.into());
    match &arguments.array {
        Some(array) => {
            let mut client = Client::connect(array)?;
            if arguments.unmount {
                unmount::all_on(&fetch(&mut client)?);
            }
            stop_one(client, array, arguments.force, end(), None)
        }
        None => stop_all(arguments.force, end()),
    }
}

/// Stops an array. While clients use it that is tried again until `end`.
fn stop_one(
    mut client: Client,
    array: &str,
    force: bool,
    end: Instant,
    limit: Option<Duration>,
) -> Result<(), Failure> {
    let mut waits = Waits::default();
    loop {
        let is_last = Instant::now() >= end;
        let kept = match (!force).then(|| fetch(&mut client)) {
            Some(Ok(detail)) => open_in_others(&detail, waits.patience(is_last), &[]),
            // The array may be given up already.
            None | Some(Err(ClientError::Call(_))) => None,
            Some(Err(error)) => return Err(error.into()),
        };
        if let Some(why) = kept {
            if is_last {
                return Err(Failure::new(format!("{why}; nothing was stopped")));
            }
            waits.wait(&why);
            continue;
        }
        match patience::last_work::<()>(&mut client, "stop", StopParameters { force }, patience::STOPS, limit)
        {
            Err(ClientError::Call(error)) if error.code == code::IN_USE && Instant::now() < end => {
                waits.wait(&error.message);
            }
            done => break done?,
        }
    }
    output::print(&format!("stopped {array}\n"))
}

/// Waits with `--wait` for clients to leave.
struct Waits {
    begun: Instant,
    told: bool,
    has_waited: bool,
}

impl Default for Waits {
    fn default() -> Self {
        Self { begun: Instant::now(), told: false, has_waited: false }
    }
}

impl Waits {
    /// How long a look waits for programs that are about to close a device. It reads all that all processes
    /// have open again and again, which one that is followed by another look needn't do.
    fn patience(&self, is_last: bool) -> Duration {
        if self.has_waited && !is_last { Duration::ZERO } else { CLOSE_LIMIT }
    }

    /// A while, and says once why.
    fn wait(&mut self, why: &str) {
        self.has_waited = true;
        if !self.told && self.begun.elapsed() >= patience::NOTE {
            self.told = true;
            output::remark(&format!("pinstripe: waiting for clients to leave: {}", printable(why)));
        }
        thread::sleep(LOOK);
    }
}

/// A server that is to be stopped with all others.
#[derive(Debug, PartialEq, Eq)]
struct Stopped {
    path: PathBuf,
    process: Option<u32>,
    /// The processes that have its array's block device open.
    openers: Vec<u32>,
}

/// Stops all arrays. All are looked at before the first one is stopped.
fn stop_all(force: bool, end: Instant) -> Result<(), Failure> {
    let mut waits = Waits::default();
    let servers = loop {
        let is_last = Instant::now() >= end;
        let servers = list::servers();
        let processes: Vec<Option<u32>> = servers.iter().map(|(path, _)| list::process(path)).collect();
        let ours: Vec<u32> = processes.iter().flatten().copied().collect();
        let patience = waits.patience(is_last);
        match servers.iter().find_map(|(path, answer)| kept_by(path, answer, force, patience, &ours)) {
            None => break servers.into_iter().zip(processes),
            Some(why) if !is_last => waits.wait(&why),
            Some(why) => return Err(Failure::new(format!("{why}; nothing was stopped"))),
        }
    };
    let stopped = |((path, answer), process): ((PathBuf, Result<Detail, ClientError>), Option<u32>)| {
        let openers = answer.iter().flat_map(openers).map(|opener| opener.process).collect();
        Stopped { path, process, openers }
    };
    for Stopped { path, .. } in in_order(servers.map(stopped).collect()) {
        let path = path.to_string_lossy();
        let client = Client::connect(&path)?;
        stop_one(client, &path, force, end, Some(STOP_LIMIT))?;
    }
    Ok(())
}

/// An array may have another one's block device as a member: its server comes first.
fn in_order(mut left: Vec<Stopped>) -> Vec<Stopped> {
    let mut all = Vec::new();
    while !left.is_empty() {
        let is_open = |one: &Stopped| {
            left.iter().filter_map(|other| other.process).any(|process| one.openers.contains(&process))
        };
        let next = left.iter().position(|one| !is_open(one)).unwrap_or(0);
        all.push(left.remove(next));
    }
    all
}

/// Why the array of this server can't be stopped now. `ours`: the processes that are stopped, too.
fn kept_by(
    path: &Path,
    answer: &Result<Detail, ClientError>,
    force: bool,
    patience: Duration,
    ours: &[u32],
) -> Option<String> {
    match answer {
        Err(error) => Some(format!("{}: {error}", path.display())),
        Ok(_) if force => None,
        Ok(detail) if detail.clients.is_empty() => open_in_others(detail, patience, ours),
        Ok(detail) => {
            let names: Vec<String> = detail
                .clients
                .iter()
                .map(|client| format!("{} ({})", client.name, client.protocol))
                .collect();
            Some(printable(&format!("{} is in use by {}: end that first", detail.name, names.join(", "))))
        }
    }
}

/// Why the array must not be stopped, beside its clients: what has its block device open as it is, such as a
/// virtual machine or a database. The server has no right to know of other processes; root may.
pub fn kept_open(detail: &Detail) -> Option<String> {
    open_in_others(detail, CLOSE_LIMIT, &[])
}

/// The same, after so long, without these processes.
fn open_in_others(detail: &Detail, patience: Duration, without: &[u32]) -> Option<String> {
    let (begun, device) = (Instant::now(), detail.uris("ublk").next()?);
    loop {
        let open: Vec<String> = openers(detail)
            .into_iter()
            .filter(|opener| !without.contains(&opener.process))
            .map(|opener| opener.to_string())
            .collect();
        if open.is_empty() {
            return None;
        }
        if begun.elapsed() >= patience {
            return Some(printable(&format!("{device} is open in {}: end that first", open.join(", "))));
        }
        thread::sleep(CLOSE_LOOK);
    }
}

/// The processes that have the array's block device open.
fn openers(detail: &Detail) -> Vec<Opener> {
    let device = detail.uris("ublk").next().and_then(|device| device.strip_prefix("/dev/"));
    device.map(block_users::openers).unwrap_or_default()
}

pub fn limit(arguments: &LimitArguments) -> Result<(), Failure> {
    let mut client = Client::connect(&arguments.array.array)?;
    let parameters = LimitParameters {
        iops: arguments.iops,
        bytes_per_second: arguments.bandwidth.map(|size| size.0),
        burst_seconds: arguments.burst,
    };
    let limit: Limit = patience::ask(&mut client, "limit", parameters)?;
    if arguments.json {
        output::print_json(&limit)
    } else {
        output::print(&format!("{}\n", limit.in_words()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_stopped_before_those_on_whose_devices_its_array_lies() {
        let order = |all: &[(u32, &[u32])]| -> Vec<u32> {
            let one = |(process, openers): &(u32, &[u32])| Stopped {
                path: PathBuf::new(),
                process: Some(*process),
                openers: openers.to_vec(),
            };
            in_order(all.iter().map(one).collect()).iter().filter_map(|one| one.process).collect()
        };
        assert_eq!(order(&[(1, &[2]), (2, &[3]), (3, &[9]), (4, &[])]), [3, 2, 1, 4]);
        assert_eq!(order(&[(1, &[2]), (2, &[1]), (3, &[])]), [3, 1, 2], "a circle");
    }

    #[test]
    fn only_the_first_look_and_the_last_one_wait_for_a_device_to_be_closed() {
        let first = Waits::default();
        assert_eq!((first.patience(false), first.patience(true)), (CLOSE_LIMIT, CLOSE_LIMIT));
        let later = Waits { has_waited: true, ..Waits::default() };
        assert_eq!((later.patience(false), later.patience(true)), (Duration::ZERO, CLOSE_LIMIT));
    }
}
