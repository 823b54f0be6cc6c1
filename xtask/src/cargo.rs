//! Calls the cargo that runs this program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Its path.
pub fn path() -> PathBuf {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()).into()
}

/// A call of it.
pub fn command() -> Command {
    let mut command = Command::new(path());
    forget_this_package(&mut command);
    command
}

/// Takes from the environment of a command what cargo told this program of its own package. There are build
/// scripts that run anew where it has changed, and with them all is built again that rests on their crates.
pub fn forget_this_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let of_package = |text: &str| text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(of_package) {
            command.env_remove(name);
        }
    }
}

/// Builds with these arguments, and tells where the program of this name is.
pub fn build(root: &Path, arguments: &[&str], name: &str) -> Result<PathBuf> {
    let built = command()
        .args(arguments)
        .args(["--quiet", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .current_dir(root)
        .output()
        .context("run cargo")?;
    let messages = String::from_utf8_lossy(&built.stdout).into_owned();
    let program = messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let program = message.get("executable")?.as_str()?;
        (message["target"]["name"] == name).then(|| PathBuf::from(program))
    });
    match program {
        Some(program) if built.status.success() => Ok(program),
        _ => bail!("cargo {} makes no {name}", arguments.join(" ")),
    }
}
