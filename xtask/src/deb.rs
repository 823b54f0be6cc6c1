//! `cargo xtask deb`: the Debian package, with what can be checked of it without installing it.
//!
//! ```text
//!   parts      target/deb: manual pages, completions, changelog, made by the release build and git
//!   checks     every command has its page, shells can read the completions, systemd takes the units and
//!              finds them hardened, an idle server is small
//!   package    cargo-deb puts parts and packaging/ together; crates/cli/Cargo.toml says what goes where
//!   checks     the package has what it should have, and lintian finds nothing
//! ```

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

/// The version of cargo-deb that is installed under `target/tools`.
const CARGO_DEB: &str = "3.8.0";
/// `systemd-analyze security` may say this much, in tenths, of the units as they are: the one that serves
/// anything, and the daemon's, which has what smartctl needs.
const EXPOSURE: u32 = 25;
/// And this much of an array that is mounted for all, of which the system can't be hidden.
const EXPOSURE_WITH_FUSE: u32 = 38;
/// And this much of what sends alerts: what it runs is for the configuration to say.
const EXPOSURE_OF_ALERTS: u32 = 70;
/// And this much of an array without ublk and fuse, as systemd's generator has it, and of the daemon without
/// capabilities.
const EXPOSURE_WITHOUT_CAPABILITIES: u32 = 20;
/// An idle server with two shards has no more resident than this, in KiB: 40 MB.
const IDLE_KIB: u64 = 40_000_000 / 1024;
/// Files of the package beside the manual pages.
const CONTENTS: &[&str] = &[
    "etc/needrestart/conf.d/50-pinstripe.conf",
    "etc/pinstripe/pinstripe.toml",
    "usr/bin/pinstripe",
    "usr/lib/systemd/system-generators/pinstripe-generator",
    "usr/lib/systemd/system/pinstripe-alert.socket",
    "usr/lib/systemd/system/pinstripe-alert@.service",
    "usr/lib/systemd/system/pinstripe-daemon.service",
    "usr/lib/systemd/system/pinstripe-ramdisk.service",
    "usr/lib/systemd/system/pinstripe-target@.service",
    "usr/lib/systemd/system/pinstripe.target",
    "usr/lib/systemd/system/pinstripe@.service",
    "usr/lib/tmpfiles.d/pinstripe.conf",
    "usr/lib/udev/rules.d/63-pinstripe.rules",
    "usr/share/bash-completion/completions/pinstripe",
    "usr/share/doc/pinstripe/changelog.Debian.gz",
    "usr/share/doc/pinstripe/copyright",
    "usr/share/fish/vendor_completions.d/pinstripe.fish",
    "usr/share/initramfs-tools/hooks/pinstripe",
    "usr/share/lintian/overrides/pinstripe",
    "usr/share/pinstripe/grafana/pinstripe.json",
    "usr/share/pinstripe/prometheus/pinstripe.rules.yml",
    "usr/share/zsh/vendor-completions/_pinstripe",
];
/// The documents that it has. What they point to beside each other and beside [`DIST`] isn't there.
const DOCUMENTS: &[&str] = &[
    "admin.md",
    "configuration.md",
    "control-protocol.md",
    "fault-model.md",
    "install.md",
    "metrics.md",
    "operate.md",
];
/// The folder with what is for other programs, as documents point to it, and where the package has it.
const DIST: [&str; 2] = ["../dist/", "/usr/share/pinstripe/"];
/// The unit of what is done beside serving, and those that it has send alerts.
const DAEMON: &str = "pinstripe-daemon.service";
const ALERT: [&str; 2] = ["pinstripe-alert.socket", "pinstripe-alert@.service"];
/// The unit that has the initial ramdisk made anew.
const RAMDISK: &str = "pinstripe-ramdisk.service";
/// The daemon's unit with the drop-in file that it names.
const DAEMON_ALONE: &str = "pinstripe-daemon-alone.service";
/// One array of every kind that has a unit of its own kind, and a target.
const CONFIGURATION: &str = "\
[[array]]\nname = \"plain\"\nweight = 200\n\
[[array]]\nname = \"ublk\"\nublk = true\n\
[[array]]\nname = \"sockets\"\nvhost-user = \"/run/vm/a\"\nsocket-group = \"disk\"\n\
[[array]]\nname = \"fuse\"\nfuse = \"/srv/disk\"\nmembers = [\"/srv/a\", \"/srv/b\"]\n\
[[array]]\nname = \"remote\"\ndhchap-secrets = \"/etc/pinstripe/secrets\"\n\
members = [\"nvme-tcp://192.0.2.1:4420/nqn.2026-01.com.example:a?nsid=1\"]\n\
[[target]]\nname = \"store\"\nlisten = \"192.0.2.1:4420\"\nnqn = \"nqn.2026-01.com.example:a\"\n\
devices = [\"/dev/disk/by-id/a\", \"/srv/a b\"]\ndhchap-hosts = \"/etc/pinstripe/hosts\"\nstate = \"/var/lib/pinstripe\"\n";

