//! Commit: computed pages go into the tree. Never changes a page table.

use super::lease::{Lease, LeaseId};
use super::tree::{NodeId, Position};
use super::{IndexError, PrefixIndex};

impl PrefixIndex {
    /// Tokens that follow what was admitted and appended: sampled, or closing the reply. Not computed yet.
    pub fn append(&mut self, id: LeaseId, token_ids: &[u32]) -> Result<(), IndexError> {
        let lease = self.leases.get_mut(&id.0).ok_or(IndexError::Released)?;
        let namespaces = &mut self.tree.namespaces;
        lease.pending.push(lease.reply, token_ids, namespaces);
        Ok(())
    }

    /// The first `tokens` positions have their K/V in the leased pages: tell the tree. O(new pages).
    ///
    /// May be called again with more, and with fewer than the prompt (a prefill that was cut off). With
    /// no more than before, nothing happens.
    pub fn commit(&mut self, id: LeaseId, tokens: usize) -> Result<(), IndexError> {
        let mut lease = self.leases.remove(&id.0).ok_or(IndexError::Released)?;
        let (known, reserved) = (lease.tokens(), lease.tokens_reserved());
        let result = if tokens > known {
            Err(IndexError::CommitPastTokens { tokens, known })
        } else if tokens > reserved {
            Err(IndexError::CommitPastRoom { tokens, reserved })
        } else {
            Ok(())
        };
        if result.is_ok() && tokens > lease.committed && !lease.is_detached() {
            self.commit_pages(&mut lease, tokens);
        }
        self.leases.insert(id.0, lease);
        result
    }

    fn commit_pages(&mut self, lease: &mut Lease, end: usize) {
        if let Some((source, _)) = lease.copy.take() {
            self.unlock(source);
        }
        let known = lease.committed.max(lease.hit_tokens);
        self.counters.committed_tokens += end.saturating_sub(known) as u64;
        lease.committed = end;
        lease.has_committed = true;
        if !lease.has_tail || self.set_tail_aside(lease, end) {
            self.follow(lease, end);
        }
        self.give_to_tree(lease, end);
    }

    /// Whether the lease's tail page, up to position `end`, is cached elsewhere: then the lease follows the
    /// other page, goes on with its own copy (a page table never changes under a running sequence), and the
    /// tail keeps its fewer rows. It is covered, and goes when the last lock on it goes.
    fn set_tail_aside(&mut self, lease: &mut Lease, end: usize) -> bool {
        let tail = self.tree.locked(lease.lock);
        let node = tail.node.expect("a tail is in a node");
        if self.tree.node(node).start < lease.full {
            return false; // No branch begins here, so there is no other page.
        }
        let rows = self.page_size.min(end - lease.full * self.page_size);
        let key = lease.pending.pairs(0..rows);
        let parent = self.tree.node(node).parent;
        match self.tree.covering(parent, &key) {
            Some(other) if rows == self.page_size => {
                lease
                    .set_aside
                    .extend(lease.lock.map(|lock| (lease.full, lock)));
                lease.has_tail = false;
                lease.lock = self.tree.lock(Position {
                    node: Some(other),
                    pages: lease.full + 1,
                });
                self.advance(lease, lease.full + 1);
                true
            }
            _ => false,
        }
    }

    /// Go down along the pages up to position `end` that are cached already. The lease keeps its own copies of
    /// them, because a page table never changes under a running sequence.
    fn follow(&mut self, lease: &mut Lease, end: usize) {
        let from = self.tree.locked(lease.lock);
        let whole_pages = end / self.page_size - lease.full;
        let limit = whole_pages * self.page_size;
        let at = self
            .tree
            .find(from, &lease.pending, limit, &mut Vec::new())
            .at;
        if at.pages > lease.full {
            lease.duplicates.extend(lease.full..at.pages);
            self.move_lock(lease, at);
            self.advance(lease, at.pages);
        }
    }

    /// What the tree lacks moves to it, except rows of a last page that another page has as well.
    ///
    /// The tail's node learns of new rows in place. It keeps its identity, so locks on it hold, and who locked it
    /// as a copy source asked for old rows, which nobody writes again.
    fn give_to_tree(&mut self, lease: &mut Lease, end: usize) {
        let start = lease.full * self.page_size;
        if start >= end {
            return;
        }
        let last = end.div_ceil(self.page_size);
        let at = self.tree.locked(lease.lock);
        let rows = self.page_size.min(end - start);
        let node = if lease.has_tail {
            let node = at.node.expect("a tail is in a node");
            let known = self.tree.node(node).rows(lease.full, self.page_size);
            if !self.make_place_beside(lease, node, rows) {
                return;
            }
            let pages = &lease.table[lease.full + 1..last];
            self.tree
                .extend(node, &lease.pending, known..end - start, pages);
            node
        } else {
            if !self.make_place(lease, at, rows) {
                return;
            }
            let pages = &lease.table[lease.full..last];
            self.tree.insert(at, &lease.pending, 0..end - start, pages)
        };
        self.move_lock(
            lease,
            Position {
                node: Some(node),
                pages: last,
            },
        );
        lease.has_tail = !end.is_multiple_of(self.page_size);
        let has_tail = lease.has_tail;
        self.tree.node_mut(node).has_writer = has_tail;
        self.advance(lease, end / self.page_size);
    }

    /// Whether the first `rows` pending rows, of one page, are to go below `at`: not when a page has them all. A
    /// partial page there that has only some of them is removed, unless it is locked.
    fn make_place(&mut self, lease: &Lease, at: Position, rows: usize) -> bool {
        let found = self.tree.find(at, &lease.pending, rows, &mut Vec::new());
        let Some(partial) = found.partial else {
            return true;
        };
        if partial.rows == rows {
            return false;
        }
        let node = self.tree.node(partial.node);
        let locked = node.protected_pages() > at.pages - node.start;
        if partial.rows == node.rows(at.pages, self.page_size) && !locked {
            let page = self.tree.remove_last_page(partial.node);
            self.pages.give_back(page);
        }
        true
    }

    /// The same for a tail in `node` that is to grow to `rows` rows: only a page of its own has siblings.
    fn make_place_beside(&mut self, lease: &Lease, node: NodeId, rows: usize) -> bool {
        let tail = self.tree.node(node);
        if tail.start < lease.full {
            return true;
        }
        let parent = tail.parent;
        let key = lease.pending.pairs(0..rows);
        if self.tree.covering(parent, &key).is_some() {
            return false;
        }
        if let Some(covered) = self.tree.covered_by(parent, &key) {
            let page = self.tree.remove_last_page(covered);
            self.pages.give_back(page);
        }
        true
    }

    /// The tree has the path's first `full` pages now.
    fn advance(&mut self, lease: &mut Lease, full: usize) {
        let tokens = (full - lease.full) * self.page_size;
        lease.pending.drop_front(tokens, &mut self.tree.namespaces);
        lease.full = full;
    }

    fn move_lock(&mut self, lease: &mut Lease, to: Position) {
        let old = std::mem::replace(&mut lease.lock, self.tree.lock(to));
        if let Some(old) = old {
            self.unlock(old);
        }
    }
}
