//! The kernel against a slow float64 reference, at every instruction level this CPU has.

#![expect(clippy::float_cmp, reason = "exact values are expected")]

mod equal;
mod float16;
mod heads;
mod int8;
mod random;
mod refused;
mod window;

use super::batch::Batch;
use super::item::Attention;
use super::{Cache, CacheShape, Query, Ragged, Tensors};
use crate::level::Level;
use crate::pool;
use crate::quantise::{quantise, quantise_to};
use half::f16;
use std::sync::Arc;

/// The levels that this CPU has for a `head_dim`.
fn levels(head_dim: usize) -> impl Iterator<Item = Level> {
    let all = [Level::Scalar, Level::Portable, Level::Avx2, Level::Avx512];
    all.into_iter().filter(move |level| level.fits(head_dim))
}

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

/// What a cache holds its values as.
#[derive(Clone, Copy, Debug)]
enum Elements {
    Float32,
    Float16,
    Int8,
}

/// K or V as int8: numbers, scales.
struct Numbers(Vec<i8>, Vec<f32>);

/// K and V of a cache that is not of float32.
enum Held {
    Float16([Vec<f16>; 2]),
    Int8([Numbers; 2]),
}

/// A ragged batch and the tensors of a call, each exactly as large as its shape says.
struct Case {
    shape: CacheShape,
    query: Query,
    query_starts: Vec<u32>,
    context_lens: Vec<u32>,
    page_tables: Vec<u32>,
    page_starts: Vec<u32>,
    q: Vec<f32>,
    /// What the cache stands for.
    k: Vec<f32>,
    v: Vec<f32>,
    /// None: the cache is float32.
    held: Option<Held>,
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
            query: Query {
                heads,
                scale: 0.7,
                window: None,
            },
            q: random.values(tokens * heads * shape.head_dim),
            k: random.values(values),
            v: random.values(values),
            held: None,
            query_starts,
            context_lens,
            page_tables,
            page_starts,
        }
    }

    fn with_window(mut self, window: Option<u32>) -> Self {
        self.query.window = window;
        self
    }

    /// The same batch over a cache of other elements; `k` and `v` become what it stands for.
    fn with(self, elements: Elements) -> Self {
        match elements {
            Elements::Float32 => self,
            Elements::Float16 => self.with_float16(),
            Elements::Int8 => self.with_int8(),
        }
    }

    fn with_float16(mut self) -> Self {
        let halves = [&mut self.k, &mut self.v].map(|values| {
            let halves: Vec<f16> = values.iter().map(|x| f16::from_f32_const(*x)).collect();
            *values = halves.iter().map(|x| x.to_f32_const()).collect();
            halves
        });
        self.held = Some(Held::Float16(halves));
        self
    }

    fn with_int8(mut self) -> Self {
        let d = self.shape.head_dim;
        let numbers = [&mut self.k, &mut self.v].map(|values| {
            let mut numbers = vec![0; values.len()];
            let rows = values.chunks_mut(d).zip(numbers.chunks_mut(d));
            let scales = rows.map(|(values, numbers)| {
                let scale = quantise(values, numbers);
                for (value, number) in values.iter_mut().zip(numbers) {
                    *value = f32::from(*number) * scale;
                }
                scale
            });
            let scales = scales.collect();
            Numbers(numbers, scales)
        });
        self.held = Some(Held::Int8(numbers));
        self
    }

    fn ragged(&self) -> Ragged<'_> {
        Ragged {
            query_starts: &self.query_starts,
            context_lens: &self.context_lens,
            page_tables: &self.page_tables,
            page_starts: &self.page_starts,
        }
    }

    fn cache(&self) -> Cache {
        match &self.held {
            None => Cache::Float32 {
                k: self.k.as_ptr().expose_provenance(),
                v: self.v.as_ptr().expose_provenance(),
            },
            Some(Held::Float16([k, v])) => Cache::Float16 {
                k: k.as_ptr().expose_provenance(),
                v: v.as_ptr().expose_provenance(),
            },
            Some(Held::Int8([k, v])) => Cache::Int8 {
                k: k.0.as_ptr().expose_provenance(),
                v: v.0.as_ptr().expose_provenance(),
                k_scales: k.1.as_ptr().expose_provenance(),
                v_scales: v.1.as_ptr().expose_provenance(),
            },
        }
    }

    fn run(&self, level: Level) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.q.len()];
        let batch = Batch::new(self.shape, self.query, self.ragged()).expect("a good batch");
        let tensors = Tensors {
            out: out.as_mut_ptr().expose_provenance(),
            q: self.q.as_ptr().expose_provenance(),
            cache: self.cache(),
        };
        // SAFETY: the vectors have the shapes of the case, and the CPU was asked for the level.
        let attention = unsafe { Attention::new(batch, tensors, level) };
        pool::share(Arc::new(attention));
        out
    }

    /// The queries that the level scores: int16 against an int8 cache where the CPU multiplies pairs of whole numbers
    /// and a row is whole vectors of them, of up to 512 values.
    fn scored(&self, level: Level) -> Vec<f32> {
        let d = self.shape.head_dim;
        let mut q = self.q.clone();
        let is_int8 = matches!(self.held, Some(Held::Int8(_)));
        if level != Level::Avx512 || !is_int8 || !d.is_multiple_of(32) || d > 512 {
            return q;
        }
        for row in q.chunks_mut(d) {
            let mut numbers = vec![0; d];
            let scale = quantise_to(i16::MAX, row, &mut numbers);
            for (value, number) in row.iter_mut().zip(numbers) {
                *value = f32::from(number) * scale;
            }
        }
        q
    }

    fn expected(&self, q: &[f32]) -> Vec<f64> {
        let d = self.shape.head_dim;
        let (heads, group) = (self.query.heads, self.query.heads / self.shape.kv_heads);
        let mut out = Vec::new();
        for (i, &context) in self.context_lens.iter().enumerate() {
            let (start, end) = (self.query_starts[i], self.query_starts[i + 1]);
            let table = &self.page_tables[self.page_starts[i] as usize..];
            for token in start..end {
                let seen = context - (end - start) + token - start + 1;
                for head in 0..heads {
                    let at = (token as usize * heads + head) * d;
                    out.extend(self.row(&q[at..at + d], table, head / group, seen));
                }
            }
        }
        out
    }

    fn row(&self, q: &[f32], table: &[u32], kv_head: usize, seen: u32) -> Vec<f64> {
        let (d, size) = (self.shape.head_dim, self.shape.page_size);
        let first = self.query.window.map_or(0, |n| seen.saturating_sub(n));
        let places = (first as usize..seen as usize)
            .map(|p| self.shape.row(table[p / size] as usize, kv_head, p % size) * d);
        let places: Vec<usize> = places.collect();
        let dot = |at: usize| {
            let products = q.iter().zip(&self.k[at..at + d]);
            products
                .map(|(x, y)| f64::from(*x) * f64::from(*y))
                .sum::<f64>()
        };
        let scores: Vec<f64> = places
            .iter()
            .map(|s| dot(*s) * f64::from(self.query.scale))
            .collect();
        let max = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mixed = |i: usize| {
            let parts = places.iter().zip(&weights);
            parts
                .map(|(s, w)| w * f64::from(self.v[s + i]))
                .sum::<f64>()
                / sum
        };
        (0..d).map(mixed).collect()
    }

    /// Compares every level with the reference; returns how many there were.
    fn check(&self, what: &str) -> usize {
        let (mut q, mut expected) = (self.q.clone(), self.expected(&self.q));
        let mut compared = 0;
        for level in levels(self.shape.head_dim) {
            let what = format!("{level:?}, {what}");
            let scored = self.scored(level);
            if scored != q {
                (expected, q) = (self.expected(&scored), scored);
            }
            assert_close(&self.run(level), &expected, self.shape.head_dim, &what);
            compared += 1;
        }
        compared
    }
}

/// A score is a sum of `head_dim` products: the sums on the way grow with its root, because of `scale` 0.7, and so does
/// the number of roundings, so the error of a score, and of the weight it becomes, grows with `head_dim`.
fn assert_close(out: &[f32], expected: &[f64], head_dim: usize, what: &str) {
    assert_eq!(out.len(), expected.len());
    let scores = 5e-6 * (head_dim as f64 / 128.0).max(1.0);
    for (i, (x, y)) in out.iter().zip(expected).enumerate() {
        let error = (f64::from(*x) - y).abs();
        assert!(
            error <= scores + 1e-5 * y.abs(),
            "{what}: {x} is not {y} at {i}"
        );
    }
}

/// A small cache.
const SHAPE: CacheShape = CacheShape {
    kv_heads: 2,
    head_dim: 8,
    pages: 5,
    page_size: 4,
};
