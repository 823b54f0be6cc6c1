//! Where MD puts data and parity: the table of md(4) and of Linux's `raid5_compute_sector`, for levels 4, 5
//! and 6.
//!
//! Deliberately plain and apart from the product's address map: it judges what that map is measured by.

use anyhow::{Context, Result, bail, ensure};

use super::superblock::Superblock;
use crate::pattern::BLOCK;

/// Roles of the members in one stripe, as slots.
struct Stripe {
    p: usize,
    q: Option<usize>,
    /// Slot of each data index.
    data: Vec<usize>,
    /// Slots in the order of Q's exponents, with the exponent of each.
    exponents: Vec<(usize, u32)>,
}

/// The geometry of an array with member `i` in slot `i`.
pub struct Layout {
    level: i32,
    algorithm: u32,
    members: usize,
    /// In 4 KiB blocks.
    chunk: u64,
    /// Bytes from each member's start to its data.
    data_offsets: Vec<usize>,
}

impl Layout {
    /// Takes the geometry from the superblocks; the members must be given in the order of their slots.
    pub fn new(superblocks: &[Superblock]) -> Result<Self> {
        let first = superblocks.first().context("no members")?;
        for (slot, superblock) in superblocks.iter().enumerate() {
            ensure!(usize::from(superblock.role()?) == slot, "member {slot} is in another slot");
        }
        ensure!(matches!(first.level, 4..=6), "level {}", first.level);
        let data_offsets = superblocks
            .iter()
            .map(|member| Ok(usize::try_from(member.data_offset)? * 512))
            .collect::<Result<_>>();
        Ok(Self {
            level: first.level,
            algorithm: first.layout,
            members: superblocks.len(),
            chunk: u64::from(first.chunk_sectors) / 8,
            data_offsets: data_offsets?,
        })
    }

    /// A 4 KiB block of the array.
    pub fn block<'a>(&self, members: &'a [Vec<u8>], block: u64) -> &'a [u8] {
        let parities = if self.level == 6 { 2 } else { 1 };
        let data = (self.members - parities) as u64;
        let (chunk, within) = (block / self.chunk, block % self.chunk);
        let stripe = chunk / data;
        let index = usize::try_from(chunk % data).unwrap_or_default();
        let slot = self.stripe(stripe).map_or(0, |stripe| stripe.data[index]);
        self.member_block(members, slot, stripe * self.chunk + within)
    }

    /// Fails if P or Q of this row of 4 KiB blocks is not that of its data.
    pub fn check_row(&self, members: &[Vec<u8>], row: u64) -> Result<()> {
        let stripe = self.stripe(row / self.chunk)?;
        let (mut p, mut q) = ([0_u8; BLOCK], [0_u8; BLOCK]);
        for (slot, exponent) in &stripe.exponents {
            for (index, byte) in self.member_block(members, *slot, row).iter().enumerate() {
                p[index] ^= byte;
                q[index] ^= times_power_of_two(*byte, *exponent);
            }
        }
        ensure!(self.member_block(members, stripe.p, row) == p, "P is wrong");
        if let Some(slot) = stripe.q {
            ensure!(self.member_block(members, slot, row) == q, "Q is wrong");
        }
        Ok(())
    }

    fn member_block<'a>(&self, members: &'a [Vec<u8>], slot: usize, row: u64) -> &'a [u8] {
        let at = self.data_offsets[slot] + usize::try_from(row).unwrap_or_default() * BLOCK;
        &members[slot][at..at + BLOCK]
    }

    fn stripe(&self, number: u64) -> Result<Stripe> {
        let n = self.members;
        match (self.level, self.algorithm) {
            (4, _) => Ok(skipping(n - 1, None, n)),
            (5, algorithm) => level_5(algorithm, number, n),
            (_, 0..=10) => level_6(self.algorithm, number, n),
            (_, 16..=20) => {
                // A level 5 layout on the first n - 1 members; Q always on the last.
                let mut stripe = level_5(self.algorithm - 16, number, n - 1)?;
                stripe.q = Some(n - 1);
                stripe.exponents = (0..n - 1).filter(|slot| *slot != stripe.p).zip(0..).collect();
                Ok(stripe)
            }
            _ => bail!("level {} has no algorithm {}", self.level, self.algorithm),
        }
    }
}

fn level_5(algorithm: u32, number: u64, n: usize) -> Result<Stripe> {
    let turn = usize::try_from(number % n as u64)?;
    let p = match algorithm {
        0 | 2 => n - 1 - turn,
        1 | 3 => turn,
        4 => 0,
        5 => n - 1,
        _ => bail!("level 5 has no algorithm {algorithm}"),
    };
    if matches!(algorithm, 2 | 3) { Ok(following(p, None, n, p)) } else { Ok(skipping(p, None, n)) }
}

fn level_6(algorithm: u32, number: u64, n: usize) -> Result<Stripe> {
    let turn = usize::try_from(number % n as u64)?;
    let next_turn = usize::try_from((number + 1) % n as u64)?;
    let after = |slot: usize| (slot + 1) % n;
    let mut stripe = match algorithm {
        0 => skipping(n - 1 - turn, Some(after(n - 1 - turn)), n),
        1 | 8 => skipping(turn, Some(after(turn)), n),
        2 => following(n - 1 - turn, Some(after(n - 1 - turn)), n, after(n - 1 - turn)),
        3 => following(turn, Some(after(turn)), n, after(turn)),
        4 => skipping(0, Some(1), n),
        5 => skipping(n - 2, Some(n - 1), n),
        9 => skipping(n - 1 - next_turn, Some(after(n - 1 - next_turn)), n),
        10 => {
            let p = n - 1 - turn;
            following(p, Some((p + n - 1) % n), n, p)
        }
        _ => bail!("level 6 has no algorithm {algorithm}"),
    };
    let q = stripe.q.context("level 6 has Q")?;
    let is_data = |slot: &usize| *slot != stripe.p && *slot != q;
    stripe.exponents = if matches!(algorithm, 8..=10) {
        (0..n).zip(0..).filter(|(slot, _)| is_data(slot)).collect()
    } else {
        (1..n).map(|step| (q + step) % n).filter(is_data).zip(0..).collect()
    };
    Ok(stripe)
}

/// Data in ascending slots.
fn skipping(p: usize, q: Option<usize>, n: usize) -> Stripe {
    let data: Vec<usize> = (0..n).filter(|slot| *slot != p && Some(*slot) != q).collect();
    let exponents = data.iter().copied().zip(0..).collect();
    Stripe { p, q, data, exponents }
}

/// Data in the slots that follow `last`, around the end.
fn following(p: usize, q: Option<usize>, n: usize, last: usize) -> Stripe {
    let slots = (1..=n).map(|step| (last + step) % n);
    let data: Vec<usize> = slots.filter(|slot| *slot != p && Some(*slot) != q).collect();
    let exponents = data.iter().copied().zip(0..).collect();
    Stripe { p, q, data, exponents }
}

/// `byte * 2^exponent` in GF(2^8) with the polynomial 0x11d.
fn times_power_of_two(byte: u8, exponent: u32) -> u8 {
    (0..exponent).fold(byte, |value, _| (value << 1) ^ if value & 0x80 != 0 { 0x1d } else { 0 })
}
