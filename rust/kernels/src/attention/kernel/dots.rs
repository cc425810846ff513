//! Few rows against a tile: lanes run over `head_dim`. Bound by reading K and V.

#![expect(
    clippy::needless_range_loop,
    reason = "register blocks are indexed by constants, which the compiler unrolls"
)]

use super::mix::mix;
use super::stored::{Stored, in_pairs};
use super::{KEYS, Rows, Tile, rows_of};
use crate::simd::{self, Vector};

/// Keys that are scored together. With 3 rows a block keeps 12 sums, 3 vectors of queries and one of
/// K in the 16 registers of AVX2; each K vector is loaded and converted once for the 3 rows.
const BLOCK_KEYS: usize = 4;

/// A few rows against a tile.
///
/// # Safety
/// Every pointer is good for the shape it states; the CPU has the instructions of `V`; `head_dim` is
/// a multiple of `V::LANES`.
#[inline(always)]
pub(crate) unsafe fn dots<V: Vector, E: Stored>(tile: &Tile<E>, rows: &Rows) {
    // SAFETY: as stated.
    unsafe {
        match tile.head_dim {
            64 if E::CONVERTED && V::BLOCKS => dots_of::<V, E, 64>(tile, rows),
            128 if E::CONVERTED && V::BLOCKS => dots_of::<V, E, 128>(tile, rows),
            _ => dots_of::<V, E, 0>(tile, rows),
        }
    }
}

/// `dots` of a known `head_dim`, so that loops over it are unrolled (worth it where values are converted,
/// not where memory is waited for), or of any where `DIM` is 0.
#[inline(always)]
unsafe fn dots_of<V: Vector, E: Stored, const DIM: usize>(tile: &Tile<E>, rows: &Rows) {
    let mut rows = *rows;
    // SAFETY: key + i stays below KEYS, a multiple of the block; row + MR stays within `rows`.
    unsafe {
        for key in (0..tile.keys).step_by(BLOCK_KEYS) {
            for row in (0..rows.count).step_by(if V::BLOCKS { 3 } else { 1 }) {
                match rows.count - row {
                    _ if !V::BLOCKS => score::<V, E, 1, DIM>(tile, &rows, row, key),
                    1 => score::<V, E, 1, DIM>(tile, &rows, row, key),
                    2 => score::<V, E, 2, DIM>(tile, &rows, row, key),
                    _ => score::<V, E, 3, DIM>(tile, &rows, row, key),
                }
            }
        }
        for row in 0..rows.count {
            rows.fetched = softmax::<V, E>(tile, &rows, row);
        }
        mix::<V, E>(tile, &rows, 1, KEYS);
    }
}

/// Scores [MR rows, BLOCK_KEYS keys], without the scales of keys and queries.
///
/// The V rows of the keys are brought near meanwhile; while V is mixed, the K rows that come next are.
/// Further ahead is slower: it costs room in the fast caches and hides no more.
#[inline(always)]
unsafe fn score<V: Vector, E: Stored, const MR: usize, const DIM: usize>(
    tile: &Tile<E>,
    rows: &Rows,
    row: usize,
    key: usize,
) {
    let head_dim = if DIM > 0 { DIM } else { tile.head_dim };
    // SAFETY: `q` is [rows, head_dim], K rows are [head_dim], by the caller.
    unsafe {
        let k: [*const E; BLOCK_KEYS] = rows_of(tile.k, tile.offsets.add(key));
        let ahead: [*const E; BLOCK_KEYS] = rows_of(tile.v, tile.offsets.add(key));
        let q = rows.q.add(row * head_dim);
        let in_pairs = in_pairs::<V>(E::SCALED, head_dim);
        let mut acc = [[V::splat(0.0); BLOCK_KEYS]; MR];
        for line in (0..head_dim).step_by(E::LINE) {
            if row == 0 {
                for row in ahead {
                    V::prefetch(row.wrapping_add(line));
                }
            }
            let end = head_dim.min(line + E::LINE);
            if in_pairs {
                for i in (line..end).step_by(2 * V::LANES) {
                    for n in 0..BLOCK_KEYS {
                        for r in 0..MR {
                            let q = q.add(r * head_dim).cast::<i16>().add(i);
                            acc[r][n] = acc[r][n].add_products(k[n].add(i).cast(), q);
                        }
                    }
                }
                continue;
            }
            for i in (line..end).step_by(V::LANES) {
                let mut y = [V::splat(0.0); MR];
                for r in 0..MR {
                    y[r] = V::load(q.add(r * head_dim + i));
                }
                for n in 0..BLOCK_KEYS {
                    let x: V = E::load(k[n].add(i));
                    for r in 0..MR {
                        acc[r][n] = x.mul_add(y[r], acc[r][n]);
                    }
                }
            }
        }
        for (r, mut sums) in acc.into_iter().enumerate() {
            if in_pairs {
                sums = sums.map(|sum| sum.pairs_sum());
            }
            V::store_sums(sums, rows.scores.add((row + r) * KEYS + key));
        }
    }
}

/// Turns the scores of one row into weights, and moves its max, sum and fix on; returns for how many
/// keys the K rows that come next were brought near by now.
#[inline(always)]
unsafe fn softmax<V: Vector, E: Stored>(tile: &Tile<E>, rows: &Rows, row: usize) -> usize {
    // SAFETY: a row of scores has KEYS values and KEYS is a multiple of LANES.
    unsafe {
        let scores = rows.scores.add(row * KEYS);
        let from_first = |position: f32| (position as usize).saturating_sub(tile.first);
        let start = from_first(*rows.starts.add(row)).min(tile.keys);
        let limit = from_first(*rows.limits.add(row)).min(tile.keys);
        let old = *rows.max.add(row);
        let q_scale = V::splat(if in_pairs::<V>(E::SCALED, tile.head_dim) {
            *rows.q_scales.add(row)
        } else {
            1.0
        });
        let mut largest = V::splat(old);
        for key in (0..KEYS).step_by(V::LANES) {
            let mut score = V::load(scores.add(key));
            if E::SCALED {
                score = score.mul(q_scale.mul(V::load(tile.k_scales.add(key))));
                score.store(scores.add(key));
            }
            largest = score.max(largest);
        }
        if start > 0 || limit < KEYS {
            for key in (0..start).chain(limit..KEYS) {
                *scores.add(key) = f32::NEG_INFINITY;
            }
            largest = V::splat(old);
            for key in (0..KEYS).step_by(V::LANES) {
                largest = V::load(scores.add(key)).max(largest);
            }
        }
        let max = largest.largest();
        let (top, mut sum, mut fetched) = (V::splat(max), V::splat(0.0), rows.fetched);
        for key in (0..KEYS).step_by(V::LANES) {
            if fetched < tile.keys / 2 {
                let next = tile.next_k.wrapping_add(*tile.next.add(fetched));
                for line in (0..tile.head_dim).step_by(E::LINE) {
                    V::prefetch(next.wrapping_add(line));
                }
                fetched += 1;
            }
            let weight = V::load(scores.add(key)).sub(top).exp2();
            sum = sum.add(weight);
            let scaled = if E::SCALED {
                weight.mul(V::load(tile.v_scales.add(key)))
            } else {
                weight
            };
            scaled.store(scores.add(key));
        }
        let fix = simd::exp2(old - max);
        *rows.max.add(row) = max;
        *rows.sum.add(row) = *rows.sum.add(row) * fix + sum.sum();
        *rows.fix.add(row) = fix;
        fetched
    }
}
