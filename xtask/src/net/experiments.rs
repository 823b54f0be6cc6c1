//! What is measured: every figure is a list of points, each with its load, its servers and its links, and the
//! arms that are compared at each point.
//!
//! Levels 5 and 6, 8 servers, chunks of 512 KiB, random requests of 128 KiB and equal links, unless that is
//! what the figure is about.

use super::client::{Load, Rebuild, equal_links};
use super::network::{Node, Rates};
use crate::figures::quantity::Quantity;

/// Plain sequential requests to one member over one link, before the points of each round: its goodput.
pub const WRITTEN: &str = "one link, written";
pub const READ: &str = "one link, read";
/// Servers, where a figure isn't about their number.
const SERVERS: usize = 8;
/// Widths of stripes.
const WIDTHS: &[u32] = &[4, 6, 8, 10, 14, 18];
/// KiB of requests under way at a time, where requests aren't very small or very large.
const KIB_UNDER_WAY: u32 = 4 << 10;

/// Which side does the parity's work, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The client does everything.
    HostCentric,
    /// The servers do.
    Offload,
    /// The same, each stage after the last one is over.
    Barrier,
    /// The same, each server doing one thing at a time.
    Serial,
    /// The same, reducers drawn uniformly.
    Uniform,
    /// The same, reducers drawn by free bandwidth.
    Bandwidth,
}

impl Arm {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HostCentric => "host-centric",
            Self::Offload => "offload",
            Self::Barrier => "offload, barrier",
            Self::Serial => "offload, serial servers",
            Self::Uniform => "offload, uniform reducers",
            Self::Bandwidth => "offload, bandwidth-aware reducers",
        }
    }

    /// What `pinstripe bench` is told.
    pub fn client(self) -> &'static [&'static str] {
        match self {
            Self::HostCentric => &["--offload", "off"],
            Self::Offload | Self::Serial => &["--offload", "on"],
            Self::Barrier => &["--offload", "barrier"],
            Self::Uniform => &["--offload", "on", "--reducer", "uniform"],
            Self::Bandwidth => &["--offload", "on", "--reducer", "bandwidth"],
        }
    }

    /// What `pinstripe target` is told.
    pub fn servers(self) -> &'static [&'static str] {
        match self {
            Self::HostCentric => &["--offload", "off"],
            Self::Serial => &["--offload", "serial"],
            Self::Offload | Self::Barrier | Self::Uniform | Self::Bandwidth => &["--offload", "on"],
        }
    }
}

const BOTH: &[Arm] = &[Arm::HostCentric, Arm::Offload];

/// How fast the links are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Links {
    /// All alike.
    Equal,
    /// The servers' at this share of the client's.
    Servers(f64),
    /// The receiving side of so many servers, from the second one on, at a quarter.
    SlowReceivers(usize),
}

impl Links {
    /// The rates, if the client's link has `mbit`.
    pub fn rates(self, servers: usize, mbit: f64) -> Vec<(Node, Rates)> {
        let mut rates = equal_links(servers, mbit);
        for (node, rates) in &mut rates {
            match (self, *node) {
                (Self::Servers(share), Node::Server(_)) => *rates = Rates::both(mbit * share),
                (Self::SlowReceivers(count), Node::Server(number)) if (1..=count).contains(&number) => {
                    rates.receive = Some(mbit / 4.0);
                }
                _ => {}
            }
        }
        rates
    }
}

/// One measurement of a figure, to be made with every arm.
#[derive(Clone, Debug)]
pub struct Point {
    /// Which line it is on.
    pub series: &'static str,
    /// Where on the axis.
    pub x: u32,
    /// In words.
    pub label: String,
    /// Servers; each has one member.
    pub servers: usize,
    /// How fast they are reached.
    pub links: Links,
    /// What the client does.
    pub load: Load,
    /// The load's rate, by the goodput.
    pub rate_share: Option<f64>,
}

impl Point {
    /// As the table calls it.
    pub fn place(&self) -> String {
        format!("{}, {}", self.series, self.label)
    }

    /// The goodput that it is compared with. A duplex link carries both at once, so that mixed loads can
    /// exceed it.
    pub fn goodput(&self) -> &'static str {
        if self.load.reads == 100 || self.load.rebuild.is_some() { READ } else { WRITTEN }
    }
}

/// See the module.
pub struct Figure {
    /// Of its files.
    pub name: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// What is measured, where that isn't plain.
    pub about: &'static str,
    /// The axis.
    pub axis: &'static str,
    /// Its points double rather than rise evenly.
    pub logarithmic: bool,
    /// A chart of each; none of what has one place only.
    pub quantities: &'static [Quantity],
    /// The arms that are compared.
    pub arms: &'static [Arm],
    /// At each of them.
    pub points: Vec<Point>,
}

