//! A machine loses power, over and over: our server in a guest, over disks that forget what was not flushed.
//!
//! A round of one array:
//!
//! ```text
//!   guest: serve ─ writers, a rebuild, a replacement ─ QEMU killed ─ the disks forget ─┬─ host: serve, verify, in sync, check, verify
//!                                                                        ├─ guest: the kernel assembles, resyncs, checks
//!                                                                        └─ nothing: the next round goes on from there
//! ```
//!
//! What the guest had flushed and told must stand; of what came after it any part may, sector by sector; what
//! was never written is still zero. The disks are [`super::medium`] behind our own NBD server, which QEMU
//! attaches as SCSI disks with a volatile cache: the flushes that come there are counted, and none is an
//! error.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::Rounds;
use super::arrays::{self, Subject};
use super::disks::{Disks, Shared, locked};
use super::medium::{Counters, Medium};
use super::summary::{Counts, Summary, add, in_words};
use crate::pattern::BLOCK;
use crate::random::Random;
use crate::vm::Lab;
use crate::vm::machine::{Machine, Outcome};
use crate::vm::members::Geometry;
use crate::vm::server::{self, Server};
use crate::writer::{Batches, Stretch};

/// Bytes of a member: a resync under emulation takes a second.
const MEMBER_BYTES: u64 = 16 << 20;
/// Writers in the guest.
const WRITERS: u64 = 3;
/// Blocks of one writer; between their stretches there are blocks that no writer writes.
const WRITER_BLOCKS: u64 = 700;
const WRITER_STRIDE: u64 = 1100;
/// Milliseconds from the guest's word to its death.
const LOAD_MS: std::ops::Range<u64> = 100..3000;
const START_MS: std::ops::Range<u64> = 0..900;
const REBUILD_MS: std::ops::Range<u64> = 0..2500;

/// Resets of a virtual machine.
#[derive(Args, Clone, Debug)]
pub struct Power {
    #[command(flatten)]
    rounds: Rounds,
    /// The control: the disks answer flushes and forced writes and do nothing, so a loss must be found.
    #[arg(long)]
    ignore_flushes: bool,
}

impl Power {
    /// So many rounds.
    pub fn new(rounds: u64, seed: u64) -> Self {
        Self { rounds: Rounds::new(rounds, seed), ignore_flushes: false }
    }
}

/// Runs the rounds on all arrays in turn.
pub fn run(root: &Path, power: &Power) -> Result<()> {
    let lab = power.rounds.lab(root, "power")?;
    let outcome = rounds(&lab, power);
    match outcome {
        Err(error) if power.ignore_flushes => {
            println!("the control lost something, as it must: {error:#}");
            Ok(())
        }
        Ok(()) if power.ignore_flushes => bail!("the disks ignored every flush, and nothing was lost"),
        outcome => outcome,
    }
}

/// Runs the rounds in this lab.
pub fn rounds(lab: &Lab, power: &Power) -> Result<()> {
    let rounds = &power.rounds;
    let mut summary = Summary::new("power", rounds.seed);
    let subjects = arrays::chosen(rounds.only.as_deref())?;
    let count = usize::try_from(rounds.rounds)?.min(subjects.len());
    let mut arrays: Vec<Array> = subjects[..count]
        .iter()
        .map(|subject| Array::create(lab, *subject, power.ignore_flushes))
        .collect::<Result<_>>()?;
    for round in 0..rounds.rounds {
        let number = usize::try_from(round)? % arrays.len();
        let array = &mut arrays[number];
        let (name, mut random) = (array.geometry.name, rounds.random(round));
        array.round(&mut random).with_context(|| {
            format!("round {round} of seed {}, array {name}; see {}", rounds.seed, lab.directory.display())
        })?;
        if !rounds.json && (round + 1) % 5 == 0 {
            println!("round {}: {name}: {}", round + 1, in_words(&array.counts));
        }
    }
    for mut array in arrays {
        // What the last rounds left to others is looked at now.
        array.verify_on_host(&BTreeSet::new()).context("at the end")?;
        array.count_media();
        summary.insert(array.geometry.name, array.counts);
    }
    summary.print(rounds.json);
    Ok(())
}

