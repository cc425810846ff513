//! The inner loops of attention over raw K/V rows, for any vector type.
//!
//! Owns arithmetic over pointers; knows nothing of batches and pages. Shapes are in values. Scores
//! are in units of log2, so that a weight is `exp2(score - max)`.

mod dots;
mod lanes;
mod mix;
mod stored;

use crate::simd::Vector;
use std::ops::Range;

pub(super) use dots::dots;
pub(super) use lanes::lanes;
pub(super) use stored::{PAIRS_DIM_MAX, Space, Stored, in_pairs, widen};

/// Keys of a tile: what is scored before it is mixed. A multiple of every block below and of every
/// vector; a tile of K and one of V stay in the fast caches.
pub(super) const KEYS: usize = 48;

/// Vectors in a full panel of rows, see `lanes`.
pub(super) const PANEL_VECTORS: usize = 2;

/// A tile of K/V rows, found through `offsets` (values from the start of the cache).
#[derive(Clone, Copy)]
pub(super) struct Tile<E> {
    pub k: *const E,
    pub v: *const E,
    /// [KEYS]; where there is no key, that of another one is repeated.
    pub offsets: *const usize,
    /// Where the rows of `next` are counted from.
    pub next_k: *const E,
    pub next_v: *const E,
    /// [KEYS] the rows that come after these, or these again; only fetched ahead.
    pub next: *const usize,
    /// Whether to bring what comes next near.
    pub fetch: bool,
    /// K as whole numbers without their scales, instead of `k`.
    pub pairs: Option<*const i16>,
    /// What to bring near instead, where this is a copy.
    pub far: Option<Far>,
    /// [KEYS] scales of the K rows; never read when the cache has none.
    pub k_scales: *const f32,
    /// [KEYS] scales of the V rows; never read when the cache has none.
    pub v_scales: *const f32,
    /// 1..=KEYS.
    pub keys: usize,
    /// Position of the first key.
    pub first: usize,
    pub head_dim: usize,
}

/// The K and V rows that come after those of a tile's copy, whatever their type; only fetched ahead.
#[derive(Clone, Copy)]
pub(super) struct Far {
    pub k: *const u8,
    pub v: *const u8,
    /// [KEYS], in values.
    pub next: *const usize,
    pub value_bytes: usize,
}

impl Far {
    /// Brings the rows of some keys near: a few at a time, because a CPU waits when it is asked for more lines at
    /// once than it has buffers for.
    #[inline(always)]
    unsafe fn fetch<V: Vector>(&self, keys: Range<usize>, head_dim: usize) {
        for key in keys {
            // SAFETY: KEYS offsets can be read, by the caller, and a fetch reads nothing.
            unsafe {
                let start = *self.next.add(key) * self.value_bytes;
                for line in (0..head_dim * self.value_bytes).step_by(64) {
                    V::prefetch(self.k.wrapping_add(start + line));
                    V::prefetch(self.v.wrapping_add(start + line));
                }
            }
        }
    }
}

/// The state of some rows; each row has its own softmax.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub count: usize,
    /// Keys whose successors in K were brought near before the mix, at most `keys`.
    pub fetched: usize,
    /// Scaled queries: by lanes [head_dim, padded rows], by dots [rows, head_dim]; where `in_pairs`, int16 [head_dim / 2,
    /// padded rows, 2] and [rows, head_dim], a row in the room of its float32.
    pub q: *const f32,
    /// [padded rows] by what int16 queries are to be multiplied.
    pub q_scales: *const f32,
    /// [padded rows] the first position that a row sees, as float32; never falls.
    pub starts: *const f32,
    /// [padded rows] one more than the last position that a row sees, as float32; never falls.
    pub limits: *const f32,
    /// By lanes [KEYS, padded rows], by dots [rows, KEYS]; scores, then weights.
    pub scores: *mut f32,
    /// [padded rows] the largest score so far.
    pub max: *mut f32,
    /// [padded rows] the sum of weights so far.
    pub sum: *mut f32,
    /// [padded rows] by what this tile scales what was mixed before.
    pub fix: *mut f32,
    /// [rows, head_dim] the mix of V rows so far.
    pub mix: *mut f32,
}

/// Rows of a block of keys.
#[inline(always)]
unsafe fn rows_of<E, const NK: usize>(cache: *const E, offsets: *const usize) -> [*const E; NK] {
    // SAFETY: NK offsets can be read, and are inside of the cache, by the caller.
    std::array::from_fn(|i| unsafe { cache.add(*offsets.add(i)) })
}
