//! `pinstripe bench`: measures the engine itself, or with `--through` what a client of a server gets.
//!
//! A server that is started for it is a process of its own, over the members that were asked for. At the end
//! it scrubs the array and stops.

use std::{path::PathBuf, process::Command, sync::Arc, thread};

use clap::ValueEnum;
use indicatif::ProgressBar;
use pinstripe_bench::{BenchArgs, BenchError, DeviceSpec, Export, FrontEnd, Phase, Tell, Through};
use pinstripe_control::{Detail, client::Client, detail::Member};
use tempfile::TempDir;

use crate::{failure::Failure, output, progress, server_process::ServerProcess, steer};

/// Measures, and prints what came of it.
pub fn run(arguments: &BenchArgs) -> Result<(), Failure> {
    if let Some(warning) = pinstripe_parity::selection().warning() {
        output::remark(&format!("pinstripe: {warning}"));
    }
    let line = progress::spinner(arguments.attended);
    let measured = match &arguments.through {
        None if arguments.probe.is_some() => probe(arguments),
        None if arguments.is_replay() => pinstripe_bench::run_trace(arguments, &tell(&line, arguments))
            .map(|report| in_words(arguments, report.to_json(), &report))
            .map_err(Failure::from),
        None if arguments.objects.is_some() => {
            pinstripe_bench::run_objects(arguments, &tell(&line, arguments))
                .map(|report| in_words(arguments, report.to_json(), &report))
                .map_err(Failure::from)
        }
        None => pinstripe_bench::run_and_tell(arguments, &tell(&line, arguments))
            .map(|report| in_words(arguments, report.to_json(), &report))
            .map_err(Failure::from),
        Some(Through::Export(export)) => through(arguments, export, arguments.force, &line),
        Some(Through::Server(front_end)) => through_server(arguments, *front_end, &line),
    };
    line.finish_and_clear();
    output::print(&measured?)
}

fn in_words(arguments: &BenchArgs, json: String, report: &impl ToString) -> String {
    if arguments.json { json + "\n" } else { report.to_string() }
}

/// Measures one device.
fn probe(arguments: &BenchArgs) -> Result<String, Failure> {
    let probe = pinstripe_bench::probe(arguments, arguments.probe.as_deref().unwrap_or("".as_ref()))?;
    Ok(in_words(arguments, probe.to_json(), &probe))
}

/// Shows what is done.
fn tell(line: &ProgressBar, arguments: &BenchArgs) -> Tell {
    let (line, seconds, rebuilds) = (line.clone(), arguments.seconds, arguments.rebuild.is_some());
    Arc::new(move |phase| {
        line.set_message(match phase {
            Phase::Replaying { done, requests } => {
                line.set_message(format!("replaying: {done} of {requests} requests"));
                return;
            }
            Phase::Preparing => "making the array".to_owned(),
            Phase::Filling => "writing all of it".to_owned(),
            Phase::WarmingUp => "warming up".to_owned(),
            Phase::Measuring if rebuilds => "measuring the rebuild".to_owned(),
            Phase::Measuring => format!("measuring for {seconds} s"),
            Phase::Checking => "checking what was written".to_owned(),
        });
        line.reset_elapsed();
    })
}

fn through(
    arguments: &BenchArgs,
    export: &Export,
    may_overwrite: bool,
    line: &ProgressBar,
) -> Result<String, Failure> {
    let tell = tell(line, arguments);
    if arguments.is_replay() {
        let report = pinstripe_bench::run_trace_through(arguments, export, may_overwrite, &tell)?;
        return Ok(in_words(arguments, report.to_json(), &report));
    }
    if arguments.objects.is_some() {
        let report = pinstripe_bench::run_objects_through(arguments, export, may_overwrite, &tell)?;
        return Ok(in_words(arguments, report.to_json(), &report));
    }
    let report = pinstripe_bench::run_through(arguments, export, may_overwrite, &tell)?;
    Ok(in_words(arguments, report.to_json(), &report))
}

