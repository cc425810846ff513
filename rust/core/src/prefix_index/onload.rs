//! Onload: pages of the shelf come back to the device by an admission. Owns which ones, and what becomes of a
//! doubtful one; the shelf owns where they are.

use crate::page_keys::PageKey;

use super::admit::{Start, Taken};
use super::lease::LeaseId;
use super::pages::PageId;
use super::run::Run;
use super::search::Matched;
use super::shelf::Shelf;
use super::tree::{Position, Tree};
use super::{IndexError, PrefixIndex};

impl PrefixIndex {
    /// Keep evicted pages in slots of lower tiers: so many in host memory, so many on disk. Before the first
    /// use; without slots an evicted page is gone, as it is before this call.
    #[must_use]
    pub fn with_tiers(mut self, host_slots: u32, disk_slots: u32) -> Self {
        self.tree.shelf = Shelf::new(host_slots, disk_slots);
        self
    }

    /// The keys of the pages to restore after `matched`: a run on the shelf of at least `tokens_min` tokens.
    ///
    /// Such a run has a full page at least, so it is longer than any partial match of a device page.
    pub(super) fn restorable(
        &self,
        start: &Start<'_>,
        matched: Matched,
        tokens_min: Option<usize>,
    ) -> Vec<PageKey> {
        let Some(tokens_min) = tokens_min else {
            return Vec::new();
        };
        let from = (matched.at.pages - start.at.pages) * self.page_size;
        let mut run = self.tree.shelved(&start.table, &start.path, from);
        if run.len() * self.page_size < tokens_min {
            run.clear();
        }
        run
    }

    /// Lock the match, take `missing` pages, and restore a run, which is not empty, into the first of them.
    /// `None`, and no change, when there is no room.
    pub(super) fn take_and_restore(
        &mut self,
        at: Position,
        missing: usize,
        run: &[PageKey],
    ) -> Option<Taken> {
        let lock = self.tree.lock(at);
        if !self.has_room(missing) {
            if let Some(lock) = lock {
                self.unlock(lock);
            }
            return None;
        }
        // Out of the shelf first: evictions may make it drop pages, and must not drop these.
        let held = self.tree.shelf.take_out(run);
        let own = self.take_pages(missing).expect("there is room");
        self.tree.shelf.restore(held, &own);
        Some(Taken {
            lock,
            tail: None,
            source: None,
            own,
            restored: run.len(),
        })
    }

    /// What was restored is not to be trusted from position `tokens` on: the lease's hit ends there, and what
    /// follows is to be computed, into the same pages.
    ///
    /// An error for positions that were not restored for this lease, or that a commit told the tree of.
    pub fn reject(&mut self, id: LeaseId, tokens: usize) -> Result<(), IndexError> {
        let lease = self.leases.get_mut(&id.0).ok_or(IndexError::Released)?;
        let hit_tokens = lease.hit_tokens;
        let from = (hit_tokens - lease.onloaded_tokens).max(lease.committed);
        if tokens < from || hit_tokens < tokens {
            return Err(IndexError::NotRestored {
                tokens,
                from,
                hit_tokens,
            });
        }
        lease.hit_tokens = tokens;
        lease.onloaded_tokens -= hit_tokens - tokens;
        self.counters.rejected(lease, hit_tokens - tokens);
        Ok(())
    }
}

impl Tree {
    /// The keys of pages on the shelf that follow each other on `path`, from its position `from` on; `table`:
    /// the pages before, of the tree. Of the path at least one token remains. O(pages found), one key more.
    pub(super) fn shelved(&self, table: &[PageId], path: &Run<'_>, from: usize) -> Vec<PageKey> {
        let mut run = Vec::new();
        if self.shelf.is_empty() {
            return run;
        }
        let above = table.last().map(|&page| *self.rows.key(page));
        let mut key = above.unwrap_or_else(|| self.root_key());
        for start in (from..path.len()).step_by(self.page_size) {
            let end = start + self.page_size;
            if end >= path.len() {
                break;
            }
            key = self.key_of(&key, path.pieces(start..end));
            if !self.shelf.contains(&key) {
                break;
            }
            run.push(key);
        }
        run
    }
}
