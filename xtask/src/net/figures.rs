//! `cargo xtask net --figures`: measures, keeps what was measured, and writes the page.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::client::{self, Load, Measurement, equal_links};
use super::experiments::{self, Arm, Figure, Links, Point};
use super::network::{Network, Node, Rates};
use super::results::{Goodput, Line, Measured};
use super::{chart, report, start_servers};
use crate::origin;

/// Memory of all members together; with more servers each has less.
const MEMBERS_BYTES: u64 = 2 << 30;
/// A member has at least so much otherwise: there must be far more stripes than requests under way.
const MEMBER_BYTES_MIN: u64 = 128 << 20;
/// Where the figures lie, from the root.
const FOLDER: &str = "docs/results/disaggregated";
/// The page.
const PAGE: &str = "docs/results/disaggregated.md";

/// What to measure.
pub struct Wish<'a> {
    /// The sources' root.
    pub root: &'a Path,
    /// The command.
    pub pinstripe: &'a Path,
    /// Only figures with this in their names; the others stay as they are.
    pub only: Option<&'a str>,
    /// Whether to measure nothing, and write the page of what is kept.
    pub page: bool,
    /// Seconds of each point.
    pub seconds: f64,
    /// The client's link.
    pub mbit: f64,
    /// Where the page goes instead of the documents.
    pub out: Option<&'a Path>,
}

impl Wish<'_> {
    fn base(&self) -> &Path {
        self.out.unwrap_or(self.root)
    }

    /// Where charts and what was measured lie.
    fn folder(&self) -> PathBuf {
        self.base().join(FOLDER)
    }

    /// What was measured of a figure.
    fn file(&self, name: &str) -> PathBuf {
        self.folder().join(format!("{name}.json"))
    }
}

/// Measures the figures, one after the other; one that fails is left as it was, and the others are measured.
pub fn run(wish: &Wish) -> Result<()> {
    let figures = experiments::all(wish.seconds);
    let is_called = |part| figures.iter().any(|figure| figure.name == part);
    let is_chosen = |figure: &&Figure| {
        wish.only
            .is_none_or(|part| if is_called(part) { figure.name == part } else { figure.name.contains(part) })
    };
    let chosen: Vec<&Figure> = figures.iter().filter(is_chosen).collect();
    ensure!(!chosen.is_empty(), "no figure has {:?} in its name; they are: {}", wish.only.unwrap_or(""), {
        figures.iter().map(|figure| figure.name).collect::<Vec<_>>().join(", ")
    });
    fs::create_dir_all(wish.folder())?;
    if wish.page {
        return write_page(wish, &figures);
    }
    let servers = chosen.iter().flat_map(|figure| &figure.points).map(|point| point.servers).max();
    let lab = Lab { wish, network: Network::new(servers.unwrap_or(1))? };
    let mut failed = Vec::new();
    for figure in chosen {
        println!("{}: {}", figure.name, figure.title);
        let result =
            lab.measure(figure).and_then(|measured| origin::save(&measured, &wish.file(figure.name)));
        if let Err(error) = result {
            println!("  FAILED: {error:#}");
            failed.push(figure.name);
        }
        // After each, so that what was measured stands if the next one is interrupted.
        write_page(wish, &figures)?;
    }
    println!("{}", wish.base().join(PAGE).display());
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Draws everything that was measured, now or before, and writes the page.
fn write_page(wish: &Wish, figures: &[Figure]) -> Result<()> {
    let mut known = Vec::new();
    for figure in figures {
        if let Some(measured) = origin::load::<Measured>(&wish.file(figure.name))? {
            chart::draw(figure, &measured, &wish.folder())?;
            known.push((figure, measured));
        }
    }
    let path = wish.base().join(PAGE);
    fs::write(&path, report::page(figures, &known)).with_context(|| format!("write {}", path.display()))
}

struct Lab<'a> {
    wish: &'a Wish<'a>,
    network: Network,
}

impl Lab<'_> {
    /// Measures every point with every arm, goodput first.
    fn measure(&self, figure: &Figure) -> Result<Measured> {
        let goodput = self.goodput()?;
        let mut measured = Measured::begin(self.wish.root, self.wish.seconds, self.wish.mbit, goodput)?;
        println!(
            "  goodput: {} MB/s written, {} MB/s read",
            megabytes(goodput.write),
            megabytes(goodput.read)
        );
        for point in &figure.points {
            for &arm in figure.arms {
                let row = self.row(point, arm, goodput)?;
                let of_bound =
                    row.of_bound().map_or(String::new(), |share| format!(", {share:.3} of its bound"));
                println!(
                    "  {:16} {:>9}  {:34} {:6} MB/s, {:.3} of goodput{of_bound}; machine {:.0} % busy",
                    row.series,
                    row.label,
                    row.arm,
                    megabytes(row.bytes_per_second),
                    row.of_goodput,
                    row.busy * 100.0
                );
                measured.rows.push(row);
            }
        }
        Ok(measured)
    }

    /// What one link carries: plain sequential writes to one member, and reads of it.
    fn goodput(&self) -> Result<Goodput> {
        let plain =
            Load { size: 1 << 20, depth: 8, pattern: "sequential", ..Load::new(0, self.wish.seconds) };
        let rates = equal_links(1, self.wish.mbit);
        let write = self.run(1, &plain, Arm::HostCentric, &rates)?.bytes_per_second();
        let reads = Load { reads: 100, fill: true, ..plain };
        let read = self.run(1, &reads, Arm::HostCentric, &rates)?.bytes_per_second();
        Ok(Goodput { write, read })
    }

    fn row(&self, point: &Point, arm: Arm, goodput: Goodput) -> Result<Line> {
        let goodput = goodput.of(if point.load.rebuild.is_some() { 100 } else { point.load.reads });
        let mut load = point.load.clone();
        load.rate = point.rate_share.map(|share| bytes(share * goodput));
        let rates = point.links.rates(point.servers, self.wish.mbit);
        let measured = self.run(point.servers, &load, arm, &rates)?;
        let place = (point.series.as_str(), arm.name(), point.x, point.label.as_str());
        let servers_share = match point.links {
            Links::Servers(share) => share * f64::from(u32::try_from(point.servers)?),
            Links::Equal | Links::SlowReceivers(_) => 1.0,
        };
        Ok(Line::new(place, &measured, goodput, (arm == Arm::HostCentric, servers_share)))
    }

    /// A load on new members.
    fn run(&self, servers: usize, load: &Load, arm: Arm, rates: &[(Node, Rates)]) -> Result<Measurement> {
        let (wish, mib) = (self.wish, 1 << 20);
        let shared = || (MEMBERS_BYTES / servers.max(4) as u64).max(MEMBER_BYTES_MIN) / mib * mib;
        let bytes = load.rebuild.map_or_else(shared, |rebuild| rebuild.bytes);
        let servers = start_servers(&self.network, wish.pinstripe, (servers, bytes), arm)?;
        client::run(&self.network, wish.pinstripe, &servers, load, arm, rates)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate in bytes, positive")]
fn bytes(rate: f64) -> u64 {
    rate.max(1.0) as u64
}

/// Bytes in MB, for people.
fn megabytes(bytes: f64) -> String {
    format!("{:.1}", bytes / 1e6)
}
