//! What an item reads, brought into the order of the kernel.
//!
//! Owns the way from rows and positions to places in q, out and the caches; computes no attention.

use super::batch::{Batch, CacheShape, Sequence};
use super::item::{Attention, Cache};
use super::kernel::{self, KEYS, PANEL_VECTORS};
use super::plan::Item;
use super::scratch::{Found, Run, Scratch};
use crate::quantise::quantise_to;
use crate::simd::{LANES_MAX, Vector};
use std::ops::Range;
use std::ptr::with_exposed_provenance;

/// Where a row of one of the item's K/V heads starts in q and out, in values.
pub(super) fn row_start(batch: &Batch, item: &Item, kv_head: usize, row: usize) -> usize {
    let (group, row) = (batch.group(), item.rows.start + row);
    let token = batch.sequences[item.sequence].query_start + row / group;
    let head = kv_head * group + row % group;
    (token * batch.query.heads + head) * batch.shape.head_dim
}

/// Copies the item's queries, scaled, in the order that the kernel reads, and sets what rows see.
///
/// # Safety
/// q is good by `Attention::new`, the scratch by `fit`.
#[inline(always)]
pub(super) unsafe fn queries<V: Vector>(attention: &Attention, item: &Item, scratch: &mut Scratch) {
    let (batch, rows) = (&attention.batch, item.rows.len());
    let head_dim = batch.shape.head_dim;
    let padded = rows.next_multiple_of(V::LANES);
    for row in 0..padded {
        let real = item.rows.start + row.min(rows - 1);
        scratch.starts[row] = batch.start(item.sequence, real) as f32;
        scratch.limits[row] = batch.limit(item.sequence, real) as f32;
    }
    let has_scales = matches!(attention.tensors.cache, Cache::Int8 { .. });
    let in_pairs = kernel::in_pairs::<V>(has_scales, head_dim);
    for (head, kv_head) in item.kv_heads.clone().enumerate() {
        let first = head * item.stride();
        let to = &mut scratch.q[first * head_dim..];
        // SAFETY: as stated.
        unsafe {
            if in_pairs {
                let scales = &mut scratch.q_scales[first..];
                pair_queries::<V>(attention, item, kv_head, to, scales);
            } else {
                head_queries::<V>(attention, item, kv_head, to);
            }
        }
    }
}

