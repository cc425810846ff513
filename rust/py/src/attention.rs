//! `paged_attention` and `store_kv` of `_core`: packed u32 to numbers, addresses passed on.

use appliance_kernels::attention::{self, Cache, CacheShape, NewRows, Query, Ragged, Tensors};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::packed::{Count, unpack, value_error};

/// The cache of addresses; with those of scales it is int8.
pub(crate) fn cache(
    k: usize,
    v: usize,
    half: bool,
    scales: Option<(usize, usize)>,
) -> PyResult<Cache> {
    match (half, scales) {
        (false, None) => Ok(Cache::Float32 { k, v }),
        (true, None) => Ok(Cache::Float16 { k, v }),
        (false, Some((k_scales, v_scales))) => Ok(Cache::Int8 {
            k,
            v,
            k_scales,
            v_scales,
        }),
        (true, Some(_)) => Err(PyValueError::new_err("float16 has no scales")),
    }
}

/// Write new K and V rows into their slots; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (
    k, v, k_cache, v_cache, slots, *, half = false, scales = None, kv_heads, head_dim, pages, page_size
))]
#[expect(clippy::too_many_arguments, reason = "keywords of one Python call")]
fn store_kv(
    py: Python<'_>,
    k: usize,
    v: usize,
    k_cache: usize,
    v_cache: usize,
    slots: &[u8],
    half: bool,
    scales: Option<(usize, usize)>,
    kv_heads: Count<usize>,
    head_dim: Count<usize>,
    pages: Count<usize>,
    page_size: Count<usize>,
) -> PyResult<()> {
    let slots = unpack("slots", slots)?;
    let shape = CacheShape {
        kv_heads: kv_heads.0,
        head_dim: head_dim.0,
        pages: pages.0,
        page_size: page_size.0,
    };
    let rows = NewRows {
        k,
        v,
        cache: cache(k_cache, v_cache, half, scales)?,
    };
    // SAFETY: the caller keeps tensors of these shapes alive, by the contract in `_core.pyi`.
    py.detach(|| unsafe { attention::store_kv(rows, shape, &slots) })
        .map_err(value_error)
}

/// Causal attention of a ragged batch over pages; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (
    out, q, k_cache, v_cache, *, half = false, scales = None, query_starts, context_lens, page_tables, page_starts,
    heads, kv_heads, head_dim, pages, page_size, scale, window = None
))]
#[expect(clippy::too_many_arguments, reason = "keywords of one Python call")]
fn paged_attention(
    py: Python<'_>,
    out: usize,
    q: usize,
    k_cache: usize,
    v_cache: usize,
    half: bool,
    scales: Option<(usize, usize)>,
    query_starts: &[u8],
    context_lens: &[u8],
    page_tables: &[u8],
    page_starts: &[u8],
    heads: Count<usize>,
    kv_heads: Count<usize>,
    head_dim: Count<usize>,
    pages: Count<usize>,
    page_size: Count<usize>,
    scale: f32,
    window: Option<Count<u32>>,
) -> PyResult<()> {
    let query_starts = unpack("query_starts", query_starts)?;
    let context_lens = unpack("context_lens", context_lens)?;
    let page_tables = unpack("page_tables", page_tables)?;
    let page_starts = unpack("page_starts", page_starts)?;
    let ragged = Ragged {
        query_starts: &query_starts,
        context_lens: &context_lens,
        page_tables: &page_tables,
        page_starts: &page_starts,
    };
    let shape = CacheShape {
        kv_heads: kv_heads.0,
        head_dim: head_dim.0,
        pages: pages.0,
        page_size: page_size.0,
    };
    let tensors = Tensors {
        out,
        q,
        cache: cache(k_cache, v_cache, half, scales)?,
    };
    let query = Query {
        heads: heads.0,
        scale,
        window: window.map(|n| n.0),
    };
    // SAFETY: the caller keeps tensors of these shapes alive, by the contract in `_core.pyi`.
    py.detach(|| unsafe { attention::paged_attention(tensors, shape, query, ragged) })
        .map_err(value_error)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(store_kv, module)?)?;
    module.add_function(wrap_pyfunction!(paged_attention, module)?)
}
