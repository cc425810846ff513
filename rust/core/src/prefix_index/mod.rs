//! The prefix index: the pages of one device, each free, in the radix tree, or leased. Owns page
//! accounting; never reads or writes a page, and never tells time.
//!
//! * [`PrefixIndex::admit`] matches, locks and reserves in one step and gives a [`Lease`].
//! * Full pages that match are shared in place; a page that matches in part is reused by copying
//!   its matching rows, so a hit is exact to the token. At least one token is always computed.
//! * [`PrefixIndex::commit`] puts computed pages into the tree. Rows are immutable from then on;
//!   the page table of a lease never changes under it, except that `grow` adds pages.
//! * [`PrefixIndex::release`] gives everything back and leaves a *tip*, named by the lease's number. The next
//!   turn is admitted after it: its cost is that of the new tokens, whatever is before them.
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
mod evict;
mod evicted;
mod explain;
mod lease;
mod locks;
mod moves;
mod namespace;
mod onload;
mod page_rows;
mod pages;
mod pins;
mod release;
mod run;
mod search;
mod shelf;
mod slab;
mod tier_dump;
mod tips;
mod tree;

#[cfg(test)]
mod tests;

use thiserror::Error;

use crate::own_map::OwnMap;

pub use admit::Prompt;
pub use dump::LoadError;
pub use evict::PRIORITY_USES;
pub use explain::{CONTEXT_TOKENS, Cause, Difference, Explanation};
pub use lease::{Lease, LeaseId, RowCopy};
pub use moves::{Move, Place, Tier};
pub use pages::PageId;

use locks::LockId;
use pages::PagePool;
use pins::Pins;
use tree::Tree;

/// What is wrong with a call's input. The index is unchanged.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum IndexError {
    #[error("page_size and pages must be at least 1 and have at most 2^32 slots together")]
    Shape,
    #[error("a prompt needs at least one token")]
    NoTokens,
    #[error("the stretches do not cover the {tokens} tokens exactly")]
    Stretches { tokens: usize },
    #[error("reserve_tokens is {reserve_tokens}, less than the {tokens} tokens of the prompt")]
    ReserveTooSmall {
        reserve_tokens: usize,
        tokens: usize,
    },
    #[error("reserve_tokens is {reserve_tokens}, more than the {capacity} of the whole device")]
    OverCapacity {
        reserve_tokens: usize,
        capacity: usize,
    },
    #[error("the lease has been released")]
    Released,
    #[error("the node to go on from is not known, or not any more")]
    UnknownNode,
    #[error("a pin of {pages} pages does not fit: {pinned} of at most {pages_max} are pinned")]
    PinBudget {
        pages: usize,
        pinned: usize,
        pages_max: usize,
    },
    #[error("{tokens} tokens are more than the {known} that were admitted and appended")]
    CommitPastTokens { tokens: usize, known: usize },
    #[error("{tokens} tokens go past the {reserved} that are reserved")]
    CommitPastRoom { tokens: usize, reserved: usize },
    #[error(
        "{tokens} is not among the positions restored and not committed, {from} to {hit_tokens}"
    )]
    NotRestored {
        tokens: usize,
        from: usize,
        hit_tokens: usize,
    },
}

/// Gauges and counters, in pages and tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub pages_total: usize,
    pub pages_free: usize,
    /// Pages in the tree, locked or not.
    pub pages_cached: usize,
    /// Pages that only a lease knows.
    pub pages_leased: usize,
    /// Pages in the tree that an admission could have.
    pub pages_evictable: usize,
    /// Nodes of the tree: runs of pages that no branch divides.
    pub nodes: usize,
    /// Ends of finished turns that can be continued.
    pub tips: usize,
    /// What pins take of their budget.
    pub pages_pinned: usize,
    /// Pages that were evicted and have a slot in host memory, or on disk.
    pub pages_host: usize,
    pub pages_disk: usize,
    /// Tokens of admitted prompts that were found, and that were not.
    pub hit_tokens: u64,
    pub miss_tokens: u64,
    /// The same of preempted sequences that went on: work done twice is no miss of the cache.
    pub resumed_tokens: u64,
    pub recomputed_tokens: u64,
    /// Those found, at first or after a preemption, that were restored from a lower tier and not rejected.
    pub onloaded_tokens: u64,
    /// Pages that went from the device to a slot of a lower tier.
    pub offloaded_pages: u64,
    /// Pages that found no slot, or lost it to newer ones (not those cleared). Without tiers none is counted.
    pub dropped_pages: u64,
    /// Pages evicted to make room (not those superseded or cleared).
    pub evicted_pages: u64,
    /// Computed tokens that commits told the tree of.
    pub committed_tokens: u64,
}

#[derive(Default)]
struct Counters {
    hit_tokens: u64,
    miss_tokens: u64,
    resumed_tokens: u64,
    recomputed_tokens: u64,
    onloaded_tokens: u64,
    evicted_pages: u64,
    committed_tokens: u64,
}

/// See the module.
pub struct PrefixIndex {
    page_size: usize,
    pages: PagePool,
    tree: Tree,
    leases: OwnMap<u64, Lease>,
    lease_count: u64,
    pins: Pins,
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

    pub fn stats(&self) -> Stats {
        let cached = self.tree.pages();
        let free = self.pages.free();
        let lower = &self.tree.shelf;
        Stats {
            pages_total: self.pages.total(),
            pages_free: free,
            pages_cached: cached,
            pages_leased: self.pages.total() - free - cached,
            pages_evictable: self.tree.evictable_pages(),
            nodes: self.tree.len(),
            tips: self.tree.tips.len(),
            pages_pinned: self.pins.pages(),
            pages_host: lower.pages(Tier::Host),
            pages_disk: lower.pages(Tier::Disk),
            hit_tokens: self.counters.hit_tokens,
            miss_tokens: self.counters.miss_tokens,
            resumed_tokens: self.counters.resumed_tokens,
            recomputed_tokens: self.counters.recomputed_tokens,
            onloaded_tokens: self.counters.onloaded_tokens,
            offloaded_pages: lower.offloaded_pages(),
            dropped_pages: lower.dropped_pages(),
            evicted_pages: self.counters.evicted_pages,
            committed_tokens: self.counters.committed_tokens,
        }
    }

    /// Prove the accounting from the ground up; says what is wrong. O(everything).
    pub fn check(&self) -> Result<(), String> {
        check::check(self)
    }
}
