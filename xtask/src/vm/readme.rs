//! What README.md tells a user to type, typed.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::Lab;

/// Where the reader waits for the server.
const UNTIL_READY: &str = "until pinstripe detail life >/dev/null 2>&1; do sleep 0.1; done";
/// That the server goes on with what is left, and mdadm could.
const AGAIN: &str = "pinstripe check life
pinstripe stop life
mdadm --examine a f c g e
rm a b c d e f g";

/// "The life of an array", and what is said at its end: that a server goes on with what is left. The array of
/// mdadm's needs this machine's kernel, and is left out.
pub fn life(lab: &Lab) -> Result<()> {
    let script = script(include_str!("../../../README.md"))?;
    play(lab, "life.log", &script)?;
    let said = play(lab, "again.log", &format!("pinstripe serve a f c g e &\n{UNTIL_READY}\n{AGAIN}"))?;
    ensure!(said.matches("State : clean").count() == 5, "mdadm says of what is left:\n{said}");
    Ok(())
}

/// Runs the commands; what they said. Each must succeed.
fn play(lab: &Lab, log: &str, script: &str) -> Result<String> {
    let log = lab.directory.join(log);
    let path = std::env::var("PATH")?;
    let folder = lab.pinstripe.parent().context("the program's folder")?;
    // Not by a pipe, whose end a server that is left would keep open.
    let output = File::create(&log)?;
    let shell = |script: &str| {
        let mut command = Command::new("timeout");
        command.args(["300", "sh", "-exc", script]).current_dir(&lab.directory).stdin(Stdio::null());
        command.env("PATH", format!("{}:{path}", folder.display()));
        command.env("PINSTRIPE_RUNTIME_DIR", &lab.sockets);
        command
    };
    let status = shell(script).stdout(output.try_clone()?).stderr(output).status()?;
    let said = fs::read_to_string(&log)?;
    if !status.success() {
        let _ = shell("pinstripe stop --all --force").stderr(Stdio::null()).status();
        let last: Vec<&str> = said.lines().rev().take(5).collect();
        bail!(
            "{status} after: {}; see {}",
            last.into_iter().rev().collect::<Vec<_>>().join("; "),
            log.display()
        );
    }
    Ok(said)
}

/// The section's commands.
fn script(readme: &str) -> Result<String> {
    let section =
        readme.split_once("\n## The life of an array\n").context("README.md has no such section")?.1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let blocks: Vec<&str> =
        section.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [first, rest] = blocks.as_slice() else {
        bail!("the section has {} blocks of commands, and not two", blocks.len())
    };
    let (rest, _) = rest.split_once("\nmdadm --assemble").context("it doesn't end with mdadm")?;
    Ok(format!("{first}{UNTIL_READY}\n{rest}"))
}
