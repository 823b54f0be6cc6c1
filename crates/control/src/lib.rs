//! What programs share with a running server: the control protocol, and how values look to a person.
//!
//! [`client`] calls a server, [`place`] finds it. [`size`] and [`text`] read and show values.
//!
//! `docs/control-protocol.md` describes the protocol to authors of other clients. Here, each type says of
//! which method it is.

#![forbid(unsafe_code)]

pub mod client;
pub mod daemon;
pub mod detail;
pub mod fuzz;
pub mod latency;
pub mod limit;
pub mod maintenance;
pub mod place;
pub mod record;
pub mod size;
pub mod text;

pub use detail::Detail;
use limit::LimitParameters;
use maintenance::{CheckParameters, EventsParameters, RepairParameters, SyncParameters};
use record::RecordParameters;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Bytes of a request with its newline; a longer one ends its connection.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Bytes of a response that a client takes.
pub const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// JSON-RPC's version.
pub const VERSION: &str = "2.0";

/// Counts changes after which an older client would misread a server, or the other way round. What is added
/// (methods, parameters that can be left out, fields of results) doesn't count: a reader ignores what it
/// doesn't know.
pub const PROTOCOL: u32 = 1;

/// Error codes: JSON-RPC's own, and ours.
pub mod code {
    /// What came is no JSON.
    pub const PARSE: i64 = -32700;
    /// It is JSON, but no request.
    pub const INVALID: i64 = -32600;
    /// There is no such method.
    pub const NO_METHOD: i64 = -32601;
    /// The parameters don't fit the method.
    pub const PARAMETERS: i64 = -32602;
    /// It was tried and failed; `detail` shows what is now.
    pub const FAILED: i64 = -32000;
    /// What the array is, or what a device holds, forbids it. Nothing was changed.
    pub const REFUSED: i64 = -32001;
    /// There is no such slot, member, spare or device. Nothing was changed.
    pub const NOT_FOUND: i64 = -32002;
    /// Clients use the array. Nothing was changed.
    pub const IN_USE: i64 = -32003;
    /// The server is about to end.
    pub const STOPPING: i64 = -32004;
}

/// A call. Without an `id` it is a notification: it is done and not answered.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`].
    pub jsonrpc: String,
    /// Comes back with the response; none for a notification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Value>,
    /// See the module.
    pub method: String,
    /// See the module; null without parameters.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub params: Value,
}

/// The answer: a result or an error.
#[derive(Debug, Serialize, Deserialize)]
pub struct Response {
    /// [`VERSION`].
    pub jsonrpc: String,
    /// The request's.
    #[serde(default)]
    pub id: Value,
    /// Of a call that was carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Of a call that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallError>,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// One of [`code`].
    pub code: i64,
    /// A sentence.
    pub message: String,
}

impl CallError {
    /// An error.
    pub fn new(code: i64, message: &(impl ToString + ?Sized)) -> Self {
        Self { code, message: message.to_string() }
    }
}

/// All methods.
pub const METHODS: &[&str] = &[
    "version",
    "detail",
    "fail",
    "add",
    "remove",
    "replace",
    "bitmap",
    "grow",
    "journal_mode",
    "check",
    "repair",
    "sync",
    "limit",
    "record",
    "events",
    "upgrade",
    "stop",
];

/// A command, with its parameters checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Say what answers.
    Version,
    /// Show the state.
    Detail,
    /// Take a member out.
    Fail(MemberName),
    /// Put a device in.
    Add(AddParameters),
    /// Change the consistency policy.
    Grow(GrowParameters),
    /// Say where writes are acknowledged from.
    JournalMode(JournalModeParameters),
    /// Take a failed device or a spare out.
    Remove(MemberName),
    /// Replace a member.
    Replace(ReplaceParameters),
    /// Add or remove the bitmap.
    Bitmap(BitmapParameters),
    /// Compare data with parity.
    Check(CheckParameters),
    /// Compare data with parity, and correct what does not match.
    Repair(RepairParameters),
    /// Pause, resume or stop maintenance, or set its limits.
    Sync(SyncParameters),
    /// Limit what clients ask for.
    Limit(LimitParameters),
    /// Record what clients ask for.
    Record(RecordParameters),
    /// Tell what happened.
    Events(EventsParameters),
    /// Let another program take the server's place.
    Upgrade(UpgradeParameters),
    /// End.
    Stop(StopParameters),
}

