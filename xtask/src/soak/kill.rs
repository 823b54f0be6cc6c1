//! The server is killed, by SIGKILL, at any instant: under writes, in recovery, in the middle of a rebuild.
//!
//! A round of one array:
//!
//! ```text
//!   serve ─ writers and fio ─ kill ─┬─ serve ─ verify ─ in sync ─ check ─ verify ─┬─ stop
//!                                   └─ serve ─ kill (while it recovers) ─┘        └─ fail, add, kill, serve, verify
//! ```
//!
//! A killed process loses no write that its kernel had taken, so every acknowledged write must stand, flushed or not;
//! one that was cut is old or new in each sector; what nobody wrote is still zero.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::Rounds;
use super::arrays::{self, Subject};
use super::fio::Fio;
use super::summary::{Counts, Summary, add, in_words};
use crate::nbd::Client;
use crate::pattern::BLOCK;
use crate::random::Random;
use crate::vm::Lab;
use crate::vm::server::{self, Server};
use crate::writer::Stretch;

/// Bytes of a member: fio's stretch and the writers' fit on three members of level 5.
const MEMBER_BYTES: u64 = 56 << 20;
/// Writers on an array, each with a connection of its own.
const WRITERS: u64 = 4;
/// Blocks of one writer; between their stretches there are blocks that nobody writes.
const WRITER_BLOCKS: u64 = 900;
const WRITER_STRIDE: u64 = 1500;
/// Milliseconds until a kill under load, beyond what fio takes to start.
const LOAD_MS: std::ops::Range<u64> = 100..1000;
/// Milliseconds until a kill of a server that starts or recovers.
const RECOVERY_MS: std::ops::Range<u64> = 0..160;
/// How long an idle array may take to be marked clean.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the rounds on all arrays in turn.
pub fn run(root: &Path, rounds: &Rounds) -> Result<()> {
    let lab = rounds.lab(root, "kill")?;
    let subjects = arrays::chosen(rounds.only.as_deref())?;
    let mut summary = Summary::new("kill", rounds.seed);
    let mut arrays: Vec<Array> =
        subjects.iter().map(|subject| Array::create(&lab, *subject)).collect::<Result<_>>()?;
    for round in 0..rounds.rounds {
        let number = usize::try_from(round)? % arrays.len();
        let array = &mut arrays[number];
        let name = array.subject.geometry.name;
        let mut random = rounds.random(round);
        array.round(&mut random).with_context(|| {
            format!(
                "round {round} of seed {}, array {name}; its members lie in {}",
                rounds.seed,
                lab.directory.display()
            )
        })?;
        if !rounds.json && (round + 1) % 10 == 0 {
            println!("round {}: {name}: {}", round + 1, in_words(&array.counts));
        }
    }
    for array in arrays {
        summary.insert(array.subject.geometry.name, array.counts);
    }
    summary.print(rounds.json);
    Ok(())
}

/// An array through all its rounds.
struct Array<'a> {
    lab: &'a Lab,
    subject: Subject,
    devices: Vec<PathBuf>,
    stretches: Vec<Stretch>,
    fio: Fio,
    counts: Counts,
}

impl<'a> Array<'a> {
    fn create(lab: &'a Lab, subject: Subject) -> Result<Self> {
        let geometry = subject.geometry.with_members_of(MEMBER_BYTES);
        let devices = geometry.make_members(lab)?;
        server::create(lab, &geometry, &devices, subject.options).context(geometry.name)?;
        let server = Server::start_with(lab, geometry.name, &devices, &["--shards", subject.shards])?;
        let fio = Fio::new(lab.directory.join(format!("{}.fio", geometry.name)), server.client()?.size)?;
        ensure!(fio.offset() / BLOCK as u64 >= WRITERS * WRITER_STRIDE, "{} is too small", geometry.name);
        server.wait_until_in_sync()?;
        server.stop()?;
        let stretches = (0..WRITERS).map(|n| Stretch::new(n * WRITER_STRIDE, WRITER_BLOCKS)).collect();
        Ok(Self { lab, subject, devices, stretches, fio, counts: Counts::new() })
    }

    fn round(&mut self, random: &mut Random) -> Result<()> {
        add(&mut self.counts, "rounds", 1);
        let server = self.start(&self.devices)?;
        self.write_and_kill(server, random, true).context("under load")?;
        while random.percent(35) {
            self.kill_in_recovery(random).context("in recovery")?;
        }
        let server = self.recover(random).context("after a kill")?;
        let server =
            if random.percent(30) { self.rebuild(server, random).context("rebuild")? } else { server };
        server.stop()
    }

