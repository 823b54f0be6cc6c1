//! `cargo xtask net --figures`: measures, keeps what was measured, and writes the page.
//!
//! A figure is an experiment of a table such as the other papers' are: a round measures the goodput of a
//! link, and then at each place one arm right after the other.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::client::{self, Load, Measurement, equal_links};
use super::experiments::{self, Arm, Figure, Links, Point, READ, WRITTEN};
use super::network::{Network, Node, Rates};
use super::report::{self, NAME};
use super::rounds::whole;
use super::start_servers;
use crate::figures::chart::{Chart, Series as Line};
use crate::figures::experiment::{At, Row, Series};
use crate::figures::paper::{self, Kept};
use crate::figures::quantity::{OF_LINKS, Quantity};
use crate::origin::Origin;

/// Memory of all members together; with more servers each has less.
const MEMBERS_BYTES: u64 = 2 << 30;
/// A member has at least so much otherwise: there must be far more stripes than requests under way.
const MEMBER_BYTES_MIN: u64 = 128 << 20;
const MIB: f64 = 1_048_576.0;

/// What to measure.
pub struct Wish<'a> {
    /// The sources' root.
    pub root: &'a Path,
    /// The command.
    pub pinstripe: &'a Path,
    /// How often.
    pub rounds: u32,
    /// Only figures with this in their names; the others stay as they are.
    pub only: Option<&'a str>,
    /// Seconds of each point.
    pub seconds: f64,
    /// The client's link.
    pub mbit: f64,
    /// Where page, table and pictures go.
    pub papers: PathBuf,
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
    // One for all: figures that are compared with each other are then of one command.
    let origin = Origin::now(wish.root)?;
    let mut kept = paper::load(&wish.papers, NAME)?.unwrap_or_else(|| Kept::new(origin.clone()));
    let servers = chosen.iter().flat_map(|figure| &figure.points).map(|point| point.servers).max();
    let lab = Lab { wish, network: Network::new(servers.unwrap_or(1))? };
    let mut failed = Vec::new();
    for figure in chosen {
        println!("{}: {}", figure.name, figure.title);
        match lab.measure(figure) {
            Ok(rows) => kept.replace(&[figure.name.to_owned()], rows, &origin),
            Err(error) => {
                println!("  FAILED: {error:#}");
                failed.push(figure.name);
            }
        }
        // After each, so that what was measured stands if the next one is interrupted.
        write(&wish.papers, &figures, &kept)?;
    }
    println!("{}", wish.papers.join(format!("{NAME}.md")).display());
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Writes the page again, if something is kept.
pub fn write_again(papers: &Path) -> Result<()> {
    let kept = paper::load(papers, NAME)?;
    kept.map_or(Ok(()), |kept| write(papers, &experiments::all(1.0), &kept))
}

/// Writes page, table and pictures of everything that was measured, now or before.
fn write(papers: &Path, figures: &[Figure], kept: &Kept) -> Result<()> {
    paper::save(papers, NAME, &OF_LINKS, kept)?;
    for figure in figures {
        for &quantity in figure.quantities {
            if kept.rows.has(figure.name, quantity) {
                let file = papers.join(NAME).join(quantity.file(figure.name));
                paper::write(&file, &picture(figure, quantity, kept)?)?;
            }
        }
    }
    paper::write(&papers.join(format!("{NAME}.md")), &report::page(figures, kept))
}

/// A line for each level and arm.
fn picture(figure: &Figure, quantity: Quantity, kept: &Kept) -> Result<String> {
    let mut lines = Vec::new();
    for points in figure.points.chunk_by(|point, next| point.series == next.series) {
        for arm in figure.arms {
            let value = |point: &Point| {
                let at = At { experiment: figure.name, place: &point.place(), arm: arm.name() };
                Some((point.x, kept.rows.spread(at, quantity)?))
            };
            let name = format!("{}, {}", points[0].series, arm.name());
            lines.push(Line { name, points: points.iter().filter_map(value).collect() });
        }
    }
    Chart {
        title: &format!("{} ({})", figure.title, Series::Real.name()),
        quantity: quantity.words(),
        across: figure.axis,
        logarithmic: figure.logarithmic,
        // Beyond what an arm can do, latency is a thousand times as long.
        rises_by_powers: quantity == Quantity::P99,
        series: &lines,
    }
    .svg()
}

struct Lab<'a> {
    wish: &'a Wish<'a>,
    network: Network,
}

