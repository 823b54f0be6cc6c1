//! A `pinstripe serve` as a process of its own, for `demo` and `bench --through`.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use serde_json::Value;

use crate::{failure::Failure, output};

/// A running `pinstripe serve`. It is killed if its user ends early.
pub struct ServerProcess {
    child: Child,
    /// The line by which it said that it is ready.
    ready: Value,
    /// What it has told since it was ready.
    output: Arc<Mutex<Vec<String>>>,
    ended_well: bool,
}

impl ServerProcess {
    /// Starts `serve`, which has `--json` among its options, and waits until it is ready.
    pub fn start(mut serve: Command) -> Result<Self, Failure> {
        let child = serve.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = Arc::<Mutex<Vec<String>>>::default();
        let mut server = Self { child, ready: Value::Null, output: Arc::clone(&output), ended_well: false };
        let Some(stdout) = server.child.stdout.take() else {
            return Err(Failure::new("no output of the server"));
        };
        let mut lines = BufReader::new(stdout).lines();
        for line in lines.by_ref() {
            let line: Value = serde_json::from_str(&line?)?;
            if line["event"] == "ready" {
                server.ready = line;
                // The pipe is drained, or a full one would stop the server some day.
                let begun = Instant::now();
                std::thread::spawn(move || {
                    for line in lines.map_while(Result::ok) {
                        output
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(format!("{:.1} s: {line}", begun.elapsed().as_secs_f64()));
                    }
                });
                return Ok(server);
            }
        }
        Err(Failure::new("the server did not start"))
    }

    /// Bytes of the array.
    pub fn size_bytes(&self) -> u64 {
        self.ready["size_bytes"].as_u64().unwrap_or(0)
    }

    /// Where this protocol is served.
    pub fn address(&self, protocol: &str) -> Option<&str> {
        let mut addresses = self.ready["addresses"].as_array().into_iter().flatten();
        addresses.find(|address| address["protocol"] == protocol)?["uri"].as_str()
    }

    /// Waits for its end after `stop`, which must be a good one.
    pub fn ended(mut self) -> Result<(), Failure> {
        let status = self.child.wait()?;
        if status.success() {
            self.ended_well = true;
            Ok(())
        } else {
            Err(Failure::new(format!("the server ended with {status}")))
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Neither matters once it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !self.ended_well {
            for line in self.output.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                output::remark(&format!("    {line}"));
            }
        }
    }
}
