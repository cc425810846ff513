//! The radix tree. Owns the nodes, their order, their use, and through it the namespaces, locks and tips on
//! them, and the shelf beside it; never owns a free page and knows no lease.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::sync::Arc;

use crate::page_keys::{PageKey, next_key, root_key};

use super::borders::Borders;
use super::evict::EvictableLeaves;
use super::evicted::Evicted;
use super::locks::{LockId, Locks};
use super::namespace::{NamespaceId, Namespaces, PathToken};
use super::page_rows::PageRows;
use super::pages::PageId;
use super::shelf::Shelf;
use super::slab::Slab;
use super::tips::Tips;
use super::uses::{Tick, Uses, used_at};

/// The pairs of a node's first page, at least one and at most `page_size`.
pub(super) type FirstPage = Arc<[PathToken]>;

/// Children in lexicographic order of their first pages.
///
/// In this order the keys that share a prefix with a given one stand together, and nearer means
/// longer: the child with the longest common prefix is the first at or above it or the last below.
pub(super) type Children = BTreeMap<FirstPage, NodeId>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(pub(super) u32);

/// The end of the first `pages` pages of the path to `node`. The last of them is the node's own; at the root
/// there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) node: Option<NodeId>,
    pub(super) pages: usize,
}

impl Position {
    pub(super) const ROOT: Self = Self {
        node: None,
        pages: 0,
    };
}

/// A run of cached pages that no branch divides.
///
/// All pages have `page_size` pairs, except the last one of a childless node, which may be *partial*: the
/// tree knows only its first rows. Pages are counted from the root, as locks and tips count them, so that
/// a split changes none of these numbers.
pub(super) struct Node {
    pub(super) parent: Option<NodeId>,
    /// Pages on the path before this node.
    pub(super) start: usize,
    /// At least one.
    pub(super) pages: Vec<PageId>,
    /// The namespaces of their rows.
    pub(super) borders: Borders,
    pub(super) key: FirstPage,
    pub(super) children: Children,
    /// The locks on this node and how many pages of the path each protects.
    pub(super) locks: BTreeSet<(usize, LockId)>,
    /// Children that are protected.
    pub(super) protected_children: usize,
    /// Children with tips in or below them.
    pub(super) tipped_children: usize,
    /// Use of the pages, and of all that were ever removed below them; the use of those still below counts
    /// only when they go (a touch costs O(1), not O(depth)).
    pub(super) uses: Uses,
    /// The tip in each page, by the pages up to it.
    pub(super) tips: BTreeMap<usize, u64>,
    /// Whether a lease writes into the partial page, or reads from it rows that the tree does not know.
    pub(super) has_writer: bool,
}

impl Node {
    /// Pages on the path up to the end of this node.
    pub(super) fn end(&self) -> usize {
        self.start + self.pages.len()
    }

    /// Whether the page that ends the path's first `pages` pages is in this node.
    pub(super) fn has_page(&self, pages: usize) -> bool {
        self.start < pages && pages <= self.end()
    }

    /// Rows of the path's page `page`, one of this node.
    pub(super) fn rows(&self, page: usize, page_size: usize) -> usize {
        page_size.min(self.borders.len() - (page - self.start) * page_size)
    }

    /// How many of its pages a lock protects, here or below.
    pub(super) fn protected_pages(&self) -> usize {
        if self.protected_children > 0 {
            return self.pages.len();
        }
        self.locks
            .last()
            .map_or(0, |&(pages, _)| pages - self.start)
    }

    pub(super) fn is_protected(&self) -> bool {
        self.protected_pages() > 0
    }

    /// Whether a tip is in the node or below it.
    pub(super) fn is_tipped(&self) -> bool {
        self.tipped_children > 0 || !self.tips.is_empty()
    }

    /// The use of the last page, if that page may be evicted.
    pub(super) fn evictable_since(&self) -> Option<Tick> {
        let evictable = self.children.is_empty() && self.protected_pages() < self.pages.len();
        evictable.then(|| self.uses.of(self.end()))
    }
}

