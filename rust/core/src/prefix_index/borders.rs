//! Borders: which namespace each of some consecutive positions stands in. Owns its references to namespaces only in so
//! far as every change counts them; never looks at tokens or pages.

use std::ops::Range;

use super::namespace::{NamespaceId, Namespaces};

/// One border for each stretch: (end, namespace), ends ascending, neighbours of different namespaces.
///
/// Holds one reference for each border; whoever drops it clears it first.
#[derive(Debug, Default)]
pub(super) struct Borders(Vec<(usize, NamespaceId)>);

impl Borders {
    /// How many positions there are.
    pub(super) fn len(&self) -> usize {
        self.0.last().map_or(0, |&(end, _)| end)
    }

    /// The namespaces referred to, with repetitions.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = NamespaceId> + '_ {
        self.0.iter().map(|&(_, namespace)| namespace)
    }

    /// The namespace of the last position.
    pub(super) fn last_namespace(&self) -> Option<NamespaceId> {
        self.0.last().map(|&(_, namespace)| namespace)
    }

    /// The parts of `range` that stand in one namespace each.
    pub(super) fn pieces(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (NamespaceId, Range<usize>)> + '_ {
        let first = self.0.partition_point(|&(end, _)| end <= range.start);
        let mut start = range.start;
        self.0[first..].iter().map_while(move |&(end, namespace)| {
            let end = end.min(range.end);
            let piece = start..end;
            start = end;
            (!piece.is_empty()).then_some((namespace, piece))
        })
    }

    /// How many positions from `from` on stand in the same namespaces as those of `other` from `other_from` on; at
    /// most `limit`.
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
        let (mut a, mut b) = (left.next(), right.next());
        let mut equal = 0;
        while let (Some((namespace, mine)), Some((others, theirs))) = (&a, &b) {
            if namespace != others {
                break;
            }
            let (mine, theirs) = (mine.end - from, theirs.end - other_from);
            equal = mine.min(theirs);
            if mine == equal {
                a = left.next();
            }
            if theirs == equal {
                b = right.next();
            }
        }
        equal
    }

    /// Add positions at the end.
    pub(super) fn push(&mut self, namespace: NamespaceId, count: usize, counted: &mut Namespaces) {
        if count == 0 {
            return;
        }
        let end = self.len() + count;
        match self.0.last_mut() {
            Some((last_end, last)) if *last == namespace => *last_end = end,
            _ => {
                counted.retain(namespace);
                self.0.push((end, namespace));
            }
        }
    }

    /// Add positions like those of `range` of others at the end.
    pub(super) fn append(&mut self, other: &Self, range: Range<usize>, counted: &mut Namespaces) {
        for (namespace, piece) in other.pieces(range) {
            self.push(namespace, piece.len(), counted);
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
        // Borders from the one on that reaches `len` say nothing but its namespace any more.
        while let Some(&(_, namespace)) = self.0.last() {
            let start = match self.0.len() {
                1 => 0,
                borders => self.0[borders - 2].0,
            };
            if start < len {
                break;
            }
            counted.release(namespace);
            self.0.pop();
        }
        if let Some((end, _)) = self.0.last_mut() {
            *end = (*end).min(len);
        }
    }

    /// Forget the first `count` positions.
    pub(super) fn drop_front(&mut self, count: usize, counted: &mut Namespaces) {
        let gone = self.0.partition_point(|&(end, _)| end <= count);
        for (_, namespace) in self.0.drain(..gone) {
            counted.release(namespace);
        }
        for (end, _) in &mut self.0 {
            *end -= count;
        }
    }

    /// Forget everything.
    pub(super) fn clear(&mut self, counted: &mut Namespaces) {
        self.truncate(0, counted);
    }

    /// Whether ends ascend and neighbours differ.
    pub(super) fn is_sound(&self) -> bool {
        self.0.first().is_none_or(|&(end, _)| end > 0)
            && self
                .0
                .windows(2)
                .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 != pair[1].1)
    }
}