fn through_server(arguments: &BenchArgs, front_end: FrontEnd, line: &ProgressBar) -> Result<String, Failure> {
    tell(line, arguments)(Phase::Preparing);
    // Before a device is overwritten.
    pinstripe_bench::check(arguments)?;
    let server = Server::start(arguments, front_end)?;
    let measured = server.export(front_end).and_then(|export| through(arguments, &export, true, line));
    let checked = measured.and_then(|report| server.check(arguments).map(|()| report));
    // After a failure too: a server that is killed leaves its file mounted.
    let stopped = server.stop();
    checked.and_then(|report| stopped.map(|()| report))
}

/// A server that was started for this.
struct Server {
    process: ServerProcess,
    pinstripe: PathBuf,
    /// With its sockets.
    folder: TempDir,
}

impl Server {
    /// Serves a new array by this front end, and waits until it is in sync.
    fn start(arguments: &BenchArgs, front_end: FrontEnd) -> Result<Self, Failure> {
        let pinstripe = std::env::current_exe()?;
        let folder = tempfile::Builder::new().prefix("pinstripe-bench-").tempdir()?;
        let (shape, members) = (shape(arguments), members(arguments)?);
        let mut serve = Command::new(&pinstripe);
        serve.args(["serve", "--json", "--shards", &arguments.shards.to_string()]);
        serve.arg("--control").arg(folder.path().join("control"));
        serve.args([
            "--cache",
            &arguments.cache.to_string(),
            "--policy",
            name_of(&arguments.policy).as_str(),
        ]);
        match front_end {
            FrontEnd::Nbd => serve.arg("--nbd").arg(format!("unix:{}", folder.path().join("nbd").display())),
            FrontEnd::Ublk => serve.arg("--ublk"),
            FrontEnd::Fuse => serve.arg("--fuse").arg(folder.path().join("fuse")),
            FrontEnd::VhostUser => serve.arg("--vhost-user").arg(folder.path().join("vhost-user")),
        };
        if matches!(arguments.devices[..], [DeviceSpec::Memory(_)]) {
            serve.arg("--create").args(shape);
        } else {
            if !arguments.force {
                return Err(BenchError::Force.into());
            }
            let mut create = Command::new(&pinstripe);
            said(create.args(["create", "--force"]).args(shape).args(&members))?;
        }
        let process = ServerProcess::start({
            serve.args(members);
            serve
        })?;
        let server = Self { process, pinstripe, folder };
        server.wait_until_in_sync()?;
        Ok(server)
    }

    fn control(&self) -> String {
        self.folder.path().join("control").display().to_string()
    }

    fn wait_until_in_sync(&self) -> Result<(), Failure> {
        let mut client = Client::connect(&self.control())?;
        loop {
            let detail = steer::fetch(&mut client)?;
            if detail.sync.is_none() && detail.regions_to_resync == 0 {
                return Ok(());
            }
            if let Some(hindrance) = hindrance(&detail) {
                return Err(Failure::new(format!("the array can't be brought in sync: {hindrance}")));
            }
            thread::sleep(progress::LOOK);
        }
    }

    /// What clients of this front end use.
    fn export(&self, front_end: FrontEnd) -> Result<Export, Failure> {
        let address = self.process.address(front_end.name());
        let address = address.ok_or_else(|| Failure::new("the server doesn't say where its export is"))?;
        address.parse().map_err(|error: pinstripe_bench::BadExport| Failure::new(error.to_string()))
    }

    /// Compares all data with its parity, if there is any.
    fn check(&self, arguments: &BenchArgs) -> Result<(), Failure> {
        if arguments.level.has_parity() { self.tell(&["check", "--json"]) } else { Ok(()) }
    }

    /// Ends the server, which must end well.
    fn stop(self) -> Result<(), Failure> {
        self.tell(&["stop", "--force"])?;
        self.process.ended()
    }

    fn tell(&self, command: &[&str]) -> Result<(), Failure> {
        said(Command::new(&self.pinstripe).args(command).arg(self.control()))
    }
}

