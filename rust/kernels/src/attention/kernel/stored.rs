//! What a cache holds: float32, float16, or int8 with a float32 scale for each token and K/V head.
//!
//! Owns the difference between them; the inner loops are written once. A smaller value becomes
//! float32 in a register, which is exact; a scale goes into scores and weights (`dots`) or into a
//! copy of the tile (`widen`), never into a second pass over the cache.

use super::{Far, Tile};
use crate::simd::Vector;
use half::f16;

/// A value of a cache.
pub(crate) trait Stored: Copy {
    /// Whether rows have scales.
    const SCALED: bool;

    /// Whether values have to be converted.
    const CONVERTED: bool = size_of::<Self>() < 4;

    /// Values in a cache line.
    const LINE: usize = 64 / size_of::<Self>();

    /// The `LANES` values at `p`, without their scale.
    ///
    /// # Safety
    /// As the methods of `Vector`.
    unsafe fn load<V: Vector>(p: *const Self) -> V;
}

impl Stored for f32 {
    const SCALED: bool = false;

    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const Self) -> V {
        // SAFETY: as stated.
        unsafe { V::load(p) }
    }
}

impl Stored for f16 {
    const SCALED: bool = false;

    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const Self) -> V {
        // SAFETY: as stated.
        unsafe { V::load_f16(p) }
    }
}

impl Stored for i8 {
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const Self) -> V {
        // SAFETY: as stated.
        unsafe { V::load_i8(p) }
    }
}

/// The largest int16 times the largest int8, summed over so many values, is an int32.
pub(crate) const PAIRS_DIM_MAX: usize = 512;

/// Whether rows are scored in whole numbers, against int16 queries: where K is int8, which alone has scales.
#[inline(always)]
pub(crate) fn in_pairs<V: Vector>(scaled: bool, head_dim: usize) -> bool {
    V::PAIRS && scaled && head_dim <= PAIRS_DIM_MAX && head_dim.is_multiple_of(2 * V::LANES)
}

/// The `LANES` values at `p` times the scale of their row, where they have one.
#[inline(always)]
unsafe fn scaled<V: Vector, E: Stored>(p: *const E, scale: *const f32) -> V {
    // SAFETY: `p` and `scale` are good, by the caller.
    unsafe {
        let value: V = E::load(p);
        if E::SCALED {
            value.mul(V::splat(*scale))
        } else {
            value
        }
    }
}

/// Room for a tile in float32.
#[derive(Clone, Copy)]
pub(crate) struct Space {
    /// [KEYS, head_dim]; where `in_pairs`, int16.
    pub k: *mut f32,
    /// [KEYS, head_dim].
    pub v: *mut f32,
    /// [KEYS] multiples of `head_dim` from 0 on.
    pub offsets: *const usize,
}

/// Copies a tile as float32, or K as int16 where that is faster: many rows read each of its values again
/// and again.
///
/// # Safety
/// The pointers of the tile and of the space are good for the shapes they state; the CPU has the
/// instructions of `V`; `head_dim` is a multiple of `LANES`.
#[inline(always)]
pub(crate) unsafe fn widen<V: Vector, E: Stored>(tile: &Tile<E>, space: &Space) -> Tile<f32> {
    let pairs = in_pairs::<V>(E::SCALED, tile.head_dim).then(|| space.k.cast::<i16>());
    for key in 0..tile.keys {
        // SAFETY: [keys] offsets, and scales where there are any, [keys, head_dim] rows, as stated.
        unsafe {
            let (from, to) = (*tile.offsets.add(key), key * tile.head_dim);
            for i in (0..tile.head_dim).step_by(V::LANES) {
                let k = tile.k.add(from + i);
                if let Some(pairs) = pairs {
                    V::widen_i8(k.cast(), pairs.add(to + i));
                } else {
                    scaled::<V, E>(k, tile.k_scales.add(key)).store(space.k.add(to + i));
                }
                let v = scaled::<V, E>(tile.v.add(from + i), tile.v_scales.add(key));
                v.store(space.v.add(to + i));
            }
        }
    }
    Tile {
        k: space.k,
        v: space.v,
        offsets: space.offsets,
        next_k: space.k,
        next_v: space.v,
        next: space.offsets,
        fetch: false,
        pairs: pairs.map(<*mut i16>::cast_const),
        far: Some(Far {
            k: tile.next_k.cast(),
            v: tile.next_v.cast(),
            next: tile.next,
            value_bytes: size_of::<E>(),
        }),
        k_scales: tile.k_scales,
        v_scales: tile.v_scales,
        keys: tile.keys,
        first: tile.first,
        head_dim: tile.head_dim,
    }
}
