//! One item of a planned batch: its rows against its spans of the context, page by page.
//!
//! Owns the choice of instruction set and the way through pages and spans; the inner loops are the
//! kernel's. Reads q, K and V and writes `out` through raw addresses that `Attention::new` was
//! promised to be good.

use super::batch::{Batch, Sequence};
use super::kernel::{self, KEYS, PANEL_VECTORS, Rows, Tile};
use super::plan::{Item, Plan, SPAN, limit};
use super::pool::Work;
use super::scratch::{LANES_MAX, Scratch, State};
use super::simd::{self, Vector};
use std::cell::RefCell;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

/// Addresses of contiguous float32 tensors; shapes as in `paged_attention`.
#[derive(Clone, Copy, Debug)]
pub struct Tensors {
    /// [tokens, heads, head_dim], written.
    pub out: usize,
    /// [tokens, heads, head_dim].
    pub q: usize,
    /// [pages, kv_heads, page_size, head_dim].
    pub k_cache: usize,
    /// [pages, kv_heads, page_size, head_dim].
    pub v_cache: usize,
}

/// The instructions that a call uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// One value at a time, for a `head_dim` that no vector divides.
    Scalar,
    /// What the compiler makes of eight values at a time.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512F.
    Avx512,
}

impl Level {
    /// The best level of this CPU for a `head_dim`.
    pub fn detect(head_dim: usize) -> Self {
        let all = [Self::Avx512, Self::Avx2, Self::Portable];
        let best = all.into_iter().find(|level| level.fits(head_dim));
        best.unwrap_or(Self::Scalar)
    }

