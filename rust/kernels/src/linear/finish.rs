//! What becomes of a panel's sums: stored, added, or gated.
//!
//! Owns the scales and the places in the output.

use super::activation::{Activation, WIDTH};
use super::call::Output;
use super::matrix::{LANES, Matrix, Run};
use std::array::from_fn;
use std::ptr::with_exposed_provenance_mut;

/// A panel's part of the output.
pub(super) struct Finish<'a> {
    output: Output,
    outputs: usize,
    runs: [Run; 2],
    scales: &'a [f32; LANES],
    bias: &'a [f32; LANES],
}

impl<'a> Finish<'a> {
    pub fn new(matrix: &'a Matrix, output: Output, panel: usize) -> Self {
        Self {
            output,
            outputs: matrix.outputs(),
            runs: matrix.runs(panel),
            scales: matrix.scales(panel),
            bias: matrix.bias(panel),
        }
    }

    /// Turns the sums of a token into its outputs.
    ///
    /// # Safety
    /// The output is good for the token, and no other thread uses these values of it.
    #[inline(always)]
    pub unsafe fn token(&self, token: usize, sums: &[f32; LANES], token_scale: f32) {
        let y: [f32; LANES] = from_fn(|i| sums[i] * self.scales[i] * token_scale + self.bias[i]);
        // SAFETY: a run lies inside of the outputs.
        unsafe {
            match self.output {
                Output::Store(out) => {
                    for run in self.runs {
                        let to = places(out, token, self.outputs, run);
                        to.copy_from_slice(&y[run.lane..run.lane + run.count]);
                    }
                }
                Output::Add(out) => {
                    for run in self.runs {
                        let to = places(out, token, self.outputs, run);
                        for (to, y) in to.iter_mut().zip(&y[run.lane..run.lane + run.count]) {
                            *to += y;
                        }
                    }
                }
                Output::Gate(out, activation) => {
                    let z = gate(activation, &y);
                    let to = places(out, token, self.outputs / 2, self.runs[0]);
                    to.copy_from_slice(&z[..self.runs[0].count]);
                }
            }
        }
    }
}

/// The values of a run in the row of a token.
#[inline(always)]
unsafe fn places<'o>(out: usize, token: usize, width: usize, run: Run) -> &'o mut [f32] {
    let start = with_exposed_provenance_mut::<f32>(out);
    // SAFETY: by the caller of `Finish::token`.
    unsafe { std::slice::from_raw_parts_mut(start.add(token * width + run.output), run.count) }
}

#[inline(always)]
fn gate(activation: Activation, y: &[f32; LANES]) -> [f32; WIDTH] {
    let gate = activation.of(from_fn(|i| y[i]));
    from_fn(|i| gate[i] * y[WIDTH + i])
}
