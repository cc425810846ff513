//! One item of a planned batch: its rows against its spans of the context, page by page.
//!
//! Owns the way through spans and tiles; the inner loops are the kernel's. Reads q, K and V and writes
//! `out` through raw addresses that `Attention::new` was promised to be good.

use super::batch::{AttentionError, Batch, check_address};
use super::gather::{self, row_start};
use super::kernel::{self, KEYS, PANEL_VECTORS, Stored, Tile};
use super::plan::{Item, Plan, SPAN};
use super::scratch::{Place, ROWS_PADDED, Scratch, State};
use crate::level::Level;
use crate::pool::{self, Work};
use crate::simd::{self, Vector};
use half::f16;
use std::cell::RefCell;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

/// Addresses of the contiguous tensors of a layer's cache, see `CacheShape`.
#[derive(Clone, Copy, Debug)]
pub enum Cache {
    /// float32 K and V, each [pages, kv_heads, page_size, head_dim].
    Float32 {
        /// K.
        k: usize,
        /// V.
        v: usize,
    },
    /// float16 K and V, each [pages, kv_heads, page_size, head_dim].
    Float16 {
        /// K.
        k: usize,
        /// V.
        v: usize,
    },
    /// int8 K and V, each [pages, kv_heads, page_size, head_dim]; a value is the number times the
    /// scale of its row.
    Int8 {
        /// K.
        k: usize,
        /// V.
        v: usize,
        /// float32 [pages, kv_heads, page_size].
        k_scales: usize,
        /// float32 [pages, kv_heads, page_size].
        v_scales: usize,
    },
}

impl Cache {
    /// (address, bytes of a value) of K and of V.
    pub(super) fn sides(self) -> [(usize, usize); 2] {
        match self {
            Self::Float32 { k, v } => [(k, 4), (v, 4)],
            Self::Float16 { k, v } => [(k, 2), (v, 2)],
            Self::Int8 { k, v, .. } => [(k, 1), (v, 1)],
        }
    }
    /// Raises `Address` unless every address can be that of its tensor.
    pub(super) fn check_addresses(self) -> Result<(), AttentionError> {
        match self {
            Self::Float32 { k, v } => {
                check_address::<f32>("k_cache", k)?;
                check_address::<f32>("v_cache", v)
            }
            Self::Float16 { k, v } => {
                check_address::<f16>("k_cache", k)?;
                check_address::<f16>("v_cache", v)
            }
            Self::Int8 {
                k,
                v,
                k_scales,
                v_scales,
            } => {
                check_address::<i8>("k_cache", k)?;
                check_address::<i8>("v_cache", v)?;
                check_address::<f32>("k_scales", k_scales)?;
                check_address::<f32>("v_scales", v_scales)
            }
        }
    }
}

/// Addresses of contiguous tensors.
#[derive(Clone, Copy, Debug)]
pub struct Tensors {
    /// float32 [tokens, heads, head_dim], written.
    pub out: usize,
    /// float32 [tokens, heads, head_dim].
    pub q: usize,
    /// The cache.
    pub cache: Cache,
}

/// A checked and planned call, ready to be shared by threads.
#[derive(Debug)]
pub(super) struct Attention {
    pub batch: Batch,
    plan: Plan,
    pub tensors: Tensors,
    /// `scale * log2(e)`, put into the queries.
    pub scale: f32,
    level: Level,
}

impl Attention {
    /// # Safety
    /// The tensors have the shapes that `batch` states and live as long as this value is used; nothing
    /// else writes them or reads `out` meanwhile. `level` fits the CPU and `head_dim`.
    pub unsafe fn new(batch: Batch, tensors: Tensors, level: Level) -> Self {
        Self {
            plan: Plan::new(&batch, pool::threads()),
            scale: batch.query.scale * std::f32::consts::LOG2_E,
            batch,
            tensors,
            level,
        }
    }
}

impl Work for Attention {
    fn items(&self) -> usize {
        self.plan.items.len()
    }

