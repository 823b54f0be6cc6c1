//! The order of a run: arrays, pairs, and what one server does in its turn.
//!
//! Each turn begins with the data that the turn before has left to be checked, whichever server wrote it, and
//! ends with a scrub and with its own data read back. In the degraded state it is read back too.

use anyhow::{Context, Result, ensure};

use super::cells::{Array, Cell, Plan, State};
use super::load::Door;
use super::peers::{Bed, Md, Null, Ours, Peer};
use super::results::Row;

/// The slot whose member is taken out.
const SLOT: usize = 1;
/// A rebuild is held to a speed at which it takes so many times as long as its cells should.
const REBUILD_ROOM: f64 = 3.0;
/// What a cell takes beside its measurement: fio's start, above all in an emulated machine.
const CELL_SECONDS: f64 = 2.0;

/// Measures all of the plan, and tells each row as it comes.
pub fn run(bed: &Bed, plan: &Plan, has_md: bool, force: bool, tell: &mut dyn FnMut(Row)) -> Result<()> {
    let mut may_overwrite = force;
    for (array, cells) in plan.matrix() {
        eprintln!("{array}: {} cells", cells.len());
        bed.create(array, may_overwrite)?;
        may_overwrite = true;
        let mut turns = Turns { bed, plan, array, cells: &cells, seed: None, tell: &mut *tell };
        turns.prepare().with_context(|| format!("{array}: prepare"))?;
        for pair in 0..plan.pairs {
            let mut peers: Vec<Box<dyn Peer>> = vec![Box::new(Ours::new(bed))];
            if has_md {
                // Neither always comes first.
                peers.insert(usize::try_from(pair % 2)?, Box::new(Md::new(bed)));
            }
            for peer in &mut peers {
                let name = peer.name();
                turns.take(peer.as_mut(), pair).with_context(|| format!("{array}, {name}, turn {pair}"))?;
            }
            turns.null(pair).context("the null device")?;
        }
    }
    Ok(())
}

struct Turns<'a> {
    bed: &'a Bed,
    plan: &'a Plan,
    array: Array,
    cells: &'a [Cell],
    /// Of the data that the next turn reads back.
    seed: Option<u64>,
    tell: &'a mut dyn FnMut(Row),
}

