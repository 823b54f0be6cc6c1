//! `pinstripe monitor`: follows the events of arrays and tells of them.
//!
//! Each array has a thread. It asks the array's server for the events after the last one it knows, which the
//! server answers when there are some; the server keeps the latest thousand with numbers, so nothing is lost
//! while a program runs or the connection is made anew, and if it is, that is said. A server that ends is an
//! array that has disappeared, until another one serves it.

mod sinks;

use std::{
    sync::Arc,
    thread,
    time::{Duration, UNIX_EPOCH},
};

use pinstripe_control::{
    client::{Client, ClientError},
    maintenance::{Event, EventsParameters, EventsResult},
};
use serde::Deserialize;
use serde_json::Value;

use self::sinks::Sinks;
use crate::{
    command_line::{LogOptions, MonitorArguments},
    failure::Failure,
    log,
};

/// How long a call waits for an event. A server that is silent for longer by [`GRACE`] is gone.
const WAIT: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(15);
/// Pause before an array that isn't served is looked for again.
const RETRY: Duration = Duration::from_secs(1);

pub fn run(arguments: &MonitorArguments) -> Result<(), Failure> {
    if arguments.log != LogOptions::default() {
        log::begin(arguments.log, "monitor")?;
        log::describe("monitor", &[]);
    }
    let sinks = Arc::new(Sinks::open(arguments)?);
    let watches = arguments.arrays.iter().map(|array| Watch {
        array: array.clone(),
        spares: arguments.spares,
        sinks: Arc::clone(&sinks),
        state: ArrayState::Unknown,
        lacks_spares: false,
    });
    if arguments.oneshot {
        watches.for_each(|mut watch| watch.look_once());
        return sinks.outcome();
    }
    let threads: Vec<_> = watches.map(|mut watch| thread::spawn(move || watch.follow_for_ever())).collect();
    for thread in threads {
        // It ends only if it panics, and then the process has ended.
        let _ = thread.join();
    }
    Ok(())
}

/// What is known of an array.
enum ArrayState {
    /// It was not reached yet.
    Unknown,
    /// It is followed: the server's run, and the last event that was told.
    Followed { instance: String, last_reported: u64 },
    /// It was followed, and its server ended.
    Gone { instance: String, last_reported: u64 },
    /// It was not there at the beginning, and that was told.
    Missing,
}

struct Watch {
    array: String,
    spares: Option<usize>,
    sinks: Arc<Sinks>,
    state: ArrayState,
    lacks_spares: bool,
}

/// What of `detail` is looked at; a server of another version may have more, or less.
#[derive(Deserialize)]
struct Seen {
    members: Vec<SeenMember>,
    spares: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct SeenMember {
    slot: usize,
    state: String,
}

impl Watch {
    fn follow_for_ever(&mut self) {
        loop {
            let mut answered = false;
            let ended = match Client::connect(&self.array) {
                Ok(mut client) => self.follow(&mut client, &mut answered).err(),
                Err(error) => Some(error),
            };
            // Where another program takes the server's place, connections end, and new ones are served.
            if answered {
                continue;
            }
            if let Some(error) = ended {
                self.disappeared(&error);
            }
            thread::sleep(RETRY);
        }
    }

    /// Follows a server until the connection breaks. Says whether one has `answered`.
    fn follow(&mut self, client: &mut Client, answered: &mut bool) -> Result<(), ClientError> {
        client.set_timeout(Some(WAIT + GRACE))?;
        let now: EventsResult = client.call("events", EventsParameters { after: u64::MAX, wait_ms: 0 })?;
        *answered = true;
        self.appeared(client, now)?;
        loop {
            let ArrayState::Followed { last_reported, .. } = self.state else { return Ok(()) };
            let wait_ms = u64::try_from(WAIT.as_millis()).unwrap_or(u64::MAX);
            let next: EventsResult =
                client.call("events", EventsParameters { after: last_reported, wait_ms })?;
            self.tell_all(next);
            self.look_at_spares(client)?;
        }
    }

