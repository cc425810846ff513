//! Memory of one thread for one item, and the fold of spans.
//!
//! Owns sizes; what was allocated is kept from call to call.

use super::kernel::{KEYS, Rows, Space, Tile};
use super::plan::TILE_ROWS;
use crate::simd::{self, LANES_MAX, Vector};
use std::ops::{Deref, DerefMut, Range};

/// Rows of an item, rounded up to whole vectors of any type.
pub(super) const ROWS_PADDED: usize = TILE_ROWS.next_multiple_of(LANES_MAX);

/// Scales in a cache line.
const SCALES_LINE: usize = 16;

/// A cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Float32 values that start at a cache line, so that no vector lies across two.
#[derive(Debug)]
pub(super) struct Values(Vec<Line>);

impl Values {
    pub const EMPTY: Self = Self(Vec::new());

    /// Room for `count` values; new ones are zero.
    pub fn fit(&mut self, count: usize) {
        self.0.resize(count.div_ceil(16), Line([0.0; 16]));
    }
}

impl Deref for Values {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: a line is 16 values and nothing else.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * 16) }
    }
}

impl DerefMut for Values {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * 16) }
    }
}

/// Which keys of which head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Position of the first key.
    pub first: usize,
    /// 1..=KEYS.
    pub keys: usize,
    /// Rows of the cache from the head that was gathered to this one.
    pub rows_before: usize,
    /// The same for the head that comes next in this tile; None after the last one.
    pub next: Option<usize>,
    pub head_dim: usize,
}

/// Rows of the cache that lie side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// The first one's place in the tile.
    pub key: usize,
    /// The first one, counted in rows of the cache.
    pub row: usize,
    pub count: usize,
}

/// Where the K/V rows of some positions are, for the first head of an item.
#[derive(Debug)]
pub(super) struct Found {
    pub positions: Range<usize>,
    pub runs: Vec<Run>,
    /// [KEYS] where each row starts, in values.
    pub offsets: Vec<usize>,
}

impl Found {
    const EMPTY: Self = Self {
        positions: 0..0,
        runs: Vec::new(),
        offsets: Vec::new(),
    };

    /// What was found is of another item.
    fn forget(&mut self) {
        self.positions = 0..0;
        self.offsets.resize(KEYS, 0);
    }
}

/// A softmax in the making: max, sum [ROWS_PADDED] and mix [rows, head_dim].
#[derive(Debug)]
pub(super) struct State {
    pub max: Values,
    pub sum: Values,
    pub mix: Values,
}

impl State {
    pub const EMPTY: Self = Self {
        max: Values::EMPTY,
        sum: Values::EMPTY,
        mix: Values::EMPTY,
    };

    pub fn fit(&mut self, head_dim: usize) {
        self.max.fit(ROWS_PADDED);
        self.sum.fit(ROWS_PADDED);
        self.mix.fit(ROWS_PADDED * head_dim);
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
    pub q: Values,
    /// [ROWS_PADDED] of int16 queries.
    pub q_scales: Values,
    pub starts: Values,
    pub limits: Values,
    scores: Values,
    fix: Values,
    /// The rows of the tile in work.
    pub here: Found,
    /// The rows of the tile after it.
    pub ahead: Found,
    k_scales: Values,
    v_scales: Values,
    /// A tile of K as float32, where it is held in less.
    near_k: Values,
    /// A tile of V as float32, where it is held in less.
    near_v: Values,
    /// Where the rows of `near_k` and `near_v` start.
    near_offsets: Vec<usize>,
    /// The span in work.
    pub span: State,
    /// The spans before it.
    pub total: State,
}

impl Scratch {
    pub const EMPTY: Self = Self {
        q: Values::EMPTY,
        q_scales: Values::EMPTY,
        starts: Values::EMPTY,
        limits: Values::EMPTY,
        scores: Values::EMPTY,
        fix: Values::EMPTY,
        here: Found::EMPTY,
        ahead: Found::EMPTY,
        k_scales: Values::EMPTY,
        v_scales: Values::EMPTY,
        near_k: Values::EMPTY,
        near_v: Values::EMPTY,
        near_offsets: Vec::new(),
        span: State::EMPTY,
        total: State::EMPTY,
    };

