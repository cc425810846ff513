//! What stands in the pages of the tree, by page id: the tokens of their rows, and the keys of full ones. Owns room
//! for every page of the device from the start, so that nothing is ever moved when a conversation grows; never
//! knows which pages are the tree's. In other pages stands nothing that means anything.

use std::ops::Range;

use crate::page_keys::PageKey;

use super::namespace::{NamespaceId, PathToken};
use super::pages::PageId;
use super::run::Run;
use super::tree::{Node, Tree};

pub(super) struct PageRows {
    page_size: usize,
    /// `page_size` for each page. Zeroed memory costs nothing before it is used.
    tokens: Vec<u32>,
    keys: Vec<PageKey>,
}

impl PageRows {
    pub(super) fn new(page_size: usize, pages: usize) -> Self {
        Self {
            page_size,
            tokens: vec![0; page_size * pages],
            keys: vec![[0; 32]; pages],
        }
    }

    /// All rows of a page; the tree knows how many of them are known.
    pub(super) fn tokens(&self, page: PageId) -> &[u32] {
        self.side_by_side(page, self.page_size)
    }

    /// The first `count` rows of a page and of those that follow it by number.
    fn side_by_side(&self, page: PageId, count: usize) -> &[u32] {
        let first = page as usize * self.page_size;
        &self.tokens[first..first + count]
    }

    /// Fill rows from `row` on.
    pub(super) fn write(&mut self, page: PageId, row: usize, tokens: &[u32]) {
        let first = page as usize * self.page_size + row;
        self.tokens[first..first + tokens.len()].copy_from_slice(tokens);
    }

    /// The key of a full page.
    pub(super) fn key(&self, page: PageId) -> &PageKey {
        &self.keys[page as usize]
    }

    pub(super) fn set_key(&mut self, page: PageId, key: PageKey) {
        self.keys[page as usize] = key;
    }
}

impl Tree {
    /// The known rows of a node's `nth` page, the first being 0, by namespace.
    pub(super) fn page_pieces<'a>(
        &'a self,
        node: &'a Node,
        nth: usize,
    ) -> impl Iterator<Item = (NamespaceId, &'a [u32])> {
        let first = nth * self.page_size;
        let rows = first..node.borders.len().min(first + self.page_size);
        let tokens = self.rows.tokens(node.pages[nth]);
        let pieces = node.borders.pieces(rows);
        pieces.map(move |(namespace, piece)| {
            (namespace, &tokens[piece.start - first..piece.end - first])
        })
    }

    /// The key of a node's last full page.
    pub(super) fn last_key(&self, node: &Node) -> Option<&PageKey> {
        let full = (node.borders.len() / self.page_size).checked_sub(1)?;
        Some(self.rows.key(node.pages[full]))
    }

    /// The pairs of a node's first page.
    pub(super) fn first_page(&self, node: &Node) -> Vec<PathToken> {
        PathToken::of(self.page_pieces(node, 0))
    }

    /// The tokens of a node's positions `range`.
    pub(super) fn tokens_of(&self, node: &Node, range: Range<usize>) -> Vec<u32> {
        let first = range.start / self.page_size;
        let mut tokens = Vec::with_capacity(range.len() + 2 * self.page_size);
        for &page in &node.pages[first..range.end.div_ceil(self.page_size)] {
            tokens.extend_from_slice(self.rows.tokens(page));
        }
        tokens.truncate(range.end - first * self.page_size);
        tokens.drain(..range.start - first * self.page_size);
        tokens
    }

    /// How many positions of a node, from its page `first` on, equal those of `path` from `from` on; at most `limit`.
    pub(super) fn common(
        &self,
        node: &Node,
        first: usize,
        path: &Run<'_>,
        from: usize,
        limit: usize,
    ) -> usize {
        let start = first * self.page_size;
        let count = node.borders.common(start, path.borders(), from, limit);
        let mut asked = &path.tokens()[from..from + count];
        let mut pages = &node.pages[first..first + count.div_ceil(self.page_size)];
        while !asked.is_empty() {
            // Pages that were taken together stand side by side.
            let pairs = pages.windows(2);
            let together = 1 + pairs.take_while(|pair| pair[0] + 1 == pair[1]).count();
            let length = asked.len().min(together * self.page_size);
            let there = self.rows.side_by_side(pages[0], length);
            let equal = common_tokens(there, &asked[..length]);
            asked = &asked[equal..];
            if equal < length {
                break;
            }
            pages = &pages[together..];
        }
        count - asked.len()
    }
}

/// Equal leading tokens of two slices of one length; whole blocks are compared at once.
fn common_tokens(left: &[u32], right: &[u32]) -> usize {
    const BLOCK: usize = 64;
    let blocks = left.chunks(BLOCK).zip(right.chunks(BLOCK));
    let same = blocks.take_while(|(left, right)| left == right).count() * BLOCK;
    let rest = left.iter().zip(right).skip(same);
    left.len()
        .min(same + rest.take_while(|(left, right)| left == right).count())
}
