//! The inner loops of attention over raw K/V rows, for any vector type.
//!
//! Owns arithmetic over pointers; knows nothing of batches and pages. Shapes are in values. Scores
//! are in units of log2, so that a weight is `exp2(score - max)`.

#![expect(
    clippy::needless_range_loop,
    reason = "register blocks are indexed by constants, which the compiler unrolls"
)]

use super::simd::Vector;

/// Keys of a tile: what is scored before it is mixed. A multiple of every block below and of every
/// vector; a tile of K and one of V stay in the fast caches.
pub(super) const KEYS: usize = 48;

/// Vectors in a full panel of rows, see `lanes`.
pub(super) const PANEL_VECTORS: usize = 2;

/// Keys that are scored together. A block of 6 by 2 vectors keeps 12 sums and 3 operands in the 16
/// registers of AVX2 (the shape of BLIS' Haswell sgemm kernel, Van Zee and van de Geijn 2015).
const LANES_KEYS: usize = 6;

/// Keys that are scored together by dot products.
const DOTS_KEYS: usize = 4;

/// Values in a cache line.
const CACHE_LINE: usize = 16;

/// A tile of K/V rows, found through `offsets` (values from the start of the cache).
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub k: *const f32,
    pub v: *const f32,
    /// [KEYS]; past `keys` the last one is repeated.
    pub offsets: *const usize,
    /// [KEYS] rows of the tile after this one, or of this one again; only fetched ahead.
    pub next: *const usize,
    /// Whether to bring the next tile near.
    pub fetch: bool,
    /// 1..=KEYS.
    pub keys: usize,
    /// Position of the first key.
    pub first: usize,
    pub head_dim: usize,
}

/// The state of some rows; each row has its own softmax.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub rows: usize,
    /// Scaled queries: by lanes [head_dim, padded rows], by dots [rows, head_dim].
    pub q: *const f32,
    /// [padded rows] positions that a row sees, as float32.
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

/// Lanes run over rows: a panel of `NV` vectors of rows against a tile. No K or V row is moved: a K
/// value is broadcast against a vector of queries, then a weight against vectors of a V row.
///
/// # Safety
/// Every pointer is good for the shape it states; the CPU has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn lanes<V: Vector, const NV: usize>(tile: &Tile, rows: &Rows) {
    let width = NV * V::LANES;
    // SAFETY: key + i stays below KEYS, a multiple of the block.
    unsafe {
        for key in (0..tile.keys).step_by(LANES_KEYS) {
            let k = rows_of(tile.k, tile.offsets.add(key));
            let v = rows_of(tile.v, tile.offsets.add(key));
            score_lanes::<V, NV>(k, v, rows.q, tile.head_dim, rows.scores.add(key * width));
        }
        softmax_lanes::<V, NV>(tile, rows);
        mix::<V>(tile, rows, width, 1);
    }
}

/// Lanes run over `head_dim`: few rows against a tile, bound by reading K and V.
///
/// # Safety
/// As `lanes`; `head_dim` is a multiple of `V::LANES`.
#[inline(always)]
pub(super) unsafe fn dots<V: Vector>(tile: &Tile, rows: &Rows) {
    // SAFETY: as in `lanes`; row + MR stays within `rows`.
    unsafe {
        for key in (0..tile.keys).step_by(DOTS_KEYS) {
            let k = rows_of(tile.k, tile.offsets.add(key));
            let v = rows_of(tile.v, tile.offsets.add(key));
            for row in (0..rows.rows).step_by(2) {
                let q = rows.q.add(row * tile.head_dim);
                let scores = rows.scores.add(row * KEYS + key);
                match rows.rows - row {
                    1 => score_dots::<V, 1>(k, v, q, tile.head_dim, scores),
                    _ => score_dots::<V, 2>(k, v, q, tile.head_dim, scores),
                }
            }
        }
        for row in 0..rows.rows {
            softmax_row::<V>(tile, rows, row);
        }
        mix::<V>(tile, rows, 1, KEYS);
    }
}

/// Rows of a block of keys.
#[inline(always)]
unsafe fn rows_of<const NK: usize>(cache: *const f32, offsets: *const usize) -> [*const f32; NK] {
    // SAFETY: NK offsets can be read, and are inside of the cache, by the caller.
    std::array::from_fn(|i| unsafe { cache.add(*offsets.add(i)) })
}