/// Make the Debian package under target/debian, and check it.
#[derive(Args)]
pub struct Deb {
    /// Make and check what goes into it, and leave the package itself
    #[arg(long)]
    parts: bool,
}

pub fn run(root: &Path, deb: &Deb) -> Result<()> {
    crate::packages::ensure_deb()?;
    let parts = Parts::make(root)?;
    parts.check_pages()?;
    parts.check_completions()?;
    parts.check_units(root)?;
    parts.check_memory()?;
    check_needrestart(root)?;
    if deb.parts {
        println!("deb: the parts are right");
        return Ok(());
    }
    println!("deb: {}", parts.package(root)?.display());
    Ok(())
}

/// The package, with the checks of it as it is and of its completions: where it is. Its units are started
/// where this is for.
pub fn package(root: &Path) -> Result<PathBuf> {
    crate::packages::ensure_deb()?;
    let parts = Parts::make(root)?;
    parts.check_completions()?;
    parts.package(root)
}

/// The output of a command that must succeed. `from` says where to get it.
fn said(command: &mut Command, from: &str) -> Result<String> {
    let output = command.output().with_context(|| format!("run {command:?} ({from})"))?;
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{command:?}: {}\n{text}", output.status);
    }
    Ok(text)
}

/// What is made for the package.
struct Parts {
    /// target/deb.
    folder: PathBuf,
    /// The program of the package.
    program: PathBuf,
}

impl Parts {
    fn make(root: &Path) -> Result<Self> {
        crate::vm::build_command(root)?;
        let parts = Self { folder: root.join("target/deb"), program: root.join("target/release/pinstripe") };
        let _ = fs::remove_dir_all(&parts.folder);
        fs::create_dir_all(parts.folder.join("completions"))?;
        said(parts.pinstripe(&["man", "--folder"]).arg(parts.folder.join("man")), "pinstripe")?;
        for (shell, file) in COMPLETIONS {
            let script = said(&mut parts.pinstripe(&["completions", shell]), "pinstripe")?;
            fs::write(parts.folder.join("completions").join(file), script)?;
        }
        fs::write(parts.folder.join("changelog"), changelog(root)?)?;
        fs::create_dir_all(parts.folder.join("doc"))?;
        for name in DOCUMENTS {
            let text = fs::read_to_string(root.join("docs").join(name))?;
            fs::write(parts.folder.join("doc").join(name), for_package(&text))?;
        }
        Ok(parts)
    }

    /// Puts them together, and checks what has come of it.
    fn package(&self, root: &Path) -> Result<PathBuf> {
        let package = build(root)?;
        check_contents(&package, &self.pages()?)?;
        said(
            Command::new("lintian").args(["--fail-on", "error,warning"]).arg(&package),
            "lintian: apt-get install lintian",
        )?;
        Ok(package)
    }

