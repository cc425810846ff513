//! The prefix index: the pages of one device, each free, in the radix tree, or leased. Owns page
//! accounting; never reads or writes a page, and never tells time.
//!
//! * [`PrefixIndex::admit`] matches, locks and reserves in one step and gives a [`Lease`].
//! * Full pages that match are shared in place; a page that matches in part is reused by copying
//!   its matching rows, so a hit is exact to the token. At least one token is always computed.
//! * [`PrefixIndex::commit`] puts computed pages into the tree. Rows are immutable from then on;
//!   the page table of a lease never changes under it, except that `grow` adds pages.
//! * [`PrefixIndex::release`] gives everything back and leaves a *tip*, named by the lease's number. The next
//!   turn is admitted after it: its cost is that of the new tokens and of the branches on the path, whatever else is
//!   before them.
//! * With [`PrefixIndex::with_tiers`], full pages that are evicted keep a slot in host memory or on disk, and an
//!   admission may restore them. The tree knows device pages only; beside it stands the shelf.
//!   [`PrefixIndex::take_moves`] says what the caller has to copy, and when.

mod admit;
mod borders;
mod branch;
mod check;
mod codec;
mod commit;
mod dump;
mod error;
mod evict;
mod evicted;
mod explain;
mod lease;
mod load_error;
mod locks;
mod moves;
mod namespace;
mod onload;
mod page_rows;
mod pages;
mod pins;
mod quarantine;
mod release;
mod run;
mod search;
mod shelf;
mod slab;
mod stats;
mod tier_dump;
mod tips;
mod tree;
mod uses;

#[cfg(test)]
mod tests;

use crate::own_map::OwnMap;

pub use admit::Prompt;
pub use error::IndexError;
pub use explain::{CONTEXT_TOKENS, Cause, Difference, Explanation};
pub use lease::{Lease, LeaseId, RowCopy};
pub use load_error::LoadError;
pub use moves::{Move, Place, Tier};
pub use pages::PageId;
pub use stats::Stats;
pub use uses::PRIORITY_USES;

use locks::LockId;
use pages::PagePool;
use pins::Pins;
use quarantine::Quarantined;
use stats::Counters;
use tree::Tree;

/// See the module.
pub struct PrefixIndex {
    page_size: usize,
    pages: PagePool,
    tree: Tree,
    leases: OwnMap<u64, Lease>,
    lease_count: u64,
    pins: Pins,
    quarantined: Quarantined,
    counters: Counters,
}

impl PrefixIndex {
    /// An empty index over `pages` free pages of `page_size` tokens.
    pub fn new(page_size: usize, pages: usize) -> Result<Self, IndexError> {
        // A slot is page * page_size + row in u32.
        let slots = page_size.checked_mul(pages).ok_or(IndexError::Shape)?;
        let rows = u32::try_from(page_size).map_err(|_| IndexError::Shape)?;
        let total = u32::try_from(pages).map_err(|_| IndexError::Shape)?;
        if slots == 0 || slots as u64 > 1 << 32 {
            return Err(IndexError::Shape);
        }
        Ok(Self {
            page_size,
            pages: PagePool::new(total),
            tree: Tree::new(rows, pages),
            leases: OwnMap::default(),
            lease_count: 0,
            pins: Pins::default(),
            quarantined: Quarantined::default(),
            counters: Counters::default(),
        })
    }

    /// Whether there are so many pages, free or evictable.
    fn has_room(&self, count: usize) -> bool {
        self.pages.free() + self.tree.evictable_pages() >= count
    }

    /// `count` pages, evicting as needed; `None`, and nothing evicted, when there are not so many.
    fn take_pages(&mut self, count: usize) -> Option<Vec<PageId>> {
        if !self.has_room(count) {
            return None;
        }
        while self.pages.free() < count {
            let gone = self.tree.evict_page();
            let gone = gone.expect("evictable pages can be had");
            if let Some(key) = gone.key {
                self.tree.shelf.put(key, gone.page);
            }
            self.pages.give_back(gone.page);
            self.counters.evicted_pages += 1;
        }
        (0..count).map(|_| self.pages.take()).collect()
    }

    fn unlock(&mut self, lock: LockId) {
        if let Some(page) = self.tree.unlock(lock) {
            self.pages.give_back(page);
        }
    }

    /// A live lease; `None` once it is released.
    pub fn lease(&self, id: LeaseId) -> Option<&Lease> {
        self.leases.get(&id.0)
    }

    /// Make room for `tokens` positions in all; false, and no change, when there are no pages.
    pub fn grow(&mut self, id: LeaseId, tokens: usize) -> Result<bool, IndexError> {
        let held = self.leases.get(&id.0).ok_or(IndexError::Released)?;
        let missing = tokens
            .div_ceil(self.page_size)
            .saturating_sub(held.table.len());
        let Some(own) = self.take_pages(missing) else {
            return Ok(false);
        };
        let lease = self.leases.get_mut(&id.0).ok_or(IndexError::Released)?;
        lease.table.extend(own);
        Ok(true)
    }

    /// Every token of a lease's path, what stands in the tree included. O(all of it).
    pub fn token_ids(&self, id: LeaseId) -> Result<Vec<u32>, IndexError> {
        let lease = self.leases.get(&id.0).ok_or(IndexError::Released)?;
        let before = self.tree.locked(lease.lock);
        let mut token_ids = self.tree.token_ids(before.node, lease.full);
        token_ids.extend_from_slice(lease.pending.tokens());
        Ok(token_ids)
    }

    /// Drop every cached page that no lease protects, and all pages of the lower tiers; says how many pages of the
    /// device became free.
    pub fn clear(&mut self) -> usize {
        self.tree.shelf.clear();
        let mut pages = 0;
        while let Some(gone) = self.tree.evict_page() {
            self.pages.give_back(gone.page);
            pages += 1;
        }
        pages
    }

    /// Prove the accounting from the ground up; says what is wrong. O(everything).
    pub fn check(&self) -> Result<(), String> {
        check::check(self)
    }
}