/// What is done to the members under the writes.
enum Meanwhile {
    Nothing,
    /// This slot's disk is added.
    Rebuild(usize),
    /// This slot's member is replaced.
    Replace(usize),
}

/// An array through all its rounds.
struct Array<'a> {
    lab: &'a Lab,
    geometry: Geometry,
    subject: Subject,
    /// By slot; then the journal, if there is one; then a device that replaces members.
    media: Vec<Shared>,
    /// The slot that is being replaced.
    replacing: Option<usize>,
    stretches: Vec<Stretch>,
    /// Whether it was verified since its last death, and is clean.
    is_clean: bool,
    /// Whether a rebuild was cut and not finished since.
    is_rebuilding: bool,
    counts: Counts,
}

impl<'a> Array<'a> {
    fn create(lab: &'a Lab, subject: Subject, ignores_flushes: bool) -> Result<Self> {
        let geometry = subject.geometry.with_members_of(MEMBER_BYTES);
        let mut devices = geometry.make_members(lab)?;
        let journal = geometry.journal(lab);
        server::create(lab, &geometry, &devices, &[]).context(geometry.name)?;
        devices.extend(journal);
        let mut array = Self {
            lab,
            geometry,
            subject,
            media: Vec::new(),
            replacing: None,
            stretches: (0..WRITERS).map(|n| Stretch::new(n * WRITER_STRIDE, WRITER_BLOCKS)).collect(),
            is_clean: true,
            is_rebuilding: false,
            counts: Counts::new(),
        };
        let server = array.serve(&devices)?;
        ensure!(
            server.client()?.size / BLOCK as u64 >= WRITERS * WRITER_STRIDE,
            "{} is too small",
            geometry.name
        );
        server.wait_until_in_sync()?;
        server.stop()?;
        let mut contents: Vec<Vec<u8>> = devices.iter().map(fs::read).collect::<Result<_, _>>()?;
        contents.push(vec![0; usize::try_from(MEMBER_BYTES)?]);
        for bytes in contents {
            let mut medium = Medium::new(bytes);
            medium.ignores_flushes = ignores_flushes;
            array.media.push(Arc::new(Mutex::new(medium)));
        }
        Ok(array)
    }

    /// The place of the device that replaces members, among the media.
    fn newcomer(&self) -> usize {
        self.media.len() - 1
    }

    /// Slots.
    fn slots(&self) -> usize {
        usize::try_from(self.geometry.members).unwrap_or(0)
    }

    fn round(&mut self, random: &mut Random) -> Result<()> {
        add(&mut self.counts, "rounds", 1);
        if self.is_clean && random.percent(20) {
            self.rebuild_until_cut(random).context("cut in a rebuild")?;
        } else if self.is_clean && random.percent(35) {
            self.replace_until_cut(random).context("cut in a replacement")?;
        } else {
            self.write_until_cut(&self.members(), &Meanwhile::Nothing, random).context("cut under writes")?;
        }
        self.is_clean = false;
        if self.subject.closes_hole() && !self.is_rebuilding && self.replacing.is_none() && random.percent(40)
        {
            return self.verify_without_some(random).context("dirty and degraded");
        }
        match random.below(10) {
            0..7 => self.verify_on_host(&BTreeSet::new()).context("on the host"),
            7 if self.is_settled() && !self.subject.closes_hole() => {
                self.verify_in_kernel().context("in the kernel")
            }
            _ => {
                add(&mut self.counts, "cut_again", 1);
                Ok(())
            }
        }
    }

    /// The name of a slot's disk.
    fn disk(&self, slot: usize) -> String {
        let name = self.geometry.name;
        if slot < self.slots() {
            return format!("{name}-{slot}");
        }
        format!("{name}-{}", if slot < self.newcomer() { "journal" } else { "new" })
    }

    fn file(&self, slot: usize) -> PathBuf {
        self.lab.directory.join(format!("{}.img", self.disk(slot)))
    }

