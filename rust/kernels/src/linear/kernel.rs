//! The inner loop: a panel of sixteen outputs against a few tokens.
//!
//! Owns the arithmetic over pointers behind one trait; knows nothing of batches. Weights are widened
//! from 8 to 16 bits in a register and meet pairs of activations: one instruction multiplies sixteen
//! pairs and adds each two products to 32 bits, without saturation (unlike the one for 8 bits).

use super::matrix::LANES;

/// Pairs of inputs that a step of the loop takes; divides `Matrix::pairs`.
const STEP: usize = 4;

/// Tokens of the widest block.
pub(super) const TOKENS_MAX: usize = 12;

/// Sums of sixteen outputs, i32.
///
/// Every method is `unsafe` because of one common condition: the CPU has the instructions of the type,
/// and a pointer given to it is good for what the method reads or writes.
pub(super) trait Sums: Copy {
    /// Sixteen pairs of weights as 16-bit numbers.
    type Weights: Copy;

    /// Tokens of a block: as many as the registers hold sums for.
    const TOKENS: usize;

    /// All zero.
    unsafe fn zero() -> Self;
    /// The 32 numbers at `p`, widened.
    unsafe fn widen(p: *const i8) -> Self::Weights;
    /// Adds the products of every pair of weights with the pair of activations at `p` (two i16).
    unsafe fn add_products(self, weights: Self::Weights, p: *const i16) -> Self;
    /// Writes the sums to `p[0..16]`.
    unsafe fn store(self, p: *mut i32);
    /// Brings the cache line at `p` near; any address will do.
    #[inline(always)]
    unsafe fn prefetch(_p: *const i8) {}
}

/// How far ahead weights are fetched, in bytes: pages end the CPU's own guesses.
const AHEAD: usize = 1536;

/// Sums of `T` tokens: `weights` is a panel of `pairs` pairs, token t is at `x + t * 2 * pairs`.
///
/// # Safety
/// The pointers are good for these shapes; `pairs` is a multiple of `STEP`; the CPU has the instructions
/// of `S`.
#[inline(always)]
unsafe fn block<S: Sums, const T: usize>(
    weights: *const i8,
    x: *const i16,
    pairs: usize,
    sums: *mut [i32; LANES],
) {
    // SAFETY: every index is below `pairs`, and t below T.
    unsafe {
        let rows: [*const i16; T] = std::array::from_fn(|t| x.add(t * 2 * pairs));
        let mut acc = [S::zero(); T];
        for first in (0..pairs).step_by(STEP) {
            S::prefetch(weights.wrapping_add(first * 2 * LANES + AHEAD));
            S::prefetch(weights.wrapping_add(first * 2 * LANES + AHEAD + 64));
            for pair in first..first + STEP {
                let widened = S::widen(weights.add(pair * 2 * LANES));
                for t in 0..T {
                    acc[t] = acc[t].add_products(widened, rows[t].add(2 * pair));
                }
            }
        }
        for (t, acc) in acc.into_iter().enumerate() {
            acc.store(sums.add(t).cast());
        }
    }
}

/// Sums of `count` tokens, at most `S::TOKENS`, to `sums[0..count]`; see `block`.
///
/// # Safety
/// As `block`.
#[inline(always)]
pub(super) unsafe fn dots<S: Sums>(
    weights: *const i8,
    x: *const i16,
    pairs: usize,
    count: usize,
    sums: &mut [[i32; LANES]; TOKENS_MAX],
) {
    const { assert!(S::TOKENS <= TOKENS_MAX) };
    assert!((1..=S::TOKENS).contains(&count));
    let sums = sums.as_mut_ptr();
    macro_rules! blocks {
        ($($n:literal)*) => {
            match count {
                // What a type never takes is not compiled for it.
                $($n if $n <= S::TOKENS => block::<S, $n>(weights, x, pairs, sums),)*
                _ => unreachable!("at most TOKENS_MAX"),
            }
        };
    }
    // SAFETY: as stated.
    unsafe { blocks!(1 2 3 4 5 6 7 8 9 10 11 12) }
}

/// Plain Rust, which the compiler turns into what the target has (SSE2, NEON).
#[derive(Clone, Copy)]
pub(super) struct Portable([i32; LANES]);

impl Sums for Portable {
    type Weights = [[i16; 2]; LANES];

    const TOKENS: usize = 2;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0; LANES])
    }
    #[inline(always)]
    unsafe fn widen(p: *const i8) -> Self::Weights {
        // SAFETY: 32 numbers, by the caller.
        let numbers = unsafe { p.cast::<[[i8; 2]; LANES]>().read() };
        numbers.map(|pair| pair.map(i16::from))
    }
    #[inline(always)]
    unsafe fn add_products(self, weights: Self::Weights, p: *const i16) -> Self {
        // SAFETY: two numbers, by the caller.
        let [a, b] = unsafe { p.cast::<[i16; 2]>().read() }.map(i32::from);
        Self(std::array::from_fn(|i| {
            let weights = weights[i].map(i32::from);
            self.0[i] + (weights[0] * a + weights[1] * b)
        }))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut i32) {
        // SAFETY: sixteen values, by the caller.
        unsafe { p.cast::<[i32; LANES]>().write(self.0) };
    }
}