/// Scores [LANES_KEYS keys, NV * LANES rows] = K rows times a panel of queries [head_dim, NV * LANES].
///
/// `v`: the V rows of the keys, brought near meanwhile; while V is mixed, the K rows of the next tile
/// are. Pages lie anywhere, so that the CPU cannot guess what comes.
#[inline(always)]
unsafe fn score_lanes<V: Vector, const NV: usize>(
    k: [*const f32; LANES_KEYS],
    v: [*const f32; LANES_KEYS],
    q: *const f32,
    head_dim: usize,
    scores: *mut f32,
) {
    let width = NV * V::LANES;
    // SAFETY: the shapes above, by the caller.
    unsafe {
        let mut acc = [[V::splat(0.0); NV]; LANES_KEYS];
        for line in (0..head_dim).step_by(CACHE_LINE) {
            for row in v {
                V::prefetch(row.wrapping_add(line));
            }
            for i in line..head_dim.min(line + CACHE_LINE) {
                let mut panel = [V::splat(0.0); NV];
                for (j, vector) in panel.iter_mut().enumerate() {
                    *vector = V::load(q.add(i * width + j * V::LANES));
                }
                for key in 0..LANES_KEYS {
                    let x = V::splat(*k[key].add(i));
                    for j in 0..NV {
                        acc[key][j] = x.mul_add(panel[j], acc[key][j]);
                    }
                }
            }
        }
        for key in 0..LANES_KEYS {
            for j in 0..NV {
                acc[key][j].store(scores.add(key * width + j * V::LANES));
            }
        }
    }
}

/// Scores [MR rows, DOTS_KEYS keys] of a matrix with rows of KEYS.
#[inline(always)]
unsafe fn score_dots<V: Vector, const MR: usize>(
    k: [*const f32; DOTS_KEYS],
    v: [*const f32; DOTS_KEYS],
    q: *const f32,
    head_dim: usize,
    scores: *mut f32,
) {
    // SAFETY: `q` is [MR, head_dim], K rows are [head_dim], by the caller.
    unsafe {
        let mut acc = [[V::splat(0.0); DOTS_KEYS]; MR];
        for line in (0..head_dim).step_by(CACHE_LINE) {
            for row in v {
                V::prefetch(row.wrapping_add(line));
            }
            for i in (line..head_dim.min(line + CACHE_LINE)).step_by(V::LANES) {
                let mut x = [V::splat(0.0); DOTS_KEYS];
                for key in 0..DOTS_KEYS {
                    x[key] = V::load(k[key].add(i));
                }
                for row in 0..MR {
                    let y = V::load(q.add(row * head_dim + i));
                    for key in 0..DOTS_KEYS {
                        acc[row][key] = x[key].mul_add(y, acc[row][key]);
                    }
                }
            }
        }
        for (row, sums) in acc.into_iter().enumerate() {
            V::store_sums(sums, scores.add(row * KEYS));
        }
    }
}

/// Turns the scores of a panel into weights, and moves max, sum and fix on.
#[inline(always)]
unsafe fn softmax_lanes<V: Vector, const NV: usize>(tile: &Tile, rows: &Rows) {
    let width = NV * V::LANES;
    // SAFETY: [keys, width] scores and [width] states, by the caller.
    unsafe {
        // The first row of a panel sees least.
        let masked = (tile.first + tile.keys) as f32 > *rows.limits;
        for j in 0..NV {
            let lane = j * V::LANES;
            let old = V::load(rows.max.add(lane));
            let limit = V::load(rows.limits.add(lane));
            let mut max = old;
            for key in 0..tile.keys {
                let at = rows.scores.add(key * width + lane);
                let mut score = V::load(at);
                if masked {
                    let position = V::splat((tile.first + key) as f32);
                    let nothing = V::splat(f32::NEG_INFINITY);
                    score = V::select_less(position, limit, score, nothing);
                    score.store(at);
                }
                max = score.max(max);
            }
            let fix = old.sub(max).exp2();
            let mut sum = V::load(rows.sum.add(lane)).mul(fix);
            for key in 0..tile.keys {
                let at = rows.scores.add(key * width + lane);
                let weight = V::load(at).sub(max).exp2();
                weight.store(at);
                sum = sum.add(weight);
            }
            max.store(rows.max.add(lane));
            sum.store(rows.sum.add(lane));
            fix.store(rows.fix.add(lane));
        }
    }
}

