//! The order of eviction. Owns the set of leaves that may go, least recently used first; never
//! removes a node.

use std::collections::BTreeSet;

use super::tree::NodeId;

/// A moment of use: a count of touches, not of time.
pub(super) type Tick = u64;

/// The leaves that no lease protects, by last use.
///
/// Only leaves are in it: a node enters when its last child goes, with the latest use of all that
/// was below it. So the pages of a conversation go from its end to its beginning, and to find the
/// next one costs O(log n) and no walk.
#[derive(Default)]
pub(super) struct EvictableLeaves {
    order: BTreeSet<(Tick, NodeId)>,
}

impl EvictableLeaves {
    pub(super) fn insert(&mut self, last_use: Tick, node: NodeId) {
        self.order.insert((last_use, node));
    }

    /// Take the node out; says whether it was in.
    pub(super) fn remove(&mut self, last_use: Tick, node: NodeId) -> bool {
        self.order.remove(&(last_use, node))
    }

    /// The leaf to evict next.
    pub(super) fn first(&self) -> Option<NodeId> {
        self.order.first().map(|&(_, node)| node)
    }

    pub(super) fn contains(&self, last_use: Tick, node: NodeId) -> bool {
        self.order.contains(&(last_use, node))
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }
}
