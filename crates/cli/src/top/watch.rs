//! Asks the servers of all arrays, each from a thread of its own, so that one that doesn't answer keeps none
//! of the others, nor the view, waiting.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use pinstripe_control::{
    Version,
    client::{Client, ClientError},
    place,
};
use serde_json::Value;

use super::sample::{ArraySample, Reading, Sample};
use crate::list::ANSWER_LIMIT;

/// After so long without an answer that is said.
const SILENT: Duration = Duration::from_secs(2);

/// Of each server two readings that lie so far apart.
pub fn twice(interval: Duration) -> Vec<Sample> {
    let (begun, (send, answers)) = (Instant::now(), channel());
    let mut servers: BTreeMap<PathBuf, Server> = BTreeMap::new();
    for path in place::sockets() {
        servers.insert(path.clone(), Server { asked: Some(begun), ..Server::default() });
        let send = send.clone();
        thread::spawn(move || {
            let first = read(&path, begun);
            let goes_on = first.is_ok();
            let _ = send.send((path.clone(), first, !goes_on));
            if goes_on {
                thread::sleep(interval);
                let second = read(&path, begun);
                let _ = send.send((path, second, true));
            }
        });
    }
    drop(send);
    // A server has that long for each of its answers, of which there are two to a reading.
    let end = begun + interval + ANSWER_LIMIT * 4;
    while let Ok((path, answer, is_last)) =
        answers.recv_timeout(end.saturating_duration_since(Instant::now()))
    {
        if is_gone(&answer) {
            servers.remove(&path);
        } else if let Some(server) = servers.get_mut(&path) {
            server.note(answer);
            server.asked = server.asked.filter(|_| !is_last);
        }
    }
    servers.iter().map(|(path, server)| server.sample(path)).collect()
}

/// Whether the socket is one that a server left behind when it was killed, or one that ends just now.
fn is_gone(answer: &Answer) -> bool {
    matches!(answer, Err(ClientError::NotServed { .. } | ClientError::Ended { .. }))
}

/// All servers that were found.
pub struct Watch {
    begun: Instant,
    servers: BTreeMap<PathBuf, Server>,
    send: Sender<(PathBuf, Answer)>,
    answers: Receiver<(PathBuf, Answer)>,
}

type Answer = Result<Reading, ClientError>;

#[derive(Default)]
struct Server {
    /// Since when it is being asked.
    asked: Option<Instant>,
    earlier: Option<Reading>,
    latest: Option<Reading>,
    trouble: Option<String>,
}

impl Watch {
    pub fn new() -> Self {
        let (send, answers) = channel();
        Self { begun: Instant::now(), servers: BTreeMap::new(), send, answers }
    }

    /// Looks for servers, and asks each that isn't being asked.
    pub fn ask(&mut self) {
        let found = place::sockets();
        self.servers.retain(|path, _| found.contains(path));
        for path in found {
            let server = self.servers.entry(path.clone()).or_default();
            if server.asked.is_some() {
                continue;
            }
            server.asked = Some(Instant::now());
            let (send, begun) = (self.send.clone(), self.begun);
            thread::spawn(move || {
                let answer = read(&path, begun);
                // The view may have ended.
                let _ = send.send((path, answer));
            });
        }
    }

    /// Takes the answers that are there.
    pub fn take(&mut self) {
        while let Ok((path, answer)) = self.answers.try_recv() {
            self.note(&path, answer);
        }
    }

    /// Whether the first answer of a server is still to come.
    pub fn is_asking(&self) -> bool {
        self.servers.values().any(|server| server.latest.is_none() && server.asked.is_some())
    }

    fn note(&mut self, path: &Path, answer: Answer) {
        if is_gone(&answer) {
            self.servers.remove(path);
        } else if let Some(server) = self.servers.get_mut(path) {
            // Else its socket went while it was asked.
            server.asked = None;
            server.note(answer);
        }
    }

    /// What is known, in the order of the sockets. A server that is asked for the first time isn't there yet.
    pub fn samples(&self) -> Vec<Sample> {
        let samples = self.servers.iter().map(|(path, server)| server.sample(path));
        samples.filter(|sample| sample.array.is_some() || sample.error.is_some()).collect()
    }
}

impl Server {
    fn note(&mut self, answer: Answer) {
        match answer {
            Ok(reading) => {
                self.earlier = self.latest.replace(reading);
                self.trouble = None;
            }
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }

    fn sample(&self, path: &Path) -> Sample {
        let waits = self.asked.map(|asked| asked.elapsed()).filter(|waits| *waits >= SILENT);
        let silent = waits.map(|waits| format!("the server has not answered for {} s", waits.as_secs()));
        let array = |latest: &Reading| ArraySample::new(self.earlier.as_ref(), latest);
        Sample {
            control: path.display().to_string(),
            error: self.trouble.clone().or(silent),
            array: self.latest.as_ref().map(array),
        }
    }
}

fn read(path: &Path, begun: Instant) -> Answer {
    let mut client = Client::connect(&path.to_string_lossy())?;
    client.set_timeout(Some(ANSWER_LIMIT))?;
    let version: Version = client.call("version", Value::Null)?;
    let detail = client.call("detail", Value::Null)?;
    Ok(Reading { at: begun.elapsed(), instance: version.instance, detail })
}
