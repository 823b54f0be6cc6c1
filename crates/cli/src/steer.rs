//! Commands that talk to a running server: `detail`, `stop`. Those that change its members are in
//! `membership`.

use std::{
    path::Path,
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
    block_users,
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
    let end = Instant::now() + Duration::from_secs(arguments.wait.into());
    match &arguments.array {
        Some(array) => {
            let mut client = Client::connect(array)?;
            if arguments.unmount {
                unmount::all_on(&fetch(&mut client)?);
            }
            stop_one(client, array, arguments.force, end, None)
        }
        None => stop_all(arguments.force, end),
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
        let kept = match fetch(&mut client) {
            Ok(detail) if !force => kept_open(&detail),
            // The array may be given up already.
            Ok(_) | Err(ClientError::Call(_)) => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(why) = kept {
            if Instant::now() >= end {
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
}

impl Default for Waits {
    fn default() -> Self {
        Self { begun: Instant::now(), told: false }
    }
}

impl Waits {
    /// A while, and says once why.
    fn wait(&mut self, why: &str) {
        if !self.told && self.begun.elapsed() >= patience::NOTE {
            self.told = true;
            output::remark(&format!("pinstripe: waiting for clients to leave: {}", printable(why)));
        }
        thread::sleep(LOOK);
    }
}

/// Stops all arrays. All are looked at before the first one is stopped.
fn stop_all(force: bool, end: Instant) -> Result<(), Failure> {
    let mut waits = Waits::default();
    let servers = loop {
        let servers = list::servers();
        match servers.iter().find_map(|(path, answer)| kept_by(path, answer, force)) {
            None => break servers,
            Some(why) if Instant::now() < end => waits.wait(&why),
            Some(why) => return Err(Failure::new(format!("{why}; nothing was stopped"))),
        }
    };
    for (path, _) in servers {
        let path = path.to_string_lossy();
        let client = Client::connect(&path)?;
        stop_one(client, &path, force, end, Some(STOP_LIMIT))?;
    }
    Ok(())
}

/// Why the array of this server can't be stopped now.
fn kept_by(path: &Path, answer: &Result<Detail, ClientError>, force: bool) -> Option<String> {
    match answer {
        Err(error) => Some(format!("{}: {error}", path.display())),
        Ok(_) if force => None,
        Ok(detail) if detail.clients.is_empty() => kept_open(detail),
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
    let (begun, device) = (Instant::now(), detail.uris("ublk").next()?);
    loop {
        let open = block_users::openers(device.strip_prefix("/dev/")?);
        if open.is_empty() {
            return None;
        }
        if begun.elapsed() >= CLOSE_LIMIT {
            return Some(printable(&format!("{device} is open in {}: end that first", open.join(", "))));
        }
        thread::sleep(CLOSE_LOOK);
    }
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