pub(super) struct Tree {
    pub(super) page_size: usize,
    root_key: PageKey,
    pub(super) nodes: Slab<Node>,
    pub(super) rows: PageRows,
    pub(super) roots: Children,
    pub(super) evictable: EvictableLeaves,
    /// Pages of all nodes, and how many of them are protected.
    pub(super) pages: usize,
    protected: usize,
    touches: u64,
    pub(super) evicted: Evicted,
    /// Has no page that a node has.
    pub(super) shelf: Shelf,
    pub(super) locks: Locks,
    pub(super) tips: Tips,
    pub(super) namespaces: Namespaces,
}

impl Tree {
    pub(super) fn new(page_size: u32, pages: usize) -> Self {
        Self {
            page_size: page_size as usize,
            root_key: root_key(page_size),
            nodes: Slab::default(),
            rows: PageRows::new(page_size as usize, pages),
            roots: Children::default(),
            evictable: EvictableLeaves::default(),
            pages: 0,
            protected: 0,
            touches: 0,
            evicted: Evicted::default(),
            shelf: Shelf::new(0, 0),
            locks: Locks::default(),
            tips: Tips::default(),
            namespaces: Namespaces::default(),
        }
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        self.nodes.get(id.0)
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(id.0)
    }

    pub(super) fn live_nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(id, node)| (NodeId(id), node))
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn pages(&self) -> usize {
        self.pages
    }

    /// How many pages could be evicted one after the other: all that have no lock at or below them.
    pub(super) fn evictable_pages(&self) -> usize {
        self.pages - self.protected
    }

    pub(super) fn children(&self, parent: Option<NodeId>) -> &Children {
        match parent {
            Some(id) => &self.node(id).children,
            None => &self.roots,
        }
    }

    pub(super) fn children_mut(&mut self, parent: Option<NodeId>) -> &mut Children {
        match parent {
            Some(id) => &mut self.node_mut(id).children,
            None => &mut self.roots,
        }
    }

    /// The nodes from `deepest` up to the first.
    pub(super) fn upwards(&self, deepest: Option<NodeId>) -> impl Iterator<Item = NodeId> + '_ {
        iter::successors(deepest, |&id| self.node(id).parent)
    }

    /// The end of the first `pages` pages of the path to `node`.
    pub(super) fn position(&self, node: NodeId, pages: usize) -> Position {
        let mut above = self.upwards(Some(node));
        let node = above.find(|&id| self.node(id).start < pages);
        Position { node, pages }
    }

    /// The pages of the path to a position.
    pub(super) fn page_table(&self, at: Position) -> Vec<PageId> {
        let mut parts: Vec<&[PageId]> = self
            .upwards(at.node)
            .map(|id| &*self.node(id).pages)
            .collect();
        parts.reverse();
        let mut table = parts.concat();
        table.truncate(at.pages);
        table
    }

    /// The tokens of the path's first `pages` pages, full ones that do not end after `node`.
    pub(super) fn token_ids(&self, node: Option<NodeId>, pages: usize) -> Vec<u32> {
        let table = self.page_table(Position { node, pages });
        let rows = table.iter().map(|&page| self.rows.tokens(page));
        rows.collect::<Vec<_>>().concat()
    }

    pub(super) fn touches(&self) -> u64 {
        self.touches
    }

    pub(super) fn set_touches(&mut self, touches: u64) {
        self.touches = touches;
    }

    pub(super) fn root_key(&self) -> PageKey {
        self.root_key
    }

    /// The keys of all full pages.
    pub(super) fn keys(&self) -> impl Iterator<Item = &PageKey> {
        self.live_nodes().flat_map(|(_, node)| {
            let full = node.borders.len() / self.page_size;
            node.pages[..full].iter().map(|&page| self.rows.key(page))
        })
    }

    /// The key of the page before a node's first.
    pub(super) fn key_above(&self, node: &Node) -> PageKey {
        let above = node.parent.and_then(|id| self.node(id).pages.last());
        above.map_or(self.root_key, |&page| *self.rows.key(page))
    }

    /// The key of a full page with these pieces, after the page with the key `above`.
    pub(super) fn key_of<'a>(
        &self,
        above: &PageKey,
        pieces: impl Iterator<Item = (NamespaceId, &'a [u32])>,
    ) -> PageKey {
        let runs = pieces.map(|(namespace, tokens)| (self.namespaces.bytes(namespace), tokens));
        next_key(above, runs)
    }

    /// Change a node, and keep what is counted and listed of it and of those above right.
    pub(super) fn update<T>(
        &mut self,
        id: NodeId,
        change: impl FnOnce(&mut Node, &mut Namespaces) -> T,
    ) -> T {
        self.unlist(id);
        let node = self.nodes.get_mut(id.0);
        let before = (node.pages.len(), node.protected_pages());
        let was_tipped = node.is_tipped();
        let result = change(node, &mut self.namespaces);
        let after = (node.pages.len(), node.protected_pages());
        let (is_tipped, parent) = (node.is_tipped(), node.parent);
        self.pages = self.pages - before.0 + after.0;
        self.protected = self.protected - before.1 + after.1;
        self.list(id);
        if (before.1 > 0) != (after.1 > 0) {
            self.tell_above(parent, after.1 > 0);
        }
        if was_tipped != is_tipped {
            self.tell_above_of_tips(parent, is_tipped);
        }
        result
    }

    /// A child of `above` has got its first tip, or lost the last: tell the path as far as that is news.
    fn tell_above_of_tips(&mut self, mut above: Option<NodeId>, tipped: bool) {
        while let Some(id) = above {
            let node = self.node_mut(id);
            let before = node.is_tipped();
            if tipped {
                node.tipped_children += 1;
            } else {
                node.tipped_children -= 1;
            }
            if node.is_tipped() == before {
                return;
            }
            above = node.parent;
        }
    }

    /// A child of `above` has become protected, or is so no more: tell the path as far as that is news.
    fn tell_above(&mut self, mut above: Option<NodeId>, protected: bool) {
        while let Some(id) = above {
            self.unlist(id);
            let node = self.node_mut(id);
            let before = node.protected_pages();
            if protected {
                node.protected_children += 1;
            } else {
                node.protected_children -= 1;
            }
            let after = node.protected_pages();
            above = node.parent;
            self.protected = self.protected - before + after;
            self.list(id);
            if (before > 0) == (after > 0) {
                return;
            }
        }
    }

    fn unlist(&mut self, id: NodeId) {
        if let Some(last_use) = self.node(id).evictable_since() {
            self.evictable.remove(last_use, id);
        }
    }

    pub(super) fn list(&mut self, id: NodeId) {
        if let Some(last_use) = self.node(id).evictable_since() {
            self.evictable.insert(last_use, id);
        }
    }

    /// Mark the path to a position as used now.
    pub(super) fn touch(&mut self, at: Position, priority: u8) {
        self.touches += 1;
        let tick = used_at(self.touches, priority);
        if let Some(id) = at.node {
            self.update(id, |node, _| node.uses.raise(at.pages, tick));
        }
    }

    /// The first `pages` pages of the path to `node` are not where their conversation goes any more: of them,
    /// those that nothing protects and no tip is on are the first to be evicted. O(nodes of the branch).
    pub(super) fn supersede(&mut self, node: NodeId, pages: usize) {
        let mut next = Some(node);
        while let Some(id) = next {
            let node = self.node(id);
            let last_tip = node.tips.last_key_value().map(|(&pages, _)| pages);
            let kept = if node.tipped_children > 0 {
                node.end()
            } else {
                let protected = node.start + node.protected_pages();
                last_tip.map_or(protected, |tip| tip.max(protected))
            };
            next = node.parent.filter(|_| kept == node.start);
            let to = pages.min(node.end());
            if let Some(above) = next {
                // That the path above was used stays true.
                let (start, last_use) = (node.start, node.uses.of(node.start + 1));
                self.update(above, |above, _| above.uses.raise(start, last_use));
            }
            if kept < to {
                self.update(id, |node, _| node.uses.supersede(kept, to));
            }
        }
    }
}