/// Of `version`: what answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// [`PROTOCOL`], as the server has it.
    pub protocol: u32,
    /// Pinstripe's version.
    pub pinstripe: String,
    /// Names this run of the server; another run has another one.
    pub instance: String,
    /// The server's process.
    pub pid: u32,
}

/// Of `fail` and `remove`: one of `slot`, `device` (an absolute path) and, of `fail` alone, `journal` (true).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberName {
    /// By its slot, from 0.
    Slot(u16),
    /// By its device or URI.
    Device(String),
    /// The journal, with `true`.
    Journal(bool),
}

/// Of `grow`, and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrowParameters {
    /// `resync`, `bitmap`, `ppl` or `double-parity-log`.
    pub consistency_policy: String,
}

/// Of `journal_mode`, and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalModeParameters {
    /// `write-through` or `write-back`.
    pub journal_mode: String,
}

/// Of `add`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddParameters {
    /// Absolute path or URI.
    pub device: String,
    /// Take it though it holds something else.
    #[serde(default)]
    pub force: bool,
    /// Take it also if it is a spare of the array with this UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare_of: Option<String>,
}

/// Of `replace`: one of `slot` and `device`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplaceParameters {
    /// The slot whose member is replaced.
    #[serde(default)]
    pub slot: Option<u16>,
    /// Or the device of that member.
    #[serde(default)]
    pub device: Option<String>,
    /// Absolute path or URI of the new device; a spare without.
    #[serde(default)]
    pub with: Option<String>,
    /// Take it though it holds something else.
    #[serde(default)]
    pub force: bool,
}

/// Of `upgrade`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpgradeParameters {
    /// Absolute path of the program that takes the server's place.
    pub program: String,
}

/// Of `upgrade`, from the program that has taken the place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeResult {
    /// The version before.
    pub from: String,
    /// The version that answers.
    pub to: String,
    /// Milliseconds for which requests waited.
    pub pause_ms: u64,
    /// Connections of clients that went over.
    pub connections: u64,
}

/// Of `stop`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopParameters {
    /// Even if clients are connected.
    #[serde(default)]
    pub force: bool,
}

/// Of `bitmap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BitmapParameters {
    /// Whether there is to be one.
    pub internal: bool,
    /// Bytes that a bit covers; chosen by size without.
    #[serde(default)]
    pub chunk_bytes: Option<u64>,
}

/// Of `add`: what became of the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddResult {
    /// The slot that it takes; none for a spare.
    pub slot: Option<usize>,
    /// `full`, `bitmap`, or `none` for a spare.
    pub recovery: String,
}

/// Of `fail`, `remove` and `replace`: the device that it was about; its slot, if it had one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceResult {
    /// The slot that it concerns; none for a spare or a journal.
    #[serde(default)]
    pub slot: Option<usize>,
    /// The device or URI.
    pub device: String,
}

/// The id to answer with, and what is wrong with a request.
pub type Invalid = (Value, CallError);

/// Reads a request of any method.
pub(crate) fn request(line: &[u8]) -> Result<(Option<Value>, Request), Invalid> {
    let value: Value =
        serde_json::from_slice(line).map_err(|e| (Value::Null, CallError::new(code::PARSE, &e)))?;
    let id = value.get("id").cloned();
    let to = id.clone().unwrap_or(Value::Null);
    let invalid = |message: String| (to.clone(), CallError::new(code::INVALID, &message));
    if value.is_array() {
        return Err(invalid("batches are not supported: send one request a line".to_owned()));
    }
    // What is no whole number of 64 bits is rounded when it is read: the answer would go to another id.
    let is_rounded = matches!(&id, Some(Value::Number(number)) if number.is_f64());
    if is_rounded || matches!(id, Some(Value::Array(_) | Value::Object(_) | Value::Bool(_))) {
        let words = "an id is a string, a whole number of 64 bits, or null";
        return Err((Value::Null, CallError::new(code::INVALID, words)));
    }
    let request: Request = serde_json::from_value(value).map_err(|error| invalid(error.to_string()))?;
    if request.jsonrpc != VERSION {
        return Err(invalid("\"jsonrpc\" must be \"2.0\"".to_owned()));
    }
    Ok((id, request))
}

