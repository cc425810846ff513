//! One sequence's hold on pages. Owns the page table and what of it belongs to whom; never changes
//! a page that is in the table.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::locks::LockId;
use super::namespace::NamespaceId;
use super::pages::PageId;
use super::run::Run;

/// A lease's number, never given twice. It names the lease's tip once the lease is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseId(pub(super) u64);

impl LeaseId {
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Rows to copy before anything else is written into the leased pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowCopy {
    pub source_page: PageId,
    pub target_page: PageId,
    /// The first rows of the page, as many as this.
    pub rows: usize,
}

/// The hold itself.
///
/// Page `p` of the table belongs to the tree if `p < full` or it is the tail, and is not in `duplicates`; the
/// others are the lease's own, and release frees them.
pub struct Lease {
    pub(super) page_size: usize,
    pub(super) table: Vec<PageId>,
    /// Leading pages of the path that the tree has in full: matched, or committed.
    pub(super) full: usize,
    /// On the path up to `full`, the tail included if there is one. None at the root.
    pub(super) lock: Option<LockId>,
    /// Whether page `full` of the table is the tree's partial page after `lock`'s full ones: this lease's to
    /// write on, and nobody else's.
    pub(super) has_tail: bool,
    /// Pages below `full` that another sequence committed first: this one goes on with its own.
    pub(super) duplicates: Vec<usize>,
    /// Former tails, and their places, that could not be extended: another sequence was first to commit the
    /// full page. They are in the table, so they stay locked to the end.
    pub(super) set_aside: Vec<(usize, LockId)>,
    pub(super) copy: Option<(LockId, RowCopy)>,
    /// The path from page `full` on; what is before stands in the tree.
    pub(super) pending: Run<'static>,
    /// What follows the prompt stands in this namespace; one reference.
    pub(super) reply: NamespaceId,
    pub(super) prompt_tokens: usize,
    pub(super) hit_tokens: usize,
    /// The last of them, as many as this, were restored into the lease's own pages.
    pub(super) onloaded_tokens: usize,
    /// Leading positions that the tree was told of; at admission those of the pages it shares.
    pub(super) committed: usize,
    /// Whether a commit told the tree of something.
    pub(super) has_committed: bool,
    pub(super) conversation: Option<Arc<[u8]>>,
    /// The tip that it goes on from.
    pub(super) continued: Option<u64>,
    pub(super) priority: u8,
    /// Whether it goes on with a preempted sequence.
    pub(super) resumes: bool,
    /// Once a quarantine took pages from under it: those pages. No tree has them, and what the lease commits is
    /// not cached any more.
    pub(super) quarantined: Option<BTreeSet<PageId>>,
}

impl Lease {
    /// Leading tokens whose K/V are in the leased pages once the copy and the moves have been done.
    pub fn hit_tokens(&self) -> usize {
        self.hit_tokens
    }

    /// The last of the hit tokens, as many as this, are restored by moves. Like computed ones they are the
    /// lease's own until a commit, and gone if it is released before: commit `hit_tokens` as soon as they are
    /// known to be right.
    pub fn onloaded_tokens(&self) -> usize {
        self.onloaded_tokens
    }

    /// Tokens that were admitted, those before a tip included.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Tokens admitted and appended.
    pub fn tokens(&self) -> usize {
        self.full * self.page_size + self.pending.len()
    }

    /// The copy to do first; `None` once a commit has said that it was done.
    pub fn copy(&self) -> Option<RowCopy> {
        self.copy.map(|(_, copy)| copy)
    }

    /// Whether a quarantine took pages from under it: what it commits is not cached.
    pub fn is_detached(&self) -> bool {
        self.quarantined.is_some()
    }

    /// Page ids in position order, shared pages first.
    pub fn page_table(&self) -> &[PageId] {
        &self.table
    }

    /// Positions the page table has room for.
    pub fn tokens_reserved(&self) -> usize {
        self.table.len() * self.page_size
    }

    /// Leading pages of the table that are the tree's, but for `duplicates`.
    pub(super) fn given(&self) -> usize {
        self.full + usize::from(self.has_tail)
    }

    /// The pages that nobody else knows.
    pub(super) fn own_pages(&self) -> impl Iterator<Item = PageId> + '_ {
        // After a quarantine a former tail may stand behind what is left of the path, and is the tree's.
        let is_aside = |place| self.set_aside.iter().any(|&(aside, _)| aside == place);
        let behind = (self.given()..self.table.len()).filter(move |&place| !is_aside(place));
        let places = self.duplicates.iter().copied().chain(behind);
        let is_quarantined = |page| self.quarantined_pages().any(|other| other == page);
        let pages = places.map(|place| self.table[place]);
        pages.filter(move |&page| !is_quarantined(page))
    }

    /// The pages that quarantines took from under it.
    pub(super) fn quarantined_pages(&self) -> impl Iterator<Item = PageId> + '_ {
        self.quarantined.iter().flatten().copied()
    }

    /// The locks this lease has.
    pub(super) fn locks(&self) -> impl Iterator<Item = LockId> + '_ {
        let source = self.copy.map(|(source, _)| source);
        let set_aside = self.set_aside.iter().map(|&(_, lock)| lock);
        set_aside.chain(source).chain(self.lock)
    }
}
