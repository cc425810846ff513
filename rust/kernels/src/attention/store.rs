//! Writing new K and V rows into a cache.
//!
//! Owns the places of rows; every slot is checked before an address is used.

use super::batch::{AttentionError, CacheShape, check_address, check_slots};
use super::item::Cache;
use crate::quantise::quantise;
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::ptr::{copy_nonoverlapping, with_exposed_provenance, with_exposed_provenance_mut};

/// Addresses of new K and V rows, contiguous, and of the cache they go to.
#[derive(Clone, Copy, Debug)]
pub struct NewRows {
    /// float32 [tokens, kv_heads, head_dim].
    pub k: usize,
    /// float32 [tokens, kv_heads, head_dim].
    pub v: usize,
    /// The cache, written.
    pub cache: Cache,
}

/// Writes new K and V rows into their slots (page * page_size + row); of equal slots the last one wins.
///
/// A float16 value is the nearest (ties to even), infinite above 65,504. An int8 row is symmetric: its scale is its largest magnitude / 127, its numbers are the values
/// divided by the scale, rounded to the nearest (ties to even). A row with a value that is not finite
/// gets a scale of NaN, so that it is seen as in a float32 cache.
///
/// # Errors
/// `AttentionError` when sizes or slots do not fit; then nothing was read or written.
///
/// # Safety
/// The addresses are those of tensors of the shapes and types in `NewRows`, with
/// `tokens = slots.len()`; they do not overlap, they live, and nothing else uses the cache, during the
/// call.
pub unsafe fn store_kv(
    rows: NewRows,
    shape: CacheShape,
    slots: &[u32],
) -> Result<(), AttentionError> {
    check_slots(&shape, slots)?;
    if slots.is_empty() {
        return Ok(());
    }
    check_address::<f32>("k", rows.k)?;
    check_address::<f32>("v", rows.v)?;
    rows.cache.check_addresses()?;
    // SAFETY: the caller's promise, and the checks above.
    unsafe {
        match rows.cache {
            Cache::Float32 { k, v } => {
                copy(rows.k, k, &shape, slots);
                copy(rows.v, v, &shape, slots);
            }
            Cache::Float16 { k, v } => {
                narrow(rows.k, k, &shape, slots);
                narrow(rows.v, v, &shape, slots);
            }
            Cache::Int8 {
                k,
                v,
                k_scales,
                v_scales,
            } => {
                quantise_rows(rows.k, (k, k_scales), &shape, slots);
                quantise_rows(rows.v, (v, v_scales), &shape, slots);
            }
        }
    }
    Ok(())
}

/// (row of the new tensor, row of the cache) of every token and head.
fn moves(shape: &CacheShape, slots: &[u32]) -> impl Iterator<Item = (usize, usize)> {
    slots.iter().enumerate().flat_map(move |(token, &slot)| {
        let slot = slot as usize;
        let (page, row) = (slot / shape.page_size, slot % shape.page_size);
        (0..shape.kv_heads)
            .map(move |head| (token * shape.kv_heads + head, shape.row(page, head, row)))
    })
}

unsafe fn copy(from: usize, to: usize, shape: &CacheShape, slots: &[u32]) {
    let from = with_exposed_provenance::<f32>(from);
    let to = with_exposed_provenance_mut::<f32>(to);
    for (source, target) in moves(shape, slots) {
        // SAFETY: the rows are those of tokens < slots.len() and of slots that the cache has.
        unsafe {
            let target = to.add(target * shape.head_dim);
            copy_nonoverlapping(from.add(source * shape.head_dim), target, shape.head_dim);
        }
    }
}

unsafe fn narrow(from: usize, to: usize, shape: &CacheShape, slots: &[u32]) {
    let head_dim = shape.head_dim;
    let from = with_exposed_provenance::<f32>(from);
    let to = with_exposed_provenance_mut::<f16>(to);
    for (source, target) in moves(shape, slots) {
        // SAFETY: as in `copy`; the tensors do not overlap.
        unsafe {
            let source = std::slice::from_raw_parts(from.add(source * head_dim), head_dim);
            let target = std::slice::from_raw_parts_mut(to.add(target * head_dim), head_dim);
            target.convert_from_f32_slice(source);
        }
    }
}

unsafe fn quantise_rows(
    from: usize,
    (to, scales): (usize, usize),
    shape: &CacheShape,
    slots: &[u32],
) {
    let head_dim = shape.head_dim;
    let from = with_exposed_provenance::<f32>(from);
    let to = with_exposed_provenance_mut::<i8>(to);
    let scales = with_exposed_provenance_mut::<f32>(scales);
    for (source, target) in moves(shape, slots) {
        // SAFETY: as in `copy`; a row has one scale; the tensors do not overlap.
        unsafe {
            let source = std::slice::from_raw_parts(from.add(source * head_dim), head_dim);
            let numbers = std::slice::from_raw_parts_mut(to.add(target * head_dim), head_dim);
            *scales.add(target) = quantise(source, numbers);
        }
    }
}
