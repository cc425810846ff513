//! Pins: paths that an operator keeps cached. Owns their budget; a pin holds a lock.

use std::collections::HashMap;

use super::locks::LockId;
use super::{IndexError, PrefixIndex};

/// Pins by the number of the tip they were set on, which may be gone meanwhile.
#[derive(Default)]
pub(super) struct Pins {
    pages_max: usize,
    by_node: HashMap<u64, (LockId, usize)>,
}

impl Pins {
    /// Pages on the pinned paths; one that two paths share counts for both.
    pub(super) fn pages(&self) -> usize {
        self.by_node.values().map(|&(_, pages)| pages).sum()
    }

    /// Forget the pins whose locks `are_gone`; gives these.
    pub(super) fn remove_in(&mut self, are_gone: impl Fn(LockId) -> bool) -> Vec<LockId> {
        let gone = self.by_node.extract_if(|_, &mut (lock, _)| are_gone(lock));
        gone.map(|(_, (lock, _))| lock).collect()
    }

    pub(super) fn locks(&self) -> impl Iterator<Item = LockId> + '_ {
        self.by_node.values().map(|&(lock, _)| lock)
    }
}

impl PrefixIndex {
    /// Let pins take at most so many pages; no pin is allowed before.
    #[must_use]
    pub fn with_pins(mut self, pages_max: usize) -> Self {
        self.pins.pages_max = pages_max;
        self
    }

    /// Keep the path to a tip from eviction. Pages that pinned paths share count for each of them. To pin a node
    /// again changes nothing.
    pub fn pin(&mut self, node: u64) -> Result<(), IndexError> {
        if self.pins.by_node.contains_key(&node) {
            return Ok(());
        }
        let tip = self.tree.tips.get(node).ok_or(IndexError::UnknownNode)?;
        let pages = tip.tokens.div_ceil(self.page_size);
        let (pinned, pages_max) = (self.pins.pages(), self.pins.pages_max);
        if pinned + pages > pages_max {
            return Err(IndexError::PinBudget {
                pages,
                pinned,
                pages_max,
            });
        }
        let at = self.tree.position(tip.node, pages);
        if let Some(lock) = self.tree.lock(at) {
            self.pins.by_node.insert(node, (lock, pages));
        }
        Ok(())
    }

    /// Let the path be evicted again; says whether it was pinned.
    pub fn unpin(&mut self, node: u64) -> bool {
        let Some((lock, _)) = self.pins.by_node.remove(&node) else {
            return false;
        };
        self.unlock(lock);
        true
    }
}
