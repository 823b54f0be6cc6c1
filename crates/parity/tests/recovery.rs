//! A row that lost any one or two of its members gets them back, from parity that was encoded, updated or
//! accumulated.

use pinstripe_parity::Kernel;
use proptest::prelude::*;

/// A row of a RAID6: columns at their exponents, P and Q.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Row {
    columns: Vec<Option<Vec<u8>>>,
    p: Vec<u8>,
    q: Vec<u8>,
}

impl Row {
    fn encode(kernel: &Kernel, columns: Vec<Option<Vec<u8>>>, length: usize) -> Self {
        let (mut p, mut q) = (vec![0; length], vec![0; length]);
        kernel.pq(&mut p, &mut q, &slices(&columns));
        Self { columns, p, q }
    }

    fn present(&self) -> Vec<usize> {
        (0..self.columns.len()).filter(|i| self.columns[*i].is_some()).collect()
    }

    fn data(&self, exponent: usize) -> &[u8] {
        self.columns[exponent].as_deref().expect("present")
    }

    /// P and Q, each with the contributions of all columns but the lost ones taken out.
    fn residues(&self, kernel: &Kernel, lost: &[usize]) -> (Vec<u8>, Vec<u8>) {
        let (mut px, mut qx) = (self.p.clone(), self.q.clone());
        for i in self.present().into_iter().filter(|i| !lost.contains(i)) {
            kernel.accumulate_pq(&mut px, &mut qx, self.data(i), exponent(i));
        }
        (px, qx)
    }
}

fn slices(columns: &[Option<Vec<u8>>]) -> Vec<Option<&[u8]>> {
    columns.iter().map(Option::as_deref).collect()
}

fn exponent(index: usize) -> u8 {
    u8::try_from(index).expect("a column's exponent")
}

/// Up to 32 columns, about a quarter of the exponents left out in half of the cases.
fn rows() -> impl Strategy<Value = (Vec<Option<Vec<u8>>>, usize)> {
    (1..=32_usize, 0..400_usize, any::<bool>()).prop_flat_map(|(width, length, gaps)| {
        let present = prop::bool::weighted(if gaps { 0.75 } else { 1.0 });
        let column =
            (present, prop::collection::vec(any::<u8>(), length)).prop_map(|(is, data)| is.then_some(data));
        (prop::collection::vec(column, width), Just(length))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn one_lost_column_comes_back_from_p_and_from_q((columns, length) in rows()) {
        for kernel in Kernel::supported() {
            let row = Row::encode(kernel, columns.clone(), length);
            for lost in row.present() {
                let (from_p, mut from_q) = row.residues(kernel, &[lost]);
                kernel.reconstruct_from_q(&mut from_q, exponent(lost));
                prop_assert!(from_p == row.data(lost), "P, {} column {lost}", kernel.name());
                // Data and P: the column from Q, then P anew.
                prop_assert!(from_q == row.data(lost), "Q, {} column {lost}", kernel.name());
                // Data and Q: the column from P, then Q anew.
                let mut columns = row.columns.clone();
                columns[lost] = Some(from_p);
                prop_assert_eq!(&Row::encode(kernel, columns, length), &row);
            }
        }
    }

    #[test]
    fn two_lost_columns_come_back_in_either_order((columns, length) in rows()) {
        for kernel in Kernel::supported() {
            let row = Row::encode(kernel, columns.clone(), length);
            for a in row.present() {
                for b in row.present().into_iter().filter(|b| *b != a) {
                    let (mut px, mut qx) = row.residues(kernel, &[a, b]);
                    kernel.reconstruct_two(&mut px, &mut qx, exponent(a), exponent(b));
                    prop_assert!(px == row.data(a) && qx == row.data(b), "{} {a} {b}", kernel.name());
                }
            }
        }
    }

    #[test]
    fn lost_p_and_q_come_back_by_accumulation((columns, length) in rows()) {
        for kernel in Kernel::supported() {
            let row = Row::encode(kernel, columns.clone(), length);
            let (p, q) = Row { p: vec![0; length], q: vec![0; length], ..row.clone() }.residues(kernel, &[]);
            prop_assert!(p == row.p && q == row.q, "{}", kernel.name());
            let (px, qx) = row.residues(kernel, &[]);
            prop_assert!(kernel.is_zero(&px) && kernel.is_zero(&qx), "{}", kernel.name());
        }
    }

    #[test]
    fn updates_lead_to_the_parity_of_the_new_row((columns, length) in rows(), fill in any::<u8>()) {
        for kernel in Kernel::supported() {
            let mut row = Row::encode(kernel, columns.clone(), length);
            for i in row.present() {
                let old = row.data(i).to_vec();
                let new: Vec<u8> = old.iter().map(|byte| byte.rotate_left(3) ^ fill).collect();
                if i % 2 == 0 {
                    kernel.update_pq(&mut row.p, &mut row.q, &old, &new, exponent(i));
                } else {
                    kernel.update_p(&mut row.p, &old, &new);
                    kernel.update_q(&mut row.q, &old, &new, exponent(i));
                }
                row.columns[i] = Some(new);
            }
            prop_assert_eq!(&Row::encode(kernel, row.columns.clone(), length), &row, "{}", kernel.name());
        }
    }
}

/// The exponents far apart that no row of 32 columns has.
#[test]
fn every_pair_of_exponents_is_solvable() {
    let (a, b): (Vec<u8>, Vec<u8>) =
        ((0..130).collect(), (0..130).map(|byte: u8| byte.wrapping_mul(77)).collect());
    for kernel in Kernel::supported() {
        for first in 0..=254 {
            for second in (0..=254).filter(|second| *second != first).step_by(7) {
                let (mut px, mut qx) = (vec![0; 130], vec![0; 130]);
                kernel.accumulate_pq(&mut px, &mut qx, &a, first);
                kernel.accumulate_pq(&mut px, &mut qx, &b, second);
                kernel.reconstruct_two(&mut px, &mut qx, first, second);
                assert!(px == a && qx == b, "{} {first} {second}", kernel.name());
            }
        }
    }
}