pub(crate) fn no_method(name: &str, methods: &[&str]) -> CallError {
    let message = format!("there is no method \"{name}\"; there are: {}", methods.join(", "));
    CallError::new(code::NO_METHOD, &message)
}

/// Reads a request to a server.
pub fn parse(line: &[u8]) -> Result<(Option<Value>, Command), Invalid> {
    let (id, request) = request(line)?;
    let to = id.clone().unwrap_or(Value::Null);
    let bad = |error: serde_json::Error| (to.clone(), CallError::new(code::PARAMETERS, &error));
    let command = match request.method.as_str() {
        "version" => nothing(&request).map(|()| Command::Version).map_err(|error| (to.clone(), error))?,
        "detail" => nothing(&request).map(|()| Command::Detail).map_err(|error| (to.clone(), error))?,
        "fail" => Command::Fail(serde_json::from_value(request.params).map_err(bad)?),
        "add" => Command::Add(serde_json::from_value(request.params).map_err(bad)?),
        "remove" => Command::Remove(serde_json::from_value(request.params).map_err(bad)?),
        "replace" => Command::Replace(serde_json::from_value(request.params).map_err(bad)?),
        "bitmap" => Command::Bitmap(serde_json::from_value(request.params).map_err(bad)?),
        "check" => Command::Check(optional(request.params).map_err(bad)?),
        "repair" => Command::Repair(optional(request.params).map_err(bad)?),
        "sync" => Command::Sync(optional(request.params).map_err(bad)?),
        "limit" => Command::Limit(optional(request.params).map_err(bad)?),
        "record" => Command::Record(serde_json::from_value(request.params).map_err(bad)?),
        "events" => Command::Events(optional(request.params).map_err(bad)?),
        "grow" => Command::Grow(serde_json::from_value(request.params).map_err(bad)?),
        "journal_mode" => Command::JournalMode(serde_json::from_value(request.params).map_err(bad)?),
        "upgrade" => Command::Upgrade(serde_json::from_value(request.params).map_err(bad)?),
        "stop" => Command::Stop(optional(request.params).map_err(bad)?),
        other => return Err((to, no_method(other, METHODS))),
    };
    Ok((id, command))
}

/// Refuses parameters of a method that has none.
pub(crate) fn nothing(request: &Request) -> Result<(), CallError> {
    if request.params.is_null() || request.params == Value::Object(serde_json::Map::new()) {
        return Ok(());
    }
    let words = format!("\"{}\" has no parameters", request.method);
    Err(CallError::new(code::PARAMETERS, &words))
}

/// Parameters of a method that can do without any.
fn optional<T: serde::de::DeserializeOwned + Default>(params: Value) -> Result<T, serde_json::Error> {
    if params.is_null() { Ok(T::default()) } else { serde_json::from_value(params) }
}

