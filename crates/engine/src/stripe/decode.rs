//! Lost chunks from the others. Pure, over bytes.

use pinstripe_parity::Kernel;

use crate::{
    geometry::StripeMap,
    mutants::{Mutant, active},
};

/// The readable parts of one row range of a stripe, all of the same length.
pub struct Sources<'a> {
    /// By data column; `None` where lost.
    pub data: &'a [Option<&'a [u8]>],
    /// P, if it can be read.
    pub p: Option<&'a [u8]>,
    /// Q, if there is one and it can be read.
    pub q: Option<&'a [u8]>,
}

/// There are not enough sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insufficient;

impl Sources<'_> {
    fn survivors(&self, kernel: &Kernel, into: &mut [u8]) {
        for data in self.data.iter().flatten() {
            kernel.xor_into(into, &[data]);
        }
    }

    fn q_of_survivors(&self, kernel: &Kernel, map: StripeMap, into: &mut [u8]) {
        for (column, data) in self.data.iter().enumerate() {
            if let Some(data) = data {
                kernel.accumulate_q(into, data, exponent(map, column));
            }
        }
    }

    /// Recovers the lost data columns, in ascending order, one into each of `out` (as many as are lost, one
    /// or two).
    pub fn recover_data(
        &self,
        kernel: &Kernel,
        map: StripeMap,
        out: &mut [&mut [u8]],
    ) -> Result<(), Insufficient> {
        let mut lost = (0..self.data.len()).filter(|&c| self.data[c].is_none());
        match (lost.next(), lost.next(), lost.next()) {
            (None, ..) => Ok(()),
            (Some(a), None, _) => {
                let [out] = out else { return Err(Insufficient) };
                if let Some(p) = self.p {
                    out.copy_from_slice(p);
                    self.survivors(kernel, out);
                } else {
                    out.copy_from_slice(self.q.ok_or(Insufficient)?);
                    self.q_of_survivors(kernel, map, out);
                    let wrong = u8::from(active(Mutant::WrongExponentRecovered));
                    kernel.reconstruct_from_q(out, exponent(map, a).wrapping_add(wrong));
                }
                Ok(())
            }
            (Some(a), Some(b), None) => {
                let ([out_a, out_b], Some(p), Some(q)) = (out, self.p, self.q) else {
                    return Err(Insufficient);
                };
                out_a.copy_from_slice(p);
                out_b.copy_from_slice(q);
                for (column, data) in self.data.iter().enumerate() {
                    if let Some(data) = data {
                        kernel.accumulate_pq(out_a, out_b, data, exponent(map, column));
                    }
                }
                let (a, b) = if active(Mutant::RecoverTwoSwapped) { (b, a) } else { (a, b) };
                kernel.reconstruct_two(out_a, out_b, exponent(map, a), exponent(map, b));
                Ok(())
            }
            _ => Err(Insufficient),
        }
    }
}

/// The exponent of a column in Q.
pub fn exponent(map: StripeMap, column: usize) -> u8 {
    u8::try_from(map.q_exponent(column)).unwrap_or_else(|_| unreachable!("at most 64 members"))
}

/// P and Q of a row range of which all data is there.
pub fn encode(kernel: &Kernel, map: StripeMap, data: &[&[u8]], p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
    match (p, q) {
        (Some(p), None) => kernel.xor(p, data),
        (p, Some(q)) => {
            let mut columns = [None; crate::geometry::MEMBERS_MAX];
            let columns = &mut columns[..map.q_exponents()];
            for (column, data) in data.iter().enumerate() {
                columns[map.q_exponent(column)] = Some(*data);
            }
            if let Some(p) = p {
                kernel.pq(p, q, columns);
            } else {
                q.fill(0);
                for (column, data) in data.iter().enumerate() {
                    kernel.accumulate_q(q, data, exponent(map, column));
                }
            }
        }
        (None, None) => {}
    }
}
