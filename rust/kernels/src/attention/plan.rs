//! How a batch is cut into items for threads.
//!
//! Owns the cut; touches no tensor. A sequence is cut into rows and spans by its own numbers alone
//! (queries, context, heads), never by what else is in the batch or by the number of threads, so that its
//! results are bit for bit the same in any batch. How many K/V heads share an item does depend on both,
//! and changes no result: each has its own rows.

use super::batch::Batch;
use super::kernel::KEYS;
use crate::simd::LANES_MAX;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Positions of a span. Every context is computed span by span and the spans are folded in order.
pub(super) const SPAN: usize = 10 * KEYS;

/// Rows of an item: a row is one query head at one position.
pub(super) const TILE_ROWS: usize = 96;

/// Up to so many rows for a K/V head, rows are computed by dot products (lanes run over `head_dim`),
/// above by lanes that run over rows.
pub(super) const DOT_ROWS: usize = 8;

/// Up to so many rows for a K/V head, spans are items of their own (there are few tiles to share, and
/// the parts are small); above, an item takes all spans of its tile.
const SPLIT_ROWS: usize = 256;

/// Rows that the heads of an item may have together. Heads of a page lie side by side, and reading on is
/// faster than jumping: an item takes as many as fit.
const ITEM_ROWS: usize = 48;

/// Items for each thread, before an item takes more heads than one.
const ITEMS_PER_THREAD: usize = 4;

/// Work for one thread: some rows of some K/V heads of a sequence against some spans of its context.
#[derive(Debug)]
pub(super) struct Item {
    pub sequence: usize,
    pub kv_heads: Range<usize>,
    /// Rows of each of the heads: row r is position r / group of its queries, head r % group of the K/V head.
    pub rows: Range<usize>,
    pub spans: Range<usize>,
    /// Rows are few: dot products.
    pub by_dots: bool,
    /// Set when the spans of the tile are shared among items.
    pub part: Option<Part>,
}

impl Item {
    /// Rows from one head to the next in the memory of the item.
    pub fn stride(&self) -> usize {
        padded_rows(self.rows.len(), self.by_dots)
    }

    /// Rows of all heads in the memory of the item.
    pub fn rows_all(&self) -> usize {
        (self.kv_heads.len() - 1) * self.stride() + self.rows.len()
    }
}

/// Where the result of an item's span goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub merge: usize,
    pub index: usize,
}

/// The spans of one tile, computed by several items; the last one to finish folds them.
#[derive(Debug)]
pub(super) struct Merge {
    parts: Vec<OnceLock<Box<[f32]>>>,
    left: AtomicUsize,
}

impl Merge {
    fn new(count: usize) -> Self {
        Self {
            parts: (0..count).map(|_| OnceLock::new()).collect(),
            left: AtomicUsize::new(count),
        }
    }

    /// Puts a part down; gives all parts in order to the caller that brings the last one.
    pub fn put(&self, index: usize, part: Box<[f32]>) -> Option<impl Iterator<Item = &[f32]>> {
        let fresh = self.parts[index].set(part).is_ok();
        debug_assert!(fresh, "a part is put down once");
        // The last one must see what the others wrote.
        let last = self.left.fetch_sub(1, Ordering::AcqRel) == 1;
        last.then(|| {
            self.parts
                .iter()
                .filter_map(|part| part.get().map(|p| &**p))
        })
    }
}

/// The items of a batch, the most expensive first.
#[derive(Debug)]
pub(super) struct Plan {
    pub items: Vec<Item>,
    pub merges: Vec<Merge>,
}

impl Plan {
    /// The cut for so many threads. Which heads share an item changes no result.
    pub fn new(batch: &Batch, threads: usize) -> Self {
        let mut plan = Self {
            items: Vec::new(),
            merges: Vec::new(),
        };
        let spans = |s: usize| batch.sequences[s].context.div_ceil(SPAN);
        let kv_heads = batch.shape.kv_heads;
        let parts = kv_heads * (0..batch.sequences.len()).map(spans).sum::<usize>();
        let heads_max = parts / (ITEMS_PER_THREAD * threads);
        for (i, sequence) in batch.sequences.iter().enumerate() {
            let rows = sequence.queries * batch.group();
            let rows = padded_rows(rows, rows <= DOT_ROWS);
            let heads = (ITEM_ROWS / rows.max(1)).min(heads_max).max(1);
            for first in (0..kv_heads).step_by(heads) {
                plan.cut(batch, i, first..kv_heads.min(first + heads));
            }
        }
        // Long ones first, so that the threads end together.
        plan.items
            .sort_by_cached_key(|item| std::cmp::Reverse(cost(batch, item)));
        plan
    }

    fn cut(&mut self, batch: &Batch, sequence: usize, kv_heads: Range<usize>) {
        let rows_all = batch.sequences[sequence].queries * batch.group();
        for first in (0..rows_all).step_by(TILE_ROWS) {
            let rows = first..rows_all.min(first + TILE_ROWS);
            let spans = batch.start(sequence, rows.start) / SPAN
                ..batch.limit(sequence, rows.end - 1).div_ceil(SPAN);
            let item = |spans, part| Item {
                sequence,
                kv_heads: kv_heads.clone(),
                rows: rows.clone(),
                spans,
                by_dots: rows_all <= DOT_ROWS,
                part,
            };
            if spans.len() == 1 || rows_all > SPLIT_ROWS {
                self.items.push(item(spans, None));
                continue;
            }
            let merge = self.merges.len();
            self.merges.push(Merge::new(spans.len()));
            for (index, span) in spans.enumerate() {
                let part = Some(Part { merge, index });
                self.items.push(item(span..span + 1, part));
            }
        }
    }
}

/// Rows of a K/V head in the memory of an item: whole vectors, when lanes run over rows.
fn padded_rows(rows: usize, by_dots: bool) -> usize {
    if by_dots {
        rows
    } else {
        rows.next_multiple_of(LANES_MAX)
    }
}

/// What an item costs, in rows times positions.
fn cost(batch: &Batch, item: &Item) -> usize {
    let seen = batch.limit(item.sequence, item.rows.end - 1);
    let start = batch.start(item.sequence, item.rows.start);
    let positions = seen.min(item.spans.end * SPAN) - start.max(item.spans.start * SPAN);
    // Reading K/V costs about as much as computing a few rows.
    (item.rows.len() + 4) * item.kv_heads.len() * positions
}
