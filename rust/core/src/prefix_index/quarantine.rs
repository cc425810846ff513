//! Quarantine: cached pages that are wrong, or to be forgotten, leave the tree at once, also where leases hold
//! them. Owns the pages that only such leases have left; never says what is wrong.
//!
//! A page that a lease holds is found by nobody from then on, and free with the last such lease. The lease goes on
//! with its page table and commits nothing any more: what it computes depends on what was wrong.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Bound::{Included, Unbounded};

use crate::page_keys::PageKey;

use super::borders::Borders;
use super::lease::Lease;
use super::locks::LockId;
use super::namespace::{NamespaceId, PathToken};
use super::pages::PageId;
use super::run::Run;
use super::search::Matched;
use super::tree::{NodeId, Position, Tree};
use super::{IndexError, PrefixIndex, Prompt};

/// Pages that are in no tree, by how many leases hold them.
#[derive(Default)]
pub(super) struct Quarantined(HashMap<PageId, usize>);

impl Quarantined {
    pub(super) fn pages(&self) -> impl Iterator<Item = PageId> + '_ {
        self.0.keys().copied()
    }

    /// How many leases hold a page.
    pub(super) fn holders(&self, page: PageId) -> usize {
        self.0.get(&page).copied().unwrap_or(0)
    }

    fn hold(&mut self, page: PageId) {
        *self.0.entry(page).or_default() += 1;
    }

    /// One lease less; says whether it was the last.
    pub(super) fn let_go(&mut self, page: PageId) -> bool {
        let Some(holders) = self.0.get_mut(&page) else {
            return false;
        };
        *holders -= 1;
        let is_last = *holders == 0;
        if is_last {
            self.0.remove(&page);
        }
        is_last
    }
}

/// What leaves the tree: nodes with all that is below them.
struct Gone {
    /// Parents before their children.
    order: Vec<NodeId>,
    nodes: HashSet<NodeId>,
    pages: HashSet<PageId>,
}

impl PrefixIndex {
    /// Position `from_token` of this path is wrong: drop every cached page whose path has its tokens up to there,
    /// and what follows them. Says how many pages were dropped, in all tiers. `stretches` as in a prompt.
    ///
    /// Tips and pins in these pages are gone. A page of the lower tiers is known by its key alone, which does not
    /// say what it follows: all of them are dropped. Copies of rows that leases have not done yet are to be done
    /// before.
    pub fn quarantine(
        &mut self,
        token_ids: &[u32],
        stretches: &[(&[u8], usize)],
        from_token: usize,
    ) -> Result<usize, IndexError> {
        let prompt = Prompt {
            token_ids,
            stretches,
            ..Prompt::default()
        };
        let tokens = self.check_prompt(&prompt)?;
        if from_token >= tokens {
            return Err(IndexError::NoSuchToken { from_token, tokens });
        }
        let mut start = self.start(&prompt);
        let first = from_token / self.page_size * self.page_size;
        let matched = self
            .tree
            .find(Position::ROOT, &start.path, first, &mut Vec::new());
        let doubtful = self.restored_from(&start.path, matched, from_token);
        let roots = if matched.at.pages * self.page_size == first {
            let wrong = start.path.pairs(first..from_token + 1);
            self.tree.cut_before(matched.at, &wrong)
        } else {
            Vec::new()
        };
        let dropped = self.drop_all(roots, &doubtful);
        start.path.clear(&mut self.tree.namespaces);
        self.tree.namespaces.release(start.reply);
        Ok(dropped)
    }

    /// Drop every cached page that has a token in `namespace`, and what follows it, as `quarantine` does.
    pub fn purge(&mut self, namespace: &[u8]) -> usize {
        let id = self.tree.namespaces.acquire(namespace);
        let roots = self.tree.cut_before_namespace(id);
        let dropped = self.drop_all(roots, &[]);
        self.tree.namespaces.release(id);
        dropped
    }

    /// Leases that did not compute the token but got it from a lower tier, and have not given it to the tree.
    fn restored_from(&self, path: &Run<'_>, matched: Matched, from_token: usize) -> Vec<u64> {
        let is_on_path = |lease: &Lease| {
            let shared = lease.full * self.page_size;
            let at = self.tree.locked(lease.lock);
            let above = matched.at.node.filter(|_| lease.full > 0);
            let same = above.map(|node| self.tree.position(node, lease.full).node);
            lease.hit_tokens > from_token
                && lease.onloaded_tokens > 0
                && shared <= from_token
                && from_token < lease.tokens()
                && lease.full <= matched.at.pages
                && (lease.full == 0 || at.pages == lease.full && same == Some(at.node))
                && lease.pending.pairs(0..from_token + 1 - shared)
                    == path.pairs(shared..from_token + 1)
        };
        let leases = self.leases.iter();
        leases
            .filter(|(_, lease)| is_on_path(lease))
            .map(|(&id, _)| id)
            .collect()
    }

    /// Take `roots` and what is below them out of the tree, and empty the shelf. `doubtful`: leases that are to
    /// commit nothing any more, besides those that hold what goes.
    fn drop_all(&mut self, roots: Vec<NodeId>, doubtful: &[u64]) -> usize {
        let gone = self.tree.below(roots);
        for lock in self.pins.remove_in(|lock| gone.has(&self.tree, lock)) {
            self.tree.drop_lock(lock);
        }
        let mut holders: Vec<u64> = self.leases.keys().copied().collect();
        holders.retain(|id| {
            let mut locks = self.leases[id].locks();
            doubtful.contains(id) || locks.any(|lock| gone.has(&self.tree, lock))
        });
        for id in holders {
            let mut lease = self.leases.remove(&id).expect("a live lease");
            self.detach(&mut lease, &gone);
            self.leases.insert(id, lease);
        }
        for &id in gone.order.iter().rev() {
            for _ in 0..self.tree.node(id).pages.len() {
                if let Some(key) = self.tree.key_of_last(id) {
                    self.tree.evicted.remember(&key);
                }
                let page = self.tree.remove_last_page(id);
                if self.quarantined.holders(page) == 0 {
                    self.pages.give_back(page);
                }
            }
        }
        gone.pages.len() + self.tree.shelf.clear()
    }