#[inline(always)]
unsafe fn head_queries<V: Vector>(
    attention: &Attention,
    item: &Item,
    kv_head: usize,
    to: &mut [f32],
) {
    let (batch, rows) = (&attention.batch, item.rows.len());
    let head_dim = batch.shape.head_dim;
    let padded = rows.next_multiple_of(V::LANES);
    let scale = attention.scale;
    // SAFETY: as stated.
    let row_at = |row: usize| unsafe { query(attention, item, kv_head, row) };
    if item.by_dots {
        for (row, to) in to.chunks_exact_mut(head_dim).take(rows).enumerate() {
            to.iter_mut()
                .zip(row_at(row))
                .for_each(|(x, y)| *x = y * scale);
        }
        return;
    }
    let panel = PANEL_VECTORS * V::LANES;
    for first in (0..rows).step_by(panel) {
        let width = panel.min(padded - first);
        let to = &mut to[first * head_dim..(first + width) * head_dim];
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

/// A row's query; rows that only fill up a panel repeat the last one, nothing of them is kept.
unsafe fn query<'a>(attention: &Attention, item: &Item, kv_head: usize, row: usize) -> &'a [f32] {
    let row = row.min(item.rows.len() - 1);
    let start = row_start(&attention.batch, item, kv_head, row);
    let q = with_exposed_provenance::<f32>(attention.tensors.q);
    // SAFETY: the row lies inside of q, by the checks of `Batch`.
    unsafe { std::slice::from_raw_parts(q.add(start), attention.batch.shape.head_dim) }
}

/// A head's queries as int16 panels [head_dim / 2, rows of the panel, 2], each row over its own largest value; a row
/// is a panel by dots.
#[inline(always)]
unsafe fn pair_queries<V: Vector>(
    attention: &Attention,
    item: &Item,
    kv_head: usize,
    to: &mut [f32],
    scales: &mut [f32],
) {
    let head_dim = attention.batch.shape.head_dim;
    let mut whole = [0; kernel::PAIRS_DIM_MAX];
    let whole = &mut whole[..head_dim];
    let (lanes, panel) = if item.by_dots {
        (1, 1)
    } else {
        (V::LANES, PANEL_VECTORS * V::LANES)
    };
    let padded = item.rows.len().next_multiple_of(lanes);
    for first in (0..padded).step_by(panel) {
        let width = panel.min(padded - first);
        let to = to[first * head_dim..].as_mut_ptr().cast::<[i16; 2]>();
        for lane in 0..width {
            // SAFETY: as stated.
            let from = unsafe { query(attention, item, kv_head, first + lane) };
            scales[first + lane] = quantise_to(i16::MAX, from, whole) * attention.scale;
            for (i, pair) in whole.as_chunks().0.iter().enumerate() {
                // SAFETY: `to` has room for [head_dim / 2, width] pairs, half of what float32 takes.
                unsafe { to.add(i * width + lane).write(*pair) };
            }
        }
    }
}

/// Finds the rows of the item's first K/V head in a tile, and in the one after it, and touches the
/// pages of the fourth.
///
/// `seen` are the positions that any row of the item sees; no page outside of them is read.
#[inline(always)]
pub(super) fn tile<V: Vector>(
    attention: &Attention,
    item: &Item,
    seen: &Range<usize>,
    positions: Range<usize>,
    scratch: &mut Scratch,
) {
    let batch = &attention.batch;
    let next = positions.end.min(seen.end - 1);
    let next = next..seen.end.min(next + KEYS);
    let far = seen.end.min(next.end + KEYS)..seen.end.min(next.end + 2 * KEYS);
    std::mem::swap(&mut scratch.here, &mut scratch.ahead);
    if scratch.here.positions != positions {
        find(batch, item, seen.start, positions, &mut scratch.here);
    }
    find(batch, item, seen.start, next, &mut scratch.ahead);
    touch::<V>(attention, item, far);
}

/// Touches the first row of each page, so that the CPU translates its address long before it is read:
/// pages lie anywhere, and where the host's pages are small that takes longer than the reading.
#[inline(always)]
fn touch<V: Vector>(attention: &Attention, item: &Item, positions: Range<usize>) {
    let batch = &attention.batch;
    let page_size = batch.shape.page_size;
    let Sequence { page_start, .. } = batch.sequences[item.sequence];
    let first = page_start + positions.start / page_size;
    let count = positions.len().div_ceil(page_size);
    for &page in batch.page_tables[first..].iter().take(count) {
        let row = batch.shape.row(page as usize, item.kv_heads.start, 0);
        for (side, value_bytes) in attention.tensors.cache.sides() {
            let side = with_exposed_provenance::<u8>(side);
            let row = side.wrapping_add(row * batch.shape.head_dim * value_bytes);
            // SAFETY: a fetch reads nothing.
            unsafe { V::prefetch(row) };
        }
    }
}

/// Finds the K/V rows of some positions through the page table.
///
/// Positions before `start` get the place of the first one that is seen; the last place is repeated to
/// the end.
fn find(batch: &Batch, item: &Item, start: usize, positions: Range<usize>, found: &mut Found) {
    let Sequence { page_start, .. } = batch.sequences[item.sequence];
    let CacheShape {
        page_size,
        head_dim,
        ..
    } = batch.shape;
    let lead = start.saturating_sub(positions.start);
    let first = positions.start + lead;
    let pages = &batch.page_tables[page_start + first / page_size..];
    let (mut key, mut row) = (lead, first % page_size);
    found.runs.clear();
    for &page in pages {
        let count = (page_size - row).min(positions.len() - key);
        let first = batch.shape.row(page as usize, item.kv_heads.start, row);
        found.runs.push(Run {
            key,
            row: first,
            count,
        });
        let offsets = &mut found.offsets[key..key + count];
        let mut at = first * head_dim;
        for offset in offsets {
            *offset = at;
            at += head_dim;
        }
        (key, row) = (key + count, 0);
        if key == positions.len() {
            break;
        }
    }
    let (first, last) = (found.offsets[lead], found.offsets[key - 1]);
    found.offsets[..lead].fill(first);
    found.offsets[key..].fill(last);
    found.positions = positions;
}
