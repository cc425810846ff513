//! The radix tree over pages. Owns the nodes, their order, their locks and their last use; never
//! owns a free page and knows no lease.

use std::collections::BTreeMap;
use std::iter;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use super::evict::{EvictableLeaves, Tick};
use super::namespace::PathToken;
use super::pages::PageId;

/// The pairs of one page, at least one and at most `page_size`.
pub(super) type PageKey = Arc<[PathToken]>;

/// Children in lexicographic order of their keys.
///
/// In this order the keys that share a prefix with a given one stand together, and nearer means
/// longer: the child with the longest common prefix is the first at or above it or the last below.
pub(super) type Children = BTreeMap<PageKey, NodeId>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(u32);

/// One cached page.
///
/// A node with fewer than `page_size` pairs is *partial*: the tree knows only its first rows, the
/// lease that committed it may be writing the others. Only childless nodes are partial.
pub(super) struct Node {
    pub(super) parent: Option<NodeId>,
    pub(super) key: PageKey,
    pub(super) page: PageId,
    pub(super) children: Children,
    /// Locks that leases hold on this node itself.
    pub(super) lock_ref: u32,
    /// Children that are protected.
    pub(super) protected_children: u32,
    /// Latest use of the node and of all nodes that were ever removed below it; the use of those
    /// still below it counts only when they go (a touch costs O(1), not O(depth)).
    pub(super) last_use: Tick,
}

impl Node {
    /// Whether a lease locks the node or one below it.
    pub(super) fn is_protected(&self) -> bool {
        self.lock_ref > 0 || self.protected_children > 0
    }

    fn is_evictable(&self) -> bool {
        self.children.is_empty() && !self.is_protected()
    }
}

/// What is left of a removed node, for its page and namespaces to be given back.
#[must_use]
pub(super) struct Removed {
    pub(super) key: PageKey,
    pub(super) page: PageId,
}

/// The cached part of a path.
pub(super) struct Matched {
    /// The nodes of the full pages, from the first on.
    pub(super) nodes: Vec<NodeId>,
    /// A node below the last of them whose first rows match, and how many.
    pub(super) partial: Option<(NodeId, usize)>,
}

#[derive(Default)]
pub(super) struct Tree {
    nodes: Vec<Option<Node>>,
    unused: Vec<NodeId>,
    roots: Children,
    evictable: EvictableLeaves,
    protected: usize,
    tick: Tick,
}

