//! The client's end of the control socket: one call at a time, blocking.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    io::retry_on_intr,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use thiserror::Error;

use super::{CallError, RESPONSE_BYTES_MAX, Request, Response, VERSION, place};

/// Time that a server has to take a connection or a request.
const SEND_LIMIT: Duration = Duration::from_secs(30);

/// Why a call to a server failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The array is not served.
    #[error("the array {array} is not being served: nothing listens on {}", path.display())]
    NotServed {
        /// As it was asked for.
        array: String,
        /// Where a server would listen.
        path: PathBuf,
    },
    /// The server belongs to another user.
    #[error("no permission to control the array {array} on the socket {}: run this as the user of its server, or as root", path.display())]
    Permission {
        /// As it was asked for.
        array: String,
        /// Its socket.
        path: PathBuf,
    },
    /// The connection can't be made or broke.
    #[error("the connection to the server of {array} failed: {source}")]
    Io {
        /// As it was asked for.
        array: String,
        /// What the system said.
        source: io::Error,
    },
    /// The server hangs, or is very busy.
    #[error(
        "the server of {array} does not answer: it hangs, was halted, or the machine is very busy; see its log. If it stays so, end \
         its process, and serve the array again"
    )]
    Silent {
        /// As the array was asked for.
        array: String,
    },
    /// What came back is not what was asked for.
    #[error("the server of {array} sent an answer that can't be read: {what}")]
    Protocol {
        /// As the array was asked for.
        array: String,
        /// What is wrong.
        what: String,
    },
    /// The server ended.
    #[error("the server of {array} ended before it answered")]
    Ended {
        /// As the array was asked for.
        array: String,
    },
    /// The server refused, or failed at it.
    #[error("{0}")]
    Call(CallError),
}

/// Connects. Where the queue of a server that hangs is full, that waits as long as a send may take.
fn open(path: &Path) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let end = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&end, Timeout::Send, Some(SEND_LIMIT))?;
    retry_on_intr(|| connect(&end, &address))?;
    Ok(end.into())
}

/// A connection to a server.
pub struct Client {
    array: String,
    stream: BufReader<UnixStream>,
    next_id: u64,
}

impl Client {
    /// Connects to the server of `array`: a name, with or without its host (`host:name`), a UUID, or the path
    /// of a control socket.
    pub fn connect(array: &str) -> Result<Self, ClientError> {
        let mut connected = Self::connect_to(array, array);
        if matches!(connected, Err(ClientError::NotServed { .. }))
            && let Some(path) = place::by_uuid(array)
        {
            // A server that was killed has left its link, and another array may have its socket by now.
            let is_it =
                |detail: &Value| detail["uuid"].as_str().map(place::digits) == Some(place::digits(array));
            connected = Self::connect_to(array, &path.to_string_lossy()).and_then(|it| it.of(is_it));
        }
        let (Err(ClientError::NotServed { .. }), Some((_, short))) = (&connected, array.split_once(':'))
        else {
            return connected;
        };
        if short.is_empty() || array.contains('/') {
            return connected;
        }
        // Sockets are called by the name alone, and the array of another host may have the same one.
        let is_it = |detail: &Value| detail["full_name"] == array;
        match Self::connect_to(array, short).and_then(|it| it.of(is_it)) {
            Err(ClientError::NotServed { .. }) => connected,
            found => found,
        }
    }

    /// Itself, if the server's array is the one that was asked for.
    fn of(mut self, is_it: impl Fn(&Value) -> bool) -> Result<Self, ClientError> {
        self.set_timeout(Some(SEND_LIMIT))?;
        let detail: Value = self.call("detail", Value::Null)?;
        self.set_timeout(None)?;
        if is_it(&detail) {
            return Ok(self);
        }
        Err(ClientError::NotServed { array: self.array, path: PathBuf::new() })
    }

