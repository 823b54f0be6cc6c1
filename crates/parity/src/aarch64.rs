//! The registers of AArch64: 16 bytes with NEON.
#![allow(clippy::inline_always, reason = "see `vector`")]

/// 16 bytes at a time.
pub(crate) mod neon {
    #![allow(clippy::wildcard_imports, reason = "intrinsics, whose names carry their prefix already")]
    use core::arch::aarch64::*;

    use crate::field::NIBBLE_PRODUCTS;
    use crate::vector::{Lanes, vector_operations};

    #[derive(Clone, Copy)]
    struct Quad(uint8x16_t);

    /// The products with the low and with the high nibbles.
    #[derive(Clone, Copy)]
    struct Products {
        low: uint8x16_t,
        high: uint8x16_t,
    }

    impl Lanes for Quad {
        const BYTES: usize = 16;
        type Factor = Products;

        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: NEON is there (caller).
            Self(unsafe { vdupq_n_u8(0) })
        }

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: NEON is there, and 16 bytes at `from` (caller); a load of bytes needs no alignment.
            Self(unsafe { vld1q_u8(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: NEON is there, and 16 bytes at `to` (caller); a store of bytes needs no alignment.
            unsafe { vst1q_u8(to, self.0) }
        }

        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: NEON is there (caller).
            Self(unsafe { veorq_u8(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn or(self, other: Self) -> Self {
            // SAFETY: NEON is there (caller).
            Self(unsafe { vorrq_u8(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn is_zero(self) -> bool {
            // SAFETY: NEON is there (caller).
            unsafe { vmaxvq_u8(self.0) == 0 }
        }

        #[inline(always)]
        unsafe fn double(self) -> Self {
            // SAFETY: NEON is there (caller).
            unsafe {
                // The arithmetic shift spreads the bit that falls out over its byte.
                let overflow = vreinterpretq_u8_s8(vshrq_n_s8::<7>(vreinterpretq_s8_u8(self.0)));
                let reduction = vandq_u8(overflow, vdupq_n_u8(0x1d));
                Self(veorq_u8(vshlq_n_u8::<1>(self.0), reduction))
            }
        }

        #[inline(always)]
        unsafe fn factor(value: u8) -> Products {
            let products = &NIBBLE_PRODUCTS[usize::from(value)];
            // SAFETY: NEON is there (caller); both tables have 16 bytes.
            unsafe {
                Products { low: vld1q_u8(products.low.as_ptr()), high: vld1q_u8(products.high.as_ptr()) }
            }
        }

        #[inline(always)]
        unsafe fn times(self, factor: Products) -> Self {
            // SAFETY: NEON is there (caller).
            unsafe {
                let low = vqtbl1q_u8(factor.low, vandq_u8(self.0, vdupq_n_u8(0x0f)));
                let high = vqtbl1q_u8(factor.high, vshrq_n_u8::<4>(self.0));
                Self(veorq_u8(low, high))
            }
        }
    }

    vector_operations!(Quad, "neon", 8, 8);
}
