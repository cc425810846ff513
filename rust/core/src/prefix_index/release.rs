//! Release: everything is given back, and what was committed leaves a tip.

use super::PrefixIndex;
use super::lease::{Lease, LeaseId};
use super::tips::Tip;

impl PrefixIndex {
    /// Unlock, and free the pages that the tree did not take. After a commit, the lease's number names its
    /// tip from now on. Does nothing the second time.
    pub fn release(&mut self, id: LeaseId) {
        let Some(mut lease) = self.leases.remove(&id.0) else {
            return;
        };
        let end = self.tree.locked(lease.lock);
        self.tree.touch(end, lease.priority);
        for page in lease.own_pages() {
            self.pages.give_back(page);
        }
        let former_tails = lease.set_aside.iter().map(|&(_, lock)| lock);
        let tails = former_tails.chain(lease.lock.filter(|_| lease.has_tail));
        for tail in tails {
            let node = self.tree.locks.get(tail.0).node;
            self.tree.node_mut(node).has_writer = false;
        }
        self.let_go(&lease);
        self.leave_tip(id, &mut lease);
        for lock in lease.locks() {
            self.unlock(lock);
        }
        lease.pending.clear(&mut self.tree.namespaces);
        self.tree.namespaces.release(lease.reply);
    }

    /// Keep the end of what was committed, if it is in the tree, and with it the page table. A lease that
    /// committed nothing gives the page table back to the tip it came from.
    fn leave_tip(&mut self, id: LeaseId, lease: &mut Lease) {
        let mut table = std::mem::take(&mut lease.table);
        table.truncate(lease.full);
        let of_tree = lease.duplicates.is_empty() && lease.set_aside.is_empty();
        let end = self.tree.locked(lease.lock);
        let known = end.node.map_or(0, |node| {
            let rows = self.tree.node(node).rows(end.pages - 1, self.page_size);
            (end.pages - 1) * self.page_size + rows
        });
        match end.node {
            // Rows that another page had first may be gone again: there is no tip then.
            Some(node) if lease.has_committed && known == lease.committed => {
                let tip = Tip {
                    node,
                    tokens: known,
                    table: of_tree.then_some(table),
                    conversation: lease.conversation.take(),
                    continued: lease.continued,
                };
                self.tree.add_tip(id.0, tip);
            }
            _ => {
                if let Some(tip) = lease.continued.filter(|_| of_tree) {
                    self.tree.return_table(tip, table);
                }
            }
        }
    }

    /// Tokens from the root to a node, the number of a released lease; `None` when it is not known (any more).
    pub fn node_tokens(&self, node: u64) -> Option<usize> {
        self.tree.tips.get(node).map(|tip| tip.tokens)
    }
}