/// The answer as a line.
pub fn response(id: Value, outcome: Result<Value, CallError>) -> String {
    let (result, error) = match outcome {
        Ok(value) => (Some(value), None),
        Err(error) => (None, Some(error)),
    };
    // `result` must stand there even if it is null.
    let mut response = serde_json::Map::new();
    response.insert("jsonrpc".to_owned(), VERSION.into());
    response.insert("id".to_owned(), id);
    match error {
        None => response.insert("result".to_owned(), result.unwrap_or(Value::Null)),
        Some(error) => response
            .insert("error".to_owned(), serde_json::json!({ "code": error.code, "message": error.message })),
    };
    Value::Object(response).to_string() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(line: &str) -> i64 {
        parse(line.as_bytes()).unwrap_err().1.code
    }

    #[test]
    fn a_request_is_read_with_its_parameters() {
        let line = br#"{"jsonrpc":"2.0","id":7,"method":"fail","params":{"slot":3}}"#;
        assert_eq!(parse(line).unwrap(), (Some(7.into()), Command::Fail(MemberName::Slot(3))));
        let (id, command) = parse(br#"{"jsonrpc":"2.0","method":"detail"}"#).unwrap();
        assert_eq!((id, command), (None, Command::Detail), "a notification");
    }

    #[test]
    fn parameters_of_a_method_that_has_none_are_refused() {
        for method in ["version", "detail"] {
            let line = |params: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"{params}}}"#);
            for bad in [r#"{"x":1}"#, "[1]", "3", r#""x""#] {
                assert_eq!(
                    error_of(&line(&format!(r#","params":{bad}"#))),
                    code::PARAMETERS,
                    "{method} {bad}"
                );
            }
            for good in ["", r#","params":{}"#, r#","params":null"#] {
                assert!(parse(line(good).as_bytes()).is_ok(), "{method} {good}");
            }
        }
    }

    #[test]
    fn what_is_wrong_with_a_request_is_named_by_the_code() {
        assert_eq!(error_of("hello"), code::PARSE);
        assert_eq!(error_of("[]"), code::INVALID);
        assert_eq!(error_of("3"), code::INVALID);
        assert_eq!(error_of(r#"{"jsonrpc":"1.0","id":1,"method":"detail"}"#), code::INVALID);
        assert_eq!(error_of(r#"{"jsonrpc":"2.0","id":{},"method":"detail"}"#), code::INVALID);
        assert_eq!(error_of(r#"{"jsonrpc":"2.0","id":1.5,"method":"detail"}"#), code::INVALID);
        assert_eq!(error_of(r#"{"jsonrpc":"2.0","id":1,"method":"format"}"#), code::NO_METHOD);
        for params in
            ["{}", r#"{"slot":-1}"#, r#"{"slot":70000}"#, r#"{"disk":1}"#, r#"{"slot":1,"x":2}"#, "null"]
        {
            let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"fail","params":{params}}}"#);
            assert_eq!(error_of(&line), code::PARAMETERS, "{params}");
        }
    }

    #[test]
    fn every_method_is_known_and_told() {
        for method in METHODS {
            let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
            let known =
                parse(line.as_bytes()).map_or_else(|(_, error)| error.code != code::NO_METHOD, |_| true);
            assert!(known, "{method}");
        }
        let told = parse(br#"{"jsonrpc":"2.0","id":1,"method":"format"}"#).unwrap_err().1.message;
        assert!(told.contains("version, detail, fail"), "{told}");
    }

    #[test]
    fn the_document_has_every_method_and_code_and_its_calls_are_calls() {
        let document = include_str!("../../../docs/control-protocol.md");
        for method in METHODS {
            assert!(document.contains(&format!("| `{method}` |")), "{method} is missing");
        }
        for code in [
            code::PARSE,
            code::INVALID,
            code::NO_METHOD,
            code::PARAMETERS,
            code::FAILED,
            code::REFUSED,
            code::NOT_FOUND,
            code::IN_USE,
            code::STOPPING,
        ] {
            assert!(document.contains(&format!("| {code} |")), "{code} is missing");
        }
        assert!(document.contains(&format!("This is version {PROTOCOL} of the protocol")));
        let calls = document
            .lines()
            .filter(|line| line.starts_with(r#"{"jsonrpc":"2.0","id":"#) && line.contains("method"));
        let wrong: Vec<_> = calls.clone().filter(|call| parse(call.as_bytes()).is_err()).collect();
        assert!(calls.count() > METHODS.len() && wrong.is_empty(), "{wrong:?}");
    }

    #[test]
    fn an_answer_has_a_result_or_an_error() {
        assert_eq!(response(1.into(), Ok(Value::Null)), "{\"id\":1,\"jsonrpc\":\"2.0\",\"result\":null}\n");
        let failed: Value =
            serde_json::from_str(&response(1.into(), Err(CallError::new(-32000, "no")))).unwrap();
        assert_eq!(failed["error"]["message"], "no");
        assert!(failed.get("result").is_none());
    }
}
