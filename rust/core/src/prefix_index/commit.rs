//! Commit: computed pages go into the tree. Never changes a page table.

use super::lease::{Lease, LeaseId, Owner};
use super::tree::{NodeId, PageKey};
use super::{IndexError, PrefixIndex};

impl PrefixIndex {
    /// All of `token_ids`, from position 0, have their K/V in the leased pages: tell the tree.
    ///
    /// May be called again with more tokens, and with fewer than the prompt (a prefill that was
    /// cut off). With no more tokens than before, nothing happens.
    pub fn commit(&mut self, id: LeaseId, token_ids: &[u32]) -> Result<(), IndexError> {
        let mut lease = self.leases.remove(&id.0).ok_or(IndexError::Released)?;
        let result = lease.extend_path(token_ids);
        if result.is_ok() && token_ids.len() > lease.committed {
            self.commit_pages(&mut lease, token_ids.len());
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
        for index in lease.committed / self.page_size..end.div_ceil(self.page_size) {
            self.commit_page(lease, index, end);
        }
        lease.committed = end;
    }

    /// Put page `index`, up to position `end`, below `lease.deepest`. One of three things happens:
    ///
    /// * Another node has these rows (another sequence computed them meanwhile): the lease goes on
    ///   with its own copy, because a page table never changes under a running sequence, and follows
    ///   the other node. A tail that the lease had here keeps its page and its fewer rows; it is
    ///   redundant, and goes when the last lock on it goes.
    /// * The lease's own tail has the first of these rows: the node learns of the new ones in
    ///   place. It keeps its identity, so locks on it hold, and who locked it as a copy source
    ///   asked for old rows, which nobody writes again.
    /// * Else the page moves from the lease to a new node.
    fn commit_page(&mut self, lease: &mut Lease, index: usize, end: usize) {
        let key = lease.page_key(index, end);
        let full = key.len() == self.page_size;
        if let Some(other) = self.tree.covering(lease.deepest, key) {
            if full {
                self.tree.lock(other);
                lease.set_aside.extend(lease.tail.take());
                self.descend(lease, other);
            }
            return;
        }
        self.retain_key(key);
        let key: PageKey = key.into();
        let node = if let Some(tail) = lease.tail {
            let old = self.tree.extend(tail, PageKey::clone(&key));
            self.release_key(&old);
            tail
        } else {
            let entry = &mut lease.table[index];
            let node = self
                .tree
                .insert_locked(lease.deepest, PageKey::clone(&key), entry.page);
            entry.owner = Owner::Node(node);
            lease.tail = Some(node);
            node
        };
        if let Some(partial) = self.tree.superseded_by(lease.deepest, &key) {
            let removed = self.tree.remove(partial);
            self.take_back(removed);
        }
        if full {
            lease.tail = None;
            self.descend(lease, node);
        }
    }

    /// Make `node`, which the lease has locked, its deepest full page.
    fn descend(&mut self, lease: &mut Lease, node: NodeId) {
        if let Some(above) = lease.deepest.replace(node) {
            self.unlock(above);
        }
    }
}
