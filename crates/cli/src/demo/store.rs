//! A storage server of the demo, a process of its own.

use std::{
    io::{BufRead, BufReader, Lines},
    process::{Child, ChildStdout, Command, Stdio},
};

use serde_json::Value;

use super::{link::Link, shell::Shell};
use crate::failure::Failure;

/// A running `pinstripe target` behind its link. It is killed if the demo ends early.
pub struct Store {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
    nqn: String,
    link: Link,
    namespaces: Vec<String>,
}

impl Store {
    /// Starts server `number` with files as namespaces, and waits until it is ready.
    pub fn start(shell: &Shell, number: usize, files: &[String]) -> Result<Self, Failure> {
        let link = Link::new()?;
        let nqn = format!("nqn.2026-01.com.example:store{number}");
        let state = shell.folder().join(format!("state{number}")).display().to_string();
        let announced = link.address().to_string();
        let (ways, name) = (["--listen", "127.0.0.1:0", "--announce", &announced], ["--nqn", &nqn]);
        let options = [
            &["target"][..],
            &ways,
            &name,
            &["--state", &state, "--state-create", "--allow-unauthenticated"],
        ]
        .concat();
        println!(
            "  $ pinstripe {}",
            shell.abbreviated(&format!("{} {}", options.join(" "), files.join(" ")))
        );
        let mut command = Command::new(shell.pinstripe());
        command.args(options).args(["--json", "--shards", "1"]).args(files);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let Some(output) = child.stdout.take() else {
            return Err(Failure::new("no output of the target"));
        };
        let output = BufReader::new(output).lines();
        let mut store = Self { child, output, nqn, link, namespaces: Vec::new() };
        let ready = store.line()?.filter(|line| line["event"] == "ready");
        let Some(ready) = ready else { return Err(Failure::new("the demo failed: a target did not start")) };
        let address = ready["address"].as_str().unwrap_or_default().parse()?;
        store.link.lead_to(address);
        let names = ready["namespaces"].as_array().into_iter().flatten();
        store.namespaces = names.filter_map(|name| Some(name.as_str()?.to_owned())).collect();
        Ok(store)
    }

    fn line(&mut self) -> Result<Option<Value>, Failure> {
        match self.output.next() {
            Some(line) => Ok(Some(serde_json::from_str(&line?)?)),
            None => Ok(None),
        }
    }

    /// Its name, by which it goes to other servers too.
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// The way to it.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Its files, as members of an array name them.
    pub fn namespaces(&self) -> &[String] {
        &self.namespaces
    }

    /// It is gone in the middle of what it does.
    pub fn kill(&mut self) -> Result<(), Failure> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Ends it well; what it did for arrays.
    pub fn stop(mut self) -> Result<Value, Failure> {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM)?;
        let mut done = Value::Null;
        while let Some(line) = self.line()? {
            if line["event"] == "stopped" {
                done = line["offload"].clone();
            }
        }
        let status = self.child.wait()?;
        if status.success() {
            Ok(done)
        } else {
            Err(Failure::new(format!("the demo failed: a target ended with {status}")))
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Neither matters once it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
