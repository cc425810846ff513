//! What was evicted, and was lately, for explanations. Owns a bounded memory of page keys; forgets the oldest.

use std::collections::VecDeque;

use crate::own_map::OwnMap;
use crate::page_keys::PageKey;

use super::pages::PageId;

/// A page that the tree gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EvictedPage {
    pub(super) page: PageId,
    /// None for one that was not full.
    pub(super) key: Option<PageKey>,
}

/// How many evictions are remembered: 24 bytes each, or a little more.
const EVICTIONS_MAX: usize = 65_536;

/// The first 8 bytes stand for a key: an error in 2^48 lookups or so only makes an explanation wrong.
#[derive(Default)]
pub(super) struct Evicted {
    order: VecDeque<u64>,
    counts: OwnMap<u64, u32>,
}

impl Evicted {
    pub(super) fn remember(&mut self, key: &PageKey) {
        if self.order.len() == EVICTIONS_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some(count) = self.counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
        self.order.push_back(short(key));
        *self.counts.entry(short(key)).or_default() += 1;
    }

    pub(super) fn contains(&self, key: &PageKey) -> bool {
        self.counts.contains_key(&short(key))
    }
}

fn short(key: &PageKey) -> u64 {
    let (first, _) = key.split_first_chunk().expect("a key has 32 bytes");
    u64::from_le_bytes(*first)
}