    /// The lease keeps its pages, of the tree what is before them, and commits nothing any more.
    fn detach(&mut self, lease: &mut Lease, gone: &Gone) {
        let quarantined = lease.quarantined.get_or_insert_default();
        for &page in &lease.table {
            if gone.pages.contains(&page) && quarantined.insert(page) {
                self.quarantined.hold(page);
            }
        }
        let end = self.tree.locked(lease.lock);
        let path: Vec<NodeId> = self
            .tree
            .upwards(end.node)
            .take_while(|id| gone.nodes.contains(id))
            .collect();
        let locks: Vec<_> = lease.locks().collect();
        if let Some(&top) = path.last() {
            let tree = &mut self.tree;
            let (start, above) = (tree.node(top).start, tree.node(top).parent);
            lease.pending = tree.pending_from(&path, lease);
            lease.lock = tree.lock(Position {
                node: above,
                pages: start,
            });
            lease.full = start;
            lease.has_tail = false;
            lease.duplicates.retain(|&page| page < start);
        }
        let is_gone = |lock| gone.has(&self.tree, lock);
        lease.set_aside.retain(|&(_, lock)| !is_gone(lock));
        lease.copy = lease.copy.filter(|&(lock, _)| !is_gone(lock));
        for lock in locks {
            if gone.has(&self.tree, lock) {
                self.tree.drop_lock(lock);
            }
        }
        lease.has_committed = false;
    }

    /// A released lease's pages of quarantine are free when nobody else holds them.
    pub(super) fn let_go(&mut self, lease: &Lease) {
        for page in lease.quarantined_pages() {
            if self.quarantined.let_go(page) {
                self.pages.give_back(page);
            }
        }
    }
}

impl Gone {
    fn has(&self, tree: &Tree, lock: LockId) -> bool {
        self.nodes.contains(&tree.locks.get(lock.0).node)
    }
}

impl Tree {
    /// The nodes that begin with the page after `at` and have `wrong`, its first pairs.
    fn cut_before(&mut self, at: Position, wrong: &[PathToken]) -> Vec<NodeId> {
        if let Some(id) = at.node
            && at.pages < self.node(id).end()
        {
            let node = self.node(id);
            let page = PathToken::of(self.page_pieces(node, at.pages - node.start));
            if !page.starts_with(wrong) {
                return Vec::new();
            }
            self.split(id, at.pages);
            return vec![id];
        }
        let from = (Included(wrong), Unbounded);
        let children = self.children(at.node).range::<[_], _>(from);
        let with = children.take_while(|(key, _)| key.starts_with(wrong));
        with.map(|(_, &id)| id).collect()
    }

    /// The nodes that begin with the first page on their path with a token in `namespace`.
    fn cut_before_namespace(&mut self, namespace: NamespaceId) -> Vec<NodeId> {
        let mut found = Vec::new();
        let mut next: Vec<NodeId> = self.roots.values().copied().collect();
        while let Some(id) = next.pop() {
            let node = self.node(id);
            let first = {
                let mut pieces = node.borders.pieces(0..node.borders.len());
                pieces.find(|&(there, _)| there == namespace)
            };
            if let Some((_, piece)) = first {
                let (start, page) = (node.start, piece.start / self.page_size);
                if page > 0 {
                    self.split(id, start + page);
                }
                found.push(id);
            } else {
                next.extend(node.children.values());
            }
        }
        found
    }

    fn below(&self, roots: Vec<NodeId>) -> Gone {
        let mut order = roots;
        let mut at = 0;
        while let Some(&id) = order.get(at) {
            order.extend(self.node(id).children.values());
            at += 1;
        }
        let pages = order.iter().flat_map(|&id| &self.node(id).pages);
        Gone {
            nodes: order.iter().copied().collect(),
            pages: pages.copied().collect(),
            order,
        }
    }

    /// A lease's path from the first of the nodes `path` on, deepest first, with what is pending after them.
    fn pending_from(&mut self, path: &[NodeId], lease: &mut Lease) -> Run<'static> {
        let mut tokens = Vec::new();
        let mut borders = Borders::default();
        for &id in path.iter().rev() {
            let node = self.nodes.get(id.0);
            let pages = lease.full.saturating_sub(node.start).min(node.pages.len());
            let rows = 0..pages * self.page_size;
            tokens.extend(self.tokens_of(node, rows.clone()));
            borders.append(&node.borders, rows, &mut self.namespaces);
        }
        tokens.extend_from_slice(lease.pending.tokens());
        let pending = 0..lease.pending.len();
        borders.append(lease.pending.borders(), pending, &mut self.namespaces);
        lease.pending.clear(&mut self.namespaces);
        Run::new(Cow::Owned(tokens), borders)
    }

    /// The key of a node's last page, if that is full.
    pub(super) fn key_of_last(&self, id: NodeId) -> Option<PageKey> {
        let node = self.node(id);
        let is_full = node.borders.len().is_multiple_of(self.page_size);
        let last = node.pages.last().filter(|_| is_full)?;
        Some(*self.rows.key(*last))
    }
}
