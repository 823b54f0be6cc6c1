//! Which chunk of a RAID6 row is wrong, if one alone is. Pure, over bytes.
//!
//! Let a row hold P' and Q' where its data says P and Q, and let p = P' + P and q = Q' + Q byte by byte (both
//! zero where all is well). If one chunk alone is wrong, it is (H. P. Anvin, "The mathematics of RAID-6",
//! section 4)
//!
//! - P, if q is zero everywhere;
//! - Q, if p is zero everywhere;
//! - the data chunk with exponent z, if q = 2^z p wherever one isn't zero: then p is what was added to it.
//!
//! This is decided for each sector of 512 bytes by itself, because
//!
//! - each byte position is a code word of its own, so a smaller unit explains whatever a larger one does, and
//!   more: two members may each have a bad sector in the same row of 4 KiB;
//! - a sector is the least that a device loses, writes to the wrong place, or tears, so no fault is cut in
//!   two by it;
//! - and it is what MD counts and what a device's log names.
//!
//! **What it can't tell.** Two wrong chunks pass for one if every byte that differs differs in both of them
//! and all these positions happen to agree on one exponent that a column has. With n such bytes and k columns
//! that is a chance of about k / 255^n if the bytes are random: nothing from three bytes on, but not nothing
//! for a single byte that is wrong at the same place in two chunks. Three wrong chunks and more are no
//! different. And a row that a crash left half written (data new, P and Q old) looks like one wrong chunk; so
//! rows that wait for a resync are never judged.

use pinstripe_parity::{divide, multiply, power_of_two};

use crate::mutants::{Mutant, active};

/// What one sector's syndromes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Culprit {
    /// P alone is wrong.
    P,
    /// Q alone is wrong.
    Q,
    /// The data column with this exponent alone is wrong.
    Exponent(u8),
}

/// Which chunk alone explains the differences `p` and `q` of a sector, among `exponents` many; `None` if none
/// does, or nothing differs.
pub(crate) fn locate(p: &[u8], q: &[u8], exponents: usize) -> Option<Culprit> {
    let (p_differs, q_differs) = (p.iter().any(|&byte| byte != 0), q.iter().any(|&byte| byte != 0));
    match (p_differs, q_differs) {
        (false, false) => None,
        (true, false) => Some(Culprit::P),
        (false, true) => Some(Culprit::Q),
        (true, true) => {
            // A data chunk shows in both: where one is zero and the other isn't, nothing agrees below.
            let (first_p, first_q) = p.iter().zip(q).find(|(p, _)| **p != 0)?;
            let ratio = divide(*first_q, *first_p);
            let exponent = (0..u8::try_from(exponents).ok()?).find(|&z| power_of_two(z) == ratio)?;
            let agrees = |(p, q): (&u8, &u8)| *q == multiply(*p, ratio);
            (p.iter().zip(q).all(agrees) || active(Mutant::LocateGuesses))
                .then_some(Culprit::Exponent(exponent))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: usize = 512;
    const COLUMNS: usize = 7;

    /// The syndromes of chunks that have these bytes added: by exponent, then P, then Q.
    fn syndromes(
        damage: &[(Option<u8>, usize, u8)],
        on_p: &[(usize, u8)],
        on_q: &[(usize, u8)],
    ) -> (Vec<u8>, Vec<u8>) {
        let (mut p, mut q) = (vec![0; LENGTH], vec![0; LENGTH]);
        for &(exponent, at, byte) in damage {
            p[at] ^= byte;
            q[at] ^= multiply(byte, power_of_two(exponent.unwrap()));
        }
        for (syndrome, bytes) in [(&mut p, on_p), (&mut q, on_q)] {
            for &(at, byte) in bytes {
                syndrome[at] ^= byte;
            }
        }
        (p, q)
    }

    fn verdict(
        damage: &[(Option<u8>, usize, u8)],
        on_p: &[(usize, u8)],
        on_q: &[(usize, u8)],
    ) -> Option<Culprit> {
        let (p, q) = syndromes(damage, on_p, on_q);
        locate(&p, &q, COLUMNS)
    }

    #[test]
    fn every_change_of_one_byte_of_one_chunk_is_found_there() {
        for byte in 1..=255 {
            for at in [0, 1, 255, 511] {
                for z in 0..7 {
                    assert_eq!(verdict(&[(Some(z), at, byte)], &[], &[]), Some(Culprit::Exponent(z)));
                }
                assert_eq!(verdict(&[], &[(at, byte)], &[]), Some(Culprit::P));
                assert_eq!(verdict(&[], &[], &[(at, byte)]), Some(Culprit::Q));
            }
        }
    }

    #[test]
    fn what_one_chunk_does_not_explain_names_none() {
        assert_eq!(verdict(&[], &[], &[]), None, "nothing is wrong");
        assert_eq!(verdict(&[(Some(1), 3, 9), (Some(2), 4, 9)], &[], &[]), None, "two data chunks");
        assert_eq!(verdict(&[(Some(1), 3, 9)], &[(4, 1)], &[]), None, "data and P");
        assert_eq!(verdict(&[(Some(1), 3, 9)], &[], &[(4, 1)]), None, "data and Q");
        assert_eq!(verdict(&[], &[(3, 9)], &[(4, 9)]), None, "P and Q, at different places");
        assert_eq!(verdict(&[(Some(7), 3, 9)], &[], &[]), None, "an exponent that no column has");
        // At the same place, one byte is no proof; three are.
        let both: Vec<_> =
            (0..3).flat_map(|at: u8| [(Some(1), at.into(), 9 + at), (Some(2), at.into(), 70 - at)]).collect();
        assert_eq!(verdict(&both, &[], &[]), None);
    }

    #[test]
    fn two_chunks_that_are_random_at_the_same_places_do_not_pass_for_one() {
        let mut word = 1_u64;
        let mut byte = || {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.to_be_bytes()[0] | 1
        };
        for _ in 0..1000 {
            let damage: Vec<_> =
                (0..8).flat_map(|at| [(Some(0), at, byte()), (Some(5), at, byte())]).collect();
            assert_eq!(verdict(&damage, &[], &[]), None);
        }
    }
}
