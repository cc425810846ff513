//! The order of eviction. Owns the set of nodes whose last page may go, and when pages were used; never
//! removes a page.

use std::collections::BTreeSet;

use super::tree::NodeId;

/// A moment of use: a count of touches, not of time.
pub(super) type Tick = u64;

/// When the pages of one node were used last.
///
/// A use of a page is a use of all pages before it, so the last uses fall from page to page: only
/// the page at the end of each step is kept, with pages ascending and ticks descending.
#[derive(Debug, Default)]
pub(super) struct Uses {
    steps: Vec<(usize, Tick)>,
}

impl Uses {
    /// The last use of page `pages - 1`; 0 for one never used.
    pub(super) fn of(&self, pages: usize) -> Tick {
        let step = self.steps.partition_point(|&(end, _)| end < pages);
        self.steps.get(step).map_or(0, |&(_, tick)| tick)
    }

    /// The first `pages` pages were used at `tick`.
    pub(super) fn raise(&mut self, pages: usize, tick: Tick) {
        if self.of(pages) >= tick {
            return;
        }
        let above = self.steps.partition_point(|&(end, _)| end <= pages);
        let older = self.steps[..above].partition_point(|&(_, earlier)| earlier > tick);
        self.steps.splice(older..above, [(pages, tick)]);
    }

    /// Forget the pages from `pages` on.
    pub(super) fn truncate(&mut self, pages: usize) {
        let last = self.of(pages);
        self.steps.retain(|&(end, _)| end < pages);
        if last > 0 {
            self.steps.push((pages, last));
        }
    }

    /// Keep the first `pages` pages, give the uses of the others.
    pub(super) fn split_off(&mut self, pages: usize) -> Self {
        let below = self.steps.partition_point(|&(end, _)| end <= pages);
        let lower = self.steps.split_off(below);
        if let Some(&(_, tick)) = lower.first() {
            self.raise(pages, tick);
        }
        Self { steps: lower }
    }
}

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
