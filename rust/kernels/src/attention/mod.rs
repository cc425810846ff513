//! Causal attention of a ragged batch over paged K/V, float32, float16 or int8, on the CPU.
//!
//! Owns `paged_attention`; `store_kv` is in `store`. Never allocates or frees a page. All memory of
//! tensors is the caller's, reached through addresses; every length, page id and slot is checked before
//! an address is used.
//!
//! The softmax is computed online over tiles of keys (Milakov and Gimelshein 2018, Dao et al. 2022);
//! long contexts are cut into spans that threads share (split-KV). A sequence's results depend on its own
//! queries and context alone: not on the batch it is in, not on the number of threads.

mod batch;
mod gather;
mod item;
mod kernel;
mod plan;
mod scratch;
mod store;
#[cfg(test)]
mod tests;

pub use batch::{AttentionError, CacheShape, Query, Ragged};
pub use item::{Cache, Tensors};
pub use store::{NewRows, store_kv};

use crate::level::Level;
use crate::pool;
use batch::{Batch, check_address};
use item::Attention;
use std::sync::Arc;

/// Causal attention: `out[t, h] = softmax(scale * q[t, h] . K) V` over the positions up to that of t,
/// or the last `window` of them.
///
/// Query head h uses K/V head `h / (heads / kv_heads)`. The queries of a sequence are the last positions of
/// its context; their own K/V are already in the cache.
///
/// Over an int8 cache, a CPU with AVX-512 VNNI scores in whole numbers where `head_dim` is a multiple of 32 up to
/// 512: a row of q becomes int16 over its own largest value, and a score moves by
/// `scale * largest * sum(|K|) / 65,534` at most.
///
/// # Errors
/// `AttentionError` when sizes, lengths or page ids do not fit; then nothing was read or written.
///
/// # Safety
/// The addresses are those of tensors of the shapes and types in `Tensors`, with
/// `tokens = query_starts[sequences]`; they live, and nothing else writes them or reads `out`, during
/// the call.
pub unsafe fn paged_attention(
    tensors: Tensors,
    shape: CacheShape,
    query: Query,
    ragged: Ragged<'_>,
) -> Result<(), AttentionError> {
    let batch = Batch::new(shape, query, ragged)?;
    if batch.sequences.iter().all(|sequence| sequence.queries == 0) {
        return Ok(());
    }
    check_address::<f32>("out", tensors.out)?;
    check_address::<f32>("q", tensors.q)?;
    tensors.cache.check_addresses()?;
    let level = Level::detect(shape.head_dim);
    // SAFETY: the caller's promise; `share` returns when no item runs any more.
    let attention = unsafe { Attention::new(batch, tensors, level) };
    pool::share(Arc::new(attention));
    Ok(())
}
