//! The inner loop: a panel of sixteen outputs against a few tokens.
//!
//! Owns the arithmetic over pointers behind one trait; knows nothing of batches. Weights of 16 bits, or
//! widened to them, meet pairs of activations: one instruction multiplies sixteen pairs and adds each two
//! products to 32 bits, without saturation (unlike the one for 8 bits).

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
    /// 32 numbers of twelve bits: high bits at `high`, low ones at `low` (see `Matrix`).
    unsafe fn join(high: *const i8, low: *const u8) -> Self::Weights;
    /// The 32 numbers at `p`.
    unsafe fn load(p: *const i16) -> Self::Weights;
    /// Writes 32 numbers to `p`.
    unsafe fn keep(weights: Self::Weights, p: *mut i16);
    /// Adds the products of every pair of weights with the pair of activations at `p` (two i16).
    unsafe fn add_products(self, weights: Self::Weights, p: *const i16) -> Self;
    /// Writes the sums to `p[0..16]`.
    unsafe fn store(self, p: *mut i32);
    /// Brings the cache line at `p` near; any address will do.
    #[inline(always)]
    unsafe fn prefetch<T>(_p: *const T) {}
}

/// A number of a panel in memory.
pub(super) trait Number: Copy {
    /// The 32 numbers at `p`.
    unsafe fn read<S: Sums>(p: *const Self) -> S::Weights;
}

impl Number for i8 {
    #[inline(always)]
    unsafe fn read<S: Sums>(p: *const Self) -> S::Weights {
        // SAFETY: the condition of `Sums`.
        unsafe {
            S::prefetch(p.wrapping_add(AHEAD));
            S::widen(p)
        }
    }
}

impl Number for i16 {
    #[inline(always)]
    unsafe fn read<S: Sums>(p: *const Self) -> S::Weights {
        // SAFETY: the condition of `Sums`.
        unsafe { S::load(p) }
    }
}

/// A cache line of numbers: a pair of inputs for each of the outputs.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct WideLine([i16; 2 * LANES]);

impl WideLine {
    pub(super) const ZERO: Self = Self([0; 2 * LANES]);
}

/// How far ahead weights are fetched, in bytes: pages end the CPU's own guesses.
const AHEAD: usize = 1536;

/// Writes a panel of `wide.len()` pairs as 16-bit numbers.
///
/// # Safety
/// The pointers are good for so many pairs; the CPU has the instructions of `S`.
#[inline(always)]
pub(super) unsafe fn widen<S: Sums>(
    numbers: *const i8,
    low: Option<*const u8>,
    wide: &mut [WideLine],
) {
    for (pair, line) in wide.iter_mut().enumerate() {
        // SAFETY: `pair` is one of the pairs.
        unsafe {
            let numbers = numbers.add(pair * 2 * LANES);
            S::prefetch(numbers.wrapping_add(AHEAD));
            let weights = match low {
                None => S::widen(numbers),
                Some(low) => {
                    let low = low.add(pair * LANES);
                    S::prefetch(low.wrapping_add(AHEAD / 2));
                    S::join(numbers, low)
                }
            };
            S::keep(weights, line.0.as_mut_ptr());
        }
    }
}

/// Sums of `T` tokens: `weights` is a panel of `pairs` pairs, token t is at `x + t * stride`.
///
/// # Safety
/// The pointers are good for these shapes; `pairs` is a multiple of `STEP`; the CPU has the instructions
/// of `S`.
#[inline(always)]
unsafe fn block<S: Sums, N: Number, const T: usize>(
    weights: *const N,
    x: *const i16,
    (pairs, stride): (usize, usize),
    sums: *mut [i32; LANES],
) {
    // SAFETY: every index is below `pairs`, and t below T.
    unsafe {
        let rows: [*const i16; T] = std::array::from_fn(|t| x.add(t * stride));
        let mut acc = [S::zero(); T];
        for first in (0..pairs).step_by(STEP) {
            for pair in first..first + STEP {
                let weights = N::read::<S>(weights.add(pair * 2 * LANES));
                for t in 0..T {
                    acc[t] = acc[t].add_products(weights, rows[t].add(2 * pair));
                }
            }
        }
        for (t, acc) in acc.into_iter().enumerate() {
            acc.store(sums.add(t).cast());
        }
    }
}

/// Sums of `sums.len()` tokens, at most `S::TOKENS`, of a panel of `pairs` pairs; x: [tokens, 2 * pairs].
/// Integers are summed over `sum_pairs` pairs, a multiple of `STEP`; their sums are added in order.
///
/// # Safety
/// As `block`.
#[inline(always)]
pub(super) unsafe fn dots<S: Sums, N: Number>(
    weights: *const N,
    x: *const i16,
    (pairs, sum_pairs): (usize, usize),
    sums: &mut [[f32; LANES]],
) {
    const { assert!(S::TOKENS <= TOKENS_MAX) };
    assert!((1..=S::TOKENS).contains(&sums.len()));
    let mut parts = [[0; LANES]; TOKENS_MAX];
    sums.fill([0.0; LANES]);
    for first in (0..pairs).step_by(sum_pairs) {
        let count = sum_pairs.min(pairs - first);
        macro_rules! blocks {
            ($($n:literal)*) => {
                match sums.len() {
                    // What a type never takes is not compiled for it.
                    $($n if $n <= S::TOKENS => block::<S, N, $n>(
                        weights.add(first * 2 * LANES),
                        x.add(2 * first),
                        (count, 2 * pairs),
                        parts.as_mut_ptr(),
                    ),)*
                    _ => unreachable!("at most TOKENS_MAX"),
                }
            };
        }
        // SAFETY: as stated.
        unsafe { blocks!(1 2 3 4 5 6 7 8 9 10 11 12) }
        for (sums, parts) in sums.iter_mut().zip(&parts) {
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum += *part as f32;
            }
        }
    }
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
    unsafe fn join(high: *const i8, low: *const u8) -> Self::Weights {
        // SAFETY: 32 numbers, by the caller.
        let (high, low) = unsafe { (Self::widen(high), low.cast::<[u8; LANES]>().read()) };
        std::array::from_fn(|i| {
            std::array::from_fn(|j| {
                let at = 2 * i + j;
                let bits = low[at % LANES] >> (at / LANES * 4) & 15;
                high[i][j] << 4 | i16::from(bits)
            })
        })
    }
    #[inline(always)]
    unsafe fn load(p: *const i16) -> Self::Weights {
        // SAFETY: 32 numbers, by the caller.
        unsafe { p.cast::<Self::Weights>().read() }
    }
    #[inline(always)]
    unsafe fn keep(weights: Self::Weights, p: *mut i16) {
        // SAFETY: room for 32 numbers, by the caller.
        unsafe { p.cast::<Self::Weights>().write(weights) };
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
