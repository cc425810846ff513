//! One layer of a decoder in one call: attention, then the MLP, each added to its input.
//!
//! Owns the order of the steps and the room between them; each step is a kernel of this crate with its own
//! checks, so that the results are those of the steps called one by one.

use crate::attention::{
    AttentionError, Cache, CacheShape, NewRows, Query, Ragged, Tensors, paged_attention, store_kv,
};
use crate::linear::{Activation, Input, Layout, Matrix, MatrixError, Output, linear};
use crate::norm::Norm;
use crate::rotary::{Rotary, rotate};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use thiserror::Error;

/// What does not fit in a layer or a call of it.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum LayerError {
    /// Of a matrix, a norm or a rotation.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    /// Of the cache or the batch.
    #[error(transparent)]
    Attention(#[from] AttentionError),
}

/// The heads of a layer and what they look at.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Queries, and by what their scores are multiplied.
    pub query: Query,
    /// K/V heads.
    pub kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
}

/// The MLP: `down(activation(gate) * up)`.
#[derive(Debug)]
pub struct Mlp {
    /// Before the first matrix.
    pub norm: Norm,
    /// The rows of gate, then of up.
    pub gate: Arc<Matrix>,
    /// Of the gate.
    pub activation: Activation,
    /// Back to the width of the input.
    pub down: Arc<Matrix>,
}

/// A layer: `x += output(attention(qkv(norm(x))))`, then `x += mlp(norm(x))`.
#[derive(Debug)]
pub struct Layer {
    norm: Norm,
    qkv: Arc<Matrix>,
    heads: Heads,
    output: Arc<Matrix>,
    mlp: Mlp,
}

/// The table of a rotation, see `Rotary`.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    /// Address of i64 [tokens]: the positions.
    pub positions: usize,
    /// Address of float32 [rows, pairs, 2].
    pub table: usize,
    /// Positions of the table.
    pub rows: usize,
    /// Pairs of a head that turn.
    pub pairs: usize,
}

/// The layer's cache, and where new rows go.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Addresses.
    pub cache: Cache,
    /// Pages in the cache.
    pub pages: usize,
    /// Positions in a page.
    pub page_size: usize,
    /// [tokens] page * page_size + row.
    pub slots: &'a [u32],
}

impl Layer {
    /// # Errors
    /// `LayerError` unless each matrix has all of its rows and takes what the one before it gives.
    pub fn new(
        norm: Norm,
        qkv: Arc<Matrix>,
        heads: Heads,
        output: Arc<Matrix>,
        mlp: Mlp,
    ) -> Result<Self, LayerError> {
        let shape = |fits: bool, text| {
            let error = LayerError::Matrix(MatrixError::Shape(text));
            if fits { Ok(()) } else { Err(error) }
        };
        norm.check()?;
        mlp.norm.check()?;
        for matrix in [&qkv, &output, &mlp.gate, &mlp.down] {
            matrix.check_filled()?;
        }
        let hidden = qkv.inputs();
        let width = |count: usize| count.checked_mul(heads.head_dim);
        let (queries, keys) = (heads.query.heads, heads.kv_heads);
        let all = keys.checked_mul(2).and_then(|n| n.checked_add(queries));
        shape(
            all.and_then(width) == Some(qkv.outputs()),
            "qkv does not give the heads",
        )?;
        shape(
            width(queries) == Some(output.inputs()),
            "output does not take the heads",
        )?;
        shape(
            output.outputs() == hidden,
            "output does not give the width of x",
        )?;
        shape(mlp.gate.inputs() == hidden, "gate does not take x")?;
        shape(mlp.gate.layout() == Layout::Gated, "gate is not gated")?;
        shape(
            mlp.gate.outputs() / 2 == mlp.down.inputs(),
            "down does not take what gate gives",
        )?;
        shape(
            mlp.down.outputs() == hidden,
            "down does not give the width of x",
        )?;
        Ok(Self {
            norm,
            qkv,
            heads,
            output,
            mlp,
        })
    }

