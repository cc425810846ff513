//! Search in the tree: what of a path is cached. Changes nothing.

use std::ops::Bound::{Excluded, Included, Unbounded};

use super::namespace::{NamespaceId, PathToken};
use super::pages::PageId;
use super::run::Run;
use super::tree::{NodeId, Position, Tree};

/// A page whose first rows are on a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partial {
    /// The node it is in: the one of the position before it, or a child.
    pub(super) node: NodeId,
    /// How many rows, at least one.
    pub(super) rows: usize,
}

/// The cached part of a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matched {
    /// The end of its full pages.
    pub(super) at: Position,
    /// The page after them that has most rows of the path.
    pub(super) partial: Option<Partial>,
}

impl Tree {
    /// The longest cached prefix of the first `limit` pairs of `path`, which begins at `from`. Adds the full
    /// pages to `table`. O(pages of the match).
    pub(super) fn find(
        &self,
        from: Position,
        path: &Run<'_>,
        limit: usize,
        table: &mut Vec<PageId>,
    ) -> Matched {
        let page_size = self.page_size;
        let mut at = from;
        let mut matched = 0;
        loop {
            if let Some(id) = at.node
                && at.pages < self.node(id).end()
            {
                let node = self.node(id);
                let first = at.pages - node.start;
                let common = self.common(node, first, path, matched, limit - matched);
                let full = common / page_size;
                table.extend_from_slice(&node.pages[first..first + full]);
                at.pages += full;
                matched += full * page_size;
                if at.pages < node.end() {
                    let rows = common % page_size;
                    let partial = (rows > 0).then_some(Partial { node: id, rows });
                    return Matched { at, partial };
                }
            }
            let wanted = path.pairs(matched..limit.min(matched + page_size));
            match self.children(at.node).get(wanted.as_slice()) {
                // Its first page is equal: the next round takes it.
                Some(&child) if wanted.len() == page_size => at.node = Some(child),
                _ => {
                    let partial = self.longest_common(at.node, &wanted);
                    return Matched { at, partial };
                }
            }
        }
    }

    /// The child whose first page shares most first pairs with `wanted`.
    fn longest_common(&self, parent: Option<NodeId>, wanted: &[PathToken]) -> Option<Partial> {
        let children = self.children(parent);
        let mut below = children.range::<[_], _>((Unbounded, Excluded(wanted)));
        let mut above = children.range::<[_], _>((Included(wanted), Unbounded));
        // `max_by_key` keeps the last of equals: the one above.
        [below.next_back(), above.next()]
            .into_iter()
            .flatten()
            .map(|(key, &node)| Partial {
                node,
                rows: common_rows(key, wanted),
            })
            .filter(|partial| partial.rows > 0)
            .max_by_key(|partial| partial.rows)
    }

    /// Whether a lease may go on in the partial page `partial` after `at`: the match is all that the tree knows of
    /// it, and no lease writes in it.
    ///
    /// Its further rows are nobody's. Who copies from the page reads rows that the tree knows, and those are
    /// never written again.
    pub(super) fn can_go_on_in(&self, at: Position, partial: Partial) -> bool {
        let node = self.node(partial.node);
        let rows = node.rows(at.pages, self.page_size);
        partial.rows == rows && rows < self.page_size && !node.has_writer
    }

    /// The first child whose first token stands in `namespace`.
    pub(super) fn first_child_in(
        &self,
        parent: Option<NodeId>,
        namespace: NamespaceId,
    ) -> Option<NodeId> {
        let least = [PathToken::new(namespace, 0)];
        let children = self.children(parent);
        let mut above = children.range::<[_], _>((Included(&least[..]), Unbounded));
        let (first, &id) = above.next()?;
        first[0].is_in(namespace).then_some(id)
    }

    /// A child whose first page has all pairs of `key`, and maybe more.
    pub(super) fn covering(&self, parent: Option<NodeId>, key: &[PathToken]) -> Option<NodeId> {
        let children = self.children(parent);
        let mut above = children.range::<[_], _>((Included(key), Unbounded));
        let (first, &id) = above.next()?;
        first.starts_with(key).then_some(id)
    }

    /// Whether the node is one partial page, and a sibling begins with all its pairs.
    ///
    /// A partial page at the end of more pages has no siblings: a split would have cut it off.
    pub(super) fn is_covered(&self, id: NodeId) -> bool {
        let node = self.node(id);
        if node.borders.len() >= self.page_size {
            return false;
        }
        let above = (Excluded(&*node.key), Unbounded);
        let next = self.children(node.parent).range::<[_], _>(above).next();
        next.is_some_and(|(key, _)| key.starts_with(&node.key))
    }

    /// The unlocked child that is one partial page with the first pairs of `key`, but not all.
    ///
    /// There is at most one, just below `key`: whatever stands between the two begins with its
    /// pairs as well, and an unlocked node that has such a sibling is removed when that sibling
    /// comes or when its last lock goes.
    pub(super) fn covered_by(&self, parent: Option<NodeId>, key: &[PathToken]) -> Option<NodeId> {
        let children = self.children(parent);
        let mut below = children.range::<[_], _>((Unbounded, Excluded(key)));
        let (last, &id) = below.next_back()?;
        let is_prefix = key.starts_with(last) && last.len() < self.page_size;
        (is_prefix && !self.node(id).is_protected()).then_some(id)
    }
}

fn common_rows(left: &[PathToken], right: &[PathToken]) -> usize {
    let pairs = left.iter().zip(right);
    pairs.take_while(|(left, right)| left == right).count()
}
