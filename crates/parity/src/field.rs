//! The field GF(2^8) with the polynomial 0x11d, one byte at a time, and the tables that the vector kernels
//! multiply with.

/// The greatest exponent of a column: the powers of two repeat after 255.
pub const EXPONENT_MAX: u8 = 254;

/// What x^8 is replaced by: the polynomial 0x11d without its highest term.
const REDUCTION: u8 = 0x1d;

/// The number of distinct powers of two: every element but zero.
const ORDER: usize = 255;

const POWERS: [u8; ORDER] = powers();
const LOGARITHMS: [u8; 256] = logarithms();

/// `2 * a`.
#[inline]
pub const fn double(a: u8) -> u8 {
    // The mask is all ones if the highest bit falls out; no branch, so that loops over bytes vectorise.
    (a << 1) ^ (REDUCTION & (a >> 7).wrapping_neg())
}

/// `a * b`, by shift and add.
#[inline]
pub const fn multiply(a: u8, b: u8) -> u8 {
    let (mut shifted, mut product, mut bit) = (a, 0, 0);
    while bit < 8 {
        product ^= shifted & (b >> bit & 1).wrapping_neg();
        shifted = double(shifted);
        bit += 1;
    }
    product
}

/// `2^exponent`: what the column with this exponent is multiplied by in Q. Panics if the exponent is above
/// [`EXPONENT_MAX`].
#[inline]
pub const fn power_of_two(exponent: u8) -> u8 {
    assert!(exponent <= EXPONENT_MAX, "the exponent of a column is at most 254");
    POWERS[exponent as usize]
}

/// `a / b`. Panics if `b` is zero.
#[inline]
pub const fn divide(a: u8, b: u8) -> u8 {
    assert!(b != 0, "division by zero in GF(2^8)");
    let inverse = POWERS[(ORDER - LOGARITHMS[b as usize] as usize) % ORDER];
    multiply(a, inverse)
}

const fn powers() -> [u8; ORDER] {
    let mut table = [1; ORDER];
    let mut exponent = 1;
    while exponent < ORDER {
        table[exponent] = double(table[exponent - 1]);
        exponent += 1;
    }
    table
}

/// The exponent of every element; zero has none, and its entry is never read.
const fn logarithms() -> [u8; 256] {
    let mut table = [0; 256];
    let mut exponent: u8 = 0;
    while exponent <= EXPONENT_MAX {
        table[POWERS[exponent as usize] as usize] = exponent;
        exponent += 1;
    }
    table
}

#[cfg(target_arch = "x86_64")]
pub(crate) use tables::BIT_MATRICES;
#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
pub(crate) use tables::NIBBLE_PRODUCTS;

#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
mod tables {
    use super::multiply;

    /// The products of one factor with the 16 low nibbles and with the 16 high nibbles: `f * x` is
    /// `low[x & 15] ^ high[x >> 4]`.
    #[derive(Clone, Copy)]
    #[repr(C, align(32))]
    pub(crate) struct NibbleProducts {
        pub(crate) low: [u8; 16],
        pub(crate) high: [u8; 16],
    }

    /// One table for each factor, 8 KiB in all.
    pub(crate) static NIBBLE_PRODUCTS: [NibbleProducts; 256] = nibble_products();

    /// The matrix of each factor in the order of `GF2P8AFFINEQB`: byte `7 - i` of the word selects the
    /// operand's bits that add up to bit `i` of the product (Intel SDM volume 2, GF2P8AFFINEQB).
    #[cfg(target_arch = "x86_64")]
    pub(crate) static BIT_MATRICES: [u64; 256] = bit_matrices();

    #[expect(clippy::cast_possible_truncation, reason = "the counters stay below 256 and 16")]
    const fn nibble_products() -> [NibbleProducts; 256] {
        let mut tables = [NibbleProducts { low: [0; 16], high: [0; 16] }; 256];
        let mut factor = 0;
        while factor < 256 {
            let mut nibble = 0;
            while nibble < 16 {
                tables[factor].low[nibble] = multiply(factor as u8, nibble as u8);
                tables[factor].high[nibble] = multiply(factor as u8, (nibble as u8) << 4);
                nibble += 1;
            }
            factor += 1;
        }
        tables
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(clippy::cast_possible_truncation, reason = "the factor stays below 256")]
    const fn bit_matrices() -> [u64; 256] {
        let mut matrices = [0; 256];
        let mut factor = 0;
        while factor < 256 {
            let mut column = 0;
            while column < 8 {
                // The image of the unit vector x^column is the matrix's column of that number.
                let image = multiply(factor as u8, 1 << column);
                let mut row = 0;
                while row < 8 {
                    let set = (image >> row & 1) as u64;
                    matrices[factor] |= set << ((7 - row) * 8 + column);
                    row += 1;
                }
                column += 1;
            }
            factor += 1;
        }
        matrices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carry-less product, then long division by 0x11d: nothing in common with the code under test.
    fn multiply_by_definition(a: u8, b: u8) -> u8 {
        let mut product: u32 = 0;
        for i in 0..8 {
            if b & (1 << i) != 0 {
                product ^= u32::from(a) << i;
            }
        }
        for degree in (8..15).rev() {
            if product & (1 << degree) != 0 {
                product ^= 0x11d << (degree - 8);
            }
        }
        u8::try_from(product).expect("the remainder has degree at most 7")
    }

    #[test]
    fn multiplication_agrees_with_its_definition_for_every_pair() {
        for a in 0..=255 {
            assert_eq!(double(a), multiply_by_definition(a, 2));
            for b in 0..=255 {
                assert_eq!(multiply(a, b), multiply_by_definition(a, b), "{a} * {b}");
            }
        }
    }

    #[test]
    fn multiplication_is_commutative_associative_and_distributive() {
        for a in 0..=255 {
            assert_eq!(multiply(a, 1), a);
            assert_eq!(multiply(a, 0), 0);
            for b in 0..=255 {
                assert_eq!(multiply(a, b), multiply(b, a));
                for c in [1, 2, 3, 0x1d, 0x80, 0xff] {
                    assert_eq!(multiply(multiply(a, b), c), multiply(a, multiply(b, c)));
                    assert_eq!(multiply(a ^ b, c), multiply(a, c) ^ multiply(b, c));
                }
            }
        }
    }

    #[test]
    fn two_generates_every_element_but_zero() {
        let mut seen = [false; 256];
        for exponent in 0..=EXPONENT_MAX {
            let element = power_of_two(exponent);
            assert!(!seen[usize::from(element)], "2^{exponent} repeats");
            seen[usize::from(element)] = true;
        }
        assert!(!seen[0]);
        assert_eq!(double(power_of_two(EXPONENT_MAX)), 1);
    }

    #[test]
    fn division_undoes_multiplication() {
        for a in 0..=255 {
            for b in 1..=255 {
                assert_eq!(divide(multiply(a, b), b), a);
            }
        }
    }

    /// Values of the field that are printed in the literature (Anvin, section 3 and its table of powers).
    #[test]
    fn powers_have_their_published_values() {
        let known = [(0, 0x01), (7, 0x80), (8, 0x1d), (9, 0x3a), (12, 0xcd), (13, 0x87), (254, 0x8e)];
        for (exponent, value) in known {
            assert_eq!(power_of_two(exponent), value, "2^{exponent}");
        }
    }
}