/// Makes the points of both levels: `make` gets the plain point of its level and changes it.
fn levels(seconds: f64, values: &[u32], make: impl Fn(&mut Point, u32)) -> Vec<Point> {
    let point = |level: u8, x: u32| {
        let mut point = Point {
            series: if level == 5 { "RAID5" } else { "RAID6" },
            x,
            label: String::new(),
            servers: SERVERS,
            links: Links::Equal,
            load: Load::new(level, seconds),
            rate_share: None,
        };
        make(&mut point, x);
        point
    };
    [5, 6]
        .into_iter()
        .flat_map(|level| values.iter().map(move |&x| (level, x)))
        .map(|(l, x)| point(l, x))
        .collect()
}

/// Requests of `kib`, as many as fill the links.
fn set_size(point: &mut Point, kib: u32) {
    point.load.size = u64::from(kib) << 10;
    point.load.depth = (KIB_UNDER_WAY / kib).clamp(8, 128) as usize;
    point.label = format!("{kib} KiB");
}

fn set_width(point: &mut Point, width: u32) {
    point.servers = width as usize;
    point.label = format!("{width} servers");
}

/// Reads of what was written, with the first member missing.
fn degrade(point: &mut Point) {
    point.load.reads = 100;
    point.load.fill = true;
    point.load.lost = vec![0];
}

/// All figures, each point measured for so many seconds.
pub fn all(seconds: f64) -> Vec<Figure> {
    let parts = [writes, reads_and_loads, degraded, division];
    parts.iter().flat_map(|part| part(seconds)).collect()
}

impl Figure {
    /// Throughput of client and servers, which needs no explanation.
    fn plain(name: &'static str, title: &'static str, axis: &'static str, points: Vec<Point>) -> Self {
        let (quantities, logarithmic) = (&[Quantity::Throughput], axis.ends_with("KiB"));
        Self { name, title, about: "", axis, logarithmic, quantities, arms: BOTH, points }
    }
}

/// Of a complete array.
fn writes(seconds: f64) -> Vec<Figure> {
    let partial = levels(seconds, &[128], set_size);
    let sizes = [4, 16, 64, 128, 256, 512, 1024, 0];
    let by_size = levels(seconds, &sizes, |point, kib| {
        let stripe = 512 * if point.load.level == 5 { 7 } else { 6 };
        point.x = if kib == 0 { stripe } else { kib };
        set_size(point, point.x);
    });
    let by_chunk = levels(seconds, &[32, 64, 128, 256, 512, 1024], |point, kib| {
        (point.load.chunk, point.label) = (u64::from(kib) << 10, format!("{kib} KiB"));
    });
    let by_width = levels(seconds, WIDTHS, set_width);
    let with_slow_links = levels(seconds, WIDTHS, |point, width| {
        set_width(point, width);
        point.links = Links::Servers(0.2);
        // So many for each that all have something to do, whomever chance has the writes go to.
        point.load.depth = 24 * point.servers;
    });
    vec![
        Figure {
            about: "What the project set out for first: random writes of 128 KiB.",
            quantities: &[],
            ..Figure::plain("partial-writes", "Partial writes", "I/O size, KiB", partial)
        },
        Figure {
            about: "The last size is a whole stripe, which goes out in one piece, whichever side computes parity.",
            quantities: &[Quantity::Throughput, Quantity::Sent],
            ..Figure::plain("writes-by-size", "Writes by I/O size", "I/O size, KiB", by_size)
        },
        Figure::plain("writes-by-chunk", "Writes by chunk", "chunk, KiB", by_chunk),
        Figure::plain("writes-by-width", "Writes by stripe width", "servers", by_width),
        Figure {
            about: "The servers' links have a fifth of the client's rate: throughput grows with their number until the client's \
                    link or the CPU is full. The ratio is to the client's link.",
            ..Figure::plain("servers", "More servers with slow links", "servers", with_slow_links)
        },
    ]
}

/// Of a complete array.
fn reads_and_loads(seconds: f64) -> Vec<Figure> {
    let by_size = levels(seconds, &[4, 16, 64, 128, 512, 1024], |point, kib| {
        set_size(point, kib);
        (point.load.reads, point.load.fill) = (100, true);
    });
    let by_share = levels(seconds, &[0, 25, 50, 75, 100], |point, share| {
        point.load.reads = u8::try_from(share).unwrap_or(100);
        (point.load.fill, point.label) = (true, format!("{share} %"));
    });
    let shares = [10, 20, 30, 40, 45, 60, 75, 90];
    let by_load = levels(seconds, &shares, |point, percent| {
        (point.rate_share, point.load.depth) = (Some(f64::from(percent) / 100.0), 128);
        point.label = format!("{percent} %");
    });
    vec![
        Figure::plain("reads-by-size", "Reads by I/O size", "I/O size, KiB", by_size),
        Figure::plain("read-share", "Mixed loads", "reads, %", by_share),
        Figure {
            about: "Random writes of 128 KiB come at random instants, whether the ones before them are done or not, and their time \
                    runs from then. Above what an arm can do, it is the queue that is measured.",
            quantities: &[Quantity::P99],
            ..Figure::plain("latency", "Latency against load", "load, % of goodput", by_load)
        },
    ]
}