    /// The guest serves these slots, rebuilds onto or copies to another one if told, and writes until it
    /// dies.
    fn write_until_cut(
        &mut self,
        members: &[usize],
        meanwhile: &Meanwhile,
        random: &mut Random,
    ) -> Result<()> {
        let seeds: Vec<u64> = self.stretches.iter().map(|_| random.number() >> 1).collect();
        let writers: Vec<String> = (0..WRITERS)
            .zip(&seeds)
            .map(|(number, seed)| format!("{}:{WRITER_BLOCKS}:{seed}", number * WRITER_STRIDE))
            .collect();
        // Under writes an array that misses a member would be dirty and degraded, and rightly refused without
        // a log.
        let rebuilds = matches!(meanwhile, Meanwhile::Rebuild(_));
        let writes = !rebuilds || self.subject.closes_hole();
        let (word, range) = match meanwhile {
            Meanwhile::Rebuild(_) | Meanwhile::Replace(_) => ("changing", REBUILD_MS),
            Meanwhile::Nothing if random.percent(15) => ("starting", START_MS),
            Meanwhile::Nothing => ("serving", LOAD_MS),
        };
        let change = match meanwhile {
            Meanwhile::Rebuild(slot) => format!("add /run/array.control /dev/member/{}", self.disk(*slot)),
            Meanwhile::Replace(slot) => {
                let new = self.disk(self.newcomer());
                format!("replace /run/array.control {slot} --with /dev/member/{new}")
            }
            Meanwhile::Nothing => String::new(),
        };
        let machine = self
            .machine(members, random)
            .variable("WRITERS", &if writes { writers.join(" ") } else { String::new() })
            .variable("CHANGE", &change)
            .killed_after(word, Duration::from_millis(random.within(range)));
        let before = self.counters();
        let outcome = self.boot_until_cut(machine, random)?;
        let durable = durable(&outcome, self.stretches.len());
        let flushes = self.counters().flushes - before.flushes;
        ensure!(
            flushes > 0 || durable.iter().all(|batches| *batches == 0),
            "the guest flushed, and no flush came to the disks"
        );
        if writes {
            for ((stretch, seed), batches) in self.stretches.iter_mut().zip(seeds).zip(durable) {
                stretch.cut(seed, batches);
                let told = Batches::new(seed, WRITER_BLOCKS).take(batches);
                if rebuilds {
                    stretch.lose_undecided();
                }
                add(&mut self.counts, "durable_writes", told.map(|batch| batch.writes.len() as u64).sum());
            }
        }
        Ok(())
    }

    /// A member of the idle array is lost, and the guest dies while it rebuilds onto a fresh disk.
    fn rebuild_until_cut(&mut self, random: &mut Random) -> Result<()> {
        add(&mut self.counts, "rebuilds", 1);
        let slot = self.any_slot(random);
        let files = self.dump()?;
        let mut members = self.members();
        let server = self.serve(&members.iter().map(|slot| files[*slot].clone()).collect::<Vec<_>>())?;
        server.fail(u32::try_from(slot)?)?;
        server.stop()?;
        self.load()?;
        locked(&self.media[slot]).load(vec![0; usize::try_from(MEMBER_BYTES)?]);
        members.retain(|other| *other != slot);
        // One member more is missing until it is rebuilt.
        self.is_rebuilding = true;
        self.write_until_cut(&members, &Meanwhile::Rebuild(slot), random)
    }

    /// The guest dies under writes while it copies a member to a fresh disk.
    fn replace_until_cut(&mut self, random: &mut Random) -> Result<()> {
        add(&mut self.counts, "replacements", 1);
        let slot = self.any_slot(random);
        self.replacing = Some(slot);
        self.write_until_cut(&self.members(), &Meanwhile::Replace(slot), random)
    }

