//! Parity arithmetic: XOR, P and Q over GF(2^8), their updates, and recovery of one or two lost members.
//!
//! **The code.** P is the XOR of the data columns. Q is the sum of `2^e * D` over all columns, byte by byte,
//! in GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d), where `e` is the column's *exponent* (H.
//! P. Anvin, "The mathematics of RAID-6", sections 1 to 4). Which member has which exponent is the caller's
//! affair: this crate knows nothing of layouts. An exponent is in `0..=254`, because `2^255 = 1`.
//!
//! **The kernels.** Each operation exists in several [`Kernel`]s that give the same bytes:
//!
//! | name     | needs                         | bytes at a time | multiplies by                                  |
//! |----------|-------------------------------|-----------------|------------------------------------------------|
//! | `scalar` | nothing                       | 1               | shift and add: the oracle of the tests         |
//! | `avx2`   | AVX2                          | 32              | two nibble tables (`PSHUFB`)                   |
//! | `avx512` | AVX-512 F, BW                 | 64              | two nibble tables (`VPSHUFB`)                  |
//! | `gfni`   | AVX-512 F, BW and GFNI        | 64              | one 8x8 bit matrix (`GF2P8AFFINEQB`)           |
//! | `neon`   | AArch64, little-endian        | 16              | two nibble tables (`TBL`)                      |
//!
//! [`kernel`] is the best one this processor has, chosen once; the environment variable [`KERNEL_VARIABLE`]
//! overrides the choice and [`selection`] says what came of that. NEON has been tested under qemu-user only.
//!
//! **Where to read on.** `kernel` holds the public operations and checks what they are given, `field` the
//! arithmetic on single bytes, `scalar` the oracle, `vector` the same operations once for every register
//! width, `x86` and `aarch64` the registers.
//!
//! **Safety.** The vector code works on raw pointers, and is entered only through the methods of [`Kernel`],
//! which assert (in release builds too) that all slices of a call have the same length.

#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod aarch64;
mod field;
mod kernel;
mod scalar;
mod select;
#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use field::{EXPONENT_MAX, divide, double, multiply, power_of_two};
pub use kernel::Kernel;
pub use select::{KERNEL_VARIABLE, SelectError, Selection, kernel, select, selection};
