//! The server is killed, by SIGKILL, at any instant: under writes, in recovery, in the middle of a rebuild or
//! a replacement.
//!
//! A round of one array:
//!
//! ```text
//!   serve ─ writers and fio ─ kill ─┬─ serve ─ verify ─ in sync ─ check ─ verify ─┬─ stop
//!                                   └─ serve ─ kill (while it recovers) ─┘        └─ fail, add, kill, serve, verify
//! ```
//!
//! Where a log closes the write hole, members are lost as well: before the writes, or with the server. Then
//! the array must start dirty and degraded, and hold everything. Now and then a member is replaced meanwhile:
//! its copying goes through all the deaths of a round, and in the end the new device has the slot, even if
//! the member is lost before.
//!
//! A killed process loses no write that its kernel had taken, so every acknowledged write must stand, flushed
//! or not; one that was cut is old or new in each sector; what was never written is still zero.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, ensure};

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
/// Blocks of one writer; between their stretches there are blocks that no writer writes.
const WRITER_BLOCKS: u64 = 900;
const WRITER_STRIDE: u64 = 1500;
/// Milliseconds until a kill under load, after fio's first write.
const LOAD_MS: std::ops::Range<u64> = 20..1000;
/// Milliseconds until a kill of a server that starts or recovers.
const RECOVERY_MS: std::ops::Range<u64> = 0..160;
/// How long an idle array may take to be marked clean, and fio to start.
const PATIENCE: Duration = Duration::from_mins(2);

/// Runs the rounds on all arrays in turn.
pub fn run(root: &Path, rounds: &Rounds) -> Result<()> {
    let lab = rounds.lab(root, "kill")?;
    let subjects = arrays::chosen(rounds.only.as_deref())?;
    let mut summary = Summary::new("kill", rounds.seed);
    let count = usize::try_from(rounds.rounds)?.min(subjects.len());
    let mut arrays: Vec<Array> =
        subjects[..count].iter().map(|subject| Array::create(&lab, *subject)).collect::<Result<_>>()?;
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
    /// By slot.
    members: Vec<PathBuf>,
    journal: Option<PathBuf>,
    /// Slots that have lost their members.
    missing: BTreeSet<usize>,
    /// The slot that is being replaced, and the device that is to take it.
    replacing: Option<(usize, PathBuf)>,
    stretches: Vec<Stretch>,
    fio: Fio,
    counts: Counts,
}

impl<'a> Array<'a> {
    fn create(lab: &'a Lab, subject: Subject) -> Result<Self> {
        let geometry = subject.geometry.with_members_of(MEMBER_BYTES);
        let name = geometry.name;
        let members = geometry.make_members(lab)?;
        let journal = geometry.journal(lab);
        let folder = lab.directory.join(format!("{name}.fio"));
        server::create(lab, &geometry, &members, &[]).context(name)?;
        let devices: Vec<PathBuf> = members.iter().chain(&journal).cloned().collect();
        let server = Server::start_with(lab, name, &devices, &["--shards", subject.shards])?;
        let fio = Fio::new(folder, server.client()?.size)?;
        ensure!(fio.offset() / BLOCK as u64 >= WRITERS * WRITER_STRIDE, "{name} is too small");
        server.wait_until_in_sync()?;
        server.stop()?;
        let stretches = (0..WRITERS).map(|n| Stretch::new(n * WRITER_STRIDE, WRITER_BLOCKS)).collect();
        let missing = BTreeSet::new();
        Ok(Self {
            lab,
            subject,
            members,
            journal,
            missing,
            replacing: None,
            stretches,
            fio,
            counts: Counts::new(),
        })
    }

