//! What is measured, and what the arithmetic of bytes on the client's link says of it.

use std::fmt;

use crate::net::experiments::Arm;
use crate::net::ycsb::{Mix, State};

/// In the order of the tables.
pub const MIXES: [Mix; 6] = [Mix::A, Mix::B, Mix::C, Mix::D, Mix::F, Mix::W];
/// Where not all are measured.
pub const WRITES_MOST: [Mix; 2] = [Mix::A, Mix::W];

/// Objects that are read and written in an operation, on average. Scans aren't a store's.
fn moves(mix: Mix) -> (f64, f64) {
    match mix {
        Mix::A => (0.5, 0.5),
        Mix::B | Mix::D => (0.95, 0.05),
        Mix::C | Mix::E => (1.0, 0.0),
        Mix::F => (1.0, 0.5),
        Mix::W => (0.0, 1.0),
    }
}

/// How keys are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keys {
    Uniform,
    Zipf,
}

impl Keys {
    /// The bench's word.
    pub fn pattern(self) -> &'static str {
        match self {
            Self::Uniform => "random",
            Self::Zipf => "zipf",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
        }
    }
}

/// What is measured with every arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    pub level: u8,
    pub state: State,
    pub keys: Keys,
    pub mix: Mix,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words =
            format!("RAID{} {} {}: {}", self.level, self.state.name(), self.keys.name(), self.mix.name());
        f.pad(&words)
    }
}

/// Objects' worth of bytes on the client's link for each operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bytes {
    pub sent: f64,
    pub received: f64,
}

impl Bytes {
    /// What a duplex link is busy with.
    pub fn busier(self) -> f64 {
        self.sent.max(self.received)
    }
}

/// The members of a stripe.
const WIDTH: f64 = 8.0;

impl Point {
    /// By the plan of an array of 8, an object being a part of one chunk.
    ///
    /// Host-centric, a write reads and writes its data and each parity. With a member missing, one of 8
    /// objects lies on it: all others are read instead, in a write without one parity. One of 8 writes misses
    /// each parity, which costs it nothing. Where servers compute, the link carries the objects alone, and
    /// once for each parity's server where the object's own is missing.
    pub fn bytes(&self, arm: Arm) -> Bytes {
        let (reads, writes) = moves(self.mix);
        let one = Bytes { sent: 0.0, received: 1.0 };
        let (read, write) = match (arm, self.state) {
            (Arm::HostCentric, State::Healthy) => {
                let moved = 1.0 + self.parities();
                (one, Bytes { sent: moved, received: moved })
            }
            (Arm::HostCentric, State::Degraded | State::Rebuilding) => self.degraded_by_the_host(),
            (_, State::Healthy) => (one, Bytes { sent: 1.0, received: 0.0 }),
            (_, State::Degraded | State::Rebuilding) => {
                (one, Bytes { sent: (WIDTH - 1.0 + self.parities()) / WIDTH, received: 0.0 })
            }
        };
        Bytes {
            sent: reads * read.sent + writes * write.sent,
            received: reads * read.received + writes * write.received,
        }
    }

    fn parities(&self) -> f64 {
        f64::from(self.level - 4)
    }

    fn degraded_by_the_host(&self) -> (Bytes, Bytes) {
        let parities = self.parities();
        let others = WIDTH - 1.0 - parities;
        // One parity stands for the chunk that is missing.
        let read = Bytes { sent: 0.0, received: (WIDTH - 1.0 + others + 1.0) / WIDTH };
        let without_loss = (WIDTH - 1.0 - parities) * (1.0 + parities);
        let parity_lost = parities * parities;
        let write = Bytes {
            sent: (without_loss + parity_lost + parities) / WIDTH,
            received: (without_loss + if parities > 1.0 { parity_lost } else { 0.0 } + others) / WIDTH,
        };
        (read, write)
    }

    /// How much more the servers' way allows.
    pub fn gain(&self) -> f64 {
        self.bytes(Arm::HostCentric).busier() / self.bytes(Arm::Offload).busier()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gain(level: u8, state: State, mix: Mix) -> f64 {
        Point { level, state, keys: Keys::Uniform, mix }.gain()
    }

    #[test]
    fn a_whole_array_moves_data_and_parities_twice() {
        for (level, mix, wanted) in [
            (5, Mix::W, 2.0),
            (6, Mix::W, 3.0),
            (5, Mix::C, 1.0),
            // Reads and writes go in different directions: 1.5 by 0.5.
            (5, Mix::A, 3.0),
            (5, Mix::B, 1.05 / 0.95),
            (5, Mix::F, 2.0),
        ] {
            let found = gain(level, State::Healthy, mix);
            assert!((found - wanted).abs() < 1e-9, "RAID{level} {mix:?}: {found}");
        }
    }

    #[test]
    fn a_missing_member_is_read_from_all_others() {
        let bytes = |level, mix| {
            let point = Point { level, state: State::Degraded, keys: Keys::Uniform, mix };
            let bytes = point.bytes(Arm::HostCentric);
            (bytes.sent, bytes.received)
        };
        // 7 of 8 reads are of one chunk, one is of 7, and of 6 where one parity is enough.
        assert_eq!(bytes(5, Mix::C), (0.0, 14.0 / 8.0));
        assert_eq!(bytes(6, Mix::C), (0.0, 13.0 / 8.0));
        // 6 of 8 writes move two chunks, one has no parity to write, one reads the 6 others.
        assert_eq!(bytes(5, Mix::W), (14.0 / 8.0, 18.0 / 8.0));
        // 5 of 8 move three, two move two, one reads the 5 others and writes two parities.
        assert_eq!(bytes(6, Mix::W), (21.0 / 8.0, 24.0 / 8.0));
        assert!((gain(5, State::Degraded, Mix::W) - 18.0 / 8.0).abs() < 1e-9);
        assert!((gain(6, State::Degraded, Mix::W) - 24.0 / 9.0).abs() < 1e-9, "data goes to both parities");
    }
}
