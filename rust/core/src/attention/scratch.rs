//! Memory of one thread for one item, and the fold of spans.
//!
//! Owns sizes; what was allocated is kept from call to call.

use super::kernel::KEYS;
use super::plan::TILE_ROWS;
use super::simd;

/// Lanes of the widest vector.
pub(super) const LANES_MAX: usize = 16;

/// Rows of an item, rounded up to whole vectors of any type.
pub(super) const ROWS_PADDED: usize = TILE_ROWS.next_multiple_of(LANES_MAX);

/// A softmax in the making: max, sum [ROWS_PADDED] and mix [rows, head_dim].
#[derive(Debug)]
pub(super) struct State {
    pub max: Vec<f32>,
    pub sum: Vec<f32>,
    pub mix: Vec<f32>,
}

impl State {
    pub const EMPTY: Self = Self {
        max: Vec::new(),
        sum: Vec::new(),
        mix: Vec::new(),
    };

    pub fn fit(&mut self, head_dim: usize) {
        self.max.resize(ROWS_PADDED, 0.0);
        self.sum.resize(ROWS_PADDED, 0.0);
        self.mix.resize(ROWS_PADDED * head_dim, 0.0);
    }

    /// Nothing seen: a finite lowest max, so that differences are never NaN.
    pub fn clear(&mut self, rows: usize, head_dim: usize) {
        self.max.fill(f32::MIN);
        self.sum.fill(0.0);
        self.mix[..rows * head_dim].fill(0.0);
    }

    /// Folds a later span into this one, row by row.
    pub fn fold(&mut self, rows: usize, max: &[f32], sum: &[f32], mix: &[f32]) {
        let head_dim = mix.len() / rows;
        for row in 0..rows {
            let top = self.max[row].max(max[row]);
            let old = simd::exp2(self.max[row] - top);
            let new = simd::exp2(max[row] - top);
            self.max[row] = top;
            self.sum[row] = self.sum[row] * old + sum[row] * new;
            let range = row * head_dim..(row + 1) * head_dim;
            for (a, b) in self.mix[range.clone()].iter_mut().zip(&mix[range]) {
                *a = *a * old + *b * new;
            }
        }
    }
}

/// Memory of one thread, kept from call to call.
#[derive(Debug)]
pub(super) struct Scratch {
    pub q: Vec<f32>,
    pub limits: Vec<f32>,
    pub scores: Vec<f32>,
    pub fix: Vec<f32>,
    pub offsets: Vec<usize>,
    /// Offsets of the tile after.
    pub next: Vec<usize>,
    /// The span in work.
    pub span: State,
    /// The spans before it.
    pub total: State,
}

impl Scratch {
    pub const EMPTY: Self = Self {
        q: Vec::new(),
        limits: Vec::new(),
        scores: Vec::new(),
        fix: Vec::new(),
        offsets: Vec::new(),
        next: Vec::new(),
        span: State::EMPTY,
        total: State::EMPTY,
    };

    pub fn fit(&mut self, head_dim: usize) {
        self.q.resize(ROWS_PADDED * head_dim, 0.0);
        self.limits.resize(ROWS_PADDED, 0.0);
        self.scores.resize(KEYS * ROWS_PADDED, 0.0);
        self.fix.resize(ROWS_PADDED, 0.0);
        self.offsets.resize(KEYS, 0);
        self.next.resize(KEYS, 0);
        self.span.fit(head_dim);
        self.total.fit(head_dim);
    }
}
