//! Every plan is executed and compared with brute force, on stripes small enough to try all of them.

mod cases;
mod execute;
mod optimal;
mod shape;

use super::*;
use crate::geometry::{ParityGeometry, ParityLayout, Role, StripeId};
use pinstripe_md::level::{Level, ParityLayout as Algorithm};

/// Bytes of a chunk in these tests: some rows of the parity cache.
const CHUNK: u32 = 8192;
/// Bytes of a logical block. The model keeps one byte for each, since a plan can't tell them apart.
const BLOCK: u32 = 512;
const BLOCKS: usize = (CHUNK / BLOCK) as usize;
const ROWS: usize = 2;

const POLICIES: [WritePolicy; 4] =
    [WritePolicy::MinReads, WritePolicy::ModThreshold, WritePolicy::AlwaysRmw, WritePolicy::Cost];

/// xorshift64*: the tests need variety, the same every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap() % bound
    }

    fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }
}

/// Multiplication in GF(2^8) by polynomial 0x11d, bit by bit.
fn multiply(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 == 1 {
            product ^= a;
        }
        a = (a << 1) ^ if a & 0x80 == 0 { 0 } else { 0x1d };
        b >>= 1;
    }
    product
}

fn power(exponent: usize) -> u8 {
    (0..exponent).fold(1, |value, _| multiply(value, 2))
}

fn inverse(value: u8) -> u8 {
    (1..=255).find(|&candidate| multiply(candidate, value) == 1).expect("not zero")
}

fn stripe_map(layout: ParityLayout, members: usize, stripe: u64) -> StripeMap {
    ParityGeometry::new(layout, members, CHUNK, u64::from(CHUNK) * 100, BLOCK)
        .unwrap()
        .slots(StripeId(stripe))
}

fn healthy(map: StripeMap) -> Stripe {
    Stripe { map, chunk_bytes: CHUNK, unreadable: Set64::EMPTY, unwritable: Set64::EMPTY, in_sync: true }
}

fn raid5() -> ParityLayout {
    ParityLayout::new(Level::Raid5, Algorithm::LeftSymmetric).unwrap()
}

fn raid6() -> ParityLayout {
    ParityLayout::new(Level::Raid6, Algorithm::LeftSymmetric).unwrap()
}

/// Facts with a price per slot and cached rows as a set: bit 2 * row + (1 for Q).
struct World {
    prices: Vec<Price>,
    /// By slot: how many requests are under way there, and where in the chunk a read has ended.
    ahead: Vec<(u32, Option<u32>)>,
    cached: u64,
    may_ask: bool,
    shares_link: bool,
}

impl World {
    fn plain(members: usize) -> Self {
        Self::alike(members, 80_000)
    }

    fn alike(members: usize, latency_ns: u32) -> Self {
        Self {
            prices: vec![Price { latency_ns, ns_per_kib: 350, moves_head: latency_ns >= 1_000_000 }; members],
            ahead: vec![(0, None); members],
            cached: 0,
            may_ask: true,
            shares_link: false,
        }
    }

    fn random(members: usize, random: &mut Random) -> Self {
        let prices = (0..members)
            .map(|_| Price {
                latency_ns: [0, 100, 5000, 80_000][random.below(4)] + u32::from(random.byte()),
                ns_per_kib: [40, 350, 9000][random.below(3)] + u32::from(random.byte()),
                moves_head: random.below(2) == 1,
            })
            .collect();
        let ahead = (0..members)
            .map(|_| ([0, 1, 7][random.below(3)], [None, Some(0), Some(3584)][random.below(3)]))
            .collect();
        Self { prices, ahead, cached: 0, may_ask: true, shares_link: random.below(2) == 1 }
    }
}

impl Facts for World {
    fn price(&self, slot: MemberSlot) -> Price {
        self.prices[slot.index()]
    }

    fn ahead(&self, slot: MemberSlot, start: u32) -> Ahead {
        let (requests, ended) = self.ahead[slot.index()];
        Ahead { requests, goes_on: ended == Some(start) }
    }

    fn shares_link(&self) -> bool {
        self.shares_link
    }

    fn is_cached(&mut self, parity: Parity, row: u32) -> bool {
        assert!(self.may_ask, "C10: cached parity is not believed on a row that is not in sync");
        self.cached >> (2 * row + u32::from(parity == Parity::Q)) & 1 == 1
    }
}

fn planned(stripe: &Stripe, policy: WritePolicy, image: &[Written], world: &mut World) -> Plan {
    let mut plan = Plan::new();
    plan_into(&mut plan, stripe, policy, image.iter().copied(), &[], world).unwrap();
    plan
}

fn written(column: usize, start: u32, end: u32) -> Written {
    Written { column, start, end }
}
