//! The activations of gated layers, eight values at a time.
//!
//! Owns the formulas. They are written in plain Rust, inlined into callers that enable instructions, and
//! round alike everywhere.

use crate::simd::{Lanes, Vector};
use std::array::from_fn;
use std::f32::consts::{FRAC_1_SQRT_2, LOG2_E};

/// Values that are computed together.
pub(super) const WIDTH: usize = 8;

/// sqrt(2 / pi).
const TANH_SCALE: f32 = 0.797_884_6;

/// erf(x) = 1 - t (A0 + t (A1 + ...)) exp(-x^2), t = 1 / (1 + ERF_T x), to 1.5e-7: Abramowitz and Stegun,
/// formula 7.1.26.
const ERF_T: f32 = 0.327_591_1;
const ERF: [f32; 5] = [
    1.061_405_4,
    -1.453_152,
    1.421_413_8,
    -0.284_496_74,
    0.254_829_6,
];

/// What the gate goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x / (1 + exp(-x)).
    Silu,
    /// GELU (arXiv:1606.08415) by the hyperbolic tangent: x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3))).
    GeluTanh,
    /// GELU by the error function: x (1 + erf(x / sqrt(2))) / 2.
    GeluErf,
}

impl Activation {
    /// Each value activated.
    #[inline(always)]
    pub(super) fn of(self, x: [f32; WIDTH]) -> [f32; WIDTH] {
        match self {
            Self::Silu => times_logistic(x, x),
            Self::GeluTanh => {
                let inner =
                    from_fn(|i| 2.0 * TANH_SCALE * (x[i] + 0.044_715 * (x[i] * x[i] * x[i])));
                times_logistic(x, inner)
            }
            Self::GeluErf => gelu_erf(x),
        }
    }
}

/// x / (1 + exp(-y)), through exp(-|y|), which never overflows.
#[inline(always)]
fn times_logistic(x: [f32; WIDTH], y: [f32; WIDTH]) -> [f32; WIDTH] {
    let e = exp_minus(y.map(f32::abs));
    from_fn(|i| {
        let top = if y[i] >= 0.0 { x[i] } else { x[i] * e[i] };
        top / (1.0 + e[i])
    })
}

#[inline(always)]
fn gelu_erf(x: [f32; WIDTH]) -> [f32; WIDTH] {
    let z = x.map(|x| x.abs() * FRAC_1_SQRT_2);
    let e = exp_minus(z.map(|z| z * z));
    from_fn(|i| {
        let t = 1.0 / (1.0 + ERF_T * z[i]);
        // 1 - erf(|z|); each half keeps its precision.
        let rest = t * ERF.iter().fold(0.0, |sum, c| sum * t + c) * e[i];
        0.5 * x[i] * if x[i] >= 0.0 { 2.0 - rest } else { rest }
    })
}

/// exp(-x), x >= 0.
#[inline(always)]
fn exp_minus(x: [f32; WIDTH]) -> [f32; WIDTH] {
    let mut values = x.map(|x| x * -LOG2_E);
    // SAFETY: plain Rust needs no special instructions; the array is good for WIDTH values.
    unsafe {
        let power = Lanes::<WIDTH>::load(values.as_ptr()).exp2();
        power.store(values.as_mut_ptr());
    }
    values
}