    /// How a replacement ended. True if the new device has the slot; else it never came so far, and is
    /// forgotten.
    fn is_replaced(&mut self, server: &Server, slot: usize) -> Result<bool> {
        let new = self.file(self.newcomer());
        if server.device_in(slot)? == new {
            add(&mut self.counts, "replaced", 1);
            return Ok(true);
        }
        // The power went before the copying had begun, durably: it is a spare, or nothing yet.
        let state = server.state()?;
        let spares = state["spares"].as_array().is_some_and(|spares| !spares.is_empty());
        ensure!(
            spares || !self.is_member(self.newcomer()),
            "the new device is nothing of the array: {state}"
        );
        if spares {
            server.remove(&new)?;
        }
        Ok(false)
    }

    /// Puts the new device where its slot's member was, if it has the slot, and a blank one in its place.
    fn settle_replacement(&mut self, slot: usize, is_replaced: bool) -> Result<()> {
        let new = self.file(self.newcomer());
        if is_replaced {
            fs::rename(&new, self.file(slot))?;
        }
        fs::write(new, vec![0; usize::try_from(MEMBER_BYTES)?])?;
        self.replacing = None;
        Ok(())
    }

    /// The slot of a member, not the journal's.
    fn any_slot(&self, random: &mut Random) -> usize {
        random.index(usize::try_from(self.geometry.members).unwrap_or(1))
    }

    /// A machine that serves these slots.
    fn machine(&self, members: &[usize], random: &mut Random) -> Machine {
        let devices: Vec<String> =
            members.iter().map(|slot| format!("/dev/member/{}", self.disk(*slot))).collect();
        Machine::new("load", include_str!("../../vm/soak.sh"))
            .modules(&["nbd"])
            .program("pinstripe", &self.lab.pinstripe)
            .variable("NAME", self.geometry.name)
            .variable("SHARDS", self.subject.shards)
            .variable("DEVICES", &devices.join(" "))
            .variable("VIA", if random.percent(30) { "kernel" } else { "socket" })
    }

    /// Boots it over the media, kills it, and lets them forget.
    fn boot_until_cut(&mut self, mut machine: Machine, random: &mut Random) -> Result<Outcome> {
        let socket = self.lab.sockets.join("disks");
        let media = self.media.iter().enumerate();
        let media = media.map(|(slot, medium)| (self.disk(slot), Arc::clone(medium))).collect();
        let disks = Disks::serve(&socket, media)?;
        for slot in 0..self.media.len() {
            machine.export(&self.disk(slot), &socket);
        }
        let outcome = self.lab.boot(machine);
        disks.end()?;
        let outcome = outcome?;
        add(&mut self.counts, "resets", 1);
        for medium in &self.media {
            locked(medium).cut_power(random);
        }
        Ok(outcome)
    }

    /// Puts what the disks hold into files; all slots, whether or not they are members yet.
    fn dump(&self) -> Result<Vec<PathBuf>> {
        let files: Vec<PathBuf> = (0..self.media.len()).map(|slot| self.file(slot)).collect();
        for (file, medium) in files.iter().zip(&self.media) {
            fs::write(file, locked(medium).bytes())?;
        }
        Ok(files)
    }

    /// Takes the files back, durably.
    fn load(&self) -> Result<()> {
        for (slot, medium) in self.media.iter().enumerate() {
            locked(medium).load(fs::read(self.file(slot))?);
        }
        Ok(())
    }

    fn serve(&self, devices: &[PathBuf]) -> Result<Server> {
        Server::start_with(self.lab, self.geometry.name, devices, &["--shards", self.subject.shards])
    }

    /// Whether the slot's disk has a superblock: a fresh one has none until `add` wrote it durably.
    fn is_member(&self, slot: usize) -> bool {
        locked(&self.media[slot]).bytes()[4096..4100] == 0xa92b_4efc_u32.to_le_bytes()
    }

    /// The slots, and the place behind them, with disks that belong to the array.
    fn members(&self) -> Vec<usize> {
        (0..self.media.len()).filter(|slot| self.is_member(*slot)).collect()
    }

    /// Whether all slots' disks are members, and no other is.
    fn is_settled(&self) -> bool {
        self.replacing.is_none() && (0..self.slots()).all(|slot| self.is_member(slot))
    }