    fn pinstripe(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words);
        command
    }

    /// The names of the manual pages.
    fn pages(&self) -> Result<BTreeSet<String>> {
        let entries = fs::read_dir(self.folder.join("man"))?;
        Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
    }

    fn check_pages(&self) -> Result<()> {
        let help = said(&mut self.pinstripe(&["help"]), "pinstripe")?;
        let mut wanted: BTreeSet<String> =
            commands(&help).map(|name| format!("pinstripe-{name}.1")).collect();
        wanted.insert("pinstripe.1".to_owned());
        same("manual pages", &wanted, &self.pages()?)
    }

    /// Shells that are here must be able to read theirs.
    fn check_completions(&self) -> Result<()> {
        for (shell, file) in COMPLETIONS {
            let script = self.folder.join("completions").join(file);
            let is_here = Command::new(shell).arg("-c").arg(":").output().is_ok();
            if is_here {
                said(Command::new(shell).arg("-n").arg(script), shell)?;
            }
        }
        Ok(())
    }

    /// What an idle server takes: many arrays of a machine have one each.
    fn check_memory(&self) -> Result<()> {
        let folder = self.folder.join("idle");
        fs::create_dir_all(&folder)?;
        let here = |words: &[&str]| {
            let mut command = self.pinstripe(words);
            command.current_dir(&folder).env("PINSTRIPE_RUNTIME_DIR", folder.join("run"));
            command
        };
        let members = ["member0", "member1", "member2"];
        for member in members {
            fs::File::create(folder.join(member))?.set_len(8 << 20)?;
        }
        let create = ["create", "--level", "5", "--name", "idle", "--assume-clean"];
        said(here(&create).args(members), "pinstripe")?;
        let serve = ["serve", "--shards", "2", "--json"];
        let mut server = here(&serve).args(members).stdout(Stdio::piped()).spawn()?;
        let output = server.stdout.take().context("standard output is a pipe")?;
        // Read until the server's end: what it says at last has a reader.
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let ready = lines.any(|line| line.contains("\"ready\""));
        let status = fs::read_to_string(format!("/proc/{}/status", server.id()));
        if let Err(error) = said(&mut here(&["stop", "--all"]), "pinstripe") {
            server.kill()?;
            return Err(error);
        }
        ensure!(server.wait()?.success() && ready, "the idle server has failed");
        let status = status?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        let kib: u64 = resident.trim().trim_end_matches(" kB").parse().context("its memory")?;
        ensure!(kib <= IDLE_KIB, "an idle server has {kib} KiB of memory, more than {IDLE_KIB}");
        println!("deb: an idle server has {kib} KiB of memory");
        Ok(())
    }

    /// The units as they are and with what the generator adds for arrays of all kinds.
    fn check_units(&self, root: &Path) -> Result<()> {
        let units = self.folder.join("units");
        fs::create_dir_all(&units)?;
        let configuration = self.folder.join("example.toml");
        fs::write(&configuration, CONFIGURATION)?;
        said(self.pinstripe(&["config", "units", "--config"]).arg(&configuration).arg(&units), "pinstripe")?;
        // The program is not installed here.
        let read = |path: PathBuf| -> Result<String> {
            Ok(fs::read_to_string(path)?.replace("/usr/bin/pinstripe", &self.program.display().to_string()))
        };
        let unit = |name: &str| read(root.join("packaging/systemd").join(name));
        let template = unit("pinstripe@.service")?;
        for name in ALERT.into_iter().chain([RAMDISK]) {
            fs::write(units.join(name), unit(name)?)?;
        }
        fs::write(units.join(DAEMON), unit(DAEMON)?)?;
        fs::write(units.join(DAEMON_ALONE), unit(DAEMON)? + "\n[Service]\nCapabilityBoundingSet=\n")?;
        for name in [DAEMON, DAEMON_ALONE, ALERT[0], RAMDISK] {
            verify(&units.join(name))?;
        }
        let target = fs::read_to_string(root.join("packaging/systemd/pinstripe.target"))?;
        fs::write(units.join("pinstripe.target"), target)?;
        let store = "pinstripe-target@store.service";
        fs::write(units.join(store), unit("pinstripe-target@.service")?)?;
        let generated = units.join(format!("{store}.d/50-pinstripe.conf"));
        fs::write(&generated, read(generated.clone())?)?;
        let limits = [
            ("pinstripe@any.service", EXPOSURE),
            ("pinstripe@ublk.service", EXPOSURE),
            ("pinstripe@plain.service", EXPOSURE_WITHOUT_CAPABILITIES),
            ("pinstripe@remote.service", EXPOSURE_WITHOUT_CAPABILITIES),
            ("pinstripe@sockets.service", EXPOSURE),
            ("pinstripe@fuse.service", EXPOSURE_WITH_FUSE),
            (store, EXPOSURE_WITHOUT_CAPABILITIES),
            (DAEMON, EXPOSURE),
            (DAEMON_ALONE, EXPOSURE_WITHOUT_CAPABILITIES),
        ];
        for (unit, _) in limits {
            if unit.starts_with("pinstripe@") {
                fs::write(units.join(unit), &template)?;
            }
            verify(&units.join(unit))?;
        }
        verify(&units.join("pinstripe.target"))?;
        for (unit, limit) in limits.into_iter().chain([(ALERT[1], EXPOSURE_OF_ALERTS)]) {
            let mut security = Command::new("systemd-analyze");
            security.args(["security", "--no-pager", "--offline=true", &format!("--threshold={limit}")]);
            said(security.arg(units.join(unit)), "systemd")?;
        }
        Ok(())
    }
}