/// With a member missing.
fn degraded(seconds: f64) -> Vec<Figure> {
    let sizes = [16, 64, 128, 512];
    let mut reads = levels(seconds, &sizes, |point, kib| {
        degrade(point);
        set_size(point, kib);
    });
    let one_lost: Vec<Point> = reads.iter().filter(|point| point.load.level == 6).cloned().collect();
    reads.extend(one_lost.into_iter().map(|mut point| {
        (point.load.lost, point.series) = (vec![0, 3], "RAID6, two lost");
        point
    }));
    let lost_alone = levels(seconds, &sizes, |point, kib| {
        degrade(point);
        set_size(point, kib);
        point.load.pattern = "lost";
    });
    let by_width = levels(seconds, WIDTHS, |point, width| {
        degrade(point);
        set_width(point, width);
    });
    let writes = levels(seconds, &sizes, |point, kib| {
        degrade(point);
        point.load.reads = 0;
        set_size(point, kib);
    });
    let rebuilds = levels(seconds, WIDTHS, |point, width| {
        (point.load.rebuild, point.load.fill) = (Some(Rebuild { slot: 0, bytes: 64 << 20 }), true);
        set_width(point, width);
    });
    vec![
        Figure::plain("degraded-reads-by-size", "Degraded reads by I/O size", "I/O size, KiB", reads),
        Figure {
            about: "Every read is of a chunk whose member is missing, so every server sends as much as the client gets.",
            ..Figure::plain("lost-chunks", "Reads of lost chunks alone", "I/O size, KiB", lost_alone)
        },
        Figure::plain("degraded-reads-by-width", "Degraded reads by stripe width", "servers", by_width),
        Figure::plain("degraded-writes", "Degraded writes by I/O size", "I/O size, KiB", writes),
        Figure {
            about: "A member is made from all others. Bytes are those of the member.",
            ..Figure::plain("rebuild", "Rebuild of a member by stripe width", "servers", rebuilds)
        },
    ]
}

/// How the servers divide the work among themselves.
fn division(seconds: f64) -> Vec<Figure> {
    let sizes = &[32, 128, 512];
    let slow = |point: &mut Point| point.links = Links::SlowReceivers(3);
    let reducers = &[Arm::HostCentric, Arm::Uniform, Arm::Bandwidth];
    let rebuilds = levels(seconds, &[8], |point, width| {
        slow(point);
        // So much that what was learned of the links in its first seconds pays.
        (point.load.rebuild, point.load.fill) = (Some(Rebuild { slot: 0, bytes: 384 << 20 }), true);
        set_width(point, width);
    });
    let reads = levels(seconds, sizes, |point, kib| {
        slow(point);
        degrade(point);
        set_size(point, kib);
    });
    let size = "I/O size, KiB";
    let writes = || levels(seconds, sizes, set_size);
    vec![
        Figure {
            about: "The receiving side of 3 of the 7 servers that are left has a quarter of the rate; a member is rebuilt.",
            quantities: &[],
            arms: &[Arm::Uniform, Arm::Bandwidth],
            ..Figure::plain("reducers", "Reducers under unequal links", "servers", rebuilds)
        },
        Figure {
            about: "The same links under random reads with a member missing.",
            arms: reducers,
            ..Figure::plain("reducers-reads", "Reducers under unequal links: degraded reads", size, reads)
        },
        Figure {
            arms: &[Arm::Offload, Arm::Barrier],
            ..Figure::plain("barrier", "Stages that overlap against a barrier between them", size, writes())
        },
        Figure {
            arms: &[Arm::Offload, Arm::Serial],
            ..Figure::plain("serial", "Pipelined servers against serial ones", size, writes())
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_left_of_what_three_servers_receive() {
        let rates = Links::SlowReceivers(3).rates(8, 400.0);
        let slow: Vec<usize> = (0..8).filter(|&n| rates[n + 1].1.receive == Some(100.0)).collect();
        assert_eq!(slow, [1, 2, 3], "the first one is the one that is missing");
        assert!(rates.iter().all(|(_, rates)| rates.send == Some(400.0)));
        let fifth = Links::Servers(0.2).rates(4, 500.0);
        assert_eq!(fifth[0].1, Rates::both(500.0));
        assert!(fifth[1..].iter().all(|(_, rates)| *rates == Rates::both(100.0)));
    }

    #[test]
    fn figures_have_names_of_their_own_and_points_on_both_levels() {
        let figures = all(1.0);
        let mut names: Vec<&str> = figures.iter().map(|figure| figure.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), figures.len());
        for figure in &figures {
            for level in [5, 6] {
                assert!(figure.points.iter().any(|point| point.load.level == level), "{}", figure.name);
            }
            assert!(figure.points.iter().all(|point| !point.label.is_empty()), "{}", figure.name);
        }
    }
}