impl Lab<'_> {
    /// Every point with every arm, behind the goodput, round after round.
    fn measure(&self, figure: &Figure) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for round in 1..=self.wish.rounds {
            let mut keep = |place: &str, arm: Arm, mut values: Vec<(Quantity, f64)>| {
                values.extend([(Quantity::Seconds, self.wish.seconds), (Quantity::Link, self.wish.mbit)]);
                let [series, experiment, place, arm] =
                    [Series::Real.name(), figure.name, place, arm.name()].map(str::to_owned);
                rows.push(Row { series, experiment, place, arm, round, values });
            };
            let [written, read] = [self.goodput(0)?, self.goodput(100)?];
            println!("  {round}: goodput: {written:.1} MB/s written, {read:.1} MB/s read");
            keep(WRITTEN, Arm::HostCentric, vec![(Quantity::Throughput, written)]);
            keep(READ, Arm::HostCentric, vec![(Quantity::Throughput, read)]);
            for point in &figure.points {
                let goodput = if point.goodput() == READ { read } else { written };
                for &arm in figure.arms {
                    let measured = self.point(point, arm, goodput)?;
                    let (rate, busy) = (measured.bytes_per_second() / 1e6, measured.busy * 100.0);
                    let (place, name, share) = (point.place(), arm.name(), rate / goodput);
                    println!(
                        "  {place:26} {name:34} {rate:6.1} MB/s, {share:.3} of goodput; {busy:.0} % busy"
                    );
                    keep(&place, arm, values(point, arm, &measured, goodput));
                }
            }
        }
        Ok(rows)
    }

    /// What one link carries, in MB/s: plain sequential writes to one member, or reads of it.
    fn goodput(&self, reads: u8) -> Result<f64> {
        let plain = Load::new(0, self.wish.seconds);
        let plain = Load { size: 1 << 20, depth: 8, pattern: "sequential", reads, fill: reads > 0, ..plain };
        let rates = equal_links(1, self.wish.mbit);
        Ok(self.run(1, &plain, Arm::HostCentric, &rates)?.bytes_per_second() / 1e6)
    }

    fn point(&self, point: &Point, arm: Arm, goodput: f64) -> Result<Measurement> {
        let rate = point.rate_share.map(|share| bytes(share * goodput * 1e6));
        let load = Load { rate, ..point.load.clone() };
        self.run(point.servers, &load, arm, &point.links.rates(point.servers, self.wish.mbit))
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

/// What the table has of a measurement; rates are in MB/s.
fn values(point: &Point, arm: Arm, measured: &Measurement, goodput: f64) -> Vec<(Quantity, f64)> {
    let (user, rate) = (measured.user_bytes(), measured.bytes_per_second() / 1e6);
    let cpu = |seconds: f64| seconds * 1e6 * MIB / user;
    let mut values = vec![
        (Quantity::Throughput, rate),
        (Quantity::Cpu, cpu(measured.client_cpu)),
        (Quantity::ServersCpu, cpu(measured.servers_cpu.iter().sum())),
        (Quantity::Sent, whole(measured.client.sent) / user),
        (Quantity::Received, whole(measured.client.received) / user),
        (Quantity::Busy, measured.busy * 100.0),
    ];
    if point.load.rebuild.is_none() {
        let latency = |(quantity, percentile)| (quantity, measured.latency(percentile) * 1e6);
        values.extend([(Quantity::P50, "p50"), (Quantity::P99, "p99")].map(latency));
    }
    if arm == Arm::HostCentric {
        // By what the plan moves over the busiest link.
        let servers_share = match point.links {
            Links::Servers(share) => share * whole(point.servers as u64),
            Links::Equal | Links::SlowReceivers(_) => 1.0,
        };
        let (written, read) = measured.moved();
        let bound = servers_share.min(1.0) * user / written.max(read) * goodput;
        values.push((Quantity::OfBound, rate / bound));
    }
    values
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate in bytes, positive")]
fn bytes(rate: f64) -> u64 {
    rate.max(1.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::report::tests::kept;

    #[test]
    fn a_chart_names_its_lines_and_its_places() {
        let figures = experiments::all(1.0);
        let figure = figures.iter().find(|figure| figure.name == "reads-by-size").unwrap();
        let text = picture(figure, Quantity::Throughput, &kept()).unwrap();
        for word in ["RAID5, offload", "RAID6, host-centric", ">\n64\n<", ">\n1024\n<", "(real CPU)"] {
            assert!(text.contains(word), "{word} is missing in {text}");
        }
        assert!(text.contains(figure.title) && text.contains("MB/s"), "{text}");
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let papers = std::env::temp_dir().join(format!("net-figures-{}", std::process::id()));
        std::fs::create_dir_all(&papers).unwrap();
        write_again(&papers).unwrap();
        let (figures, kept) = (experiments::all(1.0), kept());
        write(&papers, &figures, &kept).unwrap();
        let page = papers.join(format!("{NAME}.md"));
        let written = std::fs::read_to_string(&page).unwrap();
        std::fs::remove_file(&page).unwrap();
        let loaded = paper::load(&papers, NAME).unwrap().unwrap();
        write_again(&papers).unwrap();
        let again = std::fs::read_to_string(&page).unwrap();
        std::fs::remove_dir_all(&papers).unwrap();
        assert_eq!((loaded.rows, loaded.later), (kept.rows, kept.later));
        assert_eq!(again, written);
    }
}
