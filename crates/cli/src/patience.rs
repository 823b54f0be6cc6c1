//! How long a command waits for a server: not without a word, and not for ever.

use std::time::Duration;

use pinstripe_control::{
    Version,
    client::{Client, ClientError},
    text::printable,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::output;

/// Time within which a server answers what it can answer at once.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Until it is said what is waited for.
pub const NOTE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_secs(1);
/// What a server does that was told to stop.
pub const STOPS: &str =
    "which stops the array when the requests under way are done and all is on its members";
/// How often a server that has much to do is asked whether it is still there.
const ASK: Duration = Duration::from_secs(30);

/// A note that is said once, when it is time.
struct Note<F>(Option<F>);

impl<F: Fn() -> String> Note<F> {
    fn when_due(&mut self, waited: Duration) {
        if waited >= NOTE
            && let Some(words) = self.0.take()
        {
            output::remark(&format!("pinstripe: {}", words()));
        }
    }
}

/// What a server can answer at once. If it doesn't, that is said, and after a while this is an error.
pub fn ask<T: DeserializeOwned>(
    client: &mut Client,
    method: &str,
    parameters: impl Serialize,
) -> Result<T, ClientError> {
    let from = format!("the server of {}", printable(client.array()));
    ask_within(client, method, parameters, ANSWER_LIMIT, &from)
}

/// As [`ask`], with another limit, and another one that is asked.
pub fn ask_within<T: DeserializeOwned>(
    client: &mut Client,
    method: &str,
    parameters: impl Serialize,
    limit: Duration,
    from: &str,
) -> Result<T, ClientError> {
    let mut note = Note(Some(|| format!("no answer yet from {from}")));
    client.call_watched(method, parameters, LOOK, |waited| {
        note.when_due(waited);
        waited < limit
    })
}

/// Has a server do what may take long. It must be there, and stay so; what it is `doing` is said after a
/// while, unless that is empty.
pub fn work<T: DeserializeOwned>(
    client: &mut Client,
    method: &str,
    parameters: impl Serialize,
    doing: &str,
) -> Result<T, ClientError> {
    let mut pulse = Pulse::of(client);
    watched(client, method, parameters, doing, |waited| pulse.beats(waited))
}

/// Whether a server that has much to do is still there: it is asked on another connection.
pub struct Pulse {
    array: String,
    every: Duration,
    limit: Duration,
    asked: Duration,
}

impl Pulse {
    /// Asks now and then.
    pub fn of(client: &Client) -> Self {
        Self::within(client, ASK, ANSWER_LIMIT)
    }

    /// Asks this often, and waits so long for an answer.
    pub fn within(client: &Client, every: Duration, limit: Duration) -> Self {
        Self { array: client.array().to_owned(), every, limit, asked: Duration::ZERO }
    }

    /// Whether it was there the last time. What ends, ends a call of its own accord.
    pub fn beats(&mut self, waited: Duration) -> bool {
        if waited < self.asked + self.every {
            return true;
        }
        let other = Client::connect(&self.array).and_then(|mut client| {
            client.set_timeout(Some(self.limit))?;
            client.call::<Version>("version", Value::Null)
        });
        self.asked = waited;
        !matches!(other, Err(ClientError::Silent { .. }))
    }
}

/// As [`work`], for a server that answers nothing else meanwhile. `limit`: if it is to be given up.
pub fn last_work<T: DeserializeOwned>(
    client: &mut Client,
    method: &str,
    parameters: impl Serialize,
    doing: &str,
    limit: Option<Duration>,
) -> Result<T, ClientError> {
    watched(client, method, parameters, doing, |waited| limit.is_none_or(|limit| waited < limit))
}

fn watched<T: DeserializeOwned>(
    client: &mut Client,
    method: &str,
    parameters: impl Serialize,
    doing: &str,
    mut goes_on: impl FnMut(Duration) -> bool,
) -> Result<T, ClientError> {
    match ask::<Version>(client, "version", Value::Null) {
        // Whatever it says, it is there.
        Ok(_) | Err(ClientError::Call(_)) => {}
        Err(error) => return Err(error),
    }
    let array = printable(client.array());
    let words = || format!("waiting for the server of {array}, {doing}");
    let mut note = Note((!doing.is_empty()).then_some(words));
    client.call_watched(method, parameters, LOOK, |waited| {
        note.when_due(waited);
        goes_on(waited)
    })
}
