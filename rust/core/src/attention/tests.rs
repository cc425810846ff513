//! The kernel against a slow float64 reference, at every instruction level this CPU has.

use super::batch::Batch;
use super::item::{Attention, Level};
use super::pool::{self, Work};
use super::{
    AttentionError, CacheShape, NewRows, Ragged, Tensors, paged_attention, simd, store_kv,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const LEVELS: [Level; 4] = [Level::Scalar, Level::Portable, Level::Avx2, Level::Avx512];

/// Small numbers that repeat from run to run (the generator of Numerical Recipes).
struct Random(u32);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }
    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }
    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n)
            .map(|_| self.next() as f32 / 8_388_608.0 - 1.0)
            .collect()
    }
}

struct Case {
    shape: CacheShape,
    heads: usize,
    query_starts: Vec<u32>,
    context_lens: Vec<u32>,
    page_tables: Vec<u32>,
    page_starts: Vec<u32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    scale: f32,
}

impl Case {
    /// `sequences`: (queries, context) of each.
    fn new(seed: u32, sequences: &[(usize, usize)], group: usize, shape: CacheShape) -> Self {
        let mut random = Random(seed);
        let (mut query_starts, mut page_starts) = (vec![0], vec![0]);
        let (mut context_lens, mut page_tables) = (Vec::new(), Vec::new());
        for &(queries, context) in sequences {
            query_starts.push(query_starts[query_starts.len() - 1] + queries as u32);
            context_lens.push(context as u32);
            for _ in 0..context.div_ceil(shape.page_size) {
                page_tables.push(random.below(shape.pages) as u32);
            }
            page_starts.push(page_tables.len() as u32);
        }
        let heads = group * shape.kv_heads;
        let tokens = query_starts[sequences.len()] as usize;
        let values = shape.pages * shape.kv_heads * shape.page_size * shape.head_dim;
        Self {
            shape,
            heads,
            q: random.values(tokens * heads * shape.head_dim),
            k: random.values(values),
            v: random.values(values),
            query_starts,
            context_lens,
            page_tables,
            page_starts,
            scale: 0.7,
        }
    }

    fn ragged(&self) -> Ragged<'_> {
        Ragged {
            query_starts: &self.query_starts,
            context_lens: &self.context_lens,
            page_tables: &self.page_tables,
            page_starts: &self.page_starts,
        }
    }

    fn tensors(&self, out: &mut [f32]) -> Tensors {
        Tensors {
            out: out.as_mut_ptr().expose_provenance(),
            q: self.q.as_ptr().expose_provenance(),
            k_cache: self.k.as_ptr().expose_provenance(),
            v_cache: self.v.as_ptr().expose_provenance(),
        }
    }

    fn run(&self, level: Level) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.q.len()];
        let batch = Batch::new(self.shape, self.heads, self.ragged()).expect("a good batch");
        // SAFETY: the vectors have the shapes of the case, and the CPU was asked for the level.
        let attention = unsafe { Attention::new(batch, self.tensors(&mut out), self.scale, level) };
        pool::share(Arc::new(attention));
        out
    }

    fn expected(&self) -> Vec<f64> {
        let d = self.shape.head_dim;
        let group = self.heads / self.shape.kv_heads;
        let mut out = Vec::new();
        for (i, &context) in self.context_lens.iter().enumerate() {
            let (start, end) = (self.query_starts[i], self.query_starts[i + 1]);
            let table = &self.page_tables[self.page_starts[i] as usize..];
            for token in start..end {
                let seen = (context - (end - start) + token - start + 1) as usize;
                for head in 0..self.heads {
                    let at = (token as usize * self.heads + head) * d;
                    out.extend(self.row(&self.q[at..at + d], table, head / group, seen));
                }
            }
        }
        out
    }

    fn row(&self, q: &[f32], table: &[u32], kv_head: usize, seen: usize) -> Vec<f64> {
        let (d, size) = (self.shape.head_dim, self.shape.page_size);
        let starts = (0..seen).map(|p| self.shape.row(table[p / size] as usize, kv_head, p % size));
        let starts: Vec<usize> = starts.collect();
        let dot = |at: usize| {
            let products = q.iter().zip(&self.k[at..at + d]);
            products
                .map(|(x, y)| f64::from(*x) * f64::from(*y))
                .sum::<f64>()
        };
        let scores: Vec<f64> = starts
            .iter()
            .map(|s| dot(*s) * f64::from(self.scale))
            .collect();
        let max = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mixed = |i: usize| {
            let parts = starts.iter().zip(&weights);
            parts
                .map(|(s, w)| w * f64::from(self.v[s + i]))
                .sum::<f64>()
                / sum
        };
        (0..d).map(mixed).collect()
    }
}

fn assert_close(out: &[f32], expected: &[f64], what: &str) {
    assert_eq!(out.len(), expected.len());
    for (i, (x, y)) in out.iter().zip(expected).enumerate() {
        let error = (f64::from(*x) - y).abs();
        assert!(
            error <= 2e-6 + 1e-5 * y.abs(),
            "{what}: {x} is not {y} at {i}"
        );
    }
}

