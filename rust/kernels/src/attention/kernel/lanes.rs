//! Many rows against a tile: lanes run over rows, as in a small matrix product.
//!
//! No K or V row is moved: a K value is broadcast against vectors of queries, then a weight against
//! vectors of a V row. Bound by arithmetic.

#![expect(
    clippy::needless_range_loop,
    reason = "register blocks are indexed by constants, which the compiler unrolls"
)]

use super::mix::mix;
use super::{KEYS, PANEL_VECTORS, Rows, Tile, rows_of};
use crate::simd::Vector;

/// Values in a cache line.
const LINE: usize = 16;

/// A panel of one or two vectors of rows against a tile.
///
/// A block of 6 keys by 2 vectors keeps 12 sums and 3 operands in the 16 registers of AVX2, and 12
/// sums in flight hide the latency of two FMA units (the shape of BLIS' Haswell sgemm kernel, Van Zee
/// and van de Geijn 2015). 4 keys by 3 vectors load less, but the compiler spills them.
///
/// # Safety
/// Every pointer is good for the shape it states; the CPU has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn lanes<V: Vector>(tile: &Tile<f32>, rows: &Rows) {
    // SAFETY: there are at most PANEL_VECTORS vectors of rows.
    unsafe {
        match (rows.count <= V::LANES, V::BLOCKS) {
            (true, true) => weigh::<V, 1, 12>(tile, rows),
            (false, true) => weigh::<V, PANEL_VECTORS, 6>(tile, rows),
            (true, false) => weigh::<V, 1, 1>(tile, rows),
            (false, false) => weigh::<V, PANEL_VECTORS, 1>(tile, rows),
        }
        let width = rows.count.next_multiple_of(V::LANES);
        mix::<V, f32>(tile, rows, width, 1);
    }
}

/// Weights [keys, NV * LANES] of a panel.
#[inline(always)]
unsafe fn weigh<V: Vector, const NV: usize, const NK: usize>(tile: &Tile<f32>, rows: &Rows) {
    const { assert!(KEYS.is_multiple_of(NK)) };
    // SAFETY: key + i stays below KEYS, a multiple of the block.
    unsafe {
        for key in (0..tile.keys).step_by(NK) {
            if let Some(far) = &tile.far {
                far.fetch::<V>(key..key + NK, tile.head_dim);
            }
            let scores = rows.scores.add(key * NV * V::LANES);
            match tile.pairs {
                Some(k) if V::PAIRS => score_pairs::<V, NV, NK>(tile, k, key, rows, scores),
                _ => score::<V, NV, NK>(tile, key, rows.q, scores),
            }
        }
        softmax::<V, NV>(tile, rows);
    }
}

/// Scores [NK keys, NV * LANES rows] = K rows times a panel of queries [head_dim, NV * LANES].
///
/// The V rows of the keys are brought near meanwhile; while V is mixed, the K rows of the next tile
/// are. Pages lie anywhere, so that the CPU cannot guess what comes.
#[inline(always)]
unsafe fn score<V: Vector, const NV: usize, const NK: usize>(
    tile: &Tile<f32>,
    key: usize,
    q: *const f32,
    scores: *mut f32,
) {
    let width = NV * V::LANES;
    // SAFETY: the shapes above, by the caller.
    unsafe {
        let k: [*const f32; NK] = rows_of(tile.k, tile.offsets.add(key));
        let v: [*const f32; NK] = rows_of(tile.v, tile.offsets.add(key));
        let mut acc = [[V::splat(0.0); NV]; NK];
        for line in (0..tile.head_dim).step_by(LINE) {
            if tile.fetch {
                for row in v {
                    V::prefetch(row.wrapping_add(line));
                }
            }
            for i in line..tile.head_dim.min(line + LINE) {
                let mut panel = [V::splat(0.0); NV];
                for (j, vector) in panel.iter_mut().enumerate() {
                    *vector = V::load(q.add(i * width + j * V::LANES));
                }
                for n in 0..NK {
                    let x = V::splat(*k[n].add(i));
                    for j in 0..NV {
                        acc[n][j] = x.mul_add(panel[j], acc[n][j]);
                    }
                }
            }
        }
        for n in 0..NK {
            for j in 0..NV {
                acc[n][j].store(scores.add(n * width + j * V::LANES));
            }
        }
    }
}

/// The same in whole numbers: K rows `k` times a panel [head_dim / 2, NV * LANES rows, 2], two products in one
/// instruction; then the scales of both.
#[inline(always)]
unsafe fn score_pairs<V: Vector, const NV: usize, const NK: usize>(
    tile: &Tile<f32>,
    k: *const i16,
    key: usize,
    rows: &Rows,
    scores: *mut f32,
) {
    let width = NV * V::LANES;
    // SAFETY: the shapes above, by the caller.
    unsafe {
        let q = rows.q.cast::<i16>();
        let k: [*const i16; NK] = rows_of(k, tile.offsets.add(key));
        let mut acc = [[V::splat(0.0); NV]; NK];
        for i in (0..tile.head_dim).step_by(2) {
            for n in 0..NK {
                for j in 0..NV {
                    let lanes = q.add(i * width + 2 * j * V::LANES);
                    acc[n][j] = acc[n][j].add_pairs(lanes, k[n].add(i));
                }
            }
        }
        let mut scales = [V::splat(0.0); NV];
        for (j, scale) in scales.iter_mut().enumerate() {
            *scale = V::load(rows.q_scales.add(j * V::LANES));
        }
        for n in 0..NK {
            let k_scale = V::splat(*tile.k_scales.add(key + n));
            for j in 0..NV {
                let score = acc[n][j].pairs_sum().mul(scales[j].mul(k_scale));
                score.store(scores.add(n * width + j * V::LANES));
            }
        }
    }
}

/// Turns the scores of a panel into weights, and moves max, sum and fix on.
#[inline(always)]
unsafe fn softmax<V: Vector, const NV: usize>(tile: &Tile<f32>, rows: &Rows) {
    let width = NV * V::LANES;
    // SAFETY: [keys, width] scores and [width] states, by the caller.
    unsafe {
        // The first row of a panel sees least of what is new, the last least of what is old.
        let masked = (tile.first + tile.keys) as f32 > *rows.limits
            || (tile.first as f32) < *rows.starts.add(width - 1);
        for j in 0..NV {
            let lane = j * V::LANES;
            if masked {
                mask::<V>(tile, rows, lane, width);
            }
            let old = V::load(rows.max.add(lane));
            let mut max = old;
            for key in 0..tile.keys {
                max = V::load(rows.scores.add(key * width + lane)).max(max);
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

/// Gives the keys that a row does not see a score of negative infinity.
#[inline(always)]
unsafe fn mask<V: Vector>(tile: &Tile<f32>, rows: &Rows, lane: usize, width: usize) {
    // SAFETY: as in `softmax`.
    unsafe {
        let nothing = V::splat(f32::NEG_INFINITY);
        let start = V::load(rows.starts.add(lane));
        let limit = V::load(rows.limits.add(lane));
        for key in 0..tile.keys {
            let at = rows.scores.add(key * width + lane);
            let position = V::splat((tile.first + key) as f32);
            let score = V::select_less(position, limit, V::load(at), nothing);
            V::select_less(position, start, nothing, score).store(at);
        }
    }
}