    fn run(&self, i: usize) {
        let item = &self.plan.items[i];
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.fit(self.batch.shape.head_dim);
            // SAFETY: `new` was promised good tensors and a level that the CPU has; items write
            // different rows of `out`.
            unsafe {
                match self.level {
                    Level::Scalar => run::<simd::Lanes<1>>(self, item, scratch),
                    Level::Portable => run::<simd::Lanes<8>>(self, item, scratch),
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => run_avx2(self, item, scratch),
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 => run_avx512(self, item, scratch),
                    #[cfg(not(target_arch = "x86_64"))]
                    Level::Avx2 | Level::Avx512 => unreachable!("Level::fits says no"),
                }
            }
        });
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2(attention: &Attention, item: &Item, scratch: &mut Scratch) {
    // SAFETY: as in `Work::run`.
    unsafe { run::<simd::x86::Avx2>(attention, item, scratch) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma")]
unsafe fn run_avx512(attention: &Attention, item: &Item, scratch: &mut Scratch) {
    // SAFETY: as in `Work::run`.
    unsafe { run::<simd::x86::Avx512>(attention, item, scratch) }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::EMPTY) };
}

#[inline(always)]
unsafe fn run<V: Vector>(attention: &Attention, item: &Item, scratch: &mut Scratch) {
    let batch = &attention.batch;
    let (rows, head_dim) = (item.rows_all(), batch.shape.head_dim);
    // Every pointer into the scratch below stays inside what `fit` made room for.
    assert!(item.kv_heads.len() * item.stride() <= ROWS_PADDED);
    let start = batch.start(item.sequence, item.rows.start);
    let end = batch.limit(item.sequence, item.rows.end - 1);
    // SAFETY: the pointers of the tensors are good by `Attention::new`, those of the scratch by `fit`.
    unsafe { gather::queries::<V>(attention, item, scratch) };
    scratch.total.clear(rows, head_dim);
    for span in item.spans.clone() {
        scratch.span.clear(rows, head_dim);
        let span_end = end.min((span + 1) * SPAN);
        // Tiles start at multiples of KEYS whatever the window is: a row meets the same tiles in any
        // item.
        let span_start = (start - start % KEYS).max(span * SPAN);
        for first in (span_start..span_end).step_by(KEYS) {
            let keys = KEYS.min(span_end - first);
            gather::tile::<V>(attention, item, &(start..end), first..first + keys, scratch);
            for head in 0..item.kv_heads.len() {
                // SAFETY: as above; the tile's rows are in the cache.
                unsafe { run_tile::<V>(attention, item, scratch, (head, first, keys)) };
            }
        }
        let State { max, sum, mix } = &scratch.span;
        let mix = &mix[..rows * head_dim];
        let Some(part) = item.part else {
            scratch.total.fold(rows, max, sum, mix);
            continue;
        };
        let values = [&max[..rows], &sum[..rows], mix].concat();
        let merge = &attention.plan.merges[part.merge];
        let Some(parts) = merge.put(part.index, values.into_boxed_slice()) else {
            return;
        };
        for values in parts {
            let (max, rest) = values.split_at(rows);
            let (sum, mix) = rest.split_at(rows);
            scratch.total.fold(rows, max, sum, mix);
        }
    }
    // SAFETY: as above, and no other item writes these rows.
    unsafe { write_out(attention, item, &scratch.total) };
}