    /// Members are lost with the power: the log must make up for them.
    fn verify_without_some(&mut self, random: &mut Random) -> Result<()> {
        add(&mut self.counts, "starts_dirty_and_degraded", 1);
        let count = random.within(1..self.subject.redundancy() + 1);
        let lost: BTreeSet<usize> = (0..count).map(|_| self.any_slot(random)).collect();
        self.stretches.iter_mut().for_each(Stretch::lose_undecided);
        self.verify_on_host(&lost)
    }

    /// Serves without the `lost` slots, verifies, puts fresh devices in for them and for what isn't a member
    /// yet, and verifies again.
    fn verify_on_host(&mut self, lost: &BTreeSet<usize>) -> Result<()> {
        add(&mut self.counts, "verified_by_us", 1);
        let files = self.dump()?;
        let is_there = |slot: &usize| self.is_member(*slot) && !lost.contains(slot);
        let (present, newcomers): (Vec<usize>, Vec<usize>) = (0..files.len()).partition(is_there);
        let members: Vec<PathBuf> = present.iter().map(|slot| files[*slot].clone()).collect();
        let server = self.serve(&members)?;
        if let Some(slot) = self.replacing {
            let goes_on = !server.state()?["members"][slot]["replacement"].is_null();
            add(&mut self.counts, "replacements_resumed", u64::from(goes_on));
        }
        let blocks = server.client()?.size / BLOCK as u64;
        arrays::verify(&server, &self.stretches, blocks).context("before it is in sync")?;
        // What was to replace a member is no member of its own.
        for slot in newcomers.into_iter().filter(|slot| *slot < self.slots()) {
            fs::write(&files[slot], vec![0; usize::try_from(MEMBER_BYTES)?])?;
            server.add(&files[slot])?;
        }
        arrays::verify_in_sync(&server, &mut self.stretches, blocks)?;
        let replaced = match self.replacing {
            Some(slot) => Some((slot, self.is_replaced(&server, slot)?)),
            None => None,
        };
        server.stop()?;
        if let Some((slot, is_replaced)) = replaced {
            self.settle_replacement(slot, is_replaced)?;
        }
        self.load()?;
        self.is_clean = true;
        self.is_rebuilding = false;
        Ok(())
    }

    fn verify_in_kernel(&mut self) -> Result<()> {
        add(&mut self.counts, "verified_by_the_kernel", 1);
        self.dump()?;
        let runs = self.stretches.iter().flat_map(Stretch::runs).collect::<Vec<_>>();
        self.lab.kernel_verifies("verify", &[self.geometry], |_| runs.clone(), &[])?;
        self.load()?;
        self.is_clean = true;
        self.is_rebuilding = false;
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.media.iter().map(|medium| locked(medium).counters()).fold(Counters::default(), |sum, one| {
            Counters {
                writes: sum.writes + one.writes,
                forced: sum.forced + one.forced,
                flushes: sum.flushes + one.flushes,
                sectors_at_stake: sum.sectors_at_stake + one.sectors_at_stake,
                sectors_lost: sum.sectors_lost + one.sectors_lost,
            }
        })
    }

    fn count_media(&mut self) {
        let counters = self.counters();
        for (name, count) in [
            ("disk_writes", counters.writes),
            ("disk_flushes", counters.flushes),
            ("sectors_at_stake", counters.sectors_at_stake),
            ("sectors_lost", counters.sectors_lost),
        ] {
            add(&mut self.counts, name, count);
        }
    }
}

/// How many batches of each writer the guest told to be durable. The last line may be cut short; its number
/// is then smaller than that of the line before.
fn durable(outcome: &Outcome, writers: usize) -> Vec<usize> {
    let mut durable = vec![0; writers];
    for line in outcome.all("durable") {
        let Some((writer, count)) = line.split_once(' ') else { continue };
        if let (Ok(writer), Ok(count)) = (writer.parse::<usize>(), count.parse::<usize>())
            && let Some(most) = durable.get_mut(writer)
        {
            *most = count.max(*most);
        }
    }
    durable
}
