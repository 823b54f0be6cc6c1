//! What is measured: every figure is a list of points, each with its load, its servers and its links, and the arms that are
//! compared at each point.
//!
//! Levels 5 and 6, 8 servers, chunks of 512 KiB, random requests of 128 KiB and equal links, unless that is what the figure is about.

use super::client::{Load, equal_links};
use super::network::{Node, Rates};

/// Servers, where a figure isn't about their number.
const SERVERS: usize = 8;
/// Widths of stripes.
const WIDTHS: &[usize] = &[4, 6, 8, 10, 14, 18];
const KIB: u64 = 1 << 10;
/// Bytes of requests under way at a time, where requests aren't very small or very large.
const BYTES_UNDER_WAY: u64 = 4 << 20;

/// Who does the parity's work, as arguments of `pinstripe bench`.
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
    pub fn name(self) -> &'static str {
        match self {
            Self::HostCentric => "host-centric",
            Self::Offload => "offload",
            Self::Barrier => "offload, barrier",
            Self::Serial => "offload, serial servers",
            Self::Uniform => "offload, uniform reducers",
            Self::Bandwidth => "offload, bandwidth-aware reducers",
        }
    }

    /// What `pinstripe bench` is told, if it knows `--offload` at all; else only the client can do the work.
    pub fn arguments(self, can_offload: bool) -> &'static [&'static str] {
        match self {
            Self::HostCentric if can_offload => &["--offload", "off"],
            Self::HostCentric => &[],
            Self::Offload => &["--offload", "on"],
            Self::Barrier => &["--offload", "barrier"],
            Self::Serial => &["--offload", "serial"],
            Self::Uniform => &["--offload", "on", "--reducer", "uniform"],
            Self::Bandwidth => &["--offload", "on", "--reducer", "bandwidth"],
        }
    }
}

const BOTH: &[Arm] = &[Arm::HostCentric, Arm::Offload];

/// What a figure's chart shows of each point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Users' bytes per second, by the goodput of a link in that direction.
    Goodput,
    /// Bytes on the client's link, both directions together, by users' bytes.
    LinkBytes,
    /// The 99th percentile of latency, in milliseconds.
    Latency,
}

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
    pub series: String,
    /// Where on the axis.
    pub x: f64,
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
    /// The chart's.
    pub quantity: Quantity,
    /// Who is compared.
    pub arms: &'static [Arm],
    /// At each of them.
    pub points: Vec<Point>,
}

