//! YCSB's workloads on the database, by `apps/ycsb`.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::host::{Host, Instant, Measured, Place};
use super::plan::Point;
use super::{RECORDS, SERVERS};
use crate::net::client::Attended;
use crate::net::experiments::Arm;
use crate::net::ycsb::State;

/// KiB per second that a rebuild gets of each member, in both arms.
const REBUILD_KIB: u32 = 1500;

/// One run, on new members, by this client. All records have been found right.
pub fn measure(host: &Host, client: &Path, point: Point, arm: Arm) -> Result<Measured> {
    host.on(point.file_system, point.state, arm, |place| run(place, client, point))
}

fn run(place: &Place, client: &Path, point: Point) -> Result<Measured> {
    let wish = place.host.wish;
    // Loading needs no limits, and members that are there: it isn't measured.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(client).arg("run").arg(place.database);
    command.args(["--attended", "--json", "--records", &RECORDS.to_string()]);
    command.args(["--workload", point.workload.option(), "--seconds", &wish.seconds.to_string()]);
    command.args(["--threads", &wish.threads.to_string()]);
    command.args(point.durable.then_some("--sync"));
    let mut client = Attended::start(&mut command)?;
    client.expect("ready")?;
    place.fail_for(point.state)?;
    let (before, after) = place.limited(|| watch(place, point.state, &mut client))?;
    client.go_on()?;
    let report = client.report()?;
    let verified = report["verified"].as_u64();
    ensure!(verified.is_some_and(|records| records >= RECORDS), "not all records are there: {report}");
    Ok(after.since(before, report))
}

/// From the moment in which the links are limited to the end of what is measured.
fn watch(place: &Place, state: State, client: &mut Attended) -> Result<(Instant, Instant)> {
    if state == State::Rebuilding {
        place.server.sync_speed(REBUILD_KIB, REBUILD_KIB)?;
        place.server.add(Path::new(&place.targets[SERVERS].member))?;
    }
    client.go_on()?;
    client.expect("begins")?;
    let before = place.now()?;
    client.go_on()?;
    client.expect("ended")?;
    let after = place.now()?;
    ensure!(after.is_rebuilding() == (state == State::Rebuilding), "the rebuild isn't as it should be");
    Ok((before, after))
}
