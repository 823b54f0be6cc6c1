//! The server of the demo, a process of its own.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::failure::Failure;

/// A running `pinstripe serve`. It is killed if the demo ends early.
pub struct Server {
    child: Child,
    size_bytes: u64,
}

impl Server {
    /// Starts it and waits until it is ready.
    pub fn start(
        pinstripe: &Path,
        socket: &Path,
        control: &str,
        members: &[String],
    ) -> Result<Self, Failure> {
        println!("  $ pinstripe serve --nbd unix:nbd.sock --control control.sock member0 ... member5");
        let mut command = Command::new(pinstripe);
        command
            .args(["serve", "--json", "--control", control, "--nbd"])
            .arg(format!("unix:{}", socket.display()));
        let child = command.args(members).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut server = Self { child, size_bytes: 0 };
        let Some(output) = server.child.stdout.take() else {
            return Err(Failure::new("no output of the server"));
        };
        let mut lines = BufReader::new(output).lines();
        for line in lines.by_ref() {
            let line: Value = serde_json::from_str(&line?)?;
            if line["event"] == "ready" {
                server.size_bytes = line["size_bytes"].as_u64().unwrap_or(0);
                // The pipe is drained, or a full one would stop the server some day.
                std::thread::spawn(move || lines.for_each(drop));
                return Ok(server);
            }
        }
        Err(Failure::new("the demo failed: the server did not start"))
    }

    /// Bytes of the array.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Waits for its end after `stop`, which must be a good one.
    pub fn ended(mut self) -> Result<(), Failure> {
        let status = self.child.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(Failure::new(format!("the demo failed: the server ended with {status}")))
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Neither matters once it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