    /// Whether this CPU has the instructions and their vectors divide `head_dim`.
    pub fn fits(self, head_dim: usize) -> bool {
        match self {
            Self::Scalar => true,
            Self::Portable => head_dim.is_multiple_of(8),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                head_dim.is_multiple_of(8)
                    && is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => head_dim.is_multiple_of(16) && is_x86_feature_detected!("avx512f"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }
}

/// A checked and planned call, ready to be shared by threads.
#[derive(Debug)]
pub(super) struct Attention {
    batch: Batch,
    plan: Plan,
    tensors: Tensors,
    /// `scale * log2(e)`, put into the queries.
    scale: f32,
    level: Level,
}

impl Attention {
    /// # Safety
    /// The tensors have the shapes that `batch` states and live as long as this value is used; nothing
    /// else writes them or reads `out` meanwhile. `level` fits the CPU and `head_dim`.
    pub unsafe fn new(batch: Batch, tensors: Tensors, scale: f32, level: Level) -> Self {
        Self {
            plan: Plan::new(&batch),
            batch,
            tensors,
            scale: scale * std::f32::consts::LOG2_E,
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
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2(attention: &Attention, item: &Item, scratch: &mut Scratch) {
    // SAFETY: as in `Work::run`.
    unsafe { run::<simd::x86::Avx2>(attention, item, scratch) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
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
    let (rows, head_dim) = (item.rows.len(), batch.shape.head_dim);
    let end = limit(batch, item.sequence, item.rows.end - 1);
    // SAFETY: the pointers of the tensors are good by `Attention::new`, those of the scratch by `fit`.
    unsafe { gather_queries::<V>(attention, item, scratch) };
    scratch.total.clear(rows, head_dim);
    for span in item.spans.clone() {
        scratch.span.clear(rows, head_dim);
        let span_end = end.min((span + 1) * SPAN);
        for first in (span * SPAN..span_end).step_by(KEYS) {
            let keys = KEYS.min(span_end - first);
            find_rows(batch, item, first..first + keys, &mut scratch.offsets);
            let next = (first + keys).min(end - 1);
            find_rows(batch, item, next..end.min(next + KEYS), &mut scratch.next);
            // SAFETY: as above; `find_rows` gives offsets inside of the caches.
            unsafe { run_tile::<V>(attention, item, scratch, first, keys) };
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

/// Where a row of the item starts in q and out, in values.
fn row_start(batch: &Batch, item: &Item, row: usize) -> usize {
    let (group, row) = (batch.group(), item.rows.start + row);
    let token = batch.sequences[item.sequence].query_start + row / group;
    let head = item.kv_head * group + row % group;
    (token * batch.heads + head) * batch.shape.head_dim
}

/// Copies the item's queries, scaled, in the order that the kernel reads, and sets the limits.
#[inline(always)]
unsafe fn gather_queries<V: Vector>(attention: &Attention, item: &Item, scratch: &mut Scratch) {
    let (batch, rows) = (&attention.batch, item.rows.len());
    let head_dim = batch.shape.head_dim;
    let padded = rows.next_multiple_of(V::LANES);
    for row in 0..padded {
        let real = item.rows.start + row.min(rows - 1);
        scratch.limits[row] = limit(batch, item.sequence, real) as f32;
    }
    let scale = attention.scale;
    // Rows that only fill up a panel repeat the last one; nothing of them is kept.
    let row_at = |row: usize| {
        let start = row_start(batch, item, row.min(rows - 1));
        let q = with_exposed_provenance::<f32>(attention.tensors.q);
        // SAFETY: the row lies inside of q, by the checks of `Batch`.
        unsafe { std::slice::from_raw_parts(q.add(start), head_dim) }
    };
    if item.by_dots {
        for (row, to) in scratch.q.chunks_exact_mut(head_dim).take(rows).enumerate() {
            to.iter_mut()
                .zip(row_at(row))
                .for_each(|(x, y)| *x = y * scale);
        }
        return;
    }
    let panel = PANEL_VECTORS * V::LANES;
    for first in (0..rows).step_by(panel) {
        let width = panel.min(padded - first);
        let to = &mut scratch.q[first * head_dim..(first + width) * head_dim];
        for lane in (0..width).step_by(V::LANES) {
            // Written line by line: LANES rows are read side by side.
            let mut from: [&[f32]; LANES_MAX] = [&[]; LANES_MAX];
            for (i, row) in from[..V::LANES].iter_mut().enumerate() {
                *row = row_at(first + lane + i);
            }
            for (i, line) in to.chunks_exact_mut(width).enumerate() {
                for (x, row) in line[lane..lane + V::LANES].iter_mut().zip(&from) {
                    *x = row[i] * scale;
                }
            }
        }
    }
}

/// Finds the K/V rows of some positions through the page table; the last is repeated up to KEYS.
fn find_rows(batch: &Batch, item: &Item, positions: std::ops::Range<usize>, to: &mut [usize]) {
    let Sequence { page_start, .. } = batch.sequences[item.sequence];
    let page_size = batch.shape.page_size;
    let (mut i, mut position) = (0, positions.start);
    while position < positions.end {
        let page = batch.page_tables[page_start + position / page_size] as usize;
        let row = position % page_size;
        let count = (page_size - row).min(positions.end - position);
        let start = batch.shape.row(page, item.kv_head, row);
        for (n, offset) in to[i..i + count].iter_mut().enumerate() {
            *offset = start + n * batch.shape.head_dim;
        }
        i += count;
        position += count;
    }
    let last = to[i - 1];
    to[i..].fill(last);
}

#[inline(always)]
unsafe fn run_tile<V: Vector>(
    attention: &Attention,
    item: &Item,
    scratch: &mut Scratch,
    first: usize,
    keys: usize,
) {
    let head_dim = attention.batch.shape.head_dim;
    let mut tile = Tile {
        k: with_exposed_provenance(attention.tensors.k_cache),
        v: with_exposed_provenance(attention.tensors.v_cache),
        offsets: scratch.offsets.as_ptr(),
        next: scratch.next.as_ptr(),
        fetch: true,
        keys,
        first,
        head_dim,
    };
    let mut rows = Rows {
        rows: item.rows.len(),
        q: scratch.q.as_ptr(),
        limits: scratch.limits.as_ptr(),
        scores: scratch.scores.as_mut_ptr(),
        max: scratch.span.max.as_mut_ptr(),
        sum: scratch.span.sum.as_mut_ptr(),
        fix: scratch.fix.as_mut_ptr(),
        mix: scratch.span.mix.as_mut_ptr(),
    };
    if item.by_dots {
        // SAFETY: at most DOT_ROWS rows, so scores [rows, KEYS] fit.
        return unsafe { kernel::dots::<V>(&tile, &rows) };
    }
    let panel = PANEL_VECTORS * V::LANES;
    for start in (0..item.rows.len()).step_by(panel) {
        rows.rows = panel.min(item.rows.len() - start);
        // What the last row of the panel does not see is not computed.
        let seen = scratch.limits[start + rows.rows - 1] as usize;
        tile.keys = keys.min(seen.saturating_sub(first));
        if tile.keys == 0 {
            continue;
        }
        // SAFETY: a panel of at most PANEL_VECTORS vectors, within ROWS_PADDED rows.
        unsafe {
            rows.q = scratch.q.as_ptr().add(start * head_dim);
            rows.limits = scratch.limits.as_ptr().add(start);
            rows.max = scratch.span.max.as_mut_ptr().add(start);
            rows.sum = scratch.span.sum.as_mut_ptr().add(start);
            rows.fix = scratch.fix.as_mut_ptr().add(start);
            rows.mix = scratch.span.mix.as_mut_ptr().add(start * head_dim);
            match rows.rows.div_ceil(V::LANES) {
                1 => kernel::lanes::<V, 1>(&tile, &rows),
                _ => kernel::lanes::<V, PANEL_VECTORS>(&tile, &rows),
            }
        }
        tile.fetch = false;
    }
}

unsafe fn write_out(attention: &Attention, item: &Item, total: &State) {
    let head_dim = attention.batch.shape.head_dim;
    let out = with_exposed_provenance_mut::<f32>(attention.tensors.out);
    for row in 0..item.rows.len() {
        let start = row_start(&attention.batch, item, row);
        // SAFETY: the row lies inside of out, and is this item's alone.
        let to = unsafe { std::slice::from_raw_parts_mut(out.add(start), head_dim) };
        let mix = &total.mix[row * head_dim..(row + 1) * head_dim];
        for (x, y) in to.iter_mut().zip(mix) {
            *x = y / total.sum[row];
        }
    }
}
