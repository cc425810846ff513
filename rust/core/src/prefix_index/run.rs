//! Runs of a path: token ids and the namespaces they stand in, compared as pairs. Never looks at pages.

use std::borrow::Cow;
use std::ops::Range;

use super::borders::Borders;
use super::namespace::{NamespaceId, Namespaces, PathToken};

/// Consecutive positions of a path; the tokens may be those that a caller has.
///
/// Whoever drops a run clears its borders first.
#[derive(Debug, Default)]
pub(super) struct Run<'a> {
    tokens: Cow<'a, [u32]>,
    borders: Borders,
}

impl<'a> Run<'a> {
    /// The positions of `tokens`, with the borders of as many.
    pub(super) fn new(tokens: Cow<'a, [u32]>, borders: Borders) -> Self {
        debug_assert_eq!(tokens.len(), borders.len());
        Self { tokens, borders }
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(super) fn borders(&self) -> &Borders {
        &self.borders
    }

    /// The parts of `range` that stand in one namespace each.
    pub(super) fn pieces(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (NamespaceId, &[u32])> + '_ {
        let pieces = self.borders.pieces(range);
        pieces.map(|(namespace, piece)| (namespace, &self.tokens[piece]))
    }

    /// The pairs of `range`.
    pub(super) fn pairs(&self, range: Range<usize>) -> Vec<PathToken> {
        PathToken::of(self.pieces(range))
    }

    /// Add tokens at the end.
    pub(super) fn push(
        &mut self,
        namespace: NamespaceId,
        tokens: &[u32],
        counted: &mut Namespaces,
    ) {
        self.tokens.to_mut().extend_from_slice(tokens);
        self.borders.push(namespace, tokens.len(), counted);
    }

    /// Forget the first `count` positions.
    pub(super) fn drop_front(&mut self, count: usize, counted: &mut Namespaces) {
        self.borders.drop_front(count, counted);
        match &mut self.tokens {
            Cow::Borrowed(tokens) => *tokens = &tokens[count..],
            Cow::Owned(tokens) => {
                tokens.drain(..count);
            }
        }
    }

    /// The same with tokens of its own.
    pub(super) fn into_owned(self) -> Run<'static> {
        Run {
            tokens: Cow::Owned(self.tokens.into_owned()),
            borders: self.borders,
        }
    }

    /// Forget everything.
    pub(super) fn clear(&mut self, counted: &mut Namespaces) {
        self.tokens = Cow::default();
        self.borders.clear(counted);
    }

    /// Whether the borders are those of the tokens.
    pub(super) fn is_sound(&self) -> bool {
        self.borders.is_sound() && self.borders.len() == self.tokens.len()
    }
}
