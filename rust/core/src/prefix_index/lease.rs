//! One sequence's hold on pages. Owns the page table and what of it belongs to whom; never changes
//! a page that is in the table.

use super::IndexError;
use super::namespace::{NamespaceId, PathToken};
use super::pages::PageId;
use super::tree::NodeId;

/// A lease's number, never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseId(pub(super) u64);

/// Rows to copy before anything else is written into the leased pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowCopy {
    pub source_page: PageId,
    pub target_page: PageId,
    /// The first rows of the page, as many as this.
    pub rows: usize,
}

/// Whom a page of the table belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The lease: nobody else knows the page, release frees it.
    Lease,
    /// A node of the tree, kept in place by a lock of this lease.
    Node(NodeId),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct TableEntry {
    pub(super) page: PageId,
    pub(super) owner: Owner,
}

/// The hold itself.
///
/// Locks: one on `deepest`, one on `tail`, one on each of `set_aside`, one on the source of `copy`.
pub struct Lease {
    /// What was admitted, followed by what was committed after it.
    pub(super) path: Vec<PathToken>,
    /// One reference for each stretch; the last one goes on past the prompt.
    pub(super) namespaces: Vec<NamespaceId>,
    pub(super) table: Vec<TableEntry>,
    /// Node of the last full page in the tree (matched, or committed).
    pub(super) deepest: Option<NodeId>,
    /// The partial node below `deepest` whose page is this lease's own and still grows.
    pub(super) tail: Option<NodeId>,
    /// Former tails that could not be extended: another sequence was first to commit the full page.
    /// Their pages are in the table, so they stay locked to the end.
    pub(super) set_aside: Vec<NodeId>,
    pub(super) copy: Option<(NodeId, RowCopy)>,
    pub(super) hit_tokens: usize,
    /// Leading positions that the tree was told of; at admission those of the shared pages.
    pub(super) committed: usize,
    pub(super) page_size: usize,
}

impl Lease {
    /// Leading tokens whose K/V are in the leased pages once the copy has been done.
    pub fn hit_tokens(&self) -> usize {
        self.hit_tokens
    }

    /// The copy to do first; `None` once a commit has said that it was done.
    pub fn copy(&self) -> Option<RowCopy> {
        self.copy.map(|(_, copy)| copy)
    }

    /// Page ids in position order, shared pages first.
    pub fn page_table(&self) -> impl ExactSizeIterator<Item = PageId> + '_ {
        self.table.iter().map(|entry| entry.page)
    }

    /// Positions the page table has room for.
    pub fn tokens_reserved(&self) -> usize {
        self.table.len() * self.page_size
    }

    /// The nodes this lease has one lock on, each.
    pub(super) fn locked_nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        let source = self.copy.map(|(source, _)| source);
        let single = [source, self.tail, self.deepest].into_iter().flatten();
        self.set_aside.iter().copied().chain(single)
    }

    /// Compare `token_ids` with what is known of the path and add the rest under the last
    /// namespace. An error changes nothing.
    pub(super) fn extend_path(&mut self, token_ids: &[u32]) -> Result<(), IndexError> {
        let tokens = token_ids.len();
        let reserved = self.tokens_reserved();
        if tokens > reserved {
            return Err(IndexError::CommitPastRoom { tokens, reserved });
        }
        let mut pairs = self.path.iter().zip(token_ids);
        if let Some(position) = pairs.position(|(known, token)| known.token_id() != *token) {
            return Err(IndexError::CommitDiffers { position });
        }
        let last = *self.namespaces.last().expect("at least one stretch");
        let new = token_ids.get(self.path.len()..).unwrap_or_default();
        self.path
            .extend(new.iter().map(|&token| PathToken::new(last, token)));
        Ok(())
    }

    /// The pairs of page `index`, up to position `end`.
    pub(super) fn page_key(&self, index: usize, end: usize) -> &[PathToken] {
        let start = index * self.page_size;
        &self.path[start..end.min(start + self.page_size)]
    }
}