/// Makes the points of both levels: `make` gets the plain point of its level and changes it.
fn levels(seconds: f64, values: &[f64], make: impl Fn(&mut Point, f64)) -> Vec<Point> {
    let point = |level: u8, x: f64| {
        let mut point = Point {
            series: format!("RAID{level}"),
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

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small whole numbers, all positive"
)]
fn whole(x: f64) -> u64 {
    x.round() as u64
}

/// Requests of `kib`, as many as fill the links.
fn set_size(point: &mut Point, kib: f64) {
    point.load.size = whole(kib) * KIB;
    point.load.depth = usize::try_from(BYTES_UNDER_WAY / point.load.size).unwrap_or(0).clamp(8, 128);
    point.label = format!("{kib} KiB");
}

fn set_width(point: &mut Point, width: f64) {
    point.servers = usize::try_from(whole(width)).unwrap_or(SERVERS);
    point.label = format!("{width}");
}

/// Reads of what was written, with the first member missing.
fn degrade(point: &mut Point) {
    point.load.reads = 100;
    point.load.fill = true;
    point.load.lost = vec![0];
}

fn widths() -> Vec<f64> {
    WIDTHS.iter().map(|&width| f64::from(u32::try_from(width).unwrap_or(0))).collect()
}

/// All figures, each point measured for so many seconds.
pub fn all(seconds: f64) -> Vec<Figure> {
    let mut figures = healthy(seconds);
    figures.extend(degraded(seconds));
    figures.extend(division(seconds));
    figures
}

/// With all members there.
fn healthy(seconds: f64) -> Vec<Figure> {
    let figure = |name, title, axis, logarithmic, points| Figure {
        name,
        title,
        about: "",
        axis,
        logarithmic,
        quantity: Quantity::Goodput,
        arms: BOTH,
        points,
    };
    vec![
        Figure {
            about: "What the issue asks for first: random writes of 128 KiB.",
            ..figure(
                "partial-writes",
                "Partial writes",
                "I/O size, KiB",
                false,
                levels(seconds, &[128.0], set_size),
            )
        },
        Figure {
            about: "Bytes on the client's link, sent and received, for each byte that the user wrote; the last size is a \
                    whole stripe, which goes out in one piece whoever computes parity.",
            quantity: Quantity::LinkBytes,
            ..figure(
                "writes-by-size",
                "Writes by I/O size, and bytes on the client's link",
                "I/O size, KiB",
                true,
                levels(seconds, &[4.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 0.0], |point, kib| {
                    let stripe = 512.0 * if point.load.level == 5 { 7.0 } else { 6.0 };
                    point.x = if kib == 0.0 { stripe } else { kib };
                    set_size(point, point.x);
                }),
            )
        },
        figure(
            "reads-by-size",
            "Reads by I/O size",
            "I/O size, KiB",
            true,
            levels(seconds, &[4.0, 16.0, 64.0, 128.0, 512.0, 1024.0], |point, kib| {
                set_size(point, kib);
                (point.load.reads, point.load.fill) = (100, true);
            }),
        ),
        figure(
            "writes-by-chunk",
            "Writes by chunk",
            "chunk, KiB",
            true,
            levels(seconds, &[32.0, 64.0, 128.0, 256.0, 512.0, 1024.0], |point, kib| {
                (point.load.chunk, point.label) = (whole(kib) * KIB, format!("{kib} KiB"));
            }),
        ),
        figure(
            "writes-by-width",
            "Writes by stripe width",
            "servers",
            false,
            levels(seconds, &widths(), set_width),
        ),
        figure(
            "read-share",
            "Mixed loads",
            "reads, %",
            false,
            levels(seconds, &[0.0, 25.0, 50.0, 75.0, 100.0], |point, share| {
                point.load.reads = u8::try_from(whole(share)).unwrap_or(100);
                (point.load.fill, point.label) = (true, format!("{share} %"));
            }),
        ),
        Figure {
            about: "Requests come at random instants, whether the ones before them are done or not, and their time runs from \
                    then. Above what an arm can do, it is the queue that is measured.",
            quantity: Quantity::Latency,
            ..figure(
                "latency",
                "Latency against load",
                "load, % of goodput",
                false,
                levels(seconds, &[10.0, 20.0, 30.0, 40.0, 45.0, 60.0, 75.0, 90.0], |point, percent| {
                    (point.rate_share, point.load.depth) = (Some(percent / 100.0), 128);
                    point.label = format!("{percent} %");
                }),
            )
        },
        Figure {
            about: "The servers' links have a fifth of the client's rate: throughput grows with their number until the client's \
                    link or the CPU is full. The ratio is to the client's link.",
            ..figure(
                "servers",
                "More servers with slow links",
                "servers",
                false,
                levels(seconds, &widths(), |point, width| {
                    set_width(point, width);
                    point.links = Links::Servers(0.2);
                }),
            )
        },
    ]
}

/// With a member missing.
fn degraded(seconds: f64) -> Vec<Figure> {
    let figure = |name, title, axis, logarithmic, points| Figure {
        name,
        title,
        about: "",
        axis,
        logarithmic,
        quantity: Quantity::Goodput,
        arms: BOTH,
        points,
    };
    let mut by_size = levels(seconds, &[16.0, 64.0, 128.0, 512.0], |point, kib| {
        degrade(point);
        set_size(point, kib);
    });
    let two_lost = by_size.iter().filter(|point| point.load.level == 6).cloned().map(|mut point| {
        (point.load.lost, point.series) = (vec![0, 3], "RAID6, two lost".to_owned());
        point
    });
    by_size.extend(two_lost.collect::<Vec<_>>());
    vec![
        figure("degraded-reads-by-size", "Degraded reads by I/O size", "I/O size, KiB", true, by_size),
        figure(
            "degraded-reads-by-width",
            "Degraded reads by stripe width",
            "servers",
            false,
            levels(seconds, &widths(), |point, width| {
                degrade(point);
                set_width(point, width);
            }),
        ),
        figure(
            "degraded-writes",
            "Degraded writes by I/O size",
            "I/O size, KiB",
            true,
            levels(seconds, &[16.0, 64.0, 128.0, 512.0], |point, kib| {
                degrade(point);
                point.load.reads = 0;
                set_size(point, kib);
            }),
        ),
        Figure {
            about: "A member is made from all others. Bytes are those of the member.",
            ..figure(
                "rebuild",
                "Rebuild of a member by stripe width",
                "servers",
                false,
                levels(seconds, &widths(), |point, width| {
                    (point.load.rebuild, point.load.fill) = (Some(0), true);
                    set_width(point, width);
                }),
            )
        },
    ]
}

/// How the servers divide the work among themselves.
fn division(seconds: f64) -> Vec<Figure> {
    let sizes = &[32.0, 128.0, 512.0];
    let slow = |point: &mut Point| point.links = Links::SlowReceivers(3);
    vec![
        Figure {
            name: "reducers",
            title: "Reducers under unequal links",
            about: "The receiving side of 3 of the 7 servers that are left has a quarter of the rate; a member is rebuilt.",
            axis: "servers",
            logarithmic: false,
            quantity: Quantity::Goodput,
            arms: &[Arm::HostCentric, Arm::Uniform, Arm::Bandwidth],
            points: levels(seconds, &[8.0], |point, width| {
                slow(point);
                (point.load.rebuild, point.load.fill) = (Some(0), true);
                set_width(point, width);
            }),
        },
        Figure {
            name: "reducers-reads",
            title: "Reducers under unequal links: degraded reads",
            about: "The same links under random reads with a member missing.",
            axis: "I/O size, KiB",
            logarithmic: true,
            quantity: Quantity::Goodput,
            arms: &[Arm::HostCentric, Arm::Uniform, Arm::Bandwidth],
            points: levels(seconds, sizes, |point, kib| {
                slow(point);
                degrade(point);
                set_size(point, kib);
            }),
        },
        Figure {
            name: "barrier",
            title: "Stages that overlap against a barrier between them",
            about: "",
            axis: "I/O size, KiB",
            logarithmic: true,
            quantity: Quantity::Goodput,
            arms: &[Arm::Offload, Arm::Barrier],
            points: levels(seconds, sizes, set_size),
        },
        Figure {
            name: "serial",
            title: "Pipelined servers against serial ones",
            about: "",
            axis: "I/O size, KiB",
            logarithmic: true,
            quantity: Quantity::Goodput,
            arms: &[Arm::Offload, Arm::Serial],
            points: levels(seconds, sizes, set_size),
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

    #[test]
    fn a_client_that_can_not_offload_is_not_asked_to() {
        assert_eq!(Arm::HostCentric.arguments(false), [""; 0]);
        assert_eq!(Arm::HostCentric.arguments(true), ["--offload", "off"]);
    }
}
