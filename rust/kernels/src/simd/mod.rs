//! Vectors of float32 behind one trait: portable, scalar, AVX2 + FMA and AVX-512F.
//!
//! Owns the choice of instruction set and the exponential; knows nothing of attention. Every method
//! is `unsafe` because of one common condition: the CPU has the instructions of the type, and a
//! pointer given to it is good for `LANES` values (no alignment is needed).

// The functions are inlined into a caller that enables the instructions, see `kernel::run`.
#![allow(clippy::missing_safety_doc)]

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

use half::f16;

/// Lanes of the widest vector.
pub(crate) const LANES_MAX: usize = 16;

/// 1.5 * 2^23: adding it to |x| < 2^22 leaves round(x) in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;

/// 2^f = 1 + f * P(f) on [-0.5, 0.5], highest power first; from Cephes 2.2, `exp2f.c`
/// (Moshier 1992; stated peak relative error 1.7e-7).
const EXP2: [f32; 6] = [
    1.535_336_2e-4,
    1.339_887_4e-3,
    9.618_437e-3,
    5.550_332_5e-2,
    2.402_264_8e-1,
    6.931_472e-1,
];

/// Up to this exponent a weight counts as zero, so that no result is a denormal number.
const EXP2_MIN: f32 = -125.0;

/// A vector of `LANES` float32 values.
pub(crate) trait Vector: Copy {
    /// Values in a vector.
    const LANES: usize;

    /// Whether loops over blocks of rows and keys pay: they keep sums in registers, where a CPU has many and wide
    /// ones. Each shape of a block is unrolled code of its own.
    const BLOCKS: bool;

    /// Whether products of pairs of whole numbers pay: they are twice as many an instruction as those of float32.
    const PAIRS: bool = false;

    /// `x` in every lane.
    unsafe fn splat(x: f32) -> Self;
    /// The `LANES` values at `p`.
    unsafe fn load(p: *const f32) -> Self;
    /// The `LANES` values at `p`, exact as float32.
    unsafe fn load_f16(p: *const f16) -> Self;
    /// The `LANES` numbers at `p`, exact as float32.
    unsafe fn load_i8(p: *const i8) -> Self;
    /// Writes the `LANES` values to `p`.
    unsafe fn store(self, p: *mut f32);
    /// Lane by lane `self + other`.
    unsafe fn add(self, other: Self) -> Self;
    /// Lane by lane `self - other`.
    unsafe fn sub(self, other: Self) -> Self;
    /// Lane by lane `self * other`.
    unsafe fn mul(self, other: Self) -> Self;
    /// Lane by lane `self * b + c`, rounded once where the CPU can.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// Lane by lane the larger value; `other` where either is NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// Lane by lane `yes` where `a < b`, else `no`.
    unsafe fn select_less(a: Self, b: Self, yes: Self, no: Self) -> Self;
    /// Lane by lane: adds the integer in the low bits of `rounded` to the exponent of `self`.
    unsafe fn add_exponent(self, rounded: Self) -> Self;
    /// The sum of all lanes.
    unsafe fn sum(self) -> f32;
    /// The largest lane.
    unsafe fn largest(self) -> f32;
    /// Writes the `LANES` numbers at `from` to `to`, only where `PAIRS`.
    #[inline(always)]
    unsafe fn widen_i8(_from: *const i8, _to: *mut i16) {
        unreachable!("PAIRS says no")
    }
    /// Sums of whole numbers, in the bits of `self`: lane by lane plus the product of two numbers at `lanes`
    /// [LANES, 2] with the two at `pair`, only where `PAIRS`. Zero is zero in either form.
    #[inline(always)]
    unsafe fn add_pairs(self, _lanes: *const i16, _pair: *const i16) -> Self {
        unreachable!("PAIRS says no")
    }
    /// The same sums with the products of two numbers at `k` and two at `q`, each [LANES, 2], only where `PAIRS`.
    #[inline(always)]
    unsafe fn add_products(self, _k: *const i8, _q: *const i16) -> Self {
        unreachable!("PAIRS says no")
    }
    /// These sums as float32, only where `PAIRS`.
    #[inline(always)]
    unsafe fn pairs_sum(self) -> Self {
        unreachable!("PAIRS says no")
    }
    /// Brings the cache line at `p` near; any address will do.
    #[inline(always)]
    unsafe fn prefetch<T>(_p: *const T) {}

    /// Writes the sums of four vectors to `p[0..4]`.
    #[inline(always)]
    unsafe fn store_sums(vectors: [Self; 4], p: *mut f32) {
        for (i, vector) in vectors.into_iter().enumerate() {
            // SAFETY: `p` is good for four values, by the caller.
            unsafe { *p.add(i) = vector.sum() };
        }
    }

    /// Lane by lane 2^x for x <= 0; zero up to x = -125 and for negative infinity, NaN for NaN.
    #[inline(always)]
    unsafe fn exp2(self) -> Self {
        // SAFETY: arithmetic of the same type.
        unsafe {
            let round = Self::splat(ROUND);
            let rounded = self.add(round);
            let f = self.sub(rounded.sub(round));
            let mut p = Self::splat(EXP2[0]);
            for c in &EXP2[1..] {
                p = p.mul_add(f, Self::splat(*c));
            }
            let power = p.mul_add(f, Self::splat(1.0)).add_exponent(rounded);
            // `add_exponent` can make a number of a NaN: what is not above the least power takes no part of it.
            let zero_or_nan = Self::splat(0.0).max(self);
            Self::select_less(Self::splat(EXP2_MIN), self, power, zero_or_nan)
        }
    }
}

/// 2^x of one number, x <= 0, as the vectors compute it.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    // SAFETY: the scalar type needs no special instructions and no pointer is used.
    unsafe { Lanes::<1>([x]).exp2().0[0] }
}

/// `N` lanes in plain Rust, which the compiler turns into what the target has (SSE2, NEON).
#[derive(Clone, Copy)]
pub(crate) struct Lanes<const N: usize>([f32; N]);

impl<const N: usize> Lanes<N> {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl<const N: usize> Vector for Lanes<N> {
    const LANES: usize = N;

    // SSE2 has registers for less than one block of eight lanes.
    const BLOCKS: bool = cfg!(target_arch = "aarch64") && N > 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; N])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: `p` is good for `N` values, by the caller; an array has the alignment of its item.
        Self(unsafe { p.cast::<[f32; N]>().read() })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        // SAFETY: as in `load`.
        Self(unsafe { p.cast::<[f16; N]>().read() }.map(f16::to_f32_const))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: as in `load`.
        Self(unsafe { p.cast::<[i8; N]>().read() }.map(f32::from))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: as in `load`.
        unsafe { p.cast::<[f32; N]>().write(self.0) };
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // Without the instruction `f32::mul_add` calls a slow library function.
        Self(std::array::from_fn(|i| {
            if cfg!(target_arch = "aarch64") {
                self.0[i].mul_add(b.0[i], c.0[i])
            } else {
                self.0[i] * b.0[i] + c.0[i]
            }
        }))
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn select_less(a: Self, b: Self, yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|i| {
            if a.0[i] < b.0[i] { yes.0[i] } else { no.0[i] }
        }))
    }
    #[inline(always)]
    unsafe fn add_exponent(self, rounded: Self) -> Self {
        self.zip(rounded, |a, b| {
            f32::from_bits(a.to_bits().wrapping_add(b.to_bits() << 23))
        })
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        self.0.iter().sum()
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        self.0
            .iter()
            .fold(f32::MIN, |a, b| if *b > a { *b } else { a })
    }
}
