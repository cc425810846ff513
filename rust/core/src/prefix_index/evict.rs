//! The order of eviction: superseded pages, then the least recently used, weighted by priority. Owns the set of
//! nodes whose last page may go; never removes a page.

use std::collections::BTreeSet;

use super::tree::NodeId;
use super::uses::Tick;

/// The childless nodes whose last page no lease protects, by the use of that page.
///
/// The pages of a conversation go one by one from its end to its beginning: a node enters when its last
/// child goes, with the latest use of all that was below it. To find the next page costs O(log n).
#[derive(Default)]
pub(super) struct EvictableLeaves {
    order: BTreeSet<(Tick, NodeId)>,
}

impl EvictableLeaves {
    pub(super) fn insert(&mut self, last_use: Tick, node: NodeId) {
        self.order.insert((last_use, node));
    }

    pub(super) fn remove(&mut self, last_use: Tick, node: NodeId) {
        self.order.remove(&(last_use, node));
    }

    /// The node whose last page goes next.
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
