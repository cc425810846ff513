//! How the tokens of a call are cut: into blocks that stay in a core's cache, and each into groups of which the
//! kernel takes one at a time.
//!
//! Owns the borders alone. Blocks, and groups of a block, are as few as can be and of about the same size.

use super::kernel::TOKENS_MAX;
use std::ops::Range;

/// Bytes of activations of a block: they stay in a core's own cache while panels pass by.
const BLOCK_BYTES: usize = 256 << 10;

/// The cut of a number of tokens, at least one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups {
    tokens: usize,
    block: usize,
}

impl Groups {
    /// Of tokens that have `pairs` pairs of numbers each.
    pub fn new(tokens: usize, pairs: usize) -> Self {
        let fit = (BLOCK_BYTES / (4 * pairs)).max(TOKENS_MAX);
        let block = even(tokens, fit);
        Self { tokens, block }
    }

    /// Tokens of the largest block.
    pub fn block_tokens(self) -> usize {
        self.block
    }

    /// How many blocks there are.
    pub fn blocks(self) -> usize {
        self.tokens.div_ceil(self.block)
    }

    /// The tokens of each group of a block.
    pub fn of_block(self, block: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
        let (tokens, size) = self.cut(block);
        let groups = tokens.len().div_ceil(size);
        (0..groups).map(move |group| {
            let first = tokens.start + group * size;
            first..tokens.end.min(first + size)
        })
    }

    /// The tokens of the group that a token is in.
    pub fn of_token(self, token: usize) -> Range<usize> {
        let (tokens, size) = self.cut(token / self.block);
        let first = token - (token - tokens.start) % size;
        first..tokens.end.min(first + size)
    }

    /// The tokens of a block, and how many make a group.
    fn cut(self, block: usize) -> (Range<usize>, usize) {
        let start = block * self.block;
        let end = self.tokens.min(start + self.block);
        (start..end, even(end - start, TOKENS_MAX))
    }
}

/// The size of parts of `count`, at least one, that are as few as can be with `most` each and about alike.
pub(super) fn even(count: usize, most: usize) -> usize {
    count.div_ceil(count.div_ceil(most))
}
