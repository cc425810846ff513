//! Growth and decay of the tree: pages are added at an end, a branch splits a node, pages go from the end. Each
//! of these keeps what is counted, locked and remembered right.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::borders::Borders;
use super::evicted::EvictedPage;
use super::locks::LockId;
use super::pages::PageId;
use super::run::Run;
use super::tree::{Children, FirstPage, Node, NodeId, Position, Tree};
use super::uses::Uses;

impl Tree {
    /// Put `pages` with the pairs `range` of `run` below a position where the tree has no page that begins
    /// like them; gives the node they are in.
    pub(super) fn insert(
        &mut self,
        at: Position,
        run: &Run<'_>,
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
    pub(super) fn extend(
        &mut self,
        id: NodeId,
        run: &Run<'_>,
        range: Range<usize>,
        pages: &[PageId],
    ) {
        let page_size = self.page_size;
        let known = self.node(id).borders.len();
        let grows_first_page = known < page_size;
        self.update(id, |node, namespaces| {
            node.borders
                .append(run.borders(), range.clone(), namespaces);
            node.pages.extend_from_slice(pages);
        });
        self.fill(id, known, &run.tokens()[range]);
        if grows_first_page {
            let node = self.node(id);
            let parent = node.parent;
            let key: FirstPage = self.first_page(node).into();
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
        run: &Run<'_>,
        range: Range<usize>,
        pages: &[PageId],
    ) -> NodeId {
        let mut borders = Borders::default();
        borders.append(run.borders(), range.clone(), &mut self.namespaces);
        let key: FirstPage = run
            .pairs(range.start..range.end.min(range.start + self.page_size))
            .into();
        let node = Node {
            parent,
            start,
            pages: pages.to_vec(),
            borders,
            key: Arc::clone(&key),
            children: Children::new(),
            locks: BTreeSet::new(),
            protected_children: 0,
            tipped_children: 0,
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
        self.fill(id, 0, &run.tokens()[range]);
        id
    }

    /// Add a node with all pairs of `run`; `None` when the parent cannot have it as a child.
    pub(super) fn load_child(
        &mut self,
        parent: Option<NodeId>,
        run: &Run<'_>,
        pages: &[PageId],
    ) -> Option<NodeId> {
        let first = run.pairs(0..self.page_size.min(run.len()));
        let is_partial = |id: NodeId| !self.node(id).borders.len().is_multiple_of(self.page_size);
        if self.children(parent).contains_key(&*first) || parent.is_some_and(is_partial) {
            return None;
        }
        let start = parent.map_or(0, |id| self.node(id).end());
        Some(self.add_child(parent, start, run, 0..run.len(), pages))
    }

    /// Write the tokens of a node's positions from `known` on, and the keys of the pages that become full. They
    /// are on the device now, so not on the shelf any more.
    fn fill(&mut self, id: NodeId, known: usize, tokens: &[u32]) {
        let page_size = self.page_size;
        let node = self.nodes.get(id.0);
        let (mut at, mut rest) = (known, tokens);
        while !rest.is_empty() {
            let row = at % page_size;
            let (now, after) = rest.split_at(rest.len().min(page_size - row));
            self.rows.write(node.pages[at / page_size], row, now);
            (at, rest) = (at + now.len(), after);
        }
        let node = self.node(id);
        let full = known / page_size;
        let mut key = match full.checked_sub(1) {
            Some(last) => *self.rows.key(node.pages[last]),
            None => self.key_above(node),
        };
        for nth in full..at / page_size {
            let node = self.nodes.get(id.0);
            key = self.key_of(&key, self.page_pieces(node, nth));
            let page = node.pages[nth];
            self.rows.set_key(page, key);
            self.shelf.forget(&key);
        }
    }

    /// Cut a node after the first `pages` pages of the path. The lower half keeps its identity; the upper one
    /// is new, takes the locks and tips that end in it, and is returned. Nothing else about a page changes.
    pub(super) fn split(&mut self, id: NodeId, pages: usize) -> NodeId {
        let page_size = self.page_size;
        let node = self.nodes.get_mut(id.0);
        let count = pages - node.start;
        let at = count * page_size;
        let lower_borders = node.borders.split_off(at, &mut self.namespaces);
        let lower_pages = node.pages.split_off(count);
        let lower_locks = node.locks.split_off(&(pages + 1, LockId::FIRST));
        let lower_tips = node.tips.split_off(&(pages + 1));
        let lower_uses = node.uses.split_off(pages);
        let upper = Node {
            parent: node.parent,
            start: node.start,
            pages: std::mem::replace(&mut node.pages, lower_pages),
            borders: std::mem::replace(&mut node.borders, lower_borders),
            key: Arc::clone(&node.key),
            children: Children::new(),
            locks: std::mem::replace(&mut node.locks, lower_locks),
            protected_children: 0,
            tipped_children: 0,
            uses: std::mem::replace(&mut node.uses, lower_uses),
            tips: std::mem::replace(&mut node.tips, lower_tips),
            has_writer: false,
        };
        node.start = pages;
        let (protected, tipped) = (node.is_protected(), node.is_tipped());
        let above = NodeId(self.nodes.insert(upper));
        let lower_key: FirstPage = self.first_page(self.node(id)).into();
        let node = self.nodes.get_mut(id.0);
        node.parent = Some(above);
        node.key = Arc::clone(&lower_key);
        let upper = self.nodes.get_mut(above.0);
        upper.children.insert(lower_key, id);
        upper.protected_children = usize::from(protected);
        upper.tipped_children = usize::from(tipped);
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

    /// Take out the page to evict next.
    pub(super) fn evict_page(&mut self) -> Option<EvictedPage> {
        let leaf = self.evictable.first()?;
        let key = self.key_of_last(leaf);
        if let Some(key) = &key {
            self.evicted.remember(key);
        }
        let page = self.remove_last_page(leaf);
        Some(EvictedPage { page, key })
    }

    /// Take out the last page of a childless node, which nothing protects, and the tips in it.
    pub(super) fn remove_last_page(&mut self, id: NodeId) -> PageId {
        let node = self.node(id);
        let last_use = node
            .evictable_since()
            .expect("a page that nothing protects");
        let (pages, parent) = (node.end() - 1, node.parent);
        let gone = self.update(id, |node, _| node.tips.split_off(&(pages + 1)));
        for tip in gone.into_values() {
            self.tips.forget(tip);
        }
        let page_size = self.page_size;
        let (page, is_empty) = self.update(id, |node, namespaces| {
            node.borders
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