/// Why a new array doesn't get in sync however long it is waited for, if it doesn't.
fn hindrance(detail: &Detail) -> Option<String> {
    if detail.degraded || detail.state == "failed" {
        return Some(detail.errors.last().map_or_else(|| "a member is missing".to_owned(), Clone::clone));
    }
    let errors = |member: &Member, kind| member.statistics.get(kind).is_some_and(|&count| count > 0);
    let mut members = detail.members.iter();
    let met = members.find(|member| errors(member, "read_errors") || errors(member, "write_errors"))?;
    let is_resyncing = detail.sync.is_some() || detail.regions_to_resync == 0;
    let device = met.device.as_deref().unwrap_or("a member");
    (!is_resyncing).then(|| format!("the resync has met sectors of {device} that can't be used"))
}

/// The options that shape the array.
fn shape(arguments: &BenchArgs) -> Vec<String> {
    let level = arguments.level;
    let mut options = vec![format!("--level={}", level.number()), format!("--chunk={}", arguments.chunk)];
    options.extend(arguments.layout.iter().map(|layout| format!("--layout={layout}")));
    if level.has_parity() {
        options.push(format!("--bitmap={}", name_of(&arguments.bitmap)));
    }
    options.extend(arguments.assume_clean.then(|| "--assume-clean".to_owned()));
    options
}

fn members(arguments: &BenchArgs) -> Result<Vec<String>, Failure> {
    if let [memory @ DeviceSpec::Memory(_)] = &arguments.devices[..] {
        return Ok(vec![memory.to_string(); arguments.memory_members()]);
    }
    let path = |device: &DeviceSpec| match device {
        DeviceSpec::Path(path) => Ok(path.display().to_string()),
        DeviceSpec::Memory(_) => Err(BenchError::MixedDevices.into()),
        DeviceSpec::Model { .. } => Err(BenchError::NotVirtual("--through").into()),
        DeviceSpec::Paced { .. } => Err(BenchError::NotPaced.into()),
    };
    let paths: Vec<String> = arguments.devices.iter().map(path).collect::<Result<_, Failure>>()?;
    match arguments.members {
        Some(members) if members != paths.len() => {
            Err(BenchError::MemberCount { members, devices: paths.len() }.into())
        }
        _ => Ok(paths),
    }
}

/// As the command line has it.
fn name_of(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Runs a command of ours; its own words come back in the failure.
fn said(command: &mut Command) -> Result<(), Failure> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("{command:?} ended with {}: {}", output.status, told.trim())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Of an array of which a member has had `read_errors`, and no resync is under way.
    fn detail(state: &str, degraded: bool, (regions, read_errors): (u64, u64)) -> Detail {
        let member = json!({
            "slot": 0, "state": "resyncing", "device": "/dev/a", "read_latency_ns": 0, "write_latency_ns": 0,
            "slow": false, "late_requests": 0, "bad_sectors": 0, "statistics": { "read_errors": read_errors } });
        let detail = json!({
            "name": "n", "uuid": "u", "level": "raid5", "layout": "", "chunk_bytes": 65536,
            "logical_block_bytes": 512, "size_bytes": 1, "state": state, "degraded": degraded, "events": 1,
            "members": [member], "failed": [], "bitmap": null, "consistency_policy": "",
            "regions_to_resync": regions, "sync_paused": false, "sync_speed_min_kib": 0,
            "sync_speed_max_kib": 0, "errors": ["/dev/b failed"], "advice": null, "nbd": [], "shards": 1,
            "sync": null, "clients": [], "statistics": {} });
        serde_json::from_value(detail).unwrap()
    }

    #[test]
    fn an_array_that_can_not_get_in_sync_is_told_with_its_member() {
        let hindrance = |state, degraded, counts| hindrance(&detail(state, degraded, counts));
        assert_eq!(hindrance("active", false, (1, 0)), None);
        assert_eq!(hindrance("active", false, (0, 3)), None, "it is in sync");
        assert_eq!(hindrance("active", true, (1, 0)).unwrap(), "/dev/b failed");
        assert_eq!(hindrance("failed", false, (1, 0)).unwrap(), "/dev/b failed");
        assert!(hindrance("active", false, (1, 3)).unwrap().contains("/dev/a"));
    }
}
