//! One body for the fuzz target and for a test: whatever comes over the control socket, to the server or to
//! the client, is understood or refused in words.

use serde_json::Value;

use super::{CallError, Detail, Response, VERSION, code, parse, response};

/// Takes `data` for a request, for a response and for a state, as either end would.
///
/// # Panics
///
/// If one of them breaks its promises.
#[doc(hidden)]
pub fn fuzz_control(data: &[u8]) {
    for line in data.split_inclusive(|byte| *byte == b'\n') {
        server_takes(line);
        client_takes(line);
    }
}

/// A refusal has a code of JSON-RPC's and goes to a legal id; an answer is one line, which the client
/// understands.
fn server_takes(line: &[u8]) {
    let (id, outcome) = match parse(line) {
        Ok((id, _)) => (id.unwrap_or(Value::Null), Ok(Value::Null)),
        Err((id, error)) => {
            let known = [code::PARSE, code::INVALID, code::NO_METHOD, code::PARAMETERS];
            assert!(known.contains(&error.code) && !error.message.is_empty(), "{error:?}");
            (id, Err(error))
        }
    };
    assert!(!id.is_array() && !id.is_object() && !id.is_boolean(), "an answer to the id {id}");
    let text = response(id.clone(), outcome.clone());
    assert!(text.ends_with('\n') && text.matches('\n').count() == 1, "not one line: {text:?}");
    let answer: Response = serde_json::from_str(&text).expect("an answer is JSON");
    assert_eq!((answer.jsonrpc.as_str(), &answer.id), (VERSION, &id));
    assert_eq!(answer.error, outcome.err());
}

/// A response's error and a state can be shown to a person.
fn client_takes(line: &[u8]) {
    if let Ok(answer) = serde_json::from_slice::<Response>(line) {
        let again = serde_json::to_vec(&answer).expect("it came as JSON");
        assert!(serde_json::from_slice::<Response>(&again).is_ok());
        let _ = answer.error.as_ref().map(CallError::to_string);
    }
    if let Ok(detail) = serde_json::from_slice::<Detail>(line) {
        let words = detail.in_words();
        assert!(!words.contains('\u{1b}'), "a terminal would obey it: {words:?}");
        let again = serde_json::to_vec(&detail).expect("it came as JSON");
        assert_eq!(serde_json::from_slice::<Detail>(&again).ok().as_ref(), Some(&detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_comes_is_understood_or_refused_in_words() {
        for line in [
            "",
            "{}",
            "[]",
            "null",
            "\"\\ud800\"",
            r#"{"jsonrpc":"2.0","id":1.5e300,"method":"detail"}"#,
            r#"{"jsonrpc":"2.0","id":72222777777777777777777777777777777777777777777777,"method":"detail"}"#,
            r#"{"jsonrpc":"2.0","id":"a\nb","method":"fail","params":{"slot":1}}"#,
            r#"{"jsonrpc":"2.0","id":[1],"method":"stop"}"#,
            r#"{"jsonrpc":"1.0","id":true}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}"#,
        ] {
            fuzz_control(line.as_bytes());
        }
        fuzz_control("[".repeat(100_000).as_bytes());
    }
}