    fn connect_to(array: &str, name: &str) -> Result<Self, ClientError> {
        let mut last = None;
        for path in place::candidates(name) {
            match open(&path) {
                Ok(stream) => {
                    return Ok(Self { array: array.to_owned(), stream: BufReader::new(stream), next_id: 1 });
                }
                Err(error) => {
                    // The first place is where it most likely would be.
                    let better = last.is_none() || error.kind() == io::ErrorKind::PermissionDenied;
                    last = if better { Some((path, error)) } else { last };
                }
            }
        }
        let array = array.to_owned();
        Err(match last {
            Some((path, error)) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    ClientError::NotServed { array, path }
                }
                io::ErrorKind::PermissionDenied => ClientError::Permission { array, path },
                io::ErrorKind::WouldBlock => ClientError::Silent { array },
                _ => ClientError::Io { array, source: error },
            },
            None => ClientError::NotServed { array, path: PathBuf::new() },
        })
    }

    /// Gives up on an answer after `limit`; never without.
    pub fn set_timeout(&self, limit: Option<Duration>) -> Result<(), ClientError> {
        self.stream.get_ref().set_read_timeout(limit).map_err(|source| self.io(source))
    }

    /// As it was asked for.
    pub fn array(&self) -> &str {
        &self.array
    }

    /// Calls `method` and waits for its result.
    pub fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: impl Serialize,
    ) -> Result<T, ClientError> {
        let id = self.ask(method, params)?;
        let mut line = Vec::new();
        self.receive(&mut line)?;
        self.result(id, &line)
    }

    /// As [`Self::call`], with a look every `look` at how long it takes; `goes_on` says whether to wait on.
    /// No other limit holds.
    pub fn call_watched<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: impl Serialize,
        look: Duration,
        mut goes_on: impl FnMut(Duration) -> bool,
    ) -> Result<T, ClientError> {
        let before = self.stream.get_ref().read_timeout().map_err(|source| self.io(source))?;
        self.set_timeout(Some(look))?;
        let (id, begun) = (self.ask(method, params)?, Instant::now());
        let mut line = Vec::new();
        // What has come before a limit stays in the line.
        while let Err(error) = self.receive(&mut line) {
            if !matches!(error, ClientError::Silent { .. }) || !goes_on(begun.elapsed()) {
                return Err(error);
            }
        }
        self.set_timeout(before)?;
        self.result(id, &line)
    }

    /// Sends a request; its number.
    fn ask(&mut self, method: &str, params: impl Serialize) -> Result<u64, ClientError> {
        let id = self.next_id;
        self.next_id += 1;
        let params = serde_json::to_value(params).map_err(|error| self.protocol(&error))?;
        let request =
            Request { jsonrpc: VERSION.to_owned(), id: Some(id.into()), method: method.to_owned(), params };
        let line = serde_json::to_string(&request).map_err(|error| self.protocol(&error))? + "\n";
        self.stream.get_mut().write_all(line.as_bytes()).map_err(|source| self.io(source))?;
        Ok(id)
    }

    /// Receives the rest of a line. What greets its clients, as NBD does, speaks another language, and would
    /// be waited for in vain.
    fn receive(&mut self, line: &mut Vec<u8>) -> Result<(), ClientError> {
        if line.is_empty() {
            let read = self.stream.by_ref().take(1).read_to_end(line);
            read.map_err(|source| self.io(source))?;
            if line.first().is_some_and(|first| *first != b'{') {
                return Err(self.protocol(&"it is no control socket"));
            }
        }
        let limit = RESPONSE_BYTES_MAX.saturating_sub(line.len()) as u64;
        let read = self.stream.by_ref().take(limit).read_until(b'\n', line);
        read.map_err(|source| self.io(source))?;
        if line.last() != Some(&b'\n') {
            return Err(ClientError::Ended { array: self.array.clone() });
        }
        Ok(())
    }

    /// What the answer says.
    fn result<T: DeserializeOwned>(&self, id: u64, line: &[u8]) -> Result<T, ClientError> {
        let response: Response = serde_json::from_slice(line).map_err(|error| self.protocol(&error))?;
        if let Some(error) = response.error {
            return Err(ClientError::Call(error));
        }
        if response.id != id {
            return Err(self.protocol(&format!("the answer to call {} came, not to {id}", response.id)));
        }
        serde_json::from_value(response.result.unwrap_or(Value::Null)).map_err(|error| self.protocol(&error))
    }

    fn io(&self, source: io::Error) -> ClientError {
        let array = self.array.clone();
        match source.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ClientError::Ended { array },
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::Silent { array },
            _ => ClientError::Io { array, source },
        }
    }

    fn protocol(&self, what: &impl ToString) -> ClientError {
        ClientError::Protocol { array: self.array.clone(), what: what.to_string() }
    }
}
