//! The sums of x86-64. Every block below is sound because the CPU has the instructions and the pointers
//! are good: the condition of the trait.

#![allow(
    clippy::wildcard_imports,
    reason = "the names say where they are from; a test build does not warn"
)]

use super::kernel::Sums;
use std::arch::x86_64::*;

/// AVX2: two registers of eight sums. Six tokens keep 12 sums, 2 vectors of weights, a pair of
/// activations and a product in the 16 registers.
#[derive(Clone, Copy)]
pub(super) struct Avx2([__m256i; 2]);

impl Sums for Avx2 {
    type Weights = [__m256i; 2];
    type Pair = __m256i;

    const TOKENS: usize = 6;
    const PANELS: usize = 1;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see the module.
        Self(unsafe { [_mm256_setzero_si256(); 2] })
    }
    #[inline(always)]
    unsafe fn widen(p: *const i8) -> Self::Weights {
        // SAFETY: see the module.
        unsafe {
            [
                _mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast())),
                _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(16).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn join(high: *const i8, low: *const u8) -> Self::Weights {
        // SAFETY: see the module.
        unsafe {
            let low = _mm256_cvtepu8_epi16(_mm_loadu_si128(low.cast()));
            let low = [
                _mm256_and_si256(low, _mm256_set1_epi16(15)),
                _mm256_srli_epi16::<4>(low),
            ];
            let high = Self::widen(high).map(|high| _mm256_slli_epi16::<4>(high));
            [
                _mm256_or_si256(high[0], low[0]),
                _mm256_or_si256(high[1], low[1]),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load(p: *const i16) -> Self::Weights {
        // SAFETY: see the module.
        unsafe {
            [
                _mm256_loadu_si256(p.cast()),
                _mm256_loadu_si256(p.add(16).cast()),
            ]
        }
    }
    #[inline(always)]
    unsafe fn keep(weights: Self::Weights, p: *mut i16) {
        // SAFETY: see the module.
        unsafe {
            _mm256_storeu_si256(p.cast(), weights[0]);
            _mm256_storeu_si256(p.add(16).cast(), weights[1]);
        }
    }
    #[inline(always)]
    unsafe fn pair(p: *const i16) -> Self::Pair {
        // SAFETY: see the module.
        unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn add_products(self, weights: Self::Weights, pair: Self::Pair, _: usize) -> Self {
        // SAFETY: see the module.
        unsafe {
            let products = weights.map(|w| _mm256_madd_epi16(w, pair));
            Self([
                _mm256_add_epi32(self.0[0], products[0]),
                _mm256_add_epi32(self.0[1], products[1]),
            ])
        }
    }
    #[inline(always)]
    unsafe fn add_to(self, p: *mut f32) {
        // SAFETY: see the module.
        unsafe {
            for (half, sums) in self.0.into_iter().enumerate() {
                let p = p.add(8 * half);
                let sums = _mm256_cvtepi32_ps(sums);
                _mm256_storeu_ps(p, _mm256_add_ps(_mm256_loadu_ps(p), sums));
            }
        }
    }
    #[inline(always)]
    unsafe fn prefetch<T>(p: *const T) {
        // SAFETY: see the module.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
    }
}

/// AVX-512 BW: one register of sixteen sums. Two panels of twelve tokens keep 24, 2 vectors of weights, a pair
/// of activations and a product in the 32 registers.
#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512i);

/// AVX-512 VNNI: the same, products and sum in one instruction.
#[derive(Clone, Copy)]
pub(super) struct Vnni(__m512i);

macro_rules! sums_of_512_bits {
    ($name:ident, $add:ident) => {
        impl Sums for $name {
            type Weights = __m512i;
            type Pair = __m512i;

            const TOKENS: usize = 12;
            const PANELS: usize = 2;

            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: see the module.
                Self(unsafe { _mm512_setzero_si512() })
            }
            #[inline(always)]
            unsafe fn widen(p: *const i8) -> Self::Weights {
                // SAFETY: see the module.
                unsafe { _mm512_cvtepi8_epi16(_mm256_loadu_si256(p.cast())) }
            }
            #[inline(always)]
            unsafe fn join(high: *const i8, low: *const u8) -> Self::Weights {
                // SAFETY: see the module.
                unsafe {
                    let low = _mm256_cvtepu8_epi16(_mm_loadu_si128(low.cast()));
                    let first = _mm256_and_si256(low, _mm256_set1_epi16(15));
                    let low = _mm512_inserti64x4::<1>(
                        _mm512_castsi256_si512(first),
                        _mm256_srli_epi16::<4>(low),
                    );
                    _mm512_or_si512(_mm512_slli_epi16::<4>(Self::widen(high)), low)
                }
            }
            #[inline(always)]
            unsafe fn load(p: *const i16) -> Self::Weights {
                // SAFETY: see the module.
                unsafe { _mm512_loadu_si512(p.cast()) }
            }
            #[inline(always)]
            unsafe fn keep(weights: Self::Weights, p: *mut i16) {
                // SAFETY: see the module.
                unsafe { _mm512_storeu_si512(p.cast(), weights) };
            }
            #[inline(always)]
            unsafe fn pair(p: *const i16) -> Self::Pair {
                // SAFETY: see the module.
                unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
            }
            #[inline(always)]
            unsafe fn add_products(
                self,
                weights: Self::Weights,
                pair: Self::Pair,
                in_turn: usize,
            ) -> Self {
                // SAFETY: see the module.
                Self(unsafe { $add(self.0, weights, pair, in_turn) })
            }
            #[inline(always)]
            unsafe fn add_to(self, p: *mut f32) {
                // SAFETY: see the module.
                unsafe {
                    let sums = _mm512_cvtepi32_ps(self.0);
                    _mm512_storeu_ps(p, _mm512_add_ps(_mm512_loadu_ps(p), sums));
                }
            }
            #[inline(always)]
            unsafe fn prefetch<T>(p: *const T) {
                // SAFETY: see the module.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
            }
        }
    };
}

sums_of_512_bits!(Avx512, madd);
sums_of_512_bits!(Vnni, dpwssd);

/// Two instructions, of which only the sum waits for the one before.
#[inline(always)]
unsafe fn madd(sum: __m512i, weights: __m512i, pair: __m512i, _: usize) -> __m512i {
    // SAFETY: see the module.
    unsafe { _mm512_add_epi32(sum, _mm512_madd_epi16(weights, pair)) }
}

/// One instruction, which waits for the one before and takes five cycles: two for a cycle with ten sums, while
/// `madd` is one for a cycle with any number.
#[inline(always)]
unsafe fn dpwssd(sum: __m512i, weights: __m512i, pair: __m512i, in_turn: usize) -> __m512i {
    // SAFETY: see the module.
    unsafe {
        if in_turn > 5 {
            vpdpwssd(sum, weights, pair)
        } else {
            madd(sum, weights, pair, in_turn)
        }
    }
}

/// Not `_mm512_dpwssd_epi32`: of that the compiler makes a product and a sum where it takes the chain of sums
/// for long.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn vpdpwssd(mut sum: __m512i, weights: __m512i, pair: __m512i) -> __m512i {
    // SAFETY: nothing but the register is written.
    unsafe {
        std::arch::asm!(
            "vpdpwssd {sum}, {weights}, {pair}",
            sum = inout(zmm_reg) sum,
            weights = in(zmm_reg) weights,
            pair = in(zmm_reg) pair,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}
