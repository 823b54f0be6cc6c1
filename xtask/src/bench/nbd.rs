//! NBD: our array, with members in memory, beside nbdkit's memory plugin. Both are there all the time, and
//! requests go to the one and to the other, cell by cell.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::cells::{Cell, DEPTH, MEMBERS, Plan, State};
use super::load::Door;
use super::page::{NBD, OURS, part};
use super::peers::Served;
use super::results::Row;
use crate::vm::server::said;

/// MiB of a member; one of them holds parity.
const MEMBER_MIB: usize = 192;
const SUBJECT: &str = "RAID5 5+1 in memory";
/// Of the data that is read back at the end.
const SEED: u64 = 1;

/// Measures all cells that the plan has not ruled out, in its pairs.
pub fn run(pinstripe: &Path, folder: &Path, plan: &Plan, tell: &mut dyn FnMut(Row)) -> Result<()> {
    let (mut theirs, mut ours) = (nbdkit(folder)?, serve(pinstripe, folder)?);
    let base = part(NBD).context("the page has this part")?.base;
    let mut arms = [(base, export(folder, base)), (OURS, export(folder, OURS))];
    for (_, door) in &arms {
        door.fill()?;
    }
    for pair in 0..plan.pairs {
        for cell in cells().filter(|cell| plan.names(&format!("{SUBJECT}: {cell}"))) {
            for (arm, door) in &arms {
                let figures = door.measure(cell, plan.seconds).with_context(|| format!("{arm}: {cell}"))?;
                eprintln!(
                    "  {pair} {arm:10} {:34} {:10.0}/s  p99 {:8.0} us",
                    cell.to_string(),
                    figures.iops,
                    figures.p99_us
                );
                tell(Row::new(SUBJECT.to_owned(), cell, arm, pair, figures));
            }
            // Neither always comes first.
            arms.reverse();
        }
    }
    for (arm, door) in &arms {
        door.write_checked(SEED)
            .and_then(|()| door.verify(SEED))
            .with_context(|| format!("{arm}, at the end"))?;
    }
    said(Command::new(pinstripe).arg("check").arg(folder.join("control")))?;
    ours.stop()?;
    theirs.stop()
}

fn cells() -> impl Iterator<Item = Cell> {
    let cell =
        |depth, reads| Cell { state: State::Healthy, sequential: false, reads, kib: 4, depth, jobs: 1 };
    [DEPTH, 1].into_iter().flat_map(move |depth| [cell(depth, true), cell(depth, false)])
}

fn socket(folder: &Path, arm: &str) -> PathBuf {
    folder.join(format!("{arm}.nbd"))
}

fn export(folder: &Path, arm: &str) -> Door {
    Door::Nbd(format!("nbd+unix:///?socket={}", socket(folder, arm).display()))
}

fn nbdkit(folder: &Path) -> Result<Served> {
    let socket = socket(folder, "nbdkit");
    let _ = fs::remove_file(&socket);
    let mut nbdkit = Command::new("nbdkit");
    nbdkit.args(["--foreground", "--unix"]).arg(&socket);
    nbdkit.args(["memory", &format!("{}M", (MEMBERS - 1) * MEMBER_MIB)]);
    Served::start(nbdkit, folder.join("nbdkit.log"), |_| socket.exists())
}

fn serve(pinstripe: &Path, folder: &Path) -> Result<Served> {
    let mut serve = Command::new(pinstripe);
    serve.args(["serve", "--create", "--level=5", "--shards=1", "--control"]).arg(folder.join("control"));
    serve.args(["--nbd", &format!("unix:{}", socket(folder, OURS).display())]);
    serve.args(std::iter::repeat_n(format!("mem:{MEMBER_MIB}M"), MEMBERS));
    Served::start_ready(serve, folder.join("serve.log"))
}
