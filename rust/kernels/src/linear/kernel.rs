//! The inner loop: a panel of sixteen outputs, or two, against a few tokens.
//!
//! Owns the arithmetic over pointers behind one trait; knows nothing of batches. Weights of 16 bits, or
//! widened to them, meet pairs of activations: one instruction multiplies sixteen pairs and adds each two
//! products to 32 bits, without saturation (unlike the one for 8 bits).

use super::matrix::LANES;

/// Pairs of inputs that a step of the loop takes; divides `Matrix::pairs`.
const STEP: usize = 4;

/// Tokens, and panels, of the widest block.
pub(super) const TOKENS_MAX: usize = 12;
pub(super) const PANELS_MAX: usize = 2;

/// Sums of a panel's outputs for each token of a group, float32.
pub(super) type PanelSums = [[f32; LANES]; TOKENS_MAX];

/// Sums of sixteen outputs, i32.
///
/// Every method is `unsafe` because of one common condition: the CPU has the instructions of the type,
/// and a pointer given to it is good for what the method reads or writes.
pub(super) trait Sums: Copy {
    /// Sixteen pairs of weights as 16-bit numbers.
    type Weights: Copy;
    /// A pair of activations, for each of sixteen outputs.
    type Pair: Copy;

    /// Tokens, and panels, of a block: as many as the registers hold sums for.
    const TOKENS: usize;
    const PANELS: usize;

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
    /// The pair of activations at `p` (two i16).
    unsafe fn pair(p: *const i16) -> Self::Pair;
    /// Adds the products of every pair of weights with the pair of activations. `in_turn`: how many sums are
    /// added to, one after the other; a constant.
    unsafe fn add_products(self, weights: Self::Weights, pair: Self::Pair, in_turn: usize) -> Self;
    /// Adds the sums, each rounded to float32, to `p[0..16]`.
    unsafe fn add_to(self, p: *mut f32);
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

/// Adds to `sums` the products of `T` tokens with `P` panels of `pairs` pairs. Pair i of token t is at
/// `x + i * step + 2 * t`.
///
/// # Safety
/// The pointers are good for these shapes; `pairs` is a multiple of `STEP`; the CPU has the instructions
/// of `S`.
#[inline(always)]
unsafe fn block<S: Sums, N: Number, const T: usize, const P: usize>(
    weights: [*const N; P],
    x: *const i16,
    (pairs, step): (usize, usize),
    sums: &mut [PanelSums],
) {
    // SAFETY: every index is below `pairs`, t below T, and p below P.
    unsafe {
        let mut acc = [[S::zero(); P]; T];
        for first in (0..pairs).step_by(STEP) {
            for pair in first..first + STEP {
                let weights = weights.map(|panel| N::read::<S>(panel.add(pair * 2 * LANES)));
                let x = x.add(pair * step);
                for (t, acc) in acc.iter_mut().enumerate() {
                    let two = S::pair(x.add(2 * t));
                    for (acc, weights) in acc.iter_mut().zip(weights) {
                        *acc = acc.add_products(weights, two, T * P);
                    }
                }
            }
        }
        for (t, acc) in acc.into_iter().enumerate() {
            for (acc, sums) in acc.into_iter().zip(&mut *sums) {
                acc.add_to(sums[t].as_mut_ptr());
            }
        }
    }
}

/// Sums of `tokens` tokens, at most `S::TOKENS`, with `sums.len()` panels, at most `S::PANELS`, of `pairs` pairs;
/// the first ones are at `weights`, the others follow. x and `step`: as `block`. Integers are summed over
/// `sum_pairs` pairs, a multiple of `STEP`; their sums are added in order.
///
/// # Safety
/// As `block`.
#[inline(always)]
pub(super) unsafe fn dots<S: Sums, N: Number>(
    weights: *const N,
    (x, step, tokens): (*const i16, usize, usize),
    (pairs, sum_pairs): (usize, usize),
    sums: &mut [PanelSums],
) {
    const { assert!(S::TOKENS <= TOKENS_MAX && S::PANELS <= PANELS_MAX) };
    assert!((1..=S::TOKENS).contains(&tokens) && (1..=S::PANELS).contains(&sums.len()));
    for sums in &mut *sums {
        sums[..tokens].fill([0.0; LANES]);
    }
    for first in (0..pairs).step_by(sum_pairs) {
        let count = sum_pairs.min(pairs - first);
        let panel = weights.wrapping_add(first * 2 * LANES);
        let next = panel.wrapping_add(pairs * 2 * LANES);
        let x = x.wrapping_add(first * step);
        macro_rules! blocks {
            ($panels:expr, $($n:literal)*) => {
                match tokens {
                    // What a type never takes is not compiled for it.
                    $($n if $n <= S::TOKENS => block::<S, N, $n, _>($panels, x, (count, step), sums),)*
                    _ => unreachable!("at most TOKENS_MAX"),
                }
            };
        }
        // SAFETY: as stated.
        unsafe {
            if S::PANELS == 2 && sums.len() == 2 {
                blocks!([panel, next], 1 2 3 4 5 6 7 8 9 10 11 12);
            } else {
                blocks!([panel], 1 2 3 4 5 6 7 8 9 10 11 12);
            }
        }
    }
}

/// Plain Rust, which the compiler turns into what the target has (SSE2, NEON).
#[derive(Clone, Copy)]
pub(super) struct Portable([i32; LANES]);

impl Sums for Portable {
    type Weights = [[i16; 2]; LANES];
    type Pair = [i32; 2];

    const TOKENS: usize = 2;
    const PANELS: usize = 1;

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
    unsafe fn pair(p: *const i16) -> Self::Pair {
        // SAFETY: two numbers, by the caller.
        unsafe { p.cast::<[i16; 2]>().read() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn add_products(self, weights: Self::Weights, [a, b]: Self::Pair, _: usize) -> Self {
        Self(std::array::from_fn(|i| {
            let weights = weights[i].map(i32::from);
            self.0[i] + (weights[0] * a + weights[1] * b)
        }))
    }
    #[inline(always)]
    unsafe fn add_to(self, p: *mut f32) {
        // SAFETY: sixteen values, by the caller.
        let sums = unsafe { &mut *p.cast::<[f32; LANES]>() };
        for (sum, part) in sums.iter_mut().zip(self.0) {
            *sum += part as f32;
        }
    }
}
