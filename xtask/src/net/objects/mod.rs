//! `cargo xtask net --objects`: a store of objects on an array behind limited links, by the side that
//! computes parity. dRAID's figures 20 and 21.
//!
//! A round makes every run once, one arm right after the other. Ratios are those of a round. Rounds that come
//! later join the ones of the same commit, link and length.

mod page;
mod plan;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use self::plan::{Keys, MIXES, Point};
use self::table::{Kept, Run};
use super::client::{self, Load, Store, equal_links};
use super::experiments::Arm;
use super::network::Network;
use super::rounds::ARMS;
use super::start_servers;
use super::ycsb::{Mix, State};
use crate::origin::Origin;

/// The paper's 200,000 objects are 26 GB; a run that loads and reads back these takes seconds.
const OBJECTS: usize = 4_000;
/// Bytes of an object with its header, as in the paper.
const OBJECT_BYTES: u64 = 128 << 10;
/// Members, as in the paper.
const SERVERS: usize = 8;
/// Six times as much are the slots of level 6, of which four in five may have objects.
const MEMBER_BYTES: u64 = 112 << 20;

/// What to measure.
pub struct Wish<'a> {
    /// The sources' root.
    pub root: &'a Path,
    /// The command.
    pub pinstripe: &'a Path,
    /// How often.
    pub rounds: u32,
    /// Seconds of each run.
    pub seconds: f64,
    /// All links.
    pub mbit: f64,
    /// Where page, table and pictures go.
    pub papers: PathBuf,
}

/// Measures, and writes the page after each round.
pub fn run(wish: &Wish) -> Result<()> {
    let known = table::load(&wish.papers)?;
    let fresh =
        Kept { origin: Origin::now(wish.root)?, mbit: wish.mbit, seconds: wish.seconds, runs: Vec::new() };
    let mut kept = known.filter(|known| known.is_of(&fresh)).unwrap_or(fresh);
    let network = Network::new(SERVERS)?;
    for _ in 0..wish.rounds {
        let round = kept.runs.iter().map(|run| run.round + 1).max().unwrap_or(1);
        for point in points() {
            for arm in ARMS {
                kept.runs.push(measure(wish, &network, point, arm, round)?);
            }
        }
        write(&wish.papers, &kept)?;
    }
    println!("{}", wish.papers.join("draid.md").display());
    Ok(())
}

/// Writes the page again, if something is kept.
pub fn write_again(papers: &Path) -> Result<()> {
    table::load(papers)?.map_or(Ok(()), |kept| write(papers, &kept))
}

/// What is measured, in this order.
fn points() -> Vec<Point> {
    let states = [State::Healthy, State::Degraded];
    let all = |level, state, keys, mixes: &'static [Mix]| {
        mixes.iter().map(move |&mix| Point { level, state, keys, mix })
    };
    let writes_most: &[Mix] = &plan::WRITES_MOST;
    let mut points = Vec::new();
    for state in states {
        points.extend(all(5, state, Keys::Uniform, &MIXES));
        points.extend(all(5, state, Keys::Zipf, if state == State::Healthy { &MIXES } else { writes_most }));
        points.extend(all(6, state, Keys::Uniform, writes_most));
    }
    points
}

fn load(point: Point, seconds: f64) -> Load {
    Load {
        size: OBJECT_BYTES,
        pattern: point.keys.pattern(),
        lost: if point.state == State::Degraded { vec![0] } else { Vec::new() },
        store: Some(Store { objects: OBJECTS, mix: point.mix.option() }),
        ..Load::new(point.level, seconds)
    }
}

/// One run, on new members.
fn measure(wish: &Wish, network: &Network, point: Point, arm: Arm, round: u32) -> Result<Run> {
    let servers = start_servers(network, wish.pinstripe, (SERVERS, MEMBER_BYTES), arm)?;
    let rates = equal_links(SERVERS, wish.mbit);
    let load = load(point, wish.seconds);
    let measured = client::run(network, wish.pinstripe, &servers, &load, arm, &rates)?;
    let checked = &measured.report["checked"];
    let is_checked = checked["objects"].as_u64().is_some_and(|objects| objects >= OBJECTS as u64)
        && checked["stripes"].as_u64().is_some_and(|stripes| stripes > 0)
        && checked["mismatched_sectors"].as_u64() == Some(0);
    ensure!(is_checked, "{point} by {}: not all was found right: {checked}", arm.name());
    let run = Run::new(point, arm, round, &measured);
    println!("{round} {point:44} {:12} {run}", arm.name());
    Ok(run)
}

/// Writes page, table and pictures below `folder`.
fn write(folder: &Path, kept: &Kept) -> Result<()> {
    let beside = folder.join("draid");
    fs::create_dir_all(&beside).with_context(|| format!("make {}", beside.display()))?;
    table::save(folder, kept)?;
    for figure in page::FIGURES {
        let path = beside.join(format!("{}.svg", figure.name));
        fs::write(&path, figure.svg(kept)?).with_context(|| format!("write {}", path.display()))?;
    }
    let path = folder.join("draid.md");
    fs::write(&path, page::page(kept)).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_20_and_21_are_measured_with_all_mixes() {
        let points = points();
        for state in [State::Healthy, State::Degraded] {
            for mix in MIXES {
                assert!(points.contains(&Point { level: 5, state, keys: Keys::Uniform, mix }));
            }
        }
        let line = load(points[0], 1.0);
        assert!(line.store.is_some() && line.lost.is_empty() && line.chunk == 512 << 10);
    }
}
