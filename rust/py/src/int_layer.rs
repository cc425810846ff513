//! `IntLayer` of `_core`: packed u32 to numbers, addresses passed on.

use appliance_kernels::attention::{Query, Ragged};
use appliance_kernels::layer::{Heads, Layer, Mlp, Place, Turns};
use appliance_kernels::norm::Norm;
use pyo3::prelude::*;

use crate::attention::cache;
use crate::int_matrix::{IntMatrix, activation};
use crate::packed::{Count, unpack, value_error};

/// A layer of integers; see `_core.pyi`.
#[pyclass(module = "appliance._core", frozen)]
pub struct IntLayer(Layer);

#[pymethods]
impl IntLayer {
    #[new]
    #[pyo3(signature = (
        qkv, output, gate, down, *, norm, mlp_norm, activation, heads, kv_heads, head_dim, scale,
        window = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of one Python call")]
    fn new(
        qkv: &IntMatrix,
        output: &IntMatrix,
        gate: &IntMatrix,
        down: &IntMatrix,
        norm: (usize, f32),
        mlp_norm: (usize, f32),
        activation: &str,
        heads: Count<usize>,
        kv_heads: Count<usize>,
        head_dim: Count<usize>,
        scale: f32,
        window: Option<Count<u32>>,
    ) -> PyResult<Self> {
        let norm_of = |(weight, epsilon)| Norm { weight, epsilon };
        let heads = Heads {
            query: Query {
                heads: heads.0,
                scale,
                window: window.map(|n| n.0),
            },
            kv_heads: kv_heads.0,
            head_dim: head_dim.0,
        };
        let mlp = Mlp {
            norm: norm_of(mlp_norm),
            gate: gate.shared(),
            activation: self::activation(activation)?,
            down: down.shared(),
        };
        Layer::new(norm_of(norm), qkv.shared(), heads, output.shared(), mlp)
            .map(Self)
            .map_err(value_error)
    }

    #[pyo3(signature = (
        x, k_cache, v_cache, turns, *, half = false, scales = None, slots, query_starts,
        context_lens, page_tables, page_starts, pages, page_size
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of one Python call")]
    fn run(
        &self,
        py: Python<'_>,
        x: usize,
        k_cache: usize,
        v_cache: usize,
        turns: Option<(usize, usize, usize, usize)>,
        half: bool,
        scales: Option<(usize, usize)>,
        slots: &[u8],
        query_starts: &[u8],
        context_lens: &[u8],
        page_tables: &[u8],
        page_starts: &[u8],
        pages: Count<usize>,
        page_size: Count<usize>,
    ) -> PyResult<()> {
        let slots = unpack("slots", slots)?;
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
        let place = Place {
            cache: cache(k_cache, v_cache, half, scales)?,
            pages: pages.0,
            page_size: page_size.0,
            slots: &slots,
        };
        let turns = turns.map(|(positions, table, rows, pairs)| Turns {
            positions,
            table,
            rows,
            pairs,
        });
        // SAFETY: the caller keeps tensors of these shapes alive, by the contract in `_core.pyi`.
        py.detach(|| unsafe { self.0.run(x, turns, place, ragged) })
            .map_err(value_error)
    }
}