/// Of our units, which one needrestart would restart: the daemon's, which no request passes through.
fn check_needrestart(root: &Path) -> Result<()> {
    // As needrestart reads the file, and asks what it has read.
    let script = "our %nrconf = (override_rc => {}); eval do { local(@ARGV, $/) = shift; <> }; die $@ if $@; \
        for my $rc (@ARGV) { print \"$rc\\n\" unless grep { $rc =~ /$_/ } keys %{$nrconf{override_rc}} }";
    let units = ["pinstripe@data.service", "pinstripe-target@store.service", DAEMON];
    let mut perl = Command::new("perl");
    let left =
        said(perl.args(["-e", script]).arg(root.join("packaging/needrestart.conf")).args(units), "perl")?;
    ensure!(left.lines().eq([DAEMON]), "needrestart would restart: {left}");
    Ok(())
}

/// Shells, and how their completions are called.
const COMPLETIONS: &[(&str, &str)] =
    &[("bash", "pinstripe"), ("zsh", "_pinstripe"), ("fish", "pinstripe.fish")];

/// systemd says what it does not understand, and still succeeds.
fn verify(unit: &Path) -> Result<()> {
    let mut verify = Command::new("systemd-analyze");
    let text = said(verify.args(["verify", "--man=no"]).arg(unit), "systemd")?;
    // Of other units of this machine it may say anything.
    let name = unit.file_name().unwrap_or_default().to_string_lossy();
    let of_ours: Vec<&str> =
        text.lines().filter(|line| line.contains(&*name) || line.contains("50-pinstripe.conf")).collect();
    if !of_ours.is_empty() {
        bail!("systemd-analyze verify:\n{}", of_ours.join("\n"));
    }
    Ok(())
}

/// The commands that `pinstripe help` shows.
fn commands(help: &str) -> impl Iterator<Item = &str> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help")
}

fn same(what: &str, wanted: &BTreeSet<String>, found: &BTreeSet<String>) -> Result<()> {
    let missing: Vec<_> = wanted.difference(found).collect();
    let more: Vec<_> = found.difference(wanted).collect();
    if !missing.is_empty() || !more.is_empty() {
        bail!("{what}: missing are {missing:?}, and not expected {more:?}");
    }
    Ok(())
}

/// A document with links to what the package has; of other links only the words are left.
fn for_package(text: &str) -> String {
    let mut made = String::new();
    let mut rest = text;
    while let Some((before, (target, after))) =
        rest.split_once("](").and_then(|(before, after)| Some((before, after.split_once(')')?)))
    {
        let file = target.split('#').next().unwrap_or_default();
        made.push_str(before);
        if let Some(file) = file.strip_prefix(DIST[0]) {
            made.extend(["](", DIST[1], file, ")"]);
        } else if file.is_empty() || file.contains("://") || DOCUMENTS.contains(&file) {
            made.extend(["](", target, ")"]);
        } else if let Some(opening) = made.rfind('[') {
            made.remove(opening);
            // Of a picture.
            if made[..opening].ends_with('!') {
                made.remove(opening - 1);
            }
        }
        rest = after;
    }
    made + rest
}

