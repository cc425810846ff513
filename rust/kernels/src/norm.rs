//! RMSNorm (arXiv:1910.07467) of rows.
//!
//! Owns the formula: `x / sqrt(mean(x^2) + epsilon) * weight`.

use crate::linear::MatrixError;
use crate::linear::{check_address, check_tokens};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

/// Sums that are kept side by side.
const LANES: usize = 16;

/// The parameters of a norm.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// Address of float32 [hidden].
    pub weight: usize,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

impl Norm {
    /// Raises `Address`, or `Shape` when epsilon is negative or not finite.
    pub(crate) fn check(&self) -> Result<(), MatrixError> {
        if !(self.epsilon.is_finite() && self.epsilon >= 0.0) {
            return Err(MatrixError::Shape("epsilon is negative or not finite"));
        }
        check_address::<f32>("weight", self.weight)
    }
}

/// `1 / sqrt(mean(x^2) + epsilon)`; the order of adding depends on the length alone.
#[inline(always)]
pub(crate) fn factor(x: &[f32], epsilon: f32) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += x * x;
        }
    }
    let rest: f32 = rest.iter().map(|x| x * x).sum();
    let mean = (sums.iter().sum::<f32>() + rest) / x.len() as f32;
    1.0 / (mean + epsilon).sqrt()
}

/// Norms every row of x, float32 [tokens, hidden], to `out`, which may be x.
///
/// # Errors
/// `MatrixError` when a size or an address does not fit; then nothing was read or written.
///
/// # Safety
/// The addresses are those of contiguous tensors of these shapes; they live, and nothing else writes
/// them or reads `out`, during the call; `out` overlaps neither the weight, nor x unless both are the same.
pub unsafe fn rms_norm(
    out: usize,
    x: usize,
    tokens: usize,
    hidden: usize,
    norm: Norm,
) -> Result<(), MatrixError> {
    check_tokens(tokens, hidden)?;
    if tokens == 0 || hidden == 0 {
        return Ok(());
    }
    check_address::<f32>("out", out)?;
    check_address::<f32>("x", x)?;
    norm.check()?;
    let out = with_exposed_provenance_mut::<f32>(out);
    let x = with_exposed_provenance::<f32>(x);
    let weight = with_exposed_provenance::<f32>(norm.weight);
    for start in (0..tokens).map(|token| token * hidden) {
        // SAFETY: rows of [tokens, hidden], as stated. The slice of x is gone when `out` is written.
        unsafe {
            let factor = factor(
                std::slice::from_raw_parts(x.add(start), hidden),
                norm.epsilon,
            );
            for i in 0..hidden {
                *out.add(start + i) = *x.add(start + i) * factor * *weight.add(i);
            }
        }
    }
    Ok(())
}
