//! A ragged batch whose every length, page id and slot has been checked.
//!
//! Owns the checks; reads no tensor. What `Batch` and `Slots` hold may be used as an index without
//! looking again: the kernel relies on it.

use crate::address;
use thiserror::Error;

/// The largest context: positions stay exact as float32.
const CONTEXT_TOKENS_MAX: u32 = 1 << 24;

/// What does not fit in the arguments of an attention call.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AttentionError {
    /// A number that must be positive is not, or a product of sizes does not fit into memory.
    #[error("bad shape: {0}")]
    Shape(&'static str),
    /// The arrays of a batch contradict each other.
    #[error("bad batch: {0}")]
    Batch(&'static str),
    /// A page id that the cache does not have.
    #[error("page {page} of a page table is outside of a cache of {pages} pages")]
    Page {
        /// The page id.
        page: u32,
        /// Pages in the cache.
        pages: usize,
    },
    /// A slot that the cache does not have.
    #[error("slot {slot} is outside of a cache of {slots} slots")]
    Slot {
        /// The slot, page * page_size + row.
        slot: u32,
        /// Slots in the cache.
        slots: usize,
    },
    /// A tensor's address is zero, or one where its type cannot lie.
    #[error("the address of {0} is not that of a tensor of its type")]
    Address(&'static str),
}

/// The shape of a layer's cache: [pages, kv_heads, page_size, head_dim], once for K, once for V.
///
/// The first three count its rows; an int8 cache has a scale for each.
#[derive(Clone, Copy, Debug)]
pub struct CacheShape {
    /// K/V heads.
    pub kv_heads: usize,
    /// Values in a head.
    pub head_dim: usize,
    /// Pages in the cache.
    pub pages: usize,
    /// Positions in a page.
    pub page_size: usize,
}

impl CacheShape {
    /// Raises `Shape` unless every size is positive and the cache fits into memory.
    pub(super) fn check(&self) -> Result<(), AttentionError> {
        let sizes = [self.kv_heads, self.head_dim, self.pages, self.page_size];
        check_sizes(&sizes)
    }

    /// The number of the row of a head in a page, from the start of the cache.
    pub(super) fn row(&self, page: usize, kv_head: usize, row: usize) -> usize {
        (page * self.kv_heads + kv_head) * self.page_size + row
    }
}

fn check_sizes(sizes: &[usize]) -> Result<(), AttentionError> {
    if sizes.contains(&0) {
        return Err(AttentionError::Shape("a size is zero"));
    }
    let bytes = sizes
        .iter()
        .try_fold(4_usize, |n, size| n.checked_mul(*size));
    match bytes {
        Some(n) if isize::try_from(n).is_ok() => Ok(()),
        _ => Err(AttentionError::Shape("a tensor would not fit into memory")),
    }
}

/// Raises `Address` unless the address can be that of values of type `T`.
pub(super) fn check_address<T>(name: &'static str, address: usize) -> Result<(), AttentionError> {
    if address::can_be_of::<T>(address) {
        Ok(())
    } else {
        Err(AttentionError::Address(name))
    }
}

/// How queries look at the cache.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// Query heads; a multiple of the K/V heads.
    pub heads: usize,
    /// Scores are multiplied by it.
    pub scale: f32,
    /// A query sees at most so many positions, its own included; pages that lie before them all are
    /// not read. None: the whole context.
    pub window: Option<u32>,
}

impl Query {
    fn check(&self, shape: &CacheShape) -> Result<(), AttentionError> {
        if self.heads == 0 || !self.heads.is_multiple_of(shape.kv_heads) {
            return Err(AttentionError::Shape(
                "heads is not a positive multiple of kv_heads",
            ));
        }
        if !self.scale.is_finite() {
            return Err(AttentionError::Shape("scale is not finite"));
        }
        if self.window == Some(0) {
            return Err(AttentionError::Shape("a window of no positions"));
        }
        Ok(())
    }
}

/// The sequences of one attention call, as the caller gives them; see `Batch::new`.
#[derive(Clone, Copy, Debug)]
pub struct Ragged<'a> {
    /// [sequences + 1] ranges of query rows.
    pub query_starts: &'a [u32],
    /// [sequences] positions of each sequence, the new ones included.
    pub context_lens: &'a [u32],
    /// Page ids of all sequences, one after the other, in position order.
    pub page_tables: &'a [u32],
    /// [sequences + 1] ranges of `page_tables`.
    pub page_starts: &'a [u32],
}

