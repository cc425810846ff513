//! Locks on pages of the tree. Owns which node a lock is on, also through splits; a lock is never found again by
//! recomputing a key.

use super::pages::PageId;
use super::slab::Slab;
use super::tree::{NodeId, Position, Tree};

/// One lock's number, valid until it is unlocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LockId(pub(super) u32);

impl LockId {
    /// The least of all.
    pub(super) const FIRST: Self = Self(0);
}

/// Protects the first `pages` pages of the path to `node`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lock {
    pub(super) node: NodeId,
    pub(super) pages: usize,
}

pub(super) type Locks = Slab<Lock>;

impl Tree {
    /// Protect the path to a position; at the root there is nothing to protect. O(nodes on the path).
    #[must_use]
    pub(super) fn lock(&mut self, at: Position) -> Option<LockId> {
        let (node, pages) = (at.node?, at.pages);
        let id = LockId(self.locks.insert(Lock { node, pages }));
        self.update(node, |node, _| node.locks.insert((pages, id)));
        Some(id)
    }

    /// Take back a lock. A partial page that a sibling covers goes with its last lock: the caller frees it.
    #[must_use]
    pub(super) fn unlock(&mut self, id: LockId) -> Option<PageId> {
        let node = self.drop_lock(id);
        let covered = !self.node(node).is_protected() && self.is_covered(node);
        covered.then(|| self.remove_last_page(node))
    }

    /// Take back a lock and leave its pages as they are; says which node it was on.
    pub(super) fn drop_lock(&mut self, id: LockId) -> NodeId {
        let Lock { node, pages } = self.locks.remove(id.0);
        self.update(node, |node, _| node.locks.remove(&(pages, id)));
        node
    }

    /// Where a lock ends; the root when there is none.
    pub(super) fn locked(&self, lock: Option<LockId>) -> Position {
        lock.map_or(Position::ROOT, |id| {
            let Lock { node, pages } = *self.locks.get(id.0);
            Position {
                node: Some(node),
                pages,
            }
        })
    }
}
