//! Changes of the program under fio, on the host.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use super::Lab;
use super::fio;
use super::members::Geometry;
use super::server::{self, Server};

const GEOMETRY: Geometry = Geometry::new("n5", 5, 4, 64, "left-symmetric").with_members_of(32 << 20);
const CHANGES: usize = 6;
/// Requests may wait so long for the next program, on a machine that has a CPU for each thing to do.
const PAUSE: Duration = Duration::from_secs(2);
/// Between two changes.
const BETWEEN: Duration = Duration::from_millis(700);

/// fio sees no error and no wrong byte, and waits no longer than it may.
pub fn under_load(lab: &Lab) -> Result<()> {
    let devices = GEOMETRY.make_members(lab)?;
    server::create(lab, &GEOMETRY, &devices, &["--assume-clean"])?;
    let server = Server::start(lab, GEOMETRY.name, &devices)?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let fio = scope.spawn(|| {
            let mut seeds = (1..).take_while(|_| !is_over.load(Ordering::Relaxed));
            seeds.try_for_each(|seed| fio::write_and_verify(&server, seed))
        });
        let change = |number| {
            thread::sleep(BETWEEN);
            upgrade(&server).with_context(|| format!("change {number}"))
        };
        let connected: Result<Vec<u64>> = (1..=CHANGES).map(change).collect();
        is_over.store(true, Ordering::Relaxed);
        fio.join().map_err(|_| anyhow!("fio's thread panicked"))?.context("fio")?;
        // Some may come between the end of one fio and the start of the next.
        let met = connected?.into_iter().filter(|connections| *connections > 0).count();
        ensure!(met * 2 >= CHANGES, "only {met} of {CHANGES} changes met fio");
        Ok(())
    })?;
    server.check()?;
    server.stop()
}

/// Changes the program while a client is connected; how many went over.
fn upgrade(server: &Server) -> Result<u64> {
    let is_used = |detail: &Value| detail["clients"].as_array().is_some_and(|clients| !clients.is_empty());
    server.wait_until(is_used)?;
    let changed = server.upgrade()?;
    let pause = Duration::from_millis(changed["pause_ms"].as_u64().context("pause_ms")?);
    let limit = PAUSE.mul_f64(crowding()?);
    ensure!(
        pause < limit,
        "requests waited {} ms, and not less than {} ms",
        pause.as_millis(),
        limit.as_millis()
    );
    changed["connections"].as_u64().context("connections")
}

/// How many things wait for each CPU; at least 1. Scenarios run beside others.
fn crowding() -> Result<f64> {
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let load: f64 = load.split(' ').next().unwrap_or_default().parse().context("/proc/loadavg")?;
    let cpus = u32::try_from(thread::available_parallelism()?.get())?;
    Ok((load / f64::from(cpus)).max(1.0))
}
