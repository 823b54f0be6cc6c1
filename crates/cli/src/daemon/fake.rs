//! Servers for tests of what the daemon makes of their answers.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixListener,
    path::Path,
    sync::Arc,
    thread,
};

use serde_json::Value;

/// A server that answers each call as `answer` says, under the call's number; where that is nothing, never.
pub fn server(path: &Path, answer: impl Fn(&Value) -> Option<Value> + Send + Sync + 'static) {
    let listener = UnixListener::bind(path).unwrap();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), Arc::clone(&answer));
            thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                while let Some(Ok(line)) = lines.next() {
                    let call: Value = serde_json::from_str(&line).unwrap();
                    let Some(mut answer) = answer(&call) else { continue };
                    (answer["jsonrpc"], answer["id"]) = ("2.0".into(), call["id"].clone());
                    if writeln!(stream, "{answer}").is_err() {
                        break;
                    }
                }
            });
        }
    });
}