/// Turns the scores of one row into weights, and moves its max, sum and fix on.
#[inline(always)]
unsafe fn softmax_row<V: Vector>(tile: &Tile, rows: &Rows, row: usize) {
    // SAFETY: a row of scores has KEYS values and KEYS is a multiple of LANES.
    unsafe {
        let scores = rows.scores.add(row * KEYS);
        let seen = (*rows.limits.add(row) as usize).saturating_sub(tile.first);
        let end = tile.keys.next_multiple_of(V::LANES);
        for key in seen.min(tile.keys)..end {
            *scores.add(key) = f32::NEG_INFINITY;
        }
        let old = *rows.max.add(row);
        let mut largest = V::splat(old);
        for key in (0..end).step_by(V::LANES) {
            largest = V::load(scores.add(key)).max(largest);
        }
        let max = largest.largest();
        let mut sum = V::splat(0.0);
        for key in (0..end).step_by(V::LANES) {
            let weight = V::load(scores.add(key)).sub(V::splat(max)).exp2();
            weight.store(scores.add(key));
            sum = sum.add(weight);
        }
        let fix = super::simd::exp2(old - max);
        *rows.max.add(row) = max;
        *rows.sum.add(row) = *rows.sum.add(row) * fix + sum.sum();
        *rows.fix.add(row) = fix;
    }
}

/// mix = mix * fix + weights times V rows; the weight of (row, key) is at
/// `scores + key * by_key + row * by_row`.
#[inline(always)]
unsafe fn mix<V: Vector>(tile: &Tile, rows: &Rows, by_key: usize, by_row: usize) {
    for row in (0..rows.rows).step_by(6) {
        // SAFETY: row + MR stays within `rows`. Blocks keep 8 to 12 sums in registers.
        unsafe {
            match rows.rows - row {
                1 => mix_rows::<V, 1, 8>(tile, rows, row, by_key, by_row),
                2 => mix_rows::<V, 2, 4>(tile, rows, row, by_key, by_row),
                3 => mix_rows::<V, 3, 3>(tile, rows, row, by_key, by_row),
                4 => mix_rows::<V, 4, 2>(tile, rows, row, by_key, by_row),
                5 => mix_rows::<V, 5, 2>(tile, rows, row, by_key, by_row),
                _ => mix_rows::<V, 6, 2>(tile, rows, row, by_key, by_row),
            }
        }
    }
}

#[inline(always)]
unsafe fn mix_rows<V: Vector, const MR: usize, const NV: usize>(
    tile: &Tile,
    rows: &Rows,
    row: usize,
    by_key: usize,
    by_row: usize,
) {
    let (mut i, end) = (0, tile.head_dim);
    // SAFETY: i + NV * LANES stays within `head_dim`, a multiple of LANES.
    unsafe {
        let weights = rows.scores.add(row * by_row);
        while i + NV * V::LANES <= end {
            mix_block::<V, MR, NV>(tile, rows, (row, i), weights, by_key, by_row);
            i += NV * V::LANES;
        }
        while NV > 2 && i + 2 * V::LANES <= end {
            mix_block::<V, MR, 2>(tile, rows, (row, i), weights, by_key, by_row);
            i += 2 * V::LANES;
        }
        while i < end {
            mix_block::<V, MR, 1>(tile, rows, (row, i), weights, by_key, by_row);
            i += V::LANES;
        }
    }
}

/// One register block of `mix`: MR rows, NV vectors of `head_dim`.
#[inline(always)]
unsafe fn mix_block<V: Vector, const MR: usize, const NV: usize>(
    tile: &Tile,
    rows: &Rows,
    (row, i): (usize, usize),
    weights: *const f32,
    by_key: usize,
    by_row: usize,
) {
    let fetch = tile.fetch && row == 0;
    // SAFETY: the shapes in `Tile` and `Rows`, by the caller.
    unsafe {
        let mut acc = [[V::splat(0.0); NV]; MR];
        for r in 0..MR {
            let fix = V::splat(*rows.fix.add(row + r));
            let from = rows.mix.add((row + r) * tile.head_dim + i);
            for j in 0..NV {
                acc[r][j] = V::load(from.add(j * V::LANES)).mul(fix);
            }
        }
        for key in 0..tile.keys {
            let v = tile.v.add(*tile.offsets.add(key) + i);
            if fetch {
                let k = tile.k.wrapping_add(*tile.next.add(key) + i);
                for line in (0..NV * V::LANES).step_by(CACHE_LINE) {
                    V::prefetch(k.wrapping_add(line));
                }
            }
            let mut x = [V::splat(0.0); NV];
            for (j, vector) in x.iter_mut().enumerate() {
                *vector = V::load(v.add(j * V::LANES));
            }
            for r in 0..MR {
                let weight = V::splat(*weights.add(key * by_key + r * by_row));
                for j in 0..NV {
                    acc[r][j] = weight.mul_add(x[j], acc[r][j]);
                }
            }
        }
        for r in 0..MR {
            let to = rows.mix.add((row + r) * tile.head_dim + i);
            for j in 0..NV {
                acc[r][j].store(to.add(j * V::LANES));
            }
        }
    }
}
