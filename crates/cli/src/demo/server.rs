//! The server of the demo, a process of its own.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use serde_json::Value;

use crate::failure::Failure;

/// A running `pinstripe serve`. It is killed if the demo ends early.
pub struct Server {
    child: Child,
    size_bytes: u64,
    /// What it has told since it was ready.
    output: Arc<Mutex<Vec<String>>>,
    ended_well: bool,
}

impl Server {
    /// Starts it with more `options` and waits until it is ready. The user is shown them, and `names` in
    /// place of the members.
    pub fn start(
        pinstripe: &Path,
        (socket, control): (&Path, &str),
        options: &[&str],
        members: &[String],
        names: &str,
    ) -> Result<Self, Failure> {
        let shown = [options, &[names]].concat().join(" ");
        println!("  $ pinstripe serve --nbd unix:nbd.sock --control control.sock {shown}");
        let mut command = Command::new(pinstripe);
        command
            .args(["serve", "--json", "--control", control, "--nbd"])
            .arg(format!("unix:{}", socket.display()));
        let child =
            command.args(options).args(members).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = Arc::<Mutex<Vec<String>>>::default();
        let mut server = Self { child, size_bytes: 0, output: Arc::clone(&output), ended_well: false };
        let Some(stdout) = server.child.stdout.take() else {
            return Err(Failure::new("no output of the server"));
        };
        let mut lines = BufReader::new(stdout).lines();
        for line in lines.by_ref() {
            let line: Value = serde_json::from_str(&line?)?;
            if line["event"] == "ready" {
                server.size_bytes = line["size_bytes"].as_u64().unwrap_or(0);
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
            self.ended_well = true;
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
        if !self.ended_well {
            for line in self.output.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                eprintln!("    {line}");
            }
        }
    }
}
