//! Gauges and counters of the prefix index. Owns what is counted; decides nothing by it.

use super::PrefixIndex;
use super::lease::Lease;
use super::moves::Tier;

/// Gauges and counters, in pages and tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub pages_total: usize,
    pub pages_free: usize,
    /// Pages in the tree, locked or not.
    pub pages_cached: usize,
    /// Pages that only leases know.
    pub pages_leased: usize,
    /// Pages in the tree that an admission could have.
    pub pages_evictable: usize,
    /// Nodes of the tree: runs of pages that no branch divides.
    pub nodes: usize,
    /// Ends of finished turns that can be continued.
    pub tips: usize,
    /// What pins take of their budget.
    pub pages_pinned: usize,
    /// Pages that were evicted and have a slot in host memory, or on disk.
    pub pages_host: usize,
    pub pages_disk: usize,
    /// Tokens of admitted prompts that were found, and that were not.
    pub hit_tokens: u64,
    pub miss_tokens: u64,
    /// The same of preempted sequences that went on, counted apart: what they compute again is no miss of the cache.
    pub resumed_tokens: u64,
    pub recomputed_tokens: u64,
    /// Those found, at first or after a preemption, that were restored from a lower tier and not rejected.
    pub onloaded_tokens: u64,
    /// Pages that went from the device to a slot of a lower tier.
    pub offloaded_pages: u64,
    /// Pages that found no slot, or lost it to newer ones (not those cleared). Without tiers none is counted.
    pub dropped_pages: u64,
    /// Pages evicted to make room (not those that a sibling covers, nor those cleared).
    pub evicted_pages: u64,
    /// Computed tokens that commits told the tree of.
    pub committed_tokens: u64,
}

/// What is counted since the start.
#[derive(Default)]
pub(super) struct Counters {
    hit_tokens: u64,
    miss_tokens: u64,
    resumed_tokens: u64,
    recomputed_tokens: u64,
    onloaded_tokens: u64,
    pub(super) evicted_pages: u64,
    pub(super) committed_tokens: u64,
}

impl Counters {
    pub(super) fn admitted(&mut self, lease: &Lease) {
        let (hit, miss) = self.found_and_not(lease);
        *hit += lease.hit_tokens as u64;
        *miss += (lease.prompt_tokens - lease.hit_tokens) as u64;
        self.onloaded_tokens += lease.onloaded_tokens as u64;
    }

    /// Of what an admission restored, so many tokens turned out not to be there.
    pub(super) fn rejected(&mut self, lease: &Lease, tokens: usize) {
        let lost = tokens as u64;
        let (hit, miss) = self.found_and_not(lease);
        *hit -= lost;
        *miss += lost;
        self.onloaded_tokens -= lost;
    }

    fn found_and_not(&mut self, lease: &Lease) -> (&mut u64, &mut u64) {
        if lease.resumes {
            (&mut self.resumed_tokens, &mut self.recomputed_tokens)
        } else {
            (&mut self.hit_tokens, &mut self.miss_tokens)
        }
    }
}

impl PrefixIndex {
    /// All of them now. O(1).
    pub fn stats(&self) -> Stats {
        let cached = self.tree.pages();
        let free = self.pages.free();
        let lower = &self.tree.shelf;
        Stats {
            pages_total: self.pages.total(),
            pages_free: free,
            pages_cached: cached,
            pages_leased: self.pages.total() - free - cached,
            pages_evictable: self.tree.evictable_pages(),
            nodes: self.tree.len(),
            tips: self.tree.tips.len(),
            pages_pinned: self.pins.pages(),
            pages_host: lower.pages(Tier::Host),
            pages_disk: lower.pages(Tier::Disk),
            hit_tokens: self.counters.hit_tokens,
            miss_tokens: self.counters.miss_tokens,
            resumed_tokens: self.counters.resumed_tokens,
            recomputed_tokens: self.counters.recomputed_tokens,
            onloaded_tokens: self.counters.onloaded_tokens,
            offloaded_pages: lower.offloaded_pages(),
            dropped_pages: lower.dropped_pages(),
            evicted_pages: self.counters.evicted_pages,
            committed_tokens: self.counters.committed_tokens,
        }
    }
}