    /// Moves x, float32 [tokens, hidden], through the layer; `turns`: None for heads that do not turn.
    ///
    /// # Errors
    /// `LayerError` when a size, a slot, a page or an address does not fit; x is as it was then.
    ///
    /// # Safety
    /// The addresses, those of the norms included, are those of contiguous tensors of these shapes, which do
    /// not overlap; they live, and nothing else uses x and the cache or writes the others, during the call.
    pub unsafe fn run(
        &self,
        x: usize,
        turns: Option<Turns>,
        place: Place<'_>,
        ragged: Ragged<'_>,
    ) -> Result<(), LayerError> {
        let tokens = place.slots.len();
        let queries = ragged.query_starts.last();
        if queries.is_none_or(|&end| end as usize != tokens) {
            let text = "query_starts does not end with the slots";
            return Err(AttentionError::Batch(text).into());
        }
        let input = |x, norm| Input { x, tokens, norm };
        let sizes = [
            self.qkv.outputs(),
            self.output.inputs(),
            self.kv_width(),
            self.kv_width(),
            self.output.inputs(),
            self.mlp.down.inputs(),
        ];
        let room = Room::take(tokens, &sizes);
        let [qkv, q, k, v, mixed, inner] = room.addresses;
        // SAFETY: the caller's promise; the room is of this call alone, and its tensors do not overlap.
        unsafe {
            linear(&self.qkv, input(x, Some(self.norm)), Output::Store(qkv))?;
            if let Some(turns) = turns {
                rotate(qkv, turns.positions, tokens, self.rotary(turns))?;
            }
            self.split(tokens, qkv, [q, k, v]);
            let shape = self.cache_shape(place);
            let cache = place.cache;
            store_kv(NewRows { k, v, cache }, shape, place.slots)?;
            let tensors = Tensors {
                out: mixed,
                q,
                cache,
            };
            paged_attention(tensors, shape, self.heads.query, ragged)?;
            linear(&self.output, input(mixed, None), Output::Add(x))?;
            let Mlp {
                norm, activation, ..
            } = self.mlp;
            let gated = Output::Gate(inner, activation);
            linear(&self.mlp.gate, input(x, Some(norm)), gated)?;
            linear(&self.mlp.down, input(inner, None), Output::Add(x))?;
        }
        Ok(())
    }

    fn kv_width(&self) -> usize {
        self.heads.kv_heads * self.heads.head_dim
    }

    fn cache_shape(&self, place: Place<'_>) -> CacheShape {
        CacheShape {
            kv_heads: self.heads.kv_heads,
            head_dim: self.heads.head_dim,
            pages: place.pages,
            page_size: place.page_size,
        }
    }

    /// Queries and keys turn, values do not.
    fn rotary(&self, turns: Turns) -> Rotary {
        Rotary {
            heads: self.heads.query.heads + self.heads.kv_heads,
            head_dim: self.heads.head_dim,
            stride: self.qkv.outputs(),
            table: turns.table,
            rows: turns.rows,
            pairs: turns.pairs,
        }
    }

    /// Copies the rows of q, k and v out of those of qkv, each to a tensor of its own.
    ///
    /// # Safety
    /// The addresses are those of float32 tensors of `tokens` such rows, which do not overlap.
    unsafe fn split(&self, tokens: usize, qkv: usize, to: [usize; 3]) {
        let widths = [self.output.inputs(), self.kv_width(), self.kv_width()];
        let from = std::ptr::with_exposed_provenance::<f32>(qkv);
        for token in 0..tokens {
            let mut at = token * self.qkv.outputs();
            for (to, width) in to.into_iter().zip(widths) {
                let to = std::ptr::with_exposed_provenance_mut::<f32>(to);
                // SAFETY: rows within the tensors, as stated.
                unsafe {
                    std::ptr::copy_nonoverlapping(from.add(at), to.add(token * width), width);
                }
                at += width;
            }
        }
    }
}

thread_local! {
    /// Kept from call to call: the room of a prefill is given back to the system by `free`, and asked for
    /// again by the next layer.
    static ROOM: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Room for N tensors of the same number of rows, each at the start of a cache line.
struct Room<const N: usize> {
    values: Vec<f32>,
    addresses: [usize; N],
}

/// Float32 values of a cache line.
const LINE: usize = 16;

impl<const N: usize> Room<N> {
    /// The room of this thread; its values are whatever they are.
    fn take(rows: usize, widths: &[usize; N]) -> Self {
        let mut ends = 0;
        let spans: [Range<usize>; N] = widths.map(|width| {
            let start = ends;
            ends += (rows * width).next_multiple_of(LINE);
            start..ends
        });
        let mut values = ROOM.take();
        if values.len() < ends + LINE {
            values.resize(ends + LINE, 0.0);
        }
        let start = values.as_mut_ptr();
        let lead = start.align_offset(LINE * size_of::<f32>()).min(LINE);
        let start = start.wrapping_add(lead);
        let addresses = spans.map(|span| start.wrapping_add(span.start).expose_provenance());
        Self { values, addresses }
    }
}

impl<const N: usize> Drop for Room<N> {
    fn drop(&mut self) {
        ROOM.set(std::mem::take(&mut self.values));
    }
}
