//! The vectors of x86-64. Every block below is sound because the CPU has the instructions and
//! the pointers are good for `LANES` values: the condition of the trait.

#![allow(
    clippy::wildcard_imports,
    reason = "the names say where they are from; a test build does not warn"
)]

use super::Vector;
use half::f16;
use std::arch::x86_64::*;

/// Eight lanes; AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256);

impl Vector for Avx2 {
    const LANES: usize = 8;
    const BLOCKS: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm256_set1_ps(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm256_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) })
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: see the module.
        unsafe {
            let eight = _mm_loadl_epi64(p.cast());
            Self(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight)))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see the module.
        unsafe { _mm256_storeu_ps(p, self.0) };
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm256_sub_ps(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm256_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm256_fmadd_ps(self.0, b.0, c.0) })
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm256_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn select_less(a: Self, b: Self, yes: Self, no: Self) -> Self {
        // SAFETY: see the module.
        unsafe {
            let less = _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0);
            Self(_mm256_blendv_ps(no.0, yes.0, less))
        }
    }
    #[inline(always)]
    unsafe fn add_exponent(self, rounded: Self) -> Self {
        // SAFETY: see the module.
        unsafe {
            let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(rounded.0));
            let bits = _mm256_add_epi32(_mm256_castps_si256(self.0), exponent);
            Self(_mm256_castsi256_ps(bits))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: see the module.
        unsafe {
            let pairs = _mm256_hadd_ps(self.0, self.0);
            let fours = _mm256_hadd_ps(pairs, pairs);
            let high = _mm256_extractf128_ps::<1>(fours);
            _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(fours), high))
        }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: see the module.
        unsafe {
            let high = _mm256_extractf128_ps::<1>(self.0);
            let four = _mm_max_ps(_mm256_castps256_ps128(self.0), high);
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    unsafe fn prefetch<T>(p: *const T) {
        // SAFETY: see the module.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
    }
    #[inline(always)]
    unsafe fn store_sums(vectors: [Self; 4], p: *mut f32) {
        // SAFETY: see the module; `p` is good for four values, by the caller.
        unsafe {
            let low = _mm256_hadd_ps(vectors[0].0, vectors[1].0);
            let top = _mm256_hadd_ps(vectors[2].0, vectors[3].0);
            let halves = _mm256_hadd_ps(low, top);
            let high = _mm256_extractf128_ps::<1>(halves);
            _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(halves), high));
        }
    }
}

/// Sixteen lanes; AVX-512 F, BW and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

impl Vector for Avx512 {
    const LANES: usize = 16;
    const BLOCKS: bool = true;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm512_set1_ps(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm512_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) })
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: see the module.
        unsafe {
            let sixteen = _mm_loadu_si128(p.cast());
            Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen)))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see the module.
        unsafe { _mm512_storeu_ps(p, self.0) };
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn select_less(a: Self, b: Self, yes: Self, no: Self) -> Self {
        // SAFETY: see the module.
        unsafe {
            let less = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a.0, b.0);
            Self(_mm512_mask_blend_ps(less, no.0, yes.0))
        }
    }
    #[inline(always)]
    unsafe fn add_exponent(self, rounded: Self) -> Self {
        // SAFETY: see the module.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(rounded.0));
            let bits = _mm512_add_epi32(_mm512_castps_si512(self.0), exponent);
            Self(_mm512_castsi512_ps(bits))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: see the module.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: see the module.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn widen_i8(from: *const i8, to: *mut i16) {
        // SAFETY: see the module.
        unsafe {
            let sixteen = _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast()));
            _mm256_storeu_si256(to.cast(), sixteen);
        }
    }
    #[inline(always)]
    unsafe fn add_pairs(self, lanes: *const i16, pair: *const i16) -> Self {
        // SAFETY: see the module; `lanes` is good for 2 * LANES numbers and `pair` for two, by the caller.
        unsafe {
            let lanes = _mm512_loadu_si512(lanes.cast());
            let pair = _mm512_set1_epi32(pair.cast::<i32>().read_unaligned());
            let sums = _mm512_dpwssd_epi32(_mm512_castps_si512(self.0), lanes, pair);
            Self(_mm512_castsi512_ps(sums))
        }
    }
    #[inline(always)]
    unsafe fn add_products(self, k: *const i8, q: *const i16) -> Self {
        // SAFETY: see the module; both are good for 2 * LANES numbers, by the caller.
        unsafe {
            let k = _mm512_cvtepi8_epi16(_mm256_loadu_si256(k.cast()));
            let q = _mm512_loadu_si512(q.cast());
            let sums = _mm512_dpwssd_epi32(_mm512_castps_si512(self.0), k, q);
            Self(_mm512_castsi512_ps(sums))
        }
    }
    #[inline(always)]
    unsafe fn pairs_sum(self) -> Self {
        // SAFETY: see the module.
        Self(unsafe { _mm512_cvtepi32_ps(_mm512_castps_si512(self.0)) })
    }
    #[inline(always)]
    unsafe fn prefetch<T>(p: *const T) {
        // SAFETY: see the module.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
    }
    #[inline(always)]
    unsafe fn store_sums(vectors: [Self; 4], p: *mut f32) {
        // SAFETY: see the module; `p` is good for four values, by the caller.
        unsafe {
            // Quarters of each vector beside each other, twice, so that one sum serves all four.
            let pairs = |a: __m512, b: __m512| {
                _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b))
            };
            let low = _mm512_castps_pd(pairs(vectors[0].0, vectors[1].0));
            let top = _mm512_castps_pd(pairs(vectors[2].0, vectors[3].0));
            let quarters = _mm512_add_ps(
                _mm512_castpd_ps(_mm512_unpacklo_pd(low, top)),
                _mm512_castpd_ps(_mm512_unpackhi_pd(low, top)),
            );
            let high = _mm512_castpd_ps(_mm512_castpd256_pd512(_mm512_extractf64x4_pd::<1>(
                _mm512_castps_pd(quarters),
            )));
            let halves = _mm512_castps512_ps256(_mm512_add_ps(quarters, high));
            let high = _mm256_extractf128_ps::<1>(halves);
            _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(halves), high));
        }
    }
}
