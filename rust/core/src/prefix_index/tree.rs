//! The radix tree. Owns the nodes, their order, their use, and through it the namespaces, locks and tips on
//! them; never owns a free page and knows no lease.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use super::evict::{EvictableLeaves, Tick, Uses};
use super::locks::{LockId, Locks};
use super::namespace::{Namespaces, PathToken};
use super::pages::PageId;
use super::run::Run;
use super::slab::Slab;
use super::tips::Tips;

/// The pairs of a node's first page, at least one and at most `page_size`.
pub(super) type PageKey = Arc<[PathToken]>;

/// Children in lexicographic order of their first pages.
///
/// In this order the keys that share a prefix with a given one stand together, and nearer means
/// longer: the child with the longest common prefix is the first at or above it or the last below.
pub(super) type Children = BTreeMap<PageKey, NodeId>;

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
    pub(super) run: Run,
    /// At least one.
    pub(super) pages: Vec<PageId>,
    pub(super) key: PageKey,
    pub(super) children: Children,
    /// The locks on this node and how many pages of the path each protects.
    pub(super) locks: BTreeSet<(usize, LockId)>,
    /// Children that are protected.
    pub(super) protected_children: usize,
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
        page_size.min(self.run.len() - (page - self.start) * page_size)
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

    /// The use of the last page, if that page may be evicted.
    pub(super) fn evictable_since(&self) -> Option<Tick> {
        let evictable = self.children.is_empty() && self.protected_pages() < self.pages.len();
        evictable.then(|| self.uses.of(self.end()))
    }
}

pub(super) struct Tree {
    pub(super) page_size: usize,
    pub(super) nodes: Slab<Node>,
    pub(super) roots: Children,
    pub(super) evictable: EvictableLeaves,
    /// Pages of all nodes, and how many of them are protected.
    pages: usize,
    protected: usize,
    tick: Tick,
    pub(super) locks: Locks,
    pub(super) tips: Tips,
    pub(super) namespaces: Namespaces,
}