/// Debian's form of it, with the date of the last commit.
fn changelog(root: &Path) -> Result<String> {
    let date = said(Command::new("git").args(["log", "-1", "--format=%cD"]).current_dir(root), "git")?;
    Ok(format!(
        "pinstripe ({}-1) unstable; urgency=medium\n\n  * CHANGELOG.md of the sources says what changed.\n\n -- \
         The Pinstripe contributors <maintainers@pinstripe.invalid>  {date}",
        env!("CARGO_PKG_VERSION")
    ))
}

/// Builds the package; where it is.
fn build(root: &Path) -> Result<PathBuf> {
    let tools = root.join("target/tools");
    let cargo_deb = tools.join("bin/cargo-deb");
    let version = Command::new(&cargo_deb).arg("--version").output().map(|output| output.stdout);
    if !version.is_ok_and(|version| String::from_utf8_lossy(&version).trim().ends_with(CARGO_DEB)) {
        println!("installing cargo-deb {CARGO_DEB} under target/tools: some minutes, once");
        let install = ["install", "--quiet", "--locked", "cargo-deb", "--version", CARGO_DEB, "--root"];
        said(crate::cargo::command().args(install).arg(&tools), "cargo")?;
    }
    let output = root.join("target/debian");
    let _ = fs::remove_dir_all(&output);
    let words = ["--no-build", "--quiet", "--strip", "--package", "pinstripe", "--output"];
    let made = said(Command::new(&cargo_deb).args(words).arg(&output).current_dir(root), "cargo-deb")?;
    let packages = fs::read_dir(&output)?.flatten().map(|entry| entry.path());
    let mut packages = packages.filter(|path| path.extension().is_some_and(|extension| extension == "deb"));
    packages.next().with_context(|| format!("cargo-deb made no package: {made}"))
}

/// The package has its files and no others.
fn check_contents(package: &Path, pages: &BTreeSet<String>) -> Result<()> {
    let listing = said(Command::new("dpkg-deb").arg("--contents").arg(package), "dpkg")?;
    let names = listing.lines().filter_map(|line| line.split_once(" ./")).map(|(_, name)| name.to_owned());
    let found: BTreeSet<String> = names.filter(|name| !name.ends_with('/')).collect();
    let pages = pages.iter().map(|page| format!("usr/share/man/man1/{page}.gz"));
    let documents = DOCUMENTS.iter().map(|name| format!("usr/share/doc/pinstripe/{name}"));
    let wanted = CONTENTS.iter().map(|&name| name.to_owned()).chain(documents).chain(pages).collect();
    same("files of the package", &wanted, &found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_from_the_help_without_help_itself() {
        let help =
            "Usage: x\n\nCommands:\n  create  Make\n  list    Show\n  help    Print\n\nOptions:\n  -h\n";
        assert_eq!(commands(help).collect::<Vec<_>>(), ["create", "list"]);
    }

    #[test]
    fn documents_of_the_package_point_to_nothing_that_it_does_not_have() {
        let text = "See [a](operate.md#b), [c](#d), [e [f](decisions/0001-g.md), ![p](q.png), [h](https://i.example) and\n\
                    [the rules](../dist/prometheus/pinstripe.rules.yml), [f](../dist/grafana/pinstripe.json). [x] y";
        let made = "See [a](operate.md#b), [c](#d), [e f, p, [h](https://i.example) and\n\
                    [the rules](/usr/share/pinstripe/prometheus/pinstripe.rules.yml), \
                    [f](/usr/share/pinstripe/grafana/pinstripe.json). [x] y";
        assert_eq!(for_package(text), made);
    }

    #[test]
    fn what_is_missing_or_too_much_is_named() {
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        assert!(same("pages", &set(&["a"]), &set(&["a"])).is_ok());
        let error = same("pages", &set(&["a", "b"]), &set(&["b", "c"])).unwrap_err().to_string();
        assert_eq!(error, "pages: missing are [\"a\"], and not expected [\"c\"]");
    }
}