    /// A server is there: the one that was followed, another one, or the first.
    fn appeared(&mut self, client: &mut Client, now: EventsResult) -> Result<(), ClientError> {
        let last_reported = match std::mem::replace(&mut self.state, ArrayState::Unknown) {
            ArrayState::Followed { instance, last_reported }
            | ArrayState::Gone { instance, last_reported }
                if instance == now.instance =>
            {
                last_reported
            }
            ArrayState::Unknown => {
                // What happened before is history; what is wrong now is told.
                self.tell_what_is_wrong(client)?;
                now.last
            }
            _ => {
                self.tell("NewArray", None, "the array is served".to_owned(), false);
                0
            }
        };
        self.state = ArrayState::Followed { instance: now.instance, last_reported };
        self.look_at_spares(client)
    }

    fn disappeared(&mut self, error: &ClientError) {
        match std::mem::replace(&mut self.state, ArrayState::Missing) {
            ArrayState::Followed { instance, last_reported } => {
                self.state = ArrayState::Gone { instance, last_reported };
                let words = match error {
                    ClientError::NotServed { .. } => "the array is not served any more".to_owned(),
                    other => format!("the array is not served any more: {other}"),
                };
                self.tell("DeviceDisappeared", None, words, true);
            }
            ArrayState::Unknown => self.tell("DeviceDisappeared", None, error.to_string(), true),
            other => self.state = other,
        }
    }

    fn look_once(&mut self) {
        let looked = Client::connect(&self.array).and_then(|mut client| {
            client.set_timeout(Some(WAIT))?;
            self.tell_what_is_wrong(&mut client)?;
            self.look_at_spares(&mut client)
        });
        match looked {
            // Its server is there, and may serve its clients.
            Err(error @ ClientError::Silent { .. }) => {
                self.tell("ServerSilent", None, error.to_string(), true);
            }
            Err(error) => self.tell("DeviceDisappeared", None, error.to_string(), true),
            Ok(()) => {}
        }
    }

    fn tell_what_is_wrong(&mut self, client: &mut Client) -> Result<(), ClientError> {
        let seen: Seen = client.call("detail", Value::Null)?;
        let missing =
            seen.members.iter().filter(|member| !matches!(member.state.as_str(), "in-sync" | "resyncing"));
        let missing: Vec<String> = missing.map(|member| member.slot.to_string()).collect();
        if !missing.is_empty() {
            let words =
                format!("the array is degraded: slot {} has no member with everything", missing.join(", "));
            self.tell("DegradedArray", None, words, true);
        }
        Ok(())
    }

    fn look_at_spares(&mut self, client: &mut Client) -> Result<(), ClientError> {
        let Some(wanted) = self.spares else { return Ok(()) };
        let seen: Seen = client.call("detail", Value::Null)?;
        let there = seen.spares.map_or(0, |spares| spares.len());
        let lacks = there < wanted;
        if lacks && !self.lacks_spares {
            self.tell(
                "SparesMissing",
                None,
                format!("the array has {there} spares and should have {wanted}"),
                true,
            );
        }
        self.lacks_spares = lacks;
        Ok(())
    }

    fn tell_all(&mut self, next: EventsResult) {
        let ArrayState::Followed { instance, last_reported } = &mut self.state else { return };
        if *instance != next.instance {
            // Another server took the socket over within one connection: that can't be; begin anew.
            self.state = ArrayState::Gone { instance: next.instance, last_reported: 0 };
            return;
        }
        let before = *last_reported;
        *last_reported = next.events.last().map_or(before, |event| event.number);
        if let Some(first) = next.events.first()
            && first.number > before + 1
        {
            let lost = first.number - before - 1;
            self.tell("EventsLost", None, format!("{lost} events were lost: the server keeps only the newest ones, and they came faster than they were read"), true);
        }
        for event in next.events {
            self.sinks.tell(&self.array, &event);
        }
    }

    /// Tells of something that the monitor itself has found.
    fn tell(&self, event: &str, device: Option<String>, message: String, alarming: bool) {
        let time = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        let event = Event { number: 0, time, event: event.to_owned(), device, alarming, message };
        self.sinks.tell(&self.array, &event);
    }
}