    fn start(&self, devices: &[PathBuf]) -> Result<Server> {
        Server::start_with(self.lab, self.subject.geometry.name, devices, &["--shards", self.subject.shards])
    }

    /// Writes from all sides until the server is killed.
    fn write_and_kill(&mut self, server: Server, random: &mut Random, with_fio: bool) -> Result<()> {
        let clients: Vec<Client> = (0..WRITERS).map(|_| server.client()).collect::<Result<_>>()?;
        let fio = if with_fio { Some(self.fio.start(&server.uri(), random.below(1 << 31))?) } else { None };
        let delay = Duration::from_millis(random.within(if with_fio { LOAD_MS } else { RECOVERY_MS }));
        let done = AtomicU64::new(0);
        thread::scope(|scope| {
            for (stretch, mut client) in self.stretches.iter_mut().zip(clients) {
                let (done, seed) = (&done, random.number());
                scope.spawn(move || stretch.write_until_cut(&mut client, seed, done));
            }
            thread::sleep(delay);
            server.kill()
        })?;
        if let Some(fio) = fio {
            Fio::join(fio)?;
        }
        let done = done.load(Ordering::Relaxed);
        ensure!(done > 0 || !with_fio, "no write was acknowledged in {delay:?}");
        add(&mut self.counts, "writes", done);
        add(&mut self.counts, "kills", 1);
        Ok(())
    }

    /// Kills the next server, too: before it is ready, after, or under the first new writes.
    fn kill_in_recovery(&mut self, random: &mut Random) -> Result<()> {
        add(&mut self.counts, "kills_in_recovery", 1);
        if random.percent(50) {
            let name = self.subject.geometry.name;
            let server = Server::spawn(self.lab, name, &self.devices, &["--shards", self.subject.shards])?;
            thread::sleep(Duration::from_millis(random.within(RECOVERY_MS)));
            add(&mut self.counts, "kills", 1);
            return server.kill();
        }
        let server = self.start(&self.devices)?;
        self.write_and_kill(server, random, false)
    }

    /// Starts after a kill: all must be there at once, and still when parity has been made right.
    fn recover(&mut self, random: &mut Random) -> Result<Server> {
        let server = self.start(&self.devices)?;
        let detail = server.detail()?;
        if !detail["sync"].is_null() || detail["regions_to_resync"] != 0 {
            add(&mut self.counts, "resyncs", 1);
        }
        if random.percent(50) {
            let blocks = self.fio.offset() / BLOCK as u64;
            arrays::verify(&server, &self.stretches, blocks).context("before it is in sync")?;
        }
        self.verify_in_sync(&server)?;
        Ok(server)
    }

    fn verify_in_sync(&mut self, server: &Server) -> Result<()> {
        let blocks = self.fio.offset() / BLOCK as u64;
        arrays::verify_in_sync(server, &mut self.stretches, blocks)?;
        let verified = self.fio.verify(&server.uri())?;
        add(&mut self.counts, "fio_writes_verified", verified);
        Ok(())
    }

    /// A member is replaced by a fresh device in an idle array, and the server is killed while it rebuilds.
    fn rebuild(&mut self, server: Server, random: &mut Random) -> Result<Server> {
        add(&mut self.counts, "rebuilds", 1);
        // Without a log an array that is dirty and degraded would be refused, and rightly.
        wait_until_clean(&server)?;
        let slot = random.index(self.devices.len());
        server.fail(u32::try_from(slot)?)?;
        let device = self.devices[slot].clone();
        fs::remove_file(&device)?;
        File::create(&device)?.set_len(MEMBER_BYTES)?;
        server.add(&device)?;
        let mut server = server;
        while random.percent(60) {
            thread::sleep(Duration::from_millis(random.within(RECOVERY_MS)));
            server.kill()?;
            add(&mut self.counts, "kills", 1);
            add(&mut self.counts, "kills_in_rebuild", 1);
            server = self.start(&self.devices)?;
        }
        self.verify_in_sync(&server)?;
        Ok(server)
    }
}

/// Waits until the superblocks of an idle array say that it is clean.
fn wait_until_clean(server: &Server) -> Result<()> {
    let start = Instant::now();
    while server.detail()?["state"] != "clean" {
        if start.elapsed() > PATIENCE {
            bail!("the idle array is not marked clean: {}", server.detail()?);
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
