//! The second half of a tile: weights times V rows.

#![expect(
    clippy::needless_range_loop,
    reason = "register blocks are indexed by constants, which the compiler unrolls"
)]

use super::stored::Stored;
use super::{Rows, Tile};
use crate::simd::Vector;
use std::ops::Range;

/// mix = mix * fix + weights times V rows; the weight of (row, key) is at
/// `scores + key * by_key + row * by_row`. Scales of V are in the weights.
///
/// # Safety
/// Every pointer is good for the shape it states; the CPU has the instructions of `V`; `head_dim` is
/// a multiple of `V::LANES`.
#[inline(always)]
pub(super) unsafe fn mix<V: Vector, E: Stored>(
    tile: &Tile<E>,
    rows: &Rows,
    by_key: usize,
    by_row: usize,
) {
    let mut row = 0;
    while row < rows.count {
        // SAFETY: row + MR stays within `rows`. Blocks keep 8 to 12 sums in registers; 10 rows are
        // mixed as 5 and 5, since 4 rows alone wait for their sums.
        unsafe {
            row += match rows.count - row {
                _ if !V::BLOCKS => mix_rows::<V, E, 1, 1>(tile, rows, row, by_key, by_row),
                1 => mix_rows::<V, E, 1, 8>(tile, rows, row, by_key, by_row),
                2 => mix_rows::<V, E, 2, 4>(tile, rows, row, by_key, by_row),
                3 => mix_rows::<V, E, 3, 4>(tile, rows, row, by_key, by_row),
                4 => mix_rows::<V, E, 4, 2>(tile, rows, row, by_key, by_row),
                5 | 10 => mix_rows::<V, E, 5, 2>(tile, rows, row, by_key, by_row),
                _ => mix_rows::<V, E, 6, 2>(tile, rows, row, by_key, by_row),
            };
        }
    }
}

/// Some rows; returns how many.
#[inline(always)]
unsafe fn mix_rows<V: Vector, E: Stored, const MR: usize, const NV: usize>(
    tile: &Tile<E>,
    rows: &Rows,
    row: usize,
    by_key: usize,
    by_row: usize,
) -> usize {
    let (mut i, end) = (0, tile.head_dim);
    // SAFETY: i + NV * LANES stays within `head_dim`, a multiple of LANES.
    unsafe {
        let weights = rows.scores.add(row * by_row);
        while i + NV * V::LANES <= end {
            mix_block::<V, E, MR, NV>(tile, rows, (row, i), weights, by_key, by_row);
            i += NV * V::LANES;
        }
        while NV > 2 && i + 2 * V::LANES <= end {
            mix_block::<V, E, MR, 2>(tile, rows, (row, i), weights, by_key, by_row);
            i += 2 * V::LANES;
        }
        while NV > 1 && i < end {
            mix_block::<V, E, MR, 1>(tile, rows, (row, i), weights, by_key, by_row);
            i += V::LANES;
        }
    }
    MR
}

/// The keys for which a block brings the K rows that come next near: all blocks that pass over a cache
/// line take their share, so that memory and arithmetic keep pace.
#[inline(always)]
fn fetch_share<V: Vector, E: Stored, const MR: usize, const NV: usize>(
    tile: &Tile<E>,
    rows: &Rows,
    row: usize,
    i: usize,
) -> Range<usize> {
    if !tile.fetch {
        return 0..0;
    }
    let passes = (E::LINE / (NV * V::LANES)).max(1);
    let pass = i % E::LINE * passes / E::LINE;
    let keys = tile.keys - rows.fetched;
    let share = |done: usize| rows.fetched + keys * done / (rows.count * passes);
    let done = row * passes + pass * MR;
    share(done)..share(done + MR)
}

/// One register block: MR rows, NV vectors of `head_dim`.
#[inline(always)]
unsafe fn mix_block<V: Vector, E: Stored, const MR: usize, const NV: usize>(
    tile: &Tile<E>,
    rows: &Rows,
    (row, i): (usize, usize),
    weights: *const f32,
    by_key: usize,
    by_row: usize,
) {
    let fetch = fetch_share::<V, E, MR, NV>(tile, rows, row, i);
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
            // Asked apart, so that the loop of a tile that fetches nothing holds no range.
            if tile.fetch && fetch.contains(&key) {
                let k = tile.next_k.wrapping_add(*tile.next.add(key) + i);
                for line in (0..NV * V::LANES).step_by(E::LINE) {
                    V::prefetch(k.wrapping_add(line));
                }
            }
            let weight = |r: usize| V::splat(*weights.add(key * by_key + r * by_row));
            if MR < NV {
                let weights: [V; MR] = std::array::from_fn(weight);
                for j in 0..NV {
                    let x: V = E::load(v.add(j * V::LANES));
                    for r in 0..MR {
                        acc[r][j] = weights[r].mul_add(x, acc[r][j]);
                    }
                }
            } else {
                let x: [V; NV] = std::array::from_fn(|j| E::load(v.add(j * V::LANES)));
                for r in 0..MR {
                    let weight = weight(r);
                    for j in 0..NV {
                        acc[r][j] = weight.mul_add(x[j], acc[r][j]);
                    }
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