impl Tree {
    pub(super) fn new(page_size: usize) -> Self {
        Self {
            page_size,
            nodes: Slab::default(),
            roots: Children::default(),
            evictable: EvictableLeaves::default(),
            pages: 0,
            protected: 0,
            tick: 0,
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

    fn children_mut(&mut self, parent: Option<NodeId>) -> &mut Children {
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
        let mut parts: Vec<&[u32]> = self
            .upwards(node)
            .map(|id| self.node(id).run.tokens())
            .collect();
        parts.reverse();
        let mut token_ids = parts.concat();
        token_ids.truncate(pages * self.page_size);
        token_ids
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
        let result = change(node, &mut self.namespaces);
        let after = (node.pages.len(), node.protected_pages());
        let parent = node.parent;
        self.pages = self.pages - before.0 + after.0;
        self.protected = self.protected - before.1 + after.1;
        self.list(id);
        if (before.1 > 0) != (after.1 > 0) {
            self.tell_above(parent, after.1 > 0);
        }
        result
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

    fn list(&mut self, id: NodeId) {
        if let Some(last_use) = self.node(id).evictable_since() {
            self.evictable.insert(last_use, id);
        }
    }

    /// Take out the page to evict next.
    pub(super) fn evict_page(&mut self) -> Option<PageId> {
        let leaf = self.evictable.first()?;
        Some(self.remove_last_page(leaf))
    }

    /// Mark the path to a position as used now.
    pub(super) fn touch(&mut self, at: Position) {
        self.tick += 1;
        let tick = self.tick;
        if let Some(id) = at.node {
            self.update(id, |node, _| node.uses.raise(at.pages, tick));
        }
    }

    /// Put `pages` with the pairs `range` of `run` below a position where the tree has no page that begins
    /// like them; gives the node they are in.
    pub(super) fn insert(
        &mut self,
        at: Position,
        run: &Run,
        range: Range<usize>,
        pages: &[PageId],
    ) -> NodeId {
        if let Some(id) = at.node {
            if at.pages < self.node(id).end() {
                let above = self.split(id, at.pages);
                return self.add_child(Some(above), at.pages, run, range, pages);
            }
            if self.node(id).children.is_empty() {
                self.extend(id, run, range, pages);
                return id;
            }
        }
        self.add_child(at.node, at.pages, run, range, pages)
    }

    /// Add pairs at the end of a childless node: to its partial page, then in `pages`.
    pub(super) fn extend(&mut self, id: NodeId, run: &Run, range: Range<usize>, pages: &[PageId]) {
        let page_size = self.page_size;
        let grows_first_page = self.node(id).run.len() < page_size;
        self.update(id, |node, namespaces| {
            node.run.append(run, range, namespaces);
            node.pages.extend_from_slice(pages);
        });
        if grows_first_page {
            let node = self.node(id);
            let parent = node.parent;
            let key: PageKey = node.run.pairs(0..page_size.min(node.run.len())).into();
            let old = std::mem::replace(&mut self.node_mut(id).key, Arc::clone(&key));
            let siblings = self.children_mut(parent);
            siblings.remove(&old);
            let replaced = siblings.insert(key, id);
            assert!(replaced.is_none(), "two nodes with one key");
        }
    }

    fn add_child(
        &mut self,
        parent: Option<NodeId>,
        start: usize,
        run: &Run,
        range: Range<usize>,
        pages: &[PageId],
    ) -> NodeId {
        let mut own = Run::default();
        own.append(run, range, &mut self.namespaces);
        let key: PageKey = own.pairs(0..self.page_size.min(own.len())).into();
        let node = Node {
            parent,
            start,
            run: own,
            pages: pages.to_vec(),
            key: Arc::clone(&key),
            children: Children::new(),
            locks: BTreeSet::new(),
            protected_children: 0,
            uses: Uses::default(),
            tips: BTreeMap::new(),
            has_writer: false,
        };
        let id = NodeId(self.nodes.insert(node));
        self.pages += pages.len();
        // A node with a child is not listed.
        let insert = |children: &mut Children| children.insert(key, id);
        let replaced = match parent {
            Some(above) => self.update(above, |node, _| insert(&mut node.children)),
            None => insert(&mut self.roots),
        };
        assert!(replaced.is_none(), "two nodes with one key");
        self.list(id);
        id
    }

    /// Cut a node after the first `pages` pages of the path. The lower half keeps its identity; the upper one
    /// is new, takes the locks and tips that end in it, and is returned. Nothing else about a page changes.
    fn split(&mut self, id: NodeId, pages: usize) -> NodeId {
        let page_size = self.page_size;
        let node = self.nodes.get_mut(id.0);
        let count = pages - node.start;
        let lower_run = node.run.split_off(count * page_size, &mut self.namespaces);
        let lower_pages = node.pages.split_off(count);
        let lower_key: PageKey = lower_run.pairs(0..page_size.min(lower_run.len())).into();
        let lower_locks = node.locks.split_off(&(pages + 1, LockId::FIRST));
        let lower_tips = node.tips.split_off(&(pages + 1));
        let lower_uses = node.uses.split_off(pages);
        let upper = Node {
            parent: node.parent,
            start: node.start,
            run: std::mem::replace(&mut node.run, lower_run),
            pages: std::mem::replace(&mut node.pages, lower_pages),
            key: std::mem::replace(&mut node.key, Arc::clone(&lower_key)),
            children: Children::from([(lower_key, id)]),
            locks: std::mem::replace(&mut node.locks, lower_locks),
            protected_children: 0,
            uses: std::mem::replace(&mut node.uses, lower_uses),
            tips: std::mem::replace(&mut node.tips, lower_tips),
            has_writer: false,
        };
        node.start = pages;
        let protected = usize::from(node.is_protected());
        let above = NodeId(self.nodes.insert(upper));
        self.node_mut(id).parent = Some(above);
        let upper = self.nodes.get_mut(above.0);
        upper.protected_children = protected;
        for &(_, lock) in &upper.locks {
            self.locks.get_mut(lock.0).node = above;
        }
        for &tip in upper.tips.values() {
            self.tips.get_mut(tip).expect("a live tip").node = above;
        }
        let (parent, key) = (upper.parent, Arc::clone(&upper.key));
        let replaced = self.children_mut(parent).insert(key, above);
        assert_eq!(
            replaced,
            Some(id),
            "the upper half stands where the node stood"
        );
        above
    }

    /// Take out the last page of a childless node, which nothing protects, and the tips in it.
    pub(super) fn remove_last_page(&mut self, id: NodeId) -> PageId {
        let node = self.node(id);
        let last_use = node
            .evictable_since()
            .expect("a page that nothing protects");
        let (pages, parent) = (node.end() - 1, node.parent);
        for tip in self.node_mut(id).tips.split_off(&(pages + 1)).into_values() {
            self.tips.forget(tip);
        }
        let page_size = self.page_size;
        let (page, is_empty) = self.update(id, |node, namespaces| {
            node.run
                .truncate((pages - node.start) * page_size, namespaces);
            node.uses.truncate(pages);
            (
                node.pages.pop().expect("at least one page"),
                node.pages.is_empty(),
            )
        });
        if is_empty {
            let node = self.nodes.remove(id.0);
            match parent {
                Some(above) => self.update(above, |above, _| {
                    above.children.remove(&node.key);
                    above.uses.raise(pages, last_use);
                }),
                None => {
                    self.roots.remove(&node.key);
                }
            }
        }
        page
    }
}
