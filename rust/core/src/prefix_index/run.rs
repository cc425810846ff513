//! Runs of a path: token ids and the namespaces they stand in, compared as pairs. Owns its references to
//! namespaces only in so far as every change of a run counts them; never looks at pages.

use std::ops::Range;

use super::namespace::{NamespaceId, Namespaces, PathToken};

/// Consecutive positions of a path: 4 bytes a token, and one border for each stretch.
///
/// A run holds one reference for each border; whoever drops a run clears it first.
#[derive(Debug, Default)]
pub(super) struct Run {
    tokens: Vec<u32>,
    /// (end, namespace), ends ascending; neighbours differ in their namespace.
    borders: Vec<(usize, NamespaceId)>,
}

impl Run {
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The namespaces referred to, with repetitions.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = NamespaceId> + '_ {
        self.borders.iter().map(|&(_, namespace)| namespace)
    }

    /// The namespace of the last position.
    pub(super) fn last_namespace(&self) -> Option<NamespaceId> {
        self.borders.last().map(|&(_, namespace)| namespace)
    }

    /// The parts of `range` that stand in one namespace each.
    pub(super) fn pieces(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (NamespaceId, &[u32])> + '_ {
        let first = self.borders.partition_point(|&(end, _)| end <= range.start);
        let mut start = range.start;
        self.borders[first..]
            .iter()
            .map_while(move |&(end, namespace)| {
                let end = end.min(range.end);
                if start >= end {
                    return None;
                }
                let piece = &self.tokens[start..end];
                start = end;
                Some((namespace, piece))
            })
    }

    /// The pairs of `range`.
    pub(super) fn pairs(&self, range: Range<usize>) -> Vec<PathToken> {
        let mut pairs = Vec::with_capacity(range.len());
        for (namespace, tokens) in self.pieces(range) {
            pairs.extend(tokens.iter().map(|&token| PathToken::new(namespace, token)));
        }
        pairs
    }

    /// How many positions from `from` on equal those of `other` from `other_from` on; at most `limit`.
    pub(super) fn common(
        &self,
        from: usize,
        other: &Self,
        other_from: usize,
        limit: usize,
    ) -> usize {
        let count = limit.min(self.len() - from).min(other.len() - other_from);
        let mut left = self.pieces(from..from + count);
        let mut right = other.pieces(other_from..other_from + count);
        let mut equal = 0;
        let (mut a, mut b) = (left.next(), right.next());
        while let (Some((a_namespace, a_tokens)), Some((b_namespace, b_tokens))) = (a, b) {
            if a_namespace != b_namespace {
                break;
            }
            let both = a_tokens.len().min(b_tokens.len());
            let same = common_tokens(&a_tokens[..both], &b_tokens[..both]);
            equal += same;
            if same < both {
                break;
            }
            let rest = |namespace, tokens: &'_ [u32]| (!tokens.is_empty()).then_some(namespace);
            a = match rest(a_namespace, &a_tokens[both..]) {
                Some(namespace) => Some((namespace, &a_tokens[both..])),
                None => left.next(),
            };
            b = match rest(b_namespace, &b_tokens[both..]) {
                Some(namespace) => Some((namespace, &b_tokens[both..])),
                None => right.next(),
            };
        }
        equal
    }

    /// Add tokens at the end.
    pub(super) fn push(
        &mut self,
        namespace: NamespaceId,
        tokens: &[u32],
        counted: &mut Namespaces,
    ) {
        if tokens.is_empty() {
            return;
        }
        self.tokens.extend_from_slice(tokens);
        let end = self.tokens.len();
        match self.borders.last_mut() {
            Some((last_end, last)) if *last == namespace => *last_end = end,
            _ => {
                counted.retain(namespace);
                self.borders.push((end, namespace));
            }
        }
    }

    /// Add a part of another run at the end.
    pub(super) fn append(&mut self, other: &Self, range: Range<usize>, counted: &mut Namespaces) {
        for (namespace, tokens) in other.pieces(range) {
            self.push(namespace, tokens, counted);
        }
    }

    /// Keep the first `at` positions, give the others.
    pub(super) fn split_off(&mut self, at: usize, counted: &mut Namespaces) -> Self {
        let mut lower = Self::default();
        lower.append(self, at..self.len(), counted);
        self.truncate(at, counted);
        lower
    }

    /// Forget all but the first `len` positions.
    pub(super) fn truncate(&mut self, len: usize, counted: &mut Namespaces) {
        self.tokens.truncate(len);
        // Borders from the one on that reaches `len` say nothing but its namespace any more.
        while let Some(&(_, namespace)) = self.borders.last() {
            let start = match self.borders.len() {
                1 => 0,
                borders => self.borders[borders - 2].0,
            };
            if start < len {
                break;
            }
            counted.release(namespace);
            self.borders.pop();
        }
        if let Some((end, _)) = self.borders.last_mut() {
            *end = (*end).min(len);
        }
    }

    /// Forget the first `count` positions.
    pub(super) fn drop_front(&mut self, count: usize, counted: &mut Namespaces) {
        self.tokens.drain(..count);
        let gone = self.borders.partition_point(|&(end, _)| end <= count);
        for (_, namespace) in self.borders.drain(..gone) {
            counted.release(namespace);
        }
        for (end, _) in &mut self.borders {
            *end -= count;
        }
    }

    /// Forget everything.
    pub(super) fn clear(&mut self, counted: &mut Namespaces) {
        self.truncate(0, counted);
    }

    /// Whether the borders are those of the tokens.
    pub(super) fn is_sound(&self) -> bool {
        let ends = self.borders.iter().map(|&(end, _)| end);
        self.borders.last().map_or(0, |&(end, _)| end) == self.tokens.len()
            && ends.clone().zip(ends.skip(1)).all(|(end, next)| end < next)
            && self.borders.first().is_none_or(|&(end, _)| end > 0)
            && self.borders.windows(2).all(|pair| pair[0].1 != pair[1].1)
    }
}

/// Equal leading tokens; whole blocks are compared at once.
fn common_tokens(left: &[u32], right: &[u32]) -> usize {
    const BLOCK: usize = 64;
    let blocks = left.chunks(BLOCK).zip(right.chunks(BLOCK));
    let same = blocks.take_while(|(left, right)| left == right).count() * BLOCK;
    if same >= left.len() {
        return left.len();
    }
    let rest = left[same..].iter().zip(&right[same..]);
    same + rest.take_while(|(left, right)| left == right).count()
}
