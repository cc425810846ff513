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

/// Room for a tile in float32.
#[derive(Clone, Copy)]
pub(crate) struct Space {
    /// [KEYS, head_dim].
    pub k: *mut f32,
    /// [KEYS, head_dim].
    pub v: *mut f32,
    /// [KEYS] multiples of `head_dim` from 0 on.
    pub offsets: *const usize,
}

/// Copies a tile as float32: many rows read each of its values again and again.
///
/// # Safety
/// The pointers of the tile and of the space are good for the shapes they state; the CPU has the
/// instructions of `V`; `head_dim` is a multiple of `LANES`.
#[inline(always)]
pub(crate) unsafe fn widen<V: Vector, E: Stored>(tile: &Tile<E>, space: &Space) -> Tile<f32> {
    for key in 0..tile.keys {
        // SAFETY: [keys] offsets, and scales where there are any, [keys, head_dim] rows, as stated.
        unsafe {
            let from = *tile.offsets.add(key);
            let sides = [
                (tile.k, tile.k_scales, space.k),
                (tile.v, tile.v_scales, space.v),
            ];
            for (cache, scales, to) in sides {
                let to = to.add(key * tile.head_dim);
                for i in (0..tile.head_dim).step_by(V::LANES) {
                    let mut value: V = E::load(cache.add(from + i));
                    if E::SCALED {
                        value = value.mul(V::splat(*scales.add(key)));
                    }
                    value.store(to.add(i));
                }
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