/// A sequence of a checked batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sequence {
    /// Its first query row.
    pub query_start: usize,
    /// Its query rows: the last positions of its context.
    pub queries: usize,
    /// Its positions.
    pub context: usize,
    /// Where its page table starts.
    pub page_start: usize,
}

/// A checked batch.
#[derive(Debug)]
pub(super) struct Batch {
    pub shape: CacheShape,
    pub query: Query,
    pub sequences: Vec<Sequence>,
    pub page_tables: Vec<u32>,
}

impl Batch {
    /// Checks everything; after it each position of each sequence has a page of the cache.
    pub fn new(
        shape: CacheShape,
        query: Query,
        ragged: Ragged<'_>,
    ) -> Result<Self, AttentionError> {
        shape.check()?;
        query.check(&shape)?;
        let count = ragged.context_lens.len();
        let queries = check_starts(ragged.query_starts, count, "query_starts")?;
        let table_len = check_starts(ragged.page_starts, count, "page_starts")?;
        if table_len != ragged.page_tables.len() {
            return Err(AttentionError::Batch(
                "page_starts does not end where page_tables ends",
            ));
        }
        check_sizes(&[queries.max(1), query.heads, shape.head_dim])?;
        for &page in ragged.page_tables {
            if page as usize >= shape.pages {
                return Err(AttentionError::Page {
                    page,
                    pages: shape.pages,
                });
            }
        }
        let sequences = (0..count).map(|i| sequence(&ragged, i, shape.page_size));
        Ok(Self {
            shape,
            query,
            sequences: sequences.collect::<Result<_, _>>()?,
            page_tables: ragged.page_tables.to_vec(),
        })
    }

    /// Query heads that share a K/V head.
    pub fn group(&self) -> usize {
        self.query.heads / self.shape.kv_heads
    }

    /// One more than the last position that a row of a sequence sees: its own, since the queries are
    /// the last positions. Row r is position r / group of the queries.
    pub fn limit(&self, sequence: usize, row: usize) -> usize {
        let s = &self.sequences[sequence];
        s.context - s.queries + row / self.group() + 1
    }

    /// The first position that a row of a sequence sees.
    pub fn start(&self, sequence: usize, row: usize) -> usize {
        let window = self.query.window.map_or(usize::MAX, |n| n as usize);
        self.limit(sequence, row).saturating_sub(window)
    }
}

/// Returns the last start; raises `Batch` unless there are `count + 1`, from 0 on, never falling.
fn check_starts(starts: &[u32], count: usize, name: &'static str) -> Result<usize, AttentionError> {
    let good = starts.len() == count + 1 && starts[0] == 0 && starts.is_sorted();
    if good {
        Ok(starts[count] as usize)
    } else if name == "query_starts" {
        Err(AttentionError::Batch(
            "query_starts is not [sequences + 1] rising from 0",
        ))
    } else {
        Err(AttentionError::Batch(
            "page_starts is not [sequences + 1] rising from 0",
        ))
    }
}

fn sequence(ragged: &Ragged<'_>, i: usize, page_size: usize) -> Result<Sequence, AttentionError> {
    let range = |starts: &[u32]| (starts[i] as usize, (starts[i + 1] - starts[i]) as usize);
    let (query_start, queries) = range(ragged.query_starts);
    let (page_start, pages) = range(ragged.page_starts);
    let context = ragged.context_lens[i];
    if context > CONTEXT_TOKENS_MAX {
        return Err(AttentionError::Batch("a context is longer than 2^24"));
    }
    let context = context as usize;
    if queries > context {
        return Err(AttentionError::Batch(
            "a sequence has more queries than its context has positions",
        ));
    }
    if context.div_ceil(page_size) > pages {
        return Err(AttentionError::Batch(
            "a page table is too short for its context",
        ));
    }
    Ok(Sequence {
        query_start,
        queries,
        context,
        page_start,
    })
}

/// Raises `Slot` for a slot outside of the cache, `Shape` when the new rows cannot exist.
pub(super) fn check_slots(shape: &CacheShape, slots: &[u32]) -> Result<(), AttentionError> {
    shape.check()?;
    check_sizes(&[slots.len().max(1), shape.kv_heads, shape.head_dim])?;
    let count = shape.pages * shape.page_size;
    match slots.iter().find(|slot| **slot as usize >= count) {
        None => Ok(()),
        Some(&slot) => Err(AttentionError::Slot { slot, slots: count }),
    }
}