    fn round(&mut self, random: &mut Random) -> Result<()> {
        add(&mut self.counts, "rounds", 1);
        let server = self.start()?;
        if self.subject.closes_hole() && random.percent(25) {
            for slot in self.lose_members(random) {
                server.fail(u32::try_from(slot)?)?;
            }
        }
        self.write_and_kill(server, random, true).context("under load")?;
        if self.subject.closes_hole() && self.missing.is_empty() && random.percent(40) {
            self.lose_members(random);
        }
        if !self.missing.is_empty() {
            self.stretches.iter_mut().for_each(Stretch::lose_undecided);
        }
        while random.percent(35) {
            self.kill_in_recovery(random).context("in recovery")?;
        }
        let server = self.recover(random).context("after a kill")?;
        let rebuilds = !self.missing.is_empty() || random.percent(30);
        let server = if rebuilds { self.rebuild(server, random).context("rebuild")? } else { server };
        server.stop()
    }

    /// What is there of the array's devices.
    fn devices(&self) -> Vec<PathBuf> {
        let present = self.members.iter().enumerate().filter(|(slot, _)| !self.missing.contains(slot));
        let newcomer = self.replacing.iter().map(|(_, device)| device);
        present.map(|(_, device)| device).chain(&self.journal).chain(newcomer).cloned().collect()
    }

    fn replaced_slot(&self) -> Option<usize> {
        self.replacing.as_ref().map(|(slot, _)| *slot)
    }

    /// Begins to copy a member to a fresh device, through whatever comes. All slots have members, or the
    /// device would take an empty one.
    fn replace(&mut self, server: &Server, random: &mut Random) -> Result<()> {
        add(&mut self.counts, "replacements", 1);
        let slot = random.index(self.members.len());
        let name = format!("{}-{slot}-{}.img", self.subject.geometry.name, self.counts["replacements"]);
        let device = self.lab.sparse_file(&name, MEMBER_BYTES)?;
        server.replace(slot, &device)?;
        self.replacing = Some((slot, device));
        Ok(())
    }

