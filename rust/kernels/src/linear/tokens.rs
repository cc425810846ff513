//! Activations as 16-bit numbers with a scale for each token.
//!
//! Owns the rounding, and the norm in front of it. The numbers have as many bits as the i32 sums can hold:
//! 127 * most * inputs < 2^31, that is 14 bits and a sign at 1,024 inputs and 9 at 24,576; with weights of
//! 12 bits 2047 * most * 128 < 2^31, that is 13 bits and a sign, since such a sum has at most 128 inputs.

use super::call::Input;
use super::groups::Groups;
use super::matrix::{INPUTS_MAX, Matrix, Width};
use crate::level::IntLevel;
use crate::norm;
use crate::pool::{self, Work};
use crate::quantise::{NOT_FINITE, ROUND};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;

/// Values of an item of the sharing.
const ITEM_VALUES: usize = 32 << 10;

/// Numbers of some tokens.
#[derive(Debug)]
pub(super) struct Tokens {
    /// [pairs, tokens, 2] for one group after the other; zero past the inputs.
    numbers: Vec<i16>,
    /// [tokens]; NaN where a value is not finite.
    scales: Vec<f32>,
    /// Numbers of a token: the inputs, padded.
    width: usize,
}

impl Tokens {
    /// # Safety
    /// x is good for [tokens, inputs] of the matrix, and the weights of the norm for [inputs].
    pub unsafe fn new(input: Input, matrix: &Matrix, groups: Groups, level: IntLevel) -> Self {
        let (inputs, width) = (matrix.inputs(), 2 * matrix.pairs());
        let mut tokens = Self {
            numbers: vec![0; input.tokens * width],
            scales: vec![0.0; input.tokens],
            width,
        };
        let work = Quantise {
            input,
            inputs,
            width,
            groups,
            most: most(inputs, matrix.width()),
            tokens_each: (ITEM_VALUES / inputs).max(1),
            numbers: tokens.numbers.as_mut_ptr().expose_provenance(),
            scales: tokens.scales.as_mut_ptr().expose_provenance(),
            level,
        };
        if work.items() == 1 {
            work.run(0);
        } else {
            pool::share(Arc::new(work));
        }
        tokens
    }

    /// The numbers of the group that begins with a token.
    pub fn of_group(&self, first: usize) -> *const i16 {
        self.numbers[first * self.width..].as_ptr()
    }

    pub fn scale(&self, token: usize) -> f32 {
        self.scales[token]
    }
}

/// The largest number of an activation, so that no sum of products with weights overflows.
fn most(inputs: usize, width: Width) -> f32 {
    const { assert!(i32::MAX as usize / (127 * INPUTS_MAX) >= 127) };
    let summed = inputs.min(2 * width.sum_pairs());
    (i32::MAX as usize / (width.most() as usize * summed)).min(i16::MAX as usize) as f32
}

struct Quantise {
    input: Input,
    inputs: usize,
    width: usize,
    groups: Groups,
    most: f32,
    tokens_each: usize,
    numbers: usize,
    scales: usize,
    level: IntLevel,
}

impl Work for Quantise {
    fn items(&self) -> usize {
        self.input.tokens.div_ceil(self.tokens_each)
    }

    fn run(&self, i: usize) {
        // SAFETY: `Tokens::new` was promised good inputs; its own memory is good until every item is
        // done; each item has its own tokens; the CPU has the instructions of the level.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if self.level != IntLevel::Portable {
                return quantise_avx2(self, i);
            }
            quantise(self, i);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn quantise_avx2(work: &Quantise, item: usize) {
    // SAFETY: as in `Work::run`.
    unsafe { quantise(work, item) }
}

#[inline(always)]
unsafe fn quantise(work: &Quantise, item: usize) {
    let first = item * work.tokens_each;
    let end = work.input.tokens.min(first + work.tokens_each);
    let x = with_exposed_provenance::<f32>(work.input.x);
    let numbers = with_exposed_provenance_mut::<i16>(work.numbers);
    let scales = with_exposed_provenance_mut::<f32>(work.scales);
    let mut row_numbers = vec![0; work.width];
    for token in first..end {
        let group = work.groups.of_token(token);
        // SAFETY: rows of the shapes above; the pairs of this token in those of its group.
        unsafe {
            let row = std::slice::from_raw_parts(x.add(token * work.inputs), work.inputs);
            let to = &mut row_numbers[..work.inputs];
            *scales.add(token) = match work.input.norm {
                None => quantise_row(row.iter().copied(), work.most, to),
                Some(norm) => {
                    let weight = with_exposed_provenance::<f32>(norm.weight);
                    let weight = std::slice::from_raw_parts(weight, work.inputs);
                    let factor = norm::factor(row, norm.epsilon);
                    let values = row.iter().zip(weight).map(|(x, w)| x * factor * w);
                    quantise_row(values, work.most, to)
                }
            };
            let to = numbers.add(group.start * work.width + 2 * (token - group.start));
            for (pair, two) in row_numbers.as_chunks::<2>().0.iter().enumerate() {
                to.add(pair * 2 * group.len())
                    .cast::<[i16; 2]>()
                    .write(*two);
            }
        }
    }
}

/// Fills `to` and returns the scale: value = number * scale, to half a scale. A row that is not finite
/// gives zeros and NaN, so that it is seen in all of its outputs.
#[inline(always)]
fn quantise_row(values: impl Iterator<Item = f32> + Clone, most: f32, to: &mut [i16]) -> f32 {
    let magnitudes = values.clone().map(|x| x.to_bits() & !(1 << 31));
    let largest = magnitudes.fold(0, u32::max);
    if largest >= NOT_FINITE {
        to.fill(0);
        return f32::NAN;
    }
    // Normal, so that its inverse is finite; smaller values count as zero.
    let scale = (f32::from_bits(largest) / most).max(f32::MIN_POSITIVE);
    let inverse = 1.0 / scale;
    for (to, x) in to.iter_mut().zip(values) {
        *to = (x * inverse + ROUND).to_bits() as i16;
    }
    scale
}