impl Turns<'_> {
    /// Every byte is written once, and parity made, before anything is measured.
    fn prepare(&self) -> Result<()> {
        let mut ours = Ours::new(self.bed);
        let door = ours.start()?;
        ours.settle()?;
        door.fill()?;
        ours.stop()
    }

    fn of(&self, state: State) -> Vec<Cell> {
        self.cells.iter().copied().filter(|cell| cell.state == state).collect()
    }

    fn measure(&mut self, door: &Door, arm: &str, pair: u32, cells: &[Cell]) -> Result<()> {
        for &cell in cells {
            let figures = door.measure(cell, self.plan.seconds).with_context(|| cell.to_string())?;
            eprintln!(
                "  {pair} {arm:10} {:34} {:10.0}/s  p99 {:8.0} us",
                cell.to_string(),
                figures.iops,
                figures.p99_us
            );
            (self.tell)(Row::new(self.array.to_string(), cell, arm, pair, figures));
        }
        Ok(())
    }

    /// One server's turn.
    fn take(&mut self, peer: &mut dyn Peer, pair: u32) -> Result<()> {
        let (arm, door) = (peer.name(), peer.start()?);
        if let Some(seed) = self.seed {
            door.verify(seed).context("from the turn before")?;
        }
        self.measure(&door, arm, pair, &self.of(State::Healthy))?;
        let seed = self.seed.map_or(1, |seed| seed + 1);
        door.write_checked(seed)?;
        let (degraded, rebuilding) = (self.of(State::Degraded), self.of(State::Rebuilding));
        if degraded.len() + rebuilding.len() > 0 {
            peer.fail(SLOT)?;
            door.verify(seed).context("degraded")?;
            self.measure(&door, arm, pair, &degraded)?;
            peer.rebuild(SLOT, self.speed(rebuilding.len())?)?;
            self.measure(&door, arm, pair, &rebuilding)?;
            ensure!(
                rebuilding.is_empty() || peer.is_rebuilding()?,
                "the rebuild was over before what is measured beside it: more --member-size is needed, or less --seconds"
            );
            peer.settle()?;
        }
        peer.scrub()?;
        door.verify(seed).context("at the end of the turn")?;
        self.seed = Some(seed);
        peer.stop()
    }

    /// KiB per second of a rebuild that lasts as long as `cells`.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a speed"
    )]
    fn speed(&self, cells: usize) -> Result<u64> {
        if cells == 0 {
            return Ok(u64::from(u32::MAX) >> 10);
        }
        let device = &self.bed.devices[SLOT];
        let whole = super::device_bytes(device)?;
        let bytes = self.bed.member_bytes.map_or(whole, |bytes| bytes.min(whole));
        let seconds = cells as f64 * (self.plan.seconds + CELL_SECONDS) * REBUILD_ROOM;
        Ok((bytes as f64 / 1024.0 / seconds) as u64)
    }

    /// What any server behind the driver can do at most.
    fn null(&mut self, pair: u32) -> Result<()> {
        let cells = self.of(State::Healthy);
        if cells.is_empty() || !self.bed.ublk {
            return Ok(());
        }
        let (null, door) = Null::start(self.bed)?;
        self.measure(&door, "null", pair, &cells)?;
        null.stop()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs::{self, File};
    use std::ops::Range;
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;

    use super::*;

    /// A server that is a plain file, and remembers what it was told.
    struct Plain {
        file: PathBuf,
        told: RefCell<Vec<String>>,
        rebuilding: bool,
        /// What the file has where [`LOST`] is, while it can't be read.
        lost: Option<RefCell<Vec<u8>>>,
    }

    /// What a server lacks that loses data with its member.
    const LOST: Range<u64> = 8 << 20..(8 << 20) + 4096;

    impl Plain {
        /// Puts other bytes where [`LOST`] is.
        fn swap(&self) -> Result<()> {
            let Some(lost) = &self.lost else { return Ok(()) };
            let file = File::options().read(true).write(true).open(&self.file)?;
            let mut bytes = vec![0; 4096];
            file.read_exact_at(&mut bytes, LOST.start)?;
            file.write_all_at(&lost.replace(bytes), LOST.start)?;
            Ok(())
        }

        fn tell(&self, what: &str) {
            self.told.borrow_mut().push(what.to_owned());
        }
    }

    impl Peer for Plain {
        fn name(&self) -> &'static str {
            "plain"
        }
        fn start(&mut self) -> Result<Door> {
            self.tell("start");
            Ok(Door::Device(self.file.clone()))
        }
        fn fail(&self, slot: usize) -> Result<()> {
            self.tell(&format!("fail {slot}"));
            self.swap()
        }
        fn rebuild(&self, slot: usize, speed: u64) -> Result<()> {
            self.tell(&format!("rebuild {slot} at {speed}"));
            self.swap()
        }
        fn is_rebuilding(&self) -> Result<bool> {
            Ok(self.rebuilding)
        }
        fn settle(&self) -> Result<()> {
            self.tell("settle");
            Ok(())
        }
        fn scrub(&self) -> Result<()> {
            self.tell("scrub");
            Ok(())
        }
        fn stop(&mut self) -> Result<()> {
            self.tell("stop");
            Ok(())
        }
    }

    fn cell(state: State) -> Cell {
        Cell { state, sequential: false, reads: false, kib: 4, depth: 4, jobs: 1 }
    }

    /// Two turns of one server; `between` gets the file between them. What the server was told, and the rows.
    fn turns(name: &str, rebuilding: bool, between: impl Fn(&File)) -> Result<(Vec<String>, Vec<Row>)> {
        turns_of(name, (rebuilding, None), between)
    }

    /// With `lost`, the server has no data of its member while that is missing.
    fn turns_of(
        name: &str,
        (rebuilding, lost): (bool, Option<RefCell<Vec<u8>>>),
        between: impl Fn(&File),
    ) -> Result<(Vec<String>, Vec<Row>)> {
        let file = std::env::temp_dir().join(format!("pinstripe-xtask-{name}-{}", std::process::id()));
        File::create(&file)?.set_len(32 << 20)?;
        let bed = Bed {
            pinstripe: PathBuf::new(),
            devices: vec![file.clone(), file.clone()],
            threads: 1,
            member_bytes: Some(18 << 20),
            folder: PathBuf::new(),
            ublk: false,
        };
        let plan = Plan { seconds: 0.1, ..Plan::default() };
        let (array, cells) =
            (Array { level: 5, bitmap: true }, [State::Healthy, State::Degraded, State::Rebuilding]);
        let (cells, mut rows) = (cells.map(cell), Vec::new());
        let mut plain = Plain { file: file.clone(), told: RefCell::default(), rebuilding, lost };
        let mut tell = |row| rows.push(row);
        let mut turns = Turns { bed: &bed, plan: &plan, array, cells: &cells, seed: None, tell: &mut tell };
        let both = turns.take(&mut plain, 0).and_then(|()| {
            between(&File::options().write(true).open(&file)?);
            turns.take(&mut plain, 1)
        });
        fs::remove_file(file)?;
        both.map(|()| (plain.told.take(), rows))
    }

    #[test]
    fn a_turn_measures_every_state_and_ends_whole_and_scrubbed() {
        let (told, rows) = turns("order", true, |_| ()).unwrap();
        // 18 MiB for one cell of 2.1 s, three times as slowly.
        let turn = ["start", "fail 1", "rebuild 1 at 2925", "settle", "scrub", "stop"];
        assert_eq!(told, [turn, turn].concat());
        let measured: Vec<(u32, State)> = rows.iter().map(|row| (row.pair, row.cell.state)).collect();
        let states = [State::Healthy, State::Degraded, State::Rebuilding];
        assert_eq!(measured, [0, 1].map(|pair| states.map(|state| (pair, state))).concat());
    }

    #[test]
    fn what_one_server_has_lost_is_found_in_the_turn_of_the_next() {
        let lost = turns("lost", true, |file| file.write_all_at(&[0; 4096], 8 << 20).unwrap());
        assert_eq!(lost.unwrap_err().to_string(), "from the turn before");
    }

    #[test]
    fn what_a_server_can_not_read_without_a_member_is_found_while_it_is_missing() {
        let lost = Some(RefCell::new(vec![0; 4096]));
        let lacks = turns_of("degraded", (true, lost), |_| ()).unwrap_err();
        assert_eq!(lacks.to_string(), "degraded");
    }

    #[test]
    fn a_rebuild_that_was_over_too_early_is_no_measurement() {
        let early = turns("early", false, |_| ()).unwrap_err();
        assert!(early.to_string().contains("--member-size"), "{early}");
    }
}
