//! The oracle: every operation as its definition reads, a byte at a time, without `unsafe`.
//!
//! Every other kernel is tested against this one, so it stays plain. The slices of a call have equal lengths
//! ([`crate::Kernel`] has checked that).

use crate::field::{double, multiply};
use crate::kernel::Operations;

pub(crate) static OPERATIONS: Operations = Operations {
    xor,
    xor_into,
    pq,
    update_p,
    accumulate_q,
    accumulate_pq,
    update_q,
    update_pq,
    scaled_sum,
    scale,
    solve_two,
    cancels,
};

fn xor(dst: &mut [u8], sources: &[&[u8]]) {
    dst.fill(0);
    xor_into(dst, sources);
}

fn xor_into(dst: &mut [u8], sources: &[&[u8]]) {
    for source in sources {
        for (sum, byte) in dst.iter_mut().zip(*source) {
            *sum ^= byte;
        }
    }
}

/// Horner's rule from the greatest exponent down: `Q = (.. (D2 * 2 + D1) * 2 + D0`.
fn pq(p: &mut [u8], q: &mut [u8], columns: &[Option<&[u8]>]) {
    p.fill(0);
    q.fill(0);
    for column in columns.iter().rev() {
        for byte in q.iter_mut() {
            *byte = double(*byte);
        }
        if let Some(data) = column {
            xor_into(p, &[data]);
            xor_into(q, &[data]);
        }
    }
}

fn update_p(p: &mut [u8], old: &[u8], new: &[u8]) {
    xor_into(p, &[old, new]);
}

fn accumulate_q(q: &mut [u8], data: &[u8], factor: u8) {
    for (sum, byte) in q.iter_mut().zip(data) {
        *sum ^= multiply(*byte, factor);
    }
}

fn accumulate_pq(p: &mut [u8], q: &mut [u8], data: &[u8], factor: u8) {
    xor_into(p, &[data]);
    accumulate_q(q, data, factor);
}

/// Taking the old column out and putting the new one in are the same operation: addition is its own inverse.
fn update_q(q: &mut [u8], old: &[u8], new: &[u8], factor: u8) {
    accumulate_q(q, old, factor);
    accumulate_q(q, new, factor);
}

fn update_pq(p: &mut [u8], q: &mut [u8], old: &[u8], new: &[u8], factor: u8) {
    accumulate_pq(p, q, old, factor);
    accumulate_pq(p, q, new, factor);
}

fn scaled_sum(dst: &mut [u8], sources: &[&[u8]], factor: u8) {
    xor(dst, sources);
    scale(dst, factor);
}

fn scale(data: &mut [u8], factor: u8) {
    for byte in data {
        *byte = multiply(*byte, factor);
    }
}

fn solve_two(px: &mut [u8], qx: &mut [u8], p_factor: u8, q_factor: u8) {
    for (px, qx) in px.iter_mut().zip(qx) {
        let a = multiply(*px, p_factor) ^ multiply(*qx, q_factor);
        let b = *px ^ a;
        (*px, *qx) = (a, b);
    }
}

fn cancels(sources: &[&[u8]]) -> bool {
    let length = sources.first().map_or(0, |source| source.len());
    (0..length).all(|at| sources.iter().fold(0, |sum, source| sum ^ source[at]) == 0)
}