#[inline(always)]
unsafe fn run_tile<V: Vector>(
    attention: &Attention,
    item: &Item,
    scratch: &mut Scratch,
    (head, first, keys): (usize, usize, usize),
) {
    let shape = &attention.batch.shape;
    let head_dim = shape.head_dim;
    // Heads of a page lie one after the other. After the last head comes the first one of the next
    // tile.
    let rows_before = head * shape.page_size;
    let last = head + 1 == item.kv_heads.len();
    let place = Place {
        first,
        keys,
        rows_before,
        next: if last {
            None
        } else {
            Some(rows_before + shape.page_size)
        },
        head_dim,
    };
    let start = head * item.stride();
    // SAFETY: `gather::tile` found rows of the cache; each has its scales. Few rows are at most
    // DOT_ROWS, so that scores [rows, KEYS] fit.
    unsafe {
        match attention.tensors.cache {
            Cache::Float32 { k, v } => {
                let (k, v) = (with_exposed_provenance(k), with_exposed_provenance(v));
                let tile = scratch.tile::<f32>(k, v, &place);
                if item.by_dots {
                    let rows = scratch.rows_from(start, 0, item.rows.len(), head_dim);
                    kernel::dots::<V, f32>(&tile, &rows);
                } else {
                    run_panels::<V>(item, scratch, start, tile);
                }
            }
            Cache::Float16 { k, v } => {
                let (k, v) = (with_exposed_provenance(k), with_exposed_provenance(v));
                let tile = scratch.tile::<f16>(k, v, &place);
                run_converted::<V, f16>(item, scratch, start, &tile);
            }
            Cache::Int8 {
                k,
                v,
                k_scales,
                v_scales,
            } => {
                scratch.take_scales::<V>(
                    with_exposed_provenance(k_scales),
                    with_exposed_provenance(v_scales),
                    &place,
                );
                let (k, v) = (with_exposed_provenance(k), with_exposed_provenance(v));
                let tile = scratch.tile::<i8>(k, v, &place);
                run_converted::<V, i8>(item, scratch, start, &tile);
            }
        }
    }
}

/// Every row against a tile of values that become float32 on the way.
#[inline(always)]
unsafe fn run_converted<V: Vector, E: Stored>(
    item: &Item,
    scratch: &mut Scratch,
    start: usize,
    tile: &Tile<E>,
) {
    // SAFETY: as in `run_tile`.
    unsafe {
        if item.by_dots {
            let rows = scratch.rows_from(start, 0, item.rows.len(), tile.head_dim);
            kernel::dots::<V, E>(tile, &rows);
        } else {
            let tile = kernel::widen::<V, E>(tile, &scratch.space());
            run_panels::<V>(item, scratch, start, tile);
        }
    }
}

/// Every panel of rows against a tile.
#[inline(always)]
unsafe fn run_panels<V: Vector>(
    item: &Item,
    scratch: &mut Scratch,
    first_row: usize,
    mut tile: Tile<f32>,
) {
    let keys = tile.keys;
    let panel = PANEL_VECTORS * V::LANES;
    for start in (0..item.rows.len()).step_by(panel) {
        let count = panel.min(item.rows.len() - start);
        // What no row of the panel sees is not computed.
        let seen = scratch.limits[start + count - 1] as usize;
        tile.keys = keys.min(seen.saturating_sub(tile.first));
        if tile.keys == 0 || tile.first + tile.keys <= scratch.starts[start] as usize {
            continue;
        }
        let rows = scratch.rows_from(first_row, start, count, tile.head_dim);
        // SAFETY: a panel of at most PANEL_VECTORS vectors, within ROWS_PADDED rows.
        unsafe { kernel::lanes::<V>(&tile, &rows) };
        (tile.fetch, tile.far) = (false, None);
    }
}

unsafe fn write_out(attention: &Attention, item: &Item, total: &State) {
    let head_dim = attention.batch.shape.head_dim;
    let out = with_exposed_provenance_mut::<f32>(attention.tensors.out);
    for (head, kv_head) in item.kv_heads.clone().enumerate() {
        for row in 0..item.rows.len() {
            let start = row_start(&attention.batch, item, kv_head, row);
            // SAFETY: the row lies inside of out, and is this item's alone.
            let to = unsafe { std::slice::from_raw_parts_mut(out.add(start), head_dim) };
            let row = head * item.stride() + row;
            let mix = &total.mix[row * head_dim..(row + 1) * head_dim];
            for (x, y) in to.iter_mut().zip(mix) {
                *x = y / total.sum[row];
            }
        }
    }
}
