//! The registers of x86-64: 32 bytes with AVX2, 64 with AVX-512, and those with GFNI.
//!
//! `SAFETY` arguments here are all of one kind: an intrinsic needs its processor feature, which the caller of
//! every [`Lanes`] method promises, and the memory that it reads or writes, which the caller promises too.
#![allow(clippy::inline_always, reason = "see `vector`")]
#![allow(clippy::wildcard_imports, reason = "intrinsics, whose names carry their prefix already")]

/// 32 bytes at a time.
pub(crate) mod avx2 {
    use core::arch::x86_64::*;

    use crate::field::NIBBLE_PRODUCTS;
    use crate::vector::{Lanes, vector_operations};

    #[derive(Clone, Copy)]
    struct Ymm(__m256i);

    /// The products with the low and with the high nibbles, each in both halves of a register.
    #[derive(Clone, Copy)]
    struct Products {
        low: __m256i,
        high: __m256i,
    }

    impl Lanes for Ymm {
        const BYTES: usize = 32;
        type Factor = Products;

        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: AVX2 is there (caller).
            Self(unsafe { _mm256_setzero_si256() })
        }

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: AVX2 is there, and 32 bytes at `from` (caller); `loadu` needs no alignment.
            Self(unsafe { _mm256_loadu_si256(from.cast()) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: AVX2 is there, and 32 bytes at `to` (caller); `storeu` needs no alignment.
            unsafe { _mm256_storeu_si256(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: AVX2 is there (caller).
            Self(unsafe { _mm256_xor_si256(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn or(self, other: Self) -> Self {
            // SAFETY: AVX2 is there (caller).
            Self(unsafe { _mm256_or_si256(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn is_zero(self) -> bool {
            // SAFETY: AVX2 is there (caller).
            unsafe { _mm256_testz_si256(self.0, self.0) == 1 }
        }

        #[inline(always)]
        unsafe fn double(self) -> Self {
            // SAFETY: AVX2 is there (caller).
            unsafe {
                // A byte below zero, read as signed, has the bit that falls out.
                let overflow = _mm256_cmpgt_epi8(_mm256_setzero_si256(), self.0);
                let reduction = _mm256_and_si256(overflow, _mm256_set1_epi8(0x1d));
                Self(_mm256_xor_si256(_mm256_add_epi8(self.0, self.0), reduction))
            }
        }

        #[inline(always)]
        unsafe fn factor(value: u8) -> Products {
            let products = &NIBBLE_PRODUCTS[usize::from(value)];
            // SAFETY: AVX2 is there (caller); both tables have 16 bytes.
            unsafe {
                Products {
                    low: _mm256_broadcastsi128_si256(_mm_loadu_si128(products.low.as_ptr().cast())),
                    high: _mm256_broadcastsi128_si256(_mm_loadu_si128(products.high.as_ptr().cast())),
                }
            }
        }

        #[inline(always)]
        unsafe fn times(self, factor: Products) -> Self {
            // SAFETY: AVX2 is there (caller).
            unsafe {
                let nibble = _mm256_set1_epi8(0x0f);
                let low = _mm256_and_si256(self.0, nibble);
                let high = _mm256_and_si256(_mm256_srli_epi64::<4>(self.0), nibble);
                let low = _mm256_shuffle_epi8(factor.low, low);
                let high = _mm256_shuffle_epi8(factor.high, high);
                Self(_mm256_xor_si256(low, high))
            }
        }
    }

    vector_operations!(Ymm, "avx2", 8, 4);
}

/// What AVX-512 has with GFNI and without: everything but multiplication.
macro_rules! zmm_lanes {
    () => {
        const BYTES: usize = 64;

        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: AVX-512 F is there (caller).
            Self(unsafe { _mm512_setzero_si512() })
        }

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: AVX-512 F is there, and 64 bytes at `from` (caller); `loadu` needs no alignment.
            Self(unsafe { _mm512_loadu_si512(from.cast()) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: AVX-512 F is there, and 64 bytes at `to` (caller); `storeu` needs no alignment.
            unsafe { _mm512_storeu_si512(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn load_part(from: *const u8, count: usize) -> Self {
            // SAFETY: AVX-512 BW is there, and `count` bytes at `from` (caller); bytes outside the mask are
            // not touched, and give zero.
            Self(unsafe { _mm512_maskz_loadu_epi8((1 << count) - 1, from.cast()) })
        }

        #[inline(always)]
        unsafe fn store_part(self, to: *mut u8, count: usize) {
            // SAFETY: AVX-512 BW is there, and `count` bytes at `to` (caller); bytes outside the mask are not
            // touched.
            unsafe { _mm512_mask_storeu_epi8(to.cast(), (1 << count) - 1, self.0) }
        }

        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: AVX-512 F is there (caller).
            Self(unsafe { _mm512_xor_si512(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn or(self, other: Self) -> Self {
            // SAFETY: AVX-512 F is there (caller).
            Self(unsafe { _mm512_or_si512(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn is_zero(self) -> bool {
            // SAFETY: AVX-512 F is there (caller).
            unsafe { _mm512_test_epi64_mask(self.0, self.0) == 0 }
        }
    };
}

/// 64 bytes at a time.
pub(crate) mod avx512 {
    use core::arch::x86_64::*;

    use crate::field::NIBBLE_PRODUCTS;
    use crate::vector::{Lanes, vector_operations};

    #[derive(Clone, Copy)]
    struct Zmm(__m512i);

    /// The products with the low and with the high nibbles, each in all four quarters of a register.
    #[derive(Clone, Copy)]
    struct Products {
        low: __m512i,
        high: __m512i,
    }

    impl Lanes for Zmm {
        zmm_lanes!();
        type Factor = Products;

        #[inline(always)]
        unsafe fn double(self) -> Self {
            // SAFETY: AVX-512 F and BW are there (caller).
            unsafe {
                // A shuffle gives zero where the index has its highest bit set, else here always 0x1d: the
                // reduction of just the other bytes. Adding 0x1d to all turns that round. (0x96: the sum of
                // three.)
                let constant = _mm512_set1_epi8(0x1d);
                let others = _mm512_shuffle_epi8(constant, self.0);
                let shifted = _mm512_add_epi8(self.0, self.0);
                Self(_mm512_ternarylogic_epi64::<0x96>(shifted, others, constant))
            }
        }

        #[inline(always)]
        unsafe fn factor(value: u8) -> Products {
            let products = &NIBBLE_PRODUCTS[usize::from(value)];
            // SAFETY: AVX-512 F is there (caller); both tables have 16 bytes.
            unsafe {
                Products {
                    low: _mm512_broadcast_i32x4(_mm_loadu_si128(products.low.as_ptr().cast())),
                    high: _mm512_broadcast_i32x4(_mm_loadu_si128(products.high.as_ptr().cast())),
                }
            }
        }

        #[inline(always)]
        unsafe fn times(self, factor: Products) -> Self {
            // SAFETY: AVX-512 F and BW are there (caller).
            unsafe {
                let nibble = _mm512_set1_epi8(0x0f);
                let low = _mm512_and_si512(self.0, nibble);
                let high = _mm512_and_si512(_mm512_srli_epi64::<4>(self.0), nibble);
                let low = _mm512_shuffle_epi8(factor.low, low);
                let high = _mm512_shuffle_epi8(factor.high, high);
                Self(_mm512_xor_si512(low, high))
            }
        }
    }

    vector_operations!(Zmm, "avx512f,avx512bw", 4, 8);
}

/// 64 bytes at a time, each product one instruction.
pub(crate) mod gfni {
    use core::arch::x86_64::*;

    use crate::field::BIT_MATRICES;
    use crate::vector::{Lanes, vector_operations};

    #[derive(Clone, Copy)]
    struct Zmm(__m512i);

    impl Lanes for Zmm {
        zmm_lanes!();
        /// The factor's matrix in each 8 bytes. (`GF2P8MULB` would not do: its polynomial is 0x11b.)
        type Factor = __m512i;

        #[inline(always)]
        unsafe fn double(self) -> Self {
            // SAFETY: GFNI and AVX-512 F are there (caller).
            unsafe { self.times(Self::factor(2)) }
        }

        #[inline(always)]
        unsafe fn factor(value: u8) -> __m512i {
            // SAFETY: AVX-512 F is there (caller).
            unsafe { _mm512_set1_epi64(BIT_MATRICES[usize::from(value)].cast_signed()) }
        }

        #[inline(always)]
        unsafe fn times(self, factor: __m512i) -> Self {
            // SAFETY: GFNI and AVX-512 F are there (caller).
            Self(unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(self.0, factor) })
        }
    }

    vector_operations!(Zmm, "avx512f,avx512bw,gfni", 4, 8);
}