    pub fn fit(&mut self, head_dim: usize) {
        self.q.fit(ROWS_PADDED * head_dim);
        self.q_scales.fit(ROWS_PADDED);
        self.starts.fit(ROWS_PADDED);
        self.limits.fit(ROWS_PADDED);
        self.scores.fit(KEYS * ROWS_PADDED);
        self.fix.fit(ROWS_PADDED);
        self.here.forget();
        self.ahead.forget();
        self.k_scales.fit(KEYS);
        self.v_scales.fit(KEYS);
        self.near_k.fit(KEYS * head_dim);
        self.near_v.fit(KEYS * head_dim);
        self.near_offsets.clear();
        self.near_offsets
            .extend((0..KEYS).map(|key| key * head_dim));
        self.span.fit(head_dim);
        self.total.fit(head_dim);
    }

    /// The tile that was gathered, in a cache at `k` and `v`.
    pub fn tile<E>(&self, k: *const E, v: *const E, place: &Place) -> Tile<E> {
        let skip = place.rows_before * place.head_dim;
        let (next, ahead) = match place.next {
            Some(rows) => (&self.here, rows * place.head_dim),
            None => (&self.ahead, 0),
        };
        Tile {
            k: k.wrapping_add(skip),
            v: v.wrapping_add(skip),
            offsets: self.here.offsets.as_ptr(),
            next_k: k.wrapping_add(ahead),
            next_v: v.wrapping_add(ahead),
            next: next.offsets.as_ptr(),
            fetch: true,
            pairs: None,
            far: None,
            k_scales: self.k_scales.as_ptr(),
            v_scales: self.v_scales.as_ptr(),
            keys: place.keys,
            first: place.first,
            head_dim: place.head_dim,
        }
    }

    /// Gathers the scales of the rows that were gathered, and brings those of the next tile near.
    ///
    /// # Safety
    /// The pointers are good for the scales of all rows of the cache.
    #[inline(always)]
    pub unsafe fn take_scales<V: Vector>(
        &mut self,
        k_scales: *const f32,
        v_scales: *const f32,
        place: &Place,
    ) {
        for run in &self.ahead.runs {
            for row in (run.row..run.row + run.count).step_by(SCALES_LINE) {
                let row = row + place.rows_before;
                // SAFETY: a fetch reads nothing.
                unsafe {
                    V::prefetch(k_scales.wrapping_add(row));
                    V::prefetch(v_scales.wrapping_add(row));
                }
            }
        }
        let lead = self.here.runs[0].key;
        let sides = [
            (k_scales, &mut self.k_scales),
            (v_scales, &mut self.v_scales),
        ];
        for (scales, to) in sides {
            for run in &self.here.runs {
                let row = run.row + place.rows_before;
                // SAFETY: as stated.
                let from = unsafe { std::slice::from_raw_parts(scales.add(row), run.count) };
                let (lines, rest) = from.as_chunks::<SCALES_LINE>();
                let to = &mut to[run.key..run.key + run.count];
                let (to_lines, to_rest) = to.as_chunks_mut::<SCALES_LINE>();
                for (to, from) in to_lines.iter_mut().zip(lines) {
                    *to = *from;
                }
                for (to, from) in to_rest.iter_mut().zip(rest) {
                    *to = *from;
                }
            }
            let first = to[lead];
            to[..lead].fill(first);
        }
    }

    /// Room for the tile as float32.
    pub fn space(&mut self) -> Space {
        Space {
            k: self.near_k.as_mut_ptr(),
            v: self.near_v.as_mut_ptr(),
            offsets: self.near_offsets.as_ptr(),
        }
    }

    /// The state of `rows` rows from row `start` on of a head whose first row is `first`.
    pub fn rows_from(&mut self, first: usize, start: usize, rows: usize, head_dim: usize) -> Rows {
        let own = first + start;
        Rows {
            count: rows,
            fetched: 0,
            q: self.q[own * head_dim..].as_ptr(),
            q_scales: self.q_scales[own..].as_ptr(),
            starts: self.starts[start..].as_ptr(),
            limits: self.limits[start..].as_ptr(),
            scores: self.scores.as_mut_ptr(),
            max: self.span.max[own..].as_mut_ptr(),
            sum: self.span.sum[own..].as_mut_ptr(),
            fix: self.fix[start..].as_mut_ptr(),
            mix: self.span.mix[own * head_dim..].as_mut_ptr(),
        }
    }
}