    fn start(&mut self) -> Result<Server> {
        let name = self.subject.geometry.name;
        let start = Instant::now();
        loop {
            match Server::start_with(self.lab, name, &self.devices(), &["--shards", self.subject.shards]) {
                // The kernel may still be taking the killed server's ring apart, however patient the next one
                // is.
                Err(error)
                    if format!("{error:#}").contains("is in use by another process or by the kernel")
                        && start.elapsed() < PATIENCE =>
                {
                    add(&mut self.counts, "devices_still_held", 1);
                }
                Ok(server) => {
                    self.count_replacement(&server)?;
                    return Ok(server);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Notes whether a kill came in the middle of a replacement.
    fn count_replacement(&mut self, server: &Server) -> Result<()> {
        if let Some((slot, _)) = &self.replacing {
            let goes_on = !server.state()?["members"][*slot]["replacement"].is_null();
            add(&mut self.counts, "replacements_resumed", u64::from(goes_on));
        }
        Ok(())
    }

    /// Loses as many members as the level bears, or fewer; these.
    fn lose_members(&mut self, random: &mut Random) -> Vec<usize> {
        add(&mut self.counts, "losses", 1);
        let count = random.within(1..self.subject.redundancy() + 1);
        self.missing.extend((0..count).map(|_| random.index(self.members.len())));
        self.missing.iter().copied().collect()
    }

    /// Writes from all sides until the server is killed, now and then while a member is being replaced.
    fn write_and_kill(&mut self, server: Server, random: &mut Random, with_fio: bool) -> Result<()> {
        let clients: Vec<Client> = (0..WRITERS).map(|_| server.client()).collect::<Result<_>>()?;
        let fio = if with_fio { Some(self.start_fio(&server, random)?) } else { None };
        if with_fio && self.missing.is_empty() && random.percent(35) {
            self.replace(&server, random).context("replace")?;
        }
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
        add(&mut self.counts, "writes", done);
        add(&mut self.counts, "kills", 1);
        Ok(())
    }

    /// Starts fio and waits until it writes.
    fn start_fio(&mut self, server: &Server, random: &mut Random) -> Result<Child> {
        let writes = |server: &Server| Ok::<_, Error>(server.state()?["statistics"]["writes"].as_u64());
        let (before, start) = (writes(server)?, Instant::now());
        let fio = self.fio.start(&server.uri(), random.below(1 << 31))?;
        while writes(server)? == before && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(20));
        }
        Ok(fio)
    }

    /// Kills the next server, too: before it is ready, after, or under the first new writes.
    fn kill_in_recovery(&mut self, random: &mut Random) -> Result<()> {
        add(&mut self.counts, "kills_in_recovery", 1);
        if random.percent(50) {
            let (name, shards) = (self.subject.geometry.name, self.subject.shards);
            let server = Server::spawn(self.lab, name, &self.devices(), &["--shards", shards])?;
            thread::sleep(Duration::from_millis(random.within(RECOVERY_MS)));
            add(&mut self.counts, "kills", 1);
            return server.kill();
        }
        let server = self.start()?;
        self.write_and_kill(server, random, false)?;
        if !self.missing.is_empty() {
            self.stretches.iter_mut().for_each(Stretch::lose_undecided);
        }
        Ok(())
    }

    /// Starts after a kill: all must be there at once, and still when parity has been made right.
    fn recover(&mut self, random: &mut Random) -> Result<Server> {
        let server = self.start()?;
        let detail = server.detail()?;
        if detail["sync"]["action"] == "resync" || detail["regions_to_resync"] != 0 {
            add(&mut self.counts, "resyncs", 1);
        }
        let blocks = self.fio.offset() / BLOCK as u64;
        if !self.missing.is_empty() {
            add(&mut self.counts, "starts_dirty_and_degraded", 1);
            arrays::verify(&server, &self.stretches, blocks).context("dirty and degraded")?;
            self.verify_fio(&server).context("dirty and degraded")?;
            return Ok(server);
        }
        if random.percent(50) {
            arrays::verify(&server, &self.stretches, blocks).context("before it is in sync")?;
        }
        self.verify_in_sync(&server)?;
        Ok(server)
    }

    fn verify_in_sync(&mut self, server: &Server) -> Result<()> {
        arrays::verify_in_sync(server, &mut self.stretches, self.fio.offset() / BLOCK as u64)?;
        if let Some((slot, device)) = self.replacing.take() {
            ensure!(server.device_in(slot)? == device, "slot {slot} was not replaced: {}", server.state()?);
            fs::remove_file(&self.members[slot])?;
            self.members[slot] = device;
        }
        self.verify_fio(server)
    }

    fn verify_fio(&mut self, server: &Server) -> Result<()> {
        let verified = self.fio.verify(&server.uri())?;
        add(&mut self.counts, "fio_writes_verified", verified);
        Ok(())
    }

    /// Fresh devices come in for what is missing (or for one that is failed now), and the server is killed
    /// while it rebuilds: under writes only where a log allows it, for the array would be dirty and degraded.
    fn rebuild(&mut self, mut server: Server, random: &mut Random) -> Result<Server> {
        add(&mut self.counts, "rebuilds", 1);
        if self.missing.is_empty() {
            server.wait_until_clean()?;
            let slot = random.index(self.members.len());
            server.fail(u32::try_from(slot)?)?;
            self.missing.insert(slot);
        }
        let replaced = self.replaced_slot();
        // Where the member was lost that was being replaced, the new device is being rebuilt already.
        for slot in std::mem::take(&mut self.missing).into_iter().filter(|slot| replaced != Some(*slot)) {
            let device = &self.members[slot];
            fs::remove_file(device)?;
            File::create(device)?.set_len(MEMBER_BYTES)?;
            server.add(device)?;
        }
        while random.percent(60) {
            add(&mut self.counts, "kills_in_rebuild", 1);
            if self.subject.closes_hole() && random.percent(50) {
                self.write_and_kill(server, random, false)?;
                self.stretches.iter_mut().for_each(Stretch::lose_undecided);
            } else {
                thread::sleep(Duration::from_millis(random.within(RECOVERY_MS)));
                server.kill()?;
                add(&mut self.counts, "kills", 1);
            }
            server = self.start()?;
        }
        self.verify_in_sync(&server)?;
        Ok(server)
    }
}