#[test]
fn every_level_equals_the_reference() {
    // Small under an interpreter that checks every access.
    let (long, dims) = if cfg!(miri) {
        (60, [5, 16])
    } else {
        (1100, [20, 64])
    };
    let sequences = [(1, 1), (1, long), (3, 50), (40, 55), (0, 4), (2, long - 7)];
    let mut compared = 0;
    for head_dim in dims.into_iter().chain([8, 24, 80]) {
        for group in [1, 3, 9] {
            let shape = CacheShape {
                kv_heads: 2,
                head_dim,
                pages: 40,
                page_size: 7,
            };
            let case = Case::new(head_dim as u32, &sequences, group, shape);
            let expected = case.expected();
            for level in LEVELS.into_iter().filter(|level| level.fits(head_dim)) {
                let what = format!("{level:?}, head_dim {head_dim}, group {group}");
                assert_close(&case.run(level), &expected, &what);
                compared += 1;
            }
        }
    }
    assert!(compared >= 15 + 12);
}

#[test]
fn the_exponential_is_within_two_units_in_the_last_place() {
    let mut x = 0.0_f32;
    while x > -125.0 {
        let (got, exact) = (f64::from(simd::exp2(x)), f64::from(x).exp2());
        assert!((got / exact - 1.0).abs() < 2.4e-7, "2^{x}: {got}");
        x -= if cfg!(miri) { 1.37 } else { 1e-4 };
    }
    assert_eq!(simd::exp2(0.0), 1.0);
    assert_eq!(simd::exp2(-126.0), 0.0);
    assert_eq!(simd::exp2(f32::MIN), 0.0);
    assert_eq!(simd::exp2(f32::NEG_INFINITY), 0.0);
    assert!(simd::exp2(f32::NAN).is_nan());
}

struct Count {
    seen: Vec<AtomicUsize>,
    bad: Option<usize>,
}

impl Work for Count {
    fn items(&self) -> usize {
        self.seen.len()
    }
    fn run(&self, i: usize) {
        self.seen[i].fetch_add(1, Ordering::Relaxed);
        assert!(self.bad != Some(i), "a bad item");
    }
}

fn count(items: usize, bad: Option<usize>) -> Arc<Count> {
    let seen = (0..items).map(|_| AtomicUsize::new(0)).collect();
    Arc::new(Count { seen, bad })
}

#[test]
fn every_item_runs_once() {
    for items in [0, 1, 2, 3, 50] {
        let work = count(items, None);
        pool::share(Arc::clone(&work) as Arc<dyn Work>);
        assert!(work.seen.iter().all(|n| n.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn a_panic_in_an_item_reaches_the_caller_after_the_others_are_done() {
    let work = count(20, Some(7));
    let shared = Arc::clone(&work) as Arc<dyn Work>;
    assert!(catch_unwind(AssertUnwindSafe(|| pool::share(shared))).is_err());
    assert!(work.seen.iter().all(|n| n.load(Ordering::Relaxed) == 1));
    every_item_runs_once();
}

const SHAPE: CacheShape = CacheShape {
    kv_heads: 2,
    head_dim: 8,
    pages: 5,
    page_size: 4,
};

#[test]
fn a_batch_that_does_not_fit_is_refused_before_memory_is_touched() {
    let good = Case::new(1, &[(2, 6), (1, 4)], 2, SHAPE);
    let refused = |change: &dyn Fn(&mut Ragged<'_>)| {
        let mut ragged = good.ragged();
        change(&mut ragged);
        // Addresses of nothing: a read would crash.
        let tensors = Tensors {
            out: 4,
            q: 4,
            k_cache: 4,
            v_cache: 4,
        };
        // SAFETY: nothing is read when an error comes back.
        unsafe { paged_attention(tensors, SHAPE, 4, ragged, 1.0) }.expect_err("does not fit")
    };
    let page = refused(&|r| r.page_tables = &[0, 5, 1]);
    assert_eq!(page, AttentionError::Page { page: 5, pages: 5 });
    let bad: [&dyn Fn(&mut Ragged<'_>); 9] = [
        &|r| r.page_tables = &[0, 1],
        &|r| r.page_tables = &[0, 1, 2, 3],
        &|r| r.page_starts = &[0, 1, 3],
        &|r| r.page_starts = &[0, 4, 3],
        &|r| r.page_starts = &[],
        &|r| r.query_starts = &[0, 3],
        &|r| r.query_starts = &[1, 2, 3],
        &|r| r.context_lens = &[9, 4],
        &|r| r.context_lens = &[1, 4],
    ];
    for change in bad {
        assert!(matches!(refused(change), AttentionError::Batch(_)));
    }
}

#[test]
fn a_cache_larger_than_memory_is_refused() {
    let shape = CacheShape {
        pages: usize::MAX / 16,
        ..SHAPE
    };
    let rows = NewRows {
        k: 4,
        v: 4,
        k_cache: 4,
        v_cache: 4,
    };
    // SAFETY: nothing is touched when an error comes back.
    let result = unsafe { store_kv(rows, shape, &[0]) };
    assert!(matches!(result, Err(AttentionError::Shape(_))));
    // SAFETY: as above.
    let result = unsafe { store_kv(rows, SHAPE, &[19, 20]) };
    assert_eq!(
        result,
        Err(AttentionError::Slot {
            slot: 20,
            slots: 20
        })
    );
}