impl Tree {
    pub(super) fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0 as usize].as_ref().expect("a live node")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0 as usize].as_mut().expect("a live node")
    }

    pub(super) fn live_nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        let slots = (0_u32..).map(NodeId).zip(&self.nodes);
        slots.filter_map(|(id, slot)| Some((id, slot.as_ref()?)))
    }

    /// The nodes from the first page down to `deepest`.
    pub(super) fn path_to(&self, deepest: Option<NodeId>) -> Vec<NodeId> {
        let mut path: Vec<_> = iter::successors(deepest, |&id| self.node(id).parent).collect();
        path.reverse();
        path
    }

    /// Whether the node is among the leaves that may be evicted.
    pub(super) fn is_listed(&self, id: NodeId) -> bool {
        self.evictable.contains(self.node(id).last_use, id)
    }

    /// How many leaves may be evicted.
    pub(super) fn listed(&self) -> usize {
        self.evictable.len()
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.unused.len()
    }

    /// How many nodes could be evicted one after the other: all that have no lock at or below them.
    pub(super) fn evictable_pages(&self) -> usize {
        self.len() - self.protected
    }

    /// The leaf to evict next.
    pub(super) fn next_evicted(&self) -> Option<NodeId> {
        self.evictable.first()
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

    /// The longest cached prefix of `path`. O(pages of the match · log siblings).
    pub(super) fn find(&self, path: &[PathToken], page_size: usize) -> Matched {
        let mut nodes = Vec::new();
        let mut parent = None;
        let mut pages = path.chunks(page_size);
        loop {
            let Some(wanted) = pages.next() else {
                return Matched {
                    nodes,
                    partial: None,
                };
            };
            match self.children(parent).get(wanted) {
                Some(&child) if wanted.len() == page_size => {
                    nodes.push(child);
                    parent = Some(child);
                }
                _ => {
                    let partial = self.longest_common(parent, wanted);
                    return Matched { nodes, partial };
                }
            }
        }
    }

    /// The child that shares most first pairs with `wanted`, and how many (at least one).
    fn longest_common(
        &self,
        parent: Option<NodeId>,
        wanted: &[PathToken],
    ) -> Option<(NodeId, usize)> {
        let children = self.children(parent);
        let mut below = children.range::<[_], _>((Unbounded, Excluded(wanted)));
        let mut above = children.range::<[_], _>((Included(wanted), Unbounded));
        // `max_by_key` keeps the last of equals: the one above.
        [below.next_back(), above.next()]
            .into_iter()
            .flatten()
            .map(|(key, &id)| (id, common_rows(key, wanted)))
            .filter(|&(_, rows)| rows > 0)
            .max_by_key(|&(_, rows)| rows)
    }

    /// A child that has all pairs of `key`, and maybe more.
    pub(super) fn covering(&self, parent: Option<NodeId>, key: &[PathToken]) -> Option<NodeId> {
        let mut above = self
            .children(parent)
            .range::<[_], _>((Included(key), Unbounded));
        let (first, &id) = above.next()?;
        first.starts_with(key).then_some(id)
    }

    /// Whether a sibling has all pairs of the node and more.
    pub(super) fn is_superseded(&self, id: NodeId) -> bool {
        let node = self.node(id);
        let above = (Excluded(&*node.key), Unbounded);
        let next = self.children(node.parent).range::<[_], _>(above).next();
        next.is_some_and(|(key, _)| key.starts_with(&node.key))
    }

    /// The childless, unlocked child whose pairs are the first ones of `key`, but not all.
    ///
    /// There is at most one, just below `key`: whatever stands between the two begins with its
    /// pairs as well, and an unlocked node that has such a sibling is removed when that sibling
    /// comes or when its last lock goes.
    pub(super) fn superseded_by(
        &self,
        parent: Option<NodeId>,
        key: &[PathToken],
    ) -> Option<NodeId> {
        let mut below = self
            .children(parent)
            .range::<[_], _>((Unbounded, Excluded(key)));
        let (last, &id) = below.next_back()?;
        (key.starts_with(last) && self.node(id).is_evictable()).then_some(id)
    }

    /// Add a page below a protected parent; the node comes with one lock.
    pub(super) fn insert_locked(
        &mut self,
        parent: Option<NodeId>,
        key: PageKey,
        page: PageId,
    ) -> NodeId {
        let node = Node {
            parent,
            key: Arc::clone(&key),
            page,
            children: Children::new(),
            lock_ref: 1,
            protected_children: 0,
            last_use: 0,
        };
        let id = if let Some(id) = self.unused.pop() {
            self.nodes[id.0 as usize] = Some(node);
            id
        } else {
            // One node has one page, and pages are numbered in u32.
            let id = u32::try_from(self.nodes.len()).expect("fewer nodes than pages");
            self.nodes.push(Some(node));
            NodeId(id)
        };
        let replaced = self.children_mut(parent).insert(key, id);
        assert!(replaced.is_none(), "two nodes with one key");
        self.protect(id);
        id
    }

    /// Give a locked partial node more rows: `key` begins with its pairs. Returns the old key.
    pub(super) fn extend(&mut self, id: NodeId, key: PageKey) -> PageKey {
        let node = self.node_mut(id);
        let parent = node.parent;
        let old = std::mem::replace(&mut node.key, Arc::clone(&key));
        let siblings = self.children_mut(parent);
        siblings.remove(&old);
        let replaced = siblings.insert(key, id);
        assert!(replaced.is_none(), "two nodes with one key");
        old
    }

    /// Take out a childless node that nothing protects.
    pub(super) fn remove(&mut self, id: NodeId) -> Removed {
        let slot = &mut self.nodes[id.0 as usize];
        let node = slot.take().expect("a live node");
        assert!(node.is_evictable(), "a protected node or one with children");
        self.unused.push(id);
        self.evictable.remove(node.last_use, id);
        self.children_mut(node.parent).remove(&node.key);
        if let Some(parent) = node.parent {
            let above = self.node_mut(parent);
            above.last_use = above.last_use.max(node.last_use);
            if above.is_evictable() {
                let last_use = above.last_use;
                self.evictable.insert(last_use, parent);
            }
        }
        Removed {
            key: node.key,
            page: node.page,
        }
    }

    /// Mark a locked node, and with it the path to it, as used now.
    pub(super) fn touch(&mut self, id: NodeId) {
        self.tick += 1;
        let tick = self.tick;
        let node = self.node_mut(id);
        assert!(
            node.lock_ref > 0,
            "an unlocked node may be listed by its last use"
        );
        node.last_use = tick;
    }

    pub(super) fn lock(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        let was_protected = node.is_protected();
        node.lock_ref += 1;
        if !was_protected {
            self.protect(id);
        }
    }

    /// Take back one lock. A partial node that a sibling supersedes goes with its last lock.
    #[must_use]
    pub(super) fn unlock(&mut self, id: NodeId) -> Option<Removed> {
        let node = self.node_mut(id);
        node.lock_ref -= 1;
        if node.is_protected() {
            return None;
        }
        self.unprotect(id);
        self.is_superseded(id).then(|| self.remove(id))
    }

    /// `id` has just become protected: count it, and tell the path above as far as that is news.
    fn protect(&mut self, mut id: NodeId) {
        loop {
            self.protected += 1;
            let node = self.node(id);
            let (last_use, parent) = (node.last_use, node.parent);
            self.evictable.remove(last_use, id);
            let Some(above) = parent else { return };
            let node = self.node_mut(above);
            let was_protected = node.is_protected();
            node.protected_children += 1;
            if was_protected {
                return;
            }
            id = above;
        }
    }

    /// `id` has just lost its protection: the opposite of `protect`.
    fn unprotect(&mut self, mut id: NodeId) {
        loop {
            self.protected -= 1;
            let node = self.node(id);
            let parent = node.parent;
            if node.is_evictable() {
                let last_use = node.last_use;
                self.evictable.insert(last_use, id);
            }
            let Some(above) = parent else { return };
            let node = self.node_mut(above);
            node.protected_children -= 1;
            if node.is_protected() {
                return;
            }
            id = above;
        }
    }
}

fn common_rows(left: &[PathToken], right: &[PathToken]) -> usize {
    let pairs = left.iter().zip(right);
    pairs.take_while(|(left, right)| left == right).count()
}
