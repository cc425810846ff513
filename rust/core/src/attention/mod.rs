//! Causal attention of a ragged batch over paged K/V, float32, on the CPU.
//!
//! Owns the two calls, `paged_attention` and `store_kv`; never allocates or frees a page. All memory of
//! tensors is the caller's, reached through addresses; every length, page id and slot is checked before
//! an address is used.
//!
//! The softmax is computed online over tiles of keys (Milakov and Gimelshein 2018, Dao et al. 2022);
//! long contexts are cut into spans that threads share (split-KV). A sequence's results depend on its own
//! queries and context alone: not on the batch it is in, not on the number of threads.

mod batch;
mod item;
mod kernel;
mod plan;
mod pool;
mod scratch;
mod simd;
#[cfg(test)]
mod tests;

pub use batch::{AttentionError, CacheShape, Ragged};
pub use item::Tensors;
pub use pool::set_threads;

use batch::{Batch, check_address, check_slots};
use item::{Attention, Level};
use std::ptr::{copy_nonoverlapping, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;

/// Causal attention: `out[t, h] = softmax(scale * q[t, h] . K) V` over the positions up to that of t.
///
/// Query head h uses K/V head `h / (heads / kv_heads)`. The queries of a sequence are the last positions of
/// its context; their own K/V are already in the cache.
///
/// # Errors
/// `AttentionError` when sizes, lengths or page ids do not fit; then nothing was read or written.
///
/// # Safety
/// The addresses are those of float32 tensors of the shapes in `Tensors`, with
/// `tokens = query_starts[sequences]`; they live, and nothing else writes them or reads `out`, during
/// the call.
pub unsafe fn paged_attention(
    tensors: Tensors,
    shape: CacheShape,
    heads: usize,
    ragged: Ragged<'_>,
    scale: f32,
) -> Result<(), AttentionError> {
    let batch = Batch::new(shape, heads, ragged)?;
    if !scale.is_finite() {
        return Err(AttentionError::Shape("scale is not finite"));
    }
    if batch.sequences.iter().all(|sequence| sequence.queries == 0) {
        return Ok(());
    }
    check_address("out", tensors.out)?;
    check_address("q", tensors.q)?;
    check_address("k_cache", tensors.k_cache)?;
    check_address("v_cache", tensors.v_cache)?;
    let level = Level::detect(shape.head_dim);
    // SAFETY: the caller's promise; `share` returns when no item runs any more.
    let attention = unsafe { Attention::new(batch, tensors, scale, level) };
    pool::share(Arc::new(attention));
    Ok(())
}

/// Addresses of new K and V rows and of the caches they go to, float32 and contiguous.
#[derive(Clone, Copy, Debug)]
pub struct NewRows {
    /// [tokens, kv_heads, head_dim].
    pub k: usize,
    /// [tokens, kv_heads, head_dim].
    pub v: usize,
    /// [pages, kv_heads, page_size, head_dim], written.
    pub k_cache: usize,
    /// [pages, kv_heads, page_size, head_dim], written.
    pub v_cache: usize,
}

/// Writes new K and V rows into their slots (page * page_size + row); of equal slots the last one wins.
///
/// # Errors
/// `AttentionError` when sizes or slots do not fit; then nothing was read or written.
///
/// # Safety
/// The addresses are those of float32 tensors of the shapes in `NewRows`, with `tokens = slots.len()`;
/// they do not overlap, they live, and nothing else uses the caches, during the call.
pub unsafe fn store_kv(
    rows: NewRows,
    shape: CacheShape,
    slots: &[u32],
) -> Result<(), AttentionError> {
    check_slots(&shape, slots)?;
    if slots.is_empty() {
        return Ok(());
    }
    let both = [(rows.k, rows.k_cache), (rows.v, rows.v_cache)];
    for (from, to) in both {
        check_address("k or v", from)?;
        check_address("k_cache or v_cache", to)?;
    }
    for (from, to) in both {
        let from = with_exposed_provenance::<f32>(from);
        let to = with_exposed_provenance_mut::<f32>(to);
        for (token, &slot) in slots.iter().enumerate() {
            let (page, row) = (
                slot as usize / shape.page_size,
                slot as usize % shape.page_size,
            );
            for head in 0..shape.kv_heads {
                let source = (token * shape.kv_heads + head) * shape.head_dim;
                // SAFETY: token < tokens and slot < slots of the cache, checked above.
                unsafe {
                    let target = to.add(shape.row(page, head, row));
                    copy_nonoverlapping(from.add(source), target, shape.head_dim);
                }
            }
        }
    }
    Ok(())
}
